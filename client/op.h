/* Operations: what put, push and fetch have under way; and commands, by which a caller's thread hands them to
 * the loop thread. */
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

/* Hears of the end of an operation of the library's own. Not under the lock. */
typedef void (*op_done_fn)(void *context, cairn_status status, const char *why);

/* A piece of a tensor, and memory of the caller's for it: what a put, push or fetch is about. */
struct target {
    uint32_t tensor;
    uint8_t dtype;
    uint8_t *ptr; /* on loan while the operation is open */
    struct piece piece;
    struct card *card; /* whose memory ptr is; NULL: the host's */
    size_t box_bytes;  /* of a fetch or a put of a box: what goes with each of its chunks */
    uint8_t box[CAIRN_BOX_BYTES_MAX];
};

/* Freed with its last reference: one of the handle (if the caller wanted one), one of the loop thread while
 * `holds` is not 0. */
struct op {
    struct session *session; /* borrowed: outlives it */
    struct job *job;         /* borrowed, likewise */
    void *handle;            /* NULL: nobody waits for this one */
    uint8_t kind;            /* CAIRN_CHUNK_PUSH, _PUT, _FETCH */
    uint8_t plane;
    struct target target; /* of one that is about one tensor */
    const void *region;   /* memory of cairn_alloc that it is in; NULL: another's */
    const void **regions; /* owned: [region_count] of several targets, likewise; or NULL */
    size_t region_count;
    const void *list;   /* a handle that is held: it keeps the targets; NULL: there is none */
    void *owned;        /* freed with the loan: what was brought to the host; or NULL */
    op_done_fn on_done; /* NULL: the caller's, who hears by the event descriptor */
    void *context;
    struct op *of; /* that of a whole list, which this is an entry of, and ends before; or NULL */
    bool may_be_canceled;
    atomic_bool is_canceled;
    SLIST_ENTRY(op) next_spare; /* lock: of the session, when it is over */
    struct op *next_awaiting;   /* lock: the next that awaits the same block (read.h) */
    /* loop thread */
    uint32_t holds;  /* parcels that are not done, and one more while it is cut */
    uint32_t landed; /* those of them that have come, and are copied to a card (push.h) */
    /* lock */
    bool done;
    cairn_status status;
    char *why;  /* owned; NULL: the status says it all */
    void *user; /* the caller's own */
    uint32_t refs;
    /* lock of the session's streams (session.h) */
    bool is_late;            /* a stream that waited for it was let go before it was done */
    struct card_word *words; /* owned: streams wait for them; until then */
    uint64_t words_until_ms;
    LIST_ENTRY(op) next_words; /* among those whose words are waited for */
};

struct command {
    TAILQ_ENTRY(command) next;
    /* Loop thread. False: it cannot go on now and is run again later, from where it stood. */
    bool (*run)(struct command *command);
    struct job *job;
    struct op *op; /* put, push, fetch: this command's reference */
    uint32_t tensor, micro;
    uint8_t plane, dtype;
    uint8_t *ptr; /* on loan: the piece */
    struct piece piece;
    struct card *card;        /* as of the op, as `owned` */
    struct card_event *event; /* owned: what is to be done before ptr is read; NULL: nothing */
    void *owned;
    uint64_t round, weight;
    struct cairn_version version;
    op_done_fn on_done; /* of its op */
    void *context;
    /* loop thread: where it stands */
    const struct target *target;  /* the op's, or one of its list's, .. */
    size_t targets_left;          /* behind which there are so many more */
    struct served_layout *served; /* held: that it is cut by; NULL: it has not begun */
    size_t next_extent;
    const struct local_extent *local; /* of next_extent; NULL: not looked for yet */
    uint64_t next_chunk;
    bool is_held_up;     /* a push: the pusher had no room for its last chunk */
    uint64_t starved_ms; /* since when there is no memory for it; 0: there was, so far */
};

struct op_list {
    const void *handle; /* of the list */
    const struct target *targets;
    size_t count; /* at least one */
};

/* A new op with the loop's reference, and one of the handle if `with_handle`. NULL: out of memory. */
struct op *op_create(struct job *job, uint8_t kind, bool with_handle);
/* Loop thread: a parcel more; and one less, with how it ended. The last one completes the op. */
void op_hold(struct op *op);
void op_let_go(struct op *op, cairn_status status, const char *why);

/* Why a failed operation failed. */
static inline const char *op_why(const struct op *op)
{
    return op->why != NULL ? op->why : status_text((int)op->status);
}

void command_free(struct command *command); /* not its op */
/* A command with a reference to the job; NULL: out of memory. */
struct command *op_command(struct job *job, bool (*run)(struct command *));
/* The operation of a call that will have done its work when it returns: made before that work, so that
 * nothing fails behind it. *out is NULL where op_out is. */
cairn_status op_reserve(struct job *job, uint8_t kind, cairn_op **op_out,
                        struct op **out) CAIRN_MUST_CHECK;
/* Uses it up: the work is done, and *op_out is its handle; or it failed, and nobody hears of it. Returns
 * `status`. */
cairn_status op_settle(struct op *op, cairn_status status, cairn_op **op_out) CAIRN_MUST_CHECK;
/* An operation that is over already: nothing of the caller's is on loan. op_out may be NULL. */
cairn_status op_finished(struct job *job, uint8_t kind, cairn_op **op_out) CAIRN_MUST_CHECK;
/* Begins a put, push or fetch. `pattern` says what; job, op and run are filled in. Failed: event and what is
 * owned stay the caller's. */
cairn_status op_begin(struct job *job, uint8_t kind, bool (*run)(struct command *),
                      const struct command *pattern, cairn_op **op_out) CAIRN_MUST_CHECK;

/* Fills in the tensor, the memory and the piece that an operation of this pattern is about. */
void op_describe_target(const struct command *pattern, struct target *out);
/* The same of a list, as one operation: `targets` are the list's, which is held until it is over. Memory of
 * cards has operations of its own (below): each waits for its stream. *wrong_out: which of the targets is
 * refused; `count`: none of them. */
cairn_status op_begin_list(struct job *job, uint8_t kind, bool (*run)(struct command *),
                           const struct command *pattern, const struct op_list *list,
                           cairn_op **op_out, size_t *wrong_out) CAIRN_MUST_CHECK;

TAILQ_HEAD(command_queue, command);

/* Several that are handed over at once. */
struct command_chain {
    struct op *of; /* of all of them, made by op_create: it ends with the last one; or NULL */
    struct command_queue commands;
};
/* One more, as by op_begin: not begun yet. */
cairn_status op_chain(struct job *job, uint8_t kind, bool (*run)(struct command *),
                      const struct command *pattern, struct command_chain *chain) CAIRN_MUST_CHECK;
void op_chain_go(struct session *s, struct command_chain *chain);
/* None of them is begun: they are freed, and `of` has ended. */
void op_chain_drop(struct command_chain *chain);

/* ==== wait ==== */

/* Waiting: no call is silent about it for long, and none of a round fails for a worker that lives, and said
 * that it is at work on something else. */

/* This worker is at work on something else (cairn_pause). */
struct pause {
    uint64_t ends_ms; /* 0: it is not */
    uint32_t
        request; /* loop thread: of the Pause that was repeated to a new coordinator; 0: of none */
    char what[64];
};

/* Which shards have not answered: a caller's thread asks, the loop thread tells. */
struct awaited {
    bool asked, answered;
    struct sentence text;
};

/* The patience of one call that waits. */
struct patience {
    struct job *job;
    uint64_t span_ms; /* that its caller gave it */
    uint64_t say_ms;  /* the next line for people */
    bool said;        /* a line was told */
    bool paused;      /* so it was when it was asked last */
};
struct patience client_patience(struct job *job, uint64_t deadline_ms);
/* Until when the call sleeps: its deadline, or before it a moment to say for whom it waits. */
uint64_t client_says_at(const struct patience *p, uint64_t deadline_ms);
/* Not under the lock. It waits on: `text` is what its error would say. */
void client_say_wait(struct patience *p, const char *text);

/* The beginning of the error of a call of the job that timed out: names the link that is silent and
 * ends in "; ", or is empty if no link is. Not under the lock. */
void client_silence(struct job *job, struct sentence *out);

/* ==== ask ==== */

/* Asks: control requests of the caller's threads. The loop thread sends them and brings the replies
 * (client/loop.c). */

/* In its thread's stack; under the lock. */
struct ask {
    LIST_ENTRY(ask) next;
    struct job *job;
    const char *call;          /* of cairn.h, that asks: for errors */
    uint16_t type;             /* enum wire_message */
    ProtobufCMessage *message; /* the thread's; the job's number in it is set when it is sent */
    uint32_t request;          /* 0: not sent on this connection */
    bool done;
    cairn_status status;
    struct sentence why;
    uint16_t reply_type;
    ProtobufCMessage *reply; /* the thread frees it with message_free */
};

/* Sends the request of `call`, a function of cairn.h, and waits for its reply of `reply_type` (*reply_out,
 * freed by the caller; NULL: nobody wants it) or its failure. Sets this thread's sentence. */
cairn_status ask_coordinator(struct job *job, const char *call, uint16_t type,
                             ProtobufCMessage *message, uint16_t reply_type, uint64_t deadline_ms,
                             ProtobufCMessage **reply_out) CAIRN_MUST_CHECK;
/* For whom cairn_job_open waits, as its error says it. */
struct sentence ask_opening_awaits(struct job *job);

#endif
