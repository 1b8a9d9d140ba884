/* What the coordinator says: control messages become jobs, members and events of the cores. */
#include <stdlib.h>
#include <string.h>

#include "server/shard/held.h"
#include "server/shard/relay.h"
#include "server/shard/report.h"
#include "server/shard/shard.h"

/* ---- creating a job: pages first ---- */

static void create_free(struct cairn_create *create)
{
    cairn_message_free(&create->message->base);
    cairn_paged_release(&create->spec);
    cairn_paged_release(&create->layout);
    free(create);
}

void cairn_shard_drop_creates(struct cairn_shard *shard)
{
    while (shard->creates != NULL) {
        struct cairn_create *create = shard->creates;
        shard->creates = create->next;
        create_free(create);
    }
    cairn_tiles_drop(shard);
    cairn_terms_drop(shard);
}

/* Takes the create off the list without an answer. */
static void create_drop(struct cairn_shard *shard, struct cairn_create *create)
{
    struct cairn_create **link = &shard->creates;
    while (*link != create) link = &(*link)->next;
    *link = create->next;
    create_free(create);
}

/* Answers it, and takes it off the list; CAIRN_OK is Done. */
static void create_end(struct cairn_shard *shard, struct cairn_create *create, cairn_status status,
                       const struct cairn_sentence *why)
{
    struct cairn_request request = cairn_session_request(shard, create->request);
    cairn_session_answer(shard, &request, status, why);
    create_drop(shard, create);
}

static bool create_whole(const struct cairn_create *create)
{
    return cairn_paged_whole(&create->spec) && cairn_paged_whole(&create->layout);
}

/* The job of that number; without it one that is staged, without that one that is LEAVING. */
static struct cairn_shard_job *held_job(struct cairn_shard *shard, uint64_t number)
{
    struct cairn_shard_job *held = cairn_shard_job_find(shard, number);
    for (struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next) {
        if (job->number != number) continue;
        if (held == NULL || held->state == CAIRN_JOB_LEAVING) held = job;
    }
    return held;
}

static uint64_t newest_held(const struct cairn_shard *shard, uint64_t number)
{
    uint64_t newest = 0;
    for (const struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next) {
        if (job->number == number && job->generation > newest) newest = job->generation;
    }
    return newest;
}

/* The encoded layout ends in its hash. */
static bool same_layout(const struct cairn_shard_job *job, const struct cairn_paged *layout)
{
    if (layout->have_bytes < CAIRN_LAYOUT_HASH_BYTES) return false;
    return memcmp(job->layout->hash, layout->bytes + layout->have_bytes - CAIRN_LAYOUT_HASH_BYTES,
                  CAIRN_LAYOUT_HASH_BYTES) == 0;
}

/* Those of that number up to a generation: when one is freed, a create that waited may make a newer one. */
static void leave_all(struct cairn_shard *shard, uint64_t number, uint64_t generation_max,
                      const struct cairn_shard_job *but)
{
    struct cairn_shard_job *job = shard->jobs;
    while (job != NULL) {
        const bool leaves = job->number == number && job->generation <= generation_max &&
                            job != but && job->state != CAIRN_JOB_LEAVING;
        if (leaves) cairn_shard_job_leave(job);
        job = leaves ? shard->jobs : job->next; // it may be freed
    }
}

/* Nothing of the job's number is held, or what is held stays beside it: makes it, or says why not; when what
 * is being given back is there. */
static void create_open(struct cairn_shard *shard, struct cairn_create *create)
{
    if (shard->releases != NULL) return;
    struct cairn_shard_job *job;
    struct cairn_sentence why;
    cairn_status status = cairn_shard_job_open(shard, create, &job, &why);
    if (status != CAIRN_OK) {
        cairn_log_error("cannot hold job %016llx: %s", (unsigned long long)create->message->job,
                        why.text);
        create_end(shard, create, status, &why);
        return;
    }
    cairn_log_info(
        "making room for job %s, generation %llu: %llu elements in %zu extents, %llu bytes",
        job->spec.name, (unsigned long long)job->generation,
        (unsigned long long)job->map.elem_count, job->map.extent_count,
        (unsigned long long)job->budget_bytes);
    status = cairn_admit_job(job, create->message, &why);
    if (status != CAIRN_OK) {
        create_end(shard, create, status, &why);
        cairn_shard_job_leave(job);
        return;
    }
    job->creating = cairn_session_request(shard, create->request); // Done follows
    create_drop(shard, create);
}

/* What it is made of goes on serving. One that was given up may be there still. */
static void create_beside(struct cairn_shard *shard, struct cairn_create *create)
{
    const uint64_t number = create->message->job;
    const struct cairn_shard_job *from = cairn_shard_job_find(shard, number);
    if (from == NULL) {
        struct cairn_sentence why;
        cairn_sentence_set(&why, "shard %s holds no part of job %016llx to extend", shard->name,
                           (unsigned long long)number);
        create_end(shard, create, CAIRN_ERR_NOT_FOUND, &why);
        return;
    }
    leave_all(shard, number, newest_held(shard, number), from);
    create_open(shard, create);
}

/* A whole create meets what is held of its number. */
static void create_advance(struct cairn_shard *shard, struct cairn_create *create)
{
    const Cairn__JobCreate *message = create->message;
    struct cairn_shard_job *held = held_job(shard, message->job);
    if (message->extend) {
        create_beside(shard, create);
        return;
    }
    if (held == NULL) {
        create_open(shard, create);
        return;
    }
    if (held->state == CAIRN_JOB_LEAVING) return; // goes on when it is freed
    if (message->generation > held->generation) {
        cairn_log_info("job %s: generation %llu replaces %llu", held->spec.name,
                       (unsigned long long)message->generation,
                       (unsigned long long)held->generation);
        // The create goes on when they are freed: now, or later.
        leave_all(shard, message->job, message->generation - 1, NULL);
        return;
    }
    if (message->generation == held->generation && held->state != CAIRN_JOB_FAULTED &&
        same_layout(held, &create->layout)) {
        // Asked again after a lost connection.
        if (held->state == CAIRN_JOB_LOADING || held->state == CAIRN_JOB_SEALING) {
            held->creating = cairn_session_request(shard, create->request);
            create_drop(shard, create);
        } else {
            create_end(shard, create, CAIRN_OK, NULL);
        }
        return;
    }
    struct cairn_sentence why;
    cairn_sentence_set(&why,
                       "shard %s holds job %016llx in generation %llu already: only a higher one "
                       "replaces it, not %llu",
                       shard->name, (unsigned long long)message->job,
                       (unsigned long long)held->generation,
                       (unsigned long long)message->generation);
    create_end(shard, create, CAIRN_ERR_EXISTS, &why);
}

void cairn_shard_on_memory_back(struct cairn_shard *shard)
{
    struct cairn_create *create = shard->creates;
    while (create != NULL && shard->releases == NULL) {
        const Cairn__JobCreate *message = create->message;
        const bool goes_on = create_whole(create) &&
                             (message->extend || held_job(shard, message->job) == NULL);
        if (goes_on) create_advance(shard, create);
        create = goes_on ? shard->creates : create->next; // the list changed
    }
}

static cairn_status create_begin(struct cairn_shard *shard, uint32_t request,
                                 Cairn__JobCreate *message, struct cairn_sentence *why)
{
    size_t count = 0;
    for (struct cairn_create *c = shard->creates; c != NULL; c = c->next) count++;
    if (count >= CAIRN_SHARD_CREATES_MAX) {
        return cairn_fail(why, CAIRN_ERR_BUSY, "%zu jobs are being created already", count);
    }
    struct cairn_create *create = calloc(1, sizeof *create);
    if (create == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a job");
    if (message->spec_bytes == 0 || message->layout_bytes == 0 ||
        cairn_paged_init(&create->spec, message->spec_bytes) != CAIRN_OK ||
        cairn_paged_init(&create->layout, message->layout_bytes) != CAIRN_OK) {
        cairn_paged_release(&create->spec);
        free(create);
        return cairn_fail(
            why, CAIRN_ERR_INVALID, "spec of %llu bytes, layout of %llu: each must be 1 to %llu",
            (unsigned long long)message->spec_bytes, (unsigned long long)message->layout_bytes,
            (unsigned long long)CAIRN_PAGED_BYTES_MAX);
    }
    create->request = request;
    create->message = message;
    create->next = shard->creates;
    shard->creates = create;
    return CAIRN_OK;
}

/* Owns the message. */
static void on_job_create(struct cairn_shard *shard, uint32_t request, Cairn__JobCreate *message)
{
    struct cairn_sentence why;
    cairn_status status = create_begin(shard, request, message, &why);
    if (status == CAIRN_OK) return; // its pages follow
    struct cairn_request answered = cairn_session_request(shard, request);
    cairn_session_answer(shard, &answered, status, &why);
    cairn_message_free(&message->base);
}

static void on_page(struct cairn_shard *shard, uint32_t request, const Cairn__Page *page)
{
    struct cairn_create *create = shard->creates;
    while (create != NULL && create->request != request) create = create->next;
    if (create == NULL) { // of a create that was refused, of terms or of tiles
        if (!cairn_terms_on_page(shard, request, page)) cairn_tiles_on_page(shard, request, page);
        return;
    }
    struct cairn_paged *paged = page->what == CAIRN_PAGE_SPEC ? &create->spec : &create->layout;
    cairn_status status = CAIRN_ERR_PROTOCOL;
    if (page->what == CAIRN_PAGE_SPEC || page->what == CAIRN_PAGE_LAYOUT) {
        status = cairn_paged_add(paged, page);
    }
    if (status != CAIRN_OK) {
        struct cairn_sentence why;
        cairn_sentence_set(&why, "page at %llu of part %u does not follow %zu of %llu bytes",
                           (unsigned long long)page->offset, page->what, paged->have_bytes,
                           (unsigned long long)paged->total_bytes);
        create_end(shard, create, status, &why);
        return;
    }
    if (create_whole(create)) create_advance(shard, create);
}

static void on_job_drop(struct cairn_shard *shard, uint32_t request, const Cairn__JobDrop *message)
{
    struct cairn_request answered = cairn_session_request(shard, request);
    struct cairn_shard_job *job = held_job(shard, message->job);
    if (job == NULL) {
        cairn_session_answer(shard, &answered, CAIRN_OK, NULL);
        return;
    }
    job->dropping = answered; // answered when its memory is back
    const uint64_t newest = newest_held(shard, message->job);
    leave_all(shard, message->job, newest, NULL);
}

static void on_job_switch(struct cairn_shard *shard, const Cairn__JobSwitch *message)
{
    struct cairn_shard_job *stays = shard->jobs;
    while (stays != NULL &&
           (stays->number != message->job || stays->generation != message->generation ||
            stays->state == CAIRN_JOB_LEAVING))
        stays = stays->next;
    if (stays == NULL) {
        cairn_log_warn("job %016llx is not held in generation %llu: nothing is switched",
                       (unsigned long long)message->job, (unsigned long long)message->generation);
        return;
    }
    leave_all(shard, message->job, newest_held(shard, message->job), stays);
    stays->settled = true;
    if (!stays->staged) return;
    stays->staged = false;
    cairn_log_info("job %s: generation %llu serves", stays->spec.name,
                   (unsigned long long)stays->generation);
}

/* It lives: that is the answer. */
static void on_probe(struct cairn_shard *shard, uint32_t request)
{
    struct cairn_request answered = cairn_session_request(shard, request);
    cairn_session_answer(shard, &answered, CAIRN_OK, NULL);
}

static void on_job_seal(struct cairn_shard *shard, uint32_t request, struct cairn_shard_job *job)
{
    struct cairn_request answered = cairn_session_request(shard, request);
    struct cairn_sentence why;
    cairn_status status = CAIRN_OK;
    if (job->origin != NULL)
        status = cairn_fail(&why, CAIRN_ERR_NOT_READY, "its initial state is being made");
    if (job->state == CAIRN_JOB_INITIALIZING) status = cairn_put_whole(job, &why);
    if (status != CAIRN_OK || job->state == CAIRN_JOB_SERVING) {
        cairn_session_answer(shard, &answered, status, &why);
        return;
    }
    job->creating = answered; // LOADING and SEALING answer when they are done
    if (job->state == CAIRN_JOB_INITIALIZING) cairn_round_seal(job);
}

/* ---- rounds ---- */

/* A decision off the wire; false if it is none. `out` borrows from the message. */
static bool read_decision(const Cairn__Decision *message, size_t payload_max,
                          struct cairn_decision *out)
{
    *out = (struct cairn_decision) { .kind = CAIRN_DECISION_NONE };
    if (message == NULL) return true;
    if (message->kind > CAIRN_DECISION_WRITE || message->payload.len > payload_max) return false;
    *out = (struct cairn_decision) {
        .kind = (enum cairn_decision_kind)message->kind,
        .round = message->round,
        .version_after = { .generation = message->generation, .step = message->step },
        .payload = message->payload.data,
        .payload_bytes = message->payload.len,
    };
    return true;
}

static void on_decision(struct cairn_shard_job *job, enum cairn_step_event_kind kind,
                        uint64_t epoch, const Cairn__Decision *message)
{
    struct cairn_decision decision;
    if (!read_decision(message, cairn_shard_payload_max(job), &decision)) {
        cairn_shard_job_fault(job, "a decision is of an unknown kind or too long");
        return;
    }
    cairn_shard_job_step(job, &(struct cairn_step_event) {
                                  .kind = kind,
                                  .epoch = epoch,
                                  .round = decision.round,
                                  .version = decision.version_after,
                                  .decision = &decision,
                              });
    cairn_write_resolved(job, decision.round);
}

static void note_frozen(struct cairn_shard_job *job, const Cairn__RoundOpen *message)
{
    const struct cairn_job_spec_data *spec = &job->spec;
    memset(job->frozen, 0, spec->group_count * sizeof *job->frozen);
    memset(job->frozen_tensors, 0, spec->tensor_count * sizeof *job->frozen_tensors);
    job->frozen_round = message->round;
    for (size_t i = 0; i < message->n_frozen; i++) {
        if (message->frozen[i] < spec->group_count) job->frozen[message->frozen[i]] = true;
    }
    for (size_t i = 0; i < message->n_frozen_tensors; i++) {
        const uint32_t tensor = message->frozen_tensors[i];
        if (tensor < spec->tensor_count) job->frozen_tensors[tensor] = true;
    }
}

static void on_round_open(struct cairn_shard_job *job, const Cairn__RoundOpen *message)
{
    if (job->state != CAIRN_JOB_SERVING || message->n_members > UINT32_MAX) {
        cairn_shard_job_fault(
            job, "a round was opened before the initial state is complete, or too large");
        return;
    }
    cairn_write_close(job);
    if (message->write && message->n_members == 1)
        cairn_write_open(job, message->round, message->members[0]);
    note_frozen(job, message);
    cairn_shard_job_step(
        job, &(struct cairn_step_event) {
                 .kind = CAIRN_STEP_OPEN,
                 .epoch = message->epoch,
                 .round = message->round,
                 .version = { message->generation, message->step },
                 .members = message->members,
                 .member_count = (uint32_t)message->n_members,
                 .holds = cairn_tiles_holds(job, message->members, (uint32_t)message->n_members),
             });
    if (cairn_relay_on_open(job, message) != CAIRN_OK)
        cairn_log_error(
            "job %s: round %llu names a relay that shard %s is not: nothing of it comes "
            "this way",
            job->spec.name, (unsigned long long)message->round, job->shard->name);
}

static void on_fence(struct cairn_shard_job *job, const Cairn__Fence *message)
{
    const bool newer = message->epoch > cairn_step_epoch(job->step); // else it is refused
    cairn_shard_job_step(job, &(struct cairn_step_event) {
                                  .kind = CAIRN_STEP_FENCE,
                                  .epoch = message->epoch,
                              });
    if (newer) cairn_relay_on_fence(job, message->epoch);
}

static void on_relay_set(struct cairn_shard *shard, uint32_t request, struct cairn_shard_job *job,
                         const Cairn__RelaySet *message)
{
    struct cairn_request answered = cairn_session_request(shard, request);
    struct cairn_sentence why;
    const cairn_status status = cairn_relay_set(job, message, &why);
    if (status != CAIRN_OK)
        cairn_log_error("job %s cannot be relayed: %s", job->spec.name, why.text);
    if (request != 0) cairn_session_answer(shard, &answered, status, &why);
}

static void on_member_join(struct cairn_shard *shard, uint32_t request, struct cairn_shard_job *job,
                           const Cairn__MemberJoin *message)
{
    struct cairn_request answered = cairn_session_request(shard, request);
    struct cairn_sentence why;
    cairn_status status = cairn_member_join(job, message, &why);
    if (status == CAIRN_OK) {
        cairn_admit_member(job, message->member, answered);
        return;
    }
    cairn_log_warn("member %s of job %s refused: %s", message->name, job->spec.name, why.text);
    cairn_session_answer(shard, &answered, status, &why);
}

static void on_lease_keep(struct cairn_shard *shard, uint32_t request, struct cairn_shard_job *job,
                          const Cairn__LeaseKeep *message)
{
    struct cairn_request answered = cairn_session_request(shard, request);
    struct cairn_sentence why;
    const cairn_status status = cairn_shard_lease_keep(job, message, &why);
    cairn_session_answer(shard, &answered, status, &why);
}

/* ---- dispatch ---- */

/* Every message about a job begins with its number. */
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
    case CAIRN_MSG_LACKS_GET: return ((const Cairn__LacksGet *)message)->job;
    case CAIRN_MSG_PIN_FOLDER: return ((const Cairn__PinFolder *)message)->job;
    case CAIRN_MSG_SNAPSHOT_PART_NEXT: return ((const Cairn__SnapshotPartNext *)message)->job;
    case CAIRN_MSG_LEASE_KEEP: return ((const Cairn__LeaseKeep *)message)->job;
    case CAIRN_MSG_LEASE_END: return ((const Cairn__LeaseEnd *)message)->job;
    default: return 0;
    }
}

static void on_job_message(struct cairn_shard *shard, uint16_t type, uint32_t request,
                           struct cairn_shard_job *job, const ProtobufCMessage *message)
{
    const Cairn__Decide *decide = (const Cairn__Decide *)message;
    const Cairn__Resolve *resolve = (const Cairn__Resolve *)message;
    switch (type) {
    case CAIRN_MSG_JOB_SEAL: on_job_seal(shard, request, job); break;
    case CAIRN_MSG_MEMBER_JOIN:
        on_member_join(shard, request, job, (const Cairn__MemberJoin *)message);
        break;
    case CAIRN_MSG_MEMBER_LEAVE:
        cairn_member_leave(job, ((const Cairn__MemberLeave *)message)->member);
        break;
    case CAIRN_MSG_ROUND_OPEN: on_round_open(job, (const Cairn__RoundOpen *)message); break;
    case CAIRN_MSG_DECIDE:
        on_decision(job, CAIRN_STEP_DECIDE, decide->epoch, decide->decision);
        break;
    case CAIRN_MSG_RESOLVE:
        on_decision(job, CAIRN_STEP_RESOLVE, resolve->epoch, resolve->decision);
        cairn_relay_on_resolve(job, resolve->epoch);
        break;
    case CAIRN_MSG_FENCE: on_fence(job, (const Cairn__Fence *)message); break;
    case CAIRN_MSG_RELAY_SET:
        on_relay_set(shard, request, job, (const Cairn__RelaySet *)message);
        break;
    case CAIRN_MSG_PIN: cairn_pin_begin(job, (const Cairn__Pin *)message); break;
    case CAIRN_MSG_LACKS_GET:
        cairn_shard_job_tell_lacks(job, (const Cairn__LacksGet *)message);
        break;
    case CAIRN_MSG_PIN_FOLDER: cairn_pin_folder(job, (const Cairn__PinFolder *)message); break;
    case CAIRN_MSG_SNAPSHOT_PART_NEXT:
        cairn_report_next(job, ((const Cairn__SnapshotPartNext *)message)->snapshot);
        break;
    case CAIRN_MSG_LEASE_KEEP:
        on_lease_keep(shard, request, job, (const Cairn__LeaseKeep *)message);
        break;
    case CAIRN_MSG_LEASE_END:
        cairn_shard_lease_end(job, ((const Cairn__LeaseEnd *)message)->lease);
        break;
    default: break; // the caller sends no other
    }
}

static void on_message_of_job(struct cairn_shard *shard, uint16_t type, uint32_t request,
                              const ProtobufCMessage *message)
{
    const uint64_t number = job_number(type, message);
    struct cairn_shard_job *job = cairn_shard_job_find(shard, number);
    if (job != NULL && job->state != CAIRN_JOB_FAULTED) {
        on_job_message(shard, type, request, job, message);
        return;
    }
    struct cairn_sentence why;
    cairn_sentence_set(&why, "shard %s %s job %016llx: create it in a higher generation",
                       shard->name, job == NULL ? "does not hold" : "stopped",
                       (unsigned long long)number);
    cairn_log_warn("%s ignored: %s", cairn_message_name(type), why.text);
    struct cairn_request answered = cairn_session_request(shard, request);
    if (request != 0) cairn_session_answer(shard, &answered, CAIRN_ERR_NOT_FOUND, &why);
}

static void on_error(struct cairn_shard *shard, const Cairn__Error *error)
{
    if (error->status == CAIRN_ERR_FENCED && error->job == 0) {
        cairn_session_fenced(shard, error->text);
        return;
    }
    cairn_log_warn("the coordinator says: %s (%s)", error->text, cairn_status_name(error->status));
}

void cairn_shard_on_frame(struct cairn_shard *shard, const struct cairn_frame *frame)
{
    const ProtobufCMessageDescriptor *type = cairn_message_type(frame->type);
    ProtobufCMessage *message = NULL;
    if (type != NULL) message = cairn_message_unpack(type, frame->payload, frame->payload_bytes);
    if (message == NULL) {
        cairn_session_refuse(shard, CAIRN_ERR_MALFORMED, "malformed %s of %zu bytes",
                             cairn_message_name(frame->type), frame->payload_bytes);
        return;
    }
    if (cairn_held_on_message(shard, frame, message)) {
        cairn_message_free(message);
        return;
    }
    switch (frame->type) {
    case CAIRN_MSG_JOB_CREATE:
        on_job_create(shard, frame->request, (Cairn__JobCreate *)message);
        return; // owns the message
    case CAIRN_MSG_MEMBER_TILES:
        cairn_tiles_on_message(shard, frame->request, (Cairn__MemberTiles *)message);
        return; // the same
    case CAIRN_MSG_PAGE: on_page(shard, frame->request, (const Cairn__Page *)message); break;
    case CAIRN_MSG_JOB_DROP:
        on_job_drop(shard, frame->request, (const Cairn__JobDrop *)message);
        break;
    case CAIRN_MSG_PROBE: on_probe(shard, frame->request); break;
    case CAIRN_MSG_JOB_TERMS:
        cairn_terms_on_message(shard, frame->request, (const Cairn__JobTerms *)message);
        break;
    case CAIRN_MSG_JOB_SWITCH: on_job_switch(shard, (const Cairn__JobSwitch *)message); break;
    case CAIRN_MSG_JOB_SEAL:
    case CAIRN_MSG_MEMBER_JOIN:
    case CAIRN_MSG_MEMBER_LEAVE:
    case CAIRN_MSG_RELAY_SET:
    case CAIRN_MSG_ROUND_OPEN:
    case CAIRN_MSG_DECIDE:
    case CAIRN_MSG_FENCE:
    case CAIRN_MSG_RESOLVE:
    case CAIRN_MSG_PIN:
    case CAIRN_MSG_LACKS_GET:
    case CAIRN_MSG_PIN_FOLDER:
    case CAIRN_MSG_SNAPSHOT_PART_NEXT:
    case CAIRN_MSG_LEASE_KEEP:
    case CAIRN_MSG_LEASE_END: on_message_of_job(shard, frame->type, frame->request, message); break;
    case CAIRN_MSG_ERROR: on_error(shard, (const Cairn__Error *)message); break;
    case CAIRN_MSG_HEARTBEAT:
    case CAIRN_MSG_DONE: break; // they only renew the lease
    default:
        cairn_session_refuse(shard, CAIRN_ERR_PROTOCOL, "%s is not for a shard",
                             cairn_message_name(frame->type));
    }
    cairn_message_free(message);
}
