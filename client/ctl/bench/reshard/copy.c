#include "client/ctl/bench/reshard/copy.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "client/ctl/bench/bench.h"

#define THREADS_MAX 64

/* The part of the area that one thread copies. */
struct part {
    pthread_t thread;
    char *to;
    const char *from;
    size_t bytes;
};

static char *map(size_t bytes)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory != MAP_FAILED ? memory : NULL;
}

static void unmap(char *memory, size_t bytes)
{
    if (memory != NULL) munmap(memory, bytes);
}

void cairn_bench_copier_release(struct bench_copier *copier)
{
    unmap(copier->to, copier->bytes);
    unmap(copier->from, copier->bytes);
    *copier = (struct bench_copier) { .to = NULL };
}

static bool make_areas(struct bench_copier *copier, size_t bytes, bool is_fresh)
{
    if (copier->bytes != bytes) {
        cairn_bench_copier_release(copier);
        copier->bytes = bytes;
        copier->from = map(bytes);
        if (copier->from != NULL) memset(copier->from, 1, bytes);
    }
    if (is_fresh) {
        unmap(copier->to, bytes);
        copier->to = NULL;
    }
    if (copier->to == NULL) {
        copier->to = map(bytes);
        if (!is_fresh && copier->to != NULL) memset(copier->to, 1, bytes);
    }
    if (copier->from != NULL && copier->to != NULL) return true;
    (void)cairn_ctl_fail(CAIRN_ERR_NO_MEMORY, "no memory to copy %s", cairn_ctl_bytes(2 * bytes));
    return false;
}

static void *copy(void *context)
{
    struct part *part = context;
    memcpy(part->to, part->from, part->bytes);
    __asm__ volatile("" : : "r"(part->to) : "memory"); // somebody reads it
    return NULL;
}

double cairn_bench_copy(struct bench_copier *copier, size_t bytes, uint32_t threads, bool is_fresh)
{
    struct part parts[THREADS_MAX];
    uint32_t begun = 0;
    if (!make_areas(copier, bytes, is_fresh)) return 0;
    if (threads > THREADS_MAX) threads = THREADS_MAX;
    const double begin = cairn_bench_now();
    for (; begun < threads; begun++) {
        struct part *part = &parts[begun];
        const size_t at = bytes / threads * begun;
        *part = (struct part) {
            .to = copier->to + at,
            .from = copier->from + at,
            .bytes = begun + 1 < threads ? bytes / threads : bytes - at,
        };
        if (pthread_create(&part->thread, NULL, copy, part) != 0) break;
    }
    for (uint32_t i = 0; i < begun; i++) pthread_join(parts[i].thread, NULL);
    if (begun == threads) return (double)bytes * 1e-9 / (cairn_bench_now() - begin);
    (void)cairn_ctl_fail(CAIRN_ERR_NO_MEMORY, "no thread");
    return 0;
}
