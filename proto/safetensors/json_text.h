/* Parses JSON text of others: manifests, headers, indexes. */
#ifndef CAIRN_SAFETENSORS_JSON_TEXT_H
#define CAIRN_SAFETENSORS_JSON_TEXT_H

#include <jansson.h>
#include <stddef.h>

#include "proto/base/status.h"

/* CAIRN_ERR_MALFORMED: it is not JSON, or has a key twice; error_out says why and where. CAIRN_ERR_NO_MEMORY.
 * The caller releases *root_out by json_decref. */
CAIRN_MUST_CHECK cairn_status json_text_parse(const char *text, size_t bytes, json_t **root_out,
                                              json_error_t *error_out);

#endif
