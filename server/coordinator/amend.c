/* Amending a job: other hyper-parameters, schedules, clip norm, frozen groups and tensors. The amended spec
 * is judged as a new one is, made durable, and the core goes by it from the next round that opens; the round
 * that is open ends by the terms it began with. Tensors, optimizers and planes stay what they are.
 *
 * A worker may attach with the spec as it was before any of the last amendments (its own script does not
 * change), so the spec keeps the hashes of what it was. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire/optimizer.h"
#include "server/base/log.h"
#include "server/coordinator/cluster.h"

static cairn_status judge_state(const struct cairn_cluster_job *job, const Cairn__JobAmend *amend,
                                struct cairn_sentence *why)
{
    if (amend->revision != 0 && amend->revision != job->spec.revision) {
        return cairn_fail(why, CAIRN_ERR_STALE,
                          "job %s is at revision %" PRIu64 ", the amendment is of revision %" PRIu64
                          ": look at the job and decide again",
                          job->spec.name, job->spec.revision, amend->revision);
    }
    const bool terms = amend->n_groups > 0 || amend->set_clip_norm || amend->n_freeze > 0 ||
                       amend->n_unfreeze > 0;
    const bool tensors = amend->n_freeze_tensors > 0 || amend->n_unfreeze_tensors > 0 ||
                         amend->n_add > 0 || amend->n_ties > 0;
    if (amend->key == 0 || (!terms && !tensors)) {
        return cairn_fail(why, CAIRN_ERR_INVALID, "the amendment of job %s changes nothing",
                          job->spec.name);
    }
    return CAIRN_OK;
}

/* The planes of the group's tensors stand on the shards. */
static cairn_status judge_planes(const struct cairn_group_spec *was,
                                 const struct cairn_group_spec *now, struct cairn_sentence *why)
{
    struct cairn_group_hyper a, b;
    const char *field = "";
    cairn_status status = cairn_group_hyper_of_spec(was, &a, &field);
    if (status == CAIRN_OK) status = cairn_group_hyper_of_spec(now, &b, &field);
    if (status != CAIRN_OK)
        return cairn_fail(why, status, "group %s: %s is not valid", now->name, field);
    if (cairn_optimizer_planes(&a) == cairn_optimizer_planes(&b)) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_UNSUPPORTED,
                      "group %s: with these hyper-parameters %s keeps other state than before "
                      "(momentum 0 keeps none); an amendment cannot change that",
                      now->name, now->optimizer);
}

static cairn_status find_group(const struct cairn_job_spec_data *spec, const char *name,
                               size_t *group_out, struct cairn_sentence *why)
{
    *group_out = cairn_spec_find_group(spec, name);
    if (*group_out != SIZE_MAX) return CAIRN_OK;
    const size_t tensor = cairn_spec_find_tensor(spec, name);
    if (tensor == SIZE_MAX) {
        return cairn_fail(why, CAIRN_ERR_NOT_FOUND, "job %s has no group \"%.128s\"", spec->name,
                          name);
    }
    return cairn_fail(why, CAIRN_ERR_NOT_FOUND,
                      "\"%.128s\" is no group, but a tensor of group \"%.128s\": name it in "
                      "freeze_tensors or unfreeze_tensors",
                      name, spec->tensors[tensor].group);
}

static cairn_status set_group(struct cairn_job_spec_data *spec, const Cairn__GroupSpec *message,
                              struct cairn_sentence *why)
{
    struct cairn_group_spec from;
    size_t group;
    cairn_status status = cairn_group_of_message(message, &from);
    if (status != CAIRN_OK)
        return cairn_fail(why, status, "group \"%.128s\": too many points", message->name);
    status = find_group(spec, message->name, &group, why);
    if (status != CAIRN_OK) return status;
    if (strcmp(from.optimizer, spec->groups[group].optimizer) != 0) {
        return cairn_fail(why, CAIRN_ERR_UNSUPPORTED,
                          "group %s: optimizer is \"%.64s\"; an amendment cannot change it, "
                          "allowed: \"%s\"",
                          message->name, from.optimizer, spec->groups[group].optimizer);
    }
    return cairn_spec_set_group(spec, group, &from);
}

static cairn_status set_frozen(struct cairn_job_spec_data *spec, char *const *names, size_t count,
                               bool frozen, struct cairn_sentence *why)
{
    for (size_t i = 0; i < count; i++) {
        size_t group;
        const cairn_status status = find_group(spec, names[i], &group, why);
        if (status != CAIRN_OK) return status;
        spec->groups[group].frozen = frozen;
    }
    return CAIRN_OK;
}

/* A worker that comes later has no use for the initializers of what was added: it may leave them out. */
static cairn_status add_plain_former(struct cairn_job_spec_data *next, const Cairn__JobAmend *amend)
{
    struct cairn_job_spec_data plain;
    uint8_t hash[32];
    if (amend->n_add == 0) return CAIRN_OK;
    cairn_status status = cairn_spec_copy(next, &plain);
    if (status != CAIRN_OK) return status;
    for (size_t i = 0; i < amend->n_add; i++) {
        const size_t tensor = cairn_spec_find_tensor(&plain, amend->add[i]->name);
        plain.tensors[tensor].init = (struct cairn_init) { .kind = CAIRN_INIT_NONE };
    }
    status = cairn_spec_hash(&plain, hash);
    cairn_spec_release(&plain);
    return status == CAIRN_OK ? cairn_spec_add_former(next, hash) : status;
}

/* `next` is a copy of the job's spec. */
static cairn_status change(struct cairn_job_spec_data *next, const Cairn__JobAmend *amend,
                           bool *extends_out, struct cairn_sentence *why)
{
    uint8_t hash[32];
    cairn_status status = cairn_spec_hash(next, hash);
    if (status == CAIRN_OK) status = cairn_spec_add_former(next, hash);
    if (status != CAIRN_OK) return cairn_fail(why, status, "no memory for the amended spec");
    for (size_t i = 0; i < amend->n_groups && status == CAIRN_OK; i++)
        status = set_group(next, amend->groups[i], why);
    if (status == CAIRN_OK) status = set_frozen(next, amend->freeze, amend->n_freeze, true, why);
    if (status == CAIRN_OK)
        status = set_frozen(next, amend->unfreeze, amend->n_unfreeze, false, why);
    if (status == CAIRN_OK) status = cairn_cluster_amend_tensors(next, amend, extends_out, why);
    if (status != CAIRN_OK) return status;
    if (amend->set_clip_norm) next->clip_norm = amend->clip_norm;
    next->revision++;
    next->amend_key = amend->key;
    status = add_plain_former(next, amend);
    if (status != CAIRN_OK) return cairn_fail(why, status, "no memory for the amended spec");
    return cairn_spec_check(next, cairn_optimizer_names(), why);
}

/* The job as it would be, before it is: durable with the new spec, or as before. */
static cairn_status store(struct cairn_cluster_job *job, struct cairn_job_spec_data *next,
                          struct cairn_sentence *why)
{
    uint8_t *bytes = job->spec_bytes;
    const size_t bytes_len = job->spec_bytes_len;
    cairn_status status = cairn_spec_pack(next, &job->spec_bytes, &job->spec_bytes_len);
    if (status != CAIRN_OK) return cairn_fail(why, status, "no memory for the amended spec");
    status = cairn_cluster_job_store(job, why);
    if (status == CAIRN_OK) {
        free(bytes);
        return CAIRN_OK;
    }
    free(job->spec_bytes);
    job->spec_bytes = bytes;
    job->spec_bytes_len = bytes_len;
    return status;
}

/* Nothing but the terms is another: takes `next`. */
static cairn_status take_terms(struct cairn_cluster_job *job, struct cairn_job_spec_data *next,
                               struct cairn_sentence *why)
{
    struct cairn_cluster_terms *terms = NULL;
    cairn_status status = cairn_cluster_terms_make(next, &terms, why);
    if (status == CAIRN_OK) status = store(job, next, why);
    if (status != CAIRN_OK) {
        cairn_cluster_terms_free(terms);
        return status;
    }
    cairn_spec_release(&job->spec);
    job->spec = *next;
    cairn_cluster_terms_replace(job, terms);
    return CAIRN_OK;
}

static cairn_status amend_job(struct cairn_cluster_member *member, const Cairn__JobAmend *amend,
                              bool *extends_out, struct cairn_sentence *why)
{
    struct cairn_cluster_job *job = member->job;
    struct cairn_job_spec_data next;
    cairn_status status = judge_state(job, amend, why);
    if (status != CAIRN_OK) return status;
    status = cairn_spec_copy(&job->spec, &next);
    if (status != CAIRN_OK) return cairn_fail(why, status, "no memory for the amended spec");
    status = change(&next, amend, extends_out, why);
    for (size_t i = 0; i < next.group_count && status == CAIRN_OK; i++)
        status = judge_planes(&job->spec.groups[i], &next.groups[i], why);
    if (status == CAIRN_OK)
        status = *extends_out ? cairn_cluster_extend_begin(member, &next, why)
                              : take_terms(job, &next, why);
    if (status != CAIRN_OK) cairn_spec_release(&next);
    return status;
}

void cairn_cluster_job_amend(struct cairn_cluster_member *member, uint32_t request,
                             const Cairn__JobAmend *amend)
{
    struct cairn_cluster_job *job = member->job;
    struct cairn_cluster_session *session = member->session;
    struct cairn_sentence why = { "" };
    bool extends = false;
    const bool again = amend->key != 0 && amend->key == job->spec.amend_key;
    if (cairn_cluster_extend_is(job, amend->key)) { // asked again after a reconnect
        member->amend_request = request;
        return;
    }
    member->amend_request = request;
    const cairn_status status = again ? CAIRN_OK : amend_job(member, amend, &extends, &why);
    if (extends && status == CAIRN_OK) return; // answered at the end
    member->amend_request = 0;
    if (status != CAIRN_OK) {
        cairn_cluster_session_error(session, request, status, why.text);
        return;
    }
    if (!again)
        cairn_log_info("job %s: amended by %s (rank %" PRIu32 "), revision %" PRIu64,
                       job->spec.name, session->name, member->rank, job->spec.revision);
    Cairn__JobAmended amended = CAIRN__JOB_AMENDED__INIT;
    amended.revision = job->spec.revision;
    cairn_cluster_session_send(session, CAIRN_MSG_JOB_AMENDED, request, &amended.base);
}
