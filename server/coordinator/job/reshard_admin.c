/* Answers operators about re-shardings: they are planned, begun, shown, canceled. See reshard.h. */
#include <inttypes.h>
#include <stdlib.h>

#include "proto/plan/reshard.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/job/drain.h"
#include "server/coordinator/job/jobs.h"
#include "server/coordinator/member/seats.h"
#include "server/coordinator/store/saves.h"

/* ---- what is told ---- */

/* A job's answer with what it owns. */
struct view {
    Cairn__ReshardJob told;
    struct cairn_sentence text;
    Cairn__ReshardPair *pairs; /* owned */
    Cairn__ReshardPair **list; /* owned */
    uint32_t serial; /* of the run that begins with it, once that is in the store; 0: none */
};

static const char *state_name(enum cairn_cluster_reshard_state state)
{
    static const char *const names[] = { "none", "moving", "done", "canceled", "failed" };
    return names[state];
}

void cairn_cluster_reshard_show(const struct cairn_cluster_job *job, struct cairn_sentence *out)
{
    const struct cairn_cluster_reshard_told *told = &job->reshard.told;
    out->text[0] = '\0';
    if (!job->reshard.running) return;
    cairn_sentence_set(out, "slice %" PRIu32 " of %" PRIu32 ", %" PRIu64 " of %" PRIu64 " bytes%s",
                       told->slice, told->slices, told->moved_bytes, told->all_bytes,
                       job->reshard.canceled ? "; it ends after this slice" : "");
}

/* Says that the slice under way waits for this shard, if it does. */
static void say_slice_waiting(const struct cairn_cluster_reshard *r, uint32_t shard,
                              const char *name, struct cairn_sentence *out)
{
    if (r->move == NULL || !cairn_move_waits_for(r->move, shard)) return;
    cairn_sentence_set(out, "it waits for shard %s%s", name,
                       cairn_move_stage_of(r->move) == CAIRN_MOVE_PREPARING
                           ? " to make room for what comes"
                           : " to have all that it owns");
}

static void say_waiting(const struct cairn_cluster_job *job, struct cairn_sentence *out)
{
    const struct cairn_cluster_reshard *r = &job->reshard;
    *out = r->told.text;
    if (!r->running) return;
    if (job->snapshots.cut != NULL)
        cairn_sentence_set(out, "it waits for a snapshot or digest that is being taken");
    else if (job->park.shut)
        cairn_sentence_set(out, "it waits until the job is not parked any more");
    else if (r->asking != NULL)
        cairn_sentence_set(out, "it waits for %s", r->asking);
    for (uint32_t i = 0; i < r->joiner_count; i++)
        if (!cairn_cluster_seat_obeys(r->joiners[i].seat))
            cairn_sentence_set(out, "it waits for shard %s, which is not here",
                               r->joiners[i].seat->name);
    CAIRN_EACH_SHARD (job, i) {
        const char *name = job->shards[i].seat->name;
        say_slice_waiting(r, i, name, out);
        if (!job->shards[i].up) cairn_sentence_set(out, "it waits for shard %s", name);
    }
}

/* Counts the shards that will hold the job after the run, without those lost since it began. */
static uint32_t count_staying(const struct cairn_cluster_job *job)
{
    const struct cairn_cluster_reshard *r = &job->reshard;
    uint32_t count = 0;
    CAIRN_EACH_SHARD (job, i) count += job->shards[i].weight > 0;
    for (uint32_t i = 0; i < r->joiner_count; i++) count += r->joiners[i].weight > 0;
    return count;
}

static void view_run(const struct cairn_cluster_job *job, struct view *view)
{
    const struct cairn_cluster_reshard_told *told = &job->reshard.told;
    Cairn__ReshardJob *out = &view->told;
    cairn__reshard_job__init(out);
    say_waiting(job, &view->text);
    out->name = job->spec.name;
    out->state = (char *)(uintptr_t)state_name(job->reshard.running ? CAIRN_RESHARD_MOVING
                                                                    : told->state);
    out->text = view->text.text;
    out->layout_hash = cairn_layout_number(job->layout);
    out->least_bytes = told->least_bytes;
    out->all_bytes = told->all_bytes;
    out->moved_bytes = told->moved_bytes;
    out->heaviest_before = told->heaviest_before;
    out->heaviest_after = told->heaviest_after;
    out->slices = told->slices > told->slice ? told->slices : told->slice;
    out->slice = told->slice;
    out->shards_before = told->shards_before;
    out->shards_after = job->reshard.running ? count_staying(job) : told->shards_after;
    if (told->begun_ms != 0)
        out->elapsed_ms = (job->reshard.running ? cairn_cluster_now_ms(job->cluster)
                                                : told->ended_ms) -
                          told->begun_ms;
    if (told->median_us > 0) out->worst_step = (double)told->worst_us / told->median_us;
    out->state_bytes = told->state_bytes;
    out->state_us = told->state_us;
    out->prepare_us = told->stage_us[CAIRN_MOVE_PREPARING];
    out->cut_us = told->stage_us[CAIRN_MOVE_CUTTING];
    out->move_us = told->stage_us[CAIRN_MOVE_MOVING];
    out->rests = cairn_cluster_pace_rests(job);
}

static bool view_plan(const struct cairn_cluster_job *job,
                      const struct cairn_cluster_reshard_wish *wish,
                      const struct cairn_cluster_reshard_target *target, struct view *view)
{
    const struct cairn_reshard_report *report = target->report;
    Cairn__ReshardJob *out = &view->told;
    view_run(job, view);
    view->pairs = calloc(report->pair_count + 1, sizeof *view->pairs);
    view->list = calloc(report->pair_count + 1, sizeof *view->list);
    if (view->pairs == NULL || view->list == NULL) return false;
    for (size_t i = 0; i < report->pair_count; i++) {
        cairn__reshard_pair__init(&view->pairs[i]);
        view->pairs[i].from = wish->shards[report->pairs[i].from].seat->name;
        view->pairs[i].to = wish->shards[report->pairs[i].to].seat->name;
        view->pairs[i].bytes = report->pairs[i].bytes;
        view->list[i] = &view->pairs[i];
    }
    view->text.text[0] = '\0';
    out->state = (char *)(uintptr_t) "planned";
    out->pairs = view->list;
    out->n_pairs = report->pair_count;
    out->least_bytes = report->least_bytes;
    out->all_bytes = report->moved_bytes;
    out->moved_bytes = out->elapsed_ms = out->slice = 0;
    out->heaviest_before = report->heaviest_before;
    out->heaviest_after = report->heaviest_after;
    out->pieces_before = cairn_layout_pieces(job->layout);
    out->pieces_after = cairn_layout_pieces(target->layout);
    out->pieces_fresh = report->pieces_fresh;
    out->afresh = report->afresh_count;
    out->slices = target->slices;
    out->shards_before = job->seat_count;
    out->shards_after = cairn_cluster_reshard_wish_owners(wish);
    out->worst_step = 0;
    out->expected_s = cairn_cluster_reshard_expected_s(job, target);
    out->expected_pause_s = cairn_cluster_reshard_expected_pause_s(job, wish->pause);
    return true;
}

/* Shows why a wish is refused. The run that the job may have under way is not shown with it. */
static void view_refused(const struct cairn_cluster_job *job, const struct cairn_sentence *why,
                         struct view *view)
{
    cairn__reshard_job__init(&view->told);
    view->text = *why;
    view->told.name = job->spec.name;
    view->told.state = (char *)(uintptr_t) "refused";
    view->told.text = view->text.text;
    view->told.layout_hash = cairn_layout_number(job->layout);
}

static void view_release(struct view *view)
{
    free(view->pairs);
    free(view->list);
}

/* ---- one job ---- */

static cairn_status judge_hash(const struct cairn_cluster_job *job, const Cairn__ReshardAsk *ask,
                               struct cairn_sentence *why)
{
    if (ask->layout_hash == 0 || ask->layout_hash == cairn_layout_number(job->layout))
        return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_MISMATCH,
                      "job %s has another layout now than the one that was planned for: plan again",
                      job->spec.name);
}

static cairn_status plan(struct cairn_cluster_job *job, const Cairn__ReshardAsk *ask,
                         struct view *view, struct cairn_sentence *why)
{
    struct cairn_cluster_reshard_wish wish;
    struct cairn_cluster_reshard_target target;
    cairn_status status = cairn_cluster_reshard_wish_asked(job, ask, &wish, why);
    if (status != CAIRN_OK) return status;
    status = cairn_cluster_reshard_plan(job, &wish, &target, why);
    if (status == CAIRN_OK) {
        if (!view_plan(job, &wish, &target, view))
            status = cairn_fail(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
        cairn_cluster_reshard_target_release(&target);
    }
    cairn_cluster_reshard_wish_release(&wish);
    return status;
}

static cairn_status apply(struct cairn_cluster_job *job, const Cairn__ReshardAsk *ask,
                          struct view *view, struct cairn_sentence *why)
{
    struct cairn_cluster_reshard_wish wish;
    cairn_status status = judge_hash(job, ask, why);
    if (status == CAIRN_OK) status = cairn_cluster_reshard_wish_asked(job, ask, &wish, why);
    if (status != CAIRN_OK) return status;
    status = cairn_cluster_reshard_begin(job, &wish, why);
    cairn_cluster_reshard_wish_release(&wish);
    if (status == CAIRN_OK) view_run(job, view);
    if (status == CAIRN_OK) view->serial = job->reshard.serial;
    return status;
}

/* A drain, too, which would begin it again. */
static cairn_status cancel(struct cairn_cluster_job *job, struct cairn_sentence *why)
{
    const bool was_drain = cairn_cluster_drains_cancel(job);
    const cairn_status status = cairn_cluster_reshard_cancel(job, why);
    return was_drain ? CAIRN_OK : status;
}

static cairn_status answer_job(struct cairn_cluster_job *job, const Cairn__ReshardAsk *ask,
                               struct view *view, struct cairn_sentence *why)
{
    cairn_status status = CAIRN_OK;
    switch (ask->op) {
    case CAIRN_RESHARD_PLAN: return plan(job, ask, view, why);
    case CAIRN_RESHARD_APPLY: return apply(job, ask, view, why);
    case CAIRN_RESHARD_CANCEL: status = cancel(job, why); break;
    case CAIRN_RESHARD_STATUS: break;
    default:
        return cairn_fail(why, CAIRN_ERR_INVALID, "%" PRIu32 " is no request of a re-sharding",
                          ask->op);
    }
    if (status == CAIRN_OK) view_run(job, view);
    return status;
}

/* ---- what waits for the store ---- */

/* Runs have begun, and who asked for them hears of it when the store has them: a coordinator that ends before
 * that forgets them. Writes end in their order, so the last one has them all. */
struct cairn_cluster_reshard_asked {
    struct cairn_cluster_reshard_asked *next; /* of the cluster's list */
    struct cairn_cluster_waiter *waiter;
    uint32_t first, last;   /* the runs, by their serials */
    ProtobufCMessage *told; /* owned */
    cairn_status status;    /* of the store */
    struct cairn_sentence why;
};

static void asked_free(struct cairn_cluster_reshard_asked *asked)
{
    cairn_cluster_waiters_release(&asked->waiter);
    if (asked->told != NULL) cairn_message_free(asked->told);
    free(asked);
}

void cairn_cluster_reshard_stored(const struct cairn_cluster_saved *saved)
{
    struct cairn_cluster_reshard_asked **at = &saved->cluster->asked, *asked;
    while ((asked = *at) != NULL && (saved->number < asked->first || saved->number > asked->last))
        at = &asked->next;
    if (asked == NULL) return; // a run by policy, or of a drain
    if (saved->status != CAIRN_OK) {
        asked->status = saved->status;
        cairn_sentence_set(&asked->why, "%s", saved->why);
    }
    if (saved->number != asked->last) return;
    *at = asked->next;
    if (asked->status == CAIRN_OK)
        cairn_cluster_waiters_answer(&asked->waiter, CAIRN_MSG_RESHARD_TOLD, asked->told);
    else
        cairn_cluster_waiters_fail(&asked->waiter, asked->status, asked->why.text);
    asked_free(asked);
}

void cairn_cluster_reshard_forget(struct cairn_cluster *cluster,
                                  const struct cairn_cluster_session *session)
{
    for (struct cairn_cluster_reshard_asked *a = cluster->asked; a != NULL; a = a->next)
        cairn_cluster_waiters_forget(&a->waiter, session);
}

void cairn_cluster_reshard_asked_close(struct cairn_cluster *cluster)
{
    while (cluster->asked != NULL) {
        struct cairn_cluster_reshard_asked *asked = cluster->asked;
        cluster->asked = asked->next;
        asked_free(asked);
    }
}

static ProtobufCMessage *copy_told(const Cairn__ReshardTold *told)
{
    const size_t size = protobuf_c_message_get_packed_size(&told->base);
    uint8_t *packed = malloc(size + 1);
    if (packed == NULL) return NULL;
    protobuf_c_message_pack(&told->base, packed);
    ProtobufCMessage *copy = cairn_message_unpack(told->base.descriptor, packed, size);
    free(packed);
    return copy;
}

static bool tell_later(struct cairn_cluster_session *session, uint32_t request,
                       const Cairn__ReshardTold *told, uint32_t first, uint32_t last)
{
    struct cairn_cluster_reshard_asked *asked = calloc(1, sizeof *asked);
    if (asked == NULL) return false;
    asked->first = first;
    asked->last = last;
    asked->told = copy_told(told);
    if (asked->told == NULL || !cairn_cluster_waiters_add(&asked->waiter, session, request)) {
        asked_free(asked);
        return false;
    }
    asked->next = session->cluster->asked;
    session->cluster->asked = asked;
    return true;
}

/* ---- asked ---- */

/* At once, or when the runs that begin with it are in the store. */
static void answer(struct cairn_cluster_session *session, uint32_t request,
                   Cairn__ReshardJob **list, const struct view *views, size_t count)
{
    Cairn__ReshardTold told = CAIRN__RESHARD_TOLD__INIT;
    uint32_t first = 0, last = 0;
    told.jobs = list;
    told.n_jobs = count;
    for (size_t i = 0; i < count; i++) {
        if (views[i].serial == 0) continue;
        first = first == 0 ? views[i].serial : first;
        last = views[i].serial;
    }
    if (last == 0)
        cairn_cluster_session_send(session, CAIRN_MSG_RESHARD_TOLD, request, &told.base);
    else if (!tell_later(session, request, &told, first, last))
        cairn_cluster_session_error(session, request, CAIRN_ERR_BUSY,
                                    "it begins, and too many requests wait on this connection to "
                                    "say when it is in the store: `cairn reshard status`");
}

/* Answers a wish for all jobs; a job that refuses it is listed with the reason. */
static void answer_all(struct cairn_cluster_session *session, uint32_t request,
                       const Cairn__ReshardAsk *ask)
{
    struct view *views = calloc(CAIRN_JOBS_MAX, sizeof *views);
    Cairn__ReshardJob **list = calloc(CAIRN_JOBS_MAX, sizeof *list);
    struct cairn_cluster_job *next;
    size_t count = 0;
    if (views == NULL || list == NULL) {
        cairn_cluster_session_error(session, request, CAIRN_ERR_NO_MEMORY, "no memory");
    } else {
        for (struct cairn_cluster_job *j = session->cluster->jobs; j != NULL; j = next) {
            struct view *view = &views[count];
            struct cairn_sentence why;
            next = j->next;
            if (answer_job(j, ask, view, &why) != CAIRN_OK) view_refused(j, &why, view);
            list[count++] = &view->told;
        }
        answer(session, request, list, views, count);
        for (size_t i = 0; i < count; i++) view_release(&views[i]);
    }
    free(views);
    free(list);
}

void cairn_cluster_reshard_ask(struct cairn_cluster_session *session, uint32_t request,
                               const Cairn__ReshardAsk *ask)
{
    struct cairn_cluster_job *job = cairn_cluster_job_find(session->cluster, ask->job);
    struct cairn_sentence why;
    struct view view = { .pairs = NULL };
    if (ask->all || (ask->job[0] == '\0' && ask->op == CAIRN_RESHARD_STATUS)) {
        answer_all(session, request, ask);
        return;
    }
    const cairn_status status =
        job == NULL
            ? cairn_fail(&why, CAIRN_ERR_NOT_FOUND,
                         "there is no job \"%.128s\"; `cairn job list` shows those there are",
                         ask->job)
            : answer_job(job, ask, &view, &why);
    if (status == CAIRN_OK) {
        Cairn__ReshardJob *one = &view.told;
        answer(session, request, &one, &view, 1);
    } else {
        cairn_cluster_session_error(session, request, status, why.text);
    }
    view_release(&view);
}
