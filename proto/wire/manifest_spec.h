/* The spec of a job as JSON, as it stands in a manifest (manifest.h). Pure. */
#ifndef CAIRN_WIRE_MANIFEST_SPEC_H
#define CAIRN_WIRE_MANIFEST_SPEC_H

#include <jansson.h>

#include "proto/wire/sentence.h"
#include "proto/wire/spec.h"

/* Judges all of it; the tensors must be sorted by name. `spec` is init'ed, and released by the caller,
 * whatever comes back: CAIRN_ERR_CORRUPT, CAIRN_ERR_NO_MEMORY. */
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
