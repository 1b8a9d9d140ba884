/* Tells an operator about a restore: which job it would replace, and its outcome. */
#include <string.h>

#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cut/cut.h"
#include "server/coordinator/restore/restore.h"

const char *cairn_cluster_restore_job_name(const struct cairn_cluster_restore *restore)
{
    return restore->job_name != NULL ? restore->job_name : restore->manifest.spec.name;
}

const struct cairn_job_spec_data *
cairn_cluster_restore_spec(const struct cairn_cluster_restore *restore)
{
    return restore->spec.name != NULL ? &restore->spec : &restore->manifest.spec;
}

void cairn_cluster_restore_replaces(struct cairn_cluster_restore *restore,
                                    const struct cairn_cluster_job *old)
{
    Cairn__ReplacedJob *replaced = &restore->replaced;
    const struct cairn_version version = cairn_cluster_job_version(old);
    cairn__replaced_job__init(replaced);
    replaced->state = (char *)(uintptr_t)cairn_cluster_job_state_name(old);
    replaced->generation = version.generation;
    replaced->step = version.step;
    replaced->version_unknown = old->version_unknown;
    replaced->may_return = old->loss.may_return;
    for (const struct cairn_cluster_member *m = old->members.list; m != NULL; m = m->next_of_job)
        *(m->role == CAIRN_ROLE_WIRE_WORKER ? &replaced->workers : &replaced->readers) += 1;
    restore->replaces = true;
}

void cairn_cluster_restore_answer(struct cairn_cluster_restore *restore)
{
    struct cairn_snapshot_view view;
    Cairn__SnapshotStatus *message = &view.status;
    const char *slash = strrchr(restore->folder, '/');
    cairn_cluster_manifest_to_view(&restore->manifest, slash == NULL ? restore->folder : slash + 1,
                                   restore->folder, &view);
    message->job = (char *)(uintptr_t)cairn_cluster_restore_job_name(restore);
    if (restore->replaces) message->replaced = &restore->replaced;
    message->passed_over = restore->latest.passed.text;
    if (!restore->plan) message->restored_generation = restore->generation;
    cairn_cluster_waiters_answer(&restore->waiter, CAIRN_MSG_SNAPSHOT_STATUS, &message->base);
}
