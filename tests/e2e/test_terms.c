/* What a job goes by, on real daemons: schedules, stages, aliases, patterns, buffers, amendments. The
 * optimizer is SGD without momentum and every gradient is 1, so that parameters say what the rates were. */
#include <stdlib.h>

#include "tests/e2e/scene.h"

enum { ROWS = 4, COLUMNS = 3, WEIGHTS = ROWS * COLUMNS, BIAS = 5, COUNTS = 2 };

/* A job of two groups, with a buffer and two aliases; a test changes what it wants to. */
struct job {
    struct cairn_tensor tensors[5];
    struct cairn_group groups[2];
    struct cairn_box rows;
    struct cairn_job_spec spec;
    cairn *session;
    cairn_job *job;
};

static struct cairn_tensor tensor(const char *name, uint32_t rank, uint64_t rows, uint64_t columns)
{
    return (struct cairn_tensor) { .struct_size = sizeof(struct cairn_tensor),
                                   .name = name,
                                   .rank = rank,
                                   .shape = { rows, columns } };
}

static void describe(struct job *j)
{
    struct cairn_group group = CAIRN_GROUP_INIT;
    memset(j, 0, sizeof *j);
    group.optimizer = "sgd";
    group.lr = 1;
    j->groups[0] = j->groups[1] = group;
    j->groups[0].name = "body";
    j->groups[0].pattern = "body.*";
    j->groups[1].name = "head";
    j->groups[1].pattern = "*";
    j->groups[1].lr = 0.25;
    j->rows = (struct cairn_box) { 2, { 1, 1 }, { 2, 2 } };
    j->tensors[0] = tensor("body.weight", 2, ROWS, COLUMNS);
    j->tensors[1] = tensor("head.bias", 1, BIAS, 0);
    j->tensors[2] = tensor("counts", 1, COUNTS, 0);
    j->tensors[2].kind = CAIRN_BUFFER;
    j->tensors[3] = tensor("tied", 2, ROWS, COLUMNS);
    j->tensors[3].alias_of = "body.weight";
    j->tensors[4] = tensor("part", 2, 2, 2);
    j->tensors[4].alias_of = "body.weight";
    j->tensors[4].alias_box = &j->rows;
    j->spec = (struct cairn_job_spec) { .struct_size = sizeof j->spec,
                                        .tensors = j->tensors,
                                        .tensor_count = 5,
                                        .groups = j->groups,
                                        .group_count = 2 };
}

static cairn_status try_open(struct job *j, const char *name)
{
    j->session = trainer_session(cluster.address, NULL);
    return cairn_job_open(j->session, name, &j->spec, CAIRN_WORKER, CLUSTER_WAIT_MS, &j->job);
}

/* Opens the job; a new one begins with weights 0 to 11, biases 0 to 4, counts 0 to 1. */
static void open_job(struct job *j, const char *name)
{
    float values[WEIGHTS];
    for (int i = 0; i < WEIGHTS; i++) values[i] = (float)i;
    good(try_open(j, name));
    struct cairn_job_info info = { .struct_size = sizeof info };
    good(cairn_job_describe(j->job, &info));
    if (!info.initialized) {
        trainer_put(j->job, "tied", values); // the initial state of its target
        trainer_put(j->job, "head.bias", values);
        trainer_put(j->job, "counts", values);
    }
    good(cairn_init_done(j->job, NULL, CLUSTER_WAIT_MS));
}

static void leave_job(struct job *j)
{
    cairn_close(j->session);
}

static cairn_status push(const struct job *j, const struct cairn_round *round, const char *name)
{
    static float ones[WEIGHTS] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    const struct cairn_mem mem = trainer_mem(ones, CAIRN_F32);
    return cairn_push(j->job, round, 0, name, NULL, &mem, NULL);
}

/* A round with both gradients; the learning rate of "body", the first group. */
static double train_job(const struct job *j)
{
    const struct cairn_round round = trainer_begin(j->job);
    good(push(j, &round, "body.weight"));
    good(push(j, &round, "head.bias"));
    return trainer_commit(j->job, &round, 0).lr;
}

static void fetch(const struct job *j, const char *name, const struct cairn_box *box, float *out)
{
    const struct cairn_mem mem = trainer_mem(out, CAIRN_F32);
    cairn_op *op;
    good(cairn_fetch(j->job, newest(j->job), name, NULL, box, &mem, &op));
    good(cairn_wait(op, CLUSTER_WAIT_MS));
}

static float first(const struct job *j, const char *name)
{
    float values[WEIGHTS];
    fetch(j, name, NULL, values);
    return values[0];
}

TEST(a_restored_job_goes_on_in_the_middle_of_its_schedule)
{
    const double rates[] = { 0, 0.5, 1, 0.75, 0.5, 0.25, 0 };
    struct job j;
    char id[64], uninterrupted[128];
    start(2);
    describe(&j);
    j.groups[0].schedule = CAIRN_SCHEDULE_LINEAR;
    j.groups[0].warmup_steps = 2;
    j.groups[0].total_steps = 6;
    j.groups[1].schedule = CAIRN_SCHEDULE_COSINE;
    j.groups[1].total_steps = 7;
    open_job(&j, "tiny");
    says(0, "linear warm-up 2 total 6; lr of the next round 0", "job show tiny");
    for (int k = 0; k < 3; k++) ck_assert(train_job(&j) == rates[k]);
    ck_assert(first(&j, "body.weight") == -1.5F);
    good(cairn_snapshot(j.job, CAIRN_SNAPSHOT_WAIT, CLUSTER_WAIT_MS, id));
    restart_coordinator();
    for (int k = 3; k < 7; k++) ck_assert(train_job(&j) == rates[k]);
    trainer_digest(&cluster, "tiny", uninterrupted);
    leave_job(&j);
    says(0, "", "snapshot restore tiny %s --yes", id);
    open_job(&j, "tiny");
    for (int k = 3; k < 7; k++) ck_assert(train_job(&j) == rates[k]);
    trainer_expect_digest(&cluster, "tiny", uninterrupted);
    leave_job(&j);
    stop();
}

TEST(every_stage_gives_the_same_bits_with_one_micro_batch)
{
    static const char *const names[] = { "stage-0", "stage-1", "stage-2", "stage-3", "default" };
    char roots[5][128];
    start(3);
    for (uint32_t stage = 0; stage < 5; stage++) {
        struct job j;
        struct cairn_job_info info = { .struct_size = sizeof info };
        describe(&j);
        j.spec.stage = stage < 4 ? CAIRN_STAGE(stage) : 0;
        open_job(&j, names[stage]);
        good(cairn_job_describe(j.job, &info));
        ck_assert_uint_eq(info.stage, stage < 4 ? CAIRN_STAGE(stage) : CAIRN_STAGE(2));
        for (int k = 0; k < 3; k++) train_job(&j);
        trainer_digest(&cluster, names[stage], roots[stage]);
        ck_assert_str_eq(roots[stage], roots[0]);
        leave_job(&j);
    }
    says(0, "shards            1,", "job show stage-0");
    says(0, "shards            3,", "job show stage-1");
    says(0, "every micro-batch pushed", "job show stage-2");
    stop();
}

TEST(jobs_of_stage_0_go_to_the_shard_that_has_least)
{
    static const char *const names[] = { "one", "two", "three" };
    struct job jobs[3];
    start(3);
    for (int i = 0; i < 3; i++) {
        describe(&jobs[i]);
        jobs[i].spec.stage = CAIRN_STAGE(0);
        open_job(&jobs[i], names[i]);
    }
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
            leave_job(&jobs[i]);
            jobs[i].session = NULL;
        }
        ck_assert_int_eq(lost, 1);
    }
    stop();
}

TEST(an_alias_is_its_target_by_another_name)
{
    struct job j;
    float values[WEIGHTS], part[4];
    const struct cairn_box corner = { 2, { 1, 1 }, { 1, 1 } };
    start(2);
    describe(&j);
    open_job(&j, "tiny");
    fetch(&j, "body.weight", NULL, values);
    for (int i = 0; i < WEIGHTS; i++) ck_assert(values[i] == (float)i); // "tied" was put
    const struct cairn_round round = trainer_begin(j.job);
    ck_assert_int_eq(push(&j, &round, "tied"), CAIRN_OK);
    ck_assert_int_eq(push(&j, &round, "body.weight"), CAIRN_ERR_EXISTS); // it is the same tensor
    ck_assert_int_eq(push(&j, &round, "part"), CAIRN_ERR_EXISTS);        // or a part of it
    ck_assert_ptr_nonnull(strstr(cairn_error(), "body.weight"));
    trainer_commit(j.job, &round, 0);
    fetch(&j, "tied", NULL, values);
    for (int i = 0; i < WEIGHTS; i++) ck_assert(values[i] == (float)i - 1);
    fetch(&j, "part", NULL, part); // rows 1 and 2, columns 1 and 2
    ck_assert(part[0] == 3 && part[1] == 4 && part[2] == 6 && part[3] == 7);
    fetch(&j, "part", &corner, part);
    ck_assert(part[0] == 7);
    ck_assert(first(&j, "counts") == 0); // a buffer is never optimized
    struct cairn_tensor told = { .struct_size = sizeof told };
    good(cairn_job_tensor(j.job, 3, &told)); // by name: "part"
    ck_assert_str_eq(told.alias_of, "body.weight");
    ck_assert(told.rank == 2 && told.shape[0] == 2 && told.shape[1] == 2);
    leave_job(&j);
    stop();
}

TEST(a_buffer_is_put_fetched_and_saved_and_never_trained)
{
    struct job j;
    float counts[COUNTS];
    char id[64];
    start(2);
    describe(&j);
    j.groups[1].weight_decay = 0.5;
    open_job(&j, "tiny");
    for (int k = 0; k < 2; k++) train_job(&j);
    const struct cairn_round round = trainer_begin(j.job);
    ck_assert_int_eq(push(&j, &round, "counts"), CAIRN_ERR_INVALID);
    trainer_commit(j.job, &round, 0);
    fetch(&j, "counts", NULL, counts);
    ck_assert(counts[0] == 0 && counts[1] == 1);
    good(cairn_snapshot(j.job, CAIRN_SNAPSHOT_WAIT, CLUSTER_WAIT_MS, id));
    leave_job(&j);
    says(0, "", "snapshot restore tiny %s --yes", id);
    open_job(&j, "tiny");
    fetch(&j, "counts", NULL, counts);
    ck_assert(counts[0] == 0 && counts[1] == 1);
    leave_job(&j);
    stop();
}

/* One change to a good spec, and a word of the sentence. */
struct spoil {
    void (*change)(struct job *j);
    cairn_status status;
    const char *word;
};

static const struct cairn_box outside = { 2, { 3, 0 }, { 2, 3 } };
static void no_match(struct job *j)
{
    j->groups[0].pattern = "encoder.*";
}
static void taken(struct job *j)
{
    j->groups[0].pattern = "*"; // then the second takes nothing
}
static void stage_4(struct job *j)
{
    j->spec.stage = CAIRN_STAGE(4);
}
static void place_whole(struct job *j)
{
    j->tensors[0].place = CAIRN_WHOLE;
}
static void place_7(struct job *j)
{
    j->tensors[0].place = (cairn_placement)7;
}
static void wire_f16(struct job *j)
{
    j->tensors[0].wire = CAIRN_F16;
}
static void reduce_bf16(struct job *j)
{
    j->tensors[0].reduce = CAIRN_BF16;
}
static void master_f64(struct job *j)
{
    j->tensors[0].master = CAIRN_F64;
}
static void a_blob(struct job *j)
{
    j->tensors[2].kind = CAIRN_BLOB;
    j->tensors[2].wire = CAIRN_F32;
}
static void alias_of_alias(struct job *j)
{
    j->tensors[4].alias_of = "tied";
}
static void alias_of_none(struct job *j)
{
    j->tensors[4].alias_of = "nobody";
}
static void alias_outside(struct job *j)
{
    j->tensors[4].alias_box = &outside;
    j->tensors[4].shape[1] = 3;
}
static void alias_shape(struct job *j)
{
    j->tensors[3].shape[0] = ROWS - 1;
}
static void alias_kind(struct job *j)
{
    j->tensors[3].kind = CAIRN_BUFFER;
}
static void alias_wire(struct job *j)
{
    j->tensors[3].wire = CAIRN_BF16;
}
static void alias_group(struct job *j)
{
    j->tensors[3].group = "head";
}
static void alias_init(struct job *j)
{
    j->tensors[3].init.kind = CAIRN_INIT_ONES;
}
static void total_only(struct job *j)
{
    j->groups[0].total_steps = 9;
}
static void linear_short(struct job *j)
{
    j->groups[0].schedule = CAIRN_SCHEDULE_LINEAR;
    j->groups[0].warmup_steps = j->groups[0].total_steps = 9;
}
static void fixed_grows(struct job *j)
{
    j->spec.loss_scale = 1024;
    j->spec.loss_scale_policy = CAIRN_LOSS_SCALE_FIXED;
    j->spec.loss_scale_growth_steps = 5;
}
static void dynamic_stuck(struct job *j)
{
    j->spec.loss_scale_policy = CAIRN_LOSS_SCALE_DYNAMIC;
}
static void bad_bounds(struct job *j)
{
    j->spec.loss_scale = 8;
    j->spec.loss_scale_max = 4;
}
static void many_micros(struct job *j)
{
    j->spec.micro_batches = 65537;
}

static const struct spoil spoils[] = {
    { no_match, CAIRN_ERR_INVALID, "the pattern \"encoder.*\" matches no trained tensor" },
    { taken, CAIRN_ERR_INVALID, "group head: the pattern \"*\"" },
    { stage_4, CAIRN_ERR_INVALID, "stage is 4; allowed: 0 (" },
    { place_whole, CAIRN_ERR_UNSUPPORTED, "place whole (1) is not supported" },
    { place_7, CAIRN_ERR_INVALID, "place is 7; allowed: 0" },
    { wire_f16, CAIRN_ERR_UNSUPPORTED, "allowed: 1 (f32), 2 (bf16)" },
    { reduce_bf16, CAIRN_ERR_UNSUPPORTED, "reduce bf16" },
    { master_f64, CAIRN_ERR_UNSUPPORTED, "master f64" },
    { a_blob, CAIRN_ERR_INVALID, "a blob is bytes: wire and master 5 (u8)" },
    { alias_of_alias, CAIRN_ERR_INVALID, "names an alias" },
    { alias_of_none, CAIRN_ERR_INVALID, "names no tensor of the job" },
    { alias_outside, CAIRN_ERR_INVALID, "alias_box does not lie inside" },
    { alias_shape, CAIRN_ERR_INVALID, "its shape is not that of its target" },
    { alias_kind, CAIRN_ERR_INVALID, "kind is 3; its target body.weight has 1" },
    { alias_wire, CAIRN_ERR_INVALID, "another wire dtype" },
    { alias_group, CAIRN_ERR_INVALID, "its group is that of body.weight" },
    { alias_init, CAIRN_ERR_INVALID, "no init of its own" },
    { total_only, CAIRN_ERR_INVALID, "constant: it has no total_steps" },
    { linear_short, CAIRN_ERR_INVALID, "total_steps is 9; allowed: 10 to" },
    { fixed_grows, CAIRN_ERR_INVALID, "have no effect" },
    { dynamic_stuck, CAIRN_ERR_INVALID, "there is no room" },
    { bad_bounds, CAIRN_ERR_INVALID, "loss_scale_max 4; allowed" },
    { many_micros, CAIRN_ERR_INVALID, "micro_batches is 65537; allowed: 1 to 65536" },
};

TEST(what_cannot_be_is_refused_at_attach_with_field_value_and_what_is_allowed)
{
    start(1);
    for (size_t i = 0; i < sizeof spoils / sizeof spoils[0]; i++) {
        struct job j;
        describe(&j);
        spoils[i].change(&j);
        ck_assert_msg(try_open(&j, "tiny") == spoils[i].status, "%s", spoils[i].word);
        ck_assert_msg(strstr(cairn_error(), spoils[i].word) != NULL, "%s", cairn_error());
        leave_job(&j);
    }
    stop();
}

static cairn_status amend_group(struct job *j, uint64_t revision, double lr)
{
    struct cairn_group group = j->groups[0];
    group.pattern = NULL;
    group.lr = lr;
    const struct cairn_amend amend = {
        .struct_size = sizeof amend, .revision = revision, .groups = &group, .group_count = 1
    };
    return cairn_job_amend(j->job, &amend, CLUSTER_WAIT_MS);
}

static cairn_status amend_frozen(struct job *j, const char *freeze, const char *unfreeze)
{
    const struct cairn_amend amend = { .struct_size = sizeof amend,
                                       .freeze = &freeze,
                                       .freeze_count = freeze != NULL,
                                       .unfreeze = &unfreeze,
                                       .unfreeze_count = unfreeze != NULL };
    return cairn_job_amend(j->job, &amend, CLUSTER_WAIT_MS);
}

/* The setting that a mismatch gives, done by a worker who says what the job is, makes the job what was
 * wanted. */
static void follow_the_difference(struct job *j)
{
    struct cairn_difference one = { .struct_size = sizeof one };
    good(cairn_error_difference(0, &one));
    ck_assert_int_eq(one.change, CAIRN_CHANGE_NEXT_ROUND);
    char key[64], value[64];
    snprintf(key, sizeof key, "%s", one.key);
    snprintf(value, sizeof value, "%s", one.value);
    ck_assert_int_eq(cairn_error_difference(1, &one), CAIRN_ERR_NOT_FOUND);
    leave_job(j);
    j->groups[0].lr = 0.5;
    open_job(j, "tiny");
    const struct cairn_setting setting = { key, value };
    const struct cairn_amend amend = { .struct_size = sizeof amend,
                                       .settings = &setting,
                                       .setting_count = 1 };
    good(cairn_job_amend(j->job, &amend, CLUSTER_WAIT_MS));
    leave_job(j);
    j->groups[0].lr = 0.75;
    open_job(j, "tiny");
    ck_assert(train_job(j) == 0.75);
    leave_job(j);
}

TEST(an_amendment_holds_from_the_next_round_on_through_restarts_and_a_restore)
{
    struct job j;
    char id[64], before[64], path[CAIRN_SCRATCH_BYTES + 128];
    start(2);
    describe(&j);
    open_job(&j, "tiny");
    const struct cairn_round round = trainer_begin(j.job);
    ck_assert_uint_eq(round.revision, 0);
    ck_assert_uint_eq(round.micro_batches, 1);
    ck_assert_msg(amend_group(&j, 0, 0.125) == CAIRN_OK, "%s", cairn_error());
    ck_assert_int_eq(push(&j, &round, "body.weight"), CAIRN_OK);
    ck_assert(trainer_commit(j.job, &round, 0).lr == 1); // the open round ends by its own terms
    ck_assert(train_job(&j) == 0.125);
    ck_assert(first(&j, "body.weight") == -1.125F);
    ck_assert_int_eq(amend_group(&j, 5, 0.5), CAIRN_ERR_STALE);
    good(cairn_snapshot(j.job, 0, CLUSTER_WAIT_MS, before)); // of 0.125
    ck_assert_msg(amend_group(&j, 1, 0.5) == CAIRN_OK, "%s", cairn_error());
    said.status = 1;
    for (int i = 0; i < 2000 && said.status != 0; i++) // until it is committed
        ask("snapshot show tiny %s", before);
    ck_assert_msg(said.status == 0, "%s", said.err);
    restart_coordinator();
    ck_assert(train_job(&j) == 0.5); // it attached again, with the spec of before both
    says(0, "amended           2 times\n", "job show tiny");
    snprintf(path, sizeof path, "%s/tiny/%s", cluster.snapshots_path, before);
    says(0, "", "snapshot restore --path %s --job twin --yes", path);
    says(0, "body: sgd lr 0.125", "job show twin");
    says(0, "amended           1 time\n", "job show twin");
    good(cairn_snapshot(j.job, CAIRN_SNAPSHOT_WAIT, CLUSTER_WAIT_MS, id));
    leave_job(&j);
    says(0, "", "snapshot restore tiny %s --yes", id);
    const double lrs[] = { 1, 0.125, 0.5 }; // all that it was, and what it is
    for (int i = 0; i < 3; i++) {
        j.groups[0].lr = lrs[i];
        open_job(&j, "tiny");
        ck_assert(train_job(&j) == 0.5);
        leave_job(&j);
    }
    j.groups[0].lr = 1; // under another name, of before the second amendment
    open_job(&j, "twin");
    ck_assert(train_job(&j) == 0.125);
    leave_job(&j);
    j.groups[0].lr = 0.75; // that it never was
    fails(try_open(&j, "tiny"), CAIRN_ERR_MISMATCH, "lr 0.75 here, 0.5 on the servers");
    ck_assert_ptr_nonnull(strstr(cairn_error(), "`cairn job amend tiny --set body.lr=0.75`"));
    follow_the_difference(&j);
    stop();
}

TEST(a_frozen_group_stays_as_it_is_while_others_train)
{
    struct job j;
    start(2);
    describe(&j);
    j.groups[0].weight_decay = 0.5; // must not move what is frozen
    open_job(&j, "tiny");
    train_job(&j);
    float before[WEIGHTS], after[WEIGHTS];
    fetch(&j, "body.weight", NULL, before);
    ck_assert_msg(amend_frozen(&j, "body", NULL) == CAIRN_OK, "%s", cairn_error());
    says(0, "momentum 0, frozen", "job show tiny");
    for (int k = 0; k < 3; k++) { // both published copies
        const struct cairn_round round = trainer_begin(j.job);
        fails(push(&j, &round, "body.weight"), CAIRN_ERR_REFUSED, "group body is frozen");
        ck_assert_int_eq(push(&j, &round, "head.bias"), CAIRN_OK);
        trainer_commit(j.job, &round, 0);
        fetch(&j, "body.weight", NULL, after);
        ck_assert_mem_eq(before, after, sizeof before);
        fetch(&j, "tied", NULL, after);
        ck_assert_mem_eq(before, after, sizeof before);
    }
    ck_assert(first(&j, "head.bias") == -1.0F); // 4 rounds of 0.25
    ck_assert_msg(amend_frozen(&j, NULL, "body") == CAIRN_OK, "%s", cairn_error());
    train_job(&j);
    fetch(&j, "body.weight", NULL, after);
    ck_assert(after[0] != before[0]);
    leave_job(&j);
    stop();
}

static cairn_status amend_tensor(struct job *j, const char *freeze, const char *unfreeze)
{
    const struct cairn_amend amend = { .struct_size = sizeof amend,
                                       .freeze_tensors = &freeze,
                                       .freeze_tensor_count = freeze != NULL,
                                       .unfreeze_tensors = &unfreeze,
                                       .unfreeze_tensor_count = unfreeze != NULL };
    return cairn_job_amend(j->job, &amend, CLUSTER_WAIT_MS);
}

TEST(a_frozen_tensor_stays_as_it_is_through_restarts_and_a_restore)
{
    struct job j;
    char id[64];
    float before[WEIGHTS], after[WEIGHTS];
    start(2);
    describe(&j);
    j.groups[0].weight_decay = 0.5; // must not move what is frozen
    open_job(&j, "tiny");
    train_job(&j);
    fetch(&j, "body.weight", NULL, before);
    const struct cairn_round open = trainer_begin(j.job);
    ck_assert_msg(amend_tensor(&j, "body.weight", NULL) == CAIRN_OK, "%s", cairn_error());
    ck_assert_int_eq(push(&j, &open, "head.bias"), CAIRN_OK); // the open round ends as it began
    trainer_commit(j.job, &open, 0);
    says(0, "frozen tensors    body.weight\n", "job show tiny");
    fetch(&j, "body.weight", NULL, before);
    for (int k = 0; k < 3; k++) { // both published copies
        const struct cairn_round round = trainer_begin(j.job);
        fails(push(&j, &round, "body.weight"), CAIRN_ERR_REFUSED, "tensor body.weight is frozen");
        ck_assert_int_eq(push(&j, &round, "head.bias"), CAIRN_OK);
        trainer_commit(j.job, &round, 0);
        fetch(&j, "body.weight", NULL, after);
        ck_assert_mem_eq(before, after, sizeof before);
    }
    restart_coordinator();
    const struct cairn_round after_restart = trainer_begin(j.job);
    ck_assert_int_eq(push(&j, &after_restart, "body.weight"), CAIRN_ERR_REFUSED);
    trainer_commit(j.job, &after_restart, 0);
    good(cairn_snapshot(j.job, CAIRN_SNAPSHOT_WAIT, CLUSTER_WAIT_MS, id));
    leave_job(&j);
    says(0, "", "snapshot restore tiny %s --yes", id);
    open_job(&j, "tiny"); // with the spec as it was
    const struct cairn_round restored = trainer_begin(j.job);
    ck_assert_int_eq(push(&j, &restored, "body.weight"), CAIRN_ERR_REFUSED);
    trainer_commit(j.job, &restored, 0);
    ck_assert_msg(amend_tensor(&j, NULL, "body.weight") == CAIRN_OK, "%s", cairn_error());
    train_job(&j);
    fetch(&j, "body.weight", NULL, after);
    ck_assert(after[0] != before[0]);
    leave_job(&j);
    stop();
}

/* The script of a job to which a tensor was added knows nothing of it, nor does it where that job is made
 * anew of its snapshot, twice, with other settings: it says these, and is the job's. */
TEST(a_script_with_the_new_setting_opens_a_job_that_is_made_of_an_amended_one)
{
    struct job j;
    start(1);
    describe(&j);
    open_job(&j, "first");
    (void)train_job(&j);
    struct cairn_tensor late = tensor("body.late", 1, BIAS, 0);
    late.init.kind = CAIRN_INIT_ONES;
    late.group = "body";
    const struct cairn_amend amend = { .struct_size = sizeof amend, .add = &late, .add_count = 1 };
    good(cairn_job_amend(j.job, &amend, CLUSTER_WAIT_MS));
    leave_job(&j);
    open_job(&j, "first"); // as it was
    leave_job(&j);
    says(0, "step", "snapshot create first --wait");
    says(0, "second", "job create second --from first/latest --set stage=0 --set body.lr=2");
    j.spec.stage = CAIRN_STAGE(0);
    j.groups[0].lr = 3;
    ck_assert_int_eq(try_open(&j, "second"), CAIRN_ERR_MISMATCH);
    leave_job(&j);
    j.groups[0].lr = 2;
    open_job(&j, "second");
    ck_assert(train_job(&j) == 2);
    leave_job(&j);
    restart_coordinator();
    says(0, "step", "snapshot create second --wait");
    says(0, "third", "job create third --from second/latest --set body.lr=3");
    j.groups[0].lr = 3;
    open_job(&j, "third");
    ck_assert(train_job(&j) == 3);
    leave_job(&j);
    j.groups[0].lr = 4;
    ck_assert_int_eq(try_open(&j, "third"), CAIRN_ERR_MISMATCH);
    leave_job(&j);
    stop();
}

TEST(an_amendment_that_cannot_be_changes_nothing)
{
    struct job j;
    start(1);
    describe(&j);
    open_job(&j, "tiny");
    fails(amend_group(&j, 0, -1), CAIRN_ERR_INVALID, "lr is -1; allowed: 0 to");
    struct cairn_group group = j.groups[0];
    struct cairn_amend amend = { .struct_size = sizeof amend, .groups = &group, .group_count = 1 };
    fails(cairn_job_amend(j.job, &amend, CLUSTER_WAIT_MS), CAIRN_ERR_INVALID,
          "pattern must be NULL");
    group.pattern = NULL;
    group.optimizer = "adamw";
    fails(cairn_job_amend(j.job, &amend, CLUSTER_WAIT_MS), CAIRN_ERR_UNSUPPORTED,
          "allowed: \"sgd\"");
    group.optimizer = "sgd";
    group.momentum = 0.9;
    fails(cairn_job_amend(j.job, &amend, CLUSTER_WAIT_MS), CAIRN_ERR_UNSUPPORTED,
          "keeps other state");
    group.momentum = 0;
    group.beta1 = 0.5; // which sgd would ignore
    fails(cairn_job_amend(j.job, &amend, CLUSTER_WAIT_MS), CAIRN_ERR_INVALID,
          "beta1 has no effect with optimizer sgd");
    group.beta1 = j.groups[0].beta1;
    group.name = "neck";
    ck_assert_int_eq(cairn_job_amend(j.job, &amend, CLUSTER_WAIT_MS), CAIRN_ERR_NOT_FOUND);
    ck_assert_int_eq(amend_frozen(&j, "neck", NULL), CAIRN_ERR_NOT_FOUND);
    fails(amend_frozen(&j, "head.bias", NULL), CAIRN_ERR_NOT_FOUND, "name it in freeze_tensors");
    ck_assert_int_eq(amend_tensor(&j, "neck", NULL), CAIRN_ERR_NOT_FOUND);
    fails(amend_tensor(&j, "tied", NULL), CAIRN_ERR_INVALID, "is an alias of body.weight");
    ck_assert_int_eq(amend_frozen(&j, NULL, NULL), CAIRN_ERR_INVALID);
    amend = (struct cairn_amend) { .struct_size = sizeof amend,
                                   .clip_norm = -1,
                                   .set_clip_norm = true };
    ck_assert_int_eq(cairn_job_amend(j.job, &amend, CLUSTER_WAIT_MS), CAIRN_ERR_INVALID);
    amend.struct_size = 8;
    ck_assert_int_eq(cairn_job_amend(j.job, &amend, CLUSTER_WAIT_MS), CAIRN_ERR_INVALID);
    ck_assert_int_eq(cairn_job_amend(j.job, NULL, CLUSTER_WAIT_MS), CAIRN_ERR_INVALID);
    const struct cairn_round round = trainer_begin(j.job);
    ck_assert_uint_eq(round.revision, 0);
    amend = (struct cairn_amend) { .struct_size = sizeof amend,
                                   .clip_norm = 0.5,
                                   .set_clip_norm = true };
    good(cairn_job_amend(j.job, &amend, CLUSTER_WAIT_MS));
    ck_assert(trainer_commit(j.job, &round, 0).clip_scale == 1);
    const struct cairn_round next = trainer_begin(j.job);
    ck_assert_int_eq(push(&j, &next, "body.weight"), CAIRN_OK);
    ck_assert(trainer_commit(j.job, &next, 0).clip_scale < 1);
    leave_job(&j);
    ck_assert_int_eq(cairn_job_amend(j.job, &amend, 0), CAIRN_ERR_HANDLE);
    stop();
}

SUITE(60);
