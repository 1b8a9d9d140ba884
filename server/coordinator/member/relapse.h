/* A worker that fails right after each attach: every attach and every loss voids the open round, so that as
 * long as it goes on nobody else comes to a step. A rank that was lost again and again before it had ended a
 * round is let in later each time, while others of the job do end rounds. Whoever ends one begins anew. */
#ifndef CAIRN_COORDINATOR_MEMBER_RELAPSE_H
#define CAIRN_COORDINATOR_MEMBER_RELAPSE_H

#include "proto/base/sentence.h"
#include "server/coordinator/base/names.h"

#define CAIRN_RELAPSE_FREE   2     /* so often in a row a rank may be lost for nothing */
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
