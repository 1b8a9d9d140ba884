/* Hyper-parameters by their name in the optimizer's table. */
#ifndef CAIRN_SUPPORT_HYPER_H
#define CAIRN_SUPPORT_HYPER_H

#include "proto/spec/spec.h"

static inline double *cairn_hyper_field(struct group_hyper *hyper, const struct hyper_info *info)
{
    return (double *)(void *)((char *)hyper + info->offset_bytes);
}

/* The table's defaults; id is one of the table. */
static inline struct group_hyper cairn_hyper_default(uint32_t id)
{
    const struct optimizer_kind *o = optimizer_by_id(id);
    struct group_hyper hyper = { .optimizer = id };
    for (size_t i = 0; i < o->hyper_count; i++)
        *cairn_hyper_field(&hyper, &o->hypers[i]) = o->hypers[i].value_default;
    return hyper;
}

#endif
