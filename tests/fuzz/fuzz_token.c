/* Tokens as words, and lists of roles. */
#include <string.h>

#include "proto/secure/secure.h"
#include "tests/fuzz/target.h"

/* What was read is written as a word that is read as the same. */
static void parse_token(const char *text)
{
    struct token token, again;
    struct sentence why = { 0 };
    char word[CAIRN_TOKEN_TEXT_BYTES];
    if (token_parse(text, &token, &why) != CAIRN_OK) {
        MUST(why.text[0] != '\0');
        return;
    }
    token_print(&token, word);
    MUST(token_parse(word, &again, NULL) == CAIRN_OK);
    MUST(memcmp(&token, &again, sizeof token) == 0);
}

static void parse_roles(const char *text)
{
    uint32_t roles, again;
    char words[64];
    if (!roles_parse(text, &roles)) return;
    MUST(roles != 0 && (roles & ~(uint32_t)CAIRN_MAY_ALL) == 0);
    roles_print(roles, words);
    MUST(roles_parse(words, &again) && again == roles);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    MUST(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    parse_token(text);
    parse_roles(text);
    free(text);
    return 0;
}
