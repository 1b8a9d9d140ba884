/* The auto fabric: the mapped one to peers of this host that can be reached so, the ucx one to all
 * others. Two fabrics behind one face; peers and messages are of the one or the other, and whatever is
 * done with them goes there by itself. A region is one of each.
 *
 * What is bounded (sends_max, held_max) is so for each of the two. Each end chooses for the messages that
 * it sends: one direction may be mapped and the other not. */
#include "proto/fabric/backend.h"

#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

struct auto_fabric {
    struct cairn_fabric common;
    /* owned */
    struct cairn_fabric *mapped; /* NULL: it could not be opened */
    struct cairn_fabric *ucx;
};

struct auto_region {
    struct cairn_fabric_region common;
    struct cairn_fabric_region *mapped, *ucx; /* owned by theirs; mapped may be NULL */
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

static cairn_status publish_address(struct auto_fabric *fabric)
{
    uint8_t both[CAIRN_FABRIC_ADDRESS_MAX];
    const struct cairn_fabric *const insides[2] = { fabric->mapped, fabric->ucx };
    size_t bytes = 0;
    fabric->common.is_one_sided = fabric->ucx->is_one_sided;
    for (int i = 0; i < 2; i++) {
        if (insides[i] == NULL) continue;
        if (insides[i]->address_bytes > sizeof both - bytes) return CAIRN_ERR_UNSUPPORTED;
        memcpy(both + bytes, insides[i]->address, insides[i]->address_bytes);
        bytes += insides[i]->address_bytes;
    }
    return fabric_set_address(&fabric->common, both, bytes);
}

static void close_insides(struct auto_fabric *fabric)
{
    cairn_fabric_close(fabric->mapped);
    cairn_fabric_close(fabric->ucx);
    if (fabric->common.event_fd >= 0) close(fabric->common.event_fd);
}

static cairn_status auto_start(struct cairn_fabric *common,
                               const struct cairn_fabric_options *options,
                               struct cairn_sentence *why)
{
    struct auto_fabric *fabric = auto_of(common);
    struct cairn_sentence no_mapped = { "" };
    cairn_status status = cairn_fabric_open("ucx", options, &fabric->ucx, why);
    if (status != CAIRN_OK) return status;
    if (cairn_fabric_open("mapped", options, &fabric->mapped, &no_mapped) != CAIRN_OK)
        fabric->mapped = NULL;
    common->event_fd = epoll_create1(EPOLL_CLOEXEC);
    if (common->event_fd < 0 || !watch(common->event_fd, fabric->mapped) ||
        !watch(common->event_fd, fabric->ucx)) {
        status = cairn_fail(why, CAIRN_ERR_NO_MEMORY, "fabric auto: no event descriptor: %m");
        goto err_close;
    }
    status = publish_address(fabric);
    if (status != CAIRN_OK) {
        cairn_sentence_set(why, "fabric auto: both addresses together are over %d bytes",
                           CAIRN_FABRIC_ADDRESS_MAX);
        goto err_close;
    }
    snprintf(common->describe, sizeof common->describe, "auto: %.240s; else %.240s",
             fabric->mapped != NULL ? fabric->mapped->describe : no_mapped.text,
             fabric->ucx->describe);
    return CAIRN_OK;
err_close:
    close_insides(fabric);
    return status;
}

/* Both first: a callback of the one must not begin anything with the other. */
static void auto_stop(struct cairn_fabric *common)
{
    struct auto_fabric *fabric = auto_of(common);
    if (fabric->mapped != NULL) fabric->mapped->is_closing = true;
    fabric->ucx->is_closing = true;
    close_insides(fabric);
}

/* -- peers and regions -------------------------------------------------------------------------- */

static cairn_status auto_connect(struct cairn_fabric *common, const void *address, size_t bytes,
                                 cairn_fabric_down_fn *on_down, void *arg,
                                 struct cairn_fabric_peer **peer_out)
{
    struct auto_fabric *fabric = auto_of(common);
    cairn_status mapped = CAIRN_ERR_MALFORMED; // a fabric that is not there finds no address
    if (fabric->mapped != NULL)
        mapped = cairn_fabric_connect(fabric->mapped, address, bytes, on_down, arg, peer_out);
    if (mapped == CAIRN_OK) return CAIRN_OK;
    const cairn_status ucx = cairn_fabric_connect(fabric->ucx, address, bytes, on_down, arg,
                                                  peer_out);
    return ucx == CAIRN_ERR_MALFORMED ? mapped : ucx;
}

/* The ucx one keeps what it is told and registers it when it is first read, so that this costs nothing
 * where nobody reads it so. */
static cairn_status auto_region_add(struct cairn_fabric_region *common)
{
    struct auto_fabric *fabric = auto_of(common->fabric);
    struct auto_region *region = (struct auto_region *)common;
    cairn_status status = cairn_fabric_region_add(fabric->ucx, common->base, common->bytes,
                                                  common->fd, common->note, common->note_bytes,
                                                  &region->ucx);
    if (status != CAIRN_OK || fabric->mapped == NULL) return status;
    status = cairn_fabric_region_add(fabric->mapped, common->base, common->bytes, common->fd,
                                     common->note, common->note_bytes, &region->mapped);
    if (status != CAIRN_OK) cairn_fabric_region_drop(region->ucx);
    return status;
}

static cairn_status auto_region_show(struct cairn_fabric_region *common,
                                     struct cairn_fabric_peer *peer)
{
    const struct auto_region *region = (const struct auto_region *)common;
    return region->mapped != NULL ? cairn_fabric_region_show(region->mapped, peer) : CAIRN_OK;
}

static void auto_region_drop(struct cairn_fabric_region *common)
{
    const struct auto_region *region = (const struct auto_region *)common;
    cairn_fabric_region_drop(region->mapped);
    cairn_fabric_region_drop(region->ucx);
}

/* -- driving ------------------------------------------------------------------------------------ */

static unsigned auto_progress(struct cairn_fabric *common)
{
    struct auto_fabric *fabric = auto_of(common);
    unsigned count = 0;
    if (fabric->mapped != NULL) count += cairn_fabric_progress(fabric->mapped);
    count += cairn_fabric_progress(fabric->ucx);
    return count;
}

static cairn_status auto_arm(struct cairn_fabric *common)
{
    struct auto_fabric *fabric = auto_of(common);
    cairn_status status = CAIRN_OK;
    if (fabric->mapped != NULL) status = cairn_fabric_arm(fabric->mapped);
    return status == CAIRN_OK ? cairn_fabric_arm(fabric->ucx) : status;
}

static void auto_stats(const struct cairn_fabric *common, struct cairn_fabric_stats *stats_out)
{
    const struct auto_fabric *fabric = (const struct auto_fabric *)common;
    struct cairn_fabric_stats m = { 0 }, u;
    if (fabric->mapped != NULL) cairn_fabric_stats(fabric->mapped, &m);
    cairn_fabric_stats(fabric->ucx, &u);
    *stats_out = (struct cairn_fabric_stats) {
        .messages_sent = m.messages_sent + u.messages_sent,
        .bytes_sent = m.bytes_sent + u.bytes_sent,
        .messages_received = m.messages_received + u.messages_received,
        .bytes_received = m.bytes_received + u.bytes_received,
        .messages_dropped = m.messages_dropped + u.messages_dropped,
        .messages_refused = m.messages_refused + u.messages_refused,
        .peers_down = m.peers_down + u.peers_down,
        .connections_refused = m.connections_refused + u.connections_refused,
        .references_sent = u.references_sent,
        .references_declined = u.references_declined,
        .bytes_read = u.bytes_read,
        .sends_now = m.sends_now + u.sends_now,
        .receives_now = m.receives_now + u.receives_now,
        .held_now = m.held_now + u.held_now,
        .peers_now = m.peers_now + u.peers_now,
    };
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
    .stats = auto_stats,
};
