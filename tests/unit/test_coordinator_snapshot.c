/* Snapshots, digests and restores of the coordinator, with shards that write real files of zeros. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/coordinator/base.h"
#include "server/coordinator/members.h"
#include "server/coordinator/store.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static void digest(uint8_t root_out[32], uint64_t *step_out)
{
    Cairn__JobDigest *d = fake_hear(&admin, JobDigest, ask_digest(&admin));
    ck_assert_uint_eq(d->root.len, 32);
    memcpy(root_out, d->root.data, 32);
    *step_out = d->step;
}

static size_t listed(void)
{
    Cairn__SnapshotList *list = list_snapshots();
    return list->n_snapshots;
}

/* ---- storage ---- */

static void tell_storage(uint32_t shard, const char *why)
{
    Cairn__ShardStats stats = CAIRN__SHARD_STATS__INIT;
    const struct coord_shard_entry *seat = coord_shard_find(fake.cluster, fake.shards[shard].name);
    fake_say(&fake.shards[shard].peer, 0, Heartbeat, .stats = &stats, .storage = wire_text(why));
    fake_until(&fake, strcmp(seat->storage.text, why) == 0);
}

static const char *status_of_shard(uint32_t shard, char *storage_out, size_t bytes)
{
    Cairn__ClusterStatus *status = fake_call(&admin, ClusterStatus, ClusterStatusGet);
    storage_out[0] = '\0';
    for (size_t i = 0; i < status->n_members; i++)
        if (strcmp(status->members[i]->name, fake.shards[shard].name) == 0)
            snprintf(storage_out, bytes, "%s", status->members[i]->storage);
    return storage_out;
}

TEST(a_shard_without_the_storage_refuses_snapshots_at_once)
{
    char storage[256];
    tell_storage(1, "/snapshots is another folder here");
    fake_expect_error(&admin, ask_snapshot(&admin, true), CAIRN_ERR_IO,
                      "shard s1 cannot save: /snapshots is another folder here");
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_PIN], 0);
    ck_assert_str_eq(status_of_shard(1, storage, sizeof storage),
                     "/snapshots is another folder here");
    ck_assert_str_eq(status_of_shard(0, storage, sizeof storage), "");
    train(); // and everything else goes on
    uint8_t root[32];
    uint64_t step;
    digest(root, &step);
    tell_storage(1, "");
    ck_assert_str_eq(take_snapshot()->state, "committed");
}

TEST(what_a_shard_says_of_the_storage_ends_with_its_connection)
{
    char storage[256];
    tell_storage(1, "it hangs");
    fake_shard_blink(&fake, 1);
    ck_assert_str_eq(status_of_shard(1, storage, sizeof storage), "");
}

TEST(storage_that_is_gone_is_no_empty_list)
{
    char away[sizeof fake.snapshots + 8];
    snprintf(away, sizeof away, "%s.gone", fake.snapshots);
    ck_assert_int_eq(rename(fake.snapshots, away), 0);
    fake_expect_error(&admin, fake_ask(&admin, SnapshotListGet), CAIRN_ERR_IO,
                      "is the storage mounted?");
    ck_assert_int_eq(rename(away, fake.snapshots), 0);
    ck_assert_uint_eq(listed(), 0);
}

/* ---- taking ---- */

TEST(a_snapshot_is_committed_listed_and_shown)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    ck_assert_str_eq(s->state, "committed");
    ck_assert_str_eq(s->job, "toy");
    ck_assert_uint_eq(s->step, 1);
    ck_assert_uint_eq(s->shards, 2);
    ck_assert_uint_ge(s->files, 2);
    ck_assert_uint_ge(s->bytes, 3 * 4 * (131072 + 10));
    ck_assert_uint_eq(listed(), 1);
    uint8_t root[32];
    uint64_t step;
    digest(root, &step);
    ck_assert_mem_eq(root, s->content_root.data, 32);
    Cairn__SnapshotStatus *again = fake_call(&admin, SnapshotStatus, SnapshotShow, .job = "toy",
                                             .id = s->id);
    ck_assert_str_eq(again->path, s->path);
    ck_assert_uint_eq(again->bytes, s->bytes);
    train();
}

TEST(a_worker_may_ask_and_go_on_before_it_is_committed)
{
    fake.shards[0].holds_part = true;
    ck_assert_str_eq(fake_hear(&w, SnapshotStatus, ask_snapshot(&w, false))->state, "writing");
    train();
    ck_assert_uint_eq(listed(), 0);
    fake_expect_error(&admin, ask_snapshot(&admin, true), CAIRN_ERR_BUSY, "is being taken");
}

TEST(a_failed_part_fails_the_set_and_leaves_nothing)
{
    fake.shards[1].fail_part = "model/shard-00002: no space left";
    uint32_t request = ask_snapshot(&admin, true);
    fake_expect_error(&admin, request, CAIRN_ERR_NO_SPACE, "s1: model/shard-00002: no space");
    ck_assert_uint_eq(listed(), 0);
    ck_assert_uint_eq(snapshot_folders(), 0);
    train();
    fake.shards[1].fail_part = NULL;
    take_snapshot();
    ck_assert_uint_eq(listed(), 1);
}

TEST(a_shard_that_goes_away_while_writing_fails_the_set)
{
    fake.shards[0].holds_part = true;
    const uint32_t request = ask_snapshot(&admin, true);
    fake_until(&fake, fake.shards[0].seen[CAIRN_MSG_PIN] == 1);
    fake_shard_away(&fake, 0);
    fake_expect_error(&admin, request, CAIRN_ERR_CLOSED, "s0: it went away while writing");
    ck_assert_uint_eq(snapshot_folders(), 0);
    fake_shard_up(&fake, 0);
    train();
}

static void until_only_s1_is_awaited(void)
{
    for (bool only = false; !only;) {
        Cairn__Awaited *awaited = fake_call(&admin, Awaited, WhoIsAwaited, .job = job, .cut = true);
        only = strstr(awaited->text, "s0") == NULL && strstr(awaited->text, "s1") != NULL;
    }
}

TEST(a_second_cut_is_told_which_shard_is_awaited)
{
    fake.shards[1].holds_part = true;
    const uint32_t first = ask_digest(&admin);
    until_only_s1_is_awaited();
    fake_expect_error(&admin, ask_snapshot(&admin, true), CAIRN_ERR_BUSY, "waits for shard s1;");
    fake_shard_away(&fake, 1);
    fake_expect_error(&admin, first, CAIRN_ERR_CLOSED, "s1");
    fake_shard_up(&fake, 1);
    train();
}

TEST(a_digest_whose_asker_is_gone_gives_way_to_a_snapshot)
{
    struct fake_peer asker = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "asker");
    fake_shard_away(&fake, 1);
    ask_digest(&asker); // waits for s1
    fake_expect_error(&asker, ask_snapshot(&asker, true), CAIRN_ERR_BUSY, "shard s1 (it is away)");
    fake_peer_close(&asker);
    uint32_t request = 0;
    for (bool taken = false; !taken;) { // when the coordinator has seen the end
        request = ask_snapshot(&admin, true);
        const uint32_t last = fake_ask(&admin, WhoIsAwaited);
        struct wire_frame frame;
        bool answered = false;
        taken = true;
        while (!answered) {
            fake_pump(&fake);
            fake_peer_read(&admin);
            while (fake_peer_next(&admin, &frame)) {
                if (frame.request == request) taken = false; // an Error: BUSY
                if (frame.request == last) answered = true;
            }
        }
    }
    fake_shard_up(&fake, 1);
    ck_assert_str_eq(fake_hear(&admin, SnapshotStatus, request)->state, "committed");
    ck_assert_uint_eq(listed(), 1);
}

TEST(a_snapshot_of_no_job_is_refused)
{
    fake_expect_error(&admin, fake_ask(&admin, SnapshotCreate, .job = "nothing"),
                      CAIRN_ERR_NOT_FOUND, "nothing");
}

TEST(a_coordinator_killed_while_a_set_is_written_lists_nothing)
{
    fake.shards[0].holds_part = true;
    ask_snapshot(&admin, true);
    fake_until(&fake, fake.shards[0].seen[CAIRN_MSG_PIN] == 1);
    restart_coordinator();
    ck_assert_uint_eq(listed(), 0);
}

/* ---- restoring ---- */

/* On a new connection. */
static void open_again(uint64_t step, uint64_t generation)
{
    come_again("w0");
    Cairn__Attached *attached = fake_hear(&w, Attached, fake_ask_open(&w, 10, 0, 1));
    ck_assert_uint_eq(attached->step, step);
    ck_assert_uint_eq(attached->generation, generation);
    ck_assert(attached->initialized);
    job = attached->job;
    ck_assert_uint_eq(train(), step + 1);
}

/* The worker is told; it opens again and goes on behind the snapshot's step. */
static void go_on_from(uint64_t step, uint64_t generation)
{
    fake_expect_error(&w, 0, CAIRN_ERR_ROLLED_BACK, "open it again");
    open_again(step, generation);
}

TEST(a_restore_goes_back_to_the_snapshot_in_a_new_generation)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    train();
    train();
    Cairn__SnapshotStatus *done = fake_hear(&admin, SnapshotStatus, ask_restore("toy", s->id, ""));
    ck_assert_uint_eq(done->step, 1);
    ck_assert_str_eq(fake.shards[0].snapshot_path, s->path);
    ck_assert_uint_gt(fake.shards[0].last.payload_bytes, 0); // the schedule and the loss scale
    uint8_t root[32];
    uint64_t step;
    digest(root, &step);
    ck_assert_mem_eq(root, s->content_root.data, 32);
    go_on_from(1, 2);
}

TEST(a_restored_job_survives_the_coordinator)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    uint32_t request = ask_restore("toy", s->id, "");
    fake_hear(&admin, SnapshotStatus, request);
    go_on_from(1, 2);
    fake_coordinator_restart(&fake);
    fake_shards_up(&fake, 2);
    come_again("w0");
    job = fake_attach(&w, 10, 0, 1);
    fake_init(&w, job);
    ck_assert_uint_eq(train(), 3);
}

TEST(a_snapshot_is_restored_to_another_number_of_shards)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    uint8_t root[32];
    uint64_t step;
    char line[CAIRN_KEY_LINE_BYTES];
    public_key_line(&coord_keys_signer(fake.cluster)->public_key, line);
    for (uint32_t i = 0; i < 2; i++) fake_shard_forget(&fake, i);
    fake_coordinator_stop(&fake);
    fake.options.shards = 5;
    snprintf(fake.store, sizeof fake.store, "%s/store-of-five", fake.folder); // a new cluster
    fake_coordinator_start(&fake);
    fake_peer_close(&admin);
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "ctl");
    uint32_t request = fake_ask(&admin, KeyTrust, .key = line);
    fake_hear(&admin, Keys, request);
    request = ask_restore("", "", s->path);
    fake_expect_error(&admin, request, CAIRN_ERR_NOT_READY, "5 shards are needed, 0 are up");
    fake_shards_up(&fake, 5);
    request = ask_restore("", "", s->path);
    fake_hear(&admin, SnapshotStatus, request);
    digest(root, &step);
    ck_assert_uint_eq(step, 1);
    ck_assert_mem_eq(root, s->content_root.data, 32);
}

TEST(a_lost_job_is_brought_back_by_a_restore)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    train();
    fake_shard_renew(&fake, 1);
    fake_until(&fake, toy()->state == CAIRN_CLUSTER_JOB_LOST);
    Cairn__JobStatus *status = show_job("toy");
    ck_assert_str_eq(status->state, "lost");
    ck_assert_ptr_nonnull(strstr(status->awaited, "cairn snapshot restore"));
    expect_snapshot(ask_restore("toy", s->id, ""));
    open_again(1, 2);
}

TEST(a_damaged_snapshot_is_refused_and_training_goes_on)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    char file[512];
    snprintf(file, sizeof file, "%s/model/shard-00001-model-00001-of-00001.safetensors", s->path);
    ck_assert_int_eq(truncate(file, 100), 0);
    uint32_t request = ask_restore("toy", s->id, "");
    fake_expect_error(&admin, request, CAIRN_ERR_CORRUPT, "shard-00001");
    ck_assert_int_eq(unlink(file), 0);
    request = ask_restore("toy", s->id, "");
    fake_expect_error(&admin, request, CAIRN_ERR_CORRUPT, "shard-00001");
    train();
    request = ask_restore("toy", "step-000000000077-g1", "");
    fake_expect_error(&admin, request, CAIRN_ERR_NOT_FOUND, "step-000000000077-g1");
    request = ask_restore("toy", "../../etc", "");
    fake_expect_error(&admin, request, CAIRN_ERR_INVALID, "../../etc");
}

TEST(a_restore_that_fails_on_a_shard_leaves_the_job_lost_and_says_so)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    fake.shards[0].refuse_create = "the file cannot be read";
    uint32_t request = ask_restore("toy", s->id, "");
    fake_expect_error(&admin, request, CAIRN_ERR_NO_MEMORY, "the file cannot be read");
    fake.shards[0].refuse_create = NULL;
    request = ask_restore("toy", s->id, "");
    fake_hear(&admin, SnapshotStatus, request);
    ck_assert_uint_eq(fake.shards[0].generation, 3); // 2 was used up
}

/* ---- what admins see ---- */

TEST(status_tells_of_shards_workers_and_jobs)
{
    uint32_t request = fake_ask(&admin, ClusterStatusGet);
    Cairn__ClusterStatus *status = fake_hear(&admin, ClusterStatus, request);
    ck_assert_str_eq(status->cluster, "test");
    ck_assert_uint_eq(status->coordinator_incarnation, 1);
    ck_assert_uint_eq(status->n_members, 3);
    ck_assert_str_eq(status->members[0]->name, "s0");
    ck_assert_str_eq(status->members[0]->state, "up");
    ck_assert_uint_eq(status->job_count, 1);
    request = fake_ask(&admin, JobListGet);
    Cairn__JobList *list = fake_hear(&admin, JobList, request);
    ck_assert_uint_eq(list->n_jobs, 1);
    ck_assert_str_eq(list->jobs[0]->state, "running");
    ck_assert_uint_eq(list->jobs[0]->step, 1);
    ck_assert_uint_eq(list->jobs[0]->steps_applied, 1);
    ck_assert_uint_eq(list->jobs[0]->workers, 1);
    ck_assert_uint_eq(list->jobs[0]->elems, 131072 + 10);
    ck_assert_uint_eq(list->jobs[0]->shards_told, 0); // these shards say nothing of themselves
    ck_assert_double_eq(list->jobs[0]->last_grad_norm, 2.0 * 1.4142135623730951);
}

/* A job of 1,024 groups with the longest names: a third of a frame in a list. */
static uint32_t ask_wide_job(const char *name, uint64_t session)
{
    struct job_spec_data spec = fake_spec(1);
    struct group_spec group = group_default();
    struct tensor_spec tensor = spec.tensors[0];
    char text[CAIRN_NAME_MAX + 1];
    group.name = tensor.name = tensor.group = text;
    group.optimizer = "adamw";
    tensor.shape = (struct shape) { .rank = 1, .dim = { 1 } };
    for (int i = 1; i < CAIRN_SPEC_GROUPS_MAX; i++) {
        snprintf(text, sizeof text, "%0*d", CAIRN_NAME_MAX, i);
        ck_assert_int_eq(spec_add_group(&spec, &group), CAIRN_OK);
        ck_assert_int_eq(spec_add_tensor(&spec, &tensor), CAIRN_OK);
    }
    ck_assert_int_eq(spec_set_name(&spec, name), CAIRN_OK);
    spec_canonicalize(&spec);
    const uint32_t request = fake_job_open(&w, &spec, session, 0);
    spec_release(&spec);
    return request;
}

/* Queued as a whole, it cost every shard its connection, and with it every job its round. */
TEST(a_job_larger_than_the_send_queue_is_made_and_nobody_loses_its_connection)
{
    fake_coordinator_stop(&fake);
    fake.options.network.send_queue_bytes = 512 << 10;
    fake_coordinator_start(&fake);
    fake_shards_up(&fake, 2);
    come_again("w0");
    job = fake_attach(&w, 11, 0, 1);
    ck_assert_uint_gt(fake_hear(&w, Attached, ask_wide_job("wide", 20))->spec_bytes, 512 << 10);
    for (int i = 0; i < 2; i++) ck_assert(!fake.shards[i].peer.ended);
}

TEST(an_answer_larger_than_a_frame_is_an_error_and_no_silence)
{
    static char text[2 << 20];
    const uint32_t request = admin.last_request + 1; // as if it had asked
    struct coord_session *session = fake.cluster->sessions;
    Cairn__JobStatus large = CAIRN__JOB_STATUS__INIT;
    while (session->role != CAIRN_ROLE_WIRE_ADMIN) session = session->next;
    large.awaited = memset(text, 'x', sizeof text - 1);
    coord_session_send(session, CAIRN_MSG_JOB_STATUS, request, &large.base);
    fake_expect_error(&admin, request, CAIRN_ERR_UNSUPPORTED, "larger than a frame");
}

TEST(a_list_of_jobs_larger_than_a_frame_is_told_without_what_show_has)
{
    const char *const names[] = { "wide-0", "wide-1", "wide-2", "wide-3" };
    for (size_t i = 0; i < 4; i++) {
        fake_hear(&w, Attached, ask_wide_job(names[i], 20 + i));
    }
    Cairn__JobList *list = fake_call(&admin, JobList, JobListGet);
    ck_assert_uint_eq(list->n_jobs, 5);
    for (size_t i = 0; i < 5; i++) {
        ck_assert_uint_eq(list->jobs[i]->n_groups, 0);
        ck_assert_uint_gt(list->jobs[i]->tensors, 0);
        ck_assert_ptr_nonnull(list->jobs[i]->spec);
    }
    Cairn__JobStatus *status = show_job("wide-3");
    ck_assert_str_eq(status->state, "initializing");
    ck_assert_uint_gt(status->n_groups, 1);
}

SUITE(30, open_trained, close_fake);
