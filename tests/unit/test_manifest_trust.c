/* A signed manifest on storage, and what becomes of one that somebody changed. */
#include <check.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/snapshot/snapshot.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/snapshot_sample.h"
#include "tests/support/suite.h"

static struct secret_key own, stranger;
static struct key_ring ring;

static void set_up(void)
{
    scratch_make();
    ck_assert_int_ge(sodium_init(), 0);
    secret_key_make(&own);
    secret_key_make(&stranger);
    ring = (struct key_ring) { .keys = { own.public_key }, .count = 1 };
}

/* A snapshot of that step, of no tensor; its folder is the caller's. */
static char *make(uint64_t step, const struct secret_key *signer)
{
    struct manifest m;
    struct job_spec_data spec = cairn_sample_spec("adamw");
    struct sentence why = { "" };
    char id[CAIRN_SNAPSHOT_ID_BYTES], *folder = NULL;
    cairn_sample_tensor(&spec, "w", CAIRN_TRAINED, (struct shape) { 1, { 10 } });
    manifest_init(&m);
    ck_assert_int_eq(spec_copy(&spec, &m.spec), CAIRN_OK);
    m.step = step;
    ck_assert_int_eq(snapshot_folder_make(scratch, "job", 1, step, id, &folder, NULL), CAIRN_OK);
    const struct cairn_sample_ranges owned = { .at = { { 0, 0, 10 } }, .count = 1 };
    cairn_sample_write(folder, &spec, 0, &owned, &m);
    ck_assert_msg(manifest_commit_signed(folder, &m, signer, &why) == CAIRN_OK, "%s", why.text);
    manifest_release(&m);
    spec_release(&spec);
    return folder;
}

static size_t read_whole(const char *folder, const char *name, char *text, size_t bytes)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    const size_t got = fread(text, 1, bytes, file);
    fclose(file);
    return got;
}

static void write_whole(const char *folder, const char *name, const char *text, size_t bytes)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(text, 1, bytes, file), bytes);
    ck_assert_int_eq(fclose(file), 0);
}

/* What it comes to, and the sentence of a restore. */
static cairn_status accept(const char *folder, struct trust_waiver waiver, struct sentence *why)
{
    struct manifest m;
    why->text[0] = '\0';
    cairn_status status = manifest_load(folder, &m, why);
    if (status != CAIRN_OK) return status;
    status = manifest_accept(&m, &ring, waiver, why);
    manifest_release(&m);
    return status;
}
static const struct trust_waiver none, all = { true, true };

TEST(one_that_is_signed_by_a_trusted_key_is_accepted)
{
    char *folder = make(1, &own);
    struct sentence why;
    ck_assert_msg(accept(folder, none, &why) == CAIRN_OK, "%s", why.text);
    free(folder);
}

TEST(the_signature_is_there_before_the_manifest)
{
    char *folder = make(1, &own), path[400];
    struct manifest m;
    snprintf(path, sizeof path, "%s/" CAIRN_MANIFEST_NAME, folder);
    ck_assert_int_eq(unlink(path), 0); // as a crash between the two leaves it
    ck_assert_int_eq(manifest_load(folder, &m, NULL), CAIRN_ERR_NOT_FOUND);
    free(folder);
}

TEST(one_of_a_stranger_needs_a_flag_and_names_the_key)
{
    char *folder = make(1, &stranger), name[CAIRN_KEY_NAME_BYTES];
    struct sentence why;
    key_name(stranger.public_key.id, name);
    ck_assert_int_eq(accept(folder, none, &why), CAIRN_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(why.text, name));
    ck_assert_ptr_nonnull(strstr(why.text, "--allow-untrusted"));
    ck_assert_int_eq(accept(folder, (struct trust_waiver) { .is_unsigned = true }, &why),
                     CAIRN_ERR_REFUSED);
    ck_assert_int_eq(accept(folder, (struct trust_waiver) { .is_strange = true }, &why), CAIRN_OK);
    free(folder);
}

TEST(one_that_nobody_signed_needs_a_flag)
{
    char *folder = make(1, NULL);
    struct sentence why;
    ck_assert_int_eq(accept(folder, none, &why), CAIRN_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(why.text, "--allow-unsigned"));
    ck_assert_int_eq(accept(folder, (struct trust_waiver) { .is_strange = true }, &why),
                     CAIRN_ERR_REFUSED);
    ck_assert_int_eq(accept(folder, (struct trust_waiver) { .is_unsigned = true }, &why), CAIRN_OK);
    free(folder);
}

/* Somebody who can write there changes a number, and makes the hash over it anew. */
TEST(a_changed_manifest_is_found_although_its_hash_fits)
{
    char *folder = make(1, &own), *other = make(2, NULL);
    char text[20000];
    struct sentence why;
    const size_t bytes = read_whole(other, CAIRN_MANIFEST_NAME, text, sizeof text);
    write_whole(folder, CAIRN_MANIFEST_NAME, text, bytes);
    ck_assert_int_eq(accept(folder, all, &why), CAIRN_ERR_CHECKSUM);
    ck_assert_ptr_nonnull(strstr(why.text, "was changed"));
    free(folder);
    free(other);
}

TEST(the_signature_of_another_manifest_is_none)
{
    char *folder = make(1, &own), *other = make(2, &own);
    char text[CAIRN_MINISIG_BYTES];
    struct sentence why;
    const size_t bytes = read_whole(other, CAIRN_MANIFEST_SIGNATURE_NAME, text, sizeof text);
    write_whole(folder, CAIRN_MANIFEST_SIGNATURE_NAME, text, bytes);
    ck_assert_int_eq(accept(folder, all, &why), CAIRN_ERR_CHECKSUM);
    free(folder);
    free(other);
}

/* A stranger gives his key the id of ours. */
TEST(a_stranger_cannot_borrow_an_id)
{
    struct sentence why;
    memcpy(stranger.public_key.id, own.public_key.id, sizeof own.public_key.id);
    char *folder = make(1, &stranger);
    ck_assert_int_eq(accept(folder, all, &why), CAIRN_ERR_CHECKSUM);
    free(folder);
}

static const struct {
    const char *text;
    size_t bytes; /* 0: as long as the text */
} garbage[] = { { "", 0 },
                { "untrusted comment: x\n", 0 },
                { "\xff\xfe\n\n\n\n", 0 },
                { "", CAIRN_MINISIG_MAX + 1 } };

TEST_EACH(a_signature_that_is_none_is_said, 0, sizeof garbage / sizeof *garbage)
{
    static char text[CAIRN_MINISIG_MAX + 1];
    char *folder = make(1, &own);
    struct sentence why;
    const size_t bytes = garbage[_i].bytes != 0 ? garbage[_i].bytes : strlen(garbage[_i].text);
    memcpy(text, garbage[_i].text, strlen(garbage[_i].text));
    write_whole(folder, CAIRN_MANIFEST_SIGNATURE_NAME, text, bytes);
    ck_assert_int_eq(accept(folder, all, &why), CAIRN_ERR_CHECKSUM);
    ck_assert_ptr_nonnull(strstr(why.text, "not a signature"));
    free(folder);
}

TEST(a_signature_behind_a_link_is_not_read)
{
    char *folder = make(1, &own), path[400], elsewhere[400];
    struct sentence why;
    snprintf(path, sizeof path, "%s/" CAIRN_MANIFEST_SIGNATURE_NAME, folder);
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", scratch);
    ck_assert_int_eq(rename(path, elsewhere), 0);
    ck_assert_int_eq(symlink(elsewhere, path), 0);
    ck_assert_int_ne(accept(folder, all, &why), CAIRN_OK);
    free(folder);
}

TEST(a_removed_snapshot_leaves_no_signature)
{
    char *folder = make(1, &own);
    struct snapshot_removed removed;
    ck_assert_int_eq(snapshot_remove(scratch, "job", strrchr(folder, '/') + 1, &removed, NULL),
                     CAIRN_OK);
    ck_assert_int_ne(access(folder, F_OK), 0);
    free(folder);
}

SUITE(20, set_up, scratch_remove);
