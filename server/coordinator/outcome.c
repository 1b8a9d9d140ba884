/* How the snapshots of a job ended, what they cost it, and how often it should take one. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <uv.h>

#include "server/coordinator/cluster.h"

/* ==== periodic and parting ones ==== */

void coord_periodic_failed(struct coord_job *job, uint64_t step, const char *why)
{
    const uint64_t every = job->spec.policy.snapshot_every;
    sentence_set(&job->snapshots.failed, "of step %" PRIu64 ": %s", step,
                 sentence_brief(why, 600).text);
    if (job->spec.policy.snapshot_every_s > 0)
        sentence_add(&job->snapshots.failed, "; the next one is due in %" PRIu32 " s",
                     job->spec.policy.snapshot_every_s);
    if (every > 0)
        sentence_add(&job->snapshots.failed, "; the next one is due at step %" PRIu64,
                     step - step % every + every);
    log_warn("job %s: no periodic snapshot %s", job->spec.name, job->snapshots.failed.text);
}

/* One of it would make a good one go. Said once. */
static const char damaged[] =
    "none is taken while the job is damaged: restore it, or write the tensors that are not finite";

void coord_periodic_undamaged(struct coord_job *job)
{
    if (strcmp(job->snapshots.failed.text, damaged) == 0) job->snapshots.failed.text[0] = '\0';
}

void coord_periodic_damaged(struct coord_job *job)
{
    if (strcmp(job->snapshots.failed.text, damaged) == 0) return;
    sentence_set(&job->snapshots.failed, "%s", damaged);
    log_warn("job %s: no periodic snapshot: %s", job->spec.name, damaged);
}

/* The snapshot is one, and has ended, well or not. */
void coord_periodic_ended(const struct coord_snapshot *snapshot)
{
    struct coord_job *job = snapshot->job;
    if (snapshot->status == CAIRN_ERR_NONFINITE) {
        coord_periodic_damaged(job);
        return;
    }
    if (snapshot->status != CAIRN_OK) {
        const bool is_pinned = snapshot->stage != CAIRN_SNAPSHOT_PINNING;
        coord_periodic_failed(job, is_pinned ? snapshot->version.step : coord_job_version(job).step,
                              snapshot->why.text);
        return;
    }
    job->snapshots.failed.text[0] = '\0';
}

void coord_parting_unsaved(struct coord_job *job, const char *why)
{
    sentence_set(&job->parting.outcome, "nothing durable is left of job %s but older snapshots: %s",
                 job->spec.name, why);
}

void coord_parting_snapshot_ended(const struct coord_snapshot *snapshot)
{
    struct coord_parting *p = &snapshot->job->parting;
    p->state = CAIRN_PARTING_ENDED;
    p->is_saved = snapshot->status == CAIRN_OK;
    p->version = snapshot->version;
    if (p->is_saved)
        sentence_set(&p->outcome, "job %s is saved as snapshot %s of step %" PRIu64,
                     snapshot->job->spec.name, snapshot->id, snapshot->version.step);
    else
        coord_parting_unsaved(snapshot->job, snapshot->why.text);
}

/* ==== cost ==== */

static void begin_cost(struct coord_cost *cost, const struct coord_snapshot *snapshot)
{
    const bool comparable = cost->plain.count >= CAIRN_COST_STEPS;
    cost->is_counting = true;
    cost->has_ended = cost->is_committed = false;
    cost->number = snapshot->number;
    cost->extra_us = 0;
    cost->usual_us = comparable ? coord_pace_median(&cost->plain) : 0;
}

static uint32_t bounded_us(int64_t us)
{
    return us < 0 ? 0 : us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

/* One that failed, or had nothing to be compared with, says nothing. */
static void conclude_cost(struct coord_cost *cost)
{
    cost->is_counting = false;
    if (!cost->is_committed || cost->usual_us == 0) return;
    cost->extras_us[cost->next] = bounded_us(cost->extra_us);
    cost->writes_us[cost->next] = bounded_us((int64_t)cost->write_us);
    cost->next = (cost->next + 1) % CAIRN_COST_SNAPSHOTS;
    if (cost->count < CAIRN_COST_SNAPSHOTS) cost->count++;
}

void coord_cost_note_step(struct coord_job *job)
{
    struct coord_cost *cost = &job->snapshots.cost;
    const struct coord_snapshot *snapshot = job->snapshots.running;
    const uint32_t us = job->pace.last_us;
    if (!cost->is_counting && snapshot != NULL && snapshot->has_files) begin_cost(cost, snapshot);
    if (cost->is_counting) {
        cost->extra_us += (int64_t)us - cost->usual_us;
        if (cost->has_ended) conclude_cost(cost);
    } else if (snapshot == NULL) { // a digest is neither
        coord_pace_note(&cost->plain, us);
    }
}

void coord_cost_ended(const struct coord_snapshot *snapshot)
{
    struct coord_cost *cost = &snapshot->job->snapshots.cost;
    if (!snapshot->has_files) return;
    if (!cost->is_counting || cost->number != snapshot->number)
        begin_cost(cost, snapshot); // within one step
    cost->has_ended = true;
    cost->is_committed = snapshot->status == CAIRN_OK;
    cost->write_us = 1000 * (uv_now(snapshot->job->cluster->loop) - snapshot->begun_ms);
}

/* ==== advise ==== */

struct advise_found coord_advise(const struct advise_given *given)
{
    const double young_s = sqrt(2 * given->mtbf_s * given->cost_s);
    const bool by_write = !(young_s >= given->write_s);
    double interval_s = round(by_write ? given->write_s : young_s);
    if (!(interval_s >= 1)) interval_s = 1;
    if (interval_s > CAIRN_SPEC_SNAPSHOT_S_MAX) interval_s = CAIRN_SPEC_SNAPSHOT_S_MAX;
    struct advise_found found = { .interval_s = (uint32_t)interval_s, .by_write = by_write };
    if (given->step_s > 0) {
        const double steps = round(interval_s / given->step_s);
        found.interval_steps = steps < 1 ? 1 : (uint64_t)fmin(steps, 1e15);
    }
    return found;
}

static void fill_measured(struct coord_job *job, Cairn__SnapshotAdvice *out)
{
    const struct coord_cost *cost = &job->snapshots.cost;
    const uint32_t plain_us = coord_pace_median(&cost->plain);
    uint32_t extras_us[CAIRN_COST_SNAPSHOTS], writes_us[CAIRN_COST_SNAPSHOTS];
    out->step_us = plain_us > 0 ? plain_us : coord_pace_median(&job->pace);
    out->measured = cost->count;
    if (cost->count == 0) return;
    memcpy(extras_us, cost->extras_us, sizeof extras_us); // the median puts them in order
    memcpy(writes_us, cost->writes_us, sizeof writes_us);
    out->cost_us = times_median(extras_us, cost->count);
    out->write_us = times_median(writes_us, cost->count);
}

static void fill_faults(struct coord_job *job, uint64_t given_s, Cairn__SnapshotAdvice *out)
{
    struct event_faults faults;
    coord_events_faults(job->cluster, job->spec.name, &faults);
    const uint64_t count = faults.shards + faults.workers;
    out->shard_faults = faults.shards;
    out->worker_faults = faults.workers;
    out->observed_s = faults.observed_ms / 1000;
    out->mtbf_given = given_s > 0;
    out->mtbf_s = given_s;
    if (given_s == 0 && count > 0)
        out->mtbf_s = out->observed_s > count ? out->observed_s / count : 1;
}

static void judge_advice(Cairn__SnapshotAdvice *out, struct sentence *note)
{
    note->text[0] = '\0';
    if (out->measured == 0)
        sentence_set(note,
                     "no snapshot was measured yet since the coordinator started: one is when "
                     "at least %d steps were taken before it; take one while the job trains",
                     CAIRN_COST_STEPS);
    else if (out->mtbf_s == 0)
        sentence_set(note, "no fault was seen yet; say how often you expect one: --mtbf 7d");
    if (note->text[0] != '\0') return;
    const struct advise_given given = { .mtbf_s = (double)out->mtbf_s,
                                        .cost_s = (double)out->cost_us * 1e-6,
                                        .write_s = (double)out->write_us * 1e-6,
                                        .step_s = (double)out->step_us * 1e-6 };
    const struct advise_found found = coord_advise(&given);
    out->interval_s = found.interval_s;
    out->interval_steps = found.interval_steps;
    if (found.by_write)
        sentence_set(note, "as often as one can be written: Young's rule asks for more");
}

void coord_snapshot_advise(struct coord_session *session, uint32_t request,
                           const Cairn__SnapshotAdvise *message)
{
    struct coord_job *job = coord_job_find(session->cluster, message->job);
    Cairn__SnapshotAdvice advice = CAIRN__SNAPSHOT_ADVICE__INIT;
    struct sentence text;
    if (job == NULL) {
        sentence_set(&text, "there is no job %.100s; `cairn job list`", message->job);
        coord_session_error(session, request, CAIRN_ERR_NOT_FOUND, text.text);
        return;
    }
    advice.job = job->spec.name;
    advice.every = job->spec.policy.snapshot_every;
    advice.every_s = job->spec.policy.snapshot_every_s;
    fill_measured(job, &advice);
    fill_faults(job, message->mtbf_s, &advice);
    judge_advice(&advice, &text);
    advice.note = text.text;
    coord_session_send(session, CAIRN_MSG_SNAPSHOT_ADVICE, request, &advice.base);
}
