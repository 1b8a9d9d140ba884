/* What jobs there are: made, found again after a start, initialized, lost, dropped. */
#include <inttypes.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire/plan_job.h"
#include "server/base/log.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cuts.h"
#include "server/coordinator/groups.h"
#include "server/coordinator/recovery.h"
#include "server/coordinator/saves.h"
#include "server/coordinator/standing.h"
#include "server/coordinator/works.h"

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

const char *cairn_cluster_job_state_name(const struct cairn_cluster_job *job)
{
    switch (job->state) {
    case CAIRN_CLUSTER_JOB_CREATING:
        return job->restoring ? "restoring" : job->dropping ? "dropping" : "creating";
    case CAIRN_CLUSTER_JOB_INITIALIZING: return "initializing";
    case CAIRN_CLUSTER_JOB_RUNNING:
        if (job->version_unknown) return "waiting";
        return job->core != NULL && cairn_round_halted(job->core) ? "halted" : "running";
    case CAIRN_CLUSTER_JOB_LOST: return job->behind ? "behind" : "lost";
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

bool cairn_cluster_shard_infos_init(struct cairn_cluster_shard_infos *infos,
                                    const struct cairn_cluster_job *job)
{
    const uint32_t count = job->layout->shard_count;
    infos->infos = calloc(count, sizeof *infos->infos);
    infos->list = calloc(count, sizeof *infos->list);
    if (infos->infos == NULL || infos->list == NULL) {
        cairn_cluster_shard_infos_release(infos);
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct cairn_cluster_seat *seat = job->shards[i].seat;
        Cairn__ShardInfo *info = &infos->infos[i];
        cairn__shard_info__init(info);
        info->index = i;
        info->name = seat->name;
        if (seat->session != NULL) {
            info->fabric_address.data = seat->fabric_address;
            info->fabric_address.len = seat->fabric_address_bytes;
        }
        infos->list[i] = info;
    }
    return true;
}

void cairn_cluster_shard_infos_release(struct cairn_cluster_shard_infos *infos)
{
    free(infos->infos);
    free(infos->list);
}

void cairn_cluster_job_free(struct cairn_cluster_job *job)
{
    while (job->members != NULL) cairn_cluster_member_free(job->members);
    cairn_cluster_job_core_close(job);
    cairn_cluster_groups_free(job);
    cairn_cluster_tiles_release(job);
    cairn_cluster_extension_free(job->extension);
    cairn_cluster_amending_free(job->amending);
    cairn_cluster_waiters_fail(&job->amenders, CAIRN_ERR_CLOSED, "the job is another one now");
    cairn_spec_release(&job->spec);
    cairn_layout_close(job->layout);
    cairn_packed_release(job->spec_packed);
    cairn_packed_release(job->layout_packed);
    free(job->shards);
    free(job);
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

static void forget(struct cairn_cluster_job *job)
{
    struct cairn_cluster *cluster = job->cluster;
    for (uint32_t i = 0; i < job->layout->shard_count; i++)
        cairn_cluster_job_send_drop(cluster, job->shards[i].seat, job->id);
    cairn_cluster_job_unlink(job);
    cairn_cluster_job_free(job);
    cairn_cluster_openings_advance(cluster);
}

static void on_dropped(const struct cairn_cluster_saved *saved)
{
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(saved->cluster, saved->job);
    if (saved->status != CAIRN_OK)
        cairn_log_error("job %s: %s", job->spec.name, saved->why);
    else
        cairn_cluster_dropped_add(job->cluster, job->id);
    forget(job);
}

void cairn_cluster_job_drop(struct cairn_cluster_job *job)
{
    struct cairn_sentence why;
    job->state = CAIRN_CLUSTER_JOB_CREATING;
    job->dropping = true;
    cairn_cluster_job_core_close(job);
    if (!job->stored || cairn_cluster_save_dropped(job, on_dropped, &why) != CAIRN_OK) forget(job);
}

/* `lost` says why. */
static void stop(struct cairn_cluster_job *job)
{
    job->state = CAIRN_CLUSTER_JOB_LOST;
    cairn_log_error("job %s is %s", job->spec.name, job->lost.text);
    cairn_cluster_cut_abort(job, job->lost.text);
    cairn_cluster_extension_free(job->extension);
    job->extension = NULL;
}

void cairn_cluster_job_behind(struct cairn_cluster_job *job, const char *shard, const char *what)
{
    cairn_sentence_set(&job->lost,
                       "behind: shard %s has seen a higher %s of it than the coordinator's store, "
                       "which is an older copy; nothing is done with it before `cairn cluster "
                       "adopt` has taken what the shards hold (or give the coordinator its newest "
                       "store back)",
                       shard, what);
    job->behind = true;
    job->may_return = false;
    stop(job);
}

void cairn_cluster_job_lose(struct cairn_cluster_job *job, bool may_return, const char *format, ...)
{
    va_list args;
    struct cairn_sentence advice;
    char what[CAIRN_SENTENCE_BYTES / 2];
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    job->behind = false;
    job->may_return = may_return;
    job->state = CAIRN_CLUSTER_JOB_LOST;
    cairn_cluster_recovery_lost(job, what);
    cairn_cluster_recovery_advise(job, &advice);
    cairn_sentence_set(&job->lost, "lost: %s; %s", what, advice.text);
    const bool pending = cairn_cluster_recovery_pending(job);
    stop(job);
    if (pending) cairn_cluster_job_keep_pauses(job);
    while (job->members != NULL)
        cairn_cluster_member_put_out(
            job->members, pending ? CAIRN_ERR_ROLLED_BACK : CAIRN_ERR_JOB_LOST, job->lost.text);
}

bool cairn_cluster_job_dead(const struct cairn_cluster_job *job)
{
    return job->state == CAIRN_CLUSTER_JOB_LOST && !job->may_return;
}

/* ---- making one ---- */

static cairn_status plan_layout(struct cairn_cluster_job *job, uint32_t shard_count)
{
    struct cairn_plan_report report;
    const cairn_status status = cairn_plan_job(&job->spec, shard_count, &job->layout, &report);
    if (status != CAIRN_OK) return status;
    job->heaviest_over_mean = report.heaviest_over_mean;
    job->layout_packed = cairn_packed_layout(job->layout);
    return job->layout_packed != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

cairn_status cairn_cluster_judge_packed(const char *job, const struct cairn_packed *packed,
                                        struct cairn_sentence *why)
{
    if (packed->size <= CAIRN_PAGED_BYTES_MAX) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_INVALID,
                      "the list of tensors of job %s, or its layout, would take %zu bytes: at most "
                      "%" PRIu64 " can be sent",
                      job, packed->size, CAIRN_PAGED_BYTES_MAX);
}

struct cairn_cluster_job *cairn_cluster_job_plan(struct cairn_cluster *cluster,
                                                 const struct cairn_job_spec_data *spec,
                                                 struct cairn_sentence *why)
{
    const uint32_t shard_count = cairn_plan_job_shards(spec, (uint32_t)cluster->options->shards);
    struct cairn_cluster_job *job = calloc(1, sizeof *job);
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    if (job != NULL) {
        job->cluster = cluster;
        job->state = CAIRN_CLUSTER_JOB_CREATING;
        job->generation = 1;
        cairn_spec_init(&job->spec);
        randombytes_buf(&job->id, sizeof job->id);
        job->id |= 1; // never 0
        status = cairn_spec_copy(spec, &job->spec);
    }
    if (status == CAIRN_OK) {
        job->spec_packed = cairn_packed_spec(&job->spec);
        if (job->spec_packed == NULL) status = CAIRN_ERR_NO_MEMORY;
    }
    if (status == CAIRN_OK) status = cairn_cluster_job_choose_shards(job, shard_count);
    if (status == CAIRN_OK) status = plan_layout(job, shard_count);
    if (status == CAIRN_OK &&
        cairn_cluster_judge_packed(spec->name, job->layout_packed, why) == CAIRN_OK)
        return job;
    if (status == CAIRN_OK) {
        // `why` says it
    } else if (status == CAIRN_ERR_NOT_READY) {
        cairn_sentence_set(why, "%" PRIu32 " shards are needed, %" PRIu32 " are up", shard_count,
                           cairn_cluster_seats_up(cluster));
    } else {
        cairn_sentence_set(why, "planning job %s: %s", spec->name, cairn_status_text((int)status));
    }
    if (job != NULL) cairn_cluster_job_free(job);
    return NULL;
}

struct cairn_cluster_gather *
cairn_cluster_job_send_create(struct cairn_cluster_job *job,
                              const struct cairn_cluster_job_load *load,
                              cairn_cluster_gather_fn on_done, void *context)
{
    struct cairn_cluster_gather *gather = cairn_cluster_gather_open(job->cluster, on_done, context);
    if (gather == NULL) return NULL;
    Cairn__Decision last = CAIRN__DECISION__INIT;
    Cairn__JobCreate create = CAIRN__JOB_CREATE__INIT;
    create.job = job->id;
    create.generation = load->version.generation;
    create.step = load->version.step;
    create.epoch = job->epoch;
    create.spec_bytes = job->spec_packed->size;
    create.layout_bytes = job->layout_packed->size;
    create.extend = load->extend;
    create.digest = load->digest;
    create.member_max = (uint32_t)job->cluster->options->workers_max;
    create.snapshot_path = (char *)(uintptr_t)(load->snapshot_path != NULL ? load->snapshot_path
                                                                           : "");
    if (load->last != NULL) {
        cairn_cluster_decision_to_message(load->last, &last);
        create.last = &last;
    }
    for (uint32_t i = 0; i < job->layout->shard_count; i++) {
        struct cairn_cluster_seat *seat = job->shards[i].seat;
        const uint32_t request = cairn_cluster_gather_ask(gather, seat);
        if (request == 0) continue;
        create.shard_index = i;
        job->shards[i].incarnation = seat->incarnation;
        job->shards[i].revision = job->spec.revision;
        cairn_cluster_session_send(seat->session, CAIRN_MSG_JOB_CREATE, request, &create.base);
        cairn_cluster_session_pages(seat->session, request, CAIRN_PAGE_SPEC, job->spec_packed);
        cairn_cluster_session_pages(seat->session, request, CAIRN_PAGE_LAYOUT, job->layout_packed);
    }
    return gather;
}

cairn_status cairn_cluster_job_judge_shards(const struct cairn_cluster_job *job,
                                            struct cairn_sentence *why)
{
    for (uint32_t i = 0; i < job->layout->shard_count; i++) {
        const struct cairn_cluster_job_shard *s = &job->shards[i];
        if (s->seat->incarnation == s->incarnation) continue;
        return cairn_fail(why, CAIRN_ERR_CLOSED, "%s: it restarted without its part",
                          s->seat->name);
    }
    return CAIRN_OK;
}

/* A job that nobody puts is sealed as soon as its shards are there. */
static void begin_itself(struct cairn_cluster_job *job)
{
    job->seal_wanted = cairn_spec_initializes_itself(&job->spec);
    cairn_cluster_job_try_seal(job);
}

/* A creation's context is the job's number: the job may have been dropped meanwhile. */
struct creation {
    struct cairn_cluster *cluster;
    uint64_t job;
};

static void creation_failed(struct cairn_cluster_job *job, cairn_status status, const char *text)
{
    cairn_log_warn("%s", text);
    // A shard that went away: the openers wait for the next one.
    if (status != CAIRN_ERR_CLOSED)
        cairn_cluster_job_openers_fail(job->cluster, job->spec.name, status, text);
    cairn_cluster_job_drop(job);
}

/* Durable: it is a job, if its shards are still the same. */
static void on_stored(const struct cairn_cluster_saved *saved)
{
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(saved->cluster, saved->job);
    struct cairn_sentence why;
    cairn_status status = saved->status;
    if (job == NULL || job->dropping) return;
    cairn_sentence_set(&why, "%s", saved->why);
    if (status == CAIRN_OK) status = cairn_cluster_job_judge_shards(job, &why);
    if (status == CAIRN_OK) {
        job->state = CAIRN_CLUSTER_JOB_INITIALIZING;
        status = cairn_cluster_job_core_open(job, &why);
    }
    if (status != CAIRN_OK) {
        creation_failed(job, status, why.text);
        return;
    }
    cairn_cluster_terms_tell_all(job);
    begin_itself(job);
    cairn_log_info("job %s created: %zu tensors over %" PRIu32 " shards, heaviest/mean %.3f",
                   job->spec.name, job->spec.tensor_count, job->layout->shard_count,
                   job->heaviest_over_mean);
    cairn_cluster_openings_advance(saved->cluster);
}

static void on_created(void *context, cairn_status status, const char *text)
{
    const struct creation creation = *(struct creation *)context;
    free(context);
    struct cairn_cluster *cluster = creation.cluster;
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(cluster, creation.job);
    struct cairn_sentence why;
    if (cluster->closing || job == NULL || job->dropping) return;
    cairn_sentence_set(&why, "job %s was not created: %s", job->spec.name, text);
    if (status == CAIRN_OK) status = cairn_cluster_job_judge_shards(job, &why);
    if (status == CAIRN_OK)
        status = cairn_cluster_save_job(job, job->spec_packed, 0, on_stored, &why);
    if (status != CAIRN_OK) creation_failed(job, status, why.text);
}

cairn_status cairn_cluster_job_create(struct cairn_cluster *cluster,
                                      const struct cairn_job_spec_data *spec,
                                      struct cairn_sentence *why)
{
    const cairn_status usable = cairn_spec_check_usable(spec, why);
    if (usable != CAIRN_OK) return usable;
    size_t count = 0;
    for (const struct cairn_cluster_job *j = cluster->jobs; j != NULL; j = j->next) count++;
    if (count >= CAIRN_JOBS_MAX) {
        return cairn_fail(why, CAIRN_ERR_REFUSED,
                          "there are %zu jobs, which are the most; `cairn job drop` takes one away",
                          count);
    }
    struct cairn_cluster_job *job = cairn_cluster_job_plan(cluster, spec, why);
    if (job == NULL) return CAIRN_ERR_NO_MEMORY;
    struct creation *creation = calloc(1, sizeof *creation);
    const struct cairn_cluster_job_load load = { .version = { job->generation, 0 } };
    struct cairn_cluster_gather *gather =
        creation == NULL ? NULL : cairn_cluster_job_send_create(job, &load, on_created, creation);
    if (gather == NULL) {
        free(creation);
        cairn_cluster_job_free(job);
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    }
    *creation = (struct creation) { cluster, job->id };
    cairn_cluster_job_link(job);
    cairn_cluster_gather_start(gather);
    return CAIRN_OK;
}

/* ---- initial state ---- */

static void seal_failed(struct cairn_cluster_job *job, cairn_status status, const char *text)
{
    cairn_log_warn("job %s is not initialized: %s", job->spec.name, text);
    for (struct cairn_cluster_member *m = job->members; m != NULL; m = m->next_of_job) {
        if (m->init_request == 0) continue;
        cairn_cluster_session_error(m->session, m->init_request, status, text);
        m->init_request = 0;
    }
}

/* Durable: rounds may begin. */
static void on_initialized(const struct cairn_cluster_saved *saved)
{
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(saved->cluster, saved->job);
    if (job == NULL || job->dropping || !job->seal_running) return;
    job->seal_running = false;
    if (saved->status != CAIRN_OK) {
        seal_failed(job, saved->status, saved->why);
        return;
    }
    job->initialized = true;
    job->state = CAIRN_CLUSTER_JOB_RUNNING;
    cairn_log_info("job %s is initialized", job->spec.name);
    const struct cairn_round_event ready = { .kind = CAIRN_ROUND_READY,
                                             .version = { job->generation, job->base_step } };
    cairn_cluster_job_event(job, &ready);
    cairn_cluster_members_answer_init(job);
    cairn_cluster_members_answer_versions(job);
}

static void on_sealed(void *context, cairn_status status, const char *text)
{
    const struct creation creation = *(struct creation *)context;
    free(context);
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(creation.cluster, creation.job);
    struct cairn_sentence why;
    if (creation.cluster->closing || job == NULL || !job->seal_running) return;
    if (status == CAIRN_ERR_CLOSED) {
        job->seal_running = false;
        cairn_cluster_job_try_seal(job); // the shard is back already, or asks when it is
        return;
    }
    job->seal_wanted = false;
    cairn_sentence_set(&why, "%s", text);
    if (status == CAIRN_OK) status = cairn_cluster_save_initialized(job, on_initialized, &why);
    if (status == CAIRN_OK) return;
    job->seal_running = false;
    seal_failed(job, status, why.text);
}

void cairn_cluster_job_try_seal(struct cairn_cluster_job *job)
{
    if (!job->seal_wanted || job->seal_running || job->state != CAIRN_CLUSTER_JOB_INITIALIZING)
        return;
    for (uint32_t i = 0; i < job->layout->shard_count; i++) {
        if (!job->shards[i].up || !cairn_cluster_seat_obeys(job->shards[i].seat)) return;
    }
    struct creation *creation = calloc(1, sizeof *creation);
    struct cairn_cluster_gather *gather =
        creation == NULL ? NULL : cairn_cluster_gather_open(job->cluster, on_sealed, creation);
    if (gather == NULL) {
        free(creation);
        return;
    }
    *creation = (struct creation) { job->cluster, job->id };
    job->seal_running = true;
    Cairn__JobSeal seal = CAIRN__JOB_SEAL__INIT;
    seal.job = job->id;
    for (uint32_t i = 0; i < job->layout->shard_count; i++) {
        const uint32_t request = cairn_cluster_gather_ask(gather, job->shards[i].seat);
        if (request == 0) continue;
        cairn_cluster_session_send(job->shards[i].seat->session, CAIRN_MSG_JOB_SEAL, request,
                                   &seal.base);
    }
    cairn_cluster_gather_start(gather);
}
