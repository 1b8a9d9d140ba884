/* Terms: what an update goes by, made of the groups of a spec for the core to borrow. An amendment makes
 * new ones; the older stay until the core has let them go, which is when the next round opens. */
#include <stdlib.h>

#include "proto/spec/optimizer.h"
#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/round/terms.h"

#define STILL_STEPS 100 // applied, one after the other

struct arrays {
    struct cairn_group_hyper *groups;
    struct cairn_schedule *schedules;
    bool *frozen;
    struct cairn_round_tensor *tensors;
};

static cairn_status fill(struct cairn_cluster_terms *terms, const struct cairn_job_spec_data *spec,
                         const struct arrays *arrays, struct cairn_sentence *why)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < spec->group_count && status == CAIRN_OK; i++) {
        const char *field = "";
        status = cairn_group_hyper_of_spec(&spec->groups[i], &arrays->groups[i], &field);
        if (status != CAIRN_OK)
            return cairn_fail(why, status, "group %s: %s is not valid", spec->groups[i].name,
                              field);
        status = cairn_spec_add_group(&terms->own, &spec->groups[i]);
        if (status != CAIRN_OK) return cairn_fail(why, status, "no memory for the groups");
    }
    for (size_t i = 0; i < spec->group_count && status == CAIRN_OK; i++) {
        arrays->schedules[i] = terms->own.groups[i].schedule;
        arrays->frozen[i] = terms->own.groups[i].frozen;
    }
    return status;
}

/* As the core sees them. */
static void fill_tensors(struct cairn_cluster_terms *terms, const struct cairn_job_spec_data *spec,
                         struct cairn_round_tensor *tensors)
{
    for (size_t i = 0; i < spec->tensor_count; i++) {
        const struct cairn_tensor_spec *t = &spec->tensors[i];
        tensors[i] = (struct cairn_round_tensor) { .elems = cairn_geometry_of(&t->shape).elems,
                                                   .group = CAIRN_ROUND_UNTRAINED,
                                                   .frozen = t->frozen };
        if (t->kind != CAIRN_TRAINED) continue;
        tensors[i].group = (uint32_t)cairn_spec_find_group(spec, t->group);
        terms->core.any_frozen = terms->core.any_frozen || t->frozen ||
                                 spec->groups[tensors[i].group].frozen;
    }
}

static cairn_status list_frozen_tensors(struct cairn_cluster_terms *terms,
                                        const struct cairn_job_spec_data *spec)
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

cairn_status cairn_cluster_terms_make(const struct cairn_job_spec_data *spec,
                                      struct cairn_cluster_terms **terms_out,
                                      struct cairn_sentence *why)
{
    const size_t count = spec->group_count + 1; // calloc of 0 may give NULL
    const struct cairn_policy *policy = &spec->policy;
    struct cairn_cluster_terms *terms = calloc(1, sizeof *terms);
    if (terms == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for the groups");
    cairn_spec_init(&terms->own);
    const struct arrays arrays = { calloc(count, sizeof *arrays.groups),
                                   calloc(count, sizeof *arrays.schedules),
                                   calloc(count, sizeof *arrays.frozen),
                                   calloc(spec->tensor_count + 1, sizeof *arrays.tensors) };
    terms->still = calloc(count, sizeof *terms->still);
    terms->core = (struct cairn_round_terms) {
        .groups = arrays.groups,
        .schedules = arrays.schedules,
        .frozen = arrays.frozen,
        .tensors = arrays.tensors,
        .clip_norm = spec->clip_norm,
        .revision = spec->revision,
        .workers_min = spec->workers_min,
        .on_worker_loss = policy->on_worker_loss,
        .worker_loss_wait_ms = 1000 * (uint64_t)(policy->worker_loss_wait_s > 0
                                                     ? policy->worker_loss_wait_s
                                                     : CAIRN_SPEC_LOSS_WAIT_S)
    };
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    if (arrays.groups != NULL && arrays.schedules != NULL && arrays.frozen != NULL &&
        arrays.tensors != NULL && terms->still != NULL &&
        list_frozen_tensors(terms, spec) == CAIRN_OK)
        status = fill(terms, spec, &arrays, why);
    else
        cairn_sentence_set(why, "no memory for the groups");
    if (status == CAIRN_OK) fill_tensors(terms, spec, arrays.tensors);
    if (status != CAIRN_OK) {
        cairn_cluster_terms_free(terms);
        return status;
    }
    *terms_out = terms;
    return CAIRN_OK;
}

void cairn_cluster_terms_free(struct cairn_cluster_terms *terms)
{
    while (terms != NULL) {
        struct cairn_cluster_terms *older = terms->older;
        free((void *)(uintptr_t)terms->core.groups);
        free((void *)(uintptr_t)terms->core.schedules);
        free((void *)(uintptr_t)terms->core.frozen);
        free((void *)(uintptr_t)terms->core.tensors);
        free(terms->frozen_tensors);
        free(terms->still);
        cairn_spec_release(&terms->own);
        free(terms);
        terms = older;
    }
}

void cairn_cluster_terms_applied(struct cairn_cluster_job *job)
{
    const struct cairn_job_spec_data *own = &job->rounds.terms->own;
    for (uint32_t g = 0; g < own->group_count; g++) {
        uint32_t *still = &job->rounds.terms->still[g];
        const bool learns = own->groups[g].frozen || cairn_round_lr(job->core, g) != 0;
        *still = learns ? 0 : *still + 1;
        if (*still != STILL_STEPS) continue;
        const int kind = (int)own->groups[g].schedule.kind;
        cairn_log_warn("job %s: group %s does not learn: its learning rate was 0 in each of the "
                       "last %d steps (schedule %s); %s",
                       job->spec.name, own->groups[g].name, STILL_STEPS, cairn_schedule_name(kind),
                       kind == CAIRN_SCHEDULE_DRIVEN ? "look at the trainer's scheduler"
                                                     : "amend the job, or freeze the group");
    }
}

const struct cairn_cluster_terms *cairn_cluster_terms_in_force(const struct cairn_cluster_job *job)
{
    const struct cairn_cluster_terms *terms = job->rounds.terms;
    while (terms->core.groups != cairn_round_terms_of(job->core)->groups) terms = terms->older;
    return terms;
}

void cairn_cluster_terms_replace(struct cairn_cluster_job *job, struct cairn_cluster_terms *terms)
{
    // Two terms at most are read: those in force and the newest. No round goes by those between.
    struct cairn_cluster_terms **at = &job->rounds.terms;
    while (*at != NULL && (*at)->core.groups != cairn_round_terms_of(job->core)->groups) {
        struct cairn_cluster_terms *gone = *at;
        *at = gone->older;
        gone->older = NULL;
        cairn_cluster_terms_free(gone);
    }
    if (job->rounds.terms != NULL) {
        cairn_cluster_terms_free(job->rounds.terms->older);
        job->rounds.terms->older = NULL;
    }
    terms->older = job->rounds.terms;
    job->rounds.terms = terms;
    const struct cairn_round_event amend = { .kind = CAIRN_ROUND_AMEND, .terms = &terms->core };
    cairn_cluster_job_event(job, &amend);
}
