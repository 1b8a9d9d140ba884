/* A job whose shard has lost its part restores its newest whole snapshot by itself, if its on_shard_loss
 * says so: what the sentence of a lost job advises, without the operator.
 *
 *   a part is missed   its shard came without it (job/parts.c), or is away for shard_loss_wait_s
 *     → LOST           members are put out with ROLLED_BACK; who opens the job waits
 *     → restore        of the newest snapshot, or, if that is damaged, of the one before, as soon as there
 *                      are shards enough (restore.c); a part that comes back first ends it
 *     → running        in a new generation, at the snapshot's step, with the policy and the bounds of workers
 *                      that the job had
 *
 * A restore that an operator or a worker asked for, and that ended for another cause than its snapshot (a
 * shard died), is tried again in the same way, with the settings that were asked for.
 *
 * A snapshot that a shard does not see is not damaged: that shard's storage is waited for, however long.
 *
 * A snapshot ahead of where the job was is not its own, but of one that had the name before it.
 *
 * At most CAIRN_RESTORES_MAX times without a step that is applied in between, while this coordinator lives;
 * then the job waits, and says so. */
#ifndef CAIRN_COORDINATOR_RESTORE_RECOVERY_H
#define CAIRN_COORDINATOR_RESTORE_RECOVERY_H

#include "server/coordinator/base/names.h"

void cairn_cluster_recovery_tick(struct cairn_cluster_job *job);
/* The snapshot's spec takes over what the job does by itself, and how many workers it has, as an amendment
 * may have made it since: those who work for it now are to find their place in it. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_cluster_recovery_keep(struct cairn_job_spec_data *spec,
                                         const struct cairn_job_spec_data *now) CAIRN_MUST_CHECK;

#endif
