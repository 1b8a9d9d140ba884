/* Payload bytes by job, worker and way, and memory by job and kind: told to the coordinator with each
 * Heartbeat. Loop thread only. */
#ifndef CAIRN_SHARD_BASE_BYTES_H
#define CAIRN_SHARD_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire/messages.h"

struct cairn_shard;
struct cairn_shard_job;

enum cairn_way {
    CAIRN_WAY_CARRIED,
    CAIRN_WAY_SHARED,    /* through memory of this host */
    CAIRN_WAY_ONE_SIDED, /* carried, and read by the receiver out of the sender's memory */
    CAIRN_WAY_DEVICE,    /* shared, and memory of a card, which reads it where it lies */
    CAIRN_WAY_DIRECT,    /* carried, and memory of a card, sent from where it lies */
};
/* The way that a path's name (proto/fabric/fabric.h) stands for. */
enum cairn_way cairn_way_of(const char *path);

/* Bytes by way. Shared: through memory of this host or of its cards; `device` counts the part of it
 * that the host did not see. Carried: by any other way; `one_sided` and `direct` count parts of it. */
struct cairn_bytes {
    uint64_t pushed_shared, pushed_carried, fetched_shared, fetched_carried, put;
    uint64_t pushed_one_sided, fetched_one_sided;
    uint64_t pushed_device, fetched_device;
    uint64_t pushed_direct, fetched_direct;
    /* of a job: updated here, writes aside; of a member: its job's when it joined */
    uint64_t steps;
};

/* The member may be gone: then the job's count alone grows. */
void cairn_bytes_pushed(struct cairn_shard_job *job, uint64_t member, uint64_t bytes,
                        enum cairn_way way);
void cairn_bytes_fetched(struct cairn_shard_job *job, uint64_t member, uint64_t bytes,
                         enum cairn_way way);
void cairn_bytes_put(struct cairn_shard_job *job, uint64_t member, uint64_t bytes);

struct cairn_bytes_list {
    size_t count;
    Cairn__BytesTold *told;      /* owned: [count] */
    Cairn__BytesTold **pointers; /* owned: [count], to these */
};
/* Lists an entry for each job, then an entry for each worker of a job, at most CAIRN_BYTES_TOLD_MAX
 * in all. Jobs that are staged or LEAVING are left out. Without memory the list is empty. */
void cairn_bytes_list(const struct cairn_shard *shard, struct cairn_bytes_list *out);
void cairn_bytes_list_release(struct cairn_bytes_list *list);

#define CAIRN_MEMORY_TOLD_JOBS 1024 /* CAIRN_SHARD_JOBS_MAX */
struct cairn_memory_list {
    size_t count;
    Cairn__MemoryTold told[CAIRN_MEMORY_TOLD_JOBS];
    Cairn__MemoryTold *pointers[CAIRN_MEMORY_TOLD_JOBS];
};
/* Lists the memory of each job; the generations of a job are added up. */
void cairn_memory_list(const struct cairn_shard *shard, struct cairn_memory_list *out);

#endif
