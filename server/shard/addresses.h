/* The devices that bulk data goes over, and their addresses. At boot a device may be made late (a bond, a
 * virtual function), and may be there before its address is (DHCP, a switch that takes its time). UCX cannot
 * be opened on it then, and a daemon that ended for that, again and again, would be given up by its
 * supervisor. So it waits, and says for what. Loop thread. */
#ifndef CAIRN_SHARD_ADDRESSES_H
#define CAIRN_SHARD_ADDRESSES_H

#include <uv.h>

#include "proto/fabric/where.h"

struct cairn_addresses {
    uv_timer_t timer;
    const char *devices; /* borrowed: as fabric.device has them */
    uint64_t said_ms;    /* uv_now */
    bool said_absent;    /* then: no device, and not no address */
    void (*on_there)(void *context);
    void *context;
};

/* The first of these devices that this host does not have. */
bool cairn_addresses_find_absent(const char *devices, char out[CAIRN_PLACE_DEVICES_BYTES]);
/* Calls on_there when this host has all of these devices, and each network one that is up and has an address;
 * at once if so, else from the loop. */
void cairn_addresses_await(struct cairn_addresses *addresses, uv_loop_t *loop, const char *devices,
                           void (*on_there)(void *context), void *context);
/* Safe to call again. on_there is not called any more. */
void cairn_addresses_close(struct cairn_addresses *addresses);

#endif
