/* The open database, for the files of the store alone. */
#ifndef CAIRN_COORDINATOR_STORE_PRIVATE_H
#define CAIRN_COORDINATOR_STORE_PRIVATE_H

#include <sqlite3.h>

#include "server/coordinator/store/store.h"

struct cairn_store {
    /* owned */
    sqlite3 *db;
    char *path;
    uint64_t incarnation, identity, storage;
    uint64_t opening_changes; /* rows that open itself wrote */
};

#endif
