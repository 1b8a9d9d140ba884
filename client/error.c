#include <stdarg.h>
#include <stdio.h>

#include "client/session.h"

static _Thread_local char last[2048];

cairn_status cairn_client_fail(cairn_status status, const char *fmt, ...)
{
    va_list arguments;
    va_start(arguments, fmt);
    vsnprintf(last, sizeof last, fmt, arguments);
    va_end(arguments);
    return status;
}

const char *cairn_error(void)
{
    return last;
}
