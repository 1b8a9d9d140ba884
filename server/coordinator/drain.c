#include <inttypes.h>
#include <string.h>

#include "server/coordinator/cluster.h"

/* An upper bound of the time that a shard waits between two attempts to connect. */
#define COMES_AGAIN_MS 5000
/* TRIES_AGAIN_MS: how long until the next attempt to move state off an unfit shard. CANCELED_MS:
 * how long an unfit shard is not drained after an operator has canceled its drain. */
#define TRIES_AGAIN_MS 30000
#define CANCELED_MS    600000

static void fail_drain(struct coord *cluster, struct coord_shard_entry *entry, cairn_status status,
                       const char *text);

/* ---- the store ---- */

static void on_stored(const struct coord_saved *saved)
{
    const Cairn__Done done = CAIRN__DONE__INIT;
    struct coord_shard_entry *entry = saved->cluster->shards;
    if (saved->number == 0) {
        if (saved->status != CAIRN_OK)
            log_error("the end of a drain is not in the store: %s", saved->why);
        return;
    }
    while (entry != NULL && entry->drain.stored != saved->number) entry = entry->next;
    if (entry == NULL) return; // the drain has ended
    if (saved->status == CAIRN_OK)
        coord_waiters_answer(&entry->drain.begun, CAIRN_MSG_DONE, &done.base);
    else
        fail_drain(saved->cluster, entry, saved->status, saved->why);
}

static cairn_status store_drain(struct coord *cluster, struct coord_shard_entry *entry,
                                struct sentence *why)
{
    entry->drain.stored = coord_request_new(cluster);
    return coord_save(cluster, CAIRN_STORE_LEAVE, &(struct stored_leaving) { entry->name }, 1,
                      entry->drain.stored, on_stored, why);
}

static void unstore_drain(struct coord *cluster, struct coord_shard_entry *entry)
{
    struct sentence why;
    if (entry->drain.stored == 0) return;
    entry->drain.stored = 0;
    if (coord_save(cluster, CAIRN_STORE_STAY, &(struct stored_leaving) { entry->name }, 1, 0,
                   on_stored, &why) != CAIRN_OK)
        log_error("the end of a drain is not in the store: %s", why.text);
}

static cairn_status load_drain(void *context, const void *row, struct sentence *why)
{
    const char *shard = ((const struct stored_leaving *)row)->shard;
    struct coord *cluster = context;
    struct coord_shard_entry *entry = coord_shard_get(cluster, shard);
    if (entry == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a shard");
    entry->leaving = true;
    entry->drain.stored = coord_request_new(cluster);
    log_info("shard %s is still to be drained", shard);
    return CAIRN_OK;
}

cairn_status coord_drains_load(struct coord *cluster, struct sentence *why)
{
    return store_each(cluster->store, CAIRN_STORED_LEAVING, load_drain, cluster, why);
}

/* ---- the end of a drain ---- */

static uint32_t index_of(const struct coord_job *job, const struct coord_shard_entry *entry)
{
    CAIRN_EACH_SHARD (job, i)
        if (job->shards[i].entry == entry) return i;
    return job->shard_count;
}

/* Cancels re-shardings that take state off this shard. The state stays where it is. */
static void stop_runs(struct coord_job *job, const struct coord_shard_entry *entry)
{
    struct sentence why;
    for (; job != NULL; job = job->next) {
        const uint32_t shard = index_of(job, entry);
        if (job->reshard.running && shard < job->shard_count && job->shards[shard].weight <= 0)
            (void)!coord_reshard_cancel(job, &why);
    }
}

static void fail_drain(struct coord *cluster, struct coord_shard_entry *entry, cairn_status status,
                       const char *text)
{
    struct sentence why, event;
    sentence_set(&why, "shard %s is not drained: %s", entry->name, text);
    log_fields(CAIRN_LOG_WARN, CAIRN_FIELDS({ "shard", entry->name, 0 }), "%s", why.text);
    sentence_set(&event, "given up: %s", text);
    coord_event_note_shard(cluster, CAIRN_EVENT_DRAINED, NULL, entry->name, event.text);
    entry->leaving = entry->drain.is_saving = entry->drain.is_unfit = false;
    unstore_drain(cluster, entry);
    coord_waiters_fail(&entry->drain.begun, status, why.text);
    coord_waiters_fail(&entry->drain.waiters, status, why.text);
    if (entry->drain.request != 0)
        coord_session_error(entry->session, entry->drain.request, status, why.text);
    entry->drain.request = 0;
    entry->drain.saves_ms = entry->drain.ends_ms = 0;
    stop_runs(cluster->jobs, entry);
}

/* Advances the snapshots of all jobs on the shard. Returns true if each of these snapshots has
 * ended. `out` says for each job what has become of its snapshot. */
static bool advance_saving(struct coord *cluster, struct coord_shard_entry *entry,
                           struct sentence *out)
{
    bool ended = true;
    *out = entry->drain.why;
    for (struct coord_job *j = cluster->jobs; j != NULL; j = j->next) {
        if (!coord_job_has_shard(j, entry)) continue;
        ended &= coord_parting_advance(j);
        sentence_add(out, "; %s", sentence_brief(j->snapshots.parting.outcome.text, 300).text);
    }
    return ended;
}

/* Called when another shard of the job is about to end: asks for a snapshot. If the job's present
 * version was already saved because of an earlier shard, asks for no snapshot. */
static void want_parting(struct coord_job *job)
{
    struct coord_parting *p = &job->snapshots.parting;
    if (p->state == CAIRN_PARTING_WANTED || p->state == CAIRN_PARTING_TAKEN) return;
    if (p->is_saved && (job->state == CAIRN_CLUSTER_JOB_LOST ||
                        version_compare(p->version, coord_job_version(job)) == 0))
        return;
    p->state = CAIRN_PARTING_WANTED;
    p->is_saved = false;
    coord_parting_unsaved(job, "its snapshot had not begun");
}

/* Gives up draining: the shard keeps what it holds. A shard that is being stopped ends
 * nevertheless, so its jobs are saved first, if there is time. */
static void give_up(struct coord *cluster, struct coord_shard_entry *entry, cairn_status status,
                    const char *text)
{
    if (entry->drain.request == 0) {
        fail_drain(cluster, entry, status, text);
        return;
    }
    if (entry->drain.is_saving) return;
    log_warn("shard %s ends, and cannot be drained first: %s; its jobs are saved", entry->name,
             text);
    entry->drain.is_saving = true;
    entry->drain.status = status;
    sentence_set(&entry->drain.why, "%s", text);
    stop_runs(cluster->jobs, entry);
    for (struct coord_job *j = cluster->jobs; j != NULL; j = j->next)
        if (coord_job_has_shard(j, entry)) want_parting(j);
}

/* True if this process has been drained. If the process connects again, it has not yet heard that
 * it must end. */
static bool was_drained(const struct coord *cluster, uint64_t incarnation)
{
    for (size_t i = 0; i < CAIRN_DRAINED_MAX && i < cluster->drained.count; i++)
        if (cluster->drained.incarnations[i] == incarnation) return true;
    return false;
}

static void note_drained(struct coord *cluster, const struct coord_shard_entry *entry)
{
    if (was_drained(cluster, entry->incarnation)) return;
    log_info("shard %s is drained", entry->name);
    coord_event_note_shard(cluster, CAIRN_EVENT_DRAINED, NULL, entry->name, "it holds nothing");
    cluster->drained.incarnations[cluster->drained.count++ % CAIRN_DRAINED_MAX] =
        entry->incarnation;
}

void coord_drain_come(struct coord *cluster, struct coord_shard_entry *entry)
{
    const bool of_store = entry->drain.stored != 0 && !entry->drain.is_over;
    entry->leaving = of_store || was_drained(cluster, entry->incarnation);
    entry->drain.is_over = false;
}

/* Tells a shard that holds nothing to end. The shard is forgotten when its connection closes. */
static void finish_drain(struct coord *cluster, struct coord_shard_entry *entry)
{
    const Cairn__Done done = CAIRN__DONE__INIT;
    Cairn__MemberEnd end = CAIRN__MEMBER_END__INIT;
    note_drained(cluster, entry);
    coord_waiters_answer(&entry->drain.waiters, CAIRN_MSG_DONE, &done.base);
    if (entry->drain.request != 0) coord_session_done(entry->session, entry->drain.request);
    entry->drain.request = 0;
    entry->drain.saves_ms = entry->drain.ends_ms = 0;
    entry->drain.is_over = true;
    if (entry->session == NULL || entry->session->closing) return;
    end.why = wire_text("all that it held is on other shards");
    coord_session_send(entry->session, CAIRN_MSG_MEMBER_END, 0, &end.base);
}

bool coord_drains_cancel(struct coord_job *job)
{
    bool any = false;
    for (struct coord_shard_entry *s = job->cluster->shards; s != NULL; s = s->next) {
        // A shard that is being stopped ends in any case. If its drain were canceled, everything
        // that the shard holds would be lost.
        if (!s->leaving || s->drain.is_over || s->drain.request != 0 ||
            !coord_job_has_shard(job, s))
            continue;
        fail_drain(job->cluster, s, CAIRN_ERR_CANCELED, "it was canceled");
        s->drain.again_ms = coord_now_ms(job->cluster) + CANCELED_MS;
        any = true;
    }
    return any;
}

void coord_drain_gone(struct coord *cluster, struct coord_shard_entry *entry)
{
    if (!entry->leaving || cluster->closing) return;
    if (entry->drain.is_unfit) { // an unfit shard is expected to end
        entry->leaving = entry->drain.is_unfit = false;
        stop_runs(cluster->jobs, entry);
        return;
    }
    if (entry->drain.is_over || was_drained(cluster, entry->incarnation)) {
        const Cairn__Done done = CAIRN__DONE__INIT;
        unstore_drain(cluster, entry);
        coord_waiters_answer(&entry->drain.begun, CAIRN_MSG_DONE, &done.base);
        return;
    }
    entry->drain.request = 0; // the request belonged to the connection that is gone
    fail_drain(cluster, entry, CAIRN_ERR_NOT_READY, "it went away");
}

/* ---- unfit shards ---- */

/* True if the shard is unfit and has nothing of the job that could be moved. Either the job's state
 * was on the device that failed, or the job is lost for good. A LOST job is not lost for good if it
 * waits for a missing part, or if it waits to be adopted because our store is an older copy. Such a
 * job still needs what the shard holds. */
static bool has_fallen(const struct coord_job *job, const struct coord_shard_entry *entry)
{
    const bool is_lost = job->state == CAIRN_CLUSTER_JOB_LOST && !job->loss.may_return &&
                         !job->loss.behind;
    return coord_shard_unfit(entry) &&
           (is_lost || (job->spec.offload_fraction < 1 &&
                        coord_stage(job, CAIRN_OPERATION_PARK) == CAIRN_STAGE_NONE));
}

static bool is_other_well(const struct coord *cluster, const struct coord_shard_entry *entry)
{
    for (const struct coord_shard_entry *s = cluster->shards; s != NULL; s = s->next)
        if (s != entry && coord_shard_fits(s, NULL)) return true;
    return false;
}

static bool holds_whole(const struct coord *cluster, const struct coord_shard_entry *entry)
{
    for (const struct coord_job *j = cluster->jobs; j != NULL; j = j->next)
        if (coord_job_has_shard(j, entry) && !has_fallen(j, entry)) return true;
    return false;
}

/* Begins the drain of a shard that has become unfit, and ends this drain when it is of no use any
 * more. Nobody asked for the drain, so it ends silently if no other shard is left to take
 * anything. */
static void look_unfit(struct coord *cluster, struct coord_shard_entry *entry)
{
    const bool is_wanted = coord_shard_unfit(entry) && coord_shard_obeys(entry) &&
                           is_other_well(cluster, entry);
    if (entry->drain.is_unfit && !is_wanted) {
        entry->leaving = entry->drain.is_unfit = false;
        stop_runs(cluster->jobs, entry);
    }
    if (!is_wanted || entry->leaving || coord_now_ms(cluster) < entry->drain.again_ms) return;
    entry->leaving = entry->drain.is_unfit = true;
    entry->drain.why.text[0] = '\0';
    // the shard ends by itself, and gets nothing until then
    if (!holds_whole(cluster, entry)) return;
    log_warn("shard %s is unfit: what it holds in host memory goes to other shards", entry->name);
    coord_event_note_shard(cluster, CAIRN_EVENT_DRAIN, NULL, entry->name, "its device failed");
}

/* Says to an operator what happens to an unfit shard, or what to do about it. */
static void say_unfit(const struct coord *cluster, struct coord_shard_entry *entry)
{
    struct sentence *out = &entry->unfit;
    if (!holds_whole(cluster, entry))
        sentence_set(out, "it holds nothing that is whole, and ends");
    else if (!entry->leaving && is_other_well(cluster, entry))
        sentence_set(out, "`cairn member drain %s` brings what else it holds to others",
                     entry->name);
    else if (!entry->leaving)
        sentence_set(out, "start another shard: what this one holds in host memory goes there by "
                          "itself, and then it ends");
    else if (entry->drain.why.text[0] != '\0')
        sentence_set(out, "a job stays there, and its move is tried again: %s",
                     entry->drain.why.text);
    else
        sentence_set(out, "its state in host memory goes to other shards, and then it ends");
}

/* ---- one job goes off a shard ---- */

/* Moves the job's state to those shards of the job that stay. If no shard of the job stays, moves
 * the state to other shards that may take it. */
static cairn_status begin_move_off(struct coord_job *job, struct sentence *why)
{
    struct coord_reshard_wish wish;
    cairn_status status = coord_reshard_wish_present(job, &wish);
    if (status != CAIRN_OK) return fail_with(why, status, "the coordinator is out of memory");
    bool stays = false;
    for (uint32_t i = 0; i < wish.count; i++) stays |= wish.shards[i].weight > 0;
    if (!stays) coord_reshard_wish_all(job, &wish);
    status = coord_reshard_begin(job, &wish, why);
    coord_reshard_wish_release(&wish);
    return status;
}

static cairn_status begin_off(struct coord_job *job, const struct coord_shard_entry *entry,
                              struct sentence *why)
{
    if (!coord_shard_unfit(entry) || job->spec.offload_fraction >= 1)
        return begin_move_off(job, why);
    return fail_with(why, CAIRN_ERR_UNSUPPORTED,
                     "job %s is parked, and its device failed: save it, and restore it over other "
                     "shards (`cairn snapshot create %s`, `cairn snapshot restore %s latest`)",
                     job->spec.name, job->spec.name, job->spec.name);
}

/* Begins to move the job off the shard, if `tries`. Returns true if the shard still has something
 * of the job. If a job cannot move off an unfit shard, this job stays there, and the other jobs
 * move nevertheless. */
static bool drain_job(struct coord_job *job, struct coord_shard_entry *entry, bool tries)
{
    struct sentence why;
    const uint32_t shard = index_of(job, entry);
    if (!coord_job_has_shard(job, entry) || has_fallen(job, entry)) return false;
    if (job->reshard.running) {
        // A re-sharding that leaves state on this shard, or moves state there, does not help.
        const bool takes = shard < job->shard_count && job->shards[shard].weight > 0;
        if ((takes || shard == job->shard_count) && !job->reshard.canceled)
            (void)!coord_reshard_cancel(job, &why);
        return true;
    }
    if (!tries) return true;
    const cairn_status status = begin_off(job, entry, &why);
    // If the cause of the failure passes by itself, the drain waits until then.
    if (status == CAIRN_OK || status == CAIRN_ERR_BUSY || status == CAIRN_ERR_NOT_READY)
        return true;
    if (entry->drain.is_unfit)
        entry->drain.why = why;
    else
        give_up(job->cluster, entry, status, why.text);
    return true;
}

/* Notes why a job stays on an unfit shard, and when to try again. The shard ends by itself when it
 * holds nothing intact. */
static void note_unfit(const struct coord *cluster, struct coord_shard_entry *entry, bool tried,
                       const struct sentence *before)
{
    const char *why = entry->drain.why.text;
    if (!tried || why[0] == '\0') return;
    entry->drain.again_ms = coord_now_ms(cluster) + TRIES_AGAIN_MS;
    if (strcmp(why, before->text) != 0)
        log_warn("shard %s is unfit, and a job stays there: %s", entry->name, why);
}

static void advance_drain(struct coord_shard_entry *entry, struct coord *cluster)
{
    bool holds = false;
    struct sentence said;
    const uint64_t now_ms = coord_now_ms(cluster);
    const bool is_late = entry->drain.ends_ms != 0 && now_ms >= entry->drain.ends_ms;
    if (!entry->drain.is_saving && entry->drain.saves_ms != 0 && now_ms >= entry->drain.saves_ms)
        give_up(cluster, entry, CAIRN_ERR_TIMEOUT,
                "its time is nearly over, and it still holds something");
    if (entry->drain.is_saving) {
        if (advance_saving(cluster, entry, &said) || is_late)
            fail_drain(cluster, entry, entry->drain.status, said.text);
        return;
    }
    const struct sentence before = entry->drain.why;
    const bool tries = !entry->drain.is_unfit || now_ms >= entry->drain.again_ms;
    if (entry->drain.is_unfit && tries) entry->drain.why.text[0] = '\0';
    for (struct coord_job *j = cluster->jobs; j != NULL; j = j->next) {
        if (!entry->leaving || entry->drain.is_saving) return;
        holds |= drain_job(j, entry, tries);
    }
    if (entry->drain.is_unfit)
        note_unfit(cluster, entry, tries, &before);
    else if (!holds && entry->leaving)
        finish_drain(cluster, entry);
}

/* ---- asked ---- */

static bool holds_any(const struct coord *cluster, const struct coord_shard_entry *entry)
{
    const struct coord_job *job = cluster->jobs;
    while (job != NULL && !coord_job_has_shard(job, entry)) job = job->next;
    return job != NULL;
}

static cairn_status judge_drain(const struct coord *cluster, const struct coord_shard_entry *entry,
                                struct sentence *why)
{
    if (!coord_shard_obeys(entry))
        return fail_with(why, CAIRN_ERR_NOT_READY,
                         "shard %s is not here: what it holds cannot move", entry->name);
    if (holds_any(cluster, entry) && !is_other_well(cluster, entry))
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "no shard that stays is here to take what shard %s holds: start another "
                         "one first, or save the jobs and end it",
                         entry->name);
    return CAIRN_OK;
}

/* Drains a shard, at an operator's request. Done is sent when the shard is drained or, without
 * `wait`, when the store has recorded the drain. A coordinator that starts later continues the
 * drain. */
static cairn_status on_member_drain(struct coord_session *session, uint32_t request,
                                    const void *any, struct sentence *why)
{
    const Cairn__MemberDrain *message = any;
    struct coord *cluster = session->cluster;
    struct coord_shard_entry *entry = coord_shard_find(cluster, message->name);
    if (entry == NULL)
        return fail_with(why, CAIRN_ERR_NOT_FOUND,
                         "there is no shard \"%.128s\"; `cairn cluster status` lists them",
                         message->name);
    CAIRN_TRY(judge_drain(cluster, entry, why));
    CAIRN_TRY(coord_waiters_add(message->wait ? &entry->drain.waiters : &entry->drain.begun,
                                session, request, why));
    if (!message->wait) coord_waiters_note_end(&entry->drain.waiters, session, request);
    log_info("shard %s is to be drained, by an operator's word", entry->name);
    coord_event_note_shard(cluster, CAIRN_EVENT_DRAIN, NULL, entry->name, "by an operator's word");
    entry->leaving = true;
    entry->drain.is_unfit = false;
    const cairn_status status = store_drain(cluster, entry, why);
    if (status != CAIRN_OK)
        fail_drain(cluster, entry, status, why->text);
    else
        advance_drain(entry, cluster);
    return CAIRN_OK;
}

/* Drains a shard at its own request, because it is being stopped. The shard says how much time it
 * has left. If it cannot be drained in three quarters of this time, its jobs are saved. */
static void on_drain_me(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__DrainMe *message = any;
    struct coord_shard_entry *entry = session->entry;
    struct coord *cluster = session->cluster;
    struct sentence why;
    if (entry == NULL) return;
    const cairn_status status = judge_drain(cluster, entry, &why);
    if (status == CAIRN_ERR_NOT_READY) {
        coord_session_error(session, request, status, why.text);
        return;
    }
    coord_event_note_shard(cluster, CAIRN_EVENT_DRAIN, NULL, entry->name, "it is being stopped");
    entry->leaving = true;
    entry->drain.is_unfit = false;
    entry->drain.request = request;
    const uint64_t now_ms = coord_now_ms(cluster), given_ms = message->seconds * UINT64_C(1000);
    entry->drain.saves_ms = given_ms == 0 ? 0 : now_ms + given_ms / 4 * 3;
    entry->drain.ends_ms = given_ms == 0 ? 0 : now_ms + given_ms;
    if (status != CAIRN_OK) {
        give_up(cluster, entry, status, why.text);
        // No shard stays, so the whole cluster is being stopped. Then nothing is moved, and all
        // jobs are saved.
        for (struct coord_shard_entry *s = cluster->shards; s != NULL; s = s->next)
            if (s->drain.request != 0)
                give_up(cluster, s, CAIRN_ERR_REFUSED,
                        "all shards are being stopped: nothing moves");
    } else {
        log_info("shard %s is being stopped: what it holds goes to others first", entry->name);
    }
    advance_drain(entry, cluster);
}

/* ---- time ---- */

/* True if the shard is away, holds nothing, and has had enough time to connect since the
 * coordinator started. Such a shard ended before that start. */
static bool has_ended(const struct coord *cluster, const struct coord_shard_entry *entry)
{
    return entry->session == NULL && !holds_any(cluster, entry) &&
           uv_now(cluster->loop) - entry->since_ms >=
               (uint64_t)cluster->options->lease_timeout_ms + COMES_AGAIN_MS;
}

void coord_drains_tick(struct coord *cluster)
{
    for (struct coord_shard_entry *s = cluster->shards; s != NULL; s = s->next) {
        look_unfit(cluster, s);
        const bool leaves = s->leaving && !s->drain.is_over;
        if (leaves && s->session != NULL)
            advance_drain(s, cluster);
        else if (leaves && has_ended(cluster, s))
            fail_drain(cluster, s, CAIRN_ERR_NOT_READY, "it is gone");
        if (coord_shard_unfit(s)) say_unfit(cluster, s);
    }
}

/* ==== messages ==== */

const struct coord_row coord_drain_rows[] = {
    { CAIRN_MSG_MEMBER_DRAIN, CAIRN_FROM_ADMIN, .asks = on_member_drain, .verb = "member drain",
      .awaits = CAIRN_AWAITS_REPORTS },
    { CAIRN_MSG_DRAIN_ME, CAIRN_FROM_SHARD, .by_session = on_drain_me,
      .awaits = CAIRN_AWAITS_REPORTS },
    { 0 },
};
