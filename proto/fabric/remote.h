/* The inside of the fabrics "stream" and "sealed", shared by remote*.c and sealed.c. Private to proto/fabric.
 *
 *   remote.c       a node: who may in (the handshake), its clock, its life
 *   remote_ports.c where it listens, and its address
 *   remote_link.c  links: what the owner's thread knows of another node, its connections to it, and the
 *                  messages that are sent over them and come over them
 *   remote_io.c    one connection's bytes: what is written and read, and the threads that do it for "sealed"
 *   sealed.c       records: encrypted, authenticated, with keys that change
 *
 * A *link* stands for one other node, which its public key names. It has several TCP connections, which
 * either node may have made, and uses all of them in both directions: so a node behind a firewall reaches,
 * and is reached by, any node that it can connect to. All peers of one node share its link. When one
 * connection dies, the link ends, and its peers go down; the next connect makes a new link.
 *
 * A payload up to REMOTE_EAGER_MAX travels in the frame of its message. A larger one waits in the sender's
 * memory: ANNOUNCE says that it is there, TAKE asks for it, and its bytes (DATA) then go from the sender's
 * memory into the receiver's buffer on the connection on which TAKE came. So payloads arrive on each
 * connection in the order in which the receiver asked for them on it, and the reader of a connection knows
 * where each byte belongs without asking anybody (struct remote_landing). DROP gives a payload up. NONE
 * stands where DATA would, for a payload that the sender has no longer.
 *
 * Who owns what: everything belongs to the owner's thread, except for the fields of a connection that are
 * marked as the reader's or as shared. For "stream", the owner's thread reads and writes by itself. For
 * "sealed", a thread of struct remote_io does. Either way the same code runs, and the owner learns what
 * happened from the same lists (remote_conn_harvest). */
#ifndef CAIRN_FABRIC_REMOTE_H
#define CAIRN_FABRIC_REMOTE_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>

#include "proto/fabric/backend.h"
#include "proto/secure/secure.h"

struct checksum;

enum {
    REMOTE_ADDRESS_VERSION = 1,
    REMOTE_EAGER_MAX = 32 << 10, /* bytes of the largest payload that travels with its header */
    /* bytes of a DATA frame: what else waits on the connection is written between two of them */
    REMOTE_SEGMENT = 256 << 10,
    REMOTE_RECORD = 64 << 10, /* of plain bytes in a record */
    REMOTE_LANES = 2,         /* connections for data that a node makes to another */
    REMOTE_CONNS_MAX = 4 * (REMOTE_LANES + 1), /* of a link, whoever made them */
    REMOTE_IPS_MAX = 2 * CAIRN_NETWORKS_MAX,   /* addresses of a node */
    /* connections that have not proved anything yet; one more ends the oldest */
    REMOTE_STRANGERS_MAX = 64,
    REMOTE_STRANGER_MS = 5000,
    REMOTE_WAITING_MAX = 64, /* connections of nodes that the owner has not named yet (strict) */
    REMOTE_REPLIES_MAX =
        1024, /* answers that a node may leave unread before we stop reading from it */
    REMOTE_ARRIVED_MAX = 1 << 20, /* bytes of frames that wait for the owner's thread */
    /* about what the owner's thread moves before it has to return; a frame costs as much as so many bytes */
    REMOTE_TURN_BYTES = 16 << 20,
    REMOTE_CHUNK_COST = 4 << 10,
    REMOTE_SPARE_MAX = 4096, /* items that are kept for the next use */
    REMOTE_THREADS_MAX = 4,
    REMOTE_NAME_BYTES = 16, /* of a device's name, with NUL */
};

/* ==== frames ==== */

enum remote_kind {
    REMOTE_MESSAGE = 1, /* header and payload follow */
    REMOTE_ANNOUNCE,    /* header follows; the payload waits under `serial` */
    REMOTE_TAKE,        /* send the payload of `serial` here */
    REMOTE_DROP,        /* the payload of `serial` is not wanted */
    REMOTE_DATA,  /* payload_bytes of the oldest payload asked for on this connection follow */
    REMOTE_NONE,  /* the oldest payload asked for on this connection does not exist any more */
    REMOTE_CLOSE, /* nothing follows */
};

/* The head of a frame. Little endian. In a record of "sealed", DATA has no head. */
struct remote_frame {
    uint8_t kind, zero;
    uint16_t header_bytes;
    uint32_t payload_bytes;
    uint64_t serial;
    uint32_t zeros;
    uint32_t check; /* of the fields above and the header, against accidents */
};
static_assert(sizeof(struct remote_frame) == 24, "wire format");

uint32_t remote_frame_check(const struct remote_frame *frame, const void *header);
/* How many bytes of `bytes` the frame at the start takes, without the bytes of DATA; 0: it is not complete
 * yet; -1: it breaks the rules. */
long remote_frame_judge(const uint8_t *bytes, size_t count);
/* The bytes of a frame that was judged, with all that comes with it in the same buffer. */
static inline size_t remote_frame_bytes(const struct remote_frame *frame)
{
    return sizeof *frame + frame->header_bytes +
           (frame->kind == REMOTE_MESSAGE ? frame->payload_bytes : 0);
}

/* Both ends say this right after the handshake, with a MAC under the handshake's keys. */
struct remote_hello {
    char magic[8];
    uint32_t version, flags; /* enum remote_flag */
    uint64_t incarnation; /* of the sender's link: another one means that the former link is gone */
    uint64_t zero;
    uint8_t mac[16];
};
static_assert(sizeof(struct remote_hello) == 48, "wire format");

enum remote_flag {
    REMOTE_HAS_AES = 1, /* this processor has instructions for AES-GCM */
    REMOTE_IS_PULSE =
        2, /* this connection carries no data: it shows that the node's kernel answers */
};

/* ==== what a connection has to write and to read ==== */

/* Frames or a payload that wait to be written, or that are being written. */
struct remote_item {
    TAILQ_ENTRY(remote_item) entry;
    struct fabric_op *op;   /* done when this is written; NULL: nobody waits */
    const uint8_t *payload; /* MESSAGE and DATA */
    size_t payload_bytes, payload_done;
    enum remote_kind kind;
    bool is_begun;       /* the reader's thread may be reading the payload */
    bool is_spared;      /* the owner wanted it back once, and has waited since */
    uint32_t head_bytes; /* of head: frame and header; 0: DATA */
    union {
        struct remote_frame frame;
        uint8_t head[sizeof(struct remote_frame) + CAIRN_FABRIC_HEADER_MAX];
    };
};
TAILQ_HEAD(remote_items, remote_item);

/* A payload that was asked for on a connection. */
struct remote_landing {
    TAILQ_ENTRY(remote_landing) entry;
    struct fabric_op *op;
    uint8_t *buffer;
    size_t bytes, got;
    bool wants_sum;
    uint64_t sum;
    bool is_whole; /* false once it is over: the sender had it no longer */
};
TAILQ_HEAD(remote_landings, remote_landing);

/* Whole frames that the reader's thread has for the owner's. */
struct remote_chunk {
    TAILQ_ENTRY(remote_chunk) entry;
    size_t bytes;
    uint8_t data[];
};
TAILQ_HEAD(remote_chunks, remote_chunk);

/* Bytes on the way, borrowed from the stock of a struct remote_io while they are. */
enum { REMOTE_BUFFER_BYTES = 2 * (REMOTE_RECORD + 64) };
struct remote_buffer {
    struct remote_buffer *next;
    size_t start, end;
    uint8_t bytes[REMOTE_BUFFER_BYTES];
};

struct remote_conn;
TAILQ_HEAD(remote_conns, remote_conn);

/* Who reads and writes connections: the owner's thread (is_thread false), or a thread of its own. */
struct remote_io {
    struct remote_fabric *fabric;
    bool is_thread;
    pthread_t thread;
    int epoll, kick_fd;
    pthread_mutex_t lock;
    struct remote_conns kicked; /* under the lock: connections with something new for the thread */
    bool is_over;               /* under the lock */
    /* the thread's own */
    struct remote_buffer *stock;
    uint32_t stock_count;
    bool is_starved; /* there was no memory for a buffer in this turn */
    uint8_t scratch[REMOTE_RECORD + 64];
};

/* ---- sealed.c ---- */

/* One direction of a sealed connection. */
struct sealed_way {
    void *cipher; /* EVP_CIPHER_CTX */
    uint8_t root[32];
    uint64_t count;    /* records under this key: the nonce */
    uint64_t bytes;    /* under this key */
    uint64_t since_ms; /* of this key */
};

struct sealed {
    struct sealed_way out, in;
};

enum sealed_kind { SEALED_FRAMES = 1, SEALED_DATA, SEALED_NONE, SEALED_REKEY, SEALED_CLOSE };

/* The head of a record; it is authenticated with the record. */
struct sealed_head {
    uint32_t bytes; /* of what is sealed */
    uint8_t kind;   /* enum sealed_kind */
    uint8_t zeros[3];
};
enum { SEALED_TAG = 16, SEALED_EXTRA = sizeof(struct sealed_head) + SEALED_TAG };

bool sealed_has_aes(void);
/* Seals and opens a record by each cipher. libcrypto prepares much at its first use; if there is no memory
 * for that, libcrypto is of no use any more, and may get a signal. So it is done before the process holds
 * anything. False: no memory. */
bool sealed_prepare(void);
/* Takes the handshake's keys. After a failure only sealed_end may follow. */
CAIRN_MUST_CHECK cairn_status sealed_begin(struct sealed *sealed, bool is_aes,
                                           const struct handshake_result *result);
void sealed_end(struct sealed *sealed); /* wipes */
/* Writes a record of `bytes` plain bytes to out[bytes + SEALED_EXTRA]. `plain` may be out + sizeof head. */
bool sealed_put(struct sealed *sealed, enum sealed_kind kind, const uint8_t *plain, size_t bytes,
                uint8_t *out);
/* True if a record REKEY has to be written before the next record. */
bool sealed_is_due(const struct sealed *sealed, uint64_t now_ms);
/* Judges the head of a record before any of it is believed: the lengths only. */
bool sealed_judge(const struct sealed_head *head);
/* Opens the record behind `head`, and writes its plain bytes to plain[head->bytes]. False: it is forged. */
bool sealed_take(struct sealed *sealed, const struct sealed_head *head, const uint8_t *record,
                 uint8_t *plain);

/* ==== connections ==== */

enum remote_state {
    REMOTE_DIALS,  /* connect() has not ended */
    REMOTE_GREETS, /* the handshake goes on */
    REMOTE_WAITS,  /* authenticated, but the owner has not named this node yet */
    REMOTE_HELLOS, /* the handshake is over; the other end's hello has not come */
    REMOTE_IS_UP,
    REMOTE_LEAVES, /* the link is lost; the reader's thread is to let go */
    REMOTE_ENDED,  /* no socket any more */
};

enum { REMOTE_IOVS = 64, REMOTE_HEADS = 8 };

/* The bytes for one call of sendmsg, until they are written. */
struct remote_batch {
    struct iovec parts[REMOTE_IOVS];
    uint32_t first, count;
    uint32_t head_count;
    struct remote_frame heads[REMOTE_HEADS]; /* of DATA */
};

/* A connection before it is up; the owner's. */
struct remote_greeting {
    struct handshake *handshake;
    struct handshake_result *result; /* from the handshake's end until the connection is up */
    struct remote_hello hello;       /* [hello_bytes] of it have come */
    size_t hello_bytes;
};

/* The items that a connection has to write; shared. */
struct remote_writes {
    struct remote_items urgent; /* everything but payloads that were asked for */
    struct remote_items bulk;   /* DATA, NONE */
    struct remote_items wire;   /* wholly in the batch, or in the buffer that goes out */
    struct remote_items written;
    atomic_size_t queued_bytes; /* in urgent and bulk */
    atomic_uint reply_count;    /* TAKE, DROP and NONE in the queues */
};

/* The payloads that it awaits, and what has come; shared. */
struct remote_reads {
    struct remote_landings landings, landed;
    struct remote_chunks arrived;
    size_t arrived_bytes;
};

/* The reason of its end; shared. */
struct remote_end {
    bool is_broken;    /* the socket is of no use */
    bool is_cut;       /* the stream ended, and the other end had not said CLOSE */
    const char *fault; /* the rule that the other end broke; static */
};

/* Bytes between the socket and the lists; of whoever reads and writes. */
struct remote_moving {
    struct remote_batch *batch;
    struct remote_buffer *in, *out;
    struct sealed *sealed;
    size_t segment_left; /* bytes of DATA that are to come */
    struct checksum *sum;
    uint32_t io_events;
    bool is_io_watched;
};

struct remote_conn {
    /* the owner's */
    TAILQ_ENTRY(remote_conn) entry; /* fabric->strangers, or link->conns */
    TAILQ_ENTRY(remote_conn) dirty; /* fabric->dirty, if is_dirty */
    TAILQ_ENTRY(remote_conn) kicked;
    struct remote_conn *next_ended;
    struct remote_fabric *fabric;
    struct remote_link *link; /* NULL: a stranger */
    struct remote_io *io;
    int fd;
    enum remote_state state;
    bool is_dialed, is_pulse, is_dirty, is_stranger;
    uint64_t since_ms;
    struct sockaddr_storage to; /* is_dialed */
    struct remote_greeting greeting;
    /* acknowledged at the last look, and since when nothing more was, though something is under way */
    uint64_t acked_bytes, unacked_since_ms;
    size_t landing_bytes; /* asked for, and not here yet */
    uint32_t watched;     /* events, if the owner's epoll has the socket */
    bool is_watched;

    /* shared, under the lock */
    pthread_mutex_t lock;
    struct remote_writes writes;
    struct remote_reads reads;
    struct remote_end end;
    bool is_news;    /* in fabric->news; under the fabric's lock */
    bool is_kicked;  /* in io->kicked */
    bool is_let_go;  /* the thread has let go of the connection; under the fabric's lock */
    bool is_leaving; /* the thread is to let go; under the io's lock */
    bool is_paused;  /* the thread is not to read: the owner has too many answers to write */
    TAILQ_ENTRY(remote_conn) news;

    struct remote_moving moving;
};

/* ==== links ==== */

struct remote_ip {
    uint8_t family; /* 4 or 6 */
    uint8_t zero;
    uint16_t port; /* of the host's order */
    uint8_t ip[16];
};
static_assert(sizeof(struct remote_ip) == 20, "wire format");

/* An address: this, and `count` of struct remote_ip, and the places. */
struct remote_address {
    uint8_t version, count;
    uint8_t zeros[6];
    uint8_t key[CAIRN_CURVE_BYTES];
    uint8_t secret[CAIRN_PSK_BYTES];
};
static_assert(sizeof(struct remote_address) == 72, "wire format");

struct remote_link {
    LIST_ENTRY(remote_link) entry;
    struct remote_fabric *fabric;
    uint8_t key[CAIRN_CURVE_BYTES];
    uint64_t incarnation, theirs; /* theirs 0: not heard yet */
    LIST_HEAD(, remote_peer) peers;
    struct remote_conns conns;
    uint32_t conn_count, up_count; /* up_count: that carry data and are up */
    uint32_t pulse_count;
    bool is_lost;
    struct sockaddr_storage top_to; /* where we dial the other connections; no family: not we do */
    uint64_t top_ms;                /* when to dial those that are missing */
    uint32_t top_delay_ms;
    bool is_paused; /* nothing is read: too many answers wait */
    uint32_t held;  /* messages that refer to this link */
    struct fabric_flights flights;
    struct remote_items waiting; /* for the first connection that is up */
    uint64_t linger_ms;          /* when a link without peers ends; 0: it has peers */
    /* to dial */
    struct remote_address address;
    struct remote_ip ips[REMOTE_IPS_MAX];
    uint32_t ip_count, ip_next, refused_count;
    uint64_t since_ms;
    uint64_t dial_ms, limit_ms; /* when to dial next, and when to give up; 0: neither */
    char name[64];              /* for the log: where it is */
};

/* A node that a strict fabric lets in though it has no peer. */
struct remote_expected {
    LIST_ENTRY(remote_expected) entry;
    uint8_t key[CAIRN_CURVE_BYTES];
    uint32_t count;
};

struct remote_peer {
    struct fabric_peer common;
    LIST_ENTRY(remote_peer) of_link;
    struct remote_link *link;
};

struct remote_message {
    struct fabric_message common;
    struct remote_link *link; /* NULL: the payload is here */
    uint8_t *copy;            /* owned; NULL: the payload waits at the sender */
    uint64_t serial;
};

struct remote_listener {
    int fd;
    char device[REMOTE_NAME_BYTES];
    struct remote_ip ip;
};

struct remote_fabric {
    struct fabric common;
    bool is_sealed, is_strict;
    struct curve_key key;
    uint8_t secret[CAIRN_PSK_BYTES], key_id[CAIRN_PSK_ID_BYTES];
    struct handshake_answered answered;
    struct remote_listener listeners[REMOTE_IPS_MAX];
    uint32_t listener_count;
    bool is_deaf; /* the listeners are not watched: no descriptors are left */
    int timer_fd, news_fd;
    uint32_t tick_ms; /* of the timer; 0: off */
    uint32_t patience_ms;
    LIST_HEAD(, remote_link) links;
    LIST_HEAD(, remote_expected) expected;
    struct remote_conns strangers; /* the oldest first; with those that wait to be named */
    uint32_t stranger_count, waiting_count;
    uint64_t cut_said_ms;      /* when a link was last said to be cut off */
    size_t turn_bytes;         /* read, written and taken in this turn of the owner's thread */
    uint32_t handshakes_left;  /* that strangers may go on with in this turn */
    struct remote_conns dirty; /* with something to write */
    struct remote_conn *ended;
    struct remote_items spare;
    uint32_t spare_count;
    struct remote_io own; /* the owner's thread */
    struct remote_io *threads[REMOTE_THREADS_MAX];
    uint32_t thread_count, thread_next;
    pthread_mutex_t lock; /* of news */
    TAILQ_HEAD(, remote_conn) news;
    /* when a connection last had no memory to go on, on the monotonic clock; 0: never. Any thread */
    _Atomic uint64_t starved_ms;
};

static inline struct remote_fabric *remote_of(struct fabric *fabric)
{
    return (struct remote_fabric *)fabric;
}

static inline struct remote_peer *remote_peer_of(struct fabric_peer *peer)
{
    return (struct remote_peer *)peer;
}

/* The bytes of an address of IPv4 or IPv6. */
static inline socklen_t remote_to_bytes(const struct sockaddr_storage *to)
{
    return to->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

/* True for an answer, which a node that does not read makes us keep. */
static inline bool remote_is_reply(const struct remote_item *item)
{
    return item->kind == REMOTE_TAKE || item->kind == REMOTE_DROP || item->kind == REMOTE_NONE;
}

/* True for a connection that is up, and that messages go over. */
static inline bool remote_carries(const struct remote_conn *conn)
{
    return conn->state == REMOTE_IS_UP && !conn->is_pulse;
}

/* True if the owner's thread has done enough for one turn: what is left waits for the next. */
static inline bool remote_is_turn_over(const struct remote_fabric *fabric)
{
    return fabric->turn_bytes >= REMOTE_TURN_BYTES;
}

/* ---- remote.c ---- */

void remote_watch(struct remote_conn *conn, uint32_t events);
void remote_unwatch(struct remote_conn *conn);
/* Closes the socket, ends what the connection had to do, and frees it at the end of a progress: of this one,
 * or of the one after its thread has let go of it. */
void remote_conn_end(struct remote_conn *conn);
/* Tells the owner that there is a socket, or that it is about to be closed. */
void remote_note_socket(const struct remote_fabric *fabric, int fd, bool is_open);
/* Begins a connection to the node of a link. False: it could not even begin. */
bool remote_dial(struct remote_link *link, const struct sockaddr_storage *to, bool is_pulse);
/* The node of that key, if it is expected. */
struct remote_expected *remote_expected_find(const struct remote_fabric *fabric,
                                             const uint8_t *key);
/* Lets in the connections of a node that the owner has named now. */
void remote_admit(struct remote_fabric *fabric, const uint8_t *key);
/* Starts the clock, or makes it faster. */
void remote_tick_soon(struct remote_fabric *fabric);

/* ---- remote_ports.c ---- */

/* Listens on the devices of the options. */
cairn_status remote_listen(struct remote_fabric *fabric, const struct fabric_options *options,
                           struct sentence *why);
/* Makes the address, when the node listens. */
cairn_status remote_publish(struct remote_fabric *fabric);
void remote_describe(struct remote_fabric *fabric);
void remote_ip_to(const struct remote_ip *ip, struct sockaddr_storage *out);
void remote_ip_print(const struct remote_ip *ip, char out[INET6_ADDRSTRLEN]);

/* ---- remote_link.c ---- */

struct remote_link *remote_link_find(struct remote_fabric *fabric, const uint8_t *key);
/* NULL: out of memory. */
struct remote_link *remote_link_open(struct remote_fabric *fabric, const uint8_t *key);
void remote_link_lose(struct remote_link *link, cairn_status why);
/* A connection of this link is up. */
void remote_link_on_up(struct remote_conn *conn);
/* An attempt to connect has failed. */
void remote_link_on_failed(struct remote_link *link, bool is_refused);
/* Something came on a connection that carries no data: its end, or what nobody may send. */
void remote_link_on_pulse(struct remote_conn *conn);
/* Returns true if the clock has to go on fast. */
bool remote_link_tick(struct remote_link *link, uint64_t now_ms);
void remote_link_close(struct remote_link *link); /* frees, at the end */
/* Frees links that nobody refers to. */
void remote_links_sweep(struct remote_fabric *fabric);

cairn_status remote_expect(struct fabric *fabric, const void *address, size_t bytes,
                           bool is_expected);
cairn_status remote_connect(struct fabric_peer *peer, const void *address, size_t bytes);
void remote_disconnect(struct fabric_peer *peer);

cairn_status remote_send(struct fabric_peer *peer, struct fabric_op *op, const void *payload);
void remote_receive(struct fabric_message *message, struct fabric_op *op, void *buffer);
void remote_drop(struct fabric_message *message);
/* Ends sends whose time has come. Returns true if the clock has to go on fast. */
bool remote_ops_tick(struct remote_fabric *fabric, uint64_t now_ms);
/* Takes what the reader left: frames, written items, landed payloads. Returns how many things. */
unsigned remote_conn_harvest(struct remote_conn *conn);
/* Handles whole frames. False: they break the rules (conn->fault). */
bool remote_on_frames(struct remote_conn *conn, const uint8_t *bytes, size_t count);
/* Ends the ops of everything that the connection still had to do. */
void remote_conn_return(struct remote_conn *conn);

/* ---- remote_io.c ---- */

cairn_status remote_io_init(struct remote_io *io, struct remote_fabric *fabric, bool is_thread);
/* Tells the thread to end. Before remote_io_join. */
void remote_io_finish(struct remote_io *io);
/* Ends the thread: from then on the io is the caller's own. */
void remote_io_join(struct remote_io *io);
void remote_io_release(struct remote_io *io);
/* The threads get connections in turn; the owner's own for "stream". NULL: none can be started. */
struct remote_io *remote_io_choose(struct remote_fabric *fabric);
/* Hands a connection that is up to its io. */
void remote_io_adopt(struct remote_conn *conn);
/* Tells the thread that there is something new. Not for a connection of the owner's own io. */
void remote_io_kick(struct remote_conn *conn);
/* Takes the connection from its thread. True: it is over; false: a thread says so later, as news. The owner's
 * own connections, and those of a thread that has ended, are let go of at once. */
bool remote_io_let_go(struct remote_conn *conn);
/* The owner's own io: what epoll reported. Returns how many things it did. */
unsigned remote_io_serve(struct remote_conn *conn, uint32_t events);
/* Connections that threads report; NULL: none is left. *is_let_go_out: the thread will not touch it again. */
struct remote_conn *remote_io_next_news(struct remote_fabric *fabric, bool *is_let_go_out);

#endif
