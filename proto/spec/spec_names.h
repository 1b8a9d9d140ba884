/* Inside the judge of specs: what the names of tensors say of each other. Private to spec_check.c. */
#ifndef CAIRN_SPEC_SPEC_NAMES_H
#define CAIRN_SPEC_SPEC_NAMES_H

#include "proto/spec/spec.h"

/* No name twice; an alias is of a tensor that is there and no alias, its box inside it. All else of each
 * tensor was judged. As cairn_spec_check. */
cairn_status cairn_spec_check_names(const struct cairn_job_spec_data *spec,
                                    struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* init_from and init_prefix; spec_origin.c. */
cairn_status cairn_spec_check_origin(const struct cairn_job_spec_data *spec,
                                     struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif
