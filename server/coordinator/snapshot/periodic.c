#include "server/coordinator/snapshot/periodic.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/snapshot/cut.h"
#include "server/coordinator/snapshot/cuts.h"
#include "server/coordinator/snapshot/find.h"

static void say_failed(struct cairn_cluster_job *job, uint64_t step, const char *why)
{
    const uint64_t every = job->spec.policy.snapshot_every;
    cairn_sentence_set(&job->snapshots.failed, "of step %" PRIu64 ": %.600s", step, why);
    if (job->spec.policy.snapshot_every_s > 0)
        cairn_sentence_add(&job->snapshots.failed, "; the next one is due in %" PRIu32 " s",
                           job->spec.policy.snapshot_every_s);
    if (every > 0)
        cairn_sentence_add(&job->snapshots.failed, "; the next one is due at step %" PRIu64,
                           step - step % every + every);
    cairn_log_warn("job %s: no periodic snapshot %s", job->spec.name, job->snapshots.failed.text);
}

/* One of it would make a good one go. Said once. */
static const char damaged[] =
    "none is taken while the job is damaged: restore it, or write the tensors that are not finite";

static void say_damaged(struct cairn_cluster_job *job)
{
    if (strcmp(job->snapshots.failed.text, damaged) == 0) return;
    cairn_sentence_set(&job->snapshots.failed, "%s", damaged);
    cairn_log_warn("job %s: no periodic snapshot: %s", job->spec.name, damaged);
}

/* By steps, or by time since the last one was due; after a start from the first step that is seen. */
static bool is_due(struct cairn_cluster_job *job, uint64_t step)
{
    const struct cairn_policy *policy = &job->spec.policy;
    const uint64_t now_ms = cairn_cluster_now_ms(job->cluster) + 1; // not 0
    const uint64_t since_ms = job->snapshots.due_ms;
    if (policy->snapshot_every_s == 0) {
        job->snapshots.due_ms = 0;
        return policy->snapshot_every > 0 && step % policy->snapshot_every == 0;
    }
    const bool due = since_ms != 0 &&
                     now_ms - since_ms >= 1000 * (uint64_t)policy->snapshot_every_s;
    if (since_ms == 0 || due) job->snapshots.due_ms = now_ms;
    return due;
}

/* Only a step that is applied while we look on: not one that a restore, or a start, begins with. */
void cairn_cluster_periodic_advance(struct cairn_cluster_job *job)
{
    const struct cairn_version was = job->snapshots.stepped, now = cairn_cluster_job_version(job);
    struct cairn_sentence why;
    if (!job->rounds.heard || job->version_unknown) return;
    if (cairn_version_compare(now, was) == 0) return;
    job->snapshots.stepped = now;
    const bool is_damaged = cairn_cluster_halts_damage(job).nonfinite > 0;
    if (!is_damaged && strcmp(job->snapshots.failed.text, damaged) == 0)
        job->snapshots.failed.text[0] = '\0';
    if (now.generation != was.generation || now.step <= was.step) return;
    if (!is_due(job, now.step)) return;
    if (is_damaged)
        say_damaged(job);
    else if (cairn_cluster_cut_begin_unasked(job, CAIRN_CUT_PERIODIC, &why) != CAIRN_OK)
        say_failed(job, now.step, why.text);
}

/* ---- old ones ---- */

struct pruning {
    struct cairn_cluster_work work;
    uint64_t number, keep;                /* of the job */
    char newest[CAIRN_SNAPSHOT_ID_BYTES]; /* just committed: it stays, whatever the clock says */
    cairn_status status;
    struct cairn_sentence why;
    /* owned */
    char *job;
    struct cairn_cluster_found found;
};

static void free_pruning(struct pruning *pruning)
{
    cairn_cluster_found_release(&pruning->found);
    free(pruning->job);
    free(pruning);
}

static void find(struct cairn_cluster_work *work)
{
    struct pruning *pruning = (struct pruning *)work;
    pruning->status = cairn_cluster_find_snapshots(work->cluster, pruning->job, NULL,
                                                   &pruning->found, &pruning->why);
}

static void on_found(struct cairn_cluster_work *work)
{
    struct pruning *pruning = (struct pruning *)work;
    uint64_t kept = 1; // the newest
    if (pruning->status != CAIRN_OK)
        cairn_log_warn("old periodic snapshots of job %s stay: %s", pruning->job,
                       pruning->why.text);
    for (size_t i = 0; i < pruning->found.count && pruning->status == CAIRN_OK; i++) {
        const struct cairn_found_snapshot *f = &pruning->found.list[i];
        const bool counts = f->manifest.periodic == pruning->number &&
                            strcmp(f->place.id, pruning->newest) != 0;
        if (!counts || kept++ < pruning->keep || work->cluster->closing) continue;
        cairn_cluster_snapshot_retire(work->cluster, pruning->job, f->place.id);
    }
    free_pruning(pruning);
}

static void prune(const struct cairn_cluster_job *job, const char *newest)
{
    struct pruning *pruning = calloc(1, sizeof *pruning);
    if (pruning == NULL) return; // the next one does it
    pruning->number = job->id;
    pruning->keep = job->spec.policy.snapshot_keep;
    pruning->work.run = find;
    pruning->work.done = on_found;
    snprintf(pruning->newest, sizeof pruning->newest, "%s", newest);
    pruning->job = strdup(job->spec.name);
    if (pruning->job == NULL || !cairn_cluster_work_start(&pruning->work, job->cluster, NULL, 0))
        free_pruning(pruning);
}

void cairn_cluster_periodic_ended(const struct cairn_cluster_cut *cut)
{
    struct cairn_cluster_job *job = cut->job;
    if (cut->status == CAIRN_ERR_NONFINITE) {
        say_damaged(job);
        return;
    }
    if (cut->status != CAIRN_OK) {
        const bool is_pinned = cut->stage != CAIRN_CUT_PINNING;
        say_failed(job, is_pinned ? cut->version.step : cairn_cluster_job_version(job).step,
                   cut->why.text);
        return;
    }
    job->snapshots.failed.text[0] = '\0';
    if (job->spec.policy.snapshot_keep > 0) prune(job, cut->id);
}
