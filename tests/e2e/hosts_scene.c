#include "tests/e2e/hosts_scene.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/secure/secure.h"

enum { WAIT_MS = 30000, ROUND_MS = 200, SNAPSHOT_AT = 3 };

char router[NETNS_NAME_BYTES], hosts[HOSTS][NETNS_NAME_BYTES];
static bool is_v6;

/* ---- the hosts ---- */

static bool wire(int host, int device)
{
    return netns_ip("-n %s link add eth%d type veth peer name n%deth%d netns %s", hosts[host],
                    device, host + 1, device, router) &&
           netns_ip("-n %s link set eth%d up", hosts[host], device) &&
           netns_ip("-n %s link set n%deth%d up", router, host + 1, device);
}

bool hosts_make(void)
{
    bool ok = netns_make(router, 'r') &&
              netns_ip("netns exec %s sysctl -w net.ipv4.ip_forward=1 "
                       "net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0 "
                       "net.ipv4.conf.default.rp_filter=0",
                       router) &&
              netns_nft(router, "list ruleset");
    for (int h = 0; h < HOSTS; h++)
        ok = ok && netns_make(hosts[h], (char)('a' + h)) && wire(h, 0) && wire(h, 1) &&
             netns_is_up(hosts[h], "eth0") && netns_is_up(hosts[h], "eth1");
    return ok;
}

void hosts_drop(void)
{
    if (router[0] != '\0') (void)netns_drop(router);
    for (int h = 0; h < HOSTS; h++)
        if (hosts[h][0] != '\0') (void)netns_drop(hosts[h]);
}

/* The end of the host is 2, the router's is 1. */
static void write_ip(char out[64], int host, int network, int end)
{
    if (is_v6)
        snprintf(out, 64, "fd8%d:%d::%d", 4 + network, host + 1, end);
    else
        snprintf(out, 64, "10.8%d.%d.%d", 4 + network, host + 1, end);
}

const char *hosts_ip(int host, int network)
{
    static char texts[4][64];
    static unsigned next;
    char *text = texts[next++ % 4];
    write_ip(text, host, network, 2);
    return text;
}

static void settle_wire(int host, int network)
{
    char own[64], way[64];
    const char *options = is_v6 ? " nodad" : "";
    write_ip(own, host, network, 2);
    write_ip(way, host, network, 1);
    ck_assert(netns_ip("-n %s address add %s/%d dev eth%d%s", hosts[host], own, is_v6 ? 64 : 24,
                       network, options));
    ck_assert(netns_ip("-n %s address add %s/%d dev n%deth%d%s", router, way, is_v6 ? 64 : 24,
                       host + 1, network, options));
    ck_assert(netns_ip("-n %s route replace %s%d%s via %s", hosts[host], is_v6 ? "fd8" : "10.8",
                       4 + network, is_v6 ? "::/16" : ".0.0/16", way));
}

void hosts_settle(bool v6, int networks)
{
    is_v6 = v6;
    ck_assert(netns_nft(router, "flush ruleset"));
    for (int h = 0; h < HOSTS; h++)
        for (int n = 0; n < 2; n++) {
            ck_assert(netns_ip("-n %s address flush dev eth%d scope global", hosts[h], n));
            ck_assert(netns_ip("-n %s address flush dev n%deth%d scope global", router, h + 1, n));
            if (n < networks) settle_wire(h, n);
        }
}

/* ---- the cluster ---- */

void hosts_init(struct hosts_words *words)
{
    struct token token;
    struct sentence why;
    const pid_t pid = run_on(hosts[0], "init.log",
                             CAIRN_BIN_DIR "/cairn --endpoint %s cluster init -q", cluster.socket);
    ck_assert_int_eq(cluster_wait(pid, CLUSTER_WAIT_MS), 0);
    const char *text = cluster_log_text(&cluster, "init.log");
    ck_assert_msg(sscanf(text, "%255s %255s", words->nodes, words->trainers) == 2, "%s", text);
    remove(in_folder("init.log"));
    snprintf(words->trainers_path, sizeof words->trainers_path, "%s", in_folder("trainers-token"));
    ck_assert_int_eq(token_parse(words->trainers, &token, &why), CAIRN_OK);
    remove(words->trainers_path);
    ck_assert_msg(token_write_file(words->trainers_path, &token, &why) == CAIRN_OK, "%s", why.text);
}

void hosts_join(const struct hosts_words *words, int node, int shard, const char *devices,
                const char *ports, bool trusted)
{
    char log[32], state[CAIRN_SCRATCH_BYTES + 32];
    snprintf(log, sizeof log, "shard-%d.log", shard);
    snprintf(state, sizeof state, "%s", in_folder("node-%d", shard));
    const pid_t joins = run_on(hosts[node], log,
                               "env -u CAIRN_TOKEN_FILE " CAIRN_BIN_DIR
                               "/cairn-shard --join %s %s --state %s",
                               cluster.address, words->nodes, state);
    ck_assert_msg(cluster_wait(joins, CLUSTER_WAIT_MS) == 0, "%s", cluster_log_text(&cluster, log));
    cluster.shards[shard] = run_on(
        hosts[node], log,
        "env -u CAIRN_TOKEN_FILE " CAIRN_BIN_DIR
        "/cairn-shard --traceable --set shard.name=shard-%d --set shard.state=%s --set "
        "fabric.device=%s --set fabric.port_range=%s --set fabric.trust=%s --set compute.threads=1 "
        "--set "
        "memory.limit=256MiB --set memory.lock=%s --ready-file %s/shard-%d.ready",
        shard, state, devices, ports, trusted ? "yes" : "no", cluster.folder, cluster.folder,
        shard);
    if (shard >= cluster.shard_count) cluster.shard_count = shard + 1;
    await(access(in_folder("shard-%d.ready", shard), F_OK) == 0 ||
          cluster_wait(cluster.shards[shard], 0) != -1);
    ck_assert_msg(access(in_folder("shard-%d.ready", shard), F_OK) == 0, "%s",
                  cluster_log_text(&cluster, log));
}

/* ---- its workers ---- */

static void name_file(char out[64], const char *name, int rank, const char *suffix)
{
    snprintf(out, 64, "%s-%d.%s", name, rank, suffix);
}

pid_t hosts_train(int host, const char *token_path, const char *name, int rank, int workers)
{
    char log[64], before[CAIRN_SCRATCH_BYTES + 32];
    name_file(log, name, rank, "log");
    snprintf(before, sizeof before, "%s", getenv("CAIRN_TOKEN_FILE"));
    setenv("CAIRN_TOKEN_FILE", token_path, 1);
    const pid_t pid = run_on(hosts[host], log, "self worker %s %s %d %d %s", cluster.address, name,
                             rank, workers, cluster.folder);
    setenv("CAIRN_TOKEN_FILE", before, 1);
    return pid;
}

uint64_t hosts_steps(const char *name, int rank)
{
    char file[64];
    uint64_t steps = 0;
    name_file(file, name, rank, "steps");
    const int fd = open(in_folder("%s", file), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    if (pread(fd, &steps, sizeof steps, 0) != sizeof steps) steps = 0;
    close(fd);
    return steps;
}

const char *hosts_said(const char *name, int rank)
{
    char log[64];
    name_file(log, name, rank, "log");
    return cluster_log_text(&cluster, log);
}

void hosts_await_steps(const char *name, int rank, uint64_t more)
{
    const uint64_t until = hosts_steps(name, rank) + more;
    const int64_t end_ms = now_ms() + CLUSTER_WAIT_MS;
    while (hosts_steps(name, rank) < until) {
        ck_assert_msg(now_ms() < end_ms && strstr(hosts_said(name, rank), "failed") == NULL,
                      "%s, %d: %s", name, rank, hosts_said(name, rank));
        poll(NULL, 0, 2);
    }
}

void hosts_stop(void)
{
    FILE *file = fopen(in_folder("stop"), "we");
    ck_assert_ptr_nonnull(file);
    fclose(file);
}

void hosts_end(pid_t worker, const char *name, int rank)
{
    const int status = cluster_wait(worker, CLUSTER_WAIT_MS);
    if (status == -1) cluster_kill(worker);
    ck_assert_msg(status == 0, "%s, %d ended with %d: %s", name, rank, status,
                  hosts_said(name, rank));
}

/* ---- one of them ---- */

#define need(call)                                            \
    do {                                                      \
        if ((call) != CAIRN_OK) {                             \
            printf("failed: " #call ": %s\n", cairn_error()); \
            return 1;                                         \
        }                                                     \
    } while (0)

static struct {
    const char *name, *folder;
    uint32_t rank, workers;
    float *gradient;
    _Atomic uint64_t *steps;
} self;

static bool count_steps(void)
{
    char path[CAIRN_SCRATCH_BYTES + 96];
    snprintf(path, sizeof path, "%s/%s-%u.steps", self.folder, self.name, self.rank);
    const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || ftruncate(fd, sizeof *self.steps) != 0) return false;
    self.steps = mmap(NULL, sizeof *self.steps, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return self.steps != MAP_FAILED;
}

static bool is_over(void)
{
    char path[CAIRN_SCRATCH_BYTES + 32];
    snprintf(path, sizeof path, "%s/stop", self.folder);
    return access(path, F_OK) == 0;
}

static int join_job(const char *endpoint)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = endpoint };
    const struct cairn_tensor tensor = TRAINER_MATRIX("w", NULL, 256, HOSTS_ELEMS / 256, 7);
    const struct cairn_job_spec spec = TRAINER_SPEC(&tensor, 1, .chunk_leaves = 4,
                                                    .rank = self.rank, .workers_min = self.workers,
                                                    .workers_max = self.workers);
    need(cairn_open(&opts, &session));
    printf("data path: %s\n", cairn_data_path(session));
    need(cairn_job_open(session, self.name, &spec, CAIRN_WORKER, WAIT_MS, &job));
    need(cairn_init_done(job, NULL, WAIT_MS));
    void *gradient;
    need(cairn_alloc(session, HOSTS_ELEMS * sizeof(float), 0, &gradient));
    self.gradient = gradient;
    for (size_t at = 0; at < HOSTS_ELEMS * sizeof(float); at += HOSTS_GRADIENT_SIZE)
        memcpy((char *)gradient + at, HOSTS_GRADIENT, HOSTS_GRADIENT_SIZE);
    return 0;
}

/* The other worker may have left, since all is over. */
static int step(void *fetched)
{
    static int timeouts;
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    const struct cairn_mem mem = trainer_mem(self.gradient, CAIRN_F32),
                           to = trainer_mem(fetched, CAIRN_F32);
    cairn_op *op;
    char id[64];
    const cairn_status begun = cairn_round_begin(job, ROUND_MS, &round);
    if (begun == CAIRN_ERR_TIMEOUT && ++timeouts * ROUND_MS < WAIT_MS) return 0;
    need(begun);
    timeouts = 0;
    need(cairn_push(job, &round, 0, "w", NULL, &mem, NULL));
    const cairn_status committed = cairn_commit(job, &round, 1, NULL, 0, WAIT_MS, &result);
    if (committed == CAIRN_ERR_EPOCH_CHANGED) return 0; // it is made again
    need(committed);
    need(cairn_fetch(job, result.version, "w", NULL, NULL, &to, &op));
    need(cairn_wait(op, WAIT_MS));
    if (++*self.steps == SNAPSHOT_AT && self.rank == 0) {
        need(cairn_snapshot(job, CAIRN_SNAPSHOT_WAIT, WAIT_MS, id));
        printf("snapshot %s\n", id);
    }
    return 0;
}

int hosts_worker(int argc, char **argv)
{
    static float fetched[HOSTS_ELEMS];
    if (argc != 7 || strcmp(argv[1], "worker") != 0) return -1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    self.name = argv[3];
    self.rank = (uint32_t)atoi(argv[4]);
    self.workers = (uint32_t)atoi(argv[5]);
    self.folder = argv[6];
    if (!count_steps() || join_job(argv[2]) != 0) return 1;
    while (!is_over() || *self.steps == 0)
        if (step(fetched) != 0 && !is_over()) return 1;
    cairn_close(session);
    printf("trained\n");
    return 0;
}
