#include "proto/base/sentence.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// Formats into a copy first, since an argument may be the sentence itself.
static void write_from(struct cairn_sentence *s, size_t start, const char *format, va_list args)
{
    struct cairn_sentence copy;
    const size_t room = sizeof copy.text - start;
    const int length = vsnprintf(copy.text, room, format, args);
    if (length < 0) copy.text[0] = '\0';
    if (length >= (int)room && room > 4) memcpy(copy.text + room - 4, "...", 4);
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
