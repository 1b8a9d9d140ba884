#include "server/coordinator/cut/periodic.h"

#include <inttypes.h>
#include <string.h>

#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cut.h"
#include "server/coordinator/cut/cuts.h"

static void say_failed(struct cairn_cluster_job *job, uint64_t step, const char *why)
{
    const uint64_t every = job->spec.policy.snapshot_every;
    cairn_sentence_set(&job->snapshots.failed, "of step %" PRIu64 ": %s", step,
                       cairn_sentence_brief(why, 600).text);
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

/* A snapshot is due by steps, or by the time since the last one was due. After a start that time
 * counts from the first step that is seen. */
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

/* The version that is to be saved, and not only its step, is there: of a job with buffers_every the write
 * that follows a due step makes it, or, if none has come, the next step. */
static bool is_to_be_saved(struct cairn_cluster_job *job, struct cairn_version was,
                           struct cairn_version now)
{
    const bool was_due = job->snapshots.awaits_write;
    const bool is_written = now.generation == was.generation + 1 && now.step == was.step;
    const bool is_stepped = now.generation == was.generation && now.step > was.step;
    if (!is_stepped && !is_written) return false;
    job->snapshots.awaits_write = false;
    if (is_written) return was_due;
    const uint64_t every = job->spec.policy.snapshot_every;
    const bool due = is_due(job, now.step);
    if (!due && !was_due && every > 0)
        cairn_cluster_cut_prepare_ahead(job, every - now.step % every);
    if (due && !was_due && job->spec.buffers_every > 0) job->snapshots.awaits_write = true;
    return was_due || (due && job->spec.buffers_every == 0);
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
    if (!is_to_be_saved(job, was, now)) return;
    if (is_damaged)
        say_damaged(job);
    else if (cairn_cluster_cut_begin_unasked(job, CAIRN_CUT_PERIODIC, &why) != CAIRN_OK)
        say_failed(job, now.step, why.text);
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
}
