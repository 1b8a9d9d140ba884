/* The plan by which the entries of a log bring the state of its base to the newest version: whose sums are
 * applied, and by which decisions. Pure. */
#include "server/shard/journal_file.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#define NONE SIZE_MAX

static bool is_same(struct cairn_version a, struct cairn_version b)
{
    return version_compare(a, b) == 0;
}

static cairn_status add_step(struct journal_plan *plan, size_t *capacity, size_t round,
                             size_t decided, struct sentence *why)
{
    if (plan->count == *capacity) {
        *capacity = 2 * *capacity + 16;
        struct journal_step *grown = realloc(plan->steps, *capacity * sizeof *grown);
        if (grown == NULL)
            return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read a log");
        plan->steps = grown;
    }
    plan->steps[plan->count++] = (struct journal_step) { round, decided };
    return CAIRN_OK;
}

/* True if the entry says that the round was applied. */
static bool decides(const struct kept_outcome *outcome, const struct kept_outcome *round)
{
    return outcome->kind == CAIRN_DECISION_APPLY && outcome->last_round == round->round;
}

static cairn_status fail_gap(const struct journal_entry *entry, struct cairn_version before,
                             struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_CHECKSUM,
                     "entry %" PRIu64 " of the log is of version %" PRIu64 ".%" PRIu64
                     ", and those before it end at %" PRIu64 ".%" PRIu64,
                     entry->head.entry, entry->head.outcome.version.generation,
                     entry->head.outcome.version.step, before.generation, before.step);
}

/* How the machine continues after an entry. */
static struct step_kept step_after(const struct journal_entry *entry, bool is_prepared)
{
    const struct kept_outcome *o = &entry->head.outcome;
    const bool is_decided = entry->head.kind == JOURNAL_DECISION;
    return (struct step_kept) {
        .phase = is_prepared ? CAIRN_STEP_REDUCED : CAIRN_STEP_IDLE,
        .epoch = o->epoch,
        .round = is_prepared ? o->round : 0,
        .round_seen = o->round_seen,
        .round_epoch = o->round_epoch,
        .version = is_decided ? o->version_after : o->version,
        .last = { .kind = (enum decision_kind)o->kind,
                  .round = o->last_round,
                  .version_after = o->version_after,
                  .payload = journal_entry_payload(entry),
                  .payload_bytes = (size_t)o->payload_bytes },
    };
}

/* Follows the entries. `version`: where they are; reached: the base's version was come by. */
struct following {
    const struct journal_entries *entries;
    struct cairn_version version, base;
    size_t round; /* the ROUND that is not decided yet */
    bool reached;
    size_t capacity;
};

static cairn_status apply_round(struct following *f, size_t decided, struct journal_plan *plan,
                                struct sentence *why)
{
    const struct kept_outcome *o = &f->entries->list[decided].head.outcome;
    if (f->reached) CAIRN_TRY(add_step(plan, &f->capacity, f->round, decided, why));
    f->version = o->version_after;
    f->round = NONE;
    f->reached |= is_same(f->version, f->base);
    return CAIRN_OK;
}

static cairn_status follow(struct following *f, size_t i, struct journal_plan *plan,
                           struct sentence *why)
{
    const struct journal_entry *entry = &f->entries->list[i];
    const struct kept_outcome *o = &entry->head.outcome;
    const bool is_ours = f->round != NONE && decides(o, &f->entries->list[f->round].head.outcome);
    if (entry->head.kind == JOURNAL_DECISION && o->kind == CAIRN_DECISION_SKIP) {
        const bool is_of = is_same(o->version, f->version) &&
                           (f->round != NONE
                                ? o->last_round == f->entries->list[f->round].head.outcome.round
                                : !f->reached);
        f->round = NONE;
        return is_of ? CAIRN_OK : fail_gap(entry, f->version, why);
    }
    if (entry->head.kind == JOURNAL_DECISION) {
        // The sums of what the snapshot has may be in a segment that is gone.
        const bool is_in_base = !f->reached && f->round == NONE && o->kind == CAIRN_DECISION_APPLY;
        if ((!is_ours && !is_in_base) || !is_same(o->version, f->version))
            return fail_gap(entry, f->version, why);
        return apply_round(f, i, plan, why);
    }
    // A process that died between the decision and its entry: its keeper had the rest.
    if (entry->head.kind == JOURNAL_START && is_ours) CAIRN_TRY(apply_round(f, i, plan, why));
    if (!is_same(o->version, f->version)) return fail_gap(entry, f->version, why);
    const bool stays = entry->head.kind == JOURNAL_START && o->phase == CAIRN_STEP_REDUCED &&
                       f->round != NONE &&
                       f->entries->list[f->round].head.outcome.round == o->round;
    if (!stays) f->round = entry->head.kind == JOURNAL_ROUND ? i : NONE;
    return CAIRN_OK;
}

cairn_status journal_plan_make(const struct journal_entries *entries, struct cairn_version base,
                               struct journal_plan *plan_out, struct sentence *why)
{
    struct journal_plan plan = { .last = entries->count - 1 };
    assert(entries->count > 0);
    struct following f = { .entries = entries,
                           .version = entries->list[0].head.outcome.version,
                           .base = base,
                           .round = NONE };
    const struct cairn_version first = f.version;
    f.reached = is_same(f.version, base);
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < entries->count && status == CAIRN_OK; i++)
        status = follow(&f, i, &plan, why);
    if (status == CAIRN_OK && !f.reached)
        status = fail_with(why, CAIRN_ERR_CHECKSUM,
                           "the log goes from version %" PRIu64 ".%" PRIu64 " to %" PRIu64
                           ".%" PRIu64 ", and its snapshot is of %" PRIu64 ".%" PRIu64,
                           first.generation, first.step, f.version.generation, f.version.step,
                           base.generation, base.step);
    if (status != CAIRN_OK) {
        journal_plan_release(&plan);
        return status;
    }
    plan.step = step_after(&entries->list[plan.last], f.round != NONE);
    plan.round = f.round;
    *plan_out = plan;
    return CAIRN_OK;
}

void journal_plan_release(struct journal_plan *plan)
{
    free(plan->steps);
    *plan = (struct journal_plan) { .steps = NULL };
}

void journal_plan_drop_round(const struct journal_entries *entries, struct journal_plan *plan)
{
    assert(plan->step.phase == CAIRN_STEP_REDUCED && plan->round == plan->last);
    // Its front says how far the machine was: a skip before it has no entry of its own.
    plan->step = step_after(&entries->list[plan->last], false);
    plan->round = NONE;
}
