/* Tells coordinators which parts of jobs the shard holds, and ends the shard when it is unfit or
 * drained. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot/snapshot.h"
#include "server/shard/jobs.h"
#include "server/shard/part.h"
#include "server/shard/shard.h"

/* ==== held ==== */

/* The parts that a shard holds, and the store to which these parts belong. State outlives the coordinator
 * that made it: the shard does not obey a coordinator of another store, or one whose store is an older
 * copy. Such a coordinator may ask which parts are held. If its operator says so, the coordinator may adopt
 * these parts or have them dropped. */

/* True if the job counts as held. A faulted job does not count, because nobody can use it. */
static bool is_held(const struct shard_job *job)
{
    return job->state != CAIRN_JOB_LEAVING && job->state != CAIRN_JOB_FAULTED;
}

size_t held_jobs_count(const struct shard_daemon *shard)
{
    size_t count = 0;
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        count += is_held(job);
    return count;
}

/* Fills in the fields for which a Hello has no room. */
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

size_t held_jobs_list(const struct shard_daemon *shard, Cairn__HeldJob *out, bool full)
{
    size_t count = 0;
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next) {
        if (!is_held(job)) continue;
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
        held->parked = job->park.is_parked || job->park.is_under_way;
        if (full) fill_more(job, held);
    }
    return count;
}

/* Sends HeldJobs, as the answer to `request` if that is not 0. */
static void tell_held(struct shard_daemon *shard, uint32_t request)
{
    Cairn__HeldJob held[CAIRN_SHARD_JOBS_MAX];
    Cairn__HeldJob *list[CAIRN_SHARD_JOBS_MAX];
    Cairn__HeldJobs message = CAIRN__HELD_JOBS__INIT;
    message.n_held = held_jobs_list(shard, held, true);
    message.held = list;
    for (size_t i = 0; i < message.n_held; i++) list[i] = &held[i];
    message.keys = shard->keys;
    session_send(shard, CAIRN_MSG_HELD_JOBS, request, &message.base);
}

/* Returns a copy of the message, which the caller owns; NULL if there are no keys, or no memory. */
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

void held_keys(struct shard_daemon *shard, const Cairn__Keys *keys)
{
    Cairn__Keys *copy = shard->session.standing == CAIRN_STANDING_GOOD ? copy_keys(keys) : NULL;
    if (copy == NULL) return;
    held_keys_release(shard);
    shard->keys = copy;
}

void held_keys_release(struct shard_daemon *shard)
{
    if (shard->keys != NULL) cairn__keys__free_unpacked(shard->keys, NULL);
    shard->keys = NULL;
}

/* Obeys the coordinator of this session from now on. */
static void obey_coordinator(struct shard_daemon *shard)
{
    shard->session.standing = CAIRN_STANDING_GOOD;
    shard->seen = shard->session.coordinator;
}

void held_judge(struct shard_daemon *shard, const char *cluster)
{
    struct coordinator_session *session = &shard->session;
    const struct coordinator_id *theirs = &session->coordinator;
    const size_t count = held_jobs_count(shard);
    session->standing = count == 0 ? CAIRN_STANDING_GOOD : standing_of(theirs, &shard->seen);
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
              shard->name, count, shard->seen.store, shard->seen.incarnation, cluster,
              theirs->store, theirs->incarnation);
}

/* ---- the operator's word ---- */

static void refuse_request(struct shard_daemon *shard, uint32_t request, cairn_status status,
                           const char *text)
{
    struct request answered = session_request(shard, request);
    struct sentence why;
    sentence_set(&why, "%s", text);
    session_answer(shard, &answered, status, &why);
}

/* Sends the spec and the layout of a part, as this shard received them. */
static void send_part(struct shard_daemon *shard, uint32_t request, const struct shard_job *job)
{
    const bool amended = job->terms.amended.have_bytes > 0;
    struct packed *spec = amended
                              ? packed_copy(job->terms.amended.bytes, job->terms.amended.have_bytes)
                              : packed_spec(&job->spec);
    struct packed *layout = packed_layout(job->view->layout);
    if (spec == NULL || layout == NULL) {
        refuse_request(shard, request, CAIRN_ERR_NO_MEMORY,
                       "out of memory to send the spec of a job");
    } else {
        Cairn__Part part = CAIRN__PART__INIT;
        part.spec_bytes = spec->size;
        part.layout_bytes = layout->size;
        session_send(shard, CAIRN_MSG_PART, request, &part.base);
        session_send_pages(shard, request, CAIRN_PAGE_SPEC, spec);
        session_send_pages(shard, request, CAIRN_PAGE_LAYOUT, layout);
    }
    packed_release(spec);
    packed_release(layout);
}

static void on_part_get(struct shard_daemon *shard, uint32_t request, const Cairn__PartGet *message)
{
    if (message->job == 0) {
        tell_held(shard, request);
        return;
    }
    const struct shard_job *job = shard_job_find_part(shard, message->job, message->generation);
    if (job == NULL)
        refuse_request(shard, request, CAIRN_ERR_NOT_FOUND, "it is not held any more");
    else
        send_part(shard, request, job);
}

static void on_part_drop(struct shard_daemon *shard, uint32_t request,
                         const Cairn__PartDrop *message)
{
    struct request answered = session_request(shard, request);
    struct shard_job *job = shard_job_find_part(shard, message->job, message->generation);
    if (job == NULL) {
        session_answer(shard, &answered, CAIRN_OK, NULL);
        return;
    }
    log_warn("job %s, generation %" PRIu64 ", is dropped: the coordinator's operator asked for it",
             job->spec.name, job->generation);
    job->dropping = answered; // the request is answered when the job's memory is given back
    shard_job_leave(job);
    tell_held(shard, 0);
    // The shard no longer holds anything for anyone: it begins anew, with any coordinator.
    if (shard->session.standing != CAIRN_STANDING_GOOD && held_jobs_count(shard) == 0)
        session_refuse(shard, CAIRN_ERR_FENCED, "the state of this shard was forgotten");
}

/* Marks adopted parts as settled. A coordinator drops parts that are not settled, because such parts are
 * leftovers of its own work. Adopted parts were made for another coordinator, and nobody knows any more
 * whether that coordinator's store had them. */
static void settle_adopted(struct shard_daemon *shard)
{
    for (struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        job->terms.settled = true;
}

/* Obeys the store that adopted this shard's state. No shard has seen that store before, so numbers begin
 * anew. */
static void on_adopted(struct shard_daemon *shard, uint32_t request,
                       const Cairn__StoreAdopted *message)
{
    struct request answered = session_request(shard, request);
    struct coordinator_session *session = &shard->session;
    session->coordinator.store = message->store;
    session->coordinator.incarnation = message->incarnation;
    if (session->standing != CAIRN_STANDING_GOOD) settle_adopted(shard);
    obey_coordinator(shard);
    log_warn("store %016" PRIx64 " (start %" PRIu64
             ") has adopted this shard's state: the shard obeys no other store any more",
             message->store, message->incarnation);
    session_answer(shard, &answered, CAIRN_OK, NULL);
}

bool held_on_message(struct shard_daemon *shard, const struct wire_frame *frame,
                     const ProtobufCMessage *message)
{
    switch (frame->type) {
    case CAIRN_MSG_PART_GET:
        on_part_get(shard, frame->request, (const Cairn__PartGet *)message);
        return true;
    case CAIRN_MSG_PART_DROP:
        on_part_drop(shard, frame->request, (const Cairn__PartDrop *)message);
        return true;
    case CAIRN_MSG_STORE_ADOPTED:
        on_adopted(shard, frame->request, (const Cairn__StoreAdopted *)message);
        return true;
    case CAIRN_MSG_HEARTBEAT:
        held_keys(shard, ((const Cairn__Heartbeat *)message)->keys);
        return false;
    case CAIRN_MSG_DONE:
    case CAIRN_MSG_ERROR: return false;
    default: break;
    }
    if (shard->session.standing == CAIRN_STANDING_GOOD) return false;
    log_warn("ignored %s of a coordinator that is not obeyed", message_name(frame->type));
    if (frame->request != 0)
        refuse_request(
            shard, frame->request, CAIRN_ERR_REFUSED,
            "this shard holds state of another store, or of a newer coordinator; see `cairn "
            "cluster adopt`");
    return true;
}

/* ==== unfit ==== */

/* The number of heartbeats for which an unfit shard stays. Meanwhile the coordinator gives up the jobs that
 * lay on the device. If the shard ended at once, the coordinator would wait for these jobs. */
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
    if (failure == NULL || shard->closing || shard->events.on_unfit == NULL) return;
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
    shard->events.on_unfit(shard, shard->events.context);
}

/* ==== drain ==== */

#define LEASE_MS      5000 /* used until a coordinator has told its lease */
#define DRAIN_REQUEST 1    /* the only request that a shard sends to a coordinator */

/* Ends the drain. The caller may not use the shard afterwards, because the callback may close it. */
static void end_drain(struct shard_daemon *shard)
{
    shard->drain.is_wanted = false;
    uv_timer_stop(&shard->drain.timer);
    if (shard->events.on_drained != NULL && !shard->closing)
        shard->events.on_drained(shard, shard->events.context);
}

/* True if the coordinator of this session was asked to drain the shard, and is doing so. */
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

/* Waits until the time for the drain is over. If no coordinator can be asked, the shard waits only as long
 * as it takes to start a coordinator again. */
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

void drain_on_welcome(struct shard_daemon *shard)
{
    if (!shard->drain.is_wanted) return;
    ask_to_drain(shard);
    if (is_asked(shard)) wait_on(shard);
}

void drain_on_lost(struct shard_daemon *shard)
{
    if (shard->drain.is_wanted) wait_on(shard);
}

static bool is_answer(const struct shard_daemon *shard, const struct wire_frame *frame)
{
    return shard->drain.is_wanted && shard->drain.asked == shard->session.serial &&
           frame->request == DRAIN_REQUEST &&
           (frame->type == CAIRN_MSG_DONE || frame->type == CAIRN_MSG_ERROR);
}

bool drain_on_message(struct shard_daemon *shard, const struct wire_frame *frame,
                      const ProtobufCMessage *message)
{
    if (shard->session.standing != CAIRN_STANDING_GOOD) return false;
    if (frame->type == CAIRN_MSG_MEMBER_END) {
        log_info("this shard holds nothing and is known no more: it ends (%s)",
                 ((const Cairn__MemberEnd *)message)->why);
    } else if (!is_answer(shard, frame)) {
        return false;
    } else if (frame->type == CAIRN_MSG_DONE) {
        log_info("this shard's state is on other shards now: it ends");
    } else {
        log_error("this shard ends without bringing its parts of %zu jobs to other shards: %s",
                  held_jobs_count(shard), ((const Cairn__Error *)message)->text);
    }
    end_drain(shard);
    return true;
}
