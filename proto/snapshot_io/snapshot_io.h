/* Snapshots on storage: made, committed, listed, read, removed. snapshot.h
 * describes the bytes, with the calling sequence; storage.h describes what is done to storage, and with
 * which promises. A `root` is a location; the folder of a snapshot is "<root>/<job>/<id>".
 *
 * All functions block and may be called from any thread except the loop thread. A folder from storage
 * is untrusted input: only names of our own form are opened, relative to the folder, never through a
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

/* Reads the files of a snapshot in blocks of 4 MiB, past the page cache, several blocks ahead of the
 * caller. Each block is checked by its checksum while it is in the CPU's cache. Before version 4 of the
 * manifest, files have no checksums of blocks: their blocks are not checked.
 *
 * One thread uses a reader; the reader's own threads are started with the priorities of that thread.
 * Memory: the blocks that are read ahead. */

#define CAIRN_READ_AHEAD 4 /* blocks, the default */

struct block_reader;
/* Opens a reader of the snapshot at `folder`; folder and manifest are borrowed, and the manifest must not
 * change. CAIRN_ERR_NO_MEMORY. */
cairn_status block_reader_open(const char *folder, const struct manifest *manifest, uint32_t ahead,
                               struct block_reader **out, struct sentence *why) CAIRN_MUST_CHECK;
/* Gives a block of a file of the manifest, borrowed until the next get or return, and how many
 * bytes it has. Meanwhile the blocks after it are read, also those of the next file, unless snapshot_want
 * has told which blocks come next. CAIRN_ERR_CHECKSUM: this block is damaged, others may be good;
 * CAIRN_ERR_CORRUPT: the file is missing or has another size; CAIRN_ERR_IO. The sentence names the file
 * and, for damage, the block. */
cairn_status block_reader_get(struct block_reader *reader, size_t file, uint64_t block,
                              const uint8_t **bytes_out, size_t *count_out,
                              struct sentence *why) CAIRN_MUST_CHECK;

void block_reader_close(struct block_reader *reader);

/* Fails with a sentence if a file could not be opened (`opened` is what the storage's open returned), or
 * has another size than the manifest lists. */
cairn_status block_reader_judge(const struct manifest_file *listed, const struct storage_file *file,
                                cairn_status opened, struct sentence *why) CAIRN_MUST_CHECK;

/* ==== writer ==== */

/* Writes the planned files of a snapshot, in blocks of 4 MiB: the source fills a block, its checksum is
 * made while it is in the CPU's cache, and it is written directly to storage while the next block is
 * filled. The writer needs the memory of the blocks in flight, whatever the files' sizes are.
 *
 * One thread uses a writer. This thread starts the writer's own threads, with its priorities of CPU and
 * I/O, when it writes the first file of more than one block. All functions block. Statuses as of
 * storage.h. */

#define CAIRN_SNAPSHOT_IN_FLIGHT 4 /* blocks, the default */

/* Fills `to` with elements [first_elem, first_elem + elem_count) (row-major in the tensor) of the entry's
 * plane, little endian, in its dtype: at most CAIRN_SNAPSHOT_BLOCK_BYTES. The elements of an entry are
 * requested in order, each once. A status other than CAIRN_OK fails the file. */
typedef cairn_status (*snapshot_fill_fn)(void *context, const struct safetensors_entry *entry,
                                         uint64_t first_elem, uint64_t elem_count, void *to,
                                         struct sentence *why);

struct snapshot_input {
    snapshot_fill_fn fill;
    /* Called before each block, and after the last one with `bytes` 0. `bytes` is how many bytes are in
     * flight. The function may wait. NULL: not called. */
    void (*pace)(void *context, size_t bytes);
    void *context;
};

struct snapshot_writer;
/* in_flight: blocks, 1 to 64; 0: CAIRN_SNAPSHOT_IN_FLIGHT. CAIRN_ERR_NO_MEMORY. */
cairn_status snapshot_writer_open(uint32_t in_flight, struct snapshot_writer **out,
                                  struct sentence *why) CAIRN_MUST_CHECK;
/* Writes one file into the snapshot at `folder`. After a failure the file does not exist (except with
 * CAIRN_ERR_EXISTS: another writer's file stays). sums_out:
 * [snapshot_block_count(file->file_bytes)][CAIRN_SNAPSHOT_SUM_BYTES], the caller's. */
cairn_status snapshot_writer_put(struct snapshot_writer *writer, const char *folder,
                                 const struct snapshot_file *file,
                                 const struct snapshot_input *source, uint8_t *sums_out,
                                 struct sentence *why) CAIRN_MUST_CHECK;
/* Writes a file that does not belong to a snapshot to any path in the folder `at`, which must exist; the
 * caller has checked the path. sums_out: may be NULL. */
cairn_status snapshot_writer_put_other(struct snapshot_writer *writer, const char *at,
                                       const struct snapshot_file *file,
                                       const struct snapshot_input *source, uint8_t *sums_out,
                                       struct sentence *why) CAIRN_MUST_CHECK;
/* True if a file was written through the page cache, because the storage refuses direct writes. */
bool snapshot_writer_buffered(const struct snapshot_writer *writer);
void snapshot_writer_close(struct snapshot_writer *writer);

/* Computes the checksum of a block, XXH3-128. */
void snapshot_sum(const void *bytes, size_t count, uint8_t sum_out[CAIRN_SNAPSHOT_SUM_BYTES]);

/* ==== snapshot io ==== */

/* ---- writing: the files of shards are the writer's (above) ---- */

/* Makes <root>/<job>/<id>/{model,optim}, durably, with an id that did not exist before. `root` must
 * exist. id_out and *folder_out (malloc'ed, the caller's) are set only on success. */
cairn_status snapshot_folder_make(const char *root, const char *job, uint64_t generation,
                                  uint64_t step, char id_out[CAIRN_SNAPSHOT_ID_BYTES],
                                  char **folder_out, struct sentence *why) CAIRN_MUST_CHECK;

/* Writes manifest.json, durably: when it returns CAIRN_OK, the snapshot exists.
 * CAIRN_ERR_CORRUPT if a file that it lists is missing or has another size. */
cairn_status manifest_commit(const char *folder, struct manifest *manifest,
                             struct sentence *why) CAIRN_MUST_CHECK;
/* The same, with a signature by `signer` in manifest.json.minisig, which is durable before manifest.json
 * is. */
cairn_status manifest_commit_signed(const char *folder, struct manifest *manifest,
                                    const struct secret_key *signer,
                                    struct sentence *why) CAIRN_MUST_CHECK;

/* ---- removing ---- */

struct snapshot_removed {
    uint32_t files;
    uint64_t bytes;
};
/* CAIRN_OK if the snapshot has a manifest, whatever that contains. CAIRN_ERR_NOT_FOUND: it has none, or
 * there is no such snapshot. */
cairn_status snapshot_committed(const char *root, const char *job, const char *id,
                                struct sentence *why) CAIRN_MUST_CHECK;
/* CAIRN_OK if everything in the folder belongs to a snapshot, complete or begun. CAIRN_ERR_REFUSED:
 * something does not, and `why` names it: only a part could be removed. CAIRN_ERR_NOT_FOUND: there is no
 * such folder. */
cairn_status snapshot_removable(const char *root, const char *job, const char *id,
                                struct sentence *why) CAIRN_MUST_CHECK;
/* The first step of a removal: removes the manifest, durably; from then on the snapshot is not listed. It
 * may lack a manifest already. */
cairn_status snapshot_uncommit(const char *root, const char *job, const char *id,
                               struct snapshot_removed *removed_out,
                               struct sentence *why) CAIRN_MUST_CHECK;
/* Removes a snapshot, complete, begun or partly removed: the manifest first and durably, then the rest.
 * Files that are left after a crash or a failure are no snapshot; another call removes these files.
 * CAIRN_ERR_NOT_FOUND: there is no such folder. CAIRN_ERR_REFUSED: it is not removable. The caller must
 * know that nobody writes or reads the snapshot. */
cairn_status snapshot_remove(const char *root, const char *job, const char *id,
                             struct snapshot_removed *removed_out,
                             struct sentence *why) CAIRN_MUST_CHECK;

/* ---- reading ---- */

/* Loads the manifest with its signature, if it has one; the signature is not checked here (snapshot.h).
 * CAIRN_ERR_NOT_FOUND: there is no such folder, or it has no manifest, so it is not a snapshot. */
cairn_status manifest_load(const char *folder, struct manifest *out,
                           struct sentence *why) CAIRN_MUST_CHECK;

/* Calls on_snapshot for every committed snapshot of `job` (NULL = of all jobs) under root, oldest step
 * first; the strings are borrowed for the call. The manifest exists, but was not checked. A missing root or
 * job has no snapshots. A folder that cannot be read is skipped: the result is CAIRN_OK, and `why`,
 * otherwise empty, names it. It is an error only if the root, or the folder of the requested `job`, cannot
 * be read. Links are not followed. */
typedef void (*snapshot_fn)(void *context, const char *job, const char *id, const char *folder);
cairn_status snapshot_list(const char *root, const char *job, snapshot_fn on_snapshot,
                           void *context, struct sentence *why) CAIRN_MUST_CHECK;

/* The highest generation in the names of the job's snapshots, complete or not, under root; 0: it has none.
 * If a job gets a higher generation, its versions differ from the versions of all these snapshots, and
 * follow them. */
cairn_status snapshot_last_generation(const char *root, const char *job, uint64_t *out,
                                      struct sentence *why) CAIRN_MUST_CHECK;

/* A file's header as it was read by open: the first blocks must have the same header when they are read
 * again. */
struct snapshot_header {
    uint64_t bytes, sum; /* of the header, with the 8 bytes before it; XXH3-64 */
    bool is_judged;      /* the checksums of its blocks were checked */
};

/* A snapshot that passed every check of open. Read by one thread at a time. */
struct snapshot {
    struct manifest manifest;    /* owned */
    struct snapshot_index index; /* owned */
    /* owned */
    char *folder;
    struct snapshot_header *headers; /* [manifest.file_count] */
    struct block_reader *reader;     /* NULL until something is read */

    /* Set by the caller before the first read: blocks that are read ahead; 0: the default. A caller that
     * reads in many places at once needs two for each place, otherwise blocks are read again and again */
    uint32_t ahead;
};

/* Loads the manifest and checks that each file exists with its size, that the headers are well
 * formed, and that every plane of every tensor is covered exactly once. `why` names what is wrong. Reads
 * headers only. */
cairn_status snapshot_open(const char *folder, struct snapshot *snapshot_out,
                           struct sentence *why) CAIRN_MUST_CHECK;

/* The options of snapshot_verify. */
struct verify {
    bool quick;      /* the checks of open are enough */
    double fraction; /* of the blocks, chosen at random; 0: all of them */
    uint32_t ahead;  /* blocks that are read ahead; 0: the default */
    /* Called after each block; `done` of `total` bytes, where blocks that were not chosen count as done.
     * False: cancel. */
    bool (*progress)(void *context, uint64_t done, uint64_t total, const char *file);
    /* Called for each damage, `what` names file, block and tensors; then verify continues. NULL: the first
     * damage ends it. */
    void (*damage)(void *context, const char *what);
    void *context;
};
/* Reads the chosen blocks past the page cache, and compares them with the checksums of the
 * manifest; verify NULL: every byte. CAIRN_ERR_CHECKSUM: some are damaged, `why` names the first;
 * CAIRN_ERR_CORRUPT; CAIRN_ERR_CANCELED; CAIRN_ERR_IO. */
cairn_status snapshot_verify(struct snapshot *snapshot, const struct verify *verify,
                             struct sentence *why) CAIRN_MUST_CHECK;
/* Reads elements [first_elem, first_elem + elem_count) of a stored plane into out, in spec_plane_dtype,
 * whichever files they are in; a caller that reads in the order of the files has blocks read ahead.
 * CAIRN_ERR_INVALID: the plane is not stored or has no such elements. CAIRN_ERR_CHECKSUM: one of their
 * blocks is damaged (not detected for a manifest before version 4). */
cairn_status snapshot_read(struct snapshot *snapshot, uint32_t tensor, uint32_t plane,
                           uint64_t first_elem, uint64_t elem_count, void *out,
                           struct sentence *why) CAIRN_MUST_CHECK;
/* For a caller that does not read in the order of the files: announces elements that it will read after
 * those announced before, so that they are read ahead. Returns how many elements, from the first, are
 * accepted. There is no room yet for the remaining elements: announce them again after some were read. */
uint64_t snapshot_want(struct snapshot *snapshot, uint32_t tensor, uint32_t plane,
                       uint64_t first_elem, uint64_t elem_count);
void snapshot_close(struct snapshot *snapshot);

/* ==== word ==== */

/* Small words beside the snapshots of a job, each a file with one line, replaced durably and atomically:
 *
 *   <root>/<job>/latest       the id of the newest snapshot that was verified
 *   <root>/<job>/tags/NAME    the id of a snapshot that is never removed automatically
 *   <root>/<job>/checks/ID    "good SECONDS" or "damaged SECONDS": when it was last read completely (since
 *                             1970)
 *   <root>/<job>/begun/ID     the number (16 hex digits) of the job that is taking or removing this
 *                             snapshot, from the beginning until the snapshot is committed, or is gone: so
 *                             leftovers of a crash can be recognized
 *
 * They are untrusted input: a line of another form is ignored. All functions block, and may be called from
 * any thread; if two threads write one word at the same time, the word has one of the two values. */

#define CAIRN_SNAPSHOT_TAG_BYTES 65   /* with the NUL */
#define CAIRN_SNAPSHOT_WORDS_MAX 4096 /* of each kind; more are CAIRN_ERR_INVALID */

/* 1 to 64 of A-Z a-z 0-9 . _ -, not beginning with . or -; not "latest", no id, and not ending in
 * ".tmp". */
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
    uint64_t job; /* the job's number */
};
struct snapshot_words {
    char latest[CAIRN_SNAPSHOT_ID_BYTES]; /* empty: none */
    /* owned */
    struct snapshot_tag *tags;     /* [tag_count], by name */
    struct snapshot_check *checks; /* [check_count] */
    struct snapshot_begun *begun;  /* [begun_count] */
    size_t tag_count, check_count, begun_count;
};

/* Loads all words of a job; release them, whatever it returned. CAIRN_ERR_CORRUPT: a tag exists but cannot
 * be read, so it is not known which snapshot it protects. A `latest` or a check of another form is left
 * out. */
cairn_status snapshot_words_load(const char *root, const char *job, struct snapshot_words *out,
                                 struct sentence *why) CAIRN_MUST_CHECK;
void snapshot_words_release(struct snapshot_words *words);
/* Returns the check of the snapshot with that id; NULL: there is none. */
const struct snapshot_check *snapshot_words_check(const struct snapshot_words *words,
                                                  const char *id);

/* The caller must have checked names and ids. */
cairn_status snapshot_latest_set(const char *root, const char *job, const char *id,
                                 struct sentence *why) CAIRN_MUST_CHECK;
cairn_status snapshot_tag_set(const char *root, const char *job, const char *name, const char *id,
                              struct sentence *why) CAIRN_MUST_CHECK;
cairn_status snapshot_check_set(const char *root, const char *job,
                                const struct snapshot_check *check,
                                struct sentence *why) CAIRN_MUST_CHECK;
cairn_status snapshot_begun_set(const char *root, const char *job, const char *id, uint64_t number,
                                struct sentence *why) CAIRN_MUST_CHECK;

/* Remove a word, durably. CAIRN_ERR_NOT_FOUND: there is no such word. */
cairn_status snapshot_latest_remove(const char *root, const char *job,
                                    struct sentence *why) CAIRN_MUST_CHECK;
cairn_status snapshot_tag_remove(const char *root, const char *job, const char *name,
                                 struct sentence *why) CAIRN_MUST_CHECK;
/* Remove the word about a snapshot: its check when the snapshot is gone, `begun` when it is gone or
 * committed. If the removal fails, the word that stays is harmless. */
void snapshot_check_forget(const char *root, const char *job, const char *id);
void snapshot_begun_forget(const char *root, const char *job, const char *id);

/* ==== sweep ==== */

/* Reads a large part of a snapshot at the speed of the disk: in the order of the files, past the page
 * cache, on several threads. Each thread passes the elements that it has read to the caller. Every byte is
 * read once; bytes that were not requested are read only if they fill a small gap.
 *
 * The checksums of blocks are not checked here, because a range is seldom a whole block: the caller hashes
 * what it gets, leaf by leaf, and compares the content root; snapshot_verify then finds the damaged block.
 *
 * Memory: CAIRN_SWEEP_THREADS blocks. */

#define CAIRN_SWEEP_THREADS 6u /* some wait for the disk while others hash */

/* Whole leaves of a stored plane, of at most CAIRN_SNAPSHOT_BLOCK_BYTES. */
struct sweep_range {
    uint32_t tensor, plane; /* as the snapshot numbers them */
    uint64_t first_elem, elem_count;
    uint64_t first_leaf, leaf_count;
    uint64_t place; /* for the caller's use */
};

/* All zero means empty. */
struct sweep_ranges {
    struct sweep_range *list; /* owned: [count] */
    size_t count, capacity;
};
void sweep_ranges_release(struct sweep_ranges *ranges);
/* Adds leaves [first_leaf, end_leaf) of a plane, cut into parts that are as large as allowed and whose
 * leaves are one node of their tree; each part gets the same `place`. CAIRN_ERR_NO_MEMORY. */
cairn_status sweep_ranges_add(struct sweep_ranges *ranges, const struct geometry *geometry,
                              size_t elem_bytes, const struct sweep_range *whole,
                              struct sentence *why) CAIRN_MUST_CHECK;

/* A sweep: the snapshot, and the callback that takes its elements. */
struct sweep {
    const struct snapshot *snapshot;
    /* Called once for each range, on any of the threads. At most CAIRN_SWEEP_THREADS calls run at a time,
     * and `thread` is below that number. The elements are borrowed for the call. A result other than
     * CAIRN_OK ends the sweep. */
    cairn_status (*take)(void *context, uint32_t thread, const struct sweep_range *range,
                         const void *elems, struct sentence *why);
    void *context;
    const atomic_bool *canceled; /* NULL: never */
};
/* Sorts the ranges. CAIRN_ERR_CORRUPT: a file is missing, or has another size; CAIRN_ERR_IO;
 * CAIRN_ERR_CANCELED; CAIRN_ERR_INVALID: the snapshot has no such elements; or what `take` returned. */
cairn_status snapshot_sweep(const struct sweep *sweep, struct sweep_ranges *ranges,
                            struct sentence *why) CAIRN_MUST_CHECK;

/* ==== copy ==== */

/* Copies a snapshot from one storage to another, byte for byte: files first, then the signature,
 * then the manifest, so that a crash leaves nothing that counts as a snapshot. Each block is checked by the
 * manifest's checksums before it is written.
 *
 * All functions block; call them from any thread. Statuses as above. */

struct snapshot_copy {
    /* Called before each block, and at the end; `done` of all files' bytes were read and checked. False:
     * cancel. NULL: not called. */
    bool (*progress)(void *context, uint64_t done);
    void *context;
};
/* Copies the opened snapshot to <root>/<its job>/<its id>; `root` must exist. *folder_out is malloc'ed, the
 * caller's, set on success. CAIRN_ERR_EXISTS: that folder exists, complete or begun. CAIRN_ERR_CANCELED.
 * After a failure what was written is removed. */
cairn_status snapshot_copy(struct snapshot *snapshot, const char *root,
                           const struct snapshot_copy *copy, char **folder_out,
                           struct sentence *why) CAIRN_MUST_CHECK;

/* ==== weights ==== */

/* The parameters of a snapshot as weights: for a job that begins with them, but not with the optimizer's
 * state and the step. */

/* As weights_open. From a folder with a snapshot's manifest it takes the parameters and buffers, by the
 * names that they have in its job. Every byte that is read is checked by the checksum of its block, so
 * reads have the statuses of snapshot_read, too. The signature is not checked: weights from elsewhere have
 * none. */
cairn_status snapshot_weights_open(const char *roots, const char *path, struct weights *out,
                                   struct sentence *why) CAIRN_MUST_CHECK;

#endif
