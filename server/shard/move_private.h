#ifndef CAIRN_SHARD_MOVE_PRIVATE_H
#define CAIRN_SHARD_MOVE_PRIVATE_H

#include "proto/link/chunk_link.h"
#include "server/shard/move.h"
#include "server/shard/shard.h"

/* ==== takes ==== */

/* Private to take.c. */

struct giver;

/* A lot that is asked for, or being copied. */
struct take_slot {
    struct work_run run; /* first: the copy */
    struct giver *giver;
    struct chunk_request request; /* numbered as giver->slots */
    const struct lot *lot;        /* NULL: the slot is free */
    uint8_t
        *staging; /* borrowed: [take->staged.bytes]; NULL: for what is received where it belongs */
    void *to;     /* where in the planes the lot belongs */
    uint64_t checksum, came; /* that the chunk is to have, and has */
};

/* The staging: chunks that are received beside the planes and copied into them. */
struct take_staged {
    bool all;         /* the planes lie on a device; else of what is cut */
    uint32_t each;    /* slots of a giver that have staging: its first ones */
    uint32_t of_each; /* slots that it has */
    size_t bytes;     /* of one */
};

/* A shard from which something comes. */
struct giver {
    struct take *take; /* borrowed */
    uint32_t index;    /* in the layouts */
    char name[64];
    uint8_t *address; /* owned */
    size_t address_bytes;
    struct chunk_link link;
    struct asker asker;
    struct take_slot *slots; /* owned: [take->staged.of_each] */
    size_t next, end;        /* of its lots, those that are not asked for yet */
};

struct take {
    struct take *next_leaving;
    struct shard_job *job;   /* borrowed */
    struct shard_view *view; /* counted: in which the lots are here */
    uint64_t number, token;  /* of the mover that we are */
    struct cairn_version version;
    struct lots lots;     /* owned */
    struct giver *givers; /* owned: [giver_count] by index */
    uint32_t giver_count;
    struct take_staged staged;
    struct arena staging;  /* owned: of the slots that have some */
    size_t left;           /* lots that are not here */
    uint64_t begun_ns, us; /* us: that it took, once left is 0 */
    uint32_t busy;         /* loans and copies that refer to it */
    bool is_begun, is_leaving;
    void (*done)(struct take *take);
};

/* ==== part ==== */

/* One change of the layout, and the clock of all changes. Private to move.c. */

/* Starts the clock of changes, which ticks until nothing waits any more. */
void move_wake(struct shard_daemon *shard);

/* ==== shift ==== */

/* Shifts: state that stays on a shard, but at another place. The bytes of a blob stand dense from
 * where its extent begins (memory.h). So a part of a blob that does not begin with it is
 * copied to a place of its own as the layout changes, except on a device (memory.h). Its old
 * place is given, and forgotten, with the rest. Loop thread. */

#endif
