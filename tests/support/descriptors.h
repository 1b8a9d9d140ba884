/* Descriptors that a process has open. */
#ifndef CAIRN_TESTS_DESCRIPTORS_H
#define CAIRN_TESTS_DESCRIPTORS_H

#include <check.h>
#include <dirent.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
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

/* Those whose target has that text. */
static inline unsigned descriptors_named(pid_t pid, const char *text)
{
    char path[64], of[512];
    unsigned count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    ck_assert_ptr_nonnull(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        const ssize_t length = readlinkat(dirfd(folder), entry->d_name, of, sizeof of - 1);
        of[length > 0 ? length : 0] = '\0';
        count += strstr(of, text) != NULL;
    }
    closedir(folder);
    return count;
}

static inline unsigned descriptors_here(void)
{
    return descriptors_of(getpid());
}

static inline bool descriptors_listens(pid_t pid, const char *table, unsigned long inode)
{
    char path[64], line[512];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/net/%s", (int)pid, table);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false; // a kernel without IPv6
    while (!found && fgets(line, sizeof line, file) != NULL) {
        unsigned state;
        unsigned long of;
        found = sscanf(line, "%*s %*s %*s %x %*s %*s %*s %*s %*s %lu", &state, &of) == 2 &&
                state == TCP_LISTEN && of == inode;
    }
    fclose(file);
    return found;
}

/* Those that listen for TCP. */
static inline unsigned descriptors_listening(pid_t pid)
{
    char path[64], of[512];
    unsigned count = 0;
    const struct dirent *entry;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    ck_assert_ptr_nonnull(folder);
    while ((entry = readdir(folder)) != NULL) {
        unsigned long inode;
        const ssize_t length = readlinkat(dirfd(folder), entry->d_name, of, sizeof of - 1);
        if (length <= 0) continue;
        of[length] = '\0';
        if (sscanf(of, "socket:[%lu]", &inode) != 1) continue;
        count += descriptors_listens(pid, "tcp", inode) || descriptors_listens(pid, "tcp6", inode);
    }
    closedir(folder);
    return count;
}

#endif
