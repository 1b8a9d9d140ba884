/* Leases at the coordinator, against scripted shards: all of them keep a version or none does, and whatever
 * ends a lease ends it on all of them. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

enum { LONG_MS = 60000 };

/* Ticks every 10 ms, and no lease is over LONG_MS. */
static void set_up_ticking(void)
{
    open_fake();
    fake_coordinator_stop(&fake);
    fake.options.heartbeat_ms = 20;
    fake.options.lease_ttl_max_ms = LONG_MS;
    fake_coordinator_start(&fake);
    start_trained();
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "ctl");
}

static struct fake_peer reader(uint64_t session)
{
    struct fake_peer peer = fake_connect(&fake, CAIRN_ROLE_WIRE_READER, "r0");
    const uint32_t request = fake_ask(&peer, JobOpen, .name = "toy", .role = CAIRN_ROLE_WIRE_READER,
                                      .session = session);
    fake_hear(&peer, Attached, request);
    return peer;
}

static uint32_t ask_keyed(struct fake_peer *peer, uint64_t generation, uint64_t step,
                          uint32_t ttl_ms, uint64_t key)
{
    return fake_ask(peer, LeaseTake, .job = job, .generation = generation, .step = step,
                    .ttl_ms = ttl_ms, .key = key);
}

static uint32_t ask(struct fake_peer *peer, uint64_t generation, uint64_t step, uint32_t ttl_ms)
{
    return ask_keyed(peer, generation, step, ttl_ms, 1);
}

static void expect_leased(struct fake_peer *peer, uint32_t request, uint64_t step)
{
    Cairn__Leased *leased = fake_hear(peer, Leased, request);
    ck_assert_uint_eq(leased->generation, 1);
    ck_assert_uint_eq(leased->step, step);
}

static void drop_lease(struct fake_peer *peer, uint64_t step, uint64_t key)
{
    const uint32_t request = fake_ask(peer, LeaseDrop, .job = job, .generation = step != 0 ? 1 : 0,
                                      .step = step, .key = key);
    fake_hear(peer, Done, request);
}

static bool all_keep(uint32_t count)
{
    return fake.shards[0].lease_count == count && fake.shards[1].lease_count == count;
}

TEST(a_version_is_kept_by_all_shards_until_it_is_dropped)
{
    struct fake_peer r = reader(20);
    expect_leased(&r, ask(&r, 0, 0, 30000), 1); // the newest
    ck_assert(all_keep(1));
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(fake.shards[i].lease_ttl_ms, 30000);
        ck_assert_uint_eq(fake.shards[i].lease_version.step, 1);
    }
    train();
    expect_leased(&r, ask(&r, 1, 1, LONG_MS), 1); // renewed
    expect_leased(&w, ask(&w, 0, 0, 5000), 2);
    ck_assert(all_keep(2));
    Cairn__JobStatus *status = show_job("toy");
    ck_assert_uint_eq(status->n_leases, 2);
    ck_assert_str_eq(status->leases[1]->holder, "r0");
    ck_assert_uint_eq(status->leases[1]->step, 1);
    ck_assert_uint_gt(status->leases[1]->left_ms, 30000);
    ck_assert_uint_le(status->leases[1]->left_ms, LONG_MS);
    ck_assert_str_eq(status->leases[0]->holder, "w0");
    drop_lease(&r, 1, 0);
    fake_until(&fake, all_keep(1));
    drop_lease(&r, 1, 0); // nothing to drop: no fault
    drop_lease(&w, 2, 0);
    fake_until(&fake, all_keep(0));
    fake_peer_close(&r);
}

TEST(one_shard_that_refuses_ends_it_on_all)
{
    struct fake_peer r = reader(20);
    fake.shards[1].refuse_lease = "a lease needs 10 bytes, and 3 are left";
    fake.shards[1].refuse_lease_status = CAIRN_ERR_NO_MEMORY;
    fake_expect_error(&r, ask(&r, 0, 0, LONG_MS), CAIRN_ERR_NO_MEMORY,
                      "s1: a lease needs 10 bytes, and 3 are left");
    fake_until(&fake, all_keep(0));
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_LEASE_END], 1);
    fake.shards[1].refuse_lease = NULL;
    expect_leased(&r, ask(&r, 0, 0, LONG_MS), 1);
    fake.shards[1].refuse_lease = "busy"; // a renewal that fails leaves what there was
    fake.shards[1].refuse_lease_status = CAIRN_ERR_BUSY;
    fake_expect_error(&r, ask(&r, 1, 1, LONG_MS), CAIRN_ERR_BUSY, "s1: busy");
    ck_assert(all_keep(1));
    fake.shards[1].refuse_lease = "not kept any more"; // but what is gone is gone
    fake.shards[1].refuse_lease_status = CAIRN_ERR_VERSION_GONE;
    fake_expect_error(&r, ask(&r, 1, 1, LONG_MS), CAIRN_ERR_VERSION_GONE, "s1: not kept");
    fake_until(&fake, all_keep(0));
    fake_peer_close(&r);
}

TEST(readers_of_one_version_share_what_the_shards_keep)
{
    struct fake_peer a = reader(20), b = reader(21);
    expect_leased(&a, ask(&a, 0, 0, LONG_MS), 1);
    expect_leased(&b, ask(&b, 1, 1, 1000), 1);
    ck_assert(all_keep(1));
    ck_assert_uint_gt(fake.shards[0].lease_ttl_ms, 30000); // for the longer of the two
    drop_lease(&a, 1, 0);
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_LEASE_END], 0);
    fake_peer_close(&b); // a reader that dies
    fake_until(&fake, all_keep(0));
    fake_peer_close(&a);
}

TEST(a_reader_that_closes_the_job_ends_its_leases)
{
    struct fake_peer r = reader(20);
    expect_leased(&r, ask(&r, 0, 0, LONG_MS), 1);
    train();
    expect_leased(&r, ask(&r, 0, 0, LONG_MS), 2);
    ck_assert(all_keep(2));
    fake_say(&r, 0, JobLeave, .job = job);
    fake_until(&fake, all_keep(0));
    fake_peer_close(&r);
}

TEST(more_versions_than_the_configuration_allows_are_refused)
{
    struct fake_peer r = reader(20);
    fake.options.lease_versions_max = 1;
    expect_leased(&r, ask(&r, 0, 0, LONG_MS), 1);
    train();
    fake_expect_error(&w, ask(&w, 0, 0, LONG_MS), CAIRN_ERR_BUSY, "leases.versions_max");
    expect_leased(&w, ask(&w, 1, 1, LONG_MS), 1); // the same one is no other
    drop_lease(&r, 1, 0);
    drop_lease(&w, 1, 0);
    expect_leased(&w, ask(&w, 0, 0, LONG_MS), 2);
    ck_assert(all_keep(1));
    fake_peer_close(&r);
}

TEST(a_lease_asked_for_while_a_shard_is_away_waits_for_it)
{
    struct fake_peer r = reader(20);
    fake_shard_away(&fake, 1);
    const uint32_t request = ask(&r, 0, 0, LONG_MS);
    fake_expect_silence(&r, job);
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_LEASE_KEEP], 0);
    fake_expect_error(&r, ask(&r, 0, 0, LONG_MS), CAIRN_ERR_BUSY, "being leased already");
    fake_shard_up(&fake, 1);
    expect_leased(&r, request, 1);
    ck_assert(all_keep(1));
    fake_peer_close(&r);
}

TEST(a_shard_that_goes_away_while_it_is_asked_refuses)
{
    struct fake_peer r = reader(20);
    fake.shards[1].holds_lease = true;
    const uint32_t request = ask(&r, 0, 0, LONG_MS);
    fake_until(&fake, fake.shards[0].lease_count == 1 && fake.shards[1].lease_request != 0);
    fake_shard_away(&fake, 1);
    fake_expect_error(&r, request, CAIRN_ERR_CLOSED, "s1");
    fake_until(&fake, fake.shards[0].lease_count == 0);
    fake_peer_close(&r);
}

TEST(a_wish_that_is_withdrawn_leaves_nothing_and_one_of_another_call_stays)
{
    struct fake_peer r = reader(20);
    fake.shards[1].holds_lease = true;
    const uint32_t first = ask_keyed(&r, 0, 0, LONG_MS, 77);
    fake_until(&fake, fake.shards[0].lease_count == 1 && fake.shards[1].lease_request != 0);
    // Its caller has timed out.
    const uint32_t second = fake_ask(&r, LeaseDrop, .job = job, .key = 77);
    fake_expect_error(&r, first, CAIRN_ERR_CANCELED, "ended");
    fake_hear(&r, Done, second);
    fake_until(&fake, fake.shards[0].lease_count == 0);
    fake_shard_lease_done(&fake.shards[1]); // too late: of nobody
    fake.shards[1].holds_lease = false;
    expect_leased(&r, ask_keyed(&r, 0, 0, LONG_MS, 78), 1);
    expect_leased(&r, ask_keyed(&r, 1, 1, LONG_MS, 79), 1); // a renewal
    drop_lease(&r, 0, 79);                                  // it is withdrawn, the lease stays
    ck_assert(all_keep(1));
    drop_lease(&r, 0, 78);
    fake_until(&fake, all_keep(0));
    fake_peer_close(&r);
}

TEST(a_new_coordinator_knows_no_leases_and_takes_one_anew)
{
    struct fake_peer r = reader(20);
    expect_leased(&r, ask(&r, 0, 0, LONG_MS), 1);
    fake_coordinator_stop(&fake);
    fake_peer_close(&r);
    fake_peer_close(&w);
    fake_peer_close(&admin);
    fake_coordinator_start(&fake);
    fake_shards_up(&fake, 2);
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "admin");
    r = reader(20);
    ck_assert_uint_eq(show_job("toy")->n_leases, 0);
    ck_assert(all_keep(1)); // of the former one: it ends by the clocks of the shards
    expect_leased(&r, ask(&r, 1, 1, LONG_MS), 1);
    ck_assert(all_keep(2));
    drop_lease(&r, 1, 0);
    fake_until(&fake, all_keep(1));
    fake_peer_close(&r);
}

SUITE(30, open_trained, close_fake);

TEST(a_lease_that_is_not_renewed_ends)
{
    struct fake_peer r = reader(20);
    expect_leased(&r, ask(&r, 0, 0, 60), 1);
    expect_leased(&w, ask(&w, 0, 0, 200), 1);
    fake_until(&fake, all_keep(0));
    ck_assert_uint_eq(show_job("toy")->n_leases, 0);
    fake_expect_error(&r, ask(&r, 0, 0, LONG_MS + 1), CAIRN_ERR_INVALID, "leases.ttl_max");
    fake_expect_error(&r, ask(&r, 0, 0, 0), CAIRN_ERR_INVALID, "leases.ttl_max");
    fake_peer_close(&r);
}

SUITE(30, set_up_ticking, close_fake);
