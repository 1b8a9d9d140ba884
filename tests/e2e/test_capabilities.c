/* Every row of the table that `cairn capabilities` prints, by a job that makes that choice: what the table
 * calls refused is refused when a worker attaches, with the field and the value; what it calls supported has
 * the effect that it says; and of two choices that do not go together the table says what happens. The
 * optimizer is SGD and the gradient 1, so that a parameter says what was done. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "proto/spec/spec.h"
#include "tests/e2e/scene.h"
#include "tests/support/scratch.h"

enum { ROWS = 4, COLUMNS = 3, WEIGHTS = ROWS * COLUMNS, EXTRA = 5, WAIT_MS = CLUSTER_WAIT_MS };
#define LR      0.5f
#define WEIGHT0 1.001f /* no bf16 */

/* A job that makes one choice. */
struct sample {
    const struct capability *row;
    char name[32];
    struct cairn_tensor tensors[3];
    struct cairn_box parts[2];
    struct cairn_group group;
    struct cairn_schedule_point points[2];
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

static void describe(struct sample *s, const struct capability *row)
{
    static int count;
    const struct cairn_group group = CAIRN_GROUP_INIT;
    memset(s, 0, sizeof *s);
    s->row = row;
    snprintf(s->name, sizeof s->name, "row%d", count++);
    s->tensors[0] = tensor("w", 2, ROWS, COLUMNS);
    s->group = group;
    s->group.optimizer = "sgd";
    s->group.lr = LR;
    s->spec = (struct cairn_job_spec) { .struct_size = sizeof s->spec,
                                        .tensors = s->tensors,
                                        .tensor_count = 1,
                                        .groups = &s->group,
                                        .group_count = 1 };
}

/* ---- choices ---- */

static void add_extra(struct sample *s, cairn_kind kind)
{
    s->tensors[s->spec.tensor_count] = tensor("x", 1, EXTRA, 0);
    s->tensors[s->spec.tensor_count++].kind = kind;
}

/* The first two rows of w, and the others. */
static void add_parts(struct sample *s, size_t count)
{
    static const char *const names[] = { "first", "second" };
    for (size_t i = 0; i < count; i++) {
        s->parts[i] = (struct cairn_box) { 2, { i * ROWS / 2, 0 }, { ROWS / 2, COLUMNS } };
        struct cairn_tensor *part = &s->tensors[s->spec.tensor_count++];
        *part = tensor(names[i], 2, ROWS / 2, COLUMNS);
        part->alias_of = "w";
        part->alias_box = &s->parts[i];
    }
}

static void choose_alias(struct sample *s, int value)
{
    if (value == 1) {
        s->tensors[s->spec.tensor_count] = tensor("other", 2, ROWS, COLUMNS);
        s->tensors[s->spec.tensor_count++].alias_of = "w";
    } else if (value > 1) {
        add_parts(s, 2);
    }
}

static void choose_schedule(struct sample *s, cairn_schedule_kind kind)
{
    s->group.schedule = kind;
    s->group.warmup_steps = kind == CAIRN_SCHEDULE_DRIVEN ? 0 : 1;
    if (kind == CAIRN_SCHEDULE_TABLE) {
        s->points[0] = (struct cairn_schedule_point) { 1, 1 };
        s->points[1] = (struct cairn_schedule_point) { 4, 0.25 };
        s->group.points = s->points;
        s->group.point_count = 2;
    } else if (kind != CAIRN_SCHEDULE_CONSTANT && kind != CAIRN_SCHEDULE_DRIVEN) {
        s->group.total_steps = 4;
        s->group.decay_steps = kind == CAIRN_SCHEDULE_WSD ? 2 : 0;
        s->group.lr_min = 0.125;
    }
}

static void choose_init(struct sample *s, cairn_init_kind kind)
{
    const bool random = kind == CAIRN_INIT_UNIFORM || kind == CAIRN_INIT_NORMAL;
    s->tensors[0].init.kind = kind;
    if (random || kind == CAIRN_INIT_CONSTANT) s->tensors[0].init.a = 0.25;
    if (random) s->tensors[0].init.b = 0.75;
    if (random) s->tensors[0].init.seed = 7;
}

static void choose_combination(struct sample *s, int value)
{
    switch ((enum spec_combination)value) {
    case CAIRN_COMBINATION_GROUPS_TILES: s->spec.reduce_groups = CAIRN_GROUPS_HOST; break;
    case CAIRN_COMBINATION_PARTS_TILES: add_parts(s, 2); break;
    case CAIRN_COMBINATION_BLOB_TILE: add_extra(s, CAIRN_BLOB); break;
    case CAIRN_COMBINATION_BLOB_INIT:
        add_extra(s, CAIRN_BLOB);
        s->tensors[1].init.kind = CAIRN_INIT_ZEROS;
        break;
    case CAIRN_COMBINATION_BLOB_ALIAS:
        add_extra(s, CAIRN_BLOB);
        s->tensors[s->spec.tensor_count] = tensor("y", 1, EXTRA, 0);
        s->tensors[s->spec.tensor_count++].alias_of = "x";
        break;
    case CAIRN_COMBINATION_NUMBERS_U8: s->tensors[0].wire = CAIRN_U8; break;
    }
}

static void choose(struct sample *s)
{
    const int value = s->row->value;
    const bool is_blob = value == CAIRN_U8;
    switch (s->row->field) {
    case CAIRN_CAPABILITY_KIND: add_extra(s, (cairn_kind)value); break;
    case CAIRN_CAPABILITY_WIRE:
        if (is_blob) add_extra(s, CAIRN_BLOB);
        s->tensors[is_blob].wire = (cairn_dtype)value;
        break;
    case CAIRN_CAPABILITY_REDUCE: s->tensors[0].reduce = (cairn_dtype)value; break;
    case CAIRN_CAPABILITY_MASTER:
        if (is_blob) add_extra(s, CAIRN_BLOB);
        s->tensors[is_blob].master = (cairn_dtype)value;
        break;
    case CAIRN_CAPABILITY_PLACE: s->tensors[0].place = (cairn_placement)value; break;
    case CAIRN_CAPABILITY_INIT: choose_init(s, (cairn_init_kind)value); break;
    case CAIRN_CAPABILITY_ALIAS: choose_alias(s, value); break;
    case CAIRN_CAPABILITY_SCHEDULE: choose_schedule(s, (cairn_schedule_kind)value); break;
    case CAIRN_CAPABILITY_EMA:
        s->group.ema = 0.875;
        s->group.ema_schedule = (cairn_ema_schedule)value;
        break;
    case CAIRN_CAPABILITY_STAGE:
        s->spec.stage = CAIRN_STAGE((uint32_t)value);
        s->spec.micro_batches = 2;
        break;
    case CAIRN_CAPABILITY_LOSS_SCALE:
        s->spec.loss_scale_policy = (cairn_loss_scale)value;
        s->spec.loss_scale = 1024;
        break;
    case CAIRN_CAPABILITY_NONFINITE: s->spec.on_nonfinite = (cairn_nonfinite)value; break;
    case CAIRN_CAPABILITY_GROUPS:
        s->spec.reduce_groups = (cairn_reduce_groups)value;
        s->spec.workers_min = 2;
        break;
    case CAIRN_CAPABILITY_SHARD_LOSS: s->spec.on_shard_loss = (cairn_shard_loss)value; break;
    case CAIRN_CAPABILITY_WORKER_LOSS: s->spec.on_worker_loss = (cairn_worker_loss)value; break;
    case CAIRN_CAPABILITY_STAGING: s->spec.snapshot_staging = (cairn_snapshot_staging)value; break;
    case CAIRN_CAPABILITY_DURABILITY: s->spec.durability = (cairn_durability)value; break;
    case CAIRN_CAPABILITY_TIERS: s->spec.tiers = (cairn_tiers)value; break;
    case CAIRN_CAPABILITY_MISSING:
        s->spec.missing_gradients = (cairn_missing)value;
        s->group.weight_decay = 0.5;
        break;
    case CAIRN_CAPABILITY_COMBINATION: choose_combination(s, value); break;
    case CAIRN_CAPABILITY_FIELD_COUNT: ck_abort();
    }
}

/* ---- what a job does ---- */

static cairn_status try_open(struct sample *s)
{
    s->session = trainer_session(cluster.address, NULL);
    return cairn_job_open(s->session, s->name, &s->spec, CAIRN_WORKER, WAIT_MS, &s->job);
}

static void put(const struct sample *s, const char *name, void *values, cairn_dtype dtype)
{
    const struct cairn_mem mem = trainer_mem(values, dtype);
    good(cairn_put(s->job, name, "param", NULL, &mem, NULL));
}

/* w is WEIGHT0 everywhere; x counts from 0. */
static void begin_state(const struct sample *s)
{
    float weights[WEIGHTS], extra[EXTRA];
    uint8_t bytes[EXTRA];
    for (int i = 0; i < WEIGHTS; i++) weights[i] = WEIGHT0;
    for (int i = 0; i < EXTRA; i++) extra[i] = bytes[i] = (uint8_t)i;
    if (s->row->field == CAIRN_CAPABILITY_ALIAS && s->row->value == 3) { // put by its parts
        put(s, "first", weights, CAIRN_F32);
        put(s, "second", weights, CAIRN_F32);
    } else if (s->tensors[0].init.kind == CAIRN_INIT_NONE) {
        put(s, "w", weights, CAIRN_F32);
    }
    for (size_t i = 1; i < s->spec.tensor_count; i++) {
        const bool is_blob = s->tensors[i].kind == CAIRN_BLOB;
        if (strcmp(s->tensors[i].name, "x") != 0) continue;
        put(s, "x", is_blob ? (void *)bytes : (void *)extra, is_blob ? CAIRN_U8 : CAIRN_F32);
    }
    good(cairn_init_done(s->job, NULL, WAIT_MS));
}

static void fetch(const struct sample *s, const char *name, const char *plane, void *out,
                  cairn_dtype dtype)
{
    cairn_op *op = NULL;
    struct cairn_version version = { 0 };
    const struct cairn_mem mem = trainer_mem(out, dtype);
    good(cairn_version_wait(s->job, version, WAIT_MS, &version));
    good(cairn_fetch(s->job, version, name, plane, NULL, &mem, &op));
    good(cairn_wait(op, WAIT_MS));
}

static void expect_all(const struct sample *s, const char *name, int count, float expected)
{
    float values[WEIGHTS];
    fetch(s, name, "wire", values, CAIRN_F32);
    for (int i = 0; i < count; i++)
        ck_assert_msg(values[i] == expected, "%s %s: %s[%d] is %.9g, not %.9g",
                      capability_field_name(s->row->field), s->row->value_name, name, i,
                      (double)values[i], (double)expected);
}

/* The gradient of that tensor is `value` everywhere. */
static void push(const struct sample *s, const struct cairn_round *round, uint32_t micro,
                 const char *name, float value)
{
    float gradient[WEIGHTS];
    cairn_op *op = NULL;
    for (int i = 0; i < WEIGHTS; i++) gradient[i] = value * (float)round->loss_scale;
    const struct cairn_mem mem = trainer_mem(gradient, CAIRN_F32);
    good(cairn_push(s->job, round, micro, name, NULL, &mem, &op));
    good(cairn_wait(op, WAIT_MS));
}

static struct cairn_result commit(const struct sample *s, const struct cairn_round *round)
{
    struct cairn_result result = { .struct_size = sizeof result };
    good(cairn_commit(s->job, round, 0, NULL, 0, WAIT_MS, &result));
    return result;
}

static struct cairn_result step(const struct sample *s, float gradient)
{
    const struct cairn_round round = trainer_begin(s->job);
    push(s, &round, 0, "w", gradient);
    return commit(s, &round);
}

/* ---- effects ---- */

static void show_kind(const struct sample *s)
{
    float values[EXTRA];
    uint8_t bytes[EXTRA];
    const bool is_trained = s->row->value == CAIRN_TRAINED;
    struct cairn_round round = trainer_begin(s->job);
    push(s, &round, 0, "w", 1);
    if (is_trained) push(s, &round, 0, "x", 1);
    commit(s, &round);
    expect_all(s, "w", WEIGHTS, WEIGHT0 - LR);
    if (s->row->value == CAIRN_BLOB)
        fetch(s, "x", "wire", bytes, CAIRN_U8);
    else
        fetch(s, "x", "wire", values, CAIRN_F32);
    for (int i = 0; i < EXTRA; i++) {
        const float is = s->row->value == CAIRN_BLOB ? (float)bytes[i] : values[i];
        ck_assert(is == (float)i - (is_trained ? LR : 0));
    }
}

/* What is fetched is the parameter in that type; a blob comes back as it was put. */
static void show_wire(const struct sample *s)
{
    uint16_t halves[WEIGHTS];
    uint8_t bytes[EXTRA];
    if (s->row->value == CAIRN_F32) expect_all(s, "w", WEIGHTS, WEIGHT0);
    if (s->row->value == CAIRN_BF16) {
        fetch(s, "w", "wire", halves, CAIRN_BF16);
        for (int i = 0; i < WEIGHTS; i++) ck_assert_uint_eq(halves[i], 0x3f80); // 1: 1.001 is none
    }
    if (s->row->value == CAIRN_U8) {
        fetch(s, "x", "wire", bytes, CAIRN_U8);
        for (int i = 0; i < EXTRA; i++) ck_assert_uint_eq(bytes[i], (uint8_t)i);
    }
}

/* 1e-6 of a parameter near 1 is lost in a master, or a sum, of fewer bits. */
static void show_precision(const struct sample *s)
{
    uint8_t bytes[EXTRA];
    step(s, 1e-6f);
    expect_all(s, "w", WEIGHTS, WEIGHT0 - LR * 1e-6f);
    if (s->row->value != CAIRN_U8) return;
    fetch(s, "x", "wire", bytes, CAIRN_U8);
    for (int i = 0; i < EXTRA; i++) ck_assert_uint_eq(bytes[i], (uint8_t)i);
}

static void show_init(const struct sample *s)
{
    float values[WEIGHTS];
    int differ = 0;
    if (s->row->value == CAIRN_INIT_NONE) expect_all(s, "w", WEIGHTS, WEIGHT0);
    if (s->row->value == CAIRN_INIT_ZEROS) expect_all(s, "w", WEIGHTS, 0);
    if (s->row->value == CAIRN_INIT_ONES) expect_all(s, "w", WEIGHTS, 1);
    if (s->row->value == CAIRN_INIT_CONSTANT) expect_all(s, "w", WEIGHTS, 0.25f);
    if (s->row->value < CAIRN_INIT_UNIFORM) return;
    fetch(s, "w", "wire", values, CAIRN_F32);
    for (int i = 0; i < WEIGHTS; i++) {
        differ += values[i] != values[0];
        if (s->row->value == CAIRN_INIT_UNIFORM)
            ck_assert(values[i] >= 0.25f && values[i] <= 0.75f);
        ck_assert(fabsf(values[i] - 0.25f) < 6 * 0.75f);
    }
    ck_assert_int_eq(differ, WEIGHTS - 1);
}

static void show_alias(const struct sample *s)
{
    const struct cairn_round round = trainer_begin(s->job);
    if (s->row->value == 3) {
        push(s, &round, 0, "first", 1);
        push(s, &round, 0, "second", 2);
    } else {
        push(s, &round, 0, s->row->value == 1 ? "other" : "w", 1);
    }
    commit(s, &round);
    if (s->row->value == 1) expect_all(s, "other", WEIGHTS, WEIGHT0 - LR);
    if (s->row->value >= 2) {
        expect_all(s, "first", WEIGHTS / 2, WEIGHT0 - LR);
        expect_all(s, "second", WEIGHTS / 2, WEIGHT0 - (s->row->value == 3 ? 2 * LR : LR));
    } else {
        expect_all(s, "w", WEIGHTS, WEIGHT0 - LR);
    }
}

static void show_driven(const struct sample *s)
{
    for (int k = 1; k < 4; k++) {
        good(cairn_group_lr(s->job, s->group.name, (double)LR / k));
        ck_assert_double_eq(step(s, 1).lr, (double)LR / k);
    }
}

/* The rates of all of its rounds, two behind its end. */
static void show_schedule(const struct sample *s)
{
    const struct schedule schedule = { s->group.schedule,    s->group.warmup_steps,
                                       s->group.total_steps, s->group.decay_steps,
                                       s->group.lr_min,      s->group.points,
                                       s->group.point_count };
    bool moves = false;
    for (uint64_t k = 0; k < 6; k++) {
        const double lr = step(s, 1).lr;
        ck_assert_double_eq(lr, schedule_lr(&schedule, LR, k));
        moves |= k > 0 && lr != (double)LR;
    }
    ck_assert_int_eq(moves, s->row->value != CAIRN_SCHEDULE_CONSTANT);
}

/* Below stage 2 the first micro-batch stays here until the last one; stage 0 has one shard do the work. */
static void show_stage(const struct sample *s)
{
    struct cairn_stats stats = { .struct_size = sizeof stats };
    const struct cairn_round round = trainer_begin(s->job);
    push(s, &round, 0, "w", 1);
    good(cairn_micro_end(s->job, &round, 0));
    good(cairn_job_stats(s->job, &stats));
    ck_assert_int_eq(stats.accumulated_bytes > 0, s->row->value < 2);
    ck_assert_int_eq(stats.pushed_bytes > 0, s->row->value >= 2);
    push(s, &round, 1, "w", 3);
    commit(s, &round);
    expect_all(s, "w", WEIGHTS, WEIGHT0 - LR * 2); // the mean of two micro-batches
}

/* The average is the parameters at first and after the first update, and between old and new after the
 * second. A round that is skipped leaves it alone. */
static void show_ema(const struct sample *s)
{
    float p[2][WEIGHTS], ema[WEIGHTS];
    const bool is_warm = s->row->value == CAIRN_EMA_WARMUP;
    const float w = (float)(1 - (is_warm ? 2.0 / 11 : 0.875));
    fetch(s, "w", "ema", ema, CAIRN_F32);
    for (int i = 0; i < WEIGHTS; i++) ck_assert(ema[i] == WEIGHT0);
    for (int k = 0; k < 2; k++) {
        step(s, (float)(k + 1));
        fetch(s, "w", "param", p[k], CAIRN_F32);
        fetch(s, "w", "ema", ema, CAIRN_F32);
        for (int i = 0; k == 0 && i < WEIGHTS; i++) ck_assert(ema[i] == p[0][i]);
    }
    const struct cairn_result skipped = step(s, INFINITY);
    ck_assert(!skipped.applied);
    fetch(s, "w", "ema", ema, CAIRN_F32);
    for (int i = 0; i < WEIGHTS; i++) {
        const float apart = p[1][i] - p[0][i];
        const float expected = is_warm ? p[1][i] - apart * (1 - w) : p[0][i] + w * apart;
        ck_assert_msg(ema[i] == expected && ema[i] != p[0][i], "%g, not %g", (double)ema[i],
                      (double)expected);
    }
}

/* How much is left of the scale after a round that is not finite. */
static void show_loss_scale(const struct sample *s)
{
    const struct cairn_result result = step(s, INFINITY);
    ck_assert(!result.applied && !result.finite);
    const struct cairn_round round = trainer_begin(s->job);
    ck_assert_double_eq(round.loss_scale, s->row->value == CAIRN_LOSS_SCALE_FIXED ? 1024 : 512);
    push(s, &round, 0, "w", 1);
    ck_assert(commit(s, &round).applied);
    expect_all(s, "w", WEIGHTS, WEIGHT0 - LR);
}

static void show_nonfinite(const struct sample *s)
{
    struct cairn_result result = { .struct_size = sizeof result };
    const struct cairn_round round = trainer_begin(s->job);
    push(s, &round, 0, "w", NAN);
    const cairn_status status = cairn_commit(s->job, &round, 0, NULL, 0, WAIT_MS, &result);
    const bool fails = s->row->value == CAIRN_NONFINITE_FAIL;
    ck_assert_int_eq(status, fails ? CAIRN_ERR_NONFINITE : CAIRN_OK);
    if (fails)
        expect_error("not finite");
    else
        ck_assert(!result.applied);
    expect_all(s, "w", WEIGHTS, WEIGHT0);
}

static void *second_worker(void *of)
{
    const struct sample *first = of;
    struct sample s = *first;
    s.spec.rank = 1;
    good(try_open(&s));
    good(cairn_init_done(s.job, NULL, WAIT_MS));
    step(&s, 3);
    cairn_close(s.session);
    return NULL;
}

/* Two workers of one host, side by side. */
static void show_groups(struct sample *s)
{
    pthread_t second;
    ck_assert_int_eq(pthread_create(&second, NULL, second_worker, s), 0);
    step(s, 1);
    pthread_join(second, NULL);
    expect_all(s, "w", WEIGHTS, WEIGHT0 - LR * 2);
    ask("job show %s", s->name);
    const bool is_grouped = strstr(said.out, "1 (ranks 0-1 by shard") != NULL;
    ck_assert_msg(is_grouped == (s->row->value == CAIRN_GROUPS_HOST), "%s", said.out);
}

/* A step in which nobody has a gradient of it. */
static void show_missing(const struct sample *s)
{
    const struct cairn_round round = trainer_begin(s->job);
    ck_assert(commit(s, &round).applied);
    expect_all(s, "w", WEIGHTS,
               s->row->value == CAIRN_MISSING_LEAVE ? WEIGHT0 : WEIGHT0 - LR * (0.5f * WEIGHT0));
}

/* What it comes to when one is lost: e2e.shard_loss, e2e.worker_loss. */
static void show_policy(const struct sample *s, const char *label)
{
    char line[64];
    snprintf(line, sizeof line, "%-18s%s", label, s->row->value_name);
    ask("job show %s", s->name);
    ck_assert_msg(strstr(said.out, line) != NULL, "%s", said.out);
}

/* What each is worth: e2e.tiers. */
static void show_durability(const struct sample *s)
{
    char line[64];
    snprintf(line, sizeof line, "%s is asked for", s->row->value_name);
    ask("job show %s", s->name);
    const bool is_asked = s->row->value != CAIRN_DURABILITY_DEFAULT;
    ck_assert_msg((strstr(said.out, line) != NULL) == is_asked, "%s", said.out);
}

static void show_combination(const struct sample *s)
{
    struct cairn_tile tile = { .struct_size = sizeof tile,
                               .tensor = "w",
                               .box = { 2, { 0, 0 }, { ROWS, COLUMNS } } };
    ck_assert_int_eq(s->row->value, CAIRN_COMBINATION_GROUPS_TILES); // the others are refused
    good(cairn_tiles(s->job, &tile, 1, 1, WAIT_MS));
    ask("job show %s", s->name); // before any round
    ck_assert_msg(strstr(said.out, "none: the workers hold tiles") != NULL, "%s", said.out);
}

static void show(struct sample *s)
{
    switch (s->row->field) {
    case CAIRN_CAPABILITY_KIND: show_kind(s); break;
    case CAIRN_CAPABILITY_WIRE: show_wire(s); break;
    case CAIRN_CAPABILITY_REDUCE:
    case CAIRN_CAPABILITY_MASTER:
    case CAIRN_CAPABILITY_PLACE: show_precision(s); break;
    case CAIRN_CAPABILITY_INIT: show_init(s); break;
    case CAIRN_CAPABILITY_ALIAS: show_alias(s); break;
    case CAIRN_CAPABILITY_SCHEDULE:
        (s->row->value == CAIRN_SCHEDULE_DRIVEN ? show_driven : show_schedule)(s);
        break;
    case CAIRN_CAPABILITY_EMA: show_ema(s); break;
    case CAIRN_CAPABILITY_STAGE: show_stage(s); break;
    case CAIRN_CAPABILITY_LOSS_SCALE: show_loss_scale(s); break;
    case CAIRN_CAPABILITY_NONFINITE: show_nonfinite(s); break;
    case CAIRN_CAPABILITY_GROUPS: show_groups(s); break;
    case CAIRN_CAPABILITY_SHARD_LOSS: show_policy(s, "on shard loss"); break;
    case CAIRN_CAPABILITY_WORKER_LOSS: show_policy(s, "on worker loss"); break;
    case CAIRN_CAPABILITY_STAGING: show_policy(s, "staging"); break;
    case CAIRN_CAPABILITY_DURABILITY: show_durability(s); break;
    case CAIRN_CAPABILITY_MISSING: show_missing(s); break;
    case CAIRN_CAPABILITY_TIERS: show_precision(s); break; // and on a device: gpu.offload
    case CAIRN_CAPABILITY_COMBINATION: show_combination(s); break;
    case CAIRN_CAPABILITY_FIELD_COUNT: ck_abort();
    }
}

/* ---- the table ---- */

/* When the worker attaches, or, of what only its tiles make impossible, when it says these. */
static cairn_status try_refused(struct sample *s)
{
    const bool is_combination = s->row->field == CAIRN_CAPABILITY_COMBINATION;
    const bool is_blob = s->row->value == CAIRN_COMBINATION_BLOB_TILE;
    struct cairn_tile tile = { .struct_size = sizeof tile, .tensor = is_blob ? "x" : "first" };
    tile.box = is_blob ? (struct cairn_box) { 1, { 0 }, { EXTRA - 1 } } : s->parts[0];
    const cairn_status status = try_open(s);
    if (status != CAIRN_OK || !is_combination) return status;
    return cairn_tiles(s->job, &tile, 1, 1, WAIT_MS);
}

static void expect_refused(struct sample *s)
{
    const bool is_combination = s->row->field == CAIRN_CAPABILITY_COMBINATION;
    const cairn_status status = try_refused(s);
    ck_assert_msg(
        status == CAIRN_ERR_UNSUPPORTED || (is_combination && status == CAIRN_ERR_INVALID),
        "%s %s gave %d", capability_field_name(s->row->field), s->row->value_name, (int)status);
    if (is_combination) return;
    ck_assert_ptr_nonnull(strstr(cairn_error(), capability_field_name(s->row->field)));
    ck_assert_ptr_nonnull(strstr(cairn_error(), s->row->value_name));
    expect_error("; allowed: ");
}

TEST(every_row_is_refused_or_has_its_effect)
{
    size_t count;
    struct sample s;
    const struct capability *rows = capability_table(&count);
    // what each durability needs: a keeper, a standby, a folder for logs
    start(2, .shards_kept = true,
          .shard_set = SETTINGS("compute.threads=1", "memory.limit=256MiB", logs_setting));
    for (int standby = 2; standby < 4; standby++) {
        cluster_add_standby(&cluster, standby, standby - 2);
        await(logged("coordinator.log", "is up at") == standby + 1);
    }
    for (size_t r = 0; r < count; r++) {
        describe(&s, &rows[r]);
        choose(&s);
        if (!rows[r].supported && rows[r].instead == NULL) {
            expect_refused(&s);
        } else {
            good(try_open(&s));
            if (rows[r].field != CAIRN_CAPABILITY_COMBINATION) begin_state(&s);
            show(&s);
        }
        cairn_close(s.session);
    }
}

/* ---- what a build or a host lacks ---- */

TEST(what_a_build_or_host_lacks_is_said_once_and_is_no_warning)
{
    setenv("CAIRN_HOST_ISA", "plain", 1);
    start(2);
    ask("cluster status");
    const char *text = strstr(said.out, "without ");
    ck_assert_msg(text != NULL, "%s", said.out);
    ck_assert_ptr_nonnull(strstr(text, "GPU (compute.backend"));
    ck_assert_ptr_nonnull(strstr(text, "AVX-512 ("));
    ck_assert_ptr_nonnull(strstr(text, ": shard-0, shard-1\n"));
    ck_assert_ptr_nonnull(
        strstr(said.out, "shard-1: state lies in host memory (plain): compute.backend is host"));
    ask("cluster status -o json");
    ck_assert_ptr_nonnull(strstr(said.out, "\"without\": ["));
    ck_assert_ptr_nonnull(strstr(said.out, "\"AVX-512\""));
    ck_assert_int_eq(logged("shard-0.log", "msg=\"without "), 1);
    ck_assert_int_eq(logged("shard-0.log", "level=warn"), 0);
    ck_assert_int_eq(logged("coordinator.log", "level=warn"), 0);
}

SUITE(100, logs_begin, logs_end);
