#include "client/base/error.h"

#include <cairn.h>

#include <stdarg.h>
#include <stdio.h>

#include "proto/base/text.h"

static _Thread_local char last[2048];

cairn_status cairn_client_fail(cairn_status status, const char *fmt, ...)
{
    va_list arguments;
    va_start(arguments, fmt);
    vsnprintf(last, sizeof last, fmt, arguments);
    va_end(arguments);
    cairn_text_mend(last, "\n"); // what it quotes may be anything
    return status;
}

const char *cairn_status_name(int status)
{
    return cairn_status_code_name(status);
}

const char *cairn_version(void)
{
    return CAIRN_VERSION;
}

const char *cairn_error(void)
{
    return last;
}
