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

/* The chunks of a shard's part of a job, as a collector's core (server/core/step.h) numbers them: the
 * chunks of trained tensors, in the map's order. The shard and every relay to it number them alike. */

struct chunk_table {
    /* owned: all chunks of the part; the map has the layout to which it belongs */
    struct shard_map map;
    uint32_t *extent_of; /* owned: [map.chunk_count] the extent of each chunk */
    /* owned: [trained_count] the map's number of a chunk, by the core's number */
    uint32_t *trained;
    /* owned: [map.extent_count + 1] the core's number of an extent's first chunk; if the extent is not
     * trained, of the first chunk of the next trained extent */
    uint32_t *first;
    uint32_t trained_count;
};

/* Numbers the chunks of table->map, which the caller made. CAIRN_ERR_NO_MEMORY, also if there are too many
 * chunks for a core. */
CAIRN_MUST_CHECK cairn_status chunk_table_number(struct chunk_table *table,
                                                 const struct job_spec_data *spec);
void chunk_table_close(struct chunk_table *table);
/* A tensor's chunks in the part. The chunks are consecutive, and so are the tensor's extents. extent_count
 * 0: the part has nothing of the tensor. */
struct tensor_chunks {
    uint64_t first, count;             /* of table->map */
    size_t first_extent, extent_count; /* of table->map */
};
struct tensor_chunks chunk_table_tensor(const struct chunk_table *table, uint32_t tensor);
/* The place of the chunk that the core knows by the number `trained`. */
struct chunk_place chunk_table_place(const struct chunk_table *table, uint32_t trained);

/* ==== tiles ==== */

/* Tiles: the parts of tensors that workers hold, which are boxes of the tensors; and the pieces of chunks
 * that the tiles define. */

struct fold;

/* A box of a tensor that members hold. The box is kept while a member holds it, and for some time after:
 * see tiles.c. */
struct held_box {
    struct held_box *next; /* of the same tensor */
    struct cairn_box box;
    uint32_t holders;                  /* how many members hold it */
    uint64_t first_chunk, chunk_count; /* chunks of the map: the box has no element outside them */
    uint64_t touched;                  /* chunks in which it has an element */
    /* while another table is being prepared: the box that replaces this box (NULL: this box stays), and the
     * first_chunk of that box */
    struct held_box *moved;
    uint64_t moved_first;
    /* [chunk_count] While the job is INITIALIZING: the box was put in the chunk. Later: the box was folded
     * in this round. */
    uint8_t mark[];
};

/* A tensor that some member does not hold completely. */
struct tiled {
    struct tiled *next; /* of the same job */
    uint32_t tensor;
    struct held_box *held; /* the first is the whole tensor, whoever holds it */
};

/* The tiles of a job. */
struct tiling {
    const struct chunk_table *table; /* borrowed: the part to whose tensors the tiles belong */
    /* owned: the tensors that some member does not hold completely */
    struct tiled *list;
    /* owned: [spec.tensor_count] the same, by tensor; NULL: all members hold all */
    struct tiled **of;
    uint8_t *holds; /* owned: for tiles_holds, a row for each member that a round may have */
    uint32_t world; /* from the last MemberTiles: reported to a new coordinator */
};

/* The part of a tensor that a member declared to hold. It is kept for tensors on other shards, too, because
 * these tensors may move to this shard. */
struct member_tile {
    uint32_t tensor;
    struct held_box *held; /* borrowed; NULL: the member holds the complete tensor */
};

/* The elements that a chunk and a box have in common. */
struct chunk_piece {
    /* borrowed; NULL: the piece is the complete chunk, and every member holds the complete tensor */
    struct held_box *held;
    uint64_t first, count; /* elements of the box, or of the chunk if held is NULL */
};

/* Replaces the member's tiles by a list that was judged. On CAIRN_ERR_NO_MEMORY and CAIRN_ERR_BUSY the
 * member's tiles do not change. */
CAIRN_MUST_CHECK cairn_status tiles_set_member(struct shard_member *member,
                                               const struct tiles *tiles, struct sentence *why);
/* The member leaves: it no longer holds anything. */
void tiles_forget(struct shard_member *member);
/* `to` is the same member as `from`, announced anew. `to` takes over the tiles of `from`. */
void tiles_move(struct shard_member *from, struct shard_member *to);
/* Called when the job is opened, after its collector. CAIRN_ERR_NO_MEMORY: call tiles_close all the
 * same. */
CAIRN_MUST_CHECK cairn_status tiles_open(struct shard_job *job, const struct chunk_table *table);
void tiles_close(struct shard_job *job);
/* True if no contribution or put is under way, so that only members refer to boxes. */
bool tiles_rest(const struct shard_job *job);
/* Prepares the same tiles for another table of the shard. Pass *holds_out to tiles_switch. No round and no
 * put may be open. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_BUSY: nothing changed. */
CAIRN_MUST_CHECK cairn_status tiles_ready(struct shard_job *job, const struct chunk_table *table,
                                          uint8_t **holds_out, struct sentence *why);
/* From here on the tiles use that table. The table must live until the next switch, or as long as the
 * job. */
void tiles_switch(struct shard_job *job, const struct chunk_table *table, uint8_t *holds);
/* Call instead of tiles_switch: undoes tiles_ready, and gives back what tiles_ready took. */
void tiles_unready(struct shard_job *job, uint8_t *holds);
/* Returns for each of the `count` members the core's chunks in which the member holds an element: `holds`
 * of struct step_event. A member that this shard does not know counts as holding all chunks. The result is
 * borrowed from the job until the next call. NULL: every member holds all chunks, or there are more members
 * than a round of this job may have. */
const uint8_t *tiles_holds(struct shard_job *job, const uint64_t *members, uint32_t count);
/* The number of chunks of a trained tensor here that the member sends, if it has a gradient of the
 * tensor. */
uint64_t tiles_touched(const struct shard_member *member, uint32_t tensor);

/* Returns how many elements the box and the chunk have in common, and in *before_out how many elements of
 * the box come before them. */
uint64_t tiles_common(const struct shard_job *job, const struct cairn_box *box,
                      const struct chunk_place *place, uint64_t *before_out);

/* ---- tiles.c ---- */
/* Judges, without side effects, which piece of a chunk the header of a PUSH, PUT or FETCH (not of a box)
 * means. CAIRN_ERR_MISMATCH: the member did not declare this piece; `why` (may be NULL) says so. */
CAIRN_MUST_CHECK cairn_status tiles_piece(const struct shard_member *member,
                                          const struct chunk_header *header,
                                          const struct chunk_place *place,
                                          struct chunk_piece *piece_out, struct sentence *why);
/* Called before a chunk's first contribution of the round is folded: clears the marks of all boxes in the
 * chunk. */
void tiles_begin_chunk(struct shard_job *job, uint64_t chunk);
/* Folds the sources in their order, each into its piece of the chunk. Any thread. */
void tiles_fold(struct works *works, const struct fold *fold, uint64_t chunk,
                const struct chunk_place *place, float *acc);
/* Copies the values of a piece that was put, and marks its box; the caller then runs the loop's works of
 * the job. */
void tiles_put(struct shard_job *job, uint64_t chunk, const struct chunk_piece *piece,
               const struct chunk_place *place, const float *values);
/* True if the boxes that were put make up the complete chunk. */
bool tiles_put_whole(const struct shard_job *job, uint64_t chunk);

/* ==== step message ==== */

/* Converts messages of the data plane to the core's events, and the core's actions to messages. */

/* Returns the event that a PUSH, MICRO_END or COMMIT means to a core (the own part's core, or a relay's).
 * The caller fills in `chunk`, `is_readable` and `absent`. */
struct step_event step_event_of(const struct chunk_header *header);

/* ==== frozen ==== */

/* The groups and tensors that take no gradient in the round that was opened last. Loop thread; the update's
 * threads read this struct. */

struct frozen {
    uint64_t round;
    bool *groups;  /* owned: [spec.group_count] */
    bool *tensors; /* owned: [spec.tensor_count] */
    /* owned: [spec.tensor_count] a trained tensor's group in the spec; constant */
    uint32_t *group_of;
};

/* ==== view ==== */

/* A view: a layout as this shard uses it. A job has the view in force, which changes between rounds
 * (jobs.h); a published copy has the view by which it was written, so that a version is read by the layout
 * in which it was published. A complete view does not change, so any thread may read it. Only the loop
 * thread counts its references. Only the loop thread reads the number of its layout, because that number
 * may be replaced. */

struct form;
struct area_place;

struct shard_view {
    uint32_t refs;
    struct layout *layout; /* owned */
    /* owned: of the layout; the map may exist before the chunks have numbers */
    struct chunk_table table;
    struct form *forms;        /* owned: [table.map.extent_count] */
    struct area_place *places; /* owned: likewise, for state on a device (memory.h); or NULL */
    uint64_t wire_bytes;       /* of a published copy */
    struct memory_need
        memory; /* only published and tables: what the view takes of the job's memory */
};

/* Adds a reference; returns the view. */
struct shard_view *shard_view_ref(struct shard_view *view);
/* Drops a reference; the last one frees the view. NULL is fine. */
void shard_view_unref(struct shard_view *view);

/* Elements of one extent that one view of a shard has and another view lacks. */
struct shard_view_run {
    size_t extent; /* of the one view's map */
    uint32_t tensor;
    uint64_t first_leaf, leaf_count; /* of the tensor */
    uint64_t first_elem, elem_count; /* of the tensor */
    uint64_t local_elem;             /* the first element's place in the shard's state */
};

/* Calls `each` for all runs of `in` that `beside` lacks, by tensor, then by element. With (view, previous
 * view) these are the runs that arrive with `view`; with (previous view, view), the runs that leave. Both
 * views are of one job and shard; beside NULL: an empty view. Any thread. */
void shard_view_beyond(const struct shard_view *in, const struct shard_view *beside,
                       void (*each)(void *context, const struct shard_view_run *run),
                       void *context);

/* ---- view.c: on a device (memory.h); loop thread, but the last one ---- */

struct state_planes;

/* Gives the view its places. An extent that `before` (NULL: no view) has too keeps the places that it has
 * in `before`. The other extents need an area of *bytes_out bytes, which the caller adds next.
 * CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status shard_view_places_open(struct shard_view *view,
                                                     const struct shard_view *before,
                                                     uint64_t host_from, uint64_t *bytes_out);

/* Adds that area, all 0. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status shard_view_area_add(struct shard_view *view,
                                                  struct state_planes *planes, struct home *device,
                                                  uint64_t bytes, struct sentence *why);
/* Gives back the segments that no view in the list uses (an entry may be NULL). No work on these segments
 * may be under way. */
void shard_views_keep(const struct shard_view *const *views, size_t view_count,
                      struct state_planes *planes, struct shard_daemon *shard);
/* Where a local element of an extent of the view lies, in its home. NULL: the extent does not keep the
 * plane. The view is that of the planes, the previous one, or the next one; any thread. */
void *shard_view_at(const struct shard_view *view, const struct state_planes *planes, int plane,
                    size_t extent, uint64_t local_elem);

/* ---- view.c; loop thread ---- */

struct reserve;

/* Call within `prepare` of a reserve: adds the pages of the state that the job gets with `view`, which must
 * be complete. The job's planes must have addresses for that state. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status shard_view_reserve(const struct shard_job *job,
                                                 const struct shard_view *view,
                                                 struct reserve *reserve);
/* Gives the system, on another thread, the pages of the state that `view` has and the job's view lacks.
 * Such state has left, or does not arrive after all. Nobody may use these pages; later reserves may use the
 * same addresses. */
void shard_view_give(struct shard_job *job, const struct shard_view *view);

/* ==== collector ==== */

/* A collector takes what workers contribute to one shard's part of a job, and folds it into sums.
 *
 *   workers ── PUSH ─────────────► _push ─┐         ┌─► RECEIVE: a slot ─► LANDED
 *           ── MICRO_END, COMMIT ► _step ─┼─ step.h ┼─► FOLD: collector.c ────► FOLDED
 *   coordinator ── OPEN, FENCE ──► _step ─┘ (core)  └─► GRANT, ACK, ...: to the workers
 *
 * A shard has one collector for its own part (members.c), and a relay has one for each owner (relay.c).
 * Where these collectors differ, they call a table of callbacks.
 *
 * The core is never called from inside its own actions: the immediate result of an action (a receive that
 * fails) is noted as landed, and reported to the core when all actions are done. Loop thread, except
 * callbacks->fold. */

struct collector;

/* A contribution that has landed or is being received; the core names it by its index. */
struct collector_slot {
    struct collector *collector; /* borrowed */
    uint64_t member;             /* the contributor */
    uint32_t chunk;              /* the core's number */
    struct chunk_piece piece;    /* the part of the chunk that the payload holds */
    cairn_dtype dtype;
    size_t payload_bytes;
    uint64_t checksum;
    bool is_unsummed; /* CAIRN_CHUNK_UNSUMMED */
    enum bytes_path path;
    /* owned: the payload is in the worker's memory (on the card, if BYTES_PATH_DEVICE); NULL: the payload
     * took another path */
    struct fabric_message *message;
    /* from callbacks->slot_memory, for a payload that took another path; or NULL */
    void *memory;
    /* the payload, in either memory; NULL: the slot is free, or is still being filled */
    const void *view;
    bool folding;                       /* a compute thread reads it */
    bool receiving;                     /* the fabric fills it */
    cairn_status status;                /* of the finished receive */
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
    bool first;       /* it begins the chunk's sum */
    bool likely_last; /* it ends the chunk's sum, unless the round gets more micro-batches */
    bool viewed;      /* a source lies in a worker's memory, on the host */
    struct buffer_claim claim; /* on the buffer for a relay's sum */
    struct fold *next;         /* in collector->folds_free */
};

/* The functions in which a shard's own collector and a relay's differ. */
struct collector_callbacks {
    /* False: the core is told nothing more, and no more actions are done. */
    bool (*takes_events)(const struct collector *collector);
    /* Sees each action before it is done, and does those that concern neither workers nor slots and
     * folds. */
    void (*act)(struct collector *collector, const struct step_action *action);
    /* Sends to a worker, in the name of the shard for which this collects. */
    void (*send)(const struct collector *collector, struct shard_member *member,
                 struct chunk_header *header);
    /* Says which piece of a chunk a PUSH means; without side effects. Not OK: `why`. */
    cairn_status (*judge_piece)(const struct collector *collector,
                                const struct shard_member *member,
                                const struct chunk_header *header, const struct chunk_place *place,
                                struct chunk_piece *piece_out, struct sentence *why);
    /* Returns the memory for a payload that cannot be viewed, so that it is received. */
    void *(*slot_memory)(struct collector *collector, uint32_t slot);
    /* Nobody reads the slot's memory any longer. May be NULL. */
    void (*slot_memory_back)(struct collector_slot *slot);
    /* Returns the compute of the home in which a chunk's sum lies; this compute makes the sum. `chunk` is
     * the core's number. */
    struct compute *(*compute)(const struct collector *collector, uint32_t chunk);
    /* Gives the fold's sum its place. False: there is no place yet; the callback keeps the fold, and passes
     * the fold to fold_submit or fold_drop later. */
    bool (*fold_place)(struct fold *fold);
    /* Adds the sources to the sum: as `describe` in base.h. */
    bool (*fold)(const struct fold *fold, uint32_t stage, struct works *works);
    /* The fold ended; this is reported to the core next. */
    void (*fold_done)(struct fold *fold);
    /* The end of a fold was reported to the core. May be NULL. */
    void (*fold_reported)(struct collector *collector);
    /* A fold failed at memory of this host, not of a worker: the host is out of memory. */
    void (*no_page)(struct collector *collector);
    /* Something in flight begins to refer to the collector. */
    void (*busy)(struct collector *collector);
    /* The reference ended. Whoever calls this must do so last, because the collector may be freed in this
     * call. */
    void (*idle)(struct collector *collector);
};

struct collector {
    const struct collector_callbacks *callbacks; /* static */
    struct shard_job *job;                       /* borrowed */
    const struct chunk_table *table;             /* borrowed: the part for which this collects */
    const char *shard_name;                      /* borrowed: the owner of that part */
    struct step_machine *step;                   /* owned: the core */
    struct step_actions *actions;  /* borrowed; several collectors may share one list */
    struct collector_slot *slots;  /* owned: [slot_count] */
    struct collector_slot *landed; /* receives that ended and were not reported to the core yet */
    uint32_t slot_count;
    struct fold *folds; /* owned: as many as can be under way */
    struct fold *folds_free;
    bool stepping; /* the core's actions are being done: the core must not be called */
    bool settling; /* collector_settle is running */
    /* a sum of this round is permanently wrong: no sum of the round may be used */
    uint64_t spoiled_round;

    /* of the PUSH that the core is now deciding on */
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
    struct step_actions *actions; /* its list grows as needed; owned by the caller */
};

/* True if the payload may stay in place: the compute that makes the chunk's sum can read it there. */
bool collector_reads_view(const struct collector *collector, const struct chunk_header *header,
                          uint32_t chunk, const struct fabric_message *message);

/* Objects that `options` borrows must outlive the collector. CAIRN_ERR_NO_MEMORY: close it. */
CAIRN_MUST_CHECK cairn_status collector_open(struct collector *collector,
                                             const struct collector_options *options);
/* The parts of a collector that depend on its chunks, made for another table. */
struct collector_tables {
    const struct chunk_table *table; /* borrowed */
    void *step;                      /* owned: memory of a core */
    struct fold *folds;              /* owned */
    uint32_t fold_count;
};
/* Makes the tables for collector_switch, and room for them in the list of actions. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status collector_tables_open(const struct collector *collector,
                                                    const struct step_config *step,
                                                    const struct chunk_table *table,
                                                    struct collector_tables *tables_out);
/* Also accepts tables that are all 0. */
void collector_tables_close(struct collector_tables *tables);
/* The collector continues with these chunks, and keeps what it knew about the job. No round may be open,
 * and nothing of the job may be in flight. Takes ownership of the tables. */
void collector_switch(struct collector *collector, const struct step_config *step,
                      struct collector_tables *tables);
/* Closes the collector, to which nothing may refer. Accepts a collector that is all 0 because it was never
 * opened, too. */
void collector_close(struct collector *collector);
/* Ends the collector's work: releases all slots that are neither being read nor being filled. */
void collector_leave(struct collector *collector);

/* Passes the event to the core, then does the core's actions and all that follows from them. Do not call it
 * while collector->stepping is set. */
void collector_step(struct collector *collector, const struct step_event *event);
/* Tells the core about receives that ended. */
void collector_settle(struct collector *collector);
/* Judges, without side effects, to which chunk a PUSH belongs. CAIRN_OK: *chunk_out is the core's number.
 * Otherwise `why` says which field is wrong. */
CAIRN_MUST_CHECK cairn_status collector_judge(const struct collector *collector,
                                              const struct shard_member *member,
                                              const struct chunk_header *header,
                                              uint32_t *chunk_out, struct chunk_piece *piece_out,
                                              struct sentence *why);
/* Handles a PUSH that was judged. Takes or drops the message. */
void collector_push(struct collector *collector, const struct chunk_header *header, uint32_t chunk,
                    const struct chunk_piece *piece, struct fabric_message *message);

/* ---- collector.c ---- */

/* Call when the fold's sum has a place: gives the fold to the compute pool. */
void fold_submit(struct fold *fold);
/* Call when the fold is done, or is no longer wanted: releases the fold's slots and tells the core. */
void fold_drop(struct fold *fold);

#endif
