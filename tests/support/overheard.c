#include "tests/support/overheard.h"

#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/netns.h"

enum { PACKET_BYTES = 1 << 17, RECEIVE_BYTES = 64 << 20, PATIENCE_US = 20000 };

static atomic_bool ends;
static pthread_t reader;
static int packets_fd;

static void look(struct overheard *heard, const uint8_t *packet, size_t count)
{
    heard->packets++;
    heard->bytes += count;
    for (struct overheard_part *part = heard->parts;
         part < heard->parts + OVERHEARD_MAX && part->bytes != NULL; part++)
        part->times += memmem(packet, count, part->bytes, part->count) != NULL;
}

/* Until nothing comes any more after it was told to end. */
static void *read_along(void *arg)
{
    static uint8_t packet[PACKET_BYTES];
    for (;;) {
        const ssize_t got = recv(packets_fd, packet, sizeof packet, 0);
        if (got > 0)
            look(arg, packet, (size_t)got);
        else if (ends)
            return NULL;
    }
}

void overheard_begin(struct overheard *heard, const char *netns)
{
    const struct timeval patience = { .tv_usec = PATIENCE_US };
    const int room = RECEIVE_BYTES, home = netns_enter(netns);
    ck_assert_int_ge(home, 0);
    packets_fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_ALL));
    ck_assert_msg(packets_fd >= 0, "a socket for packets: %s", strerror(errno));
    netns_leave(home);
    setsockopt(packets_fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    setsockopt(packets_fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ends = false;
    ck_assert_int_eq(pthread_create(&reader, NULL, read_along, heard), 0);
}

void overheard_end(struct overheard *heard)
{
    struct tpacket_stats stats = { 0 };
    socklen_t bytes = sizeof stats;
    struct sock_filter none = BPF_STMT(BPF_RET | BPF_K, 0); // what is there already is read
    const struct sock_fprog filter = { .len = 1, .filter = &none };
    ck_assert_int_eq(setsockopt(packets_fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter),
                     0);
    ends = true;
    pthread_join(reader, NULL);
    getsockopt(packets_fd, SOL_PACKET, PACKET_STATISTICS, &stats, &bytes);
    heard->missed = stats.tp_drops;
    close(packets_fd);
}
