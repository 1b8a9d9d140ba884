#include "server/coordinator/restore/recovery.h"

#include <inttypes.h>

#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/member/seats.h"
#include "server/coordinator/restore/restore.h"

/* ---- a shard that stays away ---- */

/* Its part counts as missed, and is found if it comes back. */
static void lose_away(struct cairn_cluster_job *job, const struct cairn_cluster_seat *seat)
{
    CAIRN_EACH_SHARD (job, i) {
        struct cairn_cluster_job_shard *s = &job->shards[i];
        if (s->away_ms != 0) s->missed_ms = s->away_ms;
    }
    cairn_cluster_job_lose(job, true, "%s is away for longer than shard_loss_wait_s, %" PRIu32 " s",
                           seat->name, job->spec.policy.shard_loss_wait_s);
}

static void watch_away(struct cairn_cluster_job *job)
{
    const uint64_t now_ms = cairn_cluster_now_ms(job->cluster);
    const uint64_t wait_ms = (uint64_t)job->spec.policy.shard_loss_wait_s * 1000;
    const struct cairn_cluster_seat *gone = NULL;
    CAIRN_EACH_SHARD (job, i) {
        struct cairn_cluster_job_shard *s = &job->shards[i];
        if (s->up || s->missed_ms != 0)
            s->away_ms = 0;
        else if (s->away_ms == 0)
            s->away_ms = now_ms + 1; // not 0
        else if (now_ms >= s->away_ms + wait_ms)
            gone = s->seat;
    }
    job->loss.recovery.lost_ms = 0;
    job->loss.recovery.gave_up = false; // there may be other snapshots the next time
    job->loss.recovery.behind.id[0] = '\0';
    if (gone != NULL) lose_away(job, gone);
}

/* ---- the restore ---- */

/* Notes that a snapshot is damaged: the next attempt takes an older one. */
static void note_damage(struct cairn_cluster_recovery *recovery,
                        const struct cairn_cluster_restore *restore, const char *text)
{
    if (recovery->behind.id[0] == '\0')
        cairn_cluster_restore_say_damaged(restore, text, &recovery->damaged);
    recovery->behind = restore->latest.behind;
}

static void on_restored(const struct cairn_cluster_restore *restore, cairn_status status,
                        const char *text)
{
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(restore->cluster,
                                                            restore->latest.of_job);
    if (job == NULL) return;
    struct cairn_cluster_recovery *r = &job->loss.recovery;
    r->running = false;
    const bool touched = restore->job_id != 0; // else the job is what it was
    r->begun = r->begun || touched;
    r->unseen = restore->unseen;
    if (status == CAIRN_OK) {
        const bool is_first = r->behind.id[0] == '\0';
        cairn_cluster_restore_passed_over(restore,
                                          is_first ? &restore->latest.passed : &r->damaged);
        return;
    }
    if ((!touched || r->unseen) && r->restores > 0) r->restores--;
    r->passed = restore->latest.none_found && restore->latest.passed.text[0] != '\0';
    if (restore->latest.none_found)
        r->gave_up = true;
    else if (cairn_cluster_restore_is_damage(status))
        note_damage(r, restore, text);
    else
        r->retry_ms = cairn_cluster_now_ms(job->cluster) +
                      (uint64_t)job->cluster->options->lease_timeout_ms;
    if (job->state != CAIRN_CLUSTER_JOB_LOST) return;
    struct cairn_sentence advice;
    cairn_cluster_recovery_advise(job, &advice);
    cairn_sentence_set(&job->loss.why, "lost: %s; ", r->why);
    if (!restore->latest.none_found || restore->latest.passed.text[0] != '\0')
        cairn_sentence_add(&job->loss.why, "restoring failed: %s; ",
                           cairn_sentence_brief(text, 1000).text);
    cairn_sentence_add(&job->loss.why, "%s", advice.text);
    cairn_log_warn("job %s is %s", job->spec.name, job->loss.why.text);
}

static void begin_restore(struct cairn_cluster_job *job)
{
    struct cairn_cluster_recovery *r = &job->loss.recovery;
    const uint64_t now_ms = cairn_cluster_now_ms(job->cluster);
    if (r->running || job->snapshots.cut != NULL || now_ms < r->retry_ms ||
        cairn_cluster_seats_staying(job->cluster, &job->spec, r->unseen) <
            cairn_cluster_recovery_shards(job))
        return;
    r->running = cairn_cluster_restore_latest(job->cluster, job->spec.name, job->id, &r->behind,
                                              on_restored);
    if (r->running) r->restores++;
}

void cairn_cluster_recovery_tick(struct cairn_cluster_job *job)
{
    const bool waited = job->loss.recovery.waited;
    if (!cairn_cluster_recovery_wanted(job) && !waited) return;
    job->loss.recovery.waited = cairn_cluster_recovery_pending(job);
    if (job->loss.recovery.waited)
        begin_restore(job);
    else if (waited) // its parts came back, or nothing more is tried
        cairn_cluster_openings_advance(job->cluster);
    else if (job->state == CAIRN_CLUSTER_JOB_RUNNING)
        watch_away(job);
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
