/* Links: what the owner's thread knows of another node, and its connections to it.
 *
 * A link is up while it has a connection. Messages that are sent before that wait in the link. A link ends
 * when any of its connections ends after it was up: nobody can tell which messages were in the sockets. It
 * lives on as a struct while peers, messages or connections refer to it. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "proto/base/machine.h"
#include "proto/base/text.h"
#include "proto/fabric/remote.h"

enum {
    NEXT_MS = 250,       /* before the next address is tried besides */
    DIAL_AGAIN_MS = 250, /* after all addresses of a node were tried */
    ADMIT_MS = 500,      /* for a connection that the node has made already */
    /* if the node refuses: it may connect to us, if it is behind a firewall, and is about to */
    REFUSED_MS = 1000,
    /* a lane or a pulse that could not be made is tried again, after twice the time each time */
    TOP_AGAIN_MS = 1000,
    TOP_AGAIN_MAX_MS = 60000,
    CUT_SAID_MS = 10000,
    LINGER_MS = 500, /* for the last messages to a node without peers */
};

/* ---- links ---- */

struct remote_link *remote_link_find(struct remote_fabric *fabric, const uint8_t *key)
{
    struct remote_link *link;
    LIST_FOREACH (link, &fabric->links, entry)
        if (!link->is_lost && memcmp(link->key, key, sizeof link->key) == 0) return link;
    return NULL;
}

struct remote_link *remote_link_open(struct remote_fabric *fabric, const uint8_t *key)
{
    struct remote_link *link = calloc(1, sizeof *link);
    if (link == NULL) return NULL;
    link->fabric = fabric;
    memcpy(link->key, key, sizeof link->key);
    while (link->incarnation == 0) randombytes_buf(&link->incarnation, sizeof link->incarnation);
    LIST_INIT(&link->peers);
    TAILQ_INIT(&link->conns);
    TAILQ_INIT(&link->waiting);
    snprintf(link->name, sizeof link->name, "a node that connected");
    LIST_INSERT_HEAD(&fabric->links, link, entry);
    fabric->common.stats.endpoints_made++;
    fabric->common.stats.endpoints_now++;
    remote_tick_soon(fabric);
    return link;
}

void remote_link_lose(struct remote_link *link, cairn_status why)
{
    struct remote_peer *peer;
    struct remote_conn *conn, *next;
    if (link->is_lost) return;
    link->is_lost = true;
    LIST_FOREACH (peer, &link->peers, of_link) fabric_peer_lost(&peer->common, why);
    for (conn = TAILQ_FIRST(&link->conns); conn != NULL; conn = next) {
        next = TAILQ_NEXT(conn, entry);
        remote_conn_end(conn);
    }
    remote_sends_end(link);
}

static void link_free(struct remote_link *link)
{
    LIST_REMOVE(link, entry);
    link->fabric->common.stats.endpoints_now--;
    free(link->flights.all);
    sodium_memzero(&link->address, sizeof link->address);
    free(link);
}

void remote_link_close(struct remote_link *link)
{
    remote_link_lose(link, CAIRN_ERR_CLOSED);
    link_free(link);
}

void remote_links_sweep(struct remote_fabric *fabric)
{
    struct remote_link *link = LIST_FIRST(&fabric->links), *next;
    for (; link != NULL; link = next) {
        next = LIST_NEXT(link, entry);
        if (link->is_lost && LIST_EMPTY(&link->peers) && link->held == 0 && link->conn_count == 0)
            link_free(link);
    }
}

/* Says why a link that was up has ended, if it is not the other end's own wish. */
static void say_lost(const struct remote_link *link, const char *why)
{
    const struct fabric_options *options = &link->fabric->common.options;
    char text[256];
    if (options->on_refused == NULL) return;
    snprintf(text, sizeof text, "the connections to %s end: %s", link->name, why);
    options->on_refused(options->on_message_arg, text);
}

/* Many nodes may end at once; one of them is named. */
static void say_cut(struct remote_link *link)
{
    const uint64_t now_ms = monotonic_ms();
    struct remote_fabric *fabric = link->fabric;
    if (fabric->cut_said_ms != 0 && now_ms - fabric->cut_said_ms < CUT_SAID_MS) return;
    fabric->cut_said_ms = now_ms;
    say_lost(link,
             "one was cut off, and the node had not closed it: the node was killed, or somebody on "
             "the network ends its connections");
}

void remote_link_on_broken(struct remote_conn *conn, const char *fault, bool is_cut)
{
    struct remote_link *link = conn->link;
    if (fault != NULL) {
        conn->fabric->common.stats.connections_refused++;
        say_lost(link, fault);
    } else if (is_cut && link->linger_ms == 0) {
        say_cut(link);
    }
    remote_link_lose(link, CAIRN_ERR_CLOSED);
}

void remote_link_on_pulse(struct remote_conn *conn)
{
    uint8_t byte;
    const ssize_t got = recv(conn->fd, &byte, sizeof byte, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got < 0 && errno == ETIMEDOUT)
        say_lost(conn->link, "its host has acknowledged nothing for longer than the patience of "
                             "this fabric");
    if (got > 0) conn->fabric->common.stats.connections_refused++;
    remote_link_lose(conn->link, CAIRN_ERR_CLOSED);
}

/* ---- dialing ---- */

static bool is_dialing(const struct remote_link *link)
{
    const struct remote_conn *conn;
    TAILQ_FOREACH (conn, &link->conns, entry)
        if (conn->is_dialed && conn->state < REMOTE_IS_UP) return true;
    return false;
}

/* Tries the next address of this round, or one after it if it fails at once. The one behind that is tried
 * soon, too: an address that does not answer holds nobody up. */
static void dial_next(struct remote_link *link)
{
    while (link->ip_next < link->ip_count) {
        struct sockaddr_storage to;
        remote_ip_to(&link->ips[link->ip_next++], &to);
        link->dial_ms = link->ip_next < link->ip_count ? monotonic_ms() + NEXT_MS : 0;
        if (remote_dial(link, &to, false)) return;
    }
    link->dial_ms = 0;
    if (is_dialing(link)) return; // the last that fails begins the next round
    const uint64_t now_ms = monotonic_ms(), refused_ms = link->since_ms + REFUSED_MS;
    if (link->refused_count >= link->ip_count && refused_ms < link->limit_ms)
        link->limit_ms = refused_ms;
    link->ip_next = link->refused_count = 0;
    link->dial_ms = now_ms + DIAL_AGAIN_MS;
    remote_tick_soon(link->fabric);
}

void remote_link_on_failed(struct remote_link *link, bool is_refused)
{
    if (is_refused) link->refused_count++;
    if (!link->is_lost && link->up_count == 0) dial_next(link);
}

/* Makes the other connections of a link to which we made the first one; also later, those that failed. */
static void top_up(struct remote_link *link, uint64_t now_ms)
{
    if (link->top_to.ss_family == AF_UNSPEC || now_ms < link->top_ms ||
        link->conn_count > link->up_count + link->pulse_count) // some are being made
        return;
    if (link->pulse_count == 0) (void)remote_dial(link, &link->top_to, true);
    for (uint32_t i = link->up_count; i < REMOTE_LANES; i++)
        (void)remote_dial(link, &link->top_to, false);
    link->top_ms = now_ms + link->top_delay_ms;
    if (link->top_delay_ms < TOP_AGAIN_MAX_MS) link->top_delay_ms *= 2;
}

/* Ends the attempts by other addresses, unless the node may have heard of them already. */
static void end_losers(struct remote_link *link)
{
    struct remote_conn *conn = TAILQ_FIRST(&link->conns), *next;
    for (; conn != NULL; conn = next) {
        next = TAILQ_NEXT(conn, entry);
        if (conn->is_dialed && conn->state <= REMOTE_GREETS) remote_conn_end(conn);
    }
}

void remote_link_on_up(struct remote_conn *conn)
{
    struct remote_link *link = conn->link;
    if (conn->is_pulse) {
        link->pulse_count++;
        return;
    }
    if (link->up_count == 0) end_losers(link); // one that was up ends with its link
    link->up_count++;
    link->dial_ms = link->limit_ms = 0;
    if (conn->is_dialed && link->top_to.ss_family == AF_UNSPEC) {
        link->top_to = conn->to;
        link->top_delay_ms = TOP_AGAIN_MS;
        top_up(link, monotonic_ms());
    }
    remote_sends_begin(conn);
}

/* True if the IP is reached over one of the devices that we listen on. */
static bool is_on_our_way(const struct remote_fabric *fabric, const struct remote_ip *ip)
{
    char text[INET6_ADDRSTRLEN];
    struct route route;
    remote_ip_print(ip, text);
    if (!route_find(text, &route)) return false;
    for (uint32_t i = 0; i < fabric->listener_count; i++)
        if (strcmp(fabric->listeners[i].device, route.device) == 0) return true;
    return false;
}

/* Keeps the address, with those IPs first to which the kernel's routes lead over our devices. */
static void take_address(struct remote_link *link, const struct remote_address *address,
                         const struct remote_ip *ips)
{
    bool is_first[REMOTE_IPS_MAX];
    char text[INET6_ADDRSTRLEN];
    link->address = *address;
    link->ip_count = 0;
    for (uint32_t i = 0; i < address->count; i++)
        is_first[i] = is_on_our_way(link->fabric, &ips[i]);
    for (int wanted = 1; wanted >= 0; wanted--)
        for (uint32_t i = 0; i < address->count; i++)
            if (is_first[i] == (wanted == 1)) link->ips[link->ip_count++] = ips[i];
    const struct remote_ip *first = &link->ips[0];
    remote_ip_print(first, text);
    snprintf(link->name, sizeof link->name, first->family == 4 ? "%s:%u" : "[%s]:%u", text,
             first->port);
}

static bool read_address(const void *raw, size_t bytes, struct remote_address *out,
                         struct remote_ip ips_out[REMOTE_IPS_MAX])
{
    if (bytes < sizeof *out) return false;
    memcpy(out, raw, sizeof *out);
    if (out->version != REMOTE_ADDRESS_VERSION || out->count == 0 || out->count > REMOTE_IPS_MAX ||
        bytes - sizeof *out < out->count * sizeof *ips_out)
        return false;
    memcpy(ips_out, (const uint8_t *)raw + sizeof *out, out->count * sizeof *ips_out);
    for (uint32_t i = 0; i < out->count; i++)
        if ((ips_out[i].family != 4 && ips_out[i].family != 6) || ips_out[i].port == 0)
            return false;
    return true;
}

/* Begins to connect, unless the node has connected to us. */
static void reach(struct remote_link *link)
{
    const uint64_t now_ms = monotonic_ms();
    link->since_ms = now_ms;
    link->limit_ms = now_ms + link->fabric->patience_ms;
    remote_tick_soon(link->fabric);
    remote_admit(link->fabric, link->key);
    if (link->is_lost || link->up_count > 0) return;
    if (link->conn_count > 0)
        link->dial_ms = now_ms + ADMIT_MS;
    else
        dial_next(link);
}

cairn_status remote_connect(struct fabric_peer *common, const void *raw, size_t bytes)
{
    struct remote_fabric *fabric = remote_of(common->fabric);
    struct remote_peer *peer = remote_peer_of(common);
    struct remote_address address;
    struct remote_ip ips[REMOTE_IPS_MAX];
    if (!read_address(raw, bytes, &address, ips)) return CAIRN_ERR_MALFORMED;
    struct remote_link *link = remote_link_find(fabric, address.key);
    if (link == NULL && (link = remote_link_open(fabric, address.key)) == NULL)
        return CAIRN_ERR_NO_MEMORY;
    const bool is_new = link->ip_count == 0;
    if (is_new) take_address(link, &address, ips);
    sodium_memzero(&address, sizeof address);
    peer->link = link;
    LIST_INSERT_HEAD(&link->peers, peer, of_link);
    link->linger_ms = 0;
    if (is_new && link->up_count == 0) reach(link);
    return CAIRN_OK;
}

/* ---- who is expected ---- */

static struct remote_expected *find_expected(const struct remote_fabric *fabric, const uint8_t *key)
{
    struct remote_expected *one;
    LIST_FOREACH (one, &fabric->expected, entry)
        if (memcmp(one->key, key, sizeof one->key) == 0) return one;
    return NULL;
}

bool remote_expects(const struct remote_fabric *fabric, const uint8_t *key)
{
    return find_expected(fabric, key) != NULL;
}

/* Plans the end of a link that has no peer any more, if nothing else keeps it. */
static void judge_link(struct remote_link *link)
{
    const struct remote_fabric *fabric = link->fabric;
    const bool is_kept = link->up_count > 0 &&
                         (!fabric->is_strict || remote_expects(fabric, link->key));
    if (!link->is_lost && LIST_EMPTY(&link->peers) && !is_kept)
        link->linger_ms = monotonic_ms() + LINGER_MS;
}

static void expected_put(struct remote_fabric *fabric, struct remote_expected *one)
{
    struct remote_link *link = remote_link_find(fabric, one->key);
    if (--one->count > 0) return;
    LIST_REMOVE(one, entry);
    free(one);
    if (link != NULL) judge_link(link);
    remote_tick_soon(fabric);
}

cairn_status remote_expect(struct fabric *common, const void *address, size_t bytes,
                           bool is_expected)
{
    struct remote_fabric *fabric = remote_of(common);
    struct remote_address head;
    struct remote_ip ips[REMOTE_IPS_MAX];
    size_t raw_bytes;
    const void *raw = fabric_open_address(common, address, bytes, &raw_bytes);
    if (raw == NULL || !read_address(raw, raw_bytes, &head, ips)) return CAIRN_OK;
    struct remote_expected *one = find_expected(fabric, head.key);
    if (!is_expected) {
        if (one != NULL) expected_put(fabric, one);
        return CAIRN_OK;
    }
    if (one == NULL) {
        if ((one = calloc(1, sizeof *one)) == NULL) return CAIRN_ERR_NO_MEMORY;
        memcpy(one->key, head.key, sizeof one->key);
        LIST_INSERT_HEAD(&fabric->expected, one, entry);
    }
    one->count++;
    struct remote_link *link = remote_link_find(fabric, head.key);
    if (link != NULL && link->up_count > 0) link->linger_ms = 0;
    remote_admit(fabric, head.key);
    return CAIRN_OK;
}

void remote_forget_all(struct remote_fabric *fabric)
{
    while (!LIST_EMPTY(&fabric->expected)) {
        struct remote_expected *one = LIST_FIRST(&fabric->expected);
        LIST_REMOVE(one, entry);
        free(one);
    }
}

/* ---- peers that are closed ---- */

void remote_disconnect(struct fabric_peer *common)
{
    struct remote_peer *peer = remote_peer_of(common);
    struct remote_fabric *fabric = remote_of(common->fabric);
    struct remote_link *link = peer->link;
    remote_sends_limit(peer);
    LIST_REMOVE(peer, of_link);
    judge_link(link);
    remote_tick_soon(fabric);
}

/* ---- the clock ---- */

/* True if the connection's host has not acknowledged anything for too long of what is under way. A process
 * that is stopped is not meant: its kernel answers, even if it has no room. */
static bool is_silent(struct remote_conn *conn, uint64_t now_ms)
{
    struct tcp_info info = { .tcpi_unacked = 0 };
    socklen_t bytes = sizeof info;
    if (!remote_carries(conn) || getsockopt(conn->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0)
        return false;
    if (info.tcpi_unacked == 0 || info.tcpi_bytes_acked != conn->acked_bytes)
        conn->unacked_since_ms = 0;
    else if (conn->unacked_since_ms == 0)
        conn->unacked_since_ms = now_ms;
    conn->acked_bytes = info.tcpi_bytes_acked;
    return conn->unacked_since_ms != 0 &&
           now_ms - conn->unacked_since_ms > conn->fabric->patience_ms &&
           info.tcpi_last_ack_recv > conn->fabric->patience_ms;
}

static bool has_silent(const struct remote_link *link, uint64_t now_ms)
{
    struct remote_conn *conn;
    TAILQ_FOREACH (conn, &link->conns, entry)
        if (is_silent(conn, now_ms)) return true;
    return false;
}

bool remote_link_tick(struct remote_link *link, uint64_t now_ms)
{
    if (link->is_lost) return false;
    if (link->linger_ms != 0 && now_ms >= link->linger_ms) {
        remote_link_lose(link, CAIRN_ERR_CLOSED);
        return false;
    }
    if (link->limit_ms != 0 && now_ms >= link->limit_ms) {
        remote_link_lose(link, CAIRN_ERR_UNREACHABLE);
        return false;
    }
    if (link->dial_ms != 0 && now_ms >= link->dial_ms) {
        link->dial_ms = 0;
        dial_next(link);
    }
    top_up(link, now_ms);
    if (has_silent(link, now_ms)) {
        say_lost(link, "its host has acknowledged nothing of what was sent for longer than the "
                       "patience of this fabric");
        remote_link_lose(link, CAIRN_ERR_CLOSED);
        return false;
    }
    return link->linger_ms != 0 || link->limit_ms != 0 || link->dial_ms != 0 ||
           link->conn_count > link->up_count + link->pulse_count;
}
