/* Puts off a worker that fails right after each attach. Every attach and every loss voids the open
 * round, so nobody else comes to a step while that goes on. A worker that was lost again and again
 * before it ended a round is let in later each time, while others of the job do end rounds. A
 * worker that ends a round begins anew.
 *
 * A process that failed comes back as another process, and perhaps as another rank, so it is
 * known by its host. Losses of all workers of a host count together; workers that are lost
 * together count once. The losses of a rank are counted, too, on whichever host it was. A host
 * that did not fail is not put off for what another host did in that rank, unless the rank has
 * failed on several hosts. Where the host is not known, the rank alone counts. */
#ifndef CAIRN_COORDINATOR_MEMBER_RELAPSE_H
#define CAIRN_COORDINATOR_MEMBER_RELAPSE_H

#include "proto/base/sentence.h"
#include "server/coordinator/base/names.h"

#define CAIRN_RELAPSE_FREE   2     /* so often in a row it may be lost for nothing */
#define CAIRN_RELAPSE_MAX_MS 60000 /* it is put off for so long at most */

struct cairn_cluster_relapse;

/* An attached worker is gone. */
void cairn_cluster_relapse_lost(const struct cairn_cluster_member *member);
/* A round has ended with it. */
void cairn_cluster_relapse_over(struct cairn_cluster_member *member);
/* Returns for how long a worker that wants in is put off from now on; 0: it is not. */
uint64_t cairn_cluster_relapse_wait_ms(struct cairn_cluster_job *job,
                                       const struct cairn_cluster_member *member);
/* Says what a worker that is put off waits for. */
void cairn_cluster_relapse_waiting(struct cairn_cluster_job *job,
                                   const struct cairn_cluster_member *member,
                                   struct cairn_sentence *out);
void cairn_cluster_relapses_release(struct cairn_cluster_job *job);

#endif
