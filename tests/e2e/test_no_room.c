/* A job that a shard has no room for: the refusal says what to ask less of, and that fits; or how many bytes,
 * with which it trains. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

#include "tests/e2e/scene.h"

enum { WAIT_MS = 20000, WORKERS = 64 /* of whom landing memory is wanted, at once */ };

static cairn_status open_job(const char *name, uint64_t elems, uint32_t chunk_leaves,
                             uint32_t window, cairn_job **job_out)
{
    return cairn_job_open(
        session, name,
        &TINY(elems, .workers_min = WORKERS, .chunk_leaves = chunk_leaves, .window = window)->spec,
        CAIRN_WORKER, WAIT_MS, job_out);
}

/* A job, by what its landing memory depends on; 0: as by default. */
struct wish {
    uint64_t elems;
    uint32_t chunk_leaves, window;
};

/* The number behind the word in the last error; 0: it names none. */
static uint32_t advised(const char *word)
{
    const char *promise = strstr(cairn_error(), "it fits with");
    const char *at = promise != NULL ? strstr(promise, word) : NULL;
    return at != NULL ? (uint32_t)strtoul(at + strlen(word), NULL, 10) : 0;
}

/* Refused as it is, there with what the refusal says of `word`, if it does. True: it did. */
static bool keeps_word(struct wish wish, const char *word, bool by_window)
{
    start(1); // memory.limit=256MiB
    session = trainer_session(cluster.address, NULL);
    ck_assert_int_eq(open_job("refused", wish.elems, wish.chunk_leaves, wish.window, &job),
                     CAIRN_ERR_NO_MEMORY);
    const uint32_t number = advised(word);
    if (number != 0 && by_window) wish.window = number;
    if (number != 0 && !by_window) wish.chunk_leaves = number;
    if (number != 0)
        ck_assert_msg(open_job("fits", wish.elems, wish.chunk_leaves, wish.window, &job) ==
                          CAIRN_OK,
                      "%" PRIu64 " elements, %s%u: %s", wish.elems, word, number, cairn_error());
    stop();
    return number != 0;
}

TEST(a_job_that_is_refused_fits_as_the_refusal_says)
{
    ck_assert(keeps_word((struct wish) { 1 << 20, 0, 0 }, "chunk_leaves ", false));
    ck_assert(keeps_word((struct wish) { 1 << 20, 0, 0 }, "window ", true));
    ck_assert(keeps_word((struct wish) { 5 << 20, 0, 0 }, "chunk_leaves ", false));
    ck_assert(keeps_word((struct wish) { 200000, 0, 0 }, "window ", true));
}

/* Chunks that end within a leaf, and numbers that halves are no whole number of. */
TEST(odd_jobs_that_are_refused_fit_as_the_refusal_says)
{
    const struct wish wishes[] = { { 3 * 4096 + 1, 0, 150 }, { 1 << 20, 33, 31 } };
    // Two leaves, of which the second has one element: half as many are more than half of it.
    ck_assert(!keeps_word((struct wish) { 4097, 0, 300 }, "chunk_leaves ", false));
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        ck_assert(keeps_word(wishes[i], "chunk_leaves ", false));
        ck_assert(keeps_word(wishes[i], "window ", true));
    }
}

TEST(of_one_whose_state_is_too_large_it_promises_nothing)
{
    start(1);
    session = trainer_session(cluster.address, NULL);
    fails(open_job("large", 40 << 20, 0, 0, &job), CAIRN_ERR_NO_MEMORY, "add shards");
    ck_assert_ptr_null(strstr(cairn_error(), "it fits with"));
}

/* One shard with so much memory. */
static void start_with(uint64_t bytes)
{
    char limit[64];
    snprintf(limit, sizeof limit, "memory.limit=%" PRIu64 "B", bytes);
    start(1, .shard_set = SETTINGS(limit), .both_ways = true);
}

/* By the network's way: what is fetched needs replies, far more at a time than one. */
TEST(with_just_the_bytes_that_a_refusal_says_a_job_trains)
{
    static float values[1 << 16];
    struct tiny_job *tiny = TINY(1 << 16, .chunk_leaves = 1);
    start_with(1 << 20);
    session = tiny_session(&cluster, "sealed");
    ck_assert_int_eq(cairn_job_open(session, "tight", &tiny->spec, CAIRN_WORKER, WAIT_MS, &job),
                     CAIRN_ERR_NO_MEMORY);
    const char *needs = strstr(cairn_error(), ") needs ");
    ck_assert_msg(needs != NULL, "%s", cairn_error());
    const uint64_t bytes = strtoull(needs + strlen(") needs "), NULL, 10);
    stop();

    start_with(bytes);
    session = tiny_session(&cluster, "sealed");
    job = tiny_open(session, "tight", tiny);
    for (int step = 1; step <= 3; step++) {
        ck_assert_uint_eq(tiny_step(job), (uint64_t)step);
        const struct cairn_version its = { 1, (uint64_t)step };
        trainer_fetch(job, its, "w", NULL, CAIRN_F32, values);
    }
    ck_assert_float_eq(values[1], 1);
}

SUITE(60, .tear_down = stop);
