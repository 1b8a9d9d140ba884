/* When a round got how far here, for `cairn bench`: one line of the log at level debug, in microseconds of
 * CLOCK_MONOTONIC, which all processes of a host share. At other levels nothing is noted. */
#include <string.h>

#include "server/shard/shard.h"

static uint64_t now_us(void)
{
    return uv_hrtime() / 1000;
}

static void tell(const struct cairn_shard_job *job, uint64_t round)
{
    const uint64_t *us = job->times_us;
    cairn_log_fields(CAIRN_LOG_DEBUG,
                     CAIRN_FIELDS({ "job", job->spec.name, 0 }, { "round", NULL, round },
                                  { "grant_us", NULL, us[CAIRN_STEP_GRANT] },
                                  { "receive_us", NULL, us[CAIRN_STEP_RECEIVE] },
                                  { "fold_us", NULL, us[CAIRN_STEP_FOLD] },
                                  { "reduce_us", NULL, us[CAIRN_STEP_REDUCE] },
                                  { "reduced_us", NULL, us[CAIRN_STEP_REDUCED_REPORT] },
                                  { "update_us", NULL, us[CAIRN_STEP_UPDATE] },
                                  { "published_us", NULL, us[CAIRN_STEP_PUBLISHED_REPORT] }),
                     "times of a round");
}

void cairn_times_note(struct cairn_shard_job *job, const struct cairn_step_action *action)
{
    const enum cairn_step_action_kind kind = action->kind;
    if (!cairn_log_enabled(CAIRN_LOG_DEBUG)) return;
    if (kind == CAIRN_STEP_GRANT && job->times_us[CAIRN_STEP_REDUCE] != 0)
        memset(job->times_us, 0, sizeof job->times_us); // of the round before
    if (job->times_us[kind] == 0) job->times_us[kind] = now_us();
    if (kind == CAIRN_STEP_PUBLISHED_REPORT) {
        tell(job, action->round);
        memset(job->times_us, 0, sizeof job->times_us);
    }
}
