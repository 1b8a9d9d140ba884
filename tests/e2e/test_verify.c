/* cairn snapshot verify and cairn key, with real daemons. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/e2e/scene.h"

static char id[CLUSTER_WORD_BYTES], folder[320], own_key[CLUSTER_WORD_BYTES];

/* A job at step 1, and a snapshot of that. */
static void set_up(void)
{
    start(1);
    join("tiny", TINY(100));
    ck_assert_uint_eq(train(1), 1);
    word_of(id, "snapshot create -q tiny --wait");
    snprintf(folder, sizeof folder, "%s/tiny/%s", cluster.snapshots_path, id);
    word_of(own_key, "key show -q");
}

/* The last byte of a file of the model. */
static void damage(void)
{
    char command[700];
    snprintf(command, sizeof command,
             "f=$(ls %s/model/*.safetensors | head -1) && printf '\\377' | dd of=\"$f\" bs=1 "
             "seek=$(($(stat -c %%s \"$f\") - 1)) conv=notrunc 2>/dev/null",
             folder);
    ck_assert_int_eq(system(command), 0);
}

TEST(a_whole_one_is_good_and_signed)
{
    ask("snapshot verify tiny %s", id);
    expect_said(0, "good");
    expect_said(0, "signed by key");
    says(0, "not checked", "snapshot verify --path %s --quick", folder);
    says(0, "\"state\": \"good\"",
         "snapshot verify --path %s --key %s --read-data-subset 10%% -o json", folder, own_key);
    says(2, "--quick", "snapshot verify --path %s --quick --read-data-subset 10%%", folder);
}

TEST(damage_is_named_and_ends_with_5)
{
    damage();
    says(0, "good", "snapshot verify --path %s --quick", folder); // sizes and headers are
    ask("snapshot verify tiny %s", id);
    expect_said(5, "model/shard-00001");
    expect_said(5, "block 0");
    says(5, "\"state\": \"damaged\"", "snapshot verify --path %s -o json", folder);
}

TEST(damage_that_verify_finds_is_said_by_list_and_restore)
{
    char command[700];
    snprintf(command, sizeof command, "until [ -e %s/tiny/checks/%s ]; do sleep 0.02; done",
             cluster.snapshots_path, id);
    ck_assert_int_eq(system(command), 0); // the coordinator has read it, and found it good
    damage();
    says(0, "s ago", "snapshot list tiny");
    says(5, "block 0", "snapshot verify tiny %s", id);
    says(0, "damaged, ", "snapshot list tiny");
}

TEST(a_copy_says_whose_it_is)
{
    char root[300], words[512];
    snprintf(root, sizeof root, "%s/copies", cluster.folder);
    ck_assert_int_eq(mkdir(root, 0750), 0);
    if (geteuid() == 0) ck_assert_int_eq(chown(root, 4711, 4711), 0);
    ask("snapshot copy tiny %s --to %s", id, root);
    expect_said(0, "folders 0750, files 0640");
    snprintf(words, sizeof words, "chown -R 4711:4711 %s/tiny/%s", root, id);
    if (geteuid() == 0) expect_said(0, words);
}

/* As the coordinator notes it, behind its own reading of the new one. */
TEST(what_was_found_damaged_is_said_by_list_and_is_not_latest)
{
    char command[700];
    snprintf(command, sizeof command,
             "cd %s/tiny && until [ -e checks/%s ]; do sleep 0.02; done && "
             "echo damaged 1700000000 >checks/%s && "
             // it writes `latest` behind the check
             "while rm -f latest && sleep 0.2 && [ -e latest ]; do :; done",
             cluster.snapshots_path, id, id);
    ck_assert_int_eq(system(command), 0);
    ask("snapshot list tiny");
    expect_said(0, "damaged, ");
    expect_said(0, "is no good one: a full read found it damaged, 2023-11-14");
    ask("snapshot restore tiny latest --yes");
    expect_said(4, "is passed over");
    expect_said(4, "has only damaged snapshots");
}

TEST(a_changed_signature_is_damage_and_a_strange_one_is_said)
{
    static const char other[] = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
    char command[700];
    says(0, "not trusted here", "snapshot verify --path %s --key %s", folder, other);
    snprintf(command, sizeof command, "sed -i '3s/.$/X/' %s/manifest.json.minisig", folder);
    ck_assert_int_eq(system(command), 0);
    says(5, "manifest.json.minisig", "snapshot verify tiny %s", id);
}

TEST(keys_are_shown_trusted_and_untrusted)
{
    static const char other[] = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
    says(0, "untrusted comment: minisign public key ", "key show");
    says(0, "another's", "key trust %s", other);
    says(0, "E7620F1842B4E81F", "key list -o json");
    says(0, "", "key untrust E7620F1842B4E81F -q");
    says(2, "is neither a key nor a file of one", "key trust /nosuch/key.pub");
}

SUITE(60, set_up, stop);
