#include "server/base/log.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES    2048
#define MESSAGE_BYTES 1024

static const char *const level_names[] = { "error", "warn", "info", "debug" };
static char log_name[64];
static atomic_int log_level = CAIRN_LOG_INFO;

void cairn_log_init(const char *name, enum cairn_log_level level)
{
    snprintf(log_name, sizeof log_name, "%s", name != NULL ? name : "");
    atomic_store(&log_level, (int)level);
}

bool cairn_log_level_parse(const char *text, enum cairn_log_level *level_out)
{
    for (size_t i = 0; i < sizeof level_names / sizeof level_names[0]; i++) {
        if (strcmp(text, level_names[i]) != 0) continue;
        *level_out = (enum cairn_log_level)i;
        return true;
    }
    return false;
}

bool cairn_log_enabled(enum cairn_log_level level)
{
    return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

// A line being written; once full, further bytes are dropped.
struct line {
    char *bytes; /* [capacity] */
    size_t capacity;
    size_t used;
};

static void put(struct line *line, const char *text, size_t byte_count)
{
    const size_t room = line->capacity - line->used;
    const size_t taken = byte_count < room ? byte_count : room;
    memcpy(line->bytes + line->used, text, taken);
    line->used += taken;
}

static bool is_plain(const char *value)
{
    if (value[0] == '\0') return false;
    for (const char *p = value; *p != '\0'; p++)
        if (*p <= ' ' || *p > '~' || *p == '"' || *p == '=' || *p == '\\') return false;
    return true;
}

static void put_escaped(struct line *line, char c)
{
    char text[8];
    if (c == '"' || c == '\\')
        snprintf(text, sizeof text, "\\%c", c);
    else if (c == '\n')
        snprintf(text, sizeof text, "\\n");
    else if (c == '\t')
        snprintf(text, sizeof text, "\\t");
    else if (c < ' ' || c > '~')
        snprintf(text, sizeof text, "\\x%02x", (unsigned char)c);
    else
        snprintf(text, sizeof text, "%c", c);
    const size_t length = strlen(text);
    if (length <= line->capacity - line->used) put(line, text, length); // no half escape
}

static void put_field(struct line *line, const char *key, const char *value)
{
    if (line->used > 0) put(line, " ", 1);
    put(line, key, strlen(key));
    put(line, "=", 1);
    if (is_plain(value)) {
        put(line, value, strlen(value));
        return;
    }
    put(line, "\"", 1);
    line->capacity -= line->capacity > 0; // the closing quote always fits
    for (const char *p = value; *p != '\0'; p++) put_escaped(line, *p);
    line->capacity++;
    put(line, "\"", 1);
}

size_t cairn_log_format(char *line_out, size_t line_bytes, const char *time_text, const char *level,
                        const char *name, const char *message, const struct cairn_log_field *fields,
                        size_t field_count)
{
    struct line line = { line_out, line_bytes - 1, 0 };
    put_field(&line, "ts", time_text);
    put_field(&line, "level", level);
    if (name[0] != '\0') put_field(&line, "name", name);
    put_field(&line, "msg", message);
    for (size_t i = 0; i < field_count; i++) {
        char number[24];
        snprintf(number, sizeof number, "%llu", (unsigned long long)fields[i].number);
        put_field(&line, fields[i].key, fields[i].text != NULL ? fields[i].text : number);
    }
    line_out[line.used] = '\n';
    return line.used + 1;
}

static void time_now(char text_out[static 32])
{
    struct timespec now;
    struct tm utc;
    char seconds[24];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text_out, 32, "%s.%03dZ", seconds, (int)(now.tv_nsec / 1000000));
}

// A pipe says so when it takes PIPE_BUF bytes at once, more than a line has; a file always does.
_Static_assert(LINE_BYTES <= PIPE_BUF, "a line fits where there is room");
static bool has_room(void)
{
    struct pollfd out = { .fd = STDERR_FILENO, .events = POLLOUT };
    return poll(&out, 1, 0) != 0;
}

// One write a line, so that lines of threads do not mix. A log that cannot be written is nobody's
// error: there is no place left to say so.
static void put_out(const char *line, size_t line_bytes)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // the room is for one line
    static unsigned long long dropped;
    char text[128];
    pthread_mutex_lock(&lock);
    if (has_room() && dropped > 0) {
        const int length = snprintf(
            text, sizeof text, "level=warn msg=\"lines dropped: nobody read them\" lines=%llu\n",
            dropped);
        if (write(STDERR_FILENO, text, (size_t)length) == length) dropped = 0;
    }
    if (!has_room() || write(STDERR_FILENO, line, line_bytes) < 0) dropped++;
    pthread_mutex_unlock(&lock);
}

static void emit(enum cairn_log_level level, const struct cairn_log_field *fields,
                 size_t field_count, const char *format, va_list args)
{
    char message[MESSAGE_BYTES];
    char line[LINE_BYTES];
    char now[32];
    time_now(now);
    vsnprintf(message, sizeof message, format, args);
    const size_t length = cairn_log_format(line, sizeof line, now, level_names[level], log_name,
                                           message, fields, field_count);
    put_out(line, length);
}

void cairn_log(enum cairn_log_level level, const char *format, ...)
{
    if (!cairn_log_enabled(level)) return;
    va_list args;
    va_start(args, format);
    emit(level, NULL, 0, format, args);
    va_end(args);
}

void cairn_log_fields(enum cairn_log_level level, const struct cairn_log_field *fields,
                      size_t field_count, const char *format, ...)
{
    if (!cairn_log_enabled(level)) return;
    va_list args;
    va_start(args, format);
    emit(level, fields, field_count, format, args);
    va_end(args);
}

void cairn_log_limited(struct cairn_log_limit *limit, enum cairn_log_level level,
                       const char *format, ...)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const uint64_t now_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    if (!cairn_log_enabled(level)) return;
    if (now_ms < limit->next_ms) {
        limit->suppressed++;
        return;
    }
    const struct cairn_log_field field = { "suppressed", NULL, limit->suppressed };
    va_list args;
    va_start(args, format);
    emit(level, &field, limit->suppressed > 0 ? 1 : 0, format, args);
    va_end(args);
    limit->next_ms = now_ms + 1000;
    limit->suppressed = 0;
}
