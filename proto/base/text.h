/* Text that strangers give and people read: names, paths, notes. It goes into logs, tables on a terminal and
 * JSON, so that text is UTF-8 without control characters (U+0000 to U+001F, U+007F to U+009F). Well-formed
 * is what Unicode 15, table 3-7, says: no overlong forms, no surrogates, nothing over U+10FFFF.
 * Pure; no ownership; any thread. */
#ifndef CAIRN_BASE_TEXT_H
#define CAIRN_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/base/sentence.h"

/* True if `text` is text of 1 to bytes_max bytes. False for NULL. */
bool cairn_text_ok(const char *text, size_t bytes_max);
/* The same as CAIRN_OK or CAIRN_ERR_INVALID. `why` begins with `what` ("opts.name"), says which byte is wrong
 * and what is allowed, and quotes nothing of the text. */
cairn_status cairn_text_check(const char *what, const char *text, size_t bytes_max,
                              struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Bytes of the character at `text` if it is text beyond ASCII; else 0. */
size_t cairn_text_beyond_ascii(const char *text);
/* Makes text of any string: a '?' for every byte that is part of none. Control characters of `keep` stay:
 * "\n" in what may have several lines, "" in a line. */
void cairn_text_mend(char *text, const char *keep);

#endif
