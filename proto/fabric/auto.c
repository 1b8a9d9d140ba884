/* The auto fabric uses the mapped fabric for the peers on this host that mapped can reach, and network
 * fabrics for all other peers: sealed by default, stream or ucx where the operator trusts the network
 * (options.ways). The auto fabric consists of several fabrics behind one interface. A peer or a message
 * belongs to one of these fabrics, and calls with that object are passed directly to that fabric. A region
 * of auto is one region in each fabric.
 *
 * No peer on another host connects over loopback. So on "lo" alone there is no network fabric, and no port
 * is open. Three cases need one all the same: the mapped fabric cannot be opened, or hosts are told apart by
 * names (options.host) and several of them share a loopback, or some peers are known to be reached over the
 * network "lo" (options.has_loopback).
 *
 * There is one ucx fabric for each network that the other fabrics do not reach ("eth1;eth2"). In a fabric
 * on several devices UCX pairs any two devices, and may give a peer that is only on one network an address
 * on another network (1.13, seen). Here the kernel's routes pair the devices. A sealed or stream fabric
 * listens on all networks, and tries the addresses of a node by the same routes.
 *
 * Both ends of a connection use the same way, and an address says which ways its owner serves. With several
 * in common, ucx comes first if both have cards, then stream, then sealed, then ucx without cards.
 *
 * Each of the fabrics has its own bounds (sends_max, held_max). Each end chooses the fabric for the
 * messages that it sends: one direction may be mapped and the other not. */
#include "proto/fabric/backend.h"

#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "proto/fabric/fabric.h"

enum { NETWORK_FIRST = 1, INSIDES_MAX = NETWORK_FIRST + CAIRN_NETWORKS_MAX + 2 };

struct auto_fabric {
    struct fabric common;
    /* owned; [0] is the mapped fabric, or NULL if it could not be opened; the network fabrics follow, the
     * preferred first. At least one fabric exists */
    struct fabric *insides[INSIDES_MAX];
    int count; /* of insides */
};

struct auto_region {
    struct fabric_region common;
    struct fabric_region *insides[INSIDES_MAX]; /* owned by the fabrics inside; NULL: none */
};

static struct auto_fabric *auto_of(struct fabric *fabric)
{
    return (struct auto_fabric *)fabric;
}

/* -- opening and closing ------------------------------------------------------------------------ */

static bool watch_inside(int epoll, const struct fabric *inside)
{
    struct epoll_event event = { .events = EPOLLIN };
    return inside == NULL || epoll_ctl(epoll, EPOLL_CTL_ADD, inside->event_fd, &event) == 0;
}

/* If there is no network fabric, publishes the mapped fabric's address, so that every node sees how we can be
 * reached. */
static cairn_status publish_address(struct auto_fabric *fabric)
{
    uint8_t all[CAIRN_FABRIC_ADDRESS_MAX];
    size_t bytes = 0;
    if (fabric->count == NETWORK_FIRST) {
        const struct fabric *mapped = fabric->insides[0];
        memcpy(fabric->common.address, mapped->address, mapped->address_bytes);
        fabric->common.address_bytes = mapped->address_bytes;
        return CAIRN_OK;
    }
    for (int i = 0; i < fabric->count; i++) {
        const struct fabric *inside = fabric->insides[i];
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
    for (int i = 0; i < fabric->count; i++) fabric_close(fabric->insides[i]);
    if (fabric->common.event_fd >= 0) close(fabric->common.event_fd);
}

static bool is_network_needed(const struct auto_fabric *fabric,
                              const struct fabric_options *options)
{
    const bool is_loopback = options->net_devices == NULL ||
                             strcmp(options->net_devices, "lo") == 0;
    return !is_loopback || options->host != NULL || options->has_loopback ||
           fabric->insides[0] == NULL;
}

/* Device memory is taken only if every network fabric takes it, since the owner has peers on all of
 * them. If a fabric does not, device_why is that fabric's reason. */
static void publish_device(struct auto_fabric *fabric)
{
    for (int i = fabric->count - 1; i >= NETWORK_FIRST; i--) {
        const struct fabric *inside = fabric->insides[i];
        if (i < fabric->count - 1 && inside->takes_device) continue;
        fabric->common.takes_device = inside->takes_device;
        fabric->common.device_why = inside->device_why;
    }
}

static cairn_status open_one(struct auto_fabric *fabric, const char *kind,
                             const struct fabric_options *options, struct sentence *why)
{
    CAIRN_TRY(fabric_open(kind, options, &fabric->insides[fabric->count], why));
    fabric->count++;
    return CAIRN_OK;
}

/* Opens one ucx fabric for each network that the options name. */
static cairn_status open_ucx(struct auto_fabric *fabric, const struct fabric_options *options,
                             struct sentence *why)
{
    struct fabric_options one = *options;
    char devices[CAIRN_PLACE_DEVICES_BYTES * 2];
    const char *at = options->net_devices != NULL ? options->net_devices : "";
    do {
        const size_t length = strcspn(at, ";");
        if (fabric->count == NETWORK_FIRST + CAIRN_NETWORKS_MAX || length >= sizeof devices)
            return fail_with(why, CAIRN_ERR_INVALID,
                             "devices %s: at most %d networks with ';' between them, and each "
                             "list under %zu bytes",
                             options->net_devices, CAIRN_NETWORKS_MAX, sizeof devices);
        memcpy(devices, at, length);
        devices[length] = '\0';
        if (options->net_devices != NULL) one.net_devices = devices;
        CAIRN_TRY(open_one(fabric, "ucx", &one, why));
        at += length + (at[length] == ';');
    } while (*at != '\0');
    return CAIRN_OK;
}

static cairn_status open_networks(struct auto_fabric *fabric, const struct fabric_options *options,
                                  struct sentence *why)
{
    const unsigned ways = options->ways != 0 ? options->ways : (unsigned)CAIRN_WAY_SEALED;
    if ((ways & CAIRN_WAY_UCX) != 0) CAIRN_TRY(open_ucx(fabric, options, why));
    if ((ways & CAIRN_WAY_STREAM) != 0) CAIRN_TRY(open_one(fabric, "stream", options, why));
    if ((ways & CAIRN_WAY_SEALED) != 0) CAIRN_TRY(open_one(fabric, "sealed", options, why));
    return CAIRN_OK;
}

static bool watch_all(struct auto_fabric *fabric)
{
    fabric->common.event_fd = epoll_create1(EPOLL_CLOEXEC);
    bool ok = fabric->common.event_fd >= 0;
    for (int i = 0; i < fabric->count && ok; i++)
        ok = watch_inside(fabric->common.event_fd, fabric->insides[i]);
    return ok;
}

static cairn_status auto_start(struct fabric *common, const struct fabric_options *options,
                               struct sentence *why)
{
    struct auto_fabric *fabric = auto_of(common);
    struct sentence no_mapped = { "" };
    cairn_status status = CAIRN_OK;
    fabric->count = NETWORK_FIRST;
    if (fabric_open("mapped", options, &fabric->insides[0], &no_mapped) != CAIRN_OK)
        fabric->insides[0] = NULL;
    if (is_network_needed(fabric, options)) status = open_networks(fabric, options, why);
    if (status != CAIRN_OK) goto err_close;
    if (!watch_all(fabric)) {
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "fabric auto: no event descriptor: %m");
        goto err_close;
    }
    publish_device(fabric);
    status = publish_address(fabric);
    if (status != CAIRN_OK) {
        sentence_set(why, "fabric auto: the addresses together are over %d bytes",
                     CAIRN_FABRIC_ADDRESS_MAX);
        goto err_close;
    }
    snprintf(common->describe, sizeof common->describe, "auto: %.240s; else %.240s",
             fabric->insides[0] != NULL ? fabric->insides[0]->describe : no_mapped.text,
             fabric->count > NETWORK_FIRST ? fabric->insides[NETWORK_FIRST]->describe
                                           : "nobody: it listens on no network");
    return CAIRN_OK;
err_close:
    close_insides(fabric);
    return status;
}

/* First marks all fabrics as closing, since a callback of one fabric must not begin anything with another
 * fabric. */
static void auto_stop(struct fabric *common)
{
    struct auto_fabric *fabric = auto_of(common);
    for (int i = 0; i < fabric->count; i++)
        if (fabric->insides[i] != NULL) fabric->insides[i]->is_closing = true;
    close_insides(fabric);
}

/* -- peers and regions -------------------------------------------------------------------------- */

static bool is_kind(const struct fabric *inside, const char *kind)
{
    return strcmp(inside->backend->kind, kind) == 0;
}

static bool is_on(const struct fabric *ucx, const char *device)
{
    struct fabric_place own;
    return fabric_address_place(ucx->address, ucx->address_bytes, 0, &own) &&
           devices_have(own.devices, device);
}

/* Returns one of our ucx fabrics, and sets *address to the address of one of the peer's ucx fabrics, such
 * that a kernel route connects the two. If there is no such route, returns our first ucx fabric and leaves
 * *address as it is, so that the peer's first ucx fabric is reached. Returns NULL if we, or they, have no
 * ucx fabric. */
static struct fabric *find_ucx(struct auto_fabric *fabric, const void **address, size_t *bytes)
{
    struct fabric_place theirs;
    struct route route;
    size_t part_bytes;
    int last = NETWORK_FIRST;
    while (last < fabric->count && is_kind(fabric->insides[last], "ucx")) last++;
    const void *part = fabric_find_part(*address, *bytes, "ucx", 0, &part_bytes);
    if (last == NETWORK_FIRST || part == NULL) return NULL;
    if (last == NETWORK_FIRST + 1 &&
        fabric_find_part(*address, *bytes, "ucx", 1, &part_bytes) == NULL)
        return fabric->insides[NETWORK_FIRST];
    for (int n = 0; (part = fabric_find_part(*address, *bytes, "ucx", n, &part_bytes)) != NULL;
         n++) {
        if (!fabric_address_place(part, part_bytes, 0, &theirs) || !route_find(theirs.ip, &route))
            continue;
        for (int i = NETWORK_FIRST; i < last; i++) {
            if (!is_on(fabric->insides[i], route.device)) continue;
            *address = part;
            *bytes = part_bytes;
            return fabric->insides[i];
        }
    }
    return fabric->insides[NETWORK_FIRST];
}

/* True if the fabric's first ucx fabric has transports besides TCP. */
static bool has_cards(const void *address, size_t bytes)
{
    struct fabric_place place;
    size_t part_bytes;
    const void *part = fabric_find_part(address, bytes, "ucx", 0, &part_bytes);
    return part != NULL && fabric_address_place(part, part_bytes, 0, &place) &&
           fabric_transports_have_cards(place.transports);
}

/* Returns our fabric of a kind that the peer's address has, too; NULL: there is none. */
static struct fabric *find_kind(struct auto_fabric *fabric, const void *address, size_t bytes,
                                const char *kind)
{
    size_t part_bytes;
    if (fabric_find_part(address, bytes, kind, 0, &part_bytes) == NULL) return NULL;
    for (int i = NETWORK_FIRST; i < fabric->count; i++)
        if (is_kind(fabric->insides[i], kind)) return fabric->insides[i];
    return NULL;
}

/* Returns the network fabric by which to reach the owner of this address; NULL: there is none. *address is
 * then the part of the address to use. */
static struct fabric *find_way(struct auto_fabric *fabric, const void **address, size_t *bytes)
{
    const struct fabric *own = &fabric->common;
    struct fabric *way = NULL;
    if (has_cards(own->address, own->address_bytes) && has_cards(*address, *bytes))
        way = find_ucx(fabric, address, bytes);
    if (way == NULL) way = find_kind(fabric, *address, *bytes, "stream");
    if (way == NULL) way = find_kind(fabric, *address, *bytes, "sealed");
    return way != NULL ? way : find_ucx(fabric, address, bytes);
}

static cairn_status auto_connect(struct fabric *common, const void *address, size_t bytes,
                                 fabric_down_fn *on_down, void *arg, struct fabric_peer **peer_out)
{
    struct auto_fabric *fabric = auto_of(common);
    // as if the address had no part for the missing fabric
    cairn_status mapped = CAIRN_ERR_MALFORMED;
    if (fabric->insides[0] != NULL)
        mapped = fabric_connect_to(fabric->insides[0], address, bytes, on_down, arg, peer_out);
    if (mapped == CAIRN_OK) return CAIRN_OK;
    struct fabric *way = find_way(fabric, &address, &bytes);
    if (way == NULL) return mapped;
    const cairn_status far = fabric_connect_to(way, address, bytes, on_down, arg, peer_out);
    return far == CAIRN_ERR_MALFORMED ? mapped : far;
}

static cairn_status auto_expect(struct fabric *common, const void *address, size_t bytes,
                                bool is_expected)
{
    const struct auto_fabric *fabric = auto_of(common);
    for (int i = NETWORK_FIRST; i < fabric->count; i++) {
        struct fabric *inside = fabric->insides[i];
        if (inside->backend->expect != NULL)
            CAIRN_TRY(inside->backend->expect(inside, address, bytes, is_expected));
    }
    return CAIRN_OK;
}

static void auto_region_drop(struct fabric_region *common)
{
    const struct auto_region *region = (const struct auto_region *)common;
    for (int i = 0; i < INSIDES_MAX; i++) fabric_region_drop(region->insides[i]);
}

static cairn_status add_inside(struct fabric *inside, const struct fabric_region *region,
                               struct fabric_region **region_out)
{
    if (region->is_device)
        return fabric_region_add_device(inside, region->base, region->bytes, region->fd,
                                        region->uuid, region->note, region->note_bytes, region_out);
    return fabric_region_add(inside, region->base, region->bytes, region->fd, region->note,
                             region->note_bytes, region_out);
}

/* A ucx fabric only keeps the region, and registers it at the first read. So the call costs nothing if no
 * peer reads the region one-sidedly. */
static cairn_status auto_region_add(struct fabric_region *common)
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

static cairn_status auto_region_show(struct fabric_region *common, struct fabric_peer *peer)
{
    const struct auto_region *region = (const struct auto_region *)common;
    return region->insides[0] != NULL ? fabric_region_show(region->insides[0], peer) : CAIRN_OK;
}

static void auto_hold_off(struct fabric *common, bool is_off)
{
    const struct auto_fabric *fabric = auto_of(common);
    if (fabric->insides[0] != NULL) fabric_hold_off(fabric->insides[0], is_off);
}

static void auto_set_patience(struct fabric *common, uint32_t ms)
{
    const struct auto_fabric *fabric = auto_of(common);
    for (int i = 0; i < fabric->count; i++)
        if (fabric->insides[i] != NULL) fabric_set_patience(fabric->insides[i], ms);
}

/* -- driving ------------------------------------------------------------------------------------ */

static unsigned auto_progress(struct fabric *common)
{
    struct auto_fabric *fabric = auto_of(common);
    unsigned count = 0;
    for (int i = 0; i < fabric->count; i++)
        if (fabric->insides[i] != NULL) count += fabric_progress(fabric->insides[i]);
    return count;
}

static cairn_status auto_arm(struct fabric *common)
{
    struct auto_fabric *fabric = auto_of(common);
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < fabric->count && status == CAIRN_OK; i++)
        if (fabric->insides[i] != NULL) status = fabric_arm(fabric->insides[i]);
    return status;
}

/* Adds up the counters. A counter that only one kind of fabric has is 0 in the others. */
static void add_stats(struct fabric_stats *all, const struct fabric_stats *one)
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

static void auto_stats(const struct fabric *common, struct fabric_stats *stats_out)
{
    const struct auto_fabric *fabric = (const struct auto_fabric *)common;
    *stats_out = (struct fabric_stats) { 0 };
    for (int i = 0; i < fabric->count; i++) {
        struct fabric_stats one;
        if (fabric->insides[i] == NULL) continue;
        fabric_stats(fabric->insides[i], &one);
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
    .expect = auto_expect,
    .region_bytes = sizeof(struct auto_region),
    .region_add = auto_region_add,
    .region_show = auto_region_show,
    .region_drop = auto_region_drop,
    .hold_off = auto_hold_off,
    .set_patience = auto_set_patience,
    .stats = auto_stats,
};
