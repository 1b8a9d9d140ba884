#include "proto/store/names.h"

#include <stdlib.h>
#include <string.h>

static void add(void *context, const char *name, bool is_folder)
{
    struct cairn_names *names = context;
    (void)is_folder;
    if (names->status != CAIRN_OK) return;
    if (names->count == names->capacity) {
        const size_t wanted = 2 * names->capacity + 16;
        char **grown = realloc(names->list, wanted * sizeof *grown);
        if (grown != NULL) {
            names->list = grown;
            names->capacity = wanted;
        }
    }
    char *copy = names->count < names->capacity ? strdup(name) : NULL;
    if (copy == NULL)
        names->status = CAIRN_ERR_NO_MEMORY;
    else
        names->list[names->count++] = copy;
}

static int name_order(const void *a, const void *b)
{
    return strverscmp(*(char *const *)a, *(char *const *)b);
}

cairn_status cairn_names_list(const char *at, const char *path, struct cairn_names *out,
                              struct cairn_sentence *why)
{
    *out = (struct cairn_names) { .list = NULL };
    const cairn_status status = cairn_storage_of(at)->list(at, path, add, out, why);
    if (status != CAIRN_OK) return status;
    if (out->status != CAIRN_OK)
        return cairn_fail(why, out->status, "no memory for the names in %s/%s", at, path);
    if (out->count > 0) qsort(out->list, out->count, sizeof *out->list, name_order);
    return CAIRN_OK;
}

void cairn_names_release(struct cairn_names *names)
{
    for (size_t i = 0; i < names->count; i++) free(names->list[i]);
    free(names->list);
    *names = (struct cairn_names) { .list = NULL };
}
