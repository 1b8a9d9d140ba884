/* A daemon's listener: it accepts peers on the daemon's control sockets, and limits what strangers can
 * cost.
 *
 * The listener listens on Unix sockets, on TCP, or on both. A Unix socket has mode 0660, so it is open to
 * its user and its group. If the configuration names no address, the listener uses the socket at which
 * peers of this host look for the daemon (address_default).
 *
 * A peer is half open until the daemon admits it, after a valid Hello. A half-open peer may send only
 * frames of type hello_type, of at most 16 KiB, and must be admitted within hello_timeout_ms. At most
 * half_open_max peers are half open. When all these places are taken, a new connection takes the place of a
 * stranger: of a TCP peer whose first message has not come, the oldest of the address (of IPv6, the 64 bits
 * before the host's) that has most of them. So many strangers of an address as fill half the places keep
 * theirs for 100 ms; those above that make room at once. Only if nobody is a stranger, the oldest peer goes:
 * over TCP after a second, over a Unix socket after 100 ms. While nobody may be closed, new connections wait
 * in the kernel. So a flood of silent connections delays a good peer of its own address, and hardly one of
 * another; a member whose first message has come keeps its place, however far away it is. A flood of many
 * addresses at once delays all.
 *
 * The first bad byte closes a connection. Above connections_max a new connection is closed at once; the last
 * 32 of these (at most an eighth) are for admins over a Unix socket. All incomplete frames together may take
 * 256 MiB; when they need more, the connection whose frame began first is closed. Refusals are logged, with
 * at most one line of each kind per second.
 *
 * Who a peer is, is known before its first frame: over a Unix socket the kernel says it, over TCP the
 * handshake proves it (proto/secure/secure.h), by a key of the daemon's roster. A TCP peer is half open
 * during its handshake, too: at most 4 KiB are held for its bytes, and nothing is parsed. A stranger hears
 * nothing. Loop thread only. */
#ifndef CAIRN_BASE_LISTENER_H
#define CAIRN_BASE_LISTENER_H

#include <sys/types.h>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/loop/loop.h"
#include "proto/secure/secure.h"
#include "server/base/daemon.h"

/* ==== control socket ==== */

/* A Unix socket on which a daemon listens.
 *
 * The socket appears at its path only when it is complete: it is bound at another path in the same folder,
 * gets its mode, listens, and is then renamed to its path. If a socket of a dead daemon is at the path, it
 * is replaced. A socket on which somebody listens, or a file that is no socket, is left alone, and the call
 * fails. The folder is locked meanwhile, so if two daemons start at the same time, the second one finds the
 * socket of the first. The call blocks for at most a second, and is made only at a daemon's start. */

struct control_socket {
    int fd; /* owned by the caller */
    /* These two identify the file at the path, because no other file has these numbers while fd is open. */
    dev_t device;
    ino_t inode;
};

#define CAIRN_SOCKET_MODE 0660 /* if the configuration says nothing else */

/* Makes the socket at `path`, which address_parse has accepted, and whose folder exists. CAIRN_ERR_BUSY:
 * somebody listens at the path. CAIRN_ERR_CONFIG: the socket cannot be made there. */
CAIRN_MUST_CHECK cairn_status control_socket_open(const char *path, mode_t mode, int backlog,
                                                  struct control_socket *socket_out,
                                                  struct sentence *why);

/* ==== listener ==== */

#define CAIRN_LISTEN_MAX 8 /* the most addresses of a listener */

struct listener;
struct peer;

/* The listener's part of the configuration, which owns the strings. */
struct listener_options {
    char *listen; /* addresses, separated by blanks; port 0 = any free port; "": the default */
    int64_t connections_max;
    int64_t half_open_max;
    int64_t hello_timeout_ms;
    int64_t send_queue_bytes;
    char *socket_mode; /* of Unix sockets, as "0660"; NULL or "": CAIRN_SOCKET_MODE */
};

/* Returns how many of so many connections are kept for admins of this host, who must be able to mend what is
 * wrong. */
size_t listener_kept(size_t connections);

/* The rows of a daemon's option table for the member `member` (a struct listener_options) of
 * its `struct_type`. */
#define CAIRN_LISTENER_CONFIG(struct_type, member)                                             \
    { "network",                                                                               \
      "listen",                                                                                \
      CAIRN_OPTION_ADDRESSES,                                                                  \
      offsetof(struct_type, member.listen),                                                    \
      "",                                                                                      \
      0,                                                                                       \
      0,                                                                                       \
      "Control addresses: the /path of a socket (mode 0660), or host:port, for peers that "    \
      "have a token (port 0: any free one; *: every IPv4 address). Empty: "                    \
      "cairn/coordinator.sock in $XDG_RUNTIME_DIR, else in /run." },                           \
        { "network",                                                                           \
          "connections_max",                                                                   \
          CAIRN_OPTION_INT,                                                                    \
          offsetof(struct_type, member.connections_max),                                       \
          "4096",                                                                              \
          1,                                                                                   \
          65536,                                                                               \
          "Connections at once; more are closed at once. The last 32 (at most an eighth) are " \
          "for admins over a Unix socket." },                                                  \
        { "network",                                                                           \
          "half_open_max",                                                                     \
          CAIRN_OPTION_INT,                                                                    \
          offsetof(struct_type, member.half_open_max),                                         \
          "64",                                                                                \
          1,                                                                                   \
          4096,                                                                                \
          "Connections at once that have not said Hello." },                                   \
        { "network",                                                                           \
          "hello_timeout",                                                                     \
          CAIRN_OPTION_DURATION,                                                               \
          offsetof(struct_type, member.hello_timeout_ms),                                      \
          "5s",                                                                                \
          10,                                                                                  \
          60000,                                                                               \
          "How long a connection may take to say Hello." },                                    \
    {                                                                                          \
        "network", "send_queue", CAIRN_OPTION_BYTES,                                           \
            offsetof(struct_type, member.send_queue_bytes), "8MiB", 1 << 20, 1 << 30,          \
            "Bytes waiting for a peer that does not read before it is closed."                 \
    }

struct listener_events {
    /* A frame has arrived; its payload is borrowed until the function returns. If the peer is half open,
     * the frame is of type hello_type: the daemon judges the frame, and then calls peer_admit or
     * peer_finish. */
    void (*on_frame)(struct peer *peer, const struct wire_frame *frame, void *context);
    /* The peer is gone, and the pointer is invalid when the function returns. Called once for each peer for
     * which on_frame was called. */
    void (*on_gone)(struct peer *peer, cairn_status status, const char *why, void *context);
    /* For TCP; NULL: the daemon listens on Unix sockets only. Finds what the daemon knows about a key id, as
     * handshake_options.find does; row_out->own is borrowed until the function returns. */
    bool (*find)(const uint8_t key_id[CAIRN_PSK_ID_BYTES], struct handshake_row *row_out,
                 void *context);
    /* For Unix sockets; NULL: each user may do everything. Says what a user of this host may do, who is known
     * to the kernel: sets the roles, which are none before. groups: [group_count]: all that the process is
     * in. */
    void (*local)(struct identity *identity, const gid_t *groups, size_t group_count,
                  void *context);
    /* Says who a TCP peer is, whose handshake is done. CAIRN_OK: identity_out, which is zeroed before, is the
     * peer's from now on. Any other status: the peer is refused, is sent an Error with this status and
     * sentence, and sends no frame. */
    cairn_status (*identify)(const struct handshake_result *result, struct identity *identity_out,
                             struct sentence *why, void *context);
};

/* Judges, before listener_open is called, whether the daemon may listen on these addresses. The errors are
 * those of listener_open. */
CAIRN_MUST_CHECK cairn_status listener_judge(const struct listener_options *options,
                                             struct sentence *why);

/* Listens. `type_max` is the highest message type that is known. `events` and `options` are copied.
 * CAIRN_ERR_CONFIG: an address is wrong, or this host does not have it. CAIRN_ERR_BUSY: another program has
 * the port or the socket. */
CAIRN_MUST_CHECK cairn_status listener_open(uv_loop_t *loop, const struct listener_options *options,
                                            uint16_t hello_type, uint16_t type_max,
                                            const struct listener_events *events, void *context,
                                            struct listener **listener_out, struct sentence *why);
/* Stops listening, and closes all peers, so that on_gone is called for each. Later the listener frees
 * itself, and calls on_closed if that is not NULL. */
void listener_close(struct listener *listener, void (*on_closed)(void *context));

/* Returns the listener's addresses as in the configuration, but with real ports instead of port 0:
 * "/run/cairn/coordinator.sock 127.0.0.1:40123". The text is valid as long as the listener. */
const char *listener_address(const struct listener *listener);

/* Admits a peer after a good Hello. From the next frame on it may send frames of all types, of up to 1 MiB,
 * and has no deadline. */
void peer_admit(struct peer *peer);
/* See stream_set_share. */
void peer_set_share(struct peer *peer, struct stream_share *share);
/* See stream_send. */
CAIRN_MUST_CHECK cairn_status peer_send(struct peer *peer, uint16_t type, uint32_t request,
                                        const ProtobufCMessage *message);
/* See stream_send_pages. */
CAIRN_MUST_CHECK cairn_status peer_send_pages(struct peer *peer, uint32_t request,
                                              enum page_what what, struct packed *packed);
/* peer_close closes the peer now; peer_finish closes the peer when its send queue is empty. on_gone is
 * called later, with this status and text. */
void peer_close(struct peer *peer, cairn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void peer_finish(struct peer *peer, cairn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The daemon's own pointer for the peer; NULL at first. */
void peer_set_context(struct peer *peer, void *context);
void *peer_context(const struct peer *peer);
/* Returns the peer's name: "127.0.0.1:41234", "pid=123,uid=1000". */
const char *peer_name(const struct peer *peer);
/* Returns who the peer is, as the kernel or the handshake proved it: from its first frame on, and constant.
 * Before, a TCP peer is nobody, without a name and without roles. */
const struct identity *peer_identity(const struct peer *peer);

#endif
