/* Between the files of client/device; private to them. */
#ifndef CAIRN_CLIENT_DEVICE_DOOR_H
#define CAIRN_CLIENT_DEVICE_DOOR_H

#include <pthread.h>

#include "client/device/card.h"
#include "gpu/cuda/driver.h"
#include "gpu/cuda/vmm.h"

struct card {
    const struct cairn_driver *driver;
    int number, device;
    int numa_node; /* that it is next to, and what is pinned for it is to be of (proto/base/numa.h) */
    uint8_t uuid[16];
    bool is_reached;  /* network cards reach that (GPUDirect RDMA) */
    bool has_dma_buf; /* its driver gives it to theirs so */
    enum cairn_vmm_order order;
    bool exports; /* it has memory that goes between processes as descriptors */
    struct CUctx_st *context;
    struct CUstream_st *side; /* of the library: its copies */
    size_t granularity;       /* of memory */
    struct card_word *words;  /* that nobody waits for (stream.c) */
    /* copies in `side`, numbered from 1 in their order (memory.c) */
    pthread_mutex_t copies_lock; /* guards what follows */
    struct CUevent_st *copied;   /* behind the last that was begun; waited for without the lock */
    uint64_t copies_begun, copies_done;
};

/* Makes the card's context the thread's, whose calls then disturb no capture of a graph; leave: all is as it
 * was. */
cairn_status cairn_card_enter(const struct card *card, struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_card_leave(const struct card *card);
/* Out of memory is CAIRN_ERR_NO_MEMORY, all else `status`. */
cairn_status cairn_card_fail(int result, cairn_status status, const char *doing,
                             struct cairn_sentence *why);
/* So that the first wait asks the driver for nothing; without memory, or pinning, a wait tries again. */
void cairn_card_make_words(struct card *card);

#endif
