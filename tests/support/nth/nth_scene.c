/* A trainer's whole life, again and again, in which the nth allocation (descriptor, thread) fails: every call
 * either does what it should or says so, may be made again, and the step has the same result.
 *
 *   LD_PRELOAD=libnth_fail.so nth_scene ENDPOINT memory|descriptors|threads OF FIRST STRIDE [STAGE]
 *
 * OF is a part of the file name of who asks ("libcairn.so"), "": anybody. It begins with the FIRST, and ends
 * when nothing fails any more. Without a STAGE, 1 and 2 by turns.
 * exit 0; 1: something was wrong, and a line says what; 77: it is not preloaded. */
#include <inttypes.h>
#include <cairn.h>

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/nth/nth.h"

enum {
    ROWS = 40,
    COLUMNS = 50,
    ELEMS = ROWS * COLUMNS,
    HALF = ELEMS / 2,
    WAIT_MS = 8000,
    SCENE_S = 20
};

/* Of nth_fail.c. */
static struct {
    __typeof__(&nth_arm) arm;
    __typeof__(&nth_disarm) disarm;
    __typeof__(&nth_fired) fired;
} nth;

/* What goes on now, for the line that says what is wrong. */
static struct {
    unsigned long number; /* that fails */
    const char *doing;
    char name[32];
    bool is_of_descriptors;
    bool is_whole;  /* every number is tried: with snapshots, which wait for a disk */
    uint64_t asked; /* in the scene before: the last ones are of a snapshot */
    int failures;   /* calls that said that they failed, in this scene */
    int wrong;      /* in all scenes */
} now;

static void say_wrong(const char *what, int status)
{
    now.wrong++;
    printf("%lu: %s: %s (%d): %s\n", now.number, now.doing, what, status, cairn_error());
    fflush(stdout);
}

static void on_alarm(int signal_number)
{
    static char text[256];
    (void)signal_number;
    const int length = snprintf(text, sizeof text, "%lu: %s: it hangs\n", now.number, now.doing);
    (void)!write(1, text, (size_t)length);
    _exit(1);
}

/* One that failed for want of what failed may be made again. True: do so. */
static bool again(const char *doing, cairn_status status)
{
    now.doing = doing;
    if (status == CAIRN_OK || status == CAIRN_ERR_EPOCH_CHANGED) return false;
    // The answer was lost, and the snapshot that it told of goes on.
    if (status == CAIRN_ERR_BUSY && strncmp(doing, "cairn_snapshot", 14) == 0) return false;
    now.failures++;
    // UCX says of a descriptor only that something failed.
    const bool is_ucx = now.is_of_descriptors && status == CAIRN_ERR_UNREACHABLE &&
                        strstr(doing, "cairn_open(") != NULL;
    if (!nth.fired() || (status != CAIRN_ERR_NO_MEMORY && !is_ucx))
        say_wrong("another error", (int)status);
    if (now.failures <= 4) return true;
    say_wrong("it fails again and again", (int)status);
    if (now.failures > 20) exit(1);
    return false;
}
#define TRY(call)          \
    do {                   \
        now.doing = #call; \
    } while (again(#call, status = (call)))

/* ---- what is trained ---- */

static const struct cairn_box lower = { .rank = 2,
                                        .start = { ROWS / 2, 0 },
                                        .extent = { ROWS / 2, COLUMNS } };
static const struct cairn_box upper = { .rank = 2,
                                        .start = { 0, 0 },
                                        .extent = { ROWS / 2, COLUMNS } };
#define MATRIX(label, of_unit, ...)                                                                \
    {                                                                                              \
        .struct_size = sizeof(struct cairn_tensor), .name = (label), .unit = (of_unit), .rank = 2, \
        .shape = { ROWS, COLUMNS }, __VA_ARGS__                                                    \
    }
static const struct cairn_tensor tensors[] = {
    MATRIX("dense", "u", .init = { .kind = CAIRN_INIT_ZEROS }),
    MATRIX("strided", "u", .init = { .kind = CAIRN_INIT_ZEROS }),
    MATRIX("fused", "v", .init = { .kind = CAIRN_INIT_ZEROS }),
    { .struct_size = sizeof tensors[0],
      .name = "fused.up",
      .unit = "v",
      .rank = 2,
      .shape = { ROWS / 2, COLUMNS },
      .alias_of = "fused",
      .alias_box = &upper },
    { .struct_size = sizeof tensors[0],
      .name = "fused.low",
      .unit = "v",
      .rank = 2,
      .shape = { ROWS / 2, COLUMNS },
      .alias_of = "fused",
      .alias_box = &lower },
    MATRIX("halved", "w", .init = { .kind = CAIRN_INIT_ZEROS }),
    { .struct_size = sizeof tensors[0],
      .name = "halved.up",
      .unit = "w",
      .rank = 2,
      .shape = { ROWS / 2, COLUMNS },
      .alias_of = "halved",
      .alias_box = &upper },
};
static float ones[ELEMS], wide[3 * ELEMS], got[3 * ELEMS];

static struct cairn_mem memory_of(float *at, size_t elems, bool is_strided)
{
    struct cairn_mem mem = {
        .struct_size = sizeof mem, .ptr = at, .dtype = CAIRN_F32, .bytes = elems * sizeof *at
    };
    if (is_strided) {
        mem.stride[0] = 3 * COLUMNS;
        mem.stride[1] = 3;
        mem.bytes = (3 * elems - 2) * sizeof *at;
    }
    return mem;
}

struct life {
    cairn *session;
    cairn_job *job;
    uint32_t stage, micro_batches;
};

static void open_job(struct life *life)
{
    cairn_status status;
    struct cairn_group sgd = CAIRN_GROUP_INIT;
    sgd.optimizer = "sgd";
    sgd.lr = 1;
    const struct cairn_job_spec spec = { .struct_size = sizeof spec,
                                         .tensors = tensors,
                                         .tensor_count = sizeof tensors / sizeof *tensors,
                                         .groups = &sgd,
                                         .group_count = 1,
                                         .stage = CAIRN_STAGE(life->stage),
                                         .client_state_max = 64,
                                         .micro_batches = life->micro_batches };
    TRY(cairn_job_open(life->session, now.name, &spec, CAIRN_WORKER, WAIT_MS, &life->job));
    TRY(cairn_init_done(life->job, NULL, WAIT_MS));
}

/* ---- a step ---- */

static cairn_status push_all(struct life *life, const struct cairn_round *round, uint32_t micro)
{
    static const struct {
        const char *name;
        size_t elems;
        bool is_strided;
    } given[] = { { "dense", ELEMS, false },
                  { "strided", ELEMS, true },
                  { "fused.up", HALF, false },
                  { "fused.low", HALF, true },
                  { "halved.up", HALF, false } };
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; status == CAIRN_OK && i < sizeof given / sizeof *given; i++) {
        const struct cairn_mem mem = memory_of(given[i].is_strided ? wide : ones, given[i].elems,
                                               given[i].is_strided);
        cairn_op *op = NULL;
        TRY(cairn_push(life->job, round, micro, given[i].name, NULL, &mem,
                       i % 2 == 0 ? NULL : &op));
        now.doing = "cairn_wait of a push";
        if (status == CAIRN_OK && op != NULL)
            (void)again(now.doing, status = cairn_wait(op, WAIT_MS));
    }
    return status;
}

static cairn_status fetch(struct life *life, struct cairn_version version, const char *name,
                          bool is_strided)
{
    const struct cairn_mem mem = memory_of(got, ELEMS, is_strided);
    cairn_status status;
    cairn_op *op = NULL;
    do {
        TRY(cairn_fetch(life->job, version, name, "param", NULL, &mem, &op));
        now.doing = "cairn_wait of a fetch";
        status = cairn_wait(op, WAIT_MS);
    } while (again(now.doing, status));
    return status;
}

static cairn_status step(struct life *life, struct cairn_result *result)
{
    struct cairn_round round = { .struct_size = sizeof round };
    cairn_status status;
    TRY(cairn_round_begin(life->job, WAIT_MS, &round));
    for (uint32_t micro = 0; status == CAIRN_OK && micro < 2; micro++) {
        status = push_all(life, &round, micro);
        if (status == CAIRN_OK && micro == 0) TRY(cairn_micro_end(life->job, &round, micro));
    }
    if (status == CAIRN_OK) TRY(cairn_commit(life->job, &round, 2, "state", 5, WAIT_MS, result));
    return status;
}

/* Every element has moved by exactly one, times the steps: nothing was lost, and nothing came twice. */
static void check_values(struct life *life, struct cairn_version version)
{
    static const char *const names[] = { "dense", "fused", "halved" };
    for (size_t t = 0; t < 3; t++) {
        if (fetch(life, version, names[t], false) != CAIRN_OK) return;
        for (size_t i = 0; i < ELEMS; i++) {
            const float right = t == 2 && i >= HALF ? 0 : -(float)version.step;
            if (got[i] == right) continue;
            printf("%lu: %s[%zu] is %g, not %g\n", now.number, names[t], i, (double)got[i],
                   (double)right);
            now.wrong++;
            return;
        }
    }
}

static void map_unit(struct life *life, struct cairn_version version)
{
    struct cairn_view views[4] = { { .struct_size = sizeof views[0] } };
    size_t count = 4;
    cairn_op *op = NULL;
    cairn_status status;
    const char *const units[] = { "u" };
    TRY(cairn_prefetch(life->job, version, units, 1));
    do {
        count = 4;
        TRY(cairn_map(life->job, version, "u", views, &count, &op));
        now.doing = "cairn_wait of a map";
        status = cairn_wait(op, WAIT_MS);
    } while (again(now.doing, status));
    if (status != CAIRN_OK) return;
    if (((const float *)views[0].ptr)[7] != -(float)version.step) say_wrong("a mapped value", 0);
    TRY(cairn_unmap(life->job, &views[0], NULL));
}

static void write_one(struct life *life, float value)
{
    struct cairn_version version;
    cairn_status status;
    for (size_t i = 0; i < ELEMS; i++) got[i] = value;
    const struct cairn_mem mem = memory_of(got, ELEMS, false);
    do {
        TRY(cairn_write_begin(life->job, WAIT_MS));
        TRY(cairn_put(life->job, "dense", "param", NULL, &mem, NULL));
        TRY(cairn_write_end(life->job, WAIT_MS, &version));
    } while (status == CAIRN_ERR_EPOCH_CHANGED);
}

static void live(struct life *life)
{
    struct cairn_result result = { .struct_size = sizeof result };
    struct cairn_version leased;
    char state[64], id[64];
    size_t state_bytes;
    cairn_status status;
    void *shared;
    TRY(cairn_open(NULL, &life->session));
    open_job(life);
    TRY(cairn_alloc(life->session, 10000, 0, &shared));
    TRY(cairn_free(life->session, shared));
    while ((status = step(life, &result)) != CAIRN_OK) {
        now.failures++;
        if (status == CAIRN_ERR_EPOCH_CHANGED) continue;
        cairn_job_close(life->job);
        open_job(life);
    }
    if (!result.applied) say_wrong("the step was not applied", 0);
    check_values(life, result.version);
    fetch(life, result.version, "strided", true);
    map_unit(life, result.version);
    TRY(cairn_lease(life->job, result.version, 2000, WAIT_MS, &leased));
    TRY(cairn_lease_end(life->job, leased, WAIT_MS));
    TRY(cairn_client_state(life->job, state, sizeof state, WAIT_MS, &state_bytes, NULL));
    write_one(life, -(float)result.version.step);
    if (now.is_whole && now.number + 20 >= now.asked)
        TRY(cairn_snapshot(life->job, CAIRN_SNAPSHOT_WAIT, WAIT_MS, id));
    now.doing = "cairn_job_close";
    cairn_job_close(life->job);
    now.doing = "cairn_close";
    cairn_close(life->session);
}

int main(int argc, char **argv)
{
    if (argc < 6) return 2;
    *(void **)&nth.arm = dlsym(RTLD_DEFAULT, "nth_arm");
    *(void **)&nth.disarm = dlsym(RTLD_DEFAULT, "nth_disarm");
    *(void **)&nth.fired = dlsym(RTLD_DEFAULT, "nth_fired");
    if (nth.arm == NULL || nth.disarm == NULL || nth.fired == NULL) return 77;
    const unsigned long stride = strtoul(argv[5], NULL, 10);
    uint64_t asked = 0;
    unsigned long scenes = 0;
    now.is_of_descriptors = strcmp(argv[2], "descriptors") == 0;
    now.is_whole = stride == 1 && argc > 6;
    setenv("CAIRN_ENDPOINT", argv[1], 1);
    signal(SIGALRM, on_alarm);
    for (size_t i = 0; i < ELEMS; i++) ones[i] = 1;
    for (size_t i = 0; i < 3 * ELEMS; i++) wide[i] = 1;
    bool fired = true;
    for (unsigned long n = strtoul(argv[4], NULL, 10); fired; n += stride) {
        struct life life = { .stage = argc > 6     ? (uint32_t)atoi(argv[6])
                                      : n % 2 == 0 ? 1
                                                   : 2,
                             .micro_batches = 2 };
        void *by;
        now.number = n;
        now.failures = 0;
        snprintf(now.name, sizeof now.name, "nth-%u-%ld", life.stage, (long)getpid());
        alarm(SCENE_S);
        nth.arm(argv[2], argv[3], n);
        live(&life);
        scenes++;
        fired = nth.disarm(&asked, &by);
        now.asked = asked;
        if (getenv("NTH_SAY") != NULL) {
            Dl_info where = { 0 };
            dladdr(by, &where);
            printf("%lu: %d failures by %s +%lx\n", n, now.failures, where.dli_fname,
                   (unsigned long)((char *)by - (char *)where.dli_fbase));
        }
    }
    printf("%s of \"%s\": %lu scenes of %" PRIu64 ", %d wrong\n", argv[2], argv[3], scenes, asked,
           now.wrong);
    return now.wrong == 0 ? 0 : 1;
}
