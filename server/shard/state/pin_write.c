#include "server/shard/state/pin_write.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "server/base/yield.h"
#include "server/shard/shard.h"
#include "server/shard/state/report.h"

#define PIECE_ELEMS ((uint64_t)1 << 20) /* of a digest, at a time */
#define HASH_LEAVES ((uint64_t)256)     /* of a work */

/* A plane of an extent, read from its beginning to its end. */
struct plane_at {
    size_t extent; /* of the map */
    enum cairn_plane plane;
    uint64_t elem; /* that comes next: of the extent */
    struct cairn_tree tree;
    uint64_t carry_elems; /* of the leaf tree.next_leaf, in `carry` */
};

/* One that goes on in a later file: an extent that is several boxes has one in each. */
struct plane_later {
    struct plane_later *next;
    struct plane_at at;
    uint8_t carry[]; /* [at.carry_elems] elements */
};

struct writing {
    const struct cairn_pin_write *of;
    const struct cairn_shard_job *job;
    const struct cairn_shard_view *view;
    bool presses;
    struct plane_at at;
    struct plane_later *later; /* owned */
    uint8_t carry[CAIRN_LEAF_ELEMS * sizeof(double)];
};

static const struct cairn_local_extent *extent_of(const struct writing *w)
{
    return &w->view->table.map.extents[w->at.extent];
}

static size_t elem_bytes(const struct writing *w)
{
    return cairn_dtype_bytes((int)cairn_form_dtype(&w->view->forms[w->at.extent], w->at.plane));
}

/* Puts the plane aside that stands between two files, if more of it is to come. */
static cairn_status put_aside(struct writing *w, struct cairn_sentence *why)
{
    if (w->at.elem == 0 || w->at.elem == extent_of(w)->elem_count) return CAIRN_OK;
    const size_t bytes = (size_t)w->at.carry_elems * elem_bytes(w);
    struct plane_later *later = malloc(sizeof *later + bytes);
    if (later == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to write");
    *later = (struct plane_later) { .next = w->later, .at = w->at };
    memcpy(later->carry, w->carry, bytes);
    w->later = later;
    return CAIRN_OK;
}

static void take_up(struct writing *w, size_t extent, enum cairn_plane plane)
{
    struct plane_later **link = &w->later;
    while ((*link)->at.extent != extent || (*link)->at.plane != plane) link = &(*link)->next;
    struct plane_later *later = *link;
    *link = later->next;
    w->at = later->at;
    memcpy(w->carry, later->carry, (size_t)w->at.carry_elems * elem_bytes(w));
    free(later);
}

static void begin_plane(struct writing *w, size_t extent, enum cairn_plane plane)
{
    w->at = (struct plane_at) { .extent = extent, .plane = plane };
    cairn_tree_init(&w->at.tree, extent_of(w)->first_leaf);
}

/* ---- hashing ---- */

/* Where a leaf of the extent, or the one behind its last, begins: of the extent. */
static uint64_t leaf_elem(const struct writing *w, uint64_t leaf)
{
    const struct cairn_local_extent *extent = extent_of(w);
    if (leaf >= extent->first_leaf + extent->leaf_count) return extent->elem_count;
    return cairn_leaf_first_elem(&w->view->layout->geometry[extent->tensor], leaf) -
           extent->first_elem;
}

/* The next leaves, whose bytes these are. */
static cairn_status hash_leaves(struct writing *w, const uint8_t *bytes, uint64_t leaves,
                                struct cairn_sentence *why)
{
    return cairn_report_leaves(cairn_compute_snapshots(&w->job->shard->host), bytes,
                               cairn_form_dtype(&w->view->forms[w->at.extent], w->at.plane),
                               &w->view->layout->geometry[extent_of(w)->tensor], leaves,
                               &w->at.tree, why);
}

/* How many whole leaves begin at element `from` and end at `to`, or before it. */
static uint64_t whole_leaves(const struct writing *w, uint64_t to)
{
    const struct cairn_local_extent *extent = extent_of(w);
    const uint64_t end = to == extent->elem_count
                             ? extent->first_leaf + extent->leaf_count
                             : cairn_leaf_of_elem(&w->view->layout->geometry[extent->tensor],
                                                  extent->first_elem + to);
    const uint64_t leaves = end - w->at.tree.next_leaf;
    return leaves < HASH_LEAVES ? leaves : HASH_LEAVES;
}

/* Hashes some of the elements from w->at.elem on, or carries them over to the next call if their
 * leaf is not complete. Returns how many. */
static uint64_t hash_some(struct writing *w, const uint8_t *bytes, uint64_t elems,
                          cairn_status *status, struct cairn_sentence *why)
{
    const uint64_t from = w->at.elem, end = leaf_elem(w, w->at.tree.next_leaf + 1);
    if (w->at.carry_elems == 0 && end <= from + elems) {
        const uint64_t leaves = whole_leaves(w, from + elems);
        *status = hash_leaves(w, bytes, leaves, why);
        return leaf_elem(w, w->at.tree.next_leaf) - from;
    }
    const size_t size = elem_bytes(w);
    const uint64_t some = end - from < elems ? end - from : elems;
    memcpy(w->carry + w->at.carry_elems * size, bytes, (size_t)some * size);
    w->at.carry_elems += some;
    if (from + some < end) return some;
    w->at.carry_elems = 0;
    *status = hash_leaves(w, w->carry, 1, why);
    return some;
}

static cairn_status hash(struct writing *w, const uint8_t *bytes, uint64_t elems,
                         struct cairn_sentence *why)
{
    cairn_status status = CAIRN_OK;
    while (elems > 0 && status == CAIRN_OK) {
        const uint64_t some = hash_some(w, bytes, elems, &status, why);
        bytes += some * elem_bytes(w);
        w->at.elem += some;
        elems -= some;
    }
    if (status != CAIRN_OK || w->at.elem < extent_of(w)->elem_count) return status;
    return cairn_report_add_tree(w->of->report, extent_of(w)->tensor, w->at.plane, &w->at.tree,
                                 why);
}

/* ---- reading ---- */

/* Gives way to nobody while the deadline presses. */
static void press(struct writing *w)
{
    const bool presses = cairn_pace_presses(w->of->pace, uv_hrtime() / 1000);
    if (presses != w->presses) (presses ? cairn_thread_press : cairn_thread_yield)();
    w->presses = presses;
}

/* Until as much more may be written. */
static cairn_status rest(struct writing *w, uint64_t bytes, struct cairn_sentence *why)
{
    struct cairn_staging *staging = w->of->staging;
    cairn_status status;
    while ((status = cairn_staging_check(staging, why)) == CAIRN_OK) {
        if (atomic_load(&staging->waiting) > 0) atomic_store(&w->of->pace->hurry, true);
        press(w);
        const uint64_t us = cairn_pace_rest_us(w->of->pace, bytes, uv_hrtime() / 1000);
        if (us == 0) return CAIRN_OK;
        usleep((useconds_t)us);
    }
    return status;
}

/* The chunk that has the element at which the plane stands. */
static uint64_t chunk_at(const struct writing *w, uint64_t elem)
{
    const struct cairn_local_extent *extent = extent_of(w);
    const uint64_t leaf = cairn_leaf_of_elem(&w->view->layout->geometry[extent->tensor],
                                             extent->first_elem + elem);
    return extent->first_chunk + (leaf - extent->first_leaf) / w->view->table.map.chunk_leaves;
}

/* The next elements of the plane, hashed, to `to`. */
static cairn_status read_plane(struct writing *w, uint64_t elems, uint8_t *to,
                               struct cairn_sentence *why)
{
    const struct cairn_local_extent *extent = extent_of(w);
    cairn_status status = rest(w, elems * elem_bytes(w), why);
    for (uint64_t done = 0; done < elems && status == CAIRN_OK;) {
        const uint64_t elem = w->at.elem + done, chunk = chunk_at(w, elem);
        const struct cairn_chunk_place place = cairn_shard_map_chunk(&w->view->table.map, chunk);
        const uint64_t first = extent->first_elem + elem - place.first_elem;
        const uint64_t left = place.elem_count - first,
                       some = left < elems - done ? left : elems - done;
        assert(first < place.elem_count);
        struct cairn_compute *home = cairn_shard_job_home(w->job, place.local_elem);
        status = cairn_staging_read(w->of->staging, cairn_compute_snapshots(home), chunk,
                                    w->at.plane, first, some, some == left,
                                    to + done * elem_bytes(w), why);
        done += some;
    }
    return status == CAIRN_OK ? hash(w, to, elems, why) : status;
}

/* To the end of the extent, or `elem_count`; *done_out: how many elements. */
static cairn_status give_of_extent(struct writing *w, const struct cairn_safetensors_entry *entry,
                                   uint64_t first_elem, uint64_t elem_count, uint8_t *to,
                                   uint64_t *done_out, struct cairn_sentence *why)
{
    const struct cairn_shard_map *map = &w->view->table.map;
    const struct cairn_local_extent *extent = cairn_shard_map_find(
        map, entry->tensor,
        cairn_leaf_of_elem(&w->view->layout->geometry[entry->tensor], first_elem));
    assert(extent != NULL);
    const size_t number = (size_t)(extent - map->extents);
    const enum cairn_plane plane = (enum cairn_plane)entry->plane;
    const bool begins = first_elem == extent->first_elem;
    const uint64_t left = extent->first_elem + extent->elem_count - first_elem;
    if (begins || number != w->at.extent || plane != w->at.plane) {
        const cairn_status status = put_aside(w, why);
        if (status != CAIRN_OK) return status;
        if (begins)
            begin_plane(w, number, plane);
        else
            take_up(w, number, plane);
    }
    assert(extent == extent_of(w) && first_elem == extent->first_elem + w->at.elem);
    *done_out = elem_count < left ? elem_count : left;
    return read_plane(w, *done_out, to, why);
}

/* cairn_snapshot_fill_fn: a box of a file is an extent, one of several that an extent is cut into, or several
 * that follow each other. */
static cairn_status give_bytes(void *context, const struct cairn_safetensors_entry *entry,
                               uint64_t first_elem, uint64_t elem_count, void *to,
                               struct cairn_sentence *why)
{
    struct writing *w = context;
    uint8_t *at = to;
    cairn_status status = CAIRN_OK;
    for (uint64_t some = 0; elem_count > 0 && status == CAIRN_OK; elem_count -= some) {
        status = give_of_extent(w, entry, first_elem, elem_count, at, &some, why);
        first_elem += some;
        at += some * elem_bytes(w);
    }
    return status;
}

/* ---- the files ---- */

static void remove_files(const struct cairn_pin_write *of)
{
    const char *file;
    for (size_t i = 0; (file = cairn_report_file(of->report, i)) != NULL; i++) {
        uint64_t bytes;
        (void)cairn_storage_of(of->path)->remove(of->path, file, false, &bytes, NULL);
    }
}

static cairn_status write_file(struct writing *w, struct cairn_snapshot_writer *writer,
                               const struct cairn_snapshot_file *file, struct cairn_sentence *why)
{
    const struct cairn_snapshot_source source = { .fill = give_bytes, .context = w };
    uint8_t *sums = malloc((size_t)cairn_snapshot_block_count(file->file_bytes) *
                           CAIRN_SNAPSHOT_SUM_BYTES);
    if (sums == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to write");
    const cairn_status status = cairn_snapshot_writer_put(writer, w->of->path, file, &source, sums,
                                                          why);
    if (status == CAIRN_OK)
        return cairn_report_add_file(w->of->report, file->path, file->file_bytes, sums, why);
    free(sums);
    return status;
}

static cairn_status write_planned(struct writing *w, const struct cairn_snapshot_plan *plan,
                                  struct cairn_sentence *why)
{
    struct cairn_snapshot_writer *writer;
    cairn_status status = cairn_snapshot_writer_open(0, &writer, why);
    if (status != CAIRN_OK) return status;
    for (size_t i = 0; i < plan->file_count && status == CAIRN_OK; i++)
        status = write_file(w, writer, &plan->files[i], why);
    if (status == CAIRN_OK && cairn_snapshot_writer_buffered(writer))
        cairn_log_info("the storage of %s refuses direct writes: they go through the page cache",
                       w->of->path);
    cairn_snapshot_writer_close(writer);
    if (status != CAIRN_OK) remove_files(w->of);
    return status;
}

static cairn_status write_files(struct writing *w, struct cairn_sentence *why)
{
    const struct cairn_shard_map *map = &w->view->table.map;
    struct cairn_snapshot_range *ranges = calloc(map->extent_count + 1, sizeof *ranges);
    struct cairn_snapshot_plan plan = { 0 };
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    for (size_t i = 0; ranges != NULL && i < map->extent_count; i++) {
        const struct cairn_local_extent *extent = &map->extents[i];
        ranges[i] = (struct cairn_snapshot_range) { .tensor = extent->tensor,
                                                    .first_elem = extent->first_elem,
                                                    .elem_count = extent->elem_count };
    }
    if (ranges != NULL)
        status = cairn_snapshot_plan_make(&w->job->spec, map->shard, ranges, map->extent_count,
                                          &plan);
    free(ranges);
    if (status != CAIRN_OK) return cairn_fail(why, status, "no memory to plan the files");
    status = write_planned(w, &plan, why);
    cairn_snapshot_plan_release(&plan);
    return status;
}

/* ---- digests alone ---- */

static cairn_status digest_plane(struct writing *w, size_t extent, enum cairn_plane plane,
                                 uint8_t *buffer, struct cairn_sentence *why)
{
    const uint64_t elems = w->view->table.map.extents[extent].elem_count;
    cairn_status status = CAIRN_OK;
    begin_plane(w, extent, plane);
    while (w->at.elem < elems && status == CAIRN_OK) {
        const uint64_t left = elems - w->at.elem;
        status = read_plane(w, left < PIECE_ELEMS ? left : PIECE_ELEMS, buffer, why);
    }
    return status;
}

static cairn_status digest_all(struct writing *w, struct cairn_sentence *why)
{
    const struct cairn_shard_map *map = &w->view->table.map;
    uint8_t *buffer = malloc(PIECE_ELEMS * sizeof(float));
    cairn_status status = CAIRN_OK;
    if (buffer == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to read the state");
    for (size_t i = 0; i < map->extent_count; i++)
        for (enum cairn_plane p = 0; p < CAIRN_PLANES && status == CAIRN_OK; p++)
            if (cairn_form_stores(&w->view->forms[i], (int)p))
                status = digest_plane(w, i, p, buffer, why);
    free(buffer);
    return status;
}

cairn_status cairn_pin_write(const struct cairn_pin_write *write, struct cairn_sentence *why)
{
    struct writing *w = calloc(1, sizeof *w);
    if (w == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to read the state");
    w->of = write;
    w->job = write->staging->job;
    w->view = write->staging->view;
    if (!cairn_pace_is_free(write->pace, uv_hrtime() / 1000))
        cairn_staging_save_ahead(write->staging, write->pace);
    const cairn_status status = write->path != NULL ? write_files(w, why) : digest_all(w, why);
    for (struct plane_later *later; (later = w->later) != NULL; free(later)) w->later = later->next;
    if (w->presses) cairn_thread_yield();
    free(w);
    return status;
}
