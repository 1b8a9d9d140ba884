#include "proto/link/asker.h"

#include <assert.h>

#define DAMAGED_MAX 16 /* then the way there is broken */
#define SENT_MAX    8  /* a shard holds at most twice as many for us */

void cairn_asker_open(struct cairn_asker *asker, cairn_status (*send)(struct cairn_chunk_request *))
{
    *asker = (struct cairn_asker) { .send = send };
    TAILQ_INIT(&asker->waiting);
}

uint64_t cairn_chunk_request_number(const struct cairn_chunk_request *request)
{
    return CAIRN_REQUEST_OF_ASKER | (uint64_t)request->serial << 32 | request->index;
}

void cairn_asker_ask(struct cairn_asker *asker, struct cairn_chunk_request *request)
{
    assert(request->state == CAIRN_REQUEST_IDLE);
    request->state = CAIRN_REQUEST_WAITING;
    TAILQ_INSERT_TAIL(&asker->waiting, request, link);
}

void cairn_asker_pump(struct cairn_asker *asker)
{
    while (!asker->busy && asker->sent < SENT_MAX && !TAILQ_EMPTY(&asker->waiting)) {
        struct cairn_chunk_request *request = TAILQ_FIRST(&asker->waiting);
        if (asker->send(request) != CAIRN_OK) return;
        TAILQ_REMOVE(&asker->waiting, request, link);
        request->state = CAIRN_REQUEST_SENT;
        asker->sent++;
    }
}

void cairn_asker_retry(struct cairn_asker *asker)
{
    asker->busy = false;
    cairn_asker_pump(asker);
}

void cairn_asker_drop(struct cairn_asker *asker, struct cairn_chunk_request *request)
{
    if (request->state == CAIRN_REQUEST_WAITING) TAILQ_REMOVE(&asker->waiting, request, link);
    if (request->state == CAIRN_REQUEST_SENT) asker->sent--;
    request->state = CAIRN_REQUEST_IDLE;
}

bool cairn_asker_answered(struct cairn_asker *asker, struct cairn_chunk_request *request,
                          uint64_t number)
{
    if (request->state != CAIRN_REQUEST_SENT || number != cairn_chunk_request_number(request))
        return false;
    cairn_asker_drop(asker, request);
    asker->busy = false;
    return true;
}

bool cairn_asker_again(struct cairn_asker *asker, struct cairn_chunk_request *request,
                       uint64_t status)
{
    if (status == CAIRN_ERR_BUSY)
        asker->busy = true;
    else if (status != CAIRN_ERR_CHECKSUM || ++request->damaged == DAMAGED_MAX)
        return false;
    cairn_asker_ask(asker, request);
    return true;
}

bool cairn_asker_lost(struct cairn_asker *asker, struct cairn_chunk_request *request)
{
    if (request->state != CAIRN_REQUEST_SENT) return false;
    cairn_asker_drop(asker, request);
    cairn_asker_ask(asker, request);
    return true;
}

bool cairn_asker_waits(const struct cairn_asker *asker)
{
    return asker->sent > 0 || !TAILQ_EMPTY(&asker->waiting);
}
