/* Workers and readers on their way into a job: the request, the pages of the spec, the wait for the job to be
 * made or restored; join.c is next. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/optimizer.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/job/first.h"
#include "server/coordinator/job/jobs.h"
#include "server/coordinator/member/seats.h"
#include "server/coordinator/restore/resume.h"

/* A member of a job that is not here any more: it never makes another one of that name. */
static void refuse_another(struct cairn_cluster_member *member)
{
    struct cairn_sentence why;
    cairn_sentence_set(
        &why,
        "the coordinator does not know the job %s that this %s was attached to (%016" PRIx64
        "), and no shard that is here holds it: it was dropped, or the coordinator runs on another "
        "store.path; close it and open it again to begin a new one",
        member->job_name, cairn_role_name(member->role), member->opening.attached_id);
    cairn_cluster_opening_refuse(member, CAIRN_ERR_NOT_FOUND, why.text);
}

/* It wants what there is of the job in the snapshots, and has not been told yet that there is nothing. */
static bool wants_restore(const struct cairn_cluster_member *member)
{
    return member->opening.resumes && member->opening.attached_id == 0 &&
           member->role == CAIRN_ROLE_WIRE_WORKER;
}

/* True if the member is gone; else it waits. */
static bool begin_resume(struct cairn_cluster_member *member)
{
    struct cairn_cluster *cluster = member->session->cluster;
    if (cairn_cluster_resume_begin(cluster, member->job_name)) return false;
    cairn_cluster_opening_refuse(member, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    return true;
}

/* True if the member moved on (or is gone). */
static bool advance(struct cairn_cluster_member *member)
{
    struct cairn_cluster *cluster = member->session->cluster;
    struct cairn_cluster_job *job = cairn_cluster_job_find(cluster, member->job_name);
    struct cairn_sentence why;
    if (job != NULL) {
        if (job->state == CAIRN_CLUSTER_JOB_CREATING || job->extension.making || job->loss.behind ||
            cairn_cluster_recovery_pending(job))
            return false;
        const bool lost = job->state == CAIRN_CLUSTER_JOB_LOST; // also if its parts may return
        if (lost && wants_restore(member))
            return cairn_cluster_seats_staying(cluster, false) >=
                       cairn_cluster_recovery_shards(job) &&
                   begin_resume(member);
        if (member->opening.attached_id != 0 && member->opening.attached_id != job->id)
            refuse_another(member);
        else
            cairn_cluster_opening_join(member, job);
        return true;
    }
    if (cairn_cluster_job_is_strange(cluster, member->job_name, &why)) return false;
    if (member->role != CAIRN_ROLE_WIRE_WORKER) {
        cairn_sentence_set(&why, "there is no job %s; `cairn job list` shows those there are",
                           member->job_name);
        cairn_cluster_opening_refuse(member, CAIRN_ERR_NOT_FOUND, why.text);
        return true;
    }
    if (cairn_cluster_seats_up(cluster) < (uint64_t)cluster->options->shards) return false;
    if (member->opening.attached_id != 0) {
        refuse_another(member);
        return true;
    }
    if (wants_restore(member)) return begin_resume(member);
    if (cairn_cluster_resuming(cluster, member->job_name))
        return false; // for others, and so for it
    if (member->opening.must_exist) {
        cairn_sentence_set(&why,
                           "there is no job %s, and must_exist begins none; `cairn job list`, "
                           "`cairn snapshot list`",
                           member->job_name);
        cairn_cluster_opening_refuse(member, CAIRN_ERR_NOT_FOUND, why.text);
        return true;
    }
    uint64_t generation;
    if (!cairn_cluster_first_generation(cluster, member->job_name, &generation)) return false;
    const cairn_status status = cairn_cluster_job_create(cluster, &member->opening.spec, generation,
                                                         &why);
    if (status != CAIRN_OK) cairn_cluster_opening_refuse(member, status, why.text);
    return status != CAIRN_OK;
}

static bool advance_any(struct cairn_cluster *cluster)
{
    for (struct cairn_cluster_session *s = cluster->sessions; s != NULL; s = s->next) {
        if (s->closing) continue;
        for (struct cairn_cluster_member *m = s->members; m != NULL; m = m->next_of_session) {
            if (m->phase == CAIRN_MEMBER_WAITING && advance(m)) return true;
        }
    }
    return false;
}

void cairn_cluster_openings_advance(struct cairn_cluster *cluster)
{
    cluster->openings.again = true;
    if (cluster->openings.advancing || cluster->closing) return;
    cluster->openings.advancing = true;
    while (cluster->openings.again) {
        cluster->openings.again = false;
        while (advance_any(cluster)) {}
    }
    cluster->openings.advancing = false;
}

void cairn_cluster_job_openers_fail(struct cairn_cluster *cluster, const char *name,
                                    cairn_status status, const char *text)
{
    for (struct cairn_cluster_session *s = cluster->sessions; s != NULL; s = s->next) {
        struct cairn_cluster_member *m = s->members;
        while (m != NULL) {
            struct cairn_cluster_member *next = m->next_of_session;
            if (m->phase == CAIRN_MEMBER_WAITING && strcmp(m->job_name, name) == 0) {
                cairn_cluster_opening_refuse(m, status, text);
            }
            m = next;
        }
    }
}

void cairn_cluster_openers_resumed(struct cairn_cluster *cluster, const char *name,
                                   cairn_status status, const char *text)
{
    for (struct cairn_cluster_session *s = cluster->sessions; s != NULL; s = s->next) {
        struct cairn_cluster_member *m = s->members;
        while (m != NULL) {
            struct cairn_cluster_member *next = m->next_of_session;
            if (m->phase == CAIRN_MEMBER_WAITING && m->opening.resumes &&
                strcmp(m->job_name, name) == 0) {
                m->opening.resumes = false;
                if (status != CAIRN_OK) cairn_cluster_opening_refuse(m, status, text);
            }
            m = next;
        }
    }
}

/* The first member of the session that waits for what there is of the job; NULL: none. */
static struct cairn_cluster_member *find_resuming(struct cairn_cluster_member *m, const char *name)
{
    while (m != NULL && (m->phase != CAIRN_MEMBER_WAITING || !wants_restore(m) ||
                         strcmp(m->job_name, name) != 0))
        m = m->next_of_session;
    return m;
}

cairn_status cairn_cluster_openers_judge(struct cairn_cluster *cluster,
                                         const struct cairn_job_spec_data *saved,
                                         struct cairn_sentence *why)
{
    size_t refused = 0, kept = 0;
    for (struct cairn_cluster_session *s = cluster->sessions; s != NULL; s = s->next) {
        struct cairn_cluster_member *m = find_resuming(s->members, saved->name), *next;
        for (; m != NULL; m = next) {
            next = find_resuming(m->next_of_session, saved->name);
            if (cairn_spec_joins(&m->opening.spec, saved)) {
                kept++;
                continue;
            }
            cairn_sentence_set(why, "the snapshot of job %s is of another one than this spec:\n",
                               saved->name);
            cairn_cluster_opening_refuse(m, cairn_cluster_opening_differences(m, saved, why),
                                         why->text);
            refused++;
        }
    }
    return refused > 0 && kept == 0 ? CAIRN_ERR_MISMATCH : CAIRN_OK;
}

static cairn_status judge_open(const struct cairn_cluster_session *session,
                               const Cairn__JobOpen *open, struct cairn_sentence *why)
{
    const bool worker = open->role == CAIRN_ROLE_WIRE_WORKER;
    uint32_t arriving = 0;
    for (const struct cairn_cluster_member *m = session->members; m != NULL;
         m = m->next_of_session) {
        arriving += m->phase == CAIRN_MEMBER_PAGES;
    }
    // Not BUSY, at which a client asks again until its deadline: only its own cairn_job_close can help.
    if (session->member_count >= CAIRN_SESSION_MEMBERS_MAX) {
        return cairn_fail(why, CAIRN_ERR_REFUSED,
                          "%" PRIu32 " jobs are open on this connection, which are the most: close "
                          "one, or open this one in another session",
                          session->member_count);
    }
    if (arriving >= CAIRN_SESSION_PAGED_MAX) {
        return cairn_fail(why, CAIRN_ERR_BUSY,
                          "%" PRIu32 " specs are on their way on this connection already",
                          arriving);
    }
    if (!cairn_job_name_ok(open->name)) {
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "a job's name has letters, digits, '.', '_' and '-' only, and does not "
                          "begin with '.' or '-'");
    }
    if (!worker && open->role != CAIRN_ROLE_WIRE_READER) {
        return cairn_fail(why, CAIRN_ERR_INVALID, "a job is opened by a worker or a reader");
    }
    if (worker && session->role != CAIRN_ROLE_WIRE_WORKER) {
        return cairn_fail(why, CAIRN_ERR_REFUSED, "a reader cannot become a worker");
    }
    if (open->session == 0) return cairn_fail(why, CAIRN_ERR_INVALID, "a session number is not 0");
    if (worker != (open->spec_bytes > 0)) {
        return cairn_fail(why, CAIRN_ERR_INVALID, "a worker sends its spec, a reader does not");
    }
    return CAIRN_OK;
}

/* A member of that identity on this connection that is not in a job: its newer request stands. */
static void drop_stale(struct cairn_cluster_session *session, const Cairn__JobOpen *open)
{
    struct cairn_cluster_member *m = session->members;
    while (m != NULL) {
        struct cairn_cluster_member *next = m->next_of_session;
        if (m->id == open->session && m->job == NULL && strcmp(m->job_name, open->name) == 0) {
            cairn_cluster_member_free(m);
        }
        m = next;
    }
}

void cairn_cluster_member_open(struct cairn_cluster_session *session, uint32_t request,
                               const Cairn__JobOpen *open)
{
    struct cairn_sentence why;
    drop_stale(session, open);
    cairn_status status = judge_open(session, open, &why);
    struct cairn_cluster_member *member = status == CAIRN_OK ? calloc(1, sizeof *member) : NULL;
    if (member != NULL && (member->job_name = strdup(open->name)) == NULL) {
        free(member);
        member = NULL;
    }
    if (member == NULL) {
        if (status == CAIRN_OK) status = cairn_fail(&why, CAIRN_ERR_NO_MEMORY, "no memory");
        cairn_cluster_session_error(session, request, status, why.text);
        return;
    }
    member->session = session;
    member->id = open->session;
    member->token = open->token;
    member->role = open->role;
    member->rank = open->rank;
    member->opening.attached_id = open->attached;
    member->opening.launch = open->world;
    member->opening.start_wait_ms = open->start_wait_ms;
    member->opening.must_exist = open->must_exist;
    member->opening.resumes = open->resume_latest;
    member->open_request = request;
    cairn_spec_init(&member->opening.spec);
    member->next_of_session = session->members;
    session->members = member;
    session->member_count++;
    member->phase = open->spec_bytes > 0 ? CAIRN_MEMBER_PAGES : CAIRN_MEMBER_WAITING;
    status = cairn_paged_init(&member->opening.pages, open->spec_bytes);
    if (status != CAIRN_OK) {
        cairn_cluster_opening_refuse(member, status,
                                     "the spec is larger than a coordinator takes (64 MiB)");
        return;
    }
    if (member->phase == CAIRN_MEMBER_WAITING) cairn_cluster_openings_advance(session->cluster);
}

cairn_status cairn_cluster_judge_workers(const struct cairn_cluster *cluster,
                                         const struct cairn_job_spec_data *spec,
                                         struct cairn_sentence *why)
{
    const int64_t most = cluster->options->workers_max;
    const bool is_max = spec->workers_max > most;
    if (spec->workers_min <= most && !is_max) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_INVALID,
                      "workers_%s is %" PRIu32 ", this cluster allows %" PRId64
                      " workers; raise round.workers_max",
                      is_max ? "max" : "min", is_max ? spec->workers_max : spec->workers_min, most);
}

static cairn_status take_spec(struct cairn_cluster_member *member, struct cairn_sentence *why)
{
    struct cairn_job_spec_data spec;
    const cairn_status status = cairn_spec_unpack(member->opening.pages.bytes,
                                                  member->opening.pages.have_bytes,
                                                  cairn_optimizer_names(), &spec, why);
    if (status != CAIRN_OK) return status;
    cairn_paged_release(&member->opening.pages);
    member->opening.spec = spec;
    if (strcmp(spec.name, member->job_name) != 0) {
        return cairn_fail(why, CAIRN_ERR_INVALID, "the spec is of job %s, the request of job %s",
                          spec.name, member->job_name);
    }
    return cairn_cluster_judge_workers(member->session->cluster, &spec, why);
}

void cairn_cluster_member_page(struct cairn_cluster_session *session, uint32_t request,
                               const Cairn__Page *page)
{
    struct cairn_cluster_member *member = session->members;
    while (member != NULL &&
           (member->phase != CAIRN_MEMBER_PAGES || member->open_request != request)) {
        member = member->next_of_session;
    }
    if (member == NULL) return; // of a request that was refused: the rest of its pages
    struct cairn_sentence why;
    cairn_status status = page->what == CAIRN_PAGE_SPEC
                              ? cairn_paged_add(&member->opening.pages, page)
                              : CAIRN_ERR_PROTOCOL;
    if (status != CAIRN_OK) {
        cairn_cluster_opening_refuse(member, status,
                                     "the pages of the spec do not follow each other");
        return;
    }
    if (!cairn_paged_whole(&member->opening.pages)) return;
    status = take_spec(member, &why);
    if (status != CAIRN_OK) {
        cairn_cluster_opening_refuse(member, status, why.text);
        return;
    }
    member->phase = CAIRN_MEMBER_WAITING;
    cairn_cluster_openings_advance(session->cluster);
}
