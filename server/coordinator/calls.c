/* Questions to shards: one to several, one answer when all have answered.
 *
 * A call stands in two lists, that of its question and that of its entry. A shard answers in the order in
 * which it was asked, but for what takes it long, so the call of an answer is near the head of its entry's
 * list: a thousand workers that join at hundreds of shards cost no more than their messages. */
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire/messages.h"
#include "server/base/log.h"
#include "server/coordinator/base.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/job.h"
#include "server/coordinator/store.h"

struct coord_call {
    TAILQ_ENTRY(coord_call) of_gather, of_entry;
    struct coord_gather *gather;
    struct coord_shard_entry *entry;
    uint32_t request;
};

struct coord_gather {
    struct coord *cluster;
    struct cluster_calls calls; /* not answered yet */
    cluster_gather_fn on_done;
    void *context;
    cairn_status status; /* the first failure */
    struct sentence why;
    bool started;
};

/* The context of a question about a job, which may be dropped before the answer. */
struct about_job {
    struct coord *cluster;
    uint64_t job;
    cluster_job_gather_fn on_done;
    _Alignas(max_align_t) uint8_t about[];
};

struct coord_gather *coord_gather_open(struct coord *cluster, cluster_gather_fn on_done,
                                       void *context)
{
    struct coord_gather *gather = calloc(1, sizeof *gather);
    if (gather == NULL) return NULL;
    gather->cluster = cluster;
    gather->on_done = on_done;
    gather->context = context;
    gather->status = CAIRN_OK;
    TAILQ_INIT(&gather->calls);
    return gather;
}

static void on_job_done(void *context, cairn_status status, const char *why)
{
    struct about_job *of = context;
    struct coord_job *job = coord_job_by_id(of->cluster, of->job);
    if (job != NULL && !of->cluster->closing) of->on_done(job, of->about, status, why);
    free(of);
}

struct coord_gather *coord_gather_open_job(const struct coord_job *job,
                                           cluster_job_gather_fn on_done, const void *about,
                                           size_t about_bytes)
{
    struct about_job *of = calloc(1, sizeof *of + about_bytes);
    if (of == NULL) return NULL;
    of->cluster = job->cluster;
    of->job = job->id;
    of->on_done = on_done;
    if (about_bytes > 0) memcpy(of->about, about, about_bytes);
    struct coord_gather *gather = coord_gather_open(job->cluster, on_job_done, of);
    if (gather == NULL) free(of);
    return gather;
}

static void fail_gather(struct coord_gather *gather, cairn_status status, const char *name,
                        const char *text)
{
    if (gather->status != CAIRN_OK) return;
    gather->status = status;
    sentence_set(&gather->why, "%s: %s", name, text);
}

uint32_t coord_request_new(struct coord *cluster)
{
    if (++cluster->next_request == 0) cluster->next_request = 1;
    return cluster->next_request;
}

uint32_t coord_gather_ask(struct coord_gather *gather, struct coord_shard_entry *entry)
{
    struct coord_call *call = calloc(1, sizeof *call);
    if (call == NULL || entry->session == NULL) {
        free(call);
        fail_gather(gather, CAIRN_ERR_CLOSED, entry->name, "it is away");
        return 0;
    }
    call->gather = gather;
    call->entry = entry;
    call->request = coord_request_new(gather->cluster);
    TAILQ_INSERT_TAIL(&gather->calls, call, of_gather);
    TAILQ_INSERT_TAIL(&entry->calls, call, of_entry);
    return call->request;
}

uint32_t coord_gather_send(struct coord_gather *gather, struct coord_shard_entry *entry,
                           uint16_t type, const ProtobufCMessage *message)
{
    const uint32_t request = coord_gather_ask(gather, entry);
    if (request != 0) coord_session_send(entry->session, type, request, message);
    return request;
}

/* Freed before the callback, which may ask anew. */
static void finish_if_answered(struct coord_gather *gather)
{
    if (!gather->started || !TAILQ_EMPTY(&gather->calls)) return;
    const cluster_gather_fn on_done = gather->on_done;
    void *context = gather->context;
    const cairn_status status = gather->status;
    const struct sentence why = gather->why;
    free(gather);
    on_done(context, status, why.text);
}

void coord_gather_start(struct coord_gather *gather)
{
    gather->started = true;
    finish_if_answered(gather);
}

void coord_gather_awaited(const struct coord_gather *gather, struct sentence *out)
{
    const struct coord_call *call;
    TAILQ_FOREACH (call, &gather->calls, of_gather)
        sentence_add(out, "%s%s", call == TAILQ_FIRST(&gather->calls) ? "" : ", ",
                     call->entry->name);
}

static void end_call(struct coord_call *call, cairn_status status, const char *text)
{
    struct coord_gather *gather = call->gather;
    if (status != CAIRN_OK) fail_gather(gather, status, call->entry->name, text);
    TAILQ_REMOVE(&gather->calls, call, of_gather);
    TAILQ_REMOVE(&call->entry->calls, call, of_entry);
    free(call);
    finish_if_answered(gather);
}

void coord_calls_reply(struct coord_shard_entry *entry, uint32_t request, cairn_status status,
                       const char *text)
{
    struct coord_call *call;
    TAILQ_FOREACH (call, &entry->calls, of_entry)
        if (call->request == request) break;
    if (call != NULL) end_call(call, status, text);
}

void coord_calls_shard_gone(struct coord_shard_entry *entry)
{
    struct coord_call *call;
    while ((call = TAILQ_FIRST(&entry->calls)) != NULL)
        end_call(call, CAIRN_ERR_CLOSED, "the connection was lost");
}

/* ==== works ==== */

#define SMALL_BYTES 32768

static void on_run(uv_work_t *req)
{
    struct coord_work *work = req->data;
    work->run(work);
}

static void on_back(uv_work_t *req, int uv_status)
{
    struct coord_work *work = req->data;
    struct coord *cluster = work->cluster;
    (void)uv_status; // nothing is ever canceled
    struct coord_work **at = &cluster->works;
    while (*at != work) at = &(*at)->next;
    *at = work->next;
    if (work->session != NULL) work->session->wait_count--;
    work->done(work); // frees it
    if (cluster->closing) coord_close_step(cluster);
}

bool coord_work_start(struct coord_work *work, struct coord *cluster, struct coord_session *session,
                      uint32_t request)
{
    if (session != NULL && session->wait_count >= CAIRN_SESSION_WAITS_MAX) return false;
    work->cluster = cluster;
    work->session = session;
    work->request = request;
    work->req.data = work;
    if (uv_queue_work(cluster->loop, &work->req, on_run, on_back) != 0) return false;
    if (session != NULL) session->wait_count++;
    work->next = cluster->works;
    cluster->works = work;
    return true;
}

bool coord_work_do(struct coord_work *work, struct coord *cluster, struct coord_session *session,
                   uint32_t request, size_t bytes)
{
    if (bytes > SMALL_BYTES) return coord_work_start(work, cluster, session, request);
    work->cluster = cluster;
    work->session = session;
    work->request = request;
    work->run(work);
    work->done(work);
    return true;
}

/* ---- freed ---- */

struct freeing {
    struct coord_work work;
    void (*free_it)(void *what);
    void *what; /* owned */
};

static void run_freeing(struct coord_work *work)
{
    const struct freeing *freeing = (struct freeing *)work;
    freeing->free_it(freeing->what);
}

static void done_freeing(struct coord_work *work)
{
    free(work);
}

void coord_free_by(struct coord *cluster, void (*free_it)(void *what), void *what, size_t bytes)
{
    struct freeing *freeing = cluster->closing ? NULL : calloc(1, sizeof *freeing);
    if (freeing != NULL) {
        freeing->work.run = run_freeing;
        freeing->work.done = done_freeing;
        freeing->free_it = free_it;
        freeing->what = what;
        if (coord_work_do(&freeing->work, cluster, NULL, 0, bytes)) return;
    }
    free(freeing);
    free_it(what);
}

void coord_works_forget(struct coord *cluster, const struct coord_session *session)
{
    for (struct coord_work *w = cluster->works; w != NULL; w = w->next) {
        if (w->session == session) w->session = NULL;
    }
}

/* ---- those who wait ---- */

bool coord_waiters_add(struct coord_waiter **list, struct coord_session *session, uint32_t request)
{
    if (session->wait_count >= CAIRN_SESSION_WAITS_MAX) return false;
    struct coord_waiter *waiter = calloc(1, sizeof *waiter);
    if (waiter == NULL) return false;
    session->wait_count++;
    *waiter = (struct coord_waiter) { *list, session, request };
    *list = waiter;
    return true;
}

void coord_waiters_forget(struct coord_waiter **list, const struct coord_session *session)
{
    while (*list != NULL) {
        struct coord_waiter *waiter = *list;
        if (waiter->session != session) {
            list = &waiter->next;
            continue;
        }
        *list = waiter->next;
        free(waiter);
    }
}

void coord_waiters_release(struct coord_waiter **list)
{
    while (*list != NULL) {
        struct coord_waiter *waiter = *list;
        *list = waiter->next;
        free(waiter);
    }
}

void coord_waiters_answer(struct coord_waiter **list, uint16_t type,
                          const ProtobufCMessage *message)
{
    while (*list != NULL) {
        struct coord_waiter *waiter = *list;
        *list = waiter->next;
        waiter->session->wait_count--;
        coord_session_send(waiter->session, type, waiter->request, message);
        free(waiter);
    }
}

void coord_waiters_fail(struct coord_waiter **list, cairn_status status, const char *text)
{
    Cairn__Error error = CAIRN__ERROR__INIT;
    error.status = (int32_t)status;
    error.text = wire_text(text);
    coord_waiters_answer(list, CAIRN_MSG_ERROR, &error.base);
}

/* ==== asked ==== */

enum { WHAT_CHARS = 1200, DEPTH_MAX = 3 };

/* The requests that change something, each with its command line. All other requests only ask. */
static const struct {
    uint16_t type;
    const char *verb;
} actions[] = {
    { CAIRN_MSG_CLUSTER_ADOPT, "cluster adopt" },
    { CAIRN_MSG_CLUSTER_FORGET, "cluster forget" },
    { CAIRN_MSG_CLUSTER_BACKUP, "cluster backup" },
    { CAIRN_MSG_KEY_TRUST, "key trust" },
    { CAIRN_MSG_SHARD_FORGET, "shard forget" },
    { CAIRN_MSG_RESHARD_ASK, "reshard" },
    { CAIRN_MSG_MEMBER_DRAIN, "member drain" },
    { CAIRN_MSG_JOB_AMEND, "job amend" },
    { CAIRN_MSG_JOB_REMOVE, "job drop" },
    { CAIRN_MSG_JOB_PARK, "job park" },
    { CAIRN_MSG_SNAPSHOT_CREATE, "snapshot create" },
    { CAIRN_MSG_SNAPSHOT_CANCEL, "snapshot cancel" },
    { CAIRN_MSG_SNAPSHOT_REMOVE, "snapshot rm" },
    { CAIRN_MSG_SNAPSHOT_PRUNE, "snapshot prune" },
    { CAIRN_MSG_SNAPSHOT_TAG, "snapshot tag" },
    { CAIRN_MSG_SNAPSHOT_RESTORE, "snapshot restore" },
};

static const char *verb_of(const struct wire_frame *frame, const ProtobufCMessage *message)
{
    const Cairn__ReshardAsk *reshard = (const Cairn__ReshardAsk *)message;
    if (frame->type == CAIRN_MSG_RESHARD_ASK)
        return reshard->op == CAIRN_RESHARD_APPLY    ? "reshard apply"
               : reshard->op == CAIRN_RESHARD_CANCEL ? "reshard cancel"
                                                     : NULL;
    if (frame->type == CAIRN_MSG_JOB_PARK && !((const Cairn__JobPark *)message)->parked)
        return "job unpark";
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
        if (actions[i].type == frame->type) return actions[i].verb;
    return NULL;
}

/* ---- what it was given ---- */

/* The member of a message, by the name that control.proto has for it. */
static const void *member_of(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    return (const char *)message + field->offset;
}

static void add_fields(const ProtobufCMessage *message, unsigned depth, struct sentence *out);

static void add_message(const char *name, const ProtobufCMessage *message, unsigned depth,
                        struct sentence *out)
{
    const Cairn__Setting *setting = (const Cairn__Setting *)message;
    if (message->descriptor == &cairn__setting__descriptor) {
        sentence_add(out, " --set %.200s=%.200s", setting->key, setting->value);
        return;
    }
    sentence_add(out, " %s={", name);
    if (depth < DEPTH_MAX) add_fields(message, depth + 1, out);
    sentence_add(out, " }");
}

/* " id=step-000000000002-g1", " force": what is given. Numbers that only programs read (fixed64), and bytes,
 * nobody gave by hand. */
static void add_value(const ProtobufCFieldDescriptor *field, const void *value, unsigned depth,
                      struct sentence *out)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_BOOL:
        if (*(const protobuf_c_boolean *)value) sentence_add(out, " %s", field->name);
        break;
    case PROTOBUF_C_TYPE_STRING:
        if ((*(char *const *)value)[0] != '\0')
            sentence_add(out, " %s=%.200s", field->name, *(char *const *)value);
        break;
    case PROTOBUF_C_TYPE_UINT32:
        if (*(const uint32_t *)value != 0)
            sentence_add(out, " %s=%" PRIu32, field->name, *(const uint32_t *)value);
        break;
    case PROTOBUF_C_TYPE_UINT64:
        if (*(const uint64_t *)value != 0)
            sentence_add(out, " %s=%" PRIu64, field->name, *(const uint64_t *)value);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        if (*(const double *)value != 0)
            sentence_add(out, " %s=%g", field->name, *(const double *)value);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        if (*(ProtobufCMessage *const *)value != NULL)
            add_message(field->name, *(ProtobufCMessage *const *)value, depth, out);
        break;
    default: break;
    }
}

static size_t size_of(const ProtobufCFieldDescriptor *field)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_BOOL: return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING: return sizeof(char *);
    case PROTOBUF_C_TYPE_UINT32: return sizeof(uint32_t);
    case PROTOBUF_C_TYPE_UINT64: return sizeof(uint64_t);
    case PROTOBUF_C_TYPE_DOUBLE: return sizeof(double);
    case PROTOBUF_C_TYPE_MESSAGE: return sizeof(ProtobufCMessage *);
    default: return 0; // is not shown
    }
}

static void add_each(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
                     unsigned depth, struct sentence *out)
{
    const size_t count = *(const size_t *)((const char *)message + field->quantifier_offset);
    const char *values = *(const char *const *)member_of(message, field);
    const size_t each = size_of(field);
    size_t i = 0;
    for (; each > 0 && i < count && strlen(out->text) < WHAT_CHARS; i++)
        add_value(field, values + i * each, depth, out);
    if (each > 0 && i < count) sentence_add(out, " ... and %zu more of %s", count - i, field->name);
}

static bool is_text(const ProtobufCFieldDescriptor *field)
{
    return field->type == PROTOBUF_C_TYPE_STRING && field->label != PROTOBUF_C_LABEL_REPEATED;
}

/* Adds the texts first, since they are names and say what is meant; then the fields that say
 * how. */
static void add_fields(const ProtobufCMessage *message, unsigned depth, struct sentence *out)
{
    const ProtobufCFieldDescriptor *fields = message->descriptor->fields;
    const unsigned count = message->descriptor->n_fields;
    for (unsigned i = 0; i < count; i++)
        if (is_text(&fields[i])) add_value(&fields[i], member_of(message, &fields[i]), depth, out);
    for (unsigned i = 0; i < count; i++) {
        const bool is_said = depth == 1 && strcmp(fields[i].name, "op") == 0; // by the verb
        if (is_said || is_text(&fields[i])) continue;
        if (fields[i].label == PROTOBUF_C_LABEL_REPEATED)
            add_each(message, &fields[i], depth, out);
        else
            add_value(&fields[i], member_of(message, &fields[i]), depth, out);
    }
}

/* The field of that name, if it is of that type; NULL: it has none. */
static const void *field_named(const ProtobufCMessage *message, const char *name,
                               ProtobufCType type)
{
    const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field_by_name(
        message->descriptor, name);
    return field != NULL && field->type == type ? member_of(message, field) : NULL;
}

/* The job that it is about, where it is about one: "job", or "name" of messages that begin with Job. */
static const char *job_of(const ProtobufCMessage *message)
{
    const bool is_of_job = strncmp(message->descriptor->short_name, "Job", 3) == 0;
    char *const *job = field_named(message, "job", PROTOBUF_C_TYPE_STRING);
    if (job == NULL && is_of_job) job = field_named(message, "name", PROTOBUF_C_TYPE_STRING);
    return job != NULL ? *job : "";
}

void coord_asked_note(const struct coord_session *session, const struct wire_frame *frame,
                      const ProtobufCMessage *message)
{
    const char *verb = verb_of(frame, message);
    struct sentence who, what;
    if (verb == NULL) return;
    const protobuf_c_boolean *plan = field_named(message, "plan", PROTOBUF_C_TYPE_BOOL);
    if (plan != NULL && *plan) return; // it only asks what would be
    const char *job = job_of(message);
    sentence_set(&what, "%s", verb);
    add_fields(message, 1, &what);
    sentence_set(&who, "admin %s at %s", session->name, peer_name(session->peer));
    log_fields(CAIRN_LOG_INFO, CAIRN_FIELDS({ "job", job, 0 }, { "who", who.text, 0 }), "asked: %s",
               what.text);
    coord_event_note(session->cluster, CAIRN_EVENT_ASKED, job, who.text, "%s", what.text);
}
