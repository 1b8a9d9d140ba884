/* Snapshots on a storage that is no file system: taken, listed, verified, restored, removed and pruned by a
 * coordinator as on folders, whatever call of the storage fails. The shards are fake ones. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "proto/store/confine.h"
#include "tests/support/memory_storage.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

#define ROOT "mem:elsewhere"

static void open_elsewhere(void)
{
    cairn_memory_storage_open();
    open_fake();
    fake_coordinator_stop(&fake);
    fake.options.snapshots_path = wire_text(ROOT);
    fake_coordinator_start(&fake);
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "ctl");
    start_trained();
}

/* Of the id: all of it was read, and is good. */
static bool is_good(const char *id)
{
    struct snapshot_words words;
    bool good = false;
    if (snapshot_words_load(ROOT, "toy", &words, NULL) == CAIRN_OK) {
        const struct snapshot_check *check = snapshot_words_check(&words, id);
        good = check != NULL && check->is_good;
    }
    snapshot_words_release(&words);
    return good;
}

static Cairn__SnapshotStatus *take_good(void)
{
    Cairn__SnapshotStatus *s = take_snapshot();
    fake_until(&fake, is_good(s->id));
    return s;
}

static void count_one(void *context, const char *name, const char *id, const char *folder)
{
    (void)name;
    (void)id;
    (void)folder;
    ++*(size_t *)context;
}

static size_t committed(void)
{
    size_t count = 0;
    ck_assert_int_eq(snapshot_list(ROOT, "toy", count_one, &count, NULL), CAIRN_OK);
    return count;
}

TEST(one_is_taken_listed_verified_restored_and_removed)
{
    Cairn__SnapshotStatus *first = take_good();
    train();
    Cairn__SnapshotStatus *second = take_good();
    Cairn__SnapshotList *list = list_snapshots();
    ck_assert_uint_eq(list->n_snapshots, 2);
    ck_assert_str_eq(list->snapshots[0]->id, second->id);
    ck_assert(list->snapshots[0]->latest && list->snapshots[0]->checked_unix_ms > 0);
    Cairn__SnapshotStatus *done = fake_hear(&admin, SnapshotStatus,
                                            ask_restore("toy", first->id, ""));
    ck_assert_uint_eq(done->step, 1);
    ck_assert_uint_eq(done->restored_generation, 2);
    fake_expect_error(&admin, ask_restore("toy", "step-000000000009-g1", ""), CAIRN_ERR_NOT_FOUND,
                      "there is no snapshot");
    Cairn__SnapshotRemoved *removed = fake_call(&admin, SnapshotRemoved, SnapshotRemove,
                                                .job = second->job, .id = second->id);
    ck_assert_uint_ge(removed->bytes, second->bytes);
    ck_assert_uint_eq(committed(), 1);
    ck_assert_uint_eq(snapshot_folders(), 0); // of the path that it has no more
    ck_assert_int_ne(access(ROOT, F_OK), 0);  // nor is the name taken for a path
}

TEST(a_damaged_one_gives_way_to_an_older_one)
{
    Cairn__SnapshotStatus *old = take_good();
    struct manifest m;
    size_t count;
    train();
    Cairn__SnapshotStatus *new = take_good();
    ck_assert_int_eq(manifest_load(new->path, &m, NULL), CAIRN_OK);
    uint8_t *bytes = cairn_memory_storage_bytes(new->path, m.files[0].path, &count);
    bytes[count - 1] ^= 1;
    Cairn__SnapshotStatus *done = fake_call(&admin, SnapshotStatus, SnapshotRestore,
                                            .job = new->job, .id = new->id, .fallback = true);
    ck_assert_str_eq(done->id, old->id);
    manifest_release(&m);
}

TEST(whatever_it_reads_of_them_it_reads_with_no_right_to_read_anything_else)
{
    Cairn__SnapshotStatus *taken = take_good();
    if (confine_version() == 0) return;
    const uint64_t by_who_wrote_it = cairn_memory_storage_opened(false);
    ck_assert_uint_ge(cairn_memory_storage_opened(true),
                      2); // after it was written, and by the scrub
    (void)list_snapshots();
    ck_assert_uint_ge(cairn_memory_storage_opened(true), 3);
    (void)fake_hear(&admin, SnapshotStatus, ask_restore("toy", taken->id, ""));
    ck_assert_uint_ge(cairn_memory_storage_opened(true), 4);
    // The two shards, which are fake ones, open it as they like.
    ck_assert_uint_eq(cairn_memory_storage_opened(false), by_who_wrote_it + 2);
}

TEST(old_periodic_ones_are_pruned)
{
    amend_job(1, "snapshot_every=1 snapshot_keep=1");
    for (int i = 0; i < 4; i++) {
        train();
        fake_until(&fake, toy()->snapshots.running == NULL);
    }
    fake_until(&fake, committed() == 1);
}

/* ---- faults ---- */

/* Whether it was committed; else the sentence names the fault. */
static bool is_taken(uint32_t request)
{
    struct wire_frame frame;
    for (;;) {
        fake_peer_read(&admin);
        while (fake_peer_next(&admin, &frame)) {
            if (frame.request != request) continue;
            const bool taken = frame.type == CAIRN_MSG_SNAPSHOT_STATUS;
            ProtobufCMessage *message = message_unpack(message_type(frame.type), frame.payload,
                                                       frame.payload_bytes);
            ck_assert_ptr_nonnull(message);
            if (!taken) {
                ck_assert_uint_eq(frame.type, CAIRN_MSG_ERROR);
                const char *text = ((const Cairn__Error *)message)->text;
                ck_assert_msg(strstr(text, "a fault of the test") != NULL, "%s", text);
            }
            message_free(message);
            return taken;
        }
        ck_assert(!admin.ended);
        fake_pump(&fake);
    }
}

static void count_name(void *context, const char *name, bool is_folder)
{
    *(size_t *)context += is_folder && strncmp(name, "step-", 5) == 0;
}

/* The folders of snapshots, whole or not. */
static size_t begun_folders(void)
{
    size_t count = 0;
    struct sentence why;
    ck_assert_int_eq(storage_of(ROOT)->list(ROOT, "toy", count_name, &count, &why), CAIRN_OK);
    return count;
}

TEST(whatever_call_fails_once_it_is_whole_or_nothing_of_it_is_left)
{
    const uint64_t before = cairn_memory_storage_calls();
    take_snapshot();
    const uint64_t calls = cairn_memory_storage_calls() - before;
    size_t whole = 1, met = 0;
    ck_assert_uint_gt(calls, 20);
    for (uint64_t n = 1; n <= calls; n++) {
        train();
        // its next step, which comes when this has ended, is not waited for
        toy()->rounds.pace.count = 0;
        const uint64_t from = cairn_memory_storage_calls();
        cairn_memory_storage_fail(n, CAIRN_ERR_IO);
        const bool taken = is_taken(ask_snapshot(&admin, true));
        cairn_memory_storage_fail(0, CAIRN_OK);
        whole += taken;
        met += cairn_memory_storage_calls() - from >= n;
        ck_assert_uint_eq(committed(), whole);
        fake_until(&fake, begun_folders() == whole); // who asked hears of it before
    }
    ck_assert_uint_gt(met, 5); // by the snapshot, or by what reads the one before
    take_snapshot();           // training goes on, and the next one is whole
}

SUITE(150, open_elsewhere, close_fake);
