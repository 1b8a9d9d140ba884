/* Snapshots on storage: how they are made, committed, listed, read and removed. snapshot.h describes their
 * bytes, and in which order the functions are called. storage.h describes the storage, and what it
 * promises. A `root` is a location, and "<root>/<job>/<id>" is the folder of a snapshot.
 *
 * All functions block, and may be called from any thread except the loop's. A folder in storage is
 * untrusted input. Only names of our own form are opened, relative to the folder, and never through a
 * symbolic link. Each must be a regular file of the size that the manifest gives. Statuses:
 * CAIRN_ERR_NO_SPACE (also quota and limits of a file's size), CAIRN_ERR_IO, CAIRN_ERR_EXISTS,
 * CAIRN_ERR_NOT_FOUND, CAIRN_ERR_CORRUPT and CAIRN_ERR_MALFORMED (damaged or incomplete),
 * CAIRN_ERR_NO_MEMORY. The sentence names the file and the step (open, write, fsync, rename, ...). */
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
 * caller. The checksum of each block is checked while the block is in the CPU's cache. If the manifest is
 * older than version 4, files have no checksums of blocks, and blocks are not checked.
 *
 * Only one thread may use a reader. The reader starts threads of its own, with the priorities of that
 * thread. Its memory is that of the blocks that are read ahead. */

#define CAIRN_READ_AHEAD 4 /* the default number of blocks */

struct block_reader;
/* Opens a reader of the snapshot at `folder`. Folder and manifest are borrowed, and the manifest must not
 * change. CAIRN_ERR_NO_MEMORY. */
cairn_status block_reader_open(const char *folder, const struct manifest *manifest, uint32_t ahead,
                               struct block_reader **out, struct sentence *why) CAIRN_MUST_CHECK;
/* Gives a block of a file of the manifest, and how many bytes the block has. The bytes are borrowed until
 * the next get or return. Meanwhile the reader reads the blocks that follow, also those of the next file;
 * if snapshot_want has told which blocks come next, it reads these instead. CAIRN_ERR_CHECKSUM: this block
 * is damaged, others may be good. CAIRN_ERR_CORRUPT: the file is missing, or has another size.
 * CAIRN_ERR_IO. The sentence names the file and, if a block is damaged, the block. */
cairn_status block_reader_get(struct block_reader *reader, size_t file, uint64_t block,
                              const uint8_t **bytes_out, size_t *count_out,
                              struct sentence *why) CAIRN_MUST_CHECK;

void block_reader_close(struct block_reader *reader);

/* Fails, with a sentence, if a file could not be opened, or has another size than the manifest says.
 * `opened` is the status of the storage's `open`. */
cairn_status block_reader_judge(const struct manifest_file *listed, const struct storage_file *file,
                                cairn_status opened, struct sentence *why) CAIRN_MUST_CHECK;

/* ==== writer ==== */

/* Writes the planned files of a snapshot, in blocks of 4 MiB. The source fills a block, the block's
 * checksum is made while the block is in the CPU's cache, and the block is written directly to storage
 * while the next one is filled. However large the files are, the writer needs only the memory of the blocks
 * in flight.
 *
 * Only one thread may use a writer. When it writes the first file of more than one block, the writer starts
 * threads of its own, with that thread's priorities of CPU and I/O. All functions block. Statuses are as in
 * storage.h. */

#define CAIRN_SNAPSHOT_IN_FLIGHT 4 /* the default number of blocks */

/* Fills `to` with elements [first_elem, first_elem + elem_count) of the entry's plane, counted row-major in
 * the tensor. They are little endian, in the entry's dtype, and have at most CAIRN_SNAPSHOT_BLOCK_BYTES.
 * The elements of an entry are requested in order, and each of them once. If the function fails, the file
 * fails. */
typedef cairn_status (*snapshot_fill_fn)(void *context, const struct safetensors_entry *entry,
                                         uint64_t first_elem, uint64_t elem_count, void *to,
                                         struct sentence *why);

struct snapshot_input {
    snapshot_fill_fn fill;
    /* Called before each block, with the number of bytes in flight, and after the last block, with 0. The
     * function may wait. NULL: there is no such function. */
    void (*pace)(void *context, size_t bytes);
    void *context;
};

struct snapshot_writer;
/* Opens a writer with 1 to 64 blocks in flight; in_flight 0: CAIRN_SNAPSHOT_IN_FLIGHT.
 * CAIRN_ERR_NO_MEMORY. */
cairn_status snapshot_writer_open(uint32_t in_flight, struct snapshot_writer **out,
                                  struct sentence *why) CAIRN_MUST_CHECK;
/* Writes one file into the snapshot at `folder`. After a failure the file does not exist; but with
 * CAIRN_ERR_EXISTS there is a file of another writer, which stays. sums_out, the caller's, has room for
 * [snapshot_block_count(file->file_bytes)][CAIRN_SNAPSHOT_SUM_BYTES]. */
cairn_status snapshot_writer_put(struct snapshot_writer *writer, const char *folder,
                                 const struct snapshot_file *file,
                                 const struct snapshot_input *source, uint8_t *sums_out,
                                 struct sentence *why) CAIRN_MUST_CHECK;
/* Does the same for a file that does not belong to a snapshot. Its path may be any path in the folder `at`,
 * which must exist. The caller must have checked the path. sums_out may be NULL. */
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

/* ---- writing: the folder and the manifest; the writer (above) writes the files of shards ---- */

/* Makes <root>/<job>/<id>/{model,optim}, durably, with an id that does not exist yet. `root` must exist.
 * Sets id_out, and *folder_out, which is malloc'ed and the caller's, only on success. */
cairn_status snapshot_folder_make(const char *root, const char *job, uint64_t generation,
                                  uint64_t step, char id_out[CAIRN_SNAPSHOT_ID_BYTES],
                                  char **folder_out, struct sentence *why) CAIRN_MUST_CHECK;

/* Writes manifest.json, durably. When this returns CAIRN_OK, the snapshot exists. CAIRN_ERR_CORRUPT: a file
 * that the manifest lists is missing, or has another size. */
cairn_status manifest_commit(const char *folder, struct manifest *manifest,
                             struct sentence *why) CAIRN_MUST_CHECK;
/* Does the same, and before that writes manifest.json.minisig, durably, with a signature by `signer`. */
cairn_status manifest_commit_signed(const char *folder, struct manifest *manifest,
                                    const struct secret_key *signer,
                                    struct sentence *why) CAIRN_MUST_CHECK;

/* ---- removing ---- */

struct snapshot_removed {
    uint32_t files;
    uint64_t bytes;
};
/* Returns CAIRN_OK if the snapshot has a manifest, whatever is in the manifest. CAIRN_ERR_NOT_FOUND: the
 * snapshot has none, or there is no such snapshot. */
cairn_status snapshot_committed(const char *root, const char *job, const char *id,
                                struct sentence *why) CAIRN_MUST_CHECK;
/* Returns CAIRN_OK if everything in the folder belongs to a snapshot, complete or begun. CAIRN_ERR_REFUSED:
 * something that `why` names does not belong to a snapshot, so only a part of the folder could be removed.
 * CAIRN_ERR_NOT_FOUND: there is no such folder. */
cairn_status snapshot_removable(const char *root, const char *job, const char *id,
                                struct sentence *why) CAIRN_MUST_CHECK;
/* The first step of a removal: removes the manifest, durably. From then on the snapshot is not listed. If
 * there is no manifest, returns CAIRN_OK. */
cairn_status snapshot_uncommit(const char *root, const char *job, const char *id,
                               struct snapshot_removed *removed_out,
                               struct sentence *why) CAIRN_MUST_CHECK;
/* Removes a snapshot, which may be complete, begun or partly removed. The manifest is removed first,
 * durably, then the rest. After a crash or a failure, the files that are left are no snapshot, and another
 * call removes them. CAIRN_ERR_NOT_FOUND: there is no such folder. CAIRN_ERR_REFUSED: the folder is not
 * removable. The caller must know that nobody writes or reads the snapshot. */
cairn_status snapshot_remove(const char *root, const char *job, const char *id,
                             struct snapshot_removed *removed_out,
                             struct sentence *why) CAIRN_MUST_CHECK;

/* ---- reading ---- */

/* Loads the manifest and, if it has one, its signature. The signature is not checked here (see
 * manifest_trust in snapshot.h). CAIRN_ERR_NOT_FOUND: there is no such folder, or the folder has no
 * manifest, so it is not a snapshot. */
cairn_status manifest_load(const char *folder, struct manifest *out,
                           struct sentence *why) CAIRN_MUST_CHECK;

/* Calls on_snapshot for every committed snapshot of `job` (NULL: of every job) under `root`. The snapshots
 * of a job come in the order of their steps, the lowest first. The strings are borrowed for the call. Each
 * snapshot has a manifest, which was not checked. If the root or the job is missing, there are no
 * snapshots. The function fails if the root, or the folder of the requested `job`, cannot be read. Any
 * other folder that cannot be read is skipped: the result is then CAIRN_OK, and `why`, which is empty
 * otherwise, names the folder. Links are not followed. */
typedef void (*snapshot_fn)(void *context, const char *job, const char *id, const char *folder);
cairn_status snapshot_list(const char *root, const char *job, snapshot_fn on_snapshot,
                           void *context, struct sentence *why) CAIRN_MUST_CHECK;

/* Sets *out to the highest generation in the names of the job's snapshots under `root`, complete or not; 0:
 * the job has no snapshots. If a job gets a higher generation, its versions differ from the versions of all
 * these snapshots, and follow them. */
cairn_status snapshot_last_generation(const char *root, const char *job, uint64_t *out,
                                      struct sentence *why) CAIRN_MUST_CHECK;

/* The header of a file as snapshot_open has read it. When the first blocks of the file are read again, they
 * must have the same header. */
struct snapshot_header {
    /* bytes: the size of the header, with the 8 bytes before it. sum: the XXH3-64 of these bytes */
    uint64_t bytes, sum;
    bool is_judged; /* true: the checksums of the header's blocks were checked */
};

/* A snapshot that has passed every check of snapshot_open. Only one thread at a time may read it. */
struct snapshot {
    struct manifest manifest;    /* owned */
    struct snapshot_index index; /* owned */
    /* owned */
    char *folder;
    struct snapshot_header *headers; /* [manifest.file_count] */
    struct block_reader *reader;     /* NULL: nothing was read yet */

    /* How many blocks are read ahead; 0: the default. The caller sets this before the first read. If it
     * reads in many places at once, it needs two blocks for each place; with fewer, blocks are read again
     * and again */
    uint32_t ahead;
};

/* Loads the manifest. Checks that each file exists and has its size, that the headers are well formed, and
 * that every plane of every tensor is covered exactly once. Reads only the headers of the files. `why`
 * names what is wrong. */
cairn_status snapshot_open(const char *folder, struct snapshot *snapshot_out,
                           struct sentence *why) CAIRN_MUST_CHECK;

/* The options of snapshot_verify. */
struct verify {
    bool quick; /* true: the checks of snapshot_open are enough */
    /* the fraction of the blocks that are checked, chosen at random; 0: all blocks are checked */
    double fraction;
    uint32_t ahead; /* how many blocks are read ahead; 0: the default */
    /* Called after each block: `done` of `total` bytes are done. Blocks that were not chosen count as done.
     * If the function returns false, the verification is canceled. */
    bool (*progress)(void *context, uint64_t done, uint64_t total, const char *file);
    /* Called for each damage; `what` names the file, the block and the tensors. After the call the
     * verification continues. NULL: the first damage ends the verification. */
    void (*damage)(void *context, const char *what);
    void *context;
};
/* Reads the chosen blocks past the page cache, and compares them with the checksums of the manifest.
 * `verify` NULL: every block is chosen. CAIRN_ERR_CHECKSUM: some blocks are damaged, and `why` names the
 * first of them. CAIRN_ERR_CORRUPT, CAIRN_ERR_CANCELED, CAIRN_ERR_IO. */
cairn_status snapshot_verify(struct snapshot *snapshot, const struct verify *verify,
                             struct sentence *why) CAIRN_MUST_CHECK;
/* Reads elements [first_elem, first_elem + elem_count) of a stored plane into `out`, as spec_plane_dtype.
 * The elements may be in any files. If the caller reads in the order of the files, blocks are read ahead.
 * CAIRN_ERR_INVALID: the plane is not stored, or has no such elements. CAIRN_ERR_CHECKSUM: a block with
 * some of these elements is damaged; for a manifest before version 4 this is not detected. */
cairn_status snapshot_read(struct snapshot *snapshot, uint32_t tensor, uint32_t plane,
                           uint64_t first_elem, uint64_t elem_count, void *out,
                           struct sentence *why) CAIRN_MUST_CHECK;
/* For a caller that does not read in the order of the files: announces elements, so that they are read
 * ahead. The caller must read them after all elements that it announced before. Returns how many of the
 * elements, from the first on, are accepted. For the other elements there is no room yet, so the caller
 * must announce them again when it has read some. */
uint64_t snapshot_want(struct snapshot *snapshot, uint32_t tensor, uint32_t plane,
                       uint64_t first_elem, uint64_t elem_count);
void snapshot_close(struct snapshot *snapshot);

/* ==== word ==== */

/* A word is a small file with one line, beside the snapshots of a job. It is replaced durably and
 * atomically.
 *
 *   <root>/<job>/latest       the id of the newest snapshot that was verified
 *   <root>/<job>/tags/NAME    the id of a snapshot that is never removed automatically
 *   <root>/<job>/checks/ID    "good SECONDS" or "damaged SECONDS": the result when the snapshot was last
 *                             read completely, and when this was (seconds since 1970)
 *   <root>/<job>/begun/ID     the id (16 hex digits) of the job that is taking or removing this snapshot.
 *                             The word is removed when the snapshot is committed, or is gone. Leftovers of
 *                             a crash can thus be recognized
 *
 * Words are untrusted input: a line of another form is ignored. All functions block, and may be called from
 * any thread. If two threads write the same word at the same time, the word has one of the two values. */

#define CAIRN_SNAPSHOT_TAG_BYTES 65 /* bytes of a tag's name, with the NUL */
/* the most words of each kind; if there are more: CAIRN_ERR_INVALID */
#define CAIRN_SNAPSHOT_WORDS_MAX 4096

/* Returns true if a tag may have this name. A name has 1 to 64 of the characters A-Z a-z 0-9 . _ -, and
 * does not begin with . or -. It is neither "latest" nor an id, and does not end in ".tmp". */
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
    uint64_t job; /* id of the job */
};
struct snapshot_words {
    char latest[CAIRN_SNAPSHOT_ID_BYTES]; /* empty: there is no such word */
    /* owned */
    struct snapshot_tag *tags;     /* [tag_count], sorted by name */
    struct snapshot_check *checks; /* [check_count] */
    struct snapshot_begun *begun;  /* [begun_count] */
    size_t tag_count, check_count, begun_count;
};

/* Loads all words of a job. `out` must be released whatever the function returned. CAIRN_ERR_CORRUPT: a tag
 * exists and cannot be read, so it is not known which snapshot it protects. Any other word of another form
 * is left out. */
cairn_status snapshot_words_load(const char *root, const char *job, struct snapshot_words *out,
                                 struct sentence *why) CAIRN_MUST_CHECK;
void snapshot_words_release(struct snapshot_words *words);
/* Returns the check of the snapshot with that id; NULL: there is none. */
const struct snapshot_check *snapshot_words_check(const struct snapshot_words *words,
                                                  const char *id);

/* Write a word. The caller must have checked names and ids. */
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
/* Remove a word about a snapshot: its check, when the snapshot is gone, or its `begun`, when the snapshot
 * is gone or committed. If such a removal fails, the word stays, and does no harm. */
void snapshot_check_forget(const char *root, const char *job, const char *id);
void snapshot_begun_forget(const char *root, const char *job, const char *id);

/* ==== sweep ==== */

/* Reads a large part of a snapshot at the speed of the disk: in the order of the files, past the page
 * cache, and on several threads. Each thread passes the elements that it has read to the caller. Every
 * requested byte is read once. Other bytes are read only if they are a small gap between requested ones.
 *
 * The checksums of blocks are not checked here, because a range is seldom a whole block. Instead, the
 * caller hashes what it gets, leaf by leaf, and compares the content root. If the content root is wrong,
 * snapshot_verify finds the damaged block.
 *
 * A sweep needs the memory of CAIRN_SWEEP_THREADS blocks. */

#define CAIRN_SWEEP_THREADS 6u /* while some threads wait for the disk, others hash */

/* Whole leaves of a stored plane, with at most CAIRN_SNAPSHOT_BLOCK_BYTES. */
struct sweep_range {
    uint32_t tensor, plane; /* as they are numbered in the snapshot */
    uint64_t first_elem, elem_count;
    uint64_t first_leaf, leaf_count;
    uint64_t place; /* for the caller's use */
};

/* A list of ranges; all zero: empty. */
struct sweep_ranges {
    struct sweep_range *list; /* owned: [count] */
    size_t count, capacity;
};
void sweep_ranges_release(struct sweep_ranges *ranges);
/* Adds the leaves of `whole`, cut into parts. A part is cut where a node of the leaves' tree begins or
 * ends, and is as large as allowed; the first and the last part may be smaller. Each part gets the same
 * `place`. CAIRN_ERR_NO_MEMORY. */
cairn_status sweep_ranges_add(struct sweep_ranges *ranges, const struct geometry *geometry,
                              size_t elem_bytes, const struct sweep_range *whole,
                              struct sentence *why) CAIRN_MUST_CHECK;

/* A sweep: the snapshot, and the callback that takes the snapshot's elements. */
struct sweep {
    const struct snapshot *snapshot;
    /* Called once for each range, on any of the threads. At most CAIRN_SWEEP_THREADS calls run at a time.
     * `thread` is the number of the thread, from 0. The elements are borrowed for the call. A failure ends
     * the sweep. */
    cairn_status (*take)(void *context, uint32_t thread, const struct sweep_range *range,
                         const void *elems, struct sentence *why);
    void *context;
    const atomic_bool *canceled; /* true: the sweep is given up; NULL: it never is */
};
/* Sweeps the ranges, and sorts them for this. CAIRN_ERR_CORRUPT: a file is missing, or has another size.
 * CAIRN_ERR_INVALID: the snapshot has no such elements. CAIRN_ERR_IO, CAIRN_ERR_CANCELED. If `take` fails,
 * returns the status of `take`. */
cairn_status snapshot_sweep(const struct sweep *sweep, struct sweep_ranges *ranges,
                            struct sentence *why) CAIRN_MUST_CHECK;

/* ==== copy ==== */

/* Copies a snapshot from one storage to another, byte for byte. The files are copied first, then the
 * signature, then the manifest, so that a crash leaves nothing that counts as a snapshot. The checksum of
 * each block is checked before the block is written.
 *
 * The function blocks, and may be called from any thread. Statuses are as above. */

struct snapshot_copy {
    /* Called before each block, and at the end, with how many bytes of the files were read and checked. If
     * the function returns false, the copy is canceled. NULL: there is no such function. */
    bool (*progress)(void *context, uint64_t done);
    void *context;
};
/* Copies the opened snapshot to <root>/<its job>/<its id>. `root` must exist. On success sets *folder_out,
 * which is malloc'ed and the caller's. After a failure, removes what it has written. CAIRN_ERR_EXISTS: the
 * folder exists already, complete or begun. CAIRN_ERR_CANCELED. */
cairn_status snapshot_copy(struct snapshot *snapshot, const char *root,
                           const struct snapshot_copy *copy, char **folder_out,
                           struct sentence *why) CAIRN_MUST_CHECK;

/* ==== weights ==== */

/* The parameters of a snapshot as weights, for a job that begins with these parameters, and not with the
 * snapshot's optimizer state and step. */

/* Does what weights_open does. If the folder has the manifest of a snapshot, it takes the parameters and
 * buffers of the snapshot, with the names that they have in the snapshot's job. The checksum of each block
 * that is read is checked, so reads have the statuses of snapshot_read, too. The signature is not checked,
 * because weights from elsewhere have none. */
cairn_status snapshot_weights_open(const char *roots, const char *path, struct weights *out,
                                   struct sentence *why) CAIRN_MUST_CHECK;

#endif
