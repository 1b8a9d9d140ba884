/* Minisign's own program checks what is signed here, and what it signs is checked here. */
#include <check.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/minisig_sample.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/suite.h"

static const char message[] = "a manifest\n";

static void write_text(const char *name, const char *text)
{
    char path[CAIRN_SCRATCH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void read_text(const char *name, char *text, size_t bytes)
{
    char path[CAIRN_SCRATCH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    text[fread(text, 1, bytes - 1, file)] = '\0';
    fclose(file);
}

static int run(const char *command)
{
    char line[CAIRN_SCRATCH_BYTES + 256];
    snprintf(line, sizeof line, "cd '%s' && %s >/dev/null 2>&1", scratch, command);
    return system(line);
}

TEST(minisign_checks_what_is_signed_here)
{
    const struct secret_key key = cairn_sample_key();
    char text[CAIRN_MINISIG_BYTES], public_text[CAIRN_KEY_TEXT_BYTES];
    cairn_sample_sign(&key, message, text);
    public_key_text(&key.public_key, public_text);
    write_text("m", message);
    write_text("m.minisig", text);
    write_text("key.pub", public_text);
    ck_assert_int_eq(run("minisign -Vm m -p key.pub -H"), 0);
    write_text("m", "another manifest\n");
    ck_assert_int_ne(run("minisign -Vm m -p key.pub -H"), 0);
}

TEST(minisign_signs_with_a_key_that_is_made_here)
{
    const struct secret_key key = cairn_sample_key();
    char text[CAIRN_MINISIG_BYTES], secret_text[CAIRN_KEY_TEXT_BYTES];
    struct sentence why = { "" };
    secret_key_text(&key, secret_text);
    write_text("key.sec", secret_text);
    write_text("m", message);
    ck_assert_int_eq(run("minisign -S -s key.sec -m m </dev/null"), 0);
    read_text("m.minisig", text, sizeof text);
    ck_assert_msg(cairn_sample_check(text, &key.public_key, message, &why) == CAIRN_OK, "%s",
                  why.text);
}

TEST(what_minisign_made_is_read_here)
{
    char text[CAIRN_MINISIG_BYTES], key_text[CAIRN_KEY_TEXT_BYTES];
    struct public_key key;
    struct secret_key secret;
    struct sentence why = { "" };
    ck_assert_int_ge(sodium_init(), 0);
    write_text("m", message);
    ck_assert_int_eq(run("minisign -G -W -p key.pub -s key.sec && minisign -S -s key.sec -m m"), 0);
    read_text("key.pub", key_text, sizeof key_text);
    ck_assert_int_eq(public_key_parse(key_text, &key, NULL), CAIRN_OK);
    read_text("m.minisig", text, sizeof text);
    ck_assert_msg(cairn_sample_check(text, &key, message, &why) == CAIRN_OK, "%s", why.text);
    read_text("key.sec", key_text, sizeof key_text);
    ck_assert_msg(secret_key_parse(key_text, &secret, &why) == CAIRN_OK, "%s", why.text);
    ck_assert_mem_eq(&secret.public_key, &key, sizeof key);
}

SUITE(20, scratch_make, scratch_remove);

int main(void)
{
    if (system("command -v minisign >/dev/null") == 0) return suite_main();
    fprintf(stderr, "skip: the package minisign is not installed\n");
    return SUITE_SKIPPED;
}
