/* A daemon whose nth allocation, file call, descriptor or thread fails, once, anywhere from its start to its
 * end: while it starts, a trainer attaches, steps, takes a snapshot, and restores it. Either the daemon goes
 * on, or it ends by itself and says why; no signal ends it. Whatever failed meanwhile works when it is done
 * again, with a new process where one has ended. After that, and without their jobs, daemons that did not end
 * hold no more than those in which nothing failed (tests/support/holding.h).
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

#include "proto/fabric/mapped.h"
#include "proto/fabric/remote.h"
#include "tests/support/cluster.h"
#include "tests/support/holding.h"
#include "tests/support/now.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

enum {
    ELEMS = 5000,
    CALL_MS = 4000,
    POINT_MS = 30000,
    PATH_BYTES = 160,
    TAIL_BYTES = 1500,
    POINTS_LONG = 2500,
    POINTS_CIPHERS =
        9000,      /* of a shard's memory with sealed: libcrypto asks for much at its first use */
    NO_NUMBER = 0, /* nothing fails */
    USUAL_LIVES = 5
};

enum member { COORDINATOR, SHARD, MEMBERS };
static const char *const member_names[MEMBERS] = { "coordinator", "shard" };

/* The second one is a pipe of libuv's, which ends the process that gets none. The daemon has just seen that
 * there are enough of them (start_handles of server/base/daemon.c). */
enum { FIRST_DESCRIPTOR = 3 };

/* What fails, for whom, and which of its points are tried: so many, one in every so many from the first. */
static const struct kind {
    enum member member;
    const char *what, *of;
    unsigned first, stride, tries; /* tries 0: only with CAIRN_TEST_LONG */
    bool is_far; /* over TCP, with a token, and bulk data that is sealed; else as on one host */
} kinds[] = {
    { COORDINATOR, "memory", "program", 20, 260, 5, false },
    { COORDINATOR, "files", "program", 1, 23, 4, false },
    { COORDINATOR, "files", "libsqlite3", 1, 27, 3, false },
    { COORDINATOR, "memory", "libsqlite3", 3, 240, 4, false },
    { COORDINATOR, "memory", "libprotobuf-c", 2, 43, 4, false },
    { COORDINATOR, "descriptors", "", FIRST_DESCRIPTOR, 38, 4, false },
    { COORDINATOR, "threads", "program", 1, 11, 3, false },
    { SHARD, "memory", "program", 3, 210, 4, false },
    { SHARD, "files", "program", 6, 24, 4, false },
    { SHARD, "memory", "libprotobuf-c", 2, 31, 3, false },
    { SHARD, "descriptors", "", FIRST_DESCRIPTOR, 27, 3, false },
    { SHARD, "threads", "program", 1, 12, 3, false },
    { COORDINATOR, "memory", "program", 7, 360, 4, true },
    { COORDINATOR, "descriptors", "", FIRST_DESCRIPTOR, 50, 3, true },
    { SHARD, "memory", "program", 250, 2222, 4, true },
    { SHARD, "files", "program", 2, 28, 3, true },
    { SHARD, "descriptors", "", FIRST_DESCRIPTOR, 31, 3, true },
    { SHARD, "threads", "program", 3, 13, 2, true },
    { COORDINATOR, "memory", "libc.so", 7, 20, 3, false },
    { SHARD, "memory", "libc.so", 12, 40, 2, false },
    { COORDINATOR, "memory", "libuv", 1, 1, 0, false },
    { SHARD, "memory", "libuv", 1, 1, 0, false },
    { COORDINATOR, "memory", "libxxhash", 1, 1, 0, false },
    { SHARD, "memory", "libxxhash", 1, 1, 0, false },
    { COORDINATOR, "memory", "libinih", 1, 1, 0, false },
    { COORDINATOR, "sockets", "libuv", 3, 40, 2, false },
    { SHARD, "sockets", "libuv", 2, 25, 2, false },
    { COORDINATOR, "sockets", "program", 1, 1, 1, false },
    { SHARD, "sockets", "program", 14, 13, 1, false },
    { COORDINATOR, "sockets", "libuv", 9, 70, 2, true },
    { SHARD, "sockets", "libuv", 5, 30, 2, true },
    { COORDINATOR, "sockets", "program", 2, 5, 1, true },
    { SHARD, "sockets", "program", 4, 24, 3, true },
    { SHARD, "polls", "program", 4, 1, 2, false },
    { SHARD, "polls", "program", 3, 8, 2, true },
    { COORDINATOR, "polls", "program", 1, 1, 0, true },
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static char folder[CAIRN_SCRATCH_BYTES], place[PATH_BYTES], tcp[32], token[PATH_BYTES],
    ready[MEMBERS][PATH_BYTES], logs[MEMBERS][PATH_BYTES], counts[MEMBERS][PATH_BYTES],
    said[PATH_BYTES];
static pid_t pids[MEMBERS];
static char point[128];      /* for whoever reads a failure */
static const char *endpoint; /* for members: the socket, or TCP */
static bool is_far, is_learning;

static const char *log_of(enum member member)
{
    return cluster_text(logs[member]);
}

/* The last of it. */
static const char *tail_of(enum member member)
{
    const char *log = log_of(member);
    const size_t length = strlen(log);
    return length > TAIL_BYTES ? log + length - TAIL_BYTES : log;
}

/* ---- the daemons ---- */

static pid_t spawn(enum member member, const char *const *argv, const char *fault)
{
    unlink(ready[member]);
    holding_prepare(counts[member]);
    setenv("LD_PRELOAD", CAIRN_NTH_FAIL, 1);
    setenv("NTH_COUNTS", counts[member], 1);
    if (fault != NULL) setenv("NTH_FAIL", fault, 1);
    const pid_t pid = cluster_spawn(argv, logs[member]);
    unsetenv("LD_PRELOAD");
    unsetenv("NTH_COUNTS");
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
                                        "--set",
                                        is_learning ? "lease.timeout=1s" : "lease.timeout=5s",
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
    const bool says = strstr(log, "level=error") != NULL || strstr(log, "cairn-") != NULL;
    ck_assert_msg(status < 128, "%s: %s ended by signal %d: %s", point, member_names[member],
                  status - 128, tail_of(member));
    ck_assert_msg(status == 0 || says, "%s: %s ended with %d and without a word: %s", point,
                  member_names[member], status, tail_of(member));
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

/* The token of members, which an admin at the socket makes; if the answer was lost, another in its place. */
static bool has_token(void)
{
    const char *const add[] = { CAIRN_BIN_DIR "/cairn",
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
    const char *const rotate[] = {
        CAIRN_BIN_DIR "/cairn", "--endpoint", place, "key", "rotate", "test", "--to", token, NULL
    };
    return !is_far || access(token, R_OK) == 0 || command(add) || command(rotate);
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

/* Of all processes of this program. */
static struct tally {
    unsigned end; /* the first number behind the last one */
    unsigned points;
    unsigned held[MEMBERS]; /* after so many a member of the same process held what is usual */
    unsigned lacking; /* or what it held after a life more, since it had begun in another way */
} * tallies;

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

static void start_all(enum member faulty, const char *fault)
{
    clear();
    for (enum member m = 0; m < MEMBERS; m++) {
        pids[m] = spawn_member(m, m == faulty ? fault : NULL);
        if (m == COORDINATOR && is_ready(m)) (void)has_token();
    }
}

/* ---- what they hold ---- */

/* Of all processes of this program; by kind of network, and member. */
static struct usual {
    bool is_known;
    struct holding of[MEMBERS];
} * usuals;

/* The jobs of so many lives, of which some may not have come to be. */
static bool drops(int lives)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = endpoint };
    cairn *session;
    cairn_status status = cairn_open(&opts, &session);
    if (status != CAIRN_OK) return false;
    for (int i = 0; i < lives && status == CAIRN_OK; i++) {
        char name[32];
        snprintf(name, sizeof name, "life-%d", i);
        status = cairn_job_drop(session, name, CAIRN_DROP_FORCE, CALL_MS);
        if (status == CAIRN_ERR_NOT_FOUND) status = CAIRN_OK;
    }
    cairn_close(session);
    return status == CAIRN_OK;
}

/* The shard is away, with its jobs, and comes back: the coordinator keeps what it then says of them. */
static void part_for_a_while(void)
{
    const char *const away = "shard one is away", *up = "shard one is up";
    for (int i = 0; i < 2; i++) {
        const int64_t deadline_ms = now_ms() + CALL_MS;
        if (i == 0) cluster_freeze(pids[SHARD]);
        const char *left = NULL;
        while (left == NULL && now_ms() < deadline_ms) {
            poll(NULL, 0, 5);
            left = strstr(log_of(COORDINATOR), away);
            if (left != NULL && i == 1) left = strstr(left, up);
        }
        kill(pids[SHARD], SIGCONT);
        ck_assert_msg(left != NULL, "%s: %.1500s", point, log_of(COORDINATOR));
    }
}

/* Without a fault, several lives hold no more than this afterwards, one after the other. What grows with each
 * of them is kept by intent: the newest events of a coordinator. */
static void learn_usual(struct usual *usual)
{
    static struct holding now;
    for (int i = 0, tries = 0; i < USUAL_LIVES; i++) {
        while (!all_ready() || !live(i + tries)) ck_assert_msg(tries++ < 9, "%s", cairn_error());
        if (i == 1) part_for_a_while();
        while (!drops(i + tries + 1)) ck_assert_msg(tries++ < 9, "%s", cairn_error());
        for (enum member m = 0; m < MEMBERS; m++) {
            holding_read(pids[m], counts[m], &now);
            holding_widen(&usual->of[m], &now, i > 2);
        }
    }
    usual->is_known = true;
}

/* Kept to be used again, as many as were in use at the same time. */
static const struct holding_pool pools[] = {
    { "cairn-", sizeof(struct fabric_op) },
    { "cairn-", sizeof(struct remote_item) },
    { "cairn-", sizeof(struct mapped_frame) },
    { "cairn-", sizeof(struct remote_buffer) },
    { "libsqlite3", 4096 + 272 }, // its pages
    { "ld-linux", 0 },            // what belongs to a stack of a thread that has ended
    { NULL, 0 },
};

/* True: what failed did so before the daemon was ready, and perhaps it does without something ever since. */
static bool may_lack(enum member member)
{
    const char *log = log_of(member), *failed = strstr(log, "nth: failed"),
               *is_up = strstr(log, "msg=ready");
    return failed != NULL && (is_up == NULL || failed < is_up);
}

static char beyond[4096];

/* Within that time the member holds no more than this. */
static bool holds(enum member m, const struct holding *usual, int wait_ms)
{
    static struct holding now;
    const int64_t deadline_ms = now_ms() + wait_ms;
    for (;;) {
        holding_read(pids[m], counts[m], &now);
        holding_beyond(usual, &now, pools, beyond, sizeof beyond);
        if (beyond[0] == '\0' || now_ms() > deadline_ms) return beyond[0] == '\0';
        poll(NULL, 0, 5);
    }
}

/* No life holds more than the one before. */
static bool holds_no_more(enum member m, struct holding *usual, int lives)
{
    static struct holding now;
    memset(usual, 0, sizeof *usual);
    for (int i = 0; i < USUAL_LIVES; i++) {
        holding_read(pids[m], counts[m], &now);
        holding_widen(usual, &now, i > 0);
        ck_assert_msg(live(lives + i) && drops(lives + i + 1), "%s: %s", point, cairn_error());
    }
    return holds(m, usual, CALL_MS);
}

/* Those that were there from the beginning hold what they held before. */
static void hold_as_usual(const struct kind *k, const pid_t began[MEMBERS], int lives)
{
    static struct holding own;
    bool is_dropped = false;
    for (int i = 0; i < 3 && !is_dropped; i++) is_dropped = all_ready() && drops(lives);
    ck_assert_msg(is_dropped, "%s: the jobs are not dropped: %s", point, cairn_error());
    for (enum member m = 0; m < MEMBERS; m++) {
        if (pids[m] != began[m]) continue;
        tallies[k - kinds].held[m]++;
        const bool lacks = may_lack(k->member);
        if (holds(m, &usuals[is_far].of[m], lacks ? CALL_MS / 16 : CALL_MS)) continue;
        if (lacks) tallies[k - kinds].lacking++;
        ck_assert_msg(lacks && holds_no_more(m, &own, lives), "%s: after %d lives %s holds %s%s",
                      point, lives, member_names[m], beyond, tail_of(m));
    }
}

/* Whether there is such a point. */
static bool meets(const struct kind *k, unsigned number)
{
    char fault[64];
    pid_t began[MEMBERS];
    int lives = 0;
    bool lived = false;
    snprintf(point, sizeof point, "%s, %s of \"%s\"%s, %u", member_names[k->member], k->what, k->of,
             k->is_far ? " over TCP" : "", number);
    snprintf(fault, sizeof fault, "%s %s %u", k->what, k->of[0] != '\0' ? k->of : "anybody",
             number);
    is_far = k->is_far;
    endpoint = is_far ? tcp : place;
    if (is_far) setenv("CAIRN_FABRIC", "sealed", 1);
    is_learning = number == NO_NUMBER;
    start_all(k->member, is_learning ? NULL : fault);
    if (is_learning) {
        learn_usual(&usuals[k->is_far]);
        stop_all();
        return false;
    }
    memcpy(began, pids, sizeof began);
    // What met a fault of the storage looks again after some time.
    const int64_t deadline_ms = now_ms() + POINT_MS;
    while (!lived && now_ms() < deadline_ms) {
        lived = all_ready() && live(lives);
        lives++;
        if (!lived) poll(NULL, 0, 50);
    }
    ck_assert_msg(lived, "%s: nothing works any more: %s; %s", point, cairn_error(),
                  tail_of(k->member));
    hold_as_usual(k, began, lives);
    stop_all();
    const bool has_failed = strstr(log_of(k->member), "nth: failed") != NULL;
    tallies[k - kinds].points += has_failed;
    return has_failed;
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
        snprintf(counts[m], sizeof counts[m], "%s/%s.counts", folder, member_names[m]);
    }
}

static void tear_down(void)
{
    cairn_scratch_remove(folder);
}

static bool is_long(void)
{
    return getenv("CAIRN_TEST_LONG") != NULL;
}

static int tries_of(int kind)
{
    const struct kind *k = &kinds[kind];
    const bool has_ciphers = k->is_far && k->member == SHARD && strcmp(k->what, "memory") == 0 &&
                             strcmp(k->of, "program") == 0;
    if (is_long()) return has_ciphers ? POINTS_CIPHERS : POINTS_LONG;
    return (int)k->tries;
}

/* CAIRN_TEST_POINTS="FIRST END": of all points, only these, so that several programs share the work. */
static int point_at(bool is_end)
{
    int at[2] = { 0, 0 };
    const char *text = getenv("CAIRN_TEST_POINTS");
    for (int i = 0; i < KINDS; i++) at[1] += tries_of(i);
    if (text != NULL && sscanf(text, "%d %d", &at[0], &at[1]) != 2) abort();
    return at[is_end];
}

TEST_EACH(a_daemon_whose_nth_call_fails_goes_on_or_says_why_it_ends, point_at(false),
          point_at(true))
{
    int kind = 0, at = _i;
    for (; at >= tries_of(kind); kind++) at -= tries_of(kind);
    const struct kind *k = &kinds[kind];
    struct tally *tally = &tallies[kind];
    const unsigned from = strcmp(k->what, "descriptors") == 0 ? FIRST_DESCRIPTOR : 1;
    const unsigned number = is_long() ? from + (unsigned)at : k->first + (unsigned)at * k->stride;
    if (tally->end != 0 && number >= tally->end) return;
    if (!usuals[k->is_far].is_known) meets(k, NO_NUMBER);
    if (!meets(k, number)) tally->end = number;
}

SUITE(120, set_up, tear_down);

static void *share(size_t bytes)
{
    void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) abort();
    return made;
}

int main(void)
{
    if (CAIRN_NTH_FAIL[0] == '\0') {
        printf("skip: a sanitizer has the allocator\n");
        return SUITE_SKIPPED;
    }
    usuals = share(2 * sizeof *usuals);
    tallies = share(KINDS * sizeof *tallies);
    const int status = suite_main();
    for (int i = 0; is_long() && i < KINDS; i++)
        if (tallies[i].points > 0)
            printf("%s, %s of \"%s\"%s: %u points, coordinator and shard held as usual after %u, "
                   "%u (%u "
                   "compared with themselves)\n",
                   member_names[kinds[i].member], kinds[i].what, kinds[i].of,
                   kinds[i].is_far ? " over TCP" : "", tallies[i].points,
                   tallies[i].held[COORDINATOR], tallies[i].held[SHARD], tallies[i].lacking);
    return status;
}
