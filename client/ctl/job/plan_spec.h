/* The spec of a job out of what a user has: JSON with its tensors, the folder of a snapshot, or weights. */
#ifndef CAIRN_CTL_PLAN_SPEC_H
#define CAIRN_CTL_PLAN_SPEC_H

#include "proto/base/sentence.h"
#include "proto/spec/spec.h"

/* `path` is a folder with a manifest or with .safetensors, a .safetensors file, or JSON. `*out` is set on
 * success only. */
cairn_status cairn_ctl_plan_spec(const char *path, struct cairn_job_spec_data *out,
                                 struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif
