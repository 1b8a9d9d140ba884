/* The ucx fabric: the only door to UCX (with its ucx_*.c). One context and one worker per fabric,
 * endpoints from worker addresses with peer-failure handling, never a ucp_listener: its port aborts
 * the process on garbage. */
#include "proto/fabric/ucx.h"

#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

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

/* -- opening ------------------------------------------------------------------------------------ */

/* UCX starts a thread of its own with the worker (it accepts connections). It inherits our mask:
 * all blocked, so that no signal of the process is ever handled on it. */
static ucs_status_t create_worker(struct ucx_fabric *ucx)
{
    const ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS,
        // one thread at a time, but not always the one that opened it: a client's caller opens, its
        // thread drives. SINGLE names the opener, and UCX 1.18 aborts when it is another one
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
        .flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK,
    };
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    ucs_status_t status = ucp_worker_create(ucx->context, &params, &ucx->worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

/* UCX's address, and where that is, in words. */
static cairn_status publish_address(struct ucx_fabric *ucx, const char *devices,
                                    const char *transports)
{
    uint8_t raw[CAIRN_FABRIC_ADDRESS_MAX];
    struct cairn_place place;
    ucp_address_t *address;
    size_t bytes;
    ucs_status_t status = ucp_worker_get_address(ucx->worker, &address, &bytes);
    if (status != UCS_OK) return ucx_status(status);
    const bool fits = bytes <= sizeof raw;
    if (fits) memcpy(raw, address, bytes);
    ucp_worker_release_address(ucx->worker, address);
    if (!fits) return CAIRN_ERR_UNSUPPORTED;
    if (cairn_place_of(devices, transports, &place)) {
        bytes = ucx_add_port(&place, raw, bytes, sizeof raw);
        bytes = fabric_add_place(&place, raw, bytes, sizeof raw);
    }
    ucx->node = fabric_hash(raw, bytes);
    return fabric_set_address(&ucx->common, raw, bytes);
}

static cairn_status ucx_start(struct cairn_fabric *fabric,
                              const struct cairn_fabric_options *options,
                              struct cairn_sentence *why)
{
    struct ucx_fabric *ucx = ucx_of(fabric);
    STAILQ_INIT(&ucx->reads_later); // all other lists are empty as they are: zero
    STAILQ_INIT(&ucx->graves);
    fabric->is_one_sided = ucx_one_sided_is_possible(options);
    ucx->refer_min = options->one_sided == CAIRN_ONE_SIDED_ON ? 1 : UCX_REFER_MIN;
    fabric->takes_device = ucx_device_decide(options, &fabric->device_why);
    cairn_status status = ucx_context_open(options, fabric->takes_device, &ucx->context, why);
    if (status != CAIRN_OK) return status;
    ucs_status_t ucs = create_worker(ucx);
    if (ucs != UCS_OK) {
        status = cairn_fail(why, CAIRN_ERR_UNREACHABLE,
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
        cairn_sentence_set(why, "UCX gives no event descriptor or address: %s",
                           cairn_status_text((int)status));
        goto err_destroy_worker;
    }
    ucx->unacked_ms = UCX_UNACKED_MS;
    ucx_bound_listeners(ucx);
    if (!ucx_links_open(ucx)) {
        status = cairn_fail(why, CAIRN_ERR_NO_MEMORY, "fabric ucx: no timer: %m");
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

/* A worker that is destroyed while a receive waits for its sender aborts the process (UCX 1.12 to 1.18:
 * proto_reqs is not empty), unless the receive came by an endpoint of ours, which is closed before. The
 * others came by endpoints that UCX made when a peer connected. UCX keeps such a one as long as a receive
 * is under way by it: so it is there to be closed.
 *
 * Every receive of a rendezvous has its endpoint in `by` (ucx_receive: also one into a far buffer), while it
 * flies. Endpoints of ours are closed already: what flew by them has none any more. */
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

static unsigned ucx_progress(struct cairn_fabric *fabric)
{
    struct ucx_fabric *ucx = ucx_of(fabric);
    const unsigned count = ucx_bundles_flush(ucx) + ucp_worker_progress(ucx->worker);
    return count + ucx_links_tend(ucx);
}

static cairn_status ucx_arm(struct cairn_fabric *fabric)
{
    struct ucx_fabric *ucx = ucx_of(fabric);
    if (ucx_bundles_flush(ucx) > 0 || ucx->has_lost) return CAIRN_ERR_BUSY;
    ucs_status_t status = ucp_worker_arm(ucx->worker);
    return status == UCS_OK ? CAIRN_OK : CAIRN_ERR_BUSY;
}

static void ucx_set_patience(struct cairn_fabric *fabric, uint32_t ms)
{
    struct ucx_fabric *ucx = ucx_of(fabric);
    if (ucx->unacked_ms == ms) return;
    ucx->unacked_ms = ms;
    ucx_bound_listeners(ucx);
}

/* Operations that are canceled end within a few progresses. An operation that does not
 * ends with the worker, after which UCX writes no more. */
static void ucx_stop(struct cairn_fabric *fabric)
{
    struct ucx_fabric *ucx = ucx_of(fabric);
    const uint64_t deadline = ucx_now_ms() + STOP_MS;
    struct pollfd wait = { .fd = fabric->event_fd, .events = POLLIN };
    ucx_links_stop(ucx);
    close_receives(ucx);
    while (!TAILQ_EMPTY(&fabric->flying) && ucx_now_ms() < deadline)
        if (ucp_worker_progress(ucx->worker) == 0 && ucp_worker_arm(ucx->worker) == UCS_OK)
            poll(&wait, 1, 10);
    while (ucp_worker_progress(ucx->worker) != 0 && ucx_now_ms() < deadline) {}
    ucx_one_sided_begin_stop(ucx);
    ucx_one_sided_settle(ucx);
    ucp_worker_destroy(ucx->worker);
    ucx_cards_close(ucx);
    ucp_cleanup(ucx->context);
    ucx_far_close(ucx);
    ucx_bundles_close(ucx);
    ucx_one_sided_end_stop(ucx);
    ucx_links_close(ucx);
    ucx_reach_close(ucx);
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
    .payload_path = ucx_payload_path,
    .set_patience = ucx_set_patience,
};
