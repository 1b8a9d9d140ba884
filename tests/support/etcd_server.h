/* An etcd of one member, on ports of loopback that were free, with its data in a folder.
 *
 *   if (!etcd_server_is_here()) return SUITE_SKIPPED;
 *   etcd_server_start(&server, folder, NULL);
 *   ... server.url: "etcd://127.0.0.1:40123" ...
 *   etcd_server_kill(&server); */
#ifndef CAIRN_SUPPORT_ETCD_SERVER_H
#define CAIRN_SUPPORT_ETCD_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct etcd_server {
    char url[64], folder[512];
    uint16_t ports[2]; /* of clients, of members */
    pid_t pid;
};

/* Otherwise it prints that a test is skipped, and why. */
bool etcd_server_is_here(void);
/* A port of loopback that was free a moment ago. */
uint16_t etcd_server_port(void);
/* Ports are chosen if they are 0, so a server that was killed can be started again. `more`: further options,
 * ended by NULL; NULL: none. Returns when it has started, not when it answers. */
void etcd_server_start(struct etcd_server *server, const char *folder, const char *const *more);
void etcd_server_kill(struct etcd_server *server);

#endif
