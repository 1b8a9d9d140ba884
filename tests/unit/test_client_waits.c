/* A call that waits long says for whom, before its time is over. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "client/job.h"
#include "tests/support/suite.h"
#include "tests/support/toy.h"

static struct rooms rooms;

static void open_rooms(void)
{
    const struct cairn_fabric_mem_options fabric = { .seed = 3 };
    rooms_open(&rooms, 1, &fabric);
}

static void close_rooms(void)
{
    rooms_close(&rooms);
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
    const struct cairn_job_spec spec = toy_spec(0, 2);
    struct cairn_round round = { .struct_size = sizeof round };
    cairn *session;
    toy_good(client_open(&opts, rooms.hub, &session));
    cairn_job *job = toy_ready(session, "lonely", &spec);
    toy_fails(cairn_round_begin(job, 1000, &round), CAIRN_ERR_TIMEOUT, "1 of 2 attached");
    ck_assert_int_eq(heard.calls, 0); // its error is soon enough
    toy_fails(cairn_round_begin(job, 6000, &round), CAIRN_ERR_TIMEOUT, "1 of 2 attached");
    ck_assert_int_eq(heard.calls, 1);
    ck_assert_int_eq(heard.paused_ms, 0);
    ck_assert_ptr_nonnull(strstr(heard.text, "1 of 2 attached"));
    cairn_close(session);
}

SUITE(60, open_rooms, close_rooms);
