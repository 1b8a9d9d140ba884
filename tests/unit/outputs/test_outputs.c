/* What the commands of `cairn` print: tables, --quiet, -o json, and how each is used. CAIRN_GOLDEN_WRITE=1
 * writes tests/golden/outputs anew. usage: test_outputs [PART PARTS] */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "tests/support/fake_shard.h"
#include "tests/support/suite.h"
#include "tests/unit/outputs/outputs.h"

#define MINUTE_US 60e6

/* ---- without a cluster ---- */

/* Calls `each` with NOUN VERB of every command that --help has. */
static void each_command(void (*each)(const char *command))
{
    char line[4096], last[64] = "";
    FILE *help = popen(CAIRN_BIN_DIR "/cairn --help", "r");
    ck_assert_ptr_nonnull(help);
    while (fgets(line, sizeof line, help) != NULL) {
        char noun[32], verb[32], command[64];
        const int words = sscanf(line, "  cairn %31[a-z] %31[a-z]", noun, verb);
        if (words < 1 || strncmp(line, "  cairn ", 8) != 0) continue;
        snprintf(command, sizeof command, words == 2 ? "%s %s" : "%s", noun, verb);
        if (strcmp(command, last) != 0) each(command);
        snprintf(last, sizeof last, "%s", command);
    }
    ck_assert_int_eq(pclose(help), 0);
}

static void show_usage(const char *command)
{
    char line[96];
    snprintf(line, sizeof line, "%s --help", command);
    outputs_alone(line);
}

TEST(every_command_says_how_it_is_used)
{
    if (!outputs_open("usage")) return;
    outputs_alone("--help");
    each_command(show_usage);
    outputs_alone("");
    outputs_alone("nothing");
    outputs_alone("job");
    outputs_alone("job nothing");
    outputs_alone("job show");
    outputs_alone("job list more");
    outputs_alone("job list --nothing");
    outputs_alone("job list --wait");
    outputs_alone("job list -o xml");
    outputs_alone("job show toy --timeout never");
    outputs_alone("job list --endpoint /nonexistent/socket");
    outputs_alone("job list --endpoint /nonexistent/socket -q");
    outputs_alone("job list --endpoint /nonexistent/socket -o json");
    outputs_alone("local --shards none");
    outputs_close();
}

static void complete(const char *command)
{
    static const char script[] = ". " CAIRN_SOURCE_DIR "/deploy/completions/cairn.bash\n"
                                 "COMP_WORDS=($0 -)\n"
                                 "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
                                 "_cairn\n"
                                 "printf '%s\\n' \"${COMPREPLY[@]}\" | xargs\n";
    char line[96], shown[112];
    snprintf(line, sizeof line, "cairn %s", command);
    snprintf(shown, sizeof shown, "%s -<TAB>", line);
    outputs_of((const char *const[]) { "bash", "--norc", "-c", script, line, NULL }, shown);
}

TEST(the_options_of_every_command_are_completed)
{
    if (!outputs_open("completions")) return;
    each_command(complete);
    outputs_close();
}

TEST(what_needs_no_cluster_is_printed)
{
    if (!outputs_open("alone")) return;
    outputs_alone("env");
    outputs_alone("env --no-headers");
    outputs_alone("env -o json");
    outputs_alone("env --endpoint /somewhere");
    outputs_alone("capabilities");
    outputs_alone("capabilities -o json");
    outputs_close();
}

SUITE(60);

/* ---- with one ---- */

static void open_scene(void)
{
    open_trained();
    uv_timer_set_repeat(&fake.cluster->clock.tick, 10);
    uv_timer_again(&fake.cluster->clock.tick);
    fake_shard_up(&fake, 2);
}

/* The snapshots are committed, and were read once more. */
static void until_checked(size_t count)
{
    struct snapshot_words words = { .latest = "" };
    const uint64_t end_ms = uv_hrtime() / 1000000 + 25000;
    for (size_t checked = 0; checked < count;) {
        if (uv_hrtime() / 1000000 > end_ms) ck_abort_msg("the snapshots are not read");
        fake_pump(&fake);
        const cairn_status status = snapshot_words_load(fake.snapshots, "toy", &words, NULL);
        checked = status == CAIRN_OK ? words.check_count : 0;
        snapshot_words_release(&words);
    }
}

TEST(the_cluster_is_printed)
{
    if (!outputs_open("cluster")) return;
    outputs_all("cluster status");
    outputs_one("cluster status --no-headers");
    outputs_all("cluster status --check");
    outputs_two("cluster quota");
    outputs_two("cluster events");
    outputs_one("cluster events --since 1h");
    outputs_one("cluster adopt");
    outputs_two("cluster adopt --yes");
    outputs_two("cluster forget toy --yes");
    outputs_one("cluster backup @/one.db");
    outputs_one("cluster backup @/one.db");
    outputs_one("cluster backup @/two.db -q");
    outputs_one("cluster backup @/three.db -o json");
    outputs_one("shard forget s9");
    outputs_one("shard forget s0");
    fake_shard_up(&fake, 3);
    fake_shard_away(&fake, 3);
    outputs_one("shard forget s3");
    fake_shard_up(&fake, 3);
    fake_shard_away(&fake, 3);
    outputs_one("shard forget s3 -o json");
    fake_shard_up(&fake, 3);
    outputs_one("member drain s3");
    outputs_one("member drain s2 -q");
    outputs_one("member drain nobody");
    outputs_close();
}

TEST(keys_are_printed)
{
    if (!outputs_open("key")) return;
    outputs_all("key show");
    outputs_two("key list");
    outputs_one("key list --no-headers");
    outputs_all("key trust RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3");
    outputs_two("key list");
    outputs_one("key untrust RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3");
    outputs_one("key untrust 0123");
    outputs_one("key trust nonsense");
    outputs_close();
}

TEST(tokens_are_printed)
{
    if (!outputs_open("token")) return;
    outputs_all("cluster init");
    outputs_one("cluster init");
    outputs_two("key add alice --role worker,reader --owner red --jobs exp-* --until 90d");
    outputs_one("key add watch --role monitor --to @/watch.token");
    outputs_one("key add ops --role admin --to @/ops.token -o json");
    outputs_two("key rotate alice --grace 10min");
    outputs_two("key list");
    outputs_quiet("key revoke alice");
    outputs_one("key revoke ops -o json");
    outputs_two("key rotate --cluster");
    outputs_one("key list");
    outputs_one("key add bob");
    outputs_one("key add bob --role king");
    outputs_one("key add bob --role worker --until 2001-02-03");
    outputs_one("key add bob --role worker --until soon");
    outputs_one("key add watch --role monitor");
    outputs_one("key rotate");
    outputs_one("key rotate alice --cluster");
    outputs_one("key rotate nobody");
    outputs_one("key revoke nobody");
    outputs_one("key revoke shard:s9");
    outputs_one("cluster audit");
    outputs_one("cluster audit --since 2001-01-01T00:00:00Z --no-headers");
    outputs_one("cluster audit --since 0s -o json");
    outputs_close();
}

TEST(a_job_is_printed)
{
    if (!outputs_open("job")) return;
    outputs_all("job list");
    outputs_one("job list --no-headers");
    outputs_two("job show toy");
    outputs_two("job show nobody");
    outputs_all("job check toy");
    outputs_two("job top toy --once");
    outputs_two("job plan toy");
    outputs_one("job plan toy --no-headers");
    outputs_two("job plan toy --shards 4 --workers 2 --wire bf16");
    outputs_all("job digest toy");
    outputs_all("job amend toy --lr 0.5");
    outputs_all("job share toy team-b,uid:7");
    outputs_one("job share toy team-c,x* --read-only");
    outputs_one("job share toy a,,b");
    outputs_one("job chown toy team-a");
    outputs_one("job amend toy");
    outputs_one("job amend toy --set nothing=3");
    outputs_one("job amend toy --snapshot-every 100 --snapshot-keep 3 --snapshot-scrub-every 7d");
    outputs_one("job amend toy --on-worker-loss wait --worker-loss-wait 10 --workers 1:4");
    outputs_two("job show toy");
    outputs_all("job park toy");
    outputs_two("job show toy");
    outputs_one("job list");
    outputs_all("job check toy");
    outputs_all("job unpark toy");
    outputs_one("job drop toy");
    outputs_one("job drop toy --yes");
    outputs_one("job drop toy --yes --force");
    outputs_one("job drop toy --yes --force");
    outputs_all("job list");
    outputs_close();
}

TEST(a_dropped_job_is_printed)
{
    if (!outputs_open("job-drop")) return;
    outputs_one("job drop toy --yes --force -q");
    come_again("w0");
    job = fake_attach(&w, 11, 0, 1);
    fake_init(&w, job);
    outputs_one("job list");
    outputs_one("job drop toy --yes --force -o json");
    outputs_close();
}

TEST(snapshots_are_printed)
{
    if (!outputs_open("snapshot")) return;
    // As long whoever runs the test: it is in the manifest, and so in a size.
    snprintf(toy()->tenant.owner, sizeof toy()->tenant.owner, "team-a");
    outputs_all("snapshot list");
    outputs_all("snapshot create toy --wait");
    outputs_all("snapshot create toy");
    until_checked(6);
    outputs_all("snapshot list toy");
    outputs_one("snapshot list toy --no-headers");
    outputs_all("snapshot show toy step-000000000001-g1");
    outputs_two("snapshot show toy latest");
    outputs_two("snapshot show toy step-000000000001-g1 --stats");
    outputs_one("snapshot show --path @/snapshots/toy/step-000000000001-g1");
    outputs_one("snapshot show toy step-000000000009-g1");
    outputs_all("snapshot tag toy step-000000000001-g1 best");
    outputs_one("snapshot list toy");
    outputs_one("snapshot rm toy step-000000000001-g1 --yes");
    outputs_one("snapshot tag toy step-000000000001-g1 best --delete");
    outputs_two("snapshot cancel toy");
    outputs_all("snapshot prune toy --dry-run --keep-last 1");
    outputs_one("snapshot advise toy --mtbf 1h");
    outputs_one("snapshot rm toy step-000000000001-g1-2");
    outputs_one("snapshot rm toy step-000000000001-g1-2 --yes");
    outputs_one("snapshot rm toy step-000000000001-g1-3 --yes -q");
    outputs_one("snapshot rm toy step-000000000001-g1-4 --yes -o json");
    outputs_close();
}

TEST(what_is_read_of_snapshots_is_printed)
{
    if (!outputs_open("snapshot-read")) return;
    char roots[3][sizeof fake.folder + 8];
    outputs_one("snapshot create toy --wait -q");
    ck_assert_uint_eq(train(), 2);
    outputs_one("snapshot create toy --wait -q");
    until_checked(2);
    for (int i = 0; i < 3; i++) {
        snprintf(roots[i], sizeof roots[i], "%s/copies%d", fake.folder, i);
        ck_assert_int_eq(mkdir(roots[i], 0700), 0);
    }
    outputs_all("snapshot verify toy step-000000000001-g1");
    outputs_all("snapshot verify toy step-000000000001-g1 --quick");
    outputs_all("snapshot diff toy step-000000000001-g1 step-000000000002-g1");
    outputs_one("snapshot copy toy step-000000000001-g1 --to @/none");
    outputs_one("snapshot copy toy step-000000000001-g1 --to @/copies0");
    outputs_one("snapshot copy toy step-000000000001-g1 --to @/copies0");
    outputs_one("snapshot copy toy step-000000000001-g1 --to @/copies1 -q");
    outputs_one("snapshot copy toy step-000000000001-g1 --to @/copies2 -o json");
    outputs_one("snapshot export toy step-000000000001-g1 --to @/hf");
    outputs_one("snapshot export toy step-000000000001-g1 --to @/hf");
    outputs_one("snapshot export toy step-000000000001-g1 --to @/hf2 -q");
    outputs_one("snapshot export toy step-000000000001-g1 --to @/hf3 -o json");
    outputs_one("snapshot export toy step-000000000001-g1 --to @/dcp --format dcp");
    outputs_one("snapshot export toy step-000000000001-g1 --to @/torch --format torch");
    outputs_close();
}

TEST(a_restore_is_printed)
{
    if (!outputs_open("restore")) return;
    outputs_one("snapshot create toy --wait -q");
    until_checked(1);
    outputs_one("snapshot restore toy step-000000000001-g1");
    outputs_all("snapshot restore toy step-000000000001-g1 --yes");
    outputs_one("snapshot restore toy latest --yes");
    outputs_one("snapshot restore toy step-000000000009-g1 --yes");
    outputs_two("job create other --from toy/step-000000000001-g1 --dry-run");
    outputs_one("job create other --from toy/step-000000000001-g1 --yes");
    outputs_one("job create more --from toy/step-000000000001-g1 --set all.lr=0.5 --yes -q");
    outputs_one("job create third --from toy/latest --yes -o json");
    outputs_all("job list");
    outputs_close();
}

TEST(a_resharding_is_printed)
{
    if (!outputs_open("reshard")) return;
    // it trains, however slow this machine is: a job rests when its next step is late
    for (int i = 0; i < CAIRN_PACE_STEPS; i++)
        coord_pace_note(&toy()->rounds.pace, (uint32_t)MINUTE_US);
    outputs_two("reshard status");
    outputs_two("reshard status toy");
    outputs_two("reshard plan toy --shards 3");
    outputs_one("reshard plan toy --shards 3 --no-headers");
    outputs_two("reshard plan --all --shards 9");
    outputs_one("reshard plan toy --add nobody");
    outputs_two("reshard cancel toy");
    toy()->rounds.pace.seen_us = 0; // nobody trains, so no step has to come between two slices
    outputs_one("reshard apply toy --shards 3");
    outputs_two("reshard status toy");
    outputs_one("reshard apply toy --shards 2 -q");
    outputs_one("reshard apply toy --shards 3 -o json");
    outputs_one("reshard apply toy --shards 3");
    outputs_close();
}

/* Shard 1 does not write its part: each command has a snapshot to give up. */
static void hold_snapshot(void)
{
    fake.shards[1].holds_part = true;
    outputs_one("snapshot create toy -q");
    fake_until(&fake, fake.shards[1].held_pin != 0);
}

TEST(a_snapshot_under_way_is_printed)
{
    if (!outputs_open("snapshot-running")) return;
    hold_snapshot();
    outputs_all("snapshot list toy");
    outputs_two("job show toy");
    outputs_all("job check toy");
    outputs_one("snapshot create toy");
    outputs_one("job digest toy");
    outputs_one("job drop toy --yes");
    outputs_one("snapshot cancel toy step-000000000009-g1");
    outputs_one("snapshot cancel toy");
    hold_snapshot();
    outputs_one("snapshot cancel toy -q");
    hold_snapshot();
    outputs_one("snapshot cancel toy -o json");
    outputs_one("snapshot list toy");
    outputs_close();
}

TEST(what_is_not_well_is_printed)
{
    if (!outputs_open("unwell")) return;
    fake_shard_away(&fake, 1);
    outputs_all("cluster status");
    outputs_all("cluster status --check");
    outputs_all("job list");
    outputs_two("job show toy");
    outputs_all("job check toy");
    outputs_one("snapshot create toy --timeout 1");
    outputs_one("job digest toy --timeout 1");
    outputs_one("job park toy --timeout 1");
    outputs_one("reshard plan toy");
    outputs_one("member drain s1");
    outputs_close();
}

/* The coordinator has seen that the folder of snapshots is another one's. */
static void lose_store(void)
{
    fake_store_lose(&fake);
    fake_shards_up(&fake, 2);
    fake_until(&fake, fake.cluster->storage.watch.said.text[0] != '\0');
}

TEST(a_cluster_that_lost_its_store_is_printed)
{
    if (!outputs_open("store-lost")) return;
    lose_store();
    outputs_all("cluster status");
    outputs_one("cluster status --check");
    outputs_one("job list");
    outputs_two("cluster adopt");
    outputs_one("cluster forget toy");
    outputs_one("cluster adopt --yes");
    outputs_one("job list");
    outputs_close();
}

TEST(what_no_store_knows_is_forgotten_and_that_is_printed)
{
    if (!outputs_open("forget")) return;
    lose_store();
    outputs_two("cluster forget toy --yes");
    outputs_close();
}

SUITE(60, open_scene, close_fake);

int main(int argc, char **argv)
{
    if (argc == 3) outputs_part(atoi(argv[1]), atoi(argv[2]));
    return suite_main();
}
