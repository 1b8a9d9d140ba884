/* Small words beside the snapshots of a job, each a file of a line, replaced durably and at once:
 *
 *   <root>/<job>/latest       the id of the newest snapshot that was verified
 *   <root>/<job>/tags/NAME    the id of a snapshot that is never removed by itself
 *   <root>/<job>/checks/ID    "good SECONDS" or "damaged SECONDS": when all of it was last read (since 1970)
 *   <root>/<job>/begun/ID     the number of the job (16 hex digits) that has begun this snapshot, until it is
 *                             committed, or its removal, until it is gone: by it is known what a crash left
 *
 * They are hostile input: a line of another form is no word. All functions block, and may be called from any
 * thread; of two that write one at a time it has one of the two. */
#ifndef CAIRN_SNAPSHOT_IO_WORD_H
#define CAIRN_SNAPSHOT_IO_WORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/sentence.h"
#include "proto/base/status.h"
#include "proto/snapshot/snapshot_file.h"

#define CAIRN_SNAPSHOT_TAG_BYTES 65   /* with the NUL */
#define CAIRN_SNAPSHOT_WORDS_MAX 4096 /* of a kind; more are CAIRN_ERR_INVALID */

/* 1 to 64 of A-Z a-z 0-9 . _ -, first no . or -; not "latest", no id, and no ".tmp" at its end. */
bool cairn_snapshot_tag_ok(const char *name);

struct cairn_snapshot_tag {
    char name[CAIRN_SNAPSHOT_TAG_BYTES];
    char id[CAIRN_SNAPSHOT_ID_BYTES];
};
struct cairn_snapshot_check {
    char id[CAIRN_SNAPSHOT_ID_BYTES];
    bool is_good;
    uint64_t unix_s;
};
struct cairn_snapshot_begun {
    char id[CAIRN_SNAPSHOT_ID_BYTES];
    uint64_t job; /* its number */
};
struct cairn_snapshot_words {
    char latest[CAIRN_SNAPSHOT_ID_BYTES]; /* empty: none */
    /* owned */
    struct cairn_snapshot_tag *tags;     /* [tag_count], by name */
    struct cairn_snapshot_check *checks; /* [check_count] */
    struct cairn_snapshot_begun *begun;  /* [begun_count] */
    size_t tag_count, check_count, begun_count;
};

/* All words of a job; release them, whatever it returned. CAIRN_ERR_CORRUPT: a tag is there and cannot be
 * read, so that nobody knows what it holds. A `latest` or a check that is none is left out. */
cairn_status cairn_snapshot_words_load(const char *root, const char *job,
                                       struct cairn_snapshot_words *out,
                                       struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_snapshot_words_release(struct cairn_snapshot_words *words);
/* The check of that id; NULL: none. */
const struct cairn_snapshot_check *
cairn_snapshot_words_check(const struct cairn_snapshot_words *words, const char *id);

/* The names and ids have been judged. */
cairn_status cairn_snapshot_latest_set(const char *root, const char *job, const char *id,
                                       struct cairn_sentence *why) CAIRN_MUST_CHECK;
cairn_status cairn_snapshot_tag_set(const char *root, const char *job, const char *name,
                                    const char *id, struct cairn_sentence *why) CAIRN_MUST_CHECK;
cairn_status cairn_snapshot_check_set(const char *root, const char *job,
                                      const struct cairn_snapshot_check *check,
                                      struct cairn_sentence *why) CAIRN_MUST_CHECK;
cairn_status cairn_snapshot_begun_set(const char *root, const char *job, const char *id,
                                      uint64_t number, struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* Durably. CAIRN_ERR_NOT_FOUND: there is none. */
cairn_status cairn_snapshot_latest_remove(const char *root, const char *job,
                                          struct cairn_sentence *why) CAIRN_MUST_CHECK;
cairn_status cairn_snapshot_tag_remove(const char *root, const char *job, const char *name,
                                       struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Remove the word about a snapshot that is gone, or committed; a word that stays after a failure
 * harms nobody. */
void cairn_snapshot_check_forget(const char *root, const char *job, const char *id);
void cairn_snapshot_begun_forget(const char *root, const char *job, const char *id);

#endif
