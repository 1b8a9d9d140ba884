/* A trainer that gets no memory, no descriptor or no thread, once, at any point of its life: every call does
 * what it should or says so and may be made again, no gradient is lost, and its process goes on. Some points
 * are tried; CAIRN_TEST_LONG=1: each one, in two stages (tests/support/nth/nth_scene.c). */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cairn.h>

#include "tests/support/cluster.h"
#include "tests/support/suite.h"

enum { SCENES_MS = 240000 };

static struct cluster cluster;

static void set_up(void)
{
    cluster_start(&cluster, 1, NULL);
}

static void tear_down(void)
{
    cluster_stop(&cluster);
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
    { "memory", "libcairn.so", "9", "31", NULL },   { "memory", "libcairn.so", "20", "41", "ucx" },
    { "memory", "libprotobuf-c", "6", "37", NULL }, { "descriptors", "", "8", "27", NULL },
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
    cairn *session;
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
    ck_assert_msg(cairn_open(&opts, &session) == CAIRN_OK, "%s", cairn_error());
    cairn_close(session);
}

SUITE(getenv("CAIRN_TEST_LONG") != NULL ? 300 : 60, set_up, tear_down);

int main(void)
{
    if (CAIRN_NTH_FAIL[0] != '\0') return suite_main();
    printf("skipped: a sanitizer has the allocator\n");
    return SUITE_SKIPPED;
}
