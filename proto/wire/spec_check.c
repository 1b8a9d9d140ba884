/* Judging a job spec: every rule of spec.h, one sentence each, no side effects. */
#include "proto/wire/capability.h"
#include "proto/wire/optimizer.h"
#include "proto/wire/spec.h"
#include "proto/wire/spec_names.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define cairn_sentence_set(why, ...) cairn_sentence_set((why), __VA_ARGS__)

size_t cairn_utf8_sequence(const unsigned char *s)
{
    if (s[0] < 0x80) return s[0] >= 0x20 && s[0] != 0x7f ? 1 : 0;
    if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
    unsigned low = 0x80, high = 0xbf; // of the second byte
    if (s[0] == 0xc2) low = 0xa0;     // U+0080 to U+009F are control characters
    if (s[0] == 0xe0) low = 0xa0;
    if (s[0] == 0xed) high = 0x9f;
    if (s[0] == 0xf0) low = 0x90;
    if (s[0] == 0xf4) high = 0x8f;
    if (s[1] < low || s[1] > high) return 0;
    size_t length = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    for (size_t i = 2; i < length; i++) {
        if (s[i] < 0x80 || s[i] > 0xbf) return 0;
    }
    return length;
}

static bool text_ok(const char *text)
{
    if (text == NULL || text[0] == '\0') return false;
    if (strnlen(text, CAIRN_NAME_MAX + 1) > CAIRN_NAME_MAX) return false;
    for (const unsigned char *s = (const unsigned char *)text; *s != '\0';) {
        size_t length = cairn_utf8_sequence(s);
        if (length == 0) return false;
        s += length;
    }
    return true;
}

bool cairn_job_name_ok(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    if (name == NULL || name[0] == '\0' || name[0] == '.' || name[0] == '-') return false;
    size_t length = strnlen(name, CAIRN_NAME_MAX + 1);
    return length <= CAIRN_NAME_MAX && strspn(name, allowed) == length;
}

/* What a sentence may quote of a text that may be anything. */
static const char *quotable(const char *text)
{
    return text_ok(text) ? text : "?";
}

/* min <= value <= max, or a sentence. `what` is the field's full name. */
static bool count_in(const char *what, uint64_t value, uint64_t min, uint64_t max,
                     struct cairn_sentence *why)
{
    if (value >= min && value <= max) return true;
    cairn_sentence_set(why, "%s is %llu; allowed: %llu to %llu", what, (unsigned long long)value,
                       (unsigned long long)min, (unsigned long long)max);
    return false;
}

/* What a policy does not use is 0; a scale that may never change is a fixed one. */
static cairn_status check_loss_scale(const struct cairn_job_spec_data *spec,
                                     struct cairn_sentence *why)
{
    const double start = spec->loss_scale, min = spec->loss_scale_min, max = spec->loss_scale_max;
    if (spec->loss_scale_policy != CAIRN_LOSS_SCALE_DYNAMIC) {
        if (spec->loss_scale_policy != CAIRN_LOSS_SCALE_DEFAULT) {
            const cairn_status status = cairn_capability_check(
                CAIRN_CAPABILITY_LOSS_SCALE, (int)spec->loss_scale_policy, "", why);
            if (status != CAIRN_OK) return status;
        }
        if (min == 0 && max == 0 && spec->loss_scale_growth_steps == 0) return CAIRN_OK;
        if (spec->loss_scale_policy == CAIRN_LOSS_SCALE_DEFAULT && start > 1) return CAIRN_OK;
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "loss_scale_policy is fixed: loss_scale_min %g, loss_scale_max %g and "
                          "loss_scale_growth_steps %u have no effect; allowed: 0 (not set), or "
                          "loss_scale_policy 2 (dynamic)",
                          min, max, spec->loss_scale_growth_steps);
    }
    if (!(min == 0 || (min >= 1 / CAIRN_SPEC_SCALE_MAX && min <= start)) ||
        !(max == 0 || (max >= start && max <= CAIRN_SPEC_SCALE_MAX))) {
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "loss_scale_min is %g, loss_scale_max %g; allowed: 0 (not set), or "
                          "%g <= loss_scale_min <= loss_scale (%g) <= loss_scale_max <= %g",
                          min, max, 1 / CAIRN_SPEC_SCALE_MAX, start, CAIRN_SPEC_SCALE_MAX);
    }
    const double low = min != 0 ? min : start < 1 ? start : 1, high = max != 0 ? max : start;
    if (low < high) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_INVALID,
                      "loss_scale_policy is dynamic, but from loss_scale_min %g to loss_scale_max "
                      "%g there is no room; allowed: loss_scale above 1 (65536, say), or bounds",
                      low, high);
}

/* Those of the job that are rows of the table. */
static cairn_status check_job_choices(const struct cairn_job_spec_data *spec,
                                      struct cairn_sentence *why)
{
    cairn_status status = cairn_capability_check(
        CAIRN_CAPABILITY_STAGE, spec->stage <= INT32_MAX ? (int)spec->stage : INT32_MAX, "", why);
    if (status == CAIRN_OK)
        status = cairn_capability_check(CAIRN_CAPABILITY_NONFINITE, (int)spec->on_nonfinite, "",
                                        why);
    if (status == CAIRN_OK)
        status = cairn_capability_check(CAIRN_CAPABILITY_GROUPS, (int)spec->reduce_groups, "", why);
    if (status == CAIRN_OK)
        status = cairn_capability_check(CAIRN_CAPABILITY_SHARD_LOSS,
                                        (int)spec->policy.on_shard_loss, "", why);
    return status;
}

/* What would have no effect is refused. */
static cairn_status check_policy(const struct cairn_policy *p, struct cairn_sentence *why)
{
    if (!count_in("snapshot_every", p->snapshot_every, 0, CAIRN_SPEC_EVERY_MAX, why) ||
        !count_in("snapshot_keep", p->snapshot_keep, 0, CAIRN_SPEC_KEEP_MAX, why) ||
        !count_in("shard_loss_wait_s", p->shard_loss_wait_s, 1, CAIRN_SPEC_LOSS_WAIT_MAX_S, why))
        return CAIRN_ERR_INVALID;
    if (p->snapshot_keep > 0 && p->snapshot_every == 0)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "snapshot_keep is %llu, and without snapshot_every there are no periodic "
                          "snapshots; allowed: 0, or give snapshot_every",
                          (unsigned long long)p->snapshot_keep);
    if (p->shard_loss_wait_s != CAIRN_SPEC_LOSS_WAIT_S && p->on_shard_loss == CAIRN_SHARD_LOSS_WAIT)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "shard_loss_wait_s is %u, and with on_shard_loss wait it has no effect; "
                          "allowed: 0, or on_shard_loss 1 (restore-latest)",
                          p->shard_loss_wait_s);
    return CAIRN_OK;
}

static cairn_status check_job(const struct cairn_job_spec_data *spec, struct cairn_sentence *why)
{
    if (!cairn_job_name_ok(spec->name)) {
        return cairn_fail(
            why, CAIRN_ERR_INVALID,
            "job name \"%s\": allowed are 1 to %d of A-Z a-z 0-9 . _ -, first no . or -",
            quotable(spec->name), CAIRN_NAME_MAX);
    }
    if (!count_in("the number of tensors", spec->tensor_count, 1, CAIRN_SPEC_TENSORS_MAX, why) ||
        !count_in("the number of groups", spec->group_count, 0, CAIRN_SPEC_GROUPS_MAX, why) ||
        !count_in("micro_batches", spec->micro_batches, 1, CAIRN_SPEC_MICRO_MAX, why) ||
        !count_in("workers_min", spec->workers_min, 1, CAIRN_SPEC_WORKERS_MAX, why) ||
        (spec->workers_max != 0 && !count_in("workers_max", spec->workers_max, spec->workers_min,
                                             CAIRN_SPEC_WORKERS_MAX, why)) ||
        !count_in("chunk_leaves", spec->chunk_leaves, 1, CAIRN_SPEC_CHUNK_LEAVES_MAX, why) ||
        !count_in("spread", spec->spread, 1, CAIRN_SPEC_SPREAD_MAX, why) ||
        !count_in("skips_max", spec->skips_max, 1, UINT32_MAX, why) ||
        !count_in("window", spec->window, 1, CAIRN_SPEC_WINDOW_MAX, why) ||
        !count_in("client_state_max", spec->client_state_max, 0, CAIRN_SPEC_CLIENT_STATE_MAX,
                  why)) {
        return CAIRN_ERR_INVALID;
    }
    if (!isfinite(spec->clip_norm) || spec->clip_norm < 0) {
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "clip_norm is %g; allowed: 0 (no clipping) or more, finite",
                          spec->clip_norm);
    }
    if (!(spec->loss_scale >= 1 / CAIRN_SPEC_SCALE_MAX) ||
        !(spec->loss_scale <= CAIRN_SPEC_SCALE_MAX)) {
        return cairn_fail(why, CAIRN_ERR_INVALID, "loss_scale is %g; allowed: %g to %g",
                          spec->loss_scale, 1 / CAIRN_SPEC_SCALE_MAX, CAIRN_SPEC_SCALE_MAX);
    }
    cairn_status status = check_job_choices(spec, why);
    if (status == CAIRN_OK) status = check_policy(&spec->policy, why);
    return status == CAIRN_OK ? check_loss_scale(spec, why) : status;
}

/* 0 <= value <= CAIRN_SPEC_HYPER_MAX, or a sentence. */
static bool hyper_in(const struct cairn_group_spec *g, const char *field, double value,
                     struct cairn_sentence *why)
{
    if (value >= 0 && value <= CAIRN_SPEC_HYPER_MAX) return true; // no NaN passes
    cairn_sentence_set(why, "group \"%s\": %s is %g; allowed: 0 to %g", g->name, field, value,
                       CAIRN_SPEC_HYPER_MAX);
    return false;
}

/* 0 <= value < 1, or a sentence. */
static bool beta_in(const struct cairn_group_spec *g, const char *field, double value,
                    struct cairn_sentence *why)
{
    if (value >= 0 && value < 1) return true;
    cairn_sentence_set(why, "group \"%s\": %s is %.17g; allowed: 0 to below 1", g->name, field,
                       value);
    return false;
}

static bool listed(const char *const *names, const char *name)
{
    for (; *names != NULL; names++) {
        if (strcmp(*names, name) == 0) return true;
    }
    return false;
}

/* "adamw, adam, sgd", cut to fit. */
static void join(const char *const *names, char text[static 200])
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; names[i] != NULL && used < 200; i++) {
        used += (size_t)snprintf(text + used, 200 - used, "%s%s", i > 0 ? ", " : "", names[i]);
    }
}

static cairn_status check_group(const struct cairn_group_spec *g, const char *const *optimizers,
                                struct cairn_sentence *why)
{
    if (!text_ok(g->name)) {
        return cairn_fail(
            why, CAIRN_ERR_INVALID,
            "a group's name is empty, longer than %d bytes, not UTF-8 or has control characters",
            CAIRN_NAME_MAX);
    }
    if (g->optimizer == NULL || !listed(optimizers, g->optimizer)) {
        char known[200];
        join(optimizers, known);
        return cairn_fail(why, CAIRN_ERR_UNSUPPORTED,
                          "group \"%s\": there is no optimizer \"%s\"; known: %s", g->name,
                          quotable(g->optimizer), known);
    }
    if (!hyper_in(g, "lr", g->lr, why) || !beta_in(g, "beta1", g->beta1, why) ||
        !beta_in(g, "beta2", g->beta2, why) || !hyper_in(g, "eps", g->eps, why) ||
        !hyper_in(g, "weight_decay", g->weight_decay, why) ||
        !hyper_in(g, "momentum", g->momentum, why)) {
        return CAIRN_ERR_INVALID;
    }
    if (g->nesterov && g->momentum <= 0) {
        return cairn_fail(why, CAIRN_ERR_INVALID, "group \"%s\": nesterov needs a momentum above 0",
                          g->name);
    }
    return cairn_schedule_check(&g->schedule, g->lr, g->name, why);
}

static cairn_status check_choices(const struct cairn_tensor_spec *t, struct cairn_sentence *why)
{
    const struct {
        enum cairn_capability_field field;
        int value;
    } choices[] = {
        { CAIRN_CAPABILITY_KIND, (int)t->kind },     { CAIRN_CAPABILITY_WIRE, (int)t->wire },
        { CAIRN_CAPABILITY_REDUCE, (int)t->reduce }, { CAIRN_CAPABILITY_MASTER, (int)t->master },
        { CAIRN_CAPABILITY_PLACE, (int)t->whole },   { CAIRN_CAPABILITY_INIT, (int)t->init.kind },
    };
    char subject[CAIRN_NAME_MAX + 16];
    snprintf(subject, sizeof subject, "tensor \"%s\": ", t->name);
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < sizeof choices / sizeof choices[0] && status == CAIRN_OK; i++) {
        status = cairn_capability_check(choices[i].field, choices[i].value, subject, why);
    }
    return status;
}

/* The numbers of an initializer; they become fp32 on the shards. */
static cairn_status check_init(const struct cairn_tensor_spec *t, struct cairn_sentence *why)
{
    const struct cairn_init *init = &t->init;
    const bool random = init->kind == CAIRN_INIT_UNIFORM || init->kind == CAIRN_INIT_NORMAL;
    const bool uses_a = random || init->kind == CAIRN_INIT_CONSTANT;
    const char *rule = NULL;
    if (!(fabs(init->a) <= (double)FLT_MAX) || !(fabs(init->b) <= (double)FLT_MAX) ||
        init->seed > INT64_MAX)
        rule = "a and b finite in fp32, seed below 2^63";
    else if ((!uses_a && init->a != 0) || (!random && (init->b != 0 || init->seed != 0)))
        rule = "what the initializer does not use is 0";
    else if (init->kind == CAIRN_INIT_UNIFORM && !(init->a < init->b))
        rule = "a below b";
    else if (init->kind == CAIRN_INIT_NORMAL && !(init->b > 0))
        rule = "b, the standard deviation, above 0";
    if (rule == NULL) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_INVALID,
                      "tensor \"%s\": init is %s with a %g, b %g, seed %llu; allowed: %s", t->name,
                      cairn_capability_name(CAIRN_CAPABILITY_INIT, (int)init->kind), init->a,
                      init->b, (unsigned long long)init->seed, rule);
}

/* A blob is bytes and nothing else is: no number is ever made of them. */
static cairn_status check_bytes(const struct cairn_tensor_spec *t, struct cairn_sentence *why)
{
    const bool all = t->wire == CAIRN_U8 && t->master == CAIRN_U8;
    const bool none = t->wire != CAIRN_U8 && t->master != CAIRN_U8;
    const char *rule = NULL;
    if (t->alias_of != NULL) return CAIRN_OK; // it has the wire of its target
    if (t->kind != CAIRN_BLOB && !none)
        rule = "u8 is of blobs only: kind 4 (blob), or wire and master 1 (f32)";
    else if (t->kind == CAIRN_BLOB && !all)
        rule = "a blob is bytes: wire and master 5 (u8)";
    else if (t->kind == CAIRN_BLOB && t->shape.rank != 1)
        rule = "a blob is bytes in a row: rank 1, shape [bytes]";
    else if (t->kind == CAIRN_BLOB && t->init.kind != CAIRN_INIT_NONE)
        rule = "a blob is put: init 0 (none)";
    if (rule == NULL) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_INVALID,
                      "tensor \"%s\": kind is %s, wire %s, master %s, rank %u; allowed: %s",
                      t->name, cairn_capability_name(CAIRN_CAPABILITY_KIND, (int)t->kind),
                      cairn_dtype_name((int)t->wire), cairn_dtype_name((int)t->master),
                      t->shape.rank, rule);
}

/* Adds the tensor's elements to *elems. */
static cairn_status check_shape(const struct cairn_tensor_spec *t, uint64_t *elems,
                                struct cairn_sentence *why)
{
    if (cairn_shape_check(&t->shape) != CAIRN_OK) {
        return cairn_fail(
            why, CAIRN_ERR_INVALID,
            "tensor \"%s\": rank %u or its number of elements is over the limits (rank %d, 2^48 "
            "elements)",
            t->name, t->shape.rank, CAIRN_RANK_MAX);
    }
    const uint64_t own = cairn_geometry_of(&t->shape).elems;
    if (own > CAIRN_SPEC_ELEMS_MAX - *elems) {
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "tensor \"%s\": with it the job has more than 2^48 elements", t->name);
    }
    *elems += own;
    return CAIRN_OK;
}

/* The groups of a spec sorted by name, so that a million tensors find theirs quickly. */
struct group_table {
    const struct cairn_group_spec *group[CAIRN_SPEC_GROUPS_MAX];
    bool used[CAIRN_SPEC_GROUPS_MAX];
    size_t count;
};

static int group_order(const void *a, const void *b)
{
    const struct cairn_group_spec *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static cairn_status list_groups(const struct cairn_job_spec_data *spec, struct group_table *table,
                                struct cairn_sentence *why)
{
    table->count = spec->group_count;
    for (size_t i = 0; i < table->count; i++) {
        table->group[i] = &spec->groups[i];
        table->used[i] = false;
    }
    if (table->count > 1) qsort(table->group, table->count, sizeof table->group[0], group_order);
    for (size_t i = 1; i < table->count; i++) {
        if (group_order(&table->group[i - 1], &table->group[i]) != 0) continue;
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "two groups have the name \"%s\"; names are unique in a job",
                          table->group[i]->name);
    }
    return CAIRN_OK;
}

static cairn_status check_membership(const struct cairn_tensor_spec *t, struct group_table *table,
                                     struct cairn_sentence *why)
{
    if (t->kind != CAIRN_TRAINED && t->frozen)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "tensor \"%s\": it is not trained, so it cannot be frozen", t->name);
    if (t->kind != CAIRN_TRAINED) return CAIRN_OK;
    const struct cairn_group_spec key = { .name = t->group }, *key_at = &key;
    const struct cairn_group_spec **found = NULL;
    if (t->group != NULL && table->count > 0) {
        found = bsearch(&key_at, table->group, table->count, sizeof table->group[0], group_order);
    }
    if (found == NULL) {
        return cairn_fail(why, CAIRN_ERR_INVALID, "tensor \"%s\": its group \"%s\" is not declared",
                          t->name, quotable(t->group));
    }
    table->used[found - table->group] = true;
    return CAIRN_OK;
}

static cairn_status check_tensor_names(const struct cairn_job_spec_data *spec, size_t i,
                                       struct cairn_sentence *why)
{
    const struct cairn_tensor_spec *t = &spec->tensors[i];
    // "__metadata__" is the one key that a safetensors file keeps for itself.
    if (!text_ok(t->name) || strcmp(t->name, "__metadata__") == 0) {
        return cairn_fail(
            why, CAIRN_ERR_INVALID,
            "the name of tensor number %zu is empty, longer than %d bytes, reserved, not UTF-8 or "
            "has control characters",
            i, CAIRN_NAME_MAX);
    }
    if (!text_ok(t->unit)) {
        return cairn_fail(
            why, CAIRN_ERR_INVALID,
            "tensor \"%s\": its unit is empty, longer than %d bytes, not UTF-8 or has control "
            "characters",
            t->name, CAIRN_NAME_MAX);
    }
    return CAIRN_OK;
}

static cairn_status check_tensors(const struct cairn_job_spec_data *spec, struct group_table *table,
                                  struct cairn_sentence *why)
{
    uint64_t elems = 0;
    for (size_t i = 0; i < spec->tensor_count; i++) {
        const struct cairn_tensor_spec *t = &spec->tensors[i];
        cairn_status status = check_tensor_names(spec, i, why);
        if (status == CAIRN_OK) status = check_choices(t, why);
        if (status == CAIRN_OK) status = check_init(t, why);
        if (status == CAIRN_OK) status = check_bytes(t, why);
        if (status == CAIRN_OK) status = check_shape(t, &elems, why);
        if (status == CAIRN_OK) status = check_membership(t, table, why);
        if (status != CAIRN_OK) return status;
    }
    for (size_t i = 0; i < table->count; i++) {
        if (table->used[i]) continue;
        return cairn_fail(
            why, CAIRN_ERR_INVALID,
            "group \"%s\" has no trained tensor: a pattern that matched nothing? Remove the group "
            "or name it in a tensor",
            table->group[i]->name);
    }
    return CAIRN_OK;
}

cairn_status cairn_spec_check(const struct cairn_job_spec_data *spec, const char *const *optimizers,
                              struct cairn_sentence *why)
{
    struct group_table table;
    cairn_status status = check_job(spec, why);
    if (status == CAIRN_OK) status = cairn_spec_check_origin(spec, why);
    for (size_t i = 0; i < spec->group_count && status == CAIRN_OK; i++) {
        status = check_group(&spec->groups[i], optimizers, why);
    }
    if (status == CAIRN_OK) status = list_groups(spec, &table, why);
    if (status == CAIRN_OK) status = check_tensors(spec, &table, why);
    if (status == CAIRN_OK) status = cairn_spec_check_names(spec, why);
    return status;
}

cairn_status cairn_spec_check_usable(const struct cairn_job_spec_data *spec,
                                     struct cairn_sentence *why)
{
    for (size_t i = 0; i < spec->group_count; i++) {
        const struct cairn_group_spec *g = &spec->groups[i];
        const struct cairn_hyper_info *eps = cairn_optimizer_hyper(
            cairn_optimizer_by_name(g->optimizer), "eps");
        if (eps == NULL || !eps->divides || (float)g->eps > 0) continue;
        return cairn_fail(
            why, CAIRN_ERR_INVALID,
            "group \"%s\": eps is %g, and %s divides by it, as fp32: parameters would "
            "become NaN (CAIRN_GROUP_INIT has %g)",
            g->name, g->eps, g->optimizer, eps->value_default);
    }
    return CAIRN_OK;
}
