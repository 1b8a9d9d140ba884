/* Bytes of a job, and the memory it takes, as its shards tell of them, added up for those who ask. Loop
 * thread only. */
#ifndef CAIRN_COORDINATOR_JOB_BYTES_H
#define CAIRN_COORDINATOR_JOB_BYTES_H

#include "server/coordinator/base/names.h"

#define CAIRN_BYTES_WORKERS_SHOWN 64
#define CAIRN_MEMORY_TOLD_MAX     1024 /* jobs of a shard */

struct cairn_bytes_view {
    size_t count; /* the first is of all members, then workers by rank */
    Cairn__BytesTold told[1 + CAIRN_BYTES_WORKERS_SHOWN];
    Cairn__BytesTold *list[1 + CAIRN_BYTES_WORKERS_SHOWN];
};

/* Keeps what the seat's shard told, instead of what it told before; without memory nothing. */
void cairn_cluster_bytes_take(struct cairn_cluster_seat *seat, const Cairn__Heartbeat *message);
/* Notes how much a worker or reader says that it has read by itself. The count never goes down. */
void cairn_cluster_bytes_read(struct cairn_cluster_member *member, uint64_t bytes);
/* Adds up what the job's shards and members told last; of all members is returned. Borrows itself: do not
 * move it. */
const Cairn__BytesTold *cairn_cluster_bytes_of(const struct cairn_cluster_job *job,
                                               struct cairn_bytes_view *out);

struct cairn_memory_view {
    Cairn__MemoryTold *told;  /* owned: [seat_count] of the job, by index */
    Cairn__MemoryTold **list; /* owned: [seat_count], to these */
    size_t count;             /* 0: no memory */
    uint64_t sum;
};
/* Lists the memory that the job's shards told last. The names are borrowed; the list is released
 * with cairn_cluster_memory_release. */
void cairn_cluster_memory_of(const struct cairn_cluster_job *job, struct cairn_memory_view *out);
void cairn_cluster_memory_release(struct cairn_memory_view *view);

#endif
