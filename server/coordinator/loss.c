/* A job that is lost or behind its shards: what is reported about the job, and whether it is to be restored
 * without an operator (recovery.c). */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/plan.h"
#include "server/coordinator/cluster.h"

/* ---- what comes next ---- */

bool coord_recovery_wanted(const struct coord_job *job)
{
    return job->spec.policy.on_shard_loss == CAIRN_SHARD_LOSS_RESTORE_LATEST;
}

bool coord_recovery_pending(const struct coord_job *job)
{
    const struct coord_recovery *r = &job->loss.recovery;
    if (job->state != CAIRN_CLUSTER_JOB_LOST || job->loss.behind || !coord_recovery_wanted(job))
        return false;
    if (r->running) return true;
    return !r->gave_up && r->restores < CAIRN_RESTORES_MAX && (job->loss.may_return || r->begun);
}

/* True if the job has waited for all its shards so long that it may be restored over fewer
 * shards. */
static bool takes_fewer(const struct coord_job *job)
{
    const struct coord_options *options = job->cluster->options;
    const uint64_t lost_ms = job->loss.recovery.lost_ms;
    return options->shards_min > 0 && job->state == CAIRN_CLUSTER_JOB_LOST && lost_ms != 0 &&
           coord_recovery_wanted(job) &&
           coord_now_ms(job->cluster) + 1 - lost_ms >= (uint64_t)options->shards_wait_ms;
}

uint32_t coord_recovery_shards(const struct coord_job *job)
{
    const struct coord_options *options = job->cluster->options;
    const uint32_t wanted = (uint32_t)options->shards, least = (uint32_t)options->shards_min;
    uint32_t staying = 0;
    CAIRN_EACH_SHARD (job, i) staying += !job->shards[i].entry->leaving;
    if (staying == 0 || staying > wanted) staying = wanted;
    if (takes_fewer(job)) {
        const uint32_t here = coord_shards_staying(job->cluster, &job->spec, false);
        if (here < staying) staying = here > least ? here : least < staying ? least : staying;
    }
    return plan_job_shards(&job->spec, staying);
}

static void advise_to_wait(const struct coord_job *job, struct sentence *out)
{
    const uint32_t count = coord_recovery_shards(job);
    sentence_set(out, "its newest snapshot is restored by itself (on_shard_loss)");
    if (coord_shards_staying(job->cluster, &job->spec, false) < count) {
        sentence_add(out, ", once %" PRIu32 " shard%s here", count, count == 1 ? " is" : "s are");
        // Tells the operator how the job could continue with fewer shards.
        const struct coord_options *options = job->cluster->options;
        if (options->shards_min == 0)
            sentence_add(out, ", or cluster.shards_min allows fewer");
        else if (!takes_fewer(job))
            sentence_add(out,
                         ", or over those that are here, %" PRId64
                         " at least, when it has waited for cluster.shards_wait",
                         options->shards_min);
    } else if (job->loss.recovery.unseen)
        sentence_add(out, ", once it is mounted at every shard (`cairn cluster status` shows "
                          "where snapshots cannot be saved)");
}

void coord_recovery_advise(const struct coord_job *job, struct sentence *out)
{
    const char *name = job->spec.name;
    if (coord_recovery_pending(job)) {
        advise_to_wait(job, out);
        return;
    }
    out->text[0] = '\0';
    if (coord_recovery_wanted(job) && job->loss.recovery.gave_up && job->loss.recovery.passed) {
        sentence_add(out,
                     "on_shard_loss takes none of its snapshots unasked: fix what is reported of "
                     "them, or restore one by its id as reported there; `cairn job drop %s` gives "
                     "it up, so that it may begin anew",
                     name);
        return;
    }
    if (coord_recovery_wanted(job) && job->loss.recovery.gave_up) {
        sentence_add(out,
                     "on_shard_loss finds no whole snapshot of it: `cairn snapshot restore %s "
                     "latest` tries again, once one is made whole; `cairn job drop %s` gives it "
                     "up, so that it may begin anew",
                     name, name);
        return;
    }
    if (coord_recovery_wanted(job) && job->loss.recovery.restores >= CAIRN_RESTORES_MAX)
        sentence_add(out,
                     "on_shard_loss has restored it %d times without a step applied in "
                     "between, and waits now; ",
                     CAIRN_RESTORES_MAX);
    sentence_add(out,
                 "restore a snapshot with `cairn snapshot restore %s ID` (`cairn snapshot "
                 "list %s` shows which there are)",
                 name, name);
}

/* ---- the loss ---- */

/* Stops a job whose job->loss.why is set. */
static void stop_lost_job(struct coord_job *job)
{
    job->state = CAIRN_CLUSTER_JOB_LOST;
    log_error("job %s is %s", job->spec.name, job->loss.why.text);
    coord_event_note(job->cluster, CAIRN_EVENT_JOB_LOST, job->spec.name, NULL, "%s",
                     job->loss.why.text);
    job->cluster->callbacks->lost(job);
}

void coord_job_behind(struct coord_job *job, const char *kind, const char *name, const char *what)
{
    sentence_set(&job->loss.why,
                 "behind: %s %s has seen a higher %s of it than the coordinator's store, which is "
                 "an older copy; nothing is done with it until `cairn cluster adopt` takes what "
                 "the shards hold, or the coordinator gets its newest store back",
                 kind, name, what);
    job->loss.behind = true;
    job->loss.may_return = false;
    stop_lost_job(job);
}

void coord_job_lose(struct coord_job *job, bool may_return, const char *format, ...)
{
    va_list args;
    struct sentence advice;
    char what[CAIRN_SENTENCE_BYTES / 2];
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    job->loss.behind = false;
    job->loss.may_return = may_return;
    job->state = CAIRN_CLUSTER_JOB_LOST;
    // If the job has applied a step since its generation began, earlier restores and failures no
    // longer count.
    if (coord_job_version(job).step > job->base_step)
        job->loss.recovery = (struct coord_recovery) { .running = job->loss.recovery.running };
    if (job->loss.recovery.lost_ms == 0)
        job->loss.recovery.lost_ms = coord_now_ms(job->cluster) + 1; // never 0
    snprintf(job->loss.recovery.why, sizeof job->loss.recovery.why, "%.*s",
             (int)sizeof job->loss.recovery.why - 1,
             sentence_brief(what, sizeof job->loss.recovery.why - 1).text);
    coord_recovery_advise(job, &advice);
    sentence_set(&job->loss.why, "lost: %s; %s", what, advice.text);
    const bool pending = coord_recovery_pending(job);
    stop_lost_job(job);
    if (pending) coord_job_keep_pauses(job);
    struct sentence why;
    sentence_set(&why, "job %s is %s", job->spec.name, job->loss.why.text);
    while (job->members.list != NULL)
        coord_member_put_out(job->members.list,
                             pending ? CAIRN_ERR_ROLLED_BACK : CAIRN_ERR_JOB_LOST, why.text);
}

void coord_job_part_stopped(struct coord_job *job, const struct coord_shard_entry *entry,
                            const char *why)
{
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_job_shard *s = &job->shards[i];
        // a shard that is `lost` in a slice had nothing that others lack
        if (s->entry != entry || s->missed_ms == 0 || s->lost) continue;
        if (coord_mirrors_may_take(job, i)) return; // its standby goes on
        if (job->state == CAIRN_CLUSTER_JOB_RUNNING)
            coord_job_lose(job, true, "%s has stopped its part: %s", entry->name, why);
        return;
    }
}

void coord_job_seen(struct coord_job *job, const char *kind, const char *name, uint64_t epoch)
{
    const struct marks ours = { .epoch = job->epoch }, seen = { .epoch = epoch };
    const char *what = marks_behind(&ours, &seen);
    if (what == NULL || job->state == CAIRN_CLUSTER_JOB_CREATING || job->loss.behind) return;
    coord_job_behind(job, kind, name, what);
}
