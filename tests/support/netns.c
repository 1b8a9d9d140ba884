#include "tests/support/netns.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
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

int netns_enter(const char *name)
{
    char path[NETNS_NAME_BYTES + 32];
    snprintf(path, sizeof path, "/run/netns/%s", name);
    const int home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    const int there = open(path, O_RDONLY | O_CLOEXEC);
    if (there < 0 || setns(there, CLONE_NEWNET) != 0) {
        close(home);
        if (there >= 0) close(there);
        return -1;
    }
    close(there);
    return home;
}

void netns_leave(int home)
{
    if (setns(home, CLONE_NEWNET) != 0) abort(); // all else would happen on the wrong host
    close(home);
}

#define FOLDER "/etc/netns"

/* The file is written in place: programs see it by a mount of its own. */
bool netns_hosts(const char *name, const char *lines)
{
    char folder[NETNS_NAME_BYTES + 32], path[NETNS_NAME_BYTES + 48];
    snprintf(folder, sizeof folder, FOLDER "/%s", name);
    snprintf(path, sizeof path, "%s/hosts", folder);
    if (lines == NULL) {
        (void)unlink(path);
        (void)rmdir(folder);
        (void)rmdir(FOLDER); // others' stay
        return true;
    }
    (void)mkdir(FOLDER, 0755);
    (void)mkdir(folder, 0755);
    FILE *file = fopen(path, "we");
    if (file == NULL) return false;
    fputs(lines, file);
    return fclose(file) == 0;
}

bool netns_nft(const char *name, const char *format, ...)
{
    char rules[512], command[640];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(rules, sizeof rules, format, arguments);
    va_end(arguments);
    snprintf(command, sizeof command, "ip netns exec %s nft '%s' >/dev/null 2>&1", name, rules);
    return system(command) == 0;
}

bool netns_drop(const char *name)
{
    (void)netns_hosts(name, NULL);
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
