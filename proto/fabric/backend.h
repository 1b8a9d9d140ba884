/* Between fabric.c and the ways of carrying bytes (ucx*.c, mapped.c, and a network that tests bring). Private
 * to proto/fabric.
 *
 * fabric.c judges arguments, owns the objects, counts, and runs the owner's callbacks at the one
 * place where they may run. A backend moves bytes and reports: fabric_op_done when a buffer is free
 * again, fabric_peer_lost when a peer is gone, fabric_offer when a message came.
 * All on the owner's thread. Backends put the common struct first in their own. */
#ifndef CAIRN_FABRIC_BACKEND_H
#define CAIRN_FABRIC_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/fabric/fabric.h"

/* A send or a receive in flight. */
struct fabric_op {
    TAILQ_ENTRY(fabric_op) link; /* fabric->flying, then fabric->done, then fabric->spare */
    struct fabric *fabric;
    fabric_done_fn *on_done; /* may be NULL */
    void *arg;
    size_t payload_bytes;
    cairn_status status; /* once done */
    bool is_send;
    bool is_device; /* the buffer is memory of a card */
    bool is_done;
    bool is_summed;         /* the backend set *checksum_out */
    uint64_t *checksum_out; /* receives: whoever waits for it wants it; NULL: nobody does */
    const void *buffer;     /* with it */
    /* the backend's */
    void *held;                   /* let go when it is over; NULL: nothing */
    void *by;                     /* the connection that it needs; NULL: none, or it is closed */
    const struct fabric_peer *to; /* of a send; NULL: closed since */
    uint64_t due_ms;              /* who waits for it has gone: then it is ended; 0: never */
    size_t header_bytes;
    uint8_t header[CAIRN_FABRIC_HEADER_MAX]; /* sends: UCX reads it until the send is over */
};
TAILQ_HEAD(fabric_ops, fabric_op);

struct fabric_peer {
    LIST_ENTRY(fabric_peer) link;       /* fabric->peers */
    TAILQ_ENTRY(fabric_peer) attention; /* fabric->attention, if is_queued */
    struct fabric *fabric;
    fabric_down_fn *on_down;
    void *arg;
    cairn_status why; /* once is_down */
    bool is_down;     /* the backend lost it */
    bool is_told;     /* on_down ran */
    bool is_closed;   /* the owner gave it up: freed at the next occasion */
    bool is_cut;      /* backend->disconnect ran: the backend has forgotten it */
    bool is_queued;
};

struct fabric_message {
    LIST_ENTRY(fabric_message) link; /* fabric->held */
    struct fabric *fabric;
    size_t payload_bytes;
    bool is_gone; /* dropped by fabric_close; freed at its end */
};

/* Shared memory that we told of. fabric.c judged it; a backend that maps puts its own struct around it. */
struct fabric_region {
    struct fabric *fabric;
    const uint8_t *base; /* borrowed, with fd; of a card: not to be followed */
    size_t bytes;
    int fd; /* of a card: valid in region_add only */
    bool is_device;
    bool is_unregistered;                  /* of a card: UCX does not register it, so it stays */
    uint8_t uuid[CAIRN_FABRIC_UUID_BYTES]; /* of the card */
    size_t note_bytes;
    uint8_t note[CAIRN_FABRIC_NOTE_MAX];
};

struct fabric_backend {
    const char *kind;
    size_t fabric_bytes, peer_bytes, message_bytes; /* of the backend's own structs */

    /* Opens the network, sets fabric->event_fd, describe and (fabric_set_address) the address. On
     * failure nothing is left. */
    cairn_status (*start)(struct fabric *fabric, const struct fabric_options *options,
                          struct sentence *why);
    /* Peers are cut and messages dropped already. Waits a bounded time for flying ops; after it no
     * memory of the owner is touched any more. Ops that are still flying are ended by fabric.c. */
    void (*stop)(struct fabric *fabric);

    cairn_status (*connect)(struct fabric_peer *peer, const void *address, size_t bytes);
    /* Called outside of the backend's own callbacks. Flying sends will end; peer is forgotten. */
    void (*disconnect)(struct fabric_peer *peer);

    /* Takes op->header and the payload. Failure: op is not the backend's. */
    cairn_status (*send)(struct fabric_peer *peer, struct fabric_op *op, const void *payload);
    /* Uses the message up (fabric.c frees it right after, but see fabric_offer). Failures come by
     * fabric_op_done. */
    void (*receive)(struct fabric_message *message, struct fabric_op *op, void *buffer);
    void (*drop)(struct fabric_message *message);

    unsigned (*progress)(struct fabric *fabric);
    cairn_status (*arm)(struct fabric *fabric);

    /* The following may be missing (NULL): then there are no views, and regions are only kept. */
    const void *(*view)(const struct fabric_message *message);
    const char *(*message_path)(const struct fabric_message *message);
    /* Missing: never. It can be received into memory of a card: op->is_device */
    bool (*lands)(const struct fabric_message *message);
    /* Missing: always. Memory of a card goes to this peer from where it lies: fabric->takes_device */
    bool (*takes_device)(const struct fabric_peer *peer);
    const char *(*payload_path)(const struct fabric_peer *peer, const void *payload, size_t bytes);
    size_t region_bytes; /* of the backend's own struct; 0: the common one */
    cairn_status (*region_add)(struct fabric_region *region);
    cairn_status (*region_show)(struct fabric_region *region, struct fabric_peer *peer);
    void (*region_drop)(struct fabric_region *region); /* fabric.c frees it right after */
    /* Missing: the backend imports memory of no card, and its region_add gets none. */
    bool (*imports)(const struct fabric_peer *peer, const uint8_t *uuid);

    void (*hold_off)(struct fabric *fabric, bool is_off);
    void (*set_patience)(struct fabric *fabric, uint32_t ms);

    /* For a fabric that is made of others ("auto"): peers and regions belong to those, and every
     * call with them, or with messages, goes there. */
    cairn_status (*connect_inside)(struct fabric *fabric, const void *address, size_t bytes,
                                   fabric_down_fn *on_down, void *arg,
                                   struct fabric_peer **peer_out);
    void (*stats)(const struct fabric *fabric, struct fabric_stats *stats_out);
};

/* A network that the caller brings (tests do), in front of its own struct. */
struct fabric_hub {
    const struct fabric_backend *backend;
};

struct fabric {
    const struct fabric_backend *backend;
    struct fabric_options options; /* resolved; the strings are not kept */
    int event_fd;
    uint8_t address[CAIRN_FABRIC_ADDRESS_MAX]; /* in its envelope */
    size_t address_bytes;
    /* ucx, and what has one: it may read and be read one-sidedly; in the address */
    bool is_one_sided;
    bool takes_device;          /* ucx, and what has one: memory of cards goes from where it lies */
    struct sentence device_why; /* why, or why not */
    char describe[CAIRN_FABRIC_DESCRIBE_MAX];
    struct fabric_stats stats;

    /* owned */
    LIST_HEAD(, fabric_peer) peers;
    LIST_HEAD(, fabric_message) held;
    struct fabric_message *spare_message; /* zeroed, for when there is no memory; NULL: in use */
    struct fabric_region **regions;       /* [region_capacity], by address */
    uint32_t region_count, region_capacity;
    uint32_t device_region_count; /* of these, of cards */
    struct fabric_ops flying;     /* with the backend */
    struct fabric_ops done;       /* their callbacks have not run yet */
    struct fabric_ops spare;

    TAILQ_HEAD(fabric_attention, fabric_peer) attention; /* lost or closed peers to see to */
    bool is_inside;                                      /* progress or close is running */
    bool is_closing;
};

/* Wraps the backend's address into the envelope. CAIRN_ERR_UNSUPPORTED if it is too long. */
CAIRN_MUST_CHECK cairn_status fabric_set_address(struct fabric *fabric, const void *raw,
                                                 size_t bytes);

/* The backend's address inside an envelope, or inside one of "auto" that has it among others; NULL if it is
 * not whole or of another kind of fabric. */
const void *fabric_open_address(const struct fabric *fabric, const void *address, size_t bytes,
                                size_t *raw_bytes_out);
/* An "auto" address is the envelopes of several fabrics, one after the other: that of the kind, with its
 * envelope. Any other address is its own part 0. NULL: there are not so many. */
const void *fabric_find_part(const void *address, size_t bytes, const char *of_kind, int index,
                             size_t *part_bytes_out);
/* The same for a kind of fabric that need not be open. */
const void *fabric_open_part(const void *address, size_t bytes, const char *of_kind,
                             size_t *raw_bytes_out);

/* Puts the place behind a backend's address, raw [room], if it fits; returns the bytes there are then. */
size_t fabric_add_place(const struct fabric_place *place, uint8_t *raw, size_t bytes, size_t room);
/* Where the place begins; `bytes`: there is none. */
size_t fabric_find_place(const uint8_t *raw, size_t bytes, struct fabric_place *out);

/* XXH3-64, seeded with the count: against accidents, not against liars. */
uint64_t fabric_hash(const void *bytes, size_t count);

/* A message came: may it be shown to the owner? Counts a refusal. */
bool fabric_judge(struct fabric *fabric, size_t header_bytes, size_t payload_bytes);
/* A zeroed message object in fabric->held; NULL if there is no memory (counted as refused). */
struct fabric_message *fabric_message_new(struct fabric *fabric, size_t payload_bytes);
/* Shows it to the owner. The message may be used up and freed when this returns. */
void fabric_offer(struct fabric *fabric, const void *header, size_t header_bytes,
                  size_t payload_bytes, struct fabric_message *message);

void fabric_op_done(struct fabric_op *op, cairn_status status);
void fabric_peer_lost(struct fabric_peer *peer, cairn_status why);

/* Memory that another process shares by a descriptor, to be read as `bytes` from its start: a memfd of at
 * least that size, which can neither shrink nor grow. CAIRN_ERR_INVALID: it is not. */
CAIRN_MUST_CHECK cairn_status fabric_judge_memory(int fd, uint64_t bytes);
/* The region that all of [memory, memory + bytes) lies in, or NULL. */
struct fabric_region *fabric_region_find(const struct fabric *fabric, const void *memory,
                                         size_t bytes);

/* Runs what is due of the owner's callbacks; returns how many. Called by progress, and by the mem
 * hub after each event. */
unsigned fabric_deliver(struct fabric *fabric);

extern const struct fabric_backend fabric_ucx;
extern const struct fabric_backend fabric_auto;
extern const struct fabric_backend fabric_mapped;

#define CAIRN_FABRIC_SLOTS_MAX 4096 /* regions that a peer shows or tells of at a time */

/* ==== flight ==== */

/* Flights, by serial: payloads that a peer has been told of and has not released yet. A serial is
 * an index and a generation: finding it takes one look, and a serial that a peer made up, or says
 * twice, is not found. Private to proto/fabric.
 *
 * A pointer to a flight holds until the next begin. All zero: an empty table; free(flights->all) at its
 * end. */

struct ucx_share;

struct fabric_pages { /* of the staging area of "mapped" */
    uint32_t arena, first, count;
};

struct fabric_flight {
    struct fabric_op *op;      /* by reference; NULL: a copy of ours, or its peer was closed */
    struct fabric_pages pages; /* mapped; count 0: by reference */
    bool is_written;           /* mapped: the frame is told */
    const void *payload;       /* ucx: to be sent whole, if the peer cannot read it */
    struct ucx_share *share;   /* ucx: that it lies in, with a reference */
    uint32_t generation;       /* in the serial, so that an old one means nothing */
    uint32_t next_free;        /* while it is free */
    bool is_used;
};

struct fabric_flights {
    struct fabric_flight *all; /* [capacity], owned */
    uint32_t capacity, first_free;
};

/* Room for `slot` in an array that has one element a slot, of at most CAIRN_FABRIC_SLOTS_MAX; new ones are
 * zero. `slots`: where the pointer to it is kept. False: no memory. */
bool fabric_slots_reserve(void *slots, uint32_t *count, uint16_t slot, size_t elem_bytes);

CAIRN_MUST_CHECK cairn_status fabric_flight_begin(struct fabric_flights *flights,
                                                  uint64_t *serial_out);
/* NULL: no flight of now has this serial. */
struct fabric_flight *fabric_flight_find(struct fabric_flights *flights, uint64_t serial);
void fabric_flight_end(struct fabric_flights *flights, struct fabric_flight *flight);

/* ==== far copy ==== */

/* memcpy for what will not be read again before the caches have forgotten it: written around them, which
 * spares reading every line that is written, and leaves them to others. A third faster where two cores
 * copy at a time. to and from do not overlap. Any thread. */

void far_copy(void *to, const void *from, size_t bytes);

/* ==== stagger ==== */

/* Chooses where arrays begin that one loop goes through side by side.
 *
 * A core's nearest cache finds a line by the bits of its address below 4 KiB, and AMD's (Zen) then guesses
 * the way by a hash of those above: streams that agree in both, as arrays do that lie 256 MiB apart, throw
 * each other's lines out at every step, down to a fifth of the speed. Bits below 4 KiB alone are enough to
 * keep streams apart, on any processor (on others it spares loads that wait for a store they have nothing
 * to do with). So the n-th stream of a loop begins n times CAIRN_STAGGER_LINES lines later than pages do:
 * five of them, the most that a loop of ours has, are 12 lines or more from any multiple of 4 KiB apart.
 *
 * This holds for streams that advance at the same pace. A bf16 stream beside fp32 ones drifts past
 * them, once in 8 KiB.
 *
 * Pure; any thread. */

#define CAIRN_LINE_BYTES    ((size_t)64)
#define CAIRN_STAGGER_PAGE  ((size_t)4096)
#define CAIRN_STAGGER_LINES ((size_t)13)
#define CAIRN_STAGGER_BYTES (CAIRN_STAGGER_LINES * CAIRN_LINE_BYTES)

/* The streams of an update. The published one begins with a page, since other processes map it,
 * too. */
enum update_stream {
    CAIRN_STREAM_WIRE,
    CAIRN_STREAM_PARAM,
    CAIRN_STREAM_EXP_AVG,
    CAIRN_STREAM_EXP_AVG_SQ,
    CAIRN_STREAM_SUM,
    CAIRN_STREAMS
};

/* How far behind the beginning of a page the n-th stream begins. */
static inline size_t stagger_begin(size_t stream)
{
    return stream * CAIRN_STAGGER_BYTES % CAIRN_STAGGER_PAGE;
}

/* An array of `bytes` is cut in so many streams of this many bytes each, of whole lines; there is a rest
 * behind the last one. 0: it is too short to be cut. */
static inline size_t stagger_cut(size_t bytes, size_t streams)
{
    const size_t page_lines = CAIRN_STAGGER_PAGE / CAIRN_LINE_BYTES;
    const size_t lines = bytes / streams / CAIRN_LINE_BYTES;
    const size_t wanted = page_lines - CAIRN_STAGGER_LINES; // the next one is so much before a page
    return lines < wanted ? 0 : (lines - (lines - wanted) % page_lines) * CAIRN_LINE_BYTES;
}

#endif
