/* A restored run goes on bit for bit as the one that was never interrupted: of each optimizer that there is,
 * on any number of shards, twice in a row, after a load, and with no step trained yet. With all that a
 * version has: client state, schedules, a loss scale that moves, a blob, several groups, an amendment, state
 * that no optimizer keeps, tensors without elements, and fewer elements than shards.
 *
 * What is compared is the content root, which has all of it. CAIRN_TEST_LONG=1 goes from each of 1 to 8
 * shards to each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "tests/support/cluster.h"
#include "tests/support/good.h"
#include "tests/support/reference.h"
#include "tests/support/suite.h"
#include "tests/support/trainer.h"

enum {
    JOBS_MAX = CAIRN_OPTIMIZER_COUNT + 2,
    GROUPS_MAX = CAIRN_OPTIMIZER_COUNT,
    TENSORS_MAX = 3 * GROUPS_MAX + 2,
    NAME_BYTES = 32,
    BLOB_BYTES = 4100,
    ELEMS_MAX = 3 * 5000,
    AMEND_STEP = 4, /* the first one by other terms */
    MIDDLE_STEP = 3,
    LATER_STEP = 5,
    END_STEP = 8,
    ROOT_BYTES = CLUSTER_WORD_BYTES
};

/* ---- jobs ---- */

/* One of each optimizer; "all" has a group of each; "bare" a single element that has no other state. */
struct kept_job {
    char name[NAME_BYTES], tensor_names[TENSORS_MAX][NAME_BYTES],
        group_names[GROUPS_MAX][NAME_BYTES];
    struct cairn_tensor tensors[TENSORS_MAX];
    struct cairn_group groups[GROUPS_MAX];
    struct cairn_job_spec spec;
};

static struct kept_job jobs[JOBS_MAX];
static int job_count;

static struct kept_job *add_job(const char *name)
{
    struct kept_job *job = &jobs[job_count++];
    snprintf(job->name, sizeof job->name, "%s", name);
    job->spec = (struct cairn_job_spec) { .struct_size = sizeof job->spec,
                                          .tensors = job->tensors,
                                          .groups = job->groups,
                                          .clip_norm = 2,
                                          .loss_scale = 8,
                                          .loss_scale_max = 1024,
                                          .loss_scale_policy = CAIRN_LOSS_SCALE_DYNAMIC,
                                          .loss_scale_growth_steps = 2,
                                          .client_state_max = 8,
                                          .chunk_leaves = 2 };
    return job;
}

/* By the optimizer's own table: what it does not use must stay as it is. */
static void add_group(struct kept_job *job, const char *optimizer, bool bare)
{
    const size_t number = job->spec.group_count++;
    struct cairn_group *group = &job->groups[number];
    const struct optimizer_kind *info = optimizer_by_name(optimizer);
    *group = (struct cairn_group)CAIRN_GROUP_INIT;
    snprintf(job->group_names[number], NAME_BYTES, "of-%s", optimizer);
    group->name = job->group_names[number];
    group->optimizer = optimizer;
    group->lr = 0.01;
    group->weight_decay = bare ? 0 : 0.02;
    if (!bare && optimizer_hyper(info, "momentum") != NULL) group->momentum = 0.9;
    group->schedule = CAIRN_SCHEDULE_COSINE;
    group->warmup_steps = 2;
    group->total_steps = 20;
}

static struct cairn_tensor *add_tensor(struct kept_job *job, const char *name, const char *group)
{
    const size_t number = job->spec.tensor_count++;
    struct cairn_tensor *tensor = &job->tensors[number];
    snprintf(job->tensor_names[number], NAME_BYTES, "%s.%s", name, group != NULL ? group : "x");
    *tensor = (struct cairn_tensor) { .struct_size = sizeof *tensor,
                                      .name = job->tensor_names[number],
                                      .group = group,
                                      .init = { .kind = CAIRN_INIT_ONES } };
    return tensor;
}

/* A row of two leaves; less than a leaf, in bf16; none at all. */
static void add_tensors(struct kept_job *job, const char *group)
{
    struct cairn_tensor *tensor = add_tensor(job, "wide", group);
    tensor->rank = 2;
    tensor->shape[0] = 3;
    tensor->shape[1] = 5000;
    tensor = add_tensor(job, "row", group);
    tensor->rank = 1;
    tensor->shape[0] = 61;
    tensor->wire = CAIRN_BF16;
    tensor = add_tensor(job, "empty", group);
    tensor->rank = 2;
    tensor->shape[1] = 7;
}

static void add_blob(struct kept_job *job)
{
    struct cairn_tensor *tensor = add_tensor(job, "blob", NULL);
    tensor->kind = CAIRN_BLOB;
    tensor->init.kind = 0;
    tensor->rank = 1;
    tensor->shape[0] = BLOB_BYTES;
}

static void describe_jobs(void)
{
    const char *const *names = optimizer_names();
    for (; *names != NULL; names++) {
        struct kept_job *job = add_job(*names);
        add_group(job, *names, false);
        add_tensors(job, job->group_names[0]);
        add_blob(job);
    }
    struct kept_job *all = add_job("all"), *bare = add_job("bare");
    for (names = optimizer_names(); *names != NULL; names++) {
        add_group(all, *names, false);
        add_tensors(all, all->group_names[all->spec.group_count - 1]);
    }
    add_group(bare, "sgd", true);
    add_tensor(bare, "scalar", bare->group_names[0]);
}

/* ---- the trainer ---- */

static void push_all(const struct kept_job *job, cairn_job *handle, const struct cairn_round *round)
{
    static float gradient[ELEMS_MAX];
    for (size_t t = 0; t < job->spec.tensor_count; t++) {
        const struct cairn_tensor *tensor = &job->tensors[t];
        const struct cairn_mem mem = trainer_mem(gradient, CAIRN_F32);
        cairn_op *op;
        if (tensor->kind == CAIRN_BLOB) continue;
        for (size_t i = 0; i < trainer_elems(tensor); i++)
            gradient[i] = (float)round->loss_scale * reference_noise(100 * round->step + t, i);
        good(cairn_push(handle, round, 0, tensor->name, NULL, &mem, &op));
        good(cairn_wait(op, CLUSTER_WAIT_MS));
    }
}

/* From AMEND_STEP on the first group has a larger rate. */
static void amend(const struct kept_job *job, cairn_job *handle)
{
    struct cairn_group group = job->groups[0];
    group.lr *= 2;
    const struct cairn_amend amend = { .struct_size = sizeof amend,
                                       .groups = &group,
                                       .group_count = 1 };
    good(cairn_job_amend(handle, &amend, CLUSTER_WAIT_MS));
}

/* The client state of a version is its step. */
static uint64_t step_of(cairn_job *handle)
{
    struct cairn_version version;
    uint64_t step = 0;
    size_t bytes;
    good(cairn_client_state(handle, &step, sizeof step, CLUSTER_WAIT_MS, &bytes, &version));
    ck_assert_uint_eq(bytes, version.step > 0 ? sizeof step : 0);
    ck_assert_uint_eq(step, version.step);
    return version.step;
}

static void initialize(const struct kept_job *job, cairn_job *handle)
{
    static uint8_t blob[BLOB_BYTES];
    for (size_t i = 0; i < sizeof blob; i++) blob[i] = (uint8_t)(7 * i);
    const struct cairn_mem mem = trainer_mem(blob, CAIRN_U8);
    const struct cairn_tensor *last = &job->tensors[job->spec.tensor_count - 1];
    if (last->kind == CAIRN_BLOB) {
        const cairn_status status = cairn_put(handle, last->name, "param", NULL, &mem, NULL);
        ck_assert_msg(status == CAIRN_OK || status == CAIRN_ERR_EXISTS, "%s", cairn_error());
    }
    good(cairn_init_done(handle, NULL, CLUSTER_WAIT_MS));
}

static void train(const struct cluster *cluster, const struct kept_job *job, uint64_t until_step)
{
    cairn *session = trainer_session(cluster->address, NULL);
    cairn_job *handle = trainer_open(session, job->name, &job->spec);
    initialize(job, handle);
    for (uint64_t step = step_of(handle); step < until_step; step++) {
        struct cairn_result result = { .struct_size = sizeof result };
        if (step == AMEND_STEP) amend(job, handle);
        const struct cairn_round round = trainer_begin(handle);
        const uint64_t next = step + 1;
        ck_assert_uint_eq(round.step, step);
        push_all(job, handle, &round);
        good(cairn_commit(handle, &round, 1, &next, sizeof next, CLUSTER_WAIT_MS, &result));
        ck_assert(result.applied);
    }
    cairn_close(session);
}

/* ---- what the jobs of a cluster have come to ---- */

typedef char job_words[JOBS_MAX][ROOT_BYTES];

static void train_all(const struct cluster *cluster, uint64_t until_step, job_words roots_out)
{
    for (int i = 0; i < job_count; i++) {
        train(cluster, &jobs[i], until_step);
        cluster_word(cluster, roots_out[i], "job digest -q %s", jobs[i].name);
    }
}

static void snapshot_all(const struct cluster *cluster, job_words ids_out)
{
    for (int i = 0; i < job_count; i++)
        cluster_word(cluster, ids_out[i], "snapshot create %s --wait -q", jobs[i].name);
}

static void check_roots(const char *what, job_words roots, job_words wanted)
{
    for (int i = 0; i < job_count; i++)
        ck_assert_msg(strcmp(roots[i], wanted[i]) == 0, "%s of job \"%s\": %s, not %s", what,
                      jobs[i].name, roots[i], wanted[i]);
}

/* The run that nobody interrupts, and what it has saved. */
static struct {
    struct cluster cluster;
    job_words begin_roots, begin_ids, middle_roots, middle_ids, later_roots, end_roots;
} whole;

static void run_whole(int shards)
{
    cluster_start(&whole.cluster, shards, NULL);
    train_all(&whole.cluster, 0, whole.begin_roots);
    snapshot_all(&whole.cluster, whole.begin_ids);
    train_all(&whole.cluster, MIDDLE_STEP, whole.middle_roots);
    snapshot_all(&whole.cluster, whole.middle_ids);
    train_all(&whole.cluster, LATER_STEP, whole.later_roots);
    train_all(&whole.cluster, END_STEP, whole.end_roots);
}

static void open_beside(struct cluster *cluster, int shards)
{
    const struct cluster_options options = { .snapshots_path = whole.cluster.snapshots_path };
    cluster_start(cluster, shards, &options);
}

/* Of another cluster's key, so they are not trusted by themselves. */
static void restore_all(const struct cluster *cluster, job_words ids, job_words wanted)
{
    job_words roots;
    for (int i = 0; i < job_count; i++) {
        cluster_says(cluster, 0, "", "snapshot restore %s %s --yes --allow-untrusted", jobs[i].name,
                     ids[i]);
        cluster_word(cluster, roots[i], "job digest -q %s", jobs[i].name);
    }
    check_roots("what was restored", roots, wanted);
}

static void train_alike(const struct cluster *cluster, uint64_t until_step, job_words wanted)
{
    job_words roots;
    train_all(cluster, until_step, roots);
    check_roots("the end", roots, wanted);
}

TEST(restored_runs_go_on_as_the_one_that_nobody_interrupted)
{
    struct cluster cluster;
    job_words later_ids;
    describe_jobs();
    run_whole(3);
    open_beside(&cluster, 8);
    restore_all(&cluster, whole.middle_ids, whole.middle_roots);
    train_alike(&cluster, LATER_STEP, whole.later_roots);
    restore_all(&cluster, whole.middle_ids, whole.middle_roots); // once more, over what it became
    train_alike(&cluster, LATER_STEP, whole.later_roots);
    snapshot_all(&cluster, later_ids); // of what was loaded
    cluster_stop(&cluster);
    open_beside(&cluster, 1);
    restore_all(&cluster, later_ids, whole.later_roots);
    train_alike(&cluster, END_STEP, whole.end_roots);
    cluster_stop(&cluster);
    open_beside(&cluster, 5);
    restore_all(&cluster, whole.begin_ids, whole.begin_roots);
    train_alike(&cluster, END_STEP, whole.end_roots);
    cluster_stop(&cluster);
    cluster_stop(&whole.cluster);
}

TEST_EACH(every_number_of_shards_goes_on_for_every_other, 1, 1 + CLUSTER_SHARDS_MAX)
{
    struct cluster cluster;
    if (getenv("CAIRN_TEST_LONG") == NULL) return;
    describe_jobs();
    run_whole(_i);
    for (int shards = 1; shards <= CLUSTER_SHARDS_MAX; shards++) {
        open_beside(&cluster, shards);
        restore_all(&cluster, whole.middle_ids, whole.middle_roots);
        train_alike(&cluster, END_STEP, whole.end_roots);
        cluster_stop(&cluster);
    }
    cluster_stop(&whole.cluster);
}

SUITE(240);
