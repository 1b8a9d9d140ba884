/* Lines of the log (log.h), pure: no clock, no descriptor. */
#ifndef CAIRN_BASE_LOG_LINE_H
#define CAIRN_BASE_LOG_LINE_H

#include <stdarg.h>

#include "server/base/log.h"

#define CAIRN_LOG_FIELDS_MAX 32 /* of a line */

/* Writes at most line_bytes with a newline, no NUL, and returns its length. */
size_t cairn_log_format(enum cairn_log_format format, char *line_out, size_t line_bytes,
                        const char *time, const char *level, const char *name, const char *message,
                        const struct cairn_log_field *fields, size_t field_count);

/* Adds what the words of a sentence make fields of (log.h) behind the `count` that are there. `args`: of the
 * format, and as they were afterwards. Returns how many fields there are then; their texts are the
 * arguments'. */
size_t cairn_log_words(struct cairn_log_field fields[CAIRN_LOG_FIELDS_MAX], size_t count,
                       const char *format, va_list args);

#endif
