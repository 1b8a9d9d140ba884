#include "server/shard/state.h"

#include <inttypes.h>
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "proto/spec/spec.h"
#include "server/base/daemon.h"
#include "server/shard/shard.h"

enum { PENDING, SAVING, SAVED, TAKEN };

#define SMALL_PIECES 5   /* room for the planes of a chunk, and for one that is saved ahead */
#define LINE         64u /* the saved pieces begin at multiples of this */
#define TOUCH_BYTES  ((size_t)2 << 20) /* how many bytes of pages are made at a time: a large page */
/* the length of one rest; after it give_way looks whether an update still runs */
#define REST_US     500
#define REST_MAX_US 5000000 /* the most time that all rests take together */
#define SAVING_US   20      /* the time after which a reader looks again whether a piece is saved */

#define STALLED                                                           \
    "an update waited %" PRIu64                                           \
    " s for room in the small staging, as if the storage hung; training " \
    "goes on "                                                            \
    "without the snapshot: see to the storage, or ask for snapshot_staging = state"

/* ---- how much ---- */

/* Returns the bytes of a piece; 0 if the chunk does not keep the plane, or the plane is not
 * state. */
static size_t piece_bytes(const struct shard_view *view, uint64_t chunk, int plane)
{
    const struct form *form = &view->forms[view->table.extent_of[chunk]];
    if (!form_stores(form, plane)) return 0;
    const struct chunk_place place = shard_map_chunk(&view->table.map, chunk);
    return (size_t)form_bytes(form, (enum plane)plane, place.elem_count);
}

/* Returns the bytes of all pieces; *largest_out is the size of the largest piece. */
static uint64_t sum_pieces(const struct shard_view *view, size_t *largest_out)
{
    uint64_t sum = 0;
    size_t largest = LINE;
    for (uint64_t c = 0; c < view->table.map.chunk_count; c++) {
        for (int p = 0; p < CAIRN_PLANE_COUNT; p++) {
            const size_t bytes = ALIGN_UP(piece_bytes(view, c, p), LINE);
            sum += bytes;
            if (bytes > largest) largest = bytes;
        }
    }
    *largest_out = largest;
    return sum;
}

uint64_t staging_bytes(const struct shard_job *job, cairn_snapshot_staging room)
{
    size_t largest;
    const uint64_t all = sum_pieces(job->view, &largest);
    uint64_t small = (uint64_t)largest * SMALL_PIECES;
    if (small < CAIRN_STAGING_SMALL_BYTES) small = CAIRN_STAGING_SMALL_BYTES;
    // There is room for one more piece, because a piece may be saved ahead and by a pass at the
    // same time; then one of the two copies is in vain.
    return room == CAIRN_SNAPSHOT_STAGING_SMALL && small < all ? small : all + largest;
}

/* ---- open and close ---- */

cairn_status staging_open(struct staging *staging, struct shard_job *job, uint64_t bytes,
                          struct sentence *why)
{
    const size_t pieces = (size_t)job->view->table.map.chunk_count * CAIRN_PLANE_COUNT;
    size_t largest;
    *staging = (struct staging) { .job = job,
                                  .room = CAIRN_ARENA_NONE,
                                  .wait_us_max = CAIRN_STAGING_WAIT_US };
    staging->again = bytes < sum_pieces(job->view, &largest);
    staging->slot_bytes = largest;
    staging->view = shard_view_ref(job->view);
    pthread_mutex_init(&staging->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&staging->freed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    staging->pieces = calloc(pieces + 1, sizeof *staging->pieces);
    staging->saved = calloc(pieces + 1, sizeof *staging->saved);
    if (staging->pieces == NULL || staging->saved == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a snapshot");
    return arena_open_scratch("staging", bytes, &staging->room, why);
}

void staging_close(struct staging *staging)
{
    if (staging->job == NULL) return;
    // done on another thread, because it takes 0.2 s a GiB
    arena_release(staging->job->shard, &staging->room);
    shard_view_unref(staging->view);
    free((void *)staging->pieces);
    free(staging->saved);
    pthread_cond_destroy(&staging->freed);
    pthread_mutex_destroy(&staging->lock);
    *staging = (struct staging) { .job = NULL };
}

/* Rests while an update runs, because making pages takes bandwidth of memory that the update needs.
 * Rests at most *rests_left times. */
static void give_way(const struct staging *staging, uint64_t *rests_left)
{
    while (atomic_load(&staging->job->pins.updating) && !atomic_load(&staging->canceled) &&
           *rests_left > 0) {
        usleep(REST_US);
        --*rests_left;
    }
}

/* Makes the pages of the room. Pages that a pass has already made stay as they are. */
static void touch(struct task *task, uint32_t item, uint32_t thread)
{
    struct staging *staging = (struct staging *)task;
    uint64_t rests_left = REST_MAX_US / REST_US;
    bool presses = false;
    (void)item;
    (void)thread;
    for (size_t at = 0; at < staging->room.bytes && !atomic_load(&staging->canceled);
         at += TOUCH_BYTES) {
        give_way(staging, &rests_left);
        if (!presses && uv_hrtime() > staging->press_ns) thread_press(), presses = true;
        const size_t left = staging->room.bytes - at;
        if (madvise(staging->room.base + at, left < TOUCH_BYTES ? left : TOUCH_BYTES,
                    MADV_POPULATE_WRITE) != 0)
            break; // a pass that needs one of the missing pages makes that page
    }
    if (presses) thread_yield();
}

static void touch_done(struct task *task)
{
    struct staging *staging = (struct staging *)task;
    staging->touched(staging->context);
}

void staging_touch(struct staging *staging, void (*touched)(void *context), void *context)
{
    staging->touched = touched;
    staging->context = context;
    staging->press_ns = uv_hrtime() +
                        (uint64_t)policy_prepare_within_s(&staging->job->spec.policy) * 1000000000 /
                            2;
    staging->touch = (struct task) { .run = touch, .done = touch_done, .item_count = 1 };
    pool_submit(staging->job->shard->memory.toucher, &staging->touch);
}

void staging_cancel(struct staging *staging)
{
    if (staging->job == NULL) return;
    HOLD_LOCK(&staging->lock);
    atomic_store(&staging->canceled, true);
    pthread_cond_broadcast(&staging->freed);
}

cairn_status staging_check(const struct staging *staging, struct sentence *why)
{
    if (!atomic_load(&staging->canceled)) return CAIRN_OK;
    if (!atomic_load(&staging->stalled))
        return fail_with(why, CAIRN_ERR_CANCELED, "it was given up");
    return fail_with(why, CAIRN_ERR_TIMEOUT, STALLED, (staging->wait_us_max / 1000000));
}

/* ---- room ---- */

/* Takes room that was never used; returns NULL if no such room is left. Takes no lock, so that a
 * pass never waits for a thread of low priority that holds the lock. */
static uint8_t *new_room(struct staging *staging, size_t bytes)
{
    const uint64_t at = atomic_fetch_add(&staging->used, bytes);
    return at <= staging->room.bytes && bytes <= staging->room.bytes - at ? staging->room.base + at
                                                                          : NULL;
}

/* Returns a free slot; NULL if no slot is free. The caller holds the lock. */
static uint8_t *find_slot(struct staging *staging)
{
    uint8_t *at = staging->spare;
    if (at == NULL) return new_room(staging, staging->slot_bytes);
    memcpy(&staging->spare, at, sizeof staging->spare);
    return at;
}

static struct timespec after(uint64_t us)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    const uint64_t ns = (uint64_t)at.tv_nsec + us % 1000000 * 1000;
    at.tv_sec += (time_t)(us / 1000000 + ns / 1000000000);
    at.tv_nsec = (long)(ns % 1000000000);
    return at;
}

/* Waits for a free slot, and returns it. Returns NULL if the staging is canceled. The caller holds
 * the lock. */
static uint8_t *wait_for_slot(struct staging *staging)
{
    const uint64_t from = uv_hrtime();
    const struct timespec end = after(staging->wait_us_max);
    uint8_t *at = NULL;
    int late = 0;
    atomic_fetch_add(&staging->waiting, 1);
    while (!atomic_load(&staging->canceled) && (at = find_slot(staging)) == NULL) {
        if (late != 0) {
            atomic_store(&staging->stalled, true);
            atomic_store(&staging->canceled, true);
            pthread_cond_broadcast(&staging->freed);
            log_error("job %s: its snapshot is given up here: " STALLED, staging->job->spec.name,
                      (staging->wait_us_max / 1000000));
        } else {
            late = pthread_cond_timedwait(&staging->freed, &staging->lock, &end);
        }
    }
    atomic_fetch_sub(&staging->waiting, 1);
    atomic_fetch_add(&staging->waited_us, (uv_hrtime() - from) / 1000);
    return at;
}

/* Takes room for a piece. Returns NULL if the staging is canceled, or if room that is not reused is
 * used up. */
static uint8_t *take_room(struct staging *staging, size_t bytes)
{
    if (!staging->again) return new_room(staging, ALIGN_UP(bytes, LINE));
    HOLD_LOCK(&staging->lock);
    uint8_t *at = find_slot(staging);
    if (at == NULL) at = wait_for_slot(staging);
    return at;
}

static void give_room(struct staging *staging, uint8_t *at)
{
    if (!staging->again) return;
    HOLD_LOCK(&staging->lock);
    memcpy(at, &staging->spare, sizeof staging->spare);
    staging->spare = at;
    pthread_cond_signal(&staging->freed);
}

/* ---- a pass ---- */

static size_t number_of(uint64_t chunk, int plane)
{
    return (size_t)chunk * CAIRN_PLANE_COUNT + (size_t)plane;
}

/* Adds the copy of a pending piece to the works. Returns false if the piece need not be saved. */
static bool begin_save(struct staging *staging, struct works *works, uint64_t chunk, int plane)
{
    const struct shard_view *view = staging->view;
    const size_t n = number_of(chunk, plane), bytes = piece_bytes(view, chunk, plane);
    if (bytes == 0 || atomic_load(&staging->pieces[n]) != PENDING) return false;
    // taken before the piece is SAVING, because the reader waits while it is SAVING
    uint8_t *at = take_room(staging, bytes);
    uint8_t pending = PENDING;
    // otherwise the values that the pass overwrites would be lost
    assert(at != NULL || staging->again);
    if (at == NULL) return false;
    if (!atomic_compare_exchange_strong(&staging->pieces[n], &pending, SAVING)) {
        give_room(staging, at);
        return false;
    }
    staging->saved[n] = at;
    works_copy(works, at,
               planes_at(&staging->job->planes, (enum plane)plane, view->table.extent_of[chunk],
                         shard_map_chunk(&view->table.map, chunk).local_elem),
               bytes);
    atomic_fetch_add(&staging->saved_bytes, bytes);
    return true;
}

void staging_save(struct staging *staging, struct works *works, uint64_t chunk)
{
    if (atomic_load(&staging->canceled)) return;
    for (int p = 0; p < CAIRN_PLANE_COUNT; p++) {
        // Each piece is saved before room for the next piece is taken. So the reader never waits
        // for a piece while this thread waits for room.
        if (!begin_save(staging, works, chunk, p)) continue;
        works_flush(works);
        if (works_now(works)->status != CAIRN_OK) atomic_store(&staging->failed, true);
        atomic_exchange(&staging->pieces[number_of(chunk, p)], SAVED);
    }
}

/* ---- the reader ---- */

/* Copies bytes from any address to any address. Another thread may be writing at `from`, so TSan
 * must not check this function. It calls no other function, because TSan would check that one. */
typedef uint64_t __attribute__((aligned(1), may_alias)) loose_word;
__attribute__((noinline, no_sanitize("thread"))) static void
copy_loosely(void *to, const void *from, size_t bytes)
{
    volatile loose_word *words = to;
    const volatile loose_word *of = from;
    const size_t count = bytes / sizeof *words;
    for (size_t i = 0; i < count; i++) words[i] = of[i];
    for (size_t i = count * sizeof *words; i < bytes; i++)
        ((volatile uint8_t *)to)[i] = ((const volatile uint8_t *)from)[i];
}

/* Copies state that an update may overwrite meanwhile. The caller checks this afterwards, and then
 * does not use the copy. tsan.supp refers to this function by its name. */
__attribute__((noinline)) static cairn_status peek_at_live_state(struct works *works,
                                                                 const void *from, size_t bytes,
                                                                 void *to, struct sentence *why)
{
    if (works->in_place) {
        copy_loosely(to, from, bytes);
        return CAIRN_OK;
    }
    memcpy(to, works_get(works, from, bytes), bytes);
    return works_run(works, why);
}

/* Returns true if the piece is still PENDING. If `ends` is true, a PENDING piece becomes TAKEN. */
static bool still_pending(_Atomic uint8_t *piece, bool ends)
{
    uint8_t pending = PENDING;
    if (ends) return atomic_compare_exchange_strong(piece, &pending, TAKEN);
    return atomic_fetch_or(piece, 0) ==
           PENDING; // not only a load, so that no byte of the copy is read after this
}

struct range {
    const void *live;
    size_t offset, bytes; /* in bytes of the piece */
    bool ends;
};

static cairn_status read_piece(struct staging *staging, struct works *works, size_t n,
                               const struct range *range, void *to, struct sentence *why)
{
    _Atomic uint8_t *piece = &staging->pieces[n];
    uint8_t is;
    while ((is = atomic_load(piece)) != SAVED) {
        if (is == SAVING) {
            usleep(SAVING_US);
            continue;
        }
        const cairn_status status = peek_at_live_state(works, range->live, range->bytes, to, why);
        if (status != CAIRN_OK || still_pending(piece, range->ends)) return status;
    }
    if (atomic_load(&staging->failed))
        return fail_with(why, CAIRN_ERR_IO, "the state could not be copied before an update");
    memcpy(to, staging->saved[n] + range->offset, range->bytes);
    if (range->ends) {
        atomic_store(piece, TAKEN);
        give_room(staging, staging->saved[n]);
    }
    return CAIRN_OK;
}

static cairn_status read_range(struct staging *staging, struct works *works, uint64_t chunk,
                               enum plane plane, uint64_t first, uint64_t elems, bool ends,
                               void *to, struct sentence *why)
{
    const struct shard_view *view = staging->view;
    const uint32_t extent = view->table.extent_of[chunk];
    const struct form *form = &view->forms[extent];
    const uint64_t local = shard_map_chunk(&view->table.map, chunk).local_elem + first;
    const struct range range = {
        .live = planes_at(&staging->job->planes, plane, extent, local),
        .offset = (size_t)form_bytes(form, plane, first),
        .bytes = (size_t)form_bytes(form, plane, elems),
        .ends = ends,
    };
    return read_piece(staging, works, number_of(chunk, (int)plane), &range, to, why);
}

/* ---- ahead of an update ---- */

/* Saves a piece that lies in host memory, if the piece is PENDING. Returns false if there is no
 * room. */
static bool save_piece_ahead(struct staging *staging, struct works *works, uint64_t chunk,
                             int plane)
{
    const struct shard_view *view = staging->view;
    const size_t n = number_of(chunk, plane), bytes = piece_bytes(view, chunk, plane);
    const uint64_t local = shard_map_chunk(&view->table.map, chunk).local_elem;
    struct sentence unsaid;
    uint8_t pending = PENDING;
    if (bytes == 0 || atomic_load(&staging->pieces[n]) != PENDING) return true;
    uint8_t *at = take_room(staging, bytes);
    if (at == NULL) return false;
    // This cannot fail, because works of the host's home run in place.
    (void)peek_at_live_state(
        works,
        planes_at(&staging->job->planes, (enum plane)plane, view->table.extent_of[chunk], local),
        bytes, at, &unsaid);
    // If the piece is still PENDING, the copy is not torn. Otherwise a pass has begun and saves the
    // piece, and is_ahead ends the saving ahead.
    if (!atomic_compare_exchange_strong(&staging->pieces[n], &pending, SAVING)) return true;
    staging->saved[n] = at;
    atomic_fetch_add(&staging->saved_bytes, bytes);
    atomic_store(&staging->pieces[n], SAVED);
    return true;
}

/* True if no pass has begun since `passes` was read, and the pace does not press. */
static bool is_ahead(const struct staging *staging, const struct pace *pace, uint64_t passes)
{
    const struct pins *pins = &staging->job->pins;
    return !staging->again && !atomic_load(&staging->canceled) && !atomic_load(&pins->updating) &&
           atomic_load(&pins->passes) == passes && !pace_presses(pace, uv_hrtime() / 1000);
}

void staging_save_ahead(struct staging *staging, const struct pace *pace)
{
    const struct shard_view *view = staging->view;
    struct works *works = compute_snapshots(&staging->job->shard->host);
    const uint64_t passes = atomic_load(&staging->job->pins.passes);
    bool goes_on = true;
    atomic_store(&staging->reading, true);
    // The chunks before pass.host.first lie on a device.
    for (uint64_t c = staging->job->pass.host.first; c < view->table.map.chunk_count; c++) {
        // no update overwrites the chunk
        if (!view->forms[view->table.extent_of[c]].trained) continue;
        for (int p = 0; p < CAIRN_PLANE_COUNT && goes_on; p++)
            goes_on = is_ahead(staging, pace, passes) && save_piece_ahead(staging, works, c, p);
    }
    atomic_store(&staging->reading, false);
}

cairn_status staging_read(struct staging *staging, struct works *works, uint64_t chunk,
                          enum plane plane, uint64_t first, uint64_t elems, bool ends, void *to,
                          struct sentence *why)
{
    atomic_store(&staging->reading, true);
    cairn_status status = staging_check(staging, why);
    if (status == CAIRN_OK)
        status = read_range(staging, works, chunk, plane, first, elems, ends, to, why);
    // Checks again, because after a cancel passes save nothing, and may have overwritten a pending
    // piece.
    if (status == CAIRN_OK) status = staging_check(staging, why);
    atomic_store(&staging->reading, false);
    return status;
}

/* ==== pace ==== */

/* nobody trains if no step has ended for so long .. */
#define IDLE_US          ((uint64_t)2000000)
#define IDLE_STEPS       4                 /* .. and for so many times the duration of a step */
#define PACE_REST_MAX_US ((uint64_t)20000) /* the longest rest, so that a cancel is noticed soon */
/* how many bytes may be written after a rest without another rest */
#define BURST_BYTES  ((uint64_t)8 << 20)
#define SLACK_DIVIDE 20 /* a step counts as slow if it is longer by more than a twentieth */

void pace_init(struct pace *pace, uint64_t total_bytes, uint64_t before_us, uint64_t last_us,
               uint64_t deadline_us)
{
    pace->before_us = before_us;
    pace->total_bytes = total_bytes;
    pace->deadline_us = deadline_us;
    atomic_store(&pace->rate, CAIRN_PACE_FIRST);
    atomic_store(&pace->step_us, last_us);
    atomic_store(&pace->hurry, false);
    pace->counted_us = 0;
    pace->allowance = BURST_BYTES;
    atomic_store(&pace->done_bytes, 0);
}

void pace_step(struct pace *pace, uint64_t took_us, uint64_t now_us)
{
    const uint64_t rate = atomic_load(&pace->rate);
    const bool slowed = pace->before_us > 0 &&
                        took_us > pace->before_us + pace->before_us / SLACK_DIVIDE;
    uint64_t next = slowed ? rate / 2 : rate + rate / 4;
    if (next < CAIRN_PACE_LEAST) next = CAIRN_PACE_LEAST;
    if (next > UINT64_MAX / 4) next = UINT64_MAX / 4;
    atomic_store(&pace->rate, next);
    atomic_store(&pace->step_us, now_us);
}

/* True if no step has ended for a long time. */
static bool is_idle(const struct pace *pace, uint64_t now_us)
{
    const uint64_t last = atomic_load(&pace->step_us), steps = IDLE_STEPS * pace->before_us;
    return last == 0 || now_us > last + (steps > IDLE_US ? steps : IDLE_US);
}

/* Returns the bytes a second with which the rest is written by the deadline. */
static double asked_rate(const struct pace *pace, uint64_t now_us)
{
    const uint64_t done = atomic_load(&pace->done_bytes);
    const uint64_t left = pace->total_bytes > done ? pace->total_bytes - done : 0;
    return (double)left / (double)(pace->deadline_us - now_us) * 1e6;
}

bool pace_presses(const struct pace *pace, uint64_t now_us)
{
    return atomic_load(&pace->hurry) || now_us >= pace->deadline_us ||
           asked_rate(pace, now_us) > (double)atomic_load(&pace->rate);
}

bool pace_is_free(const struct pace *pace, uint64_t now_us)
{
    return atomic_load(&pace->hurry) || is_idle(pace, now_us) || now_us >= pace->deadline_us;
}

uint64_t pace_rate(const struct pace *pace, uint64_t now_us)
{
    const uint64_t rate = atomic_load(&pace->rate);
    if (pace_is_free(pace, now_us)) return CAIRN_PACE_FREE;
    const double asked = asked_rate(pace, now_us);
    return asked > (double)rate ? (uint64_t)asked : rate;
}

uint64_t pace_rest_us(struct pace *pace, uint64_t bytes, uint64_t now_us)
{
    const uint64_t rate = pace_rate(pace, now_us);
    const uint64_t most = bytes > BURST_BYTES ? bytes : BURST_BYTES;
    if (pace->counted_us == 0) pace->counted_us = now_us;
    const double earned = (double)(now_us - pace->counted_us) / 1e6 * (double)rate;
    pace->counted_us = now_us;
    if (earned >= (double)(most - (pace->allowance < most ? pace->allowance : most)))
        pace->allowance = most;
    else
        pace->allowance += (uint64_t)earned;
    if (rate == CAIRN_PACE_FREE || pace->allowance >= bytes) {
        pace->allowance -= pace->allowance < bytes ? pace->allowance : bytes;
        atomic_fetch_add(&pace->done_bytes, bytes);
        return 0;
    }
    const double rest = (double)(bytes - pace->allowance) / (double)rate * 1e6 + 1;
    return rest < (double)PACE_REST_MAX_US ? (uint64_t)rest : PACE_REST_MAX_US;
}
