#include "proto/store/io_thread.h"

#include <signal.h>
#include <sys/mman.h>

bool cairn_io_thread_start(pthread_t *thread_out, const char *name, void *(*run)(void *context),
                           void *context)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(thread_out, NULL, run, context) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) pthread_setname_np(*thread_out, name);
    return started;
}

void *cairn_io_block_new(size_t bytes)
{
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return block == MAP_FAILED ? NULL : block;
}

void cairn_io_block_free(void *block, size_t bytes)
{
    if (block != NULL) munmap(block, bytes);
}
