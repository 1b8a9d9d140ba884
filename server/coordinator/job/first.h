/* The generation that a new job begins with: above all that lie in the folder of its name, so that of any two
 * snapshots there the one of the higher version is the newer, and no two have the same. */
#ifndef CAIRN_COORDINATOR_JOB_FIRST_H
#define CAIRN_COORDINATOR_JOB_FIRST_H

#include "server/coordinator/base/names.h"

/* False: the folder is being looked at, on another thread; the openers are looked at again then. A folder
 * that cannot be read, or hangs, does not hold a job up: it begins with generation 1, with a warning. */
bool cairn_cluster_first_generation(struct cairn_cluster *cluster, const char *job, uint64_t *out);
/* Looks that take too long end. */
void cairn_cluster_first_tick(struct cairn_cluster *cluster);

#endif
