/* Tells systemd how the daemon is (sd_notify(3)): datagrams to $NOTIFY_SOCKET, by hand, because
 * libsystemd brings a dozen libraries for these few lines. Without a supervisor all calls do
 * nothing. A failure to tell is not an error of the daemon. Any thread. */
#ifndef CAIRN_BASE_NOTIFY_H
#define CAIRN_BASE_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

/* READY=1 with a status line; STOPPING=1; STATUS=...; WATCHDOG=1. True if a supervisor was told. */
bool cairn_notify_ready(const char *status);
bool cairn_notify_stopping(void);
bool cairn_notify_status(const char *status);
bool cairn_notify_watchdog(void);

/* How often the supervisor wants WATCHDOG=1 at least; 0 = it does not watch this process. Ping at
 * half of it. */
uint64_t cairn_notify_watchdog_ms(void);

#endif
