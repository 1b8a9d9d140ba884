/* The parts of jobs while shards come and go: a shard that is back is judged by what it says that it holds,
 * and what is missing for too long makes its job LOST. */
#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cuts.h"
#include "server/coordinator/job/jobs.h"
#include "server/coordinator/job/parts.h"
#include "server/coordinator/round/groups.h"

/* ---- shards come and go ---- */

/* The parts that a shard says that it holds; borrowed. */
struct held {
    Cairn__HeldJob *const *list;
    size_t count;
};

/* Its part of the job in the layout that our store knows, in force or prepared; NULL: it has none. */
static const Cairn__HeldJob *part_of(const struct cairn_cluster_job *job, const struct held *held)
{
    const struct cairn_seat_part wanted = { .job = job->id,
                                            .generation = job->generation,
                                            .layout_hash = cairn_layout_number(job->layout) };
    for (size_t i = 0; i < held->count; i++) {
        const Cairn__HeldJob *part = held->list[i];
        const struct cairn_seat_part seen[] = {
            { part->job, part->generation, part->layout_hash },
            { part->job, part->generation, part->next_layout_hash }, // a fence brings it
        };
        if (cairn_seat_has(&wanted, seen, part->next_layout_version != 0 ? 2 : 1)) return part;
    }
    return NULL;
}

/* In what our store is behind this shard; NULL: it is not. A generation that no coordinator has called
 * durable counts above those that we have begun ourselves only. */
static const char *behind_in(const struct cairn_cluster_job *job, const struct held *held)
{
    const struct cairn_marks ours = cairn_cluster_job_marks(job);
    for (size_t i = 0; i < held->count; i++) {
        struct cairn_marks seen = cairn_cluster_held_marks(held->list[i]);
        if (held->list[i]->job != job->id || held->list[i]->staged) continue;
        const bool begun = held->list[i]->unsettled && seen.generation <= job->reserved.generation;
        if (begun) seen.generation = seen.revision = 0;
        const char *what = cairn_marks_behind(&ours, &seen);
        if (what != NULL) return what;
    }
    return NULL;
}

/* An amendment was made or given up while the shard, or the coordinator, was away. A generation
 * older than the one in the store is dropped now; a newer one only when all shards have shown
 * that the store is not an older copy. */
static void settle_generations(const struct cairn_cluster_job *job, uint32_t shard,
                               const struct held *held)
{
    struct cairn_cluster_job_shard *s = &job->shards[shard];
    bool older = false;
    s->newer = false;
    for (size_t i = 0; i < held->count; i++) {
        if (held->list[i]->job != job->id) continue;
        older |= held->list[i]->generation < job->generation;
        s->newer |= held->list[i]->generation > job->generation;
    }
    if (older && !s->newer) cairn_cluster_job_send_switch(job, s->seat, job->generation);
}

/* An uninitialized job has nothing to lose: it is made anew when a worker opens it again. */
static void start_over(struct cairn_cluster_job *job, const struct cairn_cluster_seat *seat)
{
    struct cairn_sentence why;
    cairn_sentence_set(&why,
                       "shard %s restarted before job %s was initialized; open the job and put the "
                       "initial state again",
                       seat->name, job->spec.name);
    cairn_log_fields(CAIRN_LOG_WARN,
                     CAIRN_FIELDS({ "job", job->spec.name, 0 }, { "shard", seat->name, 0 }), "%s",
                     why.text);
    while (job->members.list != NULL)
        cairn_cluster_member_expel(job->members.list, CAIRN_ERR_REOPEN, why.text);
    cairn_cluster_job_drop(job);
}

/* Every shard has said what it holds, and nothing is newer than our store: what destroys may be done. */
static bool all_here(const struct cairn_cluster_job *job)
{
    CAIRN_EACH_SHARD (job, i)
        if (!cairn_cluster_seat_obeys(job->shards[i].seat)) return false;
    return true;
}

/* ---- parts that are missed ----
 *
 * A shard that comes without its part of a job is another process than the one that had the
 * part. The old process may have ended, and its memory with it; or it is stopped, or cut off,
 * and comes back. So the job waits for the part. After a while its members are told that the
 * part is lost, until it is back or the job is restored. */

/* A process whose connection was closed is gone or connects again at once; of one that fell silent
 * nothing is known for a lease. */
static uint64_t patience_ms(const struct cairn_cluster *cluster,
                            const struct cairn_cluster_seat *seat)
{
    const struct cairn_cluster_options *options = cluster->options;
    return (uint64_t)(seat->ended ? options->heartbeat_ms : options->lease_timeout_ms);
}

static void miss_part(struct cairn_cluster_job *job, uint32_t shard)
{
    struct cairn_cluster_job_shard *s = &job->shards[shard];
    if (s->missed_ms != 0) return;
    s->missed_ms = cairn_cluster_now_ms(job->cluster) + 1; // not 0
    s->patience_ms = patience_ms(job->cluster, s->seat);
    cairn_log_warn("job %s waits: shard %s restarted without its part of it", job->spec.name,
                   s->seat->name);
    cairn_cluster_cut_part_missed(job, shard);
}

/* A shard that had nothing before the slice, and stays away or came without its part while the layout was on
 * its way to the store: the slice is taken back. True: one is. */
static bool give_up_fresh(struct cairn_cluster_job *job)
{
    CAIRN_EACH_SHARD (job, i) {
        const struct cairn_cluster_seat *seat = job->shards[i].seat;
        if (job->shards[i].up || job->shards[i].lost) continue;
        const uint64_t away_ms = cairn_cluster_now_ms(job->cluster) - seat->gone_ms;
        const bool is_gone = seat->session == NULL && away_ms >= patience_ms(job->cluster, seat);
        if (!is_gone && job->shards[i].missed_ms == 0) continue;
        if (cairn_cluster_slice_shard_lost(job, i)) return true;
    }
    return false;
}

void cairn_cluster_job_parts_tick(struct cairn_cluster_job *job)
{
    const uint64_t now_ms = cairn_cluster_now_ms(job->cluster);
    if (job->state == CAIRN_CLUSTER_JOB_RUNNING && give_up_fresh(job)) return;
    if (job->state == CAIRN_CLUSTER_JOB_RUNNING) cairn_cluster_slice_tick(job);
    if (job->state != CAIRN_CLUSTER_JOB_RUNNING || !all_here(job)) return;
    CAIRN_EACH_SHARD (job, i) {
        const struct cairn_cluster_job_shard *s = &job->shards[i];
        if (s->missed_ms == 0 || now_ms < s->missed_ms + s->patience_ms) continue;
        if (cairn_cluster_slice_left_out(job, i)) continue; // all that it had others have, too
        cairn_cluster_job_lose(
            job, true,
            "%s restarted without its part, and the process that had it is not back (if it still "
            "runs, stopped or cut off, the job goes on when it is)",
            s->seat->name);
        return;
    }
}

/* Are all there again? */
static void find_part(struct cairn_cluster_job *job, uint32_t shard)
{
    if (job->shards[shard].missed_ms == 0) return;
    job->shards[shard].missed_ms = 0;
    cairn_log_info("job %s: shard %s is back with its part", job->spec.name,
                   job->shards[shard].seat->name);
    CAIRN_EACH_SHARD (job, i) {
        if (job->shards[i].missed_ms != 0 && !cairn_cluster_slice_left_out(job, i)) return;
    }
    if (job->state == CAIRN_CLUSTER_JOB_LOST) job->state = CAIRN_CLUSTER_JOB_RUNNING;
    job->loss.may_return = false;
}

/* All are here. True: the job is gone. */
static bool settle_all(struct cairn_cluster_job *job)
{
    CAIRN_EACH_SHARD (job, i) {
        struct cairn_cluster_job_shard *s = &job->shards[i];
        if (s->missed_ms != 0 && !job->initialized) {
            start_over(job, s->seat);
            return true;
        }
        if (s->newer) cairn_cluster_job_send_switch(job, s->seat, job->generation);
        s->newer = false;
    }
    return false;
}

static void shard_up(struct cairn_cluster_job *job, uint32_t shard, const struct held *held)
{
    struct cairn_cluster_job_shard *s = &job->shards[shard];
    if (job->state == CAIRN_CLUSTER_JOB_CREATING || job->loss.behind) return;
    const char *behind = behind_in(job, held);
    if (behind != NULL) cairn_cluster_job_behind(job, "shard", s->seat->name, behind);
    if (cairn_cluster_job_dead(job)) return;
    const Cairn__HeldJob *part = part_of(job, held);
    if (part == NULL && cairn_cluster_slice_shard_lost(job, shard)) return;
    if (cairn_cluster_slice_left_out(job, shard)) return; // the way back drops what it has
    if (part == NULL) {
        miss_part(job, shard);
    } else {
        find_part(job, shard);
        settle_generations(job, shard, held);
    }
    if (all_here(job) && settle_all(job)) return;
    if (part == NULL) return;
    cairn_cluster_park_part(job, part->parked);
    s->revision = part->revision;
    s->up = true;
    cairn_cluster_slice_prepared(job, shard, part->next_layout_version);
    cairn_cluster_terms_tell(job, shard, !part->unsettled);
    cairn_cluster_members_tell_shard(job, shard);
    cairn_cluster_tiles_advance(job); // behind the members, on the same connection
    const struct cairn_round_event up = { .kind = CAIRN_ROUND_SHARD_UP, .shard = shard };
    cairn_cluster_job_event(job, &up);
    if (cairn_cluster_job_shard_moved(s)) cairn_cluster_members_shards_changed(job);
    cairn_cluster_job_try_seal(job);
}

void cairn_cluster_job_seen(struct cairn_cluster_job *job, const char *kind, const char *name,
                            uint64_t epoch)
{
    const struct cairn_marks ours = { .epoch = job->epoch }, seen = { .epoch = epoch };
    const char *what = cairn_marks_behind(&ours, &seen);
    if (what == NULL || job->state == CAIRN_CLUSTER_JOB_CREATING || job->loss.behind) return;
    cairn_cluster_job_behind(job, kind, name, what);
}

/* The job is not on it as far as our store knows. If it has seen a later epoch all the same, what is
 * missing on the shards that our store names has moved, and is not lost. */
static void judge_stranger(struct cairn_cluster_job *job, const struct cairn_cluster_seat *seat,
                           const struct held *held)
{
    for (size_t i = 0; i < held->count; i++) {
        const Cairn__HeldJob *part = held->list[i];
        // If a generation was never finished, nobody knows whether its epoch was ever durable.
        const bool is_begun = part->unsettled && part->generation > job->generation;
        if (part->job == job->id && !part->staged && !is_begun)
            cairn_cluster_job_seen(job, "shard", seat->name, part->epoch);
    }
}

void cairn_cluster_jobs_seat_up(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat,
                                Cairn__HeldJob *const *held, size_t held_count)
{
    const struct held list = { held, held_count };
    struct cairn_cluster_job *job = cluster->jobs;
    while (job != NULL) {
        struct cairn_cluster_job *next = job->next;
        if (!cairn_cluster_job_has_seat(job, seat)) judge_stranger(job, seat, &list);
        CAIRN_EACH_SHARD (job, i) {
            if (job->shards[i].seat != seat) continue;
            shard_up(job, i, &list);
            break; // a shard stands in a layout once
        }
        job = next;
    }
}

static void shard_down(struct cairn_cluster_job *job, uint32_t shard)
{
    struct cairn_cluster_job_shard *s = &job->shards[shard];
    s->newer = false;
    s->revision = 0;
    cairn_cluster_members_forget_shard(job, shard);
    cairn_cluster_groups_shard_gone(job, shard);
    cairn_cluster_extend_shard_gone(job);
    cairn_cluster_tiles_advance(job);
    if (!s->up) return;
    s->up = false;
    cairn_sentence_set(&job->rounds.epoch_reason, "shard %s was away", s->seat->name);
    cairn_cluster_cut_shard_gone(job, shard);
    if (job->core == NULL) return;
    const struct cairn_round_event down = { .kind = CAIRN_ROUND_SHARD_DOWN, .shard = shard };
    cairn_cluster_job_event(job, &down);
    cairn_cluster_slice_shard_down(job, shard);
}

void cairn_cluster_jobs_seat_down(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat)
{
    for (struct cairn_cluster_job *job = cluster->jobs; job != NULL; job = job->next) {
        CAIRN_EACH_SHARD (job, i) {
            if (job->shards[i].seat != seat) continue;
            shard_down(job, i);
            break; // a shard stands in a layout once, and may be out of it now
        }
    }
}
