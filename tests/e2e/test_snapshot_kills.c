/* A snapshot is created, restored, removed, pruned and exported while a daemon, or the command itself, is
 * killed before one of its system calls: afterwards every snapshot that is listed verifies, those that were
 * there are there, `latest` names one of them and loads, and an export is whole or not there. Each fsync
 * fails once, too, and with it the snapshot.
 *
 * Which calls there are is what an undisturbed run has shown. Some are tried; CAIRN_TEST_LONG=1: all.
 * strace counts by thread: it is the n-th of whichever thread comes to it first, so that what a second
 * thread does early is met only in runs in which it is the first. */
#include <cairn.h>
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/strace.h"
#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

// clang-format off
#define CALLS \
    "openat,mkdir,mkdirat,fallocate,pread64,pwrite64,write,ftruncate,fchmod,fsync,fdatasync,close,rename," \
    "renameat,link,unlink,unlinkat,sendmsg"
// clang-format on
enum { ELEMS = 5000, POINTS_MAX = 4096, SOME = 6, LISTED_MAX = 64, GRACE_MS = 20 };

enum victim { COORDINATOR, SHARD, COMMAND };
static const char *const victim_names[] = { "the coordinator", "a shard", "the command" };

static const char *const quick[] = { "lease.heartbeat=100ms", NULL };
static struct cluster cluster;
static struct cluster_said said;
static char first[CLUSTER_WORD_BYTES], second[CLUSTER_WORD_BYTES], extra[CLUSTER_WORD_BYTES];
static char first_root[65], second_root[65], log_path[CAIRN_SCRATCH_BYTES + 32];
static char exported[CAIRN_SCRATCH_BYTES + 32], reference[CAIRN_SCRATCH_BYTES + 32];
static char what[160]; // the point, for whoever reads a failure

#define HOLDS(condition) \
    ck_assert_msg((condition), "%s: %s: %s%s", what, #condition, said.out, said.err)
#define RUNS(...)                                                    \
    do {                                                             \
        cluster_cli(&cluster, &said, "snapshot", __VA_ARGS__, NULL); \
        HOLDS(said.status == 0);                                     \
    } while (0)

/* ---- the scene ---- */

static void train(const struct trainer *t, char id_out[CLUSTER_WORD_BYTES], char root_out[65])
{
    const struct cairn_round round = trainer_begin(t->job);
    tiny_push(t->job, &round, ELEMS, 0.5F);
    (void)trainer_commit(t->job, &round, 1);
    cluster_word(&cluster, id_out, "snapshot", "create", t->name, "--wait", "-q", NULL);
    trainer_digest(&cluster, t->name, root_out);
}

static void set_up(void)
{
    const struct cluster_options options = { .coordinator_set = quick };
    struct tiny_job tiny;
    cluster_start(&cluster, 2, &options);
    tiny_describe(&tiny, ELEMS);
    const struct trainer t = tiny_attach(&cluster, "kept", &tiny);
    train(&t, first, first_root);
    train(&t, second, second_root);
    cairn_close(t.session);
    RUNS("tag", "kept", first, "one");
    RUNS("tag", "kept", second, "two");
    snprintf(log_path, sizeof log_path, "%s/strace", cluster.folder);
    snprintf(exported, sizeof exported, "%s/exported", cluster.folder);
    snprintf(reference, sizeof reference, "%s/reference", cluster.folder);
    RUNS("export", "kept", second, "--to", reference);
}

static void tear_down(void)
{
    cluster_stop(&cluster);
}

/* ---- what is killed ---- */

/* What is there before each point: two that have tags, and what the command needs. */
static void prepare(int more)
{
    for (int i = 0; i < more; i++)
        cluster_word(&cluster, extra, "snapshot", "create", "kept", "--wait", "-q", NULL);
}

struct operation {
    enum victim victim;
    int more;             /* snapshots that are made before */
    const char *words[8]; /* behind "snapshot"; `extra` is the newest of those */
};
static const struct operation operations[] = {
    { COORDINATOR, 0, { "create", "kept", "--wait" } },
    { SHARD, 0, { "create", "kept", "--wait" } },
    { COORDINATOR, 0, { "restore", "kept", first, "--yes" } },
    { SHARD, 0, { "restore", "kept", first, "--yes" } },
    { COORDINATOR, 1, { "rm", "kept", extra, "--yes" } },
    { COORDINATOR, 2, { "prune", "kept", "--keep-last", "1" } },
    { COMMAND, 0, { "export", "kept", second, "--to", exported } },
};
enum { OPERATIONS = sizeof operations / sizeof *operations };

static void run(const struct operation *o)
{
    const char *const *w = o->words;
    cluster_cli(&cluster, &said, "snapshot", w[0], w[1], w[2], w[3], w[4], w[5], NULL);
}

static pid_t *victim_of(const struct operation *o)
{
    return o->victim == COORDINATOR ? &cluster.coordinator : &cluster.shards[0];
}

/* The command under strace. Its status; 128 + SIGKILL where it was killed. */
static int run_command(const struct operation *o, const struct strace_point *point,
                       const char *fault)
{
    struct strace_words words;
    const char *argv[STRACE_WORDS + 16];
    size_t n = strace_words(&words, CALLS, point, fault, log_path, argv);
    argv[n++] = CAIRN_BIN_DIR "/cairn";
    argv[n++] = "--endpoint";
    argv[n++] = cluster.address;
    argv[n++] = "snapshot";
    for (const char *const *w = o->words; *w != NULL; w++) argv[n++] = *w;
    argv[n] = NULL;
    const int status = cluster_wait(cluster_spawn(argv, "/dev/null"), CLUSTER_WAIT_MS);
    ck_assert_msg(status != -1, "%s: it hangs", what);
    return status;
}

/* Undisturbed, and traced: its points. */
static size_t find_points(const struct operation *o, struct strace_point *out)
{
    prepare(o->more);
    if (o->victim == COMMAND) {
        ck_assert_int_eq(run_command(o, NULL, NULL), 0);
        cairn_scratch_remove(exported);
    } else {
        const pid_t strace = strace_attach(*victim_of(o), CALLS, NULL, NULL, log_path);
        run(o);
        strace_end(strace);
        HOLDS(said.status == 0);
    }
    return strace_points(log_path, out, POINTS_MAX);
}

/* Whether something was killed. */
static bool kill_at(const struct operation *o, const struct strace_point *point)
{
    if (o->victim == COMMAND) return run_command(o, point, "signal=SIGKILL") == 128 + SIGKILL;
    pid_t *victim = victim_of(o);
    const pid_t strace = strace_attach(*victim, CALLS, point, "signal=SIGKILL", log_path);
    run(o);
    const bool killed = cluster_wait(*victim, said.status == 0 ? GRACE_MS : CLUSTER_WAIT_MS) != -1;
    strace_end(strace);
    if (!killed) return false;
    *victim = 0;
    if (o->victim == COORDINATOR)
        cluster_restart_coordinator(&cluster);
    else
        cluster_restart_shard(&cluster, 0);
    return true;
}

/* ---- what holds afterwards ---- */

static bool is_listed(const char *list, const char *id)
{
    const size_t bytes = strlen(id);
    for (const char *at = list; (at = strstr(at, id)) != NULL; at += bytes)
        if (at[bytes] == '\n' && (at == list || at[-1] == '\n')) return true;
    return false;
}

static void every_listed_one_verifies(const struct operation *o)
{
    static char list[sizeof said.out];
    RUNS("list", "-q", "kept");
    memcpy(list, said.out, sizeof list);
    HOLDS(is_listed(list, first) && is_listed(list, second));
    HOLDS(strcmp(o->words[0], "prune") != 0 || is_listed(list, extra));
    for (char *rest = list, *id; (id = strsep(&rest, "\n")) != NULL && *id != '\0';)
        RUNS("verify", "kept", id);
    RUNS("verify", "kept", "latest");
}

/* What the job is now is one of the two, or nothing that anybody is told is whole. */
static void the_job_is_whole_or_lost(void)
{
    cluster_cli(&cluster, &said, "job", "digest", "-q", "kept", NULL);
    HOLDS(said.status != 0 || strncmp(said.out, first_root, 64) == 0 ||
          strncmp(said.out, second_root, 64) == 0);
}

static void a_snapshot_loads(const char *id, const char *root)
{
    for (int tries = 0;; tries++) { // the shard that was killed is not up yet
        cluster_cli(&cluster, &said, "snapshot", "restore", "kept", id, "--yes", NULL);
        if (said.status == 0) break;
        HOLDS(tries < 500);
    }
    cluster_cli(&cluster, &said, "job", "digest", "-q", "kept", NULL);
    HOLDS(said.status == 0);
    HOLDS(root == NULL || strncmp(said.out, root, 64) == 0);
}

static int differs(const char *a, const char *b)
{
    const char *const argv[] = { "diff", "-r", a, b, NULL };
    return cluster_wait(cluster_spawn(argv, "/dev/null"), CLUSTER_WAIT_MS);
}

/* The folder is there whole or not at all, and the same command makes it. */
static void the_export_is_whole_or_gone(const struct operation *o)
{
    char temp[sizeof exported + 8];
    snprintf(temp, sizeof temp, "%s.tmp", exported);
    if (access(exported, F_OK) != 0) {
        run(o);
        HOLDS(said.status == 0);
    }
    HOLDS(differs(exported, reference) == 0);
    HOLDS(access(temp, F_OK) != 0);
    cairn_scratch_remove(exported);
}

static void all_is_well(const struct operation *o)
{
    every_listed_one_verifies(o);
    if (o->victim == COMMAND) {
        the_export_is_whole_or_gone(o);
        return;
    }
    the_job_is_whole_or_lost();
    a_snapshot_loads("latest", NULL);
    a_snapshot_loads(second, second_root);
    RUNS("prune", "kept", "--keep-last", "1"); // of what this has made
}

TEST_EACH(whatever_is_killed_what_is_listed_is_whole, 0, OPERATIONS)
{
    static struct strace_point points[POINTS_MAX];
    const struct operation *o = &operations[_i];
    const size_t found = find_points(o, points);
    const size_t stride = getenv("CAIRN_TEST_LONG") != NULL || found < SOME ? 1 : found / SOME;
    int tried = 0, killed = 0;
    all_is_well(o);
    for (size_t i = stride / 2; i < found; i += stride, tried++) {
        snprintf(what, sizeof what, "%s, %s killed before its %u. %.23s", o->words[0],
                 victim_names[o->victim], points[i].nth, points[i].call);
        prepare(o->more);
        killed += kill_at(o, &points[i]);
        all_is_well(o);
    }
    printf("note: %s: %s killed %d times, of %zu calls\n", o->words[0], victim_names[o->victim],
           killed, found);
    ck_assert_int_ge(2 * killed, tried); // the others: what a thread did not do again
}

/* ---- syncs ---- */

/* An fsync of a log: of what, and how it went. */
struct sync {
    int thread;
    bool is_file; /* a part or a word, under the name that it has until it is whole */
    bool failed;
    char path[256];
};
enum { SYNCS_MAX = 512 };

static size_t read_syncs(struct sync *out)
{
    char line[1024], *at;
    size_t count = 0, last;
    int thread;
    FILE *file = fopen(log_path, "re");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%d", &thread) != 1) continue;
        if ((at = strstr(line, "sync(")) != NULL && (at = strchr(at, '<')) != NULL) {
            ck_assert_uint_lt(count, SYNCS_MAX);
            out[count] = (struct sync) { .thread = thread };
            (void)sscanf(at + 1, "%255[^>]", out[count].path);
            out[count++].is_file = strstr(at, ".tmp>") != NULL &&
                                   strstr(at, "/exported.tmp>") == NULL;
        }
        for (last = count; last > 0 && out[last - 1].thread != thread;) last--;
        if (last > 0 && strstr(line, "sync") != NULL && strstr(line, "INJECTED") != NULL)
            out[last - 1].failed = true;
    }
    fclose(file);
    return count;
}

/* Files once under a name; what failed, never again. The one that failed; NULL: none. */
static const struct sync *nothing_is_synced_twice(void)
{
    static struct sync syncs[SYNCS_MAX];
    const struct sync *failed = NULL;
    const size_t count = read_syncs(syncs);
    for (size_t i = 0; i < count; i++) {
        if (syncs[i].failed) failed = &syncs[i];
        if (!syncs[i].failed && !syncs[i].is_file) continue; // a folder: once for each new name
        for (size_t k = i + 1; k < count; k++)
            ck_assert_msg(strcmp(syncs[i].path, syncs[k].path) != 0, "%s: synced twice: %s", what,
                          syncs[i].path);
    }
    return failed;
}

/* Of those that a snapshot is made of; a word that moves when it is there may be moved later. */
static bool fails_the_snapshot(const struct sync *failed)
{
    return strstr(failed->path, "/snapshots/kept/step-") != NULL ||
           strstr(failed->path, "/exported") != NULL;
}

/* Its status; the command's words are in `said`. */
static int run_with(const struct operation *o, const struct strace_point *point)
{
    if (o->victim == COMMAND) return run_command(o, point, "error=EIO");
    const pid_t strace = strace_attach(*victim_of(o), CALLS, point, "error=EIO", log_path);
    run(o);
    strace_end(strace);
    HOLDS(said.status == 0 || strstr(said.err, "Input/output error") != NULL);
    HOLDS(cluster_wait(*victim_of(o), 0) == -1); // it lives
    return said.status;
}

/* Whether it met one. */
static bool fail_sync_at(const struct operation *o, const struct strace_point *point)
{
    const int status = run_with(o, point);
    const struct sync *failed = nothing_is_synced_twice();
    if (failed != NULL) HOLDS(status != 0 || !fails_the_snapshot(failed));
    all_is_well(o);
    return failed != NULL;
}

static const int writing[] = { 0, 1, OPERATIONS - 1 }; // create, by both; export

TEST_EACH(an_fsync_that_fails_fails_the_snapshot_and_is_not_tried_again, 0, 3)
{
    static struct strace_point points[POINTS_MAX];
    const struct operation *o = &operations[writing[_i]];
    const size_t found = find_points(o, points);
    int failed = 0;
    snprintf(what, sizeof what, "undisturbed");
    ck_assert_ptr_null(nothing_is_synced_twice());
    for (size_t i = 0; i < found; i++) {
        if (strstr(points[i].call, "sync") == NULL) continue;
        snprintf(what, sizeof what, "%s: %s's %u. %.23s fails", o->words[0],
                 victim_names[o->victim], points[i].nth, points[i].call);
        failed += fail_sync_at(o, &points[i]);
    }
    printf("note: %s: %d syncs of %s failed\n", o->words[0], failed, victim_names[o->victim]);
    ck_assert_int_gt(failed, 0); // the others: of a thread that did fewer this time
}

SUITE(900, set_up, tear_down);

int main(void)
{
    char options[256];
    const char *own = getenv("ASAN_OPTIONS");
    snprintf(options, sizeof options, "%s:detect_leaks=0", own != NULL ? own : "");
    setenv("ASAN_OPTIONS", options, 1); // nobody finds leaks who is traced
    return strace_works() ? suite_main() : SUITE_SKIPPED;
}
