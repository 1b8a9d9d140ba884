/* What operators and policy ask about a re-sharding, and what is refused (see test_coordinator_reshard.c). */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/base.h"
#include "server/coordinator/members.h"
#include "tests/support/fake_move.h"
#include "tests/support/reshard_toy.h"
#include "tests/support/suite.h"

/* ---- refused ---- */

#define NAMES(...)  \
    (char *[])      \
    {               \
        __VA_ARGS__ \
    }
#define WEIGHT(...)                 \
    (Cairn__ShardWeight *[])        \
    {                               \
        &(Cairn__ShardWeight)       \
        {                           \
            .name = s0, __VA_ARGS__ \
        }                           \
    }

static char nobody[] = "nobody";

/* By the admin, of the job toy unless it says another one. */
static uint32_t ask(Cairn__ReshardAsk message)
{
    if (message.job == NULL) message.job = toy_name;
    return fake_request(&admin, CAIRN_MSG_RESHARD_ASK,
                        made_as(CAIRN_MSG_RESHARD_ASK, &message.base));
}

TEST(a_re_sharding_lets_workers_have_no_more_in_flight_than_their_owner_may)
{
    char line[64];
    struct sentence why = { "" };
    const uint64_t now = quota_in_flight(toy());
    toy()->spec.window = 1;
    toy()->spec.chunk_leaves = 1;
    ck_assert_uint_lt(quota_in_flight(toy()), now);
    ck_assert_uint_lt(quota_in_flight(toy()), quota_in_flight_if(toy(), &toy()->spec, 3));
    snprintf(line, sizeof line, "in_flight=%" PRIu64 "B", quota_in_flight(toy()));
    quotas_release(&fake.cluster->tenants.quotas);
    ck_assert_int_eq(quotas_read(line, "", &fake.cluster->tenants.quotas, &why), CAIRN_OK);
    fake_expect_error(&admin, ask_reshard(CAIRN_RESHARD_APPLY, RESHARD_ADD(s2)), CAIRN_ERR_BUSY,
                      "uses in_flight=");
}

TEST(what_cannot_be_is_refused_with_a_sentence)
{
    const struct {
        Cairn__ReshardAsk ask;
        cairn_status status;
        const char *word;
    } refused[] = {
        { { .shards = 9 }, CAIRN_ERR_INVALID, "over 9 shards: 3 are here" },
        { { .add = NAMES(nobody), .n_add = 1 }, CAIRN_ERR_NOT_FOUND, "no shard \"nobody\"" },
        { { .add = NAMES(s2, s1), .n_add = 2, .shards = 1 },
          CAIRN_ERR_INVALID,
          "2 shards are to be added, and 1 are to have" },
        { { .add = NAMES(s2, s1), .n_add = 2, .drain = NAMES(s0, s1), .n_drain = 2 },
          CAIRN_ERR_INVALID,
          "shard s1 is to be added and drained" },
        { { .drain = NAMES(s0, s1), .n_drain = 2 }, CAIRN_ERR_INVALID, "no shard would be left" },
        { { .weights = WEIGHT(.weight = 0), .n_weights = 1 }, CAIRN_ERR_INVALID, "--drain" },
        { { .weights = WEIGHT(.weight = NAN), .n_weights = 1 },
          CAIRN_ERR_INVALID,
          "the weight of shard s0" },
        { { .pause = -1 }, CAIRN_ERR_INVALID, "a pause of -1" },
        { { .op = 17 }, CAIRN_ERR_INVALID, "17" },
        { { .op = CAIRN_RESHARD_APPLY, .layout_hash = 5 }, CAIRN_ERR_MISMATCH, "plan again" },
        { { .op = CAIRN_RESHARD_APPLY, .layout_hash = 5, .job = nobody },
          CAIRN_ERR_NOT_FOUND,
          "no job \"nobody\"" },
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        fake_expect_error(&admin, ask(refused[i].ask), refused[i].status, refused[i].word);
    fake.shards[2].move.holds_moved = true;
    apply_shards(3);
    fake_expect_error(&admin, ask_reshard(CAIRN_RESHARD_APPLY), CAIRN_ERR_BUSY, "under way");
    expect_state("moving");
    ck_assert_ptr_nonnull(strstr(show_job("toy")->moving, "slice"));
}

/* Of all jobs, so that what it says of one is no refusal of the whole. */
static void expect_all(Cairn__ReshardAsk message, const char *state, const char *word)
{
    message.all = true;
    message.job = nobody;
    const Cairn__ReshardJob *told = expect_told(ask(message));
    ck_assert_str_eq(told->state, state);
    ck_assert_ptr_nonnull(strstr(told->text, word));
}

TEST(of_all_jobs_one_that_it_cannot_be_for_is_told_as_refused)
{
    expect_all((Cairn__ReshardAsk) { .op = CAIRN_RESHARD_CANCEL }, "refused", "nothing to cancel");
    expect_all((Cairn__ReshardAsk) { .op = CAIRN_RESHARD_PLAN, RESHARD_ADD(nobody) }, "refused",
               "no shard \"nobody\"");
    expect_all((Cairn__ReshardAsk) { .op = CAIRN_RESHARD_PLAN, RESHARD_DRAIN(s2) }, "planned", "");
    fake.shards[2].move.holds_moved = true;
    apply_shards(3);
    expect_all((Cairn__ReshardAsk) { .op = CAIRN_RESHARD_APPLY }, "refused", "under way");
}

TEST(a_plan_says_what_would_move_and_changes_nothing)
{
    const Cairn__ReshardJob *one = expect_told(ask_reshard(CAIRN_RESHARD_PLAN));
    ck_assert_str_eq(one->state, "planned");
    ck_assert_uint_eq(one->n_pairs, 2);
    ck_assert_str_eq(one->pairs[0]->to, "s2");
    ck_assert_uint_eq(one->shards_after, 3);
    ck_assert(one->all_bytes > 0 && one->all_bytes <= one->least_bytes * 105 / 100);
    ck_assert(one->heaviest_after < one->heaviest_before);
    ck_assert(one->pieces_before > 0 && one->pieces_after > 0);
    ck_assert_uint_le(one->pieces_after, 2 * one->pieces_fresh);
    ck_assert_uint_eq(one->afresh, 0);
    expect_state("none");
}

static Cairn__Home *give_device(char *name, uint64_t bytes)
{
    struct coord_shard_entry *seat = coord_shard_find(toy()->cluster, name);
    Cairn__Home *home = calloc(1, sizeof *home);
    cairn__home__init(home);
    home->backend = strdup("cuda");
    home->total_bytes = bytes;
    seat->memory_bytes = 64; // the host's
    return seat->session->home = home;
}

/* Both shards that have the job are to be drained, for the third one. */
static uint32_t ask_plan_of_another(void)
{
    return ask((Cairn__ReshardAsk) {
        .op = CAIRN_RESHARD_PLAN, RESHARD_ADD(s2), .drain = NAMES(s0, s1), .n_drain = 2 });
}

TEST(of_a_shard_with_a_device_its_memory_counts_and_what_lies_partly_there_stays)
{
    Cairn__Home *home = give_device(s2, (uint64_t)1 << 30);
    expect_told(ask_plan_of_another());
    home->taken_bytes = home->total_bytes - 64;
    fake_expect_error(&admin, ask_plan_of_another(), CAIRN_ERR_NO_MEMORY, "have room for");
    (void)give_device(s0, (uint64_t)1 << 30);
    toy()->spec.offload_fraction = 0.5;
    fake_expect_error(&admin, ask_plan_of_another(), CAIRN_ERR_UNSUPPORTED, "partly on devices");
    toy()->spec.offload_fraction = 0;
}

/* Of the job, and of a slice, which is no more than that here. */
TEST(nothing_is_planned_for_memory_that_a_shard_does_not_have)
{
    const uint64_t all_bytes = expect_told(ask_plan_of_another())->all_bytes;
    struct coord_shard_entry *seat = coord_shard_find(toy()->cluster, s2);
    seat->memory_bytes = 64; // nothing is taken of it yet
    fake_expect_error(&admin, ask_plan_of_another(), CAIRN_ERR_NO_MEMORY, "have room for");
    seat->memory_bytes = 3 * all_bytes / 2;
    fake_expect_error(&admin, ask_plan_of_another(), CAIRN_ERR_NO_MEMORY, "have room for");
    seat->memory_bytes = 4 * all_bytes;
    expect_told(ask_plan_of_another());
}

TEST(a_shard_that_is_added_is_among_those_that_are_counted)
{
    const Cairn__ReshardJob *told = expect_told(
        ask_reshard(CAIRN_RESHARD_PLAN, RESHARD_ADD(s2), .shards = 2));
    ck_assert_uint_eq(told->n_pairs, 1);
    ck_assert_str_eq(told->pairs[0]->from, "s1");
    ck_assert_str_eq(told->pairs[0]->to, "s2");
}

static void on_message(void *arg, const void *header, size_t header_bytes, size_t payload_bytes,
                       struct fabric_message *message)
{
    (void)arg, (void)header, (void)header_bytes, (void)payload_bytes, (void)message;
}

/* Its data goes where other hosts reach it, from its next connection on. */
static void give_network(struct fake_shard *shard, const char *host)
{
    static uint8_t address[CAIRN_FABRIC_ADDRESS_MAX];
    const struct fabric_options options = { .on_message = on_message, .host = host };
    struct sentence why = { "" };
    struct fabric *fabric;
    ck_assert_msg(fabric_open("auto", &options, &fabric, &why) == CAIRN_OK, "%s", why.text);
    const void *own = fabric_own_address(fabric, &shard->address_bytes);
    memcpy(address, own, shard->address_bytes);
    shard->address = address;
    fabric_close(fabric);
}

static void sit_again(uint32_t shard)
{
    fake_shard_blink(&fake, shard);
    fake_until(&fake, coord_shards_up(fake.cluster) == 3);
}

TEST(a_shard_on_no_network_gets_nothing_beside_shards_of_other_hosts)
{
    snprintf(fake.shards[2].host, sizeof fake.shards[2].host, "alone");
    sit_again(2);
    give_network(&fake.shards[0], "alone"); // its own host: that one shares its memory
    sit_again(0);
    expect_told(ask_reshard(CAIRN_RESHARD_PLAN, RESHARD_ADD(s2)));
    give_network(&fake.shards[0], "another");
    sit_again(0);
    fake_expect_error(&admin, ask_reshard(CAIRN_RESHARD_PLAN, RESHARD_ADD(s2)), CAIRN_ERR_NOT_READY,
                      "shard s2, which listens on no network");
    fake_expect_error(&admin, ask_reshard(CAIRN_RESHARD_PLAN, .shards = 3), CAIRN_ERR_INVALID,
                      "2 are here that it could have");
    Cairn__ClusterStatus *status = fake_call(&admin, ClusterStatus, ClusterStatusGet);
    ck_assert_str_eq(status->members[0]->apart, "");
    ck_assert_ptr_nonnull(strstr(status->members[2]->apart, "fabric.device"));
    // Nor of a new job, though there are as many shards as the cluster is to have.
    struct job_spec_data spec = fake_spec(1);
    free(spec.name);
    spec.name = strdup("new");
    snprintf(fake.shards[1].host, sizeof fake.shards[1].host, "alone");
    sit_again(1);
    struct fake_peer other = worker("w1");
    fake_expect_error(&other, fake_job_open(&other, &spec, 9, 0), CAIRN_ERR_NOT_READY,
                      "of which 1 can take a part of the job");
    spec_release(&spec);
    fake_peer_close(&other);
}

TEST(what_is_expected_goes_by_steps_where_steps_are_made_and_else_by_the_rate)
{
    train();
    train();
    const double step_s = coord_pace_median(&toy()->rounds.pace) * 1e-6;
    const Cairn__ReshardJob *told = expect_told(ask_reshard(CAIRN_RESHARD_PLAN, .pause = 0.5));
    ck_assert_double_eq_tol(told->expected_pause_s, 0.5 * step_s, 1e-9);
    ck_assert_double_eq_tol(told->expected_s, 2 * told->slices * step_s, 1e-9);
    toy()->rounds.pace.seen_us = 0; // long ago
    toy()->reshard.rate = 2;
    told = expect_told(ask_reshard(CAIRN_RESHARD_PLAN, .pause = 0.5));
    ck_assert(told->expected_pause_s <= 0);
    ck_assert_double_eq_tol(told->expected_s, (double)told->all_bytes / 2e6, 1e-9);
}

/* Returns the text of the last entry of that kind that is about the request. */
static const char *audited(const char *kind, const char *request)
{
    const Cairn__Events *page = fake_call(&admin, Events, AuditGet);
    for (size_t i = page->n_events; i-- > 0;)
        if (strcmp(page->events[i]->kind, kind) == 0 &&
            strncmp(page->events[i]->text, request, strlen(request)) == 0)
            return page->events[i]->text;
    return "";
}

TEST(how_a_run_that_was_asked_for_ends_is_in_the_audit_log)
{
    apply_shards(3);
    ck_assert_str_eq(audited("ended", "reshard apply"), "");
    train_until_ended();
    ck_assert_str_ne(audited("ended", "reshard apply job=toy"), "");
    ck_assert_str_eq(audited("failed", "reshard apply"), "");
}

TEST(a_run_that_fails_later_is_in_the_audit_log)
{
    fake.shards[2].move.holds_moved = true;
    apply_shards(3);
    fake_call(&admin, JobRemoved, JobRemove, .name = toy_name, .force = true);
    const char *text = audited("failed", "reshard apply job=toy");
    ck_assert_msg(strstr(text, "(entry ") != NULL && strstr(text, "the job is dropped") != NULL,
                  "%s", text);
}

/* A fake shard says of each slice that 1 MiB came, in 1 ms. */
TEST(what_came_is_told_with_the_time_of_the_slowest_shard_of_each_slice)
{
    apply_shards(3);
    train_until_ended();
    const Cairn__ReshardJob *one = expect_told(ask_reshard(CAIRN_RESHARD_STATUS));
    ck_assert(one->slice > 0 && one->move_us > 0);
    ck_assert_uint_eq(one->state_us, 1000 * one->slice);
    ck_assert_uint_eq(one->state_bytes, ((uint64_t)3 << 20) * one->slice);
    ck_assert(!one->rests);
}

TEST(the_last_shard_is_not_drained_and_nothing_moves_when_all_are_stopped)
{
    fake_shard_away(&fake, 2);
    fake.shards[1].move.holds_prepare = true;
    (void)fake_ask(&fake.shards[0].peer, DrainMe);
    fake_until(&fake, fake.shards[1].move.next != NULL);
    (void)fake_ask(&fake.shards[1].peer, DrainMe);
    fake_until(&fake, fake.shards[0].error != 0 && fake.shards[1].error != 0);
    ck_assert_ptr_nonnull(strstr(fake.shards[0].error_text, "all shards are being stopped"));
    ck_assert_ptr_nonnull(strstr(fake.shards[1].error_text, "no shard that stays"));
    fake_until(&fake, ended());
    fake.shards[1].move.holds_prepare = false;
    train();
}

TEST(a_shard_that_comes_gets_its_share_if_that_is_the_policy)
{
    static char on_join[] = "on_join";
    fake.options.reshard = on_join;
    fake.options.rebalance_above = 1100;
    fake_shard_up(&fake, 3);
    fake_until(&fake, toy()->reshard.running);
    train_until_ended();
    ck_assert(owns(2) && owns(3));
}

TEST(what_the_policy_could_not_do_at_first_is_done_when_it_can_be)
{
    static char on_join[] = "on_join";
    fake_until(&fake, toy()->rounds.heard);
    struct coord_shard_entry *seat = coord_shard_find(toy()->cluster, s2);
    const uint64_t bytes = seat->memory_bytes;
    seat->memory_bytes = 64;
    CAIRN_EACH_SHARD (toy(), i) toy()->shards[i].entry->memory_bytes = 64;
    fake.options.rebalance_above = 1100;
    fake.options.reshard = on_join;
    fake_until(&fake, toy()->reshard.arrivals_refused == toy()->cluster->arrivals);
    ck_assert(!toy()->reshard.running);
    seat->memory_bytes = bytes;
    CAIRN_EACH_SHARD (toy(), i) toy()->shards[i].entry->memory_bytes = bytes;
    fake_until(&fake, toy()->reshard.running);
    train_until_ended();
    ck_assert(owns(2));
}

SUITE(60, open_three, close_fake);
