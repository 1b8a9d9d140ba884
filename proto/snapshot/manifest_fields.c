/* The scalars of a spec in JSON, both ways, by their rows. */
#include "proto/snapshot/manifest_spec.h"

static json_t *value_json(const struct cairn_spec_field *field, const void *from)
{
    const uint64_t bits = cairn_spec_field_bits(field, from);
    switch (field->kind) {
    case CAIRN_SPEC_REAL:
    case CAIRN_SPEC_FRACTION: return json_real(cairn_spec_field_number(field, from));
    case CAIRN_SPEC_COUNT: return json_integer((json_int_t)bits);
    case CAIRN_SPEC_FLAG: return json_boolean(bits != 0);
    case CAIRN_SPEC_CHOICE: return json_string(cairn_capability_name(field->capability, (int)bits));
    }
    return NULL;
}

json_t *cairn_spec_fields_json(json_t *object, const struct cairn_spec_table *table,
                               enum cairn_spec_part part, const void *from)
{
    for (size_t i = 0; i < table->count && object != NULL; i++) {
        const struct cairn_spec_field *field = &table->fields[i];
        if (part != CAIRN_SPEC_ALL && part != field->part) continue;
        if (part != CAIRN_SPEC_ALL && part >= CAIRN_SPEC_LATER &&
            cairn_spec_field_is_default(field, from))
            continue;
        if (json_object_set_new(object, field->name, value_json(field, from)) == 0) continue;
        json_decref(object);
        object = NULL;
    }
    return object;
}

/* NULL, or what the value should have been. */
static const char *take_value(const struct cairn_spec_field *field, const json_t *value, void *to)
{
    json_int_t number = json_integer_value(value);
    switch (field->kind) {
    case CAIRN_SPEC_REAL:
    case CAIRN_SPEC_FRACTION:
        if (!json_is_number(value)) return "not a number";
        cairn_spec_field_set_number(field, to, json_number_value(value));
        return NULL;
    case CAIRN_SPEC_COUNT:
        if (!json_is_integer(value)) return "not a whole number";
        if (number < 0 || (field->bytes == sizeof(uint32_t) && number > UINT32_MAX))
            return "out of range";
        break;
    case CAIRN_SPEC_FLAG:
        if (!json_is_boolean(value)) return "neither true nor false";
        number = json_is_true(value);
        break;
    case CAIRN_SPEC_CHOICE:
        if (!json_is_string(value)) return "not a name";
        number = cairn_capability_value(field->capability, json_string_value(value)); // or -1
    }
    cairn_spec_field_set_bits(field, to, (uint64_t)number);
    return NULL;
}

cairn_status cairn_spec_fields_of_json(json_t *object, const struct cairn_spec_table *table,
                                       const char *where, void *to, struct cairn_sentence *why)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct cairn_spec_field *field = &table->fields[i];
        const json_t *value = json_object_get(object, field->name);
        if (value == NULL && field->part != CAIRN_SPEC_FIRST) continue;
        const char *wrong = value != NULL ? take_value(field, value, to) : "missing";
        if (wrong != NULL)
            return cairn_fail(why, CAIRN_ERR_CORRUPT, "manifest: %s: %s is %s", where, field->name,
                              wrong);
        json_object_del(object, field->name);
    }
    return CAIRN_OK;
}
