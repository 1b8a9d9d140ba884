/* The planes that a job has of each of its tensors, and their dtypes: what a shard holds, a
 * snapshot stores and a digest is made of. All planes and their names: proto/geometry/tensor.h.
 * Pure. */
#ifndef CAIRN_SPEC_PLANES_H
#define CAIRN_SPEC_PLANES_H

#include "proto/spec/spec.h"

/* Bits 1u << CAIRN_PLANE_... of the planes that a tensor has: the master, and those that the
 * optimizer of its group keeps; 0 if it has no elements. The spec is judged. */
uint32_t cairn_spec_planes(const struct cairn_job_spec_data *spec, size_t tensor);
/* The dtype of such a plane's elements: the master's for a param, f32 for planes that an optimizer
 * keeps. */
cairn_dtype cairn_spec_plane_dtype(const struct cairn_job_spec_data *spec, size_t tensor,
                                   uint32_t plane);

#endif
