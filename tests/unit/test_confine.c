/* Threads with fewer rights: what they may read, and what nobody confined may do; and the shard reads files
 * of others on such threads. */
#include "proto/store/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/spec/spec.h"
#include "tests/support/memory_storage.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"

#define NOT_OURS "/etc/passwd"

static char inside[128], outside[CAIRN_SCRATCH_BYTES];

static void set_up(void)
{
    char path[256];
    scratch_make();
    cairn_scratch_make(outside);
    snprintf(inside, sizeof inside, "%s/inside", scratch);
    ck_assert_int_eq(mkdir(inside, 0700), 0);
    cairn_scratch_file(inside, "file", "words", path, sizeof path);
    cairn_scratch_file(outside, "file", "words", path, sizeof path);
}

static void tear_down(void)
{
    scratch_remove();
    cairn_scratch_remove(outside);
}

/* ---- what is tried ---- */

/* 0, or errno. */
static int opens(const char *folder, const char *name, int flags)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const int fd = open(path, flags | O_CLOEXEC, 0600);
    const int error = fd < 0 ? errno : 0;
    if (fd >= 0) close(fd);
    return error;
}

struct tried {
    int ours, listing, elsewhere, fresh, written, removed, absent, through_link, connected;
};

static int connects(void)
{
    struct sockaddr_in to = { .sin_family = AF_INET,
                              .sin_port = htons(9),
                              .sin_addr = { htonl(INADDR_LOOPBACK) } };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int error = connect(fd, (struct sockaddr *)&to, sizeof to) == 0 ? 0 : errno;
    close(fd);
    return error;
}

static void try_all(void *context)
{
    struct tried *tried = context;
    char path[256];
    tried->ours = opens(inside, "file", O_RDONLY);
    tried->listing = opens(inside, ".", O_RDONLY | O_DIRECTORY);
    tried->elsewhere = opens(outside, "file", O_RDONLY);
    tried->fresh = opens(inside, "fresh", O_WRONLY | O_CREAT);
    tried->written = opens(inside, "file", O_WRONLY);
    snprintf(path, sizeof path, "%s/file", inside);
    tried->removed = unlink(path) == 0 ? 0 : errno;
    tried->absent = opens(inside, "absent", O_RDONLY);
    tried->through_link = opens(inside, "link", O_RDONLY);
    tried->connected = connects();
}

TEST(a_confined_thread_reads_its_folder_and_does_nothing_else)
{
    struct tried tried;
    struct sentence why;
    char path[256];
    snprintf(path, sizeof path, "%s/link", inside);
    ck_assert_int_eq(symlink(NOT_OURS, path), 0);
    ck_assert_int_eq(confine_run_in(inside, try_all, &tried, &why), CAIRN_OK);
    ck_assert_int_eq(tried.ours, 0);
    ck_assert_int_eq(tried.listing, 0);
    ck_assert_int_eq(tried.absent, ENOENT);
    ck_assert_int_eq(tried.elsewhere, EACCES);
    ck_assert_int_eq(tried.through_link, EACCES);
    ck_assert_int_eq(tried.fresh, EACCES);
    ck_assert_int_eq(tried.written, EACCES);
    ck_assert_int_eq(tried.removed, EACCES);
    ck_assert_int_eq(tried.connected, confine_version() >= 4 ? EACCES : ECONNREFUSED);
    ck_assert_int_eq(opens(outside, "file", O_RDONLY), 0); // who called has what it had
    ck_assert_int_eq(opens(inside, "fresh", O_WRONLY | O_CREAT), 0);
}

static void *try_on_a_thread(void *context)
{
    try_all(context);
    return NULL;
}

static void try_through(void *context)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, try_on_a_thread, context), 0);
    pthread_join(thread, NULL);
}

TEST(what_a_confined_thread_starts_is_confined)
{
    struct tried tried;
    struct sentence why;
    ck_assert_int_eq(confine_run_in(inside, try_through, &tried, &why), CAIRN_OK);
    ck_assert_int_eq(tried.ours, 0);
    ck_assert_int_eq(tried.elsewhere, EACCES);
}

TEST(several_folders_are_read_of_a_list)
{
    struct confine confine;
    struct tried tried;
    struct sentence why;
    char both[256];
    snprintf(both, sizeof both, "%s:/nowhere/at/all:%s", inside, outside);
    confine_begin(&confine);
    confine_read_each(&confine, both);
    ck_assert_int_eq(confine_run(&confine, try_all, &tried, &why), CAIRN_OK);
    ck_assert_int_eq(tried.ours, 0);
    ck_assert_int_eq(tried.elsewhere, 0);
    ck_assert_int_eq(tried.written, EACCES);
}

TEST(a_folder_that_is_not_there_is_missed_by_who_reads_it)
{
    struct tried tried;
    struct sentence why;
    ck_assert_int_eq(confine_run_in("/nowhere/at/all", try_all, &tried, &why), CAIRN_OK);
    ck_assert_int_eq(tried.ours, EACCES);
    ck_assert_int_eq(tried.elsewhere, EACCES);
}

/* ---- a whole process ---- */

static int confine_and_try(void)
{
    char from[256], to[256];
    if (!confine_process()) return 1;
    snprintf(from, sizeof from, "%s/file", inside);
    snprintf(to, sizeof to, "%s/moved", scratch);
    if (rename(from, to) != 0) return 2; // what it did with files it still does
    if (opens(outside, "file", O_RDWR) != 0) return 3;
    snprintf(to, sizeof to, "%s/null", scratch);
    if (mknod(to, S_IFCHR | 0600, 0x103) == 0) return 4;
    execl("/bin/true", "true", (char *)NULL);
    return errno == EACCES && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? 0 : 5;
}

TEST(a_confined_process_starts_no_program_and_works_with_its_files_as_before)
{
    int status;
    const pid_t pid = fork();
    if (pid == 0) _exit(confine_and_try());
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}

SUITE(30, set_up, tear_down);

/* ---- who reads files of others ---- */

static struct scene scene;

static void open_scene(void)
{
    set_up();
    cairn_memory_storage_open();
    scene_open(&scene, "mem", 1, 0);
}

static void close_scene(void)
{
    scene_close(&scene);
    tear_down();
}

TEST(a_shard_looks_for_a_snapshot_with_no_right_to_read_anything_else)
{
    struct sentence why;
    ck_assert_int_eq(storage_of("mem:toy")->make("mem:toy", "", false, &why), CAIRN_OK);
    scene_create(&scene, 8, 2, 1, "mem:toy");
    scene_refused(&scene, 8, CAIRN_ERR_NOT_FOUND, "");
    ck_assert_uint_gt(cairn_memory_storage_opened(true), 0);
    ck_assert_uint_eq(cairn_memory_storage_opened(false), 0);
}

TEST(a_shard_looks_for_weights_with_no_right_to_read_anything_but_import_folders)
{
    char path[256];
    free(scene.shard->import_folders);
    scene.shard->import_folders = strdup(inside);
    snprintf(path, sizeof path, "%s/model.safetensors", inside);
    ck_assert_int_eq(symlink(NOT_OURS, path), 0);
    ck_assert_int_eq(spec_set_init_from(&scene.spec, inside, ""), CAIRN_OK);
    scene_create(&scene, 8, 1, 0, "");
    scene_refused(&scene, 8, CAIRN_ERR_REFUSED, "leads out of the folder");
}

TEST(a_shard_reads_no_file_that_a_link_in_a_snapshot_leads_to)
{
    char path[256];
    snprintf(path, sizeof path, "%s/manifest.json", inside);
    ck_assert_int_eq(symlink(NOT_OURS, path), 0);
    scene_create(&scene, 8, 2, 1, inside);
    const char *said = scene_refused(&scene, 8, CAIRN_ERR_IO, "manifest.json");
    ck_assert_msg(strstr(said, "root:") == NULL, "%s", said);
}

SUITE(30, open_scene, close_scene);

int main(void)
{
    if (confine_version() > 0) return suite_main();
    printf("skip: this kernel has no Landlock\n");
    return SUITE_SKIPPED;
}
