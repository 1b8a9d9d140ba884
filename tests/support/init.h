/* Initial values of a tensor by its name, for tests that compare what a shard made. */
#ifndef CAIRN_SUPPORT_INIT_H
#define CAIRN_SUPPORT_INIT_H

#include "proto/spec/spec.h"

/* Writes elements [first_elem, first_elem + elem_count) of the tensor. */
static inline void init_fill(const struct cairn_init *init, const char *tensor, uint64_t first_elem,
                             uint64_t elem_count, float *out)
{
    const struct init_source source = init_source_of(init, tensor);
    init_elems(&source, first_elem, elem_count, out);
}

#endif
