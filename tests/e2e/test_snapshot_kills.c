/* A snapshot is created, restored, removed, pruned and exported while a daemon, or the command itself, is
 * killed before one of its system calls: afterwards every snapshot that is listed verifies, those that were
 * there are there, what the command has said is so, `latest` names one of them and loads, an export is whole
 * or not there, and of what is no snapshot no file stays. Each fsync fails once, too, and the snapshot with
 * it.
 *
 * Which call it is goes by its number: of all threads of the process, in the order in which they come. Some
 * are tried; CAIRN_TEST_LONG=1: all, until one has run to its end undisturbed. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/call_fault.h"
#include "tests/e2e/scene.h"

enum { ELEMS = 5000, SOME = 5, GOING = 2, GRACE_MS = 20 };

enum victim { COORDINATOR, SHARD, COMMAND };
static const char *const victim_names[] = { "the coordinator", "a shard", "the command" };

static char first[CLUSTER_WORD_BYTES], second[CLUSTER_WORD_BYTES], extra[CLUSTER_WORD_BYTES];
static char first_root[65], second_root[65], what[160]; // the point, for whoever reads a failure
static char exported[CAIRN_SCRATCH_BYTES + 32], reference[CAIRN_SCRATCH_BYTES + 32];

#define HOLDS(condition) \
    ck_assert_msg((condition), "%s: %s: %s%s", what, #condition, said.out, said.err)
#define RUNS(...)                \
    do {                         \
        ask(__VA_ARGS__);        \
        HOLDS(said.status == 0); \
    } while (0)

/* ---- the scene ---- */

static void train_and_save(char id_out[CLUSTER_WORD_BYTES], char root_out[65])
{
    const struct cairn_round round = trainer_begin(job);
    tiny_push(job, &round, ELEMS, 0.5F);
    (void)trainer_commit(job, &round, 1);
    word_of(id_out, "snapshot create kept --wait -q");
    bits(root_out);
}

static void set_up(void)
{
    start(2, .coordinator_set = SETTINGS("lease.heartbeat=100ms"));
    join("kept", TINY(ELEMS));
    train_and_save(first, first_root);
    train_and_save(second, second_root);
    leave();
    RUNS("snapshot tag kept %s one", first);
    RUNS("snapshot tag kept %s two", second);
    snprintf(exported, sizeof exported, "%s/exported", cluster.folder);
    snprintf(reference, sizeof reference, "%s/reference", cluster.folder);
    RUNS("snapshot export kept %s --to %s", second, reference);
}

/* As soon as a shard that was killed is up again, and no snapshot is being taken. `root`: what the job is
 * then; NULL: whatever. */
static void a_snapshot_loads(const char *id, const char *root)
{
    await((ask("snapshot restore kept %s --yes", id), said.status == 0));
    ask("job digest -q kept");
    HOLDS(said.status == 0);
    HOLDS(root == NULL || strncmp(said.out, root, 64) == 0);
}

/* ---- what is killed ---- */

#define CREATE "snapshot create kept --wait -q"
#define PRUNE  "snapshot prune kept --keep-last 1"

/* The coordinator reads none of them any more, behind which it has nothing to do. */
static void await_checks(void)
{
    await_unsaid("never", "snapshot list kept --no-headers");
}

/* What is there before each point: two that have tags, and what the command needs. */
static void create_one(void)
{
    word_of(extra, CREATE);
    await_checks();
}

static int count_of(const char *word, const char *text)
{
    int count = 0;
    while ((text = strstr(text, word)) != NULL) {
        count++;
        text += strlen(word);
    }
    return count;
}

/* Periodic ones, of which a rule that keeps the newest removes all others; and the job as it was.
 * `extra`: the newest. */
static void train_periodic_ones(void)
{
    ask("job amend kept --snapshot-every 1");
    join("kept", TINY(ELEMS));
    do { // a step has none while that of another is being taken
        train(1);
        RUNS(PRUNE " --dry-run"); // one stays until a newer one is verified
    } while (count_of("would go", said.out) < GOING);
    leave();
    a_snapshot_loads(second, second_root);
    await_checks();
    word_of(extra, "snapshot list kept -q");
}

struct operation {
    enum victim victim;
    void (*prepare)(void);           /* NULL: there is nothing to do */
    const char *name, *command, *id; /* id NULL: the command has none */
};
static const struct operation operations[] = {
    { COORDINATOR, NULL, "create", CREATE, NULL },
    { SHARD, NULL, "create", CREATE, NULL },
    { COORDINATOR, NULL, "restore", "snapshot restore kept ID --yes", first },
    { SHARD, NULL, "restore", "snapshot restore kept ID --yes", first },
    { COORDINATOR, create_one, "rm", "snapshot rm kept ID --yes", extra },
    { COORDINATOR, train_periodic_ones, "prune", PRUNE, NULL },
    { COMMAND, NULL, "export", "snapshot export kept ID --to ", second },
};
enum { OPERATIONS = sizeof operations / sizeof *operations };

static pid_t *victim_of(const struct operation *o)
{
    return o->victim == COORDINATOR ? &cluster.coordinator : &cluster.shards[0];
}

/* The command with what stands for its ID and, behind all, the folder of an export. */
static const char *line_of(const struct operation *o)
{
    static char line[512];
    const char *at = o->id != NULL ? strstr(o->command, "ID") : NULL;
    if (at == NULL) return o->command;
    snprintf(line, sizeof line, "%.*s%s%s%s", (int)(at - o->command), o->command, o->id, at + 2,
             o->victim == COMMAND ? exported : "");
    return line;
}

/* The command is traced. Its status; 128 + SIGKILL where it was killed. */
static int run_traced(const struct operation *o, struct call_fault *fault)
{
    const char *argv[16] = { CAIRN_BIN_DIR "/cairn", "--endpoint", cluster.address };
    char line[512], *rest = line;
    struct tracer tracer;
    snprintf(line, sizeof line, "%s", line_of(o));
    for (size_t i = 3; (argv[i] = strsep(&rest, " ")) != NULL; i++) {}
    tracer_start(&tracer, argv, "/dev/null", call_fault_judge, fault);
    const int status = tracer_await(&tracer, tracer.process, CLUSTER_WAIT_MS);
    ck_assert_msg(status != -1, "%s: it hangs", what);
    return status;
}

static bool is_done;                        /* that is what the command has said, */
static char said_first[CLUSTER_WORD_BYTES]; /* and this */

/* The daemon is traced while the command runs, and a little longer. Its status, -1: it lives; the command's
 * words are in `said`. */
static int run_beside(const struct operation *o, struct call_fault *fault)
{
    struct cluster_command command;
    struct tracer tracer;
    tracer_attach(&tracer, *victim_of(o), call_fault_judge, fault);
    cluster_cli_begin_line(&cluster, &command, line_of(o));
    const int status = tracer_await(&tracer, command.pid, CLUSTER_WAIT_MS);
    int end = tracer_await(&tracer, tracer.process, GRACE_MS);
    if (end == -1 && fault->met != NULL && fault->fate == TRACER_KILLS)
        end = tracer_await(&tracer, tracer.process, CLUSTER_WAIT_MS);
    tracer_detach(&tracer);
    cluster_cli_end(&command, status, &said);
    is_done = said.status == 0;
    (void)sscanf(said.out, "%127s", said_first);
    return end;
}

/* How many calls there are when nothing disturbs them. */
static unsigned count_calls(const struct operation *o, struct call_fault *fault)
{
    if (o->prepare != NULL) o->prepare();
    if (o->victim == COMMAND) {
        ck_assert_int_eq(run_traced(o, fault), 0);
        cairn_scratch_remove(exported);
    } else {
        ck_assert_int_eq(run_beside(o, fault), -1);
        HOLDS(said.status == 0);
        HOLDS(o->prepare != train_periodic_ones || count_of("goes", said.out) >= GOING);
    }
    return fault->count;
}

/* Whether something was killed. */
static bool kill_at(const struct operation *o, struct call_fault *fault)
{
    const int status = o->victim == COMMAND ? run_traced(o, fault) : run_beside(o, fault);
    if (fault->met == NULL) {
        HOLDS(status == (o->victim == COMMAND ? 0 : -1));
        HOLDS(o->victim == COMMAND || is_done);
        return false;
    }
    snprintf(what, sizeof what, "%s, %s killed before call %u, %s", o->name,
             victim_names[o->victim], fault->nth, fault->met);
    ck_assert_msg(status == 128 + SIGKILL, "%s: it ends with %d", what, status);
    if (o->victim == COMMAND) return true;
    *victim_of(o) = 0;
    if (o->victim == COORDINATOR)
        restart_coordinator();
    else
        restart_shard(0);
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

/* A prune says which go before they do. */
static void it_verifies_or_is_gone(const char *id)
{
    ask("snapshot verify kept %s", id);
    if (said.status == 0) return;
    static struct cluster_said now;
    cluster_cli(&cluster, &now, "snapshot list -q kept");
    HOLDS(now.status == 0 && !is_listed(now.out, id));
}

static void every_listed_one_verifies(const struct operation *o)
{
    static char list[sizeof said.out];
    RUNS("snapshot list -q kept");
    memcpy(list, said.out, sizeof list);
    HOLDS(is_listed(list, first) && is_listed(list, second));
    HOLDS(strcmp(o->name, "prune") != 0 || is_listed(list, extra));
    HOLDS(strcmp(o->name, "create") != 0 || !is_done || is_listed(list, said_first));
    HOLDS(strcmp(o->name, "rm") != 0 || !is_done || !is_listed(list, extra));
    for (char *rest = list, *id; (id = strsep(&rest, "\n")) != NULL && *id != '\0';)
        it_verifies_or_is_gone(id);
    RUNS("snapshot verify kept latest");
}

/* What the job is now is one of the two, or nothing that anybody is told is whole. */
static void the_job_is_whole_or_lost(void)
{
    ask("job digest -q kept");
    HOLDS(said.status != 0 || strncmp(said.out, first_root, 64) == 0 ||
          strncmp(said.out, second_root, 64) == 0);
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
        ask_line(line_of(o));
        HOLDS(said.status == 0);
    }
    HOLDS(differs(exported, reference) == 0);
    HOLDS(access(temp, F_OK) != 0);
    cairn_scratch_remove(exported);
}

/* Of snapshots that are no more, or never were, and those that this has made. */
static bool has_other_files(void)
{
    char not_first[sizeof first + 8], not_second[sizeof second + 8];
    const char *const argv[] = { "find",    cluster.snapshots_path,
                                 "-type",   "f",
                                 "-path",   "*/kept/step-*/*",
                                 "-not",    "-path",
                                 not_first, "-not",
                                 "-path",   not_second,
                                 "-exec",   "false",
                                 "{}",      "+",
                                 NULL };
    snprintf(not_first, sizeof not_first, "*/%s/*", first);
    snprintf(not_second, sizeof not_second, "*/%s/*", second);
    return cluster_wait(cluster_spawn(argv, "/dev/null"), CLUSTER_WAIT_MS) != 0;
}

/* What this has made, and what a kill has left: no file of either stays. */
static void remove_the_others(void)
{
    static char list[sizeof said.out];
    for (int tries = 0; has_other_files(); tries++) {
        HOLDS(tries < 500);
        RUNS("snapshot list -q kept");
        memcpy(list, said.out, sizeof list);
        for (char *rest = list, *id; (id = strsep(&rest, "\n")) != NULL && *id != '\0';)
            if (strcmp(id, first) != 0 && strcmp(id, second) != 0) // or it is being removed
                ask("snapshot rm kept %s --yes", id);
        RUNS(PRUNE);
    }
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
    remove_the_others();
}

/* The smaller of two numbers: what a daemon does beside that is counted, too. */
static unsigned count_its_calls(const struct operation *o)
{
    static struct call_fault none, same;
    const unsigned calls = count_calls(o, &none);
    all_is_well(o);
    const unsigned again = count_calls(o, &same);
    all_is_well(o);
    return again < calls ? again : calls;
}

static bool tries_all(unsigned calls)
{
    return getenv("CAIRN_TEST_LONG") != NULL || calls < SOME;
}

/* The call that is tried after so many others. One run has a few more than another: where all are tried, it
 * goes on until one was not met. */
static unsigned next_point(unsigned tried, unsigned calls)
{
    return tries_all(calls) ? tried + 1 : 1 + (2 * tried + 1) * calls / (2 * SOME);
}

static bool goes_on(unsigned tried, unsigned calls, bool is_met)
{
    return tries_all(calls) ? tried < calls || is_met : tried < SOME;
}

TEST_EACH(whatever_is_killed_what_is_listed_is_whole, 0, OPERATIONS)
{
    const struct operation *o = &operations[_i];
    static struct call_fault fault;
    const unsigned calls = count_its_calls(o);
    unsigned tried = 0, killed = 0;
    for (bool is_met = true; goes_on(tried, calls, is_met); tried++, killed += is_met) {
        fault = (struct call_fault) { .nth = next_point(tried, calls), .fate = TRACER_KILLS };
        if (o->prepare != NULL) o->prepare();
        is_met = kill_at(o, &fault);
        all_is_well(o);
    }
    printf("note: %s: %s killed at %u of %u points, of about %u calls\n", o->name,
           victim_names[o->victim], killed, tried, calls);
    ck_assert_uint_ge(2 * killed, tried); // the others: there were fewer calls this time
}

/* ---- syncs ---- */

/* One that a snapshot is made of. A word that moves afterwards may move later, by a new file. */
static bool is_of_the_snapshot(const char *path)
{
    return strstr(path, "/snapshots/kept/step-") != NULL || strstr(path, "/exported") != NULL;
}

/* The command's status. */
static int run_with(const struct operation *o, struct call_fault *fault)
{
    if (o->victim == COMMAND) return run_traced(o, fault);
    HOLDS(run_beside(o, fault) == -1); // it lives
    HOLDS(said.status == 0 || strstr(said.err, "Input/output error") != NULL);
    return said.status;
}

static void nothing_is_synced_twice(const struct call_fault *fault)
{
    const char *twice = call_fault_synced_twice(fault);
    ck_assert_msg(twice == NULL || !is_of_the_snapshot(twice), "%s: synced twice: %s", what, twice);
}

/* Whether there is an n-th. */
static bool fail_sync(const struct operation *o, struct call_fault *fault)
{
    snprintf(what, sizeof what, "%s: sync %u of %s fails", o->name, fault->nth,
             victim_names[o->victim]);
    const int status = run_with(o, fault);
    const char *failed = call_fault_unsynced(fault);
    nothing_is_synced_twice(fault);
    if (failed != NULL) HOLDS(status != 0 || !is_of_the_snapshot(failed));
    all_is_well(o);
    return failed != NULL;
}

static const int writing[] = { 0, 1, OPERATIONS - 1 }; // create, by both; export

TEST_EACH(an_fsync_that_fails_fails_the_snapshot_and_is_not_tried_again, 0, 3)
{
    const struct operation *o = &operations[writing[_i]];
    static struct call_fault fault;
    fault = (struct call_fault) { .syncs_only = true };
    const unsigned syncs = count_calls(o, &fault);
    const unsigned stride = getenv("CAIRN_TEST_LONG") != NULL ? 1 : 2;
    unsigned failed = 0;
    snprintf(what, sizeof what, "undisturbed");
    nothing_is_synced_twice(&fault);
    for (bool is_met = true; is_met; failed += is_met) {
        fault = (struct call_fault) { .nth = 1 + failed * stride, .fate = EIO, .syncs_only = true };
        is_met = fail_sync(o, &fault);
    }
    printf("note: %s: %u syncs of %s failed, of about %u\n", o->name, failed,
           victim_names[o->victim], syncs);
    ck_assert_uint_ge(2 * stride * failed, syncs); // the others: of what is not always written
}

SUITE(900, set_up, stop);

int main(void)
{
    return tracer_works() ? suite_main() : SUITE_SKIPPED;
}
