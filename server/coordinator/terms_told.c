/* What the shards know of the spec that is in the store: before an amendment is answered all of them have
 * it, so that a store can be rebuilt from them. The store is first: a shard is never ahead of it. Told over
 * the ordered connection of the rounds: no round goes by terms that one of its shards does not have. */
#include <stdlib.h>

#include "server/base/log.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/standing.h"
#include "server/coordinator/works.h"

/* A JobTerms on its way. */
struct telling {
    struct cairn_cluster *cluster;
    uint64_t job, generation, revision;
    uint32_t shard;
};

void cairn_cluster_terms_advance(struct cairn_cluster_job *job)
{
    uint64_t all = UINT64_MAX;
    for (uint32_t i = 0; i < job->layout->shard_count; i++)
        if (job->shards[i].revision < all) all = job->shards[i].revision;
    if (job->amenders != NULL && job->amenders_revision != 0 && job->amenders_revision <= all) {
        Cairn__JobAmended amended = CAIRN__JOB_AMENDED__INIT;
        amended.revision = job->amenders_revision;
        cairn_cluster_waiters_answer(&job->amenders, CAIRN_MSG_JOB_AMENDED, &amended.base);
    }
    for (struct cairn_cluster_member *m = job->members; m != NULL; m = m->next_of_job) {
        if (m->amend_request == 0 || m->amend_revision == 0 || m->amend_revision > all) continue;
        Cairn__JobAmended amended = CAIRN__JOB_AMENDED__INIT;
        amended.revision = m->amend_revision;
        cairn_cluster_session_send(m->session, CAIRN_MSG_JOB_AMENDED, m->amend_request,
                                   &amended.base);
        m->amend_request = 0;
        m->amend_revision = 0;
    }
}

/* It stands in the store and is gone by: that one shard cannot keep it is said, and does not hold it up. */
static void fail(struct cairn_cluster_job *job, uint64_t revision, cairn_status status,
                 const char *text)
{
    struct cairn_sentence why;
    cairn_sentence_set(&why,
                       "job %s: the amended spec is in the coordinator's store, but not on all "
                       "shards: %s",
                       job->spec.name, text);
    cairn_log_error("%s", why.text);
    if (job->amenders_revision == revision)
        cairn_cluster_waiters_fail(&job->amenders, status, why.text);
    for (struct cairn_cluster_member *m = job->members; m != NULL; m = m->next_of_job) {
        if (m->amend_request == 0 || m->amend_revision != revision) continue;
        cairn_cluster_session_error(m->session, m->amend_request, status, why.text);
        m->amend_request = 0;
        m->amend_revision = 0;
    }
}

static void on_told(void *context, cairn_status status, const char *text)
{
    const struct telling told = *(struct telling *)context;
    free(context);
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(told.cluster, told.job);
    if (told.cluster->closing || job == NULL || job->generation != told.generation) return;
    if (status == CAIRN_ERR_CLOSED) return; // told again when the shard is back
    if (status != CAIRN_OK) {
        fail(job, told.revision, status, text);
        return;
    }
    struct cairn_cluster_job_shard *s = &job->shards[told.shard];
    if (s->revision < told.revision) s->revision = told.revision;
    cairn_cluster_terms_advance(job);
}

void cairn_cluster_terms_tell(struct cairn_cluster_job *job, uint32_t shard, bool settled)
{
    const struct cairn_cluster_job_shard *s = &job->shards[shard];
    const bool newer = s->revision < job->spec.revision;
    if (!s->up || (settled && !newer)) return;
    struct telling *telling = calloc(1, sizeof *telling);
    struct cairn_cluster_gather *gather =
        telling == NULL ? NULL : cairn_cluster_gather_open(job->cluster, on_told, telling);
    if (gather == NULL) {
        free(telling);
        cairn_log_error("job %s: no memory to tell shard %s of the spec", job->spec.name,
                        s->seat->name);
        return;
    }
    *telling = (struct telling) { job->cluster, job->id, job->generation, job->spec.revision,
                                  shard };
    const uint32_t request = cairn_cluster_gather_ask(gather, s->seat);
    Cairn__JobTerms terms = CAIRN__JOB_TERMS__INIT;
    terms.job = job->id;
    terms.generation = job->generation;
    terms.revision = job->spec.revision;
    terms.spec_bytes = newer ? job->spec_packed->size : 0;
    if (request != 0) {
        cairn_cluster_session_send(s->seat->session, CAIRN_MSG_JOB_TERMS, request, &terms.base);
        if (newer)
            cairn_cluster_session_pages(s->seat->session, request, CAIRN_PAGE_SPEC,
                                        job->spec_packed);
    }
    cairn_cluster_gather_start(gather);
}

void cairn_cluster_terms_tell_all(struct cairn_cluster_job *job)
{
    for (uint32_t i = 0; i < job->layout->shard_count; i++) cairn_cluster_terms_tell(job, i, false);
}
