/* Whether anything answers where a peer listens, asked before UCX connects to it.
 *
 * UCX before 1.14 waits inside ucp_ep_create until connect() is over (ucx_settings.c): 3 s where
 * packets are dropped and nobody says so, and all who share our loop wait with it. Worse, UCX never
 * hears that peer from then on, though the peer may well connect to us; and it keeps the socket of
 * every try that fails, also of one that is refused. So a socket of ours asks first, without
 * waiting, and UCX connects when it was answered. An address says the port for that: behind UCX's
 * bytes, before the place.
 *
 * UCX from 1.14 on waits for nobody. Yet a link that is made while its node is away gets through at
 * some later moment, when the node has made one as well: the two are no pair, which takes PROOF_MS
 * to be known, and again where both begin anew (ucx_link.c). So our socket asks there, too.
 *
 * A peer that does not answer within REACH_WAIT_MS is refused. Its socket is kept, and looked at
 * when the same address comes again; nobody is waited for a second time. */
#include "proto/fabric/ucx.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    REACH_WAIT_MS = 100,     /* of the loop's time: more than any way to a peer and back takes */
    REACH_FORGET_MS = 60000, /* after which an address is a new one */
    BLOCKED_MS = 500,        /* ucp_ep_create that takes longer waited for nobody */
    BLOCKED_REST = 10,       /* times as long that address is left alone */
};

/* ---- the port ---- */

static const char port_magic[8] = "CAIRNPT1"; /* behind the port, as the network writes it */

/* The port and the IP address of a socket that listens; false: `fd` is none. */
static bool find_listener(int fd, in_port_t *port_out, char ip_out[INET6_ADDRSTRLEN])
{
    struct sockaddr_storage address;
    int listens = 0;
    socklen_t bytes = sizeof listens, address_bytes = sizeof address;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || !listens ||
        getsockname(fd, (struct sockaddr *)&address, &address_bytes) != 0 ||
        !cairn_ip_print((const struct sockaddr *)&address, ip_out))
        return false;
    *port_out = *ucx_port_of(&address);
    return true;
}

/* UCX tells nobody where it listens: that is the one socket of ours whose port stands in UCX's
 * address. If there are two, or other transports than TCP, UCX takes the way that it likes: then no
 * port is said. */
size_t ucx_add_port(const struct cairn_place *place, uint8_t *raw, size_t bytes, size_t room)
{
    in_port_t port = 0, one;
    unsigned found = 0;
    char ip[INET6_ADDRSTRLEN] = "", one_ip[INET6_ADDRSTRLEN];
    if (strcmp(place->transports, "tcp") != 0) return bytes;
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL) return bytes;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (!find_listener(atoi(entry->d_name), &one, one_ip)) continue;
        if (memmem(raw, bytes, &one, sizeof one) == NULL) continue;
        port = one;
        memcpy(ip, one_ip, sizeof ip);
        found++;
    }
    closedir(folder);
    if (found != 1 || strcmp(ip, place->ip) != 0 || room - bytes < sizeof port + sizeof port_magic)
        return bytes;
    memcpy(raw + bytes, &port, sizeof port);
    memcpy(raw + bytes + sizeof port, port_magic, sizeof port_magic);
    return bytes + sizeof port + sizeof port_magic;
}

void ucx_bound_listeners(struct ucx_fabric *ucx)
{
    char ip[INET6_ADDRSTRLEN];
    in_port_t port;
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL) return;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        const int fd = atoi(entry->d_name);
        if (!find_listener(fd, &port, ip) ||
            memmem(ucx->common.address, ucx->common.address_bytes, &port, sizeof port) == NULL)
            continue;
        ucx_socket_bound(fd, ucx->unacked_ms);
        ucx->own_port = port;
    }
    closedir(folder);
}

/* Where a peer listens. False: its address does not say it. */
static bool find_port(const uint8_t *raw, size_t bytes, struct sockaddr_storage *out,
                      socklen_t *out_bytes)
{
    struct cairn_place place;
    const size_t tail_bytes = sizeof(in_port_t) + sizeof port_magic;
    const size_t end = fabric_find_place(raw, bytes, &place);
    if (end == bytes || end < tail_bytes ||
        memcmp(raw + end - sizeof port_magic, port_magic, sizeof port_magic) != 0 ||
        !cairn_ip_parse(place.ip, out, out_bytes))
        return false;
    memcpy(ucx_port_of(out), raw + end - tail_bytes, sizeof(in_port_t));
    return true;
}

bool ucx_find_listener(const void *raw, size_t bytes, struct sockaddr_storage *out)
{
    socklen_t out_bytes;
    return find_port(raw, bytes, out, &out_bytes);
}

/* ---- asking ---- */

/* -1: no socket, or refused at once. */
static int begin_asking(const struct sockaddr_storage *to, socklen_t bytes)
{
    const int fd = socket(to->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), tries = 1;
    if (fd < 0) return -1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_SYNCNT, &tries, sizeof tries); // 3 s, then begin anew
    if (connect(fd, (const struct sockaddr *)to, bytes) == 0 || errno == EINPROGRESS) return fd;
    close(fd);
    return -1;
}

static void end_asking(struct ucx_asked *asked)
{
    if (asked->fd >= 0) close(asked->fd);
    asked->fd = -1;
}

static struct ucx_asked *find_asked(struct ucx_fabric *ucx, uint64_t node)
{
    for (size_t i = 0; i < UCX_ASKED_MAX; i++)
        if (ucx->asked[i].at_ms != 0 && ucx->asked[i].node == node) return &ucx->asked[i];
    return NULL;
}

/* In the place of the one that was asked the longest ago. */
static struct ucx_asked *take_asked(struct ucx_fabric *ucx, uint64_t node, uint64_t now_ms,
                                    int *wait_ms_out)
{
    struct ucx_asked *oldest = &ucx->asked[0];
    for (size_t i = 1; i < UCX_ASKED_MAX; i++)
        if (ucx->asked[i].at_ms < oldest->at_ms) oldest = &ucx->asked[i];
    const bool is_free = oldest->at_ms == 0 || now_ms - oldest->at_ms > REACH_FORGET_MS;
    *wait_ms_out = is_free ? REACH_WAIT_MS : 0; // so many that are silent are not waited for
    if (oldest->at_ms != 0) end_asking(oldest);
    *oldest = (struct ucx_asked) { .node = node, .fd = -1 };
    return oldest;
}

/* True: the connect has ended, and *error_out is 0 or says why it failed. */
static bool is_answered(struct ucx_asked *asked, int wait_ms, int *error_out)
{
    struct pollfd answer = { .fd = asked->fd, .events = POLLOUT };
    socklen_t bytes = sizeof *error_out;
    if (poll(&answer, 1, wait_ms) <= 0) return false;
    if (getsockopt(asked->fd, SOL_SOCKET, SO_ERROR, error_out, &bytes) != 0) *error_out = errno;
    return true;
}

cairn_status ucx_reach(struct ucx_fabric *ucx, const void *raw, size_t bytes)
{
    struct sockaddr_storage to;
    socklen_t to_bytes;
    const uint64_t node = fabric_hash(raw, bytes), now_ms = ucx_now_ms();
    struct ucx_asked *asked = find_asked(ucx, node);
    int wait_ms = 0, error = EINPROGRESS;
    if (asked != NULL && now_ms < asked->rest_until_ms) return CAIRN_ERR_UNREACHABLE;
    if (!find_port(raw, bytes, &to, &to_bytes)) return CAIRN_OK;
    if (asked == NULL) asked = take_asked(ucx, node, now_ms, &wait_ms);
    asked->at_ms = now_ms;
    if (asked->fd < 0) asked->fd = begin_asking(&to, to_bytes);
    if (asked->fd < 0 || !is_answered(asked, wait_ms, &error)) return CAIRN_ERR_UNREACHABLE;
    end_asking(asked);
    if (error == 0 || error == ECONNREFUSED) asked->at_ms = 0; // it is not silent
    return error == 0 ? CAIRN_OK : CAIRN_ERR_UNREACHABLE;
}

void ucx_blocked(struct ucx_fabric *ucx, const void *raw, size_t bytes, uint64_t ms)
{
    const uint64_t node = fabric_hash(raw, bytes);
    struct ucx_asked *asked = find_asked(ucx, node);
    int wait_ms;
    if (ms < BLOCKED_MS) return;
    if (asked == NULL) asked = take_asked(ucx, node, ucx_now_ms(), &wait_ms);
    asked->at_ms = ucx_now_ms();
    asked->rest_until_ms = asked->at_ms + ms * BLOCKED_REST;
}

void ucx_reach_close(struct ucx_fabric *ucx)
{
    for (size_t i = 0; i < UCX_ASKED_MAX; i++)
        if (ucx->asked[i].at_ms != 0) end_asking(&ucx->asked[i]);
}
