/* A thread that works beside trainers and lets them go first. */
#ifndef CAIRN_BASE_YIELD_H
#define CAIRN_BASE_YIELD_H

/* The thread that calls, for good: the lowest priority of CPU and of I/O that still gets some. */
void cairn_thread_yield(void);

#endif
