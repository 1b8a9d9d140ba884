/* What a spec offers: every field of it travels and is compared, every choice that is not supported is
 * refused. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot/snapshot.h"
#include "proto/spec/spec.h"
#include "proto/spec/spec_fields.h"
#include "proto/wire/wire.h"
#include "tests/support/suite.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static void add_tensor(struct job_spec_data *spec, const char *name, const char *group)
{
    const struct tensor_spec t = { .name = wire_text(name),
                                   .unit = wire_text("block"),
                                   .group = wire_text(group),
                                   .kind = group[0] != '\0' ? CAIRN_TRAINED : CAIRN_FROZEN,
                                   .wire = CAIRN_F32,
                                   .reduce = CAIRN_F32,
                                   .master = CAIRN_F32,
                                   .shape = { 2, { 6, 4 } } };
    ck_assert_int_eq(spec_add_tensor(spec, &t), CAIRN_OK);
}

static struct job_spec_data a_spec(void)
{
    static const struct cairn_schedule_point points[] = { { 1, 1 }, { 9, 0.5 } };
    struct job_spec_data spec;
    struct group_spec g = group_default();
    struct cairn_box box = { 2, { 1, 0 }, { 2, 4 } };
    spec_init(&spec);
    ck_assert_int_eq(spec_set_name(&spec, "job"), CAIRN_OK);
    g.name = wire_text("a");
    g.optimizer = wire_text("sgd");
    g.momentum = 0.5;
    g.schedule = (struct schedule) { CAIRN_SCHEDULE_WSD, 2, 20, 3, 1e-4, NULL, 0 };
    ck_assert_int_eq(spec_add_group(&spec, &g), CAIRN_OK);
    g.name = wire_text("b");
    g.schedule = (struct schedule) { CAIRN_SCHEDULE_TABLE, 0, 0, 0, 0, points, 2 };
    ck_assert_int_eq(spec_add_group(&spec, &g), CAIRN_OK);
    add_tensor(&spec, "fixed", "");
    add_tensor(&spec, "one", "a");
    add_tensor(&spec, "two", "b");
    struct tensor_spec alias = { .name = wire_text("other"),
                                 .alias_of = wire_text("one"),
                                 .alias_box = &box,
                                 .kind = CAIRN_FROZEN,
                                 .wire = CAIRN_F32,
                                 .reduce = CAIRN_F32,
                                 .master = CAIRN_F32,
                                 .shape = { 1, { 0 } } };
    ck_assert_int_eq(spec_add_tensor(&spec, &alias), CAIRN_OK);
    spec.loss_scale = 64;
    spec_canonicalize(&spec); // fixed, one, other, two
    return spec;
}

/* ---- fields ---- */

static struct {
    const char *name;
    void (*change)(struct job_spec_data *s, struct group_spec *g, struct tensor_spec *t);
} fields[64];
static int field_count;

/* A row: another value of the field, by what is done to the spec `s`, its first group `g` or its first
 * tensor `t`. */
#define CHANGE(field, ...)                                                    \
    static void change_##field(struct job_spec_data *s, struct group_spec *g, \
                               struct tensor_spec *t)                         \
    {                                                                         \
        (void)s, (void)g, (void)t;                                            \
        __VA_ARGS__;                                                          \
    }                                                                         \
    __attribute__((constructor)) static void change_add_##field(void)         \
    {                                                                         \
        fields[field_count].name = #field;                                    \
        fields[field_count++].change = change_##field;                        \
    }                                                                         \
    _Static_assert(1, "a semicolon follows")

static struct cairn_schedule_point *last_point(struct schedule *schedule)
{
    return (struct cairn_schedule_point *)(uintptr_t)schedule->points + schedule->point_count - 1;
}

CHANGE(lr, g->lr *= 2);
CHANGE(beta1, g->beta1 = 0.5);
CHANGE(beta2, g->beta2 = 0.5);
CHANGE(eps, g->eps = 1);
CHANGE(weight_decay, g->weight_decay = 1);
CHANGE(momentum, g->momentum = 0.25);
CHANGE(nesterov, g->nesterov = true);
CHANGE(ema, g->ema = 0.999);
CHANGE(ema_schedule, g->ema = 0.999; g->ema_schedule = CAIRN_EMA_WARMUP);
CHANGE(optimizer, free(g->optimizer); g->optimizer = strdup("adamw"));
CHANGE(schedule, g->schedule.kind = CAIRN_SCHEDULE_COSINE; g->schedule.decay_steps = 0);
CHANGE(warmup_steps, g->schedule.warmup_steps = 1);
CHANGE(total_steps, g->schedule.total_steps = 21);
CHANGE(decay_steps, g->schedule.decay_steps = 4);
CHANGE(lr_min, g->schedule.lr_min = 0);
CHANGE(point, last_point(&s->groups[1].schedule)->factor = 0.75);
CHANGE(point_count, s->groups[1].schedule.point_count = 1);
CHANGE(kind, t->kind = CAIRN_BUFFER);
CHANGE(wire, t->wire = CAIRN_BF16);
CHANGE(shape, t->shape.dim[1] = 5);
CHANGE(unit, t->unit[0] = 'B');
CHANGE(group, s->tensors[1].group[0] = 'b'; s->tensors[3].group[0] = 'a');
CHANGE(init_kind, t->init.kind = CAIRN_INIT_ONES);
CHANGE(init_numbers, t->init = ((struct cairn_init) { CAIRN_INIT_UNIFORM, -1, 1, 7 }));
CHANGE(alias_of, s->tensors[2].alias_of[0] = 't'; s->tensors[2].alias_of[1] = 'w';
       s->tensors[2].alias_of[2] = 'o');
CHANGE(alias_box, s->tensors[2].alias_box->start[0] = 2);
CHANGE(alias_whole, free(s->tensors[2].alias_box); s->tensors[2].alias_box = NULL);
CHANGE(loss_scale, s->loss_scale = 32);
CHANGE(loss_scale_policy, s->loss_scale_policy = CAIRN_LOSS_SCALE_FIXED;
       s->loss_scale_growth_steps = 0; s->loss_scale_min = s->loss_scale_max = 0);
CHANGE(loss_scale_growth_steps, s->loss_scale_growth_steps = 5);
CHANGE(loss_scale_min, s->loss_scale_min = 2);
CHANGE(loss_scale_max, s->loss_scale_max = 128);
CHANGE(snapshot_keep, s->policy.snapshot_every = 3; s->policy.snapshot_keep = 2);
CHANGE(shard_loss_wait_s, s->policy.on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST;
       s->policy.shard_loss_wait_s = 7);
CHANGE(worker_loss_wait_s, s->policy.on_worker_loss = CAIRN_WORKER_LOSS_WAIT;
       s->policy.worker_loss_wait_s = 7);
CHANGE(snapshot_keep_every, s->policy.snapshot_every = 3; s->policy.snapshot_keep_every = 9);
CHANGE(snapshot_keep_within_s, s->policy.snapshot_every = 3; s->policy.snapshot_keep_within_s = 9);
CHANGE(snapshot_max_bytes, s->policy.snapshot_every = 3; s->policy.snapshot_max_bytes = 9);
CHANGE(tiers, s->tiers = CAIRN_TIERS_MOMENTS_ON_HOST);
CHANGE(init_nonfinite_ok, s->init_from = strdup("/w"); s->init_nonfinite_ok = true);
CHANGE(init_extra_ok, s->init_from = strdup("/w"); s->init_extra_ok = true);
CHANGE(blob, t->kind = CAIRN_BLOB; t->wire = t->master = CAIRN_U8;
       t->shape = ((struct shape) { 1, { 9 } }));

static bool is_named(const char *name)
{
    bool found = false;
    for (int k = 0; k < field_count; k++) found = found || strcmp(fields[k].name, name) == 0;
    return found;
}

TEST(what_an_older_peer_leaves_out_comes_as_0_which_is_the_default)
{
    const struct spec_table *tables[] = { &spec_fields, &group_fields, &schedule_fields };
    for (size_t t = 0; t < COUNT(tables); t++) {
        for (size_t i = 0; i < tables[t]->count; i++) {
            const struct spec_field *field = &tables[t]->fields[i];
            ck_assert_msg(t == 0 || is_named(field->name), "%s is not tried", field->name);
            ck_assert_msg(field->part == CAIRN_SPEC_FIRST || field->value_default == 0 ||
                              field->min > 0,
                          "%s: 0 is another value than its default", field->name);
        }
    }
}

static void hash_of(const struct job_spec_data *spec, uint8_t hash[32])
{
    ck_assert_int_eq(spec_hash(spec, hash), CAIRN_OK);
}

/* What comes out of the wire and of a manifest has this hash. */
static void expect_travels(const struct job_spec_data *spec, const uint8_t hash[32],
                           const char *what)
{
    struct job_spec_data back;
    struct sentence why = { "" };
    struct manifest m, read;
    uint8_t *bytes, again[32];
    char *text;
    size_t len;
    ck_assert_int_eq(spec_pack(spec, &bytes, &len), CAIRN_OK);
    ck_assert_msg(spec_unpack(bytes, len, optimizer_names(), &back, &why) == CAIRN_OK, "%s: %s",
                  what, why.text);
    hash_of(&back, again);
    ck_assert_msg(memcmp(again, hash, 32) == 0, "%s is lost on the wire", what);
    manifest_init(&m);
    spec_release(&m.spec);
    m.spec = back;
    ck_assert_msg(manifest_encode(&m, &text, &len, &why) == CAIRN_OK, "%s", why.text);
    ck_assert_msg(manifest_decode(text, len, &read, &why) == CAIRN_OK, "%s: %s", what, why.text);
    hash_of(&read.spec, again);
    ck_assert_msg(memcmp(again, hash, 32) == 0, "%s is lost in a manifest", what);
    free(bytes);
    free(text);
    manifest_release(&m);
    manifest_release(&read);
}

/* `changed` differs from a_spec() in the field with that name. Releases it. */
static void expect_another(struct job_spec_data *changed, const char *name)
{
    struct job_spec_data plain = a_spec();
    struct sentence why = { "" };
    uint8_t before[32], after[32];
    hash_of(&plain, before);
    const cairn_status judged = spec_check(changed, optimizer_names(), &why);
    if (strcmp(name, "tiers") == 0) { // of which one value is supported
        ck_assert_int_eq(judged, CAIRN_ERR_UNSUPPORTED);
    } else {
        ck_assert_msg(judged == CAIRN_OK, "%s", why.text);
        hash_of(changed, after);
        ck_assert_msg(memcmp(before, after, 32) != 0, "%s is not in the hash", name);
        ck_assert_msg(spec_diff(&plain, changed, 0, NULL, NULL) > 0, "%s is not compared", name);
        expect_travels(changed, after, name);
    }
    spec_release(&plain);
    spec_release(changed);
}

TEST_EACH(every_field_of_a_spec_is_compared_and_travels, 0, field_count)
{
    struct job_spec_data changed = a_spec();
    fields[_i].change(&changed, &changed.groups[0], &changed.tensors[0]);
    expect_another(&changed, fields[_i].name);
}

/* Gives a scalar that no other field restricts its next value. */
static void change_plainly(const struct spec_field *field, struct job_spec_data *spec)
{
    size_t count;
    const struct capability *row = capability_table(&count);
    const uint64_t bits = spec_field_bits(field, spec);
    if (field->kind == CAIRN_SPEC_REAL)
        spec_field_set_number(field, spec, spec_field_number(field, spec) + 0.25);
    else if (field->kind == CAIRN_SPEC_FLAG)
        spec_field_set_bits(field, spec, bits == 0);
    else
        spec_field_set_bits(field, spec, bits + 1);
    for (const struct capability *end = row + count; row < end; row++)
        if (field->kind == CAIRN_SPEC_CHOICE && row->field == field->capability && row->supported &&
            row->value != (int)bits)
            spec_field_set_bits(field, spec, (uint64_t)row->value);
}

TEST(so_is_every_other_scalar)
{
    for (size_t i = 0; i < spec_fields.count; i++) {
        struct job_spec_data changed = a_spec();
        if (!is_named(spec_fields.fields[i].name)) {
            change_plainly(&spec_fields.fields[i], &changed);
            expect_another(&changed, spec_fields.fields[i].name);
        } else {
            spec_release(&changed);
        }
    }
}

/* ---- choices ---- */

/* What each row does is shown by e2e.capabilities. */
TEST(a_choice_that_is_not_supported_is_refused_with_those_that_are)
{
    size_t count;
    const struct capability *rows = capability_table(&count);
    for (size_t r = 0; r < count; r++) {
        const char *name = capability_field_name(rows[r].field);
        struct sentence why = { "" };
        const cairn_status status = capability_check(rows[r].field, rows[r].value, "job: ", &why);
        ck_assert_int_eq(status, rows[r].supported ? CAIRN_OK : CAIRN_ERR_UNSUPPORTED);
        if (rows[r].supported) continue;
        ck_assert_ptr_nonnull(strstr(why.text, name));
        ck_assert_ptr_nonnull(strstr(why.text, rows[r].value_name));
        if (rows[r].field != CAIRN_CAPABILITY_COMBINATION)
            ck_assert_ptr_nonnull(strstr(why.text, "; allowed: "));
    }
}

TEST(a_value_and_its_name_belong_together)
{
    size_t count;
    const struct capability *rows = capability_table(&count);
    for (size_t r = 0; r < count; r++) {
        ck_assert_str_eq(capability_name(rows[r].field, rows[r].value), rows[r].value_name);
        ck_assert_int_eq(capability_value(rows[r].field, rows[r].value_name), rows[r].value);
        if (rows[r].field <= CAIRN_CAPABILITY_MASTER && rows[r].field >= CAIRN_CAPABILITY_WIRE)
            ck_assert_str_eq(rows[r].value_name, dtype_label(rows[r].value));
        if (rows[r].field == CAIRN_CAPABILITY_SCHEDULE)
            ck_assert_str_eq(rows[r].value_name, schedule_name(rows[r].value));
    }
    ck_assert_str_eq(capability_name(CAIRN_CAPABILITY_WIRE, 99), "?");
    ck_assert_int_eq(capability_value(CAIRN_CAPABILITY_WIRE, "f8"), -1);
    ck_assert_int_eq(capability_check(CAIRN_CAPABILITY_STAGE, -1, "", NULL), CAIRN_ERR_INVALID);
}

TEST(what_has_no_elements_and_what_is_an_alias_has_no_state)
{
    struct job_spec_data spec = a_spec();
    ck_assert_uint_eq(spec_planes(&spec, 2), 0); // "other"
    ck_assert_uint_eq(spec_target(&spec, 2), 1);
    ck_assert_uint_eq(spec_target(&spec, 3), 3);
    ck_assert_uint_ne(spec_planes(&spec, 1), 0);
    spec.tensors[1].shape.dim[0] = 0;
    ck_assert_uint_eq(spec_planes(&spec, 1), 0);
    spec_release(&spec);
}

TEST(a_spec_remembers_its_first_form_and_the_last_ones)
{
    struct job_spec_data spec = a_spec(), copy;
    uint8_t hash[32] = { 0 };
    for (int i = 0; i < 200; i++) {
        hash[0] = (uint8_t)i;
        ck_assert_int_eq(spec_add_former(&spec, hash), CAIRN_OK);
        ck_assert_int_eq(spec_add_former(&spec, hash), CAIRN_OK); // once
    }
    ck_assert_uint_eq(spec.former_count, CAIRN_SPEC_FORMER_MAX);
    ck_assert_int_eq(spec_copy(&spec, &copy), CAIRN_OK);
    for (int i = 0; i < 200; i++) {
        hash[0] = (uint8_t)i;
        ck_assert_int_eq(spec_was(&copy, hash), i == 0 || i > 200 - CAIRN_SPEC_FORMER_MAX);
    }
    spec_release(&spec);
    spec_release(&copy);
}

SUITE(30);
