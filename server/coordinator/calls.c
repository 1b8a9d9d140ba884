/* Questions to shards: one to several, one answer when all have answered. */
#include <stdlib.h>

#include "server/coordinator/cluster.h"

struct call {
    struct call *next;
    struct cairn_cluster_seat *seat;
    uint32_t request;
};

struct cairn_cluster_gather {
    struct cairn_cluster_gather *next; /* of the cluster's list */
    struct cairn_cluster *cluster;
    struct call *calls; /* not answered yet */
    cairn_cluster_gather_fn on_done;
    void *context;
    cairn_status status; /* the first failure */
    struct cairn_sentence why;
    bool started;
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
    gather->next = cluster->gathers;
    cluster->gathers = gather;
    return gather;
}

static void fail_gather(struct cairn_cluster_gather *gather, cairn_status status, const char *name,
                        const char *text)
{
    if (gather->status != CAIRN_OK) return;
    gather->status = status;
    cairn_sentence_set(&gather->why, "%s: %s", name, text);
}

uint32_t cairn_cluster_gather_ask(struct cairn_cluster_gather *gather,
                                  struct cairn_cluster_seat *seat)
{
    struct call *call = calloc(1, sizeof *call);
    if (call == NULL || seat->session == NULL) {
        free(call);
        fail_gather(gather, CAIRN_ERR_CLOSED, seat->name, "it is away");
        return 0;
    }
    if (++gather->cluster->next_request == 0) gather->cluster->next_request = 1;
    call->seat = seat;
    call->request = gather->cluster->next_request;
    call->next = gather->calls;
    gather->calls = call;
    return call->request;
}

static void free_gather(struct cairn_cluster_gather *gather)
{
    struct cairn_cluster_gather **at = &gather->cluster->gathers;
    while (*at != gather) at = &(*at)->next;
    *at = gather->next;
    free(gather);
}

/* Unlinked before the callback, which may ask anew. */
static void finish_if_answered(struct cairn_cluster_gather *gather)
{
    if (!gather->started || gather->calls != NULL) return;
    const cairn_cluster_gather_fn on_done = gather->on_done;
    void *context = gather->context;
    const cairn_status status = gather->status;
    const struct cairn_sentence why = gather->why;
    free_gather(gather);
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
    for (const struct call *call = gather->calls; call != NULL; call = call->next)
        cairn_sentence_add(out, "%s%s", call == gather->calls ? "" : ", ", call->seat->name);
}

static bool take_call(struct cairn_cluster_gather *gather, const struct cairn_cluster_seat *seat,
                      uint32_t request)
{
    for (struct call **at = &gather->calls; *at != NULL; at = &(*at)->next) {
        struct call *call = *at;
        if (call->seat != seat || (request != 0 && call->request != request)) continue;
        *at = call->next;
        free(call);
        return true;
    }
    return false;
}

void cairn_cluster_calls_reply(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat,
                               uint32_t request, cairn_status status, const char *text)
{
    if (request == 0) return;
    for (struct cairn_cluster_gather *g = cluster->gathers; g != NULL; g = g->next) {
        if (!take_call(g, seat, request)) continue;
        if (status != CAIRN_OK) fail_gather(g, status, seat->name, text);
        finish_if_answered(g);
        return;
    }
}

void cairn_cluster_calls_seat_gone(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat)
{
    struct cairn_cluster_gather *g = cluster->gathers;
    while (g != NULL) {
        bool touched = false;
        while (take_call(g, seat, 0)) touched = true;
        if (!touched) {
            g = g->next;
            continue;
        }
        fail_gather(g, CAIRN_ERR_CLOSED, seat->name, "the connection was lost");
        finish_if_answered(g);
        g = cluster->gathers; // callbacks may have changed the list: look from its start
    }
}
