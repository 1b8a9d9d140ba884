/* manifest.json: what is written comes back; what is not exactly that is refused. And the names. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot/snapshot.h"
#include "proto/spec/spec.h"
#include "tests/support/suite.h"

#define FILE_1 "model/shard-00001-model-00001-of-00001.safetensors"
#define FILE_2 "optim/shard-00001-model-00001-of-00001.safetensors"

static void add_tensor(struct job_spec_data *spec, const char *name, cairn_kind kind,
                       struct shape shape)
{
    const struct tensor_spec t = { .name = wire_text(name),
                                   .unit = wire_text("block.0"),
                                   .group = wire_text(kind == CAIRN_TRAINED ? "all" : ""),
                                   .kind = kind,
                                   .wire = CAIRN_BF16,
                                   .reduce = CAIRN_F32,
                                   .master = CAIRN_F32,
                                   .shape = shape };
    ck_assert_int_eq(spec_add_tensor(spec, &t), CAIRN_OK);
}

/* Of each thing that may be left out, one. */
static void add_rest(struct job_spec_data *spec)
{
    const struct cairn_schedule_point points[] = { { 0, 0.1 }, { 7, 2.0 / 3 } };
    struct group_spec g = group_default();
    struct cairn_box box = { 2, { 1, 0 }, { 2, 5 } };
    uint8_t former[32];
    g.name = wire_text("table");
    g.optimizer = wire_text("sgd");
    g.frozen = true;
    g.schedule = (struct schedule) { CAIRN_SCHEDULE_TABLE, 1, 0, 0, 0, points, 2 };
    ck_assert_int_eq(spec_add_group(spec, &g), CAIRN_OK);
    struct tensor_spec t = { .name = wire_text("scalar2"),
                             .group = wire_text("table"),
                             .kind = CAIRN_TRAINED,
                             .wire = CAIRN_F32,
                             .reduce = CAIRN_F32,
                             .master = CAIRN_F32,
                             .shape = { 2, { 4, 5 } },
                             .frozen = true,
                             .init = { CAIRN_INIT_NORMAL, 0.1, 0.02, INT64_MAX } };
    ck_assert_int_eq(spec_add_tensor(spec, &t), CAIRN_OK);
    t = (struct tensor_spec) { .name = wire_text("part"),
                               .alias_of = wire_text("scalar2"),
                               .alias_box = &box,
                               .kind = CAIRN_FROZEN,
                               .wire = CAIRN_F32,
                               .reduce = CAIRN_F32,
                               .master = CAIRN_F32,
                               .shape = { 1, { 0 } } };
    ck_assert_int_eq(spec_add_tensor(spec, &t), CAIRN_OK);
    spec->loss_scale = 65536;
    spec->loss_scale_policy = CAIRN_LOSS_SCALE_DYNAMIC;
    spec->loss_scale_growth_steps = 17;
    spec->loss_scale_min = 1.0 / 3;
    spec->loss_scale_max = 1e9;
    spec->micro_batches = 5;
    spec->skips_max = 12;
    spec->seed = CAIRN_SPEC_SEED_MAX;
    spec->workers_max = 9;
    memset(former, 0xcd, sizeof former);
    ck_assert_int_eq(spec_add_former(spec, former), CAIRN_OK);
    ck_assert_int_eq(spec_add_made(spec, "stage", "3", "2"), CAIRN_OK);
}

static struct manifest good_manifest(void)
{
    struct manifest m;
    manifest_init(&m);
    ck_assert_int_eq(spec_set_name(&m.spec, "mnist"), CAIRN_OK);
    struct group_spec g = group_default();
    g.name = wire_text("all");
    g.optimizer = wire_text("adamw");
    g.lr = 0.1; // has no short binary form: must come back exactly
    g.schedule = (struct schedule) { CAIRN_SCHEDULE_COSINE, 3, 40, 0, 0.1 / 3, NULL, 0 };
    ck_assert_int_eq(spec_add_group(&m.spec, &g), CAIRN_OK);
    add_rest(&m.spec);
    add_tensor(&m.spec, "w\xc3\xa9\"\\", CAIRN_TRAINED, (struct shape) { 2, { 3, 5 } });
    add_tensor(&m.spec, "scalar", CAIRN_FROZEN, (struct shape) { 0, { 0 } });
    m.cluster = strdup("lab");
    ck_assert_int_eq(rank_groups_init(&m.reduce_groups, 5, 3), CAIRN_OK);
    memcpy(m.reduce_groups.ranks, (const uint32_t[]) { 0, 4294967295, 71, 72, 77 }, 20);
    memcpy(m.reduce_groups.ends, (const uint32_t[]) { 2, 3, 5 }, 12);
    m.owner = strdup("team-a");
    m.periodic = 0xfedcba9876543210;
    results_add(&m.nonfinite, 1, 3);
    m.nonfinite.nonfinite = 5; // two are of others
    m.spec.policy = (struct policy) { .snapshot_every = 1000,
                                      .snapshot_keep = 3,
                                      .on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST,
                                      .shard_loss_wait_s = 60,
                                      .on_worker_loss = CAIRN_WORKER_LOSS_WAIT,
                                      .worker_loss_wait_s = 7,
                                      .snapshot_keep_every = 5000,
                                      .snapshot_max_bytes = (uint64_t)1 << 40,
                                      .snapshot_keep_within_s = 86400,
                                      .snapshot_durable_within_s = 30,
                                      .snapshot_scrub_every_s = 604800,
                                      .snapshot_staging = CAIRN_SNAPSHOT_STAGING_SMALL,
                                      .snapshot_fallback = true };
    m.generation = 9;
    m.origin = (struct origin) { 7, { 3, 1200 } };
    m.step = INT64_MAX;
    m.epoch = 7;
    m.shard_count = 3;
    m.loss_scale = 65536.0 / 3;
    m.created_unix_s = 1795230245;
    const uint8_t payload[] = { 0, 255, 16 }, hash[32] = { 1, 2, 0xfe };
    ck_assert_int_eq(manifest_set_payload(&m, payload, 3), CAIRN_OK);
    memset(m.content_root, 0xab, 32);
    ck_assert_int_eq(manifest_add_file(&m, FILE_2, (4 << 20) + 1, hash, false), CAIRN_OK);
    ck_assert_int_eq(manifest_add_file(&m, FILE_1, 12345, hash, false), CAIRN_OK);
    return m;
}

static char *good_text(void)
{
    struct manifest m = good_manifest();
    struct sentence why = { "" };
    char *text = NULL;
    size_t bytes = 0;
    cairn_status status = manifest_encode(&m, &text, &bytes, &why);
    ck_assert_msg(status == CAIRN_OK, "%s", why.text);
    ck_assert_uint_eq(strlen(text), bytes);
    manifest_release(&m);
    return text;
}

TEST(what_tensors_have_missed_comes_back_by_name)
{
    struct manifest a = good_manifest(), b;
    struct sentence why = { "" };
    char *text;
    size_t bytes;
    spec_canonicalize(&a.spec);
    const size_t trained = spec_find_tensor(&a.spec, "w\xc3\xa9\"\\");
    ck_assert_uint_ne(trained, SIZE_MAX);
    a.steps_missed = calloc(a.spec.tensor_count, sizeof *a.steps_missed);
    a.steps_missed[trained] = 77;
    ck_assert_int_eq(manifest_encode(&a, &text, &bytes, &why), CAIRN_OK);
    ck_assert_int_eq(manifest_decode(text, bytes, &b, &why), CAIRN_OK);
    ck_assert_mem_eq(b.steps_missed, a.steps_missed, a.spec.tensor_count * sizeof *a.steps_missed);
    manifest_release(&b);
    free(text);
    a.step = 76;
    ck_assert_int_eq(manifest_encode(&a, &text, &bytes, &why), CAIRN_ERR_INVALID);
    manifest_release(&a);
}

TEST(a_manifest_comes_back_exactly)
{
    struct manifest a = good_manifest(), b;
    char *text = good_text();
    struct sentence why = { "" };
    cairn_status status = manifest_decode(text, strlen(text), &b, &why);
    ck_assert_msg(status == CAIRN_OK, "%s", why.text);
    spec_canonicalize(&a.spec);
    ck_assert_uint_eq(spec_diff(&a.spec, &b.spec, 0, NULL, NULL), 0);
    uint8_t hash_a[32], hash_b[32];
    ck_assert_int_eq(spec_hash(&a.spec, hash_a), CAIRN_OK);
    ck_assert_int_eq(spec_hash(&b.spec, hash_b), CAIRN_OK);
    ck_assert_mem_eq(hash_a, hash_b, 32);
    ck_assert_uint_eq(b.spec.former_count, 1);
    ck_assert(spec_was(&b.spec, a.spec.former[0]));
    ck_assert_uint_eq(b.spec.made_count, 1);
    ck_assert_str_eq(b.spec.made[0].was, "3");
    ck_assert_str_eq(b.cluster, "lab");
    ck_assert_uint_eq(b.generation, a.generation);
    ck_assert_uint_eq(b.step, a.step);
    ck_assert_uint_eq(b.epoch, a.epoch);
    ck_assert_uint_eq(b.shard_count, a.shard_count);
    ck_assert_uint_eq(b.created_unix_s, a.created_unix_s);
    ck_assert_uint_eq(b.periodic, a.periodic);
    ck_assert_str_eq(b.owner, a.owner);
    ck_assert_uint_eq(b.nonfinite.nonfinite, 5);
    ck_assert_uint_eq(b.nonfinite.tensor_count, 1);
    ck_assert_uint_eq(b.nonfinite.tensors[0].tensor, 1);
    ck_assert_uint_eq(b.nonfinite.tensors[0].elems, 3);
    ck_assert_mem_eq(&b.loss_scale, &a.loss_scale, sizeof a.loss_scale);
    ck_assert_uint_eq(b.payload_bytes, 3);
    ck_assert_mem_eq(b.payload, a.payload, 3);
    ck_assert_mem_eq(b.content_root, a.content_root, 32);
    ck_assert(rank_groups_equal(&b.reduce_groups, &a.reduce_groups));
    ck_assert_uint_eq(b.file_count, 2);
    ck_assert_str_eq(b.files[0].path, FILE_1);
    ck_assert_uint_eq(b.files[0].bytes, 12345);
    ck_assert_mem_eq(b.files[1].sums, a.files[0].sums, 16);
    free(text);
    manifest_release(&a);
    manifest_release(&b);
}

/* A good manifest with `from` replaced by `to`, and a word of the sentence. */
struct damage {
    const char *from, *to;
    const char *word;
    cairn_status status;
};

static const struct damage damages[] = {
    { "\"cairn snapshot\"", "\"zip\"", "format", CAIRN_ERR_CORRUPT },
    { "\"version\": 5", "\"version\": 6", "reads 1 to 5", CAIRN_ERR_VERSION },
    { "\"version\": 5", "\"version\": 0", "reads 1 to 5", CAIRN_ERR_VERSION },
    { "\"version\": 5", "\"version\": 2", CAIRN_MANIFEST_SEAL_KEY, CAIRN_ERR_CORRUPT },
    { "\"epoch\": 7", "\"epoch\": -7", "out of range", CAIRN_ERR_CORRUPT },
    { "\"epoch\": 7", "\"epoch\": \"7\"", "the top", CAIRN_ERR_CORRUPT },
    { "\"epoch\": 7", "\"epoch\": 7, \"epoch\": 7", "not JSON", CAIRN_ERR_CORRUPT },
    { "\"epoch\": 7", "\"epoch\": 7, \"era\": 7", "era", CAIRN_ERR_CORRUPT },
    { "\"epoch\": 7,", "", "epoch", CAIRN_ERR_CORRUPT },
    { "\"owner\": \"team-a\"", "\"owner\": 7", "the top", CAIRN_ERR_CORRUPT },
    { "\"shards\": 3", "\"shards\": 4294967296", "out of range", CAIRN_ERR_CORRUPT },
    { "\"step\": 9223372036854775807", "\"step\": 9223372036854775808", "not JSON",
      CAIRN_ERR_CORRUPT },
    { "2026-11", "2026-13", "created", CAIRN_ERR_CORRUPT },
    { "\"payload\": \"00ff10\"", "\"payload\": \"00ff1\"", "payload", CAIRN_ERR_CORRUPT },
    { "\"payload\": \"00ff10\"", "\"payload\": \"00fg10\"", "payload", CAIRN_ERR_CORRUPT },
    { "\"abab", "\"ab", "content_root", CAIRN_ERR_CORRUPT },
    { "\"mnist\"", "\"../mnist\"", "job name", CAIRN_ERR_CORRUPT },
    { "\"stage\": 2", "\"stage\": 9", "stage is 9", CAIRN_ERR_CORRUPT },
    { "\"adamw\"", "\"muon\"", "no optimizer", CAIRN_ERR_CORRUPT },
    { "\"skip\"", "\"hope\"", "on_nonfinite", CAIRN_ERR_CORRUPT },
    { "\"kind\": \"frozen\"", "\"kind\": \"thawed\"", "kind is -1", CAIRN_ERR_CORRUPT },
    { "\"bf16\"", "\"bf17\"", "wire is 0", CAIRN_ERR_CORRUPT },
    { "\"cosine\"", "\"sine\"", "schedule is -1", CAIRN_ERR_CORRUPT },
    { "\"warmup_steps\": 3", "\"warmup_steps\": 4000", "total_steps", CAIRN_ERR_CORRUPT },
    { "\"normal\"", "\"gamma\"", "init is -1", CAIRN_ERR_CORRUPT },
    { "\"alias_of\": \"scalar2\"", "\"alias_of\": \"x\"", "no tensor", CAIRN_ERR_CORRUPT },
    { "\"dynamic\"", "\"fixed\"", "no effect", CAIRN_ERR_CORRUPT },
    { "\"former\": [\n   \"cd", "\"former\": [\n   \"g", "hex", CAIRN_ERR_CORRUPT },
    { "\"3\",\n    \"2\"", "\"3\",\n    2", "a key and two values", CAIRN_ERR_CORRUPT },
    { "    3,\n", "    -3,\n", "shape", CAIRN_ERR_CORRUPT },
    { "    3,\n", "    3.5,\n", "shape", CAIRN_ERR_CORRUPT },
    { "    3,\n", "    281474976710656,\n", "2^48", CAIRN_ERR_CORRUPT },
    { "\"name\": \"scalar\"", "\"name\": \"z\"", "not sorted", CAIRN_ERR_CORRUPT },
    { "model/shard", "/etc/shard", "path", CAIRN_ERR_CORRUPT },
    { "model/shard", "model/../shard", "path", CAIRN_ERR_CORRUPT },
    { FILE_1, FILE_2, "not sorted by path", CAIRN_ERR_CORRUPT },
    { "   77\n", "   71\n", "reduce_groups", CAIRN_ERR_CORRUPT },
    { "   77\n", "   72\n", "reduce_groups", CAIRN_ERR_CORRUPT },
    { "   77\n", "   -77\n", "reduce_groups", CAIRN_ERR_CORRUPT },
    { "   71\n", "   78\n", "reduce_groups", CAIRN_ERR_CORRUPT },
    { "   4294967295\n", "   4294967296\n", "reduce_groups", CAIRN_ERR_CORRUPT },
    { "\"elems\": 5", "\"elems\": 2", "nonfinite: a tensor", CAIRN_ERR_CORRUPT },
    { "\"elems\": 5", "\"elems\": -5", "nonfinite: a tensor", CAIRN_ERR_CORRUPT },
    { "\"elems\": 5", "\"elems\": 0.5", "nonfinite: ", CAIRN_ERR_CORRUPT },
    { "\"tensors\": {\n   \"", "\"tensors\": {\n   \"no", "nonfinite: a tensor",
      CAIRN_ERR_CORRUPT },
    { "   4294967295\n", "   71\n", "reduce_groups", CAIRN_ERR_CORRUPT },
    { "\"bytes\": 12345", "\"bytes\": -1", "below 0", CAIRN_ERR_CORRUPT },
    { "\"blocks\": \"0102fe", "\"blocks\": \"01", "32 hex digits", CAIRN_ERR_CORRUPT },
};

/* The text with one place changed; the caller's. */
static char *altered(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    char *bad = NULL;
    ck_assert_msg(at != NULL, "%s is not in\n%s", from, text);
    ck_assert_int_gt(asprintf(&bad, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)), 0);
    return bad;
}

/* Takes the text, and gives it with another end instead of its hash: "" is its hash anew. */
static char *ended(char *text, const char *end)
{
    char *line = strstr(text, ",\n \"" CAIRN_MANIFEST_SEAL_KEY), *whole = NULL;
    char seal[CAIRN_MANIFEST_SEAL_BYTES + 1] = "";
    ck_assert_ptr_nonnull(line);
    if (*end == '\0') line += 2;
    *line = '\0';
    if (*end == '\0') manifest_seal(text, strlen(text), seal);
    ck_assert_int_gt(asprintf(&whole, "%s%s%s", text, end, seal), 0);
    free(text);
    return whole;
}

TEST_EACH(a_manifest_that_is_not_exactly_ours_is_refused, 0, sizeof damages / sizeof damages[0])
{
    const struct damage *damage = &damages[_i];
    char *text = good_text(), *bad = ended(altered(text, damage->from, damage->to), "");
    struct manifest m;
    struct sentence why = { "" };
    cairn_status status = manifest_decode(bad, strlen(bad), &m, &why);
    ck_assert_msg(status == damage->status, "%s: %d %s", damage->to, status, why.text);
    ck_assert_msg(strstr(why.text, damage->word) != NULL, "%s: \"%s\"", damage->to, why.text);
    free(text);
    free(bad);
}

TEST(a_manifest_cut_anywhere_is_refused)
{
    char *text = good_text();
    const size_t last = strlen(text) - 2; // behind the last brace there is a newline
    for (size_t length = 0; length < last; length++) {
        struct manifest m;
        char *cut = malloc(length + 1); // exact, for the sanitizer
        memcpy(cut, text, length);
        ck_assert_int_eq(manifest_decode(cut, length, &m, NULL), CAIRN_ERR_CORRUPT);
        free(cut);
    }
    free(text);
}

TEST_EACH(a_value_that_was_changed_is_found, 0, 8)
{
    static const struct {
        const char *from, *to;
    } changes[] = {
        { "\"lr\": 0.1", "\"lr\": 0.2" },
        { "\"beta2\": 0.999", "\"beta2\": 0.998" },
        { "\"step\": 9223372036854775807", "\"step\": 9223372036854775806" },
        { "\"workers_min\": 1", "\"workers_min\": 2" },
        { "\"cluster\": \"lab\"", "\"cluster\": \"lob\"" },
        { "\"payload\": \"00ff10\"", "\"payload\": \"00ff11\"" },
        { "\"blocks\": \"0102fe", "\"blocks\": \"0102ff" },
        { " \"format\"", "  \"format\"" },
    };
    char *text = good_text(), *bad = altered(text, changes[_i].from, changes[_i].to);
    struct manifest m;
    struct sentence why = { "" };
    ck_assert_int_eq(manifest_decode(bad, strlen(bad), &m, &why), CAIRN_ERR_CORRUPT);
    ck_assert_msg(strstr(why.text, "was changed since it was written") != NULL, "%s", why.text);
    free(text);
    free(bad);
}

TEST(no_byte_of_it_can_be_another_one)
{
    char *text = good_text();
    const size_t bytes = strlen(text);
    for (size_t i = 0; i < bytes; i++) {
        struct manifest m;
        text[i] ^= 1;
        ck_assert_int_ne(manifest_decode(text, bytes, &m, NULL), CAIRN_OK);
        text[i] ^= 1;
    }
    free(text);
}

TEST(one_of_a_former_version_has_no_hash_and_says_so)
{
    char *text = good_text(),
         *former = ended(altered(text, "\"version\": 5", "\"version\": 2"), "\n}\n");
    struct manifest m;
    struct sentence why = { "" };
    ck_assert_msg(manifest_decode(former, strlen(former), &m, &why) == CAIRN_OK, "%s", why.text);
    ck_assert(m.unsealed);
    manifest_release(&m);
    ck_assert_int_eq(manifest_decode(text, strlen(text), &m, NULL), CAIRN_OK);
    ck_assert(!m.unsealed);
    manifest_release(&m);
    char *bare = ended(text, "\n}\n");
    ck_assert_int_eq(manifest_decode(bare, strlen(bare), &m, NULL), CAIRN_ERR_CORRUPT);
    free(bare);
    free(former);
}

TEST(what_a_reader_would_refuse_is_not_written)
{
    struct manifest m = good_manifest();
    const uint8_t hash[16] = { 0 };
    char *text = NULL;
    size_t bytes = 0;
    ck_assert_int_eq(manifest_add_file(&m, "model/../x", 1, hash, false), CAIRN_ERR_INVALID);
    ck_assert_int_eq(manifest_add_file(&m, FILE_1, UINT64_MAX, hash, false), CAIRN_ERR_INVALID);
    m.loss_scale = NAN;
    ck_assert_int_eq(manifest_encode(&m, &text, &bytes, NULL), CAIRN_ERR_INVALID);
    m.loss_scale = 1;
    m.epoch = UINT64_MAX;
    ck_assert_int_eq(manifest_encode(&m, &text, &bytes, NULL), CAIRN_ERR_INVALID);
    m.epoch = 1;
    ck_assert_int_eq(manifest_add_file(&m, FILE_1, 1, hash, false), CAIRN_OK);
    ck_assert_int_eq(manifest_encode(&m, &text, &bytes, NULL), CAIRN_ERR_INVALID);
    ck_assert_ptr_null(text);
    manifest_release(&m);
}

TEST(only_paths_of_our_own_form_pass)
{
    ck_assert(snapshot_path_ok(FILE_1));
    ck_assert(snapshot_path_ok("blobs/shard-00001-model-00001-of-00001.safetensors"));
    ck_assert(snapshot_path_ok("optim/shard-10000-model-00002-of-00015.safetensors"));
    ck_assert(snapshot_path_ok("model/shard-123456-model-00002-of-00015.safetensors"));
    static const char *const bad[] = {
        "",
        "model/",
        "blobs",
        "blobsx/shard-00001-model-00001-of-00001.safetensors",
        "/model/shard-00001-model-00001-of-00001.safetensors",
        "./model/shard-00001-model-00001-of-00001.safetensors",
        "mode/shard-00001-model-00001-of-00001.safetensors",
        "model/shard-1-model-00001-of-00001.safetensors",
        "model/shard-00000-model-00001-of-00001.safetensors",
        "model/shard-00001-model-00000-of-00001.safetensors",
        "model/shard-00001-model-00002-of-00001.safetensors",
        "model/shard-000001-model-00001-of-00001.safetensors",
        "model/shard-+0001-model-00001-of-00001.safetensors",
        "model/shard- 0001-model-00001-of-00001.safetensors",
        "model/shard-00001-model-00001-of-00001.safetensors.tmp",
        "model/shard-00001-model-00001-of-00001.safetensors/../../x",
        "model/shard-9999999999-model-00001-of-00001.safetensors",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_msg(!snapshot_path_ok(bad[i]), "%s", bad[i]);
    }
}

TEST(an_id_says_step_generation_and_attempt)
{
    char id[CAIRN_SNAPSHOT_ID_BYTES];
    uint64_t generation = 0, step = 0;
    snapshot_id_make(1, 12000, 1, id);
    ck_assert_str_eq(id, "step-000000012000-g1");
    ck_assert(snapshot_id_parse(id, &generation, &step));
    ck_assert_uint_eq(generation, 1);
    ck_assert_uint_eq(step, 12000);
    snapshot_id_make(3, 1234567890123, 10, id);
    ck_assert_str_eq(id, "step-1234567890123-g3-10");
    ck_assert(snapshot_id_parse(id, &generation, &step));
    static const char *const bad[] = { "",
                                       "latest",
                                       "step-12000-g1",
                                       "step-000000012000-g1-1",
                                       "step-000000012000-g1x",
                                       "step-000000012000-g01",
                                       "step-000000012000-g1-02",
                                       "step-99999999999999999999-g1",
                                       "step--00000012000-g1" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_msg(!snapshot_id_parse(bad[i], &generation, &step), "%s", bad[i]);
    }
}

TEST(a_key_leads_back_to_its_tensor_and_plane)
{
    struct manifest m = good_manifest();
    add_tensor(&m.spec, "w.exp_avg", CAIRN_TRAINED, (struct shape) { 1, { 4 } });
    add_tensor(&m.spec, "empty", CAIRN_TRAINED, (struct shape) { 2, { 0, 4 } });
    spec_canonicalize(&m.spec);
    const struct job_spec_data *spec = &m.spec;
    uint32_t tensor = 0, plane = 0;
    for (uint32_t t = 0; t < spec->tensor_count; t++) {
        for (uint32_t p = CAIRN_PLANE_PARAM; p < CAIRN_PLANE_COUNT; p++) {
            char key[CAIRN_SNAPSHOT_KEY_BYTES];
            const bool stored = (spec_planes(spec, t) & 1u << p) != 0;
            snapshot_key(spec->tensors[t].name, p, key);
            ck_assert(snapshot_key_find(spec,
                                        p != CAIRN_PLANE_PARAM ? CAIRN_SNAPSHOT_OPTIM
                                                               : CAIRN_SNAPSHOT_MODEL,
                                        key, &tensor, &plane) == stored);
            if (stored) ck_assert_uint_eq(tensor, t);
            if (stored) ck_assert_uint_eq(plane, p);
        }
    }
    ck_assert_uint_eq(spec_planes(spec, spec_find_tensor(spec, "empty")), 0);
    ck_assert_uint_eq(spec_planes(spec, spec_find_tensor(spec, "scalar")), 1u << CAIRN_PLANE_PARAM);
    ck_assert(!snapshot_key_find(spec, CAIRN_SNAPSHOT_OPTIM, "state.", &tensor, &plane));
    ck_assert(
        !snapshot_key_find(spec, CAIRN_SNAPSHOT_OPTIM, "state.scalar.exp_avg", &tensor, &plane));
    ck_assert(!snapshot_key_find(spec, CAIRN_SNAPSHOT_OPTIM, "w.exp_avg", &tensor, &plane));
    manifest_release(&m);
}

SUITE(30);
