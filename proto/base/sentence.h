/* A sentence for people: what was refused or failed, why, and what to do.
 *
 * Functions that can fail in a way an operator or a user must understand take a
 * `struct cairn_sentence *why` as their last parameter; it may be NULL. It is written only on
 * failure. Whoever decides the error writes it, with the numbers; others pass it on. Text of a
 * stranger may stand in it, cut anywhere, so a sentence is never trusted to be printable: the log
 * escapes it, and who shows it to people makes text of it (text.h). Pure; no ownership; any thread. */
#ifndef CAIRN_BASE_SENTENCE_H
#define CAIRN_BASE_SENTENCE_H

#include <stddef.h>

#include "proto/base/status.h"

#define CAIRN_SENTENCE_BYTES 2048 /* holds a list of twenty tensors */

struct cairn_sentence {
    char text
        [CAIRN_SENTENCE_BYTES]; /* always ends in NUL; a longer one ends behind a word, in "…" */
};

/* Writes the sentence, cut to fit. `s` may be NULL: then nothing happens. An argument may be the
 * sentence's own text ("chunk 3: %s" around what a callee wrote). */
void cairn_sentence_set(struct cairn_sentence *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Adds to the end, cut to fit: for lists of differences. */
void cairn_sentence_add(struct cairn_sentence *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* `text` for within another sentence: of at most `bytes_max` bytes, a longer one cut behind a word, with "…".
 * Its .text lives as long as the expression that it stands in. Never cut a sentence with "%.300s". */
struct cairn_sentence cairn_sentence_brief(const char *text, size_t bytes_max);

/* Writes the sentence and returns `status`: `return cairn_fail(why, CAIRN_ERR_CONFIG, "...");` */
cairn_status cairn_fail(struct cairn_sentence *s, cairn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
