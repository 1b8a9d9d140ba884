/* Counts elements that are not finite, by tensor. After an update of finite gradients they may be
 * in a parameter, a moment (the square of a large gradient is infinite, and its parameter never
 * moves again), or the published copy (bf16 ends before fp32). In a round that is skipped they are
 * in the summed gradients. Shards count elements, the coordinator joins their counts. Pure; any
 * thread. */
#ifndef CAIRN_SPEC_RESULTS_H
#define CAIRN_SPEC_RESULTS_H

#include "proto/base/sentence.h"
#include "proto/spec/spec.h"

#define CAIRN_RESULTS_TENSORS 8   /* that are known by name */
#define CAIRN_RESULTS_BYTES   512 /* of their list; a name has 255 at most */

struct cairn_results {
    uint64_t nonfinite; /* elements, of all tensors */
    uint32_t tensor_count;
    struct {
        uint32_t tensor; /* index in the job's list */
        uint64_t elems;
    } tensors[CAIRN_RESULTS_TENSORS]; /* [tensor_count], ascending: the first that have some */
};

/* So many elements of that tensor are not finite. */
void cairn_results_add(struct cairn_results *results, uint32_t tensor, uint64_t elems);
/* And all of `more`, which may have been of more tensors than it has kept. */
void cairn_results_join(struct cairn_results *results, const struct cairn_results *more);
/* "a.weight (3), b (9) and others": elements by tensor, no name is cut; "" if all is finite. */
void cairn_results_list(const struct cairn_results *results, const struct cairn_job_spec_data *spec,
                        char out[static CAIRN_RESULTS_BYTES]);
/* Describes gradients that are not finite, as far as they are known: "the gradient of a.weight (3),
 * b (9) and others is not finite (14 elements)", "a gradient is not finite". */
void cairn_results_gradient(const struct cairn_results *results,
                            const struct cairn_job_spec_data *spec, struct cairn_sentence *out);

#endif
