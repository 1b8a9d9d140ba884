/* Workers that open a job with the wish that its newest snapshot is restored. */
#ifndef CAIRN_COORDINATOR_RESTORE_RESUME_H
#define CAIRN_COORDINATOR_RESTORE_RESUME_H

#include "server/coordinator/base/names.h"

/* Looks for snapshots of the job, and restores the newest that is whole, if that is not under way; then those
 * who wait for it go on (cairn_cluster_openers_resumed). False: no memory. */
bool cairn_cluster_resume_begin(struct cairn_cluster *cluster, const char *job);
bool cairn_cluster_resuming(const struct cairn_cluster *cluster, const char *job);
/* With the cluster, whose threads have ended: nobody is told. */
void cairn_cluster_resumes_close(struct cairn_cluster *cluster);

#endif
