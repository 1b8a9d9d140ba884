#include "tests/gpu/home_scene.h"

struct home *home;
struct home_stream *stream;
struct home_memory plane;
struct sentence why;

static struct home_memory taken[4];
static size_t taken_count;

void home_on(const char *options)
{
    emulated_choose(options);
    must(home_open_cuda("0", &home, &why));
}

void home_on_with(const char *options, uint64_t plane_bytes)
{
    home_on(options);
    must(home_memory_open(home, "a plane", plane_bytes, &plane, &why));
    must(home_stream_open(home, &stream, &why));
}

struct home_memory *home_take(const char *what, uint64_t bytes)
{
    ck_assert_uint_lt(taken_count, sizeof taken / sizeof *taken);
    must(home_memory_open(home, what, bytes, &taken[taken_count], &why));
    return &taken[taken_count++];
}

void home_off(void)
{
    if (stream != NULL) home_stream_close(stream);
    while (taken_count > 0) home_memory_close(&taken[--taken_count]);
    home_memory_close(&plane);
    if (home != NULL) home_close(home);
    stream = NULL;
    home = NULL;
}

struct home_work copy_work(void *to, const void *from, uint64_t bytes)
{
    struct home_work work = { .kind = CAIRN_WORK_COPY };
    work.copy.to = to;
    work.copy.from = from;
    work.copy.bytes = bytes;
    return work;
}

struct home_work zero_work(void *at, uint64_t bytes)
{
    struct home_work work = { .kind = CAIRN_WORK_ZERO };
    work.zero.at = at;
    work.zero.bytes = bytes;
    return work;
}

void run_work(struct home_work work)
{
    must(home_run(stream, &work, 1, &why));
}
