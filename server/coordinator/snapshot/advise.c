#include "server/coordinator/snapshot/advise.h"

#include <math.h>
#include <string.h>

#include "server/coordinator/base/job.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/round/times.h"

struct cairn_advise_found cairn_advise(const struct cairn_advise_given *given)
{
    const double young_s = sqrt(2 * given->mtbf_s * given->cost_s);
    const bool by_write = !(young_s >= given->write_s);
    double interval_s = round(by_write ? given->write_s : young_s);
    if (!(interval_s >= 1)) interval_s = 1;
    if (interval_s > CAIRN_SPEC_SNAPSHOT_S_MAX) interval_s = CAIRN_SPEC_SNAPSHOT_S_MAX;
    struct cairn_advise_found found = { .interval_s = (uint32_t)interval_s, .by_write = by_write };
    if (given->step_s > 0) {
        const double steps = round(interval_s / given->step_s);
        found.interval_steps = steps < 1 ? 1 : (uint64_t)fmin(steps, 1e15);
    }
    return found;
}

static void fill_measured(struct cairn_cluster_job *job, Cairn__SnapshotAdvice *out)
{
    const struct cairn_cluster_cost *cost = &job->snapshots.cost;
    const uint32_t plain_us = cairn_cluster_pace_median(&cost->plain);
    uint32_t extras_us[CAIRN_COST_SNAPSHOTS], writes_us[CAIRN_COST_SNAPSHOTS];
    out->step_us = plain_us > 0 ? plain_us : cairn_cluster_pace_median(&job->pace);
    out->measured = cost->count;
    if (cost->count == 0) return;
    memcpy(extras_us, cost->extras_us, sizeof extras_us); // the median puts them in order
    memcpy(writes_us, cost->writes_us, sizeof writes_us);
    out->cost_us = cairn_times_median(extras_us, cost->count);
    out->write_us = cairn_times_median(writes_us, cost->count);
}

static void fill_faults(struct cairn_cluster_job *job, uint64_t given_s, Cairn__SnapshotAdvice *out)
{
    struct cairn_event_faults faults;
    cairn_cluster_events_faults(job->cluster, job->spec.name, &faults);
    const uint64_t count = faults.shards + faults.workers;
    out->shard_faults = faults.shards;
    out->worker_faults = faults.workers;
    out->observed_s = faults.observed_ms / 1000;
    out->mtbf_given = given_s > 0;
    out->mtbf_s = given_s;
    if (given_s == 0 && count > 0)
        out->mtbf_s = out->observed_s > count ? out->observed_s / count : 1;
}

static void judge(Cairn__SnapshotAdvice *out, struct cairn_sentence *note)
{
    note->text[0] = '\0';
    if (out->measured == 0)
        cairn_sentence_set(
            note,
            "no snapshot was measured yet since the coordinator started: one is when "
            "at least %d steps were taken before it; take one while the job trains",
            CAIRN_COST_STEPS);
    else if (out->mtbf_s == 0)
        cairn_sentence_set(note, "no fault was seen yet; say how often you expect one: --mtbf 7d");
    if (note->text[0] != '\0') return;
    const struct cairn_advise_given given = { .mtbf_s = (double)out->mtbf_s,
                                              .cost_s = (double)out->cost_us * 1e-6,
                                              .write_s = (double)out->write_us * 1e-6,
                                              .step_s = (double)out->step_us * 1e-6 };
    const struct cairn_advise_found found = cairn_advise(&given);
    out->interval_s = found.interval_s;
    out->interval_steps = found.interval_steps;
    if (found.by_write)
        cairn_sentence_set(note, "as often as one can be written: Young's rule asks for more");
}

void cairn_cluster_snapshot_advise(struct cairn_cluster_session *session, uint32_t request,
                                   const Cairn__SnapshotAdvise *message)
{
    struct cairn_cluster_job *job = cairn_cluster_job_find(session->cluster, message->job);
    Cairn__SnapshotAdvice advice = CAIRN__SNAPSHOT_ADVICE__INIT;
    struct cairn_sentence text;
    if (job == NULL) {
        cairn_sentence_set(&text, "there is no job %.100s; `cairn job list`", message->job);
        cairn_cluster_session_error(session, request, CAIRN_ERR_NOT_FOUND, text.text);
        return;
    }
    advice.job = job->spec.name;
    advice.every = job->spec.policy.snapshot_every;
    advice.every_s = job->spec.policy.snapshot_every_s;
    fill_measured(job, &advice);
    fill_faults(job, message->mtbf_s, &advice);
    judge(&advice, &text);
    advice.note = text.text;
    cairn_cluster_session_send(session, CAIRN_MSG_SNAPSHOT_ADVICE, request, &advice.base);
}
