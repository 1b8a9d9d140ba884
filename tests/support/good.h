/* For calls of the C interface that must succeed: the test fails with cairn_error() of its thread. Check is
 * told of nothing else, which would be a system call each. */
#ifndef CAIRN_SUPPORT_GOOD_H
#define CAIRN_SUPPORT_GOOD_H

#include <cairn.h>
#include <check.h>

#define good(call)                                                                 \
    do {                                                                           \
        const cairn_status good_status = (call);                                   \
        if (good_status != CAIRN_OK) ck_abort_msg("%s: %s", #call, cairn_error()); \
    } while (0)

#endif
