#include "tests/support/scratch.h"

#include <arpa/inet.h>
#include <ftw.h>
#include <netinet/in.h>
#include <grp.h>
#include <sys/wait.h>
#include <sys/stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void stop_unless(int holds, const char *what)
{
    if (holds) return;
    perror(what);
    abort();
}

static void make_in(const char *otherwise, char folder_out[CAIRN_SCRATCH_BYTES])
{
    static const char name[] = "cairn-test-XXXXXX";
    const char *parent = getenv("TMPDIR");
    if (parent == NULL || parent[0] != '/' ||
        strlen(parent) + 1 + sizeof name > CAIRN_SCRATCH_BYTES)
        parent = otherwise;
    snprintf(folder_out, CAIRN_SCRATCH_BYTES, "%s/%s", parent, name);
    stop_unless(mkdtemp(folder_out) != NULL, "mkdtemp");
}

void cairn_scratch_make(char folder_out[CAIRN_SCRATCH_BYTES])
{
    make_in("/tmp", folder_out);
}

void cairn_scratch_make_quick(char folder_out[CAIRN_SCRATCH_BYTES])
{
    make_in(access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp", folder_out);
}

bool cairn_scratch_be_nobody(void)
{
    return setgroups(0, NULL) == 0 && setgid(CAIRN_SCRATCH_NOBODY) == 0 &&
           setuid(CAIRN_SCRATCH_NOBODY) == 0;
}

bool cairn_scratch_has_nobody(void)
{
    char folder[CAIRN_SCRATCH_BYTES];
    int status = 1;
    if (geteuid() != 0) return false;
    cairn_scratch_make_quick(folder);
    stop_unless(chmod(folder, 0711) == 0, "chmod");
    const pid_t pid = fork();
    stop_unless(pid >= 0, "fork");
    if (pid == 0)
        _exit(cairn_scratch_be_nobody() && access(folder, X_OK) == 0 &&
                      access(CAIRN_BIN_DIR "/cairn", X_OK) == 0
                  ? 0
                  : 1);
    stop_unless(waitpid(pid, &status, 0) == pid, "waitpid");
    cairn_scratch_remove(folder);
    return status == 0;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

void cairn_scratch_remove(const char *folder)
{
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

uint16_t cairn_scratch_port(void)
{
    struct sockaddr_in addr = { .sin_family = AF_INET };
    socklen_t addr_bytes = sizeof addr;
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    stop_unless(fd >= 0, "socket");
    stop_unless(bind(fd, (struct sockaddr *)&addr, sizeof addr) == 0, "bind");
    stop_unless(getsockname(fd, (struct sockaddr *)&addr, &addr_bytes) == 0, "getsockname");
    close(fd);
    return ntohs(addr.sin_port);
}

int cairn_scratch_dial(const char *path)
{
    struct sockaddr_un addr = { .sun_family = AF_UNIX };
    stop_unless(strlen(path) < sizeof addr.sun_path, path);
    memcpy(addr.sun_path, path, strlen(path) + 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    stop_unless(fd >= 0, "socket");
    stop_unless(connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0, path);
    return fd;
}

void cairn_scratch_file(const char *folder, const char *name, const char *text, char *path_out,
                        size_t path_bytes)
{
    snprintf(path_out, path_bytes, "%s/%s", folder, name);
    FILE *file = fopen(path_out, "w");
    stop_unless(file != NULL, path_out);
    stop_unless(fputs(text, file) >= 0 && fclose(file) == 0, path_out);
}

uint64_t cairn_scratch_random(uint64_t *seed)
{
    uint64_t z = (*seed += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}
