/* Operations: puts, pushes and fetches in progress; and commands, with which a caller's thread
 * hands them to the loop thread. */
#ifndef CAIRN_CLIENT_OP_H
#define CAIRN_CLIENT_OP_H

#include <cairn.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "client/base.h"
#include "proto/base/text.h"
#include "proto/wire/wire.h"

struct card;
struct card_event;
struct card_word;
struct served_layout;
struct job;
struct session;

/* Called at the end of an operation of the library's own. Not under the lock. */
typedef void (*op_done_fn)(void *context, cairn_status status, const char *why);

/* A piece of a tensor, and the caller's memory for it: what a put, push or fetch transfers. */
struct target {
    uint32_t tensor;
    uint8_t dtype;
    uint8_t *ptr; /* on loan while the operation is open */
    struct piece piece;
    struct card *card; /* the card that owns the memory at ptr; NULL: the host */
    size_t box_bytes;  /* of a fetch or a put of a box: sent with each of its chunks */
    uint8_t box[CAIRN_BOX_BYTES_MAX];
};

/* Freed with its last reference: the handle has one (if the caller wanted a handle), and the loop
 * thread has one while `holds` is not 0. */
struct op {
    struct session *session; /* borrowed: outlives it */
    struct job *job;         /* borrowed, like session */
    void *handle;            /* NULL: nobody waits for this operation */
    uint8_t kind;            /* CAIRN_CHUNK_PUSH, _PUT, _FETCH */
    uint8_t plane;
    struct target target; /* of an operation on one tensor */
    const void *region;   /* cairn_alloc region that contains ptr; NULL: other memory */
    const void **regions; /* owned: [region_count], the same for several targets; or NULL */
    size_t region_count;
    const void *list;   /* a held handle that keeps the targets alive; NULL: no list */
    void *owned;        /* freed when the loan ends: a copy on the host; or NULL */
    op_done_fn on_done; /* NULL: the caller's operation, signaled by the event descriptor */
    void *context;
    struct op *of; /* the list's operation, which ends after this entry of it; or NULL */
    bool may_be_canceled;
    atomic_bool is_canceled;
    SLIST_ENTRY(op) next_spare; /* lock: in the session's spare list, when it is over */
    struct op *next_awaiting;   /* lock: the next operation that awaits the same block (read.h) */
    /* loop thread */
    uint32_t holds; /* parcels that are not done, plus one while the operation is being cut */
    /* how many of these parcels are received and being copied to a card (push.h) */
    uint32_t landed;
    /* lock */
    bool done;
    cairn_status status;
    char *why;  /* owned; NULL: the status is sufficient */
    void *user; /* the caller's own */
    uint32_t refs;
    /* lock of the session's streams (session.h) */
    bool is_late;            /* a stream that waited for it was released before it was done */
    struct card_word *words; /* owned: streams wait for them, until words_until_ms */
    uint64_t words_until_ms;
    LIST_ENTRY(op) next_words; /* in the list of operations whose words are waited for */
};

struct command {
    TAILQ_ENTRY(command) next;
    /* Loop thread. False: the command cannot proceed now, and is run again later from the point it
     * reached. NULL: the command has an op, whose kind says how it runs. */
    bool (*run)(struct command *command);
    struct job *job;
    struct op *op; /* put, push, fetch: this command's reference */
    uint32_t tensor, micro;
    uint8_t plane, dtype;
    uint8_t *ptr; /* on loan: the piece */
    struct piece piece;
    struct card *card;        /* the op's, like `owned` */
    struct card_event *event; /* owned: must be done before ptr is read; NULL: none */
    void *owned;
    uint64_t round, weight;
    struct cairn_version version;
    op_done_fn on_done; /* of its op */
    void *context;
    /* loop thread: how far it has come */
    const struct target *target; /* the op's, or an entry of its list */
    size_t targets_left;         /* the number of targets after this one */
    /* held: the layout by which the command is cut; NULL: cutting has not begun */
    struct served_layout *served;
    size_t next_extent;
    const struct local_extent *local; /* of next_extent; NULL: not looked up yet */
    uint64_t next_chunk;
    bool is_held_up;     /* a push: the pusher had no room for its last chunk */
    uint64_t starved_ms; /* since when the command has lacked memory; 0: it lacks none */
};

struct op_list {
    const void *handle; /* of the list */
    const struct target *targets;
    size_t count; /* at least one */
};

/* Creates an op with the loop's reference, and one of the handle if `with_handle`. NULL: out of
 * memory. */
struct op *op_create(struct job *job, uint8_t kind, bool with_handle);
/* Loop thread: op_hold adds a parcel; op_let_go removes a parcel, with its result. Removing the last
 * parcel completes the op. */
void op_hold(struct op *op);
void op_let_go(struct op *op, cairn_status status, const char *why);

/* Returns why a failed operation failed. */
static inline const char *op_why(const struct op *op)
{
    return op->why != NULL ? op->why : status_text((int)op->status);
}

void command_free(struct command *command); /* not its op */
/* Creates a command with a reference to the job; NULL: out of memory. */
struct command *op_command(struct job *job, bool (*run)(struct command *));
/* Creates the operation of a call whose work is complete when the call returns. The operation is
 * created before the call's work, so that nothing can fail after the work. *out is NULL if op_out is
 * NULL. */
cairn_status op_reserve(struct job *job, uint8_t kind, cairn_op **op_out,
                        struct op **out) CAIRN_MUST_CHECK;
/* Consumes the operation: on success *op_out becomes its handle; on failure nobody is notified.
 * Returns `status`. */
cairn_status op_settle(struct op *op, cairn_status status, cairn_op **op_out) CAIRN_MUST_CHECK;
/* Creates an operation that is already over: no memory of the caller is on loan. op_out may be NULL. */
cairn_status op_finished(struct job *job, uint8_t kind, cairn_op **op_out) CAIRN_MUST_CHECK;
/* Begins a put, push or fetch. `pattern` describes it; job, op and run are filled in here. On
 * failure, event and owned memory stay the caller's. */
cairn_status op_begin(struct job *job, uint8_t kind, const struct command *pattern,
                      cairn_op **op_out) CAIRN_MUST_CHECK;

/* Fills in the tensor, the memory and the piece that an operation of this pattern transfers. */
void op_describe_target(const struct command *pattern, struct target *out);
/* The same for a list, as one operation: `targets` belong to the list, which is held until the
 * operation is over. Targets in memory of cards get operations of their own (below), each of which
 * waits for its stream. *wrong_out: the index of the target that is refused; `count`: no target is
 * wrong. */
cairn_status op_begin_list(struct job *job, uint8_t kind, const struct command *pattern,
                           const struct op_list *list, cairn_op **op_out,
                           size_t *wrong_out) CAIRN_MUST_CHECK;

TAILQ_HEAD(command_queue, command);

/* Several commands that are handed over together. */
struct command_chain {
    /* the operation of all these commands, from op_create, which ends with the last command; or NULL */
    struct op *of;
    struct command_queue commands;
};
/* Adds a command to the chain like op_begin, without beginning the command. */
cairn_status op_chain(struct job *job, uint8_t kind, const struct command *pattern,
                      struct command_chain *chain) CAIRN_MUST_CHECK;
void op_chain_go(struct session *s, struct command_chain *chain);
/* Drops the chain: frees its commands, none of which is begun, and ends `of`. */
void op_chain_drop(struct command_chain *chain);

/* ==== wait ==== */

/* Waiting: no call waits for long without a line about it, and no call of a round times out because
 * of a worker that is alive and has announced that it is busy with something else. */

/* This worker is busy with something else (cairn_pause). */
struct pause {
    uint64_t ends_ms; /* 0: it is not paused */
    /* loop thread: the request number of the Pause that was repeated to a new coordinator; 0: none */
    uint32_t request;
    char what[64];
};

/* A question which shards have not answered: a caller's thread asks it, the loop thread answers it. */
struct awaited {
    bool asked, answered;
    struct sentence text;
};

/* The patience of one call that waits. */
struct patience {
    struct job *job;
    uint64_t span_ms; /* given by its caller */
    uint64_t say_ms;  /* when the next line for people is due */
    bool said;        /* a line was written */
    bool paused;      /* the awaited worker was paused when last asked */
};
struct patience client_patience(struct job *job, uint64_t deadline_ms);
/* Returns when the sleep of a call must end: at the call's deadline, or earlier if the call must report
 * before that for whom it waits. */
uint64_t client_says_at(const struct patience *p, uint64_t deadline_ms);
/* Not under the lock. Reports that the call still waits; `text` is the text that the call's error would
 * have. */
void client_say_wait(struct patience *p, const char *text);

/* Sets `out` to the beginning of the error text for a call of the job that timed out. This beginning
 * names the silent link and ends in "; ", or is empty if no link is silent. Not under the lock. */
void client_silence(struct job *job, struct sentence *out);

/* ==== ask ==== */

/* Asks: control requests of the caller's threads. The loop thread sends them and delivers the
 * replies (client/loop.c). */

/* A call of cairn.h that asks the coordinator. */
struct ask_call {
    const char *name;          /* for errors */
    uint16_t type, reply_type; /* enum wire_message */
    /* it is answered once all workers have reached the same point, so it waits for a worker that pauses */
    bool is_of_round;
    /* what it waits for if it waits for no member and no shard; NULL: for the coordinator */
    const char *rest;
};
/* Declares the row of a call. */
#define ASK_CALL(row, NAME, TYPE, REPLY, ...)                                                \
    static const struct ask_call row = {                                                     \
        .name = NAME, .type = CAIRN_MSG_##TYPE, .reply_type = CAIRN_MSG_##REPLY, __VA_ARGS__ \
    }

/* On the stack of its thread; under the lock. */
struct ask {
    LIST_ENTRY(ask) next;
    struct job *job;
    const struct ask_call *call;
    ProtobufCMessage *message; /* the thread's; the job's number in it is set on sending */
    uint32_t request;          /* 0: not sent on this connection */
    bool done;
    cairn_status status;
    struct sentence why;
    uint16_t reply_type;
    ProtobufCMessage *reply; /* the thread frees it with message_free */
};

/* Sends the call's request, and waits for its reply (*reply_out, freed by the caller; NULL: the reply is
 * not wanted) or its failure. Sets this thread's sentence. */
cairn_status ask_coordinator(struct job *job, const struct ask_call *call,
                             ProtobufCMessage *message, uint64_t deadline_ms,
                             ProtobufCMessage **reply_out) CAIRN_MUST_CHECK;
/* Returns for whom cairn_job_open waits, in the wording of its error. */
struct sentence ask_opening_awaits(struct job *job);

#endif
