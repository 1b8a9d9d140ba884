/* Descriptors that a process has open. */
#ifndef CAIRN_TESTS_DESCRIPTORS_H
#define CAIRN_TESTS_DESCRIPTORS_H

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

/* How many; of this process without the one that reads them. */
static inline unsigned descriptors_of(pid_t pid)
{
    char path[64];
    unsigned count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    ck_assert_ptr_nonnull(folder);
    while (readdir(folder) != NULL) count++;
    closedir(folder);
    return count - 2 - (pid == getpid()); // "." and ".."
}

static inline unsigned descriptors_here(void)
{
    return descriptors_of(getpid());
}

#endif
