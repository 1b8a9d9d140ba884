/* Parts that are made again from their logs, update by update: journal.h has the picture. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/shard/jobs.h"
#include "server/shard/journal.h"
#include "server/shard/kept.h"
#include "server/shard/shard.h"

/* How far the updates are is said so often. */
#define SAY_EACH_MS ((uint64_t)10000)

/* ==== the job ==== */

cairn_status journal_take_terms(struct shard_job *job, struct sentence *why)
{
    const struct journal_part *part = job->journal.from->part;
    return kept_take_amended(job, journal_last(job->journal.from)->settled != 0, part->revision,
                             (const uint8_t *)(part + 1) + part->spec_bytes,
                             (size_t)part->amended_bytes, why);
}

struct step_kept journal_step_kept(const struct shard_job *job)
{
    return job->journal.from->plan.step;
}

static void fail_replay(struct shard_job *job, cairn_status status, const struct sentence *why)
{
    const struct journal_resumed *from = job->journal.from;
    if (job->staged)
        log_error("job %s cannot go back to version %" PRIu64 ".%" PRIu64
                  " by its log in %s: %s; it goes on as it was",
                  job->spec.name, from->back.to.generation, from->back.to.step, from->folder,
                  why->text);
    else
        log_error("job %s cannot be made again from its log in %s: %s; it is restored from a "
                  "snapshot by its on_shard_loss, or by `cairn snapshot restore`",
                  job->spec.name, from->folder, why->text);
    job->shard->up->loaded(job, status, why, false);
}

/* ---- the sums of a round, on the journal's threads ---- */

static cairn_status read_sums(struct journal_resumed *from, uint32_t c, struct sentence *why)
{
    const struct shard_job *job = from->job;
    const struct chunk_table *table = job->pass.table;
    const struct journal_entry *entry = &from->entries.list[from->reads];
    const struct journal_chunk *chunk = &journal_entry_chunks(entry)[c];
    const struct chunk_place place = chunk_table_place(table, c);
    if (chunk->tensor != place.tensor || chunk->first_leaf != place.first_leaf ||
        chunk->bytes != place.elem_count * sizeof(float))
        return fail_with(why, CAIRN_ERR_MALFORMED, "its rounds are of another layout");
    void *to = planes_at(&job->planes, CAIRN_PLANE_SUM, table->extent_of[table->trained[c]],
                         place.local_elem);
    return journal_read_chunk(from->fd, entry, chunk, to, why);
}

static void run_read(struct task *task, uint32_t item, uint32_t thread)
{
    struct journal_resumed *from = journal_resumed_of(task);
    struct sentence why;
    (void)thread;
    if (WITH_LOCK(&from->lock, from->status) != CAIRN_OK) return;
    const cairn_status status = read_sums(from, item, &why);
    if (status == CAIRN_OK) return;
    HOLD_LOCK(&from->lock);
    from->status = status;
    from->why = why;
}

/* Reads the sums of an entry; then `done`. */
static cairn_status begin_read(struct shard_job *job, size_t entry, void (*done)(struct task *task),
                               struct sentence *why)
{
    struct journal_resumed *from = job->journal.from;
    const struct journal_head *head = &from->entries.list[entry].head;
    if (head->chunk_count != job->pass.table->trained_count ||
        head->frozen_bytes != job->spec.group_count + job->spec.tensor_count)
        return fail_with(why, CAIRN_ERR_MALFORMED, "its rounds are of another layout");
    from->fd = journal_segment_open(from->folder, head->segment, why);
    if (from->fd < 0) return CAIRN_ERR_IO;
    from->job = job;
    from->reads = entry;
    from->status = CAIRN_OK;
    from->task =
        (struct task) { .run = run_read, .done = done, .item_count = (uint32_t)head->chunk_count };
    shard_job_busy(job);
    pool_submit(job->shard->journals.pool, &from->task);
    return CAIRN_OK;
}

/* The sums are there: the round's tensors that were frozen, too. False: they are not, or nobody wants them.
 * */
static bool end_read(struct journal_resumed *from)
{
    struct shard_job *job = from->job;
    const struct journal_entry *entry = &from->entries.list[from->reads];
    const bool *frozen = journal_entry_frozen(entry);
    close(from->fd);
    from->fd = -1;
    if (job->state != CAIRN_JOB_LOADING) return false;
    if (from->status != CAIRN_OK) {
        const struct sentence why = from->why;
        fail_replay(job, from->status, &why);
        return false;
    }
    memcpy(job->frozen.groups, frozen, job->spec.group_count);
    memcpy(job->frozen.tensors, frozen + job->spec.group_count, job->spec.tensor_count);
    return true;
}

/* ---- one update after the other ---- */

static void sums_read(struct task *task)
{
    struct journal_resumed *from = journal_resumed_of(task);
    struct shard_job *job = from->job;
    const struct journal_entry *decided = &from->entries.list[from->plan.steps[from->at].decided];
    const struct decision decision = {
        .kind = CAIRN_DECISION_APPLY,
        .round = decided->head.outcome.last_round,
        .version_after = decided->head.outcome.version_after,
        .payload = journal_entry_payload(decided),
        .payload_bytes = (size_t)decided->head.outcome.payload_bytes,
    };
    struct sentence why;
    if (end_read(from)) {
        const cairn_status status = pass_replay(job, &decision, &why);
        if (status != CAIRN_OK) fail_replay(job, status, &why);
    }
    shard_job_idle(job);
}

static void prepared_read(struct task *task)
{
    struct journal_resumed *from = journal_resumed_of(task);
    struct shard_job *job = from->job;
    if (end_read(from)) pass_seal(job);
    shard_job_idle(job);
}

/* The version to which the job goes back is there. The log is that of the part that serves. */
static void seal_back(struct shard_job *job)
{
    const struct journal_resumed *from = job->journal.from;
    log_info("job %s: version %" PRIu64 ".%" PRIu64 " is there again", job->spec.name,
             from->back.to.generation, from->back.to.step);
    journal_resumed_free(job->journal.from);
    job->journal.from = NULL;
    pass_seal(job);
}

static void say_progress(struct shard_job *job)
{
    struct journal_resumed *from = job->journal.from;
    const uint64_t now_ms = uv_now(job->shard->loop);
    if (from->back.said_ms == 0) from->back.said_ms = now_ms;
    if (now_ms - from->back.said_ms < SAY_EACH_MS) return;
    from->back.said_ms = now_ms;
    log_info("job %s: %zu of %zu updates are done again", job->spec.name, from->at,
             from->plan.count);
}

static void replay_next(struct shard_job *job)
{
    struct journal_resumed *from = job->journal.from;
    struct sentence why;
    cairn_status status = CAIRN_OK;
    say_progress(job);
    if (from->at < from->plan.count)
        status = begin_read(job, from->plan.steps[from->at].round, sums_read, &why);
    else if (from->plan.step.phase == CAIRN_STEP_REDUCED)
        status = begin_read(job, from->plan.round, prepared_read, &why);
    else if (job->staged)
        seal_back(job);
    else
        pass_seal(job);
    if (status != CAIRN_OK) fail_replay(job, status, &why);
}

void journal_replayed(struct shard_job *job)
{
    if (job->state != CAIRN_JOB_LOADING) return;
    job->journal.from->at++;
    replay_next(job);
}

void journal_replay(struct shard_job *job)
{
    if (job->journal.from == NULL) {
        pass_seal(job);
        return;
    }
    struct journal_resumed *from = job->journal.from;
    from->back.begun = true;
    if (job->staged)
        log_info("job %s: goes back by its log in %s, from the snapshot of step %" PRIu64
                 " by %zu updates to step %" PRIu64,
                 job->spec.name, from->folder, from->base.version.step, from->plan.count,
                 from->back.to.step);
    replay_next(job);
}

/* ==== a job that goes back ==== */

static cairn_status fail_gone(const struct shard_job *job, struct sentence *why)
{
    const struct cairn_version base = job->journal.base, now = step_version(job->collector.step);
    if (journal_is_based(job))
        sentence_add(why,
                     "; its log stands on the snapshot of %" PRIu64 ":%" PRIu64
                     ", and goes to %" PRIu64 ":%" PRIu64,
                     base.generation, base.step, now.generation, now.step);
    else if (job->journal.wanted)
        sentence_add(why, "; it has no log that stands on a snapshot");
    return CAIRN_ERR_VERSION_GONE;
}

cairn_status journal_back_open(struct shard_job *serves, struct cairn_version to,
                               struct journal_resumed **from_out, struct sentence *why)
{
    const bool comes_by = serves->state == CAIRN_JOB_SERVING && journal_is_based(serves) &&
                          version_compare(serves->journal.base, to) <= 0 &&
                          version_compare(to, step_version(serves->collector.step)) < 0;
    if (!comes_by) return fail_gone(serves, why);
    if (serves->journal.read_by != NULL)
        return fail_with(why, CAIRN_ERR_BUSY, "the log of job %s is being read: ask again",
                         serves->spec.name);
    struct journal_resumed *from = journal_resumed_new();
    if (from != NULL) from->folder = strdup(serves->journal.folder);
    if (from == NULL || from->folder == NULL) {
        journal_resumed_free(from);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read a log");
    }
    from->back.to = to;
    from->back.log = serves->journal.log;
    from->back.serves = serves;
    serves->journal.read_by = from;
    shard_job_busy(serves);
    *from_out = from;
    return CAIRN_OK;
}

cairn_status journal_back_read(struct journal_resumed *from, struct sentence *why)
{
    CAIRN_TRY(journal_base_read(from->folder, from->back.log, &from->base, why));
    CAIRN_TRY(journal_read(from->folder, from->back.log, &from->entries, why));
    return journal_plan_make(&from->entries, from->base.version, &from->back.to, &from->plan, why);
}
