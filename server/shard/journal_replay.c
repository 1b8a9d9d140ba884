/* Parts that are made again from their logs, update by update: journal.h has the picture. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/shard/jobs.h"
#include "server/shard/journal.h"
#include "server/shard/kept.h"
#include "server/shard/shard.h"

/* ==== the job ==== */

cairn_status journal_take_terms(struct shard_job *job, struct sentence *why)
{
    const struct journal_part *part = job->journal.from->part;
    return kept_take_amended(job, journal_last(job->journal.from)->settled != 0, part->revision,
                             (const uint8_t *)(part + 1) + part->spec_bytes,
                             (size_t)part->amended_bytes, why);
}

struct step_kept journal_step(const struct shard_job *job)
{
    return job->journal.from->plan.step;
}

static void fail_replay(struct shard_job *job, cairn_status status, const struct sentence *why)
{
    log_error(
        "job %s cannot be made again from its log in %s: %s; it is restored from a snapshot by "
        "its on_shard_loss, or by `cairn snapshot restore`",
        job->spec.name, job->journal.from->folder, why->text);
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

static struct journal_resumed *from_of(struct task *task)
{
    return (struct journal_resumed *)((char *)task - offsetof(struct journal_resumed, task));
}

static void run_read(struct task *task, uint32_t item, uint32_t thread)
{
    struct journal_resumed *from = from_of(task);
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
    struct journal_resumed *from = from_of(task);
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
    struct journal_resumed *from = from_of(task);
    struct shard_job *job = from->job;
    if (end_read(from)) pass_seal(job);
    shard_job_idle(job);
}

static void replay_next(struct shard_job *job)
{
    struct journal_resumed *from = job->journal.from;
    struct sentence why;
    cairn_status status = CAIRN_OK;
    if (from->at < from->plan.count)
        status = begin_read(job, from->plan.steps[from->at].round, sums_read, &why);
    else if (from->plan.step.phase == CAIRN_STEP_REDUCED)
        status = begin_read(job, from->plan.round, prepared_read, &why);
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
    if (job->journal.from != NULL)
        replay_next(job);
    else
        pass_seal(job);
}
