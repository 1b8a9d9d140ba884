#include "server/shard/addresses.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/base/log.h"
#include "server/base/notify.h"

#define LOOK_MS 500
#define SAY_MS  60000

/* A card is "mlx5_0:1", anything else a device of the kernel. */
static bool is_device(const char *name)
{
    char path[CAIRN_PLACE_DEVICES_BYTES + 64];
    const size_t length = strcspn(name, ":");
    if (name[length] != ':') return if_nametoindex(name) != 0;
    snprintf(path, sizeof path, "/sys/class/infiniband/%.*s", (int)length, name);
    return access(path, F_OK) == 0;
}

bool cairn_addresses_find_absent(const char *devices, char out[CAIRN_PLACE_DEVICES_BYTES])
{
    for (const char *at = devices; *at != '\0';) {
        const size_t length = strcspn(at, ",;");
        snprintf(out, CAIRN_PLACE_DEVICES_BYTES, "%.*s", (int)length, at);
        if (!is_device(out)) return true;
        at += length + (at[length] != '\0');
    }
    return false;
}

/* True if UCX's tcp can use the device: it has an IP and is up, and so is the other end of its
 * cable. */
static bool is_usable(const struct ifaddrs *one, const char *device, size_t length)
{
    const unsigned up = IFF_UP | IFF_RUNNING;
    char ip[INET6_ADDRSTRLEN];
    return strcspn(one->ifa_name, ":") == length && strncmp(one->ifa_name, device, length) == 0 &&
           (one->ifa_flags & up) == up && cairn_ip_print(one->ifa_addr, ip);
}

/* One of them is enough; a card ("mlx5_0:1") is opened without an IP, too. */
static bool is_there(const char *network, const struct ifaddrs *all)
{
    if (strchr(network, ':') != NULL) return true;
    for (const char *at = network; *at != '\0';) {
        const size_t length = strcspn(at, ",");
        for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next)
            if (is_usable(one, at, length)) return true;
        at += length + (at[length] == ',');
    }
    return false;
}

/* The devices of the first network that lacks an address, with ',' between them. False: none does. */
static bool find_lacking(const char *devices, char out[CAIRN_PLACE_DEVICES_BYTES])
{
    struct ifaddrs *all;
    bool lacks = false;
    if (getifaddrs(&all) != 0) return false;
    for (const char *at = devices; *at != '\0' && !lacks;) {
        const size_t length = strcspn(at, ";");
        snprintf(out, CAIRN_PLACE_DEVICES_BYTES, "%.*s", (int)length, at);
        at += length + (at[length] == ';');
        lacks = length > 0 && !is_there(out, all);
    }
    freeifaddrs(all);
    return lacks;
}

static void say(struct cairn_addresses *addresses, const char *device, bool is_absent)
{
    char status[CAIRN_PLACE_DEVICES_BYTES + 64];
    const uint64_t now_ms = uv_now(addresses->timer.loop);
    if (addresses->said_ms != 0 && addresses->said_absent == is_absent &&
        now_ms - addresses->said_ms < SAY_MS)
        return;
    addresses->said_ms = now_ms + 1; // not 0
    addresses->said_absent = is_absent;
    snprintf(status, sizeof status, "waits for device %s: %s", device,
             is_absent ? "it is not there" : "no address, or not up");
    cairn_notify_status(status);
    if (is_absent)
        cairn_log_warn("this host has no device %s: this shard waits for it; `ip link` and "
                       "/sys/class/infiniband list those it has, and fabric.device names it",
                       device);
    else
        cairn_log_warn("device %s has no address yet, or is not up: this shard waits for that; "
                       "`ip -br addr` shows what it has, and fabric.device names it",
                       device);
}

static void look(uv_timer_t *timer)
{
    struct cairn_addresses *addresses = timer->data;
    char lacking[CAIRN_PLACE_DEVICES_BYTES];
    const bool is_absent = cairn_addresses_find_absent(addresses->devices, lacking);
    if (is_absent || find_lacking(addresses->devices, lacking)) {
        say(addresses, lacking, is_absent);
        uv_timer_start(timer, look, LOOK_MS, 0);
        return;
    }
    cairn_addresses_close(addresses);
    addresses->on_there(addresses->context);
}

void cairn_addresses_await(struct cairn_addresses *addresses, uv_loop_t *loop, const char *devices,
                           void (*on_there)(void *context), void *context)
{
    addresses->devices = devices;
    addresses->said_ms = 0;
    addresses->on_there = on_there;
    addresses->context = context;
    uv_timer_init(loop, &addresses->timer);
    addresses->timer.data = addresses;
    look(&addresses->timer);
}

void cairn_addresses_close(struct cairn_addresses *addresses)
{
    uv_handle_t *handle = (uv_handle_t *)&addresses->timer;
    if (handle->loop != NULL && !uv_is_closing(handle)) uv_close(handle, NULL);
}
