/* Writes the planned files of a snapshot, in blocks of 4 MiB: a block is filled by the source, its checksum
 * is made while it is in the cache, and it goes to storage, direct, while the next is filled. Memory is
 * that of the blocks in flight, whatever the files' sizes.
 *
 * A writer is used by one thread; its threads are started by that one when a file of more than a block
 * comes, with that one's priorities of CPU and I/O. All functions block. Statuses as of storage.h. */
#ifndef CAIRN_SNAPSHOT_IO_WRITER_H
#define CAIRN_SNAPSHOT_IO_WRITER_H

#include "proto/snapshot/snapshot_file.h"
#include "proto/store/storage.h"

#define CAIRN_SNAPSHOT_IN_FLIGHT 4 /* blocks, if nothing else is said */

/* Fills `to` with elements [first_elem, first_elem + elem_count) (row-major in the tensor) of the entry's
 * plane, little endian, in its dtype: at most CAIRN_SNAPSHOT_BLOCK_BYTES. The elements of an entry are
 * asked for in order, each once. Another status than CAIRN_OK ends the file. */
typedef cairn_status (*cairn_snapshot_fill_fn)(void *context,
                                               const struct cairn_safetensors_entry *entry,
                                               uint64_t first_elem, uint64_t elem_count, void *to,
                                               struct cairn_sentence *why);

struct cairn_snapshot_source {
    cairn_snapshot_fill_fn fill;
    /* Before each block, and behind the last (`bytes` 0): so many bytes are in flight. It may wait. NULL:
     * none. */
    void (*pace)(void *context, size_t bytes);
    void *context;
};

struct cairn_snapshot_writer;
/* in_flight: blocks, 1 to 64; 0: CAIRN_SNAPSHOT_IN_FLIGHT. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_snapshot_writer_open(uint32_t in_flight, struct cairn_snapshot_writer **out,
                                        struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Writes one file into the snapshot at `folder`. On failure it is not there (but CAIRN_ERR_EXISTS: another
 * writer's stays). sums_out: [cairn_snapshot_block_count(file->file_bytes)][CAIRN_SNAPSHOT_SUM_BYTES], the
 * caller's. */
cairn_status cairn_snapshot_writer_put(struct cairn_snapshot_writer *writer, const char *folder,
                                       const struct cairn_snapshot_file *file,
                                       const struct cairn_snapshot_source *source,
                                       uint8_t *sums_out,
                                       struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Writes a file that is no snapshot's, of any path in the folder `at`, which is there; the caller has
 * judged it. sums_out: may be NULL. */
cairn_status cairn_snapshot_writer_put_other(struct cairn_snapshot_writer *writer, const char *at,
                                             const struct cairn_snapshot_file *file,
                                             const struct cairn_snapshot_source *source,
                                             uint8_t *sums_out,
                                             struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* A file was written through the page cache, since the storage refuses direct writes. */
bool cairn_snapshot_writer_buffered(const struct cairn_snapshot_writer *writer);
void cairn_snapshot_writer_close(struct cairn_snapshot_writer *writer);

/* One file, with a writer of its own. */
cairn_status cairn_snapshot_write_file(const char *folder, const struct cairn_snapshot_file *file,
                                       cairn_snapshot_fill_fn fill, void *context,
                                       uint8_t *sums_out,
                                       struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* XXH3-128 of a block. */
void cairn_snapshot_sum(const void *bytes, size_t count, uint8_t sum_out[CAIRN_SNAPSHOT_SUM_BYTES]);

#endif
