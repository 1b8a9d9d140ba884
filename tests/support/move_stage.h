/* Two or three shards of one job on a stage, whose layout changes while rounds go on: the test is the
 * coordinator of all and both workers, and a model of the whole job says what the shards should have. */
#ifndef CAIRN_SUPPORT_MOVE_STAGE_H
#define CAIRN_SUPPORT_MOVE_STAGE_H

#include "tests/support/shard_model.h"

enum { STAGE_SHARDS = 3, STAGE_WORKERS = 2 };
/* Tensors of stage_open_more: "x_buffer" f32 [20000], 5 quanta, and "y_blob" [30000], 8 quanta. */
enum { T_BUFFER = TENSORS, T_BLOB, STAGE_MORE = 2 };

/* A run of quanta of a tensor, in the order of the table; quanta 0: the table ends. */
struct stage_run {
    uint32_t tensor, shard;
    uint64_t quanta;
};

struct stage {
    struct scene shard[STAGE_SHARDS];
    uint32_t count;     /* of them that are there */
    struct scene whole; /* nobody's: a layout in which one shard has all */
    struct model model; /* of that one */
    uint64_t layout;    /* the number of the one in force */
    uint64_t epoch, round, step;
    uint32_t requests;
    struct {
        uint64_t round; /* 0: there is none */
        bool skipped;
        struct group_scalars scalars[2];
    } last; /* the last outcome */
};
extern struct stage stage;

/* The layout in which stage_open begins: shard 0 has all but three quanta of weight, which shard 1 has.
 * HALF: of emb, frozen and weight shard 1 has a part or all, too, cut within chunks. BACK: all is where it
 * was, in the pieces of HALF. OUT: shard 2 has what shard 1 had in HALF. */
extern const struct stage_run stage_before[], stage_half[], stage_back[], stage_out[];

/* Opens two shards ("mem" or "ucx") with the job at version 1.0. Where they keep their state says
 * tests/support/test_backend.h. */
void stage_open(const char *kind);
/* The same, "mem", as a fixture, whose end is stage_close. */
void stage_open_two(void);
/* The same with more tensors, in that layout; there is no model of them, and no round. */
void stage_open_more(const struct stage_run *table);
void stage_close(void);

/* ---- the coordinator ---- */
struct layout *stage_make(const struct stage_run *table, uint64_t version, uint32_t shard_count);
/* Says PartPrepare of the next layout to a shard; the answer is not awaited. Returns the request. */
uint32_t stage_say_prepare(struct scene *scene, const struct stage_run *table, uint64_t version,
                           uint32_t shard_count);
/* Says it to all, and hears Done. */
void stage_prepare(const struct stage_run *table);
/* Fences all into a new epoch and that layout, and hears the answers. */
void stage_fence(uint64_t layout);
/* The same with what was prepared; the scenes go by it. */
void stage_force(const struct stage_run *table);
/* Resolve, with the last outcome; to all, which then say Published. */
void stage_say_resolve(struct scene *scene);
void stage_resolve(void);
/* Hears from each that it has all that it owns. */
void stage_hear_moved(void);
void stage_settle(void);
/* From stage_resolve to stage_settle. */
void stage_complete(void);
/* From stage_prepare to stage_resolve: rounds go on by the new layout, and state is on its way. */
void stage_begin_move(const struct stage_run *table);
/* From stage_prepare to stage_settle. */
void stage_move(const struct stage_run *table);
/* After a round HALF is in force, and until shard 0 is SERVING again shard 1 lacks what comes to it. */
void stage_begin_taking(void);
/* A third shard joins the layout in force, whose table that is: it has nothing of it. */
void stage_join(const struct stage_run *table);

/* ---- rounds ---- */
/* Both workers push a round to all shards, by the layout in force. */
void stage_push(void);
/* All have reduced: the model, and with it the shards, do the update. */
void stage_apply(void);
void stage_round(void);
/* An outcome of the round without an update. */
void stage_skip(void);

/* ---- what there is ---- */
struct shard_job *stage_job(uint32_t shard);
bool stage_is_on_host(uint32_t shard);
/* What a plane has of an extent, copied out of its home; until the next call. */
const void *stage_extent(const struct shard_job *job, enum plane plane, size_t number);
/* All state that the shards own by their views is the model's, in each plane. */
void stage_check(void);
/* Fetches all chunks of the version by that layout, and compares them with the wire of `then`. */
void stage_check_version(uint64_t step, const struct stage_run *table, const struct model *then);

#endif
