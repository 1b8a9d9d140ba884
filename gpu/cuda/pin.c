/* Host memory that the card copies from and to by itself. The driver pins whole pages, each once: what is
 * asked for is rounded to them, and pages that are pinned already are left out. A copy goes by itself if one
 * span has all of it. */
#include <stdlib.h>

#include "gpu/cuda/cuda.h"

#define PAGE_BYTES ((uint64_t)4096)

static struct cairn_cuda_span pages_of(const void *host, uint64_t bytes)
{
    const uint64_t at = (uint64_t)(uintptr_t)host / PAGE_BYTES * PAGE_BYTES;
    const uint64_t end = ((uint64_t)(uintptr_t)host + bytes + PAGE_BYTES - 1) / PAGE_BYTES;
    return (struct cairn_cuda_span) { at, end * PAGE_BYTES - at };
}

static void count(struct cairn_cuda *cuda, uint64_t pinned, uint64_t refused)
{
    atomic_fetch_add(&cuda->use.pinned_bytes, pinned); // what is taken away wraps around
    atomic_fetch_add(&cuda->use.unpinned_bytes, refused);
}

/* ---- pinning ---- */

/* Ends of the span that are pinned are taken off; what is left is noted, as nobody else may pin it now. */
static cairn_status claim(struct cairn_cuda *cuda, struct cairn_cuda_span *span)
{
    cairn_status status = CAIRN_OK;
    pthread_mutex_lock(&cuda->lock);
    cairn_cuda_spans_trim(&cuda->pinned, span);
    if (span->bytes > 0) status = cairn_cuda_spans_add(&cuda->pinned, *span);
    pthread_mutex_unlock(&cuda->lock);
    return status;
}

static void forget(struct cairn_cuda *cuda, uint64_t at)
{
    pthread_mutex_lock(&cuda->lock);
    (void)cairn_cuda_spans_take(&cuda->pinned, at);
    pthread_mutex_unlock(&cuda->lock);
}

static cairn_status refuse(struct cairn_cuda *cuda, uint64_t bytes, const char *reason,
                           const char *advice, struct cairn_sentence *why)
{
    count(cuda, 0, bytes);
    return cairn_fail(
        why, CAIRN_ERR_NO_MEMORY,
        "cannot pin %llu bytes of host memory for %s, so that copies of it are slower: "
        "%s%s%s",
        (unsigned long long)bytes, cuda->home.info.device, reason, advice[0] == '\0' ? "" : ": ",
        advice);
}

/* A refusal by the driver does not break the home: if the card has failed, the next run says so. */
static cairn_status pin_span(struct cairn_cuda *cuda, struct cairn_cuda_span span,
                             struct cairn_sentence *why)
{
    char text[32];
    const cairn_status status = claim(cuda, &span);
    if (status != CAIRN_OK)
        return refuse(cuda, span.bytes,
                      status == CAIRN_ERR_EXISTS ? "parts in the middle of it are pinned already"
                                                 : "no memory for the list of what is",
                      "", why);
    if (span.bytes == 0) return CAIRN_OK;
    cairn_numa_move((void *)(uintptr_t)span.at, (size_t)span.bytes, cuda->home.info.numa_node);
    const int result = cuda->driver.cuMemHostRegister(
        (void *)(uintptr_t)span.at, (size_t)span.bytes, CAIRN_CU_HOST_REGISTER_PORTABLE);
    if (result == CAIRN_CU_OK) {
        count(cuda, span.bytes, 0);
        return CAIRN_OK;
    }
    forget(cuda, span.at);
    return refuse(cuda, span.bytes, cairn_driver_error(&cuda->driver, result, text),
                  result == CAIRN_CU_OUT_OF_MEMORY ? "the host has too little that may be pinned"
                                                   : cairn_driver_advice(result),
                  why);
}

cairn_status cairn_cuda_pin(struct cairn_home *home, void *host, uint64_t bytes,
                            struct cairn_sentence *why)
{
    struct cairn_cuda *cuda = cairn_cuda_of(home);
    const cairn_status status = cairn_cuda_enter(cuda, why);
    if (status != CAIRN_OK || bytes == 0) return status;
    return pin_span(cuda, pages_of(host, bytes), why);
}

/* ---- unpinning ---- */

static struct cairn_cuda_span take_overlapping(struct cairn_cuda *cuda, struct cairn_cuda_span with)
{
    pthread_mutex_lock(&cuda->lock);
    const struct cairn_cuda_span span = cairn_cuda_spans_overlapping(&cuda->pinned, with);
    if (span.bytes > 0) (void)cairn_cuda_spans_take(&cuda->pinned, span.at);
    pthread_mutex_unlock(&cuda->lock);
    return span;
}

/* A part of what was pinned stays so; if the driver does not do that again, copies of it are slower. */
static void pin_again(struct cairn_cuda *cuda, uint64_t at, uint64_t end)
{
    if (at < end && pin_span(cuda, (struct cairn_cuda_span) { at, end - at }, NULL) != CAIRN_OK)
        return; // counted
}

void cairn_cuda_unpin(struct cairn_home *home, void *host, uint64_t bytes)
{
    struct cairn_cuda *cuda = cairn_cuda_of(home);
    const struct cairn_cuda_span all = pages_of(host, bytes);
    struct cairn_cuda_span span;
    if (bytes == 0) return;
    cairn_cuda_enter_anyway(cuda);
    while ((span = take_overlapping(cuda, all)).bytes > 0) {
        count(cuda, -span.bytes, 0);
        if (atomic_load(&cuda->has_failed)) continue; // it may be copied still: with the context
        (void)cuda->driver.cuMemHostUnregister((void *)(uintptr_t)span.at);
        pin_again(cuda, span.at, all.at);
        pin_again(cuda, all.at + all.bytes, span.at + span.bytes);
    }
}

bool cairn_cuda_is_pinned(struct cairn_cuda *cuda, const void *host, uint64_t bytes)
{
    pthread_mutex_lock(&cuda->lock);
    const bool is = cairn_cuda_spans_have(&cuda->pinned, (uint64_t)(uintptr_t)host, bytes);
    pthread_mutex_unlock(&cuda->lock);
    return is;
}
