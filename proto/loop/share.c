#include "proto/loop/loop.h"

#define SHARE_NS (CAIRN_STREAM_SHARE_US * UINT64_C(1000))
#define BURST_NS (CAIRN_STREAM_BURST_MS * UINT64_C(1000000))

void share_claim(struct share_claim *claim, struct stream_share *share)
{
    *claim = (struct share_claim) { share, share->turn - 1, share->round - 1 };
}

/* A stream asks once a turn of the loop, so one that asks again begins another turn; and if nobody was served
 * in a turn, all have been in this round. */
bool share_take(struct share_claim *claim)
{
    struct stream_share *share = claim->share;
    if (claim->turn == share->turn) {
        if (share->served == 0) share->round++;
        share->turn++;
        share->served = 0;
        share->used_ns = 0;
    }
    claim->turn = share->turn;
    if (share->used_ns >= SHARE_NS || claim->round == share->round) return false;
    claim->round = share->round;
    share->served++;
    return true;
}

uint64_t share_left_ns(const struct stream_share *share)
{
    return share->used_ns < SHARE_NS ? SHARE_NS - share->used_ns : 0;
}

uint64_t share_rest_ms(const struct stream_share *share, uint64_t now_ns)
{
    const uint64_t free_ns = now_ns + BURST_NS;
    return share->paid_ns > free_ns ? (share->paid_ns - free_ns) / 1000000 + 1 : 0;
}

void share_pay(struct stream_share *share, uint64_t begin_ns, uint64_t now_ns)
{
    share->used_ns += now_ns - begin_ns;
    if (share->paid_ns < begin_ns) share->paid_ns = begin_ns;
    share->paid_ns += (now_ns - begin_ns) * CAIRN_STREAM_SHARE_OF;
}
