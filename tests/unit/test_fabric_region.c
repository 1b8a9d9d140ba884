/* Views and regions of every fabric: what one that cannot map does with them, and one that can. */
#include <check.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/fabric_pair.h"
#include "tests/support/suite.h"

static uint8_t bytes[1 << 20];

TEST_EACH(a_view_is_the_payload_or_nothing_and_the_message_is_received_all_the_same, 0, KINDS)
{
    static const size_t sizes[] = { 100, 8192, 200000 };
    pair_open(kinds[_i], NULL);
    for (unsigned i = 0; i < 3; i++) {
        fill(bytes, sizes[i], i);
        node_pass(&a, &b, to_b, i, bytes, sizes[i]);
        const uint8_t *view = fabric_message_view(b.arrivals[i].message);
        if (view != NULL) ck_assert(is_filled(view, sizes[i], i));
        if (_i == UCX) ck_assert_ptr_null(view);
        if (_i == MEM) ck_assert_int_eq(view != NULL, sizes[i] <= 8192); // what the hub copied
        node_receive(&b, i);
        pump(&a, &b, &b.received, i + 1);
        pump(&a, &b, &a.sent, i + 1);
        ck_assert(is_filled(b.arrivals[i].buffer, sizes[i], i));
    }
}

TEST_EACH(a_payload_of_a_region_travels_on_every_fabric, 0, KINDS)
{
    enum { BYTES = 1 << 20 };
    pair_open(kinds[_i], NULL);
    size_t address_bytes;
    const void *address = fabric_own_address(b.fabric, &address_bytes);
    const char *way = _i == AUTO ? "mapped" : kinds[_i]; // both ends are on loopback
    ck_assert_str_eq(fabric_address_kind(address, address_bytes), way);
    ck_assert_str_eq(fabric_address_kind(address, address_bytes - 1), "");
    ck_assert_str_eq(fabric_peer_path(to_b), way);
    const struct node_memory memory = node_memory_noted(&a, BYTES, "grad");
    ck_assert_int_eq(fabric_region_show(memory.region, to_b), CAIRN_OK);
    b.manner = NODE_RECEIVES;
    node_carry(&a, &b, to_b, 3, memory.at, BYTES);
    fabric_region_drop(memory.region);
    node_carry(&a, &b, to_b, 4, memory.at, BYTES); // plain memory now
}

static int make_memory(size_t memory_bytes, int seals, uint8_t **memory_out)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)memory_bytes), 0);
    *memory_out = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(*memory_out, MAP_FAILED);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

TEST_EACH(what_is_no_sealed_memory_of_that_size_or_overlaps_is_no_region, 0, KINDS)
{
    enum { BYTES = 1 << 16 };
    struct fabric_region *region, *other;
    uint8_t *memory, *open_memory;
    int pipes[2];
    pair_open(kinds[_i], NULL);
    struct fabric *f = a.fabric;
    int fd = make_memory(BYTES, CAIRN_FABRIC_SEALS, &memory);
    int open_fd = make_memory(BYTES, CAIRN_FABRIC_SEALS & ~F_SEAL_FUTURE_WRITE, &open_memory);
    ck_assert_int_eq(pipe(pipes), 0);
#define ADD(...) fabric_region_add(f, __VA_ARGS__, &region)
    ck_assert_int_eq(ADD(open_memory, BYTES, open_fd, NULL, 0), CAIRN_ERR_INVALID);
    ck_assert_int_eq(ADD(memory, BYTES + 1, fd, NULL, 0), CAIRN_ERR_INVALID);
    ck_assert_int_eq(ADD(memory, 0, fd, NULL, 0), CAIRN_ERR_INVALID);
    ck_assert_int_eq(ADD(memory, BYTES, pipes[0], NULL, 0), CAIRN_ERR_INVALID);
    ck_assert_int_eq(ADD(memory, BYTES, -1, NULL, 0), CAIRN_ERR_INVALID);
    ck_assert_int_eq(ADD(memory, BYTES, fd, bytes, CAIRN_FABRIC_NOTE_MAX + 1), CAIRN_ERR_INVALID);
    ck_assert_int_eq(ADD(memory, BYTES, fd, NULL, 0), CAIRN_OK);
    other = region;
    ck_assert_int_eq(ADD(memory + BYTES - 1, 1, fd, NULL, 0), CAIRN_ERR_INVALID);
#undef ADD
    fabric_region_drop(other);
    munmap(memory, BYTES);
    munmap(open_memory, BYTES);
    close(fd);
    close(open_fd);
    close(pipes[0]);
    close(pipes[1]);
}

SUITE(30, .tear_down = pair_close);
