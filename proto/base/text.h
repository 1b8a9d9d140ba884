/* Text that strangers supply and people read: names, paths, notes. It is written to logs, tables on a
 * terminal and JSON, so "text" here is UTF-8 without control characters (U+0000 to U+001F, U+007F to
 * U+009F). Well-formed means as in Unicode 15, table 3-7: no overlong forms, no surrogates, nothing over
 * U+10FFFF.
 * Pure; no ownership; any thread. */
#ifndef CAIRN_BASE_TEXT_H
#define CAIRN_BASE_TEXT_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include "proto/base/status.h"

/* ==== sentence ==== */

/* A sentence for people: what was refused or failed, why, and what to do.
 *
 * Functions that can fail in a way an operator or a user must understand take a
 * `struct sentence *why` as their last parameter; it may be NULL. It is written only on
 * failure. The function that decides the error writes it, with the numbers; others pass it on. It may
 * contain a stranger's text, cut anywhere, so a sentence is never trusted to be printable: the log
 * escapes it, and code that shows it to people makes text of it (below). Pure; no ownership; any thread. */

#define CAIRN_SENTENCE_BYTES 2048 /* holds a list of twenty tensors */

struct sentence {
    char text
        [CAIRN_SENTENCE_BYTES]; /* always ends in NUL; a longer one is cut after a word, with "…" */
};

/* Writes the sentence, cut to fit. `s` may be NULL: then nothing happens. An argument may be the
 * sentence's own text ("chunk 3: %s" around what a callee wrote). */
void sentence_set(struct sentence *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Adds to the end, cut to fit: for lists of differences. */
void sentence_add(struct sentence *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns `text` for use within another sentence: at most `bytes_max` bytes, a longer one cut after a word,
 * with "…". Its .text lives as long as the full expression with the call. Never cut a sentence with
 * "%.300s". */
struct sentence sentence_brief(const char *text, size_t bytes_max);

/* Writes the sentence and returns `status`: `return fail_with(why, CAIRN_ERR_CONFIG, "...");` */
cairn_status fail_with(struct sentence *s, cairn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ==== text ==== */

/* True if `text` is text of 1 to bytes_max bytes. False for NULL. */
bool text_ok(const char *text, size_t bytes_max);
/* The same check, as CAIRN_OK or CAIRN_ERR_INVALID. `why` begins with `what` ("opts.name"), says which byte
 * is wrong and what is allowed, and quotes nothing of the text. */
cairn_status text_check(const char *what, const char *text, size_t bytes_max,
                        struct sentence *why) CAIRN_MUST_CHECK;
/* Returns how many bytes the character at `text` has if it is text beyond ASCII; else 0. */
size_t text_beyond_ascii(const char *text);
/* Makes text of any string: writes a '?' for every byte that is not part of text. Control characters in
 * `keep` stay: "\n" for text of several lines, "" for one line. */
void text_mend(char *text, const char *keep);

/* Casts a string for a message, or for a spec that is added to another spec: protobuf-c's packers, and the
 * functions that copy specs, take char * although they write nothing. */
static inline char *wire_text(const char *text)
{
    return (char *)(uintptr_t)text;
}

/* ==== whole ==== */

/* Reads and writes of a descriptor that continue after a short count or a signal. */

/* False: errno says why, and some of the bytes may be written. */
static inline bool write_fully(int fd, const void *bytes, size_t count)
{
    const uint8_t *next = bytes;
    while (count > 0) {
        const ssize_t written = write(fd, next, count);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return false;
        next += written;
        count -= (size_t)written;
    }
    return true;
}

/* Reads to the end of the file, or of the room. Returns how many bytes; -1: errno says why. */
static inline ssize_t read_fully(int fd, void *room, size_t count)
{
    size_t have = 0;
    while (have < count) {
        const ssize_t got = read(fd, (uint8_t *)room + have, count - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        have += (size_t)got;
    }
    return (ssize_t)have;
}

/* ==== lower bound ==== */

/* Binary search in arrays of structs that are sorted by a number. Pure. */

/* Returns the index of the first of array[count] whose number, the uint32_t at `key_at`, is not below
 * `key`; count if there is none. The array is sorted by that number. `size`: bytes of a struct. */
static inline size_t lower_bound(const void *array, size_t count, size_t size, size_t key_at,
                                 uint32_t key)
{
    size_t low = 0, high = count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (*(const uint32_t *)((const char *)array + middle * size + key_at) < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ==== little endian ==== */

/* Numbers as bytes, the least first, as in messages and files. Pure. */

/* Writes the low `bytes` of the value, 8 at most. */
static inline void le_put(uint8_t *out, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) out[i] = (uint8_t)(value >> (8 * i));
}

static inline uint64_t le_get(const uint8_t *in, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) value |= (uint64_t)in[i] << (8 * i);
    return value;
}

/* ==== checksum ==== */

/* The checksum of a chunk (chunk_checksum, XXH3-64), computed as the bytes arrive. Any thread, one at a
 * time. */

struct checksum;

struct checksum *checksum_new(void); /* NULL: no memory */
void checksum_free(struct checksum *sum);

void checksum_begin(struct checksum *sum);
void checksum_add(struct checksum *sum, const void *bytes, size_t count);
/* Returns the checksum of all bytes added since checksum_begin; at least one must have been added. */
uint64_t checksum_end(const struct checksum *sum);

/* ==== arrays that grow ==== */

/* Makes room for `more` elements of elem_bytes behind the first `count`. `array` is the address of the
 * pointer to them, which changes; *capacity changes, too, at least to its double. CAIRN_ERR_NO_MEMORY:
 * nothing changed. */
CAIRN_MUST_CHECK cairn_status array_reserve(void *array, size_t count, size_t more,
                                            size_t *capacity, size_t elem_bytes);

#endif
