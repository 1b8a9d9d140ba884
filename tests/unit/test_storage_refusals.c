/* What a file system may refuse, and the storage of folders gets over: direct I/O that it had taken the flag
 * of, and the last fsync of a file that replaces another. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/snapshot.h"
#include "proto/store/storage.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

enum { THREADS = 2 };
#define BLOCK_BYTES ((size_t)4 * 4096)

ssize_t __real_pwrite(int fd, const void *from, size_t count, off_t at);
ssize_t __real_pread(int fd, void *to, size_t count, off_t at);
int __real_fsync(int fd);
ssize_t __wrap_pwrite(int fd, const void *from, size_t count, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t count, off_t at);
int __wrap_fsync(int fd);

static char folder[CAIRN_SCRATCH_BYTES];
static struct sentence why;
static bool folders_fail;
static int folders_synced; // before they fail
static pthread_barrier_t refused;

/* True: it is direct. Then all threads are refused before one of them goes on. */
static bool refuses(int fd)
{
    if ((fcntl(fd, F_GETFL) & O_DIRECT) == 0) return false;
    pthread_barrier_wait(&refused);
    errno = EINVAL;
    return true;
}

ssize_t __wrap_pwrite(int fd, const void *from, size_t count, off_t at)
{
    return refuses(fd) ? -1 : __real_pwrite(fd, from, count, at);
}

ssize_t __wrap_pread(int fd, void *to, size_t count, off_t at)
{
    return refuses(fd) ? -1 : __real_pread(fd, to, count, at);
}

int __wrap_fsync(int fd)
{
    struct stat info;
    if (!folders_fail || fstat(fd, &info) != 0 || !S_ISDIR(info.st_mode) || folders_synced-- > 0)
        return __real_fsync(fd);
    errno = EIO;
    return -1;
}

static void set_up(void)
{
    cairn_scratch_make(folder);
    folders_fail = false;
    folders_synced = 0;
    ck_assert_int_eq(pthread_barrier_init(&refused, NULL, THREADS), 0);
}

static void tear_down(void)
{
    pthread_barrier_destroy(&refused);
    cairn_scratch_remove(folder);
}

/* A block of a file that a thread writes or reads. */
struct part {
    pthread_t thread;
    struct storage_put *put;
    struct storage_file *file;
    uint64_t offset;
    uint8_t *bytes;
    size_t got;
    cairn_status status;
    struct sentence why;
};

static void *run(void *context)
{
    struct part *p = context;
    if (p->put != NULL)
        p->status = p->put->storage->put_write(p->put, p->offset, p->bytes, BLOCK_BYTES, &p->why);
    else
        p->status = p->file->storage->read(p->file, p->offset, p->bytes, BLOCK_BYTES, &p->got,
                                           &p->why);
    return NULL;
}

static void run_all(struct storage_put *put, struct storage_file *file)
{
    struct part parts[THREADS];
    memset(parts, 0, sizeof parts);
    for (size_t i = 0; i < THREADS; i++) {
        parts[i] = (struct part) { .put = put, .file = file, .offset = i * BLOCK_BYTES };
        ck_assert_int_eq(posix_memalign((void **)&parts[i].bytes, CAIRN_STORAGE_ALIGN, BLOCK_BYTES),
                         0);
        memset(parts[i].bytes, put != NULL ? (int)i + 1 : 0, BLOCK_BYTES);
        ck_assert_int_eq(pthread_create(&parts[i].thread, NULL, run, &parts[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_join(parts[i].thread, NULL), 0);
        ck_assert_msg(parts[i].status == CAIRN_OK, "%s", parts[i].why.text);
        ck_assert_uint_eq(parts[i].bytes[BLOCK_BYTES - 1], i + 1);
        free(parts[i].bytes);
    }
}

TEST(direct_io_that_is_refused_to_several_threads_at_once_goes_through_the_page_cache)
{
    const struct storage *storage = storage_of(folder);
    struct storage_put *put;
    struct storage_file *file;
    ck_assert_int_eq(storage->put_begin(folder, "part", THREADS * BLOCK_BYTES, &put, &why),
                     CAIRN_OK);
    run_all(put, NULL);
    ck_assert(put->is_buffered);
    ck_assert_int_eq(storage->put_end(put, CAIRN_OK, &why), CAIRN_OK);
    ck_assert_int_eq(storage->open(folder, "part", true, &file, &why), CAIRN_OK);
    run_all(NULL, file);
    ck_assert(file->is_buffered);
    storage->close(file);
}

TEST(a_folder_that_cannot_be_made_durable_is_not_there)
{
    const struct storage *storage = storage_of(folder);
    uint64_t bytes;
    folders_fail = true;
    ck_assert_int_eq(storage->make(folder, "step", true, &why), CAIRN_ERR_IO);
    folders_fail = false;
    ck_assert_int_eq(storage->remove(folder, "step", true, &bytes, &why), CAIRN_ERR_NOT_FOUND);
    ck_assert_int_eq(storage->make(folder, "step", false, &why), CAIRN_OK);
    folders_fail = true;
    ck_assert_int_eq(storage->make(folder, "step", false, &why), CAIRN_ERR_IO); // another's stays
    folders_fail = false;
    ck_assert_int_eq(storage->remove(folder, "step", true, &bytes, &why), CAIRN_OK);
}

TEST(of_a_word_and_its_replacement_one_is_there_though_the_folder_cannot_be_synced)
{
    const struct storage *storage = storage_of(folder);
    uint64_t bytes = 0;
    ck_assert_int_eq(storage->commit(folder, "latest", "a\n", 2, true, &why), CAIRN_OK);
    folders_fail = true;
    ck_assert_int_eq(storage->commit(folder, "latest", "b\n", 2, true, &why), CAIRN_ERR_IO);
    ck_assert_ptr_nonnull(strstr(why.text, "fsync of latest"));
    ck_assert_int_eq(storage->stat(folder, "latest", &bytes, &why), CAIRN_OK);
    ck_assert_uint_eq(bytes, 2);
    ck_assert_int_eq(storage->commit(folder, "new", "c\n", 2, false, &why), CAIRN_ERR_IO);
    ck_assert_int_eq(storage->stat(folder, "new", &bytes, &why), CAIRN_ERR_NOT_FOUND);
}

TEST(of_an_export_whose_name_cannot_be_synced_nothing_is_left)
{
    struct ctl_made_folder made;
    char path[CAIRN_SCRATCH_BYTES + 8];
    snprintf(path, sizeof path, "%s/out", folder);
    ck_assert_int_eq(ctl_made_folder_begin(path, &made, &why), CAIRN_OK);
    ck_assert_int_eq(storage_of(path)->commit(made.temp, "model.safetensors", "x", 1, false, &why),
                     CAIRN_OK);
    folders_fail = true;
    folders_synced = 1; // its own, but not its parent's
    ck_assert_int_eq(ctl_made_folder_end(&made, CAIRN_OK, &why), CAIRN_ERR_IO);
    ck_assert_int_ne(access(path, F_OK), 0);
    ck_assert_int_ne(access(made.temp, F_OK), 0);
}

SUITE(10, set_up, tear_down);
