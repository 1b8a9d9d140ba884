#include "proto/store/storage.h"

#include <assert.h>
#include <string.h>

#define BACKENDS_MAX 4

static const struct cairn_storage *registered[BACKENDS_MAX];
static size_t registered_count;

void cairn_storage_register(const struct cairn_storage *storage)
{
    assert(registered_count < BACKENDS_MAX && storage->scheme[0] != '\0');
    registered[registered_count++] = storage;
}

const struct cairn_storage *cairn_storage_of(const char *location)
{
    for (size_t i = 0; i < registered_count; i++) {
        const size_t length = strlen(registered[i]->scheme);
        if (strncmp(location, registered[i]->scheme, length) == 0 && location[length] == ':')
            return registered[i];
    }
    return &cairn_storage_folder;
}
