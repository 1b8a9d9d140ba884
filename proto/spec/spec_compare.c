/* Comparing job specs: the hash (are they the same?) and the list of differences (where do they
 * differ?). */
#include "proto/spec/spec.h"
#include "proto/spec/spec_fields.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the hash ---- */

static void hash_number(crypto_generichash_state *state, uint64_t value)
{
    uint8_t bytes[8];
    le_put(bytes, value, sizeof bytes);
    crypto_generichash_update(state, bytes, sizeof bytes);
}

static void hash_double(crypto_generichash_state *state, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    hash_number(state, bits);
}

static void hash_text(crypto_generichash_state *state, const char *text)
{
    hash_number(state, strlen(text)); // the length first, so that no two lists have the same bytes
    crypto_generichash_update(state, (const uint8_t *)text, strlen(text));
}

static void hash_alias(crypto_generichash_state *state, const struct tensor_spec *t)
{
    const struct cairn_box *box = t->alias_box;
    hash_text(state, t->alias_of);
    hash_number(state, box != NULL ? box->rank : UINT64_MAX); // no box: all of the target
    for (uint32_t d = 0; box != NULL && d < box->rank; d++) {
        hash_number(state, box->start[d]);
        hash_number(state, box->extent[d]);
    }
}

static void hash_tensor(crypto_generichash_state *state, const struct tensor_spec *t)
{
    hash_text(state, t->name);
    hash_text(state, t->unit);
    hash_text(state, t->group);
    hash_number(state, (uint64_t)t->kind);
    hash_number(state, (uint64_t)t->wire);
    hash_number(state, (uint64_t)t->reduce);
    hash_number(state, (uint64_t)t->master);
    hash_number(state, t->whole);
    hash_number(state, t->shape.rank);
    for (uint32_t d = 0; d < t->shape.rank; d++) hash_number(state, t->shape.dim[d]);
    hash_number(state, (uint64_t)t->init.kind);
    hash_double(state, t->init.a);
    hash_double(state, t->init.b);
    hash_number(state, t->init.seed);
    hash_number(state, t->alias_of != NULL);
    if (t->alias_of != NULL) hash_alias(state, t);
    if (t->steps_missed == 0) return; // then the hash is the same as before this field existed
    hash_text(state, "steps_missed");
    hash_number(state, t->steps_missed);
}

/* Hashes the fields that every spec has. */
static void hash_fields(crypto_generichash_state *state, const struct spec_table *table,
                        const void *from)
{
    for (size_t i = 0; i < table->count; i++)
        if (table->fields[i].part < CAIRN_SPEC_LATER)
            hash_number(state, spec_field_bits(&table->fields[i], from));
}

static void hash_schedule(crypto_generichash_state *state, const struct schedule *s)
{
    hash_number(state, (uint64_t)s->kind);
    hash_fields(state, &schedule_fields, s);
    hash_number(state, s->point_count);
    for (size_t i = 0; i < s->point_count; i++) {
        hash_number(state, s->points[i].step);
        hash_double(state, s->points[i].factor);
    }
}

static void hash_group(crypto_generichash_state *state, const struct group_spec *g)
{
    hash_text(state, g->name);
    hash_text(state, g->optimizer);
    struct group_spec fields = *g;                                // borrows everything
    if (g->schedule.kind == CAIRN_SCHEDULE_DRIVEN) fields.lr = 0; // the first lr is the trainer's
    hash_fields(state, &group_fields, &fields);
    hash_schedule(state, &g->schedule);
    for (size_t i = 0; i < group_fields.count; i++) {
        const struct spec_field *field = &group_fields.fields[i];
        if (field->part != CAIRN_SPEC_LATER || spec_field_is_default(field, g)) continue;
        hash_text(state, field->name);
        hash_number(state, spec_field_bits(field, g));
    }
}

/* Hashes row `first`, together with the rows after it that belong to the same hash entry; returns the row
 * after them. */
static size_t hash_later(crypto_generichash_state *state, size_t first,
                         const struct job_spec_data *spec)
{
    const struct spec_field *fields = spec_fields.fields;
    const bool is_policy = fields[first].part == CAIRN_SPEC_POLICY;
    bool any = false;
    size_t end = first + 1;
    while (is_policy && end < spec_fields.count && fields[end].part == CAIRN_SPEC_POLICY) end++;
    for (size_t i = first; i < end; i++) any = any || !spec_field_is_default(&fields[i], spec);
    if (!any) return end; // then the hash is the same as before these fields existed
    hash_text(state, is_policy ? "policy" : fields[first].name);
    for (size_t i = first; i < end; i++)
        if (fields[i].kind != CAIRN_SPEC_FLAG)
            hash_number(state, spec_field_bits(&fields[i], spec));
    return end;
}

static void hash_canonical(const struct job_spec_data *spec, uint8_t hash_out[32])
{
    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, 32);
    hash_text(&state, "cairn job spec 2");
    hash_fields(&state, &spec_fields, spec);
    hash_text(&state, spec->init_from != NULL ? spec->init_from : "");
    hash_text(&state, spec->init_prefix != NULL ? spec->init_prefix : "");
    hash_number(&state, spec->group_count);
    for (size_t i = 0; i < spec->group_count; i++) hash_group(&state, &spec->groups[i]);
    hash_number(&state, spec->tensor_count);
    for (size_t i = 0; i < spec->tensor_count; i++) hash_tensor(&state, &spec->tensors[i]);
    for (size_t i = 0; i < spec_fields.count;)
        i = spec_fields.fields[i].part < CAIRN_SPEC_LATER ? i + 1 : hash_later(&state, i, spec);
    crypto_generichash_final(&state, hash_out, 32);
}

cairn_status spec_hash(const struct job_spec_data *spec, uint8_t hash_out[32])
{
    struct job_spec_data sorted;
    CAIRN_TRY(spec_copy(spec, &sorted));
    spec_canonicalize(&sorted);
    hash_canonical(&sorted, hash_out);
    spec_release(&sorted);
    return CAIRN_OK;
}

bool spec_schedules_hash(const struct job_spec_data *spec, uint8_t hash_out[32])
{
    crypto_generichash_state state;
    bool any = false;
    crypto_generichash_init(&state, NULL, 0, 32);
    hash_text(&state, "cairn schedules 1");
    for (size_t i = 0; i < spec->group_count; i++) {
        const struct group_spec *g = &spec->groups[i];
        any |= g->frozen || g->schedule.kind != CAIRN_SCHEDULE_CONSTANT ||
               g->schedule.warmup_steps != 0;
        hash_text(&state, g->name);
        hash_number(&state, g->frozen);
        hash_schedule(&state, &g->schedule);
    }
    for (size_t i = 0; i < spec->tensor_count; i++) {
        if (!spec->tensors[i].frozen) continue;
        any = true;
        hash_text(&state, spec->tensors[i].name);
    }
    for (size_t i = 0; i < spec->group_count; i++) {
        const struct group_spec *g = &spec->groups[i];
        if (g->ema == 0) continue;
        any = true;
        hash_text(&state, "\nema"); // no tensor has such a name
        hash_text(&state, g->name);
        hash_double(&state, g->ema);
        hash_number(&state, (uint64_t)g->ema_schedule);
    }
    crypto_generichash_final(&state, hash_out, 32);
    return any;
}

/* ---- the differences ---- */

struct diff {
    size_t found, most;
    difference_fn sink;
    void *context;
    const char
        *wire; /* key of a setting for all tensors, if all here have one wire dtype; else NULL */
    /* the object that is compared now (struct spec_difference) */
    enum spec_object object;
    const char *name;
    uint32_t point;
};

/* The setting that turns the servers' value into the one here. */
struct way {
    const char *key, *value;
    enum spec_change change;
};
static const struct way no_way = { NULL, NULL, CAIRN_SPEC_NEVER };

static void report(struct diff *diff, const struct spec_difference *difference)
{
    if (diff->found++ < diff->most) diff->sink(diff->context, difference);
}

/* Reports that a field of the object has the value `here` in the worker's spec, and `there` in the
 * servers' spec. */
static void differ(struct diff *diff, const char *field, const char *here, const char *there,
                   struct way way)
{
    report(diff, &(struct spec_difference) { .object = diff->object,
                                             .name = diff->name,
                                             .field = field,
                                             .point = diff->point,
                                             .here = here,
                                             .there = there,
                                             .key = way.key,
                                             .value = way.value,
                                             .change = way.change });
}

/* Reports the object, a group or a tensor, which only one side has. */
static void differ_whole(struct diff *diff, bool is_here)
{
    report(diff, &(struct spec_difference) { .object = diff->object,
                                             .name = diff->name,
                                             .here = is_here ? diff->name : NULL,
                                             .there = is_here ? NULL : diff->name,
                                             .change = CAIRN_SPEC_NEVER });
}

void difference_text(const struct spec_difference *d, const char *here, const char *there,
                     char out[static CAIRN_DIFFERENCE_TEXT_MAX])
{
    static const char *const nouns[] = { "job", "group", "tensor" };
    const size_t room = CAIRN_DIFFERENCE_TEXT_MAX;
    char object[CAIRN_NAME_MAX + 16], field[64];
    snprintf(object, sizeof object, "%s%s%s", nouns[d->object], d->name != NULL ? " " : "",
             d->name != NULL ? d->name : "");
    if (d->field == NULL) {
        snprintf(out, room, d->there == NULL ? "%s: %s, but not %s" : "%s: missing %s, it is %s",
                 object, here, there);
        return;
    }
    if (d->point > 0)
        snprintf(field, sizeof field, "point %u is", d->point - 1);
    else
        snprintf(field, sizeof field, "%s", d->field);
    snprintf(out, room, "%s: %s %s %s, %s %s", object, field, d->here != NULL ? d->here : "?", here,
             d->there != NULL ? d->there : "others, which it began with,", there);
}

/* "[512,784]"; "[]" for a scalar. */
static const char *shape_text(const struct shape *shape, char text[static 180])
{
    size_t used = (size_t)snprintf(text, 180, "[");
    for (uint32_t d = 0; d < shape->rank; d++) {
        used += (size_t)snprintf(text + used, 180 - used, "%s%" PRIu64, d > 0 ? "," : "",
                                 shape->dim[d]);
    }
    snprintf(text + used, 180 - used, "]");
    return text;
}

static bool same_shape(const struct shape *a, const struct shape *b)
{
    return a->rank == b->rank && memcmp(a->dim, b->dim, a->rank * sizeof a->dim[0]) == 0;
}

static void differ_text(struct diff *diff, const char *field, const char *here, const char *there)
{
    if (strcmp(here, there) != 0) differ(diff, field, here, there, no_way);
}

static void differ_dtype(struct diff *diff, const char *field, cairn_dtype here, cairn_dtype there)
{
    differ_text(diff, field, dtype_label((int)here), dtype_label((int)there));
}

static void differ_wire(struct diff *diff, const struct tensor_spec *here,
                        const struct tensor_spec *there)
{
    char key[CAIRN_NAME_MAX + 16];
    const char *mine = dtype_label((int)here->wire), *theirs = dtype_label((int)there->wire);
    if (strcmp(mine, theirs) == 0) return;
    snprintf(key, sizeof key, "%s.wire", here->name);
    const struct way way = { diff->wire != NULL ? diff->wire : key, mine, CAIRN_SPEC_REOPENED };
    const bool is_blob = here->kind == CAIRN_BLOB || there->kind == CAIRN_BLOB;
    differ(diff, "wire dtype", mine, theirs, is_blob ? no_way : way);
}

/* Writes "no alias" or "alias of wte [0,8)x[0,4)"; the box is left out if the alias names all of the
 * target. */
static const char *alias_text(const struct tensor_spec *t, char text[static 700])
{
    const struct cairn_box *box = t->alias_box;
    if (t->alias_of == NULL) return "no alias";
    size_t used = (size_t)snprintf(text, 700, "alias of %s", t->alias_of);
    for (uint32_t d = 0; box != NULL && d < box->rank && used < 700; d++) {
        used += (size_t)snprintf(text + used, 700 - used, "%s[%" PRIu64 ",%" PRIu64 ")",
                                 d > 0 ? "x" : " ", box->start[d], box->start[d] + box->extent[d]);
    }
    return text;
}

/* "put"; "uniform(-0.1, 0.1, seed 7)". */
static const char *init_text(const struct cairn_init *init, char text[static 180])
{
    const char *name = capability_name(CAIRN_CAPABILITY_INIT, (int)init->kind);
    if (init->kind == CAIRN_INIT_NONE) return "put";
    snprintf(text, 180, "%s(%.17g, %.17g, seed %" PRIu64 ")", name, init->a, init->b, init->seed);
    return text;
}

/* Returns the group's name. A tensor that is not trained has no group: for it "(none)" is returned, which
 * cannot be a name. */
static const char *name_or_none(const char *name)
{
    return name[0] != '\0' ? name : "(none)";
}

static void diff_tensor(struct diff *diff, const struct tensor_spec *here,
                        const struct tensor_spec *there)
{
    char a[180], b[180], alias_a[700], alias_b[700];
    if (!same_shape(&here->shape, &there->shape))
        differ_text(diff, "shape", shape_text(&here->shape, a), shape_text(&there->shape, b));
    differ_text(diff, "kind", capability_name(CAIRN_CAPABILITY_KIND, (int)here->kind),
                capability_name(CAIRN_CAPABILITY_KIND, (int)there->kind));
    differ_wire(diff, here, there);
    differ_dtype(diff, "reduce dtype", here->reduce, there->reduce);
    differ_dtype(diff, "master dtype", here->master, there->master);
    differ_text(diff, "group", name_or_none(here->group), name_or_none(there->group));
    differ_text(diff, "unit", name_or_none(here->unit), name_or_none(there->unit));
    differ_text(diff, "placement", here->whole ? "whole" : "rows", there->whole ? "whole" : "rows");
    differ_text(diff, "alias", alias_text(here, alias_a), alias_text(there, alias_b));
    differ_text(diff, "initial state", init_text(&here->init, a), init_text(&there->init, b));
    snprintf(a, sizeof a, "%" PRIu64, here->steps_missed);
    if (here->steps_missed != there->steps_missed) // the job's own spec does not keep it
        differ(diff, "steps_missed", a, NULL, no_way);
}

/* Reports how one field of the job, of a group or of a group's schedule differs, and (if may_change) which
 * amendment changes it. */
static void diff_field(struct diff *diff, const struct spec_field *field, bool may_change,
                       const void *here, const void *there)
{
    char key[CAIRN_NAME_MAX + 32];
    char mine[CAIRN_SETTING_TEXT_MAX + 1], theirs[CAIRN_SETTING_TEXT_MAX + 1];
    const uint64_t bits = spec_field_bits(field, here);
    const uint64_t was = spec_field_bits(field, there);
    const bool of_job = diff->object == CAIRN_SPEC_OF_JOB;
    if (bits == was) return;
    snprintf(key, sizeof key, "%s%s%s", of_job ? "" : diff->name, of_job ? "" : ".", field->name);
    spec_setting_text(field, here, mine);
    spec_setting_text(field, there, theirs);
    const struct way way = { key, mine, spec_change_of(field, was, bits) };
    differ(diff, field->name, mine, theirs,
           may_change && way.change != CAIRN_SPEC_NEVER ? way : no_way);
}

static void diff_fields(struct diff *diff, const struct spec_table *table, bool may_change,
                        const void *here, const void *there)
{
    for (size_t i = 0; i < table->count; i++)
        diff_field(diff, &table->fields[i], may_change, here, there);
}

/* Writes "0:1,30:0.5"; returns NULL if that is too long. */
static const char *points_text(const struct schedule *s, char *text, size_t room)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < s->point_count; i++) {
        const int n = snprintf(text + used, room - used, "%s%" PRIu64 ":%.17g", i > 0 ? "," : "",
                               s->points[i].step, s->points[i].factor);
        if (n < 0 || (size_t)n >= room - used) return NULL;
        used += (size_t)n;
    }
    return text;
}

/* Reports only the first point that differs, since a table may have a thousand points. */
static void diff_points(struct diff *diff, bool may_change, const struct schedule *here,
                        const struct schedule *there)
{
    char text[512], key[CAIRN_NAME_MAX + 32], mine[64], theirs[64];
    snprintf(key, sizeof key, "%s.points", diff->name);
    const struct way points = { key, points_text(here, text, sizeof text), CAIRN_SPEC_NEXT_ROUND };
    const struct way way = may_change ? points : no_way;
    if (here->point_count != there->point_count) {
        snprintf(mine, sizeof mine, "%zu", here->point_count);
        snprintf(theirs, sizeof theirs, "%zu", there->point_count);
        differ(diff, "point_count", mine, theirs, way);
    }
    for (size_t i = 0; i < here->point_count && i < there->point_count; i++) {
        const struct cairn_schedule_point *a = &here->points[i], *b = &there->points[i];
        if (a->step == b->step && memcmp(&a->factor, &b->factor, sizeof a->factor) == 0) continue;
        snprintf(mine, sizeof mine, "(%" PRIu64 ", %.17g)", a->step, a->factor);
        snprintf(theirs, sizeof theirs, "(%" PRIu64 ", %.17g)", b->step, b->factor);
        diff->point = (uint32_t)i + 1;
        differ(diff, "points", mine, theirs, way);
        diff->point = 0;
        return;
    }
}

static void diff_schedule(struct diff *diff, bool may_change, const struct schedule *here,
                          const struct schedule *there)
{
    char key[CAIRN_NAME_MAX + 32];
    const char *mine = schedule_name((int)here->kind);
    snprintf(key, sizeof key, "%s.schedule", diff->name);
    const struct way way = { key, mine, CAIRN_SPEC_NEXT_ROUND };
    if (here->kind != there->kind)
        differ(diff, "schedule", mine, schedule_name((int)there->kind), may_change ? way : no_way);
    diff_fields(diff, &schedule_fields, may_change, here, there);
    diff_points(diff, may_change, here, there);
}

/* False if the group's state belongs to another optimizer, or its learning rate comes from another source:
 * no setting can change that. */
static bool group_may_change(const struct group_spec *here, const struct group_spec *there)
{
    struct group_hyper a, b;
    return strcmp(here->optimizer, there->optimizer) == 0 &&
           (here->schedule.kind == CAIRN_SCHEDULE_DRIVEN) ==
               (there->schedule.kind == CAIRN_SCHEDULE_DRIVEN) &&
           group_hyper_of_spec(here, &a, NULL) == CAIRN_OK &&
           group_hyper_of_spec(there, &b, NULL) == CAIRN_OK &&
           ((optimizer_planes(&a) ^ optimizer_planes(&b)) & ~(1u << CAIRN_PLANE_EMA)) == 0;
}

static void diff_group(struct diff *diff, const struct group_spec *here,
                       const struct group_spec *there)
{
    const bool may_change = group_may_change(here, there);
    differ_text(diff, "optimizer", here->optimizer, there->optimizer);
    struct group_spec mine = *here; // borrows everything
    if (here->schedule.kind == CAIRN_SCHEDULE_DRIVEN && there->schedule.kind == here->schedule.kind)
        mine.lr = there->lr; // each trainer may begin with any lr
    diff_fields(diff, &group_fields, may_change, &mine, there);
    diff_schedule(diff, may_change, &here->schedule, &there->schedule);
}

/* NULL means no path. */
static void differ_path(struct diff *diff, const char *field, const char *here, const char *there)
{
    char mine[CAIRN_SPEC_PATH_MAX + 3], theirs[CAIRN_SPEC_PATH_MAX + 3];
    snprintf(mine, sizeof mine, "\"%s\"", here != NULL ? here : "");
    snprintf(theirs, sizeof theirs, "\"%s\"", there != NULL ? there : "");
    differ_text(diff, field, mine, theirs);
}

static void diff_job(struct diff *diff, const struct job_spec_data *here,
                     const struct job_spec_data *there)
{
    diff->object = CAIRN_SPEC_OF_JOB;
    diff->name = NULL; // two jobs whose names differ have no common name
    differ_text(diff, "name", here->name, there->name);
    diff->name = there->name;
    diff_fields(diff, &spec_fields, true, here, there);
    differ_path(diff, "init_from", here->init_from, there->init_from);
    differ_path(diff, "init_prefix", here->init_prefix, there->init_prefix);
}

/* Tells which of two sorted lists has the smaller next name: < 0 here, > 0 there, 0 both have the same. */
static int merge_order(const char *here, const char *there)
{
    if (here == NULL) return 1;
    if (there == NULL) return -1;
    return strcmp(here, there);
}

static void diff_groups(struct diff *diff, const struct job_spec_data *here,
                        const struct job_spec_data *there)
{
    for (size_t i = 0, j = 0; i < here->group_count || j < there->group_count;) {
        const struct group_spec *a = i < here->group_count ? &here->groups[i] : NULL;
        const struct group_spec *b = j < there->group_count ? &there->groups[j] : NULL;
        const int order = merge_order(a != NULL ? a->name : NULL, b != NULL ? b->name : NULL);
        diff->object = CAIRN_SPEC_OF_GROUP;
        diff->name = order > 0 ? b->name : a->name;
        if (order != 0) differ_whole(diff, order < 0);
        if (order == 0) diff_group(diff, a, b);
        i += order <= 0;
        j += order >= 0;
    }
}

static void diff_tensors(struct diff *diff, const struct job_spec_data *here,
                         const struct job_spec_data *there)
{
    for (size_t i = 0, j = 0; i < here->tensor_count || j < there->tensor_count;) {
        const struct tensor_spec *a = i < here->tensor_count ? &here->tensors[i] : NULL;
        const struct tensor_spec *b = j < there->tensor_count ? &there->tensors[j] : NULL;
        const int order = merge_order(a != NULL ? a->name : NULL, b != NULL ? b->name : NULL);
        diff->object = CAIRN_SPEC_OF_TENSOR;
        diff->name = order > 0 ? b->name : a->name;
        if (order != 0) differ_whole(diff, order < 0);
        if (order == 0) diff_tensor(diff, a, b);
        i += order <= 0;
        j += order >= 0;
    }
}

/* True if all tensors except blobs and aliases have the same wire dtype. */
static bool has_one_wire(const struct job_spec_data *spec)
{
    const struct tensor_spec *first = NULL;
    for (size_t i = 0; i < spec->tensor_count; i++) {
        const struct tensor_spec *t = &spec->tensors[i];
        if (t->kind == CAIRN_BLOB || t->alias_of != NULL) continue;
        if (first != NULL && t->wire != first->wire) return false;
        first = t;
    }
    return first != NULL;
}

size_t spec_diff(const struct job_spec_data *here, const struct job_spec_data *there, size_t most,
                 difference_fn sink, void *context)
{
    struct diff diff = { .most = most, .sink = sink, .context = context };
    if (most > 0 && has_one_wire(here)) diff.wire = "wire";
    diff_job(&diff, here, there);
    diff_groups(&diff, here, there);
    diff_tensors(&diff, here, there);
    return diff.found;
}

/* ---- what joins what ---- */

uint32_t policy_durable_within_s(const struct policy *policy)
{
    return policy->snapshot_durable_within_s > 0 ? policy->snapshot_durable_within_s
                                                 : CAIRN_SPEC_DURABLE_S;
}

uint32_t policy_prepare_within_s(const struct policy *policy)
{
    const uint32_t third_s = policy_durable_within_s(policy) / 3;
    return third_s < CAIRN_SPEC_PREPARE_S_MAX ? third_s : CAIRN_SPEC_PREPARE_S_MAX;
}

bool policy_same(const struct policy *a, const struct policy *b)
{
    const struct job_spec_data of_a = { .policy = *a }, of_b = { .policy = *b };
    for (size_t i = 0; i < spec_fields.count; i++) {
        const struct spec_field *field = &spec_fields.fields[i];
        if (spec_field_bits(field, &of_a) != spec_field_bits(field, &of_b)) return false;
    }
    return true;
}

struct job_spec_data spec_with_workers(const struct job_spec_data *spec,
                                       const struct job_spec_data *job)
{
    struct job_spec_data copy = *spec;
    const uint32_t n = spec->workers_max;
    if (n == spec->workers_min && n >= job->workers_min &&
        (job->workers_max == 0 || n <= job->workers_max)) {
        copy.workers_min = job->workers_min;
        copy.workers_max = job->workers_max;
    }
    copy.spread = job->spread; // no worker declares it
    return copy;
}

/* The hash of the spec without its numbers of workers. */
static cairn_status hash_without_workers(const struct job_spec_data *spec, uint8_t hash_out[32])
{
    struct job_spec_data copy = *spec; // borrows everything
    copy.workers_min = copy.workers_max = 0;
    return spec_hash(&copy, hash_out);
}

static bool is_former(const struct job_spec_data *spec, const struct job_spec_data *job,
                      bool has_workers)
{
    uint8_t hash[32];
    if (spec_hash(spec, hash) == CAIRN_OK && spec_was(job, hash)) return true;
    return has_workers && hash_without_workers(spec, hash) == CAIRN_OK && spec_was(job, hash);
}

/* True if the spec has the value that the setting gave. */
static bool has_setting(const struct job_spec_data *spec, const struct spec_made *made)
{
    struct job_spec_data set;
    struct sentence why;
    enum spec_change change;
    uint8_t own[32], hash[32];
    if (spec_copy(spec, &set) != CAIRN_OK) return false;
    bool has = spec_set(&set, made->key, made->is, &change, &why) == CAIRN_OK;
    spec_canonicalize(&set);
    has = has && spec_hash(spec, own) == CAIRN_OK && spec_hash(&set, hash) == CAIRN_OK &&
          memcmp(own, hash, sizeof own) == 0;
    spec_release(&set);
    return has;
}

/* Undoes in a copy of the spec the settings by which the job was made from snapshots, the last setting
 * first. Only settings whose values the spec has are undone. The result may be a former spec of the job. */
static bool was_before_made(const struct job_spec_data *spec, const struct job_spec_data *job,
                            bool has_workers)
{
    struct job_spec_data before;
    struct sentence why;
    enum spec_change change;
    bool is_its = false;
    if (job->made_count == 0 || spec_copy(spec, &before) != CAIRN_OK) return false;
    for (size_t i = job->made_count; i-- > 0 && !is_its;) {
        const struct spec_made *made = &job->made[i];
        if (!has_setting(&before, made)) continue;
        if (spec_set(&before, made->key, made->was, &change, &why) != CAIRN_OK) break;
        spec_canonicalize(&before);
        is_its = is_former(&before, job, has_workers);
    }
    spec_release(&before);
    return is_its;
}

bool spec_joins(const struct job_spec_data *spec, const struct job_spec_data *job)
{
    const struct job_spec_data mine = spec_with_workers(spec, job);
    if (spec_diff(&mine, job, 0, NULL, NULL) == 0) return true;
    if (job->former_count == 0) return false;
    const bool has_workers = mine.workers_min == job->workers_min &&
                             mine.workers_max == job->workers_max;
    return is_former(spec, job, has_workers) || was_before_made(spec, job, has_workers);
}

cairn_status spec_note_former(struct job_spec_data *spec)
{
    uint8_t hash[32];
    cairn_status status = spec_hash(spec, hash);
    if (status == CAIRN_OK) status = spec_add_former(spec, hash);
    if (status == CAIRN_OK) status = hash_without_workers(spec, hash);
    return status == CAIRN_OK ? spec_add_former(spec, hash) : status;
}

/* ---- by which settings a job was made of a snapshot ---- */

struct made_rows {
    struct job_spec_data *next;
    size_t count; /* the last `count` rows of `next` are being noted */
    cairn_status status;
};

static struct spec_made *find_made(const struct made_rows *rows, const char *key)
{
    struct job_spec_data *next = rows->next;
    for (size_t i = next->made_count - rows->count; i < next->made_count; i++)
        if (strcmp(next->made[i].key, key) == 0) return &next->made[i];
    return NULL;
}

static void note_was(void *context, const struct spec_difference *d)
{
    struct made_rows *rows = context;
    if (rows->status != CAIRN_OK || d->key == NULL || d->value == NULL) return;
    if (rows->count == CAIRN_SPEC_MADE_MAX || find_made(rows, d->key) != NULL) return;
    rows->status = spec_add_made(rows->next, d->key, d->value, "");
    if (rows->status == CAIRN_OK) rows->count++;
}

/* Notes the new value of a setting. A row whose `is` stays "" matches no worker, since no field has the
 * value "". */
static void note_is(void *context, const struct spec_difference *d)
{
    struct made_rows *rows = context;
    if (rows->status != CAIRN_OK || d->key == NULL || d->value == NULL) return;
    struct spec_made *made = find_made(rows, d->key);
    if (made == NULL || made->is[0] != '\0') return;
    char *is = strdup(d->value);
    if (is == NULL) {
        rows->status = CAIRN_ERR_NO_MEMORY;
        return;
    }
    free(made->is);
    made->is = is;
}

cairn_status spec_note_made(struct job_spec_data *next, const struct job_spec_data *was)
{
    struct made_rows rows = { .next = next, .status = CAIRN_OK };
    (void)spec_diff(was, next, CAIRN_SPEC_MADE_MAX, note_was, &rows);
    if (rows.count > 0) (void)spec_diff(next, was, CAIRN_SPEC_MADE_MAX, note_is, &rows);
    return rows.status;
}
