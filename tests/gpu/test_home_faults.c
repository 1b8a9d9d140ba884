/* What a home on a card says when it cannot be had, is full, or fails. */
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu/cuda/cuda.h"
#include "gpu/gpu.h"
#include "tests/support/emulated.h"
#include "tests/support/suite.h"

static const struct {
    const char *options, *device;
    cairn_status status;
    const char *says;
} refused[] = {
    { "driver=11080,quiet=1", NULL, CAIRN_ERR_UNSUPPORTED, "CUDA 11.8; the oldest that will do" },
    { "devices=2,quiet=1", "2", CAIRN_ERR_NOT_FOUND, "this process sees 2" },
    { "quiet=1", "first", CAIRN_ERR_NOT_FOUND, "names no device" },
    { "quiet=1", "GPU-00000000-1111-2222-3333-444444444444", CAIRN_ERR_NOT_FOUND,
      "no device GPU-0" },
    { "devices=0,quiet=1", NULL, CAIRN_ERR_NOT_FOUND, "CUDA_VISIBLE_DEVICES" },
    { "result=802,init_fails=1,quiet=1", NULL, CAIRN_ERR_IO, "nvidia-fabricmanager runs first" },
    { "result=803,init_fails=1,quiet=1", NULL, CAIRN_ERR_IO, "restart the machine" },
    { "result=999,init_fails=1,quiet=1", NULL, CAIRN_ERR_IO, "fallen off its bus" },
    { "result=304,init_fails=1,quiet=1", NULL, CAIRN_ERR_IO, "NoNewPrivileges" },
    { "result=34,init_fails=1,quiet=1", NULL, CAIRN_ERR_IO, "LD_LIBRARY_PATH" },
    { "result=46,open_fails=1,quiet=1", NULL, CAIRN_ERR_IO, "nvidia-smi -c 0" },
    { "result=2,open_fails=1,quiet=1", NULL, CAIRN_ERR_NO_MEMORY, "look at nvidia-smi" },
    { "result=805,open_fails=1,quiet=1", NULL, CAIRN_ERR_IO, "control daemon" },
    { "result=801,open_fails=1,quiet=1", NULL, CAIRN_ERR_IO, "does not have it" },
    { "result=209,load_fails=1,quiet=1", NULL, CAIRN_ERR_UNSUPPORTED, "does not load the kernels" },
    { "result=218,load_fails=1,quiet=1", NULL, CAIRN_ERR_UNSUPPORTED, "does not load the kernels" },
    { "result=221,load_fails=1,quiet=1", NULL, CAIRN_ERR_IO, "libnvidia-ptxjitcompiler.so.1" },
};

TEST_EACH(a_card_that_is_not_to_be_had_is_refused_with_a_reason, 0,
          sizeof refused / sizeof *refused)
{
    struct home *home;
    struct sentence why = { "" };
    emulated_choose(refused[_i].options);
    ck_assert_int_eq(home_open_cuda(refused[_i].device, &home, &why), refused[_i].status);
    ck_assert_msg(strstr(why.text, refused[_i].says) != NULL, "%s", why.text);
}

/* Of what it says then cuda.h tells nothing: the versions say why. */
TEST(a_driver_of_an_older_major_version_than_the_kernels_is_to_be_updated)
{
    struct home *home;
    struct sentence why = { "" };
    if (cuda_image().toolkit < 13000) return; // the kernels of this build are no newer than CUDA 12
    emulated_choose("driver=12080,result=300,load_fails=1,quiet=1");
    ck_assert_int_eq(home_open_cuda(NULL, &home, &why), CAIRN_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(why.text, "is of CUDA 12.8: update it") != NULL, "%s", why.text);
}

TEST(without_a_driver_there_is_no_home)
{
    struct home *home;
    struct sentence why = { "" };
    setenv("CAIRN_CUDA_DRIVER", "/no/such/libcuda.so.1", 1);
    ck_assert_int_eq(home_open_cuda(NULL, &home, &why), CAIRN_ERR_NOT_FOUND);
    ck_assert_msg(strstr(why.text, "no CUDA driver") != NULL, "%s", why.text);
}

#define must(call) ck_assert_msg((call) == CAIRN_OK, "%s: %s", #call, why.text)

static struct home *open_home(const char *options)
{
    struct home *home;
    struct sentence why = { "" };
    emulated_choose(options);
    ck_assert_msg(home_open_cuda("0", &home, &why) == CAIRN_OK, "%s", why.text);
    return home;
}

TEST(a_full_card_refuses_memory_and_goes_on)
{
    struct home *home = open_home("total=1G,others=900M,quiet=1");
    struct home_memory large, small;
    struct sentence why = { "" };
    const uint64_t before = home_free_bytes(home);
    ck_assert_int_eq(home_memory_open(home, "moments", (uint64_t)300 << 20, &large, &why),
                     CAIRN_ERR_NO_MEMORY);
    ck_assert_msg(strstr(why.text, "moments: out of memory for 300 MiB") != NULL, "%s", why.text);
    ck_assert_uint_eq(home_free_bytes(home), before);
    ck_assert_int_eq(home_memory_open(home, "moments", 1, &small, &why), CAIRN_OK);
    home_memory_close(&small);
    ck_assert_uint_eq(home_free_bytes(home), before);
    home_close(home);
}

/* An H200, an A100, and eight cards that read each other: 843 GiB of addresses, and up to 3 TiB. */
static const char *const sizes[] = { "total=141G", "total=80G", "total=24G,devices=8,peers=1",
                                     "total=141G,devices=8,peers=1" };

TEST_EACH(addresses_are_reserved_for_a_card_of_any_size, 0, sizeof sizes / sizeof *sizes)
{
    struct home *home = open_home(sizes[_i]);
    struct home_memory memory;
    struct sentence why = { "" };
    must(home_memory_open(home, "a plane", CAIRN_SEGMENT_BYTES + 1, &memory, &why));
    home_memory_close(&memory);
    home_close(home);
}

static const struct {
    const char *options;
    cairn_status status;
} few_addresses[] = {
    { "reserve_fails=801,reserve_at=1,quiet=1", CAIRN_OK }, // whole segments alone are refused
    { "reserve_fails=2,reserve_at=1,quiet=1", CAIRN_OK },
    { "reserve_fails=2,quiet=1", CAIRN_ERR_NO_MEMORY },
    { "reserve_fails=801,quiet=1", CAIRN_ERR_NO_MEMORY },
};

TEST_EACH(addresses_that_are_not_to_be_had_are_no_full_card, 0,
          sizeof few_addresses / sizeof *few_addresses)
{
    struct home *home;
    struct sentence why = { "" };
    emulated_choose(few_addresses[_i].options);
    const cairn_status status = home_open_cuda("0", &home, &why);
    ck_assert_int_eq(status, few_addresses[_i].status);
    if (status == CAIRN_OK)
        home_close(home);
    else
        ck_assert_msg(strstr(why.text, "of addresses") != NULL &&
                          strstr(why.text, "ulimit -v") != NULL &&
                          strstr(why.text, "is left on") == NULL,
                      "%s", why.text);
}

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) // these take terabytes themselves
/* As `ulimit -v` sets it. */
TEST(a_limit_of_addresses_is_named)
{
    struct home *home;
    struct sentence why = { "" };
    const struct rlimit limit = { (rlim_t)64 << 30, RLIM_INFINITY };
    emulated_choose("total=141G,quiet=1");
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
    ck_assert_int_eq(home_open_cuda("0", &home, &why), CAIRN_ERR_NO_MEMORY);
    ck_assert_msg(strstr(why.text, "RLIMIT_AS") != NULL, "%s", why.text);
}
#endif

TEST(what_was_opened_for_it_is_exported_by_segment_and_nothing_else_is)
{
    struct home *home = open_home("quiet=1");
    struct home_memory shown, kept;
    struct sentence why = { "" };
    int fd = -1;
    uint64_t bytes = 0;
    struct stat stat;
    must(home_memory_open_exportable(home, "a copy", CAIRN_SEGMENT_BYTES + 1, &shown, &why));
    must(home_memory_open(home, "a plane", 1, &kept, &why));
    ck_assert_uint_eq(home_memory_segments(&shown), 2);
    const uint64_t free_before = home_free_bytes(home);
    for (uint64_t i = 0; i < 2; i++) {
        must(home_memory_export(&shown, i, &fd, &bytes, &why));
        ck_assert(fstat(fd, &stat) == 0 && (uint64_t)stat.st_size == bytes);
        ck_assert_uint_eq(bytes, i == 0 ? CAIRN_SEGMENT_BYTES : (uint64_t)2 << 20);
        close(fd);
    }
    ck_assert_uint_eq(home_free_bytes(home), free_before);
    ck_assert_int_eq(home_memory_export(&kept, 0, &fd, &bytes, &why), CAIRN_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(why.text, "only published copies are exported") != NULL, "%s", why.text);
    home_memory_close(&shown);
    home_memory_close(&kept);
    home_close(home);
}

TEST(a_card_without_descriptors_exports_nothing_and_keeps_state)
{
    struct home *home = open_home("no_export=1,quiet=1");
    struct home_memory memory;
    struct sentence why = { "" };
    ck_assert(!home_info(home)->exports);
    ck_assert_int_eq(home_memory_open_exportable(home, "a copy", 1, &memory, &why),
                     CAIRN_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(why.text, "a copy: Emulated card 0") != NULL, "%s", why.text);
    must(home_memory_open(home, "a plane", 1, &memory, &why));
    home_memory_close(&memory);
    home_close(home);
}

/* ---- what a call fails with ---- */

static const struct {
    const char *options, *says;
} refused_calls[] = {
    { "result=1,call_fails=1,quiet=1", "a launch of zero failed on Emulated card 0" },
    { "result=801,call_fails=1,quiet=1", "CUDA_ERROR_NOT_SUPPORTED" },
    { "result=701,call_fails=1,quiet=1", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" },
    { "result=208,call_fails=1,quiet=1", "CUDA_ERROR_ALREADY_MAPPED" },
};

TEST_EACH(a_call_that_is_refused_fails_alone_and_the_home_goes_on, 0,
          sizeof refused_calls / sizeof *refused_calls)
{
    struct home *home = open_home(refused_calls[_i].options);
    struct home_memory memory;
    struct home_stream *stream;
    struct sentence why = { "" };
    uint8_t seen[64];
    must(home_memory_open(home, "a plane", sizeof seen, &memory, &why));
    must(home_stream_open(home, &stream, &why));
    struct home_work works[] = { { .kind = CAIRN_WORK_COPY }, { .kind = CAIRN_WORK_ZERO } };
    memset(seen, 7, sizeof seen);
    works[0].copy.to = memory.base;
    works[0].copy.from = seen;
    works[0].copy.bytes = works[1].zero.bytes = sizeof seen;
    works[1].zero.at = memory.base;
    must(home_run(stream, &works[0], 1, &why));
    ck_assert_int_eq(home_run(stream, &works[1], 1, &why), CAIRN_ERR_IO);
    ck_assert_msg(strstr(why.text, refused_calls[_i].says) != NULL, "%s", why.text);
    must(home_run(stream, &works[1], 1, &why));
    works[0].copy.to = seen;
    works[0].copy.from = memory.base;
    must(home_run(stream, &works[0], 1, &why));
    for (size_t i = 0; i < sizeof seen; i++) ck_assert_uint_eq(seen[i], 0);
    home_stream_close(stream);
    home_memory_close(&memory);
    home_close(home);
}

/* The second of two lists that are under way is refused, and the first has what it made. */
TEST(a_list_that_is_refused_leaves_the_one_ahead_alone)
{
    const struct emulated card = emulated_open("quiet=1");
    struct home *home = open_home("quiet=1");
    struct home_memory memory;
    struct home_stream *stream;
    struct sentence why = { "" };
    uint8_t zeros[64] = { 0 }, seen[64] = { 1 };
    must(home_memory_open(home, "a plane", sizeof seen, &memory, &why));
    must(home_stream_open(home, &stream, &why));
    struct home_work copy = { .kind = CAIRN_WORK_COPY }, zero = { .kind = CAIRN_WORK_ZERO };
    copy.copy.to = seen;
    copy.copy.from = zero.zero.at = memory.base;
    copy.copy.bytes = zero.zero.bytes = sizeof seen;
    must(home_run_begin(stream, &copy, 1, &why));
    emulated_set(&card, "result=1,call_fails=1");
    ck_assert_int_eq(home_run_begin(stream, &zero, 1, &why), CAIRN_ERR_IO);
    must(home_run_finish(stream, &why));
    ck_assert_mem_eq(seen, zeros, sizeof seen);
    home_stream_close(stream);
    home_memory_close(&memory);
    home_close(home);
}

TEST(a_card_that_fails_with_two_lists_under_way_says_so_of_both)
{
    struct home *home = open_home("quiet=1");
    struct home_memory memory;
    struct home_stream *stream;
    struct sentence why = { "" }, second = { "" };
    const struct emulated card = emulated_open("quiet=1");
    must(home_memory_open(home, "planes", 8192, &memory, &why));
    must(home_stream_open(home, &stream, &why));
    must(home_stream_begin(stream, &why));
    struct home_work zeros[2] = { { .kind = CAIRN_WORK_ZERO }, { .kind = CAIRN_WORK_ZERO } };
    emulated_set(&card, "stuck=1,launch_fails=1");
    for (int i = 0; i < 2; i++) {
        zeros[i].zero.at = (uint8_t *)memory.base + i * 4096;
        zeros[i].zero.bytes = 4096;
        must(home_run_begin(stream, &zeros[i], 1, &why));
    }
    emulated_set(&card, "stuck=0");
    ck_assert_int_eq(home_run_finish(stream, &why), CAIRN_ERR_IO);
    ck_assert_int_eq(home_run_finish(stream, &second), CAIRN_ERR_IO);
    ck_assert_str_eq(why.text, second.text);
    home_stream_close(stream);
    home_memory_close(&memory);
    home_close(home);
}

static const char *const failing[] = {
    "launch_fails=1,quiet=1",
    "ecc_at=3,quiet=1",
    "lost_at=3,quiet=1",
    "result=700,launch_fails=1,quiet=1",
    "result=702,launch_fails=1,quiet=1",
    "result=226,launch_fails=1,quiet=1",
    "result=810,launch_fails=1,quiet=1",
    "result=12345,launch_fails=1,quiet=1", /* of a driver to come */
};

TEST_EACH(a_card_that_failed_says_the_same_for_ever, 0, sizeof failing / sizeof *failing)
{
    struct home *home = open_home(failing[_i]);
    struct home_memory memory;
    struct home_stream *stream;
    struct sentence first = { "" }, again = { "" };
    ck_assert_int_eq(home_memory_open(home, "a plane", 4096, &memory, &first), CAIRN_OK);
    ck_assert_int_eq(home_stream_open(home, &stream, &first), CAIRN_OK);
    struct home_work zero = { .kind = CAIRN_WORK_ZERO };
    zero.zero.at = memory.base;
    zero.zero.bytes = 4096;
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < 4 && status == CAIRN_OK; i++) status = home_run(stream, &zero, 1, &first);
    ck_assert_int_eq(status, CAIRN_ERR_IO);
    ck_assert_msg(strstr(first.text, "nothing there can be trusted") != NULL, "%s", first.text);
    ck_assert_int_eq(home_run(stream, &zero, 1, &again), CAIRN_ERR_IO);
    ck_assert_str_eq(first.text, again.text);
    home_stream_close(stream);
    home_memory_close(&memory);
    home_close(home);
}

SUITE(30);
