#include "tests/support/etcd_server.h"

#include <arpa/inet.h>
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/cluster.h"

bool etcd_server_is_here(void)
{
#ifndef CAIRN_CURL
    printf("skip: no etcd can be asked, this build is without libcurl\n");
    return false;
#endif
    if (system("command -v etcd >/dev/null 2>&1") == 0) return true;
    printf("skip: no etcd is here (the package etcd-server)\n");
    return false;
}

/* Below the ports that the kernel gives to those who name none: a server that was killed is started again on
 * the same port, and meanwhile hundreds of connections of other tests begin and end. */
enum { PORT_FIRST = 10000, PORTS = 20000, PORT_TRIES = 100 };

static bool is_free(uint16_t port)
{
    const struct sockaddr_in addr = { .sin_family = AF_INET,
                                      .sin_port = htons(port),
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool is_bound = bind(fd, (const struct sockaddr *)&addr, sizeof addr) == 0;
    close(fd);
    return is_bound;
}

uint16_t etcd_server_port(void)
{
    for (int i = 0; i < PORT_TRIES; i++) {
        uint16_t random;
        ck_assert_int_eq(getrandom(&random, sizeof random, 0), sizeof random);
        const uint16_t port = (uint16_t)(PORT_FIRST + random % PORTS);
        if (is_free(port)) return port;
    }
    ck_abort_msg("no port of loopback is free");
}

void etcd_server_start(struct etcd_server *server, const char *folder, const char *const *more)
{
    enum { WORDS_MAX = 40 };
    char data[600], log[600], clients[64], members[64], cluster[80];
    const char *argv[WORDS_MAX];
    size_t count = 0;
    for (int i = 0; i < 2; i++)
        if (server->ports[i] == 0) server->ports[i] = etcd_server_port();
    snprintf(server->folder, sizeof server->folder, "%s", folder);
    snprintf(server->url, sizeof server->url, "etcd://127.0.0.1:%u", server->ports[0]);
    snprintf(data, sizeof data, "%s/etcd", folder);
    snprintf(log, sizeof log, "%s/etcd.log", folder);
    const char *tls = more != NULL && strcmp(more[0], "--cert-file") == 0 ? "s" : "";
    snprintf(clients, sizeof clients, "http%s://127.0.0.1:%u", tls, server->ports[0]);
    snprintf(members, sizeof members, "http://127.0.0.1:%u", server->ports[1]);
    snprintf(cluster, sizeof cluster, "default=%s", members);
    const char *const words[] = { "etcd",  "--data-dir",
                                  data,    "--listen-client-urls",
                                  clients, "--advertise-client-urls",
                                  clients, "--listen-peer-urls",
                                  members, "--initial-advertise-peer-urls",
                                  members, "--initial-cluster",
                                  cluster, "--log-level",
                                  "warn",  "--heartbeat-interval",
                                  "50",    "--election-timeout",
                                  "500" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) argv[count++] = words[i];
    for (; more != NULL && *more != NULL; more++) argv[count++] = *more;
    argv[count] = NULL;
    server->pid = cluster_spawn(argv, log);
}

void etcd_server_kill(struct etcd_server *server)
{
    if (server->pid != 0) cluster_kill(server->pid);
    server->pid = 0;
}
