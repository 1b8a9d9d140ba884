/* The files that a keeper holds of a part, and the names of their descriptors. kept.h has the picture.
 * Any thread.
 *
 *   3.r7      the record of edition 7 of part 3
 *   3.l7      a ledger, which a record names by its edition
 *   3.n9      the layout that is prepared
 *   3.p2.11   segment 11 of plane 2
 *
 * All numbers are hexadecimal. */
#ifndef CAIRN_SHARD_KEPT_FILE_H
#define CAIRN_SHARD_KEPT_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "proto/wire/wire.h"
#include "gpu/gpu.h"
#include "server/base/keeper.h"
#include "server/core/standing.h"
#include "server/shard/memory.h"

/* Another format is refused by name, and the part is restored from a snapshot. */
#define KEPT_FORMAT      4
#define KEPT_VOID_FORMAT 0 /* of a file whose part goes on without it */
#define KEPT_BUILD_BYTES 64

/* Each file begins with it. */
struct kept_head {
    char magic[8];
    uint32_t format, edition;
};
struct kept_head kept_head(uint32_t edition);
/* True if the file is of this format. */
bool kept_head_is_known(const struct kept_head *head);

/* ---- names ---- */

void kept_name_edition(char name[CAIRN_KEEPER_NAME_MAX + 1], uint32_t part, char what,
                       uint32_t edition);
void kept_name_segment(char name[CAIRN_KEEPER_NAME_MAX + 1], uint32_t part, int plane,
                       uint64_t segment);

/* A name, read. */
struct kept_name {
    char what;             /* 'r', 'l', 'n' or 'p'; 0: it is none of these names */
    uint32_t part, number; /* number: the edition, or the plane */
    uint64_t segment;
};
struct kept_name kept_name_read(const char *text);
/* False if the name is none of that part and kind. Much quicker than to read it. */
bool kept_name_may_be(const char *text, uint32_t part, char what);

/* ---- memory ---- */

/* Maps a new memfd. NULL: `why` says so. */
void *kept_map_new(const char *label, uint64_t bytes, int *fd_out, struct sentence *why);
/* Maps one that came. NULL: it has not even `least` bytes, or cannot be mapped. */
void *kept_map(int fd, uint64_t least, int protection, uint64_t *bytes_out);

/* ---- the record ---- */

/* The head of a record. After it: places, u64[extent_count]; the spec; the amended spec; the
 * layout. */
struct kept_record {
    struct kept_head head;
    char build[KEPT_BUILD_BYTES];
    uint64_t checksum; /* of the bytes after this field */
    uint64_t bytes;    /* of the whole record */
    uint64_t ledger_bytes;
    uint32_t ledger_edition;
    uint32_t shard_index, member_max;
    uint32_t
        is_staged; /* 1: the generation does not serve yet, but one that is kept beside it does */
    char name[CAIRN_NAME_MAX + 1]; /* of the job */
    uint64_t job, generation, base_step, layout;
    uint64_t revision;
    uint64_t plane_bytes[CAIRN_PLANES]; /* as arena.bytes; 0: there is no such plane */
    uint64_t local_end, extent_count;
    uint64_t spec_bytes, amended_bytes, layout_bytes;
};
/* The last step before a record is stored: the checksum. */
void kept_record_seal(struct kept_record *record);
/* Why there is no record, or none that counts. */
#define KEPT_NO_MORE \
    "the process before was making the part, giving it up, or waiting for the decision on a write"
/* Maps a record that came. CAIRN_ERR_NOT_FOUND, CAIRN_ERR_VERSION, CAIRN_ERR_CHECKSUM. */
CAIRN_MUST_CHECK cairn_status kept_record_read(int fd, const struct kept_record **record_out,
                                               struct sentence *why);
static inline const uint8_t *kept_record_spec(const struct kept_record *record)
{
    return (const uint8_t *)(record + 1) + record->extent_count * sizeof(uint64_t);
}

/* ---- the layout that is prepared ---- */

/* The head of it. After it: places, u64[extent_count]; the PartPrepare; the layout. */
struct kept_next {
    struct kept_head head;
    /* Written in place: all state that comes with the layout is in the planes. */
    uint64_t is_whole;
    uint64_t checksum; /* of the bytes after this field */
    uint64_t bytes;    /* of the whole file */
    uint64_t layout;   /* its version */
    uint64_t plane_bytes[CAIRN_PLANES];
    uint64_t extent_count, message_bytes, layout_bytes;
};
void kept_next_seal(struct kept_next *next);
/* Maps one that came, writable. CAIRN_ERR_NOT_FOUND: none came, or the part goes on without it.
 * CAIRN_ERR_CHECKSUM: it is damaged, or of another format. */
CAIRN_MUST_CHECK cairn_status kept_next_read(int fd, struct kept_next **next_out,
                                             struct sentence *why);

/* ---- the ledger ---- */

/* The last outcome of the machine, as struct step_kept. After it: the payload, [payload_max];
 * the frozen groups and tensors of the round, a byte each. */
struct kept_outcome {
    uint32_t phase, kind;
    uint64_t epoch, round, round_seen, round_epoch;
    struct cairn_version version, version_after;
    uint64_t last_round, payload_bytes;
    struct coordinator_id seen; /* the coordinator that the shard obeyed last */
    uint64_t settled;
};
/* Returns the machine's outcome, which borrows the payload. */
struct step_kept kept_outcome_step(const struct kept_outcome *outcome, const void *payload);

/* The ledger's head. After it: two outcomes; for each trained chunk the round whose update it
 * has, u64; at the next page: [KEPT_LANES] undos. */
struct kept_ledger {
    struct kept_head head;
    uint64_t bytes;
    uint64_t payload_max, group_count, tensor_count, trained_count;
    uint64_t count; /* of the outcomes until now; the last one is at count % 2 */
    uint64_t lives; /* processes that were given the part since its last step (kept_aside.h) */
};
#define KEPT_LANES \
    (CAIRN_POOL_THREADS_MAX + 8) /* of an undo each, of which untouched ones take no memory */

/* True if a file of so many bytes is the ledger that its head says. */
bool kept_ledger_is_whole(const struct kept_ledger *ledger, uint64_t bytes);
uint64_t kept_ledger_bytes(const struct kept_ledger *ledger);
struct kept_outcome *kept_outcome(const struct kept_ledger *ledger, uint64_t count);
const struct kept_outcome *kept_last(const struct kept_ledger *ledger);
uint8_t *kept_payload(const struct kept_outcome *outcome);
bool *kept_frozen(const struct kept_ledger *ledger, const struct kept_outcome *outcome);
/* [trained_count] rounds */
uint64_t *kept_ended(const struct kept_ledger *ledger);
struct update_undo *kept_undo_at(const struct kept_ledger *ledger, uint32_t lane);

/* ---- to the keeper ---- */

/* The keeper lets go of what has that name. */
void kept_forget(const char *name);
void kept_forget_edition(uint32_t part, char what, uint32_t edition);
/* The segments [first, end) of a plane. */
void kept_forget_segments(uint32_t part, int plane, uint64_t first, uint64_t end);

#endif
