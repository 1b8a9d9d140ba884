/* The inside of the mapped fabric, shared by mapped*.c. Private to proto/fabric.
 *
 *   mapped.c       a node (its socket, its epoll descriptor, and the links that one call of progress
 *                  serves), how our connections begin and end, the memory that we and our peers share, and
 *                  this host's identity
 *   mapped_flow.c  frames on connections that we made or accepted
 *
 * mapped_link_end ends an object that has a socket. The object is freed only at the end of a call of
 * progress, since an event that epoll has already reported may still refer to it. */
#ifndef CAIRN_FABRIC_MAPPED_H
#define CAIRN_FABRIC_MAPPED_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/machine.h"
#include "proto/fabric/backend.h"
#include "proto/fabric/fabric.h"

/* ==== mapped frame ==== */

/* The frames of the mapped fabric. Each message of a Unix SOCK_SEQPACKET connection is one frame; numbers
 * have this host's byte order, since both ends are on this host. Private to proto/fabric.
 *
 *   connector (sends messages)                acceptor (receives them)
 *                                        <-   CHALLENGE  { nonce }
 *   HELLO { nonce, proof }               ->
 *                                        <-   WELCOME    { proof }
 *   REGION { slot, bytes, note } + fd    ->
 *   MESSAGE { serial, where } header ... ->
 *   BUNDLE { MESSAGE, MESSAGE, ... }     ->   the messages of one turn, in order
 *   REGION_GONE { slot }                 ->
 *                                        <-   RELEASE    { serials }
 *                                        <-   NO_IMPORTS, if the acceptor lacks room for memory of a card
 *
 * The proofs are HMAC-SHA-512-256 over both nonces, keyed with the 32 random bytes of the acceptor's
 * address: each proof shows that its sender knows the address, which only members have. So no address is
 * sent to a stranger who took the socket's name. Only REGION carries a descriptor, and carries exactly one:
 * a memfd, or for memory of a card the handle that the card's driver exported. */

enum {
    FRAME_SLOTS = CAIRN_FABRIC_SLOTS_MAX, /* slots are reused */
    FRAME_INLINE_MAX = 8192,              /* payloads up to this size travel in their frame */
    FRAME_REFER_MIN = 1024,    /* payloads from this size on are sent by reference if possible */
    FRAME_RELEASES_MAX = 128,  /* serials in one frame */
    FRAME_BUNDLE_MAX = 256,    /* messages in one frame */
    FRAME_KEY_BYTES = 32,      /* as in crypto_auth */
    FRAME_NONCE_BYTES = 32,    /**/
    FRAME_PROOF_BYTES = 32,    /**/
    FRAME_INLINE = UINT16_MAX, /* a message's slot: the payload is in the frame, or there is none */
};
static_assert(FRAME_SLOTS <= FRAME_INLINE, "a slot is never FRAME_INLINE");

enum frame_kind {
    FRAME_MALFORMED = 0,
    FRAME_CHALLENGE = 1,
    FRAME_HELLO = 2,
    FRAME_WELCOME = 3,
    FRAME_REGION = 4,
    FRAME_REGION_GONE = 5,
    FRAME_MESSAGE = 6,
    FRAME_RELEASE = 7,
    FRAME_NO_IMPORTS = 8, /* only a head; memory of cards is not imported any more */
    FRAME_BUNDLE = 9,     /* a head, and then complete MESSAGE frames, each padded to 8 bytes */
};

struct frame_head {
    uint32_t magic;
    uint32_t kind;
};
struct
    frame_greeting { /* CHALLENGE (no proof), HELLO, WELCOME (no nonce); absent fields are zero */
    struct frame_head head;
    uint8_t nonce[FRAME_NONCE_BYTES];
    uint8_t proof[FRAME_PROOF_BYTES];
};
enum frame_memory {
    FRAME_MEMORY_HOST = 0,
    /* the sender's own copies of payloads, not shown to the receiver's owner */
    FRAME_MEMORY_STAGING = 1,
    FRAME_MEMORY_DEVICE = 2, /* memory of the card with this UUID */
};
struct frame_region {
    struct frame_head head;
    uint64_t bytes;
    uint16_t slot;
    uint16_t memory; /* enum frame_memory */
    uint32_t note_bytes;
    uint8_t note[CAIRN_FABRIC_NOTE_MAX];
    uint8_t uuid[CAIRN_FABRIC_UUID_BYTES]; /* the card's, for FRAME_MEMORY_DEVICE; else zero */
};
struct frame_gone {
    struct frame_head head;
    uint16_t slot;
    uint16_t zero[3];
};
struct frame_message { /* header_bytes of header follow, then an inline payload */
    struct frame_head head;
    uint64_t serial; /* for RELEASE; 0 if inline, since an inline payload is not released */
    uint64_t offset; /* of the payload in the region */
    uint32_t payload_bytes;
    uint16_t header_bytes;
    uint16_t slot;
};
struct frame_release {
    struct frame_head head;
    uint64_t serials[FRAME_RELEASES_MAX]; /* the frame's length says how many, at least one */
};

static_assert(sizeof(struct frame_head) == 8, "wire format");
static_assert(sizeof(struct frame_greeting) == 72, "wire format");
static_assert(offsetof(struct frame_greeting, proof) == 40, "wire format");
static_assert(sizeof(struct frame_region) == 104, "wire format");
static_assert(offsetof(struct frame_region, slot) == 16, "wire format");
static_assert(offsetof(struct frame_region, note) == 24, "wire format");
static_assert(offsetof(struct frame_region, uuid) == 88, "wire format");
static_assert(sizeof(struct frame_gone) == 16, "wire format");
static_assert(sizeof(struct frame_message) == 32, "wire format");
static_assert(offsetof(struct frame_message, offset) == 16, "wire format");
static_assert(offsetof(struct frame_message, payload_bytes) == 24, "wire format");
static_assert(offsetof(struct frame_message, slot) == 30, "wire format");
static_assert(offsetof(struct frame_release, serials) == 8, "wire format");

enum { FRAME_BYTES_MAX = 64 << 10 }; /* bytes of a bundle, which is the longest frame */

union frame {
    struct frame_head head;
    struct frame_greeting greeting;
    struct frame_region region;
    struct frame_gone gone;
    struct frame_message message;
    struct frame_release release;
    uint8_t bytes[FRAME_BYTES_MAX];
};

struct frame_head frame_head(enum frame_kind kind);

static inline size_t frame_filled(size_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* The length of a MESSAGE, computed from its own fields. */
static inline size_t frame_message_bytes(const struct frame_message *message)
{
    return sizeof *message + message->header_bytes +
           (message->slot == FRAME_INLINE ? message->payload_bytes : 0);
}

static inline size_t frame_release_count(size_t bytes)
{
    return (bytes - sizeof(struct frame_head)) / sizeof(uint64_t);
}

/* Call frame_begin before the first call of the functions below; repeated calls are harmless. Returns false
 * if there is no randomness. */
bool frame_begin(void);
void frame_random(void *bytes, size_t count);
/* `by_acceptor`: makes the proof of WELCOME, which nobody can derive from the proof of HELLO. */
void frame_prove(const uint8_t key[FRAME_KEY_BYTES], bool by_acceptor,
                 const uint8_t acceptor_nonce[FRAME_NONCE_BYTES],
                 const uint8_t connector_nonce[FRAME_NONCE_BYTES],
                 uint8_t proof_out[FRAME_PROOF_BYTES]);
bool frame_proves(const uint8_t key[FRAME_KEY_BYTES], bool by_acceptor,
                  const uint8_t acceptor_nonce[FRAME_NONCE_BYTES],
                  const uint8_t connector_nonce[FRAME_NONCE_BYTES],
                  const uint8_t proof[FRAME_PROOF_BYTES]);

enum frame_fate { FRAME_WRITTEN, FRAME_LATER, FRAME_NOBODY }; /* LATER: the socket is full */
struct iovec;
enum frame_fate frame_write_one(int socket, const void *frame, size_t bytes, int fd);

/* ==== mapped ==== */

enum {
    MAPPED_CONNECTIONS_MAX = 8192, /* accepted connections */
    /* the most connections that known users made and that have not yet proved that they know our address;
     * unknown users may have as many besides */
    MAPPED_STRANGERS_MAX = 64,
    MAPPED_USERS_MAX = 16,     /* users known by a proof; a new user replaces the oldest */
    MAPPED_STRANGER_MS = 5000, /* the time for the proof */
    /* releases that a peer may leave untaken before we stop reading its messages */
    MAPPED_RELEASES_MAX = 1024,
    MAPPED_CONTROL_MAX = 8192, /* REGION and REGION_GONE frames that a peer may leave untaken */
    MAPPED_UNWILLING_MAX = 64, /* the most peers that are recorded as importing no more */
    /* arenas of the staging area, which have the first slots: together 64 MiB, or MAPPED_ARENAS payloads of
     * max_payload bytes, if these are larger */
    MAPPED_ARENAS = 4,
    MAPPED_ARENA_BYTES = 16 << 20,
};

enum mapped_kind { MAPPED_LISTENER, MAPPED_TIMER, MAPPED_IN, MAPPED_OUT };

/* The first member of every object that epoll knows. */
struct mapped_link {
    enum mapped_kind kind;
    int fd;          /* owned; -1: the link has ended */
    uint32_t events; /* the events that epoll watches, besides HUP, while is_watched */
    bool is_watched;
    bool is_ended;
    struct mapped_link *next; /* in fabric->ended */
};

/* Memory of ours as peers know it. A share outlives its region while frames that refer to the share are
 * queued. */
struct mapped_share {
    unsigned references;
    int fd; /* owned */
    struct frame_region frame;
};

struct mapped_region {
    struct fabric_region common;
    struct mapped_share *share;
};

/* One memfd of the staging area, in pages of MAPPED_PAGE bytes. */
struct mapped_arena {
    struct mapped_share *share; /* NULL: not made yet */
    uint8_t *memory;            /* [page_count][MAPPED_PAGE], mapped to be written by us alone */
    uint64_t *taken;            /* [page_count / 64] bits */
};

/* A frame that waits for the socket, or (MESSAGE) for room in the staging area. */
struct mapped_frame {
    TAILQ_ENTRY(mapped_frame) link;
    enum frame_kind kind;       /* MESSAGE, REGION, REGION_GONE */
    struct fabric_op *op;       /* MESSAGE */
    const void *payload;        /* MESSAGE, until the payload is copied or referred to */
    struct mapped_share *share; /* REGION: with a reference */
    struct frame_message message;
    uint16_t slot; /* REGION_GONE */
};
TAILQ_HEAD(mapped_frames, mapped_frame);

/* Cards by UUID, in the format of an address. */
struct mapped_cards {
    uint32_t count; /* at most CAIRN_FABRIC_UUIDS_MAX */
    uint8_t uuids[CAIRN_FABRIC_UUIDS_MAX][CAIRN_FABRIC_UUID_BYTES];
};

/* A connection that we made. The connection outlives its peer while the other side still reads copies of
 * ours. */
struct mapped_out {
    struct mapped_link link;
    LIST_ENTRY(mapped_out) entry; /* fabric->outs */
    struct mapped_fabric *fabric;
    /* NULL: the peer was closed; the connection stays open for releases */
    struct fabric_peer *peer;
    bool is_welcome; /* the handshake is over */
    bool is_lost;
    uint8_t key[FRAME_KEY_BYTES], challenge[FRAME_NONCE_BYTES], nonce[FRAME_NONCE_BYTES];
    struct mapped_cards cards;    /* the cards whose memory the peer imports */
    struct mapped_frames queue;   /* frames that wait for the socket, in order */
    struct mapped_frames waiting; /* messages that wait for room in the staging area */
    uint32_t control_count;       /* REGION and REGION_GONE in queue */
    uint32_t fresh_count;         /* frames at the end of `queue` that no write has tried yet */
    bool is_fresh;                /* in fabric->fresh: fresh_count is not 0 */
    TAILQ_ENTRY(mapped_out) fresh;
    uint32_t staged_pages; /* staging pages that the peer has not released */
    /* messages in staging pages whose frames were written, and that are not released */
    uint32_t staged_written;
    struct fabric_flights flights;
    uint64_t shown[FRAME_SLOTS / 64]; /* a bit for each slot whose REGION is queued or written */
};

struct mapped_peer {
    struct fabric_peer common;
    struct mapped_out *out;
};

/* A connection that we accepted. The struct outlives its socket while its messages are held. */
struct mapped_in {
    struct mapped_link link;
    LIST_ENTRY(mapped_in) entry; /* fabric->ins */
    struct mapped_fabric *fabric;
    bool is_proven, is_over; /* is_over: nothing more is read */
    bool is_unknown;         /* in fabric->unknown: no proof yet, from a user we do not know */
    uid_t user;              /* the connecting user; (uid_t)-1: the kernel does not say */
    TAILQ_ENTRY(mapped_in) unknown;
    bool is_gone; /* the peer is gone, too: nobody needs a release any more */
    /* we sent NO_IMPORTS: we no longer map memory of cards that this peer shows */
    bool imports_none;
    bool is_dirty; /* in fabric->dirty: has releases to write */
    TAILQ_ENTRY(mapped_in) dirty;
    uint64_t since_ms;
    uint8_t challenge[FRAME_NONCE_BYTES];
    struct fabric_mapping **mappings; /* [slot_count], by slot; NULL: none in this slot */
    uint32_t slot_count;
    LIST_HEAD(, fabric_mapping) all; /* all mappings, also those whose slot is empty again */
    uint64_t mapped_bytes;           /* of all these mappings */
    uint32_t held;                   /* messages by reference that are still to be released */
    /* [release_capacity], serials not written yet; has room for `held` more */
    uint64_t *releases;
    uint32_t release_count, release_capacity;
};

struct mapped_message {
    struct fabric_message common;
    struct mapped_in *in;           /* NULL: inline */
    struct fabric_mapping *mapping; /* held; NULL: inline */
    const uint8_t *view; /* NULL: the payload is at `offset` of the mapping, and must be copied */
    uint64_t offset;
    uint8_t *copy; /* owned; NULL unless the payload is inline */
    uint64_t serial;
};

struct fabric_mapping {
    LIST_ENTRY(fabric_mapping) entry; /* in->all, while `in` is set */
    unsigned references;              /* by its slot, its messages and its holders */
    struct mapped_in *in; /* whose mapped_bytes includes this mapping; NULL once `in` is freed */
    /* owned, [bytes], read-only; memory of a card: an address that `device` gave; NULL: the memory is read
     * through `fd` */
    void *memory;
    size_t bytes;
    /* borrowed: the device that imported this memory; NULL: host memory */
    const struct fabric_device *device;
    uint8_t uuid[CAIRN_FABRIC_UUID_BYTES]; /* the UUID of the card */
    int fd; /* owned; -1: every page exists and is mapped, or memory of a card */
    /* the pages of these bytes exist, and stay: the seals forbid taking a page out */
    uint64_t exists_from, exists_to;
    bool is_staging, is_shown;
    size_t note_bytes;
    uint8_t note[CAIRN_FABRIC_NOTE_MAX];
};

struct mapped_fabric {
    struct fabric common;
    char host[CAIRN_FABRIC_HOST_BYTES]; /* the name of this host, padded with NUL */
    char socket_path[108];              /* to be unlinked; "" if the name is abstract */
    uint8_t key[FRAME_KEY_BYTES];
    struct mapped_cards cards; /* the cards whose memory we import */
    /* peers that sent NO_IMPORTS, whatever cards their addresses name */
    struct {
        /* the keys of their addresses; the oldest is replaced */
        uint8_t keys[MAPPED_UNWILLING_MAX][FRAME_KEY_BYTES];
        uint32_t count; /* peers recorded since the start */
    } unwilling;
    struct mapped_link listener, timer;
    LIST_HEAD(, mapped_in) ins;
    LIST_HEAD(, mapped_out) outs;
    TAILQ_HEAD(, mapped_in) dirty;
    /* connections that write their messages of this turn together at the turn's end */
    TAILQ_HEAD(, mapped_out) fresh;
    TAILQ_HEAD(, mapped_in) unknown; /* [unknown_count], the oldest first */
    uint32_t in_count;
    /* connections of known users without a proof; while there are too many, we accept nobody */
    uint32_t stranger_count;
    /* connections of other users without a proof; if there are too many, a new connection ends an older
     * one, so that none of them delays a known user */
    uint32_t unknown_count;
    struct {
        uid_t ids[MAPPED_USERS_MAX];
        uint32_t count; /* users recorded since the start */
    } users;
    bool is_accepting, is_ticking, is_room; /* is_room: staging pages were given back */
    bool has_told_unmapped; /* on_refused has said that memory of a peer is read by copies */
    bool is_held_off;       /* accepted connections are ended, and no new ones are accepted */
    struct mapped_link *ended;
    struct mapped_frames spare;

    struct mapped_share *shares[FRAME_SLOTS]; /* by slot; the first MAPPED_ARENAS are staging */
    struct mapped_arena arenas[MAPPED_ARENAS];
    uint32_t arena_pages; /* pages of each arena */
    uint32_t staged_pages;

    struct checksum *sum; /* owned: the checksum of the payload that is being received far */
    union frame frame;    /* the frame that was read last */
};

static inline struct mapped_fabric *mapped_of(struct fabric *fabric)
{
    return (struct mapped_fabric *)fabric;
}

/* mapped.c */
struct mapped_address {
    char host[CAIRN_FABRIC_HOST_BYTES]; /* the name of the owner's host, padded with NUL */
    uint8_t key[FRAME_KEY_BYTES];
    uint32_t path_bytes;
    char path[108]; /* as in sun_path: begins with NUL if the name is abstract */
    struct mapped_cards cards;
};
static_assert(sizeof(struct mapped_address) == 340, "wire format");
static_assert(offsetof(struct mapped_address, cards) == 208, "wire format");
/* False: the kernel has no memory to watch the link, or to watch for other events. */
bool mapped_link_watch(struct mapped_fabric *fabric, struct mapped_link *link, uint32_t events);
void mapped_link_unwatch(struct mapped_fabric *fabric, struct mapped_link *link);
/* Closes the socket; the object around the link is freed at the end of this progress or of the next. */
void mapped_link_end(struct mapped_fabric *fabric, struct mapped_link *link);

/* mapped.c */
bool mapped_imports(const struct fabric_peer *peer, const uint8_t *uuid);
void mapped_out_end(struct mapped_out *out);
/* Records that the peer imports no memory of cards any more, now and after a new connection. */
void mapped_import_none(struct mapped_out *out);

/* mapped_flow.c */
cairn_status mapped_send(struct fabric_peer *peer, struct fabric_op *op, const void *payload);
cairn_status mapped_region_show(struct fabric_region *region, struct fabric_peer *peer);
/* Sends REGION_GONE, if REGION was sent. */
void mapped_take_back(struct mapped_out *out, uint16_t slot);
unsigned mapped_out_on_event(struct mapped_out *out, uint32_t events);
/* Writes the queue; `out` is not fresh any more. */
unsigned mapped_out_write(struct mapped_out *out);
unsigned mapped_out_stage_waiting(struct mapped_out *out);
/* Gives back a frame that was written, or that never will be written. */
void mapped_frame_put(struct mapped_out *out, struct mapped_frame *frame);
void mapped_in_accept(struct mapped_fabric *fabric, int fd);
unsigned mapped_in_on_event(struct mapped_in *in, uint32_t events);
void mapped_in_flush(struct mapped_in *in);
void mapped_in_close(struct mapped_in *in);
void mapped_in_finish(struct mapped_in *in); /* acts as if the peer had ended the connection */
void mapped_receive(struct fabric_message *message, struct fabric_op *op, void *buffer);
void mapped_drop(struct fabric_message *message);
const void *mapped_view(const struct fabric_message *message);
const char *mapped_message_path(const struct fabric_message *message);

/* mapped.c */
enum { MAPPED_PAGE = 4096 };
void mapped_share_release(struct mapped_share *share);
/* Reserves staging pages for a copy of `bytes` bytes. The copy is for a peer that already has `own_pages`
 * pages. CAIRN_ERR_BUSY: the copy has to wait. */
CAIRN_MUST_CHECK cairn_status mapped_stage(struct mapped_fabric *fabric, uint32_t own_pages,
                                           size_t bytes, struct fabric_pages *pages_out);
static inline uint8_t *mapped_staged(const struct mapped_fabric *fabric, struct fabric_pages pages)
{
    return fabric->arenas[pages.arena].memory + (size_t)pages.first * MAPPED_PAGE;
}
void mapped_unstage(struct mapped_fabric *fabric, struct fabric_pages pages);
/* Validates the descriptor, maps its memory, and consumes the descriptor in any case. If there is no room
 * for memory of a card, or the card has failed, the memory becomes a mapping of 0 bytes, and the peer is
 * told. */
CAIRN_MUST_CHECK cairn_status mapped_mapping_open(struct mapped_in *in,
                                                  const struct frame_region *frame, int fd,
                                                  struct fabric_mapping **mapping_out);
/* From now on maps no memory of cards that the peer shows, and tells the peer so. `why` is passed to
 * options.on_refused. */
void mapped_import_none_of(struct mapped_in *in, const char *why);
/* Copies from memory that is not mapped. Returns false if the kernel cannot supply the memory. */
bool mapped_mapping_copy(const struct fabric_mapping *mapping, uint64_t offset, void *to,
                         size_t bytes);
/* True if every page of these bytes exists: then to read them allocates no memory, and cannot fail for lack
 * of memory. */
bool mapped_mapping_has(struct fabric_mapping *mapping, uint64_t offset, size_t bytes);
/* Call this when the peer has withdrawn the mapping or is gone: the slot's reference is given up. */
void mapped_mapping_end(struct fabric_mapping *mapping);

#endif
