#include "server/base/log.h"

#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/machine.h"
#include "proto/base/text.h"

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
static atomic_int level_before = CAIRN_LOG_INFO; // the level that the next toggle restores
static enum log_format line_format = CAIRN_LOG_LOGFMT;
static bool is_journal; // stderr is the journal

/* ==== log line ==== */

/* Formats a line of the log: a message and its fields, and the fields that are made from words of the
 * sentence. */

/* ---- writing one ---- */

// A line that is being written. When it is full, further bytes are dropped.
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

/* Writes one character, and escapes it if necessary; in JSON as RFC 8259, section 7, says. Each byte that
 * is not printable ASCII is escaped alone. */
static void put_escaped(struct line *line, char c, enum log_format format)
{
    const bool json = format == CAIRN_LOG_JSON;
    char text[8];
    if (c == '"' || c == '\\')
        snprintf(text, sizeof text, "\\%c", c);
    else if (!json && c == '\n')
        snprintf(text, sizeof text, "\\n");
    else if (!json && c == '\t')
        snprintf(text, sizeof text, "\\t");
    else if (c < ' ' || c > '~')
        snprintf(text, sizeof text, json ? "\\u%04x" : "\\x%02x", (unsigned char)c);
    else
        snprintf(text, sizeof text, "%c", c);
    const size_t length = strlen(text);
    if (length <= line->capacity - line->used) put(line, text, length); // an escape is never cut
}

static void put_quoted(struct line *line, const char *value, enum log_format format)
{
    if (line->capacity - line->used < 2) return;
    put(line, "\"", 1);
    line->capacity--; // keeps room for the closing quote
    for (const char *p = value; *p != '\0';) {
        const size_t length = format == CAIRN_LOG_JSON ? text_beyond_ascii(p) : 0;
        if (length == 0)
            put_escaped(line, *p, format);
        else if (length <= line->capacity - line->used) // a character is never cut
            put(line, p, length);
        p += length > 0 ? length : 1;
    }
    line->capacity++;
    put(line, "\"", 1);
}

static void put_field(struct line *line, const char *key, const char *value)
{
    if (line->used > 0) put(line, " ", 1);
    put(line, key, strlen(key));
    put(line, "=", 1);
    if (is_plain(value))
        put(line, value, strlen(value));
    else
        put_quoted(line, value, CAIRN_LOG_LOGFMT);
}

static void put_json_field(struct line *line, const char *key, const char *value, bool is_number)
{
    put(line, line->used == 0 ? "{" : ",", 1);
    put_quoted(line, key, CAIRN_LOG_JSON);
    put(line, ":", 1);
    if (is_number)
        put(line, value, strlen(value));
    else
        put_quoted(line, value, CAIRN_LOG_JSON);
}

size_t log_format_line(enum log_format format, char *line_out, size_t line_bytes,
                       const char *time_text, const char *level, const char *name,
                       const char *message, const struct log_field *fields, size_t field_count)
{
    const bool json = format == CAIRN_LOG_JSON;
    const char *const heads[][2] = {
        { "ts", time_text }, { "level", level }, { "name", name }, { "msg", message }
    };
    struct line line = { line_out, line_bytes - (json ? 2 : 1), 0 };
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        if (heads[i][1] == name && name[0] == '\0') continue;
        if (json)
            put_json_field(&line, heads[i][0], heads[i][1], false);
        else
            put_field(&line, heads[i][0], heads[i][1]);
    }
    for (size_t i = 0; i < field_count; i++) {
        char number[24];
        const bool is_number = fields[i].text == NULL;
        snprintf(number, sizeof number, "%" PRIu64, fields[i].number);
        const char *value = is_number ? number : fields[i].text;
        const size_t used = line.used;
        if (!json)
            put_field(&line, fields[i].key, value);
        else if (strlen(fields[i].key) + 6 * strlen(value) + 8 < line.capacity - used)
            put_json_field(&line, fields[i].key, value, is_number); // part of a field is no JSON
    }
    if (json) line_out[line.used++] = '}';
    line_out[line.used] = '\n';
    return line.used + 1;
}

/* ---- fields that words make ---- */

static const struct {
    const char *word; /* the word before a conversion, which is also the key of the field */
    bool is_text;
} words[] = { { "job", true },    { "shard", true },  { "snapshot", true }, { "step", false },
              { "round", false }, { "epoch", false }, { "rank", false } };

enum { WORDS = sizeof words / sizeof *words };

// One conversion of a printf format, which determines the type of its argument.
struct conversion {
    int longs;        // the number of "l"; "z", "j" and "t" count as two
    char kind;        // 'd', 's', 'f', ...
    const char *end;  // the character after the conversion
    int stars;        // the number of widths and precisions that are arguments
    bool is_bare;     // the conversion has no flags, width or precision
    bool is_long_one; // "L"
};

static struct conversion read_conversion(const char *at) // `at` is after '%'
{
    struct conversion c = { .is_bare = true };
    for (; *at != '\0' && strchr("-+ #0123456789.*", *at) != NULL; at++) {
        c.stars += *at == '*';
        c.is_bare = false;
    }
    for (; *at != '\0' && strchr("hlzjtL", *at) != NULL; at++) {
        c.longs += *at == 'l' ? 1 : *at == 'z' || *at == 'j' || *at == 't' ? 2 : 0;
        c.is_long_one |= *at == 'L';
    }
    c.kind = *at;
    c.end = *at != '\0' ? at + 1 : at;
    return c;
}

// A list of arguments that functions take one by one.
struct arguments {
    va_list list;
};

static long long take_signed(struct arguments *args, int longs)
{
    if (longs == 0) return va_arg(args->list, int);
    return longs == 1 ? va_arg(args->list, long) : va_arg(args->list, long long);
}

static uint64_t take_unsigned(struct arguments *args, int longs)
{
    if (longs == 0) return va_arg(args->list, unsigned);
    return longs == 1 ? va_arg(args->list, unsigned long) : va_arg(args->list, uint64_t);
}

// Takes the next argument. Returns true if it can be the value of a field: a text, or a decimal number that
// is not negative.
static bool take_argument(const struct conversion *c, struct arguments *args, struct log_field *out)
{
    *out = (struct log_field) { .key = NULL };
    switch (c->kind) {
    case '\0':
    case '%':
    case 'm': return false; // the conversion has no argument
    case 'd':
    case 'i': {
        const long long value = take_signed(args, c->longs);
        out->number = (uint64_t)value;
        return value >= 0;
    }
    case 'u':
    case 'x':
    case 'X':
    case 'o': out->number = take_unsigned(args, c->longs); return c->kind == 'u';
    case 's': out->text = va_arg(args->list, const char *); return c->is_bare && out->text != NULL;
    case 'c': (void)va_arg(args->list, int); return false;
    case 'p': (void)va_arg(args->list, void *); return false;
    default: // a floating-point number
        if (c->is_long_one)
            (void)va_arg(args->list, long double);
        else
            (void)va_arg(args->list, double);
        return false;
    }
}

// Returns the index of the word in `words` that stands right before `at`; WORDS if there is none.
static size_t find_word(const char *format, const char *at)
{
    for (size_t i = 0; i < WORDS; i++) {
        const size_t length = strlen(words[i].word);
        if ((size_t)(at - format) < length + 1 || at[-1] != ' ') continue;
        const char *word = at - 1 - length;
        const bool is_whole = word == format || word[-1] == ' ' || word[-1] == '(';
        if (is_whole && strncmp(word, words[i].word, length) == 0) return i;
    }
    return WORDS;
}

static bool has_key(const struct log_field *fields, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(fields[i].key, key) == 0) return true;
    return false;
}

/* Adds the fields that are made from words of a sentence (log.h) after the `count` existing fields. `args`
 * are the arguments of `format`, and are left unchanged. Returns the new number of fields; their texts
 * belong to the arguments. */
static size_t log_words(struct log_field fields[CAIRN_LOG_FIELDS_MAX], size_t count,
                        const char *format, va_list args)
{
    struct arguments left;
    va_copy(left.list, args);
    for (const char *at = strchr(format, '%'); at != NULL; at = strchr(at, '%')) {
        const struct conversion c = read_conversion(at + 1);
        struct log_field field;
        const size_t word = find_word(format, at);
        for (int i = 0; i < c.stars; i++) (void)va_arg(left.list, int);
        const bool is_value = take_argument(&c, &left, &field);
        at = c.end;
        if (word == WORDS || !is_value || words[word].is_text != (c.kind == 's')) continue;
        field.key = words[word].word;
        if (count < CAIRN_LOG_FIELDS_MAX && !has_key(fields, count, field.key))
            fields[count++] = field;
    }
    va_end(left.list);
    return count;
}

/* ==== log ==== */

/* True if stderr is the journal. JOURNAL_STREAM has the device and the inode of the stream that systemd
 * gave to this process (systemd.exec(5)). */
static bool find_journal(void)
{
    const char *text = getenv("JOURNAL_STREAM");
    uint64_t device, inode;
    struct stat info;
    return text != NULL && sscanf(text, "%" PRIu64 ":%" PRIu64, &device, &inode) == 2 &&
           fstat(STDERR_FILENO, &info) == 0 && info.st_dev == device && info.st_ino == inode;
}

void log_init(const char *name, enum log_level level)
{
    snprintf(log_name, sizeof log_name, "%s", name != NULL ? name : "");
    atomic_store(&log_level, (int)level);
    atomic_store(&level_before, (int)level);
    is_journal = find_journal();
}

/* Returns the index of `text` in `names`; `count` if it is not there. */
static size_t find_name(const char *const *names, size_t count, const char *text)
{
    size_t i = 0;
    while (i < count && strcmp(text, names[i]) != 0) i++;
    return i;
}

bool log_level_parse(const char *text, enum log_level *level_out)
{
    const size_t i = find_name(level_names, LEVELS, text);
    if (i < LEVELS) *level_out = (enum log_level)i;
    return i < LEVELS;
}

static bool parse_format(const char *text, enum log_format *format_out)
{
    const size_t i = find_name(format_names, FORMATS, text);
    if (i < FORMATS) *format_out = (enum log_format)i;
    return i < FORMATS;
}

cairn_status log_judge(const struct log_options *options, struct sentence *why)
{
    enum log_level level;
    enum log_format format;
    if (options->level[0] != '\0' && !log_level_parse(options->level, &level))
        return fail_with(why, CAIRN_ERR_CONFIG,
                         "log.level is \"%.100s\": give error, warn, info or debug",
                         options->level);
    if (!parse_format(options->format, &format))
        return fail_with(why, CAIRN_ERR_CONFIG, "log.format is \"%.100s\": give logfmt or json",
                         options->format);
    return CAIRN_OK;
}

void log_set(const char *name, const struct log_options *options)
{
    enum log_level level = (enum log_level)atomic_load(&log_level);
    (void)log_level_parse(options->level, &level);
    (void)parse_format(options->format, &line_format);
    log_init(name, level);
}

bool log_toggle_debug(void)
{
    const int before = atomic_load(&level_before);
    const bool debug = atomic_load(&log_level) != CAIRN_LOG_DEBUG || before == CAIRN_LOG_DEBUG;
    atomic_store(&log_level, debug ? CAIRN_LOG_DEBUG : before);
    return debug;
}

bool log_enabled(enum log_level level)
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

// True if stderr can take a line. poll() reports a pipe as writable if it can take PIPE_BUF bytes, and a
// line is not longer. A file is always writable.
_Static_assert(LINE_BYTES <= PIPE_BUF, "a line fits where there is room");
static bool has_room(void)
{
    struct pollfd out = { .fd = STDERR_FILENO, .events = POLLOUT };
    return poll(&out, 1, 0) != 0;
}

// Formats a complete line, with its priority if the journal reads it. Returns its length.
static size_t make_line(char line[LINE_BYTES], enum log_level level, const char *message,
                        const struct log_field *fields, size_t field_count)
{
    static const char priorities[] = { '3', '4', '6', '7' }; // as in syslog(3), by level
    const char head[] = { '<', priorities[level], '>' };
    const size_t before = is_journal ? sizeof head : 0;
    char now[32];
    time_now(now);
    memcpy(line, head, sizeof head);
    return before + log_format_line(line_format, line + before, LINE_BYTES - before, now,
                                    level_names[level], log_name, message, fields, field_count);
}

// Writes a line by one write(2), so that lines of different threads do not mix. If the write fails, the
// line only counts as dropped, because there is no other place to report it.
static void put_out(const char *line, size_t line_bytes)
{
    // the room that has_room() finds is for one line
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t dropped;
    char text[LINE_BYTES];
    HOLD_LOCK(&lock);
    if (has_room() && dropped > 0) {
        const size_t length = make_line(text, CAIRN_LOG_WARN, "lines dropped: nobody read them",
                                        CAIRN_FIELDS({ "lines", NULL, dropped }));
        if (write(STDERR_FILENO, text, length) == (ssize_t)length) dropped = 0;
    }
    if (!has_room() || write(STDERR_FILENO, line, line_bytes) < 0) dropped++;
}

static void emit(enum log_level level, const struct log_field *fields, size_t field_count,
                 const char *format, va_list args)
{
    char message[MESSAGE_BYTES], line[LINE_BYTES];
    struct log_field all[CAIRN_LOG_FIELDS_MAX];
    size_t count = 0;
    for (; count < field_count && count < CAIRN_LOG_FIELDS_MAX; count++) all[count] = fields[count];
    count = log_words(all, count, format, args);
    vsnprintf(message, sizeof message, format, args);
    put_out(line, make_line(line, level, message, all, count));
}

void log_write(enum log_level level, const char *format, ...)
{
    if (!log_enabled(level)) return;
    va_list args;
    va_start(args, format);
    emit(level, NULL, 0, format, args);
    va_end(args);
}

void log_fields(enum log_level level, const struct log_field *fields, size_t field_count,
                const char *format, ...)
{
    if (!log_enabled(level)) return;
    va_list args;
    va_start(args, format);
    emit(level, fields, field_count, format, args);
    va_end(args);
}

void log_limited(struct log_limit *limit, enum log_level level, const char *format, ...)
{
    const uint64_t now_ms = monotonic_ms();
    if (!log_enabled(level)) return;
    if (now_ms < limit->next_ms) {
        limit->suppressed++;
        return;
    }
    const struct log_field field = { "suppressed", NULL, limit->suppressed };
    va_list args;
    va_start(args, format);
    emit(level, &field, limit->suppressed > 0 ? 1 : 0, format, args);
    va_end(args);
    limit->next_ms = now_ms + 1000;
    limit->suppressed = 0;
}

/* ==== wall ==== */

int64_t wall_look(struct wall *wall, int64_t unix_s, uint64_t steady_s)
{
    const int64_t passed_s = (int64_t)(steady_s - wall->steady_s);
    int64_t jump_s = wall->begun ? unix_s - wall->unix_s - passed_s : 0;
    if (jump_s >= -CAIRN_WALL_SKEW_S && jump_s <= CAIRN_WALL_SKEW_S) jump_s = 0;
    wall->begun = true;
    wall->unix_s = unix_s;
    wall->steady_s = steady_s;
    if (jump_s != 0) wall_doubt(wall);
    return jump_s;
}

void wall_doubt(struct wall *wall)
{
    wall->jumped = true;
    wall->jumped_at_s = wall->steady_s;
}

uint64_t wall_sound_s(const struct wall *wall)
{
    return wall->jumped ? wall->steady_s - wall->jumped_at_s : UINT64_MAX;
}

void wall_jump_text(int64_t jump_s, char out[CAIRN_WALL_JUMP_BYTES])
{
    static const struct {
        uint64_t s;
        const char *name;
    } units[] = {
        { 31557600, "year" }, { 86400, "day" }, { 3600, "hour" }, { 60, "minute" }, { 1, "second" }
    };
    const uint64_t size_s = jump_s < 0 ? -(uint64_t)jump_s : (uint64_t)jump_s;
    size_t u = 0;
    while (units[u].s > 1 && size_s + units[u].s / 100 < units[u].s) u++;
    const uint64_t count = (size_s + units[u].s / 2) / units[u].s;
    snprintf(out, CAIRN_WALL_JUMP_BYTES, "%" PRIu64 " %s%s %s", count, units[u].name,
             count == 1 ? "" : "s", jump_s < 0 ? "back" : "ahead");
}

uint64_t wall_unix_s(void)
{
    const time_t now = time(NULL);
    return now > 0 ? (uint64_t)now : 0;
}

/* A steady clock that goes on while the host sleeps. */
static uint64_t wall_steady_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec;
}

bool wall_watch(struct wall *wall, char out[CAIRN_WALL_JUMP_BYTES])
{
    const int64_t jump_s = wall_look(wall, (int64_t)time(NULL), wall_steady_s());
    if (jump_s == 0) return false;
    wall_jump_text(jump_s, out);
    log_warn("the clock of this host jumped, %s: times in logs, events and lists of snapshots "
             "are off; no step, lease, interval or restore goes by them",
             out);
    return true;
}
