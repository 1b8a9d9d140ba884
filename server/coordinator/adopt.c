/* A store rebuilt from the shards: each says what it holds; what is whole and agrees is written to the
 * store in one transaction, with a new identity and with numbers above all that the shards have seen. They
 * keep that identity, and connect anew: the ordinary path (fence, answers, outcome) does the rest. */
#include "server/coordinator/adopt.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire/optimizer.h"
#include "server/base/log.h"
#include "server/base/pool.h"
#include "server/coordinator/standing.h"
#include "server/coordinator/works.h"

#define ADOPT_TIMEOUT_MS 30000

/* A job that is to be adopted; what points into parts is good until the next HeldJobs. */
struct adoptee {
    Cairn__HeldJob *best;            /* borrowed: of the newest spec */
    struct cairn_cluster_seat *from; /* who has it */
    struct cairn_marks marks;        /* the highest of all */
    uint64_t generation, version_generation, step;
    struct cairn_sentence refused; /* empty: it is whole */
    /* owned */
    char *name;
    const char **shards; /* [shard_count]: names, borrowed of the seats */
    uint32_t shard_count;
    struct cairn_paged spec, layout;
    uint64_t id, base_step;
    uint32_t request; /* of its PartGet */
    bool here;        /* its pages are */
};

struct cairn_cluster_adoption {
    struct cairn_task task;
    struct cairn_cluster *cluster;
    struct cairn_cluster_waiter *waiter;
    bool plan, writing;
    uint64_t began_ms;
    struct adoptee *jobs; /* owned: [job_count] */
    size_t job_count;
    struct cairn_stored_job *rows; /* owned: [row_count] */
    size_t row_count;
    uint64_t incarnation;
    cairn_status status;
    struct cairn_sentence why;
};

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

static void fail(struct cairn_cluster_adoption *adoption, cairn_status status, const char *text)
{
    cairn_log_warn("nothing was adopted: %s", text);
    cairn_cluster_waiters_fail(&adoption->waiter, status, text);
    free_adoption(adoption);
}

/* What is adopted, or would be. */
static void answer(struct cairn_cluster_adoption *adoption)
{
    Cairn__ClusterAdopted message = CAIRN__CLUSTER_ADOPTED__INIT;
    Cairn__AdoptedJob *jobs = calloc(adoption->job_count + 1, sizeof *jobs);
    Cairn__AdoptedJob **list = calloc(adoption->job_count + 1, sizeof *list);
    if (jobs == NULL || list == NULL) {
        free(jobs);
        free(list);
        fail(adoption, CAIRN_ERR_NO_MEMORY, "no memory");
        return;
    }
    for (size_t i = 0; i < adoption->job_count; i++) {
        struct adoptee *job = &adoption->jobs[i];
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

/* ---- the plan ---- */

/* Parts of one job on all shards that are here. */
typedef void (*part_fn)(struct adoptee *job, struct cairn_cluster_seat *seat, Cairn__HeldJob *part);
static void each_part(struct cairn_cluster *cluster, struct adoptee *job, part_fn take)
{
    for (struct cairn_cluster_seat *s = cluster->seats; s != NULL; s = s->next)
        for (size_t i = 0; s->session != NULL && s->parts != NULL && i < s->parts->n_held; i++)
            if (s->parts->held[i]->job == job->id) take(job, s, s->parts->held[i]);
}

static void take_marks(struct adoptee *job, struct cairn_cluster_seat *seat, Cairn__HeldJob *part)
{
    const struct cairn_marks seen = cairn_cluster_held_marks(part);
    (void)seat;
    cairn_marks_add(&job->marks, &seen);
    if (part->version_generation > job->marks.generation)
        job->marks.generation = part->version_generation;
    if (part->staged || part->unsettled || part->generation < job->generation) return;
    job->generation = part->generation;
}

static void refuse(struct adoptee *job, const char *text, const char *shard)
{
    if (job->refused.text[0] == '\0') cairn_sentence_set(&job->refused, "%s: %s", shard, text);
}

static void take_part(struct adoptee *job, struct cairn_cluster_seat *seat, Cairn__HeldJob *part)
{
    if (part->generation != job->generation || part->staged) return;
    if (job->shards == NULL) {
        if (part->shard_count == 0 || part->shard_count > CAIRN_SEATS_MAX) return;
        job->shards = calloc(part->shard_count, sizeof *job->shards);
        job->shard_count = job->shards == NULL ? 0 : part->shard_count;
        job->best = part;
        job->from = seat;
        job->base_step = part->base_step;
        job->version_generation = part->version_generation;
        job->step = part->version_step;
    }
    const Cairn__HeldJob *best = job->best;
    const bool same_spec = part->spec_hash.len == best->spec_hash.len &&
                           memcmp(part->spec_hash.data, best->spec_hash.data,
                                  part->spec_hash.len) == 0;
    const uint64_t apart = part->version_step > job->step ? part->version_step - job->step
                                                          : job->step - part->version_step;
    if (!part->serving || part->unsettled)
        refuse(job, "its part was never complete", seat->name);
    else if (part->layout_hash != best->layout_hash || part->shard_count != job->shard_count ||
             part->shard_index >= job->shard_count || part->base_step != job->base_step)
        refuse(job, "its part is of another layout", seat->name);
    else if (part->revision == best->revision && !same_spec)
        refuse(job, "it has another spec of the same revision", seat->name);
    else if (apart > 1)
        refuse(job, "its part is more than one step apart from the others", seat->name);
    else if (job->shards[part->shard_index] != NULL)
        refuse(job, "another shard holds the same part", seat->name);
    else
        job->shards[part->shard_index] = seat->name;
    if (part->revision > best->revision) {
        job->best = part;
        job->from = seat;
    }
    if (part->version_step > job->step) job->step = part->version_step;
    if (part->version_generation > job->version_generation)
        job->version_generation = part->version_generation;
}

/* Names once: in the store, and among those before. */
static void judge_name(struct cairn_cluster_adoption *adoption, struct adoptee *job)
{
    const struct cairn_cluster_job *other = cairn_cluster_job_find(adoption->cluster, job->name);
    bool twice = other != NULL && other->id != job->id;
    for (const struct adoptee *j = adoption->jobs; j < job; j++)
        twice |= j->refused.text[0] == '\0' && strcmp(j->name, job->name) == 0;
    if (twice) refuse(job, "there is another job of that name", job->name);
}

static void judge_job(struct cairn_cluster_adoption *adoption, struct adoptee *job)
{
    struct cairn_cluster_job *known = cairn_cluster_job_by_id(adoption->cluster, job->id);
    each_part(adoption->cluster, job, take_marks);
    each_part(adoption->cluster, job, take_part);
    if (known != NULL) {
        const struct cairn_marks ours = cairn_cluster_job_marks(known);
        cairn_marks_add(&job->marks, &ours);
        if (known->generation > job->generation)
            refuse(job, "the store has a newer generation of it", job->name);
        if (known->cut != NULL || known->extension != NULL || known->amending != NULL ||
            known->state == CAIRN_CLUSTER_JOB_CREATING)
            refuse(job, "it is being saved, amended or made: adopt again when that has ended",
                   job->name);
    }
    if (job->shards == NULL) refuse(job, "no part of it was ever finished", job->name);
    for (uint32_t i = 0; i < job->shard_count && job->refused.text[0] == '\0'; i++)
        if (job->shards[i] == NULL)
            cairn_sentence_set(&job->refused,
                               "part %" PRIu32 " of %" PRIu32 " is on no shard that is here", i + 1,
                               job->shard_count);
    judge_name(adoption, job);
    // Each incarnation may have skipped a block of which no shard heard a round.
    cairn_marks_above(&job->marks, (adoption->incarnation + 1) * CAIRN_ROUND_BLOCK);
}

static void take_incarnations(struct cairn_cluster_adoption *adoption)
{
    adoption->incarnation = cairn_store_incarnation(adoption->cluster->store);
    for (const struct cairn_cluster_seat *s = adoption->cluster->seats; s != NULL; s = s->next)
        if (s->seen.incarnation > adoption->incarnation)
            adoption->incarnation = s->seen.incarnation;
}

/* A job of which somebody holds a part that we do not act on. */
static cairn_status list_jobs(struct cairn_cluster_adoption *adoption)
{
    struct cairn_cluster_strangers strangers;
    if (!cairn_cluster_strangers_init(&strangers, adoption->cluster)) return CAIRN_ERR_NO_MEMORY;
    adoption->jobs = calloc(strangers.count + 1, sizeof *adoption->jobs);
    cairn_status status = adoption->jobs == NULL ? CAIRN_ERR_NO_MEMORY : CAIRN_OK;
    for (size_t i = 0; i < strangers.count && status == CAIRN_OK; i++) {
        const Cairn__HeldJob *part = strangers.list[i]->part;
        size_t at = 0;
        while (at < adoption->job_count && adoption->jobs[at].id != part->job) at++;
        if (at < adoption->job_count) continue;
        adoption->jobs[at].id = part->job;
        adoption->jobs[at].name = strdup(part->name);
        adoption->job_count++;
        if (adoption->jobs[at].name == NULL) status = CAIRN_ERR_NO_MEMORY;
    }
    cairn_cluster_strangers_release(&strangers);
    take_incarnations(adoption);
    for (size_t i = 0; i < adoption->job_count && status == CAIRN_OK; i++)
        judge_job(adoption, &adoption->jobs[i]);
    return status;
}

/* ---- it is written ---- */

static void run_write(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    struct cairn_cluster_adoption *adoption = (struct cairn_cluster_adoption *)task;
    (void)item;
    (void)thread;
    adoption->status = cairn_store_adopt(adoption->cluster->store, adoption->rows,
                                         adoption->row_count, adoption->incarnation,
                                         &adoption->why);
}

/* What was known of it was older. Its members come again. */
static void reload(struct cairn_cluster *cluster, const struct cairn_stored_job *row)
{
    struct cairn_cluster_job *old = cairn_cluster_job_by_id(cluster, row->id);
    struct cairn_sentence why;
    while (old != NULL && old->members != NULL) {
        struct cairn_cluster_session *session = old->members->session;
        cairn_cluster_member_free(old->members);
        if (session->closing) continue;
        session->closing = true;
        cairn_peer_finish(session->peer, CAIRN_ERR_CLOSED, "job %s was adopted", row->name);
    }
    if (old != NULL) {
        cairn_cluster_cut_abort(old, "it was adopted");
        cairn_cluster_job_unlink(old);
        cairn_cluster_job_free(old);
    }
    const cairn_status status = cairn_cluster_job_load(cluster, row, &why);
    if (status != CAIRN_OK)
        cairn_log_error("job %s is in the store, but was not loaded: %s; start again", row->name,
                        why.text);
}

/* Each keeps the new identity, and connects anew. */
static void tell_shards(struct cairn_cluster *cluster)
{
    Cairn__StoreAdopted adopted = CAIRN__STORE_ADOPTED__INIT;
    adopted.store = cluster->id.store;
    adopted.incarnation = cluster->id.incarnation;
    for (struct cairn_cluster_seat *s = cluster->seats; s != NULL; s = s->next) {
        if (s->session == NULL || s->session->closing) continue;
        cairn_cluster_session_send(s->session, CAIRN_MSG_STORE_ADOPTED, 0, &adopted.base);
        s->session->closing = true;
        cairn_peer_finish(s->session->peer, CAIRN_ERR_CLOSED, "the store was rebuilt");
    }
}

static void on_written(struct cairn_task *task)
{
    struct cairn_cluster_adoption *adoption = (struct cairn_cluster_adoption *)task;
    struct cairn_cluster *cluster = adoption->cluster;
    if (cluster->closing) return; // freed with the cluster
    adoption->writing = false;
    if (adoption->status != CAIRN_OK) {
        fail(adoption, adoption->status, adoption->why.text);
        return;
    }
    cluster->id.store = cairn_store_identity(cluster->store);
    cluster->id.incarnation = cairn_store_incarnation(cluster->store);
    cairn_log_warn("%zu jobs were adopted: this is store %016" PRIx64 " (start %" PRIu64
                   ") now, and no other is obeyed by these shards",
                   adoption->row_count, cluster->id.store, cluster->id.incarnation);
    for (size_t i = 0; i < adoption->row_count; i++) reload(cluster, &adoption->rows[i]);
    tell_shards(cluster);
    answer(adoption);
    cairn_cluster_openings_advance(cluster);
}

/* The pages are what the shard said that it has. */
static cairn_status judge_pages(const struct adoptee *job, struct cairn_sentence *why)
{
    struct cairn_job_spec_data spec;
    cairn_status status = cairn_spec_unpack(job->spec.bytes, job->spec.have_bytes,
                                            cairn_optimizer_names(), &spec, why);
    if (status != CAIRN_OK) return status;
    if (strcmp(spec.name, job->name) != 0)
        status = cairn_fail(why, CAIRN_ERR_MISMATCH, "job %s: its spec is of job %s", job->name,
                            spec.name);
    cairn_spec_release(&spec);
    return status;
}

static void write_rows(struct cairn_cluster_adoption *adoption)
{
    struct cairn_sentence why = { "no memory" };
    adoption->rows = calloc(adoption->job_count + 1, sizeof *adoption->rows);
    cairn_status status = adoption->rows == NULL ? CAIRN_ERR_NO_MEMORY : CAIRN_OK;
    for (size_t i = 0; i < adoption->job_count && status == CAIRN_OK; i++) {
        const struct adoptee *job = &adoption->jobs[i];
        if (job->refused.text[0] != '\0') continue;
        status = judge_pages(job, &why);
        adoption->rows[adoption->row_count++] =
            (struct cairn_stored_job) { .name = job->name,
                                        .spec = job->spec.bytes,
                                        .spec_bytes = job->spec.have_bytes,
                                        .layout = job->layout.bytes,
                                        .layout_bytes = job->layout.have_bytes,
                                        .shards = job->shards,
                                        .shard_count = job->shard_count,
                                        .id = job->id,
                                        .generation = job->generation,
                                        .generation_reserved = job->marks.generation,
                                        .epoch = job->marks.epoch,
                                        .round_reserved = job->marks.round,
                                        .base_step = job->base_step,
                                        .initialized = true };
    }
    if (status != CAIRN_OK) {
        fail(adoption, status, why.text);
        return;
    }
    adoption->writing = true;
    adoption->task = (struct cairn_task) { .run = run_write, .done = on_written, .item_count = 1 };
    cairn_pool_submit(adoption->cluster->saver, &adoption->task);
}

/* ---- their specs and layouts ---- */

static struct adoptee *find_request(struct cairn_cluster_session *session, uint32_t request)
{
    struct cairn_cluster_adoption *adoption = session->cluster->adoption;
    for (size_t i = 0; adoption != NULL && i < adoption->job_count; i++) {
        struct adoptee *job = &adoption->jobs[i];
        if (job->request == request && request != 0 && job->from == session->seat && !job->here)
            return job;
    }
    return NULL;
}

void cairn_cluster_adopt_on_part(struct cairn_cluster_session *session, uint32_t request,
                                 const Cairn__Part *part)
{
    struct adoptee *job = find_request(session, request);
    if (job == NULL) return;
    cairn_paged_release(&job->spec);
    cairn_paged_release(&job->layout);
    if (part->spec_bytes == 0 || part->layout_bytes == 0 ||
        cairn_paged_init(&job->spec, part->spec_bytes) != CAIRN_OK ||
        cairn_paged_init(&job->layout, part->layout_bytes) != CAIRN_OK)
        fail(session->cluster->adoption, CAIRN_ERR_MALFORMED, "a part without a spec or a layout");
}

void cairn_cluster_adopt_on_page(struct cairn_cluster_session *session, uint32_t request,
                                 const Cairn__Page *page)
{
    struct cairn_cluster_adoption *adoption = session->cluster->adoption;
    struct adoptee *job = find_request(session, request);
    if (job == NULL) return;
    struct cairn_paged *paged = page->what == CAIRN_PAGE_SPEC ? &job->spec : &job->layout;
    if (cairn_paged_add(paged, page) != CAIRN_OK) {
        fail(adoption, CAIRN_ERR_PROTOCOL, "the pages of a part do not follow each other");
        return;
    }
    if (job->spec.total_bytes == 0 || !cairn_paged_whole(&job->spec) ||
        !cairn_paged_whole(&job->layout))
        return;
    job->here = true;
    for (size_t i = 0; i < adoption->job_count; i++)
        if (adoption->jobs[i].refused.text[0] == '\0' && !adoption->jobs[i].here) return;
    write_rows(adoption);
}

static void on_told(void *context, cairn_status status, const char *why)
{
    struct cairn_cluster *cluster = context;
    struct cairn_cluster_adoption *adoption = cluster->adoption;
    size_t whole = 0;
    if (adoption == NULL || cluster->closing) return;
    if (status == CAIRN_OK) status = list_jobs(adoption);
    if (status != CAIRN_OK) {
        fail(adoption, status, why);
        return;
    }
    for (size_t i = 0; i < adoption->job_count; i++)
        whole += adoption->jobs[i].refused.text[0] == '\0';
    if (adoption->plan || whole == 0) {
        answer(adoption);
        return;
    }
    for (size_t i = 0; i < adoption->job_count; i++) {
        struct adoptee *job = &adoption->jobs[i];
        if (job->refused.text[0] != '\0') continue;
        Cairn__PartGet get = CAIRN__PART_GET__INIT;
        if (++cluster->next_request == 0) cluster->next_request = 1;
        job->request = cluster->next_request;
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
    fail(adoption, CAIRN_ERR_TIMEOUT, "a shard did not say what it holds; adopt again");
}

void cairn_cluster_adopt_close(struct cairn_cluster *cluster)
{
    if (cluster->adoption != NULL) free_adoption(cluster->adoption);
}
