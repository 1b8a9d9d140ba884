/* Threads and memory of those who write and read blocks around the page cache. */
#ifndef CAIRN_STORE_IO_THREAD_H
#define CAIRN_STORE_IO_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* Starts a thread that takes no signals, with the priorities of who calls. `name`: at most 15 bytes. */
bool cairn_io_thread_start(pthread_t *thread_out, const char *name, void *(*run)(void *context),
                           void *context);
/* Pages of its own; NULL: no memory. */
void *cairn_io_block_new(size_t bytes);
void cairn_io_block_free(void *block, size_t bytes);

#endif
