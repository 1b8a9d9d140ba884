/* Jobs and the coming and going of shards; jobs that a new incarnation finds in its store. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire/optimizer.h"
#include "server/base/log.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/groups.h"

/* ---- what the store knows ---- */

static cairn_status fill_job(struct cairn_cluster_job *job, const struct cairn_stored_job *row,
                             struct cairn_sentence *why)
{
    cairn_status status = cairn_spec_unpack(row->spec, row->spec_bytes, cairn_optimizer_names(),
                                            &job->spec, why);
    if (status != CAIRN_OK) return status;
    struct cairn_layout_tensor *tensors = cairn_cluster_layout_tensors_of(&job->spec);
    job->spec_bytes = malloc(row->spec_bytes);
    job->layout_bytes = malloc(row->layout_bytes);
    job->shards = calloc(row->shard_count, sizeof *job->shards);
    status = CAIRN_ERR_NO_MEMORY;
    if (tensors != NULL && job->spec_bytes != NULL && job->layout_bytes != NULL &&
        job->shards != NULL) {
        memcpy(job->spec_bytes, row->spec, row->spec_bytes);
        memcpy(job->layout_bytes, row->layout, row->layout_bytes);
        job->spec_bytes_len = row->spec_bytes;
        job->layout_bytes_len = row->layout_bytes;
        status = cairn_layout_decode(row->layout, row->layout_bytes, tensors,
                                     (uint32_t)job->spec.tensor_count, &job->layout);
    }
    free(tensors);
    if (status != CAIRN_OK) {
        return cairn_fail(why, status, "the stored layout of job %s: %s", row->name,
                          cairn_status_text((int)status));
    }
    if (job->layout->shard_count != row->shard_count) {
        return cairn_fail(why, CAIRN_ERR_CORRUPT,
                          "job %s is stored with %" PRIu32 " shards and a layout of %" PRIu32,
                          row->name, row->shard_count, job->layout->shard_count);
    }
    for (uint32_t i = 0; i < row->shard_count; i++) {
        job->shards[i].seat = cairn_cluster_seat_get(job->cluster, row->shards[i]);
        if (job->shards[i].seat == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    }
    return CAIRN_OK;
}

/* ---- choosing ---- */

/* Bytes of state that other jobs have planned onto each seat, whether they are there yet or not. */
static void weigh_seats(const struct cairn_cluster_job *body)
{
    for (struct cairn_cluster_seat *s = body->cluster->seats; s != NULL; s = s->next)
        s->planned_bytes = 0;
    for (const struct cairn_cluster_job *j = body->cluster->jobs; j != NULL; j = j->next) {
        if (strcmp(j->spec.name, body->spec.name) == 0) continue; // it is replaced by a restore
        for (size_t e = 0; e < j->layout->extent_count; e++) {
            const struct cairn_extent *extent = &j->layout->extents[e];
            j->shards[extent->shard].seat->planned_bytes +=
                extent->quantum_count * j->layout->geometry[extent->tensor].quantum_elems *
                cairn_cluster_elem_weight(&j->spec, extent->tensor);
        }
    }
}

cairn_status cairn_cluster_job_choose_shards(struct cairn_cluster_job *job, uint32_t shard_count)
{
    struct cairn_cluster_seat *seats[CAIRN_SEATS_MAX];
    uint32_t count = 0;
    job->shards = calloc(shard_count, sizeof *job->shards);
    if (job->shards == NULL) return CAIRN_ERR_NO_MEMORY;
    weigh_seats(job);
    for (struct cairn_cluster_seat *s = job->cluster->seats; s != NULL; s = s->next) {
        if (s->session == NULL || count == CAIRN_SEATS_MAX) continue;
        uint32_t place = count++;
        for (; place > 0 && seats[place - 1]->planned_bytes > s->planned_bytes; place--)
            seats[place] = seats[place - 1];
        seats[place] = s;
    }
    for (uint32_t i = 0; i < shard_count && i < count; i++) job->shards[i].seat = seats[i];
    return count >= shard_count ? CAIRN_OK : CAIRN_ERR_NOT_READY;
}

static cairn_status load_job(void *context, const struct cairn_stored_job *row,
                             struct cairn_sentence *why)
{
    struct cairn_cluster *cluster = context;
    struct cairn_cluster_job *job = calloc(1, sizeof *job);
    if (job == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    cairn_spec_init(&job->spec);
    job->cluster = cluster;
    job->id = row->id;
    job->generation = row->generation;
    job->generation_reserved = row->generation_reserved;
    job->epoch = row->epoch;
    job->round_reserved = row->round_reserved;
    job->base_step = row->base_step;
    job->initialized = row->initialized;
    job->state = row->initialized ? CAIRN_CLUSTER_JOB_RUNNING : CAIRN_CLUSTER_JOB_INITIALIZING;
    cairn_sentence_set(&job->epoch_reason, "the coordinator was started again");
    cairn_status status = fill_job(job, row, why);
    if (status == CAIRN_OK) status = cairn_cluster_groups_doubt(job);
    if (status == CAIRN_OK) status = cairn_cluster_job_core_open(job, why);
    if (status != CAIRN_OK) {
        cairn_cluster_job_free(job);
        return status;
    }
    job->seal_wanted = !job->initialized && cairn_spec_initializes_itself(&job->spec);
    cairn_cluster_job_link(job);
    cairn_log_info("job %s: generation %" PRIu64 ", epoch %" PRIu64 ", waiting for %" PRIu32
                   " shard%s",
                   job->spec.name, job->generation, job->epoch, row->shard_count,
                   row->shard_count == 1 ? "" : "s");
    return CAIRN_OK;
}

cairn_status cairn_cluster_jobs_load(struct cairn_cluster *cluster, struct cairn_sentence *why)
{
    return cairn_store_each_job(cluster->store, load_job, cluster, why);
}

/* ---- shards come and go ---- */

static bool holds(const struct cairn_cluster_job *job, const Cairn__Hello *hello)
{
    uint64_t hash = 0;
    for (int i = 7; i >= 0; i--) hash = hash << 8 | job->layout->hash[i];
    for (size_t i = 0; i < hello->n_held; i++) {
        const Cairn__HeldJob *held = hello->held[i];
        if (held->job == job->id && held->generation == job->generation)
            return held->layout_hash == hash;
    }
    return false;
}

/* An amendment was made or given up while the shard, or the coordinator, was away. */
static void settle_generations(const struct cairn_cluster_job *job, uint32_t shard,
                               const Cairn__Hello *hello)
{
    for (size_t i = 0; i < hello->n_held; i++) {
        if (hello->held[i]->job != job->id || hello->held[i]->generation == job->generation)
            continue;
        cairn_cluster_job_send_switch(job, job->shards[shard].seat, job->generation);
        return;
    }
}

/* An uninitialized job has nothing to lose: it is made anew when a worker opens it again. */
static void start_over(struct cairn_cluster_job *job, const struct cairn_cluster_seat *seat)
{
    struct cairn_sentence why;
    cairn_sentence_set(&why,
                       "shard %s restarted before job %s was initialized; open the job and put the "
                       "initial state again",
                       seat->name, job->spec.name);
    cairn_log_warn("%s", why.text);
    while (job->members != NULL)
        cairn_cluster_member_expel(job->members, CAIRN_ERR_FENCED, why.text);
    cairn_cluster_job_drop(job);
}

static void shard_up(struct cairn_cluster_job *job, uint32_t shard, const Cairn__Hello *hello)
{
    struct cairn_cluster_job_shard *s = &job->shards[shard];
    if (job->state == CAIRN_CLUSTER_JOB_CREATING || job->state == CAIRN_CLUSTER_JOB_LOST) return;
    if (!holds(job, hello)) {
        if (!job->initialized) {
            start_over(job, s->seat);
            return;
        }
        cairn_cluster_job_lose(job, "%s restarted without its part", s->seat->name);
        return;
    }
    settle_generations(job, shard, hello);
    s->up = true;
    cairn_cluster_members_tell_shard(job, shard);
    cairn_cluster_tiles_advance(job); // behind the members, on the same connection
    const struct cairn_round_event up = { .kind = CAIRN_ROUND_SHARD_UP, .shard = shard };
    cairn_cluster_job_event(job, &up);
    if (cairn_cluster_job_shard_moved(s)) cairn_cluster_members_shards_changed(job);
    cairn_cluster_job_try_seal(job);
}

/* What it holds of jobs that are not here is of jobs that were never finished, or dropped. */
static void drop_strangers(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat,
                           const Cairn__Hello *hello)
{
    for (size_t i = 0; i < hello->n_held; i++) {
        if (cairn_cluster_job_by_id(cluster, hello->held[i]->job) != NULL) continue;
        cairn_log_info("shard %s holds job %016" PRIx64 ", which is unknown: dropped", seat->name,
                       hello->held[i]->job);
        cairn_cluster_job_send_drop(cluster, seat, hello->held[i]->job);
    }
}

void cairn_cluster_jobs_seat_up(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat,
                                const Cairn__Hello *hello)
{
    drop_strangers(cluster, seat, hello);
    struct cairn_cluster_job *job = cluster->jobs;
    while (job != NULL) {
        struct cairn_cluster_job *next = job->next;
        for (uint32_t i = 0; i < job->layout->shard_count; i++) {
            if (job->shards[i].seat != seat) continue;
            shard_up(job, i, hello);
            break; // a shard stands in a layout once
        }
        job = next;
    }
}

static void shard_down(struct cairn_cluster_job *job, uint32_t shard)
{
    struct cairn_cluster_job_shard *s = &job->shards[shard];
    cairn_cluster_members_forget_shard(job, shard);
    cairn_cluster_groups_shard_gone(job, shard);
    cairn_cluster_extend_shard_gone(job);
    cairn_cluster_tiles_advance(job);
    if (!s->up) return;
    s->up = false;
    cairn_sentence_set(&job->epoch_reason, "shard %s was away", s->seat->name);
    cairn_cluster_cut_shard_gone(job, shard);
    if (job->core == NULL) return;
    const struct cairn_round_event down = { .kind = CAIRN_ROUND_SHARD_DOWN, .shard = shard };
    cairn_cluster_job_event(job, &down);
}

void cairn_cluster_jobs_seat_down(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat)
{
    if (cluster->closing) return;
    for (struct cairn_cluster_job *job = cluster->jobs; job != NULL; job = job->next) {
        for (uint32_t i = 0; i < job->layout->shard_count; i++) {
            if (job->shards[i].seat == seat) shard_down(job, i);
        }
    }
}

bool cairn_cluster_job_shard_moved(struct cairn_cluster_job_shard *shard)
{
    const uint64_t hash = cairn_cluster_seat_address_hash(shard->seat);
    const bool moved = shard->address_told != 0 && shard->address_told != hash;
    shard->address_told = hash;
    return moved;
}
