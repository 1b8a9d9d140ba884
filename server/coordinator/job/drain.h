/* Shards that leave the cluster: all that they hold goes to others first. So it goes off one whose device has
 * failed, without a word of anybody, while another shard is here that is well. */
#ifndef CAIRN_COORDINATOR_JOB_DRAIN_H
#define CAIRN_COORDINATOR_JOB_DRAIN_H

#include "server/coordinator/base/names.h"

/* Drains a shard because an operator asks for it. Done is sent when the shard is drained or,
 * without `wait`, when the store has the wish. A coordinator that starts later goes on with it. */
void cairn_cluster_member_drain(struct cairn_cluster_session *session, uint32_t request,
                                const Cairn__MemberDrain *message);
/* Drains a shard because it asks itself: it is being stopped. If it cannot be drained, or three
 * quarters of its time are over, its jobs are saved. */
void cairn_cluster_drain_me(struct cairn_cluster_session *session, uint32_t request,
                            const Cairn__DrainMe *message);
/* Loads the drains that the store has. CAIRN_ERR_NO_MEMORY, or an error of the store. */
cairn_status cairn_cluster_drains_load(struct cairn_cluster *cluster,
                                       struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The next steps of all that leave. */
void cairn_cluster_drains_tick(struct cairn_cluster *cluster);
void cairn_cluster_drains_forget(struct cairn_cluster *cluster,
                                 const struct cairn_cluster_session *session);
/* Shards with a part of the job that leave by an operator's word do not leave any more, nor goes anything of
 * other jobs off them. True: there was one. */
bool cairn_cluster_drains_cancel(struct cairn_cluster_job *job);
/* The shard is here: does it leave? A process that was drained does still; another one of its name is new. */
void cairn_cluster_drain_come(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat);
/* The shard is gone: it does not leave any more. */
void cairn_cluster_drain_gone(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat);

#endif
