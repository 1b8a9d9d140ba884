/* This shard and its coordinators: which parts the shard holds, which coordinator it obeys, how it
 * ends when it is unfit or drained, and how it connects. The shard connects, sends Hello, receives
 * Welcome, and sends heartbeats. It does all of this again when the connection was lost. A loss
 * changes nothing in the jobs. They wait, and the coordinator sends a Fence when it is back. */
#include <inttypes.h>
#include <assert.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot/snapshot.h"
#include "server/base/daemon.h"
#include "server/base/log.h"
#include "server/shard/jobs.h"
#include "server/shard/join.h"
#include "server/shard/shard.h"

/* ==== held ==== */

/* The parts that a shard holds, and the store to which these parts belong. State outlives the
 * coordinator that made it. So the shard does not obey a coordinator that has another store, or an
 * older copy of the store. Such a coordinator may ask which parts are held, and an operator may
 * tell it to adopt these parts or to have them dropped. */

/* True if the job counts as held. A faulted job does not count, because nobody can use its
 * state. */
static bool is_held(const struct shard_job *job)
{
    return job->state != CAIRN_JOB_LEAVING && job->state != CAIRN_JOB_FAULTED;
}

/* Returns how many parts are held. If no part is held, the shard obeys any coordinator. A part whose log
 * waits for its snapshot is not held: an operator could neither adopt nor forget it, and its store may be
 * gone. */
static size_t held_jobs_count(const struct shard_daemon *shard)
{
    size_t count = 0;
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        count += is_held(job);
    return count;
}

/* Fills in the fields that are not sent in a Hello, which has no room for them. */
static void fill_more(const struct shard_job *job, Cairn__HeldJob *out)
{
    const struct cairn_version version = step_version(job->collector.step);
    out->name = job->spec.name;
    out->shard_index = job->view->table.map.shard;
    out->shard_count = job->view->layout->shard_count;
    out->version_generation = version.generation;
    out->version_step = version.step;
    out->base_step = job->base_step;
    out->serving = job->state == CAIRN_JOB_SERVING;
    out->bytes = memory_sum(&job->memory);
    out->spec_hash = (ProtobufCBinaryData) { sizeof job->terms.digest.byte,
                                             (uint8_t *)(uintptr_t)job->terms.digest.byte };
}

/* Fills in the layout that is prepared, if there is one. */
static void fill_next(const struct shard_job *job, Cairn__HeldJob *out)
{
    const struct move_part *next = job->move.next;
    if (next == NULL || !next->is_ready || next->is_unwanted) return;
    memcpy(&out->next_layout_hash, next->view->layout->hash, sizeof out->next_layout_hash);
    out->next_layout_version = next->view->layout->version;
}

/* Lists the parts that are held, at most CAIRN_SHARD_JOBS_MAX; returns how many. If `full` is
 * false, the list is for a Hello. */
static size_t held_jobs_list(const struct shard_daemon *shard, Cairn__HeldJob *out, bool full)
{
    size_t count = 0;
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next) {
        if (!is_held(job) || job->kept.is_pending) continue; // the next Hello has it
        Cairn__HeldJob *held = &out[count++];
        cairn__held_job__init(held);
        held->job = job->number;
        held->generation = job->generation;
        memcpy(&held->layout_hash, job->view->layout->hash, sizeof held->layout_hash);
        held->layout_version = job->view->layout->version;
        fill_next(job, held);
        held->epoch = step_epoch(job->collector.step);
        held->revision = job->terms.revision;
        held->round = step_round_seen(job->collector.step);
        held->unsettled = !job->terms.settled;
        held->staged = job->staged;
        held->mirror = job->mirrors.is_mirror;
        held->parked = job->park.is_parked || job->park.is_under_way;
        if (full) fill_more(job, held);
    }
    return count;
}

/* Sends HeldJobs, as the answer to `request` if `request` is not 0. */
static void tell_held(struct shard_daemon *shard, uint32_t request)
{
    Cairn__HeldJob held[CAIRN_SHARD_JOBS_MAX];
    Cairn__HeldJob *list[CAIRN_SHARD_JOBS_MAX];
    Cairn__HeldJobs message = CAIRN__HELD_JOBS__INIT;
    message.n_held = held_jobs_list(shard, held, true);
    message.held = list;
    for (size_t i = 0; i < message.n_held; i++) list[i] = &held[i];
    message.keys = shard->session.keys;
    session_send(shard, CAIRN_MSG_HELD_JOBS, request, &message.base);
}

/* Returns a copy of the keys, which the caller owns; NULL if there are no keys, too many keys, or
 * no memory. */
static Cairn__Keys *copy_keys(const Cairn__Keys *keys)
{
    if (keys == NULL || keys->n_keys > CAIRN_KEYS_MAX) return NULL;
    const size_t bytes = cairn__keys__get_packed_size(keys);
    uint8_t *packed = malloc(bytes + 1);
    if (packed == NULL) return NULL;
    (void)cairn__keys__pack(keys, packed);
    Cairn__Keys *copy = cairn__keys__unpack(NULL, bytes, packed);
    free(packed);
    return copy;
}

/* Handles the keys that the session's coordinator trusts; NULL: it reports no keys. If the shard
 * obeys this coordinator, the shard keeps the keys, and reports them to a coordinator that adopts
 * the held parts. */
static void held_keys(struct shard_daemon *shard, const Cairn__Keys *keys)
{
    Cairn__Keys *copy = shard->session.standing == CAIRN_STANDING_GOOD ? copy_keys(keys) : NULL;
    if (copy == NULL) return;
    held_keys_release(shard);
    shard->session.keys = copy;
}

void held_keys_release(struct shard_daemon *shard)
{
    if (shard->session.keys != NULL) cairn__keys__free_unpacked(shard->session.keys, NULL);
    shard->session.keys = NULL;
}

/* Obeys the coordinator of this session from now on. */
static void obey_coordinator(struct shard_daemon *shard)
{
    shard->session.standing = CAIRN_STANDING_GOOD;
    shard->session.seen = shard->session.coordinator;
    journals_say_strange(shard, shard->session.seen.store);
}

/* Notes whether the shard obeys the coordinator of this session. Called when the coordinator has
 * identified itself. */
static void held_judge(struct shard_daemon *shard, const char *cluster)
{
    struct coordinator_session *session = &shard->session;
    const struct coordinator_id *theirs = &session->coordinator;
    const size_t count = held_jobs_count(shard);
    session->standing = count == 0 ? CAIRN_STANDING_GOOD
                                   : standing_of(theirs, &shard->session.seen);
    if (count > 0) tell_held(shard, 0);
    if (session->standing == CAIRN_STANDING_GOOD) {
        obey_coordinator(shard);
        return;
    }
    log_error("shard %s holds %zu jobs of store %016" PRIx64 " (start %" PRIu64
              ") and does not obey the coordinator of cluster %s, which has store %016" PRIx64
              " (start %" PRIu64
              "): give the coordinator the store.path that it had, or take what the shards "
              "hold into the new store with `cairn cluster adopt`",
              shard->name, count, shard->session.seen.store, shard->session.seen.incarnation,
              cluster, theirs->store, theirs->incarnation);
}

/* ---- the operator's word ---- */

/* Sends the spec and the layout of a part, as this shard received them from a coordinator. */
static cairn_status send_part(struct shard_daemon *shard, uint32_t request,
                              const struct shard_job *job)
{
    const bool amended = job->terms.amended.have_bytes > 0;
    struct packed *spec = amended
                              ? packed_copy(job->terms.amended.bytes, job->terms.amended.have_bytes)
                              : packed_spec(&job->spec);
    struct packed *layout = packed_layout(job->view->layout);
    const bool there_is = spec != NULL && layout != NULL;
    if (there_is) {
        Cairn__Part part = CAIRN__PART__INIT;
        part.spec_bytes = spec->size;
        part.layout_bytes = layout->size;
        session_send(shard, CAIRN_MSG_PART, request, &part.base);
        session_send_pages(shard, request, CAIRN_PAGE_SPEC, spec);
        session_send_pages(shard, request, CAIRN_PAGE_LAYOUT, layout);
    }
    packed_release(spec);
    packed_release(layout);
    return there_is ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

static void on_part_get(struct shard_daemon *shard, struct request asked, const void *body)
{
    const Cairn__PartGet *message = body;
    if (message->job == 0) {
        tell_held(shard, asked.number);
        return;
    }
    const struct shard_job *job = shard_job_find_part(shard, message->job, message->generation);
    struct sentence why = { "it is not held any more" };
    cairn_status status = CAIRN_ERR_NOT_FOUND;
    if (job != NULL) status = send_part(shard, asked.number, job);
    if (status == CAIRN_ERR_NO_MEMORY)
        sentence_set(&why, "out of memory to send the spec of a job");
    if (status != CAIRN_OK) session_answer(shard, &asked, status, &why);
}

static void on_part_drop(struct shard_daemon *shard, struct request asked, const void *body)
{
    const Cairn__PartDrop *message = body;
    struct shard_job *job = shard_job_find_part(shard, message->job, message->generation);
    if (job == NULL) {
        session_answer(shard, &asked, CAIRN_OK, NULL);
        return;
    }
    log_warn("job %s, generation %" PRIu64 ", is dropped: the coordinator's operator asked for it",
             job->spec.name, job->generation);
    job->dropping = asked; // the request is answered when the job's memory is given back
    shard_job_leave(job);
    tell_held(shard, 0);
    // The shard holds no state any more. So it begins a new session, in which it obeys any
    // coordinator.
    if (shard->session.standing != CAIRN_STANDING_GOOD && held_jobs_count(shard) == 0)
        session_refuse(shard, CAIRN_ERR_FENCED, "the state of this shard was forgotten");
}

/* Marks adopted parts as settled. A coordinator drops parts that are not settled, because it takes
 * them for leftovers of its own work. Adopted parts were made for another coordinator, and nobody
 * knows any more whether they were in that coordinator's store. */
static void settle_adopted(struct shard_daemon *shard)
{
    for (struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        job->terms.settled = true;
}

/* Obeys the store that has adopted this shard's state. The store is new to all shards, so its
 * incarnations are not compared with earlier ones. */
static void on_adopted(struct shard_daemon *shard, struct request asked, const void *body)
{
    const Cairn__StoreAdopted *message = body;
    struct coordinator_session *session = &shard->session;
    session->coordinator.store = message->store;
    session->coordinator.incarnation = message->incarnation;
    if (session->standing != CAIRN_STANDING_GOOD) settle_adopted(shard);
    obey_coordinator(shard);
    log_warn("store %016" PRIx64 " (start %" PRIu64
             ") has adopted this shard's state: the shard obeys no other store any more",
             message->store, message->incarnation);
    for (struct shard_job *job = shard->jobs; job != NULL; job = job->next) kept_note(job);
    session_answer(shard, &asked, CAIRN_OK, NULL);
}

static void on_heartbeat(struct shard_daemon *shard, const void *message)
{
    held_keys(shard, ((const Cairn__Heartbeat *)message)->keys);
}

/* ==== unfit ==== */

/* An unfit shard stays for this many heartbeats. Meanwhile the coordinator gives up the jobs that
 * lay on the device. If the shard ended at once, the coordinator would wait for it to come back
 * with these jobs. */
#define BEATS 5

/* Counts the jobs that can continue without the device. */
static size_t count_others(const struct shard_daemon *shard)
{
    size_t count = 0;
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        count += job->state != CAIRN_JOB_FAULTED && job->state != CAIRN_JOB_LEAVING &&
                 job->memory.device == 0;
    return count;
}

void unfit_look(struct shard_daemon *shard)
{
    struct home *home = shard->device.home;
    const char *failure = home != NULL ? home_failure(home) : NULL;
    if (failure == NULL || shard->closing || shard->events.on_end == NULL) return;
    if (!shard->unfit.is_told) {
        log_error("this shard is unfit: %s", failure);
        stream_close(shard->session.stream, CAIRN_ERR_IO, "the device of this shard failed");
        return;
    }
    const size_t others = count_others(shard);
    if (others > 0 && !shard->unfit.is_said) {
        shard->unfit.is_said = true;
        log_error("this shard is unfit, and goes on serving only jobs with nothing on its device "
                  "(%zu), until the coordinator has brought them to other shards, if there are "
                  "any; it ends with the last of them: `cairn cluster status` says how far that is",
                  others);
    }
    if (others > 0 || ++shard->unfit.beats < BEATS) return;
    log_error("this shard is unfit and ends, since nothing that it holds is whole: %s", failure);
    shard_end(shard, CAIRN_ERR_IO);
}

/* ==== drain ==== */

#define LEASE_MS      5000 /* the lease time that is assumed until a coordinator has told it */
#define DRAIN_REQUEST 1    /* the only request that a shard sends to a coordinator */

/* Ends the drain, and with it the shard: shard_end. */
static void end_drain(struct shard_daemon *shard)
{
    shard->drain.is_wanted = false;
    uv_timer_stop(&shard->drain.timer);
    shard_end(shard, CAIRN_OK);
}

/* True if the coordinator of this session was asked to drain the shard. */
static bool is_asked(const struct shard_daemon *shard)
{
    return shard->session.welcome && shard->drain.asked == shard->session.serial;
}

static void on_time(uv_timer_t *timer)
{
    struct shard_daemon *shard = timer->data;
    if (is_asked(shard))
        log_error("the time to drain this shard is over: it ends, and its parts of %zu jobs are "
                  "lost with it; give it more time (shard.drain_seconds, and TimeoutStopSec of its "
                  "unit), or drain it before it is stopped: `cairn member drain %s`",
                  held_jobs_count(shard), shard->name);
    else
        log_error("%s: nobody brings this shard's state elsewhere, so it ends, and its parts of "
                  "%zu jobs are lost with it; stop shards while their coordinator runs",
                  shard->session.welcome
                      ? "the connected coordinator is not the one that this state belongs to"
                      : "no coordinator is here",
                  held_jobs_count(shard));
    end_drain(shard);
}

/* Starts the timer that ends the drain. If no coordinator was asked, the timer gives only as much
 * time as it takes to start a coordinator again. */
static void wait_on(struct shard_daemon *shard)
{
    const uint64_t now_ms = uv_now(shard->loop);
    uint64_t left_ms = now_ms < shard->drain.due_ms ? shard->drain.due_ms - now_ms : 0;
    const uint64_t lease_ms = shard->session.lease_ms != 0 ? shard->session.lease_ms : LEASE_MS;
    if (!is_asked(shard) && left_ms > 2 * lease_ms) left_ms = 2 * lease_ms;
    uv_timer_start(&shard->drain.timer, on_time, left_ms, 0);
}

static void ask_to_drain(struct shard_daemon *shard)
{
    struct coordinator_session *session = &shard->session;
    Cairn__DrainMe message = CAIRN__DRAIN_ME__INIT;
    const uint64_t now_ms = uv_now(shard->loop);
    if (!session->welcome || session->standing != CAIRN_STANDING_GOOD) return;
    if (shard->drain.asked == session->serial) return;
    shard->drain.asked = session->serial;
    message.seconds = now_ms < shard->drain.due_ms
                          ? (uint32_t)((shard->drain.due_ms - now_ms + 999) / 1000)
                          : 1;
    session_send(shard, CAIRN_MSG_DRAIN_ME, DRAIN_REQUEST, &message.base);
}

void shard_drain(struct shard_daemon *shard, uint32_t seconds)
{
    if (shard->drain.is_wanted) return;
    shard->drain.is_wanted = true;
    if (held_jobs_count(shard) == 0) {
        end_drain(shard);
        return;
    }
    uv_update_time(shard->loop);
    shard->drain.due_ms = uv_now(shard->loop) + 1000ull * seconds;
    log_info(
        "asked to end: the parts of %zu jobs here are to go to other shards first, within %u s",
        held_jobs_count(shard), seconds);
    ask_to_drain(shard);
    wait_on(shard);
}

/* If a drain is wanted, asks the coordinator of the new session to drain the shard. */
static void drain_on_welcome(struct shard_daemon *shard)
{
    if (!shard->drain.is_wanted) return;
    ask_to_drain(shard);
    if (is_asked(shard)) wait_on(shard);
}

/* ---- the coordinator's word; the shard may be closed afterwards ---- */

static bool is_answer(const struct shard_daemon *shard, uint32_t request)
{
    return shard->drain.is_wanted && is_asked(shard) && request == DRAIN_REQUEST;
}

static void on_done(struct shard_daemon *shard, struct request asked, const void *message)
{
    (void)message;
    if (!is_answer(shard, asked.number)) return;
    log_info("this shard's state is on other shards now: it ends");
    end_drain(shard);
}

static void on_error(struct shard_daemon *shard, struct request asked, const void *message)
{
    const Cairn__Error *error = message;
    if (is_answer(shard, asked.number)) {
        log_error("this shard ends without bringing its parts of %zu jobs to other shards: %s",
                  held_jobs_count(shard), error->text);
        end_drain(shard);
    } else if (error->status == CAIRN_ERR_FENCED && error->job == 0) {
        session_fenced(shard, error->text);
    } else {
        log_warn("the coordinator says: %s (%s)", error->text, status_code_name(error->status));
    }
}

static void on_member_end(struct shard_daemon *shard, const void *message)
{
    log_info("this shard holds nothing and is known no more: it ends (%s)",
             ((const Cairn__MemberEnd *)message)->why);
    end_drain(shard);
}

/* PartFormer: the versions are told by a heartbeat, which arrives before the answer. */
static void on_former_asked(struct shard_job *job, struct request asked, const void *message)
{
    (void)message;
    connection_beat(job->shard);
    session_answer(job->shard, &asked, CAIRN_OK, NULL);
}

static const struct shard_message messages[] = {
    { CAIRN_MSG_PART_GET, .from_any = true, .ask_shard = on_part_get },
    { CAIRN_MSG_PART_DROP, .from_any = true, .ask_shard = on_part_drop },
    { CAIRN_MSG_STORE_ADOPTED, .from_any = true, .ask_shard = on_adopted },
    { CAIRN_MSG_HEARTBEAT, .from_any = true, .on_shard = on_heartbeat },
    { CAIRN_MSG_DONE, .from_any = true, .ask_shard = on_done },
    { CAIRN_MSG_ERROR, .from_any = true, .ask_shard = on_error },
    { CAIRN_MSG_MEMBER_END, .on_shard = on_member_end },
    { CAIRN_MSG_PART_FORMER, .ask_job = on_former_asked },
    { 0 },
};
const struct shard_module held_module = { .messages = messages };

/* ==== bytes ==== */

/* The counts of bytes in a heartbeat: payload bytes by job and worker, and memory by job. */

struct bytes_list {
    size_t count;
    Cairn__BytesTold *told;      /* owned: [count] */
    Cairn__BytesTold **pointers; /* owned: [count], to the entries of `told` */
};

static bool is_told(const struct shard_job *job)
{
    return !job->staged && job->state != CAIRN_JOB_LEAVING;
}

static Cairn__BytesTold *add_bytes(struct bytes_list *out, const struct shard_job *job,
                                   const Cairn__BytesTold *bytes)
{
    Cairn__BytesTold *told = &out->told[out->count];
    out->pointers[out->count++] = told;
    *told = *bytes;
    told->base.descriptor = &cairn__bytes_told__descriptor;
    told->job = job->number;
    told->steps = job->bytes.steps;
    return told;
}

static void add_workers(struct bytes_list *out, const struct shard_job *job)
{
    for (size_t i = 0; i < job->members.capacity && out->count < CAIRN_BYTES_TOLD_MAX; i++) {
        const struct shard_member *member = job->members.list[i];
        if (member == NULL || member->role != CAIRN_ROLE_WIRE_WORKER) continue;
        // the relay's own shard reports what the relay's workers pushed
        if (member->is_relay) continue;
        Cairn__BytesTold *told = add_bytes(out, job, &member->bytes);
        told->steps -= member->bytes.steps;
        told->of_worker = true;
        told->rank = member->rank;
    }
}

/* Lists an entry for each job, then an entry for each worker of each job, at most
 * CAIRN_BYTES_TOLD_MAX entries in all. Jobs that are staged or LEAVING are left out. If there is no
 * memory, the list is empty. */
static void bytes_list(const struct shard_daemon *shard, struct bytes_list *out)
{
    size_t most = 0;
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        most += 1 + job->members.count;
    if (most > CAIRN_BYTES_TOLD_MAX) most = CAIRN_BYTES_TOLD_MAX; // there are always fewer jobs
    *out = (struct bytes_list) { .told = calloc(most + 1, sizeof *out->told),
                                 .pointers = calloc(most + 1, sizeof *out->pointers) };
    if (out->told == NULL || out->pointers == NULL) return;
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        if (is_told(job)) add_bytes(out, job, &job->bytes);
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        if (is_told(job)) add_workers(out, job);
}

struct memory_list {
    size_t count;
    Cairn__MemoryTold told[CAIRN_SHARD_JOBS_MAX];
    Cairn__MemoryTold *pointers[CAIRN_SHARD_JOBS_MAX];
};

static Cairn__MemoryTold *memory_of(struct memory_list *out, uint64_t job)
{
    for (size_t i = 0; i < out->count; i++)
        if (out->told[i].job == job) return &out->told[i];
    Cairn__MemoryTold *told = &out->told[out->count];
    out->pointers[out->count++] = told;
    cairn__memory_told__init(told);
    told->job = job;
    return told;
}

/* Lists the memory of each job: the generations of a job are added up, and the bytes count that are promised
 * to a part that is awaited. */
static void memory_list(const struct shard_daemon *shard, struct memory_list *out)
{
    out->count = 0;
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next) {
        Cairn__MemoryTold *told = memory_of(out, job->number);
        told->state += job->memory.state;
        told->published += job->memory.published;
        told->landing += job->memory.landing;
        told->staging += job->memory.staging;
        told->tables += job->memory.tables;
        told->former += job->memory.former;
        told->device += job->memory.device;
        if (job->staged) continue;
        told->kept = job->kept.is_stored;
        told->logged = journal_is_based(job);
        told->audited_since = audit_since(job);
    }
    for (const struct journal_resumed *at = shard->journals.awaiting;
         at != NULL && out->count < CAIRN_SHARD_JOBS_MAX; at = at->next)
        if (at->wait.promised_bytes > 0)
            memory_of(out, at->part->job)->state += at->wait.promised_bytes;
}

struct log_list {
    size_t count;
    Cairn__LogTold told[CAIRN_SHARD_JOBS_MAX];
    Cairn__LogTold *pointers[CAIRN_SHARD_JOBS_MAX];
};

static void logs_list(const struct shard_daemon *shard, struct log_list *out)
{
    out->count = journals_tell(shard, out->told);
    for (size_t i = 0; i < out->count; i++) out->pointers[i] = &out->told[i];
}

/* ==== unheard ==== */

/* Neighbours that are silent on the data path although this shard waits for an answer. The shard's
 * heartbeats name these neighbours; a worker's heartbeats name silent shards in the same way. Loop
 * thread. */

#define CAIRN_UNHEARD_MAX 16

struct unheard {
    char *names[CAIRN_UNHEARD_MAX]; /* borrowed; each name is listed once */
    size_t count;
};

/* Adds the neighbour if it has been silent for long. A neighbour on this host is not added, because
 * the end of its process is noticed anyway, and no network to it can fail. */
static void look_unheard(struct unheard *list, struct neighbour *neighbour)
{
    const struct shard_daemon *shard = neighbour->all->job->shard;
    char *name = neighbour->name;
    size_t i = 0;
    if (chunk_link_silent_ms(&neighbour->link, uv_now(shard->loop)) < shard->session.unheard_ms ||
        chunk_link_shares(&neighbour->link))
        return;
    while (i < list->count && strcmp(list->names[i], name) != 0) i++;
    if (i == list->count && i < CAIRN_UNHEARD_MAX) list->names[list->count++] = name;
}

static void unheard_list(const struct shard_daemon *shard, struct unheard *list_out)
{
    const struct neighbours *all;
    list_out->count = 0;
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        LIST_FOREACH (all, &job->asked, link)
            for (uint32_t i = 0; i < all->count; i++) look_unheard(list_out, neighbours_at(all, i));
}

/* ==== connection ==== */

#define CONNECT_TIMEOUT_MS 5000
#define WELCOME_TIMEOUT_MS 5000
#define BACKOFF_FIRST_MS   100
#define BACKOFF_MAX_MS     2000
#define HEARTBEAT_MIN_MS   10
#define LEASE_MAX_MS       3600000

static const struct frame_limits limits_before = { .type_min = CAIRN_MSG_WELCOME,
                                                   .type_max = CAIRN_MSG_ERROR,
                                                   .frame_bytes = CAIRN_FRAME_BYTES_MAX };
static const struct frame_limits limits_after = { .type_min = CAIRN_MSG_WELCOME,
                                                  .type_max = CAIRN_MSG_MAX,
                                                  .frame_bytes = CAIRN_FRAME_BYTES_MAX };

static void on_timer(uv_timer_t *timer);

void device_tell(struct shard_daemon *shard, Cairn__Home *out)
{
    struct home *home = shard->device.home != NULL ? shard->device.home : shard->host.home;
    struct home_info *info = (struct home_info *)(uintptr_t)home_info(home);
    cairn__home__init(out);
    out->backend = wire_text(info->backend);
    out->device = info->device;
    out->driver = info->driver;
    out->total_bytes = info->total_bytes;
    out->taken_bytes = info->taken_bytes;
    out->warning = info->warning;
    out->why = shard->no_device.text;
    const char *way_why;
    out->device_memory = device_goes_directly(shard, &way_why) ? wire_text("device")
                                                               : wire_text("host");
    out->device_memory_why = wire_text(way_why);
    const char *failure = home_failure(home);
    if (failure != NULL) out->failed = wire_text(failure);
}

void shard_device_stats(const struct shard_daemon *shard, Cairn__ShardStats *stats)
{
    if (shard->device.home == NULL) return;
    const struct home_use use = home_use(shard->device.home);
    stats->launches = use.launches;
    stats->in_bytes = use.bytes_in;
    stats->out_bytes = use.bytes_out;
    stats->pinned_bytes = use.pinned_bytes;
    stats->unpinned_bytes = use.unpinned_bytes;
}

/* Sends a Hello with as many of the held jobs as fit into it. Returns how many were sent. */
static size_t say_hello(struct shard_daemon *shard, Cairn__Hello *hello, Cairn__HeldJob **held,
                        size_t count)
{
    const size_t fit = hello_fit(hello, held, count);
    hello->held = held;
    hello->n_held = fit;
    hello->held_after = (uint32_t)(count - fit);
    session_send(shard, CAIRN_MSG_HELLO, 0, &hello->base);
    return fit;
}

/* The tiers borrow `awaited`, [CAIRN_SHARD_JOBS_MAX]. */
static void tiers_tell(const struct shard_daemon *shard, Cairn__ShardTiers *tiers,
                       uint64_t *awaited)
{
    cairn__shard_tiers__init(tiers);
    tiers->n_awaited = journals_awaited(shard, awaited);
    tiers->awaited = awaited;
    tiers->log = shard->journals.pool != NULL;
    tiers->log_was_empty = shard->journals.was_empty;
    tiers->log_lacks = wire_text(shard->journals.lacks.text);
    tiers->keeper = keeper_is_there();
}

static void send_hello(struct shard_daemon *shard)
{
    Cairn__HeldJob held[CAIRN_SHARD_JOBS_MAX];
    Cairn__HeldJob *held_list[CAIRN_SHARD_JOBS_MAX];
    const size_t held_count = held_jobs_list(shard, held, false);
    for (size_t i = 0; i < held_count; i++) held_list[i] = &held[i];
    Cairn__Hello hello = CAIRN__HELLO__INIT, more = CAIRN__HELLO__INIT;
    hello.protocol = CAIRN_CONTROL_PROTOCOL;
    hello.role = CAIRN_ROLE_WIRE_SHARD;
    hello.name = shard->name;
    hello.incarnation = shard->incarnation;
    hello.fabric_address.data = (uint8_t *)fabric_own_address(shard->fabric,
                                                              &hello.fabric_address.len);
    hello.version = wire_text(shard->build);
    hello.memory_bytes = shard->memory.budget.limit_bytes;
    hello.without = shard->without;
    Cairn__Home home;
    device_tell(shard, &home);
    hello.home = &home;
    hello.standby_of = shard->standby_of;
    hello.domain = shard->domain;
    Cairn__ShardTiers tiers;
    uint64_t awaited[CAIRN_SHARD_JOBS_MAX];
    tiers_tell(shard, &tiers, awaited);
    hello.tiers = &tiers;
    shard->unfit.is_told = home.failed[0] != '\0';
    if (held_jobs_count(shard) > 0) {
        hello.store = shard->session.seen.store;
        hello.coordinator_incarnation = shard->session.seen.incarnation;
        hello.coordinator_process = shard->session.seen.process;
    }
    size_t said = say_hello(shard, &hello, held_list, held_count);
    more.protocol = hello.protocol;
    more.role = hello.role;
    more.name = hello.name;
    while (said < held_count) said += say_hello(shard, &more, held_list + said, held_count - said);
}

void connection_beat(struct shard_daemon *shard)
{
    Cairn__Heartbeat heartbeat = CAIRN__HEARTBEAT__INIT;
    char jump[CAIRN_WALL_JUMP_BYTES];
    wall_watch(&shard->session.wall, jump);
    shard->stats.state_bytes = journals_promised(shard);
    shard->stats.landing_bytes = 0;
    for (struct shard_job *job = shard->jobs; job != NULL; job = job->next) {
        shard->stats.state_bytes += memory_sum(&job->memory);
        shard->stats.landing_bytes += job->memory.landing;
    }
    shard_device_stats(shard, &shard->stats);
    heartbeat.stats = &shard->stats;
    heartbeat.storage = shard->storage.said.text;
    Cairn__ShardTiers tiers;
    uint64_t awaited[CAIRN_SHARD_JOBS_MAX];
    tiers_tell(shard, &tiers, awaited);
    heartbeat.tiers = &tiers;
    struct bytes_list list;
    bytes_list(shard, &list);
    heartbeat.bytes = list.pointers;
    heartbeat.n_bytes = list.count;
    struct memory_list memory;
    memory_list(shard, &memory);
    heartbeat.memory = memory.pointers;
    heartbeat.n_memory = memory.count;
    struct pins_list pins;
    pins_list(shard, &pins);
    heartbeat.pins = pins.pointers;
    heartbeat.n_pins = pins.count;
    struct log_list logs;
    logs_list(shard, &logs);
    heartbeat.logs = logs.pointers;
    heartbeat.n_logs = logs.count;
    struct former_told former;
    former_list(shard, &former);
    heartbeat.former = former.pointers;
    heartbeat.n_former = former.count;
    struct unheard unheard;
    unheard_list(shard, &unheard);
    heartbeat.unheard = unheard.names;
    heartbeat.n_unheard = unheard.count;
    session_send(shard, CAIRN_MSG_HEARTBEAT, 0, &heartbeat.base);
    free(list.told);
    free(list.pointers);
}

static void members_forget_untold(struct shard_job *job)
{
    size_t i = 0;
    while (i < job->members.capacity) {
        const struct shard_member *member = job->members.list[i];
        if (member == NULL || member->is_mover || member->confirmed == job->shard->session.serial) {
            i++;
            continue;
        }
        members_leave(job, member->number);
        i = 0; // the members behind the removed member may have moved up
    }
    admit_left(job);
}

/* Removes the members that the coordinator has not named in this session for the time of two
 * leases, because they left while there was no session. A coordinator immediately names all members
 * that it knows. A new coordinator names a member when the member attaches again. Somebody who left
 * may have lost its right while nobody could tell this shard, so published copies are withdrawn. */
static void call_roll(struct shard_daemon *shard)
{
    struct coordinator_session *session = &shard->session;
    if (session->roll_due_ms == 0 || uv_now(shard->loop) < session->roll_due_ms) return;
    session->roll_due_ms = 0;
    for (struct shard_job *job = shard->jobs; job != NULL; job = job->next) {
        members_forget_untold(job);
        published_withdraw(job);
    }
}

static void on_open(struct stream *stream, void *context)
{
    (void)stream;
    struct shard_daemon *shard = context;
    shard->session.heard_ms = uv_now(shard->loop);
    send_hello(shard);
    uv_timer_start(&shard->session.timer, on_timer, WELCOME_TIMEOUT_MS, 0);
}

/* Says why parts were stopped, which the Hello does not name. */
static void tell_stopped(struct shard_daemon *shard)
{
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next) {
        if (job->state != CAIRN_JOB_FAULTED || job->stopped == NULL) continue;
        Cairn__PartStopped message = CAIRN__PART_STOPPED__INIT;
        message.job = job->number;
        message.generation = job->generation;
        message.why = job->stopped;
        session_send(shard, CAIRN_MSG_PART_STOPPED, 0, &message.base);
    }
}

/* Handles the Welcome, with which the session is open. */
static void on_welcome(struct shard_daemon *shard, const Cairn__Welcome *welcome)
{
    struct coordinator_session *session = &shard->session;
    if (welcome->heartbeat_ms < HEARTBEAT_MIN_MS || welcome->lease_ms > LEASE_MAX_MS ||
        welcome->lease_ms < welcome->heartbeat_ms) {
        session_refuse(shard, CAIRN_ERR_PROTOCOL,
                       "Welcome with a heartbeat of %u ms and a lease of %u ms: at least %d, and a "
                       "lease no shorter than the heartbeat, at most %d",
                       welcome->heartbeat_ms, welcome->lease_ms, HEARTBEAT_MIN_MS, LEASE_MAX_MS);
        return;
    }
    session->welcome = true;
    session->heartbeat_ms = welcome->heartbeat_ms;
    session->lease_ms = welcome->lease_ms;
    fabric_set_patience(shard->fabric, session->lease_ms);
    session->backoff_ms = BACKOFF_FIRST_MS;
    session->roll_due_ms = uv_now(shard->loop) + 2ull * session->lease_ms;
    session->coordinator = (struct coordinator_id) { welcome->store,
                                                     welcome->coordinator_incarnation,
                                                     welcome->process };
    stream_limit(session->stream, limits_after);
    uv_timer_start(&session->timer, on_timer, session->heartbeat_ms, session->heartbeat_ms);
    log_info("joined cluster %s: coordinator %s, incarnation %" PRIu64, welcome->cluster,
             stream_peer(session->stream), welcome->coordinator_incarnation);
    held_judge(shard, welcome->cluster);
    held_keys(shard, welcome->keys);
    storage_watch_told(&shard->storage, welcome->storage_path, welcome->storage_token);
    tell_stopped(shard);
    drain_on_welcome(shard);
    if (session->served_before) return;
    session->served_before = true;
    if (shard->events.on_ready != NULL) shard->events.on_ready(shard, shard->events.context);
}

static void on_first_frame(struct shard_daemon *shard, const struct wire_frame *frame)
{
    ProtobufCMessage *message = message_unpack(message_type(frame->type), frame->payload,
                                               frame->payload_bytes);
    if (message == NULL) {
        session_refuse(shard, CAIRN_ERR_MALFORMED, "malformed %s", message_name(frame->type));
        return;
    }
    if (frame->type == CAIRN_MSG_WELCOME) {
        on_welcome(shard, (const Cairn__Welcome *)message);
    } else {
        const Cairn__Error *error = (const Cairn__Error *)message;
        stream_close(shard->session.stream, CAIRN_ERR_REFUSED, "refused: %s", error->text);
        if (error->status == CAIRN_ERR_FENCED) session_fenced(shard, error->text);
    }
    message_free(message);
}

static void on_frame(struct stream *stream, const struct wire_frame *frame, void *context)
{
    (void)stream;
    struct shard_daemon *shard = context;
    shard->session.heard_ms = uv_now(shard->loop);
    if (shard->session.welcome)
        shard_on_frame(shard, frame);
    else
        on_first_frame(shard, frame);
}

static void on_close(struct stream *stream, cairn_status status, const char *why, void *context)
{
    (void)stream;
    struct shard_daemon *shard = context;
    struct coordinator_session *session = &shard->session;
    session->stream = NULL;
    if (shard->closing) {
        shard->end.stream_closed(shard);
        return;
    }
    const bool news = session->welcome || status == CAIRN_ERR_REFUSED ||
                      status == CAIRN_ERR_PROTOCOL || status == CAIRN_ERR_VERSION;
    log_limited(&session->down, news ? CAIRN_LOG_WARN : CAIRN_LOG_INFO,
                "no coordinator: %s (%s); trying again in %u ms", why,
                status_code_name((int)status), session->backoff_ms);
    const bool was_welcome = session->welcome;
    session->welcome = false;
    session->serial++; // requests of the lost session get no answer
    arriving_drop_all(shard);
    for (struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        shard_tell(job, SHARD_SESSION_ENDED);
    // the drain waits for the next session
    if (was_welcome && shard->drain.is_wanted) wait_on(shard);
    if (!endpoints_are_tried(&session->endpoints)) {
        uv_timer_start(&session->timer, on_timer, 0, 0); // the next one may lead
        return;
    }
    uv_timer_start(&session->timer, on_timer, session->backoff_ms, 0);
    session->backoff_ms = session->backoff_ms * 2 < BACKOFF_MAX_MS ? session->backoff_ms * 2
                                                                   : BACKOFF_MAX_MS;
}

static const struct stream_events stream_events = {
    .on_open = on_open,
    .on_frame = on_frame,
    .on_close = on_close,
};

static cairn_status find_token(struct coordinator_session *session, struct sentence *why)
{
    return entrance_find(&session->entrance, &session->address, session->token_file,
                         session->token_fallback, why);
}

static void connect_now(struct shard_daemon *shard)
{
    struct coordinator_session *session = &shard->session;
    struct handshake_options secure;
    struct sentence why;
    session->address = *endpoints_next(&session->endpoints);
    // The token may have been exchanged. If it cannot be read now, the former one is good for a try.
    if (find_token(session, &why) != CAIRN_OK)
        log_limited(&session->down, CAIRN_LOG_WARN, "the token cannot be read: %s", why.text);
    const struct stream_options options = {
        .limits = limits_before, .secure = entrance_secure(&session->entrance, &secure)
    };
    cairn_status status = stream_connect(
        shard->loop, &session->address,
        endpoints_patience_ms(&session->endpoints, CONNECT_TIMEOUT_MS), &options, &stream_events,
        shard, &session->stream, &why);
    sodium_memzero(&secure, sizeof secure);
    if (status == CAIRN_OK) return;
    log_limited(&session->down, CAIRN_LOG_WARN, "cannot connect to the coordinator: %s", why.text);
    uv_timer_start(&session->timer, on_timer, BACKOFF_MAX_MS, 0);
}

/* Connects if there is no connection. Closes the connection if no Welcome came in time, or if
 * nothing was heard on it for a lease. Else sends a heartbeat. */
static void on_timer(uv_timer_t *timer)
{
    struct shard_daemon *shard = timer->data;
    struct coordinator_session *session = &shard->session;
    if (session->stream == NULL) {
        connect_now(shard);
        return;
    }
    if (!session->welcome) {
        stream_close(session->stream, CAIRN_ERR_TIMEOUT, "no Welcome within %d ms",
                     WELCOME_TIMEOUT_MS);
        return;
    }
    uint64_t silent_ms = uv_now(shard->loop) - session->heard_ms;
    if (silent_ms > session->lease_ms) {
        stream_close(session->stream, CAIRN_ERR_TIMEOUT,
                     "nothing heard for %" PRIu64 " ms, the lease is %u ms", silent_ms,
                     session->lease_ms);
        return;
    }
    storage_watch_tick(&shard->storage); // the heartbeat reports what the watch has found
    connection_beat(shard);
    call_roll(shard);
    unfit_look(shard);
}

/* Finds what a coordinator over TCP asks for: this shard's key, and the token. */
static cairn_status find_entrance(struct shard_daemon *shard, const struct shard_options *options,
                                  struct sentence *why)
{
    struct coordinator_session *session = &shard->session;
    char state[PATH_MAX], fallback[PATH_MAX];
    if (session->address.is_unix) return CAIRN_OK;
    join_state_folder(options->state != NULL ? options->state : "", state);
    CAIRN_TRY(join_node_key(state, shard->name, &session->entrance.key, why));
    session->entrance.has_key = true;
    join_token(state, fallback);
    session->token_file = strdup(options->token_file != NULL ? options->token_file : "");
    session->token_fallback = strdup(fallback);
    if (session->token_file == NULL || session->token_fallback == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a shard");
    return find_token(session, why);
}

cairn_status connection_open(struct shard_daemon *shard, const struct shard_options *options,
                             struct sentence *why)
{
    struct coordinator_session *session = &shard->session;
    if (endpoints_parse(options->coordinator, &session->endpoints, why) != CAIRN_OK)
        return CAIRN_ERR_CONFIG;
    session->address = session->endpoints.list[0];
    CAIRN_TRY(find_entrance(shard, options, why));
    session->serial = 1;
    session->backoff_ms = BACKOFF_FIRST_MS;
    uv_timer_init(shard->loop, &session->timer);
    session->timer.data = shard;
    return CAIRN_OK;
}

void connection_begin(struct shard_daemon *shard)
{
    if (shard->session.stream != NULL) {
        stream_close(shard->session.stream, CAIRN_OK,
                     "this shard connects anew, to say which parts it has now");
        return;
    }
    uv_timer_start(&shard->session.timer, on_timer, 0, 0);
}

void connection_close(struct shard_daemon *shard, uv_close_cb on_timer_closed)
{
    struct coordinator_session *session = &shard->session;
    assert(shard->closing);
    if (session->stream != NULL) stream_close(session->stream, CAIRN_OK, "shard stops");
    uv_close((uv_handle_t *)&session->timer, on_timer_closed);
}
