/* How Cairn runs UCX. The settings that the measurements of this project forced, each with its reason;
 * README.md says which of the environment's UCX_* still count. */
#include "proto/base/at_hand.h"
#include "proto/fabric/ucx.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucs/debug/debug.h>

/* -- what depends on the version of UCX that runs (not on the one that we were compiled with) ------ */

static bool ucx_is_older_than(unsigned major_wanted, unsigned minor_wanted)
{
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    return major < major_wanted || (major == major_wanted && minor < minor_wanted);
}

/* Then the settings of a transport must not have its prefix; from then on they must. Others are silently
 * unused. */
static bool settings_of_tcp_have_no_prefix(void)
{
    return ucx_is_older_than(1, 17);
}

/* UCX 1.18 without it crashes when an endpoint is closed with a rendezvous under way (seen); not 1.13. */
static bool can_do_without_rcache(void)
{
    return ucx_is_older_than(1, 14);
}

/* A connect() that is not waited for. Without it UCX aborts when the peer resets the connection while it is
 * being made (1.12 to 1.18, tcp_ep.c: UCT_TCP_EP_FLAG_CTX_TYPE_TX). With it 1.12 and 1.13 abort at least as
 * often, when a peer goes down with an answer to it under way (ucp_request.c: got REP message). */
bool ucx_connects_on_its_own(void)
{
    return !ucx_is_older_than(1, 14);
}

/* -- settings ----------------------------------------------------------------------------------- */

/* Values that do not depend on options. They win over the environment: a forgotten UCX_* in a job
 * script must not change how a cluster behaves. */
static const struct {
    const char *name, *value;
} settings[] = {
    { "RX_MPOOL_SIZES", "64,1k,64k" }, // else a payload of 2k that is held takes a segment
    { "RNDV_THRESH", "32k" },          // larger payloads wait at their sender, not in our pools
    { "RNDV_SCHEME", "auto" },         //
    { "PROTO_ENABLE", "n" },           // 1.13: a fifth of the speed when on
    { "HANDLE_ERRORS", "none" },       // no backtraces, no freezing: we may be a guest in a trainer
    { "WARN_UNUSED_ENV_VARS", "n" },   // another UCX version's variable is not our user's problem
}, settings_of_tcp[] = {
    // A tenth more than with 64k, more than twice as much as with 8k, the default. A connection has
    // one while it is in the middle of a message. All nodes must have the same: see address.c.
    { "TX_SEG_SIZE", "256k" },
    { "RX_SEG_SIZE", "256k" },
    // One event at a time: the second of two may be of a connection that the first one ended (a killed
    // peer has two to us), which aborts (1.13, tcp_iface.c:307) or reads freed memory.
    { "MAX_POLL", "1" },
};

static const char *or_default(const char *value, const char *fallback)
{
    return value != NULL && value[0] != '\0' ? value : fallback;
}

const char *ucx_devices(const struct cairn_fabric_options *options)
{
    return or_default(options->net_devices, "lo");
}

const char *ucx_transports(const struct cairn_fabric_options *options)
{
    return or_default(options->transports, "tcp");
}

/* ---- signals ---- */

/* Only UCX's own: the host may have put its handler there since. */
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

/* UCX installs handlers when it is loaded, before main: of crashes, and of SIGHUP, which its handler survives
 * (UCX_HANDLE_ERRORS, UCX_DEBUG_SIGNO). The signals of a process are its own, so they are given back as they
 * were before, as soon as UCX is there: its constructor runs before those of whoever is linked with it. */
__attribute__((constructor)) static void give_signals_back(void)
{
    for (int signum = 1; signum <= SIGRTMAX; signum++)
        if (handler_is_of_ucx(signum)) ucs_debug_disable_signal(signum);
}

/* ---- settings ---- */

static ucs_status_t set_of_tcp(ucp_config_t *config, const char *name, const char *value)
{
    char full[64];
    snprintf(full, sizeof full, "%s%s", settings_of_tcp_have_no_prefix() ? "" : "TCP_", name);
    return ucp_config_modify(config, full, value);
}

/* A connect() that is waited for holds the loop up: so for 3 s where nothing answers, not for 127, if it
 * comes to that in spite of ucx_reach.c. The tries are written as 8 bytes into the 4 that UCX 1.12 and 1.13
 * have for them: what is behind is said again. */
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

/* cuda_copy: without it UCX knows no memory of cards, and looks at nothing for what it may be. */
static ucs_status_t set_transports(ucp_config_t *config, const char *transports, bool has_cuda)
{
    char with_cuda[512];
    if (!has_cuda) return ucp_config_modify(config, "TLS", transports);
    const int length = snprintf(with_cuda, sizeof with_cuda, "%s,cuda_copy", transports);
    return length > 0 && (size_t)length < sizeof with_cuda
               ? ucp_config_modify(config, "TLS", with_cuda)
               : UCS_ERR_INVALID_PARAM;
}

static ucs_status_t apply(ucp_config_t *config, const struct cairn_fabric_options *options,
                          bool has_cuda)
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
    // A segment of ours instead of writev() out of the payload: uct_tcp_ep_sendv() ends a send twice,
    // and aborts, when its peer is killed just then (1.12 to 1.18, uct_iface.h: comp->count > 0).
    if (status == UCS_OK && is_tcp) status = ucp_config_modify(config, "ZCOPY_THRESH", "inf");
    // The cache of registered memory listens to every munmap of the process. TCP registers nothing.
    if (status == UCS_OK && options->transports == NULL && can_do_without_rcache())
        status = ucp_config_modify(config, "RCACHE_ENABLE", "n");
    // A peer that is gone is an "error" to UCX, with wrong advice, on stdout. We say it in our words.
    if (status == UCS_OK && getenv("UCX_LOG_LEVEL") == NULL)
        status = ucp_config_modify(config, "LOG_LEVEL", "fatal");
    return status;
}

cairn_status ucx_context_open(const struct cairn_fabric_options *options, bool has_cuda,
                              ucp_context_h *context_out, struct cairn_sentence *why)
{
    const uint64_t rma = ucx_one_sided_is_possible(options) ? UCP_FEATURE_RMA : 0;
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP | rma,
        .name = "cairn",
    };
    ucp_config_t *config;
    const cairn_status room = cairn_threads_at_hand(1, "UCX", why); // without it UCX aborts
    if (room != CAIRN_OK) return room;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return cairn_fail(why, CAIRN_ERR_CONFIG,
                          "UCX cannot read its settings (%s): look for a malformed UCX_* variable",
                          ucs_status_string(status));
    status = apply(config, options, has_cuda);
    if (status == UCS_OK) status = ucp_init(&params, config, context_out);
    ucp_config_release(config);
    if (status == UCS_OK) {
        give_signals_back();
        return CAIRN_OK;
    }
    return cairn_fail(
        why, CAIRN_ERR_UNREACHABLE,
        "UCX cannot use transports '%s' on devices '%s' (%s): ucx_info -d lists what this host has",
        ucx_transports(options), ucx_devices(options), ucs_status_string(status));
}

void ucx_describe(struct cairn_fabric *fabric, const struct cairn_fabric_options *options)
{
    snprintf(
        fabric->describe, sizeof fabric->describe,
        "ucx %s, transports %s, devices %s, tcp ports %s, segments of 256 KiB, rendezvous from 32 "
        "KiB, one-sided reads %s, payloads to %zu bytes, at most %u held and %u sends in flight",
        ucp_get_version_string(), ucx_transports(options), ucx_devices(options),
        or_default(options->port_range, "any"), cairn_one_sided_name(options->one_sided),
        options->max_payload, options->held_max, options->sends_max);
}
