/* The coordinator in this process, against scripted shards and workers: jobs, members, rounds. */
#include <check.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/fake_cluster.h"
#include "tests/support/suite.h"

static struct fake_cluster fake;

static void set_up(void)
{
    fake_open(&fake, 2);
}
static void tear_down(void)
{
    fake_close(&fake);
}

static struct fake_peer worker(const char *name)
{
    return fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, name);
}

/* A job of one worker that is ready for rounds. */
static struct fake_peer running_job(uint64_t *job_out)
{
    fake_shards_up(&fake, 2);
    struct fake_peer w = worker("w0");
    *job_out = fake_attach(&fake, &w, 10, 0, 1);
    fake_init(&fake, &w, *job_out);
    return w;
}

static uint64_t one_round(struct fake_peer *w, uint64_t job)
{
    return fake_commit(&fake, w, job, fake_begin(&fake, w, job));
}

static uint32_t ask_commit(struct fake_peer *w, uint64_t job, uint64_t round)
{
    Cairn__RoundCommit commit = CAIRN__ROUND_COMMIT__INIT;
    commit.job = job;
    commit.round = round;
    return fake_request(w, CAIRN_MSG_ROUND_COMMIT, &commit.base);
}

static uint32_t ask_begin(struct fake_peer *w, uint64_t job)
{
    Cairn__RoundBegin begin = CAIRN__ROUND_BEGIN__INIT;
    begin.job = job;
    return fake_request(w, CAIRN_MSG_ROUND_BEGIN, &begin.base);
}

static void expect_awaited(struct fake_peer *peer, uint64_t job, const char *word)
{
    Cairn__WhoIsAwaited who = CAIRN__WHO_IS_AWAITED__INIT;
    who.job = job;
    const uint32_t request = fake_request(peer, CAIRN_MSG_WHO_IS_AWAITED, &who.base);
    Cairn__Awaited *awaited = (Cairn__Awaited *)fake_expect(&fake, peer, CAIRN_MSG_AWAITED,
                                                            request);
    ck_assert_msg(strstr(awaited->text, word) != NULL, "\"%s\" has no \"%s\"", awaited->text, word);
    cairn_message_free(&awaited->base);
}

/* ---- a job's life ---- */

START_TEST(a_job_is_created_put_and_trained)
{
    uint64_t job;
    struct fake_peer w = running_job(&job);
    for (uint64_t step = 1; step <= 3; step++) ck_assert_uint_eq(one_round(&w, job), step);
    ck_assert_uint_eq(fake.shards[0].version.step, 3);
    ck_assert_uint_eq(fake.shards[1].version.step, 3);
    fake_peer_close(&w);
}
END_TEST

START_TEST(opening_waits_for_the_shards_and_says_so)
{
    fake_shards_up(&fake, 1);
    struct fake_peer w = worker("w0");
    struct cairn_job_spec_data spec = fake_spec(1);
    const uint32_t request = fake_job_open(&w, &spec, 10, 0);
    expect_awaited(&w, 0, "waiting for 1 more shard (1 of 2 up)");
    fake_shard_up(&fake, 1);
    cairn_message_free(fake_expect(&fake, &w, CAIRN_MSG_ATTACHED, request));
    cairn_spec_release(&spec);
    fake_peer_close(&w);
}
END_TEST

START_TEST(a_shard_without_room_refuses_the_job_everywhere)
{
    fake.shards[1].refuse_create = "needs 12 GiB, has 8";
    fake_shards_up(&fake, 2);
    struct fake_peer w = worker("w0");
    struct cairn_job_spec_data spec = fake_spec(1);
    uint32_t request = fake_job_open(&w, &spec, 10, 0);
    fake_expect_error(&fake, &w, request, CAIRN_ERR_NO_MEMORY, "s1: needs 12 GiB, has 8");
    fake_until(&fake, !fake.shards[0].has_job);
    fake.shards[1].refuse_create = NULL; // and it can be asked again
    request = fake_job_open(&w, &spec, 10, 0);
    cairn_message_free(fake_expect(&fake, &w, CAIRN_MSG_ATTACHED, request));
    cairn_spec_release(&spec);
    fake_peer_close(&w);
}
END_TEST

START_TEST(a_spec_that_differs_is_refused_with_the_differences)
{
    uint64_t job;
    struct fake_peer w = running_job(&job);
    struct fake_peer other = worker("w1");
    struct cairn_job_spec_data spec = fake_spec(1);
    spec.tensors[1].shape.dim[0] = 64;
    spec.groups[0].lr = 0.5;
    const uint32_t request = fake_job_open(&other, &spec, 11, 1);
    Cairn__Error *error = (Cairn__Error *)fake_expect(&fake, &other, CAIRN_MSG_ERROR, request);
    ck_assert_int_eq(error->status, CAIRN_ERR_MISMATCH);
    ck_assert_ptr_nonnull(strstr(error->text, "fc.weight: shape [64,1024] here, [128,1024]"));
    ck_assert_ptr_nonnull(strstr(error->text, "lr"));
    cairn_message_free(&error->base);
    cairn_spec_release(&spec);
    fake_peer_close(&other);
    fake_peer_close(&w);
}
END_TEST

START_TEST(a_reader_of_no_job_hears_that_there_is_none)
{
    struct fake_peer r = fake_connect(&fake, CAIRN_ROLE_WIRE_READER, "r0");
    Cairn__JobOpen open = CAIRN__JOB_OPEN__INIT;
    open.name = (char *)(uintptr_t) "toy";
    open.role = CAIRN_ROLE_WIRE_READER;
    open.session = 5;
    const uint32_t request = fake_request(&r, CAIRN_MSG_JOB_OPEN, &open.base);
    fake_expect_error(&fake, &r, request, CAIRN_ERR_NOT_FOUND, "there is no job toy");
    fake_peer_close(&r);
}
END_TEST

static void open_reader(struct fake_peer *r)
{
    Cairn__JobOpen open = CAIRN__JOB_OPEN__INIT;
    open.name = (char *)(uintptr_t) "toy";
    open.role = CAIRN_ROLE_WIRE_READER;
    open.session = 5;
    const uint32_t request = fake_request(r, CAIRN_MSG_JOB_OPEN, &open.base);
    cairn_message_free(fake_expect(&fake, r, CAIRN_MSG_ATTACHED, request));
}

START_TEST(a_reader_waits_for_a_version)
{
    uint64_t job;
    struct fake_peer w = running_job(&job);
    struct fake_peer r = fake_connect(&fake, CAIRN_ROLE_WIRE_READER, "r0");
    open_reader(&r);
    Cairn__VersionWait wait = CAIRN__VERSION_WAIT__INIT;
    wait.job = job;
    wait.generation = 1;
    wait.step = 2;
    const uint32_t request = fake_request(&r, CAIRN_MSG_VERSION_WAIT, &wait.base);
    one_round(&w, job);
    one_round(&w, job);
    Cairn__VersionReady *ready = (Cairn__VersionReady *)fake_expect(
        &fake, &r, CAIRN_MSG_VERSION_READY, request);
    ck_assert_uint_eq(ready->step, 2);
    cairn_message_free(&ready->base);
    const uint32_t begin = ask_begin(&r, job);
    fake_expect_error(&fake, &r, begin, CAIRN_ERR_REFUSED, "reader");
    fake_peer_close(&r);
    fake_peer_close(&w);
}
END_TEST

static uint32_t ask_version(struct fake_peer *peer, uint64_t job, uint64_t step, uint32_t ms)
{
    Cairn__VersionWait wait = CAIRN__VERSION_WAIT__INIT;
    wait.job = job;
    wait.generation = 1;
    wait.step = step;
    wait.timeout_ms = ms;
    return fake_request(peer, CAIRN_MSG_VERSION_WAIT, &wait.base);
}

static void expect_version(struct fake_peer *peer, uint32_t request, uint64_t step)
{
    Cairn__VersionReady *ready = (Cairn__VersionReady *)fake_expect(
        &fake, peer, CAIRN_MSG_VERSION_READY, request);
    ck_assert_uint_eq(ready->step, step);
    cairn_message_free(&ready->base);
}

START_TEST(who_waits_for_a_version_is_not_put_out_by_others_of_the_member)
{
    uint64_t job;
    uint32_t waiting[8];
    struct fake_peer w = running_job(&job), r = fake_connect(&fake, CAIRN_ROLE_WIRE_READER, "r0");
    open_reader(&r);
    waiting[0] = ask_version(&r, job, 1, 60000);
    for (int i = 0; i < 20; i++) ask_version(&r, job, 9, 0); // for how long it does not say
    for (int i = 0; i < 7; i++) ask_version(&r, job, 9, 1);
    expect_version(&r, ask_version(&r, job, 0, 60000), 0); // what is there is said at once
    uv_sleep(5);                                           // those of 1 ms have given up
    for (int i = 1; i < 8; i++) waiting[i] = ask_version(&r, job, 1, 60000);
    fake_expect_error(&fake, &r, ask_version(&r, job, 1, 60000), CAIRN_ERR_BUSY, "8 threads");
    expect_version(&r, ask_version(&r, job, 0, 60000), 0);
    one_round(&w, job);
    for (int i = 0; i < 8; i++) expect_version(&r, waiting[i], 1);
    fake_peer_close(&r);
    fake_peer_close(&w);
}
END_TEST

START_TEST(missing_tensors_are_named_to_the_source)
{
    fake.shards[0].fail_seal = "fc.bias was not put";
    fake_shards_up(&fake, 2);
    struct fake_peer w = worker("w0");
    const uint64_t job = fake_attach(&fake, &w, 10, 0, 1);
    Cairn__InitDone done = CAIRN__INIT_DONE__INIT;
    done.job = job;
    done.source = true;
    const uint32_t request = fake_request(&w, CAIRN_MSG_INIT_DONE, &done.base);
    fake_expect_error(&fake, &w, request, CAIRN_ERR_NOT_READY, "fc.bias was not put");
    fake.shards[0].fail_seal = NULL;
    fake_init(&fake, &w, job);
    ck_assert_uint_eq(one_round(&w, job), 1);
    fake_peer_close(&w);
}
END_TEST

START_TEST(a_worker_that_is_not_the_source_waits_for_the_seal)
{
    fake_shards_up(&fake, 2);
    struct fake_peer w0 = worker("w0"), w1 = worker("w1");
    const uint64_t job = fake_attach(&fake, &w0, 10, 0, 2);
    fake_attach(&fake, &w1, 11, 1, 2);
    Cairn__InitDone done = CAIRN__INIT_DONE__INIT;
    done.job = job;
    const uint32_t request = fake_request(&w1, CAIRN_MSG_INIT_DONE, &done.base);
    expect_awaited(&w1, job, "rank 0");
    fake_init(&fake, &w0, job);
    cairn_message_free(fake_expect(&fake, &w1, CAIRN_MSG_DONE, request));
    fake_peer_close(&w0);
    fake_peer_close(&w1);
}
END_TEST

/* ---- members ---- */

START_TEST(a_worker_that_dies_voids_the_open_round_for_the_others)
{
    fake_shards_up(&fake, 2);
    fake.shards[0].holds_reduced = fake.shards[1].holds_reduced = true;
    struct fake_peer w0 = worker("w0"), w1 = worker("w1");
    const uint64_t job = fake_attach(&fake, &w0, 10, 0, 1);
    fake_attach(&fake, &w1, 11, 1, 1);
    fake_init(&fake, &w0, job);
    const uint64_t round = fake_begin(&fake, &w0, job);
    const uint32_t request = ask_commit(&w0, job, round);
    expect_awaited(&w0, job, "worker w1 of rank 1");
    fake_peer_close(&w1);
    Cairn__RoundResult *result = (Cairn__RoundResult *)fake_expect(&fake, &w0,
                                                                   CAIRN_MSG_ROUND_RESULT, request);
    ck_assert_int_eq(result->status, CAIRN_ERR_EPOCH_CHANGED);
    ck_assert_ptr_nonnull(strstr(result->text, "worker w1 (rank 1) left"));
    cairn_message_free(&result->base);
    fake.shards[0].holds_reduced = fake.shards[1].holds_reduced = false;
    ck_assert_uint_eq(one_round(&w0, job), 1);
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_MEMBER_LEAVE], 1);
    fake_peer_close(&w0);
}
END_TEST

START_TEST(a_worker_whose_memory_a_shard_cannot_read_is_put_out)
{
    fake_shards_up(&fake, 2);
    fake.shards[0].holds_reduced = fake.shards[1].holds_reduced = true;
    struct fake_peer w0 = worker("w0"), w1 = worker("w1");
    const uint64_t job = fake_attach(&fake, &w0, 10, 0, 1);
    fake_attach(&fake, &w1, 11, 1, 1);
    fake_init(&fake, &w0, job);
    const uint64_t round = fake_begin(&fake, &w0, job);
    const uint32_t request = ask_commit(&w0, job, round);
    Cairn__MemberFault fault = CAIRN__MEMBER_FAULT__INIT;
    fault.job = job;
    fault.member = 11;
    fault.text = (char *)(uintptr_t) "the memory of w1 cannot be read";
    fake_send(&fake.shards[1].peer, CAIRN_MSG_MEMBER_FAULT, 0, &fault.base);
    Cairn__RoundResult *result = (Cairn__RoundResult *)fake_expect(&fake, &w0,
                                                                   CAIRN_MSG_ROUND_RESULT, request);
    ck_assert_int_eq(result->status, CAIRN_ERR_EPOCH_CHANGED);
    ck_assert_ptr_nonnull(strstr(result->text, "cannot be read"));
    cairn_message_free(&result->base);
    fake_expect_error(&fake, &w1, 0, CAIRN_ERR_NO_MEMORY, "cannot be read");
    fake_send(&fake.shards[1].peer, CAIRN_MSG_MEMBER_FAULT, 0, &fault.base); // it is gone already
    fake.shards[0].holds_reduced = fake.shards[1].holds_reduced = false;
    ck_assert_uint_eq(one_round(&w0, job), 1);
    fake_peer_close(&w0);
    fake_peer_close(&w1);
}
END_TEST

START_TEST(a_second_worker_of_a_rank_fences_the_older)
{
    uint64_t job;
    struct fake_peer w0 = running_job(&job);
    struct fake_peer newer = worker("w0-again");
    fake_attach(&fake, &newer, 11, 0, 1);
    fake_expect_error(&fake, &w0, 0, CAIRN_ERR_FENCED, "w0-again attached as rank 0");
    fake_expect_end(&fake, &w0);
    ck_assert_uint_eq(one_round(&newer, job), 1);
    fake_peer_close(&w0);
    ck_assert_uint_eq(one_round(&newer, job), 2);
    fake_peer_close(&newer);
}
END_TEST

START_TEST(the_same_session_may_open_again)
{
    uint64_t job;
    struct fake_peer w0 = running_job(&job);
    ck_assert_uint_eq(one_round(&w0, job), 1);
    struct fake_peer again = worker("w0");
    ck_assert_uint_eq(fake_attach(&fake, &again, 10, 0, 1), job);
    ck_assert_uint_eq(one_round(&again, job), 2);
    fake_peer_close(&w0); // the older connection ends without a word
    ck_assert_uint_eq(one_round(&again, job), 3);
    fake_peer_close(&again);
}
END_TEST

START_TEST(a_silent_worker_loses_its_lease)
{
    fake_coordinator_stop(&fake);
    fake.options.heartbeat_ms = 20;
    fake.options.lease_timeout_ms = 100;
    fake_coordinator_start(&fake);
    struct fake_peer w0 = worker("w0");
    fake_expect_end(&fake, &w0);
    fake_peer_close(&w0);
}
END_TEST

START_TEST(a_stopped_coordinator_lets_no_deadline_pass)
{
    fake_coordinator_stop(&fake);
    fake.options.heartbeat_ms = 20;
    fake.options.step_deadline_ms = 300;
    fake_coordinator_start(&fake);
    uint64_t job;
    struct fake_peer w = running_job(&job);
    const uint64_t round = fake_begin(&fake, &w, job);
    usleep(600000); // SIGSTOP: its loop does not turn
    ck_assert_uint_eq(fake_commit(&fake, &w, job, round), 1);
    fake_peer_close(&w);
}
END_TEST

/* Two workers that have committed, in a round that no shard has summed up; its deadline is short. */
static void two_workers_held_up(struct fake_peer w[2], uint64_t *job_out, uint32_t requests[2])
{
    fake_coordinator_stop(&fake);
    fake.options.heartbeat_ms = 20;
    fake.options.step_deadline_ms = 200;
    fake_coordinator_start(&fake);
    fake_shards_up(&fake, 2);
    fake.shards[0].holds_reduced = fake.shards[1].holds_reduced = true;
    w[0] = worker("w0");
    w[1] = worker("w1");
    *job_out = fake_attach(&fake, &w[0], 10, 0, 1);
    fake_attach(&fake, &w[1], 11, 1, 1);
    fake_init(&fake, &w[0], *job_out);
    const uint64_t round = fake_begin(&fake, &w[0], *job_out);
    ck_assert_uint_eq(fake_begin(&fake, &w[1], *job_out), round);
    for (int i = 0; i < 2; i++) requests[i] = ask_commit(&w[i], *job_out, round);
}

START_TEST(a_worker_whose_word_arrives_and_whose_data_does_not_is_put_out_at_the_deadline)
{
    struct fake_peer w[2];
    uint32_t requests[2];
    uint64_t job;
    fake.shards[0].lacks[0] = fake.shards[1].lacks[0] = 11;
    fake.shards[0].lack_count = fake.shards[1].lack_count = 1;
    two_workers_held_up(w, &job, requests);
    fake_expect_error(&fake, &w[1], requests[1], CAIRN_ERR_FENCED,
                      "and 1 more did not get all that it contributes to round");
    Cairn__RoundResult *result = (Cairn__RoundResult *)fake_expect(
        &fake, &w[0], CAIRN_MSG_ROUND_RESULT, requests[0]);
    ck_assert_int_eq(result->status, CAIRN_ERR_EPOCH_CHANGED);
    ck_assert_ptr_nonnull(strstr(result->text, "worker w1 (rank 1) was put out: shard s"));
    cairn_message_free(&result->base);
    fake.shards[0].holds_reduced = fake.shards[1].holds_reduced = false;
    ck_assert_uint_eq(one_round(&w[0], job), 1);
    fake_peer_close(&w[0]);
    fake_peer_close(&w[1]);
}
END_TEST

START_TEST(a_shard_that_alone_lacks_all_workers_is_named_at_the_deadline)
{
    struct fake_peer w[2];
    uint32_t requests[2];
    uint64_t job;
    fake.shards[1].lacks[0] = 10;
    fake.shards[1].lacks[1] = 11;
    fake.shards[1].lack_count = 2;
    two_workers_held_up(w, &job, requests);
    fake_shard_report_reduced(&fake.shards[0]);
    fake_until(&fake, fake.shards[1].seen[CAIRN_MSG_LACKS_GET] == 2); // again at the next deadline
    expect_awaited(&w[0], job, "shard s1 (lacks something of 2 of 2 workers in round");
    fake_shard_report_reduced(&fake.shards[1]);
    for (int i = 0; i < 2; i++) {
        Cairn__RoundResult *result = (Cairn__RoundResult *)fake_expect(
            &fake, &w[i], CAIRN_MSG_ROUND_RESULT, requests[i]);
        ck_assert_int_eq(result->status, CAIRN_OK);
        cairn_message_free(&result->base);
        fake_peer_close(&w[i]);
    }
}
END_TEST

/* ---- shards ---- */

START_TEST(training_goes_on_when_a_shard_comes_back)
{
    uint64_t job;
    struct fake_peer w = running_job(&job);
    one_round(&w, job);
    fake_shard_away(&fake, 1);
    const uint32_t request = ask_begin(&w, job);
    expect_awaited(&w, job, "shard s1 (it is away)");
    fake_shard_up(&fake, 1);
    Cairn__RoundOpened *opened = (Cairn__RoundOpened *)fake_expect(&fake, &w,
                                                                   CAIRN_MSG_ROUND_OPENED, request);
    ck_assert_uint_eq(fake_commit(&fake, &w, job, opened->round), 2);
    cairn_message_free(&opened->base);
    fake_peer_close(&w);
}
END_TEST

START_TEST(a_shard_that_lost_its_part_loses_the_job)
{
    uint64_t job;
    struct fake_peer w = running_job(&job);
    one_round(&w, job);
    uint32_t request = ask_begin(&w, job);
    cairn_message_free(fake_expect(&fake, &w, CAIRN_MSG_ROUND_OPENED, request));
    fake_shard_forget(&fake, 1);
    request = ask_begin(&w, job);
    fake_expect_silence(&fake, &w, job);
    fake_shard_up(&fake, 1);
    fake_expect_error(&fake, &w, request, CAIRN_ERR_JOB_LOST, "s1 restarted without its part");
    fake_expect_error(&fake, &w, 0, CAIRN_ERR_JOB_LOST, "cairn snapshot restore");
    fake_expect_end(&fake, &w);
    fake_peer_close(&w);
    w = worker("w0");
    struct cairn_job_spec_data spec = fake_spec(1);
    request = fake_job_open(&w, &spec, 10, 0);
    fake_expect_error(&fake, &w, request, CAIRN_ERR_JOB_LOST, "s1 restarted without its part");
    cairn_spec_release(&spec);
    fake_peer_close(&w);
}
END_TEST

START_TEST(members_hear_where_a_shard_is_now)
{
    uint64_t job;
    struct fake_peer w = running_job(&job);
    fake_shard_away(&fake, 1);
    fake.shards[1].incarnation++; // a new process that was handed the state; its address is new
    fake_shard_up(&fake, 1);
    Cairn__ShardsChanged *changed = (Cairn__ShardsChanged *)fake_expect(
        &fake, &w, CAIRN_MSG_SHARDS_CHANGED, 0);
    ck_assert_uint_eq(changed->n_shards, 2);
    ck_assert_str_eq(changed->shards[1]->name, "s1");
    ck_assert_uint_eq(changed->shards[1]->fabric_address.data[1], fake.shards[1].incarnation);
    cairn_message_free(&changed->base);
    ck_assert_uint_eq(one_round(&w, job), 1);
    fake_peer_close(&w);
}
END_TEST

START_TEST(a_shard_that_connects_again_takes_its_seat_at_once)
{
    uint64_t job;
    struct fake_peer w = running_job(&job);
    struct fake_peer older = fake.shards[1].peer;
    fake.shards[1].peer.fd = -1; // the connection stays, as one that was lost unseen
    fake_shard_up(&fake, 1);
    fake_expect_end(&fake, &older);
    fake_peer_close(&older);
    ck_assert_uint_eq(one_round(&w, job), 1);
    fake_peer_close(&w);
}
END_TEST

START_TEST(a_shard_that_restarts_before_the_seal_costs_nothing_but_the_puts)
{
    fake_shards_up(&fake, 2);
    struct fake_peer w = worker("w0");
    const uint64_t job = fake_attach(&fake, &w, 10, 0, 1);
    fake_shard_forget(&fake, 0);
    fake_shard_up(&fake, 0);
    fake_expect_error(&fake, &w, 0, CAIRN_ERR_FENCED, "put the initial state again");
    fake_peer_close(&w);
    w = worker("w0");
    const uint64_t again = fake_attach(&fake, &w, 10, 0, 1);
    ck_assert_uint_ne(again, job);
    fake_init(&fake, &w, again);
    ck_assert_uint_eq(one_round(&w, again), 1);
    fake_peer_close(&w);
}
END_TEST

/* The other shard has not answered yet when it is here again: nobody else would ask it anew. */
START_TEST(a_shard_that_blinks_during_the_seal_is_sealed_again)
{
    fake_shards_up(&fake, 2);
    struct fake_peer w = worker("w0");
    const uint64_t job = fake_attach(&fake, &w, 10, 0, 1);
    fake.shards[0].holds_seal = fake.shards[1].holds_seal = true;
    Cairn__InitDone done = CAIRN__INIT_DONE__INIT;
    done.job = job;
    done.source = true;
    const uint32_t request = fake_request(&w, CAIRN_MSG_INIT_DONE, &done.base);
    fake_until(&fake, fake.shards[0].seen[CAIRN_MSG_JOB_SEAL] == 1 &&
                          fake.shards[1].seen[CAIRN_MSG_JOB_SEAL] == 1);
    fake.shards[1].holds_seal = false;
    fake_shard_away(&fake, 1);
    fake_shard_up(&fake, 1);
    fake_shard_release(&fake.shards[0]);
    cairn_message_free(fake_expect(&fake, &w, CAIRN_MSG_DONE, request));
    ck_assert_uint_eq(one_round(&w, job), 1);
    fake_peer_close(&w);
}
END_TEST

/* It said Done and died while another shard still made room: its part is gone. */
START_TEST(a_shard_that_restarts_while_a_job_is_made_has_it_made_again)
{
    fake_shards_up(&fake, 2);
    fake.shards[0].holds_create = true;
    struct fake_peer w = worker("w0");
    struct cairn_job_spec_data spec = fake_spec(1);
    const uint32_t request = fake_job_open(&w, &spec, 10, 0);
    fake_until(&fake, fake.shards[0].has_job && fake.shards[1].has_job);
    expect_awaited(&w, 0, "make room");
    fake_shard_forget(&fake, 1);
    fake_shard_up(&fake, 1);
    fake_shard_release(&fake.shards[0]);
    cairn_message_free(fake_expect(&fake, &w, CAIRN_MSG_ATTACHED, request));
    fake_init(&fake, &w, fake.shards[1].job);
    ck_assert_uint_eq(one_round(&w, fake.shards[1].job), 1);
    cairn_spec_release(&spec);
    fake_peer_close(&w);
}
END_TEST

/* ---- the coordinator itself ---- */

START_TEST(a_new_incarnation_goes_on_in_the_middle_of_a_round)
{
    uint64_t job;
    struct fake_peer w = running_job(&job);
    one_round(&w, job);
    fake.shards[0].holds_reduced = fake.shards[1].holds_reduced = true;
    const uint64_t round = fake_begin(&fake, &w, job);
    fake_coordinator_stop(&fake);
    fake_peer_close(&w);
    fake.shards[0].holds_reduced = fake.shards[1].holds_reduced = false;
    fake_coordinator_start(&fake);
    fake_shards_up(&fake, 2);
    w = worker("w0");
    ck_assert_uint_eq(fake_attach(&fake, &w, 10, 0, 1), job);
    fake_init(&fake, &w, job);
    const uint32_t request = ask_commit(&w, job, round);
    Cairn__RoundResult *result = (Cairn__RoundResult *)fake_expect(&fake, &w,
                                                                   CAIRN_MSG_ROUND_RESULT, request);
    ck_assert_int_eq(result->status, CAIRN_ERR_EPOCH_CHANGED);
    cairn_message_free(&result->base);
    const uint64_t next = fake_begin(&fake, &w, job);
    ck_assert_uint_gt(next, round);
    ck_assert_uint_eq(fake_commit(&fake, &w, job, next), 2);
    fake_peer_close(&w);
}
END_TEST

START_TEST(a_decision_that_one_shard_has_is_given_to_all_by_a_new_incarnation)
{
    uint64_t job;
    struct fake_peer w = running_job(&job);
    fake.shards[0].holds_reduced = fake.shards[1].holds_reduced = true;
    const uint64_t round = fake_begin(&fake, &w, job);
    fake_shard_report_reduced(&fake.shards[0]);
    fake_shard_report_reduced(&fake.shards[1]);
    // Shard 1 is prepared and goes away before it hears; shard 0 applies.
    fake_pump(&fake);
    fake_until(&fake, fake.shards[0].version.step == 1 || fake.shards[1].version.step == 1);
    fake.shards[1].version.step = 0;
    fake.shards[1].last = (struct cairn_decision) { .kind = CAIRN_DECISION_NONE,
                                                    .version_after = { 1, 0 } };
    fake.shards[1].round = round;
    fake.shards[1].reduced = true;
    fake_coordinator_stop(&fake);
    fake_peer_close(&w);
    fake_coordinator_start(&fake);
    fake_shards_up(&fake, 2);
    w = worker("w0");
    fake_attach(&fake, &w, 10, 0, 1);
    const uint32_t request = ask_commit(&w, job, round);
    Cairn__RoundResult *result = (Cairn__RoundResult *)fake_expect(&fake, &w,
                                                                   CAIRN_MSG_ROUND_RESULT, request);
    ck_assert_int_eq(result->status, CAIRN_OK);
    ck_assert_uint_eq(result->step, 1);
    cairn_message_free(&result->base);
    ck_assert_uint_eq(fake.shards[1].version.step, 1);
    fake_peer_close(&w);
}
END_TEST

START_TEST(fifty_rounds_write_nothing_to_the_store)
{
    uint64_t job;
    struct fake_peer w = running_job(&job);
    one_round(&w, job);
    const uint64_t writes = cairn_cluster_store_writes(fake.cluster);
    for (int i = 0; i < 50; i++) one_round(&w, job);
    ck_assert_uint_eq(cairn_cluster_store_writes(fake.cluster), writes);
    fake_peer_close(&w);
}
END_TEST

START_TEST(a_second_coordinator_on_the_folder_is_refused)
{
    struct cairn_cluster *second;
    struct cairn_sentence why = { "" };
    struct cairn_cluster_options options = fake.options;
    options.network.listen = (char *)(uintptr_t) "127.0.0.1:0";
    ck_assert_int_eq(cairn_cluster_open(&options, &fake.loop, &second, &why), CAIRN_ERR_BUSY);
}
END_TEST

START_TEST(a_peer_of_another_protocol_is_told_so)
{
    struct fake_peer peer = fake_dial(&fake);
    Cairn__Hello hello = CAIRN__HELLO__INIT;
    hello.protocol = 99;
    hello.role = CAIRN_ROLE_WIRE_WORKER;
    hello.name = (char *)(uintptr_t) "w0";
    const uint32_t request = fake_request(&peer, CAIRN_MSG_HELLO, &hello.base);
    fake_expect_error(&fake, &peer, request, CAIRN_ERR_VERSION, "protocol 2, not 99");
    fake_peer_close(&peer);
}
END_TEST

START_TEST(a_role_that_says_what_it_may_not_is_cut_off)
{
    struct fake_peer admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "ctl");
    Cairn__RoundBegin begin = CAIRN__ROUND_BEGIN__INIT;
    fake_request(&admin, CAIRN_MSG_ROUND_BEGIN, &begin.base);
    while (!admin.ended) {
        struct cairn_frame frame;
        fake_pump(&fake);
        fake_peer_read(&admin);
        while (fake_peer_next(&admin, &frame)) {}
    }
    fake_peer_close(&admin);
}
END_TEST

/* ---- bad input ---- */

START_TEST(a_session_number_of_another_is_refused)
{
    uint64_t job;
    struct fake_peer w = running_job(&job);
    struct fake_peer thief = worker("thief");
    Cairn__JobOpen open = CAIRN__JOB_OPEN__INIT;
    open.name = (char *)(uintptr_t) "toy";
    open.role = CAIRN_ROLE_WIRE_READER;
    open.session = 10;
    open.token = 4711;
    const uint32_t request = fake_request(&thief, CAIRN_MSG_JOB_OPEN, &open.base);
    fake_expect_error(&fake, &thief, request, CAIRN_ERR_REFUSED, "belongs to another member");
    ck_assert_uint_eq(one_round(&w, job), 1);
    fake_peer_close(&thief);
    fake_peer_close(&w);
}
END_TEST

START_TEST(pages_that_do_not_follow_each_other_are_refused)
{
    struct fake_peer w = worker("w0");
    uint8_t bytes[8] = { 0 };
    Cairn__JobOpen open = CAIRN__JOB_OPEN__INIT;
    open.name = (char *)(uintptr_t) "toy";
    open.role = CAIRN_ROLE_WIRE_WORKER;
    open.session = 10;
    open.spec_bytes = 100;
    const uint32_t request = fake_request(&w, CAIRN_MSG_JOB_OPEN, &open.base);
    Cairn__Page page = CAIRN__PAGE__INIT;
    page.what = CAIRN_PAGE_SPEC;
    page.offset = 50;
    page.total_bytes = 100;
    page.bytes = (ProtobufCBinaryData) { sizeof bytes, bytes };
    fake_send(&w, CAIRN_MSG_PAGE, request, &page.base);
    fake_expect_error(&fake, &w, request, CAIRN_ERR_PROTOCOL, "do not follow");
    open.spec_bytes = UINT64_MAX;
    const uint32_t huge = fake_request(&w, CAIRN_MSG_JOB_OPEN, &open.base);
    fake_expect_error(&fake, &w, huge, CAIRN_ERR_INVALID, "64 MiB");
    fake_peer_close(&w);
}
END_TEST

START_TEST(a_request_for_a_job_that_is_not_open_is_refused)
{
    uint64_t job;
    struct fake_peer w = running_job(&job);
    struct fake_peer other = worker("w1");
    fake_expect_error(&fake, &other, ask_begin(&other, job), CAIRN_ERR_NOT_READY, "open it first");
    fake_expect_error(&fake, &other, ask_commit(&other, job, 1), CAIRN_ERR_NOT_READY, "open it");
    fake_peer_close(&other);
    fake_peer_close(&w);
}
END_TEST

START_TEST(a_malformed_message_ends_the_connection_and_nothing_else)
{
    uint64_t job;
    struct fake_peer w = running_job(&job);
    struct fake_peer bad = worker("bad");
    uint8_t frame[CAIRN_FRAME_HEADER_BYTES + 4];
    memset(frame, 0xff, sizeof frame);
    cairn_frame_header_write(frame, CAIRN_MSG_JOB_OPEN, 9, 4);
    ck_assert_int_eq(write(bad.fd, frame, sizeof frame), sizeof frame);
    fake_expect_end(&fake, &bad);
    fake_peer_close(&bad);
    ck_assert_uint_eq(one_round(&w, job), 1);
    fake_peer_close(&w);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator");
    TCase *tc = tcase_create("coordinator");
    tcase_set_timeout(tc, 30);
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, a_job_is_created_put_and_trained);
    tcase_add_test(tc, opening_waits_for_the_shards_and_says_so);
    tcase_add_test(tc, a_shard_without_room_refuses_the_job_everywhere);
    tcase_add_test(tc, a_spec_that_differs_is_refused_with_the_differences);
    tcase_add_test(tc, a_reader_of_no_job_hears_that_there_is_none);
    tcase_add_test(tc, a_reader_waits_for_a_version);
    tcase_add_test(tc, who_waits_for_a_version_is_not_put_out_by_others_of_the_member);
    tcase_add_test(tc, missing_tensors_are_named_to_the_source);
    tcase_add_test(tc, a_worker_that_is_not_the_source_waits_for_the_seal);
    tcase_add_test(tc, a_worker_that_dies_voids_the_open_round_for_the_others);
    tcase_add_test(tc, a_worker_whose_memory_a_shard_cannot_read_is_put_out);
    tcase_add_test(tc, a_second_worker_of_a_rank_fences_the_older);
    tcase_add_test(tc, the_same_session_may_open_again);
    tcase_add_test(tc, a_silent_worker_loses_its_lease);
    tcase_add_test(tc, a_stopped_coordinator_lets_no_deadline_pass);
    tcase_add_test(tc,
                   a_worker_whose_word_arrives_and_whose_data_does_not_is_put_out_at_the_deadline);
    tcase_add_test(tc, a_shard_that_alone_lacks_all_workers_is_named_at_the_deadline);
    tcase_add_test(tc, training_goes_on_when_a_shard_comes_back);
    tcase_add_test(tc, a_shard_that_lost_its_part_loses_the_job);
    tcase_add_test(tc, members_hear_where_a_shard_is_now);
    tcase_add_test(tc, a_shard_that_connects_again_takes_its_seat_at_once);
    tcase_add_test(tc, a_session_number_of_another_is_refused);
    tcase_add_test(tc, pages_that_do_not_follow_each_other_are_refused);
    tcase_add_test(tc, a_request_for_a_job_that_is_not_open_is_refused);
    tcase_add_test(tc, a_malformed_message_ends_the_connection_and_nothing_else);
    tcase_add_test(tc, a_shard_that_restarts_before_the_seal_costs_nothing_but_the_puts);
    tcase_add_test(tc, a_shard_that_blinks_during_the_seal_is_sealed_again);
    tcase_add_test(tc, a_shard_that_restarts_while_a_job_is_made_has_it_made_again);
    tcase_add_test(tc, a_new_incarnation_goes_on_in_the_middle_of_a_round);
    tcase_add_test(tc, a_decision_that_one_shard_has_is_given_to_all_by_a_new_incarnation);
    tcase_add_test(tc, fifty_rounds_write_nothing_to_the_store);
    tcase_add_test(tc, a_second_coordinator_on_the_folder_is_refused);
    tcase_add_test(tc, a_peer_of_another_protocol_is_told_so);
    tcase_add_test(tc, a_role_that_says_what_it_may_not_is_cut_off);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
