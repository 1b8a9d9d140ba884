/* A cluster inside the test's process, on one thread: the rooms of the coordinator and of the shards on
 * one loop, and between them and the workers a mem fabric that delays, reorders and repeats messages. */
#ifndef CAIRN_SUPPORT_ROOMS_H
#define CAIRN_SUPPORT_ROOMS_H

#include <pthread.h>
#include <semaphore.h>
#include <uv.h>

#include "server/coordinator/cluster.h"
#include "server/shard/shard.h"
#include "tests/support/mem.h"
#include "tests/support/scratch.h"

enum { ROOMS_SHARDS_MAX = 8 };

struct rooms {
    char folder[CAIRN_SCRATCH_BYTES], store[CAIRN_SCRATCH_BYTES + 16],
        snapshots[CAIRN_SCRATCH_BYTES + 16];
    char address[CAIRN_SCRATCH_BYTES + 16]; /* of the coordinator */
    struct fabric_hub *hub;
    uint32_t shard_count, compute_threads, workers_max;
    /* private */
    pthread_t thread;
    sem_t ready;
    uv_loop_t loop;
    uv_async_t stop;
    struct coord_options options;
    struct coord *cluster;
    struct shard_daemon *shards[ROOMS_SHARDS_MAX];
    uint32_t shards_ready;
};

void rooms_open(struct rooms *rooms, uint32_t shard_count,
                const struct cairn_fabric_mem_options *fabric);
/* For more than the 32 workers that rooms_open allows. */
void rooms_open_for(struct rooms *rooms, uint32_t shard_count, uint32_t workers_max,
                    const struct cairn_fabric_mem_options *fabric);
/* The workers must have closed their sessions. */
void rooms_close(struct rooms *rooms);

#endif
