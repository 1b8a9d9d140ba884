#include "proto/spec/spec_fields.h"

#include <string.h>

#define COUNT_OF(array)     (sizeof(array) / sizeof(array)[0])
#define PLACE(type, member) offsetof(struct type, member), sizeof((struct type *)NULL)->member

static const struct cairn_spec_field job_rows[] = {
#define X(name, member, kind, allowed, value, part, given, change) \
    { #name,                                                       \
      PLACE(cairn_job_spec_data, member),                          \
      CAIRN_SPEC_##kind,                                           \
      CAIRN_SPEC_##allowed,                                        \
      (value),                                                     \
      CAIRN_SPEC_##part,                                           \
      CAIRN_SPEC_##change },
    CAIRN_SPEC_FIELDS(X)
#undef X
};
static const struct cairn_spec_field group_rows[] = {
#define X(name, kind, allowed, value) \
    { #name,                          \
      PLACE(cairn_group_spec, name),  \
      CAIRN_SPEC_##kind,              \
      CAIRN_SPEC_##allowed,           \
      (value),                        \
      CAIRN_SPEC_FIRST,               \
      CAIRN_SPEC_NEXT_ROUND },
    CAIRN_GROUP_FIELDS(X)
#undef X
};
static const struct cairn_spec_field schedule_rows[] = {
#define X(name, kind)              \
    { #name,                       \
      PLACE(cairn_schedule, name), \
      CAIRN_SPEC_##kind,           \
      CAIRN_SPEC_BY_CODE,          \
      0,                           \
      CAIRN_SPEC_FIRST,            \
      CAIRN_SPEC_NEXT_ROUND },
    CAIRN_SCHEDULE_FIELDS(X)
#undef X
};
const struct cairn_spec_table cairn_spec_fields = { job_rows, COUNT_OF(job_rows) };
const struct cairn_spec_table cairn_group_fields = { group_rows, COUNT_OF(group_rows) };
const struct cairn_spec_table cairn_schedule_fields = { schedule_rows, COUNT_OF(schedule_rows) };

static bool is_double(const struct cairn_spec_field *field)
{
    return field->kind == CAIRN_SPEC_REAL || field->kind == CAIRN_SPEC_FRACTION;
}

uint64_t cairn_spec_field_bits(const struct cairn_spec_field *field, const void *from)
{
    const char *at = (const char *)from + field->offset_bytes;
    uint64_t bits = 0;
    uint32_t number = 0;
    if (field->kind == CAIRN_SPEC_FLAG) return *(const bool *)at;
    if (field->bytes == sizeof bits) memcpy(&bits, at, sizeof bits);
    if (field->bytes == sizeof number) memcpy(&number, at, sizeof number);
    return bits + number;
}

double cairn_spec_field_number(const struct cairn_spec_field *field, const void *from)
{
    const uint64_t bits = cairn_spec_field_bits(field, from);
    double number;
    memcpy(&number, &bits, sizeof number);
    return is_double(field) ? number : (double)bits;
}

void cairn_spec_field_set_bits(const struct cairn_spec_field *field, void *to, uint64_t bits)
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

void cairn_spec_field_set_number(const struct cairn_spec_field *field, void *to, double number)
{
    uint64_t bits = is_double(field) ? 0 : (uint64_t)number;
    if (is_double(field)) memcpy(&bits, &number, sizeof bits);
    cairn_spec_field_set_bits(field, to, bits);
}

bool cairn_spec_field_is_default(const struct cairn_spec_field *field, const void *from)
{
    return cairn_spec_field_number(field, from) == field->value_default;
}

void cairn_spec_fields_unsign_zeros(const struct cairn_spec_table *table, void *object)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct cairn_spec_field *field = &table->fields[i];
        if (!is_double(field)) continue;
        cairn_spec_field_set_number(field, object, cairn_spec_field_number(field, object) + 0.0);
    }
}

cairn_status cairn_spec_count_check(const char *subject, const char *name, uint64_t value,
                                    uint64_t min, uint64_t max, struct cairn_sentence *why)
{
    if (value >= min && value <= max) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_INVALID, "%s%s is %llu; allowed: %llu to %llu", subject, name,
                      (unsigned long long)value, (unsigned long long)min, (unsigned long long)max);
}

/* No NaN passes. */
static cairn_status check_double(const struct cairn_spec_field *field, double value,
                                 const char *subject, struct cairn_sentence *why)
{
    const bool is_open = field->kind == CAIRN_SPEC_FRACTION;
    if (value >= field->min && (is_open ? value < field->max : value <= field->max))
        return CAIRN_OK;
    if (is_open)
        return cairn_fail(why, CAIRN_ERR_INVALID, "%s%s is %.17g; allowed: %g to below %g", subject,
                          field->name, value, field->min, field->max);
    if (field->max == DBL_MAX)
        return cairn_fail(why, CAIRN_ERR_INVALID, "%s%s is %g; allowed: %g or more, finite",
                          subject, field->name, value, field->min);
    return cairn_fail(why, CAIRN_ERR_INVALID, "%s%s is %g; allowed: %g to %g", subject, field->name,
                      value, field->min, field->max);
}

cairn_status cairn_spec_field_check(const struct cairn_spec_field *field, const void *from,
                                    const char *subject, struct cairn_sentence *why)
{
    const uint64_t bits = cairn_spec_field_bits(field, from);
    if (field->max == 0) return CAIRN_OK; // judged by code
    if (field->capability != CAIRN_CAPABILITY_FIELD_COUNT)
        return cairn_capability_check(field->capability,
                                      field->kind == CAIRN_SPEC_CHOICE ? (int)bits : (int64_t)bits,
                                      subject, why);
    if (is_double(field))
        return check_double(field, cairn_spec_field_number(field, from), subject, why);
    return cairn_spec_count_check(subject, field->name, bits, (uint64_t)field->min,
                                  (uint64_t)field->max, why);
}

cairn_status cairn_spec_fields_check(const struct cairn_spec_table *table, const void *from,
                                     const char *subject, struct cairn_sentence *why)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < table->count && status == CAIRN_OK; i++)
        status = cairn_spec_field_check(&table->fields[i], from, subject, why);
    return status;
}

const struct cairn_spec_field *cairn_spec_field_find(const struct cairn_spec_table *table,
                                                     const char *name, size_t name_bytes)
{
    for (size_t i = 0; i < table->count; i++) {
        const char *own = table->fields[i].name;
        if (strlen(own) == name_bytes && memcmp(own, name, name_bytes) == 0)
            return &table->fields[i];
    }
    return NULL;
}
