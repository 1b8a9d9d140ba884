/* A call that waits long says for whom, before its time is over. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "client/job.h"
#include "tests/support/suite.h"
#include "tests/support/toy_scene.h"

static void open_rooms(void)
{
    toy_start(1, .seed = 3);
}

struct heard {
    int calls, paused_ms;
    char text[512];
};

static bool hear(void *context, const char *job, const char *text, int paused_ms)
{
    struct heard *heard = context;
    ck_assert_str_eq(job, "lonely");
    heard->calls++;
    heard->paused_ms = paused_ms;
    snprintf(heard->text, sizeof heard->text, "%s", text);
    return false; // which changes nothing: it is no pause
}

TEST(a_call_that_waits_long_says_once_for_whom)
{
    struct heard heard = { .calls = 0 };
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = rooms.address,
                                     .name = "waiter",
                                     .on_wait = hear,
                                     .on_wait_context = &heard };
    struct cairn_round round = { .struct_size = sizeof round };
    cairn *trainer;
    good(client_open(&opts, rooms.hub, &trainer));
    cairn_job *job = toy_ready(trainer, "lonely", TOY_SPEC(.workers_min = 2));
    fails(cairn_round_begin(job, 1000, &round), CAIRN_ERR_TIMEOUT, "1 of 2 attached");
    ck_assert_int_eq(heard.calls, 0); // its error is soon enough
    fails(cairn_round_begin(job, 6000, &round), CAIRN_ERR_TIMEOUT, "1 of 2 attached");
    ck_assert_int_eq(heard.calls, 1);
    ck_assert_int_eq(heard.paused_ms, 0);
    ck_assert_ptr_nonnull(strstr(heard.text, "1 of 2 attached"));
    cairn_close(trainer);
}

SUITE(60, open_rooms, toy_stop);
