/* Who we are to the shards, what they hold that we do not act on, and what they know of our store. */
#ifndef CAIRN_COORDINATOR_STANDING_H
#define CAIRN_COORDINATOR_STANDING_H

#include "server/coordinator/cluster.h"

/* standing.c: what shards hold that we do not act on, and who we are to them. */
/* Fills cluster->id and cluster->dropped of the store. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_cluster_standing_open(struct cairn_cluster *cluster,
                                         struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The job is in the store no more. */
void cairn_cluster_dropped_add(struct cairn_cluster *cluster, uint64_t job);
/* It is here, and what it holds is ours to act on. */
bool cairn_cluster_seat_obeys(const struct cairn_cluster_seat *seat);
/* Notes what the Hello says; false, and logged: we must not act on what it holds. */
bool cairn_cluster_seat_judge(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat,
                              const Cairn__Hello *hello);
/* "it holds state of another store": of one that does not obey. */
const char *cairn_cluster_seat_standing_text(const struct cairn_cluster_seat *seat);
void cairn_cluster_seat_forget_parts(struct cairn_cluster_seat *seat);
/* A frame of HeldJobs, the answer to a question if it has a request. False: not as it should be. */
bool cairn_cluster_seat_held(struct cairn_cluster_session *session,
                             const struct cairn_frame *frame) CAIRN_MUST_CHECK;
/* Leftovers of our own on it: of jobs that were never finished here, or were dropped, or restored onto other
 * shards, while it was away. */
void cairn_cluster_seat_clean(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat,
                              const Cairn__Hello *hello);
/* What the shard has seen of a job; and what our store knows of it. */
struct cairn_marks cairn_cluster_held_marks(const Cairn__HeldJob *held);
struct cairn_marks cairn_cluster_job_marks(const struct cairn_cluster_job *job);
/* The part is one that we do not act on: `why` says so. */
bool cairn_cluster_part_is_strange(const struct cairn_cluster_seat *seat,
                                   const Cairn__HeldJob *part, struct cairn_sentence *why);
/* A job of that name, which is not ours, is held by somebody, or may be: `why` says what to do. */
bool cairn_cluster_job_is_strange(const struct cairn_cluster *cluster, const char *name,
                                  struct cairn_sentence *why);
/* Parts that we do not act on; they borrow from the seats. */
struct cairn_cluster_strangers {
    Cairn__StrangePart **list; /* [count] */
    size_t count;
    /* owned */
    Cairn__StrangePart *parts;
    struct cairn_sentence *texts;
};
bool cairn_cluster_strangers_init(struct cairn_cluster_strangers *strangers,
                                  const struct cairn_cluster *cluster);
void cairn_cluster_strangers_release(struct cairn_cluster_strangers *strangers);
/* By the operator's word. */
void cairn_cluster_forget(struct cairn_cluster_session *session, uint32_t request,
                          const Cairn__ClusterForget *message);

/* terms_told.c: what the shards know of the spec that is in the store. */
/* Its generation is in the store, with this spec: to a shard that is up, if it does not know that yet. */
void cairn_cluster_terms_tell(struct cairn_cluster_job *job, uint32_t shard, bool settled);
void cairn_cluster_terms_tell_all(struct cairn_cluster_job *job);
/* Answers the amendments that all shards have. */
void cairn_cluster_terms_advance(struct cairn_cluster_job *job);

#endif
