/* The ucx fabric. Only this file and ucx_*.c call UCX. A fabric has one context and one worker. Endpoints
 * are made from worker addresses, with peer-failure handling, and never with a ucp_listener, since garbage
 * at a listener's port aborts the process. */
#include "proto/fabric/ucx.h"

#include <arpa/inet.h>
#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <ucs/debug/debug.h>
#include <uct/api/uct.h>
#include <unistd.h>

#include "proto/base/machine.h"
#include "proto/base/text.h"
#include "proto/fabric/backend.h"

enum { STOP_MS = 500 };

cairn_status ucx_status(ucs_status_t status)
{
    switch (status) {
    case UCS_OK: return CAIRN_OK;
    case UCS_ERR_NO_MEMORY: return CAIRN_ERR_NO_MEMORY;
    case UCS_ERR_UNREACHABLE: return CAIRN_ERR_UNREACHABLE;
    case UCS_ERR_NO_DEVICE: return CAIRN_ERR_UNREACHABLE;
    case UCS_ERR_REJECTED: return CAIRN_ERR_UNREACHABLE;
    default: return CAIRN_ERR_CLOSED; // canceled, reset, timed out: the peer is gone
    }
}

/* ==== ucx socket ==== */

/* The TCP sockets of UCX, which UCX does not expose: we find them among our descriptors by the address that
 * they are connected to.
 *
 * We do two things to these sockets. First, we make a connection end when its peer acknowledges nothing for
 * too long: a node that vanished silently (power, cable) sends no notice, and the kernel would retry for a
 * quarter of an hour. Second, we shut down a connection that we end, since its endpoint must not be closed
 * (ucx_link.c). */

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

/* True if the connection has ended: the kernel still knows the peer of such a connection until the socket's
 * owner closes the socket. */
static bool is_over(int fd)
{
    struct tcp_info info;
    socklen_t bytes = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
           info.tcpi_state == TCP_CLOSE;
}

/* True also while the socket is still connecting, when getpeername does not know the peer yet: UCX from
 * 1.14 on does not wait for the connection. */
static bool leads_to(int fd, const struct sockaddr_storage *listener)
{
    struct sockaddr_storage there;
    socklen_t bytes = listener->ss_family == AF_INET ? sizeof(struct sockaddr_in)
                                                     : sizeof(struct sockaddr_in6);
    return getsockopt(fd, SOL_SOCKET, SO_PEERNAME, &there, &bytes) == 0 &&
           is_same(&there, listener) && !is_over(fd);
}

/* Makes the kernel end the connection when the node acknowledges nothing for `unacked_ms`. Connections that
 * a listening socket accepts inherit the bound. */
static void ucx_socket_bound(int fd, unsigned unacked_ms)
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

/* Drops unsent bytes: the peer must see the end at once (RST), and not after those bytes. */
static void shut(int fd)
{
    const struct linger none = { .l_onoff = 1, .l_linger = 0 };
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    (void)shutdown(fd, SHUT_RDWR);
}

/* True if the connection was accepted on our port, and comes from `port` of the listener's host, or of any
 * host if `listener` is NULL. */
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

/* ==== ucx lanes ==== */

/* UCX prints a line for each lane (src/ucp/core/ucp_ep.c), such as
 *
 *   #                 lane[0]:  0:tcp/lo.0 md[0]           -> md[0]/tcp/sysdev[255] am am_bw#0 wireup
 *   #                 lane[1]:  4:rc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] rma_bw#0 rma#0
 *
 * A line has an index, a resource, transport/device, memory domains, and uses. The output is text for
 * people. Text that we do not understand counts as no native lane, and then payloads are sent in
 * messages. */

bool ucx_transport_is_native(const char *name)
{
    static const char *const native[] = { "rc",     "rc_verbs", "rc_mlx5",  "rc_x",
                                          "dc",     "dc_mlx5",  "dc_x",     "gga_mlx5",
                                          "rc_gga", "srd",      "ugni_rdma" };
    for (size_t i = 0; i < sizeof native / sizeof *native; i++)
        if (strcmp(name, native[i]) == 0) return true;
    return false;
}

/* Reads the transport from a line, of which `line` is the part behind "lane[". Returns false if the line is
 * not of this form. */
static bool read_transport(const char *line, const char *end, char *name_out, size_t name_bytes)
{
    const char *at = memchr(line, ']', (size_t)(end - line));
    if (at == NULL || end - at < 2 || at[1] != ':') return false;
    at += 2;
    while (at < end && *at == ' ') at++;
    while (at < end && isdigit((unsigned char)*at)) at++;
    if (at == end || *at != ':') return false;
    at++;
    const char *slash = memchr(at, '/', (size_t)(end - at));
    if (slash == NULL || (size_t)(slash - at) >= name_bytes) return false;
    memcpy(name_out, at, (size_t)(slash - at));
    name_out[slash - at] = '\0';
    return true;
}

static bool is_for_rma(const char *line, const char *end)
{
    for (const char *at = line; at < end; at++)
        if (strncmp(at, " rma#", 5) == 0 || strncmp(at, " rma_bw#", 8) == 0) return true;
    return false;
}

bool ucx_lanes_are_native(const char *text)
{
    static const char mark[] = "lane[";
    for (const char *lane = strstr(text, mark); lane != NULL; lane = strstr(lane, mark)) {
        char name[32];
        const char *end = lane + strcspn(lane, "\n");
        lane += sizeof mark - 1;
        if (read_transport(lane, end, name, sizeof name) && ucx_transport_is_native(name) &&
            is_for_rma(lane, end))
            return true;
    }
    return false;
}

/* ==== ucx settings ==== */

/* How Cairn runs UCX: the settings that the measurements of this project made necessary, each with its
 * reason. README.md says which UCX_* variables of the environment still count. */

/* -- what depends on the version of UCX at run time (not the one that we were compiled with) -------- */

static bool ucx_is_older_than(unsigned major_wanted, unsigned minor_wanted)
{
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    return major < major_wanted || (major == major_wanted && minor < minor_wanted);
}

/* True if connect() does not make us wait. A UCX that waits aborts when the peer resets the connection
 * while the connection is being made (1.12 to 1.18, tcp_ep.c: UCT_TCP_EP_FLAG_CTX_TYPE_TX). Without waiting
 * 1.12 and 1.13 abort at least as often, when a peer goes down while an answer to this peer is under way
 * (ucp_request.c: got REP message). */
bool ucx_connects_on_its_own(void)
{
    return !ucx_is_older_than(1, 14);
}

/* -- settings ----------------------------------------------------------------------------------- */

/* Values that do not depend on options. These values override the environment: a forgotten UCX_* in a job
 * script must not change how a cluster behaves. */
static const struct {
    const char *name, *value;
} settings[] = {
    { "RX_MPOOL_SIZES", "64,1k,64k" }, // otherwise a held payload of 2k takes a segment
    { "RNDV_THRESH", "32k" },          // larger payloads wait at their sender, not in our pools
    { "RNDV_SCHEME", "auto" },         //
    { "PROTO_ENABLE", "n" },           // 1.13: with it, a fifth of the speed
    { "HANDLE_ERRORS", "none" },       // no backtraces, no freezing: we may run inside a trainer
    { "WARN_UNUSED_ENV_VARS", "n" },   // another UCX version's variable is not our user's problem
}, settings_of_tcp[] = {
    // A tenth faster than 64k, and more than twice as fast as 8k, the default. A connection uses one
    // segment while it is in the middle of a message. All nodes must have the same segment size: see
    // envelope_magic in where.c.
    { "TX_SEG_SIZE", "256k" },
    { "RX_SEG_SIZE", "256k" },
    // One event at a time: the second of two events may be of a connection that the first event ended,
    // since a killed peer has two connections to us. Then UCX aborts (1.13, tcp_iface.c:307) or reads freed
    // memory.
    { "MAX_POLL", "1" },
};

static const char *or_default(const char *value, const char *fallback)
{
    return value != NULL && value[0] != '\0' ? value : fallback;
}

/* Returns the network devices of the options, or the default if the options name no device. */
static const char *ucx_devices(const struct fabric_options *options)
{
    return or_default(options->net_devices, "lo");
}

static const char *ucx_transports(const struct fabric_options *options)
{
    return or_default(options->transports, "tcp");
}

/* ---- signals ---- */

/* True only if the handler is UCX's own: the host may have installed its own handler since. */
static bool handler_is_of_ucx(int signum)
{
    struct sigaction action;
    Dl_info where, ucx;
    if (sigaction(signum, NULL, &action) != 0) return false;
    union {
        void (*plain)(int);
        void (*with_info)(int, siginfo_t *, void *);
        void *address;
    } handler = { .plain = action.sa_handler };
    union {
        void (*function)(int);
        void *address;
    } known = { .function = ucs_debug_disable_signal };
    if ((action.sa_flags & SA_SIGINFO) != 0) handler.with_info = action.sa_sigaction;
    return dladdr(handler.address, &where) != 0 && dladdr(known.address, &ucx) != 0 &&
           where.dli_fbase == ucx.dli_fbase;
}

/* When UCX is loaded, before main, UCX installs handlers for crashes, and one for SIGHUP that makes the
 * process survive the signal (UCX_HANDLE_ERRORS, UCX_DEBUG_SIGNO). The signals belong to the process, so we
 * restore them as soon as UCX is loaded: UCX's constructor runs before the constructors of programs that
 * are linked with it. */
__attribute__((constructor)) static void give_signals_back(void)
{
    for (int signum = 1; signum <= SIGRTMAX; signum++)
        if (handler_is_of_ucx(signum)) ucs_debug_disable_signal(signum);
}

/* ---- settings ---- */

static ucs_status_t set_of_tcp(ucp_config_t *config, const char *name, const char *value)
{
    char full[64];
    // Before 1.17 the settings of a transport must not have the transport's prefix; from 1.17 on they must
    // have the prefix. Otherwise the settings stay unused.
    snprintf(full, sizeof full, "%s%s", ucx_is_older_than(1, 17) ? "" : "TCP_", name);
    return ucp_config_modify(config, full, value);
}

/* A connect() that waits blocks the loop. If UCX connects in spite of our test (ucx reach), and nothing
 * answers, this setting makes connect() wait 3 s instead of 127 s. UCX writes the number of tries as 8
 * bytes, although 1.12 and 1.13 have only 4 bytes for it; so we set the next setting again, which lies
 * behind those bytes. */
static ucs_status_t give_up_connecting(ucp_config_t *config)
{
    const ucs_status_t status = set_of_tcp(config, "SYN_CNT", "1");
    return status == UCS_OK ? set_of_tcp(config, "TX_MAX_BUFS", "-1") : status;
}

static ucs_status_t apply_fixed(ucp_config_t *config)
{
    ucs_status_t status = UCS_OK;
    for (size_t i = 0; i < sizeof settings / sizeof *settings && status == UCS_OK; i++)
        status = ucp_config_modify(config, settings[i].name, settings[i].value);
    for (size_t i = 0; i < sizeof settings_of_tcp / sizeof *settings_of_tcp && status == UCS_OK;
         i++)
        status = set_of_tcp(config, settings_of_tcp[i].name, settings_of_tcp[i].value);
    return status;
}

/* Without cuda_copy UCX knows no memory of cards, and never checks the type of an address. */
static ucs_status_t set_transports(ucp_config_t *config, const char *transports, bool has_cuda)
{
    char with_cuda[512];
    if (!has_cuda) return ucp_config_modify(config, "TLS", transports);
    const int length = snprintf(with_cuda, sizeof with_cuda, "%s,cuda_copy", transports);
    return length > 0 && (size_t)length < sizeof with_cuda
               ? ucp_config_modify(config, "TLS", with_cuda)
               : UCS_ERR_INVALID_PARAM;
}

static ucs_status_t apply(ucp_config_t *config, const struct fabric_options *options, bool has_cuda)
{
    const bool is_tcp = strcmp(ucx_transports(options), "tcp") == 0;
    ucs_status_t status = apply_fixed(config);
    if (status == UCS_OK) status = set_transports(config, ucx_transports(options), has_cuda);
    if (status == UCS_OK) status = ucp_config_modify(config, "NET_DEVICES", ucx_devices(options));
    if (status == UCS_OK)
        status = set_of_tcp(config, "PORT_RANGE", or_default(options->port_range, "0"));
    if (status == UCS_OK)
        status = set_of_tcp(config, "CONN_NB", ucx_connects_on_its_own() ? "y" : "n");
    if (status == UCS_OK && !ucx_connects_on_its_own()) status = give_up_connecting(config);
    // UCX must copy the payload to a segment of its own instead of sending it with writev():
    // uct_tcp_ep_sendv() ends a send twice, and so aborts, if the peer is killed during the call (1.12 to
    // 1.18, uct_iface.h: comp->count > 0).
    if (status == UCS_OK && is_tcp) status = ucp_config_modify(config, "ZCOPY_THRESH", "inf");
    // The cache of registered memory hooks every munmap of the process. TCP registers nothing.
    // Without the cache UCX 1.18 crashes if an endpoint is closed while a rendezvous is under way (seen);
    // 1.13 does not.
    if (status == UCS_OK && options->transports == NULL && ucx_is_older_than(1, 14))
        status = ucp_config_modify(config, "RCACHE_ENABLE", "n");
    // UCX logs a peer that is gone as an "error", with wrong advice, on stdout. We report such a peer
    // ourselves.
    if (status == UCS_OK && getenv("UCX_LOG_LEVEL") == NULL)
        status = ucp_config_modify(config, "LOG_LEVEL", "fatal");
    return status;
}

/* Opens one context with our settings, whatever the environment says. With has_cuda, includes UCX's part
 * for CUDA, if that part exists. */
static cairn_status ucx_context_open(const struct fabric_options *options, bool has_cuda,
                                     ucp_context_h *context_out, struct sentence *why)
{
    const uint64_t rma = ucx_one_sided_is_possible(options) ? UCP_FEATURE_RMA : 0;
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP | rma,
        .name = "cairn",
    };
    ucp_config_t *config;
    const cairn_status room = threads_at_hand(1, "UCX", why); // without a thread UCX aborts
    if (room != CAIRN_OK) return room;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return fail_with(why, CAIRN_ERR_CONFIG,
                         "UCX cannot read its settings (%s): look for a malformed UCX_* variable",
                         ucs_status_string(status));
    status = apply(config, options, has_cuda);
    if (status == UCS_OK) status = ucp_init(&params, config, context_out);
    ucp_config_release(config);
    if (status == UCS_OK) {
        give_signals_back();
        return CAIRN_OK;
    }
    return fail_with(
        why, CAIRN_ERR_UNREACHABLE,
        "UCX cannot use transports '%s' on devices '%s' (%s): ucx_info -d lists what this host has",
        ucx_transports(options), ucx_devices(options), ucs_status_string(status));
}

static void ucx_describe(struct fabric *fabric, const struct fabric_options *options)
{
    snprintf(
        fabric->describe, sizeof fabric->describe,
        "ucx %s, transports %s, devices %s, tcp ports %s, segments of 256 KiB, rendezvous from 32 "
        "KiB, one-sided reads %s, payloads to %zu bytes, at most %u held and %u sends in flight",
        ucp_get_version_string(), ucx_transports(options), ucx_devices(options),
        or_default(options->port_range, "any"), one_sided_name(options->one_sided),
        options->max_payload, options->held_max, options->sends_max);
}

/* ==== ucx reach ==== */

/* Tests whether anything answers where a peer listens, before UCX connects to that peer.
 *
 * UCX before 1.14 waits inside ucp_ep_create until connect() is over: 3 s if packets are silently dropped,
 * and everything on our loop waits as well. Worse, UCX never hears that peer from then on, although the
 * peer may well connect to us. UCX also keeps the socket of every failed attempt, even of a refused
 * attempt. So a socket of ours tries first, without waiting, and UCX connects only after that socket was
 * answered. For this the address holds the port: after UCX's bytes and before the place.
 *
 * UCX from 1.14 on does not wait. Yet a link that is made while its node is away connects at some later
 * moment. The node may meanwhile have made a link as well, and the two links are no pair. We notice that only
 * after PROOF_MS, and again after both ends begin anew (ucx_link.c). So our socket tries first with these
 * versions, too.
 *
 * A peer that does not answer within REACH_WAIT_MS is refused. We keep its socket, and check the socket
 * when the same address is tried again, without waiting a second time. If that socket was answered since,
 * the answer may be old, and the peer may have vanished again. So only an answer to a try of this moment
 * counts: we try anew, and wait again, for longer if the old answer took longer. */

enum {
    REACH_WAIT_MS = 100,     /* of the loop's time: longer than nearly any round trip to a peer */
    REACH_WAIT_MOST = 1000,  /* ms: the same for a peer whose round trip is known to be longer */
    REACH_FORGET_MS = 60000, /* an address counts as new after this time */
    BLOCKED_MS = 500,        /* a ucp_ep_create that takes longer waited in vain */
    /* We leave the address alone for as long as UCX waited. Each further wait doubles the rest, at most to
     * this many times the wait: the peer may be back at once, but who never answers must not hold the loop */
    BLOCKED_REST_MAX = 8,
};

/* ---- the port ---- */

static const char port_magic[8] = "CAIRNPT1"; /* behind the port, in network byte order */

/* Finds the port and the IP address of a listening socket. Returns false if `fd` is not a listening
 * socket. */
static bool find_listener(int fd, in_port_t *port_out, char ip_out[INET6_ADDRSTRLEN])
{
    struct sockaddr_storage address;
    int listens = 0;
    socklen_t bytes = sizeof listens, address_bytes = sizeof address;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || !listens ||
        getsockname(fd, (struct sockaddr *)&address, &address_bytes) != 0 ||
        !ip_print((const struct sockaddr *)&address, ip_out))
        return false;
    *port_out = *ucx_port_of(&address);
    return true;
}

/* UCX does not say where it listens: UCX's socket is the socket of this process whose port appears in UCX's
 * address. If there are two such sockets, or other transports than TCP, UCX chooses the path by itself:
 * then the address holds no port. */
static size_t ucx_add_port(const struct fabric_place *place, uint8_t *raw, size_t bytes,
                           size_t room)
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

/* Finds the sockets that this node listens on, bounds how long their connections may stay unacknowledged,
 * and sets own_port. */
static void ucx_bound_listeners(struct ucx_fabric *ucx)
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

/* Finds where a peer listens. Returns false if the peer's address does not say where. */
static bool find_port(const uint8_t *raw, size_t bytes, struct sockaddr_storage *out,
                      socklen_t *out_bytes)
{
    struct fabric_place place;
    const size_t tail_bytes = sizeof(in_port_t) + sizeof port_magic;
    const size_t end = fabric_find_place(raw, bytes, &place);
    if (end == bytes || end < tail_bytes ||
        memcmp(raw + end - sizeof port_magic, port_magic, sizeof port_magic) != 0 ||
        !ip_parse(place.ip, out, out_bytes))
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

/* Returns the connecting socket; -1 if there is no socket, or if the connection was refused at once. */
static int begin_asking(const struct sockaddr_storage *to, socklen_t bytes)
{
    const int fd = socket(to->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), tries = 1;
    if (fd < 0) return -1;
    // gives up after 3 s; then we begin anew
    (void)setsockopt(fd, IPPROTO_TCP, TCP_SYNCNT, &tries, sizeof tries);
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

/* Returns an entry for the node; if none is free, reuses the entry of the address whose last try is the
 * longest ago. */
static struct ucx_asked *take_asked(struct ucx_fabric *ucx, uint64_t node, uint64_t now_ms,
                                    int *wait_ms_out)
{
    struct ucx_asked *oldest = &ucx->asked[0];
    for (size_t i = 1; i < UCX_ASKED_MAX; i++)
        if (ucx->asked[i].at_ms < oldest->at_ms) oldest = &ucx->asked[i];
    const bool is_free = oldest->at_ms == 0 || now_ms - oldest->at_ms > REACH_FORGET_MS;
    // if too many addresses are silent, we wait for none
    *wait_ms_out = is_free ? REACH_WAIT_MS : 0;
    if (oldest->at_ms != 0) end_asking(oldest);
    *oldest = (struct ucx_asked) { .node = node, .fd = -1 };
    return oldest;
}

/* True if the connect has ended: then *error_out is 0, or says why the connect failed. */
static bool is_answered(struct ucx_asked *asked, int wait_ms, int *error_out)
{
    struct pollfd answer = { .fd = asked->fd, .events = POLLOUT };
    socklen_t bytes = sizeof *error_out;
    if (poll(&answer, 1, wait_ms) <= 0) return false;
    if (getsockopt(asked->fd, SOL_SOCKET, SO_ERROR, error_out, &bytes) != 0) *error_out = errno;
    return true;
}

/* True if the other node has answered, whether it accepts connections or not. */
static bool is_answer(int error)
{
    return error == 0 || error == ECONNREFUSED;
}

/* Returns for how long to wait for the next answer from where this socket was answered. */
static int patience_ms(int fd)
{
    struct tcp_info info = { 0 };
    socklen_t bytes = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return REACH_WAIT_MS;
    const uint32_t twice_ms = 2 * (info.tcpi_rtt / 1000);
    return twice_ms <= REACH_WAIT_MS    ? REACH_WAIT_MS
           : twice_ms < REACH_WAIT_MOST ? (int)twice_ms
                                        : REACH_WAIT_MOST;
}

cairn_status ucx_reach(struct ucx_fabric *ucx, const void *raw, size_t bytes)
{
    struct sockaddr_storage to;
    socklen_t to_bytes;
    const uint64_t node = fabric_hash(raw, bytes), now_ms = monotonic_ms();
    struct ucx_asked *asked = find_asked(ucx, node);
    int wait_ms = 0, error = EINPROGRESS;
    if (asked != NULL && now_ms < asked->rest_until_ms) return CAIRN_ERR_UNREACHABLE;
    if (!find_port(raw, bytes, &to, &to_bytes)) return CAIRN_OK;
    if (asked == NULL)
        asked = take_asked(ucx, node, now_ms, &wait_ms);
    else if (asked->fd < 0 && asked->rest > 0)
        wait_ms = REACH_WAIT_MS; // it answered the last time
    asked->at_ms = now_ms;
    if (asked->fd >= 0) {
        if (!is_answered(asked, 0, &error)) return CAIRN_ERR_UNREACHABLE;
        if (is_answer(error)) wait_ms = patience_ms(asked->fd);
        end_asking(asked); // the answer is old
    }
    asked->fd = begin_asking(&to, to_bytes);
    if (asked->fd < 0 || !is_answered(asked, wait_ms, &error)) return CAIRN_ERR_UNREACHABLE;
    end_asking(asked);
    // an address that is not silent is forgotten, unless UCX waited for it in vain
    if (is_answer(error) && asked->rest == 0) asked->at_ms = 0;
    return error == 0 ? CAIRN_OK : CAIRN_ERR_UNREACHABLE;
}

void ucx_note_connect(struct ucx_fabric *ucx, const void *raw, size_t bytes, uint64_t ms,
                      bool is_connected)
{
    const uint64_t node = fabric_hash(raw, bytes);
    struct ucx_asked *asked = find_asked(ucx, node);
    int wait_ms;
    if (is_connected) {
        if (asked == NULL) return;
        end_asking(asked);
        *asked = (struct ucx_asked) { .fd = -1 };
        return;
    }
    if (ms < BLOCKED_MS) return;
    if (asked == NULL) asked = take_asked(ucx, node, monotonic_ms(), &wait_ms);
    asked->at_ms = monotonic_ms();
    if (asked->rest < BLOCKED_REST_MAX) asked->rest = asked->rest == 0 ? 1 : 2 * asked->rest;
    asked->rest_until_ms = asked->at_ms + ms * asked->rest;
}

/* ==== ucx worker ==== */

/* -- opening ------------------------------------------------------------------------------------ */

/* UCX starts a thread of its own with the worker, to accept connections. The thread inherits our signal
 * mask, so that the thread never handles a signal of the process. */
static ucs_status_t create_worker(struct ucx_fabric *ucx)
{
    const ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS,
        // One thread at a time uses the worker, but not always the thread that opened it: a client's caller
        // opens the worker, and the client's thread drives it. SINGLE would bind the worker to the opener,
        // and UCX 1.18 aborts when another thread calls
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
        .flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK,
    };
    sigset_t before;
    signals_block(&before);
    ucs_status_t status = ucp_worker_create(ucx->context, &params, &ucx->worker);
    signals_return(&before);
    return status;
}

/* Publishes UCX's address, with the port and the place behind it. */
static cairn_status publish_address(struct ucx_fabric *ucx, const char *devices,
                                    const char *transports)
{
    uint8_t raw[CAIRN_FABRIC_ADDRESS_MAX];
    struct fabric_place place;
    ucp_address_t *address;
    size_t bytes;
    ucs_status_t status = ucp_worker_get_address(ucx->worker, &address, &bytes);
    if (status != UCS_OK) return ucx_status(status);
    const bool fits = bytes <= sizeof raw;
    if (fits) memcpy(raw, address, bytes);
    ucp_worker_release_address(ucx->worker, address);
    if (!fits) return CAIRN_ERR_UNSUPPORTED;
    if (fabric_place_of(devices, transports, &place)) {
        bytes = ucx_add_port(&place, raw, bytes, sizeof raw);
        bytes = fabric_add_place(&place, raw, bytes, sizeof raw);
    }
    ucx->node = fabric_hash(raw, bytes);
    return fabric_set_address(&ucx->common, raw, bytes);
}

/* ==== ucx device ==== */

/* This part decides whether memory of cards is sent to peers directly. Three parts have to support that:
 * the card, whose memory network cards may reach (GPUDirect RDMA); UCX, whose Debian builds have no part
 * for CUDA; and the network card, whose driver registers such memory, by a module of NVIDIA's
 * (nvidia_peermem) or as a dma-buf. If any of the three does not, the memory is copied through the host,
 * and the reason is reported.
 *
 * We ask UCX instead of guessing: for CUDA, by opening a context for the question; for the network card, by
 * its memory domain, which UCX's lower interface (uct) describes. */

/* -- UCX's part --------------------------------------------------------------------------------- */

static bool has_cuda(const struct fabric_options *options, struct sentence *why)
{
    ucp_context_attr_t attr = { .field_mask = UCP_ATTR_FIELD_MEMORY_TYPES };
    ucp_context_h context;
    if (ucx_context_open(options, true, &context, why) != CAIRN_OK) return false;
    const bool is_known = ucp_context_query(context, &attr) == UCS_OK;
    ucp_cleanup(context);
    if (is_known && (attr.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0) return true;
    sentence_set(why, "UCX %s of this system was built without CUDA", ucp_get_version_string());
    return false;
}

/* -- the network card's ------------------------------------------------------------------------- */

enum takes { IS_NO_SUCH_CARD, TAKES_NOT, TAKES };

/* True if the driver registers memory of cards, either by a module of NVIDIA's, whose file UCX looks for,
 * or as a dma-buf. */
static bool registers(const uct_md_attr_t *attr, bool has_dma_buf)
{
#if UCP_API_VERSION >= UCP_VERSION(1, 14)
    if (has_dma_buf && (attr->cap.flags & UCT_MD_FLAG_REG_DMABUF) != 0) return true;
#else
    (void)has_dma_buf;
#endif
    return (attr->cap.reg_mem_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
}

static enum takes ask_domain(uct_component_h component, const char *domain, bool has_dma_buf)
{
    uct_md_config_t *config;
    uct_md_attr_t attr;
    uct_md_h md;
    if (uct_md_config_read(component, NULL, NULL, &config) != UCS_OK) return TAKES_NOT;
    ucs_status_t status = uct_md_open(component, domain, config, &md);
    uct_config_release(config);
    if (status != UCS_OK) return TAKES_NOT;
    status = uct_md_query(md, &attr);
    uct_md_close(md);
    return status == UCS_OK && registers(&attr, has_dma_buf) ? TAKES : TAKES_NOT;
}

/* UCX names the memory domain of an RDMA card like the card: "mlx5_0". */
static enum takes ask_component(uct_component_h component, const char *card, bool has_dma_buf)
{
    uct_component_attr_t attr = { .field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT };
    if (uct_component_query(component, &attr) != UCS_OK || attr.md_resource_count == 0)
        return IS_NO_SUCH_CARD;
    uct_md_resource_desc_t domains[attr.md_resource_count];
    attr.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
    attr.md_resources = domains;
    if (uct_component_query(component, &attr) != UCS_OK) return IS_NO_SUCH_CARD;
    for (unsigned i = 0; i < attr.md_resource_count; i++)
        if (strcmp(domains[i].md_name, card) == 0) return ask_domain(component, card, has_dma_buf);
    return IS_NO_SUCH_CARD;
}

static enum takes ask_card(const char *card, bool has_dma_buf)
{
    uct_component_h *components;
    unsigned count;
    enum takes takes = IS_NO_SUCH_CARD;
    if (uct_query_components(&components, &count) != UCS_OK) return takes;
    for (unsigned i = 0; i < count && takes == IS_NO_SUCH_CARD; i++)
        takes = ask_component(components[i], card, has_dma_buf);
    uct_release_component_list(components);
    return takes;
}

/* True if `devices` (such as "mlx5_0:1,eth1") contains an RDMA card, and all RDMA cards in it take memory
 * of cards. */
static bool ask_cards(const char *devices, bool has_dma_buf, struct sentence *why)
{
    bool any = false;
    for (const char *at = devices; *at != '\0'; at += *at == ',') {
        char card[UCT_MD_NAME_MAX];
        const size_t length = strcspn(at, ",");
        const size_t name = strcspn(at, ":,");
        snprintf(card, sizeof card, "%.*s", (int)name, at);
        at += length;
        const enum takes takes = ask_card(card, has_dma_buf);
        if (takes == TAKES_NOT) {
            sentence_set(why,
                         "%s registers no memory of a GPU: load nvidia_peermem, or drivers "
                         "that know dma-buf on both sides",
                         card);
            return false;
        }
        any = any || takes == TAKES;
    }
    sentence_set(why,
                 any ? "%s reaches the GPU's memory by itself (GPUDirect RDMA)"
                     : "there is no RDMA card among the devices %s",
                 devices);
    return any;
}

/* -- all of it ---------------------------------------------------------------------------------- */

static bool ucx_device_decide(const struct fabric_options *options, struct sentence *why)
{
    const char *no = NULL;
    if (options->device_memory == CAIRN_DEVICE_MEMORY_HOST)
        no = "device_memory is host";
    else if (options->device == NULL)
        no = "there is no card";
    if (no == NULL && !has_cuda(options, why)) return false;
    if (no == NULL && options->device_memory == CAIRN_DEVICE_MEMORY_DEVICE) {
        sentence_set(why, "device_memory is device, and UCX %s has CUDA", ucp_get_version_string());
        return true;
    }
    if (no == NULL && !options->device->is_reached)
        no = "the driver says that no network card reaches the GPU's memory (GPUDirect RDMA)";
    if (no == NULL && strcmp(ucx_transports(options), "tcp") == 0)
        no = "transports are tcp, which goes through host memory in any case; rc,tcp does not";
    if (no == NULL) {
        if (!ask_cards(ucx_devices(options), options->device->has_dma_buf, why)) return false;
        if (SENDS_BY_HANDLE) return true;
        no = "this build of Cairn was made with a UCX before 1.14: build it with the one it runs "
             "with";
    }
    sentence_set(why, "%s", no);
    return false;
}

/* ==== ucx node ==== */

static cairn_status ucx_start(struct fabric *fabric, const struct fabric_options *options,
                              struct sentence *why)
{
    struct ucx_fabric *ucx = ucx_of(fabric);
    STAILQ_INIT(&ucx->reads_later); // all other lists are empty when zero
    STAILQ_INIT(&ucx->graves);
    fabric->is_one_sided = ucx_one_sided_is_possible(options);
    ucx->refer_min = options->one_sided == CAIRN_ONE_SIDED_ON ? 1 : UCX_REFER_MIN;
    fabric->takes_device = ucx_device_decide(options, &fabric->device_why);
    cairn_status status = ucx_context_open(options, fabric->takes_device, &ucx->context, why);
    if (status != CAIRN_OK) return status;
    ucs_status_t ucs = create_worker(ucx);
    if (ucs != UCS_OK) {
        status = fail_with(why, CAIRN_ERR_UNREACHABLE,
                           "UCX cannot open devices '%s', tcp ports '%s' (%s): is the device up "
                           "and a port of the range free?",
                           ucx_devices(options),
                           options->port_range != NULL ? options->port_range : "any",
                           ucs_status_string(ucs));
        goto err_cleanup_context;
    }
    ucs = ucx_listen(ucx);
    if (ucs == UCS_OK) ucs = ucx_bundles_listen(ucx);
    if (ucs == UCS_OK) ucs = ucx_one_sided_listen(ucx);
    if (ucs == UCS_OK) ucs = ucp_worker_get_efd(ucx->worker, &fabric->event_fd);
    status = ucs == UCS_OK ? publish_address(ucx, ucx_devices(options), ucx_transports(options))
                           : ucx_status(ucs);
    if (status != CAIRN_OK) {
        sentence_set(why, "UCX gives no event descriptor or address: %s", status_text((int)status));
        goto err_destroy_worker;
    }
    ucx->unacked_ms = UCX_UNACKED_MS;
    ucx_bound_listeners(ucx);
    if (!ucx_links_open(ucx)) {
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "fabric ucx: no timer: %m");
        goto err_destroy_worker;
    }
    (void)ucx_far_open(ucx, options);
    ucx_describe(fabric, options);
    return CAIRN_OK;
err_destroy_worker:
    if (ucx->timer_fd > 0) close(ucx->timer_fd);
    ucp_worker_destroy(ucx->worker);
err_cleanup_context:
    ucp_cleanup(ucx->context);
    return status;
}

/* -- the end ------------------------------------------------------------------------------------ */

/* The process aborts if a UCX worker is destroyed while a receive waits for its sender (UCX 1.12 to 1.18:
 * proto_reqs is not empty). Receives by an endpoint that we made are safe, because we close that endpoint
 * before we destroy the worker. The other receives came by endpoints that UCX made when a peer connected.
 * UCX keeps such an endpoint as long as a receive is under way by that endpoint, so we can close the
 * endpoint here.
 *
 * Every receive of a rendezvous, also a receive into a far buffer, has its endpoint in `by` while it flies
 * (ucx_receive). Our own endpoints are closed already: `by` of their ops is NULL. */
static void close_receives(struct ucx_fabric *ucx)
{
    struct fabric_op *op = TAILQ_FIRST(&ucx->common.flying);
    while (op != NULL) {
        if (op->by == NULL || op->is_send) {
            op = TAILQ_NEXT(op, link);
            continue;
        }
        ucx_endpoint_close(ucx, op->by); // receives may end here and now
        op = TAILQ_FIRST(&ucx->common.flying);
    }
}

/* -- driving ------------------------------------------------------------------------------------ */

static unsigned ucx_progress(struct fabric *fabric)
{
    struct ucx_fabric *ucx = ucx_of(fabric);
    const unsigned count = ucx_bundles_flush(ucx) + ucp_worker_progress(ucx->worker);
    return count + ucx_links_tend(ucx);
}

static cairn_status ucx_arm(struct fabric *fabric)
{
    struct ucx_fabric *ucx = ucx_of(fabric);
    if (ucx_bundles_flush(ucx) > 0 || ucx->has_lost) return CAIRN_ERR_BUSY;
    ucs_status_t status = ucp_worker_arm(ucx->worker);
    return status == UCS_OK ? CAIRN_OK : CAIRN_ERR_BUSY;
}

static void ucx_set_patience(struct fabric *fabric, uint32_t ms)
{
    struct ucx_fabric *ucx = ucx_of(fabric);
    if (ucx->unacked_ms == ms) return;
    ucx->unacked_ms = ms;
    ucx_bound_listeners(ucx);
}

/* Canceled operations end within a few calls of progress. Any other operation ends when the worker is
 * destroyed; after that UCX writes no more. */
static void ucx_stop(struct fabric *fabric)
{
    struct ucx_fabric *ucx = ucx_of(fabric);
    const uint64_t deadline = monotonic_ms() + STOP_MS;
    struct pollfd wait = { .fd = fabric->event_fd, .events = POLLIN };
    ucx_links_stop(ucx);
    close_receives(ucx);
    while (!TAILQ_EMPTY(&fabric->flying) && monotonic_ms() < deadline)
        if (ucp_worker_progress(ucx->worker) == 0 && ucp_worker_arm(ucx->worker) == UCS_OK)
            poll(&wait, 1, 10);
    while (ucp_worker_progress(ucx->worker) != 0 && monotonic_ms() < deadline) {}
    ucx_one_sided_begin_stop(ucx);
    ucx_one_sided_settle(ucx);
    ucp_worker_destroy(ucx->worker);
    ucx_cards_close(ucx);
    ucp_cleanup(ucx->context);
    ucx_far_close(ucx);
    ucx_bundles_close(ucx);
    ucx_one_sided_end_stop(ucx);
    ucx_links_close(ucx);
    for (size_t i = 0; i < UCX_ASKED_MAX; i++)
        if (ucx->asked[i].at_ms != 0) end_asking(&ucx->asked[i]);
}

const struct fabric_backend fabric_ucx = {
    .kind = "ucx",
    .fabric_bytes = sizeof(struct ucx_fabric),
    .peer_bytes = sizeof(struct ucx_peer),
    .message_bytes = sizeof(struct ucx_message),
    .start = ucx_start,
    .stop = ucx_stop,
    .connect = ucx_connect,
    .disconnect = ucx_disconnect,
    .send = ucx_send,
    .receive = ucx_receive,
    .drop = ucx_drop,
    .progress = ucx_progress,
    .arm = ucx_arm,
    .region_bytes = sizeof(struct ucx_region),
    .region_drop = ucx_region_drop,
    .message_path = ucx_message_path,
    .lands = ucx_lands,
    .takes_device = ucx_takes_device,
    .payload_path = ucx_payload_path,
    .set_patience = ucx_set_patience,
};
