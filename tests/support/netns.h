/* Network namespaces as hosts, with wires between them. Root and iproute2; what a test made, it drops. */
#ifndef CAIRN_SUPPORT_NETNS_H
#define CAIRN_SUPPORT_NETNS_H

#include <stdbool.h>

enum { NETNS_NAME_BYTES = 32 };

/* Runs `ip` with these arguments; false: it failed. Not within a test only, so without Check. */
bool netns_ip(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Makes one, of a name of its own, with loopback. */
bool netns_make(char name_out[NETNS_NAME_BYTES], char letter);
/* A wire between two, 10.NETWORK.0.1 at the first end, .2 at the second; both ends are called `device`. */
bool netns_wire(const char *first, const char *second, const char *device, int network);
/* Waits, bounded, until the kernel says of the device, a moment after the other end, that it is up. */
bool netns_is_up(const char *name, const char *device);
/* This thread is in it from now on, until it leaves for where it was; -1: it is not there. */
int netns_enter(const char *name);
void netns_leave(int home);
/* Lines of /etc/hosts of its own, for programs that `ip netns exec` starts in it; those that run already see
 * a change. NULL: none, as after netns_drop. */
bool netns_hosts(const char *name, const char *lines);
/* Rules of nft, by its own words; they go with it. */
bool netns_nft(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* False for one that is not there. */
bool netns_drop(const char *name);
/* main of a suite on hosts that `make` makes and `drop` drops, however many were made; skips without root. */
int netns_suite_main(bool (*make)(void), void (*drop)(void));

#endif
