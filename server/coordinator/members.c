/* Workers and readers of jobs: how they join at the shards, what they are told, and how they
 * leave. */
#include "server/coordinator/members.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/cluster.h"

enum member_known { UNKNOWN, TOLD, KNOWN };

static void commits_fail(struct coord_member *member, cairn_status status, const char *text);
static void relapse_lost(const struct coord_member *member);
static void member_layout_changed(struct coord_member *member);

static void leave_job_list(struct coord_member *member)
{
    struct coord_job *job = member->job;
    if (job == NULL) return;
    coord_leases_forget(member);
    struct coord_member **at = &job->members.list;
    while (*at != member) at = &(*at)->next_of_job;
    *at = member->next_of_job;
    at = &job->members.by_id[member->id % CAIRN_MEMBER_BUCKETS];
    while (*at != member) at = &(*at)->next_of_bucket;
    *at = member->next_of_bucket;
    job->members.count--;
    job->members.read_bytes += member->read_bytes;
    job->tiles.changed = true;
    CAIRN_EACH_SHARD (job, i)
        if (job->shards[i].tiles.next == member) job->shards[i].tiles.next = member->next_of_job;
    coord_groups_member_gone(job);
    member->job = NULL;
}

static void free_spec(void *arg)
{
    spec_release(arg);
    free(arg);
}

void coord_member_forget_spec(struct coord_member *member)
{
    struct coord_opening *opening = &member->opening;
    const size_t bytes = opening->packed != NULL ? opening->packed->size : 0;
    struct job_spec_data *spec = malloc(sizeof *spec);
    if (spec != NULL) {
        *spec = opening->spec;
        coord_free_by(member->session->cluster, free_spec, spec, bytes);
    } else {
        spec_release(&opening->spec);
    }
    spec_init(&opening->spec);
    paged_release(&opening->pages, 1);
    packed_release(opening->packed);
    packed_release(opening->compared);
    opening->packed = opening->compared = NULL;
    cairn__error__free_unpacked(opening->rows, NULL); // rows may be NULL
    opening->rows = NULL;
}

void coord_member_free(struct coord_member *member)
{
    leave_job_list(member);
    struct coord_member **at = &member->session->members;
    while (*at != member) at = &(*at)->next_of_session;
    *at = member->next_of_session;
    member->session->member_count--;
    paged_release(&member->tiles.pages, 1);
    cairn__job_amend__free_unpacked(member->amend.later, NULL); // later may be NULL
    free(member->init.held);
    coord_member_forget_spec(member);
    free(member->known_to);
    free(member->job_name);
    free(member);
}

static void note_member(const struct coord_member *member, enum coord_event_kind kind,
                        const char *text)
{
    struct sentence who;
    sentence_set(&who, "%s %s (rank %" PRIu32 ")", role_name(member->role), member->session->name,
                 member->rank);
    coord_event_note(member->session->cluster, kind, member->job_name, who.text, "%s", text);
}

/* ---- leaving ---- */

/* Fails every waiting request of the member. */
static void fail_requests(struct coord_member *member, cairn_status status, const char *text)
{
    uint32_t *const requests[] = { &member->open_request,  &member->init.request,
                                   &member->begin_request, &member->tiles.request,
                                   &member->write.request, &member->amend.request };
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        if (*requests[i] == 0) continue;
        coord_session_error(member->session, *requests[i], status, text);
        *requests[i] = 0;
    }
    commits_fail(member, status, text);
    for (uint32_t i = 0; i < member->waits.count; i++)
        coord_session_error(member->session, member->waits.list[i].request, status, text);
    member->waits.count = 0;
    member->tiles.arriving = false;
    if (member->job != NULL) coord_leases_fail(member, status, text);
}

/* Tells the shards that the member is gone. Skips shards that were not told of the member
 * before. */
static void tell_shards_gone(struct coord_job *job, const struct coord_member *member)
{
    Cairn__MemberLeave leave = CAIRN__MEMBER_LEAVE__INIT;
    leave.job = job->id;
    leave.member = member->id;
    CAIRN_EACH_SHARD (job, i) {
        if (member->known_to[i] == UNKNOWN) continue;
        coord_session_send(job->shards[i].entry->session, CAIRN_MSG_MEMBER_LEAVE, 0, &leave.base);
    }
}

void coord_members_withdraw(struct coord_job *job)
{
    Cairn__MemberLeave leave = CAIRN__MEMBER_LEAVE__INIT;
    leave.job = job->id;
    leave.withdrawn = true;
    if (job->state == CAIRN_CLUSTER_JOB_CREATING) return; // it has had no members yet
    CAIRN_EACH_SHARD (job, i)
        coord_session_send(job->shards[i].entry->session, CAIRN_MSG_MEMBER_LEAVE, 0, &leave.base);
}

/* Removes a member that is gone. `lost`: the member did not leave by itself. */
static void let_member_go(struct coord_member *member, bool lost, const char *reason)
{
    struct coord_job *job = member->job;
    if (job == NULL || job->cluster->closing) {
        coord_member_free(member);
        return;
    }
    const bool contributes = member->phase == CAIRN_MEMBER_ATTACHED &&
                             member->role == CAIRN_ROLE_WIRE_WORKER;
    const struct round_event event = { .kind = CAIRN_ROUND_WORKER_DOWN,
                                       .member = member->id,
                                       .lost = lost };
    log_info("%s %s (rank %" PRIu32 ") left job %s: %s", role_name(member->role),
             member->session->name, member->rank, job->spec.name, reason);
    note_member(member, lost ? CAIRN_EVENT_LOST : CAIRN_EVENT_LEFT, reason);
    tell_shards_gone(job, member);
    if (contributes) {
        sentence_set(&job->rounds.epoch_reason, "worker %s (rank %" PRIu32 ") left: %s",
                     member->session->name, member->rank, reason);
        if (lost) coord_halts_lost(job, member, reason);
        relapse_lost(member);
    }
    coord_member_free(member);
    if (contributes && job->core != NULL) coord_job_event(job, &event);
    coord_gate_update(job);
}

void coord_member_leave(struct coord_member *member, const char *reason)
{
    let_member_go(member, false, reason);
}

void coord_member_lost(struct coord_member *member, const char *reason)
{
    let_member_go(member, true, reason);
}

/* Tells the session that its member was expelled from the job. The message answers no request. */
static void send_expelled(struct coord_session *session, uint64_t job, cairn_status status,
                          const char *text)
{
    Cairn__Error error = CAIRN__ERROR__INIT;
    error.status = (int32_t)status;
    error.text = wire_text(text);
    error.job = job;
    coord_session_send(session, CAIRN_MSG_ERROR, 0, &error.base);
}

void coord_member_expel(struct coord_member *member, cairn_status status, const char *text)
{
    struct coord_session *session = member->session;
    const bool opening = member->open_request != 0;
    const uint64_t job_id = member->job_id;
    log_info("%s %s expelled from job %s: %s", role_name(member->role), session->name,
             member->job_name, text);
    note_member(member, status == CAIRN_ERR_FENCED ? CAIRN_EVENT_FENCED : CAIRN_EVENT_PUT_OUT,
                text);
    if (member->job != NULL) tell_shards_gone(member->job, member);
    fail_requests(member, status, text);
    coord_member_free(member);
    if (opening || session->closing) return;
    // The member may have no open request, because it may wait for shards only. So it is also sent
    // an Error that answers no request.
    send_expelled(session, job_id, status, text);
    if (session->member_count > 0) return; // the session's other jobs continue
    session->closing = true;
    peer_finish(session->peer, status, "%s", text);
}

void coord_member_put_out(struct coord_member *member, cairn_status status, const char *text)
{
    struct coord_job *job = member->job;
    const struct round_event event = { .kind = CAIRN_ROUND_WORKER_DOWN,
                                       .member = member->id,
                                       .lost = true };
    const bool contributes = member->phase == CAIRN_MEMBER_ATTACHED &&
                             member->role == CAIRN_ROLE_WIRE_WORKER;
    if (contributes) {
        sentence_set(&job->rounds.epoch_reason, "%s", text);
        coord_halts_lost(job, member, text);
        relapse_lost(member);
    }
    coord_member_expel(member, status, text);
    if (contributes && job->core != NULL) coord_job_event(job, &event);
}

/* A shard cannot read what the member pushed: expels the member. The open round is repeated without
 * the member. */
static bool on_member_fault(struct coord_job *job, uint32_t shard, const void *any)
{
    const Cairn__MemberFault *message = any;
    (void)shard;
    const uint64_t id = message->member;
    const char *text = message->text;
    struct coord_member *member = coord_job_member(job, id);
    if (coord_groups_fault(job, id, text) || member == NULL) return true;
    coord_member_put_out(member, CAIRN_ERR_NO_MEMORY, text);
    coord_gate_update(job);
    return true;
}

/* ---- joining ---- */

static void send_attached(struct coord_member *member)
{
    struct coord_job *job = member->job;
    Cairn__Attached message = CAIRN__ATTACHED__INIT;
    struct coord_shard_infos infos;
    const bool behind = coord_layouts_behind(job);
    struct packed *layout = behind ? job->layouts.before : job->planned.layout;
    if (!coord_shard_infos_init(&infos, job,
                                behind ? job->layouts.before_shards : job->layout->shard_count)) {
        fail_requests(member, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
        return;
    }
    const struct cairn_version version = coord_job_version(job);
    message.job = job->id;
    message.member = member->id;
    message.epoch = round_epoch_of(job->core);
    message.generation = version.generation;
    message.step = version.step;
    message.initialized = job->initialized;
    message.spec_bytes = job->planned.spec->size;
    message.layout_bytes = layout->size;
    struct sentence maker;
    sentence_set(&maker, "%s", job->tenant.made_by);
    // a store that is older than owners has it among the events, for a while
    if (maker.text[0] == '\0') coord_events_maker(job->cluster, job->spec.name, &maker);
    message.made_by = maker.text;
    message.first_step = job->spec.first_step;
    message.layout = job->layout->version;
    message.notice = member->opening.differences.text;
    message.shards = infos.list;
    message.n_shards = infos.count;
    const uint32_t request = member->open_request;
    member->open_request = 0;
    coord_session_send(member->session, CAIRN_MSG_ATTACHED, request, &message.base);
    coord_session_pages(member->session, request, CAIRN_PAGE_SPEC, job->planned.spec);
    coord_session_pages(member->session, request, CAIRN_PAGE_LAYOUT, layout);
    coord_shard_infos_release(&infos);
    if (behind) member_layout_changed(member);
}

static bool may_attach(const struct coord_member *member)
{
    const struct coord_job *job = member->job;
    if (member->phase != CAIRN_MEMBER_JOINING || job->core == NULL) return false;
    if (job->initialized && !job->rounds.heard) return false; // the job's step is not yet known
    CAIRN_EACH_SHARD (job, i) {
        if (member->known_to[i] != KNOWN) return false;
    }
    return true;
}

static void attach_member(struct coord_member *member)
{
    struct coord_job *job = member->job;
    member->phase = CAIRN_MEMBER_ATTACHED;
    member->attached_ms = coord_now_ms(job->cluster);
    member->attach = ++job->members.attaches;
    const uint64_t id = member->id;
    if (member->role == CAIRN_ROLE_WIRE_WORKER) {
        sentence_set(&job->rounds.epoch_reason, "worker %s (rank %" PRIu32 ") joined",
                     member->session->name, member->rank);
        const uint32_t most = job->spec.workers_max; // the most workers that can join; 0: no limit
        const bool is_over = most > 0 && member->opening.launch > most;
        const struct round_event event = { .kind = CAIRN_ROUND_WORKER_JOIN,
                                           .member = id,
                                           .rank = member->rank,
                                           .world = is_over ? most : member->opening.launch,
                                           .wait_ms = member->opening.start_wait_ms };
        coord_gate_update(job); // no round opens with the member before it has declared its tiles
        coord_job_event(job, &event);
    }
    member = coord_job_member(job, id); // the core may have expelled the member
    if (member == NULL || job->state == CAIRN_CLUSTER_JOB_LOST) return;
    log_info("%s %s (rank %" PRIu32 ") joined job %s at step %" PRIu64, role_name(member->role),
             member->session->name, member->rank, job->spec.name, coord_job_version(job).step);
    note_member(member, CAIRN_EVENT_ATTACHED, peer_name(member->session->peer));
    send_attached(member);
}

void coord_members_attach(struct coord_job *job)
{
    struct coord_member *member = job->members.list;
    while (member != NULL) {
        const bool attaches = may_attach(member);
        if (attaches) attach_member(member);
        // attaching may have expelled other members
        member = attaches ? job->members.list : member->next_of_job;
    }
}

/* A MemberJoin that the shard has not answered. */
struct joining {
    uint64_t member;
    uint32_t shard;
};

static void on_joined(struct coord_job *job, const void *about, cairn_status status,
                      const char *why)
{
    const struct joining *joining = about;
    if (joining->shard >= job->shard_count) return;
    struct coord_member *member = coord_job_member(job, joining->member);
    if (member == NULL || member->known_to[joining->shard] != TOLD) return;
    if (status == CAIRN_OK) {
        member->known_to[joining->shard] = KNOWN;
        if (may_attach(member)) attach_member(member);
        return;
    }
    member->known_to[joining->shard] = UNKNOWN;
    if (status == CAIRN_ERR_CLOSED) return; // the shard is told again when it returns
    coord_member_put_out(member, status, why);
}

static void tell_shard(struct coord_member *member, uint32_t shard)
{
    struct coord_job *job = member->job;
    struct coord_shard_entry *entry = job->shards[shard].entry;
    if (!job->shards[shard].up || entry->session == NULL || entry->session->closing) return;
    const struct joining joining = { member->id, shard };
    struct coord_gather *gather = coord_gather_open_job(job, on_joined, &joining, sizeof joining);
    if (gather == NULL) return;
    const uint32_t request = coord_gather_ask(gather, entry);
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
    coord_session_send(entry->session, CAIRN_MSG_MEMBER_JOIN, request, &join.base);
    coord_gather_start(gather);
}

void coord_member_tell_shards(struct coord_member *member)
{
    CAIRN_EACH_SHARD (member->job, i) tell_shard(member, i);
}

void coord_members_tell_shard(struct coord_job *job, uint32_t shard)
{
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job)
        tell_shard(m, shard);
}

void coord_members_forget_shard(struct coord_job *job, uint32_t shard)
{
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        m->known_to[shard] = UNKNOWN;
        coord_tiles_shard_gone(m, shard);
    }
}

/* ==== relapse ==== */

#define FIRST_MS    1000
#define FORGET_MS   600000 /* after this time without a loss, a record no longer counts */
#define RECORDS_MAX 2048   /* the most records of a job; further losses put nobody off */

/* A record of the losses of a host, or of a rank. */
struct coord_relapse {
    struct coord_relapse *next; /* in the job's list */
    bool is_rank;
    bool is_wide; /* only if is_rank: the rank was lost on several hosts */
    uint32_t rank, count;
    /* The host; empty: not known. If is_rank, this is the first host on which the rank was lost. */
    char host[CAIRN_FABRIC_HOST_BYTES];
    uint64_t lost_ms;  /* coord_now_ms at the last loss */
    uint64_t attaches; /* members.attaches of the job at the last loss */
};

static void host_of(const struct coord_member *member, char host[CAIRN_FABRIC_HOST_BYTES])
{
    const struct coord_session *session = member->session;
    if (!fabric_address_host(session->fabric_address, session->fabric_address_bytes, host,
                             CAIRN_FABRIC_HOST_BYTES))
        host[0] = '\0';
}

/* Finds the record of the host. If `host` is NULL, finds the record of the rank. */
static struct coord_relapse **find_relapse(struct coord_job *job, const char *host, uint32_t rank)
{
    struct coord_relapse **at = &job->members.relapses;
    for (; *at != NULL; at = &(*at)->next)
        if (host == NULL ? (*at)->is_rank && (*at)->rank == rank
                         : !(*at)->is_rank && strcmp((*at)->host, host) == 0)
            break;
    return at;
}

static void forget_relapse(struct coord_job *job, struct coord_relapse **at)
{
    struct coord_relapse *relapse = *at;
    if (relapse == NULL) return;
    *at = relapse->next;
    job->members.relapse_count--;
    free(relapse);
}

/* Removes the records whose last loss is too old to count. Nothing else removes the record of a
 * host that never returns. */
static void forget_old(struct coord_job *job)
{
    const uint64_t now_ms = coord_now_ms(job->cluster);
    struct coord_relapse **at = &job->members.relapses;
    while (*at != NULL) {
        if (now_ms - (*at)->lost_ms > FORGET_MS)
            forget_relapse(job, at);
        else
            at = &(*at)->next;
    }
}

static struct coord_relapse *get_relapse(struct coord_job *job, bool is_rank, const char *host,
                                         uint32_t rank)
{
    struct coord_relapse *relapse = *find_relapse(job, is_rank ? NULL : host, rank);
    if (relapse == NULL && job->members.relapse_count == RECORDS_MAX) forget_old(job);
    if (relapse != NULL || job->members.relapse_count == RECORDS_MAX ||
        (relapse = calloc(1, sizeof *relapse)) == NULL)
        return relapse;
    relapse->next = job->members.relapses;
    relapse->is_rank = is_rank;
    relapse->rank = rank;
    snprintf(relapse->host, sizeof relapse->host, "%s", host);
    relapse->lost_ms = coord_now_ms(job->cluster);
    job->members.relapses = relapse;
    job->members.relapse_count++;
    return relapse;
}

static uint64_t delay_ms(const struct coord_relapse *relapse)
{
    if (relapse == NULL || relapse->count <= CAIRN_RELAPSE_FREE) return 0;
    const uint32_t twice = relapse->count - CAIRN_RELAPSE_FREE - 1;
    const uint64_t delay = twice < 16 ? (uint64_t)FIRST_MS << twice : CAIRN_RELAPSE_MAX_MS;
    return delay < CAIRN_RELAPSE_MAX_MS ? delay : CAIRN_RELAPSE_MAX_MS;
}

static uint64_t left_ms(const struct coord_job *job, const struct coord_relapse *relapse)
{
    const uint64_t delay = delay_ms(relapse);
    if (delay == 0) return 0;
    const uint64_t passed_ms = coord_now_ms(job->cluster) - relapse->lost_ms;
    return passed_ms < delay ? delay - passed_ms : 0;
}

/* Compares the record of the member's rank with that of the member's host, and returns the one that
 * puts the member off for longer. Returns NULL if neither record applies to the member. */
static const struct coord_relapse *worst_relapse(struct coord_job *job,
                                                 const struct coord_member *member)
{
    char host[CAIRN_FABRIC_HOST_BYTES];
    host_of(member, host);
    const struct coord_relapse *of_rank = *find_relapse(job, NULL, member->rank);
    const struct coord_relapse *of_host = host[0] != '\0' ? *find_relapse(job, host, 0) : NULL;
    if (of_rank != NULL && !of_rank->is_wide && strcmp(of_rank->host, host) != 0) of_rank = NULL;
    return left_ms(job, of_rank) >= left_ms(job, of_host) && of_rank != NULL ? of_rank : of_host;
}

static void name_relapsed(const struct coord_job *job, const struct coord_relapse *relapse,
                          struct sentence *out)
{
    if (relapse->is_rank)
        sentence_set(out,
                     "rank %" PRIu32 " of job %s was lost %" PRIu32
                     " times in a row before it had ended a round",
                     relapse->rank, job->spec.name, relapse->count);
    else
        sentence_set(out,
                     "workers of host %s of job %s were lost %" PRIu32
                     " times in a row before one had ended a round",
                     relapse->host, job->spec.name, relapse->count);
}

static void count_relapse(struct coord_job *job, struct coord_relapse *relapse)
{
    const uint64_t now_ms = coord_now_ms(job->cluster);
    if (now_ms - relapse->lost_ms >= FORGET_MS) relapse->count = 0;
    relapse->lost_ms = now_ms;
    relapse->attaches = job->members.attaches;
    relapse->count++;
}

/* Counts the loss of an attached worker, unless the worker has ended a round before. */
static void relapse_lost(const struct coord_member *member)
{
    struct coord_job *job = member->job;
    char host[CAIRN_FABRIC_HOST_BYTES];
    if (member->has_ended_round || job->state != CAIRN_CLUSTER_JOB_RUNNING) return;
    host_of(member, host);
    struct coord_relapse *of_rank = get_relapse(job, true, host, member->rank);
    struct coord_relapse *of_host = host[0] != '\0' ? get_relapse(job, false, host, 0) : NULL;
    if (of_rank != NULL) {
        of_rank->is_wide |= strcmp(of_rank->host, host) != 0;
        count_relapse(job, of_rank);
    }
    // Workers of a host that are lost together count as one loss. A worker that attached before the
    // host's last loss belongs to that loss.
    if (of_host != NULL && member->attach > of_host->attaches) count_relapse(job, of_host);
    const struct coord_relapse *relapse = worst_relapse(job, member);
    if (delay_ms(relapse) == 0) return;
    struct sentence text;
    name_relapsed(job, relapse, &text);
    log_warn("%s (the last was %s, rank %" PRIu32 "): the next attach is put off for %" PRIu64
             " s, while others train",
             text.text, member->session->name, member->rank, delay_ms(relapse) / 1000);
}

void coord_relapse_over(struct coord_member *member)
{
    char host[CAIRN_FABRIC_HOST_BYTES];
    if (member->has_ended_round) return;
    member->has_ended_round = true;
    host_of(member, host);
    forget_relapse(member->job, find_relapse(member->job, NULL, member->rank));
    forget_relapse(member->job, find_relapse(member->job, host, 0));
}

/* True if some worker of the job is training. The attach of another worker would void the open
 * round. */
static bool do_others_train(const struct coord_job *job)
{
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job)
        if (m->phase == CAIRN_MEMBER_ATTACHED && m->has_ended_round) return true;
    return false;
}

uint64_t coord_relapse_wait_ms(struct coord_job *job, const struct coord_member *member)
{
    if (member->role != CAIRN_ROLE_WIRE_WORKER || !do_others_train(job) ||
        coord_job_member(job, member->id) != NULL) // a member that is still in the job was not lost
        return 0;
    return left_ms(job, worst_relapse(job, member));
}

void coord_relapse_waiting(struct coord_job *job, const struct coord_member *member,
                           struct sentence *out)
{
    const struct coord_relapse *relapse = worst_relapse(job, member);
    struct sentence text = { "" };
    if (relapse != NULL) name_relapsed(job, relapse, &text);
    sentence_set(out, "its turn in %" PRIu64 " s: %s, each time with the round of the others",
                 (left_ms(job, relapse) + 999) / 1000, text.text);
}

void coord_relapses_release(struct coord_job *job)
{
    while (job->members.relapses != NULL) forget_relapse(job, &job->members.relapses);
}

/* ==== layouts ==== */

void coord_layouts_drop_next(struct coord_job *job)
{
    struct coord_layouts *l = &job->layouts;
    layout_close(l->next);
    packed_release(l->next_packed);
    free(l->next_gone);
    l->next = NULL;
    l->next_packed = NULL;
    l->next_gone = NULL;
    l->storing = false;
}

void coord_layouts_release(struct coord_job *job)
{
    coord_layouts_drop_next(job);
    packed_release(job->layouts.before);
    job->layouts.before = NULL;
}

/* ---- from one to the next ---- */

bool coord_layouts_behind(const struct coord_job *job)
{
    return job->layouts.before != NULL &&
           version_compare(coord_job_version(job), job->layouts.at) <= 0;
}

/* ---- what members hear ---- */

static void send_changed(struct coord_member *member, const struct coord_shard_infos *infos)
{
    const struct coord_job *job = member->job;
    const bool behind = job->layouts.before != NULL;
    Cairn__LayoutChanged message = CAIRN__LAYOUT_CHANGED__INIT;
    message.job = job->id;
    message.layout = job->layout->version;
    message.since_generation = job->layouts.at.generation;
    message.since_step = job->layouts.at.step + (behind ? 1 : 0);
    message.layout_bytes = job->planned.layout->size;
    message.shards = infos->list;
    message.n_shards = infos->count;
    coord_session_send(member->session, CAIRN_MSG_LAYOUT_CHANGED, 0, &message.base);
    coord_session_pages(member->session, 0, CAIRN_PAGE_LAYOUT, job->planned.layout);
}

static void member_layout_changed(struct coord_member *member)
{
    struct coord_shard_infos infos;
    if (coord_shard_infos_init(&infos, member->job, member->job->layout->shard_count)) {
        send_changed(member, &infos);
        coord_shard_infos_release(&infos);
        return;
    }
    // The member would read and push by a layout that is no longer in force, so it must connect
    // again.
    struct coord_session *session = member->session;
    if (session->closing) return;
    session->closing = true;
    peer_finish(session->peer, CAIRN_ERR_CLOSED, "the coordinator is out of memory");
}

void coord_members_layout_changed(struct coord_job *job)
{
    struct coord_member *next;
    for (struct coord_member *m = job->members.list; m != NULL; m = next) {
        next = m->next_of_job;
        if (m->phase == CAIRN_MEMBER_ATTACHED) member_layout_changed(m);
    }
}

/* ==== commits ==== */

static void take_out_commit(struct coord_member *member, uint32_t at)
{
    member->commits.count--;
    memmove(&member->commits.list[at], &member->commits.list[at + 1],
            (member->commits.count - at) * sizeof *member->commits.list);
}

void coord_commits_add(struct coord_member *member, uint32_t request, uint64_t round)
{
    if (member->commits.count == CAIRN_MEMBER_COMMITS_MAX) {
        const uint32_t oldest = member->commits.list[0].request;
        take_out_commit(member, 0);
        coord_session_error(member->session, oldest, CAIRN_ERR_BUSY,
                            "more than 8 calls of this worker ask how a round ends; call "
                            "it again when one of them has returned");
    }
    member->commits.list[member->commits.count++] = (struct coord_commit) { request, round };
}

bool coord_commits_answer(struct coord_member *member, const Cairn__RoundResult *result)
{
    bool any = false;
    for (uint32_t i = 0; i < member->commits.count;) {
        const struct coord_commit commit = member->commits.list[i];
        if (commit.round != result->round) {
            i++;
            continue;
        }
        take_out_commit(member, i);
        any = true;
        coord_session_send(member->session, CAIRN_MSG_ROUND_RESULT, commit.request, &result->base);
    }
    return any;
}

/* Fails all waiting commits of the member. */
static void commits_fail(struct coord_member *member, cairn_status status, const char *text)
{
    for (uint32_t i = 0; i < member->commits.count; i++)
        coord_session_error(member->session, member->commits.list[i].request, status, text);
    member->commits.count = 0;
}

/* ==== version waits ==== */

static void take_out_wait(struct coord_member *member, uint32_t at)
{
    member->waits.count--;
    memmove(&member->waits.list[at], &member->waits.list[at + 1],
            (member->waits.count - at) * sizeof *member->waits.list);
}

/* Answers the waits that can be answered now. If `state`, these are waits for the client state,
 * otherwise waits for a version. */
static void answer_version_waits(struct coord_job *job, bool state,
                                 const Cairn__VersionReady *ready)
{
    const struct cairn_version now = { ready->generation, ready->step };
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        for (uint32_t i = 0; i < m->waits.count;) {
            const struct coord_version_wait wait = m->waits.list[i];
            if (wait.state != state || version_compare(now, wait.wanted) < 0) {
                i++;
                continue;
            }
            take_out_wait(m, i);
            coord_session_send(m->session, CAIRN_MSG_VERSION_READY, wait.request, &ready->base);
        }
    }
}

/* Removes one wait, because the list has one too many. This is the first wait whose thread may have
 * given up, because the time of the wait is over or was not given. Such a wait gets no answer. If
 * there is no such wait, the newest wait is removed, and is answered with CAIRN_ERR_BUSY. */
static void make_room(struct coord_member *member, uint64_t now_ms)
{
    const uint32_t last = CAIRN_MEMBER_WAITS_MAX;
    uint32_t at = 0;
    struct sentence why;
    while (at < last && member->waits.list[at].ends_ms > now_ms) at++;
    const uint32_t request = member->waits.list[last].request;
    take_out_wait(member, at);
    if (at < last) return;
    sentence_set(&why,
                 "%d threads of this member wait for versions or client states already: ask "
                 "again when one of them has ended",
                 CAIRN_MEMBER_WAITS_MAX);
    coord_session_error(member->session, request, CAIRN_ERR_BUSY, why.text);
}

/* Begins a wait, which is answered as soon as possible. If the member already has
 * CAIRN_MEMBER_WAITS_MAX waits, make_room removes one of them, or refuses the new wait. */
static void on_version_wait(struct coord_member *member, uint32_t request, const void *any)
{
    const Cairn__VersionWait *message = any;
    const uint64_t now_ms = uv_now(member->session->cluster->loop);
    struct coord_version_wait wait = { .request = request, .state = message->client_state };
    if (!wait.state) wait.wanted = (struct cairn_version) { message->generation, message->step };
    if (message->timeout_ms != 0) wait.ends_ms = now_ms + message->timeout_ms;
    member->waits.list[member->waits.count++] = wait;
    if (wait.state)
        coord_members_answer_states(member->job);
    else
        coord_members_answer_versions(member->job);
    if (member->waits.count > CAIRN_MEMBER_WAITS_MAX) make_room(member, now_ms);
}

void coord_members_answer_states(struct coord_job *job)
{
    Cairn__VersionReady ready = CAIRN__VERSION_READY__INIT;
    const uint8_t *state;
    size_t bytes;
    if (job->core == NULL || !round_client_state(job->core, &state, &bytes)) return;
    const struct cairn_version now = coord_job_version(job);
    ready.job = job->id;
    ready.generation = now.generation;
    ready.step = now.step;
    ready.client_state = (ProtobufCBinaryData) { bytes, (uint8_t *)(uintptr_t)state };
    answer_version_waits(job, true, &ready);
}

void coord_members_answer_versions(struct coord_job *job)
{
    Cairn__VersionReady ready = CAIRN__VERSION_READY__INIT;
    if (!job->initialized || job->core == NULL) return;
    const struct cairn_version now = coord_job_version(job);
    ready.job = job->id;
    ready.generation = now.generation;
    ready.step = now.step;
    answer_version_waits(job, false, &ready);
}

void coord_members_tell_version(struct coord_job *job)
{
    const struct cairn_version now = coord_job_version(job);
    if (version_compare(now, job->members.version_sent) == 0) return;
    job->members.version_sent = now;
    coord_members_answer_versions(job);
}

/* ==== messages ==== */

const struct coord_row coord_members_rows[] = {
    { CAIRN_MSG_MEMBER_FAULT, CAIRN_FROM_PART, .by_part = on_member_fault },
    { CAIRN_MSG_VERSION_WAIT, CAIRN_FROM_MEMBER, .by_member = on_version_wait },
    { 0 },
};
