/* Hosts as network namespaces behind one router, and a cluster of them that was joined as README says.
 *
 * The first three are nodes, with the coordinator on the first; the fourth is a trainer's or a stranger's.
 * Each has the devices eth0 and eth1, whose other ends the router calls "nHOSTethDEVICE", HOST from 1 on;
 * all that one says to another passes the router, which hears it, and can drop or delay it. */
#ifndef CAIRN_E2E_HOSTS_SCENE_H
#define CAIRN_E2E_HOSTS_SCENE_H

#include "tests/support/netns.h"
#include "tests/e2e/scene.h"

enum { NODES = 3, OUTSIDE = 3, HOSTS = 4, HOSTS_ELEMS = 1 << 16, FIRST_PORT = 7100 };

/* What the gradients of hosts_worker consist of, again and again, as floats whose squares are finite. */
#define HOSTS_GRADIENT      "GRADIENTGRADIENTGRADIENTGRADIENT"
#define HOSTS_GRADIENT_SIZE 32

extern char router[NETNS_NAME_BYTES], hosts[HOSTS][NETNS_NAME_BYTES];

bool hosts_make(void);
void hosts_drop(void);
/* All of them have these addresses, and no others, and nothing is dropped. */
void hosts_settle(bool v6, int networks);
/* Of one of them, as hosts_settle gave it. Good for the next three calls. */
const char *hosts_ip(int host, int network);

/* What `cairn cluster init` printed, over the coordinator's Unix socket. */
struct hosts_words {
    char nodes[256], trainers[256];
    char trainers_path[CAIRN_SCRATCH_BYTES + 32]; /* the file of the second */
};
void hosts_init(struct hosts_words *words);
/* That node joins, by the word alone, and has that shard. Returns when it is up. */
void hosts_join(const struct hosts_words *words, int node, int shard, const char *devices,
                const char *ports, bool trusted);

/* A worker there that trains, and fetches, until hosts_stop, with the token of that file. The name is the
 * job's. Only the rank 0 of `workers` takes a snapshot, after a few steps. */
pid_t hosts_train(int host, const char *token_path, const char *name, int rank, int workers);
/* How many steps it has done. */
uint64_t hosts_steps(const char *name, int rank);
/* It does `more` steps. */
void hosts_await_steps(const char *name, int rank, uint64_t more);
/* All of them end; that one ended well. */
void hosts_stop(void);
void hosts_end(pid_t worker, const char *name, int rank);
/* What it has said. */
const char *hosts_said(const char *name, int rank);

/* main's: -1 if this process is none of the workers. */
int hosts_worker(int argc, char **argv);

#endif
