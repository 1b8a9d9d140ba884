/* A point at which a daemon stops itself: right behind a line of its log that has a certain text. Preloaded
 * into daemons with LD_PRELOAD (point_stop.c); CAIRN_POINT is a file with a struct point, which the test and
 * the daemons map. The first daemon that comes to the line stops, as by SIGSTOP, in the thread that says
 * it, before it does anything else; its parent sees that (WUNTRACED) and lets it go on with SIGCONT. */
#ifndef CAIRN_SUPPORT_POINTS_POINT_H
#define CAIRN_SUPPORT_POINTS_POINT_H

#include <stdatomic.h>

enum point_state { POINT_IDLE, POINT_ARMED, POINT_TAKEN };

struct point {
    _Atomic int state; /* armed by the test, when `text` is there */
    _Atomic int pid;   /* of the daemon that has stopped; 0: none yet */
    char text[128];
};

#endif
