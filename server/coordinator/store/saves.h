/* The store's writes: on a thread of their own, one after the other in the order in which they are asked for,
 * so that the loop never waits for the disk. Whoever needs one durable goes on in its `then`.
 *
 * Each takes a copy of what it writes; `then` follows from the loop, unless the cluster is closed before.
 * CAIRN_ERR_NO_MEMORY: nothing was begun. */
#ifndef CAIRN_COORDINATOR_STORE_SAVES_H
#define CAIRN_COORDINATOR_STORE_SAVES_H

#include "server/coordinator/base/names.h"
#include "server/coordinator/store/store.h"

struct cairn_cluster_save;
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

/* Writes rows of no job: cairn_store_write. */
cairn_status cairn_cluster_save(struct cairn_cluster *cluster, enum cairn_store_change change,
                                const void *rows, size_t count, uint64_t number,
                                cairn_cluster_saved_fn then,
                                struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Makes such a change of a job's row, as the job is now, but for what is not true before it is durable: spec
 * (NULL: the job's own), INITIALIZED, and GENERATION, where generations up to `number` may be used. */
cairn_status cairn_cluster_save_job(struct cairn_cluster_job *job, enum cairn_store_change change,
                                    struct cairn_packed *spec, uint64_t number,
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
