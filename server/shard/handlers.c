/* Handles the messages of the coordinator about rounds, passes the coordinator's other messages to
 * the modules, and passes messages from the fabric to their handlers. */
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

/* ---- rounds ---- */

/* Reads a decision from a message; NULL stands for no decision. Returns false if the decision is
 * invalid. `out` borrows from the message. */
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

/* Refuses the round before anything has changed. The coordinator does not know that the job is
 * being parked or taken back; it learns this from the next Hello. */
static void refuse_round(struct shard_job *job, const Cairn__RoundOpen *message)
{
    session_refuse(job->shard, CAIRN_ERR_PROTOCOL,
                   "round %" PRIu64 " of job %s was opened while its state is moved to or from the "
                   "device: ask with PartPark first",
                   message->round, job->spec.name);
}

/* Tells the coordinator that this shard does not have the relay that the round names. The
 * coordinator then opens the round anew, without relays; otherwise workers would wait for a grant
 * that nobody gives. */
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

static void on_round_open(struct shard_job *job, const void *body)
{
    const Cairn__RoundOpen *message = body;
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
    if (job->kept.is_due && !job->pass.updating) kept_begin(job); // the write before is over
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

static void fence(struct shard_job *job, uint64_t epoch, uint64_t layout)
{
    // if not, the core refuses the Fence
    const bool newer = epoch > step_epoch(job->collector.step);
    if (newer && move_on_fence(job, epoch, layout)) return;
    own_step(job, &(struct step_event) { .kind = CAIRN_STEP_FENCE, .epoch = epoch });
    if (newer) relay_on_fence(job, epoch);
}

static void on_fence(struct shard_job *job, const void *body)
{
    const Cairn__Fence *message = body;
    if (!journal_takes_fence(job, message->epoch, message->layout, fence))
        fence(job, message->epoch, message->layout);
}

static void on_decide(struct shard_job *job, const void *message)
{
    const Cairn__Decide *decide = message;
    on_decision(job, CAIRN_STEP_DECIDE, decide->epoch, 0, decide->decision);
}

static void on_resolve(struct shard_job *job, const void *message)
{
    const Cairn__Resolve *resolve = message;
    if (job->kept.was_kept) job->kept.over = resolve->round;
    on_decision(job, CAIRN_STEP_RESOLVE, resolve->epoch, resolve->round, resolve->decision);
    relay_on_resolve(job, resolve->epoch);
    move_on_resolve(job, resolve->epoch);
}

/* ---- whom a round waits for ---- */

/* Lists the contributors whose contributions to the open round are not complete. The coordinator
 * asks for this list when the step's deadline has passed, or when the round takes a long time. */

/* The most entries of a list. Further entries would not fit into a frame; they are left out,
 * because the first ones explain enough. */
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

static void on_lacks_get(struct shard_job *job, const void *body)
{
    const Cairn__LacksGet *message = body;
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

static const struct shard_message messages[] = {
    { CAIRN_MSG_ROUND_OPEN, .on_job = on_round_open }, { CAIRN_MSG_DECIDE, .on_job = on_decide },
    { CAIRN_MSG_RESOLVE, .on_job = on_resolve },       { CAIRN_MSG_FENCE, .on_job = on_fence },
    { CAIRN_MSG_LACKS_GET, .on_job = on_lacks_get },   { 0 },
};
const struct shard_module round_module = { .messages = messages };

/* ==== dispatch ==== */

/* Finds the handler of a type of message. Returns NULL if no module handles the type. */
static const struct shard_message *find_row(uint16_t type)
{
    for (size_t i = 0; i < shard_module_count; i++) {
        const struct shard_message *row = shard_modules[i]->messages;
        while (row != NULL && row->type != 0 && row->type != type) row++;
        if (row != NULL && row->type == type) return row;
    }
    return NULL;
}

/* Refuses a message of the coordinator. If the message is a request, the answer tells the
 * reason. */
static void refuse_message(struct shard_daemon *shard, const struct wire_frame *frame,
                           cairn_status status, const struct sentence *why)
{
    struct request answered = session_request(shard, frame->request);
    if (frame->request != 0) session_answer(shard, &answered, status, why);
}

static void on_message_of_job(struct shard_daemon *shard, const struct shard_message *row,
                              const struct wire_frame *frame, ProtobufCMessage *message)
{
    const uint64_t number = *message_job(message);
    struct shard_job *job = shard_job_find(shard, number);
    if (job != NULL && job->state != CAIRN_JOB_FAULTED) {
        if (row->on_job != NULL)
            row->on_job(job, message);
        else
            row->ask_job(job, session_request(shard, frame->request), message);
        return;
    }
    struct sentence why;
    sentence_set(&why, "shard %s %s job %016" PRIx64 ": create it in a higher generation",
                 shard->name, job == NULL ? "does not hold" : "stopped", number);
    log_warn("%s ignored: %s", message_name(frame->type), why.text);
    refuse_message(shard, frame, CAIRN_ERR_NOT_FOUND, &why);
}

/* Refuses a message of a coordinator that this shard does not obey. */
static void on_message_of_stranger(struct shard_daemon *shard, const struct wire_frame *frame)
{
    struct sentence why;
    sentence_set(&why, "this shard holds state of another store, or of a newer coordinator; see "
                       "`cairn cluster adopt`");
    log_warn("ignored %s of a coordinator that is not obeyed", message_name(frame->type));
    refuse_message(shard, frame, CAIRN_ERR_REFUSED, &why);
}

void shard_on_frame(struct shard_daemon *shard, const struct wire_frame *frame)
{
    const ProtobufCMessageDescriptor *type = message_type(frame->type);
    const struct shard_message *row = find_row(frame->type);
    const bool is_obeyed = shard->session.standing == CAIRN_STANDING_GOOD;
    ProtobufCMessage *message = NULL;
    if (type != NULL) message = message_unpack(type, frame->payload, frame->payload_bytes);
    if (message == NULL) {
        session_refuse(shard, CAIRN_ERR_MALFORMED, "malformed %s of %zu bytes",
                       message_name(frame->type), frame->payload_bytes);
    } else if (!is_obeyed && (row == NULL || !row->from_any)) {
        on_message_of_stranger(shard, frame);
    } else if (row == NULL) {
        session_refuse(shard, CAIRN_ERR_PROTOCOL, "%s is not for a shard",
                       message_name(frame->type));
    } else if (row->pages != NULL) {
        arriving_begin(shard, row->pages, frame->request, message);
        return;
    } else if (row->on_job != NULL || row->ask_job != NULL) {
        on_message_of_job(shard, row, frame, message);
    } else if (row->on_shard != NULL) {
        row->on_shard(shard, message); // the shard may be closed now
    } else {
        // the shard may be closed now
        row->ask_shard(shard, session_request(shard, frame->request), message);
    }
    message_free(message);
}

/* ==== landing ==== */

/* Handles messages from the fabric. Each message is judged, and then passed to a core, or to the
 * functions for puts and fetches.
 *
 * A header belongs to a member only if its job, member and token agree. A stranger's message is
 * dropped and counted. A member's wrong message is answered by a NAK. Nothing is received before it
 * is judged, so a wrong message changes nothing. */

/* ---- contributions ---- */

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
        member_refuse_why(member, header, status, why.text);
        fabric_drop(message);
        return;
    }
    collector_push(&job->collector, header, chunk, &piece, message);
    shard_job_settle(job);
}

/* ---- ends of micro-batches ---- */

/* Refuses the end of a micro-batch, in the name of the shard for which the end is meant. */
static void refuse_end(struct shard_member *member, const struct chunk_header *header,
                       cairn_status status, const char *why)
{
    const struct shard_job *job = member->job;
    member_note_refusal(member, header, why);
    member_refuse_for(member, header, status,
                      header->tensor != 0 ? header->tensor - 1 : job->view->table.map.shard);
}

/* The end of a micro-batch while its list of untouched tensors is being received. */
struct note {
    struct shard_job *job; /* borrowed */
    struct chunk_header header;
    size_t count;
    uint32_t tensors[]; /* [count] */
};

/* Counts the chunks of this shard for which the member sends nothing. These are chunks of the
 * listed tensors, and chunks in which the member holds no element. Returns false if the list is not
 * ascending, or names a tensor that is not trained. */
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
    if (header->tensor != 0) { // the message is meant for the shard with index header->tensor - 1
        relay_on_end(member, header, tensors, count);
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

static void on_commit(struct shard_member *member, const struct chunk_header *header,
                      struct fabric_message *message)
{
    fabric_drop(message);
    if (header->tensor != 0) {
        relay_on_end(member, header, NULL, 0);
        return;
    }
    const struct step_event event = step_event_of(header);
    own_step(member->job, &event);
}

/* ---- fetches ---- */

static bool begins_in(const struct shard_view *view, const struct chunk_header *header)
{
    return view != NULL &&
           shard_map_find(&view->table.map, header->tensor, header->first_leaf) != NULL;
}

/* True if the chunk that the fetch asks for begins in this shard's part, in a layout by which this
 * shard can read the version. */
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

static void on_fetch(struct shard_member *member, const struct chunk_header *header,
                     struct fabric_message *message)
{
    if (!fetch_is_here(member, header) &&
        layout_find(member->job->view->layout, header->tensor, header->first_leaf) != NULL)
        relay_fetch(member, header, message); // the chunk belongs to another shard's part
    else
        fetch_on_message(member, header, message);
}

/* ---- all messages ---- */

static void on_hello(struct shard_member *member, const struct chunk_header *header,
                     struct fabric_message *message)
{
    fabric_drop(message);
    member_hello(member, header->request);
}

/* Who may send a kind of message, and who handles it. */
struct chunk_row {
    bool of_neighbour; /* a neighbour may send it; neighbour.c handles it then */
    bool of_worker;    /* a member may send it only if the member is a worker */
    bool in_round;     /* a member may send it only while the job serves */
    /* Handles a member's message, which it takes or drops. NULL: a member must not send the
     * message. */
    void (*on_member)(struct shard_member *member, const struct chunk_header *header,
                      struct fabric_message *message);
};

static const struct chunk_row chunk_rows[CAIRN_CHUNK_KIND_COUNT] = {
    [CAIRN_CHUNK_HELLO] = { .of_neighbour = true, .on_member = on_hello },
    [CAIRN_CHUNK_PUSH] = { .of_worker = true, .in_round = true, .on_member = on_push },
    [CAIRN_CHUNK_MICRO_END] = { .of_worker = true, .in_round = true, .on_member = on_micro_end },
    [CAIRN_CHUNK_COMMIT] = { .of_worker = true, .in_round = true, .on_member = on_commit },
    [CAIRN_CHUNK_PUT] = { .of_worker = true, .on_member = put_on_message },
    [CAIRN_CHUNK_FETCH] = { .on_member = on_fetch },
    [CAIRN_CHUNK_DATA] = { .of_neighbour = true },
    [CAIRN_CHUNK_GRANT] = { .of_neighbour = true },
    [CAIRN_CHUNK_ACK] = { .of_neighbour = true },
    [CAIRN_CHUNK_NAK] = { .of_neighbour = true },
    [CAIRN_CHUNK_MICRO_ACK] = { .of_neighbour = true },
};

static void on_member_message(struct shard_member *member, const struct chunk_header *header,
                              struct fabric_message *message)
{
    const struct chunk_row *row = &chunk_rows[header->kind];
    if (header->kind != CAIRN_CHUNK_HELLO) member_heard(member);
    if (row->on_member == NULL) {
        member_refuse_why(member, header, CAIRN_ERR_PROTOCOL, "it is not for a shard");
    } else if (row->of_worker && member->role != CAIRN_ROLE_WIRE_WORKER) {
        member_refuse_why(member, header, CAIRN_ERR_REFUSED, "a reader only fetches");
    } else if (row->in_round && member->job->state != CAIRN_JOB_SERVING) {
        member_refuse_why(member, header, CAIRN_ERR_NOT_READY, "the job is not ready");
    } else {
        row->on_member(member, header, message);
        return;
    }
    fabric_drop(message);
}

/* True if a neighbour may have sent the message. A relay sends a HELLO with CAIRN_CHUNK_OF_RELAY as
 * a member. If this relay is on this very shard, neighbours_of would find the relay's own
 * neighbours, which have the same number and token. */
static bool may_be_of_neighbour(const struct chunk_header *header)
{
    return chunk_rows[header->kind].of_neighbour &&
           (header->kind != CAIRN_CHUNK_HELLO || (header->value & CAIRN_CHUNK_OF_RELAY) == 0);
}

/* Passes a message to the code for the neighbour or the member that sent it. Returns false if no
 * neighbour or member sent it. */
static bool route(struct shard_daemon *shard, const struct chunk_header *header,
                  struct fabric_message *message)
{
    struct shard_job *job = shard_job_find(shard, header->job);
    if (job == NULL || job->state == CAIRN_JOB_FAULTED) return false;
    struct neighbours *all = may_be_of_neighbour(header) ? neighbours_of(job, header) : NULL;
    if (all != NULL) {
        neighbours_on_message(all, header, message);
        return true;
    }
    struct shard_member *member = member_find(job, header->member);
    if (member == NULL || member->token != header->token) return false;
    shard_job_busy(job);
    on_member_message(member, header, message);
    shard_job_idle(job);
    return true;
}

void landing_on_message(void *arg, const void *header_bytes, size_t header_size,
                        size_t payload_bytes, struct fabric_message *message)
{
    struct shard_daemon *shard = arg;
    struct chunk_header header;
    cairn_status status = chunk_decode(header_bytes, header_size, payload_bytes, &header);
    if (status == CAIRN_OK && route(shard, &header, message)) return;
    shard->stats.chunks_refused++;
    log_limited(&shard->links.strangers, CAIRN_LOG_WARN, "dropped a message of %zu + %zu bytes: %s",
                header_size, payload_bytes,
                status == CAIRN_OK ? "no member has that job, session and token"
                                   : status_text((int)status));
    fabric_drop(message);
}
