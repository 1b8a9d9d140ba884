/* Measures how long PyTorch takes to save as many bytes, on the same disk and in the same run. */
#ifndef CAIRN_CTL_BENCH_SNAPSHOT_TORCH_H
#define CAIRN_CTL_BENCH_SNAPSHOT_TORCH_H

#include "client/ctl/local/local.h"

struct cairn_bench_torch {
    double save_s; /* torch.save and fsync of all, by one process; 0: there is no torch */
    double
        stall_s; /* so long async_save of torch.distributed.checkpoint holds its callers up; 0: none */
    double async_s; /* until it has written all */
};

/* Saves `elems` of f32 of parameters, and as many of both moments. torch.save by one process, the
 * median of three; async_save by `workers` processes at a time, each of which has its part (the
 * second time, which finds its memory). python3 is that of PATH, else /usr/bin/python3. If python3
 * or a module is missing, that is said. False: a signal came. */
bool cairn_bench_torch_measure(struct local *local, uint64_t elems, uint32_t workers,
                               struct cairn_bench_torch *out);

/* Runs a script in `count` processes at a time; each is given a folder, `elems`, `count` and its
 * own index, and prints two numbers. Gives the greatest of each. 1: they are there; 0: not; -1: a
 * signal came. */
int cairn_bench_torch_run(struct local *local, const char *script, uint64_t elems, uint32_t count,
                          double numbers_out[static 2]);

#endif
