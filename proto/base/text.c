#include "proto/base/text.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/status.h"
#include "proto/base/xxh.h"

/* Returns the number of bytes of the well-formed UTF-8 sequence at s; 0 if there is none. s ends in NUL. */
static size_t sequence_at(const unsigned char *s)
{
    if (s[0] < 0x80) return 1;
    if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
    unsigned low = 0x80, high = 0xbf; // the range of the second byte
    if (s[0] == 0xe0) low = 0xa0;
    if (s[0] == 0xed) high = 0x9f;
    if (s[0] == 0xf0) low = 0x90;
    if (s[0] == 0xf4) high = 0x8f;
    if (s[1] < low || s[1] > high) return 0;
    const size_t length = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    for (size_t i = 2; i < length; i++)
        if (s[i] < 0x80 || s[i] > 0xbf) return 0;
    return length;
}

/* True if the well-formed sequence is a control character. (In U+0080 to U+009F the second byte is equal to
 * the number of the character.) */
static bool is_control(const unsigned char *s)
{
    return s[0] < 0x20 || s[0] == 0x7f || (s[0] == 0xc2 && s[1] < 0xa0);
}

size_t text_beyond_ascii(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    return s[0] >= 0x80 && !is_control(s) ? sequence_at(s) : 0;
}

/* Returns the address of the first byte that is not part of text; if all bytes are, of the NUL. */
static const unsigned char *find_fault(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t length; *s != '\0' && !is_control(s) && (length = sequence_at(s)) > 0;) s += length;
    return s;
}

bool text_ok(const char *text, size_t bytes_max)
{
    return text_check("", text, bytes_max, NULL) == CAIRN_OK;
}

cairn_status text_check(const char *what, const char *text, size_t bytes_max, struct sentence *why)
{
    static const char allowed[] = "bytes of UTF-8 without control characters";
    if (text == NULL || text[0] == '\0')
        return fail_with(why, CAIRN_ERR_INVALID, "%s is empty; allowed: 1 to %zu %s", what,
                         bytes_max, allowed);
    if (strnlen(text, bytes_max + 1) > bytes_max)
        return fail_with(why, CAIRN_ERR_INVALID, "%s is longer than allowed: 1 to %zu %s", what,
                         bytes_max, allowed);
    const unsigned char *fault = find_fault(text);
    const size_t at = (size_t)(fault - (const unsigned char *)text);
    if (*fault == '\0') return CAIRN_OK;
    if (sequence_at(fault) == 0)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "%s: byte 0x%02x at %zu is no UTF-8; allowed: 1 to %zu %s", what, *fault,
                         at, bytes_max, allowed);
    return fail_with(why, CAIRN_ERR_INVALID,
                     "%s has the control character U+%04X at byte %zu; allowed: 1 to %zu %s", what,
                     fault[0] == 0xc2 ? fault[1] : fault[0], at, bytes_max, allowed);
}

void text_mend(char *text, const char *keep)
{
    for (unsigned char *s = (unsigned char *)text; *s != '\0';) {
        size_t length = sequence_at(s);
        if (length == 0 || (is_control(s) && strchr(keep, *s) == NULL)) {
            length = length > 0 ? length : 1;
            memset(s, '?', length);
        }
        s += length;
    }
}

/* ==== sentence ==== */

#define CUT "…" /* three bytes */

/* `text` holds the first `bytes` bytes of a longer text. Cuts it after a word, or after a character if the
 * last word is very long, and adds CUT. The result has at most `bytes` bytes. */
static void cut_at_word(char *text, size_t bytes)
{
    size_t end = bytes - (sizeof CUT - 1);
    // `end` is inside a character
    while (end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80) end--;
    size_t word = end;
    while (word > end / 2 && text[word] != ' ') word--;
    if (text[word] == ' ') end = word;
    while (end > 0 && strchr(" ,;:", text[end - 1]) != NULL) end--;
    memcpy(text + end, CUT, sizeof CUT);
}

struct sentence sentence_brief(const char *text, size_t bytes_max)
{
    struct sentence brief;
    const size_t most = bytes_max < sizeof brief.text - 1 ? bytes_max : sizeof brief.text - 1;
    const size_t bytes = strnlen(text, most + 1);
    memcpy(brief.text, text, bytes <= most ? bytes : most);
    brief.text[bytes <= most ? bytes : most] = '\0';
    if (bytes > most && most > sizeof CUT) cut_at_word(brief.text, most);
    return brief;
}

// Formats into a copy first, because an argument may be the sentence itself.
static void write_from(struct sentence *s, size_t start, const char *format, va_list args)
{
    struct sentence copy;
    const size_t room = sizeof copy.text - start;
    const int length = vsnprintf(copy.text, room, format, args);
    if (length < 0) copy.text[0] = '\0';
    if (length >= (int)room && room > sizeof CUT) cut_at_word(copy.text, room - 1);
    memcpy(s->text + start, copy.text, strlen(copy.text) + 1);
}

void sentence_set(struct sentence *s, const char *format, ...)
{
    if (s == NULL) return;
    va_list args;
    va_start(args, format);
    write_from(s, 0, format, args);
    va_end(args);
}

void sentence_add(struct sentence *s, const char *format, ...)
{
    if (s == NULL) return;
    va_list args;
    va_start(args, format);
    write_from(s, strlen(s->text), format, args);
    va_end(args);
}

#undef fail_with
cairn_status fail_with(struct sentence *s, cairn_status status, const char *format, ...)
{
    if (s == NULL) return status;
    va_list args;
    va_start(args, format);
    write_from(s, 0, format, args);
    va_end(args);
    return status;
}

/* ==== status ==== */

struct row {
    int number;
    int exit_code;
    const char *name;
    const char *text;
};

static const struct row rows[] = {
#define X(name, number, exit_code, text) { number, exit_code, "CAIRN_" #name, text },
    CAIRN_STATUS_TABLE(X)
#undef X
};

static const struct row *find_status(int status)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].number == status) return &rows[i];
    return NULL;
}

const char *status_code_name(int status)
{
    const struct row *row = find_status(status);
    return row != NULL ? row->name : "CAIRN_ERR_?";
}

const char *status_text(int status)
{
    const struct row *row = find_status(status);
    return row != NULL ? row->text : "an unknown status code";
}

int status_exit(int status)
{
    const struct row *row = find_status(status);
    return row != NULL ? row->exit_code : 1;
}

int status_known(int status)
{
    return find_status(status) != NULL;
}

/* ==== checksum ==== */

struct checksum *checksum_new(void)
{
    return (struct checksum *)XXH3_createState();
}

void checksum_free(struct checksum *sum)
{
    XXH3_freeState((XXH3_state_t *)sum);
}

/* The calls of XXH3 fail only for NULL. */
void checksum_begin(struct checksum *sum)
{
    XXH3_64bits_reset((XXH3_state_t *)sum);
}

void checksum_add(struct checksum *sum, const void *bytes, size_t count)
{
    XXH3_64bits_update((XXH3_state_t *)sum, bytes, count);
}

uint64_t checksum_end(const struct checksum *sum)
{
    return XXH3_64bits_digest((const XXH3_state_t *)sum);
}

/* ==== arrays that grow ==== */

cairn_status array_reserve(void *array, size_t count, size_t more, size_t *capacity,
                           size_t elem_bytes)
{
    void *elems;
    if (more <= *capacity - count) return CAIRN_OK;
    const size_t wanted = 2 * *capacity + (more > 8 ? more : 8);
    memcpy(&elems, array, sizeof elems);
    if ((elems = realloc(elems, wanted * elem_bytes)) == NULL) return CAIRN_ERR_NO_MEMORY;
    memcpy(array, &elems, sizeof elems);
    *capacity = wanted;
    return CAIRN_OK;
}
