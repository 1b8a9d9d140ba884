#ifndef CAIRN_SHARD_WITHOUT_H
#define CAIRN_SHARD_WITHOUT_H

#include <stdbool.h>

#include "proto/spec/without.h"

/* What this build and this host do not have, bits of enum cairn_without; reads /sys. */
uint32_t cairn_shard_find_without(bool has_device);

#endif
