/* The fabric: how bulk data moves between daemons and workers.
 *
 * One table of functions serves several ways to carry bytes: "mapped" (peers of one host read each other's
 * memory in place; descriptors and headers travel over Unix sockets), "sealed" (TCP between hosts, encrypted
 * and authenticated), "stream" (the same in clear), "ucx" (the transports of InfiniBand and RoCE cards), and
 * "auto" (the best of these for each peer).
 * Tests bring a way of their own, "mem" (a seeded network inside one process, tests/support/mem.h). Code
 * above this header does not know which kind it uses.
 *
 * A message is a small header (<= 256 bytes, the application's own format) and a payload of 0 to
 * max_payload bytes. A message arrives either whole or not at all. The fabric sends no acknowledgment: a
 * peer reports that it *received* or *applied* something by a message of the application.
 *
 * ORDER: messages to one peer MAY OVERTAKE EACH OTHER (a small message passes a large message that waits
 * for its receiver), and after a reconnect an older message may arrive again if the application repeats
 * that message. The header must hold everything that identifies and orders a message. The mem fabric
 * reorders and duplicates messages on purpose, so that code which relies on their order fails its tests.
 *
 * THREADS: a fabric belongs to one thread, either the thread that opened the fabric or a thread that took
 * the fabric over. All calls and all callbacks happen on that thread; nothing here takes a lock. Another
 * thread reaches the fabric through uv_async and a queue (proto/loop).
 *
 * CALLBACKS run only inside fabric_progress() and fabric_close(), never inside the call
 * that caused them. Inside a callback every function of this header may be called except progress
 * and close.
 *
 * LOANS: a buffer that is passed to fabric_send or fabric_receive belongs to the fabric until its done
 * callback runs. The callback runs exactly once if the call returned CAIRN_OK, and never otherwise. When
 * the peer dies, or the peer or the fabric is closed, the callback runs with an error. */
#ifndef CAIRN_FABRIC_FABRIC_H
#define CAIRN_FABRIC_FABRIC_H

#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "proto/base/text.h"

enum {
    CAIRN_FABRIC_HEADER_MAX = 256,   /* bytes of a message's header */
    CAIRN_FABRIC_ADDRESS_MAX = 4096, /* bytes of an address, with its envelope */
    CAIRN_FABRIC_DESCRIBE_MAX = 512, /* bytes of fabric_describe, with its NUL */
    CAIRN_FABRIC_HOST_BYTES = 64,    /* bytes of a host's name, with its NUL */
    /* default of max_payload: 1 MiB, so that a loop stays responsive */
    CAIRN_FABRIC_PAYLOAD_MAX = 1 << 20,
    /* bytes of the smallest payload that takes CAIRN_FABRIC_PATH_DIRECT */
    CAIRN_FABRIC_DIRECT_MIN = 32 << 10,
    CAIRN_FABRIC_UUID_BYTES = 16, /* bytes of a card's UUID, as the driver reports it */
    CAIRN_FABRIC_UUIDS_MAX = 8,   /* the most cards whose memory one fabric imports */
};

struct fabric;         /* one node of the network: an address, an inbox, its peers */
struct fabric_peer;    /* a node that we send to */
struct fabric_message; /* a payload that has been announced and not yet received or dropped */
struct fabric_region;  /* shared memory of ours that peers on this host may map */
struct fabric_mapping; /* shared memory of a peer on this host, mapped here to be read */
struct fabric_hub;     /* backend.h */

/* Called when a send or a receive is over. From then on the buffer belongs to the caller again.
 *   sent:     CAIRN_OK says only that the buffer may be reused. The peer may never receive the message.
 *   received: CAIRN_OK says the payload is in the buffer; on an error the buffer's content is undefined.
 * Errors: CAIRN_ERR_CLOSED (the peer or the fabric is gone), CAIRN_ERR_NO_MEMORY. */
typedef void fabric_done_fn(void *arg, cairn_status status);

/* Called when the peer is gone (CAIRN_ERR_CLOSED) or could not be reached (CAIRN_ERR_UNREACHABLE): once per
 * peer, and not after fabric_peer_close. The peer's sends complete with an error, before or after this
 * call. The peer stays valid (every send returns CAIRN_ERR_CLOSED) until the owner closes the peer, which
 * this callback may do. The fabric does NOT notice a peer whose process is stopped: the application uses
 * leases and deadlines. The fabric does notice a peer that a silent network cuts off
 * (fabric_set_patience). */
typedef void fabric_down_fn(void *arg, struct fabric_peer *peer, cairn_status why);

/* Called when a message has arrived. `header` is valid only during this call: copy what is needed.
 * payload_bytes == 0: message is NULL and there is nothing to do.
 * payload_bytes  > 0: the receiver owns `message` and must, now or later, receive or drop the message.
 * Until then the message pins the sender's buffer (rendezvous) or some of our memory (small payloads): hold
 * few messages. If options.held_max messages are held or being received, the fabric refuses further
 * messages, without this callback. The fabric does not know who sent the message; the application puts the
 * sender into the header. */
typedef void fabric_message_fn(void *arg, const void *header, size_t header_bytes,
                               size_t payload_bytes, struct fabric_message *message);

/* Says whether peers over "ucx" read each other's regions by themselves (one-sided), instead of receiving
 * the regions' content in messages. Both ends must allow such reads; the ends agree on such reads anew for
 * each endpoint. */
enum one_sided {
    /* peers read one-sidedly if the endpoint's lanes can read natively (InfiniBand, RoCE), which TCP
     * cannot */
    CAIRN_ONE_SIDED_AUTO,
    /* always, for tests: over TCP UCX emulates the reads, which gains nothing. When an endpoint ends, UCX
     * 1.13 may crash the process whose memory is being read */
    CAIRN_ONE_SIDED_ON,
    CAIRN_ONE_SIDED_OFF,
};
const char *one_sided_name(enum one_sided value); /* "auto", "on", "off" */
/* True if the text is a range of ports, such as "7100-7199". */
bool port_range_ok(const char *text);
#define CAIRN_PORT_RANGE_ALLOWED \
    "allowed: first-last, of 1 to 65535, such as 7100-7199, or empty: any port"
bool one_sided_parse(const char *text, enum one_sided *out);

/* Says whether a card's memory is sent to peers over "ucx" directly, without a copy in host memory. Each
 * end chooses for the memory that it sends. */
enum device_memory {
    /* if UCX has CUDA and the network card can access the card's memory directly */
    CAIRN_DEVICE_MEMORY_AUTO,
    /* whenever UCX has CUDA, for tests: over TCP UCX copies the payload through host memory, in the owner's
     * thread, and gains nothing */
    CAIRN_DEVICE_MEMORY_DEVICE,
    CAIRN_DEVICE_MEMORY_HOST, /* never: the application copies the payload to host memory first */
};
/* "auto", "device", "host" */
bool device_memory_parse(const char *text, enum device_memory *out);
#define CAIRN_DEVICE_MEMORY_ALLOWED "auto or host is allowed, and device, for tests"

enum { CAIRN_FABRIC_NOTE_MAX = 64 }; /* bytes of a region's note */

/* A card's memory, as its owner offers it. Only `uuid` has been checked: any other field may be wrong. */
struct fabric_offer {
    const uint8_t *uuid; /* [CAIRN_FABRIC_UUID_BYTES]; memory of this card is imported here */
    uint64_t bytes;
    const void *note; /* [note_bytes] */
    size_t note_bytes;
};

/* Callbacks by which the fabric imports memory of cards that peers on this host show ("mapped" and "auto").
 * The fabric itself never dereferences an address of a card, and knows no driver. The struct is borrowed:
 * it must outlive the fabric and all mappings that the owner holds. All callbacks are called on the owner's
 * thread. */
struct fabric_device {
    uint8_t uuids[CAIRN_FABRIC_UUIDS_MAX][CAIRN_FABRIC_UUID_BYTES]; /* the cards */
    uint32_t uuid_count;
    /* network cards may read and write the memory of these cards (GPUDirect RDMA) */
    bool is_reached;
    /* the cards' driver exports their memory to the drivers of network cards as a dma-buf */
    bool has_dma_buf;
    void *context;
    /* Validates the descriptor, maps the memory, now or later, and consumes the descriptor in any case. If
     * the descriptor is wrong, `why` says in what way, and the connection that delivered the descriptor
     * ends. CAIRN_ERR_NO_MEMORY and CAIRN_ERR_IO instead say that this node lacks a resource: the memory is
     * not mapped, and the fabric tells its owner that this node imports no more. */
    cairn_status (*import)(void *context, const struct fabric_offer *offer, int fd,
                           void **address_out, struct sentence *why);
    void (*release)(void *context, void *address, uint64_t bytes);
    /* Returns once the bytes are in host memory. CAIRN_ERR_IO: the card has failed. */
    cairn_status (*copy)(void *context, void *to_host, const void *from_device, size_t bytes);
};

/* The fabrics by which "auto" reaches other hosts. The bits of fabric_options.ways. */
enum fabric_way {
    CAIRN_WAY_SEALED = 1, /* encrypted and authenticated: for any network */
    CAIRN_WAY_STREAM = 2, /* authenticated, then in clear: for a network that is trusted */
    /* neither: for a network that is trusted, and cards that "stream" cannot use */
    CAIRN_WAY_UCX = 4,
};
struct fabric_place;
/* Returns the ways by which a fabric with this place is reached; 0: it listens on no network. */
unsigned fabric_ways_of_place(const struct fabric_place *place);
/* True if the transports are UCX's, and more than TCP. NULL: false. */
bool fabric_transports_have_cards(const char *transports);

/* A field that is zero has its default. Strings are copied. */
struct fabric_options {
    fabric_message_fn *on_message; /* required */
    void *on_message_arg;
    size_t max_payload; /* bytes; larger payloads are refused on both sides. Default 1 MiB */
    uint32_t held_max;  /* messages held or being received at a time. Default 4096 */
    uint32_t sends_max; /* sends in flight at a time, to all peers. Default 4096 */

    /* "ucx" only; over UCX_TLS of the environment. Default "tcp"; never sysv or posix (README.md) */
    const char *transports;
    /* Default "lo"; a list such as "eth1" or "mlx5_0:1", for "auto" of networks, with ';' between them.
     * "ucx": over UCX_NET_DEVICES */
    const char *net_devices;
    /* "first-last", for firewall rules; for "stream" and "sealed" a range of one port does. "ucx": over
     * UCX_TCP_PORT_RANGE. Default: any free port */
    const char *port_range;
    enum one_sided one_sided;
    enum device_memory device_memory;
    /* Called when a region of a peer or of ours was refused, or when a peer's region is read by copies for
     * lack of address space; "mapped" and "auto" have this callback, too. `what` is a sentence for a log,
     * which says how the region is handled instead. May be NULL */
    void (*on_refused)(void *on_message_arg, const char *what);

    /* "stream" and "sealed": lets in only nodes to whose address the owner connects, or that it expects
     * (fabric_expect). Another node that knows our address waits, unread, for 5 s; and when the owner has
     * closed its last peer of a node that it does not expect, the node's connections end */
    bool is_strict;

    /* "stream" and "sealed": called with each TCP socket of the fabric, and again before the socket is closed
     * (is_open false), on the owner's thread: a child that this process forks has to close its copy, or the
     * others do not notice when this process is killed. May be NULL */
    void (*on_socket)(void *on_message_arg, int fd, bool is_open);

    /* "auto": some peers are reached over the network "lo", so "auto" listens on "lo", too */
    bool has_loopback;
    /* "auto": the ways to other hosts, bits of enum fabric_way. Default: CAIRN_WAY_SEALED */
    unsigned ways;

    /* The caller's own network, used for fabrics of the network's kind. NULL: none. Borrowed: the hub must
     * outlive the fabric */
    struct fabric_hub *hub;

    /* "mapped" and "auto" */
    /* the folder of our Unix socket. Default: the socket has no file, but a name in the abstract namespace;
     * README.md says why, and when to set a folder */
    const char *socket_folder;
    /* The name of this host; set this name if the default cannot tell hosts apart. Peers on another host
     * are not mapped. The default is the kernel's boot id; with an abstract socket the default includes the
     * network namespace, since such a socket is visible only inside that namespace */
    const char *host;
    /* The most bytes of one peer's memory that we map, and the most bytes of a region that we read
     * one-sidedly. Default 1 TiB of addresses */
    uint64_t mapped_max;
    /* Called when a peer has shown us a region, and when the peer has withdrawn the region; may be NULL */
    void (*on_mapping)(void *on_message_arg, struct fabric_mapping *mapping);
    void (*on_mapping_gone)(void *on_message_arg, struct fabric_mapping *mapping);
    const struct fabric_device *device; /* NULL: this fabric does not import the memory of cards */
};

/* kind is "sealed", "stream", "ucx", "mapped" (peers of this host only), "auto", or the kind of
 * options.hub. "auto" uses mapped for those peers of this host that mapped can reach, and options.ways for
 * all other peers. On "lo" alone, without host and has_loopback, there are no other peers, and "auto" opens
 * no port. CAIRN_ERR_INVALID: unknown kind or an option out of range. CAIRN_ERR_UNREACHABLE: there is no
 * such network device or port. CAIRN_ERR_NO_MEMORY. UCX changes the process that uses it; we keep UCX from
 * installing signal handlers. See README.md. */
CAIRN_MUST_CHECK cairn_status fabric_open(const char *kind, const struct fabric_options *options,
                                          struct fabric **fabric_out, struct sentence *why);

/* Closes every peer by force, drops every held message, runs every outstanding done callback with
 * CAIRN_ERR_CLOSED (then the buffers are free), and frees everything. Peers and messages are invalid after
 * this call. on_down is not called. Takes at most a second. NULL is allowed. If a peer must receive our
 * last message, wait for its confirmation before this call. */
void fabric_close(struct fabric *fabric);

/* Returns our address as bytes. Other nodes connect to this address; send the address over the
 * authenticated control channel. Borrowed, constant, at most CAIRN_FABRIC_ADDRESS_MAX bytes. */
const void *fabric_own_address(const struct fabric *fabric, size_t *bytes_out);

/* Returns the kind of the fabric that has this address, which says how the address's owner can be reached
 * ("auto": by mapped and by ucx). The text is static, and "" if the bytes are no address. No fabric need be
 * open. */
const char *fabric_address_kind(const void *address, size_t bytes);
/* Returns the kind, and what the address's owner can do besides, for people. "ucx, one-sided": the
 * address's owner may read and be read one-sidedly. "auto, device": the owner reads in place the memory of
 * cards that peers on its host show. */
const char *fabric_address_ways(const void *address, size_t bytes);
/* Writes the name of the host of an address's owner, ended by NUL. Nodes of one host map each other's
 * memory. Returns false if the address has no host (its kind is neither "mapped" nor "auto") or is invalid,
 * or if the name does not fit. */
bool fabric_address_host(const void *address, size_t bytes, char *out, size_t out_bytes);
/* True if the text is valid as the name of a host: 1 to 63 visible characters of ASCII. */
bool fabric_host_is_name(const char *host);

/* Makes a peer of a node's address; several peers of one address share its connections (not over mapped).
 * Does not wait for an answer: the first sends are queued. If no node listens, the call returns
 * CAIRN_ERR_UNREACHABLE, or on_down is called later: either may happen. The bytes are copied.
 * CAIRN_ERR_MALFORMED: the bytes are no address (wrong magic, length or checksum), or the address of
 * another kind of fabric. The checksum keeps damaged addresses from UCX, which aborts on them. The
 * checksum does not stop a liar: connect only to addresses that an authenticated member sent. If the
 * network drops packets to the node: on_down, with CAIRN_ERR_UNREACHABLE, after the patience
 * (fabric_set_patience); "ucx": the call returns CAIRN_ERR_UNREACHABLE after 100 ms, and the next attempt
 * returns the error at once, unless the node's answer has arrived in the meantime. */
CAIRN_MUST_CHECK cairn_status fabric_connect_to(struct fabric *fabric, const void *address,
                                                size_t bytes, fabric_down_fn *on_down, void *arg,
                                                struct fabric_peer **peer_out);

/* Lets in the node of this address even while it has no peer here, so that it may be the first to connect:
 * for a strict fabric (options.is_strict); others let everybody in who knows their address. Counted:
 * fabric_forget takes one fabric_expect back. With the last one, and without a peer, the node's connections
 * end. An address of no kind that this fabric serves has no effect. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status fabric_expect(struct fabric *fabric, const void *address,
                                            size_t bytes);
void fabric_forget(struct fabric *fabric, const void *address, size_t bytes);

/* Closes the peer. Sends in flight complete in a later progress, with CAIRN_OK or CAIRN_ERR_CLOSED, and
 * may or may not arrive; messages that the other side neither receives nor drops end with CAIRN_ERR_CLOSED
 * after half a second. On the other side, the peer that stands for us may go down (mem; "stream" and
 * "sealed", half a second after the last peer of the address) or stay up (UCX, whose connection lives as
 * long as both nodes): say goodbye in a message if this matters. If a send or a receive can be ended only
 * together with the connection, the connection ends, and all peers that share the connection get on_down.
 * NULL is allowed. */
void fabric_peer_close(struct fabric_peer *peer);

/* Sends header and payload. The header is copied; the payload is on loan until on_sent runs. For a large
 * payload, on_sent runs when the receiver receives or drops the message, however late that is. header_bytes
 * in [1, 256], payload_bytes in [0, max_payload]: else CAIRN_ERR_INVALID. CAIRN_ERR_CLOSED: the peer is
 * down. CAIRN_ERR_BUSY: sends_max sends are in flight. CAIRN_ERR_NO_MEMORY. CAIRN_ERR_UNSUPPORTED: the
 * payload is memory of a card that can be sent to this peer neither by reference nor directly. on_sent may
 * be NULL if payload_bytes is 0. */
CAIRN_MUST_CHECK cairn_status fabric_send(struct fabric_peer *peer, const void *header,
                                          size_t header_bytes, const void *payload,
                                          size_t payload_bytes, fabric_done_fn *on_sent, void *arg);

/* Receives a held message into buffer, which is on loan until on_received. The message is used up. If the
 * buffer lies in a card's region to which CAIRN_FABRIC_PATH_DIRECT applies, the network card writes the
 * buffer. For that, the network card must have access, and the payload must wait at the sender (it must not
 * be small); else CAIRN_ERR_UNSUPPORTED is returned, and the message is unchanged. Later work of the card
 * may have to wait until the card sees what the network card wrote (gpu/cuda/driver.h). CAIRN_ERR_INVALID:
 * capacity is smaller than the payload; the message is still held. The callback reports CAIRN_ERR_CLOSED if
 * the message's sender died in the meantime. */
CAIRN_MUST_CHECK cairn_status fabric_receive(struct fabric_message *message, void *buffer,
                                             size_t capacity, fabric_done_fn *on_received,
                                             void *arg);

/* Like fabric_receive, for a buffer that will not be read before the caches have evicted it: the fabric
 * writes the buffer around the caches where that is faster. *checksum_out is on loan, too; before
 * on_received reports CAIRN_OK, the fabric sets *checksum_out to chunk_checksum of the payload as it
 * arrived. */
CAIRN_MUST_CHECK cairn_status fabric_receive_far(struct fabric_message *message, void *buffer,
                                                 size_t capacity, uint64_t *checksum_out,
                                                 fabric_done_fn *on_received, void *arg);

/* Drops a held message; NULL: there is none. The sender's on_sent reports CAIRN_OK all the same: if the
 * sender must know, tell the sender in a message. */
void fabric_drop(struct fabric_message *message);

/* ---- memory that peers map, or read ----
 *
 * A payload that lies in a region is sent by reference to a peer that maps (fabric_peer_path): the receiver
 * reads the payload in place (fabric_message_view), and on_sent runs when the receiver has received or
 * dropped the message, which is called the message's release. Any other payload is copied once, or travels
 * inside the message.
 *
 * Over "ucx" such a payload is sent by reference to a peer that reads one-sidedly (options.one_sided): the
 * peer's receive reads the payload, and on_sent is again the release. The fabric does not wait for a peer
 * that is lost or closed: the peer may still be reading when the sender writes the memory again, so every
 * receiver compares what it read with a checksum in the header. No memory is registered to be written by
 * others.
 *
 * All other rules of this header hold; a fabric without references ("mem") ignores regions. */

/* The seals of a region's memfd, which the owner sets after mapping the memfd for writing. The memfd's size
 * stays, and peers cannot write. Nobody, not even the memfd's maker, can take a page out of it; a missing
 * page would raise SIGBUS in a reader. */
#define CAIRN_FABRIC_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

/* Registers shared memory. `fd`: a memfd of at least `bytes`, not of huge pages, sealed by
 * CAIRN_FABRIC_SEALS after it was mapped here at `base`. fd and memory are borrowed until
 * fabric_region_drop. Every page with bytes that are sent by reference must exist: otherwise a peer that
 * maps ends the connection. `note` describes the region, in words of the application, for the receiver's
 * on_mapping. CAIRN_ERR_INVALID: fd is not such a memfd, or some of these addresses belong to another
 * region. CAIRN_ERR_BUSY: 4092 regions exist. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status fabric_region_add(struct fabric *fabric, const void *base,
                                                size_t bytes, int fd, const void *note,
                                                size_t note_bytes,
                                                struct fabric_region **region_out);
/* Registers memory of a card: `base` is an address that no host code dereferences, and `fd` is a handle of
 * all of the memory, exported by the card's driver. The fabric keeps a duplicate of `fd` until
 * fabric_region_drop: an open handle keeps the memory allocated. `uuid` names the card that has the memory.
 * The fabric shows the region to peers on this host that import memory of that card (fabric_peer_imports),
 * and to no other peer. A payload in the region, whatever its size, is sent to these peers by reference. A
 * send to another peer takes CAIRN_FABRIC_PATH_DIRECT if possible, and otherwise returns
 * CAIRN_ERR_UNSUPPORTED: copy the payload to host memory first. All writes of the card to a payload must be
 * done before the payload is sent: nothing here orders the work of cards. Errors as above. */
CAIRN_MUST_CHECK cairn_status fabric_region_add_device(struct fabric *fabric, const void *base,
                                                       size_t bytes, int fd, const uint8_t *uuid,
                                                       const void *note, size_t note_bytes,
                                                       struct fabric_region **region_out);
/* True if the peer takes memory of that card by reference: the peer's address says so, and the peer has not
 * reported since then that it lacks the room or that the card has failed. When a peer reports this,
 * payloads in flight by reference may end the connection; over a later connection the peer is sent no such
 * payloads. */
bool fabric_peer_imports(const struct fabric_peer *peer, const uint8_t *uuid);
/* True if device memory that is sent to this peer takes the path CAIRN_FABRIC_PATH_DIRECT. */
bool fabric_peer_takes_device(const struct fabric_peer *peer);
/* True if memory of the cards of options.device is sent to peers over "ucx" without a copy in host memory.
 * *why_out says to people why, or why not, in a clause that the fabric owns. */
bool fabric_takes_device(const struct fabric *fabric, const char **why_out);
/* Shows the region to a peer before any payload in the region is sent, so that the peer gets on_mapping.
 * The call has no effect if the peer does not map, or does not import memory of that card.
 * CAIRN_ERR_CLOSED, CAIRN_ERR_BUSY, CAIRN_ERR_NO_MEMORY as in a send. */
CAIRN_MUST_CHECK cairn_status fabric_region_show(struct fabric_region *region,
                                                 struct fabric_peer *peer);
/* Ends the region: no more payloads in the region are sent by reference. Peers are told, and unmap the
 * region when they have released what they read. Payloads in flight stay readable for the peers, also after
 * this call. NULL is allowed. */
void fabric_region_drop(struct fabric_region *region);

/* Returns the address of the payload. Any thread may read the payload until the message is received or
 * dropped. NULL: the message has to be received. The payload is the sender's memory. Validate the payload
 * only after copying it, since a faulty sender may still change the payload. A page that the sender's host
 * cannot supply raises SIGBUS in the thread that reads (server/base/daemon.h). For path "device" the
 * result is an address of options.device: only the card can read it. */
const void *fabric_message_view(const struct fabric_message *message);

/* The fabric calls options.on_mapping when a peer has shown a region, and options.on_mapping_gone when the
 * peer has withdrawn the region or is gone, once for each mapping, in fabric_close at the latest. The
 * mapping is readable from on_mapping on. If the mapping is held, it stays readable after on_mapping_gone,
 * also after fabric_close. Owner's thread only. */
const void *fabric_mapping_memory(const struct fabric_mapping *mapping, size_t *bytes_out);
const void *fabric_mapping_note(const struct fabric_mapping *mapping, size_t *note_bytes_out);
/* Returns the UUID of the card that has this memory; NULL: host memory. For memory of a card,
 * fabric_mapping_memory returns an address that options.device gave. */
const uint8_t *fabric_mapping_uuid(const struct fabric_mapping *mapping);
/* Call this if options.device could not map the memory after all: the fabric acts as if the import had
 * failed. */
void fabric_mapping_refuse(struct fabric_mapping *mapping, const char *why);
void fabric_mapping_hold(struct fabric_mapping *mapping);
void fabric_mapping_release(struct fabric_mapping *mapping);

/* Sets for how long, from 1 s to 10 minutes, a node may acknowledge nothing that was sent to it; after this
 * time the fabric considers the node gone. Pass the lease after which the application gives the node up.
 * Over "ucx" the value holds for connections by TCP that are made from now on. Default 5 s. */
void fabric_set_patience(struct fabric *fabric, uint32_t ms);

/* With true, the next progress ends the connections that peers made, and withdraws everything that the
 * peers showed over these connections (on_mapping_gone). The fabric then accepts no new connection until
 * this is called with false. Our own connections stay, and so does our address. The peers see a lost
 * connection, and connect again by themselves. The call has no effect on a fabric that does not map. */
void fabric_hold_off(struct fabric *fabric, bool is_off);

/* True if data to or from the peer waits because this process lately had no memory or addresses to carry it;
 * the data goes on when there is some. Sends that report CAIRN_ERR_NO_MEMORY do not count. */
bool fabric_peer_is_starved(const struct fabric_peer *peer);

/* The path that messages to a peer take: "mapped", "sealed", "stream", "ucx", or the kind of a hub. The text
 * is static. */
const char *fabric_peer_path(const struct fabric_peer *peer);

/* The path of a card's memory that is sent over "ucx" directly. Only payloads of at least
 * CAIRN_FABRIC_DIRECT_MIN bytes take this path, since a processor would have to copy smaller payloads all
 * the same. */
#define CAIRN_FABRIC_PATH_DIRECT "ucx, device"
/* fabric_message_path returns the path that a message took, and fabric_payload_path the path that a payload
 * would take now. Both return a path of fabric_peer_path, "one-sided", or "device" (memory of a card, by
 * reference). For a payload the path may also be CAIRN_FABRIC_PATH_DIRECT, or "" if the payload cannot be
 * sent. The texts are static. */
const char *fabric_message_path(const struct fabric_message *message);
const char *fabric_payload_path(const struct fabric_peer *peer, const void *payload, size_t bytes);

/* Does all work that needs no waiting; returns how many things it did. */
unsigned fabric_progress(struct fabric *fabric);

/* To sleep, call progress until it returns 0, then arm. CAIRN_OK: event_fd becomes readable when there is
 * work; wait for that (level-triggered). CAIRN_ERR_BUSY: there is work already; call progress again. The
 * descriptor stays readable until the next successful arm. After a call of any other function, call
 * progress and arm again before sleeping. proto/loop/loop.h does all this in a libuv loop. */
CAIRN_MUST_CHECK cairn_status fabric_arm(struct fabric *fabric);
int fabric_event_fd(const struct fabric *fabric);

/* Counted since the fabric was opened. Bytes are bytes of payloads, without headers. */
struct fabric_stats {
    uint64_t messages_sent, bytes_sent; /* accepted by fabric_send */
    /* messages: given to on_message; bytes: of completed receives */
    uint64_t messages_received, bytes_received;
    uint64_t messages_dropped; /* by fabric_drop */
    uint64_t messages_refused; /* too large, or over held_max, or no header */
    uint64_t peers_down;       /* on_down called */
    /* mapped, stream, sealed: closed for invalid data, for silence, or to admit another stranger */
    uint64_t connections_refused;
    uint64_t endpoints_made; /* ucx, stream, sealed: links to nodes, which peers share */
    uint64_t references_sent,
        /* one-sided. references_sent: messages sent by reference; references_declined: messages among these
         * that the peer could not read, and that were sent again as a whole */
        references_declined;
    uint64_t bytes_read;              /* the part of bytes_received that was read one-sidedly */
    uint32_t sends_now, receives_now; /* in flight at this moment */
    /* held_now: messages not yet received or dropped; peers_now: peers not yet closed */
    uint32_t held_now, peers_now;
    uint32_t endpoints_now; /* ucx, stream, sealed: links at this moment */
};
void fabric_stats(const struct fabric *fabric, struct fabric_stats *stats_out);

/* One line for a log: kind, library version, transports, devices, ports, limits. Borrowed. */
const char *fabric_describe(const struct fabric *fabric);

/* ==== places ==== */

/* A place says where a fabric is in the network: its devices and their addresses. The place is part of the
 * fabric's address. People read the place, and nodes choose by it the device that leads to the fabric; no
 * node uses the place to connect.
 *
 * If no device is set for a worker, the worker uses the devices of its routes to the shards. UCX's devices
 * are fixed when a fabric is opened, so the worker first asks where the shards are (Welcome.places).
 * All these functions are thread-safe, and wait for nothing. */

enum {
    CAIRN_PLACE_BYTES = 192,        /* bytes of a place as text, its NUL included */
    CAIRN_PLACE_DEVICES_BYTES = 96, /* bytes of a list of devices, or of transports */
    CAIRN_NETWORKS_MAX = 4          /* networks of an auto fabric, with ';' between them */
};

/* A place, as text for example: "10.77.0.2 eth1 tcp". */
struct fabric_place {
    char ip[INET6_ADDRSTRLEN]; /* the IP of the first device that has one; "-": no device has one */
    char devices[CAIRN_PLACE_DEVICES_BYTES]; /* "mlx5_0:1,eth1", as they were set */
    /* UCX's transports, as they were set: "tcp", "rc,tcp" */
    char transports[CAIRN_PLACE_DEVICES_BYTES / 2];
};
/* The transports of a place whose fabric listens on no network: "127.0.0.1 lo mapped". */
#define CAIRN_PLACE_MAPPED "mapped"

/* Writes the place of a fabric on these devices of this host. Returns false if a name is too long. */
bool fabric_place_of(const char *devices, const char *transports, struct fabric_place *out);
void place_print(const struct fabric_place *place, char out[CAIRN_PLACE_BYTES]);
bool place_parse(const char *text, struct fabric_place *out);

/* Finds place number `index`, from 0, in a fabric's address. Returns false if the address has fewer places.
 * The transports of a sealed or stream fabric's place are "sealed" or "stream". */
bool fabric_address_place(const void *address, size_t bytes, int index, struct fabric_place *out);
/* Prints all places of an address, for people: "10.77.0.2 eth1 tcp; 10.78.0.2 eth2 tcp". */
void fabric_address_print_places(const void *address, size_t bytes, char out[CAIRN_PLACE_BYTES]);

/* Prints the IP of an address. Returns false if the address has no IP, or an IP that is valid only on its
 * own link. */
bool ip_print(const struct sockaddr *address, char out[INET6_ADDRSTRLEN]);
/* Parses an IP, and sets the port to that of "discard". Returns false if the text is no IP. */
bool ip_parse(const char *ip, struct sockaddr_storage *out, socklen_t *bytes_out);

/* True if `device` is in the list `devices`, such as "mlx5_0:1,eth1". */
bool devices_have(const char *devices, const char *device);

/* The route of the kernel's packets to an IP. */
struct route {
    char device[IF_NAMESIZE];
    char source[INET6_ADDRSTRLEN]; /* our IP; not always an address of the device */
};
/* Finds the route to an IP. Returns false if there is none. */
bool route_find(const char *ip, struct route *out);

/* The devices and transports that a fabric opens to reach all of these places. */
struct choice {
    char devices[CAIRN_PLACE_DEVICES_BYTES]; /* "" : no place has a route */
    const char *transports;                  /* the transports of a place; NULL: tcp */
};
/* Chooses the devices of the routes to the places: each device once, with ';' between them
 * (proto/fabric/auto.c), and only the first CAIRN_NETWORKS_MAX if there are more. If a place also accepts
 * InfiniBand or RoCE, chooses that place's transports, and puts this host's active ports in front of the
 * devices, all with ',' between them. `infiniband` is the folder /sys/class/infiniband. */
void fabric_choose(const struct fabric_place *places, size_t count, const char *infiniband,
                   struct choice *out);

#endif
