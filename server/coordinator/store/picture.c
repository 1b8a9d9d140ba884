/* A picture of the store at one moment, while it is in use: SQLite's backup into memory, and that as the
 * bytes of a file. The file itself is for another thread to write: its disk need not be the store's. A
 * picture has the secret key, too, which a store in use has in a file beside it: one file is all there is to
 * save. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/store/private.h"

static cairn_status fail(const struct cairn_store *store, sqlite3 *copy, struct cairn_sentence *why)
{
    const cairn_status status = cairn_fail(why, CAIRN_ERR_IO, "%s: copying: %s", store->path,
                                           copy == NULL ? "no memory" : sqlite3_errmsg(copy));
    sqlite3_close(copy);
    return status;
}

static bool put_signer(sqlite3 *copy, const char *signer)
{
    sqlite3_stmt *s;
    if (sqlite3_exec(copy,
                     "CREATE TABLE IF NOT EXISTS signer (one INTEGER PRIMARY KEY CHECK (one = 1), "
                     "text TEXT NOT NULL)",
                     NULL, NULL, NULL) != SQLITE_OK ||
        sqlite3_prepare_v2(copy, "INSERT OR REPLACE INTO signer VALUES (1, ?1)", -1, &s, NULL) !=
            SQLITE_OK)
        return false;
    sqlite3_bind_text(s, 1, signer, -1, SQLITE_STATIC);
    const bool is_put = sqlite3_step(s) == SQLITE_DONE;
    return sqlite3_finalize(s) == SQLITE_OK && is_put;
}

/* *there_out: the table is. */
static cairn_status find_signer(const struct cairn_store *store, bool *there_out,
                                struct cairn_sentence *why)
{
    sqlite3_stmt *s;
    const cairn_status status = cairn_store_prepare(
        store, "SELECT 1 FROM sqlite_master WHERE name = 'signer'", &s, why);
    if (status != CAIRN_OK) return status;
    *there_out = sqlite3_step(s) == SQLITE_ROW;
    sqlite3_finalize(s);
    return CAIRN_OK;
}

cairn_status cairn_store_signer(const struct cairn_store *store,
                                char text_out[CAIRN_KEY_TEXT_BYTES], struct cairn_sentence *why)
{
    sqlite3_stmt *s;
    bool there;
    cairn_status status = find_signer(store, &there, why);
    if (status == CAIRN_OK && !there) return CAIRN_ERR_NOT_FOUND;
    if (status == CAIRN_OK) status = cairn_store_prepare(store, "SELECT text FROM signer", &s, why);
    if (status != CAIRN_OK) return status;
    if (sqlite3_step(s) == SQLITE_ROW)
        snprintf(text_out, CAIRN_KEY_TEXT_BYTES, "%s", (const char *)sqlite3_column_text(s, 0));
    else
        status = CAIRN_ERR_NOT_FOUND;
    sqlite3_finalize(s);
    return status;
}

cairn_status cairn_store_set_signer(struct cairn_store *store, const char *text,
                                    struct cairn_sentence *why)
{
    bool there;
    snprintf(store->signer, sizeof store->signer, "%s", text);
    const cairn_status status = find_signer(store, &there, why);
    return status == CAIRN_OK && there ? cairn_store_run(store, "DROP TABLE signer", why) : status;
}

cairn_status cairn_store_picture(const struct cairn_store *store, uint8_t **bytes_out,
                                 size_t *byte_count_out, struct cairn_sentence *why)
{
    sqlite3 *copy = NULL;
    if (sqlite3_open(":memory:", &copy) != SQLITE_OK) return fail(store, copy, why);
    sqlite3_backup *backup = sqlite3_backup_init(copy, "main", store->db, "main");
    if (backup == NULL) return fail(store, copy, why);
    (void)sqlite3_backup_step(backup, -1); // all of it, in one read
    if (sqlite3_backup_finish(backup) != SQLITE_OK)
        return fail(store, copy, why); // its failure, too
    if (store->signer[0] != '\0' && !put_signer(copy, store->signer)) return fail(store, copy, why);
    sqlite3_int64 size = 0;
    unsigned char *image = sqlite3_serialize(copy, "main", &size, 0);
    uint8_t *bytes = image == NULL ? NULL : malloc((size_t)size);
    if (bytes != NULL) memcpy(bytes, image, (size_t)size);
    sqlite3_free(image);
    sqlite3_close(copy);
    if (bytes == NULL)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a copy of %s", store->path);
    *bytes_out = bytes;
    *byte_count_out = (size_t)size;
    return CAIRN_OK;
}
