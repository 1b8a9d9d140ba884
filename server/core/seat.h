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
#ifndef CAIRN_CORE_SEAT_H
#define CAIRN_CORE_SEAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A question to the process that has the seat. */
enum cairn_seat_probe {
    CAIRN_SEAT_UNASKED = 0,
    CAIRN_SEAT_ASKED,
    CAIRN_SEAT_ANSWERED, /* for the newcomer that asks next; then UNASKED again */
    CAIRN_SEAT_SILENT    /* asked, and a lease has passed */
};

struct cairn_seat_claim {
    bool taken; /* somebody's session has it */
    bool same;  /* the newcomer is that process, on another connection */
    /* state that a job may want: of its generation or a later one, or of a job that is unknown here */
    bool newcomer_holds;
    bool sitter_holds; /* the same of who has it */
    enum cairn_seat_probe probe;
};

enum cairn_seat_verdict {
    CAIRN_SEAT_TAKES, /* the newcomer has it; the connection of who had it is ended without a word */
    CAIRN_SEAT_RELIEVES, /* the newcomer has it; who had it holds nothing, and is told to end */
    CAIRN_SEAT_PROBES,   /* who has it is asked; the newcomer comes again */
    CAIRN_SEAT_WAITS,    /* the newcomer comes again: the answer is awaited */
    CAIRN_SEAT_STANDS,   /* both hold state: the newcomer comes again, for an operator to choose */
    CAIRN_SEAT_ENDS,     /* the newcomer is told to end */
};

enum cairn_seat_verdict cairn_seat_judge(const struct cairn_seat_claim *claim);

/* A part of a job's state that a shard holds, or should. */
struct cairn_seat_part {
    uint64_t job, generation, layout_hash;
};
/* The part is among those [held_count]. */
bool cairn_seat_has(const struct cairn_seat_part *part, const struct cairn_seat_part *held,
                    size_t held_count);

#endif
