/* Which of the pages that a reserve (reserve.h) makes are there already, for those who fill some while others
 * are still being made. */
#ifndef CAIRN_SHARD_MEMORY_TAKEN_H
#define CAIRN_SHARD_MEMORY_TAKEN_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cairn_taken_span {
    uintptr_t at, end;
};

struct cairn_taken {
    pthread_mutex_t mutex; /* of all that follows */
    pthread_cond_t changed;
    struct cairn_taken_span *list; /* owned: none touches another */
    size_t count, capacity;
    bool is_over, all; /* no more of them come; all are there */
};

void cairn_taken_open(struct cairn_taken *taken);
void cairn_taken_close(struct cairn_taken *taken);
/* These are there. Any thread. */
void cairn_taken_add(struct cairn_taken *taken, const void *at, uint64_t bytes);
/* No more come: `all` are there, or it was given up. The first end holds. Any thread. */
void cairn_taken_end(struct cairn_taken *taken, bool all);
/* Until these are there. False: they will not be. Any thread. */
bool cairn_taken_await(struct cairn_taken *taken, const void *at, uint64_t bytes);

#endif
