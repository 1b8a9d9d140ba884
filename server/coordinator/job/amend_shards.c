/* Brings the spec that is in the store to all shards. An amendment is answered only when all of
 * them have it, so that a lost store can be rebuilt from them. The store is written first: a
 * shard is never ahead of it. The spec goes over the ordered connection of the rounds, so no
 * round goes by terms that one of its shards does not have. */
#include "server/base/log.h"
#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/base/works.h"

/* A JobTerms on its way. */
struct telling {
    uint64_t generation, revision;
    uint32_t shard;
};

void cairn_cluster_amend_done(struct cairn_cluster_member *member, uint64_t revision)
{
    Cairn__JobAmended amended = CAIRN__JOB_AMENDED__INIT;
    amended.revision = revision;
    if (member->amend.request != 0)
        cairn_cluster_session_send(member->session, CAIRN_MSG_JOB_AMENDED, member->amend.request,
                                   &amended.base);
    member->amend.request = 0;
    member->amend.revision = 0;
}

void cairn_cluster_amend_failed(struct cairn_cluster_member *member, cairn_status status,
                                const char *text)
{
    if (member->amend.request != 0)
        cairn_cluster_session_error(member->session, member->amend.request, status, text);
    member->amend.request = 0;
    member->amend.revision = 0;
}

void cairn_cluster_terms_advance(struct cairn_cluster_job *job)
{
    uint64_t all = UINT64_MAX;
    CAIRN_EACH_SHARD (job, i)
        if (job->shards[i].revision < all) all = job->shards[i].revision;
    if (job->amends.waiters != NULL && job->amends.revision != 0 && job->amends.revision <= all) {
        Cairn__JobAmended amended = CAIRN__JOB_AMENDED__INIT;
        amended.revision = job->amends.revision;
        cairn_cluster_waiters_answer(&job->amends.waiters, CAIRN_MSG_JOB_AMENDED, &amended.base);
    }
    for (struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        if (m->amend.revision != 0 && m->amend.revision <= all)
            cairn_cluster_amend_done(m, m->amend.revision);
    }
}

/* It stands in the store and is gone by: that one shard cannot keep it is said, and does not hold it up. */
static void fail(struct cairn_cluster_job *job, uint64_t revision, cairn_status status,
                 const char *text)
{
    struct cairn_sentence why;
    cairn_sentence_set(
        &why, "job %s: the amended spec is in the coordinator's store, but not on all shards: %s",
        job->spec.name, text);
    cairn_log_fields(CAIRN_LOG_ERROR, CAIRN_FIELDS({ "job", job->spec.name, 0 }), "%s", why.text);
    if (job->amends.revision == revision)
        cairn_cluster_waiters_fail(&job->amends.waiters, status, why.text);
    for (struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        if (m->amend.revision == revision) cairn_cluster_amend_failed(m, status, why.text);
    }
}

static void on_told(struct cairn_cluster_job *job, const void *about, cairn_status status,
                    const char *text)
{
    const struct telling *told = about;
    if (job->generation != told->generation) return;
    if (status == CAIRN_ERR_CLOSED) return; // told again when the shard is back
    if (status != CAIRN_OK) {
        fail(job, told->revision, status, text);
        return;
    }
    struct cairn_cluster_job_shard *s = &job->shards[told->shard];
    if (s->revision < told->revision) s->revision = told->revision;
    cairn_cluster_terms_advance(job);
}

void cairn_cluster_terms_tell(struct cairn_cluster_job *job, uint32_t shard, bool settled)
{
    const struct cairn_cluster_job_shard *s = &job->shards[shard];
    const bool newer = s->revision < job->spec.revision;
    if (!s->up || (settled && !newer)) return;
    const struct telling telling = { job->generation, job->spec.revision, shard };
    struct cairn_cluster_gather *gather = cairn_cluster_gather_open_job(job, on_told, &telling,
                                                                        sizeof telling);
    if (gather == NULL) {
        cairn_log_error("job %s: no memory to tell shard %s of the spec", job->spec.name,
                        s->seat->name);
        return;
    }
    Cairn__JobTerms terms = CAIRN__JOB_TERMS__INIT;
    terms.job = job->id;
    terms.generation = job->generation;
    terms.revision = job->spec.revision;
    terms.spec_bytes = newer ? job->planned.spec->size : 0;
    const uint32_t request = cairn_cluster_gather_send(gather, s->seat, CAIRN_MSG_JOB_TERMS,
                                                       &terms.base);
    if (request != 0 && newer)
        cairn_cluster_session_pages(s->seat->session, request, CAIRN_PAGE_SPEC, job->planned.spec);
    cairn_cluster_gather_start(gather);
}

void cairn_cluster_terms_tell_all(struct cairn_cluster_job *job)
{
    CAIRN_EACH_SHARD (job, i) cairn_cluster_terms_tell(job, i, false);
}
