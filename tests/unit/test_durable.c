#include "proto/base/durable.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/suite.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[256];
static struct sentence why;

static void set_up(void)
{
    scratch_make();
    snprintf(path, sizeof path, "%s/state", scratch);
}

static void assert_holds(const char *text)
{
    char bytes[100] = "";
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fread(bytes, 1, sizeof bytes - 1, file), strlen(text));
    ck_assert_str_eq(bytes, text);
    fclose(file);
}

static void assert_no_fresh_file(void)
{
    char fresh[300];
    snprintf(fresh, sizeof fresh, "%s.new", path);
    ck_assert_int_ne(access(fresh, F_OK), 0);
}

TEST(a_file_that_is_to_be_new_replaces_none)
{
    struct stat info;
    ck_assert_int_eq(durable_create(path, "one", 3, &why), CAIRN_OK);
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
    ck_assert_uint_eq(info.st_nlink, 1);
    ck_assert_int_eq(durable_create(path, "second", 6, &why), CAIRN_ERR_EXISTS);
    ck_assert_ptr_nonnull(strstr(why.text, path));
    assert_holds("one");
    assert_no_fresh_file();
}

TEST(a_file_that_is_to_be_new_leaves_a_strangers_file_beside_it_as_it_is)
{
    char beside[300];
    snprintf(beside, sizeof beside, "%s.new", path);
    FILE *file = fopen(beside, "we");
    ck_assert_ptr_nonnull(file);
    fputs("mine", file);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(durable_create(path, "one", 3, &why), CAIRN_ERR_IO);
    ck_assert_ptr_nonnull(strstr(why.text, beside));
    ck_assert_int_ne(access(path, F_OK), 0);
    strncat(path, ".new", sizeof path - strlen(path) - 1);
    assert_holds("mine");
}

TEST(a_file_is_replaced_as_a_whole)
{
    struct stat info;
    ck_assert_int_eq(durable_write(path, 0600, "one", 3, &why), CAIRN_OK);
    ck_assert_int_eq(durable_write(path, 0600, "second", 6, &why), CAIRN_OK);
    assert_holds("second");
    assert_no_fresh_file();
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
}

TEST(what_a_crash_left_behind_is_overwritten)
{
    char fresh[300];
    cairn_scratch_file(scratch, "state.new", "half of something longer", fresh, sizeof fresh);
    ck_assert_int_eq(durable_write(path, 0600, "whole", 5, &why), CAIRN_OK);
    assert_holds("whole");
    assert_no_fresh_file();
}

TEST(a_failed_write_names_its_step_and_leaves_the_old_file)
{
    static const uint8_t large[4096];
    const struct rlimit limit = { 1000, 1000 };
    ck_assert_int_eq(durable_write(path, 0600, "old", 3, &why), CAIRN_OK);
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0); // of this test's process only
    ck_assert_int_eq(durable_write(path, 0600, large, sizeof large, &why), CAIRN_ERR_IO);
    ck_assert_ptr_nonnull(strstr(why.text, "writing "));
    ck_assert_ptr_nonnull(strstr(why.text, "File too large"));
    assert_holds("old");
    assert_no_fresh_file();
}

TEST(a_missing_folder_is_the_step_creating)
{
    snprintf(path, sizeof path, "%s/none/state", scratch);
    ck_assert_int_eq(durable_write(path, 0600, "x", 1, &why), CAIRN_ERR_IO);
    ck_assert_ptr_nonnull(strstr(why.text, "creating "));
}

TEST(a_folder_in_the_way_is_the_step_renaming)
{
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(durable_write(path, 0600, "x", 1, &why), CAIRN_ERR_IO);
    ck_assert_ptr_nonnull(strstr(why.text, "renaming a new file to "));
    assert_no_fresh_file();
}

TEST(folders_are_made_with_their_parents_for_this_user_only)
{
    struct stat info;
    char deep[200];
    snprintf(deep, sizeof deep, "%s/a//b/c/", scratch);
    ck_assert_msg(durable_folder(deep, 0700, &why) == CAIRN_OK, "%s", why.text);
    ck_assert_int_eq(durable_folder(deep, 0700, &why), CAIRN_OK); // again
    ck_assert_int_eq(stat(deep, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0700);
    ck_assert_int_eq(durable_write(path, 0600, "x", 1, &why), CAIRN_OK);
    snprintf(deep, sizeof deep, "%s/state/b", scratch);
    ck_assert_int_eq(durable_folder(deep, 0700, &why), CAIRN_ERR_IO);
    ck_assert_ptr_nonnull(strstr(why.text, "state is in the way: it is not a folder"));
}

/* In place of libc's, for what is under test: which files were synced. */
static ino_t synced[16];
static size_t synced_count;
int fsync(int fd)
{
    struct stat info;
    ck_assert_int_eq(fstat(fd, &info), 0);
    if (synced_count < sizeof synced / sizeof *synced) synced[synced_count++] = info.st_ino;
    return (int)syscall(SYS_fsync, fd);
}

TEST_EACH(a_folder_has_the_mode_asked_for_whatever_the_umask, 0, 3)
{
    static const mode_t umasks[] = { 0, 027, 077 };
    struct stat info;
    char deep[200];
    snprintf(deep, sizeof deep, "%s/a", scratch);
    umask(umasks[_i]);
    ck_assert_int_eq(durable_folder(deep, 0750, &why), CAIRN_OK);
    ck_assert_int_eq(stat(deep, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0750);
}

TEST(a_relative_folder_that_cannot_be_made_is_named_as_a_whole)
{
    ck_assert_int_eq(chdir("/proc"), 0);
    ck_assert_int_ne(durable_folder("coordinator", 0700, &why), CAIRN_OK);
    ck_assert_msg(strstr(why.text, "/proc/coordinator") != NULL, "%s", why.text);
}

TEST(the_parent_is_synced_also_where_the_folder_was_there)
{
    struct stat info;
    char deep[200];
    snprintf(deep, sizeof deep, "%s/a", scratch);
    ck_assert_int_eq(stat(scratch, &info), 0);
    for (int i = 0; i < 2; i++) {
        synced_count = 0;
        ck_assert_int_eq(durable_folder(deep, 0700, &why), CAIRN_OK);
        ck_assert_uint_gt(synced_count, 0);
        ck_assert_uint_eq(synced[synced_count - 1], info.st_ino);
    }
}

TEST(two_daemons_never_share_a_data_folder)
{
    int first = -1;
    int second = -1;
    char pid[64];
    snprintf(pid, sizeof pid, "in use by process %ld;", (long)getpid());
    ck_assert_int_eq(durable_lock(scratch, &first, &why), CAIRN_OK);
    ck_assert_int_eq(durable_lock(scratch, &second, &why), CAIRN_ERR_BUSY);
    ck_assert_msg(strstr(why.text, pid) != NULL, "%s", why.text);
    ck_assert_int_eq(second, -1);
    durable_unlock(first);
    ck_assert_int_eq(durable_lock(scratch, &second, &why), CAIRN_OK);
    durable_unlock(second);
}

TEST(a_killed_daemon_leaves_no_lock)
{
    int ready[2];
    char byte = 0;
    int fd = -1;
    ck_assert_int_eq(pipe(ready), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        if (durable_lock(scratch, &fd, NULL) == CAIRN_OK) byte = 'y';
        if (write(ready[1], &byte, 1) != 1) _exit(1);
        for (;;) pause();
    }
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    ck_assert_int_eq(byte, 'y');
    ck_assert_int_eq(durable_lock(scratch, &fd, &why), CAIRN_ERR_BUSY);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    ck_assert_int_eq(durable_lock(scratch, &fd, &why), CAIRN_OK);
    durable_unlock(fd);
}

TEST(a_data_folder_that_cannot_be_written_says_what_to_do)
{
    int fd = -1;
    // /proc/self/task takes no files, from root neither.
    ck_assert_int_eq(durable_lock("/proc/self/task", &fd, &why), CAIRN_ERR_IO);
    ck_assert_ptr_nonnull(strstr(why.text, "the data folder /proc/self/task cannot be written"));
    ck_assert_ptr_nonnull(strstr(why.text, "give it to the user that runs the daemon"));
    if (geteuid() == 0) return; // root may write anywhere else
    ck_assert_int_eq(chmod(scratch, 0500), 0);
    ck_assert_int_eq(durable_lock(scratch, &fd, &why), CAIRN_ERR_IO);
    ck_assert_int_eq(chmod(scratch, 0700), 0);
}

SUITE(30, set_up, scratch_remove);
