/* A job whose shards leave and come back in turn while it trains lies in at most twice the pieces of a fresh
 * layout each time, and in at most twice its files in a snapshot; and it has the content root of a run that
 * nobody disturbs. CAIRN_TEST_LONG=1 makes 200 changes. */
#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>

#include "tests/e2e/elastic_worker.h"
#include "tests/e2e/scene.h"

enum { CHANGES = 6, CHANGES_LONG = 200, STEPS_MORE = 3 };

/* On the seven shards the plans of some changes move more than the least: shards give and take at once. */
static const struct {
    const struct elastic_model *model;
    int shards;
    bool gathers;
} cases[] = { { &elastic_models[0], 7, true }, { &elastic_models[1], 3, false } };

static struct elastic_run run;
static int gathered; // plans that moved more than the least

static int changes(void)
{
    return getenv("CAIRN_TEST_LONG") != NULL ? CHANGES_LONG : CHANGES;
}

/* What is planned, and is then: in pieces. */
static void move(const char *option, const char *shard, bool last)
{
    const char *name = run.model->name;
    ask("reshard plan %s %s %s -o json", name, option, shard);
    expect_said(0, "\"pieces_after\":", "\"pieces_fresh\":", "\"afresh\":");
    const int64_t planned = said_number("jobs.0.pieces_after"),
                  fresh = said_number("jobs.0.pieces_fresh");
    gathered += said_number("jobs.0.afresh") > 0;
    ck_assert_int_gt(planned, 0);
    ck_assert_int_le(planned, 2 * fresh);
    says(0, "", "reshard apply %s %s %s", name, option, shard);
    ask("job show %s -o json", name);
    ck_assert_int_eq(said_number("pieces"), planned);
    elastic_await(&run, 1);
    if (last)
        printf("%s, %d changes: %" PRId64 " pieces, a fresh layout has %" PRId64 "; %" PRId64
               " extents; %d moved more than the least\n",
               name, changes(), planned, fresh, said_number("extents"), gathered);
}

/* Of weights alone: a fresh layout has one a shard. */
static int count_files(const char *name)
{
    char id[CLUSTER_WORD_BYTES], path[600];
    int count = 0;
    word_of(id, "snapshot create %s --wait -q", name);
    snprintf(path, sizeof path, "%s/model", snapshot_folder(name, id));
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
    start(shards);
    run = elastic_begin(model, UINT64_MAX);
    elastic_await(&run, 1);
    for (int i = 0; i < changes(); i++) {
        char shard[24];
        snprintf(shard, sizeof shard, "shard-%d", i / 2 % shards);
        move(i % 2 == 0 ? "--drain" : "--add", shard, i + 1 == changes());
    }
    const int files = count_files(model->name);
    ck_assert_int_ge(files, shards);
    ck_assert_int_le(files, 2 * shards);
    ck_assert(gathered > 0 || !cases[_i].gathers);
    const uint64_t until = elastic_bound(&run, STEPS_MORE);
    elastic_end(&run, root);
    stop();
    start(1);
    run = elastic_begin(model, until);
    elastic_end(&run, calm);
    stop();
    ck_assert_str_eq(root, calm);
}

SUITE(getenv("CAIRN_TEST_LONG") != NULL ? 1800 : 120);
