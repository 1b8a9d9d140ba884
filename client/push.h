#ifndef CAIRN_CLIENT_PUSH_H
#define CAIRN_CLIENT_PUSH_H

#include <cairn.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "client/base.h"
#include "client/layouts.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/geometry/layout.h"
#include "proto/link/link.h"
#include "proto/wire/wire.h"

/* ==== accumulate ==== */

/* Stages 0 and 1: gradients of several micro-batches, added up by the client. Caller's threads; not under the
 * lock unless it says so. Between micro-batches no thread is still adding: whoever ends one waits. */

struct assembly;
struct sum;

struct push_sums {
    struct sum *of;                   /* owned: [tensor_count]; NULL: nothing was added up */
    bool ended;                       /* lock: the sums of this round are sent, or about to be */
    LIST_HEAD(, assembly) assemblies; /* lock; owned: tensors of which parts are missing (below) */
};

bool accumulate_wanted(const struct job *job);
/* Under the lock, when no push is open or adding: nothing is added up yet. */
void accumulate_new_round(struct job *job);
/* Adds a gradient, whose memory is the caller's again on return. filling.adding was counted up under the
 * lock, and is counted down by this call in any case. */
cairn_status accumulate_add(struct job *job, const struct cairn_round *round, uint32_t micro,
                            size_t tensor, const struct piece *piece,
                            const struct cairn_mem *mem) CAIRN_MUST_CHECK;
/* Pushes the sums that are not pushed yet; the end of micro-batch 0 is the caller's to send behind it. */
cairn_status accumulate_send(struct job *job, const struct cairn_round *round) CAIRN_MUST_CHECK;
void accumulate_release(struct job *job);

/* ==== assemble ==== */

/* A tensor that is put or pushed by its parts: aliases of boxes of it, such as the halves of a fused weight.
 *
 * The servers know the tensor only. So its parts are copied into one dense whole in the client's memory
 * (cairn_stats.assembled_bytes), and the whole is put or pushed when all of its elements are there:
 * contributions are folded in the same order with the same bits as one of the fused tensor. A micro-batch
 * that ends before that pushes zeros for what is missing; a tensor of which no part came is absent, as
 * ever. No element may come twice. Not for a worker that holds a tile of the tensor.
 *
 * Caller's threads. A part is claimed under the lock and copied without it; meanwhile filling.adding counts
 * it, for which the end of a micro-batch waits. */

struct command;

/* A part that is put or pushed. */
struct portion {
    const char *name; /* the alias */
    uint8_t kind;     /* CAIRN_CHUNK_PUT, _PUSH */
    uint32_t tensor;  /* its target */
    uint32_t micro;   /* of a push, as round */
    uint64_t round;
    struct piece whole; /* of the target */
    struct piece piece; /* the box is the target's, the strides are the caller's memory's */
    struct cairn_mem mem;
};

/* Under the lock: some of the tensor came, in this round and micro-batch, and not all. */
bool assemble_begun(const struct job *job, const struct portion *portion);
/* Under the lock: the place is this portion's; to be copied next. CAIRN_ERR_EXISTS: another one has
 * elements of it; CAIRN_ERR_INVALID: another one has another dtype; CAIRN_ERR_NO_MEMORY. */
cairn_status assemble_claim(struct job *job, const struct portion *portion,
                            struct assembly **out) CAIRN_MUST_CHECK;
/* Not under the lock. If nothing is missing now, *whole_out is true and the assembly the caller's, to be
 * sent or undone. Failed: as if the portion had not been claimed. CAIRN_ERR_EPOCH_CHANGED: it is of a void
 * round. */
cairn_status assemble_copy(struct assembly *assembly, const struct portion *portion,
                           bool *whole_out) CAIRN_MUST_CHECK;
/* It could not be sent: as it was before the portion came. */
void assemble_undo(struct assembly *assembly, const struct portion *portion);
/* The next tensor of that micro-batch of which not all came; NULL: none is left. It is the caller's. */
struct assembly *assemble_ended(struct job *job, uint64_t round, uint32_t micro);

/* It could not be sent: it is given again by the next assemble_ended. */
void assemble_put_back(struct assembly *assembly);

/* Fills in what of a command an assembly is about, and has it freed when its operation is over. */
void assemble_pattern(struct assembly *assembly, struct command *pattern);
struct cairn_mem assemble_mem(const struct assembly *assembly);
void assemble_free(struct assembly *assembly);

/* Under the lock: another round begins, what was pushed of this one is void. */
void assemble_new_round(struct job *job);
/* CAIRN_ERR_NOT_READY names a tensor of which only parts were put. */
cairn_status assemble_judge_put(struct job *job) CAIRN_MUST_CHECK;
void assemble_release(struct job *job); /* with the job */

/* ==== parcel ==== */

/* Parcels: what a put, push or fetch has of the chunks of shards, each on its way by itself. Loop thread. */

struct op;
struct target;

/* The part of one chunk that an op sends or fetches. Its job owns the parcel, and uses it again and
 * again; a parcel is over when it is answered, and the fabric has given back what it had on
 * loan. */
struct parcel {
    struct job *job;
    struct op *op;                /* NULL: free */
    const struct target *target;  /* of the op's: what it is about */
    struct parcel *next;          /* in the free list */
    struct chunk_request request; /* of a put or fetch, to its owner; of a push: its cookie */
    uint8_t kind;                 /* CAIRN_CHUNK_PUSH, _PUT, _FETCH */
    uint8_t plane, dtype, tile;
    bool answered;
    cairn_status status;
    uint32_t on_loan; /* sends and receives that the fabric has not completed */
    uint64_t layout;  /* the version of the one that it was cut by */
    uint32_t shard;   /* the owner of the chunk there */
    uint32_t via;     /* the shard to whose endpoint it went last: another's is a relay */
    bool direct;      /* a relay had no answer to this fetch */
    struct chunk_place place;
    uint64_t table_hash;
    /* [byte_count] what the piece has of the chunk: in the caller's buffer, or `packed`, which is made when
     * it is sent; NULL until then */
    uint8_t *bytes;
    uint8_t *packed; /* owned; of memory with strides, or behind a box */
    /* of a card's memory: its copy, for shards that do not take it from where it lies */
    struct staged staged;
    uint64_t copy; /* its number, of one that was not waited for (device.h); else 0 */
    bool is_queued, is_ahead, is_landed; /* parcel.c */
    TAILQ_ENTRY(parcel) queued; /* of a push among those of its owner; of a fetch, of its job */
    bool on_card;               /* `bytes` is memory of a card, and goes by reference */
    uint64_t first;             /* element of the piece */
    size_t byte_count;
    size_t head_bytes; /* before it in `packed`: the box of a put; 0: none */
    bool lands;        /* what is received comes to the card by the network card */
    bool is_unsummed;  /* CAIRN_CHUNK_UNSUMMED: what is being received, or sent from the card */
    uint64_t checksum; /* of what a fetch is receiving, as the shard says */
    uint64_t came;     /* and as it came */
    struct cairn_version version;
    uint64_t round;      /* of a put in a write; else 0 */
    uint64_t word_by_ms; /* the shard knows no such chunk, and is asked again until then; else 0 */
};

/* All parcels of a job, those in use and the free ones. */
struct parcel_table {
    struct parcel **all; /* owned: [count] of capacity */
    uint32_t count, capacity;
    struct parcel *first_free;
};

/* A parcel of the op for chunk `chunk` of the shard in the command's layout. NULL: out of memory. */
struct parcel *parcel_new(struct job *job, const struct command *command, uint32_t shard,
                          uint64_t chunk);
/* Takes back a parcel that was never sent, as if it had not been made. */
void parcel_undo(struct parcel *parcel);
/* The parcel whose request has that number. NULL: the number is of a former use, or not one of
 * ours. */
struct parcel *parcel_of_request(const struct job *job, uint64_t number);
/* The parcel is answered; if it is so more than once, the first status stays. */
void parcel_end(struct parcel *parcel, cairn_status status);
/* Sends its chunk over the connection of shard `via`, and fills in of `header` what the parcel knows. */
cairn_status parcel_send(struct parcel *parcel, uint32_t via,
                         struct chunk_header *header) CAIRN_MUST_CHECK;
/* Gives the parcel memory of its own where the caller's does not do: it has strides, is of a card
 * (for a fetch), or a box goes before the payload. */
cairn_status parcel_open(struct parcel *parcel) CAIRN_MUST_CHECK;
/* A fetch has been received: ends the parcel, or has it end when the card has the bytes. */
void parcel_arrived(struct parcel *parcel);
void parcel_loan(struct parcel *parcel);
void parcel_loan_back(struct parcel *parcel);

/* parcel.c: where a put, push or fetch stands. */

/* *shard_out and *chunk_out come next, past those of which the piece has nothing. False: the piece
 * is cut whole. */
bool command_chunk(struct command *command, uint32_t *shard_out, uint64_t *chunk_out);
/* The piece has an element of this chunk of the command's layout. */
bool command_touches(const struct command *command, uint32_t shard, uint64_t chunk);

/* ==== pushes ==== */

/* Pushes of the open round. Loop thread. */

struct shard_link;

struct pushing {
    struct pusher pusher;
    struct served_layout
        *served; /* held: of the last round, that the pusher is made for; NULL: there was none */
    uint8_t **pushed;     /* owned: [micro_count][tensor_count] 1: pushed in that micro-batch */
    uint32_t micro_count; /* begun in this round */
    uint64_t gives_up;    /* a round of which a shard refused something; 0: none, or it was told */
};

/* Commands of the round. */
bool pushes_run(struct command *command);
bool pushes_micro_end_run(struct command *command);
bool pushes_commit_run(struct command *command);

/* The coordinator's word about a round. CAIRN_ERR_NO_MEMORY: nothing of it was taken, and it is to be said
 * again. */
cairn_status pushes_on_opened(struct job *job, const Cairn__RoundOpened *opened) CAIRN_MUST_CHECK;
void pushes_on_result(struct job *job, const Cairn__RoundResult *result);
void pushes_release(struct job *job); /* with the job, behind that */

/* The connection that the owner's last GRANT came by. */
struct shard_link *pushes_granter(struct shard_link *owner);
void pushes_on_grant(struct shard_link *owner);
/* The shard said HELLO on this connection: its answers to what was pushed over it may be lost. */
void pushes_on_hello(struct shard_link *link, uint64_t way);
/* Something is owed to the open round's machine that comes, or may come, by this connection. */
bool pushes_waits(const struct shard_link *link);
/* The connection is lost, and with it the grants that came by it. */
void pushes_lost(struct shard_link *link);

/* ==== recut ==== */

/* Puts and fetches, cut anew where another layout holds for them by now. Loop thread. */

/* The layouts of the job, or since when they serve, have changed. */
void recut_all(struct job *job);

/* The shard has left the job and is not there any more: nobody has what is asked of it. */
void recut_gone(struct shard_link *link);

/* ==== stage ==== */

/* Copies of a card's memory that pass through the host. A push to a shard that cannot read the
 * memory where it lies begins its copy a few chunks before the chunk is sent; a fetch begins its
 * copy as a chunk comes, and ends that chunk a few chunks later. So one wait serves several copies,
 * and the card copies while the shards work. Loop thread. */

/* How many chunks of an owner may be copied ahead of being sent, and how many chunks of a job may
 * be copied after they came. */
#define CAIRN_STAGE_AHEAD 8

/* A push that was just cut; whoever pushes host memory may call it, too. */
void stage_queue(struct parcel *parcel);
/* Begins copies of what is queued for the owner, as many as may be ahead. */
void stage_fill(struct shard_link *owner);

/* Before the loop sleeps: waits for the copies to the card and ends their parcels, if some
 * operation has nothing left but these. If none has, the rest of the operations is awaited first,
 * and the card copies meanwhile. */
void stage_end_landed(struct job *job);

/* ==== transfer ==== */

/* Puts and fetches. Loop thread. */

bool transfer_run(struct command *command);
/* The hand of all askers. */
cairn_status transfer_send(struct chunk_request *request) CAIRN_MUST_CHECK;
void transfer_on_answer(struct shard_link *link, const struct chunk_header *header);
void transfer_on_data(struct shard_link *link, const struct chunk_header *header,
                      struct fabric_message *message);
/* The connection is lost: what was asked over it and is unanswered waits to be sent again. */
void transfer_lost(struct shard_link *link);
/* Ends the fetches that their caller has canceled, as far as they were not answered. */
void transfer_cancel(struct job *job);

/* ==== fail ==== */

/* The end of a job. Loop thread. */

/* Fails the job for good, if it has not failed: every call says so, and whoever waits hears it. */
void fail_calls(struct job *job, cairn_status status, const char *text);
/* It is detached, and all that is under way ends with `status`. */
void fail_parcels(struct job *job, cairn_status status);
/* Both. */
void job_fail(struct job *job, cairn_status status, const char *text);

#endif
