/* The fabrics "stream" and "sealed": chunks over TCP between hosts. remote.h has the design.
 *
 * Who may in: a node's address has a secret and its public key, and reaches other nodes only over the
 * authenticated control channel. Every connection begins with the handshake of proto/secure/secure.h under
 * that secret. Nobody without the secret hears a byte, costs a curve operation, or keeps more than a small
 * struct here, REMOTE_STRANGERS_MAX of them at most. Who knows the secret is named by its public key; with
 * options.is_strict, it waits unread until the owner connects to the address of that key.
 *
 * "stream" sends in clear after the handshake: it is for networks that are trusted. */
#include "proto/fabric/remote.h"

#include <assert.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "proto/base/machine.h"
#include "proto/base/text.h"

enum {
    VERSION = 1,
    EVENTS_AT_ONCE = 8, /* the kernel puts those that it has shown behind the others */
    EVENTS_PER_PROGRESS = 64,
    ACCEPTS_PER_TURN = 16,
    FLUSHES_PER_TURN = 256,
    HANDSHAKES_PER_TURN = 8, /* of strangers: about a millisecond */
    GREETING_BYTES = 512,    /* read at a time before a connection is up */
    TICK_MS = 100,           /* while something has a deadline */
    SLOW_TICK_MS = 1000,
    PATIENCE_MS = 5000,
    TRY_MS = 1500, /* for one connection to be up */
    KEEP_S = 30,
    STARVED_MS = 500, /* since then a connection that has no memory has tried again */
};

static const char hello_magic[8] = "CAIRNST1";

/* ---- what epoll watches ---- */

void remote_watch(struct remote_conn *conn, uint32_t events)
{
    if (conn->is_watched && conn->watched == events) return;
    struct epoll_event event = { .events = events, .data.ptr = conn };
    const int how = conn->is_watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    conn->is_watched = epoll_ctl(conn->fabric->common.event_fd, how, conn->fd, &event) == 0;
    conn->watched = events;
}

void remote_unwatch(struct remote_conn *conn)
{
    if (conn->is_watched) epoll_ctl(conn->fabric->common.event_fd, EPOLL_CTL_DEL, conn->fd, NULL);
    conn->is_watched = false;
}

static bool watch_other(struct remote_fabric *fabric, int fd, void *tag)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = tag };
    return epoll_ctl(fabric->common.event_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static void set_timer(struct remote_fabric *fabric, uint32_t ms)
{
    const struct timespec each = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };
    const struct itimerspec ticks = { .it_interval = each, .it_value = each };
    if (ms == fabric->tick_ms) return;
    fabric->tick_ms = ms;
    timerfd_settime(fabric->timer_fd, 0, &ticks, NULL);
}

void remote_tick_soon(struct remote_fabric *fabric)
{
    set_timer(fabric, TICK_MS);
}

void remote_note_socket(const struct remote_fabric *fabric, int fd, bool is_open)
{
    const struct fabric_options *options = &fabric->common.options;
    if (options->on_socket != NULL) options->on_socket(options->on_message_arg, fd, is_open);
}

/* ---- who is expected ---- */

struct remote_expected *remote_expected_find(const struct remote_fabric *fabric, const uint8_t *key)
{
    struct remote_expected *one;
    LIST_FOREACH (one, &fabric->expected, entry)
        if (memcmp(one->key, key, sizeof one->key) == 0) return one;
    return NULL;
}

static void forget_expected(struct remote_fabric *fabric)
{
    while (!LIST_EMPTY(&fabric->expected)) {
        struct remote_expected *one = LIST_FIRST(&fabric->expected);
        LIST_REMOVE(one, entry);
        free(one);
    }
}

/* ---- connections ---- */

static void leave_strangers(struct remote_conn *conn)
{
    struct remote_fabric *fabric = conn->fabric;
    if (!conn->is_stranger) return;
    conn->is_stranger = false;
    TAILQ_REMOVE(&fabric->strangers, conn, entry);
    *(conn->state == REMOTE_WAITS ? &fabric->waiting_count : &fabric->stranger_count) -= 1;
}

static void forget_keys(struct remote_conn *conn)
{
    handshake_close(conn->greeting.handshake);
    conn->greeting.handshake = NULL;
    if (conn->greeting.result == NULL) return;
    sodium_memzero(conn->greeting.result, sizeof *conn->greeting.result);
    free(conn->greeting.result);
    conn->greeting.result = NULL;
}

static struct remote_conn *conn_new(struct remote_fabric *fabric, int fd)
{
    struct remote_conn *conn = calloc(1, sizeof *conn);
    if (conn == NULL) return NULL;
    if (pthread_mutex_init(&conn->lock, NULL) != 0) {
        free(conn);
        return NULL;
    }
    conn->fabric = fabric;
    conn->fd = fd;
    conn->since_ms = monotonic_ms();
    TAILQ_INIT(&conn->writes.urgent);
    TAILQ_INIT(&conn->writes.bulk);
    TAILQ_INIT(&conn->writes.wire);
    TAILQ_INIT(&conn->writes.written);
    TAILQ_INIT(&conn->reads.landings);
    TAILQ_INIT(&conn->reads.landed);
    TAILQ_INIT(&conn->reads.arrived);
    remote_note_socket(fabric, fd, true);
    return conn;
}

static void conn_free(struct remote_conn *conn)
{
    checksum_free(conn->moving.sum);
    if (conn->moving.sealed != NULL) sealed_end(conn->moving.sealed);
    free(conn->moving.sealed);
    free(conn->moving.batch);
    pthread_mutex_destroy(&conn->lock);
    free(conn);
}

/* Nobody reads or writes the connection any more: closes it, and ends what it had to do. */
static void conn_bury(struct remote_conn *conn)
{
    struct remote_fabric *fabric = conn->fabric;
    struct remote_link *link = conn->link;
    assert(!conn->is_kicked);
    assert(!conn->is_dirty);
    pthread_mutex_lock(&fabric->lock);
    if (conn->is_news) TAILQ_REMOVE(&fabric->news, conn, news);
    conn->is_news = false;
    pthread_mutex_unlock(&fabric->lock);
    conn->state = REMOTE_ENDED;
    remote_unwatch(conn);
    (void)shutdown(conn->fd, SHUT_RDWR); // also where a forked child has the socket, too
    remote_note_socket(fabric, conn->fd, false);
    close(conn->fd);
    conn->fd = -1;
    remote_conn_return(conn);
    if (link != NULL) {
        TAILQ_REMOVE(&link->conns, conn, entry);
        link->conn_count--;
    }
    conn->link = NULL;
    conn->next_ended = fabric->ended;
    fabric->ended = conn;
}

void remote_conn_end(struct remote_conn *conn)
{
    if (conn->state == REMOTE_LEAVES || conn->state == REMOTE_ENDED) return;
    leave_strangers(conn);
    if (conn->state == REMOTE_IS_UP && !conn->is_pulse) conn->link->up_count--;
    forget_keys(conn);
    if (conn->is_dirty) TAILQ_REMOVE(&conn->fabric->dirty, conn, dirty); // nobody kicks it again
    conn->is_dirty = false;
    conn->state = REMOTE_LEAVES;
    if (remote_io_let_go(conn)) conn_bury(conn);
}

static void free_ended(struct remote_fabric *fabric)
{
    while (fabric->ended != NULL) {
        struct remote_conn *conn = fabric->ended;
        fabric->ended = conn->next_ended;
        conn_free(conn);
    }
}

static void set_number(int fd, int level, int option, int value)
{
    (void)setsockopt(fd, level, option, &value, sizeof value);
}

/* A pulse carries no data, so its kernel's keepalive is answered by the other kernel even if the process
 * there is stopped, and every connection of the link has filled up. */
static void set_pulse(const struct remote_conn *conn)
{
    const uint32_t patience_ms = conn->fabric->patience_ms;
    const int each_s = patience_ms < 8000 ? 1 : (int)(patience_ms / 8000);
    set_number(conn->fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_number(conn->fd, IPPROTO_TCP, TCP_KEEPIDLE, each_s);
    set_number(conn->fd, IPPROTO_TCP, TCP_KEEPINTVL, each_s);
    set_number(conn->fd, IPPROTO_TCP, TCP_KEEPCNT, 127); // the next one decides
    set_number(conn->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)patience_ms);
}

/* Firewalls forget a connection on which nothing moves. */
static void keep_known(const struct remote_conn *conn)
{
    set_number(conn->fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEP_S);
    set_number(conn->fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEP_S);
    set_number(conn->fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

/* ---- up ---- */

static void on_failed(struct remote_conn *conn, bool is_refused)
{
    struct remote_link *link = conn->link;
    const bool is_dialed = conn->is_dialed;
    remote_conn_end(conn);
    if (link != NULL && is_dialed) remote_link_on_failed(link, is_refused);
}

/* Makes what the connection needs to carry data. */
static bool equip(struct remote_conn *conn, uint32_t their_flags)
{
    if (conn->is_pulse) {
        set_pulse(conn);
        conn->io = &conn->fabric->own;
        return true;
    }
    keep_known(conn);
    const bool is_aes = sealed_has_aes() && (their_flags & REMOTE_HAS_AES) != 0;
    conn->io = remote_io_choose(conn->fabric);
    conn->moving.sum = checksum_new();
    if (conn->io == NULL || conn->moving.sum == NULL) return false;
    if (!conn->fabric->is_sealed) {
        conn->moving.batch = calloc(1, sizeof *conn->moving.batch);
        return conn->moving.batch != NULL;
    }
    conn->moving.sealed = calloc(1, sizeof *conn->moving.sealed);
    if (conn->moving.sealed == NULL) return false;
    if (sealed_begin(conn->moving.sealed, is_aes, conn->greeting.result) == CAIRN_OK) return true;
    sealed_end(conn->moving.sealed); // what ends the connection would say so by these ciphers
    free(conn->moving.sealed);
    conn->moving.sealed = NULL;
    return false;
}

static void go_up(struct remote_conn *conn, uint32_t their_flags)
{
    if (!equip(conn, their_flags)) {
        conn->fabric->starved_ms = monotonic_ms();
        on_failed(conn, false);
        return;
    }
    forget_keys(conn);
    conn->state = REMOTE_IS_UP;
    if (conn->is_pulse)
        remote_watch(conn, EPOLLIN);
    else
        remote_io_adopt(conn);
    remote_link_on_up(conn);
}

/* ---- hello ---- */

static void hello_mac(const struct remote_hello *hello, const uint8_t key[32], uint8_t mac_out[16])
{
    crypto_generichash(mac_out, sizeof hello->mac, (const uint8_t *)hello,
                       offsetof(struct remote_hello, mac), key, 32);
}

/* The socket is new, so a greeting always has room in it. */
static bool send_greeting(struct remote_conn *conn, const void *bytes, size_t count)
{
    return count == 0 ||
           send(conn->fd, bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)count;
}

static bool say_hello(struct remote_conn *conn)
{
    struct remote_hello hello = {
        .version = VERSION,
        .flags = (sealed_has_aes() ? REMOTE_HAS_AES : 0u) | (conn->is_pulse ? REMOTE_IS_PULSE : 0u),
        .incarnation = conn->link->incarnation,
    };
    memcpy(hello.magic, hello_magic, sizeof hello.magic);
    hello_mac(&hello, conn->greeting.result->send_key, hello.mac);
    return send_greeting(conn, &hello, sizeof hello);
}

/* Finds the link of a connection that another node made. NULL: the connection has to wait for the owner, or
 * has ended. */
static struct remote_link *find_own_link(struct remote_conn *conn)
{
    struct remote_fabric *fabric = conn->fabric;
    struct remote_link *link = remote_link_find(fabric, conn->greeting.result->peer_key);
    if (link != NULL && link->theirs != 0 && link->theirs != conn->greeting.hello.incarnation) {
        remote_link_lose(link, CAIRN_ERR_CLOSED); // the node has given that link up
        link = NULL;
    }
    if (link == NULL && (!fabric->is_strict ||
                         remote_expected_find(fabric, conn->greeting.result->peer_key) != NULL)) {
        link = remote_link_open(fabric, conn->greeting.result->peer_key);
        if (link == NULL) remote_conn_end(conn);
    }
    return link;
}

/* Ends the oldest of those that wait, with this key (NULL: any), if there are `max`. Keys cost nothing, so
 * neither one node nor one that invents many keeps others from waiting. True: one was ended. */
static bool make_room_to_wait(struct remote_fabric *fabric, const uint8_t *key, uint32_t max)
{
    struct remote_conn *conn, *oldest = NULL;
    uint32_t count = 0;
    TAILQ_FOREACH (conn, &fabric->strangers, entry) {
        if (conn->state != REMOTE_WAITS ||
            (key != NULL && memcmp(conn->greeting.result->peer_key, key,
                                   sizeof conn->greeting.result->peer_key) != 0))
            continue;
        if (oldest == NULL || conn->since_ms < oldest->since_ms) oldest = conn;
        count++;
    }
    if (count < max) return false;
    fabric->common.stats.connections_refused++;
    remote_conn_end(oldest);
    return true;
}

static void wait_for_owner(struct remote_conn *conn)
{
    struct remote_fabric *fabric = conn->fabric;
    if (conn->state == REMOTE_WAITS || conn->state >= REMOTE_LEAVES) return;
    if (!make_room_to_wait(fabric, conn->greeting.result->peer_key, REMOTE_LANES + 1))
        (void)make_room_to_wait(fabric, NULL, REMOTE_WAITING_MAX);
    fabric->stranger_count--;
    fabric->waiting_count++;
    conn->state = REMOTE_WAITS;
    conn->since_ms = monotonic_ms();
    remote_watch(conn, EPOLLRDHUP); // unread
}

static void join_link(struct remote_conn *conn, struct remote_link *link)
{
    leave_strangers(conn);
    conn->link = link;
    TAILQ_INSERT_TAIL(&link->conns, conn, entry);
    link->conn_count++;
}

static bool is_hello_sound(const struct remote_conn *conn)
{
    const struct remote_hello *hello = &conn->greeting.hello;
    uint8_t mac[sizeof hello->mac];
    hello_mac(hello, conn->greeting.result->receive_key, mac);
    return sodium_memcmp(mac, hello->mac, sizeof mac) == 0 && hello->version == VERSION &&
           memcmp(hello->magic, hello_magic, sizeof hello->magic) == 0 && hello->incarnation != 0;
}

/* The whole hello is here. */
static void on_hello(struct remote_conn *conn)
{
    if (!is_hello_sound(conn)) {
        conn->fabric->common.stats.connections_refused++;
        on_failed(conn, false);
        return;
    }
    if (conn->link == NULL) {
        struct remote_link *link = find_own_link(conn);
        if (link == NULL) {
            wait_for_owner(conn);
            return;
        }
        if (link->conn_count >= REMOTE_CONNS_MAX) {
            remote_conn_end(conn);
            return;
        }
        join_link(conn, link);
        conn->is_pulse = (conn->greeting.hello.flags & REMOTE_IS_PULSE) != 0;
    }
    struct remote_link *link = conn->link;
    if (link->theirs != 0 && link->theirs != conn->greeting.hello.incarnation) {
        remote_link_lose(link, CAIRN_ERR_CLOSED);
        return;
    }
    link->theirs = conn->greeting.hello.incarnation;
    if (conn->is_dialed || say_hello(conn))
        go_up(conn, conn->greeting.hello.flags);
    else
        on_failed(conn, false);
}

/* The newest connection first: what waits of a former link of the node, which has given that up, ends. */
void remote_admit(struct remote_fabric *fabric, const uint8_t *key)
{
    struct remote_conn *conn = TAILQ_LAST(&fabric->strangers, remote_conns), *before;
    uint64_t newest = 0;
    for (; conn != NULL; conn = before) {
        before = TAILQ_PREV(conn, remote_conns, entry);
        if (conn->state != REMOTE_WAITS || memcmp(conn->greeting.result->peer_key, key,
                                                  sizeof conn->greeting.result->peer_key) != 0)
            continue;
        if (newest == 0) newest = conn->greeting.hello.incarnation;
        if (conn->greeting.hello.incarnation == newest)
            on_hello(conn);
        else
            remote_conn_end(conn);
    }
}

static void read_hello(struct remote_conn *conn)
{
    uint8_t *at = (uint8_t *)&conn->greeting.hello + conn->greeting.hello_bytes;
    const size_t left = sizeof conn->greeting.hello - conn->greeting.hello_bytes;
    const ssize_t got = left > 0 ? recv(conn->fd, at, left, MSG_DONTWAIT) : 0;
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (left > 0 && got <= 0) {
        on_failed(conn, false);
        return;
    }
    conn->greeting.hello_bytes += (size_t)got;
    if (conn->greeting.hello_bytes == sizeof conn->greeting.hello) on_hello(conn);
}

/* ---- the handshake ---- */

static bool find_row(void *arg, const uint8_t key_id[CAIRN_PSK_ID_BYTES],
                     struct handshake_row *row_out)
{
    const struct remote_fabric *fabric = arg;
    if (memcmp(key_id, fabric->key_id, sizeof fabric->key_id) != 0) return false;
    memcpy(row_out->secret, fabric->secret, sizeof row_out->secret);
    row_out->own = &fabric->key;
    row_out->refused = CAIRN_OK;
    return true;
}

static void make_key_id(const uint8_t secret[CAIRN_PSK_BYTES], uint8_t out[CAIRN_PSK_ID_BYTES])
{
    static const char label[] = "cairn fabric key id";
    uint8_t hash[CAIRN_CURVE_BYTES];
    crypto_generichash(hash, sizeof hash, (const uint8_t *)label, sizeof label, secret,
                       CAIRN_PSK_BYTES);
    memcpy(out, hash, CAIRN_PSK_ID_BYTES);
}

/* The context keeps a node of one kind from taking a node of the other kind for its own. */
static bool begin_handshake(struct remote_conn *conn)
{
    struct remote_fabric *fabric = conn->fabric;
    const char *context = fabric->is_sealed ? "cairn fabric sealed 1" : "cairn fabric stream 1";
    struct handshake_options options = {
        .is_initiator = conn->is_dialed,
        .purpose = CAIRN_PURPOSE_DATA,
        .context = context,
        .context_bytes = strlen(context),
        .own = &fabric->key,
        .find = conn->is_dialed ? NULL : find_row,
        .arg = fabric,
        .answered = &fabric->answered,
    };
    if (conn->is_dialed) {
        const struct remote_address *address = &conn->link->address;
        options.expected = address->key;
        memcpy(options.secret, address->secret, sizeof options.secret);
        make_key_id(address->secret, options.key_id);
    }
    const cairn_status status = handshake_open(&options, &conn->greeting.handshake);
    sodium_memzero(&options, sizeof options);
    if (status != CAIRN_OK) conn->greeting.handshake = NULL;
    return status == CAIRN_OK;
}

static bool send_handshake(struct remote_conn *conn)
{
    size_t count;
    const uint8_t *bytes = handshake_to_send(conn->greeting.handshake, &count);
    return send_greeting(conn, bytes, count);
}

/* The handshake is done; what came behind it belongs to the hello. */
static void on_known(struct remote_conn *conn, const uint8_t *rest, size_t count)
{
    conn->greeting.result = malloc(sizeof *conn->greeting.result);
    if (conn->greeting.result == NULL || count > sizeof conn->greeting.hello) {
        on_failed(conn, false);
        return;
    }
    handshake_result(conn->greeting.handshake, conn->greeting.result);
    handshake_close(conn->greeting.handshake);
    conn->greeting.handshake = NULL;
    memcpy(&conn->greeting.hello, rest, count);
    conn->greeting.hello_bytes = count;
    conn->state = REMOTE_HELLOS;
    if (conn->is_dialed && !say_hello(conn)) {
        on_failed(conn, false);
        return;
    }
    remote_watch(conn, EPOLLIN);
    if (count > 0) read_hello(conn);
}

static void read_handshake(struct remote_conn *conn)
{
    uint8_t bytes[GREETING_BYTES];
    struct sentence why;
    cairn_status status;
    size_t used = 0;
    const ssize_t got = recv(conn->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    enum handshake_state state = CAIRN_HANDSHAKE_FAILED;
    if (got > 0)
        state = handshake_take(conn->greeting.handshake, bytes, (size_t)got, &used, &status, &why);
    if (state == CAIRN_HANDSHAKE_FAILED && got > 0)
        conn->fabric->common.stats.connections_refused++;
    else if (conn->is_stranger)
        conn->fabric->handshakes_left--;
    const bool is_sent = got > 0 && send_handshake(conn);
    if (state == CAIRN_HANDSHAKE_FAILED || !is_sent)
        on_failed(conn, false);
    else if (state == CAIRN_HANDSHAKE_DONE)
        on_known(conn, bytes + used, (size_t)got - used);
}

static void on_dialed(struct remote_conn *conn)
{
    int error = 0;
    socklen_t bytes = sizeof error;
    if (getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
    if (error != 0 || !begin_handshake(conn) || !send_handshake(conn)) {
        on_failed(conn, error == ECONNREFUSED);
        return;
    }
    conn->state = REMOTE_GREETS;
    remote_watch(conn, EPOLLIN);
}

/* ---- dialing and accepting ---- */

bool remote_dial(struct remote_link *link, const struct sockaddr_storage *to, bool is_pulse)
{
    const int fd = socket(to->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return false;
    set_number(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    struct remote_conn *conn = NULL;
    if (connect(fd, (const struct sockaddr *)to, remote_to_bytes(to)) == 0 || errno == EINPROGRESS)
        conn = conn_new(link->fabric, fd);
    if (conn == NULL) {
        if (errno == ECONNREFUSED) link->refused_count++;
        close(fd);
        return false;
    }
    conn->is_dialed = true;
    conn->is_pulse = is_pulse;
    conn->to = *to;
    conn->state = REMOTE_DIALS;
    join_link(conn, link);
    remote_watch(conn, EPOLLOUT);
    remote_tick_soon(link->fabric);
    return true;
}

/* One more stranger ends the oldest, of those that have not proved to know the secret if there are any: a
 * flood of them keeps nobody waiting. */
static void make_room(struct remote_fabric *fabric)
{
    struct remote_conn *conn, *oldest = NULL;
    if (fabric->stranger_count < REMOTE_STRANGERS_MAX) return;
    TAILQ_FOREACH (conn, &fabric->strangers, entry) {
        if (conn->state == REMOTE_WAITS) continue;
        if (oldest == NULL) oldest = conn;
        if (conn->greeting.handshake == NULL || handshake_is_proved(conn->greeting.handshake))
            continue;
        oldest = conn;
        break;
    }
    if (oldest == NULL) return;
    fabric->common.stats.connections_refused++;
    remote_conn_end(oldest);
}

static void accept_one(struct remote_fabric *fabric, int fd)
{
    make_room(fabric);
    set_number(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    struct remote_conn *conn = conn_new(fabric, fd);
    if (conn == NULL) {
        close(fd);
        return;
    }
    conn->state = REMOTE_GREETS;
    conn->is_stranger = true;
    TAILQ_INSERT_TAIL(&fabric->strangers, conn, entry);
    fabric->stranger_count++;
    remote_tick_soon(fabric);
    if (begin_handshake(conn))
        remote_watch(conn, EPOLLIN);
    else
        remote_conn_end(conn);
}

static void hear(struct remote_fabric *fabric, bool is_deaf)
{
    if (fabric->is_deaf == is_deaf) return;
    fabric->is_deaf = is_deaf;
    for (uint32_t i = 0; i < fabric->listener_count; i++) {
        struct remote_listener *listener = &fabric->listeners[i];
        if (is_deaf)
            epoll_ctl(fabric->common.event_fd, EPOLL_CTL_DEL, listener->fd, NULL);
        else
            (void)watch_other(fabric, listener->fd, listener);
    }
}

static unsigned accept_some(struct remote_fabric *fabric, const struct remote_listener *listener)
{
    unsigned count = 0;
    for (; count < ACCEPTS_PER_TURN; count++) {
        const int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
                hear(fabric, true); // until the next tick
                remote_tick_soon(fabric);
            }
            break;
        }
        accept_one(fabric, fd);
    }
    return count;
}

/* ---- the clock ---- */

static void end_slow_strangers(struct remote_fabric *fabric, uint64_t now_ms)
{
    struct remote_conn *conn = TAILQ_FIRST(&fabric->strangers), *next;
    for (; conn != NULL; conn = next) {
        next = TAILQ_NEXT(conn, entry);
        if (now_ms - conn->since_ms < REMOTE_STRANGER_MS) continue;
        fabric->common.stats.connections_refused++;
        remote_conn_end(conn);
    }
}

/* Ends the attempts of a link that take too long. */
static void end_slow_dials(struct remote_link *link, uint64_t now_ms)
{
    struct remote_conn *conn = TAILQ_FIRST(&link->conns), *next;
    for (; conn != NULL; conn = next) {
        next = TAILQ_NEXT(conn, entry);
        const uint64_t limit_ms = conn->state == REMOTE_DIALS ? TRY_MS : REMOTE_STRANGER_MS;
        if (conn->state < REMOTE_IS_UP && now_ms - conn->since_ms >= limit_ms)
            on_failed(conn, false);
    }
}

static void tick(struct remote_fabric *fabric)
{
    const uint64_t now_ms = monotonic_ms();
    uint64_t count;
    if (read(fabric->timer_fd, &count, sizeof count) < 0) return;
    hear(fabric, false);
    end_slow_strangers(fabric, now_ms);
    bool is_busy = fabric->stranger_count + fabric->waiting_count > 0;
    struct remote_link *link = LIST_FIRST(&fabric->links), *next;
    for (; link != NULL; link = next) {
        next = LIST_NEXT(link, entry);
        end_slow_dials(link, now_ms);
        is_busy |= remote_link_tick(link, now_ms);
    }
    is_busy |= remote_ops_tick(fabric, now_ms);
    set_timer(fabric, is_busy ? TICK_MS : LIST_EMPTY(&fabric->links) ? 0 : SLOW_TICK_MS);
}

/* ---- progress ---- */

static unsigned serve_conn(struct remote_conn *conn, uint32_t events)
{
    switch (conn->state) {
    case REMOTE_DIALS: on_dialed(conn); return 1;
    case REMOTE_GREETS:
        if (conn->is_stranger && conn->fabric->handshakes_left == 0) return 0; // in the next turn
        read_handshake(conn);
        return 1;
    case REMOTE_HELLOS: read_hello(conn); return 1;
    case REMOTE_WAITS: // it has given up
        remote_conn_end(conn);
        return 1;
    case REMOTE_IS_UP: break;
    case REMOTE_LEAVES:
    case REMOTE_ENDED: return 0;
    }
    if (conn->is_pulse) {
        remote_link_on_pulse(conn);
        return 1;
    }
    return remote_io_serve(conn, events) + remote_conn_harvest(conn);
}

static unsigned take_news(struct remote_fabric *fabric)
{
    struct remote_conn *conn;
    eventfd_t kicks;
    unsigned count = 0;
    bool is_let_go = false;
    (void)eventfd_read(fabric->news_fd, &kicks);
    while ((conn = remote_io_next_news(fabric, &is_let_go)) != NULL) {
        count += remote_conn_harvest(conn);
        if (is_let_go && conn->state == REMOTE_LEAVES) conn_bury(conn);
    }
    return count;
}

static unsigned serve(struct remote_fabric *fabric, void *tag, uint32_t events)
{
    if (tag == &fabric->timer_fd) {
        tick(fabric);
        return 0;
    }
    if (tag == &fabric->news_fd) return take_news(fabric);
    for (uint32_t i = 0; i < fabric->listener_count; i++)
        if (tag == &fabric->listeners[i]) return accept_some(fabric, tag);
    return serve_conn(tag, events);
}

/* Writes what was queued in this turn; what callbacks queue meanwhile may wait for the next. */
static unsigned flush(struct remote_fabric *fabric)
{
    struct remote_conn *conn;
    unsigned count = 0;
    for (int i = 0; i < FLUSHES_PER_TURN && !remote_is_turn_over(fabric); i++) {
        if ((conn = TAILQ_FIRST(&fabric->dirty)) == NULL) break;
        TAILQ_REMOVE(&fabric->dirty, conn, dirty);
        conn->is_dirty = false;
        if (conn->io->is_thread) {
            remote_io_kick(conn);
        } else {
            count += remote_io_serve(conn, 0);
        }
        count += remote_conn_harvest(conn); // also frames that came before a pause
    }
    return count;
}

static unsigned remote_progress(struct fabric *common)
{
    struct remote_fabric *fabric = remote_of(common);
    struct epoll_event events[EVENTS_AT_ONCE];
    fabric->handshakes_left = HANDSHAKES_PER_TURN;
    fabric->turn_bytes = 0;
    unsigned count = flush(fabric);
    // The sockets are asked once whatever the first flush took, so that no node's records hide all others.
    for (int seen = 0; seen == 0 || (seen < EVENTS_PER_PROGRESS && !remote_is_turn_over(fabric));) {
        const int ready = epoll_wait(common->event_fd, events, EVENTS_AT_ONCE, 0);
        for (int i = 0; i < ready; i++)
            count += serve(fabric, events[i].data.ptr, events[i].events);
        if (ready < EVENTS_AT_ONCE) break;
        seen += ready;
    }
    count += flush(fabric);
    remote_links_sweep(fabric);
    free_ended(fabric);
    return count;
}

static cairn_status remote_arm(struct fabric *common)
{
    return TAILQ_EMPTY(&remote_of(common)->dirty) ? CAIRN_OK : CAIRN_ERR_BUSY;
}

static void remote_set_patience(struct fabric *common, uint32_t ms)
{
    struct remote_fabric *fabric = remote_of(common);
    struct remote_link *link;
    struct remote_conn *conn;
    fabric->patience_ms = ms;
    LIST_FOREACH (link, &fabric->links, entry)
        TAILQ_FOREACH (conn, &link->conns, entry)
            if (conn->is_pulse && conn->state == REMOTE_IS_UP) set_pulse(conn);
}

/* ---- opening and closing ---- */

static void close_own(struct remote_fabric *fabric)
{
    for (uint32_t i = 0; i < fabric->listener_count; i++) {
        remote_note_socket(fabric, fabric->listeners[i].fd, false);
        close(fabric->listeners[i].fd);
    }
    if (fabric->timer_fd >= 0) close(fabric->timer_fd);
    if (fabric->news_fd >= 0) close(fabric->news_fd);
    if (fabric->common.event_fd >= 0) close(fabric->common.event_fd);
    remote_io_release(&fabric->own);
    pthread_mutex_destroy(&fabric->lock);
    curve_key_wipe(&fabric->key);
    sodium_memzero(fabric->secret, sizeof fabric->secret);
}

static bool open_descriptors(struct remote_fabric *fabric)
{
    fabric->common.event_fd = epoll_create1(EPOLL_CLOEXEC);
    fabric->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    fabric->news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    bool ok = fabric->common.event_fd >= 0 && fabric->timer_fd >= 0 && fabric->news_fd >= 0 &&
              watch_other(fabric, fabric->timer_fd, &fabric->timer_fd) &&
              watch_other(fabric, fabric->news_fd, &fabric->news_fd);
    for (uint32_t i = 0; i < fabric->listener_count && ok; i++)
        ok = watch_other(fabric, fabric->listeners[i].fd, &fabric->listeners[i]);
    return ok;
}

static cairn_status start(struct fabric *common, const struct fabric_options *options,
                          bool is_sealed, struct sentence *why)
{
    struct remote_fabric *fabric = remote_of(common);
    if (sodium_init() < 0)
        return fail_with(why, CAIRN_ERR_INTERNAL, "fabric %s: libsodium does not start",
                         common->backend->kind);
    fabric->is_sealed = is_sealed;
    fabric->is_strict = options->is_strict;
    fabric->patience_ms = PATIENCE_MS;
    fabric->timer_fd = fabric->news_fd = -1;
    LIST_INIT(&fabric->links);
    LIST_INIT(&fabric->expected);
    TAILQ_INIT(&fabric->strangers);
    TAILQ_INIT(&fabric->dirty);
    TAILQ_INIT(&fabric->spare);
    TAILQ_INIT(&fabric->news);
    if (pthread_mutex_init(&fabric->lock, NULL) != 0 ||
        remote_io_init(&fabric->own, fabric, false) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "fabric %s: out of memory",
                         common->backend->kind);
    curve_key_make(&fabric->key);
    randombytes_buf(fabric->secret, sizeof fabric->secret);
    make_key_id(fabric->secret, fabric->key_id);
    cairn_status status = remote_listen(fabric, options, why);
    if (status == CAIRN_OK && !open_descriptors(fabric))
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "fabric %s: no event descriptor: %m",
                           common->backend->kind);
    if (status == CAIRN_OK) status = remote_publish(fabric);
    if (status == CAIRN_OK)
        remote_describe(fabric);
    else
        close_own(fabric);
    return status;
}

static cairn_status start_stream(struct fabric *common, const struct fabric_options *options,
                                 struct sentence *why)
{
    return start(common, options, false, why);
}

static cairn_status start_sealed(struct fabric *common, const struct fabric_options *options,
                                 struct sentence *why)
{
    if (!sealed_prepare())
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "fabric sealed: no memory for the ciphers");
    return start(common, options, true, why);
}

/* Ends the threads first: after that nobody but us touches the owner's memory. */
static void remote_stop(struct fabric *common)
{
    struct remote_fabric *fabric = remote_of(common);
    for (uint32_t i = 0; i < fabric->thread_count; i++) remote_io_finish(fabric->threads[i]);
    for (uint32_t i = 0; i < fabric->thread_count; i++) remote_io_join(fabric->threads[i]);
    while (!TAILQ_EMPTY(&fabric->strangers)) remote_conn_end(TAILQ_FIRST(&fabric->strangers));
    while (!LIST_EMPTY(&fabric->links)) {
        struct remote_link *link = LIST_FIRST(&fabric->links);
        struct remote_conn *conn;
        while ((conn = TAILQ_FIRST(&link->conns)) != NULL) {
            if (conn->state == REMOTE_LEAVES)
                conn_bury(conn);
            else
                remote_conn_end(conn);
        }
        remote_link_close(link);
    }
    free_ended(fabric);
    forget_expected(fabric);
    for (uint32_t i = 0; i < fabric->thread_count; i++) {
        remote_io_release(fabric->threads[i]);
        free(fabric->threads[i]);
    }
    while (!TAILQ_EMPTY(&fabric->spare)) {
        struct remote_item *item = TAILQ_FIRST(&fabric->spare);
        TAILQ_REMOVE(&fabric->spare, item, entry);
        free(item);
    }
    close_own(fabric);
}

/* Nothing says when there is memory again: whatever waits tries again much more often. */
static bool remote_is_starved(const struct fabric_peer *peer)
{
    const uint64_t at_ms = remote_of(peer->fabric)->starved_ms;
    return at_ms != 0 && monotonic_ms() - at_ms < STARVED_MS;
}

#define REMOTE_BACKEND(name, start_it)                                                            \
    {                                                                                             \
        .kind = name, .fabric_bytes = sizeof(struct remote_fabric),                               \
        .peer_bytes = sizeof(struct remote_peer), .message_bytes = sizeof(struct remote_message), \
        .start = start_it, .stop = remote_stop, .connect = remote_connect,                        \
        .disconnect = remote_disconnect, .expect = remote_expect, .send = remote_send,            \
        .receive = remote_receive, .drop = remote_drop, .progress = remote_progress,              \
        .arm = remote_arm, .is_starved = remote_is_starved, .set_patience = remote_set_patience,  \
    }

const struct fabric_backend fabric_stream = REMOTE_BACKEND("stream", start_stream);
const struct fabric_backend fabric_sealed = REMOTE_BACKEND("sealed", start_sealed);
