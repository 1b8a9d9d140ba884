/* The memory of the coordinator's round machine. Private to round*.c; round.h is the contract. */
#ifndef CAIRN_CORE_ROUND_STATE_H
#define CAIRN_CORE_ROUND_STATE_H

#include "server/core/round.h"

/* A member asks at most so many rounds how they end at a time: one thread trains, one writes. */
#define ENDS_ASKED_MAX 2

/* How a round ended. */
struct end {
    struct decision decision; /* round 0: none; its payload is set where it is given out */
    uint8_t head[CAIRN_PAYLOAD_MAX(
        0, 0, 0)]; /* of the payload, without what is of groups, tensors and client state */
};
enum { END_OF_STEP, END_OF_WRITE, ENDS };

struct worker {
    uint64_t id;
    uint32_t rank;
    uint32_t dense;     /* contributor, surplus: its place in the open round */
    uint32_t launch;    /* how many workers came together; 0: not said */
    uint64_t paused_ms; /* until then it pauses; 0: it does not */
    uint64_t start_ms;  /* until then the first round waits for the rest of its launch */
    bool contributor;   /* of the open round */
    bool surplus;       /* was there when the open round began, and has no part in it */
    bool committed;     /* the open round */
    bool wants;         /* asked for a round, not answered */
    bool writes;        /* asked to write, not answered */
    uint64_t asked[ENDS_ASKED_MAX]; /* rounds whose end it asked for, not answered; 0 = none */
    struct end ends[ENDS];          /* the last ones that it contributed to */
    /* as the shards answered at the deadline */
    uint32_t lacks;     /* the least micro-batch that a shard lacks; UINT32_MAX: none */
    uint32_t waits;     /* the least micro-batch in which it waits for others; UINT32_MAX: none */
    uint32_t lacked_by; /* how many shards and relays lack something of it */
    uint32_t lacking_shard; /* one of them */
};

/* A worker that left: it may be back, as the same member, and ask. */
struct absent {
    uint64_t id;    /* 0: none */
    uint64_t round; /* that it contributed to, if that has not ended; 0: none */
    uint64_t since; /* its number among those that left */
    struct end ends[ENDS];
};

struct shard {
    bool gone;      /* the layout in force has it not: a hole, or of one that comes */
    bool gone_next; /* the same of the pending layout */
    bool up;
    bool answered;   /* FENCING */
    bool published;  /* RESOLVING, DECIDED */
    bool nonfinite;  /* as it said when it published last */
    bool reduced;    /* OPEN */
    bool lacks_told; /* OPEN: at the deadline it was asked whom it lacks, and has answered */
    uint32_t lacks;  /* then: of how many contributors it lacks something */
    /* its answer */
    uint64_t prepared;   /* round; 0 = none */
    uint64_t last_round; /* of the last decision it has */
    bool joins;          /* it has none, and takes any */
    struct cairn_version version;
};

/* A layout that is to come into force. */
struct next_layout {
    uint64_t layout; /* 0: none */
    uint32_t shard_count;
    bool back, empty;
    bool taken; /* it is being made durable */
};

/* The consequences of lost workers (round_members.c). */
struct losses {
    uint32_t world;    /* WAIT: so many workers are waited for; 0: for nobody */
    uint64_t until_ms; /* and no longer */
    bool failed;       /* FAIL: nobody has acted since */
};

struct round_machine {
    struct round_config config;      /* its terms are the ones in force */
    struct round_terms terms_newest; /* of the next round */
    enum round_stage stage;
    uint64_t epoch;
    uint64_t round_next, round_end; /* numbers this incarnation may use */
    uint64_t open_round;            /* opened, and not resolved; 0 = none */
    bool writing;                   /* OPEN: it is a write of its one contributor */
    bool asking;                    /* OPEN: the deadline has passed, shards say what they lack */
    uint64_t late_round;            /* the round that late_shard holds up; 0: no shard did */
    uint32_t late_shard, late_lacks;
    bool persisting;
    uint32_t serving; /* shards of the layout in force */
    struct next_layout next;
    bool
        went_back; /* the layout in force took one back with its moves; no outcome was found since */
    bool need_epoch;      /* a change is due as soon as all shards are up */
    bool members_changed; /* since the epoch was chosen: a change is due before the next round */
    bool ready;
    bool started;        /* a round of steps has opened since workers came */
    uint32_t gate_world; /* a round needs exactly the ranks below; 0 = any */
    bool gate_shut;      /* no round opens */
    struct cairn_version version;
    double loss_scale;
    uint32_t good_rounds;
    struct skips skips;
    /* The last decision made here, or found in the shards' answers; resolved in STEADY and OPEN. Its
     * payload is the core's. */
    struct decision last;
    struct step_sums sums; /* OPEN: of the shards that are REDUCED */
    uint32_t reduced_count;
    bool pin_pending;
    uint64_t pin_snapshot;
    uint64_t now_ms, deadline_ms; /* 0 = none */
    struct round_counts counts;
    uint32_t worker_count, world;
    uint64_t left;          /* how many workers have left so far */
    bool absent_contribute; /* some that left are contributors of the open round, or its surplus */
    struct losses losses;
    struct end inherited; /* how the round ended that the incarnation before decided last */

    /* in the caller's memory, behind this struct */
    struct shard
        *shards; /* [shard_max], the first config.shard_count perhaps of the layout in force */
    struct worker *workers;        /* [member_max], the first worker_count by rank */
    struct absent *absent;         /* [member_max]: of more the one that left first is forgotten */
    uint64_t *contributors;        /* [member_max], world of them */
    struct group_scalars *scalars; /* [group_count], scratch */
    uint8_t *payload;              /* [payload_bytes_max], of `last` */
    size_t payload_bytes_max;
    uint8_t *state; /* [client_state_max] what the open round's rank 0 gave: state_bytes */
    size_t state_bytes;
    /* [group_count], of driven groups; driven_count is that, or 0 where none is */
    double *driven;       /* what the newest version was made with */
    double *driven_given; /* by the open round's rank 0 */
    uint32_t driven_count;
    uint64_t *missed; /* [tensor_count] steps that passed the tensor by */
    uint64_t
        *untouched;  /* [tensor_count] OPEN: elements to which nobody contributed, as shards say */
    bool has_missed; /* some are not 0 */
    bool has_untouched;   /* likewise */
    uint8_t *missed_room; /* of the decision at hand, CAIRN_MISSED_BYTES */
};

/* round.c */
struct round_action *round_act(struct round_actions *actions, enum round_action_kind kind);
void round_fail(struct round_machine *core, uint32_t shard, const char *why,
                struct round_actions *actions);

/* round.c */

/* The pending layout may come into force now: between two rounds, or it goes back, and its shards are up. */
bool round_layout_due(const struct round_machine *core);
/* It goes with the epoch that begins. */
void round_layout_take(struct round_machine *core);
/* Puts the layout in force: the epoch that it goes with is durable. */
void round_layout_enter(struct round_machine *core);
/* After a layout took one back: says what is lost, if something was decided since; NULL: nothing
 * is. */
const char *round_layout_judge(const struct round_machine *core);

struct worker *round_find_worker(const struct round_machine *core, uint64_t id);
void round_remove_worker(struct round_machine *core, struct worker *worker);

/* round_decide.c */
void round_on_pause(struct round_machine *core, const struct round_event *event);
/* Ends the pauses whose time is over. */
void round_end_pauses(struct round_machine *core);
/* The open round has passed its deadline. */
void round_on_deadline(struct round_machine *core, struct round_actions *actions);
void round_on_lacks(struct round_machine *core, const struct round_event *event,
                    struct round_actions *actions);

/* round_members.c: how rounds ended, for those who ask late. */
/* Notes how that round has ended, for its contributors, also those that left: with `last`, if
 * that is of the round, else it is void. Round 0: `last` is of a former incarnation. */
void round_note_end(struct round_machine *core, uint64_t round);
void round_keep_ends(struct round_machine *core, const struct worker *worker); /* it leaves */
bool round_has_asked(const struct worker *worker, uint64_t round);
void round_note_asked(struct worker *worker, uint64_t round);
void round_answer_asked(struct round_machine *core, struct worker *worker,
                        struct round_actions *actions);
/* Unasked. */
void round_send_void(const struct round_machine *core, uint64_t member, uint64_t round,
                     struct round_actions *actions);

/* round_decide.c */
/* Takes the skips over from the last decision's payload; NULL: it told none. A row goes on only if there is a
 * last round: not in a job that was restored, or that an amendment remade. */
void round_take_skips(struct round_machine *core, const struct skips *told);

/* Refuses those who wait for a round that does not open; false: nobody does, or it may open. */
bool round_refuse(struct round_machine *core, struct round_actions *actions);

/* round_members.c: each is told while the worker is still there. */
void round_note_lost(struct round_machine *core);
void round_note_left(struct round_machine *core); /* by itself */
/* Time has passed, or others have come. */
void round_end_losses(struct round_machine *core);
/* Says how many workers a job that has lost some waits for, and how long at most. */
void round_say_lost(const struct round_machine *core, struct sentence *out);

/* round_decide.c: which steps passed which tensors by. */
/* A round of steps opens. */
void round_missed_begin(struct round_machine *core);

/* Takes over what a payload tells; NULL: it told none. CAIRN_ERR_MALFORMED: of another job. */
cairn_status round_missed_take(struct round_machine *core,
                               const struct payload *told) CAIRN_MUST_CHECK;

/* round_decide.c */
void round_on_reduced(struct round_machine *core, const struct round_event *event,
                      struct round_actions *actions);
/* The learning rate of the round of that step; `driven`: [group_count]. */
double round_group_lr(const struct round_terms *terms, const double *driven, uint32_t group,
                      uint64_t step);

/* The client state and the rates of driven groups that the open round is to have are there, or none is
 * due. */
bool round_state_there(const struct round_machine *core);
/* Every shard is REDUCED: decides. */
void round_decide(struct round_machine *core, struct round_actions *actions);

/* round_members.c */
void round_epoch_begin(struct round_machine *core, struct round_actions *actions);
void round_on_persisted(struct round_machine *core, const struct round_event *event,
                        struct round_actions *actions);
void round_on_answer(struct round_machine *core, const struct round_event *event,
                     struct round_actions *actions);
/* Every shard has answered: finds the outcome and sends it. */
void round_resolve(struct round_machine *core, struct round_actions *actions);

#endif
