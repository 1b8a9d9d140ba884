/* What nth_fail.c, preloaded, lets a program fail: the nth thing that it asks for, once. */
#ifndef CAIRN_SUPPORT_NTH_H
#define CAIRN_SUPPORT_NTH_H

#include <stdbool.h>
#include <stdint.h>

/* kind: "memory", "descriptors", "threads", "files" (what is done to one, with EIO). `of`: a part of the file
 * name of who asks; "program": the program itself; "": anybody. The number is counted from 1.
 * NTH_FAIL="KIND OF NUMBER" in the environment ("anybody" for "") does this when the program starts. */
void nth_arm(const char *kind, const char *of, uint64_t number);
/* True: it has failed. *asked_out: how often something of the kind was asked for; *by_out: where it
 * failed. */
bool nth_disarm(uint64_t *asked_out, void **by_out);
bool nth_fired(void);

#endif
