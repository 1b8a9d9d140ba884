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
#include <stddef.h>
#include <stdint.h>

/* ==== seat ==== */

/* Decides which process may have a shard's name. A shard is known by its name; its process by its
 * incarnation, a number that is new with every start. Two processes under one name are a slip (a
 * unit started twice, a host that was cloned, a container whose former one lives on), or one of
 * them was taken for dead and is not. The memory of one process does not have what was in the
 * other's, so:
 *
 *  - a process that answers keeps its seat: a newcomer gets it from a silent process only;
 *  - a process that holds state goes before one that holds none, whichever came first;
 *  - only a process that holds nothing that a job may want is told to end.
 *
 * Pure; no allocation. */

/* A question to the process that has the seat. */
enum seat_probe {
    CAIRN_SEAT_UNASKED = 0,
    CAIRN_SEAT_ASKED,
    CAIRN_SEAT_ANSWERED, /* for the newcomer that asks next; then UNASKED again */
    CAIRN_SEAT_SILENT    /* asked, and a lease has passed */
};

struct seat_claim {
    bool taken; /* somebody's session has it */
    bool same;  /* the newcomer is that process, on another connection */
    /* state that a job may want: of its generation or a later one, or of a job that is unknown here */
    bool newcomer_holds;
    bool sitter_holds; /* the same of who has it */
    enum seat_probe probe;
};

enum seat_verdict {
    CAIRN_SEAT_TAKES, /* the newcomer has it; the connection of who had it is ended without a word */
    CAIRN_SEAT_RELIEVES, /* the newcomer has it; who had it holds nothing, and is told to end */
    CAIRN_SEAT_PROBES,   /* who has it is asked; the newcomer comes again */
    CAIRN_SEAT_WAITS,    /* the newcomer comes again: the answer is awaited */
    CAIRN_SEAT_STANDS,   /* both hold state: the newcomer comes again, for an operator to choose */
    CAIRN_SEAT_ENDS,     /* the newcomer is told to end */
};

enum seat_verdict seat_judge(const struct seat_claim *claim);

/* A part of a job's state that a shard holds, or should. */
struct seat_part {
    uint64_t job, generation, layout_hash;
};
/* The part is among those [held_count]. */
bool seat_has(const struct seat_part *part, const struct seat_part *held, size_t held_count);

/* ==== standing ==== */

/* A coordinator: itself, or the newest that a shard has obeyed. */
struct coordinator_id {
    uint64_t store; /* of a shard: 0 = it holds nothing, and obeys whoever comes */
    uint64_t incarnation, process;
};

enum standing {
    CAIRN_STANDING_GOOD,
    CAIRN_STANDING_FOREIGN, /* the state is of another store */
    CAIRN_STANDING_SUPERSEDED /* of this one; a newer coordinator, or another of its incarnation, was here */
};

enum standing standing_of(const struct coordinator_id *coordinator,
                          const struct coordinator_id *seen);

/* The highest numbers of a job that a shard has seen, or that a store knows of. */
struct marks {
    uint64_t generation;
    uint64_t epoch;
    uint64_t revision; /* of the spec */
    /* In a store's marks: it opened no round of this number or a higher one; 0 = it may have
     * opened any. */
    uint64_t round;
};

/* NULL: the store is not behind. Else what it is behind in: "generation", "epoch", "revision" or "round". */
const char *marks_behind(const struct marks *store, const struct marks *seen);

/* Takes what one more shard has seen into what a rebuilt store begins with; first of all it is zero, and at
 * last marks_above makes it something that none of them has seen: `round_block` as many round numbers
 * as may have been used beyond those that a shard heard of, a CAIRN_ROUND_BLOCK for each incarnation. */
void marks_add(struct marks *all, const struct marks *seen);
void marks_above(struct marks *all, uint64_t round_block);

#endif
