/* The interface between fabric.c and its backends, which carry bytes (ucx*.c, mapped.c, remote*.c, and a
 * network that tests bring). Private to proto/fabric.
 *
 * fabric.c validates arguments, owns the objects, counts, and runs the owner's callbacks at the one place
 * where callbacks may run. A backend moves bytes and reports: fabric_op_done when a buffer is free again,
 * fabric_peer_lost when a peer is gone, fabric_offer when a message arrived. Everything runs on the owner's
 * thread. Each struct of a backend begins with the struct of this header. */
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
    cairn_status status; /* valid once is_done */
    bool is_send;
    bool is_device; /* the buffer is memory of a card */
    bool is_done;
    bool is_summed; /* the backend set *checksum_out */
    /* receives: where the caller wants the checksum; NULL: no checksum is wanted */
    uint64_t *checksum_out;
    const void *buffer; /* set with checksum_out */
    /* the backend's */
    void *held; /* released when the op is over; NULL: nothing */
    void *by;   /* the connection that the op needs; NULL: none, or the connection is closed */
    const struct fabric_peer *to; /* a send's peer; NULL: the peer has been closed */
    uint64_t due_ms;              /* when the op is ended if it is still flying; 0: no such time */
    size_t header_bytes;
    /* sends: UCX reads the header until the send is over */
    uint8_t header[CAIRN_FABRIC_HEADER_MAX];
};
TAILQ_HEAD(fabric_ops, fabric_op);

struct fabric_peer {
    LIST_ENTRY(fabric_peer) link;       /* fabric->peers */
    TAILQ_ENTRY(fabric_peer) attention; /* fabric->attention, if is_queued */
    struct fabric *fabric;
    fabric_down_fn *on_down;
    void *arg;
    cairn_status why; /* valid once is_down */
    bool is_down;     /* the backend lost the peer */
    bool is_told;     /* on_down ran */
    bool is_closed;   /* the owner closed the peer, which is freed at the next opportunity */
    bool is_cut;      /* backend->disconnect ran: the backend has forgotten the peer */
    bool is_queued;
};

struct fabric_message {
    LIST_ENTRY(fabric_message) link; /* fabric->held */
    struct fabric *fabric;
    size_t payload_bytes;
    bool is_gone; /* dropped by fabric_close, which will free the message */
};

/* Shared memory that we offer to peers. fabric.c has validated the memory. A backend that maps puts its own
 * struct around this one. */
struct fabric_region {
    struct fabric *fabric;
    /* borrowed, as is fd; an address in a card's memory is never dereferenced */
    const uint8_t *base;
    size_t bytes;
    int fd; /* memory of a card: valid in region_add only */
    bool is_device;
    /* UCX refused to register this memory of a card: the registration is never tried again */
    bool is_unregistered;
    uint8_t uuid[CAIRN_FABRIC_UUID_BYTES]; /* the UUID of the card, if is_device */
    size_t note_bytes;
    uint8_t note[CAIRN_FABRIC_NOTE_MAX];
};

struct fabric_backend {
    const char *kind;
    size_t fabric_bytes, peer_bytes, message_bytes; /* of the backend's own structs */

    /* Opens the network, sets fabric->event_fd and describe, and sets the address by fabric_set_address. A
     * call that fails undoes everything. */
    cairn_status (*start)(struct fabric *fabric, const struct fabric_options *options,
                          struct sentence *why);
    /* Called after all peers were cut and all messages were dropped. Waits a bounded time for flying ops;
     * after the call, the backend no longer touches the owner's memory. fabric.c ends the ops that are
     * still flying. */
    void (*stop)(struct fabric *fabric);

    cairn_status (*connect)(struct fabric_peer *peer, const void *address, size_t bytes);
    /* Counts the node of this address, in its envelope, as expected once more, or once less. Missing: the
     * backend lets in everybody who knows its address. */
    cairn_status (*expect)(struct fabric *fabric, const void *address, size_t bytes,
                           bool is_expected);
    /* Called outside of the backend's own callbacks. Flying sends will end; the backend forgets the
     * peer. */
    void (*disconnect)(struct fabric_peer *peer);

    /* Takes op->header and the payload. If the call fails, the op still belongs to fabric.c. */
    cairn_status (*send)(struct fabric_peer *peer, struct fabric_op *op, const void *payload);
    /* Consumes the message (fabric.c frees the message right after the call, but see fabric_offer).
     * Failures are reported by fabric_op_done. */
    void (*receive)(struct fabric_message *message, struct fabric_op *op, void *buffer);
    void (*drop)(struct fabric_message *message);

    unsigned (*progress)(struct fabric *fabric);
    cairn_status (*arm)(struct fabric *fabric);

    /* The following functions may be missing (NULL): then there are no views, and regions are kept but not
     * used. */
    const void *(*view)(const struct fabric_message *message);
    const char *(*message_path)(const struct fabric_message *message);
    /* True if the message can be received into memory of a card (op->is_device). Missing: no message
     * can. */
    bool (*lands)(const struct fabric_message *message);
    /* True if a card's memory is sent to this peer directly (fabric->takes_device). Missing: it is sent
     * directly to every peer. */
    bool (*takes_device)(const struct fabric_peer *peer);
    const char *(*payload_path)(const struct fabric_peer *peer, const void *payload, size_t bytes);
    /* of the backend's own struct; 0: the backend uses struct fabric_region itself */
    size_t region_bytes;
    cairn_status (*region_add)(struct fabric_region *region);
    cairn_status (*region_show)(struct fabric_region *region, struct fabric_peer *peer);
    void (*region_drop)(struct fabric_region *region); /* fabric.c frees the region right after */
    /* Missing: the backend imports no memory of cards, and its region_add receives no such memory. */
    bool (*imports)(const struct fabric_peer *peer, const uint8_t *uuid);

    /* Missing: each send that lacks memory reports so itself. */
    bool (*is_starved)(const struct fabric_peer *peer);

    void (*hold_off)(struct fabric *fabric, bool is_off);
    void (*set_patience)(struct fabric *fabric, uint32_t ms);

    /* For a fabric that consists of other fabrics ("auto"). Peers and regions belong to those inner
     * fabrics, and every call with a peer, region or message is passed to the inner fabric that owns the
     * object. */
    cairn_status (*connect_inside)(struct fabric *fabric, const void *address, size_t bytes,
                                   fabric_down_fn *on_down, void *arg,
                                   struct fabric_peer **peer_out);
    void (*stats)(const struct fabric *fabric, struct fabric_stats *stats_out);
};

/* The first member of the struct of a network that the caller brings (tests do). */
struct fabric_hub {
    const struct fabric_backend *backend;
};

struct fabric {
    const struct fabric_backend *backend;
    struct fabric_options options; /* with defaults filled in; most strings are NULL after start */
    int event_fd;
    uint8_t address[CAIRN_FABRIC_ADDRESS_MAX]; /* our address, in its envelope */
    size_t address_bytes;
    /* the fabric may read and be read one-sidedly, and its address says so; only ucx fabrics, and fabrics
     * that contain a ucx fabric */
    bool is_one_sided;
    bool takes_device;          /* the fabric sends memory of cards directly; only ucx, as above */
    struct sentence device_why; /* why takes_device is true, or why not */
    char describe[CAIRN_FABRIC_DESCRIBE_MAX];
    struct fabric_stats stats;

    /* owned */
    LIST_HEAD(, fabric_peer) peers;
    LIST_HEAD(, fabric_message) held;
    struct fabric_message *spare_message; /* zeroed; used when there is no memory; NULL: in use */
    struct fabric_region **regions;       /* [region_capacity], sorted by address */
    uint32_t region_count, region_capacity;
    uint32_t device_region_count; /* how many regions are memory of cards */
    struct fabric_ops flying;     /* ops that the backend carries out */
    struct fabric_ops done;       /* ops that are over, but whose callbacks have not run yet */
    struct fabric_ops spare;

    TAILQ_HEAD(fabric_attention, fabric_peer) attention; /* lost or closed peers to process */
    bool is_inside;                                      /* progress or close is running */
    bool is_closing;
};

/* Wraps the backend's address into the envelope. CAIRN_ERR_UNSUPPORTED if the address is too long. */
CAIRN_MUST_CHECK cairn_status fabric_set_address(struct fabric *fabric, const void *raw,
                                                 size_t bytes);

/* Returns the backend's address inside an envelope, or inside an "auto" envelope that contains such an
 * envelope. NULL if the address is invalid, or of another kind of fabric. */
const void *fabric_open_address(const struct fabric *fabric, const void *address, size_t bytes,
                                size_t *raw_bytes_out);
/* Returns one part of an address, with its envelope: number `index` of the parts of kind `of_kind`. An
 * "auto" address consists of the envelopes of several fabrics, one after the other; any other address is
 * one part, itself. NULL: the address has fewer such parts. */
const void *fabric_find_part(const void *address, size_t bytes, const char *of_kind, int index,
                             size_t *part_bytes_out);
/* Like fabric_open_address, for any kind of fabric. No fabric need be open. */
const void *fabric_open_part(const void *address, size_t bytes, const char *of_kind,
                             size_t *raw_bytes_out);

/* Appends the place to a backend's address, raw [room], if the place fits; returns the address's new length
 * in bytes. */
size_t fabric_add_place(const struct fabric_place *place, uint8_t *raw, size_t bytes, size_t room);
/* Returns the offset at which the place begins, or `bytes` if there is no place. */
size_t fabric_find_place(const uint8_t *raw, size_t bytes, struct fabric_place *out);

/* XXH3-64, seeded with the count. The hash protects against accidents, not against liars. */
uint64_t fabric_hash(const void *bytes, size_t count);

/* True if a message that arrived may be shown to the owner. Otherwise the message is counted as refused. */
bool fabric_judge(struct fabric *fabric, size_t header_bytes, size_t payload_bytes);
/* Returns a zeroed message object in fabric->held; NULL if there is no memory (counted as refused). */
struct fabric_message *fabric_message_new(struct fabric *fabric, size_t payload_bytes);
/* Shows the message to the owner. When this returns, the message may already be consumed and freed. */
void fabric_offer(struct fabric *fabric, const void *header, size_t header_bytes,
                  size_t payload_bytes, struct fabric_message *message);

void fabric_op_done(struct fabric_op *op, cairn_status status);
void fabric_peer_lost(struct fabric_peer *peer, cairn_status why);

/* Validates a descriptor by which another process shares memory; we are to read the first `bytes` bytes of
 * the memory. The descriptor must be a memfd of at least that size, which can neither shrink nor grow; else
 * CAIRN_ERR_INVALID. */
CAIRN_MUST_CHECK cairn_status fabric_judge_memory(int fd, uint64_t bytes);
/* Returns the region that contains all of [memory, memory + bytes), or NULL. */
struct fabric_region *fabric_region_find(const struct fabric *fabric, const void *memory,
                                         size_t bytes);

/* Runs the owner's callbacks that are due, and returns how many it ran. Called by progress, and by the mem
 * hub after each event. */
unsigned fabric_deliver(struct fabric *fabric);

extern const struct fabric_backend fabric_ucx;
extern const struct fabric_backend fabric_auto;
extern const struct fabric_backend fabric_mapped;
extern const struct fabric_backend fabric_stream;
extern const struct fabric_backend fabric_sealed;

#define CAIRN_FABRIC_SLOTS_MAX 4096 /* the most regions that a peer shows at a time */

/* ==== flight ==== */

/* Flights, by serial: payloads that a peer was told of and has not released yet. A serial is an index and a
 * generation. So a lookup takes one step, and a serial that a peer invented or repeats finds no flight.
 * Private to proto/fabric.
 *
 * A pointer to a flight is valid until the next fabric_flight_begin. A table that is all zero is empty. To
 * end a table, call free(flights->all). */

struct ucx_share;

struct fabric_pages { /* pages in the staging area of "mapped" */
    uint32_t arena, first, count;
};

struct fabric_flight {
    /* the op of a payload sent by reference; NULL: the payload is a copy of ours, or the peer was closed */
    struct fabric_op *op;
    /* mapped: the payload's staging pages; count 0: the payload is sent by reference */
    struct fabric_pages pages;
    bool is_written; /* mapped: the frame was written to the socket */
    /* ucx: the payload, which is sent in a message if the peer cannot read the memory */
    const void *payload;
    struct ucx_share *share; /* ucx: holds the payload; the flight owns a reference */
    uint32_t generation;     /* part of the serial, so that an old serial is not found */
    uint32_t next_free;      /* the next free flight, while this flight is free */
    bool is_used;
};

struct fabric_flights {
    struct fabric_flight *all; /* [capacity], owned */
    uint32_t capacity, first_free;
};

/* Makes room for `slot` in an array with one element per slot, of at most CAIRN_FABRIC_SLOTS_MAX; new
 * elements are zero. `slots` is the address of the pointer to the array. Returns false if there is no
 * memory. */
bool fabric_slots_reserve(void *slots, uint32_t *count, uint16_t slot, size_t elem_bytes);

CAIRN_MUST_CHECK cairn_status fabric_flight_begin(struct fabric_flights *flights,
                                                  uint64_t *serial_out);
/* NULL: no current flight has this serial. */
struct fabric_flight *fabric_flight_find(struct fabric_flights *flights, uint64_t serial);
void fabric_flight_end(struct fabric_flights *flights, struct fabric_flight *flight);

/* ==== far copy ==== */

/* memcpy for data that will not be read again before the caches have evicted the data: the writes go around
 * the caches, which saves reading every line before it is written, and leaves the caches to other data.
 * far_copy is a third faster than memcpy where two cores copy at a time. `to` and `from` must not overlap.
 * Any thread. */

void far_copy(void *to, const void *from, size_t bytes);

/* ==== stagger ==== */

/* Chooses the start addresses of arrays that one loop walks side by side.
 *
 * A core's nearest cache finds a line by the bits of the line's address below 4 KiB, and AMD's (Zen) then
 * predicts the cache way from a hash of the higher bits. So streams whose addresses agree in both, such as
 * arrays 256 MiB apart, evict each other's lines at every step, which costs up to four fifths of the speed.
 * If the bits below 4 KiB differ, this alone keeps streams apart, on any processor. (On other processors,
 * loads then no longer wait for unrelated stores.) So the n-th stream of a loop begins n times
 * CAIRN_STAGGER_LINES lines after the start of a page: the distances between five streams, the most in any
 * loop of ours, differ from every multiple of 4 KiB by at least 12 lines.
 *
 * This holds for streams that advance at the same pace. A bf16 stream advances at half the pace of fp32
 * streams, and so meets each of them once in 8 KiB.
 *
 * Pure; any thread. */

#define CAIRN_LINE_BYTES    ((size_t)64)
#define CAIRN_STAGGER_PAGE  ((size_t)4096)
#define CAIRN_STAGGER_LINES ((size_t)13)
#define CAIRN_STAGGER_BYTES (CAIRN_STAGGER_LINES * CAIRN_LINE_BYTES)

/* The streams of an update. The published stream begins at the start of a page, since other processes map
 * this stream, too. A page has no room for a sixth stream as far from the others as they are from each
 * other: the average, which few jobs have, lies in the widest gap, six lines from the sums and from the
 * published stream. */
enum update_stream {
    CAIRN_STREAM_WIRE,
    CAIRN_STREAM_PARAM,
    CAIRN_STREAM_EXP_AVG,
    CAIRN_STREAM_EXP_AVG_SQ,
    CAIRN_STREAM_SUM,
    CAIRN_STREAMS,
    CAIRN_STREAM_EMA = 34 /* 34 x CAIRN_STAGGER_LINES is 58 lines, modulo those of a page */
};

/* How many bytes behind the start of a page the n-th stream begins. */
static inline size_t stagger_begin(size_t stream)
{
    return stream * CAIRN_STAGGER_BYTES % CAIRN_STAGGER_PAGE;
}

/* Cuts an array of `bytes` bytes into `streams` streams. Returns the bytes of each stream, in complete
 * lines; the rest of the array follows the last stream. 0: the array is too short to be cut. */
static inline size_t stagger_cut(size_t bytes, size_t streams)
{
    const size_t page_lines = CAIRN_STAGGER_PAGE / CAIRN_LINE_BYTES;
    const size_t lines = bytes / streams / CAIRN_LINE_BYTES;
    // a stream's lines, modulo the lines of a page
    const size_t wanted = page_lines - CAIRN_STAGGER_LINES;
    return lines < wanted ? 0 : (lines - (lines - wanted) % page_lines) * CAIRN_LINE_BYTES;
}

#endif
