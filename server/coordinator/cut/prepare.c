/* Shards make memory for what updates overwrite before a version is pinned, and no update has to. One that is
 * due at a step is prepared for some steps ahead; whichever cut comes next has what was made. */
#include <sodium.h>
#include <string.h>

#include "server/base/log.h"
#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cut.h"
#include "server/coordinator/cut/cuts.h"
#include "server/coordinator/round/halts.h"
#include "server/coordinator/round/pace.h"

/* Whoever could not make its memory makes do without. */
static void on_prepared(struct cairn_cluster_job *job, const void *about, cairn_status status,
                        const char *why)
{
    uint64_t number;
    memcpy(&number, about, sizeof number);
    if (status != CAIRN_OK) cairn_log_debug("job %s: a snapshot: %s", job->spec.name, why);
    if (status != CAIRN_OK && job->snapshots.ahead == number) cairn_cluster_cut_unprepare(job);
    if (job->snapshots.cut == NULL || job->snapshots.cut->number != number) return;
    job->snapshots.cut->is_ready = true;
    cairn_cluster_cut_resume(job, cairn_cluster_pace_nears_step(job));
}

/* False: no memory. */
static bool ask_all(struct cairn_cluster_job *job, uint64_t number)
{
    struct cairn_cluster_gather *gather = cairn_cluster_gather_open_job(job, on_prepared, &number,
                                                                        sizeof number);
    if (gather == NULL) return false;
    Cairn__PinPrepare message = CAIRN__PIN_PREPARE__INIT;
    message.job = job->id;
    message.snapshot = number;
    CAIRN_EACH_SHARD (job, i) {
        (void)cairn_cluster_gather_send(gather, job->shards[i].seat, CAIRN_MSG_PIN_PREPARE,
                                        &message.base);
    }
    cairn_cluster_gather_start(gather);
    return true;
}

uint64_t cairn_cluster_cut_number(void)
{
    uint64_t number;
    randombytes_buf(&number, sizeof number);
    return number | 1;
}

/* One by steps is of the version that there is now, as the last before a parting is, and nobody needs the
 * memory where nobody trains. */
bool cairn_cluster_cut_prepare(struct cairn_cluster_cut *cut)
{
    struct cairn_cluster_job *job = cut->job;
    const bool by_steps = cut->cause == CAIRN_CUT_PERIODIC &&
                          job->spec.policy.snapshot_every_s == 0;
    const uint64_t ahead = job->snapshots.ahead;
    job->snapshots.ahead = 0;
    cut->number = ahead != 0 ? ahead : cairn_cluster_cut_number();
    if (by_steps || ahead != 0 || cut->cause == CAIRN_CUT_PARTING || cairn_cluster_pace_rests(job))
        return false;
    return ask_all(job, cut->number);
}

/* ---- ahead ---- */

/* A step will come at which one is taken, and the memory has no other use. */
static bool is_of_use(const struct cairn_cluster_job *job)
{
    const struct cairn_policy *policy = &job->spec.policy;
    struct cairn_sentence unsaid;
    return policy->snapshot_every > 0 && policy->snapshot_every_s == 0 &&
           cairn_cluster_halts_damage(job).nonfinite == 0 && !cairn_cluster_job_moves(job) &&
           !cairn_cluster_pace_rests(job) &&
           cairn_cluster_cut_judge(job, true, &unsaid) == CAIRN_OK;
}

/* In a half of the time that making memory may take at most; or with the next step. */
static bool is_soon(const struct cairn_cluster_job *job, uint64_t steps)
{
    const uint64_t within_us = 500000 * (uint64_t)cairn_policy_prepare_within_s(&job->spec.policy);
    const uint64_t median_us = cairn_cluster_pace_median(&job->pace); // 0: not known
    return steps == 1 || (median_us > 0 && steps * median_us <= within_us);
}

void cairn_cluster_cut_prepare_ahead(struct cairn_cluster_job *job, uint64_t steps)
{
    if (job->snapshots.ahead != 0 || job->snapshots.cut != NULL || !is_soon(job, steps) ||
        !is_of_use(job))
        return;
    const uint64_t number = cairn_cluster_cut_number();
    if (ask_all(job, number)) job->snapshots.ahead = number;
}

void cairn_cluster_cut_look_behind(struct cairn_cluster_job *job)
{
    if (job->snapshots.ahead != 0 && !is_of_use(job)) cairn_cluster_cut_unprepare(job);
}

void cairn_cluster_cut_unprepare(struct cairn_cluster_job *job)
{
    Cairn__PinFolder message = CAIRN__PIN_FOLDER__INIT;
    if (job->snapshots.ahead == 0) return;
    message.job = job->id;
    message.snapshot = job->snapshots.ahead;
    message.path = (char *)(uintptr_t) "";
    CAIRN_EACH_SHARD (job, i) {
        const struct cairn_cluster_seat *seat = job->shards[i].seat;
        if (seat->session != NULL)
            cairn_cluster_session_send(seat->session, CAIRN_MSG_PIN_FOLDER, 0, &message.base);
    }
    job->snapshots.ahead = 0;
}
