#include "server/shard/memory.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "server/base/daemon.h"
#include "server/shard/jobs.h"
#include "server/shard/part.h"
#include "server/shard/shard.h"
#include "server/shard/state.h"

#define PIECE_BYTES     ((uint64_t)64 << 20) /* for a thread at a time */
#define NEIGHBOUR_BYTES 4096 /* a smaller gap is taken along: it is of the same page */
#define LOCK_TIMEOUT_MS \
    900000 /* other shards of the host take memory first: a second for some 10 GB */

struct piece {
    const struct arena *arena; /* borrowed */
    uint64_t from, bytes;
};

struct reserve {
    struct task task; /* the judgement, then the pages */
    struct reserve_request request;
    struct reserve *next;      /* in shard->memory.reserves: the first is at work */
    struct shared_span *spans; /* owned: they are given back, nothing is taken; or NULL */
    struct piece *pieces;      /* owned */
    size_t piece_count, piece_capacity;
    atomic_bool canceled;
    atomic_bool failed;      /* a page was not to be had */
    atomic_bool is_unpinned; /* some could not be pinned: `unpinned` says why, of the first */
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

/* The last piece goes on with bytes of its arena from there on. */
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
    while (from < end) { // cut where all cut, so that large pages are not
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

/* A host without such a lock: what others are about to take is not seen. */
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

/* Ends the first reserve. Its turn ends last, after `done`: `done` may reserve more, and the next
 * reserve may need to see what it took. */
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

/* Nothing wanted: nothing to wait for but the turn. */
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

/* It is the last one. */
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

void reserve_cancel(struct shard_job *job)
{
    for (struct reserve *r = job->shard->memory.reserves; r != NULL; r = r->next)
        if (r->request.job == job) atomic_store(&r->canceled, true);
}

void reserves_stop(struct shard_daemon *shard)
{
    for (struct reserve *r = shard->memory.reserves; r != NULL; r = r->next)
        atomic_store(&r->canceled, true);
}

void reserves_free(struct shard_daemon *shard)
{
    while (shard->memory.reserves != NULL) {
        struct reserve *reserve = shard->memory.reserves;
        shard->memory.reserves = reserve->next;
        reserve_free(reserve);
    }
}

/* ==== release ==== */

/* Memory that is given back: to unmap a GiB takes 0.2 s, and to free what a job of a million tensors is made
 * of as long, so a thread of its own does it, one after the other, and the budget has the bytes again when
 * that is done. Until then a JobCreate waits for them. */

struct arena_release {
    struct task task;
    struct shard_daemon *shard; /* borrowed */
    struct arena_release *next;
    struct arena arena; /* owned */
    void (*free_it)(void *what);
    void *what; /* owned; NULL: none */
    uint64_t budget_bytes;
    struct request request; /* answered when it is done */
};

static void release_it(struct arena_release *release)
{
    arena_close(&release->arena);
    if (release->what != NULL) release->free_it(release->what);
    release->what = NULL;
}

static void run_release(struct task *task, uint32_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    release_it((struct arena_release *)task);
}

static void account(struct shard_daemon *shard, uint64_t budget_bytes, struct request *request)
{
    budget_give(&shard->memory.budget, budget_bytes);
    if (request->session != 0) session_answer(shard, request, CAIRN_OK, NULL);
}

static void on_released(struct task *task)
{
    struct arena_release *release = (struct arena_release *)task;
    struct shard_daemon *shard = release->shard;
    struct arena_release **at = &shard->memory.releases;
    while (*at != release) at = &(*at)->next;
    *at = release->next;
    account(shard, release->budget_bytes, &release->request);
    free(release);
    shard->up->memory_back(shard);
}

/* False: without a thread, then. */
static bool begin_release(struct shard_daemon *shard, const struct arena_release *what)
{
    struct arena_release *release = shard->closing ? NULL : malloc(sizeof *release);
    if (release == NULL) return false;
    *release = *what;
    release->task = (struct task) { .run = run_release, .done = on_released, .item_count = 1 };
    release->shard = shard;
    release->next = shard->memory.releases;
    shard->memory.releases = release;
    pool_submit(shard->memory.releaser, &release->task);
    return true;
}

void arena_release(struct shard_daemon *shard, struct arena *arena)
{
    arena_unshare(arena,
                  shard->closing); // the fabric of one that closes has dropped its regions
    const struct arena_release release = { .arena = *arena };
    if (arena->base != NULL && begin_release(shard, &release)) *arena = CAIRN_ARENA_NONE;
    arena_close(arena);
}

void release_by(struct shard_daemon *shard, void (*free_it)(void *what), void *what)
{
    const struct arena_release release = { .arena = CAIRN_ARENA_NONE,
                                           .free_it = free_it,
                                           .what = what };
    if (!begin_release(shard, &release)) free_it(what);
}

void release_bytes(struct shard_daemon *shard, uint64_t budget_bytes, const struct request *request)
{
    struct arena_release release = { .arena = CAIRN_ARENA_NONE, .budget_bytes = budget_bytes };
    if (request != NULL) release.request = *request;
    if (begin_release(shard, &release)) return;
    struct arena_release *newest = shard->closing ? NULL : shard->memory.releases;
    if (newest == NULL) {
        account(shard, budget_bytes, &release.request);
        return;
    }
    // No memory for one of its own: with the newest, behind which it would have come. If somebody waits for
    // that one already, this is answered too early, which is no harm: a JobCreate waits for all of them.
    newest->budget_bytes += budget_bytes;
    if (newest->request.session == 0)
        newest->request = release.request;
    else
        account(shard, 0, &release.request);
}

void release_close(struct shard_daemon *shard)
{
    while (shard->memory.releases != NULL) {
        struct arena_release *release = shard->memory.releases;
        shard->memory.releases = release->next;
        release_it(release);
        free(release);
    }
}

/* ==== admit ==== */

/* Which memory is taken when: a job's state, published copies and buffers of puts when it is created, the
 * landing slots and the reply of a worker when it joins; they are given back when it has left. */

/* ---- a job ---- */

static cairn_status add_state(struct reserve *reserve, struct shard_job *job)
{
    const struct arena *whole[] = { &job->versions.copies[0].wire, &job->versions.copies[1].wire,
                                    &job->puts.arena };
    cairn_status status = planes_reserve(&job->planes, reserve);
    for (size_t i = 0; i < sizeof whole / sizeof *whole && status == CAIRN_OK; i++)
        status = reserve_add(reserve, whole[i], 0, whole[i]->bytes);
    return status;
}

static void await_puts(struct shard_job *job)
{
    job->state = CAIRN_JOB_INITIALIZING;
    session_answer(job->shard, &job->load.asked, CAIRN_OK, NULL);
}

/* Loads or makes its state; or it is to be put. */
static cairn_status begin_state(struct shard_job *job, struct sentence *why)
{
    if (job->load.joins) {
        pass_seal(job);
        return CAIRN_OK;
    }
    if (job->staged) return extend_begin(job, shard_job_find(job->shard, job->number), why);
    if (job->load.path[0] != '\0') return restore_begin(job, why);
    if (origin_wanted(job)) return origin_begin(job, why);
    await_puts(job);
    return CAIRN_OK;
}

static void give_up(struct shard_job *job, cairn_status status, const struct sentence *why)
{
    session_answer(job->shard, &job->load.asked, status, why);
    shard_job_leave(job);
}

/* There is room: what is read of a snapshot goes where pages are already. */
static void on_state_judged(const struct reserve_request *request)
{
    struct shard_job *job = request->job;
    struct sentence why;
    const bool reads = !job->load.joins && !job->staged && job->load.path[0] != '\0';
    if (job->state != CAIRN_JOB_LOADING || !reads) return;
    job->load.begun = restore_begin(job, &why) == CAIRN_OK; // else once more, behind the pages
}

static void on_took(struct shard_job *job, const void *at, uint64_t bytes)
{
    made_pages_add(&job->load.made, at, bytes);
}

static void on_state_taken(const struct reserve_request *request, cairn_status status,
                           const struct sentence *why)
{
    struct shard_job *job = request->job;
    struct sentence failure = *why;
    made_pages_end(&job->load.made, status == CAIRN_OK);
    if (job->state != CAIRN_JOB_LOADING) return; // it leaves, and that was answered
    if (status == CAIRN_OK) {
        log_info("holding job %s, generation %" PRIu64 ": its memory is there", job->spec.name,
                 job->generation);
        job->load.pages_there = true;
        if (!job->load.begun)
            status = begin_state(job, &failure);
        else if (job->load.loaded)
            pass_seal(job);
    }
    if (status == CAIRN_OK) return;
    log_error("cannot hold job %s: %s", job->spec.name, failure.text);
    give_up(job, status, &failure);
}

void admit_loaded(struct shard_job *job, cairn_status status, const struct sentence *why,
                  bool puts_follow)
{
    if (status != CAIRN_OK)
        give_up(job, status, why);
    else if (!job->load.pages_there)
        job->load.loaded = true; // it is sealed when they are
    else if (puts_follow)
        await_puts(job);
    else
        pass_seal(job);
}

cairn_status admit_job(struct shard_job *job, const Cairn__JobCreate *create, struct sentence *why)
{
    job->load.digest = create->digest;
    job->load.joins = create->joins;
    job->load.path = strdup(create->snapshot_path);
    if (job->load.path == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    job->state = CAIRN_JOB_LOADING;
    const struct reserve_request request = { .job = job,
                                             .what = "the state",
                                             .prepare = add_state,
                                             .prepares_on_thread = true,
                                             .judged = on_state_judged,
                                             .took = on_took,
                                             .done = on_state_taken };
    return reserve_begin(&request, why);
}

/* ---- members ---- */

uint64_t landing_at(const struct job_landing *landing, uint32_t slot)
{
    const uint32_t have = landing->window - landing->in_place, large = have - landing->small;
    const uint32_t before = slot % landing->window, k = before < have ? before : have;
    const uint64_t window_bytes = large * (uint64_t)landing->slot_bytes +
                                  landing->small * (uint64_t)landing->small_bytes;
    return slot / landing->window * window_bytes +
           (k < large ? k : large) * (uint64_t)landing->slot_bytes +
           (k > large ? k - large : 0) * (uint64_t)landing->small_bytes;
}

static uint64_t bytes_between(const struct shard_job *job, uint32_t from, uint32_t to)
{
    return landing_at(&job->landing, to) - landing_at(&job->landing, from);
}

/* A round's n-th worker has the n-th window of slots: server/core/step.h. */
static uint32_t slots_wanted(const struct shard_job *job)
{
    uint64_t workers = 0;
    for (size_t i = 0; i < job->members.capacity; i++)
        workers += job->members.list[i] != NULL &&
                   job->members.list[i]->role == CAIRN_ROLE_WIRE_WORKER;
    const uint64_t slots = workers * job->landing.window;
    return slots < job->collector.slot_count ? (uint32_t)slots : job->collector.slot_count;
}

static cairn_status count_slots(struct shard_job *job, struct sentence *why)
{
    const uint32_t wanted = slots_wanted(job);
    char what[CAIRN_NAME_MAX + 64];
    if (wanted <= job->landing.counted) return CAIRN_OK;
    const uint64_t bytes = bytes_between(job, job->landing.counted, wanted);
    snprintf(what, sizeof what, "landing memory of one more worker of job %s", job->spec.name);
    const cairn_status status = shard_job_take(job, &job->memory.landing, bytes, what, why);
    if (status == CAIRN_OK) job->landing.counted = wanted;
    return status;
}

/* For all that joined by now: whoever comes after finds it done. */
static cairn_status add_slots(struct reserve *reserve, struct shard_job *job)
{
    job->landing.asked = slots_wanted(job);
    if (job->landing.asked <= job->landing.made) return CAIRN_OK;
    return reserve_add(reserve, &job->landing.arena, landing_at(&job->landing, job->landing.made),
                       bytes_between(job, job->landing.made, job->landing.asked));
}

static void on_slots_taken(const struct reserve_request *request, cairn_status status,
                           const struct sentence *why)
{
    struct shard_job *job = request->job;
    struct request answered = request->answer;
    const struct shard_member *member = member_find(job, request->member);
    if (status == CAIRN_OK && job->landing.asked > job->landing.made)
        job->landing.made = job->landing.asked;
    job->landing.asked = job->landing.made;
    if (status != CAIRN_OK && member != NULL) {
        log_warn("member %s of job %s refused: %s", member->name, job->spec.name, why->text);
        members_leave(job, request->member);
        job->landing.extra = true;
    }
    if (job->landing.extra) admit_left(job); // this one's, or those of others that left meanwhile
    session_answer(job->shard, &answered, status, why);
}

void admit_member(struct shard_job *job, uint64_t member, struct request answer)
{
    const struct reserve_request request = { .job = job,
                                             .what = "landing memory of the workers",
                                             .prepare = add_slots,
                                             .done = on_slots_taken,
                                             .member = member,
                                             .answer = answer };
    struct sentence why;
    cairn_status status = count_slots(job, &why);
    if (status == CAIRN_OK) status = reply_keep(member_find(job, member), &why);
    if (status == CAIRN_OK && slots_wanted(job) > job->landing.made) {
        status = reserve_begin(&request, &why);
        if (status == CAIRN_OK) return;
    }
    if (status != CAIRN_OK) {
        log_warn("a member of job %s refused: %s", job->spec.name, why.text);
        members_leave(job, member);
        admit_left(job);
    }
    session_answer(job->shard, &answer, status, &why);
}

/* Nothing lands or is folded, and no page is being made: a round has the windows from the lowest on. */
static bool landing_rests(const struct shard_job *job)
{
    return step_phase_of(job->collector.step) == CAIRN_STEP_IDLE &&
           step_slots_used(job->collector.step) == 0 && job->landing.asked <= job->landing.made;
}

static void on_turn(uv_timer_t *timer)
{
    struct shard_daemon *shard = timer->data;
    shard->memory.given_bytes = 0;
    for (struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        if (job->landing.extra) admit_left(job);
    create_on_memory_back(shard);
}

/* How many slots this turn of the loop may give back: the last ones of those behind `keep`, as far
 * as the turn's bytes go, but at least one a turn. */
static uint32_t slots_of_turn(const struct shard_job *job, uint32_t keep)
{
    const struct shard_daemon *shard = job->shard;
    const uint32_t extra = job->landing.counted - keep;
    if (shard->memory.given_bytes >= shard->memory.give_max_bytes) return 0;
    const uint64_t room = shard->memory.give_max_bytes - shard->memory.given_bytes;
    uint32_t slots = 0;
    while (slots < extra &&
           bytes_between(job, job->landing.counted - slots - 1, job->landing.counted) <= room)
        slots++;
    return slots == 0 && shard->memory.given_bytes == 0 ? 1 : slots;
}

static void give_slots(struct shard_job *job, uint32_t keep)
{
    struct shard_daemon *shard = job->shard;
    const uint64_t bytes = bytes_between(job, keep, job->landing.counted);
    if (keep < job->landing.made) {
        arena_give(&job->landing.arena, landing_at(&job->landing, keep),
                   bytes_between(job, keep, job->landing.made));
        job->landing.made = job->landing.asked = keep;
    }
    shard_job_give(job, &job->memory.landing, bytes);
    job->landing.counted = keep;
    shard->memory.given_bytes += bytes;
    uv_timer_start(&shard->memory.give_timer, on_turn, 0, 0);
}

void admit_left(struct shard_job *job)
{
    const uint32_t keep = slots_wanted(job);
    job->landing.extra = keep < job->landing.counted;
    if (!job->landing.extra || !landing_rests(job)) return;
    const uint32_t slots = slots_of_turn(job, keep);
    if (slots > 0) give_slots(job, job->landing.counted - slots);
    job->landing.extra = keep < job->landing.counted;
}
