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
#include "server/shard/need.h"

/* ==== chunk table ==== */

/* A collector's core (server/core/step.h) numbers the chunks of trained tensors in a shard's part
 * of a job, in the map's order. The shard and every relay to this shard give the chunks the same
 * numbers. */

struct chunk_table {
    /* owned: all chunks of the part, and the part's layout */
    struct shard_map map;
    uint32_t *extent_of; /* owned: [map.chunk_count] the extent of each chunk */
    /* owned: [trained_count] by the core's number of a chunk: the map's number of that chunk */
    uint32_t *trained;
    /* owned: [map.extent_count + 1] the core's number of the first chunk of each extent. An extent
     * that is not trained has the number of the first chunk of the next trained extent */
    uint32_t *first;
    uint32_t trained_count;
};

/* Numbers the chunks of table->map, which the caller made. CAIRN_ERR_NO_MEMORY: there is no memory,
 * or there are too many chunks for a core. */
CAIRN_MUST_CHECK cairn_status chunk_table_number(struct chunk_table *table,
                                                 const struct job_spec_data *spec);
void chunk_table_close(struct chunk_table *table);
/* A tensor's chunks and extents in the part. The chunks are consecutive, and the extents are, too.
 * If extent_count is 0, the part has nothing of the tensor. */
struct tensor_chunks {
    uint64_t first, count;             /* of table->map */
    size_t first_extent, extent_count; /* of table->map */
};
struct tensor_chunks chunk_table_tensor(const struct chunk_table *table, uint32_t tensor);
/* The place of the chunk that the core knows by the number `trained`. */
struct chunk_place chunk_table_place(const struct chunk_table *table, uint32_t trained);

/* ==== tiles ==== */

/* A tile is the part of a tensor that a worker holds; it is a box of the tensor. A piece is the
 * part of a chunk that lies in a tile. */

struct fold;

/* A box of a tensor. The box is kept while a member holds it, and for some time afterwards
 * (tiles.c). */
struct held_box {
    struct held_box *next; /* the next box of the same tensor */
    struct cairn_box box;
    uint32_t holders; /* how many members hold the box */
    /* chunks of the map; the box has no element in other chunks */
    uint64_t first_chunk, chunk_count;
    uint64_t touched; /* how many chunks have an element of the box */
    /* Both are for a table that is being prepared. moved: the box that replaces this box; NULL:
     * this box stays. moved_first: first_chunk in the new table, if this box stays */
    struct held_box *moved;
    uint64_t moved_first;
    /* [chunk_count] by chunk. While the job is INITIALIZING, a mark says that the box was put in
     * the chunk. Later, it says that the box was folded in this round */
    uint8_t mark[];
};

/* A tensor that some member does not hold completely. */
struct tiled {
    struct tiled *next; /* the next such tensor of the same job */
    uint32_t tensor;
    /* the boxes; the first is the whole tensor, whether a member holds it or not */
    struct held_box *held;
};

/* The tiles of a job. */
struct tiling {
    /* borrowed: the chunks of the shard's part; the tiles belong to tensors of that part */
    const struct chunk_table *table;
    /* owned: the tensors that some member does not hold completely */
    struct tiled *list;
    /* owned: [spec.tensor_count] the entry of `list` for each tensor; NULL: every member holds the
     * complete tensor */
    struct tiled **of;
    /* owned: the result of tiles_holds: a row for each member that a round may have */
    uint8_t *holds;
    uint32_t world; /* `world` of the last MemberTiles; it is reported to a new coordinator */
};

/* The part of a tensor that a member says it holds. Parts of tensors on other shards are kept, too,
 * because these tensors may move to this shard. */
struct member_tile {
    uint32_t tensor;
    struct held_box *held; /* borrowed; NULL: the member holds the complete tensor */
};

/* The elements that a chunk and a box have in common. */
struct chunk_piece {
    /* borrowed; NULL: the piece is the complete chunk, and every member holds the complete
     * tensor */
    struct held_box *held;
    uint64_t first, count; /* elements of the box, or of the chunk if held is NULL */
};

/* Replaces the member's tiles by `tiles`, a list that was judged. On CAIRN_ERR_NO_MEMORY and
 * CAIRN_ERR_BUSY the member's tiles do not change. */
CAIRN_MUST_CHECK cairn_status tiles_set_member(struct shard_member *member,
                                               const struct tiles *tiles, struct sentence *why);
/* Called when the member leaves, and so holds nothing any longer. */
void tiles_forget(struct shard_member *member);
/* Gives the tiles of `from` to `to`, which is the same member announced anew. */
void tiles_move(struct shard_member *from, struct shard_member *to);
/* Called when the job is opened, after the job's collector was opened. After CAIRN_ERR_NO_MEMORY
 * call tiles_close, too. */
CAIRN_MUST_CHECK cairn_status tiles_open(struct shard_job *job, const struct chunk_table *table);
void tiles_close(struct shard_job *job);
/* True if no contribution and no put is under way. Then only members refer to boxes. */
bool tiles_rest(const struct shard_job *job);
/* Prepares the tiles for another table of the shard. The caller passes *holds_out to tiles_switch,
 * or to tiles_unready. Nothing changed after CAIRN_ERR_NO_MEMORY or CAIRN_ERR_BUSY (a contribution
 * or a put is under way). */
CAIRN_MUST_CHECK cairn_status tiles_ready(struct shard_job *job, const struct chunk_table *table,
                                          uint8_t **holds_out, struct sentence *why);
/* Makes the tiles use that table, for which tiles_ready prepared them. The table must live until
 * the next switch, or as long as the job. */
void tiles_switch(struct shard_job *job, const struct chunk_table *table, uint8_t *holds);
/* Undoes tiles_ready, and gives back what tiles_ready took. Call it instead of tiles_switch. */
void tiles_unready(struct shard_job *job, uint8_t *holds);
/* Returns for each of the `count` members the chunks, by the core's numbers, in which the member
 * holds an element. This is `holds` of struct step_event. A member that this shard does not know
 * counts as holding all chunks. The result belongs to the job and is valid until the next call.
 * Returns NULL if every member holds all chunks, or if there are more members than a round of this
 * job may have. */
const uint8_t *tiles_holds(struct shard_job *job, const uint64_t *members, uint32_t count);
/* Returns how many chunks of a trained tensor the member sends to this shard if the member has a
 * gradient of the tensor. */
uint64_t tiles_touched(const struct shard_member *member, uint32_t tensor);

/* Returns how many elements the box and the chunk have in common. *before_out is the number of
 * elements of the box before the common ones. */
uint64_t tiles_common(const struct shard_job *job, const struct cairn_box *box,
                      const struct chunk_place *place, uint64_t *before_out);

/* ---- tiles.c ---- */
/* Finds the piece of a chunk that the header of a PUSH, PUT or FETCH means; not for a FETCH of a
 * box. Has no side effects. On CAIRN_ERR_MISMATCH the member did not declare this piece. `why` may
 * be NULL. */
CAIRN_MUST_CHECK cairn_status tiles_piece(const struct shard_member *member,
                                          const struct chunk_header *header,
                                          const struct chunk_place *place,
                                          struct chunk_piece *piece_out, struct sentence *why);
/* Clears the marks of all boxes in a chunk. Called before the first contribution of a round to the
 * chunk is folded. */
void tiles_begin_chunk(struct shard_job *job, uint64_t chunk);
/* Adds the works of a fold whose sources are pieces of the chunk. The sources of an element are
 * folded in their order. Any thread. */
void tiles_fold(struct works *works, const struct fold *fold, uint64_t chunk,
                const struct chunk_place *place, float *acc);
/* Adds the copy of a piece that was put to the works of the loop thread (compute_loop), which the
 * caller then runs. Marks the piece's box. */
void tiles_put(struct shard_job *job, uint64_t chunk, const struct chunk_piece *piece,
               const struct chunk_place *place, const float *values);
/* True if the boxes that were put cover the complete chunk. */
bool tiles_put_whole(const struct shard_job *job, uint64_t chunk);

/* ==== step message ==== */

/* Converts messages of the data plane to the core's events, and the core's actions to messages. */

/* Returns the event that a PUSH, MICRO_END or COMMIT means to a core: the core of the shard's own
 * part, or a relay's core. The caller fills in `chunk`, `is_readable` and `absent`. */
struct step_event step_event_of(const struct chunk_header *header);

/* ==== frozen ==== */

/* The groups and tensors that take no gradient in the round that was opened last. Loop thread; the
 * update's threads read this struct. */

struct frozen {
    uint64_t round;
    bool *groups;  /* owned: [spec.group_count] */
    bool *tensors; /* owned: [spec.tensor_count] */
    /* owned: [spec.tensor_count] the index of each trained tensor's group in the spec; constant */
    uint32_t *group_of;
};

/* ==== view ==== */

/* A view is a layout as this shard uses it. A job has the view in force, which changes between
 * rounds (jobs.h). A published copy has the view by which the copy was written, because readers
 * read a version by the layout in which it was published. A complete view does not change, so any
 * thread may read it. Only the loop thread counts references to a view. Only the loop thread reads
 * the number of a view's layout, because that number may be replaced. */

struct form;
struct area_place;

struct shard_view {
    uint32_t refs;
    struct layout *layout; /* owned */
    /* owned: the shard's chunks in the layout; table.map may exist before the chunks have
     * numbers */
    struct chunk_table table;
    struct form *forms; /* owned: [table.map.extent_count] */
    /* owned: [table.map.extent_count] for state on a device (memory.h); or NULL */
    struct area_place *places;
    uint64_t wire_bytes; /* the bytes of a published copy */
    struct memory_need
        memory; /* what the view takes of the job's memory; only `published` and `tables` are set */
};

/* Adds a reference; returns the view. */
struct shard_view *shard_view_ref(struct shard_view *view);
/* Drops a reference. When the last reference is dropped, the view is freed. NULL is fine. */
void shard_view_unref(struct shard_view *view);

/* A run of elements of one extent that one view of a shard has and another view lacks. */
struct shard_view_run {
    size_t extent; /* in the map of the view that has the run */
    uint32_t tensor;
    uint64_t first_leaf, leaf_count; /* of the tensor */
    uint64_t first_elem, elem_count; /* of the tensor */
    uint64_t local_elem;             /* the first element's place in the shard's state */
};

/* Calls `each` for every run that `in` has and `beside` lacks, ordered by tensor, then by element.
 * If `in` is a new view and `beside` the previous view, these runs arrive with the new view; if the
 * views are exchanged, the runs leave. Both views belong to one job and shard. If `beside` is NULL,
 * an empty view is meant. Any thread. */
void shard_view_beyond(const struct shard_view *in, const struct shard_view *beside,
                       void (*each)(void *context, const struct shard_view_run *run),
                       void *context);

/* ---- view.c: on a device (memory.h); loop thread, but the last one ---- */

struct state_planes;

/* Gives the view its places. An extent that is also in `before` keeps its place from there;
 * `before` may be NULL. The other extents need an area of *bytes_out bytes, which the caller adds
 * next (shard_view_area_add). CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status shard_view_places_open(struct shard_view *view,
                                                     const struct shard_view *before,
                                                     uint64_t host_from, uint64_t *bytes_out);

/* Adds the area that shard_view_places_open asked for, all 0. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status shard_view_area_add(struct shard_view *view,
                                                  struct state_planes *planes, struct home *device,
                                                  uint64_t bytes, struct sentence *why);
/* Gives back the segments that none of these views uses; an entry of `views` may be NULL. No work
 * on these segments may be under way. */
void shard_views_keep(const struct shard_view *const *views, size_t view_count,
                      struct state_planes *planes, struct shard_daemon *shard);
/* Returns where a local element of an extent of the view lies, in the element's home. NULL: the
 * extent does not keep the plane. `view` is the view of the planes, the view before it, or the next
 * view. Any thread. */
void *shard_view_at(const struct shard_view *view, const struct state_planes *planes, int plane,
                    size_t extent, uint64_t local_elem);

/* ---- view.c; loop thread ---- */

struct reserve;

/* Adds to the reserve the pages of the state that the job gets with `view`. Call it within
 * `prepare` of the reserve. The view must be complete, and the job's planes must have addresses for
 * the state. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status shard_view_reserve(const struct shard_job *job,
                                                 const struct shard_view *view,
                                                 struct reserve *reserve);
/* Gives the pages of the state that `view` has and the job's view lacks back to the system, on
 * another thread. Such state has left the shard, or does not arrive after all. Nobody may use these
 * pages, but later reserves may use their addresses. */
void shard_view_give(struct shard_job *job, const struct shard_view *view);

/* ==== collector ==== */

/* A collector receives the contributions of workers to one shard's part of a job, and folds these
 * contributions into sums.
 *
 *   workers ── PUSH ─────────────► _push ─┐         ┌─► RECEIVE: a slot ─► LANDED
 *           ── MICRO_END, COMMIT ► _step ─┼─ step.h ┼─► FOLD: collector.c ────► FOLDED
 *   coordinator ── OPEN, FENCE ──► _step ─┘ (core)  └─► GRANT, ACK, ...: to the workers
 *
 * A shard has one collector for its own part (members.c). A relay has a collector for each owner
 * (relay.c). Where these two kinds of collectors differ, they call a table of callbacks.
 *
 * The core is never called while its actions are being done. If an action has an immediate result,
 * such as a receive that fails, the slot is noted as landed, and the core is told when all actions
 * are done. Loop thread, except callbacks->fold. */

struct collector;

/* A contribution that has landed or is being received. The core refers to the slot by its index. */
struct collector_slot {
    struct collector *collector; /* borrowed */
    uint64_t member;             /* the contributor */
    uint32_t chunk;              /* the number of the chunk in the core */
    struct chunk_piece piece;    /* the part of the chunk that the payload holds */
    cairn_dtype dtype;
    size_t payload_bytes;
    uint64_t checksum;
    bool is_unsummed; /* CAIRN_CHUNK_UNSUMMED */
    enum bytes_path path;
    /* owned: the message, if its payload is read in the worker's memory (on the card, if the path
     * is BYTES_PATH_DEVICE); NULL: the payload is received into `memory` */
    struct fabric_message *message;
    /* the memory from callbacks->slot_memory into which the payload is received; or NULL */
    void *memory;
    /* the payload, in the worker's memory or in `memory`; NULL: the slot is free, or is still being
     * filled */
    const void *view;
    bool folding;                       /* a compute thread reads the payload */
    bool receiving;                     /* the fabric fills `memory` */
    cairn_status status;                /* the result of the finished receive */
    struct collector_slot *next_landed; /* in collector->landed */
};

/* A fold that is under way, or whose sum has no place yet. */
struct fold {
    struct work_run run;
    struct collector *collector; /* borrowed */
    struct fold_source sources[CAIRN_STEP_FOLD_MAX];
    struct chunk_piece pieces[CAIRN_STEP_FOLD_MAX]; /* of the sources */
    uint32_t slots[CAIRN_STEP_FOLD_MAX];            /* of the sources */
    uint32_t source_count, chunk;
    bool first;       /* the fold begins the chunk's sum */
    bool likely_last; /* the fold ends the chunk's sum, unless the round gets more micro-batches */
    bool viewed;      /* a source lies in a worker's memory that is host memory */
    struct buffer_claim claim; /* in a relay: the claim on the buffer for the sum */
    struct fold *next;         /* in collector->folds_free */
};

/* The functions in which a shard's own collector and a relay's differ. */
struct collector_callbacks {
    /* Returns false if the core is to be told nothing more, and no more actions are to be done. */
    bool (*takes_events)(const struct collector *collector);
    /* Called with each action before the collector does it. Does the actions that concern neither
     * workers nor slots nor folds. */
    void (*act)(struct collector *collector, const struct step_action *action);
    /* Sends to a worker, in the name of the shard for whose part the collector collects. */
    void (*send)(const struct collector *collector, struct shard_member *member,
                 struct chunk_header *header);
    /* Finds the piece of a chunk that a PUSH means, without side effects. If the status is not OK,
     * `why` tells the reason. */
    cairn_status (*judge_piece)(const struct collector *collector,
                                const struct shard_member *member,
                                const struct chunk_header *header, const struct chunk_place *place,
                                struct chunk_piece *piece_out, struct sentence *why);
    /* Returns the memory into which the slot's payload is received or copied, because it cannot be
     * read where it lies. */
    void *(*slot_memory)(struct collector *collector, uint32_t slot);
    /* Called when nobody reads the slot's memory any longer. May be NULL. */
    void (*slot_memory_back)(struct collector_slot *slot);
    /* Returns the compute that makes a chunk's sum; the sum lies in the home of this compute.
     * `chunk` is the core's number. */
    struct compute *(*compute)(const struct collector *collector, uint32_t chunk);
    /* Gives the fold's sum its place. Returns false if there is no place yet; then this callback
     * keeps the fold, and later passes it to fold_submit or fold_drop. */
    bool (*fold_place)(struct fold *fold);
    /* Adds the works that add the sources to the sum, like `describe` of struct work_run. */
    bool (*fold)(const struct fold *fold, uint32_t stage, struct works *works);
    /* Called when the fold has ended, before the core is told. */
    void (*fold_done)(struct fold *fold);
    /* Called after the core was told that a fold has ended. May be NULL. */
    void (*fold_reported)(struct collector *collector);
    /* Called when a fold met a missing page in memory of this shard, not of a worker: the host is
     * out of memory. */
    void (*no_page)(struct collector *collector);
    /* Called when something in flight begins to refer to the collector. */
    void (*busy)(struct collector *collector);
    /* Called when this reference ends. The caller may not use the collector afterwards, because the
     * collector may be freed in this call. */
    void (*idle)(struct collector *collector);
};

struct collector {
    const struct collector_callbacks *callbacks; /* static */
    struct shard_job *job;                       /* borrowed */
    /* borrowed: the chunks of the part for which the collector collects */
    const struct chunk_table *table;
    const char *shard_name;        /* borrowed: the owner of that part */
    struct step_machine *step;     /* owned: the core */
    struct step_actions *actions;  /* borrowed; several collectors may share one list */
    struct collector_slot *slots;  /* owned: [slot_count] */
    struct collector_slot *landed; /* receives that ended and were not reported to the core yet */
    uint32_t slot_count;
    struct fold *folds; /* owned: as many as can be under way */
    struct fold *folds_free;
    bool stepping; /* the core's actions are being done: the core must not be called */
    bool settling; /* collector_settle is running */
    /* the round in which a sum became wrong and stays wrong; no sum of that round may be used */
    uint64_t spoiled_round;

    /* the PUSH about which the core is deciding now */
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
    const struct step_kept *kept; /* given to step_init_kept; NULL: step_init makes the core */
    struct step_actions *actions; /* owned by the caller; the list in it grows as needed */
};

/* True if the payload may stay where it lies, because the compute that makes the chunk's sum can
 * read it there. */
bool collector_reads_view(const struct collector *collector, const struct chunk_header *header,
                          uint32_t chunk, const struct fabric_message *message);

/* The objects to which `options` points must outlive the collector. On CAIRN_ERR_NO_MEMORY close
 * the collector all the same. */
CAIRN_MUST_CHECK cairn_status collector_open(struct collector *collector,
                                             const struct collector_options *options);
/* The parts of a collector that depend on the table of chunks, made for another table. */
struct collector_tables {
    const struct chunk_table *table; /* borrowed */
    void *step;                      /* owned: the memory for a core */
    struct fold *folds;              /* owned */
    uint32_t fold_count;
};
/* Makes the tables for collector_switch, and room for them in the list of actions.
 * CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status collector_tables_open(const struct collector *collector,
                                                    const struct step_config *step,
                                                    const struct chunk_table *table,
                                                    struct collector_tables *tables_out);
/* Also accepts tables that are all 0. */
void collector_tables_close(struct collector_tables *tables);
/* Makes the collector continue with the chunks of these tables, and keeps what its core knew about
 * the job. No round may be open, and nothing of the job may be in flight. Takes ownership of the
 * tables. */
void collector_switch(struct collector *collector, const struct step_config *step,
                      struct collector_tables *tables);
/* Closes the collector, to which nothing may refer. Also accepts a collector that was never opened
 * and is all 0. */
void collector_close(struct collector *collector);
/* Ends the collector's work: releases all slots that are neither being read nor being filled. */
void collector_leave(struct collector *collector);

/* Passes the event to the core, then does the core's actions and all that follows from these
 * actions. May not be called while collector->stepping is set. */
void collector_step(struct collector *collector, const struct step_event *event);
/* Tells the core about receives that ended. */
void collector_settle(struct collector *collector);
/* Finds the chunk to which a PUSH belongs, without side effects. On CAIRN_OK *chunk_out is the
 * core's number of the chunk. Otherwise `why` says what is wrong. */
CAIRN_MUST_CHECK cairn_status collector_judge(const struct collector *collector,
                                              const struct shard_member *member,
                                              const struct chunk_header *header,
                                              uint32_t *chunk_out, struct chunk_piece *piece_out,
                                              struct sentence *why);
/* Handles a PUSH that collector_judge has judged. Takes or drops the message. */
void collector_push(struct collector *collector, const struct chunk_header *header, uint32_t chunk,
                    const struct chunk_piece *piece, struct fabric_message *message);

/* ---- collector.c ---- */

/* Gives the fold to the compute pool. Call it when the fold's sum has a place. */
void fold_submit(struct fold *fold);
/* Releases the fold's slots and tells the core that the fold has ended. Call it when the fold is
 * done, or is no longer wanted. */
void fold_drop(struct fold *fold);

#endif
