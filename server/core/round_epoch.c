/* The one path of every epoch change: make the number durable, fence, hear what each shard knows, give
 * the newest outcome to all. Nothing that this incarnation remembers of a round takes part in it, so a
 * new incarnation comes to the same outcome. */
#include "server/core/round_state.h"

#include <assert.h>
#include <string.h>

#include "server/core/mutant.h"

void cairn_round_epoch_begin(struct cairn_round *core, struct cairn_round_actions *actions)
{
    assert(!core->persisting);
    if (cairn_round_layout_due(core)) cairn_round_layout_take(core);
    core->epoch++;
    core->round_end = core->round_next + CAIRN_ROUND_BLOCK;
    core->need_epoch = false;
    core->members_changed = false;
    core->persisting = true;
    core->stage = CAIRN_ROUND_WAITING;
    struct cairn_round_action *action = cairn_round_act(actions, CAIRN_ROUND_PERSIST);
    action->epoch = core->epoch;
    action->round_reserved = core->round_end;
    const bool carries = core->next.taken;
    action->layout = carries && !MUTANT(64) ? core->next.layout : core->config.layout;
    const bool since_now = carries && !core->next.back && !MUTANT(77);
    action->version = since_now ? core->version : core->config.layout_at;
}

void cairn_round_on_persisted(struct cairn_round *core, const struct cairn_round_event *event,
                              struct cairn_round_actions *actions)
{
    if (!core->persisting || event->epoch != core->epoch) return;
    core->persisting = false;
    if (core->next.taken) cairn_round_layout_enter(core);
    if (core->need_epoch) return; // a shard went away meanwhile: it needs another one
    core->stage = CAIRN_ROUND_FENCING;
    for (uint32_t s = 0; s < core->config.shard_count; s++) {
        core->shards[s].answered = false;
        core->shards[s].published = false;
    }
    core->last.kind = CAIRN_DECISION_NONE;
    core->last.round = 0;
    core->last.payload_bytes = 0;
    struct cairn_round_action *action = cairn_round_act(actions, CAIRN_ROUND_FENCE);
    action->epoch = core->epoch;
    action->layout = core->config.layout;
}

static bool first_answer(const struct cairn_round *core)
{
    for (uint32_t s = 0; s < core->config.shard_count; s++)
        if (core->shards[s].answered && !core->shards[s].joins) return false;
    return true;
}

static void keep(struct cairn_round *core, const struct cairn_decision *decision)
{
    core->last = *decision;
    core->last.payload = core->payload;
    if (decision->payload_bytes > 0)
        memcpy(core->payload, decision->payload, decision->payload_bytes);
}

void cairn_round_on_answer(struct cairn_round *core, const struct cairn_round_event *event,
                           struct cairn_round_actions *actions)
{
    if (core->stage != CAIRN_ROUND_FENCING) return;
    if (event->refused && event->epoch >= core->epoch) {
        core->stage = CAIRN_ROUND_FAILED;
        struct cairn_round_action *action = cairn_round_act(actions, CAIRN_ROUND_BEHIND);
        action->shard = event->shard;
        action->epoch = event->epoch;
        return;
    }
    if (event->refused || event->epoch != core->epoch) return;
    struct shard *shard = &core->shards[event->shard];
    if (shard->answered) return;
    if (event->decision->payload_bytes > core->payload_bytes_max) {
        cairn_round_fail(core, event->shard, "its last decision is of a job with more groups",
                         actions);
        return;
    }
    shard->joins = event->phase == CAIRN_STEP_JOINING;
    const bool newer = event->decision->round > core->last.round && !MUTANT(4);
    if (!shard->joins && (first_answer(core) || newer)) keep(core, event->decision);
    shard->answered = true;
    shard->prepared = event->phase == CAIRN_STEP_REDUCED ? event->round : 0;
    shard->last_round = event->decision->round;
    shard->version = event->version;
}

/* Can this shard do as the outcome says? */
static const char *judge_answer(const struct cairn_round *core, const struct shard *shard)
{
    const struct cairn_decision *last = &core->last;
    const bool has_it = shard->last_round == last->round;
    if (shard->joins && !MUTANT(75)) return NULL;
    if (!has_it && shard->prepared != last->round && !MUTANT(4))
        return "it knows nothing of a round that another shard has applied";
    if (last->round != 0 || !core->ready) return NULL;
    const bool same = cairn_version_compare(shard->version, last->version_after) == 0;
    return same ? NULL : "it is at another version than the other shards";
}

/* Without a payload that has them: the spec's. */
static cairn_status take_driven(struct cairn_round *core, const struct cairn_payload *head)
{
    const uint32_t count = head != NULL && !MUTANT(50) ? head->driven_count : 0;
    if (count != 0 && count != core->config.group_count) return CAIRN_ERR_MALFORMED;
    for (uint32_t g = 0; g < core->config.group_count; g++)
        core->driven[g] = count > 0 ? cairn_payload_driven(core->last.payload, head, g)
                                    : core->config.terms.groups[g].lr;
    return CAIRN_OK;
}

/* The job's state that is nowhere but in the last payload. (The client state stays there.) */
static cairn_status take_job_state(struct cairn_round *core)
{
    core->loss_scale = core->config.scaling.start;
    core->good_rounds = 0;
    cairn_round_take_skips(core, NULL);
    if (core->last.payload_bytes == 0 || MUTANT(15)) {
        const cairn_status none = cairn_round_missed_take(core, NULL);
        return none == CAIRN_OK ? take_driven(core, NULL) : none;
    }
    struct cairn_payload head;
    const cairn_status status = cairn_payload_decode(core->last.payload, core->last.payload_bytes,
                                                     &head);
    if (status != CAIRN_OK) return status;
    if (head.state_bytes > core->config.client_state_max) return CAIRN_ERR_MALFORMED;
    core->loss_scale = head.loss_scale;
    core->good_rounds = head.good_rounds;
    cairn_round_take_skips(core, &head.skips);
    const cairn_status taken = cairn_round_missed_take(core, &head);
    return taken == CAIRN_OK ? take_driven(core, &head) : taken;
}

void cairn_round_resolve(struct cairn_round *core, struct cairn_round_actions *actions)
{
    for (uint32_t s = 0; s < core->config.shard_count; s++) {
        if (core->shards[s].gone) continue;
        const char *why = judge_answer(core, &core->shards[s]);
        if (why == NULL) why = cairn_round_layout_judge(core);
        if (why == NULL) continue;
        cairn_round_fail(core, s, why, actions);
        return;
    }
    core->went_back = false;
    if (take_job_state(core) != CAIRN_OK) {
        cairn_round_fail(core, 0, "the payload of the last decision is malformed", actions);
        return;
    }
    core->stage = CAIRN_ROUND_RESOLVING;
    struct cairn_round_action *action = cairn_round_act(actions, CAIRN_ROUND_RESOLVE);
    action->epoch = core->epoch;
    action->round = core->round_next - 1;
    action->decision = &core->last;
}
