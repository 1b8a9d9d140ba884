/* Storage that is looked at on a thread of its own. */
#include <check.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "server/base/daemon.h"
#include "tests/support/suite.h"

static uv_loop_t loop;
static struct storage_watch watch;
static int gate[2]; /* a byte for each look that may go on */
static atomic_int looks;
static int said;

static cairn_status judge(const char *path, uint64_t token, const struct storage_owner *owner,
                          struct sentence *why)
{
    (void)owner;
    char byte;
    looks++;
    if (read(gate[0], &byte, 1) != 1) return CAIRN_ERR_IO;
    if (byte == '+') return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_IO, "%s: wrong, %d", path, (int)token);
}

static void on_said(struct storage_watch *of)
{
    ck_assert_ptr_eq(of->context, &gate);
    said++;
}

static void set_up(void)
{
    struct sentence why;
    uv_loop_init(&loop);
    ck_assert_int_eq(pipe(gate), 0);
    watch = (struct storage_watch) { .judge = judge, .on_said = on_said, .context = &gate };
    ck_assert_int_eq(storage_watch_open(&watch, &loop, &why), CAIRN_OK);
}

static void tear_down(void)
{
    close(gate[1]); // a look ends with it
    ck_assert(storage_watch_close(&watch, NULL, NULL));
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    storage_watch_release(&watch);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    close(gate[0]);
}

/* The look that is under way ends so. */
static void let(const char *how, int told)
{
    ck_assert_int_eq(write(gate[1], how, 1), 1);
    while (said != told) uv_run(&loop, UV_RUN_ONCE);
}

TEST(what_is_wrong_stands_until_a_look_says_otherwise)
{
    storage_watch_told(&watch, "/storage", 7);
    let("-", 1);
    ck_assert_str_eq(watch.said.text, "/storage: wrong, 7");
    storage_watch_told(&watch, "/storage", 7); // a new connection to the coordinator
    while (looks < 2) uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert_str_eq(watch.said.text, "/storage: wrong, 7"); // nobody knows better yet
    let("+", 2);
    ck_assert_str_eq(watch.said.text, "");
}

TEST(who_is_told_of_no_storage_says_nothing_of_it)
{
    storage_watch_told(&watch, "/storage", 7);
    let("-", 1);
    storage_watch_told(&watch, "/storage", 0);
    ck_assert_str_eq(watch.said.text, "");
    storage_watch_tick(&watch);
    ck_assert_int_eq(looks, 1);
}

SUITE(30, set_up, tear_down);
