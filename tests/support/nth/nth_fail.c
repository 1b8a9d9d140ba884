/* Preloaded into a program: the nth allocation, descriptor, thread or file call that it asks for fails, once.
 *
 *   nth_arm("memory", "libcairn.so", 17);    ... the scene ...    fired = nth_disarm(&asked);
 *
 * What the C library asks for on its own behalf never fails: those are asked by its inner names. A program
 * finds these two by dlsym; without the preload they are not there. */
#include "tests/support/nth/nth.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Of the C library; they are what the names below are usually for. */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

enum kind { NONE, MEMORY, DESCRIPTORS, THREADS, FILES };

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
    armed = strcmp(kind, "memory") == 0    ? MEMORY
            : strcmp(kind, "threads") == 0 ? THREADS
            : strcmp(kind, "files") == 0   ? FILES
                                           : DESCRIPTORS;
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
    return no_memory(CALLER) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return no_memory(CALLER) ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    return no_memory(CALLER) ? NULL : __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return no_memory(CALLER) ? NULL : __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    if (no_memory(CALLER)) return ENOMEM;
    *out = __libc_memalign(alignment, bytes);
    return *out != NULL ? 0 : ENOMEM;
}

char *strdup(const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = no_memory(CALLER) ? NULL : __libc_malloc(bytes);
    return copy != NULL ? memcpy(copy, text, bytes) : NULL;
}

char *strndup(const char *text, size_t most)
{
    const size_t length = strnlen(text, most);
    char *copy = no_memory(CALLER) ? NULL : __libc_malloc(length + 1);
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

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (no_memory(CALLER)) return MAP_FAILED;
    return NEXT(void *(*)(void *, size_t, int, int, int, off_t), "mmap")(at, bytes, protection,
                                                                         flags, fd, offset);
}

void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (no_memory(CALLER)) return MAP_FAILED;
    return NEXT(void *(*)(void *, size_t, int, int, int, off_t), "mmap")(at, bytes, protection,
                                                                         flags, fd, offset);
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
FILE_CALL(ssize_t, read, (int fd, void *to, size_t count), fd, to, count)
FILE_CALL(ssize_t, write, (int fd, const void *from, size_t count), fd, from, count)
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

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *argument)
{
    if (fails(THREADS, CALLER)) return EAGAIN;
    return NEXT(int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *),
                "pthread_create")(thread, attributes, run, argument);
}
