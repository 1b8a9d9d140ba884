/* Memory and order of a job spec. Judging is in spec_check.c, comparing in spec_compare.c. */
#include "proto/spec/spec.h"

#include <stdlib.h>
#include <string.h>

#include "proto/spec/spec_fields.h"

void cairn_spec_init(struct cairn_job_spec_data *spec)
{
    *spec = (struct cairn_job_spec_data) {
#define X(name, member, kind, allowed, value, part, given, change) .member = (value),
        CAIRN_SPEC_FIELDS(X)
#undef X
    };
}

static void release_tensor(struct cairn_tensor_spec *t)
{
    free(t->name);
    free(t->unit);
    free(t->group);
    free(t->alias_of);
    free(t->alias_box);
}

static void release_group(struct cairn_group_spec *g)
{
    free(g->name);
    free(g->optimizer);
    free((void *)(uintptr_t)g->schedule.points); // owned here, read-only to everyone else
}

static void release_made(const struct cairn_spec_made *made)
{
    free(made->key);
    free(made->was);
    free(made->is);
}

void cairn_spec_release(struct cairn_job_spec_data *spec)
{
    for (size_t i = 0; i < spec->tensor_count; i++) release_tensor(&spec->tensors[i]);
    for (size_t i = 0; i < spec->group_count; i++) release_group(&spec->groups[i]);
    free(spec->tensors);
    free(spec->groups);
    free(spec->former);
    for (size_t i = 0; i < spec->made_count; i++) release_made(&spec->made[i]);
    free(spec->made);
    free(spec->init_from);
    free(spec->init_prefix);
    free(spec->name);
    cairn_spec_init(spec);
}

cairn_status cairn_spec_set_name(struct cairn_job_spec_data *spec, const char *name)
{
    char *copy = strdup(name);
    if (copy == NULL) return CAIRN_ERR_NO_MEMORY;
    free(spec->name);
    spec->name = copy;
    return CAIRN_OK;
}

struct cairn_group_spec cairn_group_default(void)
{
    return (struct cairn_group_spec) {
#define X(name, kind, allowed, value) .name = (value),
        CAIRN_GROUP_FIELDS(X)
#undef X
    };
}

/* Room for one more of `elem_bytes` in the array: doubles up to `max`. */
static cairn_status make_room(void **array, size_t count, size_t *capacity, size_t max,
                              size_t elem_bytes)
{
    if (count < *capacity) return CAIRN_OK;
    if (count >= max) return CAIRN_ERR_INVALID;
    size_t wanted = *capacity == 0 ? 8 : 2 * *capacity;
    if (wanted > max) wanted = max;
    void *grown = realloc(*array, wanted * elem_bytes);
    if (grown == NULL) return CAIRN_ERR_NO_MEMORY;
    *array = grown;
    *capacity = wanted;
    return CAIRN_OK;
}

/* NULL of NULL, or of no memory. */
static void *copy_bytes(const void *from, size_t bytes)
{
    void *copy = from != NULL && bytes > 0 ? malloc(bytes) : NULL;
    if (copy != NULL) memcpy(copy, from, bytes);
    return copy;
}

static bool short_enough(const char *text)
{
    return text != NULL && strnlen(text, CAIRN_NAME_MAX + 1) <= CAIRN_NAME_MAX;
}

cairn_status cairn_spec_add_tensor(struct cairn_job_spec_data *spec,
                                   const struct cairn_tensor_spec *tensor)
{
    const char *unit = tensor->unit != NULL ? tensor->unit : tensor->name;
    const char *group = tensor->group != NULL ? tensor->group : "";
    if (!short_enough(tensor->name) || !short_enough(unit) || !short_enough(group) ||
        (tensor->alias_of != NULL && !short_enough(tensor->alias_of))) {
        return CAIRN_ERR_INVALID;
    }
    void *array = spec->tensors;
    cairn_status status = make_room(&array, spec->tensor_count, &spec->tensor_capacity,
                                    CAIRN_SPEC_TENSORS_MAX, sizeof *tensor);
    if (status != CAIRN_OK) return status;
    spec->tensors = array;
    struct cairn_tensor_spec copy = *tensor;
    copy.name = strdup(tensor->name);
    copy.unit = strdup(unit);
    copy.group = strdup(group);
    copy.alias_of = tensor->alias_of != NULL ? strdup(tensor->alias_of) : NULL;
    copy.alias_box = copy_bytes(tensor->alias_box, sizeof *tensor->alias_box);
    if (copy.name == NULL || copy.unit == NULL || copy.group == NULL ||
        (copy.alias_of == NULL) != (tensor->alias_of == NULL) ||
        (copy.alias_box == NULL) != (tensor->alias_box == NULL)) {
        release_tensor(&copy);
        return CAIRN_ERR_NO_MEMORY;
    }
    spec->tensors[spec->tensor_count++] = copy;
    return CAIRN_OK;
}

cairn_status cairn_spec_add_group(struct cairn_job_spec_data *spec,
                                  const struct cairn_group_spec *group)
{
    const size_t points = group->schedule.point_count;
    if (!short_enough(group->name) || !short_enough(group->optimizer)) return CAIRN_ERR_INVALID;
    if (points > CAIRN_SCHEDULE_POINTS_MAX) return CAIRN_ERR_INVALID;
    void *array = spec->groups;
    cairn_status status = make_room(&array, spec->group_count, &spec->group_capacity,
                                    CAIRN_SPEC_GROUPS_MAX, sizeof *group);
    if (status != CAIRN_OK) return status;
    spec->groups = array;
    struct cairn_group_spec copy = *group;
    copy.name = strdup(group->name);
    copy.optimizer = strdup(group->optimizer);
    copy.schedule.points = copy_bytes(group->schedule.points,
                                      points * sizeof *copy.schedule.points);
    if (copy.name == NULL || copy.optimizer == NULL ||
        (copy.schedule.points == NULL) != (points == 0)) {
        release_group(&copy);
        return CAIRN_ERR_NO_MEMORY;
    }
    spec->groups[spec->group_count++] = copy;
    return CAIRN_OK;
}

cairn_status cairn_spec_set_group(struct cairn_job_spec_data *spec, size_t group,
                                  const struct cairn_group_spec *from)
{
    struct cairn_group_spec *g = &spec->groups[group];
    const size_t points = from->schedule.point_count;
    if (points > CAIRN_SCHEDULE_POINTS_MAX) return CAIRN_ERR_INVALID;
    struct cairn_group_spec next = *from;
    next.schedule.points = copy_bytes(from->schedule.points,
                                      points * sizeof *from->schedule.points);
    if ((next.schedule.points == NULL) != (points == 0)) return CAIRN_ERR_NO_MEMORY;
    free((void *)(uintptr_t)g->schedule.points);
    next.name = g->name;
    next.optimizer = g->optimizer;
    next.frozen = g->frozen;
    *g = next;
    return CAIRN_OK;
}

cairn_status cairn_spec_add_former(struct cairn_job_spec_data *spec, const uint8_t hash[32])
{
    if (cairn_spec_was(spec, hash)) return CAIRN_OK;
    if (spec->former == NULL) spec->former = calloc(CAIRN_SPEC_FORMER_MAX, sizeof *spec->former);
    if (spec->former == NULL) return CAIRN_ERR_NO_MEMORY;
    if (spec->former_count == CAIRN_SPEC_FORMER_MAX) {
        spec->former_count--;
        memmove(&spec->former[1], &spec->former[2],
                (spec->former_count - 1) * sizeof *spec->former);
    }
    memcpy(spec->former[spec->former_count++], hash, sizeof *spec->former);
    return CAIRN_OK;
}

cairn_status cairn_spec_add_made(struct cairn_job_spec_data *spec, const char *key, const char *was,
                                 const char *is)
{
    const struct cairn_spec_made made = { strdup(key), strdup(was), strdup(is) };
    if (spec->made == NULL) spec->made = calloc(CAIRN_SPEC_MADE_MAX, sizeof *spec->made);
    if (spec->made == NULL || made.key == NULL || made.was == NULL || made.is == NULL) {
        release_made(&made);
        return CAIRN_ERR_NO_MEMORY;
    }
    if (spec->made_count == CAIRN_SPEC_MADE_MAX) {
        release_made(&spec->made[0]);
        spec->made_count--;
        memmove(&spec->made[0], &spec->made[1], spec->made_count * sizeof *spec->made);
    }
    spec->made[spec->made_count++] = made;
    return CAIRN_OK;
}

bool cairn_spec_was(const struct cairn_job_spec_data *spec, const uint8_t hash[32])
{
    for (size_t i = 0; i < spec->former_count; i++) {
        if (memcmp(spec->former[i], hash, sizeof *spec->former) == 0) return true;
    }
    return false;
}

static cairn_status copy_contents(const struct cairn_job_spec_data *spec,
                                  struct cairn_job_spec_data *copy)
{
    cairn_status status = CAIRN_OK;
    if (spec->name != NULL) status = cairn_spec_set_name(copy, spec->name);
    if (status == CAIRN_OK)
        status = cairn_spec_set_init_from(copy, spec->init_from, spec->init_prefix);
    for (size_t i = 0; i < spec->tensor_count && status == CAIRN_OK; i++) {
        status = cairn_spec_add_tensor(copy, &spec->tensors[i]);
    }
    for (size_t i = 0; i < spec->group_count && status == CAIRN_OK; i++) {
        status = cairn_spec_add_group(copy, &spec->groups[i]);
    }
    for (size_t i = 0; i < spec->former_count && status == CAIRN_OK; i++) {
        status = cairn_spec_add_former(copy, spec->former[i]);
    }
    for (size_t i = 0; i < spec->made_count && status == CAIRN_OK; i++)
        status = cairn_spec_add_made(copy, spec->made[i].key, spec->made[i].was, spec->made[i].is);
    return status;
}

cairn_status cairn_spec_copy(const struct cairn_job_spec_data *spec,
                             struct cairn_job_spec_data *copy_out)
{
    struct cairn_job_spec_data copy = *spec; // the plain values; what is owned is made anew
    copy.name = copy.init_from = copy.init_prefix = NULL;
    copy.tensors = NULL;
    copy.groups = NULL;
    copy.former = NULL;
    copy.made = NULL;
    copy.former_count = copy.made_count = 0;
    copy.tensor_count = copy.tensor_capacity = 0;
    copy.group_count = copy.group_capacity = 0;
    cairn_status status = copy_contents(spec, &copy);
    if (status != CAIRN_OK) {
        cairn_spec_release(&copy);
        return status;
    }
    *copy_out = copy;
    return CAIRN_OK;
}

static int tensor_order(const void *a, const void *b)
{
    const struct cairn_tensor_spec *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int group_order(const void *a, const void *b)
{
    const struct cairn_group_spec *x = a, *y = b;
    return strcmp(x->name, y->name);
}

#define GROWTH_STEPS 2000 // as torch.cuda.amp.GradScaler

static void fill_defaults(struct cairn_job_spec_data *spec)
{
    const double start = spec->loss_scale;
    for (size_t i = 0; i < cairn_spec_fields.count; i++) {
        const struct cairn_spec_field *field = &cairn_spec_fields.fields[i];
        if (field->part == CAIRN_SPEC_FIRST || field->min <= 0) continue;
        if (cairn_spec_field_number(field, spec) == 0) // who did not know the field, left it out
            cairn_spec_field_set_number(field, spec, field->value_default);
    }
    if (spec->loss_scale_policy == CAIRN_LOSS_SCALE_DEFAULT)
        spec->loss_scale_policy = start > 1 ? CAIRN_LOSS_SCALE_DYNAMIC : CAIRN_LOSS_SCALE_FIXED;
    if (spec->loss_scale_policy != CAIRN_LOSS_SCALE_DYNAMIC) return;
    if (spec->loss_scale_growth_steps == 0) spec->loss_scale_growth_steps = GROWTH_STEPS;
    if (spec->loss_scale_min == 0) spec->loss_scale_min = start < 1 ? start : 1;
    if (spec->loss_scale_max == 0) spec->loss_scale_max = start;
}

static void unsign_zeros(struct cairn_job_spec_data *spec)
{
    cairn_spec_fields_unsign_zeros(&cairn_spec_fields, spec);
    for (size_t i = 0; i < spec->group_count; i++) {
        cairn_spec_fields_unsign_zeros(&cairn_group_fields, &spec->groups[i]);
        cairn_spec_fields_unsign_zeros(&cairn_schedule_fields, &spec->groups[i].schedule);
    }
    for (size_t i = 0; i < spec->tensor_count; i++) {
        spec->tensors[i].init.a += 0.0;
        spec->tensors[i].init.b += 0.0;
    }
}

void cairn_spec_canonicalize(struct cairn_job_spec_data *spec)
{
    unsign_zeros(spec);
    fill_defaults(spec);
    if (spec->tensor_count > 1) {
        qsort(spec->tensors, spec->tensor_count, sizeof *spec->tensors, tensor_order);
    }
    if (spec->group_count > 1) {
        qsort(spec->groups, spec->group_count, sizeof *spec->groups, group_order);
    }
}

size_t cairn_spec_find_tensor(const struct cairn_job_spec_data *spec, const char *name)
{
    size_t low = 0, high = spec->tensor_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(spec->tensors[middle].name, name);
        if (order == 0) return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return SIZE_MAX;
}

size_t cairn_spec_find_group(const struct cairn_job_spec_data *spec, const char *name)
{
    for (size_t i = 0; i < spec->group_count; i++) {
        if (strcmp(spec->groups[i].name, name) == 0) return i;
    }
    return SIZE_MAX;
}

size_t cairn_spec_target(const struct cairn_job_spec_data *spec, size_t tensor)
{
    const char *target = spec->tensors[tensor].alias_of;
    return target != NULL ? cairn_spec_find_tensor(spec, target) : tensor;
}
