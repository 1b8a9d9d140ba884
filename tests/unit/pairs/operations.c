/* How each operation is asked for, and what holds it on its way. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "proto/snapshot/snapshot.h"
#include "tests/support/fake_shard.h"
#include "tests/support/reshard_toy.h"
#include "tests/unit/pairs/pairs.h"

#define TOY (wire_text("toy"))

static struct fake_shard *held(void)
{
    return &fake.shards[1];
}

static struct fake_peer *operator(bool is_second)
{
    return is_second ? &second : &admin;
}

static void put_made(struct question *q, struct fake_peer *peer, uint16_t type,
                     const ProtobufCMessage *message)
{
    q->peer = peer;
    q->request = fake_request(peer, type, message);
}
/* The question is that message of the peer's, with these fields. */
#define put(q, peer, type, ...) put_made(q, peer, MADE_##type, MADE(type, __VA_ARGS__))

/* ---- rounds ---- */

static void ask_round(struct question *q, bool is_second)
{
    (void)is_second;
    q->peer = &w;
    q->request = fake_ask_begin(&w, job);
}

static void ask_write(struct question *q, bool is_second)
{
    (void)is_second;
    put(q, &w, WriteBegin, .job = job);
}

static void end_round(struct question *q)
{
    q->is_answered = false;
    q->request = fake_ask_commit(&w, job, pairs_round);
    pairs_round = 0;
}

/* ---- snapshots ---- */

static void hold_part(void)
{
    held()->holds_part = true;
}

/* It waits a little where a step is near. */
static bool is_part_held(void)
{
    return held()->held_pin != 0;
}

static void ask_snapshot_of(struct question *q, bool is_second)
{
    q->peer = operator(is_second);
    q->request = ask_snapshot(q->peer, true);
}

static void ask_digest_of(struct question *q, bool is_second)
{
    q->peer = operator(is_second);
    q->request = ask_digest(q->peer);
}

static void ask_cancel(struct question *q, bool is_second)
{
    put(q, operator(is_second), SnapshotCancel, .job = TOY);
}

static const char first_id[] = "step-000000000001-g1";

static void ask_rm(struct question *q, bool is_second)
{
    put(q, operator(is_second), SnapshotRemove, .job = TOY, .id = wire_text(first_id),
        .force = true);
}

static void ask_prune(struct question *q, bool is_second)
{
    put(q, operator(is_second), SnapshotPrune, .job = TOY, .has_rules = true, .keep_last = 1);
}

static void ask_tag(struct question *q, bool is_second)
{
    put(q, operator(is_second), SnapshotTag, .job = TOY, .id = wire_text(first_id), .name = "best");
}

/* It begins by itself, with a snapshot that is committed. */
static void ask_scrub(struct question *q, bool is_second)
{
    (void)is_second;
    take_snapshot();
    q->peer = &admin;
    q->is_answered = true;
}

static void ask_restore_of(struct question *q, bool is_second)
{
    put(q, operator(is_second), SnapshotRestore, .job = TOY, .id = wire_text(first_id));
}

static void hold_create(void)
{
    held()->holds_create = true;
}

/* ---- the job ---- */

static void hold_park(void)
{
    held()->holds_park = true;
}

static void park(struct question *q, bool is_second, bool parked)
{
    put(q, operator(is_second), JobPark, .name = TOY, .parked = parked);
}

static void ask_park(struct question *q, bool is_second)
{
    park(q, is_second, true);
}

static void ask_unpark(struct question *q, bool is_second)
{
    park(q, is_second, false);
}

static void ask_extend(struct question *q, bool is_second)
{
    q->peer = &w;
    q->request = fake_amend_more(&w, job, is_second ? 32 : 31);
}

static void ask_amend(struct question *q, bool is_second)
{
    q->peer = operator(is_second);
    q->request = fake_ask_amend(q->peer,
                                (Cairn__JobAmend) { .name = TOY, .key = is_second ? 42 : 41 },
                                "clip_norm=%d", is_second ? 2 : 1);
}

static void hold_terms(void)
{
    held()->holds_terms = true;
}

static void drop_job(struct question *q, bool is_second, bool force)
{
    put(q, operator(is_second), JobRemove, .name = TOY, .force = force);
}

static void ask_drop_of(struct question *q, bool is_second)
{
    drop_job(q, is_second, false);
}

static void ask_drop_forced(struct question *q, bool is_second)
{
    drop_job(q, is_second, true);
}

static void hold_drop(void)
{
    held()->holds_drop = true;
}

/* ---- shards ---- */

static void hold_prepare(void)
{
    held()->move.holds_prepare = true;
}

static void hold_moved(void)
{
    held()->move.holds_moved = true;
}

static void ask_reshard_of(struct question *q, bool is_second)
{
    put(q, operator(is_second), ReshardAsk, .job = TOY, .op = CAIRN_RESHARD_APPLY, .shards = 3);
}

static void ask_reshard_cancel(struct question *q, bool is_second)
{
    put(q, operator(is_second), ReshardAsk, .job = TOY, .op = CAIRN_RESHARD_CANCEL);
}

static void ask_drain(struct question *q, bool is_second)
{
    put(q, operator(is_second), MemberDrain, .name = is_second ? s1 : s0, .wait = true);
}

/* ---- members ---- */

static void hold_join(void)
{
    held()->holds_join = true;
}

static void join(struct question *q, struct fake_peer *peer, uint32_t rank)
{
    q->peer = peer;
    q->request = fake_ask_open(peer, 50 + rank, rank, 1);
}

static void ask_join(struct question *q, bool is_second)
{
    joining[is_second] = worker(is_second ? "w2" : "w1");
    join(q, &joining[is_second], is_second ? 2 : 1);
}

/* Whoever comes first makes the job. */
static void ask_make(struct question *q, bool is_second)
{
    (void)is_second;
    join(q, &w, 0);
}

static void ask_init(struct question *q, bool is_second)
{
    (void)is_second;
    q->peer = &w;
    q->is_answered = true; // the source puts
}

static void end_init(struct question *q)
{
    q->is_answered = false;
    put(q, &w, InitDone, .job = job, .source = true);
}

static void hold_lease(void)
{
    held()->holds_lease = true;
}

static void ask_lease(struct question *q, bool is_second)
{
    put(q, is_second ? &w : &reader, LeaseTake, .job = job, .ttl_ms = 60000,
        .key = is_second ? 62 : 61);
}

/* ---- the cluster ---- */

static void hold_parts(void)
{
    held()->holds_parts = true;
}

static void ask_adopt(struct question *q, bool is_second)
{
    put(q, operator(is_second), ClusterAdopt);
}

static void ask_key(struct question *q, bool is_second)
{
    struct secret_key key;
    char line[CAIRN_KEY_LINE_BYTES];
    secret_key_make(&key);
    public_key_line(&key.public_key, line);
    put(q, operator(is_second), KeyTrust, .key = line);
}

static void ask_backup(struct question *q, bool is_second)
{
    char path[sizeof fake.folder + 16];
    snprintf(path, sizeof path, "%s/%s.db", fake.folder, is_second ? "other" : "copy");
    put(q, operator(is_second), ClusterBackup, .path = path);
}

/* ---- all ---- */

const struct pair_operation pairs_operations[] = {
    { .name = "round",
      .state = "it is open",
      .ask = ask_round,
      .end = end_round,
      .is_answered_first = true },
    { .name = "write",
      .state = "its round is open",
      .ask = ask_write,
      .end = end_round,
      .is_answered_first = true },
    { .name = "snapshot",
      .state = "a shard writes",
      .hold = hold_part,
      .is_held = is_part_held,
      .ask = ask_snapshot_of },
    { .name = "digest",
      .state = "a shard hashes",
      .hold = hold_part,
      .is_held = is_part_held,
      .ask = ask_digest_of },
    { .name = "snapshot-cancel", .ask = ask_cancel },
    { .name = "park", .state = "a shard moves its part", .hold = hold_park, .ask = ask_park },
    { .name = "parked",
      .is_only_running = true,
      .state = "it is, and nothing is under way",
      .needs = NEEDS_PARKED,
      .ask = ask_init,
      .is_answered_first = true },
    { .name = "unpark",
      .state = "a shard moves its part back",
      .needs = NEEDS_PARKED,
      .hold = hold_park,
      .ask = ask_unpark },
    { .name = "extend", .state = "a shard makes its part", .hold = hold_create, .ask = ask_extend },
    { .name = "amend", .state = "on its way to a shard", .hold = hold_terms, .ask = ask_amend },
    { .name = "amend-store",
      .is_only_running = true,
      .state = "on its way to the store",
      .hold = pairs_hold_store,
      .ask = ask_amend },
    { .name = "reshard",
      .state = "a shard makes room",
      .needs = NEEDS_THIRD,
      .hold = hold_prepare,
      .ask = ask_reshard_of,
      .is_answered_first = true },
    { .name = "reshard-moving",
      .is_only_running = true,
      .state = "a shard has not all that it owns",
      .needs = NEEDS_THIRD,
      .hold = hold_moved,
      .ask = ask_reshard_of,
      .is_answered_first = true },
    { .name = "reshard-cancel", .needs = NEEDS_THIRD, .ask = ask_reshard_cancel },
    { .name = "drain",
      .state = "a shard makes room",
      .needs = NEEDS_THIRD,
      .hold = hold_prepare,
      .ask = ask_drain },
    { .name = "make",
      .is_only_running = true,
      .state = "a shard makes its part",
      .scene = PAIRS_BARE,
      .hold = hold_create,
      .ask = ask_make },
    { .name = "init",
      .is_only_running = true,
      .state = "the source puts",
      .scene = PAIRS_MADE,
      .ask = ask_init,
      .end = end_init,
      .is_answered_first = true },
    { .name = "join", .state = "a shard hears of it", .hold = hold_join, .ask = ask_join },
    { .name = "lease",
      .state = "a shard keeps the version",
      .needs = NEEDS_READER,
      .hold = hold_lease,
      .ask = ask_lease },
    { .name = "drop", .ask = ask_drop_of },
    { .name = "drop-force",
      .state = "on its way out of the store",
      .hold = pairs_hold_store,
      .ask = ask_drop_forced },
    { .name = "drop-shards",
      .is_only_running = true,
      .state = "a shard gives its memory back",
      .hold = hold_drop,
      .ask = ask_drop_forced },
    { .name = "restore-check",
      .is_only_running = true,
      .state = "it is read",
      .needs = NEEDS_SNAPSHOT,
      .hold = pairs_hold_work,
      .ask = ask_restore_of },
    { .name = "restore",
      .state = "a shard loads its part",
      .needs = NEEDS_SNAPSHOT,
      .hold = hold_create,
      .ask = ask_restore_of },
    { .name = "adopt",
      .state = "a shard tells what it holds",
      .hold = hold_parts,
      .ask = ask_adopt },
    { .name = "rm",
      .state = "on a thread",
      .needs = NEEDS_SNAPSHOT,
      .hold = pairs_hold_work,
      .ask = ask_rm },
    { .name = "prune",
      .state = "on a thread",
      .needs = NEEDS_SNAPSHOT,
      .hold = pairs_hold_work,
      .ask = ask_prune },
    { .name = "tag", .needs = NEEDS_SNAPSHOT, .ask = ask_tag },
    { .name = "scrub",
      .is_only_running = true,
      .saves = true,
      .state = "it is read again",
      .hold = pairs_hold_scrub,
      .ask = ask_scrub,
      .is_answered_first = true },
    { .name = "key", .state = "on its way to the store", .hold = pairs_hold_store, .ask = ask_key },
    { .name = "backup",
      .state = "the file is written",
      .hold = pairs_hold_work,
      .ask = ask_backup },
};
const size_t pairs_operation_count = sizeof pairs_operations / sizeof *pairs_operations;
