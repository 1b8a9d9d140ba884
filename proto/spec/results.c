#include "proto/spec/results.h"

#include <stdio.h>
#include <string.h>

static void note(struct cairn_results *results, uint32_t tensor, uint64_t elems)
{
    uint32_t at = 0, *count = &results->tensor_count;
    while (at < *count && results->tensors[at].tensor < tensor) at++;
    if (at < *count && results->tensors[at].tensor == tensor) {
        results->tensors[at].elems += elems;
        return;
    }
    if (at == CAIRN_RESULTS_TENSORS) return;
    if (*count == CAIRN_RESULTS_TENSORS) --*count; // the last one is among the others
    memmove(&results->tensors[at + 1], &results->tensors[at],
            (*count - at) * sizeof results->tensors[0]);
    results->tensors[at].tensor = tensor;
    results->tensors[at].elems = elems;
    ++*count;
}

void cairn_results_add(struct cairn_results *results, uint32_t tensor, uint64_t elems)
{
    if (elems == 0) return;
    results->nonfinite += elems;
    note(results, tensor, elems);
}

void cairn_results_join(struct cairn_results *results, const struct cairn_results *more)
{
    results->nonfinite += more->nonfinite;
    for (uint32_t i = 0; i < more->tensor_count; i++)
        note(results, more->tensors[i].tensor, more->tensors[i].elems);
}

void cairn_results_list(const struct cairn_results *results, const struct cairn_job_spec_data *spec,
                        char out[static CAIRN_RESULTS_BYTES])
{
    const size_t room = CAIRN_RESULTS_BYTES - sizeof " and others";
    uint64_t listed = 0;
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < results->tensor_count; i++) {
        const uint32_t tensor = results->tensors[i].tensor;
        if (tensor >= spec->tensor_count) continue;
        const int more = snprintf(out + used, room - used, "%s%s (%llu)", used > 0 ? ", " : "",
                                  spec->tensors[tensor].name,
                                  (unsigned long long)results->tensors[i].elems);
        if (more < 0 || (size_t)more >= room - used) break;
        used += (size_t)more;
        listed += results->tensors[i].elems;
    }
    out[used] = '\0';
    if (listed < results->nonfinite)
        snprintf(out + used, CAIRN_RESULTS_BYTES - used, "%s", used > 0 ? " and others" : "others");
}

void cairn_results_gradient(const struct cairn_results *results,
                            const struct cairn_job_spec_data *spec, struct cairn_sentence *out)
{
    char tensors[CAIRN_RESULTS_BYTES];
    cairn_results_list(results, spec, tensors);
    if (results->tensor_count > 0)
        cairn_sentence_set(out, "the gradient of %s is not finite", tensors);
    else
        cairn_sentence_set(out, "a gradient is not finite");
    if (results->nonfinite > 0)
        cairn_sentence_add(out, " (%llu element%s)", (unsigned long long)results->nonfinite,
                           results->nonfinite == 1 ? "" : "s");
}
