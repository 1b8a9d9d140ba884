/* Workers whose data network swallows every packet, from the first on or while they train: they get no
 * refusal, only silence. They are named, and those beside them train on at their pace. So are two shards. Two
 * hosts, as network namespaces; needs root.
 *
 * `test_dropped worker ADDRESS JOB STOP WAIT_MS` trains, with that timeout, until the file STOP is there, and
 * says which step was the longest, or what went wrong, and when. */
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/netns.h"
#include "tests/support/now.h"
#include "tests/e2e/scene.h"

enum {
    WAIT_MS = 30000,
    LOST = 4,
    SHORT_MS = 11000,   /* longer than it takes to name the way */
    NAMED_MS = 15000,   /* 5 s of silence, and what it takes to join */
    STEP_MAX_MS = 2500, /* one that waits for connect() takes 3 s */
    ELEMS = 1 << 16
};

/* ---- workers ---- */

#define need(call)                                                                            \
    do {                                                                                      \
        if ((call) != CAIRN_OK) {                                                             \
            printf("failed after %" PRId64 " ms: %s\n", now_ms() - joined_ms, cairn_error()); \
            return 1;                                                                         \
        }                                                                                     \
    } while (0)

static int64_t joined_ms;
static int wait_ms;

static int open_job(const char *endpoint, const char *name)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = endpoint };
    const struct cairn_tensor tensor = TRAINER_MATRIX("w", NULL, 64, ELEMS / 64, 7);
    const struct cairn_job_spec spec = TRAINER_SPEC(&tensor, 1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    joined_ms = now_ms();
    need(cairn_open(&opts, &session));
    printf("data path: %s\n", cairn_data_path(session));
    joined_ms = now_ms();
    need(cairn_job_open(session, name, &spec, CAIRN_WORKER, wait_ms, &job));
    need(cairn_init_done(job, NULL, wait_ms));
    return 0;
}

static int work(const char *endpoint, const char *name, const char *stop)
{
    static float values[ELEMS];
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    int64_t longest_ms = 0;
    uint64_t steps = 0;
    if (open_job(endpoint, name) != 0) return 1;
    for (; access(stop, F_OK) != 0; steps++) {
        const int64_t begin_ms = joined_ms = now_ms();
        need(cairn_round_begin(job, wait_ms, &round));
        need(cairn_push(job, &round, 0, "w", NULL, &mem, NULL));
        need(cairn_commit(job, &round, 1, NULL, 0, wait_ms, &result));
        if (now_ms() - begin_ms > longest_ms) longest_ms = now_ms() - begin_ms;
        if (steps == 0) printf("trains\n"); // the shard is heard
    }
    printf("%" PRIu64 " steps, version %" PRIu64 ", the longest %" PRId64 " ms\n", steps,
           result.version.step, longest_ms);
    return 0;
}

/* ---- the hosts ---- */

static char here[NETNS_NAME_BYTES], there[NETNS_NAME_BYTES];
static const char *const places[2] = { here, there };

/* The one of the daemons and the good worker, and the one of the lost workers. */
static bool make_hosts(void)
{
    return netns_make(here, 'h') && netns_make(there, 't') && netns_wire(here, there, "mgmt", 91) &&
           netns_wire(here, there, "data0", 81);
}

/* What goes back over data0 is for a card that does not exist. */
static void break_way(void)
{
    ck_assert(netns_ip(
        "-n %s neigh replace 10.81.0.2 lladdr 02:00:00:00:00:99 dev data0 nud permanent", here));
}

/* Also where it is not broken. */
static void mend_way(void)
{
    (void)netns_ip("-n %s neigh delete 10.81.0.2 dev data0", here);
}

static void drop_hosts(void)
{
    if (here[0] != '\0') (void)netns_drop(here);
    if (there[0] != '\0') (void)netns_drop(there);
}

static void start_cluster(int shards)
{
    unsetenv("CAIRN_FABRIC_DEVICE");
    start(shards, .shard_netns = places, .coordinator_ip = "10.91.0.1",
          .coordinator_set = SETTINGS("cluster.shards=1"),
          .shard_set = SETTINGS("fabric.device=data0"));
}

static void set_up(void)
{
    start_cluster(1);
}

static void tear_down(void)
{
    mend_way();
    stop();
}

static pid_t start_worker(const char *netns, const char *name, int timeout_ms)
{
    char log[64];
    snprintf(log, sizeof log, "%s.log", name);
    return run_on(netns, log, "self worker %s %s %s/stop %d", cluster.address, name, cluster.folder,
                  timeout_ms);
}

/* What that worker has said, until the next call. */
static const char *read_log(const char *name)
{
    char log[64];
    snprintf(log, sizeof log, "%s.log", name);
    return cluster_log_text(&cluster, log);
}

static void stop_workers(void)
{
    char stop[CAIRN_SCRATCH_BYTES + 32];
    snprintf(stop, sizeof stop, "%s/stop", cluster.folder);
    FILE *file = fopen(stop, "we");
    ck_assert_ptr_nonnull(file);
    fclose(file);
}

static void await_text(const char *name, const char *text)
{
    await(strstr(read_log(name), text) != NULL);
}

/* The rest of what it said, behind `text`. */
static const char *need_text(const char *words, const char *text)
{
    const char *at = strstr(words, text);
    ck_assert_msg(at != NULL, "\"%s\" is not in: %s", text, words);
    return at + strlen(text);
}

static void check_lost(const char *name)
{
    const char *words = read_log(name);
    const long ms = strtol(need_text(words, "failed after "), NULL, 10);
    ck_assert_msg(ms < NAMED_MS, "%s", words);
    need_text(words, "nothing came from shard shard-0");
    need_text(words, "from here (10.81.0.2 data0 sealed) to it (10.81.0.1 data0 sealed)");
    need_text(words, "CAIRN_FABRIC_DEVICE");
}

static void check_good(void)
{
    uint64_t steps, version;
    int64_t longest_ms;
    const char *words = read_log("good");
    ck_assert_msg(sscanf(need_text(words, "trains\n"),
                         "%" SCNu64 " steps, version %" SCNu64 ", the longest %" SCNd64, &steps,
                         &version, &longest_ms) == 3,
                  "%s", words);
    ck_assert_uint_eq(version, steps); // nobody took one back
    ck_assert_msg(longest_ms < STEP_MAX_MS, "a step took %" PRId64 " ms", longest_ms);
}

TEST(workers_that_nothing_reaches_are_named_and_hold_nobody_up)
{
    static const char *const jobs[LOST] = { "lost-0", "lost-1", "lost-2", "lost-3" };
    pid_t lost[LOST];
    break_way();
    const pid_t good = start_worker(here, "good", WAIT_MS);
    await_text("good", "trains");
    for (int i = 0; i < LOST; i++) lost[i] = start_worker(there, jobs[i], WAIT_MS);
    for (int i = 0; i < LOST; i++) {
        ck_assert_int_eq(cluster_wait(lost[i], CLUSTER_WAIT_MS), 1);
        check_lost(jobs[i]);
    }
    stop_workers();
    ck_assert_int_eq(cluster_wait(good, CLUSTER_WAIT_MS), 0);
    check_good();
}

/* It is said on standard error when it begins, and first of all by the call that ends in time; and by the
 * coordinator, of both. */
TEST(a_way_that_is_lost_in_mid_training_is_named_by_who_waits)
{
    static const char way[] =
        "nothing has come from shard shard-0 for 5 s and more over the data "
        "path from here (10.81.0.2 data0 sealed) to it (10.81.0.1 data0 sealed)";
    const pid_t worker = start_worker(there, "cut", SHORT_MS);
    await_text("cut", "trains");
    break_way();
    const int64_t broken_ms = now_ms();
    await_text("cut", way);
    await(logged("coordinator.log", " hears nothing from shard-0 over the data path") > 0);
    says(0, " hears nothing from shard-0 over the data path: look for a firewall",
         "cluster status");
    ck_assert_int_lt(now_ms() - broken_ms, NAMED_MS);
    ck_assert_int_eq(cluster_wait(worker, CLUSTER_WAIT_MS), 1);
    const char *failed = need_text(read_log("cut"), "failed after ");
    ck_assert_msg(strtol(failed, NULL, 10) >= SHORT_MS, "%s", failed);
    need_text(failed, way);
}

/* State of a job that rests is to come to shard-1, on the other host, from shard-0. */
TEST(a_way_that_is_cut_between_two_shards_is_named_and_what_waits_goes_on_when_it_is_mended)
{
    struct cluster_command command;
    stop();
    start_cluster(2);
    const pid_t worker = start_worker(here, "rests", WAIT_MS);
    await_text("rests", "trains");
    stop_workers();
    ck_assert_int_eq(cluster_wait(worker, CLUSTER_WAIT_MS), 0);
    break_way();
    cluster_cli_begin(&cluster, &command, "reshard apply rests --add shard-1");
    await(logged("coordinator.log",
                 "shard-1 hears nothing from shard-0 over the data path, though both reach") > 0);
    says(0, "shard-1 hears nothing from shard-0", "job show rests");
    says(0, "data path cut", "job list");
    says(0, "path-cut", "cluster events");
    says(21, "shard-1: hears nothing from shard-0 over the data path", "cluster status --check");
    mend_way();
    await(logged("coordinator.log", "shard-1 hears shard-0 over the data path again") > 0);
    cluster_cli_end(&command, cluster_wait(command.pid, CLUSTER_WAIT_MS), &said);
    ck_assert_msg(said.status == 0, "%s", said.err);
    says(0, "path-whole", "cluster events");
}

TEST(a_way_that_leads_there_again_is_trained_over)
{
    const pid_t worker = start_worker(there, "again", CLUSTER_WAIT_MS);
    await_text("again", "trains");
    break_way();
    await_text("again", "nothing has come from shard shard-0");
    mend_way();
    await_text("again", "shard shard-0 is heard again");
    await(logged("coordinator.log", " hears shard-0 over the data path again") > 0);
    stop_workers();
    ck_assert_int_eq(cluster_wait(worker, CLUSTER_WAIT_MS), 0);
}

/* UCX 1.13 keeps some bytes of an endpoint that it gave up by itself (LeakSanitizer asks). */
const char *__lsan_default_suppressions(void) __attribute__((visibility("default")));
const char *__lsan_default_suppressions(void)
{
    return "leak:ucs_calloc"; // its stacks end there
}

SUITE(100, set_up, tear_down);

int main(int argc, char **argv)
{
    wait_ms = argc == 6 ? (int)strtol(argv[5], NULL, 10) : 0;
    if (argc == 6 && strcmp(argv[1], "worker") == 0) return work(argv[2], argv[3], argv[4]);
    return netns_suite_main(make_hosts, drop_hosts);
}
