/* Tokens as words, in files, and where a process finds its own; roles. */
#include <check.h>
#include <ctype.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/secure/secure.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/suite.h"

static struct token sample(void)
{
    struct token token;
    randombytes_buf(&token, sizeof token);
    return token;
}

static void parses(const char *text, const struct token *token)
{
    struct token read;
    struct sentence why = { 0 };
    const cairn_status status = token_parse(text, &read, &why);
    ck_assert_msg(status == CAIRN_OK, "%s", why.text);
    ck_assert_mem_eq(&read, token, sizeof read);
}

static void fails(const char *text, const char *word)
{
    struct token read;
    struct sentence why = { 0 };
    ck_assert_int_eq(token_parse(text, &read, &why), CAIRN_ERR_MALFORMED);
    ck_assert_msg(strstr(why.text, word) != NULL, "%s", why.text);
    // Nothing of a token is in a sentence.
    if (strlen(text) > 20) ck_assert_ptr_null(strstr(why.text, text + 12));
}

/* ==== words ==== */

TEST(a_token_survives_as_a_word)
{
    for (int i = 0; i < 1000; i++) {
        const struct token token = sample();
        char text[CAIRN_TOKEN_TEXT_BYTES], spaced[2 * CAIRN_TOKEN_TEXT_BYTES];
        token_print(&token, text);
        ck_assert_uint_eq(strlen(text), 7 + 96);
        parses(text, &token);
        snprintf(spaced, sizeof spaced, " \t%s\r\n", text);
        parses(spaced, &token);
        for (char *c = text; *c != '\0'; c++) *c = (char)toupper((unsigned char)*c);
        parses(text, &token);
    }
}

TEST(letters_that_look_like_digits_are_read_as_these)
{
    const struct token token = sample();
    char text[CAIRN_TOKEN_TEXT_BYTES];
    for (int pass = 0; pass < 2; pass++) {
        token_print(&token, text);
        for (char *c = text + 7; *c != '\0'; c++) {
            if (*c == '0') *c = pass == 0 ? 'o' : 'O';
            if (*c == '1') *c = pass == 0 ? 'l' : 'I';
        }
        parses(text, &token);
    }
}

static const char letters[] = "0123456789abcdefghjkmnpqrstvwxyz";

TEST(any_wrong_letter_is_found)
{
    const struct token token = sample();
    char text[CAIRN_TOKEN_TEXT_BYTES];
    token_print(&token, text);
    for (size_t at = 7; text[at] != '\0'; at++) {
        const char right = text[at];
        for (const char *wrong = letters; *wrong != '\0'; wrong++) {
            if (*wrong == right) continue;
            text[at] = *wrong;
            fails(text, "typing error");
        }
        text[at] = right;
    }
    parses(text, &token);
}

/* Neighbours, and letters with one between them. */
TEST(any_swapped_letters_are_found)
{
    for (int i = 0; i < 100; i++) {
        const struct token token = sample();
        char text[CAIRN_TOKEN_TEXT_BYTES];
        token_print(&token, text);
        for (size_t gap = 1; gap <= 2; gap++)
            for (size_t at = 7; text[at + gap] != '\0'; at++) {
                const char first = text[at], second = text[at + gap];
                if (first == second) continue;
                text[at] = second;
                text[at + gap] = first;
                fails(text, "typing error");
                text[at] = first;
                text[at + gap] = second;
            }
    }
}

static const struct {
    const char *text, *word;
} no_tokens[] = {
    { "", "it is empty" },
    { " \n", "it is empty" },
    { "hello", "no token of Cairn" },
    { "cairn", "cut off" },
    { "cairn1-", "cut off: it has 7 characters, and a whole one 103" },
    { "cairn1-0000", "cut off" },
    { "cairn1_000000", "typing error in its beginning" },
    { "cairn2-000000000000", "another version of Cairn" },
    { "K10c0ffee::server:00", "no token of Cairn" },
    { "untrusted comment: minisign public key", "no token of Cairn" },
};

TEST_EACH(a_word_that_is_no_token_is_told_why, 0, sizeof no_tokens / sizeof *no_tokens)
{
    fails(no_tokens[_i].text, no_tokens[_i].word);
}

TEST(a_token_that_is_cut_or_has_too_much_is_told_so)
{
    const struct token token = sample();
    char text[CAIRN_TOKEN_TEXT_BYTES], longer[CAIRN_TOKEN_TEXT_BYTES + 8];
    token_print(&token, text);
    snprintf(longer, sizeof longer, "%s0", text);
    fails(longer, "too much in it");
    snprintf(longer, sizeof longer, "%.50s %s", text, text + 50);
    fails(longer, "too much in it");
    text[strlen(text) - 1] = '\0';
    fails(text, "cut off: it has 102 characters, and a whole one 103");
    token_print(&token, text);
    text[40] = 'u';
    fails(text, "character 41 is none");
    text[40] = '\xc3';
    fails(text, "character 41 is none");
}

TEST(a_pin_is_of_one_key)
{
    struct curve_key key, other;
    uint8_t pin[CAIRN_PIN_BYTES], again[CAIRN_PIN_BYTES];
    curve_key_make(&key);
    curve_key_make(&other);
    ck_assert_mem_ne(key.secret, other.secret, sizeof key.secret);
    curve_pin(key.open, pin);
    curve_pin(key.open, again);
    ck_assert_mem_eq(pin, again, sizeof pin);
    curve_pin(other.open, again);
    ck_assert_mem_ne(pin, again, sizeof pin);
    curve_key_wipe(&key);
    ck_assert(sodium_is_zero((const uint8_t *)&key, sizeof key));
}

/* ==== roles ==== */

static const struct {
    const char *text;
    uint32_t roles;
    const char *printed;
} roles[] = {
    { "worker", CAIRN_MAY_WORK, "worker" },
    { "reader,worker", CAIRN_MAY_WORK | CAIRN_MAY_READ, "worker,reader" },
    { " shard , monitor ", CAIRN_MAY_SHARD | CAIRN_MAY_MONITOR, "shard,monitor" },
    { "admin,admin", CAIRN_MAY_ADMIN, "admin" },
    { "worker,reader,shard,admin,monitor", CAIRN_MAY_ALL, "worker,reader,shard,admin,monitor" },
};

TEST_EACH(roles_are_words, 0, sizeof roles / sizeof *roles)
{
    uint32_t read;
    char text[64];
    ck_assert(roles_parse(roles[_i].text, &read));
    ck_assert_uint_eq(read, roles[_i].roles);
    roles_print(read, text);
    ck_assert_str_eq(text, roles[_i].printed);
}

TEST(words_that_are_no_roles_are_refused)
{
    static const char *const wrong[] = { "",     ",",       "worker,",      ",worker",
                                         "work", "workers", "Worker",       "worker reader",
                                         "all",  "none",    "worker,,admin" };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        uint32_t read = 77;
        ck_assert_msg(!roles_parse(wrong[i], &read), "%s", wrong[i]);
        ck_assert_uint_eq(read, 77);
    }
    char text[64];
    roles_print(0, text);
    ck_assert_str_eq(text, "none");
}
SUITE(30);

/* ==== files ==== */

static struct token token;
static char path[600];

static void make_file(void)
{
    scratch_make();
    unsetenv("CREDENTIALS_DIRECTORY");
    unsetenv("CAIRN_TOKEN_FILE");
    token = sample();
    snprintf(path, sizeof path, "%s/token", scratch);
    struct sentence why;
    ck_assert_msg(token_write_file(path, &token, &why) == CAIRN_OK, "%s", why.text);
}

static void write_text(const char *to, const char *text)
{
    FILE *out = fopen(to, "w");
    ck_assert_ptr_nonnull(out);
    fputs(text, out);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_int_eq(chmod(to, 0600), 0);
}

static void file_fails(const char *from, cairn_status expected, const char *word)
{
    struct token read;
    struct sentence why = { 0 };
    ck_assert_int_eq(token_read_file(from, &read, &why), expected);
    ck_assert_msg(strstr(why.text, word) != NULL, "%s", why.text);
    ck_assert_msg(strstr(why.text, from) != NULL, "%s", why.text);
}

static void file_reads(void)
{
    struct token read;
    struct sentence why = { 0 };
    ck_assert_msg(token_read_file(path, &read, &why) == CAIRN_OK, "%s", why.text);
    ck_assert_mem_eq(&read, &token, sizeof token);
}

TEST(a_token_survives_in_a_file_of_its_owner_alone)
{
    struct stat info;
    file_reads();
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_int_eq(info.st_mode & 07777, 0600);
    token = sample(); // over the one that is there
    ck_assert_int_eq(token_write_file(path, &token, NULL), CAIRN_OK);
    file_reads();
    umask(0777); // neither a umask nor a file that was left makes another mode
    char fresh[620];
    snprintf(fresh, sizeof fresh, "%s.new", path);
    write_text(fresh, "left\n");
    ck_assert_int_eq(chmod(fresh, 0666), 0);
    ck_assert_int_eq(token_write_file(path, &token, NULL), CAIRN_OK);
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_int_eq(info.st_mode & 07777, 0600);
    ck_assert_int_ne(access(fresh, F_OK), 0);
    file_reads();
}

TEST(a_file_that_cannot_be_written_is_told_why)
{
    struct sentence why;
    ck_assert_int_eq(token_write_file("/nonexistent/token", &token, &why), CAIRN_ERR_IO);
    ck_assert(strstr(why.text, "creating /nonexistent/token.new failed") != NULL);
    ck_assert_int_eq(token_write_file(scratch, &token, &why), CAIRN_ERR_IO);
    ck_assert(strstr(why.text, "renaming") != NULL);
    char fresh[CAIRN_SCRATCH_BYTES + 8];
    snprintf(fresh, sizeof fresh, "%s.new", scratch);
    ck_assert_int_ne(access(fresh, F_OK), 0);
}

static const unsigned open_modes[] = { 0644, 0640, 0604, 0620, 0602, 0610, 0660, 0666, 0777 };

TEST_EACH(a_file_that_others_may_use_is_refused, 0, sizeof open_modes / sizeof *open_modes)
{
    char word[64];
    ck_assert_int_eq(chmod(path, open_modes[_i]), 0);
    snprintf(word, sizeof word, "has the mode %04o", open_modes[_i]);
    file_fails(path, CAIRN_ERR_REFUSED, word);
    file_fails(path, CAIRN_ERR_REFUSED, "chmod 600");
    ck_assert_int_eq(chmod(path, 0400), 0);
    file_reads();
}

TEST(a_file_of_another_user_is_refused)
{
    if (geteuid() != 0) return; // only root gives a file away
    ck_assert_int_eq(chown(path, 12345, 12345), 0);
    file_fails(path, CAIRN_ERR_REFUSED, "belongs to the user 12345");
}

/* As Kubernetes mounts a secret. */
TEST(a_link_is_followed_if_nobody_else_can_choose_where_it_leads)
{
    char link_path[620];
    struct token read;
    snprintf(link_path, sizeof link_path, "%s/link", scratch);
    ck_assert_int_eq(symlink(path, link_path), 0);
    ck_assert_int_eq(token_read_file(link_path, &read, NULL), CAIRN_OK);
    ck_assert_int_eq(chmod(scratch, 0777), 0);
    file_fails(link_path, CAIRN_ERR_REFUSED, "is a symbolic link");
    ck_assert_int_eq(chmod(scratch, 01777), 0);
    ck_assert_int_eq(token_read_file(link_path, &read, NULL), CAIRN_OK);
    ck_assert_int_eq(chmod(path, 0640), 0); // the file is judged as ever
    file_fails(link_path, CAIRN_ERR_REFUSED, "has the mode 0640");
    ck_assert_int_eq(chmod(scratch, 0700), 0);
}

TEST(a_folder_and_a_pipe_are_no_files)
{
    char pipe_path[620];
    snprintf(pipe_path, sizeof pipe_path, "%s/pipe", scratch);
    ck_assert_int_eq(mkfifo(pipe_path, 0600), 0);
    file_fails(scratch, CAIRN_ERR_REFUSED, "is a folder");
    file_fails(pipe_path, CAIRN_ERR_REFUSED, "is no regular file"); // and nobody waits for a writer
    file_fails("/nonexistent/token", CAIRN_ERR_NOT_FOUND, "there is no file");
}

TEST(a_file_with_something_else_is_told_what)
{
    char text[CAIRN_TOKEN_TEXT_BYTES], two[2 * CAIRN_TOKEN_TEXT_BYTES + 2];
    token_print(&token, text);
    write_text(path, "");
    file_fails(path, CAIRN_ERR_MALFORMED, "is empty");
    write_text(path, "\n \n");
    file_fails(path, CAIRN_ERR_MALFORMED, "is empty");
    snprintf(two, sizeof two, "%s\n%s\n", text, text);
    write_text(path, two);
    file_fails(path, CAIRN_ERR_MALFORMED, "more than one line");
    write_text(path, "password\n");
    file_fails(path, CAIRN_ERR_MALFORMED, "no token of Cairn");
    char big[3000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    write_text(path, big);
    file_fails(path, CAIRN_ERR_MALFORMED, "has no token");
    write_text(path, text); // no newline, which `echo -n` leaves
    file_reads();
}

/* ==== this process's ==== */

static void finds(const char *given, const char *fallback)
{
    struct token read;
    struct sentence why = { 0 };
    ck_assert_msg(token_find(given, fallback, &read, &why) == CAIRN_OK, "%s", why.text);
    ck_assert_mem_eq(&read, &token, sizeof token);
}

static void find_fails(const char *given, const char *fallback, cairn_status expected,
                       const char *word)
{
    struct token read;
    struct sentence why = { 0 };
    ck_assert_int_eq(token_find(given, fallback, &read, &why), expected);
    ck_assert_msg(strstr(why.text, word) != NULL, "%s", why.text);
}

TEST(a_token_is_found_in_the_order_of_its_places)
{
    char credential[620], other[620];
    const struct token right = token, wrong = sample();
    snprintf(credential, sizeof credential, "%s/cairn-token", scratch);
    snprintf(other, sizeof other, "%s/other", scratch);
    find_fails(NULL, NULL, CAIRN_ERR_NOT_FOUND, "there is no token");
    find_fails("", "/nonexistent/token", CAIRN_ERR_NOT_FOUND, "/nonexistent/token does not exist");
    finds(NULL, path);
    ck_assert_int_eq(token_write_file(other, &wrong, NULL), CAIRN_OK);
    setenv("CAIRN_TOKEN_FILE", path, 1);
    finds(NULL, other);
    ck_assert_int_eq(token_write_file(credential, &right, NULL), CAIRN_OK);
    setenv("CAIRN_TOKEN_FILE", other, 1);
    setenv("CREDENTIALS_DIRECTORY", scratch, 1);
    finds(NULL, other);
    finds(other, other); // a configured one comes after it
    ck_assert_int_eq(unlink(credential), 0);
    finds(path, other);
}

/* A unit that loads its token sets this word where there is no file to load. */
TEST(a_credential_that_says_none_is_passed_over)
{
    char credential[620];
    snprintf(credential, sizeof credential, "%s/cairn-token", scratch);
    write_text(credential, "none");
    setenv("CREDENTIALS_DIRECTORY", scratch, 1);
    finds(NULL, path);
    setenv("CAIRN_TOKEN_FILE", path, 1);
    finds(NULL, NULL);
    unsetenv("CAIRN_TOKEN_FILE");
    find_fails(NULL, NULL, CAIRN_ERR_NOT_FOUND, "there is no token");
    write_text(path, "none"); // of a file it is no token
    find_fails(path, NULL, CAIRN_ERR_MALFORMED, "no token of Cairn");
}

/* systemd gives the group's bit to a file whose access list names the service's user. */
TEST(a_credential_has_the_mode_that_systemd_gives_it)
{
    char credential[620];
    snprintf(credential, sizeof credential, "%s/cairn-token", scratch);
    ck_assert_int_eq(rename(path, credential), 0);
    setenv("CREDENTIALS_DIRECTORY", scratch, 1);
    ck_assert_int_eq(chmod(credential, 0440), 0);
    finds(NULL, NULL);
    ck_assert_int_eq(chmod(credential, 0444), 0);
    find_fails(NULL, NULL, CAIRN_ERR_REFUSED, "0444");
}

TEST(a_place_that_was_named_is_not_passed_over)
{
    setenv("CAIRN_TOKEN_FILE", "/nonexistent/token", 1);
    find_fails(NULL, path, CAIRN_ERR_NOT_FOUND, "CAIRN_TOKEN_FILE: there is no file");
    find_fails("/nonexistent/given", path, CAIRN_ERR_NOT_FOUND,
               "the configured token: there is no file /nonexistent/given");
}

TEST(a_token_where_a_file_is_to_be_named_is_refused_and_not_quoted)
{
    char text[CAIRN_TOKEN_TEXT_BYTES];
    struct token read;
    struct sentence why;
    token_print(&token, text);
    setenv("CAIRN_TOKEN_FILE", text, 1);
    find_fails(NULL, path, CAIRN_ERR_REFUSED, "CAIRN_TOKEN_FILE holds a token");
    ck_assert_int_eq(token_find(text, path, &read, &why), CAIRN_ERR_REFUSED);
    ck_assert_ptr_null(strstr(why.text, text + 7));
}
SUITE(30, make_file, scratch_remove);
