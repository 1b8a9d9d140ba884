/* Makes the terms of a job's rounds. Also counts the steps that the job's tensors have missed, and
 * brings the spec that is in the store to the shards. */
#include <inttypes.h>
#include <stdlib.h>

#include "server/coordinator/cluster.h"

/* ==== terms ==== */

/* Terms are the settings of an update. They are made from a spec, and the core borrows them. An
 * amendment makes new terms. The older terms are kept until the next round opens, because the core
 * uses them until then. */

#define STILL_STEPS 100 // a group is reported after this many steps in a row with learning rate 0

struct arrays {
    struct group_hyper *groups;
    struct schedule *schedules;
    bool *frozen;
    struct round_tensor *tensors;
};

static cairn_status fill_terms(struct coord_terms *terms, const struct job_spec_data *spec,
                               const struct arrays *arrays, struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < spec->group_count && status == CAIRN_OK; i++) {
        const char *field = "";
        status = group_hyper_of_spec(&spec->groups[i], &arrays->groups[i], &field);
        if (status != CAIRN_OK)
            return fail_with(why, status, "group %s: %s is not valid", spec->groups[i].name, field);
        status = spec_add_group(&terms->own, &spec->groups[i]);
        if (status != CAIRN_OK) return fail_with(why, status, "out of memory for the groups");
    }
    for (size_t i = 0; i < spec->group_count && status == CAIRN_OK; i++) {
        arrays->schedules[i] = terms->own.groups[i].schedule;
        arrays->frozen[i] = terms->own.groups[i].frozen;
    }
    return status;
}

/* Fills in what the core has to know of each tensor. */
static void fill_tensors(struct coord_terms *terms, const struct job_spec_data *spec,
                         struct round_tensor *tensors)
{
    for (size_t i = 0; i < spec->tensor_count; i++) {
        const struct tensor_spec *t = &spec->tensors[i];
        tensors[i] = (struct round_tensor) { .elems = geometry_of(&t->shape).elems,
                                             .group = CAIRN_ROUND_UNTRAINED,
                                             .frozen = t->frozen };
        if (t->kind != CAIRN_TRAINED) continue;
        tensors[i].group = (uint32_t)spec_find_group(spec, t->group);
        terms->core.any_frozen = terms->core.any_frozen || t->frozen ||
                                 spec->groups[tensors[i].group].frozen;
    }
}

static cairn_status list_frozen_tensors(struct coord_terms *terms, const struct job_spec_data *spec)
{
    size_t count = 0;
    for (size_t i = 0; i < spec->tensor_count; i++) count += spec->tensors[i].frozen;
    terms->frozen_tensors = calloc(count + 1, sizeof *terms->frozen_tensors);
    if (terms->frozen_tensors == NULL) return CAIRN_ERR_NO_MEMORY;
    for (size_t i = 0; i < spec->tensor_count; i++) {
        if (spec->tensors[i].frozen)
            terms->frozen_tensors[terms->frozen_tensor_count++] = (uint32_t)i;
    }
    return CAIRN_OK;
}

cairn_status coord_terms_make(const struct job_spec_data *spec, struct coord_terms **terms_out,
                              struct sentence *why)
{
    const size_t count = spec->group_count + 1; // calloc of 0 may give NULL
    const struct policy *policy = &spec->policy;
    struct coord_terms *terms = calloc(1, sizeof *terms);
    if (terms == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the groups");
    spec_init(&terms->own);
    const struct arrays arrays = { calloc(count, sizeof *arrays.groups),
                                   calloc(count, sizeof *arrays.schedules),
                                   calloc(count, sizeof *arrays.frozen),
                                   calloc(spec->tensor_count + 1, sizeof *arrays.tensors) };
    terms->still = calloc(count, sizeof *terms->still);
    terms->core = (struct round_terms) { .groups = arrays.groups,
                                         .schedules = arrays.schedules,
                                         .frozen = arrays.frozen,
                                         .tensors = arrays.tensors,
                                         .clip_norm = spec->clip_norm,
                                         .revision = spec->revision,
                                         .workers_min = spec->workers_min,
                                         .on_worker_loss = policy->on_worker_loss,
                                         .worker_loss_wait_ms =
                                             1000 * (uint64_t)(policy->worker_loss_wait_s > 0
                                                                   ? policy->worker_loss_wait_s
                                                                   : CAIRN_SPEC_LOSS_WAIT_S) };
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    if (arrays.groups != NULL && arrays.schedules != NULL && arrays.frozen != NULL &&
        arrays.tensors != NULL && terms->still != NULL &&
        list_frozen_tensors(terms, spec) == CAIRN_OK)
        status = fill_terms(terms, spec, &arrays, why);
    else
        sentence_set(why, "out of memory for the groups");
    if (status == CAIRN_OK) fill_tensors(terms, spec, arrays.tensors);
    if (status != CAIRN_OK) {
        coord_terms_free(terms);
        return status;
    }
    *terms_out = terms;
    return CAIRN_OK;
}

void coord_terms_free(struct coord_terms *terms)
{
    while (terms != NULL) {
        struct coord_terms *older = terms->older;
        free((void *)(uintptr_t)terms->core.groups);
        free((void *)(uintptr_t)terms->core.schedules);
        free((void *)(uintptr_t)terms->core.frozen);
        free((void *)(uintptr_t)terms->core.tensors);
        free(terms->frozen_tensors);
        free(terms->still);
        spec_release(&terms->own);
        free(terms);
        terms = older;
    }
}

void coord_terms_applied(struct coord_job *job)
{
    const struct job_spec_data *own = &job->rounds.terms->own;
    for (uint32_t g = 0; g < own->group_count; g++) {
        uint32_t *still = &job->rounds.terms->still[g];
        const bool learns = own->groups[g].frozen || round_lr(job->core, g) != 0;
        *still = learns ? 0 : *still + 1;
        if (*still != STILL_STEPS) continue;
        const int kind = (int)own->groups[g].schedule.kind;
        log_warn("job %s: group %s does not learn: its learning rate was 0 in each of the "
                 "last %d steps (schedule %s); %s",
                 job->spec.name, own->groups[g].name, STILL_STEPS, schedule_name(kind),
                 kind == CAIRN_SCHEDULE_DRIVEN ? "look at the trainer's scheduler"
                                               : "amend the job, or freeze the group");
    }
}

/* ==== missed ==== */

static cairn_status too_many(const struct job_spec_data *spec, struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_INVALID,
                     "too many tensors of job %s would have missed other steps than their "
                     "neighbours: at most %d runs of them can be told; freeze whole groups, or "
                     "tensors whose names are next to each other",
                     spec->name, CAIRN_MISSED_RUNS_MAX);
}

/* Returns how many steps a tensor of the next generation has missed. If the present generation does
 * not train the tensor, the tensor has missed all steps. Without a job, the spec says it. */
static uint64_t steps_missed(const struct coord_job *job, const struct tensor_spec *tensor)
{
    if (job == NULL) return tensor->steps_missed;
    const size_t from = spec_find_tensor(&job->spec, tensor->name);
    const bool trained = from != SIZE_MAX && job->spec.tensors[from].kind == CAIRN_TRAINED;
    return trained ? round_missed(job->core, (uint32_t)from) : coord_job_version(job).step;
}

/* Lists how many steps each tensor has missed. If `with_next` is set, the next step counts as
 * missed, too, by the tensors that are frozen. The list is in *room_out, which the caller frees. */
static cairn_status list_missed(const struct coord_job *job, const struct job_spec_data *spec,
                                bool with_next, uint8_t **room_out, struct missed *missed_out,
                                struct sentence *why)
{
    struct missed_writer writer;
    *room_out = malloc(CAIRN_MISSED_BYTES(spec->tensor_count));
    if (*room_out == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for what tensors have missed");
    missed_begin(&writer, *room_out, spec->tensor_count);
    for (size_t t = 0; t < spec->tensor_count; t++) {
        const struct tensor_spec *tensor = &spec->tensors[t];
        if (tensor->kind != CAIRN_TRAINED) continue;
        const size_t group = spec_find_group(spec, tensor->group);
        const bool next = with_next && (tensor->frozen || spec->groups[group].frozen);
        missed_put(&writer, (uint32_t)t, steps_missed(job, tensor) + next, (uint32_t)group, next);
    }
    if (writer.is_full) return too_many(spec, why);
    *missed_out = missed_end(&writer);
    return CAIRN_OK;
}

cairn_status coord_missed_judge(const struct coord_job *job, const struct job_spec_data *next,
                                struct sentence *why)
{
    if (job->core == NULL || next->tensor_count <= CAIRN_MISSED_RUNS_MAX) return CAIRN_OK;
    struct missed missed;
    uint8_t *room;
    const cairn_status status = list_missed(job, next, true, &room, &missed, why);
    free(room);
    return status;
}

/* Replaces the missed steps in the last decision's payload by `missed`. */
static cairn_status put_in(const struct coord_job *job, const struct missed *missed,
                           struct decision *last, uint8_t *payload)
{
    struct payload head = { .clip_scale = 1, .loss_scale = round_loss_scale(job->core) };
    if (last->payload_bytes == 0 && missed->size == 0) return CAIRN_OK;
    if (last->payload_bytes == 0) {
        head.missed = *missed;
        last->payload_bytes = payload_encode(&head, NULL, payload);
    } else if (payload_decode(last->payload, last->payload_bytes, &head) == CAIRN_OK) {
        last->payload_bytes = payload_with_missed(last->payload, &head, missed, payload);
    } else {
        return CAIRN_ERR_INTERNAL;
    }
    last->payload = payload;
    return CAIRN_OK;
}

cairn_status coord_missed_extend(const struct coord_job *job, const struct job_spec_data *next,
                                 struct decision *last, uint8_t **payload_out, struct sentence *why)
{
    struct missed missed;
    uint8_t *room;
    uint8_t *payload = malloc(last->payload_bytes + CAIRN_PAYLOAD_MAX(0, next->tensor_count, 0));
    cairn_status status = list_missed(job, next, false, &room, &missed, why);
    if (status == CAIRN_OK && payload == NULL)
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    if (status == CAIRN_OK) {
        status = put_in(job, &missed, last, payload);
        if (status != CAIRN_OK) sentence_set(why, "the payload of the last decision is malformed");
    }
    free(room);
    if (status == CAIRN_OK)
        *payload_out = payload;
    else
        free(payload);
    return status;
}

/* ---- a job that is to begin ---- */

static bool any_missed(const struct job_spec_data *spec)
{
    for (size_t t = 0; t < spec->tensor_count; t++)
        if (spec->tensors[t].steps_missed > 0) return true;
    return false;
}

/* Notes the hash of the spec as it is with its missed steps, because other ranks, for example, open
 * the job with that spec. */
static cairn_status note_former(struct job_spec_data *spec)
{
    uint8_t hash[32];
    const cairn_status status = spec_hash(spec, hash);
    return status == CAIRN_OK ? spec_add_former(spec, hash) : status;
}

cairn_status coord_missed_begin(struct job_spec_data *spec, uint8_t **payload_out,
                                size_t *bytes_out, struct sentence *why)
{
    *payload_out = NULL;
    *bytes_out = 0;
    if (!any_missed(spec)) return CAIRN_OK;
    struct payload head = { .clip_scale = 1, .loss_scale = spec->loss_scale };
    uint8_t *room;
    uint8_t *payload = malloc(CAIRN_PAYLOAD_MAX(0, spec->tensor_count, 0));
    cairn_status status = list_missed(NULL, spec, false, &room, &head.missed, why);
    if (status == CAIRN_OK) {
        status = payload != NULL ? note_former(spec) : CAIRN_ERR_NO_MEMORY;
        if (status != CAIRN_OK) sentence_set(why, "out of memory for what tensors have missed");
    }
    if (status == CAIRN_OK) {
        *bytes_out = payload_encode(&head, NULL, payload);
        *payload_out = payload;
        for (size_t t = 0; t < spec->tensor_count; t++)
            if (spec->tensors[t].kind == CAIRN_TRAINED) spec->tensors[t].steps_missed = 0;
    } else {
        free(payload);
    }
    free(room);
    return status;
}

/* ==== amend shards ==== */

/* Brings the spec that is in the store to all shards. An amendment is answered only when all shards have
 * the spec, so that a lost store can be rebuilt from the shards. The store is written first, so no shard
 * is ever ahead of the store. The spec is sent over the ordered connection of the rounds, so no round
 * uses terms that one of its shards does not have. */

/* A JobTerms message that is not answered yet. */
struct telling {
    uint64_t generation, revision;
    uint32_t shard;
};

void coord_amend_done(struct coord_member *member, uint64_t revision)
{
    Cairn__JobAmended amended = CAIRN__JOB_AMENDED__INIT;
    amended.revision = revision;
    if (member->amend.request != 0)
        coord_session_send(member->session, CAIRN_MSG_JOB_AMENDED, member->amend.request,
                           &amended.base);
    member->amend.request = 0;
    member->amend.revision = 0;
}

void coord_amend_failed(struct coord_member *member, cairn_status status, const char *text)
{
    if (member->amend.request != 0)
        coord_session_error(member->session, member->amend.request, status, text);
    member->amend.request = 0;
    member->amend.revision = 0;
}

void coord_terms_advance(struct coord_job *job)
{
    uint64_t all = UINT64_MAX;
    CAIRN_EACH_SHARD (job, i)
        if (job->shards[i].revision < all) all = job->shards[i].revision;
    if (!LIST_EMPTY(&job->amends.waiters) && job->amends.revision != 0 &&
        job->amends.revision <= all) {
        Cairn__JobAmended amended = CAIRN__JOB_AMENDED__INIT;
        amended.revision = job->amends.revision;
        coord_waiters_answer(&job->amends.waiters, CAIRN_MSG_JOB_AMENDED, &amended.base);
    }
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        if (m->amend.revision != 0 && m->amend.revision <= all)
            coord_amend_done(m, m->amend.revision);
    }
}

/* Called when a shard cannot keep a spec that is in the store and in force. The failure is
 * reported, but does not hold up the job. */
static void fail_revision(struct coord_job *job, uint64_t revision, cairn_status status,
                          const char *text)
{
    struct sentence why;
    sentence_set(
        &why, "job %s: the amended spec is in the coordinator's store, but not on all shards: %s",
        job->spec.name, text);
    log_fields(CAIRN_LOG_ERROR, CAIRN_FIELDS({ "job", job->spec.name, 0 }), "%s", why.text);
    if (job->amends.revision == revision)
        coord_waiters_fail(&job->amends.waiters, status, why.text);
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        if (m->amend.revision == revision) coord_amend_failed(m, status, why.text);
    }
}

static void on_terms_answered(struct coord_job *job, const void *about, cairn_status status,
                              const char *text)
{
    const struct telling *told = about;
    if (job->generation != told->generation) return;
    if (status == CAIRN_ERR_CLOSED) return; // the spec is sent again when the shard returns
    if (status != CAIRN_OK) {
        fail_revision(job, told->revision, status, text);
        return;
    }
    struct coord_job_shard *s = &job->shards[told->shard];
    if (s->revision < told->revision) s->revision = told->revision;
    coord_terms_advance(job);
}

void coord_terms_tell(struct coord_job *job, uint32_t shard, bool settled)
{
    const struct coord_job_shard *s = &job->shards[shard];
    const bool newer = s->revision < job->spec.revision;
    if (!s->up || (settled && !newer)) return;
    const struct telling telling = { job->generation, job->spec.revision, shard };
    struct coord_gather *gather = coord_gather_open_job(job, on_terms_answered, &telling,
                                                        sizeof telling);
    if (gather == NULL) {
        log_error("job %s: out of memory to tell shard %s of the spec", job->spec.name,
                  s->entry->name);
        return;
    }
    Cairn__JobTerms terms = CAIRN__JOB_TERMS__INIT;
    terms.job = job->id;
    terms.generation = job->generation;
    terms.revision = job->spec.revision;
    terms.spec_bytes = newer ? job->planned.spec->size : 0;
    const uint32_t request = coord_gather_send(gather, s->entry, CAIRN_MSG_JOB_TERMS, &terms.base);
    if (request != 0 && newer)
        coord_session_pages(s->entry->session, request, CAIRN_PAGE_SPEC, job->planned.spec);
    coord_gather_start(gather);
}

void coord_terms_tell_all(struct coord_job *job)
{
    CAIRN_EACH_SHARD (job, i) coord_terms_tell(job, i, false);
}

/* ==== bounds ==== */

cairn_status coord_judge_workers(const struct coord *cluster, const struct job_spec_data *spec,
                                 struct sentence *why)
{
    const int64_t most = cluster->options->workers_max;
    const bool is_max = spec->workers_max > most;
    if (spec->workers_min <= most && !is_max) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_INVALID,
                     "workers_%s is %" PRIu32 ", this cluster allows %" PRId64
                     " workers; raise round.workers_max",
                     is_max ? "max" : "min", is_max ? spec->workers_max : spec->workers_min, most);
}
