#include "tests/support/slow_wire.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tests/support/netns.h"
#include "tests/support/now.h"

enum { WAITING_MAX = 1 << 13, PACKET_BYTES = 2048, TABLE = 100 };

static struct packet {
    int64_t due_ms;
    size_t count;
    uint8_t bytes[PACKET_BYTES];
} waiting[WAITING_MAX]; /* a ring, from `first` on */
static unsigned first, count;
static atomic_bool ends;
static int tunnel, delay;
static char place[NETNS_NAME_BYTES], of_device[IFNAMSIZ];
static pthread_t carrier;

static void take_in(void)
{
    while (count < WAITING_MAX) {
        struct packet *packet = &waiting[(first + count) % WAITING_MAX];
        const ssize_t got = read(tunnel, packet->bytes, sizeof packet->bytes);
        if (got <= 0) return;
        packet->count = (size_t)got;
        packet->due_ms = now_ms() + delay;
        count++;
    }
}

static void *carry(void *arg)
{
    (void)arg;
    while (!ends) {
        const int64_t left_ms = count > 0 ? waiting[first].due_ms - now_ms() : 20;
        struct pollfd readable = { .fd = tunnel, .events = POLLIN };
        if (left_ms > 0) (void)poll(&readable, count < WAITING_MAX, (int)left_ms);
        take_in();
        for (; count > 0 && waiting[first].due_ms <= now_ms();
             first = (first + 1) % WAITING_MAX, count--)
            (void)!write(tunnel, waiting[first].bytes, waiting[first].count);
    }
    return NULL;
}

void slow_wire_begin(const char *netns, const char *device, int delay_ms)
{
    struct ifreq asked = { .ifr_flags = IFF_TUN | IFF_NO_PI };
    snprintf(asked.ifr_name, sizeof asked.ifr_name, "later");
    snprintf(place, sizeof place, "%s", netns);
    snprintf(of_device, sizeof of_device, "%s", device);
    const int home = netns_enter(netns);
    ck_assert_int_ge(home, 0);
    tunnel = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    ck_assert_msg(tunnel >= 0 && ioctl(tunnel, TUNSETIFF, &asked) == 0, "a tunnel: %s",
                  strerror(errno));
    netns_leave(home);
    first = count = 0;
    delay = delay_ms;
    ends = false;
    ck_assert(netns_ip("-n %s link set later up", netns));
    ck_assert(netns_ip("-n %s route add default dev later table %d", netns, TABLE));
    ck_assert(netns_ip("-n %s rule add iif %s table %d", netns, device, TABLE));
    ck_assert_int_eq(pthread_create(&carrier, NULL, carry, NULL), 0);
}

void slow_wire_end(void)
{
    ck_assert(netns_ip("-n %s rule del iif %s table %d", place, of_device, TABLE));
    ends = true;
    pthread_join(carrier, NULL);
    close(tunnel); // and the device with it
}
