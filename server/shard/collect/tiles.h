/* The parts of the tensors that workers hold ("tiles": boxes of them), and the pieces of chunks
 * that follow from these. */
#ifndef CAIRN_SHARD_COLLECT_TILES_H
#define CAIRN_SHARD_COLLECT_TILES_H

#include "proto/geometry/layout.h"
#include "proto/wire/chunk.h"
#include "proto/wire/messages.h"
#include "proto/wire/tiles.h"

struct cairn_chunk_table;
struct cairn_fold;
struct cairn_member;
struct cairn_shard;
struct cairn_shard_job;
struct cairn_works;

/* A box of a tensor that members hold. It is kept while someone holds it, and longer: see tiles.c. */
struct cairn_held {
    struct cairn_held *next; /* of the same tensor */
    struct cairn_box box;
    uint32_t holders;                  /* how many members hold it */
    uint64_t first_chunk, chunk_count; /* of the map: outside of them it has no element */
    uint64_t touched;                  /* chunks in which it has an element */
    /* while another table is being made ready: what takes its place, NULL: it stays; and its first_chunk */
    struct cairn_held *moved;
    uint64_t moved_first;
    /* [chunk_count] while INITIALIZING: the box was put there. Then: it was folded in this round */
    uint8_t mark[];
};

/* A tensor of which some member does not hold all. */
struct cairn_tiled {
    struct cairn_tiled *next; /* of the same job */
    uint32_t tensor;
    struct cairn_held *held; /* the first is the whole tensor, whoever holds it */
};

/* The tiles of a job. */
struct cairn_tiling {
    const struct cairn_chunk_table *table; /* borrowed: the part whose tensors they are of */
    struct cairn_tiled *list;              /* owned: those of which a member does not hold all */
    struct cairn_tiled *
        *of;        /* owned: [spec.tensor_count] the same, by tensor; NULL: all hold all of it */
    uint8_t *holds; /* owned: of cairn_tiles_holds, a row for each member that a round may have */
    uint32_t world; /* of the last MemberTiles: told to a new coordinator */
};

/* The part of a tensor that a member declared to hold. Kept for tensors that are not on this shard,
 * too: they may come to it. */
struct cairn_member_tile {
    uint32_t tensor;
    struct cairn_held *held; /* borrowed; NULL: a box that is all of it */
};

/* The elements that a chunk and a box have in common. */
struct cairn_piece {
    /* borrowed; NULL: all of the chunk, and every member holds all of the tensor */
    struct cairn_held *held;
    uint64_t first, count; /* elements of the box; of the chunk if held is NULL */
};

/* Owns the message. */
void cairn_tiles_on_message(struct cairn_shard *shard, uint32_t request,
                            Cairn__MemberTiles *message);
/* Replaces what the member holds by a judged list. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_BUSY: as before. */
CAIRN_MUST_CHECK cairn_status cairn_tiles_set_member(struct cairn_member *member,
                                                     const struct cairn_tiles *tiles,
                                                     struct cairn_sentence *why);
/* The member goes: it holds nothing any more. */
void cairn_tiles_forget(struct cairn_member *member);
/* `to` is the same member as `from`, told anew: it holds what `from` held. */
void cairn_tiles_move(struct cairn_member *from, struct cairn_member *to);
/* With the job, whose collector is open. CAIRN_ERR_NO_MEMORY: to be closed all the same. */
CAIRN_MUST_CHECK cairn_status cairn_tiles_open(struct cairn_shard_job *job,
                                               const struct cairn_chunk_table *table);
void cairn_tiles_close(struct cairn_shard_job *job);
/* No contribution or put is on its way: nothing refers to boxes but members. */
bool cairn_tiles_rest(const struct cairn_shard_job *job);
/* Memory for the same tiles by another table of the shard: *holds_out is for cairn_tiles_switch. No round is
 * open, and no put. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_BUSY: nothing changed. */
CAIRN_MUST_CHECK cairn_status cairn_tiles_ready(struct cairn_shard_job *job,
                                                const struct cairn_chunk_table *table,
                                                uint8_t **holds_out, struct cairn_sentence *why);
/* They are by that table from here on, which lives as long as the job or until the next one. */
void cairn_tiles_switch(struct cairn_shard_job *job, const struct cairn_chunk_table *table,
                        uint8_t *holds);
/* Or they are not: gives back what cairn_tiles_ready took. */
void cairn_tiles_unready(struct cairn_shard_job *job, uint8_t *holds);
/* In which of the core's chunks each of the `count` members holds an element: `holds` of struct
 * cairn_step_event. A member that is not known here holds all. Borrowed from the job until the next call.
 * NULL: every member holds all, or there are more members than a round of this job may have. */
const uint8_t *cairn_tiles_holds(struct cairn_shard_job *job, const uint64_t *members,
                                 uint32_t count);
/* How many chunks of a trained tensor here the member sends, if it has a gradient of the tensor. */
uint64_t cairn_tiles_touched(const struct cairn_member *member, uint32_t tensor);
/* The part of the tensor that the member declared to hold; NULL: nothing. */
const struct cairn_member_tile *cairn_tiles_of_member(const struct cairn_member *member,
                                                      uint32_t tensor);
/* How many elements the box has in common with the chunk, and how many of its elements come before them. */
uint64_t cairn_tiles_common(const struct cairn_shard_job *job, const struct cairn_box *box,
                            const struct cairn_chunk_place *place, uint64_t *before_out);

/* ---- tiles_pieces.c ---- */
/* Which piece of a chunk the header of a PUSH, PUT or FETCH (not of a box) means, without side effects.
 * CAIRN_ERR_MISMATCH: not what the member declared; `why` (may be NULL) says so. */
CAIRN_MUST_CHECK cairn_status cairn_tiles_piece(const struct cairn_member *member,
                                                const struct cairn_chunk_header *header,
                                                const struct cairn_chunk_place *place,
                                                struct cairn_piece *piece_out,
                                                struct cairn_sentence *why);
/* A chunk's first contribution of the round is folded next: clears the marks of all boxes there. */
void cairn_tiles_begin_chunk(struct cairn_shard_job *job, uint64_t chunk);
/* Folds the sources in their order, each into its piece of the chunk. Any thread. */
void cairn_tiles_fold(struct cairn_works *works, const struct cairn_fold *fold, uint64_t chunk,
                      const struct cairn_chunk_place *place, float *acc);
/* Copies the values of a piece that was put, and marks its box; the loop's works of the job are run next. */
void cairn_tiles_put(struct cairn_shard_job *job, uint64_t chunk, const struct cairn_piece *piece,
                     const struct cairn_chunk_place *place, const float *values);
/* True: the boxes that were put make up the chunk. */
bool cairn_tiles_put_whole(const struct cairn_shard_job *job, uint64_t chunk);

#endif
