/* Preloaded into a program: the nth allocation, descriptor, thread or call for a file or socket that it makes
 * fails, once.
 *
 *   nth_arm("memory", "libcairn.so", 17);    ... the scene ...    fired = nth_disarm(&asked);
 *
 * A program finds these two by dlsym; without the preload they are not there. */
#include "tests/support/nth/nth.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { NONE, MEMORY, DESCRIPTORS, THREADS, FILES, SOCKETS, POLLS, KINDS };
static const char *const kind_names[KINDS] = { "",      "memory",  "descriptors", "threads",
                                               "files", "sockets", "polls" };

static _Atomic int armed;      /* enum kind */
static _Atomic uint64_t asked; /* of that kind, since it was armed */
static _Atomic uint64_t nth;   /* that fails: from 1 */
static _Atomic bool fired;
static uintptr_t begin_of, end_of; /* who asks: code between; all of it: 0 to UINTPTR_MAX */
static void *fired_by;

/* The program itself has an empty name here. */
static int find_object(struct dl_phdr_info *info, size_t bytes, void *name)
{
    (void)bytes;
    const bool is_program = info->dlpi_name[0] == '\0' && strcmp(name, "program") == 0;
    if (!is_program && strstr(info->dlpi_name, name) == NULL) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        if (header->p_type != PT_LOAD || (header->p_flags & PF_X) == 0) continue;
        begin_of = info->dlpi_addr + header->p_vaddr;
        end_of = begin_of + header->p_memsz;
    }
    return 1;
}

void nth_arm(const char *kind, const char *of, uint64_t number)
{
    begin_of = 0, end_of = UINTPTR_MAX;
    if (of[0] != '\0' && dl_iterate_phdr(find_object, (void *)(uintptr_t)of) == 0) abort();
    asked = 0;
    nth = number;
    fired = false;
    fired_by = NULL;
    for (int i = NONE + 1; i < KINDS; i++)
        if (strcmp(kind, kind_names[i]) == 0) armed = i;
}

/* For a program that does not know of this: NTH_FAIL="memory program 17". It says so when that has failed. */
static bool says;

__attribute__((constructor)) static void arm_by_environment(void)
{
    char kind[16], of[64];
    unsigned long number;
    const char *text = getenv("NTH_FAIL");
    if (text == NULL || sscanf(text, "%15s %63s %lu", kind, of, &number) != 3) return;
    unsetenv("NTH_FAIL");
    says = true;
    nth_arm(kind, strcmp(of, "anybody") == 0 ? "" : of, number);
}

static void say_failed(void *caller)
{
    char text[160];
    Dl_info where = { 0 };
    dladdr(caller, &where);
    const int length = snprintf(text, sizeof text, "nth: failed for %s+%lx\n",
                                where.dli_fname != NULL ? where.dli_fname : "?",
                                (unsigned long)((char *)caller - (char *)where.dli_fbase));
    (void)!syscall(SYS_write, 2, text, (size_t)length);
}

bool nth_disarm(uint64_t *asked_out, void **by_out)
{
    armed = NONE;
    *asked_out = asked;
    *by_out = fired_by;
    return fired;
}

bool nth_fired(void)
{
    return fired;
}

static bool fails(enum kind kind, void *caller)
{
    if (armed != (int)kind || (uintptr_t)caller < begin_of || (uintptr_t)caller >= end_of)
        return false;
    if (++asked != nth) return false;
    fired_by = caller;
    fired = true;
    if (says) say_failed(caller);
    return true;
}

#define CALLER __builtin_return_address(0)

/* ---- memory ---- */

static bool no_memory(void *caller)
{
    if (!fails(MEMORY, caller)) return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes)
{
    return no_memory(CALLER) ? NULL : nth_allocate(bytes, false, CALLER);
}

void *calloc(size_t count, size_t bytes)
{
    size_t all;
    if (__builtin_mul_overflow(count, bytes, &all)) all = SIZE_MAX;
    return no_memory(CALLER) ? NULL : nth_allocate(all, true, CALLER);
}

void *realloc(void *memory, size_t bytes)
{
    return no_memory(CALLER) ? NULL : nth_reallocate(memory, bytes, CALLER);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return no_memory(CALLER) ? NULL : nth_allocate_aligned(alignment, bytes, CALLER);
}

void *memalign(size_t alignment, size_t bytes)
{
    return no_memory(CALLER) ? NULL : nth_allocate_aligned(alignment, bytes, CALLER);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    void *memory = no_memory(CALLER) ? NULL : nth_allocate_aligned(alignment, bytes, CALLER);
    if (memory == NULL) return ENOMEM;
    *out = memory;
    return 0;
}

char *strdup(const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = no_memory(CALLER) ? NULL : nth_allocate(bytes, false, CALLER);
    return copy != NULL ? memcpy(copy, text, bytes) : NULL;
}

char *strndup(const char *text, size_t most)
{
    const size_t length = strnlen(text, most);
    char *copy = no_memory(CALLER) ? NULL : nth_allocate(length + 1, false, CALLER);
    if (copy == NULL) return NULL;
    copy[length] = '\0';
    return memcpy(copy, text, length);
}

/* ---- what is not of the heap: by the next definition of the name ---- */

#define NEXT(type, name) ((type)dlsym(RTLD_NEXT, name))

static bool no_descriptor(void *caller)
{
    if (!fails(DESCRIPTORS, caller)) return false;
    errno = EMFILE;
    return true;
}

#define MMAP(name)                                                                      \
    void *name(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) \
    {                                                                                   \
        if (no_memory(CALLER)) return MAP_FAILED;                                       \
        void *made = NEXT(void *(*)(void *, size_t, int, int, int, off_t),              \
                          "mmap")(at, bytes, protection, flags, fd, offset);            \
        if (made != MAP_FAILED && (flags & MAP_FIXED) == 0) nth_mapped((int64_t)bytes); \
        return made;                                                                    \
    }
MMAP(mmap)
MMAP(mmap64)

int munmap(void *at, size_t bytes)
{
    const int error = NEXT(int (*)(void *, size_t), "munmap")(at, bytes);
    if (error == 0) nth_mapped(-(int64_t)bytes);
    return error;
}

int socket(int domain, int type, int protocol)
{
    return no_descriptor(CALLER) ? -1
                                 : NEXT(int (*)(int, int, int), "socket")(domain, type, protocol);
}

int socketpair(int domain, int type, int protocol, int pair[2])
{
    return no_descriptor(CALLER)
               ? -1
               : NEXT(int (*)(int, int, int, int *), "socketpair")(domain, type, protocol, pair);
}

int accept4(int fd, struct sockaddr *restrict address, socklen_t *restrict bytes, int flags)
{
    return no_descriptor(CALLER) ? -1
                                 : NEXT(int (*)(int, struct sockaddr *, socklen_t *, int),
                                        "accept4")(fd, address, bytes, flags);
}

int eventfd(unsigned count, int flags)
{
    return no_descriptor(CALLER) ? -1 : NEXT(int (*)(unsigned, int), "eventfd")(count, flags);
}

int epoll_create1(int flags)
{
    return no_descriptor(CALLER) ? -1 : NEXT(int (*)(int), "epoll_create1")(flags);
}

int pipe2(int pair[2], int flags)
{
    return no_descriptor(CALLER) ? -1 : NEXT(int (*)(int *, int), "pipe2")(pair, flags);
}

int memfd_create(const char *name, unsigned flags)
{
    return no_descriptor(CALLER)
               ? -1
               : NEXT(int (*)(const char *, unsigned), "memfd_create")(name, flags);
}

int dup(int fd)
{
    return no_descriptor(CALLER) ? -1 : NEXT(int (*)(int), "dup")(fd);
}

/* What is of a file, with EIO. */
static bool no_file(void *caller)
{
    if (!fails(FILES, caller)) return false;
    errno = EIO;
    return true;
}

static mode_t mode_of(int flags, va_list *list)
{
    return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(*list, mode_t) : 0;
}

#define OPEN(name)                                                                     \
    int name(const char *path, int flags, ...)                                         \
    {                                                                                  \
        va_list list;                                                                  \
        va_start(list, flags);                                                         \
        const mode_t mode = mode_of(flags, &list);                                     \
        va_end(list);                                                                  \
        return no_descriptor(CALLER) || no_file(CALLER)                                \
                   ? -1                                                                \
                   : NEXT(int (*)(const char *, int, ...), "open")(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define FILE_CALL(type, name, parameters, ...)                                      \
    type name parameters                                                            \
    {                                                                               \
        return no_file(CALLER) ? -1 : NEXT(type(*) parameters, #name)(__VA_ARGS__); \
    }
FILE_CALL(ssize_t, pread, (int fd, void *to, size_t count, off_t at), fd, to, count, at)
FILE_CALL(ssize_t, pread64, (int fd, void *to, size_t count, off_t at), fd, to, count, at)
FILE_CALL(ssize_t, pwrite, (int fd, const void *from, size_t count, off_t at), fd, from, count, at)
FILE_CALL(ssize_t, pwrite64, (int fd, const void *from, size_t count, off_t at), fd, from, count,
          at)
FILE_CALL(int, fsync, (int fd), fd)
FILE_CALL(int, fdatasync, (int fd), fd)
FILE_CALL(int, ftruncate, (int fd, off_t bytes), fd, bytes)
FILE_CALL(int, ftruncate64, (int fd, off_t bytes), fd, bytes)
FILE_CALL(int, fstat, (int fd, struct stat *out), fd, out)
FILE_CALL(int, fstat64, (int fd, struct stat64 *out), fd, out)
FILE_CALL(int, mkdir, (const char *path, mode_t mode), path, mode)
FILE_CALL(int, mkdirat, (int folder, const char *path, mode_t mode), folder, path, mode)
FILE_CALL(int, rename, (const char *from, const char *to), from, to)
FILE_CALL(int, renameat, (int a, const char *from, int b, const char *to), a, from, b, to)
FILE_CALL(int, linkat, (int a, const char *from, int b, const char *to, int flags), a, from, b, to,
          flags)
FILE_CALL(int, unlink, (const char *path), path)
FILE_CALL(int, stat, (const char *restrict path, struct stat *restrict out), path, out)
FILE_CALL(int, lstat, (const char *restrict path, struct stat *restrict out), path, out)
FILE_CALL(int, stat64, (const char *restrict path, struct stat64 *restrict out), path, out)
FILE_CALL(int, lstat64, (const char *restrict path, struct stat64 *restrict out), path, out)
FILE_CALL(int, fstatat,
          (int folder, const char *restrict path, struct stat *restrict out, int flags), folder,
          path, out, flags)
FILE_CALL(int, fstatfs, (int fd, struct statfs *out), fd, out)
FILE_CALL(int, access, (const char *path, int mode), path, mode)
FILE_CALL(int, faccessat, (int folder, const char *path, int mode, int flags), folder, path, mode,
          flags)
FILE_CALL(int, chmod, (const char *path, mode_t mode), path, mode)
FILE_CALL(int, fchmod, (int fd, mode_t mode), fd, mode)
FILE_CALL(int, flock, (int fd, int how), fd, how)
FILE_CALL(int, fallocate, (int fd, int mode, off_t at, off_t bytes), fd, mode, at, bytes)
FILE_CALL(int, link, (const char *from, const char *to), from, to)
FILE_CALL(int, unlinkat, (int folder, const char *path, int flags), folder, path, flags)

#define OPEN_AT(name)                                                       \
    int name(int folder, const char *path, int flags, ...)                  \
    {                                                                       \
        va_list list;                                                       \
        va_start(list, flags);                                              \
        const mode_t mode = mode_of(flags, &list);                          \
        va_end(list);                                                       \
        return no_file(CALLER) ? -1                                         \
                               : NEXT(int (*)(int, const char *, int, ...), \
                                      "openat")(folder, path, flags, mode); \
    }
OPEN_AT(openat)
OPEN_AT(openat64)

#define FILE_OPEN(type, name, parameters, ...)                       \
    type *name parameters                                            \
    {                                                                \
        return no_descriptor(CALLER) || no_file(CALLER)              \
                   ? NULL                                            \
                   : NEXT(type * (*)parameters, #name)(__VA_ARGS__); \
    }
FILE_OPEN(FILE, fopen, (const char *restrict path, const char *restrict mode), path, mode)
FILE_OPEN(DIR, opendir, (const char *path), path)
FILE_OPEN(DIR, fdopendir, (int fd), fd)

/* Of a lock on a file; what else is asked by fcntl does not fail. */
#define FCNTL(name)                                                        \
    int name(int fd, int command, ...)                                     \
    {                                                                      \
        va_list list;                                                      \
        va_start(list, command);                                           \
        void *argument = va_arg(list, void *);                             \
        va_end(list);                                                      \
        const bool is_lock = command == F_SETLK || command == F_GETLK;     \
        if (is_lock && no_file(CALLER)) return -1;                         \
        return NEXT(int (*)(int, int, ...), #name)(fd, command, argument); \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

/* ---- sockets ---- */

static bool no_socket(void *caller, int error)
{
    if (!fails(SOCKETS, caller)) return false;
    errno = error;
    return true;
}

static bool is_socket(int fd)
{
    struct stat status;
    return NEXT(int (*)(int, struct stat *), "fstat")(fd, &status) == 0 && S_ISSOCK(status.st_mode);
}

/* Of a file or of a socket. */
#define EITHER_CALL(name, parameters, ...)                                                 \
    ssize_t name parameters                                                                \
    {                                                                                      \
        if (no_file(CALLER)) return -1;                                                    \
        if (armed == SOCKETS && is_socket(fd) && no_socket(CALLER, ECONNRESET)) return -1; \
        return NEXT(ssize_t(*) parameters, #name)(__VA_ARGS__);                            \
    }
EITHER_CALL(read, (int fd, void *to, size_t count), fd, to, count)
EITHER_CALL(write, (int fd, const void *from, size_t count), fd, from, count)
EITHER_CALL(writev, (int fd, const struct iovec *list, int count), fd, list, count)

#define SOCKET_CALL(type, error, name, parameters, ...)                                      \
    type name parameters                                                                     \
    {                                                                                        \
        return no_socket(CALLER, error) ? -1 : NEXT(type(*) parameters, #name)(__VA_ARGS__); \
    }
SOCKET_CALL(ssize_t, ECONNRESET, send, (int fd, const void *from, size_t bytes, int flags), fd,
            from, bytes, flags)
SOCKET_CALL(ssize_t, ECONNRESET, sendmsg, (int fd, const struct msghdr *message, int flags), fd,
            message, flags)
SOCKET_CALL(ssize_t, ECONNRESET, recv, (int fd, void *to, size_t bytes, int flags), fd, to, bytes,
            flags)
SOCKET_CALL(ssize_t, ECONNRESET, recvmsg, (int fd, struct msghdr *message, int flags), fd, message,
            flags)
SOCKET_CALL(int, ECONNREFUSED, connect, (int fd, const struct sockaddr *address, socklen_t bytes),
            fd, address, bytes)
SOCKET_CALL(int, EADDRINUSE, bind, (int fd, const struct sockaddr *address, socklen_t bytes), fd,
            address, bytes)
SOCKET_CALL(int, EADDRINUSE, listen, (int fd, int waiting), fd, waiting)
SOCKET_CALL(int, ENOBUFS, getsockname,
            (int fd, struct sockaddr *restrict address, socklen_t *restrict bytes), fd, address,
            bytes)
SOCKET_CALL(int, ENOTCONN, getpeername,
            (int fd, struct sockaddr *restrict address, socklen_t *restrict bytes), fd, address,
            bytes)
SOCKET_CALL(int, ENOBUFS, setsockopt,
            (int fd, int level, int name, const void *value, socklen_t bytes), fd, level, name,
            value, bytes)

int epoll_ctl(int epoll, int what, int fd, struct epoll_event *event)
{
    if (fails(POLLS, CALLER)) {
        errno = ENOMEM;
        return -1;
    }
    return NEXT(int (*)(int, int, int, struct epoll_event *), "epoll_ctl")(epoll, what, fd, event);
}

/* ---- threads ---- */

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *argument)
{
    if (fails(THREADS, CALLER)) return EAGAIN;
    return NEXT(int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *),
                "pthread_create")(thread, attributes, run, argument);
}
