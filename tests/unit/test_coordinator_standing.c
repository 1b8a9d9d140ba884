/* Whose state it is: a coordinator with an empty, another or an older store acts on nothing that shards hold,
 * and says so; its own leftovers it cleans up. Terms are on the shards before an amendment is answered. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/coordinator/job.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

static uint32_t count_seen(uint16_t type)
{
    return fake.shards[0].seen[type] + fake.shards[1].seen[type];
}

/* The database, as it is while the coordinator is stopped. */
static void copy_store(const char *from, const char *to)
{
    char path[160], bytes[4096];
    snprintf(path, sizeof path, "%s/coordinator.db", from);
    FILE *in = fopen(path, "r");
    snprintf(path, sizeof path, "%s/coordinator.db", to);
    FILE *out = fopen(path, "w");
    ck_assert(in != NULL && out != NULL);
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, in)) > 0;)
        ck_assert_uint_eq(fwrite(bytes, 1, n, out), n);
    fclose(in);
    ck_assert_int_eq(fclose(out), 0);
}

static bool awaits(const char *word)
{
    Cairn__Awaited *awaited = fake_awaited(&w, job);
    return strstr(awaited->text, word) != NULL;
}

TEST(an_empty_store_erases_nothing_and_creates_nothing_in_its_place)
{
    start_trained();
    const uint32_t fences = count_seen(CAIRN_MSG_FENCE);
    struct job_spec_data spec = fake_spec(1);
    fake_peer_close(&w);
    fake_store_lose(&fake);
    fake_shards_up(&fake, 2);
    w = worker("w0");
    (void)fake_job_open_again(&w, &spec, 10, 0, job);
    fake_until(&fake,
               awaits("held by shards, but of another store: s0, s1")); // once they have told
    fake_expect_awaited(&w, job, "cairn cluster adopt");
    struct fake_peer fresh = worker("w1"); // a trainer that was started again
    (void)fake_job_open(&fresh, &spec, 11, 0);
    fake_expect_awaited(&fresh, 0, "held by shards, but of another store: s0, s1");
    ck_assert(fake.shards[0].has_job && fake.shards[1].has_job);
    ck_assert_uint_eq(count_seen(CAIRN_MSG_JOB_DROP), 0);
    ck_assert_uint_eq(count_seen(CAIRN_MSG_JOB_CREATE), 2);
    ck_assert_uint_eq(count_seen(CAIRN_MSG_FENCE), fences);
    spec_release(&spec);
    fake_peer_close(&fresh);
}

TEST(a_member_that_attaches_again_never_makes_a_job)
{
    fake_shards_up(&fake, 2);
    w = worker("w0");
    struct job_spec_data spec = fake_spec(1);
    fake_expect_error(&w, fake_job_open_again(&w, &spec, 10, 0, 4711), CAIRN_ERR_NOT_FOUND,
                      "was attached to");
    job = fake_attach(&w, 11, 0, 1); // a newcomer does
    fake_expect_error(&w, fake_job_open_again(&w, &spec, 12, 0, job + 1), CAIRN_ERR_NOT_FOUND,
                      "was attached to");
    spec_release(&spec);
}

TEST(what_was_never_finished_or_was_dropped_is_cleaned_up)
{
    fake_shards_up(&fake, 2);
    w = worker("w0");
    fake.shards[1].holds_create = true;
    (void)fake_ask_open(&w, 10, 0, 1);
    fake_until(&fake, fake.shards[0].has_job && fake.shards[1].has_job);
    fake_peer_close(&w);
    fake_coordinator_stop(&fake); // half way
    fake.shards[1].holds_create = false;
    fake_coordinator_start(&fake);
    fake_shards_up(&fake, 2);
    fake_until(&fake, !fake.shards[0].has_job && !fake.shards[1].has_job);
    // A job that was made, dropped while a shard was away: the other came back without its part.
    w = worker("w0");
    (void)fake_attach(&w, 10, 0, 1);
    fake_until(&fake, fake.shards[0].settled && fake.shards[1].settled);
    fake_peer_close(&w);
    fake_shard_away(&fake, 0);
    fake_shard_renew(&fake, 0);
    fake.shards[1].dead = true; // does not hear that it is to drop it
    fake_shard_blink(&fake, 1);
    fake_until(&fake, !fake.shards[1].has_job);
}

TEST(an_older_store_does_nothing_with_a_job_that_has_gone_on)
{
    start_trained();
    struct job_spec_data spec = fake_spec(1);
    fake_coordinator_stop(&fake);
    copy_store(fake.store, fake.folder); // of here
    fake_coordinator_start(&fake);
    fake_shards_up(&fake, 2);
    fake_peer_close(&w);
    w = worker("w0");
    ck_assert_uint_eq(fake_attach(&w, 10, 0, 1), job);
    ck_assert_uint_eq(train(), 2);
    fake_peer_close(&w);
    fake_shard_away(&fake, 1);
    fake_shard_forget(&fake, 1); // it restarted, too: the job is not called lost, nor made anew
    fake_coordinator_stop(&fake);
    copy_store(fake.folder, fake.store);
    const uint32_t fences = count_seen(CAIRN_MSG_FENCE);
    fake_coordinator_start(&fake);
    fake_shards_up(&fake, 2);
    w = worker("w0");
    (void)fake_job_open_again(&w, &spec, 10, 0, job);
    fake_until(&fake, awaits("s0 (it has obeyed a newer coordinator"));
    ck_assert_uint_eq(count_seen(CAIRN_MSG_FENCE), fences);
    ck_assert(fake.shards[0].has_job);
    spec_release(&spec);
}

TEST(a_store_behind_the_epoch_of_a_job_says_so)
{
    start_trained();
    struct job_spec_data spec = fake_spec(1);
    fake_peer_close(&w);
    fake_coordinator_stop(&fake);
    fake.shards[1].epoch += 7; // as after a copy was put back and started often enough
    fake_coordinator_start(&fake);
    fake_shards_up(&fake, 2);
    w = worker("w0");
    (void)fake_job_open_again(&w, &spec, 10, 0, job);
    fake_until(&fake, awaits("shard s1 has seen a higher epoch"));
    spec_release(&spec);
}

/* By the store that was put back it is on s0 and s1; since then its part of s1 has moved to s2. */
TEST(a_shard_that_the_store_does_not_name_shows_that_it_is_older)
{
    start_trained();
    fake_peer_close(&w);
    fake_coordinator_stop(&fake);
    snprintf(fake.shards[2].name, sizeof fake.shards[2].name,
             "s1"); // it has ended, and is there anew
    snprintf(fake.shards[1].name, sizeof fake.shards[1].name, "s2");
    fake.shards[1].epoch += 7;
    fake_coordinator_start(&fake);
    fake_shard_up(&fake, 0);
    fake_shard_up(&fake, 2);
    fake_shard_up(&fake, 1);
    struct job_spec_data spec = fake_spec(1);
    w = worker("w0");
    (void)fake_job_open_again(&w, &spec, 10, 0, job);
    fake_until(&fake, awaits("shard s2 has seen a higher epoch"));
    ck_assert_uint_eq(toy()->state, CAIRN_CLUSTER_JOB_LOST); // not to be restored by itself
    ck_assert(toy()->loss.behind && fake.shards[1].has_job);
    spec_release(&spec);
}

/* All shards that know it better may be away. */
TEST(what_a_member_has_seen_shows_that_the_store_is_older)
{
    start_trained();
    Cairn__JobOpen open = CAIRN__JOB_OPEN__INIT;
    open.name = "toy";
    open.role = CAIRN_ROLE_WIRE_READER;
    open.session = 20;
    open.token = 21;
    open.attached = job;
    open.seen_epoch = toy()->epoch;
    open.seen_store = fake.shards[0].store;
    struct fake_peer reader = fake_connect(&fake, CAIRN_ROLE_WIRE_READER, "r0");
    fake_hear(&reader, Attached, fake_request(&reader, CAIRN_MSG_JOB_OPEN, &open.base));
    open.seen_epoch += 7;
    open.seen_store++; // of a coordinator before `cairn cluster adopt`: nothing follows from that
    fake_peer_close(&reader);
    reader = fake_connect(&fake, CAIRN_ROLE_WIRE_READER, "r0");
    fake_hear(&reader, Attached, fake_request(&reader, CAIRN_MSG_JOB_OPEN, &open.base));
    open.seen_store--;
    fake_peer_close(&reader);
    reader = fake_connect(&fake, CAIRN_ROLE_WIRE_READER, "r0");
    (void)fake_request(&reader, CAIRN_MSG_JOB_OPEN, &open.base);
    fake_until(&fake, toy()->loss.behind);
    fake_expect_awaited(&reader, job, "reader r0 has seen a higher epoch");
    fake_expect_awaited(&reader, job, "cairn cluster adopt");
    fake_peer_close(&reader);
}

TEST(an_amendment_is_answered_when_every_shard_has_it)
{
    start_trained();
    fake.shards[1].holds_terms = true;
    const uint32_t request = fake_amend_freeze(&w, job, 3);
    fake_until(&fake, fake.shards[1].spec.revision == 1 && fake.shards[0].spec.revision == 1);
    fake_expect_awaited(&w, job, ""); // no answer came before this one
    ck_assert_uint_eq(fake.shards[1].spec.groups[0].frozen, true);
    fake_shard_away(&fake, 1);
    fake.shards[1].spec.revision = 0; // it had not taken it
    fake.shards[1].holds_terms = false;
    fake_shard_up(&fake, 1);
    fake_expect_amended(&w, request, 1);
    ck_assert_uint_eq(fake.shards[1].spec.revision, 1);
}

TEST(an_amendment_that_a_shard_had_no_memory_for_is_told_again_when_it_is_asked_again)
{
    start_trained();
    fake.shards[1].refuse_terms = "no room";
    uint32_t request = fake_amend_freeze(&w, job, 3);
    fake_expect_error(&w, request, CAIRN_ERR_NO_MEMORY, "not on all shards: s1: no room");
    ck_assert_uint_eq(fake.shards[1].spec.revision, 0);
    request = fake_amend_freeze(&w, job, 3); // it still has none
    fake_expect_error(&w, request, CAIRN_ERR_NO_MEMORY, "not on all shards: s1: no room");
    fake.shards[1].refuse_terms = NULL;
    fake_expect_amended(&w, fake_amend_freeze(&w, job, 3), 1);
    ck_assert_uint_eq(fake.shards[1].spec.revision, 1);
}

SUITE(60, open_fake, close_fake);
