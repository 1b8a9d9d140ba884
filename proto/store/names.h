/* The names in a folder of storage, in order. */
#ifndef CAIRN_STORE_NAMES_H
#define CAIRN_STORE_NAMES_H

#include "proto/store/storage.h"

struct cairn_names {
    char **
        list; /* owned, [count]: numbers in names are compared as numbers ("...-g1-10" after "...-g1-9") */
    size_t count, capacity;
    cairn_status status;
};
/* As storage.h's list; release it, whatever it returned. */
cairn_status cairn_names_list(const char *at, const char *path, struct cairn_names *out,
                              struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_names_release(struct cairn_names *names);

#endif
