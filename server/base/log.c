#include "server/base/log_line.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES    2048
#define MESSAGE_BYTES 1024

static const char *const level_names[] = { "error", "warn", "info", "debug" };
static const char *const format_names[] = { "logfmt", "json" };
enum {
    LEVELS = sizeof level_names / sizeof *level_names,
    FORMATS = sizeof format_names / sizeof *format_names
};
static char log_name[64];
static atomic_int log_level = CAIRN_LOG_INFO;
static atomic_int level_before = CAIRN_LOG_INFO; // what a second toggle goes back to
static enum cairn_log_format log_format = CAIRN_LOG_LOGFMT;
static bool is_journal; // stderr is

/* systemd.exec(5): JOURNAL_STREAM names the device and the inode of the stream that it gave us. */
static bool find_journal(void)
{
    const char *text = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat info;
    return text != NULL && sscanf(text, "%llu:%llu", &device, &inode) == 2 &&
           fstat(STDERR_FILENO, &info) == 0 && info.st_dev == device && info.st_ino == inode;
}

void cairn_log_init(const char *name, enum cairn_log_level level)
{
    snprintf(log_name, sizeof log_name, "%s", name != NULL ? name : "");
    atomic_store(&log_level, (int)level);
    atomic_store(&level_before, (int)level);
    is_journal = find_journal();
}

/* The place of a word in a list; `count`: it is not there. */
static size_t find_name(const char *const *names, size_t count, const char *text)
{
    size_t i = 0;
    while (i < count && strcmp(text, names[i]) != 0) i++;
    return i;
}

bool cairn_log_level_parse(const char *text, enum cairn_log_level *level_out)
{
    const size_t i = find_name(level_names, LEVELS, text);
    if (i < LEVELS) *level_out = (enum cairn_log_level)i;
    return i < LEVELS;
}

static bool parse_format(const char *text, enum cairn_log_format *format_out)
{
    const size_t i = find_name(format_names, FORMATS, text);
    if (i < FORMATS) *format_out = (enum cairn_log_format)i;
    return i < FORMATS;
}

cairn_status cairn_log_judge(const struct cairn_log_options *options, struct cairn_sentence *why)
{
    enum cairn_log_level level;
    enum cairn_log_format format;
    if (options->level[0] != '\0' && !cairn_log_level_parse(options->level, &level))
        return cairn_fail(why, CAIRN_ERR_CONFIG,
                          "log.level is \"%.100s\": give error, warn, info or debug",
                          options->level);
    if (!parse_format(options->format, &format))
        return cairn_fail(why, CAIRN_ERR_CONFIG, "log.format is \"%.100s\": give logfmt or json",
                          options->format);
    return CAIRN_OK;
}

void cairn_log_set(const char *name, const struct cairn_log_options *options)
{
    enum cairn_log_level level = (enum cairn_log_level)atomic_load(&log_level);
    (void)cairn_log_level_parse(options->level, &level);
    (void)parse_format(options->format, &log_format);
    cairn_log_init(name, level);
}

bool cairn_log_toggle_debug(void)
{
    const int before = atomic_load(&level_before);
    const bool debug = atomic_load(&log_level) != CAIRN_LOG_DEBUG || before == CAIRN_LOG_DEBUG;
    atomic_store(&log_level, debug ? CAIRN_LOG_DEBUG : before);
    return debug;
}

bool cairn_log_enabled(enum cairn_log_level level)
{
    return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
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

// A whole line, with its priority where the journal reads it. Returns its length.
static size_t make_line(char line[LINE_BYTES], enum cairn_log_level level, const char *message,
                        const struct cairn_log_field *fields, size_t field_count)
{
    static const char priorities[] = { '3', '4', '6', '7' }; // of syslog(3), by level
    const char head[] = { '<', priorities[level], '>' };
    const size_t before = is_journal ? sizeof head : 0;
    char now[32];
    time_now(now);
    memcpy(line, head, sizeof head);
    return before + cairn_log_format(log_format, line + before, LINE_BYTES - before, now,
                                     level_names[level], log_name, message, fields, field_count);
}

// One write a line, so that lines of threads do not mix. A log that cannot be written is nobody's
// error: there is no place left to say so.
static void put_out(const char *line, size_t line_bytes)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // the room is for one line
    static uint64_t dropped;
    char text[LINE_BYTES];
    pthread_mutex_lock(&lock);
    if (has_room() && dropped > 0) {
        const size_t length = make_line(text, CAIRN_LOG_WARN, "lines dropped: nobody read them",
                                        CAIRN_FIELDS({ "lines", NULL, dropped }));
        if (write(STDERR_FILENO, text, length) == (ssize_t)length) dropped = 0;
    }
    if (!has_room() || write(STDERR_FILENO, line, line_bytes) < 0) dropped++;
    pthread_mutex_unlock(&lock);
}

static void emit(enum cairn_log_level level, const struct cairn_log_field *fields,
                 size_t field_count, const char *format, va_list args)
{
    char message[MESSAGE_BYTES], line[LINE_BYTES];
    struct cairn_log_field all[CAIRN_LOG_FIELDS_MAX];
    size_t count = 0;
    for (; count < field_count && count < CAIRN_LOG_FIELDS_MAX; count++) all[count] = fields[count];
    count = cairn_log_words(all, count, format, args);
    vsnprintf(message, sizeof message, format, args);
    put_out(line, make_line(line, level, message, all, count));
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
