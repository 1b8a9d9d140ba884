/* The store's writes: on a thread of their own, one after the other in the order in which they are asked for,
 * so that the loop never waits for the disk. Whoever needs one durable goes on in its `then`.
 *
 * Each takes a copy of what it writes; `then` follows from the loop, unless the cluster is closed before.
 * CAIRN_ERR_NO_MEMORY: nothing was begun. */
#ifndef CAIRN_COORDINATOR_STORE_SAVES_H
#define CAIRN_COORDINATOR_STORE_SAVES_H

#include "server/coordinator/base/names.h"

struct cairn_cluster_save;
struct cairn_stored_event;
struct cairn_stored_key;
struct cairn_pool;

/* The cluster's saves. */
struct cairn_cluster_saves {
    struct cairn_pool *pool;         /* owned: the store's thread */
    struct cairn_cluster_save *list; /* owned: on their way */
    uint64_t rows_written;           /* by those that ended */
};

/* The outcome of a save. */
struct cairn_cluster_saved {
    struct cairn_cluster *cluster;
    uint64_t job;    /* its id: it may be another one by then, or none; 0: it is of none */
    uint64_t number; /* the asker's: which of its saves */
    cairn_status status;
    const char *why;
};
typedef void (*cairn_cluster_saved_fn)(const struct cairn_cluster_saved *saved);

/* The whole row of the job as it is, but for its spec (packed). */
cairn_status cairn_cluster_save_job(struct cairn_cluster_job *job, struct cairn_packed *spec,
                                    uint64_t number, cairn_cluster_saved_fn then,
                                    struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Saves the fields of a job's row that change with its layout: epoch and reserved rounds,
 * layouts, shards, weights. */
cairn_status cairn_cluster_save_layout(const struct cairn_cluster_job *job, uint64_t number,
                                       cairn_cluster_saved_fn then,
                                       struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Its epoch, which is saved->number, and the reserved rounds. */
cairn_status cairn_cluster_save_epoch(const struct cairn_cluster_job *job,
                                      cairn_cluster_saved_fn then,
                                      struct cairn_sentence *why) CAIRN_MUST_CHECK;
cairn_status cairn_cluster_save_initialized(const struct cairn_cluster_job *job,
                                            cairn_cluster_saved_fn then,
                                            struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Generations up to that one, which is saved->number, may be used. */
cairn_status cairn_cluster_save_generation(const struct cairn_cluster_job *job, uint64_t generation,
                                           cairn_cluster_saved_fn then,
                                           struct cairn_sentence *why) CAIRN_MUST_CHECK;
cairn_status cairn_cluster_save_dropped(const struct cairn_cluster_job *job,
                                        cairn_cluster_saved_fn then,
                                        struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* cluster->storage.token. */
cairn_status cairn_cluster_save_storage(struct cairn_cluster *cluster, cairn_cluster_saved_fn then,
                                        struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The shard leaves by an operator's word; `number` 0: it does not any more. */
cairn_status cairn_cluster_save_leaving(struct cairn_cluster *cluster, const char *shard,
                                        uint64_t number, cairn_cluster_saved_fn then,
                                        struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The key is trusted from now on, or with `trusted` false not any more. */
cairn_status cairn_cluster_save_key(struct cairn_cluster *cluster,
                                    const struct cairn_stored_key *key, bool trusted,
                                    cairn_cluster_saved_fn then,
                                    struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* saved->number is the one behind the last of them. */
cairn_status cairn_cluster_save_events(struct cairn_cluster *cluster,
                                       const struct cairn_stored_event *events, size_t count,
                                       cairn_cluster_saved_fn then,
                                       struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Something of the job is on its way to the store. */
bool cairn_cluster_saving(const struct cairn_cluster_job *job);
cairn_status cairn_cluster_saves_open(struct cairn_cluster *cluster,
                                      struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Waits for the one that runs; the others are forgotten. on_closed follows if it was open. */
void cairn_cluster_saves_close(struct cairn_cluster *cluster, void (*on_closed)(void *context),
                               void *context);

#endif
