/* The coordinator in this process, against scripted shards and workers: jobs, members, rounds. */
#include <check.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/coordinator/base.h"
#include "server/coordinator/members.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static struct fake_peer w1 = { .fd = -1 };

static void tear_down(void)
{
    fake_peer_close(&w1);
    close_fake();
}

/* Shards, and two workers of the job, w and w1. */
static void attach_two(uint32_t workers_min)
{
    fake_shards_up(&fake, 2);
    w = worker("w0");
    w1 = worker("w1");
    job = fake_attach(&w, 10, 0, workers_min);
    fake_attach(&w1, 11, 1, workers_min);
}

/* The round ended so, and the text has the word. */
static void expect_result(struct fake_peer *peer, uint32_t request, cairn_status status,
                          const char *word)
{
    const Cairn__RoundResult *result = fake_hear(peer, RoundResult, request);
    ck_assert_msg(result->status == (int32_t)status && strstr(result->text, word) != NULL, "%s: %s",
                  status_code_name(result->status), result->text);
}

/* ---- a job's life ---- */

TEST(a_job_is_created_put_and_trained)
{
    start_job();
    for (uint64_t step = 1; step <= 3; step++) ck_assert_uint_eq(train(), step);
    ck_assert_uint_eq(fake.shards[0].version.step, 3);
    ck_assert_uint_eq(fake.shards[1].version.step, 3);
}

TEST(opening_waits_for_the_shards_and_says_so)
{
    fake_shards_up(&fake, 1);
    w = worker("w0");
    const uint32_t request = fake_ask_open(&w, 10, 0, 1);
    fake_expect_awaited(&w, 0, "1 more shard (1 of 2 up)");
    fake_shard_up(&fake, 1);
    fake_hear(&w, Attached, request);
}

TEST(a_shard_without_room_refuses_the_job_everywhere)
{
    fake.shards[1].refuse_create = "needs 12 GiB, has 8";
    fake_shards_up(&fake, 2);
    w = worker("w0");
    uint32_t request = fake_ask_open(&w, 10, 0, 1);
    fake_expect_error(&w, request, CAIRN_ERR_NO_MEMORY, "s1: needs 12 GiB, has 8");
    fake_until(&fake, !fake.shards[0].has_job);
    fake.shards[1].refuse_create = NULL; // and it can be asked again
    request = fake_ask_open(&w, 10, 0, 1);
    fake_hear(&w, Attached, request);
}

TEST(a_spec_that_differs_is_refused_with_the_differences)
{
    start_job();
    struct fake_peer other = worker("w1");
    struct job_spec_data spec = fake_spec(1);
    spec.tensors[1].shape.dim[0] = 64;
    spec.groups[0].lr = 0.5;
    Cairn__Error *error = fake_hear(&other, Error, fake_job_open(&other, &spec, 11, 1));
    ck_assert_int_eq(error->status, CAIRN_ERR_MISMATCH);
    ck_assert_ptr_nonnull(strstr(error->text, "fc.weight: shape [64,1024] here, [128,1024]"));
    ck_assert_ptr_nonnull(strstr(error->text, "lr"));
    spec_release(&spec);
    fake_peer_close(&other);
}

TEST(a_reader_of_no_job_hears_that_there_is_none)
{
    struct fake_peer r = fake_connect(&fake, CAIRN_ROLE_WIRE_READER, "r0");
    const uint32_t request = fake_ask(&r, JobOpen, .name = "toy", .role = CAIRN_ROLE_WIRE_READER,
                                      .session = 5);
    fake_expect_error(&r, request, CAIRN_ERR_NOT_FOUND, "there is no job toy; `cairn job list`");
    fake_peer_close(&r);
}

/* The answer of the coordinator to a reader who opens the job. */
static void open_reader(struct fake_peer *r)
{
    const uint32_t request = fake_ask(r, JobOpen, .name = "toy", .role = CAIRN_ROLE_WIRE_READER,
                                      .session = 5);
    fake_hear(r, Attached, request);
}

TEST(a_reader_waits_for_a_version)
{
    start_job();
    struct fake_peer r = fake_connect(&fake, CAIRN_ROLE_WIRE_READER, "r0");
    open_reader(&r);
    const uint32_t request = fake_ask(&r, VersionWait, .job = job, .generation = 1, .step = 2);
    train();
    train();
    ck_assert_uint_eq(fake_hear(&r, VersionReady, request)->step, 2);
    fake_expect_error(&r, fake_ask_begin(&r, job), CAIRN_ERR_REFUSED, "reader");
    fake_peer_close(&r);
}

static uint32_t ask_version(struct fake_peer *peer, uint64_t step, uint32_t ms)
{
    return fake_ask(peer, VersionWait, .job = job, .generation = 1, .step = step, .timeout_ms = ms);
}

static void expect_version(struct fake_peer *peer, uint32_t request, uint64_t step)
{
    ck_assert_uint_eq(fake_hear(peer, VersionReady, request)->step, step);
}

TEST(who_waits_for_a_version_is_not_put_out_by_others_of_the_member)
{
    uint32_t waiting[8];
    start_job();
    struct fake_peer r = fake_connect(&fake, CAIRN_ROLE_WIRE_READER, "r0");
    open_reader(&r);
    waiting[0] = ask_version(&r, 1, 60000);
    for (int i = 0; i < 20; i++) ask_version(&r, 9, 0); // for how long it does not say
    for (int i = 0; i < 7; i++) ask_version(&r, 9, 1);
    expect_version(&r, ask_version(&r, 0, 60000), 0); // what is there is said at once
    uv_sleep(5);                                      // those of 1 ms have given up
    for (int i = 1; i < 8; i++) waiting[i] = ask_version(&r, 1, 60000);
    fake_expect_error(&r, ask_version(&r, 1, 60000), CAIRN_ERR_BUSY, "8 threads");
    expect_version(&r, ask_version(&r, 0, 60000), 0);
    train();
    for (int i = 0; i < 8; i++) expect_version(&r, waiting[i], 1);
    fake_peer_close(&r);
}

TEST(missing_tensors_are_named_to_the_source)
{
    fake.shards[0].fail_seal = "fc.bias was not put";
    fake_shards_up(&fake, 2);
    w = worker("w0");
    job = fake_attach(&w, 10, 0, 1);
    fake_expect_error(&w, fake_ask(&w, InitDone, .job = job, .source = true), CAIRN_ERR_NOT_READY,
                      "fc.bias was not put");
    fake.shards[0].fail_seal = NULL;
    fake_init(&w, job);
    ck_assert_uint_eq(train(), 1);
}

TEST(a_worker_that_is_not_the_source_waits_for_the_seal)
{
    attach_two(2);
    const uint32_t request = fake_ask(&w1, InitDone, .job = job);
    fake_expect_awaited(&w1, job, "rank 0");
    fake_init(&w, job);
    fake_hear(&w1, Done, request);
}

/* ---- members ---- */

/* A round of both, which no shard sums up until hold_reduced ends; w's commit. */
static uint32_t commit_of_held_round(void)
{
    attach_two(1);
    fake_hold_reduced(&fake, true);
    fake_init(&w, job);
    return fake_ask_commit(&w, job, fake_begin(&w, job));
}

TEST(a_worker_that_dies_voids_the_open_round_for_the_others)
{
    const uint32_t request = commit_of_held_round();
    fake_expect_awaited(&w, job, "worker w1 of rank 1");
    fake_peer_close(&w1);
    expect_result(&w, request, CAIRN_ERR_EPOCH_CHANGED, "worker w1 (rank 1) left");
    fake_hold_reduced(&fake, false);
    ck_assert_uint_eq(train(), 1);
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_MEMBER_LEAVE], 1);
}

static void say_fault(void)
{
    fake_say(&fake.shards[1].peer, 0, MemberFault, .job = job, .member = 11,
             .text = "the memory of w1 cannot be read");
}

TEST(a_worker_whose_memory_a_shard_cannot_read_is_put_out)
{
    const uint32_t request = commit_of_held_round();
    say_fault();
    expect_result(&w, request, CAIRN_ERR_EPOCH_CHANGED, "cannot be read");
    fake_expect_error(&w1, 0, CAIRN_ERR_NO_MEMORY, "cannot be read");
    say_fault(); // it is gone already
    fake_hold_reduced(&fake, false);
    ck_assert_uint_eq(train(), 1);
}

TEST(a_second_worker_of_a_rank_fences_the_older)
{
    start_job();
    struct fake_peer newer = worker("w0-again");
    fake_attach(&newer, 11, 0, 1);
    fake_expect_error(&w, 0, CAIRN_ERR_FENCED, "w0-again attached as rank 0");
    fake_expect_end(&w);
    ck_assert_uint_eq(fake_step(&newer, job), 1);
    fake_peer_close(&w);
    ck_assert_uint_eq(fake_step(&newer, job), 2);
    fake_peer_close(&newer);
}

TEST(the_same_session_may_open_again)
{
    start_job();
    ck_assert_uint_eq(train(), 1);
    struct fake_peer again = worker("w0");
    ck_assert_uint_eq(fake_attach(&again, 10, 0, 1), job);
    ck_assert_uint_eq(fake_step(&again, job), 2);
    fake_peer_close(&w); // the older connection ends without a word
    ck_assert_uint_eq(fake_step(&again, job), 3);
    fake_peer_close(&again);
}

TEST(a_silent_worker_loses_its_lease)
{
    fake_coordinator_stop(&fake);
    fake.options.heartbeat_ms = 20;
    fake.options.lease_timeout_ms = 100;
    fake_coordinator_start(&fake);
    w = worker("w0");
    fake_expect_end(&w);
}

TEST(a_stopped_coordinator_lets_no_deadline_pass)
{
    fake_coordinator_stop(&fake);
    fake.options.heartbeat_ms = 20;
    fake.options.step_deadline_ms = 300;
    fake_coordinator_start(&fake);
    start_job();
    const uint64_t round = fake_begin(&w, job);
    usleep(600000); // SIGSTOP: its loop does not turn
    ck_assert_uint_eq(fake_commit(&w, job, round), 1);
}

/* w and w1 have committed, in a round that no shard has summed up; its deadline is short. */
static void commit_both_held(uint32_t requests[2])
{
    fake_coordinator_stop(&fake);
    fake.options.heartbeat_ms = 20;
    fake.options.step_deadline_ms = 200;
    fake_coordinator_start(&fake);
    attach_two(1);
    fake_hold_reduced(&fake, true);
    fake_init(&w, job);
    const uint64_t round = fake_begin(&w, job);
    ck_assert_uint_eq(fake_begin(&w1, job), round);
    fake_until(&fake, fake.shards[0].round == round && fake.shards[1].round == round);
    requests[0] = fake_ask_commit(&w, job, round);
    requests[1] = fake_ask_commit(&w1, job, round);
}

TEST(a_worker_whose_word_arrives_and_whose_data_does_not_is_put_out_at_the_deadline)
{
    uint32_t requests[2];
    fake.shards[0].lacks[0] = fake.shards[1].lacks[0] = 11;
    fake.shards[0].lack_count = fake.shards[1].lack_count = 1;
    commit_both_held(requests);
    fake_expect_error(&w1, requests[1], CAIRN_ERR_REOPEN,
                      "and 1 more did not get all that it contributes to round");
    expect_result(&w, requests[0], CAIRN_ERR_EPOCH_CHANGED,
                  "worker w1 (rank 1) was put out: shard s");
    fake_hold_reduced(&fake, false);
    ck_assert_uint_eq(train(), 1);
}

TEST(a_shard_that_alone_lacks_all_workers_is_named_at_the_deadline)
{
    uint32_t requests[2];
    fake.shards[1].lacks[0] = 10;
    fake.shards[1].lacks[1] = 11;
    fake.shards[1].lack_count = 2;
    commit_both_held(requests);
    fake_shard_report_reduced(&fake.shards[0]);
    fake_until(&fake, fake.shards[1].seen[CAIRN_MSG_LACKS_GET] == 2); // again at the next deadline
    fake_expect_awaited(&w, job, "shard s1 (lacks something of 2 of 2 workers in round");
    fake_shard_report_reduced(&fake.shards[1]);
    expect_result(&w, requests[0], CAIRN_OK, "");
    expect_result(&w1, requests[1], CAIRN_OK, "");
}

/* ---- shards ---- */

TEST(training_goes_on_when_a_shard_comes_back)
{
    start_job();
    train();
    fake_shard_away(&fake, 1);
    const uint32_t request = fake_ask_begin(&w, job);
    fake_expect_awaited(&w, job, "shard s1 (it is away)");
    fake_shard_up(&fake, 1);
    ck_assert_uint_eq(fake_commit(&w, job, fake_hear(&w, RoundOpened, request)->round), 2);
}

TEST(a_shard_that_lost_its_part_loses_the_job)
{
    start_job();
    train();
    uint32_t request = fake_ask_begin(&w, job);
    fake_hear(&w, RoundOpened, request);
    // Another connection than the worker's; a round that is open when a shard goes is told again.
    fake_until(&fake, fake.shards[0].version.step == 2 && fake.shards[1].version.step == 2);
    fake_shard_forget(&fake, 1);
    request = fake_ask_begin(&w, job);
    fake_expect_silence(&w, job);
    fake_shard_up(&fake, 1);
    fake_expect_error(&w, request, CAIRN_ERR_JOB_LOST, "s1 restarted without its part");
    fake_expect_error(&w, 0, CAIRN_ERR_JOB_LOST, "cairn snapshot restore");
    fake_expect_end(&w);
    fake_peer_close(&w);
    w = worker("w0");
    request = fake_ask_open(&w, 10, 0, 1);
    fake_expect_error(&w, request, CAIRN_ERR_JOB_LOST, "s1 restarted without its part");
}

TEST(members_hear_where_a_shard_is_now)
{
    start_job();
    fake_shard_away(&fake, 1);
    fake.shards[1].incarnation++; // a new process that was handed the state; its address is new
    fake_shard_up(&fake, 1);
    Cairn__ShardsChanged *changed = fake_hear(&w, ShardsChanged, 0);
    ck_assert_uint_eq(changed->n_shards, 2);
    ck_assert_str_eq(changed->shards[1]->name, "s1");
    ck_assert_uint_eq(changed->shards[1]->fabric_address.data[1], fake.shards[1].incarnation);
    ck_assert_uint_eq(train(), 1);
}

/* A member that has never heard the shard would else take its silence for a fault of the network. */
TEST(members_hear_that_a_shard_stays_away)
{
    start_job();
    fake_shard_away(&fake, 1);
    const Cairn__ShardsChanged *changed = fake_hear(&w, ShardsChanged, 0);
    ck_assert_uint_gt(changed->shards[0]->fabric_address.len, 0);
    ck_assert_uint_eq(changed->shards[1]->fabric_address.len, 0);
    fake_shard_up(&fake, 1); // where it was
    changed = fake_hear(&w, ShardsChanged, 0);
    ck_assert_uint_gt(changed->shards[1]->fabric_address.len, 0);
    ck_assert_uint_eq(train(), 1);
}

/* It is back before anybody would have been told that it stays away, at the same address. */
TEST(members_hear_where_a_shard_is_that_was_away_when_another_one_moved)
{
    start_job();
    fake_shard_away(&fake, 0);
    fake_shard_away(&fake, 1);
    fake.shards[1].incarnation++;
    fake_shard_up(&fake, 1);
    const Cairn__ShardsChanged *changed = fake_hear(&w, ShardsChanged, 0);
    ck_assert_uint_eq(changed->shards[0]->fabric_address.len, 0);
    fake_shard_up(&fake, 0);
    changed = fake_hear(&w, ShardsChanged, 0);
    ck_assert_uint_gt(changed->shards[0]->fabric_address.len, 0);
    ck_assert_uint_eq(train(), 1);
}

TEST(a_shard_that_connects_again_takes_its_seat_at_once)
{
    start_job();
    struct fake_peer older = fake.shards[1].peer;
    fake.shards[1].peer.fd = -1; // the connection stays, as one that was lost unseen
    fake_shard_up(&fake, 1);
    fake_expect_end(&older);
    fake_peer_close(&older);
    ck_assert_uint_eq(train(), 1);
}

TEST(a_shard_that_restarts_before_the_seal_costs_nothing_but_the_puts)
{
    fake_shards_up(&fake, 2);
    w = worker("w0");
    job = fake_attach(&w, 10, 0, 1);
    fake_shard_renew(&fake, 0);
    fake_expect_error(&w, 0, CAIRN_ERR_REOPEN, "put the initial state again");
    fake_peer_close(&w);
    w = worker("w0");
    const uint64_t again = fake_attach(&w, 10, 0, 1);
    ck_assert_uint_ne(again, job);
    fake_init(&w, again);
    ck_assert_uint_eq(fake_step(&w, again), 1);
}

/* The other shard has not answered yet when it is here again: nobody else would ask it anew. */
TEST(a_shard_that_blinks_during_the_seal_is_sealed_again)
{
    fake_shards_up(&fake, 2);
    w = worker("w0");
    job = fake_attach(&w, 10, 0, 1);
    fake.shards[0].holds_seal = fake.shards[1].holds_seal = true;
    const uint32_t request = fake_ask(&w, InitDone, .job = job, .source = true);
    fake_until(&fake, fake.shards[0].seen[CAIRN_MSG_JOB_SEAL] == 1 &&
                          fake.shards[1].seen[CAIRN_MSG_JOB_SEAL] == 1);
    fake.shards[1].holds_seal = false;
    fake_shard_blink(&fake, 1);
    fake_shard_release(&fake.shards[0]);
    fake_hear(&w, Done, request);
    ck_assert_uint_eq(train(), 1);
}

/* It said Done and died while another shard still made room: its part is gone. */
TEST(a_shard_that_restarts_while_a_job_is_made_has_it_made_again)
{
    fake_shards_up(&fake, 2);
    fake.shards[0].holds_create = true;
    w = worker("w0");
    const uint32_t request = fake_ask_open(&w, 10, 0, 1);
    fake_until(&fake, fake.shards[0].has_job && fake.shards[1].has_job);
    fake_expect_awaited(&w, 0, "make room");
    fake_shard_renew(&fake, 1);
    fake_shard_release(&fake.shards[0]);
    fake_hear(&w, Attached, request);
    fake_init(&w, fake.shards[1].job);
    ck_assert_uint_eq(fake_step(&w, fake.shards[1].job), 1);
}

/* ---- the coordinator itself ---- */

TEST(a_new_incarnation_goes_on_in_the_middle_of_a_round)
{
    start_job();
    train();
    fake_hold_reduced(&fake, true);
    const uint64_t round = fake_begin(&w, job);
    fake_coordinator_stop(&fake);
    fake_peer_close(&w);
    fake_hold_reduced(&fake, false);
    fake_coordinator_start(&fake);
    fake_shards_up(&fake, 2);
    w = worker("w0");
    ck_assert_uint_eq(fake_attach(&w, 10, 0, 1), job);
    fake_init(&w, job);
    ck_assert_int_eq(fake_hear(&w, RoundResult, fake_ask_commit(&w, job, round))->status,
                     CAIRN_ERR_EPOCH_CHANGED);
    const uint64_t next = fake_begin(&w, job);
    ck_assert_uint_gt(next, round);
    ck_assert_uint_eq(fake_commit(&w, job, next), 2);
}

TEST(a_decision_that_one_shard_has_is_given_to_all_by_a_new_incarnation)
{
    start_job();
    fake_hold_reduced(&fake, true);
    const uint64_t round = fake_begin(&w, job);
    fake_until(&fake, fake.shards[0].round == round && fake.shards[1].round == round);
    fake_shard_report_reduced(&fake.shards[0]);
    fake_shard_report_reduced(&fake.shards[1]);
    // Shard 1 is prepared and goes away before it hears; shard 0 applies.
    fake_until(&fake, fake.shards[0].version.step == 1);
    fake.shards[1].version.step = 0;
    fake.shards[1].last = (struct decision) { .kind = CAIRN_DECISION_NONE,
                                              .version_after = { 1, 0 } };
    fake.shards[1].round = round;
    fake.shards[1].reduced = true;
    fake_coordinator_stop(&fake);
    fake_peer_close(&w);
    fake_coordinator_start(&fake);
    fake_shards_up(&fake, 2);
    w = worker("w0");
    fake_attach(&w, 10, 0, 1);
    Cairn__RoundResult *result = fake_hear(&w, RoundResult, fake_ask_commit(&w, job, round));
    ck_assert_int_eq(result->status, CAIRN_OK);
    ck_assert_uint_eq(result->step, 1);
    ck_assert_uint_eq(fake.shards[1].version.step, 1);
}

TEST(fifty_rounds_write_nothing_to_the_store)
{
    start_job();
    train();
    const uint64_t writes = coord_store_writes(fake.cluster);
    for (int i = 0; i < 50; i++) train();
    ck_assert_uint_eq(coord_store_writes(fake.cluster), writes);
}

TEST(a_second_coordinator_on_the_folder_is_refused)
{
    struct coord *second;
    struct sentence why = { "" };
    struct coord_options options = fake.options;
    char path[CAIRN_SCRATCH_BYTES + 16];
    snprintf(path, sizeof path, "%s/second", fake.folder);
    options.network.listen = path;
    ck_assert_int_eq(coord_open(&options, &fake.loop, &second, &why), CAIRN_ERR_BUSY);
}

TEST(a_name_that_is_no_text_is_refused_and_says_which_byte)
{
    static const struct {
        const char *name, *says;
    } bad[] = {
        { "w\xff", "byte 0xff at 1 is no UTF-8" },
        { "\xed\xa0\x80", "byte 0xed at 0 is no UTF-8" },
        { "a\x1b[2J", "the control character U+001B at byte 1" },
        { "", "is empty" },
        { "\xc2\x9b", "the control character U+009B at byte 0" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct fake_peer peer = fake_dial(&fake);
        const uint32_t request = fake_ask(&peer, Hello, .protocol = CAIRN_CONTROL_PROTOCOL,
                                          .role = CAIRN_ROLE_WIRE_WORKER,
                                          .name = wire_text(bad[i].name));
        fake_expect_error(&peer, request, CAIRN_ERR_INVALID, bad[i].says);
        fake_peer_close(&peer);
    }
}

/* Says Hello as a shard with jobs [from, from + count), of which `after` follow. */
static void say_part_of_hello(struct fake_peer *peer, const char *name, uint32_t from,
                              uint32_t count, uint32_t after)
{
    static Cairn__HeldJob held[CAIRN_HELD_JOBS_MAX];
    Cairn__HeldJob *list[CAIRN_HELD_JOBS_MAX];
    for (uint32_t i = 0; i < count; i++) {
        list[i] = &held[i];
        cairn__held_job__init(list[i]);
        list[i]->job = from + i + 1;
        list[i]->generation = 1;
    }
    fake_ask(peer, Hello, .protocol = CAIRN_CONTROL_PROTOCOL, .role = CAIRN_ROLE_WIRE_SHARD,
             .name = wire_text(name), .incarnation = 77, .held = list, .n_held = count,
             .held_after = after);
}

TEST(a_shard_says_what_it_holds_in_as_many_hellos_as_that_takes)
{
    struct fake_peer peer = fake_dial(&fake);
    for (uint32_t said = 0; said < 1000; said += 100)
        say_part_of_hello(&peer, "many", said, 100, 900 - said);
    fake_hear(&peer, Welcome, peer.last_request);
    const struct coord_shard_entry *seat = coord_shard_find(fake.cluster, "many");
    ck_assert_ptr_nonnull(seat);
    ck_assert_uint_eq(seat->held_count, 2 * 1000);
    ck_assert_uint_eq(seat->held[2 * 999].job, 1000);
    fake_peer_close(&peer);
}

TEST(a_hello_that_does_not_go_on_as_it_began_ends_the_connection)
{
    static const struct {
        const char *name;
        uint32_t count, after;
    } bad[] = {
        { "other", 10, 0 },
        { "many", 0, 10 },
        { "many", 10, 5 },
        { "many", 20, 0 },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct fake_peer peer = fake_dial(&fake);
        struct wire_frame frame;
        say_part_of_hello(&peer, "many", 0, 10, 10);
        say_part_of_hello(&peer, bad[i].name, 10, bad[i].count, bad[i].after);
        while (!peer.ended) {
            fake_pump(&fake);
            fake_peer_read(&peer);
            while (fake_peer_next(&peer, &frame)) ck_abort_msg("an answer");
        }
        ck_assert_ptr_null(coord_shard_find(fake.cluster, "many"));
        fake_peer_close(&peer);
    }
}

static struct coord_session *session_of(const char *name)
{
    struct coord_session *session = fake.cluster->sessions;
    while (session != NULL && strcmp(session->name, name) != 0) session = session->next;
    return session;
}

TEST(an_admin_that_asks_nothing_for_ten_minutes_is_sent_away_and_one_that_waits_is_not)
{
    const uint64_t later_ms = uv_now(&fake.loop) + 11 * 60 * 1000;
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "idle");
    struct fake_peer waiting = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "waiting");
    fake_call(&waiting, ClusterStatus, ClusterStatusGet);
    ck_assert_uint_eq(session_of("waiting")->unanswered, 0);
    session_of("waiting")->unanswered = 1;
    fake_ask(&admin, Heartbeat); // which nobody answers, whatever its number is
    fake_call(&admin, ClusterStatus, ClusterStatusGet);
    coord_sessions_tick(fake.cluster, later_ms, 0);
    ck_assert(session_of("idle")->closing);
    ck_assert(!session_of("waiting")->closing);
    fake_peer_close(&waiting);
}

TEST(a_peer_of_another_protocol_is_told_so)
{
    struct fake_peer peer = fake_dial(&fake);
    const uint32_t request = fake_ask(&peer, Hello, .protocol = 99, .role = CAIRN_ROLE_WIRE_WORKER,
                                      .name = "w0");
    fake_expect_error(&peer, request, CAIRN_ERR_VERSION, "protocol 3, not 99");
    fake_peer_close(&peer);
}

TEST(a_role_that_says_what_it_may_not_is_cut_off)
{
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "ctl");
    fake_ask(&admin, RoundBegin);
    while (!admin.ended) {
        struct wire_frame frame;
        fake_pump(&fake);
        fake_peer_read(&admin);
        while (fake_peer_next(&admin, &frame)) {}
    }
}

/* ---- bad input ---- */

TEST(a_session_number_of_another_is_refused)
{
    start_job();
    struct fake_peer thief = worker("thief");
    const uint32_t request = fake_ask(&thief, JobOpen, .name = "toy",
                                      .role = CAIRN_ROLE_WIRE_READER, .session = 10, .token = 4711);
    fake_expect_error(&thief, request, CAIRN_ERR_REFUSED, "belongs to another member");
    ck_assert_uint_eq(train(), 1);
    fake_peer_close(&thief);
}

static uint32_t ask_open_with(uint64_t spec_bytes)
{
    return fake_ask(&w, JobOpen, .name = "toy", .role = CAIRN_ROLE_WIRE_WORKER, .session = 10,
                    .spec_bytes = spec_bytes);
}

TEST(pages_that_do_not_follow_each_other_are_refused)
{
    w = worker("w0");
    uint8_t bytes[8] = { 0 };
    const uint32_t request = ask_open_with(100);
    fake_say(&w, request, Page, .what = CAIRN_PAGE_SPEC, .offset = 50, .total_bytes = 100,
             .bytes = { sizeof bytes, bytes });
    fake_expect_error(&w, request, CAIRN_ERR_PROTOCOL, "do not follow");
    fake_expect_error(&w, ask_open_with(UINT64_MAX), CAIRN_ERR_INVALID, "64 MiB");
}

TEST(a_request_for_a_job_that_is_not_open_is_refused)
{
    start_job();
    struct fake_peer other = worker("w1");
    fake_expect_error(&other, fake_ask_begin(&other, job), CAIRN_ERR_NOT_READY, "open it first");
    fake_expect_error(&other, fake_ask_commit(&other, job, 1), CAIRN_ERR_NOT_READY, "open it");
    fake_peer_close(&other);
}

TEST(a_malformed_message_ends_the_connection_and_nothing_else)
{
    start_job();
    struct fake_peer bad = worker("bad");
    uint8_t frame[CAIRN_FRAME_HEADER_BYTES + 4];
    memset(frame, 0xff, sizeof frame);
    frame_header_write(frame, CAIRN_MSG_JOB_OPEN, 9, 4);
    ck_assert_int_eq(write(bad.fd, frame, sizeof frame), sizeof frame);
    fake_expect_end(&bad);
    fake_peer_close(&bad);
    ck_assert_uint_eq(train(), 1);
}

SUITE(30, open_fake, tear_down);
