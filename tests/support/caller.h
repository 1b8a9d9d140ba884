/* A worker's blocking calls on a thread of their own, while the test's thread serves what they wait for.
 * One at a time in a process. */
#ifndef CAIRN_SUPPORT_CALLER_H
#define CAIRN_SUPPORT_CALLER_H

#include <stdbool.h>

void caller_begin(void (*made)(void));
/* It has returned: caller_end may follow, and has to. */
bool caller_is_over(void);
void caller_end(void);

#endif
