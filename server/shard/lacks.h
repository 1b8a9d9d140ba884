#ifndef CAIRN_SHARD_LACKS_H
#define CAIRN_SHARD_LACKS_H

#include "gpu/gpu.h"
#include "proto/wire/lacks.h"

/* What this build and this host do not have, bits of enum cairn_lack; reads /sys. */
uint32_t cairn_shard_find_lacks(const struct cairn_backend *backend);

#endif
