/* The plan by which the entries of a log bring the state of its base to the newest version: core/journal.h
 * judges by their heads. */
#include "server/shard/journal_file.h"

#include <assert.h>
#include <stdlib.h>

static struct journal_record record_of(const struct journal_entry *entry)
{
    return (struct journal_record) {
        .kind = (enum journal_kind)entry->head.kind,
        .number = entry->head.entry,
        .kept = kept_outcome_step(&entry->head.outcome, journal_entry_payload(entry)),
    };
}

cairn_status journal_plan_make(const struct journal_entries *entries, struct cairn_version base,
                               const struct cairn_version *to, struct journal_plan *plan_out,
                               struct sentence *why)
{
    const size_t count = entries->count;
    assert(count > 0);
    struct journal_record *records = calloc(count, sizeof *records);
    struct journal_step *steps = calloc(count, sizeof *steps);
    cairn_status status = CAIRN_OK;
    if (records == NULL || steps == NULL)
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read a log");
    for (size_t i = 0; i < count && status == CAIRN_OK; i++)
        records[i] = record_of(&entries->list[i]);
    if (status == CAIRN_OK)
        status = journal_plan_of(records, count, base, to, steps, plan_out, why);
    free(records);
    if (status != CAIRN_OK) free(steps);
    return status;
}

void journal_plan_release(struct journal_plan *plan)
{
    free(plan->steps);
    *plan = (struct journal_plan) { .steps = NULL };
}

void journal_plan_drop_round(const struct journal_entries *entries, struct journal_plan *plan)
{
    const struct journal_record last = record_of(&entries->list[plan->last]);
    assert(plan->round == plan->last);
    journal_plan_go_without(&last, plan);
}
