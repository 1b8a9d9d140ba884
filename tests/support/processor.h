/* What the kernel counts of processors, for a process or one thread of it: how long it ran, and how long it
 * could have run but others did. */
#ifndef CAIRN_SUPPORT_PROCESSOR_H
#define CAIRN_SUPPORT_PROCESSOR_H

#include <stdint.h>
#include <sys/types.h>

struct processor_time {
    uint64_t ran_ns, waited_ns;
};

/* A thread that has ended counts nothing. */
struct processor_time processor_time_of_thread(pid_t pid, pid_t thread);
/* The sum of all threads that there are; of a process that has ended, nothing. */
struct processor_time processor_time(pid_t pid);

#endif
