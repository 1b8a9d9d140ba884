/* The operations of jobs, and of the cluster (server/core/operation.h).
 *
 * An operation is a table of steps. The table lists the steps of an operation in order, and operations.c
 * carries them out: it begins a step, waits for the step's outcome, and goes on with the next one.
 *
 *   WAIT    waits until `is_ready`, which is asked with every event of the job's core and at every tick.
 *           Without `is_ready` the operation stays at the step until its file moves it (coord_steps_go)
 *   DO      does something at once
 *   ASK     asks shards a question, and waits until each of them has answered. The outcome is the first
 *           refusal, as "SHARD: WHY", or CAIRN_ERR_CLOSED if the connection of a shard has ended before its
 *           answer came
 *   STORE   writes to the store, and waits for the disk
 *   THREAD  works on another thread
 *
 * A failure ends the operation. `end` of the step may see to it instead: it judges the outcome, may take
 * back what the step did, and may choose the step that comes next. A question for which there is no memory
 * was never asked, so `end` does not hear of it: an operation of a job asks again with the next event or
 * tick, and any other operation fails.
 *
 * An operation can be given up at any time (coord_steps_cancel). After that none of its functions is
 * called, whatever shards and the disk still answer. Only a thread cannot be called back: the operation's
 * memory has to stay until the thread is done, and `release` is called then. */
#ifndef CAIRN_COORDINATOR_OPERATIONS_H
#define CAIRN_COORDINATOR_OPERATIONS_H

#include "server/coordinator/base.h"
#include "server/coordinator/store.h"
#include "server/core/operation.h"

struct coord_steps;
typedef cairn_status (*coord_step_fn)(struct coord_steps *steps, struct sentence *why);

enum coord_step_kind {
    CAIRN_STEP_LAST, /* the end of a table: every step is done */
    CAIRN_STEP_WAIT,
    CAIRN_STEP_DO,
    CAIRN_STEP_ASK,
    CAIRN_STEP_STORE,
    CAIRN_STEP_THREAD,
};

/* A step. A function that it does not need is NULL. */
struct coord_step {
    enum coord_step_kind kind;
    enum operation_stage stage;                    /* the stage of the job's operation meanwhile */
    const char *doing;                             /* for whom the job waits meanwhile */
    bool (*is_needed)(const struct coord_steps *); /* false: the step is left out */
    bool (*is_ready)(const struct coord_steps *);  /* WAIT: the wait is over */
    /* DO: does it. ASK: sends the question, as calls of steps->gather. STORE: calls coord_steps_save, or
     * there is `run`. THREAD: is called before the thread begins. A failure is the step's outcome */
    coord_step_fn begin;
    coord_step_fn run; /* THREAD: runs on the other thread. STORE: runs on the store's thread */
    size_t (*bytes)(
        const struct coord_steps *); /* THREAD: on how many bytes it works; NULL: many */
    cairn_status (*end)(struct coord_steps *steps, cairn_status status, struct sentence *why);
};

struct coord_operation_plan {
    const struct coord_step *list; /* CAIRN_STEP_LAST ends it */
    /* One of these two functions is called at the end, unless the operation is given up. Both may free the
     * operation. */
    void (*done)(struct coord_steps *steps);
    /* NULL if no step fails, because each `end` sees to its failures */
    void (*failed)(struct coord_steps *steps, cairn_status status, const char *why);
    /* the operation was given up, or the coordinator closes, and nothing uses the operation's memory any
     * more; NULL: the memory is the job's */
    void (*release)(struct coord_steps *steps);
};

/* An operation under way, or none. Zero: none. It is the first member of the struct that has the data of
 * the operation, or lies in a job. */
struct coord_steps {
    struct coord_work work;
    const struct coord_operation_plan *plan;
    struct coord *cluster;
    struct coord_job *job;       /* borrowed; NULL: the operation belongs to no job */
    const struct coord_step *at; /* the present step; NULL: the operation is not under way */
    bool is_begun;               /* the present step was begun, and its outcome is awaited */
    bool rests;                  /* the next step begins with the next event or tick */
    bool lacks_shard; /* ASK: the connection of a shard of the job has ended since it began */
    struct coord_gather *gather; /* ASK: the question; NULL: none */
    /* STORE: in the cluster's list of those that wait for the disk */
    struct coord_steps *next_stored;
    cluster_saved_fn stored;
    enum store_change stored_change;
    uint64_t stored_job, stored_number;
    /* `run` of the step: has_thread: it is not done yet. status, why: its outcome */
    struct task task;
    coord_step_fn run;
    bool has_thread;
    cairn_status status;
    struct sentence why;
};

/* Puts the operation at the first step of its plan. coord_steps_advance begins this step. */
void coord_steps_start(struct coord_steps *steps, const struct coord_operation_plan *plan,
                       struct coord *cluster, struct coord_job *job);
/* Goes on if the operation waits, and what it waits for has come. The operation may end by this. */
void coord_steps_advance(struct coord_steps *steps);
/* For `end`, and for an operation that waits: step number `step` comes next. With `rests`, it does not begin
 * before the next event or tick. */
void coord_steps_go(struct coord_steps *steps, size_t step, bool rests);
/* Gives the operation up. False: a thread still works on it, and `release` is called when it is done. */
bool coord_steps_cancel(struct coord_steps *steps);
/* Returns the number of the present step; SIZE_MAX: the operation is not under way. */
size_t coord_steps_at(const struct coord_steps *steps);
/* For `begin` of ASK: sends the message to every shard of the job. */
void coord_steps_ask_all(struct coord_steps *steps, uint16_t type, const ProtobufCMessage *message);
/* Ends the question of the present step, as if a shard had refused it. Late answers are ignored. */
void coord_steps_give_question_up(struct coord_steps *steps, cairn_status status, const char *why);
/* For `begin` of STORE: writes the row of a job, as coord_save_job does. `number` 0: any number.
 * coord_steps_save_as does the same with a function that is told of the write even if the operation is
 * given up meanwhile. This function calls coord_steps_stored with itself, which returns false in that
 * case. */
cairn_status coord_steps_save(struct coord_steps *steps, struct coord_job *job,
                              enum store_change change, struct packed *spec, uint64_t number,
                              struct sentence *why) CAIRN_MUST_CHECK;
cairn_status coord_steps_save_as(struct coord_steps *steps, struct coord_job *job,
                                 enum store_change change, uint64_t number, cluster_saved_fn stored,
                                 struct sentence *why) CAIRN_MUST_CHECK;
bool coord_steps_stored(const struct coord_saved *saved, cluster_saved_fn stored);

/* ==== operations ==== */

/* The coordinator's side of the operations of a job (server/core/operation.h). The file that carries an
 * operation out has one such object; operations.c lists them, and calls each of them in the order of
 * enum operation. Every function may be NULL; an operation with neither `steps` nor `stage` is never under
 * way. */
struct coord_operation {
    /* Returns the operation's steps, which give its stage, and for whom it waits; NULL: it is not under way.
     * The steps advance with the job's events, and are given up when the job is freed. An operation without
     * such a function runs in another way, by `stage` and `advance` */
    struct coord_steps *(*steps)(struct coord_job *job);
    enum operation_stage (*stage)(const struct coord_job *job);
    /* an event of the core is over, or a tick has come: takes the next step if nothing prevents it */
    void (*advance)(struct coord_job *job);
    void (*tick)(struct coord_job *job);    /* instead of `advance`, by a tick */
    void (*stepped)(struct coord_job *job); /* a step has ended */
    /* shard_up: the shard has reported its part of the job. shard_down: the connection of a shard that was up
     * has ended */
    void (*shard_up)(struct coord_job *job, const Cairn__HeldJob *part);
    void (*shard_down)(struct coord_job *job, uint32_t shard);
    void (*lost)(struct coord_job *job);    /* the job is LOST; loss.why says why */
    void (*release)(struct coord_job *job); /* the job is freed */
    const char *being; /* why others are refused meanwhile: the job "is being" this */
    /* instead of `being`: fails with the reason of a refusal, and what to do about that */
    cairn_status (*refuse)(const struct coord_job *job, struct sentence *why);
    /* says for whom the job waits because of the operation, if no step says it; false: for nobody */
    bool (*waiting)(const struct coord_job *job, struct sentence *out);
    const char *until; /* "it waits UNTIL" the operation is over: for others that wait for it */
};

extern const struct coord_operation coord_making, coord_restoring, coord_dropping, coord_adopting,
    coord_amending, coord_extending, coord_parking, coord_resharding, coord_snapshotting;

enum operation_stage coord_stage(const struct coord_job *job, enum operation operation);
/* Returns what the job is at, as status shows it: "running", "parked". */
const char *coord_job_state_name(const struct coord_job *job);
/* Says why a request that needs a running job is refused. CAIRN_ERR_JOB_LOST, CAIRN_ERR_NOT_READY. */
CAIRN_MUST_CHECK cairn_status coord_job_fail_not_running(const struct coord_job *job,
                                                         struct sentence *why);
/* Returns what the operations under way hold, as bits of enum operation_hold. */
unsigned coord_operations_hold(const struct coord_job *job);
/* Checks that no operation under way excludes `asked`. CAIRN_ERR_BUSY, or CAIRN_ERR_NOT_READY if the other
 * one does not end by itself: `why` says which one it is. */
cairn_status coord_operation_judge(const struct coord_job *job, enum operation asked,
                                   struct sentence *why) CAIRN_MUST_CHECK;
/* Returns true if the job has a core and no other operation blocks `waiting`: see operations_block. */
bool coord_operation_may_begin(const struct coord_job *job, enum operation waiting);
/* The same for an operation that works at a step boundary, with all shards. */
bool coord_operation_may_begin_at_rest(const struct coord_job *job, enum operation waiting);
/* Returns for whom `waiting` waits, as "until ..."; NULL: it waits for no other operation. */
const char *coord_operation_waits(const struct coord_job *job, enum operation waiting);
/* Call the function of each operation. */
void coord_operations_advance(struct coord_job *job);
void coord_operations_tick(struct coord_job *job);
void coord_operations_stepped(struct coord_job *job);
void coord_operations_shard_up(struct coord_job *job, const Cairn__HeldJob *part);
void coord_operations_shard_down(struct coord_job *job, uint32_t shard);
void coord_operations_lost(struct coord_job *job);
void coord_operations_release(struct coord_job *job);
/* Says for whom the job waits because of an operation; false: for nobody. */
bool coord_operations_waiting(const struct coord_job *job, struct sentence *out);

#endif
