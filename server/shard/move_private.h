#ifndef CAIRN_SHARD_MOVE_PRIVATE_H
#define CAIRN_SHARD_MOVE_PRIVATE_H

#include "proto/link/chunk_link.h"
#include "server/shard/move.h"
#include "server/shard/shard.h"

/* ==== takes ==== */

/* Shared by take.c and take.c. Private to them. */

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

/* ---- take.c ---- */
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

/* ==== part ==== */

/* Shared by the files of this room: one change of the layout, and the clock of all changes. Private
 * to them. */

/* Forgets a change of the layout: shards that take from us by it leave, its take is not awaited any
 * more, and what it took of the budget for itself goes back. NULL is fine. */
void cairn_move_part_drop(struct cairn_shard_job *job, struct cairn_move_part *part);
/* The view before the one in force, while its state is still here: parts of it need not come again.
 * NULL: it is settled, or the view in force has gone back to it. */
const struct cairn_shard_view *cairn_move_kept(const struct cairn_shard_job *job);
/* The bytes, over all planes in host memory, that `view` has and `beside` does not have. */
uint64_t cairn_move_bytes_beyond(const struct cairn_shard_job *job,
                                 const struct cairn_shard_view *view,
                                 const struct cairn_shard_view *beside);
/* Gives back the device memory that no view uses any more: neither the one in force, nor the
 * prepared one, nor the one before that is not settled. */
void cairn_move_trim(struct cairn_shard_job *job);
/* Calls cairn_move_tick until nothing waits any more. */
void cairn_move_wake(struct cairn_shard *shard);

/* ---- move.c ---- */
/* The prepared layout is not to come into force. */
void cairn_move_forget(struct cairn_shard_job *job);
/* A PartPrepare that waits until what was given, or prepared before it, is forgotten. */
void cairn_move_go_on(struct cairn_shard *shard, uint64_t job);

/* ---- move.c ---- */
/* PartSettled came: ends `now` if nothing of what was given is being sent any more. */
void cairn_move_settle(struct cairn_shard_job *job);

/* ==== shift ==== */

/* Shifts: state that stays on a shard, but at another place. The bytes of a blob stand dense from
 * where its extent begins (memory.h). So a part of a blob that does not begin with it is
 * copied to a place of its own as the layout changes, except on a device (memory.h). Its old
 * place is given, and forgotten, with the rest. Loop thread. */

/* The bytes of all that shifts with `next` and is in the job's view, or in `kept` (may be NULL). */
uint64_t cairn_shift_bytes(const struct cairn_shard_job *job, const struct cairn_shard_view *next,
                           const struct cairn_shard_view *kept);
/* Within `prepare` of a reserve: reserves the places to which state shifts. */
CAIRN_MUST_CHECK cairn_status cairn_shift_reserve(const struct cairn_shard_job *job,
                                                  const struct cairn_shard_view *next,
                                                  const struct cairn_shard_view *kept,
                                                  struct cairn_reserve *reserve);
/* Copies what shifts, before the job goes on in `next`. Not CAIRN_OK: the job may not go on in
 * it. */
CAIRN_MUST_CHECK cairn_status cairn_shift_copy(struct cairn_shard_job *job,
                                               const struct cairn_shard_view *next,
                                               const struct cairn_shard_view *kept,
                                               struct cairn_sentence *why);

#endif
