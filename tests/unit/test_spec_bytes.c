/* The bits of a spec: its hash, its bytes on the wire and in a manifest are what they were in the versions
 * before, which stores, snapshots and workers of others hold. What fails here is to be mended in the code; a
 * new field at its default changes none of these. */
#include <check.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot/snapshot.h"
#include "proto/spec/spec.h"
#include "proto/wire/wire.h"
#include "tests/support/suite.h"

static void good(cairn_status status)
{
    ck_assert_int_eq(status, CAIRN_OK);
}

/* As little as there can be. */
static struct job_spec_data a_plain_spec(void)
{
    struct job_spec_data spec;
    struct group_spec g = group_default();
    const struct tensor_spec t = { .name = wire_text("w"),
                                   .group = wire_text("all"),
                                   .kind = CAIRN_TRAINED,
                                   .wire = CAIRN_F32,
                                   .reduce = CAIRN_F32,
                                   .master = CAIRN_F32,
                                   .shape = { 2, { 3, 5 } } };
    spec_init(&spec);
    good(spec_set_name(&spec, "plain"));
    g.name = wire_text("all");
    g.optimizer = wire_text("adamw");
    good(spec_add_group(&spec, &g));
    good(spec_add_tensor(&spec, &t));
    spec_canonicalize(&spec);
    return spec;
}

static void add_full_groups(struct job_spec_data *spec)
{
    static const struct cairn_schedule_point points[] = { { 3, 0.125 }, { 9, 2.0 / 3 } };
    struct group_spec g = { .name = wire_text("wsd"),
                            .optimizer = wire_text("sgd"),
                            .lr = 0.0625,
                            .beta1 = 0.85,
                            .beta2 = 0.995,
                            .eps = 3e-7,
                            .weight_decay = 0.011,
                            .momentum = 0.7,
                            .nesterov = true,
                            .frozen = true,
                            .schedule = { CAIRN_SCHEDULE_WSD, 21, 220, 23, 1e-4, NULL, 0 } };
    good(spec_add_group(spec, &g));
    g.name = wire_text("table");
    g.nesterov = g.frozen = false;
    g.schedule = (struct schedule) { CAIRN_SCHEDULE_TABLE, 24, 0, 0, 0, points, 2 };
    good(spec_add_group(spec, &g));
    g.name = wire_text("driven"); // its lr is not in the hash
    g.schedule = (struct schedule) { .kind = CAIRN_SCHEDULE_DRIVEN };
    good(spec_add_group(spec, &g));
}

static void add_full_tensors(struct job_spec_data *spec)
{
    static const char *const groups[] = { "wsd", "table", "driven" };
    struct cairn_box box = { 2, { 1, 2 }, { 3, 2 } };
    for (size_t i = 0; i < 3; i++) {
        struct tensor_spec t = { .name = wire_text(groups[i]),
                                 .unit = wire_text("block"),
                                 .group = wire_text(groups[i]),
                                 .kind = CAIRN_TRAINED,
                                 .wire = CAIRN_BF16,
                                 .reduce = CAIRN_F32,
                                 .master = CAIRN_F32,
                                 .shape = { 3, { 4, 5, 6 + i } },
                                 .frozen = i == 1,
                                 .init = { CAIRN_INIT_UNIFORM, -0.3, 0.4, 31 + i } };
        good(spec_add_tensor(spec, &t));
    }
    struct tensor_spec t = { .name = wire_text("matrix"),
                             .kind = CAIRN_BUFFER,
                             .wire = CAIRN_F32,
                             .reduce = CAIRN_F32,
                             .master = CAIRN_F32,
                             .shape = { 2, { 7, 8 } } };
    good(spec_add_tensor(spec, &t));
    t.name = wire_text("part");
    t.kind = CAIRN_FROZEN;
    t.alias_of = wire_text("matrix");
    t.alias_box = &box;
    t.shape = (struct shape) { 1, { 0 } };
    good(spec_add_tensor(spec, &t));
    const struct tensor_spec blob = { .name = wire_text("blob"),
                                      .kind = CAIRN_BLOB,
                                      .wire = CAIRN_U8,
                                      .reduce = CAIRN_F32,
                                      .master = CAIRN_U8,
                                      .shape = { 1, { 99 } } };
    good(spec_add_tensor(spec, &blob));
}

/* Every field has a value of its own, and none its default. */
static struct job_spec_data a_full_spec(void)
{
    struct job_spec_data spec;
    uint8_t former[32];
    spec_init(&spec);
    good(spec_set_name(&spec, "full"));
    good(spec_set_init_from(&spec, "/weights", "model."));
    add_full_groups(&spec);
    add_full_tensors(&spec);
    spec.clip_norm = 1.25;
    spec.loss_scale = 4096;
    spec.loss_scale_policy = CAIRN_LOSS_SCALE_DYNAMIC;
    spec.loss_scale_growth_steps = 1001;
    spec.loss_scale_min = 0.375;
    spec.loss_scale_max = 1e7;
    spec.on_nonfinite = CAIRN_NONFINITE_FAIL;
    spec.stage = 3;
    spec.micro_batches = 4;
    spec.workers_min = 5;
    spec.workers_max = 6;
    spec.chunk_leaves = 7;
    spec.spread = 8;
    spec.window = 9;
    spec.init_nonfinite_ok = true;
    spec.client_state_max = 10;
    spec.skips_max = 11;
    spec.reduce_groups = CAIRN_GROUPS_HOST;
    spec.policy = (struct policy) { .snapshot_every = 12,
                                    .snapshot_keep = 13,
                                    .on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST,
                                    .shard_loss_wait_s = 14 };
    spec.revision = 15;
    spec.amend_key = 16;
    memset(former, 0xcd, sizeof former);
    good(spec_add_former(&spec, former));
    spec_canonicalize(&spec);
    return spec;
}

/* A policy of which one half is at its default. */
static struct job_spec_data a_restoring_spec(void)
{
    struct job_spec_data spec = a_plain_spec();
    spec.policy.on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST;
    return spec;
}

static const struct {
    struct job_spec_data (*make)(void);
    const char *hash, *schedules, *wire, *manifest; // BLAKE2b-256; the first two of spec.h
} specs[] = {
    { a_plain_spec, "bef0f38d130b04c4cd665d68ee3677f011d9b175582c586ce3a85ae2784764be",
      "62509f37834ef3c79aba8306bafd0a0425319b52aad88fa8055472dbb52da2cb",
      "a62ec8f46c753a60c755a61edd3538910680e17e8f65b3282570a1d5aef0de64",
      "71d5e3db7c77e7a2ec88a1491e0715eada61283aeb896fca26639e72e289c917" },
    { a_full_spec, "3eab080099c627d8cb66a0eb67b0fdcc952f71e53ccb2c9757078b2021177fb8",
      "9aca63f52960b466a352f915d9db3d6395e74d781307698d59fce0f24b1d9830",
      "aed6ca585358e84b333d6a3f155132e6cbcb9ca0837f511ce125312026b2f378",
      "e0c35d9fb5ae565bf90be5b08862fb5d65f92b783276c2f4e2a4d0e03566e0a1" },
    { a_restoring_spec, "a52b105dd2497f3c7259e6aa410d7560b2ee899b87ea2adf185e187da2a674b4",
      "62509f37834ef3c79aba8306bafd0a0425319b52aad88fa8055472dbb52da2cb",
      "d9c4b02bbfec9dffd882fd51bf41919f041f0b7e980582ad566583117841808c",
      "b6f33100b4e6d34f5ad348f70e45c1288842396d6a4dd108212f015a04db26f9" },
};

static void expect(const uint8_t hash[32], const char *wanted, const char *what)
{
    char hex[65];
    sodium_bin2hex(hex, sizeof hex, hash, 32);
    ck_assert_msg(strcmp(hex, wanted) == 0, "%s is %s", what, hex);
}

static void expect_bytes(const void *bytes, size_t count, const char *wanted, const char *what)
{
    uint8_t hash[32];
    crypto_generichash(hash, sizeof hash, bytes, count, NULL, 0);
    expect(hash, wanted, what);
}

/* Takes the spec, and gives the one that came back. */
static struct job_spec_data through_manifest(struct job_spec_data spec, const char *wanted)
{
    struct manifest m, back;
    struct sentence why = { "" };
    char *text;
    size_t bytes;
    manifest_init(&m);
    spec_release(&m.spec);
    m.spec = spec;
    good(manifest_encode(&m, &text, &bytes, &why));
    expect_bytes(text, bytes, wanted, "the manifest");
    ck_assert_msg(manifest_decode(text, bytes, &back, &why) == CAIRN_OK, "%s", why.text);
    free(text);
    manifest_release(&m);
    spec = back.spec;
    spec_init(&back.spec);
    manifest_release(&back);
    return spec;
}

static struct job_spec_data through_wire(struct job_spec_data spec, const char *wanted)
{
    struct job_spec_data back;
    struct sentence why = { "" };
    uint8_t *bytes;
    size_t len;
    good(spec_pack(&spec, &bytes, &len));
    expect_bytes(bytes, len, wanted, "the message");
    ck_assert_msg(spec_unpack(bytes, len, optimizer_names(), &back, &why) == CAIRN_OK, "%s",
                  why.text);
    free(bytes);
    spec_release(&spec);
    return back;
}

TEST_EACH(a_spec_has_the_bits_that_it_always_had, 0, sizeof specs / sizeof specs[0])
{
    struct job_spec_data spec = specs[_i].make();
    uint8_t hash[32];
    for (int turn = 0; turn < 2; turn++) { // as it was made, and as it came back from both
        good(spec_hash(&spec, hash));
        expect(hash, specs[_i].hash, "the hash");
        (void)spec_schedules_hash(&spec, hash);
        expect(hash, specs[_i].schedules, "the hash of schedules");
        spec = through_wire(spec, specs[_i].wire);
        const uint64_t amend_key = spec.amend_key; // in no manifest
        spec = through_manifest(spec, specs[_i].manifest);
        spec.amend_key = amend_key;
    }
    spec_release(&spec);
}

SUITE(30);
