#include "proto/wire/sentence.h"

#include <stdarg.h>
#include <stdio.h>

void cairn_sentence_set(struct cairn_sentence *s, const char *fmt, ...)
{
    if (s == NULL) return;
    va_list args;
    va_start(args, fmt);
    if (vsnprintf(s->text, sizeof s->text, fmt, args) < 0) s->text[0] = '\0';
    va_end(args);
}
