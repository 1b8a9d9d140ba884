/* JobTerms: the job's spec as it is in the coordinator's store. The shard goes by what each round says, and
 * by the tensors that it was made with, which other threads read; it keeps the amended spec, as bytes, so
 * that a lost store can be rebuilt from it. Tensors and planes are never others than they were. */
#include <stdlib.h>
#include <string.h>

#include "server/shard/held.h"

#define AMENDINGS_MAX 8

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
static cairn_status take(struct cairn_shard *shard, struct cairn_amending *amending,
                         struct cairn_sentence *why)
{
    struct cairn_shard_job *job = cairn_held_find(shard, amending->job, amending->generation);
    struct cairn_job_spec_data next;
    if (job == NULL) return cairn_fail(why, CAIRN_ERR_NOT_FOUND, "the job is not held any more");
    cairn_status status = cairn_spec_unpack(amending->spec.bytes, amending->spec.have_bytes,
                                            cairn_optimizer_names(), &next, why);
    if (status != CAIRN_OK) return status;
    status = judge(job, &next, why);
    const uint64_t revision = next.revision;
    cairn_spec_release(&next);
    if (status != CAIRN_OK || revision <= job->revision)
        return status; // the same again is no fault
    cairn_paged_release(&job->terms);
    job->terms = amending->spec;
    amending->spec = (struct cairn_paged) { .bytes = NULL };
    job->revision = revision;
    cairn_leaf_hash(job->terms.bytes, job->terms.have_bytes, &job->spec_digest);
    cairn_log_info("job %s: amended, revision %llu", job->spec.name, (unsigned long long)revision);
    return CAIRN_OK;
}

static void answer(struct cairn_shard *shard, uint32_t request, cairn_status status,
                   const struct cairn_sentence *why)
{
    struct cairn_request answered = cairn_session_request(shard, request);
    if (status != CAIRN_OK) cairn_log_warn("JobTerms refused: %s", why->text);
    cairn_session_answer(shard, &answered, status, why);
}

static void drop(struct cairn_shard *shard, struct cairn_amending *amending)
{
    struct cairn_amending **link = &shard->amendings;
    while (*link != amending) link = &(*link)->next;
    *link = amending->next;
    cairn_paged_release(&amending->spec);
    free(amending);
}

void cairn_terms_drop(struct cairn_shard *shard)
{
    while (shard->amendings != NULL) drop(shard, shard->amendings);
}

static cairn_status begin(struct cairn_shard *shard, uint32_t request,
                          const Cairn__JobTerms *message, struct cairn_sentence *why)
{
    size_t count = 0;
    for (const struct cairn_amending *a = shard->amendings; a != NULL; a = a->next) count++;
    if (count >= AMENDINGS_MAX)
        return cairn_fail(why, CAIRN_ERR_BUSY, "%zu specs are on their way already", count);
    struct cairn_amending *amending = calloc(1, sizeof *amending);
    if (amending == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a spec");
    if (cairn_paged_init(&amending->spec, message->spec_bytes) != CAIRN_OK) {
        free(amending);
        return cairn_fail(why, CAIRN_ERR_INVALID, "a spec of %llu bytes: at most %llu",
                          (unsigned long long)message->spec_bytes,
                          (unsigned long long)CAIRN_PAGED_BYTES_MAX);
    }
    amending->request = request;
    amending->job = message->job;
    amending->generation = message->generation;
    amending->next = shard->amendings;
    shard->amendings = amending;
    return CAIRN_OK;
}

void cairn_terms_on_message(struct cairn_shard *shard, uint32_t request,
                            const Cairn__JobTerms *message)
{
    struct cairn_shard_job *job = cairn_held_find(shard, message->job, message->generation);
    struct cairn_sentence why;
    cairn_status status = CAIRN_OK;
    if (job == NULL) {
        status = cairn_fail(
            &why, CAIRN_ERR_NOT_FOUND, "shard %s does not hold job %016llx in generation %llu",
            shard->name, (unsigned long long)message->job, (unsigned long long)message->generation);
    } else {
        job->settled = true;
        if (message->spec_bytes > 0) status = begin(shard, request, message, &why);
    }
    if (status != CAIRN_OK || message->spec_bytes == 0) answer(shard, request, status, &why);
}

bool cairn_terms_on_page(struct cairn_shard *shard, uint32_t request, const Cairn__Page *page)
{
    struct cairn_amending *amending = shard->amendings;
    struct cairn_sentence why;
    while (amending != NULL && amending->request != request) amending = amending->next;
    if (amending == NULL) return false;
    cairn_status status = page->what == CAIRN_PAGE_SPEC ? cairn_paged_add(&amending->spec, page)
                                                        : CAIRN_ERR_PROTOCOL;
    if (status != CAIRN_OK)
        cairn_sentence_set(&why, "the pages of an amended spec do not follow each other");
    else if (!cairn_paged_whole(&amending->spec))
        return true;
    else
        status = take(shard, amending, &why);
    drop(shard, amending);
    answer(shard, request, status, &why);
    return true;
}
