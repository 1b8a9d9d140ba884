#include "server/core/journal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>

#include "proto/base/mutant.h"

#define NONE SIZE_MAX

static bool is_same(struct cairn_version a, struct cairn_version b)
{
    return version_compare(a, b) == 0;
}

static cairn_status fail_gap(const struct journal_record *record, struct cairn_version before,
                             struct sentence *why)
{
    const struct cairn_version version = record->kept.version;
    return fail_with(why, CAIRN_ERR_CHECKSUM,
                     "entry %" PRIu64 " of the log is of version %" PRIu64 ".%" PRIu64
                     ", and those before it end at %" PRIu64 ".%" PRIu64,
                     record->number, version.generation, version.step, before.generation,
                     before.step);
}

/* How the machine continues after an entry. */
static struct step_kept step_after(const struct journal_record *record, bool is_prepared)
{
    const bool is_decided = record->kind == JOURNAL_DECISION;
    struct step_kept kept = record->kept;
    kept.phase = is_prepared ? CAIRN_STEP_REDUCED : CAIRN_STEP_IDLE;
    if (!is_prepared) kept.round = 0;
    if (is_decided) kept.version = kept.last.version_after;
    return kept;
}

/* Follows the entries. `version`: where they are; reached: the base's version was come by. */
struct following {
    const struct journal_record *records;
    struct cairn_version version, base;
    size_t round; /* the ROUND that is not decided yet */
    bool reached;
};

static uint64_t round_of(const struct following *f)
{
    return f->records[f->round].kept.round;
}

static void apply_round(struct following *f, size_t decided, struct journal_plan *plan)
{
    const struct cairn_version after = f->records[decided].kept.last.version_after;
    const bool is_base = MUTANT(119) && is_same(after, f->base);
    if (f->reached || is_base)
        plan->steps[plan->count++] = (struct journal_step) { f->round, decided };
    f->version = after;
    f->round = NONE;
    f->reached |= is_same(f->version, f->base);
}

static cairn_status follow_decision(struct following *f, size_t i, bool is_ours,
                                    struct journal_plan *plan, struct sentence *why)
{
    const struct journal_record *record = &f->records[i];
    const struct decision *last = &record->kept.last;
    bool is_of = is_same(record->kept.version, f->version);
    if (last->kind == CAIRN_DECISION_SKIP) {
        is_of = is_of && (f->round != NONE ? last->round == round_of(f) : !f->reached);
        if (!is_of) return fail_gap(record, f->version, why);
        f->round = NONE;
        return CAIRN_OK;
    }
    // The sums of what the snapshot has may be in a segment that is gone.
    const bool is_in_base = !f->reached && f->round == NONE && last->kind == CAIRN_DECISION_APPLY;
    if (!is_of || (!is_ours && !is_in_base)) return fail_gap(record, f->version, why);
    apply_round(f, i, plan);
    return CAIRN_OK;
}

/* True if the entry says that the round was applied. */
static bool applies(const struct following *f, const struct journal_record *record)
{
    return f->round != NONE && record->kept.last.kind == CAIRN_DECISION_APPLY &&
           record->kept.last.round == round_of(f);
}

static cairn_status follow(struct following *f, size_t i, struct journal_plan *plan,
                           struct sentence *why)
{
    const struct journal_record *record = &f->records[i];
    const struct step_kept *kept = &record->kept;
    const bool is_start = record->kind == JOURNAL_START;
    const bool is_ours = applies(f, record);
    if (record->kind == JOURNAL_DECISION) return follow_decision(f, i, is_ours, plan, why);
    // A process that died between the decision and its entry: its keeper had the rest.
    if (is_start && is_ours) apply_round(f, i, plan);
    if (!is_same(kept->version, f->version)) return fail_gap(record, f->version, why);
    const bool stays = is_start && kept->phase == CAIRN_STEP_REDUCED && f->round != NONE &&
                       round_of(f) == kept->round && !MUTANT(120);
    if (!stays) f->round = record->kind == JOURNAL_ROUND ? i : NONE;
    return CAIRN_OK;
}

cairn_status journal_plan_of(const struct journal_record *records, size_t count,
                             struct cairn_version base, const struct cairn_version *to,
                             struct journal_step *steps, struct journal_plan *plan_out,
                             struct sentence *why)
{
    assert(count > 0);
    struct journal_plan plan = { .steps = steps };
    const struct cairn_version first = records[0].kept.version;
    struct following f = { .records = records,
                           .version = first,
                           .base = base,
                           .round = NONE,
                           .reached = is_same(first, base) };
    for (size_t i = 0; i < count; i++) {
        const bool is_there = to != NULL && f.reached && is_same(f.version, *to);
        if (is_there && records[i].kind != JOURNAL_ROUND && applies(&f, &records[i])) break;
        CAIRN_TRY(follow(&f, i, &plan, why));
        plan.last = i;
    }
    if (!f.reached)
        return fail_with(why, CAIRN_ERR_CHECKSUM,
                         "the log goes from version %" PRIu64 ".%" PRIu64 " to %" PRIu64 ".%" PRIu64
                         ", and its snapshot is of %" PRIu64 ".%" PRIu64,
                         first.generation, first.step, f.version.generation, f.version.step,
                         base.generation, base.step);
    if (to != NULL && !is_same(f.version, *to))
        return fail_with(why, CAIRN_ERR_VERSION_GONE,
                         "the log goes from its snapshot of version %" PRIu64 ".%" PRIu64
                         " to %" PRIu64 ".%" PRIu64 ", and does not come by %" PRIu64 ".%" PRIu64,
                         base.generation, base.step, f.version.generation, f.version.step,
                         to->generation, to->step);
    plan.round = to == NULL ? f.round : NONE;
    plan.step = step_after(&records[plan.last], plan.round != NONE);
    *plan_out = plan;
    return CAIRN_OK;
}

void journal_plan_go_without(const struct journal_record *last, struct journal_plan *plan)
{
    assert(plan->step.phase == CAIRN_STEP_REDUCED && plan->round == plan->last);
    // Its head says how far the machine was: a skip before it has no entry of its own.
    plan->step = step_after(last, false);
    if (MUTANT(121)) plan->step.last = (struct decision) { .kind = CAIRN_DECISION_NONE };
    plan->round = NONE;
}

/* A segment that begins at the base may have been begun by a process that found a round prepared: its sums
 * are in the segment before. */
uint64_t journal_first_needed(const struct journal_kept_segment *segments, size_t count,
                              struct cairn_version base)
{
    assert(count > 0);
    uint64_t number = segments[0].number;
    for (size_t i = 0; i < count; i++) {
        const int order = version_compare(segments[i].first, base);
        if (order < 0 || (MUTANT(122) && order == 0)) number = segments[i].number;
    }
    return number;
}
