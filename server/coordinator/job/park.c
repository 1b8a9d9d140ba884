/* Parking, as extend.c in its first phase: the gate of the core is shut, an open round ends, and then every
 * shard is asked. One that is at work is asked again; if one cannot, those that have moved their part move it
 * back. */
#include "server/coordinator/job/park.h"

#include <string.h>

#include "server/base/log.h"
#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cuts.h"
#include "server/coordinator/store/events.h"

void cairn_cluster_park_release(struct cairn_cluster_job *job)
{
    cairn_cluster_waiters_fail(&job->park.waiters, CAIRN_ERR_CLOSED, "the job is gone, or lost");
}

void cairn_cluster_park_forget(struct cairn_cluster *cluster,
                               const struct cairn_cluster_session *session)
{
    for (struct cairn_cluster_job *job = cluster->jobs; job != NULL; job = job->next)
        cairn_cluster_waiters_forget(&job->park.waiters, session);
}

/* ---- the end ---- */

bool cairn_cluster_job_has_device(const struct cairn_cluster_job *job)
{
    CAIRN_EACH_SHARD (job, i) {
        const struct cairn_cluster_session *session = job->shards[i].seat->session;
        if (session != NULL && session->home != NULL && session->home->backend != NULL &&
            strcmp(session->home->backend, "host") != 0)
            return job->spec.offload_fraction < 1;
    }
    return false;
}

static void answer(struct cairn_cluster_job *job)
{
    Cairn__JobParked parked = CAIRN__JOB_PARKED__INIT;
    parked.name = job->spec.name;
    parked.parked = job->park.wanted;
    parked.shards = job->seat_count;
    if (!cairn_cluster_job_has_device(job))
        parked.note = (char *)(uintptr_t) "all of its state lies in host memory: nothing was moved";
    cairn_cluster_waiters_answer(&job->park.waiters, CAIRN_MSG_JOB_PARKED, &parked.base);
}

static void open_gate(struct cairn_cluster_job *job)
{
    job->park = (struct cairn_cluster_park) { .waiters = job->park.waiters,
                                              .opened_ms = cairn_cluster_now_ms(job->cluster) };
    cairn_cluster_tiles_advance(job);
}

/* Back to what it was; who asked is told. If that fails, too, it stays as it is, and shut. */
static void undo(struct cairn_cluster_job *job, cairn_status status, const char *text)
{
    struct cairn_sentence why;
    cairn_sentence_set(&why, "job %s was not %s: %s", job->spec.name,
                       job->park.wanted ? "parked, it goes on as it was" : "unparked", text);
    cairn_log_fields(CAIRN_LOG_WARN, CAIRN_FIELDS({ "job", job->spec.name, 0 }), "%s", why.text);
    if (status == CAIRN_ERR_CLOSED) status = CAIRN_ERR_NOT_READY; // not the asker's connection
    cairn_cluster_waiters_fail(&job->park.waiters, status, why.text);
    if (job->park.undoes) {
        cairn_log_error("job %s is parked in part, and no round opens: park or unpark it",
                        job->spec.name);
        job->park.settled = true;
        return;
    }
    job->park.wanted = !job->park.wanted;
    job->park.undoes = true;
    cairn_cluster_park_advance(job);
}

static void on_moved(struct cairn_cluster_job *job, const void *about, cairn_status status,
                     const char *why)
{
    (void)about;
    if (!job->park.asking) return;
    job->park.asking = false;
    // It ends what it does, or another move; or the way back waits for it: with a tick, when all are there.
    if (status == CAIRN_ERR_BUSY || (status == CAIRN_ERR_CLOSED && job->park.undoes)) return;
    if (status != CAIRN_OK) {
        undo(job, status, why);
        return;
    }
    job->park.settled = true;
    job->park.undoes = false;
    cairn_log_info("job %s is %s", job->spec.name, job->park.wanted ? "parked" : "not parked");
    cairn_cluster_event_note(job->cluster,
                             job->park.wanted ? CAIRN_EVENT_PARKED : CAIRN_EVENT_UNPARKED,
                             job->spec.name, NULL, "by an operator");
    answer(job);
    if (!job->park.wanted) open_gate(job);
}

/* ---- the shards ---- */

static bool all_up(const struct cairn_cluster_job *job)
{
    CAIRN_EACH_SHARD (job, i)
        if (!job->shards[i].up || job->shards[i].seat->session == NULL) return false;
    return true;
}

void cairn_cluster_park_advance(struct cairn_cluster_job *job)
{
    const struct cairn_cluster_park *park = &job->park;
    if (!park->shut || park->asking || park->settled || job->rounds.in_event || job->core == NULL ||
        cairn_cluster_job_moves(job) || cairn_round_stage_of(job->core) != CAIRN_ROUND_STEADY ||
        !all_up(job))
        return;
    struct cairn_cluster_gather *gather = cairn_cluster_gather_open_job(job, on_moved, NULL, 0);
    if (gather == NULL) return; // with the next event, or tick
    Cairn__PartPark message = CAIRN__PART_PARK__INIT;
    message.job = job->id;
    message.parked = park->wanted;
    job->park.asking = true;
    CAIRN_EACH_SHARD (job, i) {
        (void)cairn_cluster_gather_send(gather, job->shards[i].seat, CAIRN_MSG_PART_PARK,
                                        &message.base);
    }
    cairn_cluster_gather_start(gather);
}

/* Another coordinator had it parked, or the shard was away while it was asked. */
void cairn_cluster_park_part(struct cairn_cluster_job *job, bool is_parked)
{
    if (is_parked && !job->park.shut) job->park.shut = job->park.wanted = true;
    if (!job->park.asking) job->park.settled = false;
}

/* ---- asked ---- */

static cairn_status judge(const struct cairn_cluster_job *job, bool parked,
                          struct cairn_sentence *why)
{
    if (job->state == CAIRN_CLUSTER_JOB_LOST)
        return cairn_fail(why, CAIRN_ERR_JOB_LOST, "job %s is %s", job->spec.name,
                          job->loss.why.text);
    if (job->state != CAIRN_CLUSTER_JOB_RUNNING || !job->initialized)
        return cairn_fail(why, CAIRN_ERR_NOT_READY, "job %s is %s: ask again when it runs",
                          job->spec.name, cairn_cluster_job_state_name(job));
    if (job->snapshots.cut != NULL) return cairn_cluster_cut_refuse(job, why);
    if (job->extension.body != NULL)
        return cairn_fail(why, CAIRN_ERR_BUSY, "job %s is being amended; ask again",
                          job->spec.name);
    // A request that agrees with the change under way joins its waiters. A change that another
    // coordinator began has no waiters, so it gives way.
    const bool is_moving = job->park.asking || job->park.undoes || job->park.waiters != NULL;
    if (job->park.shut && !job->park.settled && is_moving && parked != job->park.wanted)
        return cairn_fail(why, CAIRN_ERR_BUSY, "job %s is being %s; ask again", job->spec.name,
                          job->park.wanted ? "parked" : "taken back from where it was parked");
    return CAIRN_OK;
}

void cairn_cluster_job_park(struct cairn_cluster_session *session, uint32_t request,
                            const Cairn__JobPark *message)
{
    struct cairn_cluster_job *job = cairn_cluster_job_find(session->cluster, message->name);
    struct cairn_sentence why;
    cairn_status status = job == NULL ? cairn_fail(&why, CAIRN_ERR_NOT_FOUND,
                                                   "there is no job %.128s; `cairn job list`",
                                                   message->name)
                                      : judge(job, message->parked, &why);
    if (status == CAIRN_OK && !cairn_cluster_waiters_add(&job->park.waiters, session, request))
        status = cairn_fail(&why, CAIRN_ERR_BUSY, "too many requests wait on this connection");
    if (status != CAIRN_OK) {
        cairn_cluster_session_error(session, request, status, why.text);
        return;
    }
    // Before all parts have told, another coordinator's word may stand: it is taken back where it does.
    const bool is_so = !job->park.shut && !message->parked && job->rounds.heard;
    if (is_so) {
        answer(job);
        return;
    }
    job->park.shut = true;
    job->park.settled = false;
    job->park.wanted = message->parked;
    cairn_cluster_tiles_advance(job); // shuts the gate
    cairn_cluster_park_advance(job);
}
