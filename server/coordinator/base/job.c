/* A job: found, told apart, and its shards spoken to. */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"

/* ---- of the cluster's jobs ---- */

struct cairn_cluster_job *cairn_cluster_job_find(struct cairn_cluster *cluster, const char *name)
{
    struct cairn_cluster_job *job = cluster->jobs;
    while (job != NULL && strcmp(job->spec.name, name) != 0) job = job->next;
    return job;
}

struct cairn_cluster_job *cairn_cluster_job_by_id(const struct cairn_cluster *cluster, uint64_t id)
{
    struct cairn_cluster_job *job = cluster->jobs;
    while (job != NULL && job->id != id) job = job->next;
    return job;
}

void cairn_cluster_job_link(struct cairn_cluster_job *job)
{
    struct cairn_cluster_job **at = &job->cluster->jobs;
    while (*at != NULL && strcmp((*at)->spec.name, job->spec.name) < 0) at = &(*at)->next;
    job->next = *at;
    *at = job;
}

void cairn_cluster_job_unlink(struct cairn_cluster_job *job)
{
    struct cairn_cluster_job **at = &job->cluster->jobs;
    while (*at != NULL && *at != job) at = &(*at)->next;
    if (*at == job) *at = job->next;
}

/* ---- what a job is at ---- */

const char *cairn_cluster_job_state_name(const struct cairn_cluster_job *job)
{
    switch (job->state) {
    case CAIRN_CLUSTER_JOB_CREATING:
        return job->restoring ? "restoring" : job->dropping ? "dropping" : "creating";
    case CAIRN_CLUSTER_JOB_INITIALIZING: return "initializing";
    case CAIRN_CLUSTER_JOB_RUNNING:
        if (job->version_unknown) return "waiting";
        if (job->park.shut) return "parked";
        return job->core != NULL && cairn_round_halted(job->core) ? "halted" : "running";
    case CAIRN_CLUSTER_JOB_LOST: return job->loss.behind ? "behind" : "lost";
    }
    return "?";
}

struct cairn_version cairn_cluster_job_version(const struct cairn_cluster_job *job)
{
    const struct cairn_version base = { job->generation, job->base_step };
    if (job->core == NULL) return base;
    const struct cairn_version now = cairn_round_version(job->core);
    return now.generation < base.generation ? base : now;
}

bool cairn_cluster_job_dead(const struct cairn_cluster_job *job)
{
    return job->state == CAIRN_CLUSTER_JOB_LOST && !job->loss.may_return;
}

struct cairn_cluster_member *cairn_cluster_job_member(struct cairn_cluster_job *job, uint64_t id)
{
    struct cairn_cluster_member *m = job->members.by_id[id % CAIRN_MEMBER_BUCKETS];
    while (m != NULL && m->id != id) m = m->next_of_bucket;
    return m;
}

/* ---- its shards ---- */

bool cairn_cluster_job_shards_init(struct cairn_cluster_job *job, uint32_t shard_room)
{
    job->shard_room = shard_room;
    job->shards = calloc(job->shard_room, sizeof *job->shards);
    return job->shards != NULL;
}

void cairn_cluster_job_set_seat(struct cairn_cluster_job *job, uint32_t shard,
                                struct cairn_cluster_seat *seat)
{
    struct cairn_cluster_job_shard *s = &job->shards[shard];
    if (seat != NULL) job->seat_count++;
    if (s->seat != NULL) job->seat_count--;
    if (shard >= job->shard_count) job->shard_count = shard + 1;
    *s = (struct cairn_cluster_job_shard) { .seat = seat };
}

uint32_t cairn_cluster_job_shard_from(const struct cairn_cluster_job *job, uint32_t index)
{
    while (index < job->shard_count && job->shards[index].seat == NULL) index++;
    return index;
}

bool cairn_cluster_job_in_force(const struct cairn_cluster_job *job, uint32_t shard)
{
    return shard < job->layout->shard_count && job->shards[shard].seat != NULL;
}

uint8_t *cairn_cluster_holes(const struct cairn_cluster_job *job, uint32_t shard_count)
{
    uint8_t *gone = calloc(shard_count / 8 + 1, 1);
    if (gone == NULL) return NULL;
    for (uint32_t i = 0; i < shard_count && i < job->shard_count; i++)
        if (job->shards[i].seat == NULL) gone[i / 8] = (uint8_t)(gone[i / 8] | 1u << i % 8);
    return gone;
}

bool cairn_cluster_job_has_seat(const struct cairn_cluster_job *job,
                                const struct cairn_cluster_seat *seat)
{
    CAIRN_EACH_SHARD (job, i)
        if (job->shards[i].seat == seat) return true;
    for (uint32_t i = 0; i < job->reshard.joiner_count; i++)
        if (job->reshard.joiners[i].seat == seat) return true;
    return false;
}

bool cairn_cluster_job_shards_up(const struct cairn_cluster_job *job)
{
    CAIRN_EACH_SHARD (job, i)
        if (!job->shards[i].up && cairn_cluster_job_in_force(job, i)) return false;
    return true;
}

/* ---- its layouts ---- */

bool cairn_cluster_job_moves(const struct cairn_cluster_job *job)
{
    const struct cairn_cluster_reshard *r = &job->reshard;
    return r->asking != NULL || job->shard_count > job->layout->shard_count ||
           (r->move != NULL && cairn_move_stage_of(r->move) != CAIRN_MOVE_REST);
}

struct cairn_packed *cairn_cluster_job_before_next(const struct cairn_cluster_job *job,
                                                   struct cairn_version now, uint32_t *shards_out)
{
    const struct cairn_cluster_layouts *l = &job->layouts;
    *shards_out = l->before_shards;
    if (l->before != NULL && cairn_version_compare(now, l->at) <= 0) return l->before;
    *shards_out = job->layout->shard_count;
    return cairn_layout_same(job->layout, l->next) ? NULL : job->planned.layout;
}

/* ---- where its shards are ---- */

/* Not 0. */
static uint64_t address_hash(const struct cairn_cluster_seat *seat)
{
    uint64_t hash[2];
    crypto_generichash((unsigned char *)hash, sizeof hash, seat->fabric_address,
                       seat->fabric_address_bytes, NULL, 0);
    return hash[0] | 1;
}

bool cairn_cluster_job_shard_moved(struct cairn_cluster_job_shard *shard)
{
    const uint64_t hash = address_hash(shard->seat);
    const bool moved = shard->address_told != 0 && shard->address_told != hash;
    shard->address_told = hash;
    return moved;
}

bool cairn_cluster_shard_infos_init(struct cairn_cluster_shard_infos *infos,
                                    const struct cairn_cluster_job *job, uint32_t shard_count)
{
    infos->infos = calloc(shard_count + 1, sizeof *infos->infos);
    infos->list = calloc(shard_count + 1, sizeof *infos->list);
    infos->count = 0;
    if (infos->infos == NULL || infos->list == NULL) {
        cairn_cluster_shard_infos_release(infos);
        return false;
    }
    CAIRN_EACH_SHARD (job, i) {
        const struct cairn_cluster_seat *seat = job->shards[i].seat;
        if (i >= shard_count) break;
        Cairn__ShardInfo *info = &infos->infos[i];
        cairn__shard_info__init(info);
        info->index = i;
        info->name = seat->name;
        if (seat->session != NULL) {
            info->fabric_address.data = seat->fabric_address;
            info->fabric_address.len = seat->fabric_address_bytes;
        }
        infos->list[infos->count++] = info;
    }
    return true;
}

void cairn_cluster_shard_infos_release(struct cairn_cluster_shard_infos *infos)
{
    free(infos->infos);
    free(infos->list);
}

void cairn_cluster_job_send_all(struct cairn_cluster_job *job, uint16_t type,
                                const ProtobufCMessage *message)
{
    CAIRN_EACH_SHARD (job, i) {
        if (job->shards[i].up && cairn_cluster_job_in_force(job, i))
            cairn_cluster_session_send(job->shards[i].seat->session, type, 0, message);
    }
}

void cairn_cluster_job_send_drop(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat,
                                 uint64_t job_id)
{
    Cairn__JobDrop drop = CAIRN__JOB_DROP__INIT;
    drop.job = job_id;
    // Its Done is nobody's: what could not be dropped is known as our own leftover at the next Hello.
    cairn_cluster_session_send(seat->session, CAIRN_MSG_JOB_DROP,
                               cairn_cluster_request_new(cluster), &drop.base);
}
