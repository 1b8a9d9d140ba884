/* Words beside snapshots: replaced whole, read as anybody's, on folders and on any other storage. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "tests/support/memory_storage.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/suite.h"

#define FIRST  "step-000000000001-g1"
#define SECOND "step-000000000002-g1"

static struct snapshot_words words;

static void enter(void)
{
    scratch_make();
    cairn_memory_storage_open();
}

static void leave(void)
{
    snapshot_words_release(&words);
    scratch_remove();
}

static void good(cairn_status status, const struct sentence *why)
{
    ck_assert_msg(status == CAIRN_OK, "%d %s", (int)status, why->text);
}

static cairn_status load(const char *root, struct sentence *why)
{
    snapshot_words_release(&words);
    return snapshot_words_load(root, "toy", &words, why);
}

static void use(const char *root)
{
    struct sentence why = { "" };
    const struct snapshot_check check = { FIRST, true, 1795230000 }, bad = { SECOND, false, 7 };
    good(load(root, &why), &why); // there is not even a folder
    ck_assert(words.latest[0] == '\0' &&
              words.tag_count + words.check_count + words.begun_count == 0);
    good(storage_of(root)->make(root, "toy", false, &why), &why);
    good(snapshot_latest_set(root, "toy", FIRST, &why), &why);
    good(snapshot_latest_set(root, "toy", SECOND, &why), &why);
    good(snapshot_tag_set(root, "toy", "paper", FIRST, &why), &why);
    good(snapshot_tag_set(root, "toy", "best", SECOND, &why), &why);
    good(snapshot_check_set(root, "toy", &check, &why), &why);
    good(snapshot_check_set(root, "toy", &bad, &why), &why);
    good(snapshot_begun_set(root, "toy", SECOND, 0xfedcba9876543210, &why), &why);
    good(load(root, &why), &why);
    ck_assert_str_eq(words.latest, SECOND);
    ck_assert_uint_eq(words.tag_count, 2);
    ck_assert_str_eq(words.tags[0].name, "best");
    ck_assert_str_eq(words.tags[1].id, FIRST);
    ck_assert(snapshot_words_check(&words, FIRST)->is_good);
    ck_assert_uint_eq(snapshot_words_check(&words, FIRST)->unix_s, 1795230000);
    ck_assert(!snapshot_words_check(&words, SECOND)->is_good);
    ck_assert_uint_eq(words.begun[0].job, 0xfedcba9876543210);
    good(snapshot_tag_remove(root, "toy", "best", &why), &why);
    ck_assert_int_eq(snapshot_tag_remove(root, "toy", "best", &why), CAIRN_ERR_NOT_FOUND);
    snapshot_check_forget(root, "toy", SECOND);
    snapshot_begun_forget(root, "toy", SECOND);
    good(load(root, &why), &why);
    ck_assert(words.tag_count == 1 && words.check_count == 1 && words.begun_count == 0);
}

TEST(they_are_replaced_and_read_on_folders_as_on_any_storage)
{
    use(scratch);
    use("mem:words");
}

/* At each call of the storage: the word is the one or the other. */
TEST(a_word_that_cannot_be_replaced_stays_what_it_was)
{
    struct sentence why;
    good(storage_of("mem:w")->make("mem:w", "toy", false, &why), &why);
    good(snapshot_latest_set("mem:w", "toy", FIRST, &why), &why);
    for (uint64_t n = 1; n < 10; n++) {
        cairn_memory_storage_fail(n, CAIRN_ERR_NO_SPACE);
        const cairn_status status = snapshot_latest_set("mem:w", "toy", SECOND, &why);
        cairn_memory_storage_fail(0, CAIRN_OK);
        good(load("mem:w", &why), &why);
        ck_assert_str_eq(words.latest, status == CAIRN_OK ? SECOND : FIRST);
        if (status == CAIRN_OK) return;
    }
    ck_abort_msg("it fails for ever");
}

static void put(const char *path, const char *text)
{
    char name[CAIRN_SCRATCH_BYTES + 100];
    snprintf(name, sizeof name, "%s/toy/%s", scratch, path);
    FILE *file = fopen(name, "w");
    ck_assert_msg(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0, "%s", name);
}

static const struct {
    const char *name, *path, *text;
    cairn_status status; /* of all words */
} hostile[] = {
    { "empty", "latest", "", CAIRN_OK },
    { "no line", "latest", FIRST, CAIRN_OK },
    { "two lines", "latest", FIRST "\n" SECOND "\n", CAIRN_OK },
    { "a path", "latest", "../../etc\n", CAIRN_OK },
    { "long", "latest",
      "step-"
      "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
      "\n",
      CAIRN_OK },
    { "a tag of nothing", "tags/x", "", CAIRN_ERR_CORRUPT },
    { "a tag of a path", "tags/x", "../" FIRST "\n", CAIRN_ERR_CORRUPT },
    { "a tag that is being written", "tags/x.tmp", FIRST, CAIRN_OK },
    { "a name that is none", "tags/-x", "rubbish", CAIRN_OK },
    { "a check of the future", "checks/" FIRST, "good 99999999999999999999\n", CAIRN_OK },
    { "a check of nothing", "checks/" FIRST, "good \n", CAIRN_OK },
    { "a bad check", "checks/" FIRST, "fine 7\n", CAIRN_OK },
    { "a check of no snapshot", "checks/x", "good 7\n", CAIRN_OK },
    { "a job's number", "begun/" FIRST, "0x00000000000001\n", CAIRN_OK },
};

TEST_EACH(a_word_of_another_form_is_none_but_a_tag_that_is_none_is_said, 0,
          sizeof hostile / sizeof hostile[0])
{
    struct sentence why = { "" };
    good(storage_of(scratch)->make(scratch, "toy", false, &why), &why);
    for (int i = 0; i < 3; i++) {
        static const char *const folders[] = { "toy/tags", "toy/checks", "toy/begun" };
        good(storage_of(scratch)->make(scratch, folders[i], false, &why), &why);
    }
    put(hostile[_i].path, hostile[_i].text);
    const cairn_status status = load(scratch, &why);
    ck_assert_msg(status == hostile[_i].status, "%s: %s", hostile[_i].name, why.text);
    ck_assert(words.latest[0] == '\0' && words.check_count == 0 && words.begun_count == 0);
    if (status != CAIRN_OK) ck_assert_msg(strstr(why.text, "toy/tags/x") != NULL, "%s", why.text);
}

TEST(a_link_is_not_followed)
{
    char path[CAIRN_SCRATCH_BYTES + 20];
    struct sentence why = { "" };
    good(storage_of(scratch)->make(scratch, "toy", false, &why), &why);
    put("elsewhere", FIRST "\n");
    snprintf(path, sizeof path, "%s/toy/latest", scratch);
    ck_assert_int_eq(symlink("elsewhere", path), 0);
    good(load(scratch, &why), &why);
    ck_assert_str_eq(words.latest, "");
}

TEST(a_tag_has_a_name_that_is_no_id_and_no_path)
{
    static const char *const bad[] = { "", ".", "-x", "a/b", "latest", FIRST, "x.tmp", "a b" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(!snapshot_tag_ok(bad[i]), "%s", bad[i]);
    ck_assert(snapshot_tag_ok("paper-v1.2") && snapshot_tag_ok("tmp"));
    char longest[CAIRN_SNAPSHOT_TAG_BYTES + 1];
    memset(longest, 'x', sizeof longest);
    longest[64] = '\0';
    ck_assert(snapshot_tag_ok(longest));
    longest[64] = 'x';
    longest[65] = '\0';
    ck_assert(!snapshot_tag_ok(longest));
}

SUITE(10, enter, leave);
