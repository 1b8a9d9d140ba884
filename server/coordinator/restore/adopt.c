/* A store rebuilt from the shards: each says what it holds; what is whole and agrees is written to the
 * store in one transaction, with a new identity and with numbers above all that the shards have seen. They
 * keep that identity, and connect anew: the ordinary path (fence, answers, outcome) does the rest. Each job
 * is judged for itself: one that is refused keeps no other from being adopted, and a shard that is silent
 * only those of which it has a part. */
#include "server/coordinator/restore/adopt.h"

#include <stdlib.h>

#include "server/base/log.h"
#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/restore/adopt_private.h"

#define ADOPT_TIMEOUT_MS 20000 /* without a word from whom is asked; cairn(1) waits much longer */

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
    free(adoption->silent);
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
    message.store = adoption->cluster->identity.id.store;
    message.silent = adoption->silent;
    message.n_silent = adoption->silent_count;
    struct cairn_keys_message keys;
    cairn_cluster_keys_fill_list(adoption->cluster, adoption->keys, adoption->key_count, &keys);
    message.keys = &keys.keys;
    cairn_cluster_waiters_answer(&adoption->waiter, CAIRN_MSG_CLUSTER_ADOPTED, &message.base);
    free(jobs);
    free(list);
    free_adoption(adoption);
}

/* ---- questions to the shards ---- */

/* One on its way: the adoption may have been given up by then. */
struct asking {
    struct cairn_cluster *cluster;
    uint32_t number; /* of the adoption */
};

/* False: no memory. */
static bool open_question(struct cairn_cluster_adoption *adoption, cairn_cluster_gather_fn on_done)
{
    struct asking *asking = malloc(sizeof *asking);
    if (asking == NULL) return false;
    *asking = (struct asking) { adoption->cluster, adoption->number };
    adoption->gather = cairn_cluster_gather_open(adoption->cluster, on_done, asking);
    adoption->began_ms = cairn_cluster_now_ms(adoption->cluster);
    if (adoption->gather == NULL) free(asking);
    return adoption->gather != NULL;
}

/* It is answered. NULL: nobody waits for it any more. */
static struct cairn_cluster_adoption *close_question(void *context)
{
    const struct asking asking = *(struct asking *)context;
    struct cairn_cluster_adoption *adoption = asking.cluster->adoption;
    free(context);
    if (asking.cluster->closing || adoption == NULL || adoption->number != asking.number)
        return NULL;
    adoption->gather = NULL;
    return adoption;
}

static uint32_t ask(struct cairn_cluster_adoption *adoption, struct cairn_cluster_seat *seat,
                    uint64_t job, uint64_t generation)
{
    Cairn__PartGet get = CAIRN__PART_GET__INIT;
    get.job = job;
    get.generation = generation;
    return cairn_cluster_gather_send(adoption->gather, seat, CAIRN_MSG_PART_GET, &get.base);
}

/* ---- their specs and layouts ---- */

static struct cairn_cluster_adoptee *find_request(struct cairn_cluster_session *session,
                                                  uint32_t request)
{
    struct cairn_cluster_adoption *adoption = session->cluster->adoption;
    for (size_t i = 0; adoption != NULL && i < adoption->job_count; i++) {
        struct cairn_cluster_adoptee *job = &adoption->jobs[i];
        if (job->request == request && request != 0 && job->from == session->seat) return job;
    }
    return NULL;
}

/* It is answered: no page of it is taken any more. */
static void end_part(struct cairn_cluster_adoptee *job, cairn_status status, const char *why)
{
    const uint32_t request = job->request;
    job->request = 0;
    cairn_cluster_calls_reply(job->from, request, status, why);
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
        end_part(job, CAIRN_ERR_MALFORMED, "it sent a part without a spec or a layout");
}

void cairn_cluster_adopt_on_page(struct cairn_cluster_session *session, uint32_t request,
                                 const Cairn__Page *page)
{
    struct cairn_cluster_adoption *adoption = session->cluster->adoption;
    struct cairn_cluster_adoptee *job = find_request(session, request);
    if (job == NULL) return;
    struct cairn_paged *paged = page->what == CAIRN_PAGE_SPEC ? &job->spec : &job->layout;
    if (cairn_paged_add(paged, page) != CAIRN_OK) {
        end_part(job, CAIRN_ERR_PROTOCOL, "the pages of its part do not follow each other");
        return;
    }
    adoption->began_ms = cairn_cluster_now_ms(adoption->cluster); // it is being answered
    if (job->spec.total_bytes > 0 && cairn_paged_whole(&job->spec) &&
        cairn_paged_whole(&job->layout))
        end_part(job, CAIRN_OK, "");
}

static void get_next(struct cairn_cluster_adoption *adoption);

static void on_part(void *context, cairn_status status, const char *why)
{
    struct cairn_cluster_adoption *adoption = close_question(context);
    if (adoption == NULL) return;
    if (status != CAIRN_OK) {
        struct cairn_cluster_adoptee *job = &adoption->jobs[adoption->asked_count - 1];
        job->request = 0;
        cairn_sentence_set(&job->refused, "%s", why); // which names the shard
    }
    get_next(adoption);
}

/* One after the other: a shard copies what it sends. */
static void get_next(struct cairn_cluster_adoption *adoption)
{
    size_t i = adoption->asked_count;
    while (i < adoption->job_count && adoption->jobs[i].refused.text[0] != '\0') i++;
    adoption->asked_count = i + 1;
    if (i == adoption->job_count) {
        cairn_cluster_adoption_write(adoption);
        return;
    }
    if (!open_question(adoption, on_part)) {
        cairn_cluster_adoption_fail(adoption, CAIRN_ERR_NO_MEMORY, "no memory");
        return;
    }
    struct cairn_cluster_adoptee *job = &adoption->jobs[i];
    job->request = ask(adoption, job->from, job->id, job->generation);
    cairn_cluster_gather_start(adoption->gather);
}

/* With what those have told that did; if none has, this is for `why`. */
static void go_on(struct cairn_cluster_adoption *adoption, cairn_status status, const char *why)
{
    size_t whole = 0;
    for (struct cairn_cluster_seat *s = adoption->cluster->seats; s != NULL; s = s->next)
        if (cairn_cluster_adoption_knows(s)) status = CAIRN_OK;
    if (status == CAIRN_OK && (status = cairn_cluster_adoption_plan(adoption)) != CAIRN_OK)
        why = "no memory";
    if (status != CAIRN_OK) {
        cairn_cluster_adoption_fail(adoption, status, why);
        return;
    }
    for (size_t i = 0; i < adoption->silent_count; i++)
        cairn_log_warn("shard %s does not say what it holds, and is taken as one that is away",
                       adoption->silent[i]);
    for (size_t i = 0; i < adoption->job_count; i++)
        whole += adoption->jobs[i].refused.text[0] == '\0';
    if (whole == 0)
        cairn_cluster_adoption_answer(adoption);
    else
        get_next(adoption);
}

static void on_held(void *context, cairn_status status, const char *why)
{
    struct cairn_cluster_adoption *adoption = close_question(context);
    if (adoption != NULL) go_on(adoption, status, why);
}

/* Its late answer is of no use. */
static void give_question_up(struct cairn_cluster_adoption *adoption)
{
    adoption->number = cairn_cluster_request_new(adoption->cluster);
    adoption->gather = NULL;
}

/* ---- the request ---- */

void cairn_cluster_adopt(struct cairn_cluster_session *session, uint32_t request,
                         const Cairn__ClusterAdopt *message)
{
    struct cairn_cluster *cluster = session->cluster;
    struct cairn_cluster_adoption *adoption = cluster->adoption != NULL
                                                  ? NULL
                                                  : calloc(1, sizeof *adoption);
    if (adoption == NULL) {
        cairn_cluster_session_error(session, request, CAIRN_ERR_BUSY,
                                    "the shards are being adopted already, or there is no memory");
        return;
    }
    adoption->cluster = cluster;
    adoption->number = cairn_cluster_request_new(cluster);
    adoption->plan = message->plan;
    cluster->adoption = adoption;
    if (!cairn_cluster_waiters_add(&adoption->waiter, session, request)) {
        free_adoption(adoption);
        cairn_cluster_session_error(session, request, CAIRN_ERR_BUSY,
                                    "too many requests wait on this connection");
        return;
    }
    if (!open_question(adoption, on_held)) {
        cairn_cluster_adoption_fail(adoption, CAIRN_ERR_NO_MEMORY, "no memory");
        return;
    }
    for (struct cairn_cluster_seat *s = cluster->seats; s != NULL; s = s->next)
        s->parts_asked = s->session != NULL ? ask(adoption, s, 0, 0) : 0; // everything
    cairn_cluster_gather_start(adoption->gather);
}

void cairn_cluster_adopt_forget(struct cairn_cluster *cluster,
                                const struct cairn_cluster_session *session)
{
    if (cluster->adoption != NULL)
        cairn_cluster_waiters_forget(&cluster->adoption->waiter, session);
}

/* Refuses the job that a silent shard was asked for, and all later ones that it would be asked
 * for. */
static void refuse_silent(struct cairn_cluster_adoption *adoption)
{
    const size_t asked = adoption->asked_count - 1;
    const struct cairn_cluster_seat *silent = adoption->jobs[asked].from;
    for (size_t i = asked; i < adoption->job_count; i++) {
        struct cairn_cluster_adoptee *job = &adoption->jobs[i];
        job->request = 0;
        if (job->from == silent && job->refused.text[0] == '\0')
            cairn_sentence_set(&job->refused, "shard %s does not send its part", silent->name);
    }
    give_question_up(adoption);
    get_next(adoption);
}

void cairn_cluster_adopt_tick(struct cairn_cluster *cluster)
{
    struct cairn_cluster_adoption *adoption = cluster->adoption;
    struct cairn_sentence why;
    if (adoption == NULL || adoption->gather == NULL || // it is being written
        cairn_cluster_now_ms(cluster) - adoption->began_ms < ADOPT_TIMEOUT_MS)
        return;
    if (adoption->asked_count > 0) {
        refuse_silent(adoption);
        return;
    }
    cairn_sentence_set(&why, "adopt again; these shards do not say what they hold: ");
    cairn_cluster_gather_awaited(adoption->gather, &why);
    give_question_up(adoption);
    go_on(adoption, CAIRN_ERR_TIMEOUT, why.text);
}

void cairn_cluster_adopt_close(struct cairn_cluster *cluster)
{
    if (cluster->adoption != NULL) free_adoption(cluster->adoption);
}
