/* The emulated card finds what is misused, and lets pass what is right. */
#include "tests/support/emulated.h"
#include "tests/support/suite.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "gpu/kernel/list.h"

#define PAGE  ((size_t)2 << 20)
#define ELEMS ((size_t)1024)
#define BYTES (ELEMS * sizeof(uint32_t))
#define SEEDS 24
/* of the kernels that are launched here: the emulator's own, and zero */
#define BLOCK_THREADS 256

static struct emulated card;
static const struct driver *cu = &card.driver;
static struct emulated_memory memory;
static struct CUstream_st *one, *two;
static struct CUevent_st *event;
static struct CUkern_st *add, *ticket;
static uint32_t *pinned;

#define good(call) ck_assert_int_eq((call), CAIRN_CU_OK)

static void set_up_with(const char *options)
{
    struct CUlib_st *library;
    card = emulated_open(options);
    memory = emulated_alloc(&card, PAGE);
    good(cu->cuStreamCreate(&one, CAIRN_CU_STREAM_NON_BLOCKING));
    good(cu->cuStreamCreate(&two, CAIRN_CU_STREAM_NON_BLOCKING));
    good(cu->cuEventCreate(&event, CAIRN_CU_EVENT_DISABLE_TIMING));
    good(cu->cuLibraryLoadData(&library, "an image", NULL, NULL, 0, NULL, NULL, 0));
    good(cu->cuLibraryGetKernel(&add, library, "emulator_add"));
    good(cu->cuLibraryGetKernel(&ticket, library, "emulator_ticket"));
    good(cu->cuMemAllocHost((void **)&pinned, BYTES));
}

static void set_up(void)
{
    set_up_with("count=1,quiet=1");
}

static void set_up_strict(void)
{
    set_up_with("quiet=1");
}

static void launch(struct CUkern_st *kernel, struct CUstream_st *stream, struct kernel_list list,
                   uint32_t blocks)
{
    good(cu->cuLaunchKernel(kernel, blocks, 1, 1, BLOCK_THREADS, 1, 1, 0, stream,
                            (void *[]) { &list }, NULL));
}

static void launch_add(struct CUstream_st *stream, uint64_t to, uint64_t from)
{
    launch(add, stream, (struct kernel_list) { to, ELEMS, from }, 4);
}

static void launch_ticket(struct CUstream_st *stream, uint64_t to, uint32_t blocks)
{
    launch(ticket, stream, (struct kernel_list) { to, blocks, 0 }, blocks);
}

static void read_back(uint32_t *into, uint64_t from, size_t bytes)
{
    good(cu->cuMemcpyDtoHAsync(into, from, bytes, one));
    good(cu->cuStreamSynchronize(one));
}

static uint64_t complaints(void)
{
    return card.cairn_emulator_complaints();
}

/* ---- memory ---- */

TEST(what_goes_to_the_device_comes_back)
{
    uint32_t there[ELEMS], back[ELEMS];
    for (size_t i = 0; i < ELEMS; i++) there[i] = (uint32_t)i * 7;
    good(cu->cuMemcpyHtoDAsync(memory.at + 512, there, BYTES, one));
    good(cu->cuMemcpyDtoDAsync(memory.at + PAGE / 2, memory.at + 512, BYTES, one));
    read_back(back, memory.at + PAGE / 2, BYTES);
    ck_assert_mem_eq(back, there, BYTES);
    ck_assert_uint_eq(complaints(), 0);
}

TEST(memory_that_nobody_has_written_is_not_zero)
{
    read_back(pinned, memory.at, BYTES);
    for (size_t i = 0; i < ELEMS; i++) ck_assert_uint_eq(pinned[i], 0xFFFFFFFF);
}

TEST(free_memory_is_what_nobody_has_taken)
{
    size_t before, after, total;
    emulated_set(&card, "others=1G");
    good(cu->cuMemGetInfo(&before, &total));
    const struct emulated_memory more = emulated_alloc(&card, 4 * PAGE);
    good(cu->cuMemGetInfo(&after, &total));
    ck_assert_uint_eq(total, (size_t)8 << 30);
    ck_assert_uint_eq(before, total - ((size_t)1 << 30) - PAGE);
    ck_assert_uint_eq(after, before - 4 * PAGE);
    emulated_free(&card, &more);
    good(cu->cuMemGetInfo(&after, &total));
    ck_assert_uint_eq(after, before);
}

TEST(a_mapping_keeps_the_memory_of_a_handle_that_was_released)
{
    size_t before, after, total;
    good(cu->cuMemGetInfo(&before, &total));
    good(cu->cuMemRelease(memory.handle));
    ck_assert_int_eq(cu->cuMemRelease(memory.handle), CAIRN_CU_INVALID_VALUE);
    good(cu->cuMemsetD8Async(memory.at, 1, PAGE, one));
    good(cu->cuStreamSynchronize(one));
    good(cu->cuMemUnmap(memory.at, PAGE));
    good(cu->cuMemGetInfo(&after, &total));
    ck_assert_uint_eq(after, before + PAGE);
}

TEST(what_is_not_mapped_is_refused_with_its_address)
{
    uint64_t at;
    char address[32];
    good(cu->cuMemAddressReserve(&at, PAGE, 0, 0, 0));
    snprintf(address, sizeof address, "%#" PRIx64, at + 64);
    ck_assert_int_eq(cu->cuMemcpyHtoDAsync(at + 64, pinned, BYTES, one), CAIRN_CU_INVALID_VALUE);
    ck_assert_ptr_nonnull(strstr(card.cairn_emulator_words(), address));
    ck_assert_int_eq(cu->cuMemUnmap(at, PAGE), CAIRN_CU_INVALID_VALUE);
    launch_add(one, at + 64, memory.at);
    ck_assert_int_eq(cu->cuStreamSynchronize(one), 700);
    ck_assert_ptr_nonnull(strstr(card.cairn_emulator_words(), address));
    ck_assert_ptr_nonnull(strstr(card.cairn_emulator_words(), "emulator_add"));
    ck_assert_int_eq(cu->cuStreamSynchronize(two), 700); // and all that comes
}

TEST(an_access_past_the_end_is_refused)
{
    const uint64_t end = memory.at + PAGE;
    ck_assert_int_eq(cu->cuMemcpyHtoDAsync(end - 4, pinned, 8, one), CAIRN_CU_INVALID_VALUE);
    ck_assert_int_eq(cu->cuMemsetD8Async(end - 4, 0, 8, one), CAIRN_CU_INVALID_VALUE);
}

TEST(what_is_mapped_has_no_access_until_it_is_given)
{
    unsigned long long handle;
    uint64_t at;
    const struct cu_allocation how = { .type = CAIRN_CU_ALLOCATION_PINNED,
                                       .location = { CAIRN_CU_LOCATION_DEVICE, 0 } };
    const struct cu_access reads = { .location = { CAIRN_CU_LOCATION_DEVICE, 0 }, .flags = 1 };
    int descriptor;
    good(cu->cuMemCreate(&handle, PAGE, &how, 0));
    good(cu->cuMemAddressReserve(&at, PAGE, 0, 0, 0));
    good(cu->cuMemMap(at, PAGE, 0, handle, 0));
    ck_assert_int_eq(cu->cuMemsetD8Async(at, 0, 8, one), CAIRN_CU_INVALID_VALUE);
    good(cu->cuMemSetAccess(at, PAGE, &reads, 1));
    ck_assert_int_eq(cu->cuMemsetD8Async(at, 0, 8, one), CAIRN_CU_INVALID_VALUE);
    good(cu->cuMemcpyDtoHAsync(pinned, at, 8, one));
    // It was not made to be exported.
    ck_assert_int_eq(
        cu->cuMemExportToShareableHandle(&descriptor, handle, CAIRN_CU_HANDLE_POSIX, 0),
        CAIRN_CU_INVALID_VALUE);
    good(cu->cuStreamSynchronize(one));
}

TEST(sizes_are_whole_pages)
{
    unsigned long long handle;
    uint64_t at;
    const struct cu_allocation how = { .type = CAIRN_CU_ALLOCATION_PINNED,
                                       .location = { CAIRN_CU_LOCATION_DEVICE, 0 } };
    size_t page;
    good(cu->cuMemGetAllocationGranularity(&page, &how, CAIRN_CU_GRANULARITY_MINIMUM));
    ck_assert_uint_eq(page, PAGE);
    ck_assert_int_eq(cu->cuMemCreate(&handle, PAGE + 4096, &how, 0), CAIRN_CU_INVALID_VALUE);
    ck_assert_int_eq(cu->cuMemAddressReserve(&at, 4096, 0, 0, 0), CAIRN_CU_INVALID_VALUE);
    good(cu->cuMemAddressReserve(&at, (size_t)32 << 30, 32 * PAGE, 0, 0));
    ck_assert_uint_eq(at % (32 * PAGE), 0);
}

/* A sanitizer would say much about it first. */
static void follow(uint64_t address)
{
    volatile char *at = (volatile char *)(uintptr_t)address;
    signal(SIGSEGV, SIG_DFL);
    *at = 1;
}

TEST_KILLED(who_writes_through_an_address_of_the_device_dies, SIGSEGV)
{
    follow(memory.at);
}

TEST_KILLED(who_follows_a_handle_dies, SIGSEGV)
{
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    follow((uint64_t)(uintptr_t)one & 0xFFFFFFFF);
}

/* ---- order ---- */

TEST_EACH(two_streams_that_touch_the_same_bytes_are_named, 1, SEEDS)
{
    char options[32], address[32];
    snprintf(options, sizeof options, "seed=%d", _i);
    emulated_set(&card, options);
    good(cu->cuMemcpyHtoDAsync(memory.at + 4096, pinned, BYTES, one));
    launch_add(two, memory.at + 4096 + BYTES / 2, memory.at + PAGE / 2);
    good(cu->cuStreamSynchronize(two));
    good(cu->cuStreamSynchronize(one));
    ck_assert_uint_eq(complaints(), 1);
    const char *words = card.cairn_emulator_words();
    snprintf(address, sizeof address, "%zu bytes at %#" PRIx64, BYTES / 2,
             memory.at + 4096 + BYTES / 2);
    ck_assert_msg(strstr(words, "emulator_add (stream 2") != NULL, "%s", words);
    ck_assert_msg(strstr(words, "a copy to the device (stream 1") != NULL, "%s", words);
    ck_assert_msg(strstr(words, address) != NULL, "%s", words);
}

TEST_EACH(an_event_orders_two_streams, 1, SEEDS)
{
    char options[32];
    uint32_t there[ELEMS];
    snprintf(options, sizeof options, "seed=%d", _i);
    emulated_set(&card, options);
    for (size_t i = 0; i < ELEMS; i++) pinned[i] = there[i] = (uint32_t)i;
    good(cu->cuMemsetD8Async(memory.at, 0, BYTES, two));
    good(cu->cuMemcpyHtoDAsync(memory.at + PAGE / 2, pinned, BYTES, one));
    good(cu->cuEventRecord(event, one));
    good(cu->cuStreamWaitEvent(two, event, 0));
    launch_add(two, memory.at, memory.at + PAGE / 2);
    good(cu->cuEventRecord(event, two));
    while (cu->cuEventQuery(event) == CAIRN_CU_NOT_READY) continue;
    read_back(pinned, memory.at, BYTES);
    ck_assert_mem_eq(pinned, there, BYTES);
    ck_assert_uint_eq(complaints(), 0);
}

TEST(an_event_that_was_recorded_too_early_orders_nothing)
{
    good(cu->cuEventRecord(event, one));
    good(cu->cuMemcpyHtoDAsync(memory.at, pinned, BYTES, one));
    good(cu->cuStreamWaitEvent(two, event, 0));
    launch_add(two, memory.at + PAGE / 2, memory.at);
    good(cu->cuStreamSynchronize(two));
    ck_assert_uint_eq(complaints(), 1);
}

TEST(what_the_host_has_waited_for_is_before_all_that_comes)
{
    good(cu->cuMemcpyHtoDAsync(memory.at, pinned, BYTES, one));
    good(cu->cuStreamSynchronize(one));
    launch_add(two, memory.at, memory.at + PAGE / 2);
    good(cu->cuStreamSynchronize(two));
    ck_assert_uint_eq(complaints(), 0);
}

TEST(two_that_read_are_no_race)
{
    launch_add(one, memory.at, memory.at + PAGE / 2);
    launch_add(two, memory.at + PAGE / 4, memory.at + PAGE / 2);
    good(cu->cuStreamSynchronize(one));
    good(cu->cuStreamSynchronize(two));
    ck_assert_uint_eq(complaints(), 0);
}

/* In either order of the two, and whether the host waits for the kernel first or not. */
TEST_EACH(a_peek_at_what_a_kernel_writes_brings_poison, 1, SEEDS)
{
    char options[32];
    snprintf(options, sizeof options, "peeks=1,seed=%d", _i);
    emulated_set(&card, options);
    good(cu->cuMemsetD8Async(memory.at, 7, BYTES, one));
    good(cu->cuStreamSynchronize(one));
    good(cu->cuMemcpyDtoHAsync(pinned, memory.at, BYTES, one));
    launch_add(two, memory.at + BYTES / 2, memory.at + PAGE / 2);
    if (_i % 2 == 0) good(cu->cuStreamSynchronize(two));
    good(cu->cuStreamSynchronize(one));
    good(cu->cuStreamSynchronize(two));
    ck_assert_uint_eq(complaints(), 0);
    const bool is_before = _i % 2 != 0 && pinned[0] == 0x07070707; // the kernel had not begun
    for (size_t i = 0; i < ELEMS; i++)
        ck_assert_uint_eq(pinned[i], is_before ? 0x07070707 : 0xA5A5A5A5);
}

TEST(a_peek_may_not_bring_what_it_reads_to_where_others_write)
{
    emulated_set(&card, "peeks=1");
    good(cu->cuMemcpyDtoHAsync(pinned, memory.at, BYTES, one));
    good(cu->cuMemcpyDtoHAsync(pinned, memory.at + PAGE / 2, BYTES, two));
    good(cu->cuStreamSynchronize(one));
    good(cu->cuStreamSynchronize(two));
    ck_assert_uint_eq(complaints(), 1);
}

TEST(two_mappings_of_the_same_memory_are_the_same_bytes)
{
    int descriptor;
    unsigned long long handle;
    good(cu->cuMemExportToShareableHandle(&descriptor, memory.handle, CAIRN_CU_HANDLE_POSIX, 0));
    good(cu->cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)descriptor,
                                            CAIRN_CU_HANDLE_POSIX));
    const struct emulated_memory again = emulated_map(&card, handle, PAGE);
    good(cu->cuMemsetD8Async(memory.at, 1, 8, one));
    good(cu->cuMemsetD8Async(again.at, 2, 8, two));
    ck_assert_uint_eq(complaints(), 1);
    close(descriptor);
}

TEST(a_launch_that_comes_when_the_last_was_waited_for_is_a_gap)
{
    const uint64_t before = card.cairn_emulator_gaps();
    launch_add(one, memory.at, memory.at + PAGE / 2); // the card had nothing to do
    launch_add(one, memory.at, memory.at + PAGE / 2);
    good(cu->cuEventRecord(event, one));
    launch_add(one, memory.at, memory.at + PAGE / 2);
    good(cu->cuEventSynchronize(event)); // the third may still run
    launch_add(two, memory.at + PAGE / 4, memory.at + PAGE / 2);
    ck_assert_uint_eq(card.cairn_emulator_gaps() - before, 1);
    good(cu->cuStreamSynchronize(one));
    launch_add(one, memory.at, memory.at + PAGE / 2); // that of `two` may still run
    good(cu->cuStreamSynchronize(one));
    good(cu->cuStreamSynchronize(two));
    launch_add(two, memory.at, memory.at + PAGE / 2);
    ck_assert_uint_eq(card.cairn_emulator_gaps() - before, 2);
    ck_assert_uint_ge(card.cairn_emulator_launches(), 6);
}

/* A kernel of Cairn's, and its list in memory of the device, which a copy brings there. */
static void launch_zero(struct CUstream_st *stream)
{
    const struct zero_item item = { .at = memory.at + 4096, .bytes = BYTES };
    const uint64_t pieces = zero_pieces(&item);
    struct CUlib_st *library;
    struct CUkern_st *zero;
    memcpy(pinned, &item, sizeof item);
    good(cu->cuLibraryLoadData(&library, "an image", NULL, NULL, 0, NULL, NULL, 0));
    good(cu->cuLibraryGetKernel(&zero, library, "cairn_kernel_zero"));
    good(cu->cuMemcpyHtoDAsync(memory.at, pinned, sizeof item, stream));
    launch(zero, stream, (struct kernel_list) { memory.at, 1, pieces },
           kernel_blocks(CAIRN_KERNEL_zero, pieces, 256));
}

TEST(a_list_of_work_comes_by_a_copy_of_its_stream)
{
    launch_zero(one);
    read_back(pinned, memory.at + 4096, BYTES);
    for (size_t i = 0; i < ELEMS; i++) ck_assert_uint_eq(pinned[i], 0);
    ck_assert_uint_eq(complaints(), 0);
}

/* The four streams' tickets, lowest first: "2013". */
static void order_of(uint32_t seed, char order[5])
{
    struct CUstream_st *streams[4] = { one, two };
    uint32_t tickets[4][64];
    char options[32];
    snprintf(options, sizeof options, "seed=%u", seed);
    good(cu->cuStreamCreate(&streams[2], CAIRN_CU_STREAM_NON_BLOCKING));
    good(cu->cuStreamCreate(&streams[3], CAIRN_CU_STREAM_NON_BLOCKING));
    emulated_set(&card, options);
    for (uint32_t i = 0; i < 4; i++) launch_ticket(streams[i], memory.at + 4096 * i, 1);
    for (uint32_t i = 0; i < 4; i++) good(cu->cuStreamSynchronize(streams[i]));
    for (uint32_t i = 0; i < 4; i++) read_back(tickets[i], memory.at + 4096 * i, sizeof(uint32_t));
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t before = 0;
        for (uint32_t j = 0; j < 4; j++) before += tickets[j][0] < tickets[i][0];
        order[before] = (char)('0' + i);
    }
    order[4] = '\0';
    good(cu->cuStreamDestroy(streams[2]));
    good(cu->cuStreamDestroy(streams[3]));
}

TEST(the_seed_chooses_the_order)
{
    char orders[SEEDS][5], again[5];
    uint32_t different = 0;
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        order_of(seed, orders[seed]);
        order_of(seed, again);
        ck_assert_str_eq(orders[seed], again);
        bool is_new = true;
        for (uint32_t other = 0; other < seed; other++)
            is_new &= strcmp(orders[seed], orders[other]) != 0;
        different += is_new;
    }
    ck_assert_uint_ge(different, 6); // of 24
}

TEST(blocks_run_in_no_order_to_rely_on)
{
    uint32_t tickets[64], in_order = 0;
    for (uint32_t turn = 0; turn < SEEDS; turn++) {
        launch_ticket(one, memory.at, 64);
        read_back(tickets, memory.at, sizeof tickets);
        for (uint32_t i = 1; i < 64; i++) in_order += tickets[i] == tickets[i - 1] + 1;
    }
    ck_assert_uint_lt(in_order, SEEDS * 63 / 4);
}

/* ---- host memory ---- */

TEST(a_staging_buffer_that_is_used_again_too_early_is_found)
{
    for (uint32_t turn = 0; turn < SEEDS; turn++) {
        good(cu->cuMemcpyHtoDAsync(memory.at, pinned, BYTES, one));
        pinned[turn]++; // too early
        good(cu->cuStreamSynchronize(one));
    }
    ck_assert_uint_ge(complaints(), SEEDS / 2); // some have run at once
    ck_assert_ptr_nonnull(
        strstr(card.cairn_emulator_words(), "the host, which wrote to the copy's source"));
}

TEST(a_destination_that_is_written_before_its_copy_is_over_is_found)
{
    for (uint32_t turn = 0; turn < SEEDS; turn++) {
        good(cu->cuMemcpyDtoHAsync(pinned, memory.at, BYTES, one));
        pinned[turn]++;
        good(cu->cuStreamSynchronize(one));
    }
    ck_assert_uint_ge(complaints(), SEEDS / 2);
}

TEST(what_has_not_come_yet_is_poison)
{
    uint32_t early = 0;
    good(cu->cuMemsetD8Async(memory.at, 0, BYTES, one));
    for (uint32_t turn = 0; turn < SEEDS; turn++) {
        memset(pinned, 0, BYTES);
        good(cu->cuMemcpyDtoHAsync(pinned, memory.at, BYTES, one));
        early += pinned[5] == 0xA5A5A5A5;
        good(cu->cuStreamSynchronize(one));
        ck_assert_uint_eq(pinned[5], 0);
    }
    ck_assert_uint_ge(early, SEEDS / 2);
}

TEST(pageable_memory_is_free_when_the_call_returns)
{
    uint32_t there[ELEMS], back[ELEMS];
    memset(there, 7, BYTES);
    good(cu->cuMemcpyHtoDAsync(memory.at, there, BYTES, one));
    memset(there, 8, BYTES);
    good(cu->cuMemcpyDtoHAsync(back, memory.at, BYTES, one)); // is there when the call returns
    ck_assert_uint_eq(back[ELEMS - 1], 0x07070707);
    ck_assert_uint_eq(complaints(), 0);
}

TEST(what_an_operation_still_uses_is_not_given_back)
{
    struct CUevent_st *late;
    good(cu->cuEventCreate(&late, 0));
    good(cu->cuMemcpyHtoDAsync(memory.at, pinned, BYTES, one));
    good(cu->cuMemUnmap(memory.at, PAGE));
    ck_assert_uint_eq(complaints(), 1);
    ck_assert_ptr_nonnull(strstr(card.cairn_emulator_words(), "unmaps it"));
    good(cu->cuMemFreeHost(pinned));
    ck_assert_uint_eq(complaints(), 2);
    ck_assert_ptr_nonnull(strstr(card.cairn_emulator_words(), "frees it"));
}

TEST(kernels_reach_pinned_memory_only)
{
    static uint32_t ours[ELEMS];
    memset(pinned, 0, BYTES);
    good(cu->cuMemsetD8Async(memory.at, 1, BYTES, one));
    launch_add(one, (uint64_t)(uintptr_t)pinned, memory.at);
    good(cu->cuStreamSynchronize(one));
    ck_assert_uint_eq(pinned[ELEMS - 1], 0x01010101);
    good(cu->cuMemHostRegister(ours, BYTES, 0));
    ck_assert_int_eq(cu->cuMemHostRegister(ours, 64, 0), CAIRN_CU_ALREADY_REGISTERED);
    launch_add(one, memory.at, (uint64_t)(uintptr_t)ours);
    good(cu->cuStreamSynchronize(one));
    good(cu->cuMemHostUnregister(ours));
    launch_add(one, memory.at, (uint64_t)(uintptr_t)ours);
    ck_assert_int_eq(cu->cuStreamSynchronize(one), 700);
}

SUITE(30, set_up);

TEST_KILLED(a_misuse_aborts_where_it_is_not_counted, SIGABRT)
{
    good(cu->cuMemsetD8Async(memory.at, 1, BYTES, one));
    good(cu->cuMemsetD8Async(memory.at, 1, BYTES, two));
}

static void *work(void *stream)
{
    const size_t half = stream == one ? 0 : PAGE / 2;
    good(cu->cuCtxSetCurrent(card.context));
    for (uint32_t i = 0; i < 200; i++) {
        good(cu->cuMemsetD8Async(memory.at + half, 1, BYTES, stream));
        launch_add(stream, memory.at + half + PAGE / 4, memory.at + half);
        if (i % 8 == 7) good(cu->cuStreamSynchronize(stream));
    }
    return NULL;
}

TEST(threads_use_streams_beside_each_other)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, work, two), 0);
    work(one);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

/* Of pinned memory. */
static uint64_t seen_by_device(uint32_t *word)
{
    uint64_t at;
    good(cu->cuMemHostGetDevicePointer(&at, word, 0));
    return at;
}

static void map_and_unmap(void)
{
    const struct emulated_memory other = emulated_alloc(&card, PAGE);
    emulated_free(&card, &other);
}

TEST(what_maps_memory_waits_for_a_stream_that_waits_for_the_host_if_it_is_told_to)
{
    pinned[0] = 0;
    good(cu->cuStreamWaitValue32(one, seen_by_device(pinned), 1, CAIRN_CU_STREAM_WAIT_GEQ));
    map_and_unmap();
    ck_assert_uint_eq(card.cairn_emulator_complaints(), 0);
    emulated_set(&card, "maps_wait=1,count=1");
    map_and_unmap();
    ck_assert_uint_gt(card.cairn_emulator_complaints(), 0);
    const uint64_t before = card.cairn_emulator_complaints();
    __atomic_store_n(&pinned[0], 1, __ATOMIC_RELEASE);
    map_and_unmap();
    ck_assert_uint_eq(card.cairn_emulator_complaints(), before);
    good(cu->cuStreamSynchronize(one));
}

TEST(what_is_given_back_is_not_left)
{
    good(cu->cuMemsetD8Async(memory.at, 1, BYTES, one));
    good(cu->cuStreamDestroy(one));
    good(cu->cuStreamSynchronize(NULL));
    ck_assert_uint_eq(card.cairn_emulator_left(),
                      6); // handle and mapping, addresses, stream, event, pinned memory
    good(cu->cuStreamDestroy(two));
    good(cu->cuEventDestroy(event));
    good(cu->cuMemFreeHost(pinned));
    good(cu->cuDevicePrimaryCtxRelease(0));
    emulated_free(&card, &memory);
    ck_assert_uint_eq(card.cairn_emulator_left(), 0);
}

SUITE(30, set_up_strict);
