/* The operations of a job (server/core/operation.h), in every order: every request in every state that can be
 * reached, with an end of any operation at any moment. The tables of this file are written anew, from what
 * users are promised, so that a slip in the core's tables is seen. */
#include <stdio.h>
#include <string.h>

#include "server/core/operation.h"
#include "tests/sim/sim.h"

#define S(name) (1u << CAIRN_STAGE_##name)
#define MOST    20000

/* The stages in which shards, the store or a thread work on the job. */
static const unsigned made = S(MAKING) | S(RESTORING) | S(DROPPING);
static const unsigned at_work = made | S(PINNED) | S(AMENDING) | S(EXTEND_MAKING) | S(PARK_ASKING) |
                                S(SLICING) | S(PUBLISHING);
static const unsigned waits = S(EXTENDING) | S(PARKING) | S(READY) | S(RESTING) | S(JOINED) |
                              S(PUBLISH_WAITS);
static const unsigned shut = S(EXTENDING) | S(EXTEND_MAKING) | S(PARKING) | S(PARK_ASKING) |
                             S(PARKED) | S(PARK_STUCK) | S(PUBLISH_WAITS) | S(PUBLISHING);
static const unsigned no_joining = made | S(EXTEND_MAKING);

/* refused[operation]: the stages of others, and of its own, in which a request for it is refused. */
static const unsigned saved = S(PREPARING) | S(READY) | S(PINNED),
                      extended = S(EXTENDING) | S(EXTEND_MAKING),
                      parking = S(PARKING) | S(PARK_ASKING) | S(PARK_STUCK),
                      moved = S(RESHARD_STORING) | S(JOINING) | S(JOINED) | S(SLICING) |
                              S(PUBLISHING);
static const unsigned refused[CAIRN_OPERATIONS] = {
    // no job is there yet, or another one takes its place
    [CAIRN_OPERATION_MAKE] = made | saved | S(AMENDING) | extended | parking | S(PARKED) | moved,
    [CAIRN_OPERATION_RESTORE] = made | saved | S(AMENDING) | extended,
    [CAIRN_OPERATION_DROP] = made | saved | S(AMENDING) | extended,
    [CAIRN_OPERATION_ADOPT] = made | saved | S(AMENDING) | extended,
    [CAIRN_OPERATION_AMEND] = made | extended,
    [CAIRN_OPERATION_EXTEND] = made | saved | S(AMENDING) | extended | parking | S(PARKED),
    [CAIRN_OPERATION_PARK] = made | saved | extended,
    [CAIRN_OPERATION_RESHARD] = 0,
    // a job that is parked, even in part, can be saved
    [CAIRN_OPERATION_SNAPSHOT] = made | extended | S(PARKING) | S(PARK_ASKING),
};

/* apart[stage]: the stages at work that must not be at the same time. */
static const unsigned apart[CAIRN_STAGES] = {
    [CAIRN_STAGE_MAKING] = ~0u,
    [CAIRN_STAGE_RESTORING] = ~0u,
    [CAIRN_STAGE_DROPPING] = ~0u,
    [CAIRN_STAGE_PINNED] = S(EXTEND_MAKING) | S(PARK_ASKING) | S(SLICING) | S(PUBLISHING),
    [CAIRN_STAGE_EXTEND_MAKING] = ~0u,
    [CAIRN_STAGE_PARK_ASKING] = S(SLICING) | S(PUBLISHING),
    [CAIRN_STAGE_PARKED] = S(SLICING) | S(PUBLISHING),
    [CAIRN_STAGE_PARK_STUCK] = S(SLICING) | S(PUBLISHING),
};

static const enum operation_stage first[CAIRN_OPERATIONS] = {
    [CAIRN_OPERATION_MAKE] = CAIRN_STAGE_MAKING,
    [CAIRN_OPERATION_RESTORE] = CAIRN_STAGE_RESTORING,
    [CAIRN_OPERATION_DROP] = CAIRN_STAGE_DROPPING,
    [CAIRN_OPERATION_ADOPT] = CAIRN_STAGE_NONE, // the job is made anew at once
    [CAIRN_OPERATION_AMEND] = CAIRN_STAGE_AMENDING,
    [CAIRN_OPERATION_EXTEND] = CAIRN_STAGE_EXTENDING,
    [CAIRN_OPERATION_PARK] = CAIRN_STAGE_PARKING,
    [CAIRN_OPERATION_RESHARD] = CAIRN_STAGE_RESHARD_STORING,
    [CAIRN_OPERATION_SNAPSHOT] = CAIRN_STAGE_PREPARING,
};

/* The stages that may follow, when nobody blocks the operation and when that does not matter. */
static const struct {
    unsigned begun, free;
} next[CAIRN_STAGES] = {
    [CAIRN_STAGE_PREPARING] = { .free = S(READY) },
    [CAIRN_STAGE_READY] = { .begun = S(PINNED) },
    [CAIRN_STAGE_EXTENDING] = { .begun = S(EXTEND_MAKING) },
    [CAIRN_STAGE_PARKING] = { .begun = S(PARK_ASKING) },
    [CAIRN_STAGE_PARK_ASKING] = { .free = S(PARKED) | S(PARK_STUCK) | S(PARKING) },
    [CAIRN_STAGE_PARKED] = { .free = S(PARKING) },
    [CAIRN_STAGE_PARK_STUCK] = { .free = S(PARKING) },
    [CAIRN_STAGE_RESHARD_STORING] = { .free = S(RESTING) },
    [CAIRN_STAGE_JOINING] = { .free = S(JOINED) | S(RESTING) },
    [CAIRN_STAGE_JOINED] = { .begun = S(SLICING) },
    [CAIRN_STAGE_RESTING] = { .begun = S(JOINING) | S(SLICING) | S(PUBLISH_WAITS) },
    [CAIRN_STAGE_SLICING] = { .free = S(RESTING) |
                                      S(JOINED) }, // JOINED: the first slice was refused
    [CAIRN_STAGE_PUBLISH_WAITS] = { .begun = S(PUBLISHING) | S(RESTING) },
    [CAIRN_STAGE_PUBLISHING] = { .free = S(RESTING) | S(PUBLISH_WAITS) },
};

struct walk {
    struct operations seen[MOST];
    size_t count;
    bool good;
};

static bool complain(struct walk *walk, const struct operations *o, const char *what)
{
    if (walk->good) {
        printf("operations: %s; the stages are", what);
        for (int i = 0; i < CAIRN_OPERATIONS; i++) printf(" %d", (int)o->at[i]);
        printf("\n");
    }
    return walk->good = false;
}

static unsigned stages_of(const struct operations *o)
{
    unsigned all = 0;
    for (int i = 0; i < CAIRN_OPERATIONS; i++) all |= 1u << o->at[i];
    return all & ~S(NONE);
}

static void judge(struct walk *walk, const struct operations *o)
{
    const unsigned all = stages_of(o), held = operations_hold(o);
    bool may_begin = false, is_waiting = false;
    for (enum operation i = 0; i < CAIRN_OPERATIONS; i++) {
        const enum operation_stage stage = o->at[i];
        if ((apart[stage] & (all & at_work) & ~(1u << stage)) != 0)
            complain(walk, o, "two are at work that exclude each other");
        if ((1u << stage & waits) == 0) continue;
        is_waiting = true;
        may_begin |= operations_block(o, i) == CAIRN_OPERATIONS;
    }
    if (((held & CAIRN_HOLD_GATE) != 0) != ((all & shut) != 0))
        complain(walk, o, "the gate is open, and should be shut, or the other way round");
    if (((held & CAIRN_HOLD_MEMBERS) != 0) != ((all & no_joining) != 0))
        complain(walk, o, "members may join, and should not, or the other way round");
    // A re-sharding may wait for an operator, who unparks the job; nothing else does.
    const bool waits_for_operator = (all & waits & ~(S(RESTING) | S(JOINED) | S(PUBLISH_WAITS))) ==
                                        0 &&
                                    (all & (S(PARKED) | S(PARK_STUCK))) != 0;
    if (is_waiting && !may_begin &&
        (all & (at_work | S(PREPARING) | S(RESHARD_STORING) | S(JOINING))) == 0 &&
        !waits_for_operator)
        complain(walk, o, "all wait for each other");
    for (enum operation asked = 0; asked < CAIRN_OPERATIONS; asked++) {
        const enum operation by = operations_refuse(o, asked);
        if ((by != CAIRN_OPERATIONS) != ((all & refused[asked]) != 0))
            complain(walk, o, "a request is refused that should not be, or the other way round");
        if (by != CAIRN_OPERATIONS && (1u << o->at[by] & refused[asked]) == 0)
            complain(walk, o, "a request is refused because of the wrong operation");
    }
}

static void reach(struct walk *walk, struct operations o, enum operation which,
                  enum operation_stage stage)
{
    o.at[which] = stage;
    for (size_t i = 0; i < walk->count; i++)
        if (memcmp(&walk->seen[i], &o, sizeof o) == 0) return;
    if (walk->count == MOST) {
        complain(walk, &o, "more states than there can be");
        return;
    }
    walk->seen[walk->count++] = o;
}

static void ask(struct walk *walk, struct operations o, enum operation asked)
{
    if (o.at[asked] != CAIRN_STAGE_NONE || operations_refuse(&o, asked) != CAIRN_OPERATIONS) return;
    // a job that is replaced or dropped is neither parked nor moved
    if (asked == CAIRN_OPERATION_RESTORE || asked == CAIRN_OPERATION_DROP ||
        asked == CAIRN_OPERATION_ADOPT)
        o.at[CAIRN_OPERATION_PARK] = o.at[CAIRN_OPERATION_RESHARD] = CAIRN_STAGE_NONE;
    reach(walk, o, asked, first[asked]);
}

bool sim_operations(void)
{
    static struct walk walk;
    walk = (struct walk) { .count = 1, .good = true };
    for (size_t at = 0; at < walk.count && walk.good; at++) {
        const struct operations o = walk.seen[at];
        judge(&walk, &o);
        for (enum operation i = 0; i < CAIRN_OPERATIONS; i++) {
            const bool begins = operations_block(&o, i) == CAIRN_OPERATIONS;
            const unsigned to = next[o.at[i]].free | (begins ? next[o.at[i]].begun : 0);
            ask(&walk, o, i);
            reach(&walk, o, i, CAIRN_STAGE_NONE); // done, given up, or lost
            for (enum operation_stage stage = 0; stage < CAIRN_STAGES; stage++)
                if ((to & 1u << stage) != 0) reach(&walk, o, i, stage);
        }
        // A shard that is back reports that an earlier coordinator has parked its part.
        if (o.at[CAIRN_OPERATION_PARK] == CAIRN_STAGE_NONE && (stages_of(&o) & at_work) == 0)
            reach(&walk, o, CAIRN_OPERATION_PARK, CAIRN_STAGE_PARKING);
    }
    return walk.good;
}
