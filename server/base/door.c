/* One address that a listener listens on. */
#include "server/base/control_socket.h"
#include "server/base/listener_private.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BACKLOG 1024

/* Where that is, if it may be listened on. */
struct place {
    struct cairn_address address;
    struct sockaddr_storage addr;
    bool is_loopback;
};

/* A number, or the name that means loopback everywhere. */
static bool is_plain(const char *host)
{
    struct in6_addr number;
    return inet_pton(AF_INET, host, &number) == 1 || inet_pton(AF_INET6, host, &number) == 1 ||
           strcmp(host, "localhost") == 0;
}

/* Whoever allows other hosts, and names an address, does not mean one that none of them reaches. */
static cairn_status judge_name(const struct place *place, struct cairn_sentence *why)
{
    char found[CAIRN_ADDRESS_TEXT_BYTES];
    const struct cairn_address *address = &place->address;
    if (address->is_unix || !place->is_loopback || is_plain(address->host)) return CAIRN_OK;
    cairn_address_print_socket(&place->addr, found);
    *strrchr(found, ':') = '\0';
    return cairn_fail(why, CAIRN_ERR_CONFIG,
                      "the name %s leads to %s here, which no other host reaches (look at "
                      "/etc/hosts), though insecure_network = yes: listen on the address that the "
                      "others know, or *:%u for every one of this host",
                      address->host, found, address->port);
}

static cairn_status find_place(const char *text, const struct cairn_listener_options *options,
                               struct place *place, struct cairn_sentence *why)
{
    socklen_t addr_bytes;
    cairn_status status = cairn_address_parse_listen(text, &place->address, why);
    if (status != CAIRN_OK) return status;
    status = cairn_address_resolve(&place->address, &place->addr, &addr_bytes, why);
    if (status != CAIRN_OK) return CAIRN_ERR_CONFIG;
    place->is_loopback = place->address.is_unix || cairn_address_is_loopback(&place->addr);
    if (!place->is_loopback && !options->insecure_network)
        return cairn_fail(why, CAIRN_ERR_REFUSED,
                          "refused to listen on %s: it is not a loopback address, and peers are "
                          "not authenticated in this version, so whoever reaches the port could "
                          "use it; listen on a socket or 127.0.0.1, or set insecure_network = yes "
                          "in [network] if everyone who can reach it may do everything",
                          text);
    return options->insecure_network ? judge_name(place, why) : CAIRN_OK;
}

cairn_status cairn_door_judge(const char *text, const struct cairn_listener_options *options,
                              struct cairn_sentence *why)
{
    struct place place;
    return find_place(text, options, &place, why);
}

static void say_who_may_come(const struct place *place, const char *text)
{
    if (place->address.is_unix) return;
    if (place->is_loopback)
        cairn_log_info("any user of this host can reach %s", text);
    else
        cairn_log_warn("insecure_network = yes: whoever reaches %s can use this daemon, peers are "
                       "not authenticated",
                       text);
}

/* No device of this host has the address: at boot one may have it a moment later (DHCP, a floating address).
 * Who ended for that, again and again, would be given up by the supervisor. */
static int bind_early(struct cairn_door *door, const struct sockaddr_storage *addr)
{
    const int on = 1;
    int fd;
    int error = uv_fileno(&door->io.handle, &fd);
    if (error == 0 && setsockopt(fd, SOL_IP, IP_FREEBIND, &on, sizeof on) != 0) error = UV_EINVAL;
    if (error == 0) error = uv_tcp_bind(&door->io.tcp, (const struct sockaddr *)addr, 0);
    if (error == 0)
        cairn_log_warn("no device of this host has the address of %s: it is listened on all the "
                       "same, and reached as soon as one has; `ip -br addr` shows those there are",
                       door->address);
    return error;
}

static cairn_status open_tcp(struct cairn_door *door, const struct sockaddr_storage *addr,
                             struct cairn_sentence *why)
{
    struct sockaddr_storage bound = { 0 };
    int bound_bytes = sizeof bound;
    int error = uv_tcp_bind(&door->io.tcp, (const struct sockaddr *)addr, 0);
    if (error == UV_EADDRNOTAVAIL) error = bind_early(door, addr);
    if (error == 0) error = uv_listen(&door->io.stream, BACKLOG, cairn_listener_on_connection);
    if (error == UV_EADDRINUSE)
        return cairn_fail(why, CAIRN_ERR_BUSY,
                          "cannot listen on %s: another program has this port; stop it, or set "
                          "another port (0 takes any free one)",
                          door->address);
    if (error == 0)
        error = uv_tcp_getsockname(&door->io.tcp, (struct sockaddr *)&bound, &bound_bytes);
    if (error != 0)
        return cairn_fail(why, CAIRN_ERR_CONFIG, "cannot listen on %s: %s", door->address,
                          uv_strerror(error));
    cairn_address_print_socket(&bound, door->address);
    return CAIRN_OK;
}

static void unlink_made(struct cairn_door *door)
{
    if (door->is_made) cairn_control_socket_unlink(door->address, &door->made);
    door->is_made = false;
}

static cairn_status open_unix(struct cairn_door *door, struct cairn_sentence *why)
{
    const cairn_status status = cairn_control_socket_open(door->address, BACKLOG, &door->made, why);
    if (status != CAIRN_OK) return status;
    door->is_made = true;
    int error = uv_pipe_open(&door->io.pipe, door->made.fd);
    if (error != 0) {
        unlink_made(door);
        close(door->made.fd);
    } else {
        error = uv_listen(&door->io.stream, BACKLOG, cairn_listener_on_connection);
    }
    if (error == 0) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_CONFIG, "cannot listen on %s: %s", door->address,
                      uv_strerror(error));
}

cairn_status cairn_door_open(struct cairn_door *door, const char *text,
                             const struct cairn_listener_options *options,
                             struct cairn_sentence *why)
{
    struct place place;
    uv_loop_t *loop = door->listener->timer.loop;
    const cairn_status status = find_place(text, options, &place, why);
    if (status != CAIRN_OK) return status;
    say_who_may_come(&place, text);
    cairn_address_print(&place.address, door->address);
    if (place.address.is_unix)
        uv_pipe_init(loop, &door->io.pipe, 0);
    else
        uv_tcp_init(loop, &door->io.tcp);
    door->io.handle.data = door;
    door->is_open = true;
    return place.address.is_unix ? open_unix(door, why) : open_tcp(door, &place.addr, why);
}

void cairn_door_close(struct cairn_door *door, uv_close_cb on_closed)
{
    // First: once the socket is closed, its inode's number may be another one's.
    unlink_made(door);
    uv_close(&door->io.handle, on_closed);
}
