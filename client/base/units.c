#include "client/base/units.h"

#include <stdlib.h>
#include <string.h>

struct cairn_units {
    const struct cairn_job_spec_data *spec; /* borrowed */
    uint32_t *order;                        /* [tensor_count] tensors, by unit, then by index */
    size_t *first; /* [unit_count + 1] where each unit begins in `order`; units by name */
    size_t unit_count;
};

static const char *unit_of(const struct cairn_job_spec_data *spec, uint32_t tensor)
{
    return spec->tensors[tensor].unit;
}

static int compare(const void *a, const void *b, void *spec)
{
    const uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    const int order = strcmp(unit_of(spec, left), unit_of(spec, right));
    return order != 0 ? order : (left > right) - (left < right);
}

static void mark_units(struct cairn_units *units)
{
    const size_t count = units->spec->tensor_count;
    for (size_t i = 0; i < count; i++)
        if (i == 0 || strcmp(unit_of(units->spec, units->order[i - 1]),
                             unit_of(units->spec, units->order[i])) != 0)
            units->first[units->unit_count++] = i;
    units->first[units->unit_count] = count;
}

struct cairn_units *cairn_units_open(const struct cairn_job_spec_data *spec)
{
    struct cairn_units *units = calloc(1, sizeof *units);
    if (units == NULL) return NULL;
    units->spec = spec;
    units->order = calloc(spec->tensor_count + 1, sizeof *units->order);
    units->first = calloc(spec->tensor_count + 1, sizeof *units->first);
    if (units->order == NULL || units->first == NULL) {
        cairn_units_close(units);
        return NULL;
    }
    for (size_t i = 0; i < spec->tensor_count; i++) units->order[i] = (uint32_t)i;
    union { // qsort_r gives it back as it is; compare reads it
        const struct cairn_job_spec_data *in;
        void *out;
    } context = { .in = spec };
    qsort_r(units->order, spec->tensor_count, sizeof *units->order, compare, context.out);
    mark_units(units);
    return units;
}

void cairn_units_close(struct cairn_units *units)
{
    if (units == NULL) return;
    free(units->order);
    free(units->first);
    free(units);
}

size_t cairn_units_find(const struct cairn_units *units, const char *name)
{
    size_t low = 0, high = units->unit_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(unit_of(units->spec, units->order[units->first[middle]]), name);
        if (order == 0) return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return SIZE_MAX;
}

const uint32_t *cairn_units_tensors(const struct cairn_units *units, size_t unit, size_t *count_out)
{
    *count_out = units->first[unit + 1] - units->first[unit];
    return &units->order[units->first[unit]];
}
