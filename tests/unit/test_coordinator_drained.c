/* A shard that has been drained is told to end until it has heard so. */
#include <check.h>
#include <string.h>

#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/member/seats.h"
#include "tests/support/fake_move.h"
#include "tests/support/fake_shard.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static struct cairn_cluster_seat *seat_of_s0(void)
{
    return cairn_cluster_seat_find(fake.cluster, "s0");
}

/* Shard 0 holds nothing any more, and was told to end. */
static void drain(void)
{
    Cairn__MemberDrain message = CAIRN__MEMBER_DRAIN__INIT;
    message.name = fake.shards[0].name;
    message.wait = true;
    const uint32_t request = fake_request(&admin, CAIRN_MSG_MEMBER_DRAIN, &message.base);
    for (int i = 0; i < 50 && !fake.shards[0].move.is_ended; i++) {
        train();
        for (int k = 0; k < 20; k++) fake_pump(&fake);
    }
    ck_assert(fake.shards[0].move.is_ended);
    cairn_message_free(fake_expect(&fake, &admin, CAIRN_MSG_DONE, request));
}

static uint32_t times_drained(void)
{
    Cairn__EventsGet get = CAIRN__EVENTS_GET__INIT;
    const uint32_t request = fake_request(&admin, CAIRN_MSG_EVENTS_GET, &get.base);
    Cairn__Events *told = fake_expect(&fake, &admin, CAIRN_MSG_EVENTS, request);
    uint32_t times = 0;
    for (size_t i = 0; i < told->n_events; i++)
        times += strcmp(told->events[i]->kind, "drain-ended") == 0;
    cairn_message_free(&told->base);
    return times;
}

TEST(a_drained_shard_that_comes_back_has_not_heard_that_it_is_to_end)
{
    drain();
    for (int i = 0; i < 2; i++) {
        fake.shards[0].move.is_ended = false; // its connection broke first
        fake_shard_away(&fake, 0);
        ck_assert_ptr_null(seat_of_s0());
        fake_shard_up(&fake, 0);
        fake_until(&fake, fake.shards[0].move.is_ended);
    }
    ck_assert_uint_eq(times_drained(), 1);
}

TEST(a_drained_shard_that_comes_before_it_is_missed_is_told_again)
{
    drain();
    struct fake_peer first = fake.shards[0].peer;
    fake.shards[0].move.is_ended = false;
    fake.shards[0].peer.fd = -1;
    fake_shard_up(&fake, 0);
    fake_until(&fake, fake.shards[0].move.is_ended);
    fake_peer_close(&first);
}

TEST(another_process_of_its_name_is_a_new_shard)
{
    drain();
    fake_shard_forget(&fake, 0);
    fake.shards[0].move.is_ended = false;
    fake_shard_up(&fake, 0);
    for (int k = 0; k < 50; k++) fake_pump(&fake);
    ck_assert(!fake.shards[0].move.is_ended && !seat_of_s0()->leaving);
}

SUITE(60, open_ticking, close_fake);
