/* For how long a link has had no memory to send what is awaited: by what could not be sent, by what went
 * since, and by whether anything is awaited at all. For how long the other end is silent. */
#include <check.h>

#include "proto/link/link.h"
#include "tests/support/suite.h"

static bool is_awaited;
static unsigned told;

static bool waits(const struct chunk_link *link)
{
    (void)link;
    return is_awaited;
}

static void starved(struct chunk_link *link)
{
    (void)link;
    told++;
}

static const struct chunk_link_callbacks hands = { .waits = waits, .starved = starved };

static uint64_t starved_at(struct chunk_link *link, uint64_t now_ms)
{
    chunk_link_tick(link, NULL, NULL, 0, now_ms);
    return chunk_link_starved_ms(link, now_ms);
}

TEST(what_could_not_be_sent_is_told_until_as_much_goes)
{
    struct chunk_link link = { .callbacks = &hands };
    is_awaited = true;
    ck_assert_uint_eq(starved_at(&link, 1000), 0);
    chunk_link_note_memory(&link, CAIRN_ERR_NO_MEMORY, 4096);
    ck_assert_uint_eq(starved_at(&link, 2000), 0);
    chunk_link_note_memory(&link, CAIRN_OK, 0); // a header goes all the same
    ck_assert_uint_eq(starved_at(&link, 3500), 1500);
    ck_assert_uint_eq(told, 1);
    chunk_link_note_memory(&link, CAIRN_OK, 4096);
    ck_assert_uint_eq(starved_at(&link, 4000), 0);
    ck_assert_uint_eq(told, 1);
}

/* A round was given up, and nothing as large is sent any more: a shard that is slow later is no want of
 * memory. */
TEST(what_nobody_awaits_any_more_is_not_held_against_what_is_awaited_later)
{
    struct chunk_link link = { .callbacks = &hands };
    is_awaited = true;
    chunk_link_note_memory(&link, CAIRN_ERR_NO_MEMORY, 4096);
    ck_assert_uint_eq(starved_at(&link, 1000), 0);
    is_awaited = false;
    ck_assert_uint_eq(starved_at(&link, 2000), 0);
    is_awaited = true;
    chunk_link_note_memory(&link, CAIRN_OK, 100);
    ck_assert_uint_eq(starved_at(&link, 3000), 0);
    ck_assert_uint_eq(starved_at(&link, 9000), 0);
    ck_assert_uint_eq(told, 0);
}

static uint64_t silent_at(struct chunk_link *link, uint64_t now_ms)
{
    chunk_link_tick(link, NULL, NULL, 0, now_ms);
    return chunk_link_silent_ms(link, now_ms);
}

/* No connection stands, which changes nothing of it. */
TEST(a_silence_lasts_while_something_is_awaited_and_nothing_comes)
{
    struct chunk_link link = { .callbacks = &hands };
    is_awaited = true;
    ck_assert_uint_eq(silent_at(&link, 10000), 0); // the first look
    ck_assert_uint_eq(silent_at(&link, 10500), 500);
    ck_assert_uint_eq(silent_at(&link, 11400), 1400);
    ck_assert(chunk_link_heard(&link));
    ck_assert_uint_eq(silent_at(&link, 12000), 0);
    ck_assert_uint_eq(silent_at(&link, 12900), 900);
    is_awaited = false;
    ck_assert_uint_eq(silent_at(&link, 13000), 0);
    is_awaited = true;
    ck_assert_uint_eq(silent_at(&link, 13900), 900);
    ck_assert_uint_eq(chunk_link_silent_ms(&link, 16000), 0); // nobody has looked
    ck_assert_uint_eq(silent_at(&link, 20000), 0);            // this process was stopped
    ck_assert_uint_eq(silent_at(&link, 20800), 800);
}

SUITE(10);
