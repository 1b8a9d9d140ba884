/* Large pages (proto/fabric/pages.h, server/shard/memory/arena.h): what is asked for where, and that no byte
 * changes. That the kernel has some to give is not promised, and not asserted. */
#include <check.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/fabric/pages.h"
#include "server/shard/memory/arena.h"
#include "tests/support/suite.h"

#define LARGE CAIRN_PAGES_LARGE_BYTES
#ifndef MFD_HUGE_1GB
#define MFD_HUGE_1GB (30U << 26) /* linux/memfd.h; glibc has it not */
#endif

static int shared(size_t bytes)
{
    const int fd = memfd_create("test", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
    return fd;
}

static size_t resident(int fd)
{
    struct stat at;
    ck_assert_int_eq(fstat(fd, &at), 0);
    return (size_t)at.st_blocks * 512;
}

TEST(a_mapping_begins_at_a_large_page_and_goes_with_one_munmap)
{
    const size_t sizes[] = { 1, 4096, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE + 4097 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int fd = shared(sizes[i]);
        uint8_t *at = cairn_pages_map(sizes[i], PROT_READ | PROT_WRITE, MAP_SHARED, fd);
        ck_assert(at != MAP_FAILED);
        if (sizes[i] >= LARGE) ck_assert_uint_eq((uintptr_t)at % LARGE, 0);
        at[0] = at[sizes[i] - 1] = 7;
        uint8_t last;
        ck_assert_int_eq(pread(fd, &last, 1, (off_t)sizes[i] - 1), 1);
        ck_assert_uint_eq(last, 7);
        ck_assert_int_eq(munmap(at, sizes[i]), 0);
        unsigned char in_core[4];
        if (sizes[i] >= LARGE) ck_assert_int_eq(mincore(at, 1, in_core), -1);
        close(fd);
    }
    ck_assert(cairn_pages_map(LARGE, PROT_READ, MAP_SHARED, -1) == MAP_FAILED);
}

TEST(what_is_there_stays_and_what_is_not_is_zero)
{
    const size_t bytes = 4 * LARGE + 8192;
    const int fd = shared(bytes);
    uint8_t *at = cairn_pages_map(bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
    ck_assert(at != MAP_FAILED);
    for (size_t i = LARGE - 5; i < LARGE + 5; i++) at[i] = 9;
    at[bytes - 1] = 1;
    (void)cairn_pages_back(at + 100, bytes - 100); // neither its first page nor its end is whole
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; i++) {
        const bool nine = i >= LARGE - 5 && i < LARGE + 5;
        wrong += at[i] != (nine ? 9 : i == bytes - 1);
    }
    ck_assert_uint_eq(wrong, 0);
    munmap(at, bytes);
    close(fd);
}

/* Two neighbours that share a large page, as pieces of a plane with gaps do. */
TEST(what_is_taken_is_there_and_nothing_beside_it)
{
    struct cairn_arena arena;
    struct cairn_sentence why;
    ck_assert_int_eq(
        cairn_arena_open_state("test", 8 * LARGE + 10, CAIRN_STREAM_WIRE, &arena, &why), CAIRN_OK);
    ck_assert_int_eq(cairn_arena_take(&arena, LARGE + 4096, 2 * LARGE), CAIRN_OK);
    ck_assert_uint_eq(resident(arena.fd), 2 * LARGE);
    ck_assert_int_eq(cairn_arena_take(&arena, 3 * LARGE + 4096, 1), CAIRN_OK);
    ck_assert_uint_eq(resident(arena.fd), 2 * LARGE + 4096);
    arena.base[LARGE + 4096] = 7;
    ck_assert_int_eq(cairn_arena_take(&arena, 0, arena.bytes), CAIRN_OK);
    ck_assert_uint_ge(resident(arena.fd), 8 * LARGE + 10);
    for (size_t i = 0; i < arena.bytes; i += 4096)
        ck_assert_uint_eq(arena.base[i], i == LARGE + 4096 ? 7 : 0);
    cairn_arena_close(&arena);
}

TEST(scratch_is_taken_too_and_what_the_kernel_refuses_is_said)
{
    struct cairn_arena arena;
    struct cairn_sentence why;
    ck_assert_int_eq(cairn_arena_open_scratch("test", 3 * LARGE, &arena, &why), CAIRN_OK);
    ck_assert_int_eq(cairn_arena_take(&arena, 100, 2 * LARGE), CAIRN_OK);
    unsigned char there[3 * LARGE / 4096];
    ck_assert_int_eq(mincore(arena.base, arena.bytes, there), 0);
    for (size_t i = 0; i <= 2 * LARGE / 4096; i++) ck_assert(there[i] & 1);
    cairn_arena_close(&arena);
    ck_assert_int_eq(cairn_arena_open_state("test", 3 * LARGE, CAIRN_STREAM_WIRE, &arena, &why),
                     CAIRN_OK);
    ck_assert_int_eq(ftruncate(arena.fd, LARGE), 0); // to touch what is behind would be a SIGBUS
    ck_assert_int_eq(cairn_arena_take(&arena, 0, LARGE), CAIRN_OK);
    ck_assert_int_eq(cairn_arena_take(&arena, LARGE, LARGE), CAIRN_ERR_NO_MEMORY);
    cairn_arena_close(&arena);
}

/* They begin at multiples of a GiB. Nothing is touched, so none need be there. */
TEST(a_file_of_pages_larger_still_is_mapped_too)
{
    const size_t bytes = (size_t)1 << 30;
    const int flags = MAP_SHARED | MAP_NORESERVE;
    const int fd = memfd_create("test", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_1GB);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) return; // not on this machine
    void *plain = mmap(NULL, bytes, PROT_READ, flags, fd, 0);
    if (plain == MAP_FAILED) return;
    void *at = cairn_pages_map(bytes, PROT_READ, flags, fd);
    ck_assert(at != MAP_FAILED);
    ck_assert_int_eq(munmap(at, bytes), 0);
    munmap(plain, bytes);
    close(fd);
}

SUITE(30);
