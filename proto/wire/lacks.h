/* What a shard's build or host does not have: no error, and no warning, but what an operator who wonders
 * about a speed wants to know. Said once when the shard starts, and by `cairn cluster status`. Pure. */
#ifndef CAIRN_WIRE_LACKS_H
#define CAIRN_WIRE_LACKS_H

#include <stdint.h>

#include "proto/wire/sentence.h"

enum cairn_lack { /* bits of Hello.lacks */
                  CAIRN_LACKS_RDMA = 1u << 0,
                  CAIRN_LACKS_GPU = 1u << 1,
                  CAIRN_LACKS_AVX512 = 1u << 2,
};
#define CAIRN_LACK_COUNT 3

/* "RDMA", of the bit 1 << index. */
const char *cairn_lack_name(uint32_t index);
/* "RDMA (no card in /sys/class/infiniband), GPU (...)"; empty if there is everything. */
void cairn_lacks_print(uint32_t lacks, struct cairn_sentence *out);

#endif
