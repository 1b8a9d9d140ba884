/* Nodes of a host's memory: which one a device is next to, and threads and memory that are to be there.
 *
 * All of it is a matter of speed: where the kernel does not say, or will not, everything stays as it was. So
 * does what an operator chose: a thread keeps to the processors that it may run on, and a policy for memory
 * that was set before (numactl) is left alone. Any thread. */
#ifndef CAIRN_BASE_NUMA_H
#define CAIRN_BASE_NUMA_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

#define CAIRN_NUMA_NONE (-1) /* no node: what is called with it does nothing */

/* Where the kernel tells of devices and nodes: "/sys". A test has its own, before anything is called. */
extern const char *cairn_numa_sysfs;

/* The node that a PCI device is next to, named as CUDA does: "0000:3B:00.0". CAIRN_NUMA_NONE: the kernel
 * knows of none. */
int cairn_numa_of_pci(const char *pci);

struct cairn_numa_before {
    cpu_set_t processors;
    bool is_moved, is_preferring;
};

/* Until cairn_numa_return the calling thread runs on the node's processors, and memory that it touches first
 * lies there while there is some. Threads that it starts meanwhile stay so. False, with errno, and before_out
 * is set all the same: it runs where it ran (ENOENT: it may run on none of the node's processors). */
bool cairn_numa_go(int node, struct cairn_numa_before *before_out);
void cairn_numa_return(const struct cairn_numa_before *before);

/* Memory that begins at a page moves to the node, as far as it is this process's alone, and what of it is
 * touched later comes from there. */
void cairn_numa_move(void *memory, size_t bytes, int node);

#endif
