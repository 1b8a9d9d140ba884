/* Folds of a collector, on the compute threads: each adds what has landed of one chunk to the chunk's sum. */
#include <assert.h>

#include "server/base/guard.h"
#include "server/shard/collect/collector.h"
#include "server/shard/shard.h"

static void fold_sources(void *arg)
{
    const struct cairn_fold *fold = arg;
    fold->collector->hands->fold(fold);
}

static void run(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    struct cairn_fold *fold = (struct cairn_fold *)task;
    (void)item;
    (void)thread;
    if (fold->viewed)
        fold->failed_at = cairn_guard_run(fold_sources, fold);
    else
        fold_sources(fold);
}

/* The sum is wrong for good, as folds go on from it. */
static void spoil(const struct cairn_fold *fold)
{
    struct cairn_collector *collector = fold->collector;
    bool is_ours = true;
    collector->spoiled_round = cairn_step_round_seen(collector->step);
    for (uint32_t i = 0; i < fold->source_count; i++) {
        const struct cairn_slot *slot = &collector->slots[fold->slots[i]];
        const uintptr_t from = (uintptr_t)slot->view, at = (uintptr_t)fold->failed_at;
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

static void done(struct cairn_task *task)
{
    struct cairn_fold *fold = (struct cairn_fold *)task;
    struct cairn_collector *collector = fold->collector;
    if (fold->failed_at != NULL) spoil(fold);
    collector->hands->fold_done(fold);
    cairn_fold_drop(fold);
    if (collector->hands->fold_told != NULL) collector->hands->fold_told(collector);
    collector->hands->idle(collector);
}

void cairn_fold_submit(struct cairn_fold *fold)
{
    fold->collector->hands->busy(fold->collector);
    cairn_pool_submit(fold->collector->job->shard->compute, &fold->task);
}

void cairn_fold_begin(struct cairn_collector *collector, const struct cairn_step_action *action)
{
    struct cairn_fold *fold = collector->folds_free;
    assert(fold != NULL); // one fold a chunk, and each has a slot
    collector->folds_free = fold->next;
    *fold = (struct cairn_fold) {
        .task = { .run = run, .done = done, .item_count = 1 },
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
        fold->viewed = fold->viewed || slot->message != NULL;
        slot->folding = true;
    }
    if (collector->hands->fold_place(fold)) cairn_fold_submit(fold);
}
