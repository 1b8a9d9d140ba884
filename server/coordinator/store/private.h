/* The open database, for the files of the store alone. */
#ifndef CAIRN_COORDINATOR_STORE_PRIVATE_H
#define CAIRN_COORDINATOR_STORE_PRIVATE_H

#include <sqlite3.h>

#include "server/coordinator/store/store.h"

struct cairn_store {
    /* owned */
    sqlite3 *db;
    char *path;
    char signer[CAIRN_KEY_TEXT_BYTES]; /* what pictures have; empty: none */
    struct cairn_stored_meta meta;
    uint64_t opening_changes; /* rows that open itself wrote */
    uint64_t event_changes;   /* rows of events, written or deleted */
};

/* The library's last error as a status and a sentence that says what to do. */
cairn_status cairn_store_fail(const struct cairn_store *store, const char *doing,
                              struct cairn_sentence *why);
cairn_status cairn_store_run(const struct cairn_store *store, const char *sql,
                             struct cairn_sentence *why);
cairn_status cairn_store_prepare(const struct cairn_store *store, const char *sql,
                                 sqlite3_stmt **out, struct cairn_sentence *why);
/* SQLite's numbers are signed; ours are stored as the same 64 bits. */
static inline void cairn_store_bind_u64(sqlite3_stmt *s, int at, uint64_t value)
{
    sqlite3_bind_int64(s, at, (sqlite3_int64)value);
}

#endif
