/* The round that the caller fills with gradients, as its calls see it: nonsense is refused before it travels.
 * Under the lock. */
#ifndef CAIRN_CLIENT_FILLING_H
#define CAIRN_CLIENT_FILLING_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/sentence.h"
#include "proto/spec/batch.h"

struct cairn_job_spec_data;

struct filling {
    uint64_t round;
    struct cairn_batch batch; /* of the round; of a write, too, without a total */
    bool had_last;    /* the last micro-batch of the batch was this worker's in its last round */
    uint32_t micro;   /* the micro-batch being filled: its place among this worker's */
    bool any;         /* something was pushed in it */
    bool end_unsent;  /* the end of the one before it is noted, and could not be told yet */
    bool committed;   /* the round is */
    uint64_t weight;  /* with which */
    uint8_t *tensors; /* owned: [tensor_count], enum filled: those of the micro-batch */
    bool *frozen_tensors; /* owned: [tensor_count] that take no gradient in this round */
    bool *frozen_groups;  /* owned: [group_count], likewise */
    double *rates;        /* owned: [group_count] of cairn_group_lr; NaN: none was given yet */
    uint32_t adding;      /* pushes that are being added up, or copied */
    uint64_t pushes_open; /* pushes that are not done: their buffers are on loan */
    uint64_t void_round;  /* the highest round known to be abandoned */
    struct cairn_sentence void_why; /* why; "" where nobody said */
    /* the round that this worker gave up since a shard refused its push, and why; 0: no refusal */
    uint64_t refused_round;
    cairn_status refused_status;
    struct cairn_sentence refused_why;
};

enum filled { NOT_PUSHED = 0, PUSHED = 1, PUSHED_IN_PART = 2 };

/* False: out of memory; to be released all the same. */
bool cairn_filling_init(struct filling *filling, const struct cairn_job_spec_data *spec);
void cairn_filling_release(struct filling *filling);

#endif
