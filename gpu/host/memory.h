/* The host's home: its memory, as of gpu/home_kind.h. Private to gpu/host. */
#ifndef CAIRN_GPU_HOST_MEMORY_H
#define CAIRN_GPU_HOST_MEMORY_H

#include "gpu/home_kind.h"

cairn_status cairn_host_memory_open(struct cairn_home *home, const char *label,
                                    struct cairn_home_memory *memory_out,
                                    struct cairn_sentence *why);
void cairn_host_memory_close(struct cairn_home_memory *memory);
cairn_status cairn_host_memory_resize(struct cairn_home_memory *memory, const char *label,
                                      uint64_t bytes, struct cairn_sentence *why);
cairn_status cairn_host_memory_export(const struct cairn_home_memory *memory, uint64_t segment,
                                      int *fd_out, uint64_t *bytes_out, struct cairn_sentence *why);
void cairn_host_memory_give(struct cairn_home_memory *memory, uint64_t segment);

#endif
