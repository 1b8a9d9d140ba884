/* A store rebuilt from the shards: each says what it holds; what is whole and agrees is written to the
 * store in one transaction, with a new identity and with numbers above all that the shards have seen. They
 * keep that identity, and connect anew: the ordinary path (fence, answers, outcome) does the rest. */
#include "server/coordinator/adopt.h"

#include <stdlib.h>

#include "server/base/log.h"
#include "server/coordinator/adopt_private.h"
#include "server/coordinator/works.h"

#define ADOPT_TIMEOUT_MS 30000

static void free_adoption(struct cairn_cluster_adoption *adoption)
{
    adoption->cluster->adoption = NULL;
    cairn_cluster_waiters_release(&adoption->waiter);
    for (size_t i = 0; i < adoption->job_count; i++) {
        cairn_paged_release(&adoption->jobs[i].spec);
        cairn_paged_release(&adoption->jobs[i].layout);
        free(adoption->jobs[i].name);
        free(adoption->jobs[i].shards);
    }
    free(adoption->jobs);
    free(adoption->rows);
    free(adoption);
}

void cairn_cluster_adoption_fail(struct cairn_cluster_adoption *adoption, cairn_status status,
                                 const char *text)
{
    cairn_log_warn("nothing was adopted: %s", text);
    cairn_cluster_waiters_fail(&adoption->waiter, status, text);
    free_adoption(adoption);
}

void cairn_cluster_adoption_answer(struct cairn_cluster_adoption *adoption)
{
    Cairn__ClusterAdopted message = CAIRN__CLUSTER_ADOPTED__INIT;
    Cairn__AdoptedJob *jobs = calloc(adoption->job_count + 1, sizeof *jobs);
    Cairn__AdoptedJob **list = calloc(adoption->job_count + 1, sizeof *list);
    if (jobs == NULL || list == NULL) {
        free(jobs);
        free(list);
        cairn_cluster_adoption_fail(adoption, CAIRN_ERR_NO_MEMORY, "no memory");
        return;
    }
    for (size_t i = 0; i < adoption->job_count; i++) {
        struct cairn_cluster_adoptee *job = &adoption->jobs[i];
        cairn__adopted_job__init(&jobs[i]);
        jobs[i].name = job->name;
        jobs[i].job = job->id;
        jobs[i].generation = job->version_generation;
        jobs[i].step = job->step;
        jobs[i].shards = job->shard_count;
        jobs[i].refused = job->refused.text;
        list[i] = &jobs[i];
    }
    message.jobs = list;
    message.n_jobs = adoption->job_count;
    message.store = adoption->cluster->id.store;
    cairn_cluster_waiters_answer(&adoption->waiter, CAIRN_MSG_CLUSTER_ADOPTED, &message.base);
    free(jobs);
    free(list);
    free_adoption(adoption);
}

/* ---- their specs and layouts ---- */

static struct cairn_cluster_adoptee *find_request(struct cairn_cluster_session *session,
                                                  uint32_t request)
{
    struct cairn_cluster_adoption *adoption = session->cluster->adoption;
    for (size_t i = 0; adoption != NULL && i < adoption->job_count; i++) {
        struct cairn_cluster_adoptee *job = &adoption->jobs[i];
        if (job->request == request && request != 0 && job->from == session->seat && !job->here)
            return job;
    }
    return NULL;
}

void cairn_cluster_adopt_on_part(struct cairn_cluster_session *session, uint32_t request,
                                 const Cairn__Part *part)
{
    struct cairn_cluster_adoptee *job = find_request(session, request);
    if (job == NULL) return;
    cairn_paged_release(&job->spec);
    cairn_paged_release(&job->layout);
    if (part->spec_bytes == 0 || part->layout_bytes == 0 ||
        cairn_paged_init(&job->spec, part->spec_bytes) != CAIRN_OK ||
        cairn_paged_init(&job->layout, part->layout_bytes) != CAIRN_OK)
        cairn_cluster_adoption_fail(session->cluster->adoption, CAIRN_ERR_MALFORMED,
                                    "a part without a spec or a layout");
}

void cairn_cluster_adopt_on_page(struct cairn_cluster_session *session, uint32_t request,
                                 const Cairn__Page *page)
{
    struct cairn_cluster_adoption *adoption = session->cluster->adoption;
    struct cairn_cluster_adoptee *job = find_request(session, request);
    if (job == NULL) return;
    struct cairn_paged *paged = page->what == CAIRN_PAGE_SPEC ? &job->spec : &job->layout;
    if (cairn_paged_add(paged, page) != CAIRN_OK) {
        cairn_cluster_adoption_fail(adoption, CAIRN_ERR_PROTOCOL,
                                    "the pages of a part do not follow each other");
        return;
    }
    if (job->spec.total_bytes == 0 || !cairn_paged_whole(&job->spec) ||
        !cairn_paged_whole(&job->layout))
        return;
    job->here = true;
    for (size_t i = 0; i < adoption->job_count; i++)
        if (adoption->jobs[i].refused.text[0] == '\0' && !adoption->jobs[i].here) return;
    cairn_cluster_adoption_write(adoption);
}

static void on_told(void *context, cairn_status status, const char *why)
{
    struct cairn_cluster *cluster = context;
    struct cairn_cluster_adoption *adoption = cluster->adoption;
    size_t whole = 0;
    if (adoption == NULL || cluster->closing) return;
    if (status == CAIRN_OK) status = cairn_cluster_adoption_plan(adoption);
    if (status != CAIRN_OK) {
        cairn_cluster_adoption_fail(adoption, status, why);
        return;
    }
    for (size_t i = 0; i < adoption->job_count; i++)
        whole += adoption->jobs[i].refused.text[0] == '\0';
    if (adoption->plan || whole == 0) {
        cairn_cluster_adoption_answer(adoption);
        return;
    }
    for (size_t i = 0; i < adoption->job_count; i++) {
        struct cairn_cluster_adoptee *job = &adoption->jobs[i];
        if (job->refused.text[0] != '\0') continue;
        Cairn__PartGet get = CAIRN__PART_GET__INIT;
        job->request = cairn_cluster_request_new(cluster);
        get.job = job->id;
        get.generation = job->generation;
        cairn_cluster_session_send(job->from->session, CAIRN_MSG_PART_GET, job->request, &get.base);
    }
}

/* ---- the request ---- */

void cairn_cluster_adopt(struct cairn_cluster_session *session, uint32_t request,
                         const Cairn__ClusterAdopt *message)
{
    struct cairn_cluster *cluster = session->cluster;
    struct cairn_cluster_adoption *adoption = cluster->adoption != NULL
                                                  ? NULL
                                                  : calloc(1, sizeof *adoption);
    struct cairn_cluster_gather *gather =
        adoption == NULL ? NULL : cairn_cluster_gather_open(cluster, on_told, cluster);
    if (gather == NULL) {
        free(adoption);
        cairn_cluster_session_error(session, request, CAIRN_ERR_BUSY,
                                    "the shards are being adopted already, or there is no memory");
        return;
    }
    adoption->cluster = cluster;
    adoption->plan = message->plan;
    adoption->began_ms = cairn_cluster_now_ms(cluster);
    cluster->adoption = adoption;
    (void)cairn_cluster_waiters_add(&adoption->waiter, session, request);
    const Cairn__PartGet get = CAIRN__PART_GET__INIT; // everything
    for (struct cairn_cluster_seat *s = cluster->seats; s != NULL; s = s->next) {
        if (s->session == NULL) continue;
        const uint32_t asked = cairn_cluster_gather_ask(gather, s);
        if (asked != 0)
            cairn_cluster_session_send(s->session, CAIRN_MSG_PART_GET, asked, &get.base);
    }
    cairn_cluster_gather_start(gather);
}

void cairn_cluster_adopt_forget(struct cairn_cluster *cluster,
                                const struct cairn_cluster_session *session)
{
    if (cluster->adoption != NULL)
        cairn_cluster_waiters_forget(&cluster->adoption->waiter, session);
}

void cairn_cluster_adopt_tick(struct cairn_cluster *cluster)
{
    struct cairn_cluster_adoption *adoption = cluster->adoption;
    if (adoption == NULL || adoption->writing ||
        cairn_cluster_now_ms(cluster) - adoption->began_ms < ADOPT_TIMEOUT_MS)
        return;
    cairn_cluster_adoption_fail(adoption, CAIRN_ERR_TIMEOUT,
                                "a shard did not say what it holds; adopt again");
}

void cairn_cluster_adopt_close(struct cairn_cluster *cluster)
{
    if (cluster->adoption != NULL) free_adoption(cluster->adoption);
}
