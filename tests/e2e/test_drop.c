/* Jobs and snapshots that an operator takes away, with real daemons and the command line: their memory is
 * there again, and so is their place among the 64 jobs of a shard. */
#include <stdlib.h>
#include <unistd.h>
#include <uv.h>

#include "tests/e2e/scene.h"
#include "tests/support/test_backend.h"

enum { JOBS_MAX = 64, LARGE = 6 << 20 };

static cairn_status open_job(cairn *of, const char *name, uint64_t elems, cairn_job **job_out)
{
    return cairn_job_open(of, name, &TINY(elems, .chunk_leaves = 4)->spec, CAIRN_WORKER,
                          CLUSTER_WAIT_MS, job_out);
}

TEST(what_is_dropped_gives_its_memory_and_its_place_back)
{
    cairn_job *jobs[JOBS_MAX], *large, *last;
    char name[32];
    start(1, .shard_set = SETTINGS("memory.limit=256MiB", "compute.threads=1"));
    session = trainer_session(cluster.address, NULL);
    cairn *second = trainer_session(cluster.address, NULL); // one has at most 64 jobs open

    good(open_job(session, "large", LARGE, &large));
    good(cairn_init_done(large, NULL, CLUSTER_WAIT_MS));
    // The limit is of host memory: state that lies on a card has room for both.
    if (strcmp(cairn_test_backend(), "cuda") == 0)
        printf("note: memory.limit binds no state on a card: no second job is refused there\n");
    else
        ck_assert_int_eq(open_job(session, "other", LARGE, &last), CAIRN_ERR_NO_MEMORY);
    says(11, "in use", "job drop large --yes");
    cairn_job_close(large);
    says(2, "--yes", "job drop large");
    says(4, "no job", "job drop none --yes");
    says(0, "\"shards\": 1", "job drop large --yes -o json");
    good(open_job(session, "other", LARGE, &last));
    cairn_job_close(last);
    says(0, "given its memory back", "job drop other --yes");

    for (int i = 0; i < JOBS_MAX; i++) {
        snprintf(name, sizeof name, "job-%d", i);
        good(open_job(session, name, 10, &jobs[i]));
    }
    good(open_job(second, "one-more", 10, &last)); // a shard holds many more than a session opens
    cairn_job_close(last);
    says(0, "job-7", "job drop job-7 --yes --force");
    cairn_job_close(jobs[7]);
    good(open_job(second, "one-more", 10, &last));
    good(cairn_init_done(last, NULL, CLUSTER_WAIT_MS));
    cairn_close(second);
}

/* As many as a cluster has, on one shard: with CAIRN_TEST_LONG alone, since it takes half a minute. */
TEST(a_shard_holds_as_many_jobs_as_the_cluster_may_have)
{
    enum { MOST = 1024, OF_SESSION = 64 };
    cairn *sessions[MOST / OF_SESSION], *more;
    char name[32];
    if (getenv("CAIRN_TEST_LONG") == NULL) return;
    start(1, .shard_set = SETTINGS("memory.limit=8GiB", "compute.threads=1"));
    const uint64_t begin_ns = uv_hrtime();
    for (int i = 0; i < MOST; i++) {
        if (i % OF_SESSION == 0) sessions[i / OF_SESSION] = trainer_session(cluster.address, NULL);
        snprintf(name, sizeof name, "job-%d", i);
        good(open_job(sessions[i / OF_SESSION], name, 10, &job));
        good(cairn_init_done(job, NULL, CLUSTER_WAIT_MS));
    }
    printf("%d jobs: %.1f s\n", MOST, (double)(uv_hrtime() - begin_ns) * 1e-9);
    more = trainer_session(cluster.address, NULL);
    fails(open_job(more, "more", 10, &job), CAIRN_ERR_REFUSED, "there are 1024 jobs");
    cairn_close(more);
    for (int i = 0; i < MOST / OF_SESSION; i++) cairn_close(sessions[i]);
}

TEST(a_snapshot_is_removed_when_it_is_asked_for_by_id)
{
    char id[128];
    start(1);
    join("tiny", TINY(10, .chunk_leaves = 4));
    word_of(id, "snapshot create -q tiny --wait");
    says(2, "--yes", "snapshot rm tiny %s", id);
    says(4, "", "snapshot rm tiny step-000000000077-g1 --yes");
    says(0, "\"files\": 4", "snapshot rm tiny %s --yes --force -ojson", id);
    says(4, "", "snapshot show tiny %s", id);
}

/* ---- the same in C ---- */

TEST(a_program_lists_drops_and_restores_jobs_of_its_cluster)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_job_entry entries[2] = { { .struct_size = sizeof *entries } };
    struct cairn_version version;
    char first[64], id[64];
    size_t count = 0;
    start(1);
    session = trainer_session(cluster.address, NULL);
    good(cairn_job_list(session, NULL, &count, CLUSTER_WAIT_MS));
    ck_assert_uint_eq(count, 0);
    job = tiny_open(session, "tiny", TINY(10));
    train(1);
    good(cairn_snapshot(job, CAIRN_SNAPSHOT_WAIT, CLUSTER_WAIT_MS, first));
    train(1);
    fails(cairn_job_list(session, NULL, &count, CLUSTER_WAIT_MS), CAIRN_ERR_INVALID, "there are 1");
    ck_assert_uint_eq(count, 1);
    count = 2;
    good(cairn_job_list(session, entries, &count, CLUSTER_WAIT_MS));
    ck_assert(count == 1 && strcmp(entries[0].name, "tiny") == 0 && entries[0].workers == 1);
    ck_assert(strcmp(entries[0].state, "running") == 0 && entries[0].version_known &&
              entries[0].version.step == 2 && entries[0].elems == 10 && entries[0].tensors == 1);

    fails(cairn_job_list(session, entries, &count, 0), CAIRN_ERR_TIMEOUT, "within 0 ms");
    fails(cairn_job_drop(session, "none", 0, CLUSTER_WAIT_MS), CAIRN_ERR_NOT_FOUND, "none");
    fails(cairn_job_drop(session, "tiny", 0, CLUSTER_WAIT_MS), CAIRN_ERR_BUSY, "CAIRN_DROP_FORCE");
    fails(cairn_job_drop(session, "tiny", 2, CLUSTER_WAIT_MS), CAIRN_ERR_INVALID, "flags");
    fails(cairn_job_restore(session, "tiny", "latest", 0, CLUSTER_WAIT_MS, NULL, NULL),
          CAIRN_ERR_EXISTS, "step 2, and open by 1 worker");
    good(cairn_job_restore(session, "tiny", "latest", CAIRN_RESTORE_REPLACE, CLUSTER_WAIT_MS, id,
                           &version));
    ck_assert_str_eq(id, first);
    ck_assert_uint_eq(version.step, 1);
    fails(cairn_round_begin(job, CLUSTER_WAIT_MS, &round), CAIRN_ERR_ROLLED_BACK, "");
    cairn_job_close(job);
    job = tiny_open(session, "tiny", TINY(10));
    ck_assert_uint_eq(tiny_step(job), version.step + 1);

    good(cairn_job_drop(session, "tiny", CAIRN_DROP_FORCE, CLUSTER_WAIT_MS));
    fails(cairn_round_begin(job, CLUSTER_WAIT_MS, &round), CAIRN_ERR_CANCELED, "dropped");
    cairn_job_close(job);
    good(cairn_job_list(session, entries, &count, CLUSTER_WAIT_MS));
    ck_assert_uint_eq(count, 0);
    good(cairn_job_restore(session, "tiny", id, 0, CLUSTER_WAIT_MS, NULL, NULL));
    kill_coordinator();
    fails(cairn_job_list(session, NULL, &count, CLUSTER_WAIT_MS), CAIRN_ERR_UNREACHABLE,
          "is it running");
    restart_coordinator();
    cairn *closed = session;
    leave();
    ck_assert_int_eq(cairn_job_list(closed, NULL, &count, 0), CAIRN_ERR_HANDLE);
}

SUITE(110, .tear_down = stop);
