/* Whether a coordinator may act on the state that a shard holds.
 *
 * With its state a shard keeps two identities: the store to which the state belongs, and the newest
 * coordinator that the shard has obeyed. A coordinator is identified by its incarnation and by a random
 * number of its process, because two processes can get the same incarnation from a store that was copied
 * back. The shard does not obey the coordinator of another store, an older coordinator, or a second process
 * of the same incarnation.
 *
 * A store can also be an older copy for a single job. Then one of the job's numbers in the store
 * (generation, epoch, revision, round) is lower than the number that a shard has seen. The coordinator of
 * such a store does nothing with the job until an operator adopts what the shards hold. This makes a store
 * with a new identity, and with numbers above everything that the shards have seen.
 *
 * Coordinators, shards and the simulator use these functions to judge. The functions are pure, and allocate
 * nothing. */
#ifndef CAIRN_CORE_STANDING_H
#define CAIRN_CORE_STANDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ==== seat ==== */

/* Decides which process may have a shard's name. A shard is identified by its name, and a shard's process
 * by its incarnation, a number that is new with every start. If two processes have one name, either this is
 * a mistake (a unit started twice, a host that was cloned, a container whose predecessor lives on), or one
 * of them was wrongly believed dead. Neither process has the state that is in the memory of the other. So
 * these rules hold:
 *
 *  - a process that answers keeps its seat; a newcomer can take the seat only from a silent process;
 *  - as an exception, a newcomer that holds state takes the seat from a process that holds none;
 *  - a process is told to end only if it holds no state that a job may want.
 *
 * Pure; no allocation. */

/* The state of the question to the process that has the seat. */
enum seat_probe {
    CAIRN_SEAT_UNASKED = 0,
    CAIRN_SEAT_ASKED,
    CAIRN_SEAT_ANSWERED, /* counts for the next newcomer only, and is UNASKED afterwards */
    CAIRN_SEAT_SILENT    /* the process was asked, and has not answered for the time of a lease */
};

struct seat_claim {
    bool taken; /* the session of some process has the seat */
    bool same;  /* the newcomer is the process that has the seat, on another connection */
    /* the newcomer holds state that a job may want: its generation is the job's or a later one, or the job
     * is unknown here */
    bool newcomer_holds;
    bool sitter_holds; /* the process that has the seat holds such state */
    enum seat_probe probe;
};

enum seat_verdict {
    /* the newcomer gets the seat; the connection of the process that had the seat is ended without a
     * message */
    CAIRN_SEAT_TAKES,
    /* the newcomer gets the seat; the process that had the seat holds nothing, and is told to end */
    CAIRN_SEAT_RELIEVES,
    CAIRN_SEAT_PROBES, /* the process that has the seat is asked; the newcomer tries again later */
    /* the process that has the seat has yet to answer; the newcomer tries again later */
    CAIRN_SEAT_WAITS,
    /* both processes hold state; the newcomer tries again, until an operator chooses */
    CAIRN_SEAT_STANDS,
    CAIRN_SEAT_ENDS, /* the newcomer is told to end */
};

enum seat_verdict seat_judge(const struct seat_claim *claim);

/* A part of a job's state that a shard holds or should hold. */
struct seat_part {
    uint64_t job, generation, layout_hash;
};
/* True if the part is among those in `held` [held_count]. */
bool seat_has(const struct seat_part *part, const struct seat_part *held, size_t held_count);

/* ==== standing ==== */

/* The identity of a coordinator: of the present one, or of the newest that a shard has obeyed. */
struct coordinator_id {
    /* 0 (only in what a shard keeps): the shard holds nothing, and obeys any coordinator */
    uint64_t store;
    uint64_t incarnation, process;
};

enum standing {
    CAIRN_STANDING_GOOD,
    CAIRN_STANDING_FOREIGN, /* the state belongs to another store */
    /* the store is the same, but the shard has obeyed a newer coordinator, or another process of this
     * incarnation */
    CAIRN_STANDING_SUPERSEDED
};

enum standing standing_of(const struct coordinator_id *coordinator,
                          const struct coordinator_id *seen);

/* The highest numbers of a job that a shard has seen, or that a store knows of. */
struct marks {
    uint64_t generation;
    uint64_t epoch;
    uint64_t revision; /* the revision of the spec */
    /* In a shard's marks: the highest round seen. In a store's marks: its coordinators opened no round with
     * this number or a higher one; 0 = they may have opened any. */
    uint64_t round;
};

/* Returns NULL if the store is not behind. Otherwise returns the number in which the store is behind:
 * "generation", "epoch", "revision" or "round". */
const char *marks_behind(const struct marks *store, const struct marks *seen);

/* These two functions make the marks with which a rebuilt store begins. marks_add raises `all`, which is
 * zero before the first call, to what one more shard has seen. After the last shard, marks_above raises the
 * round above any number that may have been used: beyond the rounds that a shard has seen, `round_block`
 * more numbers may have been used, a CAIRN_ROUND_BLOCK for each incarnation. */
void marks_add(struct marks *all, const struct marks *seen);
void marks_above(struct marks *all, uint64_t round_block);

#endif
