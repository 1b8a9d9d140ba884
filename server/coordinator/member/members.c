/* Workers and readers of jobs: how they join at the shards, what they hear, how they leave. */
#include <inttypes.h>
#include <stdlib.h>

#include "server/base/log.h"
#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/member/relapse.h"
#include "server/coordinator/round/groups.h"
#include "server/coordinator/store/events.h"

enum member_known { UNKNOWN, TOLD, KNOWN };

struct cairn_cluster_member *cairn_cluster_member_find(struct cairn_cluster_session *session,
                                                       uint64_t job_id)
{
    struct cairn_cluster_member *found = NULL;
    for (struct cairn_cluster_member *m = session->members; m != NULL; m = m->next_of_session) {
        if (m->job_id != job_id || m->phase < CAIRN_MEMBER_JOINING) continue;
        if (found == NULL || m->phase == CAIRN_MEMBER_ATTACHED) found = m;
    }
    return found;
}

void cairn_cluster_job_member_add(struct cairn_cluster_job *job,
                                  struct cairn_cluster_member *member)
{
    struct cairn_cluster_member **bucket = &job->members.by_id[member->id % CAIRN_MEMBER_BUCKETS];
    member->job = job;
    member->job_id = job->id;
    member->next_of_job = job->members.list;
    member->next_of_bucket = *bucket;
    job->members.list = *bucket = member;
    job->members.count++;
}

static void leave_job_list(struct cairn_cluster_member *member)
{
    struct cairn_cluster_job *job = member->job;
    if (job == NULL) return;
    cairn_cluster_leases_forget(member);
    struct cairn_cluster_member **at = &job->members.list;
    while (*at != member) at = &(*at)->next_of_job;
    *at = member->next_of_job;
    at = &job->members.by_id[member->id % CAIRN_MEMBER_BUCKETS];
    while (*at != member) at = &(*at)->next_of_bucket;
    *at = member->next_of_bucket;
    job->members.count--;
    job->members.read_bytes += member->read_bytes;
    cairn_cluster_tiles_member_gone(job, member);
    cairn_cluster_groups_member_gone(job);
    member->job = NULL;
}

static void free_spec(void *arg)
{
    cairn_spec_release(arg);
    free(arg);
}

void cairn_cluster_member_forget_spec(struct cairn_cluster_member *member)
{
    struct cairn_cluster_opening *opening = &member->opening;
    const size_t bytes = opening->packed != NULL ? opening->packed->size : 0;
    struct cairn_job_spec_data *spec = malloc(sizeof *spec);
    if (spec != NULL) {
        *spec = opening->spec;
        cairn_cluster_free_by(member->session->cluster, free_spec, spec, bytes);
    } else {
        cairn_spec_release(&opening->spec);
    }
    cairn_spec_init(&opening->spec);
    cairn_paged_release(&opening->pages);
    cairn_packed_release(opening->packed);
    cairn_packed_release(opening->compared);
    opening->packed = opening->compared = NULL;
    cairn__error__free_unpacked(opening->rows, NULL); // NULL is fine
    opening->rows = NULL;
}

void cairn_cluster_member_free(struct cairn_cluster_member *member)
{
    leave_job_list(member);
    struct cairn_cluster_member **at = &member->session->members;
    while (*at != member) at = &(*at)->next_of_session;
    *at = member->next_of_session;
    member->session->member_count--;
    cairn_paged_release(&member->tiles.pages);
    cairn__job_amend__free_unpacked(member->amend.later, NULL); // NULL is fine
    free(member->init.held);
    cairn_cluster_member_forget_spec(member);
    free(member->known_to);
    free(member->job_name);
    free(member);
}

static void note(const struct cairn_cluster_member *member, enum cairn_event_kind kind,
                 const char *text)
{
    struct cairn_sentence who;
    cairn_sentence_set(&who, "%s %s (rank %" PRIu32 ")", cairn_role_name(member->role),
                       member->session->name, member->rank);
    cairn_cluster_event_note(member->session->cluster, kind, member->job_name, who.text, "%s",
                             text);
}

/* ---- leaving ---- */

/* Every request that waits fails. */
static void fail_requests(struct cairn_cluster_member *member, cairn_status status,
                          const char *text)
{
    uint32_t *const requests[] = { &member->open_request,  &member->init.request,
                                   &member->begin_request, &member->tiles.request,
                                   &member->write.request, &member->amend.request };
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        if (*requests[i] == 0) continue;
        cairn_cluster_session_error(member->session, *requests[i], status, text);
        *requests[i] = 0;
    }
    cairn_cluster_commits_fail(member, status, text);
    for (uint32_t i = 0; i < member->waits.count; i++)
        cairn_cluster_session_error(member->session, member->waits.list[i].request, status, text);
    member->waits.count = 0;
    member->tiles.arriving = false;
    if (member->job != NULL) cairn_cluster_leases_fail(member, status, text);
}

/* The shards that were told of it. */
static void tell_shards_gone(struct cairn_cluster_job *job,
                             const struct cairn_cluster_member *member)
{
    Cairn__MemberLeave leave = CAIRN__MEMBER_LEAVE__INIT;
    leave.job = job->id;
    leave.member = member->id;
    CAIRN_EACH_SHARD (job, i) {
        if (member->known_to[i] == UNKNOWN) continue;
        cairn_cluster_session_send(job->shards[i].seat->session, CAIRN_MSG_MEMBER_LEAVE, 0,
                                   &leave.base);
    }
}

/* The member is gone; lost: not by itself. */
static void go(struct cairn_cluster_member *member, bool lost, const char *reason)
{
    struct cairn_cluster_job *job = member->job;
    if (job == NULL || job->cluster->closing) {
        cairn_cluster_member_free(member);
        return;
    }
    const bool contributes = member->phase == CAIRN_MEMBER_ATTACHED &&
                             member->role == CAIRN_ROLE_WIRE_WORKER;
    const struct cairn_round_event event = { .kind = CAIRN_ROUND_WORKER_DOWN,
                                             .member = member->id,
                                             .lost = lost };
    cairn_log_info("%s %s (rank %" PRIu32 ") left job %s: %s", cairn_role_name(member->role),
                   member->session->name, member->rank, job->spec.name, reason);
    note(member, lost ? CAIRN_EVENT_LOST : CAIRN_EVENT_LEFT, reason);
    tell_shards_gone(job, member);
    if (contributes) {
        cairn_sentence_set(&job->rounds.epoch_reason, "worker %s (rank %" PRIu32 ") left: %s",
                           member->session->name, member->rank, reason);
        if (lost) cairn_cluster_halts_lost(job, member, reason);
        cairn_cluster_relapse_lost(member);
    }
    cairn_cluster_member_free(member);
    if (contributes && job->core != NULL) cairn_cluster_job_event(job, &event);
    cairn_cluster_tiles_advance(job);
}

void cairn_cluster_member_leave(struct cairn_cluster_member *member, const char *reason)
{
    go(member, false, reason);
}

void cairn_cluster_member_lost(struct cairn_cluster_member *member, const char *reason)
{
    go(member, true, reason);
}

void cairn_cluster_member_expel(struct cairn_cluster_member *member, cairn_status status,
                                const char *text)
{
    struct cairn_cluster_session *session = member->session;
    const bool opening = member->open_request != 0;
    const uint64_t job_id = member->job_id;
    cairn_log_info("%s %s expelled from job %s: %s", cairn_role_name(member->role), session->name,
                   member->job_name, text);
    note(member, status == CAIRN_ERR_FENCED ? CAIRN_EVENT_FENCED : CAIRN_EVENT_PUT_OUT, text);
    if (member->job != NULL) tell_shards_gone(member->job, member);
    fail_requests(member, status, text);
    cairn_cluster_member_free(member);
    if (opening || session->closing) return;
    // It may be waiting for shards alone: told without being asked.
    cairn_cluster_session_expelled(session, job_id, status, text);
    if (session->member_count > 0) return; // its other jobs go on
    session->closing = true;
    cairn_peer_finish(session->peer, status, "%s", text);
}

void cairn_cluster_member_put_out(struct cairn_cluster_member *member, cairn_status status,
                                  const char *text)
{
    struct cairn_cluster_job *job = member->job;
    const struct cairn_round_event event = { .kind = CAIRN_ROUND_WORKER_DOWN,
                                             .member = member->id,
                                             .lost = true };
    const bool contributes = member->phase == CAIRN_MEMBER_ATTACHED &&
                             member->role == CAIRN_ROLE_WIRE_WORKER;
    if (contributes) {
        cairn_sentence_set(&job->rounds.epoch_reason, "%s", text);
        cairn_cluster_halts_lost(job, member, text);
        cairn_cluster_relapse_lost(member);
    }
    cairn_cluster_member_expel(member, status, text);
    if (contributes && job->core != NULL) cairn_cluster_job_event(job, &event);
}

void cairn_cluster_member_fault(struct cairn_cluster_job *job, uint64_t id, const char *text)
{
    struct cairn_cluster_member *member = cairn_cluster_job_member(job, id);
    if (cairn_cluster_groups_fault(job, id, text) || member == NULL) return;
    cairn_cluster_member_put_out(member, CAIRN_ERR_NO_MEMORY, text);
    cairn_cluster_tiles_advance(job);
}

/* ---- joining ---- */

static void send_attached(struct cairn_cluster_member *member)
{
    struct cairn_cluster_job *job = member->job;
    Cairn__Attached message = CAIRN__ATTACHED__INIT;
    struct cairn_cluster_shard_infos infos;
    const bool behind = cairn_cluster_layouts_behind(job);
    struct cairn_packed *layout = behind ? job->layouts.before : job->planned.layout;
    if (!cairn_cluster_shard_infos_init(
            &infos, job, behind ? job->layouts.before_shards : job->layout->shard_count)) {
        fail_requests(member, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
        return;
    }
    const struct cairn_version version = cairn_cluster_job_version(job);
    message.job = job->id;
    message.member = member->id;
    message.epoch = cairn_round_epoch(job->core);
    message.generation = version.generation;
    message.step = version.step;
    message.initialized = job->initialized;
    message.spec_bytes = job->planned.spec->size;
    message.layout_bytes = layout->size;
    struct cairn_sentence maker;
    cairn_cluster_events_maker(job->cluster, job->spec.name, &maker);
    message.made_by = maker.text;
    message.first_step = job->spec.first_step;
    message.layout = job->layout->version;
    message.shards = infos.list;
    message.n_shards = infos.count;
    const uint32_t request = member->open_request;
    member->open_request = 0;
    cairn_cluster_session_send(member->session, CAIRN_MSG_ATTACHED, request, &message.base);
    cairn_cluster_session_pages(member->session, request, CAIRN_PAGE_SPEC, job->planned.spec);
    cairn_cluster_session_pages(member->session, request, CAIRN_PAGE_LAYOUT, layout);
    cairn_cluster_shard_infos_release(&infos);
    if (behind) cairn_cluster_member_layout_changed(member);
}

static bool may_attach(const struct cairn_cluster_member *member)
{
    const struct cairn_cluster_job *job = member->job;
    if (member->phase != CAIRN_MEMBER_JOINING || job->core == NULL) return false;
    if (job->initialized && !job->rounds.heard) return false; // nobody knows yet which step it is
    CAIRN_EACH_SHARD (job, i) {
        if (member->known_to[i] != KNOWN) return false;
    }
    return true;
}

static void attach(struct cairn_cluster_member *member)
{
    struct cairn_cluster_job *job = member->job;
    member->phase = CAIRN_MEMBER_ATTACHED;
    member->attached_ms = cairn_cluster_now_ms(job->cluster);
    member->attach = ++job->members.attaches;
    const uint64_t id = member->id;
    if (member->role == CAIRN_ROLE_WIRE_WORKER) {
        cairn_sentence_set(&job->rounds.epoch_reason, "worker %s (rank %" PRIu32 ") joined",
                           member->session->name, member->rank);
        const uint32_t most = job->spec.workers_max; // no more of a launch can come
        const bool is_over = most > 0 && member->opening.launch > most;
        const struct cairn_round_event event = { .kind = CAIRN_ROUND_WORKER_JOIN,
                                                 .member = id,
                                                 .rank = member->rank,
                                                 .world = is_over ? most : member->opening.launch,
                                                 .wait_ms = member->opening.start_wait_ms };
        cairn_cluster_tiles_advance(job); // no round of it before it has declared its tiles
        cairn_cluster_job_event(job, &event);
    }
    member = cairn_cluster_job_member(job, id); // the core may have expelled it
    if (member == NULL || job->state == CAIRN_CLUSTER_JOB_LOST) return;
    cairn_log_info("%s %s (rank %" PRIu32 ") joined job %s at step %" PRIu64,
                   cairn_role_name(member->role), member->session->name, member->rank,
                   job->spec.name, cairn_cluster_job_version(job).step);
    note(member, CAIRN_EVENT_ATTACHED, cairn_peer_name(member->session->peer));
    send_attached(member);
}

void cairn_cluster_members_attach(struct cairn_cluster_job *job)
{
    struct cairn_cluster_member *member = job->members.list;
    while (member != NULL) {
        const bool attaches = may_attach(member);
        if (attaches) attach(member);
        member = attaches ? job->members.list : member->next_of_job; // it may have expelled others
    }
}

/* A MemberJoin on its way. */
struct joining {
    uint64_t member;
    uint32_t shard;
};

static void on_joined(struct cairn_cluster_job *job, const void *about, cairn_status status,
                      const char *why)
{
    const struct joining *joining = about;
    if (joining->shard >= job->shard_count) return;
    struct cairn_cluster_member *member = cairn_cluster_job_member(job, joining->member);
    if (member == NULL || member->known_to[joining->shard] != TOLD) return;
    if (status == CAIRN_OK) {
        member->known_to[joining->shard] = KNOWN;
        if (may_attach(member)) attach(member);
        return;
    }
    member->known_to[joining->shard] = UNKNOWN;
    if (status == CAIRN_ERR_CLOSED) return; // told again when the shard is back
    cairn_cluster_member_put_out(member, status, why);
}

static void tell_shard(struct cairn_cluster_member *member, uint32_t shard)
{
    struct cairn_cluster_job *job = member->job;
    struct cairn_cluster_seat *seat = job->shards[shard].seat;
    if (!job->shards[shard].up || seat->session == NULL || seat->session->closing) return;
    const struct joining joining = { member->id, shard };
    struct cairn_cluster_gather *gather = cairn_cluster_gather_open_job(job, on_joined, &joining,
                                                                        sizeof joining);
    if (gather == NULL) return;
    const uint32_t request = cairn_cluster_gather_ask(gather, seat);
    member->known_to[shard] = TOLD;
    Cairn__MemberJoin join = CAIRN__MEMBER_JOIN__INIT;
    join.job = job->id;
    join.member = member->id;
    join.token = member->token;
    join.rank = member->rank;
    join.role = member->role;
    join.name = member->session->name;
    join.fabric_address.data = member->session->fabric_address;
    join.fabric_address.len = member->session->fabric_address_bytes;
    cairn_cluster_session_send(seat->session, CAIRN_MSG_MEMBER_JOIN, request, &join.base);
    cairn_cluster_gather_start(gather);
}

void cairn_cluster_member_tell_shards(struct cairn_cluster_member *member)
{
    CAIRN_EACH_SHARD (member->job, i) tell_shard(member, i);
}

void cairn_cluster_members_tell_shard(struct cairn_cluster_job *job, uint32_t shard)
{
    for (struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        tell_shard(m, shard);
    }
}

void cairn_cluster_members_forget_shard(struct cairn_cluster_job *job, uint32_t shard)
{
    for (struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        m->known_to[shard] = UNKNOWN;
        cairn_cluster_tiles_shard_gone(m, shard);
    }
}

/* ---- what a job says to its members ---- */

void cairn_cluster_members_shards_changed(struct cairn_cluster_job *job)
{
    struct cairn_cluster_shard_infos infos;
    if (!cairn_cluster_shard_infos_init(&infos, job, job->layout->shard_count)) return;
    Cairn__ShardsChanged message = CAIRN__SHARDS_CHANGED__INIT;
    message.job = job->id;
    message.shards = infos.list;
    message.n_shards = infos.count;
    for (struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        if (m->phase != CAIRN_MEMBER_ATTACHED) continue;
        cairn_cluster_session_send(m->session, CAIRN_MSG_SHARDS_CHANGED, 0, &message.base);
    }
    cairn_cluster_shard_infos_release(&infos);
}
