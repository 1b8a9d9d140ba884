/* Snapshots on storage: begun, committed, listed, read, removed. snapshot.h
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

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/geometry/tensor.h"
#include "proto/safetensors/safetensors.h"
#include "proto/snapshot/snapshot.h"
#include "proto/store/storage.h"

/* ==== block reader ==== */

/* Reads the files of a snapshot in blocks of 4 MiB, past the page cache, several ahead of who takes them,
 * each judged by its checksum while it is in the cache. Files before version 4 of the manifest have no
 * checksums of blocks: theirs come unjudged.
 *
 * A reader is used by one thread; its threads are started with that one's priorities. Memory: the blocks
 * that are read ahead. */

#define CAIRN_READ_AHEAD 4 /* blocks, if nothing else is said */

struct block_reader;
/* Opens a reader of the snapshot at `folder`; folder and manifest are borrowed, the manifest is
 * constant. CAIRN_ERR_NO_MEMORY. */
cairn_status block_reader_open(const char *folder, const struct manifest *manifest, uint32_t ahead,
                               struct block_reader **out, struct sentence *why) CAIRN_MUST_CHECK;
/* Gives a block of a file of the manifest, borrowed until the next get or return, and how many
 * bytes it has. The blocks behind it in the file are read meanwhile, unless `want` has said which
 * come next. CAIRN_ERR_CHECKSUM: the block is damaged, which concerns no other; CAIRN_ERR_CORRUPT:
 * the file is missing or has another size; CAIRN_ERR_IO. The sentence names the file and, for
 * damage, the block. */
cairn_status block_reader_get(struct block_reader *reader, size_t file, uint64_t block,
                              const uint8_t **bytes_out, size_t *count_out,
                              struct sentence *why) CAIRN_MUST_CHECK;

void block_reader_close(struct block_reader *reader);

/* The sentence of a file that cannot be opened, or has another size than the manifest says; what the
 * storage's open returned. */
cairn_status block_reader_judge(const struct manifest_file *listed, const struct storage_file *file,
                                cairn_status opened, struct sentence *why) CAIRN_MUST_CHECK;

/* ==== writer ==== */

/* Writes the planned files of a snapshot, in blocks of 4 MiB: a block is filled by the source, its checksum
 * is made while it is in the cache, and it goes to storage, direct, while the next is filled. Memory is
 * that of the blocks in flight, whatever the files' sizes.
 *
 * A writer is used by one thread; its threads are started by that one when a file of more than a block
 * comes, with that one's priorities of CPU and I/O. All functions block. Statuses as of storage.h. */

#define CAIRN_SNAPSHOT_IN_FLIGHT 4 /* blocks, if nothing else is said */

/* Fills `to` with elements [first_elem, first_elem + elem_count) (row-major in the tensor) of the entry's
 * plane, little endian, in its dtype: at most CAIRN_SNAPSHOT_BLOCK_BYTES. The elements of an entry are
 * asked for in order, each once. Another status than CAIRN_OK ends the file. */
typedef cairn_status (*snapshot_fill_fn)(void *context, const struct safetensors_entry *entry,
                                         uint64_t first_elem, uint64_t elem_count, void *to,
                                         struct sentence *why);

struct snapshot_input {
    snapshot_fill_fn fill;
    /* Before each block, and behind the last (`bytes` 0): so many bytes are in flight. It may wait. NULL:
     * none. */
    void (*pace)(void *context, size_t bytes);
    void *context;
};

struct snapshot_writer;
/* in_flight: blocks, 1 to 64; 0: CAIRN_SNAPSHOT_IN_FLIGHT. CAIRN_ERR_NO_MEMORY. */
cairn_status snapshot_writer_open(uint32_t in_flight, struct snapshot_writer **out,
                                  struct sentence *why) CAIRN_MUST_CHECK;
/* Writes one file into the snapshot at `folder`. On failure it is not there (but CAIRN_ERR_EXISTS: another
 * writer's stays). sums_out: [snapshot_block_count(file->file_bytes)][CAIRN_SNAPSHOT_SUM_BYTES], the
 * caller's. */
cairn_status snapshot_writer_put(struct snapshot_writer *writer, const char *folder,
                                 const struct snapshot_file *file,
                                 const struct snapshot_input *source, uint8_t *sums_out,
                                 struct sentence *why) CAIRN_MUST_CHECK;
/* Writes a file that is no snapshot's, of any path in the folder `at`, which is there; the caller has
 * judged it. sums_out: may be NULL. */
cairn_status snapshot_writer_put_other(struct snapshot_writer *writer, const char *at,
                                       const struct snapshot_file *file,
                                       const struct snapshot_input *source, uint8_t *sums_out,
                                       struct sentence *why) CAIRN_MUST_CHECK;
/* A file was written through the page cache, since the storage refuses direct writes. */
bool snapshot_writer_buffered(const struct snapshot_writer *writer);
void snapshot_writer_close(struct snapshot_writer *writer);

/* XXH3-128 of a block. */
void snapshot_sum(const void *bytes, size_t count, uint8_t sum_out[CAIRN_SNAPSHOT_SUM_BYTES]);

/* ==== snapshot io ==== */

/* ---- writing: the files of shards are the writer's (above) ---- */

/* Makes <root>/<job>/<id>/{model,optim}, durably, with an id that was not there before. `root` must
 * exist. id_out and *folder_out (malloc'd, the caller's) are set only on success. */
cairn_status snapshot_folder_make(const char *root, const char *job, uint64_t generation,
                                  uint64_t step, char id_out[CAIRN_SNAPSHOT_ID_BYTES],
                                  char **folder_out, struct sentence *why) CAIRN_MUST_CHECK;

/* Writes manifest.json, durably: when it returns CAIRN_OK, the snapshot exists.
 * CAIRN_ERR_CORRUPT when a file that it lists is missing or has another size. */
cairn_status manifest_commit(const char *folder, struct manifest *manifest,
                             struct sentence *why) CAIRN_MUST_CHECK;
/* The same with manifest.json.minisig by that key, durable before manifest.json is there. */
cairn_status manifest_commit_signed(const char *folder, struct manifest *manifest,
                                    const struct secret_key *signer,
                                    struct sentence *why) CAIRN_MUST_CHECK;

/* ---- removing ---- */

struct snapshot_removed {
    uint32_t files;
    uint64_t bytes;
};
/* Has it a manifest, whatever is in that? CAIRN_ERR_NOT_FOUND: it has none, or is not there. */
cairn_status snapshot_committed(const char *root, const char *job, const char *id,
                                struct sentence *why) CAIRN_MUST_CHECK;
/* All that is in its folder is of a snapshot, whole or begun. CAIRN_ERR_REFUSED: something is not, which
 * `why` names: it could be removed in part alone. CAIRN_ERR_NOT_FOUND: there is no such folder. */
cairn_status snapshot_removable(const char *root, const char *job, const char *id,
                                struct sentence *why) CAIRN_MUST_CHECK;
/* The first of it: the manifest goes, durably, and from then on nobody lists it. One without is fine. */
cairn_status snapshot_uncommit(const char *root, const char *job, const char *id,
                               struct snapshot_removed *removed_out,
                               struct sentence *why) CAIRN_MUST_CHECK;
/* Removes a snapshot, whole or begun or removed in part: the manifest first and durably, then the rest.
 * After a crash, and after a failure, what is left is no snapshot, and is removed by another call.
 * CAIRN_ERR_NOT_FOUND: there is no such folder. CAIRN_ERR_REFUSED: it is not removable. The caller knows that
 * nobody writes it or reads it. */
cairn_status snapshot_remove(const char *root, const char *job, const char *id,
                             struct snapshot_removed *removed_out,
                             struct sentence *why) CAIRN_MUST_CHECK;

/* ---- reading ---- */

/* With its signature, if there is one, which is judged by nobody yet (snapshot.h).
 * CAIRN_ERR_NOT_FOUND: the folder is none, or has no manifest, so it is not a snapshot. */
cairn_status manifest_load(const char *folder, struct manifest *out,
                           struct sentence *why) CAIRN_MUST_CHECK;

/* Calls on_snapshot for every committed snapshot of `job` (NULL = of all jobs) under root, oldest
 * step first; the strings are borrowed for the call. The manifest is there, but not judged yet. A
 * missing root or job has none. A folder that cannot be read is passed over, but for the root and the job
 * that was asked for: then it is CAIRN_OK, and `why`, else empty, says which. Links are not followed. */
typedef void (*snapshot_fn)(void *context, const char *job, const char *id, const char *folder);
cairn_status snapshot_list(const char *root, const char *job, snapshot_fn on_snapshot,
                           void *context, struct sentence *why) CAIRN_MUST_CHECK;

/* The highest generation in the names of the job's snapshots, whole or not, under root; 0: there are none.
 * A job that takes a higher one can be told from all of them, and follows them. */
cairn_status snapshot_last_generation(const char *root, const char *job, uint64_t *out,
                                      struct sentence *why) CAIRN_MUST_CHECK;

/* A file's header as it was at open: its first block must have the same when it is read again. */
struct snapshot_header {
    uint64_t bytes, sum; /* of the header, with the 8 bytes before it; XXH3-64 */
    bool is_judged;      /* by the checksums of its blocks */
};

/* A snapshot that passed every check of open. Read by one thread at a time. */
struct snapshot {
    struct manifest manifest;    /* owned */
    struct snapshot_index index; /* owned */
    /* owned */
    char *folder;
    struct snapshot_header *headers; /* [manifest.file_count] */
    struct block_reader *reader;     /* NULL until something is read */

    /* the caller's, before the first read: blocks that are read ahead; 0: as others do. Who reads what lies
     * in many places at once needs two a place, else each is read again and again */
    uint32_t ahead;
};

/* Loads the manifest and checks that each file is there with its size, that the headers are well
 * formed, and that every plane of every tensor is covered exactly once. Names what is wrong. Reads
 * headers only. */
cairn_status snapshot_open(const char *folder, struct snapshot *snapshot_out,
                           struct sentence *why) CAIRN_MUST_CHECK;

/* The wishes of a caller of verify. */
struct verify {
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
cairn_status snapshot_verify(struct snapshot *snapshot, const struct verify *verify,
                             struct sentence *why) CAIRN_MUST_CHECK;
/* Reads elements [first_elem, first_elem + elem_count) of a stored plane into out, in
 * spec_plane_dtype, whichever files they are in; who reads in the order of the files has them ahead.
 * CAIRN_ERR_INVALID: the plane is not stored or has no such elements. CAIRN_ERR_CHECKSUM: a block that they
 * lie in is damaged (of a manifest before version 4: nobody looks). */
cairn_status snapshot_read(struct snapshot *snapshot, uint32_t tensor, uint32_t plane,
                           uint64_t first_elem, uint64_t elem_count, void *out,
                           struct sentence *why) CAIRN_MUST_CHECK;
/* For who reads not in the order of the files: these will be read, behind what was wanted before, and are
 * fetched meanwhile. How many of them, from the first: for the others there is no room yet, so say it again
 * when some were read. */
uint64_t snapshot_want(struct snapshot *snapshot, uint32_t tensor, uint32_t plane,
                       uint64_t first_elem, uint64_t elem_count);
void snapshot_close(struct snapshot *snapshot);

/* ==== word ==== */

/* Small words beside the snapshots of a job, each a file of a line, replaced durably and at once:
 *
 *   <root>/<job>/latest       the id of the newest snapshot that was verified
 *   <root>/<job>/tags/NAME    the id of a snapshot that is never removed by itself
 *   <root>/<job>/checks/ID    "good SECONDS" or "damaged SECONDS": when all of it was last read (since 1970)
 *   <root>/<job>/begun/ID     the number of the job (16 hex digits) that has begun this snapshot, until it is
 *                             committed, or its removal, until it is gone: by it is known what a crash left
 *
 * They are hostile input: a line of another form is no word. All functions block, and may be called from any
 * thread; of two that write one at a time it has one of the two. */

#define CAIRN_SNAPSHOT_TAG_BYTES 65   /* with the NUL */
#define CAIRN_SNAPSHOT_WORDS_MAX 4096 /* of a kind; more are CAIRN_ERR_INVALID */

/* 1 to 64 of A-Z a-z 0-9 . _ -, first no . or -; not "latest", no id, and no ".tmp" at its end. */
bool snapshot_tag_ok(const char *name);

struct snapshot_tag {
    char name[CAIRN_SNAPSHOT_TAG_BYTES];
    char id[CAIRN_SNAPSHOT_ID_BYTES];
};
struct snapshot_check {
    char id[CAIRN_SNAPSHOT_ID_BYTES];
    bool is_good;
    uint64_t unix_s;
};
struct snapshot_begun {
    char id[CAIRN_SNAPSHOT_ID_BYTES];
    uint64_t job; /* its number */
};
struct snapshot_words {
    char latest[CAIRN_SNAPSHOT_ID_BYTES]; /* empty: none */
    /* owned */
    struct snapshot_tag *tags;     /* [tag_count], by name */
    struct snapshot_check *checks; /* [check_count] */
    struct snapshot_begun *begun;  /* [begun_count] */
    size_t tag_count, check_count, begun_count;
};

/* All words of a job; release them, whatever it returned. CAIRN_ERR_CORRUPT: a tag is there and cannot be
 * read, so that nobody knows what it holds. A `latest` or a check that is none is left out. */
cairn_status snapshot_words_load(const char *root, const char *job, struct snapshot_words *out,
                                 struct sentence *why) CAIRN_MUST_CHECK;
void snapshot_words_release(struct snapshot_words *words);
/* The check of that id; NULL: none. */
const struct snapshot_check *snapshot_words_check(const struct snapshot_words *words,
                                                  const char *id);

/* The names and ids have been judged. */
cairn_status snapshot_latest_set(const char *root, const char *job, const char *id,
                                 struct sentence *why) CAIRN_MUST_CHECK;
cairn_status snapshot_tag_set(const char *root, const char *job, const char *name, const char *id,
                              struct sentence *why) CAIRN_MUST_CHECK;
cairn_status snapshot_check_set(const char *root, const char *job,
                                const struct snapshot_check *check,
                                struct sentence *why) CAIRN_MUST_CHECK;
cairn_status snapshot_begun_set(const char *root, const char *job, const char *id, uint64_t number,
                                struct sentence *why) CAIRN_MUST_CHECK;

/* Durably. CAIRN_ERR_NOT_FOUND: there is none. */
cairn_status snapshot_latest_remove(const char *root, const char *job,
                                    struct sentence *why) CAIRN_MUST_CHECK;
cairn_status snapshot_tag_remove(const char *root, const char *job, const char *name,
                                 struct sentence *why) CAIRN_MUST_CHECK;
/* Remove the word about a snapshot that is gone, or committed; a word that stays after a failure
 * harms nobody. */
void snapshot_check_forget(const char *root, const char *job, const char *id);
void snapshot_begun_forget(const char *root, const char *job, const char *id);

/* ==== sweep ==== */

/* Reads much of a snapshot at the speed of the disk: in the order of the files, past the page cache, by
 * several threads, each of which gives what it has read to who asked. A byte is read once, and what nobody
 * asked for only where it fills a small gap.
 *
 * Nobody judges checksums of blocks here, which a range is seldom the whole of: who asks hashes what he is
 * given, leaf by leaf, and compares the content root; which block is to blame snapshot_verify tells.
 *
 * Memory: CAIRN_SWEEP_THREADS blocks. */

#define CAIRN_SWEEP_THREADS 6u /* some wait for the disk while others hash */

/* Whole leaves of a stored plane, of at most CAIRN_SNAPSHOT_BLOCK_BYTES. */
struct sweep_range {
    uint32_t tensor, plane; /* the snapshot's */
    uint64_t first_elem, elem_count;
    uint64_t first_leaf, leaf_count;
    uint64_t place; /* the caller's */
};

/* All zero: empty. */
struct sweep_ranges {
    struct sweep_range *list; /* owned: [count] */
    size_t count, capacity;
};
void sweep_ranges_release(struct sweep_ranges *ranges);
/* Adds leaves [first_leaf, end_leaf) of a plane, cut where each part is as large as it may be and the root of
 * its leaves is one node of their tree; `place`: of each. CAIRN_ERR_NO_MEMORY. */
cairn_status sweep_ranges_add(struct sweep_ranges *ranges, const struct geometry *geometry,
                              size_t elem_bytes, const struct sweep_range *whole,
                              struct sentence *why) CAIRN_MUST_CHECK;

/* A sweep: the snapshot, and the callback that takes its elements. */
struct sweep {
    const struct snapshot *snapshot;
    /* Called once for each range, on any of the threads, at most CAIRN_SWEEP_THREADS at a time:
     * `thread` is below that. The elements are borrowed for the call. Any result but CAIRN_OK ends
     * the sweep. */
    cairn_status (*take)(void *context, uint32_t thread, const struct sweep_range *range,
                         const void *elems, struct sentence *why);
    void *context;
    const atomic_bool *canceled; /* NULL: never */
};
/* Sorts the ranges. CAIRN_ERR_CORRUPT: a file is missing, or of another size; CAIRN_ERR_IO;
 * CAIRN_ERR_CANCELED; CAIRN_ERR_INVALID: the snapshot has no such elements; or what `take` said. */
cairn_status snapshot_sweep(const struct sweep *sweep, struct sweep_ranges *ranges,
                            struct sentence *why) CAIRN_MUST_CHECK;

/* ==== copy ==== */

/* Copies a snapshot from one storage to another, byte for byte: files first, then the signature,
 * then the manifest, so that a crash leaves nothing that is a snapshot. Each block is judged by the
 * manifest's checksums before it is written.
 *
 * All functions block; call them from any thread. Statuses as above. */

struct snapshot_copy {
    /* Before each block, and at the end; `done` of all files' bytes were read and judged. False: give it up.
     * NULL: none. */
    bool (*progress)(void *context, uint64_t done);
    void *context;
};
/* Copies the snapshot, opened, to <root>/<its job>/<its id>; `root` must exist. *folder_out is malloc'd, the
 * caller's, set on success. CAIRN_ERR_EXISTS: that folder is there, whole or begun. CAIRN_ERR_CANCELED. On
 * failure what was written is removed. */
cairn_status snapshot_copy(struct snapshot *snapshot, const char *root,
                           const struct snapshot_copy *copy, char **folder_out,
                           struct sentence *why) CAIRN_MUST_CHECK;

/* ==== weights ==== */

/* The parameters of a snapshot as weights: for a job that begins with them, without the optimizer's state and
 * the step. */

/* As weights_open; of a folder with a snapshot's manifest, the parameters and buffers by the names that
 * they have in its job. Every byte that is read is judged by the checksum of its block, so reads have the
 * statuses of snapshot_read, too. Nobody looks at the signature: weights of others have none. */
cairn_status snapshot_weights_open(const char *roots, const char *path, struct weights *out,
                                   struct sentence *why) CAIRN_MUST_CHECK;

#endif
