/* The standing of a shard: whether what it holds is ours to act on (server/core/standing.h). Parts of another
 * store, and parts whose job our store is behind of, are strange. */
#ifndef CAIRN_COORDINATOR_MEMBER_STANDING_H
#define CAIRN_COORDINATOR_MEMBER_STANDING_H

#include "server/coordinator/base/names.h"
#include "server/core/standing.h"

/* The cluster's identity, by which shards know us. */
struct cairn_cluster_identity {
    struct cairn_coordinator_id id; /* of this process, and of its store */
    uint64_t *dropped;              /* owned: [dropped_count], the oldest first */
    size_t dropped_count;
};

/* Fills cluster->identity of the store. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_cluster_standing_open(struct cairn_cluster *cluster,
                                         struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The job is in the store no more. */
void cairn_cluster_dropped_add(struct cairn_cluster *cluster, uint64_t job);
/* It is here, and what it holds is ours to act on. */
bool cairn_cluster_seat_obeys(const struct cairn_cluster_seat *seat);
/* Its device has failed, and nothing may come to that (server/shard/unfit.h). */
bool cairn_cluster_seat_unfit(const struct cairn_cluster_seat *seat);
/* It listens on no network, so that of other hosts nobody reaches it, and shards of other hosts are here: a
 * part of a job there would stop whoever trains elsewhere. */
bool cairn_cluster_seat_apart(const struct cairn_cluster_seat *seat);
#define CAIRN_SEAT_APART_TEXT                                                                     \
    "listens on no network, and shards of other hosts are here: it gets no part of a job before " \
    "fabric.device is set there"
/* And it does not leave: it may get a part of a job. */
bool cairn_cluster_seat_stays(const struct cairn_cluster_seat *seat);
/* One of this spec: it is not apart, and nothing would lie on a device that has failed. NULL: of any job. */
bool cairn_cluster_seat_fits(const struct cairn_cluster_seat *seat,
                             const struct cairn_job_spec_data *spec);
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
/* The marks of a job that a shard has seen, and those that our store knows, to be compared. */
struct cairn_marks cairn_cluster_held_marks(const Cairn__HeldJob *held);
struct cairn_marks cairn_cluster_job_marks(const struct cairn_cluster_job *job);
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
/* Has shards drop the parts of a job that this store does not know, because an operator asks for
 * it. */
void cairn_cluster_forget(struct cairn_cluster_session *session, uint32_t request,
                          const Cairn__ClusterForget *message);

#endif
