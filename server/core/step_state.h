/* The state of a shard's round machine. Private to step*.c; step.h is the contract.
 *
 * The path of a contribution: `at[member][chunk]` is NONE; then 1 + k, where k is the index of the member's
 * slot that holds the contribution (RECEIVING, LANDED, FOLDING); then FOLDED. The member's row is cleared
 * when its micro-batch is complete. */
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
    uint32_t next; /* FOLDING: the next slot of the same FOLD, or NO_SLOT */
    /* if `deferred`: the neighbours in the list of deferred slots, or NO_SLOT */
    uint32_t older, newer;
    uint8_t state; /* enum slot_state */
    bool deferred; /* LANDED, and the contribution waits for others to the same chunk */
};

struct member {
    uint64_t id;
    uint64_t weight;
    uint32_t micro;   /* the micro-batch that the member is sending */
    uint32_t arrived; /* chunks of this micro-batch that are in a slot or folded */
    /* chunks of which the member holds nothing; the same in every micro-batch */
    uint32_t unheld;
    /* chunks that are folded, absent or unheld for this member and micro-batch */
    uint32_t passed;
    /* if `ended`: the number of chunks that the member sends in this micro-batch */
    uint32_t sent;
    uint32_t last_micro; /* if `committed`: the member's last micro-batch */
    uint32_t receiving;  /* slots that are RECEIVING */
    bool ended, committed, done;
    bool lost;    /* the connection was lost since the round opened, and is not back */
    bool regrant; /* the member reconnected: it gets a GRANT when nothing is RECEIVING */
};

/* The progress of a chunk. Every contribution before (micro, member) is folded, being folded, absent or
 * unheld. */
struct cursor {
    uint32_t micro, member;
    uint32_t fold_head; /* the first slot of the FOLD under way; NO_SLOT = no FOLD */
    /* some member contributed since the round began; for a relay: since the last FORWARD */
    bool contributed;
    /* for a relay: the chunk is past the current micro-batch, and its FORWARD, if due, was sent */
    bool forwarded;
};

/* How far the members of the round are. */
struct step_progress {
    uint32_t done;         /* members that are done */
    uint32_t committed;    /* members that have committed */
    uint32_t last_micro;   /* the greatest last_micro of the committed members */
    uint32_t likely_micro; /* last_micro of the newest round that came to REDUCING */
    uint32_t front;        /* the greatest micro-batch that a member is in */
    uint64_t weight;
};

struct step_flight {
    uint32_t receiving; /* the number of slots that are RECEIVING */
    uint32_t folding;   /* the number of chunks with a FOLD under way */
    /* the ends of the list of deferred slots, in the order of landing; NO_SLOT: none */
    uint32_t deferred_first, deferred_last;
};

/* For a relay. */
struct step_forward {
    uint32_t micro;  /* the current micro-batch */
    uint32_t passed; /* chunks that are past this micro-batch */
    uint32_t sent;   /* FORWARDs of this micro-batch */
};

/* An OPEN that arrived while DRAINING. */
struct step_pending {
    uint64_t round; /* 0 = none */
    uint32_t member_count;
};

struct step_machine {
    struct step_config config;
    enum step_phase phase;
    uint64_t epoch; /* the epoch of the last FENCE */
    bool fenced;    /* between FENCE and RESOLVE */
    /* the round of the phase; in IDLE: the last resolved round; 0 = void, or none yet */
    uint64_t round;
    uint64_t round_seen;  /* the newest round that began, to which slots and members belong */
    uint64_t round_epoch; /* the epoch of round_seen */
    struct cairn_version version;
    struct decision last; /* last.payload is `payload` */
    struct step_sums sums;

    uint32_t member_count;
    struct step_progress progress;
    struct step_flight in_flight;
    uint32_t slots_used;
    struct step_forward forward;
    bool summing;
    bool lacks_state; /* some state has yet to arrive */
    bool summed;      /* REDUCING: the sums are ready, but some state is missing */
    bool all_hold;    /* every member holds every chunk: `holds` means nothing */

    struct step_pending pending;

    /* in the caller's memory, behind this struct */
    struct member *members;    /* [member_max] by rank; the first member_count are in the round */
    uint64_t *pending_members; /* [member_max] */
    struct cursor *cursors;    /* [chunk_count] */
    struct slot *slots;        /* [member_max][window] */
    uint16_t *at;              /* [member_max][chunk_count] */
    /* [member_max] rows, as in OPEN; for the open round, or for the pending round */
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
/* If the member's micro-batch is complete, acknowledges it, and begins the member's next micro-batch. */
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
