#include "server/coordinator/recovery.h"

#include <inttypes.h>
#include <stdio.h>

#include "server/base/log.h"
#include "server/coordinator/requests.h"
#include "server/coordinator/standing.h"

static bool wanted(const struct cairn_cluster_job *job)
{
    return job->spec.policy.on_shard_loss == CAIRN_SHARD_LOSS_RESTORE_LATEST;
}

bool cairn_cluster_recovery_pending(const struct cairn_cluster_job *job)
{
    const struct cairn_cluster_recovery *r = &job->recovery;
    if (job->state != CAIRN_CLUSTER_JOB_LOST || job->behind || !wanted(job)) return false;
    if (r->running) return true;
    return !r->gave_up && r->restores < CAIRN_RESTORES_MAX && (job->may_return || r->restores > 0);
}

void cairn_cluster_recovery_lost(struct cairn_cluster_job *job, const char *why)
{
    if (cairn_cluster_job_version(job).step > job->base_step)
        job->recovery = (struct cairn_cluster_recovery) { .running = job->recovery.running };
    snprintf(job->recovery.why, sizeof job->recovery.why, "%s", why);
}

static uint32_t shards_wanted(const struct cairn_cluster_job *job)
{
    return job->spec.stage == 0 ? 1 : (uint32_t)job->cluster->options->shards;
}

void cairn_cluster_recovery_advise(const struct cairn_cluster_job *job, struct cairn_sentence *out)
{
    const char *name = job->spec.name;
    if (cairn_cluster_recovery_pending(job)) {
        cairn_sentence_set(
            out,
            "its newest snapshot is restored by itself (on_shard_loss), once %" PRIu32
            " shard%s here",
            shards_wanted(job), shards_wanted(job) == 1 ? " is" : "s are");
        return;
    }
    out->text[0] = '\0';
    if (wanted(job) && job->recovery.gave_up) {
        cairn_sentence_add(out,
                           "on_shard_loss finds no whole snapshot of it: `cairn job drop %s` gives "
                           "it up, so that it may begin anew",
                           name);
        return;
    }
    if (wanted(job) && job->recovery.restores >= CAIRN_RESTORES_MAX)
        cairn_sentence_add(out,
                           "on_shard_loss has restored it %d times without a step applied in "
                           "between, and waits now; ",
                           CAIRN_RESTORES_MAX);
    cairn_sentence_add(out,
                       "restore a snapshot with `cairn snapshot restore %s ID` (`cairn snapshot "
                       "list %s` shows which there are)",
                       name, name);
}

/* ---- a shard that stays away ---- */

/* Its part counts as missed, and is found if it comes back. */
static void lose_away(struct cairn_cluster_job *job, const struct cairn_cluster_seat *seat)
{
    for (uint32_t i = 0; i < job->layout->shard_count; i++) {
        struct cairn_cluster_job_shard *s = &job->shards[i];
        if (s->away_ms != 0) s->missed_ms = s->away_ms;
    }
    cairn_cluster_job_lose(job, true, "%s is away for longer than shard_loss_wait_s, %" PRIu32 " s",
                           seat->name, job->spec.policy.shard_loss_wait_s);
}

static void watch(struct cairn_cluster_job *job)
{
    const uint64_t now_ms = cairn_cluster_now_ms(job->cluster);
    const uint64_t wait_ms = (uint64_t)job->spec.policy.shard_loss_wait_s * 1000;
    const struct cairn_cluster_seat *gone = NULL;
    for (uint32_t i = 0; i < job->layout->shard_count; i++) {
        struct cairn_cluster_job_shard *s = &job->shards[i];
        if (s->up || s->missed_ms != 0)
            s->away_ms = 0;
        else if (s->away_ms == 0)
            s->away_ms = now_ms + 1; // not 0
        else if (now_ms >= s->away_ms + wait_ms)
            gone = s->seat;
    }
    job->recovery.gave_up = false; // there may be other snapshots the next time
    job->recovery.skip = 0;
    if (gone != NULL) lose_away(job, gone);
}

/* ---- the restore ---- */

static void on_restored(const struct cairn_cluster_restore *restore, cairn_status status,
                        const char *text)
{
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(restore->cluster, restore->of_job);
    if (job == NULL) return;
    struct cairn_cluster_recovery *r = &job->recovery;
    r->running = false;
    if (status == CAIRN_OK) return;
    const bool touched = restore->job_id != 0; // else the job is what it was
    if (!touched && r->restores > 0) r->restores--;
    if (restore->none_found)
        r->gave_up = true;
    else if (cairn_cluster_restore_is_damage(status))
        r->skip++; // the one before
    else
        r->retry_ms = cairn_cluster_now_ms(job->cluster) +
                      (uint64_t)job->cluster->options->lease_timeout_ms;
    if (job->state != CAIRN_CLUSTER_JOB_LOST) return;
    struct cairn_sentence advice;
    cairn_cluster_recovery_advise(job, &advice);
    cairn_sentence_set(&job->lost, "lost: %s; ", r->why);
    if (!restore->none_found) cairn_sentence_add(&job->lost, "restoring failed: %.300s; ", text);
    cairn_sentence_add(&job->lost, "%s", advice.text);
    cairn_log_warn("job %s is %s", job->spec.name, job->lost.text);
}

static void try(struct cairn_cluster_job *job)
{
    struct cairn_cluster_recovery *r = &job->recovery;
    const uint64_t now_ms = cairn_cluster_now_ms(job->cluster);
    if (r->running || job->cut != NULL || now_ms < r->retry_ms ||
        cairn_cluster_seats_up(job->cluster) < shards_wanted(job))
        return;
    r->running = cairn_cluster_restore_latest(job->cluster, job->spec.name, job->id, r->skip,
                                              on_restored);
    if (r->running) r->restores++;
}

void cairn_cluster_recovery_tick(struct cairn_cluster_job *job)
{
    const bool waited = job->recovery.waited;
    if (!wanted(job) && !waited) return;
    job->recovery.waited = cairn_cluster_recovery_pending(job);
    if (job->recovery.waited)
        try(job);
    else if (waited) // its parts came back, or nothing more is tried
        cairn_cluster_openings_advance(job->cluster);
    else if (job->state == CAIRN_CLUSTER_JOB_RUNNING)
        watch(job);
}

cairn_status cairn_cluster_recovery_keep(struct cairn_job_spec_data *spec,
                                         const struct cairn_job_spec_data *now)
{
    if (cairn_policy_same(&spec->policy, &now->policy) && spec->workers_min == now->workers_min &&
        spec->workers_max == now->workers_max)
        return CAIRN_OK;
    const cairn_status status = cairn_spec_note_former(spec); // workers may come with it as it was
    if (status != CAIRN_OK) return status;
    spec->policy = now->policy;
    spec->workers_min = now->workers_min;
    spec->workers_max = now->workers_max;
    return CAIRN_OK;
}
