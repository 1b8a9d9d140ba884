/* Folds of a collector: each adds what has landed of one chunk to the chunk's sum. */
#include <assert.h>
#include <string.h>

#include "server/base/guard.h"
#include "server/shard/collect/collector.h"
#include "server/shard/shard.h"

/* Copies sources that are in workers' memory to where they would have landed otherwise, and folds
 * from there. Runs under the guard, as reading that memory may fault. */
static void land_views(void *arg)
{
    struct cairn_fold *fold = arg;
    struct cairn_collector *collector = fold->collector;
    for (uint32_t i = 0; i < fold->source_count; i++) {
        const struct cairn_slot *slot = &collector->slots[fold->slots[i]];
        if (slot->message == NULL || slot->way == CAIRN_WAY_DEVICE) continue;
        void *memory = collector->hands->slot_memory(collector, fold->slots[i]);
        memcpy(memory, slot->view, slot->payload_bytes);
        fold->sources[i].data = memory;
    }
}

/* The host reads what is in workers' memory where it is; a device is given what can be read for sure. */
static bool describe(struct cairn_run *run, uint32_t item, uint32_t stage,
                     struct cairn_works *works)
{
    struct cairn_fold *fold = (struct cairn_fold *)run;
    (void)item;
    if (stage == 0 && fold->viewed && !works->in_place)
        run->failed_at = cairn_guard_run(land_views, fold);
    return run->failed_at == NULL && fold->collector->hands->fold(fold, stage, works);
}

/* The sum is wrong for good, as folds go on from it. */
static void spoil(const struct cairn_fold *fold)
{
    struct cairn_collector *collector = fold->collector;
    bool is_ours = true;
    collector->spoiled_round = cairn_step_round_seen(collector->step);
    for (uint32_t i = 0; i < fold->source_count; i++) {
        const struct cairn_slot *slot = &collector->slots[fold->slots[i]];
        const uintptr_t from = (uintptr_t)slot->view, at = (uintptr_t)fold->run.failed_at;
        if (slot->message == NULL || at - from >= slot->payload_bytes) continue;
        is_ours = false;
        cairn_member_unreadable(collector->job, slot->member);
    }
    if (is_ours) collector->hands->no_page(collector);
}

void cairn_fold_drop(struct cairn_fold *fold)
{
    struct cairn_collector *collector = fold->collector;
    const struct cairn_step_event folded = { .kind = CAIRN_STEP_FOLDED, .chunk = fold->chunk };
    for (uint32_t i = 0; i < fold->source_count; i++) {
        collector->slots[fold->slots[i]].folding = false;
        cairn_slot_release(&collector->slots[fold->slots[i]]);
    }
    fold->next = collector->folds_free;
    collector->folds_free = fold;
    cairn_collector_step(collector, &folded);
    cairn_shard_job_settle(collector->job);
}

static void done(struct cairn_run *run)
{
    struct cairn_fold *fold = (struct cairn_fold *)run;
    struct cairn_collector *collector = fold->collector;
    (void)cairn_shard_job_run_failed(collector->job, run); // then no event is taken any more
    if (run->failed_at != NULL) spoil(fold);
    collector->hands->fold_done(fold);
    cairn_fold_drop(fold);
    if (collector->hands->fold_told != NULL) collector->hands->fold_told(collector);
    collector->hands->idle(collector);
}

void cairn_fold_submit(struct cairn_fold *fold)
{
    fold->collector->hands->busy(fold->collector);
    cairn_compute_submit(&fold->run);
}

void cairn_fold_begin(struct cairn_collector *collector, const struct cairn_step_action *action)
{
    struct cairn_fold *fold = collector->folds_free;
    assert(fold != NULL); // one fold a chunk, and each has a slot
    collector->folds_free = fold->next;
    *fold = (struct cairn_fold) {
        .run = { .compute = collector->hands->compute(collector, action->chunk),
                 .item_count = 1,
                 .describe = describe,
                 .done = done },
        .collector = collector,
        .source_count = action->count,
        .chunk = action->chunk,
        .first = action->first,
        .likely_last = action->likely_last,
    };
    for (uint32_t i = 0; i < action->count; i++) {
        struct cairn_slot *slot = &collector->slots[action->slots[i]];
        fold->sources[i] = (struct cairn_source) { .data = slot->view, .dtype = slot->dtype };
        fold->pieces[i] = slot->piece;
        fold->slots[i] = action->slots[i];
        if (slot->message != NULL && slot->way != CAIRN_WAY_DEVICE) fold->viewed = true;
        slot->folding = true;
    }
    fold->run.is_guarded = fold->viewed;
    if (collector->hands->fold_place(fold)) cairn_fold_submit(fold);
}
