/* A daemon's control sockets: accepts peers, and keeps strangers from costing anything.
 *
 * It listens on Unix sockets (mode 0660: its user and its group come in), TCP, or both; where the
 * configuration names none, on the socket at which peers of this host look (address_default).
 *
 * A peer is half open until the daemon admits it (it said a valid Hello): it may send only frames
 * of type hello_type of at most 16 KiB, and has hello_timeout_ms for it. At most half_open_max such
 * peers exist; when all places are taken, the oldest gives way once it has had 100 ms, and newer
 * connections wait in the kernel until then, so that a flood of silent connections delays a good
 * peer but never shuts it out. The first bad byte closes a connection. Above connections_max new
 * ones are closed at once. Frames that have begun and are not whole have 256 MiB together: beyond that the
 * connection is closed whose frame began first. Refusals are logged, at most one line per kind per second.
 *
 * Peers over TCP are not authenticated in this version, so the listener refuses any address but
 * loopback unless insecure_network is set, and then warns at each start. Loop thread only. */
#ifndef CAIRN_BASE_LISTENER_H
#define CAIRN_BASE_LISTENER_H

#include <sys/types.h>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/loop/loop.h"
#include "server/base/daemon.h"

/* ==== control socket ==== */

/* The Unix socket that a daemon listens on.
 *
 * It is never there half made, or open to more than its mode says: bound beside its place, given mode 0660,
 * listening, and then renamed. One of a dead daemon is replaced; one that somebody listens on, or that is no
 * socket, is left and refused. The folder is locked meanwhile, so of two that start at once the second finds
 * the first. Blocks for at most a second; at a daemon's start only. */

struct control_socket {
    int fd; /* the caller's */
    /* what was made at the path: nothing else has these numbers while fd is open */
    dev_t device;
    ino_t inode;
};

/* `path`: one that address_parse took. The folder must exist. CAIRN_ERR_BUSY: somebody listens there.
 * CAIRN_ERR_CONFIG: it cannot be made there. */
CAIRN_MUST_CHECK cairn_status control_socket_open(const char *path, int backlog,
                                                  struct control_socket *socket_out,
                                                  struct sentence *why);

/* ==== guard ==== */

/* Reading shared memory that another process made: a page that its host cannot supply (out of
 * memory, a limit of its control group) is a SIGBUS in the thread that reads, and must not end the
 * daemon.
 *
 * Any thread; a thread that runs guarded code must not block SIGBUS. Guarded code is left at the
 * instruction that failed, so it must take no locks and allocate nothing; whatever it was
 * writing is undefined afterwards. */

/* Installs the handler of SIGBUS for the process, once; a SIGBUS outside of guarded code ends the process
 * as before. CAIRN_ERR_INTERNAL: the system refused. */
CAIRN_MUST_CHECK cairn_status guard_install(void);

/* Runs run(arg). NULL: it came to its end. Else it met a SIGBUS at the address that is returned. */
CAIRN_MUST_CHECK const void *guard_run(void (*run)(void *arg), void *arg);

/* ==== listener ==== */

#define CAIRN_LISTEN_MAX 8 /* addresses */

struct listener;
struct peer;

/* From the configuration. The strings are the configuration's. */
struct listener_options {
    char *listen; /* addresses, blanks between; port 0 = any free one; "": the default socket */
    bool insecure_network;
    int64_t connections_max;
    int64_t half_open_max;
    int64_t hello_timeout_ms;
    int64_t send_queue_bytes;
};

/* The rows of a daemon's option table for the member `member` (a struct listener_options) of
 * its `struct_type`. */
#define CAIRN_LISTENER_CONFIG(struct_type, member)                                           \
    { "network",                                                                             \
      "listen",                                                                              \
      CAIRN_OPTION_ADDRESSES,                                                                \
      offsetof(struct_type, member.listen),                                                  \
      "",                                                                                    \
      0,                                                                                     \
      0,                                                                                     \
      "Control addresses: the /path of a socket (mode 0660), or host:port, which each user " \
      "of the host can reach (port 0: any free one; *: every IPv4 address). Empty: "         \
      "cairn/coordinator.sock in $XDG_RUNTIME_DIR, else in /run." },                         \
        { "network",                                                                         \
          "insecure_network",                                                                \
          CAIRN_OPTION_BOOL,                                                                 \
          offsetof(struct_type, member.insecure_network),                                    \
          "no",                                                                              \
          0,                                                                                 \
          0,                                                                                 \
          "Allow an address that is not loopback. Peers are not authenticated yet: whoever " \
          "reaches "                                                                         \
          "the port can use it." },                                                          \
        { "network",                                                                         \
          "connections_max",                                                                 \
          CAIRN_OPTION_INT,                                                                  \
          offsetof(struct_type, member.connections_max),                                     \
          "4096",                                                                            \
          1,                                                                                 \
          65536,                                                                             \
          "Connections at once; more are closed at once." },                                 \
        { "network",                                                                         \
          "half_open_max",                                                                   \
          CAIRN_OPTION_INT,                                                                  \
          offsetof(struct_type, member.half_open_max),                                       \
          "64",                                                                              \
          1,                                                                                 \
          4096,                                                                              \
          "Connections at once that have not said Hello." },                                 \
        { "network",                                                                         \
          "hello_timeout",                                                                   \
          CAIRN_OPTION_DURATION,                                                             \
          offsetof(struct_type, member.hello_timeout_ms),                                    \
          "5s",                                                                              \
          10,                                                                                \
          60000,                                                                             \
          "How long a connection may take to say Hello." },                                  \
    {                                                                                        \
        "network", "send_queue", CAIRN_OPTION_BYTES,                                         \
            offsetof(struct_type, member.send_queue_bytes), "8MiB", 1 << 20, 1 << 30,        \
            "Bytes waiting for a peer that does not read before it is closed."               \
    }

struct listener_events {
    /* A frame has come. If the peer is half open, the frame is of type hello_type: judge it,
     * then call peer_admit or peer_finish. The payload is borrowed until this
     * returns. */
    void (*on_frame)(struct peer *peer, const struct wire_frame *frame, void *context);
    /* The peer is gone; the pointer is dead when this returns. Comes once for each peer that
     * on_frame was called with. */
    void (*on_gone)(struct peer *peer, cairn_status status, const char *why, void *context);
};

/* Are these addresses that may be listened on? As listener_open says it, before it. */
CAIRN_MUST_CHECK cairn_status listener_judge(const struct listener_options *options,
                                             struct sentence *why);

/* Listens. `type_max` is the last known message type. `events` and `options` are copied.
 * CAIRN_ERR_REFUSED: not loopback and not allowed. CAIRN_ERR_CONFIG: no such address.
 * CAIRN_ERR_BUSY: the port or the socket is another's. */
CAIRN_MUST_CHECK cairn_status listener_open(uv_loop_t *loop, const struct listener_options *options,
                                            uint16_t hello_type, uint16_t type_max,
                                            const struct listener_events *events, void *context,
                                            struct listener **listener_out, struct sentence *why);
/* Stops listening, closes all peers (on_gone comes for each), then frees itself and calls on_closed
 * (may be NULL). */
void listener_close(struct listener *listener, void (*on_closed)(void *context));

/* The addresses it listens on, as in the configuration, with real ports: "/run/cairn/coordinator.sock
 * 127.0.0.1:40123". Valid as long as it is. */
const char *listener_address(const struct listener *listener);

/* The peer said a good Hello: all types and 1 MiB from the next frame on, no deadline. */
void peer_admit(struct peer *peer);
/* See stream_send. */
CAIRN_MUST_CHECK cairn_status peer_send(struct peer *peer, uint16_t type, uint32_t request,
                                        const ProtobufCMessage *message);
/* See stream_send_pages. */
CAIRN_MUST_CHECK cairn_status peer_send_pages(struct peer *peer, uint32_t request,
                                              enum page_what what, struct packed *packed);
/* Closes it now, or once the queue went out; on_gone comes later with this reason. */
void peer_close(struct peer *peer, cairn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void peer_finish(struct peer *peer, cairn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The daemon's own pointer for it; NULL at first. */
void peer_set_context(struct peer *peer, void *context);
void *peer_context(const struct peer *peer);
/* "127.0.0.1:41234", "pid=123,uid=1000". */
const char *peer_name(const struct peer *peer);

#endif
