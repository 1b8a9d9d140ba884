#include "server/coordinator/store/storage.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/store/snapshot_io.h"
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
    struct stat folder;
    if (cluster->storage.token != 0) {
        const cairn_status status = cairn_storage_seen(path, cluster->storage.token, why);
        return status == CAIRN_ERR_NOT_FOUND ? fail_other(path, cluster->storage.token, why)
                                             : status;
    }
    if (stat(path, &folder) == 0) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_IO, "snapshots.path %s: %s; is the storage mounted?", path,
                      strerror(errno));
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

/* Of a folder that may not be there. NULL: no memory, or no working folder. */
static char *absolute(const char *path)
{
    char *resolved = realpath(path, NULL), *here, *joined = NULL;
    if (resolved != NULL) return resolved;
    if (path[0] == '/') return strdup(path);
    if ((here = getcwd(NULL, 0)) == NULL) return NULL;
    if (asprintf(&joined, "%s/%s", here, path) < 0) joined = NULL;
    free(here);
    return joined;
}

/* The token of a folder that the store does not remember; 0: without it the shards are not asked, and what
 * is wrong with the folder shows at the first snapshot. */
static cairn_status begin_with(struct cairn_cluster *cluster, struct cairn_sentence *why)
{
    const char *path = cluster->storage.path;
    struct cairn_sentence no_mark;
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
    cairn_status status = cluster->storage.remembered
                              ? CAIRN_OK
                              : cairn_durable_folder(path, CAIRN_SNAPSHOT_FOLDER_MODE, why);
    if (status != CAIRN_OK) return status;
    cluster->storage.path = absolute(path);
    if (cluster->storage.path == NULL)
        return cairn_fail(why, CAIRN_ERR_IO, "snapshots.path %s cannot be reached", path);
    if (!cluster->storage.remembered) status = begin_with(cluster, why);
    if (status == CAIRN_OK)
        status = cairn_storage_watch_open(&cluster->storage.watch, cluster->loop, why);
    if (status == CAIRN_OK)
        cairn_storage_watch_told(&cluster->storage.watch, cluster->storage.path,
                                 cluster->storage.token);
    return status;
}
