/* One value of the configuration: from its text, judged by its row of the table, and back. Pure. */
#ifndef CAIRN_BASE_CONFIG_VALUE_H
#define CAIRN_BASE_CONFIG_VALUE_H

#include "server/base/config.h"

/* Judges `text` for the option and, if it is well, stores it at its place in `values`.
 * CAIRN_ERR_CONFIG: the sentence says what is allowed, without file and line; nothing is stored. */
CAIRN_MUST_CHECK cairn_status cairn_config_value_store(const struct cairn_option *option,
                                                       const char *text, void *values,
                                                       struct cairn_sentence *why);

/* Describes for people what the option takes: "1 to 4096", "yes or no", "1MiB to 1GiB". */
void cairn_config_value_describe(const struct cairn_option *option, char *text_out,
                                 size_t text_bytes);

#endif
