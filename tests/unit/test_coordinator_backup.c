/* A copy of the coordinator's store, taken while it is in use. The shards are fake ones. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/coordinator/base.h"
#include "server/coordinator/store.h"
#include "tests/support/held_pool.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static char store[sizeof fake.folder + 8], file[sizeof store + 32];

/* Two shards, a job at step 1. */
static void set_up(void)
{
    open_trained();
    snprintf(store, sizeof store, "%s/copy", fake.folder);
    snprintf(file, sizeof file, "%s/coordinator.db", store);
    ck_assert_int_eq(mkdir(store, 0700), 0);
}
static uint32_t ask_backup(struct fake_peer *peer, const char *path)
{
    return fake_ask(peer, ClusterBackup, .path = wire_text(path));
}

static size_t session_count(void)
{
    size_t count = 0;
    for (const struct coord_session *s = fake.cluster->sessions; s != NULL; s = s->next) count++;
    return count;
}

static void back_up(void)
{
    struct stat info;
    Cairn__ClusterBackedUp *made = fake_hear(&admin, ClusterBackedUp, ask_backup(&admin, file));
    ck_assert_str_eq(made->path, file);
    ck_assert_int_eq(stat(file, &info), 0);
    ck_assert_uint_eq(made->bytes, (uint64_t)info.st_size);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
}

TEST(a_coordinator_that_is_given_the_copy_goes_on_with_the_jobs)
{
    char key[sizeof store + 32];
    struct stat info;
    const struct public_key signer = coord_keys_signer(fake.cluster)->public_key;
    back_up();
    train(); // nothing of a round is in it
    fake_coordinator_stop(&fake);
    snprintf(fake.store, sizeof fake.store, "%s", store);
    fake_coordinator_start(&fake);
    ck_assert_mem_eq(&signer, &coord_keys_signer(fake.cluster)->public_key, sizeof signer);
    snprintf(key, sizeof key, "%s/" CAIRN_KEY_FILE, store);
    ck_assert_int_eq(stat(key, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
    ck_assert_int_eq(store_signer(fake.cluster->store, (char[CAIRN_KEY_TEXT_BYTES]) { "" }, NULL),
                     CAIRN_ERR_NOT_FOUND); // the file has it now
    fake_shards_up(&fake, 2);
    come_again("w0");
    job = fake_attach(&w, 10, 0, 1);
    fake_init(&w, job);
    ck_assert_uint_eq(train(), 3);
}

TEST(a_file_that_is_there_or_cannot_be_made_is_refused_and_nothing_is_left)
{
    char path[sizeof file + 16];
    back_up();
    fake_expect_error(&admin, ask_backup(&admin, file), CAIRN_ERR_EXISTS, "is there already");
    fake_expect_error(&admin, ask_backup(&admin, "copy.db"), CAIRN_ERR_INVALID, "copy.db");
    snprintf(path, sizeof path, "%s/none/copy", store);
    fake_expect_error(&admin, ask_backup(&admin, path), CAIRN_ERR_IO, path);
    snprintf(path, sizeof path, "%s.new", file);
    ck_assert_int_ne(access(path, F_OK), 0);
    train();
}

static void hold_store_up(void)
{
    held_pool_hold(fake.cluster->saves.pool, 1);
}

TEST(a_second_one_at_a_time_is_refused_and_training_waits_for_neither)
{
    hold_store_up();
    const uint32_t first = ask_backup(&admin, file), second = ask_backup(&admin, file);
    fake_expect_error(&admin, second, CAIRN_ERR_BUSY, "being copied");
    train();
    held_pool_let_go();
    fake_hear(&admin, ClusterBackedUp, first);
}

TEST(one_whose_asker_is_gone_is_made_all_the_same)
{
    struct fake_peer asker = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "asker");
    const size_t sessions = session_count();
    hold_store_up();
    ask_backup(&asker, file);
    fake_until(&fake, fake.cluster->under_way.backup != NULL);
    fake_peer_close(&asker);
    fake_until(&fake, session_count() < sessions);
    held_pool_let_go();
    fake_until(&fake, fake.cluster->under_way.backup == NULL);
    ck_assert_int_eq(access(file, F_OK), 0);
}

TEST(a_coordinator_that_is_stopped_in_mid_way_ends)
{
    ask_backup(&admin, file);
    fake_until(&fake, fake.cluster->under_way.backup != NULL);
    fake_coordinator_restart(&fake);
}

SUITE(30, set_up, close_fake);
