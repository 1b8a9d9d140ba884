/* Which operations of a job exclude each other, which wait, and when no round may open because of them.
 *
 * An operation is asked for, and is refused or begins. It then goes through its stages, from left to right:
 *
 *   MAKE      MAKING                                  the job is created
 *   RESTORE   RESTORING                               the job is made from a snapshot
 *   DROP      DROPPING                                the job is deleted
 *   ADOPT                                             the job is made anew from what shards hold, at once
 *   AMEND     AMENDING                                the changed terms are stored
 *   EXTEND    EXTENDING -> EXTEND_MAKING              a new generation is made
 *   PARK      PARKING -> PARK_ASKING -> PARKED        state moves off devices; unparking is PARKING, too
 *                           \-> PARK_STUCK            a shard can neither park nor unpark
 *   RESHARD   RESHARD_STORING -> RESTING              the run is stored
 *             RESTING -> JOINING -> JOINED -> SLICING shards join, and wait for the first slice
 *             RESTING -> SLICING -> RESTING ...       one slice after another
 *             RESTING -> PUBLISH_WAITS -> PUBLISHING  the newest version is published in the last layout
 *   SNAPSHOT  PREPARING -> READY -> PINNED            a snapshot or a digest is taken
 *
 * A stage holds things of the job, and an operation needs things of the job. There are two rules:
 *
 *   - An operation that is asked for is refused if another one holds something that it needs. There are two
 *     exceptions: some operations wait for others (nearly all for a re-sharding, whose slices end within a
 *     few steps), and some end another one when they begin.
 *   - A stage that works on the job (READY -> PINNED, PARKING -> PARK_ASKING, RESTING -> SLICING ...)
 *     begins when no other operation holds something that the stage's operation needs. An operation that
 *     has not begun its work keeps only operations waiting that come after it in enum operation, and not a
 *     re-sharding whose shards have joined.
 *
 * The gate and the members are not exclusive: several stages at a time may keep rounds from opening, or
 * members from joining.
 *
 * To add an operation, add it and its stages to the enums here and to the tables in operation.c, and a
 * struct coord_operation (coordinator/operations.h). Pure; no allocation. */
#ifndef CAIRN_CORE_OPERATION_H
#define CAIRN_CORE_OPERATION_H

#include <stdbool.h>

enum operation_hold {
    CAIRN_HOLD_LAYOUT = 1,   /* the layout in force and the next layout */
    CAIRN_HOLD_SPEC = 2,     /* tensors and terms */
    CAIRN_HOLD_STATE = 4,    /* the parts on the shards */
    CAIRN_HOLD_PLACE = 8,    /* whether the parts lie on devices or in host memory */
    CAIRN_HOLD_GATE = 16,    /* shared: no round opens */
    CAIRN_HOLD_MEMBERS = 32, /* shared: no member joins */
};

/* An operation is under way at most once in a job. If two operations wait for each other, the one that
 * comes first in this list begins. */
enum operation {
    CAIRN_OPERATION_MAKE,
    CAIRN_OPERATION_RESTORE,
    CAIRN_OPERATION_DROP,
    CAIRN_OPERATION_ADOPT,
    CAIRN_OPERATION_AMEND,
    CAIRN_OPERATION_EXTEND,
    CAIRN_OPERATION_PARK,
    CAIRN_OPERATION_RESHARD,
    CAIRN_OPERATION_SNAPSHOT,
    CAIRN_OPERATIONS /* the number of operations; as a result of a function: no operation */
};

enum operation_stage {
    CAIRN_STAGE_NONE, /* the operation is not under way */
    CAIRN_STAGE_MAKING,
    CAIRN_STAGE_RESTORING,
    CAIRN_STAGE_DROPPING,
    CAIRN_STAGE_PREPARING, /* the shards make room for what the next update overwrites */
    CAIRN_STAGE_READY,
    CAIRN_STAGE_PINNED,
    CAIRN_STAGE_AMENDING,
    CAIRN_STAGE_EXTENDING, /* waits until the open round ends */
    CAIRN_STAGE_EXTEND_MAKING,
    CAIRN_STAGE_PARKING, /* waits until the open round ends */
    CAIRN_STAGE_PARK_ASKING,
    CAIRN_STAGE_PARKED,
    CAIRN_STAGE_PARK_STUCK,
    CAIRN_STAGE_RESHARD_STORING,
    CAIRN_STAGE_RESTING,
    CAIRN_STAGE_JOINING, /* shards make room for parts that own nothing yet */
    CAIRN_STAGE_JOINED,
    CAIRN_STAGE_SLICING,
    CAIRN_STAGE_PUBLISH_WAITS, /* waits until the open round ends */
    CAIRN_STAGE_PUBLISHING,
    CAIRN_STAGES /* the number of stages */
};

/* The stage of each operation of a job. */
struct operations {
    enum operation_stage at[CAIRN_OPERATIONS];
};

/* Returns what all stages together hold, as bits of enum operation_hold. */
unsigned operations_hold(const struct operations *operations);
/* Returns the operation because of which `asked` is refused; CAIRN_OPERATIONS if `asked` may begin. If
 * `asked` itself is under way, and may be joined, that is no reason to refuse it. */
enum operation operations_refuse(const struct operations *operations, enum operation asked);
/* Returns the operation that has to end, or to come to its next stage, before the next working stage of
 * `waiting` begins; CAIRN_OPERATIONS if there is none. */
enum operation operations_block(const struct operations *operations, enum operation waiting);

#endif
