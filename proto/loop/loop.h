/* Code for libuv loops: addresses, and what opens a connection there (address.c), framed streams
 * (stream.c), and the fabric (fabric_poll.c). */
#ifndef CAIRN_LOOP_LOOP_H
#define CAIRN_LOOP_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <uv.h>

#include "proto/base/text.h"
#include "proto/fabric/fabric.h"
#include "proto/secure/secure.h"
#include "proto/wire/wire.h"

/* ==== address ==== */

/* An address says where a daemon listens: "host:port", "[v6 address]:port", or "/path" of a Unix socket.
 * This written form is used in configurations, on command lines and in messages. All functions are pure,
 * except _resolve and _find. */

struct addrinfo;

#define CAIRN_ADDRESS_TEXT_BYTES 272 /* "[" 255 "]:" 5 NUL, rounded up */
#define CAIRN_ADDRESS_PATH_BYTES \
    106 /* of a socket's path: the kernel's limit, less one byte for a second name in its folder */

struct stream_address {
    char host[256]; /* name or number, without brackets; the path if is_unix */
    uint16_t port;  /* 0, for a listener, means any free port */
    bool is_unix;
};

/* Reads the written form; "unix:/path" is another form of a path. CAIRN_ERR_INVALID: `why` quotes the
 * text. */
CAIRN_MUST_CHECK cairn_status address_parse(const char *text, struct stream_address *address_out,
                                            struct sentence *why);
/* Like address_parse, for the address of a listener: *:port means every IPv4 address of this host. */
CAIRN_MUST_CHECK cairn_status address_parse_listen(const char *text,
                                                   struct stream_address *address_out,
                                                   struct sentence *why);
/* Writes the written form of the address. */
void address_print(const struct stream_address *address, char text_out[CAIRN_ADDRESS_TEXT_BYTES]);

/* The addresses of several coordinators, of which one leads, and the others refuse to connect. A peer tries
 * one after the other. */
#define CAIRN_ENDPOINTS_MAX        8
#define CAIRN_ENDPOINTS_TEXT_BYTES 512
struct endpoints {
    struct stream_address list[CAIRN_ENDPOINTS_MAX];
    size_t count, tried; /* tried: how many tries there were */
};
/* Reads addresses to connect to, with commas between them and, maybe, blanks. CAIRN_ERR_INVALID. */
CAIRN_MUST_CHECK cairn_status endpoints_parse(const char *text, struct endpoints *endpoints_out,
                                              struct sentence *why);
/* Writes them, and leaves out those that have no room. */
void endpoints_print(const struct endpoints *endpoints, char text_out[CAIRN_ENDPOINTS_TEXT_BYTES]);
/* Returns the address to try now; after it, it is the next one's turn. */
const struct stream_address *endpoints_next(struct endpoints *endpoints);
/* True: since the last pause every address was tried, so another pause is due. */
bool endpoints_are_tried(const struct endpoints *endpoints);
/* Returns how long a try may take that alone would have timeout_ms: a host that is gone does not answer,
 * and the others must have their turn soon. */
uint64_t endpoints_patience_ms(const struct endpoints *endpoints, uint64_t timeout_ms);

/* The socket addresses of a host, in the order in which a peer tries them. */
#define CAIRN_SOCKET_ADDRESSES_MAX 8 /* more are left out */
struct socket_addresses {
    struct sockaddr_storage list[CAIRN_SOCKET_ADDRESSES_MAX];
    size_t count;
};

/* Finds the socket addresses of `address`; CAIRN_OK: at least one. The call waits for the name service: use
 * it at start-up only. CAIRN_ERR_UNREACHABLE. */
CAIRN_MUST_CHECK cairn_status address_resolve(const struct stream_address *address,
                                              struct socket_addresses *addresses_out,
                                              struct sentence *why);
/* Takes the addresses that the name service returned, in its order. If all of them are of loopback, as those
 * of "localhost" are, v4 addresses come first instead: a listener takes such a one (below), and any user of
 * the host might listen at the others. */
void address_take(const struct addrinfo *found, struct socket_addresses *addresses_out);
/* Returns the address on which a listener of that name listens: the first v4 address, else the first. */
const struct sockaddr_storage *address_to_listen(const struct socket_addresses *addresses);
socklen_t address_socket_bytes(const struct sockaddr_storage *addr);
/* Returns how long a peer waits for one of `count` addresses to answer, if others are left and there are
 * timeout_ms for all of them: short, since an address that drops packets never answers. */
uint64_t address_patience_ms(size_t count, uint64_t timeout_ms);

/* Writes the path of the coordinator's socket for the case that no address is configured: coordinator.sock
 * in the folder RUNTIME_DIR/cairn, which is the user's own. `runtime_dir` is XDG_RUNTIME_DIR of the
 * environment; if it is NULL or "", the folder is /run/cairn. */
void address_default(const char *runtime_dir, char text_out[CAIRN_ADDRESS_TEXT_BYTES]);
/* Finds the coordinator's socket for a peer: takes the path that address_default writes for `runtime_dir`,
 * unless only the socket in /run/cairn exists. Returns true if the path is the user's own. */
bool address_find(const char *runtime_dir, char text_out[CAIRN_ADDRESS_TEXT_BYTES]);

/* True for 127.0.0.0/8, also in v4-mapped form, and for ::1. */
bool address_is_loopback(const struct sockaddr_storage *addr);
/* True if a host as it is written, without a port, means loopback on every host: an IP address of loopback,
 * or "localhost". No name service is asked, so a name such as 127.example.org does not. */
bool address_names_loopback(const char *host);

/* Writes the written form of a TCP socket address. */
void address_print_socket(const struct sockaddr_storage *addr,
                          char text_out[CAIRN_ADDRESS_TEXT_BYTES]);

/* ==== entrance ==== */

/* A process gets into a cluster over TCP by a token of that cluster, and a key of its own. All zero is an
 * entrance without a key. */
struct entrance {
    bool is_needed; /* the address is one of TCP */
    bool has_key;
    struct token token;
    struct curve_key key; /* the caller's, with has_key; else entrance_find makes it */
};

/* Finds the token for `address`, by token_find; for a Unix socket none is needed. May be called again, to
 * look for a token that has been exchanged: the key stays. CAIRN_ERR_REFUSED: there is none, or its file may
 * be read by others; CAIRN_ERR_MALFORMED. On an error the entrance has its former token. Blocking. */
CAIRN_MUST_CHECK cairn_status entrance_find(struct entrance *entrance,
                                            const struct stream_address *address, const char *given,
                                            const char *fallback, struct sentence *why);
/* Returns what stream_options.secure must be: options_out, which borrows from the entrance, or NULL if none
 * is needed. */
const struct handshake_options *entrance_secure(const struct entrance *entrance,
                                                struct handshake_options *options_out);
void entrance_wipe(struct entrance *entrance);

/* ==== share ==== */

/* The time that the streams of one owner get together, if it is bounded because there are other owners: at
 * most CAIRN_STREAM_SHARE_US of each turn of the loop, so that the others' frames wait no longer for it, and
 * the CAIRN_STREAM_SHARE_OF-th part of all time, but for a burst of CAIRN_STREAM_BURST_MS; a loop that is
 * always busy is scheduled late. Streams that wait are served by turns: each once in a round. Pure. */

#define CAIRN_STREAM_SHARE_US 100
#define CAIRN_STREAM_SHARE_OF 3
#define CAIRN_STREAM_BURST_MS 50

/* Zeros at first. */
struct stream_share {
    bool is_bounded;
    uint64_t paid_ns;     /* on the clock of uv_hrtime: when all that was used is paid for */
    uint64_t used_ns;     /* in this turn */
    uint32_t turn, round; /* numbers */
    uint32_t served;      /* how many of the streams that waited were served in this turn */
};

/* A stream's claim to it. */
struct share_claim {
    struct stream_share *share; /* borrowed; NULL: none */
    uint32_t turn, round;       /* when the stream last asked, and was served */
};

void share_claim(struct share_claim *claim, struct stream_share *share);
/* A stream that has waited asks, once in a turn of the loop. True: it is served now. */
bool share_take(struct share_claim *claim);
/* Returns how much of this turn is left; 0: nothing. */
uint64_t share_left_ns(const struct stream_share *share);
/* Returns how long the share has to rest until it is paid for; 0: it is. */
uint64_t share_rest_ms(const struct stream_share *share, uint64_t now_ns);
/* The time from begin_ns to now_ns was used. */
void share_pay(struct stream_share *share, uint64_t begin_ns, uint64_t now_ns);

/* ==== stream ==== */

/* A framed connection over TCP or a Unix socket, on one libuv loop. Used by daemons, client and CLI.
 *
 * Everything here, callbacks too, runs on the loop's thread. A stream is a heap object that frees itself.
 * on_close is the last callback: it runs exactly once for every stream that connect or accept returned, and
 * never from inside another call of this header. When on_close returns, the pointer to the stream is dead.
 * stream_close only requests the end. stream_close may be called anywhere, any number of times; the first
 * reason wins.
 *
 * Writing to a peer that is gone raises SIGPIPE: the loop's thread must ignore it (daemons) or block
 * it (the client library, which may not touch its host's signal handlers).
 *
 * Memory is bounded: a stream has a receive buffer of at most one frame (4 KiB when idle), a send queue,
 * and one page of the data that is sent in pages; at most CAIRN_STREAM_PAGED_BYTES of such data wait. If a
 * peer does not read and its queue is full, the stream is closed with a reason, and the sender gets
 * CAIRN_ERR_BUSY. Streams send no heartbeats: members renew their leases themselves.
 *
 * A TCP stream begins with the handshake of proto/secure/secure.h, and everything after it is sealed. Before
 * the handshake is done, at most 4 KiB are held of a peer, and nothing of it is parsed as a frame. A peer
 * that does not know the secret is closed without a word.
 *
 * Work is bounded, too: a connection gets CAIRN_STREAM_TURN_MS of each turn of the loop for its frames, and
 * further frames wait for the next turn. So one peer's million questions delay no other peer. Streams of one
 * owner may have a share together (below). */

#define CAIRN_STREAM_SEND_QUEUE_BYTES (8u << 20) /* default bound of the send queue */
#define CAIRN_STREAM_PAGED_BYTES      (4 * CAIRN_PAGED_BYTES_MAX)
#define CAIRN_STREAM_TURN_MS          2

struct stream;

/* Bounds the receive buffers of several streams together. The owner of the streams owns the room, but does
 * no counting itself. */
struct stream_room {
    size_t used_bytes, max_bytes;
    /* Called when a read has made used_bytes exceed max_bytes: the owner closes any streams that it
     * chooses, even the stream that read. */
    void (*on_full)(void *context);
    void *context;
};

struct stream_options {
    struct frame_limits limits; /* the frames that the stream accepts at first; see stream_limit */
    size_t send_queue_bytes;    /* 0 = CAIRN_STREAM_SEND_QUEUE_BYTES */
    struct stream_room *room;   /* borrowed, as long as the stream lives; NULL: not counted */
    /* Copied. A TCP stream needs it for its handshake, and there is none without; NULL for a Unix socket,
     * whose peer the kernel knows. */
    const struct handshake_options *secure;
};

struct stream_events {
    /* The connection is established: after connect, and of an accepted TCP connection when its handshake is
     * done. May be NULL. */
    void (*on_open)(struct stream *stream, void *context);
    /* Called for each complete frame; the frame's payload is borrowed until on_frame returns. */
    void (*on_frame)(struct stream *stream, const struct wire_frame *frame, void *context);
    /* The stream has ended. CAIRN_OK: this side closed the stream with this status; CAIRN_ERR_CLOSED: the
     * peer closed it, or was cut off (`why` says which); CAIRN_ERR_PROTOCOL: garbage, a stranger, or a peer
     * that closed without a word before the handshake was done, since we are a stranger to it;
     * CAIRN_ERR_REFUSED, _VERSION: the handshake was refused; _UNREACHABLE, _TIMEOUT: connect failed; _BUSY:
     * the peer did not read. */
    void (*on_close)(struct stream *stream, cairn_status status, const char *why, void *context);
    /* The socket exists, and is about to be connected (only after connect, or inside that call). Called
     * again for each address that is tried, when the former socket is closed. May be NULL. */
    void (*on_dial)(struct stream *stream, void *context);
};

/* Begins to connect. CAIRN_OK: on_open or on_close follows; after timeout_ms, which the handshake is a part
 * of, on_close follows, with CAIRN_ERR_TIMEOUT. Names are resolved off the loop's thread, anew for each
 * connection; if a name has several addresses, the next is tried when one refuses or is silent. `events` is
 * copied. Frames may be sent at once: they wait for the connection. After any other status nothing has
 * happened, and no callback follows. */
CAIRN_MUST_CHECK cairn_status stream_connect(uv_loop_t *loop, const struct stream_address *address,
                                             uint64_t timeout_ms,
                                             const struct stream_options *options,
                                             const struct stream_events *events, void *context,
                                             struct stream **stream_out, struct sentence *why);

/* Accepts the next connection of a listening uv_tcp_t or uv_pipe_t, in its connection callback. */
CAIRN_MUST_CHECK cairn_status stream_accept(uv_stream_t *server,
                                            const struct stream_options *options,
                                            const struct stream_events *events, void *context,
                                            struct stream **stream_out, struct sentence *why);

/* Queues a frame; `message` belongs to the caller again at once. Frames of one stream arrive in order.
 * CAIRN_OK says only that the frame is queued. CAIRN_ERR_BUSY: the frame exceeds the queue's bound, so the
 * stream is being closed. CAIRN_ERR_CLOSED: the stream is closing. CAIRN_ERR_INVALID: the message is larger
 * than a frame may be. */
CAIRN_MUST_CHECK cairn_status stream_send(struct stream *stream, uint16_t type, uint32_t request,
                                          const ProtobufCMessage *message, struct sentence *why);
/* Like stream_send, with any bytes as payload: tests need this. */
CAIRN_MUST_CHECK cairn_status stream_send_bytes(struct stream *stream, uint16_t type,
                                                uint32_t request, const void *payload,
                                                size_t payload_bytes, struct sentence *why);

/* Queues packed bytes as Page frames of CAIRN_PAGE_BYTES. The bytes are held, not copied, and each page is
 * created when its turn comes: pages do not count toward the queue's bound, but frames behind them do.
 * Errors as in stream_send; CAIRN_ERR_BUSY: more than CAIRN_STREAM_PAGED_BYTES would wait. */
CAIRN_MUST_CHECK cairn_status stream_send_pages(struct stream *stream, uint32_t request,
                                                enum page_what what, struct packed *packed,
                                                struct sentence *why);

/* The stream has this share from the next frame on. Borrowed, as long as the stream lives. */
void stream_set_share(struct stream *stream, struct stream_share *share);

/* Changes the limits from the next frame on. */
void stream_limit(struct stream *stream, struct frame_limits limits);

/* Requests the end now; frames in the queue are lost, and a TCP peer hears that the end is meant if nothing
 * is being written. on_close runs later, with this reason. */
void stream_close(struct stream *stream, cairn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Like stream_close, but frames in the queue are sent first (for at most 2 s), to tell a peer why. on_frame
 * does not run any more. */
void stream_finish(struct stream *stream, cairn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Returns a name of the peer: "127.0.0.1:41234", "pid=123,uid=1000", or the path that the stream connected
 * to. The name is valid as long as the stream lives. */
const char *stream_peer(const struct stream *stream);
/* True if the peer is known to the kernel, or its first message proved that it knows a secret. */
bool stream_is_proved(const struct stream *stream);
/* Returns what the handshake of a TCP stream has proved about the peer; NULL: it is not done, or the stream
 * is one of a Unix socket. Borrowed, as long as the stream lives. */
const struct handshake_result *stream_session(const struct stream *stream);
/* Returns the stream's socket, which still belongs to the stream; -1 when the socket is closed. */
int stream_descriptor(const struct stream *stream);
/* Returns how many bytes of an incomplete frame have arrived, and in *since_ms_out when the frame began, by
 * the loop's clock; 0: no frame is incomplete. */
size_t stream_unfinished_bytes(const struct stream *stream, uint64_t *since_ms_out);
/* Returns how many bytes are queued and not yet given to the kernel, without pages whose turn has not
 * come. */
size_t stream_queued_bytes(const struct stream *stream);

/* ==== a fabric in a loop ==== */

/* Drives a fabric from a libuv loop: calls progress before each wait, and sleeps on the fabric's
 * descriptor.
 *
 * The struct is the caller's memory, one per fabric; loop thread only. `init` starts the polling, which
 * keeps the loop alive until fabric_poll_close (uv_unref is not used: a daemon that has a fabric has a
 * reason to live). While nothing arrives, the polling costs no CPU.
 *
 * The order of closing: fabric_poll_close, then (in or after its callback, or at once after the
 * call) fabric_close. */

struct fabric_poll {
    /* private */
    uv_prepare_t prepare;  /* before each wait: progress, then arm */
    uv_idle_t idle;        /* active means: do not wait, there is more work */
    uv_poll_t poll;        /* wakes the wait; the work is done in prepare */
    struct fabric *fabric; /* borrowed */
    uint64_t spin_ns;      /* 0: never spin */
    uint64_t spin_until_ns;
    int handles_open;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

/* spin_us: how long to poll after the last arrival before sleeping. Pass 0 (the default of all daemons)
 * unless each process has a core of its own. On a shared core a spin of any length costs a scheduler slice
 * per hop (measured 8 ms against 19 us). With cores to spare, 20 gives round trips of 12 us instead of 75
 * us. Returns CAIRN_ERR_NO_MEMORY or CAIRN_ERR_IO if libuv refuses. */
CAIRN_MUST_CHECK cairn_status fabric_poll_init(struct fabric_poll *poll, uv_loop_t *loop,
                                               struct fabric *fabric, uint32_t spin_us);

/* Stops at once: no fabric callback runs from the loop after this call. The memory belongs to the caller
 * again when on_closed runs, from the loop. on_closed may be NULL if the caller runs the loop until the
 * loop is empty. */
void fabric_poll_close(struct fabric_poll *poll, void (*on_closed)(void *arg), void *arg);

#endif
