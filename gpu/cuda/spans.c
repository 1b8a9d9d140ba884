/* Spans of addresses: few, so that a list in order does. */
#include <stdlib.h>
#include <string.h>

#include "gpu/cuda/cuda.h"

/* The first span that ends behind the address; count if none does. */
static size_t first_behind(const struct cairn_cuda_spans *spans, uint64_t at)
{
    size_t low = 0, high = spans->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (spans->list[middle].at + spans->list[middle].bytes > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static cairn_status make_room(struct cairn_cuda_spans *spans)
{
    if (spans->count < spans->capacity) return CAIRN_OK;
    const size_t capacity = spans->capacity == 0 ? 64 : 2 * spans->capacity;
    struct cairn_cuda_span *list = realloc(spans->list, capacity * sizeof *list);
    if (list == NULL) return CAIRN_ERR_NO_MEMORY;
    spans->list = list;
    spans->capacity = capacity;
    return CAIRN_OK;
}

cairn_status cairn_cuda_spans_add(struct cairn_cuda_spans *spans, struct cairn_cuda_span span)
{
    const size_t index = first_behind(spans, span.at);
    if (index < spans->count && spans->list[index].at - span.at < span.bytes)
        return CAIRN_ERR_EXISTS;
    if (index < spans->count && spans->list[index].at <= span.at) return CAIRN_ERR_EXISTS;
    const cairn_status status = make_room(spans);
    if (status != CAIRN_OK) return status;
    memmove(&spans->list[index + 1], &spans->list[index], (spans->count - index) * sizeof span);
    spans->list[index] = span;
    spans->count++;
    return CAIRN_OK;
}

struct cairn_cuda_span cairn_cuda_spans_take(struct cairn_cuda_spans *spans, uint64_t at)
{
    const size_t index = first_behind(spans, at);
    struct cairn_cuda_span span = { 0 };
    if (index == spans->count || spans->list[index].at != at) return span;
    span = spans->list[index];
    spans->count--;
    memmove(&spans->list[index], &spans->list[index + 1], (spans->count - index) * sizeof span);
    return span;
}

struct cairn_cuda_span cairn_cuda_spans_overlapping(const struct cairn_cuda_spans *spans,
                                                    struct cairn_cuda_span with)
{
    const size_t index = first_behind(spans, with.at);
    if (index == spans->count || spans->list[index].at >= with.at + with.bytes)
        return (struct cairn_cuda_span) { 0 };
    return spans->list[index];
}

void cairn_cuda_spans_trim(const struct cairn_cuda_spans *spans, struct cairn_cuda_span *span)
{
    uint64_t at = span->at, end = span->at + span->bytes;
    while (at < end) {
        const struct cairn_cuda_span first = cairn_cuda_spans_overlapping(
            spans, (struct cairn_cuda_span) { at, 1 });
        if (first.bytes == 0) break;
        at = first.at + first.bytes;
    }
    while (at < end) {
        const struct cairn_cuda_span last = cairn_cuda_spans_overlapping(
            spans, (struct cairn_cuda_span) { end - 1, 1 });
        if (last.bytes == 0) break;
        end = last.at;
    }
    *span = (struct cairn_cuda_span) { at, at < end ? end - at : 0 };
}

bool cairn_cuda_spans_have(const struct cairn_cuda_spans *spans, uint64_t at, uint64_t bytes)
{
    const size_t index = first_behind(spans, at);
    if (index == spans->count || spans->list[index].at > at) return false;
    return bytes <= spans->list[index].at + spans->list[index].bytes - at;
}

uint64_t cairn_cuda_spans_gap(const struct cairn_cuda_spans *spans, struct cairn_cuda_span within,
                              uint64_t bytes)
{
    const uint64_t end = within.at + within.bytes;
    uint64_t at = within.at;
    size_t i = first_behind(spans, at);
    for (; i < spans->count && spans->list[i].at < end; i++) {
        if (spans->list[i].at - at >= bytes) return at;
        at = spans->list[i].at + spans->list[i].bytes;
    }
    return end - at >= bytes ? at : 0;
}
