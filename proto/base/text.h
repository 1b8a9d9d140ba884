/* Strangers supply names, paths and notes that people read, in logs, in tables on a terminal, and in JSON.
 * So these have to be "text", which in Cairn means well-formed UTF-8 without control characters (U+0000 to
 * U+001F, U+007F to U+009F). Well-formed is what Unicode 15, table 3-7, allows: no overlong forms, no
 * surrogates, and nothing over U+10FFFF. Pure; no ownership; any thread. */
#ifndef CAIRN_BASE_TEXT_H
#define CAIRN_BASE_TEXT_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include "proto/base/status.h"

/* ==== sentence ==== */

/* A sentence for people. It says what was refused or failed, why, and what to do.
 *
 * If an operator or a user must understand why a function failed, the last parameter of the function is a
 * `struct sentence *why`, which may be NULL. The sentence is written only on failure, by the function that
 * finds the error, with the numbers; other functions pass it on. A sentence may contain a stranger's text,
 * which may have been cut anywhere, so nobody may assume that the sentence is printable: the log escapes
 * it, and code that shows it to people calls text_mend (below). Pure; no ownership; any thread. */

#define CAIRN_SENTENCE_BYTES 2048 /* enough for a list of twenty tensors */

struct sentence {
    /* ends in NUL; a sentence that is too long is cut after a word, with "…" */
    char text[CAIRN_SENTENCE_BYTES];
};

/* Writes the sentence, and cuts it if it is too long. If `s` is NULL, nothing happens. The present text of
 * the sentence may be an argument, as in "chunk 3: %s", which puts words before what a callee wrote. */
void sentence_set(struct sentence *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Adds to the end of the sentence, and cuts it if it is too long; for lists of differences. */
void sentence_add(struct sentence *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns `text` for use within another sentence. If the text has more than `bytes_max` bytes, it is cut
 * after a word, with "…". The .text of the result lives until the end of the full expression that contains
 * the call. Never cut a sentence with "%.300s" instead. */
struct sentence sentence_brief(const char *text, size_t bytes_max);

/* Writes the sentence and returns `status`: `return fail_with(why, CAIRN_ERR_CONFIG, "...");` */
cairn_status fail_with(struct sentence *s, cairn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#ifdef __clang_analyzer__ // it looks into no other file, and would think that this may return CAIRN_OK
void fail_said(struct sentence *s, const char *format, ...);
#define fail_with(s, status, ...) (fail_said(s, __VA_ARGS__), (status))
#endif

/* ==== text ==== */

/* True if the string is text, as defined above, and has 1 to bytes_max bytes. False for NULL. */
bool text_ok(const char *text, size_t bytes_max);
/* Makes the same check, and returns CAIRN_OK or CAIRN_ERR_INVALID. The sentence begins with `what`, as
 * "opts.name", says which byte is wrong and what is allowed, and quotes nothing of the text. */
cairn_status text_check(const char *what, const char *text, size_t bytes_max,
                        struct sentence *why) CAIRN_MUST_CHECK;
/* If the character at `text` is beyond ASCII, and text, returns the number of its bytes; otherwise 0. */
size_t text_beyond_ascii(const char *text);
/* Makes text of any string: writes a '?' over every byte that is not part of text. Control characters that
 * are in `keep` stay; `keep` is "\n" for several lines of text, and "" for one line. */
void text_mend(char *text, const char *keep);

/* Casts a string to char *, for a message, or for a spec that is added to another spec. The packers of
 * protobuf-c, and the functions that copy specs, take char * although they do not write to it. */
static inline char *wire_text(const char *text)
{
    return (char *)(uintptr_t)text;
}

/* ==== whole ==== */

/* Reads from and writes to a descriptor, and goes on after a short count or a signal. */

/* Writes all bytes. False: errno says why, and a part of the bytes may have been written. */
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

/* Reads until the file ends or `count` bytes are read. Returns the number of bytes; -1: errno says why. */
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

/* Each struct of array[count] has `size` bytes and a uint32_t number at offset `key_at`, and the array is
 * sorted by this number. Returns the index of the first struct whose number is not below `key`; `count` if
 * there is none. */
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

/* Numbers as bytes, with the least significant byte first, as in messages and files. Pure. */

/* Writes the lowest `bytes` bytes of the value, at most 8. */
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

/* The checksum of a chunk (chunk_checksum, XXH3-64), which is computed while the bytes arrive. Any thread,
 * one at a time. */

struct checksum;

struct checksum *checksum_new(void); /* NULL: no memory */
void checksum_free(struct checksum *sum);

void checksum_begin(struct checksum *sum);
void checksum_add(struct checksum *sum, const void *bytes, size_t count);
/* Returns the checksum of all bytes that were added since checksum_begin. At least one byte must have been
 * added. */
uint64_t checksum_end(const struct checksum *sum);

/* ==== arrays that grow ==== */

/* Makes room for `more` elements, of elem_bytes each, after the first `count`. `array` is the address of
 * the pointer to the elements. If there is not enough room, this pointer changes, and *capacity grows at
 * least to its double. CAIRN_ERR_NO_MEMORY: nothing has changed. */
CAIRN_MUST_CHECK cairn_status array_reserve(void *array, size_t count, size_t more,
                                            size_t *capacity, size_t elem_bytes);

#endif
