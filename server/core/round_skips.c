/* Halts a job until somebody acts, for one of two causes.
 *
 * Skipped rounds: this file counts how many of the job were skipped, and how many in a row, and
 * halts the job when these are too many. A skip that lowers the loss scale is the way things go. If
 * the loss scale is at its least, or fixed, a skip says that the model or its data is not fit, and
 * the next round has no better chance. The counts travel in the payload of the decisions, so that
 * the next incarnation goes on with them.
 *
 * Results that are not finite, if the policy says so. Shards report them with the version that
 * they publish, again in each epoch, so that the next incarnation hears of them. No other terms
 * mend such results: a write does. */
#include "server/core/round_state.h"

#include "server/core/mutant.h"

void cairn_round_take_skips(struct cairn_round *core, const struct cairn_skips *told)
{
    core->skips = told != NULL && !MUTANT(44) ? *told : (struct cairn_skips) { 0 };
    if (core->last.round == 0) cairn_round_end_row(core);
}

void cairn_round_end_row(struct cairn_round *core)
{
    core->skips.in_row = 0;
    core->skips.revision = 0;
}

void cairn_round_count_skip(struct cairn_round *core, bool is_hopeless)
{
    const uint64_t revision = core->config.terms.revision;
    core->skips.all++;
    if (!is_hopeless) return;
    core->skips.in_row = core->skips.revision == revision ? core->skips.in_row + 1 : 1;
    core->skips.revision = revision;
}

bool cairn_round_halted_of_results(const struct cairn_round *core)
{
    bool any = false;
    if (!core->config.halt_nonfinite) return false;
    for (uint32_t s = 0; s < core->config.shard_count; s++) any |= core->shards[s].nonfinite;
    return any;
}

bool cairn_round_halted(const struct cairn_round *core)
{
    const struct cairn_skips *skips = &core->skips;
    if (cairn_round_halted_of_results(core) || cairn_round_halted_of_loss(core)) return true;
    if (core->config.skips_max == 0 || skips->in_row < core->config.skips_max || MUTANT(45))
        return false;
    return skips->revision == core->terms_newest.revision || MUTANT(46);
}

bool cairn_round_refuse(struct cairn_round *core, struct cairn_round_actions *actions)
{
    bool any = false;
    if (!cairn_round_halted(core)) return false;
    for (uint32_t i = 0; i < core->worker_count; i++) {
        struct worker *worker = &core->workers[i];
        if (!worker->wants) continue;
        worker->wants = false;
        cairn_round_act(actions, CAIRN_ROUND_WORKER_REFUSED)->member = worker->id;
        any = true;
    }
    return any;
}
