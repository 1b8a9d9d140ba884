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

static void put(struct question *q, struct fake_peer *peer, uint16_t type,
                const ProtobufCMessage *message)
{
    q->peer = peer;
    q->request = fake_request(peer, type, message);
}

/* ---- rounds ---- */

static void ask_round(struct question *q, bool is_second)
{
    (void)is_second;
    q->peer = &w;
    q->request = fake_ask_begin(&w, job);
}

static void ask_write(struct question *q, bool is_second)
{
    Cairn__WriteBegin begin = CAIRN__WRITE_BEGIN__INIT;
    (void)is_second;
    begin.job = job;
    put(q, &w, CAIRN_MSG_WRITE_BEGIN, &begin.base);
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
    Cairn__SnapshotCancel cancel = CAIRN__SNAPSHOT_CANCEL__INIT;
    cancel.job = TOY;
    put(q, operator(is_second), CAIRN_MSG_SNAPSHOT_CANCEL, &cancel.base);
}

static const char first_id[] = "step-000000000001-g1";

static void ask_rm(struct question *q, bool is_second)
{
    Cairn__SnapshotRemove rm = CAIRN__SNAPSHOT_REMOVE__INIT;
    rm.job = TOY;
    rm.id = wire_text(first_id);
    rm.force = true;
    put(q, operator(is_second), CAIRN_MSG_SNAPSHOT_REMOVE, &rm.base);
}

static void ask_prune(struct question *q, bool is_second)
{
    Cairn__SnapshotPrune prune = CAIRN__SNAPSHOT_PRUNE__INIT;
    prune.job = TOY;
    prune.has_rules = true;
    prune.keep_last = 1;
    put(q, operator(is_second), CAIRN_MSG_SNAPSHOT_PRUNE, &prune.base);
}

static void ask_tag(struct question *q, bool is_second)
{
    Cairn__SnapshotTag tag = CAIRN__SNAPSHOT_TAG__INIT;
    tag.job = TOY;
    tag.id = wire_text(first_id);
    tag.name = "best";
    put(q, operator(is_second), CAIRN_MSG_SNAPSHOT_TAG, &tag.base);
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
    Cairn__SnapshotRestore restore = CAIRN__SNAPSHOT_RESTORE__INIT;
    restore.job = TOY;
    restore.id = wire_text(first_id);
    put(q, operator(is_second), CAIRN_MSG_SNAPSHOT_RESTORE, &restore.base);
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
    Cairn__JobPark message = CAIRN__JOB_PARK__INIT;
    message.name = TOY;
    message.parked = parked;
    put(q, operator(is_second), CAIRN_MSG_JOB_PARK, &message.base);
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
    Cairn__JobAmend amend = CAIRN__JOB_AMEND__INIT;
    amend.name = TOY;
    amend.key = is_second ? 42 : 41;
    fake_set(&amend, "clip_norm=%d", is_second ? 2 : 1);
    put(q, operator(is_second), CAIRN_MSG_JOB_AMEND, &amend.base);
}

static void hold_terms(void)
{
    held()->holds_terms = true;
}

static void drop_job(struct question *q, bool is_second, bool force)
{
    Cairn__JobRemove remove = CAIRN__JOB_REMOVE__INIT;
    remove.name = TOY;
    remove.force = force;
    put(q, operator(is_second), CAIRN_MSG_JOB_REMOVE, &remove.base);
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
    Cairn__ReshardAsk ask = question(CAIRN_RESHARD_APPLY);
    ask.shards = 3;
    put(q, operator(is_second), CAIRN_MSG_RESHARD_ASK, &ask.base);
}

static void ask_reshard_cancel(struct question *q, bool is_second)
{
    const Cairn__ReshardAsk ask = question(CAIRN_RESHARD_CANCEL);
    put(q, operator(is_second), CAIRN_MSG_RESHARD_ASK, &ask.base);
}

static void ask_drain(struct question *q, bool is_second)
{
    Cairn__MemberDrain drain = CAIRN__MEMBER_DRAIN__INIT;
    drain.name = is_second ? s1 : s0;
    drain.wait = true;
    put(q, operator(is_second), CAIRN_MSG_MEMBER_DRAIN, &drain.base);
}

/* ---- members ---- */

static void hold_join(void)
{
    held()->holds_join = true;
}

static void join(struct question *q, struct fake_peer *peer, uint32_t rank)
{
    struct job_spec_data spec = fake_spec(1);
    q->peer = peer;
    q->request = fake_job_open(peer, &spec, 50 + rank, rank);
    spec_release(&spec);
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
    Cairn__InitDone done = CAIRN__INIT_DONE__INIT;
    done.job = job;
    done.source = true;
    q->is_answered = false;
    put(q, &w, CAIRN_MSG_INIT_DONE, &done.base);
}

static void hold_lease(void)
{
    held()->holds_lease = true;
}

static void ask_lease(struct question *q, bool is_second)
{
    Cairn__LeaseTake take = CAIRN__LEASE_TAKE__INIT;
    take.job = job;
    take.ttl_ms = 60000;
    take.key = is_second ? 62 : 61;
    put(q, is_second ? &w : &reader, CAIRN_MSG_LEASE_TAKE, &take.base);
}

/* ---- the cluster ---- */

static void hold_parts(void)
{
    held()->holds_parts = true;
}

static void ask_adopt(struct question *q, bool is_second)
{
    const Cairn__ClusterAdopt adopt = CAIRN__CLUSTER_ADOPT__INIT;
    put(q, operator(is_second), CAIRN_MSG_CLUSTER_ADOPT, &adopt.base);
}

static void ask_key(struct question *q, bool is_second)
{
    Cairn__KeyTrust trust = CAIRN__KEY_TRUST__INIT;
    struct secret_key key;
    char line[CAIRN_KEY_LINE_BYTES];
    secret_key_make(&key);
    public_key_line(&key.public_key, line);
    trust.key = line;
    put(q, operator(is_second), CAIRN_MSG_KEY_TRUST, &trust.base);
}

static void ask_backup(struct question *q, bool is_second)
{
    char path[sizeof fake.folder + 16];
    Cairn__ClusterBackup backup = CAIRN__CLUSTER_BACKUP__INIT;
    snprintf(path, sizeof path, "%s/%s.db", fake.folder, is_second ? "other" : "copy");
    backup.path = path;
    put(q, operator(is_second), CAIRN_MSG_CLUSTER_BACKUP, &backup.base);
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
