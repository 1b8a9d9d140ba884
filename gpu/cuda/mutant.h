/* Known bugs of order, seeded one at a time: cairn-home-seeds-mutant-<n> is built with
 * -DCAIRN_GPU_MUTANT=<n>, and the emulated card has to catch it (tests/gpu). A daemon is always built with
 * none, and every MUTANT(n) folds to 0 there. */
#ifndef CAIRN_GPU_CUDA_MUTANT_H
#define CAIRN_GPU_CUDA_MUTANT_H

#ifndef CAIRN_GPU_MUTANT
#define CAIRN_GPU_MUTANT 0
#endif
#define MUTANT(n) (CAIRN_GPU_MUTANT == (n))

/*  1  an event is recorded in the stream that waits for it
 *  2  kernels do not wait for what is being loaded
 *  3  an event is waited for before it is recorded
 *  4  copies out do not wait for the kernels
 *  5  the event behind a slice is not recorded
 *  6  the host does not wait for a slice
 *  7  the event behind a slice is recorded behind its kernels
 *  8  the event behind a slice is recorded before its copies to pinned memory
 *  9  kernels do not wait for what comes from pinned memory
 * 10  copies out wait for what was loaded, not for the kernels
 * 11  counts are zeroed beside the kernels that count
 * 12  memory is given out while it is being zeroed
 * 13  a run returns while its last slice is under way
 * 14  the event of another slice stands for that of what was loaded
 * 15  a run that fails returns while its works are under way
 * 16  a run that fails waits for its kernels alone, not for its copies out
 * 17  the event behind zeroed memory is recorded in another stream
 * 18  a list fills a slice that the list ahead of it has under way */
#define CAIRN_GPU_MUTANT_COUNT 18

#endif
