/* JobTerms brings the job's spec as it is in the coordinator's store. The shard keeps an amended
 * spec only as bytes, so that a lost store can be rebuilt from them. The shard itself works by what
 * each round says, and by the spec with which the job was made, which other threads read. An
 * amendment never changes tensors or planes. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/safety.h"
#include "server/shard/jobs.h"
#include "server/shard/part.h"
#include "server/shard/shard.h"

static bool same_tensor(const struct tensor_spec *a, const struct tensor_spec *b)
{
    return strcmp(a->name, b->name) == 0 && a->kind == b->kind && a->master == b->master &&
           a->wire == b->wire && a->shape.rank == b->shape.rank &&
           memcmp(a->shape.dim, b->shape.dim, a->shape.rank * sizeof *a->shape.dim) == 0 &&
           (a->group == NULL ? b->group == NULL
                             : b->group != NULL && strcmp(a->group, b->group) == 0);
}

static cairn_status judge_terms(const struct shard_job *job, const struct job_spec_data *next,
                                struct sentence *why)
{
    bool same = strcmp(job->spec.name, next->name) == 0 &&
                job->spec.tensor_count == next->tensor_count &&
                job->spec.group_count == next->group_count &&
                job->spec.client_state_max == next->client_state_max;
    for (size_t i = 0; same && i < next->tensor_count; i++)
        same = same_tensor(&job->spec.tensors[i], &next->tensors[i]);
    for (size_t i = 0; same && i < next->group_count; i++)
        same = strcmp(job->spec.groups[i].name, next->groups[i].name) == 0;
    if (same) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_MISMATCH,
                     "the amended spec of job %s, revision %" PRIu64
                     ", has other tensors than those held",
                     job->spec.name, next->revision);
}

void terms_want(struct shard_job *job, const struct policy *policy)
{
    audit_want(job, policy->audit_every);
    journal_want(job, safety_logs(policy->durability));
}

/* Takes terms whose pages have all been received. */
static cairn_status take_terms(struct shard_daemon *shard, struct arriving *terms,
                               struct sentence *why)
{
    const Cairn__JobTerms *message = (const Cairn__JobTerms *)terms->message;
    struct shard_job *job = shard_job_find_part(shard, message->job, message->generation);
    struct paged *spec = &terms->paged[0];
    if (job == NULL)
        return fail_with(why, CAIRN_ERR_NOT_FOUND,
                         "shard %s does not hold job %016" PRIx64 " in generation %" PRIu64,
                         shard->name, message->job, message->generation);
    job->terms.settled = true;
    if (spec->have_bytes == 0) return CAIRN_OK; // the shard has the spec already
    const struct job_spec_data *next = terms->made;
    const cairn_status status = judge_terms(job, next, why);
    const uint64_t revision = next->revision;
    if (status != CAIRN_OK || revision <= job->terms.revision)
        return status; // receiving the same spec again is not a fault
    paged_release(&job->terms.amended, 1);
    job->terms.amended = *spec;
    *spec = (struct paged) { .bytes = NULL };
    job->terms.revision = revision;
    leaf_hash(job->terms.amended.bytes, job->terms.amended.have_bytes, &job->terms.digest);
    terms_want(job, &next->policy);
    log_info("job %s: amended, revision %" PRIu64, job->spec.name, revision);
    kept_begin(job);
    return CAIRN_OK;
}

/* Unpacks the spec in the pages. If there are no pages, the shard has the spec already, and
 * *made_out stays NULL. */
static cairn_status terms_prepare(struct arriving *terms, void **made_out, struct sentence *why)
{
    const struct paged *spec = &terms->paged[0];
    if (spec->have_bytes == 0) return CAIRN_OK;
    struct job_spec_data *next = malloc(sizeof *next);
    if (next == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a spec");
    const cairn_status status = spec_unpack(spec->bytes, spec->have_bytes, optimizer_names(), next,
                                            why);
    if (status == CAIRN_OK)
        *made_out = next;
    else
        free(next);
    return status;
}

static void terms_unmake(void *made)
{
    spec_release(made);
    free(made);
}

static void terms_whole(struct shard_daemon *shard, struct arriving *terms)
{
    struct sentence why = { "" };
    const cairn_status status = take_terms(shard, terms, &why);
    arriving_end(shard, terms, status, &why);
}

static const struct arriving_kind terms_kind = {
    .name = "the terms of a job",
    .what = { CAIRN_PAGE_SPEC },
    .bytes_at = { offsetof(Cairn__JobTerms, spec_bytes) },
    .may_be_empty = true,
    .prepare = terms_prepare,
    .unmake = terms_unmake,
    .whole = terms_whole,
};

const struct shard_module terms_module = {
    .messages = (const struct shard_message[]) { { CAIRN_MSG_JOB_TERMS, .pages = &terms_kind },
                                                 { 0 } },
};
