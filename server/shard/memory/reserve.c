#include "server/shard/memory/reserve.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "server/base/headroom.h"
#include "server/base/host_lock.h"
#include "server/shard/shard.h"

#define PIECE_BYTES     ((uint64_t)64 << 20) /* for a thread at a time */
#define NEIGHBOUR_BYTES 4096 /* a smaller gap is taken along: it is of the same page */
#define LOCK_TIMEOUT_MS \
    900000 /* other shards of the host take memory first: a second for some 10 GB */

struct piece {
    const struct cairn_arena *arena; /* borrowed */
    uint64_t from, bytes;
};

struct cairn_reserve {
    struct cairn_task task; /* the judgement, then the pages */
    struct cairn_reserve_request request;
    struct cairn_reserve *next; /* in shard->memory.reserves: the first is at work */
    struct cairn_span *spans;   /* owned: they are given back, nothing is taken; or NULL */
    struct piece *pieces;       /* owned */
    size_t piece_count, piece_capacity;
    atomic_bool canceled;
    atomic_bool failed;      /* a page was not to be had */
    atomic_bool is_unpinned; /* some could not be pinned: `unpinned` says why, of the first */
    struct cairn_sentence unpinned;
    int lock_fd; /* owned; -1: not held */
    cairn_status status;
    struct cairn_sentence why;
};

/* ---- what is wanted ---- */

static struct piece *add_piece(struct cairn_reserve *reserve)
{
    if (reserve->piece_count == reserve->piece_capacity) {
        const size_t capacity = reserve->piece_capacity * 2 + 8;
        struct piece *pieces = realloc(reserve->pieces, capacity * sizeof *pieces);
        if (pieces == NULL) return NULL;
        reserve->pieces = pieces;
        reserve->piece_capacity = capacity;
    }
    return &reserve->pieces[reserve->piece_count++];
}

/* The last piece goes on with bytes of its arena from there on. */
static bool is_neighbour(const struct piece *last, const struct cairn_arena *arena, uint64_t from)
{
    const uint64_t end = last->from + last->bytes;
    return last->arena == arena && end <= from && from - end <= NEIGHBOUR_BYTES;
}

cairn_status cairn_reserve_add(struct cairn_reserve *reserve, const struct cairn_arena *arena,
                               uint64_t from, uint64_t bytes)
{
    const uint64_t end = from + bytes;
    struct piece *last = reserve->piece_count > 0 ? &reserve->pieces[reserve->piece_count - 1]
                                                  : NULL;
    if (bytes == 0) return CAIRN_OK;
    if (last != NULL && is_neighbour(last, arena, from)) {
        from = last->from;
        reserve->piece_count--;
    }
    while (from < end) { // cut where all cut, so that large pages are not
        const uint64_t cut = ((from + arena->begin) / PIECE_BYTES + 1) * PIECE_BYTES - arena->begin;
        struct piece *piece = add_piece(reserve);
        if (piece == NULL) return CAIRN_ERR_NO_MEMORY;
        *piece = (struct piece) { arena, from, (cut < end ? cut : end) - from };
        from += piece->bytes;
    }
    return CAIRN_OK;
}

static uint64_t all_bytes(const struct cairn_reserve *reserve)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < reserve->piece_count; i++) bytes += reserve->pieces[i].bytes;
    return bytes;
}

/* ---- on the threads ---- */

static void pin(struct cairn_reserve *reserve, const struct piece *piece)
{
    struct cairn_sentence why;
    if (cairn_arena_pin(piece->arena, piece->from, piece->bytes, &why) == CAIRN_OK) return;
    if (!atomic_exchange(&reserve->is_unpinned, true)) reserve->unpinned = why;
}

static void run_pages(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    (void)thread;
    struct cairn_reserve *reserve = (struct cairn_reserve *)task;
    const struct piece *piece = &reserve->pieces[item];
    if (atomic_load(&reserve->canceled) || atomic_load(&reserve->failed)) return;
    if (cairn_arena_take(piece->arena, piece->from, piece->bytes) != CAIRN_OK) {
        atomic_store(&reserve->failed, true);
        return;
    }
    pin(reserve, piece);
    if (reserve->request.took != NULL)
        reserve->request.took(reserve->request.job, piece->arena->base + piece->from, piece->bytes);
}

/* A host without such a lock: what others are about to take is not seen. */
static void take_lock(struct cairn_reserve *reserve, const struct cairn_shard *shard)
{
    reserve->status = cairn_host_lock_take(shard->memory.lock, LOCK_TIMEOUT_MS, &reserve->canceled,
                                           &reserve->lock_fd, &reserve->why);
    if (reserve->status != CAIRN_ERR_IO) return;
    cairn_log_warn("%s: shards of this host that take memory at the same time may take too much",
                   reserve->why.text);
    reserve->status = CAIRN_OK;
}

static void list_pieces(struct cairn_reserve *reserve)
{
    if (atomic_load(&reserve->canceled)) return;
    reserve->status = reserve->request.prepare(reserve, reserve->request.job);
    if (reserve->status != CAIRN_OK)
        cairn_sentence_set(&reserve->why, "no memory for a list of memory");
}

static void run_judge(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    struct cairn_reserve *reserve = (struct cairn_reserve *)task;
    if (reserve->request.prepares_on_thread) list_pieces(reserve);
    if (reserve->status != CAIRN_OK || reserve->piece_count == 0) return;
    const struct cairn_shard_job *job = reserve->request.job;
    struct cairn_headroom headroom;
    char what[CAIRN_NAME_MAX + 64];
    snprintf(what, sizeof what, "%s of job %s", reserve->request.what, job->spec.name);
    take_lock(reserve, job->shard);
    if (reserve->status != CAIRN_OK) return;
    reserve->status = cairn_headroom_read(job->shard->memory.host_root, &headroom, &reserve->why);
    if (reserve->status != CAIRN_OK) return;
    reserve->status = cairn_headroom_judge(&headroom, all_bytes(reserve), what, &reserve->why);
}

/* ---- one after the other ---- */

static void begin_first(struct cairn_shard *shard);

static void reserve_free(struct cairn_reserve *reserve)
{
    if (reserve->lock_fd >= 0) close(reserve->lock_fd);
    free(reserve->pieces);
    free(reserve->spans);
    free(reserve);
}

/* Ends the first reserve. Its turn ends last, after `done`: `done` may reserve more, and the next
 * reserve may need to see what it took. */
static void end_first(struct cairn_reserve *reserve)
{
    struct cairn_shard_job *job = reserve->request.job;
    struct cairn_shard *shard = job->shard;
    if (reserve->lock_fd >= 0) close(reserve->lock_fd);
    reserve->lock_fd = -1;
    if (atomic_load(&reserve->canceled)) reserve->status = CAIRN_ERR_CANCELED;
    if (reserve->spans == NULL)
        reserve->request.done(&reserve->request, reserve->status, &reserve->why);
    shard->memory.reserves = reserve->next;
    reserve_free(reserve);
    begin_first(shard);
    cairn_shard_job_idle(job);
}

static void pages_done(struct cairn_task *task)
{
    struct cairn_reserve *reserve = (struct cairn_reserve *)task;
    if (atomic_load(&reserve->is_unpinned))
        cairn_log_warn("%s of job %s: %s", reserve->request.what, reserve->request.job->spec.name,
                       reserve->unpinned.text);
    if (atomic_load(&reserve->failed))
        reserve->status = cairn_fail(
            &reserve->why, CAIRN_ERR_NO_MEMORY,
            "%s of job %s needs %llu bytes, and the system did not give them",
            reserve->request.what, reserve->request.job->spec.name,
            (unsigned long long)all_bytes(reserve));
    end_first(reserve);
}

static void judge_done(struct cairn_task *task)
{
    struct cairn_reserve *reserve = (struct cairn_reserve *)task;
    if (reserve->status != CAIRN_OK) {
        end_first(reserve);
        return;
    }
    reserve->task = (struct cairn_task) { .run = run_pages,
                                          .done = pages_done,
                                          .item_count = (uint32_t)reserve->piece_count };
    cairn_pool_submit(reserve->request.job->shard->memory.pool, &reserve->task);
    if (reserve->request.judged != NULL) reserve->request.judged(&reserve->request);
}

static void run_give(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    const struct cairn_span *span = &((struct cairn_reserve *)task)->spans[item];
    (void)thread;
    madvise(span->at, span->bytes, MADV_REMOVE);
}

static void give_done(struct cairn_task *task)
{
    end_first((struct cairn_reserve *)task);
}

/* Nothing wanted: nothing to wait for but the turn. */
static void begin_first(struct cairn_shard *shard)
{
    struct cairn_reserve *reserve = shard->memory.reserves;
    if (reserve == NULL) return;
    if (reserve->spans != NULL) {
        cairn_pool_submit(shard->memory.pool, &reserve->task);
        return;
    }
    if (!reserve->request.prepares_on_thread) list_pieces(reserve);
    const bool wants = reserve->request.prepares_on_thread ||
                       (reserve->status == CAIRN_OK && reserve->piece_count > 0);
    reserve->task =
        (struct cairn_task) { .run = run_judge, .done = judge_done, .item_count = wants ? 1 : 0 };
    cairn_pool_submit(shard->memory.pool, &reserve->task);
}

/* It is the last one. */
static void add_last(struct cairn_shard *shard, struct cairn_reserve *reserve)
{
    cairn_shard_job_busy(reserve->request.job);
    struct cairn_reserve **link = &shard->memory.reserves;
    while (*link != NULL) link = &(*link)->next;
    *link = reserve;
    if (link == &shard->memory.reserves) begin_first(shard);
}

void cairn_reserve_give(struct cairn_shard_job *job, struct cairn_span *spans, size_t span_count)
{
    struct cairn_reserve *reserve = span_count > 0 ? calloc(1, sizeof *reserve) : NULL;
    if (reserve == NULL) {
        free(spans);
        return;
    }
    reserve->request.job = job;
    reserve->lock_fd = -1;
    reserve->spans = spans;
    reserve->task = (struct cairn_task) { .run = run_give,
                                          .done = give_done,
                                          .item_count = (uint32_t)span_count };
    add_last(job->shard, reserve);
}

cairn_status cairn_reserve_begin(const struct cairn_reserve_request *request,
                                 struct cairn_sentence *why)
{
    struct cairn_reserve *reserve = calloc(1, sizeof *reserve);
    if (reserve == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a list");
    reserve->request = *request;
    reserve->lock_fd = -1;
    add_last(request->job->shard, reserve);
    return CAIRN_OK;
}

void cairn_reserve_cancel(struct cairn_shard_job *job)
{
    for (struct cairn_reserve *r = job->shard->memory.reserves; r != NULL; r = r->next)
        if (r->request.job == job) atomic_store(&r->canceled, true);
}

void cairn_reserves_stop(struct cairn_shard *shard)
{
    for (struct cairn_reserve *r = shard->memory.reserves; r != NULL; r = r->next)
        atomic_store(&r->canceled, true);
}

void cairn_reserves_free(struct cairn_shard *shard)
{
    while (shard->memory.reserves != NULL) {
        struct cairn_reserve *reserve = shard->memory.reserves;
        shard->memory.reserves = reserve->next;
        reserve_free(reserve);
    }
}
