/* Closes, in a forked process, the parent session's connection to the coordinator. While a data
 * loader's worker kept its copy open, its trainer could be killed without anybody being told. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/base/fork.h"

struct watched {
    const void *owner;
    int fd;
    dev_t device;
    ino_t inode; /* whose number it was: another thread may have it for a file by now */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct watched *list; /* [count], owned, under the lock */
static size_t count;

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    struct stat now;
    for (size_t i = 0; i < count; i++)
        if (fstat(list[i].fd, &now) == 0 && now.st_dev == list[i].device &&
            now.st_ino == list[i].inode)
            close(list[i].fd);
    count = 0;
    pthread_mutex_unlock(&lock);
}

static void listen_for_forks(void)
{
    pthread_atfork(before_fork, after_fork, in_child);
}

void cairn_fork_watch(const void *owner, int fd)
{
    struct stat now;
    if (fstat(fd, &now) != 0) return;
    pthread_once(&once, listen_for_forks);
    pthread_mutex_lock(&lock);
    struct watched *larger = realloc(list, (count + 1) * sizeof *list);
    if (larger != NULL) {
        list = larger;
        list[count++] = (struct watched) { owner, fd, now.st_dev, now.st_ino };
    }
    pthread_mutex_unlock(&lock);
}

void cairn_fork_forget(const void *owner)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++)
        if (list[i].owner == owner) list[i--] = list[--count];
    if (count == 0) {
        free(list);
        list = NULL;
    }
    pthread_mutex_unlock(&lock);
}
