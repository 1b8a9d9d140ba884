#include "server/shard/drain.h"

#include "server/shard/job/held.h"
#include "server/shard/shard.h"

#define LEASE_MS      5000 /* of a coordinator that was never here */
#define DRAIN_REQUEST 1    /* the one request that a shard makes of a coordinator */

/* The last word: the shard may be closed in it. */
static void end(struct cairn_shard *shard)
{
    shard->drain.is_wanted = false;
    uv_timer_stop(&shard->drain.timer);
    if (shard->events.on_drained != NULL && !shard->closing)
        shard->events.on_drained(shard, shard->events.context);
}

/* The coordinator of this session was asked, and is at it. */
static bool is_asked(const struct cairn_shard *shard)
{
    return shard->session.welcome && shard->drain.asked == shard->session.serial;
}

static void on_time(uv_timer_t *timer)
{
    struct cairn_shard *shard = timer->data;
    if (is_asked(shard))
        cairn_log_error(
            "the time to bring elsewhere what this shard holds is over: it ends, and what it has "
            "of %zu jobs is lost with it; give it more (shard.drain_seconds, and TimeoutStopSec "
            "of its unit), or drain it before it is stopped: `cairn member drain %s`",
            cairn_held_count(shard), shard->name);
    else
        cairn_log_error(
            "%s: nobody brings elsewhere what this shard holds, so it ends, and what it has of "
            "%zu jobs is lost with it; stop shards while their coordinator runs",
            shard->session.welcome
                ? "the coordinator that is here is not the one whose state this is"
                : "no coordinator is here",
            cairn_held_count(shard));
    end(shard);
}

/* Until the end of the time that there is; without a coordinator that can be asked no longer than one takes
 * to be started again. */
static void wait_on(struct cairn_shard *shard)
{
    const uint64_t now_ms = uv_now(shard->loop);
    uint64_t left_ms = now_ms < shard->drain.due_ms ? shard->drain.due_ms - now_ms : 0;
    const uint64_t lease_ms = shard->session.lease_ms != 0 ? shard->session.lease_ms : LEASE_MS;
    if (!is_asked(shard) && left_ms > 2 * lease_ms) left_ms = 2 * lease_ms;
    uv_timer_start(&shard->drain.timer, on_time, left_ms, 0);
}

static void ask(struct cairn_shard *shard)
{
    struct cairn_session *session = &shard->session;
    Cairn__DrainMe message = CAIRN__DRAIN_ME__INIT;
    const uint64_t now_ms = uv_now(shard->loop);
    if (!session->welcome || session->standing != CAIRN_STANDING_GOOD) return;
    if (shard->drain.asked == session->serial) return;
    shard->drain.asked = session->serial;
    message.seconds = now_ms < shard->drain.due_ms
                          ? (uint32_t)((shard->drain.due_ms - now_ms + 999) / 1000)
                          : 1;
    cairn_session_send(shard, CAIRN_MSG_DRAIN_ME, DRAIN_REQUEST, &message.base);
}

void cairn_shard_drain(struct cairn_shard *shard, uint32_t seconds)
{
    if (shard->drain.is_wanted) return;
    shard->drain.is_wanted = true;
    if (cairn_held_count(shard) == 0) {
        end(shard);
        return;
    }
    uv_update_time(shard->loop);
    shard->drain.due_ms = uv_now(shard->loop) + 1000ull * seconds;
    cairn_log_info(
        "asked to end: what %zu jobs have here is to go to other shards first, within %u s",
        cairn_held_count(shard), seconds);
    ask(shard);
    wait_on(shard);
}

void cairn_drain_on_welcome(struct cairn_shard *shard)
{
    if (!shard->drain.is_wanted) return;
    ask(shard);
    if (is_asked(shard)) wait_on(shard);
}

void cairn_drain_on_lost(struct cairn_shard *shard)
{
    if (shard->drain.is_wanted) wait_on(shard);
}

static bool is_answer(const struct cairn_shard *shard, const struct cairn_frame *frame)
{
    return shard->drain.is_wanted && shard->drain.asked == shard->session.serial &&
           frame->request == DRAIN_REQUEST &&
           (frame->type == CAIRN_MSG_DONE || frame->type == CAIRN_MSG_ERROR);
}

bool cairn_drain_on_message(struct cairn_shard *shard, const struct cairn_frame *frame,
                            const ProtobufCMessage *message)
{
    if (shard->session.standing != CAIRN_STANDING_GOOD) return false;
    if (frame->type == CAIRN_MSG_MEMBER_END) {
        cairn_log_info("this shard holds nothing and is known no more: it ends (%s)",
                       ((const Cairn__MemberEnd *)message)->why);
    } else if (!is_answer(shard, frame)) {
        return false;
    } else if (frame->type == CAIRN_MSG_DONE) {
        cairn_log_info("what this shard held is on other shards: it ends");
    } else {
        cairn_log_error(
            "this shard ends, and what it has of %zu jobs is not brought to other shards: %s",
            cairn_held_count(shard), ((const Cairn__Error *)message)->text);
    }
    end(shard);
    return true;
}
