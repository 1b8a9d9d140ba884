/* Handles what workers and readers send. */
#include <inttypes.h>

#include "proto/spec/optimizer.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cuts.h"
#include "server/coordinator/handlers.h"
#include "server/coordinator/job/bytes.h"
#include "server/coordinator/member/relapse.h"
#include "server/coordinator/member/seats.h"
#include "server/coordinator/member/unheard.h"
#include "server/coordinator/restore/resume.h"

/* The member that a request is of; without one it is answered here. */
static struct cairn_cluster_member *attached(struct cairn_cluster_session *session,
                                             uint32_t request, uint64_t job_id)
{
    struct cairn_cluster_member *member = cairn_cluster_member_find(session, job_id);
    if (member == NULL || member->phase != CAIRN_MEMBER_ATTACHED) {
        cairn_cluster_session_error(session, request, CAIRN_ERR_NOT_READY,
                                    "the job is not open on this connection: open it first");
        return NULL;
    }
    return member;
}

static struct cairn_cluster_member *attached_worker(struct cairn_cluster_session *session,
                                                    uint32_t request, uint64_t job_id)
{
    struct cairn_cluster_member *member = attached(session, request, job_id);
    if (member == NULL || member->role == CAIRN_ROLE_WIRE_WORKER) return member;
    cairn_cluster_session_error(session, request, CAIRN_ERR_REFUSED,
                                "a reader contributes to no round");
    return NULL;
}

static void on_init_done(struct cairn_cluster_session *session, uint32_t request,
                         const Cairn__InitDone *message)
{
    struct cairn_cluster_member *member = attached_worker(session, request, message->job);
    if (member != NULL) cairn_cluster_member_init_done(member, request, message);
}

static void on_round_begin(struct cairn_cluster_session *session, uint32_t request,
                           const Cairn__RoundBegin *message)
{
    struct cairn_cluster_member *member = attached_worker(session, request, message->job);
    if (member == NULL) return;
    member->begin_request = request;
    cairn_cluster_tiles_begins(member);
    const struct cairn_round_event begin = { .kind = CAIRN_ROUND_WORKER_BEGIN,
                                             .member = member->id };
    cairn_cluster_job_event(member->job, &begin);
}

/* Checks the learning rates that a commit brings for driven groups. A bad one is refused here,
 * so that the round goes on without this commit. */
static cairn_status judge_driven(const struct cairn_cluster_job *job,
                                 const Cairn__RoundCommit *message, struct cairn_sentence *why)
{
    const struct cairn_round_terms *terms = cairn_round_terms_of(job->core);
    if (message->n_driven != job->spec.group_count)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "job %s has driven groups: a commit brings a learning rate for each of "
                          "its %zu groups, this one brings %zu",
                          job->spec.name, job->spec.group_count, message->n_driven);
    for (size_t g = 0; g < job->spec.group_count; g++) {
        struct cairn_group_hyper hyper = terms->groups[g];
        hyper.lr = message->driven[g];
        if (terms->schedules[g].kind != CAIRN_SCHEDULE_DRIVEN ||
            cairn_group_hyper_check(&hyper, NULL) == CAIRN_OK)
            continue;
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "group %s: the commit of round %" PRIu64
                          " brings the learning rate %g; allowed: 0 to 1e18",
                          job->spec.groups[g].name, message->round, hyper.lr);
    }
    return CAIRN_OK;
}

static void on_round_commit(struct cairn_cluster_session *session, uint32_t request,
                            const Cairn__RoundCommit *message)
{
    struct cairn_cluster_member *member = attached_worker(session, request, message->job);
    if (member == NULL) return;
    if (message->client_state.len > member->job->spec.client_state_max) {
        cairn_cluster_session_error(session, request, CAIRN_ERR_INVALID,
                                    "the client state is longer than the job's client_state_max");
        return;
    }
    struct cairn_cluster_job *job = member->job;
    const bool driven = !message->abandon && job->core != NULL &&
                        cairn_round_takes_driven(job->core, member->id, message->round);
    struct cairn_sentence why;
    if (driven && judge_driven(job, message, &why) != CAIRN_OK) {
        cairn_cluster_session_error(session, request, CAIRN_ERR_INVALID, why.text);
        return;
    }
    cairn_cluster_commits_add(member, request, message->round);
    cairn_step_ring_take(&member->times, message->times);
    if (message->abandon && job->core != NULL &&
        message->round == cairn_round_open_round(job->core)) {
        cairn_sentence_set(&job->rounds.epoch_reason,
                           "worker %s (rank %" PRIu32 ") gave the round up", session->name,
                           member->rank);
    }
    const struct cairn_round_event event = { .kind = message->abandon ? CAIRN_ROUND_WORKER_ABANDON
                                                                      : CAIRN_ROUND_WORKER_COMMIT,
                                             .member = member->id,
                                             .round = message->round,
                                             .state = message->client_state.data,
                                             .state_bytes = message->client_state.len,
                                             .driven = driven ? message->driven : NULL };
    cairn_cluster_job_event(job, &event);
}

static void on_write_begin(struct cairn_cluster_session *session, uint32_t request,
                           const Cairn__WriteBegin *message)
{
    struct cairn_cluster_member *member = attached_worker(session, request, message->job);
    if (member != NULL) cairn_cluster_member_write(member, request);
}

static void on_write_cancel(struct cairn_cluster_session *session, uint32_t request,
                            const Cairn__WriteCancel *message)
{
    struct cairn_cluster_member *member = attached_worker(session, request, message->job);
    if (member == NULL) return;
    cairn_cluster_member_unwrite(member, message->round);
    cairn_cluster_session_done(session, request);
}

static void on_version_wait(struct cairn_cluster_session *session, uint32_t request,
                            const Cairn__VersionWait *message)
{
    struct cairn_cluster_member *member = attached(session, request, message->job);
    if (member != NULL) cairn_cluster_member_version_wait(member, request, message);
}

static void on_lease_take(struct cairn_cluster_session *session, uint32_t request,
                          const Cairn__LeaseTake *message)
{
    struct cairn_cluster_member *member = attached(session, request, message->job);
    if (member != NULL) cairn_cluster_lease_take(member, request, message);
}

static void on_lease_drop(struct cairn_cluster_session *session, uint32_t request,
                          const Cairn__LeaseDrop *message)
{
    struct cairn_cluster_member *member = attached(session, request, message->job);
    if (member == NULL) return;
    cairn_cluster_lease_drop(member, message);
    cairn_cluster_session_done(session, request);
}

static void on_job_leave(struct cairn_cluster_session *session, const Cairn__JobLeave *message)
{
    struct cairn_cluster_member *member = cairn_cluster_member_find(session, message->job);
    if (member == NULL) return;
    cairn_cluster_bytes_read(member, message->fetched_shared);
    cairn_cluster_member_leave(member, "it closed the job");
}

static void on_heartbeat(struct cairn_cluster_session *session, const Cairn__Heartbeat *message)
{
    for (size_t i = 0; i < message->n_bytes && i < CAIRN_SESSION_MEMBERS_MAX; i++) {
        const Cairn__BytesTold *told = message->bytes[i];
        struct cairn_cluster_member *member = cairn_cluster_member_find(session, told->job);
        if (member != NULL) cairn_cluster_bytes_read(member, told->fetched_shared);
    }
    cairn_cluster_unheard_told(session, message->unheard, message->n_unheard);
    for (struct cairn_cluster_member *m = session->members; m != NULL; m = m->next_of_session)
        m->in_flight = 0;
    for (size_t i = 0; i < message->n_in_flight && i < CAIRN_SESSION_MEMBERS_MAX; i++) {
        struct cairn_cluster_member *member = cairn_cluster_member_find(session,
                                                                        message->in_flight[i]->job);
        if (member != NULL) member->in_flight = message->in_flight[i]->what;
    }
}

static void on_pause(struct cairn_cluster_session *session, uint32_t request,
                     const Cairn__Pause *message)
{
    struct cairn_cluster_member *member = attached_worker(session, request, message->job);
    if (member != NULL) cairn_cluster_member_pause(member, request, message);
}

static void on_tiles_declare(struct cairn_cluster_session *session, uint32_t request,
                             const Cairn__TilesDeclare *message)
{
    struct cairn_cluster_member *member = attached_worker(session, request, message->job);
    if (member != NULL) cairn_cluster_tiles_declare(member, request, message);
}

static void on_page(struct cairn_cluster_session *session, uint32_t request,
                    const Cairn__Page *page)
{
    if (page->what == CAIRN_PAGE_TILES)
        cairn_cluster_tiles_page(session, request, page);
    else
        cairn_cluster_member_page(session, request, page);
}

/* Its job is there, and another worker has its place. */
static bool is_contested(const struct cairn_cluster_member *member)
{
    return member->phase == CAIRN_MEMBER_WAITING && member->job == NULL &&
           member->opening.contested_ms != 0;
}

/* Its job is there, and it failed too often. */
static bool is_put_off(const struct cairn_cluster_member *member)
{
    return member->phase == CAIRN_MEMBER_WAITING && member->job == NULL && member->opening.put_off;
}

/* Before the job is there, or all its shards know the member, the request to open waits. */
static void describe_opening(const struct cairn_cluster_session *session,
                             struct cairn_sentence *out)
{
    const struct cairn_cluster *cluster = session->cluster;
    const uint32_t up = cairn_cluster_seats_up(cluster);
    for (const struct cairn_cluster_member *m = session->members; m != NULL; m = m->next_of_session)
        if (m->phase == CAIRN_MEMBER_WAITING &&
            cairn_cluster_job_is_strange(cluster, m->job_name, out))
            return;
    for (const struct cairn_cluster_member *m = session->members; m != NULL; m = m->next_of_session)
        if (m->phase == CAIRN_MEMBER_WAITING && cairn_cluster_resuming(cluster, m->job_name)) {
            cairn_sentence_set(out, "the newest snapshot of job %s to be restored", m->job_name);
            return;
        }
    for (const struct cairn_cluster_member *m = session->members; m != NULL; m = m->next_of_session)
        if (is_contested(m)) {
            cairn_sentence_set(out,
                               "the worker that has rank %" PRIu32
                               " of job %s to be gone; CAIRN_OPEN_TAKEOVER (in Python "
                               "takeover=True) takes its place",
                               m->rank, m->job_name);
            return;
        }
    for (const struct cairn_cluster_member *m = session->members; m != NULL;
         m = m->next_of_session) {
        struct cairn_cluster_job *job = cairn_cluster_job_find(session->cluster, m->job_name);
        if (job == NULL || !is_put_off(m)) continue;
        cairn_cluster_relapse_waiting(job, m, out);
        return;
    }
    if (up < (uint64_t)cluster->options->shards) {
        const uint64_t more = (uint64_t)cluster->options->shards - up;
        cairn_sentence_set(out, "%" PRIu64 " more shard%s (%" PRIu32 " of %" PRId64 " up)", more,
                           more == 1 ? "" : "s", up, cluster->options->shards);
        return;
    }
    cairn_sentence_set(out, "the shards to make room for the job");
}

static void on_who_is_awaited(struct cairn_cluster_session *session, uint32_t request,
                              const Cairn__WhoIsAwaited *message)
{
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(session->cluster, message->job);
    struct cairn_sentence text;
    Cairn__Awaited awaited = CAIRN__AWAITED__INIT;
    for (struct cairn_cluster_member *m = session->members; m != NULL && job == NULL;
         m = m->next_of_session) {
        if (m->job == NULL && m->phase == CAIRN_MEMBER_WAITING && !is_contested(m) &&
            !is_put_off(m))
            job = cairn_cluster_job_find(session->cluster, m->job_name);
    }
    const struct cairn_cluster_member *member = job != NULL
                                                    ? cairn_cluster_member_find(session, job->id)
                                                    : NULL;
    if (job != NULL && message->cut) {
        (void)cairn_cluster_cut_waiting(job, &text);
    } else if (member != NULL && message->lease && cairn_cluster_leases_waiting(member, &text)) {
        // it says for whom
    } else if (job != NULL) {
        cairn_cluster_job_waiting(job, &text);
        awaited.paused_ms = (uint32_t)cairn_cluster_job_paused_ms(job);
        awaited.silent = cairn_cluster_job_waits_for_silent(job);
    } else {
        describe_opening(session, &text);
    }
    awaited.text = text.text;
    cairn_cluster_session_send(session, CAIRN_MSG_AWAITED, request, &awaited.base);
}

/* From a worker: at once, or when it is committed. */
static void on_snapshot_create(struct cairn_cluster_session *session, uint32_t request,
                               const Cairn__SnapshotCreate *message)
{
    struct cairn_cluster_job *job = cairn_cluster_job_find(session->cluster, message->job);
    struct cairn_sentence why;
    cairn_status status = CAIRN_ERR_NOT_FOUND;
    cairn_sentence_set(&why, "there is no job %s; `cairn job list` shows those there are",
                       message->job);
    if (job != NULL)
        status = cairn_cluster_cut_begin(job, true, session, request, message->wait, &why);
    if (status != CAIRN_OK) cairn_cluster_session_error(session, request, status, why.text);
}

bool cairn_cluster_handle_worker(struct cairn_cluster_session *session,
                                 const struct cairn_frame *frame, const ProtobufCMessage *message)
{
    const uint32_t request = frame->request;
    switch (frame->type) {
    case CAIRN_MSG_HEARTBEAT: on_heartbeat(session, (const Cairn__Heartbeat *)message); return true;
    case CAIRN_MSG_PAGE: on_page(session, request, (const Cairn__Page *)message); return true;
    case CAIRN_MSG_JOB_LEAVE: on_job_leave(session, (const Cairn__JobLeave *)message); return true;
    default: break;
    }
    if (request == 0) return false; // the rest are requests
    switch (frame->type) {
    case CAIRN_MSG_JOB_OPEN:
        cairn_cluster_member_open(session, request, (const Cairn__JobOpen *)message);
        break;
    case CAIRN_MSG_INIT_DONE:
        on_init_done(session, request, (const Cairn__InitDone *)message);
        break;
    case CAIRN_MSG_ROUND_BEGIN:
        on_round_begin(session, request, (const Cairn__RoundBegin *)message);
        break;
    case CAIRN_MSG_ROUND_COMMIT:
        on_round_commit(session, request, (const Cairn__RoundCommit *)message);
        break;
    case CAIRN_MSG_WRITE_BEGIN:
        on_write_begin(session, request, (const Cairn__WriteBegin *)message);
        break;
    case CAIRN_MSG_WRITE_CANCEL:
        on_write_cancel(session, request, (const Cairn__WriteCancel *)message);
        break;
    case CAIRN_MSG_VERSION_WAIT:
        on_version_wait(session, request, (const Cairn__VersionWait *)message);
        break;
    case CAIRN_MSG_LEASE_TAKE:
        on_lease_take(session, request, (const Cairn__LeaseTake *)message);
        break;
    case CAIRN_MSG_LEASE_DROP:
        on_lease_drop(session, request, (const Cairn__LeaseDrop *)message);
        break;
    case CAIRN_MSG_PAUSE: on_pause(session, request, (const Cairn__Pause *)message); break;
    case CAIRN_MSG_TILES_DECLARE:
        on_tiles_declare(session, request, (const Cairn__TilesDeclare *)message);
        break;
    case CAIRN_MSG_WHO_IS_AWAITED:
        on_who_is_awaited(session, request, (const Cairn__WhoIsAwaited *)message);
        break;
    case CAIRN_MSG_JOB_AMEND: {
        const Cairn__JobAmend *amend = (const Cairn__JobAmend *)message;
        struct cairn_cluster_member *member = attached_worker(session, request, amend->job);
        if (member != NULL) cairn_cluster_job_amend(member, request, amend);
        break;
    }
    case CAIRN_MSG_SNAPSHOT_CREATE:
        on_snapshot_create(session, request, (const Cairn__SnapshotCreate *)message);
        break;
    default: return false;
    }
    return true;
}
