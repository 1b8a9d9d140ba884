/* An admin asks for a restore: of a snapshot by its id, or by its folder. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/base/job.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/restore/restore.h"

static cairn_status judge(struct cairn_cluster_restore *restore,
                          const Cairn__SnapshotRestore *message, struct cairn_sentence *why)
{
    uint64_t generation, step;
    char resolved[PATH_MAX];
    const bool by_id = message->id[0] != '\0';
    if (by_id == (message->path[0] != '\0')) {
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "give a snapshot's id or its folder, one of them");
    }
    if (message->job[0] != '\0' && !cairn_job_name_ok(message->job)) {
        return cairn_fail(why, CAIRN_ERR_INVALID, "\"%s\" is not a name of a job", message->job);
    }
    if (by_id &&
        (message->job[0] == '\0' || !cairn_snapshot_id_parse(message->id, &generation, &step))) {
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "a snapshot's id goes with its job's name and looks like "
                          "step-000000012000-g1, not \"%s\"",
                          message->id);
    }
    const int n = by_id ? snprintf(resolved, sizeof resolved, "%s/%s/%s",
                                   restore->cluster->storage.path, message->job, message->id)
                        : snprintf(resolved, sizeof resolved, "%s", message->path);
    if (n < 0 || (size_t)n >= sizeof resolved) {
        return cairn_fail(why, CAIRN_ERR_INVALID, "the path is too long");
    }
    const bool renamed = message->job[0] != '\0';
    const struct cairn_cluster_job *job = cairn_cluster_job_find(restore->cluster, message->job);
    restore->fallback = message->fallback || (job != NULL && job->spec.policy.snapshot_fallback);
    if (message->fallback && !by_id)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "--fallback is for a snapshot that is given by its id: of a folder "
                          "nobody knows which are older");
    if (message->n_settings > 0) {
        uint8_t *bytes = malloc(cairn__snapshot_restore__get_packed_size(message));
        if (bytes != NULL)
            restore->settings = cairn__snapshot_restore__unpack(
                NULL, cairn__snapshot_restore__pack(message, bytes), bytes);
        free(bytes);
        if (restore->settings == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    }
    restore->is_stored = by_id;
    restore->folder = strdup(resolved);
    restore->asked = strdup(resolved);
    if (renamed) restore->job_name = strdup(message->job);
    return restore->folder != NULL && restore->asked != NULL &&
                   (!renamed || restore->job_name != NULL)
               ? CAIRN_OK
               : cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
}

void cairn_cluster_restore_begin(struct cairn_cluster_session *session, uint32_t request,
                                 const Cairn__SnapshotRestore *message)
{
    struct cairn_sentence why;
    struct cairn_cluster_restore *restore = cairn_cluster_restore_new(session->cluster);
    if (restore == NULL) {
        cairn_cluster_session_error(session, request, CAIRN_ERR_NO_MEMORY, "no memory");
        return;
    }
    restore->plan = message->plan;
    restore->waiver = (struct cairn_trust_waiver) { message->allow_unsigned,
                                                    message->allow_untrusted };
    cairn_status status = judge(restore, message, &why);
    if (status == CAIRN_OK &&
        (!cairn_cluster_waiters_add(&restore->waiter, session, request) ||
         !cairn_cluster_work_start(&restore->work, session->cluster, NULL, 0))) {
        status = cairn_fail(&why, CAIRN_ERR_BUSY, "too many requests wait on this connection");
    }
    if (status == CAIRN_OK) return;
    cairn_cluster_session_error(session, request, status, why.text);
    cairn_cluster_restore_free(restore);
}
