/* A snapshot is removed, by the operator's word or as an old periodic one, on another thread. */
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cuts.h"
#include "server/coordinator/restore/restore.h"
#include "server/coordinator/snapshot/find.h"
#include "server/coordinator/snapshot/keep.h"

struct cairn_cluster_removal {
    struct cairn_cluster_work work;
    struct cairn_cluster_removal *next; /* of the cluster's list */
    struct cairn_snapshot_removed removed;
    cairn_status status;
    struct cairn_sentence why;
    enum cairn_removal_cause cause;
    uint64_t number; /* of the job; 0: it is not in the cluster */
    char id[CAIRN_SNAPSHOT_ID_BYTES];
    char *job, *folder; /* owned */
};

static void free_removal(struct cairn_cluster_removal *removal)
{
    struct cairn_cluster_removal **at = &removal->work.cluster->removals;
    while (*at != NULL && *at != removal) at = &(*at)->next;
    if (*at == removal) *at = removal->next;
    free(removal->job);
    free(removal->folder);
    free(removal);
}

/* From here on its files are known as what has to go, should we die before the last of them is gone. Where
 * there is no room for that word, the removal is what makes some. */
static void note_begun(const struct cairn_cluster_removal *removal, const char *root)
{
    struct cairn_sentence why;
    if (removal->number == 0 || removal->cause == CAIRN_REMOVAL_LEFT) return;
    if (cairn_snapshot_begun_set(root, removal->job, removal->id, removal->number, &why) !=
        CAIRN_OK)
        cairn_log_warn(
            "snapshot %s of job %s: if this coordinator ends before it is removed, files "
            "of it stay: %s",
            removal->id, removal->job, why.text);
}

static void run(struct cairn_cluster_work *work)
{
    struct cairn_cluster_removal *removal = (struct cairn_cluster_removal *)work;
    struct cairn_snapshot_removed first = { 0 };
    const char *root = work->cluster->storage.path;
    removal->status = cairn_cluster_storage_seen(work->cluster, &removal->why);
    if (removal->status == CAIRN_OK) {
        note_begun(removal, root);
        removal->status = cairn_cluster_snapshot_release(work->cluster, removal->job, removal->id,
                                                         removal->cause, &first, &removal->why);
    }
    if (removal->status == CAIRN_ERR_REFUSED)
        cairn_snapshot_begun_forget(root, removal->job, removal->id); // it is committed, and stays
    if (removal->status != CAIRN_OK) return;
    removal->status = cairn_snapshot_remove(root, removal->job, removal->id, &removal->removed,
                                            &removal->why);
    removal->removed.files += first.files;
    removal->removed.bytes += first.bytes;
    if (removal->status != CAIRN_OK && removal->status != CAIRN_ERR_NOT_FOUND) return;
    cairn_snapshot_check_forget(root, removal->job, removal->id);
    cairn_snapshot_begun_forget(root, removal->job, removal->id);
}

static void on_removed(struct cairn_cluster_work *work)
{
    struct cairn_cluster_removal *removal = (struct cairn_cluster_removal *)work;
    Cairn__SnapshotRemoved message = CAIRN__SNAPSHOT_REMOVED__INIT;
    message.id = removal->id;
    message.job = removal->job;
    message.files = removal->removed.files;
    message.bytes = removal->removed.bytes;
    if (removal->status == CAIRN_OK)
        cairn_log_info("snapshot %s of job %s is removed", removal->id, removal->job);
    else
        cairn_log_warn("snapshot %s of job %s: %s", removal->id, removal->job, removal->why.text);
    if (work->session != NULL && removal->status == CAIRN_OK)
        cairn_cluster_session_send(work->session, CAIRN_MSG_SNAPSHOT_REMOVED, work->request,
                                   &message.base);
    else if (work->session != NULL)
        cairn_cluster_session_error(work->session, work->request, removal->status,
                                    removal->why.text);
    free_removal(removal);
}

bool cairn_cluster_snapshot_removing(const struct cairn_cluster *cluster, const char *folder)
{
    const struct cairn_cluster_removal *r = cluster->removals;
    while (r != NULL && strcmp(r->folder, folder) != 0) r = r->next;
    return r != NULL;
}

/* Nobody writes it or reads it as a whole. */
static cairn_status judge(const struct cairn_cluster *cluster, const char *job, const char *id,
                          const char *folder, struct cairn_sentence *why)
{
    for (const struct cairn_cluster_job *j = cluster->jobs; j != NULL; j = j->next) {
        if (strcmp(j->spec.name, job) == 0 && cairn_cluster_cut_takes(j, id))
            return cairn_fail(why, CAIRN_ERR_BUSY, "snapshot %s of job %s is being written", id,
                              job);
    }
    for (const struct cairn_cluster_restore *r = cluster->restores; r != NULL; r = r->next) {
        if (cairn_cluster_restore_reads(r, job, folder))
            return cairn_fail(
                why, CAIRN_ERR_BUSY,
                "snapshot %s of job %s is being restored: ask again when that has ended", id, job);
    }
    if (cairn_cluster_snapshot_removing(cluster, folder))
        return cairn_fail(why, CAIRN_ERR_BUSY, "snapshot %s of job %s is being removed", id, job);
    return CAIRN_OK;
}

/* Takes `folder`; nobody is answered if session is NULL. */
static cairn_status begin(struct cairn_cluster *cluster, struct cairn_cluster_session *session,
                          uint32_t request, const char *job, const char *id,
                          enum cairn_removal_cause cause, char *folder, struct cairn_sentence *why)
{
    const struct cairn_cluster_job *known = cairn_cluster_job_find(cluster, job);
    cairn_status status = judge(cluster, job, id, folder, why);
    struct cairn_cluster_removal *removal = status == CAIRN_OK ? calloc(1, sizeof *removal) : NULL;
    char *name = status == CAIRN_OK ? strdup(job) : NULL;
    if (status == CAIRN_OK && (removal == NULL || name == NULL))
        status = cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    if (status != CAIRN_OK) {
        free(removal);
        free(name);
        free(folder);
        return status;
    }
    removal->work.cluster = cluster;
    removal->work.run = run;
    removal->work.done = on_removed;
    removal->cause = cause;
    removal->number = known != NULL ? known->id : 0;
    removal->job = name;
    removal->folder = folder;
    strncpy(removal->id, id, sizeof removal->id - 1); // it was parsed
    removal->next = cluster->removals;
    cluster->removals = removal;
    if (cairn_cluster_work_start(&removal->work, cluster, session, request)) return CAIRN_OK;
    free_removal(removal);
    return cairn_fail(why, CAIRN_ERR_BUSY, "too many requests wait on this connection");
}

void cairn_cluster_snapshot_remove(struct cairn_cluster_session *session, uint32_t request,
                                   const Cairn__SnapshotRemove *message)
{
    struct cairn_sentence why;
    uint64_t generation, step;
    char *folder = NULL;
    cairn_status status;
    if (!cairn_job_name_ok(message->job) ||
        !cairn_snapshot_id_parse(message->id, &generation, &step))
        status = cairn_fail(&why, CAIRN_ERR_INVALID,
                            "\"%.100s\", \"%.100s\": not a job's name and an id of a snapshot; "
                            "`cairn snapshot list` prints them",
                            message->job, message->id);
    else if (asprintf(&folder, "%s/%s/%s", session->cluster->storage.path, message->job,
                      message->id) < 0)
        status = cairn_fail(&why, CAIRN_ERR_NO_MEMORY, "no memory");
    else
        status = begin(session->cluster, session, request, message->job, message->id,
                       message->force ? CAIRN_REMOVAL_FORCED : CAIRN_REMOVAL_ASKED, folder, &why);
    if (status != CAIRN_OK) cairn_cluster_session_error(session, request, status, why.text);
}

void cairn_cluster_snapshot_retire(struct cairn_cluster *cluster, const char *job, const char *id,
                                   enum cairn_removal_cause cause)
{
    struct cairn_sentence why = { "no memory" };
    char *folder;
    if (asprintf(&folder, "%s/%s/%s", cluster->storage.path, job, id) >= 0 &&
        begin(cluster, NULL, 0, job, id, cause, folder, &why) == CAIRN_OK)
        return;
    cairn_log_info("the old periodic snapshot %s of job %s stays until the next one: %s", id, job,
                   why.text);
}
