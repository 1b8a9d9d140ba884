/* A job of very many small tensors on one shard, with real daemons: trained, saved, digested, restored. Its
 * digests take many messages, and with CAIRN_TEST_LONG its spec passes what may wait for a connection. */
#include <stdlib.h>
#include <time.h>

#include "proto/base/xxh.h"
#include "proto/snapshot_io/snapshot_io.h"
#include "tests/e2e/scene.h"
#include "tests/support/processor.h"

static size_t tensor_count(void)
{
    return getenv("CAIRN_TEST_LONG") != NULL ? 200000 : 10000;
}

static void say(const char *what)
{
    static struct timespec last;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (last.tv_sec != 0)
        printf("%-10s %6.2f s\n", what,
               (double)(now.tv_sec - last.tv_sec) + 1e-9 * (double)(now.tv_nsec - last.tv_nsec));
    last = now;
}

struct many {
    size_t count;
    char (*names)[40];            /* owned: [count] */
    struct cairn_tensor *tensors; /* owned: [count] */
};

static struct many make_many(size_t count)
{
    struct many many = { count, calloc(count, sizeof *many.names),
                         calloc(count, sizeof *many.tensors) };
    for (size_t i = 0; i < count; i++) {
        snprintf(many.names[i], sizeof many.names[i], "block.%zu.scale", i);
        many.tensors[i] =
            (struct cairn_tensor) { .struct_size = sizeof *many.tensors,
                                    .name = many.names[i],
                                    .unit = "all",
                                    .rank = 1,
                                    .shape = { 3 },
                                    .init = { .kind = CAIRN_INIT_NORMAL, .b = 1, .seed = i } };
    }
    return many;
}

/* Processor time of a process, and of the thread that answers everybody, its first one. */
struct spent {
    double all_s, loop_s;
};

static struct spent spent(pid_t pid)
{
    return (struct spent) { (double)processor_time(pid).ran_ns * 1e-9,
                            (double)processor_time_of_thread(pid, pid).ran_ns * 1e-9 };
}

/* What one of many tensors took of a daemon: less than half of it on the thread that answers. */
static void expect_elsewhere(const char *what, pid_t pid, struct spent before)
{
    const struct spent now = spent(pid);
    const double loop_s = now.loop_s - before.loop_s, all_s = now.all_s - before.all_s;
    ck_assert_msg(loop_s < 0.5 * all_s, "%s: %.3f s of %.3f s on its loop", what, loop_s, all_s);
}

static void train_all(const struct many *many)
{
    float gradient[3] = { 0.5f, -1, 0.25f };
    struct cairn_result result = { .struct_size = sizeof result };
    const struct cairn_round round = trainer_begin(job);
    for (size_t i = 0; i < many->count; i++) trainer_push(job, &round, many->names[i], gradient);
    good(cairn_commit(job, &round, 1, NULL, 0, 4 * CLUSTER_WAIT_MS, &result));
    ck_assert_uint_eq(result.step, 1);
}

/* A byte of the file, its checksum, and the manifest's hash over itself: the content root alone tells. */
static void alter(const char *folder)
{
    struct manifest m;
    char path[1024];
    ck_assert_int_eq(manifest_load(folder, &m, NULL), CAIRN_OK);
    struct manifest_file *listed = &m.files[0];
    snprintf(path, sizeof path, "%s/%s", folder, listed->path);
    uint8_t *bytes = malloc(listed->bytes);
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fread(bytes, 1, listed->bytes, file), listed->bytes);
    bytes[listed->bytes - 2] ^= 1;
    rewind(file);
    ck_assert_uint_eq(fwrite(bytes, 1, listed->bytes, file), listed->bytes);
    fclose(file);
    for (uint64_t b = 0; b < listed->block_count; b++) {
        const uint64_t first = b * CAIRN_SNAPSHOT_BLOCK_BYTES, left = listed->bytes - first;
        snapshot_sum(bytes + first,
                     left < CAIRN_SNAPSHOT_BLOCK_BYTES ? (size_t)left : CAIRN_SNAPSHOT_BLOCK_BYTES,
                     listed->sums + b * CAIRN_SNAPSHOT_SUM_BYTES);
    }
    free(bytes);
    snprintf(path, sizeof path, "%s/" CAIRN_MANIFEST_NAME, folder);
    ck_assert_int_eq(remove(path), 0);
    snprintf(path, sizeof path, "%s/" CAIRN_MANIFEST_NAME ".minisig", folder);
    ck_assert_int_eq(remove(path), 0);
    ck_assert_int_eq(manifest_commit(folder, &m, NULL), CAIRN_OK);
    manifest_release(&m);
}

TEST(very_many_tensors_on_one_shard_are_trained_saved_digested_and_restored)
{
    char root[65], id[CLUSTER_WORD_BYTES];
    struct many many = make_many(tensor_count());
    const struct cairn_job_spec spec = TRAINER_SPEC(many.tensors, many.count, .workers_min = 1);
    start(1, .shard_set = SETTINGS("memory.limit=4GiB", "compute.threads=1"));
    say("");
    session = trainer_session(cluster.address, NULL);
    const struct spent coordinator = spent(cluster.coordinator), shard = spent(cluster.shards[0]);
    good(cairn_job_open(session, "many", &spec, CAIRN_WORKER, 4 * CLUSTER_WAIT_MS, &job));
    expect_elsewhere("coordinator", cluster.coordinator, coordinator);
    expect_elsewhere("shard", cluster.shards[0], shard);
    good(cairn_init_done(job, NULL, CLUSTER_WAIT_MS));
    say("attach");
    train_all(&many);
    say("step");
    trainer_digest(&cluster, "many", root);
    say("digest");
    word_of(id, "snapshot create -q many --wait --wait");
    say("snapshot");
    leave();
    says(0, "", "snapshot restore many %s --yes", id);
    say("restore");
    trainer_expect_digest(&cluster, "many", root);
    say("digest");

    const char *folder = snapshot_folder("many", id);
    alter(folder);
    ask("snapshot restore --path %s --yes --allow-unsigned", folder);
    ck_assert_int_ne(said.status, 0);
    expect_said(said.status, "its files have the content root");
    trainer_expect_digest(&cluster, "many", root); // it was not touched
    ask("snapshot restore --path %s --job other --yes --allow-unsigned", folder);
    ck_assert_int_ne(said.status, 0);
    expect_said(said.status, "the state the shards loaded has the content root");
    stop();
    free(many.names);
    free(many.tensors);
}

SUITE(600);
