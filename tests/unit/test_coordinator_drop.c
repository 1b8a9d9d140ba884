/* What an operator takes away: jobs, whose memory comes back, and snapshots. The shards are fake ones. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static void leave(void)
{
    fake_say(&w, 0, JobLeave, .job = job);
    fake_peer_close(&w);
    fake_until(&fake, coord_job_member(toy(), 10) == NULL); // what admins ask comes otherwise
}

static size_t job_count(void)
{
    const uint32_t request = fake_ask(&admin, JobListGet);
    return fake_hear(&admin, JobList, request)->n_jobs;
}

static uint32_t ask_remove(const char *name, const char *id)
{
    // By force: it may have been verified meanwhile, or not.
    return fake_ask(&admin, SnapshotRemove, .job = wire_text(name), .id = wire_text(id),
                    .force = true);
}

TEST(a_job_that_nobody_uses_is_dropped_for_good_and_its_snapshots_stay)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    leave();
    Cairn__JobRemoved *removed = fake_hear(&admin, JobRemoved, ask_drop("toy", false));
    ck_assert_str_eq(removed->name, "toy");
    ck_assert_uint_eq(removed->step, 1);
    ck_assert_uint_eq(removed->shards, 2);
    ck_assert_uint_eq(removed->n_away, 0);
    ck_assert(!fake.shards[0].has_job && !fake.shards[1].has_job);
    ck_assert_uint_eq(job_count(), 0);
    fake_coordinator_restart(&fake);
    fake_shards_up(&fake, 2);
    fake_peer_close(&admin);
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "ctl");
    ck_assert_uint_eq(job_count(), 0);
    fake_hear(&admin, SnapshotStatus, ask_restore("", "", s->path));
    ck_assert_uint_eq(job_count(), 1);
}

TEST(one_that_is_in_use_is_dropped_by_force_only)
{
    fake_expect_error(&admin, ask_drop("tox", false), CAIRN_ERR_NOT_FOUND, "tox");
    fake_expect_error(&admin, ask_drop("toy", false), CAIRN_ERR_BUSY, "worker w0");
    train(); // nothing happened
    fake_hear(&admin, JobRemoved, ask_drop("toy", true));
    fake_expect_error(&w, 0, CAIRN_ERR_CANCELED, "dropped by an operator");
    ck_assert_uint_eq(job_count(), 0);
}

/* Asked for, and on its way to the store: what it holds is freed (a build with ASan tells). */
TEST(a_coordinator_that_ends_meanwhile_forgets_the_drop)
{
    leave();
    ask_drop("toy", false);
    fake_until(&fake, fake.cluster->under_way.drops != NULL);
    fake_coordinator_stop(&fake);
}

TEST(a_shard_that_is_away_is_named_and_drops_its_part_when_it_comes)
{
    leave();
    fake_shard_away(&fake, 1);
    Cairn__JobRemoved *removed = fake_hear(&admin, JobRemoved, ask_drop("toy", false));
    ck_assert_uint_eq(removed->shards, 1);
    ck_assert_uint_eq(removed->n_away, 1);
    ck_assert_str_eq(removed->away[0], "s1");
    ck_assert(fake.shards[1].has_job);
    fake_shard_up(&fake, 1);
    fake_until(&fake, !fake.shards[1].has_job);
}

TEST(one_that_is_being_saved_is_not_dropped_nor_is_what_is_written_removed)
{
    fake.shards[0].holds_part = true;
    Cairn__SnapshotStatus *s = expect_snapshot(ask_snapshot(&admin, false));
    leave();
    fake_expect_error(&admin, ask_drop("toy", false), CAIRN_ERR_BUSY, "is being taken");
    fake_expect_error(&admin, ask_remove("toy", s->id), CAIRN_ERR_BUSY, "being written");
}

TEST(a_snapshot_is_removed_and_nothing_of_it_is_left)
{
    Cairn__SnapshotStatus *s = take_snapshot(), *kept = take_snapshot();
    Cairn__SnapshotRemoved *removed = fake_hear(&admin, SnapshotRemoved, ask_remove("toy", s->id));
    ck_assert_uint_eq(removed->files, s->files + 2); // and the manifest
    ck_assert_uint_gt(removed->bytes, s->bytes);
    ck_assert_int_ne(access(s->path, F_OK), 0);
    ck_assert_int_eq(access(kept->path, F_OK), 0);
    fake_expect_error(&admin, ask_remove("toy", s->id), CAIRN_ERR_NOT_FOUND, s->id);
    fake_expect_error(&admin, ask_remove("toy", "../toy"), CAIRN_ERR_INVALID, "../toy");
    fake_expect_error(&admin, ask_remove("..", s->id), CAIRN_ERR_INVALID, "not a job's name");
    train();
}

static size_t prune(void)
{
    Cairn__SnapshotPruned *pruned = fake_call(&admin, SnapshotPruned, SnapshotPrune, .job = "toy");
    size_t going = 0;
    for (size_t i = 0; i < pruned->n_fates; i++) going += pruned->fates[i]->goes ? 1 : 0;
    return going;
}

TEST(one_with_something_strange_in_it_stays_whole_with_its_tags_and_the_word_latest)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    char foreign[4200];
    snprintf(foreign, sizeof foreign, "%s/optim/foreign", s->path);
    ck_assert_int_eq(mkdir(foreign, 0750), 0);
    fake_expect_error(&admin,
                      fake_ask(&admin, SnapshotRemove, .job = "toy", .id = s->id, .force = true),
                      CAIRN_ERR_REFUSED, "optim/foreign");
    Cairn__SnapshotList *listed = list_snapshots();
    ck_assert_uint_eq(listed->n_snapshots, 1);
    ck_assert(listed->snapshots[0]->latest);
}

TEST(what_a_removal_did_not_come_to_goes_with_the_next_prune)
{
    Cairn__SnapshotStatus *s = take_snapshot(), *kept = take_snapshot();
    char foreign[4200];
    snprintf(foreign, sizeof foreign, "%s/optim/.nfs0001", s->path); // somebody has a file open
    ck_assert_int_eq(mkdir(foreign, 0750), 0);
    fake_expect_error(&admin, ask_remove("toy", s->id), CAIRN_ERR_IO, "optim");
    ck_assert_int_eq(access(s->path, F_OK), 0);
    ck_assert_int_eq(rmdir(foreign), 0);
    ck_assert_uint_eq(prune(), 1);
    fake_until(&fake, access(s->path, F_OK) != 0);
    while (prune() > 0) {} // its word goes last
    ck_assert_int_eq(access(kept->path, F_OK), 0);
}

TEST(one_that_is_being_restored_is_not_removed)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    fake.shards[1].holds_create = true;
    const uint32_t restore = ask_restore("", "", s->path);
    fake_until(&fake, fake.shards[1].snapshot_path[0] != '\0');
    fake_expect_error(&admin, ask_remove("toy", s->id), CAIRN_ERR_BUSY, "being restored");
    fake_shard_release(&fake.shards[1]);
    fake_hear(&admin, SnapshotStatus, restore);
    fake_hear(&admin, SnapshotRemoved, ask_remove("toy", s->id));
}

TEST(one_that_a_restore_may_fall_back_on_is_not_removed)
{
    Cairn__SnapshotStatus *older = take_snapshot(), *s = take_snapshot();
    const uint32_t restored = fake_ask(&admin, SnapshotRestore, .job = "toy", .id = s->id,
                                       .fallback = true);
    fake_expect_error(&admin, ask_remove("toy", older->id), CAIRN_ERR_BUSY, "being restored");
    fake_hear(&admin, SnapshotStatus, restored);
    fake_hear(&admin, SnapshotRemoved, ask_remove("toy", older->id));
}

SUITE(30, open_trained, close_fake);
