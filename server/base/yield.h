/* A thread that works beside trainers and lets them go first. */
#ifndef CAIRN_BASE_YIELD_H
#define CAIRN_BASE_YIELD_H

/* The thread that calls, the lowest priority of CPU and of I/O that still gets some. */
void cairn_thread_yield(void);
/* It is in a hurry: as others of CPU again, where the system gives leave to come back (LimitNICE,
 * CAP_SYS_NICE). */
void cairn_thread_press(void);

#endif
