/* What PyTorch makes of as many bytes, on the same disk and in the same run. */
#ifndef CAIRN_CTL_BENCH_SNAPSHOT_TORCH_H
#define CAIRN_CTL_BENCH_SNAPSHOT_TORCH_H

#include "client/ctl/local/local.h"

struct cairn_bench_torch {
    double save_s; /* torch.save and fsync of all, by one process; 0: there is no torch */
    double
        stall_s; /* so long async_save of torch.distributed.checkpoint holds its callers up; 0: none */
    double async_s; /* until it has written all */
};

/* `elems` of f32: of parameters, and of both moments. torch.save by one process, the median of three;
 * async_save by `workers` processes at a time, each of which has its part (the second time, which finds its
 * memory). python3 is that of PATH, else /usr/bin/python3. What is not there is said. False: a signal
 * came. */
bool cairn_bench_torch_measure(struct local *local, uint64_t elems, uint32_t workers,
                               struct cairn_bench_torch *out);

/* A script by `count` processes at a time, which is given a folder, `elems`, `count` and which of them it is,
 * and prints two numbers: the greatest of each. 1: they are there; 0: not; -1: a signal came. */
int cairn_bench_torch_run(struct local *local, const char *script, uint64_t elems, uint32_t count,
                          double numbers_out[static 2]);

#endif
