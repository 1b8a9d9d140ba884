/* Workers that wish that the newest snapshot is restored, and those who come beside them without the wish. */
#include <check.h>
#include <stdlib.h>

#include "tests/support/fake_cluster.h"
#include "tests/support/pages.h"
#include "tests/support/suite.h"

static struct fake_cluster fake;
static struct fake_peer w, admin;
static uint64_t job;

static struct cairn_cluster_job *toy(void)
{
    return cairn_cluster_job_find(fake.cluster, "toy");
}

/* Two shards, a job at step 1, of which there is a snapshot. */
static void set_up(void)
{
    Cairn__SnapshotCreate create = CAIRN__SNAPSHOT_CREATE__INIT;
    job = fake_open_trained(&fake, &w, &admin);
    fake.options.heartbeat_ms = 20; // so long a part may be missed, of a shard that ended
    uv_timer_set_repeat(&fake.cluster->tick, 10);
    uv_timer_again(&fake.cluster->tick);
    create.job = (char *)(uintptr_t) "toy";
    create.wait = true;
    const uint32_t request = fake_request(&admin, CAIRN_MSG_SNAPSHOT_CREATE, &create.base);
    cairn_message_free(fake_expect(&fake, &admin, CAIRN_MSG_SNAPSHOT_STATUS, request));
}
static void tear_down(void)
{
    fake_peer_close(&w);
    fake_peer_close(&admin);
    fake_close(&fake);
}

static void lose(void)
{
    fake_shard_forget(&fake, 1);
    fake_shard_up(&fake, 1);
    fake_expect_error(&fake, &w, 0, CAIRN_ERR_JOB_LOST, "lost: s1");
}

static void drop(void)
{
    Cairn__JobRemove message = CAIRN__JOB_REMOVE__INIT;
    message.name = (char *)(uintptr_t) "toy";
    message.force = true;
    const uint32_t request = fake_request(&admin, CAIRN_MSG_JOB_REMOVE, &message.base);
    cairn_message_free(fake_expect(&fake, &admin, CAIRN_MSG_JOB_REMOVED, request));
}

static void send_page(void *context, const Cairn__Page *page)
{
    struct fake_peer *peer = context;
    fake_send(peer, CAIRN_MSG_PAGE, peer->last_request, &page->base);
}

/* With the wish. */
static uint32_t ask_open(struct fake_peer *peer, const struct cairn_job_spec_data *spec)
{
    uint8_t *bytes;
    Cairn__JobOpen open = CAIRN__JOB_OPEN__INIT;
    open.name = spec->name;
    open.role = CAIRN_ROLE_WIRE_WORKER;
    open.session = 50;
    open.token = 51;
    open.resume_latest = true;
    ck_assert_int_eq(cairn_spec_pack(spec, &bytes, &open.spec_bytes), CAIRN_OK);
    const uint32_t request = fake_request(peer, CAIRN_MSG_JOB_OPEN, &open.base);
    pages_each(CAIRN_PAGE_SPEC, bytes, open.spec_bytes, send_page, peer);
    free(bytes);
    return request;
}

static void expect_attached(struct fake_peer *peer, uint32_t request)
{
    Cairn__Attached *attached = (Cairn__Attached *)fake_expect(&fake, peer, CAIRN_MSG_ATTACHED,
                                                               request);
    ck_assert_uint_eq(attached->generation, 2);
    ck_assert_uint_eq(attached->step, 1);
    cairn_message_free(&attached->base);
}

START_TEST(who_comes_without_the_wish_begins_no_job_before_it_is_fulfilled)
{
    struct cairn_job_spec_data spec = fake_spec(1);
    struct fake_peer with = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "with");
    struct fake_peer without = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "without");
    drop();
    const uint32_t wish = ask_open(&with, &spec);
    const uint32_t plain = fake_job_open(&without, &spec, 60, 1);
    expect_attached(&with, wish);
    expect_attached(&without, plain);
    cairn_spec_release(&spec);
    fake_peer_close(&with);
    fake_peer_close(&without);
}
END_TEST

START_TEST(a_reader_has_nothing_restored)
{
    Cairn__JobOpen open = CAIRN__JOB_OPEN__INIT;
    struct fake_peer reader = fake_connect(&fake, CAIRN_ROLE_WIRE_READER, "reader");
    lose();
    open.name = (char *)(uintptr_t) "toy";
    open.role = CAIRN_ROLE_WIRE_READER;
    open.session = 40;
    open.resume_latest = true;
    const uint32_t request = fake_request(&reader, CAIRN_MSG_JOB_OPEN, &open.base);
    fake_expect_error(&fake, &reader, request, CAIRN_ERR_JOB_LOST, "lost: s1");
    ck_assert_int_eq(toy()->state, CAIRN_CLUSTER_JOB_LOST);
    fake_peer_close(&reader);
}
END_TEST

START_TEST(a_lost_job_keeps_how_many_workers_it_was_amended_to_have)
{
    Cairn__JobAmend message = CAIRN__JOB_AMEND__INIT;
    message.job = job;
    message.key = 1;
    message.workers_min = 1;
    message.workers_max = 4;
    fake_expect_amended(&fake, &w, fake_request(&w, CAIRN_MSG_JOB_AMEND, &message.base), 1);
    lose();
    fake_peer_close(&w);
    w = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "again");
    struct cairn_job_spec_data spec = fake_spec(1);
    spec.workers_max = 4;
    expect_attached(&w, ask_open(&w, &spec));
    cairn_spec_release(&spec);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator_resume");
    TCase *tc = tcase_create("resume");
    tcase_set_timeout(tc, 30);
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, who_comes_without_the_wish_begins_no_job_before_it_is_fulfilled);
    tcase_add_test(tc, a_reader_has_nothing_restored);
    tcase_add_test(tc, a_lost_job_keeps_how_many_workers_it_was_amended_to_have);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
