/* The step's deadline: only the shards know who holds the open round up. A worker may have said
 * that it committed, and nothing of it arrives; a worker that has not committed may wait for
 * another. So every shard is asked of which contributors it lacks something, and which of these
 * wait there for others: something of them is there, and contributors that come before have not
 * come. Nobody can say that the least lacking (micro-batch, rank) waits for others. So either
 * somebody is found, or shards are at work. */
#include "server/core/round_state.h"

#include <assert.h>

#include "server/core/mutant.h"

#define NO_MICRO UINT32_MAX

static void drop(struct cairn_round *core, struct worker *worker,
                 struct cairn_round_actions *actions)
{
    struct cairn_round_action *action = cairn_round_act(actions, CAIRN_ROUND_WORKER_FENCE);
    action->member = worker->id;
    action->status = CAIRN_ERR_TIMEOUT;
    action->round = core->open_round;
    action->shard = worker->lacking_shard;
    action->world = worker->lacked_by;
    cairn_round_note_lost(core);
    cairn_round_remove_worker(core, worker);
}

static void ask_shards(struct cairn_round *core, struct cairn_round_actions *actions)
{
    core->asking = true;
    for (uint32_t s = 0; s < core->config.shard_count; s++) {
        core->shards[s].told = false;
        core->shards[s].lacks = 0;
    }
    for (uint32_t i = 0; i < core->worker_count; i++) {
        core->workers[i].lacks = core->workers[i].waits = NO_MICRO;
        core->workers[i].lacked_by = 0;
    }
    struct cairn_round_action *action = cairn_round_act(actions, CAIRN_ROUND_ASK_LACKS);
    action->epoch = core->epoch;
    action->round = core->open_round;
}

/* ---- who is at work on something else ---- */

static bool is_paused(const struct worker *worker)
{
    return worker->paused_ms != 0 && !MUTANT(49);
}

/* Ends a worker's pause: its contribution is due from now on. */
static void end_pause(struct cairn_round *core, struct worker *worker)
{
    worker->paused_ms = 0;
    if (worker->contributor && core->deadline_ms != 0)
        core->deadline_ms = core->now_ms + core->config.step_deadline_ms;
}

void cairn_round_on_pause(struct cairn_round *core, const struct cairn_round_event *event)
{
    struct worker *worker = cairn_round_find_worker(core, event->member);
    if (worker == NULL) return;
    if (event->wait_ms > 0)
        worker->paused_ms = core->now_ms + event->wait_ms;
    else if (worker->paused_ms != 0)
        end_pause(core, worker);
}

void cairn_round_end_pauses(struct cairn_round *core)
{
    for (uint32_t i = 0; i < core->worker_count; i++) {
        struct worker *worker = &core->workers[i];
        if (worker->paused_ms != 0 && core->now_ms >= worker->paused_ms) end_pause(core, worker);
    }
}

/* A write has one contributor, and all but the client state may be there of a step. */
static bool is_late(const struct cairn_round *core, const struct worker *worker)
{
    if (!worker->contributor || is_paused(worker)) return false;
    return core->writing || (worker->dense == 0 && !worker->committed);
}

void cairn_round_on_deadline(struct cairn_round *core, struct cairn_round_actions *actions)
{
    core->deadline_ms = core->now_ms + core->config.step_deadline_ms;
    if (!core->writing && core->reduced_count < core->serving) {
        ask_shards(core, actions);
        return;
    }
    for (uint32_t i = core->worker_count; i-- > 0;) {
        struct worker *worker = &core->workers[i];
        worker->lacked_by = 0;
        if (is_late(core, worker)) drop(core, worker, actions);
    }
}

/* ---- the answers ---- */

static void note_lack(struct cairn_round *core, uint32_t shard, const struct cairn_round_lack *lack)
{
    if (!lack->relayed && !lack->waits) core->shards[shard].lacks++;
    struct worker *worker = cairn_round_find_worker(core, lack->member);
    if (worker == NULL || !worker->contributor) return; // a relay: its shard says whom that lacks
    uint32_t *least = lack->waits && !MUTANT(39) ? &worker->waits : &worker->lacks;
    if (lack->micro < *least) *least = lack->micro;
    if (lack->waits) return;
    worker->lacking_shard = shard;
    worker->lacked_by++;
}

/* It lacks somewhere, and does not wait for others in that micro-batch or an earlier one. */
static bool is_lacking(const struct worker *worker)
{
    if (!worker->contributor || worker->lacks == NO_MICRO) return false;
    return worker->waits == NO_MICRO || worker->waits > worker->lacks;
}

/* The first micro-batch in which somebody is lacking. Who lacks a later one may wait for that: relays whose
 * sums an owner cannot take yet take no more themselves. */
static uint32_t least_lacking(const struct cairn_round *core)
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

static bool waits_for_paused(const struct cairn_round *core)
{
    for (uint32_t i = 0; i < core->worker_count; i++)
        if (is_lacking(&core->workers[i]) && is_paused(&core->workers[i])) return true;
    return false;
}

static uint32_t count_guilty(const struct cairn_round *core, uint32_t least, bool *committed_out)
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

/* The one that lacks most, of those that have not summed up; *alone_out: no other lacks anything. */
static uint32_t neediest(const struct cairn_round *core, bool *alone_out)
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

/* If one shard alone lacks what most workers have sent to all other shards, the fault is that
 * shard's, or its network's. A job's only shard is believed, unless all of these workers say
 * that they have sent everything. */
static void judge(struct cairn_round *core, struct cairn_round_actions *actions)
{
    bool alone, committed;
    const uint32_t least = least_lacking(core), guilty = count_guilty(core, least, &committed);
    const uint32_t shard = neediest(core, &alone);
    const bool is_only = core->serving == 1;
    const bool of_shard = alone && core->world > 1 && 2 * guilty > core->world &&
                          (!is_only || committed);
    core->asking = false;
    if (guilty == 0 && waits_for_paused(core)) return;
    if (guilty == 0 || of_shard) {
        core->late_round = core->open_round;
        core->late_shard = shard;
        core->late_lacks = core->shards[shard].lacks;
        struct cairn_round_action *action = cairn_round_act(actions, CAIRN_ROUND_SHARD_LATE);
        action->shard = shard;
        action->round = core->open_round;
        action->world = core->late_lacks;
        return;
    }
    for (uint32_t i = core->worker_count; i-- > 0;)
        if (is_guilty(&core->workers[i], least)) drop(core, &core->workers[i], actions);
}

void cairn_round_on_lacks(struct cairn_round *core, const struct cairn_round_event *event,
                          struct cairn_round_actions *actions)
{
    struct shard *shard = &core->shards[event->shard];
    const bool awaited = core->asking && core->stage == CAIRN_ROUND_OPEN && !core->need_epoch;
    if (!awaited || event->epoch != core->epoch || event->round != core->open_round || shard->told)
        return;
    shard->told = true;
    for (uint32_t i = 0; i < event->lack_count; i++)
        note_lack(core, event->shard, &event->lacks[i]);
    for (uint32_t s = 0; s < core->config.shard_count; s++)
        if (!core->shards[s].gone && !core->shards[s].told) return;
    judge(core, actions);
}
