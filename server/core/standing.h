/* How a shard and a coordinator stand to each other: whether this coordinator may act on what that
 * shard holds.
 *
 * A shard keeps, with its state, the store that the state belongs to and the newest coordinator
 * that the shard has obeyed. The coordinator is known by its incarnation, and its process by a
 * random number, since a store that was copied back can give one incarnation to two processes. The
 * shard obeys no other store, no older coordinator, and no second one of the same incarnation.
 *
 * The same holds for a job: a store that has less than a shard has seen (a generation, an epoch, a
 * revision, a round) is an older copy. Its coordinator acts on nothing of the job until an operator
 * adopts what the shards hold, which makes a store of a new identity, with numbers above everything
 * that they have seen.
 *
 * Both sides judge by these functions; so does the simulator. Pure; no allocation. */
#ifndef CAIRN_CORE_STANDING_H
#define CAIRN_CORE_STANDING_H

#include <stdbool.h>
#include <stdint.h>

/* A coordinator: itself, or the newest that a shard has obeyed. */
struct cairn_coordinator_id {
    uint64_t store; /* of a shard: 0 = it holds nothing, and obeys whoever comes */
    uint64_t incarnation, process;
};

enum cairn_standing {
    CAIRN_STANDING_GOOD,
    CAIRN_STANDING_FOREIGN, /* the state is of another store */
    CAIRN_STANDING_SUPERSEDED /* of this one; a newer coordinator, or another of its incarnation, was here */
};

enum cairn_standing cairn_standing_of(const struct cairn_coordinator_id *coordinator,
                                      const struct cairn_coordinator_id *seen);

/* The highest numbers of a job that a shard has seen, or that a store knows of. */
struct cairn_marks {
    uint64_t generation;
    uint64_t epoch;
    uint64_t revision; /* of the spec */
    /* In a store's marks: it opened no round of this number or a higher one; 0 = it may have
     * opened any. */
    uint64_t round;
};

/* NULL: the store is not behind. Else what it is behind in: "generation", "epoch", "revision" or "round". */
const char *cairn_marks_behind(const struct cairn_marks *store, const struct cairn_marks *seen);

/* Takes what one more shard has seen into what a rebuilt store begins with; first of all it is zero, and at
 * last cairn_marks_above makes it something that none of them has seen: `round_block` as many round numbers
 * as may have been used beyond those that a shard heard of, a CAIRN_ROUND_BLOCK for each incarnation. */
void cairn_marks_add(struct cairn_marks *all, const struct cairn_marks *seen);
void cairn_marks_above(struct cairn_marks *all, uint64_t round_block);

#endif
