/* What a shard should have: the state of shard 0 of a scene, computed with the host kernels a whole
 * extent at a time, on one thread; and the two workers who push the same gradients to the shard. */
#ifndef CAIRN_SUPPORT_SHARD_MODEL_H
#define CAIRN_SUPPORT_SHARD_MODEL_H

#include "proto/snapshot_io/snapshot_io.h"
#include "tests/support/shard_scene.h"

struct model {
    const struct scene *scene;
    float *param, *exp_avg, *exp_avg_sq, *ema; /* owned: [map.elem_count] */
    uint8_t *wire; /* owned: [map.elem_count][4], each in its wire dtype */
    uint64_t step;
};

/* A scene of two workers whose job serves at version 1.0, and its model. */
void model_serve(struct model *model, struct scene *scene, const char *kind, uint32_t threads);
/* Closes both. */
void model_leave(struct model *model, struct scene *scene);
/* The initial state that scene_put_all puts. */
void model_open(struct model *model, const struct scene *scene);
void model_close(struct model *model);
/* Makes `copy` (all zero, or a model) the same. */
void model_copy(struct model *copy, const struct model *model);

bool model_keeps(uint32_t tensor, int plane);
float *model_plane(const struct model *model, int plane);
/* The bytes of a chunk of a plane. */
const void *model_bytes(const struct model *model, int plane, const struct chunk_place *place,
                        size_t *bytes_out);

/* Fetches a chunk, or all chunks of the model's map that keep the plane, and compares them with the model. */
void model_check_place(const struct model *model, struct scene *scene, enum plane plane,
                       const struct chunk_place *place, uint64_t generation, uint64_t step);
void model_check(const struct model *model, struct scene *scene, enum plane plane,
                 uint64_t generation, uint64_t step);
/* The digests of a part of a snapshot are those of the model's state, at that step. */
void model_check_part(const struct model *model, const Cairn__SnapshotPart *part, uint64_t step);

/* Round `round` at step `step`: members 1 and 2, two micro-batches, gradients of (member, micro,
 * tensor, element); member 2 leaves emb untouched in the second; weights 3 and 5. Arrivals out of
 * order, one of them twice. Ends when both committed. */
void model_push_round(struct scene *scene, uint64_t round, uint64_t step);
/* One chunk of a member's micro-batch; returns when its buffer is free. */
void model_push_chunk(struct scene *scene, uint64_t member, uint32_t micro, uint64_t chunk);
/* Computes the update of that round, says it to the shard as Decide or Resolve, hears Published. */
void model_apply(struct model *model, struct scene *scene, uint64_t round, uint64_t step,
                 uint16_t type);
/* Of these the arithmetic alone, with the sums of what the model has: the scalars that the update went by;
 * and the word to a shard that has its part in that update, whose Published is not awaited. */
void model_update(struct model *model, uint64_t round, uint64_t step,
                  struct group_scalars scalars_out[2]);
void model_say_apply(struct scene *scene, uint64_t round, uint64_t step, uint16_t type,
                     const struct group_scalars scalars[2]);
/* All of it, with the shard's sums compared. */
void model_round(struct model *model, struct scene *scene, uint64_t round, uint64_t step);

/* Writes what shard 1 owns of a snapshot (zeros), and lists it in the manifest. */
void model_write_rest(const struct scene *scene, const char *folder, struct manifest *manifest);

#endif
