/* Inside the judge of specs: what the names of tensors say of each other. Private to spec_check.c. */
#ifndef CAIRN_WIRE_SPEC_NAMES_H
#define CAIRN_WIRE_SPEC_NAMES_H

#include "proto/wire/spec.h"

/* No name twice; an alias is of a tensor that is there and no alias, its box inside it. All else of each
 * tensor was judged. As cairn_spec_check. */
cairn_status cairn_spec_check_names(const struct cairn_job_spec_data *spec,
                                    struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* init_from and init_prefix; spec_origin.c. */
cairn_status cairn_spec_check_origin(const struct cairn_job_spec_data *spec,
                                     struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Bytes of the well-formed UTF-8 sequence at s that stands for no control character; 0 if there is
 * none. Unicode 15, table 3-7: no overlong forms, no surrogates, nothing over U+10FFFF. */
size_t cairn_utf8_sequence(const unsigned char *s);

#endif
