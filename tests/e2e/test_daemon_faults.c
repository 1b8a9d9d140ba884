/* A daemon whose nth allocation, file call, descriptor or thread fails, once, anywhere from its start to its
 * end: while it starts, a trainer attaches, steps, takes a snapshot, and restores it. Either the daemon goes
 * on, or it ends by itself and says why; no signal ends it. Whatever failed meanwhile works when it is done
 * again, with a new process where one has ended.
 *
 * Some points are tried; CAIRN_TEST_LONG=1: each one. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/cluster.h"
#include "tests/support/now.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

enum {
    ELEMS = 5000,
    CALL_MS = 4000,
    POINT_MS = 30000,
    PATH_BYTES = 160,
    POINTS = 6,
    POINTS_LONG = 3000
};

enum member { COORDINATOR, SHARD, MEMBERS };
static const char *const member_names[MEMBERS] = { "coordinator", "shard" };

/* The second one is a pipe of libuv's, which ends the process that gets none. The daemon has just seen that
 * there are enough of them (start_handles of server/base/daemon.c). */
enum { FIRST_DESCRIPTOR = 3 };

/* What fails, for whom, and where some points of it are. */
static const struct kind {
    enum member member;
    const char *what, *of;
    unsigned first, stride;
    bool is_far; /* over TCP, with a token, and bulk data that is sealed; else as on one host */
} kinds[] = {
    { COORDINATOR, "memory", "program", 2, 107, false },
    { COORDINATOR, "files", "program", 1, 15, false },
    { COORDINATOR, "files", "libsqlite3", 1, 27, false },
    { COORDINATOR, "memory", "libsqlite3", 3, 195, false },
    { COORDINATOR, "memory", "libprotobuf-c", 2, 59, false },
    { COORDINATOR, "descriptors", "", FIRST_DESCRIPTOR, 23, false },
    { COORDINATOR, "threads", "program", 1, 11, false },
    { SHARD, "memory", "program", 3, 123, false },
    { SHARD, "files", "program", 1, 11, false },
    { SHARD, "memory", "libprotobuf-c", 2, 63, false },
    { SHARD, "descriptors", "", FIRST_DESCRIPTOR, 27, false },
    { SHARD, "threads", "program", 1, 11, false },
    { COORDINATOR, "memory", "program", 7, 131, true },
    { COORDINATOR, "descriptors", "", FIRST_DESCRIPTOR, 29, true },
    { SHARD, "memory", "program", 5, 139, true },
    { SHARD, "files", "program", 2, 13, true },
    { SHARD, "descriptors", "", FIRST_DESCRIPTOR, 31, true },
    { SHARD, "threads", "program", 3, 13, true },
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static char folder[CAIRN_SCRATCH_BYTES], place[PATH_BYTES], tcp[32], token[PATH_BYTES],
    ready[MEMBERS][PATH_BYTES], logs[MEMBERS][PATH_BYTES], said[PATH_BYTES];
static pid_t pids[MEMBERS];
static char point[128];      /* for whoever reads a failure */
static const char *endpoint; /* for members: the socket, or TCP */
static bool is_far;

static const char *log_of(enum member member)
{
    return cluster_text(logs[member]);
}

/* ---- the daemons ---- */

static pid_t spawn(enum member member, const char *const *argv, const char *fault)
{
    unlink(ready[member]);
    if (fault != NULL) setenv("LD_PRELOAD", CAIRN_NTH_FAIL, 1);
    if (fault != NULL) setenv("NTH_FAIL", fault, 1);
    const pid_t pid = cluster_spawn(argv, logs[member]);
    unsetenv("LD_PRELOAD");
    unsetenv("NTH_FAIL");
    return pid;
}

static pid_t spawn_member(enum member member, const char *fault)
{
    char listen[PATH_BYTES + 64], store[PATH_BYTES], snapshots[PATH_BYTES], state[PATH_BYTES];
    snprintf(store, sizeof store, "store.path=%s/store", folder);
    snprintf(snapshots, sizeof snapshots, "snapshots.path=%s/snapshots", folder);
    snprintf(state, sizeof state, "shard.state=%s/state", folder);
    if (member == COORDINATOR)
        snprintf(listen, sizeof listen, "network.listen=%s%s%s", place, is_far ? " " : "",
                 is_far ? tcp : "");
    else
        snprintf(listen, sizeof listen, "shard.coordinator=%s", endpoint);
    const char *const coordinator[] = { CAIRN_BIN_DIR "/cairn-coordinator",
                                        "--ready-file",
                                        ready[COORDINATOR],
                                        "--set",
                                        listen,
                                        "--set",
                                        store,
                                        "--set",
                                        snapshots,
                                        "--set",
                                        "lease.heartbeat=50ms",
                                        NULL };
    const char *const shard[] = { CAIRN_BIN_DIR "/cairn-shard",
                                  "--ready-file",
                                  ready[SHARD],
                                  "--set",
                                  listen,
                                  "--set",
                                  "shard.name=one",
                                  "--set",
                                  "memory.limit=256MiB",
                                  "--set",
                                  "compute.threads=1",
                                  "--set",
                                  state,
                                  "--set",
                                  is_far ? "fabric.kind=sealed" : "fabric.kind=auto",
                                  NULL };
    return spawn(member, member == COORDINATOR ? coordinator : shard, fault);
}

/* It has ended by itself: with a status of its own, and a word about it. */
static void ended_well(enum member member, int status)
{
    const char *log = log_of(member);
    ck_assert_msg(status < 128, "%s: %s ended by signal %d: %.1500s", point, member_names[member],
                  status - 128, log);
    ck_assert_msg(status == 0 || strstr(log, "level=error") != NULL ||
                      strstr(log, "cairn-") != NULL,
                  "%s: %s ended with %d and without a word: %.1500s", point, member_names[member],
                  status, log);
}

/* True: it has ended, and is reaped. */
static bool has_ended(enum member member, int wait_ms)
{
    const int status = pids[member] != 0 ? cluster_wait(pids[member], wait_ms) : 0;
    if (status < 0) return false;
    if (pids[member] != 0) ended_well(member, status);
    pids[member] = 0;
    return true;
}

static bool is_ready(enum member member)
{
    const int64_t deadline_ms = now_ms() + CALL_MS;
    while (access(ready[member], R_OK) != 0) {
        if (has_ended(member, 2)) return false;
        if (now_ms() > deadline_ms) return false;
    }
    return true;
}

static bool command(const char *const *argv)
{
    const pid_t pid = cluster_spawn(argv, said);
    const int status = cluster_wait(pid, POINT_MS);
    ck_assert_msg(status >= 0, "%s: %s hangs", point, argv[3]);
    return status == 0;
}

/* The token of members, which an admin at the socket makes. */
static bool has_token(void)
{
    const char *const argv[] = { CAIRN_BIN_DIR "/cairn",
                                 "--endpoint",
                                 place,
                                 "key",
                                 "add",
                                 "test",
                                 "--role",
                                 "worker,reader,shard,admin,monitor",
                                 "--to",
                                 token,
                                 NULL };
    return !is_far || access(token, R_OK) == 0 || command(argv);
}

/* Those that do not run are started; one that does not get ready is stopped, and left for the next time. */
static bool all_ready(void)
{
    for (enum member m = 0; m < MEMBERS; m++) {
        if (has_ended(m, 0)) pids[m] = spawn_member(m, NULL);
        if (is_ready(m) && has_token()) continue;
        if (pids[m] != 0) kill(pids[m], SIGTERM);
        if (pids[m] != 0)
            ck_assert_msg(has_ended(m, CALL_MS), "%s: %s neither gets ready nor ends: %.1500s",
                          point, member_names[m], log_of(m));
        return false;
    }
    return true;
}

/* ---- a life with them ---- */

static cairn_status train(cairn *session, const char *name)
{
    static float gradient[ELEMS];
    char id[64];
    uint64_t step;
    cairn_job *job;
    const struct tiny_job *tiny = TINY(ELEMS);
    cairn_status status = cairn_job_open(session, name, &tiny->spec, CAIRN_WORKER, CALL_MS, &job);
    if (status == CAIRN_OK) status = cairn_init_done(job, NULL, CALL_MS);
    for (int i = 0; i < 2 && status == CAIRN_OK; i++)
        status = trainer_try_step(job, "w", gradient, &step);
    if (status == CAIRN_OK) status = cairn_snapshot(job, CAIRN_SNAPSHOT_WAIT, CALL_MS, id);
    return status;
}

/* Whether all of it worked. */
static bool live(int number)
{
    char name[32];
    snprintf(name, sizeof name, "life-%d", number);
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = endpoint };
    const char *const restore[] = { CAIRN_BIN_DIR "/cairn",
                                    "--endpoint",
                                    endpoint,
                                    "snapshot",
                                    "restore",
                                    name,
                                    "latest",
                                    "--yes",
                                    NULL };
    const char *const list[] = {
        CAIRN_BIN_DIR "/cairn", "--endpoint", endpoint, "snapshot", "list", NULL
    };
    cairn *session;
    cairn_status status = cairn_open(&opts, &session);
    if (status != CAIRN_OK) return false;
    status = train(session, name);
    cairn_close(session);
    return status == CAIRN_OK && command(restore) && command(list);
}

/* ---- a point ---- */

static void clear(void)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/store", folder);
    cairn_scratch_remove(path);
    snprintf(path, sizeof path, "%s/snapshots", folder);
    cairn_scratch_remove(path);
    snprintf(path, sizeof path, "%s/state", folder);
    cairn_scratch_remove(path);
    for (enum member m = 0; m < MEMBERS; m++) unlink(logs[m]);
    unlink(said);
    unlink(token);
}

static void stop_all(void)
{
    for (enum member m = MEMBERS; m-- > 0;) {
        if (pids[m] != 0) kill(pids[m], SIGTERM);
        ck_assert_msg(has_ended(m, POINT_MS), "%s: %s does not end: %.1500s", point,
                      member_names[m], log_of(m));
    }
}

/* Whether there is such a point. */
static bool meets(const struct kind *k, unsigned number)
{
    char fault[64];
    bool lives = false;
    snprintf(point, sizeof point, "%s, %s of \"%s\"%s, %u", member_names[k->member], k->what, k->of,
             k->is_far ? " over TCP" : "", number);
    snprintf(fault, sizeof fault, "%s %s %u", k->what, k->of[0] != '\0' ? k->of : "anybody",
             number);
    is_far = k->is_far;
    endpoint = is_far ? tcp : place;
    if (is_far) setenv("CAIRN_FABRIC", "sealed", 1);
    clear();
    for (enum member m = 0; m < MEMBERS; m++) {
        pids[m] = spawn_member(m, m == k->member ? fault : NULL);
        if (m == COORDINATOR && is_ready(m)) (void)has_token();
    }
    // What met a fault of the storage looks again after some time.
    const int64_t deadline_ms = now_ms() + POINT_MS;
    for (int i = 0; !lives && now_ms() < deadline_ms; i++) {
        lives = all_ready() && live(i);
        if (!lives) poll(NULL, 0, 50);
    }
    ck_assert_msg(lives, "%s: nothing works any more: %s; %.1000s; %.1000s", point, cairn_error(),
                  log_of(COORDINATOR), log_of(SHARD));
    stop_all();
    return strstr(log_of(k->member), "nth: failed") != NULL;
}

static void set_up(void)
{
    cairn_scratch_make_quick(folder);
    snprintf(place, sizeof place, "%s/socket", folder);
    snprintf(tcp, sizeof tcp, "127.0.0.1:%u", (unsigned)cairn_scratch_port());
    snprintf(token, sizeof token, "%s/token", folder);
    setenv("CAIRN_TOKEN_FILE", token, 1);
    snprintf(said, sizeof said, "%s/said", folder);
    for (enum member m = 0; m < MEMBERS; m++) {
        snprintf(ready[m], sizeof ready[m], "%s/%s.ready", folder, member_names[m]);
        snprintf(logs[m], sizeof logs[m], "%s/%s.log", folder, member_names[m]);
    }
}

static void tear_down(void)
{
    cairn_scratch_remove(folder);
}

/* [KINDS], of all processes of this program: the first number behind the last one. */
static unsigned *ends;

static bool is_long(void)
{
    return getenv("CAIRN_TEST_LONG") != NULL;
}

static int points(void)
{
    return is_long() ? POINTS_LONG : POINTS;
}

TEST_EACH(a_daemon_whose_nth_call_fails_goes_on_or_says_why_it_ends, 0, KINDS *points())
{
    const int kind = _i / points(), at = _i % points();
    const struct kind *k = &kinds[kind];
    const unsigned from = strcmp(k->what, "descriptors") == 0 ? FIRST_DESCRIPTOR : 1;
    const unsigned number = is_long() ? from + (unsigned)at : k->first + (unsigned)at * k->stride;
    if (ends[kind] != 0 && number >= ends[kind]) return;
    if (!meets(k, number)) ends[kind] = number;
}

SUITE(120, set_up, tear_down);

int main(void)
{
    ends = mmap(NULL, sizeof *ends * KINDS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                0);
    if (CAIRN_NTH_FAIL[0] != '\0' && ends != MAP_FAILED) return suite_main();
    printf("skip: a sanitizer has the allocator\n");
    return SUITE_SKIPPED;
}
