/* For calls of the C interface that must succeed, or fail as is said: else the test fails with cairn_error()
 * of its thread. Check is told of nothing else, which would be a system call each. */
#ifndef CAIRN_SUPPORT_GOOD_H
#define CAIRN_SUPPORT_GOOD_H

#include <cairn.h>
#include <check.h>
#include <string.h>

#define good(call)                                                                 \
    do {                                                                           \
        const cairn_status good_status = (call);                                   \
        if (good_status != CAIRN_OK) ck_abort_msg("%s: %s", #call, cairn_error()); \
    } while (0)

#define fails(call, expected, word)                                                 \
    do {                                                                            \
        const cairn_status fail_status = (call);                                    \
        if (fail_status != (expected) || strstr(cairn_error(), (word)) == NULL)     \
            ck_abort_msg("%s gave %d: %s", #call, (int)fail_status, cairn_error()); \
    } while (0)

#endif
