/* Removing a snapshot: the manifest first, durably, so that what a crash leaves is none; then its files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot/manifest_trust.h"
#include "proto/snapshot_io/snapshot_io.h"
#include "proto/store/names.h"

/* A removal that is under way: all paths are beneath the root. */
struct removal {
    const struct cairn_storage *storage;
    const char *root;
    char place[CAIRN_NAME_MAX + CAIRN_SNAPSHOT_ID_BYTES + 2]; /* "<job>/<id>" */
    struct cairn_snapshot_removed *out;
    struct cairn_sentence *why;
};

/* ---- what is in it ---- */

/* Looks the folder, or a part of it, through for files that do not belong to a snapshot. */
struct looking {
    const char *part;                      /* "": the folder itself */
    char stray[CAIRN_SNAPSHOT_PATH_BYTES]; /* empty: none */
};

static bool is_own_file(const char *name)
{
    static const char *const own[] = { CAIRN_MANIFEST_NAME, CAIRN_MANIFEST_NAME ".tmp",
                                       CAIRN_MANIFEST_SIGNATURE_NAME,
                                       CAIRN_MANIFEST_SIGNATURE_NAME ".tmp" };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(name, own[i]) == 0) return true;
    return false;
}

static bool is_part(const char *name)
{
    for (int i = 0; i < CAIRN_SNAPSHOT_FOLDERS; i++)
        if (strcmp(name, cairn_snapshot_folder_name((enum cairn_snapshot_folder)i)) == 0)
            return true;
    return false;
}

/* A file of a part, whole or begun. */
static bool is_data(const char *part, const char *name)
{
    char path[2 * CAIRN_SNAPSHOT_PATH_BYTES];
    const int length = snprintf(path, sizeof path, "%s/%s", part, name);
    if (length < 4 || (size_t)length >= sizeof path) return false;
    if (strcmp(path + length - 4, ".tmp") == 0) path[length - 4] = '\0';
    return cairn_snapshot_path_ok(path);
}

static void look_at(void *context, const char *name, bool is_folder)
{
    struct looking *l = context;
    const bool is_top = l->part[0] == '\0';
    const bool is_own = is_top && is_part(name) ? is_folder
                        : is_top                ? is_own_file(name) && !is_folder
                                                : is_data(l->part, name) && !is_folder;
    // A file that somebody has open on NFS: it goes when that is closed.
    if (is_own || strncmp(name, ".nfs", 4) == 0 || l->stray[0] != '\0') return;
    snprintf(l->stray, sizeof l->stray, "%s%s%.40s", l->part, is_top ? "" : "/", name);
}

/* Nothing is removed where all of it cannot be: half a snapshot is none, and nobody's either. */
static cairn_status judge_content(const struct removal *r)
{
    struct looking l = { .part = "", .stray = "" };
    cairn_status status = r->storage->list(r->root, r->place, look_at, &l, r->why);
    for (int i = 0; i < CAIRN_SNAPSHOT_FOLDERS && status == CAIRN_OK && l.stray[0] == '\0'; i++) {
        char path[sizeof r->place + 16];
        l.part = cairn_snapshot_folder_name((enum cairn_snapshot_folder)i);
        snprintf(path, sizeof path, "%s/%s", r->place, l.part);
        status = r->storage->list(r->root, path, look_at, &l, r->why);
        if (status == CAIRN_ERR_NOT_FOUND) status = CAIRN_OK; // it has no such part
    }
    if (status != CAIRN_OK || l.stray[0] == '\0') return status;
    return cairn_fail(r->why, CAIRN_ERR_REFUSED,
                      "%s is not removed: in it is %s, a link or a file that is not of a snapshot; "
                      "move that away, then remove it again",
                      r->place, l.stray);
}

/* ---- the removal ---- */

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

cairn_status cairn_snapshot_removable(const char *root, const char *job, const char *id,
                                      struct cairn_sentence *why)
{
    struct removal removal = { cairn_storage_of(root), root, "", NULL, why };
    snprintf(removal.place, sizeof removal.place, "%s/%s", job, id);
    return judge_content(&removal);
}

cairn_status cairn_snapshot_remove(const char *root, const char *job, const char *id,
                                   struct cairn_snapshot_removed *removed_out,
                                   struct cairn_sentence *why)
{
    struct removal removal = { cairn_storage_of(root), root, "", removed_out, why };
    *removed_out = (struct cairn_snapshot_removed) { 0 };
    snprintf(removal.place, sizeof removal.place, "%s/%s", job, id);
    cairn_status status = judge_content(&removal);
    if (status == CAIRN_ERR_NOT_FOUND)
        return cairn_fail(why, CAIRN_ERR_NOT_FOUND, "there is no snapshot %s of job %s", id, job);
    if (status == CAIRN_OK) status = remove_all(&removal);
    if (status == CAIRN_OK) status = removal.storage->settle(root, job, why);
    return status;
}
