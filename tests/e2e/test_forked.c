/* A trainer whose loader was forked after it had connected is missed as soon as it is killed: its child keeps
 * no copy of the connection. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

/* The leases are longer than the test. */
enum { TRIES = 200, TRY_NS = 50 * 1000000 };

static struct cluster cluster;

/* In a process of its own: a step, then a loader that lives until the test closes `loader`; then nothing. */
static void train_with_loader(int ready, const int loader[2])
{
    struct tiny_job tiny;
    char end;
    tiny_describe(&tiny, 1000);
    cairn *session = tiny_session(&cluster, NULL);
    tiny_step(tiny_open(session, "tiny", &tiny));
    if (fork() == 0) {
        close(loader[1]);
        _exit(read(loader[0], &end, 1) == 0 ? 0 : 1);
    }
    if (write(ready, "r", 1) == 1) pause();
    _exit(1);
}

static bool has_no_worker(void)
{
    struct cluster_said said;
    cluster_cli(&cluster, &said, "job", "list", "--no-headers", "-ojson", NULL);
    return said.status == 0 && strstr(said.out, "\"workers\": 0") != NULL;
}

START_TEST(a_killed_trainer_is_missed_though_its_loader_lives)
{
    static const char *const lease[] = { "lease.timeout=60s", NULL };
    int ready[2], loader[2];
    char letter;
    bool missed = false;
    cluster_start(&cluster, 1, &(struct cluster_options) { .coordinator_set = lease });
    ck_assert(pipe(ready) == 0 && pipe(loader) == 0);
    const pid_t trainer = fork();
    ck_assert_int_ge(trainer, 0);
    if (trainer == 0) train_with_loader(ready[1], loader);
    close(ready[1]);
    ck_assert_int_eq((int)read(ready[0], &letter, 1), 1);
    ck_assert(!has_no_worker());
    cluster_kill(trainer);
    for (int i = 0; i < TRIES && !missed; i++) {
        missed = has_no_worker();
        if (!missed) nanosleep(&(struct timespec) { 0, TRY_NS }, NULL);
    }
    ck_assert(missed);
    close(loader[1]);
    close(loader[0]);
    close(ready[0]);
    cluster_stop(&cluster);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("forked");
    TCase *tc = tcase_create("forked");
    tcase_set_timeout(tc, 50);
    tcase_add_test(tc, a_killed_trainer_is_missed_though_its_loader_lives);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
