/* Where a daemon listens: "host:port", "[v6 address]:port", or "/path" of a Unix socket. One written form,
 * used in configurations, on command lines and in messages. Pure, but _resolve and _find. */
#ifndef CAIRN_LOOP_ADDRESS_H
#define CAIRN_LOOP_ADDRESS_H

#include "proto/base/sentence.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct addrinfo;

#define CAIRN_ADDRESS_TEXT_BYTES 272 /* "[" 255 "]:" 5 NUL, rounded up */
#define CAIRN_ADDRESS_PATH_BYTES \
    106 /* of a socket: what the kernel takes, less one for a name beside it */

struct cairn_address {
    char host[256]; /* name or number, without brackets; the path if is_unix */
    uint16_t port;  /* 0 in a listener: any free one */
    bool is_unix;
};

/* Reads the written form; "unix:/path" is another of a path. CAIRN_ERR_INVALID with a sentence quoting the
 * text. */
CAIRN_MUST_CHECK cairn_status cairn_address_parse(const char *text,
                                                  struct cairn_address *address_out,
                                                  struct cairn_sentence *why);
/* The same of where a listener listens: *:port is every IPv4 address of this host. */
CAIRN_MUST_CHECK cairn_status cairn_address_parse_listen(const char *text,
                                                         struct cairn_address *address_out,
                                                         struct cairn_sentence *why);
/* The written form of it. */
void cairn_address_print(const struct cairn_address *address,
                         char text_out[CAIRN_ADDRESS_TEXT_BYTES]);

/* A socket address of it; of several of a host the first v4 one, so that "localhost" means the same for
 * a listener and its peers. Blocks (name service): for start-up only. CAIRN_ERR_UNREACHABLE. */
CAIRN_MUST_CHECK cairn_status cairn_address_resolve(const struct cairn_address *address,
                                                    struct sockaddr_storage *addr_out,
                                                    socklen_t *addr_bytes_out,
                                                    struct cairn_sentence *why);
/* Which of the addresses that the name service gave is taken. Never NULL for a list that is not. */
const struct addrinfo *cairn_address_choose(const struct addrinfo *list);

/* The socket of a host's coordinator, where none is named: coordinator.sock in RUNTIME_DIR/cairn, which is
 * the user's own; without a RUNTIME_DIR (XDG_RUNTIME_DIR of the environment; NULL or "") in /run/cairn. */
void cairn_address_default(const char *runtime_dir, char text_out[CAIRN_ADDRESS_TEXT_BYTES]);
/* Where a peer looks for it: in these two, in this order, the first that is there; if none is, the first
 * that it could be. True: it is the user's own. */
bool cairn_address_find(const char *runtime_dir, char text_out[CAIRN_ADDRESS_TEXT_BYTES]);

/* True for 127.0.0.0/8, ::1 and their v4-mapped form. */
bool cairn_address_is_loopback(const struct sockaddr_storage *addr);

/* The written form of a TCP socket address. */
void cairn_address_print_socket(const struct sockaddr_storage *addr,
                                char text_out[CAIRN_ADDRESS_TEXT_BYTES]);

#endif
