/* The memory of the coordinator's round machine. Private to round*.c; round.h is the contract. */
#ifndef CAIRN_CORE_ROUND_STATE_H
#define CAIRN_CORE_ROUND_STATE_H

#include "server/core/round.h"

/* A worker asks about the ends of at most this many rounds at a time, because one thread trains and another
 * writes. */
#define ENDS_ASKED_MAX 2

/* How a round ended. */
struct end {
    /* round 0: none; `payload` is set when find_end returns the decision */
    struct decision decision;
    /* the head of the payload, without groups, tensors and client state */
    uint8_t head[CAIRN_PAYLOAD_MAX(0, 0, 0)];
};
enum { END_OF_STEP, END_OF_WRITE, ENDS };

struct worker {
    uint64_t id;
    uint32_t rank;
    uint32_t dense;     /* the worker's place in the open round, as contributor or surplus */
    uint32_t launch;    /* the number of workers launched together; 0: not given */
    uint64_t paused_ms; /* the end of the worker's pause; 0: it does not pause */
    /* until this time the first round waits for the rest of the worker's launch */
    uint64_t start_ms;
    bool contributor; /* the worker contributes to the open round */
    bool surplus;     /* the worker has no part in the open round, but is told of it */
    bool committed;   /* the worker's COMMIT of the open round has arrived */
    bool wants;       /* the worker asked for a round, and has no answer yet */
    bool writes;      /* the worker asked to write, and has no answer yet */
    /* rounds about whose ends the worker asked, without an answer yet; 0 = none */
    uint64_t asked[ENDS_ASKED_MAX];
    /* the ends of the last step and the last write in which the worker had a part */
    struct end ends[ENDS];
    /* from the shards' answers at the deadline */
    /* the first of the worker's micro-batches of which a shard lacks something; UINT32_MAX: none */
    uint32_t lacks;
    /* the first micro-batch in which the worker waits for others; UINT32_MAX: none */
    uint32_t waits;
    uint32_t lacked_by;     /* the number of shards and relays that lack something of the worker */
    uint32_t lacking_shard; /* one of the shards that lacked_by counts */
};

/* A worker that left. It may return as the same member, and ask how rounds ended. */
struct absent {
    uint64_t id;    /* 0: none */
    uint64_t round; /* the round, not ended yet, in which the worker has a part; 0: none */
    uint64_t since; /* the worker's number in the order of leaving */
    struct end ends[ENDS];
};

struct shard {
    /* the layout in force does not have this shard: a hole, or a shard of a pending layout */
    bool gone;
    bool gone_next; /* the pending layout does not have this shard */
    bool up;
    bool answered;  /* FENCING */
    bool published; /* RESOLVING, DECIDED */
    bool nonfinite; /* as the shard reported when it last published */
    bool reduced;   /* OPEN */
    /* OPEN: the shard has answered the last ASK_LACKS */
    bool lacks_told;
    /* if lacks_told: the number of contributors of which the shard lacks something */
    uint32_t lacks;
    /* the shard's ANSWER */
    uint64_t prepared;   /* the round for which the shard is prepared; 0 = none */
    uint64_t last_round; /* the round of the last decision that the shard has */
    bool joins;          /* the shard has no decision, and accepts any */
    struct cairn_version version;
};

/* The layout in force, and the pending one, which is to come into force. */
struct layouts {
    uint32_t serving;         /* the number of shards in the layout in force, without its holes */
    struct round_layout next; /* number 0: none is pending. `gone` is NULL: see struct shard */
    bool taken;               /* the pending layout is being made durable */
    /* the layout in force took back another layout and its moves, and no outcome has been found since
     * then */
    bool went_back;
};

/* The consequences of lost workers (round_members.c). */
struct losses {
    /* WAIT: the number of workers for which the job waits; 0: it does not wait */
    uint32_t world;
    uint64_t until_ms; /* the end of that wait */
    bool
        failed; /* FAIL: a worker was lost. An amendment clears this, as does the last worker that leaves */
};

struct epoch {
    uint64_t number;
    bool persisting;
    bool needed; /* a change of epoch is due as soon as all shards are up */
    /* members changed since the epoch began: a change of epoch is due before the next round */
    bool members_changed;
};

/* A round that has passed its deadline although no worker is late. */
struct late {
    uint64_t round; /* 0: none */
    uint32_t shard; /* the shard that delays the round */
    uint32_t lacks;
};

struct open_round {
    uint64_t number; /* the round that is opened, and not resolved; 0 = none */
    bool writing;    /* OPEN: the round is a write of its one contributor */
    /* OPEN: the shards have been asked what they lack, and not all have answered */
    bool asking;
    struct late late;
    uint64_t deadline_ms; /* 0 = none */
    uint32_t world;
    uint64_t *contributors; /* [member_max]; the first `world` are used */
    /* the round has contributors or surplus workers that left */
    bool absent_contribute;
    struct step_sums sums; /* OPEN: the sums over the shards that are REDUCED */
    uint32_t reduced_count;
    uint8_t *
        state; /* [client_state_max] the state, of state_bytes bytes, that the round's rank 0 gave */
    size_t state_bytes;
    double *
        driven; /* [group_count] the learning rates of driven groups that the round's rank 0 gave */
    /* [tensor_count] OPEN: the number of elements to which nobody contributed, as shards report it */
    uint64_t *untouched;
    bool has_untouched; /* some of `untouched` are not 0 */
};

/* Numbers of rounds that this incarnation may use. */
struct round_numbers {
    uint64_t next, end;
};

struct gate {
    uint32_t world; /* a round of steps needs exactly the ranks below; 0 = any ranks */
    bool shut;      /* no round opens */
};

struct pin {
    bool pending;
    uint64_t snapshot;
};

struct scaling {
    double scale;
    uint32_t good_rounds;
};

struct last_payload {
    uint8_t *bytes; /* [bytes_max] the payload of `last` */
    size_t bytes_max;
};

struct driven {
    double *rates;  /* [group_count] the rates with which the newest version was made */
    uint32_t count; /* group_count, or 0 if no group is driven */
};

struct tensors_missed {
    uint64_t *steps; /* [tensor_count] steps that the tensor missed */
    bool any;        /* some of `steps` are not 0 */
    uint8_t *room;   /* [CAIRN_MISSED_BYTES] for the current decision */
};

struct round_machine {
    struct round_config config;      /* `terms` are the terms in force */
    struct round_terms terms_newest; /* the terms of the next round */
    enum round_stage stage;
    uint64_t now_ms;
    struct epoch epoch;
    struct round_numbers numbers;
    struct open_round open;
    struct layouts layout;
    bool ready;
    bool started; /* a round of steps has opened since the workers joined */
    struct gate gate;
    struct pin pin;
    struct cairn_version version;
    struct scaling scaling;
    struct skips skips;
    struct round_counts counts;
    /* The last decision that this core made, or found in the shards' answers. In STEADY and OPEN the
     * decision is resolved. The core owns the decision's payload. */
    struct decision last;
    uint32_t worker_count;
    uint64_t left; /* the number of workers that have left until now */
    struct losses losses;
    struct end inherited; /* the end of the round that the previous incarnation decided last */

    /* in the caller's memory, behind this struct, as the arrays of `open` */
    /* [shard_max]; only the first config.shard_count can be in the layout in force */
    struct shard *shards;
    struct worker *workers; /* [member_max]; the first worker_count are used, by rank */
    /* [member_max]; if all are used, the worker that left first is dropped */
    struct absent *absent;
    struct group_scalars *scalars; /* [group_count], scratch */
    struct last_payload payload;
    struct driven driven;
    struct tensors_missed missed;
};

/* round.c */
struct round_action *round_act(struct round_actions *actions, enum round_action_kind kind);
void round_fail(struct round_machine *core, uint32_t shard, const char *why,
                struct round_actions *actions);

/* round.c */

/* True if the pending layout may come into force now. Its shards are up then, and either the stage is
 * STEADY or the layout takes another one back. */
bool round_layout_due(const struct round_machine *core);
/* Makes the pending layout a part of the epoch that begins. */
void round_layout_take(struct round_machine *core);
/* Brings the pending layout into force, because the epoch that includes the layout is durable now. */
void round_layout_enter(struct round_machine *core);
/* If the layout in force took back another layout, and something was decided in that layout, returns a text
 * that says what is lost. Returns NULL if nothing is lost. */
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
/* Notes how that round ended, for its contributors and surplus workers, including those that left. If
 * `last` belongs to the round, the round ended with `last`; otherwise the round is void. Round 0: no round
 * was open, and `last` is from an earlier incarnation. */
void round_note_end(struct round_machine *core, uint64_t round);
/* Called when the worker leaves. Keeps the ends of the worker's rounds. */
void round_keep_ends(struct round_machine *core, const struct worker *worker);
bool round_has_asked(const struct worker *worker, uint64_t round);
void round_note_asked(struct worker *worker, uint64_t round);
void round_answer_asked(struct round_machine *core, struct worker *worker,
                        struct round_actions *actions);
/* Tells the member, without a request, that the round is void. */
void round_send_void(const struct round_machine *core, uint64_t member, uint64_t round,
                     struct round_actions *actions);

/* round_decide.c */
/* Takes over the skips of the last decision's payload; NULL: the payload has none. The count in a row
 * continues only if the last decision belongs to a round. In a job that was restored, or remade by an
 * amendment, it belongs to no round. */
void round_take_skips(struct round_machine *core, const struct skips *told);

/* If the job is halted, refuses the workers that wait for a round. Returns true if there were any. */
bool round_refuse(struct round_machine *core, struct round_actions *actions);

/* round_members.c: the first two are called while the worker is still in the list. */
void round_note_lost(struct round_machine *core);
void round_note_left(struct round_machine *core); /* the worker left by its own request */
/* Called when time has passed or workers have joined: ends the wait for lost workers if the wait is
 * over. */
void round_end_losses(struct round_machine *core);
/* For a job that lost workers, writes for how many workers the job waits, and how long at most. */
void round_say_lost(const struct round_machine *core, struct sentence *out);

/* round_decide.c: the steps that tensors missed. */
/* Called when a round of steps opens. */
void round_missed_begin(struct round_machine *core);

/* Takes over the missed steps of a payload; NULL: there is no payload. CAIRN_ERR_MALFORMED: the missed
 * steps cannot be this job's. */
cairn_status round_missed_take(struct round_machine *core,
                               const struct payload *told) CAIRN_MUST_CHECK;

/* round_decide.c */
void round_on_reduced(struct round_machine *core, const struct round_event *event,
                      struct round_actions *actions);
/* The learning rate of a group for the round that begins at that step. `driven`: [group_count]. */
double round_group_lr(const struct round_terms *terms, const double *driven, uint32_t group,
                      uint64_t step);

/* True if the client state and the driven groups' learning rates for the open round have arrived, or are
 * not needed. */
bool round_state_there(const struct round_machine *core);
/* Called when every shard is REDUCED: decides. */
void round_decide(struct round_machine *core, struct round_actions *actions);

/* round_members.c */
void round_epoch_begin(struct round_machine *core, struct round_actions *actions);
void round_on_persisted(struct round_machine *core, const struct round_event *event,
                        struct round_actions *actions);
void round_on_answer(struct round_machine *core, const struct round_event *event,
                     struct round_actions *actions);
/* Called when every shard has answered. Finds the outcome, and sends it to all shards. */
void round_resolve(struct round_machine *core, struct round_actions *actions);

#endif
