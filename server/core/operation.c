/* The tables of the operations and of their stages, and the functions that answer questions from these
 * tables. */
#include "server/core/operation.h"

#include "proto/base/mutant.h"

#define BIT(operation) (1u << CAIRN_OPERATION_##operation)

enum {
    EXCLUSIVE = CAIRN_HOLD_LAYOUT | CAIRN_HOLD_SPEC | CAIRN_HOLD_STATE | CAIRN_HOLD_PLACE,
    MOVES_STATE = CAIRN_HOLD_LAYOUT | CAIRN_HOLD_STATE | CAIRN_HOLD_PLACE,
    MAKES_JOB = EXCLUSIVE | (MUTANT(89) ? 0 : CAIRN_HOLD_MEMBERS),
    // a job that is replaced or dropped is neither parked nor moved any more
    END_WITH_JOB = BIT(PARK) | (MUTANT(91) ? 0 : BIT(RESHARD)),
};

static const struct {
    unsigned needs;
    unsigned waits; /* bits: the operations for which this one waits instead of being refused */
    unsigned ends;  /* bits: the operations that end when this one begins */
    bool is_joined; /* a second request joins the operation that runs, or is refused by it */
} rows[CAIRN_OPERATIONS] = {
    [CAIRN_OPERATION_MAKE] = { .needs = EXCLUSIVE },
    [CAIRN_OPERATION_RESTORE] = { EXCLUSIVE, .ends = END_WITH_JOB },
    [CAIRN_OPERATION_DROP] = { EXCLUSIVE, .ends = END_WITH_JOB },
    [CAIRN_OPERATION_ADOPT] = { EXCLUSIVE, .ends = END_WITH_JOB },
    [CAIRN_OPERATION_AMEND] = { CAIRN_HOLD_SPEC, .is_joined = true },
    [CAIRN_OPERATION_EXTEND] = { MUTANT(86) ? MOVES_STATE : EXCLUSIVE, .waits = BIT(RESHARD) },
    [CAIRN_OPERATION_PARK] = { MOVES_STATE, .waits = MUTANT(87) ? 0 : BIT(RESHARD),
                               .is_joined = true },
    [CAIRN_OPERATION_RESHARD] = { CAIRN_HOLD_LAYOUT | CAIRN_HOLD_SPEC |
                                      (MUTANT(88) ? 0 : CAIRN_HOLD_PLACE),
                                  .waits = ~0u, .is_joined = true },
    [CAIRN_OPERATION_SNAPSHOT] = { CAIRN_HOLD_STATE | CAIRN_HOLD_LAYOUT, .waits = BIT(RESHARD),
                                   .is_joined = true },
};

static const unsigned holds[CAIRN_STAGES] = {
    [CAIRN_STAGE_MAKING] = MAKES_JOB,
    [CAIRN_STAGE_RESTORING] = MAKES_JOB,
    [CAIRN_STAGE_DROPPING] = MAKES_JOB,
    [CAIRN_STAGE_PREPARING] = MUTANT(90) ? 0 : CAIRN_HOLD_STATE,
    [CAIRN_STAGE_READY] = CAIRN_HOLD_STATE,
    [CAIRN_STAGE_PINNED] = CAIRN_HOLD_STATE | (MUTANT(92) ? 0 : CAIRN_HOLD_LAYOUT),
    [CAIRN_STAGE_AMENDING] = CAIRN_HOLD_SPEC,
    [CAIRN_STAGE_EXTENDING] = EXCLUSIVE | (MUTANT(93) ? 0 : CAIRN_HOLD_GATE),
    [CAIRN_STAGE_EXTEND_MAKING] = EXCLUSIVE | CAIRN_HOLD_GATE | CAIRN_HOLD_MEMBERS,
    [CAIRN_STAGE_PARKING] = MOVES_STATE | CAIRN_HOLD_GATE,
    [CAIRN_STAGE_PARK_ASKING] = MOVES_STATE | CAIRN_HOLD_GATE,
    // a parked job can be saved, even if it is parked in part
    [CAIRN_STAGE_PARKED] = CAIRN_HOLD_PLACE | CAIRN_HOLD_GATE | (MUTANT(94) ? CAIRN_HOLD_STATE : 0),
    [CAIRN_STAGE_PARK_STUCK] = CAIRN_HOLD_PLACE | (MUTANT(95) ? 0 : CAIRN_HOLD_GATE),
    [CAIRN_STAGE_RESHARD_STORING] = CAIRN_HOLD_LAYOUT,
    [CAIRN_STAGE_JOINING] = CAIRN_HOLD_LAYOUT,
    [CAIRN_STAGE_JOINED] = CAIRN_HOLD_LAYOUT,
    [CAIRN_STAGE_SLICING] = MUTANT(96) ? 0 : CAIRN_HOLD_LAYOUT,
    [CAIRN_STAGE_PUBLISH_WAITS] = CAIRN_HOLD_GATE,
    [CAIRN_STAGE_PUBLISHING] = CAIRN_HOLD_GATE | CAIRN_HOLD_LAYOUT,
};

/* True for the stages in which an operation waits for others before it works on the job. */
static bool waits_to_work(enum operation_stage stage)
{
    return stage == CAIRN_STAGE_EXTENDING || stage == CAIRN_STAGE_PARKING ||
           stage == CAIRN_STAGE_PREPARING || stage == CAIRN_STAGE_READY;
}

unsigned operations_hold(const struct operations *operations)
{
    unsigned held = 0;
    for (int i = 0; i < CAIRN_OPERATIONS; i++) held |= holds[operations->at[i]];
    return held;
}

enum operation operations_refuse(const struct operations *operations, enum operation asked)
{
    for (enum operation i = 0; i < CAIRN_OPERATIONS; i++) {
        const unsigned needed = holds[operations->at[i]] & rows[asked].needs;
        const bool is_excused = ((rows[asked].waits | rows[asked].ends) & 1u << i) != 0 ||
                                (i == asked && (rows[asked].is_joined || MUTANT(98)));
        if (needed != 0 && !is_excused) return i;
    }
    return CAIRN_OPERATIONS;
}

enum operation operations_block(const struct operations *operations, enum operation waiting)
{
    // The shards that have joined hold the layout, so an operation that needs the layout waits for them.
    const bool has_joined = operations->at[waiting] == CAIRN_STAGE_JOINED && !MUTANT(99);
    for (enum operation i = 0; i < CAIRN_OPERATIONS; i++) {
        const enum operation_stage stage = operations->at[i];
        const bool has_priority = (i < waiting && !has_joined) || !waits_to_work(stage) ||
                                  MUTANT(97);
        if (i != waiting && has_priority && (holds[stage] & rows[waiting].needs) != 0) return i;
    }
    return CAIRN_OPERATIONS;
}
