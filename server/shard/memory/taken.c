#include "server/shard/memory/taken.h"

#include <stdlib.h>

void cairn_taken_open(struct cairn_taken *taken)
{
    *taken = (struct cairn_taken) { .list = NULL };
    pthread_mutex_init(&taken->mutex, NULL);
    pthread_cond_init(&taken->changed, NULL);
}

void cairn_taken_close(struct cairn_taken *taken)
{
    pthread_mutex_destroy(&taken->mutex);
    pthread_cond_destroy(&taken->changed);
    free(taken->list);
}

/* Takes out those that the span touches, which becomes all of them. */
static void join(struct cairn_taken *taken, struct cairn_taken_span *span)
{
    for (size_t i = 0; i < taken->count;) {
        const struct cairn_taken_span other = taken->list[i];
        if (other.end < span->at || span->end < other.at) {
            i++;
            continue;
        }
        if (other.at < span->at) span->at = other.at;
        if (other.end > span->end) span->end = other.end;
        taken->list[i] = taken->list[--taken->count];
    }
}

/* Without memory for one more it is not known of before the end. */
static void add(struct cairn_taken *taken, struct cairn_taken_span span)
{
    join(taken, &span);
    if (taken->count == taken->capacity) {
        const size_t capacity = 2 * taken->capacity + 8;
        struct cairn_taken_span *grown = realloc(taken->list, capacity * sizeof *grown);
        if (grown == NULL) return;
        taken->list = grown;
        taken->capacity = capacity;
    }
    taken->list[taken->count++] = span;
}

void cairn_taken_add(struct cairn_taken *taken, const void *at, uint64_t bytes)
{
    pthread_mutex_lock(&taken->mutex);
    add(taken, (struct cairn_taken_span) { (uintptr_t)at, (uintptr_t)at + bytes });
    pthread_cond_broadcast(&taken->changed);
    pthread_mutex_unlock(&taken->mutex);
}

void cairn_taken_end(struct cairn_taken *taken, bool all)
{
    pthread_mutex_lock(&taken->mutex);
    if (!taken->is_over) taken->all = all;
    taken->is_over = true;
    pthread_cond_broadcast(&taken->changed);
    pthread_mutex_unlock(&taken->mutex);
}

static bool has(const struct cairn_taken *taken, uintptr_t at, uintptr_t end)
{
    for (size_t i = 0; i < taken->count; i++)
        if (taken->list[i].at <= at && end <= taken->list[i].end) return true;
    return false;
}

bool cairn_taken_await(struct cairn_taken *taken, const void *at, uint64_t bytes)
{
    const uintptr_t first = (uintptr_t)at;
    pthread_mutex_lock(&taken->mutex);
    while (!taken->is_over && !has(taken, first, first + bytes))
        pthread_cond_wait(&taken->changed, &taken->mutex);
    const bool is_there = taken->is_over ? taken->all : true;
    pthread_mutex_unlock(&taken->mutex);
    return is_there;
}
