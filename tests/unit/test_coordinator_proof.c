/* Restores of the coordinator: what the shards have loaded has to be what was saved, before the job is
 * ready; and parts of snapshots that come in many messages. The shards write real files of zeros. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/wire/snapshot_io.h"
#include "proto/wire/xxh.h"
#include "tests/support/fake_cluster.h"
#include "tests/support/suite.h"

static struct fake_cluster fake;
static struct fake_peer w, admin;
static uint64_t job;

/* Two shards, a job at step 1. */
static void set_up(void)
{
    job = fake_open_trained(&fake, &w, &admin);
}
static void tear_down(void)
{
    fake_peer_close(&w);
    fake_peer_close(&admin);
    fake_close(&fake);
}

static uint32_t ask_snapshot(void)
{
    Cairn__SnapshotCreate create = CAIRN__SNAPSHOT_CREATE__INIT;
    create.job = (char *)(uintptr_t) "toy";
    create.wait = true;
    return fake_request(&admin, CAIRN_MSG_SNAPSHOT_CREATE, &create.base);
}

static Cairn__SnapshotStatus *expect_status(uint32_t request)
{
    return (Cairn__SnapshotStatus *)fake_expect(&fake, &admin, CAIRN_MSG_SNAPSHOT_STATUS, request);
}

/* Under another name there is nothing that it would replace. */
static uint32_t ask_restore(const char *as, const char *folder)
{
    Cairn__SnapshotRestore restore = CAIRN__SNAPSHOT_RESTORE__INIT;
    restore.job = (char *)(uintptr_t)as;
    restore.path = (char *)(uintptr_t)folder;
    return fake_request(&admin, CAIRN_MSG_SNAPSHOT_RESTORE, &restore.base);
}

static void expect_job(const char *name, const char *state)
{
    Cairn__JobShow show = CAIRN__JOB_SHOW__INIT;
    show.name = (char *)(uintptr_t)name;
    const uint32_t request = fake_request(&admin, CAIRN_MSG_JOB_SHOW, &show.base);
    if (state == NULL) {
        fake_expect_error(&fake, &admin, request, CAIRN_ERR_NOT_FOUND, name);
        return;
    }
    Cairn__JobStatus *status = (Cairn__JobStatus *)fake_expect(&fake, &admin, CAIRN_MSG_JOB_STATUS,
                                                               request);
    ck_assert_str_eq(status->state, state);
    cairn_message_free(&status->base);
}

/* Writes the manifest anew, with a hash that is right, as who changes it on purpose does. */
static void rewrite(const char *folder,
                    void (*change)(const char *folder, struct cairn_manifest *m))
{
    struct cairn_manifest m;
    char path[512];
    ck_assert_int_eq(cairn_manifest_load(folder, &m, NULL), CAIRN_OK);
    change(folder, &m);
    snprintf(path, sizeof path, "%s/" CAIRN_MANIFEST_NAME, folder);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(cairn_manifest_commit(folder, &m, NULL), CAIRN_OK);
    cairn_manifest_release(&m);
}

static void change_lr(const char *folder, struct cairn_manifest *m)
{
    (void)folder;
    m->spec.groups[0].lr *= 2;
}
static void change_step(const char *folder, struct cairn_manifest *m)
{
    (void)folder;
    m->step++;
}
static void change_beta2(const char *folder, struct cairn_manifest *m)
{
    (void)folder;
    m->spec.groups[0].beta2 = 0.5;
}
/* The last byte of a tensor, and the checksum of its file. */
static void change_data(const char *folder, struct cairn_manifest *m)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, m->files[0].path);
    FILE *file = fopen(path, "r+b");
    uint8_t *bytes = malloc(m->files[0].bytes);
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fread(bytes, 1, m->files[0].bytes, file), m->files[0].bytes);
    bytes[m->files[0].bytes - 1] ^= 1;
    ck_assert_int_eq(fseek(file, -1, SEEK_END), 0);
    ck_assert_int_ge(fputc(bytes[m->files[0].bytes - 1], file), 0);
    fclose(file);
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, m->files[0].bytes));
    memcpy(m->files[0].xxh3_128, canonical.digest, 16);
    free(bytes);
}

START_TEST(what_only_the_content_root_tells_is_found_before_a_job_is_given_up_for_it)
{
    void (*const changes[])(const char *, struct cairn_manifest *) = { change_lr, change_step,
                                                                       change_beta2, change_data };
    Cairn__SnapshotStatus *s = expect_status(ask_snapshot());
    rewrite(s->path, changes[_i]);
    fake_expect_error(&fake, &admin, ask_restore("toy", s->path), CAIRN_ERR_CHECKSUM,
                      "its files have the content root");
    fake_commit(&fake, &w, job, fake_begin(&fake, &w, job)); // as if nothing had been asked
    expect_job("toy", "running");
    cairn_message_free(&s->base);
}
END_TEST

START_TEST(a_manifest_of_a_former_version_is_restored)
{
    Cairn__SnapshotStatus *s = expect_status(ask_snapshot());
    char path[512], *text = NULL;
    size_t size = 0;
    snprintf(path, sizeof path, "%s/" CAIRN_MANIFEST_NAME, s->path);
    FILE *file = fopen(path, "r");
    ck_assert_int_gt(getdelim(&text, &size, '\0', file), 0);
    fclose(file);
    *strstr(strstr(text, "\"version\": "), "3") = '2';
    *strstr(text, ",\n \"blake2b_256\"") = '\0';
    file = fopen(path, "w");
    fprintf(file, "%s\n}\n", text);
    fclose(file);
    cairn_message_free(&expect_status(ask_restore("again", s->path))->base);
    free(text);
    cairn_message_free(&s->base);
}
END_TEST

START_TEST(what_a_shard_has_loaded_is_compared_before_the_job_is_ready)
{
    Cairn__SnapshotStatus *s = expect_status(ask_snapshot());
    fake.shards[1].loads_other = true;
    fake_expect_error(&fake, &admin, ask_restore("again", s->path), CAIRN_ERR_CHECKSUM,
                      "what the shards have loaded has the content root");
    expect_job("again", NULL);
    fake.shards[1].loads_other = false;
    cairn_message_free(&expect_status(ask_restore("again", s->path))->base);
    expect_job("again", "running");
    cairn_message_free(&s->base);
}
END_TEST

START_TEST(a_shard_that_goes_before_it_has_told_fails_the_restore)
{
    Cairn__SnapshotStatus *s = expect_status(ask_snapshot());
    fake.shards[1].holds_part = true;
    const uint32_t request = ask_restore("again", s->path);
    fake_until(&fake, fake.shards[1].has_job && fake.shards[1].digest != 0);
    expect_job("again", "restoring"); // all said Done, one has told nothing
    fake_shard_away(&fake, 1);
    fake_expect_error(&fake, &admin, request, CAIRN_ERR_CLOSED, "s1: ");
    cairn_message_free(&s->base);
}
END_TEST

START_TEST(a_coordinator_stopped_before_all_have_told_leaves_nothing_behind)
{
    Cairn__SnapshotStatus *s = expect_status(ask_snapshot());
    fake.shards[0].holds_part = true;
    ask_restore("again", s->path);
    fake_until(&fake, fake.shards[0].digest != 0);
    expect_job("again", "restoring");
    fake_coordinator_stop(&fake);
    fake_coordinator_start(&fake);
    fake_peer_close(&admin);
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "ctl");
    expect_job("again", NULL);
    cairn_message_free(&s->base);
}
END_TEST

START_TEST(a_part_in_many_messages_is_one_part)
{
    Cairn__SnapshotStatus *one = expect_status(ask_snapshot());
    fake.shards[0].part_batch = fake.shards[1].part_batch = 1;
    fake.shards[0].part_messages = fake.shards[1].part_messages = 0;
    Cairn__SnapshotStatus *many = expect_status(ask_snapshot());
    ck_assert_uint_gt(fake.shards[0].part_messages, 2);
    ck_assert_uint_gt(fake.shards[1].part_messages, 2);
    ck_assert_mem_eq(one->content_root.data, many->content_root.data, 32);
    ck_assert_uint_eq(one->bytes, many->bytes);
    cairn_message_free(&expect_status(ask_restore("again", many->path))->base);
    cairn_message_free(&one->base);
    cairn_message_free(&many->base);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator_proof");
    TCase *tc = tcase_create("proof");
    tcase_set_timeout(tc, 30);
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_loop_test(
        tc, what_only_the_content_root_tells_is_found_before_a_job_is_given_up_for_it, 0, 4);
    tcase_add_test(tc, a_manifest_of_a_former_version_is_restored);
    tcase_add_test(tc, what_a_shard_has_loaded_is_compared_before_the_job_is_ready);
    tcase_add_test(tc, a_shard_that_goes_before_it_has_told_fails_the_restore);
    tcase_add_test(tc, a_coordinator_stopped_before_all_have_told_leaves_nothing_behind);
    tcase_add_test(tc, a_part_in_many_messages_is_one_part);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
