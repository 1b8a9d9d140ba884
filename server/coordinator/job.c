/* A job: its state, its shards and their places, its layouts, and messages to its shards. See
 * job.h. */
#include "server/coordinator/job.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/plan.h"
#include "server/coordinator/mirror.h"

/* ---- what a job is at ---- */

struct cairn_version coord_job_version(const struct coord_job *job)
{
    const struct cairn_version base = { job->generation, job->base_step };
    if (job->core == NULL) return base;
    const struct cairn_version now = round_version(job->core);
    return now.generation < base.generation ? base : now;
}

bool coord_job_dead(const struct coord_job *job)
{
    return job->state == CAIRN_CLUSTER_JOB_LOST && !job->loss.may_return;
}

struct coord_member *coord_job_member(struct coord_job *job, uint64_t id)
{
    struct coord_member *m = job->members.by_id[id % CAIRN_MEMBER_BUCKETS];
    while (m != NULL && m->id != id) m = m->next_of_bucket;
    return m;
}

/* ---- its shards ---- */

bool coord_job_shards_init(struct coord_job *job, uint32_t shard_room)
{
    job->shard_room = shard_room;
    job->shards = calloc(job->shard_room, sizeof *job->shards);
    return job->shards != NULL;
}

void coord_job_set_shard(struct coord_job *job, uint32_t shard, struct coord_shard_entry *entry)
{
    struct coord_job_shard *s = &job->shards[shard];
    if (entry != NULL) job->entry_count++;
    if (s->entry != NULL) job->entry_count--;
    if (shard >= job->shard_count) job->shard_count = shard + 1;
    *s = (struct coord_job_shard) { .entry = entry };
}

const uint64_t *coord_job_shard_bytes(struct coord_job *job)
{
    uint64_t *bytes = job->planned.shard_bytes;
    if (bytes != NULL) return bytes;
    bytes = calloc((size_t)job->layout->shard_count + 1, sizeof *bytes);
    if (bytes == NULL) return NULL;
    for (size_t e = 0; e < job->layout->extent_count; e++) {
        const struct extent *extent = &job->layout->extents[e];
        bytes[extent->shard] += plan_extent_bytes(&job->spec, job->layout, extent);
    }
    job->planned.shard_bytes = bytes;
    return bytes;
}

uint64_t coord_job_state_bytes(struct coord_job *job)
{
    const uint64_t *bytes = coord_job_shard_bytes(job);
    uint64_t sum = 0;
    for (uint32_t i = 0; bytes != NULL && i < job->layout->shard_count; i++) sum += bytes[i];
    return sum;
}

uint32_t coord_job_shard_from(const struct coord_job *job, uint32_t index)
{
    while (index < job->shard_count && job->shards[index].entry == NULL) index++;
    return index;
}

bool coord_job_in_force(const struct coord_job *job, uint32_t shard)
{
    return shard < job->layout->shard_count && job->shards[shard].entry != NULL;
}

uint8_t *coord_holes(const struct coord_job *job, uint32_t shard_count)
{
    uint8_t *gone = calloc(shard_count / 8 + 1, 1);
    if (gone == NULL) return NULL;
    for (uint32_t i = 0; i < shard_count && i < job->shard_count; i++)
        if (job->shards[i].entry == NULL) gone[i / 8] = (uint8_t)(gone[i / 8] | 1u << i % 8);
    return gone;
}

bool coord_job_has_shard(const struct coord_job *job, const struct coord_shard_entry *entry)
{
    CAIRN_EACH_SHARD (job, i)
        if (job->shards[i].entry == entry) return true;
    for (uint32_t i = 0; i < job->reshard.joiner_count; i++)
        if (job->reshard.joiners[i].entry == entry) return true;
    return false;
}

bool coord_job_shards_up(const struct coord_job *job)
{
    CAIRN_EACH_SHARD (job, i)
        if (!job->shards[i].up && coord_job_in_force(job, i)) return false;
    return true;
}

/* ---- its layouts ---- */

struct packed *coord_job_before_next(const struct coord_job *job, struct cairn_version now,
                                     uint32_t *shards_out)
{
    const struct coord_layouts *l = &job->layouts;
    *shards_out = l->before_shards;
    if (l->before != NULL && version_compare(now, l->at) <= 0) return l->before;
    *shards_out = job->layout->shard_count;
    return layout_same(job->layout, l->next) ? NULL : job->planned.layout;
}

/* ---- where its shards are ---- */

/* Returns a hash that is never 0. */
static uint64_t address_hash(const struct coord_shard_entry *entry)
{
    uint64_t hash[2];
    crypto_generichash((unsigned char *)hash, sizeof hash, entry->fabric_address,
                       entry->fabric_address_bytes, NULL, 0);
    return hash[0] | 1;
}

bool coord_job_shard_moved(struct coord_job_shard *shard)
{
    const uint64_t hash = address_hash(shard->entry);
    const bool moved = shard->is_told_away ||
                       (shard->address_sent != 0 && shard->address_sent != hash);
    shard->address_sent = hash;
    shard->is_told_away = false;
    return moved;
}

bool coord_shard_infos_init(struct coord_shard_infos *infos, struct coord_job *job,
                            uint32_t shard_count)
{
    infos->infos = calloc(shard_count + 1, sizeof *infos->infos);
    infos->list = calloc(shard_count + 1, sizeof *infos->list);
    infos->count = 0;
    if (infos->infos == NULL || infos->list == NULL) {
        coord_shard_infos_release(infos);
        return false;
    }
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_shard_entry *entry = job->shards[i].entry;
        if (i >= shard_count) break;
        Cairn__ShardInfo *info = &infos->infos[i];
        cairn__shard_info__init(info);
        info->index = i;
        info->name = entry->name;
        if (entry->session != NULL) {
            info->fabric_address.data = entry->fabric_address;
            info->fabric_address.len = entry->fabric_address_bytes;
        } else {
            job->shards[i].is_told_away = true; // so its return is told, also at the same address
        }
        infos->list[infos->count++] = info;
    }
    return true;
}

void coord_shard_infos_release(struct coord_shard_infos *infos)
{
    free(infos->infos);
    free(infos->list);
}

void coord_job_send_all(struct coord_job *job, uint16_t type, const ProtobufCMessage *message)
{
    CAIRN_EACH_SHARD (job, i) {
        if (job->shards[i].up && coord_job_in_force(job, i))
            coord_session_send(job->shards[i].entry->session, type, 0, message);
    }
}

void coord_job_send_drop(struct coord *cluster, struct coord_shard_entry *entry, uint64_t job_id)
{
    Cairn__JobDrop drop = CAIRN__JOB_DROP__INIT;
    drop.job = job_id;
    // Nobody waits for the shard's Done. A part that could not be dropped is in the shard's next
    // Hello, where it is recognized as our own leftover.
    coord_session_send(entry->session, CAIRN_MSG_JOB_DROP, coord_request_new(cluster), &drop.base);
}

void coord_job_send_switch(const struct coord_job *job, const struct coord_shard_entry *entry,
                           uint64_t generation)
{
    Cairn__JobSwitch message = CAIRN__JOB_SWITCH__INIT;
    // A shard that is away is told when it returns.
    if (entry->session == NULL || entry->session->closing) return;
    message.job = job->id;
    message.generation = generation;
    coord_session_send(entry->session, CAIRN_MSG_JOB_SWITCH, 0, &message.base);
}

bool coord_job_has_device(const struct coord_job *job)
{
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_session *session = job->shards[i].entry->session;
        if (session != NULL && session->home != NULL && session->home->backend != NULL &&
            strcmp(session->home->backend, "host") != 0)
            return job->spec.offload_fraction < 1;
    }
    return false;
}

/* ==== its parts are made ==== */

void coord_decision_to_message(const struct decision *decision, Cairn__Decision *out)
{
    cairn__decision__init(out);
    if (decision == NULL) return;
    out->kind = decision->kind;
    out->round = decision->round;
    out->generation = decision->version_after.generation;
    out->step = decision->version_after.step;
    out->payload.data = (uint8_t *)(uintptr_t)decision->payload;
    out->payload.len = decision->payload_bytes;
}

cairn_status coord_judge_packed(const char *job, const struct packed *packed, struct sentence *why)
{
    if (packed->size <= CAIRN_PAGED_BYTES_MAX) return CAIRN_OK;
    return fail_with(
        why, CAIRN_ERR_INVALID,
        "the list of tensors of job %s, or its layout, would take %zu bytes: at most %" PRIu64
        " can be sent",
        job, packed->size, CAIRN_PAGED_BYTES_MAX);
}

void coord_job_ask_create(const struct coord_job *job, const struct coord_create *load,
                          uint32_t shard, struct coord_shard_entry *entry, struct packed *layout,
                          struct coord_gather *gather)
{
    const uint32_t request = coord_gather_ask(gather, entry);
    if (request == 0) return;
    Cairn__Decision last = CAIRN__DECISION__INIT;
    Cairn__JobCreate create = CAIRN__JOB_CREATE__INIT;
    create.job = job->id;
    create.generation = load->version.generation;
    create.step = load->version.step;
    create.epoch = job->epoch;
    create.spec_bytes = job->planned.spec->size;
    create.layout_bytes = layout->size;
    create.shard_index = shard;
    create.extend = load->extend;
    create.back = load->back;
    create.back_generation = load->back_generation;
    create.joins = load->joins;
    create.mirror = load->mirror;
    create.digest = load->digest;
    create.member_max = (uint32_t)job->cluster->options->workers_max;
    create.snapshot_path = wire_text(load->snapshot_path != NULL ? load->snapshot_path : "");
    if (load->last != NULL) {
        coord_decision_to_message(load->last, &last);
        create.last = &last;
    }
    coord_session_send(entry->session, CAIRN_MSG_JOB_CREATE, request, &create.base);
    coord_session_pages(entry->session, request, CAIRN_PAGE_SPEC, job->planned.spec);
    coord_session_pages(entry->session, request, CAIRN_PAGE_LAYOUT, layout);
}

void coord_job_send_create(struct coord_job *job, const struct coord_create *load,
                           struct coord_gather *gather)
{
    CAIRN_EACH_SHARD (job, i) {
        struct coord_job_shard *s = &job->shards[i];
        if (s->entry->session != NULL) {
            s->incarnation = s->entry->incarnation;
            s->revision = job->spec.revision;
        }
        coord_job_ask_create(job, load, i, s->entry, job->planned.layout, gather);
    }
}

cairn_status coord_job_judge_shards(const struct coord_job *job, struct sentence *why)
{
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_job_shard *s = &job->shards[i];
        if (s->entry->incarnation == s->incarnation) continue;
        return fail_with(why, CAIRN_ERR_CLOSED, "%s: it restarted without its part",
                         s->entry->name);
    }
    return CAIRN_OK;
}

/* ---- mirrors ---- */

struct coord_mirrors *coord_mirrors_find(const struct coord_job *job, uint32_t shard)
{
    struct coord_mirrors *all = job->loss.mirrors;
    while (all != NULL && all->shard != shard) all = all->next;
    return all;
}

struct coord_mirror *coord_mirror_at(const struct coord_job *job,
                                     const struct coord_shard_entry *entry)
{
    CAIRN_EACH_MIRROR (job, all, mirror)
        if (mirror->entry == entry) return mirror;
    return NULL;
}

bool coord_shard_is_standby(const struct coord *cluster, const struct coord_shard_entry *entry)
{
    if (entry->told.standby_of[0] == '\0') return false;
    for (const struct coord_job *job = cluster->jobs; job != NULL; job = job->next)
        if (coord_job_has_shard(job, entry)) return false;
    return true;
}

bool coord_mirror_fits(const struct coord_mirror *mirror)
{
    const struct coord_job *job = mirror->all->job;
    const uint32_t shard = mirror->all->shard;
    return mirror->generation == job->generation && mirror->layout == job->layout->version &&
           shard < job->layout->shard_count && job->shards[shard].entry != NULL;
}

bool coord_mirrors_may_take(const struct coord_job *job, uint32_t shard)
{
    const struct coord_mirrors *all = coord_mirrors_find(job, shard);
    for (int i = 0; all != NULL && i < CAIRN_STANDBYS_MAX; i++) {
        const struct coord_mirror *mirror = &all->of[i];
        if (mirror->state.is_stored && mirror->state.stage != CAIRN_MIRROR_ENDING &&
            coord_mirror_fits(mirror) && mirror->entry != NULL && coord_shard_obeys(mirror->entry))
            return true;
    }
    return false;
}

bool coord_mirrors_has(const struct coord_job *job, const struct coord_shard_entry *entry)
{
    const struct coord_mirror *mirror = coord_mirror_at(job, entry);
    return mirror != NULL && mirror->state.is_stored && mirror->incarnation == entry->incarnation;
}
