/* How far apart two streams begin, as a core's nearest cache sees it: see proto/fabric/backend.h. */
#ifndef CAIRN_SUPPORT_APART_H
#define CAIRN_SUPPORT_APART_H

#include "proto/fabric/backend.h"

/* Lines between the addresses and the next multiple of 4 KiB that they could be apart. */
static inline size_t lines_apart(const void *a, const void *b)
{
    const size_t apart = (size_t)((uintptr_t)a - (uintptr_t)b) % CAIRN_STAGGER_PAGE;
    const size_t nearer = apart < CAIRN_STAGGER_PAGE - apart ? apart : CAIRN_STAGGER_PAGE - apart;
    return nearer / CAIRN_LINE_BYTES;
}

#endif
