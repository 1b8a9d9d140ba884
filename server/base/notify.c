#include "server/base/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

// A path, or "@name" for a name that is in no folder.
static bool supervisor_address(struct sockaddr_un *addr_out, socklen_t *addr_bytes_out)
{
    const char *path = getenv("NOTIFY_SOCKET");
    if (path == NULL || (path[0] != '/' && path[0] != '@')) return false;
    const size_t length = strlen(path);
    if (length < 2 || length >= sizeof addr_out->sun_path) return false;
    memset(addr_out, 0, sizeof *addr_out);
    addr_out->sun_family = AF_UNIX;
    memcpy(addr_out->sun_path, path, length);
    if (path[0] == '@') addr_out->sun_path[0] = '\0';
    *addr_bytes_out = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    return true;
}

static bool tell(const char *state)
{
    struct sockaddr_un addr;
    socklen_t addr_bytes = 0;
    if (!supervisor_address(&addr, &addr_bytes)) return false;
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    const size_t length = strlen(state);
    const ssize_t sent = sendto(fd, state, length, MSG_NOSIGNAL | MSG_DONTWAIT,
                                (const struct sockaddr *)&addr, addr_bytes);
    close(fd);
    return sent == (ssize_t)length;
}

// A status is one line: what follows a newline would be another assignment.
static bool tell_status(const char *before, const char *status)
{
    char state[512];
    snprintf(state, sizeof state, "%sSTATUS=%.*s", before, (int)strcspn(status, "\n"), status);
    return tell(state);
}

bool cairn_notify_ready(const char *status)
{
    return tell_status("READY=1\n", status);
}

bool cairn_notify_stopping(void)
{
    return tell("STOPPING=1");
}

bool cairn_notify_status(const char *status)
{
    return tell_status("", status);
}

bool cairn_notify_watchdog(void)
{
    return tell("WATCHDOG=1");
}

// The value of a variable as a positive number; 0 if it is none.
static uint64_t number_of(const char *variable)
{
    const char *text = getenv(variable);
    char *end = NULL;
    if (text == NULL || text[0] < '0' || text[0] > '9') return 0;
    errno = 0;
    const unsigned long long number = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' ? number : 0;
}

uint64_t cairn_notify_watchdog_ms(void)
{
    const uint64_t pid = number_of("WATCHDOG_PID");
    if (getenv("NOTIFY_SOCKET") == NULL) return 0;
    if (pid != 0 && pid != (uint64_t)getpid()) return 0; // meant for another process
    return number_of("WATCHDOG_USEC") / 1000;
}
