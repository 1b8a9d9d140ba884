/* Reduce groups: who is grouped with whom, what shards are told of it, and that it is recorded. The
 * shards are scripted, and fail the test where a round refers to what they were not told (fake_shard.c). */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "server/coordinator/round.h"
#include "tests/support/fake_cluster.h"
#include "tests/support/suite.h"

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof(array)[0]))

/* ---- the plan ---- */

TEST(groups_are_numbered_by_their_least_rank_and_others_are_alone)
{
    static const char *const workers[] = { "b", "a", "", "b", "a", "c", "", "b" };
    static const char *const shards[] = { "a", "b", "", "b", "d" };
    static const uint32_t group_of[] = { 0, 1, 2, 0, 1, 3, 4, 0 };
    struct groups_plan plan;
    ck_assert_int_eq(groups_plan_make(workers, COUNT(workers), shards, COUNT(shards), &plan),
                     CAIRN_OK);
    ck_assert_uint_eq(plan.group_count, 5);
    ck_assert_mem_eq(plan.group_of, group_of, sizeof group_of);
    ck_assert_uint_eq(plan.relay_count, 3);
    ck_assert_uint_eq(plan.relays[0], 1); // group 0: host b, shards 1 and 3
    ck_assert_uint_eq(plan.relays[1], 3);
    ck_assert_uint_eq(plan.relays[2], 0);
    ck_assert_uint_eq(plan.first[3], 5); // of two on a host without a shard, or one with: alone
    groups_plan_release(&plan);
}

TEST(a_relay_serves_itself_and_its_share_of_the_other_owners)
{
    static const char *const workers[] = { "a", "a", "b" };
    static const char *const shards[] = { "b", "a", "b", "a", "b" };
    static const uint32_t relay_of[] = { 1, 1, 1, 3, 1 }; // local[o % 2] of { 1, 3 }, or itself
    struct groups_plan plan;
    ck_assert_int_eq(groups_plan_make(workers, COUNT(workers), shards, COUNT(shards), &plan),
                     CAIRN_OK);
    for (uint32_t o = 0; o < COUNT(shards); o++) {
        ck_assert_uint_eq(plan.relays[groups_relay_of(&plan, 0, o)], relay_of[o]);
        ck_assert_uint_eq(groups_relay_of(&plan, 1, o), CAIRN_GROUPS_ALONE);
    }
    groups_plan_release(&plan);
}

SUITE(30);

/* ---- a job ---- */

static struct fake_cluster fake;
static struct fake_peer w[5], admin;

/* Shards 0 and 1 on host a, 2 on b. */
static void set_up(void)
{
    fake_open(&fake, 3);
    for (uint32_t i = 0; i < 3; i++) fake.shards[i].host[0] = i < 2 ? 'a' : 'b';
    fake_shards_up(&fake, 3);
    for (size_t i = 0; i < COUNT(w); i++) w[i].fd = -1;
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "admin");
}
static void tear_down(void)
{
    for (size_t i = 0; i < COUNT(w); i++) fake_peer_close(&w[i]);
    fake_peer_close(&admin);
    fake_close(&fake);
}

/* Rank i, on a host; its session is 10 + i. */
static uint64_t attach(uint32_t i, const char *host, cairn_reduce_groups groups)
{
    struct job_spec_data spec = fake_spec(1);
    spec.reduce_groups = groups;
    w[i] = fake_connect_at(&fake, CAIRN_ROLE_WIRE_WORKER, "worker", host);
    const uint32_t request = fake_job_open(&w[i], &spec, 10 + i, i);
    const uint64_t job = fake_hear(&w[i], Attached, request)->job;
    spec_release(&spec);
    return job;
}

/* Ranks 0 to count - 1, on the hosts that the letters name. */
static uint64_t attach_all(const char *hosts, cairn_reduce_groups groups)
{
    uint64_t job = 0;
    for (uint32_t i = 0; hosts[i] != '\0'; i++) {
        const char host[2] = { hosts[i], '\0' };
        job = attach(i, host, groups);
    }
    fake_init(&w[0], job);
    return job;
}

/* A round of the ranks from first to end - 1. */
static void one_round(uint64_t job, uint32_t first, uint32_t end)
{
    uint64_t round = 0;
    for (uint32_t i = first; i < end; i++) round = fake_begin(&w[i], job);
    for (uint32_t i = first; i < end; i++) fake_commit(&w[i], job, round);
}

/* The round was opened at the shard for so many. */
static void expect_opened(uint32_t shard, uint32_t count)
{
    ck_assert_uint_eq(fake.shards[shard].member_count, count);
}

static const struct fake_member *member_at(const struct fake_shard *shard, uint64_t number)
{
    for (uint32_t i = 0; i < shard->member_places; i++)
        if (shard->members[i].number == number) return &shard->members[i];
    return NULL;
}

/* The place-th contributor of the shard's round is the relay of that name. */
static void expect_relay(uint32_t shard, uint32_t place, uint32_t relay, const char *name,
                         uint32_t rank)
{
    const uint64_t number = fake.shards[relay].relay.number;
    const struct fake_member *member = member_at(&fake.shards[shard], number);
    ck_assert_uint_ne(number, 0);
    ck_assert_uint_eq(fake.shards[shard].opened[place], number);
    ck_assert_ptr_nonnull(member);
    ck_assert_str_eq(member->name, name);
    ck_assert_uint_eq(member->rank, rank);
}

static void expect_owners(uint32_t relay, uint32_t first, uint32_t second, uint32_t count)
{
    const struct fake_relay *r = &fake.shards[relay].relay;
    ck_assert_uint_eq(r->owner_count, count);
    ck_assert_uint_eq(r->owners[0], first);
    if (count > 1) ck_assert_uint_eq(r->owners[1], second);
}

TEST(a_host_with_two_workers_and_a_shard_contributes_once_to_every_shard)
{
    one_round(attach_all("aabba", CAIRN_GROUPS_HOST), 0, 5);
    for (uint32_t i = 0; i < 3; i++) {
        const struct fake_shard *shard = &fake.shards[i];
        expect_opened(i, 2);
        ck_assert_uint_eq(shard->seen[CAIRN_MSG_RELAY_SET], 1);
        ck_assert_uint_eq(shard->seen[CAIRN_MSG_MEMBER_JOIN], 5 + 2);
        ck_assert_uint_eq(shard->opened_relay, shard->relay.number);
        ck_assert_uint_eq(shard->relay.member_count, i < 2 ? 3 : 2);
        ck_assert_uint_eq(shard->relay.members[0], i < 2 ? 10 : 12);
    }
    ck_assert_uint_eq(fake.shards[0].relay.members[2], 14);
    expect_owners(0, 0, 2, 2); // itself, and of the other host 2 % 2
    expect_owners(1, 1, 0, 1);
    ck_assert_uint_eq(fake.shards[2].relay.owner_count, 3);
    expect_relay(0, 0, 0, "relay s0 (ranks 0-1,4)", 0);
    expect_relay(1, 0, 1, "relay s1 (ranks 0-1,4)", 0);
    expect_relay(2, 0, 0, "relay s0 (ranks 0-1,4)", 0);
    for (uint32_t i = 0; i < 3; i++) expect_relay(i, 1, 2, "relay s2 (ranks 2-3)", 2);
}

TEST(a_worker_that_is_alone_stands_at_its_place_in_the_order_of_least_ranks)
{
    one_round(attach_all("bxaab", CAIRN_GROUPS_HOST), 0, 5);
    for (uint32_t i = 0; i < 3; i++) {
        expect_opened(i, 3);
        expect_relay(i, 0, 2, "relay s2 (ranks 0,4)", 0);
        ck_assert_uint_eq(fake.shards[i].opened[1], 11);
        expect_relay(i, 2, i == 1 ? 1 : 0, i == 1 ? "relay s1 (ranks 2-3)" : "relay s0 (ranks 2-3)",
                     2);
    }
}

static uint32_t told_of(uint16_t type)
{
    uint32_t sum = 0;
    for (int i = 0; i < 3; i++) sum += fake.shards[i].seen[type];
    return sum;
}

TEST(rounds_of_the_same_groups_are_told_nothing_more)
{
    const uint64_t job = attach_all("aabb", CAIRN_GROUPS_HOST);
    one_round(job, 0, 4);
    const uint32_t joins = told_of(CAIRN_MSG_MEMBER_JOIN);
    one_round(job, 0, 4);
    one_round(job, 0, 4);
    ck_assert_uint_eq(told_of(CAIRN_MSG_MEMBER_JOIN), joins);
    ck_assert_uint_eq(told_of(CAIRN_MSG_RELAY_SET), 3);
    ck_assert_uint_eq(told_of(CAIRN_MSG_MEMBER_LEAVE), 0);
    expect_opened(2, 2);
}

TEST(without_the_spec_s_word_nobody_relays)
{
    one_round(attach_all("aabb", CAIRN_GROUPS_NONE), 0, 4);
    ck_assert_uint_eq(told_of(CAIRN_MSG_RELAY_SET), 0);
    for (uint32_t i = 0; i < 3; i++) {
        expect_opened(i, 4);
        ck_assert_uint_eq(fake.shards[i].opened_relay, 0);
    }
}

TEST(workers_that_share_no_host_with_a_shard_are_alone)
{
    one_round(attach_all("axxb", CAIRN_GROUPS_HOST), 0, 4);
    ck_assert_uint_eq(told_of(CAIRN_MSG_RELAY_SET), 0);
    expect_opened(0, 4);
}

static void leave(uint32_t i)
{
    fake_peer_close(&w[i]);
}

TEST(a_worker_that_leaves_has_the_groups_formed_anew)
{
    const uint64_t job = attach_all("baab", CAIRN_GROUPS_HOST);
    one_round(job, 0, 4);
    const uint64_t before = fake.shards[0].relay.number, of_b = fake.shards[2].relay.number;
    leave(0); // b has one worker left
    fake_until(&fake, member_at(&fake.shards[0], 10) == NULL);
    one_round(job, 1, 4);
    for (uint32_t i = 0; i < 3; i++) {
        expect_opened(i, 2);
        ck_assert_ptr_null(member_at(&fake.shards[i], before));
        ck_assert_ptr_null(member_at(&fake.shards[i], of_b));
        expect_relay(i, 0, i == 1 ? 1 : 0, i == 1 ? "relay s1 (ranks 1-2)" : "relay s0 (ranks 1-2)",
                     1);
        ck_assert_uint_eq(fake.shards[i].opened[1], 13);
    }
    ck_assert_uint_eq(fake.shards[2].relay.member_count, 0); // it was told that it relays no more
    ck_assert_uint_eq(fake.shards[2].opened_relay, 0);
    ck_assert_uint_ne(fake.shards[0].relay.number, before);
}

TEST(a_shard_that_comes_back_has_all_of_it_told_anew)
{
    const uint64_t job = attach_all("aabb", CAIRN_GROUPS_HOST);
    one_round(job, 0, 4);
    const uint64_t before = fake.shards[2].relay.number;
    fake_shard_blink(&fake, 1);
    for (uint32_t i = 0; i < 4; i++) // it has another address now
        fake_hear(&w[i], ShardsChanged, 0);
    one_round(job, 0, 4);
    ck_assert_uint_eq(told_of(CAIRN_MSG_RELAY_SET), 6);
    ck_assert_uint_ne(fake.shards[2].relay.number, before);
    for (uint32_t i = 0; i < 3; i++) {
        expect_opened(i, 2);
        ck_assert_ptr_null(member_at(&fake.shards[i], before));
        expect_relay(i, 1, 2, "relay s2 (ranks 2-3)", 2);
    }
}

TEST(a_new_coordinator_forms_its_own_groups)
{
    const uint64_t job = attach_all("aab", CAIRN_GROUPS_HOST);
    one_round(job, 0, 3);
    ck_assert_uint_eq(fake.shards[2].seen[CAIRN_MSG_RELAY_SET], 0);
    fake_coordinator_stop(&fake);
    for (uint32_t i = 0; i < 3; i++) fake_peer_close(&w[i]);
    fake_coordinator_start(&fake);
    fake_shards_up(&fake, 3);
    for (uint32_t i = 0; i < 3; i++) attach(i, i < 2 ? "a" : "b", CAIRN_GROUPS_HOST);
    one_round(job, 0, 3);
    for (uint32_t i = 0; i < 3; i++) expect_opened(i, 2);
    // One that does not relay for this coordinator may do so for the one before: it is told.
    ck_assert_uint_eq(fake.shards[2].seen[CAIRN_MSG_RELAY_SET], 1);
    ck_assert_uint_eq(fake.shards[2].relay.number, 0);
}

TEST(a_write_is_opened_for_its_writer_alone)
{
    const uint64_t job = attach_all("aabb", CAIRN_GROUPS_HOST);
    one_round(job, 0, 4);
    const uint32_t request = fake_ask(&w[3], WriteBegin, .job = job);
    Cairn__RoundOpened *opened = fake_hear(&w[3], RoundOpened, request);
    for (uint32_t i = 0; i < 3; i++) {
        fake_until(&fake, fake.shards[i].member_count == 1);
        ck_assert_uint_eq(fake.shards[i].opened[0], 13);
        ck_assert_uint_eq(fake.shards[i].opened_relay, 0);
    }
    fake_commit(&w[3], job, opened->round);
    one_round(job, 0, 4);
    ck_assert_uint_eq(told_of(CAIRN_MSG_RELAY_SET), 3); // what was told before holds
    expect_opened(0, 2);
}

static Cairn__JobStatus *show(void)
{
    return fake_call(&admin, JobStatus, JobShow, .name = "toy");
}

/* The groups are given up in the round that is open, and its workers do it again by themselves. */
static void expect_given_up(bool gives_up, const char *why)
{
    fake.shards[2].holds_reduced = true;
    const uint64_t job = attach_all("aabb", CAIRN_GROUPS_HOST);
    (void)fake_begin(&w[0], job);
    if (gives_up) {
        fake_until(&fake, fake.shards[2].round != 0); // before that it relays nothing
        fake_shard_give_up(&fake.shards[2], why);
    }
    fake_hear(&w[0], RoundResult, 0); // void
    fake_ask(&w[0], RoundBegin, .job = job);
    fake_until(&fake, fake.shards[2].member_count == 4); // opened again, each by itself
    Cairn__JobStatus *status = show();
    ck_assert_uint_eq(status->n_reduce_groups, 0);
    ck_assert_ptr_nonnull(strstr(status->reduce_groups_off, why));
}

TEST(an_owner_that_refuses_a_relay_ends_the_groups)
{
    fake.shards[1].refuse_relay = "no room for a relay";
    expect_given_up(false, "no room for a relay");
}

TEST(a_shard_that_cannot_relay_ends_the_groups)
{
    fake.shards[2].refuse_relay_set = "out of memory for sums";
    expect_given_up(false, "relay s2 failed: s2: out of memory for sums");
}

TEST(a_relay_that_gives_up_in_a_round_ends_the_groups)
{
    expect_given_up(true, "out of memory for sums");
}

TEST(a_relay_that_gives_up_because_a_shard_is_away_relays_when_it_is_back)
{
    const uint64_t job = attach_all("aabb", CAIRN_GROUPS_HOST);
    one_round(job, 0, 4);
    fake_shard_away(&fake, 1);
    fake_shard_give_up(&fake.shards[2], "shard s1 does not answer shard s2");
    fake_shard_up(&fake, 1);
    for (uint32_t i = 0; i < 4; i++) // it has another address now
        fake_hear(&w[i], ShardsChanged, 0);
    one_round(job, 0, 4);
    expect_opened(0, 2);
    ck_assert_uint_ne(fake.shards[2].opened_relay, 0);
}

TEST(tiles_end_the_groups_and_it_is_shown)
{
    const uint64_t job = attach_all("aa", CAIRN_GROUPS_HOST);
    one_round(job, 0, 2);
    expect_opened(0, 1);
    uint32_t requests[2];
    for (uint32_t i = 0; i < 2; i++) {
        requests[i] = fake_ask(&w[i], TilesDeclare, .job = job, .world = 2);
    }
    for (uint32_t i = 0; i < 2; i++) fake_hear(&w[i], TilesSet, requests[i]);
    one_round(job, 0, 2);
    for (uint32_t i = 0; i < 3; i++) {
        expect_opened(i, 2);
        ck_assert_uint_eq(fake.shards[i].opened_relay, 0);
        ck_assert_uint_eq(fake.shards[i].relay.member_count, 0);
    }
    Cairn__JobStatus *status = show();
    ck_assert_str_eq(status->reduce_groups_off, "the workers hold tiles");
}

/* ---- recorded ---- */

TEST(a_job_shows_the_groups_of_its_last_round)
{
    const uint64_t job = attach_all("aaxbb", CAIRN_GROUPS_HOST);
    one_round(job, 0, 5);
    Cairn__JobStatus *status = show();
    ck_assert_uint_eq(status->n_reduce_groups, 3);
    ck_assert_uint_eq(status->reduce_group_count, 3);
    ck_assert_str_eq(status->reduce_groups[0]->host, "s0, s1");
    ck_assert_uint_eq(status->reduce_groups[0]->n_ranks, 2);
    ck_assert_str_eq(status->reduce_groups[1]->host, "");
    ck_assert_uint_eq(status->reduce_groups[1]->ranks[0], 2);
    ck_assert_str_eq(status->reduce_groups[2]->host, "s2");
    ck_assert_uint_eq(status->reduce_groups[2]->ranks[1], 4);
}

static char *save(void)
{
    Cairn__SnapshotStatus *status = fake_call(&admin, SnapshotStatus, SnapshotCreate, .job = "toy",
                                              .wait = true);
    char *path = strdup(status->path);
    return path;
}

static struct manifest read_manifest(const char *folder)
{
    struct manifest manifest;
    struct sentence why = { "" };
    struct snapshot snapshot;
    ck_assert_msg(snapshot_open(folder, &snapshot, &why) == CAIRN_OK, "%s", why.text);
    manifest = snapshot.manifest; // moves
    manifest_init(&snapshot.manifest);
    snapshot_close(&snapshot);
    return manifest;
}

static void expect_recorded(const char *folder, const char *text)
{
    struct manifest manifest = read_manifest(folder);
    struct sentence got = { "" };
    for (uint32_t g = 0; g < manifest.reduce_groups.group_count; g++) {
        uint32_t count;
        const uint32_t *ranks = rank_groups_at(&manifest.reduce_groups, g, &count);
        sentence_add(&got, "%s", g > 0 ? " " : "");
        ranks_add_text(ranks, count, &got);
    }
    ck_assert_str_eq(got.text, text);
    manifest_release(&manifest);
}

TEST(a_snapshot_says_the_groups_of_its_step_and_a_restore_forms_new_ones)
{
    const uint64_t job = attach_all("aaxbb", CAIRN_GROUPS_HOST);
    char *before = save();
    expect_recorded(before, ""); // no round yet
    one_round(job, 0, 5);
    char *first = save();
    expect_recorded(first, "0-1 2 3-4");
    fake_call(&admin, SnapshotStatus, SnapshotRestore, .path = first);
    for (uint32_t i = 0; i < 5; i++) fake_peer_close(&w[i]);
    char *again = save();
    expect_recorded(again, "0-1 2 3-4"); // of the step that it has, whoever is there now
    for (uint32_t i = 0; i < 3; i++) attach(i, "b", CAIRN_GROUPS_HOST);
    one_round(job, 0, 3);
    char *last = save();
    expect_recorded(last, "0-2");
    free(before);
    free(first);
    free(again);
    free(last);
}

TEST(a_round_that_made_no_step_and_a_write_leave_the_recorded_groups_alone)
{
    const uint64_t job = attach_all("aabb", CAIRN_GROUPS_HOST);
    one_round(job, 0, 4);
    fake.shards[2].holds_reduced = true;
    fake_peer_close(&w[3]);
    fake_until(&fake, fake.shards[0].seen[CAIRN_MSG_MEMBER_LEAVE] > 0);
    (void)fake_begin(&w[0], job); // of 0-1 and 2
    fake_peer_close(&w[2]);
    for (uint32_t i = 0; i < 2; i++) // void
        fake_hear(&w[i], RoundResult, 0);
    fake.shards[2].holds_reduced = false;
    Cairn__RoundOpened *opened = fake_call(&w[1], RoundOpened, WriteBegin, .job = job);
    fake_commit(&w[1], job, opened->round);
    char *saved = save();
    expect_recorded(saved, "0-1 2-3");
    free(saved);
}

SUITE(60, set_up, tear_down);
