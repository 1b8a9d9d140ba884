/* The same numbers from the same seed, on every machine. */
#ifndef CAIRN_SUPPORT_RANDOM_H
#define CAIRN_SUPPORT_RANDOM_H

#include <stdint.h>

static uint64_t random_state; /* the seed, to begin with */

/* splitmix64 */
static inline uint64_t random_next(void)
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t random_below(uint64_t limit)
{
    return random_next() % limit;
}

#endif
