/* Periodic snapshots: of each version whose step is a multiple of the job's snapshot_every, begun by the
 * coordinator itself. The newest snapshot_keep of them stay.
 *
 * Which are periodic is in their manifests, with the number of the job, so that the count goes on after a
 * restart, and neither what somebody asked for nor what another job of the name has left is ever removed. Old
 * ones go when a newer one is committed, never before. One that fails, or is due while another cut runs, is
 * said, and the next is tried at its step. Training waits for none of it. */
#ifndef CAIRN_COORDINATOR_PERIODIC_H
#define CAIRN_COORDINATOR_PERIODIC_H

#include "server/coordinator/cut.h"

/* The cut is one, and has ended, well or not. */
void cairn_cluster_periodic_ended(const struct cairn_cluster_cut *cut);

#endif
