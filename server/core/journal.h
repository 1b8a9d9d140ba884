/* Judges what the log of a part brings back, if all memory of the part was lost. Daemons keep the log in
 * files (server/shard/journal.h, which has the picture, and journal_file.h); these functions read the heads
 * of its entries alone.
 *
 *   START     how far the machine was when a segment began; a ROUND may be prepared
 *   ROUND     the sums of a round, before it is reported as REDUCED
 *   DECISION  an APPLY, before the update begins; or a SKIP, before it is reported
 *
 * The state of the base, a snapshot, comes to the newest version by the updates of the plan, one after the
 * other: each is made of the sums of a ROUND and of the decision that an entry behind it has.
 *
 * Pure; no allocation. */
#ifndef CAIRN_CORE_JOURNAL_H
#define CAIRN_CORE_JOURNAL_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/text.h"
#include "server/core/step.h"

enum journal_kind { JOURNAL_START = 1, JOURNAL_ROUND = 2, JOURNAL_DECISION = 3 };

/* The head of an entry. */
struct journal_record {
    enum journal_kind kind;
    uint64_t number; /* counted through all segments, without gaps */
    /* how far the machine was. ROUND: REDUCED, with the decision before. DECISION: UPDATING, or IDLE after a
     * SKIP. The payload is borrowed */
    struct step_kept kept;
};

/* Whose sums are applied, and by which decision. */
struct journal_step {
    size_t round, decided; /* entries; the payload of the decision is in `decided` */
};

struct journal_plan {
    struct journal_step *steps; /* [count]: from the base's version to the last one */
    size_t count;
    size_t last;  /* the entry that says how far the machine is */
    size_t round; /* the ROUND that is prepared, if step.phase is REDUCED */
    /* how the machine continues: IDLE or REDUCED. The payload is borrowed from the entries */
    struct step_kept step;
};

/* Makes the plan by which the state of the base's version comes to the newest one; or to the version `to`
 * (not NULL), where the machine continues IDLE, after the last decision at that version. `steps` has room for
 * `count` of them; count > 0. CAIRN_ERR_CHECKSUM: the entries do not begin at the base's version or before,
 * or do not follow each other. CAIRN_ERR_VERSION_GONE: they do not come by `to`. */
CAIRN_MUST_CHECK cairn_status journal_plan_of(const struct journal_record *records, size_t count,
                                              struct cairn_version base,
                                              const struct cairn_version *to,
                                              struct journal_step *steps,
                                              struct journal_plan *plan_out, struct sentence *why);
/* The ROUND that is prepared, `last`, is the last entry, and was not written to its end: goes on without its
 * sums. Its head is intact, so the decision before it counts. */
void journal_plan_go_without(const struct journal_record *last, struct journal_plan *plan);

/* A segment that is complete, or the one that is written. */
struct journal_kept_segment {
    uint64_t number, bytes;
    struct cairn_version first; /* of its START */
};
/* Returns the number of the first segment that a log needs which stands on that version. count > 0. */
uint64_t journal_first_needed(const struct journal_kept_segment *segments, size_t count,
                              struct cairn_version base);

#endif
