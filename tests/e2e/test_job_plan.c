/* `cairn job plan` says what `cairn job show` shows when the job is there: to the byte, by kind and shard,
 * of a file, of a snapshot and of the job itself. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/suite.h"
#include "tests/support/trainer.h"

enum { SHARDS = 2, TENSORS = 3, WORKERS_MAX = 6, TRIES = 1000 };

static const struct cairn_tensor model[TENSORS] = {
    TRAINER_MATRIX("big", "u", 300, 211, 1),
    TRAINER_MATRIX("half", "v", 211, 200, 2, .wire = CAIRN_BF16),
    TRAINER_ONES("small", "v", 77, .kind = CAIRN_FROZEN),
};
/* The same, as a person writes it: in any order, without what is at its default. */
static const char spec_text[] =
    "{\"tensors\": [{\"name\": \"small\", \"unit\": \"v\", \"shape\": [77], \"kind\": "
    "\"frozen\"},\n"
    "             {\"name\": \"big\", \"unit\": \"u\", \"shape\": [300, 211]},\n"
    "             {\"name\": \"half\", \"unit\": \"v\", \"shape\": [211, 200], \"wire\": "
    "\"bf16\"}],\n"
    " \"chunk_leaves\": 4}\n";

static struct cluster cluster;
static struct cluster_said said;

static cairn_job *open_worker(cairn *session, uint32_t rank)
{
    struct cairn_job_spec spec = trainer_spec(model, TENSORS);
    spec.chunk_leaves = 4;
    spec.rank = rank;
    return trainer_open(session, "planned", &spec);
}

/* `memory` of what was said; the caller's. */
static json_t *memory_said(void)
{
    ck_assert_msg(said.status == 0, "%s", said.err);
    json_t *object = json_loads(said.out, 0, NULL);
    json_t *memory = json_incref(json_object_get(object, "memory"));
    json_decref(object);
    return memory;
}

static json_t *planned(const char *what, const char *workers)
{
    cluster_cli(&cluster, &said, "job plan %s --shards 2 --workers %s -o json", what, workers);
    return memory_said();
}

static json_int_t kind_of(const json_t *memory, const char *kind)
{
    return json_integer_value(json_object_get(memory, kind));
}

/* With the shards' names, which a plan does not know. */
static bool same(const json_t *memory, const json_t *plan)
{
    json_t *bare = json_deep_copy(memory);
    json_t *shards = json_object_get(bare, "shards");
    for (size_t i = 0; i < json_array_size(shards); i++)
        json_object_del(json_array_get(shards, i), "shard");
    const bool equal = json_equal(bare, plan) == 1;
    json_decref(bare);
    return equal;
}

/* Heartbeats bring it. */
static void await_shown(const json_t *plan)
{
    for (int tries = 0; tries < TRIES; tries++) {
        cluster_cli(&cluster, &said, "job show planned -o json");
        json_t *memory = memory_said();
        const bool equal = same(memory, plan);
        json_decref(memory);
        if (equal) return;
    }
    char *text = json_dumps(plan, JSON_INDENT(1));
    ck_abort_msg("never shown: %s\nbut %s", text, said.out);
}

static void write_spec(char path[static CAIRN_SCRATCH_BYTES + 16])
{
    snprintf(path, CAIRN_SCRATCH_BYTES + 16, "%s/spec.json", cluster.folder);
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    fputs(spec_text, file);
    fclose(file);
}

/* The total that `job list` shows is the job's own. */
static void check_list(const json_t *plan)
{
    cluster_cli(&cluster, &said, "job list -o json");
    json_t *list = json_loads(said.out, 0, NULL);
    const json_t *job = json_array_get(json_object_get(list, "jobs"), 0);
    ck_assert_int_eq(kind_of(job, "state_bytes"), kind_of(plan, "total"));
    ck_assert(same(json_object_get(job, "memory"), plan));
    json_decref(list);
}

static void check_snapshot(const json_t *plan)
{
    cluster_cli(&cluster, &said, "snapshot create planned --wait -o json");
    ck_assert_msg(said.status == 0, "%s", said.err);
    json_t *snapshot = json_loads(said.out, 0, NULL);
    char path[512];
    snprintf(path, sizeof path, "%s", json_string_value(json_object_get(snapshot, "path")));
    json_decref(snapshot);
    json_t *again = planned(path, "1");
    // Where nobody is asked, it is of another round.workers_max.
    static const char *const kinds[] = { "state", "published", "landing", "staging" };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        ck_assert_int_eq(kind_of(again, kinds[i]), kind_of(plan, kinds[i]));
    json_decref(again);
}

TEST(a_plan_is_what_the_attached_job_then_takes)
{
    static const char *const few[] = { "lease.heartbeat=20ms", NULL };
    const struct cluster_options options = { .coordinator_set = few };
    const struct cairn_opts opts = { .struct_size = sizeof opts };
    char path[CAIRN_SCRATCH_BYTES + 16];
    cluster_start(&cluster, SHARDS, &options);
    write_spec(path);
    json_t *one = planned(path, "1"), *two = planned(path, "2");
    ck_assert_int_gt(kind_of(one, "landing"), 0);
    ck_assert_int_eq(2 * kind_of(one, "landing"), kind_of(two, "landing"));
    ck_assert_uint_eq(json_array_size(json_object_get(one, "shards")), SHARDS);

    struct cairn_opts here = opts;
    here.endpoint = cluster.address;
    cairn *sessions[2];
    cairn_job *jobs[2];
    good(cairn_open(&here, &sessions[0]));
    jobs[0] = open_worker(sessions[0], 0);
    good(cairn_init_done(jobs[0], NULL, CLUSTER_WAIT_MS));
    await_shown(one);
    check_list(one);
    json_t *own = planned("planned", "1");
    ck_assert(json_equal(own, one));
    json_decref(own);
    check_snapshot(one);
    cluster_cli(&cluster, &said, "job plan planned --workers 65");
    ck_assert_msg(strstr(said.err, "round.workers_max is 64") != NULL, "%s", said.err);

    good(cairn_open(&here, &sessions[1]));
    jobs[1] = open_worker(sessions[1], 1);
    await_shown(two); // landing memory comes with a worker ..
    cairn_close(sessions[1]);
    await_shown(one); // .. and goes with it
    cairn_close(sessions[0]);
    json_decref(one);
    json_decref(two);
    cluster_stop(&cluster);
}

TEST(what_cannot_be_planned_is_said)
{
    char path[CAIRN_SCRATCH_BYTES + 16];
    cluster_start(&cluster, 1, NULL);
    cluster_says(&cluster, 4, "no job \"nothing\"", "job plan nothing");
    cluster_cli(&cluster, &said, "job plan no/where");
    ck_assert_msg(strstr(said.err, "no/where: there is no such file or folder") != NULL, "%s",
                  said.err);
    write_spec(path);
    cluster_cli(&cluster, &said, "job plan %s --workers 65", path);
    ck_assert_msg(said.status == 0, "%s", said.err); // nobody said that there are fewer
    ck_assert_ptr_nonnull(strstr(said.out, "65, at most 65"));
    FILE *file = fopen(path, "we");
    fputs("{\"tensors\": [{\"name\": \"a\", \"shape\": [4], \"color\": 3}]}", file);
    fclose(file);
    cluster_cli(&cluster, &said, "job plan %s", path);
    ck_assert_msg(strstr(said.err, "color") != NULL, "%s", said.err);
    ck_assert_int_ne(said.status, 0);
    cluster_stop(&cluster);
}

/* Of the file, with these options, ended by NULL. */
static json_t *planned_as(const char *path, const char *stage, const char *wire,
                          const char *offload)
{
    cluster_cli(&cluster, &said,
                "job plan %s --shards 3 --stage %s --wire %s --backend cuda --offload %s -o json",
                path, stage, wire, offload);
    return memory_said();
}

TEST(a_plan_of_gpus_has_the_memory_of_both_for_any_stage_wire_and_fraction)
{
    char path[CAIRN_SCRATCH_BYTES + 16];
    cluster_start(&cluster, 1, NULL);
    write_spec(path);
    json_t *none = planned_as(path, "2", "bf16", "0"), *half = planned_as(path, "2", "bf16", "0.5"),
           *all = planned_as(path, "2", "bf16", "1"), *wide = planned_as(path, "2", "f32", "0"),
           *one = planned_as(path, "0", "bf16", "0");
    ck_assert_int_eq(kind_of(none, "state"), 0);
    ck_assert_int_gt(kind_of(none, "device"), 0);
    ck_assert_int_gt(kind_of(half, "state"), 0);
    ck_assert_int_gt(kind_of(half, "device"), 0);
    ck_assert_int_lt(kind_of(half, "state"), kind_of(all, "state"));
    ck_assert_int_eq(kind_of(all, "device"), 0);
    ck_assert_int_gt(kind_of(wide, "published"), kind_of(none, "published"));
    ck_assert_uint_eq(json_array_size(json_object_get(none, "shards")), 3);
    ck_assert_uint_eq(json_array_size(json_object_get(one, "shards")), 1); // all of it on one
    json_t *list[] = { none, half, all, wide, one };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) json_decref(list[i]);
    cluster_cli(&cluster, &said, "job plan %s --offload 0.5", path);
    ck_assert_msg(strstr(said.err, "--backend cuda") != NULL, "%s", said.err);
    cluster_cli(&cluster, &said, "job plan %s --backend cuda --offload 2", path);
    ck_assert_msg(strstr(said.err, "--offload 2: 0 to 1 is allowed") != NULL, "%s", said.err);
    cluster_cli(&cluster, &said, "job plan %s --backend cuda", path);
    ck_assert_msg(strstr(said.out, "ON DEVICE") != NULL, "%s", said.out);
    cluster_stop(&cluster);
}

static void write_weights(const char *name, const char *header, uint64_t data_bytes)
{
    static const uint8_t data[64];
    const uint64_t header_bytes = strlen(header);
    FILE *file = fopen(name, "we");
    ck_assert_ptr_nonnull(file);
    fwrite(&header_bytes, sizeof header_bytes, 1, file);
    fwrite(header, header_bytes, 1, file);
    fwrite(data, data_bytes, 1, file);
    fclose(file);
}

/* Whole numbers, as a BatchNorm counts its batches, have no optimizer and are read by no job. */
TEST(of_weights_a_plan_counts_what_a_job_can_read)
{
    cluster_start(&cluster, 1, NULL);
    ck_assert_int_eq(chdir(cluster.folder), 0);
    write_weights("m.safetensors", // a short name
                  "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8);
    write_weights("counts.safetensors",
                  "{\"b.batches\":{\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[0,24]},"
                  "\"mask\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[24,28]},"
                  "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[28,36]}}",
                  36);
    json_t *plain = planned("m.safetensors", "1"),
           *with_counts = planned("counts.safetensors", "1");
    ck_assert(json_equal(plain, with_counts));
    ck_assert_msg(strstr(said.err, "left out") != NULL, "%s", said.err);
    ck_assert_msg(strstr(said.err, "b.batches (I64), mask (U8)") != NULL, "%s", said.err);
    json_decref(plain);
    json_decref(with_counts);
    ck_assert_int_eq(chdir("/"), 0);
    cluster_stop(&cluster);
}

SUITE(60);
