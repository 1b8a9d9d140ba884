#include "tests/e2e/elastic_storm.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/e2e/scene.h"
#include "tests/support/netns.h"

enum {
    LEASE_MS = 600,
    SHORT_MS = 40,
    LONG_MS = LEASE_MS + 200,
    TURN_MS = 5,
    PAUSE_MS = 60, /* at most, between two faults of which the second does not wait for a step */
    STEPS_AFTER = 10,
    STEP_MS = 50, /* at most, in the mean */
    HANG_MS = CLUSTER_WAIT_MS
};

static const char *const tier_names[] = { "volatile", "process", "peer", "log" };

struct storm {
    const struct storm_plan *plan;
    struct elastic_shared *shared;
    FILE *schedule;
    uint64_t seed;  /* of the fault */
    unsigned fault; /* its number */
    unsigned done[STORM_KINDS];
    pid_t workers[STORM_WORKERS];    /* 0: there is none */
    bool owns[CLUSTER_SHARDS_MAX];   /* a part of the job */
    int standby[CLUSTER_SHARDS_MAX]; /* of the shard; -1: none */
    int taken[CLUSTER_SHARDS_MAX];   /* how often that one had taken its place before */
    int shards;                      /* that own a part */
    struct {
        struct cluster_command command;
        bool is_under_way, is_asked, adds;
        int shard;
    } change;
};

static uint64_t below(struct storm *s, uint64_t limit)
{
    return cairn_scratch_random(&s->seed) % limit;
}

__attribute__((format(printf, 2, 3))) static void say(struct storm *s, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(s->schedule, "%u: ", s->fault);
    vfprintf(s->schedule, format, list);
    fprintf(s->schedule, "\n");
    fflush(s->schedule);
    va_end(list);
}

static void pause_ms(int ms)
{
    poll(NULL, 0, ms);
}

/* ---- hosts ---- */

/* The coordinator's, those of the first shards, those of the workers; and the switch. */
enum { HOME = 0, FIRST_SHARD = 1, SHARD_HOSTS = 5, FIRST_WORKER = 6 };
static char hosts[STORM_HOSTS][NETNS_NAME_BYTES], hub[NETNS_NAME_BYTES];
static const char *shard_hosts[SHARD_HOSTS];

bool storm_hosts_make(void)
{
    bool ok = netns_make(hub, 'x') && netns_ip("-n %s link add hub type bridge", hub) &&
              netns_ip("-n %s link set hub up", hub);
    for (int i = 0; i < STORM_HOSTS && ok; i++)
        ok = netns_make(hosts[i], (char)('a' + i)) &&
             netns_ip("-n %s link add eth0 type veth peer name h%d netns %s", hosts[i], i, hub) &&
             netns_ip("-n %s address add 10.84.0.%d/24 dev eth0", hosts[i], i + 1) &&
             netns_ip("-n %s link set eth0 up", hosts[i]) &&
             netns_ip("-n %s link set h%d master hub", hub, i) &&
             netns_ip("-n %s link set h%d up", hub, i) && netns_is_up(hosts[i], "eth0");
    for (int i = 0; i < SHARD_HOSTS; i++) shard_hosts[i] = hosts[FIRST_SHARD + i];
    return ok;
}

void storm_hosts_drop(void)
{
    for (int i = 0; i < STORM_HOSTS; i++)
        if (hosts[i][0] != '\0') (void)netns_drop(hosts[i]);
    if (hub[0] != '\0') (void)netns_drop(hub);
}

static bool has_hosts(void)
{
    return hub[0] != '\0';
}

/* The switch takes nothing from that host, and has nothing for it; the host's own device is up. */
static void cut_host(int host)
{
    ck_assert(netns_ip("-n %s link set h%d nomaster", hub, host));
}

static void mend_host(int host)
{
    ck_assert(netns_ip("-n %s link set h%d master hub", hub, host));
}

/* ---- workers ---- */

static void start_worker(struct storm *s, int rank)
{
    const char *host = has_hosts() ? hosts[FIRST_WORKER + rank % 2] : NULL;
    s->workers[rank] = elastic_start_on(host, cluster.address, s->plan->model, (uint32_t)rank,
                                        s->shared);
}

static void workers_are_well(const struct storm *s)
{
    for (int i = 0; i < STORM_WORKERS; i++)
        if (s->workers[i] != 0) ck_assert_int_eq(cluster_wait(s->workers[i], 0), -1);
}

/* Until the job is at a step further; a hang ends the test. */
static void await_step(struct storm *s)
{
    const uint64_t rounds = atomic_load(&s->shared->rounds);
    const int64_t end_ms = now_ms() + HANG_MS;
    while (atomic_load(&s->shared->rounds) == rounds) {
        workers_are_well(s);
        if (now_ms() > end_ms) {
            ask("job show %s", s->plan->model->name);
            ck_abort_msg("%s, fault %u: training does not go on: %.3000s%.1000s", cluster.folder,
                         s->fault, said.out, said.err);
        }
        pause_ms(TURN_MS);
    }
}

/* ---- daemons ---- */

static bool is_kept(const struct storm *s)
{
    return s->plan->tier == STORM_PROCESS;
}

/* A shard's process; 0: its keeper is about to start one. */
static pid_t process_of(const struct storm *s, int shard)
{
    return is_kept(s) ? cluster_shard_child(&cluster, shard) : cluster.shards[shard];
}

/* The n-th of those that run, or of those of them that own a part; -1: there are not so many. */
static int nth_shard(const struct storm *s, uint64_t n, bool owning)
{
    for (int i = 0; i < cluster.shard_count; i++)
        if (cluster.shards[i] != 0 && (!owning || s->owns[i]) && n-- == 0) return i;
    return -1;
}

static int any_shard(struct storm *s, bool owning)
{
    uint64_t count = 0;
    while (nth_shard(s, count, owning) >= 0) count++;
    return nth_shard(s, below(s, count), owning);
}

static bool is_standby(int shard)
{
    return cluster.standby_of[shard][0] != '\0';
}

static void begin_shard(int shard)
{
    cluster_add_shard(&cluster, shard);
}

/* ---- the job's shards change ---- */

static void ask_for_change(struct storm *s)
{
    cluster_cli_begin(&cluster, &s->change.command, "reshard apply %s %s shard-%d -q",
                      s->plan->model->name, s->change.adds ? "--add" : "--drain", s->change.shard);
    s->change.is_asked = true;
}

/* True if the job is on as many shards as it is to be, and none of it is on its way. */
static bool is_changed(struct storm *s, bool *stands_still_out)
{
    char shards[24];
    ask("reshard status %s -o json", s->plan->model->name);
    *stands_still_out = said.status == 0 && strstr(said.out, "\"moving\"") == NULL;
    if (!*stands_still_out) return false;
    // a restore takes whatever shards are here, so the change may have been in vain
    if (s->plan->tier == STORM_VOLATILE && !s->plan->is_quiet) return true;
    snprintf(shards, sizeof shards, "\"shards\": %d,", s->shards);
    ask("job show %s -o json", s->plan->model->name);
    return strstr(said.out, shards) != NULL;
}

/* A run that a death took back is asked for again. */
static void finish_change(struct storm *s)
{
    const int64_t end_ms = now_ms() + 2 * HANG_MS;
    bool stands_still;
    while (s->change.is_under_way) {
        ck_assert_msg(now_ms() < end_ms, "%s, fault %u: shard-%d does not %s: %.2000s%.1000s",
                      cluster.folder, s->fault, s->change.shard, s->change.adds ? "come" : "go",
                      said.out, said.err);
        workers_are_well(s);
        if (s->change.is_asked) {
            const int status = cluster_wait(s->change.command.pid, TURN_MS);
            if (status == -1) continue;
            cluster_cli_end(&s->change.command, status, &said);
            s->change.is_asked = false;
        }
        s->change.is_under_way = !is_changed(s, &stands_still);
        if (s->change.is_under_way && stands_still)
            ask_for_change(s);
        else if (s->change.is_under_way)
            pause_ms(TURN_MS);
    }
}

static bool begin_change(struct storm *s)
{
    finish_change(s);
    const bool may_add = s->shards<s->plan->shards_max, may_drain = s->shards> s->plan->shards;
    s->change.adds = may_add && (!may_drain || below(s, 2) == 0);
    int shard = 0;
    if (s->change.adds) {
        while (s->owns[shard] || is_standby(shard)) shard++;
        if (cluster.shards[shard] == 0) begin_shard(shard);
    } else {
        // one that has a standby stays
        do shard = any_shard(s, true);
        while (s->standby[shard] >= 0);
    }
    say(s, "shard-%d %s", shard, s->change.adds ? "comes" : "goes");
    s->change.shard = shard;
    s->change.is_under_way = true;
    s->owns[shard] = s->change.adds;
    s->shards += s->change.adds ? 1 : -1;
    ask_for_change(s);
    return true;
}

/* ---- deaths ---- */

static bool change_worker(struct storm *s)
{
    const int rank = (int)below(s, STORM_WORKERS);
    int others = 0;
    for (int i = 0; i < STORM_WORKERS; i++) others += i != rank && s->workers[i] != 0;
    if (s->workers[rank] != 0 && others == 0) return false;
    say(s, "worker %d %s", rank, s->workers[rank] == 0 ? "comes" : "is killed");
    if (s->workers[rank] == 0) {
        start_worker(s, rank);
    } else {
        cluster_kill(s->workers[rank]);
        s->workers[rank] = 0;
    }
    return true;
}

static int count_taken(const struct storm *s, int owner)
{
    char words[96];
    snprintf(words, sizeof words,
             "shard shard-%d was lost, and its standby shard-%d takes its place", owner,
             s->standby[owner]);
    return logged("coordinator.log", words);
}

static bool is_taken(const struct storm *s, int owner)
{
    return count_taken(s, owner) > s->taken[owner];
}

static void add_standby(struct storm *s, int shard, int owner)
{
    s->standby[owner] = shard;
    s->taken[owner] = count_taken(s, owner);
    cluster_add_standby(&cluster, shard, owner);
}

/* The next process of an owner that lost its place is the standby of that one which has it now. */
static void exchange_owner(struct storm *s, int owner)
{
    const int next = s->standby[owner];
    if (cluster.shards[owner] != 0) cluster_kill_shard(&cluster, owner);
    s->owns[owner] = false;
    s->owns[next] = true;
    s->standby[owner] = -1;
    cluster.standby_of[next][0] = '\0';
    add_standby(s, owner, next);
}

/* Returns the owner, or its standby if that has taken the place, because this machine kept the owner silent
 * for longer than its lease. */
static int await_mirrored(struct storm *s, int owner)
{
    char words[64], is_owner[32];
    snprintf(words, sizeof words, "shard-%d is mirrored by shard-%d", owner, s->standby[owner]);
    const int64_t end_ms = now_ms() + HANG_MS;
    while (ask("job show %s", s->plan->model->name), strstr(said.out, words) == NULL) {
        workers_are_well(s);
        ck_assert_msg(now_ms() < end_ms, "%s, fault %u: never: %s: %.3000s", cluster.folder,
                      s->fault, words, said.out);
        pause_ms(TURN_MS);
        if (!is_taken(s, owner)) continue;
        snprintf(is_owner, sizeof is_owner, "shard-%d is ", owner);
        if (strstr(said.out, is_owner) != NULL) { // it has taken its place back
            s->taken[owner] = count_taken(s, owner);
            continue;
        }
        const int next = s->standby[owner];
        exchange_owner(s, owner);
        return await_mirrored(s, next);
    }
    return owner;
}

static bool end_standby(struct storm *s, int shard, int wait_ms)
{
    const int owner = atoi(cluster.standby_of[shard] + strlen("shard-"));
    say(s, "shard-%d, a standby, is killed", shard);
    cluster_kill_shard(&cluster, shard);
    pause_ms(wait_ms);
    add_standby(s, shard, owner);
    return true;
}

enum { KILLED, STOPPED, CUT_OFF };

/* An owner dies, or is silent for too long, only while its standby is in step: the tier promises no more. */
static bool end_owner(struct storm *s, int shard, int how)
{
    static const char *const names[] = { "killed", "stopped", "cut off" };
    const int wait_ms = (int)below(s, SHORT_MS);
    say(s, "shard-%d, an owner, is %s", shard, names[how]);
    finish_change(s);
    shard = await_mirrored(s, shard);
    pause_ms(wait_ms);
    if (how == KILLED) cluster_kill_shard(&cluster, shard);
    if (how == STOPPED) cluster_freeze(cluster.shards[shard]);
    if (how == CUT_OFF) cut_host(FIRST_SHARD + shard);
    await(is_taken(s, shard));
    if (how == STOPPED) ck_assert_int_eq(kill(cluster.shards[shard], SIGCONT), 0);
    if (how == CUT_OFF) mend_host(FIRST_SHARD + shard);
    pause_ms(wait_ms); // it comes back, and finds that it has no part any more
    exchange_owner(s, shard);
    return true;
}

static bool end_peer(struct storm *s)
{
    const int shard = any_shard(s, false);
    if (is_standby(shard)) return end_standby(s, shard, (int)below(s, SHORT_MS));
    return s->owns[shard] && s->standby[shard] >= 0 && end_owner(s, shard, KILLED);
}

/* A loss of power now loses nothing: each shard has its log. */
static void await_logged(struct storm *s)
{
    const int64_t end_ms = now_ms() + HANG_MS;
    // behind a change the logs end and begin once more, which the coordinator hears with a heartbeat
    if (s->change.is_under_way) {
        finish_change(s);
        pause_ms(LEASE_MS);
    }
    while (ask("job show %s", s->plan->model->name),
           strstr(said.out, "log; log is asked for") == NULL) {
        workers_are_well(s);
        ck_assert_msg(now_ms() < end_ms, "%s, fault %u: never: it has its log: %.3000s",
                      cluster.folder, s->fault, said.out);
        pause_ms(TURN_MS);
    }
}

static bool end_shard(struct storm *s)
{
    if (s->plan->tier == STORM_PEER) return end_peer(s);
    if (s->plan->tier == STORM_LOG) await_logged(s);
    const int shard = any_shard(s, false);
    const pid_t process = process_of(s, shard);
    say(s, "shard-%d is killed", shard);
    if (is_kept(s)) {
        if (process != 0) kill(process, SIGKILL);
        return true;
    }
    cluster_kill_shard(&cluster, shard);
    pause_ms((int)below(s, SHORT_MS));
    begin_shard(shard);
    return true;
}

static bool end_coordinator(struct storm *s)
{
    const int away_ms = (int)below(s, SHORT_MS);
    say(s, "the coordinator is killed, and away for %d ms", away_ms);
    kill_coordinator();
    pause_ms(away_ms);
    restart_coordinator();
    return true;
}

/* A job goes on that only its shards know of. */
static bool end_both(struct storm *s)
{
    return end_shard(s) && end_coordinator(s);
}

static bool lose_power(struct storm *s)
{
    if (s->plan->tier != STORM_LOG) return false;
    say(s, "all lose power");
    await_logged(s);
    for (int i = 0; i < cluster.shard_count; i++)
        if (cluster.shards[i] != 0) kill_shard(i);
    restart_coordinator();
    for (int i = 0; i < cluster.shard_count; i++)
        if (cluster.shards[i] == 0) begin_shard(i);
    return true;
}

static bool exchange_process(struct storm *s)
{
    const int shard = any_shard(s, false);
    if (!is_kept(s)) return false;
    say(s, "shard-%d is exchanged", shard);
    ck_assert_int_eq(kill(cluster.shards[shard], SIGUSR2), 0);
    return true;
}

/* ---- a keeper dies ---- */

/* Whatever becomes of this test, that process does not outlive it. Returns the guard's end of a pipe. */
static int guard(pid_t process, pid_t *guard_out)
{
    int ends[2];
    char over;
    ck_assert_int_eq(pipe(ends), 0);
    *guard_out = fork();
    ck_assert_int_ge(*guard_out, 0);
    if (*guard_out > 0) {
        close(ends[0]);
        return ends[1];
    }
    close(ends[1]);
    if (read(ends[0], &over, 1) != 1) kill(process, SIGKILL);
    _exit(0);
}

/* The shard's process lives on, and nothing keeps its state: it hands its part over, and ends. */
static bool end_keeper(struct storm *s)
{
    const int shard = any_shard(s, false);
    if (!is_kept(s) || (s->owns[shard] && s->shards <= s->plan->shards)) return false;
    say(s, "the keeper of shard-%d is killed", shard);
    finish_change(s);
    pid_t process, guard_pid;
    while ((process = process_of(s, shard)) == 0) pause_ms(TURN_MS);
    const int guarded = guard(process, &guard_pid), fd = (int)syscall(SYS_pidfd_open, process, 0);
    ck_assert_int_ge(fd, 0);
    cluster_kill(cluster.shards[shard]);
    await_step(s);
    await((ask("member drain shard-%d -q", shard), said.status == 0));
    ck_assert_int_eq(poll(&(struct pollfd) { .fd = fd, .events = POLLIN }, 1, HANG_MS), 1);
    close(fd);
    ck_assert_int_eq(write(guarded, "", 1), 1);
    close(guarded);
    ck_assert_int_eq(cluster_wait(guard_pid, HANG_MS), 0);
    cluster.shards[shard] = 0;
    s->shards -= s->owns[shard];
    s->owns[shard] = false;
    begin_shard(shard);
    return true;
}

/* ---- members that do not answer ---- */

/* Any of the coordinator, the shards, their keepers and the workers; 0: it is between two processes. */
static pid_t any_member(struct storm *s, char name_out[32], int *shard_out)
{
    enum { OTHERS = 1 + STORM_WORKERS };
    const int keepers = is_kept(s) ? cluster.shard_count : 0;
    const int n = (int)below(s, (uint64_t)(OTHERS + cluster.shard_count + keepers));
    *shard_out = -1;
    if (n == 0) {
        snprintf(name_out, 32, "the coordinator");
        return cluster.coordinator;
    }
    if (n < OTHERS) {
        snprintf(name_out, 32, "worker %d", n - 1);
        return s->workers[n - 1];
    }
    const int shard = (n - OTHERS) % cluster.shard_count;
    const bool is_keeper = n - OTHERS >= cluster.shard_count;
    snprintf(name_out, 32, "%sshard-%d", is_keeper ? "the keeper of " : "", shard);
    if (cluster.shards[shard] == 0) return 0;
    *shard_out = is_keeper ? -1 : shard;
    return is_keeper ? cluster.shards[shard] : process_of(s, shard);
}

static bool stop_for(struct storm *s, bool is_long)
{
    char name[32];
    int shard;
    const pid_t pid = any_member(s, name, &shard);
    const int ms = is_long ? LONG_MS : 1 + (int)below(s, SHORT_MS);
    if (pid == 0) return false;
    // a shard that is silent for so long has lost its place
    if (is_long && s->plan->tier == STORM_PEER && shard >= 0 && s->owns[shard])
        return s->standby[shard] >= 0 && end_owner(s, shard, STOPPED);
    say(s, "%s is stopped for %d ms", name, ms);
    cluster_freeze(pid);
    pause_ms(ms);
    kill(pid, SIGCONT);
    return true;
}

static bool stop_short(struct storm *s)
{
    return stop_for(s, false);
}

static bool stop_long(struct storm *s)
{
    return stop_for(s, true);
}

static bool cut_for(struct storm *s, bool is_long)
{
    const int host = (int)below(s, STORM_HOSTS);
    const int ms = is_long ? LONG_MS : 1 + (int)below(s, 4 * SHORT_MS);
    if (!has_hosts()) return false;
    if (is_long && s->plan->tier == STORM_PEER) {
        // where the coordinator is, any standby may come back before its owner
        if (host == HOME) return false;
        const int shard = host < FIRST_WORKER ? host - FIRST_SHARD : -1;
        if (shard >= 0 && s->owns[shard])
            return s->standby[shard] >= 0 && end_owner(s, shard, CUT_OFF);
    }
    say(s, "host %d is cut off for %d ms", host, ms);
    cut_host(host);
    pause_ms(ms);
    mend_host(host);
    return true;
}

static bool cut_short(struct storm *s)
{
    return cut_for(s, false);
}

static bool cut_long(struct storm *s)
{
    return cut_for(s, true);
}

/* ---- the schedule ---- */

/* It may be refused: a job that is lost has nothing to save. */
static bool ask_for_snapshot(struct storm *s)
{
    say(s, "a snapshot is asked for");
    ask("snapshot create %s", s->plan->model->name);
    return true;
}

static const struct {
    const char *name;
    bool (*happens)(struct storm *s); /* false: not here, not now */
} kinds[STORM_KINDS] = {
    [STORM_CHANGE] = { "changes of shards", begin_change },
    [STORM_WORKER] = { "workers that came or died", change_worker },
    [STORM_STOP] = { "stops", stop_short },
    [STORM_STOP_LONG] = { "long stops", stop_long },
    [STORM_SHARD] = { "shards killed", end_shard },
    [STORM_COORDINATOR] = { "coordinators killed", end_coordinator },
    [STORM_BOTH] = { "both killed", end_both },
    [STORM_POWER] = { "losses of power", lose_power },
    [STORM_EXCHANGE] = { "shards exchanged", exchange_process },
    [STORM_KEEPER] = { "keepers killed", end_keeper },
    [STORM_SNAPSHOT] = { "snapshots", ask_for_snapshot },
    [STORM_CUT] = { "cuts", cut_short },
    [STORM_CUT_LONG] = { "long cuts", cut_long },
};

static enum storm_kind draw_kind(struct storm *s)
{
    unsigned sum = 0;
    for (int k = 0; k < STORM_KINDS; k++) sum += s->plan->weight[k];
    unsigned n = (unsigned)below(s, sum);
    enum storm_kind kind = 0;
    while (n >= s->plan->weight[kind]) n -= s->plan->weight[kind++];
    return kind;
}

/* What the fault is follows from the seed and its number, and from what is there. */
static void make_fault(struct storm *s, uint64_t seed)
{
    s->seed = seed + s->fault;
    (void)cairn_scratch_random(&s->seed);
    enum storm_kind kind;
    do kind = draw_kind(s);
    while (!kinds[kind].happens(s));
    s->done[kind]++;
    if (below(s, 2) == 0)
        await_step(s);
    else
        pause_ms((int)below(s, PAUSE_MS));
}

static uint64_t number_of(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

/* ---- runs ---- */

static void start_cluster(const struct storm_plan *plan, int shards)
{
    static char expected[32];
    snprintf(expected, sizeof expected, "cluster.shards=%d", shards);
    const bool is_far = has_hosts();
    if (is_far) setenv("CAIRN_FABRIC_DEVICE", "eth0", 1);
    start(shards, .shards_kept = plan->tier == STORM_PROCESS,
          .log_level = getenv("CAIRN_STORM_LOG"), .coordinator_ip = is_far ? "10.84.0.1" : NULL,
          .coordinator_netns = is_far ? hosts[HOME] : NULL,
          .shard_netns = is_far ? shard_hosts : NULL, .shard_netns_count = SHARD_HOSTS,
          .coordinator_set = SETTINGS("lease.heartbeat=100ms", "lease.timeout=600ms",
                                      "cluster.standby_after=0s", expected),
          .shard_set = is_far ? SETTINGS("fabric.kind=sealed", "fabric.device=eth0")
                       : plan->tier == STORM_LOG ? SETTINGS(logs_setting)
                                                 : NULL);
}

static void begin_storm(struct storm *s, const struct storm_plan *plan)
{
    *s = (struct storm) { .plan = plan, .shared = elastic_share(), .shards = plan->shards };
    atomic_store(&s->shared->until, UINT64_MAX);
    if (plan->tier == STORM_LOG) logs_begin();
    start_cluster(plan, plan->shards);
    s->schedule = fopen(in_folder("schedule.log"), "we");
    ck_assert_ptr_nonnull(s->schedule);
    for (int i = 0; i < CLUSTER_SHARDS_MAX; i++) {
        s->owns[i] = i < plan->shards;
        s->standby[i] = -1;
    }
    for (int i = 0; i < plan->shards && plan->tier == STORM_PEER; i++) {
        add_standby(s, plan->shards + i, i);
    }
    for (int i = 0; i < 2; i++) start_worker(s, i);
    await_step(s);
    says(0, "", "snapshot create %s --wait", plan->model->name);
    if (plan->tier == STORM_LOG) says(0, "", "job durability %s log -q", plan->model->name);
}

static void nothing_is_warned_of(void)
{
    ck_assert_int_eq(logged("coordinator.log", "is not drained"), 0);
    for (int i = 0; i < cluster.shard_count; i++) {
        char log[32];
        snprintf(log, sizeof log, "shard-%d.log", i);
        ck_assert_int_eq(logged(log, "cannot be shared"), 0);
    }
}

/* Returns the last step. */
static uint64_t end_storm(struct storm *s, char root_out[CLUSTER_WORD_BYTES])
{
    finish_change(s);
    const uint64_t until = atomic_load(&s->shared->step) + STEPS_AFTER;
    atomic_store(&s->shared->until, until);
    for (int i = 0; i < STORM_WORKERS; i++)
        if (s->workers[i] != 0)
            ck_assert_int_eq(cluster_wait(s->workers[i], HANG_MS + STEPS_AFTER * STEP_MS), 0);
    if (s->plan->tier != STORM_VOLATILE) {
        ck_assert_uint_eq(atomic_load(&s->shared->rolled_back), 0);
        ck_assert_uint_eq(atomic_load(&s->shared->twice), 0);
    }
    if (s->plan->is_quiet) nothing_is_warned_of();
    // a snapshot that was asked for may be under way
    await((ask("job digest -q %s", s->plan->model->name), said.status != CAIRN_ERR_BUSY));
    word_of(root_out, "job digest -q %s", s->plan->model->name);
    if (s->plan->tier == STORM_LOG)
        logs_end();
    else
        stop();
    return until;
}

static void calm_root(const struct elastic_model *model, uint64_t until,
                      char root_out[CLUSTER_WORD_BYTES])
{
    unsetenv("CAIRN_FABRIC_DEVICE");
    start(1);
    struct elastic_run calm = elastic_begin(model, until);
    elastic_end(&calm, root_out);
    stop();
}

static void say_what_was(const struct storm *s, uint64_t seed, uint64_t until)
{
    printf("note: %s, %s, seed %" PRIu64 ": step %" PRIu64 ", %" PRIu64 " void rounds; %u faults:",
           s->plan->name, tier_names[s->plan->tier], seed, until,
           (uint64_t)atomic_load(&s->shared->voided), s->fault);
    for (int k = 0; k < STORM_KINDS; k++)
        if (s->done[k] > 0) printf(" %u %s,", s->done[k], kinds[k].name);
    printf(" %" PRIu64 " times back to a snapshot, %" PRIu64 " steps done twice\n",
           (uint64_t)atomic_load(&s->shared->rolled_back),
           (uint64_t)atomic_load(&s->shared->twice));
}

bool storm_is_wanted(const struct storm_plan *plan)
{
    const char *only = getenv("CAIRN_STORM_PLAN");
    return only == NULL || strcmp(only, plan->name) == 0;
}

void storm_run(const struct storm_plan *plan)
{
    static struct storm s;
    char root[CLUSTER_WORD_BYTES], root_of_calm[CLUSTER_WORD_BYTES];
    const uint64_t seed = number_of("CAIRN_STORM_SEED", plan->seed),
                   faults = number_of("CAIRN_STORM_FAULTS", plan->faults);
    begin_storm(&s, plan);
    printf("%s: CAIRN_STORM_SEED=%" PRIu64 ", in %s\n", plan->name, seed, cluster.folder);
    fflush(stdout);
    for (; s.fault < faults; s.fault++) make_fault(&s, seed << 32);
    const uint64_t until = end_storm(&s, root);
    calm_root(plan->model, until, root_of_calm);
    ck_assert_str_eq(root, root_of_calm);
    say_what_was(&s, seed, until);
    fclose(s.schedule);
    munmap(s.shared, sizeof *s.shared);
}
