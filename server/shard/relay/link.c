/* Connections of a relay to the owners (proto/link/chunk_link.h); an owner may be this very shard. */
#include "server/shard/relay/relay.h"

static struct cairn_relay_owner *owner_of(const struct cairn_chunk_link *link)
{
    return (struct cairn_relay_owner *)((char *)link - offsetof(struct cairn_relay_owner, link));
}

static struct cairn_shard *shard_of(const struct cairn_relay_owner *owner)
{
    return owner->relay->job->shard;
}

/* ---- hands ---- */

static void sign(const struct cairn_chunk_link *link, struct cairn_chunk_header *header)
{
    const struct cairn_relay *relay = owner_of(link)->relay;
    header->job = relay->job->number;
    header->member = relay->number;
    header->token = relay->token;
    if (header->kind == CAIRN_CHUNK_HELLO) header->value = 1; // a relay
}

bool cairn_relay_link_waits(const struct cairn_relay_owner *owner)
{
    return cairn_pusher_waits(&owner->forward.pusher, 0) || cairn_relay_fetch_waits(owner);
}

static bool waits(const struct cairn_chunk_link *link)
{
    return cairn_relay_link_waits(owner_of(link));
}

static void lost(struct cairn_chunk_link *link)
{
    struct cairn_relay_owner *owner = owner_of(link);
    owner->forward.grant = (struct cairn_chunk_header) { 0 };
    cairn_pusher_on_lost(&owner->forward.pusher, 0);
    cairn_relay_fetch_lost(owner);
}

static void down(struct cairn_chunk_link *link, cairn_status why)
{
    const struct cairn_relay_owner *owner = owner_of(link);
    cairn_log_info("job %s: the relay lost shard %s: %s", owner->relay->job->spec.name, owner->name,
                   cairn_status_text((int)why));
    cairn_relay_wake(shard_of(owner));
}

static void starved(struct cairn_chunk_link *link)
{
    const struct cairn_relay_owner *owner = owner_of(link);
    cairn_log_warn(
        "job %s: the relay has no memory to send to shard %s (%zu bytes at a time): raise the "
        "limits of this process (ulimit -v, memory.max, vm.max_map_count)",
        owner->relay->job->spec.name, owner->name, link->starved.bytes);
}

static void loan(struct cairn_chunk_link *link)
{
    cairn_relay_busy(owner_of(link)->relay);
}

static void loan_back(struct cairn_chunk_link *link)
{
    cairn_relay_idle(owner_of(link)->relay);
}

static const struct cairn_chunk_link_hands hands = {
    .sign = sign,
    .waits = waits,
    .lost = lost,
    .down = down,
    .starved = starved,
    .loan = loan,
    .loan_back = loan_back,
};

void cairn_relay_link_open(struct cairn_relay_owner *owner)
{
    owner->link.hands = &hands;
}

void cairn_relay_link_close(struct cairn_relay_owner *owner)
{
    if (shard_of(owner)->closing)
        cairn_chunk_link_forget(&owner->link);
    else
        cairn_chunk_link_close(&owner->link);
    cairn_relay_wake(shard_of(owner)); // it is told, and connected again, by a tick
}

/* An owner that is hung, the coordinator notices. This one it hears, and we do not: the way between is
 * broken, and the workers may have another. */
static void judge_silence(struct cairn_relay_owner *owner, uint64_t now_ms)
{
    if (cairn_chunk_link_silent_ms(&owner->link, now_ms) < owner->relay->silent_max_ms) return;
    cairn_relay_give_up(owner->relay, "shard %s does not answer shard %s", owner->name,
                        shard_of(owner)->name);
}

void cairn_relay_link_tick(struct cairn_relay_owner *owner, uint64_t now_ms)
{
    if (owner->link.peer != NULL) cairn_relay_fetch_tick(owner);
    cairn_chunk_link_tick(&owner->link, owner->relay->leaving ? NULL : shard_of(owner)->fabric,
                          owner->address, owner->address_bytes, now_ms);
    judge_silence(owner, now_ms);
}

void cairn_relay_link_on_hello(struct cairn_relay_owner *owner,
                               const struct cairn_chunk_header *header)
{
    if (cairn_chunk_link_on_hello(&owner->link, header->request)) cairn_relay_fetch_lost(owner);
    cairn_pusher_on_hello(&owner->forward.pusher, 0, header->request);
}
