/* Turns the coordinator's messages into jobs, members and events of the cores. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/jobs.h"
#include "server/shard/move.h"
#include "server/shard/part.h"
#include "server/shard/read.h"
#include "server/shard/relay.h"
#include "server/shard/shard.h"
#include "server/shard/state.h"

/* Answers a probe: any answer says that this shard is alive. */
static void on_probe(struct shard_daemon *shard, uint32_t request)
{
    struct request answered = session_request(shard, request);
    session_answer(shard, &answered, CAIRN_OK, NULL);
}

/* Returns CAIRN_OK if every chunk was put; on CAIRN_ERR_NOT_READY `why` names the missing tensors. */
static cairn_status puts_are_whole(const struct shard_job *job, struct sentence *why)
{
    size_t missing = 0;
    uint32_t last = UINT32_MAX;
    struct sentence names = { "" };
    for (uint64_t c = 0; c < job->view->table.map.chunk_count; c++) {
        const uint32_t tensor = job->view->table.map.extents[job->view->table.extent_of[c]].tensor;
        const bool is_put = (job->puts.have[c] & CAIRN_PUT_HAS(CAIRN_PLANE_PARAM)) != 0;
        if (tensor == last || is_put || tiles_put_whole(job, c)) continue;
        last = tensor;
        if (++missing <= 5)
            sentence_add(&names, "%s%s", missing > 1 ? ", " : "", job->spec.tensors[tensor].name);
    }
    if (missing == 0) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_NOT_READY,
                     "shard %s has no whole initial state of %zu tensors: %s%s; put them first",
                     job->shard->name, missing, names.text, missing > 5 ? ", ..." : "");
}

static void on_job_seal(struct shard_daemon *shard, uint32_t request, struct shard_job *job,
                        const ProtobufCMessage *seal)
{
    const uint64_t moments_of = ((const Cairn__JobSeal *)seal)->moments_of;
    struct request answered = session_request(shard, request);
    struct sentence why;
    cairn_status status = CAIRN_OK;
    const bool is_put = job->state == CAIRN_JOB_INITIALIZING,
               serves = job->state == CAIRN_JOB_SERVING;
    if (job->load.at_work != NULL && job->load.at_work->puts_follow)
        status = fail_with(&why, CAIRN_ERR_NOT_READY, "its initial state is being made");
    if (is_put) status = puts_are_whole(job, &why);
    // A refused seal counts no moments, because another member may be putting its own moments.
    if (status == CAIRN_OK && (is_put || serves)) put_count_moments(job, moments_of);
    if (serves) status = put_judge_again(job, &why);
    if (status != CAIRN_OK || serves) {
        session_answer(shard, &answered, status, &why);
        return;
    }
    job->load.asked = answered; // the request is answered when LOADING or SEALING is done
    if (is_put) pass_seal(job);
}

/* ---- rounds ---- */

/* Reads a decision off the wire; returns false if it is invalid. `out` borrows from the message. */
static bool read_decision(const Cairn__Decision *message, size_t payload_max, struct decision *out)
{
    *out = (struct decision) { .kind = CAIRN_DECISION_NONE };
    if (message == NULL) return true;
    if (message->kind > CAIRN_DECISION_WRITE || message->payload.len > payload_max) return false;
    *out = (struct decision) {
        .kind = (enum decision_kind)message->kind,
        .round = message->round,
        .version_after = { .generation = message->generation, .step = message->step },
        .payload = message->payload.data,
        .payload_bytes = message->payload.len,
    };
    return true;
}

static void on_decision(struct shard_job *job, enum step_event_kind kind, uint64_t epoch,
                        uint64_t round, const Cairn__Decision *message)
{
    struct decision decision;
    if (!read_decision(message, shard_payload_max(job), &decision)) {
        shard_job_fault(job, "a decision is of an unknown kind or too long");
        return;
    }
    own_step(job, &(struct step_event) {
                      .kind = kind,
                      .epoch = epoch,
                      .round = round,
                      .version = decision.version_after,
                      .decision = &decision,
                  });
    write_resolved(job, decision.round);
}

/* Refuses the round before anything was changed. A coordinator that does not know about the move learns
 * about it from the next Hello. */
static void refuse_round(struct shard_job *job, const Cairn__RoundOpen *message)
{
    session_refuse(job->shard, CAIRN_ERR_PROTOCOL,
                   "round %" PRIu64 " of job %s was opened while its state is moved to or from the "
                   "device: ask with PartPark first",
                   message->round, job->spec.name);
}

/* Tells the coordinator that this shard does not have the round's relay. The workers would wait for a grant
 * that nobody gives, so the coordinator then opens the round anew, without relays. */
static void tell_no_relay(struct shard_job *job, const Cairn__RoundOpen *message)
{
    struct sentence why;
    Cairn__MemberFault fault = CAIRN__MEMBER_FAULT__INIT;
    sentence_set(&why, "round %" PRIu64 " names a relay, but shard %s is none", message->round,
                 job->shard->name);
    log_error("job %s: %s", job->spec.name, why.text);
    fault.job = job->number;
    fault.member = message->relay;
    fault.text = why.text;
    session_send(job->shard, CAIRN_MSG_MEMBER_FAULT, 0, &fault.base);
}

/* Notes the groups and tensors that are frozen in the round that opens. */
static void frozen_note(struct frozen *frozen, const struct job_spec_data *spec,
                        const Cairn__RoundOpen *message)
{
    memset(frozen->groups, 0, spec->group_count * sizeof *frozen->groups);
    memset(frozen->tensors, 0, spec->tensor_count * sizeof *frozen->tensors);
    frozen->round = message->round;
    for (size_t i = 0; i < message->n_frozen; i++) {
        if (message->frozen[i] < spec->group_count) frozen->groups[message->frozen[i]] = true;
    }
    for (size_t i = 0; i < message->n_frozen_tensors; i++) {
        const uint32_t tensor = message->frozen_tensors[i];
        if (tensor < spec->tensor_count) frozen->tensors[tensor] = true;
    }
}

static void on_round_open(struct shard_job *job, const Cairn__RoundOpen *message)
{
    if (job->state != CAIRN_JOB_SERVING || message->n_members > UINT32_MAX) {
        shard_job_fault(job,
                        "a round is too large, or was opened before the initial state is complete");
        return;
    }
    if (job->park.is_under_way) {
        refuse_round(job, message);
        return;
    }
    write_close(job);
    if (message->write && message->n_members == 1)
        write_open(job, message->round, message->members[0]);
    frozen_note(&job->frozen, &job->spec, message);
    own_step(job, &(struct step_event) {
                      .kind = CAIRN_STEP_OPEN,
                      .epoch = message->epoch,
                      .round = message->round,
                      .version = { message->generation, message->step },
                      .members = message->members,
                      .member_count = (uint32_t)message->n_members,
                      .holds = tiles_holds(job, message->members, (uint32_t)message->n_members),
                  });
    if (relay_on_open(job, message) != CAIRN_OK) tell_no_relay(job, message);
}

static void on_fence(struct shard_job *job, const Cairn__Fence *message)
{
    const bool newer = message->epoch > step_epoch(job->collector.step); // else the core refuses it
    if (newer && move_on_fence(job, message->epoch, message->layout)) return;
    own_step(job, &(struct step_event) {
                      .kind = CAIRN_STEP_FENCE,
                      .epoch = message->epoch,
                  });
    if (newer) relay_on_fence(job, message->epoch);
}

static void on_relay_set(struct shard_daemon *shard, uint32_t request, struct shard_job *job,
                         const Cairn__RelaySet *message)
{
    struct request answered = session_request(shard, request);
    struct sentence why;
    const cairn_status status = relay_on_set(job, message, &why);
    if (status != CAIRN_OK) log_error("job %s cannot be relayed: %s", job->spec.name, why.text);
    if (request != 0) session_answer(shard, &answered, status, &why);
}

static void on_member_join(struct shard_daemon *shard, uint32_t request, struct shard_job *job,
                           const Cairn__MemberJoin *message)
{
    struct request answered = session_request(shard, request);
    struct sentence why;
    cairn_status status = members_join(job, message, &why);
    if (status == CAIRN_OK) {
        admit_member(job, message->member, answered);
        return;
    }
    log_warn("member %s of job %s refused: %s", message->name, job->spec.name, why.text);
    session_answer(shard, &answered, status, &why);
}

static void on_lease_keep(struct shard_daemon *shard, uint32_t request, struct shard_job *job,
                          const Cairn__LeaseKeep *message)
{
    struct request answered = session_request(shard, request);
    struct sentence why;
    const cairn_status status = shard_lease_keep(job, message, &why);
    session_answer(shard, &answered, status, &why);
}

/* ---- whom a round waits for ---- */

/* Lists the contributors from which something is missing in the open round. The coordinator asks for this
 * list when the step's deadline has passed, or when the round takes a long time. */

/* Entries that do not fit into a frame are left out: the first entries suffice as a reason. */
#define TOLD_MAX 16384

struct list {
    uint64_t members[TOLD_MAX];
    uint32_t micros[TOLD_MAX];
    uint32_t flags[TOLD_MAX]; /* enum lack_flags */
    size_t count;
};

static void add_core(struct list *list, const struct step_machine *core, uint32_t flags)
{
    static struct step_waiting waiting[TOLD_MAX]; // only the loop thread uses it
    size_t count = step_waiting(core, waiting, TOLD_MAX);
    if (count > TOLD_MAX - list->count) count = TOLD_MAX - list->count;
    for (size_t i = 0; i < count; i++) {
        const size_t at = list->count++;
        list->members[at] = waiting[i].member;
        list->micros[at] = waiting[i].micro;
        list->flags[at] = flags | (waiting[i].waits ? CAIRN_LACK_WAITS : 0u) |
                          (waiting[i].arrived > 0 ? CAIRN_LACK_ARRIVED : 0u);
    }
}

static void tell_lacks(struct shard_job *job, const Cairn__LacksGet *message)
{
    struct list *list = calloc(1, sizeof *list);
    const struct relay *relay = job_relay(job);
    Cairn__Lacks lacks = CAIRN__LACKS__INIT;
    if (list == NULL) return; // the coordinator asks again at the next deadline
    if (step_round_of(job->collector.step) == message->round)
        add_core(list, job->collector.step, 0);
    for (uint32_t i = 0; relay != NULL && relay->round == message->round && i < relay->owner_count;
         i++)
        add_core(list, relay->owners[i].collector.step, CAIRN_LACK_RELAYED);
    lacks.job = message->job;
    lacks.epoch = message->epoch;
    lacks.round = message->round;
    lacks.members = list->members;
    lacks.micros = list->micros;
    lacks.flags = list->flags;
    lacks.n_members = lacks.n_micros = lacks.n_flags = list->count;
    session_send(job->shard, CAIRN_MSG_LACKS, 0, &lacks.base);
    free(list);
}

/* ---- dispatch ---- */

/* Returns the number of the job that the message is about; 0 if it is about no job. */
static uint64_t job_number(uint16_t type, const ProtobufCMessage *message)
{
    switch (type) {
    case CAIRN_MSG_JOB_SEAL: return ((const Cairn__JobSeal *)message)->job;
    case CAIRN_MSG_MEMBER_JOIN: return ((const Cairn__MemberJoin *)message)->job;
    case CAIRN_MSG_MEMBER_LEAVE: return ((const Cairn__MemberLeave *)message)->job;
    case CAIRN_MSG_RELAY_SET: return ((const Cairn__RelaySet *)message)->job;
    case CAIRN_MSG_ROUND_OPEN: return ((const Cairn__RoundOpen *)message)->job;
    case CAIRN_MSG_DECIDE: return ((const Cairn__Decide *)message)->job;
    case CAIRN_MSG_FENCE: return ((const Cairn__Fence *)message)->job;
    case CAIRN_MSG_RESOLVE: return ((const Cairn__Resolve *)message)->job;
    case CAIRN_MSG_PIN: return ((const Cairn__Pin *)message)->job;
    case CAIRN_MSG_PIN_PREPARE: return ((const Cairn__PinPrepare *)message)->job;
    case CAIRN_MSG_LACKS_GET: return ((const Cairn__LacksGet *)message)->job;
    case CAIRN_MSG_PIN_FOLDER: return ((const Cairn__PinFolder *)message)->job;
    case CAIRN_MSG_SNAPSHOT_PART_NEXT: return ((const Cairn__SnapshotPartNext *)message)->job;
    case CAIRN_MSG_LEASE_KEEP: return ((const Cairn__LeaseKeep *)message)->job;
    case CAIRN_MSG_LEASE_END: return ((const Cairn__LeaseEnd *)message)->job;
    case CAIRN_MSG_PART_PARK: return ((const Cairn__PartPark *)message)->job;
    case CAIRN_MSG_PART_UNPREPARE: return ((const Cairn__PartUnprepare *)message)->job;
    case CAIRN_MSG_PART_SETTLED: return ((const Cairn__PartSettled *)message)->job;
    case CAIRN_MSG_PART_PUBLISH: return ((const Cairn__PartPublish *)message)->job;
    default: return 0;
    }
}

static void on_job_message(struct shard_daemon *shard, uint16_t type, uint32_t request,
                           struct shard_job *job, const ProtobufCMessage *message)
{
    const Cairn__Decide *decide = (const Cairn__Decide *)message;
    const Cairn__Resolve *resolve = (const Cairn__Resolve *)message;
    switch (type) {
    case CAIRN_MSG_JOB_SEAL: on_job_seal(shard, request, job, message); break;
    case CAIRN_MSG_MEMBER_JOIN:
        on_member_join(shard, request, job, (const Cairn__MemberJoin *)message);
        break;
    case CAIRN_MSG_MEMBER_LEAVE:
        members_leave(job, ((const Cairn__MemberLeave *)message)->member);
        admit_left(job);
        break;
    case CAIRN_MSG_ROUND_OPEN: on_round_open(job, (const Cairn__RoundOpen *)message); break;
    case CAIRN_MSG_DECIDE:
        on_decision(job, CAIRN_STEP_DECIDE, decide->epoch, 0, decide->decision);
        break;
    case CAIRN_MSG_RESOLVE:
        on_decision(job, CAIRN_STEP_RESOLVE, resolve->epoch, resolve->round, resolve->decision);
        relay_on_resolve(job, resolve->epoch);
        move_on_resolve(job, resolve->epoch);
        break;
    case CAIRN_MSG_FENCE: on_fence(job, (const Cairn__Fence *)message); break;
    case CAIRN_MSG_RELAY_SET:
        on_relay_set(shard, request, job, (const Cairn__RelaySet *)message);
        break;
    case CAIRN_MSG_PIN: pin_begin(job, (const Cairn__Pin *)message); break;
    case CAIRN_MSG_PIN_PREPARE:
        pin_on_prepare(job, request, (const Cairn__PinPrepare *)message);
        break;
    case CAIRN_MSG_LACKS_GET: tell_lacks(job, (const Cairn__LacksGet *)message); break;
    case CAIRN_MSG_PIN_FOLDER: pin_on_folder(job, (const Cairn__PinFolder *)message); break;
    case CAIRN_MSG_SNAPSHOT_PART_NEXT:
        report_next(job, ((const Cairn__SnapshotPartNext *)message)->snapshot);
        break;
    case CAIRN_MSG_LEASE_KEEP:
        on_lease_keep(shard, request, job, (const Cairn__LeaseKeep *)message);
        break;
    case CAIRN_MSG_LEASE_END:
        shard_lease_end(job, ((const Cairn__LeaseEnd *)message)->lease);
        break;
    case CAIRN_MSG_PART_PARK:
        park_on_message(job, request, (const Cairn__PartPark *)message);
        break;
    case CAIRN_MSG_PART_UNPREPARE:
        move_on_unprepare(job, (const Cairn__PartUnprepare *)message);
        break;
    case CAIRN_MSG_PART_SETTLED: move_on_settled(job, (const Cairn__PartSettled *)message); break;
    case CAIRN_MSG_PART_PUBLISH:
        move_on_publish(job, request, (const Cairn__PartPublish *)message);
        break;
    default: break; // the caller passes no other type
    }
}

static void on_message_of_job(struct shard_daemon *shard, uint16_t type, uint32_t request,
                              const ProtobufCMessage *message)
{
    const uint64_t number = job_number(type, message);
    struct shard_job *job = shard_job_find(shard, number);
    if (job != NULL && job->state != CAIRN_JOB_FAULTED) {
        on_job_message(shard, type, request, job, message);
        return;
    }
    struct sentence why;
    sentence_set(&why, "shard %s %s job %016" PRIx64 ": create it in a higher generation",
                 shard->name, job == NULL ? "does not hold" : "stopped", number);
    log_warn("%s ignored: %s", message_name(type), why.text);
    struct request answered = session_request(shard, request);
    if (request != 0) session_answer(shard, &answered, CAIRN_ERR_NOT_FOUND, &why);
}

static void on_error(struct shard_daemon *shard, const Cairn__Error *error)
{
    if (error->status == CAIRN_ERR_FENCED && error->job == 0) {
        session_fenced(shard, error->text);
        return;
    }
    log_warn("the coordinator says: %s (%s)", error->text, status_code_name(error->status));
}

/* Returns NULL if the frame is malformed; then the session ends. */
static ProtobufCMessage *unpack_frame(struct shard_daemon *shard, const struct wire_frame *frame)
{
    const ProtobufCMessageDescriptor *type = message_type(frame->type);
    ProtobufCMessage *message = NULL;
    if (type != NULL) message = message_unpack(type, frame->payload, frame->payload_bytes);
    if (message == NULL)
        session_refuse(shard, CAIRN_ERR_MALFORMED, "malformed %s of %zu bytes",
                       message_name(frame->type), frame->payload_bytes);
    return message;
}

void shard_on_frame(struct shard_daemon *shard, const struct wire_frame *frame)
{
    ProtobufCMessage *message = unpack_frame(shard, frame);
    if (message == NULL) return;
    if (drain_on_message(shard, frame, message) || held_on_message(shard, frame, message)) {
        message_free(message);
        return;
    }
    switch (frame->type) {
    case CAIRN_MSG_JOB_CREATE:
        create_on_message(shard, frame->request, (Cairn__JobCreate *)message);
        return; // the callee owns the message
    case CAIRN_MSG_MEMBER_TILES:
        tiles_on_message(shard, frame->request, (Cairn__MemberTiles *)message);
        return; // the same
    case CAIRN_MSG_JOB_TERMS:
        terms_on_message(shard, frame->request, (Cairn__JobTerms *)message);
        return; // the same
    case CAIRN_MSG_PART_PREPARE:
        move_on_prepare(shard, frame->request, (Cairn__PartPrepare *)message);
        return; // the same
    case CAIRN_MSG_PAGE:
        arriving_on_page(shard, frame->request, (const Cairn__Page *)message);
        break;
    case CAIRN_MSG_JOB_DROP:
        create_on_drop(shard, frame->request, (const Cairn__JobDrop *)message);
        break;
    case CAIRN_MSG_PROBE: on_probe(shard, frame->request); break;
    case CAIRN_MSG_JOB_SWITCH: create_on_switch(shard, (const Cairn__JobSwitch *)message); break;
    case CAIRN_MSG_JOB_SEAL:
    case CAIRN_MSG_MEMBER_JOIN:
    case CAIRN_MSG_MEMBER_LEAVE:
    case CAIRN_MSG_RELAY_SET:
    case CAIRN_MSG_ROUND_OPEN:
    case CAIRN_MSG_DECIDE:
    case CAIRN_MSG_FENCE:
    case CAIRN_MSG_RESOLVE:
    case CAIRN_MSG_PIN:
    case CAIRN_MSG_PIN_PREPARE:
    case CAIRN_MSG_LACKS_GET:
    case CAIRN_MSG_PIN_FOLDER:
    case CAIRN_MSG_SNAPSHOT_PART_NEXT:
    case CAIRN_MSG_LEASE_KEEP:
    case CAIRN_MSG_PART_PARK:
    case CAIRN_MSG_PART_UNPREPARE:
    case CAIRN_MSG_PART_SETTLED:
    case CAIRN_MSG_PART_PUBLISH:
    case CAIRN_MSG_LEASE_END: on_message_of_job(shard, frame->type, frame->request, message); break;
    case CAIRN_MSG_ERROR: on_error(shard, (const Cairn__Error *)message); break;
    case CAIRN_MSG_HEARTBEAT:
    case CAIRN_MSG_DONE: break; // these messages only renew the lease
    default:
        session_refuse(shard, CAIRN_ERR_PROTOCOL, "%s is not for a shard",
                       message_name(frame->type));
    }
    message_free(message);
}

/* ==== landing ==== */

/* Messages from the fabric. Each message is judged, and then passed to the core, or to the functions that
 * put and fetch.
 *
 * A header belongs to a member only if its job, member and token agree. A stranger's message is dropped and
 * counted. A member's wrong message is answered by a NAK. Nothing is received before it is judged, so a
 * wrong message changes nothing. */

/* ---- contributions ---- */

static void refuse_chunk(struct shard_member *member, const struct chunk_header *header,
                         cairn_status status, const char *why)
{
    member_note_refusal(member, header, why);
    member_refuse(member, header, status);
}

static void on_push(struct shard_member *member, const struct chunk_header *header,
                    struct fabric_message *message)
{
    struct shard_job *job = member->job;
    struct sentence why;
    struct chunk_piece piece;
    uint32_t chunk;
    if (relay_on_push(member, header, message)) return;
    cairn_status status = collector_judge(&job->collector, member, header, &chunk, &piece, &why);
    if (status != CAIRN_OK) {
        refuse_chunk(member, header, status, why.text);
        fabric_drop(message);
        return;
    }
    collector_push(&job->collector, header, chunk, &piece, message);
    shard_job_settle(job);
}

/* ---- ends of micro-batches ---- */

/* Refuses the end of a micro-batch in the name of the shard that the end is meant for. */
static void refuse_end(struct shard_member *member, const struct chunk_header *header,
                       cairn_status status, const char *why)
{
    const struct shard_job *job = member->job;
    member_note_refusal(member, header, why);
    member_refuse_for(member, header, status,
                      header->tensor != 0 ? header->tensor - 1 : job->view->table.map.shard);
}

/* A micro-batch's end whose list of untouched tensors is being received. */
struct note {
    struct shard_job *job; /* borrowed */
    struct chunk_header header;
    size_t count;
    uint32_t tensors[]; /* [count] */
};

/* Counts the chunks of this shard of which the member sends nothing: chunks of the listed tensors, and
 * chunks of which the member holds nothing. Returns false if the list is not ascending, or names a tensor
 * that takes no gradient. */
static bool count_absent(const struct shard_member *member, const uint32_t *tensors, size_t count,
                         uint32_t *absent_out)
{
    const struct shard_job *job = member->job;
    uint64_t absent = member->untouched;
    for (size_t i = 0; i < count; i++) {
        if (tensors[i] >= job->spec.tensor_count) return false;
        if (i > 0 && tensors[i] <= tensors[i - 1]) return false;
        if (job->spec.tensors[tensors[i]].kind != CAIRN_TRAINED) return false;
        absent += tiles_touched(member, tensors[i]);
    }
    *absent_out = (uint32_t)absent; // at most table.trained_count
    return true;
}

static void tell_micro_end(struct shard_member *member, const struct chunk_header *header,
                           const uint32_t *tensors, size_t count, uint32_t absent)
{
    if (header->tensor != 0) { // the message is meant for the shard of index tensor - 1
        relay_on_micro_end(member, header, tensors, count);
        return;
    }
    struct step_event event = step_event_of(header);
    event.absent = absent;
    own_step(member->job, &event);
}

static void on_note(void *arg, cairn_status status)
{
    struct note *note = arg;
    struct shard_job *job = note->job;
    const struct chunk_header *header = &note->header;
    struct shard_member *member = member_find(job, header->member);
    if (member != NULL && member->notes > 0) member->notes--;
    if (status == CAIRN_OK && member != NULL && job->state == CAIRN_JOB_SERVING) {
        uint32_t absent;
        if (chunk_checksum(note->tensors, (size_t)header->payload_bytes) != header->checksum)
            refuse_end(member, header, CAIRN_ERR_CHECKSUM, "its checksum does not match");
        else if (!count_absent(member, note->tensors, note->count, &absent))
            refuse_end(member, header, CAIRN_ERR_MALFORMED,
                       "its list of untouched tensors is wrong");
        else
            tell_micro_end(member, header, note->tensors, note->count, absent);
    }
    free(note);
    shard_job_settle(job);
    shard_job_idle(job);
}

static void receive_note(struct shard_member *member, const struct chunk_header *header,
                         struct fabric_message *message)
{
    const size_t bytes = (size_t)header->payload_bytes;
    struct note *note = NULL;
    if (member->notes < CAIRN_SHARD_NOTES_MAX) note = malloc(sizeof *note + bytes);
    if (note == NULL) {
        refuse_end(member, header, CAIRN_ERR_BUSY, "too many ends at a time");
        fabric_drop(message);
        return;
    }
    note->job = member->job;
    note->header = *header;
    note->count = bytes / sizeof *note->tensors;
    cairn_status status = fabric_receive(message, note->tensors, bytes, on_note, note);
    if (status != CAIRN_OK) {
        refuse_end(member, header, CAIRN_ERR_BUSY, status_text((int)status));
        fabric_drop(message);
        free(note);
        return;
    }
    member->notes++;
    shard_job_busy(member->job);
}

static void on_micro_end(struct shard_member *member, const struct chunk_header *header,
                         struct fabric_message *message)
{
    const uint64_t bytes_max = member->job->spec.tensor_count * sizeof(uint32_t);
    if (header->value > UINT32_MAX || header->payload_bytes > bytes_max ||
        header->payload_bytes % sizeof(uint32_t) != 0) {
        refuse_end(member, header, CAIRN_ERR_MALFORMED, "its count or its list is too long");
        fabric_drop(message);
    } else if (message != NULL) {
        receive_note(member, header, message);
    } else {
        tell_micro_end(member, header, NULL, 0, (uint32_t)member->untouched);
    }
}

static void on_commit(struct shard_member *member, const struct chunk_header *header)
{
    if (header->tensor != 0) {
        relay_on_commit(member, header);
        return;
    }
    const struct step_event event = step_event_of(header);
    own_step(member->job, &event);
}

/* ---- all messages ---- */

static void on_round_message(struct shard_member *member, const struct chunk_header *header,
                             struct fabric_message *message)
{
    if (member->role != CAIRN_ROLE_WIRE_WORKER) {
        refuse_chunk(member, header, CAIRN_ERR_REFUSED, "a reader only fetches");
    } else if (header->kind == CAIRN_CHUNK_PUT) {
        put_on_message(member, header, message);
        return;
    } else if (member->job->state != CAIRN_JOB_SERVING) {
        refuse_chunk(member, header, CAIRN_ERR_NOT_READY, "the job is not ready");
    } else if (header->kind == CAIRN_CHUNK_PUSH) {
        on_push(member, header, message);
        return;
    } else if (header->kind == CAIRN_CHUNK_MICRO_END) {
        on_micro_end(member, header, message);
        return;
    } else {
        on_commit(member, header);
    }
    fabric_drop(message);
}

static bool begins_in(const struct shard_view *view, const struct chunk_header *header)
{
    return view != NULL &&
           shard_map_find(&view->table.map, header->tensor, header->first_leaf) != NULL;
}

/* True if, by the layout of the version, the chunk that the fetch asks for begins in this shard's part. */
static bool fetch_is_here(const struct shard_member *member, const struct chunk_header *header)
{
    const struct shard_job *job = member->job;
    const struct cairn_version version = { header->generation, header->step };
    if (header->plane != CAIRN_PLANE_WIRE)
        return begins_in(job->view, header) || begins_in(job->move.before, header);
    const struct published_copy *copy = published_find(job, version);
    if (copy == NULL) return begins_in(job->view, header);
    while (copy != NULL && !begins_in(copy->view, header)) copy = published_find_before(job, copy);
    return copy != NULL;
}

/* True if the chunk belongs to another shard's part. */
static bool is_of_another(const struct shard_member *member, const struct chunk_header *header)
{
    return !fetch_is_here(member, header) &&
           layout_find(member->job->view->layout, header->tensor, header->first_leaf) != NULL;
}

static void on_member_message(struct shard_member *member, const struct chunk_header *header,
                              struct fabric_message *message)
{
    if (header->kind == CAIRN_CHUNK_HELLO) {
        member_hello(member, header->request);
        fabric_drop(message);
        return;
    }
    member_heard(member);
    switch (header->kind) {
    case CAIRN_CHUNK_PUSH:
    case CAIRN_CHUNK_PUT:
    case CAIRN_CHUNK_MICRO_END:
    case CAIRN_CHUNK_COMMIT: on_round_message(member, header, message); return;
    case CAIRN_CHUNK_FETCH:
        if (is_of_another(member, header))
            relay_fetch(member, header, message);
        else
            fetch_on_message(member, header, message);
        return;
    default: refuse_chunk(member, header, CAIRN_ERR_PROTOCOL, "it is not for a shard");
    }
    fabric_drop(message);
}

/* Returns the member that sent the message; NULL if no member did. */
static struct shard_member *find_sender(struct shard_daemon *shard,
                                        const struct chunk_header *header)
{
    struct shard_job *job = shard_job_find(shard, header->job);
    if (job == NULL || job->state == CAIRN_JOB_FAULTED) return NULL;
    struct shard_member *member = member_find(job, header->member);
    return member != NULL && member->token == header->token ? member : NULL;
}

void landing_on_message(void *arg, const void *header_bytes, size_t header_size,
                        size_t payload_bytes, struct fabric_message *message)
{
    struct shard_daemon *shard = arg;
    struct chunk_header header;
    cairn_status status = chunk_decode(header_bytes, header_size, payload_bytes, &header);
    struct shard_member *member = NULL;
    if (status == CAIRN_OK && relay_on_message(shard, &header, message)) return;
    if (status == CAIRN_OK && receiver_on_message(shard, &header, message)) return;
    if (status == CAIRN_OK) member = find_sender(shard, &header);
    if (member == NULL) {
        shard->stats.chunks_refused++;
        log_limited(&shard->strangers, CAIRN_LOG_WARN, "dropped a message of %zu + %zu bytes: %s",
                    header_size, payload_bytes,
                    status == CAIRN_OK ? "no member has that job, session and token"
                                       : status_text((int)status));
        fabric_drop(message);
        return;
    }
    struct shard_job *job = member->job;
    shard_job_busy(job);
    on_member_message(member, &header, message);
    shard_job_idle(job);
}
