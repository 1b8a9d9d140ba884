/* Drives a fabric in the way that proved best in measurements: it calls progress in the prepare phase, arms
 * the fabric, and lets epoll sleep. The prepare phase runs just before every wait of the loop, so messages
 * that a timer or a stream has sent are worked on before the loop sleeps. An active idle handle means "do
 * not wait" to libuv. The descriptor stays readable until the next arm, so a wake-up alone must not extend
 * the spin: only real progress does (else the loop would spin for ever, measured 12-90 % of a core). */
#include "proto/loop/loop.h"

#include <stdbool.h>

enum { PROGRESS_MAX = 64 }; /* calls in one turn, before other handles of the loop get their turn */

static void on_idle(uv_idle_t *idle)
{
    (void)idle; // the handle only has to be active
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    // the descriptor only wakes the loop: prepare does the work
    (void)poll, (void)status, (void)events;
}

static bool is_closing(const struct fabric_poll *poll)
{
    return uv_is_closing((const uv_handle_t *)&poll->prepare) != 0;
}

static unsigned progress(struct fabric_poll *poll)
{
    unsigned sum = 0;
    for (int i = 0; i < PROGRESS_MAX && !is_closing(poll); i++) {
        const unsigned count = fabric_progress(poll->fabric);
        if (count == 0) break;
        sum += count;
    }
    return sum;
}

/* After progress the loop runs once without waiting. A callback may have requested something outside of the
 * fabric (uv_stop, a flag of UV_RUN_ONCE), and the loop must see that before it sleeps. */
static bool may_sleep(struct fabric_poll *poll, unsigned progressed)
{
    if (poll->spin_ns > 0) {
        const uint64_t now = uv_hrtime();
        if (progressed > 0) poll->spin_until_ns = now + poll->spin_ns;
        if (now < poll->spin_until_ns) return false;
    }
    return progressed == 0 && fabric_arm(poll->fabric) == CAIRN_OK;
}

static void on_prepare(uv_prepare_t *prepare)
{
    struct fabric_poll *poll = prepare->data;
    const unsigned progressed = progress(poll);
    if (is_closing(poll)) return; // a callback closed us
    if (may_sleep(poll, progressed))
        uv_idle_stop(&poll->idle);
    else
        uv_idle_start(&poll->idle, on_idle);
}

cairn_status fabric_poll_init(struct fabric_poll *poll, uv_loop_t *loop, struct fabric *fabric,
                              uint32_t spin_us)
{
    *poll = (struct fabric_poll) { .fabric = fabric, .spin_ns = (uint64_t)spin_us * 1000 };
    // The only step that can fail comes first, so that nothing has to be undone.
    int error = uv_poll_init(loop, &poll->poll, fabric_event_fd(fabric));
    if (error != 0) return error == UV_ENOMEM ? CAIRN_ERR_NO_MEMORY : CAIRN_ERR_IO;
    uv_prepare_init(loop, &poll->prepare);
    uv_idle_init(loop, &poll->idle);
    poll->poll.data = poll->prepare.data = poll->idle.data = poll;
    poll->handles_open = 3;
    uv_poll_start(&poll->poll, UV_READABLE, on_readable);
    uv_prepare_start(&poll->prepare, on_prepare);
    uv_idle_start(&poll->idle, on_idle); // no wait in the first turn: peers may be connecting
    return CAIRN_OK;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct fabric_poll *poll = handle->data;
    if (--poll->handles_open == 0 && poll->on_closed != NULL) poll->on_closed(poll->on_closed_arg);
}

void fabric_poll_close(struct fabric_poll *poll, void (*on_closed)(void *arg), void *arg)
{
    if (is_closing(poll)) return;
    poll->on_closed = on_closed;
    poll->on_closed_arg = arg;
    uv_close((uv_handle_t *)&poll->poll, on_handle_closed);
    uv_close((uv_handle_t *)&poll->prepare, on_handle_closed);
    uv_close((uv_handle_t *)&poll->idle, on_handle_closed);
}
