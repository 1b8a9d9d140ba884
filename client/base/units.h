/* The units of a job: which tensors are fetched together. Made once of a spec, constant afterwards. */
#ifndef CAIRN_CLIENT_BASE_UNITS_H
#define CAIRN_CLIENT_BASE_UNITS_H

#include "proto/spec/spec.h"

struct cairn_units;

/* Borrows the spec. NULL: out of memory. */
struct cairn_units *cairn_units_open(const struct cairn_job_spec_data *spec);
void cairn_units_close(struct cairn_units *units); /* NULL is fine */
/* SIZE_MAX: there is none of that name. */
size_t cairn_units_find(const struct cairn_units *units, const char *name);
/* The unit's tensors, by their index in the spec, ascending: [*count_out]. */
const uint32_t *cairn_units_tensors(const struct cairn_units *units, size_t unit,
                                    size_t *count_out);

#endif
