#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/plan.h"
#include "server/coordinator/cluster.h"

/* ==== what operators say ==== */

static struct coord_shard_entry *entry_named(const struct coord *cluster, const char *name,
                                             struct sentence *why)
{
    struct coord_shard_entry *entry = coord_shard_find(cluster, name);
    if (entry == NULL)
        sentence_set(why, "there is no shard \"%.128s\"; `cairn cluster status` lists them", name);
    return entry;
}

static const char *why_not(const struct coord_shard_entry *entry)
{
    if (entry->leaving) return "is being drained";
    if (!coord_shard_stays(entry)) return "is not here";
    if (coord_shard_is_standby(entry->session->cluster, entry))
        return "is a standby, which takes the place of its shard: start it without "
               "shard.standby_of, or add another one";
    return coord_shard_apart(entry) ? CAIRN_SHARD_APART_TEXT : "is unfit, since its device failed";
}

static bool is_named(char *const *names, size_t count, const struct coord_shard_entry *entry)
{
    size_t i = 0;
    while (i < count && strcmp(names[i], entry->name) != 0) i++;
    return i < count;
}

static cairn_status take_names(const struct coord_job *job, const Cairn__ReshardAsk *ask,
                               struct coord_reshard_wish *wish, struct sentence *why)
{
    for (size_t i = 0; i < ask->n_add; i++) {
        struct coord_shard_entry *entry = entry_named(job->cluster, ask->add[i], why);
        if (entry == NULL) return CAIRN_ERR_NOT_FOUND;
        if (!coord_shard_fits(entry, &job->spec))
            return fail_with(why, CAIRN_ERR_NOT_READY, "nothing can go to shard %s, which %s",
                             entry->name, why_not(entry));
        coord_reshard_wish_add(wish, entry);
    }
    for (size_t i = 0; i < ask->n_drain; i++) {
        const struct coord_shard_entry *entry = entry_named(job->cluster, ask->drain[i], why);
        if (entry == NULL) return CAIRN_ERR_NOT_FOUND;
        if (is_named(ask->add, ask->n_add, entry))
            return fail_with(why, CAIRN_ERR_INVALID,
                             "shard %s is to be added and drained: give only one", entry->name);
        struct coord_joiner *there = coord_reshard_wish_find(wish, entry);
        if (there == NULL && ask->all) continue;
        if (there == NULL)
            return fail_with(why, CAIRN_ERR_INVALID,
                             "job %s has no part on shard %s: there is nothing to drain",
                             job->spec.name, entry->name);
        there->weight = 0;
    }
    if (coord_reshard_wish_owners(wish) > 0) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_INVALID,
                     "no shard would be left for job %s: add another one first", job->spec.name);
}

/* Brings the number of shards that would own something to ask->shards. If there are too many, takes
 * out the last ones, but none that is to be added. If there are too few, adds shards, in the order
 * of their names. */
static cairn_status take_count(const struct coord_job *job, const Cairn__ReshardAsk *ask,
                               struct coord_reshard_wish *wish, struct sentence *why)
{
    uint32_t owners = coord_reshard_wish_owners(wish), here = 0;
    for (uint32_t i = wish->count; i-- > 0 && owners > ask->shards;) {
        struct coord_joiner *shard = &wish->shards[i];
        if (shard->weight <= 0 || is_named(ask->add, ask->n_add, shard->entry)) continue;
        shard->weight = 0;
        owners--;
    }
    if (owners > ask->shards)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "%zu shards are to be added, and %" PRIu32
                         " are to have job %s in all: give a higher number",
                         ask->n_add, ask->shards, job->spec.name);
    for (struct coord_shard_entry *s = job->cluster->shards; s != NULL; s = s->next) {
        here += coord_shard_fits(s, &job->spec);
        const struct coord_joiner *there = coord_reshard_wish_find(wish, s);
        if (owners >= ask->shards || !coord_shard_fits(s, &job->spec) ||
            is_named(ask->drain, ask->n_drain, s) || (there != NULL && there->weight > 0))
            continue;
        coord_reshard_wish_add(wish, s);
        owners++;
    }
    if (owners == ask->shards) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_INVALID,
                     "job %s cannot be spread over %" PRIu32 " shards: %" PRIu32
                     " are here that it could have, of %" PRIu32,
                     job->spec.name, ask->shards, owners, here);
}

static cairn_status take_weights(const struct coord_job *job, const Cairn__ReshardAsk *ask,
                                 struct coord_reshard_wish *wish, struct sentence *why)
{
    for (size_t i = 0; i < ask->n_weights; i++) {
        const Cairn__ShardWeight *w = ask->weights[i];
        if (!isfinite(w->weight) || w->weight <= 0 || w->weight > 1e6)
            return fail_with(why, CAIRN_ERR_INVALID,
                             "the weight of shard %.128s is %g: give a number above 0, at most "
                             "1000000; --drain takes everything off a shard",
                             w->name, w->weight);
        const struct coord_shard_entry *entry = entry_named(job->cluster, w->name, why);
        if (entry == NULL) return CAIRN_ERR_NOT_FOUND;
        struct coord_joiner *there = coord_reshard_wish_find(wish, entry);
        if (there == NULL || there->weight <= 0)
            return fail_with(why, CAIRN_ERR_INVALID,
                             "shard %s has a weight, and job %s is not to be on it: add it, too",
                             entry->name, job->spec.name);
        there->weight = w->weight;
    }
    return CAIRN_OK;
}

/* Reads an operator's wish. If something is wrong with the wish, returns CAIRN_ERR_INVALID,
 * CAIRN_ERR_NOT_FOUND, CAIRN_ERR_NOT_READY or CAIRN_ERR_NO_MEMORY, and says what is wrong. */
static cairn_status reshard_wish_asked(const struct coord_job *job, const Cairn__ReshardAsk *ask,
                                       struct coord_reshard_wish *wish_out, struct sentence *why)
{
    if (!isfinite(ask->pause) || ask->pause < 0 || ask->pause > 100)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "a pause of %g: give a part of a step from 0 to 100, as 0.1", ask->pause);
    cairn_status status = coord_reshard_wish_present(job, wish_out);
    if (status != CAIRN_OK) return fail_with(why, status, "the coordinator is out of memory");
    wish_out->pause = ask->pause;
    if (ask->shards == 0 && ask->n_add == 0 && ask->n_drain == 0)
        coord_reshard_wish_all(job, wish_out);
    status = take_names(job, ask, wish_out, why);
    if (status == CAIRN_OK && ask->shards > 0) status = take_count(job, ask, wish_out, why);
    if (status == CAIRN_OK) status = take_weights(job, ask, wish_out, why);
    if (status != CAIRN_OK) coord_reshard_wish_release(wish_out);
    return status;
}

/* ==== reshard admin ==== */

/* Answers operators about re-shardings: plans, begins, shows and cancels them. See reshard.h. */

/* ---- what is told ---- */

#define STEPS_A_SLICE 2 /* a slice is prepared in one step, and moves in another */

/* Estimates how many seconds a run to the target takes. While the job trains, a slice takes two steps, and if
 * slices grow, the run is shorter. 0: not known. */
static double expected_s(const struct coord_job *job, const struct coord_reshard_target *target)
{
    const double rate = job->reshard.rate, median_us = coord_pace_median(&job->rounds.pace);
    if (!coord_pace_rests(job)) return target->slices * STEPS_A_SLICE * median_us * 1e-6;
    return rate > 0 ? (double)target->report->plan.moved_bytes / rate * 1e-6 : 0;
}

/* Estimates by how many seconds, at most, a step becomes longer. */
static double expected_pause_s(const struct coord_job *job, double pause)
{
    if (coord_pace_rests(job)) return 0; // nobody makes steps
    return coord_reshard_pause(pause) * coord_pace_median(&job->rounds.pace) * 1e-6;
}

/* The answer to a request, which is about one or several jobs. */
struct reply {
    struct coord_session *session;
    uint32_t request;
    struct coord_answer answer;
    Cairn__ReshardTold told;
    uint32_t first, last; /* serials of the runs that the request begins; 0: no run begins */
};

static const char *state_name(enum coord_reshard_state state)
{
    static const char *const names[] = { "none", "moving", "done", "canceled", "failed" };
    return names[state];
}

/* If the slice under way waits for this shard, says so. */
static void say_slice_waiting(const struct coord_reshard *r, uint32_t shard, const char *name,
                              struct sentence *out)
{
    if (r->move == NULL || !move_waits_for(r->move, shard)) return;
    sentence_set(out, "it waits for shard %s%s", name,
                 move_stage_of(r->move) == CAIRN_MOVE_PREPARING ? " to make room for what comes"
                                                                : " to have all that it owns");
}

static void say_waiting(const struct coord_job *job, struct sentence *out)
{
    const struct coord_reshard *r = &job->reshard;
    *out = r->progress.text;
    if (!r->running) return;
    const char *until = coord_operation_waits(job, CAIRN_OPERATION_RESHARD);
    if (until != NULL)
        sentence_set(out, "it waits %s", until);
    else if (r->steps.at != NULL)
        sentence_set(out, "it waits for %s", r->steps.at->doing);
    for (uint32_t i = 0; i < r->joiner_count; i++)
        if (!coord_shard_obeys(r->joiners[i].entry))
            sentence_set(out, "it waits for shard %s, which is not here",
                         r->joiners[i].entry->name);
    CAIRN_EACH_SHARD (job, i) {
        const char *name = job->shards[i].entry->name;
        say_slice_waiting(r, i, name, out);
        if (!job->shards[i].up) sentence_set(out, "it waits for shard %s", name);
    }
}

/* Counts the shards that will hold the job after the run. Leaves out the shards lost since the run
 * began. */
static uint32_t count_staying(const struct coord_job *job)
{
    const struct coord_reshard *r = &job->reshard;
    uint32_t count = 0;
    CAIRN_EACH_SHARD (job, i) count += job->shards[i].weight > 0;
    for (uint32_t i = 0; i < r->joiner_count; i++) count += r->joiners[i].weight > 0;
    return count;
}

static void view_run(const struct coord_job *job, struct reply *reply, Cairn__ReshardJob *out)
{
    const struct coord_reshard_progress *progress = &job->reshard.progress;
    struct sentence text;
    say_waiting(job, &text);
    out->name = job->spec.name;
    out->state = wire_text(
        state_name(job->reshard.running ? CAIRN_RESHARD_MOVING : progress->state));
    out->text = coord_answer_text(&reply->answer, "%s", text.text);
    out->layout_hash = layout_number(job->layout);
    out->least_bytes = progress->least_bytes;
    out->all_bytes = progress->all_bytes;
    out->moved_bytes = progress->moved_bytes;
    out->heaviest_before = progress->heaviest_before;
    out->heaviest_after = progress->heaviest_after;
    out->slices = progress->slices > progress->slice ? progress->slices : progress->slice;
    out->slice = progress->slice;
    out->shards_before = progress->shards_before;
    out->shards_after = job->reshard.running ? count_staying(job) : progress->shards_after;
    if (progress->begun_ms != 0)
        out->elapsed_ms = (job->reshard.running ? coord_now_ms(job->cluster) : progress->ended_ms) -
                          progress->begun_ms;
    if (progress->median_us > 0) out->worst_step = (double)progress->worst_us / progress->median_us;
    out->state_bytes = progress->state_bytes;
    out->state_us = progress->state_us;
    out->prepare_us = progress->stage_us[CAIRN_MOVE_PREPARING];
    out->cut_us = progress->stage_us[CAIRN_MOVE_CUTTING];
    out->move_us = progress->stage_us[CAIRN_MOVE_MOVING];
    out->rests = coord_pace_rests(job);
}

static void view_plan(const struct coord_job *job, const struct coord_reshard_wish *wish,
                      const struct coord_reshard_target *target, struct reply *reply,
                      Cairn__ReshardJob *out)
{
    const struct reshard_report *report = target->report;
    view_run(job, reply, out);
    for (size_t i = 0; i < report->pair_count; i++) {
        Cairn__ReshardPair *pair = coord_answer_add(&reply->answer, &out->base, "pairs");
        if (pair == NULL) return;
        pair->from = wish->shards[report->pairs[i].from].entry->name;
        pair->to = wish->shards[report->pairs[i].to].entry->name;
        pair->bytes = report->pairs[i].bytes;
    }
    out->text = wire_text("");
    out->state = wire_text("planned");
    out->least_bytes = report->plan.moved_bytes_bound;
    out->all_bytes = report->plan.moved_bytes;
    out->moved_bytes = out->elapsed_ms = out->slice = 0;
    out->heaviest_before = report->heaviest_before;
    out->heaviest_after = report->heaviest_after;
    out->pieces_before = layout_pieces(job->layout);
    out->pieces_after = layout_pieces(target->layout);
    out->pieces_fresh = report->plan.pieces_fresh;
    out->afresh = report->plan.afresh_count;
    out->slices = target->slices;
    out->shards_before = job->entry_count;
    out->shards_after = coord_reshard_wish_owners(wish);
    out->worst_step = 0;
    out->expected_s = expected_s(job, target);
    out->expected_pause_s = expected_pause_s(job, wish->pause);
}

/* Shows why a wish is refused. If the job has a run under way, this run is not shown. */
static void view_refused(const struct coord_job *job, const struct sentence *why,
                         struct reply *reply, Cairn__ReshardJob *out)
{
    cairn__reshard_job__init(out); // drops what was filled in before the refusal
    out->name = job->spec.name;
    out->state = wire_text("refused");
    out->text = coord_answer_text(&reply->answer, "%s", why->text);
    out->layout_hash = layout_number(job->layout);
}

/* ---- one job ---- */

static cairn_status judge_hash(const struct coord_job *job, const Cairn__ReshardAsk *ask,
                               struct sentence *why)
{
    if (ask->layout_hash == 0 || ask->layout_hash == layout_number(job->layout)) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_MISMATCH,
                     "job %s has another layout now than the one that was planned for: plan again",
                     job->spec.name);
}

static cairn_status plan_asked(struct coord_job *job, const Cairn__ReshardAsk *ask,
                               struct reply *reply, Cairn__ReshardJob *out, struct sentence *why)
{
    struct coord_reshard_wish wish;
    struct coord_reshard_target target;
    CAIRN_TRY(reshard_wish_asked(job, ask, &wish, why));
    cairn_status status = coord_reshard_plan(job, &wish, &target, why);
    if (status == CAIRN_OK) {
        view_plan(job, &wish, &target, reply, out);
        coord_reshard_target_release(&target);
    }
    coord_reshard_wish_release(&wish);
    return status;
}

static cairn_status apply_asked(struct coord_job *job, const Cairn__ReshardAsk *ask,
                                struct reply *reply, Cairn__ReshardJob *out, struct sentence *why)
{
    struct coord_reshard_wish wish;
    cairn_status status = judge_hash(job, ask, why);
    if (status == CAIRN_OK) status = reshard_wish_asked(job, ask, &wish, why);
    if (status != CAIRN_OK) return status;
    status = coord_reshard_begin(job, &wish, why);
    coord_reshard_wish_release(&wish);
    if (status != CAIRN_OK) return status;
    coord_waiters_note_end(&job->reshard.ends, reply->session, reply->request);
    view_run(job, reply, out);
    if (reply->first == 0) reply->first = job->reshard.serial;
    reply->last = job->reshard.serial;
    return CAIRN_OK;
}

/* Cancels the job's run, and also the drains of the job's shards, because a drain would begin the
 * run again. */
static cairn_status cancel_asked(struct coord_job *job, struct sentence *why)
{
    const bool was_drain = coord_drains_cancel(job);
    const cairn_status status = coord_reshard_cancel(job, why);
    return was_drain ? CAIRN_OK : status;
}

static cairn_status answer_job(struct coord_job *job, const Cairn__ReshardAsk *ask,
                               struct reply *reply, Cairn__ReshardJob *out, struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    switch (ask->op) {
    case CAIRN_RESHARD_PLAN: return plan_asked(job, ask, reply, out, why);
    case CAIRN_RESHARD_APPLY: return apply_asked(job, ask, reply, out, why);
    case CAIRN_RESHARD_CANCEL: status = cancel_asked(job, why); break;
    case CAIRN_RESHARD_STATUS: break;
    default:
        return fail_with(why, CAIRN_ERR_INVALID, "%" PRIu32 " is no request of a re-sharding",
                         ask->op);
    }
    if (status == CAIRN_OK) view_run(job, reply, out);
    return status;
}

/* ---- asked ---- */

/* Answers at once, or, if the request begins runs, when all these runs are in the store. */
static void send_reply(struct coord_session *session, uint32_t request, struct reply *reply)
{
    if (reply->last == 0 || reply->answer.failed) {
        coord_answer_send(&reply->answer, session, request, CAIRN_MSG_RESHARD_TOLD,
                          &reply->told.base);
        return;
    }
    if (!coord_reshard_tell_later(session, request, &reply->told, reply->first, reply->last))
        coord_session_error(session, request, CAIRN_ERR_BUSY,
                            "it begins, but too many requests wait on this connection to say when "
                            "it is in the store: see `cairn reshard status`");
    coord_answer_release(&reply->answer);
}

/* Answers a wish for all jobs. A job for which the wish is refused is listed with the reason. */
static void answer_all(struct coord_session *session, uint32_t request,
                       const Cairn__ReshardAsk *ask, struct reply *reply)
{
    struct coord_job *next;
    for (struct coord_job *j = session->cluster->jobs; j != NULL; j = next) {
        Cairn__ReshardJob *out = coord_answer_add(&reply->answer, &reply->told.base, "jobs");
        struct sentence why;
        next = j->next;
        if (out == NULL) break;
        if (answer_job(j, ask, reply, out, &why) != CAIRN_OK) view_refused(j, &why, reply, out);
    }
    send_reply(session, request, reply);
}

static cairn_status on_reshard_ask(struct coord_session *session, uint32_t request, const void *any,
                                   struct sentence *why)
{
    const Cairn__ReshardAsk *ask = any;
    struct coord_job *job = coord_job_find(session->cluster, ask->job);
    struct reply reply = { .session = session,
                           .request = request,
                           .told = CAIRN__RESHARD_TOLD__INIT };
    if (ask->all || (ask->job[0] == '\0' && ask->op == CAIRN_RESHARD_STATUS)) {
        answer_all(session, request, ask, &reply);
        return CAIRN_OK;
    }
    if (coord_job_named(session->cluster, ask->job, why) == NULL) return CAIRN_ERR_NOT_FOUND;
    Cairn__ReshardJob *out = coord_answer_add(&reply.answer, &reply.told.base, "jobs");
    const cairn_status status = out != NULL ? answer_job(job, ask, &reply, out, why)
                                            : fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    if (status == CAIRN_OK)
        send_reply(session, request, &reply);
    else
        coord_answer_release(&reply.answer);
    return status;
}

/* ==== by policy ==== */

/* Spreads the job as wished, if the heaviest shard now has more than rebalance_above times its
 * share, and the plan moves anything. */
static cairn_status spread_if_uneven(struct coord_job *job, const struct coord_reshard_wish *wish,
                                     struct sentence *why)
{
    struct coord_reshard_target target;
    CAIRN_TRY(coord_reshard_plan(job, wish, &target, why));
    const double above = (double)job->cluster->options->rebalance_above / 1000;
    const bool uneven = target.report->heaviest_before > above &&
                        target.report->plan.moved_bytes > 0;
    coord_reshard_target_release(&target);
    return uneven ? coord_reshard_begin(job, wish, why) : CAIRN_OK;
}

/* If shards have connected since the job was last spread, spreads the job over all shards that it
 * may have. If this is refused, each tick tries again, but only the first refusal is logged. */
static void spread_job(struct coord_job *job)
{
    struct coord_reshard *r = &job->reshard;
    const uint64_t entries = job->cluster->arrivals;
    struct coord_reshard_wish wish;
    struct sentence why;
    if (job->state != CAIRN_CLUSTER_JOB_RUNNING || r->running || !coord_job_shards_up(job) ||
        !job->rounds.heard || r->arrivals_seen == entries ||
        coord_reshard_wish_present(job, &wish) != CAIRN_OK)
        return;
    coord_reshard_wish_all(job, &wish);
    const cairn_status status = spread_if_uneven(job, &wish, &why);
    coord_reshard_wish_release(&wish);
    if (status == CAIRN_OK)
        r->arrivals_seen = entries;
    else if (r->arrivals_refused != entries)
        log_warn("job %s is not spread over the shards that came: %s", job->spec.name, why.text);
    if (status != CAIRN_OK) r->arrivals_refused = entries;
}

void coord_reshard_spread(struct coord *cluster)
{
    const char *policy = cluster->options->reshard;
    if (policy == NULL || strcmp(policy, "on_join") != 0) return;
    for (struct coord_job *j = cluster->jobs; j != NULL; j = j->next) spread_job(j);
}

/* ==== messages ==== */

const struct coord_row coord_reshard_asked_rows[] = {
    { CAIRN_MSG_RESHARD_ASK, CAIRN_FROM_ADMIN, .asks = on_reshard_ask, .verb = "reshard",
      .awaits = CAIRN_AWAITS_REPORTS, .job = "job" },
    { 0 },
};
