/* The job spec: memory, order, judgement, hash, differences. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "tests/support/suite.h"

static const char *const optimizers[] = { "adamw", "adam", "sgd", NULL };

static void add_tensor(struct job_spec_data *spec, const char *name, uint64_t rows)
{
    const struct tensor_spec t = { .name = (char *)(uintptr_t)name,
                                   .group = (char *)(uintptr_t) "all",
                                   .kind = CAIRN_TRAINED,
                                   .wire = CAIRN_BF16,
                                   .reduce = CAIRN_F32,
                                   .master = CAIRN_F32,
                                   .shape = { .rank = 2, .dim = { rows, 784 } } };
    ck_assert_int_eq(spec_add_tensor(spec, &t), CAIRN_OK);
}

static void add_group(struct job_spec_data *spec, const char *name)
{
    struct group_spec g = group_default();
    g.name = (char *)(uintptr_t)name;
    g.optimizer = (char *)(uintptr_t) "adamw";
    ck_assert_int_eq(spec_add_group(spec, &g), CAIRN_OK);
}

static struct job_spec_data good_spec(void)
{
    struct job_spec_data spec;
    spec_init(&spec);
    ck_assert_int_eq(spec_set_name(&spec, "mnist"), CAIRN_OK);
    add_group(&spec, "all");
    add_tensor(&spec, "fc2.weight", 256);
    add_tensor(&spec, "fc1.weight", 512);
    add_tensor(&spec, "fc1.bias", 1);
    return spec;
}

TEST(a_good_spec_passes)
{
    struct job_spec_data spec = good_spec();
    struct sentence why = { "" };
    ck_assert_int_eq(spec_check(&spec, optimizers, &why), CAIRN_OK);
    ck_assert_str_eq(spec.tensors[0].unit, "fc2.weight");
    spec_release(&spec);
}

/* One change to a good spec, and a word that the sentence must have. */
struct spoil {
    const char *what;
    void (*change)(struct job_spec_data *);
    cairn_status status;
    const char *word;
};

static void replace(char **text, const char *by)
{
    free(*text);
    *text = strdup(by);
}

static void stage_4(struct job_spec_data *s)
{
    s->stage = 4;
}
static void stage_max(struct job_spec_data *s)
{
    s->stage = UINT32_MAX;
}
static void no_workers(struct job_spec_data *s)
{
    s->workers_min = 0;
}
static void wide_window(struct job_spec_data *s)
{
    s->window = UINT32_MAX;
}
static void huge_chunk(struct job_spec_data *s)
{
    s->chunk_leaves = 1025;
}
static void no_spread(struct job_spec_data *s)
{
    s->spread = 0;
}
static void keep_of_none(struct job_spec_data *s)
{
    s->policy.snapshot_keep = 2;
}
static void keep_every_of_none(struct job_spec_data *s)
{
    s->policy.snapshot_keep_every = 1000;
}
static void within_of_none(struct job_spec_data *s)
{
    s->policy.snapshot_keep_within_s = 86400;
}
static void bytes_of_none(struct job_spec_data *s)
{
    s->policy.snapshot_max_bytes = 1;
}
static void two_everys(struct job_spec_data *s)
{
    s->policy.snapshot_every = 500;
    s->policy.snapshot_every_s = 600;
}
static void staging_2(struct job_spec_data *s)
{
    s->policy.snapshot_staging = (cairn_snapshot_staging)2;
}
static void loss_3(struct job_spec_data *s)
{
    s->policy.on_shard_loss = (cairn_shard_loss)3;
}
static void idle_wait(struct job_spec_data *s)
{
    s->policy.shard_loss_wait_s = 7;
}
static void missing_2(struct job_spec_data *s)
{
    s->missing_gradients = (cairn_missing)2;
}
static void missed_before(struct job_spec_data *s)
{
    s->tensors[0].kind = CAIRN_TRAINED;
    s->first_step = 5;
    s->tensors[0].steps_missed = 6;
}
static void worker_loss_3(struct job_spec_data *s)
{
    s->policy.on_worker_loss = (cairn_worker_loss)3;
}
static void idle_worker_wait(struct job_spec_data *s)
{
    s->policy.worker_loss_wait_s = 7;
}
static void no_skips(struct job_spec_data *s)
{
    s->skips_max = 0;
}
static void huge_batch(struct job_spec_data *s)
{
    s->global_batch = CAIRN_SPEC_MICRO_MAX + 1;
}
static void two_batches(struct job_spec_data *s)
{
    s->global_batch = 4;
    s->micro_batches = 2;
}
static void batch_added_up(struct job_spec_data *s)
{
    s->global_batch = 4;
    s->stage = 1;
}
static void batch_in_groups(struct job_spec_data *s)
{
    s->global_batch = 4;
    s->reduce_groups = CAIRN_GROUPS_HOST;
}
static void huge_seed(struct job_spec_data *s)
{
    s->seed = CAIRN_SPEC_SEED_MAX + 1;
}
static void nan_clip(struct job_spec_data *s)
{
    s->clip_norm = NAN;
}
static void zero_scale(struct job_spec_data *s)
{
    s->loss_scale = 0;
}
static void policy_3(struct job_spec_data *s)
{
    s->on_nonfinite = (cairn_nonfinite)3;
}
static void job_dotdot(struct job_spec_data *s)
{
    replace(&s->name, "..");
}
static void job_slash(struct job_spec_data *s)
{
    replace(&s->name, "a/b");
}
static void unknown_optimizer(struct job_spec_data *s)
{
    replace(&s->groups[0].optimizer, "adamuon");
}
static void beta_one(struct job_spec_data *s)
{
    s->groups[0].beta2 = 1;
}
static void lr_infinite(struct job_spec_data *s)
{
    s->groups[0].lr = INFINITY;
}
static void lr_negative(struct job_spec_data *s)
{
    s->groups[0].lr = -1;
}
static void eps_zero(struct job_spec_data *s)
{
    s->groups[0].eps = 0;
}
static void eps_tiny(struct job_spec_data *s)
{
    s->groups[0].eps = 1e-60;
}
static void eps_nan(struct job_spec_data *s)
{
    s->groups[0].eps = (double)NAN;
}
static void decay_negative(struct job_spec_data *s)
{
    s->groups[0].weight_decay = -0.5;
}
static void momentum_infinite(struct job_spec_data *s)
{
    s->groups[0].momentum = (double)INFINITY;
}
static void beta_negative(struct job_spec_data *s)
{
    s->groups[0].beta1 = -0.5;
}
static void nesterov_alone(struct job_spec_data *s)
{
    s->groups[0].nesterov = true;
}
static void unused_group(struct job_spec_data *s)
{
    add_group(s, "embeddings");
}
static void twin_group(struct job_spec_data *s)
{
    add_group(s, "all");
}
static void lost_group(struct job_spec_data *s)
{
    replace(&s->tensors[1].group, "none");
}
static void twin_tensor(struct job_spec_data *s)
{
    add_tensor(s, "fc1.bias", 1);
}
static void empty_name(struct job_spec_data *s)
{
    replace(&s->tensors[0].name, "");
}
static void bell_in_name(struct job_spec_data *s)
{
    replace(&s->tensors[0].name, "a\ab");
}
static void c1_in_name(struct job_spec_data *s)
{
    replace(&s->tensors[0].name, "\xc2\x85");
}
static void overlong(struct job_spec_data *s)
{
    replace(&s->tensors[0].name, "\xc0\xaf");
}
static void surrogate(struct job_spec_data *s)
{
    replace(&s->tensors[0].unit, "\xed\xa0\x80");
}
static void reserved(struct job_spec_data *s)
{
    replace(&s->tensors[0].name, "__metadata__");
}
static void kind_9(struct job_spec_data *s)
{
    s->tensors[0].kind = (cairn_kind)9;
}
/* Good but for what a caller changes: it is tensor 0, "fc1.bias". */
static struct tensor_spec *make_blob(struct job_spec_data *s)
{
    struct tensor_spec *t = &s->tensors[0];
    t->kind = CAIRN_BLOB;
    t->wire = t->master = CAIRN_U8;
    t->shape = (struct shape) { 1, { 9 } };
    return t;
}
static void blob_f32(struct job_spec_data *s)
{
    make_blob(s)->wire = CAIRN_F32;
}
static void blob_master_f32(struct job_spec_data *s)
{
    make_blob(s)->master = CAIRN_F32;
}
static void blob_reduced(struct job_spec_data *s)
{
    make_blob(s)->reduce = CAIRN_U8;
}
static void blob_rank_2(struct job_spec_data *s)
{
    make_blob(s)->shape = (struct shape) { 2, { 3, 3 } };
}
static void blob_init(struct job_spec_data *s)
{
    make_blob(s)->init.kind = CAIRN_INIT_ZEROS;
}
static void blob_alias(struct job_spec_data *s)
{
    struct tensor_spec t = { .name = (char *)(uintptr_t) "twin",
                             .alias_of = make_blob(s)->name,
                             .kind = CAIRN_FROZEN,
                             .wire = CAIRN_U8,
                             .reduce = CAIRN_F32,
                             .master = CAIRN_F32,
                             .shape = { 1, { 0 } } };
    ck_assert_int_eq(spec_add_tensor(s, &t), CAIRN_OK);
}
static void trained_u8(struct job_spec_data *s)
{
    s->tensors[0].wire = CAIRN_U8;
}
static void trained_master_u8(struct job_spec_data *s)
{
    s->tensors[0].master = CAIRN_U8;
}
static void place_whole(struct job_spec_data *s)
{
    s->tensors[0].whole = true;
}
static void wire_f64(struct job_spec_data *s)
{
    s->tensors[0].wire = CAIRN_F64;
}
static void reduce_bf16(struct job_spec_data *s)
{
    s->tensors[0].reduce = CAIRN_BF16;
}
static void master_77(struct job_spec_data *s)
{
    s->tensors[0].master = (cairn_dtype)77;
}
static void rank_9(struct job_spec_data *s)
{
    s->tensors[0].shape.rank = 9;
}
static void overflowing(struct job_spec_data *s)
{
    s->tensors[0].shape.dim[0] = s->tensors[0].shape.dim[1] = (uint64_t)1 << 33;
}
static void too_much_together(struct job_spec_data *s)
{
    for (size_t i = 0; i < 2; i++) {
        s->tensors[i].shape.rank = 1;
        s->tensors[i].shape.dim[0] = ((uint64_t)1 << 48) - 1;
    }
}

static const struct spoil spoils[] = {
    { "stage 2^32 - 1", stage_max, CAIRN_ERR_INVALID, "stage is 4294967295; allowed: 0" },
    { "stage 4", stage_4, CAIRN_ERR_INVALID, "stage is 4; allowed: 0 (state on one shard" },
    { "no workers", no_workers, CAIRN_ERR_INVALID, "workers_min is 0" },
    { "window", wide_window, CAIRN_ERR_INVALID, "window is 4294967295" },
    { "chunk", huge_chunk, CAIRN_ERR_INVALID, "chunk_leaves is 1025" },
    { "spread", no_spread, CAIRN_ERR_INVALID, "spread is 0" },
    { "keep", keep_of_none, CAIRN_ERR_INVALID, "snapshot_keep is 2, and without" },
    { "keep every", keep_every_of_none, CAIRN_ERR_INVALID,
      "snapshot_keep_every is 1000, and without" },
    { "keep within", within_of_none, CAIRN_ERR_INVALID, "snapshot_keep_within_s is 86400, and" },
    { "max bytes", bytes_of_none, CAIRN_ERR_INVALID, "snapshot_max_bytes is 1, and without" },
    { "two everys", two_everys, CAIRN_ERR_INVALID,
      "snapshot_every is 500 and snapshot_every_s 600" },
    { "staging", staging_2, CAIRN_ERR_INVALID,
      "snapshot_staging is 2; allowed: 0 (state), 1 (small)" },
    { "loss", loss_3, CAIRN_ERR_INVALID,
      "on_shard_loss is 3; allowed: 0 (wait), 1 (restore-latest)" },
    { "wait", idle_wait, CAIRN_ERR_INVALID, "with on_shard_loss wait it has no effect" },
    { "batch", huge_batch, CAIRN_ERR_INVALID, "global_batch is 65537; allowed: 0 to 65536" },
    { "two batches", two_batches, CAIRN_ERR_INVALID, "global_batch is 4 and micro_batches 2" },
    { "added up", batch_added_up, CAIRN_ERR_INVALID, "allowed: stage 2 or 3" },
    { "batch in groups", batch_in_groups, CAIRN_ERR_INVALID, "allowed: reduce_groups 0 (none)" },
    { "seed", huge_seed, CAIRN_ERR_INVALID, "seed is 9007199254740992; allowed: 0 to" },
    { "missing", missing_2, CAIRN_ERR_INVALID,
      "missing_gradients is 2; allowed: 0 (zero), 1 (leave)" },
    { "missed", missed_before, CAIRN_ERR_INVALID,
      "steps_missed is 6, and the job begins at step 5" },
    { "worker loss", worker_loss_3, CAIRN_ERR_INVALID,
      "on_worker_loss is 3; allowed: 0 (redo), 1 (wait), 2 (fail)" },
    { "worker wait", idle_worker_wait, CAIRN_ERR_INVALID, "without on_worker_loss wait it has no" },
    { "skips", no_skips, CAIRN_ERR_INVALID, "skips_max is 0; allowed: 1 to 4294967295" },
    { "clip", nan_clip, CAIRN_ERR_INVALID, "clip_norm" },
    { "scale", zero_scale, CAIRN_ERR_INVALID, "loss_scale" },
    { "policy", policy_3, CAIRN_ERR_INVALID, "on_nonfinite is 3" },
    { "job ..", job_dotdot, CAIRN_ERR_INVALID, "job name \"..\"" },
    { "job /", job_slash, CAIRN_ERR_INVALID, "job name \"a/b\"" },
    { "optimizer", unknown_optimizer, CAIRN_ERR_UNSUPPORTED, "known: adamw, adam, sgd" },
    { "beta 1", beta_one, CAIRN_ERR_INVALID, "beta2 is 1" },
    { "lr", lr_negative, CAIRN_ERR_INVALID, "lr is -1" },
    { "lr inf", lr_infinite, CAIRN_ERR_INVALID, "lr is inf; allowed: 0 to 1e+18" },
    { "eps NaN", eps_nan, CAIRN_ERR_INVALID, "eps is nan; allowed: 0 to 1e+18" },
    { "weight decay", decay_negative, CAIRN_ERR_INVALID, "weight_decay is -0.5; allowed: 0 to" },
    { "momentum", momentum_infinite, CAIRN_ERR_INVALID, "momentum is inf; allowed: 0 to 1e+18" },
    { "beta below 0", beta_negative, CAIRN_ERR_INVALID, "beta1 is -0.5; allowed: 0 to below 1" },
    { "nesterov", nesterov_alone, CAIRN_ERR_INVALID, "momentum" },
    { "unused group", unused_group, CAIRN_ERR_INVALID, "\"embeddings\" has no trained tensor" },
    { "two groups", twin_group, CAIRN_ERR_INVALID, "two groups have the name \"all\"" },
    { "group missing", lost_group, CAIRN_ERR_INVALID, "\"none\" is not declared" },
    { "two tensors", twin_tensor, CAIRN_ERR_INVALID, "two tensors have the name \"fc1.bias\"" },
    { "empty name", empty_name, CAIRN_ERR_INVALID, "tensor number 0" },
    { "control character", bell_in_name, CAIRN_ERR_INVALID, "tensor number 0" },
    { "C1 control character", c1_in_name, CAIRN_ERR_INVALID, "tensor number 0" },
    { "overlong UTF-8", overlong, CAIRN_ERR_INVALID, "tensor number 0" },
    { "surrogate", surrogate, CAIRN_ERR_INVALID, "its unit" },
    { "reserved", reserved, CAIRN_ERR_INVALID, "reserved" },
    { "kind 9", kind_9, CAIRN_ERR_INVALID, "kind is 9" },
    { "a blob of f32", blob_f32, CAIRN_ERR_INVALID, "wire and master 5 (u8)" },
    { "a blob's master", blob_master_f32, CAIRN_ERR_INVALID, "wire and master 5 (u8)" },
    { "a blob's sums", blob_reduced, CAIRN_ERR_INVALID, "reduce is 5; allowed: 1 (f32)" },
    { "a blob's rank", blob_rank_2, CAIRN_ERR_INVALID,
      "rank 2; allowed: a blob is bytes in a row" },
    { "a blob's init", blob_init, CAIRN_ERR_INVALID, "a blob is put: init 0 (none)" },
    { "a blob's alias", blob_alias, CAIRN_ERR_INVALID, "a blob, which has one name" },
    { "trained bytes", trained_u8, CAIRN_ERR_INVALID, "u8 is of blobs only" },
    { "a master of bytes", trained_master_u8, CAIRN_ERR_INVALID, "u8 is of blobs only" },
    { "place", place_whole, CAIRN_ERR_UNSUPPORTED, "place whole (1) is not supported" },
    { "wire f64", wire_f64, CAIRN_ERR_UNSUPPORTED, "wire f64 (4) is not supported" },
    { "reduce bf16", reduce_bf16, CAIRN_ERR_UNSUPPORTED, "reduce bf16 (2) is not supported" },
    { "master 77", master_77, CAIRN_ERR_INVALID, "master is 77; allowed: 1 (f32)" },
    { "rank 9", rank_9, CAIRN_ERR_INVALID, "rank 9" },
    { "overflow", overflowing, CAIRN_ERR_INVALID, "limits" },
    { "sum of elements", too_much_together, CAIRN_ERR_INVALID, "more than 2^48" },
};

TEST_EACH(a_bad_spec_is_refused_with_field_value_and_what_is_allowed, 0,
          sizeof spoils / sizeof spoils[0])
{
    const struct spoil *spoil = &spoils[_i];
    struct job_spec_data spec = good_spec();
    struct sentence why = { "" };
    spoil->change(&spec);
    ck_assert_msg(spec_check(&spec, optimizers, &why) == spoil->status, "%s", spoil->what);
    ck_assert_msg(strstr(why.text, spoil->word) != NULL, "%s: \"%s\"", spoil->what, why.text);
    spec_release(&spec);
}

TEST(a_blob_of_any_length_passes_and_nobody_but_a_worker_brings_it)
{
    struct job_spec_data spec = good_spec(), other = good_spec();
    struct sentence why = { "" };
    for (uint64_t bytes = 0; bytes < 10; bytes++) {
        make_blob(&spec)->shape.dim[0] = bytes;
        ck_assert_msg(spec_check(&spec, optimizers, &why) == CAIRN_OK, "%s", why.text);
    }
    ck_assert_int_eq(spec_set_init_from(&spec, "/weights", NULL), CAIRN_OK);
    ck_assert(!spec_has_origin(&spec, 0));
    ck_assert(spec_has_origin(&spec, 1));
    ck_assert(!spec_initializes_itself(&spec));
    spec.tensors[0].shape.dim[0] = 0; // nothing is to be put
    ck_assert(spec_initializes_itself(&spec));
    ck_assert_uint_eq(spec_diff(&spec, &spec, 0, NULL, NULL), 0);
    make_blob(&other);
    make_blob(&spec)->shape.dim[0] = 8;
    ck_assert_int_eq(spec_set_init_from(&spec, NULL, NULL), CAIRN_OK);
    ck_assert_uint_eq(spec_diff(&spec, &other, 0, NULL, NULL), 1);
    spec_release(&spec);
    spec_release(&other);
}

/* A gradient of zeros would make 0 / 0 of it. What is stored, by an older version, goes on. */
TEST(no_new_job_divides_by_an_eps_that_is_0_as_fp32)
{
    struct job_spec_data spec = good_spec();
    struct sentence why;
    void (*const zeros[])(struct job_spec_data *) = { eps_zero, eps_tiny };
    ck_assert_int_eq(spec_check_usable(&spec, &why), CAIRN_OK);
    for (size_t i = 0; i < 2; i++) {
        zeros[i](&spec);
        ck_assert_int_eq(spec_check(&spec, optimizers, &why), CAIRN_OK);
        ck_assert_int_eq(spec_check_usable(&spec, &why), CAIRN_ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(why.text, "adamw divides by it"));
        ck_assert_ptr_nonnull(strstr(why.text, "(CAIRN_GROUP_INIT has 1e-08)"));
    }
    spec.groups[0].eps = 0x1p-149;
    ck_assert_int_eq(spec_check_usable(&spec, &why), CAIRN_OK);
    spec_release(&spec);
}

TEST(what_the_check_passes_every_optimizer_takes)
{
    const double extremes[] = { 0, 5e-324, 1e-8, CAIRN_SPEC_HYPER_MAX };
    const double betas[] = { 0, 5e-324, 0.9, 0x1.fffffffffffffp-1 };
    const double epses[] = { 0, 0x1p-149, 1e-8, CAIRN_SPEC_HYPER_MAX };
    struct job_spec_data spec = good_spec();
    struct group_spec *g = &spec.groups[0];
    for (const char *const *name = optimizer_names(); *name != NULL; name++) {
        replace(&g->optimizer, *name);
        for (unsigned i = 0; i < 1u << 13; i++) {
            g->lr = extremes[i & 3];
            g->beta1 = betas[i >> 2 & 3];
            g->beta2 = betas[i >> 4 & 3];
            g->eps = epses[i >> 6 & 3];
            g->weight_decay = extremes[i >> 8 & 3];
            g->momentum = extremes[i >> 10 & 3];
            g->nesterov = i >> 12 != 0;
            if (g->nesterov && g->momentum == 0) continue;
            struct group_hyper hyper;
            ck_assert_int_eq(spec_check(&spec, optimizer_names(), NULL), CAIRN_OK);
            ck_assert_int_eq(group_hyper_of_spec(g, &hyper, NULL), CAIRN_OK);
        }
    }
    spec_release(&spec);
}

TEST(a_name_of_255_bytes_passes_and_of_256_is_refused)
{
    char name[257];
    struct job_spec_data spec = good_spec();
    memset(name, 'n', 256);
    name[256] = '\0';
    struct tensor_spec t = spec.tensors[0];
    t.name = name;
    ck_assert_int_eq(spec_add_tensor(&spec, &t), CAIRN_ERR_INVALID);
    ck_assert_uint_eq(spec.tensor_count, 3);
    name[255] = '\0';
    ck_assert_int_eq(spec_add_tensor(&spec, &t), CAIRN_OK);
    ck_assert_int_eq(spec_check(&spec, optimizers, NULL), CAIRN_OK);
    spec_release(&spec);
}

TEST(an_index_means_the_same_whatever_order_a_worker_lists)
{
    struct job_spec_data a = good_spec(), b;
    spec_init(&b);
    ck_assert_int_eq(spec_set_name(&b, "mnist"), CAIRN_OK);
    add_tensor(&b, "fc1.bias", 1);
    add_tensor(&b, "fc2.weight", 256);
    add_tensor(&b, "fc1.weight", 512);
    add_group(&b, "all");
    uint8_t hash_a[32], hash_b[32];
    ck_assert_int_eq(spec_hash(&a, hash_a), CAIRN_OK);
    ck_assert_int_eq(spec_hash(&b, hash_b), CAIRN_OK);
    ck_assert_mem_eq(hash_a, hash_b, 32);
    spec_canonicalize(&a);
    spec_canonicalize(&b);
    ck_assert_uint_eq(spec_diff(&a, &b, 10, NULL, NULL), 0);
    ck_assert_uint_eq(spec_find_tensor(&a, "fc1.bias"), 0);
    ck_assert_uint_eq(spec_find_tensor(&a, "fc2.weight"), 2);
    ck_assert_uint_eq(spec_find_tensor(&a, "fc3.weight"), SIZE_MAX);
    spec_release(&a);
    spec_release(&b);
}

TEST(a_copy_is_equal_and_owns_its_memory)
{
    struct job_spec_data a = good_spec(), b;
    uint8_t hash_a[32], hash_b[32];
    a.window = 3;
    ck_assert_int_eq(spec_hash(&a, hash_a), CAIRN_OK);
    ck_assert_int_eq(spec_copy(&a, &b), CAIRN_OK);
    spec_release(&a);
    ck_assert_int_eq(spec_hash(&b, hash_b), CAIRN_OK);
    ck_assert_mem_eq(hash_a, hash_b, 32);
    b.tensors[2].shape.dim[1]++;
    ck_assert_int_eq(spec_hash(&b, hash_b), CAIRN_OK);
    ck_assert_mem_ne(hash_a, hash_b, 32);
    spec_release(&b);
}

struct lines {
    char text[16][512], way[16][128], of[16][128];
    size_t count;
};

static void keep_line(void *context, const struct spec_difference *d)
{
    struct lines *lines = context;
    ck_assert_uint_lt(lines->count, 16);
    char line[CAIRN_DIFFERENCE_TEXT_MAX];
    difference_text(d, "here", "on the servers", line);
    snprintf(lines->text[lines->count], 512, "%.511s", line);
    snprintf(lines->of[lines->count], 128, "%d %s %s", (int)d->object, d->name,
             d->field != NULL  ? d->field
             : d->here != NULL ? "only here"
                               : "only there");
    snprintf(lines->way[lines->count++], 128, "%s=%s, %d", d->key != NULL ? d->key : "",
             d->value != NULL ? d->value : "", (int)d->change);
}

TEST(differences_are_listed_in_words_and_the_rest_is_counted)
{
    struct job_spec_data here = good_spec(), there = good_spec();
    spec_canonicalize(&here);
    spec_canonicalize(&there);
    there.tensors[1].shape.dim[0] = 256;
    ck_assert_uint_eq(spec_diff(&here, &there, 0, NULL, NULL), 1); // only counted
    there.tensors[1].wire = CAIRN_F32;
    replace(&there.tensors[0].group, "");
    replace(&there.tensors[2].name, "fc3.weight");
    here.groups[0].lr = 0.5;
    here.stage = 1;
    struct lines lines = { .count = 0 };
    ck_assert_uint_eq(spec_diff(&here, &there, 16, keep_line, &lines), 7);
    ck_assert_uint_eq(lines.count, 7);
    ck_assert_str_eq(lines.text[0], "job mnist: stage 1 here, 2 on the servers");
    ck_assert_str_eq(lines.text[1], "group all: lr 0.5 here, 0.001 on the servers");
    ck_assert_str_eq(lines.text[2], "tensor fc1.bias: group all here, (none) on the servers");
    ck_assert_str_eq(lines.text[3],
                     "tensor fc1.weight: shape [512,784] here, [256,784] on the servers");
    ck_assert_str_eq(lines.text[4], "tensor fc1.weight: wire dtype bf16 here, f32 on the servers");
    ck_assert_str_eq(lines.text[5], "tensor fc2.weight: here, but not on the servers");
    ck_assert_str_eq(lines.text[6], "tensor fc3.weight: missing here, it is on the servers");
    ck_assert_str_eq(lines.way[0], "stage=1, 1");
    ck_assert_str_eq(lines.way[1], "all.lr=0.5, 0");
    ck_assert_str_eq(lines.way[3], "=, 3");
    ck_assert_str_eq(lines.way[4], "wire=bf16, 1"); // as all tensors here have it
    static const char *const of[] = { "0 mnist stage",           "1 all lr",
                                      "2 fc1.bias group",        "2 fc1.weight shape",
                                      "2 fc1.weight wire dtype", "2 fc2.weight only here",
                                      "2 fc3.weight only there" };
    for (size_t i = 0; i < 7; i++) ck_assert_str_eq(lines.of[i], of[i]);
    lines.count = 0;
    ck_assert_uint_eq(spec_diff(&here, &there, 2, keep_line, &lines), 7);
    ck_assert_uint_eq(lines.count, 2);
    spec_release(&here);
    spec_release(&there);
}

SUITE(60);
