#include "server/shard/need.h"

#include "gpu/kernel/list.h"
#include "proto/fabric/backend.h"
#include "proto/geometry/layout.h"
#include "proto/spec/spec.h"
#include "server/core/decision.h"
#include "server/shard/shard.h"

#define SMALL_SLOTS     64
#define SMALL_SLOTS_ALL 16384 /* the most for all possible workers together */
#define PLACES_ALL      16384 /* the same limit, for chunks that are read where they lie */
#define LIST_WARPS      2048  /* this many in one list keep a large card busy */

#define ALIGN_UP(n, to) (((n) + (to)-1) / (to) * (to))

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

/* Adds the planes of an extent: its part on a device to device_bytes ([CAIRN_PLANES], the bytes so far),
 * and the rest to the state. */
static void add_planes(const struct local_extent *extent, const struct form *form,
                       struct need *need, uint64_t *device_bytes)
{
    const uint64_t before = extent_before(extent, need->host_from);
    for (enum plane p = 0; p < CAIRN_PLANES; p++) {
        (void)plane_place(form, p, before, &device_bytes[p]);
        need->memory.state += form_bytes(form, p, extent->elem_count - before);
    }
}

/* Returns how many small chunks a worker may have in flight in addition to its window: all small chunks of
 * the job, because each takes little memory, and because each window full of small chunks takes a round
 * trip. The number is less if there may be very many workers. */
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

/* Returns the least number of chunks that the job has in any layout. Re-shardings may cut the job into more
 * chunks. */
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

/* Returns how many chunks a worker of this host may have in flight in addition to its landing slots. These
 * chunks are read where they lie, so they take no memory here. A card works on all chunks that have arrived
 * by then as one list, and a list of a few chunks leaves most of the card idle. The number is at most all
 * chunks of the job, and less if there may be very many workers, because each slot takes room in tables. */
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

/* Returns the elements of the largest chunk that any layout can give a shard. A shard with room for such a
 * chunk can continue in any later layout. */
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

static void add_extent(const struct shard_map *map, size_t number, struct form *form,
                       struct need *need, uint64_t *device_bytes)
{
    const struct local_extent *extent = &map->extents[number];
    form->wire_byte = published_place(map, number, dtype_size((int)form->wire), &need->wire_bytes);
    add_planes(extent, form, need, device_bytes);
    if (form->trained) need->step.chunk_count += (uint32_t)extent->chunk_count;
}

static void make_room(const struct job_spec_data *spec, struct need *need)
{
    if (need->host_from != 0 && need->host_from != CAIRN_PLANES_ALL) return; // its layout is fixed
    for (size_t t = 0; t < spec->tensor_count; t++) {
        const uint64_t elems = geometry_of(&spec->tensors[t].shape).elems;
        if (need->host_from == 0) need->room_elems += 2 * elems;
        need->room_wire_bytes += 2 * elems * dtype_size((int)spec->tensors[t].wire);
    }
    need->room_wire_bytes += CAIRN_SEGMENT_BYTES; // whole tensors begin at multiples of 64 bytes
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

static void size(struct need *need, const struct shard_map *map, uint64_t chunk_elems_max)
{
    const struct step_config *step = &need->step;
    need->slot_count = step->member_max * step->window;
    const uint32_t window = step->window - step->small - step->in_place;
    const uint32_t large = step->member_max * window;
    need->put_max = large < CAIRN_SHARD_PUTS_MAX ? large : CAIRN_SHARD_PUTS_MAX;
    need->reply_bytes = (size_t)chunk_elems_max * sizeof(float);
    // Slots are staggered, because contributions to one chunk are folded side by side.
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
        .published = 2 * (CAIRN_PUBLISHED_PAGE_BYTES + need->wire_bytes),
        .staging = (uint64_t)need->put_max * need->put_bytes,
        .tables = table_bytes(need, map),
    };
}

/* Returns host_from for a map of which at least `host_fraction` of the elements lies in host memory, and
 * the rest on a device. host_from is the beginning of the chunk in which this fraction begins. */
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
        add_extent(map, i, form, &need, device_bytes);
    }
    if (step_bytes(&need.step) == 0 || member_max > CAIRN_SPEC_WORKERS_MAX) {
        return fail_with(why, CAIRN_ERR_INVALID, "%u members with a window of %u chunks",
                         member_max, spec->window);
    }
    for (enum plane p = 0; p < CAIRN_PLANES; p++) need.memory.device += device_bytes[p];
    need.memory.device = plane_units(need.memory.device);
    if (need.host_from == CAIRN_PLANES_ALL) need.memory.device += 2 * plane_units(need.wire_bytes);
    make_room(spec, &need);
    size(&need, map, largest_chunk(spec, map->chunk_leaves));
    *need_out = need;
    return CAIRN_OK;
}
