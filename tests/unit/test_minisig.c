/* Signatures in minisign's format. */
#include <check.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/minisig_sample.h"
#include "tests/support/suite.h"

static const char message[] = "a manifest\n";

TEST(keys_survive_as_text)
{
    const struct secret_key key = cairn_sample_key();
    struct secret_key read_key;
    struct public_key read_public;
    char text[CAIRN_KEY_TEXT_BYTES], line[CAIRN_KEY_LINE_BYTES];
    secret_key_text(&key, text);
    ck_assert_int_eq(secret_key_parse(text, &read_key, NULL), CAIRN_OK);
    ck_assert_mem_eq(&read_key, &key, sizeof key);
    public_key_text(&key.public_key, text);
    ck_assert_int_eq(public_key_parse(text, &read_public, NULL), CAIRN_OK);
    ck_assert_mem_eq(&read_public, &key.public_key, sizeof read_public);
    public_key_line(&key.public_key, line);
    ck_assert_int_eq(strncmp(line, "RW", 2), 0);
    ck_assert_int_eq(public_key_parse(line, &read_public, NULL), CAIRN_OK);
    ck_assert_mem_eq(&read_public, &key.public_key, sizeof read_public);
}

TEST(a_signature_fits_its_bytes_and_its_key_alone)
{
    const struct secret_key key = cairn_sample_key();
    struct secret_key other = cairn_sample_key();
    struct sentence why;
    char text[CAIRN_MINISIG_BYTES];
    memcpy(other.public_key.id, key.public_key.id, sizeof other.public_key.id); // anyone can
    cairn_sample_sign(&key, message, text);
    ck_assert_int_eq(cairn_sample_check(text, &key.public_key, message, &why), CAIRN_OK);
    ck_assert_int_eq(cairn_sample_check(text, &key.public_key, "another manifest\n", &why),
                     CAIRN_ERR_CHECKSUM);
    ck_assert_int_eq(cairn_sample_check(text, &other.public_key, message, &why),
                     CAIRN_ERR_CHECKSUM);
}

/* Every byte of what is signed, and of the form, counts: but for the untrusted comment. */
TEST(a_changed_signature_is_refused)
{
    const struct secret_key key = cairn_sample_key();
    struct sentence why;
    char text[CAIRN_MINISIG_BYTES];
    cairn_sample_sign(&key, message, text);
    for (size_t i = strcspn(text, "\n") + 1; text[i] != '\0'; i++) {
        if (text[i] == '\n' && text[i + 1] == '\0') continue; // the last one may be missing
        char changed[CAIRN_MINISIG_BYTES];
        snprintf(changed, sizeof changed, "%s", text);
        changed[i] = changed[i] == 'a' ? 'b' : 'a';
        struct public_key same_id = key.public_key;
        struct minisig signature;
        if (minisig_parse(changed, strlen(changed), &signature, &why) == CAIRN_OK)
            memcpy(same_id.id, signature.key_id, sizeof same_id.id); // else it is a stranger's
        if (memcmp(same_id.id, key.public_key.id, sizeof same_id.id) != 0) continue;
        ck_assert_msg(cairn_sample_check(changed, &same_id, message, &why) != CAIRN_OK, "byte %zu",
                      i);
    }
}

static const char *const no_keys[] = {
    "",
    "\n",
    "RW",
    "untrusted comment: minisign public key 1\n",
    "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO", // one short
    "EWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3",
    "-----BEGIN PUBLIC KEY-----\n",
};

TEST_EACH(what_is_no_key_is_refused, 0, sizeof no_keys / sizeof *no_keys)
{
    struct public_key public_key;
    struct secret_key secret_key;
    struct sentence why = { "" };
    ck_assert_int_eq(public_key_parse(no_keys[_i], &public_key, &why), CAIRN_ERR_MALFORMED);
    ck_assert_ptr_nonnull(strstr(why.text, "not a public key"));
    ck_assert_int_eq(secret_key_parse(no_keys[_i], &secret_key, &why), CAIRN_ERR_MALFORMED);
}

/* In its id, its seed, its public half, its checksum. */
TEST_EACH(a_damaged_secret_key_is_refused, 0, 4)
{
    static const size_t from_end[] = { 138, 113, 63, 20 };
    const struct secret_key key = cairn_sample_key();
    struct secret_key out;
    struct sentence why = { "" };
    char text[CAIRN_KEY_TEXT_BYTES];
    secret_key_text(&key, text);
    char *at = text + strlen(text) - from_end[_i];
    *at = *at == 'A' ? 'B' : 'A';
    ck_assert_int_eq(secret_key_parse(text, &out, &why), CAIRN_ERR_MALFORMED);
    ck_assert_ptr_nonnull(strstr(why.text, "damaged"));
}

/* The key of minisign's own documentation. */
TEST(the_documented_key_is_read)
{
    struct public_key key;
    char name[CAIRN_KEY_NAME_BYTES];
    ck_assert_int_ge(sodium_init(), 0);
    ck_assert_int_eq(
        public_key_parse("RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3", &key, NULL),
        CAIRN_OK);
    key_name(key.id, name);
    ck_assert_str_eq(name, "E7620F1842B4E81F");
}

SUITE(10);
