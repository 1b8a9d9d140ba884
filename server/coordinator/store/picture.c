/* A picture of the store at one moment, while it is in use: SQLite's backup into memory, and that as the
 * bytes of a file. The file itself is for another thread to write: its disk need not be the store's. */
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
