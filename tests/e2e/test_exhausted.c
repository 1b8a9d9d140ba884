/* A trainer that gets no memory, no descriptor or no thread, once, at any point of its life: every call does
 * what it should or says so and may be made again, no gradient is lost, and its process goes on. Some points
 * are tried; CAIRN_TEST_LONG=1: each one, in two stages (tests/support/nth/nth_scene.c). And processes, of
 * either end, whose addresses are at their limit. */
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/e2e/scene.h"

enum { SCENES_MS = 240000 };

static void set_up(void)
{
    start(1, .both_ways = true);
}

static void live(const char *what, const char *of, const char *first, const char *stride,
                 const char *stage)
{
    char log[CAIRN_SCRATCH_BYTES + 32], text[2048] = "";
    const char *const argv[] = {
        CAIRN_BIN_DIR "/tests/nth_scene", cluster.address, what, of, first, stride, stage, NULL
    };
    snprintf(log, sizeof log, "%s/scene.log", cluster.folder);
    setenv("LD_PRELOAD", CAIRN_NTH_FAIL, 1);
    const pid_t pid = cluster_spawn(argv, log);
    unsetenv("LD_PRELOAD");
    const int status = cluster_wait(pid, SCENES_MS);
    if (status < 0) cluster_kill(pid);
    FILE *file = fopen(log, "r");
    if (file != NULL && fread(text, 1, sizeof text - 1, file) == 0) text[0] = '\0';
    if (file != NULL) fclose(file);
    ck_assert_msg(status == 0, "%s of \"%s\": %d: %s", what, of, status, text);
}

/* Who asks for what, and which points are tried: every so many, from the first on. */
static const struct kind {
    const char *what, *of, *first, *stride;
    const char *fabric; /* NULL: the default */
} kinds[] = {
    { "memory", "libcairn.so", "9", "31", NULL },
    { "memory", "libcairn.so", "20", "41", "sealed" },
    { "memory", "libprotobuf-c", "6", "37", NULL },
    { "descriptors", "", "8", "27", NULL },
    { "threads", "libcairn.so", "1", "1", NULL },
};

TEST_EACH(what_fails_once_fails_one_call_and_loses_nothing, 0,
          (int)(sizeof kinds / sizeof kinds[0]))
{
    const struct kind *k = &kinds[_i];
    if (k->fabric != NULL) setenv("CAIRN_FABRIC", k->fabric, 1);
    if (getenv("CAIRN_TEST_LONG") == NULL) {
        live(k->what, k->of, k->first, k->stride, NULL);
        return;
    }
    live(k->what, k->of, "1", "1", "1");
    live(k->what, k->of, "1", "1", "2");
}

TEST(a_process_that_may_open_no_more_descriptors_is_told_so)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = cluster.address };
    const int next = dup(0);
    struct rlimit old;
    close(next);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    for (rlim_t left = 0; left < 32; left++) {
        const struct rlimit low = { (rlim_t)next + left, old.rlim_max };
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
        const cairn_status status = cairn_open(&opts, &session);
        ck_assert_msg(status == CAIRN_ERR_NO_MEMORY && strstr(cairn_error(), "descriptor") != NULL,
                      "%d: %d %s", (int)left, (int)status, cairn_error());
    }
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0); // as the sentence says
    good(cairn_open(&opts, &session));
}

/* ---- addresses ---- */

/* So many more than it has now. */
static void allow_addresses(pid_t pid, struct rlimit *was, rlim_t more)
{
    char path[64];
    unsigned long pages = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *file = fopen(path, "r");
    ck_assert(file != NULL && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    ck_assert_int_eq(prlimit(pid, RLIMIT_AS, NULL, was), 0);
    const struct rlimit low = { pages * (rlim_t)sysconf(_SC_PAGESIZE) + more, was->rlim_max };
    ck_assert_int_eq(prlimit(pid, RLIMIT_AS, &low, NULL), 0);
}

/* FEW_ADDRESSES: enough for UCX, which ends the process where it gets none for a list of its own. */
enum { ELEMS = 1 << 16, STEPS = 3, SOME_ADDRESSES = 4 << 20, FEW_ADDRESSES = 64 << 10 };

/* Maps of the shard that are of memory which trainers show. */
static int maps_of_trainers(pid_t pid)
{
    char path[64], line[512];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL)
        count += strstr(line, "/memfd:cairn (") != NULL ||
                 strstr(line, "/memfd:cairn-staging") != NULL;
    fclose(file);
    return count;
}

static void train_apart(const struct trainer *t, float out[ELEMS])
{
    struct cairn_result result;
    for (int i = 0; i < STEPS; i++) {
        const struct cairn_round round = trainer_begin(t->job);
        tiny_push(t->job, &round, ELEMS, 0.25f * (float)(i + 1));
        result = trainer_commit(t->job, &round, 1);
    }
    trainer_fetch(t->job, result.version, "w", NULL, CAIRN_F32, out);
    cairn_close(t->session);
}

TEST(a_shard_that_can_map_no_memory_of_a_trainer_reads_it_by_copies_and_says_so_once)
{
    static float free_values[ELEMS], values[ELEMS];
    struct rlimit was;
    const struct trainer bound[] = { attach("bound", TINY(ELEMS)), attach("too", TINY(ELEMS)) };
    const int maps = maps_of_trainers(cluster.shards[0]);
    const struct trainer first = attach("free", TINY(ELEMS));
    train_apart(&first, free_values);
    await(maps_of_trainers(cluster.shards[0]) <= maps); // its addresses are free then
    allow_addresses(cluster.shards[0], &was, SOME_ADDRESSES);
    for (int i = 0; i < 2; i++) train_apart(&bound[i], values);
    ck_assert_mem_eq(values, free_values, sizeof values);
    ck_assert_int_eq(logged("shard-0.log", "cannot be mapped here"), 1);
    ck_assert_int_eq(prlimit(cluster.shards[0], RLIMIT_AS, &was, NULL), 0);
}

static char told[2048];

static bool note_wait(void *context, const char *of, const char *text, int paused_ms)
{
    (void)context, (void)of, (void)paused_ms;
    snprintf(told, sizeof told, "%s", text);
    return true;
}

TEST_EACH(a_trainer_without_addresses_is_told_so_and_no_shard_is_blamed, 0, 2)
{
    static const char *const fabrics[] = { "mapped", "sealed" };
    static float values[ELEMS];
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = cluster.address,
                                     .fabric = fabrics[_i],
                                     .on_wait = note_wait };
    struct rlimit was;
    good(cairn_open(&opts, &session));
    allow_addresses(getpid(), &was, FEW_ADDRESSES);
    job = tiny_open(session, fabrics[_i], TINY(ELEMS));
    const struct cairn_round round = trainer_begin(job);
    tiny_push(job, &round, ELEMS, 1);
    const cairn_status status = trainer_try_commit(job, &round, NULL, 0, 1000);
    const bool is_said = strstr(cairn_error(), "this process has no memory to send to shard") !=
                         NULL;
    ck_assert_int_eq(prlimit(0, RLIMIT_AS, &was, NULL), 0);
    ck_assert_msg(status == CAIRN_ERR_TIMEOUT && is_said, "%d %s", (int)status, cairn_error());
    const struct cairn_result result = trainer_result(job, &round); // as the sentence says
    trainer_fetch(job, result.version, "w", NULL, CAIRN_F32, values);
    ck_assert_float_ne(values[ELEMS - 1], 1);
}

SUITE(getenv("CAIRN_TEST_LONG") != NULL ? 300 : 60, set_up, stop);

int main(void)
{
    if (CAIRN_NTH_FAIL[0] != '\0') return suite_main();
    printf("skip: a sanitizer has the allocator\n");
    return SUITE_SKIPPED;
}
