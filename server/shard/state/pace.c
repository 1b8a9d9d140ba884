#include "server/shard/state/pace.h"

#define IDLE_US      ((uint64_t)2000000) /* without a step for so long, or for .. */
#define IDLE_STEPS   4                   /* .. so many times what one took: nobody trains */
#define REST_MAX_US  ((uint64_t)20000)   /* so a cancel is soon heard */
#define BURST_BYTES  ((uint64_t)8 << 20) /* that may be written at once, after a rest */
#define SLACK_DIVIDE 20                  /* a step of a twentieth more than before is as before */

void cairn_pace_init(struct cairn_pace *pace, uint64_t total_bytes, uint64_t before_us,
                     uint64_t last_us, uint64_t deadline_us)
{
    pace->before_us = before_us;
    pace->total_bytes = total_bytes;
    pace->deadline_us = deadline_us;
    atomic_store(&pace->rate, CAIRN_PACE_FIRST);
    atomic_store(&pace->step_us, last_us);
    atomic_store(&pace->hurry, false);
    pace->counted_us = 0;
    pace->allowance = BURST_BYTES;
    atomic_store(&pace->done_bytes, 0);
}

void cairn_pace_step(struct cairn_pace *pace, uint64_t took_us, uint64_t now_us)
{
    const uint64_t rate = atomic_load(&pace->rate);
    const bool slowed = pace->before_us > 0 &&
                        took_us > pace->before_us + pace->before_us / SLACK_DIVIDE;
    uint64_t next = slowed ? rate / 2 : rate + rate / 4;
    if (next < CAIRN_PACE_LEAST) next = CAIRN_PACE_LEAST;
    if (next > UINT64_MAX / 4) next = UINT64_MAX / 4;
    atomic_store(&pace->rate, next);
    atomic_store(&pace->step_us, now_us);
}

/* Nothing was updated for long. */
static bool is_idle(const struct cairn_pace *pace, uint64_t now_us)
{
    const uint64_t last = atomic_load(&pace->step_us), steps = IDLE_STEPS * pace->before_us;
    return last == 0 || now_us > last + (steps > IDLE_US ? steps : IDLE_US);
}

/* Bytes a second, to be there in time. */
static double asked_rate(const struct cairn_pace *pace, uint64_t now_us)
{
    const uint64_t done = atomic_load(&pace->done_bytes);
    const uint64_t left = pace->total_bytes > done ? pace->total_bytes - done : 0;
    return (double)left / (double)(pace->deadline_us - now_us) * 1e6;
}

bool cairn_pace_presses(const struct cairn_pace *pace, uint64_t now_us)
{
    return atomic_load(&pace->hurry) || now_us >= pace->deadline_us ||
           asked_rate(pace, now_us) > (double)atomic_load(&pace->rate);
}

bool cairn_pace_is_free(const struct cairn_pace *pace, uint64_t now_us)
{
    return atomic_load(&pace->hurry) || is_idle(pace, now_us) || now_us >= pace->deadline_us;
}

uint64_t cairn_pace_rate(const struct cairn_pace *pace, uint64_t now_us)
{
    const uint64_t rate = atomic_load(&pace->rate);
    if (cairn_pace_is_free(pace, now_us)) return CAIRN_PACE_FREE;
    const double asked = asked_rate(pace, now_us);
    return asked > (double)rate ? (uint64_t)asked : rate;
}

uint64_t cairn_pace_rest_us(struct cairn_pace *pace, uint64_t bytes, uint64_t now_us)
{
    const uint64_t rate = cairn_pace_rate(pace, now_us);
    const uint64_t most = bytes > BURST_BYTES ? bytes : BURST_BYTES;
    if (pace->counted_us == 0) pace->counted_us = now_us;
    const double earned = (double)(now_us - pace->counted_us) / 1e6 * (double)rate;
    pace->counted_us = now_us;
    if (earned >= (double)(most - (pace->allowance < most ? pace->allowance : most)))
        pace->allowance = most;
    else
        pace->allowance += (uint64_t)earned;
    if (rate == CAIRN_PACE_FREE || pace->allowance >= bytes) {
        pace->allowance -= pace->allowance < bytes ? pace->allowance : bytes;
        atomic_fetch_add(&pace->done_bytes, bytes);
        return 0;
    }
    const double rest = (double)(bytes - pace->allowance) / (double)rate * 1e6 + 1;
    return rest < (double)REST_MAX_US ? (uint64_t)rest : REST_MAX_US;
}
