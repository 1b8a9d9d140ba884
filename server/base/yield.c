#include "server/base/yield.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define YIELD_NICE 19

/* linux/ioprio.h, which not every system has. */
#define IOPRIO_WHO_PROCESS 1
#define IOPRIO_LOWEST      ((2 << 13) | 7) /* of those who get some: best effort, 7 */

static void set_nice(int nice)
{
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), nice); // of the thread alone
}

void cairn_thread_press(void)
{
    set_nice(0);
}

void cairn_thread_yield(void)
{
    // Not SCHED_IDLE: where trainers take all cores, that gets next to nothing.
    set_nice(YIELD_NICE);
    (void)syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_LOWEST);
}
