#include "server/coordinator/job/bytes.h"

#include <stdlib.h>
#include <string.h>

#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/seat.h"

static void take_memory(struct cairn_cluster_seat *seat, const Cairn__Heartbeat *message)
{
    const size_t count = message->n_memory < CAIRN_MEMORY_TOLD_MAX ? message->n_memory
                                                                   : CAIRN_MEMORY_TOLD_MAX;
    seat->memory_count = 0;
    Cairn__MemoryTold *memory = realloc(seat->memory, (count + 1) * sizeof *memory);
    if (memory == NULL) return;
    seat->memory = memory;
    for (size_t i = 0; i < count; i++) {
        memory[i] = *message->memory[i];
        // The message's, which is freed; the rest are numbers.
        memory[i].shard = NULL;
        memory[i].untold = false;
        memory[i].base.unknown_fields = NULL;
        memory[i].base.n_unknown_fields = 0;
    }
    seat->memory_count = count;
}

void cairn_cluster_bytes_take(struct cairn_cluster_seat *seat, const Cairn__Heartbeat *message)
{
    take_memory(seat, message);
    const size_t count = message->n_bytes < CAIRN_BYTES_TOLD_MAX ? message->n_bytes
                                                                 : CAIRN_BYTES_TOLD_MAX;
    seat->bytes_count = 0;
    Cairn__BytesTold *bytes = realloc(seat->bytes, (count + 1) * sizeof *bytes);
    if (bytes == NULL) return;
    seat->bytes = bytes;
    for (size_t i = 0; i < count; i++) bytes[i] = *message->bytes[i]; // numbers only
    seat->bytes_count = count;
}

void cairn_cluster_bytes_read(struct cairn_cluster_member *member, uint64_t bytes)
{
    if (bytes > member->read_bytes) member->read_bytes = bytes;
}

/* Shards tell of the workers that they have; one that is away has told of those that it had. */
static bool is_attached(const struct cairn_cluster_job *job, uint32_t rank)
{
    for (const struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job)
        if (m->role == CAIRN_ROLE_WIRE_WORKER && m->rank == rank) return true;
    return false;
}

/* The entry of the rank, made in its place; NULL: so many are not shown, or it has left. */
static Cairn__BytesTold *worker(struct cairn_bytes_view *out, const struct cairn_cluster_job *job,
                                uint32_t rank)
{
    size_t at = 1;
    while (at < out->count && out->told[at].rank < rank) at++;
    if (at < out->count && out->told[at].rank == rank) return &out->told[at];
    if (at > CAIRN_BYTES_WORKERS_SHOWN || !is_attached(job, rank)) return NULL;
    if (out->count <= CAIRN_BYTES_WORKERS_SHOWN) out->count++; // else the last one goes
    memmove(&out->told[at + 1], &out->told[at], (out->count - 1 - at) * sizeof *out->told);
    cairn__bytes_told__init(&out->told[at]);
    out->told[at].of_worker = true;
    out->told[at].rank = rank;
    return &out->told[at];
}

/* Shards tell at different times, so each is divided by its own steps. */
static void add(Cairn__BytesTold *to, const Cairn__BytesTold *more)
{
    to->pushed_shared += more->pushed_shared;
    to->pushed_carried += more->pushed_carried;
    to->fetched_shared += more->fetched_shared;
    to->fetched_carried += more->fetched_carried;
    to->put += more->put;
    to->pushed_one_sided += more->pushed_one_sided;
    to->fetched_one_sided += more->fetched_one_sided;
    to->pushed_direct += more->pushed_direct;
    to->fetched_direct += more->fetched_direct;
    to->pushed_device += more->pushed_device;
    to->fetched_device += more->fetched_device;
    if (more->steps == 0) return;
    const double steps = (double)more->steps;
    to->pushed_a_step += (double)(more->pushed_shared + more->pushed_carried) / steps;
    to->fetched_a_step += (double)(more->fetched_shared + more->fetched_carried) / steps;
    if (more->steps > to->steps) to->steps = more->steps;
}

static void add_read(Cairn__BytesTold *to, uint64_t bytes)
{
    to->fetched_shared += bytes;
    if (to->steps > 0) to->fetched_a_step += (double)bytes / (double)to->steps;
}

/* Behind what shards told, which says how many steps there were. */
static void add_members(struct cairn_bytes_view *out, const struct cairn_cluster_job *job)
{
    uint64_t read = job->members.read_bytes;
    for (const struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        read += m->read_bytes;
        if (m->read_bytes == 0 || m->role != CAIRN_ROLE_WIRE_WORKER) continue;
        Cairn__BytesTold *to = worker(out, job, m->rank);
        if (to != NULL) add_read(to, m->read_bytes);
    }
    add_read(&out->told[0], read);
}

const Cairn__BytesTold *cairn_cluster_bytes_of(const struct cairn_cluster_job *job,
                                               struct cairn_bytes_view *out)
{
    out->count = 1;
    cairn__bytes_told__init(&out->told[0]);
    CAIRN_EACH_SHARD (job, s) {
        const struct cairn_cluster_seat *seat = job->shards[s].seat;
        for (size_t i = 0; i < seat->bytes_count; i++) {
            const Cairn__BytesTold *told = &seat->bytes[i];
            if (told->job != job->id) continue;
            Cairn__BytesTold *to = told->of_worker ? worker(out, job, told->rank) : &out->told[0];
            if (to != NULL) add(to, told);
        }
    }
    add_members(out, job);
    for (size_t i = 0; i < out->count; i++) {
        out->told[i].job = job->id;
        out->list[i] = &out->told[i];
    }
    return &out->told[0];
}

/* ---- memory ---- */

static void fill_memory(const struct cairn_cluster_job *job, uint32_t shard, Cairn__MemoryTold *out)
{
    const struct cairn_cluster_seat *seat = job->shards[shard].seat;
    cairn__memory_told__init(out);
    out->untold = true;
    for (size_t i = 0; i < seat->memory_count; i++)
        if (seat->memory[i].job == job->id) *out = seat->memory[i];
    out->job = job->id;
    out->shard_index = shard;
    out->shard = seat->name;
}

void cairn_cluster_memory_of(const struct cairn_cluster_job *job, struct cairn_memory_view *out)
{
    *out = (struct cairn_memory_view) { .told = calloc(job->seat_count + 1, sizeof *out->told),
                                        .list = calloc(job->seat_count + 1, sizeof *out->list) };
    if (out->told == NULL || out->list == NULL) return;
    CAIRN_EACH_SHARD (job, s) {
        Cairn__MemoryTold *told = out->list[out->count] = &out->told[out->count];
        out->count++;
        fill_memory(job, s, told);
        out->sum += told->state + told->published + told->landing + told->staging + told->tables;
    }
}

void cairn_cluster_memory_release(struct cairn_memory_view *view)
{
    free(view->told);
    free(view->list);
}
