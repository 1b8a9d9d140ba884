/* A copy of the store while it is in use. The store's thread takes a picture of it into memory; one
 * of libuv's writes that to the file: a disk that hangs there holds no save up. One at a time. */
#include <stdlib.h>
#include <string.h>

#include "server/base/durable.h"
#include "server/base/log.h"
#include "server/base/pool.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/store/backup.h"
#include "server/coordinator/store/store.h"

struct picture {
    struct cairn_task task;
    struct cairn_cluster_backup *backup;
};

struct cairn_cluster_backup {
    struct cairn_cluster_work work; /* the file */
    struct picture picture;
    struct cairn_cluster *cluster;
    struct cairn_cluster_waiter *waiter;
    cairn_status status;
    struct cairn_sentence why;
    size_t byte_count;
    /* owned */
    uint8_t *bytes; /* [byte_count] */
    char *path;
};

static void free_backup(struct cairn_cluster_backup *backup)
{
    backup->cluster->backup = NULL;
    cairn_cluster_waiters_release(&backup->waiter);
    free(backup->bytes);
    free(backup->path);
    free(backup);
}

static void end(struct cairn_cluster_backup *backup)
{
    Cairn__ClusterBackedUp message = CAIRN__CLUSTER_BACKED_UP__INIT;
    if (backup->status == CAIRN_OK) {
        message.path = backup->path;
        message.bytes = backup->byte_count;
        cairn_log_info("the store was copied to %s: %zu bytes", backup->path, backup->byte_count);
        cairn_cluster_waiters_answer(&backup->waiter, CAIRN_MSG_CLUSTER_BACKED_UP, &message.base);
    } else {
        cairn_log_warn("copying the store to %s failed: %s", backup->path, backup->why.text);
        cairn_cluster_waiters_fail(&backup->waiter, backup->status, backup->why.text);
    }
    free_backup(backup);
}

static void write_file(struct cairn_cluster_work *work)
{
    struct cairn_cluster_backup *backup = (struct cairn_cluster_backup *)work;
    backup->status = cairn_durable_create(backup->path, backup->bytes, backup->byte_count,
                                          &backup->why);
}

static void on_written(struct cairn_cluster_work *work)
{
    if (!work->cluster->closing) end((struct cairn_cluster_backup *)work); // else: with the cluster
}

static void take_picture(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    struct cairn_cluster_backup *backup = ((struct picture *)task)->backup;
    (void)item;
    (void)thread;
    backup->status = cairn_store_picture(backup->cluster->store, &backup->bytes,
                                         &backup->byte_count, &backup->why);
}

static void on_picture(struct cairn_task *task)
{
    struct cairn_cluster_backup *backup = ((struct picture *)task)->backup;
    if (backup->cluster->closing) return; // freed with the cluster
    backup->work.run = write_file;
    backup->work.done = on_written;
    if (backup->status == CAIRN_OK) {
        if (cairn_cluster_work_start(&backup->work, backup->cluster, NULL, 0)) return;
        backup->status = cairn_fail(&backup->why, CAIRN_ERR_NO_MEMORY, "no thread for it");
    }
    end(backup);
}

/* ---- the request ---- */

static cairn_status judge(const struct cairn_cluster *cluster, const char *path,
                          struct cairn_sentence *why)
{
    if (path[0] != '/')
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "\"%.100s\": give the file from the root of the coordinator's host",
                          path);
    if (cluster->backup != NULL)
        return cairn_fail(why, CAIRN_ERR_BUSY, "the store is being copied to %.300s: ask again",
                          cluster->backup->path);
    return CAIRN_OK;
}

static cairn_status begin(struct cairn_cluster_session *session, uint32_t request, const char *path,
                          struct cairn_sentence *why)
{
    struct cairn_cluster *cluster = session->cluster;
    struct cairn_cluster_backup *backup = calloc(1, sizeof *backup);
    if (backup == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    backup->cluster = cluster;
    cluster->backup = backup;
    backup->path = strdup(path);
    if (backup->path == NULL || !cairn_cluster_waiters_add(&backup->waiter, session, request)) {
        free_backup(backup);
        return cairn_fail(why, CAIRN_ERR_BUSY, "too many requests wait on this connection");
    }
    backup->picture.backup = backup;
    backup->picture.task =
        (struct cairn_task) { .run = take_picture, .done = on_picture, .item_count = 1 };
    cairn_pool_submit(cluster->saves.pool, &backup->picture.task);
    return CAIRN_OK;
}

void cairn_cluster_backup_begin(struct cairn_cluster_session *session, uint32_t request,
                                const Cairn__ClusterBackup *message)
{
    struct cairn_sentence why;
    cairn_status status = judge(session->cluster, message->path, &why);
    if (status == CAIRN_OK) status = begin(session, request, message->path, &why);
    if (status != CAIRN_OK) cairn_cluster_session_error(session, request, status, why.text);
}

void cairn_cluster_backup_forget(struct cairn_cluster *cluster,
                                 const struct cairn_cluster_session *session)
{
    if (cluster->backup != NULL) cairn_cluster_waiters_forget(&cluster->backup->waiter, session);
}

void cairn_cluster_backup_close(struct cairn_cluster *cluster)
{
    if (cluster->backup != NULL) free_backup(cluster->backup);
}
