/* Questions to shards: one to several, one answer when all have answered.
 *
 * A call stands in two lists, that of its question and that of its seat. A shard answers in the order in
 * which it was asked, but for what takes it long, so the call of an answer is near the head of its seat's
 * list: a thousand workers that join at hundreds of shards cost no more than their messages. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"

struct cairn_cluster_call {
    TAILQ_ENTRY(cairn_cluster_call) of_gather, of_seat;
    struct cairn_cluster_gather *gather;
    struct cairn_cluster_seat *seat;
    uint32_t request;
};

struct cairn_cluster_gather {
    struct cairn_cluster *cluster;
    struct cairn_cluster_calls calls; /* not answered yet */
    cairn_cluster_gather_fn on_done;
    void *context;
    cairn_status status; /* the first failure */
    struct cairn_sentence why;
    bool started;
};

/* The context of a question about a job, which may be dropped before the answer. */
struct about_job {
    struct cairn_cluster *cluster;
    uint64_t job;
    cairn_cluster_job_gather_fn on_done;
    _Alignas(max_align_t) uint8_t about[];
};

struct cairn_cluster_gather *cairn_cluster_gather_open(struct cairn_cluster *cluster,
                                                       cairn_cluster_gather_fn on_done,
                                                       void *context)
{
    struct cairn_cluster_gather *gather = calloc(1, sizeof *gather);
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
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(of->cluster, of->job);
    if (job != NULL && !of->cluster->closing) of->on_done(job, of->about, status, why);
    free(of);
}

struct cairn_cluster_gather *cairn_cluster_gather_open_job(const struct cairn_cluster_job *job,
                                                           cairn_cluster_job_gather_fn on_done,
                                                           const void *about, size_t about_bytes)
{
    struct about_job *of = calloc(1, sizeof *of + about_bytes);
    if (of == NULL) return NULL;
    of->cluster = job->cluster;
    of->job = job->id;
    of->on_done = on_done;
    if (about_bytes > 0) memcpy(of->about, about, about_bytes);
    struct cairn_cluster_gather *gather = cairn_cluster_gather_open(job->cluster, on_job_done, of);
    if (gather == NULL) free(of);
    return gather;
}

static void fail_gather(struct cairn_cluster_gather *gather, cairn_status status, const char *name,
                        const char *text)
{
    if (gather->status != CAIRN_OK) return;
    gather->status = status;
    cairn_sentence_set(&gather->why, "%s: %s", name, text);
}

uint32_t cairn_cluster_request_new(struct cairn_cluster *cluster)
{
    if (++cluster->next_request == 0) cluster->next_request = 1;
    return cluster->next_request;
}

uint32_t cairn_cluster_gather_ask(struct cairn_cluster_gather *gather,
                                  struct cairn_cluster_seat *seat)
{
    struct cairn_cluster_call *call = calloc(1, sizeof *call);
    if (call == NULL || seat->session == NULL) {
        free(call);
        fail_gather(gather, CAIRN_ERR_CLOSED, seat->name, "it is away");
        return 0;
    }
    call->gather = gather;
    call->seat = seat;
    call->request = cairn_cluster_request_new(gather->cluster);
    TAILQ_INSERT_TAIL(&gather->calls, call, of_gather);
    TAILQ_INSERT_TAIL(&seat->calls, call, of_seat);
    return call->request;
}

uint32_t cairn_cluster_gather_send(struct cairn_cluster_gather *gather,
                                   struct cairn_cluster_seat *seat, uint16_t type,
                                   const ProtobufCMessage *message)
{
    const uint32_t request = cairn_cluster_gather_ask(gather, seat);
    if (request != 0) cairn_cluster_session_send(seat->session, type, request, message);
    return request;
}

/* Freed before the callback, which may ask anew. */
static void finish_if_answered(struct cairn_cluster_gather *gather)
{
    if (!gather->started || !TAILQ_EMPTY(&gather->calls)) return;
    const cairn_cluster_gather_fn on_done = gather->on_done;
    void *context = gather->context;
    const cairn_status status = gather->status;
    const struct cairn_sentence why = gather->why;
    free(gather);
    on_done(context, status, why.text);
}

void cairn_cluster_gather_start(struct cairn_cluster_gather *gather)
{
    gather->started = true;
    finish_if_answered(gather);
}

void cairn_cluster_gather_awaited(const struct cairn_cluster_gather *gather,
                                  struct cairn_sentence *out)
{
    const struct cairn_cluster_call *call;
    TAILQ_FOREACH (call, &gather->calls, of_gather)
        cairn_sentence_add(out, "%s%s", call == TAILQ_FIRST(&gather->calls) ? "" : ", ",
                           call->seat->name);
}

static void end_call(struct cairn_cluster_call *call, cairn_status status, const char *text)
{
    struct cairn_cluster_gather *gather = call->gather;
    if (status != CAIRN_OK) fail_gather(gather, status, call->seat->name, text);
    TAILQ_REMOVE(&gather->calls, call, of_gather);
    TAILQ_REMOVE(&call->seat->calls, call, of_seat);
    free(call);
    finish_if_answered(gather);
}

void cairn_cluster_calls_reply(struct cairn_cluster_seat *seat, uint32_t request,
                               cairn_status status, const char *text)
{
    struct cairn_cluster_call *call;
    TAILQ_FOREACH (call, &seat->calls, of_seat)
        if (call->request == request) break;
    if (call != NULL) end_call(call, status, text);
}

void cairn_cluster_calls_seat_gone(struct cairn_cluster_seat *seat)
{
    struct cairn_cluster_call *call;
    while ((call = TAILQ_FIRST(&seat->calls)) != NULL)
        end_call(call, CAIRN_ERR_CLOSED, "the connection was lost");
}
