/* Turns the spec that a caller gives of a job into the spec that goes over the wire. */
#ifndef CAIRN_CLIENT_BASE_SPEC_H
#define CAIRN_CLIENT_BASE_SPEC_H

#include <cairn.h>

#include "proto/spec/spec.h"

/* Fills `spec` (initialized, with its name set) from *from: applies defaults, assigns groups by
 * pattern, resolves aliases, makes it canonical and judges it. A failure sets this thread's error
 * sentence; `spec` is then the caller's to release. */
cairn_status cairn_client_spec_fill(const struct cairn_job_spec *from,
                                    struct cairn_job_spec_data *spec,
                                    uint64_t *open_flags_out) CAIRN_MUST_CHECK;
/* How many workers *from says start together with this one, and how long to wait for them, with its
 * default. */
cairn_status cairn_client_spec_launch(const struct cairn_job_spec *from, uint32_t *world_out,
                                      uint32_t *start_wait_ms_out) CAIRN_MUST_CHECK;
/* Appends the tensors of an amendment, which are no aliases; one that is trained and names no group is of
 * "default". As above. */
cairn_status cairn_client_added_fill(const struct cairn_tensor *first, size_t count,
                                     struct cairn_job_spec_data *spec) CAIRN_MUST_CHECK;
/* One group as the wire has it; strings and points stay the caller's. */
struct cairn_group_spec cairn_client_group_of(const struct cairn_group *g);
/* The caller's i-th group of an array, as large as ours. Sets this thread's sentence. */
cairn_status cairn_client_group_take(const struct cairn_group *first, size_t i,
                                     struct cairn_group *out) CAIRN_MUST_CHECK;

#endif
