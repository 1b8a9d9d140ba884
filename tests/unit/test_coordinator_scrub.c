/* Snapshots that are read again by themselves. The shards are fake ones. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "server/coordinator/job.h"
#include "server/coordinator/snapshot.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

/* What was noted of the snapshot; {.unix_s = 0}: nothing. */
static struct snapshot_check noted(const char *id)
{
    struct snapshot_words words;
    struct snapshot_check check = { .unix_s = 0 };
    if (snapshot_words_load(fake.cluster->storage.path, "toy", &words, NULL) == CAIRN_OK &&
        snapshot_words_check(&words, id) != NULL)
        check = *snapshot_words_check(&words, id);
    snapshot_words_release(&words);
    return check;
}

/* As if it had been read, and found good, in 1970. */
static void note_old(const char *id)
{
    struct snapshot_check check = { .is_good = true, .unix_s = 1 };
    snprintf(check.id, sizeof check.id, "%s", id);
    ck_assert_int_eq(snapshot_check_set(fake.cluster->storage.path, "toy", &check, NULL), CAIRN_OK);
}

static bool has_event(const char *kind, const char *word)
{
    Cairn__Events *events = fake_call(&admin, Events, EventsGet);
    bool found = false;
    for (size_t i = 0; i < events->n_events; i++)
        found = found || (strcmp(events->events[i]->kind, kind) == 0 &&
                          strstr(events->events[i]->text, word) != NULL);
    return found;
}

TEST(what_was_committed_is_read_and_noted)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    fake_until(&fake, noted(s->id).unix_s != 0);
    ck_assert(noted(s->id).is_good);
}

TEST(one_whose_time_has_come_is_read_again)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    fake_until(&fake, noted(s->id).unix_s != 0);
    note_old(s->id);
    toy()->spec.policy.snapshot_scrub_every_s = 3600;
    fake_until(&fake, noted(s->id).unix_s > 1);
}

TEST(damage_is_found_before_anybody_needs_it)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    fake_until(&fake, noted(s->id).unix_s != 0);
    note_old(s->id);
    flip_last_byte(s->path);
    toy()->spec.policy.snapshot_scrub_every_s = 3600;
    fake_until(&fake, noted(s->id).unix_s > 1);
    ck_assert(!noted(s->id).is_good);
    fake_until(&fake, has_event("snapshot-damaged", s->id));
}

/* The id that `latest` names; "": none. */
static const char *latest(void)
{
    static char id[CAIRN_SNAPSHOT_ID_BYTES];
    struct snapshot_words words;
    ck_assert_int_eq(snapshot_words_load(fake.cluster->storage.path, "toy", &words, NULL),
                     CAIRN_OK);
    snprintf(id, sizeof id, "%s", words.latest);
    snapshot_words_release(&words);
    return id;
}

static void find_damage(const Cairn__SnapshotStatus *s)
{
    flip_last_byte(s->path);
    coord_scrub_want(fake.cluster, "toy", s->id);
    fake_until(&fake, noted(s->id).unix_s != 0 && !noted(s->id).is_good);
}

TEST(latest_leaves_one_that_is_damaged_for_the_newest_verified_one)
{
    Cairn__SnapshotStatus *s[3];
    for (int i = 0; i < 3; i++) {
        train();
        s[i] = take_snapshot();
        fake_until(&fake, noted(s[i]->id).unix_s != 0);
    }
    find_damage(s[1]);
    ck_assert_str_eq(latest(), s[2]->id); // it named another one
    find_damage(s[2]);
    fake_until(&fake, strcmp(latest(), s[0]->id) == 0);
    Cairn__SnapshotList *list = list_snapshots();
    ck_assert(list->snapshots[0]->check_failed && !list->snapshots[0]->latest);
    ck_assert(list->snapshots[2]->latest);
    find_damage(s[0]);
    fake_until(&fake, strcmp(latest(), "") == 0); // rather none than that
    train();
    Cairn__SnapshotStatus *next = take_snapshot();
    ck_assert_str_eq(latest(), next->id);
}

/* One that nobody has read yet is as good as `latest` was when it was committed. */
TEST(without_a_verified_one_latest_goes_to_one_that_was_not_read)
{
    Cairn__SnapshotStatus *old = take_snapshot();
    fake_until(&fake, noted(old->id).unix_s != 0);
    train();
    Cairn__SnapshotStatus *new = take_snapshot();
    fake_until(&fake, noted(new->id).unix_s != 0);
    snapshot_check_forget(fake.cluster->storage.path, "toy", old->id);
    find_damage(new);
    fake_until(&fake, strcmp(latest(), old->id) == 0);
}

TEST(a_job_that_does_not_ask_for_it_has_none_read)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    fake_until(&fake, noted(s->id).unix_s != 0);
    note_old(s->id);
    for (int i = 0; i < 3; i++) (void)train();
    ck_assert_uint_eq(noted(s->id).unix_s, 1);
}

/* A file that cannot be opened at all: what is wrong is not known to be damage. */
static void make_unreadable(const char *folder)
{
    struct manifest m;
    char path[4200];
    ck_assert_int_eq(manifest_load(folder, &m, NULL), CAIRN_OK);
    snprintf(path, sizeof path, "%s/%s", folder, m.files[0].path);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(symlink("nowhere", path), 0);
    manifest_release(&m);
}

TEST(one_that_cannot_be_read_keeps_none_of_the_others_waiting)
{
    Cairn__SnapshotStatus *bad = take_snapshot(), *s = take_snapshot();
    fake_until(&fake, noted(bad->id).unix_s != 0 && noted(s->id).unix_s != 0);
    snapshot_check_forget(fake.cluster->storage.path, "toy", bad->id); // the next one
    note_old(s->id);
    make_unreadable(bad->path);
    toy()->spec.policy.snapshot_scrub_every_s = 3600;
    fake_until(&fake, noted(s->id).unix_s > 1);
    ck_assert_uint_eq(noted(bad->id).unix_s, 0);
}

TEST(one_that_is_gone_before_it_was_read_is_not_noted_as_damaged)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    struct sentence why;
    char path[4200];
    fake_until(&fake, noted(s->id).unix_s != 0);
    snapshot_check_forget(fake.cluster->storage.path, "toy", s->id);
    snprintf(path, sizeof path, "%s/manifest.json", s->path); // the first of what a removal does
    ck_assert_int_eq(unlink(path), 0);
    for (int is_good = 0; is_good < 2; is_good++)
        ck_assert_int_eq(coord_snapshot_note_check(fake.cluster, "toy", s->id, is_good, &why),
                         CAIRN_ERR_NOT_FOUND);
    ck_assert_uint_eq(noted(s->id).unix_s, 0);
}

TEST(a_scrub_that_hangs_holds_up_no_end)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    fake_until(&fake, noted(s->id).unix_s != 0);
    const uint64_t began_ms = uv_hrtime() / 1000000;
    coord_snapshot_words_lock(); // as its storage might
    coord_scrub_want(fake.cluster, "toy", s->id);
    fake_until(&fake, uv_hrtime() / 1000000 - began_ms > 100); // it is read by then
    fake_coordinator_stop(&fake);
    ck_assert_uint_lt(uv_hrtime() / 1000000 - began_ms, 10000);
    coord_snapshot_words_unlock();
    fake_coordinator_start(&fake);
}

SUITE(30, open_ticking, close_fake);
