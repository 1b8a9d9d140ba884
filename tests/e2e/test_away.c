/* A shard is away, with real daemons: what is said of its job; and one that is gone for good is forgotten. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/support/cluster.h"
#include "tests/support/good.h"
#include "tests/support/suite.h"

enum { TRIES = 300, TRY_NS = 50 * 1000000 };

static struct cluster cluster;
static struct cluster_said said;

static void train_one_step(void)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = cluster.address };
    const struct cairn_tensor tensor = { .struct_size = sizeof tensor,
                                         .name = "w",
                                         .rank = 1,
                                         .shape = { 20000 },
                                         .init = { .kind = CAIRN_INIT_ONES } };
    const struct cairn_group group = CAIRN_GROUP_INIT;
    const struct cairn_job_spec spec = { .struct_size = sizeof spec,
                                         .tensors = &tensor,
                                         .tensor_count = 1,
                                         .groups = &group,
                                         .group_count = 1 };
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn *session;
    cairn_job *job;
    good(cairn_open(&opts, &session));
    good(cairn_job_open(session, "tiny", &spec, CAIRN_WORKER, CLUSTER_WAIT_MS, &job));
    good(cairn_init_done(job, NULL, CLUSTER_WAIT_MS));
    good(cairn_round_begin(job, CLUSTER_WAIT_MS, &round));
    good(cairn_commit(job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result));
    cairn_close(session);
}

/* `cairn ARGUMENTS`: its exit status, and a word of what it says. */
static void run(int status, const char *word, const char *const *a)
{
    cluster_cli(&cluster, &said, a[0], a[1], a[2], a[3], a[4], a[5], NULL);
    ck_assert_msg(said.status == status, "%s %s %s: %d: %s%s", a[0], a[1], a[2], said.status,
                  said.out, said.err);
    ck_assert_msg(strstr(said.out, word) != NULL || strstr(said.err, word) != NULL, "%s%s",
                  said.out, said.err);
}
#define RUN(status, word, ...) run(status, word, (const char *const[7]) { __VA_ARGS__ })

static void until_job_list_says(const char *word)
{
    for (int i = 0; i < TRIES; i++) {
        cluster_cli(&cluster, &said, "job", "list", "--no-headers", NULL);
        if (said.status == 0 && strstr(said.out, word) != NULL) return;
        nanosleep(&(struct timespec) { 0, TRY_NS }, NULL);
    }
    ck_abort_msg("%s%s", said.out, said.err);
}

START_TEST(after_a_restart_a_job_is_waiting_and_its_step_unknown_until_its_shards_have_told)
{
    char name[32], state[32], generation[32], step[32];
    cluster_start(&cluster, 2, NULL);
    train_one_step();
    cluster_kill_coordinator(&cluster);
    cluster_kill_shard(&cluster, 1);
    cluster_restart_coordinator(&cluster);
    until_job_list_says("shard shard-1 (it is away)"); // the other one is back
    ck_assert_int_eq(sscanf(said.out, "%31s %31s %31s %31s", name, state, generation, step), 4);
    ck_assert_str_eq(state, "waiting");
    ck_assert_str_eq(generation, "-");
    ck_assert_str_eq(step, "-");
    RUN(0, "unknown: not all shards have told it", "job", "show", "tiny");
    RUN(0, "\"step\": null", "job", "show", "tiny", "-ojson");
    cluster_stop(&cluster);
}
END_TEST

START_TEST(a_shard_that_died_is_forgotten_when_its_job_has_gone)
{
    cluster_start(&cluster, 2, NULL);
    train_one_step();
    RUN(11, "is connected from", "shard", "forget", "shard-1");
    cluster_kill_shard(&cluster, 1);
    until_job_list_says("shard shard-1 (it is away)");
    RUN(11, "job tiny has a part on shard shard-1", "shard", "forget", "shard-1");
    RUN(0, "shard-1", "job", "drop", "tiny", "--yes");
    RUN(0, "away", "cluster", "status");
    RUN(0, "shard-1", "shard", "forget", "shard-1");
    RUN(0, "shard-0", "cluster", "status");
    ck_assert_ptr_null(strstr(said.out, "shard-1"));
    RUN(4, "no shard shard-1", "shard", "forget", "shard-1");
    cluster_stop(&cluster);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("away");
    TCase *tc = tcase_create("away");
    tcase_set_timeout(tc, 110);
    tcase_add_test(
        tc, after_a_restart_a_job_is_waiting_and_its_step_unknown_until_its_shards_have_told);
    tcase_add_test(tc, a_shard_that_died_is_forgotten_when_its_job_has_gone);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
