/* Which shards the job has, from epoch to epoch. A layout that is pending comes into force with a change of
 * epoch in STEADY: then no round is open and every shard has the same version, so that nothing of a round
 * has to be carried from one layout to the other.
 *
 * One that takes another back does not wait for that, since a shard of the one in force is lost, and may be
 * what everything waits for. Its shards have what they need as long as nothing was decided in the layout that
 * it takes back: their last outcome shows it. */
#include "server/core/round_state.h"

#include <assert.h>

#include "server/core/holes.h"
#include "server/core/mutant.h"

static void count_serving(struct cairn_round *core)
{
    core->serving = 0;
    for (uint32_t s = 0; s < core->config.shard_count; s++) core->serving += !core->shards[s].gone;
    assert(core->serving > 0);
}

void cairn_round_layout_init(struct cairn_round *core)
{
    const struct cairn_round_config *config = &core->config;
    for (uint32_t s = 0; s < config->shard_max; s++)
        core->shards[s].gone = cairn_is_hole(config->gone, config->shard_count, s);
    core->config.gone = NULL; // it was lent
    count_serving(core);
}

void cairn_round_on_layout(struct cairn_round *core, const struct cairn_round_event *event)
{
    if (core->next.taken) return; // too late to forget it; and nobody begins another one
    if (event->layout == 0 && MUTANT(73)) return;
    core->next.layout = 0;
    if (event->layout == 0) return;
    assert(event->layout > core->config.layout);
    assert(event->shard_count >= core->config.shard_count);
    assert(event->shard_count <= core->config.shard_max);
    core->next = (struct next_layout) { .layout = event->layout,
                                        .shard_count = event->shard_count,
                                        .back = event->back,
                                        .empty = event->empty };
    for (uint32_t s = 0; s < core->config.shard_max; s++)
        core->shards[s].gone_next = cairn_is_hole(event->gone, event->shard_count, s);
}

bool cairn_round_layout_concerns(const struct cairn_round *core, uint32_t shard)
{
    const struct shard *s = &core->shards[shard];
    return !s->gone || (core->next.taken && !s->gone_next);
}

static bool next_up(const struct cairn_round *core)
{
    for (uint32_t s = 0; s < core->next.shard_count; s++)
        if (!core->shards[s].gone_next && !core->shards[s].up) return false;
    return true;
}

bool cairn_round_layout_due(const struct cairn_round *core)
{
    if (core->next.layout == 0 || core->next.taken || !next_up(core)) return false;
    return core->next.back ||
           ((core->stage == CAIRN_ROUND_STEADY || MUTANT(63)) && !core->need_epoch);
}

void cairn_round_layout_take(struct cairn_round *core)
{
    core->next.taken = true;
}

void cairn_round_layout_enter(struct cairn_round *core)
{
    const struct next_layout next = core->next;
    core->next = (struct next_layout) { .layout = 0 };
    core->config.layout = next.layout;
    core->config.shard_count = next.shard_count;
    if (!next.back) core->config.layout_at = core->version;
    core->went_back = next.back && !next.empty;
    for (uint32_t s = 0; s < core->config.shard_max; s++) {
        core->shards[s].gone = core->shards[s].gone_next;
        if (core->shards[s].gone) core->shards[s].nonfinite = false;
    }
    count_serving(core);
}

const char *cairn_round_layout_judge(const struct cairn_round *core)
{
    if (!core->went_back) return NULL;
    const bool same = core->config.layout_at.generation != 0 &&
                      cairn_version_compare(core->last.version_after, core->config.layout_at) == 0;
    return same ? NULL : "a shard was lost, and part of the newest version with it";
}

uint64_t cairn_round_layout(const struct cairn_round *core)
{
    return core->config.layout;
}

uint64_t cairn_round_layout_pending(const struct cairn_round *core)
{
    return core->next.taken ? 0 : core->next.layout;
}

struct cairn_version cairn_round_layout_at(const struct cairn_round *core)
{
    return core->config.layout_at;
}

bool cairn_round_has_shard(const struct cairn_round *core, uint32_t shard)
{
    return shard < core->config.shard_count && !core->shards[shard].gone;
}
