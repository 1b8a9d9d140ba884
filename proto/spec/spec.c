/* Memory and order of a job spec. spec_check.c checks specs, spec_compare.c compares them. */
#include "proto/spec/spec.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/text.h"
#include "proto/spec/spec_fields.h"

static void spec_fields_unsign_zeros(const struct spec_table *table, void *object);

void spec_init(struct job_spec_data *spec)
{
    *spec = (struct job_spec_data) {
#define X(name, member, kind, allowed, value, part, given, change) .member = (value),
        CAIRN_SPEC_FIELDS(X)
#undef X
    };
}

static void release_tensor(struct tensor_spec *t)
{
    free(t->name);
    free(t->unit);
    free(t->group);
    free(t->alias_of);
    free(t->alias_box);
}

static void release_group(struct group_spec *g)
{
    free(g->name);
    free(g->optimizer);
    free((void *)(uintptr_t)g->schedule.points); // owned here; everyone else only reads them
}

static void release_made(const struct spec_made *made)
{
    free(made->key);
    free(made->was);
    free(made->is);
}

void spec_release(struct job_spec_data *spec)
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
    spec_init(spec);
}

cairn_status spec_set_name(struct job_spec_data *spec, const char *name)
{
    char *copy = strdup(name);
    if (copy == NULL) return CAIRN_ERR_NO_MEMORY;
    free(spec->name);
    spec->name = copy;
    return CAIRN_OK;
}

struct group_spec group_default(void)
{
    return (struct group_spec) {
#define X(name, kind, allowed, value, part) .name = (value),
        CAIRN_GROUP_FIELDS(X)
#undef X
    };
}

/* Returns NULL if there is nothing to copy, or no memory. */
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

cairn_status spec_add_tensor(struct job_spec_data *spec, const struct tensor_spec *tensor)
{
    const char *unit = tensor->unit != NULL ? tensor->unit : tensor->name;
    const char *group = tensor->group != NULL ? tensor->group : "";
    if (!short_enough(tensor->name) || !short_enough(unit) || !short_enough(group) ||
        (tensor->alias_of != NULL && !short_enough(tensor->alias_of))) {
        return CAIRN_ERR_INVALID;
    }
    if (spec->tensor_count >= CAIRN_SPEC_TENSORS_MAX) return CAIRN_ERR_INVALID;
    CAIRN_TRY(array_reserve(&spec->tensors, spec->tensor_count, 1, &spec->tensor_capacity,
                            sizeof *tensor));
    struct tensor_spec copy = *tensor;
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

cairn_status spec_add_group(struct job_spec_data *spec, const struct group_spec *group)
{
    const size_t points = group->schedule.point_count;
    if (!short_enough(group->name) || !short_enough(group->optimizer)) return CAIRN_ERR_INVALID;
    if (points > CAIRN_SCHEDULE_POINTS_MAX) return CAIRN_ERR_INVALID;
    if (spec->group_count >= CAIRN_SPEC_GROUPS_MAX) return CAIRN_ERR_INVALID;
    CAIRN_TRY(
        array_reserve(&spec->groups, spec->group_count, 1, &spec->group_capacity, sizeof *group));
    struct group_spec copy = *group;
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

cairn_status spec_set_group(struct job_spec_data *spec, size_t group, const struct group_spec *from)
{
    struct group_spec *g = &spec->groups[group];
    const size_t points = from->schedule.point_count;
    if (points > CAIRN_SCHEDULE_POINTS_MAX) return CAIRN_ERR_INVALID;
    struct group_spec next = *from;
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

cairn_status spec_add_former(struct job_spec_data *spec, const uint8_t hash[32])
{
    if (spec_was(spec, hash)) return CAIRN_OK;
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

cairn_status spec_add_made(struct job_spec_data *spec, const char *key, const char *was,
                           const char *is)
{
    const struct spec_made made = { strdup(key), strdup(was), strdup(is) };
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

bool spec_was(const struct job_spec_data *spec, const uint8_t hash[32])
{
    for (size_t i = 0; i < spec->former_count; i++) {
        if (memcmp(spec->former[i], hash, sizeof *spec->former) == 0) return true;
    }
    return false;
}

static cairn_status copy_contents(const struct job_spec_data *spec, struct job_spec_data *copy)
{
    cairn_status status = CAIRN_OK;
    if (spec->name != NULL) status = spec_set_name(copy, spec->name);
    if (status == CAIRN_OK) status = spec_set_init_from(copy, spec->init_from, spec->init_prefix);
    for (size_t i = 0; i < spec->tensor_count && status == CAIRN_OK; i++) {
        status = spec_add_tensor(copy, &spec->tensors[i]);
    }
    for (size_t i = 0; i < spec->group_count && status == CAIRN_OK; i++) {
        status = spec_add_group(copy, &spec->groups[i]);
    }
    for (size_t i = 0; i < spec->former_count && status == CAIRN_OK; i++) {
        status = spec_add_former(copy, spec->former[i]);
    }
    for (size_t i = 0; i < spec->made_count && status == CAIRN_OK; i++)
        status = spec_add_made(copy, spec->made[i].key, spec->made[i].was, spec->made[i].is);
    return status;
}

cairn_status spec_copy(const struct job_spec_data *spec, struct job_spec_data *copy_out)
{
    struct job_spec_data copy = *spec; // the plain values; what the spec owns is copied below
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
        spec_release(&copy);
        return status;
    }
    *copy_out = copy;
    return CAIRN_OK;
}

static int tensor_order_spec(const void *a, const void *b)
{
    const struct tensor_spec *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int group_order(const void *a, const void *b)
{
    const struct group_spec *x = a, *y = b;
    return strcmp(x->name, y->name);
}

#define GROWTH_STEPS 2000 // as in torch.cuda.amp.GradScaler

static void fill_defaults(struct job_spec_data *spec)
{
    const double start = spec->loss_scale;
    for (size_t i = 0; i < spec_fields.count; i++) {
        const struct spec_field *field = &spec_fields.fields[i];
        if (field->part == CAIRN_SPEC_FIRST || field->min <= 0) continue;
        if (spec_field_number(field, spec) == 0) // a sender that did not know the field left it out
            spec_field_set_number(field, spec, field->value_default);
    }
    if (spec->loss_scale_policy == CAIRN_LOSS_SCALE_DEFAULT)
        spec->loss_scale_policy = start > 1 ? CAIRN_LOSS_SCALE_DYNAMIC : CAIRN_LOSS_SCALE_FIXED;
    if (spec->loss_scale_policy != CAIRN_LOSS_SCALE_DYNAMIC) return;
    if (spec->loss_scale_growth_steps == 0) spec->loss_scale_growth_steps = GROWTH_STEPS;
    if (spec->loss_scale_min == 0) spec->loss_scale_min = start < 1 ? start : 1;
    if (spec->loss_scale_max == 0) spec->loss_scale_max = start;
}

static void unsign_zeros(struct job_spec_data *spec)
{
    spec_fields_unsign_zeros(&spec_fields, spec);
    for (size_t i = 0; i < spec->group_count; i++) {
        spec_fields_unsign_zeros(&group_fields, &spec->groups[i]);
        spec_fields_unsign_zeros(&schedule_fields, &spec->groups[i].schedule);
    }
    for (size_t i = 0; i < spec->tensor_count; i++) {
        spec->tensors[i].init.a += 0.0;
        spec->tensors[i].init.b += 0.0;
    }
}

void spec_canonicalize(struct job_spec_data *spec)
{
    unsign_zeros(spec);
    fill_defaults(spec);
    if (spec->tensor_count > 1) {
        qsort(spec->tensors, spec->tensor_count, sizeof *spec->tensors, tensor_order_spec);
    }
    if (spec->group_count > 1) {
        qsort(spec->groups, spec->group_count, sizeof *spec->groups, group_order);
    }
}

size_t spec_find_tensor(const struct job_spec_data *spec, const char *name)
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

size_t spec_find_group(const struct job_spec_data *spec, const char *name)
{
    for (size_t i = 0; i < spec->group_count; i++) {
        if (strcmp(spec->groups[i].name, name) == 0) return i;
    }
    return SIZE_MAX;
}

size_t spec_target(const struct job_spec_data *spec, size_t tensor)
{
    const char *target = spec->tensors[tensor].alias_of;
    return target != NULL ? spec_find_tensor(spec, target) : tensor;
}

/* ==== spec fields ==== */

#define COUNT_OF(array)     (sizeof(array) / sizeof(array)[0])
#define PLACE(type, member) offsetof(struct type, member), sizeof((struct type *)NULL)->member

static const struct spec_field job_rows[] = {
#define X(name, member, kind, allowed, value, part, given, change) \
    { #name,                                                       \
      PLACE(job_spec_data, member),                                \
      CAIRN_SPEC_##kind,                                           \
      CAIRN_SPEC_##allowed,                                        \
      (value),                                                     \
      CAIRN_SPEC_##part,                                           \
      CAIRN_SPEC_##change },
    CAIRN_SPEC_FIELDS(X)
#undef X
};
static const struct spec_field group_rows[] = {
#define X(name, kind, allowed, value, part)                                         \
    { #name,   PLACE(group_spec, name), CAIRN_SPEC_##kind,    CAIRN_SPEC_##allowed, \
      (value), CAIRN_SPEC_##part,       CAIRN_SPEC_NEXT_ROUND },
    CAIRN_GROUP_FIELDS(X)
#undef X
};
static const struct spec_field schedule_rows[] = {
#define X(name, kind)                                                         \
    { #name, PLACE(schedule, name), CAIRN_SPEC_##kind,    CAIRN_SPEC_BY_CODE, \
      0,     CAIRN_SPEC_FIRST,      CAIRN_SPEC_NEXT_ROUND },
    CAIRN_SCHEDULE_FIELDS(X)
#undef X
};
const struct spec_table spec_fields = { job_rows, COUNT_OF(job_rows) };
const struct spec_table group_fields = { group_rows, COUNT_OF(group_rows) };
const struct spec_table schedule_fields = { schedule_rows, COUNT_OF(schedule_rows) };

static bool is_double(const struct spec_field *field)
{
    return field->kind == CAIRN_SPEC_REAL || field->kind == CAIRN_SPEC_FRACTION;
}

uint64_t spec_field_bits(const struct spec_field *field, const void *from)
{
    const char *at = (const char *)from + field->offset_bytes;
    uint64_t bits = 0;
    uint32_t number = 0;
    if (field->kind == CAIRN_SPEC_FLAG) return *(const bool *)at;
    if (field->bytes == sizeof bits) memcpy(&bits, at, sizeof bits);
    if (field->bytes == sizeof number) memcpy(&number, at, sizeof number);
    return bits + number;
}

double spec_field_number(const struct spec_field *field, const void *from)
{
    const uint64_t bits = spec_field_bits(field, from);
    double number;
    memcpy(&number, &bits, sizeof number);
    return is_double(field) ? number : (double)bits;
}

void spec_field_set_bits(const struct spec_field *field, void *to, uint64_t bits)
{
    char *at = (char *)to + field->offset_bytes;
    const uint32_t number = (uint32_t)bits;
    if (field->kind == CAIRN_SPEC_FLAG)
        *(bool *)at = bits != 0;
    else if (field->bytes == sizeof bits)
        memcpy(at, &bits, sizeof bits);
    else
        memcpy(at, &number, sizeof number);
}

void spec_field_set_number(const struct spec_field *field, void *to, double number)
{
    uint64_t bits = is_double(field) ? 0 : (uint64_t)number;
    if (is_double(field)) memcpy(&bits, &number, sizeof bits);
    spec_field_set_bits(field, to, bits);
}

bool spec_field_is_default(const struct spec_field *field, const void *from)
{
    return spec_field_number(field, from) == field->value_default;
}

/* Turns -0 into +0 in each double, as proto3 does, which leaves zeros out of a message. */
static void spec_fields_unsign_zeros(const struct spec_table *table, void *object)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct spec_field *field = &table->fields[i];
        if (!is_double(field)) continue;
        spec_field_set_number(field, object, spec_field_number(field, object) + 0.0);
    }
}

cairn_status spec_count_check(const char *subject, const char *name, uint64_t value, uint64_t min,
                              uint64_t max, struct sentence *why)
{
    if (value >= min && value <= max) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_INVALID,
                     "%s%s is %" PRIu64 "; allowed: %" PRIu64 " to %" PRIu64, subject, name, value,
                     min, max);
}

/* Checks a double against the bounds of its field, and refuses NaN. */
static cairn_status check_double(const struct spec_field *field, double value, const char *subject,
                                 struct sentence *why)
{
    const bool is_open = field->kind == CAIRN_SPEC_FRACTION;
    if (value >= field->min && (is_open ? value < field->max : value <= field->max))
        return CAIRN_OK;
    if (is_open)
        return fail_with(why, CAIRN_ERR_INVALID, "%s%s is %.17g; allowed: %g to below %g", subject,
                         field->name, value, field->min, field->max);
    if (field->max == DBL_MAX)
        return fail_with(why, CAIRN_ERR_INVALID, "%s%s is %g; allowed: %g or more, finite", subject,
                         field->name, value, field->min);
    return fail_with(why, CAIRN_ERR_INVALID, "%s%s is %g; allowed: %g to %g", subject, field->name,
                     value, field->min, field->max);
}

cairn_status spec_field_check(const struct spec_field *field, const void *from, const char *subject,
                              struct sentence *why)
{
    const uint64_t bits = spec_field_bits(field, from);
    if (field->max == 0) return CAIRN_OK; // checked by code elsewhere
    if (field->capability != CAIRN_CAPABILITY_FIELD_COUNT)
        return capability_check(field->capability,
                                field->kind == CAIRN_SPEC_CHOICE ? (int)bits : (int64_t)bits,
                                subject, why);
    if (is_double(field)) return check_double(field, spec_field_number(field, from), subject, why);
    return spec_count_check(subject, field->name, bits, (uint64_t)field->min, (uint64_t)field->max,
                            why);
}

const struct spec_field *spec_field_find(const struct spec_table *table, const char *name,
                                         size_t name_bytes)
{
    for (size_t i = 0; i < table->count; i++) {
        const char *own = table->fields[i].name;
        if (strlen(own) == name_bytes && memcmp(own, name, name_bytes) == 0)
            return &table->fields[i];
    }
    return NULL;
}

/* ==== spec origin ==== */

/* Where a job's initial state comes from, according to its spec. */

static cairn_status copy_text(const char *text, char **copy_out)
{
    *copy_out = NULL;
    if (text == NULL || text[0] == '\0') return CAIRN_OK;
    *copy_out = strdup(text);
    return *copy_out != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

cairn_status spec_set_init_from(struct job_spec_data *spec, const char *path, const char *prefix)
{
    char *path_copy, *prefix_copy = NULL;
    cairn_status status = copy_text(path, &path_copy);
    if (status == CAIRN_OK) status = copy_text(prefix, &prefix_copy);
    if (status != CAIRN_OK) {
        free(path_copy);
        return status;
    }
    free(spec->init_from);
    free(spec->init_prefix);
    spec->init_from = path_copy;
    spec->init_prefix = prefix_copy;
    return CAIRN_OK;
}

bool spec_has_origin(const struct job_spec_data *spec, size_t tensor)
{
    const struct tensor_spec *t = &spec->tensors[tensor];
    if (t->kind == CAIRN_BLOB) return false;
    return spec->init_from != NULL || t->init.kind != CAIRN_INIT_NONE;
}

/* True if nobody puts the tensor: an alias, or a tensor without elements. */
static bool is_empty(const struct tensor_spec *t)
{
    return t->alias_of != NULL || geometry_of(&t->shape).elems == 0;
}

bool spec_initializes_itself(const struct job_spec_data *spec)
{
    bool any = false;
    for (size_t i = 0; i < spec->tensor_count; i++) {
        const bool has = spec_has_origin(spec, i);
        if (!has && !is_empty(&spec->tensors[i])) return false;
        any = any || has;
    }
    return any;
}

/* ==== batch ==== */

uint32_t batch_count(const struct spec_batch *batch)
{
    if (batch->rank >= batch->total) return 0;
    return (batch->total - batch->rank - 1) / batch->world + 1;
}

uint32_t batch_number(const struct spec_batch *batch, uint32_t place)
{
    return batch->total == 0 ? place : batch->rank + place * batch->world;
}

bool batch_place(const struct spec_batch *batch, uint32_t number, uint32_t *place_out)
{
    if (batch->total > 0) {
        const bool is_own = number < batch->total && batch->rank < batch->world &&
                            number % batch->world == batch->rank;
        if (!is_own) return false;
        number /= batch->world;
    }
    *place_out = number;
    return true;
}

/* Computes one step of Steele, Lea, Flood, "Fast splittable pseudorandom number generators". */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

uint64_t batch_seed(uint64_t seed, uint64_t index, uint64_t number)
{
    return mix(mix(mix(seed) ^ index) ^ number) >> 1;
}

/* ==== without ==== */

static const struct {
    const char *name, *because;
} lacks_table[CAIRN_WITHOUT_COUNT] = {
    { "RDMA", "no card in /sys/class/infiniband" },
    { "GPU", "compute.backend is host, or there is none that will do" },
    { "AVX-512", "not of this processor, or not wanted" },
};

const char *without_name(uint32_t index)
{
    return index < CAIRN_WITHOUT_COUNT ? lacks_table[index].name : "?";
}

void without_print(uint32_t without, struct sentence *out)
{
    sentence_set(out, "%s", "");
    for (uint32_t i = 0; i < CAIRN_WITHOUT_COUNT; i++)
        if ((without & 1u << i) != 0)
            sentence_add(out, "%s%s (%s)", out->text[0] != '\0' ? ", " : "", lacks_table[i].name,
                         lacks_table[i].because);
}
