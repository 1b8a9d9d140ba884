#include "proto/snapshot_io/snapshot_io.h"

#include <inttypes.h>
#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/machine.h"
#include "proto/base/xxh.h"
#include "proto/snapshot/snapshot.h"
#include "proto/spec/spec.h"
#include "proto/store/storage.h"

/* the largest gap that is read along with the ranges beside it */
#define GAP_BYTES  ((uint64_t)64 << 10)
#define ROOM_BYTES (CAIRN_SNAPSHOT_BLOCK_BYTES + 2 * CAIRN_STORAGE_ALIGN)

/* The state that all threads of a sweep share. */
struct crew {
    const struct sweep *sweep;
    const struct sweep_range *ranges; /* in the order of the files */
    size_t count;
    pthread_mutex_t mutex; /* for the next fields */
    size_t next;           /* the first range that no thread has taken */
    cairn_status status;   /* the first failure */
    struct sentence why;
};

struct hand {
    struct crew *crew;
    uint32_t number;
    pthread_t thread;
    uint8_t *room, *joined; /* owned: [ROOM_BYTES]; `joined` NULL until it is needed */
    size_t file;
    struct storage_file *open; /* owned; NULL: none */
};

/* ---- the ranges ---- */

void sweep_ranges_release(struct sweep_ranges *ranges)
{
    free(ranges->list);
    *ranges = (struct sweep_ranges) { 0 };
}

cairn_status sweep_ranges_add(struct sweep_ranges *ranges, const struct geometry *geometry,
                              size_t elem_bytes, const struct sweep_range *whole,
                              struct sentence *why)
{
    const uint64_t most = CAIRN_SNAPSHOT_BLOCK_BYTES / (CAIRN_LEAF_ELEMS * elem_bytes);
    const uint64_t end = whole->first_leaf + whole->leaf_count;
    for (uint64_t leaf = whole->first_leaf; leaf < end;) {
        const uint64_t cut = (leaf / most + 1) * most, to = cut < end ? cut : end;
        if (array_reserve(&ranges->list, ranges->count, 1, &ranges->capacity,
                          sizeof *ranges->list) != CAIRN_OK)
            return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read a snapshot");
        struct sweep_range *range = &ranges->list[ranges->count++];
        *range = *whole;
        range->first_leaf = leaf;
        range->leaf_count = to - leaf;
        range->first_elem = leaf_start(geometry, leaf);
        range->elem_count = leaf_start(geometry, to) - range->first_elem;
        leaf = to;
    }
    return CAIRN_OK;
}

/* Where a range begins in a file, and how many of its bytes follow each other from there on (at least
 * 1). */
struct spot {
    size_t file;
    uint64_t first, bytes;
};

static size_t elem_bytes(const struct snapshot *s, const struct sweep_range *range)
{
    return dtype_size((int)spec_plane_dtype(&s->manifest.spec, range->tensor, range->plane));
}

/* Finds where in a file the range's elements from `elem` on are. The spot ends where the piece of `elem`
 * ends. False: no piece has `elem`. */
static bool find_spot(const struct snapshot *s, const struct sweep_range *range, uint64_t elem,
                      struct spot *out)
{
    const struct snapshot_piece *piece = snapshot_index_find(&s->index, range->tensor, range->plane,
                                                             elem);
    const size_t size = elem_bytes(s, range);
    if (piece == NULL) return false;
    const uint64_t skip = elem - piece->first_elem, left = piece->elem_count - skip,
                   wanted = range->first_elem + range->elem_count - elem;
    *out = (struct spot) { piece->file, piece->file_byte + skip * size,
                           (left < wanted ? left : wanted) * size };
    return true;
}

/* A range, and where it is. Ranges are sorted by this. */
struct placed {
    struct spot at;
    struct sweep_range range;
};

static int file_order(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    if (x->at.file != y->at.file) return x->at.file < y->at.file ? -1 : 1;
    return x->at.first < y->at.first ? -1 : x->at.first > y->at.first;
}

static cairn_status sort_ranges(const struct snapshot *s, struct sweep_ranges *ranges,
                                struct sentence *why)
{
    struct placed *all = calloc(ranges->count + 1, sizeof *all);
    if (all == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read a snapshot");
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < ranges->count && status == CAIRN_OK; i++) {
        all[i].range = ranges->list[i];
        if (!find_spot(s, &all[i].range, all[i].range.first_elem, &all[i].at))
            status = fail_with(why, CAIRN_ERR_INVALID,
                               "the snapshot has no element %" PRIu64 " of tensor %u, plane %u",
                               all[i].range.first_elem, all[i].range.tensor, all[i].range.plane);
    }
    if (ranges->count > 0) qsort(all, ranges->count, sizeof *all, file_order);
    for (size_t i = 0; i < ranges->count && status == CAIRN_OK; i++) ranges->list[i] = all[i].range;
    free(all);
    return status;
}

/* ---- a thread ---- */

static cairn_status use_file(struct hand *hand, size_t file, struct sentence *why)
{
    const struct snapshot *s = hand->crew->sweep->snapshot;
    const struct storage *storage = storage_of(s->folder);
    const struct manifest_file *listed = &s->manifest.files[file];
    if (hand->open != NULL && hand->file == file) return CAIRN_OK;
    if (hand->open != NULL) storage->close(hand->open);
    hand->open = NULL;
    cairn_status status = storage->open(s->folder, listed->path, true, &hand->open, why);
    status = block_reader_judge(listed, hand->open, status, why);
    hand->file = file;
    if (status == CAIRN_OK || hand->open == NULL) return status;
    storage->close(hand->open);
    hand->open = NULL;
    return status;
}

/* Reads the bytes of a spot, at most CAIRN_SNAPSHOT_BLOCK_BYTES, into hand->room. Sets *at_out to where
 * they begin in the room. */
static cairn_status read_room(struct hand *hand, const struct spot *spot, const uint8_t **at_out,
                              struct sentence *why)
{
    const char *path = hand->crew->sweep->snapshot->manifest.files[spot->file].path;
    const uint64_t skip = spot->first % CAIRN_STORAGE_ALIGN;
    const size_t wanted = (size_t)(skip + spot->bytes);
    struct sentence said = { "" };
    size_t got = 0;
    CAIRN_TRY(use_file(hand, spot->file, why));
    cairn_status status = hand->open->storage->read(hand->open, spot->first - skip, hand->room,
                                                    wanted, &got, &said);
    if (status != CAIRN_OK) return fail_with(why, status, "%s: %s", path, said.text);
    if (got < wanted)
        return fail_with(why, CAIRN_ERR_CORRUPT,
                         "%s ends at byte %" PRIu64 ", cut off; use another snapshot", path,
                         spot->first - skip + got);
    *at_out = hand->room + skip;
    return CAIRN_OK;
}

static cairn_status give(const struct hand *hand, const struct sweep_range *range,
                         const uint8_t *at, struct sentence *why)
{
    const struct sweep *sweep = hand->crew->sweep;
    if (sweep->canceled != NULL && atomic_load(sweep->canceled))
        return fail_with(why, CAIRN_ERR_CANCELED, "it was given up");
    return sweep->take(sweep->context, hand->number, range, at, why);
}

/* Takes a range that is in several files, or in several places of one file. */
static cairn_status take_joined(struct hand *hand, const struct sweep_range *range,
                                struct sentence *why)
{
    const struct snapshot *s = hand->crew->sweep->snapshot;
    const size_t size = elem_bytes(s, range);
    cairn_status status = CAIRN_OK;
    if (hand->joined == NULL) hand->joined = io_block_new(CAIRN_SNAPSHOT_BLOCK_BYTES);
    if (hand->joined == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read a snapshot");
    for (uint64_t done = 0; done < range->elem_count * size && status == CAIRN_OK;) {
        struct spot spot;
        const uint8_t *at;
        if (!find_spot(s, range, range->first_elem + done / size, &spot))
            return fail_with(why, CAIRN_ERR_INVALID, "the snapshot ends in tensor %u, plane %u",
                             range->tensor, range->plane);
        status = read_room(hand, &spot, &at, why);
        if (status == CAIRN_OK) memcpy(hand->joined + done, at, (size_t)spot.bytes);
        done += spot.bytes;
    }
    return status == CAIRN_OK ? give(hand, range, hand->joined, why) : status;
}

static bool is_whole(const struct snapshot *s, const struct sweep_range *range, struct spot *out)
{
    return find_spot(s, range, range->first_elem, out) &&
           out->bytes == range->elem_count * elem_bytes(s, range);
}

/* Returns how many ranges, from `first` on, are read together, and sets *out to where they are. 0: the
 * first range must be joined from several spots. */
static size_t run_of(const struct crew *crew, size_t first, struct spot *out)
{
    const struct snapshot *s = crew->sweep->snapshot;
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
                             struct sentence *why)
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
    struct sentence why = { "" };
    cairn_status status = CAIRN_OK;
    if (hand->room == NULL) hand->room = io_block_new(ROOM_BYTES);
    if (hand->room == NULL)
        status = fail_with(&why, CAIRN_ERR_NO_MEMORY, "out of memory to read a snapshot");
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
    io_block_free(hand->room, ROOM_BYTES);
    io_block_free(hand->joined, CAIRN_SNAPSHOT_BLOCK_BYTES);
}

static void *run_hand(void *context)
{
    pthread_setname_np(pthread_self(), "cairn-sweep");
    work(context);
    return NULL;
}

cairn_status snapshot_sweep(const struct sweep *sweep, struct sweep_ranges *ranges,
                            struct sentence *why)
{
    struct hand hands[CAIRN_SWEEP_THREADS];
    CAIRN_TRY(sort_ranges(sweep->snapshot, ranges, why));
    struct crew crew = { .sweep = sweep, .ranges = ranges->list, .count = ranges->count };
    uint32_t started = 0;
    pthread_mutex_init(&crew.mutex, NULL);
    for (uint32_t i = 0; i < CAIRN_SWEEP_THREADS; i++)
        hands[i] = (struct hand) { .crew = &crew, .number = i };
    // The first hand is the caller's own thread.
    while (started + 1 < CAIRN_SWEEP_THREADS && started + 1 < ranges->count &&
           thread_start(&hands[started + 1].thread, run_hand, &hands[started + 1]) == 0)
        started++;
    work(&hands[0]);
    for (uint32_t i = 1; i <= started; i++) pthread_join(hands[i].thread, NULL);
    pthread_mutex_destroy(&crew.mutex);
    if (crew.status != CAIRN_OK && why != NULL) *why = crew.why;
    return crew.status;
}

/* ==== verify ==== */

/* Compares the bytes of a snapshot with the checksums of its manifest. */

#define NAMES_MAX 3 /* the most tensors that a sentence names */

/* The state of a verification. */
struct verifying {
    struct snapshot *snapshot;
    const struct verify *asked;
    struct block_reader *reader;
    XXH3_state_t *whole; /* hash of a file that has no checksums of blocks */
    uint64_t done, total;
    cairn_status status; /* status of the first damage or failure, which `why` describes */
    struct sentence *why;
};

/* Adds "; in it: fc1.weight (param), ..." to the sentence. */
static void add_tensors(const struct snapshot *s, size_t file, uint64_t first, uint64_t end,
                        struct sentence *what)
{
    size_t count = 0;
    for (size_t i = 0; i < s->index.piece_count; i++) {
        const struct snapshot_piece *p = &s->index.pieces[i];
        const size_t elem_bytes = dtype_size(
            (int)spec_plane_dtype(&s->manifest.spec, p->tensor, p->plane));
        if (p->file != file || p->file_byte >= end ||
            p->file_byte + p->elem_count * elem_bytes <= first)
            continue;
        if (count++ < NAMES_MAX)
            sentence_add(what, "%s%.*s (%s)", count == 1 ? "; in it: " : ", ", 100,
                         s->manifest.spec.tensors[p->tensor].name, plane_name((int)p->plane));
    }
    if (count > NAMES_MAX) sentence_add(what, " and %zu more", count - NAMES_MAX);
    if (count == 0) sentence_add(what, "; in it: the header");
}

/* Notes a damage. Returns false if the verification ends with this damage. */
static bool note_damage(struct verifying *v, size_t file, uint64_t first, uint64_t end,
                        cairn_status status, struct sentence *what)
{
    if (status == CAIRN_ERR_CHECKSUM) add_tensors(v->snapshot, file, first, end, what);
    if (v->status == CAIRN_OK) {
        v->status = status;
        if (v->why != NULL) *v->why = *what;
    }
    const bool is_damage = status == CAIRN_ERR_CHECKSUM || status == CAIRN_ERR_CORRUPT;
    if (!is_damage || v->asked->damage == NULL) return false;
    v->asked->damage(v->asked->context, what->text);
    return true;
}

static bool is_chosen(const struct verifying *v)
{
    const double all = 4294967296.0; // 2^32
    return v->asked->fraction <= 0 || randombytes_random() < v->asked->fraction * all;
}

/* Checks a file that has one checksum for the whole file. The checksum of its blocks, in order, is in
 * v->whole. */
static bool end_whole(struct verifying *v, size_t file)
{
    const struct manifest_file *listed = &v->snapshot->manifest.files[file];
    XXH128_canonical_t canonical;
    struct sentence what;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(v->whole));
    if (memcmp(canonical.digest, listed->sums, sizeof canonical.digest) == 0) return true;
    sentence_set(&what, "%s is damaged: its checksum is not the manifest's; use another snapshot",
                 listed->path);
    return note_damage(v, file, 0, listed->bytes, CAIRN_ERR_CHECKSUM, &what);
}

static bool tell_progress(struct verifying *v, const char *path)
{
    if (v->asked->progress == NULL ||
        v->asked->progress(v->asked->context, v->done, v->total, path))
        return true;
    v->status = fail_with(v->why, CAIRN_ERR_CANCELED, "it was given up");
    return false;
}

/* Verifies a block. Returns false if the verification ends. */
static bool verify_block(struct verifying *v, size_t file, uint64_t block)
{
    const struct manifest_file *listed = &v->snapshot->manifest.files[file];
    const uint64_t first = block * CAIRN_SNAPSHOT_BLOCK_BYTES, left = listed->bytes - first;
    const size_t count = left < CAIRN_SNAPSHOT_BLOCK_BYTES ? (size_t)left
                                                           : CAIRN_SNAPSHOT_BLOCK_BYTES;
    const uint8_t *bytes;
    size_t have = 0;
    struct sentence what = { "" };
    bool goes_on = true;
    if (listed->is_whole || is_chosen(v)) {
        const cairn_status status = block_reader_get(v->reader, file, block, &bytes, &have, &what);
        if (status != CAIRN_OK) goes_on = note_damage(v, file, first, first + count, status, &what);
        if (status == CAIRN_OK && listed->is_whole) XXH3_128bits_update(v->whole, bytes, have);
    }
    v->done += count;
    return goes_on && tell_progress(v, listed->path);
}

static void verify_all(struct verifying *v)
{
    const struct manifest *m = &v->snapshot->manifest;
    for (size_t i = 0; i < m->file_count; i++) {
        XXH3_128bits_reset(v->whole);
        for (uint64_t b = 0; b < snapshot_block_count(m->files[i].bytes); b++)
            if (!verify_block(v, i, b)) return;
        if (m->files[i].is_whole && !end_whole(v, i)) return;
    }
}

cairn_status snapshot_verify(struct snapshot *s, const struct verify *verify, struct sentence *why)
{
    static const struct verify everything = { 0 };
    struct verifying v = { .snapshot = s,
                           .asked = verify != NULL ? verify : &everything,
                           .why = why };
    if (v.asked->quick) return CAIRN_OK;
    for (size_t i = 0; i < s->manifest.file_count; i++) v.total += s->manifest.files[i].bytes;
    v.whole = XXH3_createState();
    if (v.whole == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to verify");
    v.status = block_reader_open(s->folder, &s->manifest, v.asked->ahead, &v.reader, why);
    if (v.status == CAIRN_OK) verify_all(&v);
    block_reader_close(v.reader);
    XXH3_freeState(v.whole);
    return v.status;
}

/* ==== remove ==== */

/* Removes a snapshot. The manifest is removed first, durably, so that the files that a crash leaves are no
 * snapshot. Then the other files are removed. */

/* The state of a removal. All paths are beneath the root. */
struct removal {
    const struct storage *storage;
    const char *root;
    char place[CAIRN_NAME_MAX + CAIRN_SNAPSHOT_ID_BYTES + 2]; /* "<job>/<id>" */
    struct snapshot_removed *out;
    struct sentence *why;
};

/* ---- the contents ---- */

/* The state of a search for files that do not belong to a snapshot, in the folder or in one of its
 * parts. */
struct looking {
    const char *part;                      /* "": the folder itself */
    char stray[CAIRN_SNAPSHOT_PATH_BYTES]; /* empty: none */
};

static bool is_own_file(const char *name)
{
    static const char *const own[] = { CAIRN_MANIFEST_NAME, CAIRN_MANIFEST_NAME ".tmp",
                                       CAIRN_MANIFEST_SIGNATURE_NAME,
                                       CAIRN_MANIFEST_SIGNATURE_NAME ".tmp" };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(name, own[i]) == 0) return true;
    return false;
}

static bool is_part(const char *name)
{
    for (int i = 0; i < CAIRN_SNAPSHOT_FOLDERS; i++)
        if (strcmp(name, snapshot_folder_name((enum snapshot_folder)i)) == 0) return true;
    return false;
}

/* True if the name is that of a file of this part, complete or begun. */
static bool is_data(const char *part, const char *name)
{
    char path[2 * CAIRN_SNAPSHOT_PATH_BYTES];
    const int length = snprintf(path, sizeof path, "%s/%s", part, name);
    if (length < 4 || (size_t)length >= sizeof path) return false;
    if (strcmp(path + length - 4, ".tmp") == 0) path[length - 4] = '\0';
    return snapshot_path_ok(path);
}

static void look_at(void *context, const char *name, bool is_folder)
{
    struct looking *l = context;
    const bool is_top = l->part[0] == '\0';
    const bool is_own = is_top && is_part(name) ? is_folder
                        : is_top                ? is_own_file(name) && !is_folder
                                                : is_data(l->part, name) && !is_folder;
    // On NFS, a file that was removed while somebody had it open is called .nfs..., and vanishes when it is
    // closed.
    if (is_own || strncmp(name, ".nfs", 4) == 0 || l->stray[0] != '\0') return;
    snprintf(l->stray, sizeof l->stray, "%s%s%.40s", l->part, is_top ? "" : "/", name);
}

/* Fails if something in the folder must stay. In that case nothing is removed, because a part of a snapshot
 * is no snapshot, and would belong to nobody. */
static cairn_status judge_content(const struct removal *r)
{
    struct looking l = { .part = "", .stray = "" };
    cairn_status status = r->storage->list(r->root, r->place, look_at, &l, r->why);
    for (int i = 0; i < CAIRN_SNAPSHOT_FOLDERS && status == CAIRN_OK && l.stray[0] == '\0'; i++) {
        char path[sizeof r->place + 16];
        l.part = snapshot_folder_name((enum snapshot_folder)i);
        snprintf(path, sizeof path, "%s/%s", r->place, l.part);
        status = r->storage->list(r->root, path, look_at, &l, r->why);
        if (status == CAIRN_ERR_NOT_FOUND) status = CAIRN_OK; // the snapshot has no such part
    }
    if (status != CAIRN_OK || l.stray[0] == '\0') return status;
    return fail_with(r->why, CAIRN_ERR_REFUSED,
                     "%s is not removed: it contains %s, a link or a file that is not of a "
                     "snapshot; move that away, then remove it again",
                     r->place, l.stray);
}

/* ---- the removal ---- */

/* Removes a file; the file may be missing. */
static cairn_status remove_file(const struct removal *r, const char *part, const char *name)
{
    char *path;
    uint64_t bytes = 0;
    if (asprintf(&path, "%s/%s%s%s", r->place, part, part[0] != '\0' ? "/" : "", name) < 0)
        return fail_with(r->why, CAIRN_ERR_NO_MEMORY, "out of memory");
    const cairn_status status = r->storage->remove(r->root, path, false, &bytes, r->why);
    free(path);
    if (status == CAIRN_OK) {
        r->out->files++;
        r->out->bytes += bytes;
    }
    return status == CAIRN_ERR_NOT_FOUND ? CAIRN_OK : status;
}

/* Removes all files of a part, complete or begun, and then the part. A folder in the part is not ours, so
 * both this folder and the part stay. */
static cairn_status remove_part(const struct removal *r, const char *part)
{
    char path[sizeof r->place + 16];
    uint64_t bytes;
    struct stored_names names;
    snprintf(path, sizeof path, "%s/%s", r->place, part);
    cairn_status status = names_list(r->root, path, &names, r->why);
    if (status == CAIRN_ERR_NOT_FOUND) return CAIRN_OK;
    for (size_t i = 0; i < names.count && status == CAIRN_OK; i++)
        if (names.list[i][0] != '.') status = remove_file(r, part, names.list[i]);
    names_release(&names);
    return status == CAIRN_OK ? r->storage->remove(r->root, path, true, &bytes, r->why) : status;
}

static cairn_status remove_manifest(const struct removal *r)
{
    const cairn_status status = remove_file(r, "", CAIRN_MANIFEST_NAME);
    return status == CAIRN_OK ? r->storage->settle(r->root, r->place, r->why) : status;
}

static cairn_status remove_all(const struct removal *r)
{
    uint64_t bytes;
    // This is done even if a crash has left no manifest, because only this makes the removal of the
    // manifest durable.
    cairn_status status = remove_manifest(r);
    static const char *const rest[] = { CAIRN_MANIFEST_NAME ".tmp", CAIRN_MANIFEST_SIGNATURE_NAME,
                                        CAIRN_MANIFEST_SIGNATURE_NAME ".tmp" };
    for (size_t i = 0; i < sizeof rest / sizeof *rest && status == CAIRN_OK; i++)
        status = remove_file(r, "", rest[i]);
    for (int i = 0; i < CAIRN_SNAPSHOT_FOLDERS && status == CAIRN_OK; i++)
        status = remove_part(r, snapshot_folder_name((enum snapshot_folder)i));
    return status == CAIRN_OK ? r->storage->remove(r->root, r->place, true, &bytes, r->why)
                              : status;
}

cairn_status snapshot_committed(const char *root, const char *job, const char *id,
                                struct sentence *why)
{
    char manifest[CAIRN_NAME_MAX + CAIRN_SNAPSHOT_ID_BYTES + sizeof CAIRN_MANIFEST_NAME + 2];
    uint64_t bytes;
    snprintf(manifest, sizeof manifest, "%s/%s/" CAIRN_MANIFEST_NAME, job, id);
    return storage_of(root)->stat(root, manifest, &bytes, why);
}

cairn_status snapshot_uncommit(const char *root, const char *job, const char *id,
                               struct snapshot_removed *removed_out, struct sentence *why)
{
    struct removal removal = { storage_of(root), root, "", removed_out, why };
    *removed_out = (struct snapshot_removed) { 0 };
    snprintf(removal.place, sizeof removal.place, "%s/%s", job, id);
    return snapshot_committed(root, job, id, why) == CAIRN_ERR_NOT_FOUND
               ? CAIRN_OK
               : remove_manifest(&removal);
}

cairn_status snapshot_removable(const char *root, const char *job, const char *id,
                                struct sentence *why)
{
    struct removal removal = { storage_of(root), root, "", NULL, why };
    snprintf(removal.place, sizeof removal.place, "%s/%s", job, id);
    return judge_content(&removal);
}

cairn_status snapshot_remove(const char *root, const char *job, const char *id,
                             struct snapshot_removed *removed_out, struct sentence *why)
{
    struct removal removal = { storage_of(root), root, "", removed_out, why };
    *removed_out = (struct snapshot_removed) { 0 };
    snprintf(removal.place, sizeof removal.place, "%s/%s", job, id);
    cairn_status status = judge_content(&removal);
    if (status == CAIRN_ERR_NOT_FOUND)
        return fail_with(why, CAIRN_ERR_NOT_FOUND, "there is no snapshot %s of job %s", id, job);
    if (status == CAIRN_OK) status = remove_all(&removal);
    if (status == CAIRN_OK) status = removal.storage->settle(root, job, why);
    return status;
}
