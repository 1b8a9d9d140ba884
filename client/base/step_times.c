#include "client/base/step_times.h"

#include <string.h>

#include "client/base/clock.h"

void cairn_step_times_waited(struct step_times *times, enum cairn_step_phase_times phase,
                             uint64_t from_us)
{
    // A wait that began before the last commit counts only from that commit on.
    if (from_us < times->committed_us) from_us = times->committed_us;
    times->us[phase] += cairn_client_now_us() - from_us;
}

void cairn_step_times_pushed(struct step_times *times)
{
    times->pushed_us = cairn_client_now_us();
}

void cairn_step_times_ended(struct step_times *times, uint64_t from_us)
{
    uint64_t pushed_us = times->pushed_us;
    if (pushed_us < from_us) pushed_us = from_us;
    times->us[CAIRN_TIME_PUSH] += pushed_us - from_us;
    cairn_step_times_waited(times, CAIRN_TIME_WAIT, pushed_us);
}

bool cairn_step_times_commit(struct step_times *times, uint64_t round, Cairn__StepTimes *out)
{
    const uint64_t now_us = cairn_client_now_us(), begin_us = times->committed_us;
    uint64_t waited_us = 0;
    if (round == times->committed_round) return false;
    for (int p = CAIRN_TIME_PUSH; p < CAIRN_TIMES; p++) waited_us += times->us[p];
    const uint64_t all_us = now_us - begin_us; // threads may wait side by side
    times->us[CAIRN_TIME_COMPUTE] = all_us > waited_us ? all_us - waited_us : 0;
    for (int p = 0; p < CAIRN_TIMES; p++)
        times->told[p] = times->us[p] < UINT32_MAX ? (uint32_t)times->us[p] : UINT32_MAX;
    memset(times->us, 0, sizeof times->us);
    times->committed_round = round;
    times->committed_us = now_us;
    if (begin_us == 0) return false;
    cairn__step_times__init(out);
    out->us = times->told;
    out->n_us = CAIRN_TIMES;
    return true;
}
