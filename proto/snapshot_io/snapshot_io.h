/* Snapshots on storage: begun, committed, listed, read, removed. snapshot_file.h and manifest.h
 * describe the bytes, with the calling sequence; storage.h says what is done to storage, and with
 * which promises. A `root` is a location; the folder of a snapshot is "<root>/<job>/<id>".
 *
 * All functions block and may be called from any thread but the loop thread. A folder from storage
 * is hostile input: only names of our own form are opened, relative to the folder, never through a
 * symbolic link, and only regular files of the size that the manifest gives.
 * Statuses: CAIRN_ERR_NO_SPACE (also quota and file size limits), CAIRN_ERR_IO, CAIRN_ERR_EXISTS,
 * CAIRN_ERR_NOT_FOUND, CAIRN_ERR_CORRUPT and CAIRN_ERR_MALFORMED (damaged or incomplete),
 * CAIRN_ERR_NO_MEMORY. The sentence names file and step (open, write, fsync, rename, ...). */
#ifndef CAIRN_SNAPSHOT_IO_SNAPSHOT_IO_H
#define CAIRN_SNAPSHOT_IO_SNAPSHOT_IO_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/sentence.h"
#include "proto/base/status.h"
#include "proto/snapshot/manifest.h"
#include "proto/snapshot/minisig.h"
#include "proto/snapshot/snapshot_file.h"
#include "proto/snapshot/snapshot_index.h"
#include "proto/snapshot_io/writer.h"
#include "proto/store/storage.h"

/* ---- writing: the files of shards are writer.h's ---- */

/* Makes <root>/<job>/<id>/{model,optim}, durably, with an id that was not there before. `root` must
 * exist. id_out and *folder_out (malloc'd, the caller's) are set only on success. */
cairn_status cairn_snapshot_folder_make(const char *root, const char *job, uint64_t generation,
                                        uint64_t step, char id_out[CAIRN_SNAPSHOT_ID_BYTES],
                                        char **folder_out,
                                        struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* Writes manifest.json, durably: when it returns CAIRN_OK, the snapshot exists.
 * CAIRN_ERR_CORRUPT when a file that it lists is missing or has another size. */
cairn_status cairn_manifest_commit(const char *folder, struct cairn_manifest *manifest,
                                   struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The same with manifest.json.minisig by that key, durable before manifest.json is there. */
cairn_status cairn_manifest_commit_signed(const char *folder, struct cairn_manifest *manifest,
                                          const struct cairn_secret_key *signer,
                                          struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* ---- removing ---- */

struct cairn_snapshot_removed {
    uint32_t files;
    uint64_t bytes;
};
/* Has it a manifest, whatever is in that? CAIRN_ERR_NOT_FOUND: it has none, or is not there. */
cairn_status cairn_snapshot_committed(const char *root, const char *job, const char *id,
                                      struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* All that is in its folder is of a snapshot, whole or begun. CAIRN_ERR_REFUSED: something is not, which
 * `why` names: it could be removed in part alone. CAIRN_ERR_NOT_FOUND: there is no such folder. */
cairn_status cairn_snapshot_removable(const char *root, const char *job, const char *id,
                                      struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The first of it: the manifest goes, durably, and from then on nobody lists it. One without is fine. */
cairn_status cairn_snapshot_uncommit(const char *root, const char *job, const char *id,
                                     struct cairn_snapshot_removed *removed_out,
                                     struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Removes a snapshot, whole or begun or removed in part: the manifest first and durably, then the rest.
 * After a crash, and after a failure, what is left is no snapshot, and is removed by another call.
 * CAIRN_ERR_NOT_FOUND: there is no such folder. CAIRN_ERR_REFUSED: it is not removable. The caller knows that
 * nobody writes it or reads it. */
cairn_status cairn_snapshot_remove(const char *root, const char *job, const char *id,
                                   struct cairn_snapshot_removed *removed_out,
                                   struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* ---- reading ---- */

/* With its signature, if there is one, which is judged by nobody yet (manifest_trust.h).
 * CAIRN_ERR_NOT_FOUND: the folder is none, or has no manifest, so it is not a snapshot. */
cairn_status cairn_manifest_load(const char *folder, struct cairn_manifest *out,
                                 struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* Calls on_snapshot for every committed snapshot of `job` (NULL = of all jobs) under root, oldest
 * step first; the strings are borrowed for the call. The manifest is there, but not judged yet. A
 * missing root or job has none. A folder that cannot be read is passed over, but for the root and the job
 * that was asked for: then it is CAIRN_OK, and `why`, else empty, says which. Links are not followed. */
typedef void (*cairn_snapshot_fn)(void *context, const char *job, const char *id,
                                  const char *folder);
cairn_status cairn_snapshot_list(const char *root, const char *job, cairn_snapshot_fn on_snapshot,
                                 void *context, struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* The highest generation in the names of the job's snapshots, whole or not, under root; 0: there are none.
 * A job that takes a higher one can be told from all of them, and follows them. */
cairn_status cairn_snapshot_last_generation(const char *root, const char *job, uint64_t *out,
                                            struct cairn_sentence *why) CAIRN_MUST_CHECK;

struct cairn_block_reader;

/* A file's header as it was at open: its first block must have the same when it is read again. */
struct cairn_snapshot_header {
    uint64_t bytes, sum; /* of the header, with the 8 bytes before it; XXH3-64 */
    bool is_judged;      /* by the checksums of its blocks */
};

/* A snapshot that passed every check of open. Read by one thread at a time. */
struct cairn_snapshot {
    struct cairn_manifest manifest;    /* owned */
    struct cairn_snapshot_index index; /* owned */
    /* owned */
    char *folder;
    struct cairn_snapshot_header *headers; /* [manifest.file_count] */
    struct cairn_block_reader *reader;     /* NULL until something is read */

    /* the caller's, before the first read: blocks that are read ahead; 0: as others do. Who reads what lies
     * in many places at once needs two a place, else each is read again and again */
    uint32_t ahead;
};

/* Loads the manifest and checks that each file is there with its size, that the headers are well
 * formed, and that every plane of every tensor is covered exactly once. Names what is wrong. Reads
 * headers only. */
cairn_status cairn_snapshot_open(const char *folder, struct cairn_snapshot *snapshot_out,
                                 struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* The wishes of a caller of verify. */
struct cairn_verify {
    bool quick;      /* what open has judged is enough */
    double fraction; /* of the blocks, chosen at random; 0: all of them */
    uint32_t ahead;  /* blocks that are read ahead; 0: as others do */
    /* After each block; `done` of `total` bytes, those that were not chosen left out. False: give it up. */
    bool (*progress)(void *context, uint64_t done, uint64_t total, const char *file);
    /* Each damage, `what` names file, block and tensors; it goes on. NULL: the first ends it. */
    void (*damage)(void *context, const char *what);
    void *context;
};
/* Reads the blocks that are asked for past the page cache, and compares the checksums of the
 * manifest; verify NULL: every byte. CAIRN_ERR_CHECKSUM: some are damaged, `why` names the first;
 * CAIRN_ERR_CORRUPT; CAIRN_ERR_CANCELED; CAIRN_ERR_IO. */
cairn_status cairn_snapshot_verify(struct cairn_snapshot *snapshot,
                                   const struct cairn_verify *verify,
                                   struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Reads elements [first_elem, first_elem + elem_count) of a stored plane into out, in
 * cairn_spec_plane_dtype, whichever files they are in; who reads in the order of the files has them ahead.
 * CAIRN_ERR_INVALID: the plane is not stored or has no such elements. CAIRN_ERR_CHECKSUM: a block that they
 * lie in is damaged (of a manifest before version 4: nobody looks). */
cairn_status cairn_snapshot_read(struct cairn_snapshot *snapshot, uint32_t tensor, uint32_t plane,
                                 uint64_t first_elem, uint64_t elem_count, void *out,
                                 struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* For who reads not in the order of the files: these will be read, behind what was wanted before, and are
 * fetched meanwhile. How many of them, from the first: for the others there is no room yet, so say it again
 * when some were read. */
uint64_t cairn_snapshot_want(struct cairn_snapshot *snapshot, uint32_t tensor, uint32_t plane,
                             uint64_t first_elem, uint64_t elem_count);
void cairn_snapshot_close(struct cairn_snapshot *snapshot);

#endif
