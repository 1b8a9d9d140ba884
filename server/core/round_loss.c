/* A worker was lost, and the job's on_worker_loss says what comes of it. The open round is void in any
 * case, if it was open for that worker. Known to this incarnation alone: the workers of a new one are those
 * who come to it. */
#include "server/core/mutant.h"
#include "server/core/round_state.h"

/* Who comes when all have gone was started for it. */
static void note_last(struct cairn_round *core)
{
    if (core->worker_count == 1) core->losses.failed = false;
}

/* A second loss while the first is waited for does not make fewer of those who are awaited. */
void cairn_round_note_lost(struct cairn_round *core)
{
    const struct cairn_round_terms *terms = &core->terms_newest;
    struct losses *losses = &core->losses;
    if (terms->on_worker_loss == CAIRN_WORKER_LOSS_FAIL) losses->failed = true;
    note_last(core);
    if (terms->on_worker_loss != CAIRN_WORKER_LOSS_WAIT) return;
    if (core->worker_count > losses->world) losses->world = core->worker_count;
    losses->until_ms = core->now_ms + terms->worker_loss_wait_ms;
}

/* Nobody waits for it; and the last to leave ends the run. */
void cairn_round_note_left(struct cairn_round *core)
{
    struct losses *losses = &core->losses;
    note_last(core);
    if (losses->world > 0) losses->world--;
    if (core->worker_count == 1) losses->world = 0;
}

void cairn_round_end_losses(struct cairn_round *core)
{
    struct losses *losses = &core->losses;
    if (core->worker_count >= losses->world || core->now_ms >= losses->until_ms) losses->world = 0;
}

bool cairn_round_waits_for_lost(const struct cairn_round *core)
{
    return core->worker_count < core->losses.world && !MUTANT(59);
}

bool cairn_round_halted_of_loss(const struct cairn_round *core)
{
    return core->losses.failed;
}

void cairn_round_say_lost(const struct cairn_round *core, struct cairn_sentence *out)
{
    const uint32_t world = core->losses.world, missing = world - core->worker_count;
    cairn_sentence_set(out,
                       "%u more worker%s (%u of %u attached since a loss; without %s in %llu s): "
                       "start %s, or amend "
                       "the job (`cairn job amend JOB --on-worker-loss redo`)",
                       (unsigned)missing, missing == 1 ? "" : "s", (unsigned)core->worker_count,
                       (unsigned)world, missing == 1 ? "it" : "them",
                       (unsigned long long)(core->losses.until_ms - core->now_ms + 999) / 1000,
                       missing == 1 ? "it" : "them");
}
