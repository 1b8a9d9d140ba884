/* The shards that leave by an operator's word. See store.h. */
#include "server/coordinator/store/private.h"

cairn_status cairn_store_set_leaving(struct cairn_store *store, const char *shard, bool leaves,
                                     struct cairn_sentence *why)
{
    sqlite3_stmt *s;
    const cairn_status status = cairn_store_prepare(
        store,
        leaves ? "INSERT OR REPLACE INTO leaving VALUES (?1)"
               : "DELETE FROM leaving WHERE shard = ?1",
        &s, why);
    if (status != CAIRN_OK) return status;
    sqlite3_bind_text(s, 1, shard, -1, SQLITE_TRANSIENT);
    return cairn_store_finish(store, s, why);
}

cairn_status cairn_store_each_leaving(struct cairn_store *store, cairn_stored_leaving_fn take,
                                      void *context, struct cairn_sentence *why)
{
    sqlite3_stmt *s;
    cairn_status status = cairn_store_prepare(store, "SELECT shard FROM leaving", &s, why);
    if (status != CAIRN_OK) return status;
    int code = sqlite3_step(s);
    for (; code == SQLITE_ROW && status == CAIRN_OK; code = sqlite3_step(s))
        status = take(context, (const char *)sqlite3_column_text(s, 0), why);
    if (status == CAIRN_OK && code != SQLITE_DONE) status = cairn_store_fail(store, "reading", why);
    sqlite3_finalize(s);
    return status;
}
