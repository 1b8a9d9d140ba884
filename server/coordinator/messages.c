#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "server/coordinator/access.h"
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

/* Tells the shard to drop a part. The shard answers with a list of the parts that it still holds,
 * which replaces the list in the shard's entry. */
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

/* Makes the shards drop their parts of a job, because an operator asks for this. Only parts that
 * our store does not know are dropped. */
static cairn_status on_cluster_forget(struct coord_session *session, uint32_t request,
                                      const void *any, struct sentence *why)
{
    const Cairn__ClusterForget *message = any;
    struct coord *cluster = session->cluster;
    struct coord_answer answer = { 0 };
    cairn_status status = CAIRN_OK;
    Cairn__ClusterForgotten forgotten = CAIRN__CLUSTER_FORGOTTEN__INIT;
    coord_strangers_add(cluster, &answer, &forgotten.base, "parts");
    const size_t count = answer.failed ? 0 : forgotten.n_parts;
    forgotten.n_parts = 0;
    for (size_t i = 0; i < count; i++)
        if (is_named(forgotten.parts[i]->part, message->job))
            forgotten.parts[forgotten.n_parts++] = forgotten.parts[i];
    if (answer.failed)
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    else if (forgotten.n_parts == 0)
        status = fail_with(
            why, CAIRN_ERR_NOT_FOUND,
            "no connected shard holds parts of a job \"%.128s\" that this store does not "
            "know; `cairn cluster status` lists such parts",
            message->job);
    else
        coord_session_send(session, CAIRN_MSG_CLUSTER_FORGOTTEN, request, &forgotten.base);
    for (size_t i = 0; i < forgotten.n_parts && !message->plan; i++)
        forget_part(cluster, coord_shard_find(cluster, forgotten.parts[i]->shard),
                    forgotten.parts[i]->part);
    coord_answer_release(&answer);
    return status;
}

static cairn_status on_shard_forget(struct coord_session *session, uint32_t request,
                                    const void *any, struct sentence *why)
{
    const Cairn__ShardForget *forget = any;
    CAIRN_TRY(coord_shard_forget(session->cluster, forget->name, why));
    coord_session_done(session, request);
    return CAIRN_OK;
}

/* ---- jobs ---- */

static cairn_status on_job_spec_get(struct coord_session *session, uint32_t request,
                                    const void *any, struct sentence *why)
{
    const Cairn__JobSpecGet *get = any;
    const struct coord_job *job = coord_job_named(session->cluster, get->name, why);
    if (job == NULL) return CAIRN_ERR_NOT_FOUND;
    Cairn__JobSpecTold told = CAIRN__JOB_SPEC_TOLD__INIT;
    told.spec_bytes = job->planned.spec->size;
    told.workers_max = (uint32_t)session->cluster->options->workers_max;
    told.shards = job->entry_count;
    coord_session_send(session, CAIRN_MSG_JOB_SPEC_TOLD, request, &told.base);
    coord_session_pages(session, request, CAIRN_PAGE_SPEC, job->planned.spec);
    return CAIRN_OK;
}

static cairn_status on_job_digest_get(struct coord_session *session, uint32_t request,
                                      const void *any, struct sentence *why)
{
    const Cairn__JobDigestGet *get = any;
    struct coord_job *job = coord_job_named(session->cluster, get->name, why);
    if (job == NULL) return CAIRN_ERR_NOT_FOUND;
    return coord_snapshot_begin(job, false, session, request, true, why);
}

/* Begins a snapshot for an admin or a worker, who is answered when the snapshot has begun or, if the
 * message says `wait`, when the snapshot is committed. */
static cairn_status on_snapshot_create(struct coord_session *session, uint32_t request,
                                       const void *any, struct sentence *why)
{
    const Cairn__SnapshotCreate *create = any;
    struct coord_job *job = coord_job_named(session->cluster, create->job, why);
    if (job == NULL) return CAIRN_ERR_NOT_FOUND;
    return coord_snapshot_begin(job, true, session, request, create->wait, why);
}

static cairn_status on_snapshot_cancel(struct coord_session *session, uint32_t request,
                                       const void *any, struct sentence *why)
{
    const Cairn__SnapshotCancel *cancel = any;
    struct coord_job *job = coord_job_named(session->cluster, cancel->job, why);
    if (job == NULL) return CAIRN_ERR_NOT_FOUND;
    return coord_snapshot_cancel(job, cancel->id, session, request, why);
}

/* Refuses to tell of a job that the session may not look at. False: it may. */
static bool refuse_look(struct coord_session *session, uint32_t request,
                        const struct coord_job *job)
{
    struct sentence why;
    const cairn_status status = coord_job_judge_access(coord_who(session), job, CAIRN_ACCESS_LOOK,
                                                       &why);
    if (status != CAIRN_OK) coord_session_error(session, request, status, why.text);
    return status != CAIRN_OK;
}

static void on_admin_asks_who_is_awaited(struct coord_session *session, uint32_t request,
                                         const void *any)
{
    const Cairn__WhoIsAwaited *message = any;
    struct coord_job *job = message->name[0] != '\0'
                                ? coord_job_find(session->cluster, message->name)
                                : coord_job_by_id(session->cluster, message->job);
    struct sentence text = { "" };
    Cairn__Awaited awaited = CAIRN__AWAITED__INIT;
    if (job != NULL && refuse_look(session, request, job)) return;
    if (job != NULL && message->cut)
        awaited.away = coord_snapshot_waiting(job, &text);
    else if (job != NULL)
        coord_job_waiting(job, &text);
    awaited.text = text.text;
    coord_session_send(session, CAIRN_MSG_AWAITED, request, &awaited.base);
}

/* ==== handlers shard ==== */

/* Handles what shards send: replies to questions, and reports for the cores of their jobs. */

static bool read_u64(const Cairn__ReducedValue *value, uint64_t *out)
{
    if (value->value.len != 8) return false;
    *out = 0;
    for (int i = 7; i >= 0; i--) *out = *out << 8 | value->value.data[i];
    return true;
}

/* Reads the sums of a step. Returns false unless each of the three keys occurs exactly once, with
 * the operation that belongs to the key. */
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

/* Returns a malloc'ed list of the untouched tensors, or NULL if there is no memory. */
static struct round_untouched *read_untouched(const Cairn__Reduced *message)
{
    struct round_untouched *list = calloc(message->n_untouched_tensors + 1, sizeof *list);
    for (size_t i = 0; list != NULL && i < message->n_untouched_tensors; i++)
        list[i] = (struct round_untouched) { message->untouched_elems[i],
                                             message->untouched_tensors[i] };
    return list;
}

static bool on_reduced(struct coord_job *job, uint32_t shard, const void *any)
{
    const Cairn__Reduced *message = any;
    struct step_sums sums;
    if (!read_sums(message, &sums) || message->n_untouched_tensors != message->n_untouched_elems)
        return false;
    struct round_untouched *untouched = read_untouched(message);
    if (untouched == NULL) return false; // the shard repeats the message after a reconnect
    coord_halts_reduced(job, shard, message, sums.nonfinite);
    const struct round_event event = { .kind = CAIRN_ROUND_REDUCED,
                                       .shard = shard,
                                       .epoch = message->epoch,
                                       .round = message->round,
                                       .sums = &sums,
                                       .untouched = { untouched,
                                                      (uint32_t)message->n_untouched_tensors } };
    coord_job_event(job, &event);
    free(untouched);
    return true;
}

static bool on_published(struct coord_job *job, uint32_t shard, const void *any)
{
    const Cairn__Published *message = any;
    step_ring_take(&job->shards[shard].times, message->times);
    coord_halts_take(job, shard, message);
    const struct round_event event = { .kind = CAIRN_ROUND_PUBLISHED,
                                       .shard = shard,
                                       .epoch = message->epoch,
                                       .round = message->round,
                                       .version = { message->generation, message->step },
                                       .nonfinite = message->nonfinite > 0 };
    coord_job_event(job, &event);
    return true;
}

/* Converts the message to a decision, which borrows the message's payload. CAIRN_ERR_MALFORMED. */
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

static bool on_answer(struct coord_job *job, uint32_t shard, const void *any)
{
    const Cairn__Answer *message = any;
    struct decision last = { .kind = CAIRN_DECISION_NONE };
    if (message->phase > CAIRN_STEP_JOINING) return false;
    if (message->last != NULL && decision_of_message(message->last, &last) != CAIRN_OK)
        return false;
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

static bool on_lacks(struct coord_job *job, uint32_t shard, const void *any)
{
    const Cairn__Lacks *message = any;
    const size_t count = message->n_members;
    if (message->n_micros != count || message->n_flags != count) return false;
    struct round_lack *lacks = calloc(count + 1, sizeof *lacks);
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
                                       .lacks = { lacks, (uint32_t)count } };
    coord_straggler_lacks(job, message);
    coord_job_event(job, &event);
    free(lacks);
    return true;
}

/* Takes a shard's sentence about its storage. Makes the sentence one line, because it is logged and
 * shown to operators. */
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

static void on_shard_heartbeat(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__Heartbeat *message = any;
    (void)request;
    if (session->entry == NULL) return;
    coord_unheard_take(session, message->unheard, message->n_unheard);
    if (message->stats == NULL) return;
    session->entry->told.stats = *message->stats; // stats has only numbers, no pointers
    session->entry->told.has_stats = true;
    take_storage(session->entry, message->storage);
    coord_bytes_take(session->entry, message);
    coord_durability_take(session->entry, message->tiers);
    coord_logs_take(session->cluster, session->entry, message);
    coord_snapshot_on_progress(session->cluster, session->entry, message);
}

/* Returns the job, and the shard's index in the job. Returns NULL if the message is about a job
 * that is gone, or about a job in which the shard has no part. This is no fault, because the job
 * may have been dropped while the message was in flight. */
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

static void on_snapshot_part(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__SnapshotPart *message = any;
    uint32_t shard;
    (void)request;
    if (coord_restore_on_part(session, message)) return;
    struct coord_job *job = place_of(session, message->job, &shard);
    if (job != NULL) coord_snapshot_on_part(job, shard, message);
}

static void on_done(struct coord_session *session, uint32_t request, const void *any)
{
    (void)any;
    coord_calls_reply(session->entry, request, CAIRN_OK, "");
}

static void on_error(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__Error *error = any;
    const bool is_known = status_known(error->status) && error->status != CAIRN_OK;
    coord_calls_reply(session->entry, request,
                      is_known ? (cairn_status)error->status : CAIRN_ERR_INTERNAL, error->text);
}

/* Says so once: the shard says it in each session. */
static void note_stopped(struct coord_session *session, const struct coord_job *job,
                         const char *why)
{
    struct coord_told *told = &session->entry->told;
    if (told->stopped_incarnation == session->incarnation && told->stopped_job == job->id) return;
    told->stopped_incarnation = session->incarnation;
    told->stopped_job = job->id;
    log_error("job %s: shard %s has stopped its part: %s", job->spec.name, session->name, why);
    coord_event_note_shard(session->cluster, CAIRN_EVENT_STOPPED, job->spec.name, session->name,
                           why);
}

static void on_part_stopped(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__PartStopped *message = any;
    struct coord_job *job = coord_job_by_id(session->cluster, message->job);
    (void)request;
    if (job == NULL || session->entry == NULL || job->generation != message->generation) return;
    note_stopped(session, job, message->why);
    coord_mirrors_part_stopped(job, session->entry, message->why);
    coord_job_part_stopped(job, session->entry, message->why);
}

static bool on_held_jobs(struct coord_session *session, const struct wire_frame *frame)
{
    if (!coord_shard_take_held(session, frame)) return false;
    coord_openings_advance(session->cluster);
    return true;
}

/* ==== handlers worker ==== */

/* Handles what workers and readers send. */

/* Returns the session's member of the job, if the member is JOINING or ATTACHED. If there are two,
 * returns the one that is ATTACHED. Returns NULL if there is none. */
static struct coord_member *find_member(struct coord_session *session, uint64_t job_id)
{
    struct coord_member *found = NULL;
    for (struct coord_member *m = session->members; m != NULL; m = m->next_of_session) {
        if (m->job_id != job_id || m->phase < CAIRN_MEMBER_JOINING) continue;
        if (found == NULL || m->phase == CAIRN_MEMBER_ATTACHED) found = m;
    }
    return found;
}

/* Returns the attached member to which a request belongs. If there is none, answers the request
 * with an error, and returns NULL. */
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

static void on_round_begin(struct coord_member *member, uint32_t request, const void *any)
{
    (void)any;
    member->begin_request = request;
    coord_tiles_begins(member);
    const struct round_event begin = { .kind = CAIRN_ROUND_WORKER_BEGIN, .member = member->id };
    coord_job_event(member->job, &begin);
}

/* Checks the learning rates that a commit brings for driven groups. A bad rate is refused here, so
 * that the round continues without this commit. */
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

static void on_round_commit(struct coord_member *member, uint32_t request, const void *any)
{
    const Cairn__RoundCommit *message = any;
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
    const struct round_event event = {
        .kind = message->abandon ? CAIRN_ROUND_WORKER_ABANDON : CAIRN_ROUND_WORKER_COMMIT,
        .member = member->id,
        .round = message->round,
        .commit = { message->client_state.data, message->client_state.len,
                    driven ? message->driven : NULL }
    };
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

static void on_write_cancel(struct coord_member *member, uint32_t request, const void *any)
{
    const Cairn__WriteCancel *message = any;
    struct coord_session *session = member->session; // the call below may remove the member
    cancel_write(member, message->round);
    coord_session_done(session, request);
}

static void on_job_leave(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__JobLeave *message = any;
    (void)request;
    struct coord_member *member = find_member(session, message->job);
    if (member == NULL) return;
    coord_bytes_read(member, message->fetched_shared);
    coord_member_leave(member, "it closed the job");
}

static void on_trainer_heartbeat(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__Heartbeat *message = any;
    (void)request;
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

static void on_page(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__Page *page = any;
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

/* True if the member's job exists, but the member is put off because it has failed too often. */
static bool is_put_off(const struct coord_member *member)
{
    return member->phase == CAIRN_MEMBER_WAITING && member->job == NULL && member->opening.put_off;
}

/* Says what a request to open a job waits for, while the job does not exist, or while not all of
 * its shards know the member. */
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

/* True if a member waits until the job has an owner. */
static bool lacks_owner(const struct coord_session *session, const struct coord_job *job,
                        struct sentence *out)
{
    for (const struct coord_member *m = session->members; m != NULL; m = m->next_of_session) {
        if (m->phase != CAIRN_MEMBER_WAITING || !coord_job_lacks_owner(m, job)) continue;
        sentence_set(
            out, "an admin to say whose job %s is, which has no owner: `cairn job chown %s OWNER`",
            job->spec.name, job->spec.name);
        return true;
    }
    return false;
}

static void on_trainer_asks_who_is_awaited(struct coord_session *session, uint32_t request,
                                           const void *any)
{
    const Cairn__WhoIsAwaited *message = any;
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
    if (job != NULL && refuse_look(session, request, job)) return;
    if (job != NULL && lacks_owner(session, job, &text)) {
        // `text` says who gives it one
    } else if (job != NULL && message->cut) {
        (void)coord_snapshot_waiting(job, &text);
    } else if (member != NULL && message->lease && coord_leases_waiting(member, &text)) {
        // `text` says for which shards the lease waits
    } else if (job != NULL) {
        coord_job_waiting(job, &text);
        awaited.paused_ms = (uint32_t)coord_job_paused_ms(job);
        // true: the open round waits for a worker that is alive and has announced no pause
        awaited.silent = job->core != NULL && !coord_job_dead(job) && job->initialized &&
                         coord_job_shards_up(job) && round_waits_for_silent(job->core);
    } else {
        describe_opening(session, &text);
    }
    awaited.text = text.text;
    coord_session_send(session, CAIRN_MSG_AWAITED, request, &awaited.base);
}

/* ==== the tables ==== */

static const struct coord_row own_rows[] = {
    { CAIRN_MSG_ROUND_BEGIN, CAIRN_FROM_WORKER, .by_member = on_round_begin },
    { CAIRN_MSG_ROUND_COMMIT, CAIRN_FROM_WORKER, .by_member = on_round_commit },
    { CAIRN_MSG_WRITE_CANCEL, CAIRN_FROM_WORKER, .by_member = on_write_cancel },
    { CAIRN_MSG_JOB_LEAVE, CAIRN_FROM_TRAINER, .by_session = on_job_leave, .is_notice = true },
    { CAIRN_MSG_HEARTBEAT, CAIRN_FROM_TRAINER, .by_session = on_trainer_heartbeat,
      .is_notice = true },
    { CAIRN_MSG_PAGE, CAIRN_FROM_TRAINER, .by_session = on_page, .is_notice = true },
    { CAIRN_MSG_WHO_IS_AWAITED, CAIRN_FROM_TRAINER, .by_session = on_trainer_asks_who_is_awaited },
    { CAIRN_MSG_SNAPSHOT_CREATE, CAIRN_FROM_TRAINER, .asks = on_snapshot_create,
      .awaits = CAIRN_AWAITS_REPORTS, .needs = CAIRN_MAY_WORK, .job = "job",
      .wants = CAIRN_ACCESS_WRITE },
    { CAIRN_MSG_REDUCED, CAIRN_FROM_PART, .by_part = on_reduced },
    { CAIRN_MSG_PUBLISHED, CAIRN_FROM_PART, .by_part = on_published },
    { CAIRN_MSG_ANSWER, CAIRN_FROM_PART, .by_part = on_answer },
    { CAIRN_MSG_LACKS, CAIRN_FROM_PART, .by_part = on_lacks },
    { CAIRN_MSG_SNAPSHOT_PART, CAIRN_FROM_SHARD, .by_session = on_snapshot_part },
    { CAIRN_MSG_HEARTBEAT, CAIRN_FROM_SHARD, .by_session = on_shard_heartbeat },
    { CAIRN_MSG_DONE, CAIRN_FROM_SHARD, .by_session = on_done },
    { CAIRN_MSG_ERROR, CAIRN_FROM_SHARD, .by_session = on_error },
    { CAIRN_MSG_PART_STOPPED, CAIRN_FROM_SHARD, .by_session = on_part_stopped },
    { CAIRN_MSG_HELD_JOBS, CAIRN_FROM_SHARD, .by_frame = on_held_jobs },
    { CAIRN_MSG_CLUSTER_FORGET, CAIRN_FROM_ADMIN, .asks = on_cluster_forget,
      .verb = "cluster forget", .awaits = CAIRN_AWAITS_ALL_SHARDS, .job = "job" },
    { CAIRN_MSG_SHARD_FORGET, CAIRN_FROM_ADMIN, .asks = on_shard_forget, .verb = "shard forget",
      .awaits = CAIRN_AWAITS_REPORTS },
    { CAIRN_MSG_JOB_SPEC_GET, CAIRN_FROM_ADMIN, .asks = on_job_spec_get, .job = "name",
      .wants = CAIRN_ACCESS_READ },
    { CAIRN_MSG_JOB_DIGEST_GET, CAIRN_FROM_ADMIN, .asks = on_job_digest_get,
      .awaits = CAIRN_AWAITS_REPORTS, .job = "name", .wants = CAIRN_ACCESS_READ },
    { CAIRN_MSG_SNAPSHOT_CREATE, CAIRN_FROM_ADMIN, .asks = on_snapshot_create,
      .verb = "snapshot create", .awaits = CAIRN_AWAITS_REPORTS, .job = "job",
      .wants = CAIRN_ACCESS_WRITE },
    { CAIRN_MSG_SNAPSHOT_CANCEL, CAIRN_FROM_ADMIN, .asks = on_snapshot_cancel,
      .verb = "snapshot cancel", .awaits = CAIRN_AWAITS_REPORTS, .job = "job",
      .wants = CAIRN_ACCESS_WRITE },
    { CAIRN_MSG_WHO_IS_AWAITED, CAIRN_FROM_ADMIN, .by_session = on_admin_asks_who_is_awaited,
      .job = "name", .wants = CAIRN_ACCESS_LOOK },
    { 0 },
};

static const struct coord_row *const tables[] = {
    own_rows,           coord_adopt_rows,   coord_amend_rows,         coord_digests_rows,
    coord_drain_rows,   coord_events_rows,  coord_jobs_rows,          coord_keep_rows,
    coord_keys_rows,    coord_leases_rows,  coord_members_rows,       coord_openings_rows,
    coord_reshard_rows, coord_restore_rows, coord_reshard_asked_rows, coord_status_rows,
    coord_tiles_rows,   coord_waiting_rows, coord_park_rows,          coord_roster_rows,
    coord_tenants_rows, coord_mirror_rows,  coord_rollback_rows,
};

static bool may_send(uint32_t role, enum coord_sender from)
{
    switch (from) {
    case CAIRN_FROM_ADMIN: return role == CAIRN_ROLE_WIRE_ADMIN;
    case CAIRN_FROM_SHARD:
    case CAIRN_FROM_PART: return role == CAIRN_ROLE_WIRE_SHARD;
    case CAIRN_FROM_TRAINER:
    case CAIRN_FROM_MEMBER:
    case CAIRN_FROM_WORKER: return role == CAIRN_ROLE_WIRE_WORKER || role == CAIRN_ROLE_WIRE_READER;
    }
    return false;
}

static const struct coord_row *find_row(uint32_t role, uint16_t type)
{
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const struct coord_row *row = tables[i]; row->type != 0; row++)
            if (row->type == type && may_send(role, row->from)) return row;
    return NULL;
}

/* Returns the roles of which an identity must have one to send the message; 0: those that its Hello
 * needed. */
static uint32_t roles_for(const struct coord_row *row, const ProtobufCMessage *message,
                          const char *verb)
{
    const Cairn__JobOpen *open = (const Cairn__JobOpen *)message;
    if (row->needs != 0) return row->needs;
    if (row->type == CAIRN_MSG_JOB_OPEN)
        return open->role == CAIRN_ROLE_WIRE_READER ? CAIRN_MAY_READ | CAIRN_MAY_WORK
                                                    : CAIRN_MAY_WORK;
    if (row->from != CAIRN_FROM_ADMIN) return 0;
    return verb != NULL ? CAIRN_MAY_ADMIN : CAIRN_MAY_MONITOR;
}

/* Judges whether the session's identity may send this message, whatever its Hello said. */
static cairn_status judge_identity(const struct coord_session *session, const struct coord_row *row,
                                   const ProtobufCMessage *message, const char *verb,
                                   struct sentence *why)
{
    const uint32_t needs = roles_for(row, message, verb);
    const bool is_of_job = row->wants != CAIRN_ACCESS_NONE;
    if (!is_of_job && needs == 0) return CAIRN_OK;
    const char *name = verb != NULL ? verb : message_name(row->type);
    cairn_status status;
    if (is_of_job) {
        status = coord_judge_access(session, row, message, why);
    } else {
        char doing[160];
        snprintf(doing, sizeof doing, verb != NULL ? "ask for `cairn %s`" : "send %s", name);
        status = access_any(coord_who(session), needs, doing, why);
    }
    if (status != CAIRN_OK)
        coord_audit_refused_peer(session->cluster, session->peer, name, why->text);
    return status;
}

enum coord_awaits coord_message_awaits(const struct coord_session *session, uint16_t type)
{
    const struct coord_row *row = find_row(session->role, type);
    return row != NULL ? row->awaits : CAIRN_AWAITS_NOTHING;
}

void coord_part_message(struct coord_job *job, uint32_t shard, uint16_t type,
                        const ProtobufCMessage *message)
{
    const struct coord_row *row = find_row(CAIRN_ROLE_WIRE_SHARD, type);
    (void)row->by_part(job, shard, message); // a malformed message would not have been kept
}

bool coord_handle_message(struct coord_session *session, const struct wire_frame *frame,
                          ProtobufCMessage *message)
{
    const struct coord_row *row = find_row(session->role, frame->type);
    const uint32_t request = frame->request;
    const uint64_t *const number = message_job(message);
    const uint64_t job_id = number != NULL ? *number : 0;
    struct coord_member *member = NULL;
    struct coord_job *job = NULL;
    uint32_t shard = 0;
    if (session->role == CAIRN_ROLE_WIRE_ADMIN && frame->type == CAIRN_MSG_HEARTBEAT) return true;
    if (session->role != CAIRN_ROLE_WIRE_SHARD && request == 0 && (row == NULL || !row->is_notice))
        return false; // only a notice may come without a request id
    if (row == NULL) return false;
    struct sentence why = { "" };
    struct coord_asked *asked = NULL;
    // of a request of the command line; NULL: the request changes nothing, or is none
    const char *verb = row->from == CAIRN_FROM_ADMIN ? coord_asked_verb(row, message) : NULL;
    const cairn_status allowed = judge_identity(session, row, message, verb, &why);
    if (allowed != CAIRN_OK) {
        if (request != 0) coord_session_error(session, request, allowed, why.text);
        return true;
    }
    if (verb != NULL) asked = coord_asked_note(session, row, verb, message, request);
    assert(number != NULL || (row->by_part == NULL && row->by_member == NULL));
    if (row->by_frame != NULL) return row->by_frame(session, frame);
    if (row->by_part != NULL) {
        if (coord_mirrors_take(session, frame, message)) return true;
        job = place_of(session, job_id, &shard);
        return job == NULL || row->by_part(job, shard, message);
    }
    if (row->by_member != NULL) {
        member = row->from == CAIRN_FROM_WORKER ? attached_worker(session, request, job_id)
                                                : attached_member(session, request, job_id);
        if (member != NULL) row->by_member(member, request, message);
        return true;
    }
    if (row->asks != NULL) {
        const cairn_status status = row->asks(session, request, message, &why);
        if (status != CAIRN_OK) coord_session_error(session, request, status, why.text);
        coord_asked_done(asked, status, why.text);
        return true;
    }
    row->by_session(session, request, message);
    coord_asked_done(asked, CAIRN_OK, "");
    return true;
}
