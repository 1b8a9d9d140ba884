/* A worker that fails right after each attach: every attach and every loss voids the open round, so that as
 * long as it goes on nobody else comes to a step. Who was lost again and again before it had ended a round
 * is let in later each time, while others of the job do end rounds. Whoever ends one begins anew.
 *
 * A process that failed comes back as another one, and perhaps as another rank: it is known by its host, of
 * which any worker counts, those that are lost together once. Of a rank it counts, too, how often it was
 * lost, wherever that was; but a host that did not fail has nothing to do with what another one did in that
 * rank, unless the rank has failed on several. Where the host is not known the rank is who it is. */
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
/* It wants in. For how long it is put off from now on; 0: it is not. */
uint64_t cairn_cluster_relapse_wait_ms(struct cairn_cluster_job *job,
                                       const struct cairn_cluster_member *member);
/* What it waits for, which it does. */
void cairn_cluster_relapse_waiting(struct cairn_cluster_job *job,
                                   const struct cairn_cluster_member *member,
                                   struct cairn_sentence *out);
void cairn_cluster_relapses_release(struct cairn_cluster_job *job);

#endif
