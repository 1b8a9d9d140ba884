#ifndef CAIRN_SHARD_WITHOUT_H
#define CAIRN_SHARD_WITHOUT_H

#include <stdbool.h>

#include "proto/spec/without.h"

/* The optional features that this build and this host lack, as bits of enum cairn_without. Reads
 * /sys. */
uint32_t cairn_shard_find_without(bool has_device);

#endif
