#include "tests/e2e/elastic_worker.h"

#include <check.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tests/e2e/scene.h"

static const struct cairn_tensor perceptron[] = {
    TRAINER_MATRIX("fc1.weight", "fc1", 784, 512, 1),
    TRAINER_ONES("fc1.bias", "fc1", 512),
    TRAINER_MATRIX("fc2.weight", "fc2", 512, 256, 2, .wire = CAIRN_BF16),
    TRAINER_ONES("fc2.bias", "fc2", 256),
    TRAINER_MATRIX("fc3.weight", "fc3", 256, 10, 3),
    TRAINER_ONES("fc3.bias", "fc3", 10),
};
static const struct cairn_tensor transformer[] = {
    TRAINER_MATRIX("embed", "embed", 2048, 64, 1, .wire = CAIRN_BF16),
    TRAINER_MATRIX("0.qkv", "0", 192, 64, 2),
    TRAINER_MATRIX("0.out", "0", 64, 64, 3),
    TRAINER_MATRIX("0.up", "0", 256, 64, 4),
    TRAINER_MATRIX("0.down", "0", 64, 256, 5),
    TRAINER_ONES("0.norm", "0", 64),
    TRAINER_MATRIX("1.qkv", "1", 192, 64, 6),
    TRAINER_MATRIX("1.out", "1", 64, 64, 7),
    TRAINER_MATRIX("1.up", "1", 256, 64, 8),
    TRAINER_MATRIX("1.down", "1", 64, 256, 9),
    TRAINER_ONES("1.norm", "1", 64),
    TRAINER_MATRIX("head", "head", 2048, 64, 10),
};
/* Small: a step is little more than its messages. */
static const struct cairn_tensor mixer[] = {
    TRAINER_MATRIX("in", "in", 96, 256, 1),
    TRAINER_MATRIX("out", "out", 256, 96, 2, .wire = CAIRN_BF16),
    TRAINER_ONES("norm", "out", 96),
    TRAINER_MATRIX("head", "head", 32, 256, 3),
};
const struct elastic_model elastic_mixer = { "mixer", mixer, sizeof mixer / sizeof *mixer };
const struct elastic_model elastic_models[ELASTIC_MODELS] = {
    { "perceptron", perceptron, sizeof perceptron / sizeof *perceptron },
    { "transformer", transformer, sizeof transformer / sizeof *transformer },
};

struct worker {
    const struct elastic_model *model;
    uint32_t rank;
    struct elastic_shared *shared;
    cairn *session;
    cairn_job *job;
    void *params[16];                   /* owned: [tensor], of its wire's type */
    void *gradients[ELASTIC_BATCH][16]; /* owned, likewise */
};

struct elastic_shared *elastic_share(void)
{
    struct elastic_shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(shared, MAP_FAILED);
    return shared;
}

/* ---- in the child ---- */

static bool is_ok(const struct worker *w, const char *what, cairn_status status)
{
    if (status != CAIRN_OK) fprintf(stderr, "worker %u: %s: %s\n", w->rank, what, cairn_error());
    return status == CAIRN_OK;
}

static bool take_memory(struct worker *w)
{
    for (size_t t = 0; t < w->model->count; t++) {
        const size_t bytes = trainer_elems(&w->model->tensors[t]) * sizeof(float);
        bool got_all = (w->params[t] = malloc(bytes)) != NULL;
        for (int k = 0; k < ELASTIC_BATCH; k++)
            got_all &= (w->gradients[k][t] = malloc(bytes)) != NULL;
        if (!got_all) return false;
    }
    return true;
}

static bool open_session(struct worker *w, const char *address)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = address };
    return is_ok(w, "open", cairn_open(&opts, &w->session));
}

static bool open_job(struct worker *w)
{
    struct cairn_job_spec spec = trainer_spec(w->model->tensors, w->model->count);
    spec.rank = w->rank;
    spec.workers_min = 1;
    spec.workers_max = 8;
    spec.global_batch = ELASTIC_BATCH;
    spec.seed = 7;
    spec.clip_norm = 1;
    spec.chunk_leaves = 4;
    spec.on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST;
    cairn_status status;
    do { // a job that is lost meanwhile is opened again
        if (!is_ok(w, "job",
                   cairn_job_open(w->session, w->model->name, &spec, CAIRN_WORKER, ELASTIC_WAIT_MS,
                                  &w->job)))
            return false;
        status = cairn_init_done(w->job, NULL, ELASTIC_WAIT_MS);
        if (status == CAIRN_ERR_ROLLED_BACK) cairn_job_close(w->job);
    } while (status == CAIRN_ERR_ROLLED_BACK);
    return is_ok(w, "init", status);
}

static cairn_dtype wire_of(const struct worker *w, size_t tensor)
{
    return w->model->tensors[tensor].wire == CAIRN_BF16 ? CAIRN_BF16 : CAIRN_F32;
}

static cairn_status fetch_all(struct worker *w, struct cairn_version version)
{
    cairn_op *ops[16];
    size_t count = 0;
    cairn_status status = CAIRN_OK;
    for (size_t t = 0; t < w->model->count && status == CAIRN_OK; t++) {
        const struct cairn_mem mem = trainer_mem(w->params[t], wire_of(w, t));
        status = cairn_fetch(w->job, version, w->model->tensors[t].name, NULL, NULL, &mem,
                             &ops[count]);
        count += status == CAIRN_OK;
    }
    for (size_t i = 0; i < count; i++) {
        const cairn_status waited = cairn_wait(ops[i], ELASTIC_WAIT_MS);
        if (status == CAIRN_OK) status = waited;
    }
    return status;
}

/* An eighth of the parameter and noise; bf16 is the upper half of fp32. Returns the next seed. */
static uint64_t compute(struct worker *w, size_t tensor, uint32_t k, uint64_t seed)
{
    const size_t elems = trainer_elems(&w->model->tensors[tensor]);
    const bool is_half = wire_of(w, tensor) == CAIRN_BF16;
    for (size_t i = 0; i < elems; i++) {
        uint32_t bits = is_half ? (uint32_t)((const uint16_t *)w->params[tensor])[i] << 16
                                : ((const uint32_t *)w->params[tensor])[i];
        float value;
        memcpy(&value, &bits, sizeof value);
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        value = 0.125f * value + (float)(seed >> 40) / 8388608 - 1;
        memcpy(&bits, &value, sizeof bits);
        if (is_half)
            ((uint16_t *)w->gradients[k][tensor])[i] = (uint16_t)(bits >> 16);
        else
            ((uint32_t *)w->gradients[k][tensor])[i] = bits;
    }
    return seed;
}

static cairn_status push_micro(struct worker *w, const struct cairn_round *round, uint32_t k)
{
    uint64_t seed = cairn_micro_seed(round, k);
    for (size_t t = w->model->count; t-- > 0;) {
        seed = compute(w, t, k, seed);
        const struct cairn_mem mem = trainer_mem(w->gradients[k][t], wire_of(w, t));
        const cairn_status status = cairn_push(w->job, round, k, w->model->tensors[t].name, NULL,
                                               &mem, NULL);
        if (status != CAIRN_OK) return status;
    }
    return cairn_micro_end(w->job, round, k);
}

/* CAIRN_ERR_NOT_FOUND: there is no round to take part in any more. */
static cairn_status run_round(struct worker *w)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    uint64_t known = atomic_load(&w->shared->acknowledged);
    cairn_status status = cairn_round_begin(w->job, ELASTIC_WAIT_MS, &round);
    if (status == CAIRN_OK && round.step >= atomic_load(&w->shared->until))
        return CAIRN_ERR_NOT_FOUND;
    if (status == CAIRN_OK) status = fetch_all(w, round.version);
    uint64_t weight = 0;
    for (uint32_t k = round.rank; status == CAIRN_OK && k < ELASTIC_BATCH; k += round.world) {
        status = push_micro(w, &round, k);
        weight += 3 + k;
    }
    if (status != CAIRN_OK) return status;
    status = cairn_commit(w->job, &round, weight, NULL, 0, ELASTIC_WAIT_MS, &result);
    if (status != CAIRN_OK) return status;
    atomic_fetch_add(&w->shared->twice, result.step <= known);
    while (known < result.step &&
           !atomic_compare_exchange_weak(&w->shared->acknowledged, &known, result.step)) {}
    atomic_store(&w->shared->step, result.step);
    atomic_fetch_add(&w->shared->rounds, 1);
    return CAIRN_OK;
}

/* CAIRN_ERR_NOT_FOUND: the last step is done. */
static cairn_status try_step(struct worker *w)
{
    struct cairn_version at;
    const cairn_status status = cairn_version_wait(w->job, (struct cairn_version) { 0, 0 },
                                                   ELASTIC_WAIT_MS, &at);
    if (status != CAIRN_OK) return status;
    return at.step >= atomic_load(&w->shared->until) ? CAIRN_ERR_NOT_FOUND : run_round(w);
}

static bool train_to_the_end(struct worker *w)
{
    for (;;) {
        const cairn_status status = try_step(w);
        if (status == CAIRN_ERR_NOT_FOUND) return true;
        const bool is_void = status == CAIRN_ERR_EPOCH_CHANGED || status == CAIRN_ERR_STALE ||
                             status == CAIRN_ERR_VERSION_GONE; // it was away
        atomic_fetch_add(&w->shared->voided, is_void);
        if (status == CAIRN_ERR_ROLLED_BACK || status == CAIRN_ERR_REOPEN) {
            const bool is_back = status == CAIRN_ERR_ROLLED_BACK;
            if (atomic_fetch_add(&w->shared->rolled_back, is_back) == 0 && is_back)
                (void)is_ok(w, "the first way back", status);
            cairn_job_close(w->job);
            if (!open_job(w)) return false;
        } else if (!is_void && !is_ok(w, "a round", status)) {
            return false;
        }
    }
}

static bool extend(struct worker *w)
{
    static const struct cairn_tensor adapter[] = { TRAINER_MATRIX("adapter", "adapter", 64, 64,
                                                                  11) };
    const struct cairn_amend amend = { .struct_size = sizeof amend,
                                       .add = adapter,
                                       .add_count = 1 };
    return open_job(w) && is_ok(w, "amend", cairn_job_amend(w->job, &amend, ELASTIC_WAIT_MS));
}

/* ---- children ---- */

/* In the child 0, and the child ends with the test. */
static pid_t fork_worker(void)
{
    const pid_t parent = getpid(), pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid > 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1); // it died before we asked
    return 0;
}

/* With a /sys of its own, in which UCX looks for devices. */
static bool enter_host(const char *netns)
{
    char path[64];
    snprintf(path, sizeof path, "/run/netns/%s", netns);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0 || unshare(CLONE_NEWNS) != 0) return false;
    close(fd);
    return mount("", "/", NULL, MS_REC | MS_SLAVE, NULL) == 0 && umount2("/sys", MNT_DETACH) == 0 &&
           mount("sysfs", "/sys", "sysfs", 0, NULL) == 0;
}

pid_t elastic_start_on(const char *netns, const char *address, const struct elastic_model *model,
                       uint32_t rank, struct elastic_shared *shared)
{
    static struct worker w;
    const pid_t pid = fork_worker();
    if (pid > 0) return pid;
    if (netns != NULL && !enter_host(netns)) _exit(1);
    w = (struct worker) { .model = model, .rank = rank, .shared = shared };
    if (rank < ELASTIC_RANKS) atomic_store(&shared->pids[rank], getpid());
    _exit(take_memory(&w) && open_session(&w, address) && open_job(&w) && train_to_the_end(&w) ? 0
                                                                                               : 1);
}

pid_t elastic_start(const char *address, const struct elastic_model *model, uint32_t rank,
                    struct elastic_shared *shared)
{
    return elastic_start_on(NULL, address, model, rank, shared);
}

pid_t elastic_extend(const char *address, const struct elastic_model *model)
{
    static struct worker w;
    const pid_t pid = fork_worker();
    if (pid > 0) return pid;
    w = (struct worker) { .model = model, .rank = 7 };
    _exit(open_session(&w, address) && extend(&w) ? 0 : 1);
}

/* ---- the one worker of a scene ---- */

struct elastic_run elastic_begin(const struct elastic_model *model, uint64_t until)
{
    struct elastic_run run = { .model = model, .shared = elastic_share() };
    atomic_store(&run.shared->until, until);
    run.worker = elastic_start(cluster.address, model, 0, run.shared);
    return run;
}

void elastic_await(const struct elastic_run *run, uint64_t more_steps)
{
    const uint64_t goal = atomic_load(&run->shared->step) + more_steps;
    await(atomic_load(&run->shared->step) >= goal || cluster_wait(run->worker, 0) != -1);
    ck_assert_msg(atomic_load(&run->shared->step) >= goal, "the worker has ended");
}

uint64_t elastic_bound(const struct elastic_run *run, uint64_t more_steps)
{
    const uint64_t until = atomic_load(&run->shared->step) + more_steps;
    atomic_store(&run->shared->until, until);
    return until;
}

void elastic_end(struct elastic_run *run, char root_out[CLUSTER_WORD_BYTES])
{
    enum { STEP_MS = 50 }; // in the mean
    const int steps = (int)atomic_load(&run->shared->until);
    ck_assert_int_eq(cluster_wait(run->worker, CLUSTER_WAIT_MS + steps * STEP_MS), 0);
    word_of(root_out, "job digest -q %s", run->model->name);
    munmap(run->shared, sizeof *run->shared);
}
