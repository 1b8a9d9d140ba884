/* Workers and readers on their way into a job: the request, the pages of the spec, the wait for the job
 * to be made, and the judgement whether it is the same job. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire/optimizer.h"
#include "server/base/log.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/recovery.h"
#include "server/coordinator/requests.h"
#include "server/coordinator/standing.h"

struct lines {
    struct cairn_sentence *why;
    size_t count;
};
static void add_line(void *context, const char *line)
{
    struct lines *lines = context;
    cairn_sentence_add(lines->why, "%s%s", lines->count++ == 0 ? "" : "\n", line);
}

/* BUSY, at which a client asks again until its deadline: one that died is gone after its lease. */
static cairn_status judge_room(const struct cairn_cluster_member *member,
                               const struct cairn_cluster_job *job, struct cairn_sentence *why)
{
    const uint32_t most = job->spec.workers_max;
    uint32_t others = 0;
    for (const struct cairn_cluster_member *m = job->members; m != NULL; m = m->next_of_job) {
        const bool is_worker = m->role == CAIRN_ROLE_WIRE_WORKER;
        others += is_worker && m->id != member->id && m->rank != member->rank;
    }
    if (most == 0 || others < most) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_BUSY,
                      "job %s has %" PRIu32 " workers, and its workers_max is %" PRIu32
                      ": raise it (`cairn job amend %s --workers MIN:MAX`), or end one",
                      job->spec.name, others, most, job->spec.name);
}

static cairn_status judge_join(const struct cairn_cluster_member *member,
                               struct cairn_cluster_job *job, struct cairn_sentence *why)
{
    const struct cairn_cluster_member *same = cairn_cluster_job_member(job, member->id);
    if (job->state == CAIRN_CLUSTER_JOB_LOST)
        return cairn_fail(why, CAIRN_ERR_JOB_LOST, "%s", job->lost.text);
    if (same != NULL && same->token != member->token) {
        return cairn_fail(why, CAIRN_ERR_REFUSED, "that session number belongs to another member");
    }
    if (same == NULL && job->member_count >= 2 * (uint64_t)job->cluster->options->workers_max) {
        return cairn_fail(why, CAIRN_ERR_BUSY,
                          "job %s has %" PRIu32 " members; raise round.workers_max", job->spec.name,
                          job->member_count);
    }
    if (member->role != CAIRN_ROLE_WIRE_WORKER) return CAIRN_OK;
    if (cairn_spec_joins(&member->spec, &job->spec)) return judge_room(member, job, why);
    cairn_sentence_set(why, "job %s is another one than this spec:\n", job->spec.name);
    struct lines lines = { why, 0 };
    const struct cairn_job_spec_data mine = cairn_spec_with_workers(&member->spec, &job->spec);
    (void)cairn_spec_diff(&mine, &job->spec, CAIRN_MISMATCH_LINES_MAX, add_line, &lines);
    return CAIRN_ERR_MISMATCH;
}

static void refuse(struct cairn_cluster_member *member, cairn_status status, const char *text)
{
    cairn_log_info("refused to open job %s for %s %s: %s", member->job_name,
                   cairn_role_name(member->role), member->session->name, text);
    cairn_cluster_session_error(member->session, member->open_request, status, text);
    cairn_cluster_member_free(member);
}

/* What waits on the same connection goes on waiting; on another one the peer asks again. */
static void take_over(struct cairn_cluster_member *member, struct cairn_cluster_member *same)
{
    if (same->session == member->session) {
        member->init_request = same->init_request;
        member->begin_request = same->begin_request;
        member->write_request = same->write_request;
        member->write_reserves = same->write_reserves;
        member->amend_request = same->amend_request;
        member->amend_waits = same->amend_waits; // moves
        same->amend_waits = NULL;
        member->amend_revision = same->amend_revision;
        member->pause_ends_ms = same->pause_ends_ms;
        memcpy(member->pause, same->pause, sizeof member->pause);
        memcpy(member->commits, same->commits, sizeof member->commits);
        member->commit_count = same->commit_count;
        memcpy(member->waits, same->waits, sizeof member->waits);
        member->wait_count = same->wait_count;
        if (!same->tiles_arriving) member->tiles_request = same->tiles_request;
        member->tiles_world = same->tiles_world;
    }
    member->tiles_declared = same->tiles_declared;
    cairn_cluster_member_free(same);
}

/* A member of a job that is not here any more: it never makes another one of that name. */
static void refuse_another(struct cairn_cluster_member *member)
{
    struct cairn_sentence why;
    cairn_sentence_set(
        &why,
        "the coordinator does not know the job %s that this %s was attached to "
        "(%016" PRIx64 "), and no shard that is here holds it: it was dropped, or the "
        "coordinator runs on another store.path; close it and open it again to begin "
        "a new one",
        member->job_name, cairn_role_name(member->role), member->attached_id);
    refuse(member, CAIRN_ERR_NOT_FOUND, why.text);
}

static void join(struct cairn_cluster_member *member, struct cairn_cluster_job *job)
{
    struct cairn_sentence why;
    if (member->attached_id != 0 && member->attached_id != job->id) {
        refuse_another(member);
        return;
    }
    cairn_status status = judge_join(member, job, &why);
    if (status == CAIRN_OK) {
        member->known_to = calloc(job->layout->shard_count, 2);
        if (member->known_to == NULL) {
            status = cairn_fail(&why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
        }
    }
    if (status != CAIRN_OK) {
        refuse(member, status, why.text);
        return;
    }
    // The same session after a reconnect: the new connection takes its place, nobody else hears.
    struct cairn_cluster_member *same = cairn_cluster_job_member(job, member->id);
    if (same != NULL) take_over(member, same);
    cairn_spec_release(&member->spec);
    member->tiles_known_to = member->known_to + job->layout->shard_count;
    member->phase = CAIRN_MEMBER_JOINING;
    cairn_cluster_job_member_add(job, member);
    cairn_cluster_member_tell_shards(member);
}

/* It wants what there is of the job in the snapshots, and has not been told yet that there is nothing. */
static bool wants_restore(const struct cairn_cluster_member *member)
{
    return member->resumes && member->attached_id == 0 && member->role == CAIRN_ROLE_WIRE_WORKER;
}

/* True if the member is gone; else it waits. */
static bool begin_resume(struct cairn_cluster_member *member)
{
    struct cairn_cluster *cluster = member->session->cluster;
    if (cairn_cluster_seats_up(cluster) < (uint64_t)cluster->options->shards) return false;
    if (cairn_cluster_resume_begin(cluster, member->job_name)) return false;
    refuse(member, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    return true;
}

/* True if the member moved on (or is gone). */
static bool advance(struct cairn_cluster_member *member)
{
    struct cairn_cluster *cluster = member->session->cluster;
    struct cairn_cluster_job *job = cairn_cluster_job_find(cluster, member->job_name);
    struct cairn_sentence why;
    if (job != NULL) {
        if (job->state == CAIRN_CLUSTER_JOB_CREATING || cairn_cluster_extend_making(job) ||
            job->behind || cairn_cluster_recovery_pending(job))
            return false;
        const bool lost = job->state == CAIRN_CLUSTER_JOB_LOST; // also if its parts may return
        if (lost && wants_restore(member)) return begin_resume(member);
        join(member, job);
        return true;
    }
    if (cairn_cluster_job_is_strange(cluster, member->job_name, &why)) return false;
    if (member->role != CAIRN_ROLE_WIRE_WORKER) {
        cairn_sentence_set(&why, "there is no job %s", member->job_name);
        refuse(member, CAIRN_ERR_NOT_FOUND, why.text);
        return true;
    }
    if (cairn_cluster_seats_up(cluster) < (uint64_t)cluster->options->shards) return false;
    if (member->attached_id != 0) {
        refuse_another(member);
        return true;
    }
    if (wants_restore(member)) return begin_resume(member);
    if (cairn_cluster_resuming(cluster, member->job_name))
        return false; // for others, and so for it
    if (member->must_exist) {
        cairn_sentence_set(&why,
                           "there is no job %s, and must_exist begins none; `cairn job list`, "
                           "`cairn snapshot list`",
                           member->job_name);
        refuse(member, CAIRN_ERR_NOT_FOUND, why.text);
        return true;
    }
    const cairn_status status = cairn_cluster_job_create(cluster, &member->spec, &why);
    if (status != CAIRN_OK) refuse(member, status, why.text);
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
    cluster->advance_again = true;
    if (cluster->advancing || cluster->closing) return;
    cluster->advancing = true;
    while (cluster->advance_again) {
        cluster->advance_again = false;
        while (advance_any(cluster)) {}
    }
    cluster->advancing = false;
}

void cairn_cluster_job_openers_fail(struct cairn_cluster *cluster, const char *name,
                                    cairn_status status, const char *text)
{
    for (struct cairn_cluster_session *s = cluster->sessions; s != NULL; s = s->next) {
        struct cairn_cluster_member *m = s->members;
        while (m != NULL) {
            struct cairn_cluster_member *next = m->next_of_session;
            if (m->phase == CAIRN_MEMBER_WAITING && strcmp(m->job_name, name) == 0) {
                refuse(m, status, text);
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
            if (m->phase == CAIRN_MEMBER_WAITING && m->resumes && strcmp(m->job_name, name) == 0) {
                m->resumes = false;
                if (status != CAIRN_OK) refuse(m, status, text);
            }
            m = next;
        }
    }
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
    member->attached_id = open->attached;
    member->launch = open->world;
    member->start_wait_ms = open->start_wait_ms;
    member->must_exist = open->must_exist;
    member->resumes = open->resume_latest;
    member->open_request = request;
    cairn_spec_init(&member->spec);
    member->next_of_session = session->members;
    session->members = member;
    session->member_count++;
    member->phase = open->spec_bytes > 0 ? CAIRN_MEMBER_PAGES : CAIRN_MEMBER_WAITING;
    status = cairn_paged_init(&member->pages, open->spec_bytes);
    if (status != CAIRN_OK) {
        refuse(member, status, "the spec is larger than a coordinator takes (64 MiB)");
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
    const cairn_status status = cairn_spec_unpack(member->pages.bytes, member->pages.have_bytes,
                                                  cairn_optimizer_names(), &spec, why);
    if (status != CAIRN_OK) return status;
    cairn_paged_release(&member->pages);
    member->spec = spec;
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
    cairn_status status = page->what == CAIRN_PAGE_SPEC ? cairn_paged_add(&member->pages, page)
                                                        : CAIRN_ERR_PROTOCOL;
    if (status != CAIRN_OK) {
        refuse(member, status, "the pages of the spec do not follow each other");
        return;
    }
    if (!cairn_paged_whole(&member->pages)) return;
    status = take_spec(member, &why);
    if (status != CAIRN_OK) {
        refuse(member, status, why.text);
        return;
    }
    member->phase = CAIRN_MEMBER_WAITING;
    cairn_cluster_openings_advance(session->cluster);
}
