#include "client/filling.h"

#include <math.h>
#include <stdlib.h>

#include "proto/spec/spec.h"

bool cairn_filling_init(struct filling *filling, const struct cairn_job_spec_data *spec)
{
    filling->tensors = calloc(spec->tensor_count + 1, sizeof *filling->tensors);
    filling->frozen_tensors = calloc(spec->tensor_count + 1, sizeof *filling->frozen_tensors);
    filling->frozen_groups = calloc(spec->group_count + 1, sizeof *filling->frozen_groups);
    filling->rates = calloc(spec->group_count + 1, sizeof *filling->rates);
    if (filling->tensors == NULL || filling->frozen_tensors == NULL ||
        filling->frozen_groups == NULL || filling->rates == NULL)
        return false;
    filling->had_last = true; // before its first round it brings what it begins with
    for (size_t g = 0; g < spec->group_count; g++) filling->rates[g] = (double)NAN;
    return true;
}

void cairn_filling_release(struct filling *filling)
{
    free(filling->tensors);
    free(filling->frozen_tensors);
    free(filling->frozen_groups);
    free(filling->rates);
}
