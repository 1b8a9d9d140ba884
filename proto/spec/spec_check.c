/* The check of a job spec: every rule of spec.h, one sentence each, no side effects. */
#include "proto/base/text.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "proto/spec/spec_fields.h"

bool job_name_ok(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    if (name == NULL || name[0] == '\0' || name[0] == '.' || name[0] == '-') return false;
    size_t length = strnlen(name, CAIRN_NAME_MAX + 1);
    return length <= CAIRN_NAME_MAX && strspn(name, allowed) == length;
}

/* Returns the text if a sentence may quote it. Returns "?" if the text is no valid name, since such a text
 * may hold anything. */
static const char *quotable(const char *text)
{
    return text_ok(text, CAIRN_NAME_MAX) ? text : "?";
}

/* Refuses fields that the policy does not use, unless they are 0. Also refuses a dynamic scale whose bounds
 * leave no room, because such a scale is fixed. */
static cairn_status check_loss_scale(const struct job_spec_data *spec, struct sentence *why)
{
    const double start = spec->loss_scale, min = spec->loss_scale_min, max = spec->loss_scale_max;
    if (spec->loss_scale_policy != CAIRN_LOSS_SCALE_DYNAMIC) {
        if (spec->loss_scale_policy != CAIRN_LOSS_SCALE_DEFAULT) {
            CAIRN_TRY(capability_check(CAIRN_CAPABILITY_LOSS_SCALE, (int)spec->loss_scale_policy,
                                       "", why));
        }
        if (min == 0 && max == 0 && spec->loss_scale_growth_steps == 0) return CAIRN_OK;
        if (spec->loss_scale_policy == CAIRN_LOSS_SCALE_DEFAULT && start > 1) return CAIRN_OK;
        return fail_with(why, CAIRN_ERR_INVALID,
                         "loss_scale_policy is fixed: loss_scale_min %g, loss_scale_max %g and "
                         "loss_scale_growth_steps %u have no effect; allowed: 0 (not set), or "
                         "loss_scale_policy 2 (dynamic)",
                         min, max, spec->loss_scale_growth_steps);
    }
    if (!(min == 0 || (min >= 1 / CAIRN_SPEC_SCALE_MAX && min <= start)) ||
        !(max == 0 || (max >= start && max <= CAIRN_SPEC_SCALE_MAX))) {
        return fail_with(why, CAIRN_ERR_INVALID,
                         "loss_scale_min is %g, loss_scale_max %g; allowed: 0 (not set), or %g <= "
                         "loss_scale_min <= loss_scale (%g) <= loss_scale_max <= %g",
                         min, max, 1 / CAIRN_SPEC_SCALE_MAX, start, CAIRN_SPEC_SCALE_MAX);
    }
    const double low = min != 0 ? min : start < 1 ? start : 1, high = max != 0 ? max : start;
    if (low < high) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_INVALID,
                     "loss_scale_policy is dynamic, but from loss_scale_min %g to loss_scale_max "
                     "%g there is no room; allowed: loss_scale above 1 (65536, say), or bounds",
                     low, high);
}

/* Checks the rules that tell which snapshots are taken, and which of them are kept. */
static cairn_status check_snapshots(const struct policy *p, struct sentence *why)
{
    const struct {
        const char *name;
        uint64_t value;
    } rules[] = { { "snapshot_keep", p->snapshot_keep },
                  { "snapshot_keep_every", p->snapshot_keep_every },
                  { "snapshot_keep_within_s", p->snapshot_keep_within_s },
                  { "snapshot_max_bytes", p->snapshot_max_bytes } };
    if (p->snapshot_every > 0 && p->snapshot_every_s > 0)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "snapshot_every is %" PRIu64
                         " and snapshot_every_s %u: periodic snapshots come "
                         "by steps or by time; allowed: one of them",
                         p->snapshot_every, p->snapshot_every_s);
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (rules[i].value > 0 && p->snapshot_every == 0 && p->snapshot_every_s == 0)
            return fail_with(why, CAIRN_ERR_INVALID,
                             "%s is %" PRIu64
                             ", and without snapshot_every or snapshot_every_s there "
                             "are no periodic snapshots; allowed: 0, or give one of them",
                             rules[i].name, rules[i].value);
    return CAIRN_OK;
}

/* Refuses fields that would have no effect. */
static cairn_status check_policy(const struct policy *p, struct sentence *why)
{
    CAIRN_TRY(check_snapshots(p, why));
    if (p->shard_loss_wait_s != CAIRN_SPEC_LOSS_WAIT_S && p->on_shard_loss == CAIRN_SHARD_LOSS_WAIT)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "shard_loss_wait_s is %u, and with on_shard_loss wait it has no effect; "
                         "allowed: 0, or on_shard_loss 1 (restore-latest)",
                         p->shard_loss_wait_s);
    if (p->worker_loss_wait_s != 0 && p->on_worker_loss != CAIRN_WORKER_LOSS_WAIT)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "worker_loss_wait_s is %u, and without on_worker_loss wait it has no "
                         "effect; allowed: 0, or on_worker_loss 1 (wait)",
                         p->worker_loss_wait_s);
    return CAIRN_OK;
}

/* The order of the fold equals the order of the numbers only if every micro-batch is pushed by itself. */
static cairn_status check_batch(const struct job_spec_data *spec, struct sentence *why)
{
    if (spec->global_batch == 0) return CAIRN_OK;
    if (spec->micro_batches > 1)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "global_batch is %u and micro_batches %u: the first is for all workers, "
                         "the second for each; allowed: only one of them",
                         spec->global_batch, spec->micro_batches);
    if (spec->stage < 2)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "global_batch is %u, and in stage %u a worker adds its micro-batches up "
                         "before it pushes, so that the bits depend on who had which; allowed: "
                         "stage 2 or 3",
                         spec->global_batch, spec->stage);
    if (spec->reduce_groups != CAIRN_GROUPS_NONE)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "global_batch is %u, and reduce_groups %d (%s) adds up by host first, so "
                         "that the bits depend on who is where; allowed: reduce_groups 0 (none)",
                         spec->global_batch, (int)spec->reduce_groups,
                         capability_name(CAIRN_CAPABILITY_GROUPS, (int)spec->reduce_groups));
    return CAIRN_OK;
}

/* With LEAVE each tensor may have a step count of its own, and all counts are sent with every decision. */
static cairn_status check_missing(const struct job_spec_data *spec, struct sentence *why)
{
    if (spec->missing_gradients == CAIRN_MISSING_ZERO || spec->tensor_count <= CAIRN_SPEC_LEAVE_MAX)
        return CAIRN_OK;
    return fail_with(
        why, CAIRN_ERR_INVALID,
        "missing_gradients is 1 (leave), and the job has %zu tensors; allowed: at most "
        "%d with it, or missing_gradients 0 (zero)",
        spec->tensor_count, CAIRN_SPEC_LEAVE_MAX);
}

/* Checks a struct's fields, one by one. CAIRN_ERR_INVALID, CAIRN_ERR_UNSUPPORTED; `why` (may be NULL)
 * begins with `subject`, "group \"x\": ", and names the field, the value and what is allowed. */
static cairn_status spec_fields_check(const struct spec_table *table, const void *from,
                                      const char *subject, struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < table->count && status == CAIRN_OK; i++)
        status = spec_field_check(&table->fields[i], from, subject, why);
    return status;
}

static cairn_status check_job(const struct job_spec_data *spec, struct sentence *why)
{
    if (!job_name_ok(spec->name)) {
        return fail_with(
            why, CAIRN_ERR_INVALID,
            "job name \"%s\": allowed are 1 to %d of A-Z a-z 0-9 . _ -, but not . or - first",
            quotable(spec->name), CAIRN_NAME_MAX);
    }
    cairn_status status = spec_count_check("the number of ", "tensors", spec->tensor_count, 1,
                                           CAIRN_SPEC_TENSORS_MAX, why);
    if (status == CAIRN_OK)
        status = spec_count_check("the number of ", "groups", spec->group_count, 0,
                                  CAIRN_SPEC_GROUPS_MAX, why);
    if (status == CAIRN_OK) status = spec_fields_check(&spec_fields, spec, "", why);
    if (status == CAIRN_OK && spec->workers_max != 0)
        status = spec_count_check("", "workers_max", spec->workers_max, spec->workers_min,
                                  CAIRN_SPEC_WORKERS_MAX, why);
    if (status == CAIRN_OK) status = check_policy(&spec->policy, why);
    if (status == CAIRN_OK) status = check_batch(spec, why);
    if (status == CAIRN_OK) status = check_missing(spec, why);
    return status == CAIRN_OK ? check_loss_scale(spec, why) : status;
}

static bool listed(const char *const *names, const char *name)
{
    for (; *names != NULL; names++) {
        if (strcmp(*names, name) == 0) return true;
    }
    return false;
}

/* Writes "adamw, adam, sgd", cut to fit. */
static void join(const char *const *names, char text[static 200])
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; names[i] != NULL && used < 200; i++) {
        used += (size_t)snprintf(text + used, 200 - used, "%s%s", i > 0 ? ", " : "", names[i]);
    }
}

static cairn_status check_group(const struct group_spec *g, const char *const *optimizers,
                                struct sentence *why)
{
    CAIRN_TRY(text_check("a group's name", g->name, CAIRN_NAME_MAX, why));
    if (g->optimizer == NULL || !listed(optimizers, g->optimizer)) {
        char known[200];
        join(optimizers, known);
        return fail_with(why, CAIRN_ERR_UNSUPPORTED,
                         "group \"%s\": there is no optimizer \"%s\"; known: %s", g->name,
                         quotable(g->optimizer), known);
    }
    char subject[CAIRN_NAME_MAX + 16];
    snprintf(subject, sizeof subject, "group \"%s\": ", g->name);
    CAIRN_TRY(spec_fields_check(&group_fields, g, subject, why));
    if (g->nesterov && g->momentum <= 0) {
        return fail_with(why, CAIRN_ERR_INVALID, "group \"%s\": nesterov needs a momentum above 0",
                         g->name);
    }
    if (g->ema_schedule != CAIRN_EMA_CONSTANT && g->ema == 0)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "group \"%s\": ema_schedule %s needs an ema above 0", g->name,
                         capability_name(CAIRN_CAPABILITY_EMA, (int)g->ema_schedule));
    return schedule_check(&g->schedule, g->lr, g->name, why);
}

static cairn_status check_choices(const struct tensor_spec *t, struct sentence *why)
{
    const struct {
        enum capability_field field;
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
        status = capability_check(choices[i].field, choices[i].value, subject, why);
    }
    return status;
}

/* Checks the numbers of an initializer; they become fp32 on the shards. */
static cairn_status check_init(const struct tensor_spec *t, struct sentence *why)
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
    return fail_with(why, CAIRN_ERR_INVALID,
                     "tensor \"%s\": init is %s with a %g, b %g, seed %" PRIu64 "; allowed: %s",
                     t->name, capability_name(CAIRN_CAPABILITY_INIT, (int)init->kind), init->a,
                     init->b, init->seed, rule);
}

/* Refuses properties of a tensor that cannot be combined. A blob is bytes and nothing else: its bytes are
 * never used as numbers. */
static cairn_status check_pairs(const struct tensor_spec *t, struct sentence *why)
{
    if (t->alias_of != NULL) return CAIRN_OK; // an alias has the wire of its target
    const struct spec_refusal *refused = combination_refused(CAIRN_COMBINATION_OF_TENSOR, t);
    const char *rule = refused != NULL ? refused->why : NULL;
    if (t->kind == CAIRN_BLOB && (t->wire != CAIRN_U8 || t->master != CAIRN_U8))
        rule = "a blob is bytes: wire and master 5 (u8)";
    else if (t->kind == CAIRN_BLOB && t->shape.rank != 1)
        rule = "a blob is bytes in a row: rank 1, shape [bytes]";
    if (rule == NULL) return CAIRN_OK;
    return fail_with(why, refused != NULL ? refused->status : CAIRN_ERR_INVALID,
                     "tensor \"%s\": kind is %s, wire %s, master %s, rank %u; allowed: %s", t->name,
                     capability_name(CAIRN_CAPABILITY_KIND, (int)t->kind),
                     dtype_label((int)t->wire), dtype_label((int)t->master), t->shape.rank, rule);
}

/* Checks the shape, and adds the tensor's elements to *elems. */
static cairn_status check_shape(const struct tensor_spec *t, uint64_t *elems, struct sentence *why)
{
    if (shape_check(&t->shape) != CAIRN_OK) {
        return fail_with(why, CAIRN_ERR_INVALID,
                         "tensor \"%s\": rank %u or its number of elements is over the limits "
                         "(rank %d, 2^48 elements)",
                         t->name, t->shape.rank, CAIRN_RANK_MAX);
    }
    const uint64_t own = geometry_of(&t->shape).elems;
    if (own > CAIRN_SPEC_ELEMS_MAX - *elems) {
        return fail_with(why, CAIRN_ERR_INVALID,
                         "tensor \"%s\": with it the job has more than 2^48 elements", t->name);
    }
    *elems += own;
    return CAIRN_OK;
}

/* The groups of a spec sorted by name, so that each of a million tensors finds its group quickly. */
struct group_table {
    const struct group_spec *group[CAIRN_SPEC_GROUPS_MAX];
    bool used[CAIRN_SPEC_GROUPS_MAX];
    size_t count;
};

static int group_order(const void *a, const void *b)
{
    const struct group_spec *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static cairn_status list_groups(const struct job_spec_data *spec, struct group_table *table,
                                struct sentence *why)
{
    table->count = spec->group_count;
    for (size_t i = 0; i < table->count; i++) {
        table->group[i] = &spec->groups[i];
        table->used[i] = false;
    }
    if (table->count > 1) qsort(table->group, table->count, sizeof table->group[0], group_order);
    for (size_t i = 1; i < table->count; i++) {
        if (group_order(&table->group[i - 1], &table->group[i]) != 0) continue;
        return fail_with(why, CAIRN_ERR_INVALID,
                         "two groups have the name \"%s\"; names are unique in a job",
                         table->group[i]->name);
    }
    return CAIRN_OK;
}

static cairn_status check_membership(const struct tensor_spec *t, struct group_table *table,
                                     struct sentence *why)
{
    if (t->kind != CAIRN_TRAINED && t->frozen)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "tensor \"%s\": it is not trained, so it cannot be frozen", t->name);
    if (t->kind != CAIRN_TRAINED) return CAIRN_OK;
    const struct group_spec key = { .name = t->group }, *key_at = &key;
    const struct group_spec **found = NULL;
    if (t->group != NULL && table->count > 0) {
        found = bsearch(&key_at, table->group, table->count, sizeof table->group[0], group_order);
    }
    if (found == NULL) {
        return fail_with(why, CAIRN_ERR_INVALID, "tensor \"%s\": its group \"%s\" is not declared",
                         t->name, quotable(t->group));
    }
    table->used[found - table->group] = true;
    return CAIRN_OK;
}

static cairn_status check_tensor_names(const struct job_spec_data *spec, size_t i,
                                       struct sentence *why)
{
    const struct tensor_spec *t = &spec->tensors[i];
    char what[CAIRN_NAME_MAX + 32];
    snprintf(what, sizeof what, "the name of tensor number %zu", i);
    CAIRN_TRY(text_check(what, t->name, CAIRN_NAME_MAX, why));
    if (strcmp(t->name, "__metadata__") == 0)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "%s is reserved: safetensors files keep \"__metadata__\" for themselves; "
                         "choose another",
                         what);
    snprintf(what, sizeof what, "tensor \"%s\": its unit", t->name);
    return text_check(what, t->unit, CAIRN_NAME_MAX, why);
}

/* Checks the number of steps before the job's beginning that did not update the tensor. */
static cairn_status check_missed(const struct job_spec_data *spec, const struct tensor_spec *t,
                                 struct sentence *why)
{
    if (t->steps_missed == 0) return CAIRN_OK;
    if (t->kind != CAIRN_TRAINED)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "tensor %s: steps_missed is %" PRIu64
                         ", and it is not trained; allowed: 0",
                         t->name, t->steps_missed);
    if (t->steps_missed <= spec->first_step) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_INVALID,
                     "tensor %s: steps_missed is %" PRIu64 ", and the job begins at step %" PRIu64
                     " (first_step); allowed: at most that",
                     t->name, t->steps_missed, spec->first_step);
}

static cairn_status check_tensors(const struct job_spec_data *spec, struct group_table *table,
                                  struct sentence *why)
{
    uint64_t elems = 0;
    for (size_t i = 0; i < spec->tensor_count; i++) {
        const struct tensor_spec *t = &spec->tensors[i];
        cairn_status status = check_tensor_names(spec, i, why);
        if (status == CAIRN_OK) status = check_choices(t, why);
        if (status == CAIRN_OK) status = check_init(t, why);
        if (status == CAIRN_OK) status = check_pairs(t, why);
        if (status == CAIRN_OK) status = check_missed(spec, t, why);
        if (status == CAIRN_OK) status = check_shape(t, &elems, why);
        if (status == CAIRN_OK) status = check_membership(t, table, why);
        if (status != CAIRN_OK) return status;
    }
    for (size_t i = 0; i < table->count; i++) {
        if (table->used[i]) continue;
        return fail_with(why, CAIRN_ERR_INVALID,
                         "group \"%s\" has no trained tensor: a pattern that matched nothing? "
                         "Remove the group or name it in a tensor",
                         table->group[i]->name);
    }
    return CAIRN_OK;
}

/* ---- names of tensors against each other: twice the same, and aliases ---- */

static int tensor_order_names(const void *a, const void *b)
{
    const struct tensor_spec *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static cairn_status refuse_alias(const struct tensor_spec *t, const char *what,
                                 struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_INVALID, "tensor \"%s\": alias_of names %s", t->name, what);
}

/* True if the box has extents of at least 1 and none ends outside the shape; nothing overflows. */
static bool box_inside(const struct cairn_box *box, const struct shape *shape)
{
    if (box->rank != shape->rank) return false;
    for (uint32_t d = 0; d < shape->rank; d++) {
        if (box->start[d] > shape->dim[d] || box->extent[d] == 0) return false;
        if (box->extent[d] > shape->dim[d] - box->start[d]) return false;
    }
    return true;
}

static cairn_status check_alias(const struct tensor_spec *t, const struct tensor_spec *target,
                                struct sentence *why)
{
    if (target == NULL) return refuse_alias(t, "no tensor of the job", why);
    if (target->alias_of != NULL)
        return refuse_alias(t, "an alias; name the tensor that that one stands for", why);
    const struct spec_refusal *refused = combination_refused(CAIRN_COMBINATION_OF_TARGET, target);
    if (refused != NULL) return refuse_alias(t, refused->why, why);
    if (t->kind != CAIRN_FROZEN || t->shape.rank != 1 || t->shape.dim[0] != 0)
        return refuse_alias(t, "a tensor, but it has a kind or a shape of its own", why);
    if (t->wire != target->wire)
        return refuse_alias(t, "a tensor of another wire dtype; they are one tensor", why);
    if (t->init.kind != CAIRN_INIT_NONE)
        return refuse_alias(t, "a tensor, so it has no init of its own; give that one the init",
                            why);
    if (t->alias_box != NULL && !box_inside(t->alias_box, &target->shape))
        return refuse_alias(
            t, "a tensor that alias_box does not lie inside of, or alias_box is empty", why);
    return CAIRN_OK;
}

static cairn_status check_sorted(const struct tensor_spec *const *sorted, size_t count,
                                 struct sentence *why)
{
    for (size_t i = 1; i < count; i++) {
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) != 0) continue;
        return fail_with(why, CAIRN_ERR_INVALID,
                         "two tensors have the name \"%s\"; names are unique in a job",
                         sorted[i]->name);
    }
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < count && status == CAIRN_OK; i++) {
        const struct tensor_spec *t = sorted[i];
        if (t->alias_of == NULL && t->alias_box != NULL) {
            return fail_with(why, CAIRN_ERR_INVALID,
                             "tensor \"%s\": it has an alias_box but no alias_of", t->name);
        }
        if (t->alias_of == NULL) continue;
        const struct tensor_spec key = { .name = t->alias_of }, *key_at = &key;
        const struct tensor_spec *const *target = bsearch(&key_at, sorted, count, sizeof *sorted,
                                                          tensor_order_names);
        status = check_alias(t, target != NULL ? *target : NULL, why);
    }
    return status;
}

/* Checks that no name occurs twice, and that every alias names an existing tensor that is no alias, with
 * its box inside that tensor. All other properties of each tensor were checked before. The errors are those
 * of spec_check. */
static cairn_status spec_check_names(const struct job_spec_data *spec, struct sentence *why)
{
    const size_t count = spec->tensor_count;
    const struct tensor_spec **sorted = calloc(count, sizeof *sorted);
    if (sorted == NULL) return CAIRN_ERR_NO_MEMORY;
    for (size_t i = 0; i < count; i++) sorted[i] = &spec->tensors[i];
    qsort(sorted, count, sizeof *sorted, tensor_order_names);
    const cairn_status status = check_sorted(sorted, count, why);
    free(sorted);
    return status;
}

/* Checks init_from and init_prefix; spec.c sets them. */
static cairn_status spec_check_origin(const struct job_spec_data *spec, struct sentence *why)
{
    const char *path = spec->init_from, *prefix = spec->init_prefix;
    cairn_status status = CAIRN_OK;
    if (path != NULL && path[0] != '/')
        return fail_with(
            why, CAIRN_ERR_INVALID,
            "init_from is not absolute: give an absolute path, which the shards look up");
    if (path != NULL) status = text_check("init_from", path, CAIRN_SPEC_PATH_MAX, why);
    if (status == CAIRN_OK && prefix != NULL && prefix[0] != '\0')
        status = text_check("init_prefix", prefix, CAIRN_NAME_MAX, why);
    if (status != CAIRN_OK) return status;
    if (prefix != NULL && path == NULL) {
        return fail_with(why, CAIRN_ERR_INVALID,
                         "init_prefix \"%s\" without init_from has no effect", prefix);
    }
    if (spec->init_nonfinite_ok && path == NULL) {
        return fail_with(why, CAIRN_ERR_INVALID,
                         "init_nonfinite_ok without init_from has no effect");
    }
    if (spec->init_extra_ok && path == NULL)
        return fail_with(why, CAIRN_ERR_INVALID, "init_extra_ok without init_from has no effect");
    return CAIRN_OK;
}

cairn_status spec_check(const struct job_spec_data *spec, const char *const *optimizers,
                        struct sentence *why)
{
    struct group_table table;
    cairn_status status = check_job(spec, why);
    if (status == CAIRN_OK) status = spec_check_origin(spec, why);
    for (size_t i = 0; i < spec->group_count && status == CAIRN_OK; i++) {
        status = check_group(&spec->groups[i], optimizers, why);
    }
    if (status == CAIRN_OK) status = list_groups(spec, &table, why);
    if (status == CAIRN_OK) status = check_tensors(spec, &table, why);
    if (status == CAIRN_OK) status = spec_check_names(spec, why);
    return status;
}

cairn_status spec_check_usable(const struct job_spec_data *spec, struct sentence *why)
{
    for (size_t i = 0; i < spec->group_count; i++) {
        const struct group_spec *g = &spec->groups[i];
        const struct hyper_info *eps = optimizer_hyper(optimizer_by_name(g->optimizer), "eps");
        if (eps == NULL || !eps->divides || (float)g->eps > 0) continue;
        return fail_with(why, CAIRN_ERR_INVALID,
                         "group \"%s\": eps is %g, and %s divides by it, as fp32: parameters "
                         "would become NaN (CAIRN_GROUP_INIT has %g)",
                         g->name, g->eps, g->optimizer, eps->value_default);
    }
    return CAIRN_OK;
}

/* ==== capability ==== */

static const char *const field_names[CAIRN_CAPABILITY_FIELD_COUNT] = {
    "kind",
    "wire",
    "reduce",
    "master",
    "place",
    "init",
    "alias",
    "schedule",
    "ema_schedule",
    "stage",
    "loss_scale_policy",
    "on_nonfinite",
    "reduce_groups",
    "on_shard_loss",
    "on_worker_loss",
    "snapshot_staging",
    "durability",
    "tiers",
    "missing_gradients",
    "combination",
};

/* Rows by field; the names of the fields are only in the list above. */
#define TABLE(X)                                                           \
    X(KIND, CAIRN_TRAINED, "trained", true)                                \
    X(KIND, CAIRN_FROZEN, "frozen", true)                                  \
    X(KIND, CAIRN_BUFFER, "buffer", true)                                  \
    X(KIND, CAIRN_BLOB, "blob", true)                                      \
    X(WIRE, CAIRN_F32, "f32", true)                                        \
    X(WIRE, CAIRN_BF16, "bf16", true)                                      \
    X(WIRE, CAIRN_F16, "f16", false)                                       \
    X(WIRE, CAIRN_F64, "f64", false)                                       \
    X(WIRE, CAIRN_U8, "u8", true)                                          \
    X(REDUCE, CAIRN_F32, "f32", true)                                      \
    X(REDUCE, CAIRN_BF16, "bf16", false)                                   \
    X(REDUCE, CAIRN_F16, "f16", false)                                     \
    X(REDUCE, CAIRN_F64, "f64", false)                                     \
    X(MASTER, CAIRN_F32, "f32", true)                                      \
    X(MASTER, CAIRN_BF16, "bf16", false)                                   \
    X(MASTER, CAIRN_F16, "f16", false)                                     \
    X(MASTER, CAIRN_F64, "f64", false)                                     \
    X(MASTER, CAIRN_U8, "u8", true)                                        \
    X(PLACE, 0, "rows", true)                                              \
    X(PLACE, 1, "whole", false)                                            \
    X(INIT, CAIRN_INIT_NONE, "none", true)                                 \
    X(INIT, CAIRN_INIT_ZEROS, "zeros", true)                               \
    X(INIT, CAIRN_INIT_ONES, "ones", true)                                 \
    X(INIT, CAIRN_INIT_CONSTANT, "constant", true)                         \
    X(INIT, CAIRN_INIT_UNIFORM, "uniform", true)                           \
    X(INIT, CAIRN_INIT_NORMAL, "normal", true)                             \
    X(ALIAS, 0, "none", true)                                              \
    X(ALIAS, 1, "whole", true)                                             \
    X(ALIAS, 2, "box, fetched", true)                                      \
    X(ALIAS, 3, "box, put or pushed", true)                                \
    X(SCHEDULE, CAIRN_SCHEDULE_CONSTANT, "constant", true)                 \
    X(SCHEDULE, CAIRN_SCHEDULE_LINEAR, "linear", true)                     \
    X(SCHEDULE, CAIRN_SCHEDULE_COSINE, "cosine", true)                     \
    X(SCHEDULE, CAIRN_SCHEDULE_WSD, "wsd", true)                           \
    X(SCHEDULE, CAIRN_SCHEDULE_TABLE, "table", true)                       \
    X(SCHEDULE, CAIRN_SCHEDULE_DRIVEN, "driven", true)                     \
    X(EMA, CAIRN_EMA_CONSTANT, "constant", true)                           \
    X(EMA, CAIRN_EMA_WARMUP, "warmup", true)                               \
    X(STAGE, 0, "state on one shard, pushed once a round", true)           \
    X(STAGE, 1, "state on all shards, pushed once a round", true)          \
    X(STAGE, 2, "every micro-batch pushed", true)                          \
    X(STAGE, 3, "as 2; the Python package keeps few units", true)          \
    X(LOSS_SCALE, CAIRN_LOSS_SCALE_FIXED, "fixed", true)                   \
    X(LOSS_SCALE, CAIRN_LOSS_SCALE_DYNAMIC, "dynamic", true)               \
    X(NONFINITE, CAIRN_NONFINITE_SKIP, "skip", true)                       \
    X(NONFINITE, CAIRN_NONFINITE_FAIL, "fail", true)                       \
    X(GROUPS, CAIRN_GROUPS_NONE, "none", true)                             \
    X(GROUPS, CAIRN_GROUPS_HOST, "host", true)                             \
    X(SHARD_LOSS, CAIRN_SHARD_LOSS_WAIT, "wait", true)                     \
    X(SHARD_LOSS, CAIRN_SHARD_LOSS_RESTORE_LATEST, "restore-latest", true) \
    X(WORKER_LOSS, CAIRN_WORKER_LOSS_REDO, "redo", true)                   \
    X(WORKER_LOSS, CAIRN_WORKER_LOSS_WAIT, "wait", true)                   \
    X(WORKER_LOSS, CAIRN_WORKER_LOSS_FAIL, "fail", true)                   \
    X(STAGING, CAIRN_SNAPSHOT_STAGING_STATE, "state", true)                \
    X(STAGING, CAIRN_SNAPSHOT_STAGING_SMALL, "small", true)                \
    X(DURABILITY, CAIRN_DURABILITY_DEFAULT, "default", true)               \
    X(DURABILITY, CAIRN_DURABILITY_PROCESS, "process", true)               \
    X(DURABILITY, CAIRN_DURABILITY_PEER, "peer", true)                     \
    X(DURABILITY, CAIRN_DURABILITY_LOG, "log", true)                       \
    X(DURABILITY, CAIRN_DURABILITY_LOG_PEER, "log+peer", true)             \
    X(TIERS, CAIRN_TIERS_TOGETHER, "together", true)                       \
    X(TIERS, CAIRN_TIERS_MOMENTS_ON_HOST, "moments on the host", false)    \
    X(TIERS, CAIRN_TIERS_PARAM_ON_HOST, "param on the host", false)        \
    X(MISSING, CAIRN_MISSING_ZERO, "zero", true)                           \
    X(MISSING, CAIRN_MISSING_LEAVE, "leave", true)

/* value, name | what is done instead; NULL: the choice is refused | in which tensor it is looked for,
 * which tensors `t` have it, with which status and sentence they are refused */
#define COMBINATIONS(X)                                                                           \
    X(GROUPS_TILES, "reduce_groups host, with tiles", "no groups; the log and job show say so",   \
      NONE, false, CAIRN_OK, "")                                                                  \
    X(PARTS_TILES, "alias of a box, declared as a tile", NULL, TILED, t->alias_box != NULL,       \
      CAIRN_ERR_UNSUPPORTED, "an alias of a box; declare what is held of its target tensor")      \
    X(BLOB_TILE, "blob, a part of it declared as a tile", NULL, CUT, t->kind == CAIRN_BLOB,       \
      CAIRN_ERR_INVALID, "a blob is held whole by every worker; list no tile of it")              \
    X(BLOB_INIT, "blob, with an init", NULL, TENSOR,                                              \
      t->kind == CAIRN_BLOB && t->init.kind != CAIRN_INIT_NONE, CAIRN_ERR_INVALID,                \
      "a blob is put: init 0 (none)")                                                             \
    X(BLOB_ALIAS, "blob, with an alias", NULL, TARGET, t->kind == CAIRN_BLOB, CAIRN_ERR_INVALID,  \
      "a blob, which has one name")                                                               \
    X(NUMBERS_U8, "u8, of what is no blob", NULL, TENSOR,                                         \
      t->kind != CAIRN_BLOB && (t->wire == CAIRN_U8 || t->master == CAIRN_U8), CAIRN_ERR_INVALID, \
      "u8 is of blobs only: kind 4 (blob), or wire and master 1 (f32)")

static const struct capability table[] = {
#define X(field, value, name, supported) \
    { CAIRN_CAPABILITY_##field, (value), (name), (supported), NULL },
    TABLE(X)
#undef X
#define X(value, name, instead, ...) \
    { CAIRN_CAPABILITY_COMBINATION, CAIRN_COMBINATION_##value, (name), false, (instead) },
        COMBINATIONS(X)
#undef X
};
#define ROWS (sizeof table / sizeof table[0])

#define X(value, name, instead, of, condition, ...)      \
    static bool has_##value(const struct tensor_spec *t) \
    {                                                    \
        (void)t;                                         \
        return condition;                                \
    }
COMBINATIONS(X)
#undef X
static const struct spec_refusal refusals[] = {
#define X(value, name, instead, of, condition, status, why) \
    { CAIRN_COMBINATION_OF_##of, has_##value, (status), (why) },
    COMBINATIONS(X)
#undef X
};

const struct spec_refusal *combination_refused(enum combination_of of,
                                               const struct tensor_spec *tensor)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++)
        if (refusals[i].of == of && refusals[i].has(tensor)) return &refusals[i];
    return NULL;
}

const struct capability *capability_table(size_t *count_out)
{
    *count_out = ROWS;
    return table;
}

const char *capability_field_name(enum capability_field field)
{
    return (unsigned)field < CAIRN_CAPABILITY_FIELD_COUNT ? field_names[field] : "?";
}

const char *capability_name(enum capability_field field, int value)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (table[i].field == field && table[i].value == value) return table[i].value_name;
    }
    return "?";
}

int capability_value(enum capability_field field, const char *name)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (table[i].field == field && strcmp(table[i].value_name, name) == 0)
            return table[i].value;
    }
    return -1;
}

/* Adds the supported values, "0 (rows), 1 (whole)", to the end of the sentence. */
static void add_supported(enum capability_field field, struct sentence *why)
{
    const char *comma = "; allowed: ";
    for (size_t i = 0; i < ROWS; i++) {
        if (table[i].field != field || !table[i].supported) continue;
        sentence_add(why, "%s%d (%s)", comma, table[i].value, table[i].value_name);
        comma = ", ";
    }
}

cairn_status capability_check(enum capability_field field, int64_t value, const char *subject,
                              struct sentence *why)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (table[i].field != field || table[i].value != value) continue;
        if (table[i].supported) return CAIRN_OK;
        sentence_set(why, "%s%s %s (%" PRId64 ") is not supported by this version", subject,
                     field_names[field], table[i].value_name, value);
        add_supported(field, why);
        return CAIRN_ERR_UNSUPPORTED;
    }
    sentence_set(why, "%s%s is %" PRId64, subject, field_names[field], value);
    add_supported(field, why);
    return CAIRN_ERR_INVALID;
}

/* ==== rank groups ==== */

cairn_status rank_groups_init(struct rank_groups *groups, uint32_t rank_count, uint32_t group_count)
{
    *groups = (struct rank_groups) { .rank_count = rank_count, .group_count = group_count };
    if (rank_count == 0 && group_count == 0) return CAIRN_OK;
    groups->ranks = calloc((size_t)rank_count + 1, sizeof *groups->ranks);
    groups->ends = calloc((size_t)group_count + 1, sizeof *groups->ends);
    if (groups->ranks != NULL && groups->ends != NULL) return CAIRN_OK;
    rank_groups_release(groups);
    return CAIRN_ERR_NO_MEMORY;
}

void rank_groups_release(struct rank_groups *groups)
{
    free(groups->ranks);
    free(groups->ends);
    *groups = (struct rank_groups) { NULL, NULL, 0, 0 };
}

cairn_status rank_groups_copy(const struct rank_groups *groups, struct rank_groups *copy_out)
{
    struct rank_groups copy;
    CAIRN_TRY(rank_groups_init(&copy, groups->rank_count, groups->group_count));
    if (copy.rank_count > 0)
        memcpy(copy.ranks, groups->ranks, copy.rank_count * sizeof *copy.ranks);
    if (copy.group_count > 0) memcpy(copy.ends, groups->ends, copy.group_count * sizeof *copy.ends);
    *copy_out = copy;
    return CAIRN_OK;
}

bool rank_groups_equal(const struct rank_groups *a, const struct rank_groups *b)
{
    if (a->rank_count != b->rank_count || a->group_count != b->group_count) return false;
    if (a->group_count == 0) return true;
    return memcmp(a->ranks, b->ranks, a->rank_count * sizeof *a->ranks) == 0 &&
           memcmp(a->ends, b->ends, a->group_count * sizeof *a->ends) == 0;
}

const uint32_t *rank_groups_at(const struct rank_groups *groups, uint32_t group,
                               uint32_t *count_out)
{
    const uint32_t first = group == 0 ? 0 : groups->ends[group - 1];
    *count_out = groups->ends[group] - first;
    return groups->ranks + first;
}

static int by_rank(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* True if no rank is in two groups. */
static bool ranks_differ(const struct rank_groups *groups)
{
    struct rank_groups sorted;
    if (rank_groups_copy(groups, &sorted) != CAIRN_OK) return false;
    bool differ = true;
    if (sorted.rank_count > 1)
        qsort(sorted.ranks, sorted.rank_count, sizeof *sorted.ranks, by_rank);
    for (uint32_t i = 1; i < sorted.rank_count; i++)
        differ &= sorted.ranks[i - 1] != sorted.ranks[i];
    rank_groups_release(&sorted);
    return differ;
}

bool rank_groups_ok(const struct rank_groups *groups)
{
    uint32_t first = 0;
    for (uint32_t g = 0; g < groups->group_count; g++) {
        const uint32_t end = groups->ends[g];
        if (end <= first || end > groups->rank_count) return false;
        for (uint32_t i = first + 1; i < end; i++)
            if (groups->ranks[i - 1] >= groups->ranks[i]) return false;
        const uint32_t before = g < 2 ? 0 : groups->ends[g - 2];
        if (g > 0 && groups->ranks[before] >= groups->ranks[first]) return false;
        first = end;
    }
    return first == groups->rank_count && ranks_differ(groups);
}

void ranks_add_text(const uint32_t *ranks, size_t rank_count, struct sentence *out)
{
    for (size_t i = 0; i < rank_count;) {
        size_t last = i;
        while (last + 1 < rank_count && ranks[last + 1] == ranks[last] + 1) last++;
        sentence_add(out, "%s%" PRIu32, i > 0 ? "," : "", ranks[i]);
        if (last > i) sentence_add(out, "-%" PRIu32, ranks[last]);
        i = last + 1;
    }
}
