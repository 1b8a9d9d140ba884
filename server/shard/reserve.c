#include "server/shard/memory.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "server/base/daemon.h"
#include "server/shard/jobs.h"
#include "server/shard/part.h"
#include "server/shard/shard.h"
#include "server/shard/state.h"

#define PIECE_BYTES     ((uint64_t)64 << 20) /* how much a thread makes at a time */
#define NEIGHBOUR_BYTES 4096 /* a smaller gap is filled, too: it lies in the same page */
#define LOCK_TIMEOUT_MS \
    900000 /* other shards of the host take memory first: a second for some 10 GB */

struct piece {
    const struct arena *arena; /* borrowed */
    uint64_t from, bytes;
};

struct reserve {
    struct task task; /* judges the request, then makes the pages */
    struct reserve_request request;
    struct reserve *next;      /* in shard->memory.reserves, whose first is at work */
    struct shared_span *spans; /* owned: pages to give back, while nothing is taken; or NULL */
    struct piece *pieces;      /* owned */
    size_t piece_count, piece_capacity;
    atomic_bool canceled;
    atomic_bool failed;      /* a page could not be made */
    atomic_bool is_unpinned; /* a page could not be pinned: `unpinned` has the first reason */
    struct sentence unpinned;
    int lock_fd; /* owned; -1: not held */
    cairn_status status;
    struct sentence why;
};

/* ---- what is wanted ---- */

static struct piece *add_piece(struct reserve *reserve)
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

/* True if the bytes of the arena at `from` continue the last piece. */
static bool is_neighbour(const struct piece *last, const struct arena *arena, uint64_t from)
{
    const uint64_t end = last->from + last->bytes;
    return last->arena == arena && end <= from && from - end <= NEIGHBOUR_BYTES;
}

cairn_status reserve_add(struct reserve *reserve, const struct arena *arena, uint64_t from,
                         uint64_t bytes)
{
    const uint64_t end = from + bytes;
    struct piece *last = reserve->piece_count > 0 ? &reserve->pieces[reserve->piece_count - 1]
                                                  : NULL;
    if (bytes == 0) return CAIRN_OK;
    if (last != NULL && is_neighbour(last, arena, from)) {
        from = last->from;
        reserve->piece_count--;
    }
    while (from < end) { // cut at fixed places, so that no large page is cut
        const uint64_t cut = ((from + arena->begin) / PIECE_BYTES + 1) * PIECE_BYTES - arena->begin;
        struct piece *piece = add_piece(reserve);
        if (piece == NULL) return CAIRN_ERR_NO_MEMORY;
        *piece = (struct piece) { arena, from, (cut < end ? cut : end) - from };
        from += piece->bytes;
    }
    return CAIRN_OK;
}

static uint64_t all_bytes(const struct reserve *reserve)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < reserve->piece_count; i++) bytes += reserve->pieces[i].bytes;
    return bytes;
}

/* ---- on the threads ---- */

static void pin(struct reserve *reserve, const struct piece *piece)
{
    struct sentence why;
    if (arena_pin(piece->arena, piece->from, piece->bytes, &why) == CAIRN_OK) return;
    if (!atomic_exchange(&reserve->is_unpinned, true)) reserve->unpinned = why;
}

static void run_pages(struct task *task, uint32_t item, uint32_t thread)
{
    (void)thread;
    struct reserve *reserve = (struct reserve *)task;
    const struct piece *piece = &reserve->pieces[item];
    if (atomic_load(&reserve->canceled) || atomic_load(&reserve->failed)) return;
    if (arena_make_pages(piece->arena, piece->from, piece->bytes) != CAIRN_OK) {
        atomic_store(&reserve->failed, true);
        return;
    }
    pin(reserve, piece);
    if (reserve->request.took != NULL)
        reserve->request.took(reserve->request.job, piece->arena->base + piece->from, piece->bytes);
}

/* Takes the host's lock. On a host without such a lock, this shard does not see how much memory other
 * shards are about to take. */
static void take_lock(struct reserve *reserve, const struct shard_daemon *shard)
{
    reserve->status = host_lock_take(shard->memory.lock, LOCK_TIMEOUT_MS, &reserve->canceled,
                                     &reserve->lock_fd, &reserve->why);
    if (reserve->status != CAIRN_ERR_IO) return;
    log_warn("%s: shards of this host that take memory at the same time may take too much",
             reserve->why.text);
    reserve->status = CAIRN_OK;
}

static void list_pieces(struct reserve *reserve)
{
    if (atomic_load(&reserve->canceled)) return;
    reserve->status = reserve->request.prepare(reserve, reserve->request.job);
    if (reserve->status != CAIRN_OK)
        sentence_set(&reserve->why, "out of memory for a list of memory");
}

static void run_judge(struct task *task, uint32_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    struct reserve *reserve = (struct reserve *)task;
    if (reserve->request.prepares_on_thread) list_pieces(reserve);
    if (reserve->status != CAIRN_OK || reserve->piece_count == 0) return;
    const struct shard_job *job = reserve->request.job;
    struct headroom headroom;
    char what[CAIRN_NAME_MAX + 64];
    snprintf(what, sizeof what, "%s of job %s", reserve->request.what, job->spec.name);
    take_lock(reserve, job->shard);
    if (reserve->status != CAIRN_OK) return;
    reserve->status = headroom_read(job->shard->memory.host_root, &headroom, &reserve->why);
    if (reserve->status != CAIRN_OK) return;
    reserve->status = headroom_judge(&headroom, all_bytes(reserve), what, &reserve->why);
}

/* ---- one after the other ---- */

static void begin_first(struct shard_daemon *shard);

static void reserve_free(struct reserve *reserve)
{
    if (reserve->lock_fd >= 0) close(reserve->lock_fd);
    free(reserve->pieces);
    free(reserve->spans);
    free(reserve);
}

/* Ends the first reserve. Its turn ends only after `done`, because `done` may reserve more, and the next
 * reserve may need to see how much `done` took. */
static void end_first(struct reserve *reserve)
{
    struct shard_job *job = reserve->request.job;
    struct shard_daemon *shard = job->shard;
    if (reserve->lock_fd >= 0) close(reserve->lock_fd);
    reserve->lock_fd = -1;
    if (atomic_load(&reserve->canceled)) reserve->status = CAIRN_ERR_CANCELED;
    if (reserve->spans == NULL)
        reserve->request.done(&reserve->request, reserve->status, &reserve->why);
    shard->memory.reserves = reserve->next;
    reserve_free(reserve);
    begin_first(shard);
    shard_job_idle(job);
}

static void pages_done(struct task *task)
{
    struct reserve *reserve = (struct reserve *)task;
    if (atomic_load(&reserve->is_unpinned))
        log_warn("%s of job %s: %s", reserve->request.what, reserve->request.job->spec.name,
                 reserve->unpinned.text);
    if (atomic_load(&reserve->failed))
        reserve->status = fail_with(
            &reserve->why, CAIRN_ERR_NO_MEMORY,
            "%s of job %s needs %" PRIu64 " bytes, and the system did not give them",
            reserve->request.what, reserve->request.job->spec.name, all_bytes(reserve));
    end_first(reserve);
}

static void judge_done(struct task *task)
{
    struct reserve *reserve = (struct reserve *)task;
    if (reserve->status != CAIRN_OK) {
        end_first(reserve);
        return;
    }
    reserve->task = (struct task) { .run = run_pages,
                                    .done = pages_done,
                                    .item_count = (uint32_t)reserve->piece_count };
    pool_submit(reserve->request.job->shard->memory.pool, &reserve->task);
    if (reserve->request.judged != NULL) reserve->request.judged(&reserve->request);
}

static void run_give(struct task *task, uint32_t item, uint32_t thread)
{
    const struct shared_span *span = &((struct reserve *)task)->spans[item];
    (void)thread;
    madvise(span->at, span->bytes, MADV_REMOVE);
}

static void give_done(struct task *task)
{
    end_first((struct reserve *)task);
}

/* Begins the first reserve. A reserve that wants no memory waits only for its turn. */
static void begin_first(struct shard_daemon *shard)
{
    struct reserve *reserve = shard->memory.reserves;
    if (reserve == NULL) return;
    if (reserve->spans != NULL) {
        pool_submit(shard->memory.pool, &reserve->task);
        return;
    }
    if (!reserve->request.prepares_on_thread) list_pieces(reserve);
    const bool wants = reserve->request.prepares_on_thread ||
                       (reserve->status == CAIRN_OK && reserve->piece_count > 0);
    reserve->task =
        (struct task) { .run = run_judge, .done = judge_done, .item_count = wants ? 1 : 0 };
    pool_submit(shard->memory.pool, &reserve->task);
}

/* Adds the reserve as the last one. */
static void add_last(struct shard_daemon *shard, struct reserve *reserve)
{
    shard_job_busy(reserve->request.job);
    struct reserve **link = &shard->memory.reserves;
    while (*link != NULL) link = &(*link)->next;
    *link = reserve;
    if (link == &shard->memory.reserves) begin_first(shard);
}

void reserve_give(struct shard_job *job, struct shared_span *spans, size_t span_count)
{
    struct reserve *reserve = span_count > 0 ? calloc(1, sizeof *reserve) : NULL;
    if (reserve == NULL) {
        free(spans);
        return;
    }
    reserve->request.job = job;
    reserve->lock_fd = -1;
    reserve->spans = spans;
    reserve->task =
        (struct task) { .run = run_give, .done = give_done, .item_count = (uint32_t)span_count };
    add_last(job->shard, reserve);
}

cairn_status reserve_begin(const struct reserve_request *request, struct sentence *why)
{
    struct reserve *reserve = calloc(1, sizeof *reserve);
    if (reserve == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a list");
    reserve->request = *request;
    reserve->lock_fd = -1;
    add_last(request->job->shard, reserve);
    return CAIRN_OK;
}

/* Makes `done` of the job's requests follow soon. */
static void cancel_reserves(struct shard_job *job)
{
    for (struct reserve *r = job->shard->memory.reserves; r != NULL; r = r->next)
        if (r->request.job == job) atomic_store(&r->canceled, true);
}

const struct shard_module reserve_module = { .on = { [SHARD_JOB_CANCELS] = cancel_reserves } };

void reserves_free(struct shard_daemon *shard)
{
    while (shard->memory.reserves != NULL) {
        struct reserve *reserve = shard->memory.reserves;
        shard->memory.reserves = reserve->next;
        reserve_free(reserve);
    }
}

/* ---- the planes ---- */

cairn_status planes_reserve_elems(const struct state_planes *planes, enum plane plane,
                                  const struct form *form, uint64_t first, uint64_t local_elem,
                                  uint64_t elems, struct reserve *reserve)
{
    if (!form_keeps(form, plane)) return CAIRN_OK;
    return reserve_add(reserve, &planes->host[plane],
                       first * sizeof(float) + form_bytes(form, plane, local_elem - first),
                       form_bytes(form, plane, elems));
}

static cairn_status reserve_plane(const struct state_planes *planes, enum plane plane,
                                  struct reserve *reserve)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < planes->map->extent_count && status == CAIRN_OK; i++) {
        const struct local_extent *extent = &planes->map->extents[i];
        const uint64_t skipped = extent_before(extent, planes->host_from);
        status = planes_reserve_elems(planes, plane, &planes->forms[i], extent->local_elem,
                                      extent->local_elem + skipped, extent->elem_count - skipped,
                                      reserve);
    }
    return status;
}

cairn_status planes_reserve(const struct state_planes *planes, struct reserve *reserve)
{
    cairn_status status = CAIRN_OK;
    for (enum plane p = 0; p < CAIRN_PLANES && status == CAIRN_OK; p++)
        if (planes->host[p].base != NULL) status = reserve_plane(planes, p, reserve);
    return status;
}
