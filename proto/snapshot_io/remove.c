/* Removing a snapshot: the manifest first, durably, so that what a crash leaves is none; then its files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot/manifest_trust.h"
#include "proto/snapshot_io/snapshot_io.h"
#include "proto/store/names.h"

/* What is being removed: all paths are beneath the root. */
struct removal {
    const struct cairn_storage *storage;
    const char *root;
    char place[CAIRN_NAME_MAX + CAIRN_SNAPSHOT_ID_BYTES + 2]; /* "<job>/<id>" */
    struct cairn_snapshot_removed *out;
    struct cairn_sentence *why;
};

/* One that is not there is fine. */
static cairn_status remove_file(const struct removal *r, const char *part, const char *name)
{
    char *path;
    uint64_t bytes = 0;
    if (asprintf(&path, "%s/%s%s%s", r->place, part, part[0] != '\0' ? "/" : "", name) < 0)
        return cairn_fail(r->why, CAIRN_ERR_NO_MEMORY, "no memory");
    const cairn_status status = r->storage->remove(r->root, path, false, &bytes, r->why);
    free(path);
    if (status == CAIRN_OK) {
        r->out->files++;
        r->out->bytes += bytes;
    }
    return status == CAIRN_ERR_NOT_FOUND ? CAIRN_OK : status;
}

/* All files of a part, whole or begun, and the part. A folder in it is nobody's that we know: it stays, and
 * with it the part. */
static cairn_status remove_part(const struct removal *r, const char *part)
{
    char path[sizeof r->place + 16];
    uint64_t bytes;
    struct cairn_names names;
    snprintf(path, sizeof path, "%s/%s", r->place, part);
    cairn_status status = cairn_names_list(r->root, path, &names, r->why);
    if (status == CAIRN_ERR_NOT_FOUND) return CAIRN_OK;
    for (size_t i = 0; i < names.count && status == CAIRN_OK; i++)
        if (names.list[i][0] != '.') status = remove_file(r, part, names.list[i]);
    cairn_names_release(&names);
    return status == CAIRN_OK ? r->storage->remove(r->root, path, true, &bytes, r->why) : status;
}

static cairn_status remove_manifest(const struct removal *r)
{
    const cairn_status status = remove_file(r, "", CAIRN_MANIFEST_NAME);
    return status == CAIRN_OK ? r->storage->settle(r->root, r->place, r->why) : status;
}

static cairn_status remove_all(const struct removal *r)
{
    uint64_t bytes;
    cairn_status status = remove_manifest(
        r); // also one that a crash left without it: it is durable then
    static const char *const rest[] = { CAIRN_MANIFEST_NAME ".tmp", CAIRN_MANIFEST_SIGNATURE_NAME,
                                        CAIRN_MANIFEST_SIGNATURE_NAME ".tmp" };
    for (size_t i = 0; i < sizeof rest / sizeof *rest && status == CAIRN_OK; i++)
        status = remove_file(r, "", rest[i]);
    for (int i = 0; i < CAIRN_SNAPSHOT_FOLDERS && status == CAIRN_OK; i++)
        status = remove_part(r, cairn_snapshot_folder_name((enum cairn_snapshot_folder)i));
    return status == CAIRN_OK ? r->storage->remove(r->root, r->place, true, &bytes, r->why)
                              : status;
}

cairn_status cairn_snapshot_committed(const char *root, const char *job, const char *id,
                                      struct cairn_sentence *why)
{
    char manifest[CAIRN_NAME_MAX + CAIRN_SNAPSHOT_ID_BYTES + sizeof CAIRN_MANIFEST_NAME + 2];
    uint64_t bytes;
    snprintf(manifest, sizeof manifest, "%s/%s/" CAIRN_MANIFEST_NAME, job, id);
    return cairn_storage_of(root)->stat(root, manifest, &bytes, why);
}

cairn_status cairn_snapshot_uncommit(const char *root, const char *job, const char *id,
                                     struct cairn_snapshot_removed *removed_out,
                                     struct cairn_sentence *why)
{
    struct removal removal = { cairn_storage_of(root), root, "", removed_out, why };
    *removed_out = (struct cairn_snapshot_removed) { 0 };
    snprintf(removal.place, sizeof removal.place, "%s/%s", job, id);
    return cairn_snapshot_committed(root, job, id, why) == CAIRN_ERR_NOT_FOUND
               ? CAIRN_OK
               : remove_manifest(&removal);
}

cairn_status cairn_snapshot_remove(const char *root, const char *job, const char *id,
                                   struct cairn_snapshot_removed *removed_out,
                                   struct cairn_sentence *why)
{
    struct removal removal = { cairn_storage_of(root), root, "", removed_out, why };
    *removed_out = (struct cairn_snapshot_removed) { 0 };
    snprintf(removal.place, sizeof removal.place, "%s/%s", job, id);
    struct cairn_names names;
    cairn_status status = cairn_names_list(root, removal.place, &names, why);
    cairn_names_release(&names);
    if (status == CAIRN_ERR_NOT_FOUND)
        return cairn_fail(why, CAIRN_ERR_NOT_FOUND, "there is no snapshot %s of job %s", id, job);
    if (status == CAIRN_OK) status = remove_all(&removal);
    if (status == CAIRN_OK) status = removal.storage->settle(root, job, why);
    return status;
}
