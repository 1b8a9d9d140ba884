/* The state of a shard's round machine. Private to step*.c; step.h is the contract.
 *
 * The path of a contribution: `at[member][chunk]` is NONE, then 1 + the index of the member's slot that
 * holds it (RECEIVING, LANDED, FOLDING), then FOLDED; the row is cleared when the member's micro-batch is
 * complete. */
#ifndef CAIRN_CORE_STEP_STATE_H
#define CAIRN_CORE_STEP_STATE_H

#include "server/core/step.h"

#define AT_NONE   0
#define AT_FOLDED UINT16_MAX
#define NO_SLOT   UINT32_MAX

enum slot_state { SLOT_FREE = 0, SLOT_RECEIVING, SLOT_LANDED, SLOT_FOLDING };

struct slot {
    uint64_t request;
    uint32_t chunk;
    uint32_t next;         /* FOLDING: the next slot of the same FOLD, or NO_SLOT */
    uint32_t older, newer; /* deferred: neighbours in the list, or NO_SLOT */
    uint8_t state;         /* enum slot_state */
    bool deferred;         /* LANDED, and its chunk waits for further contributions */
};

struct member {
    uint64_t id;
    uint64_t weight;
    uint32_t micro;      /* the micro-batch that it is sending */
    uint32_t arrived;    /* chunks of it in a slot or folded */
    uint32_t unheld;     /* chunks of which the member holds nothing, in every micro-batch */
    uint32_t passed;     /* chunks whose cursor is past it: folded, absent, or unheld */
    uint32_t sent;       /* the number of chunks in it, once `ended` */
    uint32_t last_micro; /* once `committed` */
    uint32_t receiving;  /* slots that are RECEIVING */
    bool ended, committed, done;
    bool lost;    /* its connection was lost since the round opened */
    bool regrant; /* it reconnected: GRANT when nothing is RECEIVING */
};

/* The progress of a chunk: everything before (micro, member) is folded, folding, absent or unheld. */
struct cursor {
    uint32_t micro, member;
    uint32_t fold_head; /* the slots of the FOLD under way; NO_SLOT = none */
    bool contributed;   /* since the round began; for a relay: in the current micro-batch */
    /* for a relay: it is past the current micro-batch, and FORWARD was sent if due */
    bool forwarded;
};

struct step_machine {
    struct step_config config;
    enum step_phase phase;
    uint64_t epoch;       /* of the last FENCE */
    bool fenced;          /* between FENCE and RESOLVE */
    uint64_t round;       /* of the phase, or the last resolved round; 0 = void */
    uint64_t round_seen;  /* the newest round that began; slots and members belong to it */
    uint64_t round_epoch; /* the epoch of round_seen */
    struct cairn_version version;
    struct decision last; /* its payload is `payload` */
    struct step_sums sums;

    uint32_t member_count;
    uint32_t done_count;      /* members that are done */
    uint32_t committed_count; /* members that have committed */
    uint32_t last_micro;      /* the greatest last_micro of the committed members */
    uint32_t likely_micro;    /* last_micro of the last round that was summed */
    uint32_t front;           /* the greatest micro-batch that a member is in */
    uint64_t weight;
    /* slots that are RECEIVING; chunks with a FOLD under way */
    uint32_t receiving, folding;
    uint32_t deferred_first, deferred_last; /* slots, in the order of landing; NO_SLOT: none */
    uint32_t slots_used;
    struct {             /* for a relay */
        uint32_t micro;  /* the current one */
        uint32_t passed; /* chunks that are past it */
        uint32_t sent;   /* FORWARDs of it */
    } forward;
    bool summing;
    bool lacks_state; /* some state has yet to arrive */
    bool summed;      /* REDUCING: the sums are ready, and state is missing */
    bool all_hold;    /* every member holds every chunk: `holds` means nothing */

    struct {            /* an OPEN that arrived while DRAINING */
        uint64_t round; /* 0 = none */
        uint32_t member_count;
    } pending;

    /* in the caller's memory, behind this struct */
    struct member *members;    /* [member_max] by rank; the first member_count are in the round */
    uint64_t *pending_members; /* [member_max] */
    struct cursor *cursors;    /* [chunk_count] */
    struct slot *slots;        /* [member_max][window] */
    uint16_t *at;              /* [member_max][chunk_count] */
    /* [member_max] rows, as in OPEN: for the round, or for the pending one */
    uint8_t *holds;
    uint8_t *payload; /* [payload_bytes_max] */
};

/* step.c */
struct step_action *step_act(struct step_actions *actions, enum step_action_kind kind);
void step_grant(struct step_machine *step, struct member *member, struct step_actions *actions);
/* Ends DRAINING if nothing is in flight any longer, and starts the pending round. */
void step_drained(struct step_machine *step, struct step_actions *actions);

/* step_fold.c: LANDED, FOLDED and the cursors */
void step_on_landed(struct step_machine *step, const struct step_event *event,
                    struct step_actions *actions);
void step_on_folded(struct step_machine *step, const struct step_event *event,
                    struct step_actions *actions);
/* Refuses every contribution that has landed and is not being folded: the round is void. */
void step_drop_landed(struct step_machine *step, struct step_actions *actions);
/* Moves every chunk's cursor as far as possible; begins the reduction when all contributions have
 * arrived. */
void step_advance(struct step_machine *step, struct step_actions *actions);
/* If this member's micro-batch is complete: acknowledges it and begins the next. */
void step_complete_micro(struct step_machine *step, struct member *member,
                         struct step_actions *actions);
bool step_cursor_past(const struct step_machine *step, uint32_t chunk, uint32_t micro,
                      uint32_t member);

static inline uint16_t *step_at(const struct step_machine *step, uint32_t member, uint32_t chunk)
{
    return &step->at[(size_t)member * step->config.chunk_count + chunk];
}

static inline bool step_holds(const struct step_machine *step, uint32_t member, uint32_t chunk)
{
    const size_t row = member * CAIRN_STEP_HOLDS_BYTES(step->config.chunk_count);
    return step->all_hold || (step->holds[row + chunk / 8] >> chunk % 8 & 1) != 0;
}

/* Returns the slot that at[member][chunk] = `at` (neither NONE nor FOLDED) names. */
static inline uint32_t step_slot(const struct step_machine *step, uint32_t member, uint16_t at)
{
    return member * step->config.window + at - 1;
}

#endif
