/* The daemon's log. Any thread may log; each line is written to stderr by one write(2), in the format
 * logfmt. If stderr is a pipe or socket that nobody reads, no thread is blocked: lines for which there is
 * no room are dropped, and as soon as there is room a line says how many.
 *
 *   ts=2026-11-21T03:03:17.123Z level=warn name=shard-0 msg="refused chunk 17 ..." peer=w5
 *
 * With log.format = json a line is one JSON object with the same keys. If stderr is systemd's journal, each
 * line begins with its priority, as in sd-daemon(3) ("<4>"); the journal removes the priority.
 *
 * A line also has fields by which tools find its subject, and these are made from words of the sentence. If
 * the format has "job %s", "shard %s" or "snapshot %s", or "step %u", "round %u", "epoch %u" or "rank %u"
 * (the number may have any width), the line has the field job=, shard= and so on, with the first value of
 * each kind. Only the format makes fields: words in a string that comes from outside make none.
 *
 * A value with spaces, quotes, control bytes or bytes beyond ASCII is quoted and escaped, so that a
 * stranger's text cannot forge a line. A line has at most 2,048 bytes; a longer line is cut. Lines of the
 * levels error and warn need an operator. The number of info lines grows with the events of the cluster
 * (members, epochs, snapshots), and the number of debug lines with the steps. */
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
    char *level;  /* "": the level stays as it was set before */
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

/* Judges whether the level and the format are valid. CAIRN_ERR_CONFIG. */
CAIRN_MUST_CHECK cairn_status log_judge(const struct log_options *options, struct sentence *why);
/* Sets the level, and the name of the process in the log. The name is copied, and may be NULL. Call before
 * any other thread runs. */
void log_init(const char *name, enum log_level level);
/* Sets the options, which log_judge has accepted, and the name. Call before any other thread runs. */
void log_set(const char *name, const struct log_options *options);
/* Switches to debug, or back to the level before. Any thread. Returns whether the level is debug now. */
bool log_toggle_debug(void);
/* Parses "error", "warn", "info", "debug"; false for any other word. */
bool log_level_parse(const char *text, enum log_level *level_out);
bool log_enabled(enum log_level level);

/* Logs a sentence, which begins in lower case, and gives the exact cause with its numbers. */
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define log_error(...) log_write(CAIRN_LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_write(CAIRN_LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_write(CAIRN_LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_write(CAIRN_LOG_DEBUG, __VA_ARGS__)

/* Logs a sentence with additional fields. If a field that is made from the sentence's words has the key of
 * an additional field, only the additional field is written.
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

/* Logs at most one line of a kind per second. The next line of the kind says how many were left out
 * (suppressed=N). Each kind has a struct log_limit, which is zeroed at first, and used by one thread. */
struct log_limit {
    uint64_t next_ms; /* by the monotonic clock */
    uint64_t suppressed;
};
void log_limited(struct log_limit *limit, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ==== log line ==== */

/* Formats lines of the log. Pure: no clock, no descriptor. */

#define CAIRN_LOG_FIELDS_MAX 32 /* the most fields of a line */

/* Writes a line with its newline, but without a NUL, and returns its length, which is at most
 * line_bytes. */
size_t log_format_line(enum log_format format, char *line_out, size_t line_bytes, const char *time,
                       const char *level, const char *name, const char *message,
                       const struct log_field *fields, size_t field_count);

/* ==== wall ==== */

/* The wall clock may jump, because somebody sets it by hand, NTP sets it after a start, or its battery
 * fails.
 *
 * Nothing that must be right depends on the wall clock: leases, deadlines and intervals use the loop's
 * clock, and the newest snapshot is found by its version. server/README.md lists what uses the wall clock
 * all the same. */

#define CAIRN_WALL_SKEW_S     60 /* a change of at most this many seconds is no jump */
#define CAIRN_WALL_JUMP_BYTES 48

/* All zero: the clock was not read yet. */
struct wall {
    bool begun, jumped;
    int64_t unix_s; /* the wall clock at the last look */
    /* the steady clock: steady_s at the last look, jumped_at_s at the last jump */
    uint64_t steady_s, jumped_at_s;
};

/* A look: notes that the wall clock shows unix_s while a steady clock shows steady_s. Returns how far the
 * wall clock jumped since the last look; 0: it did not jump. */
int64_t wall_look(struct wall *wall, int64_t unix_s, uint64_t steady_s);
/* Notes that the clock may have jumped before the first look. */
void wall_doubt(struct wall *wall);
/* Returns the time since the last jump; UINT64_MAX if no jump was seen. */
uint64_t wall_sound_s(const struct wall *wall);
/* Describes a jump, as "1 day ahead" or "10 years back". */
void wall_jump_text(int64_t jump_s, char out[CAIRN_WALL_JUMP_BYTES]);

/* Reads both clocks. If the wall clock jumped, logs that, describes the jump in `out`, and returns true. */
bool wall_watch(struct wall *wall, char out[CAIRN_WALL_JUMP_BYTES]);
/* Returns the wall clock; 0 if it is before 1970. */
uint64_t wall_unix_s(void);

#endif
