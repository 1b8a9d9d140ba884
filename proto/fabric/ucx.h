/* The inside of the ucx fabric, shared by ucx*.c. No other file may include a header of UCX.
 *
 *   ucx.c         a node (its settings, sockets and lanes); tests whether a peer answers, before UCX waits
 *                 for the peer; decides whether memory of cards is sent to other hosts directly
 *   ucx_link.c    the one connection to each other node, and its handles; active messages and bundles
 *   ucx_read.c    one-sided reads: whether such reads are possible, which memory of ours peers may read,
 *                 messages by reference, the reads themselves
 *   ucx_memory.c  receives around the caches; memory of cards */
#ifndef CAIRN_FABRIC_UCX_H
#define CAIRN_FABRIC_UCX_H

#include <assert.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <ucp/api/ucp.h>

#include "proto/base/machine.h"
#include "proto/fabric/backend.h"
#include "proto/fabric/fabric.h"

/* ==== ucx frame ==== */

/* Frames that ucx nodes send each other in addition to messages, so that one node may read the other's
 * memory (one-sided reads). Each frame is in the header of an active message; numbers are little-endian.
 * The format of bundles of small messages is also defined here. Pure; private to proto/fabric.
 *
 *   who has the memory (sends messages)             who reads it (receives them)
 *                                               <-  HELLO { number of my endpoint, whether I read }
 *   REGION { slot, generation, bytes, key }     ->
 *   REFERENCE { serial, where } header ...      ->  (reads, when it has room for it)
 *                                               <-  RELEASE { serial }: the memory is yours again
 *                                               <-  DECLINE { serial, why }: send it whole
 *   REGION_GONE { slot, generation }            ->
 *
 * Each node sends HELLO over each endpoint that it makes, and answers the other node's HELLO if that HELLO
 * asks for an answer. So each node learns of the other's endpoint, in whatever order the two connected.
 * Each of two nodes has one endpoint to the other (ucx_link.c). UCX pairs these endpoints by the order in
 * which either node made them. A read over one endpoint of a pair is answered over the other, and never
 * ends if the other endpoint is gone (UCX 1.13). So every frame about reads refers to the endpoint by which
 * the frame arrived; UCX reports that endpoint. When an endpoint ends, the other endpoint of its pair must
 * end, too: a node that closes an endpoint while the connection lives sends BYE { the endpoint's number },
 * and HELLO says which endpoint is the oldest that is left. BYE and PORT { the port of a socket } are sent
 * even if there are no one-sided reads: a node that ends a link looks for the connection's socket, and
 * either node may have made that connection. PROOF follows PORT on the same endpoint, and arrives only if
 * the other endpoint of the pair exists. A node that waits for PROOF in vain sends BYE.
 *
 * `from` names the sender: the hash of the sender's worker address, which only members have. Frames MAY
 * OVERTAKE EACH OTHER: slots and serials carry generations. A REFERENCE to a region that is not known (yet)
 * is declined, which costs no more than sending the payload. */

enum {
    UCX_FRAME_SLOTS = CAIRN_FABRIC_SLOTS_MAX,
    UCX_FRAME_KEY_MAX = 1024,    /* bytes of a packed remote key: TCP 12, InfiniBand some 60 */
    UCX_FRAME_MAGIC = 0x31425543 /* "CUB1" */
};

enum ucx_frame_kind {
    UCX_FRAME_MALFORMED = 0,
    UCX_FRAME_HELLO = 1,
    UCX_FRAME_REGION = 2,
    UCX_FRAME_REGION_GONE = 3,
    UCX_FRAME_REFERENCE = 4,
    UCX_FRAME_RELEASE = 5,
    UCX_FRAME_DECLINE = 6,
    UCX_FRAME_BYE = 7,
    UCX_FRAME_PORT = 8,
    UCX_FRAME_PROOF = 9,
};

enum ucx_decline {                          /* DECLINE: why */
                   UCX_DECLINE_UNKNOWN = 0, /* the region is unknown: send REGION again */
                   UCX_DECLINE_CANNOT = 1,  /* the memory cannot be read: send no more references */
};

struct ucx_frame_head {
    uint32_t magic;
    uint32_t kind;
    uint64_t from;
};
struct ucx_frame_hello { /* of HELLO, and of BYE, which holds only the endpoint's number */
    struct ucx_frame_head head;
    /* the number of the sender's endpoint, which grows with every endpoint that the node makes */
    uint32_t endpoint;
    uint32_t oldest; /* the sender's oldest endpoint to the receiver that is left; BYE: 0 */
    uint8_t reads;   /* 1: the sender reads, so the receiver may send references */
    uint8_t asks;    /* 1: the receiver shall send HELLO, too */
    uint8_t zero[6];
};
struct ucx_frame_region { /* key_bytes of packed key follow */
    struct ucx_frame_head head;
    uint64_t address; /* the memory's address in its own process; reads use this address */
    uint64_t bytes;
    uint64_t key_checksum; /* XXH3-64 of the key; UCX trusts the lengths inside the key */
    uint32_t generation;   /* not 0 */
    uint16_t slot;
    uint16_t key_bytes;
};
struct ucx_frame_gone {
    struct ucx_frame_head head;
    uint32_t generation;
    uint16_t slot;
    uint16_t zero;
};
struct ucx_frame_reference { /* header_bytes of the message's header follow */
    struct ucx_frame_head head;
    uint64_t serial;
    uint64_t offset; /* of the payload in the region */
    uint32_t payload_bytes;
    uint32_t generation;
    uint16_t slot;
    uint16_t header_bytes;
    uint32_t zero;
};
struct ucx_frame_release { /* of RELEASE and DECLINE */
    struct ucx_frame_head head;
    uint64_t serial;
    uint32_t why; /* DECLINE: enum ucx_decline; else 0 */
    uint32_t zero;
};

struct ucx_frame_port {
    struct ucx_frame_head head;
    /* the sender's port of the TCP connection, if the sender made the connection; 0: the receiver made the
     * connection, and shall send its own port */
    uint16_t port;
    uint16_t zero[3];
};

static_assert(sizeof(struct ucx_frame_port) == 24, "wire format");
static_assert(sizeof(struct ucx_frame_head) == 16, "wire format");
static_assert(sizeof(struct ucx_frame_hello) == 32, "wire format");
static_assert(sizeof(struct ucx_frame_region) == 48, "wire format");
static_assert(offsetof(struct ucx_frame_region, generation) == 40, "wire format");
static_assert(sizeof(struct ucx_frame_gone) == 24, "wire format");
static_assert(sizeof(struct ucx_frame_reference) == 48, "wire format");
static_assert(offsetof(struct ucx_frame_reference, slot) == 40, "wire format");
static_assert(sizeof(struct ucx_frame_release) == 32, "wire format");

enum { UCX_FRAME_MAX = sizeof(struct ucx_frame_region) + UCX_FRAME_KEY_MAX };
static_assert(sizeof(struct ucx_frame_reference) + CAIRN_FABRIC_HEADER_MAX <= UCX_FRAME_MAX, "");

union ucx_frame {
    struct ucx_frame_head head;
    struct ucx_frame_hello hello; /* and BYE */
    struct ucx_frame_region region;
    struct ucx_frame_gone gone;
    struct ucx_frame_reference reference;
    struct ucx_frame_release release; /* and DECLINE */
    struct ucx_frame_port port;
};

/* A bundle of messages (ucx_link.c) is one active message. */
struct ucx_frame_bundle { /* the messages follow */
    uint32_t magic;
    uint32_t count; /* at least one */
};
struct ucx_frame_bundled { /* header and payload follow, padded to 8 bytes */
    uint32_t header_bytes; /* at least one */
    uint32_t payload_bytes;
};
static_assert(sizeof(struct ucx_frame_bundle) == 8, "wire format");
static_assert(sizeof(struct ucx_frame_bundled) == 8, "wire format");

/* The bytes of a bundled message, with its lengths and its padding. */
static inline size_t ucx_frame_bundled_bytes(const struct ucx_frame_bundled *lengths)
{
    const size_t bytes = (size_t)lengths->header_bytes + lengths->payload_bytes;
    return sizeof *lengths + (bytes + 7) / 8 * 8;
}

/* Returns the lengths of the message that begins at `at`, and advances `at` to the next message; false: no
 * complete message begins there. */
bool ucx_frame_next_bundled(const void *bytes, size_t count, size_t *at,
                            struct ucx_frame_bundled *lengths_out);
/* True if the bundle is complete: there are as many messages as its head says, and the last message ends at
 * the bundle's last byte. */
bool ucx_frame_is_bundle(const void *bytes, size_t count);

static inline struct ucx_frame_head ucx_frame_head(enum ucx_frame_kind kind, uint64_t from)
{
    return (struct ucx_frame_head) { .magic = UCX_FRAME_MAGIC, .kind = kind, .from = from };
}

/* Returns the kind of a frame that is complete and has one of the forms above. Copies the frame into
 * `frame_out`, but not the bytes that follow the frame, which begin at `bytes + *size_out`. Slots and sizes
 * are not validated, as only the receiver of the frame knows which are right. */
enum ucx_frame_kind ucx_frame_judge(const void *bytes, size_t count, union ucx_frame *frame_out,
                                    size_t *size_out);

/* ==== ucx ==== */

enum {
    UCX_NODES = 256,       /* lists of links, by the hash of the link's node */
    UCX_UNACKED_MS = 5000, /* default: a node that acknowledges nothing for this long is gone */
    UCX_HEARD = 4096,
    UCX_READS_MAX = 64,       /* reads in flight at a time; other reads wait for their turn */
    UCX_CONTROLS_MAX = 16384, /* frames that a peer may leave untaken before we give the peer up */
    UCX_FAR_MIN =
        256 << 10, /* bytes of the smallest payload that is received around the caches: a smaller
                    * one may well be read before it leaves the cache */
    /* bytes with the header; a smaller message carries its payload along (eager) */
    UCX_RENDEZVOUS_MIN = CAIRN_FABRIC_DIRECT_MIN,
    UCX_REFER_MIN = UCX_RENDEZVOUS_MIN,
    UCX_BUNDLED_MAX = 8 << 10, /* bytes of payload; a larger message is sent by itself */
    /* the largest bundle, which fits a buffer of UCX's while it is held */
    UCX_BUNDLE_BYTES = 60 << 10,
    UCX_BUNDLE_COUNT = 256, /* messages in a bundle */
    UCX_BUNDLES_MAX = 4,    /* the most bundles under way to one peer */
    UCX_ASKED_MAX = 32,     /* the most addresses that are recorded as not answering at once */
};

/* The state of the message that on_message is being shown right now. UCX expects the state as the
 * handler's return value, not by a call. */
enum ucx_fate {
    FATE_HELD,  /* neither received nor dropped yet: UCX keeps the message */
    FATE_TAKEN, /* an eager payload was copied, or the message was dropped: UCX frees the message */
    /* UCX keeps the message until the rendezvous receive that is under way is over */
    FATE_RECEIVING
};

/* Memory of ours that peers may read. The share outlives its region while a peer is still reading the
 * memory. */
struct ucx_share {
    LIST_ENTRY(ucx_share) link; /* fabric->shares */
    unsigned references;        /* by its region and by flights */
    const uint8_t *base;        /* [bytes], at the owner's address */
    uint8_t *view; /* owned: our own read-only map of the memory; this map is registered */
    size_t bytes;
    ucp_mem_h memory;
    void *key; /* UCX's: packed, [key_bytes] */
    size_t key_bytes;
    uint32_t generation;
    uint16_t slot;
};

/* Registered memory of a card. The struct outlives its region while sends or receives use the memory. */
struct ucx_card {
    LIST_ENTRY(ucx_card) link; /* fabric->cards */
    unsigned references;       /* by its region, by sends and by receives */
    ucp_mem_h memory;
};

struct ucx_region {
    struct fabric_region common;
    /* memory of a card, registered to be sent or to be received into; NULL: not registered yet */
    struct ucx_card *sent, *landed;
    struct ucx_share *share; /* NULL: no peer was told of the region yet */
    bool is_refused;         /* UCX cannot register the region: payloads are sent in messages */
};

/* Zeros at the address of a share that has ended: a read that arrives too late finds these zeros. */
struct ucx_grave {
    STAILQ_ENTRY(ucx_grave) link; /* fabric->graves */
    void *view;
    size_t bytes;
};

/* A frame under way. UCX reads the bytes until the frame is sent. */
struct ucx_control {
    LIST_ENTRY(ucx_control) link; /* fabric->controls */
    struct ucx_link *by;          /* NULL: the link was closed since */
    uint8_t bytes[];
};

/* Records whether an address answers; we test that with a socket of ours. */
struct ucx_asked {
    uint64_t node;  /* hash of the address */
    uint64_t at_ms; /* when the address was tested last; 0: the entry is unused */
    /* UCX waited for the address in vain: make no attempt before this time */
    uint64_t rest_until_ms;
    unsigned rest; /* how many times as long as UCX's wait the last rest was; 0: there was none */
    int fd;        /* owned: the socket that is connecting; -1: none */
};

/* A node's report about its end of our connection, kept whether we have a link to the node or not. */
struct ucx_heard {
    uint64_t node;
    /* the port from which the node connected to us; 0: the node has not connected */
    in_port_t port;
    /* the node's listener; family 0: we have never connected to the node */
    struct sockaddr_storage listener;
    /* UCX's endpoint here by which PROOF arrived; the endpoint may be gone, so only compare the pointer */
    ucp_ep_h ep;
    uint64_t proof_by_ms; /* when PROOF must have arrived after PORT; 0: PROOF is not awaited */
};

struct ucx_fabric {
    struct fabric common;
    ucp_context_h context;
    ucp_worker_h worker;
    struct ucx_message *shown; /* the message that on_message is being shown; NULL: none */
    enum ucx_fate fate;
    struct ucx_asked asked[UCX_ASKED_MAX];
    uint64_t node; /* our name in frames */

    /* links */
    LIST_HEAD(, ucx_link) links[UCX_NODES]; /* by node */
    struct ucx_heard heard[UCX_HEARD];      /* by node; a newer node replaces an older one */
    in_port_t own_port;                     /* the port that we listen on; 0: not known */
    uint32_t unacked_ms; /* how long a node may acknowledge nothing until it counts as gone */
    bool has_lost;       /* a lost link has to be processed */
    uint64_t due_ms;     /* when the next work is due; 0: no work is planned */
    int timer_fd;        /* owned: wakes us at due_ms */

    /* receives around the caches */
    ucp_datatype_t far_type;
    bool has_far_type; /* false: no receive goes around the caches */
    LIST_HEAD(, ucx_far) fars;
    LIST_HEAD(, ucx_far) fars_spare;

    /* bundles of small messages; a peer has at most one open bundle */
    LIST_HEAD(, ucx_bundle) bundles_open;
    LIST_HEAD(, ucx_bundle) bundles_out; /* bundles that UCX is sending */

    LIST_HEAD(, ucx_card) cards;

    /* one-sided reads */
    /* used only if common.is_one_sided */
    uint32_t endpoints, generations, reads_now;
    size_t refer_min; /* bytes of the smallest payload that is sent by reference */
    uint64_t grave_bytes;
    uint32_t grave_count;
    bool has_told_unregistered; /* on_refused has said that our memory is sent in messages */
    struct ucx_share *slots[UCX_FRAME_SLOTS];
    LIST_HEAD(, ucx_share) shares;
    LIST_HEAD(, ucx_control) controls;
    LIST_HEAD(, ucx_read) reads;         /* in flight */
    STAILQ_HEAD(, ucx_read) reads_later; /* reads that wait for their turn */
    STAILQ_HEAD(, ucx_grave) graves;
    /* a peer's key, followed by zeros: no length inside the key leads beyond this room */
    uint8_t key_room[64 * 256 + 256];
};

/* Memory of a peer, as the peer described it to us. */
struct ucx_remote {
    unsigned references; /* by its slot, by held messages and by reads */
    ucp_rkey_h key;      /* unpacked for our endpoint to the peer */
    uint64_t address, bytes;
    uint32_t generation;
};

/* The one connection to a node, and what both nodes have said of themselves on it (ucx_link.c). */
struct ucx_link {
    LIST_ENTRY(ucx_link) entry; /* fabric->links, by node */
    struct ucx_fabric *ucx;
    LIST_HEAD(, ucx_peer) handles; /* may be none */
    ucp_ep_h ep;
    uint64_t node;
    struct sockaddr_storage listener; /* the node's listener, if has_listener: UCX connects to it */
    /* when a link that we are ending counts as lost; 0: we are not ending the link */
    uint64_t end_by_ms;
    in_port_t made; /* our port, if we made the connection, else 0 */
    bool has_listener;
    bool has_said_port;
    bool is_lost;   /* no handle is made on the link any more, and its handles are told */
    bool is_shut;   /* the fabric is closing, and we shut the link's connection down */
    bool is_down;   /* UCX reported that the connection failed */
    bool is_closed; /* `ep` is closed */
    struct ucx_bundle *bundle; /* owned: the open bundle; NULL: none */
    uint32_t bundles_out;

    /* one-sided reads */
    uint32_t endpoint; /* the number of `ep` in frames */
    uint32_t controls; /* frames under way */
    bool may_read;  /* we may read the node's memory: our lanes or the owner's setting allow that */
    bool is_native; /* RDMA leads to the node: memory of a card need not be copied through a host */
    /* what the node said of itself, and what we told the node. reads: the node reads our memory, so that we
     * may send references */
    bool reads;
    /* number of the node's endpoint; 0: the node has not said HELLO yet */
    uint32_t paired;
    struct fabric_flights flights; /* references that we sent to the node */
    /* [shown_count], by slot: the generation that the node was told of; 0: none */
    uint32_t *shown;
    uint32_t shown_count;
    /* what the node told us */
    struct ucx_remote **regions; /* [region_count], by slot; NULL: none in this slot */
    uint32_t region_count;
    LIST_HEAD(, ucx_message) referred; /* held messages that arrived by reference */
};

/* A handle of the owner on a link. */
struct ucx_peer {
    struct fabric_peer common;
    struct ucx_link *link; /* NULL: the peer is cut */
    LIST_ENTRY(ucx_peer) of_link;
};

struct ucx_message {
    struct fabric_message common;
    void *data;   /* UCX's: the payload (eager) or a descriptor (rendezvous) */
    void *bundle; /* UCX's: the bundle that holds the payload; NULL: none does */
    bool is_rendezvous;
    ucp_ep_h ep; /* the endpoint of UCX by which a rendezvous arrived; may be gone */
    /* by reference */
    struct ucx_remote *region;     /* held; NULL: the message is not by reference */
    struct ucx_link *by;           /* the link by which the message arrived; NULL: closed since */
    LIST_ENTRY(ucx_message) entry; /* by->referred, while `by` is set */
    uint64_t serial, offset;
};

struct ucx_read {
    LIST_ENTRY(ucx_read) link;    /* fabric->reads */
    STAILQ_ENTRY(ucx_read) later; /* fabric->reads_later */
    struct fabric_op *op;
    struct ucx_link *by; /* NULL: the link was closed since */
    struct ucx_remote *region;
    void *buffer;
    uint64_t serial, offset;
};

static inline struct ucx_fabric *ucx_of(struct fabric *fabric)
{
    return (struct ucx_fabric *)fabric;
}

static inline struct ucx_peer *ucx_peer_of(struct fabric_peer *peer)
{
    return (struct ucx_peer *)peer;
}

static inline in_port_t *ucx_port_of(struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET ? &((struct sockaddr_in *)address)->sin_port
                                         : &((struct sockaddr_in6 *)address)->sin6_port;
}

static inline ucs_memory_type_t ucx_memory_of(const struct fabric_op *op)
{
    return op->is_device ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
}

/* Translates a status of UCX into ours. */
cairn_status ucx_status(ucs_status_t status);

/* ucx.c */
/* True if this UCX connects without making us wait. */
bool ucx_connects_on_its_own(void);

/* ucx_memory.c */
/* From 1.14 on a send names the memory handle of its payload. Without a handle UCX registers memory at the
 * first send, and caches the registration by address. If the memory lies on a card, UCX may not notice that
 * a cached address now belongs to other memory. */
#if UCP_API_VERSION >= UCP_VERSION(1, 14)
#define SENDS_BY_HANDLE 1
#else
#define SENDS_BY_HANDLE 0
#endif

/* Returns the handle by which UCX is to send or receive the payload; the handle is held until
 * ucx_card_release. NULL: UCX finds a handle in its own cache. */
struct ucx_card *ucx_card_hold(struct ucx_fabric *ucx, const struct fabric_op *op,
                               const void *payload);
/* Makes a send or receive use the handle. Has no effect if `card` is NULL. */
void ucx_card_name(const struct ucx_card *card, ucp_request_param_t *param);
void ucx_card_release(struct ucx_fabric *ucx, struct ucx_card *card); /* NULL is allowed */
/* Detaches the registration from its region after a failed operation, since a peer may have the
 * registration's key. The registration ends with the last operation that holds it. NULL is allowed. */
void ucx_card_retire(struct ucx_fabric *ucx, const struct ucx_card *card);
void ucx_card_region_drop(struct ucx_region *region);
void ucx_cards_close(
    struct ucx_fabric *ucx); /* after the worker is destroyed, before the context is */

/* ucx.c */
/* CAIRN_OK: UCX may connect to the address. CAIRN_ERR_UNREACHABLE: nothing has answered yet. The call waits
 * about 100 ms for an address, and does not wait again while the address is silent. It waits for up to 1 s
 * only for an address whose last answer took as long. */
CAIRN_MUST_CHECK cairn_status ucx_reach(struct ucx_fabric *ucx, const void *raw, size_t bytes);
/* Call this when UCX has connected, or could not connect, in `ms` milliseconds: if it tried in vain for
 * long, the next attempt is delayed. */
void ucx_note_connect(struct ucx_fabric *ucx, const void *raw, size_t bytes, uint64_t ms,
                      bool is_connected);

/* Finds where the owner of an address listens. Returns false if the address does not say where. */
bool ucx_find_listener(const void *raw, size_t bytes, struct sockaddr_storage *out);

/* ucx_link.c */
CAIRN_MUST_CHECK bool ucx_links_open(struct ucx_fabric *ucx);
void ucx_links_stop(struct ucx_fabric *ucx);  /* before the worker is destroyed */
void ucx_links_close(struct ucx_fabric *ucx); /* afterwards */
/* Does the work that is due on all links; returns 0 if there was none. Call this outside of UCX's
 * callbacks. */
unsigned ucx_links_tend(struct ucx_fabric *ucx);
/* Returns the record of a node's reports, for writing. If the slot holds the record of another node, that
 * record is dropped. */
struct ucx_heard *ucx_hear(struct ucx_fabric *ucx, uint64_t node);
/* Returns the link to a node, if the link is neither lost nor ending; else NULL. */
struct ucx_link *ucx_link_find(struct ucx_fabric *ucx, uint64_t node);
/* Ends the link so that both ends begin anew; the link's handles are told soon. If `is_told`, the node
 * asked for the end or takes no frames, and so is not told of the end. */
void ucx_link_end(struct ucx_link *link, bool is_told);
/* Call this when the node has sent PORT. If PROOF does not follow, the node's end of the link is useless,
 * and we tell the node so as soon as there is a link. */
void ucx_link_await_proof(struct ucx_fabric *ucx, uint64_t node);
/* Closes the endpoint by force, and waits for nobody. The next calls of progress cancel flying sends, and
 * receives that arrived by the endpoint. */
void ucx_endpoint_close(struct ucx_fabric *ucx, ucp_ep_h ep);
cairn_status ucx_connect(struct fabric_peer *peer, const void *address, size_t bytes);
void ucx_disconnect(struct fabric_peer *peer);

/* ucx.c */
/* Returns the descriptor that the next socket of this process gets, unless another thread takes the
 * descriptor first. ucx_socket_made then looks for the socket that was made since and leads to the
 * listener, bounds how long that socket may stay unacknowledged, and returns the socket's port on this
 * side; 0: there is no such socket. */
int ucx_socket_next(void);
in_port_t ucx_socket_made(int next, const struct sockaddr_storage *listener, unsigned unacked_ms);
/* Shuts down the connections that this process made to the listener (NULL: none). Also shuts down the
 * connections that were accepted from port `accepted` (0: none) of the listener's host, or of any host if
 * there is no listener. Returns false if there was no such connection. */
bool ucx_socket_shut(const struct ucx_fabric *ucx, const struct sockaddr_storage *listener,
                     in_port_t accepted);

/* ucx_link.c */
ucs_status_t ucx_listen(struct ucx_fabric *ucx);
/* Makes UCX pass active messages with the number `id` to `on_message`, with `ucx` as its argument. */
ucs_status_t ucx_listen_to(struct ucx_fabric *ucx, unsigned id, uint32_t flags,
                           ucp_am_recv_callback_t on_message);
/* Sends the message without a reference: the payload travels with the message, or waits for UCX's
 * rendezvous. */
cairn_status ucx_send_whole(struct ucx_link *link, struct fabric_op *op, const void *payload);
cairn_status ucx_send(struct fabric_peer *peer, struct fabric_op *op, const void *payload);
void ucx_receive(struct fabric_message *message, struct fabric_op *op, void *buffer);
void ucx_drop(struct fabric_message *message);
bool ucx_lands(const struct fabric_message *message);
bool ucx_takes_device(const struct fabric_peer *peer);

/* ucx_link.c */
ucs_status_t ucx_bundles_listen(struct ucx_fabric *ucx);
/* Sends the open bundles that their peers can take; returns how many it sent. */
unsigned ucx_bundles_flush(struct ucx_fabric *ucx);
void ucx_bundles_close(struct ucx_fabric *ucx); /* after the worker is destroyed */

/* ucx_memory.c */
/* Returns false if no receive will go around the caches. */
bool ucx_far_open(struct ucx_fabric *ucx, const struct fabric_options *options);
void ucx_far_close(struct ucx_fabric *ucx); /* after the worker is destroyed */
/* Returns false if the message has to be received like all others. */
bool ucx_far_receive(struct ucx_fabric *ucx, void *descriptor, struct fabric_op *op, void *buffer);

/* ucx_read.c */
/* True if a fabric with these options may read, or be read, one-sidedly. Called before the fabric's context
 * is made. */
bool ucx_one_sided_is_possible(const struct fabric_options *options);
ucs_status_t ucx_one_sided_listen(struct ucx_fabric *ucx);
void ucx_meet(struct ucx_link *link);
void ucx_part(struct ucx_link *link);
/* Asks the node to end the link, since the node's end of the link has become useless. */
void ucx_say_bye(struct ucx_link *link);
/* Sends PORT and PROOF before the first message: tells the node our port of the connection, and proves that
 * the node's endpoint and ours are a pair. */
void ucx_say_port(struct ucx_link *link);
/* Sends a frame, with `rest` behind it. CAIRN_ERR_BUSY: too many frames to the peer are under way. */
cairn_status ucx_control_send(struct ucx_link *link, const void *frame, size_t frame_bytes,
                              const void *rest, size_t rest_bytes);
void ucx_one_sided_begin_stop(struct ucx_fabric *ucx); /* before the worker is destroyed */
void ucx_one_sided_settle(struct ucx_fabric *ucx);     /* last before the worker is destroyed */
void ucx_one_sided_end_stop(struct ucx_fabric *ucx);   /* after the worker is destroyed */
const char *ucx_message_path(const struct fabric_message *message);
const char *ucx_payload_path(const struct fabric_peer *peer, const void *payload, size_t bytes);
void ucx_region_drop(struct fabric_region *region);
bool ucx_may_refer(const struct ucx_link *link, size_t bytes);
/* CAIRN_ERR_UNSUPPORTED: the peer can read no memory that contains the payload. */
cairn_status ucx_refer(struct ucx_link *link, struct fabric_op *op, const void *payload);
/* Ends the references that were sent through a handle that is being closed; NULL: through any. */
void ucx_forget_references(struct ucx_link *link, const struct fabric_peer *handle);
void ucx_read_receive(struct ucx_message *message, struct fabric_op *op, void *buffer);
void ucx_read_drop(struct ucx_message *message);

/* ==== ucx lanes ==== */

/* Finds out which lanes an endpoint of UCX has, from UCX's printed description. Pure; private to
 * proto/fabric. */

/* A transport whose network card reads the peer's memory by itself: RC and DC of InfiniBand and
 * RoCE (ud has no reads), Cray's, AWS's. False for an unknown name. */
bool ucx_transport_is_native(const char *name);

/* `text` is the text that ucp_ep_print_info printed. True if a lane has a native transport, and UCX uses
 * that lane for remote memory access. Otherwise UCX would emulate a read by messages, which gains
 * nothing. */
bool ucx_lanes_are_native(const char *text);

#endif
