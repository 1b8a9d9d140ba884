/* The folder of the snapshots is another one than that which the store remembers: storage that is not
 * mounted. The coordinator says so, writes nothing there and misses nothing in it, until the folder is back
 * or taken. */
#include <check.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/store/storage.h"
#include "server/coordinator/store.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

#define OTHER "is not the one that snapshots were written to"

static char aside[128];

/* Two shards, a job at step 1. */
static void set_up(void)
{
    open_trained();
    snprintf(aside, sizeof aside, "%s/aside", fake.folder);
}
static void restart(void)
{
    fake_peer_close(&w);
    fake_peer_close(&admin);
    fake_coordinator_restart(&fake);
    fake_shards_up(&fake, 2);
    w = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "w");
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "admin");
}

/* The coordinator starts, and the storage is not mounted. */
static void restart_without_storage(void)
{
    fake_coordinator_stop(&fake);
    ck_assert_int_eq(rename(fake.snapshots, aside), 0);
    fake_coordinator_start(&fake);
    fake_coordinator_stop(&fake);
    ck_assert_int_ne(access(fake.snapshots, F_OK), 0); // nor is the folder made
    ck_assert_int_eq(mkdir(fake.snapshots, 0755), 0);
    fake_coordinator_start(&fake);
    restart();
    fake_until(&fake, fake.cluster->storage.watch.said.text[0] != '\0');
}

static size_t entries(void)
{
    size_t count = 0;
    DIR *dir = opendir(fake.snapshots);
    ck_assert_ptr_nonnull(dir);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;)
        count += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(dir);
    return count;
}

static void expect_status(const char *word)
{
    const uint32_t request = fake_ask(&admin, ClusterStatusGet);
    Cairn__ClusterStatus *status = fake_hear(&admin, ClusterStatus, request);
    ck_assert_msg(word != NULL ? strstr(status->storage, word) != NULL : status->storage[0] == '\0',
                  "%s", status->storage);
}

static void drop_job(void)
{
    drop();
    for (uint32_t i = 0; i < 2; i++) fake.shards[i].terms_request = 0; // of a former coordinator
}

static uint32_t ask_resume(void)
{
    struct job_spec_data spec = fake_spec(1);
    const uint32_t request = fake_ask_resume(&w, &spec);
    spec_release(&spec);
    return request;
}

static void expect_restored(void)
{
    const uint32_t request = ask_resume();
    Cairn__Attached *attached = fake_hear(&w, Attached, request);
    ck_assert_uint_eq(attached->step, 1);
}

TEST(storage_that_is_not_mounted_is_written_to_by_nobody_and_no_job_begins_anew)
{
    take_snapshot();
    restart_without_storage();
    expect_status(OTHER);
    fake_expect_error(&admin, ask_snapshot(&admin, true), CAIRN_ERR_IO, OTHER);
    fake_expect_error(&admin, ask_restore("toy", "step-000000000001-g1", ""), CAIRN_ERR_IO, OTHER);
    fake_expect_error(&admin,
                      fake_ask(&admin, SnapshotRemove, .job = "toy", .id = "step-000000000001-g1"),
                      CAIRN_ERR_IO, OTHER);
    drop_job();
    fake_expect_error(&w, ask_resume(), CAIRN_ERR_IO, OTHER);
    ck_assert_uint_eq(entries(), 0);

    ck_assert_int_eq(rmdir(fake.snapshots), 0);
    ck_assert_int_eq(rename(aside, fake.snapshots), 0);
    expect_restored(); // at once
    fake_until(&fake, fake.cluster->storage.watch.said.text[0] == '\0');
    expect_status(NULL);
}

TEST(what_is_unmounted_while_it_runs_is_not_written_to_either)
{
    take_snapshot();
    ck_assert_int_eq(rename(fake.snapshots, aside), 0);
    ck_assert_int_eq(mkdir(fake.snapshots, 0755), 0);
    fake_expect_error(&admin, ask_snapshot(&admin, true), CAIRN_ERR_IO, OTHER);
    ck_assert_uint_eq(entries(), 0);
    fake_until(&fake, fake.cluster->storage.watch.said.text[0] != '\0');
    expect_status(OTHER);
}

TEST(another_folder_is_taken_by_the_operators_word)
{
    char path[160];
    take_snapshot();
    const uint64_t token = fake.cluster->storage.token;
    restart_without_storage();
    ck_assert_uint_eq(fake.cluster->storage.token, token);
    snprintf(path, sizeof path, "echo %016" PRIx64 " > ", token); // as the sentence says
    ck_assert_ptr_nonnull(strstr(fake.cluster->storage.watch.said.text, path));
    snprintf(path, sizeof path, "%s/%s", fake.snapshots, CAIRN_STORAGE_FILE);
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "%016" PRIx64 "\n", token);
    fclose(file);
    fake_until(&fake, fake.cluster->storage.watch.said.text[0] == '\0');
    take_snapshot();
}

TEST(a_folder_in_which_there_was_nothing_is_not_missed)
{
    ck_assert_int_eq(rename(fake.snapshots, aside), 0);
    restart();
    ck_assert_int_eq(access(fake.snapshots, F_OK), 0);
    expect_status(NULL);
    take_snapshot();
}

/* As a coordinator finds it that was upgraded. */
TEST(a_folder_that_has_snapshots_is_remembered_at_the_start)
{
    take_snapshot();
    const struct stored_meta none = { .storage = 0 };
    ck_assert_int_eq(store_write(fake.cluster->store, CAIRN_STORE_STORAGE, &none, 1, NULL),
                     CAIRN_OK);
    restart();
    ck_assert(fake.cluster->storage.remembered);
    restart_without_storage();
}

#define FOREIGN "belongs to another cluster: cluster test, coordinator at "

/* A coordinator with a store of its own comes to the folder; the first one's is aside. */
static void another_cluster(bool takes)
{
    char kept[sizeof fake.store + 8];
    snprintf(kept, sizeof kept, "%s-kept", fake.store);
    fake_peer_close(&w);
    fake_peer_close(&admin);
    fake_coordinator_stop(&fake);
    ck_assert_int_eq(rename(fake.store, kept), 0);
    fake.options.snapshots_foreign = takes;
    fake.options.snapshots_trust = "any"; // it has a key of its own
    fake_coordinator_start(&fake);
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "admin");
    w = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "w");
}

TEST(another_clusters_folder_is_not_written_to_before_it_is_taken)
{
    take_snapshot();
    drop_job();
    another_cluster(false);
    fake_until(&fake, fake.cluster->storage.watch.said.text[0] != '\0');
    expect_status(FOREIGN);
    ck_assert(!fake.cluster->storage.remembered); // it may be given another one
    fake_shards_up(&fake, 2);
    fake_expect_error(&w, ask_resume(), CAIRN_ERR_REFUSED, FOREIGN);
    fake_expect_error(&admin, fake_ask(&admin, SnapshotListGet), CAIRN_ERR_REFUSED,
                      "snapshots.foreign=yes");
}

TEST(who_takes_a_folder_has_it_and_who_had_it_is_told)
{
    char other[sizeof fake.store + 8], kept[sizeof fake.store + 8];
    take_snapshot();
    drop_job();
    another_cluster(true);
    fake_shards_up(&fake, 2);
    expect_restored();
    expect_status(NULL);
    drop_job();
    fake_coordinator_stop(&fake);
    snprintf(other, sizeof other, "%s-other", fake.store); // the first one again
    snprintf(kept, sizeof kept, "%s-kept", fake.store);
    ck_assert_int_eq(rename(fake.store, other), 0);
    ck_assert_int_eq(rename(kept, fake.store), 0);
    fake.options.snapshots_foreign = false;
    fake_coordinator_start(&fake);
    fake_until(&fake, fake.cluster->storage.watch.said.text[0] != '\0');
    ck_assert_msg(strstr(fake.cluster->storage.watch.said.text, FOREIGN) != NULL, "%s",
                  fake.cluster->storage.watch.said.text);
}

SUITE(30, set_up, close_fake);
