#include "server/shard/collect/frozen.h"

#include <stdlib.h>
#include <string.h>

cairn_status cairn_frozen_init(struct cairn_frozen *frozen, const struct cairn_job_spec_data *spec)
{
    frozen->groups = calloc(spec->group_count + 1, sizeof *frozen->groups);
    frozen->tensors = calloc(spec->tensor_count + 1, sizeof *frozen->tensors);
    frozen->group_of = calloc(spec->tensor_count + 1, sizeof *frozen->group_of);
    if (frozen->groups == NULL || frozen->tensors == NULL || frozen->group_of == NULL)
        return CAIRN_ERR_NO_MEMORY;
    for (size_t t = 0; t < spec->tensor_count; t++) {
        const struct cairn_tensor_spec *tensor = &spec->tensors[t];
        if (tensor->kind == CAIRN_TRAINED)
            frozen->group_of[t] = (uint32_t)cairn_spec_find_group(spec, tensor->group);
    }
    return CAIRN_OK;
}

void cairn_frozen_release(struct cairn_frozen *frozen)
{
    free(frozen->groups);
    free(frozen->tensors);
    free(frozen->group_of);
}

void cairn_frozen_note(struct cairn_frozen *frozen, const struct cairn_job_spec_data *spec,
                       const Cairn__RoundOpen *message)
{
    memset(frozen->groups, 0, spec->group_count * sizeof *frozen->groups);
    memset(frozen->tensors, 0, spec->tensor_count * sizeof *frozen->tensors);
    frozen->round = message->round;
    for (size_t i = 0; i < message->n_frozen; i++) {
        if (message->frozen[i] < spec->group_count) frozen->groups[message->frozen[i]] = true;
    }
    for (size_t i = 0; i < message->n_frozen_tensors; i++) {
        const uint32_t tensor = message->frozen_tensors[i];
        if (tensor < spec->tensor_count) frozen->tensors[tensor] = true;
    }
}

cairn_status cairn_frozen_judge(const struct cairn_frozen *frozen,
                                const struct cairn_job_spec_data *spec, uint32_t tensor,
                                uint64_t round, struct cairn_sentence *why)
{
    if (round != frozen->round) return CAIRN_OK;
    const struct cairn_tensor_spec *t = &spec->tensors[tensor];
    if (frozen->groups[frozen->group_of[tensor]])
        return cairn_fail(why, CAIRN_ERR_REFUSED,
                          "tensor %s: its group %s is frozen in round %llu and takes no gradient",
                          t->name, t->group, (unsigned long long)round);
    if (frozen->tensors[tensor])
        return cairn_fail(why, CAIRN_ERR_REFUSED,
                          "tensor %s is frozen in round %llu and takes no gradient", t->name,
                          (unsigned long long)round);
    return CAIRN_OK;
}
