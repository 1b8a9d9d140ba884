/* The memory of the coordinator's round machine. Private to round*.c; round.h is the contract. */
#ifndef CAIRN_CORE_ROUND_STATE_H
#define CAIRN_CORE_ROUND_STATE_H

#include "server/core/round.h"

/* A member asks about the ends of at most this many rounds at a time: one thread trains, another writes. */
#define ENDS_ASKED_MAX 2

/* How a round ended. */
struct end {
    struct decision decision; /* round 0: none; its payload is set when it is returned */
    uint8_t head[CAIRN_PAYLOAD_MAX(
        0, 0, 0)]; /* of the payload, without its groups, tensors and client state */
};
enum { END_OF_STEP, END_OF_WRITE, ENDS };

struct worker {
    uint64_t id;
    uint32_t rank;
    uint32_t dense;     /* its place in the open round, as contributor or surplus */
    uint32_t launch;    /* the number of workers launched together; 0: not given */
    uint64_t paused_ms; /* the end of its pause; 0: it does not pause */
    uint64_t start_ms;  /* until then the first round waits for the rest of its launch */
    bool contributor;   /* to the open round */
    bool surplus;       /* attached when the open round began, but has no part in it */
    bool committed;     /* to the open round */
    bool wants;         /* asked for a round, not answered */
    bool writes;        /* asked to write, not answered */
    uint64_t asked[ENDS_ASKED_MAX]; /* rounds whose end it asked for, not answered yet; 0 = none */
    struct end ends[ENDS];          /* of the last rounds to which it contributed */
    /* from the shards' answers at the deadline */
    /* the least micro-batch of the worker of which a shard lacks something; UINT32_MAX: none */
    uint32_t lacks;
    uint32_t waits;     /* the least micro-batch in which it waits for others; UINT32_MAX: none */
    uint32_t lacked_by; /* the number of shards and relays that lack something of it */
    uint32_t lacking_shard; /* one of these shards */
};

/* A worker that left. It may return as the same member, and ask how rounds ended. */
struct absent {
    uint64_t id;    /* 0: none */
    uint64_t round; /* the round to which it contributed, if that round has not ended; 0: none */
    uint64_t since; /* its number in the order of leaving */
    struct end ends[ENDS];
};

struct shard {
    /* the layout in force does not have it: a hole, or a shard of a pending layout */
    bool gone;
    bool gone_next; /* the same for the pending layout */
    bool up;
    bool answered;  /* FENCING */
    bool published; /* RESOLVING, DECIDED */
    bool nonfinite; /* as it reported when it last published */
    bool reduced;   /* OPEN */
    /* OPEN: at the deadline the shard was asked which contributors it lacks, and the shard has answered */
    bool lacks_told;
    uint32_t lacks; /* if lacks_told: the number of contributors of which it lacks something */
    /* its answer */
    uint64_t prepared;   /* round; 0 = none */
    uint64_t last_round; /* of the last decision that it has */
    bool joins;          /* it has no decision, and accepts any */
    struct cairn_version version;
};

/* A layout that is pending, to come into force. */
struct next_layout {
    uint64_t layout; /* 0: none */
    uint32_t shard_count;
    bool back, empty;
    bool taken; /* it is being made durable */
};

/* The consequences of lost workers (round_members.c). */
struct losses {
    uint32_t world;    /* WAIT: the number of workers that are awaited; 0: none */
    uint64_t until_ms; /* the end of that wait */
    bool failed;       /* FAIL: a worker was lost, and nobody has acted since */
};

struct round_machine {
    struct round_config config;      /* its terms are those in force */
    struct round_terms terms_newest; /* for the next round */
    enum round_stage stage;
    uint64_t epoch;
    uint64_t round_next, round_end; /* numbers that this incarnation may use */
    uint64_t open_round;            /* opened, and not resolved; 0 = none */
    bool writing;                   /* OPEN: the round is a write of its one contributor */
    /* OPEN: the deadline has passed, and shards are asked what they lack */
    bool asking;
    uint64_t late_round; /* the round that late_shard delays; 0: no shard did */
    uint32_t late_shard, late_lacks;
    bool persisting;
    uint32_t serving; /* shards of the layout in force */
    struct next_layout next;
    /* the layout in force took back another layout and its moves, and no outcome has been found since */
    bool went_back;
    bool need_epoch; /* a change of epoch is due as soon as all shards are up */
    /* since the epoch began: a change of epoch is due before the next round */
    bool members_changed;
    bool ready;
    bool started;        /* a round of steps has opened since the workers joined */
    uint32_t gate_world; /* a round needs exactly the ranks below this; 0 = any */
    bool gate_shut;      /* no round opens */
    struct cairn_version version;
    double loss_scale;
    uint32_t good_rounds;
    struct skips skips;
    /* The last decision made by this core, or found in the shards' answers; in STEADY and OPEN it is
     * resolved. The core owns its payload. */
    struct decision last;
    struct step_sums sums; /* OPEN: of the shards that are REDUCED */
    uint32_t reduced_count;
    bool pin_pending;
    uint64_t pin_snapshot;
    uint64_t now_ms, deadline_ms; /* 0 = none */
    struct round_counts counts;
    uint32_t worker_count, world;
    uint64_t left; /* the number of workers that have left so far */
    /* some workers that left are contributors to the open round, or its surplus */
    bool absent_contribute;
    struct losses losses;
    struct end inherited; /* the end of the round that the previous incarnation decided last */

    /* in the caller's memory, behind this struct */
    /* [shard_max], the first config.shard_count may be of the layout in force */
    struct shard *shards;
    struct worker *workers; /* [member_max], the first worker_count are used, by rank */
    /* [member_max]: beyond that, the worker that left first is dropped */
    struct absent *absent;
    uint64_t *contributors;        /* [member_max], the first `world` are used */
    struct group_scalars *scalars; /* [group_count], scratch */
    uint8_t *payload;              /* [payload_bytes_max], of `last` */
    size_t payload_bytes_max;
    /* [client_state_max] the state that the open round's rank 0 gave: state_bytes */
    uint8_t *state;
    size_t state_bytes;
    /* [group_count], of driven groups; driven_count is group_count, or 0 if no group is driven */
    double *driven;       /* those with which the newest version was made */
    double *driven_given; /* those given by the open round's rank 0 */
    uint32_t driven_count;
    uint64_t *missed; /* [tensor_count] steps that the tensor missed */
    /* [tensor_count] OPEN: elements to which nobody contributed, from the shards */
    uint64_t *untouched;
    bool has_missed;      /* some of `missed` are not 0 */
    bool has_untouched;   /* some of `untouched` are not 0 */
    uint8_t *missed_room; /* for the current decision, CAIRN_MISSED_BYTES */
};

/* round.c */
struct round_action *round_act(struct round_actions *actions, enum round_action_kind kind);
void round_fail(struct round_machine *core, uint32_t shard, const char *why,
                struct round_actions *actions);

/* round.c */

/* True if the pending layout may come into force now: its shards are up, and either no round is open or the
 * layout goes back. */
bool round_layout_due(const struct round_machine *core);
/* Puts the pending layout into the epoch that begins. */
void round_layout_take(struct round_machine *core);
/* Brings the layout into force: the epoch that includes it is durable. */
void round_layout_enter(struct round_machine *core);
/* Call after a layout took back another one. If something was decided since, returns what is lost; NULL:
 * nothing is lost. */
const char *round_layout_judge(const struct round_machine *core);

struct worker *round_find_worker(const struct round_machine *core, uint64_t id);
void round_remove_worker(struct round_machine *core, struct worker *worker);

/* round_decide.c */
void round_on_pause(struct round_machine *core, const struct round_event *event);
/* Ends the pauses whose time is over. */
void round_end_pauses(struct round_machine *core);
/* Called when the open round has passed its deadline. */
void round_on_deadline(struct round_machine *core, struct round_actions *actions);
void round_on_lacks(struct round_machine *core, const struct round_event *event,
                    struct round_actions *actions);

/* round_members.c: how rounds ended, for workers that ask late. */
/* Notes how that round has ended, for its contributors, including contributors that left. If `last` belongs
 * to the round, the round ended with `last`; otherwise the round is void. Round 0: `last` is from an
 * earlier incarnation. */
void round_note_end(struct round_machine *core, uint64_t round);
/* Call when the worker leaves: keeps the ends of its rounds. */
void round_keep_ends(struct round_machine *core, const struct worker *worker);
bool round_has_asked(const struct worker *worker, uint64_t round);
void round_note_asked(struct worker *worker, uint64_t round);
void round_answer_asked(struct round_machine *core, struct worker *worker,
                        struct round_actions *actions);
/* Tells the member, without a request, that the round is void. */
void round_send_void(const struct round_machine *core, uint64_t member, uint64_t round,
                     struct round_actions *actions);

/* round_decide.c */
/* Takes the skips over from the last decision's payload; NULL: it had none. The count in a row continues
 * only if there is a last round. A job that was restored, or remade by an amendment, has none. */
void round_take_skips(struct round_machine *core, const struct skips *told);

/* Refuses the workers that wait for a round that does not open. Returns false if no worker waits, or a
 * round may open. */
bool round_refuse(struct round_machine *core, struct round_actions *actions);

/* round_members.c: each is called while the worker is still in the list. */
void round_note_lost(struct round_machine *core);
void round_note_left(struct round_machine *core); /* by its own request */
/* Called when time has passed or workers have joined: ends the wait for lost workers if it is over. */
void round_end_losses(struct round_machine *core);
/* Writes how many workers a job that has lost some waits for, and how long at most. */
void round_say_lost(const struct round_machine *core, struct sentence *out);

/* round_decide.c: the steps that tensors missed. */
/* Called when a round of steps opens. */
void round_missed_begin(struct round_machine *core);

/* Takes over the missed steps of a payload; NULL: there was no payload. CAIRN_ERR_MALFORMED: the payload
 * belongs to another job. */
cairn_status round_missed_take(struct round_machine *core,
                               const struct payload *told) CAIRN_MUST_CHECK;

/* round_decide.c */
void round_on_reduced(struct round_machine *core, const struct round_event *event,
                      struct round_actions *actions);
/* The learning rate for the round of that step; `driven`: [group_count]. */
double round_group_lr(const struct round_terms *terms, const double *driven, uint32_t group,
                      uint64_t step);

/* True if the client state and the rates of driven groups for the open round have arrived or are not
 * needed. */
bool round_state_there(const struct round_machine *core);
/* Called when every shard is REDUCED: decides. */
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
