/* The parameters of a snapshot as weights: for a job that begins with them, without the optimizer's state and
 * the step. */
#ifndef CAIRN_SNAPSHOT_IO_WEIGHTS_H
#define CAIRN_SNAPSHOT_IO_WEIGHTS_H

#include "proto/safetensors/safetensors_folder.h"

/* As cairn_weights_open; of a folder with a snapshot's manifest, the parameters and buffers by the names that
 * they have in its job. Every byte that is read is judged by the checksum of its block, so reads have the
 * statuses of cairn_snapshot_read, too. Nobody looks at the signature: weights of others have none. */
cairn_status cairn_snapshot_weights_open(const char *roots, const char *path,
                                         struct cairn_weights *out,
                                         struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif
