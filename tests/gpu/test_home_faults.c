/* What a home on a card says when it cannot be had, is full, or fails. */
#include <sys/resource.h>
#include <sys/stat.h>

#include "gpu/cuda/cuda.h"
#include "tests/gpu/home_scene.h"

/* The home cannot be had so. */
static void cannot_open(const char *options, const char *device, cairn_status status,
                        const char *word)
{
    struct home *none;
    emulated_choose(options);
    refused(home_open_cuda(device, &none, &why), status, word);
}

static const struct {
    const char *options, *device;
    cairn_status status;
    const char *says;
} cards[] = {
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

TEST_EACH(a_card_that_is_not_to_be_had_is_refused_with_a_reason, 0, sizeof cards / sizeof *cards)
{
    cannot_open(cards[_i].options, cards[_i].device, cards[_i].status, cards[_i].says);
}

/* Of what it says then cuda.h tells nothing: the versions say why. */
TEST(a_driver_of_an_older_major_version_than_the_kernels_is_to_be_updated)
{
    if (cuda_image().toolkit < 13000) return; // the kernels of this build are no newer than CUDA 12
    cannot_open("driver=12080,result=300,load_fails=1,quiet=1", NULL, CAIRN_ERR_UNSUPPORTED,
                "is of CUDA 12.8: update it");
}

TEST(without_a_driver_there_is_no_home)
{
    struct home *none;
    setenv("CAIRN_CUDA_DRIVER", "/no/such/libcuda.so.1", 1);
    refused(home_open_cuda(NULL, &none, &why), CAIRN_ERR_NOT_FOUND, "no CUDA driver");
}

TEST(a_full_card_refuses_memory_and_goes_on)
{
    struct home_memory large;
    home_on("total=1G,others=900M,quiet=1");
    const uint64_t before = home_free_bytes(home);
    refused(home_memory_open(home, "moments", (uint64_t)300 << 20, &large, &why),
            CAIRN_ERR_NO_MEMORY, "moments: out of memory for 300 MiB");
    ck_assert_uint_eq(home_free_bytes(home), before);
    home_memory_close(home_take("moments", 1));
    ck_assert_uint_eq(home_free_bytes(home), before);
}

/* An H200, an A100, and eight cards that read each other: 843 GiB of addresses, and up to 3 TiB. */
static const char *const sizes[] = { "total=141G", "total=80G", "total=24G,devices=8,peers=1",
                                     "total=141G,devices=8,peers=1" };

TEST_EACH(addresses_are_reserved_for_a_card_of_any_size, 0, sizeof sizes / sizeof *sizes)
{
    home_on(sizes[_i]);
    home_take("a plane", CAIRN_SEGMENT_BYTES + 1);
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
    if (few_addresses[_i].status == CAIRN_OK) {
        home_on(few_addresses[_i].options);
        return;
    }
    cannot_open(few_addresses[_i].options, "0", few_addresses[_i].status, "of addresses");
    ck_assert_msg(strstr(why.text, "ulimit -v") != NULL && strstr(why.text, "is left on") == NULL,
                  "%s", why.text);
}

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) // these take terabytes themselves
/* As `ulimit -v` sets it. */
TEST(a_limit_of_addresses_is_named)
{
    const struct rlimit limit = { (rlim_t)64 << 30, RLIM_INFINITY };
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
    cannot_open("total=141G,quiet=1", "0", CAIRN_ERR_NO_MEMORY, "RLIMIT_AS");
}
#endif

TEST(what_was_opened_for_it_is_exported_by_segment_and_nothing_else_is)
{
    struct home_memory shown;
    int fd = -1;
    uint64_t bytes = 0;
    struct stat stat;
    home_on("quiet=1");
    must(home_memory_open_exportable(home, "a copy", CAIRN_SEGMENT_BYTES + 1, &shown, &why));
    struct home_memory *kept = home_take("a plane", 1);
    ck_assert_uint_eq(home_memory_segments(&shown), 2);
    const uint64_t free_before = home_free_bytes(home);
    for (uint64_t i = 0; i < 2; i++) {
        must(home_memory_export(&shown, i, &fd, &bytes, &why));
        ck_assert(fstat(fd, &stat) == 0 && (uint64_t)stat.st_size == bytes);
        ck_assert_uint_eq(bytes, i == 0 ? CAIRN_SEGMENT_BYTES : (uint64_t)2 << 20);
        close(fd);
    }
    ck_assert_uint_eq(home_free_bytes(home), free_before);
    refused(home_memory_export(kept, 0, &fd, &bytes, &why), CAIRN_ERR_UNSUPPORTED,
            "only published copies are exported");
    home_memory_close(&shown);
}

TEST(a_card_without_descriptors_exports_nothing_and_keeps_state)
{
    struct home_memory memory;
    home_on("no_export=1,quiet=1");
    ck_assert(!home_info(home)->exports);
    refused(home_memory_open_exportable(home, "a copy", 1, &memory, &why), CAIRN_ERR_UNSUPPORTED,
            "a copy: Emulated card 0");
    home_take("a plane", 1);
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
    uint8_t seen[64];
    home_on_with(refused_calls[_i].options, sizeof seen);
    struct home_work zero = zero_work(plane.base, sizeof seen);
    memset(seen, 7, sizeof seen);
    copy_bytes(plane.base, seen, sizeof seen);
    refused(home_run(stream, &zero, 1, &why), CAIRN_ERR_IO, refused_calls[_i].says);
    run_work(zero);
    copy_bytes(seen, plane.base, sizeof seen);
    for (size_t i = 0; i < sizeof seen; i++) ck_assert_uint_eq(seen[i], 0);
}

/* The second of two lists that are under way is refused, and the first has what it made. */
TEST(a_list_that_is_refused_leaves_the_one_ahead_alone)
{
    const struct emulated card = emulated_open("quiet=1");
    uint8_t zeros[64] = { 0 }, seen[64] = { 1 };
    home_on_with("quiet=1", sizeof seen);
    struct home_work copy = copy_work(seen, plane.base, sizeof seen),
                     zero = zero_work(plane.base, sizeof seen);
    must(home_run_begin(stream, &copy, 1, &why));
    emulated_set(&card, "result=1,call_fails=1");
    ck_assert_int_eq(home_run_begin(stream, &zero, 1, &why), CAIRN_ERR_IO);
    must(home_run_finish(stream, &why));
    ck_assert_mem_eq(seen, zeros, sizeof seen);
}

TEST(a_card_that_fails_with_two_lists_under_way_says_so_of_both)
{
    struct sentence second = { "" };
    const struct emulated card = emulated_open("quiet=1");
    home_on_with("quiet=1", 8192);
    must(home_stream_begin(stream, &why));
    struct home_work zeros[2];
    emulated_set(&card, "stuck=1,launch_fails=1");
    for (int i = 0; i < 2; i++) {
        zeros[i] = zero_work((uint8_t *)plane.base + i * 4096, 4096);
        must(home_run_begin(stream, &zeros[i], 1, &why));
    }
    emulated_set(&card, "stuck=0");
    ck_assert_int_eq(home_run_finish(stream, &why), CAIRN_ERR_IO);
    ck_assert_int_eq(home_run_finish(stream, &second), CAIRN_ERR_IO);
    ck_assert_str_eq(why.text, second.text);
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
    struct sentence first = { "" }, again = { "" };
    home_on_with(failing[_i], 4096);
    struct home_work zero = zero_work(plane.base, 4096);
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < 4 && status == CAIRN_OK; i++) status = home_run(stream, &zero, 1, &first);
    ck_assert_int_eq(status, CAIRN_ERR_IO);
    ck_assert_msg(strstr(first.text, "nothing there can be trusted") != NULL, "%s", first.text);
    ck_assert_int_eq(home_run(stream, &zero, 1, &again), CAIRN_ERR_IO);
    ck_assert_str_eq(first.text, again.text);
}

SUITE(30, .tear_down = home_off);
