/* Operations are puts, pushes and fetches in progress. A caller's thread hands operations to the
 * loop thread with commands. */
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
    struct card *card; /* the card that has the memory at ptr; NULL: the host */
    /* the bytes of `box`, which is sent with each chunk of a fetch or of a put of a box */
    size_t box_bytes;
    uint8_t box[CAIRN_BOX_BYTES_MAX];
};

/* Freed with its last reference: the handle has one (if the caller wanted a handle), and the loop
 * thread has one while `holds` is not 0. */
struct op {
    struct session *session; /* borrowed: the session outlives the operation */
    struct job *job;         /* borrowed: the job outlives the operation */
    void *handle;            /* NULL: nobody waits for this operation */
    uint8_t kind;            /* CAIRN_CHUNK_PUSH, _PUT, _FETCH */
    uint8_t plane;
    struct target target; /* the target of an operation on one tensor */
    const void *region;   /* the cairn_alloc region that contains ptr; NULL: other memory */
    /* owned: [region_count], the regions of several targets; NULL: a single target */
    const void **regions;
    size_t region_count;
    const void *list;   /* a held handle that keeps the targets alive; NULL: no list */
    void *owned;        /* a copy on the host, freed when the loan ends; or NULL */
    op_done_fn on_done; /* NULL: the caller's operation, signaled by the event descriptor */
    void *context;
    /* the list's operation, of which this operation is one entry, and which ends later; or NULL */
    struct op *of;
    bool may_be_canceled;
    atomic_bool is_canceled;
    SLIST_ENTRY(op) next_spare; /* lock: in the session's spare list, after the operation is over */
    struct op *next_awaiting;   /* lock: the next operation that awaits the same block (read.h) */
    /* loop thread */
    uint32_t holds; /* parcels that are not done, plus one while the operation is being cut */
    /* how many of the parcels in `holds` are received and being copied to a card (push.h) */
    uint32_t landed;
    /* lock */
    bool done;
    cairn_status status;
    char *why;  /* owned; NULL: the status is sufficient */
    void *user; /* the caller's own */
    uint32_t refs;
    /* under the lock of the session's streams (session.h) */
    /* a stream that waited for this operation was released before the operation was done */
    bool is_late;
    struct card_word *words; /* owned: the words that streams wait for, until words_until_ms */
    uint64_t words_until_ms;
    LIST_ENTRY(op) next_words; /* in the list of operations whose words are waited for */
};

struct command {
    TAILQ_ENTRY(command) next;
    /* Loop thread. False: the command cannot proceed now, and is run again later from the point
     * that it had reached. NULL: the command has an op, whose kind says how the command runs. */
    bool (*run)(struct command *command);
    struct job *job;
    struct op *op; /* this command's reference to its put, push or fetch */
    uint32_t tensor, micro;
    uint8_t plane, dtype;
    uint8_t *ptr; /* on loan: the memory of the piece */
    struct piece piece;
    struct card *card; /* passed on to the op, like `owned` */
    /* owned: an event that must be done before the memory at ptr is read; NULL: none */
    struct card_event *event;
    void *owned;
    uint64_t round, weight;
    struct cairn_version version;
    op_done_fn on_done; /* the callback of the command's op */
    void *context;
    /* loop thread: how far the command has come */
    const struct target *target; /* the op's target, or an entry of the op's list */
    size_t targets_left;         /* the number of targets after this one */
    /* held: the layout by which the command is cut; NULL: cutting has not begun */
    struct served_layout *served;
    size_t next_extent;
    const struct local_extent *local; /* the extent next_extent; NULL: not looked up yet */
    uint64_t next_chunk;
    bool is_held_up;     /* for a push: the pusher had no room for the command's last chunk */
    uint64_t starved_ms; /* since when the command has lacked memory; 0: it lacks none */
};

struct op_list {
    const void *handle; /* the handle of the list */
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

/* Returns the reason of a failed operation. */
static inline const char *op_why(const struct op *op)
{
    return op->why != NULL ? op->why : status_text((int)op->status);
}

void command_free(struct command *command); /* does not free the command's op */
/* Creates a command with a reference to the job; NULL: out of memory. */
struct command *op_command(struct job *job, bool (*run)(struct command *));
/* Creates the operation of a call whose work is complete when the call returns. The operation is
 * created before the call's work, so that nothing can fail after the work. *out is NULL if op_out
 * is NULL: the caller wants no handle. */
cairn_status op_reserve(struct job *job, uint8_t kind, cairn_op **op_out,
                        struct op **out) CAIRN_MUST_CHECK;
/* Consumes the operation: on success *op_out becomes its handle; on failure the operation is
 * dropped, and nobody is notified. Returns `status`. */
cairn_status op_settle(struct op *op, cairn_status status, cairn_op **op_out) CAIRN_MUST_CHECK;
/* Creates an operation that is already over: no memory of the caller is on loan. op_out may be NULL. */
cairn_status op_finished(struct job *job, uint8_t kind, cairn_op **op_out) CAIRN_MUST_CHECK;
/* Begins a put, push or fetch. `pattern` describes the operation; its job, op and run are filled in
 * here. On failure, event and owned memory stay the caller's. */
cairn_status op_begin(struct job *job, uint8_t kind, const struct command *pattern,
                      cairn_op **op_out) CAIRN_MUST_CHECK;

/* Fills in the tensor, the memory and the piece that an operation of this pattern transfers. */
void op_describe_target(const struct command *pattern, struct target *out);
/* Begins the pushes or fetches of a list, as one operation. The list owns `targets`, and is held
 * until the operation is over. Targets in memory of cards get operations of their own (below), each
 * of which waits for its stream. *wrong_out: the index of the target that is refused; `count`: no
 * target is wrong. */
cairn_status op_begin_list(struct job *job, uint8_t kind, const struct command *pattern,
                           const struct op_list *list, cairn_op **op_out,
                           size_t *wrong_out) CAIRN_MUST_CHECK;

TAILQ_HEAD(command_queue, command);

/* Several commands that are handed over together. */
struct command_chain {
    /* the operation of all these commands, created by op_create, which ends with the last command;
     * or NULL */
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

/* Waiting: a call that waits for long reports its wait. A call of a round does not time out
 * because of a worker that is alive and has announced that it is busy with something else. */

/* The pause of this worker, which is busy with something else (cairn_pause). */
struct pause {
    uint64_t ends_ms; /* 0: the worker is not paused */
    /* loop thread: the request number of the Pause that was repeated to a new coordinator; 0: none */
    uint32_t request;
    char what[64];
};

/* The question which shards have not answered. A caller's thread asks it, and the loop thread
 * answers it. */
struct awaited {
    bool asked, answered;
    struct sentence text;
};

/* The patience of one call that waits. */
struct patience {
    struct job *job;
    uint64_t span_ms; /* given by the caller of the waiting call */
    uint64_t say_ms;  /* when the next report is due */
    bool said;        /* a line was written */
    bool paused;      /* the awaited worker was paused when last asked */
};
struct patience client_patience(struct job *job, uint64_t deadline_ms);
/* Returns when the sleep of a call must end: at the call's deadline, or earlier if the call must
 * first report for whom it waits. */
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
    /* the call is answered after all workers have reached the same point, so it also waits for a
     * worker that pauses */
    bool is_of_round;
    /* what the call waits for if it waits for no member and no shard; NULL: for the coordinator */
    const char *rest;
};
/* Declares the row of a call. */
#define ASK_CALL(row, NAME, TYPE, REPLY, ...)                                                \
    static const struct ask_call row = {                                                     \
        .name = NAME, .type = CAIRN_MSG_##TYPE, .reply_type = CAIRN_MSG_##REPLY, __VA_ARGS__ \
    }

/* An ask is on the stack of the thread that asks. Under the lock. */
struct ask {
    LIST_ENTRY(ask) next;
    struct job *job;
    const struct ask_call *call;
    /* the asking thread's message, in which the job's number is set on sending */
    ProtobufCMessage *message;
    uint32_t request; /* 0: not sent on this connection */
    bool done;
    cairn_status status;
    struct sentence why;
    uint16_t reply_type;
    ProtobufCMessage *reply; /* the reply, which the asking thread frees with message_free */
};

/* Sends the call's request, and waits for its reply or failure. The caller frees the reply,
 * *reply_out; NULL: the reply is not wanted. Sets this thread's sentence. */
cairn_status ask_coordinator(struct job *job, const struct ask_call *call,
                             ProtobufCMessage *message, uint64_t deadline_ms,
                             ProtobufCMessage **reply_out) CAIRN_MUST_CHECK;
/* Returns whom cairn_job_open waits for, in the wording of its error. */
struct sentence ask_opening_awaits(struct job *job);

#endif
