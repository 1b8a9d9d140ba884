/* The daemon's log: logfmt lines on stderr, one write(2) per line, from any thread. A pipe or socket that
 * nobody reads blocks no thread: lines that do not fit are dropped, and the next line that fits reports how
 * many.
 *
 *   ts=2026-11-21T03:03:17.123Z level=warn name=shard-0 msg="refused chunk 17 ..." peer=w5
 *
 * With log.format = json a line is one object with the same keys. If stderr is systemd's journal, each line
 * begins with its priority as in sd-daemon(3) ("<4>"), which the journal strips.
 *
 * Tools find the subject of a line in its fields, which are made from words of the sentence. If a format
 * has "job %s", "shard %s" or "snapshot %s", or "step %" PRIu64, "round %u", "epoch %u" or "rank %u" (of
 * any width), the line has job=, shard=, ... with the first value of each kind. A string from outside is
 * only a value, and makes no field.
 *
 * Values with spaces, quotes, control or non-ASCII bytes are quoted and escaped, so a stranger's text
 * cannot forge a line. A line is at most 2,048 bytes; longer ones are cut. Volume: error and warn ask for
 * an operator, info is proportional to events of the cluster (members, epochs, snapshots), debug to
 * steps. */
#ifndef CAIRN_BASE_LOG_H
#define CAIRN_BASE_LOG_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/text.h"

enum log_level {
    CAIRN_LOG_ERROR,
    CAIRN_LOG_WARN,
    CAIRN_LOG_INFO,
    CAIRN_LOG_DEBUG,
};

enum log_format { CAIRN_LOG_LOGFMT, CAIRN_LOG_JSON };

/* The log's part of the configuration, which owns the strings. */
struct log_options {
    char *level;  /* "": the level set before applies */
    char *format; /* "logfmt", "json" */
};

/* The rows of a daemon's option table for the member `member` (a struct log_options) of its
 * `struct_type`. */
#define CAIRN_LOG_CONFIG(struct_type, member)                                                      \
    { "log",                                                                                       \
      "level",                                                                                     \
      CAIRN_OPTION_STRING,                                                                         \
      offsetof(struct_type, member.level),                                                         \
      "",                                                                                          \
      0,                                                                                           \
      0,                                                                                           \
      "error, warn, info or debug. Empty: as --log-level says. SIGUSR1 changes it to debug while " \
      "the daemon runs, and back." },                                                              \
    {                                                                                              \
        "log", "format", CAIRN_OPTION_STRING, offsetof(struct_type, member.format), "logfmt", 0,   \
            0, "logfmt (key=value) or json (an object a line)."                                    \
    }

/* Judges whether the words are valid. CAIRN_ERR_CONFIG. */
CAIRN_MUST_CHECK cairn_status log_judge(const struct log_options *options, struct sentence *why);
/* Sets the name of the process in the log (copied, may be NULL) and the lowest level. Call it before any
 * other thread runs. */
void log_init(const char *name, enum log_level level);
/* Sets judged options and the name. Call it like log_init. */
void log_set(const char *name, const struct log_options *options);
/* Switches to debug, or back to the level before. Any thread. Returns whether the level is debug now. */
bool log_toggle_debug(void);
/* Parses "error", "warn", "info", "debug"; false for any other word. */
bool log_level_parse(const char *text, enum log_level *level_out);
bool log_enabled(enum log_level level);

/* Logs a sentence: lower case, exact cause, with the numbers. */
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define log_error(...) log_write(CAIRN_LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_write(CAIRN_LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_write(CAIRN_LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_write(CAIRN_LOG_DEBUG, __VA_ARGS__)

/* Logs a sentence with additional fields beside those made from its words; a key given here replaces a
 * field of the same key that was made from the words:
 *   log_fields(CAIRN_LOG_INFO, CAIRN_FIELDS({ "port", NULL, port }, { "job", name, 0 }),
 *                    "attached %s", worker); */
struct log_field {
    const char *key;
    const char *text; /* NULL: `number` is the value */
    uint64_t number;
};
#define CAIRN_FIELDS(...)                       \
    (const struct log_field[]) { __VA_ARGS__ }, \
        sizeof((const struct log_field[]) { __VA_ARGS__ }) / sizeof(struct log_field)
void log_fields(enum log_level level, const struct log_field *fields, size_t field_count,
                const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Logs at most one line per second of its kind; the next line reports how many were left out
 * (suppressed=N). Use one such struct per kind, zeroed, from one thread. */
struct log_limit {
    uint64_t next_ms; /* by the monotonic clock */
    uint64_t suppressed;
};
void log_limited(struct log_limit *limit, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ==== log line ==== */

/* Formats lines of the log. Pure: no clock, no descriptor. */

#define CAIRN_LOG_FIELDS_MAX 32 /* per line */

/* Writes a line of at most line_bytes with its newline, without a NUL, and returns its length. */
size_t log_format_line(enum log_format format, char *line_out, size_t line_bytes, const char *time,
                       const char *level, const char *name, const char *message,
                       const struct log_field *fields, size_t field_count);

/* ==== wall ==== */

/* The wall clock, which may jump: somebody sets it by hand, NTP sets it after a start, or the clock's
 * battery fails.
 *
 * Nothing that must be right depends on it: leases, deadlines and intervals use the loop's clock, and the
 * newest snapshot is found by its version. server/README.md lists what still uses the wall clock. */

#define CAIRN_WALL_SKEW_S     60 /* a smaller step of the clock is no jump */
#define CAIRN_WALL_JUMP_BYTES 48

/* All zero: the clock was not read yet. */
struct wall {
    bool begun, jumped;
    int64_t unix_s;                 /* at the last look */
    uint64_t steady_s, jumped_at_s; /* by a steady clock: at the last look, and at the last jump */
};

/* Notes that the wall clock shows unix_s at the time steady_s of a steady clock. Returns by how much the
 * wall clock jumped since the last look; 0: it did not jump. */
int64_t wall_look(struct wall *wall, int64_t unix_s, uint64_t steady_s);
/* Notes that the clock may have jumped before the first look. */
void wall_doubt(struct wall *wall);
/* Returns the time since the last jump; UINT64_MAX if none was seen. */
uint64_t wall_sound_s(const struct wall *wall);
/* Describes a jump: "1 day ahead", "10 years back". */
void wall_jump_text(int64_t jump_s, char out[CAIRN_WALL_JUMP_BYTES]);

/* Reads both clocks. If the wall clock jumped, logs that, describes the jump in `out`, and returns true. */
bool wall_watch(struct wall *wall, char out[CAIRN_WALL_JUMP_BYTES]);
/* Returns the wall clock; 0 if it is before 1970. */
uint64_t wall_unix_s(void);

#endif
