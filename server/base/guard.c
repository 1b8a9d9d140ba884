#include "server/base/guard.h"

#include <assert.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>

/* Where the thread's guarded run continues after a SIGBUS; NULL outside of a guarded run. */
static _Thread_local sigjmp_buf *volatile way_out;
static _Thread_local const void *volatile failed_at;

static void on_bus(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (way_out != NULL) {
        failed_at = info->si_addr;
        siglongjmp(*way_out, 1);
    }
    signal(number, SIG_DFL); // the instruction runs again, and ends the process as it should
}

cairn_status cairn_guard_install(void)
{
    struct sigaction action = { .sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_NODEFER };
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, NULL) == 0 ? CAIRN_OK : CAIRN_ERR_INTERNAL;
}

const void *cairn_guard_run(void (*run)(void *arg), void *arg)
{
    sigjmp_buf here;
    assert(way_out == NULL);
    if (sigsetjmp(here, 0) != 0) { // SA_NODEFER: the mask is what it was
        way_out = NULL;
        return failed_at;
    }
    way_out = &here;
    run(arg);
    way_out = NULL;
    return NULL;
}
