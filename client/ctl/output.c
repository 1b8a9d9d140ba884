/* How all commands print: tables, lines and JSON; messages, which are read by their descriptor; and the
 * progress of long work. */
#include <inttypes.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"
#include "proto/base/machine.h"
#include "proto/spec/spec.h"

/* Version of the JSON that `-o json` prints; it is incremented when a field changes its meaning or is
 * removed. */
#define SCHEMA_VERSION 1
#define COLUMNS_MAX    16
#define LINE_NAME      18 // the name of a line

struct ctl_table {
    char *columns;                    /* owned; the texts of the next two lists */
    const char *headers[COLUMNS_MAX]; /* [column_count] */
    const char *fields[COLUMNS_MAX];  /* [column_count], of a table of messages */
    size_t column_count;
    char **cells; /* owned, [cell_count] */
    size_t cell_count, capacity;
};

static void *must(void *memory)
{
    if (memory != NULL) return memory;
    fprintf(stderr, "cairn: out of memory\n");
    exit(1);
}

bool ctl_grow(void *array, size_t *capacity, size_t needed, size_t elem_bytes)
{
    void *old;
    memcpy(&old, array, sizeof old);
    if (needed <= *capacity) return true;
    const size_t wanted = needed * 2 + 64;
    void *grown = realloc(old, wanted * elem_bytes);
    if (grown == NULL) return false;
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return true;
}

struct ctl_table *ctl_table_open(const char *columns)
{
    struct ctl_table *table = must(calloc(1, sizeof *table));
    char *rest = table->columns = must(strdup(columns));
    for (char *column;
         table->column_count < COLUMNS_MAX && (column = strsep(&rest, "\n")) != NULL;) {
        table->headers[table->column_count] = strsep(&column, "|");
        table->fields[table->column_count++] = column;
    }
    return table;
}

/* Nobody's text makes a line of its own. */
static void add_cell(struct ctl_table *table, const char *text)
{
    const bool has_room = ctl_grow(&table->cells, &table->capacity, table->cell_count + 1,
                                   sizeof *table->cells);
    char *cell = table->cells[table->cell_count++] = must(has_room ? strdup(text) : NULL);
    text_mend(cell, "");
}

static size_t column_width(const struct ctl_table *table, size_t column, bool headers)
{
    size_t width = headers ? strlen(table->headers[column]) : 0;
    for (size_t i = column; i < table->cell_count; i += table->column_count) {
        const size_t length = strlen(table->cells[i]);
        width = length > width ? length : width;
    }
    return width;
}

static void print_row(const struct ctl_table *table, const char *const *cells, const size_t *widths)
{
    for (size_t c = 0; c < table->column_count; c++) {
        if (c + 1 < table->column_count)
            printf("%-*s  ", (int)widths[c], cells[c]);
        else
            printf("%s\n", cells[c]);
    }
}

void ctl_table_close(struct ctl_table *table, const struct ctl *ctl)
{
    size_t widths[COLUMNS_MAX];
    for (size_t c = 0; c < table->column_count; c++)
        widths[c] = column_width(table, c, !ctl->no_headers);
    if (!ctl->no_headers) print_row(table, table->headers, widths);
    for (size_t i = 0; i + table->column_count <= table->cell_count; i += table->column_count)
        print_row(table, (const char *const *)&table->cells[i], widths);
    for (size_t i = 0; i < table->cell_count; i++) free(table->cells[i]);
    free(table->cells);
    free(table->columns);
    free(table);
}

void ctl_line(const char *name, const char *fmt, ...)
{
    va_list arguments;
    printf("%-*s", LINE_NAME, name);
    va_start(arguments, fmt);
    vprintf(fmt, arguments);
    va_end(arguments);
    printf("\n");
}

int ctl_print_json(json_t *object)
{
    json_object_set_new(object, "schema_version", json_integer(SCHEMA_VERSION));
    json_dumpf(object, stdout, JSON_INDENT(2) | JSON_SORT_KEYS);
    printf("\n");
    json_decref(object);
    return 0;
}

/* Lower-case hexadecimal; "" for no bytes. Static memory, valid until the second call after this one. */
static const char *hex_of(ProtobufCBinaryData bytes)
{
    static char texts[2][129];
    static unsigned turn;
    char *text = texts[turn++ % 2];
    const size_t count = bytes.len < 64 ? bytes.len : 64;
    for (size_t i = 0; i < count; i++) snprintf(text + 2 * i, 3, "%02x", bytes.data[i]);
    text[2 * count] = 0;
    return text;
}

const char *ctl_bytes(uint64_t bytes)
{
    static char texts[4][32];
    static unsigned turn;
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
    char *text = texts[turn++ % 4];
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1024 && unit < 5; unit++) value /= 1024;
    snprintf(text, sizeof texts[0], unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return text;
}

/* ==== messages ==== */

/* Messages as JSON, lines and tables, by their descriptors. The syntax of a field is
 * "[KEY=]FIELD[/HOW][?[OTHERS]][!OTHERS]":
 *   KEY      the name in JSON; default: the field's name. "pushed.shared": in an object of its own
 *   FIELD    "part.name" is a field of a nested message; or a value that shapes.c computes
 *   HOW      a word of `texts` or number_json; default: by the field's type, bytes in hexadecimal
 *   ?        null, or "-", if the field is 0 or empty; with ?OTHERS, unless one of these is met
 *   !OTHERS  null, or "-", if one of these is met
 * OTHERS are conditions, which commas divide:
 *   FIELD    is neither 0 nor empty
 *   FIELD=up FIELD/HOW=up FIELD>60 FIELD>OTHER
 *   @yes     this option of the command line was given
 *
 * A text has fields in braces, without KEY: "{slice} of {slices}".
 *   HOW      also a printf format of a double, after a row of `scales`: "{elapsed_ms/1000%.1f} s"
 *   ? and !  the whole text is left out where the field would be null
 *   {?OTHERS} {!OTHERS} prints nothing, and leaves the text out unless, or if, one of these is met
 *   [...]    a part, left out by its own conditions; a part without conditions is left out if
 *            a field in the part is 0 or empty:
 *            "{bytes/bytes}[, {files} files]"
 *   {@0}     argument 0 of the command line
 *   {.}      the text itself, in a list of texts
 *   {;} {:}  the next line; the next line, beneath the value of this one
 *
 * A page consists of lines, which "\n" divides:
 *   NAME|TEXT  "name: value", left out with its TEXT; NAME is a text, too
 *   TEXT       the text alone
 *   *LIST LINE a line for each message or text of the list (or for the nested message, if it is there)
 *   #LIST      the list as a table, by the columns that shapes.c has; "#running,snapshots": of both;
 *              "#LIST?": only if it is not empty */

static struct {
    const struct ctl *ctl; /* the command line, whose options and arguments a page shows */
    const char *element;   /* of a list of texts */
} shown;

void ctl_output_begin(const struct ctl *ctl)
{
    shown.ctl = ctl;
}

/* A value in a message. */
struct value {
    /* NULL: the message that would contain the field is absent, or the value is computed */
    const ProtobufCFieldDescriptor *field;
    const void *at;
    size_t count;    /* the length of a list */
    bool is_element; /* of a list */
    const struct ctl_computed *computed;
    bool is_sum; /* of several fields: `sum` */
    uint64_t sum;
};

static const struct ctl_computed *find_computed(const ProtobufCMessage *message, const char *name)
{
    for (const struct ctl_computed *c = ctl_computed; c->name != NULL; c++)
        if (c->of == message->descriptor && strcmp(c->name, name) == 0) return c;
    abort(); // the tables name only values that exist
}

static bool is_list(struct value v)
{
    return v.field != NULL && v.field->label == PROTOBUF_C_LABEL_REPEATED && !v.is_element;
}

/* Returns element `at` of a list, whose elements are pointers or 32-bit numbers. */
static struct value element_of(struct value v, size_t at)
{
    const size_t size = v.field->type == PROTOBUF_C_TYPE_UINT32 ? sizeof(uint32_t) : sizeof(void *);
    v.at = *(const char *const *)v.at + at * size;
    v.is_element = true;
    return v;
}

/* Adds up "state+published-landing"; a difference is at least 0. */
static struct value find_sum(const ProtobufCMessage *message, const char *terms)
{
    struct value v = { .is_sum = true };
    char name[64], sign = '+';
    for (size_t length; sign != '\0'; terms += length + 1) {
        length = strcspn(terms, "+-");
        snprintf(name, sizeof name, "%.*s", (int)length, terms);
        const uint64_t term = ctl_number(message, name);
        v.sum = sign == '+' ? v.sum + term : v.sum > term ? v.sum - term : 0;
        sign = terms[length];
    }
    return v;
}

static struct value find_value(const ProtobufCMessage *message, const char *path)
{
    char name[64];
    if (strpbrk(path, "+-") != NULL) return find_sum(message, path);
    for (;;) {
        const size_t length = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)length, path);
        const bool is_last = path[length] == '\0';
        path += length + !is_last;
        const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field_by_name(
            message->descriptor, name);
        if (field == NULL)
            return (struct value) { .at = message, .computed = find_computed(message, name) };
        const size_t *count = (const void *)((const char *)message + field->quantifier_offset);
        const struct value v = { .field = field,
                                 .at = (const char *)message + field->offset,
                                 .count = field->label == PROTOBUF_C_LABEL_REPEATED ? *count : 0 };
        if (is_last) return v;
        message = *(ProtobufCMessage *const *)v.at;
        if (message == NULL) return (struct value) { .field = NULL };
    }
}

/* Writes the text of a computed value, which the caller frees. */
static char *computed_text(struct value v)
{
    char *text = NULL;
    size_t bytes;
    FILE *to = must(open_memstream(&text, &bytes));
    v.computed->text(v.at, to);
    fclose(to);
    return must(text);
}

/* Returns a value as a number: the value of an integer field of any type; the length of a list; 1
 * for a text that is not empty, and for a message that is present. */
static uint64_t number_of(struct value v)
{
    if (v.is_sum) return v.sum;
    if (v.computed != NULL && v.computed->number != NULL) return v.computed->number(v.at);
    if (v.computed != NULL) {
        char *text = computed_text(v);
        const bool is_set = text[0] != '\0';
        free(text);
        return is_set;
    }
    if (v.field == NULL) return 0;
    if (is_list(v)) return v.count;
    switch (v.field->type) {
    case PROTOBUF_C_TYPE_UINT32: return *(const uint32_t *)v.at;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64: return *(const uint64_t *)v.at;
    case PROTOBUF_C_TYPE_BOOL: return *(const protobuf_c_boolean *)v.at != 0;
    case PROTOBUF_C_TYPE_DOUBLE: return *(const double *)v.at > 0;
    case PROTOBUF_C_TYPE_STRING: return (*(char *const *)v.at)[0] != '\0';
    case PROTOBUF_C_TYPE_BYTES: return ((const ProtobufCBinaryData *)v.at)->len;
    case PROTOBUF_C_TYPE_MESSAGE: return *(const void *const *)v.at != NULL;
    default: abort();
    }
}

const char *ctl_time(uint64_t unix_ms)
{
    static char texts[2][32];
    static int turn;
    char *text = texts[turn = !turn];
    const time_t seconds = (time_t)(unix_ms / 1000);
    struct tm utc;
    if (unix_ms == 0 || gmtime_r(&seconds, &utc) == NULL) return "";
    strftime(text, sizeof texts[0], "%Y-%m-%dT%H:%M:%SZ", &utc);
    return text;
}

/* "2026-11-24T14:00:00.250Z". Static memory. */
static const char *instant_text(uint64_t unix_ms)
{
    static char text[40];
    char seconds[24];
    struct tm utc;
    const time_t whole = (time_t)(unix_ms / 1000);
    if (gmtime_r(&whole, &utc) == NULL) return "-";
    strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text, sizeof text, "%s.%03uZ", seconds, (unsigned)(unix_ms % 1000));
    return text;
}

static const char *hex_text(uint64_t number)
{
    static char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, number);
    return text;
}

static const char *seconds_text(uint64_t ms)
{
    static char text[32];
    snprintf(text, sizeof text, "%" PRIu64 " s", ms / 1000);
    return text;
}

/* "90 s", "10 min", "7 d": in the greatest unit that divides the time. */
static const char *span_text(uint64_t seconds)
{
    static const struct {
        const char *name;
        uint64_t seconds;
    } units[] = { { "d", 86400 }, { "h", 3600 }, { "min", 60 }, { "s", 1 } };
    static char text[32];
    size_t i = 0;
    while (seconds % units[i].seconds != 0) i++;
    snprintf(text, sizeof text, "%" PRIu64 " %s", seconds / units[i].seconds, units[i].name);
    return text;
}

static const char *role_text(uint64_t role)
{
    return role_name((uint32_t)role);
}

static const char *plural_text(uint64_t count)
{
    return count == 1 ? "" : "s";
}

static const char *yes_text(uint64_t is_so)
{
    return is_so != 0 ? "yes" : "no";
}

static const char *es_text(uint64_t count)
{
    return count == 1 ? "" : "es";
}

/* Converts numbers to texts. */
static const struct {
    const char *how;
    const char *(*text)(uint64_t number);
} texts[] = {
    { "bytes", ctl_bytes },      { "es", es_text },         { "hex", hex_text },
    { "instant", instant_text }, { "plural", plural_text }, { "role", role_text },
    { "s", seconds_text },       { "span", span_text },     { "time", ctl_time },
    { "yes", yes_text },
};

/* Converts a number before it is printed by a format: the value is divided, then `less` is subtracted, and
 * the rest multiplied. */
static const struct {
    const char *name;
    double divisor, less, factor;
} scales[] = { { "", 1, 0, 1 },          { "1000", 1e3, 0, 1 }, { "2", 2, 0, 1 },
               { "percent", 1, 0, 100 }, { "us", 1e6, 0, 1 },   { "1+", 1, -1, 1 },
               { "longer", 1, 1, 100 } }; // percent above a ratio of 1

/* The name of a choice: the capability is called as the field. */
static const char *word_of(struct value v)
{
    for (enum capability_field field = 0; field < CAIRN_CAPABILITY_FIELD_COUNT; field++)
        if (strcmp(capability_field_name(field), v.field->name) == 0)
            return capability_name(field, (int)number_of(v));
    abort();
}

static json_t *without_json(uint64_t without)
{
    json_t *names = json_array();
    for (uint32_t i = 0; i < CAIRN_WITHOUT_COUNT; i++)
        if ((without & 1u << i) != 0) json_array_append_new(names, json_string(without_name(i)));
    return names;
}

/* Converts numbers to JSON. */
static json_t *number_json(uint64_t number, const char *how)
{
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(texts[i].how, how) == 0) return json_string(texts[i].text(number));
    if (strcmp(how, "1000") == 0) return json_real((double)number / 1000);
    if (strcmp(how, "us") == 0) return json_real((double)number * 1e-6);
    if (strcmp(how, "1+") == 0) return json_integer((json_int_t)number + 1);
    if (strcmp(how, "without") == 0) return without_json(number);
    abort();
}

static json_t *value_json(struct value v)
{
    if (v.computed != NULL && v.computed->text != NULL) {
        char *text = computed_text(v);
        json_t *string = json_string(text);
        free(text);
        return string;
    }
    if (v.field == NULL) return json_integer((json_int_t)number_of(v));
    if (is_list(v)) {
        json_t *list = json_array();
        for (size_t i = 0; i < v.count; i++)
            json_array_append_new(list, value_json(element_of(v, i)));
        return list;
    }
    switch (v.field->type) {
    case PROTOBUF_C_TYPE_DOUBLE: return json_real(*(const double *)v.at);
    case PROTOBUF_C_TYPE_BOOL: return json_boolean(number_of(v) != 0);
    case PROTOBUF_C_TYPE_STRING: return json_string(*(char *const *)v.at);
    case PROTOBUF_C_TYPE_BYTES: return json_string(hex_of(*(const ProtobufCBinaryData *)v.at));
    case PROTOBUF_C_TYPE_MESSAGE: return ctl_json(*(const void *const *)v.at);
    default: return json_integer((json_int_t)number_of(v));
    }
}

uint64_t ctl_number(const void *message, const char *field)
{
    return number_of(find_value(message, field));
}

/* A word of a table, parsed. */
struct field_word {
    char text[128];
    const char *key, *path, *how;
    char *others; /* the conditions after ? or !; NULL: the value is always present */
    bool is_unless;
};

/* A word that is too long is a mistake in a table, as a wrong field is. */
static void parse_word(struct field_word *w, const char *word, size_t length)
{
    if (length >= sizeof w->text) abort();
    snprintf(w->text, sizeof w->text, "%.*s", (int)length, word);
    w->others = strpbrk(w->text, "?!");
    w->is_unless = w->others != NULL && *w->others == '!';
    if (w->others != NULL) *w->others++ = '\0';
    char *how = strchr(w->text, '/');
    if (how != NULL) *how++ = '\0';
    char *equals = strchr(w->text, '=');
    if (equals != NULL) *equals++ = '\0';
    w->key = w->text;
    w->path = equals != NULL ? equals : w->text;
    w->how = how;
}

static void put_value(FILE *to, struct value v, const char *how);

/* Judges "FIELD=TEXT", "FIELD/HOW=TEXT", or "FIELD>NUMBER", whose number may be another field. */
static bool compares(const ProtobufCMessage *message, const char *condition)
{
    struct field_word w;
    const size_t length = strcspn(condition, "=>");
    const char *other = condition + length + 1;
    parse_word(&w, condition, length);
    const struct value v = find_value(message, w.path);
    if (condition[length] == '>')
        return number_of(v) > (other[0] >= '0' && other[0] <= '9' ? strtoull(other, NULL, 10)
                                                                  : ctl_number(message, other));
    char *text = NULL;
    size_t bytes;
    FILE *to = must(open_memstream(&text, &bytes));
    put_value(to, v, w.how);
    fclose(to);
    const bool is_equal = strcmp(must(text), other) == 0;
    free(text);
    return is_equal;
}

/* Returns true if one of the conditions, which commas divide, is met. */
static bool is_any_met(const ProtobufCMessage *message, const char *conditions)
{
    char all[128], *rest = all;
    if (strlen(conditions) >= sizeof all) abort(); // a mistake in a table
    snprintf(all, sizeof all, "%s", conditions);
    for (char *one; (one = strsep(&rest, ",")) != NULL;)
        if (one[0] == '@'                ? ctl_is_given(shown.ctl, one + 1)
            : strpbrk(one, "=>") != NULL ? compares(message, one)
                                         : ctl_number(message, one) != 0)
            return true;
    return false;
}

static bool is_there(const ProtobufCMessage *message, const struct field_word *w)
{
    if (w->others == NULL) return true;
    return is_any_met(message, w->others[0] != '\0' ? w->others : w->path) != w->is_unless;
}

/* Sets the value in the object, or in an object of its own: "pushed.shared". */
static void set_key(json_t *object, const char *key, json_t *value)
{
    const char *dot = strchr(key, '.');
    if (dot == NULL) {
        json_object_set_new(object, key, value);
        return;
    }
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(dot - key), key);
    if (json_object_get(object, name) == NULL) json_object_set_new(object, name, json_object());
    json_object_set_new(json_object_get(object, name), dot + 1, value);
}

/* Adds a value of the command line: argument 0, or true if the option was given. */
static void add_of_line(json_t *object, const char *key, const char *of_line)
{
    json_object_set_new(object, key,
                        of_line[0] >= '0' && of_line[0] <= '9'
                            ? json_string(shown.ctl->argv[of_line[0] - '0'])
                            : json_boolean(ctl_is_given(shown.ctl, of_line)));
}

void ctl_json_add(json_t *object, const void *message, const char *fields)
{
    struct field_word w;
    for (size_t length; (length = strcspn(fields, " ")) > 0; fields += length) {
        parse_word(&w, fields, length);
        if (fields[length] == ' ') length++;
        if (w.path[0] == '@') {
            add_of_line(object, w.key, w.path + 1);
            continue;
        }
        const struct value v = find_value(message, w.path);
        set_key(object, w.key,
                !is_there(message, &w)         ? json_null()
                : w.how != NULL && !is_list(v) ? number_json(number_of(v), w.how)
                                               : value_json(v));
    }
}

static const struct ctl_shape *shape_of(const ProtobufCMessageDescriptor *type)
{
    const struct ctl_shape *shape = ctl_shapes;
    while (shape->of != NULL && shape->of != type) shape++;
    return shape;
}

json_t *ctl_json(const void *message)
{
    if (message == NULL) return json_null();
    json_t *object = json_object();
    const struct ctl_shape *shape = shape_of(((const ProtobufCMessage *)message)->descriptor);
    if (shape->json != NULL) ctl_json_add(object, message, shape->json);
    if (shape->add != NULL) shape->add(object, message);
    return object;
}

static void put_next_line(FILE *to)
{
    fprintf(to, "\n%-*s", LINE_NAME, "");
}

/* Prints a list of texts, one beneath the other. */
static void put_texts(FILE *to, struct value v)
{
    for (size_t i = 0; i < v.count; i++) {
        if (i > 0) put_next_line(to);
        fputs(*(char *const *)element_of(v, i).at, to);
    }
}

/* Prints a value as a cell has it. */
static void put_value(FILE *to, struct value v, const char *how)
{
    const char *format = how != NULL ? strchr(how, '%') : NULL;
    if (v.field == NULL && v.computed == NULL && !v.is_sum) return;
    if (v.computed != NULL && v.computed->text != NULL) {
        v.computed->text(v.at, to);
        return;
    }
    const ProtobufCType type = v.field != NULL ? v.field->type : PROTOBUF_C_TYPE_UINT64;
    const double real = type == PROTOBUF_C_TYPE_DOUBLE ? *(const double *)v.at
                                                       : (double)number_of(v);
    const size_t length = format != NULL ? (size_t)(format - how) : 0;
    for (size_t i = 0; format != NULL && i < sizeof scales / sizeof *scales; i++) {
        if (strlen(scales[i].name) != length || memcmp(scales[i].name, how, length) != 0) continue;
        fprintf(to, format, (real / scales[i].divisor - scales[i].less) * scales[i].factor);
        return;
    }
    for (size_t i = 0; how != NULL && i < sizeof texts / sizeof *texts; i++)
        if (strcmp(texts[i].how, how) == 0) {
            fputs(texts[i].text(type == PROTOBUF_C_TYPE_DOUBLE ? (uint64_t)real : number_of(v)),
                  to);
            return;
        }
    if (how != NULL && strcmp(how, "word") == 0)
        fputs(word_of(v), to);
    else if (type == PROTOBUF_C_TYPE_STRING && is_list(v))
        put_texts(to, v);
    else if (type == PROTOBUF_C_TYPE_STRING)
        fputs(*(char *const *)v.at, to);
    else if (type == PROTOBUF_C_TYPE_BYTES && !is_list(v))
        fputs(hex_of(*(const ProtobufCBinaryData *)v.at), to);
    else
        fprintf(to, "%" PRIu64, number_of(v));
}

/* Says whether a text, or a part of a text, stays. */
struct stay {
    /* has_condition: there is a `?` or a `!`. is_met: all conditions hold */
    bool has_condition, is_met;
    bool is_whole; /* no field is 0 or empty */
};

/* Judges the condition in braces: "?OTHERS" or "!OTHERS". */
static void judge_condition(const void *message, const char *condition, struct stay *stay)
{
    const bool is_met = is_any_met(message, condition + 1) == (condition[0] == '?');
    stay->is_met = stay->is_met && is_met;
    stay->has_condition = true;
}

/* Prints what the braces hold, or judges the condition in them. */
static void put_field(FILE *to, const void *message, const char *word, struct stay *stay)
{
    struct field_word w;
    if (word[0] == '@') {
        fputs(shown.ctl->argv[word[1] - '0'], to);
    } else if (strcmp(word, ".") == 0) {
        fputs(shown.element, to);
    } else if (strcmp(word, ";") == 0) {
        fputc('\n', to);
    } else if (strcmp(word, ":") == 0) {
        put_next_line(to);
    } else if (word[0] == '?' || word[0] == '!') {
        judge_condition(message, word, stay);
    } else {
        parse_word(&w, word, strlen(word));
        const struct value v = find_value(message, w.path);
        put_value(to, v, w.how);
        stay->is_whole = stay->is_whole && number_of(v) != 0;
        stay->is_met = stay->is_met && is_there(message, &w);
        stay->has_condition = stay->has_condition || w.others != NULL;
    }
}

/* Prints the text up to its end, or to the bracket that ends a part; *text then points to this
 * place. */
static struct stay put_text(FILE *to, const void *message, const char **text)
{
    struct stay stay = { false, true, true };
    while (**text != '\0' && **text != ']') {
        const char *at = (*text)++;
        if (*at == '{') {
            char word[96];
            const size_t length = strcspn(at + 1, "}");
            snprintf(word, sizeof word, "%.*s", (int)length, at + 1);
            put_field(to, message, word, &stay);
            *text = at + length + 2;
        } else if (*at == '[') {
            char *part = NULL;
            size_t bytes;
            FILE *inner = must(open_memstream(&part, &bytes));
            const struct stay in = put_text(inner, message, text);
            fclose(inner);
            if (in.has_condition ? in.is_met : in.is_whole) fputs(must(part), to);
            free(part);
            ++*text;
        } else {
            fputc(*at, to);
        }
    }
    return stay;
}

char *ctl_text_of(const void *message, const char *text)
{
    char *made = NULL;
    size_t bytes;
    FILE *to = must(open_memstream(&made, &bytes));
    const bool stays = put_text(to, message, &text).is_met;
    fclose(to);
    must(made);
    if (stays) return made;
    free(made);
    return NULL;
}

/* ---- pages ---- */

/* Adds a row for each message, with the columns of the table. */
static void add_rows(struct ctl_table *table, const void *message)
{
    for (size_t c = 0; c < table->column_count; c++) {
        const char *field = table->fields[c];
        char braced[128];
        snprintf(braced, sizeof braced, "{%s}", field);
        char *cell = ctl_text_of(message, strchr(field, '{') != NULL ? field : braced);
        add_cell(table, cell != NULL ? cell : "-");
        free(cell);
    }
}

void ctl_table_rows(struct ctl_table *table, const void *messages, size_t count)
{
    const void *const *list = messages;
    for (size_t i = 0; i < count; i++) add_rows(table, list[i]);
}

/* Prints the messages of the lists, which commas divide, as one table. "LIST?": only if there are any. */
static void print_lists(const void *message, char *lists)
{
    struct ctl_table *table = NULL;
    char *condition = strchr(lists, '?');
    if (condition != NULL) *condition = '\0';
    if (condition != NULL && !is_any_met(message, lists)) return;
    for (char *name; (name = strsep(&lists, ",")) != NULL;) {
        const struct value v = find_value(message, name);
        if (table == NULL) table = ctl_table_open(shape_of(v.field->descriptor)->columns);
        ctl_table_rows(table, *(const void *const *)v.at, v.count);
    }
    ctl_table_close(table, shown.ctl);
}

static void print_line(const void *message, const char *line)
{
    const char *bar = strchr(line, '|');
    char *text = ctl_text_of(message, bar != NULL ? bar + 1 : line);
    if (text != NULL && bar != NULL) {
        char pattern[128];
        snprintf(pattern, sizeof pattern, "%.*s", (int)(bar - line), line);
        char *name = ctl_text_of(message, pattern);
        ctl_line(name != NULL ? name : "", "%s", text);
        free(name);
    } else if (text != NULL) {
        printf("%s\n", text);
    }
    free(text);
}

/* Prints the line for each element of the list, unless the list's condition leaves it out. */
static void print_each(const void *message, const char *list, const char *line)
{
    struct field_word w;
    parse_word(&w, list, strlen(list));
    const struct value v = find_value(message, w.path);
    if (v.field == NULL || !is_there(message, &w)) return;
    const size_t count = is_list(v) ? v.count : number_of(v);
    for (size_t i = 0; i < count; i++) {
        const struct value one = is_list(v) ? element_of(v, i) : v;
        const void *element = *(const void *const *)one.at;
        const bool is_text = v.field->type == PROTOBUF_C_TYPE_STRING;
        if (is_text) shown.element = element;
        print_line(is_text ? message : element, line);
    }
}

void ctl_page(const void *message, const char *page)
{
    char *all = must(strdup(page)), *rest = all;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        if (line[0] == '#') {
            print_lists(message, line + 1);
        } else if (line[0] == '*') {
            char *list = strsep(&line, " ") + 1;
            print_each(message, list, line != NULL ? line : "");
        } else {
            print_line(message, line);
        }
    }
    free(all);
}

/* ---- messages of a command's own ---- */

char *ctl_copy(const char *text)
{
    return must(strdup(text));
}

void *ctl_message(const ProtobufCMessageDescriptor *type)
{
    ProtobufCMessage *message = must(malloc(type->sizeof_message));
    type->message_init(message);
    return message;
}

void ctl_append(void *message, const char *list, void *element)
{
    const ProtobufCFieldDescriptor *field = find_value(message, list).field;
    void ***elements = (void *)((char *)message + field->offset);
    size_t *count = (void *)((char *)message + field->quantifier_offset);
    // grown when the count is a power of two
    if ((*count & (*count - 1)) == 0)
        *elements = must(realloc(*elements, (*count > 0 ? 2 * *count : 1) * sizeof **elements));
    (*elements)[(*count)++] = element;
}

void *ctl_add(void *message, const char *list)
{
    void *element = ctl_message(find_value(message, list).field->descriptor);
    ctl_append(message, list, element);
    return element;
}

void ctl_show(const struct ctl *ctl, const void *message, const char *page, const char *quiet)
{
    const char *shown_page = ctl->quiet ? quiet : page;
    ctl_output_begin(ctl);
    if (ctl->json)
        ctl_print_json(ctl_json(message));
    else if (shown_page != NULL)
        ctl_page(message, shown_page);
}

/* ==== progress ==== */

enum { BAR = 24, BAR_EVERY_MS = 100, LINE_EVERY_MS = 10000 };

void ctl_progress_begin(struct ctl_progress *p, const struct ctl *ctl, const char *what,
                        uint64_t total_bytes)
{
    const uint64_t now = monotonic_ms();
    *p = (struct ctl_progress) { .what = what,
                                 .total = total_bytes,
                                 .begun_ms = now,
                                 .said_ms = now,
                                 .silent = ctl->quiet,
                                 .on_terminal = isatty(STDERR_FILENO) == 1 };
}

void ctl_progress_at(struct ctl_progress *p, uint64_t done)
{
    if (p->silent) return;
    const uint64_t now = monotonic_ms();
    if (now - p->said_ms < (p->on_terminal ? BAR_EVERY_MS : LINE_EVERY_MS)) return;
    p->said_ms = now;
    if (done > p->total) done = p->total;
    const double part = p->total > 0 ? (double)done / (double)p->total : 1;
    const double seconds = (double)(now - p->begun_ms) / 1000;
    const double rate = seconds > 0 ? (double)done / seconds : 0;
    struct sentence left = { "" };
    if (rate > 0) sentence_set(&left, ", %.0f s left", (double)(p->total - done) / rate);
    if (p->on_terminal) {
        char bar[BAR + 1];
        for (int i = 0; i < BAR; i++) bar[i] = i < (int)(part * BAR) ? '#' : '.';
        bar[BAR] = '\0';
        fprintf(stderr, "\r[%s] ", bar);
    } else {
        fprintf(stderr, "cairn: ");
    }
    fprintf(stderr, "%3.0f %% %s: %s of %s, %s/s%s", part * 100, p->what, ctl_bytes(done),
            ctl_bytes(p->total), ctl_bytes((uint64_t)rate), left.text);
    fprintf(stderr, p->on_terminal ? "\033[K" : "\n");
    fflush(stderr);
    p->line_open = p->on_terminal;
}

void ctl_progress_end(struct ctl_progress *p)
{
    if (p->line_open) fprintf(stderr, "\r\033[K");
    p->line_open = false;
}
