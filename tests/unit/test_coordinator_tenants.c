/* Whose jobs are whose: who may do what with another's, whose its snapshots are, and how much an owner may
 * have. Who a peer is, is told to the coordinator by the test. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/snapshot/snapshot.h"

#include "tests/support/scratch.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

/* ---- who ---- */

/* The peer of that name is a trainer of this owner. */
static void be(const char *name, const char *owner)
{
    for (struct coord_session *s = fake.cluster->sessions; s != NULL; s = s->next) {
        if (strcmp(s->name, name) != 0) continue;
        struct identity *who = (struct identity *)(uintptr_t)coord_who(s);
        *who = (struct identity) { .roles = CAIRN_MAY_WORK | CAIRN_MAY_READ };
        snprintf(who->name, sizeof who->name, "%s's %s", owner, name);
        snprintf(who->owner, sizeof who->owner, "%s", owner);
    }
}

static struct fake_peer peer_of(const char *owner, uint32_t role, const char *name)
{
    struct fake_peer peer = fake_connect(&fake, role, name);
    be(name, owner);
    return peer;
}

#define command_of(owner) peer_of((owner), CAIRN_ROLE_WIRE_ADMIN, "command")
#define worker_of(owner)  peer_of((owner), CAIRN_ROLE_WIRE_WORKER, "worker")

/* The same with a token of these roles, for these jobs. */
static struct fake_peer token_of(const char *owner, uint32_t roles, const char *jobs)
{
    struct fake_peer peer = command_of(owner);
    for (struct coord_session *s = fake.cluster->sessions; s != NULL; s = s->next) {
        if (strcmp(s->name, "command") != 0) continue;
        struct identity *who = (struct identity *)(uintptr_t)coord_who(s);
        who->roles = roles;
        snprintf(who->jobs, sizeof who->jobs, "%s", jobs);
    }
    return peer;
}

static Cairn__JobShared *share(const char *owners, bool owner, bool read)
{
    return fake_call(&admin, JobShared, JobShare, .name = "toy", .owners = wire_text(owners),
                     .owner = owner, .read = read);
}

/* The job is red's, and so is its worker. */
static void open_reds(void)
{
    open_trained();
    be("w0", "red");
    share("red", true, false);
}

/* ---- who made it ---- */

static void expect_maker(const Cairn__JobStatus *status)
{
    char owner[32];
    snprintf(owner, sizeof owner, "uid:%lu", (unsigned long)getuid());
    ck_assert_str_eq(status->owner, owner);
    ck_assert_str_eq(status->made_by, "worker w0");
    ck_assert_ptr_nonnull(strstr(status->made_from, "uid="));
    ck_assert_uint_gt(status->made_unix_ms, 1700000000000);
    ck_assert_str_eq(status->shared, "");
}

TEST(a_job_says_who_made_it_when_and_from_where_after_a_restart_too)
{
    open_trained();
    expect_maker(show_job("toy"));
    restart_coordinator();
    expect_maker(show_job("toy"));
}

TEST(a_new_generation_of_a_job_has_its_owner)
{
    open_trained();
    share("red", true, false);
    share("green", false, true);
    fake_expect_amended(&w, fake_amend_more(&w, job, 1), 1);
    restart_coordinator();
    const Cairn__JobStatus *status = show_job("toy");
    ck_assert_str_eq(status->owner, "red");
    ck_assert_str_eq(status->shared_read, "green");
    ck_assert_str_eq(status->made_by, "worker w0");
}

/* The coordinator has lost its store, and the shards have red's job yet. */
static void adopt_reds(void)
{
    open_reds();
    fake_store_lose(&fake);
    fake_shards_up(&fake, 2);
    fake_peer_close(&admin);
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "ctl");
    fake_call(&admin, ClusterAdopted, ClusterAdopt);
    ck_assert_str_eq(show_job("toy")->owner, "");
}

/* ---- who may what ---- */

#define ID wire_text("step-000000000001-g1")

/* What each request that names a job wants of it: look, read, write, own. */
static const char kinds[] = "lllrrrrwwwooooooo";

static uint32_t ask(struct fake_peer *peer, int which)
{
    switch (which) {
    case 0: return fake_ask(peer, JobShow, .name = "toy");
    case 1: return fake_ask(peer, WhoIsAwaited, .name = "toy");
    case 2: return fake_ask(peer, SnapshotAdvise, .job = "toy");
    case 3: return fake_ask(peer, JobSpecGet, .name = "toy");
    case 4: return fake_ask(peer, JobDigestGet, .name = "toy");
    case 5: return fake_ask(peer, SnapshotListGet, .job = "toy");
    case 6: return fake_ask(peer, SnapshotShow, .job = "toy", .id = ID);
    case 7: return fake_ask(peer, SnapshotCreate, .job = "toy");
    case 8: return fake_ask(peer, SnapshotCancel, .job = "toy");
    case 9: return fake_ask(peer, SnapshotTag, .job = "toy", .id = ID, .name = "t");
    case 10: return fake_ask(peer, JobAmend, .name = "toy", .key = 1);
    case 11: return fake_ask(peer, JobPark, .name = "toy", .parked = true);
    case 12: return fake_ask(peer, JobShare, .name = "toy", .owners = "blue");
    case 13: return fake_ask(peer, SnapshotRemove, .job = "toy", .id = ID);
    case 14: return fake_ask(peer, SnapshotPrune, .job = "toy");
    case 15: return fake_ask(peer, SnapshotRestore, .job = "toy", .id = ID);
    default: return fake_ask(peer, JobRemove, .name = "toy", .force = true);
    }
}

TEST(to_another_owner_a_job_is_not_there)
{
    open_reds();
    struct fake_peer blue = command_of("blue");
    for (int i = 0; kinds[i] != '\0'; i++)
        fake_expect_error(&blue, ask(&blue, i), CAIRN_ERR_NOT_FOUND,
                          "there is no job \"toy\" that blue's command (owner blue) may use");
    ck_assert_uint_eq(fake_call(&blue, JobList, JobListGet)->n_jobs, 0);
    const Cairn__ClusterStatus *status = fake_call(&blue, ClusterStatus, ClusterStatusGet);
    ck_assert_uint_eq(status->job_count, 0);
    for (size_t i = 0; i < status->n_members; i++) ck_assert_str_ne(status->members[i]->name, "w0");
    train(); // nothing happened
    fake_peer_close(&blue);
}

TEST(an_adopted_job_is_an_admins_until_it_is_given_to_somebody)
{
    adopt_reds();
    struct fake_peer blue = command_of("blue");
    ck_assert_uint_eq(fake_call(&blue, JobList, JobListGet)->n_jobs, 1);
    for (int i = 0; kinds[i] != '\0'; i++)
        if (kinds[i] != 'l')
            fake_expect_error(&blue, ask(&blue, i), CAIRN_ERR_REFUSED, "cairn job chown");
    share("blue", true, false);
    fake_hear(&blue, JobShared, ask(&blue, 12));
    fake_peer_close(&blue);
}

TEST(a_worker_of_an_adopted_job_waits_until_the_job_has_an_owner)
{
    adopt_reds();
    fake_peer_close(&w);
    w = peer_of("red", CAIRN_ROLE_WIRE_WORKER, "w0");
    struct job_spec_data spec = fake_spec(1);
    const uint32_t request = fake_job_open_again(&w, &spec, 10, 0, job);
    ck_assert_ptr_nonnull(strstr(fake_awaited(&w, 0)->text, "cairn job chown"));
    struct fake_peer stranger = worker_of("red");
    fake_expect_error(&stranger, fake_ask_open(&stranger, 20, 1, 1), CAIRN_ERR_REFUSED,
                      "cairn job chown");
    share("red", true, false);
    fake_shards_up(&fake, 2);
    ck_assert_uint_eq(fake_hear(&w, Attached, request)->job, job);
    spec_release(&spec);
    fake_peer_close(&stranger);
}

/* A reader asks what it could not do if the job were there and its own. */
TEST(without_a_job_of_the_name_a_request_needs_its_role_too)
{
    open_fake();
    struct fake_peer reader = token_of("red", CAIRN_MAY_READ, "");
    for (int i = 0; kinds[i] != '\0'; i++)
        if (kinds[i] == 'w' || kinds[i] == 'o')
            fake_expect_error(&reader, ask(&reader, i), CAIRN_ERR_REFUSED, "needs the role");
    fake_peer_close(&reader);
}

TEST(what_is_not_about_one_job_is_an_admins_or_a_monitors)
{
    open_reds();
    struct fake_peer red = command_of("red");
    const uint32_t asked[] = { fake_ask(&red, ClusterForget, .job = "toy"),
                               fake_ask(&red, ShardForget, .name = "s0"),
                               fake_ask(&red, ClusterAdopt),
                               fake_ask(&red, MemberDrain, .name = "s0"),
                               fake_ask(&red, KeyTrust, .key = "x"),
                               fake_ask(&red, EventsGet),
                               fake_ask(&red, ReshardAsk, .all = true) };
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        fake_expect_error(&red, asked[i], CAIRN_ERR_REFUSED, "needs the role");
    fake_peer_close(&red);
}

/* Shared in that way, all but `most` is refused. */
static void expect_shared(bool read, const char *most)
{
    open_reds();
    share("green,bl*", false, read);
    struct fake_peer blue = command_of("blue");
    for (int i = 0; kinds[i] != '\0'; i++)
        if (strchr(most, kinds[i]) == NULL)
            fake_expect_error(&blue, ask(&blue, i), CAIRN_ERR_REFUSED, "belongs to red");
    ck_assert_str_eq(fake_call(&blue, JobStatus, JobShow, .name = "toy")->owner, "red");
    ck_assert_uint_eq(fake_call(&blue, JobList, JobListGet)->n_jobs, 1);
    fake_hear(&blue, JobDigest, ask(&blue, 4));
    if (!read)
        fake_hear(&blue, SnapshotStatus,
                  fake_ask(&blue, SnapshotCreate, .job = "toy", .wait = true));
    fake_peer_close(&blue);
}

TEST(a_job_that_is_shared_to_be_read_is_not_written)
{
    expect_shared(true, "lr");
}

TEST(a_job_that_is_shared_is_neither_changed_nor_dropped)
{
    expect_shared(false, "lrw");
}

TEST(its_owner_does_with_it_what_it_likes)
{
    open_reds();
    struct fake_peer red = command_of("red");
    fake_call(&red, JobShared, JobShare, .name = "toy", .owners = "green");
    fake_expect_error(&red,
                      fake_ask(&red, JobShare, .name = "toy", .owners = "green", .owner = true),
                      CAIRN_ERR_REFUSED, "only an admin");
    fake_call(&red, JobRemoved, JobRemove, .name = "toy", .force = true);
    fake_peer_close(&red);
}

/* ---- openers ---- */

TEST(a_name_is_taken_for_another_owners_worker)
{
    open_reds();
    struct fake_peer blue = worker_of("blue");
    fake_expect_error(&blue, fake_ask_open(&blue, 20, 1, 1), CAIRN_ERR_REFUSED,
                      "another owner has a job of the name toy");
    train();
    share("blue", false, false);
    ck_assert_uint_eq(fake_attach(&blue, 20, 1, 1), job);
    fake_peer_close(&blue);
}

static uint32_t ask_read(struct fake_peer *peer)
{
    return fake_ask(peer, JobOpen, .name = "toy", .role = CAIRN_ROLE_WIRE_READER, .session = 30,
                    .token = 1);
}

TEST(a_reader_reads_what_is_its_owners_or_shared)
{
    open_reds();
    struct fake_peer blue = peer_of("blue", CAIRN_ROLE_WIRE_READER, "reader");
    fake_expect_error(&blue, ask_read(&blue), CAIRN_ERR_NOT_FOUND, "there is no job \"toy\"");
    share("blue", false, true);
    fake_hear(&blue, Attached, ask_read(&blue));
    struct fake_peer worker = worker_of("blue");
    fake_expect_error(&worker, fake_ask_open(&worker, 20, 1, 1), CAIRN_ERR_REFUSED,
                      "may not write to job toy");
    fake_peer_close(&worker);
    fake_peer_close(&blue);
}

TEST(who_may_not_use_a_job_any_more_is_put_out_at_once)
{
    open_reds();
    struct fake_peer blue = peer_of("blue", CAIRN_ROLE_WIRE_READER, "reader");
    share("blue", false, true);
    fake_hear(&blue, Attached, ask_read(&blue));
    share("", false, true);
    fake_expect_error(&blue, 0, CAIRN_ERR_REFUSED, "there is no job \"toy\"");
    train(); // red's worker is still there
    ck_assert_uint_gt(fake.shards[0].withdrawn_count, 0);
    fake_peer_close(&blue);
}

TEST(of_two_owners_who_want_a_name_one_gets_it)
{
    open_fake();
    fake_shards_up(&fake, 2);
    struct fake_peer red = worker_of("red"), blue = peer_of("blue", CAIRN_ROLE_WIRE_WORKER, "b");
    const uint32_t reds = fake_ask_open(&red, 20, 0, 1), blues = fake_ask_open(&blue, 21, 0, 1);
    fake_until(&fake, toy() != NULL);
    const bool is_reds = strcmp(toy()->tenant.owner, "red") == 0;
    fake_hear(is_reds ? &red : &blue, Attached, is_reds ? reds : blues);
    fake_expect_error(is_reds ? &blue : &red, is_reds ? blues : reds, CAIRN_ERR_REFUSED,
                      "another owner");
    fake_peer_close(&red);
    fake_peer_close(&blue);
}

TEST(an_owner_is_a_word_and_a_list_has_words)
{
    open_trained();
    static const struct {
        const char *owners;
        bool owner;
    } wrong[] = { { "", true },      { "a b", true },  { "a,b", true }, { "team-*", true },
                  { "a,,b", false }, { "a b", false }, { ",", false },  { "\xc3\xa9", false } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        fake_expect_error(&admin,
                          fake_ask(&admin, JobShare, .name = "toy",
                                   .owners = wire_text(wrong[i].owners), .owner = wrong[i].owner),
                          CAIRN_ERR_INVALID, wrong[i].owner ? "is no owner" : "is no list");
}

/* ---- snapshots of a job that is gone ---- */

/* Red's job was saved, and is dropped. */
static void open_saved(void)
{
    open_reds();
    ck_assert_str_eq(take_snapshot()->id, ID);
    fake_call(&admin, JobRemoved, JobRemove, .name = "toy", .force = true);
    fake_peer_close(&w);
}

TEST(the_snapshots_of_a_dropped_job_stay_its_owners)
{
    open_saved();
    struct fake_peer blue = command_of("blue");
    const int asked[] = { 6, 9, 13, 14, 15 };
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        fake_expect_error(&blue, ask(&blue, asked[i]), CAIRN_ERR_NOT_FOUND, "there is no");
    ck_assert_uint_eq(fake_call(&blue, SnapshotList, SnapshotListGet)->n_snapshots, 0);
    fake_expect_error(&blue,
                      fake_ask(&blue, SnapshotRestore, .job = "mine", .path = fake.snapshots),
                      CAIRN_ERR_REFUSED, "only an admin restores a folder");
    fake_peer_close(&blue);
    struct fake_peer red = command_of("red");
    ck_assert_uint_eq(fake_call(&red, SnapshotList, SnapshotListGet)->n_snapshots, 1);
    fake_hear(&red, SnapshotStatus, ask(&red, 15));
    ck_assert_str_eq(show_job("toy")->owner, "red");
    fake_peer_close(&red);
}

TEST(the_name_of_anothers_snapshots_is_taken)
{
    open_saved();
    struct fake_peer blue = worker_of("blue"), red = peer_of("red", CAIRN_ROLE_WIRE_WORKER, "r");
    struct job_spec_data spec = fake_spec(1);
    fake_expect_error(&blue, fake_ask_open(&blue, 20, 0, 1), CAIRN_ERR_REFUSED,
                      "another owner has snapshots of a job of the name toy");
    fake_expect_error(&blue, fake_ask_resume(&blue, &spec), CAIRN_ERR_REFUSED,
                      "another owner has snapshots of a job of the name toy");
    fake_hear(&red, Attached, fake_ask_resume(&red, &spec));
    ck_assert_str_eq(show_job("toy")->owner, "red");
    fake_peer_close(&blue);
    fake_peer_close(&red);
    spec_release(&spec);
}

TEST(an_admin_brings_a_job_back_for_its_owner)
{
    open_saved();
    fake_hear(&admin, SnapshotStatus, ask_restore("toy", ID, ""));
    ck_assert_str_eq(show_job("toy")->owner, "red");
    share("blue", true, false);
    fake_hear(&admin, SnapshotStatus, ask_restore("toy", ID, "")); // over it
    ck_assert_str_eq(show_job("toy")->owner, "blue");
}

static const struct {
    const char *owner;
    uint32_t roles;
    const char *jobs;
    cairn_status status;
    const char *word;
} no_makers[] = {
    { "blue", CAIRN_MAY_READ, "t*", CAIRN_ERR_REFUSED, "needs the role" },
    { "blue", CAIRN_MAY_WORK | CAIRN_MAY_READ, "t*", CAIRN_ERR_REFUSED, "belongs to red" },
    { "red", CAIRN_MAY_READ, "", CAIRN_ERR_REFUSED, "needs the role" },
    { "red", CAIRN_MAY_WORK, "other", CAIRN_ERR_NOT_FOUND, "there is no job" },
};

TEST_EACH(a_dropped_job_is_brought_back_by_its_owner_alone, 0, sizeof no_makers / sizeof *no_makers)
{
    open_saved();
    struct fake_peer peer = token_of(no_makers[_i].owner, no_makers[_i].roles, no_makers[_i].jobs);
    fake_expect_error(&peer, ask(&peer, 15), no_makers[_i].status, no_makers[_i].word);
    ck_assert_ptr_null(toy());
    fake_peer_close(&peer);
}

TEST(an_admin_who_resumes_a_dropped_job_does_so_for_its_owner)
{
    open_saved();
    struct fake_peer worker = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "root's");
    struct job_spec_data spec = fake_spec(1);
    fake_hear(&worker, Attached, fake_ask_resume(&worker, &spec));
    ck_assert_str_eq(show_job("toy")->owner, "red");
    spec_release(&spec);
    fake_peer_close(&worker);
}

static void damage_manifest(const char *id)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/toy/%s/" CAIRN_MANIFEST_NAME, fake.snapshots, id);
    ck_assert_int_eq(truncate(path, 10), 0);
}

/* Nobody can say any more whose the only snapshot is. */
TEST(a_name_whose_snapshots_cannot_be_read_is_an_admins)
{
    open_saved();
    damage_manifest(ID);
    struct fake_peer blue = worker_of("blue");
    struct job_spec_data spec = fake_spec(1);
    fake_expect_error(&blue, fake_ask_open(&blue, 20, 0, 1), CAIRN_ERR_NOT_READY,
                      "an admin begins it");
    fake_expect_error(&blue, fake_ask_resume(&blue, &spec), CAIRN_ERR_NOT_READY,
                      "an admin begins it");
    struct fake_peer command = command_of("blue");
    const int asked[] = { 9, 13, 14 };
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        fake_expect_error(&command, ask(&command, asked[i]), CAIRN_ERR_NOT_READY, "ask an admin");
    fake_hear(&admin, SnapshotRemoved,
              fake_ask(&admin, SnapshotRemove, .job = "toy", .id = ID, .force = true));
    fake_peer_close(&command);
    fake_peer_close(&blue);
    spec_release(&spec);
}

#define SECOND wire_text("step-000000000002-g1")

/* Red's job was saved twice, and the newer manifest is damaged. */
static void open_damaged(void)
{
    open_reds();
    take_snapshot();
    train();
    ck_assert_str_eq(take_snapshot()->id, SECOND);
    damage_manifest(SECOND);
}

static void drop_reds(void)
{
    fake_call(&admin, JobRemoved, JobRemove, .name = "toy", .force = true);
    fake_peer_close(&w);
}

/* Both hear of the newest snapshot that it was passed over. */
TEST_EACH(past_a_damaged_manifest_an_owner_resumes_as_an_admin_does, 0, 2)
{
    const bool is_owner = _i == 0;
    open_damaged();
    drop_reds();
    struct fake_peer blue = worker_of("blue"),
                     worker = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "resumer");
    struct job_spec_data spec = fake_spec(1);
    if (is_owner) be("resumer", "red");
    fake_expect_error(&blue, fake_ask_resume(&blue, &spec), CAIRN_ERR_REFUSED,
                      "another owner has snapshots of a job of the name toy");
    ck_assert_uint_eq(fake_hear(&worker, Attached, fake_ask_resume(&worker, &spec))->step, 1);
    const Cairn__JobStatus *status = show_job("toy");
    ck_assert_str_eq(status->owner, "red");
    ck_assert_msg(strstr(status->passed_over, "step-000000000002-g1, is damaged: ") != NULL, "%s",
                  status->passed_over);
    spec_release(&spec);
    fake_peer_close(&worker);
    fake_peer_close(&blue);
}

/* With and without the job. */
TEST_EACH(a_damaged_snapshot_is_its_jobs_owners_to_remove, 0, 2)
{
    open_damaged();
    if (_i == 1) drop_reds();
    struct fake_peer red = command_of("red"), blue = peer_of("blue", CAIRN_ROLE_WIRE_ADMIN, "b");
    fake_expect_error(&blue,
                      fake_ask(&blue, SnapshotRemove, .job = "toy", .id = SECOND, .force = true),
                      CAIRN_ERR_NOT_FOUND, "there is no");
    if (_i == 1) // it may be the first one of somebody to whom the job was given
        fake_expect_error(&red,
                          fake_ask(&red, SnapshotRemove, .job = "toy", .id = SECOND, .force = true),
                          CAIRN_ERR_NOT_READY, "ask an admin");
    else
        fake_call(&red, SnapshotRemoved, SnapshotRemove, .job = "toy", .id = SECOND, .force = true);
    fake_call(&red, SnapshotPruned, SnapshotPrune, .job = "toy");
    fake_peer_close(&blue);
    fake_peer_close(&red);
}

TEST(the_only_snapshot_of_a_job_is_its_owners_when_it_is_damaged_too)
{
    open_reds();
    take_snapshot();
    damage_manifest(ID);
    struct fake_peer red = command_of("red");
    fake_call(&red, SnapshotRemoved, SnapshotRemove, .job = "toy", .id = ID, .force = true);
    fake_peer_close(&red);
}

/* It may be the one's or the other's. */
TEST(a_damaged_snapshot_beside_those_of_two_owners_is_an_admins)
{
    open_damaged();
    be("w0", "blue");
    share("blue", true, false);
    train();
    take_snapshot();
    struct fake_peer blue = command_of("blue");
    fake_expect_error(&blue,
                      fake_ask(&blue, SnapshotRemove, .job = "toy", .id = SECOND, .force = true),
                      CAIRN_ERR_NOT_READY, "ask an admin");
    damage_manifest("step-000000000003-g1");
    drop_reds();
    struct fake_peer worker = worker_of("blue");
    struct job_spec_data spec = fake_spec(1);
    fake_hear(&admin, SnapshotRemoved,
              fake_ask(&admin, SnapshotRemove, .job = "toy", .id = SECOND, .force = true));
    // red has the only manifest that can be read
    fake_expect_error(&worker, fake_ask_resume(&worker, &spec), CAIRN_ERR_REFUSED,
                      "another owner has snapshots");
    spec_release(&spec);
    fake_peer_close(&worker);
    fake_peer_close(&blue);
}

/* Red saved its job once, and blue, to whom it was given, once more. */
static void open_given_away(void)
{
    open_reds();
    take_snapshot();
    be("w0", "blue");
    share("blue", true, false);
    train();
    ck_assert_str_eq(take_snapshot()->id, SECOND);
}

/* Blue, who was given the job, saved it by a later release, and this one cannot read that. */
TEST(a_manifest_of_a_later_format_is_not_damaged_and_the_others_do_not_say_whose_it_is)
{
    static const char later[] = "{\"format\": \"cairn snapshot\", \"version\": 9999}\n";
    char path[PATH_MAX];
    open_given_away();
    snprintf(path, sizeof path, "%s/toy/%s/" CAIRN_MANIFEST_NAME, fake.snapshots, SECOND);
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(later, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    drop_reds();
    struct fake_peer red = command_of("red"), worker = worker_of("red");
    struct job_spec_data spec = fake_spec(1);
    fake_expect_error(&red,
                      fake_ask(&red, SnapshotRemove, .job = "toy", .id = SECOND, .force = true),
                      CAIRN_ERR_NOT_READY, "ask an admin");
    fake_expect_error(&worker, fake_ask_resume(&worker, &spec), CAIRN_ERR_NOT_READY,
                      "an admin begins it");
    spec_release(&spec);
    fake_peer_close(&worker);
    fake_peer_close(&red);
}

/* The snapshot of red is no word about it. */
TEST(what_a_former_owner_saved_says_nothing_of_a_newer_one_that_is_damaged)
{
    open_given_away();
    damage_manifest(SECOND);
    drop_reds();
    struct fake_peer red = command_of("red");
    fake_expect_error(&red,
                      fake_ask(&red, SnapshotRemove, .job = "toy", .id = SECOND, .force = true),
                      CAIRN_ERR_NOT_READY, "ask an admin");
    fake_peer_close(&red);
}

/* Whoever may make a job of it is not known, so an admin does. */
TEST(a_snapshot_that_names_no_owner_is_restored_by_an_admin_alone)
{
    open_trained();
    share("red", true, false);
    toy()->tenant.owner[0] = '\0';
    ck_assert_str_eq(take_snapshot()->id, ID);
    drop_reds();
    struct fake_peer red = command_of("red");
    fake_expect_error(&red, ask(&red, 15), CAIRN_ERR_REFUSED, "may not");
    ck_assert_ptr_null(toy());
    fake_hear(&admin, SnapshotStatus, ask_restore("toy", ID, ""));
    fake_peer_close(&red);
}

TEST(a_former_owners_snapshots_are_not_the_new_owners)
{
    open_reds();
    take_snapshot();
    share("blue", true, false);
    struct fake_peer blue = command_of("blue");
    ck_assert_uint_eq(fake_call(&blue, SnapshotList, SnapshotListGet)->n_snapshots, 0);
    const int asked[] = { 9, 13, 15 };
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        fake_expect_error(&blue, ask(&blue, asked[i]), CAIRN_ERR_NOT_FOUND, "there is no");
    fake_peer_close(&blue);
}

/* ---- what members ask ---- */

TEST(with_whom_a_job_is_shared_does_not_amend_it)
{
    open_reds();
    share("blue", false, false);
    struct fake_peer blue = worker_of("blue");
    ck_assert_uint_eq(fake_attach(&blue, 20, 1, 1), job);
    fake_expect_error(&blue, fake_amend_more(&blue, job, 1), CAIRN_ERR_REFUSED, "belongs to red");
    fake_peer_close(&blue);
}

TEST(whom_a_job_awaits_is_told_to_those_who_may_look_at_it)
{
    open_reds();
    struct fake_peer blue = worker_of("blue"), command = command_of("blue");
    fake_expect_error(&blue, fake_ask(&blue, WhoIsAwaited, .job = job), CAIRN_ERR_NOT_FOUND,
                      "there is no job");
    fake_expect_error(&command, fake_ask(&command, WhoIsAwaited, .job = job, .name = ""),
                      CAIRN_ERR_NOT_FOUND, "there is no job");
    fake_peer_close(&command);
    fake_peer_close(&blue);
}

/* ---- quotas ---- */

static void limit(const char *others, const char *lines)
{
    struct sentence why = { "" };
    quotas_release(&fake.cluster->tenants.quotas);
    ck_assert_msg(quotas_read(others, lines, &fake.cluster->tenants.quotas, &why) == CAIRN_OK, "%s",
                  why.text);
}

static uint32_t ask_job(struct fake_peer *peer, const char *name, uint64_t session)
{
    struct job_spec_data spec = fake_spec(1);
    ck_assert_int_eq(spec_set_name(&spec, name), CAIRN_OK);
    const uint32_t request = fake_job_open(peer, &spec, session, 0);
    spec_release(&spec);
    return request;
}

TEST(an_owner_has_no_more_jobs_than_it_may)
{
    open_reds();
    limit("jobs=1", "blue jobs=2");
    struct fake_peer blue = worker_of("blue");
    fake_expect_error(&w, ask_job(&w, "more", 11), CAIRN_ERR_REFUSED,
                      "owner red uses jobs=1 and wants 1 more, and its quota is 1: drop a job");
    fake_hear(&blue, Attached, ask_job(&blue, "one", 20));
    fake_hear(&blue, Attached, ask_job(&blue, "two", 21));
    fake_expect_error(&blue, ask_job(&blue, "three", 22), CAIRN_ERR_REFUSED, "uses jobs=2");
    fake_peer_close(&blue);
}

TEST(an_owner_makes_no_job_of_more_state_than_it_may)
{
    open_fake();
    fake_shards_up(&fake, 2);
    limit("", "red bytes=1KiB");
    struct fake_peer red = worker_of("red");
    fake_expect_error(&red, fake_ask_open(&red, 20, 0, 1), CAIRN_ERR_REFUSED,
                      "owner red uses bytes=0 bytes and wants ");
    limit("", "red bytes=1GiB");
    fake_hear(&red, Attached, fake_ask_open(&red, 20, 0, 1));
    fake_peer_close(&red);
}

TEST(a_job_does_not_grow_beyond_what_its_owner_may)
{
    char line[64];
    open_reds();
    snprintf(line, sizeof line, "red bytes=%" PRIu64 "B", coord_job_state_bytes(toy()));
    limit("", line);
    fake_expect_error(&w, fake_amend_more(&w, job, 1), CAIRN_ERR_REFUSED, "owner red uses bytes=");
    train();
}

/* Of 18 connections two are kept for admins of this host, two are the shards', and one stays free, so that
 * another owner gets in: an owner that is alone has 13, one of them w's. An admin's commands do not count. */
enum { PLACES = 18, ALONE = 13, MINE = 1, NOBODY = 65534 };

static struct fake_peer filling[ALONE];

static void set_places(void)
{
    open_trained();
    fake.options.network.connections_max = PLACES;
    limit("", "");
}

static void fill_places(int count)
{
    for (int i = 0; i < count - MINE; i++)
        filling[i] = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "filling");
}

static void expect_no_place(const char *word)
{
    struct fake_peer more = fake_dial(&fake);
    fake_expect_error(&more,
                      fake_ask(&more, Hello, .protocol = CAIRN_CONTROL_PROTOCOL,
                               .role = CAIRN_ROLE_WIRE_WORKER, .name = "more", .version = "test",
                               .incarnation = 1),
                      CAIRN_ERR_BUSY, word);
    fake_peer_close(&more);
}

static int sessions_of(uid_t uid)
{
    char owner[32];
    int count = 0;
    snprintf(owner, sizeof owner, "uid:%lu", (unsigned long)uid);
    for (const struct coord_session *s = fake.cluster->sessions; s != NULL; s = s->next)
        count += !s->closing && s->role != CAIRN_ROLE_WIRE_SHARD &&
                 strcmp(coord_who(s)->owner, owner) == 0;
    return count;
}

TEST(an_owner_that_is_alone_has_all_connections_but_a_reserve)
{
    set_places();
    fill_places(ALONE);
    expect_no_place("has 13 connections, and no more are free");
    struct fake_peer command = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "an admin's"); // gets in
    fake_peer_close(&command);
    for (int i = 0; i < ALONE - MINE; i++) fake_peer_close(&filling[i]);
}

/* Another user of this host connects. */
static struct fake_peer dial_as_nobody(void)
{
    ck_assert_int_eq(seteuid(NOBODY), 0);
    const struct fake_peer peer = fake_dial(&fake);
    ck_assert_int_eq(seteuid(0), 0);
    return peer;
}

static uint32_t say_hello(struct fake_peer *peer)
{
    return fake_ask(peer, Hello, .protocol = CAIRN_CONTROL_PROTOCOL, .role = CAIRN_ROLE_WIRE_WORKER,
                    .name = wire_text("other"), .version = "test", .incarnation = 1);
}

/* Each of the others takes the place of a connection that has no job, until both have the same. */
TEST(an_owner_has_its_fair_share_as_soon_as_others_come)
{
    struct fake_peer others[ALONE / 2], more;
    set_places();
    if (!cairn_scratch_has_nobody()) {
        printf("skipped: only root can be somebody else, where others may enter the folders\n");
        return;
    }
    ck_assert_int_eq(chmod(fake.folder, 0711), 0);
    ck_assert_int_eq(chmod(fake.listen, 0666), 0);
    fill_places(ALONE);
    for (int i = 0; i < ALONE / 2; i++) {
        others[i] = dial_as_nobody();
        fake_hear(&others[i], Welcome, say_hello(&others[i]));
        fake_until(&fake, sessions_of(0) == ALONE - i);
        ck_assert_int_eq(sessions_of(NOBODY), i + 1);
        if (i == 0) expect_no_place("its fair share of the 13 that");
    }
    more = dial_as_nobody();
    fake_expect_error(&more, say_hello(&more), CAIRN_ERR_BUSY, "has 6 connections");
    train(); // w has a job
    fake_peer_close(&more);
    for (int i = 0; i < ALONE / 2; i++) fake_peer_close(&others[i]);
    for (int i = 0; i < ALONE - MINE; i++) fake_peer_close(&filling[i]);
}

TEST(an_owner_has_no_more_sessions_than_it_may)
{
    open_trained();
    char owner[32], line[48];
    snprintf(owner, sizeof owner, "uid:%lu", (unsigned long)getuid());
    snprintf(line, sizeof line, "%s sessions=2", owner); // w and the admin's
    limit("", line);
    struct fake_peer more = fake_dial(&fake), command;
    const uint32_t request = fake_ask(&more, Hello, .protocol = CAIRN_CONTROL_PROTOCOL,
                                      .role = CAIRN_ROLE_WIRE_WORKER, .name = "more",
                                      .version = "test", .incarnation = 1);
    fake_expect_error(&more, request, CAIRN_ERR_BUSY, "uses sessions=2");
    command = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "an admin's"); // gets in
    fake_peer_close(&command);
    fake_peer_close(&more);
}

TEST(workers_of_an_owner_have_no_more_in_flight_than_it_may)
{
    open_reds();
    const uint64_t each = quota_in_flight(toy());
    char line[64];
    ck_assert_uint_gt(each, 0);
    snprintf(line, sizeof line, "red in_flight=%" PRIu64 "B", 2 * each);
    limit("", line);
    struct fake_peer second = worker_of("red"), third = peer_of("red", CAIRN_ROLE_WIRE_WORKER, "3");
    ck_assert_uint_eq(fake_attach(&second, 20, 1, 1), job);
    fake_expect_error(&third, fake_ask_open(&third, 21, 2, 1), CAIRN_ERR_BUSY, "uses in_flight=");
    ck_assert_uint_eq(fake_attach(&second, 20, 1, 1), job); // the same member, again
    fake_peer_close(&second);
    fake_until(&fake, coord_job_member(toy(), 20) == NULL);
    ck_assert_uint_eq(fake_attach(&third, 21, 2, 1), job);
    fake_peer_close(&third);
}

TEST(an_amendment_lets_workers_have_no_more_in_flight_than_their_owner_may)
{
    open_reds();
    const uint64_t each = quota_in_flight(toy());
    char line[64];
    snprintf(line, sizeof line, "red in_flight=%" PRIu64 "B", each);
    limit("", line);
    fake_expect_error(&w, fake_amend_more(&w, job, 1), CAIRN_ERR_BUSY, "uses in_flight=");
    train();
}

TEST(use_is_shown_by_owner_to_those_whom_it_concerns)
{
    open_reds();
    limit("jobs=3", "blue jobs=2 bytes=1GiB");
    struct fake_peer blue = command_of("blue");
    const Cairn__Quotas *own = fake_call(&blue, Quotas, QuotaGet);
    ck_assert_uint_eq(own->n_owners, 1);
    ck_assert_str_eq(own->owners[0]->owner, "blue");
    ck_assert_uint_eq(own->owners[0]->bytes_max, 1 << 30);
    const Cairn__Quotas *all = fake_call(&admin, Quotas, QuotaGet);
    ck_assert_uint_eq(all->n_owners, 2);
    ck_assert_str_eq(all->owners[0]->owner, "red");
    ck_assert_uint_eq(all->owners[0]->jobs, 1);
    ck_assert_uint_eq(all->owners[0]->jobs_max, 3);
    ck_assert_uint_eq(all->owners[0]->sessions, 1);
    ck_assert_uint_eq(all->owners[0]->bytes, coord_job_state_bytes(toy()));
    ck_assert_uint_eq(all->owners[0]->in_flight, quota_in_flight(toy()));
    fake_peer_close(&blue);
}

static const struct {
    const char *others, *lines, *word;
} bad_quotas[] = {
    { "jobs", "", "\"jobs\": there are jobs=" },
    { "job=3", "", "there are jobs=" },
    { "jobs=0", "", "a limit is above 0" },
    { "jobs=-1", "", "a limit is above 0" },
    { "bytes=3", "", "a size has a unit" },
    { "", "red jobs=1\nred jobs=2", "red has two lines" },
    { "", "jobs=1", "is no owner" },
    { "", "r*d jobs=1", "is no owner" },
    { "", "red jobs=1 cows=2", "\"cows=2\"" },
};

TEST_EACH(a_quota_that_says_nothing_is_refused, 0, sizeof bad_quotas / sizeof *bad_quotas)
{
    struct coord_quotas quotas;
    struct sentence why = { "" };
    open_fake();
    ck_assert_int_eq(quotas_read(bad_quotas[_i].others, bad_quotas[_i].lines, &quotas, &why),
                     CAIRN_ERR_CONFIG);
    ck_assert_msg(strstr(why.text, bad_quotas[_i].word) != NULL, "%s", why.text);
}

SUITE(30, NULL, close_fake);
