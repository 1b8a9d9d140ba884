/* The functions that say which memory a launch of each kernel touches: the `ranges` of
 * gpu/kernel/host.h. Private to gpu/kernel. */
#ifndef CAIRN_GPU_KERNEL_RANGES_H
#define CAIRN_GPU_KERNEL_RANGES_H

#include "gpu/kernel/host.h"

#define CAIRN_KERNEL_RANGES(name, item, block) \
    void ranges_##name(const struct kernel_list *list, kernel_note_fn note, void *context);
CAIRN_KERNELS(CAIRN_KERNEL_RANGES)
#undef CAIRN_KERNEL_RANGES

#endif
