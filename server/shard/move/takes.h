/* Shared by take.c and giver.c. Private to them. */
#ifndef CAIRN_SHARD_MOVE_TAKES_H
#define CAIRN_SHARD_MOVE_TAKES_H

#include "proto/link/asker.h"
#include "proto/link/chunk_link.h"
#include "server/shard/move/take.h"
#include "server/shard/shard.h"

struct cairn_giver;

/* A lot that is asked for, or being copied. */
struct cairn_take_slot {
    struct cairn_run run; /* first: the copy */
    struct cairn_giver *giver;
    struct cairn_chunk_request request; /* numbered as giver->slots */
    const struct cairn_lot *lot;        /* NULL: the slot is free */
    uint8_t
        *staging; /* borrowed: [take->staged.bytes]; NULL: for what is received where it belongs */
    void *to;     /* where in the planes the lot belongs */
    uint64_t checksum, came; /* that the chunk is to have, and has */
};

/* The staging: chunks that are received beside the planes and copied into them. */
struct cairn_take_staged {
    bool all;         /* the planes lie on a device; else of what is cut */
    uint32_t each;    /* slots of a giver that have staging: its first ones */
    uint32_t of_each; /* slots that it has */
    size_t bytes;     /* of one */
};

/* A shard from which something comes. */
struct cairn_giver {
    struct cairn_take *take; /* borrowed */
    uint32_t index;          /* in the layouts */
    char name[64];
    uint8_t *address; /* owned */
    size_t address_bytes;
    struct cairn_chunk_link link;
    struct cairn_asker asker;
    struct cairn_take_slot *slots; /* owned: [take->staged.of_each] */
    size_t next, end;              /* of its lots, those that are not asked for yet */
};

struct cairn_take {
    struct cairn_take *next_leaving;
    struct cairn_shard_job *job;   /* borrowed */
    struct cairn_shard_view *view; /* counted: in which the lots are here */
    uint64_t number, token;        /* of the mover that we are */
    struct cairn_version version;
    struct cairn_lots lots;     /* owned */
    struct cairn_giver *givers; /* owned: [giver_count] by index */
    uint32_t giver_count;
    struct cairn_take_staged staged;
    struct cairn_arena staging; /* owned: of the slots that have some */
    size_t left;                /* lots that are not here */
    uint64_t begun_ns, us;      /* us: that it took, once left is 0 */
    uint32_t busy;              /* loans and copies that refer to it */
    bool is_begun, is_leaving;
    void (*done)(struct cairn_take *take);
};

/* ---- giver.c ---- */
CAIRN_MUST_CHECK cairn_status cairn_giver_open(struct cairn_take *take, struct cairn_giver *giver,
                                               const Cairn__ShardInfo *info,
                                               struct cairn_sentence *why);
void cairn_giver_close(struct cairn_giver *giver);
/* Ends the connection; nothing is asked for any more if the take leaves. */
void cairn_giver_unlink(struct cairn_giver *giver);
/* Asks for what there are free slots for. */
void cairn_giver_feed(struct cairn_giver *giver);
/* The slot's lot is to be asked for once more, after an answer with this status. */
void cairn_giver_again(struct cairn_take_slot *slot, uint64_t status);
void cairn_giver_on_message(struct cairn_giver *giver, const struct cairn_chunk_header *header,
                            struct cairn_fabric_message *message);
bool cairn_giver_tick(struct cairn_giver *giver, uint64_t now_ms);

/* ---- take.c ---- */
/* Something in flight refers to the take; `idle` may free it, and its job. */
void cairn_take_busy(struct cairn_take *take);
void cairn_take_idle(struct cairn_take *take);
/* Where the slot's chunk is received: where it belongs, or beside it if a part of it stays elsewhere. */
void *cairn_take_place(struct cairn_take_slot *slot);
/* The slot's chunk has been received, and is as it was sent. */
void cairn_take_came(struct cairn_take_slot *slot);
/* The lot is received beside the planes. */
bool cairn_take_is_staged(const struct cairn_take *take, const struct cairn_lot *lot);

#endif
