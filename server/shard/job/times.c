/* When a round got how far here, in microseconds of CLOCK_MONOTONIC, which all processes of a host share:
 * told to the coordinator by phase with Published, and for `cairn bench` as one line of the log at level
 * debug. */
#include <string.h>

#include "server/shard/shard.h"

static uint64_t now_us(void)
{
    return uv_hrtime() / 1000;
}

static void tell(const struct cairn_shard_job *job, uint64_t round)
{
    const uint64_t *us = job->pass.times.action_us;
    struct cairn_home_use use = { 0 }; // since the device was opened, of all jobs
    if (job->shard->device.home != NULL) use = cairn_home_use(job->shard->device.home);
    cairn_log_fields(CAIRN_LOG_DEBUG,
                     CAIRN_FIELDS({ "job", job->spec.name, 0 }, { "round", NULL, round },
                                  { "grant_us", NULL, us[CAIRN_STEP_GRANT] },
                                  { "receive_us", NULL, us[CAIRN_STEP_RECEIVE] },
                                  { "fold_us", NULL, us[CAIRN_STEP_FOLD] },
                                  { "reduce_us", NULL, us[CAIRN_STEP_REDUCE] },
                                  { "reduced_us", NULL, us[CAIRN_STEP_REDUCED_REPORT] },
                                  { "update_us", NULL, us[CAIRN_STEP_UPDATE] },
                                  { "published_us", NULL, us[CAIRN_STEP_PUBLISHED_REPORT] },
                                  { "launches", NULL, use.launches },
                                  { "in_bytes", NULL, use.bytes_in },
                                  { "out_bytes", NULL, use.bytes_out }),
                     "times of a round");
}

void cairn_times_note(struct cairn_shard_job *job, const struct cairn_step_action *action)
{
    struct cairn_round_times *times = &job->pass.times;
    const enum cairn_step_action_kind kind = action->kind;
    if (kind == CAIRN_STEP_GRANT && action->round != times->round)
        *times = (struct cairn_round_times) { .round = action->round };
    if (kind == CAIRN_STEP_FOLD) times->folding_us = now_us();
    if (times->action_us[kind] == 0) times->action_us[kind] = now_us();
    if (kind == CAIRN_STEP_PUBLISHED_REPORT && cairn_log_enabled(CAIRN_LOG_DEBUG))
        tell(job, action->round);
}

void cairn_times_updating(struct cairn_shard_job *job)
{
    job->pass.times.updating_us = now_us();
}

void cairn_times_updated(struct cairn_shard_job *job)
{
    job->pass.times.updated_us = now_us();
}

/* 0 if one of them has not been. */
static uint32_t between(uint64_t from_us, uint64_t to_us)
{
    const uint64_t us = from_us != 0 && to_us > from_us ? to_us - from_us : 0;
    return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

void cairn_times_phases(const struct cairn_shard_job *job, uint32_t us_out[4])
{
    const struct cairn_round_times *t = &job->pass.times;
    const uint64_t *us = t->action_us;
    const uint64_t granted = us[CAIRN_STEP_GRANT], reduced = us[CAIRN_STEP_REDUCED_REPORT];
    const uint64_t folding = t->folding_us != 0 ? t->folding_us : us[CAIRN_STEP_REDUCE];
    us_out[0] = between(granted, folding);
    us_out[1] = between(folding, reduced);
    us_out[2] = between(t->updating_us, t->updated_us);
    us_out[3] = between(us[CAIRN_STEP_UPDATE], t->updating_us) +
                between(t->updated_us, us[CAIRN_STEP_PUBLISHED_REPORT]);
}
