/* A slow or dead disk, for one daemon: loaded with LD_PRELOAD, it makes calls on files slow, and notes those
 * that a process's first thread, which runs its loop, makes.
 *
 * CAIRN_SLOW_FOLDER is a folder of the test's. What lies beside it is the disk. A file arm-CALL in it, with
 * a number of milliseconds, is taken away by the next CALL on the disk, which then takes so long (CALL has
 * neither the "at" nor the "64" of its variants). If a word follows the number, only a path that has the
 * word in its last name counts. While a file "armed" is there, each call of the first thread on any file is
 * noted in the file "loop", a line each. Memory that looks like a file (memfd, /proc, /dev) is none, but to
 * give back much of it takes long, too: munmap of MEMORY_BYTES or more is noted. */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 2 * PATH_MAX, MEMORY_BYTES = 32 << 20 };

/* Past our own calls. */
static int raw_open(const char *path, int flags)
{
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0600);
}
static int raw_unlink(const char *path)
{
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

static bool is_memory(const char *path)
{
    static const char *const begins[] = { "/proc/", "/dev/", "/sys/", "/memfd:" };
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strncmp(path, begins[i], strlen(begins[i])) == 0) return true;
    return path[0] != '/'; // "socket:[4711]", "anon_inode:..."
}

static void note(const char *folder, const char *call, const char *path)
{
    char name[PATH_BYTES], line[PATH_BYTES + 64];
    struct stat info;
    snprintf(name, sizeof name, "%s/armed", folder);
    if (syscall(SYS_newfstatat, AT_FDCWD, name, &info, 0) != 0) return;
    snprintf(name, sizeof name, "%s/loop", folder);
    const int fd = raw_open(name, O_WRONLY | O_CREAT | O_APPEND);
    const int length = snprintf(line, sizeof line, "%s %s\n", call, path);
    if (fd < 0 || length < 0) abort();
    if (syscall(SYS_write, fd, line, (size_t)length) != length) abort();
    syscall(SYS_close, fd);
}

/* True if the call on that path is meant: the file names no word, or the path's last name has it. */
static bool is_meant(const char *armed, const char *path)
{
    const char *word = strchr(armed, ' '), *last = strrchr(path, '/');
    return word == NULL || (last != NULL && strstr(last, word + 1) != NULL);
}

/* How long the call is to take; whoever takes the file away is the one. */
static long armed_ms(const char *folder, const char *call, const char *path)
{
    char name[PATH_BYTES], text[32] = "";
    snprintf(name, sizeof name, "%s/arm-%s", folder, call);
    const int fd = raw_open(name, O_RDONLY);
    if (fd < 0) return 0;
    const long got = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    return got > 0 && is_meant(text, path) && raw_unlink(name) == 0 ? atol(text) : 0;
}

static void meet(const char *call, const char *path)
{
    const char *folder = getenv("CAIRN_SLOW_FOLDER");
    if (folder == NULL) return;
    const char *end = strrchr(folder, '/'); // the disk is the folder that this one is in
    const bool on_disk = end != NULL && strncmp(path, folder, (size_t)(end - folder) + 1) == 0;
    if (!on_disk && is_memory(path)) return; // the disk itself may lie in /dev/shm
    if (syscall(SYS_gettid) == getpid()) note(folder, call, path);
    if (!on_disk) return;
    const long ms = armed_ms(folder, call, path);
    struct timespec left = { ms / 1000, ms % 1000 * 1000000 };
    while (ms > 0 && nanosleep(&left, &left) != 0) {}
}

static void meet_fd(const char *call, int fd)
{
    char link[64], path[PATH_MAX] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1) > 0) meet(call, path);
}

static void meet_at(const char *call, int folder_fd, const char *name)
{
    char link[64], path[PATH_BYTES] = "";
    if (name[0] == '/') {
        meet(call, name);
        return;
    }
    snprintf(link, sizeof link, folder_fd == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d",
             folder_fd);
    const long got = syscall(SYS_readlinkat, AT_FDCWD, link, path, (size_t)PATH_MAX);
    if (got <= 0) return;
    snprintf(path + got, sizeof path - (size_t)got, "/%s", name);
    meet(call, path);
}

/* ---- the calls: each does what its name says, later ---- */

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define OF_FD(type, call, as, arguments, ...) \
    type call arguments                       \
    {                                         \
        meet_fd(as, fd);                      \
        return NEXT(call)(__VA_ARGS__);       \
    }
#define OF_PATH(type, call, as, at, arguments, ...) \
    type call arguments                             \
    {                                               \
        meet_at(as, at, path);                      \
        return NEXT(call)(__VA_ARGS__);             \
    }
#define OPENS(call, at, arguments, ...)           \
    int call arguments                            \
    {                                             \
        va_list list;                             \
        va_start(list, flags);                    \
        const mode_t mode = va_arg(list, mode_t); \
        va_end(list);                             \
        meet_at("open", at, path);                \
        return NEXT(call)(__VA_ARGS__);           \
    }

OPENS(open, AT_FDCWD, (const char *path, int flags, ...), path, flags, mode)
OPENS(open64, AT_FDCWD, (const char *path, int flags, ...), path, flags, mode)
OPENS(openat, at, (int at, const char *path, int flags, ...), at, path, flags, mode)
OPENS(openat64, at, (int at, const char *path, int flags, ...), at, path, flags, mode)
OF_FD(int, fsync, "fsync", (int fd), fd)
OF_FD(int, fdatasync, "fsync", (int fd), fd)
OF_FD(int, ftruncate, "ftruncate", (int fd, off_t bytes), fd, bytes)
OF_FD(int, ftruncate64, "ftruncate", (int fd, off_t bytes), fd, bytes)
OF_FD(ssize_t, pread, "read", (int fd, void *to, size_t n, off_t from), fd, to, n, from)
OF_FD(ssize_t, pread64, "read", (int fd, void *to, size_t n, off_t from), fd, to, n, from)
OF_FD(ssize_t, pwrite, "write", (int fd, const void *of, size_t n, off_t to), fd, of, n, to)
OF_FD(ssize_t, pwrite64, "write", (int fd, const void *of, size_t n, off_t to), fd, of, n, to)
OF_PATH(int, mkdir, "mkdir", AT_FDCWD, (const char *path, mode_t mode), path, mode)
OF_PATH(int, mkdirat, "mkdir", at, (int at, const char *path, mode_t mode), at, path, mode)
OF_PATH(int, unlink, "unlink", AT_FDCWD, (const char *path), path)
OF_PATH(int, unlinkat, "unlink", at, (int at, const char *path, int flags), at, path, flags)
OF_PATH(int, remove, "unlink", AT_FDCWD, (const char *path), path)
OF_PATH(int, rename, "rename", AT_FDCWD, (const char *path, const char *to), path, to)
OF_PATH(int, renameat, "rename", at, (int at, const char *path, int to_at, const char *to), at,
        path, to_at, to)
OF_PATH(char *, realpath, "realpath", AT_FDCWD, (const char *path, char *out), path, out)
OF_PATH(DIR *, opendir, "opendir", AT_FDCWD, (const char *path), path)
OF_PATH(FILE *, fopen, "open", AT_FDCWD, (const char *path, const char *mode), path, mode)
OF_PATH(int, access, "stat", AT_FDCWD, (const char *path, int how), path, how)
OF_PATH(int, faccessat, "stat", at, (int at, const char *path, int how, int flags), at, path, how,
        flags)
OF_PATH(int, stat, "stat", AT_FDCWD, (const char *path, struct stat *out), path, out)
OF_PATH(int, lstat, "stat", AT_FDCWD, (const char *path, struct stat *out), path, out)
OF_PATH(int, fstatat, "stat", at, (int at, const char *path, struct stat *out, int flags), at, path,
        out, flags)

/* ---- memory ---- */

int munmap(void *base, size_t bytes)
{
    const char *folder = getenv("CAIRN_SLOW_FOLDER");
    char text[32];
    if (folder != NULL && bytes >= MEMORY_BYTES && syscall(SYS_gettid) == getpid()) {
        snprintf(text, sizeof text, "%zu bytes", bytes);
        note(folder, "munmap", text);
    }
    return NEXT(munmap)(base, bytes);
}
