/* Who stands at the wires of a network namespace and reads along: how often given bytes went by in clear.
 *
 * Bytes are looked for in each packet by itself, so what matters is to be shorter than one, or to repeat.
 * Needs root. One at a time in a process. */
#ifndef CAIRN_SUPPORT_OVERHEARD_H
#define CAIRN_SUPPORT_OVERHEARD_H

#include <stddef.h>

enum { OVERHEARD_MAX = 8 };

struct overheard {
    struct overheard_part {
        const void *bytes; /* borrowed until overheard_end */
        size_t count;
        unsigned long times; /* packets that have it */
    } parts[OVERHEARD_MAX];
    unsigned long packets, bytes; /* that were read */
    unsigned long missed;         /* packets that went by too fast */
};

/* From now on; the parts up to the first without bytes are looked for. */
void overheard_begin(struct overheard *heard, const char *netns);
void overheard_end(struct overheard *heard);

#endif
