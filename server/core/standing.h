/* How a shard and a coordinator stand to each other: whether this coordinator may act on the state that the
 * shard holds.
 *
 * A shard keeps, with its state, the store to which the state belongs and the newest coordinator that the
 * shard has obeyed. The coordinator is identified by its incarnation, and its process by a random number,
 * since a store that was copied back can give one incarnation to two processes. The shard obeys no other
 * store, no older coordinator, and no second one of the same incarnation.
 *
 * The same holds for a job: a store that is behind what a shard has seen (a generation, an epoch, a
 * revision, a round) is an older copy. Its coordinator does nothing with the job until an operator adopts
 * what the shards hold, which makes a store of a new identity, with numbers above everything that the
 * shards have seen.
 *
 * Both sides judge by these functions; so does the simulator. Pure; no allocation. */
#ifndef CAIRN_CORE_STANDING_H
#define CAIRN_CORE_STANDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ==== seat ==== */

/* Decides which process may have a shard's name. A shard is identified by its name; its process by its
 * incarnation, a number that is new with every start. Two processes under one name are a mistake (a unit
 * started twice, a host that was cloned, a container whose predecessor lives on), or one process was
 * believed dead and is not. The memory of one process does not have the other's state, so:
 *
 *  - a process that answers keeps its seat: a newcomer gets it from a silent process only;
 *  - a process that holds state has priority over one that holds none, whichever connected first;
 *  - only a process that holds nothing that a job may want is told to end.
 *
 * Pure; no allocation. */

/* A question to the process that has the seat. */
enum seat_probe {
    CAIRN_SEAT_UNASKED = 0,
    CAIRN_SEAT_ASKED,
    CAIRN_SEAT_ANSWERED, /* for the newcomer that asks next; then UNASKED again */
    CAIRN_SEAT_SILENT    /* asked, and has not answered for a lease */
};

struct seat_claim {
    bool taken; /* the session of some process has the seat */
    bool same;  /* the newcomer is the process that has the seat, on another connection */
    /* state that a job may want: of the job's generation or a later one, or of a job that is unknown
     * here */
    bool newcomer_holds;
    bool sitter_holds; /* likewise for the process that has the seat */
    enum seat_probe probe;
};

enum seat_verdict {
    /* the newcomer gets the seat; the connection of the process that had the seat is ended without a
     * message */
    CAIRN_SEAT_TAKES,
    /* the newcomer gets the seat; the process that had the seat holds nothing, and is told to end */
    CAIRN_SEAT_RELIEVES,
    CAIRN_SEAT_PROBES, /* the process that has it is asked; the newcomer tries again */
    CAIRN_SEAT_WAITS,  /* the newcomer tries again: the answer is awaited */
    CAIRN_SEAT_STANDS, /* both hold state: the newcomer tries again, until an operator chooses */
    CAIRN_SEAT_ENDS,   /* the newcomer is told to end */
};

enum seat_verdict seat_judge(const struct seat_claim *claim);

/* A part of a job's state that a shard holds, or should. */
struct seat_part {
    uint64_t job, generation, layout_hash;
};
/* True if the part is among those in `held` [held_count]. */
bool seat_has(const struct seat_part *part, const struct seat_part *held, size_t held_count);

/* ==== standing ==== */

/* A coordinator: the present one, or the newest that a shard has obeyed. */
struct coordinator_id {
    uint64_t store; /* kept by a shard: 0 = it holds nothing, and obeys any coordinator */
    uint64_t incarnation, process;
};

enum standing {
    CAIRN_STANDING_GOOD,
    CAIRN_STANDING_FOREIGN, /* the state belongs to another store */
    /* same store; a newer coordinator, or another one of its incarnation, was here */
    CAIRN_STANDING_SUPERSEDED
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

/* Returns NULL if the store is not behind. Otherwise returns the number in which the store is behind:
 * "generation", "epoch", "revision" or "round". */
const char *marks_behind(const struct marks *store, const struct marks *seen);

/* marks_add merges what one more shard has seen into the marks with which a rebuilt store begins; `all` is
 * zero before the first call. At last marks_above raises the marks beyond anything that a shard has seen:
 * `round_block` is the number of round numbers that may have been used beyond those that a shard heard of,
 * a CAIRN_ROUND_BLOCK for each incarnation. */
void marks_add(struct marks *all, const struct marks *seen);
void marks_above(struct marks *all, uint64_t round_block);

#endif
