/* Admission: all memory of a job is estimated, admitted, taken and given back here (memory.h has the
 * picture). */
#include "server/shard/memory.h"

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu/kernel/list.h"
#include "proto/fabric/backend.h"
#include "proto/spec/spec.h"
#include "server/base/daemon.h"
#include "server/core/decision.h"
#include "server/shard/part.h"
#include "server/shard/read.h"
#include "server/shard/shard.h"

/* ==== need ==== */

#define SMALL_SLOTS     64
#define SMALL_SLOTS_ALL 16384 /* the most small slots that all possible workers together have */
/* the most slots for chunks that are read where they lie, of all possible workers together */
#define PLACES_ALL 16384
#define LIST_WARPS 2048 /* so many warps in one list keep a large card busy */

/* ---- the extents ---- */

static cairn_status judge_form(const struct job_spec_data *spec, size_t number, struct form *form,
                               struct sentence *why)
{
    const struct tensor_spec *tensor = &spec->tensors[number];
    *form = (struct form) { .trained = tensor->kind == CAIRN_TRAINED,
                            .wire = tensor->wire,
                            .master = tensor->master,
                            .planes = spec_planes(spec, number) };
    if (!wire_dtype_ok((int)tensor->wire) && tensor->wire != tensor->master) {
        return fail_with(why, CAIRN_ERR_UNSUPPORTED, "tensor %s: wire dtype %s", tensor->name,
                         dtype_label((int)tensor->wire));
    }
    if (!form->trained) return CAIRN_OK;
    form->group = (uint32_t)spec_find_group(spec, tensor->group);
    form->planes |= 1u << CAIRN_PLANE_SUM;
    return CAIRN_OK;
}

/* Adds the bytes of an extent's planes: the part on a device to device_bytes, which is
 * [CAIRN_PLANES], and the rest to need->memory.state. */
static void add_planes(const struct local_extent *extent, const struct form *form,
                       struct need *need, uint64_t *device_bytes)
{
    const uint64_t before = extent_before(extent, need->host_from);
    for (enum plane p = 0; p < CAIRN_PLANES; p++) {
        (void)plane_place(form, p, before, &device_bytes[p]);
        need->memory.state += form_bytes(form, p, extent->elem_count - before);
    }
}

/* Returns how many small chunks a worker may have in flight in addition to its window. Usually
 * these are all small chunks of the job, because each takes little memory, and because otherwise
 * each window of small chunks would take a round trip. The number is less if there may be very many
 * workers. */
static uint32_t small_slots(const struct job_spec_data *spec, uint32_t member_max)
{
    uint32_t most = SMALL_SLOTS, count = 0;
    if (member_max > SMALL_SLOTS_ALL / most) most = SMALL_SLOTS_ALL / member_max;
    if (most > CAIRN_SPEC_WINDOW_MAX - spec->window) most = CAIRN_SPEC_WINDOW_MAX - spec->window;
    for (size_t t = 0; t < spec->tensor_count && count < most; t++) {
        const uint64_t elems = geometry_of(&spec->tensors[t].shape).elems;
        count += spec->tensors[t].kind == CAIRN_TRAINED &&
                 elems * sizeof(float) <= CAIRN_CHUNK_SMALL;
    }
    return count;
}

/* Returns the least number of trained chunks that the job has in any layout. Changes of the layout
 * may cut the job into more chunks. */
static uint64_t count_chunks(const struct job_spec_data *spec, uint32_t chunk_leaves)
{
    uint64_t count = 0;
    for (size_t t = 0; t < spec->tensor_count; t++) {
        const struct geometry geometry = geometry_of(&spec->tensors[t].shape);
        if (spec->tensors[t].kind == CAIRN_TRAINED)
            count += (geometry.leaf_count - 1) / chunk_leaves + 1;
    }
    return count;
}

/* Returns how many chunks a worker of this host may have in flight in addition to its landing
 * slots. These chunks are read where they lie, so they take no memory here. They are needed because
 * a card works on all chunks that have arrived as one list, and a list of a few chunks leaves most
 * of the card idle. The number is not more than the chunks of the job, and less if there may be
 * very many workers, because each slot takes room in tables. */
static uint32_t places(const struct job_spec_data *spec, uint32_t chunk_leaves, uint32_t member_max,
                       uint32_t landing)
{
    const uint64_t warps = (chunk_leaves + CAIRN_PIECE_LEAVES - 1) / CAIRN_PIECE_LEAVES;
    const uint64_t limits[] = { LIST_WARPS / warps, count_chunks(spec, chunk_leaves),
                                PLACES_ALL / (member_max > 0 ? member_max : 1),
                                CAIRN_SPEC_WINDOW_MAX - landing };
    uint64_t most = limits[0];
    for (size_t i = 1; i < sizeof limits / sizeof *limits; i++)
        if (limits[i] < most) most = limits[i];
    return (uint32_t)most;
}

/* Returns how many elements the largest chunk has that any layout can give a shard. A shard with
 * room for such a chunk can continue in any later layout. */
static uint64_t largest_chunk(const struct job_spec_data *spec, uint32_t chunk_leaves)
{
    const uint64_t most = (uint64_t)chunk_leaves * CAIRN_LEAF_ELEMS;
    uint64_t largest = 0;
    for (size_t t = 0; t < spec->tensor_count; t++) {
        const uint64_t elems = geometry_of(&spec->tensors[t].shape).elems;
        if (elems > largest) largest = elems;
    }
    return largest < most ? largest : most;
}

static void add_extent(const struct job_spec_data *spec, const struct shard_map *map, size_t number,
                       struct form *form, struct need *need, uint64_t *device_bytes)
{
    const struct local_extent *extent = &map->extents[number];
    need->memory.former += former_extent_bytes(spec, extent, form);
    form->wire_byte = published_place(map, number, dtype_size((int)form->wire), &need->wire_bytes);
    add_planes(extent, form, need, device_bytes);
    if (form->trained) need->step.chunk_count += (uint32_t)extent->chunk_count;
}

static void make_room(const struct job_spec_data *spec, struct need *need)
{
    // the layout of such a job does not change
    if (need->host_from != 0 && need->host_from != CAIRN_PLANES_ALL) return;
    for (size_t t = 0; t < spec->tensor_count; t++) {
        const uint64_t elems = geometry_of(&spec->tensors[t].shape).elems;
        if (need->host_from == 0) need->room_elems += 2 * elems;
        need->room_wire_bytes += 2 * elems * dtype_size((int)spec->tensors[t].wire);
    }
    // for gaps: whole tensors begin at multiples of 64 bytes
    need->room_wire_bytes += CAIRN_SEGMENT_BYTES;
}

/* ---- the bytes ---- */

static uint64_t table_bytes(const struct need *need, const struct shard_map *map)
{
    const uint64_t grad_chunks = need->step.chunk_count;
    const uint64_t folds = need->slot_count < grad_chunks ? need->slot_count : grad_chunks;
    return step_bytes(&need->step) + need->slot_count * sizeof(struct collector_slot) +
           folds * sizeof(struct fold) +
           step_actions_max(&need->step) * sizeof(struct step_action) + map->chunk_count * 32 +
           map->extent_count * 128 + need->step.member_max * CAIRN_STEP_HOLDS_BYTES(grad_chunks) +
           grad_chunks * (sizeof(struct sums) + sizeof(bool));
}

/* Former versions have what updates and writes of buffers change. */
static bool is_saved(const struct job_spec_data *spec, const struct local_extent *extent)
{
    const int kind = (int)spec->tensors[extent->tensor].kind;
    return kind == CAIRN_TRAINED || kind == CAIRN_BUFFER;
}

uint64_t former_extent_bytes(const struct job_spec_data *spec, const struct local_extent *extent,
                             const struct form *form)
{
    uint64_t bytes = 0;
    if (!is_saved(spec, extent)) return 0;
    for (int p = 0; p < CAIRN_PLANE_COUNT; p++)
        if (form_stores(form, p))
            bytes += form_bytes(form, (enum plane)p, extent->elem_count) +
                     extent->chunk_count * CAIRN_FORMER_LINE;
    return bytes;
}

uint64_t former_bytes(const struct job_spec_data *spec, const struct shard_map *map,
                      uint64_t slot_bytes)
{
    const uint64_t payload = CAIRN_PAYLOAD_MAX(spec->group_count, spec->tensor_count,
                                               spec->client_state_max);
    const uint64_t slot = ALIGN_UP(slot_bytes, CAIRN_FORMER_LINE) + payload + map->chunk_count +
                          sizeof(struct former_slot);
    if (spec->policy.keep_versions == 0) return 0;
    return spec->policy.keep_versions * slot + payload + (map->chunk_count + 1) * sizeof(uint64_t);
}

static void size(const struct job_spec_data *spec, struct need *need, const struct shard_map *map,
                 uint64_t chunk_elems_max)
{
    const struct step_config *step = &need->step;
    need->slot_count = step->member_max * step->window;
    const uint32_t window = step->window - step->small - step->in_place;
    const uint32_t large = step->member_max * window;
    need->put_max = large < CAIRN_SHARD_PUTS_MAX ? large : CAIRN_SHARD_PUTS_MAX;
    need->reply_bytes = (size_t)chunk_elems_max * sizeof(float);
    // Slots begin at different places in a page, because contributions to one chunk are read side
    // by side by a fold.
    need->slot_bytes = ALIGN_UP(need->reply_bytes, CAIRN_STAGGER_PAGE) + CAIRN_STAGGER_BYTES;
    const size_t small = ALIGN_UP(CAIRN_CHUNK_SMALL, CAIRN_STAGGER_PAGE) + CAIRN_STAGGER_BYTES;
    need->small_bytes = small < need->slot_bytes ? small : need->slot_bytes;
    need->put_bytes = need->slot_bytes + (size_t)ALIGN_UP(CAIRN_BOX_BYTES_MAX, 4096u);
    need->landing_bytes = (uint64_t)window * need->slot_bytes +
                          (uint64_t)step->small * need->small_bytes;
    need->worker_staging_bytes = reply_memory_bytes(need->reply_bytes);
    need->memory = (struct memory_need) {
        .state = need->memory.state,
        .device = need->memory.device,
        .former = former_bytes(spec, map, need->memory.former),
        .published = 2 * (CAIRN_PUBLISHED_PAGE_BYTES + need->wire_bytes),
        .staging = (uint64_t)need->put_max * need->put_bytes,
        .tables = table_bytes(need, map),
    };
}

/* Returns host_from for a job of which at least `host_fraction` of the elements are to lie in host
 * memory. host_from is the beginning of the chunk in which this part of the elements begins. */
static uint64_t planes_cut(const struct shard_map *map, double host_fraction)
{
    const uint64_t from = (uint64_t)((1 - host_fraction) * (double)map->elem_count);
    if (host_fraction <= 0) return CAIRN_PLANES_ALL;
    if (map->chunk_count == 0) return 0;
    uint64_t low = 0, high = map->chunk_count; // the chunk is in [low, high)
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        if (shard_map_chunk(map, middle).local_elem <= from)
            low = middle;
        else
            high = middle;
    }
    return shard_map_chunk(map, low).local_elem;
}

cairn_status need_of(const struct job_spec_data *spec, const struct shard_map *map,
                     uint32_t member_max, bool has_device, struct form *forms_out,
                     struct need *need_out, struct sentence *why)
{
    uint64_t device_bytes[CAIRN_PLANES] = { 0 };
    const uint32_t small = small_slots(spec, member_max);
    const uint32_t in_place = places(spec, map->chunk_leaves, member_max, spec->window + small);
    struct need need = {
        .host_from = has_device ? planes_cut(map, spec->offload_fraction) : 0,
        .step = { .window = spec->window + small + in_place,
                  .small = small,
                  .in_place = in_place,
                  .member_max = member_max,
                  .payload_bytes_max = CAIRN_PAYLOAD_MAX(spec->group_count, spec->tensor_count,
                                                         spec->client_state_max) },
    };
    for (size_t i = 0; i < map->extent_count; i++) {
        struct form one, *form = forms_out != NULL ? &forms_out[i] : &one;
        CAIRN_TRY(judge_form(spec, map->extents[i].tensor, form, why));
        add_extent(spec, map, i, form, &need, device_bytes);
    }
    if (step_bytes(&need.step) == 0 || member_max > CAIRN_SPEC_WORKERS_MAX) {
        return fail_with(why, CAIRN_ERR_INVALID, "%u members with a window of %u chunks",
                         member_max, spec->window);
    }
    for (enum plane p = 0; p < CAIRN_PLANES; p++) need.memory.device += device_bytes[p];
    need.memory.device = plane_units(need.memory.device);
    if (need.host_from == CAIRN_PLANES_ALL) need.memory.device += 2 * plane_units(need.wire_bytes);
    make_room(spec, &need);
    size(spec, &need, map, largest_chunk(spec, map->chunk_leaves));
    *need_out = need;
    return CAIRN_OK;
}

/* ==== budget ==== */

cairn_status budget_take(struct budget *budget, uint64_t bytes, const char *what,
                         struct sentence *why)
{
    uint64_t left = budget->limit_bytes - budget->used_bytes;
    if (bytes > left) {
        return fail_with(why, CAIRN_ERR_NO_MEMORY,
                         "%s needs %" PRIu64 " bytes, and %" PRIu64 " of memory.limit = %" PRIu64
                         " are left: raise "
                         "memory.limit, or add shards",
                         what, bytes, left, budget->limit_bytes);
    }
    budget->used_bytes += bytes;
    return CAIRN_OK;
}

cairn_status shard_job_take(struct shard_job *job, uint64_t *kind, uint64_t bytes, const char *what,
                            struct sentence *why)
{
    const cairn_status status = budget_take(&job->shard->memory.budget, bytes, what, why);
    if (status == CAIRN_OK) *kind += bytes;
    return status;
}

void shard_job_give(struct shard_job *job, uint64_t *kind, uint64_t bytes)
{
    assert(bytes <= *kind);
    budget_give(&job->shard->memory.budget, bytes);
    *kind -= bytes;
}

void *counted_malloc(struct shard_job *job, uint64_t *kind, size_t bytes, const char *what,
                     struct sentence *why)
{
    if (shard_job_take(job, kind, bytes, what, why) != CAIRN_OK) return NULL;
    void *memory = malloc(bytes);
    if (memory != NULL) return memory;
    shard_job_give(job, kind, bytes);
    sentence_set(why, "out of memory for %s", what);
    return NULL;
}

void counted_free(struct shard_job *job, uint64_t *kind, void *memory, size_t bytes)
{
    if (memory == NULL) return;
    shard_job_give(job, kind, bytes);
    free(memory);
}

/* The kinds of struct memory_need that lie in host memory. */
#define HOST_KINDS(X) X(state) X(published) X(landing) X(staging) X(tables) X(former)

uint64_t memory_sum(const struct memory_need *memory)
{
#define ADD(kind) +memory->kind
    return 0 HOST_KINDS(ADD);
#undef ADD
}

cairn_status shard_job_take_all(struct shard_job *job, const struct memory_need *bytes,
                                const char *what, struct sentence *why)
{
    CAIRN_TRY(budget_take(&job->shard->memory.budget, memory_sum(bytes), what, why));
#define TAKE(kind) job->memory.kind += bytes->kind;
    HOST_KINDS(TAKE)
#undef TAKE
    return CAIRN_OK;
}

void shard_job_give_all(struct shard_job *job, const struct memory_need *bytes)
{
#define GIVE(kind) shard_job_give(job, &job->memory.kind, bytes->kind);
    HOST_KINDS(GIVE)
#undef GIVE
}

struct memory_need memory_beyond(const struct memory_need *next, const struct memory_need *now)
{
    struct memory_need beyond = { 0 };
#define BEYOND(kind) \
    if (next->kind > now->kind) beyond.kind = next->kind - now->kind;
    HOST_KINDS(BEYOND)
#undef BEYOND
    return beyond;
}

/* ---- a job ---- */

/* Judges whether the device has device_bytes free now. Other processes may take these bytes before
 * the planes are made; then making the planes fails. */
cairn_status shard_job_judge_device(const struct shard_job *job, uint64_t device_bytes,
                                    uint64_t host_bytes, struct sentence *why)
{
    if (device_bytes == 0) return CAIRN_OK;
    struct home *home = job->shard->device.home;
    const uint64_t free_bytes = home_free_bytes(home);
    const uint64_t staging = compute_staging_left(&job->shard->device);
    struct home_memory probe = { 0 };
    if (device_bytes <= free_bytes && staging <= free_bytes - device_bytes) return CAIRN_OK;
    const cairn_status status = home_memory_open(home, "probe", 1, &probe, why);
    home_memory_close(&probe);
    if (status == CAIRN_ERR_IO)
        return status; // nothing is free on a failed device; `why` says that it failed
    return fail_with(
        why, CAIRN_ERR_NO_MEMORY,
        "job %s needs %" PRIu64 " bytes of %s for its state here, and streams %" PRIu64
        " for staging: %" PRIu64 " of the device's %" PRIu64 " are free; it also needs %" PRIu64
        " bytes of host memory: %" PRIu64 " of memory.limit are free",
        job->spec.name, device_bytes, home_info(home)->device, staging, free_bytes,
        home_info(home)->total_bytes, host_bytes,
        (job->shard->memory.budget.limit_bytes - job->shard->memory.budget.used_bytes));
}

uint64_t admit_least_bytes(const struct shard_job *job, const struct need *need)
{
    return memory_sum(&need->memory) +
           job->spec.workers_min * (need->landing_bytes + need->worker_staging_bytes);
}

/* Returns a smaller chunk_leaves with which the job fits. Tries one half of the present value, then
 * one quarter, and so on. Smaller chunks mean more chunks, and so larger tables. Returns 0 if the
 * job fits with none of these values. */
static uint32_t leaves_that_fit(const struct shard_job *job, const struct need *need, uint64_t room)
{
    const struct memory_need *memory = &need->memory;
    const uint64_t leaf_bytes = CAIRN_LEAF_ELEMS * sizeof(float);
    // The last leaf of a chunk may be incomplete.
    const uint64_t now = (job->replies.bytes - 1) / leaf_bytes + 1;
    const uint64_t replies = job->spec.workers_min;
    const uint64_t chunks = replies * (job->spec.window + 1) + job->puts.max;
    const uint64_t small = replies * job->landing.small * (uint64_t)job->landing.small_bytes;
    const uint64_t boxes = job->puts.max * (uint64_t)(job->puts.bytes - job->landing.slot_bytes) +
                           small + chunks * CAIRN_STAGGER_BYTES + replies * reply_memory_bytes(0);
    for (uint64_t leaves = now / 2; leaves > 0; leaves /= 2)
        if (memory->state + memory->former + memory->published + boxes +
                chunks * leaves * leaf_bytes + memory->tables * ((now - 1) / leaves + 1) <=
            room)
            return (uint32_t)leaves;
    return 0;
}

static uint32_t window_that_fits(const struct shard_job *job, const struct need *need,
                                 uint64_t room)
{
    const uint64_t per_window = (uint64_t)job->spec.workers_min * job->landing.slot_bytes;
    for (uint32_t window = job->spec.window / 2; window > 0; window /= 2)
        if (admit_least_bytes(job, need) - per_window * (job->spec.window - window) <= room)
            return window;
    return 0;
}

/* Adds to `why` how the job would fit into the room that is left, with smaller chunks or with fewer
 * chunks in flight. */
static void advise(const struct shard_job *job, const struct need *need, struct sentence *why)
{
    const uint64_t room = job->shard->memory.budget.limit_bytes -
                          job->shard->memory.budget.used_bytes;
    const uint32_t leaves = leaves_that_fit(job, need, room);
    const uint32_t window = window_that_fits(job, need, room);
    if (leaves > 0)
        sentence_add(why, "; it fits with chunk_leaves %u (now %u)", leaves,
                     job->spec.chunk_leaves);
    if (window > 0)
        sentence_add(why, "%s window %u (now %u)", leaves > 0 ? ", or" : "; it fits with", window,
                     job->spec.window);
}

cairn_status admit_part(struct shard_job *job, const struct need *need, struct sentence *why)
{
    struct budget *budget = &job->shard->memory.budget;
    const uint64_t bytes = memory_sum(&need->memory);
    char what[CAIRN_NAME_MAX + 200];
    CAIRN_TRY(shard_job_judge_device(job, need->memory.device, admit_least_bytes(job, need), why));
    snprintf(what, sizeof what,
             "job %s (%" PRIu64 " elements here: state %" PRIu64 " bytes%s, published %" PRIu64
             ", landing %u x %zu bytes "
             "and a reply each for %u worker%s)",
             job->spec.name, job->view->table.map.elem_count,
             (need->memory.state + need->memory.device),
             need->memory.device > 0 ? " on its device" : "", need->memory.published,
             job->spec.workers_min * job->spec.window, job->landing.slot_bytes,
             job->spec.workers_min, job->spec.workers_min == 1 ? "" : "s");
    cairn_status status = budget_take(budget, admit_least_bytes(job, need), what, why);
    if (status == CAIRN_OK) {
        budget_give(budget, admit_least_bytes(job, need) - bytes);
        job->memory = need->memory;
    } else {
        advise(job, need, why);
    }
    return status;
}

/* ==== reserve ==== */

#define PIECE_BYTES ((uint64_t)64 << 20) /* how many bytes of pages a thread makes at a time */
/* a smaller gap between ranges is reserved, too, because it lies in the same page */
#define NEIGHBOUR_BYTES 4096
#define LOCK_TIMEOUT_MS \
    900000 /* other shards of the host may take memory first, which takes a second for some 10 GB */

struct piece {
    const struct arena *arena; /* borrowed */
    uint64_t from, bytes;
};

struct reserve {
    struct task task; /* judges the request, then makes the pages */
    struct reserve_request request;
    struct reserve *next; /* in shard->memory.reserves, of which the first is worked on */
    /* owned: pages that this reserve gives back, and takes none; NULL: it takes memory */
    struct shared_span *spans;
    struct piece *pieces; /* owned */
    size_t piece_count, piece_capacity;
    atomic_bool canceled;
    atomic_bool failed;      /* a page could not be made */
    atomic_bool is_unpinned; /* a page could not be pinned; `unpinned` has the first reason */
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

/* True if the bytes of the arena from `from` on follow the last piece, with at most a small gap. */
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
    while (from < end) { // cuts into pieces at fixed places, so that no large page is cut
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

/* Takes the host's lock. If the lock cannot be used on this host, goes on without it; then this
 * shard does not see how much memory other shards are about to take. */
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

/* Ends the first reserve, and begins the next one. The next one begins after `done`, so that it
 * sees how much memory `done` has taken. */
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

/* Begins the first reserve. If it wants no memory, it takes no lock and makes no pages. */
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

/* Adds the reserve at the end of the list, and begins it if it is the only one. */
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

/* Cancels the reserves of the job, so that their `done` is called soon. */
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

/* ==== workers ==== */

/* The landing slots of the workers. */

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

/* Returns how many slots all workers have together. The n-th worker of a round has the n-th
 * `window` slots (server/core/step.h). */
static uint32_t slots_wanted(const struct shard_job *job)
{
    uint64_t workers = 0;
    for (size_t i = 0; i < job->members.capacity; i++)
        workers += job->members.list[i] != NULL &&
                   job->members.list[i]->role == CAIRN_ROLE_WIRE_WORKER;
    const uint64_t slots = workers * job->landing.window;
    return slots < job->collector.slot_count ? (uint32_t)slots : job->collector.slot_count;
}

cairn_status slots_count(struct shard_job *job, struct sentence *why)
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

/* Reserves the slots of all workers that have joined by now. A later request of one of these
 * workers then has nothing left to reserve. */
static cairn_status add_slots(struct reserve *reserve, struct shard_job *job)
{
    job->landing.asked = slots_wanted(job);
    if (job->landing.asked <= job->landing.made) return CAIRN_OK;
    return reserve_add(reserve, &job->landing.arena, landing_at(&job->landing, job->landing.made),
                       bytes_between(job, job->landing.made, job->landing.asked));
}

cairn_status slots_begin(const struct reserve_request *request, bool *waits_out,
                         struct sentence *why)
{
    struct reserve_request whole = *request;
    whole.what = "landing memory of the workers";
    whole.prepare = add_slots;
    *waits_out = slots_wanted(request->job) > request->job->landing.made;
    return *waits_out ? reserve_begin(&whole, why) : CAIRN_OK;
}

/* True if nothing is landing, nothing is being folded and no page is being made, so that slots may
 * be given back. */
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
    shard->up->memory_back(shard);
}

/* Returns how many of the slots after `keep` this iteration of the loop may give back, the last
 * ones first. This is limited by the bytes that one iteration may give back, but the first call in
 * an iteration returns at least 1. */
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
