/* How many steps passed which tensors by: what is frozen, or what nobody touched where that is left alone.
 * The update of a tensor goes by its own count, the job's step less those. It is state of the job that
 * travels in the payload of the decisions, so that the next incarnation, a snapshot and a shard that joins
 * have it. */
#include "server/core/round_state.h"

#include <assert.h>
#include <string.h>

#include "server/core/mutant.h"

void cairn_round_missed_begin(struct cairn_round *core)
{
    if (core->has_untouched)
        memset(core->untouched, 0, core->config.tensor_count * sizeof *core->untouched);
    core->has_untouched = false;
}

bool cairn_round_missed_note(struct cairn_round *core, const struct cairn_round_event *event)
{
    if (!core->config.leaves_untouched) return true;
    for (uint32_t i = 0; i < event->untouched_count; i++)
        if (event->untouched[i].tensor >= core->config.tensor_count) return false;
    for (uint32_t i = 0; i < event->untouched_count; i++) {
        core->untouched[event->untouched[i].tensor] += event->untouched[i].elems;
        core->has_untouched = true;
    }
    return true;
}

cairn_status cairn_round_missed_take(struct cairn_round *core, const struct cairn_payload *told)
{
    const bool none = told == NULL || told->missed.size == 0 || MUTANT(78);
    if (core->has_missed) memset(core->missed, 0, core->config.tensor_count * sizeof *core->missed);
    core->has_missed = false;
    if (none) return CAIRN_OK;
    if (core->config.tensor_count == 0) return CAIRN_ERR_MALFORMED;
    for (uint32_t t = 0; t < core->config.tensor_count; t++) {
        if (core->config.terms.tensors[t].group == CAIRN_ROUND_UNTRAINED) continue;
        core->missed[t] = cairn_missed_steps(&told->missed, t);
        if (core->missed[t] > core->last.version_after.step) return CAIRN_ERR_MALFORMED;
        core->has_missed = core->has_missed || core->missed[t] > 0;
    }
    return CAIRN_OK;
}

uint64_t cairn_round_missed(const struct cairn_round *core, uint32_t tensor)
{
    assert(tensor < core->config.tensor_count);
    return core->missed[tensor];
}

/* The open round's step passes the tensor by. */
static bool passes_by(const struct cairn_round *core, uint32_t t)
{
    const struct cairn_round_terms *terms = &core->config.terms;
    const struct cairn_round_tensor *tensor = &terms->tensors[t];
    if (tensor->frozen || (terms->frozen != NULL && terms->frozen[tensor->group])) return true;
    if (core->untouched[t] == 0) return false;
    return core->untouched[t] >= tensor->elems || MUTANT(79);
}

/* Sets the scalars of each class that the step updates. */
static void set_scalars(const struct cairn_round *core, struct cairn_missed_writer *writer)
{
    for (uint32_t c = 0; c < writer->class_count; c++) {
        const struct cairn_missed_class one = cairn_missed_written(writer, c);
        if ((one.flags & CAIRN_MISSED_THIS) != 0) continue;
        const struct cairn_group_hyper hyper = cairn_round_hyper(core, one.group);
        const uint64_t count = core->version.step + 1 - (MUTANT(80) ? 0 : one.steps);
        struct cairn_group_scalars scalars;
        const cairn_status status = cairn_group_scalars_of(
            &hyper, count, core->scalars[one.group].grad_scale, &scalars);
        assert(status == CAIRN_OK); // as of the group, and the count is at least 1
        (void)status;
        cairn_missed_set(writer, c, &scalars);
    }
}

bool cairn_round_missed_give(struct cairn_round *core, bool applies, struct cairn_payload *head)
{
    const bool more = applies && (core->config.terms.any_frozen || core->has_untouched);
    if (core->config.tensor_count == 0 || (!core->has_missed && !more)) return true;
    struct cairn_missed_writer writer;
    cairn_missed_begin(&writer, core->missed_room, core->config.tensor_count);
    core->has_missed = false;
    for (uint32_t t = 0; t < core->config.tensor_count; t++) {
        const uint32_t group = core->config.terms.tensors[t].group;
        if (group == CAIRN_ROUND_UNTRAINED) continue;
        const bool passed = applies && passes_by(core, t);
        core->missed[t] += passed;
        core->has_missed = core->has_missed || core->missed[t] > 0;
        cairn_missed_put(&writer, t, core->missed[t], group, passed);
    }
    if (writer.is_full) return false;
    if (applies) set_scalars(core, &writer);
    head->missed = cairn_missed_end(&writer);
    return true;
}
