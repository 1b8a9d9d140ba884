/* A snapshot is created, and one removed, by a process that is killed before one of its system calls, or one
 * whose call fails: what is listed afterwards is whole, what was there before is there, and nothing is synced
 * twice.
 *
 * Some calls are tried; CAIRN_TEST_LONG=1: all, also on a full disk. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/call_fault.h"
#include "tests/support/cluster.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

enum { STRIDE = 4, CALLS_MAX = 4000, SAID_BYTES = 4096 };

static const char first[] = "step-000000000001-g1", second[] = "step-000000000002-g1";
static const struct operation {
    const char *command, *step;
    bool keeps_first;
} operations[] = { { "create", "3", true }, { "remove", "1", false } };
enum { OPERATIONS = sizeof operations / sizeof *operations };

static char folder[CAIRN_SCRATCH_BYTES], base[CAIRN_SCRATCH_BYTES + 16];
static char root[CAIRN_SCRATCH_BYTES + 16], output[CAIRN_SCRATCH_BYTES + 16];
static char what[128]; // the point, for whoever reads a failure

static bool is_long(void)
{
    return getenv("CAIRN_TEST_LONG") != NULL;
}

/* ---- programs, and what they say ---- */

static int run(const char *const *argv)
{
    unlink(output);
    const int status = cluster_wait(cluster_spawn(argv, output), CLUSTER_WAIT_MS);
    ck_assert_msg(status != -1, "%s: %s hangs", what, argv[0]);
    return status;
}

static int steps(const char *command, const char *where, const char *step)
{
    const char *const argv[] = { CAIRN_BIN_DIR "/tests/storage_steps", command, where, step, NULL };
    return run(argv);
}

static const char *said(void)
{
    static char text[SAID_BYTES];
    FILE *file = fopen(output, "re");
    text[file != NULL ? fread(text, 1, sizeof text - 1, file) : 0] = '\0';
    if (file != NULL) fclose(file);
    return text;
}

static void set_up(void)
{
    // In memory a point takes little; a disk, and writes around the page cache, in a long run.
    if (is_long())
        cairn_scratch_make(folder);
    else
        cairn_scratch_make_quick(folder);
    snprintf(base, sizeof base, "%s/base", folder);
    snprintf(root, sizeof root, "%s/root", folder);
    snprintf(output, sizeof output, "%s/said", folder);
    const char *const argv[] = { "mkdir", base, NULL };
    ck_assert_int_eq(run(argv), 0);
    ck_assert_msg(steps("create", base, "1") == 0, "%s", said());
    ck_assert_msg(steps("create", base, "2") == 0, "%s", said());
}

static void tear_down(void)
{
    cairn_scratch_remove(folder);
}

/* ---- a fault, and what holds then ---- */

static void all_is_well(const struct operation *o)
{
    const int status = steps("check", root, NULL);
    ck_assert_msg(status == 0, "%s: %d: %s", what, status, said());
    ck_assert_msg(strstr(said(), second) != NULL, "%s: %s is gone: %s", what, second, said());
    ck_assert_msg(!o->keeps_first || strstr(said(), first) != NULL, "%s: %s is gone: %s", what,
                  first, said());
}

/* The status of the process. */
static int run_at(const struct operation *o, struct call_fault *fault)
{
    // The same files: nobody writes one again. Who did would be met at all points that follow.
    const char *const copy[] = { "cp", "-rl", base, root, NULL };
    const char *const argv[] = { CAIRN_BIN_DIR "/tests/storage_steps", o->command, root, o->step,
                                 NULL };
    struct tracer tracer;
    cairn_scratch_remove(root);
    ck_assert_int_eq(run(copy), 0);
    unlink(output);
    tracer_start(&tracer, argv, output, call_fault_judge, fault);
    const int status = tracer_await(&tracer, tracer.process, CLUSTER_WAIT_MS);
    ck_assert_msg(status != -1, "%s: it hangs", what);
    return status;
}

static void nothing_is_synced_twice(const struct call_fault *fault)
{
    const char *twice = call_fault_synced_twice(fault);
    ck_assert_msg(twice == NULL, "%s: synced twice: %s", what, twice);
}

/* Whether there is such a call. */
static bool meets(const struct operation *o, struct call_fault *fault)
{
    snprintf(what, sizeof what, "%s, call %u, %s", o->command, fault->nth,
             fault->fate == TRACER_KILLS ? "killed" : strerror(fault->fate));
    const int status = run_at(o, fault);
    if (fault->met == NULL) {
        ck_assert_msg(status == 0, "%s: %d: %s", what, status, said());
    } else if (fault->fate == TRACER_KILLS) {
        ck_assert_msg(status == 128 + SIGKILL, "%s: %s: %d", what, fault->met, status);
    } else if (status != 0) {
        ck_assert_msg(said()[0] != '\0', "%s: %s: it fails without a word", what, fault->met);
        ck_assert_msg(status < 128, "%s: %s: %d: %s", what, fault->met, status, said());
    }
    nothing_is_synced_twice(fault);
    all_is_well(o);
    return fault->met != NULL;
}

static unsigned each_call(int fate)
{
    static struct call_fault fault;
    const unsigned stride = is_long() ? 1 : STRIDE;
    unsigned points = 0;
    for (int i = 0; i < OPERATIONS; i++) {
        unsigned nth = 1;
        do {
            ck_assert_uint_lt(nth, CALLS_MAX);
            fault = (struct call_fault) { .nth = nth, .fate = fate };
            nth += stride;
            points++;
        } while (meets(&operations[i], &fault));
    }
    return points - OPERATIONS; // the last of each was not there
}

static const int fates[] = { TRACER_KILLS, EIO, ENOSPC };

TEST_EACH(whatever_becomes_of_a_call_what_is_listed_is_whole, 0, is_long() ? 3 : 2)
{
    const int fate = fates[_i];
    const unsigned points = each_call(fate);
    printf("note: %u calls: %s\n", points, fate == TRACER_KILLS ? "killed" : strerror(fate));
    ck_assert_uint_gt(points, 0);
}

TEST(an_fsync_that_fails_fails_the_snapshot)
{
    static struct call_fault fault;
    const struct operation *create = &operations[0];
    unsigned failed = 0;
    for (bool is_met = true; is_met; failed += is_met) {
        fault = (struct call_fault) { .nth = failed + 1, .fate = EIO, .syncs_only = true };
        snprintf(what, sizeof what, "sync %u fails", fault.nth);
        const int status = run_at(create, &fault);
        is_met = fault.met != NULL;
        ck_assert_msg(status == is_met, "%s: %d: %s", what, status, said());
        ck_assert_msg(!is_met || strstr(said(), "fsync of") != NULL, "%s: %s", what, said());
        nothing_is_synced_twice(&fault);
        all_is_well(create);
    }
    printf("note: %u syncs failed\n", failed);
    ck_assert_uint_gt(failed, 0);
}

SUITE(900, set_up, tear_down);

int main(void)
{
    return tracer_works() ? suite_main() : SUITE_SKIPPED;
}
