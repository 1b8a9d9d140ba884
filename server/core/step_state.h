/* The state of a shard's round machine. Private to step*.c; step.h is the contract.
 *
 * The path of a contribution: `at[member][chunk]` is NONE, then 1 + which of the member's slots it is in
 * (RECEIVING, LANDED, FOLDING), then FOLDED; the row is cleared when the member's micro-batch is complete. */
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
    bool deferred;         /* LANDED, and its chunk waits for company */
};

struct member {
    uint64_t id;
    uint64_t weight;
    uint32_t micro;      /* the one that is coming in */
    uint32_t arrived;    /* chunks of it in a slot or folded */
    uint32_t unheld;     /* chunks that it holds nothing of, in every micro-batch */
    uint32_t passed;     /* chunks whose cursor is past it: folded, absent, or unheld */
    uint32_t sent;       /* how many there will be, once `ended` */
    uint32_t last_micro; /* once `committed` */
    uint32_t receiving;  /* slots */
    bool ended, committed, done;
    bool lost;    /* its connection, since the round opened */
    bool regrant; /* it is back: GRANT when nothing is RECEIVING */
};

/* How far a chunk is: everything before (micro, member) is folded, folding, absent or unheld. */
struct cursor {
    uint32_t micro, member;
    uint32_t fold_head; /* the slots of the FOLD under way; NO_SLOT = none */
    bool contributed;   /* since the round began; of a relay: in the micro-batch at hand */
    bool forwarded;     /* of a relay: it is past the micro-batch at hand, and FORWARD was said */
};

struct step_machine {
    struct step_config config;
    enum step_phase phase;
    uint64_t epoch;       /* of the last FENCE */
    bool fenced;          /* between FENCE and RESOLVE */
    uint64_t round;       /* of the phase, or the last one resolved; 0 = void */
    uint64_t round_seen;  /* the newest that began; slots and members are of this one */
    uint64_t round_epoch; /* its epoch */
    struct cairn_version version;
    struct decision last; /* its payload is `payload` */
    struct step_sums sums;

    uint32_t member_count;
    uint32_t done_count;      /* members that are done */
    uint32_t committed_count; /* members */
    uint32_t last_micro;      /* the greatest of the committed */
    uint32_t likely_micro;    /* last_micro of the last round that was summed */
    uint32_t front;           /* the greatest micro-batch that a member is in */
    uint64_t weight;
    uint32_t receiving, folding;            /* slots, chunks */
    uint32_t deferred_first, deferred_last; /* slots, in the order of landing; NO_SLOT: none */
    uint32_t slots_used;
    struct {             /* of a relay */
        uint32_t micro;  /* the one at hand */
        uint32_t passed; /* chunks that are past it */
        uint32_t sent;   /* FORWARDs of it */
    } forward;
    bool summing;
    bool lacks_state; /* some of it is on its way */
    bool summed;      /* REDUCING: the sums are there, and state lacks */
    bool all_hold;    /* every member holds every chunk: `holds` means nothing */

    struct {            /* an OPEN that came while DRAINING */
        uint64_t round; /* 0 = none */
        uint32_t member_count;
    } pending;

    /* in the caller's memory, behind this struct */
    struct member *members;    /* [member_max] by rank; the first member_count are of the round */
    uint64_t *pending_members; /* [member_max] */
    struct cursor *cursors;    /* [chunk_count] */
    struct slot *slots;        /* [member_max][window] */
    uint16_t *at;              /* [member_max][chunk_count] */
    uint8_t *holds;            /* [member_max] rows, as in OPEN: of the round, or the pending one */
    uint8_t *payload;          /* [payload_bytes_max] */
};

/* step.c */
struct step_action *step_act(struct step_actions *actions, enum step_action_kind kind);
void step_grant(struct step_machine *step, struct member *member, struct step_actions *actions);
/* Ends DRAINING if nothing is in flight any more, and starts the pending round. */
void step_drained(struct step_machine *step, struct step_actions *actions);

/* step_fold.c: LANDED, FOLDED and the cursors */
void step_on_landed(struct step_machine *step, const struct step_event *event,
                    struct step_actions *actions);
void step_on_folded(struct step_machine *step, const struct step_event *event,
                    struct step_actions *actions);
/* Refuses everything that has landed and is not being folded: the round is void. */
void step_drop_landed(struct step_machine *step, struct step_actions *actions);
/* Moves every chunk's cursor as far as it goes; begins the reduction when everything is in. */
void step_advance(struct step_machine *step, struct step_actions *actions);
/* If this member's micro-batch is complete: acknowledges it and goes to the next. */
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

/* The slot that at[member][chunk] = `at` (not NONE, not FOLDED) names. */
static inline uint32_t step_slot(const struct step_machine *step, uint32_t member, uint16_t at)
{
    return member * step->config.window + at - 1;
}

#endif
