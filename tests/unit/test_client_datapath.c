/* How long a worker waits for the places of shards, and when it says that a way leads nowhere. */
#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/job.h"
#include "client/op.h"
#include "tests/support/suite.h"

enum { STEP_MS = 50, BEGIN_MS = 1000 };

static struct session session;
static struct job job;
static struct shard_link shard, *links[] = { &shard };

static void on_nothing(void *arg, const void *header, size_t header_bytes, size_t payload_bytes,
                       struct fabric_message *message)
{
    (void)arg, (void)header, (void)header_bytes, (void)payload_bytes, (void)message;
}

static void set_up(void)
{
    struct sentence why = { "" };
    const struct fabric_options options = { .on_message = on_nothing };
    size_t bytes;
    memset(&session, 0, sizeof session);
    memset(&job, 0, sizeof job);
    memset(&shard, 0, sizeof shard);
    pthread_mutex_init(&session.lock, NULL);
    pthread_cond_init(&session.changed, NULL);
    session.ended = true; // nobody is woken
    job.session = &session;
    shard.job = &job;
    ck_assert_msg(fabric_open("ucx", &options, &session.path.fabric, &why) == CAIRN_OK, "%s",
                  why.text);
    const void *address = fabric_own_address(session.path.fabric, &bytes);
    shard.address = (uint8_t *)(uintptr_t)address;
    shard.address_bytes = bytes;
}

static void tear_down(void)
{
    fabric_close(session.path.fabric);
}

static uint64_t judge_until(uint64_t from_ms, uint64_t to_ms)
{
    for (; from_ms <= to_ms; from_ms += STEP_MS) datapath_judge(&shard, from_ms);
    return from_ms;
}

TEST(a_shard_that_is_never_heard_fails_the_job)
{
    judge_until(BEGIN_MS, BEGIN_MS + 4900);
    ck_assert_int_eq(job.failure.status, CAIRN_OK);
    judge_until(BEGIN_MS + 4950, BEGIN_MS + 5000);
    ck_assert_int_eq(job.failure.status, CAIRN_ERR_UNREACHABLE);
}

/* Such a shard has no place in the network by which it could be named. */
TEST(a_shard_that_listens_on_no_network_says_how_it_is_reached)
{
    struct sentence why = { "" };
    const struct fabric_options options = { .on_message = on_nothing };
    struct fabric *its;
    ck_assert_int_eq(fabric_open("auto", &options, &its, &why), CAIRN_OK);
    shard.address = (uint8_t *)(uintptr_t)fabric_own_address(its, &shard.address_bytes);
    judge_until(BEGIN_MS, BEGIN_MS + 5000);
    ck_assert_int_eq(job.failure.status, CAIRN_ERR_UNREACHABLE);
    const char *text = job.failure.why.text;
    ck_assert_ptr_nonnull(strstr(text, "from its own host only, by mapped memory"));
    ck_assert_ptr_nonnull(strstr(text, "fabric ucx of this process"));
    ck_assert_ptr_nonnull(strstr(text, "set fabric.kind = ucx there"));
    fabric_close(its);
}

/* It was stopped, or its host asleep: what came meanwhile is not read yet. */
TEST(time_in_which_the_worker_did_not_run_does_not_count)
{
    const uint64_t stopped_ms = judge_until(BEGIN_MS, BEGIN_MS + 200);
    judge_until(stopped_ms + 60000, stopped_ms + 64900);
    ck_assert_int_eq(job.failure.status, CAIRN_OK);
    judge_until(stopped_ms + 64950, stopped_ms + 65000);
    ck_assert_int_eq(job.failure.status, CAIRN_ERR_UNREACHABLE);
}

/* ---- a shard that was heard ---- */

static bool awaited;

static bool waits(const struct chunk_link *link)
{
    (void)link;
    return awaited;
}

static void be_attached(void)
{
    static const struct chunk_link_callbacks hands = { .waits = waits };
    shard.conn.callbacks = &hands;
    snprintf(shard.name, sizeof shard.name, "s0");
    job.shards.links = links;
    job.shards.count = 1;
    job.attachment.state = JOB_ATTACHED;
    awaited = true;
    datapath_heard(&shard);
}

static bool is_said(const char *text)
{
    struct sentence silence;
    client_silence(&job, &silence);
    ck_assert_int_eq(job.failure.status, CAIRN_OK);
    return strstr(silence.text, text) != NULL;
}

TEST(a_shard_that_is_no_longer_heard_is_named_and_the_job_goes_on)
{
    be_attached();
    judge_until(BEGIN_MS, BEGIN_MS + 4900);
    ck_assert(!is_said("s0"));
    const uint64_t at_ms = judge_until(BEGIN_MS + 4950, BEGIN_MS + 60000);
    ck_assert(is_said("nothing has come from shard s0 for 5 s and more over the data path from "));
    ck_assert(is_said("to it (127.0.0.1 lo tcp), which led there before"));
    datapath_heard(&shard);
    judge_until(at_ms, at_ms);
    ck_assert(!is_said("s0"));
}

TEST(a_shard_that_need_not_speak_is_not_silent)
{
    be_attached();
    awaited = false;
    uint64_t at_ms = judge_until(BEGIN_MS, BEGIN_MS + 20000);
    awaited = true;
    at_ms = judge_until(at_ms, at_ms + 4900);
    ck_assert(!is_said("s0"));
    at_ms = judge_until(at_ms, at_ms + 100);
    ck_assert(is_said("s0"));
    const size_t address_bytes = shard.address_bytes;
    shard.address_bytes = 0; // away, by the coordinator's word
    at_ms = judge_until(at_ms, at_ms + 20000);
    ck_assert(!is_said("s0"));
    shard.address_bytes = address_bytes;
    job.attachment.state = JOB_ATTACHING;
    at_ms = judge_until(at_ms, at_ms + 20000);
    ck_assert(!is_said("s0"));
}

/* ---- a shard that has left the job ---- */

static struct op op;
static struct parcel fetch, *parcels[] = { &fetch };

static cairn_status send_well(struct chunk_request *request)
{
    (void)request;
    return CAIRN_OK;
}

/* What it published is asked of it. On loan: this parcel is not given back. */
static void ask_it(void)
{
    fetch = (struct parcel) { .job = &job, .op = &op, .kind = CAIRN_CHUNK_FETCH, .on_loan = 1 };
    asker_open(&shard.asker, send_well);
    asker_ask(&shard.asker, &fetch.request);
    asker_pump(&shard.asker);
    shard.asked = 1;
    job.parcels.all = parcels;
    job.parcels.count = 1;
}

/* In the newest layout it is a hole. */
static struct served_layout *leave(void)
{
    static struct layout layout = { .shard_count = 1 };
    struct served_layout *served = calloc(1, sizeof *served + sizeof served->parts[0]);
    ck_assert_ptr_nonnull(served);
    served->layout = &layout;
    served->parts[0].absent = true;
    return job.served = served;
}

TEST(what_a_silent_shard_is_asked_for_is_gone_as_soon_as_it_is_known_to_have_left)
{
    be_attached();
    ask_it();
    const uint64_t at_ms = judge_until(BEGIN_MS, BEGIN_MS + 60000);
    ck_assert(is_said("s0") && !fetch.answered);
    struct served_layout *served = leave();
    judge_until(at_ms, at_ms);
    ck_assert(!is_said("s0"));
    ck_assert(fetch.answered);
    ck_assert_int_eq(fetch.status, CAIRN_ERR_VERSION_GONE);
    free(served);
}

/* Its process may live, and know nothing of the job any more. */
TEST(who_left_and_says_nothing_has_nothing_although_this_host_has_its_memory)
{
    struct sentence why = { "" };
    const struct fabric_options options = { .on_message = on_nothing };
    fabric_close(session.path.fabric);
    ck_assert_msg(fabric_open("mapped", &options, &session.path.fabric, &why) == CAIRN_OK, "%s",
                  why.text);
    shard.address = (uint8_t *)(uintptr_t)fabric_own_address(session.path.fabric,
                                                             &shard.address_bytes);
    ck_assert_int_eq(fabric_connect_to(session.path.fabric, shard.address, shard.address_bytes,
                                       NULL, NULL, &shard.conn.peer),
                     CAIRN_OK);
    ck_assert(chunk_link_shares(&shard.conn));
    be_attached();
    ask_it();
    struct served_layout *served = leave();
    judge_until(BEGIN_MS, BEGIN_MS + 5100);
    ck_assert(fetch.answered);
    ck_assert_int_eq(fetch.status, CAIRN_ERR_VERSION_GONE);
    fabric_peer_close(shard.conn.peer);
    free(served);
}

/* A cluster whose shards have not joined is there all the same. */
TEST(shards_are_waited_for_within_the_time_of_the_connect)
{
    const Cairn__Welcome welcome = CAIRN__WELCOME__INIT;
    struct sentence why;
    struct session remote = { .connect_ms = 200 };
    cairn_status status;
    const uint64_t begin_ms = monotonic_ms();
    memcpy(remote.env.values[CAIRN_ENV_FABRIC].text, "none such",
           sizeof "none such"); // it stops there
    memcpy(remote.endpoint.host, "192.0.2.1", sizeof "192.0.2.1");
    ck_assert(!datapath_choose(&remote, &welcome, &why, &status));
    while (!datapath_choose(&remote, &welcome, &why, &status)) poll(NULL, 0, 1);
    const uint64_t took_ms = monotonic_ms() - begin_ms;
    ck_assert_uint_ge(took_ms, 100);
    ck_assert_uint_lt(took_ms, 3000);
    ck_assert_int_ne(status, CAIRN_OK);
}

SUITE(30, set_up, tear_down);
