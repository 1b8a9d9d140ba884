#include "client/base/error.h"

#include <cairn.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/base/struct.h"
#include "proto/base/text.h"

#define ROWS_MAX   64
#define TEXT_BYTES 8192

static _Thread_local char last[2048];

/* The differences that belong to the sentence in `last`. */
static _Thread_local struct {
    char text[TEXT_BYTES];
    size_t used;
    struct cairn_difference rows[ROWS_MAX];
    size_t count;
} differences;

cairn_status cairn_client_fail(cairn_status status, const char *fmt, ...)
{
    va_list arguments;
    va_start(arguments, fmt);
    vsnprintf(last, sizeof last, fmt, arguments);
    va_end(arguments);
    cairn_text_mend(last, "\n"); // what it quotes may be anything
    differences.used = differences.count = 0;
    return status;
}

const char *cairn_status_name(int status)
{
    return cairn_status_code_name(status);
}

const char *cairn_version(void)
{
    return CAIRN_VERSION;
}

const char *cairn_error(void)
{
    return last;
}

/* A copy; NULL for an empty one. */
static const char *keep(const char *text)
{
    char *at = differences.text + differences.used;
    const size_t bytes = strlen(text) + 1;
    if (bytes == 1) return NULL;
    memcpy(at, text, bytes);
    cairn_text_mend(at, "");
    differences.used += bytes;
    return at;
}

void cairn_client_differ(const Cairn__Difference *row)
{
    const char *const texts[] = { row->line,   row->key,   row->value,
                                  row->tensor, row->field, row->there };
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) bytes += strlen(texts[i]) + 1;
    if (differences.count == ROWS_MAX || bytes > TEXT_BYTES - differences.used) return;
    differences.rows[differences.count++] = (struct cairn_difference) {
        .struct_size = sizeof(struct cairn_difference),
        .text = keep(row->line),
        .key = keep(row->key),
        .value = keep(row->value),
        .change = row->change <= CAIRN_CHANGE_NEVER ? (cairn_change)row->change
                                                    : CAIRN_CHANGE_NEVER,
        .tensor = keep(row->tensor),
        .field = keep(row->field),
        .there = keep(row->there),
    };
}

cairn_status cairn_error_difference(size_t index, struct cairn_difference *out)
{
    const size_t least = offsetof(struct cairn_difference, change) + sizeof out->change;
    if (!cairn_struct_fits(out, least))
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "out must be given, its struct_size at least %zu", least);
    if (index >= differences.count) return CAIRN_ERR_NOT_FOUND;
    cairn_struct_give(out, &differences.rows[index], sizeof differences.rows[index]);
    return CAIRN_OK;
}
