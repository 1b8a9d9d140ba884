/* Host memory that the card copies from and to by itself. */
#include <stdlib.h>

#include "gpu/cuda/cuda.h"

static cairn_status refuse(const struct cairn_cuda *cuda, int result, uint64_t bytes,
                           struct cairn_sentence *why)
{
    char text[32];
    return cairn_fail(why, CAIRN_ERR_NO_MEMORY,
                      "cannot pin %llu bytes for %s: %s; copies of it are slower",
                      (unsigned long long)bytes, cuda->home.info.device,
                      cairn_driver_error(&cuda->driver, result, text));
}

/* What the driver refuses breaks nothing: a card that has failed says so at the next run. */
cairn_status cairn_cuda_pin(struct cairn_home *home, void *host, uint64_t bytes,
                            struct cairn_sentence *why)
{
    struct cairn_cuda *cuda = cairn_cuda_of(home);
    const struct cairn_cuda_span span = { (uint64_t)(uintptr_t)host, bytes };
    cairn_status status = cairn_cuda_enter(cuda, why);
    if (status != CAIRN_OK || bytes == 0) return status;
    const int result = cuda->driver.cuMemHostRegister(host, (size_t)bytes,
                                                      CAIRN_CU_HOST_REGISTER_PORTABLE);
    if (result != CAIRN_CU_OK) return refuse(cuda, result, bytes, why);
    pthread_mutex_lock(&cuda->lock);
    status = cairn_cuda_spans_add(&cuda->pinned, span);
    pthread_mutex_unlock(&cuda->lock);
    if (status == CAIRN_OK) return CAIRN_OK;
    (void)cuda->driver.cuMemHostUnregister(host);
    return cairn_fail(why, status, "no memory for the list of what is pinned");
}

void cairn_cuda_unpin(struct cairn_home *home, void *host)
{
    struct cairn_cuda *cuda = cairn_cuda_of(home);
    pthread_mutex_lock(&cuda->lock);
    const struct cairn_cuda_span span = cairn_cuda_spans_take(&cuda->pinned,
                                                              (uint64_t)(uintptr_t)host);
    pthread_mutex_unlock(&cuda->lock);
    if (span.bytes == 0) return;
    cairn_cuda_enter_anyway(cuda);
    (void)cuda->driver.cuMemHostUnregister(host);
}

bool cairn_cuda_is_pinned(struct cairn_cuda *cuda, const void *host, uint64_t bytes)
{
    pthread_mutex_lock(&cuda->lock);
    const bool is = cairn_cuda_spans_have(&cuda->pinned, (uint64_t)(uintptr_t)host, bytes);
    pthread_mutex_unlock(&cuda->lock);
    return is;
}
