#include "proto/fabric/fabric.h"
#include "tests/support/netns.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/suite.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct fabric_place local = { "127.0.0.1", "lo", "tcp" };

static void on_nothing(void *arg, const void *header, size_t header_bytes, size_t payload_bytes,
                       struct fabric_message *message)
{
    (void)arg, (void)header, (void)header_bytes, (void)payload_bytes, (void)message;
}

static struct fabric *open_fabric(const char *kind, const char *devices, unsigned ways)
{
    struct sentence why = { "" };
    struct fabric *fabric;
    const struct fabric_options options = {
        .on_message = on_nothing, .net_devices = devices, .ways = ways, .host = "here"
    };
    ck_assert_msg(fabric_open(kind, &options, &fabric, &why) == CAIRN_OK, "%s", why.text);
    return fabric;
}

/* ---- places ---- */

TEST(a_place_is_read_as_it_was_written)
{
    char text[CAIRN_PLACE_BYTES];
    struct fabric_place place;
    ck_assert(fabric_place_of("lo", "tcp", &place));
    place_print(&place, text);
    ck_assert_str_eq(text, "127.0.0.1 lo tcp");
    ck_assert(place_parse(text, &place));
    ck_assert_str_eq(place.devices, "lo");
    ck_assert(fabric_place_of("mlx5_0:1,lo", "rc,tcp", &place));
    ck_assert_str_eq(place.ip, "127.0.0.1");
    ck_assert(fabric_place_of("no-such-device", "tcp", &place));
    ck_assert_str_eq(place.ip, "-");
}

TEST(what_is_no_place_is_refused)
{
    static const char *const bad[] = { "", "1.2.3.4", "1.2.3.4 eth0", "1.2.3.4 eth0 tcp more",
                                       "1.2.3.4  tcp" };
    struct fabric_place place;
    char long_one[200];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) ck_assert(!place_parse(bad[i], &place));
    memset(long_one, 'x', sizeof long_one - 1);
    long_one[sizeof long_one - 1] = '\0';
    ck_assert(!place_parse(long_one, &place));
    ck_assert(!fabric_place_of(long_one, "tcp", &place));
}

TEST_EACH(an_address_says_where_it_is, 0, 6)
{
    static const struct {
        const char *kind, *transports;
        unsigned ways;
    } all[] = { { "ucx", "tcp", 0 },       { "auto", "sealed", 0 },
                { "stream", "stream", 0 }, { "auto", "stream", CAIRN_WAY_STREAM },
                { "sealed", "sealed", 0 }, { "auto", "tcp", CAIRN_WAY_UCX } };
    struct fabric *fabric = open_fabric(all[_i].kind, NULL, all[_i].ways);
    struct fabric_place place;
    size_t bytes;
    const uint8_t *address = fabric_own_address(fabric, &bytes);
    ck_assert(fabric_address_place(address, bytes, 0, &place));
    ck_assert_str_eq(place.ip, "127.0.0.1");
    ck_assert_str_eq(place.devices, "lo");
    ck_assert_str_eq(place.transports, all[_i].transports);
    ck_assert(!fabric_address_place(address, bytes, 1, &place));
    ck_assert(!fabric_address_place(address, bytes - 1, 0, &place));
    ck_assert(!fabric_address_place("", 0, 0, &place));
    fabric_close(fabric);
}

TEST(each_network_has_a_fabric_of_ucx_and_a_place)
{
    struct fabric *fabric = open_fabric("auto", "lo;lo", CAIRN_WAY_UCX);
    char text[CAIRN_PLACE_BYTES];
    size_t bytes;
    const void *address = fabric_own_address(fabric, &bytes);
    fabric_address_print_places(address, bytes, text);
    ck_assert_str_eq(text, "127.0.0.1 lo tcp; 127.0.0.1 lo tcp");
    struct fabric_peer *peer;
    ck_assert_int_eq(fabric_connect_to(fabric, address, bytes, NULL, NULL, &peer), CAIRN_OK);
    fabric_close(fabric);
}

TEST(too_many_networks_are_refused)
{
    struct sentence why = { "" };
    struct fabric *fabric;
    const struct fabric_options options = { .on_message = on_nothing,
                                            .ways = CAIRN_WAY_UCX,
                                            .net_devices = "lo;lo;lo;lo;lo" };
    ck_assert_int_eq(fabric_open("auto", &options, &fabric, &why), CAIRN_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "at most 4 networks"));
}

TEST(a_device_that_is_not_there_or_has_no_address_is_named)
{
    struct sentence why = { "" };
    struct fabric *fabric;
    const struct fabric_options options = { .on_message = on_nothing, .net_devices = "eth77" };
    ck_assert_int_eq(fabric_open("sealed", &options, &fabric, &why), CAIRN_ERR_UNREACHABLE);
    ck_assert_ptr_nonnull(strstr(why.text, "no device eth77"));
    const struct fabric_options card = { .on_message = on_nothing, .net_devices = "mlx5_0:1" };
    ck_assert_int_eq(fabric_open("stream", &card, &fabric, &why), CAIRN_ERR_UNREACHABLE);
    ck_assert_ptr_nonnull(strstr(why.text, "such as eth1"));
}

TEST(a_fabric_on_several_networks_has_a_place_for_each)
{
    char text[CAIRN_PLACE_BYTES];
    size_t bytes;
    if (geteuid() != 0 || unshare(CLONE_NEWNET) != 0 || !netns_ip("link set lo up")) return;
    if (!netns_ip("link add e0 type veth peer name f0")) return;
    ck_assert(netns_ip("address add 10.8.0.1/24 dev e0"));
    ck_assert(netns_ip("-6 address add fd00:8::1/64 dev e0 nodad"));
    ck_assert(netns_ip("link set e0 up"));
    struct fabric *fabric = open_fabric("auto", "e0;lo", 0);
    const void *address = fabric_own_address(fabric, &bytes);
    fabric_address_print_places(address, bytes, text);
    ck_assert_str_eq(text, "10.8.0.1 e0 sealed; 127.0.0.1 lo sealed");
    ck_assert_ptr_nonnull(strstr(fabric_describe(fabric), "fd00:8::1"));
    fabric_close(fabric);
}

/* ---- routes and the choice ---- */

TEST(a_route_has_a_device_and_a_source)
{
    struct route route;
    ck_assert(route_find("127.0.0.1", &route));
    ck_assert_str_eq(route.device, "lo");
    ck_assert_str_eq(route.source, "127.0.0.1");
    ck_assert(!route_find("-", &route));
    ck_assert(!route_find("nonsense", &route));
}

TEST(the_device_of_each_route_is_taken_once)
{
    const struct fabric_place places[] = { local, { "-", "eth7", "tcp" }, local };
    struct choice choice;
    fabric_choose(places, 3, scratch, &choice);
    ck_assert_str_eq(choice.devices, "lo");
    ck_assert_ptr_null(choice.transports);
    fabric_choose(places + 1, 1, scratch, &choice);
    ck_assert_str_eq(choice.devices, "");
}

static void make_port(const char *card, const char *state)
{
    char path[256], file[300];
    static const char *const parts[] = { "", "/ports", "/ports/1" };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        snprintf(path, sizeof path, "%s/%s%s", scratch, card, parts[i]);
        ck_assert_int_eq(mkdir(path, 0755), 0);
    }
    cairn_scratch_file(path, "state", state, file, sizeof file);
}

TEST(active_cards_come_first_where_a_shard_takes_them)
{
    const struct fabric_place places[] = { local, { "127.0.0.1", "mlx5_9:1,lo", "rc,tcp" } };
    struct choice choice;
    make_port("mlx5_0", "1: DOWN\n");
    fabric_choose(places, 2, scratch, &choice); // no card here: it is reached by tcp
    ck_assert_str_eq(choice.devices, "lo");
    ck_assert_ptr_null(choice.transports);
    make_port("mlx5_1", "4: ACTIVE\n");
    fabric_choose(places, 2, scratch, &choice);
    ck_assert_str_eq(choice.devices, "mlx5_1:1,lo");
    ck_assert_str_eq(choice.transports, "rc,tcp");
    fabric_choose(places, 1, scratch, &choice); // no shard takes them
    ck_assert_str_eq(choice.devices, "lo");
}

/* In a network namespace of its own. */
TEST(of_more_networks_than_a_fabric_takes_the_first_are_chosen)
{
    struct fabric_place places[CAIRN_NETWORKS_MAX + 1];
    struct choice choice;
    if (geteuid() != 0 || unshare(CLONE_NEWNET) != 0 || !netns_ip("link set lo up")) return;
    for (int i = 0; i <= CAIRN_NETWORKS_MAX; i++) {
        if (!netns_ip("link add e%d type veth peer name f%d", i, i)) return;
        ck_assert(netns_ip("address add 10.8.%d.1/24 dev e%d", i, i));
        ck_assert(netns_ip("link set e%d up", i));
        places[i] = (struct fabric_place) { .devices = "eth0", .transports = "tcp" };
        snprintf(places[i].ip, sizeof places[i].ip, "10.8.%d.2", i);
    }
    fabric_choose(places, CAIRN_NETWORKS_MAX + 1, scratch, &choice);
    ck_assert_str_eq(choice.devices, "e0;e1;e2;e3");
}

/* Hosts that are routed to have their address on loopback, or the same one on several devices. */
TEST(the_device_is_that_of_the_route_and_not_of_its_source)
{
    struct route route;
    if (geteuid() != 0 || unshare(CLONE_NEWNET) != 0 || !netns_ip("link set lo up")) return;
    for (int i = 0; i < 2; i++) {
        if (!netns_ip("link add e%d type veth peer name f%d", i, i)) return;
        ck_assert(netns_ip("address add 10.8.0.1/32 dev e%d", i));
        ck_assert(netns_ip("link set e%d up", i));
    }
    ck_assert(netns_ip("address add 10.9.0.1/32 dev lo"));
    ck_assert(netns_ip("route add 10.50.0.0/16 dev e0 src 10.9.0.1"));
    ck_assert(netns_ip("route add 10.51.0.0/16 dev e1 src 10.8.0.1"));
    ck_assert(netns_ip("-6 address add fd00:9::1/128 dev lo nodad"));
    ck_assert(netns_ip("-6 route add fd00:50::/32 dev e1 src fd00:9::1"));
    ck_assert(route_find("10.50.0.7", &route));
    ck_assert_str_eq(route.device, "e0");
    ck_assert_str_eq(route.source, "10.9.0.1");
    ck_assert(route_find("10.51.0.7", &route));
    ck_assert_str_eq(route.device, "e1");
    ck_assert(route_find("fd00:50::7", &route));
    ck_assert_str_eq(route.device, "e1");
    ck_assert(!route_find("10.52.0.7", &route));
    ck_assert(route_find("10.8.0.1", &route)); // our own: the kernel says loopback
    ck_assert_str_eq(route.device, "e0");
}

SUITE(30, scratch_make, scratch_remove);
