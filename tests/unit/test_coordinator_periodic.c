/* Periodic snapshots: taken at their steps by nobody's word, the newest of them kept, whatever fails. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "proto/store/storage.h"
#include "server/coordinator/snapshot.h"
#include "tests/support/fake_shard.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static void amend(uint64_t every, uint64_t keep, uint64_t revision)
{
    amend_job(revision, "snapshot_every=%" PRIu64 " snapshot_keep=%" PRIu64, every, keep);
}

/* "8p 6p 3": steps of the newest first, p: periodic. */
static void list_text(char out[200])
{
    Cairn__SnapshotList *listed = list_snapshots();
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < listed->n_snapshots; i++)
        used += (size_t)snprintf(out + used, 200 - used, "%s%" PRIu64 "%s", i > 0 ? " " : "",
                                 listed->snapshots[i]->step,
                                 listed->snapshots[i]->periodic ? "p" : "");
}

/* Whoever lists while one is removed may see it: until these are there. */
static void expect_listed(const char *expected)
{
    char text[200] = "";
    const uint64_t end_ms = uv_hrtime() / 1000000 + 10000;
    while (strcmp(text, expected) != 0) {
        if (uv_hrtime() / 1000000 >= end_ms) ck_abort_msg("%s, not %s", text, expected);
        list_text(text);
    }
}

/* To that step; what is begun on the way is whole. */
static void train_to(uint64_t until)
{
    do {
        train();
        fake_until(&fake, toy()->snapshots.running == NULL);
    } while (coord_job_version(toy()).step < until);
}

static void expect_shown(const char *word)
{
    Cairn__JobStatus *s = show_job("toy");
    const bool right = *word == '\0' ? s->snapshot_failed[0] == '\0'
                                     : strstr(s->snapshot_failed, word) != NULL;
    ck_assert_msg(right, "\"%s\", not \"%s\"", s->snapshot_failed, word);
}

TEST(they_are_of_their_steps_and_only_old_periodic_ones_go)
{
    amend(2, 2, 1);
    train_to(3);
    take_snapshot();
    train_to(9);
    expect_listed("8p 6p 3");
    amend(3, 2, 2);
    train_to(11);
    expect_listed("8p 6p 3"); // 9 was applied before
    amend(3, 1, 3);           // the check of 8p may end as late as here, and then 6p goes at once
    train_to(12);
    expect_listed("12p 3");
    amend(0, 0, 4);
    train_to(15);
    expect_listed("12p 3");
}

static void expect_given_back(void)
{
    fake_until(&fake, fake.shards[0].prepared == 0 && fake.shards[1].prepared == 0);
    ck_assert_uint_eq(toy()->snapshots.ahead, 0);
}

/* Until then every one of its updates would make memory for what it overwrites. */
TEST(one_by_steps_is_prepared_ahead_and_what_is_prepared_in_vain_goes)
{
    amend(3, 0, 1);
    train_to(2);
    const uint64_t number = fake.shards[0].prepared;
    ck_assert_uint_ne(number, 0);
    ck_assert_uint_eq(fake.shards[1].prepared, number);
    for (int i = 0; i < 2; i++) fake.shards[i].holds_part = true;
    train();
    fake_until(&fake,
               toy()->snapshots.running != NULL && fake.shards[1].seen[CAIRN_MSG_PIN_FOLDER] > 0);
    ck_assert_uint_eq(toy()->snapshots.running->number, number);
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(fake.shards[i].seen[CAIRN_MSG_PIN_PREPARE], 1);
        fake.shards[i].holds_part = false;
        fake_shard_answer_pin(&fake.shards[i], number, toy()->snapshots.running->folder);
    }
    train_to(5);
    expect_listed("3p");
    ck_assert_uint_ne(fake.shards[0].prepared, 0);
    amend(0, 0, 2);
    train_to(6);
    expect_given_back();
}

static void prepare_ahead(void)
{
    amend(3, 0, 1);
    train_to(2);
    fake_until(&fake, fake.shards[0].prepared != 0 && fake.shards[1].prepared != 0);
}

TEST(what_is_prepared_goes_where_the_step_damages_the_job)
{
    prepare_ahead();
    fake.shards[1].nonfinite = 3;
    train();
    expect_given_back();
}

TEST(what_is_prepared_goes_where_the_storage_is_gone_at_the_step)
{
    prepare_ahead();
    sentence_set(&toy()->cluster->storage.watch.said, "storage is away");
    train();
    expect_given_back();
}

TEST(what_is_prepared_goes_where_nobody_trains_any_more)
{
    prepare_ahead();
    fake_peer_close(&w);
    expect_given_back();
}

TEST(without_a_number_to_keep_all_stay)
{
    amend(1, 0, 1);
    train_to(5);
    expect_listed("5p 4p 3p 2p");
}

/* A write of nothing: the generation goes on, the step stays. */
static void write_buffers(void)
{
    const struct cairn_version before = coord_job_version(toy());
    Cairn__RoundOpened *opened = fake_call(&w, RoundOpened, WriteBegin, .job = job);
    Cairn__RoundResult *result = fake_hear(&w, RoundResult,
                                           fake_ask_commit(&w, job, opened->round));
    ck_assert_int_eq(result->status, CAIRN_OK);
    fake_until(&fake, toy()->snapshots.running == NULL);
    ck_assert_uint_eq(coord_job_version(toy()).generation, before.generation + 1);
}

TEST(where_buffers_are_written_it_is_of_the_version_that_the_write_makes)
{
    toy()->spec.buffers_every = 1;
    amend(2, 0, 1);
    train_to(2);
    expect_listed(""); // the write is still to come
    write_buffers();
    expect_listed("2p");
    write_buffers();
    train_to(3);
    write_buffers();
    expect_listed("2p");
    train_to(4);
    expect_listed("2p");
    train_to(5); // nobody wrote after step 4
    expect_listed("5p 2p");
}

TEST(by_time_one_is_taken_at_the_first_step_after_it)
{
    amend_job(1, "snapshot_every_s=3600");
    train_to(3);
    expect_listed("");
    ck_assert_uint_ne(toy()->snapshots.due_ms, 0);
    toy()->spec.policy.snapshot_every_s = 1;
    const uint64_t since_ms = toy()->snapshots.due_ms;
    fake_until(&fake, coord_now_ms(toy()->cluster) >= since_ms + 1000);
    expect_listed(""); // no step, no snapshot
    train_to(4);
    toy()->spec.policy.snapshot_every_s = 3600;
    expect_listed("4p");
    ck_assert_uint_ge(toy()->snapshots.due_ms, since_ms + 1000);
    train_to(6);
    expect_listed("4p");
}

TEST(the_count_goes_on_in_another_coordinator)
{
    amend(2, 2, 1);
    train_to(5);
    fake_coordinator_restart(&fake);
    fake_shards_up(&fake, 2);
    fake_peer_close(&w);
    fake_peer_close(&admin);
    w = worker("again");
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "admin");
    fake_hear(&w, Attached, fake_ask_open(&w, 78, 0, 1));
    train_to(9);
    expect_listed("8p 6p");
}

TEST(one_that_fails_is_said_and_no_old_one_goes_for_it)
{
    amend(1, 1, 1);
    train_to(2);
    expect_listed("2p");
    fake.shards[1].fail_part = "the disk is full";
    train_to(4);
    expect_shown("of step 4: s1: the disk is full; the next one is due at step 5");
    expect_listed("2p");
    fake.shards[1].fail_part = NULL;
    train_to(5);
    expect_shown("");
    expect_listed("5p");
}

TEST(of_a_damaged_job_none_is_taken_by_itself_and_the_good_one_stays)
{
    amend(1, 1, 1);
    train_to(2);
    expect_listed("2p");
    fake.shards[1].nonfinite = 3;
    train_to(4);
    expect_shown("none is taken while the job is damaged: restore it, or write");
    expect_listed("2p");
    fake.shards[1].nonfinite = 0;
    train_to(5);
    expect_shown("");
    expect_listed("5p");
}

TEST(a_job_that_may_begin_with_what_is_not_finite_is_not_damaged_by_it)
{
    amend(1, 1, 1);
    ck_assert_int_eq(spec_set_init_from(&toy()->spec, "/weights", NULL), CAIRN_OK);
    toy()->spec.init_nonfinite_ok = true;
    fake.shards[1].nonfinite = 3;
    train_to(3);
    expect_shown("");
    expect_listed("3p");
}

TEST(one_that_is_asked_for_of_a_damaged_job_is_made_and_says_so)
{
    amend(1, 1, 1);
    train_to(2);
    fake.shards[1].nonfinite = 3;
    train_to(3);
    Cairn__SnapshotStatus *s = take_snapshot(); // the operator's word counts
    ck_assert_uint_eq(s->nonfinite, 3);
    ck_assert_msg(strstr(s->nonfinite_tensors, "(3)") != NULL, "%s", s->nonfinite_tensors);
    expect_listed("3 2p");
}

/* The disk of a shard is slow: training goes on, and no second cut begins. */
/* Shard 0 as it was when the cut was pinned: fake shards copy nothing. */
static struct fake_shard pinned;

/* A step that begins a cut, which shard 0 does not end. */
static void step_and_hold(void)
{
    fake.shards[0].holds_part = true;
    train();
    fake_until(&fake, // the folder is the other thread's while it is made
               toy()->snapshots.running != NULL && !toy()->snapshots.running->steps.has_thread &&
                   toy()->snapshots.running->folder != NULL);
    fake_pump(&fake);
    pinned = fake.shards[0];
}

static void let_go(void)
{
    struct fake_shard *s = &fake.shards[0], now = *s;
    s->holds_part = false;
    s->version = pinned.version;
    s->last = pinned.last;
    memcpy(s->payload, pinned.payload, sizeof s->payload);
    fake_shard_answer_pin(s, toy()->snapshots.running->number, toy()->snapshots.running->folder);
    s->version = now.version;
    s->last = now.last;
    memcpy(s->payload, now.payload, sizeof s->payload);
}

TEST(none_begins_while_one_is_being_written)
{
    amend(2, 4, 1);
    step_and_hold();
    for (int i = 0; i < 3; i++) train();
    ck_assert_uint_eq(coord_job_version(toy()).step, 5);
    expect_shown("of step 4: a snapshot or digest of job toy is being taken");
    expect_listed("");
    let_go();
    fake_until(&fake, toy()->snapshots.running == NULL);
    expect_shown("");
    train_to(6);
    expect_listed("6p 2p");
}

TEST(whoever_asks_for_one_meanwhile_gets_one_behind_it)
{
    amend(2, 1, 1);
    step_and_hold();
    train();
    const uint32_t begun = ask_snapshot(&admin, false), done = ask_snapshot(&admin, true);
    const uint32_t digest = fake_ask(&admin, JobDigestGet, .name = "toy");
    fake_until(&fake, !LIST_EMPTY(&toy()->snapshots.running->next[true].at_end) &&
                          !LIST_EMPTY(&toy()->snapshots.running->next[true].at_begin) &&
                          !LIST_EMPTY(&toy()->snapshots.running->next[false].at_end));
    let_go();
    ck_assert_uint_eq(fake_hear(&admin, JobDigest, digest)->step, 3);
    Cairn__SnapshotStatus *s = fake_hear(&admin, SnapshotStatus, begun);
    ck_assert_uint_eq(s->step, 3);
    s = fake_hear(&admin, SnapshotStatus, done);
    ck_assert(!s->periodic);
    expect_listed("3 2p");
}

TEST(whoever_waits_behind_one_begins_none_of_a_job_that_is_dropped)
{
    amend(2, 1, 1);
    step_and_hold();
    const uint32_t asked = ask_snapshot(&admin, true);
    const uint32_t digest = fake_ask(&admin, JobDigestGet, .name = "toy");
    fake_until(&fake, !LIST_EMPTY(&toy()->snapshots.running->next[true].at_end) &&
                          !LIST_EMPTY(&toy()->snapshots.running->next[false].at_end));
    const uint32_t request = ask_drop("toy", true);
    fake_expect_error(&admin, digest, CAIRN_ERR_CANCELED, "is to be dropped");
    fake_expect_error(&admin, asked, CAIRN_ERR_CANCELED, "is to be dropped");
    fake_expect_error(&admin, request, CAIRN_ERR_BUSY, "is being taken");
    fake_until(&fake, toy()->snapshots.running == NULL);
    drop();
}

static bool is_there(const char *id)
{
    char path[256];
    snprintf(path, sizeof path, "%s/toy/%s", fake.snapshots, id);
    return access(path, F_OK) == 0;
}

static void leave_begun(const char *id, uint64_t number)
{
    char path[256];
    struct sentence why;
    snprintf(path, sizeof path, "toy/%s", id);
    ck_assert_int_eq(storage_of(fake.snapshots)->make(fake.snapshots, path, true, &why), CAIRN_OK);
    ck_assert_int_eq(snapshot_begun_set(fake.snapshots, "toy", id, number, &why), CAIRN_OK);
}

TEST(what_a_crash_left_of_this_job_is_removed_and_no_other)
{
    amend(1, 0, 1);
    train_to(2);
    leave_begun("step-000000000077-g1", toy()->id);
    leave_begun("step-000000000078-g1", toy()->id + 1); // another coordinator's
    train_to(3);
    fake_until(&fake, !is_there("step-000000000077-g1"));
    train_to(4);
    expect_listed("4p 3p 2p");
    ck_assert(is_there("step-000000000078-g1"));
}

TEST(where_a_tag_cannot_be_read_nothing_goes)
{
    char path[256];
    amend(1, 1, 1);
    train_to(2);
    snprintf(path, sizeof path, "%s/toy/tags", fake.snapshots);
    ck_assert_int_eq(mkdir(path, 0750), 0);
    snprintf(path, sizeof path, "%s/toy/tags/x", fake.snapshots);
    FILE *file = fopen(path, "w");
    ck_assert(file != NULL && fclose(file) == 0);
    train_to(5);
    expect_listed("5p 4p 3p 2p");
    ck_assert_int_eq(unlink(path), 0);
    train_to(6);
    expect_listed("6p");
}

TEST(those_of_another_job_of_the_name_are_nobodys)
{
    amend(2, 1, 1);
    train_to(2);
    drop();
    come_again("again");
    job = fake_attach(&w, 79, 0, 1);
    fake_init(&w, job);
    amend(1, 1, 1);
    train_to(3);
    Cairn__SnapshotList *listed = NULL;
    for (size_t n = 0; n != 2;) { // step 2 of the first job, step 3 of this one
        listed = list_snapshots();
        n = listed->n_snapshots;
    }
    ck_assert_uint_eq(listed->snapshots[0]->step + listed->snapshots[1]->step, 5);
}

TEST(those_of_before_a_restore_under_another_number_go_with_the_others)
{
    amend(1, 2, 1);
    train_to(3);
    expect_listed("3p 2p");
    const uint64_t before = job;
    drop();
    fake_hear(&admin, SnapshotStatus, ask_restore("toy", "step-000000000003-g1", ""));
    come_again("again");
    job = fake_attach(&w, 79, 0, 1);
    ck_assert_uint_ne(job, before);
    train_to(4);
    expect_listed("4p 3p");
    train_to(6);
    expect_listed("6p 5p");
}

static cairn_status release(const char *id, enum removal_cause cause)
{
    struct snapshot_removed removed;
    struct sentence why;
    return coord_snapshot_release(fake.cluster, "toy", id, cause, &removed, &why);
}

static void note(const char *id, bool is_good)
{
    struct snapshot_check check = { .is_good = is_good, .unix_s = 1 };
    struct sentence why;
    snprintf(check.id, sizeof check.id, "%s", id);
    ck_assert_int_eq(snapshot_check_set(fake.snapshots, "toy", &check, &why), CAIRN_OK);
}

/* Verified, as nobody notes any more. */
static Cairn__SnapshotStatus *take_verified(void)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    struct snapshot_words words;
    struct sentence why;
    for (bool is_noted = false; !is_noted;) {
        fake_pump(&fake);
        ck_assert_int_eq(snapshot_words_load(fake.snapshots, "toy", &words, &why), CAIRN_OK);
        is_noted = snapshot_words_check(&words, s->id) != NULL;
        snapshot_words_release(&words);
    }
    return s;
}

TEST(one_that_was_committed_meanwhile_is_not_taken_for_one_that_was_left)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    ck_assert_int_eq(release(s->id, CAIRN_REMOVAL_LEFT), CAIRN_ERR_REFUSED);
    char path[4200];
    snprintf(path, sizeof path, "%s/manifest.json", s->path);
    ck_assert_int_eq(truncate(path, 10), 0); // nobody lists it, and it may be put back from a copy
    ck_assert_int_eq(release(s->id, CAIRN_REMOVAL_LEFT), CAIRN_ERR_REFUSED);
    ck_assert_int_eq(access(path, F_OK), 0);
    ck_assert_int_eq(release("step-000000000077-g1", CAIRN_REMOVAL_LEFT), CAIRN_OK);
}

TEST(of_two_verified_ones_that_are_removed_at_once_one_stays)
{
    Cairn__SnapshotStatus *a = take_verified(), *b = take_verified();
    ck_assert_int_eq(release(a->id, CAIRN_REMOVAL_ASKED), CAIRN_OK); // its files are still there
    ck_assert_int_eq(release(b->id, CAIRN_REMOVAL_ASKED), CAIRN_ERR_REFUSED);
}

TEST(an_old_one_stays_where_the_one_that_stood_for_it_is_damaged_since)
{
    Cairn__SnapshotStatus *old = take_verified(), *s = take_verified();
    note(old->id, false);
    note(s->id, false);
    ck_assert_int_eq(release(old->id, CAIRN_REMOVAL_RETIRED), CAIRN_ERR_REFUSED);
    note(s->id, true);
    ck_assert_int_eq(release(old->id, CAIRN_REMOVAL_RETIRED), CAIRN_OK);
}

SUITE(30, open_trained, close_fake);
