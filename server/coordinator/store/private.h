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
    uint64_t incarnation, identity, storage;
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
/* A statement with one number, which is bound to it. */
cairn_status cairn_store_run_with(struct cairn_store *store, const char *sql, uint64_t value,
                                  struct cairn_sentence *why);
/* SQLite's numbers are signed; ours are stored as the same 64 bits. */
static inline void cairn_store_bind_u64(sqlite3_stmt *s, int at, uint64_t value)
{
    sqlite3_bind_int64(s, at, (sqlite3_int64)value);
}
/* Runs a bound statement to its end and frees it. */
cairn_status cairn_store_finish(struct cairn_store *store, sqlite3_stmt *s,
                                struct cairn_sentence *why);

/* The same of one that changes a job's row. CAIRN_ERR_NOT_FOUND: there is none. */
cairn_status cairn_store_finish_job(struct cairn_store *store, sqlite3_stmt *s, uint64_t id,
                                    struct cairn_sentence *why);

/* ---- store_layout.c ---- */
/* Binds what a job's row says about its layout, beside the layout itself: four values, the first
 * at `at`. */
void cairn_store_bind_layout(sqlite3_stmt *s, int at, const struct cairn_stored_job *job);
/* The shards of the job instead of those that it had. In a transaction. */
cairn_status cairn_store_put_shards(struct cairn_store *store, const struct cairn_stored_job *job,
                                    struct cairn_sentence *why);

/* ---- store.c ---- */
/* COMMIT, or ROLLBACK of what failed. */
cairn_status cairn_store_end_transaction(struct cairn_store *store, cairn_status status,
                                         struct cairn_sentence *why);

#endif
