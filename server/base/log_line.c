/* A line of the log: how a message and its fields are written, and which fields the words of a sentence
 * make. */
#include "server/base/log_line.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/text.h"

/* ---- writing one ---- */

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

/* Writes one character, escaped; for JSON as RFC 8259, section 7 has it. Bytes that are not
 * printable ASCII are escaped one by one. */
static void put_escaped(struct line *line, char c, enum cairn_log_format format)
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
    if (length <= line->capacity - line->used) put(line, text, length); // no half escape
}

static void put_quoted(struct line *line, const char *value, enum cairn_log_format format)
{
    if (line->capacity - line->used < 2) return;
    put(line, "\"", 1);
    line->capacity--; // the closing quote always fits
    for (const char *p = value; *p != '\0';) {
        const size_t length = format == CAIRN_LOG_JSON ? cairn_text_beyond_ascii(p) : 0;
        if (length == 0)
            put_escaped(line, *p, format);
        else if (length <= line->capacity - line->used) // no half character
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

size_t cairn_log_format(enum cairn_log_format format, char *line_out, size_t line_bytes,
                        const char *time_text, const char *level, const char *name,
                        const char *message, const struct cairn_log_field *fields,
                        size_t field_count)
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
        snprintf(number, sizeof number, "%llu", (unsigned long long)fields[i].number);
        const char *value = is_number ? number : fields[i].text;
        const size_t used = line.used;
        if (!json)
            put_field(&line, fields[i].key, value);
        else if (strlen(fields[i].key) + 6 * strlen(value) + 8 < line.capacity - used)
            put_json_field(&line, fields[i].key, value, is_number); // a half one is no JSON
    }
    if (json) line_out[line.used++] = '}';
    line_out[line.used] = '\n';
    return line.used + 1;
}

/* ---- fields that words make ---- */

static const struct {
    const char *word; /* in front of a conversion; the key, too */
    bool is_text;
} words[] = { { "job", true },    { "shard", true },  { "snapshot", true }, { "step", false },
              { "round", false }, { "epoch", false }, { "rank", false } };

enum { WORDS = sizeof words / sizeof *words };

// One conversion of a printf format: it tells the type of its argument.
struct conversion {
    int longs;        // of "l"; "z", "j" and "t" are as wide as two
    char kind;        // 'd', 's', 'f', ...
    const char *end;  // behind it
    int stars;        // widths and precisions that are arguments
    bool is_bare;     // neither flags nor width nor precision
    bool is_long_one; // "L"
};

static struct conversion read_conversion(const char *at) // behind '%'
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

// A list that functions take one after the other of.
struct arguments {
    va_list list;
};

static long long take_signed(struct arguments *args, int longs)
{
    if (longs == 0) return va_arg(args->list, int);
    return longs == 1 ? va_arg(args->list, long) : va_arg(args->list, long long);
}

static unsigned long long take_unsigned(struct arguments *args, int longs)
{
    if (longs == 0) return va_arg(args->list, unsigned);
    return longs == 1 ? va_arg(args->list, unsigned long) : va_arg(args->list, unsigned long long);
}

// The argument, used up. False: it is no value of a field, which is a plain text or a number that is not
// negative.
static bool take_argument(const struct conversion *c, struct arguments *args,
                          struct cairn_log_field *out)
{
    *out = (struct cairn_log_field) { .key = NULL };
    switch (c->kind) {
    case '\0':
    case '%':
    case 'm': return false; // without an argument
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
    default: // a number with a point
        if (c->is_long_one)
            (void)va_arg(args->list, long double);
        else
            (void)va_arg(args->list, double);
        return false;
    }
}

// The word of the table that stands before `at`; WORDS: none.
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

static bool has_key(const struct cairn_log_field *fields, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(fields[i].key, key) == 0) return true;
    return false;
}

size_t cairn_log_words(struct cairn_log_field fields[CAIRN_LOG_FIELDS_MAX], size_t count,
                       const char *format, va_list args)
{
    struct arguments left;
    va_copy(left.list, args);
    for (const char *at = strchr(format, '%'); at != NULL; at = strchr(at, '%')) {
        const struct conversion c = read_conversion(at + 1);
        struct cairn_log_field field;
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
