/* Where a node of the fabrics "stream" and "sealed" listens, and what its address says of it.
 *
 * It listens on the first IPv4 and the first IPv6 address of each of its devices, on one port for each. Its
 * address has all of them, with the key and the secret that let a member in, and a place for each device. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/base/text.h"
#include "proto/fabric/remote.h"

enum { BACKLOG = 512 };

void remote_ip_to(const struct remote_ip *ip, struct sockaddr_storage *out)
{
    struct sockaddr_in *four = (struct sockaddr_in *)out;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
    memset(out, 0, sizeof *out);
    if (ip->family == 4) {
        four->sin_family = AF_INET;
        four->sin_port = htons(ip->port);
        memcpy(&four->sin_addr, ip->ip, sizeof four->sin_addr);
    } else {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons(ip->port);
        memcpy(&six->sin6_addr, ip->ip, sizeof six->sin6_addr);
    }
}

void remote_ip_print(const struct remote_ip *ip, char out[INET6_ADDRSTRLEN])
{
    inet_ntop(ip->family == 4 ? AF_INET : AF_INET6, ip->ip, out, INET6_ADDRSTRLEN);
}

static bool read_ip(const struct sockaddr *address, struct remote_ip *out)
{
    *out = (struct remote_ip) { .family = 4 };
    if (address == NULL) return false;
    if (address->sa_family == AF_INET) {
        memcpy(out->ip, &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
        return true;
    }
    if (address->sa_family != AF_INET6) return false;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    out->family = 6;
    memcpy(out->ip, six, sizeof out->ip);
    return !IN6_IS_ADDR_LINKLOCAL(six);
}

static int bind_port(const struct remote_ip *ip, uint16_t port)
{
    struct sockaddr_storage to;
    struct remote_ip at = *ip;
    const int one = 1;
    at.port = port;
    remote_ip_to(&at, &to);
    const int fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (to.ss_family == AF_INET6) {
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
        // while the kernel still asks whether another host has the address
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_FREEBIND, &one, sizeof one);
    }
    if (bind(fd, (const struct sockaddr *)&to, remote_to_bytes(&to)) == 0 &&
        listen(fd, BACKLOG) == 0)
        return fd;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;
    if (getsockname(fd, (struct sockaddr *)&own, &bytes) != 0) return 0;
    return ntohs(own.ss_family == AF_INET ? ((const struct sockaddr_in *)&own)->sin_port
                                          : ((const struct sockaddr_in6 *)&own)->sin6_port);
}

static cairn_status listen_on(struct remote_fabric *fabric, const char *device,
                              const struct remote_ip *ip, const char *range, struct sentence *why)
{
    unsigned first = 0, last = 0;
    if (range != NULL && (!port_range_ok(range) || sscanf(range, "%u-%u", &first, &last) != 2))
        return fail_with(why, CAIRN_ERR_INVALID, "ports %.40s: " CAIRN_PORT_RANGE_ALLOWED, range);
    int fd = -1;
    for (unsigned port = first; port <= last && fd < 0; port++) {
        fd = bind_port(ip, (uint16_t)port);
        if (fd < 0 && errno != EADDRINUSE) break;
    }
    if (fd < 0)
        return fail_with(why, CAIRN_ERR_UNREACHABLE,
                         "fabric %s: no port%s%s on device %s can be listened on: %m",
                         fabric->common.backend->kind, range != NULL ? " of " : "",
                         range != NULL ? range : "", device);
    const uint16_t own_port = port_of(fd);
    if (own_port == 0) {
        fail_with(why, CAIRN_ERR_UNREACHABLE, "fabric %s: the port on device %s is not known: %m",
                  fabric->common.backend->kind, device);
        close(fd);
        return CAIRN_ERR_UNREACHABLE;
    }
    struct remote_listener *listener = &fabric->listeners[fabric->listener_count++];
    *listener = (struct remote_listener) { .fd = fd, .ip = *ip };
    snprintf(listener->device, sizeof listener->device, "%s", device);
    listener->ip.port = own_port;
    remote_note_socket(fabric, fd, true);
    return CAIRN_OK;
}

/* True if the fabric listens on the device, by this family of addresses (0: by any). */
static bool has_listener(const struct remote_fabric *fabric, const char *device, uint8_t family)
{
    for (uint32_t i = 0; i < fabric->listener_count; i++)
        if (strcmp(fabric->listeners[i].device, device) == 0 &&
            (family == 0 || fabric->listeners[i].ip.family == family))
            return true;
    return false;
}

/* Listens on the device's first address of each family. */
static cairn_status listen_device(struct remote_fabric *fabric, const char *device,
                                  const struct fabric_options *options, struct sentence *why)
{
    struct ifaddrs *all = NULL;
    struct remote_ip ip;
    cairn_status status = CAIRN_OK;
    if (getifaddrs(&all) != 0) all = NULL;
    for (const struct ifaddrs *one = all; one != NULL && status == CAIRN_OK; one = one->ifa_next) {
        const size_t length = strcspn(one->ifa_name, ":");
        if (strlen(device) != length || strncmp(one->ifa_name, device, length) != 0 ||
            !read_ip(one->ifa_addr, &ip) || has_listener(fabric, device, ip.family))
            continue;
        status = listen_on(fabric, device, &ip, options->port_range, why);
    }
    if (all != NULL) freeifaddrs(all);
    if (status == CAIRN_OK && !has_listener(fabric, device, 0))
        return fail_with(why, CAIRN_ERR_UNREACHABLE,
                         "fabric %s: there is no device %s with an IP address: name a network "
                         "device that has one (`ip -br addr` shows them)",
                         fabric->common.backend->kind, device);
    return status;
}

/* The networks may be separated as for ucx, by ',', or as for auto, by ';'. A card ("mlx5_0:1") is left
 * out: it is for ucx. */
cairn_status remote_listen(struct remote_fabric *fabric, const struct fabric_options *options,
                           struct sentence *why)
{
    const char *devices = options->net_devices != NULL ? options->net_devices : "lo";
    int count = 0;
    for (const char *at = devices; *at != '\0';) {
        char device[REMOTE_NAME_BYTES];
        const size_t length = strcspn(at, ",;");
        const bool is_card = memchr(at, ':', length) != NULL;
        snprintf(device, sizeof device, "%.*s", (int)length, at);
        at += length + (at[length] != '\0');
        if (is_card || has_listener(fabric, device, 0)) continue;
        if (++count > CAIRN_NETWORKS_MAX)
            return fail_with(why, CAIRN_ERR_INVALID, "devices %.100s: at most %d networks", devices,
                             CAIRN_NETWORKS_MAX);
        CAIRN_TRY(listen_device(fabric, device, options, why));
    }
    if (fabric->listener_count == 0)
        return fail_with(why, CAIRN_ERR_UNREACHABLE,
                         "fabric %s: there is no network device in \"%.100s\": name one, such as "
                         "eth1",
                         fabric->common.backend->kind, devices);
    return CAIRN_OK;
}

/* The places stand in reverse order, since each of them is found from the end. */
static size_t add_places(const struct remote_fabric *fabric, uint8_t *raw, size_t bytes,
                         size_t room)
{
    struct fabric_place place;
    for (uint32_t i = fabric->listener_count; i-- > 0;) {
        const char *device = fabric->listeners[i].device;
        if (i > 0 && strcmp(device, fabric->listeners[i - 1].device) == 0) continue;
        if (fabric_place_of(device, fabric->common.backend->kind, &place))
            bytes = fabric_add_place(&place, raw, bytes, room);
    }
    return bytes;
}

cairn_status remote_publish(struct remote_fabric *fabric)
{
    uint8_t raw[CAIRN_FABRIC_ADDRESS_MAX - 64] = { 0 };
    struct remote_address address = { .version = REMOTE_ADDRESS_VERSION,
                                      .count = (uint8_t)fabric->listener_count };
    size_t bytes = sizeof address;
    memcpy(address.key, fabric->key.open, sizeof address.key);
    memcpy(address.secret, fabric->secret, sizeof address.secret);
    memcpy(raw, &address, sizeof address);
    for (uint32_t i = 0; i < fabric->listener_count; i++, bytes += sizeof(struct remote_ip))
        memcpy(raw + bytes, &fabric->listeners[i].ip, sizeof(struct remote_ip));
    bytes = add_places(fabric, raw, bytes, sizeof raw);
    return fabric_set_address(&fabric->common, raw, bytes);
}

void remote_describe(struct remote_fabric *fabric)
{
    char *text = fabric->common.describe;
    const size_t room = sizeof fabric->common.describe;
    size_t used = (size_t)snprintf(text, room, "%s: %s", fabric->common.backend->kind,
                                   !fabric->is_sealed ? "in clear, for a trusted network"
                                   : sealed_has_aes() ? "AES-256-GCM"
                                                      : "ChaCha20-Poly1305");
    for (uint32_t i = 0; i < fabric->listener_count && used < room; i++) {
        const struct remote_listener *listener = &fabric->listeners[i];
        char ip[INET6_ADDRSTRLEN];
        remote_ip_print(&listener->ip, ip);
        used += (size_t)snprintf(text + used, room - used, ", %s port %u (%s)", ip,
                                 listener->ip.port, listener->device);
    }
}
