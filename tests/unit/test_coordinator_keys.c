/* The cluster's key, the keys that it trusts, and what it restores by whose word. Shards are fake. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/snapshot/snapshot.h"
#include "proto/snapshot_io/snapshot_io.h"
#include "server/coordinator/store.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static char key_file[sizeof fake.store + 32];

static void set_up(void)
{
    open_trained();
    snprintf(key_file, sizeof key_file, "%s/" CAIRN_KEY_FILE, fake.store);
}

static Cairn__Keys *list_keys(void)
{
    return fake_call(&admin, Keys, KeysGet);
}

static uint32_t ask_trust(const char *key, bool untrust)
{
    return fake_ask(&admin, KeyTrust, .key = wire_text(key), .untrust = untrust);
}

static Cairn__Keys *trust(const char *key, bool untrust)
{
    return fake_hear(&admin, Keys, ask_trust(key, untrust));
}

static struct secret_key stranger(char line[CAIRN_KEY_LINE_BYTES])
{
    struct secret_key key;
    secret_key_make(&key);
    public_key_line(&key.public_key, line);
    return key;
}

/* ---- the key ---- */

TEST(the_key_is_made_once_for_its_owner_alone)
{
    struct stat info;
    ck_assert_int_eq(stat(key_file, &info), 0);
    ck_assert_uint_eq(info.st_mode & 07777, 0600);
    Cairn__Keys *first = list_keys();
    ck_assert_uint_eq(first->n_keys, 1);
    ck_assert(first->keys[0]->own && first->keys[0]->signs);
    restart_coordinator();
    Cairn__Keys *again = list_keys();
    ck_assert_uint_eq(again->n_keys, 1);
    ck_assert_str_eq(again->keys[0]->line, first->keys[0]->line);
}

static void refused_at_start(const char *word)
{
    struct coord *cluster = NULL;
    struct sentence why = { "" };
    fake_coordinator_stop(&fake);
    ck_assert_int_eq(coord_open(&fake.options, &fake.loop, &cluster, &why), CAIRN_ERR_CONFIG);
    ck_assert_msg(strstr(why.text, word) != NULL && strstr(why.text, CAIRN_KEY_FILE) != NULL, "%s",
                  why.text);
}

TEST(a_key_that_others_may_read_is_refused)
{
    ck_assert_int_eq(chmod(key_file, 0640), 0);
    refused_at_start("chmod 600");
    ck_assert_int_eq(chmod(key_file, 0600), 0);
    fake_coordinator_start(&fake);
}

TEST(garbage_for_a_key_is_refused)
{
    char kept[sizeof key_file + 8];
    snprintf(kept, sizeof kept, "%s.kept", key_file);
    ck_assert_int_eq(rename(key_file, kept), 0);
    FILE *file = fopen(key_file, "w");
    ck_assert_int_ge(fputs("no key\n", file), 0);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(chmod(key_file, 0600), 0);
    refused_at_start("put it back from a copy");
    ck_assert_int_eq(rename(kept, key_file), 0);
    fake_coordinator_start(&fake);
}

/* What was signed before stays good, and who looks sees that there is another one. */
TEST(a_key_that_is_not_there_gives_way_to_a_new_one)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    ck_assert_int_eq(unlink(key_file), 0);
    restart_coordinator();
    Cairn__Keys *keys = list_keys();
    ck_assert_uint_eq(keys->n_keys, 2);
    ck_assert(keys->keys[0]->own && keys->keys[1]->own);
    ck_assert(keys->keys[0]->signs != keys->keys[1]->signs);
    fake_shards_up(&fake, 2);
    fake_hear(&admin, SnapshotStatus, ask_restore("other", "", s->path));
}

TEST(the_rest_of_a_start_that_was_killed_is_no_hindrance)
{
    char begun[sizeof key_file + 8];
    snprintf(begun, sizeof begun, "%s.new", key_file);
    ck_assert_int_eq(rename(key_file, begun), 0);
    restart_coordinator();
    ck_assert_int_eq(access(key_file, F_OK), 0);
}

/* ---- those of others ---- */

TEST(a_key_is_trusted_and_untrusted_also_after_a_restart)
{
    char line[CAIRN_KEY_LINE_BYTES], id[CAIRN_KEY_NAME_BYTES];
    const struct secret_key key = stranger(line);
    key_name(key.public_key.id, id);
    trust(line, false);
    trust(line, false); // again is fine
    restart_coordinator();
    Cairn__Keys *keys = list_keys();
    ck_assert_uint_eq(keys->n_keys, 2);
    ck_assert_str_eq(keys->keys[1]->line, line);
    ck_assert(!keys->keys[1]->own);
    trust(id, true);
    restart_coordinator();
    keys = list_keys();
    ck_assert_uint_eq(keys->n_keys, 1);
    fake_expect_error(&admin, ask_trust(id, true), CAIRN_ERR_NOT_FOUND, "is trusted");
    fake_expect_error(&admin, ask_trust(keys->keys[0]->id, true), CAIRN_ERR_INVALID,
                      "signs this cluster's snapshots");
    fake_expect_error(&admin, ask_trust("RWgarbage", false), CAIRN_ERR_MALFORMED,
                      "not a public key");
}

TEST(no_more_keys_than_a_ring_has_are_trusted)
{
    char line[CAIRN_KEY_LINE_BYTES];
    for (int i = 1; i < CAIRN_KEYS_MAX; i++) {
        stranger(line);
        trust(line, false);
    }
    stranger(line);
    fake_expect_error(&admin, ask_trust(line, false), CAIRN_ERR_INVALID, "already");
}

/* ---- restores ---- */

static void sign_anew(const char *folder, const struct secret_key *signer)
{
    char path[4200], text[CAIRN_MINISIG_BYTES];
    struct manifest m;
    snprintf(path, sizeof path, "%s/" CAIRN_MANIFEST_SIGNATURE_NAME, folder);
    ck_assert_int_eq(unlink(path), 0);
    if (signer == NULL) return;
    ck_assert_int_eq(manifest_load(folder, &m, NULL), CAIRN_OK);
    minisig_sign(signer, m.prehash, "timestamp:1", text);
    manifest_release(&m);
    FILE *file = fopen(path, "w");
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static uint32_t ask_waived(const char *path, bool is_unsigned, bool is_strange)
{
    return fake_ask(&admin, SnapshotRestore, .job = "other", .path = wire_text(path),
                    .allow_unsigned = is_unsigned, .allow_untrusted = is_strange);
}

static void restored(uint32_t request)
{
    fake_hear(&admin, SnapshotStatus, request);
}

TEST(what_the_cluster_saves_it_has_signed_and_restores)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    Cairn__SnapshotList *list = list_snapshots();
    Cairn__Keys *keys = list_keys();
    ck_assert_ptr_nonnull(strstr(list->snapshots[0]->signature, keys->keys[0]->id));
    restored(ask_waived(s->path, false, false));
}

TEST(an_unsigned_one_is_restored_by_a_flag_alone)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    sign_anew(s->path, NULL);
    fake_expect_error(&admin, ask_waived(s->path, false, true), CAIRN_ERR_REFUSED,
                      "--allow-unsigned");
    restored(ask_waived(s->path, true, false));
}

TEST(a_strange_one_is_restored_by_a_flag_or_once_its_key_is_trusted)
{
    char line[CAIRN_KEY_LINE_BYTES], id[CAIRN_KEY_NAME_BYTES];
    const struct secret_key key = stranger(line);
    Cairn__SnapshotStatus *s = take_snapshot();
    key_name(key.public_key.id, id);
    sign_anew(s->path, &key);
    fake_expect_error(&admin, ask_waived(s->path, true, false), CAIRN_ERR_REFUSED, id);
    restored(ask_waived(s->path, false, true));
    trust(line, false);
    restored(ask_waived(s->path, false, false));
}

SUITE(30, set_up, close_fake);
