/* Implements what every file of the coordinator uses (see base.h): questions to shards, work on
 * other threads, messages to sessions, the memory of answers, the clock, and the list of jobs. */
#include "server/coordinator/base.h"

#include <assert.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/cluster.h"
#include "server/coordinator/job.h"

/* ==== calls ==== */

/* Questions to shards. A gather asks one or several shards, and reports one result when all of them
 * have answered.
 *
 * A call is one question to one shard. Each call is in two lists, the list of its gather and the
 * list of its shard's entry. A shard answers in the order in which it was asked, except for
 * requests that take the shard long. So an answer finds its call near the head of the entry's list.
 * Even when a thousand workers join at hundreds of shards, this search costs little compared with
 * the messages. */

struct coord_call {
    TAILQ_ENTRY(coord_call) of_gather, of_entry;
    struct coord_gather *gather;
    struct coord_shard_entry *entry;
    uint32_t request;
};

struct coord_gather {
    struct coord *cluster;
    struct cluster_calls calls; /* calls that are not answered yet */
    cluster_gather_fn on_done;
    void *context;
    cairn_status status; /* the first failure */
    struct sentence why;
    bool started;
};

/* The context of a question about a job. The job may be dropped before the answer arrives. */
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

/* Calls on_done if all shards have answered. The gather is freed before on_done is called, because
 * on_done may begin another question. */
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

static void ignore_answers(void *context, cairn_status status, const char *why)
{
    (void)context;
    (void)status;
    (void)why;
}

void coord_gather_drop(struct coord_gather *gather)
{
    gather->on_done = ignore_answers;
    coord_gather_start(gather);
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

static void finish_work(struct coord_work *work)
{
    void (*free_it)(struct coord_work *) = work->free_it;
    coord_asked_end(work->asked, work->status, work->why.text);
    work->done(work); // frees the work if free_it is not set
    if (free_it != NULL) free_it(work);
}

static void on_back(uv_work_t *req, int uv_status);

static bool may_run(const struct coord *cluster, uint64_t owner)
{
    size_t running = 0;
    for (const struct coord_work *w = cluster->under_way.works; w != NULL && owner != 0;
         w = w->next)
        running += w->owner == owner && !w->waits;
    return running < CAIRN_OWNER_WORKS_MAX;
}

/* A work of the owner has ended: begins the one that has waited longest, which is the last in the list. */
static void run_next(struct coord *cluster, uint64_t owner)
{
    struct coord_work *next = NULL;
    for (struct coord_work *w = cluster->under_way.works; w != NULL && owner != 0; w = w->next)
        if (w->owner == owner && w->waits) next = w;
    if (next == NULL) return;
    next->waits = false;
    const int error = uv_queue_work(cluster->loop, &next->req, on_run, on_back);
    assert(error == 0); // it has a function to run
    (void)error;
}

static void on_back(uv_work_t *req, int uv_status)
{
    struct coord_work *work = req->data;
    struct coord *cluster = work->cluster;
    (void)uv_status; // nothing is ever canceled
    struct coord_work **at = &cluster->under_way.works;
    while (*at != work) at = &(*at)->next;
    *at = work->next;
    run_next(cluster, work->owner);
    if (work->session != NULL) work->session->wait_count--;
    finish_work(work);
    if (cluster->closing) cluster->ending.step(cluster);
}

bool coord_work_start(struct coord_work *work, struct coord *cluster, struct coord_session *session,
                      uint32_t request)
{
    if (session != NULL && session->wait_count >= CAIRN_SESSION_WAITS_MAX) return false;
    work->cluster = cluster;
    work->session = session;
    work->request = request;
    work->req.data = work;
    work->owner = session != NULL ? session->owner_number : 0;
    work->waits = !may_run(cluster, work->owner);
    if (!work->waits && uv_queue_work(cluster->loop, &work->req, on_run, on_back) != 0)
        return false;
    if (session != NULL) session->wait_count++;
    if (session != NULL) work->asked = coord_asked_hold(session, request);
    work->next = cluster->under_way.works;
    cluster->under_way.works = work;
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
    finish_work(work);
    return true;
}

void coord_work_ask(struct coord_work *work, struct coord_session *session, uint32_t request)
{
    if (work == NULL) {
        coord_session_error(session, request, CAIRN_ERR_NO_MEMORY, "out of memory");
    } else if (!coord_work_start(work, session->cluster, session, request)) {
        work->free_it(work);
        coord_session_error(session, request, CAIRN_ERR_BUSY,
                            "too many requests wait on this connection");
    }
}

void coord_work_answer(const struct coord_work *work, uint16_t type,
                       const ProtobufCMessage *message)
{
    if (work->status == CAIRN_OK)
        coord_session_send(work->session, type, work->request, message);
    else
        coord_session_error(work->session, work->request, work->status, work->why.text);
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

void coord_work_free(struct coord_work *work)
{
    free(work);
}

void coord_free_by(struct coord *cluster, void (*free_it)(void *what), void *what, size_t bytes)
{
    struct freeing *freeing = cluster->closing ? NULL : calloc(1, sizeof *freeing);
    if (freeing != NULL) {
        freeing->work.run = run_freeing;
        freeing->work.done = coord_work_free;
        freeing->free_it = free_it;
        freeing->what = what;
        if (coord_work_do(&freeing->work, cluster, NULL, 0, bytes)) return;
    }
    free(freeing);
    free_it(what);
}

/* ---- those who wait ---- */

cairn_status coord_waiters_add(struct coord_waiters *list, struct coord_session *session,
                               uint32_t request, struct sentence *why)
{
    struct coord_waiter *waiter = session->wait_count < CAIRN_SESSION_WAITS_MAX
                                      ? calloc(1, sizeof *waiter)
                                      : NULL;
    if (waiter == NULL)
        return fail_with(why, CAIRN_ERR_BUSY, "too many requests wait on this connection");
    session->wait_count++;
    waiter->session = session;
    waiter->request = request;
    waiter->asked = coord_asked_hold(session, request);
    LIST_INSERT_HEAD(list, waiter, of_list);
    LIST_INSERT_HEAD(&session->waiters, waiter, of_session);
    return CAIRN_OK;
}

void coord_waiters_note_end(struct coord_waiters *list, struct coord_session *session,
                            uint32_t request)
{
    struct coord_asked *asked = coord_asked_hold_end(session, request);
    struct coord_waiter *waiter = asked != NULL ? calloc(1, sizeof *waiter) : NULL;
    if (waiter == NULL) {
        coord_asked_end(asked, CAIRN_ERR_NO_MEMORY, "out of memory to note how it ends");
        return;
    }
    waiter->asked = asked;
    LIST_INSERT_HEAD(list, waiter, of_list);
}

static void free_waiter(struct coord_waiter *waiter)
{
    LIST_REMOVE(waiter, of_list);
    if (waiter->session != NULL) LIST_REMOVE(waiter, of_session);
    free(waiter);
}

void coord_waiters_forget(struct coord_session *session)
{
    struct coord_waiter *waiter;
    while ((waiter = LIST_FIRST(&session->waiters)) != NULL) {
        if (waiter->asked == NULL) {
            free_waiter(waiter);
            continue;
        }
        LIST_REMOVE(waiter, of_session);
        waiter->session = NULL;
    }
}

void coord_waiters_release(struct coord_waiters *list)
{
    while (!LIST_EMPTY(list)) {
        struct coord_asked *asked = LIST_FIRST(list)->asked;
        free_waiter(LIST_FIRST(list));
        coord_asked_end(asked, CAIRN_ERR_CANCELED, "it was given up");
    }
}

void coord_waiters_move(struct coord_waiters *from, struct coord_waiters *to)
{
    *to = *from;
    if (!LIST_EMPTY(to)) LIST_FIRST(to)->of_list.le_prev = &LIST_FIRST(to);
    LIST_INIT(from);
}

void coord_waiters_answer(struct coord_waiters *list, uint16_t type,
                          const ProtobufCMessage *message)
{
    while (!LIST_EMPTY(list)) {
        const struct coord_waiter waiter = *LIST_FIRST(list);
        const Cairn__Error *error = type == CAIRN_MSG_ERROR ? (const Cairn__Error *)message : NULL;
        free_waiter(LIST_FIRST(list));
        if (error != NULL)
            coord_asked_end(waiter.asked, (cairn_status)error->status, error->text);
        else
            coord_asked_end(waiter.asked, CAIRN_OK, "");
        if (waiter.session != NULL) waiter.session->wait_count--;
        coord_session_send(waiter.session, type, waiter.request, message);
    }
}

void coord_waiters_fail(struct coord_waiters *list, cairn_status status, const char *text)
{
    Cairn__Error error = CAIRN__ERROR__INIT;
    error.status = (int32_t)status;
    error.text = wire_text(text);
    coord_waiters_answer(list, CAIRN_MSG_ERROR, &error.base);
}

/* ==== answers ==== */

#define BLOCK_BYTES 4096

struct answer_block {
    struct answer_block *next;
    size_t used, size;
    _Alignas(max_align_t) char bytes[]; /* [size] */
};

void *coord_answer_bytes(struct coord_answer *answer, size_t bytes)
{
    const size_t need = (bytes + _Alignof(max_align_t) - 1) / _Alignof(max_align_t) *
                        _Alignof(max_align_t);
    struct answer_block *block = answer->blocks;
    if (block == NULL || need > block->size - block->used) {
        const size_t size = need > BLOCK_BYTES ? need : BLOCK_BYTES;
        block = calloc(1, sizeof *block + size);
        if (block == NULL) {
            answer->failed = true;
            return NULL;
        }
        block->size = size;
        block->next = answer->blocks;
        answer->blocks = block;
    }
    block->used += need;
    return block->bytes + block->used - need;
}

char *coord_answer_text(struct coord_answer *answer, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = coord_answer_bytes(answer, (size_t)length + 1);
    if (text == NULL) return wire_text("");
    va_start(args, format);
    vsnprintf(text, (size_t)length + 1, format, args);
    va_end(args);
    return text;
}

void *coord_answer_add(struct coord_answer *answer, ProtobufCMessage *to, const char *field)
{
    const ProtobufCFieldDescriptor *f = protobuf_c_message_descriptor_get_field_by_name(
        to->descriptor, field);
    assert(f != NULL && f->label == PROTOBUF_C_LABEL_REPEATED &&
           f->type == PROTOBUF_C_TYPE_MESSAGE);
    const ProtobufCMessageDescriptor *type = f->descriptor;
    size_t *count = (size_t *)(void *)((char *)to + f->quantifier_offset);
    ProtobufCMessage ***list = (ProtobufCMessage ***)(void *)((char *)to + f->offset);
    if ((*count & (*count - 1)) == 0) { // the list is full, because its room is a power of two
        ProtobufCMessage **larger = coord_answer_bytes(answer, (*count == 0 ? 1 : 2 * *count) *
                                                                   sizeof(ProtobufCMessage *));
        if (larger == NULL) return NULL;
        if (*count > 0) memcpy(larger, *list, *count * sizeof(ProtobufCMessage *));
        *list = larger;
    }
    ProtobufCMessage *message = coord_answer_bytes(answer, type->sizeof_message);
    if (message == NULL) return NULL;
    type->message_init(message);
    return (*list)[(*count)++] = message;
}

void coord_answer_release(struct coord_answer *answer)
{
    while (answer->blocks != NULL) {
        struct answer_block *block = answer->blocks;
        answer->blocks = block->next;
        free(block);
    }
}

void coord_answer_send(struct coord_answer *answer, struct coord_session *session, uint32_t request,
                       uint16_t type, const ProtobufCMessage *message)
{
    if (answer->failed)
        coord_session_error(session, request, CAIRN_ERR_NO_MEMORY, "out of memory");
    else
        coord_session_send(session, type, request, message);
    coord_answer_release(answer);
}

/* ==== session ==== */

/* Sends messages to a session: see base.h. */

/* Closes the peer. The peer relies on the order of messages, which a message that is left out would
 * break. on_gone is called afterwards. */
static void give_up(struct coord_session *session, cairn_status status, const char *what)
{
    session->closing = true;
    peer_close(session->peer, status, "cannot send %s to %s: %s", what, session->name,
               status_text((int)status));
}

void coord_session_send(struct coord_session *session, uint16_t type, uint32_t request,
                        const ProtobufCMessage *message)
{
    if (session == NULL || session->closing) return;
    const cairn_status status = peer_send(session->peer, type, request, message);
    if (status == CAIRN_OK && request != 0 && session->unanswered > 0) session->unanswered--;
    if (status == CAIRN_OK) return;
    if (status == CAIRN_ERR_INVALID && request != 0 && type != CAIRN_MSG_ERROR) {
        coord_session_error(session, request, CAIRN_ERR_UNSUPPORTED,
                            "the answer is larger than a frame may be (1 MiB): ask for "
                            "less, one job or one snapshot");
        return;
    }
    give_up(session, status, message_name(type));
}

void coord_session_error(struct coord_session *session, uint32_t request, cairn_status status,
                         const char *text)
{
    Cairn__Error error = CAIRN__ERROR__INIT;
    error.status = (int32_t)status;
    error.text = wire_text(text);
    coord_session_send(session, CAIRN_MSG_ERROR, request, &error.base);
}

void coord_session_done(struct coord_session *session, uint32_t request)
{
    const Cairn__Done done = CAIRN__DONE__INIT;
    coord_session_send(session, CAIRN_MSG_DONE, request, &done.base);
}

void coord_session_pages(struct coord_session *session, uint32_t request, enum page_what what,
                         struct packed *packed)
{
    if (session == NULL || session->closing) return;
    const cairn_status status = peer_send_pages(session->peer, request, what, packed);
    if (status != CAIRN_OK) give_up(session, status, "pages");
}

/* ==== clock ==== */

uint64_t coord_tick_ms(const struct coord *cluster)
{
    const uint64_t half = (uint64_t)cluster->options->heartbeat_ms / 2;
    return half < 10 ? 10 : half;
}

/* Never returns more than the time at which the next tick begins to count as late. A late tick
 * takes all time beyond that point off the clock, and without this bound the clock would go
 * backwards then. */
uint64_t coord_now_ms(const struct coord *cluster)
{
    const uint64_t now_ms = uv_now(cluster->loop);
    const uint64_t last_ms = cluster->clock.last_tick_ms +
                             CAIRN_LATE_TICKS * coord_tick_ms(cluster);
    return (now_ms < last_ms ? now_ms : last_ms) - cluster->clock.stopped_ms;
}

/* ==== the cluster's jobs ==== */

struct coord_job *coord_job_find(struct coord *cluster, const char *name)
{
    struct coord_job *job = cluster->jobs;
    while (job != NULL && strcmp(job->spec.name, name) != 0) job = job->next;
    return job;
}

struct coord_job *coord_job_by_id(const struct coord *cluster, uint64_t id)
{
    struct coord_job *job = cluster->jobs;
    while (job != NULL && job->id != id) job = job->next;
    return job;
}

void coord_job_link(struct coord_job *job)
{
    struct coord_job **at = &job->cluster->jobs;
    while (*at != NULL && strcmp((*at)->spec.name, job->spec.name) < 0) at = &(*at)->next;
    job->next = *at;
    *at = job;
}

void coord_job_unlink(struct coord_job *job)
{
    struct coord_job **at = &job->cluster->jobs;
    while (*at != NULL && *at != job) at = &(*at)->next;
    if (*at == job) *at = job->next;
}

struct coord_job *coord_job_named(struct coord *cluster, const char *name, struct sentence *why)
{
    struct coord_job *job = coord_job_find(cluster, name);
    if (job == NULL)
        sentence_set(why, "there is no job \"%.128s\"; `cairn job list` shows those there are",
                     name);
    return job;
}

const char *coord_row_job(const struct coord_row *row, const ProtobufCMessage *message)
{
    if (row->job == NULL) return "";
    const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field_by_name(
        message->descriptor, row->job);
    assert(field != NULL && field->type == PROTOBUF_C_TYPE_STRING);
    return *(const char *const *)(const void *)((const char *)message + field->offset);
}
