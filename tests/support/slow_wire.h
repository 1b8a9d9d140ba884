/* A wire that takes its time: what a router gets from one of its devices it passes on so many milliseconds
 * later. The kernel's own way, netem, is not in every kernel. Needs root and /dev/net/tun.
 *
 * There is one in a process. */
#ifndef CAIRN_SUPPORT_SLOW_WIRE_H
#define CAIRN_SUPPORT_SLOW_WIRE_H

/* `netns` forwards, and what comes by `device` waits. */
void slow_wire_begin(const char *netns, const char *device, int delay_ms);
/* From now on nothing waits; what still does is lost. */
void slow_wire_end(void);

#endif
