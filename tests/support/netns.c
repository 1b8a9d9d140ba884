#include "tests/support/netns.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/suite.h"

bool netns_ip(const char *format, ...)
{
    char arguments_text[192], command[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(arguments_text, sizeof arguments_text, format, arguments);
    va_end(arguments);
    snprintf(command, sizeof command, "ip %s >/dev/null 2>&1", arguments_text);
    return system(command) == 0;
}

bool netns_make(char name_out[NETNS_NAME_BYTES], char letter)
{
    snprintf(name_out, NETNS_NAME_BYTES, "cairn-%d-%c", (int)getpid(), letter);
    return netns_ip("netns add %s", name_out) && netns_ip("-n %s link set lo up", name_out);
}

bool netns_wire(const char *first, const char *second, const char *device, int network)
{
    const char *const ends[2] = { first, second };
    bool ok = netns_ip("-n %s link add %s type veth peer name %s netns %s", first, device, device,
                       second);
    for (int i = 0; i < 2; i++)
        ok = ok &&
             netns_ip("-n %s address add 10.%d.0.%d/24 dev %s", ends[i], network, i + 1, device) &&
             netns_ip("-n %s link set %s up", ends[i], device);
    return ok && netns_is_up(first, device) && netns_is_up(second, device);
}

bool netns_is_up(const char *name, const char *device)
{
    for (int i = 0; i < 500; i++) {
        if (netns_ip("-n %s link show dev %s | grep -q 'state UP'", name, device)) return true;
        poll(NULL, 0, 10);
    }
    return false;
}

bool netns_drop(const char *name)
{
    return netns_ip("netns delete %s", name);
}

int netns_suite_main(bool (*make)(void), void (*drop)(void))
{
    if (geteuid() != 0 || !make()) {
        if (geteuid() == 0) drop();
        printf("skip: network namespaces need root, iproute2 and a kernel with veth\n");
        return SUITE_SKIPPED;
    }
    const int failed = suite_main();
    drop();
    return failed;
}
