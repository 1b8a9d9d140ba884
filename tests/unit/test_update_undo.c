/* An update whose process dies before any one of its instructions is continued to the same bits by another
 * process. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "gpu/gpu.h"
#include "tests/support/hyper.h"
#include "tests/support/suite.h"

enum { ELEMS = 8 * CAIRN_UNDO_ELEMS + 100, STAMP = 7, WORK = 3 };

/* What outlives the process. */
struct memory {
    struct update_undo undo;
    uint64_t ended;
    float param[ELEMS], exp_avg[ELEMS], exp_avg_sq[ELEMS], ema[ELEMS], grad[ELEMS];
};

static struct group_scalars scalars;
static uint16_t wire[ELEMS];
static uint64_t nonfinite;

static struct update_work work_of(struct memory *memory)
{
    return (struct update_work) {
        .planes = { .grad = memory->grad,
                    .param = memory->param,
                    .exp_avg = memory->exp_avg,
                    .exp_avg_sq = memory->exp_avg_sq,
                    .ema = memory->ema,
                    .wire = wire,
                    .wire_dtype = CAIRN_BF16,
                    .elems = ELEMS },
        .scalars = &scalars,
        .nonfinite = &nonfinite,
        .undo = &memory->undo,
        .ended = &memory->ended,
        .stamp = STAMP,
        .work = WORK,
    };
}

static void update(const struct update_work *update)
{
    struct home_work work = { .kind = CAIRN_WORK_UPDATE, .update = *update };
    struct home_stream *stream;
    struct sentence why;
    ck_assert_int_eq(home_stream_open(home_host(), &stream, &why), CAIRN_OK);
    ck_assert_int_eq(home_run(stream, &work, 1, &why), CAIRN_OK);
    home_stream_close(stream);
}

static void fill(struct memory *memory)
{
    struct group_hyper hyper = cairn_hyper_default(CAIRN_OPTIMIZER_ADAMW);
    hyper.ema = 0.75;
    ck_assert_int_eq(group_scalars_of(&hyper, 5, 0x3f000000, &scalars), CAIRN_OK);
    memset(memory, 0, sizeof *memory);
    for (int i = 0; i < ELEMS; i++) {
        memory->grad[i] = (float)(i % 17 - 8) / 16;
        memory->param[i] = (float)(i % 29) / 32;
        memory->exp_avg[i] = (float)(i % 13 - 6) / 64;
        memory->exp_avg_sq[i] = (float)(i % 11 + 1) / 128;
        memory->ema[i] = (float)(i % 7) / 8;
    }
}

static bool is_same(const struct memory *a, const struct memory *b)
{
    return memcmp(a->param, b->param, sizeof a->param) == 0 &&
           memcmp(a->exp_avg, b->exp_avg, sizeof a->exp_avg) == 0 &&
           memcmp(a->exp_avg_sq, b->exp_avg_sq, sizeof a->exp_avg_sq) == 0 &&
           memcmp(a->ema, b->ema, sizeof a->ema) == 0;
}

static struct memory *map_memory(void)
{
    void *memory = mmap(NULL, sizeof(struct memory), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    return memory;
}

/* The memory as the other process has left it by now, in which nothing of that process runs any more. */
static void continue_it(const struct memory *left, const struct memory *expected)
{
    static struct memory memory;
    memory = *left;
    if (memory.ended != STAMP) {
        const struct update_work work = work_of(&memory);
        update(&work);
    }
    ck_assert_uint_eq(memory.ended, STAMP);
    ck_assert_msg(is_same(&memory, expected), "cut off at %lu", (unsigned long)left->undo.progress);
}

TEST(an_update_with_an_undo_has_the_bits_of_one_without)
{
    static struct memory plain, undone;
    fill(&plain);
    undone = plain;
    struct update_work work = work_of(&plain);
    work.undo = NULL;
    update(&work);
    work = work_of(&undone);
    update(&work);
    ck_assert(is_same(&plain, &undone));
    ck_assert_uint_eq(undone.ended, STAMP);
    ck_assert_uint_eq(plain.ended, 0);
}

/* A process dies between two instructions, and its memory is then as it is while a tracer holds it there. */
TEST(an_update_that_is_cut_off_before_any_instruction_is_continued_to_the_same_bits)
{
    static struct memory expected;
    struct memory *left = map_memory();
    int status, steps = 0;
    uint64_t seen = UINT64_MAX, runs = 0;
    fill(&expected);
    *left = expected;
    struct update_work work = work_of(&expected);
    update(&work);
    const pid_t pid = fork();
    if (pid == 0) {
        work = work_of(left);
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(SUITE_SKIPPED);
        raise(SIGSTOP);
        update(&work);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSTOPPED(status));
    while (WIFSTOPPED(status)) {
        continue_it(left, &expected);
        steps++;
        runs += left->undo.progress != seen;
        seen = left->undo.progress;
        ck_assert_int_eq(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    }
    ck_assert_int_eq(status, 0);
    ck_assert_uint_ge(runs, 2 * 9);
    ck_assert(is_same(left, &expected));
    printf("cut off before each of %d instructions\n", steps);
}

TEST(an_undo_of_another_update_is_not_continued)
{
    static struct memory memory, expected;
    fill(&memory);
    expected = memory;
    struct update_work work = work_of(&expected);
    update(&work);
    memory.undo.stamp = STAMP - 1;
    memory.undo.work = WORK;
    memory.undo.progress = 2 * CAIRN_UNDO_ELEMS + 1;
    work = work_of(&memory);
    update(&work);
    ck_assert(is_same(&memory, &expected));
}

SUITE(60);
