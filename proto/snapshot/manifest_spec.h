/* The spec of a job as JSON, as it stands in a manifest (manifest.h). Pure. */
#ifndef CAIRN_STORE_MANIFEST_SPEC_H
#define CAIRN_STORE_MANIFEST_SPEC_H

#include <jansson.h>

#include "proto/base/sentence.h"
#include "proto/spec/spec.h"
#include "proto/spec/spec_fields.h"

/* Adds the scalars of a part to the object: of LATER and POLICY those that have not their default. Takes the
 * object; NULL: no memory, or it was NULL. */
json_t *cairn_spec_fields_json(json_t *object, const struct cairn_spec_table *table,
                               enum cairn_spec_part part, const void *from);
/* Takes all of the table's scalars out of the object; what is missing stays as it is in `to`. The kinds are
 * judged, and that a number fits, not what spec_check.c judges. CAIRN_ERR_CORRUPT says what is wrong
 * `where`. */
cairn_status cairn_spec_fields_of_json(json_t *object, const struct cairn_spec_table *table,
                                       const char *where, void *to,
                                       struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* All of a schedule, its points, too. NULL: no memory. */
json_t *cairn_schedule_json(const struct cairn_schedule *schedule);

/* Judges all of it, and takes members out of the object; the tensors must be sorted by name. `spec` is
 * init'ed, and released by the caller, whatever comes back: CAIRN_ERR_CORRUPT, CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_manifest_read_spec(json_t *json, struct cairn_job_spec_data *spec,
                                      struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* The same of what a person wrote: text with the list of tensors, of which each has at least name and
 * shape. Whatever else is missing is at its default: one group, adamw, of all that are trained; kind
 * trained, f32 on the wire, a unit each. Any order. CAIRN_ERR_MALFORMED says what is wrong; `*out` is set
 * on success only. */
cairn_status cairn_spec_of_json(const char *text, size_t text_bytes,
                                struct cairn_job_spec_data *out,
                                struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif
