#include "server/shard/base/bytes.h"

#include <stdlib.h>
#include <string.h>

#include "server/shard/shard.h"

/* ---- counting ---- */

enum cairn_way cairn_way_of(const char *path)
{
    if (strcmp(path, "mapped") == 0) return CAIRN_WAY_SHARED;
    if (strcmp(path, "device") == 0) return CAIRN_WAY_DEVICE;
    if (strcmp(path, CAIRN_FABRIC_PATH_DIRECT) == 0) return CAIRN_WAY_DIRECT;
    return strcmp(path, "one-sided") == 0 ? CAIRN_WAY_ONE_SIDED : CAIRN_WAY_CARRIED;
}

static bool is_shared(enum cairn_way way)
{
    return way == CAIRN_WAY_SHARED || way == CAIRN_WAY_DEVICE;
}

static void add_pushed(struct cairn_bytes *to, uint64_t bytes, enum cairn_way way)
{
    *(is_shared(way) ? &to->pushed_shared : &to->pushed_carried) += bytes;
    if (way == CAIRN_WAY_ONE_SIDED) to->pushed_one_sided += bytes;
    if (way == CAIRN_WAY_DEVICE) to->pushed_device += bytes;
    if (way == CAIRN_WAY_DIRECT) to->pushed_direct += bytes;
}

static void add_fetched(struct cairn_bytes *to, uint64_t bytes, enum cairn_way way)
{
    *(is_shared(way) ? &to->fetched_shared : &to->fetched_carried) += bytes;
    if (way == CAIRN_WAY_ONE_SIDED) to->fetched_one_sided += bytes;
    if (way == CAIRN_WAY_DEVICE) to->fetched_device += bytes;
    if (way == CAIRN_WAY_DIRECT) to->fetched_direct += bytes;
}

void cairn_bytes_pushed(struct cairn_shard_job *job, uint64_t member, uint64_t bytes,
                        enum cairn_way way)
{
    struct cairn_member *m = cairn_member_find(job, member);
    job->shard->stats.pushed_bytes += bytes;
    add_pushed(&job->bytes, bytes, way);
    if (m != NULL) add_pushed(&m->bytes, bytes, way);
}

void cairn_bytes_fetched(struct cairn_shard_job *job, uint64_t member, uint64_t bytes,
                         enum cairn_way way)
{
    struct cairn_member *m = cairn_member_find(job, member);
    job->shard->stats.fetched_bytes += bytes;
    add_fetched(&job->bytes, bytes, way);
    if (m != NULL) add_fetched(&m->bytes, bytes, way);
}

void cairn_bytes_put(struct cairn_shard_job *job, uint64_t member, uint64_t bytes)
{
    struct cairn_member *m = cairn_member_find(job, member);
    job->shard->stats.pushed_bytes += bytes;
    job->bytes.put += bytes;
    if (m != NULL) m->bytes.put += bytes;
}

/* ---- telling ---- */

static bool is_told(const struct cairn_shard_job *job)
{
    return !job->staged && job->state != CAIRN_JOB_LEAVING;
}

static Cairn__BytesTold *add(struct cairn_bytes_list *out, const struct cairn_shard_job *job,
                             const struct cairn_bytes *bytes)
{
    Cairn__BytesTold *told = &out->told[out->count];
    out->pointers[out->count++] = told;
    cairn__bytes_told__init(told);
    told->job = job->number;
    told->steps = job->bytes.steps;
    told->pushed_shared = bytes->pushed_shared;
    told->pushed_carried = bytes->pushed_carried;
    told->fetched_shared = bytes->fetched_shared;
    told->fetched_carried = bytes->fetched_carried;
    told->put = bytes->put;
    told->pushed_one_sided = bytes->pushed_one_sided;
    told->fetched_one_sided = bytes->fetched_one_sided;
    told->pushed_device = bytes->pushed_device;
    told->fetched_device = bytes->fetched_device;
    told->pushed_direct = bytes->pushed_direct;
    told->fetched_direct = bytes->fetched_direct;
    return told;
}

static void add_workers(struct cairn_bytes_list *out, const struct cairn_shard_job *job)
{
    for (size_t i = 0; i < job->members.capacity && out->count < CAIRN_BYTES_TOLD_MAX; i++) {
        const struct cairn_member *member = job->members.list[i];
        if (member == NULL || member->role != CAIRN_ROLE_WIRE_WORKER) continue;
        if (member->is_relay) continue; // what its workers gave it, it tells of them
        Cairn__BytesTold *told = add(out, job, &member->bytes);
        told->steps -= member->bytes.steps;
        told->of_worker = true;
        told->rank = member->rank;
    }
}

void cairn_bytes_list(const struct cairn_shard *shard, struct cairn_bytes_list *out)
{
    size_t most = 0;
    for (const struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next)
        most += 1 + job->members.count;
    if (most > CAIRN_BYTES_TOLD_MAX) most = CAIRN_BYTES_TOLD_MAX; // there are fewer jobs
    *out = (struct cairn_bytes_list) { .told = calloc(most + 1, sizeof *out->told),
                                       .pointers = calloc(most + 1, sizeof *out->pointers) };
    if (out->told == NULL || out->pointers == NULL) return;
    for (const struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next)
        if (is_told(job)) add(out, job, &job->bytes);
    for (const struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next)
        if (is_told(job)) add_workers(out, job);
}

_Static_assert(CAIRN_MEMORY_TOLD_JOBS == CAIRN_SHARD_JOBS_MAX, "a place each");

static Cairn__MemoryTold *memory_of(struct cairn_memory_list *out, uint64_t job)
{
    for (size_t i = 0; i < out->count; i++)
        if (out->told[i].job == job) return &out->told[i];
    Cairn__MemoryTold *told = &out->told[out->count];
    out->pointers[out->count++] = told;
    cairn__memory_told__init(told);
    told->job = job;
    return told;
}

void cairn_memory_list(const struct cairn_shard *shard, struct cairn_memory_list *out)
{
    out->count = 0;
    for (const struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next) {
        Cairn__MemoryTold *told = memory_of(out, job->number);
        told->state += job->memory.state;
        told->published += job->memory.published;
        told->landing += job->memory.landing;
        told->staging += job->memory.staging;
        told->tables += job->memory.tables;
        told->device += job->memory.device;
    }
}

void cairn_bytes_list_release(struct cairn_bytes_list *list)
{
    free(list->told);
    free(list->pointers);
}
