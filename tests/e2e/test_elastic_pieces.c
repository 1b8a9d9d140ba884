/* A job whose shards leave and come back in turn while it trains lies in at most twice the pieces of a fresh
 * layout each time, and in at most twice its files in a snapshot; and it has the content root of a run that
 * nobody disturbs. CAIRN_TEST_LONG=1 makes 200 changes. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "tests/e2e/elastic_worker.h"
#include "tests/support/cluster.h"
#include "tests/support/suite.h"

enum {
    CHANGES = 6,
    CHANGES_LONG = 200,
    STEPS_MORE = 3,
    STEP_MS = 50 /* in the mean */
};

/* On the seven shards the plans of some changes move more than the least: shards give and take at once. */
static const struct {
    const struct elastic_model *model;
    int shards;
    bool gathers;
} cases[] = { { &elastic_models[0], 7, true }, { &elastic_models[1], 3, false } };

static struct cluster cluster;
static struct elastic_shared *shared;
static pid_t worker;
static int gathered; // plans that moved more than the least

static int changes(void)
{
    return getenv("CAIRN_TEST_LONG") != NULL ? CHANGES_LONG : CHANGES;
}

static void start(const struct elastic_model *model, int shards, uint64_t until)
{
    cluster_start(&cluster, shards, NULL);
    shared = elastic_share();
    atomic_store(&shared->until, until);
    worker = elastic_start(cluster.address, model, 0, shared);
}

static void await_steps(uint64_t more)
{
    const uint64_t goal = atomic_load(&shared->step) + more;
    while (atomic_load(&shared->step) < goal) {
        ck_assert_int_eq(cluster_wait(worker, 0), -1);
        nanosleep(&(struct timespec) { .tv_nsec = 2000000 }, NULL);
    }
}

static void stop(const struct elastic_model *model, char root_out[CLUSTER_WORD_BYTES])
{
    const uint64_t steps = atomic_load(&shared->until);
    ck_assert_int_eq(cluster_wait(worker, CLUSTER_WAIT_MS + (int)steps * STEP_MS), 0);
    cluster_word(&cluster, root_out, "job", "digest", "-q", model->name, NULL);
    cluster_stop(&cluster);
    munmap(shared, sizeof *shared);
}

static long number_of(const struct cluster_said *said, const char *key)
{
    const char *at = strstr(said->out, key);
    ck_assert_msg(at != NULL, "no %s in: %s", key, said->out);
    return strtol(at + strlen(key), NULL, 10);
}

/* What is planned, and is then: in pieces. */
static void move(const struct elastic_model *model, const char *option, const char *shard,
                 bool last)
{
    static struct cluster_said plan, shown;
    cluster_cli(&cluster, &plan, "reshard", "plan", model->name, option, shard, "-o", "json", NULL);
    ck_assert_msg(plan.status == 0, "%s", plan.err);
    const long planned = number_of(&plan, "\"pieces_after\":");
    const long fresh = number_of(&plan, "\"pieces_fresh\":");
    gathered += number_of(&plan, "\"afresh\":") > 0;
    ck_assert_int_gt(planned, 0);
    ck_assert_int_le(planned, 2 * fresh);
    cluster_says(&cluster, 0, "", "reshard", "apply", model->name, option, shard, NULL);
    cluster_cli(&cluster, &shown, "job", "show", model->name, "-o", "json", NULL);
    ck_assert_int_eq(number_of(&shown, "\"pieces\":"), planned);
    await_steps(1);
    if (last)
        printf("%s, %d changes: %ld pieces, a fresh layout has %ld; %ld extents; %d moved more "
               "than the "
               "least\n",
               model->name, changes(), planned, fresh, number_of(&shown, "\"extents\":"), gathered);
}

/* Of weights alone: a fresh layout has one a shard. */
static int count_files(const struct elastic_model *model)
{
    char id[CLUSTER_WORD_BYTES], path[sizeof cluster.snapshots_path + 2 * CLUSTER_WORD_BYTES];
    int count = 0;
    cluster_word(&cluster, id, "snapshot", "create", model->name, "--wait", "-q", NULL);
    snprintf(path, sizeof path, "%s/%s/%s/model", cluster.snapshots_path, model->name, id);
    DIR *folder = opendir(path);
    ck_assert_msg(folder != NULL, "no folder %s", path);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;)
        count += strstr(entry->d_name, ".safetensors") != NULL;
    closedir(folder);
    return count;
}

TEST_EACH(shards_that_leave_and_return_in_turn_leave_a_job_in_few_pieces_and_change_no_bit, 0,
          sizeof cases / sizeof *cases)
{
    const struct elastic_model *model = cases[_i].model;
    const int shards = cases[_i].shards;
    char root[CLUSTER_WORD_BYTES], calm[CLUSTER_WORD_BYTES];
    start(model, shards, UINT64_MAX);
    await_steps(1);
    for (int i = 0; i < changes(); i++) {
        char shard[24];
        snprintf(shard, sizeof shard, "shard-%d", i / 2 % shards);
        move(model, i % 2 == 0 ? "--drain" : "--add", shard, i + 1 == changes());
    }
    const int files = count_files(model);
    ck_assert_int_ge(files, shards);
    ck_assert_int_le(files, 2 * shards);
    ck_assert(gathered > 0 || !cases[_i].gathers);
    const uint64_t until = atomic_load(&shared->step) + STEPS_MORE;
    atomic_store(&shared->until, until);
    stop(model, root);
    start(model, 1, until);
    stop(model, calm);
    ck_assert_str_eq(root, calm);
}

SUITE(getenv("CAIRN_TEST_LONG") != NULL ? 1800 : 120);
