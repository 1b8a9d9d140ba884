/* What a home on a card says when it cannot be had, is full, or fails. */
#include <string.h>

#include "gpu/home.h"
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
};

TEST_EACH(a_card_that_is_not_to_be_had_is_refused_with_a_reason, 0,
          sizeof refused / sizeof *refused)
{
    struct cairn_home *home;
    struct cairn_sentence why = { "" };
    emulated_choose(refused[_i].options);
    ck_assert_int_eq(cairn_home_open_cuda(refused[_i].device, &home, &why), refused[_i].status);
    ck_assert_msg(strstr(why.text, refused[_i].says) != NULL, "%s", why.text);
}

TEST(without_a_driver_there_is_no_home)
{
    struct cairn_home *home;
    struct cairn_sentence why = { "" };
    setenv("CAIRN_CUDA_DRIVER", "/no/such/libcuda.so.1", 1);
    ck_assert_int_eq(cairn_home_open_cuda(NULL, &home, &why), CAIRN_ERR_NOT_FOUND);
    ck_assert_msg(strstr(why.text, "no CUDA driver") != NULL, "%s", why.text);
}

static struct cairn_home *open_home(const char *options)
{
    struct cairn_home *home;
    struct cairn_sentence why = { "" };
    emulated_choose(options);
    ck_assert_msg(cairn_home_open_cuda("0", &home, &why) == CAIRN_OK, "%s", why.text);
    return home;
}

TEST(a_full_card_refuses_memory_and_goes_on)
{
    struct cairn_home *home = open_home("total=1G,others=900M,quiet=1");
    struct cairn_home_memory large, small;
    struct cairn_sentence why = { "" };
    const uint64_t before = cairn_home_free_bytes(home);
    ck_assert_int_eq(cairn_home_memory_open(home, "moments", (uint64_t)300 << 20, &large, &why),
                     CAIRN_ERR_NO_MEMORY);
    ck_assert_msg(strstr(why.text, "moments: no memory for 300 MiB") != NULL, "%s", why.text);
    ck_assert_uint_eq(cairn_home_free_bytes(home), before);
    ck_assert_int_eq(cairn_home_memory_open(home, "moments", 1, &small, &why), CAIRN_OK);
    cairn_home_memory_close(&small);
    ck_assert_uint_eq(cairn_home_free_bytes(home), before);
    cairn_home_close(home);
}

static const char *const failing[] = { "launch_fails=1,quiet=1", "ecc_at=3,quiet=1",
                                       "lost_at=3,quiet=1" };

TEST_EACH(a_card_that_failed_says_the_same_for_ever, 0, sizeof failing / sizeof *failing)
{
    struct cairn_home *home = open_home(failing[_i]);
    struct cairn_home_memory memory;
    struct cairn_home_stream *stream;
    struct cairn_sentence first = { "" }, again = { "" };
    ck_assert_int_eq(cairn_home_memory_open(home, "a plane", 4096, &memory, &first), CAIRN_OK);
    ck_assert_int_eq(cairn_home_stream_open(home, &stream, &first), CAIRN_OK);
    struct cairn_work zero = { .kind = CAIRN_WORK_ZERO };
    zero.zero.at = memory.base;
    zero.zero.bytes = 4096;
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < 4 && status == CAIRN_OK; i++)
        status = cairn_home_run(stream, &zero, 1, &first);
    ck_assert_int_eq(status, CAIRN_ERR_IO);
    ck_assert_msg(strstr(first.text, "nothing there can be trusted") != NULL, "%s", first.text);
    ck_assert_int_eq(cairn_home_run(stream, &zero, 1, &again), CAIRN_ERR_IO);
    ck_assert_str_eq(first.text, again.text);
    cairn_home_stream_close(stream);
    cairn_home_memory_close(&memory);
    cairn_home_close(home);
}

SUITE(30);
