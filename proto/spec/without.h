/* The features that a shard's build or host lacks: no error, and no warning, but an operator who
 * wonders about a speed wants to know them. They are said once when the shard starts, and by `cairn
 * cluster status`. Pure. */
#ifndef CAIRN_SPEC_WITHOUT_H
#define CAIRN_SPEC_WITHOUT_H

#include <stdint.h>

#include "proto/base/sentence.h"

enum cairn_without { /* bits of Hello.without */
                     CAIRN_WITHOUT_RDMA = 1u << 0,
                     CAIRN_WITHOUT_GPU = 1u << 1,
                     CAIRN_WITHOUT_AVX512 = 1u << 2,
};
#define CAIRN_WITHOUT_COUNT 3

/* "RDMA", of the bit 1 << index. */
const char *cairn_without_name(uint32_t index);
/* "RDMA (no card in /sys/class/infiniband), GPU (...)"; empty if there is everything. */
void cairn_without_print(uint32_t without, struct cairn_sentence *out);

#endif
