/* A channel whose n-th allocation fails, for each n: it says so, and leaves what was queued as it was. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/secure_ends.h"
#include "tests/support/suite.h"

static int allocations_left = -1; /* before one fails; -1: none does */
static bool has_failed;

static bool fails(void)
{
    if (allocations_left < 0) return false;
    const bool is_last = allocations_left-- == 0;
    has_failed |= is_last;
    return is_last;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    return fails() ? NULL : __real_realloc(old, bytes);
}

struct talk {
    struct channel *ends[2];
    struct byte_queue wire, plain;
};

/* What is on the wire goes to an end, in two pieces, so that a part of it is held. */
static cairn_status deliver(struct talk *talk, int to)
{
    struct byte_queue *wire = &talk->wire;
    const size_t first = (wire->end - wire->start) / 2;
    for (int piece = 0; piece < 2; piece++) {
        size_t used;
        const size_t count = piece == 0 ? first : wire->end - wire->start;
        CAIRN_TRY(channel_take(talk->ends[to], wire->bytes + wire->start, count, SIZE_MAX, &used,
                               &talk->plain, NULL));
        byte_queue_drop(wire, used);
    }
    return CAIRN_OK;
}

static cairn_status run(struct talk *talk)
{
    static const uint8_t bytes[100000] = { 1, 2, 3 };
    const struct handshake_options first = ends_initiator(), second = ends_responder();
    CAIRN_TRY(channel_open(&first, &talk->ends[0]));
    CAIRN_TRY(channel_open(&second, &talk->ends[1]));
    for (int i = 0; i < 3; i++) {
        CAIRN_TRY(channel_greet(talk->ends[i % 2], &talk->wire));
        CAIRN_TRY(deliver(talk, 1 - i % 2));
    }
    for (int i = 0; i < 2; i++) {
        CAIRN_TRY(channel_seal(talk->ends[i], bytes, sizeof bytes, 0, &talk->wire));
        CAIRN_TRY(deliver(talk, 1 - i));
    }
    CAIRN_TRY(channel_finish(talk->ends[0], &talk->wire));
    return deliver(talk, 1);
}

static void end(struct talk *talk)
{
    channel_close(talk->ends[0]);
    channel_close(talk->ends[1]);
    byte_queue_release(&talk->wire);
    byte_queue_release(&talk->plain);
}

TEST(each_allocation_may_fail)
{
    int n = 0;
    ends_make();
    do {
        struct talk talk = { 0 };
        has_failed = false;
        allocations_left = n++;
        const cairn_status status = run(&talk);
        allocations_left = -1;
        ck_assert_int_eq(status, has_failed ? CAIRN_ERR_NO_MEMORY : CAIRN_ERR_CLOSED);
        end(&talk);
    } while (has_failed);
    ck_assert_int_gt(n, 10);
}

TEST(a_seal_that_fails_can_be_tried_again)
{
    struct talk talk = { 0 };
    ends_make();
    ck_assert_int_eq(run(&talk), CAIRN_ERR_CLOSED); // of the first end's direction
    byte_queue_drop(&talk.plain, talk.plain.end - talk.plain.start);
    byte_queue_release(&talk.wire);
    allocations_left = 0;
    ck_assert_int_eq(channel_seal(talk.ends[1], "again", 5, 0, &talk.wire), CAIRN_ERR_NO_MEMORY);
    ck_assert_int_eq(channel_seal(talk.ends[1], "again", 5, 0, &talk.wire), CAIRN_OK);
    ck_assert_int_eq(deliver(&talk, 0), CAIRN_OK);
    ck_assert_uint_eq(talk.plain.end - talk.plain.start, 5);
    ck_assert_mem_eq(talk.plain.bytes + talk.plain.start, "again", 5);
    end(&talk);
}
SUITE(60);
