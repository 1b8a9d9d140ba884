/* Snapshots on storage: the one part of proto/store that opens, writes, syncs and reads files. What
 * the bytes mean stands in snapshot_file.h and manifest.h, with the calling sequence.
 *
 * All functions block and may be called from any thread but the loop thread. A folder from storage
 * is hostile input: only names of our own form are opened, relative to the folder, never through a
 * symbolic link, and only regular files of the size that the manifest gives.
 * Statuses: CAIRN_ERR_NO_SPACE (also quota and file size limits), CAIRN_ERR_IO, CAIRN_ERR_EXISTS,
 * CAIRN_ERR_NOT_FOUND, CAIRN_ERR_CORRUPT and CAIRN_ERR_MALFORMED (damaged or incomplete),
 * CAIRN_ERR_NO_MEMORY. The sentence names file and step (open, write, fsync, rename, ...). */
#ifndef CAIRN_STORE_SNAPSHOT_IO_H
#define CAIRN_STORE_SNAPSHOT_IO_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/sentence.h"
#include "proto/base/status.h"
#include "proto/snapshot/manifest.h"
#include "proto/snapshot/snapshot_file.h"
#include "proto/snapshot/snapshot_index.h"

/* ---- writing ---- */

/* Whatever the umask. The group's, too: whoever reads snapshots need not be who writes them. */
#define CAIRN_SNAPSHOT_FOLDER_MODE 0750
#define CAIRN_SNAPSHOT_FILE_MODE   0640

/* Makes <root>/<job>/<id>/{model,optim}, durably, with an id that was not there before. `root` must
 * exist. id_out and *folder_out (malloc'd, the caller's) are set only on success. */
cairn_status cairn_snapshot_folder_make(const char *root, const char *job, uint64_t generation,
                                        uint64_t step, char id_out[CAIRN_SNAPSHOT_ID_BYTES],
                                        char **folder_out,
                                        struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* Gives the bytes of elements [first_elem, first_elem + elem_count) (row-major in the tensor) of
 * the entry's plane, as little-endian f32, in *bytes_out: borrowed until the next call. At most
 * CAIRN_SNAPSHOT_PIECE_ELEMS are asked for at once. Another status than CAIRN_OK ends the file. */
#define CAIRN_SNAPSHOT_PIECE_ELEMS ((uint64_t)1 << 20)
typedef cairn_status (*cairn_snapshot_source_fn)(void *context,
                                                 const struct cairn_safetensors_entry *entry,
                                                 uint64_t first_elem, uint64_t elem_count,
                                                 const void **bytes_out,
                                                 struct cairn_sentence *why);

/* Writes one planned file into the snapshot's folder: NAME.tmp, fsync, rename, fsync of the folder.
 * On failure neither NAME nor NAME.tmp is left (but CAIRN_ERR_EXISTS: another writer's stay).
 * xxh3_128_out, for the manifest, is set on success; the size is file->file_bytes. */
cairn_status cairn_snapshot_write_file(const char *folder, const struct cairn_snapshot_file *file,
                                       cairn_snapshot_source_fn source, void *context,
                                       uint8_t xxh3_128_out[16],
                                       struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* Writes manifest.json the same way: when it returns CAIRN_OK, the snapshot exists.
 * CAIRN_ERR_CORRUPT when a file that it lists is missing or has another size. */
cairn_status cairn_manifest_commit(const char *folder, struct cairn_manifest *manifest,
                                   struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* ---- removing ---- */

struct cairn_snapshot_removed {
    uint32_t files;
    uint64_t bytes;
};
/* Removes a snapshot, whole or begun or removed in part: the manifest first and durably, then the rest.
 * After a crash, and after a failure, what is left is no snapshot, and is removed by another call.
 * CAIRN_ERR_NOT_FOUND: there is no such folder. The caller knows that nobody writes it or reads it. */
cairn_status cairn_snapshot_remove(const char *root, const char *job, const char *id,
                                   struct cairn_snapshot_removed *removed_out,
                                   struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* ---- reading ---- */

/* CAIRN_ERR_NOT_FOUND: the folder is none, or has no manifest, so it is not a snapshot. */
cairn_status cairn_manifest_load(const char *folder, struct cairn_manifest *out,
                                 struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* Calls on_snapshot for every committed snapshot of `job` (NULL = of all jobs) under root, oldest
 * step first; the strings are borrowed for the call. The manifest is there, but not judged yet. A
 * missing root or job has none. */
typedef void (*cairn_snapshot_fn)(void *context, const char *job, const char *id,
                                  const char *folder);
cairn_status cairn_snapshot_list(const char *root, const char *job, cairn_snapshot_fn on_snapshot,
                                 void *context, struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* A snapshot that passed every check of open. Read by one thread at a time. */
struct cairn_snapshot {
    struct cairn_manifest manifest;    /* owned */
    struct cairn_snapshot_index index; /* owned */
    int folder_fd;                     /* owned */
    int file_fd;                       /* owned; the file read last, -1 = none */
    size_t file;                       /* its index in the manifest */
};

/* Loads the manifest and checks that each file is there with its size, that the headers are well
 * formed, and that every plane of every tensor is covered exactly once. Names what is wrong. Reads
 * headers only. */
cairn_status cairn_snapshot_open(const char *folder, struct cairn_snapshot *snapshot_out,
                                 struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Reads every byte and compares the checksums of the manifest. CAIRN_ERR_CHECKSUM names the file.
 * */
cairn_status cairn_snapshot_verify(struct cairn_snapshot *snapshot,
                                   struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Reads elements [first_elem, first_elem + elem_count) of a stored plane into out, in
 * cairn_spec_plane_dtype, whichever files they are in. CAIRN_ERR_INVALID: the plane is not stored or has no
 * such elements. */
cairn_status cairn_snapshot_read(struct cairn_snapshot *snapshot, uint32_t tensor, uint32_t plane,
                                 uint64_t first_elem, uint64_t elem_count, void *out,
                                 struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_snapshot_close(struct cairn_snapshot *snapshot);

#endif
