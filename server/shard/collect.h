#ifndef CAIRN_SHARD_COLLECT_H
#define CAIRN_SHARD_COLLECT_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/gpu.h"
#include "proto/base/status.h"
#include "proto/fabric/fabric.h"
#include "proto/geometry/layout.h"
#include "proto/spec/spec.h"
#include "proto/wire/wire.h"
#include "server/core/buffer_pool.h"
#include "server/core/step.h"
#include "server/shard/base.h"

/* ==== chunk table ==== */

/* The chunks of a shard's part of a job, as a collector's core (server/core/step.h) numbers them: those of
 * trained tensors, in the map's order. The shard and every relay to it count alike. */

struct chunk_table {
    struct shard_map map; /* owned: all chunks of the part; it has the layout that it is of */
    uint32_t *extent_of;  /* owned: [map.chunk_count] the extent of a chunk */
    uint32_t *trained;    /* owned: [trained_count] the map's number of a chunk, by the core's */
    /* owned: [map.extent_count + 1] the core's number of an extent's first chunk; as that of the next one, if
     * it is not trained */
    uint32_t *first;
    uint32_t trained_count;
};

/* Numbers the chunks of table->map, which the caller made. CAIRN_ERR_NO_MEMORY, if there are too many for a
 * core, too. */
CAIRN_MUST_CHECK cairn_status chunk_table_number(struct chunk_table *table,
                                                 const struct job_spec_data *spec);
void chunk_table_close(struct chunk_table *table);
/* A tensor's chunks in the part: they follow each other, as its extents do. extent_count 0: it is not
 * there. */
struct tensor_chunks {
    uint64_t first, count;             /* of table->map */
    size_t first_extent, extent_count; /* of table->map */
};
struct tensor_chunks chunk_table_tensor(const struct chunk_table *table, uint32_t tensor);
/* The place of the chunk that the core knows by the number `trained`. */
struct chunk_place chunk_table_place(const struct chunk_table *table, uint32_t trained);

/* ==== tiles ==== */

/* The parts of the tensors that workers hold ("tiles": boxes of them), and the pieces of chunks
 * that follow from these. */

struct fold;

/* A box of a tensor that members hold. It is kept while someone holds it, and longer: see tiles.c. */
struct held_box {
    struct held_box *next; /* of the same tensor */
    struct cairn_box box;
    uint32_t holders;                  /* how many members hold it */
    uint64_t first_chunk, chunk_count; /* of the map: outside of them it has no element */
    uint64_t touched;                  /* chunks in which it has an element */
    /* while another table is being made ready: what takes its place, NULL: it stays; and its first_chunk */
    struct held_box *moved;
    uint64_t moved_first;
    /* [chunk_count] while INITIALIZING: the box was put there. Then: it was folded in this round */
    uint8_t mark[];
};

/* A tensor of which some member does not hold all. */
struct tiled {
    struct tiled *next; /* of the same job */
    uint32_t tensor;
    struct held_box *held; /* the first is the whole tensor, whoever holds it */
};

/* The tiles of a job. */
struct tiling {
    const struct chunk_table *table; /* borrowed: the part whose tensors they are of */
    struct tiled *list;              /* owned: those of which a member does not hold all */
    struct tiled *
        *of;        /* owned: [spec.tensor_count] the same, by tensor; NULL: all hold all of it */
    uint8_t *holds; /* owned: of tiles_holds, a row for each member that a round may have */
    uint32_t world; /* of the last MemberTiles: told to a new coordinator */
};

/* The part of a tensor that a member declared to hold. Kept for tensors that are not on this shard,
 * too: they may come to it. */
struct member_tile {
    uint32_t tensor;
    struct held_box *held; /* borrowed; NULL: a box that is all of it */
};

/* The elements that a chunk and a box have in common. */
struct chunk_piece {
    /* borrowed; NULL: all of the chunk, and every member holds all of the tensor */
    struct held_box *held;
    uint64_t first, count; /* elements of the box; of the chunk if held is NULL */
};

/* Owns the message. */
void tiles_on_message(struct shard_daemon *shard, uint32_t request, Cairn__MemberTiles *message);
/* Replaces what the member holds by a judged list. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_BUSY: as before. */
CAIRN_MUST_CHECK cairn_status tiles_set_member(struct shard_member *member,
                                               const struct tiles *tiles, struct sentence *why);
/* The member goes: it holds nothing any more. */
void tiles_forget(struct shard_member *member);
/* `to` is the same member as `from`, told anew: it holds what `from` held. */
void tiles_move(struct shard_member *from, struct shard_member *to);
/* With the job, whose collector is open. CAIRN_ERR_NO_MEMORY: to be closed all the same. */
CAIRN_MUST_CHECK cairn_status tiles_open(struct shard_job *job, const struct chunk_table *table);
void tiles_close(struct shard_job *job);
/* No contribution or put is on its way: nothing refers to boxes but members. */
bool tiles_rest(const struct shard_job *job);
/* Memory for the same tiles by another table of the shard: *holds_out is for tiles_switch. No round is
 * open, and no put. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_BUSY: nothing changed. */
CAIRN_MUST_CHECK cairn_status tiles_ready(struct shard_job *job, const struct chunk_table *table,
                                          uint8_t **holds_out, struct sentence *why);
/* They are by that table from here on, which lives as long as the job or until the next one. */
void tiles_switch(struct shard_job *job, const struct chunk_table *table, uint8_t *holds);
/* Or they are not: gives back what tiles_ready took. */
void tiles_unready(struct shard_job *job, uint8_t *holds);
/* In which of the core's chunks each of the `count` members holds an element: `holds` of struct
 * step_event. A member that is not known here holds all. Borrowed from the job until the next call.
 * NULL: every member holds all, or there are more members than a round of this job may have. */
const uint8_t *tiles_holds(struct shard_job *job, const uint64_t *members, uint32_t count);
/* How many chunks of a trained tensor here the member sends, if it has a gradient of the tensor. */
uint64_t tiles_touched(const struct shard_member *member, uint32_t tensor);

/* How many elements the box has in common with the chunk, and how many of its elements come before them. */
uint64_t tiles_common(const struct shard_job *job, const struct cairn_box *box,
                      const struct chunk_place *place, uint64_t *before_out);

/* ---- tiles.c ---- */
/* Which piece of a chunk the header of a PUSH, PUT or FETCH (not of a box) means, without side effects.
 * CAIRN_ERR_MISMATCH: not what the member declared; `why` (may be NULL) says so. */
CAIRN_MUST_CHECK cairn_status tiles_piece(const struct shard_member *member,
                                          const struct chunk_header *header,
                                          const struct chunk_place *place,
                                          struct chunk_piece *piece_out, struct sentence *why);
/* A chunk's first contribution of the round is folded next: clears the marks of all boxes there. */
void tiles_begin_chunk(struct shard_job *job, uint64_t chunk);
/* Folds the sources in their order, each into its piece of the chunk. Any thread. */
void tiles_fold(struct works *works, const struct fold *fold, uint64_t chunk,
                const struct chunk_place *place, float *acc);
/* Copies the values of a piece that was put, and marks its box; the loop's works of the job are run next. */
void tiles_put(struct shard_job *job, uint64_t chunk, const struct chunk_piece *piece,
               const struct chunk_place *place, const float *values);
/* True: the boxes that were put make up the chunk. */
bool tiles_put_whole(const struct shard_job *job, uint64_t chunk);

/* ==== step message ==== */

/* Messages of the data plane as the core's events, and the core's actions as messages. */

/* The event that a PUSH, MICRO_END or COMMIT is to a core, the own part's or a relay's. The caller
 * fills in `chunk`, `is_readable` and `absent`. */
struct step_event step_event_of(const struct chunk_header *header);

/* ==== frozen ==== */

/* The groups and tensors that take no gradient in the round that was opened last. Loop thread; the
 * update's threads read them. */

struct frozen {
    uint64_t round;
    bool *groups;  /* owned: [spec.group_count] */
    bool *tensors; /* owned: [spec.tensor_count] */
    /* owned: [spec.tensor_count] a trained tensor's group in the spec; constant */
    uint32_t *group_of;
};

/* ==== view ==== */

/* A view: a layout as this shard works by it. A job has the one in force, which changes between rounds
 * (jobs.h); a published copy has the one that it was written in, so that a version is read by the
 * layout that it was published in. Nothing of a view changes once it is whole: any thread reads it. The loop
 * thread counts who refers to it, and alone reads the number of its layout, which may become another one. */

struct form;
struct area_place;

struct shard_view {
    uint32_t refs;
    struct layout *layout; /* owned */
    struct chunk_table
        table;          /* owned: of the layout; its map may be there before its numbers are */
    struct form *forms; /* owned: [table.map.extent_count] */
    struct area_place *places; /* owned: the same, of state on a device (memory.h); or NULL */
    uint64_t wire_bytes;       /* of a published copy */
    uint64_t published_bytes,
        table_bytes; /* of the memory of a job by it, as of struct memory_need */
};

/* Counts one more who refers to it; gives the view. */
struct shard_view *shard_view_ref(struct shard_view *view);
/* Counts one less; the last one frees it. NULL is fine. */
void shard_view_unref(struct shard_view *view);

/* Elements that are in one view of a shard, and not in another. They lie in one extent. */
struct shard_view_run {
    size_t extent; /* of the one view's map */
    uint32_t tensor;
    uint64_t first_leaf, leaf_count; /* of the tensor */
    uint64_t first_elem, elem_count; /* of the tensor */
    uint64_t local_elem;             /* where the first stands in the shard's state */
};

/* Calls `each` for all runs of `in` that `beside` has not, by tensor, then by element. With (view,
 * the one before) these are the runs that come with a view; with (the one before, view), those that
 * go. Both are of one job and shard; beside NULL: it has nothing. Any thread. */
void shard_view_beyond(const struct shard_view *in, const struct shard_view *beside,
                       void (*each)(void *context, const struct shard_view_run *run),
                       void *context);

/* ---- view.c: on a device (memory.h); loop thread, but the last one ---- */

struct state_planes;

/* Gives the view its places: of what `before` (NULL: nothing was) has, too, those of before; for all else an
 * area is to follow, of *bytes_out. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status shard_view_places_open(struct shard_view *view,
                                                     const struct shard_view *before,
                                                     uint64_t host_from, uint64_t *bytes_out);

/* The area that follows, at 0. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status shard_view_area_add(struct shard_view *view,
                                                  struct state_planes *planes, struct home *device,
                                                  uint64_t bytes, struct sentence *why);
/* Gives back all in which nothing is of one of these views (NULL: none). Nothing works on it. */
void shard_views_keep(const struct shard_view *const *views, size_t view_count,
                      struct state_planes *planes, struct shard_daemon *shard);
/* Where a local element of an extent of the view stands, in its home. NULL: the extent does not keep the
 * plane. The view is that of the planes, the one of before, or the one to come; any thread. */
void *shard_view_at(const struct shard_view *view, const struct state_planes *planes, int plane,
                    size_t extent, uint64_t local_elem);

/* ---- view.c; loop thread ---- */

struct reserve;

/* Within `prepare` of a reserve: the pages of what comes to the job with `view`, a whole one: of its planes,
 * which have addresses for it. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status shard_view_reserve(const struct shard_job *job,
                                                 const struct shard_view *view,
                                                 struct reserve *reserve);
/* The pages of what `view` has, and the job's view has not, go back to the system, on another thread: state
 * that went, or that does not come after all. Nobody uses it; what is reserved from here on may lie there. */
void shard_view_give(struct shard_job *job, const struct shard_view *view);

/* ==== collector ==== */

/* A collector: it takes what workers contribute to one shard's part of a job, and folds it into sums.
 *
 *   workers ── PUSH ─────────────► _push ─┐         ┌─► RECEIVE: a slot ─► LANDED
 *           ── MICRO_END, COMMIT ► _step ─┼─ step.h ┼─► FOLD: collector.c ────► FOLDED
 *   coordinator ── OPEN, FENCE ──► _step ─┘ (core)  └─► GRANT, ACK, ...: to the workers
 *
 * A shard has one for its own part (members.c), a relay has one for each owner (relay.c). The
 * differences are in a table of callbacks.
 *
 * The core is never called from inside its own actions: what an action brings about at once (a receive that
 * fails) is noted as landed, and told when all actions are done. Loop thread, but for callbacks->fold. */

struct collector;

/* A contribution that is here, or on its way; the core names it by its index. */
struct collector_slot {
    struct collector *collector; /* borrowed */
    uint64_t member;             /* whose it is */
    uint32_t chunk;              /* the core's number */
    struct chunk_piece piece;    /* of the chunk: what the payload is */
    cairn_dtype dtype;
    size_t payload_bytes;
    uint64_t checksum;
    bool is_unsummed; /* CAIRN_CHUNK_UNSUMMED */
    enum bytes_path path;
    /* owned: the payload is in the worker's memory, with BYTES_PATH_DEVICE on the card; NULL: it came another
     * way */
    struct fabric_message *message;
    void *memory;        /* of callbacks->slot_memory: a payload that came another way; or NULL */
    const void *view;    /* the payload, wherever it is; NULL: the slot is free, or it fills */
    bool folding;        /* a compute thread reads it */
    bool receiving;      /* the fabric fills it */
    cairn_status status; /* of the receive that ended */
    struct collector_slot *next_landed; /* in collector->landed */
};

/* A fold under way, or one whose sum has no place yet. */
struct fold {
    struct work_run run;
    struct collector *collector; /* borrowed */
    struct fold_source sources[CAIRN_STEP_FOLD_MAX];
    struct chunk_piece pieces[CAIRN_STEP_FOLD_MAX]; /* of the sources */
    uint32_t slots[CAIRN_STEP_FOLD_MAX];            /* of the sources */
    uint32_t source_count, chunk;
    bool first;       /* it begins the chunk's sum */
    bool likely_last; /* it ends the chunk's sum, unless the round gets more micro-batches */
    bool viewed;      /* a source is in a worker's memory, of the host */
    struct buffer_claim claim; /* on the buffer of a relay's sum */
    struct fold *next;         /* in collector->folds_free */
};

/* The functions in which a shard's own collector and a relay's differ. */
struct collector_callbacks {
    /* False: nothing is told to the core, and no action is done, any more. */
    bool (*takes_events)(const struct collector *collector);
    /* Sees each action before it is done; does those that are neither for workers nor of slots and folds. */
    void (*act)(struct collector *collector, const struct step_action *action);
    /* To a worker, in the name of the shard that is collected for. */
    void (*send)(const struct collector *collector, struct shard_member *member,
                 struct chunk_header *header);
    /* Says which piece of a chunk a PUSH means; without side effects. Not OK: `why`. */
    cairn_status (*judge_piece)(const struct collector *collector,
                                const struct shard_member *member,
                                const struct chunk_header *header, const struct chunk_place *place,
                                struct chunk_piece *piece_out, struct sentence *why);
    /* Gives the memory into which a payload is received that cannot be viewed. */
    void *(*slot_memory)(struct collector *collector, uint32_t slot);
    /* Nobody reads that memory any more. May be NULL. */
    void (*slot_memory_back)(struct collector_slot *slot);
    /* The compute that works where the sum of a chunk lies, and makes that sum. `chunk` is the
     * core's number. */
    struct compute *(*compute)(const struct collector *collector, uint32_t chunk);
    /* The fold's sum gets its place. False: there is none yet; the callback keeps the fold, and it goes to
     * fold_submit, or to fold_drop, when there is. */
    bool (*fold_place)(struct fold *fold);
    /* Adds the sources to the sum: describe of base.h. */
    bool (*fold)(const struct fold *fold, uint32_t stage, struct works *works);
    /* The fold ended; the core is told next. */
    void (*fold_done)(struct fold *fold);
    /* The core was told. May be NULL. */
    void (*fold_reported)(struct collector *collector);
    /* A fold failed at memory of this host's, not of a worker's: it is out of memory. */
    void (*no_page)(struct collector *collector);
    /* Something in flight refers to the collector. */
    void (*busy)(struct collector *collector);
    /* It ended: the last word of a callback, as the collector may be freed in it. */
    void (*idle)(struct collector *collector);
};

struct collector {
    const struct collector_callbacks *callbacks; /* static */
    struct shard_job *job;                       /* borrowed */
    const struct chunk_table *table;             /* borrowed: the part that is collected for */
    const char *shard_name;                      /* borrowed: whose part it is */
    struct step_machine *step;                   /* owned: the core */
    struct step_actions *actions;  /* borrowed; several collectors may have one list */
    struct collector_slot *slots;  /* owned: [slot_count] */
    struct collector_slot *landed; /* receives that ended, of which the core was not told yet */
    uint32_t slot_count;
    struct fold *folds; /* owned: as many as can be under way */
    struct fold *folds_free;
    bool stepping;          /* the core's actions are being done: it must not be called */
    bool settling;          /* collector_settle is at work */
    uint64_t spoiled_round; /* a sum of this round is wrong for good: none of it may be used */

    /* of the PUSH that the core is being told of */
    struct fabric_message *waiting; /* or NULL */
    struct chunk_header waiting_header;
    struct chunk_piece waiting_piece;
};

struct collector_options {
    const struct collector_callbacks *callbacks;
    struct shard_job *job;
    const struct chunk_table *table;
    const char *shard_name;
    /* given to step_init */
    const struct step_config *step;
    struct cairn_version version;
    const struct decision *last;
    struct step_actions *actions; /* its list grows as is needed; owned by the caller */
};

/* The payload may stay where it lies: what makes the sum of the core's chunk can read it there. */
bool collector_reads_view(const struct collector *collector, const struct chunk_header *header,
                          uint32_t chunk, const struct fabric_message *message);

/* Borrowed things in `options` live as long as the collector. CAIRN_ERR_NO_MEMORY: close it. */
CAIRN_MUST_CHECK cairn_status collector_open(struct collector *collector,
                                             const struct collector_options *options);
/* The parts of a collector that depend on its chunks, made for another table. */
struct collector_tables {
    const struct chunk_table *table; /* borrowed */
    void *step;                      /* owned: memory of a core */
    struct fold *folds;              /* owned */
    uint32_t fold_count;
};
/* For collector_switch; the list of actions has room for it, too. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status collector_tables_open(const struct collector *collector,
                                                    const struct step_config *step,
                                                    const struct chunk_table *table,
                                                    struct collector_tables *tables_out);
/* Also of what is all zero. */
void collector_tables_close(struct collector_tables *tables);
/* The collector goes on with these chunks, and knows what it knew of the job: no round is open, and nothing
 * of it is in flight. It owns the tables. */
void collector_switch(struct collector *collector, const struct step_config *step,
                      struct collector_tables *tables);
/* Nothing refers to it; also of one that was never opened, all zero. */
void collector_close(struct collector *collector);
/* The collector is to do nothing any more: releases all slots that are neither read nor filled. */
void collector_leave(struct collector *collector);

/* Tells the core and does its actions, and what follows from them. Not while collector->stepping. */
void collector_step(struct collector *collector, const struct step_event *event);
/* Tells the core of receives that ended. */
void collector_settle(struct collector *collector);
/* Where a PUSH belongs, judged without side effects. CAIRN_OK: *chunk_out is the core's number. Else `why`
 * says which field is wrong. */
CAIRN_MUST_CHECK cairn_status collector_judge(const struct collector *collector,
                                              const struct shard_member *member,
                                              const struct chunk_header *header,
                                              uint32_t *chunk_out, struct chunk_piece *piece_out,
                                              struct sentence *why);
/* A PUSH that was judged. Takes or drops the message. */
void collector_push(struct collector *collector, const struct chunk_header *header, uint32_t chunk,
                    const struct chunk_piece *piece, struct fabric_message *message);

/* ---- collector.c ---- */

/* The fold's sum has a place: gives the fold to the compute pool. */
void fold_submit(struct fold *fold);
/* The fold is not to be done any more, or is done: its slots are released, and the core is told. */
void fold_drop(struct fold *fold);

#endif
