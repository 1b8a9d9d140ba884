/* A collector: it takes what workers contribute to one shard's part of a job, and folds it into sums.
 *
 *   workers ── PUSH ─────────────► _push ─┐         ┌─► RECEIVE: a slot ─► LANDED
 *           ── MICRO_END, COMMIT ► _step ─┼─ step.h ┼─► FOLD: fold.c ────► FOLDED
 *   coordinator ── OPEN, FENCE ──► _step ─┘ (core)  └─► GRANT, ACK, ...: to the workers
 *
 * A shard has one for its own part (own.c), a relay has one for each owner (relay/collect.c). The
 * differences are in a table of functions, their hands.
 *
 * The core is never called from inside its own actions: what an action brings about at once (a receive that
 * fails) is noted as landed, and told when all actions are done. Loop thread, but for hands->fold. */
#ifndef CAIRN_SHARD_COLLECT_COLLECTOR_H
#define CAIRN_SHARD_COLLECT_COLLECTOR_H

#include "gpu/gpu.h"
#include "proto/fabric/fabric.h"
#include "proto/wire/chunk.h"
#include "server/core/buffer_pool.h"
#include "server/core/step.h"
#include "server/shard/base/bytes.h"
#include "server/shard/base/compute.h"
#include "server/shard/collect/chunk_table.h"
#include "server/shard/collect/tiles.h"

struct cairn_collector;
struct cairn_member;
struct cairn_shard_job;

/* A contribution that is here, or on its way; the core names it by its index. */
struct cairn_slot {
    struct cairn_collector *collector; /* borrowed */
    uint64_t member;                   /* whose it is */
    uint32_t chunk;                    /* the core's number */
    struct cairn_piece piece;          /* of the chunk: what the payload is */
    cairn_dtype dtype;
    size_t payload_bytes;
    uint64_t checksum;
    bool is_unsummed; /* CAIRN_CHUNK_UNSUMMED */
    enum cairn_way way;
    /* owned: the payload is in the worker's memory, with CAIRN_WAY_DEVICE on the card; NULL: it came another
     * way */
    struct cairn_fabric_message *message;
    void *memory;        /* of hands->slot_memory: a payload that came another way; or NULL */
    const void *view;    /* the payload, wherever it is; NULL: the slot is free, or it fills */
    bool folding;        /* a compute thread reads it */
    bool receiving;      /* the fabric fills it */
    cairn_status status; /* of the receive that ended */
    struct cairn_slot *next_landed; /* in collector->landed */
};

/* A fold under way, or one whose sum has no place yet. */
struct cairn_fold {
    struct cairn_run run;
    struct cairn_collector *collector; /* borrowed */
    struct cairn_source sources[CAIRN_STEP_FOLD_MAX];
    struct cairn_piece pieces[CAIRN_STEP_FOLD_MAX]; /* of the sources */
    uint32_t slots[CAIRN_STEP_FOLD_MAX];            /* of the sources */
    uint32_t source_count, chunk;
    bool first;       /* it begins the chunk's sum */
    bool likely_last; /* it ends the chunk's sum, unless the round gets more micro-batches */
    bool viewed;      /* a source is in a worker's memory, of the host */
    struct cairn_buffer_claim claim; /* on the buffer of a relay's sum */
    struct cairn_fold *next;         /* in collector->folds_free */
};

/* The functions in which a shard's own collector and a relay's differ. */
struct cairn_collector_hands {
    /* False: nothing is told to the core, and no action is done, any more. */
    bool (*takes_events)(const struct cairn_collector *collector);
    /* Sees each action before it is done; does those that are neither for workers nor of slots and folds. */
    void (*act)(struct cairn_collector *collector, const struct cairn_step_action *action);
    /* To a worker, in the name of the shard that is collected for. */
    void (*send)(const struct cairn_collector *collector, struct cairn_member *member,
                 struct cairn_chunk_header *header);
    /* Says which piece of a chunk a PUSH means; without side effects. Not OK: `why`. */
    cairn_status (*judge_piece)(const struct cairn_collector *collector,
                                const struct cairn_member *member,
                                const struct cairn_chunk_header *header,
                                const struct cairn_chunk_place *place,
                                struct cairn_piece *piece_out, struct cairn_sentence *why);
    /* Gives the memory into which a payload is received that cannot be viewed. */
    void *(*slot_memory)(struct cairn_collector *collector, uint32_t slot);
    /* Nobody reads that memory any more. May be NULL. */
    void (*slot_memory_back)(struct cairn_slot *slot);
    /* The compute that works where the sum of a chunk lies, and makes that sum. `chunk` is the
     * core's number. */
    struct cairn_compute *(*compute)(const struct cairn_collector *collector, uint32_t chunk);
    /* The fold's sum gets its place. False: there is none yet; the hands keep the fold, and give it to
     * cairn_fold_submit, or to cairn_fold_drop, when there is. */
    bool (*fold_place)(struct cairn_fold *fold);
    /* Adds the sources to the sum: describe of compute.h. */
    bool (*fold)(const struct cairn_fold *fold, uint32_t stage, struct cairn_works *works);
    /* The fold ended; the core is told next. */
    void (*fold_done)(struct cairn_fold *fold);
    /* The core was told. May be NULL. */
    void (*fold_told)(struct cairn_collector *collector);
    /* A fold failed at memory of this host's, not of a worker's: it is out of memory. */
    void (*no_page)(struct cairn_collector *collector);
    /* Something in flight refers to the collector. */
    void (*busy)(struct cairn_collector *collector);
    /* It ended: the last word of a callback, as the collector may be freed in it. */
    void (*idle)(struct cairn_collector *collector);
};

struct cairn_collector {
    const struct cairn_collector_hands *hands; /* static */
    struct cairn_shard_job *job;               /* borrowed */
    const struct cairn_chunk_table *table;     /* borrowed: the part that is collected for */
    const char *shard_name;                    /* borrowed: whose part it is */
    struct cairn_step *step;                   /* owned: the core */
    struct cairn_step_actions *actions;        /* borrowed; several collectors may have one list */
    struct cairn_slot *slots;                  /* owned: [slot_count] */
    struct cairn_slot *landed; /* receives that ended, of which the core was not told yet */
    uint32_t slot_count;
    struct cairn_fold *folds; /* owned: as many as can be under way */
    struct cairn_fold *folds_free;
    bool stepping;          /* the core's actions are being done: it must not be called */
    bool settling;          /* cairn_collector_settle is at work */
    uint64_t spoiled_round; /* a sum of this round is wrong for good: none of it may be used */

    /* of the PUSH that the core is being told of */
    struct cairn_fabric_message *waiting; /* or NULL */
    struct cairn_chunk_header waiting_header;
    struct cairn_piece waiting_piece;
};

struct cairn_collector_options {
    const struct cairn_collector_hands *hands;
    struct cairn_shard_job *job;
    const struct cairn_chunk_table *table;
    const char *shard_name;
    /* given to cairn_step_init */
    const struct cairn_step_config *step;
    struct cairn_version version;
    const struct cairn_decision *last;
    struct cairn_step_actions *actions; /* its list grows as is needed; owned by the caller */
};

/* The payload may stay where it lies: what makes the sum of the core's chunk can read it there. */
bool cairn_collector_reads_view(const struct cairn_collector *collector,
                                const struct cairn_chunk_header *header, uint32_t chunk,
                                const struct cairn_fabric_message *message);

/* Borrowed things in `options` live as long as the collector. CAIRN_ERR_NO_MEMORY: close it. */
CAIRN_MUST_CHECK cairn_status cairn_collector_open(struct cairn_collector *collector,
                                                   const struct cairn_collector_options *options);
/* The parts of a collector that depend on its chunks, made for another table. */
struct cairn_collector_tables {
    const struct cairn_chunk_table *table; /* borrowed */
    void *step;                            /* owned: memory of a core */
    struct cairn_fold *folds;              /* owned */
    uint32_t fold_count;
};
/* For cairn_collector_switch; the list of actions has room for it, too. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_collector_tables_open(
    const struct cairn_collector *collector, const struct cairn_step_config *step,
    const struct cairn_chunk_table *table, struct cairn_collector_tables *tables_out);
/* Also of what is all zero. */
void cairn_collector_tables_close(struct cairn_collector_tables *tables);
/* The collector goes on with these chunks, and knows what it knew of the job: no round is open, and nothing
 * of it is in flight. It owns the tables. */
void cairn_collector_switch(struct cairn_collector *collector, const struct cairn_step_config *step,
                            struct cairn_collector_tables *tables);
/* Nothing refers to it; also of one that was never opened, all zero. */
void cairn_collector_close(struct cairn_collector *collector);
/* The collector is to do nothing any more: releases all slots that are neither read nor filled. */
void cairn_collector_leave(struct cairn_collector *collector);

/* Tells the core and does its actions, and what follows from them. Not while collector->stepping. */
void cairn_collector_step(struct cairn_collector *collector, const struct cairn_step_event *event);
/* Tells the core of receives that ended. */
void cairn_collector_settle(struct cairn_collector *collector);
/* Where a PUSH belongs, judged without side effects. CAIRN_OK: *chunk_out is the core's number. Else `why`
 * says which field is wrong. */
CAIRN_MUST_CHECK cairn_status cairn_collector_judge(const struct cairn_collector *collector,
                                                    const struct cairn_member *member,
                                                    const struct cairn_chunk_header *header,
                                                    uint32_t *chunk_out,
                                                    struct cairn_piece *piece_out,
                                                    struct cairn_sentence *why);
/* A PUSH that was judged. Takes or drops the message. */
void cairn_collector_push(struct cairn_collector *collector,
                          const struct cairn_chunk_header *header, uint32_t chunk,
                          const struct cairn_piece *piece, struct cairn_fabric_message *message);
/* Nobody reads the slot's payload any more: a worker's memory goes back to it. */
void cairn_slot_release(struct cairn_slot *slot);

/* ---- fold.c ---- */
/* FOLD of the core. */
void cairn_fold_begin(struct cairn_collector *collector, const struct cairn_step_action *action);
/* The fold's sum has a place: gives the fold to the compute pool. */
void cairn_fold_submit(struct cairn_fold *fold);
/* The fold is not to be done any more, or is done: its slots are released, and the core is told. */
void cairn_fold_drop(struct cairn_fold *fold);

#endif
