/* A run. Work items are split into plans, and while one slice is executed the next slice is filled. If a
 * list is begun before the previous list is finished, it goes on in the same ring of slices. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/cuda/cuda.h"
#include "proto/base/mutant.h"

/* ==== plan ==== */

static const size_t item_bytes[CAIRN_KERNEL_COUNT] = {
#define CAIRN_KERNEL_ITEM(name, item, warps, size) sizeof(item),
    CAIRN_KERNELS(CAIRN_KERNEL_ITEM)
#undef CAIRN_KERNEL_ITEM
};

static uint64_t add_fold(struct cuda_plan *plan, const struct fold_work *fold,
                         const struct cuda_plan_cursor *cursor);
static uint64_t add_fold_sums(struct cuda_plan *plan, const struct leaf_fold *fold,
                              struct cuda_plan_cursor *cursor);

static size_t round_up(size_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

/* Empties the plan. */
static void cuda_plan_clear(struct cuda_plan *plan)
{
    for (int i = 0; i < CAIRN_KERNEL_COUNT; i++)
        plan->kernels[i].count = plan->kernels[i].pieces = 0;
    plan->in.used = plan->out.used = 0;
    plan->in.top = plan->out.top = plan->bytes;
    plan->item_bytes = plan->in_count = plan->out_count = plan->end_count = 0;
    plan->counts = false;
}

/* Initializes a plan. Its constants, and the host and device memory of its sides, are set.
 * CAIRN_ERR_NO_MEMORY: the caller releases the plan. */
static cairn_status cuda_plan_init(struct cuda_plan *plan)
{
    bool ok = true;
    for (int i = 0; i < CAIRN_KERNEL_COUNT; i++) {
        plan->kernels[i].list = malloc(CAIRN_CUDA_PLAN_PARTS * item_bytes[i]);
        ok = ok && plan->kernels[i].list != NULL;
    }
    plan->copies_in = malloc(CAIRN_CUDA_PLAN_PARTS * sizeof *plan->copies_in);
    plan->copies_out = malloc(CAIRN_CUDA_PLAN_PARTS * sizeof *plan->copies_out);
    plan->ends = malloc(CAIRN_CUDA_PLAN_PARTS * sizeof *plan->ends);
    cuda_plan_clear(plan);
    return ok && plan->copies_in != NULL && plan->copies_out != NULL && plan->ends != NULL
               ? CAIRN_OK
               : CAIRN_ERR_NO_MEMORY;
}

static void cuda_plan_release(struct cuda_plan *plan)
{
    for (int i = 0; i < CAIRN_KERNEL_COUNT; i++) free(plan->kernels[i].list);
    free(plan->copies_in);
    free(plan->copies_out);
    free(plan->ends);
    *plan = (struct cuda_plan) { 0 };
}

static bool cuda_plan_is_empty(const struct cuda_plan *plan)
{
    return plan->item_bytes == 0 && plan->in_count == 0 && plan->out_count == 0;
}

/* ---- room ---- */

/* True if the address lies in the home. */
static bool cuda_plan_has(const struct cuda_plan *plan, const void *address)
{
    return (uint64_t)(uintptr_t)address - plan->space.at < plan->space.bytes;
}

static size_t cuda_plan_in_room(const struct cuda_plan *plan)
{
    const size_t taken = plan->in.used + plan->item_bytes + 16 * CAIRN_KERNEL_COUNT;
    return taken < plan->in.top ? plan->in.top - taken : 0;
}

static size_t cuda_plan_out_room(const struct cuda_plan *plan)
{
    return plan->out.top - plan->out.used;
}

/* Adds `bytes`, at a multiple of 16, to [0, used) of a side, and returns their offset. */
static size_t cuda_plan_take(struct cuda_plan_side *side, size_t bytes)
{
    const size_t offset = side->used;
    side->used += round_up(bytes);
    assert(side->used <= side->top);
    return offset;
}

static size_t cuda_plan_take_top(struct cuda_plan_side *side, size_t bytes)
{
    assert(round_up(bytes) <= side->top - side->used);
    side->top -= round_up(bytes);
    return side->top;
}

/* True if the plan has room for one more item of the kernel, with its copies and ends. */
static bool cuda_plan_has_parts(const struct cuda_plan *plan, enum kernel_number kernel)
{
    return plan->kernels[kernel].count < CAIRN_CUDA_PLAN_PARTS &&
           plan->end_count + 2 <= CAIRN_CUDA_PLAN_PARTS &&
           cuda_plan_in_room(plan) >= CAIRN_CUDA_PLAN_ITEM_ROOM;
}

/* Returns how many of `left` elements (or leaves, or bytes), each of `each` bytes, fit into `room`; if
 * `each` is 0, all fit. If not all fit, the number is a multiple of `unit`. A smaller part is returned only
 * for an empty plan, so that no small part stands at the end of a plan. */
static uint64_t cuda_plan_fit(const struct cuda_plan *plan, uint64_t left, size_t room,
                              size_t overhead, size_t each, uint64_t unit)
{
    if (room < overhead) return 0;
    if (each == 0 || left <= (room - overhead) / each) return left;
    const uint64_t most = (room - overhead) / each;
    if (most >= unit) return most - most % unit;
    if (!cuda_plan_is_empty(plan)) return 0;
    return most >= 8 ? most - most % 8 : most;
}

/* ---- parts ---- */

static void cuda_plan_copy(struct cuda_plan_copy *copies, size_t *count, uint64_t device,
                           void *host, size_t bytes)
{
    assert(*count < CAIRN_CUDA_PLAN_PARTS);
    copies[(*count)++] = (struct cuda_plan_copy) { device, host, bytes };
}

static struct cuda_plan_end *cuda_plan_new_end(struct cuda_plan *plan)
{
    assert(plan->end_count < CAIRN_CUDA_PLAN_PARTS);
    return &plan->ends[plan->end_count++];
}

/* Adds an item, which has `pieces` pieces, and sets its first_piece. */
static void cuda_plan_item(struct cuda_plan *plan, enum kernel_number kernel, void *item,
                           uint64_t pieces)
{
    struct cuda_plan_items *items = &plan->kernels[kernel];
    const size_t bytes = item_bytes[kernel];
    if (pieces == 0) return;
    assert(items->count < CAIRN_CUDA_PLAN_PARTS);
    memcpy(item, &items->pieces, sizeof items->pieces); // first_piece is every item's first field
    memcpy(items->list + items->count * bytes, item, bytes);
    items->count++;
    items->pieces += pieces;
    plan->item_bytes += bytes;
}

/* Returns the address of the data on the device. If the data is in host memory, the plan copies it to the
 * device. */
static uint64_t cuda_plan_bring(struct cuda_plan *plan, const void *data, size_t bytes)
{
    if (cuda_plan_has(plan, data)) return (uint64_t)(uintptr_t)data;
    if (plan->in_count < CAIRN_CUDA_PLAN_PARTS && plan->is_pinned(plan->cuda, data, bytes)) {
        const uint64_t device = plan->in.device + cuda_plan_take_top(&plan->in, bytes);
        cuda_plan_copy(plan->copies_in, &plan->in_count, device, (void *)(uintptr_t)data, bytes);
        return device;
    }
    const size_t offset = cuda_plan_take(&plan->in, bytes);
    memcpy(plan->in.host + offset, data, bytes);
    return plan->in.device + offset;
}

/* Returns the address at which the device writes the data for `to`. If `to` is in host memory, the data is
 * copied there afterwards. */
static uint64_t cuda_plan_give(struct cuda_plan *plan, void *to, size_t bytes)
{
    if (cuda_plan_has(plan, to)) return (uint64_t)(uintptr_t)to;
    if (plan->out_count < CAIRN_CUDA_PLAN_PARTS && plan->is_pinned(plan->cuda, to, bytes)) {
        const uint64_t device = plan->out.device + cuda_plan_take_top(&plan->out, bytes);
        cuda_plan_copy(plan->copies_out, &plan->out_count, device, to, bytes);
        return device;
    }
    const size_t offset = cuda_plan_take(&plan->out, bytes);
    *cuda_plan_new_end(plan) = (struct cuda_plan_end) {
        .kind = CAIRN_END_COPY, .to = to, .from = plan->out.host + offset, .count = bytes
    };
    return plan->out.device + offset;
}

/* ---- when the plan is full, and when it is done ---- */

/* Puts the items into `in`, and returns the parameters of the launches in lists_out; a list with no pieces
 * is not launched. */
static void cuda_plan_place(struct cuda_plan *plan,
                            struct kernel_list lists_out[CAIRN_KERNEL_COUNT])
{
    for (int i = 0; i < CAIRN_KERNEL_COUNT; i++) {
        const struct cuda_plan_items *items = &plan->kernels[i];
        const size_t bytes = (size_t)items->count * item_bytes[i];
        lists_out[i] = (struct kernel_list) { .count = items->count, .pieces = items->pieces };
        if (items->count == 0) continue;
        const size_t offset = cuda_plan_take(&plan->in, bytes);
        memcpy(plan->in.host + offset, items->list, bytes);
        lists_out[i].items = plan->in.device + offset;
    }
}

static void add_sums(const struct cuda_plan_end *end)
{
    struct sums *sums = end->to;
    const double *squares = end->squares;
    const uint32_t *nonfinite = end->from;
    for (size_t i = 0; i < end->count; i++) {
        sums->nonfinite += nonfinite[i];
        if (nonfinite[i] > 0) continue;
        const cairn_status status = exact_add_double(&sums->sum_squares, squares[i]);
        assert(status == CAIRN_OK); // the sum has room for 2^74 of the largest leaves
        (void)status;
    }
}

/* Delivers the results to the host after the slice is done. */
static void cuda_plan_end(const struct cuda_plan *plan)
{
    for (size_t i = 0; i < plan->end_count; i++) {
        const struct cuda_plan_end *end = &plan->ends[i];
        switch (end->kind) {
        case CAIRN_END_COPY: memcpy(end->to, end->from, end->count); break;
        case CAIRN_END_COUNT: *(uint64_t *)end->to += *(const uint64_t *)end->from; break;
        case CAIRN_END_SUMS: add_sums(end); break;
        }
    }
}

/* ==== lower ==== */

/* Splits work items into parts that fit a plan. `done` is how much of the item is in plans already. Each
 * function adds a part of the rest, and returns the size of the part; 0 if nothing more fits. */

/* ---- updates ---- */

/* [1] with an average. */
static const enum kernel_number update_kernels[2][CAIRN_OPTIMIZER_COUNT] = {
    { [CAIRN_OPTIMIZER_ADAMW] = CAIRN_KERNEL_update_adamw,
      [CAIRN_OPTIMIZER_ADAM] = CAIRN_KERNEL_update_adam,
      [CAIRN_OPTIMIZER_SGD] = CAIRN_KERNEL_update_sgd },
    { [CAIRN_OPTIMIZER_ADAMW] = CAIRN_KERNEL_update_adamw_ema,
      [CAIRN_OPTIMIZER_ADAM] = CAIRN_KERNEL_update_adam_ema,
      [CAIRN_OPTIMIZER_SGD] = CAIRN_KERNEL_update_sgd_ema },
};

static uint64_t moved(const float *plane, uint64_t elems)
{
    return plane == NULL ? 0 : cuda_plan_address(plane + elems);
}

static uint64_t new_count(struct cuda_plan *plan, uint64_t *to)
{
    const size_t offset = cuda_plan_take(&plan->out, sizeof(uint64_t));
    *cuda_plan_new_end(plan) = (struct cuda_plan_end) { .kind = CAIRN_END_COUNT,
                                                        .to = to,
                                                        .from = plan->out.host + offset };
    plan->counts = true;
    return plan->out.device + offset;
}

static uint64_t add_update(struct cuda_plan *plan, const struct update_work *work,
                           const struct cuda_plan_cursor *cursor)
{
    const struct update *planes = &work->planes;
    const uint64_t done = cursor->done;
    const bool has_ema = work->scalars->ema_weight != 0;
    const enum kernel_number kernel = update_kernels[has_ema][work->scalars->optimizer];
    const bool goes_out = planes->wire != NULL && !cuda_plan_has(plan, planes->wire);
    const size_t wire_bytes = planes->wire == NULL ? 0 : dtype_size((int)planes->wire_dtype);
    if (!cuda_plan_has_parts(plan, kernel)) return 0;
    const uint64_t elems = cuda_plan_fit(plan, planes->elems - done, cuda_plan_out_room(plan),
                                         CAIRN_CUDA_PLAN_ITEM_ROOM, goes_out ? wire_bytes : 0,
                                         CAIRN_PIECE_ELEMS);
    if (elems == 0) return 0;
    if (done == 0) *work->nonfinite = 0;
    struct update_item item = {
        .grad = cuda_plan_address(planes->grad + done),
        .param = cuda_plan_address(planes->param + done),
        .exp_avg = moved(planes->exp_avg, done),
        .exp_avg_sq = moved(planes->exp_avg_sq, done),
        .ema = moved(planes->ema, done),
        .elems = elems,
        .nonfinite = new_count(plan, work->nonfinite),
        .wire_dtype = (uint64_t)planes->wire_dtype,
        .scalars = *work->scalars,
    };
    if (planes->wire != NULL)
        item.wire = cuda_plan_give(plan, (uint8_t *)planes->wire + done * wire_bytes,
                                   (size_t)elems * wire_bytes);
    cuda_plan_item(plan, kernel, &item, update_adamw_pieces(&item));
    return elems;
}

/* ---- converts, copies, zeroes, hashes, initial values ---- */

static uint64_t add_convert(struct cuda_plan *plan, const struct convert_work *work,
                            const struct cuda_plan_cursor *cursor)
{
    const uint64_t done = cursor->done;
    uint8_t *dst = work->dst;
    const uint8_t *src = work->src;
    const size_t dst_bytes = dtype_size((int)work->dst_dtype);
    const size_t src_bytes = dtype_size((int)work->src_dtype);
    if (!cuda_plan_has_parts(plan, CAIRN_KERNEL_convert)) return 0;
    uint64_t elems = cuda_plan_fit(plan, work->elems - done, cuda_plan_out_room(plan),
                                   CAIRN_CUDA_PLAN_ITEM_ROOM,
                                   cuda_plan_has(plan, dst) ? 0 : dst_bytes, CAIRN_PIECE_ELEMS);
    elems = cuda_plan_fit(plan, elems, cuda_plan_in_room(plan), CAIRN_CUDA_PLAN_ITEM_ROOM,
                          cuda_plan_has(plan, src) ? 0 : src_bytes, CAIRN_PIECE_ELEMS);
    if (elems == 0) return 0;
    struct convert_item item = {
        .dst = cuda_plan_give(plan, dst + done * dst_bytes, (size_t)elems * dst_bytes),
        .src = cuda_plan_bring(plan, src + done * src_bytes, (size_t)elems * src_bytes),
        .elems = elems,
        .dst_dtype = (uint32_t)work->dst_dtype,
        .src_dtype = (uint32_t)work->src_dtype,
    };
    cuda_plan_item(plan, CAIRN_KERNEL_convert, &item, convert_pieces(&item));
    return elems;
}

static uint64_t copy_in_home(struct cuda_plan *plan, void *to, const void *from, uint64_t bytes)
{
    if (!cuda_plan_has_parts(plan, CAIRN_KERNEL_copy)) return 0;
    struct copy_item item = { .to = cuda_plan_address(to),
                              .from = cuda_plan_address(from),
                              .run_bytes = bytes,
                              .run_count = 1 };
    cuda_plan_item(plan, CAIRN_KERNEL_copy, &item, copy_pieces(&item));
    return bytes;
}

static uint64_t copy_in(struct cuda_plan *plan, void *to, const void *from, uint64_t left)
{
    if (plan->in_count == CAIRN_CUDA_PLAN_PARTS) return 0;
    if (plan->is_pinned(plan->cuda, from, left)) {
        cuda_plan_copy(plan->copies_in, &plan->in_count, cuda_plan_address(to),
                       (void *)(uintptr_t)from, (size_t)left);
        return left;
    }
    const uint64_t bytes = cuda_plan_fit(plan, left, cuda_plan_in_room(plan),
                                         CAIRN_CUDA_PLAN_ITEM_ROOM, 1, 4096);
    if (bytes == 0) return 0;
    uint8_t *staged = plan->in.host + cuda_plan_take_top(&plan->in, (size_t)bytes);
    memcpy(staged, from, (size_t)bytes);
    cuda_plan_copy(plan->copies_in, &plan->in_count, cuda_plan_address(to), staged, (size_t)bytes);
    return bytes;
}

static uint64_t copy_out(struct cuda_plan *plan, void *to, const void *from, uint64_t left)
{
    if (plan->out_count == CAIRN_CUDA_PLAN_PARTS || plan->end_count == CAIRN_CUDA_PLAN_PARTS)
        return 0;
    if (plan->is_pinned(plan->cuda, to, left)) {
        cuda_plan_copy(plan->copies_out, &plan->out_count, cuda_plan_address(from), to,
                       (size_t)left);
        return left;
    }
    const uint64_t bytes = cuda_plan_fit(plan, left, cuda_plan_out_room(plan),
                                         CAIRN_CUDA_PLAN_ITEM_ROOM, 1, 4096);
    if (bytes == 0) return 0;
    uint8_t *staged = plan->out.host + cuda_plan_take_top(&plan->out, (size_t)bytes);
    cuda_plan_copy(plan->copies_out, &plan->out_count, cuda_plan_address(from), staged,
                   (size_t)bytes);
    *cuda_plan_new_end(plan) = (struct cuda_plan_end) {
        .kind = CAIRN_END_COPY, .to = to, .from = staged, .count = (size_t)bytes
    };
    return bytes;
}

static uint64_t copy_some(struct cuda_plan *plan, uint8_t *to, const uint8_t *from, uint64_t left)
{
    if (cuda_plan_has(plan, to))
        return cuda_plan_has(plan, from) ? copy_in_home(plan, to, from, left)
                                         : copy_in(plan, to, from, left);
    if (cuda_plan_has(plan, from)) return copy_out(plan, to, from, left);
    memcpy(to, from, (size_t)left);
    return left;
}

static uint64_t add_copy(struct cuda_plan *plan, const struct copy_work *work,
                         const struct cuda_plan_cursor *cursor)
{
    const uint64_t done = cursor->done;
    return copy_some(plan, (uint8_t *)work->to + done, (const uint8_t *)work->from + done,
                     work->bytes - done);
}

/* Adds complete runs. Runs in host memory are packed, so one copy brings them to the device, or takes them
 * from there. */
static uint64_t add_whole_runs(struct cuda_plan *plan, uint8_t *to, const uint8_t *from,
                               struct copy_item item)
{
    const bool brings = !cuda_plan_has(plan, from), gives = !cuda_plan_has(plan, to);
    if (!cuda_plan_has_parts(plan, CAIRN_KERNEL_copy)) return 0;
    item.run_count = cuda_plan_fit(plan, item.run_count, cuda_plan_in_room(plan),
                                   CAIRN_CUDA_PLAN_ITEM_ROOM, brings ? item.run_bytes : 0, 1);
    item.run_count = cuda_plan_fit(plan, item.run_count, cuda_plan_out_room(plan),
                                   CAIRN_CUDA_PLAN_ITEM_ROOM, gives ? item.run_bytes : 0, 1);
    if (item.run_count == 0) return 0;
    const size_t bytes = (size_t)(item.run_count * item.run_bytes);
    assert(!brings || item.from_stride == item.run_bytes);
    assert(!gives || item.to_stride == item.run_bytes);
    item.from = brings ? cuda_plan_bring(plan, from, bytes) : cuda_plan_address(from);
    item.to = gives ? cuda_plan_give(plan, to, bytes) : cuda_plan_address(to);
    cuda_plan_item(plan, CAIRN_KERNEL_copy, &item, copy_pieces(&item));
    return bytes;
}

/* cursor->done counts bytes of the runs, without the gaps between them. */
static uint64_t add_runs(struct cuda_plan *plan, const struct runs_work *work,
                         const struct cuda_plan_cursor *cursor)
{
    const uint64_t done = cursor->done;
    const uint64_t run = done / work->run_bytes, within = done % work->run_bytes;
    uint8_t *to = (uint8_t *)work->to + run * work->to_stride + within;
    const uint8_t *from = (const uint8_t *)work->from + run * work->from_stride + within;
    if (!cuda_plan_has(plan, to) && !cuda_plan_has(plan, from)) {
        home_copy_runs(work);
        return work->run_count * work->run_bytes;
    }
    if (work->run_bytes > plan->bytes / 4) // too large for a plan: copies a part of one run
        return copy_some(plan, to, from, work->run_bytes - within);
    const struct copy_item item = { .run_bytes = work->run_bytes,
                                    .run_count = work->run_count - run,
                                    .to_stride = work->to_stride,
                                    .from_stride = work->from_stride };
    return add_whole_runs(plan, to, from, item);
}

static uint64_t add_zero(struct cuda_plan *plan, const struct zero_work *work,
                         const struct cuda_plan_cursor *cursor)
{
    (void)cursor; // one item holds any number of bytes
    if (!cuda_plan_has(plan, work->at)) {
        memset(work->at, 0, work->bytes);
        return work->bytes;
    }
    if (!cuda_plan_has_parts(plan, CAIRN_KERNEL_zero)) return 0;
    struct zero_item item = { .at = cuda_plan_address(work->at), .bytes = work->bytes };
    cuda_plan_item(plan, CAIRN_KERNEL_zero, &item, zero_pieces(&item));
    return work->bytes;
}

static uint64_t add_hash(struct cuda_plan *plan, const struct hash_work *work,
                         const struct cuda_plan_cursor *cursor)
{
    const struct geometry *geometry = work->geometry;
    const uint64_t done = cursor->done, leaf = work->first_leaf + done;
    if (!cuda_plan_has_parts(plan, CAIRN_KERNEL_hash)) return 0;
    const uint64_t leaves = cuda_plan_fit(plan, work->leaf_count - done, cuda_plan_out_room(plan),
                                          CAIRN_CUDA_PLAN_ITEM_ROOM, sizeof(struct hash),
                                          CAIRN_PIECE_HASHES);
    if (leaves == 0) return 0;
    const uint64_t skipped = leaf_start(geometry, leaf) - leaf_start(geometry, work->first_leaf);
    struct hash_item item = {
        .plane = cuda_plan_address(work->plane) + skipped * dtype_size((int)work->dtype),
        .dtype = (uint64_t)work->dtype,
        .geometry = cuda_plan_geometry(geometry),
        .first_leaf = leaf,
        .leaf_count = leaves,
        .hashes = cuda_plan_give(plan, work->hashes + done, (size_t)leaves * sizeof(struct hash)),
    };
    cuda_plan_item(plan, CAIRN_KERNEL_hash, &item, hash_pieces(&item));
    return leaves;
}

static uint64_t add_init(struct cuda_plan *plan, const struct init_work *work,
                         const struct cuda_plan_cursor *cursor)
{
    (void)cursor; // one item holds any number of elements
    if (!cuda_plan_has_parts(plan, CAIRN_KERNEL_init)) return 0;
    struct init_item item = { .out = cuda_plan_address(work->out),
                              .first_elem = work->first_elem,
                              .elems = work->elems,
                              .source = work->source };
    cuda_plan_item(plan, CAIRN_KERNEL_init, &item, init_pieces(&item));
    return work->elems;
}

/* ---- any work item ---- */

static uint64_t size_of(const struct home_work *work)
{
    switch (work->kind) {
#define SIZE(name, member, type, size) \
    case CAIRN_WORK_##name: {          \
        const type *w = &work->member; \
        return size;                   \
    }
        CAIRN_WORKS(SIZE)
#undef SIZE
    case CAIRN_WORK_KINDS: break;
    }
    return 0;
}

static uint64_t add_some(struct cuda_plan *plan, const struct home_work *work,
                         struct cuda_plan_cursor *cursor)
{
    switch (work->kind) {
#define ADD(name, member, type, size) \
    case CAIRN_WORK_##name: return add_##member(plan, &work->member, cursor);
        CAIRN_WORKS(ADD)
#undef ADD
    case CAIRN_WORK_KINDS: break;
    }
    return 0;
}

/* Adds as much of the work item as fits. True: the item is complete. False: the caller goes on with an
 * empty plan, which runs after this one. */
static bool cuda_plan_add(struct cuda_plan *plan, const struct home_work *work,
                          struct cuda_plan_cursor *cursor)
{
    const bool was_empty = cuda_plan_is_empty(plan);
    const struct cuda_plan_cursor before = *cursor;
    if (work->kind == CAIRN_WORK_UPDATE && work->update.planes.elems == 0)
        *work->update.nonfinite = 0;
    if (size_of(work) == 0) return true;
    cursor->done += add_some(plan, work, cursor);
    // otherwise the caller's loop would never end
    assert(!was_empty || cursor->done > before.done || cursor->folded > before.folded);
    (void)was_empty, (void)before;
    return cursor->done == size_of(work);
}

/* ==== lower fold ==== */

/* Folds, split into parts that fit a plan. */

/* Returns the bytes that are copied to the device for one element of every source. */
static size_t bytes_to_bring(const struct cuda_plan *plan, const struct fold_source *sources,
                             size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        if (!cuda_plan_has(plan, sources[i].data)) bytes += dtype_size((int)sources[i].dtype);
    return bytes;
}

/* Returns the room that a fold needs beside its elements, for the list of sources, and for the rounding of
 * each source. */
static size_t fold_overhead(size_t source_count)
{
    return CAIRN_CUDA_PLAN_ITEM_ROOM + source_count * (sizeof(struct kernel_source) + 16);
}

/* Brings `elems` elements of each source, from element `first` on, and the list of the sources to the
 * device. Returns the address of the list; 0 if there are no sources. */
static uint64_t bring_sources(struct cuda_plan *plan, const struct fold_source *sources,
                              size_t count, uint64_t first, uint64_t elems)
{
    if (count == 0) return 0;
    const size_t offset = cuda_plan_take(&plan->in, count * sizeof(struct kernel_source));
    struct kernel_source *list = (struct kernel_source *)(plan->in.host + offset);
    for (size_t i = 0; i < count; i++) {
        const size_t bytes = dtype_size((int)sources[i].dtype);
        list[i].data = cuda_plan_bring(plan, (const uint8_t *)sources[i].data + first * bytes,
                                       (size_t)elems * bytes);
        list[i].dtype = (uint64_t)sources[i].dtype;
    }
    return plan->in.device + offset;
}

static uint64_t add_fold(struct cuda_plan *plan, const struct fold_work *fold,
                         const struct cuda_plan_cursor *cursor)
{
    const uint64_t done = cursor->done;
    if (!cuda_plan_has_parts(plan, CAIRN_KERNEL_fold)) return 0;
    const uint64_t elems = cuda_plan_fit(
        plan, fold->elems - done, cuda_plan_in_room(plan), fold_overhead(fold->source_count),
        bytes_to_bring(plan, fold->sources, fold->source_count), CAIRN_PIECE_ELEMS);
    if (elems == 0) return 0;
    struct fold_item item = {
        .acc = cuda_plan_address(fold->acc + done),
        .sources = bring_sources(plan, fold->sources, fold->source_count, done, elems),
        .source_count = (uint32_t)fold->source_count,
        .first = fold->first,
        .elems = elems,
    };
    cuda_plan_item(plan, CAIRN_KERNEL_fold, &item, fold_pieces(&item));
    return elems;
}

static uint64_t leaf_elems(const struct leaf_fold *fold)
{
    return leaf_start(fold->geometry, fold->first_leaf + fold->leaf_count) -
           leaf_start(fold->geometry, fold->first_leaf);
}

/* Reserves room for the sums of the leaves, which the host adds up when the slice is done. */
static void take_sums(struct cuda_plan *plan, const struct leaf_fold *fold,
                      struct fold_sums_item *item)
{
    const size_t leaves = (size_t)item->leaf_count;
    const size_t squares = cuda_plan_take(&plan->out, leaves * sizeof(double));
    const size_t nonfinite = cuda_plan_take(&plan->out, leaves * sizeof(uint32_t));
    item->squares = plan->out.device + squares;
    item->nonfinite = plan->out.device + nonfinite;
    *cuda_plan_new_end(plan) = (struct cuda_plan_end) { .kind = CAIRN_END_SUMS,
                                                        .to = fold->sums,
                                                        .from = plan->out.host + nonfinite,
                                                        .squares = plan->out.host + squares,
                                                        .count = leaves };
}

static uint64_t add_leaves(struct cuda_plan *plan, const struct leaf_fold *fold,
                           size_t source_count, uint64_t done)
{
    if (!cuda_plan_has_parts(plan, CAIRN_KERNEL_fold_sums)) return 0;
    const size_t leaf_bytes = CAIRN_LEAF_ELEMS * bytes_to_bring(plan, fold->sources, source_count);
    uint64_t leaves = cuda_plan_fit(plan, fold->leaf_count - done, cuda_plan_out_room(plan),
                                    CAIRN_CUDA_PLAN_ITEM_ROOM, sizeof(double) + sizeof(uint32_t),
                                    1);
    leaves = cuda_plan_fit(plan, leaves, cuda_plan_in_room(plan), fold_overhead(source_count),
                           leaf_bytes, 1);
    if (leaves == 0) return 0;
    const uint64_t origin = leaf_start(fold->geometry, fold->first_leaf);
    const uint64_t first = leaf_start(fold->geometry, fold->first_leaf + done) - origin;
    const uint64_t end = leaf_start(fold->geometry, fold->first_leaf + done + leaves) - origin;
    struct fold_sums_item item = {
        .acc = cuda_plan_address(fold->acc + first),
        .sources = bring_sources(plan, fold->sources, source_count, first, end - first),
        .source_count = (uint32_t)source_count,
        .first = fold->first,
        .geometry = cuda_plan_geometry(fold->geometry),
        .first_leaf = fold->first_leaf + done,
        .leaf_count = leaves,
    };
    take_sums(plan, fold, &item);
    cuda_plan_item(plan, CAIRN_KERNEL_fold_sums, &item, fold_sums_pieces(&item));
    return leaves;
}

/* True if one leaf, with all its sources, does not fit into an empty plan. */
static bool has_too_many(const struct cuda_plan *plan, const struct leaf_fold *fold)
{
    const size_t each = bytes_to_bring(plan, fold->sources, fold->source_count);
    return fold_overhead(fold->source_count) + CAIRN_LEAF_ELEMS * each > plan->bytes - 1024;
}

/* If not even one leaf with all its sources fits into a plan, the first plans only fold, and later plans
 * compute the sums from the result. */
static uint64_t add_fold_sums(struct cuda_plan *plan, const struct leaf_fold *fold,
                              struct cuda_plan_cursor *cursor)
{
    const bool apart = has_too_many(plan, fold);
    const struct fold_work whole = { fold->acc, fold->sources, fold->source_count, fold->first,
                                     leaf_elems(fold) };
    if (apart && cursor->folded < whole.elems) {
        const struct cuda_plan_cursor of_fold = { .done = cursor->folded };
        cursor->folded += add_fold(plan, &whole, &of_fold);
        return 0;
    }
    return add_leaves(plan, fold, apart ? 0 : fold->source_count, cursor->done);
}

/* ==== run ==== */

static cairn_status cuda_slice_finish(struct cuda_stream *stream, struct cuda_slice *slice,
                                      struct sentence *why);
static cairn_status cuda_slice_begin(struct cuda_stream *stream, struct cuda_slice *slice,
                                     struct sentence *why);
static void cuda_slices_drop(struct cuda_stream *stream, uint64_t list);

/* ---- slices, in their ring ---- */

/* Makes the next slice empty, so that it can be filled: finishes its work and delivers the results. The
 * work belongs to the current list or to the one before. */
static cairn_status empty_next(struct cuda_stream *stream, struct sentence *why)
{
    struct cuda_slice *slice = &stream->slices[stream->next];
    const bool is_of_other = slice->list != stream->lists_begun;
    struct sentence said = { "" };
    if (GPU_MUTANT(18) && is_of_other) return CAIRN_OK;
    const cairn_status status = cuda_slice_finish(stream, slice, &said);
    if (status == CAIRN_OK) return status;
    if (is_of_other) { // that list is still running: its finish reports the failure
        stream->list_failed = slice->list;
        stream->failed_status = status;
        stream->failed_why = said;
    }
    return fail_with(why, status, "%s", said.text);
}

/* Begins the slice that was filled. */
static cairn_status begin_next(struct cuda_stream *stream, struct sentence *why)
{
    struct cuda_slice *slice = &stream->slices[stream->next];
    slice->list = stream->lists_begun;
    const cairn_status status = cuda_slice_begin(stream, slice, why);
    if (status == CAIRN_OK) stream->next = (stream->next + 1) % CAIRN_CUDA_SLICES;
    return status;
}

static cairn_status add_work(struct cuda_stream *stream, struct home_work *work,
                             struct sentence *why)
{
    struct cuda_plan_cursor cursor = { 0 };
    cairn_status status = empty_next(stream, why);
    while (status == CAIRN_OK &&
           !cuda_plan_add(&stream->slices[stream->next].plan, work, &cursor)) {
        status = begin_next(stream, why);
        if (status == CAIRN_OK) status = empty_next(stream, why);
    }
    return status;
}

/* ---- lists ---- */

cairn_status cuda_run_begin(struct home_stream *of, struct home_work *works, size_t count,
                            struct sentence *why)
{
    struct cuda_stream *stream = (struct cuda_stream *)of;
    cairn_status status = cuda_stream_begin(of, why);
    if (status != CAIRN_OK) return status;
    assert(stream->lists_begun - stream->lists_finished < CAIRN_CUDA_LISTS);
    stream->lists_begun++;
    atomic_fetch_add(&home_cuda(of->home)->use.runs, 1);
    for (size_t i = 0; i < count && status == CAIRN_OK; i++)
        status = add_work(stream, &works[i], why);
    if (status == CAIRN_OK) status = begin_next(stream, why);
    if (status == CAIRN_OK) return CAIRN_OK;
    cuda_slices_drop(stream, stream->lists_begun);
    stream->lists_begun--;
    return status;
}

cairn_status cuda_run_finish(struct home_stream *of, struct sentence *why)
{
    struct cuda_stream *stream = (struct cuda_stream *)of;
    const uint64_t list = ++stream->lists_finished;
    assert(list <= stream->lists_begun);
    cairn_status status = cuda_enter(home_cuda(of->home), why);
    if (status == CAIRN_OK && stream->list_failed == list)
        status = fail_with(why, stream->failed_status, "%s", stream->failed_why.text);
    for (uint32_t i = 0; i < CAIRN_CUDA_SLICES - GPU_MUTANT(13) && status == CAIRN_OK; i++) {
        struct cuda_slice *slice = &stream->slices[(stream->next + i) % CAIRN_CUDA_SLICES];
        if (slice->list == list) status = cuda_slice_finish(stream, slice, why);
    }
    if (status != CAIRN_OK) cuda_slices_drop(stream, list);
    if (stream->list_failed == list) stream->list_failed = 0;
    return status;
}

/* ==== slice ==== */

/* Executes a plan: copies in, kernels, copies out. */

#define SMALL_BYTES         ((size_t)64 << 10)
#define WARPS_PER_PROCESSOR 128u

static struct cuda *cuda_of(const struct cuda_stream *stream)
{
    return home_cuda(stream->stream.home);
}

static const char *const launch_names[CAIRN_KERNEL_COUNT] = {
#define CAIRN_KERNEL_LAUNCH(name, item, warps, size) "a launch of " #name,
    CAIRN_KERNELS(CAIRN_KERNEL_LAUNCH)
#undef CAIRN_KERNEL_LAUNCH
};

/* ---- order ---- */

/* Puts two streams in order: work that is added to `later` from now on runs after all work that is in
 * `earlier` now. */
static int order_behind(const struct driver *driver, struct CUstream_st *earlier,
                        struct CUevent_st *event, struct CUstream_st *later)
{
    if (earlier == later) return CAIRN_CU_OK;
    if (GPU_MUTANT(3)) (void)driver->cuStreamWaitEvent(later, event, 0);
    const int result = driver->cuEventRecord(event, GPU_MUTANT(1) ? later : earlier);
    if (GPU_MUTANT(3)) return result;
    return result == CAIRN_CU_OK ? driver->cuStreamWaitEvent(later, event, 0) : result;
}

/* ---- in ---- */

static struct CUstream_st *stream_in(const struct cuda_stream *stream, const struct cuda_plan *plan)
{
    return plan->in_count == 0 && plan->in.used <= SMALL_BYTES ? stream->compute : stream->in;
}

static int load_slice(const struct cuda_stream *stream, const struct cuda_slice *slice)
{
    const struct driver *driver = &cuda_of(stream)->driver;
    const struct cuda_plan *plan = &slice->plan;
    struct CUstream_st *in = stream_in(stream, plan);
    int result = CAIRN_CU_OK;
    if (plan->in.used > 0)
        result = driver->cuMemcpyHtoDAsync(plan->in.device, plan->in.host, plan->in.used, in);
    if (GPU_MUTANT(9)) result = order_behind(driver, in, slice->loaded, stream->compute);
    for (size_t i = 0; i < plan->in_count && result == CAIRN_CU_OK; i++)
        result = driver->cuMemcpyHtoDAsync(plan->copies_in[i].device, plan->copies_in[i].host,
                                           plan->copies_in[i].bytes, in);
    if (GPU_MUTANT(2) || GPU_MUTANT(9)) return result;
    if (GPU_MUTANT(14))
        return driver->cuStreamWaitEvent(stream->compute, stream->slices[0].loaded, 0);
    return result == CAIRN_CU_OK ? order_behind(driver, in, slice->loaded, stream->compute)
                                 : result;
}

/* ---- kernels ---- */

static int launch_kernel(const struct cuda_stream *stream, enum kernel_number kernel,
                         struct kernel_list *list)
{
    struct cuda *cuda = cuda_of(stream);
    void *parameters[] = { list };
    const uint32_t blocks = kernel_blocks(kernel, list->pieces,
                                          WARPS_PER_PROCESSOR * cuda->multiprocessors);
    if (blocks == 0) return CAIRN_CU_OK;
    atomic_fetch_add(&cuda->use.launches, 1);
    return cuda->driver.cuLaunchKernel(cuda->kernels[kernel], blocks, 1, 1,
                                       kernel_block_threads(kernel), 1, 1, 0, stream->compute,
                                       parameters, NULL);
}

static cairn_status launch_all(const struct cuda_stream *stream, const struct cuda_plan *plan,
                               struct kernel_list lists[CAIRN_KERNEL_COUNT], struct sentence *why)
{
    struct cuda *cuda = cuda_of(stream);
    int result = CAIRN_CU_OK;
    if (plan->counts)
        result = cuda->driver.cuMemsetD8Async(plan->out.device, 0, plan->out.used,
                                              GPU_MUTANT(11) ? stream->in : stream->compute);
    cairn_status status = cuda_check(cuda, result, "zeroing", why);
    for (int i = 0; i < CAIRN_KERNEL_COUNT && status == CAIRN_OK; i++)
        status = cuda_check(cuda, launch_kernel(stream, (enum kernel_number)i, &lists[i]),
                            launch_names[i], why);
    return status;
}

/* ---- out ---- */

static struct CUstream_st *stream_out(const struct cuda_stream *stream,
                                      const struct cuda_plan *plan)
{
    return plan->out_count == 0 && plan->out.used <= SMALL_BYTES ? stream->compute : stream->out;
}

static int unload_slice(const struct cuda_stream *stream, const struct cuda_slice *slice)
{
    const struct driver *driver = &cuda_of(stream)->driver;
    const struct cuda_plan *plan = &slice->plan;
    struct CUstream_st *out = stream_out(stream, plan);
    int result = GPU_MUTANT(4)    ? CAIRN_CU_OK
                 : GPU_MUTANT(10) ? driver->cuStreamWaitEvent(out, slice->loaded, 0)
                                  : order_behind(driver, stream->compute, slice->computed, out);
    if (plan->out.used > 0 && result == CAIRN_CU_OK)
        result = driver->cuMemcpyDtoHAsync(plan->out.host, plan->out.device, plan->out.used, out);
    if (GPU_MUTANT(8)) (void)driver->cuEventRecord(slice->done, out);
    for (size_t i = 0; i < plan->out_count && result == CAIRN_CU_OK; i++)
        result = driver->cuMemcpyDtoHAsync(plan->copies_out[i].host, plan->copies_out[i].device,
                                           plan->copies_out[i].bytes, out);
    if (GPU_MUTANT(5) || GPU_MUTANT(8)) return result;
    return result == CAIRN_CU_OK
               ? driver->cuEventRecord(slice->done, GPU_MUTANT(7) ? stream->compute : out)
               : result;
}

/* ---- the complete plan ---- */

static uint64_t bytes_of(const struct cuda_plan_copy *copies, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) bytes += copies[i].bytes;
    return bytes;
}

/* Starts to execute the plan, and returns at once. */
static cairn_status cuda_slice_begin(struct cuda_stream *stream, struct cuda_slice *slice,
                                     struct sentence *why)
{
    struct cuda *cuda = cuda_of(stream);
    struct kernel_list lists[CAIRN_KERNEL_COUNT];
    if (cuda_plan_is_empty(&slice->plan)) return CAIRN_OK;
    cuda_plan_place(&slice->plan, lists);
    atomic_fetch_add(&cuda->use.bytes_in,
                     slice->plan.in.used + bytes_of(slice->plan.copies_in, slice->plan.in_count));
    atomic_fetch_add(&cuda->use.bytes_out, slice->plan.out.used + bytes_of(slice->plan.copies_out,
                                                                           slice->plan.out_count));
    slice->is_under_way = true;
    cairn_status status = cuda_check(cuda, load_slice(stream, slice), "a copy to the device", why);
    if (status == CAIRN_OK) status = launch_all(stream, &slice->plan, lists, why);
    if (status == CAIRN_OK)
        status = cuda_check(cuda, unload_slice(stream, slice), "a copy from the device", why);
    return status;
}

/* If the slice is under way, waits for it, and delivers its results to the host. The plan is empty
 * afterwards. */
static cairn_status cuda_slice_finish(struct cuda_stream *stream, struct cuda_slice *slice,
                                      struct sentence *why)
{
    struct cuda *cuda = cuda_of(stream);
    if (!slice->is_under_way) return CAIRN_OK;
    const int result = GPU_MUTANT(6) ? CAIRN_CU_OK : cuda->driver.cuEventSynchronize(slice->done);
    CAIRN_TRY(cuda_check(cuda, result, "a list of work", why));
    cuda_plan_end(&slice->plan);
    cuda_plan_clear(&slice->plan);
    slice->is_under_way = false;
    return CAIRN_OK;
}

/* Waits until all work that runs has ended, with or without success. Then empties the slices of the list,
 * so that the host gets none of their results. */
static void cuda_slices_drop(struct cuda_stream *stream, uint64_t list)
{
    const struct cuda *cuda = cuda_of(stream);
    const struct cuda_slice *slice = &stream->slices[0];
    if (!GPU_MUTANT(15)) {
        (void)cuda_wait(cuda, stream->in, slice->loaded);
        (void)cuda_wait(cuda, stream->compute, slice->computed);
        if (!GPU_MUTANT(16)) (void)cuda_wait(cuda, stream->out, slice->done);
    }
    for (int i = 0; i < CAIRN_CUDA_SLICES; i++) {
        if (stream->slices[i].is_under_way && stream->slices[i].list != list) continue;
        cuda_plan_clear(&stream->slices[i].plan);
        stream->slices[i].is_under_way = false;
    }
}

/* ==== stream ==== */

#define SIDES         (2u * CAIRN_CUDA_SLICES)
#define CARD_PER_PLAN 8192u

static int open_streams(struct cuda_stream *stream, const struct driver *driver)
{
    int result = driver->cuStreamCreate(&stream->in, CAIRN_CU_STREAM_NON_BLOCKING);
    if (result == CAIRN_CU_OK)
        result = driver->cuStreamCreate(&stream->compute, CAIRN_CU_STREAM_NON_BLOCKING);
    if (result == CAIRN_CU_OK)
        result = driver->cuStreamCreate(&stream->out, CAIRN_CU_STREAM_NON_BLOCKING);
    return result;
}

static int open_events(struct cuda_slice *slice, const struct driver *driver)
{
    int result = driver->cuEventCreate(&slice->loaded, CAIRN_CUDA_EVENT);
    if (result == CAIRN_CU_OK) result = driver->cuEventCreate(&slice->computed, CAIRN_CUDA_EVENT);
    if (result == CAIRN_CU_OK) result = driver->cuEventCreate(&slice->done, CAIRN_CUDA_EVENT);
    return result;
}

uint64_t cuda_staging_bytes(uint64_t card_bytes)
{
    const uint64_t page = 4096, most = CAIRN_CUDA_PLAN_BYTES_MAX, least = most / 4;
    uint64_t bytes = card_bytes / CARD_PER_PLAN / page * page;
    if (bytes < least) bytes = least;
    return SIDES * (bytes < most ? bytes : most);
}

static cairn_status open_plan(struct cuda_stream *stream, int index, struct sentence *why)
{
    struct cuda *cuda = home_cuda(stream->stream.home);
    struct cuda_plan *plan = &stream->slices[index].plan;
    const size_t bytes = (size_t)cuda->home.info.stream_bytes / SIDES, in = (size_t)index * bytes,
                 out = in + CAIRN_CUDA_SLICES * bytes;
    const uint64_t device = (uint64_t)(uintptr_t)stream->staging.base;
    plan->bytes = bytes;
    plan->space = cuda->space;
    plan->is_pinned = cuda_is_pinned;
    plan->cuda = cuda;
    plan->in = (struct cuda_plan_side) { .host = stream->pinned + in, .device = device + in };
    plan->out = (struct cuda_plan_side) { .host = stream->pinned + out, .device = device + out };
    if (cuda_plan_init(plan) == CAIRN_OK) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a stream's plans");
}

static void close_staging(struct cuda_stream *stream)
{
    struct cuda *cuda = home_cuda(stream->stream.home);
    for (int i = 0; i < CAIRN_CUDA_SLICES; i++) cuda_plan_release(&stream->slices[i].plan);
    home_memory_close(&stream->staging);
    if (stream->pinned != NULL && !atomic_load(&cuda->has_failed))
        (void)cuda->driver.cuMemFreeHost(stream->pinned);
    stream->pinned = NULL;
}

static cairn_status open_all(struct cuda_stream *stream, struct sentence *why)
{
    struct cuda *cuda = home_cuda(stream->stream.home);
    CAIRN_TRY(cuda_enter(cuda, why));
    int result = open_streams(stream, &cuda->driver);
    for (int i = 0; i < CAIRN_CUDA_SLICES && result == CAIRN_CU_OK; i++)
        result = open_events(&stream->slices[i], &cuda->driver);
    return cuda_check(cuda, result, "opening a stream", why);
}

/* Allocates pinned host memory on the node next to the card. Meanwhile this thread runs on that node. */
static int pin_staging(struct cuda *cuda, uint8_t **pinned_out, size_t bytes)
{
    struct numa_before before;
    // if this fails, the memory may lie on any node
    (void)numa_go(cuda->home.info.numa_node, &before);
    const int result = cuda->driver.cuMemAllocHost((void **)pinned_out, bytes);
    numa_return(&before);
    return result;
}

cairn_status cuda_stream_begin(struct home_stream *begun, struct sentence *why)
{
    struct cuda_stream *stream = (struct cuda_stream *)begun;
    struct cuda *cuda = home_cuda(begun->home);
    cairn_status status = cuda_enter(cuda, why);
    if (status != CAIRN_OK || stream->pinned != NULL) return status;
    uint8_t *pinned = NULL;
    const size_t bytes = (size_t)cuda->home.info.stream_bytes;
    status = home_memory_open(&cuda->home, "a stream's staging", bytes, &stream->staging, why);
    if (status == CAIRN_OK)
        status = cuda_check(cuda, pin_staging(cuda, &pinned, bytes), "pinning a stream's staging",
                            why);
    stream->pinned = pinned;
    for (int i = 0; i < CAIRN_CUDA_SLICES && status == CAIRN_OK; i++)
        status = open_plan(stream, i, why);
    if (status == CAIRN_OK) return CAIRN_OK;
    close_staging(stream);
    return status;
}

static void close_slice(struct cuda_slice *slice, const struct driver *driver)
{
    if (slice->loaded != NULL) (void)driver->cuEventDestroy(slice->loaded);
    if (slice->computed != NULL) (void)driver->cuEventDestroy(slice->computed);
    if (slice->done != NULL) (void)driver->cuEventDestroy(slice->done);
}

void cuda_stream_close(struct home_stream *closed)
{
    struct cuda_stream *stream = (struct cuda_stream *)closed;
    struct cuda *cuda = home_cuda(closed->home);
    cuda_enter_anyway(cuda);
    for (int i = 0; i < CAIRN_CUDA_SLICES; i++) close_slice(&stream->slices[i], &cuda->driver);
    close_staging(stream);
    if (stream->in != NULL) (void)cuda->driver.cuStreamDestroy(stream->in);
    if (stream->compute != NULL) (void)cuda->driver.cuStreamDestroy(stream->compute);
    if (stream->out != NULL) (void)cuda->driver.cuStreamDestroy(stream->out);
    free(stream);
}

cairn_status cuda_stream_open(struct home *home, struct home_stream **stream_out,
                              struct sentence *why)
{
    struct cuda_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a stream");
    stream->stream.home = home;
    const cairn_status status = open_all(stream, why);
    if (status == CAIRN_OK)
        *stream_out = &stream->stream;
    else
        cuda_stream_close(&stream->stream);
    return status;
}
