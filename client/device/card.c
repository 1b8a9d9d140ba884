#include "client/device/card.h"

#include <cairn.h>

#include <pthread.h>
#include <string.h>
#include <stdlib.h>

#include "client/base/error.h"
#include "client/device/door.h"
#include "gpu/cuda/vmm.h"

#define CARDS_MAX 64

static struct {
    pthread_mutex_t lock; /* guards what follows */
    bool is_open;
    struct cairn_driver driver; /* constant once is_open */
    struct card *cards[CARDS_MAX];
} door = { .lock = PTHREAD_MUTEX_INITIALIZER };

cairn_status cairn_card_fail(int result, cairn_status status, const char *doing,
                             struct cairn_sentence *why)
{
    char text[CAIRN_DRIVER_TEXT_BYTES];
    return cairn_fail(why, result == CAIRN_CU_OUT_OF_MEMORY ? CAIRN_ERR_NO_MEMORY : status,
                      "%s: %s", doing, cairn_driver_explain(&door.driver, result, text));
}

/* ---- the context ---- */

/* For each thread: how many calls deep it is in the library, and the capture mode it had
 * outside. */
static __thread int depth, mode_outside;

/* Relaxes the thread's capture mode: then the library's calls become part of no graph that the
 * caller captures, and do not end a capture by another thread. */
static int relax(const struct cairn_driver *driver)
{
    int mode = CAIRN_CU_CAPTURE_RELAXED;
    if (depth > 0) return depth++, CAIRN_CU_OK;
    const int result = driver->cuThreadExchangeStreamCaptureMode(&mode);
    if (result != CAIRN_CU_OK) return result;
    mode_outside = mode;
    depth++;
    return CAIRN_CU_OK;
}

static void unrelax(const struct cairn_driver *driver)
{
    if (--depth == 0) (void)driver->cuThreadExchangeStreamCaptureMode(&mode_outside);
}

cairn_status cairn_card_enter(const struct card *card, struct cairn_sentence *why)
{
    int result = relax(card->driver);
    if (result == CAIRN_CU_OK) {
        result = card->driver->cuCtxPushCurrent(card->context);
        if (result != CAIRN_CU_OK) unrelax(card->driver);
    }
    return result == CAIRN_CU_OK
               ? CAIRN_OK
               : cairn_card_fail(result, CAIRN_ERR_IO, "its context is not to be had", why);
}

void cairn_card_leave(const struct card *card)
{
    struct CUctx_st *own;
    (void)card->driver->cuCtxPopCurrent(&own);
    unrelax(card->driver);
}

/* ---- opening ---- */

/* Opens the side stream with the greatest priority. Such streams have hardware queues that the
 * caller's streams do not share; in a shared one, a copy could be queued behind the very wait that
 * it is to end. */
static int open_side(struct card *card)
{
    int least, greatest;
    const int result = card->driver->cuCtxGetStreamPriorityRange(&least, &greatest);
    if (result != CAIRN_CU_OK) return result;
    return card->driver->cuStreamCreateWithPriority(&card->side, CAIRN_CU_STREAM_NON_BLOCKING,
                                                    greatest);
}

static int open_copies(struct card *card)
{
    pthread_mutex_init(&card->copies_lock, NULL);
    return card->driver->cuEventCreate(&card->copied, CAIRN_CU_EVENT_BLOCKING_SYNC |
                                                          CAIRN_CU_EVENT_DISABLE_TIMING);
}

static cairn_status open_context(struct card *card, struct cairn_sentence *why)
{
    const struct cairn_driver *driver = card->driver;
    struct cairn_cu_uuid uuid;
    int has_memory = 0, has_handles = 0;
    size_t granularity = 0;
    int result = driver->cuDeviceGet(&card->device, card->number);
    if (result == CAIRN_CU_OK) result = driver->cuDeviceGetUuid(&uuid, card->device);
    if (result == CAIRN_CU_OK)
        result = driver->cuDeviceGetAttribute(&has_memory, CAIRN_CU_HAS_VIRTUAL_MEMORY,
                                              card->device);
    if (result == CAIRN_CU_OK)
        result = driver->cuDeviceGetAttribute(&has_handles, CAIRN_CU_HAS_POSIX_HANDLES,
                                              card->device);
    if (result != CAIRN_CU_OK)
        return cairn_card_fail(result, CAIRN_ERR_IO, "the driver does not describe it", why);
    memcpy(card->uuid, uuid.bytes, sizeof card->uuid);
    card->numa_node = cairn_driver_numa_node(driver, card->device);
    card->exports = has_memory != 0 && has_handles != 0;
    card->is_reached = cairn_vmm_is_reached(driver, card->device);
    card->has_dma_buf = cairn_vmm_has_dma_buf(driver, card->device);
    card->order = cairn_vmm_order(driver, card->device);
    result = driver->cuDevicePrimaryCtxRetain(&card->context, card->device);
    if (result != CAIRN_CU_OK)
        return cairn_card_fail(result, CAIRN_ERR_IO, "its context does not open", why);
    const struct cairn_cu_allocation how = cairn_vmm_allocation(card->device, true,
                                                                card->is_reached);
    cairn_status status = cairn_card_enter(card, why);
    if (status != CAIRN_OK) return status;
    if (card->exports)
        result = driver->cuMemGetAllocationGranularity(&granularity, &how,
                                                       CAIRN_CU_GRANULARITY_MINIMUM);
    if (result == CAIRN_CU_OK) result = open_side(card);
    if (result == CAIRN_CU_OK) result = open_copies(card);
    cairn_card_leave(card);
    card->granularity = granularity;
    return result == CAIRN_CU_OK ? CAIRN_OK
                                 : cairn_card_fail(result, CAIRN_ERR_IO, "no stream of it", why);
}

/* Under the lock. */
static cairn_status open_driver(void)
{
    struct cairn_sentence why;
    if (door.is_open) return CAIRN_OK;
    const cairn_status status = cairn_driver_open(&door.driver, &why);
    if (status != CAIRN_OK)
        return cairn_client_fail(CAIRN_ERR_UNSUPPORTED, "no GPU can be used: %s; give host memory",
                                 why.text);
    door.is_open = true;
    return CAIRN_OK;
}

static cairn_status open_card(int number, struct card **card_out)
{
    int count = 0;
    struct cairn_sentence why;
    if (door.driver.cuDeviceGetCount(&count) != CAIRN_CU_OK) count = 0;
    if (number < 0 || number >= count || number >= CARDS_MAX)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "there is no GPU %d: this process sees %d, and they count from 0 "
                                 "(nvidia-smi -L, and the environment's CUDA_VISIBLE_DEVICES)",
                                 number, count);
    struct card *card = calloc(1, sizeof *card);
    if (card == NULL) return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    card->driver = &door.driver;
    card->number = number;
    cairn_status status = CAIRN_ERR_IO;
    const int result = relax(&door.driver);
    if (result == CAIRN_CU_OK) {
        status = open_context(card, &why);
        unrelax(&door.driver);
    } else
        cairn_card_fail(result, status, "the driver does not begin with it", &why);
    if (status == CAIRN_OK) {
        cairn_card_make_words(card);
        *card_out = card;
        return CAIRN_OK;
    }
    if (card->context != NULL) (void)door.driver.cuDevicePrimaryCtxRelease(card->device);
    free(card);
    return cairn_client_fail(status, "GPU %d: %s", number, why.text);
}

cairn_status cairn_card_get(int number, struct card **card_out)
{
    pthread_mutex_lock(&door.lock);
    cairn_status status = open_driver();
    struct card *card = number >= 0 && number < CARDS_MAX ? door.cards[number] : NULL;
    if (status == CAIRN_OK && card == NULL) status = open_card(number, &card);
    if (status == CAIRN_OK) door.cards[number] = card;
    pthread_mutex_unlock(&door.lock);
    if (status == CAIRN_OK) *card_out = card;
    return status;
}

cairn_status cairn_card_of_device(int device, const char *what, struct card **card_out)
{
    *card_out = NULL;
    if (device == 0) return CAIRN_OK;
    if (device >= CAIRN_GPU(0)) return cairn_card_get(device - CAIRN_GPU(0), card_out);
    return cairn_client_fail(CAIRN_ERR_INVALID,
                             "%s is %d; allowed: 0 = the host, CAIRN_GPU(n) = GPU n", what, device);
}

cairn_status cairn_card_of_thread(struct card *other, struct card **card_out)
{
    pthread_mutex_lock(&door.lock);
    const cairn_status status = open_driver();
    pthread_mutex_unlock(&door.lock);
    int device = 0;
    if (status != CAIRN_OK) return status;
    if (door.driver.cuCtxGetDevice(&device) == CAIRN_CU_OK) return cairn_card_get(device, card_out);
    if (other == NULL) return cairn_card_get(0, card_out);
    *card_out = other;
    return CAIRN_OK;
}

int cairn_card_number(const struct card *card)
{
    return card->number;
}

const uint8_t *cairn_card_uuid(const struct card *card)
{
    return card->uuid;
}
