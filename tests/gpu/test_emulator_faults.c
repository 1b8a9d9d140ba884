/* The emulated card goes wrong as it is asked to, has the calls of the door and no other, and lends its
 * memory to another process. */
#include "tests/gpu/emulator/calls_ucx.h"
#include "tests/support/emulated.h"
#include "tests/support/suite.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "gpu/kernel/list.h"

#define PAGE               ((size_t)2 << 20)
#define MISALIGNED_ADDRESS 716

#define good(call) ck_assert_int_eq((call), CAIRN_CU_OK)

static const struct cu_allocation how = { .type = CAIRN_CU_ALLOCATION_PINNED,
                                          .handle_types = CAIRN_CU_HANDLE_POSIX,
                                          .location = { CAIRN_CU_LOCATION_DEVICE, 0 } };

static int try_launch(const struct emulated *card, uint64_t to)
{
    struct CUlib_st *library;
    struct CUkern_st *kernel;
    struct kernel_list list = { to, 1, 0 };
    good(card->driver.cuLibraryLoadData(&library, "an image", NULL, NULL, 0, NULL, NULL, 0));
    good(card->driver.cuLibraryGetKernel(&kernel, library, "emulator_ticket"));
    good(card->driver.cuLaunchKernel(kernel, 1, 1, 1, 256, 1, 1, 0, NULL, (void *[]) { &list },
                                     NULL));
    return card->driver.cuStreamSynchronize(NULL);
}

/* Two fp32 elements of what lies there become bf16, by a list that lies at `list_at`. */
static int convert(const struct emulated *card, uint64_t from, uint64_t list_at, uint64_t room)
{
    const struct convert_item item = {
        .src = from, .dst = room, .elems = 2, .src_dtype = CAIRN_F32, .dst_dtype = CAIRN_BF16
    };
    struct kernel_list list = { list_at, 1, convert_pieces(&item) };
    const enum kernel_number number = CAIRN_KERNEL_convert;
    struct CUlib_st *library;
    struct CUkern_st *kernel;
    good(card->driver.cuMemcpyHtoDAsync(list_at, &item, sizeof item, NULL));
    good(card->driver.cuLibraryLoadData(&library, "an image", NULL, NULL, 0, NULL, NULL, 0));
    good(card->driver.cuLibraryGetKernel(&kernel, library, "cairn_kernel_convert"));
    good(card->driver.cuLaunchKernel(kernel, 1, 1, 1, kernel_block_threads(number), 1, 1, 0, NULL,
                                     (void *[]) { &list }, NULL));
    return card->driver.cuStreamSynchronize(NULL);
}

/* A plane, and a list, off by so many bytes. */
static const struct {
    uint64_t plane, list;
    int result;
} misaligned[] = {
    { 0, 0, CAIRN_CU_OK },        { 4, 0, CAIRN_CU_OK },        { 0, 8, CAIRN_CU_OK },
    { 2, 0, MISALIGNED_ADDRESS }, { 1, 0, MISALIGNED_ADDRESS }, { 0, 4, MISALIGNED_ADDRESS },
};

TEST_EACH(what_is_not_aligned_to_what_a_kernel_reads_is_a_misaligned_address, 0,
          sizeof misaligned / sizeof *misaligned)
{
    const struct emulated card = emulated_open("quiet=1");
    const struct emulated_memory memory = emulated_alloc(&card, PAGE);
    good(card.driver.cuMemsetD8Async(memory.at, 0, PAGE, NULL));
    ck_assert_int_eq(convert(&card, memory.at + 4096 + misaligned[_i].plane,
                             memory.at + misaligned[_i].list, memory.at + 8192),
                     misaligned[_i].result);
    if (misaligned[_i].result == CAIRN_CU_OK) return;
    ck_assert_msg(strstr(card.cairn_emulator_words(), "aligned") != NULL, "%s",
                  card.cairn_emulator_words());
    ck_assert_int_eq(card.driver.cuMemsetD8Async(memory.at, 0, PAGE, NULL), MISALIGNED_ADDRESS);
}

TEST(memory_runs_out_at_the_nth)
{
    const struct emulated card = emulated_open("alloc_fails=2,quiet=1");
    unsigned long long handles[3];
    good(card.driver.cuMemCreate(&handles[0], PAGE, &how, 0));
    ck_assert_int_eq(card.driver.cuMemCreate(&handles[1], PAGE, &how, 0), CAIRN_CU_OUT_OF_MEMORY);
    good(card.driver.cuMemCreate(&handles[2], PAGE, &how, 0));
}

TEST(memory_runs_out_when_it_is_taken)
{
    const struct emulated card = emulated_open("total=1G,others=1020M,quiet=1");
    unsigned long long handle;
    good(card.driver.cuMemCreate(&handle, 2 * PAGE, &how, 0));
    ck_assert_int_eq(card.driver.cuMemCreate(&handle, PAGE, &how, 0), CAIRN_CU_OUT_OF_MEMORY);
    good(card.driver.cuMemRelease(handle));
    good(card.driver.cuMemCreate(&handle, PAGE, &how, 0));
}

static const struct {
    const char *options;
    int result;
    bool comes_back; /* in a new context */
} fatal[] = {
    { "launch_fails=2,quiet=1", 719, true },
    { "ecc_at=2,quiet=1", 214, true },
    { "lost_at=2,quiet=1", 999, false },
};

TEST_EACH(a_card_that_failed_fails_at_all_that_comes, 0, sizeof fatal / sizeof fatal[0])
{
    struct emulated card = emulated_open(fatal[_i].options);
    const struct emulated_memory memory = emulated_alloc(&card, PAGE);
    size_t free, total;
    ck_assert_int_eq(try_launch(&card, memory.at), CAIRN_CU_OK);
    ck_assert_int_eq(try_launch(&card, memory.at), fatal[_i].result);
    ck_assert_int_eq(card.driver.cuMemGetInfo(&free, &total), fatal[_i].result);
    emulated_free(&card, &memory);
    good(card.driver.cuDevicePrimaryCtxRelease(0));
    ck_assert_int_eq(card.driver.cuDevicePrimaryCtxRetain(&card.context, 0),
                     fatal[_i].comes_back ? CAIRN_CU_OK : fatal[_i].result);
}

TEST(one_of_two_cards_fails_alone)
{
    const struct emulated card = emulated_open("devices=2,launch_fails=1,quiet=1");
    struct CUctx_st *other;
    size_t free, total;
    const struct emulated_memory memory = emulated_alloc(&card, PAGE);
    ck_assert_int_eq(try_launch(&card, memory.at), 719);
    good(card.driver.cuDevicePrimaryCtxRetain(&other, 1));
    good(card.driver.cuCtxSetCurrent(other));
    good(card.driver.cuMemGetInfo(&free, &total));
    good(card.driver.cuCtxSetCurrent(card.context));
    ck_assert_int_eq(card.driver.cuMemGetInfo(&free, &total), 719);
}

TEST(two_cards_have_two_names_and_two_memories)
{
    const struct emulated card = emulated_open("devices=2,quiet=1");
    struct cu_uuid uuids[2];
    struct CUctx_st *other;
    int count;
    const struct emulated_memory memory = emulated_alloc(&card, PAGE);
    good(card.driver.cuDeviceGetCount(&count));
    ck_assert_int_eq(count, 2);
    for (int i = 0; i < 2; i++) good(card.driver.cuDeviceGetUuid(&uuids[i], i));
    ck_assert_mem_ne(&uuids[0], &uuids[1], sizeof uuids[0]);
    good(card.driver.cuDevicePrimaryCtxRetain(&other, 1));
    good(card.driver.cuCtxSetCurrent(other));
    ck_assert_int_eq(card.driver.cuMemsetD8Async(memory.at, 0, 8, NULL), CAIRN_CU_INVALID_VALUE);
}

TEST(pinning_can_be_refused)
{
    const struct emulated card = emulated_open("no_pinning=1,quiet=1");
    static char ours[4096];
    void *host;
    ck_assert_int_eq(card.driver.cuMemAllocHost(&host, 4096), CAIRN_CU_OUT_OF_MEMORY);
    ck_assert_int_eq(card.driver.cuMemHostRegister(ours, sizeof ours, 0), CAIRN_CU_OUT_OF_MEMORY);
}

TEST(a_host_without_a_card_is_told)
{
    struct driver driver;
    struct sentence why;
    emulated_choose("devices=0");
    ck_assert_int_eq(driver_open(&driver, &why), CAIRN_ERR_NOT_FOUND);
}

TEST(an_old_driver_is_told)
{
    struct driver driver;
    struct sentence why;
    emulated_choose("driver=11080,quiet=1");
    ck_assert_int_eq(driver_open(&driver, &why), CAIRN_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(why.text, "11.8"));
}

static void *call_without(void *card)
{
    size_t free, total;
    ck_assert_int_eq(((struct emulated *)card)->driver.cuMemGetInfo(&free, &total), 201);
    return NULL;
}

TEST(a_thread_works_in_a_context_of_its_own)
{
    struct emulated card = emulated_open("quiet=1");
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, call_without, &card), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

TEST(a_driver_does_not_survive_fork)
{
    const struct emulated card = emulated_open("quiet=1");
    size_t free, total;
    int status;
    const pid_t child = fork();
    if (child == 0) _exit(card.driver.cuMemGetInfo(&free, &total) == 3 ? 0 : 1);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
}

static const struct {
    const char *what;
    uint32_t blocks[3], threads[3], shared;
} wrong[] = {
    { "no block", { 0, 1, 1 }, { 32, 1, 1 }, 0 },
    { "no thread", { 1, 1, 1 }, { 0, 1, 1 }, 0 },
    { "too many threads", { 1, 1, 1 }, { 1025, 1, 1 }, 0 },
    { "too many blocks", { 1u << 31, 1, 1 }, { 32, 1, 1 }, 0 },
    { "too much shared memory", { 1, 1, 1 }, { 32, 1, 1 }, 50 << 10 },
};

TEST_EACH(a_launch_that_no_card_can_do_is_refused, 0, sizeof wrong / sizeof wrong[0])
{
    const struct emulated card = emulated_open("quiet=1");
    struct CUlib_st *library;
    struct CUkern_st *kernel;
    struct kernel_list list = { 0 };
    const uint32_t *b = wrong[_i].blocks, *t = wrong[_i].threads;
    good(card.driver.cuLibraryLoadData(&library, "an image", NULL, NULL, 0, NULL, NULL, 0));
    ck_assert_int_eq(card.driver.cuLibraryGetKernel(&kernel, library, "cairn_nothing"),
                     CAIRN_CU_NOT_FOUND);
    good(card.driver.cuLibraryGetKernel(&kernel, library, "emulator_ticket"));
    ck_assert_msg(card.driver.cuLaunchKernel(kernel, b[0], b[1], b[2], t[0], t[1], t[2],
                                             wrong[_i].shared, NULL, (void *[]) { &list },
                                             NULL) == CAIRN_CU_INVALID_VALUE,
                  "%s", wrong[_i].what);
}

/* ---- another process ---- */

static void send_descriptor(int socket, int descriptor)
{
    char room[CMSG_SPACE(sizeof descriptor)] = { 0 }, byte = 0;
    struct iovec bytes = { &byte, 1 };
    struct msghdr message = {
        .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room
    };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr) { .cmsg_level = SOL_SOCKET,
                                 .cmsg_type = SCM_RIGHTS,
                                 .cmsg_len = CMSG_LEN(sizeof descriptor) };
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    ck_assert_int_eq(sendmsg(socket, &message, 0), 1);
}

static int receive_descriptor(int socket)
{
    char room[CMSG_SPACE(sizeof(int))] = { 0 }, byte;
    struct iovec bytes = { &byte, 1 };
    struct msghdr message = {
        .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room
    };
    int descriptor;
    ck_assert_int_eq(recvmsg(socket, &message, 0), 1);
    ck_assert_ptr_nonnull(CMSG_FIRSTHDR(&message));
    memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
}

/* The other process: adds 1 to each byte of what it is lent. */
static void write_through(int socket)
{
    const struct emulated card = emulated_open(NULL);
    const int descriptor = receive_descriptor(socket);
    unsigned long long handle;
    char seen[64];
    good(card.driver.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)descriptor,
                                                    CAIRN_CU_HANDLE_POSIX));
    close(descriptor);
    const struct emulated_memory memory = emulated_map(&card, handle, PAGE);
    good(card.driver.cuMemcpyDtoHAsync(seen, memory.at, sizeof seen, NULL));
    for (size_t i = 0; i < sizeof seen; i++) seen[i]++;
    good(card.driver.cuMemcpyHtoDAsync(memory.at, seen, sizeof seen, NULL));
    good(card.driver.cuStreamSynchronize(NULL));
    emulated_free(&card, &memory);
    ck_assert_uint_eq(card.cairn_emulator_left(), 0);
}

TEST(another_process_maps_what_it_is_lent)
{
    int sockets[2], descriptor, status;
    char seen[64];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    const pid_t child = fork();
    if (child == 0) {
        write_through(sockets[1]);
        _exit(0);
    }
    const struct emulated card = emulated_open(NULL);
    const struct emulated_memory memory = emulated_alloc(&card, PAGE);
    good(card.driver.cuMemsetD8Async(memory.at, 41, PAGE, NULL));
    good(card.driver.cuStreamSynchronize(NULL));
    good(card.driver.cuMemExportToShareableHandle(&descriptor, memory.handle, CAIRN_CU_HANDLE_POSIX,
                                                  0));
    send_descriptor(sockets[0], descriptor);
    close(descriptor);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    good(card.driver.cuMemcpyDtoHAsync(seen, memory.at, sizeof seen, NULL));
    for (size_t i = 0; i < sizeof seen; i++) ck_assert_int_eq(seen[i], 42);
}

TEST(a_descriptor_of_something_else_is_refused)
{
    const struct emulated card = emulated_open("quiet=1");
    unsigned long long handle;
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(card.driver.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)ends[0],
                                                                CAIRN_CU_HANDLE_POSIX),
                     CAIRN_CU_INVALID_VALUE);
    ck_assert_int_eq(card.driver.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)-1,
                                                                CAIRN_CU_HANDLE_POSIX),
                     CAIRN_CU_INVALID_VALUE);
}

/* ---- the calls ---- */

static bool is_listed(const char *symbol)
{
#define CAIRN_CALL(name, suffix, parameters) \
    if (strcmp(symbol, #name #suffix) == 0) return true;
    CAIRN_DRIVER_CALLS(CAIRN_CALL)
#undef CAIRN_CALL
#define CONTROL(type, name, parameters) \
    if (strcmp(symbol, #name) == 0) return true;
    CAIRN_EMULATOR_CONTROLS(CONTROL)
#undef CONTROL
#define OF_UCX(name, parameters) \
    if (strcmp(symbol, #name) == 0) return true;
    EMULATOR_CALLS_OF_UCX(OF_UCX)
    EMULATOR_CALLS_NOT_SUPPORTED(OF_UCX)
#undef OF_UCX
    return strcmp(symbol, "cuGetProcAddress_v2") == 0;
}

TEST(it_has_the_calls_of_the_door_and_of_ucx_and_no_other)
{
    char symbol[256];
    uint32_t count = 0, wanted = 1;
    FILE *symbols = popen(
        "nm -D --defined-only " EMULATED_LIBRARY " | awk '$2 == \"T\" { print $3 }'", "r");
    ck_assert_ptr_nonnull(symbols);
    while (fscanf(symbols, "%255s", symbol) == 1) {
        if (symbol[0] == '_') continue; // a sanitizer's
        ck_assert_msg(is_listed(symbol), "%s: nobody asks for it", symbol);
        count++;
    }
    pclose(symbols);
#define CAIRN_CALL(name, suffix, parameters) wanted++;
    CAIRN_DRIVER_CALLS(CAIRN_CALL)
#undef CAIRN_CALL
#define CONTROL(type, name, parameters) wanted++;
    CAIRN_EMULATOR_CONTROLS(CONTROL)
#undef CONTROL
#define OF_UCX(name, parameters) wanted++;
    EMULATOR_CALLS_OF_UCX(OF_UCX)
    EMULATOR_CALLS_NOT_SUPPORTED(OF_UCX)
#undef OF_UCX
    ck_assert_uint_eq(count, wanted);
}

SUITE(30);
