/* The helpers that subcommands share: tables, lines and JSON; progress, confirmation, interrupts; the
 * single request; --watch. */
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

struct ctl_table {
    const char *const *headers;       /* these headers, or the columns below */
    const struct ctl_column *columns; /* for a table of messages */
    size_t column_count;
    char **cells; /* [cell_count] */
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

struct ctl_table *ctl_table_open(const char *const *headers, size_t column_count)
{
    struct ctl_table *table = must(calloc(1, sizeof *table));
    table->headers = headers;
    table->column_count = column_count;
    return table;
}

#define CELL_END "\x1f"

static void add_cell(struct ctl_table *table, const char *text)
{
    const bool has_room = ctl_grow(&table->cells, &table->capacity, table->cell_count + 1,
                                   sizeof *table->cells);
    table->cells[table->cell_count++] = must(has_room ? strdup(text) : NULL);
}

void ctl_table_cell(struct ctl_table *table, const char *fmt, ...)
{
    va_list arguments;
    char *format = must(strdup(fmt)), *text = NULL, *rest;
    for (char *tab; (tab = strchr(format, '\t')) != NULL;) *tab = CELL_END[0];
    va_start(arguments, fmt);
    if (vasprintf(&text, format, arguments) < 0) text = NULL;
    va_end(arguments);
    rest = must(text);
    for (char *cell; (cell = strsep(&rest, CELL_END)) != NULL;) add_cell(table, cell);
    free(format);
    free(text);
}

static const char *header_of(const struct ctl_table *table, size_t column)
{
    return table->columns != NULL ? table->columns[column].header : table->headers[column];
}

static size_t column_width(const struct ctl_table *table, size_t column, bool headers)
{
    size_t width = headers ? strlen(header_of(table, column)) : 0;
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
    size_t *widths = must(calloc(table->column_count, sizeof *widths));
    for (size_t c = 0; c < table->column_count; c++)
        widths[c] = column_width(table, c, !ctl->no_headers);
    const char **headers = must(calloc(table->column_count, sizeof *headers));
    for (size_t c = 0; c < table->column_count; c++) headers[c] = header_of(table, c);
    if (!ctl->no_headers) print_row(table, headers, widths);
    free(headers);
    for (size_t i = 0; i + table->column_count <= table->cell_count; i += table->column_count)
        print_row(table, (const char *const *)&table->cells[i], widths);
    for (size_t i = 0; i < table->cell_count; i++) free(table->cells[i]);
    free(table->cells);
    free(widths);
    free(table);
}

void ctl_line(const char *name, const char *fmt, ...)
{
    va_list arguments;
    printf("%-18s", name);
    va_start(arguments, fmt);
    vprintf(fmt, arguments);
    va_end(arguments);
    printf("\n");
}

int ctl_print_json(json_t *object)
{
    json_object_set_new(object, "schema_version", json_integer(CTL_SCHEMA_VERSION));
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

/* JSON and cells of a message, by its descriptor. The syntax of a field is
 * "[KEY=]FIELD[/HOW][?[OTHER]][!OTHER]":
 *   KEY      the name in JSON; default: the field's name
 *   FIELD    "part.name" is a field of a nested message
 *   HOW      a word of `texts` or number_json; default: by the field's type, bytes in hexadecimal
 *   ?        null, or "-", if the field is 0 or empty; with ?OTHER, if the
 *            other field is 0 or empty
 *   !OTHER   null, or "-", if the other field is neither 0 nor empty
 *
 * A text has fields in braces, without KEY: "{slice} of {slices}".
 *   HOW      also a printf format of a double, after a row of `scales`: "{elapsed_ms/1000%.1f} s"
 *   ? and !  the whole text is left out where the field would be null
 *   {?FIELD} prints nothing, and leaves the text out if the field is 0 or empty
 *   {!FIELD} prints nothing, and leaves the text out if the field is neither 0 nor empty
 *   [...]    a part, left out by its own conditions; a part without conditions is left out if
 *            a field in the part is 0 or empty:
 *            "{bytes/bytes}[, {files} files]"
 *   {@0}     argument 0 of the command line */

/* The JSON fields of every message type that ctl_json supports; nested messages have their own rows. */
static const struct {
    const ProtobufCMessageDescriptor *of;
    const char *fields;
} shapes[] = {
    { &cairn__adopted_job__descriptor, "job=name generation step shards refused" },
    { &cairn__cluster_backed_up__descriptor, "path bytes" },
    { &cairn__cluster_status__descriptor,
      "cluster store/hex version coordinator_incarnation uptime_ms shards_expected jobs=job_count "
      "storage members strangers" },
    { &cairn__event__descriptor, "number time=unix_ms/instant event=kind job who text" },
    { &cairn__home__descriptor,
      "backend device driver why total_bytes taken_bytes warning failed device_memory "
      "device_memory_why" },
    { &cairn__job_parked__descriptor, "job=name parked shards note" },
    { &cairn__job_removed__descriptor,
      "job=name generation!version_unknown step!version_unknown shards away note" },
    { &cairn__job_status__descriptor,
      "name state epoch round awaited workers workers_min workers_max? shards tensors elems "
      "generation!version_unknown step!version_unknown loss_scale!version_unknown "
      "last_grad_norm!version_unknown client_state_bytes!version_unknown steps_applied "
      "rounds_skipped rounds_abandoned layout_hash extents pieces skips skips_in_row nonfinite "
      "nonfinite_tensors gradient put_out snapshot_failed passed_over saving path_cut "
      "seconds_since_step=stepped_ms_ago/1000?stepped restores blobs blob_bytes state_bytes "
      "pushed_bytes fetched_bytes heaviest_over_mean? leases held_up_by=straggler" },
    { &cairn__key__descriptor, "id key=line own signs since_ms=since_unix_ms" },
    { &cairn__keys__descriptor, "keys" },
    { &cairn__lease_status__descriptor,
      "generation step holder role/role seconds_left=left_ms/1000" },
    { &cairn__member_status__descriptor,
      "name role/role state address path place storage unheard unfit apart since_ms state_bytes "
      "memory_bytes version without/without home" },
    { &cairn__reduce_group__descriptor, "relays=host ranks" },
    { &cairn__replaced_job__descriptor,
      "state generation!version_unknown step!version_unknown workers readers" },
    { &cairn__reshard_job__descriptor,
      "job=name state text layout=layout_hash/hex shards_before shards_after moves=pairs "
      "bytes=all_bytes least_bytes moved_bytes heaviest_before heaviest_after expected_s? "
      "expected_pause_s? slices slice elapsed_s=elapsed_ms/1000 longest_step=worst_step? "
      "pieces_before pieces_after pieces_fresh afresh" },
    { &cairn__reshard_pair__descriptor, "from to bytes" },
    { &cairn__reshard_told__descriptor, "jobs" },
    { &cairn__snapshot_advice__descriptor,
      "job measured_snapshots=measured shard_faults worker_faults observed_s mtbf_given note "
      "snapshot_every=every snapshot_every_s=every_s cost_s=cost_us/us?measured "
      "write_s=write_us/us?measured step_s=step_us/us? mtbf_s? interval_s? interval_steps?" },
    { &cairn__snapshot_fate__descriptor, "id step bytes created_unix_ms goes reason" },
    { &cairn__snapshot_removed__descriptor, "id job files bytes" },
    { &cairn__snapshot_status__descriptor,
      "id job state path generation step bytes files shards content_root "
      "created=created_unix_ms/time periodic nonfinite nonfinite_tensors signature latest tags "
      "checked=checked_unix_ms/time check_failed" },
    { &cairn__straggler__descriptor,
      "name rank phase phase_ms=us/1000 others_ms=others_us/1000 waited_seconds=waited_ms/1000 "
      "text" },
    { &cairn__strange_part__descriptor,
      "shard job=part.name number=part.job/hex generation=part.generation "
      "version_generation=part.version_generation step=part.version_step part=part.shard_index/1+ "
      "parts=part.shard_count bytes=part.bytes why" },
};

/* A value in a message. */
struct value {
    /* NULL: the message that would contain the field is absent */
    const ProtobufCFieldDescriptor *field;
    const void *at;
    size_t count; /* the length of a list */
};

static struct value find_value(const ProtobufCMessage *message, const char *path)
{
    char name[64];
    for (;;) {
        const size_t length = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)length, path);
        const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field_by_name(
            message->descriptor, name);
        if (field == NULL) abort(); // the tables name only existing fields
        const void *at = (const char *)message + field->offset;
        const size_t *count = (const void *)((const char *)message + field->quantifier_offset);
        if (path[length] == '\0')
            return (struct value) { field, at,
                                    field->label == PROTOBUF_C_LABEL_REPEATED ? *count : 0 };
        message = *(ProtobufCMessage *const *)at;
        if (message == NULL) return (struct value) { .field = NULL };
        path += length + 1;
    }
}

/* Returns a value as a number: the value of an integer field of any type; the length of a list; 1
 * for a text that is not empty, and for a message that is present. */
static uint64_t number_of(struct value v)
{
    if (v.field == NULL) return 0;
    if (v.field->label == PROTOBUF_C_LABEL_REPEATED) return v.count;
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

/* Converts numbers to texts. */
static const struct {
    const char *how;
    const char *(*text)(uint64_t number);
} texts[] = { { "bytes", ctl_bytes },    { "hex", hex_text },   { "instant", instant_text },
              { "plural", plural_text }, { "role", role_text }, { "s", seconds_text },
              { "span", span_text },     { "time", ctl_time },  { "yes", yes_text } };

/* Converts a number before it is printed by a format: the value is divided, then `less` is subtracted, and
 * the rest multiplied. */
static const struct {
    const char *name;
    double divisor, less, factor;
} scales[] = {
    { "", 1, 0, 1 },     { "1000", 1e3, 0, 1 }, { "2", 2, 0, 1 },
    { "us", 1e6, 0, 1 }, { "1+", 1, -1, 1 },    { "longer", 1, 1, 100 }
}; // percent above a ratio of 1

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
    switch (v.field->type) {
    case PROTOBUF_C_TYPE_DOUBLE: return json_real(*(const double *)v.at);
    case PROTOBUF_C_TYPE_BOOL: return json_boolean(number_of(v) != 0);
    case PROTOBUF_C_TYPE_STRING: return json_string(*(char *const *)v.at);
    case PROTOBUF_C_TYPE_BYTES: return json_string(hex_of(*(const ProtobufCBinaryData *)v.at));
    case PROTOBUF_C_TYPE_MESSAGE: return ctl_json(*(const void *const *)v.at);
    default: return json_integer((json_int_t)number_of(v));
    }
}

/* Returns the list of a repeated field, whose elements are pointers or 32-bit numbers. */
static json_t *list_json(struct value v)
{
    const size_t size = v.field->type == PROTOBUF_C_TYPE_UINT32 ? sizeof(uint32_t) : sizeof(void *);
    const char *first = *(const char *const *)v.at;
    json_t *list = json_array();
    for (size_t i = 0; i < v.count; i++)
        json_array_append_new(list, value_json((struct value) { v.field, first + i * size, 0 }));
    return list;
}

/* A word of a table, parsed. */
struct field_word {
    char text[96];
    const char *key, *path, *how;
    char *other; /* the field after ? or !; NULL: the value is always present */
    bool is_unless;
};

static void parse_word(struct field_word *w, const char *word, size_t length)
{
    snprintf(w->text, sizeof w->text, "%.*s", (int)length, word);
    w->other = strpbrk(w->text, "?!");
    w->is_unless = w->other != NULL && *w->other == '!';
    if (w->other != NULL) *w->other++ = '\0';
    char *how = strchr(w->text, '/');
    if (how != NULL) *how++ = '\0';
    char *equals = strchr(w->text, '=');
    if (equals != NULL) *equals++ = '\0';
    w->key = w->text;
    w->path = equals != NULL ? equals : w->text;
    w->how = how;
}

static bool is_there(const ProtobufCMessage *message, const struct field_word *w)
{
    if (w->other == NULL) return true;
    const struct value other = find_value(message, w->other[0] != '\0' ? w->other : w->path);
    return (number_of(other) != 0) != w->is_unless;
}

void ctl_json_add(json_t *object, const void *message, const char *fields)
{
    struct field_word w;
    for (size_t length; (length = strcspn(fields, " ")) > 0; fields += length) {
        parse_word(&w, fields, length);
        const struct value v = find_value(message, w.path);
        json_object_set_new(object, w.key,
                            !is_there(message, &w)                        ? json_null()
                            : v.field->label == PROTOBUF_C_LABEL_REPEATED ? list_json(v)
                            : w.how != NULL ? number_json(number_of(v), w.how)
                                            : value_json(v));
        if (fields[length] == ' ') length++;
    }
}

json_t *ctl_json(const void *message)
{
    if (message == NULL) return json_null();
    json_t *object = json_object();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (shapes[i].of == ((const ProtobufCMessage *)message)->descriptor)
            ctl_json_add(object, message, shapes[i].fields);
    return object;
}

/* Prints a value as a cell has it. */
static void put_value(FILE *to, struct value v, const char *how)
{
    const char *format = how != NULL ? strchr(how, '%') : NULL;
    if (v.field == NULL) return;
    const double real = v.field->type == PROTOBUF_C_TYPE_DOUBLE ? *(const double *)v.at
                                                                : (double)number_of(v);
    const size_t length = format != NULL ? (size_t)(format - how) : 0;
    for (size_t i = 0; format != NULL && i < sizeof scales / sizeof *scales; i++) {
        if (strlen(scales[i].name) != length || memcmp(scales[i].name, how, length) != 0) continue;
        fprintf(to, format, (real / scales[i].divisor - scales[i].less) * scales[i].factor);
        return;
    }
    for (size_t i = 0; how != NULL && i < sizeof texts / sizeof *texts; i++)
        if (strcmp(texts[i].how, how) == 0) {
            fputs(texts[i].text(v.field->type == PROTOBUF_C_TYPE_DOUBLE ? (uint64_t)real
                                                                        : number_of(v)),
                  to);
            return;
        }
    if (v.field->type == PROTOBUF_C_TYPE_STRING)
        fputs(*(char *const *)v.at, to);
    else if (v.field->type == PROTOBUF_C_TYPE_BYTES)
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

static const struct ctl *asked; /* the command, whose arguments are "{@0}" */

/* Prints the field in braces, or judges the condition in braces. */
static void put_field(FILE *to, const void *message, const char *text, size_t length,
                      struct stay *stay)
{
    struct field_word w;
    const bool is_condition = text[0] == '?' || text[0] == '!';
    char word[96];
    snprintf(word, sizeof word, "%.*s", (int)length - is_condition, text + is_condition);
    if (word[0] == '@') {
        fputs(asked->argv[word[1] - '0'], to);
        return;
    }
    parse_word(&w, word, strlen(word));
    const struct value v = find_value(message, w.path);
    const bool is_set = number_of(v) != 0;
    const bool is_met = is_condition ? is_set == (text[0] == '?') : is_there(message, &w);
    if (!is_condition) put_value(to, v, w.how);
    stay->is_whole = stay->is_whole && (is_condition || is_set);
    stay->is_met = stay->is_met && is_met;
    stay->has_condition = stay->has_condition || is_condition || w.other != NULL;
}

/* Prints the text up to its end, or to the bracket that ends a part; *text then points to this
 * place. */
static struct stay put_text(FILE *to, const void *message, const char **text)
{
    struct stay stay = { false, true, true };
    while (**text != '\0' && **text != ']') {
        const char *at = (*text)++;
        if (*at == '{') {
            const size_t length = strcspn(at + 1, "}");
            put_field(to, message, at + 1, length, &stay);
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

void ctl_line_of(const char *name, const void *message, const char *text)
{
    char *made = ctl_text_of(message, text);
    if (made != NULL && name != NULL) ctl_line(name, "%s", made);
    if (made != NULL && name == NULL) printf("%s\n", made);
    free(made);
}

void ctl_lines(const void *message, const char *lines)
{
    char *all = must(strdup(lines)), *rest = all;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *bar = strchr(line, '|');
        if (bar != NULL) *bar = '\0';
        ctl_line_of(bar != NULL ? line : NULL, message, bar != NULL ? bar + 1 : line);
    }
    free(all);
}

static void add_field(struct ctl_table *table, const void *message, const char *field)
{
    char *cell = NULL;
    size_t bytes;
    struct field_word w;
    FILE *to = must(open_memstream(&cell, &bytes));
    parse_word(&w, field, strlen(field));
    const bool is_text = strchr(field, '{') != NULL;
    const bool stays = is_text ? put_text(to, message, &field).is_met : is_there(message, &w);
    if (!is_text && stays) put_value(to, find_value(message, w.path), w.how);
    fclose(to);
    must(cell);
    ctl_table_cell(table, "%s", stays ? cell : "-");
    free(cell);
}

struct ctl_table *ctl_table_of(const struct ctl_column *columns, size_t column_count)
{
    struct ctl_table *table = ctl_table_open(NULL, column_count);
    table->columns = columns;
    return table;
}

void ctl_table_rows(struct ctl_table *table, const void *messages, size_t count)
{
    const void *const *list = messages;
    for (size_t i = 0; i < count; i++)
        for (const struct ctl_column *c = table->columns; c < table->columns + table->column_count;
             c++)
            if (c->add != NULL)
                c->add(table, list[i]);
            else
                add_field(table, list[i], c->field);
}

void ctl_table_print(const struct ctl *ctl, const struct ctl_column *columns, size_t column_count,
                     const void *messages, size_t count)
{
    struct ctl_table *table = ctl_table_of(columns, column_count);
    ctl_table_rows(table, messages, count);
    ctl_table_close(table, ctl);
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

/* ==== confirm ==== */

/* Asks for confirmation before a step that cannot be undone. On a terminal the user types the name of the
 * thing that is deleted; without a terminal --yes is needed. */

int ctl_confirm(const struct ctl *ctl, const char *what, const char *name)
{
    char line[512];
    if (ctl->yes) return -1;
    if (!isatty(STDIN_FILENO))
        return ctl_usage_fail(ctl, "%s cannot be brought back: without a terminal say --yes", what);
    fprintf(stderr, "%s cannot be brought back. To go on, type %s: ", what, name);
    fflush(stderr);
    if (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strcmp(line, name) == 0) return -1;
    }
    return ctl_fail(CAIRN_ERR_CANCELED, "nothing was done");
}

/* ==== interrupt ==== */

/* The line printed when a signal interrupts the command. */

static char farewell[512];

static void on_signal_interrupt(int signal)
{
    (void)signal;
    const ssize_t written = write(STDERR_FILENO, farewell, strlen(farewell));
    (void)written;
    _exit(130);
}

void ctl_on_interrupt(const char *fmt, ...)
{
    const struct sigaction action = { .sa_handler = on_signal_interrupt };
    va_list arguments;
    va_start(arguments, fmt);
    vsnprintf(farewell, sizeof farewell, fmt, arguments);
    va_end(arguments);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* ==== absolute ==== */

/* Makes paths absolute, because the coordinator, which opens these paths, runs in another
 * folder. */

int ctl_absolute(const char *what, const char *path, char out[static PATH_MAX])
{
    char here[PATH_MAX] = "";
    const bool relative = path[0] != '/';
    if (relative && getcwd(here, sizeof here) == NULL)
        return ctl_fail(CAIRN_ERR_IO, "the working folder: %s", strerror(errno));
    const int n = snprintf(out, PATH_MAX, "%s%s%s", here, relative ? "/" : "", path);
    if (n < PATH_MAX) return -1;
    return ctl_fail(CAIRN_ERR_INVALID, "%s %.60s...: it is too long", what, path);
}

/* ==== connection ==== */

/* The command's single request, over the same kind of connection as calls of the library
 * (client/admin.h). */

int ctl_fail(cairn_status status, const char *fmt, ...)
{
    va_list arguments;
    va_start(arguments, fmt);
    fprintf(stderr, "cairn: ");
    vfprintf(stderr, fmt, arguments);
    fprintf(stderr, " [CAIRN-E%04d]\n", (int)status);
    va_end(arguments);
    return status_exit((int)status);
}

/* Prints for whom a snapshot or digest waits, if the awaited processes are away, or if the snapshot
 * or digest is late. Prints this only once. */
static void on_awaited(void *context, const Cairn__Awaited *awaited, bool is_late)
{
    struct ctl *ctl = context;
    const bool worth = awaited->text[0] != '\0' && (awaited->away || is_late);
    if (!worth || ctl->awaited_said) return;
    fprintf(stderr, "cairn: %s: waits for %s\n", ctl->words, awaited->text);
    ctl->awaited_said = true;
}

cairn_status ctl_call_paged(struct ctl *ctl, uint16_t type, const ProtobufCMessage *message,
                            uint16_t reply_type, ProtobufCMessage **reply_out, struct paged *pages)
{
    char name[CAIRN_NAME_MAX];
    struct sentence why;
    snprintf(name, sizeof name, "cairn %s, pid %ld", ctl->words, (long)getpid());
    if (ctl->timeout_ms == 0) ctl->timeout_ms = 30000;
    struct admin admin = {
        .endpoint = ctl->endpoint,
        .name = name,
        .build = ctl->program->build,
        .advice = ", is --endpoint or CAIRN_ENDPOINT right? (without them it is looked for in "
                  "$XDG_RUNTIME_DIR/cairn and /run/cairn)",
        .timeout_ms = ctl->timeout_ms,
        .cut_of = ctl->cut_of,
        .on_awaited = on_awaited,
        .context = ctl,
    };
    const cairn_status status = admin_call(&admin, type, message, reply_type, reply_out, pages,
                                           &why);
    const bool passes = status == CAIRN_ERR_UNREACHABLE || status == CAIRN_ERR_TIMEOUT;
    if (status != CAIRN_OK && ctl->failed != NULL)
        *ctl->failed = why;
    else if (status != CAIRN_OK && !(passes && ctl->tries_again))
        ctl_fail(status, "%s", why.text);
    return status;
}

cairn_status ctl_call(struct ctl *ctl, uint16_t type, const ProtobufCMessage *message,
                      uint16_t reply_type, ProtobufCMessage **reply_out)
{
    return ctl_call_paged(ctl, type, message, reply_type, reply_out, NULL);
}

/* `fields` has the syntax of `fields` in struct ctl_question. */
static json_t *answer_json(const struct ctl *ctl, const void *reply, const char *fields)
{
    json_t *object = json_object();
    char all[256], *rest = all;
    snprintf(all, sizeof all, "%s", fields);
    for (char *word; (word = strsep(&rest, " ")) != NULL;) {
        char *of_line = strstr(word, "=@");
        if (of_line == NULL) {
            ctl_json_add(object, reply, word);
            continue;
        }
        *of_line = '\0';
        of_line += 2;
        json_object_set_new(object, word,
                            of_line[0] >= '0' && of_line[0] <= '9'
                                ? json_string(ctl->argv[of_line[0] - '0'])
                                : json_boolean(ctl_is_given(ctl, of_line)));
    }
    return object;
}

/* Fills one field of the request. -1: continue; else the exit status. */
static int fill_field(struct ctl *ctl, ProtobufCMessage *request, const char *word)
{
    static char path[PATH_MAX];
    char name[64], options[128];
    const char *value = strchr(word, '=') + 1;
    const int argument = value[1] >= '0' && value[1] <= '9' ? value[1] - '0' : -1;
    snprintf(name, sizeof name, "%.*s", (int)(value - 1 - word), word);
    snprintf(options, sizeof options, "%s", value + 1);
    for (char *comma; (comma = strchr(options, ',')) != NULL;) *comma = ' ';
    const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field_by_name(
        request->descriptor, name);
    void *to = (char *)request + field->offset;
    if (value[0] == '/') {
        *(char **)to = path;
        return ctl_absolute(ctl->row->arguments, ctl->argv[argument], path);
    }
    if (argument >= 0) {
        if (ctl->argc > argument) *(char **)to = ctl->argv[argument];
    } else if (field->type == PROTOBUF_C_TYPE_UINT32) {
        *(uint32_t *)to = (uint32_t)ctl_option_number(ctl, options);
    } else if (field->type == PROTOBUF_C_TYPE_UINT64) {
        *(uint64_t *)to = ctl_option_number(ctl, options);
    } else {
        *(protobuf_c_boolean *)to = value[0] == '1' ||
                                    ctl_is_given(ctl, options) == (value[0] == '@');
    }
    return -1;
}

static void print_reply(struct ctl *ctl, const struct ctl_question *q, const void *reply)
{
    if (ctl->json)
        ctl_print_json(q->json != NULL     ? q->json(ctl, reply)
                       : q->fields != NULL ? answer_json(ctl, reply, q->fields)
                                           : ctl_json(reply));
    else if (ctl->quiet && q->quiet != NULL)
        ctl_line_of(NULL, reply, q->quiet);
    else if ((!ctl->quiet || q->is_quiet_too) && q->print != NULL)
        q->print(ctl, reply);
    else if (!ctl->quiet && q->lines != NULL)
        ctl_lines(reply, q->lines);
}

static int ask_by(struct ctl *ctl, const struct ctl_question *q, const ProtobufCMessage *request)
{
    ProtobufCMessage *reply;
    const int refused = q->confirm != NULL ? ctl_confirm(ctl, q->confirm, ctl->argv[ctl->argc - 1])
                                           : -1;
    if (refused >= 0) return refused;
    if (q->awaits) ctl->cut_of = ctl->argv[0];
    if (q->timeout_ms != 0 && ctl->timeout_ms == 0) ctl->timeout_ms = q->timeout_ms;
    if (q->farewell != NULL) ctl_on_interrupt("%s", q->farewell);
    const cairn_status called = ctl_call(ctl, q->type, request, q->reply_type, &reply);
    if (called != CAIRN_OK) return status_exit((int)called);
    print_reply(ctl, q, reply);
    const int status = q->check != NULL ? q->check(ctl, reply) : 0;
    message_free(reply);
    return status;
}

int ctl_ask(struct ctl *ctl, const struct ctl_question *q)
{
    char words[256], *rest = words;
    int done = -1;
    ProtobufCMessage *request = must(malloc(q->request->sizeof_message));
    q->request->message_init(request);
    snprintf(words, sizeof words, "%s", q->fill);
    asked = ctl;
    for (char *word; done < 0 && (word = strsep(&rest, " ")) != NULL && word[0] != '\0';)
        done = fill_field(ctl, request, word);
    if (done < 0 && q->fill_by != NULL) done = q->fill_by(ctl, request);
    if (done < 0) done = ask_by(ctl, q, request);
    free(request);
    return done;
}

/* ==== watch ==== */

/* --watch and `job top`: repeat a command until it is interrupted. */

#define HOME_AND_CLEAR "\033[H\033[J"

/* Exits immediately, even during a call to a coordinator that does not answer. An incomplete screen is not
 * shown. */
static void on_signal_watch(int signal)
{
    (void)signal;
    _exit(130);
}

int ctl_watch(struct ctl *ctl, int (*run)(struct ctl *ctl))
{
    static char buffer[1 << 16];
    const bool is_terminal = isatty(STDOUT_FILENO) == 1;
    const struct sigaction action = { .sa_handler = on_signal_watch };
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer); // show a complete screen at once
    for (bool first = true;; first = false) {
        if (is_terminal)
            printf(HOME_AND_CLEAR);
        else if (!first)
            printf("\n");
        const int status = run(ctl);
        if (fflush(stdout) != 0) return 1; // nobody reads the output
        // An unreachable coordinator may come back, as after a restart.
        if (status != 0 && (first || status != status_exit(CAIRN_ERR_UNREACHABLE))) return status;
        poll(NULL, 0, (int)(ctl->every_s * 1000));
    }
}
