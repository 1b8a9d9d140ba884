/* The wall clock, which may jump: it is set by hand, by NTP after a start, or is lost with a battery.
 *
 * Nothing that must be right goes by it: leases, deadlines and intervals go by the loop's clock, and which
 * snapshot is newest by its version. server/README.md lists what is left. */
#ifndef CAIRN_BASE_WALL_H
#define CAIRN_BASE_WALL_H

#include <stdbool.h>
#include <stdint.h>

#define CAIRN_WALL_SKEW_S     60 /* a smaller step of the clock is no jump */
#define CAIRN_WALL_JUMP_BYTES 48

/* All zero: nobody has looked. */
struct cairn_wall {
    bool begun, jumped;
    int64_t unix_s;                 /* at the last look */
    uint64_t steady_s, jumped_at_s; /* of a clock that does not jump: then, and at the last jump */
};

/* The clock shows unix_s at the time steady_s of one that does not jump. Returns by how much it jumped since
 * the last look; 0: it did not. */
int64_t cairn_wall_look(struct cairn_wall *wall, int64_t unix_s, uint64_t steady_s);
/* It may have jumped before we looked. */
void cairn_wall_doubt(struct cairn_wall *wall);
/* For how long it has been without a jump; UINT64_MAX: none was seen. */
uint64_t cairn_wall_sound_s(const struct cairn_wall *wall);
/* "1 day ahead", "10 years back". */
void cairn_wall_jump_text(int64_t jump_s, char out[CAIRN_WALL_JUMP_BYTES]);

/* Looks at both clocks. A jump is logged, and in words in `out` (true). */
bool cairn_wall_watch(struct cairn_wall *wall, char out[CAIRN_WALL_JUMP_BYTES]);
/* The two clocks. 0: the wall clock stands before 1970. */
uint64_t cairn_wall_unix_s(void);
uint64_t cairn_wall_steady_s(void); /* goes on while the host sleeps */

#endif
