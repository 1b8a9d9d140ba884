/* Makes the one decision of a round from the shards' sums. The decision does not depend on the order in
 * which shards and workers report. */
#include "server/core/round_state.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "proto/base/mutant.h"

static bool round_missed_note(struct round_machine *core, const struct round_event *event);
static bool round_missed_give(struct round_machine *core, bool applies, struct payload *head);
static void round_end_row(struct round_machine *core);
static void round_count_skip(struct round_machine *core, bool is_hopeless);

static cairn_status add_sums(struct step_sums *sums, const struct step_sums *more)
{
    if (more->nonfinite > UINT64_MAX - sums->nonfinite) return CAIRN_ERR_INVALID;
    sums->nonfinite += more->nonfinite;
    if (MUTANT(5)) {
        for (int i = 0; i < CAIRN_EXACT_LIMBS; i++)
            sums->sum_squares.limb[i] += more->sum_squares.limb[i];
        return CAIRN_OK;
    }
    return exact_add(&sums->sum_squares, &more->sum_squares);
}

void round_on_reduced(struct round_machine *core, const struct round_event *event,
                      struct round_actions *actions)
{
    if (core->stage != CAIRN_ROUND_OPEN || event->epoch != core->epoch.number ||
        event->round != core->open.number)
        return;
    // The round will be void. A standby that has taken a place may report the sums of a round in which it was
    // a standby: those are of its owner, and their weight is not.
    if (core->epoch.needed && !MUTANT(118)) return;
    struct shard *shard = &core->shards[event->shard];
    if (shard->reduced) return;
    if (core->open.reduced_count > 0 && event->sums->weight != core->open.sums.weight) {
        round_fail(core, event->shard, "its sum of weights differs from the other shards'",
                   actions);
        return;
    }
    if (add_sums(&core->open.sums, event->sums) != CAIRN_OK) {
        round_fail(core, event->shard, "its sum of squares is not possible", actions);
        return;
    }
    if (!round_missed_note(core, event)) {
        round_fail(core, event->shard, "it names a tensor that the job does not have", actions);
        return;
    }
    core->open.sums.weight = event->sums->weight;
    shard->reduced = true;
    core->open.reduced_count++;
}

/* True if the loss scale cannot fall: it is dynamic and at its minimum, or it is fixed. */
static bool scale_is_least(const struct round_machine *core)
{
    return !core->config.scaling.dynamic || core->scaling.scale <= core->config.scaling.min;
}

/* Adapts a dynamic loss scale as torch.cuda.amp.GradScaler does: a skip halves the scale, and growth_rounds
 * good rounds in a row double it. */
static void adapt_loss_scale(struct round_machine *core, bool applied)
{
    const struct round_scaling *s = &core->config.scaling;
    if (!s->dynamic) return;
    core->scaling.good_rounds = applied ? core->scaling.good_rounds + 1 : 0;
    if (!applied)
        core->scaling.scale = core->scaling.scale / 2 > s->min ? core->scaling.scale / 2 : s->min;
    if (core->scaling.good_rounds < s->growth_rounds) return;
    core->scaling.good_rounds = 0;
    core->scaling.scale = core->scaling.scale * 2 < s->max ? core->scaling.scale * 2 : s->max;
}

double round_group_lr(const struct round_terms *terms, const double *driven, uint32_t group,
                      uint64_t step)
{
    const double lr = terms->groups[group].lr;
    if (terms->schedules == NULL) return lr;
    const struct schedule *schedule = &terms->schedules[group];
    if (schedule->kind == CAIRN_SCHEDULE_DRIVEN) return driven[group];
    return schedule_lr(schedule, lr, step);
}

/* Returns the hyper-parameters of a group in the open round. */
static struct group_hyper round_hyper(const struct round_machine *core, uint32_t group)
{
    const struct round_terms *terms = &core->config.terms;
    struct group_hyper hyper = terms->groups[group];
    hyper.lr = round_group_lr(terms, core->open.driven, group, core->version.step);
    return hyper;
}

static void compute_scalars(struct round_machine *core, uint32_t grad_scale)
{
    const struct round_terms *terms = &core->config.terms;
    for (uint32_t g = 0; g < core->config.group_count; g++) {
        const struct group_hyper hyper = round_hyper(core, g);
        const cairn_status status = group_scalars_of(&hyper, core->version.step + 1, grad_scale,
                                                     &core->scalars[g]);
        // the spec of the groups and the driven rates were checked before
        assert(status == CAIRN_OK);
        if (terms->frozen != NULL && terms->frozen[g])
            core->scalars[g].flags |= CAIRN_SCALAR_FROZEN;
    }
}

/* True if the sums allow an update. Then `head` and core->scalars are set for this update. */
static bool judge_sums(struct round_machine *core, struct payload *head)
{
    struct update_norm norm;
    if (core->open.sums.nonfinite > 0) return false;
    if (update_norm_of(&core->open.sums.sum_squares, core->open.sums.weight, core->scaling.scale,
                       core->config.terms.clip_norm, &norm) != CAIRN_OK)
        return false;
    head->grad_norm = norm.grad_norm;
    head->clip_scale = norm.clip_scale;
    head->finite = true;
    head->fail = false;
    head->group_count = core->config.group_count;
    compute_scalars(core, norm.grad_scale);
    return true;
}

/* Sends the decision in `last` to all shards. */
static void send_decision(struct round_machine *core, struct round_actions *actions)
{
    core->stage = CAIRN_ROUND_DECIDED;
    core->open.deadline_ms = 0;
    for (uint32_t s = 0; s < core->config.shard_count; s++) core->shards[s].published = false;
    struct round_action *action = round_act(actions, CAIRN_ROUND_DECIDE);
    action->epoch = core->epoch.number;
    action->decision = &core->last;
}

bool round_state_there(const struct round_machine *core)
{
    const bool awaited = core->config.client_state_max > 0 || core->driven.count > 0;
    if (!awaited || core->open.writing || MUTANT(24)) return true;
    for (uint32_t i = 0; i < core->worker_count; i++)
        if (core->workers[i].contributor && core->workers[i].dense == 0)
            return core->workers[i].committed;
    return false;
}

/* Keeps the client state of the version before the decision, which lies in the last payload. */
static void keep_state(const struct round_machine *core, struct payload *head)
{
    struct payload last;
    head->state_bytes = 0;
    if (core->last.payload_bytes == 0) return;
    const cairn_status status = payload_decode(core->last.payload, core->last.payload_bytes, &last);
    // the payload was made in this file, or take_job_state has decoded it
    assert(status == CAIRN_OK);
    head->state = last.state;
    head->state_bytes = last.state_bytes;
}

static void give_driven(const struct round_machine *core, struct payload *head)
{
    head->driven = core->driven.rates;
    head->driven_count = core->driven.count;
}

/* Puts the missed steps into the payload. If they do not fit, the job fails, and the function returns
 * false. (The coordinator's amend.c refuses amendments that may lead to this.) */
static bool give_missed(struct round_machine *core, bool applies, struct payload *head,
                        struct round_actions *actions)
{
    if (round_missed_give(core, applies, head)) return true;
    round_fail(core, 0, "its tensors have more different update counts than can be sent", actions);
    return false;
}

/* Decides a write: the planes that the writer sent become valid. In the job's state only the generation and
 * the count of skips in a row change; the count becomes 0. */
static void decide_write(struct round_machine *core, struct round_actions *actions)
{
    struct payload head = { .clip_scale = 1,
                            .loss_scale = core->scaling.scale,
                            .good_rounds = core->scaling.good_rounds,
                            .finite = true };
    round_end_row(core);
    head.skips = core->skips;
    keep_state(core, &head);
    give_driven(core, &head);
    if (!give_missed(core, false, &head, actions)) return;
    const size_t bytes = payload_encode(&head, core->scalars, core->payload.bytes);
    core->last = (struct decision) {
        .kind = CAIRN_DECISION_WRITE,
        .round = core->open.number,
        .version_after = { core->version.generation + 1, core->version.step },
        .payload = core->payload.bytes,
        .payload_bytes = bytes,
    };
    send_decision(core, actions);
}

void round_decide(struct round_machine *core, struct round_actions *actions)
{
    if (core->open.writing) {
        decide_write(core, actions);
        return;
    }
    struct payload head = { .grad_norm = (double)NAN, .clip_scale = 1 };
    head.fail = core->config.fail_nonfinite;
    if (core->config.group_count > 0)
        head.lr = round_group_lr(&core->config.terms, core->open.driven, 0, core->version.step);
    const bool apply = judge_sums(core, &head);
    const bool counted = core->open.sums.weight > 0 || core->open.sums.nonfinite > 0;
    if (apply)
        round_end_row(core);
    else
        round_count_skip(core, counted && scale_is_least(core));
    if (counted) {
        adapt_loss_scale(core, apply);
    } else {
        head.finite = true;
        head.fail = false; // no worker gave a weight above 0, so the gradients are not at fault
    }
    head.skips = core->skips;
    head.loss_scale = core->scaling.scale;
    head.good_rounds = core->scaling.good_rounds;
    head.state = core->open.state;
    head.state_bytes = core->open.state_bytes;
    if (!apply && !MUTANT(23)) keep_state(core, &head);
    if (apply || MUTANT(52))
        memcpy(core->driven.rates, core->open.driven,
               core->driven.count * sizeof *core->driven.rates);
    give_driven(core, &head);
    if (!give_missed(core, apply, &head, actions)) return;
    const size_t bytes = payload_encode(&head, core->scalars, core->payload.bytes);

    core->last = (struct decision) {
        .kind = apply ? CAIRN_DECISION_APPLY : CAIRN_DECISION_SKIP,
        .round = core->open.number,
        .version_after = core->version,
        .payload = core->payload.bytes,
        .payload_bytes = bytes,
    };
    if (apply || MUTANT(10)) core->last.version_after.step++;
    send_decision(core, actions);
}

/* ==== round skips ==== */

/* Halts a job until an operator or a worker acts. There are two causes here, and the loss of a worker is a
 * third (round_members.c).
 *
 * Skipped rounds halt the job when there are too many in a row. A skip that lowers the loss scale is
 * normal, and does not count. If the loss scale is at its least, or fixed, a skip means that something is
 * wrong with the model or its data, and the next round is no more likely to succeed. The counts travel in
 * the payload of the decisions, so that the next incarnation continues them.
 *
 * Results that are not finite halt the job if the policy says so. A shard reports such results with the
 * version that it publishes, and again in each epoch, so that the next incarnation learns of them. An
 * amendment of the terms does not repair such results, but a write does. */

void round_take_skips(struct round_machine *core, const struct skips *told)
{
    core->skips = told != NULL && !MUTANT(44) ? *told : (struct skips) { 0 };
    if (core->last.round == 0) round_end_row(core);
}

/* Ends the row of skipped rounds, because a round was applied or written. */
static void round_end_row(struct round_machine *core)
{
    core->skips.in_row = 0;
    core->skips.revision = 0;
}

/* Counts the current round as a skip. is_hopeless: the loss scale cannot fall. */
static void round_count_skip(struct round_machine *core, bool is_hopeless)
{
    const uint64_t revision = core->config.terms.revision;
    core->skips.all++;
    if (!is_hopeless) return;
    core->skips.in_row = core->skips.revision == revision ? core->skips.in_row + 1 : 1;
    core->skips.revision = revision;
}

bool round_halted_of_results(const struct round_machine *core)
{
    bool any = false;
    if (!core->config.halt_nonfinite) return false;
    for (uint32_t s = 0; s < core->config.shard_count; s++) any |= core->shards[s].nonfinite;
    return any;
}

bool round_halted(const struct round_machine *core)
{
    const struct skips *skips = &core->skips;
    if (round_halted_of_results(core) || round_halted_of_loss(core)) return true;
    if (core->config.skips_max == 0 || skips->in_row < core->config.skips_max || MUTANT(45))
        return false;
    return skips->revision == core->terms_newest.revision || MUTANT(46);
}

bool round_refuse(struct round_machine *core, struct round_actions *actions)
{
    bool any = false;
    if (!round_halted(core)) return false;
    for (uint32_t i = 0; i < core->worker_count; i++) {
        struct worker *worker = &core->workers[i];
        if (!worker->wants) continue;
        worker->wants = false;
        round_act(actions, CAIRN_ROUND_WORKER_REFUSED)->member = worker->id;
        any = true;
    }
    return any;
}

/* ==== round late ==== */

/* The step's deadline. Only the shards know who delays the open round: a worker may have reported its
 * commit although none of its data arrives, and a worker that has not committed may be waiting for another
 * worker. So every shard is asked from which contributors it lacks something, and which of these
 * contributors wait at the shard for others. A contributor waits for others if all that it can send now has
 * arrived, and contributors that come before it are missing. The missing contributor with the least
 * (micro-batch, rank) cannot be waiting for others. So either a guilty worker is found, or the shards are
 * still working. */

#define NO_MICRO UINT32_MAX

static void drop_worker(struct round_machine *core, struct worker *worker,
                        struct round_actions *actions)
{
    struct round_action *action = round_act(actions, CAIRN_ROUND_WORKER_FENCE);
    action->member = worker->id;
    action->status = CAIRN_ERR_TIMEOUT;
    action->round = core->open.number;
    action->shard = worker->lacking_shard;
    action->world = worker->lacked_by;
    round_note_lost(core);
    round_remove_worker(core, worker);
}

static void ask_shards(struct round_machine *core, struct round_actions *actions)
{
    core->open.asking = true;
    for (uint32_t s = 0; s < core->config.shard_count; s++) {
        core->shards[s].lacks_told = false;
        core->shards[s].lacks = 0;
    }
    for (uint32_t i = 0; i < core->worker_count; i++) {
        core->workers[i].lacks = core->workers[i].waits = NO_MICRO;
        core->workers[i].lacked_by = 0;
    }
    struct round_action *action = round_act(actions, CAIRN_ROUND_ASK_LACKS);
    action->epoch = core->epoch.number;
    action->round = core->open.number;
}

/* ---- who is at work on something else ---- */

static bool is_paused(const struct worker *worker)
{
    return worker->paused_ms != 0 && !MUTANT(49);
}

/* Ends a worker's pause. The worker's contribution is due again, so the deadline begins anew. */
static void end_pause(struct round_machine *core, struct worker *worker)
{
    worker->paused_ms = 0;
    if (worker->contributor && core->open.deadline_ms != 0)
        core->open.deadline_ms = core->now_ms + core->config.step_deadline_ms;
}

void round_on_pause(struct round_machine *core, const struct round_event *event)
{
    struct worker *worker = round_find_worker(core, event->member);
    if (worker == NULL) return;
    if (event->wait_ms > 0)
        worker->paused_ms = core->now_ms + event->wait_ms;
    else if (worker->paused_ms != 0)
        end_pause(core, worker);
}

void round_end_pauses(struct round_machine *core)
{
    for (uint32_t i = 0; i < core->worker_count; i++) {
        struct worker *worker = &core->workers[i];
        if (worker->paused_ms != 0 && core->now_ms >= worker->paused_ms) end_pause(core, worker);
    }
}

/* True if the worker is late. Called at the deadline of a write, or of a step in which every shard has its
 * sums. In a write the only contributor is late. In a step the decision waits only for the COMMIT of the
 * worker at place 0, which brings the client state and the driven rates. A paused worker is never late. */
static bool is_late(const struct round_machine *core, const struct worker *worker)
{
    if (!worker->contributor || is_paused(worker)) return false;
    return core->open.writing || (worker->dense == 0 && !worker->committed);
}

void round_on_deadline(struct round_machine *core, struct round_actions *actions)
{
    core->open.deadline_ms = core->now_ms + core->config.step_deadline_ms;
    if (!core->open.writing && core->open.reduced_count < core->layout.serving) {
        ask_shards(core, actions);
        return;
    }
    for (uint32_t i = core->worker_count; i-- > 0;) {
        struct worker *worker = &core->workers[i];
        worker->lacked_by = 0;
        if (is_late(core, worker)) drop_worker(core, worker, actions);
    }
}

/* ---- the answers ---- */

static void note_lack(struct round_machine *core, uint32_t shard, const struct round_lack *lack)
{
    if (!lack->relayed && !lack->waits) core->shards[shard].lacks++;
    struct worker *worker = round_find_worker(core, lack->member);
    // If the member is a relay, the relay's own shard reports which workers the relay lacks.
    if (worker == NULL || !worker->contributor) return;
    uint32_t *least = lack->waits && !MUTANT(39) ? &worker->waits : &worker->lacks;
    if (lack->micro < *least) *least = lack->micro;
    if (lack->waits) return;
    worker->lacking_shard = shard;
    worker->lacked_by++;
}

/* True if some shard lacks something of the worker, and up to that micro-batch the worker waits for
 * nobody. */
static bool is_lacking(const struct worker *worker)
{
    if (!worker->contributor || worker->lacks == NO_MICRO) return false;
    return worker->waits == NO_MICRO || worker->waits > worker->lacks;
}

/* Returns the first micro-batch in which a worker is lacking. A worker that is lacking only in a later
 * micro-batch may be waiting for the first one, because a relay takes no more data while an owner cannot
 * take the relay's sums yet. */
static uint32_t least_lacking(const struct round_machine *core)
{
    uint32_t least = NO_MICRO;
    for (uint32_t i = 0; i < core->worker_count; i++) {
        const struct worker *worker = &core->workers[i];
        if (is_lacking(worker) && worker->lacks < least) least = worker->lacks;
    }
    return least;
}

static bool is_guilty(const struct worker *worker, uint32_t least)
{
    return is_lacking(worker) && worker->lacks == least && !is_paused(worker);
}

static bool waits_for_paused(const struct round_machine *core)
{
    for (uint32_t i = 0; i < core->worker_count; i++)
        if (is_lacking(&core->workers[i]) && is_paused(&core->workers[i])) return true;
    return false;
}

static uint32_t count_guilty(const struct round_machine *core, uint32_t least, bool *committed_out)
{
    uint32_t guilty = 0;
    *committed_out = true;
    for (uint32_t i = 0; i < core->worker_count; i++) {
        if (!is_guilty(&core->workers[i], least)) continue;
        guilty++;
        *committed_out = *committed_out && core->workers[i].committed;
    }
    return guilty;
}

/* Among the shards that are not REDUCED, returns the shard that lacks something of the most contributors.
 * Sets *alone_out to true if exactly one shard lacks anything. */
static uint32_t neediest(const struct round_machine *core, bool *alone_out)
{
    const struct shard *shards = core->shards;
    uint32_t most = 0, lacking = 0;
    while (shards[most].gone) most++;
    for (uint32_t s = most; s < core->config.shard_count; s++) {
        if (shards[s].gone) continue;
        lacking += shards[s].lacks > 0;
        const bool more = !shards[s].reduced && shards[s].lacks > shards[most].lacks;
        if (more || shards[most].reduced) most = s;
    }
    *alone_out = lacking == 1;
    return most;
}

/* Decides who is late. If one shard alone lacks something of most workers, that shard or its network is at
 * fault. If it is the only shard of the job, it is at fault only if all these workers say that they have
 * committed. Otherwise the workers of which something is lacking are at fault. */
static void judge_lone_shard(struct round_machine *core, struct round_actions *actions)
{
    bool alone, committed;
    const uint32_t least = least_lacking(core), guilty = count_guilty(core, least, &committed);
    const uint32_t shard = neediest(core, &alone);
    const bool is_only = core->layout.serving == 1;
    const bool of_shard = alone && core->open.world > 1 && 2 * guilty > core->open.world &&
                          (!is_only || committed);
    core->open.asking = false;
    if (guilty == 0 && waits_for_paused(core)) return;
    if (guilty == 0 || of_shard) {
        core->open.late.round = core->open.number;
        core->open.late.shard = shard;
        core->open.late.lacks = core->shards[shard].lacks;
        struct round_action *action = round_act(actions, CAIRN_ROUND_SHARD_LATE);
        action->shard = shard;
        action->round = core->open.number;
        action->world = core->open.late.lacks;
        return;
    }
    for (uint32_t i = core->worker_count; i-- > 0;)
        if (is_guilty(&core->workers[i], least)) drop_worker(core, &core->workers[i], actions);
}

void round_on_lacks(struct round_machine *core, const struct round_event *event,
                    struct round_actions *actions)
{
    struct shard *shard = &core->shards[event->shard];
    const bool awaited = core->open.asking && core->stage == CAIRN_ROUND_OPEN &&
                         !core->epoch.needed;
    if (!awaited || event->epoch != core->epoch.number || event->round != core->open.number ||
        shard->lacks_told)
        return;
    shard->lacks_told = true;
    for (uint32_t i = 0; i < event->lacks.count; i++)
        note_lack(core, event->shard, &event->lacks.list[i]);
    for (uint32_t s = 0; s < core->config.shard_count; s++)
        if (!core->shards[s].gone && !core->shards[s].lacks_told) return;
    judge_lone_shard(core, actions);
}

/* ==== round missed ==== */

/* Counts the steps that each tensor missed. A tensor misses a step if it is frozen, or if nobody
 * contributed to it and such tensors are left alone. The update of a tensor uses the tensor's own count of
 * steps, which is the job's step minus the missed steps. The counts belong to the job's state. They travel
 * in the payload of the decisions, so that the next incarnation, a snapshot and a joining shard have
 * them. */

void round_missed_begin(struct round_machine *core)
{
    if (core->open.has_untouched)
        memset(core->open.untouched, 0, core->config.tensor_count * sizeof *core->open.untouched);
    core->open.has_untouched = false;
}

/* Takes a shard's report of elements to which nobody contributed. Returns false if the report names a
 * tensor that the job does not have. */
static bool round_missed_note(struct round_machine *core, const struct round_event *event)
{
    if (!core->config.leaves_untouched) return true;
    for (uint32_t i = 0; i < event->untouched.count; i++)
        if (event->untouched.list[i].tensor >= core->config.tensor_count) return false;
    for (uint32_t i = 0; i < event->untouched.count; i++) {
        core->open.untouched[event->untouched.list[i].tensor] += event->untouched.list[i].elems;
        core->open.has_untouched = true;
    }
    return true;
}

cairn_status round_missed_take(struct round_machine *core, const struct payload *told)
{
    const bool none = told == NULL || told->missed.size == 0 || MUTANT(78);
    if (core->missed.any)
        memset(core->missed.steps, 0, core->config.tensor_count * sizeof *core->missed.steps);
    core->missed.any = false;
    if (none) return CAIRN_OK;
    if (core->config.tensor_count == 0) return CAIRN_ERR_MALFORMED;
    for (uint32_t t = 0; t < core->config.tensor_count; t++) {
        if (core->config.terms.tensors[t].group == CAIRN_ROUND_UNTRAINED) continue;
        core->missed.steps[t] = missed_steps(&told->missed, t);
        if (core->missed.steps[t] > core->last.version_after.step) return CAIRN_ERR_MALFORMED;
        core->missed.any = core->missed.any || core->missed.steps[t] > 0;
    }
    return CAIRN_OK;
}

uint64_t round_missed(const struct round_machine *core, uint32_t tensor)
{
    assert(tensor < core->config.tensor_count);
    return core->missed.steps[tensor];
}

/* True if the tensor misses the step of the open round. */
static bool passes_by(const struct round_machine *core, uint32_t t)
{
    const struct round_terms *terms = &core->config.terms;
    const struct round_tensor *tensor = &terms->tensors[t];
    if (tensor->frozen || (terms->frozen != NULL && terms->frozen[tensor->group])) return true;
    if (core->open.untouched[t] == 0) return false;
    return core->open.untouched[t] >= tensor->elems || MUTANT(79);
}

/* Sets the scalars of each class whose tensors this step updates. */
static void set_scalars(const struct round_machine *core, struct missed_writer *writer)
{
    for (uint32_t c = 0; c < writer->class_count; c++) {
        const struct missed_class one = missed_written(writer, c);
        if ((one.flags & CAIRN_MISSED_THIS) != 0) continue;
        const struct group_hyper hyper = round_hyper(core, one.group);
        const uint64_t count = core->version.step + 1 - (MUTANT(80) ? 0 : one.steps);
        struct group_scalars scalars;
        const cairn_status status = group_scalars_of(&hyper, count,
                                                     core->scalars[one.group].grad_scale, &scalars);
        // the group's scalars could be made, and the count is at least 1
        assert(status == CAIRN_OK);
        (void)status;
        missed_set(writer, c, &scalars);
    }
}

/* Counts the steps that tensors have missed after the decision, and writes them into the payload.
 * `applies`: the decision is an APPLY. Returns false if the tensors have more different counts than a
 * payload can hold. */
static bool round_missed_give(struct round_machine *core, bool applies, struct payload *head)
{
    const bool more = applies && (core->config.terms.any_frozen || core->open.has_untouched);
    if (core->config.tensor_count == 0 || (!core->missed.any && !more)) return true;
    struct missed_writer writer;
    missed_begin(&writer, core->missed.room, core->config.tensor_count);
    core->missed.any = false;
    for (uint32_t t = 0; t < core->config.tensor_count; t++) {
        const uint32_t group = core->config.terms.tensors[t].group;
        if (group == CAIRN_ROUND_UNTRAINED) continue;
        const bool passed = applies && passes_by(core, t);
        core->missed.steps[t] += passed;
        core->missed.any = core->missed.any || core->missed.steps[t] > 0;
        missed_put(&writer, t, core->missed.steps[t], group, passed);
    }
    if (writer.is_full) return false;
    if (applies) set_scalars(core, &writer);
    head->missed = missed_end(&writer);
    return true;
}
