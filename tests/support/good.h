/* For calls of the C interface that must succeed: the test fails with cairn_error() of its thread. */
#ifndef CAIRN_SUPPORT_GOOD_H
#define CAIRN_SUPPORT_GOOD_H

#include <cairn.h>
#include <check.h>

#define good(call)                                                              \
    do {                                                                        \
        const cairn_status good_status = (call);                                \
        ck_assert_msg(good_status == CAIRN_OK, "%s: %s", #call, cairn_error()); \
    } while (0)

#endif
