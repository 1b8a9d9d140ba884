/* Snapshots on storage: damaged, incomplete, on a full disk, canceled, written twice. */
#include <inttypes.h>
#include <check.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/scratch_folder.h"
#include "tests/support/snapshot_sample.h"
#include "tests/support/suite.h"

/* ---- damage ---- */

#define VICTIM "model/shard-00002-model-00001-of-00001.safetensors"

static void remove_file(const char *path)
{
    ck_assert_int_eq(unlink(path), 0);
}

static void cut_file(const char *path)
{
    struct stat info;
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_int_eq(truncate(path, info.st_size - 1), 0);
}

static void empty_file(const char *path)
{
    ck_assert_int_eq(truncate(path, 0), 0);
}

static void link_file(const char *path)
{
    char elsewhere[400];
    snprintf(elsewhere, sizeof elsewhere, "%s.moved", path);
    ck_assert_int_eq(rename(path, elsewhere), 0);
    ck_assert_int_eq(symlink(elsewhere, path), 0);
}

static void flip(const char *path, long at, int whence)
{
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, at, whence), 0);
    const int byte = fgetc(file);
    ck_assert_int_eq(fseek(file, at, whence), 0);
    ck_assert_int_eq(fputc(byte ^ 1, file), byte ^ 1);
    fclose(file);
}

static void flip_length(const char *path)
{
    flip(path, 3, SEEK_SET);
}

static void flip_header(const char *path)
{
    flip(path, 8, SEEK_SET);
}

static void flip_data(const char *path)
{
    flip(path, -1, SEEK_END);
}

static const struct {
    void (*spoil)(const char *path);
    const char *word;
    cairn_status status, verify_status;
} spoils[] = {
    { remove_file, "is missing", CAIRN_ERR_CORRUPT, CAIRN_OK },
    { cut_file, "cut off", CAIRN_ERR_CORRUPT, CAIRN_OK },
    { empty_file, "has 0 bytes", CAIRN_ERR_CORRUPT, CAIRN_OK },
    { link_file, "open of", CAIRN_ERR_IO, CAIRN_OK },
    { flip_length, "the header", CAIRN_ERR_MALFORMED, CAIRN_OK },
    { flip_header, "does not begin with {", CAIRN_ERR_MALFORMED, CAIRN_OK },
    { flip_data, "checksum", CAIRN_OK, CAIRN_ERR_CHECKSUM },
};

TEST_EACH(a_damaged_file_is_named, 0, sizeof spoils / sizeof spoils[0])
{
    struct cairn_sample_making s;
    cairn_sample_begin(&s, scratch, cairn_sample_vectors("adamw", "wx", 60000));
    for (uint32_t shard = 0; shard < 2; shard++)
        cairn_sample_put(&s, shard, (struct snapshot_range) { shard, 0, 60000 });
    cairn_sample_commit(&s);
    spoils[_i].spoil(cairn_sample_path(&s, VICTIM));
    struct snapshot snapshot;
    struct sentence why = { "" };
    cairn_status status = snapshot_open(s.folder, &snapshot, &why);
    ck_assert_msg(status == spoils[_i].status, "%d: %s", status, why.text);
    if (status == CAIRN_OK) {
        ck_assert_int_eq(snapshot_verify(&snapshot, NULL, &why), spoils[_i].verify_status);
        snapshot_close(&snapshot);
    }
    ck_assert_msg(strstr(why.text, VICTIM) != NULL, "%s", why.text);
    ck_assert_msg(strstr(why.text, spoils[_i].word) != NULL, "%s", why.text);
    cairn_sample_end(&s);
}

/* What two shards own of a tensor of 30000; word NULL: that is all of it, once. */
static const struct {
    struct snapshot_range own[2];
    const char *word;
} shares[] = {
    { { { 0, 0, 10000 }, { 0, 10000, 20000 } }, NULL },
    { { { 0, 0, 10000 }, { 0, 10001, 19999 } },
      "\"w\", plane param: elements 10000 to 10000 are in no" },
    { { { 0, 0, 10000 }, { 0, 10000, 19999 } }, "elements 29999 to 29999 are in no" },
    { { { 0, 0, 10001 }, { 0, 10000, 20000 } }, "elements from 10000 are in two files" },
};

TEST_EACH(elements_that_are_missing_or_twice_are_named, 0, sizeof shares / sizeof shares[0])
{
    struct cairn_sample_making s;
    struct snapshot snapshot;
    struct sentence why = { "" };
    const char *word = shares[_i].word;
    cairn_sample_begin(&s, scratch, cairn_sample_vectors("sgd", "w", 30000));
    for (uint32_t shard = 0; shard < 2; shard++) cairn_sample_put(&s, shard, shares[_i].own[shard]);
    cairn_sample_commit(&s);
    const cairn_status status = snapshot_open(s.folder, &snapshot, &why);
    ck_assert_int_eq(status, word == NULL ? CAIRN_OK : CAIRN_ERR_CORRUPT);
    if (word == NULL)
        snapshot_close(&snapshot);
    else
        ck_assert_msg(strstr(why.text, word) != NULL, "%s", why.text);
    cairn_sample_end(&s);
}

/* ---- failures of writing ---- */

static int count_files(const char *folder, const char *part)
{
    char command[400], line[32] = "";
    snprintf(command, sizeof command, "ls -A %s/%s | wc -l", folder, part);
    FILE *pipe = popen(command, "r");
    ck_assert_ptr_nonnull(fgets(line, sizeof line, pipe));
    pclose(pipe);
    return atoi(line);
}

/* A file of one shard that has all of a tensor "w". */
static void plan_one(struct cairn_sample_making *s, uint64_t elems, struct snapshot_plan *plan)
{
    const struct snapshot_range all = { 0, 0, elems };
    cairn_sample_begin(s, scratch, cairn_sample_vectors("sgd", "w", elems));
    ck_assert_int_eq(snapshot_plan_make(&s->spec, 0, &all, 1, plan), CAIRN_OK);
}

TEST(a_full_disk_fails_the_file_and_leaves_nothing)
{
    struct cairn_sample_making s;
    struct snapshot_plan plan;
    plan_one(&s, 60000, &plan);
    signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit = { 100000, 100000 };
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0); // of this child of Check only
    struct sentence why = { "" };
    uint8_t hash[16];
    ck_assert_int_eq(snapshot_write_file(s.folder, plan.files, cairn_sample_fill, NULL, hash, &why),
                     CAIRN_ERR_NO_SPACE);
    ck_assert_msg(strstr(why.text, "write of shard-00001") != NULL, "%s", why.text);
    ck_assert_int_eq(count_files(s.folder, "model"), 0);
    snapshot_plan_release(&plan);
    cairn_sample_end(&s);
}

static cairn_status give_nothing(void *context, const struct safetensors_entry *entry,
                                 uint64_t first_elem, uint64_t elem_count, void *to,
                                 struct sentence *why)
{
    (void)context;
    (void)to;
    return fail_with(why, CAIRN_ERR_CANCELED, "canceled at %s, %" PRIu64 " + %" PRIu64, entry->key,
                     first_elem, elem_count);
}

TEST(a_canceled_file_leaves_nothing_and_a_second_writer_is_refused)
{
    struct cairn_sample_making s;
    struct snapshot_plan plan;
    struct sentence why = { "" };
    uint8_t hash[16];
    plan_one(&s, 10, &plan);
    ck_assert_int_eq(snapshot_write_file(s.folder, plan.files, give_nothing, NULL, hash, &why),
                     CAIRN_ERR_CANCELED);
    ck_assert_str_eq(why.text, "canceled at w, 0 + 10");
    ck_assert_int_eq(count_files(s.folder, "model"), 0);
    ck_assert_int_eq(snapshot_write_file(s.folder, plan.files, cairn_sample_fill, NULL, hash, &why),
                     CAIRN_OK);
    ck_assert_int_eq(snapshot_write_file(s.folder, plan.files, cairn_sample_fill, NULL, hash, &why),
                     CAIRN_ERR_EXISTS);
    ck_assert_int_eq(count_files(s.folder, "model"), 1);
    snapshot_plan_release(&plan);
    cairn_sample_end(&s);
}

TEST(a_manifest_is_not_committed_over_a_missing_file_or_twice)
{
    struct cairn_sample_making s;
    struct sentence why = { "" };
    cairn_sample_begin(&s, scratch, cairn_sample_vectors("sgd", "w", 10));
    cairn_sample_put(&s, 0, (struct snapshot_range) { 0, 0, 10 });
    s.manifest.files[0].bytes++;
    ck_assert_int_eq(manifest_commit(s.folder, &s.manifest, &why), CAIRN_ERR_CORRUPT);
    s.manifest.files[0].bytes--;
    ck_assert_int_eq(manifest_commit(s.folder, &s.manifest, &why), CAIRN_OK);
    ck_assert_int_eq(manifest_commit(s.folder, &s.manifest, &why), CAIRN_ERR_EXISTS);
    remove_file(cairn_sample_path(&s, CAIRN_MANIFEST_NAME));
    remove_file(cairn_sample_path(&s, s.manifest.files[0].path));
    ck_assert_int_eq(manifest_commit(s.folder, &s.manifest, &why), CAIRN_ERR_CORRUPT);
    ck_assert_msg(strstr(why.text, "is not there") != NULL, "%s", why.text);
    cairn_sample_end(&s);
}

/* ---- removing ---- */

/* In place of libc's, for what is under test: the process ends behind so many. */
static int unlinks_left = -1;
int unlinkat(int folder_fd, const char *name, int flags)
{
    const int error = (int)syscall(SYS_unlinkat, folder_fd, name, flags);
    if (unlinks_left > 0 && --unlinks_left == 0) _exit(7);
    return error;
}

TEST_EACH(who_is_killed_while_removing_leaves_no_snapshot_and_the_next_ends_it, 0, 6)
{
    struct cairn_sample_making s;
    struct snapshot_removed removed;
    struct sentence why = { "" };
    int status = 0;
    cairn_sample_begin(&s, scratch, cairn_sample_vectors("adamw", "w", 10));
    cairn_sample_put(&s, 0, (struct snapshot_range) { 0, 0, 10 });
    cairn_sample_commit(&s);
    const pid_t child = fork();
    if (child == 0) {
        unlinks_left = _i + 1;
        _exit(snapshot_remove(scratch, "job", s.id, &removed, NULL) == CAIRN_OK ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(WEXITSTATUS(status), 7);
    ck_assert_uint_eq(cairn_sample_count(scratch, NULL), 0);
    const cairn_status again = snapshot_remove(scratch, "job", s.id, &removed, &why);
    ck_assert_msg(again == (_i == 5 ? CAIRN_ERR_NOT_FOUND : CAIRN_OK), "%s", why.text);
    ck_assert_int_ne(access(s.folder, F_OK), 0);
    cairn_sample_end(&s);
}

/* ---- who may read it ---- */

static int check_mode(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    const mode_t mode = kind == FTW_F ? 0640 : 0750;
    if (ftw->level == 0) return 0; // the scratch folder: not ours
    ck_assert_msg((info->st_mode & 0777) == mode, "%s: %o", path, info->st_mode & 0777);
    return 0;
}

TEST_EACH(its_files_are_for_owner_and_group_whatever_the_umask, 0, 3)
{
    static const mode_t umasks[] = { 0, 027, 077 };
    umask(umasks[_i]);
    struct cairn_sample_making s;
    const struct cairn_sample_ranges owned = { .at = { { 0, 0, 10 }, { 1, 0, 5 } }, .count = 2 };
    struct job_spec_data spec = cairn_sample_vectors("adamw", "w", 10);
    cairn_sample_tensor(&spec, "x", CAIRN_BLOB, (struct shape) { 1, { 5 } });
    cairn_sample_begin(&s, scratch, spec);
    cairn_sample_write(s.folder, &s.spec, 0, &owned, &s.manifest);
    cairn_sample_commit(&s);
    ck_assert_int_eq(nftw(scratch, check_mode, 16, FTW_PHYS), 0);
    ck_assert_int_eq(access(cairn_sample_path(&s, "blobs"), F_OK), 0);
    cairn_sample_end(&s);
}

SUITE(60, scratch_make, scratch_remove);
