/* JSON text that is read while memory ends: any block may be refused, and nothing is written beyond a buffer,
 * kept, or taken for damage of the text. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/safetensors/json_text.h"
#include "tests/support/suite.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void)
{
    printf("skip: a sanitizer has the allocator\n");
    return SUITE_SKIPPED;
}
#else

extern void *__libc_malloc(size_t bytes);
extern void __libc_free(void *memory);

static unsigned long until; /* the allocation that fails is so many away; 0: none fails */
static long blocks;

__attribute__((visibility("default"))) void *malloc(size_t bytes)
{
    if (until > 0 && --until == 0) return NULL;
    void *memory = __libc_malloc(bytes);
    blocks += memory != NULL;
    return memory;
}

__attribute__((visibility("default"))) void free(void *memory)
{
    blocks -= memory != NULL;
    __libc_free(memory);
}

enum { WORD_MAX = 140, TEXT = 2 * WORD_MAX + 100 };

/* Its words are so long: at some lengths the quotation mark behind one is what a buffer grows for. */
static void write_text(char text[TEXT], int length)
{
    char word[WORD_MAX + 1];
    for (int i = 0; i < length; i++) word[i] = (char)('a' + i % 26);
    word[length] = '\0';
    snprintf(text, TEXT, "{\"%s\": [1, -2.5, true, null, \"\\\"\\\\\"], \"%c\": {\"a\": \"%s\"}}",
             word, 'B', word);
}

/* Whether the nth allocation was asked for. */
static bool parse(const char *text, unsigned long nth)
{
    json_t *root = NULL;
    json_error_t error;
    const long before = blocks;
    until = nth;
    const cairn_status status = json_text_parse(text, strlen(text), &root, &error);
    const bool has_failed = until == 0;
    until = 0;
    ck_assert_int_eq(status, has_failed ? CAIRN_ERR_NO_MEMORY : CAIRN_OK);
    if (!has_failed) json_decref(root);
    ck_assert_msg(blocks == before, "%lu: %ld blocks, not %ld", nth, blocks, before);
    return has_failed;
}

TEST(whatever_memory_is_refused_the_text_is_not_called_damaged_and_nothing_is_kept)
{
    char text[TEXT];
    for (int length = 1; length <= WORD_MAX; length++) {
        unsigned long nth = 1;
        write_text(text, length);
        (void)parse(text, 1000000); // what is made once is made
        while (parse(text, nth)) nth++;
        ck_assert_uint_gt(nth, 15);
    }
}

TEST(a_text_that_is_cut_off_is_damaged)
{
    char text[TEXT];
    json_t *root;
    json_error_t error;
    write_text(text, WORD_MAX);
    ck_assert_int_eq(json_text_parse(text, strlen(text) - 1, &root, &error), CAIRN_ERR_MALFORMED);
    ck_assert_int_eq(json_text_parse(text, WORD_MAX, &root, &error), CAIRN_ERR_MALFORMED);
    ck_assert_int_eq(json_text_parse(text, 0, &root, &error), CAIRN_ERR_MALFORMED);
}

SUITE(30);

int main(void)
{
    return suite_main();
}
#endif
