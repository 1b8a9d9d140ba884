/* A storage in memory, with faults: what is above proto/store/storage.h must work on it as on a folder.
 * Locations are "mem:anything". One process; any thread. */
#ifndef CAIRN_SUPPORT_MEMORY_STORAGE_H
#define CAIRN_SUPPORT_MEMORY_STORAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/store/storage.h"

/* Registers it, once a process, empty. */
void cairn_memory_storage_open(void);
/* The n-th call from now on (from 1) of any function but list, stat and close fails with this status; 0:
 * none. */
void cairn_memory_storage_fail(uint64_t n, cairn_status status);
/* So many calls there were that could have failed. */
uint64_t cairn_memory_storage_calls(void);
/* So many manifests were looked for by threads that are confined (proto/store/confine.h), or by others. */
uint64_t cairn_memory_storage_opened(bool by_confined);
/* How many bytes were read, of any object. */
uint64_t cairn_memory_storage_read_bytes(void);
/* Every put_write waits until it is let go on. */
void cairn_memory_storage_hang(bool hangs);
/* The bytes of an object at "<at>/<path>", to change; NULL: there is none. */
uint8_t *cairn_memory_storage_bytes(const char *at, const char *path, size_t *count_out);

#endif
