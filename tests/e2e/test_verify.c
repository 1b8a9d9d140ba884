/* cairn snapshot verify and cairn key, with real daemons. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

static struct cluster cluster;
static struct cluster_said said;
static cairn *session;
static cairn_job *job;
static char id[64], folder[256], own_key[128];

/* A job at step 1, and a snapshot of that. */
static void set_up(void)
{
    struct tiny_job tiny;
    cluster_start(&cluster, 1, NULL);
    session = tiny_session(&cluster, NULL);
    tiny_describe(&tiny, 100);
    job = tiny_open(session, "tiny", &tiny);
    ck_assert_uint_eq(tiny_step(job), 1);
    cluster_cli(&cluster, &said, "snapshot", "create", "-q", "tiny", "--wait", NULL);
    ck_assert_msg(said.status == 0 && sscanf(said.out, "%63s", id) == 1, "%s", said.err);
    snprintf(folder, sizeof folder, "%s/tiny/%s", cluster.snapshots_path, id);
    cluster_cli(&cluster, &said, "key", "show", "-q", NULL);
    ck_assert_msg(said.status == 0 && sscanf(said.out, "%127s", own_key) == 1, "%s", said.err);
}

static void tear_down(void)
{
    cairn_close(session);
    cluster_stop(&cluster);
}

static void says(int status, const char *word)
{
    ck_assert_msg(said.status == status, "%d: %s%s", said.status, said.out, said.err);
    ck_assert_msg(strstr(said.out, word) != NULL || strstr(said.err, word) != NULL, "%s: %s%s",
                  word, said.out, said.err);
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
    cluster_cli(&cluster, &said, "snapshot", "verify", "tiny", id, NULL);
    says(0, "good");
    says(0, "signed by key");
    cluster_cli(&cluster, &said, "snapshot", "verify", "--path", folder, "--quick", NULL);
    says(0, "not checked");
    cluster_cli(&cluster, &said, "snapshot", "verify", "--path", folder, "--key", own_key,
                "--read-data-subset", "10%", "-o", "json", NULL);
    says(0, "\"state\": \"good\"");
    cluster_cli(&cluster, &said, "snapshot", "verify", "--path", folder, "--quick",
                "--read-data-subset", "10%", NULL);
    says(2, "--quick");
}

TEST(damage_is_named_and_ends_with_5)
{
    damage();
    cluster_cli(&cluster, &said, "snapshot", "verify", "--path", folder, "--quick", NULL);
    says(0, "good"); // sizes and headers are
    cluster_cli(&cluster, &said, "snapshot", "verify", "tiny", id, NULL);
    says(5, "model/shard-00001");
    says(5, "block 0");
    cluster_cli(&cluster, &said, "snapshot", "verify", "--path", folder, "-o", "json", NULL);
    says(5, "\"state\": \"damaged\"");
}

TEST(damage_that_verify_finds_is_said_by_list_and_restore)
{
    char command[700];
    snprintf(command, sizeof command, "until [ -e %s/tiny/checks/%s ]; do sleep 0.02; done",
             cluster.snapshots_path, id);
    ck_assert_int_eq(system(command), 0); // the coordinator has read it, and found it good
    damage();
    cluster_cli(&cluster, &said, "snapshot", "list", "tiny", NULL);
    says(0, "s ago");
    cluster_cli(&cluster, &said, "snapshot", "verify", "tiny", id, NULL);
    says(5, "block 0");
    cluster_cli(&cluster, &said, "snapshot", "list", "tiny", NULL);
    says(0, "damaged, ");
}

TEST(a_copy_says_whose_it_is)
{
    char root[300], words[400];
    snprintf(root, sizeof root, "%s/copies", cluster.folder);
    ck_assert_int_eq(mkdir(root, 0750), 0);
    if (geteuid() == 0) ck_assert_int_eq(chown(root, 4711, 4711), 0);
    cluster_cli(&cluster, &said, "snapshot", "copy", "tiny", id, "--to", root, NULL);
    says(0, "folders 0750, files 0640");
    snprintf(words, sizeof words, "chown -R 4711:4711 %s/tiny/%s", root, id);
    if (geteuid() == 0) says(0, words);
}

/* As the coordinator notes it, behind its own reading of the new one. */
TEST(what_was_found_damaged_is_said_by_list_and_is_not_latest)
{
    char command[700];
    snprintf(command, sizeof command,
             "cd %s/tiny && until [ -e checks/%s ]; do sleep 0.02; done && rm -f latest && "
             "echo damaged 1700000000 >checks/%s",
             cluster.snapshots_path, id, id);
    ck_assert_int_eq(system(command), 0);
    cluster_cli(&cluster, &said, "snapshot", "list", "tiny", NULL);
    says(0, "damaged, ");
    says(0, "is no good one: a full read found it damaged, 2023-11-14");
    cluster_cli(&cluster, &said, "snapshot", "restore", "tiny", "latest", "--yes", NULL);
    says(4, "is passed over");
    says(4, "has only damaged snapshots");
}

TEST(a_changed_signature_is_damage_and_a_strange_one_is_said)
{
    static const char other[] = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
    char command[700];
    cluster_cli(&cluster, &said, "snapshot", "verify", "--path", folder, "--key", other, NULL);
    says(0, "not trusted here");
    snprintf(command, sizeof command, "sed -i '3s/.$/X/' %s/manifest.json.minisig", folder);
    ck_assert_int_eq(system(command), 0);
    cluster_cli(&cluster, &said, "snapshot", "verify", "tiny", id, NULL);
    says(5, "manifest.json.minisig");
}

TEST(keys_are_shown_trusted_and_untrusted)
{
    static const char other[] = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
    cluster_cli(&cluster, &said, "key", "show", NULL);
    says(0, "untrusted comment: minisign public key ");
    cluster_cli(&cluster, &said, "key", "trust", other, NULL);
    says(0, "another's");
    cluster_cli(&cluster, &said, "key", "list", "-o", "json", NULL);
    says(0, "E7620F1842B4E81F");
    cluster_cli(&cluster, &said, "key", "untrust", "E7620F1842B4E81F", "-q", NULL);
    says(0, "");
    cluster_cli(&cluster, &said, "key", "trust", "/nosuch/key.pub", NULL);
    says(2, "is neither a key nor a file of one");
}

SUITE(60, set_up, tear_down);
