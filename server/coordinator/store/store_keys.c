/* The keys whose signatures are trusted. See store.h. */
#include "server/coordinator/store/private.h"

cairn_status cairn_store_put_key(struct cairn_store *store, const struct cairn_stored_key *key,
                                 struct cairn_sentence *why)
{
    sqlite3_stmt *s;
    const cairn_status status = cairn_store_prepare(
        store, "INSERT OR REPLACE INTO keys VALUES (?1, ?2, ?3)", &s, why);
    if (status != CAIRN_OK) return status;
    sqlite3_bind_text(s, 1, key->line, -1, SQLITE_TRANSIENT);
    sqlite3_bind_int(s, 2, key->is_own);
    cairn_store_bind_u64(s, 3, key->since_unix_s);
    return cairn_store_finish(store, s, why);
}

cairn_status cairn_store_drop_key(struct cairn_store *store, const char *line,
                                  struct cairn_sentence *why)
{
    sqlite3_stmt *s;
    const cairn_status status = cairn_store_prepare(store, "DELETE FROM keys WHERE line = ?1", &s,
                                                    why);
    if (status != CAIRN_OK) return status;
    sqlite3_bind_text(s, 1, line, -1, SQLITE_TRANSIENT);
    return cairn_store_finish(store, s, why);
}

cairn_status cairn_store_each_key(struct cairn_store *store, cairn_stored_key_fn take,
                                  void *context, struct cairn_sentence *why)
{
    sqlite3_stmt *s;
    cairn_status status = cairn_store_prepare(
        store, "SELECT line, own, since FROM keys ORDER BY own DESC, since, line", &s, why);
    if (status != CAIRN_OK) return status;
    int code = sqlite3_step(s);
    for (; code == SQLITE_ROW && status == CAIRN_OK; code = sqlite3_step(s)) {
        const struct cairn_stored_key key = { (const char *)sqlite3_column_text(s, 0),
                                              sqlite3_column_int(s, 1) != 0,
                                              (uint64_t)sqlite3_column_int64(s, 2) };
        status = take(context, &key, why);
    }
    if (status == CAIRN_OK && code != SQLITE_DONE) status = cairn_store_fail(store, "reading", why);
    sqlite3_finalize(s);
    return status;
}
