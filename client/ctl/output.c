/* Tables, lines and JSON. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"

struct ctl_table {
    const char *const *headers;
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

struct ctl_table *cairn_ctl_table_open(const char *const *headers, size_t column_count)
{
    struct ctl_table *table = must(calloc(1, sizeof *table));
    table->headers = headers;
    table->column_count = column_count;
    return table;
}

void cairn_ctl_table_cell(struct ctl_table *table, const char *fmt, ...)
{
    va_list arguments;
    char *text = NULL;
    va_start(arguments, fmt);
    if (vasprintf(&text, fmt, arguments) < 0) text = NULL;
    va_end(arguments);
    if (table->cell_count == table->capacity) {
        table->capacity = table->capacity == 0 ? 64 : table->capacity * 2;
        table->cells = must(realloc(table->cells, table->capacity * sizeof *table->cells));
    }
    table->cells[table->cell_count++] = must(text);
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

void cairn_ctl_table_close(struct ctl_table *table, const struct ctl *ctl)
{
    size_t *widths = must(calloc(table->column_count, sizeof *widths));
    for (size_t c = 0; c < table->column_count; c++)
        widths[c] = column_width(table, c, !ctl->no_headers);
    if (!ctl->no_headers) print_row(table, table->headers, widths);
    for (size_t i = 0; i + table->column_count <= table->cell_count; i += table->column_count)
        print_row(table, (const char *const *)&table->cells[i], widths);
    for (size_t i = 0; i < table->cell_count; i++) free(table->cells[i]);
    free(table->cells);
    free(widths);
    free(table);
}

void cairn_ctl_line(const char *name, const char *fmt, ...)
{
    va_list arguments;
    printf("%-18s", name);
    va_start(arguments, fmt);
    vprintf(fmt, arguments);
    va_end(arguments);
    printf("\n");
}

void cairn_ctl_version_line(const char *name, uint64_t generation, uint64_t step, bool unknown)
{
    if (unknown)
        cairn_ctl_line(name, "unknown: not all shards have told it");
    else
        cairn_ctl_line(name, "generation %llu, step %llu", (unsigned long long)generation,
                       (unsigned long long)step);
}

json_t *cairn_ctl_json_known(bool known, uint64_t number)
{
    return known ? json_integer((json_int_t)number) : json_null();
}

int cairn_ctl_print_json(json_t *object)
{
    json_object_set_new(object, "schema_version", json_integer(CAIRN_CTL_SCHEMA_VERSION));
    json_dumpf(object, stdout, JSON_INDENT(2) | JSON_SORT_KEYS);
    printf("\n");
    json_decref(object);
    return 0;
}

const char *cairn_ctl_hex(ProtobufCBinaryData bytes)
{
    static char texts[2][129];
    static unsigned turn;
    char *text = texts[turn++ % 2];
    const size_t count = bytes.len < 64 ? bytes.len : 64;
    for (size_t i = 0; i < count; i++) snprintf(text + 2 * i, 3, "%02x", bytes.data[i]);
    text[2 * count] = 0;
    return text;
}

const char *cairn_ctl_bytes(uint64_t bytes)
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
