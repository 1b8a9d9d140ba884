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
    void (*change)(struct job_spec_data *s, struct group_spec *g, struct tensor_spec *t);
    cairn_status status;
    const char *word;
};
static struct spoil spoils[128];
static int spoil_count;

/* A row: what is done to the spec `s`, its first group `g` or its first tensor `t`, "fc2.weight". */
#define SPOIL(...)          SPOIL_AT(__LINE__, __VA_ARGS__)
#define SPOIL_AT(line, ...) SPOIL_ROW(line, __VA_ARGS__)
#define SPOIL_ROW(line, what, of, word, ...)                                                       \
    static void spoil_##line(struct job_spec_data *s, struct group_spec *g, struct tensor_spec *t) \
    {                                                                                              \
        (void)s, (void)g, (void)t;                                                                 \
        __VA_ARGS__;                                                                               \
    }                                                                                              \
    __attribute__((constructor)) static void spoil_add_##line(void)                                \
    {                                                                                              \
        spoils[spoil_count++] = (struct spoil) { what, spoil_##line, CAIRN_ERR_##of, word };       \
    }                                                                                              \
    _Static_assert(1, "a semicolon follows")

static void replace(char **text, const char *by)
{
    free(*text);
    *text = strdup(by);
}

static void add_alias(struct job_spec_data *s, char *of)
{
    const struct tensor_spec twin = { .name = (char *)(uintptr_t) "twin",
                                      .alias_of = of,
                                      .kind = CAIRN_FROZEN,
                                      .wire = CAIRN_U8,
                                      .reduce = CAIRN_F32,
                                      .master = CAIRN_F32,
                                      .shape = { 1, { 0 } } };
    ck_assert_int_eq(spec_add_tensor(s, &twin), CAIRN_OK);
}

/* Each within the limits, but not both together. */
static void make_huge(struct tensor_spec two[2])
{
    for (size_t i = 0; i < 2; i++) two[i].shape = (struct shape) { 1, { ((uint64_t)1 << 48) - 1 } };
}

/* Good but for what a caller changes. */
static struct tensor_spec *make_blob(struct job_spec_data *s)
{
    struct tensor_spec *t = &s->tensors[0];
    t->kind = CAIRN_BLOB;
    t->wire = t->master = CAIRN_U8;
    t->shape = (struct shape) { 1, { 9 } };
    return t;
}

SPOIL("stage 2^32 - 1", INVALID, "stage is 4294967295; allowed: 0", s->stage = UINT32_MAX);
SPOIL("stage 4", INVALID, "stage is 4; allowed: 0 (state on one shard", s->stage = 4);
SPOIL("no workers", INVALID, "workers_min is 0", s->workers_min = 0);
SPOIL("window", INVALID, "window is 4294967295", s->window = UINT32_MAX);
SPOIL("chunk", INVALID, "chunk_leaves is 1025", s->chunk_leaves = 1025);
SPOIL("spread", INVALID, "spread is 0", s->spread = 0);
SPOIL("keep", INVALID, "snapshot_keep is 2, and without", s->policy.snapshot_keep = 2);
SPOIL("keep every", INVALID, "snapshot_keep_every is 1000, and without",
      s->policy.snapshot_keep_every = 1000);
SPOIL("keep within", INVALID, "snapshot_keep_within_s is 86400, and",
      s->policy.snapshot_keep_within_s = 86400);
SPOIL("max bytes", INVALID, "snapshot_max_bytes is 1, and without",
      s->policy.snapshot_max_bytes = 1);
SPOIL("two everys", INVALID, "snapshot_every is 500 and snapshot_every_s 600",
      s->policy.snapshot_every = 500;
      s->policy.snapshot_every_s = 600);
SPOIL("staging", INVALID, "snapshot_staging is 2; allowed: 0 (state), 1 (small)",
      s->policy.snapshot_staging = (cairn_snapshot_staging)2);
SPOIL("loss", INVALID, "on_shard_loss is 3; allowed: 0 (wait), 1 (restore-latest)",
      s->policy.on_shard_loss = (cairn_shard_loss)3);
SPOIL("wait", INVALID, "with on_shard_loss wait it has no effect", s->policy.shard_loss_wait_s = 7);
SPOIL("batch", INVALID, "global_batch is 65537; allowed: 0 to 65536",
      s->global_batch = CAIRN_SPEC_MICRO_MAX + 1);
SPOIL("two batches", INVALID, "global_batch is 4 and micro_batches 2", s->global_batch = 4;
      s->micro_batches = 2);
SPOIL("added up", INVALID, "allowed: stage 2 or 3", s->global_batch = 4; s->stage = 1);
SPOIL("batch in groups", INVALID, "allowed: reduce_groups 0 (none)", s->global_batch = 4;
      s->reduce_groups = CAIRN_GROUPS_HOST);
SPOIL("seed", INVALID, "seed is 9007199254740992; allowed: 0 to",
      s->seed = CAIRN_SPEC_SEED_MAX + 1);
SPOIL("missing", INVALID, "missing_gradients is 2; allowed: 0 (zero), 1 (leave)",
      s->missing_gradients = (cairn_missing)2);
SPOIL("missed", INVALID, "steps_missed is 6, and the job begins at step 5", t->kind = CAIRN_TRAINED;
      s->first_step = 5; t->steps_missed = 6);
SPOIL("worker loss", INVALID, "on_worker_loss is 3; allowed: 0 (redo), 1 (wait), 2 (fail)",
      s->policy.on_worker_loss = (cairn_worker_loss)3);
SPOIL("worker wait", INVALID, "without on_worker_loss wait it has no",
      s->policy.worker_loss_wait_s = 7);
SPOIL("skips", INVALID, "skips_max is 0; allowed: 1 to 4294967295", s->skips_max = 0);
SPOIL("clip", INVALID, "clip_norm", s->clip_norm = NAN);
SPOIL("scale", INVALID, "loss_scale", s->loss_scale = 0);
SPOIL("policy", INVALID, "on_nonfinite is 3", s->on_nonfinite = (cairn_nonfinite)3);
SPOIL("job ..", INVALID, "job name \"..\"", replace(&s->name, ".."));
SPOIL("job /", INVALID, "job name \"a/b\"", replace(&s->name, "a/b"));
SPOIL("optimizer", UNSUPPORTED, "known: adamw, adam, sgd", replace(&g->optimizer, "adamuon"));
SPOIL("beta 1", INVALID, "beta2 is 1", g->beta2 = 1);
SPOIL("lr", INVALID, "lr is -1", g->lr = -1);
SPOIL("lr inf", INVALID, "lr is inf; allowed: 0 to 1e+18", g->lr = INFINITY);
SPOIL("eps NaN", INVALID, "eps is nan; allowed: 0 to 1e+18", g->eps = (double)NAN);
SPOIL("weight decay", INVALID, "weight_decay is -0.5; allowed: 0 to", g->weight_decay = -0.5);
SPOIL("momentum", INVALID, "momentum is inf; allowed: 0 to 1e+18", g->momentum = (double)INFINITY);
SPOIL("beta below 0", INVALID, "beta1 is -0.5; allowed: 0 to below 1", g->beta1 = -0.5);
SPOIL("nesterov", INVALID, "momentum", g->nesterov = true);
SPOIL("unused group", INVALID, "\"embeddings\" has no trained tensor", add_group(s, "embeddings"));
SPOIL("two groups", INVALID, "two groups have the name \"all\"", add_group(s, "all"));
SPOIL("group missing", INVALID, "\"none\" is not declared", replace(&s->tensors[1].group, "none"));
SPOIL("two tensors", INVALID, "two tensors have the name \"fc1.bias\"",
      add_tensor(s, "fc1.bias", 1));
SPOIL("empty name", INVALID, "tensor number 0", replace(&t->name, ""));
SPOIL("control character", INVALID, "tensor number 0", replace(&t->name, "a\ab"));
SPOIL("C1 control character", INVALID, "tensor number 0", replace(&t->name, "\xc2\x85"));
SPOIL("overlong UTF-8", INVALID, "tensor number 0", replace(&t->name, "\xc0\xaf"));
SPOIL("surrogate", INVALID, "its unit", replace(&t->unit, "\xed\xa0\x80"));
SPOIL("reserved", INVALID, "reserved", replace(&t->name, "__metadata__"));
SPOIL("kind 9", INVALID, "kind is 9", t->kind = (cairn_kind)9);
SPOIL("a blob of f32", INVALID, "wire and master 5 (u8)", make_blob(s)->wire = CAIRN_F32);
SPOIL("a blob's master", INVALID, "wire and master 5 (u8)", make_blob(s)->master = CAIRN_F32);
SPOIL("a blob's sums", INVALID, "reduce is 5; allowed: 1 (f32)", make_blob(s)->reduce = CAIRN_U8);
SPOIL("a blob's rank", INVALID, "rank 2; allowed: a blob is bytes in a row",
      make_blob(s)->shape = (struct shape) { 2, { 3, 3 } });
SPOIL("a blob's init", INVALID, "a blob is put: init 0 (none)",
      make_blob(s)->init.kind = CAIRN_INIT_ZEROS);
SPOIL("a blob's alias", INVALID, "a blob, which has one name", add_alias(s, make_blob(s)->name));
SPOIL("trained bytes", INVALID, "u8 is of blobs only", t->wire = CAIRN_U8);
SPOIL("a master of bytes", INVALID, "u8 is of blobs only", t->master = CAIRN_U8);
SPOIL("place", UNSUPPORTED, "place whole (1) is not supported", t->whole = true);
SPOIL("wire f64", UNSUPPORTED, "wire f64 (4) is not supported", t->wire = CAIRN_F64);
SPOIL("reduce bf16", UNSUPPORTED, "reduce bf16 (2) is not supported", t->reduce = CAIRN_BF16);
SPOIL("master 77", INVALID, "master is 77; allowed: 1 (f32)", t->master = (cairn_dtype)77);
SPOIL("rank 9", INVALID, "rank 9", t->shape.rank = 9);
SPOIL("overflow", INVALID, "limits", t->shape.dim[0] = t->shape.dim[1] = (uint64_t)1 << 33);
SPOIL("sum of elements", INVALID, "more than 2^48", make_huge(s->tensors));

TEST_EACH(a_bad_spec_is_refused_with_field_value_and_what_is_allowed, 0, spoil_count)
{
    const struct spoil *spoil = &spoils[_i];
    struct job_spec_data spec = good_spec();
    struct sentence why = { "" };
    spoil->change(&spec, &spec.groups[0], &spec.tensors[0]);
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
    const double zeros[] = { 0, 1e-60 };
    ck_assert_int_eq(spec_check_usable(&spec, &why), CAIRN_OK);
    for (size_t i = 0; i < 2; i++) {
        spec.groups[0].eps = zeros[i];
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
