#include "proto/snapshot_io/sweep.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot_io/block_reader.h"
#include "proto/spec/planes.h"
#include "proto/store/io_thread.h"

#define GAP_BYTES  ((uint64_t)64 << 10) /* a smaller one is read along */
#define ROOM_BYTES (CAIRN_SNAPSHOT_BLOCK_BYTES + 2 * CAIRN_STORAGE_ALIGN)

/* The state that the threads of a sweep share. */
struct crew {
    const struct cairn_sweep *sweep;
    const struct cairn_sweep_range *ranges; /* in the order of the files */
    size_t count;
    pthread_mutex_t mutex; /* of what follows */
    size_t next;           /* the first that nobody has taken */
    cairn_status status;   /* the first that failed */
    struct cairn_sentence why;
};

struct hand {
    struct crew *crew;
    uint32_t number;
    pthread_t thread;
    uint8_t *room, *joined; /* owned: [ROOM_BYTES]; `joined` NULL until it is needed */
    size_t file;
    struct cairn_storage_file *open; /* owned; NULL: none */
};

/* ---- the ranges ---- */

void cairn_sweep_ranges_release(struct cairn_sweep_ranges *ranges)
{
    free(ranges->list);
    *ranges = (struct cairn_sweep_ranges) { 0 };
}

static struct cairn_sweep_range *add_one(struct cairn_sweep_ranges *ranges)
{
    if (ranges->count == ranges->capacity) {
        const size_t capacity = 2 * ranges->capacity + 64;
        struct cairn_sweep_range *grown = realloc(ranges->list, capacity * sizeof *grown);
        if (grown == NULL) return NULL;
        ranges->list = grown;
        ranges->capacity = capacity;
    }
    return &ranges->list[ranges->count++];
}

cairn_status cairn_sweep_ranges_add(struct cairn_sweep_ranges *ranges,
                                    const struct cairn_geometry *geometry, size_t elem_bytes,
                                    const struct cairn_sweep_range *whole,
                                    struct cairn_sentence *why)
{
    const uint64_t most = CAIRN_SNAPSHOT_BLOCK_BYTES / (CAIRN_LEAF_ELEMS * elem_bytes);
    const uint64_t end = whole->first_leaf + whole->leaf_count;
    for (uint64_t leaf = whole->first_leaf; leaf < end;) {
        const uint64_t cut = (leaf / most + 1) * most, to = cut < end ? cut : end;
        struct cairn_sweep_range *range = add_one(ranges);
        if (range == NULL)
            return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to read a snapshot");
        *range = *whole;
        range->first_leaf = leaf;
        range->leaf_count = to - leaf;
        range->first_elem = cairn_leaf_first_elem(geometry, leaf);
        range->elem_count = cairn_leaf_first_elem(geometry, to) - range->first_elem;
        leaf = to;
    }
    return CAIRN_OK;
}

/* Where a range begins; the bytes from there that are in the same file, at least some of it. */
struct spot {
    size_t file;
    uint64_t first, bytes;
};

static size_t elem_bytes(const struct cairn_snapshot *s, const struct cairn_sweep_range *range)
{
    return cairn_dtype_bytes(
        (int)cairn_spec_plane_dtype(&s->manifest.spec, range->tensor, range->plane));
}

/* Where the elements of the range from `elem` on lie in a file, as far as they are in one piece.
 * False: no piece has them. */
static bool find_spot(const struct cairn_snapshot *s, const struct cairn_sweep_range *range,
                      uint64_t elem, struct spot *out)
{
    const struct cairn_snapshot_piece *piece = cairn_snapshot_index_find(&s->index, range->tensor,
                                                                         range->plane, elem);
    const size_t size = elem_bytes(s, range);
    if (piece == NULL) return false;
    const uint64_t skip = elem - piece->first_elem, left = piece->elem_count - skip,
                   wanted = range->first_elem + range->elem_count - elem;
    *out = (struct spot) { piece->file, piece->file_byte + skip * size,
                           (left < wanted ? left : wanted) * size };
    return true;
}

/* A range, as it is sorted. */
struct placed {
    struct spot at;
    struct cairn_sweep_range range;
};

static int file_order(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    if (x->at.file != y->at.file) return x->at.file < y->at.file ? -1 : 1;
    return x->at.first < y->at.first ? -1 : x->at.first > y->at.first;
}

static cairn_status sort_ranges(const struct cairn_snapshot *s, struct cairn_sweep_ranges *ranges,
                                struct cairn_sentence *why)
{
    struct placed *all = calloc(ranges->count + 1, sizeof *all);
    if (all == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to read a snapshot");
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < ranges->count && status == CAIRN_OK; i++) {
        all[i].range = ranges->list[i];
        if (!find_spot(s, &all[i].range, all[i].range.first_elem, &all[i].at))
            status = cairn_fail(why, CAIRN_ERR_INVALID,
                                "the snapshot has no element %" PRIu64 " of tensor %u, plane %u",
                                all[i].range.first_elem, all[i].range.tensor, all[i].range.plane);
    }
    if (ranges->count > 0) qsort(all, ranges->count, sizeof *all, file_order);
    for (size_t i = 0; i < ranges->count && status == CAIRN_OK; i++) ranges->list[i] = all[i].range;
    free(all);
    return status;
}

/* ---- a thread ---- */

static cairn_status use_file(struct hand *hand, size_t file, struct cairn_sentence *why)
{
    const struct cairn_snapshot *s = hand->crew->sweep->snapshot;
    const struct cairn_storage *storage = cairn_storage_of(s->folder);
    const struct cairn_manifest_file *listed = &s->manifest.files[file];
    if (hand->open != NULL && hand->file == file) return CAIRN_OK;
    if (hand->open != NULL) storage->close(hand->open);
    hand->open = NULL;
    cairn_status status = storage->open(s->folder, listed->path, true, &hand->open, why);
    status = cairn_block_reader_judge(listed, hand->open, status, why);
    hand->file = file;
    if (status == CAIRN_OK || hand->open == NULL) return status;
    storage->close(hand->open);
    hand->open = NULL;
    return status;
}

/* At most CAIRN_SNAPSHOT_BLOCK_BYTES, to the room; *at_out: where they begin there. */
static cairn_status read_room(struct hand *hand, const struct spot *spot, const uint8_t **at_out,
                              struct cairn_sentence *why)
{
    const char *path = hand->crew->sweep->snapshot->manifest.files[spot->file].path;
    const uint64_t skip = spot->first % CAIRN_STORAGE_ALIGN;
    const size_t wanted = (size_t)(skip + spot->bytes);
    struct cairn_sentence said = { "" };
    size_t got = 0;
    cairn_status status = use_file(hand, spot->file, why);
    if (status != CAIRN_OK) return status;
    status = hand->open->storage->read(hand->open, spot->first - skip, hand->room, wanted, &got,
                                       &said);
    if (status != CAIRN_OK) return cairn_fail(why, status, "%s: %s", path, said.text);
    if (got < wanted)
        return cairn_fail(why, CAIRN_ERR_CORRUPT,
                          "%s ends at byte %" PRIu64 ", cut off; use another snapshot", path,
                          spot->first - skip + got);
    *at_out = hand->room + skip;
    return CAIRN_OK;
}

static cairn_status give(const struct hand *hand, const struct cairn_sweep_range *range,
                         const uint8_t *at, struct cairn_sentence *why)
{
    const struct cairn_sweep *sweep = hand->crew->sweep;
    if (sweep->canceled != NULL && atomic_load(sweep->canceled))
        return cairn_fail(why, CAIRN_ERR_CANCELED, "it was given up");
    return sweep->take(sweep->context, hand->number, range, at, why);
}

/* One that is in several files, or in several places of one. */
static cairn_status take_joined(struct hand *hand, const struct cairn_sweep_range *range,
                                struct cairn_sentence *why)
{
    const struct cairn_snapshot *s = hand->crew->sweep->snapshot;
    const size_t size = elem_bytes(s, range);
    cairn_status status = CAIRN_OK;
    if (hand->joined == NULL) hand->joined = cairn_io_block_new(CAIRN_SNAPSHOT_BLOCK_BYTES);
    if (hand->joined == NULL)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to read a snapshot");
    for (uint64_t done = 0; done < range->elem_count * size && status == CAIRN_OK;) {
        struct spot spot;
        const uint8_t *at;
        if (!find_spot(s, range, range->first_elem + done / size, &spot))
            return cairn_fail(why, CAIRN_ERR_INVALID, "the snapshot ends in tensor %u, plane %u",
                              range->tensor, range->plane);
        status = read_room(hand, &spot, &at, why);
        if (status == CAIRN_OK) memcpy(hand->joined + done, at, (size_t)spot.bytes);
        done += spot.bytes;
    }
    return status == CAIRN_OK ? give(hand, range, hand->joined, why) : status;
}

static bool is_whole(const struct cairn_snapshot *s, const struct cairn_sweep_range *range,
                     struct spot *out)
{
    return find_spot(s, range, range->first_elem, out) &&
           out->bytes == range->elem_count * elem_bytes(s, range);
}

/* How many ranges from `first` on are read at once, and where they are; 0: the first must be joined. */
static size_t run_of(const struct crew *crew, size_t first, struct spot *out)
{
    const struct cairn_snapshot *s = crew->sweep->snapshot;
    struct spot next;
    size_t end = first + 1;
    if (!is_whole(s, &crew->ranges[first], out)) return 0;
    for (; end < crew->count && is_whole(s, &crew->ranges[end], &next); end++) {
        const uint64_t behind = out->first + out->bytes,
                       bytes = next.first + next.bytes - out->first;
        if (next.file != out->file || next.first < behind || next.first - behind > GAP_BYTES ||
            bytes > CAIRN_SNAPSHOT_BLOCK_BYTES)
            break;
        out->bytes = bytes;
    }
    return end - first;
}

static cairn_status take_run(struct hand *hand, size_t first, size_t count, const struct spot *spot,
                             struct cairn_sentence *why)
{
    const struct crew *crew = hand->crew;
    const uint8_t *at;
    if (count == 0) return take_joined(hand, &crew->ranges[first], why);
    cairn_status status = read_room(hand, spot, &at, why);
    for (size_t i = first; i < first + count && status == CAIRN_OK; i++) {
        struct spot own;
        (void)is_whole(crew->sweep->snapshot, &crew->ranges[i], &own);
        status = give(hand, &crew->ranges[i], at + (own.first - spot->first), why);
    }
    return status;
}

static void work(struct hand *hand)
{
    struct crew *crew = hand->crew;
    struct cairn_sentence why = { "" };
    cairn_status status = CAIRN_OK;
    if (hand->room == NULL) hand->room = cairn_io_block_new(ROOM_BYTES);
    if (hand->room == NULL)
        status = cairn_fail(&why, CAIRN_ERR_NO_MEMORY, "no memory to read a snapshot");
    pthread_mutex_lock(&crew->mutex);
    while (status == CAIRN_OK && crew->status == CAIRN_OK && crew->next < crew->count) {
        struct spot spot;
        const size_t first = crew->next, count = run_of(crew, first, &spot);
        crew->next += count > 0 ? count : 1;
        pthread_mutex_unlock(&crew->mutex);
        status = take_run(hand, first, count, &spot, &why);
        pthread_mutex_lock(&crew->mutex);
    }
    if (status != CAIRN_OK && crew->status == CAIRN_OK) {
        crew->status = status;
        crew->why = why;
    }
    pthread_mutex_unlock(&crew->mutex);
    if (hand->open != NULL) hand->open->storage->close(hand->open);
    cairn_io_block_free(hand->room, ROOM_BYTES);
    cairn_io_block_free(hand->joined, CAIRN_SNAPSHOT_BLOCK_BYTES);
}

static void *run_hand(void *context)
{
    work(context);
    return NULL;
}

cairn_status cairn_snapshot_sweep(const struct cairn_sweep *sweep,
                                  struct cairn_sweep_ranges *ranges, struct cairn_sentence *why)
{
    struct hand hands[CAIRN_SWEEP_THREADS];
    cairn_status status = sort_ranges(sweep->snapshot, ranges, why);
    if (status != CAIRN_OK) return status;
    struct crew crew = { .sweep = sweep, .ranges = ranges->list, .count = ranges->count };
    uint32_t started = 0;
    pthread_mutex_init(&crew.mutex, NULL);
    for (uint32_t i = 0; i < CAIRN_SWEEP_THREADS; i++)
        hands[i] = (struct hand) { .crew = &crew, .number = i };
    // The first is the caller's own.
    while (started + 1 < CAIRN_SWEEP_THREADS && started + 1 < ranges->count &&
           cairn_io_thread_start(&hands[started + 1].thread, "cairn-sweep", run_hand,
                                 &hands[started + 1]))
        started++;
    work(&hands[0]);
    for (uint32_t i = 1; i <= started; i++) pthread_join(hands[i].thread, NULL);
    pthread_mutex_destroy(&crew.mutex);
    if (crew.status != CAIRN_OK && why != NULL) *why = crew.why;
    return crew.status;
}
