/* Measures how much processor the daemons of the bench's own cluster use while nothing happens:
 * processor time of all threads, in nanoseconds, so a loaded machine does not change the figure. */
#ifndef CAIRN_CTL_BENCH_IDLE_H
#define CAIRN_CTL_BENCH_IDLE_H

#include "client/ctl/local/local.h"

#define CAIRN_BENCH_IDLE_LIMIT 0.5 /* percent of a core, a daemon */

/* Processor time of a process so far, in seconds: of all its threads, including those that have
 * ended; below 0: the process is gone. */
double cairn_bench_used_s(pid_t pid);
/* Lets `seconds` go by and gives the percentage of one core that the busiest daemon has used.
 * Workers that are attached keep still meanwhile. False, and said: a daemon ended, or a signal
 * came. */
bool cairn_bench_idle(struct local *local, double seconds, double *percent_out);

#endif
