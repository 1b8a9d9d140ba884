/* Every byte of a snapshot against the checksums of its manifest. */
#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/xxh.h"
#include "proto/snapshot_io/block_reader.h"
#include "proto/snapshot_io/snapshot_io.h"
#include "proto/spec/planes.h"

#define NAMES_MAX 3 /* tensors that a sentence names */

/* A verification at work. */
struct verifying {
    struct cairn_snapshot *snapshot;
    const struct cairn_verify *asked;
    struct cairn_block_reader *reader;
    XXH3_state_t *whole; /* of files without checksums of blocks */
    uint64_t done, total;
    cairn_status status; /* the first damage, which `why` names */
    struct cairn_sentence *why;
};

/* "; in it: fc1.weight (param), ..." */
static void add_tensors(const struct cairn_snapshot *s, size_t file, uint64_t first, uint64_t end,
                        struct cairn_sentence *what)
{
    size_t count = 0;
    for (size_t i = 0; i < s->index.piece_count; i++) {
        const struct cairn_snapshot_piece *p = &s->index.pieces[i];
        const size_t elem_bytes = cairn_dtype_bytes(
            (int)cairn_spec_plane_dtype(&s->manifest.spec, p->tensor, p->plane));
        if (p->file != file || p->file_byte >= end ||
            p->file_byte + p->elem_count * elem_bytes <= first)
            continue;
        if (count++ < NAMES_MAX)
            cairn_sentence_add(what, "%s%.*s (%s)", count == 1 ? "; in it: " : ", ", 100,
                               s->manifest.spec.tensors[p->tensor].name,
                               cairn_plane_name((int)p->plane));
    }
    if (count > NAMES_MAX) cairn_sentence_add(what, " and %zu more", count - NAMES_MAX);
    if (count == 0) cairn_sentence_add(what, "; in it: the header");
}

/* Notes a damage. False: it ends with it. */
static bool note_damage(struct verifying *v, size_t file, uint64_t first, uint64_t end,
                        cairn_status status, struct cairn_sentence *what)
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

/* One checksum over all of it: the blocks in order. */
static bool end_whole(struct verifying *v, size_t file)
{
    const struct cairn_manifest_file *listed = &v->snapshot->manifest.files[file];
    XXH128_canonical_t canonical;
    struct cairn_sentence what;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(v->whole));
    if (memcmp(canonical.digest, listed->sums, sizeof canonical.digest) == 0) return true;
    cairn_sentence_set(&what,
                       "%s is damaged: its checksum is not the manifest's; use another snapshot",
                       listed->path);
    return note_damage(v, file, 0, listed->bytes, CAIRN_ERR_CHECKSUM, &what);
}

static bool tell(struct verifying *v, const char *path)
{
    if (v->asked->progress == NULL ||
        v->asked->progress(v->asked->context, v->done, v->total, path))
        return true;
    v->status = cairn_fail(v->why, CAIRN_ERR_CANCELED, "it was given up");
    return false;
}

/* False: it ends here. */
static bool verify_block(struct verifying *v, size_t file, uint64_t block)
{
    const struct cairn_manifest_file *listed = &v->snapshot->manifest.files[file];
    const uint64_t first = block * CAIRN_SNAPSHOT_BLOCK_BYTES, left = listed->bytes - first;
    const size_t count = left < CAIRN_SNAPSHOT_BLOCK_BYTES ? (size_t)left
                                                           : CAIRN_SNAPSHOT_BLOCK_BYTES;
    const uint8_t *bytes;
    size_t have = 0;
    struct cairn_sentence what = { "" };
    bool goes_on = true;
    if (listed->is_whole || is_chosen(v)) {
        const cairn_status status = cairn_block_reader_get(v->reader, file, block, &bytes, &have,
                                                           &what);
        if (status != CAIRN_OK) goes_on = note_damage(v, file, first, first + count, status, &what);
        if (status == CAIRN_OK && listed->is_whole) XXH3_128bits_update(v->whole, bytes, have);
    }
    v->done += count;
    return goes_on && tell(v, listed->path);
}

static void verify_all(struct verifying *v)
{
    const struct cairn_manifest *m = &v->snapshot->manifest;
    for (size_t i = 0; i < m->file_count; i++) {
        XXH3_128bits_reset(v->whole);
        for (uint64_t b = 0; b < cairn_snapshot_block_count(m->files[i].bytes); b++)
            if (!verify_block(v, i, b)) return;
        if (m->files[i].is_whole && !end_whole(v, i)) return;
    }
}

cairn_status cairn_snapshot_verify(struct cairn_snapshot *s, const struct cairn_verify *verify,
                                   struct cairn_sentence *why)
{
    static const struct cairn_verify everything = { 0 };
    struct verifying v = { .snapshot = s,
                           .asked = verify != NULL ? verify : &everything,
                           .why = why };
    if (v.asked->quick) return CAIRN_OK;
    for (size_t i = 0; i < s->manifest.file_count; i++) v.total += s->manifest.files[i].bytes;
    v.whole = XXH3_createState();
    if (v.whole == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to verify");
    v.status = cairn_block_reader_open(s->folder, &s->manifest, v.asked->ahead, &v.reader, why);
    if (v.status == CAIRN_OK) verify_all(&v);
    cairn_block_reader_close(v.reader);
    XXH3_freeState(v.whole);
    return v.status;
}
