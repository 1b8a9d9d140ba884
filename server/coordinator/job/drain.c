#include "server/coordinator/job/drain.h"

#include <inttypes.h>
#include <string.h>

#include "server/base/log.h"
#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/member/seats.h"
#include "server/coordinator/store/events.h"
#include "server/coordinator/store/saves.h"
#include "server/coordinator/store/store.h"

/* Longer than a shard waits from one attempt to connect to the next. */
#define COMES_AGAIN_MS 5000
/* How long until state that could not move off an unfit shard is tried again, and for how long a
 * cancel holds. */
#define TRIES_AGAIN_MS 30000
#define CANCELED_MS    600000

static void fail(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat,
                 cairn_status status, const char *text);

/* ---- the store ---- */

static void on_stored(const struct cairn_cluster_saved *saved)
{
    const Cairn__Done done = CAIRN__DONE__INIT;
    struct cairn_cluster_seat *seat = saved->cluster->seats;
    if (saved->number == 0) {
        if (saved->status != CAIRN_OK)
            cairn_log_error("the end of a drain is not in the store: %s", saved->why);
        return;
    }
    while (seat != NULL && seat->drain.stored != saved->number) seat = seat->next;
    if (seat == NULL) return; // it has ended
    if (saved->status == CAIRN_OK)
        cairn_cluster_waiters_answer(&seat->drain.begun, CAIRN_MSG_DONE, &done.base);
    else
        fail(saved->cluster, seat, saved->status, saved->why);
}

static cairn_status store(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat,
                          struct cairn_sentence *why)
{
    seat->drain.stored = cairn_cluster_request_new(cluster);
    return cairn_cluster_save(cluster, CAIRN_STORE_LEAVE,
                              &(struct cairn_stored_leaving) { seat->name }, 1, seat->drain.stored,
                              on_stored, why);
}

static void unstore(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat)
{
    struct cairn_sentence why;
    if (seat->drain.stored == 0) return;
    seat->drain.stored = 0;
    if (cairn_cluster_save(cluster, CAIRN_STORE_STAY, &(struct cairn_stored_leaving) { seat->name },
                           1, 0, on_stored, &why) != CAIRN_OK)
        cairn_log_error("the end of a drain is not in the store: %s", why.text);
}

static cairn_status load(void *context, const void *row, struct cairn_sentence *why)
{
    const char *shard = ((const struct cairn_stored_leaving *)row)->shard;
    struct cairn_cluster *cluster = context;
    struct cairn_cluster_seat *seat = cairn_cluster_seat_get(cluster, shard);
    if (seat == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a shard");
    seat->leaving = true;
    seat->drain.stored = cairn_cluster_request_new(cluster);
    cairn_log_info("shard %s is to be drained still", shard);
    return CAIRN_OK;
}

cairn_status cairn_cluster_drains_load(struct cairn_cluster *cluster, struct cairn_sentence *why)
{
    return cairn_store_each(cluster->store, CAIRN_STORED_LEAVING, load, cluster, why);
}

/* ---- the end of a drain ---- */

static uint32_t index_of(const struct cairn_cluster_job *job, const struct cairn_cluster_seat *seat)
{
    CAIRN_EACH_SHARD (job, i)
        if (job->shards[i].seat == seat) return i;
    return job->shard_count;
}

/* Cancels re-shardings that take state off this shard: the state stays where it is. */
static void stop_runs(struct cairn_cluster_job *job, const struct cairn_cluster_seat *seat)
{
    struct cairn_sentence why;
    for (; job != NULL; job = job->next) {
        const uint32_t shard = index_of(job, seat);
        if (job->reshard.running && shard < job->shard_count && job->shards[shard].weight <= 0)
            (void)!cairn_cluster_reshard_cancel(job, &why);
    }
}

static void fail(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat,
                 cairn_status status, const char *text)
{
    struct cairn_sentence why, event;
    cairn_sentence_set(&why, "shard %s is not drained: %s", seat->name, text);
    cairn_log_fields(CAIRN_LOG_WARN, CAIRN_FIELDS({ "shard", seat->name, 0 }), "%s", why.text);
    cairn_sentence_set(&event, "given up: %s", text);
    cairn_cluster_event_note_shard(cluster, CAIRN_EVENT_DRAINED, NULL, seat->name, event.text);
    seat->leaving = seat->drain.is_saving = seat->drain.is_unfit = false;
    unstore(cluster, seat);
    cairn_cluster_waiters_fail(&seat->drain.begun, status, why.text);
    cairn_cluster_waiters_fail(&seat->drain.waiters, status, why.text);
    if (seat->drain.request != 0)
        cairn_cluster_session_error(seat->session, seat->drain.request, status, why.text);
    seat->drain.request = 0;
    seat->drain.saves_ms = seat->drain.ends_ms = 0;
    stop_runs(cluster->jobs, seat);
}

/* True: what came of the snapshots of all that it holds is known. */
static bool advance_saving(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat,
                           struct cairn_sentence *out)
{
    bool ended = true;
    *out = seat->drain.why;
    for (struct cairn_cluster_job *j = cluster->jobs; j != NULL; j = j->next) {
        if (!cairn_cluster_job_has_seat(j, seat)) continue;
        ended &= cairn_cluster_parting_advance(j);
        cairn_sentence_add(out, "; %s", cairn_sentence_brief(j->parting.outcome.text, 300).text);
    }
    return ended;
}

/* Gives up draining: the shard keeps what it holds. A shard that is being stopped ends all the
 * same, so its jobs are saved first, if there is time. */
static void give_up(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat,
                    cairn_status status, const char *text)
{
    if (seat->drain.request == 0) {
        fail(cluster, seat, status, text);
        return;
    }
    if (seat->drain.is_saving) return;
    cairn_log_warn("shard %s ends, and cannot be drained first: %s; its jobs are saved", seat->name,
                   text);
    seat->drain.is_saving = true;
    seat->drain.status = status;
    cairn_sentence_set(&seat->drain.why, "%s", text);
    stop_runs(cluster->jobs, seat);
    for (struct cairn_cluster_job *j = cluster->jobs; j != NULL; j = j->next)
        if (cairn_cluster_job_has_seat(j, seat)) cairn_cluster_parting_want(j);
}

/* This process has been drained: if it comes again, it has not heard that it is to end. */
static bool was_drained(const struct cairn_cluster *cluster, uint64_t incarnation)
{
    for (size_t i = 0; i < CAIRN_DRAINED_MAX && i < cluster->drained.count; i++)
        if (cluster->drained.incarnations[i] == incarnation) return true;
    return false;
}

static void note_drained(struct cairn_cluster *cluster, const struct cairn_cluster_seat *seat)
{
    if (was_drained(cluster, seat->incarnation)) return;
    cairn_log_info("shard %s is drained", seat->name);
    cairn_cluster_event_note_shard(cluster, CAIRN_EVENT_DRAINED, NULL, seat->name,
                                   "it holds nothing");
    cluster->drained.incarnations[cluster->drained.count++ % CAIRN_DRAINED_MAX] = seat->incarnation;
}

void cairn_cluster_drain_come(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat)
{
    const bool of_store = seat->drain.stored != 0 && !seat->drain.is_over;
    seat->leaving = of_store || was_drained(cluster, seat->incarnation);
    seat->drain.is_over = false;
}

/* It holds nothing: it ends, and is forgotten with its connection. */
static void finish(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat)
{
    const Cairn__Done done = CAIRN__DONE__INIT;
    Cairn__MemberEnd end = CAIRN__MEMBER_END__INIT;
    note_drained(cluster, seat);
    cairn_cluster_waiters_answer(&seat->drain.waiters, CAIRN_MSG_DONE, &done.base);
    if (seat->drain.request != 0) cairn_cluster_session_done(seat->session, seat->drain.request);
    seat->drain.request = 0;
    seat->drain.saves_ms = seat->drain.ends_ms = 0;
    seat->drain.is_over = true;
    if (seat->session == NULL || seat->session->closing) return;
    end.why = (char *)(uintptr_t) "all that it held is on other shards";
    cairn_cluster_session_send(seat->session, CAIRN_MSG_MEMBER_END, 0, &end.base);
}

bool cairn_cluster_drains_cancel(struct cairn_cluster_job *job)
{
    bool any = false;
    for (struct cairn_cluster_seat *s = job->cluster->seats; s != NULL; s = s->next) {
        // One that is being stopped ends in any case: what it has is lost if it does not go on.
        if (!s->leaving || s->drain.is_over || s->drain.request != 0 ||
            !cairn_cluster_job_has_seat(job, s))
            continue;
        fail(job->cluster, s, CAIRN_ERR_CANCELED, "it was canceled");
        s->drain.again_ms = cairn_cluster_now_ms(job->cluster) + CANCELED_MS;
        any = true;
    }
    return any;
}

void cairn_cluster_drain_gone(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat)
{
    if (!seat->leaving || cluster->closing) return;
    if (seat->drain.is_unfit) { // as it was to
        seat->leaving = seat->drain.is_unfit = false;
        stop_runs(cluster->jobs, seat);
        return;
    }
    if (seat->drain.is_over || was_drained(cluster, seat->incarnation)) {
        const Cairn__Done done = CAIRN__DONE__INIT;
        unstore(cluster, seat);
        cairn_cluster_waiters_answer(&seat->drain.begun, CAIRN_MSG_DONE, &done.base);
        return;
    }
    seat->drain.request = 0; // of the connection that is gone
    fail(cluster, seat, CAIRN_ERR_NOT_READY, "it went away");
}

void cairn_cluster_drains_forget(struct cairn_cluster *cluster,
                                 const struct cairn_cluster_session *session)
{
    for (struct cairn_cluster_seat *s = cluster->seats; s != NULL; s = s->next) {
        cairn_cluster_waiters_forget(&s->drain.waiters, session);
        cairn_cluster_waiters_forget(&s->drain.begun, session);
    }
}

/* ---- unfit shards ---- */

/* True if the unfit shard has nothing of the job that could be moved: its device failed with the
 * state on it, or the job is lost for good. A job that waits for a part, or for a newer store to
 * be adopted, is not lost for good and still needs what the shard holds. */
static bool has_fallen(const struct cairn_cluster_job *job, const struct cairn_cluster_seat *seat)
{
    const bool is_lost = job->state == CAIRN_CLUSTER_JOB_LOST && !job->loss.may_return &&
                         !job->loss.behind;
    return cairn_cluster_seat_unfit(seat) &&
           (is_lost || (job->spec.offload_fraction < 1 && !job->park.shut));
}

static bool is_other_well(const struct cairn_cluster *cluster,
                          const struct cairn_cluster_seat *seat)
{
    for (const struct cairn_cluster_seat *s = cluster->seats; s != NULL; s = s->next)
        if (s != seat && cairn_cluster_seat_fits(s, NULL)) return true;
    return false;
}

static bool holds_whole(const struct cairn_cluster *cluster, const struct cairn_cluster_seat *seat)
{
    for (const struct cairn_cluster_job *j = cluster->jobs; j != NULL; j = j->next)
        if (cairn_cluster_job_has_seat(j, seat) && !has_fallen(j, seat)) return true;
    return false;
}

/* Nobody asked for it, so that it ends in silence when nobody is left to take anything. */
static void look_unfit(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat)
{
    const bool is_wanted = cairn_cluster_seat_unfit(seat) && cairn_cluster_seat_obeys(seat) &&
                           is_other_well(cluster, seat);
    if (seat->drain.is_unfit && !is_wanted) {
        seat->leaving = seat->drain.is_unfit = false;
        stop_runs(cluster->jobs, seat);
    }
    if (!is_wanted || seat->leaving || cairn_cluster_now_ms(cluster) < seat->drain.again_ms) return;
    seat->leaving = seat->drain.is_unfit = true;
    seat->drain.why.text[0] = '\0';
    if (!holds_whole(cluster, seat)) return; // it ends, and gets nothing until then
    cairn_log_warn("shard %s is unfit: what it holds in host memory goes to other shards",
                   seat->name);
    cairn_cluster_event_note_shard(cluster, CAIRN_EVENT_DRAIN, NULL, seat->name,
                                   "its device failed");
}

/* For an operator. */
static void say_unfit(const struct cairn_cluster *cluster, struct cairn_cluster_seat *seat)
{
    struct cairn_sentence *out = &seat->unfit;
    if (!holds_whole(cluster, seat))
        cairn_sentence_set(out, "it holds nothing that is whole, and ends");
    else if (!seat->leaving && is_other_well(cluster, seat))
        cairn_sentence_set(out, "`cairn member drain %s` brings what else it holds to others",
                           seat->name);
    else if (!seat->leaving)
        cairn_sentence_set(out, "start another shard: what it holds in host memory goes there by "
                                "itself, and then it ends");
    else if (seat->drain.why.text[0] != '\0')
        cairn_sentence_set(out, "this stays there, and is tried again: %s", seat->drain.why.text);
    else
        cairn_sentence_set(out, "what it holds in host memory goes to other shards, and then it "
                                "ends");
}

/* ---- one job goes off a shard ---- */

/* Moves the job's state to its shards that stay; if none of them stays, to all shards that are
 * here. */
static cairn_status begin(struct cairn_cluster_job *job, struct cairn_sentence *why)
{
    struct cairn_cluster_reshard_wish wish;
    cairn_status status = cairn_cluster_reshard_wish_present(job, &wish);
    if (status != CAIRN_OK) return cairn_fail(why, status, "the coordinator is out of memory");
    bool stays = false;
    for (uint32_t i = 0; i < wish.count; i++) stays |= wish.shards[i].weight > 0;
    if (!stays) cairn_cluster_reshard_wish_all(job, &wish);
    status = cairn_cluster_reshard_begin(job, &wish, why);
    cairn_cluster_reshard_wish_release(&wish);
    return status;
}

static cairn_status begin_off(struct cairn_cluster_job *job, const struct cairn_cluster_seat *seat,
                              struct cairn_sentence *why)
{
    if (!cairn_cluster_seat_unfit(seat) || job->spec.offload_fraction >= 1) return begin(job, why);
    return cairn_fail(why, CAIRN_ERR_UNSUPPORTED,
                      "job %s is parked, and its device failed: save it, and restore it over other "
                      "shards (`cairn snapshot create %s`, `cairn snapshot restore %s latest`)",
                      job->spec.name, job->spec.name, job->spec.name);
}

/* True: the shard still has something of the job. If one job cannot move off an unfit shard, it
 * stays there, and the other jobs still move. */
static bool drain_job(struct cairn_cluster_job *job, struct cairn_cluster_seat *seat, bool tries)
{
    struct cairn_sentence why;
    const uint32_t shard = index_of(job, seat);
    if (!cairn_cluster_job_has_seat(job, seat) || has_fallen(job, seat)) return false;
    if (job->reshard.running) {
        // One that is under way and puts something here is of no use.
        const bool takes = shard < job->shard_count && job->shards[shard].weight > 0;
        if ((takes || shard == job->shard_count) && !job->reshard.canceled)
            (void)!cairn_cluster_reshard_cancel(job, &why);
        return true;
    }
    if (!tries) return true;
    const cairn_status status = begin_off(job, seat, &why);
    // A cause that passes by itself is waited for.
    if (status == CAIRN_OK || status == CAIRN_ERR_BUSY || status == CAIRN_ERR_NOT_READY)
        return true;
    if (seat->drain.is_unfit)
        seat->drain.why = why;
    else
        give_up(job->cluster, seat, status, why.text);
    return true;
}

/* It ends by itself, when it holds nothing that is whole. */
static void note_unfit(const struct cairn_cluster *cluster, struct cairn_cluster_seat *seat,
                       bool tried, const struct cairn_sentence *before)
{
    const char *why = seat->drain.why.text;
    if (!tried || why[0] == '\0') return;
    seat->drain.again_ms = cairn_cluster_now_ms(cluster) + TRIES_AGAIN_MS;
    if (strcmp(why, before->text) != 0)
        cairn_log_warn("shard %s is unfit, and this stays there: %s", seat->name, why);
}

static void advance(struct cairn_cluster_seat *seat, struct cairn_cluster *cluster)
{
    bool holds = false;
    struct cairn_sentence said;
    const uint64_t now_ms = cairn_cluster_now_ms(cluster);
    const bool is_late = seat->drain.ends_ms != 0 && now_ms >= seat->drain.ends_ms;
    if (!seat->drain.is_saving && seat->drain.saves_ms != 0 && now_ms >= seat->drain.saves_ms)
        give_up(cluster, seat, CAIRN_ERR_TIMEOUT,
                "its time is nearly over, and something is there still");
    if (seat->drain.is_saving) {
        if (advance_saving(cluster, seat, &said) || is_late)
            fail(cluster, seat, seat->drain.status, said.text);
        return;
    }
    const struct cairn_sentence before = seat->drain.why;
    const bool tries = !seat->drain.is_unfit || now_ms >= seat->drain.again_ms;
    if (seat->drain.is_unfit && tries) seat->drain.why.text[0] = '\0';
    for (struct cairn_cluster_job *j = cluster->jobs; j != NULL; j = j->next) {
        if (!seat->leaving || seat->drain.is_saving) return;
        holds |= drain_job(j, seat, tries);
    }
    if (seat->drain.is_unfit)
        note_unfit(cluster, seat, tries, &before);
    else if (!holds && seat->leaving)
        finish(cluster, seat);
}

/* ---- asked ---- */

static bool holds_any(const struct cairn_cluster *cluster, const struct cairn_cluster_seat *seat)
{
    const struct cairn_cluster_job *job = cluster->jobs;
    while (job != NULL && !cairn_cluster_job_has_seat(job, seat)) job = job->next;
    return job != NULL;
}

static cairn_status judge(const struct cairn_cluster *cluster,
                          const struct cairn_cluster_seat *seat, struct cairn_sentence *why)
{
    if (!cairn_cluster_seat_obeys(seat))
        return cairn_fail(why, CAIRN_ERR_NOT_READY,
                          "shard %s is not here: what it holds cannot move", seat->name);
    if (holds_any(cluster, seat) && !is_other_well(cluster, seat))
        return cairn_fail(why, CAIRN_ERR_REFUSED,
                          "no shard that stays is here to take what shard %s holds: start another "
                          "one first, or save the jobs and end it",
                          seat->name);
    return CAIRN_OK;
}

void cairn_cluster_member_drain(struct cairn_cluster_session *session, uint32_t request,
                                const Cairn__MemberDrain *message)
{
    struct cairn_cluster *cluster = session->cluster;
    struct cairn_cluster_seat *seat = cairn_cluster_seat_find(cluster, message->name);
    struct cairn_sentence why;
    cairn_status status =
        seat == NULL ? cairn_fail(&why, CAIRN_ERR_NOT_FOUND,
                                  "there is no shard \"%.128s\"; `cairn cluster status` lists them",
                                  message->name)
                     : judge(cluster, seat, &why);
    if (status == CAIRN_OK &&
        !cairn_cluster_waiters_add(message->wait ? &seat->drain.waiters : &seat->drain.begun,
                                   session, request))
        status = cairn_fail(&why, CAIRN_ERR_BUSY, "too many requests wait on this connection");
    if (status != CAIRN_OK) {
        cairn_cluster_session_error(session, request, status, why.text);
        return;
    }
    cairn_log_info("shard %s is to be drained, by an operator's word", seat->name);
    cairn_cluster_event_note_shard(cluster, CAIRN_EVENT_DRAIN, NULL, seat->name,
                                   "by an operator's word");
    seat->leaving = true;
    seat->drain.is_unfit = false;
    status = store(cluster, seat, &why);
    if (status != CAIRN_OK)
        fail(cluster, seat, status, why.text);
    else
        advance(seat, cluster);
}

/* The cluster is being stopped: nothing is moved for that. */
static void refuse_all(struct cairn_cluster *cluster)
{
    for (struct cairn_cluster_seat *s = cluster->seats; s != NULL; s = s->next)
        if (s->drain.request != 0)
            give_up(cluster, s, CAIRN_ERR_REFUSED, "all shards are being stopped: nothing moves");
}

void cairn_cluster_drain_me(struct cairn_cluster_session *session, uint32_t request,
                            const Cairn__DrainMe *message)
{
    struct cairn_cluster_seat *seat = session->seat;
    struct cairn_cluster *cluster = session->cluster;
    struct cairn_sentence why;
    if (seat == NULL) return;
    const cairn_status status = judge(cluster, seat, &why);
    if (status == CAIRN_ERR_NOT_READY) {
        cairn_cluster_session_error(session, request, status, why.text);
        return;
    }
    cairn_cluster_event_note_shard(cluster, CAIRN_EVENT_DRAIN, NULL, seat->name,
                                   "it is being stopped");
    seat->leaving = true;
    seat->drain.is_unfit = false;
    seat->drain.request = request;
    const uint64_t now_ms = cairn_cluster_now_ms(cluster),
                   given_ms = message->seconds * UINT64_C(1000);
    seat->drain.saves_ms = given_ms == 0 ? 0 : now_ms + given_ms / 4 * 3;
    seat->drain.ends_ms = given_ms == 0 ? 0 : now_ms + given_ms;
    if (status != CAIRN_OK) {
        give_up(cluster, seat, status, why.text);
        refuse_all(cluster);
    } else {
        cairn_log_info("shard %s is being stopped: what it holds goes to others first", seat->name);
    }
    advance(seat, cluster);
}

/* ---- time ---- */

/* It holds nothing, and has not come since the coordinator started: it had ended. */
static bool has_ended(const struct cairn_cluster *cluster, const struct cairn_cluster_seat *seat)
{
    return seat->session == NULL && !holds_any(cluster, seat) &&
           uv_now(cluster->loop) - seat->since_ms >=
               (uint64_t)cluster->options->lease_timeout_ms + COMES_AGAIN_MS;
}

void cairn_cluster_drains_tick(struct cairn_cluster *cluster)
{
    for (struct cairn_cluster_seat *s = cluster->seats; s != NULL; s = s->next) {
        look_unfit(cluster, s);
        const bool leaves = s->leaving && !s->drain.is_over;
        if (leaves && s->session != NULL)
            advance(s, cluster);
        else if (leaves && has_ended(cluster, s))
            fail(cluster, s, CAIRN_ERR_NOT_READY, "it is gone");
        if (cairn_cluster_seat_unfit(s)) say_unfit(cluster, s);
    }
}
