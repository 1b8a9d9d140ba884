#include "server/coordinator/store/storage.h"

#include <inttypes.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "proto/store/storage_token.h"
#include "server/base/durable.h"
#include "server/base/log.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/store/store.h"

/* ---- on a thread ---- */

static cairn_status fail_other(const char *path, uint64_t token, struct cairn_sentence *why)
{
    return cairn_fail(
        why, CAIRN_ERR_IO,
        "the folder %s is not the one that snapshots were written to; is the storage mounted? "
        "Mount it, or take this folder from now on: mkdir -p %s && echo %016" PRIx64
        " > %s/" CAIRN_STORAGE_FILE,
        path, path, token, path);
}

static cairn_status judge(const char *path, uint64_t token, struct cairn_sentence *why)
{
    const cairn_status status = cairn_storage_own(path, token, why);
    return status == CAIRN_ERR_NOT_FOUND ? fail_other(path, token, why) : status;
}

cairn_status cairn_cluster_storage_seen(const struct cairn_cluster *cluster,
                                        struct cairn_sentence *why)
{
    const char *path = cluster->storage.path;
    struct cairn_sentence said;
    uint64_t bytes;
    if (cluster->storage.token != 0) {
        const cairn_status status = cairn_storage_seen(path, cluster->storage.token, why);
        return status == CAIRN_ERR_NOT_FOUND ? fail_other(path, cluster->storage.token, why)
                                             : status;
    }
    if (cairn_storage_of(path)->stat(path, "", &bytes, &said) == CAIRN_OK) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_IO, "snapshots.path %s: %s", path, said.text);
}

/* ---- on the loop ---- */

static void on_said(struct cairn_storage_watch *watch)
{
    const struct cairn_cluster *cluster = watch->context;
    if (watch->said.text[0] != '\0')
        cairn_log_warn("no snapshot can be saved: %s", watch->said.text);
    else
        cairn_log_info("snapshots go to %s", cluster->storage.path);
}

static void on_remembered(const struct cairn_cluster_saved *saved)
{
    if (saved->status == CAIRN_OK) return;
    saved->cluster->storage.remembered = false; // the next snapshot tries again
    cairn_log_warn("which folder snapshots go to could not be stored: %s", saved->why);
}

void cairn_cluster_storage_used(struct cairn_cluster *cluster)
{
    struct cairn_sentence why;
    if (cluster->storage.remembered || cluster->storage.token == 0) return;
    cluster->storage.remembered = cairn_cluster_save_storage(cluster, on_remembered, &why) ==
                                  CAIRN_OK;
}

/* ---- at the start ---- */

/* A path leads to another place where nothing is mounted; what a storage makes of its own names does not, and
 * has no token. */
static bool is_path(const char *location)
{
    return cairn_storage_of(location) == &cairn_storage_folder;
}

static cairn_status make_root(const char *location, struct cairn_sentence *why)
{
    return is_path(location) ? cairn_durable_folder(location, CAIRN_SNAPSHOT_FOLDER_MODE, why)
                             : cairn_storage_of(location)->make(location, "", false, why);
}

/* The token of a folder that the store does not remember; 0: without it the shards are not asked, and what
 * is wrong with the folder shows at the first snapshot. */
static cairn_status begin_with(struct cairn_cluster *cluster, struct cairn_sentence *why)
{
    const char *path = cluster->storage.path;
    struct cairn_sentence no_mark;
    if (!is_path(path)) return CAIRN_OK;
    if (cairn_storage_mark(path, &cluster->storage.token, &no_mark) != CAIRN_OK) {
        cairn_log_warn("whether the shards see the snapshots' storage is not known: %s",
                       no_mark.text);
        return CAIRN_OK;
    }
    if (!cairn_storage_is_used(path)) return CAIRN_OK;
    cluster->storage.remembered = true;
    return cairn_store_set_storage(cluster->store, cluster->storage.token, why);
}

cairn_status cairn_cluster_storage_open(struct cairn_cluster *cluster, struct cairn_sentence *why)
{
    const char *path = cluster->options->snapshots_path;
    cluster->storage.watch =
        (struct cairn_storage_watch) { .judge = judge, .on_said = on_said, .context = cluster };
    cluster->storage.token = cairn_store_storage(cluster->store);
    cluster->storage.remembered = cluster->storage.token != 0;
    cairn_status status = cluster->storage.remembered ? CAIRN_OK : make_root(path, why);
    if (status == CAIRN_OK)
        status = cairn_storage_of(path)->resolve(path, &cluster->storage.path, why);
    if (status == CAIRN_OK && !cluster->storage.remembered) status = begin_with(cluster, why);
    if (status == CAIRN_OK)
        status = cairn_storage_watch_open(&cluster->storage.watch, cluster->loop, why);
    if (status == CAIRN_OK)
        cairn_storage_watch_told(&cluster->storage.watch, cluster->storage.path,
                                 cluster->storage.token);
    return status;
}
