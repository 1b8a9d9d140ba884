/* What a job goes by, on real daemons: schedules, stages, aliases, patterns, buffers, amendments. The
 * optimizer is SGD without momentum and every gradient is 1, so that parameters say what the rates were. */
#include <stdlib.h>

#include "tests/e2e/scene.h"

enum { ROWS = 4, COLUMNS = 3, WEIGHTS = ROWS * COLUMNS, BIAS = 5, COUNTS = 2 };

/* A job of two groups, with a buffer and two aliases; a test changes what it wants to. */
static struct cairn_tensor tensors[5];
static struct cairn_group groups[2];
static struct cairn_job_spec spec;

static struct cairn_tensor tensor(const char *name, uint32_t rank, uint64_t rows, uint64_t columns)
{
    return (struct cairn_tensor) { .struct_size = sizeof(struct cairn_tensor),
                                   .name = name,
                                   .rank = rank,
                                   .shape = { rows, columns } };
}

static void describe(void)
{
    static const struct cairn_box rows = { 2, { 1, 1 }, { 2, 2 } };
    struct cairn_group group = CAIRN_GROUP_INIT;
    group.optimizer = "sgd";
    group.lr = 1;
    groups[0] = groups[1] = group;
    groups[0].name = "body";
    groups[0].pattern = "body.*";
    groups[1].name = "head";
    groups[1].pattern = "*";
    groups[1].lr = 0.25;
    tensors[0] = tensor("body.weight", 2, ROWS, COLUMNS);
    tensors[1] = tensor("head.bias", 1, BIAS, 0);
    tensors[2] = tensor("counts", 1, COUNTS, 0);
    tensors[2].kind = CAIRN_BUFFER;
    tensors[3] = tensor("tied", 2, ROWS, COLUMNS);
    tensors[3].alias_of = "body.weight";
    tensors[4] = tensor("part", 2, 2, 2);
    tensors[4].alias_of = "body.weight";
    tensors[4].alias_box = &rows;
    spec = (struct cairn_job_spec) { .struct_size = sizeof spec,
                                     .tensors = tensors,
                                     .tensor_count = 5,
                                     .groups = groups,
                                     .group_count = 2 };
}

static cairn_status try_open(const char *name)
{
    session = trainer_session(cluster.address, NULL);
    return cairn_job_open(session, name, &spec, CAIRN_WORKER, CLUSTER_WAIT_MS, &job);
}

/* Opens the job; a new one begins with weights 0 to 11, biases 0 to 4, counts 0 to 1. */
static void open_job(const char *name)
{
    float values[WEIGHTS];
    for (int i = 0; i < WEIGHTS; i++) values[i] = (float)i;
    good(try_open(name));
    struct cairn_job_info info = { .struct_size = sizeof info };
    good(cairn_job_describe(job, &info));
    if (!info.initialized) {
        trainer_put(job, "tied", values); // the initial state of its target
        trainer_put(job, "head.bias", values);
        trainer_put(job, "counts", values);
    }
    good(cairn_init_done(job, NULL, CLUSTER_WAIT_MS));
}

static cairn_status push(const struct cairn_round *round, const char *name)
{
    static float ones[WEIGHTS] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    const struct cairn_mem mem = trainer_mem(ones, CAIRN_F32);
    return cairn_push(job, round, 0, name, NULL, &mem, NULL);
}

/* A round with both gradients; the learning rate of "body", the first group. */
static double train_job(void)
{
    const struct cairn_round round = trainer_begin(job);
    good(push(&round, "body.weight"));
    good(push(&round, "head.bias"));
    return trainer_commit(job, &round, 0).lr;
}

static void fetch(const char *name, const struct cairn_box *box, float *out)
{
    const struct cairn_mem mem = trainer_mem(out, CAIRN_F32);
    cairn_op *op;
    good(cairn_fetch(job, newest(job), name, NULL, box, &mem, &op));
    good(cairn_wait(op, CLUSTER_WAIT_MS));
}

static float first(const char *name)
{
    float values[WEIGHTS];
    fetch(name, NULL, values);
    return values[0];
}

TEST(a_restored_job_goes_on_in_the_middle_of_its_schedule)
{
    const double rates[] = { 0, 0.5, 1, 0.75, 0.5, 0.25, 0 };
    char id[64], uninterrupted[128];
    start(2);
    groups[0].schedule = CAIRN_SCHEDULE_LINEAR;
    groups[0].warmup_steps = 2;
    groups[0].total_steps = 6;
    groups[1].schedule = CAIRN_SCHEDULE_COSINE;
    groups[1].total_steps = 7;
    open_job("tiny");
    says(0, "linear warm-up 2 total 6; lr of the next round 0", "job show tiny");
    for (int k = 0; k < 3; k++) ck_assert(train_job() == rates[k]);
    ck_assert(first("body.weight") == -1.5F);
    good(cairn_snapshot(job, CAIRN_SNAPSHOT_WAIT, CLUSTER_WAIT_MS, id));
    restart_coordinator();
    for (int k = 3; k < 7; k++) ck_assert(train_job() == rates[k]);
    trainer_digest(&cluster, "tiny", uninterrupted);
    leave();
    says(0, "", "snapshot restore tiny %s --yes", id);
    open_job("tiny");
    for (int k = 3; k < 7; k++) ck_assert(train_job() == rates[k]);
    trainer_expect_digest(&cluster, "tiny", uninterrupted);
}

TEST(every_stage_gives_the_same_bits_with_one_micro_batch)
{
    static const char *const names[] = { "stage-0", "stage-1", "stage-2", "stage-3", "default" };
    char roots[5][128];
    start(3);
    for (uint32_t stage = 0; stage < 5; stage++) {
        struct cairn_job_info info = { .struct_size = sizeof info };
        describe();
        spec.stage = stage < 4 ? CAIRN_STAGE(stage) : 0;
        open_job(names[stage]);
        good(cairn_job_describe(job, &info));
        ck_assert_uint_eq(info.stage, stage < 4 ? CAIRN_STAGE(stage) : CAIRN_STAGE(2));
        for (int k = 0; k < 3; k++) train_job();
        trainer_digest(&cluster, names[stage], roots[stage]);
        ck_assert_str_eq(roots[stage], roots[0]);
        leave();
    }
    says(0, "shards            1,", "job show stage-0");
    says(0, "shards            3,", "job show stage-1");
    says(0, "every micro-batch pushed", "job show stage-2");
}

TEST(jobs_of_stage_0_go_to_the_shard_that_has_least)
{
    static const char *const names[] = { "one", "two", "three" };
    struct trainer jobs[3];
    start(3);
    spec.stage = CAIRN_STAGE(0);
    for (int i = 0; i < 3; i++) {
        open_job(names[i]);
        jobs[i] = (struct trainer) { .session = session, .job = job };
    }
    session = NULL; // those of `jobs`
    // Each shard that dies takes one job with it, and no other.
    for (int shard = 0; shard < 3; shard++) {
        int lost = 0;
        restart_shard(shard);
        for (int i = 0; i < 3; i++) {
            struct cairn_round round = { .struct_size = sizeof round };
            if (jobs[i].session == NULL) continue;
            const cairn_status status = cairn_round_begin(jobs[i].job, CLUSTER_WAIT_MS, &round);
            ck_assert_msg(status == CAIRN_OK || status == CAIRN_ERR_JOB_LOST, "%s", cairn_error());
            if (status == CAIRN_OK) {
                trainer_commit(jobs[i].job, &round, 0);
                continue;
            }
            lost++;
            cairn_close(jobs[i].session);
            jobs[i].session = NULL;
        }
        ck_assert_int_eq(lost, 1);
    }
}

TEST(an_alias_is_its_target_by_another_name)
{
    float values[WEIGHTS], part[4];
    const struct cairn_box corner = { 2, { 1, 1 }, { 1, 1 } };
    start(2);
    open_job("tiny");
    fetch("body.weight", NULL, values);
    for (int i = 0; i < WEIGHTS; i++) ck_assert(values[i] == (float)i); // "tied" was put
    const struct cairn_round round = trainer_begin(job);
    ck_assert_int_eq(push(&round, "tied"), CAIRN_OK);
    ck_assert_int_eq(push(&round, "body.weight"), CAIRN_ERR_EXISTS); // it is the same tensor
    ck_assert_int_eq(push(&round, "part"), CAIRN_ERR_EXISTS);        // or a part of it
    expect_error("body.weight");
    trainer_commit(job, &round, 0);
    fetch("tied", NULL, values);
    for (int i = 0; i < WEIGHTS; i++) ck_assert(values[i] == (float)i - 1);
    fetch("part", NULL, part); // rows 1 and 2, columns 1 and 2
    ck_assert(part[0] == 3 && part[1] == 4 && part[2] == 6 && part[3] == 7);
    fetch("part", &corner, part);
    ck_assert(part[0] == 7);
    ck_assert(first("counts") == 0); // a buffer is never optimized
    struct cairn_tensor told = { .struct_size = sizeof told };
    good(cairn_job_tensor(job, 3, &told)); // by name: "part"
    ck_assert_str_eq(told.alias_of, "body.weight");
    ck_assert(told.rank == 2 && told.shape[0] == 2 && told.shape[1] == 2);
}

TEST(a_buffer_is_put_fetched_and_saved_and_never_trained)
{
    float counts[COUNTS];
    char id[64];
    start(2);
    groups[1].weight_decay = 0.5;
    open_job("tiny");
    for (int k = 0; k < 2; k++) train_job();
    const struct cairn_round round = trainer_begin(job);
    ck_assert_int_eq(push(&round, "counts"), CAIRN_ERR_INVALID);
    trainer_commit(job, &round, 0);
    fetch("counts", NULL, counts);
    ck_assert(counts[0] == 0 && counts[1] == 1);
    good(cairn_snapshot(job, CAIRN_SNAPSHOT_WAIT, CLUSTER_WAIT_MS, id));
    leave();
    says(0, "", "snapshot restore tiny %s --yes", id);
    open_job("tiny");
    fetch("counts", NULL, counts);
    ck_assert(counts[0] == 0 && counts[1] == 1);
}

/* A good spec is refused with one change, with that status and word. */
#define SPOILED(expected, word, ...)                         \
    do {                                                     \
        describe();                                          \
        __VA_ARGS__;                                         \
        fails(try_open("tiny"), CAIRN_ERR_##expected, word); \
        leave();                                             \
    } while (0)

TEST(what_cannot_be_is_refused_at_attach_with_field_value_and_what_is_allowed)
{
    static const struct cairn_box outside = { 2, { 3, 0 }, { 2, 3 } };
    start(1);
    SPOILED(INVALID, "the pattern \"encoder.*\" matches no trained tensor",
            groups[0].pattern = "encoder.*");
    // then the second takes nothing
    SPOILED(INVALID, "group head: the pattern \"*\"", groups[0].pattern = "*");
    SPOILED(INVALID, "stage is 4; allowed: 0 (", spec.stage = CAIRN_STAGE(4));
    SPOILED(UNSUPPORTED, "place whole (1) is not supported", tensors[0].place = CAIRN_WHOLE);
    SPOILED(INVALID, "place is 7; allowed: 0", tensors[0].place = (cairn_placement)7);
    SPOILED(UNSUPPORTED, "allowed: 1 (f32), 2 (bf16)", tensors[0].wire = CAIRN_F16);
    SPOILED(UNSUPPORTED, "reduce bf16", tensors[0].reduce = CAIRN_BF16);
    SPOILED(UNSUPPORTED, "master f64", tensors[0].master = CAIRN_F64);
    SPOILED(INVALID, "a blob is bytes: wire and master 5 (u8)", tensors[2].kind = CAIRN_BLOB;
            tensors[2].wire = CAIRN_F32);
    SPOILED(INVALID, "names an alias", tensors[4].alias_of = "tied");
    SPOILED(INVALID, "names no tensor of the job", tensors[4].alias_of = "nobody");
    SPOILED(INVALID, "alias_box does not lie inside", tensors[4].alias_box = &outside;
            tensors[4].shape[1] = 3);
    SPOILED(INVALID, "its shape is not that of its target", tensors[3].shape[0] = ROWS - 1);
    SPOILED(INVALID, "kind is 3; its target body.weight has 1", tensors[3].kind = CAIRN_BUFFER);
    SPOILED(INVALID, "another wire dtype", tensors[3].wire = CAIRN_BF16);
    SPOILED(INVALID, "its group is that of body.weight", tensors[3].group = "head");
    SPOILED(INVALID, "no init of its own", tensors[3].init.kind = CAIRN_INIT_ONES);
    SPOILED(INVALID, "constant: it has no total_steps", groups[0].total_steps = 9);
    SPOILED(INVALID, "total_steps is 9; allowed: 10 to", groups[0].schedule = CAIRN_SCHEDULE_LINEAR;
            groups[0].warmup_steps = groups[0].total_steps = 9);
    SPOILED(INVALID, "have no effect", spec.loss_scale = 1024;
            spec.loss_scale_policy = CAIRN_LOSS_SCALE_FIXED; spec.loss_scale_growth_steps = 5);
    SPOILED(INVALID, "there is no room", spec.loss_scale_policy = CAIRN_LOSS_SCALE_DYNAMIC);
    SPOILED(INVALID, "loss_scale_max 4; allowed", spec.loss_scale = 8; spec.loss_scale_max = 4);
    SPOILED(INVALID, "micro_batches is 65537; allowed: 1 to 65536", spec.micro_batches = 65537);
}

static cairn_status amend_group(uint64_t revision, double lr)
{
    struct cairn_group group = groups[0];
    group.pattern = NULL;
    group.lr = lr;
    const struct cairn_amend amend = {
        .struct_size = sizeof amend, .revision = revision, .groups = &group, .group_count = 1
    };
    return cairn_job_amend(job, &amend, CLUSTER_WAIT_MS);
}

static cairn_status amend_frozen(const char *freeze, const char *unfreeze)
{
    const struct cairn_amend amend = { .struct_size = sizeof amend,
                                       .freeze = &freeze,
                                       .freeze_count = freeze != NULL,
                                       .unfreeze = &unfreeze,
                                       .unfreeze_count = unfreeze != NULL };
    return cairn_job_amend(job, &amend, CLUSTER_WAIT_MS);
}

/* The setting that a mismatch gives, done by a worker who says what the job is, makes the job what was
 * wanted. */
static void follow_the_difference(void)
{
    struct cairn_difference one = { .struct_size = sizeof one };
    good(cairn_error_difference(0, &one));
    ck_assert_int_eq(one.change, CAIRN_CHANGE_NEXT_ROUND);
    char key[64], value[64];
    snprintf(key, sizeof key, "%s", one.key);
    snprintf(value, sizeof value, "%s", one.value);
    ck_assert_int_eq(cairn_error_difference(1, &one), CAIRN_ERR_NOT_FOUND);
    leave();
    groups[0].lr = 0.5;
    open_job("tiny");
    const struct cairn_setting setting = { key, value };
    const struct cairn_amend amend = { .struct_size = sizeof amend,
                                       .settings = &setting,
                                       .setting_count = 1 };
    good(cairn_job_amend(job, &amend, CLUSTER_WAIT_MS));
    leave();
    groups[0].lr = 0.75;
    open_job("tiny");
    ck_assert(train_job() == 0.75);
    leave();
}

TEST(an_amendment_holds_from_the_next_round_on_through_restarts_and_a_restore)
{
    char id[64], before[64], path[CAIRN_SCRATCH_BYTES + 128];
    start(2);
    open_job("tiny");
    const struct cairn_round round = trainer_begin(job);
    ck_assert_uint_eq(round.revision, 0);
    ck_assert_uint_eq(round.micro_batches, 1);
    good(amend_group(0, 0.125));
    ck_assert_int_eq(push(&round, "body.weight"), CAIRN_OK);
    ck_assert(trainer_commit(job, &round, 0).lr == 1); // the open round ends by its own terms
    ck_assert(train_job() == 0.125);
    ck_assert(first("body.weight") == -1.125F);
    ck_assert_int_eq(amend_group(5, 0.5), CAIRN_ERR_STALE);
    good(cairn_snapshot(job, 0, CLUSTER_WAIT_MS, before)); // of 0.125
    good(amend_group(1, 0.5));
    said.status = 1;
    for (int i = 0; i < 2000 && said.status != 0; i++) // until it is committed
        ask("snapshot show tiny %s", before);
    ck_assert_msg(said.status == 0, "%s", said.err);
    restart_coordinator();
    ck_assert(train_job() == 0.5); // it attached again, with the spec of before both
    says(0, "amended           2 times\n", "job show tiny");
    snprintf(path, sizeof path, "%s/tiny/%s", cluster.snapshots_path, before);
    says(0, "", "snapshot restore --path %s --job twin --yes", path);
    says(0, "body: sgd lr 0.125", "job show twin");
    says(0, "amended           1 time\n", "job show twin");
    good(cairn_snapshot(job, CAIRN_SNAPSHOT_WAIT, CLUSTER_WAIT_MS, id));
    leave();
    says(0, "", "snapshot restore tiny %s --yes", id);
    const double lrs[] = { 1, 0.125, 0.5 }; // all that it was, and what it is
    for (int i = 0; i < 3; i++) {
        groups[0].lr = lrs[i];
        open_job("tiny");
        ck_assert(train_job() == 0.5);
        leave();
    }
    groups[0].lr = 1; // under another name, of before the second amendment
    open_job("twin");
    ck_assert(train_job() == 0.125);
    leave();
    groups[0].lr = 0.75; // that it never was
    fails(try_open("tiny"), CAIRN_ERR_MISMATCH, "lr 0.75 here, 0.5 on the servers");
    expect_error("`cairn job amend tiny --set body.lr=0.75`");
    follow_the_difference();
}

TEST(a_frozen_group_stays_as_it_is_while_others_train)
{
    start(2);
    groups[0].weight_decay = 0.5; // must not move what is frozen
    open_job("tiny");
    train_job();
    float before[WEIGHTS], after[WEIGHTS];
    fetch("body.weight", NULL, before);
    good(amend_frozen("body", NULL));
    says(0, "momentum 0, frozen", "job show tiny");
    for (int k = 0; k < 3; k++) { // both published copies
        const struct cairn_round round = trainer_begin(job);
        fails(push(&round, "body.weight"), CAIRN_ERR_REFUSED, "group body is frozen");
        ck_assert_int_eq(push(&round, "head.bias"), CAIRN_OK);
        trainer_commit(job, &round, 0);
        fetch("body.weight", NULL, after);
        ck_assert_mem_eq(before, after, sizeof before);
        fetch("tied", NULL, after);
        ck_assert_mem_eq(before, after, sizeof before);
    }
    ck_assert(first("head.bias") == -1.0F); // 4 rounds of 0.25
    good(amend_frozen(NULL, "body"));
    train_job();
    fetch("body.weight", NULL, after);
    ck_assert(after[0] != before[0]);
}

static cairn_status amend_tensor(const char *freeze, const char *unfreeze)
{
    const struct cairn_amend amend = { .struct_size = sizeof amend,
                                       .freeze_tensors = &freeze,
                                       .freeze_tensor_count = freeze != NULL,
                                       .unfreeze_tensors = &unfreeze,
                                       .unfreeze_tensor_count = unfreeze != NULL };
    return cairn_job_amend(job, &amend, CLUSTER_WAIT_MS);
}

TEST(a_frozen_tensor_stays_as_it_is_through_restarts_and_a_restore)
{
    char id[64];
    float before[WEIGHTS], after[WEIGHTS];
    start(2);
    groups[0].weight_decay = 0.5; // must not move what is frozen
    open_job("tiny");
    train_job();
    fetch("body.weight", NULL, before);
    const struct cairn_round open = trainer_begin(job);
    good(amend_tensor("body.weight", NULL));
    ck_assert_int_eq(push(&open, "head.bias"), CAIRN_OK); // the open round ends as it began
    trainer_commit(job, &open, 0);
    says(0, "frozen tensors    body.weight\n", "job show tiny");
    fetch("body.weight", NULL, before);
    for (int k = 0; k < 3; k++) { // both published copies
        const struct cairn_round round = trainer_begin(job);
        fails(push(&round, "body.weight"), CAIRN_ERR_REFUSED, "tensor body.weight is frozen");
        ck_assert_int_eq(push(&round, "head.bias"), CAIRN_OK);
        trainer_commit(job, &round, 0);
        fetch("body.weight", NULL, after);
        ck_assert_mem_eq(before, after, sizeof before);
    }
    restart_coordinator();
    const struct cairn_round after_restart = trainer_begin(job);
    ck_assert_int_eq(push(&after_restart, "body.weight"), CAIRN_ERR_REFUSED);
    trainer_commit(job, &after_restart, 0);
    good(cairn_snapshot(job, CAIRN_SNAPSHOT_WAIT, CLUSTER_WAIT_MS, id));
    leave();
    says(0, "", "snapshot restore tiny %s --yes", id);
    open_job("tiny"); // with the spec as it was
    const struct cairn_round restored = trainer_begin(job);
    ck_assert_int_eq(push(&restored, "body.weight"), CAIRN_ERR_REFUSED);
    trainer_commit(job, &restored, 0);
    good(amend_tensor(NULL, "body.weight"));
    train_job();
    fetch("body.weight", NULL, after);
    ck_assert(after[0] != before[0]);
}

/* The script of a job to which a tensor was added knows nothing of it, nor does it where that job is made
 * anew of its snapshot, twice, with other settings: it says these, and is the job's. */
TEST(a_script_with_the_new_setting_opens_a_job_that_is_made_of_an_amended_one)
{
    start(1);
    open_job("first");
    (void)train_job();
    struct cairn_tensor late = tensor("body.late", 1, BIAS, 0);
    late.init.kind = CAIRN_INIT_ONES;
    late.group = "body";
    const struct cairn_amend amend = { .struct_size = sizeof amend, .add = &late, .add_count = 1 };
    good(cairn_job_amend(job, &amend, CLUSTER_WAIT_MS));
    leave();
    open_job("first"); // as it was
    leave();
    says(0, "step", "snapshot create first --wait");
    says(0, "second", "job create second --from first/latest --set stage=0 --set body.lr=2");
    spec.stage = CAIRN_STAGE(0);
    groups[0].lr = 3;
    ck_assert_int_eq(try_open("second"), CAIRN_ERR_MISMATCH);
    leave();
    groups[0].lr = 2;
    open_job("second");
    ck_assert(train_job() == 2);
    leave();
    restart_coordinator();
    says(0, "step", "snapshot create second --wait");
    says(0, "third", "job create third --from second/latest --set body.lr=3");
    groups[0].lr = 3;
    open_job("third");
    ck_assert(train_job() == 3);
    leave();
    groups[0].lr = 4;
    ck_assert_int_eq(try_open("third"), CAIRN_ERR_MISMATCH);
}

TEST(an_amendment_that_cannot_be_changes_nothing)
{
    start(1);
    open_job("tiny");
    fails(amend_group(0, -1), CAIRN_ERR_INVALID, "lr is -1; allowed: 0 to");
    struct cairn_group group = groups[0];
    struct cairn_amend amend = { .struct_size = sizeof amend, .groups = &group, .group_count = 1 };
    fails(cairn_job_amend(job, &amend, CLUSTER_WAIT_MS), CAIRN_ERR_INVALID, "pattern must be NULL");
    group.pattern = NULL;
    group.optimizer = "adamw";
    fails(cairn_job_amend(job, &amend, CLUSTER_WAIT_MS), CAIRN_ERR_UNSUPPORTED, "allowed: \"sgd\"");
    group.optimizer = "sgd";
    group.momentum = 0.9;
    fails(cairn_job_amend(job, &amend, CLUSTER_WAIT_MS), CAIRN_ERR_UNSUPPORTED,
          "keeps other state");
    group.momentum = 0;
    group.beta1 = 0.5; // which sgd would ignore
    fails(cairn_job_amend(job, &amend, CLUSTER_WAIT_MS), CAIRN_ERR_INVALID,
          "beta1 has no effect with optimizer sgd");
    group.beta1 = groups[0].beta1;
    group.name = "neck";
    ck_assert_int_eq(cairn_job_amend(job, &amend, CLUSTER_WAIT_MS), CAIRN_ERR_NOT_FOUND);
    ck_assert_int_eq(amend_frozen("neck", NULL), CAIRN_ERR_NOT_FOUND);
    fails(amend_frozen("head.bias", NULL), CAIRN_ERR_NOT_FOUND, "name it in freeze_tensors");
    ck_assert_int_eq(amend_tensor("neck", NULL), CAIRN_ERR_NOT_FOUND);
    fails(amend_tensor("tied", NULL), CAIRN_ERR_INVALID, "is an alias of body.weight");
    ck_assert_int_eq(amend_frozen(NULL, NULL), CAIRN_ERR_INVALID);
    amend = (struct cairn_amend) { .struct_size = sizeof amend,
                                   .clip_norm = -1,
                                   .set_clip_norm = true };
    ck_assert_int_eq(cairn_job_amend(job, &amend, CLUSTER_WAIT_MS), CAIRN_ERR_INVALID);
    amend.struct_size = 8;
    ck_assert_int_eq(cairn_job_amend(job, &amend, CLUSTER_WAIT_MS), CAIRN_ERR_INVALID);
    ck_assert_int_eq(cairn_job_amend(job, NULL, CLUSTER_WAIT_MS), CAIRN_ERR_INVALID);
    const struct cairn_round round = trainer_begin(job);
    ck_assert_uint_eq(round.revision, 0);
    amend = (struct cairn_amend) { .struct_size = sizeof amend,
                                   .clip_norm = 0.5,
                                   .set_clip_norm = true };
    good(cairn_job_amend(job, &amend, CLUSTER_WAIT_MS));
    ck_assert(trainer_commit(job, &round, 0).clip_scale == 1);
    const struct cairn_round next = trainer_begin(job);
    ck_assert_int_eq(push(&next, "body.weight"), CAIRN_OK);
    ck_assert(trainer_commit(job, &next, 0).clip_scale < 1);
    leave();
    ck_assert_int_eq(cairn_job_amend(job, &amend, 0), CAIRN_ERR_HANDLE);
}

SUITE(60, describe, stop);
