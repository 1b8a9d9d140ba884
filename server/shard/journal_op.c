/* The operations on the files of a part's log. */
#include "server/shard/journal_op.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "proto/base/durable.h"
#include "proto/store/storage.h"
#include "server/shard/kept.h"
#include "server/shard/shard.h"

#define SEGMENT_MOST  ((uint64_t)64 << 20)
#define SEGMENT_LEAST ((uint64_t)1 << 20)

/* ==== on the journal's threads ==== */

static void fail_op(struct journal_op *op, cairn_status status, const struct sentence *why)
{
    HOLD_LOCK(&op->lock);
    if (op->status != CAIRN_OK) return;
    op->status = status;
    op->why = *why;
}

/* Writes both fronts of an entry at the end of the segment, and syncs. */
static cairn_status write_front(struct journal_op *op, struct journal_segment *segment,
                                struct sentence *why)
{
    const size_t bytes = (size_t)(2 * journal_front_bytes(&op->head));
    uint8_t *fronts = io_block_new(bytes);
    if (fronts == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a log");
    journal_front_make(&op->head, segment, op->chunks, op->payload, op->frozen, fronts);
    cairn_status status = journal_write(segment, segment->end, fronts, bytes, why);
    if (status == CAIRN_OK) status = journal_sync(segment, why);
    io_block_free(fronts, bytes);
    return status;
}

static cairn_status make_segment(struct journal_op *op, struct sentence *why)
{
    const char *folder = op->job->journal.folder;
    CAIRN_TRY(journal_segment_make(folder, op->number, op->segment_bytes, &op->made, why));
    cairn_status status = write_front(op, &op->made, why);
    if (status == CAIRN_OK) status = journal_newest_write(folder, op->head.log, op->number, why);
    if (status != CAIRN_OK) {
        journal_segment_drop(folder, &op->made); // it may be made again, by the same number
        return status;
    }
    op->made.end = journal_entry_bytes(&op->head);
    return CAIRN_OK;
}

/* Decides how much the journal may take. CAIRN_ERR_NO_SPACE. */
static cairn_status judge_budget(struct journal_op *op, struct sentence *why)
{
    const struct shard_journals *all = &op->job->shard->journals;
    const uint64_t least = 2 * op->segment_bytes;
    struct statvfs disk;
    if (op->budget_bytes < least)
        return fail_with(why, CAIRN_ERR_NO_SPACE,
                         "log.budget = %" PRIu64 " has no room for two rounds, %" PRIu64 " bytes",
                         op->budget_bytes, least);
    if (statvfs(all->folder, &disk) != 0) return CAIRN_OK; // the writes find out
    const uint64_t all_free = (uint64_t)disk.f_bavail * disk.f_frsize;
    const uint64_t free_bytes = all_free > op->promised_bytes ? all_free - op->promised_bytes : 0;
    if (all->budget_bytes == 0 && op->budget_bytes > free_bytes / 2)
        op->budget_bytes = free_bytes / 2;
    if (op->budget_bytes >= least && op->budget_bytes <= free_bytes) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_NO_SPACE,
                     "%" PRIu64 " bytes are free in log.path, beside the %" PRIu64
                     " that other logs may take, and the log wants %" PRIu64,
                     free_bytes, op->promised_bytes,
                     all->budget_bytes != 0 ? op->budget_bytes : 2 * least);
}

static cairn_status make_files(struct journal_op *op, struct sentence *why)
{
    const char *folder = op->job->journal.folder;
    CAIRN_TRY(judge_budget(op, why));
    CAIRN_TRY(journal_end_others(folder, why));
    CAIRN_TRY(durable_folder(folder, 0700, why));
    CAIRN_TRY(make_segment(op, why));
    return journal_part_write(folder, op->part, why);
}

/* Writes what the block has, filled up to whole blocks. */
static cairn_status flush(struct journal_segment *segment, uint8_t *block, size_t *filled,
                          uint64_t *at, struct sentence *why)
{
    const size_t bytes = ALIGN_UP(*filled, (size_t)JOURNAL_BLOCK);
    memset(block + *filled, 0, bytes - *filled);
    CAIRN_TRY(journal_write(segment, *at, block, bytes, why));
    *at += bytes;
    *filled = 0;
    return CAIRN_OK;
}

/* Copies bytes to the block, which is written whenever it is full. */
static cairn_status put(struct journal_segment *segment, uint8_t *block, size_t *filled,
                        uint64_t *at, const uint8_t *from, uint64_t bytes, struct sentence *why)
{
    while (bytes > 0) {
        const size_t room = (size_t)JOURNAL_RUN_BYTES - *filled,
                     piece = bytes < room ? (size_t)bytes : room;
        memcpy(block + *filled, from, piece);
        *filled += piece;
        from += piece;
        bytes -= piece;
        if (*filled == JOURNAL_RUN_BYTES) CAIRN_TRY(flush(segment, block, filled, at, why));
    }
    return CAIRN_OK;
}

static cairn_status write_run(struct journal_op *op, const struct journal_run *run, uint8_t *block,
                              struct sentence *why)
{
    const struct shard_job *job = op->job;
    const struct chunk_table *table = job->pass.table;
    struct journal_segment *segment = &op->job->journal.segment;
    uint64_t at = segment->end + 2 * journal_front_bytes(&op->head) + run->at;
    size_t filled = 0;
    cairn_status status = CAIRN_OK;
    for (uint32_t c = run->first; c < run->end && status == CAIRN_OK; c++) {
        struct journal_chunk *chunk = &op->chunks[c];
        const struct chunk_place place = chunk_table_place(table, c);
        const uint8_t *from = planes_at(&job->planes, CAIRN_PLANE_SUM,
                                        table->extent_of[table->trained[c]], place.local_elem);
        chunk->checksum = chunk_checksum(from, (size_t)chunk->bytes);
        status = put(segment, block, &filled, &at, from, chunk->bytes, why);
    }
    if (status == CAIRN_OK && filled > 0) status = flush(segment, block, &filled, &at, why);
    return status;
}

/* The thread that ends the last run writes the front, and syncs all of it. */
static void run_round(struct journal_op *op, uint32_t item, uint32_t thread)
{
    struct sentence why;
    cairn_status status = CAIRN_OK;
    if (WITH_LOCK(&op->lock, op->status) == CAIRN_OK && op->head.chunk_count > 0)
        status = write_run(op, &op->runs[item], op->job->shard->journals.blocks[thread], &why);
    if (status != CAIRN_OK) fail_op(op, status, &why);
    if (atomic_fetch_sub(&op->left, 1) > 1) return;
    if (WITH_LOCK(&op->lock, op->status) != CAIRN_OK) return;
    status = write_front(op, &op->job->journal.segment, &why);
    if (status != CAIRN_OK) fail_op(op, status, &why);
}

static cairn_status take_base(struct journal_op *op, struct sentence *why)
{
    const struct job_journal *journal = &op->job->journal;
    CAIRN_TRY(journal_base_write(journal->folder, journal->log, &op->base, why));
    journal_segments_remove(journal->folder, op->number);
    return CAIRN_OK;
}

static cairn_status run_one(struct journal_op *op, struct sentence *why)
{
    switch (op->kind) {
    case OP_END: return journal_end(op->job->journal.folder, why);
    case OP_BEGIN: return make_files(op, why);
    case OP_SEGMENT: return make_segment(op, why);
    case OP_DECISION: return write_front(op, &op->job->journal.segment, why);
    case OP_BASE: return take_base(op, why);
    case OP_PART: return journal_part_write(op->job->journal.folder, op->part, why);
    case OP_ROUND: break;
    }
    return CAIRN_OK;
}

static void run_op(struct task *task, uint32_t item, uint32_t thread)
{
    struct journal_op *op = (struct journal_op *)task;
    struct sentence why;
    if (op->kind == OP_ROUND) {
        run_round(op, item, thread);
        return;
    }
    const cairn_status status = run_one(op, &why);
    if (status != CAIRN_OK) fail_op(op, status, &why);
}

/* ==== operations ==== */

void journal_op_free(struct journal_op *op)
{
    if (op == NULL) return;
    journal_segment_close(&op->made);
    free(op->part);
    free(op->chunks);
    free(op->runs);
    free(op->payload);
    free(op->frozen);
    free(op->base.path);
    pthread_mutex_destroy(&op->lock);
    free(op);
}

static struct journal_op *op_new(struct shard_job *job, enum journal_op_kind kind,
                                 void (*done)(struct task *task))
{
    struct journal_op *op = calloc(1, sizeof *op);
    if (op == NULL) return NULL;
    op->job = job;
    op->kind = kind;
    op->made.fd = -1;
    op->task = (struct task) { .run = run_op, .done = done, .item_count = 1 };
    pthread_mutex_init(&op->lock, NULL);
    return op;
}

void journal_op_start(struct journal_op *op)
{
    struct shard_job *job = op->job;
    op->began_ms = uv_now(job->shard->loop);
    job->journal.op = op;
    shard_job_busy(job);
    shard_wake(job->shard);
    pool_submit(job->shard->journals.pool, &op->task);
}

/* Fills in the head of an entry: how far the machine is, and the frozen tensors of the round. False: no
 * memory. */
static bool fill_head(struct journal_op *op, enum journal_kind kind)
{
    struct shard_job *job = op->job;
    struct journal_head *head = &op->head;
    const struct decision *last = step_last(job->collector.step);
    const size_t groups = job->spec.group_count, tensors = job->spec.tensor_count;
    head->kind = kind;
    head->log = job->journal.log;
    head->entry = job->journal.entry;
    head->outcome = kept_outcome_of(job);
    head->frozen_bytes = groups + tensors;
    op->payload = malloc(last->payload_bytes + 1);
    op->frozen = malloc(head->frozen_bytes + 1);
    if (op->payload == NULL || op->frozen == NULL) return false;
    if (last->payload_bytes > 0) memcpy(op->payload, last->payload, last->payload_bytes);
    memcpy(op->frozen, job->frozen.groups, groups);
    memcpy(op->frozen + groups, job->frozen.tensors, tensors);
    if (kind != JOURNAL_ROUND) return true;
    head->outcome.phase = CAIRN_STEP_REDUCED;
    head->outcome.round = step_round_of(job->collector.step);
    return true;
}

/* ---- sizes ---- */

uint64_t journal_entry_most(const struct shard_job *job, bool is_round)
{
    const struct chunk_table *table = job->pass.table;
    struct journal_head head = { .frozen_bytes = job->spec.group_count + job->spec.tensor_count };
    head.outcome.payload_bytes = shard_payload_max(job);
    if (!is_round) return journal_entry_bytes(&head);
    head.chunk_count = table->trained_count;
    uint64_t elems = 0;
    for (uint32_t c = 0; c < table->trained_count; c++)
        elems += chunk_table_place(table, c).elem_count;
    head.data_bytes = elems * sizeof(float);
    // each run begins at a block
    return journal_entry_bytes(&head) + (head.data_bytes / JOURNAL_RUN_BYTES + 1) * JOURNAL_BLOCK;
}

/* A START, a round and its decision. */
static uint64_t round_bytes(const struct shard_job *job)
{
    return journal_entry_most(job, true) + 2 * journal_entry_most(job, false);
}

uint64_t journal_segment_size(const struct shard_job *job)
{
    const uint64_t least = round_bytes(job), some = 8 * least;
    uint64_t bytes = some < SEGMENT_LEAST ? SEGMENT_LEAST : some;
    const uint64_t most = job->journal.budget_bytes / 8 < SEGMENT_MOST
                              ? job->journal.budget_bytes / 8
                              : SEGMENT_MOST;
    if (bytes > most) bytes = most;
    return ALIGN_UP(bytes < least ? least : bytes, (uint64_t)JOURNAL_BLOCK);
}

/* ---- what each of them is of ---- */

uint64_t journal_bytes(const struct job_journal *journal)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < journal->segment_count; i++) bytes += journal->segments[i].bytes;
    return bytes;
}

/* Sums up what the logs of other jobs may still take of the disk. */
static uint64_t promised_bytes(const struct shard_job *job)
{
    uint64_t bytes = 0;
    for (const struct shard_job *other = job->shard->jobs; other != NULL; other = other->next) {
        const uint64_t has = journal_bytes(&other->journal), most = other->journal.budget_bytes;
        if (other != job && other->journal.is_open && most > has) bytes += most - has;
    }
    return bytes;
}

static bool fill_segment(struct journal_op *op)
{
    const struct job_journal *journal = &op->job->journal;
    op->number = journal->segment_count > 0
                     ? journal->segments[journal->segment_count - 1].number + 1
                     : journal->segment.number;
    op->segment_bytes = journal_segment_size(op->job);
    op->budget_bytes = journal->budget_bytes;
    op->promised_bytes = promised_bytes(op->job);
    return fill_head(op, JOURNAL_START);
}

/* Lays the chunks out in runs. */
static bool fill_round(struct journal_op *op)
{
    const struct chunk_table *table = op->job->pass.table;
    const uint32_t count = table->trained_count;
    op->chunks = calloc((size_t)count + 1, sizeof *op->chunks);
    op->runs = calloc((size_t)count + 1, sizeof *op->runs);
    if (op->chunks == NULL || op->runs == NULL) return false;
    uint64_t at = 0, began = 0;
    uint32_t runs = 0;
    for (uint32_t c = 0; c < count; c++) {
        const struct chunk_place place = chunk_table_place(table, c);
        if (runs == 0 || at - began >= JOURNAL_RUN_BYTES) {
            at = began = ALIGN_UP(at, (uint64_t)JOURNAL_BLOCK);
            op->runs[runs++] = (struct journal_run) { .first = c, .at = at };
        }
        op->chunks[c] = (struct journal_chunk) { .tensor = place.tensor,
                                                 .first_leaf = place.first_leaf,
                                                 .at = at,
                                                 .bytes = place.elem_count * sizeof(float) };
        at += op->chunks[c].bytes;
        op->runs[runs - 1].end = c + 1;
    }
    op->head.chunk_count = count;
    op->head.data_bytes = at;
    op->task.item_count = runs > 0 ? runs : 1;
    atomic_init(&op->left, op->task.item_count);
    return fill_head(op, JOURNAL_ROUND);
}

static bool fill_base(struct journal_op *op)
{
    struct job_journal *journal = &op->job->journal;
    op->base = journal->next_base;
    journal->next_base.path = NULL;
    op->number = journal_first_needed(journal->segments, journal->segment_count, op->base.version);
    return op->base.path != NULL;
}

static bool fill_op(struct journal_op *op)
{
    switch (op->kind) {
    case OP_BEGIN: op->part = journal_part_of(op->job); return op->part != NULL && fill_segment(op);
    case OP_SEGMENT: return fill_segment(op);
    case OP_ROUND: return fill_round(op);
    case OP_DECISION: return fill_head(op, JOURNAL_DECISION);
    case OP_BASE: return fill_base(op);
    case OP_PART: op->part = journal_part_of(op->job); return op->part != NULL;
    case OP_END: break;
    }
    return true;
}

struct journal_op *journal_op_make(struct shard_job *job, enum journal_op_kind kind,
                                   void (*done)(struct task *task))
{
    struct journal_op *op = op_new(job, kind, done);
    if (op == NULL || fill_op(op)) return op;
    journal_op_free(op);
    return NULL;
}
