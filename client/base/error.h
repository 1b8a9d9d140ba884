/* This thread's last sentence, which cairn_error returns. */
#ifndef CAIRN_CLIENT_BASE_ERROR_H
#define CAIRN_CLIENT_BASE_ERROR_H

#include <stdint.h>

#include "proto/base/status.h"
#include "proto/wire/messages.h"

/* Returns `status`, so that a function ends with `return cairn_client_fail(...)`. */
cairn_status cairn_client_fail(cairn_status status, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Adds a field in which the caller's spec differs from the job's. The rows are kept with the
 * sentence until the next failure. `row` is copied; a row that does not fit is left out. */
void cairn_client_differ(const Cairn__Difference *row);

#endif
