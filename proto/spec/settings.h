/* A field of a spec given as words, KEY and VALUE, for a job that is there: `cairn job amend --set`,
 * `cairn job create --from --set`, cairn_amend's settings, m.amend(stage=3). One judgement for all of them.
 *
 *   stage, micro_batches, …        a scalar of the job: a row of spec_fields.h
 *   GROUP.lr, GROUP.schedule, …    a hyper-parameter of a group, or of its schedule; GROUP.points:
 * "0:1,9:0.5"
 *   wire, TENSOR.wire              the dtype of what is fetched, of all tensors (but blobs) or of one
 *
 * A VALUE is a number, a word ("skip", "cosine", "bf16"), or yes and no. Pure. */
#ifndef CAIRN_SPEC_SETTINGS_H
#define CAIRN_SPEC_SETTINGS_H

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/spec/spec.h"
#include "proto/spec/spec_fields.h"

#define CAIRN_SETTINGS_MAX 1024 /* of one request */

/* Sets the field that `key` names in a copy of an existing job's spec: after a failure the copy is
 * half changed. Rules of two fields are judged afterwards, by spec_canonicalize and
 * spec_check. *change_out: how the job comes to the new value. CAIRN_ERR_NOT_FOUND: no such
 * field, group or tensor; `why` lists the fields that there are. CAIRN_ERR_INVALID,
 * CAIRN_ERR_UNSUPPORTED: `why` names field, value and what is allowed. CAIRN_ERR_NO_MEMORY. */
cairn_status spec_set(struct job_spec_data *spec, const char *key, const char *value,
                      enum spec_change *change_out, struct sentence *why) CAIRN_MUST_CHECK;
/* How a job comes from one value of a scalar to another: as its row says, except that stage 0 lies
 * on one shard. */
enum spec_change spec_change_of(const struct spec_field *field, uint64_t was_bits, uint64_t bits);

/* The value of a field as spec_set takes it: "3", "0.1", "skip", "yes". */
#define CAIRN_SETTING_TEXT_MAX 63
void spec_setting_text(const struct spec_field *field, const void *from,
                       char text_out[static CAIRN_SETTING_TEXT_MAX + 1]);

#endif
