/* Which parts a shard holds, and of which store. State outlives the coordinator that made it: a
 * coordinator of another store, or one whose store is an older copy, is not obeyed. It may ask
 * which parts are held; if its operator says so, it may adopt them or have them dropped. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot/manifest_trust.h"
#include "server/shard/job/held.h"
#include "server/shard/job/open.h"

/* One that faulted is of no use to anybody. */
static bool is_held(const struct cairn_shard_job *job)
{
    return job->state != CAIRN_JOB_LEAVING && job->state != CAIRN_JOB_FAULTED;
}

size_t cairn_held_count(const struct cairn_shard *shard)
{
    size_t count = 0;
    for (const struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next)
        count += is_held(job);
    return count;
}

struct cairn_shard_job *cairn_held_find(struct cairn_shard *shard, uint64_t number,
                                        uint64_t generation)
{
    struct cairn_shard_job *job = shard->jobs;
    while (job != NULL && (job->number != number || job->generation != generation ||
                           job->state == CAIRN_JOB_LEAVING))
        job = job->next;
    return job;
}

/* Fills in the fields for which a Hello has no room. */
static void fill_more(const struct cairn_shard_job *job, Cairn__HeldJob *out)
{
    const struct cairn_version version = cairn_step_version(job->collector.step);
    out->name = job->spec.name;
    out->shard_index = job->view->table.map.shard;
    out->shard_count = job->view->layout->shard_count;
    out->version_generation = version.generation;
    out->version_step = version.step;
    out->base_step = job->base_step;
    out->serving = job->state == CAIRN_JOB_SERVING;
    out->bytes = cairn_memory_sum(&job->memory);
    out->spec_hash = (ProtobufCBinaryData) { sizeof job->terms.digest.byte,
                                             (uint8_t *)(uintptr_t)job->terms.digest.byte };
}

/* The layout that is prepared, if one is. */
static void fill_next(const struct cairn_shard_job *job, Cairn__HeldJob *out)
{
    const struct cairn_move_part *next = job->move.next;
    if (next == NULL || !next->is_ready || next->is_unwanted) return;
    memcpy(&out->next_layout_hash, next->view->layout->hash, sizeof out->next_layout_hash);
    out->next_layout_version = next->view->layout->version;
}

size_t cairn_held_list(const struct cairn_shard *shard, Cairn__HeldJob *out, bool full)
{
    size_t count = 0;
    for (const struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next) {
        if (!is_held(job)) continue;
        Cairn__HeldJob *held = &out[count++];
        cairn__held_job__init(held);
        held->job = job->number;
        held->generation = job->generation;
        memcpy(&held->layout_hash, job->view->layout->hash, sizeof held->layout_hash);
        held->layout_version = job->view->layout->version;
        fill_next(job, held);
        held->epoch = cairn_step_epoch(job->collector.step);
        held->revision = job->terms.revision;
        held->round = cairn_step_round_seen(job->collector.step);
        held->unsettled = !job->terms.settled;
        held->staged = job->staged;
        held->parked = job->park.is_parked || job->park.is_under_way;
        if (full) fill_more(job, held);
    }
    return count;
}

/* HeldJobs, as an answer if `request` is not 0. */
static void tell_held(struct cairn_shard *shard, uint32_t request)
{
    Cairn__HeldJob held[CAIRN_SHARD_JOBS_MAX];
    Cairn__HeldJob *list[CAIRN_SHARD_JOBS_MAX];
    Cairn__HeldJobs message = CAIRN__HELD_JOBS__INIT;
    message.n_held = cairn_held_list(shard, held, true);
    message.held = list;
    for (size_t i = 0; i < message.n_held; i++) list[i] = &held[i];
    message.keys = shard->keys;
    cairn_session_send(shard, CAIRN_MSG_HELD_JOBS, request, &message.base);
}

/* A copy of the message, owned; NULL: there is none, or no memory. */
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

void cairn_held_keys(struct cairn_shard *shard, const Cairn__Keys *keys)
{
    Cairn__Keys *copy = shard->session.standing == CAIRN_STANDING_GOOD ? copy_keys(keys) : NULL;
    if (copy == NULL) return;
    cairn_held_keys_release(shard);
    shard->keys = copy;
}

void cairn_held_keys_release(struct cairn_shard *shard)
{
    if (shard->keys != NULL) cairn__keys__free_unpacked(shard->keys, NULL);
    shard->keys = NULL;
}

/* It is the one whose word counts from now on. */
static void obey(struct cairn_shard *shard)
{
    shard->session.standing = CAIRN_STANDING_GOOD;
    shard->seen = shard->session.coordinator;
}

void cairn_held_judge(struct cairn_shard *shard, const char *cluster)
{
    struct cairn_session *session = &shard->session;
    const struct cairn_coordinator_id *theirs = &session->coordinator;
    const size_t count = cairn_held_count(shard);
    session->standing = count == 0 ? CAIRN_STANDING_GOOD : cairn_standing_of(theirs, &shard->seen);
    if (count > 0) tell_held(shard, 0);
    if (session->standing == CAIRN_STANDING_GOOD) {
        obey(shard);
        return;
    }
    cairn_log_error("shard %s holds %zu jobs of store %016" PRIx64 " (start %" PRIu64
                    ") and does not obey the coordinator of cluster %s, which has store %016" PRIx64
                    " (start %" PRIu64
                    "): give the coordinator the store.path that it had, or take what the shards "
                    "hold into the new store with `cairn cluster adopt`",
                    shard->name, count, shard->seen.store, shard->seen.incarnation, cluster,
                    theirs->store, theirs->incarnation);
}

/* ---- the operator's word ---- */

static void refuse(struct cairn_shard *shard, uint32_t request, cairn_status status,
                   const char *text)
{
    struct cairn_request answered = cairn_session_request(shard, request);
    struct cairn_sentence why;
    cairn_sentence_set(&why, "%s", text);
    cairn_session_answer(shard, &answered, status, &why);
}

/* Spec and layout, as they came. */
static void send_part(struct cairn_shard *shard, uint32_t request,
                      const struct cairn_shard_job *job)
{
    const bool amended = job->terms.amended.have_bytes > 0;
    struct cairn_packed *spec = amended ? cairn_packed_copy(job->terms.amended.bytes,
                                                            job->terms.amended.have_bytes)
                                        : cairn_packed_spec(&job->spec);
    struct cairn_packed *layout = cairn_packed_layout(job->view->layout);
    if (spec == NULL || layout == NULL) {
        refuse(shard, request, CAIRN_ERR_NO_MEMORY, "no memory to send the spec of a job");
    } else {
        Cairn__Part part = CAIRN__PART__INIT;
        part.spec_bytes = spec->size;
        part.layout_bytes = layout->size;
        cairn_session_send(shard, CAIRN_MSG_PART, request, &part.base);
        cairn_session_send_pages(shard, request, CAIRN_PAGE_SPEC, spec);
        cairn_session_send_pages(shard, request, CAIRN_PAGE_LAYOUT, layout);
    }
    cairn_packed_release(spec);
    cairn_packed_release(layout);
}

static void on_part_get(struct cairn_shard *shard, uint32_t request, const Cairn__PartGet *message)
{
    if (message->job == 0) {
        tell_held(shard, request);
        return;
    }
    const struct cairn_shard_job *job = cairn_held_find(shard, message->job, message->generation);
    if (job == NULL)
        refuse(shard, request, CAIRN_ERR_NOT_FOUND, "it is not held any more");
    else
        send_part(shard, request, job);
}

static void on_part_drop(struct cairn_shard *shard, uint32_t request,
                         const Cairn__PartDrop *message)
{
    struct cairn_request answered = cairn_session_request(shard, request);
    struct cairn_shard_job *job = cairn_held_find(shard, message->job, message->generation);
    if (job == NULL) {
        cairn_session_answer(shard, &answered, CAIRN_OK, NULL);
        return;
    }
    cairn_log_warn("job %s, generation %" PRIu64
                   ", is dropped by the word of the coordinator's operator",
                   job->spec.name, job->generation);
    job->dropping = answered; // answered when its memory is back
    cairn_shard_job_leave(job);
    tell_held(shard, 0);
    // Nothing is held for anyone any more: begins anew, with whoever is there.
    if (shard->session.standing != CAIRN_STANDING_GOOD && cairn_held_count(shard) == 0)
        cairn_session_refuse(shard, CAIRN_ERR_FENCED, "what this shard held was forgotten");
}

/* A coordinator drops parts that are not settled: they are leftovers of its own work. These are not, since
 * another coordinator had them made; whether its store had them too, nobody knows any more. */
static void settle_adopted(struct cairn_shard *shard)
{
    for (struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next)
        job->terms.settled = true;
}

/* The numbers begin anew, in a store that nobody has seen before. */
static void on_adopted(struct cairn_shard *shard, uint32_t request,
                       const Cairn__StoreAdopted *message)
{
    struct cairn_request answered = cairn_session_request(shard, request);
    struct cairn_session *session = &shard->session;
    session->coordinator.store = message->store;
    session->coordinator.incarnation = message->incarnation;
    if (session->standing != CAIRN_STANDING_GOOD) settle_adopted(shard);
    obey(shard);
    cairn_log_warn("what this shard holds was adopted by store %016" PRIx64 " (start %" PRIu64
                   "): no other store is obeyed any more",
                   message->store, message->incarnation);
    cairn_session_answer(shard, &answered, CAIRN_OK, NULL);
}

bool cairn_held_on_message(struct cairn_shard *shard, const struct cairn_frame *frame,
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
        cairn_held_keys(shard, ((const Cairn__Heartbeat *)message)->keys);
        return false;
    case CAIRN_MSG_DONE:
    case CAIRN_MSG_ERROR: return false;
    default: break;
    }
    if (shard->session.standing == CAIRN_STANDING_GOOD) return false;
    cairn_log_warn("%s of a coordinator that is not obeyed: ignored",
                   cairn_message_name(frame->type));
    if (frame->request != 0)
        refuse(shard, frame->request, CAIRN_ERR_REFUSED,
               "this shard holds state of another store, or of a newer coordinator; see `cairn "
               "cluster adopt`");
    return true;
}
