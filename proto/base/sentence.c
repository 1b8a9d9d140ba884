#include "proto/base/sentence.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define CUT "…" /* three bytes */

/* `text` has `bytes` of a longer one: what of it is left ends behind a word, or where there is none for long,
 * behind a character. With the mark it has `bytes` at most. */
static void cut_at_word(char *text, size_t bytes)
{
    size_t end = bytes - (sizeof CUT - 1);
    while (end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80) end--; // within a character
    size_t word = end;
    while (word > end / 2 && text[word] != ' ') word--;
    if (text[word] == ' ') end = word;
    while (end > 0 && strchr(" ,;:", text[end - 1]) != NULL) end--;
    memcpy(text + end, CUT, sizeof CUT);
}

struct cairn_sentence cairn_sentence_brief(const char *text, size_t bytes_max)
{
    struct cairn_sentence brief;
    const size_t most = bytes_max < sizeof brief.text - 1 ? bytes_max : sizeof brief.text - 1;
    const size_t bytes = strnlen(text, most + 1);
    memcpy(brief.text, text, bytes <= most ? bytes : most);
    brief.text[bytes <= most ? bytes : most] = '\0';
    if (bytes > most && most > sizeof CUT) cut_at_word(brief.text, most);
    return brief;
}

// Formats into a copy first, since an argument may be the sentence itself.
static void write_from(struct cairn_sentence *s, size_t start, const char *format, va_list args)
{
    struct cairn_sentence copy;
    const size_t room = sizeof copy.text - start;
    const int length = vsnprintf(copy.text, room, format, args);
    if (length < 0) copy.text[0] = '\0';
    if (length >= (int)room && room > sizeof CUT) cut_at_word(copy.text, room - 1);
    memcpy(s->text + start, copy.text, strlen(copy.text) + 1);
}

void cairn_sentence_set(struct cairn_sentence *s, const char *format, ...)
{
    if (s == NULL) return;
    va_list args;
    va_start(args, format);
    write_from(s, 0, format, args);
    va_end(args);
}

void cairn_sentence_add(struct cairn_sentence *s, const char *format, ...)
{
    if (s == NULL) return;
    va_list args;
    va_start(args, format);
    write_from(s, strlen(s->text), format, args);
    va_end(args);
}

cairn_status cairn_fail(struct cairn_sentence *s, cairn_status status, const char *format, ...)
{
    if (s == NULL) return status;
    va_list args;
    va_start(args, format);
    write_from(s, 0, format, args);
    va_end(args);
    return status;
}
