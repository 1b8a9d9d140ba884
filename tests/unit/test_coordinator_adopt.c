/* A store rebuilt from what the shards hold: the newest generation of which every part is there is the job,
 * whatever the shards were told of it; what is not whole is refused, says why, and stays as it is. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/base.h"
#include "server/coordinator/restore.h"
#include "server/coordinator/store.h"
#include "tests/support/fake_shard.h"
#include "tests/support/suite.h"
#include "tests/support/trained_toy.h"

/* The store is lost; `shards` of them come again. */
static void lose_store(uint32_t shards)
{
    fake_peer_close(&w);
    fake_peer_close(&admin);
    for (uint32_t i = 0; i < fake.shard_count; i++) fake.shards[i].dies_at_switch = false;
    fake_store_lose(&fake);
    fake_shards_up(&fake, shards);
    if (shards < fake.shard_count) // the others do not come, and a lease has passed
        fake.cluster->clock.started_ms -= (uint64_t)fake.cluster->options->lease_timeout_ms;
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "ctl");
}

static uint32_t ask_adopt(bool plan)
{
    return fake_ask(&admin, ClusterAdopt, .plan = plan);
}

static Cairn__ClusterAdopted *adopt(bool plan)
{
    return fake_hear(&admin, ClusterAdopted, ask_adopt(plan));
}

static const Cairn__AdoptedJob *adopted_of(const Cairn__ClusterAdopted *adopted, uint64_t id)
{
    for (size_t i = 0; i < adopted->n_jobs; i++)
        if (adopted->jobs[i]->job == id) return adopted->jobs[i];
    ck_abort_msg("it says nothing of that job");
    return NULL;
}

/* The only one. Empty: it was adopted, and the shards are back. */
static void expect_adopted(uint64_t generation, const char *refused)
{
    Cairn__ClusterAdopted *adopted = adopt(false);
    const Cairn__AdoptedJob *it = adopted_of(adopted, job);
    ck_assert_uint_eq(adopted->n_jobs, 1);
    if (*refused == '\0') {
        ck_assert_str_eq(it->refused, "");
        ck_assert_uint_eq(it->generation, generation);
        fake_until(&fake, fake.shards[0].seen[CAIRN_MSG_STORE_ADOPTED] == 1 &&
                              fake.shards[1].seen[CAIRN_MSG_STORE_ADOPTED] == 1);
        fake_shards_up(&fake, 2);
    } else {
        ck_assert_msg(strstr(it->refused, refused) != NULL, "\"%s\": %s", refused, it->refused);
        ck_assert_uint_eq(adopted->store, fake.cluster->identity.id.store);
        ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_STORE_ADOPTED], 0);
        ck_assert(fake.shards[0].has_job);
    }
}

/* ---- amendments that the store was lost with ---- */

/* Answered; the shards from `first` on did not hear that they are to switch. */
static void amend(uint32_t first)
{
    for (uint32_t i = first; i < 2; i++) fake.shards[i].dies_at_switch = true;
    fake_expect_amended(&w, fake_amend_more(&w, job, 3), 1);
    for (uint32_t i = first; i < 2; i++) fake_until(&fake, fake.shards[i].dead);
    fake_until(&fake, first == 0 || fake.shards[0].staged == NULL);
    lose_store(2);
}

TEST(an_amendment_that_was_answered_is_the_job_though_no_shard_was_told_to_switch)
{
    amend(0);
    ck_assert(fake.shards[0].staged != NULL && fake.shards[1].staged != NULL);
    expect_adopted(2, "");
    fake_goes_on(&fake, 2, 3);
    ck_assert(fake.shards[0].settled && fake.shards[1].settled);
}

TEST(one_that_a_part_of_the_shards_switched_to_is_the_job)
{
    amend(1);
    ck_assert_uint_eq(fake.shards[0].generation, 2);
    ck_assert_uint_eq(fake.shards[1].generation, 1);
    expect_adopted(2, "");
    fake_goes_on(&fake, 2, 3);
}

TEST(one_that_a_shard_has_not_made_yet_is_dropped_and_the_job_is_what_it_was)
{
    fake.shards[1].holds_create = true;
    (void)fake_amend_more(&w, job, 3);
    fake_until(&fake, fake.shards[0].staged != NULL && fake.shards[0].staged->has_job);
    fake_until(&fake, fake.shards[1].staged != NULL && fake.shards[1].staged->has_job);
    fake.shards[1].staged->serving = false;
    lose_store(2);
    expect_adopted(1, "");
    fake_goes_on(&fake, 1, 2);
}

TEST(a_job_of_which_no_shard_was_told_that_it_is_stored_is_adopted_and_settled)
{
    fake.shards[0].settled = fake.shards[1].settled = false;
    lose_store(2);
    expect_adopted(1, "");
    fake_goes_on(&fake, 1, 2);
    fake_until(&fake, fake.shards[0].settled && fake.shards[1].settled);
}

/* The one before may have reserved numbers of rounds that no shard has seen. */
TEST(the_store_counts_on_from_the_newest_coordinator_that_a_shard_has_obeyed)
{
    fake.shards[1].coordinator_incarnation = 7;
    lose_store(2);
    expect_adopted(1, "");
    ck_assert_uint_eq(fake.cluster->identity.id.incarnation, 8);
    fake_goes_on(&fake, 1, 2);
    ck_assert_uint_ge(coord_job_find(fake.cluster, "toy")->reserved.round, 8 * CAIRN_ROUND_BLOCK);
}

/* ---- whose signatures are trusted ---- */

static void trust_stranger(char id_out[CAIRN_KEY_NAME_BYTES], bool untrust)
{
    static char line[CAIRN_KEY_LINE_BYTES];
    struct secret_key key;
    if (!untrust) {
        secret_key_make(&key);
        public_key_line(&key.public_key, line);
        key_name(key.public_key.id, id_out);
    }
    fake_call(&admin, Keys, KeyTrust, .key = line, .untrust = untrust);
}

static void expect_keys(const Cairn__Keys *keys, size_t count, const char *first)
{
    ck_assert_ptr_nonnull(keys);
    ck_assert_uint_eq(keys->n_keys, count);
    ck_assert_msg(first == NULL || strcmp(keys->keys[0]->id, first) == 0, "%s", keys->keys[0]->id);
}

static void expect_restored(const Cairn__SnapshotStatus *snapshot)
{
    fake_hear(&admin, SnapshotStatus, ask_restore("other", "", snapshot->path));
}

TEST(what_the_lost_store_has_signed_is_trusted_by_who_adopts_its_jobs)
{
    char signer[CAIRN_KEY_NAME_BYTES], other[CAIRN_KEY_NAME_BYTES];
    Cairn__SnapshotStatus *snapshot = take_snapshot();
    key_name(coord_keys_signer(fake.cluster)->public_key.id, signer);
    trust_stranger(other, false);
    lose_store(2);
    fake_until(&fake, fake.cluster->storage.watch.said.text[0] != '\0'); // the folder is another's
    Cairn__ClusterAdopted *plan = adopt(true);
    expect_keys(plan->keys, 2, signer);
    fake_expect_error(&admin, ask_restore("other", "", snapshot->path), CAIRN_ERR_REFUSED,
                      "put the old cluster.key back into"); // planned is not done
    expect_adopted(1, "");
    ck_assert_str_eq(fake.cluster->storage.watch.said.text, "");
    fake_goes_on(&fake, 1, 2);
    fake_until(&fake, fake.cluster->storage.watch.said.text[0] == '\0');
    take_snapshot(); // the folder is this cluster's, too
    expect_restored(snapshot);
    fake_peer_close(&admin);
    fake_coordinator_stop(&fake); // it is in the store
    fake_coordinator_start(&fake);
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "ctl");
    expect_keys(fake_call(&admin, Keys, KeysGet), 3, NULL);
}

TEST(a_key_that_was_untrusted_before_the_store_was_lost_is_not_adopted)
{
    char signer[CAIRN_KEY_NAME_BYTES], other[CAIRN_KEY_NAME_BYTES];
    key_name(coord_keys_signer(fake.cluster)->public_key.id, signer);
    trust_stranger(other, false);
    trust_stranger(other, true);
    fake_until(&fake, fake.shards[0].keys->n_keys == 1 && fake.shards[1].keys->n_keys == 1);
    lose_store(2);
    Cairn__ClusterAdopted *plan = adopt(true);
    expect_keys(plan->keys, 1, signer);
}

/* ---- refusals ---- */

static void away(void)
{
    fake_shard_away(&fake, 1);
}
static void other_layout(void)
{
    fake.shards[1].layout->hash[0] ^= 1;
}
static void other_place(void)
{
    fake.shards[1].index = 2;
}
static void other_base(void)
{
    fake.shards[1].base_step++;
}
static void other_spec(void)
{
    fake.shards[1].spec_digest.byte[0] ^= 1;
}
static void two_steps_on(void)
{
    fake.shards[1].version.step += 2;
}
static void same_part(void)
{
    fake.shards[1].index = fake.shards[0].index;
}
static void not_sealed(void)
{
    fake.shards[1].serving = false;
}
/* It has the amended generation alone, and the other shard never made it. */
static void nowhere_whole(void)
{
    fake.shards[1].generation = 2;
}

static const struct {
    void (*spoil)(void);
    const char *word;
} refusals[] = {
    { away, "part 2 of 2 is on no connected shard" },
    { other_layout, "s1: its part is of another layout" },
    { other_place, "s1: its part is of another layout" },
    { other_base, "s1: its part is of another layout" },
    { other_spec, "s1: it has another spec of the same revision" },
    { two_steps_on, "s1: its part is more than one step apart from the others" },
    { same_part, "s1: another shard holds the same part" },
    { not_sealed, "s1: its part was never complete" },
    { nowhere_whole, "part 1 of 2 is on no connected shard" },
};

TEST_EACH(what_is_not_whole_is_refused_says_why_and_stays_as_it_is, 0,
          (int)(sizeof refusals / sizeof refusals[0]))
{
    const uint32_t drops = fake.shards[0].seen[CAIRN_MSG_JOB_DROP];
    refusals[_i].spoil();
    lose_store(refusals[_i].spoil == away ? 1 : 2);
    expect_adopted(0, refusals[_i].word);
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_JOB_DROP], drops);
}

TEST_EACH(three_shards_of_which_two_are_two_steps_apart_are_refused_in_any_order, 0, 4)
{
    static const uint64_t steps[][3] = { { 1, 2, 3 }, { 2, 1, 3 }, { 2, 3, 1 }, { 3, 2, 1 } };
    close_fake();
    fake_open(&fake, 3);
    fake_shards_up(&fake, 3);
    w = worker("w0");
    job = fake_attach(&w, 10, 0, 1);
    fake_init(&w, job);
    for (int i = 0; i < 3; i++) fake.shards[i].version.step = steps[_i][i];
    lose_store(3);
    expect_adopted(0, "more than one step apart");
}

TEST(a_job_that_was_never_sealed_is_refused)
{
    struct job_spec_data spec = fake_spec(1);
    ck_assert_int_eq(spec_set_name(&spec, "new"), CAIRN_OK);
    fake_shard_away(&fake, 0);
    fake_shard_away(&fake, 1);
    fake_shard_clear(&fake.shards[0]);
    fake_shard_clear(&fake.shards[1]);
    lose_store(2);
    w = worker("w0");
    Cairn__Attached *attached = fake_hear(&w, Attached, fake_job_open(&w, &spec, 10, 0));
    job = attached->job;
    spec_release(&spec);
    lose_store(2);
    expect_adopted(0, "its part was never complete");
}

/* A job of shards 2 and 3, while they are alone; returns its number. */
static uint64_t make_second(const char *name)
{
    struct job_spec_data spec = fake_spec(1);
    ck_assert_int_eq(spec_set_name(&spec, name), CAIRN_OK);
    fake_shard_up(&fake, 2);
    fake_shard_up(&fake, 3);
    w = worker("w1");
    const uint32_t request = fake_job_open(&w, &spec, 20, 0);
    const uint64_t id = fake_hear(&w, Attached, request)->job;
    spec_release(&spec);
    fake_init(&w, id);
    return id;
}

TEST(of_two_jobs_of_one_name_one_is_adopted)
{
    fake_shard_away(&fake, 0);
    fake_shard_away(&fake, 1);
    lose_store(0);
    const uint64_t second = make_second("toy");
    ck_assert_uint_ne(second, job);
    lose_store(4);
    Cairn__ClusterAdopted *adopted = adopt(true);
    const char *refused[] = { adopted_of(adopted, job)->refused,
                              adopted_of(adopted, second)->refused };
    ck_assert_uint_eq(adopted->n_jobs, 2);
    ck_assert_msg((*refused[0] == '\0') != (*refused[1] == '\0'), "%s; %s", refused[0], refused[1]);
    ck_assert_ptr_nonnull(
        strstr(*refused[0] != '\0' ? refused[0] : refused[1], "there is another job of that name"));
}

TEST(one_that_is_refused_is_no_leftover_when_another_is_adopted)
{
    fake_shard_away(&fake, 0);
    fake_shard_away(&fake, 1);
    lose_store(0);
    const uint64_t second = make_second("second");
    fake.shards[2].settled = false; // its store was lost before it was told
    fake_shard_away(&fake, 3);
    lose_store(3);
    Cairn__ClusterAdopted *adopted = adopt(false);
    ck_assert_str_eq(adopted_of(adopted, job)->refused, "");
    ck_assert_ptr_nonnull(strstr(adopted_of(adopted, second)->refused, "part 2 of 2 is on no"));
    for (int i = 0; i < 3; i++) // who comes before it has heard comes with another store
        fake_until(&fake, fake.shards[i].seen[CAIRN_MSG_STORE_ADOPTED] == 1);
    fake_shards_up(&fake, 3);
    fake_goes_on(&fake, 1, 2);
    ck_assert(fake.shards[2].has_job);
    fake_shard_up(&fake, 3); // it was away: now the second is whole
    adopted = adopt(false);
    ck_assert_str_eq(adopted_of(adopted, second)->refused, "");
}

/* What is wrong with the second shows in its pages only; a plan says so, too. */
TEST(one_whose_pages_are_not_whole_does_not_keep_another_from_being_adopted)
{
    fake_shard_away(&fake, 0);
    fake_shard_away(&fake, 1);
    lose_store(0);
    const uint64_t second = make_second("second");
    lose_store(4);
    struct paged *layout = &fake.shards[2].layout_pages;
    layout->bytes[layout->have_bytes / 2] ^= 1;
    for (int plans = 1; plans >= 0; plans--) {
        Cairn__ClusterAdopted *adopted = adopt(plans != 0);
        ck_assert_str_eq(adopted_of(adopted, job)->refused, "");
        const char *refused = adopted_of(adopted, second)->refused;
        ck_assert_msg(strstr(refused, "does not fit its spec") != NULL, "%s", refused);
    }
    for (int i = 0; i < 4; i++)
        fake_until(&fake, fake.shards[i].seen[CAIRN_MSG_STORE_ADOPTED] == 1);
    fake_shards_up(&fake, 4);
    fake_goes_on(&fake, 1, 2);
    ck_assert(fake.shards[2].has_job && fake.shards[3].has_job);
}

TEST(one_that_is_being_amended_is_refused_until_that_has_ended)
{
    fake.shards[1].holds_create = true;
    (void)fake_amend_more(&w, job, 3);
    fake_until(&fake, fake.shards[0].staged != NULL && fake.shards[0].staged->has_job);
    fake_shard_away(&fake, 0);
    fake.shards[0].store ^= 1;
    fake_shard_up(&fake, 0);
    Cairn__ClusterAdopted *adopted = adopt(false);
    ck_assert_ptr_nonnull(strstr(adopted_of(adopted, job)->refused, "is being saved, amended"));
}

/* ---- the questions ---- */

static void wind_on(void)
{
    fake.cluster->under_way.adoption->began_ms -= 30000;
}

/* The only job has a part on that shard, which does not say so. */
static void expect_passed_over(uint32_t request, const char *silent)
{
    char word[128];
    Cairn__ClusterAdopted *adopted = fake_hear(&admin, ClusterAdopted, request);
    const char *refused = adopted_of(adopted, job)->refused;
    snprintf(word, sizeof word,
             "is on no connected shard; these shards do not say what they hold: %s", silent);
    ck_assert_msg(strstr(refused, word) != NULL, "\"%s\": %s", word, refused);
    ck_assert_uint_eq(adopted->n_silent, 1);
    ck_assert_str_eq(adopted->silent[0], silent);
}

TEST(shards_that_do_not_answer_are_named_and_their_late_answer_is_of_no_other_question)
{
    uint32_t first[2];
    lose_store(2);
    fake.shards[0].holds_parts = fake.shards[1].holds_parts = true;
    uint32_t request = ask_adopt(true);
    fake_until(&fake, fake.shards[0].part_request != 0 && fake.shards[1].part_request != 0);
    for (int i = 0; i < 2; i++) first[i] = fake.shards[i].part_request;
    wind_on();
    fake_expect_error(&admin, request, CAIRN_ERR_TIMEOUT, "s0, s1");
    request = ask_adopt(true);
    fake_until(&fake,
               fake.shards[0].part_request != first[0] && fake.shards[1].part_request != first[1]);
    for (int i = 0; i < 2; i++) fake_shard_tell_held(&fake.shards[i], first[i]);
    fake_shard_tell_held(&fake.shards[0], fake.shards[0].part_request);
    fake_expect_silence(&admin, job);
    wind_on();
    expect_passed_over(request, "s1");
}

/* The only job, which stays as it is. */
static void expect_refused(uint32_t request, const char *word)
{
    Cairn__ClusterAdopted *adopted = fake_hear(&admin, ClusterAdopted, request);
    const char *refused = adopted_of(adopted, job)->refused;
    ck_assert_msg(strstr(refused, word) != NULL, "\"%s\": %s", word, refused);
    ck_assert_uint_eq(fake.shards[0].seen[CAIRN_MSG_STORE_ADOPTED], 0);
}

/* Shard 0 is asked for its part of the job, and does not answer; returns the request of the adoption. */
static uint32_t ask_for_part(void)
{
    lose_store(2);
    fake.shards[1].holds_parts = true;
    const uint32_t request = ask_adopt(false);
    fake_until(&fake, fake.shards[0].part_request != 0 && fake.shards[1].part_request != 0);
    fake.shards[0].holds_parts = true;
    fake.shards[0].part_request = 0;
    fake_shard_tell_held(&fake.shards[1], fake.shards[1].part_request);
    fake_until(&fake, fake.shards[0].part_request != 0); // of the job
    return request;
}

TEST(a_shard_that_does_not_send_its_part_is_named)
{
    const uint32_t request = ask_for_part();
    wind_on();
    expect_refused(request, "s0 does not send its part");
    fake.shards[0].holds_parts = fake.shards[1].holds_parts = false;
    expect_adopted(1, "");
    fake_goes_on(&fake, 1, 2);
}

TEST(a_part_that_is_answered_without_its_pages_is_not_written)
{
    const uint32_t request = ask_for_part();
    fake_say(&fake.shards[0].peer, fake.shards[0].part_request, Done);
    expect_refused(request, "s0 answered without its part");
}

TEST(a_layout_that_is_of_other_tensors_is_not_written)
{
    lose_store(2);
    struct paged *layout = &fake.shards[0].layout_pages;
    layout->bytes[layout->have_bytes / 2] ^= 1;
    expect_refused(ask_adopt(false), "s0 sent a layout that does not fit its spec");
    layout->bytes[layout->have_bytes / 2] ^= 1;
    expect_adopted(1, "");
}

TEST(a_shard_that_goes_while_it_is_asked_is_named_at_once)
{
    lose_store(2);
    fake.shards[1].holds_parts = true;
    const uint32_t request = ask_adopt(false);
    fake_until(&fake, fake.shards[1].part_request != 0);
    fake_shard_away(&fake, 1);
    expect_passed_over(request, "s1");
}

/* s3 is stopped, or ends: the job of s0 and s1 is adopted, the one of s2 and s3 when s3 is back. */
TEST_EACH(a_shard_that_is_silent_keeps_only_the_jobs_that_it_has_from_being_adopted, 0, 2)
{
    fake_shard_away(&fake, 0);
    fake_shard_away(&fake, 1);
    lose_store(0);
    const uint64_t second = make_second("second");
    lose_store(4);
    fake.shards[3].holds_parts = true;
    const uint32_t request = ask_adopt(false);
    for (int i = 0; i < 4; i++) fake_until(&fake, fake.shards[i].part_request != 0);
    fake_expect_silence(&admin, job);
    if (_i == 0)
        wind_on();
    else
        fake_shard_away(&fake, 3);
    Cairn__ClusterAdopted *adopted = fake_hear(&admin, ClusterAdopted, request);
    ck_assert_str_eq(adopted_of(adopted, job)->refused, "");
    ck_assert_ptr_nonnull(strstr(adopted_of(adopted, second)->refused, "s3"));
    ck_assert_uint_eq(adopted->n_silent, 1);
    for (int i = 0; i < 3; i++)
        fake_until(&fake, fake.shards[i].seen[CAIRN_MSG_STORE_ADOPTED] == 1);
    fake.shards[3].holds_parts = false;
    fake_shards_up(&fake, 4);
    fake_goes_on(&fake, 1, 2);
    ck_assert_uint_eq(fake.shards[3].seen[CAIRN_MSG_STORE_ADOPTED], 0); // it may know of newer
    ck_assert(fake.shards[2].has_job && fake.shards[3].has_job);
    adopted = adopt(false);
    ck_assert_str_eq(adopted_of(adopted, second)->refused, "");
}

TEST(who_waits_for_too_much_is_refused)
{
    lose_store(2);
    struct coord_session *session = fake.cluster->sessions;
    while (session != NULL && strcmp(session->name, "ctl") != 0) session = session->next;
    ck_assert_ptr_nonnull(session);
    session->wait_count = CAIRN_SESSION_WAITS_MAX;
    fake_expect_error(&admin, ask_adopt(true), CAIRN_ERR_BUSY, "too many requests");
    ck_assert_ptr_null(fake.cluster->under_way.adoption);
    session->wait_count = 0;
    expect_adopted(1, "");
}

SUITE(60, open_trained, close_fake);
