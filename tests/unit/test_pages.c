/* Large pages (proto/base/machine.h, server/shard/memory.h): what is asked for where, and
 * that no byte
 * changes. That the kernel has some to give is not promised, and not asserted. */
#include <check.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/base/machine.h"
#include "server/shard/memory.h"
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

static size_t resident(const struct arena *arena)
{
    static unsigned char there[16 * LARGE / 4096];
    const size_t pages = (arena->bytes + 4095) / 4096;
    size_t count = 0;
    ck_assert_uint_le(pages, sizeof there);
    ck_assert_int_eq(mincore(arena->base, arena->bytes, there), 0);
    for (size_t i = 0; i < pages; i++) count += there[i] & 1;
    return count * 4096;
}

TEST(a_mapping_begins_at_a_large_page_and_goes_with_one_munmap)
{
    const size_t sizes[] = { 1, 4096, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE + 4097 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int fd = shared(sizes[i]);
        uint8_t *at = pages_map(sizes[i], PROT_READ | PROT_WRITE, MAP_SHARED, fd);
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
    ck_assert(pages_map(LARGE, PROT_READ, MAP_SHARED, -1) == MAP_FAILED);
}

TEST(what_is_there_stays_and_what_is_not_is_zero)
{
    const size_t bytes = 4 * LARGE + 8192;
    const int fd = shared(bytes);
    uint8_t *at = pages_map(bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
    ck_assert(at != MAP_FAILED);
    for (size_t i = LARGE - 5; i < LARGE + 5; i++) at[i] = 9;
    at[bytes - 1] = 1;
    (void)pages_back(at + 100, bytes - 100); // neither its first page nor its end is whole
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
    struct arena arena;
    struct sentence why;
    ck_assert_int_eq(arena_open_state("test", 8 * LARGE + 10, 0, CAIRN_STREAM_WIRE, &arena, &why),
                     CAIRN_OK);
    ck_assert_int_eq(arena_make_pages(&arena, LARGE + 4096, 2 * LARGE), CAIRN_OK);
    ck_assert_uint_eq(resident(&arena), 2 * LARGE);
    ck_assert_int_eq(arena_make_pages(&arena, 3 * LARGE + 4096, 1), CAIRN_OK);
    ck_assert_uint_eq(resident(&arena), 2 * LARGE + 4096);
    arena.base[LARGE + 4096] = 7;
    ck_assert_int_eq(arena_make_pages(&arena, 0, arena.bytes), CAIRN_OK);
    ck_assert_uint_ge(resident(&arena), 8 * LARGE + 10);
    for (size_t i = 0; i < arena.bytes; i += 4096)
        ck_assert_uint_eq(arena.base[i], i == LARGE + 4096 ? 7 : 0);
    arena_close(&arena);
}

TEST(scratch_is_taken_too_and_what_the_kernel_refuses_is_said)
{
    struct arena arena;
    struct sentence why;
    ck_assert_int_eq(arena_open_scratch("test", 3 * LARGE, &arena, &why), CAIRN_OK);
    ck_assert_int_eq(arena_make_pages(&arena, 100, 2 * LARGE), CAIRN_OK);
    unsigned char there[3 * LARGE / 4096];
    ck_assert_int_eq(mincore(arena.base, arena.bytes, there), 0);
    for (size_t i = 0; i <= 2 * LARGE / 4096; i++) ck_assert(there[i] & 1);
    arena_close(&arena);
    ck_assert_int_eq(arena_open_shared(home_host(), "test", 3 * LARGE, &arena, &why), CAIRN_OK);
    int fd;
    uint64_t bytes;
    ck_assert_int_eq(home_memory_export(&arena.memory, 0, &fd, &bytes, &why), CAIRN_OK);
    ck_assert_uint_eq(bytes, 3 * LARGE);
    ck_assert_int_eq(ftruncate(fd, LARGE), 0); // to touch what is behind would be a SIGBUS
    close(fd);
    ck_assert_int_eq(arena_make_pages(&arena, 0, LARGE), CAIRN_OK);
    ck_assert_int_eq(arena_make_pages(&arena, LARGE, LARGE), CAIRN_ERR_NO_MEMORY);
    arena_close(&arena);
}

/* How many descriptors this process has open. */
static size_t open_count(void)
{
    size_t count = 0;
    for (int fd = 0; fd < 256; fd++) count += fcntl(fd, F_GETFD) != -1;
    return count;
}

TEST(what_is_larger_than_a_segment_lies_in_several_and_each_can_be_given_back)
{
    const size_t page = 4096, bytes = 2 * CAIRN_SEGMENT_BYTES + 10;
    struct arena arena;
    struct sentence why;
    const size_t before = open_count();
    ck_assert_int_eq(arena_open_state("test", bytes, 0, CAIRN_STREAM_PARAM, &arena, &why),
                     CAIRN_OK);
    ck_assert_uint_eq(home_memory_segments(&arena.memory), 3);
    ck_assert_uint_eq(open_count(), before + 3);
    ck_assert_uint_eq((uintptr_t)arena.base % page, stagger_begin(CAIRN_STREAM_PARAM));
    // One array: what is taken goes over an end of a segment, and so does what is written.
    uint8_t *end = (uint8_t *)arena.memory.base + CAIRN_SEGMENT_BYTES;
    ck_assert_int_eq(arena_make_pages(&arena, (uint64_t)(end - arena.base) - page, 2 * page),
                     CAIRN_OK);
    memset(end - page, 7, 2 * page);
    ck_assert_uint_eq(end[-1], 7);
    ck_assert_uint_eq(arena.base[bytes - 1], 0);
    arena_give_segment(&arena, 0);
    arena_give_segment(&arena, 0);
    ck_assert_uint_eq(open_count(), before + 2);
    ck_assert_uint_eq(end[page - 1], 7); // the next one is as it was
    unsigned char there;
    ck_assert_int_eq(mincore(end - page, page, &there), 0);
    ck_assert_uint_eq(there & 1, 0); // and that one has none
    arena_close(&arena);
    ck_assert_uint_eq(open_count(), before);
    ck_assert_int_eq(arena_open_state("huge", UINT64_MAX / 4, 0, CAIRN_STREAM_SUM, &arena, &why),
                     CAIRN_ERR_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(why.text, "of memory for huge"));
    ck_assert_uint_eq(open_count(), before);
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
    void *at = pages_map(bytes, PROT_READ, flags, fd);
    ck_assert(at != MAP_FAILED);
    ck_assert_int_eq(munmap(at, bytes), 0);
    munmap(plain, bytes);
    close(fd);
}

/* Both keep what they have, also in the segment that was the last; one that others may have mapped keeps its
 * size. */
TEST(an_arena_with_room_gets_more_bytes_and_fewer)
{
    const uint64_t bytes = CAIRN_SEGMENT_BYTES + 100, more = 3 * CAIRN_SEGMENT_BYTES + 5;
    struct arena state, shared;
    struct sentence why;
    const size_t before = open_count();
    ck_assert_int_eq(arena_open_state("test", bytes, more, CAIRN_STREAM_PARAM, &state, &why),
                     CAIRN_OK);
    ck_assert_int_eq(arena_open_shared_room("test", bytes, more, &shared, &why), CAIRN_OK);
    uint8_t *const at = state.base, *const shown = shared.base;
    at[0] = at[bytes - 1] = shown[0] = shown[bytes - 1] = 7;
    ck_assert_int_eq(arena_resize(&state, "test", more, &why), CAIRN_OK);
    ck_assert_int_eq(arena_resize(&shared, "test", more, &why), CAIRN_OK);
    ck_assert_uint_eq(open_count(), before + 8);
    ck_assert(state.base == at && shared.base == shown);
    ck_assert(at[0] == 7 && at[bytes - 1] == 7 && at[more - 1] == 0);
    ck_assert(shown[0] == 7 && shown[bytes - 1] == 7 && shown[more - 1] == 0);
    ck_assert_int_eq(arena_resize(&state, "test", more + CAIRN_SEGMENT_BYTES, &why),
                     CAIRN_ERR_NO_MEMORY);
    ck_assert_uint_eq(state.bytes, more);
    ck_assert_int_eq(arena_resize(&shared, "test", 100, &why), CAIRN_OK);
    ck_assert_uint_eq(open_count(), before + 5);
    ck_assert_uint_eq(shown[0], 7);
    arena_close(&state);
    arena_close(&shared);
    ck_assert_uint_eq(open_count(), before);
}

SUITE(30);
