/* The one decision of a round, from the shards' sums: nothing else goes into it, so shards and workers
 * can come in any order. */
#include "server/core/round_state.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "server/core/mutant.h"

static cairn_status add_sums(struct cairn_step_sums *sums, const struct cairn_step_sums *more)
{
    if (more->nonfinite > UINT64_MAX - sums->nonfinite) return CAIRN_ERR_INVALID;
    sums->nonfinite += more->nonfinite;
    if (MUTANT(5)) {
        for (int i = 0; i < CAIRN_EXACT_LIMBS; i++)
            sums->sum_squares.limb[i] += more->sum_squares.limb[i];
        return CAIRN_OK;
    }
    return cairn_exact_add(&sums->sum_squares, &more->sum_squares);
}

void cairn_round_on_reduced(struct cairn_round *core, const struct cairn_round_event *event,
                            struct cairn_round_actions *actions)
{
    if (core->stage != CAIRN_ROUND_OPEN || event->epoch != core->epoch ||
        event->round != core->open_round)
        return;
    struct shard *shard = &core->shards[event->shard];
    if (shard->reduced) return;
    if (core->reduced_count > 0 && event->sums->weight != core->sums.weight) {
        cairn_round_fail(core, event->shard, "it has another sum of weights than the other shards",
                         actions);
        return;
    }
    if (add_sums(&core->sums, event->sums) != CAIRN_OK) {
        cairn_round_fail(core, event->shard, "its sum of squares is not possible", actions);
        return;
    }
    if (!cairn_round_missed_note(core, event)) {
        cairn_round_fail(core, event->shard, "it tells of a tensor that the job has not", actions);
        return;
    }
    core->sums.weight = event->sums->weight;
    shard->reduced = true;
    core->reduced_count++;
}

/* The least that a dynamic loss scale may be; a fixed one is that always. */
static bool scale_is_least(const struct cairn_round *core)
{
    return !core->config.scaling.dynamic || core->loss_scale <= core->config.scaling.min;
}

/* A skip halves a dynamic loss scale, long success doubles it, as torch.cuda.amp.GradScaler does. */
static void adapt_loss_scale(struct cairn_round *core, bool applied)
{
    const struct cairn_round_scaling *s = &core->config.scaling;
    if (!s->dynamic) return;
    core->good_rounds = applied ? core->good_rounds + 1 : 0;
    if (!applied) core->loss_scale = core->loss_scale / 2 > s->min ? core->loss_scale / 2 : s->min;
    if (core->good_rounds < s->growth_rounds) return;
    core->good_rounds = 0;
    core->loss_scale = core->loss_scale * 2 < s->max ? core->loss_scale * 2 : s->max;
}

double cairn_round_group_lr(const struct cairn_round_terms *terms, const double *driven,
                            uint32_t group, uint64_t step)
{
    const double lr = terms->groups[group].lr;
    if (terms->schedules == NULL) return lr;
    const struct cairn_schedule *schedule = &terms->schedules[group];
    if (schedule->kind == CAIRN_SCHEDULE_DRIVEN) return driven[group];
    return cairn_schedule_lr(schedule, lr, step);
}

struct cairn_group_hyper cairn_round_hyper(const struct cairn_round *core, uint32_t group)
{
    const struct cairn_round_terms *terms = &core->config.terms;
    struct cairn_group_hyper hyper = terms->groups[group];
    hyper.lr = cairn_round_group_lr(terms, core->driven_given, group, core->version.step);
    return hyper;
}

static void compute_scalars(struct cairn_round *core, uint32_t grad_scale)
{
    const struct cairn_round_terms *terms = &core->config.terms;
    for (uint32_t g = 0; g < core->config.group_count; g++) {
        const struct cairn_group_hyper hyper = cairn_round_hyper(core, g);
        const cairn_status status = cairn_group_scalars_of(&hyper, core->version.step + 1,
                                                           grad_scale, &core->scalars[g]);
        assert(status ==
               CAIRN_OK); // the groups come from a spec that was judged, what drives them too
        if (terms->frozen != NULL && terms->frozen[g])
            core->scalars[g].flags |= CAIRN_SCALAR_FROZEN;
    }
}

/* True if there is an update to make; then `head` and the scalars are that update's. */
static bool judge_sums(struct cairn_round *core, struct cairn_payload *head)
{
    struct cairn_update_norm norm;
    if (core->sums.nonfinite > 0) return false;
    if (cairn_update_norm_of(&core->sums.sum_squares, core->sums.weight, core->loss_scale,
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

/* The decision stands in `last`: all shards hear it. */
static void send_decision(struct cairn_round *core, struct cairn_round_actions *actions)
{
    core->stage = CAIRN_ROUND_DECIDED;
    core->deadline_ms = 0;
    for (uint32_t s = 0; s < core->config.shard_count; s++) core->shards[s].published = false;
    struct cairn_round_action *action = cairn_round_act(actions, CAIRN_ROUND_DECIDE);
    action->epoch = core->epoch;
    action->decision = &core->last;
}

bool cairn_round_state_there(const struct cairn_round *core)
{
    const bool awaited = core->config.client_state_max > 0 || core->driven_count > 0;
    if (!awaited || core->writing || MUTANT(24)) return true;
    for (uint32_t i = 0; i < core->worker_count; i++)
        if (core->workers[i].contributor && core->workers[i].dense == 0)
            return core->workers[i].committed;
    return false;
}

/* The client state of the version before the decision; it lies in the last payload. */
static void keep_state(const struct cairn_round *core, struct cairn_payload *head)
{
    struct cairn_payload last;
    head->state_bytes = 0;
    if (core->last.payload_bytes == 0) return;
    const cairn_status status = cairn_payload_decode(core->last.payload, core->last.payload_bytes,
                                                     &last);
    assert(status == CAIRN_OK); // made here, or taken by take_job_state
    head->state = last.state;
    head->state_bytes = last.state_bytes;
}

static void give_driven(const struct cairn_round *core, struct cairn_payload *head)
{
    head->driven = core->driven;
    head->driven_count = core->driven_count;
}

/* False: the job has failed. (What may lead there is refused before: job/amend.c of the coordinator.) */
static bool give_missed(struct cairn_round *core, bool applies, struct cairn_payload *head,
                        struct cairn_round_actions *actions)
{
    if (cairn_round_missed_give(core, applies, head)) return true;
    cairn_round_fail(core, 0, "its tensors stand at more counts of updates than can be told",
                     actions);
    return false;
}

/* Decides a write: the planes that were put take effect. Beside the generation, and a row of
 * skips that ends, nothing of the job's state changes. */
static void decide_write(struct cairn_round *core, struct cairn_round_actions *actions)
{
    struct cairn_payload head = { .clip_scale = 1,
                                  .loss_scale = core->loss_scale,
                                  .good_rounds = core->good_rounds,
                                  .finite = true };
    cairn_round_end_row(core);
    head.skips = core->skips;
    keep_state(core, &head);
    give_driven(core, &head);
    if (!give_missed(core, false, &head, actions)) return;
    const size_t bytes = cairn_payload_encode(&head, core->scalars, core->payload);
    core->last = (struct cairn_decision) {
        .kind = CAIRN_DECISION_WRITE,
        .round = core->open_round,
        .version_after = { core->version.generation + 1, core->version.step },
        .payload = core->payload,
        .payload_bytes = bytes,
    };
    send_decision(core, actions);
}

void cairn_round_decide(struct cairn_round *core, struct cairn_round_actions *actions)
{
    if (core->writing) {
        decide_write(core, actions);
        return;
    }
    struct cairn_payload head = { .grad_norm = (double)NAN, .clip_scale = 1 };
    head.fail = core->config.fail_nonfinite;
    if (core->config.group_count > 0)
        head.lr = cairn_round_group_lr(&core->config.terms, core->driven_given, 0,
                                       core->version.step);
    const bool apply = judge_sums(core, &head);
    const bool counted = core->sums.weight > 0 || core->sums.nonfinite > 0;
    if (apply)
        cairn_round_end_row(core);
    else
        cairn_round_count_skip(core, counted && scale_is_least(core));
    if (counted) {
        adapt_loss_scale(core, apply);
    } else {
        head.finite = true;
        head.fail = false; // nobody counted anything: no fault of the gradients
    }
    head.skips = core->skips;
    head.loss_scale = core->loss_scale;
    head.good_rounds = core->good_rounds;
    head.state = core->state;
    head.state_bytes = core->state_bytes;
    if (!apply && !MUTANT(23)) keep_state(core, &head);
    if (apply || MUTANT(52))
        memcpy(core->driven, core->driven_given, core->driven_count * sizeof *core->driven);
    give_driven(core, &head);
    if (!give_missed(core, apply, &head, actions)) return;
    const size_t bytes = cairn_payload_encode(&head, core->scalars, core->payload);

    core->last = (struct cairn_decision) {
        .kind = apply ? CAIRN_DECISION_APPLY : CAIRN_DECISION_SKIP,
        .round = core->open_round,
        .version_after = core->version,
        .payload = core->payload,
        .payload_bytes = bytes,
    };
    if (apply || MUTANT(10)) core->last.version_after.step++;
    send_decision(core, actions);
}
