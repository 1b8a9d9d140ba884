#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/restore.h"

/* ==== handlers admin ==== */

/* Handles requests of the command line about shards, jobs and snapshots. */

/* ---- shards ---- */

static bool is_named(const Cairn__HeldJob *part, const char *job)
{
    char number[20];
    snprintf(number, sizeof number, "%016" PRIx64, part->job);
    return strcmp(part->name, job) == 0 || strcmp(number, job) == 0;
}

/* Tells the shard to drop a part. The shard answers with the parts that it still holds. These parts
 * become the entry's new list. */
static void forget_part(struct coord *cluster, struct coord_shard_entry *entry,
                        const Cairn__HeldJob *part)
{
    Cairn__PartDrop drop = CAIRN__PART_DROP__INIT;
    drop.job = part->job;
    drop.generation = part->generation;
    log_info("shard %s drops generation %" PRIu64 " of job %s, as the operator asked", entry->name,
             part->generation, part->name);
    coord_session_send(entry->session, CAIRN_MSG_PART_DROP, coord_request_new(cluster), &drop.base);
}

/* Makes shards drop the parts of a job that this store does not know, because an operator asks for it. */
static void forget_strangers(struct coord_session *session, uint32_t request,
                             const Cairn__ClusterForget *message)
{
    struct coord *cluster = session->cluster;
    struct coord_strangers strangers;
    struct sentence why;
    if (!coord_strangers_init(&strangers, cluster)) {
        coord_session_error(session, request, CAIRN_ERR_NO_MEMORY, "out of memory");
        return;
    }
    Cairn__ClusterForgotten forgotten = CAIRN__CLUSTER_FORGOTTEN__INIT;
    forgotten.parts = strangers.list;
    for (size_t i = 0; i < strangers.count; i++)
        if (is_named(strangers.list[i]->part, message->job))
            forgotten.parts[forgotten.n_parts++] = strangers.list[i];
    if (forgotten.n_parts == 0) {
        sentence_set(&why,
                     "no connected shard holds parts of a job \"%.128s\" that this store does not "
                     "know; `cairn cluster status` lists such parts",
                     message->job);
        coord_session_error(session, request, CAIRN_ERR_NOT_FOUND, why.text);
    } else {
        coord_session_send(session, CAIRN_MSG_CLUSTER_FORGOTTEN, request, &forgotten.base);
    }
    for (size_t i = 0; i < forgotten.n_parts && !message->plan; i++)
        forget_part(cluster, coord_shard_find(cluster, forgotten.parts[i]->shard),
                    forgotten.parts[i]->part);
    coord_strangers_release(&strangers);
}

static void on_shard_forget(struct coord_session *session, uint32_t request,
                            const Cairn__ShardForget *forget)
{
    struct sentence why;
    const cairn_status status = coord_shard_forget(session->cluster, forget->name, &why);
    if (status == CAIRN_OK)
        coord_session_done(session, request);
    else
        coord_session_error(session, request, status, why.text);
}

/* ---- jobs ---- */

static void on_job_spec(struct coord_session *session, uint32_t request, const char *name)
{
    const struct coord_job *job = coord_job_named(session, request, name);
    if (job == NULL) return;
    Cairn__JobSpecTold told = CAIRN__JOB_SPEC_TOLD__INIT;
    told.spec_bytes = job->planned.spec->size;
    told.workers_max = (uint32_t)session->cluster->options->workers_max;
    told.shards = job->entry_count;
    coord_session_send(session, CAIRN_MSG_JOB_SPEC_TOLD, request, &told.base);
    coord_session_pages(session, request, CAIRN_PAGE_SPEC, job->planned.spec);
}

static void begin_snapshot(struct coord_session *session, uint32_t request, const char *name,
                           bool has_files, bool wait)
{
    struct coord_job *job = coord_job_named(session, request, name);
    struct sentence why;
    if (job == NULL) return;
    const cairn_status status = coord_snapshot_begin(job, has_files, session, request, wait, &why);
    if (status != CAIRN_OK) coord_session_error(session, request, status, why.text);
}

static void cancel_snapshot(struct coord_session *session, uint32_t request,
                            const Cairn__SnapshotCancel *cancel)
{
    struct coord_job *job = coord_job_named(session, request, cancel->job);
    struct sentence why;
    if (job == NULL) return;
    const cairn_status status = coord_snapshot_cancel(job, cancel->id, session, request, &why);
    if (status != CAIRN_OK) coord_session_error(session, request, status, why.text);
}

static void on_admin_asks_who_is_awaited(struct coord_session *session, uint32_t request,
                                         const Cairn__WhoIsAwaited *message)
{
    struct coord_job *job = message->name[0] != '\0'
                                ? coord_job_find(session->cluster, message->name)
                                : coord_job_by_id(session->cluster, message->job);
    struct sentence text = { "" };
    Cairn__Awaited awaited = CAIRN__AWAITED__INIT;
    if (job != NULL && message->cut)
        awaited.away = coord_snapshot_waiting(job, &text);
    else if (job != NULL)
        coord_job_waiting(job, &text);
    awaited.text = text.text;
    coord_session_send(session, CAIRN_MSG_AWAITED, request, &awaited.base);
}

/* A row of the table of messages that a role may send: the type, the message struct, and the call. The
 * call names the message `m`. */
#define ON(type, Message, call)                            \
    case CAIRN_MSG_##type: {                               \
        const Cairn__##Message *m = (const void *)message; \
        (void)m;                                           \
        call;                                              \
        return true;                                       \
    }

bool coord_handle_admin(struct coord_session *session, const struct wire_frame *frame,
                        const ProtobufCMessage *message)
{
    const uint32_t request = frame->request;
    if (frame->type == CAIRN_MSG_HEARTBEAT) return true;
    if (request == 0) return false;
    coord_asked_note(session, frame, message);
    switch (frame->type) {
        ON(CLUSTER_STATUS_GET, ClusterStatusGet, coord_status_answer(session, request))
        ON(CLUSTER_ADOPT, ClusterAdopt, coord_adopt(session, request, m))
        ON(CLUSTER_FORGET, ClusterForget, forget_strangers(session, request, m))
        ON(CLUSTER_BACKUP, ClusterBackup, coord_backup_begin(session, request, m))
        ON(KEYS_GET, KeysGet, coord_keys_answer(session, request))
        ON(KEY_TRUST, KeyTrust, coord_key_trust(session, request, m))
        ON(SHARD_FORGET, ShardForget, on_shard_forget(session, request, m))
        ON(EVENTS_GET, EventsGet, coord_events_answer(session, request, m))
        ON(RESHARD_ASK, ReshardAsk, coord_reshard_ask(session, request, m))
        ON(MEMBER_DRAIN, MemberDrain, coord_member_drain(session, request, m))
        ON(JOB_LIST_GET, JobListGet, coord_job_list_answer(session, request))
        ON(JOB_SHOW, JobShow, coord_job_show_answer(session, request, m))
        ON(JOB_SPEC_GET, JobSpecGet, on_job_spec(session, request, m->name))
        ON(JOB_AMEND, JobAmend, coord_job_amend_by_name(session, request, m))
        ON(JOB_REMOVE, JobRemove, coord_job_remove(session, request, m))
        ON(JOB_PARK, JobPark, coord_job_park(session, request, m))
        ON(JOB_DIGEST_GET, JobDigestGet, begin_snapshot(session, request, m->name, false, true))
        ON(WHO_IS_AWAITED, WhoIsAwaited, on_admin_asks_who_is_awaited(session, request, m))
        ON(SNAPSHOT_CREATE, SnapshotCreate, begin_snapshot(session, request, m->job, true, m->wait))
        ON(SNAPSHOT_CANCEL, SnapshotCancel, cancel_snapshot(session, request, m))
        ON(SNAPSHOT_LIST_GET, SnapshotListGet, coord_snapshots_list(session, request, m->job))
        ON(SNAPSHOT_SHOW, SnapshotShow, coord_snapshots_show(session, request, m->job, m->id))
        ON(SNAPSHOT_REMOVE, SnapshotRemove, coord_snapshot_remove(session, request, m))
        ON(SNAPSHOT_PRUNE, SnapshotPrune, coord_snapshot_prune(session, request, m))
        ON(SNAPSHOT_ADVISE, SnapshotAdvise, coord_snapshot_advise(session, request, m))
        ON(SNAPSHOT_TAG, SnapshotTag, coord_snapshot_tag(session, request, m))
        ON(SNAPSHOT_RESTORE, SnapshotRestore, coord_restore_begin(session, request, m))
    }
    return false;
}

/* ==== handlers shard ==== */

/* Handles what shards send: replies to questions, and reports for the cores of their jobs. */

/* Returns the job, and the shard's index in the job. Returns NULL if the message is about a job that is
 * gone, or about a job in which the shard has no part. This is no fault, because the job may have been
 * dropped while the message was in flight. */
static struct coord_job *place_of(struct coord_session *session, uint64_t job_id,
                                  uint32_t *shard_out)
{
    struct coord_job *job = coord_job_by_id(session->cluster, job_id);
    if (job == NULL || session->entry == NULL) return NULL;
    CAIRN_EACH_SHARD (job, i) {
        if (job->shards[i].entry != session->entry || !job->shards[i].up) continue;
        *shard_out = i;
        return job;
    }
    return NULL;
}

static bool read_u64(const Cairn__ReducedValue *value, uint64_t *out)
{
    if (value->value.len != 8) return false;
    *out = 0;
    for (int i = 7; i >= 0; i--) *out = *out << 8 | value->value.data[i];
    return true;
}

/* Reads the sums. Returns false unless each of the three keys occurs once, with its operation. */
static bool read_sums(const Cairn__Reduced *message, struct step_sums *out)
{
    unsigned seen = 0;
    for (size_t i = 0; i < message->n_values; i++) {
        const Cairn__ReducedValue *v = message->values[i];
        if (v->key < 1 || v->key > 3 || v->op != v->key || (seen & 1u << v->key)) return false;
        seen |= 1u << v->key;
        if (v->key == 1) {
            if (v->value.len != CAIRN_EXACT_BYTES) return false;
            exact_decode(v->value.data, &out->sum_squares);
        } else if (!read_u64(v, v->key == 2 ? &out->nonfinite : &out->weight)) {
            return false;
        }
    }
    return seen == (1u << 1 | 1u << 2 | 1u << 3);
}

/* Returns a malloc'ed list, or NULL if there is no memory. */
static struct round_untouched *read_untouched(const Cairn__Reduced *message)
{
    struct round_untouched *list = calloc(message->n_untouched_tensors + 1, sizeof *list);
    for (size_t i = 0; list != NULL && i < message->n_untouched_tensors; i++)
        list[i] = (struct round_untouched) { message->untouched_elems[i],
                                             message->untouched_tensors[i] };
    return list;
}

static bool on_reduced(struct coord_session *session, const Cairn__Reduced *message)
{
    struct step_sums sums;
    uint32_t shard;
    if (!read_sums(message, &sums) || message->n_untouched_tensors != message->n_untouched_elems)
        return false;
    struct coord_job *job = place_of(session, message->job, &shard);
    if (job == NULL) return true;
    struct round_untouched *untouched = read_untouched(message);
    if (untouched == NULL) return false; // the shard repeats the message after a reconnect
    coord_halts_reduced(job, shard, message, sums.nonfinite);
    const struct round_event event = { .kind = CAIRN_ROUND_REDUCED,
                                       .shard = shard,
                                       .epoch = message->epoch,
                                       .round = message->round,
                                       .sums = &sums,
                                       .untouched = untouched,
                                       .untouched_count = (uint32_t)message->n_untouched_tensors };
    coord_job_event(job, &event);
    free(untouched);
    return true;
}

static void on_published(struct coord_session *session, const Cairn__Published *message)
{
    uint32_t shard;
    struct coord_job *job = place_of(session, message->job, &shard);
    if (job == NULL) return;
    step_ring_take(&job->shards[shard].times, message->times);
    coord_halts_take(job, shard, message);
    const struct round_event event = { .kind = CAIRN_ROUND_PUBLISHED,
                                       .shard = shard,
                                       .epoch = message->epoch,
                                       .round = message->round,
                                       .version = { message->generation, message->step },
                                       .nonfinite = message->nonfinite > 0 };
    coord_job_event(job, &event);
}

/* Converts the message; `out` borrows its payload. CAIRN_ERR_MALFORMED. */
static cairn_status decision_of_message(const Cairn__Decision *message, struct decision *out)
{
    struct payload head;
    if (message->kind > CAIRN_DECISION_WRITE) return CAIRN_ERR_MALFORMED;
    if (message->payload.len > 0 &&
        payload_decode(message->payload.data, message->payload.len, &head) != CAIRN_OK)
        return CAIRN_ERR_MALFORMED;
    *out = (struct decision) { .kind = (enum decision_kind)message->kind,
                               .round = message->round,
                               .version_after = { message->generation, message->step },
                               .payload = message->payload.data,
                               .payload_bytes = message->payload.len };
    return CAIRN_OK;
}

static bool on_answer(struct coord_session *session, const Cairn__Answer *message)
{
    struct decision last = { .kind = CAIRN_DECISION_NONE };
    uint32_t shard;
    if (message->phase > CAIRN_STEP_JOINING) return false;
    if (message->last != NULL && decision_of_message(message->last, &last) != CAIRN_OK)
        return false;
    struct coord_job *job = place_of(session, message->job, &shard);
    if (job == NULL) return true;
    coord_tiles_heard(job, message->tiles_world);
    const struct round_event event = { .kind = CAIRN_ROUND_ANSWER,
                                       .shard = shard,
                                       .epoch = message->epoch,
                                       .refused = message->refused,
                                       .phase = (enum step_phase)message->phase,
                                       .round = message->open_round,
                                       .version = { message->generation, message->step },
                                       .decision = &last };
    coord_job_event(job, &event);
    return true;
}

static bool on_lacks(struct coord_session *session, const Cairn__Lacks *message)
{
    const size_t count = message->n_members;
    uint32_t shard;
    if (message->n_micros != count || message->n_flags != count) return false;
    struct coord_job *job = place_of(session, message->job, &shard);
    struct round_lack *lacks = job == NULL ? NULL : calloc(count + 1, sizeof *lacks);
    // if there is no memory, the shard is asked again at the next deadline
    if (lacks == NULL) return true;
    for (size_t i = 0; i < count; i++)
        lacks[i] = (struct round_lack) {
            .member = message->members[i],
            .micro = message->micros[i],
            .waits = (message->flags[i] & CAIRN_LACK_WAITS) != 0,
            .relayed = (message->flags[i] & CAIRN_LACK_RELAYED) != 0,
        };
    const struct round_event event = { .kind = CAIRN_ROUND_LACKS,
                                       .shard = shard,
                                       .epoch = message->epoch,
                                       .round = message->round,
                                       .lacks = lacks,
                                       .lack_count = (uint32_t)count };
    coord_straggler_lacks(job, message);
    coord_job_event(job, &event);
    free(lacks);
    return true;
}

/* Takes a shard's sentence about its storage. Makes the sentence one line, because it is logged and shown
 * to operators. */
static void take_storage(struct coord_shard_entry *entry, const char *why)
{
    struct sentence said;
    sentence_set(&said, "%s", why);
    text_mend(said.text, "");
    if (strcmp(entry->storage.text, said.text) == 0) return;
    entry->storage = said;
    if (said.text[0] != '\0')
        log_warn("no snapshot can be saved: shard %s: %s", entry->name, said.text);
    else
        log_info("shard %s can save snapshots again", entry->name);
}

static void on_shard_heartbeat(struct coord_session *session, const Cairn__Heartbeat *message)
{
    if (session->entry == NULL) return;
    coord_unheard_take(session, message->unheard, message->n_unheard);
    if (message->stats == NULL) return;
    session->entry->stats = *message->stats; // it has only numbers, no pointers
    session->entry->has_stats = true;
    take_storage(session->entry, message->storage);
    coord_bytes_take(session->entry, message);
    coord_snapshot_on_progress(session->cluster, session->entry, message);
}

static void on_snapshot_part(struct coord_session *session, const Cairn__SnapshotPart *message)
{
    uint32_t shard;
    if (coord_restore_on_part(session, message)) return;
    struct coord_job *job = place_of(session, message->job, &shard);
    if (job != NULL) coord_snapshot_on_part(job, shard, message);
}

/* A row for a message about a job of which the shard has a part. The message is ignored if the shard no
 * longer has a part. */
#define ON_PART(type, Message, call)                                                             \
    ON(type, Message, uint32_t shard; struct coord_job *job = place_of(session, m->job, &shard); \
       if (job != NULL) call)

bool coord_handle_shard(struct coord_session *session, const struct wire_frame *frame,
                        const ProtobufCMessage *message)
{
    const Cairn__Error *error = (const Cairn__Error *)message;
    const uint32_t request = frame->request;
    switch (frame->type) {
        ON(HEARTBEAT, Heartbeat, on_shard_heartbeat(session, m))
        ON(DONE, Done, coord_calls_reply(session->entry, request, CAIRN_OK, ""))
        ON(PUBLISHED, Published, on_published(session, m))
        ON_PART(PART_MOVED, PartMoved, coord_slice_moved(job, shard, m))
        ON(SNAPSHOT_PART, SnapshotPart, on_snapshot_part(session, m))
        ON_PART(MEMBER_FAULT, MemberFault, coord_member_fault(job, m->member, m->text))
        ON(DRAIN_ME, DrainMe, coord_drain_me(session, request, m))
        ON(PART, Part, coord_adopt_on_part(session, request, m))
        ON(PAGE, Page, coord_adopt_on_page(session, request, m))
    case CAIRN_MSG_ERROR:
        coord_calls_reply(session->entry, request,
                          status_known(error->status) && error->status != CAIRN_OK
                              ? (cairn_status)error->status
                              : CAIRN_ERR_INTERNAL,
                          error->text);
        return true;
    case CAIRN_MSG_REDUCED: return on_reduced(session, (const Cairn__Reduced *)message);
    case CAIRN_MSG_ANSWER: return on_answer(session, (const Cairn__Answer *)message);
    case CAIRN_MSG_LACKS: return on_lacks(session, (const Cairn__Lacks *)message);
    case CAIRN_MSG_HELD_JOBS:
        if (!coord_shard_take_held(session, frame)) return false;
        coord_openings_advance(session->cluster);
        return true;
    }
    return false;
}

/* ==== handlers worker ==== */

/* Handles what workers and readers send. */

/* Returns the session's member of the job, JOINING or ATTACHED. Returns NULL if there is none. */
static struct coord_member *find_member(struct coord_session *session, uint64_t job_id)
{
    struct coord_member *found = NULL;
    for (struct coord_member *m = session->members; m != NULL; m = m->next_of_session) {
        if (m->job_id != job_id || m->phase < CAIRN_MEMBER_JOINING) continue;
        if (found == NULL || m->phase == CAIRN_MEMBER_ATTACHED) found = m;
    }
    return found;
}

/* Returns the attached member to which a request belongs. Returns NULL if there is none; then the request
 * was answered with an error. */
static struct coord_member *attached_member(struct coord_session *session, uint32_t request,
                                            uint64_t job_id)
{
    struct coord_member *member = find_member(session, job_id);
    if (member == NULL || member->phase != CAIRN_MEMBER_ATTACHED) {
        coord_session_error(session, request, CAIRN_ERR_NOT_READY,
                            "the job is not open on this connection: open it first");
        return NULL;
    }
    return member;
}

static struct coord_member *attached_worker(struct coord_session *session, uint32_t request,
                                            uint64_t job_id)
{
    struct coord_member *member = attached_member(session, request, job_id);
    if (member == NULL || member->role == CAIRN_ROLE_WIRE_WORKER) return member;
    coord_session_error(session, request, CAIRN_ERR_REFUSED, "a reader contributes to no round");
    return NULL;
}

static void on_round_begin(struct coord_member *member, uint32_t request)
{
    member->begin_request = request;
    coord_tiles_begins(member);
    const struct round_event begin = { .kind = CAIRN_ROUND_WORKER_BEGIN, .member = member->id };
    coord_job_event(member->job, &begin);
}

/* Checks the learning rates that a commit brings for driven groups. A bad rate is refused here, so that
 * the round continues without this commit. */
static cairn_status judge_driven(const struct coord_job *job, const Cairn__RoundCommit *message,
                                 struct sentence *why)
{
    const struct round_terms *terms = round_terms_of(job->core);
    if (message->n_driven != job->spec.group_count)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "job %s has driven groups: a commit brings a learning rate for each of "
                         "its %zu groups, this one brings %zu",
                         job->spec.name, job->spec.group_count, message->n_driven);
    for (size_t g = 0; g < job->spec.group_count; g++) {
        struct group_hyper hyper = terms->groups[g];
        hyper.lr = message->driven[g];
        if (terms->schedules[g].kind != CAIRN_SCHEDULE_DRIVEN ||
            group_hyper_check(&hyper, NULL) == CAIRN_OK)
            continue;
        return fail_with(why, CAIRN_ERR_INVALID,
                         "group %s: the commit of round %" PRIu64
                         " brings the learning rate %g; allowed: 0 to 1e18",
                         job->spec.groups[g].name, message->round, hyper.lr);
    }
    return CAIRN_OK;
}

static void on_round_commit(struct coord_member *member, uint32_t request,
                            const Cairn__RoundCommit *message)
{
    if (message->client_state.len > member->job->spec.client_state_max) {
        coord_session_error(member->session, request, CAIRN_ERR_INVALID,
                            "the client state is longer than the job's client_state_max");
        return;
    }
    struct coord_job *job = member->job;
    const bool driven = !message->abandon && job->core != NULL &&
                        round_takes_driven(job->core, member->id, message->round);
    struct sentence why;
    if (driven && judge_driven(job, message, &why) != CAIRN_OK) {
        coord_session_error(member->session, request, CAIRN_ERR_INVALID, why.text);
        return;
    }
    coord_commits_add(member, request, message->round);
    step_ring_take(&member->times, message->times);
    if (message->abandon && job->core != NULL && message->round == round_open_round(job->core))
        sentence_set(&job->rounds.epoch_reason, "worker %s (rank %" PRIu32 ") gave the round up",
                     member->session->name, member->rank);
    const struct round_event event = { .kind = message->abandon ? CAIRN_ROUND_WORKER_ABANDON
                                                                : CAIRN_ROUND_WORKER_COMMIT,
                                       .member = member->id,
                                       .round = message->round,
                                       .state = message->client_state.data,
                                       .state_bytes = message->client_state.len,
                                       .driven = driven ? message->driven : NULL };
    coord_job_event(job, &event);
}

static void cancel_write(struct coord_member *member, uint64_t round)
{
    struct coord_job *job = member->job;
    member->write.reserves = false;
    const struct round_event unwrite = { .kind = CAIRN_ROUND_WORKER_UNWRITE,
                                         .member = member->id,
                                         .round = round };
    if (job->core != NULL && round_open_round(job->core) == round)
        sentence_set(&job->rounds.epoch_reason, "worker %s (rank %" PRIu32 ") gave up its write",
                     member->session->name, member->rank);
    coord_job_event(job, &unwrite);
}

static void on_write_cancel(struct coord_member *member, uint32_t request,
                            const Cairn__WriteCancel *message)
{
    struct coord_session *session = member->session; // the call below may remove the member
    cancel_write(member, message->round);
    coord_session_done(session, request);
}

static void on_lease_drop(struct coord_member *member, uint32_t request,
                          const Cairn__LeaseDrop *message)
{
    struct coord_session *session = member->session; // the call below may remove the member
    coord_lease_drop(member, message);
    coord_session_done(session, request);
}

static void on_job_leave(struct coord_session *session, const Cairn__JobLeave *message)
{
    struct coord_member *member = find_member(session, message->job);
    if (member == NULL) return;
    coord_bytes_read(member, message->fetched_shared);
    coord_member_leave(member, "it closed the job");
}

static void on_worker_heartbeat(struct coord_session *session, const Cairn__Heartbeat *message)
{
    for (size_t i = 0; i < message->n_bytes && i < CAIRN_SESSION_MEMBERS_MAX; i++) {
        const Cairn__BytesTold *told = message->bytes[i];
        struct coord_member *member = find_member(session, told->job);
        if (member != NULL) coord_bytes_read(member, told->fetched_shared);
    }
    coord_unheard_take(session, message->unheard, message->n_unheard);
    for (struct coord_member *m = session->members; m != NULL; m = m->next_of_session)
        m->in_flight = 0;
    for (size_t i = 0; i < message->n_in_flight && i < CAIRN_SESSION_MEMBERS_MAX; i++) {
        struct coord_member *member = find_member(session, message->in_flight[i]->job);
        if (member != NULL) member->in_flight = message->in_flight[i]->what;
    }
}

static void on_page(struct coord_session *session, uint32_t request, const Cairn__Page *page)
{
    if (page->what == CAIRN_PAGE_TILES)
        coord_tiles_page(session, request, page);
    else
        coord_member_page(session, request, page);
}

/* True if the member's job exists, but another worker has the member's rank. */
static bool is_contested(const struct coord_member *member)
{
    return member->phase == CAIRN_MEMBER_WAITING && member->job == NULL &&
           member->opening.contested_ms != 0;
}

/* True if the member's job exists, but the member has failed too often. */
static bool is_put_off(const struct coord_member *member)
{
    return member->phase == CAIRN_MEMBER_WAITING && member->job == NULL && member->opening.put_off;
}

/* Says what a request to open a job waits for, before the job exists or before all its shards know the
 * member. */
static void describe_opening(const struct coord_session *session, struct sentence *out)
{
    const struct coord *cluster = session->cluster;
    const uint32_t up = coord_shards_up(cluster);
    for (const struct coord_member *m = session->members; m != NULL; m = m->next_of_session)
        if (m->phase == CAIRN_MEMBER_WAITING && coord_job_is_strange(cluster, m->job_name, out))
            return;
    for (const struct coord_member *m = session->members; m != NULL; m = m->next_of_session)
        if (m->phase == CAIRN_MEMBER_WAITING && coord_resuming(cluster, m->job_name)) {
            sentence_set(out, "the newest snapshot of job %s to be restored", m->job_name);
            return;
        }
    for (const struct coord_member *m = session->members; m != NULL; m = m->next_of_session)
        if (is_contested(m)) {
            sentence_set(out,
                         "the worker that has rank %" PRIu32
                         " of job %s to be gone; CAIRN_OPEN_TAKEOVER (in Python "
                         "takeover=True) takes its place",
                         m->rank, m->job_name);
            return;
        }
    for (const struct coord_member *m = session->members; m != NULL; m = m->next_of_session) {
        struct coord_job *job = coord_job_find(session->cluster, m->job_name);
        if (job == NULL || !is_put_off(m)) continue;
        coord_relapse_waiting(job, m, out);
        return;
    }
    if (up < (uint64_t)cluster->options->shards) {
        const uint64_t more = (uint64_t)cluster->options->shards - up;
        sentence_set(out, "%" PRIu64 " more shard%s (%" PRIu32 " of %" PRId64 " up)", more,
                     more == 1 ? "" : "s", up, cluster->options->shards);
        return;
    }
    sentence_set(out, "the shards to make room for the job");
}

static void on_worker_asks_who_is_awaited(struct coord_session *session, uint32_t request,
                                          const Cairn__WhoIsAwaited *message)
{
    struct coord_job *job = coord_job_by_id(session->cluster, message->job);
    struct sentence text;
    Cairn__Awaited awaited = CAIRN__AWAITED__INIT;
    for (struct coord_member *m = session->members; m != NULL && job == NULL;
         m = m->next_of_session) {
        if (m->job == NULL && m->phase == CAIRN_MEMBER_WAITING && !is_contested(m) &&
            !is_put_off(m))
            job = coord_job_find(session->cluster, m->job_name);
    }
    const struct coord_member *member = job != NULL ? find_member(session, job->id) : NULL;
    if (job != NULL && message->cut) {
        (void)coord_snapshot_waiting(job, &text);
    } else if (member != NULL && message->lease && coord_leases_waiting(member, &text)) {
        // `text` says for whom the job waits
    } else if (job != NULL) {
        coord_job_waiting(job, &text);
        awaited.paused_ms = (uint32_t)coord_job_paused_ms(job);
        // The job's round waits for a worker that is alive and has not said why.
        awaited.silent = job->core != NULL && !coord_job_dead(job) && job->initialized &&
                         coord_job_shards_up(job) && round_waits_for_silent(job->core);
    } else {
        describe_opening(session, &text);
    }
    awaited.text = text.text;
    coord_session_send(session, CAIRN_MSG_AWAITED, request, &awaited.base);
}

/* Begins a snapshot for a worker. The worker is answered at once, or when the snapshot is committed. */
static void on_snapshot_create(struct coord_session *session, uint32_t request,
                               const Cairn__SnapshotCreate *message)
{
    struct coord_job *job = coord_job_find(session->cluster, message->job);
    struct sentence why;
    cairn_status status = CAIRN_ERR_NOT_FOUND;
    sentence_set(&why, "there is no job %s; `cairn job list` shows those there are", message->job);
    if (job != NULL)
        status = coord_snapshot_begin(job, true, session, request, message->wait, &why);
    if (status != CAIRN_OK) coord_session_error(session, request, status, why.text);
}

/* Rows for requests that only attached members, or only attached workers, may send. Other requests are
 * refused. */
#define ON_MEMBER(type, Message, call)                                                         \
    ON(type, Message, struct coord_member *member = attached_member(session, request, m->job); \
       if (member != NULL) call)
#define ON_WORKER(type, Message, call)                                                         \
    ON(type, Message, struct coord_member *member = attached_worker(session, request, m->job); \
       if (member != NULL) call)

bool coord_handle_worker(struct coord_session *session, const struct wire_frame *frame,
                         const ProtobufCMessage *message)
{
    const uint32_t request = frame->request;
    switch (frame->type) {
        ON(HEARTBEAT, Heartbeat, on_worker_heartbeat(session, m))
        ON(PAGE, Page, on_page(session, request, m))
        ON(JOB_LEAVE, JobLeave, on_job_leave(session, m))
    }
    if (request == 0) return false; // all other messages are requests
    switch (frame->type) {
        ON(JOB_OPEN, JobOpen, coord_member_open(session, request, m))
        ON(WHO_IS_AWAITED, WhoIsAwaited, on_worker_asks_who_is_awaited(session, request, m))
        ON(SNAPSHOT_CREATE, SnapshotCreate, on_snapshot_create(session, request, m))
        ON_WORKER(INIT_DONE, InitDone, coord_member_init_done(member, request, m))
        ON_WORKER(ROUND_BEGIN, RoundBegin, on_round_begin(member, request))
        ON_WORKER(ROUND_COMMIT, RoundCommit, on_round_commit(member, request, m))
        ON_WORKER(WRITE_BEGIN, WriteBegin, coord_member_write(member, request))
        ON_WORKER(WRITE_CANCEL, WriteCancel, on_write_cancel(member, request, m))
        ON_WORKER(PAUSE, Pause, coord_member_pause(member, request, m))
        ON_WORKER(TILES_DECLARE, TilesDeclare, coord_tiles_declare(member, request, m))
        ON_WORKER(JOB_AMEND, JobAmend, coord_job_amend(member, request, m))
        ON_MEMBER(VERSION_WAIT, VersionWait, coord_member_version_wait(member, request, m))
        ON_MEMBER(LEASE_TAKE, LeaseTake, coord_lease_take(member, request, m))
        ON_MEMBER(LEASE_DROP, LeaseDrop, on_lease_drop(member, request, m))
    }
    return false;
}
