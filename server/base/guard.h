/* Reading shared memory that another process made: a page that its host cannot supply (out of
 * memory, a limit of its control group) is a SIGBUS in the thread that reads, and must not end the
 * daemon.
 *
 * Any thread; a thread that runs guarded code must not block SIGBUS. Guarded code is left at the
 * instruction that failed, so it must take no locks and allocate nothing; whatever it was
 * writing is undefined afterwards. */
#ifndef CAIRN_BASE_GUARD_H
#define CAIRN_BASE_GUARD_H

#include "proto/base/status.h"

/* Installs the handler of SIGBUS for the process, once; a SIGBUS outside of guarded code ends the process
 * as before. CAIRN_ERR_INTERNAL: the system refused. */
CAIRN_MUST_CHECK cairn_status cairn_guard_install(void);

/* Runs run(arg). NULL: it came to its end. Else it met a SIGBUS at the address that is returned. */
CAIRN_MUST_CHECK const void *cairn_guard_run(void (*run)(void *arg), void *arg);

#endif
