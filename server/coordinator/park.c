/* Parks and unparks jobs, as an operator asks. See reshard.h, "park".
 *
 * Parking begins like an amendment that makes a new generation (amend.c). The gate of the core is
 * shut, an open round ends, and then every shard is asked to park its part. If a shard is busy, all
 * shards are asked again later. If one shard cannot park its part, the shards that have parked
 * their parts move them back. */
#include "server/coordinator/cluster.h"

enum { WAITS_FOR_ROUND, ASKS, IS_PARKED, IS_STUCK, IS_OVER };

static void release_park(struct coord_job *job)
{
    coord_waiters_fail(&job->park.waiters, CAIRN_ERR_CLOSED, "the job is gone, or lost");
}

/* ---- the end ---- */

static void answer_park(struct coord_job *job)
{
    Cairn__JobParked parked = CAIRN__JOB_PARKED__INIT;
    parked.name = job->spec.name;
    parked.parked = job->park.wanted;
    parked.shards = job->entry_count;
    if (!coord_job_has_device(job))
        parked.note = wire_text("all of its state lies in host memory: nothing was moved");
    coord_waiters_answer(&job->park.waiters, CAIRN_MSG_JOB_PARKED, &parked.base);
}

/* Reverts the parking or unparking that was under way, and fails the requests for it. If the
 * reverting fails, too, the job stays as it is, and its gate stays shut. */
static void undo_park(struct coord_job *job, cairn_status status, const char *text)
{
    struct coord_park *park = &job->park;
    struct sentence why;
    sentence_set(&why, "job %s was not %s: %s", job->spec.name,
                 park->wanted ? "parked, it goes on as it was" : "unparked", text);
    log_fields(CAIRN_LOG_WARN, CAIRN_FIELDS({ "job", job->spec.name, 0 }), "%s", why.text);
    // To the asker, CLOSED would mean that the asker's own connection was lost.
    if (status == CAIRN_ERR_CLOSED) status = CAIRN_ERR_NOT_READY;
    coord_waiters_fail(&park->waiters, status, why.text);
    if (park->undoes) {
        log_error("job %s is parked in part, and no round opens: park or unpark it",
                  job->spec.name);
        coord_steps_go(&park->steps, park->wanted ? IS_PARKED : IS_STUCK, true);
        return;
    }
    park->wanted = !park->wanted;
    park->undoes = true;
    coord_steps_go(&park->steps, WAITS_FOR_ROUND, false);
}

/* ---- the steps ---- */

static bool may_park(const struct coord_steps *steps)
{
    return coord_operation_may_begin_at_rest(steps->job, CAIRN_OPERATION_PARK);
}

static cairn_status ask_to_park(struct coord_steps *steps, struct sentence *why)
{
    const struct coord_job *job = steps->job;
    (void)why;
    Cairn__PartPark message = CAIRN__PART_PARK__INIT;
    message.job = job->id;
    message.parked = job->park.wanted;
    coord_steps_ask_all(steps, CAIRN_MSG_PART_PARK, &message.base);
    return CAIRN_OK;
}

static cairn_status end_park(struct coord_steps *steps, cairn_status status, struct sentence *why)
{
    struct coord_job *job = steps->job;
    struct coord_park *park = &job->park;
    // A shard is busy, or the reverting waits for a shard that is away. A tick asks again when all
    // shards are up.
    if (status == CAIRN_ERR_BUSY || (status == CAIRN_ERR_CLOSED && park->undoes)) {
        coord_steps_go(steps, WAITS_FOR_ROUND, true);
        return CAIRN_OK;
    }
    if (status != CAIRN_OK) {
        undo_park(job, status, why->text);
        return CAIRN_OK;
    }
    park->undoes = false;
    log_info("job %s is %s", job->spec.name, park->wanted ? "parked" : "not parked");
    coord_event_note(job->cluster, park->wanted ? CAIRN_EVENT_PARKED : CAIRN_EVENT_UNPARKED,
                     job->spec.name, NULL, "by an operator");
    answer_park(job);
    coord_steps_go(steps, park->wanted ? IS_PARKED : IS_OVER, false);
    return CAIRN_OK;
}

static void done_park(struct coord_steps *steps)
{
    struct coord_job *job = steps->job;
    job->park = (struct coord_park) { .waiters = job->park.waiters,
                                      .opened_ms = coord_now_ms(job->cluster) };
    coord_gate_update(job);
}

static const struct coord_step park_steps[] = {
    [WAITS_FOR_ROUND] = { CAIRN_STEP_WAIT, CAIRN_STAGE_PARKING, .is_ready = may_park },
    [ASKS] = { CAIRN_STEP_ASK, CAIRN_STAGE_PARK_ASKING, "the shards to move its state",
               .begin = ask_to_park, .end = end_park },
    // until somebody parks or unparks the job
    [IS_PARKED] = { .kind = CAIRN_STEP_WAIT, .stage = CAIRN_STAGE_PARKED },
    [IS_STUCK] = { .kind = CAIRN_STEP_WAIT, .stage = CAIRN_STAGE_PARK_STUCK },
    [IS_OVER] = { .kind = CAIRN_STEP_LAST },
};

static const struct coord_operation_plan park_plan = { park_steps, .done = done_park };

/* ---- asked ---- */

static cairn_status refuse_parked(const struct coord_job *job, struct sentence *why)
{
    const size_t at = coord_steps_at(&job->park.steps);
    const bool is_stuck = at == IS_STUCK;
    if (at == IS_PARKED || is_stuck)
        return fail_with(why, CAIRN_ERR_NOT_READY,
                         "job %s is parked%s: `cairn job unpark %s`, and ask again then",
                         job->spec.name, is_stuck ? " in part" : "", job->spec.name);
    return fail_with(why, CAIRN_ERR_BUSY, "job %s is being %s: ask again when that has ended",
                     job->spec.name,
                     job->park.wanted ? "parked" : "taken back from where it was parked");
}

static cairn_status judge_park(const struct coord_job *job, bool parked, struct sentence *why)
{
    if (job->state != CAIRN_CLUSTER_JOB_RUNNING || !job->initialized)
        return coord_job_fail_not_running(job, why);
    CAIRN_TRY(coord_operation_judge(job, CAIRN_OPERATION_PARK, why));
    // If the change under way leads to the requested state, the request waits for this change.
    // Otherwise the request is refused. A change that an earlier incarnation of the coordinator
    // began has no waiters. Such a change gives way to a request for the other state.
    const size_t at = coord_steps_at(&job->park.steps);
    const bool is_moving = at == ASKS || (at == WAITS_FOR_ROUND &&
                                          (job->park.undoes || !LIST_EMPTY(&job->park.waiters)));
    return is_moving && parked != job->park.wanted ? refuse_parked(job, why) : CAIRN_OK;
}

/* Brings the operation to its first step, unless the shards are being asked. */
static void begin_park(struct coord_job *job)
{
    struct coord_steps *steps = &job->park.steps;
    if (steps->at == NULL)
        coord_steps_start(steps, &park_plan, job->cluster, job);
    else if (coord_steps_at(steps) != ASKS)
        coord_steps_go(steps, WAITS_FOR_ROUND, true);
}

static cairn_status on_job_park(struct coord_session *session, uint32_t request, const void *any,
                                struct sentence *why)
{
    const Cairn__JobPark *message = any;
    struct coord_job *job = coord_job_named(session->cluster, message->name, why);
    if (job == NULL) return CAIRN_ERR_NOT_FOUND;
    CAIRN_TRY(judge_park(job, message->parked, why));
    CAIRN_TRY(coord_waiters_add(&job->park.waiters, session, request, why));
    // A job that is not parked needs no unparking. Whether a job is parked is not known until all
    // parts have reported, because an earlier incarnation of the coordinator may have parked some
    // of them.
    struct coord_park *park = &job->park;
    const bool is_so = park->steps.at == NULL && !message->parked && job->rounds.heard;
    if (is_so) {
        answer_park(job);
        return CAIRN_OK;
    }
    begin_park(job);
    park->wanted = message->parked;
    coord_gate_update(job); // shuts the gate
    coord_steps_advance(&park->steps);
    return CAIRN_OK;
}

/* ---- as an operation ---- */

static struct coord_steps *steps_of_park(struct coord_job *job)
{
    return &job->park.steps;
}

/* A shard's part is back. An earlier incarnation of the coordinator may have parked the part, or
 * the shard may have been away when the others were asked. In both cases all shards are asked
 * again. */
static void find_parked(struct coord_job *job, const Cairn__HeldJob *part)
{
    struct coord_park *park = &job->park;
    if (park->steps.at == NULL && !part->parked) return;
    if (park->steps.at == NULL) park->wanted = true;
    begin_park(job);
}

static bool park_waiting(const struct coord_job *job, struct sentence *out)
{
    const size_t at = coord_steps_at(&job->park.steps);
    if (at != IS_PARKED && at != IS_STUCK) return false;
    sentence_set(out, "`cairn job unpark %s`: job %s is parked", job->spec.name, job->spec.name);
    return true;
}

const struct coord_operation coord_parking = {
    .steps = steps_of_park,
    .shard_up = find_parked,
    .lost = release_park,
    .release = release_park,
    .refuse = refuse_parked,
    .waiting = park_waiting,
    .until = "until the job is not parked any more",
};

/* ---- messages ---- */

const struct coord_row coord_park_rows[] = {
    { CAIRN_MSG_JOB_PARK, CAIRN_FROM_ADMIN, .asks = on_job_park, .verb = "job park",
      .awaits = CAIRN_AWAITS_REPORTS, .job = "name", .wants = CAIRN_ACCESS_OWN },
    { 0 },
};
