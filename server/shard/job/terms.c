/* JobTerms: the job's spec as it is in the coordinator's store. The shard goes by what each round says, and
 * by the tensors that it was made with, which other threads read; it keeps the amended spec, as bytes, so
 * that a lost store can be rebuilt from it. Tensors and planes are never others than they were. */
#include <stdlib.h>
#include <string.h>

#include "server/shard/base/arriving.h"
#include "server/shard/job/held.h"
#include "server/shard/job/terms.h"

static bool same_tensor(const struct cairn_tensor_spec *a, const struct cairn_tensor_spec *b)
{
    return strcmp(a->name, b->name) == 0 && a->kind == b->kind && a->master == b->master &&
           a->wire == b->wire && a->shape.rank == b->shape.rank &&
           memcmp(a->shape.dim, b->shape.dim, a->shape.rank * sizeof *a->shape.dim) == 0 &&
           (a->group == NULL ? b->group == NULL
                             : b->group != NULL && strcmp(a->group, b->group) == 0);
}

static cairn_status judge(const struct cairn_shard_job *job, const struct cairn_job_spec_data *next,
                          struct cairn_sentence *why)
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
    return cairn_fail(
        why, CAIRN_ERR_MISMATCH,
        "the amended spec of job %s, revision %llu, is of other tensors than are held",
        job->spec.name, (unsigned long long)next->revision);
}

/* All its pages are here; takes them. */
static cairn_status take(struct cairn_shard *shard, struct cairn_arriving *terms,
                         struct cairn_sentence *why)
{
    const Cairn__JobTerms *message = (const Cairn__JobTerms *)terms->message;
    struct cairn_shard_job *job = cairn_held_find(shard, message->job, message->generation);
    struct cairn_paged *spec = &terms->paged[0];
    if (job == NULL)
        return cairn_fail(
            why, CAIRN_ERR_NOT_FOUND, "shard %s does not hold job %016llx in generation %llu",
            shard->name, (unsigned long long)message->job, (unsigned long long)message->generation);
    job->terms.settled = true;
    if (spec->have_bytes == 0) return CAIRN_OK; // it has that spec
    const struct cairn_job_spec_data *next = terms->made;
    const cairn_status status = judge(job, next, why);
    const uint64_t revision = next->revision;
    if (status != CAIRN_OK || revision <= job->terms.revision)
        return status; // the same again is no fault
    cairn_paged_release(&job->terms.amended);
    job->terms.amended = *spec;
    *spec = (struct cairn_paged) { .bytes = NULL };
    job->terms.revision = revision;
    cairn_leaf_hash(job->terms.amended.bytes, job->terms.amended.have_bytes, &job->terms.digest);
    cairn_log_info("job %s: amended, revision %llu", job->spec.name, (unsigned long long)revision);
    return CAIRN_OK;
}

/* Unpacks the spec that the pages hold. If there are none the shard has that spec already, and
 * *made_out stays NULL. */
static cairn_status terms_prepare(struct cairn_arriving *terms, void **made_out,
                                  struct cairn_sentence *why)
{
    const struct cairn_paged *spec = &terms->paged[0];
    if (spec->have_bytes == 0) return CAIRN_OK;
    struct cairn_job_spec_data *next = malloc(sizeof *next);
    if (next == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a spec");
    const cairn_status status = cairn_spec_unpack(spec->bytes, spec->have_bytes,
                                                  cairn_optimizer_names(), next, why);
    if (status == CAIRN_OK)
        *made_out = next;
    else
        free(next);
    return status;
}

static void terms_unmake(void *made)
{
    cairn_spec_release(made);
    free(made);
}

static void terms_whole(struct cairn_shard *shard, struct cairn_arriving *terms)
{
    struct cairn_sentence why = { "" };
    const cairn_status status = take(shard, terms, &why);
    cairn_arriving_end(shard, terms, status, &why);
}

void cairn_terms_on_message(struct cairn_shard *shard, uint32_t request, Cairn__JobTerms *message)
{
    static const struct cairn_arriving_kind kind = {
        .name = "the terms of a job",
        .what = { CAIRN_PAGE_SPEC },
        .may_be_empty = true,
        .prepare = terms_prepare,
        .unmake = terms_unmake,
        .whole = terms_whole,
    };
    const uint64_t bytes[CAIRN_ARRIVING_PAGED] = { message->spec_bytes };
    cairn_arriving_begin(shard, &kind, request, &message->base, bytes);
}
