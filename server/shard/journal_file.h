/* The files of a part's journal: the sums of its rounds, out of which the next process makes the state again
 * if all memory was lost. Operators call it the log of a job (durability = log); journal.h has the picture.
 * Blocking; any thread; one writer for each segment.
 *
 *   FOLDER/part                  what the part is: struct journal_part, spec, layout. Replaced as a whole
 *   FOLDER/base                  the snapshot on which it stands: struct journal_base, the snapshot's path
 *   FOLDER/newest                which segment was begun last: struct journal_newest
 *   FOLDER/000000000000000a.seg  a segment, of fixed size, with the entries one after the other
 *
 *   entry     front │ the same front once more │ data, of a ROUND
 *   front     struct journal_head, the chunks, the decision's payload, the frozen tensors; whole blocks
 *
 *   START     first in a segment: how far the machine is; a ROUND may be prepared. The entries of the segment
 *             before that have this number or a higher one are void: they were cut off
 *   ROUND     the sums of a round, before it is reported as REDUCED
 *   DECISION  an APPLY, before the update begins; or a SKIP, before it is reported
 *
 * Only one entry of a journal is written at a time, and it is synced before the next one begins. So only the
 * last entry can be torn, and it was not acknowledged. An entry that is damaged and has another one behind it
 * was acknowledged: the journal is refused, with the place. A front is there twice, because a decision that
 * was acknowledged may be the last entry. A ROUND that is the last entry, and is damaged, counts as torn: if
 * another shard or the coordinator knows that it was decided, the part is refused there (core/step.h,
 * RESOLVE). */
#ifndef CAIRN_SHARD_JOURNAL_FILE_H
#define CAIRN_SHARD_JOURNAL_FILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/text.h"
#include "server/core/journal.h"
#include "proto/snapshot/digest_tree.h"
#include "server/core/standing.h"
#include "server/shard/kept_file.h"

/* Another format is refused by name. 2: the base has the snapshot's content root. */
#define JOURNAL_FORMAT 2
/* Everything in a segment begins at a multiple of it, because writes pass by the page cache. */
#define JOURNAL_BLOCK 4096u
/* The data of a ROUND lies in runs of whole chunks, each run at a block of its own, so that several threads
 * write it. A run is at least as large, unless it is the last one. */
#define JOURNAL_RUN_BYTES ((uint64_t)4 << 20)

struct journal_head {
    char magic[8];
    uint32_t format, kind;
    uint64_t log;     /* the log's random number */
    uint64_t segment; /* its number */
    uint64_t entry;   /* counted through all segments, without gaps */
    uint64_t at;      /* where in the segment the entry begins */
    uint64_t copy;    /* 0 or 1 */
    uint64_t chunk_count, frozen_bytes, data_bytes;
    /* As kept (kept_file.h). ROUND: REDUCED, with the decision before. DECISION: UPDATING */
    struct kept_outcome outcome;
    uint64_t body_checksum; /* of the rest of the front */
    uint64_t checksum;      /* of the head before this field */
};

/* A chunk of a ROUND, and where its sums lie in the data. */
struct journal_chunk {
    uint64_t tensor, first_leaf;
    uint64_t at, bytes;
    uint64_t checksum; /* chunk_checksum of its sums */
};

/* ---- the part, and its base ---- */

/* After it: the spec; the amended spec; the layout. */
struct journal_part {
    char magic[8];
    uint32_t format, unused;
    char build[KEPT_BUILD_BYTES];
    uint64_t checksum; /* of the bytes after this field */
    uint64_t bytes;    /* of the whole file */
    uint64_t log;
    uint64_t store; /* the identity of the coordinator's store */
    uint64_t job, generation, base_step, layout, revision;
    uint64_t state_bytes;
    uint32_t shard_index, member_max;
    char name[CAIRN_NAME_MAX + 1], shard[CAIRN_NAME_MAX + 1];
    uint64_t spec_bytes, amended_bytes, layout_bytes;
};
/* Fills in magic, format, and the checksum of the complete file. */
void journal_part_seal(struct journal_part *part);
/* Reads it; malloc'ed, the caller's. CAIRN_ERR_NOT_FOUND, CAIRN_ERR_VERSION, CAIRN_ERR_CHECKSUM,
 * CAIRN_ERR_IO, CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status journal_part_read(const char *folder, struct journal_part **part_out,
                                                struct sentence *why);
CAIRN_MUST_CHECK cairn_status journal_part_write(const char *folder,
                                                 const struct journal_part *part,
                                                 struct sentence *why);

/* After it: the path of the snapshot's folder, path_bytes with the NUL. */
struct journal_base {
    char magic[8];
    uint32_t format, unused;
    uint64_t checksum; /* of the bytes after this field */
    uint64_t log;
    struct cairn_version version;
    struct hash root;
    uint64_t path_bytes;
};
/* The snapshot on which a log stands. Another one may lie at its path by the time that it is loaded: only
 * one with the same content root has the bits to which the sums of the log were added. */
struct log_base {
    struct cairn_version version;
    struct hash root;
    char *path; /* owned; NULL: there is none */
};
/* CAIRN_ERR_NOT_FOUND: the log has no base yet, or one of another log. The statuses of journal_part_read. */
CAIRN_MUST_CHECK cairn_status journal_base_read(const char *folder, uint64_t log,
                                                struct log_base *base_out, struct sentence *why);
CAIRN_MUST_CHECK cairn_status journal_base_write(const char *folder, uint64_t log,
                                                 const struct log_base *base, struct sentence *why);
/* Judges the snapshot that lies at the base's path. CAIRN_ERR_MISMATCH: it is another one. */
CAIRN_MUST_CHECK cairn_status journal_base_judge(const struct log_base *base,
                                                 struct cairn_version version,
                                                 const uint8_t root[CAIRN_HASH_BYTES],
                                                 struct sentence *why);

/* Without it, a newest segment that is missing, or empty, would look like one that was never begun. */
struct journal_newest {
    char magic[8];
    uint32_t format, unused;
    uint64_t checksum; /* of the bytes after this field */
    uint64_t log, segment;
};
/* Is written as soon as the START of the segment is on disk, and before anything of it is acknowledged. */
CAIRN_MUST_CHECK cairn_status journal_newest_write(const char *folder, uint64_t log,
                                                   uint64_t segment, struct sentence *why);

/* Ends a log: when this returns CAIRN_OK, no process makes a part of it any more, even if power is lost. Then
 * removes its files, as far as it can. A folder that is not there is no failure. */
CAIRN_MUST_CHECK cairn_status journal_end(const char *folder, struct sentence *why);

/* Ends the other journals of the same job: the folders beside this one whose names begin with the same 17
 * bytes, the job's number and a dash. After a failure one of them may be valid still, so no other may begin:
 * of two logs of a job the next process could not tell which one counts. */
CAIRN_MUST_CHECK cairn_status journal_end_others(const char *folder, struct sentence *why);

/* ---- writing ---- */

/* A segment that is open for writing. */
struct journal_segment {
    int fd;                /* owned; -1: none */
    atomic_bool is_direct; /* any thread that is refused a direct write makes it false */
    uint64_t number, bytes;
    uint64_t end; /* where the next entry begins */
};

/* The bytes of an entry in a segment. */
uint64_t journal_front_bytes(const struct journal_head *head);
uint64_t journal_entry_bytes(const struct journal_head *head);

/* Makes a segment of so many bytes, durably. After a failure there is none. CAIRN_ERR_NO_SPACE,
 * CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status journal_segment_make(const char *folder, uint64_t number,
                                                   uint64_t bytes,
                                                   struct journal_segment *segment_out,
                                                   struct sentence *why);
void journal_segment_close(struct journal_segment *segment);
/* Closes a segment in which nothing was acknowledged, and removes it. */
void journal_segment_drop(const char *folder, struct journal_segment *segment);
/* Removes the segments below that number, which no replay needs any more, the oldest first. */
void journal_segments_remove(const char *folder, uint64_t number);

/* Makes both fronts of an entry at the segment's end, in 2 * journal_front_bytes of memory. The arrays are
 * as long as the head says; chunks is NULL if there are none. */
void journal_front_make(struct journal_head *head, const struct journal_segment *segment,
                        const struct journal_chunk *chunks, const uint8_t *payload,
                        const bool *frozen, void *fronts);
/* Writes whole blocks out of memory that begins at a block. Several threads may write one segment.
 * CAIRN_ERR_NO_SPACE, CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status journal_write(struct journal_segment *segment, uint64_t at,
                                            const void *from, size_t bytes, struct sentence *why);
/* Makes durable what was written. After a failure the log is ended: the kernel may have dropped what it
 * could not write, and a second sync would not say so. */
CAIRN_MUST_CHECK cairn_status journal_sync(const struct journal_segment *segment,
                                           struct sentence *why);

/* ---- reading ---- */

/* An entry that is intact, but for the data of a ROUND, which is checked when it is read. */
struct journal_entry {
    struct journal_head head;
    uint8_t *body;          /* owned: the front after the head */
    uint64_t segment_bytes; /* of the segment that it is in */
};
static inline const struct journal_chunk *journal_entry_chunks(const struct journal_entry *entry)
{
    return (const struct journal_chunk *)(const void *)entry->body;
}
const uint8_t *journal_entry_payload(const struct journal_entry *entry);
const bool *journal_entry_frozen(const struct journal_entry *entry);

struct journal_entries {
    struct journal_entry *list; /* owned: [count], in order; void ones are left out */
    size_t count, capacity;
    uint64_t segments_end; /* a number that no segment of the folder has reached */
    bool is_torn;          /* the last entry was cut off, and is left out */
};
/* Reads all entries of a log. CAIRN_ERR_NOT_FOUND: there is no segment. CAIRN_ERR_CHECKSUM: an entry or a
 * segment that was acknowledged is damaged or missing, and `why` says which. CAIRN_ERR_VERSION, CAIRN_ERR_IO,
 * CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status journal_read(const char *folder, uint64_t log,
                                           struct journal_entries *out, struct sentence *why);
void journal_entries_release(struct journal_entries *entries);

/* Opens the segment of an entry for journal_read_chunk. -1: `why` says so. */
int journal_segment_open(const char *folder, uint64_t number, struct sentence *why);
/* Reads the sums of a chunk of a ROUND to memory of chunk->bytes. CAIRN_ERR_CHECKSUM: they are damaged.
 * CAIRN_ERR_IO. `why` names segment and place. */
CAIRN_MUST_CHECK cairn_status journal_read_chunk(int fd, const struct journal_entry *entry,
                                                 const struct journal_chunk *chunk, void *to,
                                                 struct sentence *why);

/* ---- the plan (journal_plan.c) ---- */

/* Makes the plan of core/journal.h, which owns its steps. The statuses of journal_plan_of, and
 * CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status journal_plan_make(const struct journal_entries *entries,
                                                struct cairn_version base,
                                                const struct cairn_version *to,
                                                struct journal_plan *plan_out,
                                                struct sentence *why);
void journal_plan_release(struct journal_plan *plan);
/* The ROUND that is prepared, and the last entry, was not written to its end. */
void journal_plan_drop_round(const struct journal_entries *entries, struct journal_plan *plan);

#endif
