/* Reading a snapshot: the manifest, the headers, then any range for any layout. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/xxh.h"
#include "proto/snapshot/manifest_trust.h"
#include "proto/snapshot_io/block_reader.h"
#include "proto/snapshot_io/snapshot_io.h"
#include "proto/spec/planes.h"

/* Reads all of [offset, offset + count), or says why not. */
static cairn_status read_fully(struct cairn_storage_file *file, void *out, size_t count,
                               uint64_t offset, const char *path, struct cairn_sentence *why)
{
    struct cairn_sentence said = { "" };
    size_t got = 0;
    const cairn_status status = file->storage->read(file, offset, out, count, &got, &said);
    if (status != CAIRN_OK) return cairn_fail(why, status, "%s: %s", path, said.text);
    if (got == count) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_CORRUPT,
                      "%s ends at byte %" PRIu64 ", cut off; use another snapshot", path,
                      offset + got);
}

/* ---- the manifest ---- */

/* Whose manifest it is, before what the pure judge said. */
static cairn_status in_manifest(struct cairn_sentence *why, const char *folder, cairn_status status)
{
    if (status != CAIRN_OK && status != CAIRN_ERR_NO_MEMORY && why != NULL) {
        const struct cairn_sentence said = *why;
        cairn_sentence_set(why, "%s/manifest.json is damaged or not ours: %s; use another snapshot",
                           folder, said.text);
    }
    return status;
}

static cairn_status decode_file(struct cairn_storage_file *file, const char *folder,
                                struct cairn_manifest *out, struct cairn_sentence *why)
{
    if (file->bytes > CAIRN_MANIFEST_BYTES_MAX)
        return cairn_fail(why, CAIRN_ERR_CORRUPT, "%s/manifest.json is too large", folder);
    char *text = malloc((size_t)file->bytes + 1);
    if (text == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a manifest");
    cairn_status status = read_fully(file, text, (size_t)file->bytes, 0, CAIRN_MANIFEST_NAME, why);
    if (status == CAIRN_OK) {
        status = cairn_manifest_decode(text, (size_t)file->bytes, out, why);
        status = in_manifest(why, folder, status);
    }
    free(text);
    return status;
}

/* Into the manifest; one that is too large, or no file, is an empty one, which fits nothing. */
static cairn_status load_signature(const char *folder, struct cairn_manifest *out,
                                   struct cairn_sentence *why)
{
    const struct cairn_storage *storage = cairn_storage_of(folder);
    struct cairn_storage_file *file = NULL;
    struct cairn_sentence said; // one that has none is no failure
    const cairn_status opened = storage->open(folder, CAIRN_MANIFEST_SIGNATURE_NAME, false, &file,
                                              &said);
    if (opened == CAIRN_ERR_NOT_FOUND) return CAIRN_OK;
    out->signature = calloc(1, CAIRN_MINISIG_MAX + 1);
    cairn_status status = out->signature != NULL
                              ? CAIRN_OK
                              : cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a signature");
    if (status == CAIRN_OK && opened == CAIRN_OK && file->bytes <= CAIRN_MINISIG_MAX) {
        out->signature_bytes = (size_t)file->bytes;
        status = read_fully(file, out->signature, out->signature_bytes, 0,
                            CAIRN_MANIFEST_SIGNATURE_NAME, why);
    }
    if (opened == CAIRN_OK) storage->close(file);
    return status;
}

cairn_status cairn_manifest_load(const char *folder, struct cairn_manifest *out,
                                 struct cairn_sentence *why)
{
    const struct cairn_storage *storage = cairn_storage_of(folder);
    struct cairn_storage_file *file = NULL;
    uint64_t bytes;
    cairn_status status = storage->stat(folder, "", &bytes, why);
    if (status == CAIRN_ERR_NOT_FOUND)
        return cairn_fail(why, CAIRN_ERR_NOT_FOUND, "there is no snapshot %s", folder);
    if (status != CAIRN_OK) return status;
    status = storage->open(folder, CAIRN_MANIFEST_NAME, false, &file, why);
    if (status == CAIRN_ERR_NOT_FOUND)
        return cairn_fail(
            why, CAIRN_ERR_NOT_FOUND,
            "%s has no manifest.json, so it is no snapshot (one that was not finished, perhaps)",
            folder);
    if (status != CAIRN_OK) return status;
    status = decode_file(file, folder, out, why);
    storage->close(file);
    if (status != CAIRN_OK) return status;
    status = load_signature(folder, out, why);
    if (status != CAIRN_OK) cairn_manifest_release(out);
    return status;
}

/* ---- opening: every file's size and header ---- */

/* Puts the file's name before what the pure judge said. */
static cairn_status in_file(struct cairn_sentence *why, const char *path, cairn_status status)
{
    if ((status == CAIRN_ERR_MALFORMED || status == CAIRN_ERR_UNSUPPORTED) && why != NULL) {
        const struct cairn_sentence said = *why;
        cairn_sentence_set(why, "%s: %s", path, said.text);
    }
    return status;
}

/* The 8 bytes before the header, and it; what they hash to is compared when their blocks are judged. */
static cairn_status parse_header(struct cairn_snapshot *s, size_t number,
                                 struct cairn_storage_file *file, uint64_t json_bytes,
                                 struct cairn_safetensors *header, struct cairn_sentence *why)
{
    const struct cairn_manifest_file *listed = &s->manifest.files[number];
    uint8_t *bytes = malloc(8 + (size_t)json_bytes + 1);
    if (bytes == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a header");
    cairn_status status = read_fully(file, bytes, 8 + (size_t)json_bytes, 0, listed->path, why);
    if (status == CAIRN_OK) {
        s->headers[number] = (struct cairn_snapshot_header) {
            .bytes = 8 + json_bytes, .sum = XXH3_64bits(bytes, 8 + (size_t)json_bytes)
        };
        status = cairn_safetensors_parse(bytes + 8, json_bytes, listed->bytes, header, why);
        status = in_file(why, listed->path, status);
    }
    free(bytes);
    return status;
}

static cairn_status index_open_file(struct cairn_snapshot *s, size_t number,
                                    struct cairn_storage_file *file, struct cairn_sentence *why)
{
    const struct cairn_manifest_file *listed = &s->manifest.files[number];
    uint8_t prefix[8] = { 0 };
    uint64_t json_bytes = 0;
    const size_t have = listed->bytes < 8 ? (size_t)listed->bytes : 8;
    cairn_status status = read_fully(file, prefix, have, 0, listed->path, why);
    if (status != CAIRN_OK) return status;
    status = cairn_safetensors_header_bytes(prefix, have, listed->bytes, &json_bytes, why);
    if (status != CAIRN_OK) return in_file(why, listed->path, status);
    struct cairn_safetensors header;
    status = parse_header(s, number, file, json_bytes, &header, why);
    if (status != CAIRN_OK) return status;
    status = cairn_snapshot_index_add(&s->index, &s->manifest, number, &header, 8 + json_bytes,
                                      why);
    cairn_safetensors_release(&header);
    return status;
}

static cairn_status index_file(struct cairn_snapshot *s, size_t number, struct cairn_sentence *why)
{
    const struct cairn_storage *storage = cairn_storage_of(s->folder);
    const struct cairn_manifest_file *listed = &s->manifest.files[number];
    struct cairn_storage_file *file = NULL;
    cairn_status status = storage->open(s->folder, listed->path, false, &file, why);
    status = cairn_block_reader_judge(listed, file, status, why);
    if (status == CAIRN_OK) status = index_open_file(s, number, file, why);
    if (file != NULL) storage->close(file);
    return status;
}

cairn_status cairn_snapshot_open(const char *folder, struct cairn_snapshot *snapshot_out,
                                 struct cairn_sentence *why)
{
    struct cairn_snapshot s = { .folder = strdup(folder) };
    cairn_manifest_init(&s.manifest);
    cairn_status status = s.folder == NULL
                              ? cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to read a snapshot")
                              : cairn_manifest_load(folder, &s.manifest, why);
    if (status == CAIRN_OK) {
        s.headers = calloc(s.manifest.file_count + 1, sizeof *s.headers);
        if (s.headers == NULL)
            status = cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to read a snapshot");
    }
    for (size_t i = 0; status == CAIRN_OK && i < s.manifest.file_count; i++)
        status = index_file(&s, i, why);
    if (status == CAIRN_OK) status = cairn_snapshot_index_close(&s.index, &s.manifest, why);
    if (status != CAIRN_OK) {
        cairn_snapshot_close(&s);
        return status;
    }
    *snapshot_out = s;
    return CAIRN_OK;
}

void cairn_snapshot_close(struct cairn_snapshot *s)
{
    cairn_block_reader_close(s->reader);
    cairn_snapshot_index_release(&s->index);
    cairn_manifest_release(&s->manifest);
    free(s->headers);
    free(s->folder);
    *s = (struct cairn_snapshot) { .folder = NULL };
}

/* ---- bytes ---- */

static cairn_status open_reader(struct cairn_snapshot *s, struct cairn_sentence *why)
{
    return s->reader != NULL
               ? CAIRN_OK
               : cairn_block_reader_open(s->folder, &s->manifest, s->ahead, &s->reader, why);
}

static cairn_status get_block(struct cairn_snapshot *s, size_t file, uint64_t block,
                              const uint8_t **bytes_out, size_t *count_out,
                              struct cairn_sentence *why)
{
    const cairn_status status = open_reader(s, why);
    return status != CAIRN_OK
               ? status
               : cairn_block_reader_get(s->reader, file, block, bytes_out, count_out, why);
}

/* The header by which the file is read is the one that was saved: its blocks have the manifest's checksums,
 * and it was in them when it was parsed. Once a file. */
static cairn_status judge_header(struct cairn_snapshot *s, size_t file, struct cairn_sentence *why)
{
    struct cairn_snapshot_header *header = &s->headers[file];
    if (header->is_judged || s->manifest.files[file].is_whole) return CAIRN_OK;
    XXH3_state_t *hash = XXH3_createState();
    if (hash == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to read a snapshot");
    XXH3_64bits_reset(hash);
    cairn_status status = CAIRN_OK;
    uint64_t done = 0;
    for (uint64_t block = 0; done < header->bytes && status == CAIRN_OK; block++) {
        const uint8_t *bytes;
        size_t count;
        status = get_block(s, file, block, &bytes, &count, why);
        if (status != CAIRN_OK) break;
        if (count > header->bytes - done) count = (size_t)(header->bytes - done);
        XXH3_64bits_update(hash, bytes, count);
        done += count;
    }
    if (status == CAIRN_OK && XXH3_64bits_digest(hash) != header->sum)
        status = cairn_fail(why, CAIRN_ERR_CORRUPT, "%s was changed while it was read",
                            s->manifest.files[file].path);
    XXH3_freeState(hash);
    header->is_judged = status == CAIRN_OK;
    return status;
}

/* Bytes [first, first + count) of a file, of whichever blocks. */
static cairn_status read_bytes(struct cairn_snapshot *s, size_t file, uint64_t first, size_t count,
                               uint8_t *out, struct cairn_sentence *why)
{
    cairn_status status = judge_header(s, file, why);
    while (count > 0 && status == CAIRN_OK) {
        const uint8_t *bytes;
        size_t have;
        const size_t skip = (size_t)(first % CAIRN_SNAPSHOT_BLOCK_BYTES);
        status = get_block(s, file, first / CAIRN_SNAPSHOT_BLOCK_BYTES, &bytes, &have, why);
        if (status != CAIRN_OK) break;
        const size_t part = have - skip < count ? have - skip : count;
        memcpy(out, bytes + skip, part);
        if (skip + part == have) cairn_block_reader_return(s->reader); // mostly read in order
        out += part;
        first += part;
        count -= part;
    }
    return status;
}

/* Whose damage it is, behind which block it is in. */
static cairn_status in_tensor(const struct cairn_snapshot *s, uint32_t tensor, uint32_t plane,
                              cairn_status status, struct cairn_sentence *why)
{
    if (status == CAIRN_ERR_CHECKSUM)
        cairn_sentence_add(why, " (tensor %.*s, plane %s)", 200,
                           s->manifest.spec.tensors[tensor].name, cairn_plane_name((int)plane));
    return status;
}

/* Elements of a plane that stand side by side in a file. */
struct run {
    size_t file;
    uint64_t first_byte, elem_count;
    size_t elem_bytes;
};

/* From `elem` on, `most` at most. False: the snapshot has no such element. */
static bool find_run(const struct cairn_snapshot *s, uint32_t tensor, uint32_t plane, uint64_t elem,
                     uint64_t most, struct run *run_out)
{
    const struct cairn_snapshot_piece *piece = cairn_snapshot_index_find(&s->index, tensor, plane,
                                                                         elem);
    if (piece == NULL) return false;
    const uint64_t skip = elem - piece->first_elem, left = piece->elem_count - skip;
    const size_t elem_bytes = cairn_dtype_bytes(
        (int)cairn_spec_plane_dtype(&s->manifest.spec, tensor, plane));
    *run_out = (struct run) { .file = piece->file,
                              .first_byte = piece->file_byte + skip * elem_bytes,
                              .elem_count = left < most ? left : most,
                              .elem_bytes = elem_bytes };
    return true;
}

cairn_status cairn_snapshot_read(struct cairn_snapshot *s, uint32_t tensor, uint32_t plane,
                                 uint64_t first_elem, uint64_t elem_count, void *out,
                                 struct cairn_sentence *why)
{
    uint8_t *next = out;
    for (uint64_t done = 0; done < elem_count;) {
        struct run run;
        if (!find_run(s, tensor, plane, first_elem + done, elem_count - done, &run))
            return cairn_fail(why, CAIRN_ERR_INVALID,
                              "the snapshot has no element %" PRIu64 " of tensor %u, plane %u",
                              first_elem + done, tensor, plane);
        const size_t bytes = (size_t)run.elem_count * run.elem_bytes;
        const cairn_status status = read_bytes(s, run.file, run.first_byte, bytes, next, why);
        if (status != CAIRN_OK) return in_tensor(s, tensor, plane, status, why);
        next += bytes;
        done += run.elem_count;
    }
    return CAIRN_OK;
}

/* How many of `count` bytes from `first` on stand in blocks that are wanted now. */
static uint64_t want_bytes(struct cairn_snapshot *s, size_t file, uint64_t first, uint64_t count)
{
    const uint64_t end = first + count;
    uint64_t block = first / CAIRN_SNAPSHOT_BLOCK_BYTES;
    while (block * CAIRN_SNAPSHOT_BLOCK_BYTES < end &&
           cairn_block_reader_want(s->reader, file, block))
        block++;
    const uint64_t wanted = block * CAIRN_SNAPSHOT_BLOCK_BYTES;
    return wanted <= first ? 0 : wanted < end ? wanted - first : count;
}

uint64_t cairn_snapshot_want(struct cairn_snapshot *s, uint32_t tensor, uint32_t plane,
                             uint64_t first_elem, uint64_t elem_count)
{
    uint64_t done = 0;
    struct run run;
    if (open_reader(s, NULL) != CAIRN_OK) return 0; // who reads is told
    while (done < elem_count &&
           find_run(s, tensor, plane, first_elem + done, elem_count - done, &run)) {
        const uint64_t bytes = run.elem_count * run.elem_bytes;
        const uint64_t wanted = want_bytes(s, run.file, run.first_byte, bytes);
        done += wanted / run.elem_bytes;
        if (wanted < bytes) break;
    }
    return done;
}
