#include "proto/base/at_hand.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { DESCRIPTORS_MAX = 256, THREADS_MAX = 64 };

cairn_status cairn_descriptors_at_hand(int fd, int count, const char *whose,
                                       struct cairn_sentence *why)
{
    int taken[DESCRIPTORS_MAX], have = 0;
    assert(count <= DESCRIPTORS_MAX);
    while (have < count && (taken[have] = fcntl(fd, F_DUPFD_CLOEXEC, fd)) >= 0) have++;
    const int error = errno;
    for (int i = 0; i < have; i++) close(taken[i]);
    if (have == count || (error != EMFILE && error != ENFILE)) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_NO_MEMORY,
                      "this process may open %d descriptors more, and %s needs up to %d: close "
                      "some, or raise the limit (ulimit -n, LimitNOFILE of a unit)",
                      have, whose, count);
}

static void *stand_by(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

cairn_status cairn_threads_at_hand(int count, const char *whose, struct cairn_sentence *why)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t threads[THREADS_MAX];
    int have = 0, error = 0;
    assert(count <= THREADS_MAX);
    pthread_mutex_lock(&gate);
    while (have < count && (error = pthread_create(&threads[have], NULL, stand_by, &gate)) == 0)
        have++;
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < have; i++) pthread_join(threads[i], NULL);
    if (error == 0) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_NO_MEMORY,
                      "this process cannot begin the %d threads of %s (%s): raise its limits "
                      "(ulimit -u, TasksMax of a unit), or its memory's",
                      count, whose, strerror(error));
}
