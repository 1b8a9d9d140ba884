#include "tests/support/tracer_call.h"

#include <elf.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <unistd.h>

/* The older ones are not there on every architecture. */
// clang-format off
#define CALL(name) { SYS_##name, #name }
static const struct {
    unsigned long number;
    const char *name;
} known[] = {
#ifdef SYS_open
    CALL(open), CALL(creat), CALL(mkdir), CALL(rmdir), CALL(rename), CALL(link), CALL(symlink), CALL(unlink),
#endif
#ifdef SYS_renameat
    CALL(renameat),
#endif
    CALL(openat), CALL(mkdirat), CALL(renameat2), CALL(linkat), CALL(symlinkat), CALL(unlinkat), CALL(close),
    CALL(fchmod), CALL(fchmodat), CALL(fallocate), CALL(ftruncate), CALL(flock), CALL(fsync), CALL(fdatasync),
    CALL(sync_file_range), CALL(pread64), CALL(write), CALL(writev), CALL(pwrite64), CALL(pwritev),
    CALL(pwritev2), CALL(copy_file_range), CALL(sendfile), CALL(sendto), CALL(sendmsg), CALL(sendmmsg),
};
// clang-format on

const char *tracer_call_name(unsigned long number)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].number == number) return known[i].name;
    return NULL;
}

bool tracer_call_syncs(const struct tracer_call *call, char *path_out, size_t path_bytes)
{
    char link[64];
    if (strcmp(call->name, "fsync") != 0 && strcmp(call->name, "fdatasync") != 0) return false;
    snprintf(link, sizeof link, "/proc/%d/fd/%d", (int)call->thread, (int)call->first);
    const ssize_t got = readlink(link, path_out, path_bytes - 1);
    path_out[got > 0 ? got : 0] = '\0';
    return true;
}

/* ---- a call that does not happen: the number of none; what it has returned ---- */

#if defined __x86_64__ || defined __aarch64__

bool tracer_call_skips(void)
{
    return true;
}

static void *request(unsigned long which)
{
    union { // ptrace takes what names a set of registers as a pointer
        unsigned long number;
        void *pointer;
    } as = { .number = which };
    return as.pointer;
}

static bool get_registers(pid_t thread, struct user_regs_struct *out)
{
    struct iovec all = { out, sizeof *out };
    return ptrace(PTRACE_GETREGSET, thread, request(NT_PRSTATUS), &all) == 0;
}

static void set_registers(pid_t thread, struct user_regs_struct *registers)
{
    struct iovec all = { registers, sizeof *registers };
    ptrace(PTRACE_SETREGSET, thread, request(NT_PRSTATUS), &all);
}

#endif
#if defined __x86_64__

void tracer_call_skip(pid_t thread)
{
    struct user_regs_struct registers;
    if (!get_registers(thread, &registers)) return; // it was killed
    registers.orig_rax = -1ULL;
    set_registers(thread, &registers);
}

void tracer_call_fail(pid_t thread, int error)
{
    struct user_regs_struct registers;
    if (!get_registers(thread, &registers)) return;
    registers.rax = -(unsigned long long)error;
    set_registers(thread, &registers);
}

#elif defined __aarch64__

void tracer_call_skip(pid_t thread)
{
    int none = -1;
    struct iovec number = { &none, sizeof none };
    ptrace(PTRACE_SETREGSET, thread, request(NT_ARM_SYSTEM_CALL), &number);
}

void tracer_call_fail(pid_t thread, int error)
{
    struct user_regs_struct registers;
    if (!get_registers(thread, &registers)) return;
    registers.regs[0] = -(unsigned long long)error;
    set_registers(thread, &registers);
}

#else

bool tracer_call_skips(void)
{
    return false;
}

void tracer_call_skip(pid_t thread)
{
    (void)thread;
}

void tracer_call_fail(pid_t thread, int error)
{
    (void)thread;
    (void)error;
}

#endif
