/* Memory of cairn_alloc: what it is, who may free it when, and that nothing of it outlives its session. */
#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/base.h"
#include "client/session.h"
#include "tests/support/suite.h"
#include "tests/support/toy_scene.h"

/* Regions of ours that this process has mapped. */
static int mapped(void)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof line, maps) != NULL) count += strstr(line, "/memfd:cairn") != NULL;
    fclose(maps);
    return count;
}

TEST(it_is_whole_pages_of_zeros)
{
    void *ptr = NULL, *other = NULL;
    good(cairn_alloc(session, 5000, 0, &ptr));
    good(cairn_alloc(session, 1, 0, &other));
    ck_assert_uint_eq((uintptr_t)ptr % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
    for (int i = 0; i < 8192; i++) ck_assert_uint_eq(((uint8_t *)ptr)[i], 0);
    memset(ptr, 1, 8192);
    good(cairn_free(session, other));
    good(cairn_free(session, ptr));
    while (mapped() > 0)
        usleep(1000); // the library's own thread lets it go; the test's timeout ends it
}

/* Bytes that the kernel has set aside for regions of ours. */
static size_t taken(void)
{
    size_t bytes = 0;
    DIR *fds = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(fds);
    for (const struct dirent *entry = readdir(fds); entry != NULL; entry = readdir(fds)) {
        char name[64];
        struct stat status;
        const ssize_t length = readlinkat(dirfd(fds), entry->d_name, name, sizeof name - 1);
        if (length < 0) continue;
        name[length] = '\0';
        if (strcmp(name, "/memfd:cairn (deleted)") != 0) continue;
        ck_assert_int_eq(fstatat(dirfd(fds), entry->d_name, &status, 0), 0);
        bytes += (size_t)status.st_blocks * 512;
    }
    closedir(fds);
    return bytes;
}

TEST(all_of_it_is_there_before_it_is_touched)
{
    const size_t sizes[] = { 1, 5000, 1 << 20, (5 << 20) + 1, (33 << 20) + 5000 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *ptr = NULL;
        const size_t before = taken();
        good(cairn_alloc(session, sizes[i], 0, &ptr));
        ck_assert_uint_ge(taken(), before + sizes[i]);
    }
}

TEST(a_limit_of_file_size_is_an_error_and_no_signal)
{
    struct rlimit before, small;
    void *ptr = NULL;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit) { 1 << 20, before.rlim_max };
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    fails(cairn_alloc(session, 2 << 20, 0, &ptr), CAIRN_ERR_NO_MEMORY, "ulimit -f");
    good(cairn_alloc(session, 1 << 20, 0, &ptr));
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    good(cairn_free(session, ptr));
}

TEST(what_cannot_be_had_is_refused)
{
    void *ptr = NULL;
    fails(cairn_alloc(session, 0, 0, &ptr), CAIRN_ERR_INVALID, "0");
    fails(cairn_alloc(session, 64, 0, NULL), CAIRN_ERR_INVALID, "out");
    fails(cairn_alloc(session, 64, CAIRN_GPU(0), &ptr), CAIRN_ERR_UNSUPPORTED, "CUDA");
    fails(cairn_alloc(session, 64, -1, &ptr), CAIRN_ERR_INVALID,
          "device is -1; allowed: 0 = the host");
    fails(cairn_alloc(session, 64, 1, &ptr), CAIRN_ERR_INVALID, "CAIRN_GPU(n)");
    fails(cairn_register(session, &ptr, 64, -1), CAIRN_ERR_INVALID, "device is -1");
    fails(cairn_alloc(session, SIZE_MAX, 0, &ptr), CAIRN_ERR_NO_MEMORY, "this machine");
    fails(cairn_alloc(session, SIZE_MAX / 4096, 0, &ptr), CAIRN_ERR_NO_MEMORY, "machine");
    ck_assert_ptr_null(ptr);
    ck_assert_int_eq(mapped(), 0);
}

TEST(a_pointer_that_it_did_not_give_is_not_freed)
{
    int mine = 0;
    void *ptr = NULL;
    good(cairn_alloc(session, 64, 0, &ptr));
    fails(cairn_free(session, &mine), CAIRN_ERR_INVALID, "not memory of cairn_alloc");
    fails(cairn_free(session, NULL), CAIRN_ERR_INVALID, "not memory of cairn_alloc");
    fails(cairn_free(session, (uint8_t *)ptr + 8), CAIRN_ERR_INVALID, "not memory");
    good(cairn_free(session, ptr));
    fails(cairn_free(session, ptr), CAIRN_ERR_INVALID, "freed already");
}

TEST(memory_on_loan_is_not_freed)
{
    struct session *s = handle_get(CAIRN_HANDLE_SESSION, session);
    void *ptr = NULL;
    const void *lent = NULL;
    good(cairn_alloc(session, 64, 0, &ptr));
    good(memory_lend(s, (uint8_t *)ptr + 16, 32, NULL, &lent));
    fails(cairn_free(session, ptr), CAIRN_ERR_BUSY, "1 operations");
    memory_return(s, lent);
    good(cairn_free(session, ptr));
    handle_put(session);
}

TEST(a_loan_outlives_the_session_and_the_memory_goes_with_it)
{
    struct session *s = handle_get(CAIRN_HANDLE_SESSION, session);
    void *ptr = NULL, *other = NULL;
    const void *lent = NULL;
    good(cairn_alloc(session, 64, 0, &ptr));
    good(cairn_alloc(session, 64, 0, &other));
    good(memory_lend(s, ptr, 64, NULL, &lent));
    cairn_close(session);
    ck_assert_int_eq(mapped(), 1);
    memset(ptr, 1, 64);
    memory_return(s, lent);
    ck_assert_int_eq(mapped(), 0);
    handle_put(session);
}

TEST(a_tensor_that_does_not_fit_into_it_is_refused)
{
    cairn_job *job = toy_ready(session, "toy", TOY_SPEC());
    const struct cairn_version version = toy_step(job, 1).version;
    void *ptr = NULL;
    cairn_op *op = NULL;
    good(cairn_alloc(session, 4800, 0, &ptr)); // two pages: a.weight fits just once
    struct cairn_mem mem = toy_mem(ptr, CAIRN_F32);
    good(cairn_fetch(job, version, "a.weight", NULL, NULL, &mem, &op));
    good(cairn_wait(op, TOY_WAIT_MS));
    mem.ptr = (uint8_t *)ptr + 4096;
    fails(cairn_fetch(job, version, "a.weight", NULL, NULL, &mem, &op), CAIRN_ERR_INVALID,
          "4096 bytes to the end");
    good(cairn_free(session, ptr));
}

TEST(a_put_that_reaches_beyond_it_is_refused_before_it_is_read)
{
    cairn_job *job = toy_open(session, "toy", TOY_SPEC());
    void *ptr = NULL;
    good(cairn_alloc(session, 4096, 0, &ptr));
    fails(cairn_put(job, "a.weight", "param", NULL, TOY_F32(ptr), NULL), CAIRN_ERR_INVALID,
          "4096 bytes to the end");
    toy_put(job); // and may be put yet
    good(cairn_init_done(job, NULL, TOY_WAIT_MS));
}

TEST(a_round_from_it_is_like_one_from_the_heap)
{
    cairn_job *job = toy_ready(session, "toy", TOY_SPEC());
    void *ptr = NULL;
    float fetched[TOY_ELEMS];
    good(cairn_alloc(session, 4800, 0, &ptr));
    for (int i = 0; i < 1200; i++) ((float *)ptr)[i] = 1;
    const struct cairn_round round = toy_begin(job);
    good(cairn_push(job, &round, 0, "a.weight", NULL, TOY_F32(ptr), NULL));
    const struct cairn_result result = toy_commit(job, &round);
    good(cairn_free(session, ptr)); // at once: the commit gave the loan back
    toy_fetch(job, result.version, 0, NULL, CAIRN_F32, fetched);
    for (int i = 0; i < 1200; i++) // AdamW's first step is of length lr
        ck_assert_float_eq_tol(fetched[i], toy_initial(0, (uint64_t)i) - 1e-3f, 1e-5f);
}

TEST(closing_the_session_frees_all_of_it)
{
    void *ptr[40];
    for (int i = 0; i < 40; i++) good(cairn_alloc(session, 4096 * ((size_t)i % 3 + 1), 0, &ptr[i]));
    for (int i = 0; i < 40; i += 3) good(cairn_free(session, ptr[i]));
    cairn_close(session);
    ck_assert_int_eq(mapped(), 0);
    fails(cairn_alloc(session, 64, 0, ptr), CAIRN_ERR_HANDLE, "session");
    fails(cairn_free(session, ptr[1]), CAIRN_ERR_HANDLE, "session");
}

TEST(memory_of_the_caller_is_staged_and_said_to_be)
{
    int mine[16];
    fails(cairn_register(session, mine, sizeof mine, 0), CAIRN_ERR_UNSUPPORTED, "stages memory");
    fails(cairn_register(session, NULL, 16, 0), CAIRN_ERR_INVALID, "NULL");
    fails(cairn_register(session, mine, 16, CAIRN_GPU(0)), CAIRN_ERR_UNSUPPORTED, "CUDA");
    fails(cairn_unregister(session, mine), CAIRN_ERR_INVALID, "not registered");
}

SUITE(60, toy_open_trainer, toy_stop);
