#include "proto/store/storage.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/suite.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STRANGER = 4711 };

static char path[256];
static struct sentence why;
static uint64_t token;
static const struct storage_owner ours = { .store = 7, .who = "cluster ours, coordinator at a" },
                                  theirs = { .store = 8, .who = "cluster theirs" };

static void set_up(void)
{
    scratch_make();
    snprintf(path, sizeof path, "%s/%s", scratch, CAIRN_STORAGE_FILE);
    why.text[0] = '\0';
    ck_assert_int_eq(storage_mark(scratch, &ours, &token, &why), CAIRN_OK);
}

TEST(a_token_is_made_once)
{
    uint64_t again = 0;
    ck_assert_uint_ne(token, 0);
    ck_assert_int_eq(storage_mark(scratch, &ours, &again, &why), CAIRN_OK);
    ck_assert_uint_eq(again, token);
    ck_assert_int_eq(storage_check(scratch, token, &why), CAIRN_OK);
}

TEST(another_storage_is_seen)
{
    ck_assert_int_eq(storage_check(scratch, token + 1, &why), CAIRN_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(why.text, "another folder here than the coordinator's"));
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(storage_check(scratch, token, &why), CAIRN_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(why.text, scratch));
    ck_assert_int_eq(storage_check("/no/such/folder", token, &why), CAIRN_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(why.text, "/no/such/folder"));
}

TEST(what_is_no_token_is_no_token)
{
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    fputs("0123456789abcdeX\n", file);
    fclose(file);
    ck_assert_int_eq(storage_check(scratch, token, &why), CAIRN_ERR_NOT_FOUND);
    ck_assert_int_eq(storage_mark(scratch, &ours, &token, &why), CAIRN_ERR_MALFORMED);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkfifo(path, 0600), 0); // nobody writes to it: it is not waited for
    ck_assert_int_eq(storage_check(scratch, token, &why), CAIRN_ERR_IO);
    ck_assert_msg(strstr(why.text, "it is no regular file") != NULL, "%s", why.text);
}

TEST(another_user_is_told_both_numbers)
{
    char numbers[64];
    if (geteuid() != 0) return; // who is no one else cannot become one
    ck_assert_int_eq(chmod(scratch, 0777), 0);
    ck_assert_int_eq(chmod(path, 0644), 0);
    const pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        if (chdir(scratch) != 0 || setuid(STRANGER) != 0) _exit(2); // the way there may be root's
        const cairn_status status = storage_check(".", token, &why);
        snprintf(numbers, sizeof numbers, "user 0, and this shard runs as user %d", STRANGER);
        _exit(status == CAIRN_ERR_REFUSED && strstr(why.text, numbers) != NULL ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}

/* The coordinator runs as another user than it did when it made the token. */
TEST(the_token_is_the_coordinators_users)
{
    struct stat info;
    if (geteuid() != 0) return; // who is no one else gives nothing away
    ck_assert_int_eq(chown(path, STRANGER, STRANGER), 0);
    ck_assert_int_eq(storage_own(scratch, token, &ours, &why), CAIRN_OK);
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_uint_eq(info.st_uid, 0);
    ck_assert_int_eq(storage_seen(scratch, token, &ours, &why),
                     CAIRN_OK); // and the same token
    ck_assert_int_eq(storage_own(scratch, token + 1, &ours, &why), CAIRN_ERR_NOT_FOUND);
}

TEST(a_folder_is_one_clusters)
{
    uint64_t again = 0;
    ck_assert_int_eq(storage_mark(scratch, &theirs, &again, &why), CAIRN_OK); // to look
    ck_assert_uint_eq(again, token);
    ck_assert_int_eq(storage_seen(scratch, token, &theirs, &why), CAIRN_ERR_EXISTS);
    ck_assert_msg(strstr(why.text, "another cluster: cluster ours, coordinator at a, store "
                                   "0000000000000007") != NULL,
                  "%s", why.text);
    ck_assert_int_eq(storage_own(scratch, token, &theirs, &why), CAIRN_ERR_EXISTS);
    ck_assert_int_eq(storage_check(scratch, token, &why), CAIRN_OK); // a shard does not ask
    ck_assert_int_eq(storage_take(scratch, token, &theirs, &why), CAIRN_OK);
    ck_assert_int_eq(storage_own(scratch, token, &theirs, &why), CAIRN_OK);
    ck_assert_int_eq(storage_seen(scratch, token, &ours, &why), CAIRN_ERR_EXISTS);
    const struct storage_owner heir = { .store = 9, .former = 8, .who = "heir" };
    ck_assert_int_eq(storage_own(scratch, token, &heir, &why), CAIRN_OK);
    ck_assert_int_eq(storage_seen(scratch, token, &theirs, &why), CAIRN_ERR_EXISTS);
}

/* Of a version before folders had owners. */
TEST(a_folder_of_nobody_is_taken_by_who_uses_it)
{
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "%016" PRIx64 "\n", token);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(storage_seen(scratch, token, &theirs, &why), CAIRN_OK);
    ck_assert_int_eq(storage_own(scratch, token, &theirs, &why), CAIRN_OK);
    ck_assert_int_eq(storage_seen(scratch, token, &ours, &why), CAIRN_ERR_EXISTS);
}

TEST(who_looks_leaves_nothing_behind)
{
    ck_assert(!storage_is_used(scratch));
    ck_assert_int_eq(storage_check(scratch, token, &why), CAIRN_OK);
    ck_assert_int_eq(storage_own(scratch, token, &ours, &why), CAIRN_OK);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(scratch), 0);
    ck_assert(!storage_is_used(scratch));
    ck_assert_int_eq(mkdir(scratch, 0700), 0);
}

TEST(no_path_leads_out_of_its_location)
{
    static const char *const out[] = { "..",         "../x", "a/..", "a/../../x", "a/./x",
                                       "/etc/hosts", "a//x", ".",    "a/.." };
    struct storage_file *file;
    char inside[128], beside[192];
    uint64_t bytes;
    snprintf(inside, sizeof inside, "%s/inside", scratch);
    snprintf(beside, sizeof beside, "%s/inside/a", scratch);
    ck_assert_int_eq(mkdir(inside, 0700), 0);
    ck_assert_int_eq(mkdir(beside, 0700), 0);
    cairn_scratch_file(scratch, "x", "words", beside, sizeof beside);
    for (size_t i = 0; i < sizeof out / sizeof *out; i++) {
        const struct storage *in = &storage_folder;
        ck_assert_msg(in->open(inside, out[i], false, &file, &why) != CAIRN_OK, "%s", out[i]);
        ck_assert_msg(in->stat(inside, out[i], &bytes, &why) != CAIRN_OK, "%s", out[i]);
        ck_assert_msg(in->make(inside, out[i], false, &why) != CAIRN_OK, "%s", out[i]);
        ck_assert_msg(in->commit(inside, out[i], "", 0, true, &why) != CAIRN_OK, "%s", out[i]);
        ck_assert_msg(in->remove(inside, out[i], false, &bytes, &why) != CAIRN_OK, "%s", out[i]);
    }
    ck_assert_int_eq(access(beside, F_OK), 0);
    ck_assert_int_eq(storage_folder.stat(inside, "a", &bytes, &why), CAIRN_ERR_CORRUPT);
}

SUITE(30, set_up, scratch_remove);
