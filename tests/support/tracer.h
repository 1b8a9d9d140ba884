/* The system calls of a process that have to do with a file or tell somebody something: each is seen before
 * it happens, in the order in which they come, whichever thread it is. There the process can be killed, or
 * the call fail.
 *
 *   tracer_attach(&tracer, shard, judge, NULL);
 *   cluster_cli_begin(&cluster, &command, "snapshot", "create", "kept", NULL);
 *   status = tracer_await(&tracer, command.pid, CLUSTER_WAIT_MS);
 *   tracer_detach(&tracer);
 *
 * Who traces is the thread that calls these functions. The process stops at each call until that thread is
 * in one of them, so that thread does nothing else for long. It reaps what ends while it waits: of the test's
 * children none may end then but the traced one and the one that is waited for. However the test ends, the
 * process goes on untraced. What fails, fails the test (Check). */
#ifndef CAIRN_SUPPORT_TRACER_H
#define CAIRN_SUPPORT_TRACER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "tests/support/tracer_call.h"

/* What becomes of a call: 0, it happens; an errno, it fails with that and does not happen; or the process is
 * killed before it, after which there are no more. */
enum { TRACER_KILLS = -1 };
typedef int tracer_judge_fn(void *context, const struct tracer_call *call);

enum { TRACER_THREADS_MAX = 256 };
struct tracer {
    pid_t process;
    int status; /* of its exit; 128 + N: killed by signal N; -1: it lives */
    tracer_judge_fn *judge;
    void *context;
    size_t thread_count;
    struct tracer_thread {
        pid_t id;
        bool watched; /* it has stopped once: from then on it stops at each call */
        int error;    /* with which the call fails that it is in; 0: that happens */
    } threads[TRACER_THREADS_MAX];
};

/* This process may trace its children, on a machine whose calls can be skipped; else a line that begins with
 * "skip:" says why not. */
bool tracer_works(void);

/* A child that runs. Returns when none of its threads comes by unseen. */
void tracer_attach(struct tracer *tracer, pid_t process, tracer_judge_fn *judge, void *context);
/* A program, with its output appended to the file log_path. It dies with the test. */
void tracer_start(struct tracer *tracer, const char *const *argv, const char *log_path,
                  tracer_judge_fn *judge, void *context);

/* Until that child has ended, which is the traced one or another; its status as above, -1: it still runs
 * after timeout_ms. */
int tracer_await(struct tracer *tracer, pid_t child, int timeout_ms);

/* If it lives, it goes on untraced; else it is reaped, and `status` says how it ended. */
void tracer_detach(struct tracer *tracer);

#endif
