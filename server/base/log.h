/* The daemon's log: logfmt lines on stderr, one write(2) a line, from any thread. A pipe or socket that
 * nobody reads holds nobody up: what does not fit is dropped, and the next line that does says how many.
 *
 *   ts=2026-11-21T03:03:17.123Z level=warn name=shard-0 msg="refused chunk 17 ..." peer=w5
 *
 * Values with spaces, quotes, control or non-ASCII bytes are quoted and escaped, so a stranger's
 * text cannot forge a line. A line is at most 2,048 bytes; longer ones are cut. Volume: error and
 * warn ask for an operator, info is proportional to events of the cluster (members, epochs,
 * snapshots), debug to steps. */
#ifndef CAIRN_BASE_LOG_H
#define CAIRN_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

enum cairn_log_level {
    CAIRN_LOG_ERROR,
    CAIRN_LOG_WARN,
    CAIRN_LOG_INFO,
    CAIRN_LOG_DEBUG,
};

/* Who logs (copied, may be NULL) and down to which level. Before any other thread runs. */
void cairn_log_init(const char *name, enum cairn_log_level level);
/* "error", "warn", "info", "debug"; false for another word. */
bool cairn_log_level_parse(const char *text, enum cairn_log_level *level_out);
bool cairn_log_enabled(enum cairn_log_level level);

/* A sentence. Lower case, exact cause, with the numbers. */
void cairn_log(enum cairn_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#define cairn_log_error(...) cairn_log(CAIRN_LOG_ERROR, __VA_ARGS__)
#define cairn_log_warn(...)  cairn_log(CAIRN_LOG_WARN, __VA_ARGS__)
#define cairn_log_info(...)  cairn_log(CAIRN_LOG_INFO, __VA_ARGS__)
#define cairn_log_debug(...) cairn_log(CAIRN_LOG_DEBUG, __VA_ARGS__)

/* A sentence with fields that tools read:
 *   cairn_log_fields(CAIRN_LOG_INFO, CAIRN_FIELDS({ "port", NULL, port }, { "job", name, 0 }),
 *                    "attached %s", worker); */
struct cairn_log_field {
    const char *key;
    const char *text; /* NULL: `number` is the value */
    uint64_t number;
};
#define CAIRN_FIELDS(...)                             \
    (const struct cairn_log_field[]) { __VA_ARGS__ }, \
        sizeof((const struct cairn_log_field[]) { __VA_ARGS__ }) / sizeof(struct cairn_log_field)
void cairn_log_fields(enum cairn_log_level level, const struct cairn_log_field *fields,
                      size_t field_count, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* At most one line a second of its kind; the next one says how many were left out
 * (suppressed=N). One such struct per kind, zeroed, of one thread. */
struct cairn_log_limit {
    uint64_t next_ms; /* of the monotonic clock */
    uint64_t suppressed;
};
void cairn_log_limited(struct cairn_log_limit *limit, enum cairn_log_level level,
                       const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The formatting of a line, for tests: writes at most line_bytes with a newline, no NUL, and
 * returns its length. */
size_t cairn_log_format(char *line_out, size_t line_bytes, const char *time, const char *level,
                        const char *name, const char *message, const struct cairn_log_field *fields,
                        size_t field_count);

#endif
