/* The groups and tensors that take no gradient in the round that was opened last. Loop thread; the
 * update's threads read them. */
#ifndef CAIRN_SHARD_COLLECT_FROZEN_H
#define CAIRN_SHARD_COLLECT_FROZEN_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/spec/spec.h"
#include "proto/wire/messages.h"

struct cairn_frozen {
    uint64_t round;
    bool *groups;  /* owned: [spec.group_count] */
    bool *tensors; /* owned: [spec.tensor_count] */
    /* owned: [spec.tensor_count] a trained tensor's group in the spec; constant */
    uint32_t *group_of;
};

/* CAIRN_ERR_NO_MEMORY: to be released all the same. */
CAIRN_MUST_CHECK cairn_status cairn_frozen_init(struct cairn_frozen *frozen,
                                                const struct cairn_job_spec_data *spec);
void cairn_frozen_release(struct cairn_frozen *frozen);
/* A round opens. */
void cairn_frozen_note(struct cairn_frozen *frozen, const struct cairn_job_spec_data *spec,
                       const Cairn__RoundOpen *message);
/* CAIRN_ERR_REFUSED: the tensor, a trained one, takes no gradient in that round; `why` says so. */
CAIRN_MUST_CHECK cairn_status cairn_frozen_judge(const struct cairn_frozen *frozen,
                                                 const struct cairn_job_spec_data *spec,
                                                 uint32_t tensor, uint64_t round,
                                                 struct cairn_sentence *why);

#endif
