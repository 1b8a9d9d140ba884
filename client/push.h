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

/* Stages 0 and 1: gradients of several micro-batches, added up by the client. Caller's threads; not
 * under the lock unless a comment says so. Between micro-batches no thread is still adding: the
 * call that ends a micro-batch waits for all such threads. */

struct assembly;
struct sum;

struct push_sums {
    struct sum *of; /* owned: [tensor_count]; NULL: nothing was added up */
    bool ended;     /* lock: the sums of this round are sent, or about to be */
    /* lock; owned: the tensors that still lack some parts (below) */
    LIST_HEAD(, assembly) assemblies;
};

bool accumulate_wanted(const struct job *job);
/* Under the lock, when no push is open or being added: resets the sums, and drops tensors that were pushed
 * in part. */
void accumulate_new_round(struct job *job);
/* Adds a gradient. When the call returns, the gradient's memory is the caller's again. The caller
 * has incremented filling.adding under the lock; this call decrements filling.adding in any
 * case. */
cairn_status accumulate_add(struct job *job, const struct cairn_round *round, uint32_t micro,
                            size_t tensor, const struct piece *piece,
                            const struct cairn_mem *mem) CAIRN_MUST_CHECK;
/* Pushes the sums that are not pushed yet; the caller then sends the end of micro-batch 0. */
cairn_status accumulate_send(struct job *job, const struct cairn_round *round) CAIRN_MUST_CHECK;
void accumulate_release(struct job *job); /* when the job is released */

/* ==== assemble ==== */

/* Assembles a tensor that is put or pushed in parts. The parts are aliases of the tensor's boxes, such
 * as the halves of a fused weight.
 *
 * The servers only know the tensor. So the client copies the parts into one dense tensor in its own
 * memory (cairn_stats.assembled_bytes), and puts or pushes this tensor when all elements are
 * present. Such a contribution is folded in the same order, and with the same bits, as a
 * contribution of the fused tensor. If the micro-batch ends while elements are missing, zeros are
 * pushed for the missing elements; a tensor without any part is absent, as usual. No element may be
 * given twice. Not available to a worker that holds a tile of the tensor.
 *
 * Caller's threads. A part is claimed under the lock and copied without it; meanwhile the part counts
 * in filling.adding, and the end of a micro-batch waits until filling.adding is 0. */

struct command;

/* A part that is put or pushed. */
struct portion {
    const char *name; /* the alias */
    uint8_t kind;     /* CAIRN_CHUNK_PUT, _PUSH */
    uint32_t tensor;  /* the alias's target */
    uint32_t micro;   /* for a push, like `round` */
    uint64_t round;
    struct piece whole; /* the entire target */
    struct piece piece; /* the box in the target, and the strides of the caller's memory */
    struct cairn_mem mem;
};

/* Under the lock: returns true if some but not all of the tensor was given in this round and
 * micro-batch. */
bool assemble_begun(const struct job *job, const struct portion *portion);
/* Under the lock: reserves the portion's elements, which are to be copied next. CAIRN_ERR_EXISTS:
 * another portion has some of these elements; CAIRN_ERR_INVALID: another portion has another dtype;
 * CAIRN_ERR_NO_MEMORY. */
cairn_status assemble_claim(struct job *job, const struct portion *portion,
                            struct assembly **out) CAIRN_MUST_CHECK;
/* Not under the lock. If no element is missing after the copy, *whole_out is true, and the caller owns
 * the assembly and must send or undo it. On failure, the state is as if the portion had not been
 * claimed. CAIRN_ERR_EPOCH_CHANGED: the portion is of a void round. */
cairn_status assemble_copy(struct assembly *assembly, const struct portion *portion,
                           bool *whole_out) CAIRN_MUST_CHECK;
/* Called when the assembly could not be sent: restores the state from before the claim of this
 * portion. */
void assemble_undo(struct assembly *assembly, const struct portion *portion);
/* Returns the next incomplete tensor of that micro-batch, which the caller then owns; NULL: none is
 * left. */
struct assembly *assemble_ended(struct job *job, uint64_t round, uint32_t micro);

/* Called when the assembly could not be sent: the next assemble_ended returns it again. */
void assemble_put_back(struct assembly *assembly);

/* Fills in the fields of a command that depend on the assembly. The assembly is freed when the
 * command's operation is over. */
void assemble_pattern(struct assembly *assembly, struct command *pattern);
struct cairn_mem assemble_mem(const struct assembly *assembly);
void assemble_free(struct assembly *assembly);

/* Fails if only parts of some tensor were put: CAIRN_ERR_NOT_READY names the tensor. */
cairn_status assemble_judge_put(struct job *job) CAIRN_MUST_CHECK;

/* ==== parcel ==== */

/* Parcels: the parts of a put, push or fetch, one for each chunk, each sent or fetched separately.
 * Loop thread. */

struct op;
struct target;

/* The part of one chunk that an op sends or fetches. The job owns the parcel and reuses it. A
 * parcel is over when it is answered and the fabric has returned all memory that it had on loan. */
/* The piece's part of a chunk, and where its bytes lie. */
struct parcel_data {
    /* [byte_count] in the caller's buffer or in `packed`; NULL until `packed` is created on sending */
    uint8_t *bytes;
    uint8_t *packed; /* owned; used for memory with strides, or for data that follows a box */
    /* the copy of a card's memory, for shards that cannot read that memory directly */
    struct staged staged;
    uint64_t copy;  /* the number of a copy that was not waited for (device.h); 0: none */
    uint64_t first; /* the first element of the piece's part */
    size_t byte_count;
    size_t head_bytes; /* bytes in `packed` before the data: the box of a put; 0: none */
    bool on_card;      /* `bytes` is memory of a card, and is sent by reference */
    bool lands;        /* the network card writes the received data directly to the card */
    /* CAIRN_CHUNK_UNSUMMED: applies to data that is received, or sent from the card */
    bool is_unsummed;
};

struct parcel {
    struct job *job;
    struct op *op;               /* NULL: free */
    const struct target *target; /* one of the op's targets */
    struct parcel *next;         /* in the free list */
    /* the request of a put or fetch to the chunk's owner; for a push, only its cookie is used */
    struct chunk_request request;
    uint8_t kind; /* CAIRN_CHUNK_PUSH, _PUT, _FETCH */
    uint8_t plane, dtype, tile;
    bool answered;
    cairn_status status;
    uint32_t on_loan; /* sends and receives that the fabric has not completed */
    uint64_t layout;  /* the version of the layout by which the parcel was cut */
    uint32_t shard;   /* the owner of the chunk in that layout */
    uint32_t via; /* the shard whose endpoint the parcel was last sent to: the owner, or a relay */
    bool direct;  /* a relay could not answer this fetch */
    struct chunk_place place;
    uint64_t table_hash;
    struct parcel_data data;
    bool is_queued, is_ahead, is_landed; /* parcel.c */
    /* for a push: in its owner's queue; for a fetch: in its job's queue */
    TAILQ_ENTRY(parcel) queued;
    uint64_t checksum; /* the checksum of the data that a fetch receives, as the shard reports it */
    uint64_t came;     /* the checksum computed from the received data */
    struct cairn_version version;
    uint64_t round; /* the round of a put in a write; else 0 */
    /* a shard that does not know the chunk yet is asked again until this time; else 0 */
    uint64_t word_by_ms;
};

/* All parcels of a job, those in use and the free ones. */
struct parcel_table {
    struct parcel **all; /* owned: [count] of capacity */
    uint32_t count, capacity;
    struct parcel *first_free;
    /* received and being copied to a card: parcel.c */
    TAILQ_HEAD(, parcel) landed;
    uint32_t landed_count;
};

/* Creates a parcel of the op for chunk `chunk` of the shard in the command's layout. NULL: out of
 * memory. */
struct parcel *parcel_new(struct job *job, const struct command *command, uint32_t shard,
                          uint64_t chunk);
/* Takes back a parcel that was never sent, as if it had not been created. */
void parcel_undo(struct parcel *parcel);
/* Finds the parcel whose request has this number. NULL: the number is of an earlier use of the
 * parcel, or unknown. */
struct parcel *parcel_of_request(const struct job *job, uint64_t number);
/* Stops asking for the chunk of a put or fetch. */
void parcel_withdraw(struct parcel *parcel);
/* Sends the puts and fetches that may be sent now. */
void askers_pump(struct job *job);
/* Marks the parcel as answered; if it is answered more than once, the first status stays. */
void parcel_end(struct parcel *parcel, cairn_status status);
/* Sends the parcel's chunk over the connection of shard `via`, and fills in the fields of `header`
 * that depend on the parcel. */
cairn_status parcel_send(struct parcel *parcel, uint32_t via,
                         struct chunk_header *header) CAIRN_MUST_CHECK;
/* Gives the parcel memory of its own if the caller's memory cannot be used: the caller's memory has
 * strides, or belongs to a card (for a fetch), or a box precedes the payload. */
cairn_status parcel_open(struct parcel *parcel) CAIRN_MUST_CHECK;
/* Receives the payload of a fetch's answer, and ends the parcel, or asks again for a payload that was damaged
 * or lost. */
void parcel_receive(struct parcel *parcel, const struct chunk_header *header,
                    struct fabric_message *message);
/* Called when the parcel's bytes are here: ends the parcel, either now or when the card has the
 * bytes. */
void parcel_arrived(struct parcel *parcel);

/* parcel.c: how far a put, push or fetch has come. */

/* Finds the next chunk (*shard_out and *chunk_out) that has elements of the piece. False: the piece
 * is completely cut. */
bool command_chunk(struct command *command, uint32_t *shard_out, uint64_t *chunk_out);

/* ==== pushes ==== */

/* Pushes of the open round. Loop thread. */

struct shard_link;

struct pushing {
    struct pusher pusher;
    /* held: the last round's layout, for which the pusher was created; NULL: none */
    struct served_layout *served;
    /* owned: [micro_count][tensor_count]; 1: the tensor was pushed in that micro-batch */
    uint8_t **pushed;
    uint32_t micro_count; /* number of micro-batches begun in this round */
    /* the round to give up after a shard's refusal; 0: none, or already reported */
    uint64_t gives_up;
};

/* Commands of the round. */
bool pushes_run(struct command *command);
bool pushes_micro_end_run(struct command *command);
bool pushes_commit_run(struct command *command);

void pushes_release(struct job *job); /* closes the pusher; also called when the job is released */

/* Returns the connection on which the owner's last GRANT arrived. */
struct shard_link *pushes_granter(struct shard_link *owner);
void pushes_on_grant(struct shard_link *owner);
/* Processes ACK, NAK and MICRO_ACK: answers to pushes, puts and fetches. */
void pushes_on_answer(struct shard_link *owner, const struct chunk_header *header);
/* Called when the shard sent HELLO on this connection: its answers to pushes over the connection
 * may be lost. */
void pushes_on_hello(struct shard_link *link, uint64_t way);
/* Returns true if the open round's state machine still expects something that arrives, or may
 * arrive, on this connection. */
bool pushes_waits(const struct shard_link *link);
/* Called when the connection is lost, and with it the grants that arrived on it. */
void pushes_lost(struct shard_link *link);

/* ==== recut ==== */

/* Cuts puts and fetches again when another layout applies to them. Loop thread. */

/* Returns the layout by which a put or fetch of a plane at a version is cut: for published parameters
 * the layout that serves the version, for state the newest layout. */
struct served_layout *recut_layout(const struct job *job, uint8_t kind, uint8_t plane,
                                   struct cairn_version version);
/* Handles the answer of a shard that does not know the chunk. True: the parcel continues. Either
 * the parcel is cut again, or the shard is asked again, because the coordinator's message may not
 * have reached the shard yet. */
bool recut_refused(struct parcel *parcel, uint64_t status);
/* Called when the layouts of the job, or the versions from which they serve, have changed. */
void recut_all(struct job *job);

/* Called when the shard has left the job and no longer exists: no shard then has the data that was
 * requested from this shard. */
void recut_gone(struct shard_link *link);

/* ==== stage ==== */

/* Copies of a card's memory that pass through the host. If a shard cannot read the memory directly,
 * a push to this shard begins to copy each chunk a few chunks before that chunk is sent. A fetch
 * begins to copy a chunk when the chunk arrives, and waits for the copy a few chunks later. One
 * wait then serves several copies, and the card copies while the shards work. Loop thread. */

/* The number of an owner's chunks that may be copied before they are sent, and of a job's chunks
 * that may be copied after they arrived. */
#define CAIRN_STAGE_AHEAD 8

/* Queues a push that was just cut, and begins to copy as many queued pushes to the same owner as
 * may be copied ahead. A push of host memory may be passed, too. */
void stage_queue(struct parcel *parcel);

/* Called before the loop sleeps. If some operation has nothing left but copies to the card, waits
 * for these copies and ends their parcels. If every operation still has other work, returns at
 * once: the loop waits for that work first, while the card copies. */
void stage_end_landed(struct job *job);

/* ==== transfer ==== */

/* Puts and fetches. Loop thread. */

bool transfer_run(struct command *command);
/* The send function of all askers. */
cairn_status transfer_send(struct chunk_request *request) CAIRN_MUST_CHECK;
void transfer_on_data(struct shard_link *link, const struct chunk_header *header,
                      struct fabric_message *message);
/* Called when the connection is lost: requests that were sent over it and are unanswered will be
 * sent again. */
void transfer_lost(struct shard_link *link);
/* Ends the fetches that their callers have canceled, except for parts that are already answered. */
void transfer_cancel(struct job *job);

/* ==== fail ==== */

/* The end of a job. Loop thread. */

/* Fails the job for good, if it has not failed yet: every call reports the failure, and all waiting
 * callers are woken. */
void fail_calls(struct job *job, cairn_status status, const char *text);
/* Detaches the job, and ends everything in progress with `status`. */
void fail_parcels(struct job *job, cairn_status status);
/* Does the work of both functions above. */
void job_fail(struct job *job, cairn_status status, const char *text);

#endif
