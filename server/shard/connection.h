/* The connection to the coordinator, which opens a session and, after a loss, the next. Loop thread. */
#ifndef CAIRN_SHARD_CONNECTION_H
#define CAIRN_SHARD_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#include "proto/fabric/fabric.h"
#include "proto/loop/loop.h"
#include "proto/spec/spec.h"
#include "proto/wire/wire.h"
#include "server/shard/shard.h"

struct shard_daemon;

CAIRN_MUST_CHECK cairn_status connection_open(struct shard_daemon *shard, const char *coordinator,
                                              struct sentence *why);
void connection_close(struct shard_daemon *shard, uv_close_cb on_timer_closed);
/* A heartbeat now. */
void connection_beat(struct shard_daemon *shard);

/* handlers.c: what the coordinator says. */
void shard_on_frame(struct shard_daemon *shard, const struct wire_frame *frame);

/* ==== addresses ==== */

/* The devices that bulk data goes over, and their addresses. At boot a device may be made late (a bond, a
 * virtual function), and may be there before its address is (DHCP, a switch that takes its time). UCX cannot
 * be opened on it then, and a daemon that ended for that, again and again, would be given up by its
 * supervisor. So it waits, and says for what. Loop thread. */

struct addresses {
    uv_timer_t timer;
    const char *devices; /* borrowed: as fabric.device has them */
    uint64_t said_ms;    /* uv_now */
    bool said_absent;    /* then: no device, and not no address */
    void (*on_there)(void *context);
    void *context;
};

/* The first of these devices that this host does not have. */
bool addresses_find_absent(const char *devices, char out[CAIRN_PLACE_DEVICES_BYTES]);
/* Calls on_there when this host has all of these devices, and each network one that is up and has an address;
 * at once if so, else from the loop. */
void addresses_await(struct addresses *addresses, uv_loop_t *loop, const char *devices,
                     void (*on_there)(void *context), void *context);
/* Safe to call again. on_there is not called any more. */
void addresses_close(struct addresses *addresses);

/* ==== device ==== */

/* Fills in what the device has done so far, if there is one. */
void shard_device_stats(const struct shard_daemon *shard, Cairn__ShardStats *stats);
/* Fills in the description of the device, or of the host if there is none. `out` borrows from the
 * shard. */
void device_tell(struct shard_daemon *shard, Cairn__Home *out);

/* ==== landing ==== */

/* Messages from the fabric: each one is judged, then received, answered or dropped. Loop thread. */

void landing_on_message(void *shard, const void *header, size_t header_bytes, size_t payload_bytes,
                        struct fabric_message *message);

/* ==== unheard ==== */

/* Shards that say nothing to this one over the data path, though something of them is awaited: those that
 * give it state (move.h), and those that it relays to or reads from (relay.h). Its heartbeats
 * name them, as a worker's do. Loop thread. */

#define CAIRN_UNHEARD_MAX 16

struct unheard {
    char *names[CAIRN_UNHEARD_MAX]; /* borrowed, each once */
    size_t count;
};

#endif
