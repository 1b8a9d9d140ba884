/* Jobs and snapshots that an operator takes away, with real daemons and the command line: their memory is
 * there again, and so is their place among the 64 jobs of a shard. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

enum { JOBS_MAX = 64, LARGE = 6 << 20 };

static cairn_status open_job(cairn *session, const char *name, uint64_t elems, cairn_job **job)
{
    struct tiny_job tiny;
    tiny_describe(&tiny, elems);
    tiny.spec.chunk_leaves = 4;
    return cairn_job_open(session, name, &tiny.spec, CAIRN_WORKER, CLUSTER_WAIT_MS, job);
}

TEST(what_is_dropped_gives_its_memory_and_its_place_back)
{
    static const char *const shard_set[] = { "memory.limit=256MiB", "compute.threads=1", NULL };
    const struct cluster_options options = { .shard_set = shard_set };
    struct cluster cluster;
    cairn_job *jobs[JOBS_MAX], *large, *last;
    char name[32];
    cluster_start(&cluster, 1, &options);
    cairn *session = tiny_session(&cluster, NULL);
    cairn *second = tiny_session(&cluster, NULL); // one has at most 64 jobs open

    good(open_job(session, "large", LARGE, &large));
    good(cairn_init_done(large, NULL, CLUSTER_WAIT_MS));
    ck_assert_int_eq(open_job(session, "other", LARGE, &last), CAIRN_ERR_NO_MEMORY);
    cluster_says(&cluster, 11, "in use", "job", "drop", "large", "--yes", NULL);
    cairn_job_close(large);
    cluster_says(&cluster, 2, "--yes", "job", "drop", "large", NULL);
    cluster_says(&cluster, 4, "no job", "job", "drop", "none", "--yes", NULL);
    cluster_says(&cluster, 0, "\"shards\": 1", "job", "drop", "large", "--yes", "-o", "json", NULL);
    good(open_job(session, "other", LARGE, &last));
    cairn_job_close(last);
    cluster_says(&cluster, 0, "given its memory back", "job", "drop", "other", "--yes", NULL);

    for (int i = 0; i < JOBS_MAX; i++) {
        snprintf(name, sizeof name, "job-%d", i);
        good(open_job(session, name, 10, &jobs[i]));
    }
    good(open_job(second, "one-more", 10, &last)); // a shard holds many more than a session opens
    cairn_job_close(last);
    cluster_says(&cluster, 0, "job-7", "job", "drop", "job-7", "--yes", "--force", NULL);
    cairn_job_close(jobs[7]);
    good(open_job(second, "one-more", 10, &last));
    good(cairn_init_done(last, NULL, CLUSTER_WAIT_MS));
    cairn_close(second);
    cairn_close(session);
    cluster_stop(&cluster);
}

TEST(a_snapshot_is_removed_when_it_is_asked_for_by_id)
{
    struct cluster cluster;
    char id[128];
    cairn *session;
    cairn_job *job;
    cluster_start(&cluster, 1, NULL);
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = cluster.address };
    good(cairn_open(&opts, &session));
    good(open_job(session, "tiny", 10, &job));
    good(cairn_init_done(job, NULL, CLUSTER_WAIT_MS));
    cluster_word(&cluster, id, "snapshot", "create", "-q", "tiny", "--wait", NULL);
    cluster_says(&cluster, 2, "--yes", "snapshot", "rm", "tiny", id, NULL);
    cluster_says(&cluster, 4, "", "snapshot", "rm", "tiny", "step-000000000077-g1", "--yes", NULL);
    cluster_says(&cluster, 0, "\"files\": 4", "snapshot", "rm", "tiny", id, "--yes", "--force",
                 "-ojson", NULL);
    cluster_says(&cluster, 4, "", "snapshot", "show", "tiny", id, NULL);
    cairn_close(session);
    cluster_stop(&cluster);
}

SUITE(110);
