/* strace(1) at a process that runs: which system calls something takes, and one that does not happen, because
 * the process is killed before it or is told that it failed. strace counts the calls of each thread. */
#ifndef CAIRN_SUPPORT_STRACE_H
#define CAIRN_SUPPORT_STRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* The n-th call of that name by one thread. */
struct strace_point {
    char call[24];
    unsigned nth;
};

/* It is installed and may trace; else a line that begins with "skip:" says why not. */
bool strace_works(void);

/* Every call of `calls`, with the paths of descriptors, goes to the file `log`. If `fault` ("signal=SIGKILL",
 * "error=EIO") is not NULL, it happens at the point. Returns when all threads are traced, 0 if
 * the process met the point before that and has ended; to be ended by strace_end. */
pid_t strace_attach(pid_t victim, const char *calls, const struct strace_point *point,
                    const char *fault, const char *log);
/* The process, if it lives, goes on untraced. */
void strace_end(pid_t strace);
/* The same words before a program: argv gets at most STRACE_WORDS of them, which point to `words`. */
enum { STRACE_WORDS = 9 };
struct strace_words {
    char trace[256], inject[128];
};
size_t strace_words(struct strace_words *words, const char *calls, const struct strace_point *point,
                    const char *fault, const char *log, const char *argv[STRACE_WORDS]);

/* What a log has: each point once, in the order in which they came. Their count. */
size_t strace_points(const char *log, struct strace_point *out, size_t room);

#endif
