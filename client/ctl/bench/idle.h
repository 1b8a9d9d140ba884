/* What the daemons of a cluster of the bench's own use of a processor while nothing happens: processor time,
 * in nanoseconds and of all threads, so a loaded machine does not change it. */
#ifndef CAIRN_CTL_BENCH_IDLE_H
#define CAIRN_CTL_BENCH_IDLE_H

#include "client/ctl/local/local.h"

#define CAIRN_BENCH_IDLE_LIMIT 0.5 /* percent of a core, a daemon */

/* Processor time of a process so far, in seconds: of all threads, those that have ended included; below 0: it
 * is no more. */
double cairn_bench_used_s(pid_t pid);
/* Lets `seconds` go by and gives the percentage of one core that the busiest daemon has used. Whoever is
 * attached keeps still meanwhile. False, and said: a daemon ended, or a signal came. */
bool cairn_bench_idle(struct local *local, double seconds, double *percent_out);

#endif
