/* What a test asks of the emulated card, besides the calls of the driver: by dlsym, of a library that is
 * open.
 *
 * The environment's CAIRN_EMULATOR is a list of the same: "seed=5,total=2G,launch_fails=3".
 *
 *   seed=N          the order of what may run, and of a launch's blocks
 *   total=BYTES     of each card's memory (8G); others=BYTES: taken by other processes. K, M, G are known.
 *                   There are addresses for a home of each card, however much that is
 *   devices=N       cards (1), at most 8
 *   driver=N        the version (13000)
 *   alloc_fails=N   the n-th cuMemCreate from now on (1: the next) is out of memory
 *   launch_fails=N  the n-th launch fails when it runs; then all calls of that card do
 *   result=N        what it fails with, instead; and so of those that follow, which break nothing:
 *   init_fails=1    cuInit; open_fails=N: the n-th context; load_fails=1: the kernels; call_fails=N: the n-th
 *                   call of a launch, which does not begin; copy_fails=N: likewise of a copy to the host
 *   ecc_at=N        the n-th copy, fill or launch to run meets an ECC error; then all calls of that card fail
 *   lost_at=N       that one loses the card: a new context does not bring it back
 *   copy_rate=N     bytes a second; 0: as fast as it goes
 *   NAME_fails=N    what the driver answers to each call of a kind, which does not begin: reserve
 *                   (addresses), map, read_only (access for reading alone), import, export, register (of
 *                   host memory); NAME_at=N: to the n-th of them from now on alone
 *   no_pinning=1    no host memory is pinned; 2: none but what the driver gives
 *   no_export=1     the cards have no descriptors for memory
 *   no_reach=1      network cards reach none of their memory (GPUDirect RDMA)
 *   unordered=1     what network cards write there is to be flushed before the card reads it; 2: and nothing
 *                   flushes it
 *   peers=1         they read each other's memory
 *   mps=1           contexts are shared by MPS; 2: the driver cannot say
 *   mode=N          the compute mode; 3: for one process alone
 *   captured=N      what is put into the stream with this handle becomes a graph, in the mode that forbids
 *                   other threads what could end that (CU_STREAM_CAPTURE_MODE_GLOBAL): misuse; 0: none is
 *   queues=N        of the hardware, for streams of the least priority: those that share one run in the
 *                   order of the calls, whatever the first waits for (CUDA_DEVICE_MAX_CONNECTIONS); 0: enough
 *   stuck=1         nothing runs but waits for words that are there, until this is 0
 *   peeks=1         a copy to the host of what is written meanwhile is no misuse: its bytes are poison,
 *                   for one who looks afterwards whether they are of use
 *   maps_wait=N     what maps, registers or unmaps memory waits while a stream of the card waits for a word;
 *                   for N ms: misuse, since whoever writes that word may be behind the call. 0: it does not
 *   count=1         misuse is counted, where else the process aborts
 *   quiet=1         nothing is said on stderr */
#ifndef CAIRN_TESTS_GPU_EMULATOR_CONTROL_H
#define CAIRN_TESTS_GPU_EMULATOR_CONTROL_H

#include <stdint.h>

/* Whether it was understood; of misuse so far; the last that was said, of misuse or of a call that failed
 * (static); what nobody has given back: handles, reservations, pinned memory, streams, events; waits that
 * kept a processor busy; the node that the host memory which was pinned last is to be of (-1: any); launches
 * that were put into streams, and gaps: those of them that came when the host knew all before of that card
 * to be over, so that it had nothing to do; events that were made; waits for events; flushes of what network
 * cards wrote. */
// clang-format off
#define CAIRN_EMULATOR_CONTROLS(control)                      \
    control(int, cairn_emulator_set, (const char *options))   \
    control(uint64_t, cairn_emulator_complaints, (void))      \
    control(const char *, cairn_emulator_words, (void))       \
    control(uint64_t, cairn_emulator_left, (void))            \
    control(uint64_t, cairn_emulator_spins, (void))           \
    control(int, cairn_emulator_pinned_node, (void))          \
    control(uint64_t, cairn_emulator_launches, (void))        \
    control(uint64_t, cairn_emulator_gaps, (void))            \
    control(uint64_t, cairn_emulator_events, (void))          \
    control(uint64_t, cairn_emulator_waits, (void))           \
    control(uint64_t, cairn_emulator_flushes, (void))
// clang-format on

#endif
