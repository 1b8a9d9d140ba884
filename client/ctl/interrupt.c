/* The sentence that a command says when a signal interrupts it. */
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ctl.h"

static char farewell[512];

static void on_signal(int signal)
{
    (void)signal;
    const ssize_t written = write(STDERR_FILENO, farewell, strlen(farewell));
    (void)written;
    _exit(130);
}

void cairn_ctl_on_interrupt(const char *fmt, ...)
{
    const struct sigaction action = { .sa_handler = on_signal };
    va_list arguments;
    va_start(arguments, fmt);
    vsnprintf(farewell, sizeof farewell, fmt, arguments);
    va_end(arguments);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}
