/* The TCP sockets of UCX, which UCX shows to nobody: found among our descriptors, by whom they are connected
 * to.
 *
 * Two things are done to them. A connection ends when its peer acknowledges nothing for too long: a
 * node that vanished without a word (power, cable) tells nobody, and the kernel would try for a
 * quarter of an hour. And a connection that we end is shut down: its endpoint must not be closed
 * (ucx_link.c). */
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/fabric/ucx.h"

enum { NEW_MAX = 16 }; /* descriptors that other threads may open in the meantime */

static bool is_same(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family) return false;
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *one = (const struct sockaddr_in *)a;
        const struct sockaddr_in *other = (const struct sockaddr_in *)b;
        return one->sin_port == other->sin_port && one->sin_addr.s_addr == other->sin_addr.s_addr;
    }
    const struct sockaddr_in6 *one = (const struct sockaddr_in6 *)a;
    const struct sockaddr_in6 *other = (const struct sockaddr_in6 *)b;
    return one->sin6_port == other->sin6_port &&
           memcmp(&one->sin6_addr, &other->sin6_addr, sizeof one->sin6_addr) == 0;
}

/* The kernel knows the peer of a connection that has ended, too, until its owner closes it. */
static bool is_over(int fd)
{
    struct tcp_info info;
    socklen_t bytes = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
           info.tcpi_state == TCP_CLOSE;
}

/* Also while it connects: then getpeername does not know yet where to (UCX from 1.14 on waits for no
 * connection). */
static bool leads_to(int fd, const struct sockaddr_storage *listener)
{
    struct sockaddr_storage there;
    socklen_t bytes = listener->ss_family == AF_INET ? sizeof(struct sockaddr_in)
                                                     : sizeof(struct sockaddr_in6);
    return getsockopt(fd, SOL_SOCKET, SO_PEERNAME, &there, &bytes) == 0 &&
           is_same(&there, listener) && !is_over(fd);
}

void ucx_socket_bound(int fd, unsigned unacked_ms)
{
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacked_ms, sizeof unacked_ms);
}

int ucx_socket_next(void)
{
    const int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    if (fd >= 0) close(fd);
    return fd;
}

in_port_t ucx_socket_made(int next, const struct sockaddr_storage *listener, unsigned unacked_ms)
{
    struct sockaddr_storage here;
    socklen_t bytes = sizeof here;
    for (int fd = next; next >= 0 && fd < next + NEW_MAX; fd++) {
        if (!leads_to(fd, listener)) continue;
        ucx_socket_bound(fd, unacked_ms);
        if (getsockname(fd, (struct sockaddr *)&here, &bytes) == 0) return *ucx_port_of(&here);
    }
    return 0;
}

/* Unsent bytes are of no use: the peer is to hear of the end at once (RST), not after them. */
static void shut(int fd)
{
    const struct linger none = { .l_onoff = 1, .l_linger = 0 };
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    (void)shutdown(fd, SHUT_RDWR);
}

/* Accepted where we listen, from that port. */
static bool comes_from(const struct ucx_fabric *ucx, int fd,
                       const struct sockaddr_storage *listener, in_port_t port)
{
    struct sockaddr_storage here, there, wanted;
    socklen_t here_bytes = sizeof here, there_bytes = sizeof there;
    if (port == 0 || getsockname(fd, (struct sockaddr *)&here, &here_bytes) != 0 ||
        (here.ss_family != AF_INET && here.ss_family != AF_INET6) ||
        *ucx_port_of(&here) != ucx->own_port ||
        getpeername(fd, (struct sockaddr *)&there, &there_bytes) != 0 ||
        *ucx_port_of(&there) != port)
        return false;
    if (listener == NULL) return true;
    wanted = *listener;
    *ucx_port_of(&wanted) = port;
    return is_same(&there, &wanted);
}

bool ucx_socket_shut(const struct ucx_fabric *ucx, const struct sockaddr_storage *listener,
                     in_port_t accepted)
{
    bool found = false;
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL) return false;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        const int fd = atoi(entry->d_name);
        const bool is_ours = listener != NULL && leads_to(fd, listener);
        if (!is_ours && !comes_from(ucx, fd, listener, accepted)) continue;
        shut(fd);
        found = true;
    }
    closedir(folder);
    return found;
}
