/* Where the state of a shard's jobs lies: in host memory, or on a device. */
#ifndef CAIRN_SHARD_DEVICE_H
#define CAIRN_SHARD_DEVICE_H

#include "proto/wire/messages.h"
#include "server/shard/shard.h"

/* "host", "cuda", "auto" */
bool cairn_device_backend_ok(const char *backend);
/* Opens the device that the options ask for, and says in the log where state lies, and why not elsewhere.
 * Without one `auto` goes on with host memory. CAIRN_ERR_NOT_FOUND, CAIRN_ERR_UNSUPPORTED,
 * CAIRN_ERR_NO_MEMORY: cuda was asked for and cannot be had. */
CAIRN_MUST_CHECK cairn_status cairn_device_open(struct cairn_shard *shard,
                                                const struct cairn_shard_options *options,
                                                struct cairn_sentence *why);
/* Says in the log how what lies on the device goes to other hosts; after the fabric was opened. */
void cairn_device_say_way(const struct cairn_shard *shard);
/* Fills in what the device has done so far, if there is one. */
void cairn_device_count(const struct cairn_shard *shard, Cairn__ShardStats *stats);
/* Fills in the description of the device, or of the host if there is none. `out` borrows from the
 * shard. */
void cairn_device_tell(struct cairn_shard *shard, Cairn__Home *out);

#endif
