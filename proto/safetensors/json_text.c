/* jansson (2.14) keeps the word that it reads in a buffer, which it doubles as the word grows. It does not
 * look whether the buffer grew, and if not, it reads and writes beyond the buffer. So a block of each size
 * that the buffer may need is at hand before the text is read. */
#include "proto/safetensors/json_text.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

enum { FIRST = 5, SIZES = 40 }; /* of 1 << FIRST bytes, and so on */

static _Thread_local struct {
    void *blocks[SIZES]; /* owned; NULL: used, or not needed */
    bool is_reading;
    bool lacks_memory; /* since it reads */
} at_hand;

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory != NULL || !at_hand.is_reading) return memory;
    at_hand.lacks_memory = true;
    for (int i = FIRST; i < SIZES; i++) {
        if (bytes != (size_t)1 << i) continue;
        memory = at_hand.blocks[i];
        at_hand.blocks[i] = NULL;
    }
    return memory;
}

static void use_own_memory(void)
{
    json_set_alloc_funcs(allocate, free);
}

/* No word is longer. A quotation mark ends one, unless a backslash is before it. */
static size_t longest_word(const char *text, size_t bytes)
{
    size_t longest = 0, begin = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '"' && (i == 0 || text[i - 1] != '\\')) begin = i;
        if (i - begin > longest) longest = i - begin;
    }
    return longest;
}

static void put_away(void)
{
    for (int i = FIRST; i < SIZES; i++) {
        free(at_hand.blocks[i]);
        at_hand.blocks[i] = NULL;
    }
    at_hand.is_reading = at_hand.lacks_memory = false;
}

/* False: there is no memory. */
static bool get_ready(size_t word_bytes)
{
    enum { MORE = 16 }; // quotation marks, a last character of several bytes, NUL
    at_hand.is_reading = true;
    for (int i = FIRST; i < SIZES; i++) {
        at_hand.blocks[i] = malloc((size_t)1 << i);
        if (at_hand.blocks[i] == NULL) return false;
        if ((size_t)1 << i >= word_bytes + MORE) return true;
    }
    return false;
}

cairn_status json_text_parse(const char *text, size_t bytes, json_t **root_out,
                             json_error_t *error_out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    json_t *root = NULL;
    pthread_once(&once, use_own_memory);
    const bool is_ready = get_ready(longest_word(text, bytes));
    if (is_ready) root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, error_out);
    const bool lacks_memory = !is_ready || at_hand.lacks_memory;
    put_away();
    if (lacks_memory) {
        json_decref(root);
        return CAIRN_ERR_NO_MEMORY;
    }
    if (root == NULL) return CAIRN_ERR_MALFORMED;
    *root_out = root;
    return CAIRN_OK;
}
