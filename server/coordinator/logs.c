/* The logs of jobs (server/shard/journal.h), as far as they concern the coordinator: which snapshot each
 * log stands on, and when one is taken for its sake. job.h has the picture. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/cluster.h"

/* A snapshot for a log is not taken again at once. After each that failed the wait is twice as long. */
#define AGAIN_MS     1000
#define DOUBLED_MOST 9
#define FAILED_MS    10000 /* after one that could not begin */

bool coord_logs_wanted(const struct coord_job *job)
{
    return safety_logs(job->spec.policy.durability);
}

static struct coord_log *log_of(const struct coord_job *job, uint32_t shard)
{
    return &job->shards[shard].log;
}

static bool is_held_by(const struct coord_job *job, const struct coord_shard_entry *entry,
                       uint32_t *shard_out)
{
    CAIRN_EACH_SHARD (job, i) {
        if (job->shards[i].entry != entry) continue;
        *shard_out = i;
        return true;
    }
    return false;
}

static void take_one(const struct coord *cluster, const struct coord_shard_entry *entry,
                     const Cairn__LogTold *told)
{
    uint32_t shard;
    const struct coord_job *job = coord_job_by_id(cluster, told->job);
    if (job == NULL || !is_held_by(job, entry, &shard)) return;
    struct coord_log *log = log_of(job, shard);
    log->is_told = true;
    log->wants = told->wants;
    log->failed = told->failed;
    log->base = (struct cairn_version) { told->base_generation, told->base_step };
    log->first = (struct cairn_version) { told->first_generation, told->first_step };
    log->again_done = told->again_done;
    log->again_total = told->again_total;
    snprintf(log->why, sizeof log->why, "%s", told->why);
    snprintf(log->waits, sizeof log->waits, "%s", told->waits);
    text_mend(log->why, "");
    text_mend(log->waits, "");
}

void coord_logs_take(const struct coord *cluster, const struct coord_shard_entry *entry,
                     const Cairn__Heartbeat *message)
{
    for (size_t i = 0; i < message->n_logs && i < CAIRN_MEMORY_TOLD_MAX; i++)
        take_one(cluster, entry, message->logs[i]);
}

bool coord_logs_awaits(const struct coord_job *job, const struct coord_shard_entry *entry)
{
    for (size_t i = 0; entry->session != NULL && i < entry->told.awaited_count; i++)
        if (entry->told.awaited[i] == job->id) return true;
    return false;
}

void coord_logs_shard_up(struct coord_job *job, uint32_t shard)
{
    struct coord_log *log = log_of(job, shard);
    // a process that ended before it told of its log changed nothing of what is known
    *log = (struct coord_log) { .had = log->is_told ? log->base : log->had };
}

/* The newest step that a snapshot has, as far as is known. */
static uint64_t saved_step(const struct coord_job *job, const struct coord_log *log)
{
    const bool is_newer = job->snapshots.newest_folder != NULL &&
                          version_compare(log->had, job->snapshots.newest) < 0;
    return is_newer ? job->snapshots.newest.step : log->had.step;
}

void coord_logs_lost(const struct coord_job *job, uint32_t shard, struct sentence *why)
{
    const struct coord_shard_entry *entry = job->shards[shard].entry;
    const struct coord_log *log = log_of(job, shard);
    if (!coord_logs_wanted(job)) return;
    if (entry->told.log_was_empty)
        sentence_add(why, "; there is no log in its log.path, as if its disk were not mounted");
    else if (log->had.generation != 0)
        sentence_add(why, "; it cannot use the log of it, and its own log says why");
    if (log->had.generation == 0) return;
    const uint64_t saved = saved_step(job, log), step = coord_job_version(job).step;
    sentence_add(why,
                 ": until then it had one, and without it %" PRIu64
                 " steps are lost that trainers were told of, those after step %" PRIu64
                 " (bring the log back, and start the shard again, before a snapshot is restored)",
                 step > saved ? step - saved : 0, saved);
}

/* True if the log may stand on the newest snapshot, and stands on none or an older one. */
static bool may_take(const struct coord_job *job, const struct coord_log *log)
{
    const struct cairn_version newest = job->snapshots.newest;
    return job->snapshots.newest_folder != NULL && log->first.generation != 0 &&
           version_compare(log->first, newest) <= 0 && version_compare(log->base, newest) < 0;
}

/* Tells the shards of the newest snapshot whose logs may stand on it: again and again, until they do. */
static void tell_newest(const struct coord_job *job, uint64_t now_ms)
{
    Cairn__LogBase message = CAIRN__LOG_BASE__INIT;
    message.job = job->id;
    message.generation = job->snapshots.newest.generation;
    message.step = job->snapshots.newest.step;
    message.path = job->snapshots.newest_folder;
    message.content_root =
        (ProtobufCBinaryData) { sizeof job->snapshots.newest_root.byte,
                                (uint8_t *)(uintptr_t)job->snapshots.newest_root.byte };
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_job_shard *s = &job->shards[i];
        struct coord_log *log = log_of(job, i);
        if (!s->up || s->entry->session == NULL || !may_take(job, log)) continue;
        if (version_compare(log->sent, job->snapshots.newest) == 0 &&
            now_ms < log->sent_ms + AGAIN_MS)
            continue;
        log->sent = job->snapshots.newest;
        log->sent_ms = now_ms;
        coord_session_send(s->entry->session, CAIRN_MSG_LOG_BASE, 0, &message.base);
    }
}

/* True if a log wants a snapshot, and the newest one is no answer, nor would be another of its version. */
static bool is_wanted(const struct coord_job *job)
{
    if (job->snapshots.newest_folder != NULL &&
        version_compare(job->snapshots.newest, coord_job_version(job)) == 0)
        return false;
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_log *log = log_of(job, i);
        if (job->shards[i].up && log->is_told && log->wants && !may_take(job, log)) return true;
    }
    return false;
}

/* The job asks for no log any more, so its shards end theirs, and tell of none. */
static void forget_ended(const struct coord_job *job)
{
    CAIRN_EACH_SHARD (job, i) {
        struct coord_log *log = log_of(job, i);
        const bool is_known = log->is_told || log->had.generation != 0;
        if (is_known && !coord_logs_awaits(job, job->shards[i].entry))
            *log = (struct coord_log) { .is_told = false };
    }
}

void coord_logs_tick(struct coord_job *job)
{
    const uint64_t now_ms = coord_now_ms(job->cluster);
    struct sentence why;
    if (!coord_logs_wanted(job)) forget_ended(job);
    if (!coord_logs_wanted(job) || job->state != CAIRN_CLUSTER_JOB_RUNNING || !job->initialized)
        return;
    if (job->amends.extension.goes_back) return; // it may need what stands before the newest one
    tell_newest(job, now_ms);
    if (job->snapshots.running != NULL || now_ms < job->snapshots.log_next_ms || !is_wanted(job))
        return;
    const cairn_status status = coord_snapshot_begin_unasked(job, CAIRN_SNAPSHOT_LOG, &why);
    job->snapshots.log_next_ms = now_ms + (status == CAIRN_OK ? AGAIN_MS : FAILED_MS);
    if (status != CAIRN_OK)
        log_warn("job %s: no snapshot can be taken for its log to stand on: %s", job->spec.name,
                 why.text);
    else
        log_info("job %s: a snapshot is taken for its log to stand on", job->spec.name);
}

bool coord_logs_give_way(struct coord_job *job)
{
    struct coord_snapshot *snapshot = job->snapshots.running;
    if (snapshot == NULL || snapshot->cause != CAIRN_SNAPSHOT_LOG || snapshot->is_pinned)
        return false;
    snapshot->cause = CAIRN_SNAPSHOT_PERIODIC;
    return true;
}

void coord_logs_saved(struct coord_snapshot *snapshot)
{
    struct coord_job *job = snapshot->job;
    struct coord_snapshots *of = &job->snapshots;
    const bool is_for_log = snapshot->cause == CAIRN_SNAPSHOT_LOG;
    if (snapshot->status != CAIRN_OK) {
        if (!is_for_log) return;
        if (of->log_failures < DOUBLED_MOST) of->log_failures++;
        of->log_next_ms = coord_now_ms(job->cluster) + ((uint64_t)AGAIN_MS << of->log_failures);
        return;
    }
    if (!snapshot->has_files) return;
    if (is_for_log) of->for_logs[of->for_log_count++ % CAIRN_FOR_LOGS_MAX] = snapshot->version;
    of->log_failures = 0;
    free(of->newest_folder); // logs may stand on this one
    of->newest_folder = snapshot->folder;
    of->newest = snapshot->version;
    memcpy(of->newest_root.byte, snapshot->manifest.content_root, sizeof of->newest_root.byte);
    snapshot->folder = NULL;
}

/* True if a shard that is away may have steps in its log. It counts what the log had then; after a restart of
 * the coordinator that is not known. A log that stood on no snapshot brings nothing back. */
static bool may_have_steps(const struct coord_job *job)
{
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_log *log = &job->shards[i].log;
        if (!job->shards[i].up && (!log->is_told || log->base.generation != 0)) return true;
    }
    return false;
}

uint64_t coord_logs_loss_wait_ms(const struct coord_job *job)
{
    const uint64_t wait_s = job->spec.policy.shard_loss_wait_s;
    const bool is_longer = coord_logs_wanted(job) && wait_s < CAIRN_LOG_LOSS_WAIT_S &&
                           may_have_steps(job);
    return 1000 * (is_longer ? CAIRN_LOG_LOSS_WAIT_S : wait_s);
}

bool coord_logs_waiting(const struct coord_job *job, struct sentence *out)
{
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_log *log = log_of(job, i);
        if (log->waits[0] == '\0' || !job->shards[i].up) continue;
        sentence_set(out, "shard %s: %s", job->shards[i].entry->name, log->waits);
        return true;
    }
    return false;
}
