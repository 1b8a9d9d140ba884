/* Restores of the coordinator: what the shards have loaded has to be what was saved, before the job is
 * ready; and parts of snapshots that come in many messages. The shards write real files of zeros. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/xxh.h"
#include "proto/snapshot_io/snapshot_io.h"
#include "server/coordinator/store.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static void expect_job(const char *name, const char *state)
{
    if (state == NULL) {
        fake_expect_error(&admin, ask_show(name), CAIRN_ERR_NOT_FOUND, name);
        return;
    }
    ck_assert_str_eq(show_job(name)->state, state);
}

/* Writes the manifest anew, with a hash that is right, as who changes it on purpose does, and has the key. */
static void rewrite(const char *folder, void (*change)(const char *folder, struct manifest *m))
{
    struct manifest m;
    char path[512];
    ck_assert_int_eq(manifest_load(folder, &m, NULL), CAIRN_OK);
    change(folder, &m);
    snprintf(path, sizeof path, "%s/" CAIRN_MANIFEST_NAME, folder);
    ck_assert_int_eq(unlink(path), 0);
    snprintf(path, sizeof path, "%s/" CAIRN_MANIFEST_NAME ".minisig", folder);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(manifest_commit_signed(folder, &m, coord_keys_signer(fake.cluster), NULL),
                     CAIRN_OK);
    manifest_release(&m);
}

static void change_lr(const char *folder, struct manifest *m)
{
    (void)folder;
    m->spec.groups[0].lr *= 2;
}
static void change_step(const char *folder, struct manifest *m)
{
    (void)folder;
    m->step++;
}
static void change_beta2(const char *folder, struct manifest *m)
{
    (void)folder;
    m->spec.groups[0].beta2 = 0.5;
}
/* The last byte of a tensor, and the checksum of its file. */
static void change_data(const char *folder, struct manifest *m)
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
    ck_assert_uint_eq(m->files[0].block_count, 1);
    snapshot_sum(bytes, m->files[0].bytes, m->files[0].sums);
    free(bytes);
}

TEST_EACH(what_only_the_content_root_tells_is_found_before_a_job_is_given_up_for_it, 0, 4)
{
    void (*const changes[])(const char *, struct manifest *) = { change_lr, change_step,
                                                                 change_beta2, change_data };
    Cairn__SnapshotStatus *s = take_snapshot();
    rewrite(s->path, changes[_i]);
    fake_expect_error(&admin, ask_restore("toy", "", s->path), CAIRN_ERR_CHECKSUM,
                      "its files have the content root");
    train(); // as if nothing had been asked
    expect_job("toy", "running");
}

/* A bit of each byte of the last element of each file. */
TEST(a_flipped_bit_is_found_and_named_before_a_job_is_given_up_for_it)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    struct manifest m;
    char path[512];
    ck_assert_int_eq(manifest_load(s->path, &m, NULL), CAIRN_OK);
    for (size_t i = 0; i < m.file_count; i++) {
        snprintf(path, sizeof path, "%s/%s", s->path, m.files[i].path);
        for (long behind = 1; behind <= 4; behind++) {
            const int bit = 1 << (behind + (long)i) % 8;
            FILE *file = fopen(path, "r+b");
            ck_assert_ptr_nonnull(file);
            ck_assert_int_eq(fseek(file, -behind, SEEK_END), 0);
            const int was = fgetc(file);
            ck_assert_int_eq(fseek(file, -behind, SEEK_END), 0);
            fputc(was ^ bit, file);
            fflush(file);
            fake_expect_error(&admin, ask_restore("toy", "", s->path), CAIRN_ERR_CHECKSUM,
                              "is damaged: the checksum of block 0");
            expect_job("toy", "running");
            ck_assert_int_eq(fseek(file, -behind, SEEK_END), 0);
            fputc(was, file);
            fclose(file);
        }
    }
    train(); // as if nothing had been asked
    manifest_release(&m);
}

TEST(a_manifest_of_a_former_version_is_restored)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    char path[512], *text = NULL;
    size_t size = 0;
    snprintf(path, sizeof path, "%s/" CAIRN_MANIFEST_NAME, s->path);
    FILE *file = fopen(path, "r");
    ck_assert_int_gt(getdelim(&text, &size, '\0', file), 0);
    fclose(file);
    *strstr(strstr(text, "\"version\": "), "5") = '2';
    *strstr(text, ",\n \"blake2b_256\"") = '\0';
    file = fopen(path, "w");
    fprintf(file, "%s\n}\n", text);
    fclose(file);
    snprintf(path, sizeof path, "%s/" CAIRN_MANIFEST_NAME ".minisig", s->path);
    ck_assert_int_eq(unlink(path), 0);
    expect_snapshot(ask_restore("again", "", s->path));
    free(text);
}

TEST(what_a_shard_has_loaded_is_compared_before_the_job_is_ready)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    fake.shards[1].loads_other = true;
    fake_expect_error(&admin, ask_restore("again", "", s->path), CAIRN_ERR_CHECKSUM,
                      "the state the shards loaded has the content root");
    expect_job("again", NULL);
    fake.shards[1].loads_other = false;
    expect_snapshot(ask_restore("again", "", s->path));
    expect_job("again", "running");
}

TEST(a_shard_that_goes_before_it_has_told_fails_the_restore)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    fake.shards[1].holds_part = true;
    const uint32_t request = ask_restore("again", "", s->path);
    fake_until(&fake, fake.shards[1].has_job && fake.shards[1].digest != 0);
    expect_job("again", "restoring"); // all said Done, one has told nothing
    fake_shard_away(&fake, 1);
    fake_expect_error(&admin, request, CAIRN_ERR_CLOSED, "s1: ");
}

TEST(a_coordinator_stopped_before_all_have_told_leaves_nothing_behind)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    fake.shards[0].holds_part = true;
    ask_restore("again", "", s->path);
    fake_until(&fake, fake.shards[0].digest != 0);
    expect_job("again", "restoring");
    restart_coordinator();
    expect_job("again", NULL);
}

TEST(a_part_in_many_messages_is_one_part)
{
    Cairn__SnapshotStatus *one = take_snapshot();
    fake.shards[0].part_batch = fake.shards[1].part_batch = 1;
    fake.shards[0].part_messages = fake.shards[1].part_messages = 0;
    Cairn__SnapshotStatus *many = take_snapshot();
    ck_assert_uint_gt(fake.shards[0].part_messages, 2);
    ck_assert_uint_gt(fake.shards[1].part_messages, 2);
    ck_assert_mem_eq(one->content_root.data, many->content_root.data, 32);
    ck_assert_uint_eq(one->bytes, many->bytes);
    expect_snapshot(ask_restore("again", "", many->path));
}

SUITE(30, open_trained, close_fake);
