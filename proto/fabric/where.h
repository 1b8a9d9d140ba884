/* Where a fabric is in the network: its devices and their addresses. It travels with the fabric's address,
 * for people, and for those who choose the device that leads there; nobody connects by it.
 *
 * A worker's device, unless it is set: that of the route to each shard. UCX's devices are fixed when a fabric
 * is opened, so the shards are asked for first (Welcome.places). Thread-safe; waits for nothing. */
#ifndef CAIRN_FABRIC_WHERE_H
#define CAIRN_FABRIC_WHERE_H

#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

enum {
    CAIRN_PLACE_BYTES = 192,        /* of a place as text, its NUL included */
    CAIRN_PLACE_DEVICES_BYTES = 96, /* of devices, or of transports */
    CAIRN_NETWORKS_MAX = 4          /* of an auto fabric, with ';' between them */
};

/* As text: "10.77.0.2 eth1 tcp". */
struct fabric_place {
    char ip[INET6_ADDRSTRLEN];               /* of the first device that has one; "-": none does */
    char devices[CAIRN_PLACE_DEVICES_BYTES]; /* "mlx5_0:1,eth1", as they were set */
    char transports[CAIRN_PLACE_DEVICES_BYTES / 2]; /* UCX's, as they were set: "tcp", "rc,tcp" */
};
/* The transports of a place whose fabric listens on no network: "127.0.0.1 lo mapped". */
#define CAIRN_PLACE_MAPPED "mapped"

/* The place of a fabric on these devices of this host. False: a name is too long. */
bool fabric_place_of(const char *devices, const char *transports, struct fabric_place *out);
void place_print(const struct fabric_place *place, char out[CAIRN_PLACE_BYTES]);
bool place_parse(const char *text, struct fabric_place *out);

/* The place of ucx fabric number `index`, from 0, in a fabric's address. False: the address has
 * fewer, or is of a version that does not say it. */
bool fabric_address_place(const void *address, size_t bytes, int index, struct fabric_place *out);
/* All of them, for people: "10.77.0.2 eth1 tcp; 10.78.0.2 eth2 tcp". */
void fabric_address_print_places(const void *address, size_t bytes, char out[CAIRN_PLACE_BYTES]);

/* The IP in an address; false: it has none, or one that means something on its link only. */
bool ip_print(const struct sockaddr *address, char out[INET6_ADDRSTRLEN]);
/* The other way, with the port of "discard". False: it is no IP. */
bool ip_parse(const char *ip, struct sockaddr_storage *out, socklen_t *bytes_out);

/* Is it one of "mlx5_0:1,eth1"? */
bool devices_have(const char *devices, const char *device);

/* Which way the kernel's packets to an IP go. */
struct route {
    char device[IF_NAMESIZE];
    char source[INET6_ADDRSTRLEN]; /* our IP; not always one of the device */
};
/* False: there is no route to it. */
bool route_find(const char *ip, struct route *out);

/* The devices and transports that a fabric opens to reach all of these places. */
struct choice {
    char devices[CAIRN_PLACE_DEVICES_BYTES]; /* "" : no place has a route */
    const char *transports;                  /* of a place; NULL: tcp */
};
/* Chooses from the routes to the places: each route once, with ';' between them
 * (proto/fabric/auto.c), and the first ones if there are more than CAIRN_NETWORKS_MAX. Where a
 * place takes InfiniBand or RoCE, too, its transports and, in front, this host's active ports, all
 * with ',': `infiniband` is /sys/class/infiniband. */
void fabric_choose(const struct fabric_place *places, size_t count, const char *infiniband,
                   struct choice *out);

#endif
