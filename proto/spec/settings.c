#include "proto/spec/spec.h"
#include "proto/spec/spec_fields.h"

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/text.h"

/* ---- values ---- */

static const char *quotable(const char *text)
{
    return text[0] == '\0' || text_ok(text, CAIRN_NAME_MAX) ? text : "?";
}

/* Adds "; allowed: skip, fail". */
static void add_words(enum capability_field field, struct sentence *why)
{
    size_t count;
    const struct capability *row = capability_table(&count);
    const char *comma = "; allowed: ";
    for (const struct capability *end = row + count; row < end; row++) {
        if (row->field != field || !row->supported) continue;
        sentence_add(why, "%s%s", comma, row->value_name);
        comma = ", ";
    }
}

static cairn_status no_value(const char *subject, const char *name, const char *value,
                             const char *allowed, struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_INVALID, "%s%s is \"%.64s\"; allowed: %s", subject, name,
                     quotable(value), allowed);
}

static cairn_status choose(enum capability_field field, const char *subject, const char *name,
                           const char *value, int *out, struct sentence *why)
{
    *out = capability_value(field, value);
    if (*out >= 0) return capability_check(field, *out, subject, why);
    sentence_set(why, "%s%s is \"%.64s\"", subject, name, quotable(value));
    add_words(field, why);
    return CAIRN_ERR_INVALID;
}

/* Sets a field of `to`, which is a job's spec, a group or a schedule; only the field itself is checked. */
static cairn_status set_field(const struct spec_field *field, void *to, const char *subject,
                              const char *value, struct sentence *why)
{
    char *end = NULL;
    errno = 0;
    if (field->kind == CAIRN_SPEC_CHOICE) {
        int chosen;
        const cairn_status status = choose(field->capability, subject, field->name, value, &chosen,
                                           why);
        if (status == CAIRN_OK) spec_field_set_bits(field, to, (uint64_t)chosen);
        return status;
    }
    if (field->kind == CAIRN_SPEC_FLAG) {
        const bool yes = strcmp(value, "yes") == 0;
        if (!yes && strcmp(value, "no") != 0)
            return no_value(subject, field->name, value, "yes, no", why);
        spec_field_set_bits(field, to, yes);
        return CAIRN_OK;
    }
    if (field->kind == CAIRN_SPEC_COUNT) {
        const uint64_t most = field->bytes == sizeof most ? UINT64_MAX : UINT32_MAX;
        const bool digits = value[0] != '\0' && strspn(value, "0123456789") == strlen(value);
        const uint64_t number = digits ? strtoull(value, &end, 10) : 0;
        if (!digits || errno != 0 || number > most)
            return no_value(subject, field->name, value, "a whole number", why);
        spec_field_set_bits(field, to, number);
    } else {
        const double number = strtod(value, &end);
        if (end == value || *end != '\0' || number != number)
            return no_value(subject, field->name, value, "a number", why);
        spec_field_set_number(field, to, number);
    }
    return spec_field_check(field, to, subject, why);
}

/* The decimal point of the trainer's locale may be another one than '.', which all readers expect. */
static void use_point(char *number)
{
    const char *point = localeconv()->decimal_point;
    char *at = strstr(number, point);
    if (at == NULL) return;
    const size_t bytes = strlen(point);
    *at = '.';
    memmove(at + 1, at + bytes, strlen(at + bytes) + 1);
}

void spec_setting_text(const struct spec_field *field, const void *from,
                       char text_out[static CAIRN_SETTING_TEXT_MAX + 1])
{
    const uint64_t bits = spec_field_bits(field, from);
    const size_t room = CAIRN_SETTING_TEXT_MAX + 1;
    if (field->kind == CAIRN_SPEC_CHOICE) {
        snprintf(text_out, room, "%s", capability_name(field->capability, (int)bits));
    } else if (field->kind == CAIRN_SPEC_FLAG) {
        snprintf(text_out, room, "%s", bits != 0 ? "yes" : "no");
    } else if (field->kind == CAIRN_SPEC_COUNT) {
        snprintf(text_out, room, "%" PRIu64, bits);
    } else { // the shortest text that is read as the same number
        const double number = spec_field_number(field, from);
        int digits = 1;
        do snprintf(text_out, room, "%.*g", digits, number);
        while (strtod(text_out, NULL) != number && ++digits <= 17);
        use_point(text_out);
    }
}

enum spec_change spec_change_of(const struct spec_field *field, uint64_t was_bits, uint64_t bits)
{
    const bool is_stage = field->capability == CAIRN_CAPABILITY_STAGE;
    const bool is_ema = field->offset_bytes == offsetof(struct group_spec, ema) &&
                        strcmp(field->name, "ema") == 0;
    if ((is_stage || is_ema) && (was_bits == 0) != (bits == 0)) return CAIRN_SPEC_CREATED;
    return field->change;
}

/* ---- what a key names ---- */

static cairn_status set_scalar(struct job_spec_data *spec, const struct spec_field *field,
                               const char *value, enum spec_change *change_out,
                               struct sentence *why)
{
    const uint64_t was = spec_field_bits(field, spec);
    CAIRN_TRY(set_field(field, spec, "", value, why));
    const uint64_t bits = spec_field_bits(field, spec);
    if (bits != was) *change_out = spec_change_of(field, was, bits);
    if (field->capability == CAIRN_CAPABILITY_LOSS_SCALE &&
        spec->loss_scale_policy == CAIRN_LOSS_SCALE_FIXED) { // a FIXED scale does not use these
        spec->loss_scale_growth_steps = 0;
        spec->loss_scale_min = spec->loss_scale_max = 0;
    }
    return CAIRN_OK;
}

/* Sets the kind, and clears the fields that this kind does not use. */
static cairn_status set_schedule(struct schedule *schedule, const char *subject, const char *value,
                                 struct sentence *why)
{
    int chosen;
    CAIRN_TRY(choose(CAIRN_CAPABILITY_SCHEDULE, subject, "schedule", value, &chosen, why));
    const cairn_schedule_kind kind = (cairn_schedule_kind)chosen;
    const bool decays = kind == CAIRN_SCHEDULE_LINEAR || kind == CAIRN_SCHEDULE_COSINE ||
                        kind == CAIRN_SCHEDULE_WSD;
    schedule->kind = kind;
    if (kind == CAIRN_SCHEDULE_DRIVEN) schedule->warmup_steps = 0;
    if (!decays) schedule->total_steps = 0;
    if (!decays) schedule->lr_min = 0;
    if (kind != CAIRN_SCHEDULE_WSD) schedule->decay_steps = 0;
    if (kind != CAIRN_SCHEDULE_TABLE)
        schedule->point_count = 0; // the spec keeps and frees the points
    return CAIRN_OK;
}

/* Reads "0:1,1000:0.5". Returns false if the text is no list of points, or has more points than fit into
 * `points`. */
static bool read_points(const char *text, struct cairn_schedule_point *points, size_t *count_out)
{
    size_t count = 0;
    for (const char *at = text; *at != '\0'; count++) {
        char *end;
        errno = 0;
        if (count == CAIRN_SCHEDULE_POINTS_MAX || *at < '0' || *at > '9') return false;
        points[count].step = strtoull(at, &end, 10);
        if (errno != 0 || *end != ':') return false;
        at = end + 1;
        points[count].factor = strtod(at, &end);
        if (end == at || (*end != ',' && *end != '\0') || (*end == ',' && end[1] == '\0'))
            return false;
        at = *end == ',' ? end + 1 : end;
    }
    *count_out = count;
    return true;
}

static cairn_status set_points(struct job_spec_data *spec, size_t group, const char *subject,
                               const char *value, struct sentence *why)
{
    struct group_spec next = spec->groups[group];
    struct cairn_schedule_point *points = calloc(CAIRN_SCHEDULE_POINTS_MAX, sizeof *points);
    cairn_status status = points == NULL ? CAIRN_ERR_NO_MEMORY : CAIRN_OK;
    next.schedule.points = points;
    if (status == CAIRN_OK && !read_points(value, points, &next.schedule.point_count))
        status = CAIRN_ERR_INVALID;
    if (status == CAIRN_OK) status = spec_set_group(spec, group, &next);
    free(points);
    if (status == CAIRN_OK) return CAIRN_OK;
    return status == CAIRN_ERR_INVALID
               ? no_value(subject, "points", value, "STEP:FACTOR,…, at most 1024 of them", why)
               : fail_with(why, status, "out of memory for the points of a schedule");
}

static cairn_status set_hyper(struct group_spec *group, const struct spec_field *field,
                              const char *subject, const char *value, enum spec_change *change_out,
                              struct sentence *why)
{
    const uint64_t was = spec_field_bits(field, group);
    CAIRN_TRY(set_field(field, group, subject, value, why));
    const uint64_t bits = spec_field_bits(field, group);
    if (bits != was) *change_out = spec_change_of(field, was, bits);
    // only the end of an average changes so, and the average took its schedule along
    if (bits == 0 && *change_out == CAIRN_SPEC_CREATED) group->ema_schedule = CAIRN_EMA_CONSTANT;
    return CAIRN_OK;
}

static cairn_status set_in_group(struct job_spec_data *spec, size_t index, const char *name,
                                 const char *value, enum spec_change *change_out,
                                 struct sentence *why)
{
    struct group_spec *group = &spec->groups[index];
    const size_t bytes = strlen(name);
    const struct spec_field *hyper = spec_field_find(&group_fields, name, bytes);
    const struct spec_field *other = spec_field_find(&schedule_fields, name, bytes);
    char subject[CAIRN_NAME_MAX + 16];
    snprintf(subject, sizeof subject, "group %s: ", group->name);
    if (strcmp(name, "schedule") == 0) return set_schedule(&group->schedule, subject, value, why);
    if (strcmp(name, "points") == 0) return set_points(spec, index, subject, value, why);
    if (strcmp(name, "optimizer") == 0)
        return fail_with(
            why, CAIRN_ERR_UNSUPPORTED,
            "%soptimizer is \"%s\", and a job cannot go on with another: its state would not fit",
            subject, group->optimizer);
    if (hyper != NULL) return set_hyper(group, hyper, subject, value, change_out, why);
    if (other != NULL) return set_field(other, &group->schedule, subject, value, why);
    sentence_set(why, "%sit has no field \"%.64s\"; allowed: schedule, points", subject,
                 quotable(name));
    for (size_t i = 0; i < group_fields.count; i++)
        sentence_add(why, ", %s", group_fields.fields[i].name);
    for (size_t i = 0; i < schedule_fields.count; i++)
        sentence_add(why, ", %s", schedule_fields.fields[i].name);
    return CAIRN_ERR_NOT_FOUND;
}

/* Sets the wire dtype of a tensor, or (NULL) of all tensors; an alias gets the dtype of its target. */
static cairn_status set_wire(struct job_spec_data *spec, const char *tensor, const char *value,
                             enum spec_change *change_out, struct sentence *why)
{
    int wire;
    CAIRN_TRY(choose(CAIRN_CAPABILITY_WIRE, "", "wire", value, &wire, why));
    bool found = false;
    *change_out = CAIRN_SPEC_NEXT_ROUND; // nothing changes if the dtype is the same
    for (size_t i = 0; i < spec->tensor_count; i++) {
        struct tensor_spec *t = &spec->tensors[i];
        const bool named = tensor == NULL || strcmp(t->name, tensor) == 0 ||
                           (t->alias_of != NULL && strcmp(t->alias_of, tensor) == 0);
        found |= named;
        if (!named || t->kind == CAIRN_BLOB || t->wire == (cairn_dtype)wire) continue;
        t->wire = (cairn_dtype)wire;
        *change_out = CAIRN_SPEC_REOPENED;
    }
    if (found) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_NOT_FOUND, "job %s has no tensor \"%.128s\"", spec->name,
                     quotable(tensor));
}

static cairn_status no_key(const struct job_spec_data *spec, const char *key, struct sentence *why)
{
    sentence_set(why, "job %s has no field \"%.128s\"; there are: ", spec->name, quotable(key));
    for (size_t i = 0; i < spec_fields.count; i++)
        if (spec_fields.fields[i].change != CAIRN_SPEC_NEVER)
            sentence_add(why, "%s, ", spec_fields.fields[i].name);
    sentence_add(why, "wire, TENSOR.wire, GROUP.lr and others of a group");
    return CAIRN_ERR_NOT_FOUND;
}

cairn_status spec_set(struct job_spec_data *spec, const char *key, const char *value,
                      enum spec_change *change_out, struct sentence *why)
{
    const struct spec_field *field = spec_field_find(&spec_fields, key, strlen(key));
    const char *dot = strrchr(key, '.');
    char owner[CAIRN_NAME_MAX + 1];
    *change_out = CAIRN_SPEC_NEXT_ROUND;
    if (field != NULL) return set_scalar(spec, field, value, change_out, why);
    if (strcmp(key, "wire") == 0) return set_wire(spec, NULL, value, change_out, why);
    if (dot == NULL || (size_t)(dot - key) >= sizeof owner) return no_key(spec, key, why);
    snprintf(owner, sizeof owner, "%.*s", (int)(dot - key), key);
    if (strcmp(dot, ".wire") == 0) return set_wire(spec, owner, value, change_out, why);
    const size_t group = spec_find_group(spec, owner);
    if (group == SIZE_MAX) return no_key(spec, key, why);
    return set_in_group(spec, group, dot + 1, value, change_out, why);
}

/* ==== results ==== */

static void note(struct results *results, uint32_t tensor, uint64_t elems)
{
    uint32_t at = 0, *count = &results->tensor_count;
    while (at < *count && results->tensors[at].tensor < tensor) at++;
    if (at < *count && results->tensors[at].tensor == tensor) {
        results->tensors[at].elems += elems;
        return;
    }
    if (at == CAIRN_RESULTS_TENSORS) return;
    if (*count == CAIRN_RESULTS_TENSORS) --*count; // the last one now counts among the others
    memmove(&results->tensors[at + 1], &results->tensors[at],
            (*count - at) * sizeof results->tensors[0]);
    results->tensors[at].tensor = tensor;
    results->tensors[at].elems = elems;
    ++*count;
}

void results_add(struct results *results, uint32_t tensor, uint64_t elems)
{
    if (elems == 0) return;
    results->nonfinite += elems;
    note(results, tensor, elems);
}

void results_join(struct results *results, const struct results *more)
{
    results->nonfinite += more->nonfinite;
    for (uint32_t i = 0; i < more->tensor_count; i++)
        note(results, more->tensors[i].tensor, more->tensors[i].elems);
}

void results_list(const struct results *results, const struct job_spec_data *spec,
                  char out[static CAIRN_RESULTS_BYTES])
{
    const size_t room = CAIRN_RESULTS_BYTES - sizeof " and others";
    uint64_t listed = 0;
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < results->tensor_count; i++) {
        const uint32_t tensor = results->tensors[i].tensor;
        if (tensor >= spec->tensor_count) continue;
        const int more = snprintf(out + used, room - used, "%s%s (%" PRIu64 ")",
                                  used > 0 ? ", " : "", spec->tensors[tensor].name,
                                  results->tensors[i].elems);
        if (more < 0 || (size_t)more >= room - used) break;
        used += (size_t)more;
        listed += results->tensors[i].elems;
    }
    out[used] = '\0';
    if (listed < results->nonfinite)
        snprintf(out + used, CAIRN_RESULTS_BYTES - used, "%s", used > 0 ? " and others" : "others");
}

void results_gradient(const struct results *results, const struct job_spec_data *spec,
                      struct sentence *out)
{
    char tensors[CAIRN_RESULTS_BYTES];
    results_list(results, spec, tensors);
    if (results->tensor_count > 0)
        sentence_set(out, "the gradient of %s is not finite", tensors);
    else
        sentence_set(out, "a gradient is not finite");
    if (results->nonfinite > 0)
        sentence_add(out, " (%" PRIu64 " element%s)", results->nonfinite,
                     results->nonfinite == 1 ? "" : "s");
}
