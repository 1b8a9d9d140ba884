/* Memory of a card and of processes, for benches. One thread. */
#ifndef CAIRN_CTL_BENCH_CARD_H
#define CAIRN_CTL_BENCH_CARD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Bytes of the card that nobody has taken now; its device as of cairn_home_open_cuda. A process of its own
 * asks: a context is not inherited by those that a bench forks afterwards, and what it takes itself is the
 * same each time. False, and said on stderr: there is no such card. */
bool cairn_bench_card_free(const char *device, uint64_t *bytes_out);
/* Bytes of host memory that a process has now, what it shares included; 0: there is no such process. */
uint64_t cairn_bench_process_bytes(pid_t pid);
/* The most that it had since it began, or since forget. */
uint64_t cairn_bench_process_peak(pid_t pid);
void cairn_bench_process_peak_forget(pid_t pid);

#endif
