/* The auto fabric: the mapped fabric for peers of this host that can be reached so, a ucx fabric
 * for all others. It is several fabrics behind one interface; a peer or a message belongs to one of
 * them, and calls with it go there by themselves. A region is one region in each fabric.
 *
 * Nobody from another host comes over loopback. So on "lo" alone there is no ucx fabric: every user
 * of this host could speak to its port, and end the process by it (README.md). Three cases need a
 * ucx fabric all the same: the mapped fabric cannot be opened, or hosts are told apart by names
 * (options.host), several of which share a loopback, or peers are known to be ucx there
 * (options.has_loopback).
 *
 * There is a ucx one for each network that is not reached from the others ("eth1;eth2"): of a fabric on
 * several devices UCX takes any pair, and a peer on one network alone may be given the address on another
 * (1.13, seen). Here the kernel's routes pair them.
 *
 * Each of the fabrics has the bounds (sends_max, held_max) for itself. Each end chooses for the
 * messages that it sends: one direction may be mapped and the other not. */
#include "proto/fabric/backend.h"

#include <arpa/inet.h>
#include <assert.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <limits.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>

#include "proto/fabric/where.h"

enum { UCX_FIRST = 1, INSIDES_MAX = UCX_FIRST + CAIRN_NETWORKS_MAX };

struct auto_fabric {
    struct cairn_fabric common;
    /* owned; [0] the mapped one, or NULL: it could not be opened; then the ucx ones. At least one of all */
    struct cairn_fabric *insides[INSIDES_MAX];
    int count; /* of insides */
};

struct auto_region {
    struct cairn_fabric_region common;
    struct cairn_fabric_region *insides[INSIDES_MAX]; /* owned by theirs; NULL: none */
};

static struct auto_fabric *auto_of(struct cairn_fabric *fabric)
{
    return (struct auto_fabric *)fabric;
}

/* -- opening and closing ------------------------------------------------------------------------ */

static bool watch(int epoll, const struct cairn_fabric *inside)
{
    struct epoll_event event = { .events = EPOLLIN };
    return inside == NULL || epoll_ctl(epoll, EPOLL_CTL_ADD, inside->event_fd, &event) == 0;
}

/* Without a network it is the mapped one's, so that everybody sees by which way we can be reached. */
static cairn_status publish_address(struct auto_fabric *fabric)
{
    uint8_t all[CAIRN_FABRIC_ADDRESS_MAX];
    size_t bytes = 0;
    if (fabric->count == UCX_FIRST) {
        const struct cairn_fabric *mapped = fabric->insides[0];
        memcpy(fabric->common.address, mapped->address, mapped->address_bytes);
        fabric->common.address_bytes = mapped->address_bytes;
        return CAIRN_OK;
    }
    for (int i = 0; i < fabric->count; i++) {
        const struct cairn_fabric *inside = fabric->insides[i];
        if (inside == NULL) continue;
        if (inside->address_bytes > sizeof all - bytes) return CAIRN_ERR_UNSUPPORTED;
        memcpy(all + bytes, inside->address, inside->address_bytes);
        bytes += inside->address_bytes;
        if (inside->is_one_sided) fabric->common.is_one_sided = true;
    }
    return fabric_set_address(&fabric->common, all, bytes);
}

static void close_insides(struct auto_fabric *fabric)
{
    for (int i = 0; i < fabric->count; i++) cairn_fabric_close(fabric->insides[i]);
    if (fabric->common.event_fd >= 0) close(fabric->common.event_fd);
}

static bool is_network_needed(const struct auto_fabric *fabric,
                              const struct cairn_fabric_options *options)
{
    const bool is_loopback = options->net_devices == NULL ||
                             strcmp(options->net_devices, "lo") == 0;
    return !is_loopback || options->host != NULL || options->has_loopback ||
           fabric->insides[0] == NULL;
}

/* Device memory is taken only if every UCX fabric inside takes it, as the owner has peers on all of
 * them. If one does not, device_why is its reason. */
static void publish_device(struct auto_fabric *fabric)
{
    for (int i = fabric->count - 1; i >= UCX_FIRST; i--) {
        const struct cairn_fabric *inside = fabric->insides[i];
        if (i < fabric->count - 1 && inside->takes_device) continue;
        fabric->common.takes_device = inside->takes_device;
        fabric->common.device_why = inside->device_why;
    }
}

/* One for each network that the options name. */
static cairn_status open_ucx(struct auto_fabric *fabric, const struct cairn_fabric_options *options,
                             struct cairn_sentence *why)
{
    struct cairn_fabric_options one = *options;
    char devices[CAIRN_PLACE_DEVICES_BYTES * 2];
    const char *at = options->net_devices != NULL ? options->net_devices : "";
    do {
        const size_t length = strcspn(at, ";");
        if (fabric->count == INSIDES_MAX || length >= sizeof devices)
            return cairn_fail(why, CAIRN_ERR_INVALID,
                              "devices %s: at most %d networks with ';' between them, and each "
                              "list under %zu bytes",
                              options->net_devices, CAIRN_NETWORKS_MAX, sizeof devices);
        memcpy(devices, at, length);
        devices[length] = '\0';
        if (options->net_devices != NULL) one.net_devices = devices;
        const cairn_status status = cairn_fabric_open("ucx", &one, &fabric->insides[fabric->count],
                                                      why);
        if (status != CAIRN_OK) return status;
        fabric->count++;
        at += length + (at[length] == ';');
    } while (*at != '\0');
    return CAIRN_OK;
}

static bool watch_all(struct auto_fabric *fabric)
{
    fabric->common.event_fd = epoll_create1(EPOLL_CLOEXEC);
    bool ok = fabric->common.event_fd >= 0;
    for (int i = 0; i < fabric->count && ok; i++)
        ok = watch(fabric->common.event_fd, fabric->insides[i]);
    return ok;
}

static cairn_status auto_start(struct cairn_fabric *common,
                               const struct cairn_fabric_options *options,
                               struct cairn_sentence *why)
{
    struct auto_fabric *fabric = auto_of(common);
    struct cairn_sentence no_mapped = { "" };
    cairn_status status = CAIRN_OK;
    fabric->count = UCX_FIRST;
    if (cairn_fabric_open("mapped", options, &fabric->insides[0], &no_mapped) != CAIRN_OK)
        fabric->insides[0] = NULL;
    if (is_network_needed(fabric, options)) status = open_ucx(fabric, options, why);
    if (status != CAIRN_OK) goto err_close;
    if (!watch_all(fabric)) {
        status = cairn_fail(why, CAIRN_ERR_NO_MEMORY, "fabric auto: no event descriptor: %m");
        goto err_close;
    }
    publish_device(fabric);
    status = publish_address(fabric);
    if (status != CAIRN_OK) {
        cairn_sentence_set(why, "fabric auto: the addresses together are over %d bytes",
                           CAIRN_FABRIC_ADDRESS_MAX);
        goto err_close;
    }
    snprintf(common->describe, sizeof common->describe, "auto: %.240s; else %.240s",
             fabric->insides[0] != NULL ? fabric->insides[0]->describe : no_mapped.text,
             fabric->count > UCX_FIRST ? fabric->insides[UCX_FIRST]->describe
                                       : "nobody: it listens on no network");
    return CAIRN_OK;
err_close:
    close_insides(fabric);
    return status;
}

/* All first: a callback of the one must not begin anything with the other. */
static void auto_stop(struct cairn_fabric *common)
{
    struct auto_fabric *fabric = auto_of(common);
    for (int i = 0; i < fabric->count; i++)
        if (fabric->insides[i] != NULL) fabric->insides[i]->is_closing = true;
    close_insides(fabric);
}

/* -- peers and regions -------------------------------------------------------------------------- */

static bool is_on(const struct cairn_fabric *ucx, const char *device)
{
    struct cairn_place own;
    return cairn_fabric_address_place(ucx->address, ucx->address_bytes, 0, &own) &&
           cairn_devices_have(own.devices, device);
}

/* Which of ours, to which of theirs: as the kernel's routes go; else the first to the first. NULL: we have
 * none. */
static struct cairn_fabric *find_way(struct auto_fabric *fabric, const void **address,
                                     size_t *bytes)
{
    struct cairn_place theirs;
    struct cairn_route route;
    size_t part_bytes;
    if (fabric->count == UCX_FIRST) return NULL;
    const void *part = fabric_find_part(*address, *bytes, "ucx", 1, &part_bytes);
    if (part != NULL || fabric->count > UCX_FIRST + 1) {
        for (int n = 0; (part = fabric_find_part(*address, *bytes, "ucx", n, &part_bytes)) != NULL;
             n++) {
            if (!cairn_fabric_address_place(part, part_bytes, 0, &theirs) ||
                !cairn_route_find(theirs.ip, &route))
                continue;
            for (int i = UCX_FIRST; i < fabric->count; i++) {
                if (!is_on(fabric->insides[i], route.device)) continue;
                *address = part;
                *bytes = part_bytes;
                return fabric->insides[i];
            }
        }
    }
    return fabric->insides[UCX_FIRST];
}

static cairn_status auto_connect(struct cairn_fabric *common, const void *address, size_t bytes,
                                 cairn_fabric_down_fn *on_down, void *arg,
                                 struct cairn_fabric_peer **peer_out)
{
    struct auto_fabric *fabric = auto_of(common);
    cairn_status mapped = CAIRN_ERR_MALFORMED; // a fabric that is not there finds no address
    if (fabric->insides[0] != NULL)
        mapped = cairn_fabric_connect(fabric->insides[0], address, bytes, on_down, arg, peer_out);
    if (mapped == CAIRN_OK) return CAIRN_OK;
    struct cairn_fabric *way = find_way(fabric, &address, &bytes);
    if (way == NULL) return mapped;
    const cairn_status ucx = cairn_fabric_connect(way, address, bytes, on_down, arg, peer_out);
    return ucx == CAIRN_ERR_MALFORMED ? mapped : ucx;
}

static void auto_region_drop(struct cairn_fabric_region *common)
{
    const struct auto_region *region = (const struct auto_region *)common;
    for (int i = 0; i < INSIDES_MAX; i++) cairn_fabric_region_drop(region->insides[i]);
}

static cairn_status add_inside(struct cairn_fabric *inside,
                               const struct cairn_fabric_region *region,
                               struct cairn_fabric_region **region_out)
{
    if (region->is_device)
        return cairn_fabric_region_add_device(inside, region->base, region->bytes, region->fd,
                                              region->uuid, region->note, region->note_bytes,
                                              region_out);
    return cairn_fabric_region_add(inside, region->base, region->bytes, region->fd, region->note,
                                   region->note_bytes, region_out);
}

/* A ucx one keeps what it is told and registers it when it is first read, so that this costs nothing
 * where nobody reads it so. */
static cairn_status auto_region_add(struct cairn_fabric_region *common)
{
    struct auto_fabric *fabric = auto_of(common->fabric);
    struct auto_region *region = (struct auto_region *)common;
    for (int i = 0; i < fabric->count; i++) {
        if (fabric->insides[i] == NULL) continue;
        const cairn_status status = add_inside(fabric->insides[i], common, &region->insides[i]);
        if (status == CAIRN_OK) continue;
        auto_region_drop(common);
        return status;
    }
    return CAIRN_OK;
}

static cairn_status auto_region_show(struct cairn_fabric_region *common,
                                     struct cairn_fabric_peer *peer)
{
    const struct auto_region *region = (const struct auto_region *)common;
    return region->insides[0] != NULL ? cairn_fabric_region_show(region->insides[0], peer)
                                      : CAIRN_OK;
}

static void auto_hold_off(struct cairn_fabric *common, bool is_off)
{
    const struct auto_fabric *fabric = auto_of(common);
    if (fabric->insides[0] != NULL) cairn_fabric_hold_off(fabric->insides[0], is_off);
}

static void auto_set_patience(struct cairn_fabric *common, uint32_t ms)
{
    const struct auto_fabric *fabric = auto_of(common);
    for (int i = 0; i < fabric->count; i++)
        if (fabric->insides[i] != NULL) cairn_fabric_set_patience(fabric->insides[i], ms);
}

/* -- driving ------------------------------------------------------------------------------------ */

static unsigned auto_progress(struct cairn_fabric *common)
{
    struct auto_fabric *fabric = auto_of(common);
    unsigned count = 0;
    for (int i = 0; i < fabric->count; i++)
        if (fabric->insides[i] != NULL) count += cairn_fabric_progress(fabric->insides[i]);
    return count;
}

static cairn_status auto_arm(struct cairn_fabric *common)
{
    struct auto_fabric *fabric = auto_of(common);
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < fabric->count && status == CAIRN_OK; i++)
        if (fabric->insides[i] != NULL) status = cairn_fabric_arm(fabric->insides[i]);
    return status;
}

/* Adds up the counters; a counter that only one kind has is 0 in the others. */
static void add_stats(struct cairn_fabric_stats *all, const struct cairn_fabric_stats *one)
{
    all->messages_sent += one->messages_sent;
    all->bytes_sent += one->bytes_sent;
    all->messages_received += one->messages_received;
    all->bytes_received += one->bytes_received;
    all->messages_dropped += one->messages_dropped;
    all->messages_refused += one->messages_refused;
    all->peers_down += one->peers_down;
    all->connections_refused += one->connections_refused;
    all->endpoints_made += one->endpoints_made;
    all->references_sent += one->references_sent;
    all->references_declined += one->references_declined;
    all->bytes_read += one->bytes_read;
    all->sends_now += one->sends_now;
    all->receives_now += one->receives_now;
    all->held_now += one->held_now;
    all->peers_now += one->peers_now;
    all->endpoints_now += one->endpoints_now;
}

static void auto_stats(const struct cairn_fabric *common, struct cairn_fabric_stats *stats_out)
{
    const struct auto_fabric *fabric = (const struct auto_fabric *)common;
    *stats_out = (struct cairn_fabric_stats) { 0 };
    for (int i = 0; i < fabric->count; i++) {
        struct cairn_fabric_stats one;
        if (fabric->insides[i] == NULL) continue;
        cairn_fabric_stats(fabric->insides[i], &one);
        add_stats(stats_out, &one);
    }
}

const struct fabric_backend fabric_auto = {
    .kind = "auto",
    .fabric_bytes = sizeof(struct auto_fabric),
    .start = auto_start,
    .stop = auto_stop,
    .progress = auto_progress,
    .arm = auto_arm,
    .connect_inside = auto_connect,
    .region_bytes = sizeof(struct auto_region),
    .region_add = auto_region_add,
    .region_show = auto_region_show,
    .region_drop = auto_region_drop,
    .hold_off = auto_hold_off,
    .set_patience = auto_set_patience,
    .stats = auto_stats,
};

/* ==== where ==== */

/* ---- places ---- */

bool cairn_ip_print(const struct sockaddr *address, char out[INET6_ADDRSTRLEN])
{
    if (address == NULL) return false;
    if (address->sa_family == AF_INET)
        return inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)address)->sin_addr,
                         out, INET6_ADDRSTRLEN) != NULL;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    return address->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(six) &&
           inet_ntop(AF_INET6, six, out, INET6_ADDRSTRLEN) != NULL;
}

/* A second address of a device has a label behind ':'. */
static bool is_of_device(const struct ifaddrs *one, const char *device, size_t length)
{
    return strcspn(one->ifa_name, ":") == length && strncmp(one->ifa_name, device, length) == 0;
}

/* IPv4 first, as UCX does. */
static bool find_ip(const struct ifaddrs *all, const char *device, size_t length,
                    char out[INET6_ADDRSTRLEN])
{
    static const int families[] = { AF_INET, AF_INET6 };
    for (int f = 0; f < 2; f++)
        for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next)
            if (is_of_device(one, device, length) && one->ifa_addr != NULL &&
                one->ifa_addr->sa_family == families[f] && cairn_ip_print(one->ifa_addr, out))
                return true;
    return false;
}

bool cairn_place_of(const char *devices, const char *transports, struct cairn_place *out)
{
    struct ifaddrs *all = NULL;
    if (strlen(devices) >= sizeof out->devices || strlen(transports) >= sizeof out->transports)
        return false;
    *out = (struct cairn_place) { .ip = "-" };
    memcpy(out->devices, devices, strlen(devices) + 1);
    memcpy(out->transports, transports, strlen(transports) + 1);
    if (getifaddrs(&all) != 0) return true;
    bool found = false;
    for (const char *at = devices; *at != '\0' && !found;) {
        const size_t length = strcspn(at, ",");
        found = find_ip(all, at, length, out->ip);
        at += length + (at[length] == ',');
    }
    freeifaddrs(all);
    return true;
}

void cairn_place_print(const struct cairn_place *place, char out[CAIRN_PLACE_BYTES])
{
    static_assert(sizeof *place <= CAIRN_PLACE_BYTES, "two blanks and a NUL for three NULs");
    snprintf(out, CAIRN_PLACE_BYTES, "%s %s %s", place->ip, place->devices, place->transports);
}

bool cairn_place_parse(const char *text, struct cairn_place *out)
{
    int end = 0;
    return sscanf(text, "%45[^ ] %95[^ ] %47[^ ]%n", out->ip, out->devices, out->transports,
                  &end) == 3 &&
           text[end] == '\0';
}

/* ---- routes ---- */

bool cairn_ip_parse(const char *ip, struct sockaddr_storage *out, socklen_t *bytes_out)
{
    struct sockaddr_in *four = (struct sockaddr_in *)out;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, ip, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons(9);
        *bytes_out = sizeof *four;
        return true;
    }
    if (inet_pton(AF_INET6, ip, &six->sin6_addr) != 1) return false;
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(9);
    *bytes_out = sizeof *six;
    return true;
}

/* A datagram socket that is connected sends nothing, and has the source address of its route. */
static bool find_source(const char *ip, char out[INET6_ADDRSTRLEN])
{
    struct sockaddr_storage to, from;
    socklen_t to_bytes, from_bytes = sizeof from;
    if (!cairn_ip_parse(ip, &to, &to_bytes)) return false;
    const int fd = socket(to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    const bool ok = connect(fd, (const struct sockaddr *)&to, to_bytes) == 0 &&
                    getsockname(fd, (struct sockaddr *)&from, &from_bytes) == 0 &&
                    cairn_ip_print((const struct sockaddr *)&from, out);
    close(fd);
    return ok;
}

/* The kernel's answer to the question for a route, and where its attributes begin. */
struct route_answer {
    struct nlmsghdr head;
    struct rtmsg route;
    uint8_t attributes[1024];
};

static bool ask_route(const struct sockaddr_storage *to, struct route_answer *answer)
{
    const bool is_four = to->ss_family == AF_INET;
    const void *ip = is_four ? (const void *)&((const struct sockaddr_in *)to)->sin_addr
                             : (const void *)&((const struct sockaddr_in6 *)to)->sin6_addr;
    const unsigned short ip_bytes = is_four ? sizeof(struct in_addr) : sizeof(struct in6_addr);
    struct {
        struct nlmsghdr head;
        struct rtmsg route;
        struct rtattr to;
        uint8_t ip[sizeof(struct in6_addr)];
    } ask = { .head = { .nlmsg_type = RTM_GETROUTE, .nlmsg_flags = NLM_F_REQUEST },
              .route = { .rtm_family = (uint8_t)to->ss_family,
                         .rtm_dst_len = (uint8_t)(ip_bytes * 8) },
              .to = { .rta_type = RTA_DST, .rta_len = (unsigned short)RTA_LENGTH(ip_bytes) } };
    memcpy(ask.ip, ip, ip_bytes);
    ask.head.nlmsg_len = (uint32_t)(sizeof ask - sizeof ask.ip + ip_bytes);
    const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (fd < 0) return false;
    const ssize_t count = send(fd, &ask, ask.head.nlmsg_len, 0) == (ssize_t)ask.head.nlmsg_len
                              ? recv(fd, answer, sizeof *answer, 0)
                              : -1;
    close(fd);
    return count >= (ssize_t)NLMSG_LENGTH(sizeof answer->route) &&
           answer->head.nlmsg_type == RTM_NEWROUTE && answer->head.nlmsg_len <= (size_t)count;
}

/* False: the kernel does not say it, or the IP is one of ours, to which its route is loopback. */
static bool find_device_of_route(const char *ip, char out[IF_NAMESIZE])
{
    struct sockaddr_storage to;
    socklen_t to_bytes;
    struct route_answer answer;
    if (!cairn_ip_parse(ip, &to, &to_bytes) || !ask_route(&to, &answer) ||
        answer.route.rtm_type != RTN_UNICAST)
        return false;
    size_t left = RTM_PAYLOAD(&answer.head);
    for (const struct rtattr *one = RTM_RTA(&answer.route); RTA_OK(one, left);
         one = RTA_NEXT(one, left)) {
        unsigned index;
        if (one->rta_type != RTA_OIF || one->rta_len < RTA_LENGTH(sizeof index)) continue;
        memcpy(&index, RTA_DATA(one), sizeof index);
        return if_indextoname(index, out) != NULL;
    }
    return false;
}

static bool find_device_with(const char *ip, char out[IF_NAMESIZE])
{
    struct ifaddrs *all = NULL;
    char one_ip[INET6_ADDRSTRLEN];
    bool found = false;
    if (getifaddrs(&all) != 0) return false;
    for (const struct ifaddrs *one = all; one != NULL && !found; one = one->ifa_next) {
        if (!cairn_ip_print(one->ifa_addr, one_ip) || strcmp(one_ip, ip) != 0) continue;
        snprintf(out, IF_NAMESIZE, "%.*s", (int)strcspn(one->ifa_name, ":"), one->ifa_name);
        found = true;
    }
    freeifaddrs(all);
    return found;
}

bool cairn_route_find(const char *ip, struct cairn_route *out)
{
    return find_source(ip, out->source) &&
           (find_device_of_route(ip, out->device) || find_device_with(out->source, out->device));
}

/* ---- the choice ---- */

bool cairn_devices_have(const char *devices, const char *device)
{
    const size_t length = strlen(device);
    for (const char *at = devices; *at != '\0';) {
        const size_t one = strcspn(at, ",;");
        if (one == length && strncmp(at, device, one) == 0) return true;
        at += one + (at[one] != '\0');
    }
    return false;
}

static int count_networks(const char *devices)
{
    int count = devices[0] != '\0';
    for (; *devices != '\0'; devices++) count += *devices == ';';
    return count;
}

/* Adds a device, or leaves it out if there is no room for it. */
static void add_device(char devices[CAIRN_PLACE_DEVICES_BYTES], const char *device, char between)
{
    const size_t used = strlen(devices);
    const char mark[2] = { used > 0 ? between : '\0', '\0' };
    if (cairn_devices_have(devices, device) ||
        used + strlen(device) + 2 > CAIRN_PLACE_DEVICES_BYTES)
        return;
    if (between == ';' && count_networks(devices) == CAIRN_NETWORKS_MAX) return;
    snprintf(devices + used, CAIRN_PLACE_DEVICES_BYTES - used, "%s%s", mark, device);
}

static bool is_active(const char *infiniband, const char *card, const char *port)
{
    char path[PATH_MAX], state[32] = "";
    snprintf(path, sizeof path, "%s/%s/ports/%s/state", infiniband, card, port);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    const bool is_read = fgets(state, sizeof state, file) != NULL;
    fclose(file);
    return is_read && strstr(state, "ACTIVE") != NULL;
}

static void add_ports(const char *infiniband, const char *card, char *devices)
{
    char path[PATH_MAX], device[64];
    snprintf(path, sizeof path, "%s/%s/ports", infiniband, card);
    DIR *ports = opendir(path);
    if (ports == NULL) return;
    for (const struct dirent *port; (port = readdir(ports)) != NULL;) {
        if (port->d_name[0] == '.' || !is_active(infiniband, card, port->d_name)) continue;
        if (snprintf(device, sizeof device, "%s:%s", card, port->d_name) < (int)sizeof device)
            add_device(devices, device, ',');
    }
    closedir(ports);
}

static void add_cards(const char *infiniband, char *devices)
{
    DIR *cards = opendir(infiniband);
    if (cards == NULL) return;
    for (const struct dirent *card; (card = readdir(cards)) != NULL;)
        if (card->d_name[0] != '.') add_ports(infiniband, card->d_name, devices);
    closedir(cards);
}

void cairn_choose(const struct cairn_place *places, size_t count, const char *infiniband,
                  struct cairn_choice *out)
{
    struct cairn_route route;
    *out = (struct cairn_choice) { .transports = NULL };
    for (size_t i = 0; i < count && out->transports == NULL; i++) {
        if (strcmp(places[i].transports, "tcp") == 0 ||
            strcmp(places[i].transports, CAIRN_PLACE_MAPPED) == 0)
            continue;
        add_cards(infiniband, out->devices);
        if (out->devices[0] != '\0') out->transports = places[i].transports;
    }
    const char between = out->transports != NULL ? ',' : ';';
    for (size_t i = 0; i < count; i++)
        if (cairn_route_find(places[i].ip, &route)) add_device(out->devices, route.device, between);
}

/* ---- with an address ---- */

/* Behind UCX's own bytes, which know their length: the text, its length as one byte, and this. */
static const char tail_magic[8] = "CAIRNAT1";

size_t fabric_add_place(const struct cairn_place *place, uint8_t *raw, size_t bytes, size_t room)
{
    char text[CAIRN_PLACE_BYTES];
    cairn_place_print(place, text);
    const size_t length = strlen(text);
    if (room - bytes < length + 1 + sizeof tail_magic) return bytes;
    memcpy(raw + bytes, text, length);
    raw[bytes + length] = (uint8_t)length;
    memcpy(raw + bytes + length + 1, tail_magic, sizeof tail_magic);
    return bytes + length + 1 + sizeof tail_magic;
}

size_t fabric_find_place(const uint8_t *raw, size_t bytes, struct cairn_place *out)
{
    char text[CAIRN_PLACE_BYTES];
    if (bytes < 1 + sizeof tail_magic) return bytes;
    const uint8_t *magic = raw + bytes - sizeof tail_magic;
    const size_t length = magic[-1];
    if (memcmp(magic, tail_magic, sizeof tail_magic) != 0 || length >= sizeof text ||
        bytes - sizeof tail_magic - 1 < length)
        return bytes;
    memcpy(text, magic - 1 - length, length);
    text[length] = '\0';
    for (size_t i = 0; i < length; i++)
        if (text[i] < 0x20 || text[i] > 0x7e) return bytes;
    return cairn_place_parse(text, out) ? bytes - sizeof tail_magic - 1 - length : bytes;
}

bool cairn_fabric_address_place(const void *address, size_t bytes, int index,
                                struct cairn_place *out)
{
    size_t part_bytes, raw_bytes;
    const void *part = fabric_find_part(address, bytes, "ucx", index, &part_bytes);
    const void *raw = part != NULL ? fabric_open_part(part, part_bytes, "ucx", &raw_bytes) : NULL;
    return raw != NULL && fabric_find_place(raw, raw_bytes, out) < raw_bytes;
}

void cairn_fabric_address_print_places(const void *address, size_t bytes,
                                       char out[CAIRN_PLACE_BYTES])
{
    struct cairn_place place;
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; cairn_fabric_address_place(address, bytes, i, &place); i++) {
        char one[CAIRN_PLACE_BYTES];
        cairn_place_print(&place, one);
        if (used + strlen(one) + 3 > CAIRN_PLACE_BYTES) return;
        used += (size_t)snprintf(out + used, CAIRN_PLACE_BYTES - used, "%s%s", used > 0 ? "; " : "",
                                 one);
    }
}

/* ==== address ==== */

/* The envelope around a backend's address: UCX takes the lengths inside its own addresses on trust and
 * aborts on nonsense, so that garbage has to be refused before UCX sees it. */

/* How an address travels: this, then the backend's own bytes. Little endian, as all hosts here. */
struct envelope {
    char magic[8];
    char kind[7];
    uint8_t flags;  /* of enum flag; others are of later versions, and mean nothing to this one */
    uint64_t bytes; /* of the address behind this */
    uint64_t checksum; /* XXH3-64 of those, seeded with their number, plus the flags */
};
static_assert(sizeof(struct envelope) == 32, "wire format");
/* The number grows with what two ends have to have alike. 2: UCX's segments are 256 KiB; one that is
 * longer than its receiver's aborts the receiver. 3: over UCX small messages come in bundles. */
static const char envelope_magic[8] = "CAIRNFA3";
enum flag { FLAG_ONE_SIDED = 1 }; /* it may read, and be read */

/* The kind as 7 bytes, padded with NUL; names of backends are shorter. */
static void write_kind(const char *kind, char kind_out[7])
{
    memset(kind_out, 0, 7);
    memcpy(kind_out, kind, strnlen(kind, 7));
}

uint64_t fabric_hash(const void *bytes, size_t count)
{
    return XXH3_64bits_withSeed(bytes, count, count);
}

cairn_status fabric_set_address(struct cairn_fabric *fabric, const void *raw, size_t bytes)
{
    struct envelope envelope = { .bytes = bytes, .checksum = fabric_hash(raw, bytes) };
    if (bytes > sizeof fabric->address - sizeof envelope) return CAIRN_ERR_UNSUPPORTED;
    memcpy(envelope.magic, envelope_magic, sizeof envelope.magic);
    write_kind(fabric->backend->kind, envelope.kind);
    envelope.flags = fabric->is_one_sided ? FLAG_ONE_SIDED : 0;
    envelope.checksum += envelope.flags;
    memcpy(fabric->address, &envelope, sizeof envelope);
    memcpy(fabric->address + sizeof envelope, raw, bytes);
    fabric->address_bytes = sizeof envelope + bytes;
    return CAIRN_OK;
}

/* Opens an address: gives its envelope and returns the bytes inside; NULL: it is not whole. */
static const uint8_t *open_envelope(const uint8_t *address, size_t bytes,
                                    struct envelope *envelope_out)
{
    struct envelope envelope;
    if (bytes <= sizeof envelope || bytes > CAIRN_FABRIC_ADDRESS_MAX) return NULL;
    memcpy(&envelope, address, sizeof envelope);
    const uint8_t *raw = address + sizeof envelope;
    if (memcmp(envelope.magic, envelope_magic, sizeof envelope.magic) != 0 ||
        envelope.bytes != bytes - sizeof envelope ||
        envelope.checksum != fabric_hash(raw, envelope.bytes) + envelope.flags)
        return NULL;
    *envelope_out = envelope;
    return raw;
}

const void *fabric_find_part(const void *address, size_t bytes, const char *of_kind, int index,
                             size_t *part_bytes_out)
{
    static const char several[7] = "auto";
    struct envelope part;
    char kind[sizeof part.kind];
    write_kind(of_kind, kind);
    const uint8_t *at = open_envelope(address, bytes, &part);
    if (at == NULL) return NULL;
    if (memcmp(part.kind, several, sizeof several) != 0) { // it is its only part
        *part_bytes_out = bytes;
        return memcmp(part.kind, kind, sizeof kind) == 0 && index == 0 ? address : NULL;
    }
    bytes = part.bytes;
    while (bytes > sizeof part) {
        memcpy(&part, at, sizeof part);
        if (part.bytes > bytes - sizeof part) return NULL;
        const size_t part_bytes = sizeof part + part.bytes;
        if (open_envelope(at, part_bytes, &part) == NULL) return NULL;
        if (memcmp(part.kind, kind, sizeof part.kind) == 0 && index-- == 0) {
            *part_bytes_out = part_bytes;
            return at;
        }
        at += part_bytes;
        bytes -= part_bytes;
    }
    return NULL;
}

const void *fabric_open_part(const void *address, size_t bytes, const char *of_kind,
                             size_t *raw_bytes_out)
{
    struct envelope envelope;
    size_t part_bytes;
    const void *part = fabric_find_part(address, bytes, of_kind, 0, &part_bytes);
    if (part == NULL) return NULL;
    const void *raw = open_envelope(part, part_bytes, &envelope);
    *raw_bytes_out = envelope.bytes;
    return raw;
}

const void *fabric_open_address(const struct cairn_fabric *fabric, const void *address,
                                size_t bytes, size_t *raw_bytes_out)
{
    return fabric_open_part(address, bytes, fabric->backend->kind, raw_bytes_out);
}

const char *cairn_fabric_address_kind(const void *address, size_t bytes)
{
    static const char *const kinds[] = { "auto", "mapped", "ucx", "mem" };
    struct envelope envelope;
    if (open_envelope(address, bytes, &envelope) == NULL) return "";
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strncmp(envelope.kind, kinds[i], sizeof envelope.kind) == 0) return kinds[i];
    return "";
}

const char *cairn_fabric_address_ways(const void *address, size_t bytes)
{
    struct envelope envelope;
    const char *kind = cairn_fabric_address_kind(address, bytes);
    if (open_envelope(address, bytes, &envelope) == NULL) return kind;
    const bool reads = (envelope.flags & FLAG_ONE_SIDED) != 0;
    const bool imports = fabric_address_imports(address, bytes);
    if (strcmp(kind, "mapped") == 0) return imports ? "mapped, device" : kind;
    if (strcmp(kind, "auto") != 0) return reads ? "ucx, one-sided" : kind;
    if (imports) return reads ? "auto, one-sided, device" : "auto, device";
    return reads ? "auto, one-sided" : kind;
}

const void *cairn_fabric_address(const struct cairn_fabric *fabric, size_t *bytes_out)
{
    *bytes_out = fabric->address_bytes;
    return fabric->address;
}
