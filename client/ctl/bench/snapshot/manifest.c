/* The manifest of a large snapshot: written with all that makes it durable, and read and judged. Nothing else
 * of the snapshot is there: its files are of the sizes that it says, and without blocks on the disk. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/bench/snapshot/snapshot.h"
#include "proto/snapshot/manifest.h"
#include "proto/snapshot_io/snapshot_io.h"

#define TENSORS_DEFAULT 100000
#define SHARDS_DEFAULT  256
#define ROWS            768 /* of 1024 columns: 79 G parameters, as large models are cut */
#define LIMIT_S         5.0

struct manifest_bench {
    char folder[PATH_MAX + 32];
    struct cairn_manifest manifest;
    uint32_t tensors, shards;
    double write_s, read_s; /* of the last run */
};

static char *borrowed(const char *text)
{
    return (char *)(uintptr_t)text; // the spec copies it
}

static cairn_status add_tensors(struct cairn_job_spec_data *spec, uint32_t count)
{
    struct cairn_group_spec group = cairn_group_default();
    group.name = borrowed("all");
    group.optimizer = borrowed("adamw");
    cairn_status status = cairn_spec_set_name(spec, "bench.manifest");
    if (status == CAIRN_OK) status = cairn_spec_add_group(spec, &group);
    for (uint32_t i = 0; i < count && status == CAIRN_OK; i++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.up_proj.weight", i / 512,
                 i % 512);
        const struct cairn_tensor_spec tensor = { .name = name,
                                                  .group = borrowed("all"),
                                                  .kind = CAIRN_TRAINED,
                                                  .wire = CAIRN_BF16,
                                                  .reduce = CAIRN_F32,
                                                  .master = CAIRN_F32,
                                                  .shape = { 2, { ROWS, CAIRN_BENCH_COLUMNS } } };
        status = cairn_spec_add_tensor(spec, &tensor);
    }
    cairn_spec_canonicalize(spec);
    return status;
}

/* A file of that size, which takes nothing of the disk. */
static bool make_file(const char *folder, const char *path, uint64_t bytes)
{
    char name[PATH_MAX + 128];
    snprintf(name, sizeof name, "%s/%s", folder, path);
    const int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const bool is_made = fd >= 0 && ftruncate(fd, (off_t)bytes) == 0;
    if (!is_made) (void)cairn_ctl_fail(CAIRN_ERR_IO, "%s: %s", name, strerror(errno));
    if (fd >= 0) close(fd);
    return is_made;
}

/* Makes the block sums of one file of the bench: [blocks], no two alike. NULL: there is no
 * memory. */
static uint8_t *make_sums(uint64_t blocks)
{
    const size_t bytes = (size_t)blocks * CAIRN_SNAPSHOT_SUM_BYTES;
    uint8_t *sums = malloc(bytes);
    for (size_t i = 0; sums != NULL && i < bytes; i++) sums[i] = (uint8_t)(i * 2654435761u >> 11);
    return sums;
}

/* Each shard's share of the parameters, and of both moments. */
static bool add_files(struct manifest_bench *m)
{
    static const char *const folders[] = { "model", "optim" };
    const uint64_t planes_bytes = (uint64_t)m->tensors * ROWS * CAIRN_BENCH_COLUMNS * 4;
    uint8_t *sums = make_sums(cairn_snapshot_block_count(2 * planes_bytes / m->shards));
    bool all_made = sums != NULL;
    for (uint32_t f = 0; f < 2 && all_made; f++) {
        char path[PATH_MAX + 64];
        snprintf(path, sizeof path, "%s/%s", m->folder, folders[f]);
        bool is_made = mkdir(path, 0700) == 0;
        for (uint32_t s = 1; s <= m->shards && is_made; s++) {
            const uint64_t bytes = (f + 1) * planes_bytes / m->shards;
            snprintf(path, sizeof path, "%s/shard-%05u-model-00001-of-00001.safetensors",
                     folders[f], s);
            is_made = make_file(m->folder, path, bytes) &&
                      cairn_manifest_add_file(&m->manifest, path, bytes, sums, false) == CAIRN_OK;
        }
        all_made = all_made && is_made;
    }
    free(sums);
    return all_made;
}

static bool make(struct manifest_bench *m, const struct snapshot_bench *b)
{
    snprintf(m->folder, sizeof m->folder, "%s/manifest", b->local->folder);
    cairn_manifest_init(&m->manifest);
    m->manifest.generation = m->manifest.step = m->manifest.epoch = 1;
    m->manifest.created_unix_s = 1;
    m->manifest.loss_scale = 1;
    m->manifest.shard_count = m->shards;
    if (mkdir(m->folder, 0700) == 0 && add_tensors(&m->manifest.spec, m->tensors) == CAIRN_OK &&
        add_files(m))
        return true;
    (void)cairn_ctl_fail(CAIRN_ERR_IO, "%s: a snapshot's folder cannot be made", m->folder);
    return false;
}

/* Seconds of both. */
static double write_and_read(void *context)
{
    struct manifest_bench *m = context;
    struct cairn_manifest read;
    struct cairn_sentence why;
    char path[sizeof m->folder + 32];
    snprintf(path, sizeof path, "%s/%s", m->folder, CAIRN_MANIFEST_NAME);
    unlink(path); // of the run before: no manifest takes another's place
    const double begin = cairn_bench_now();
    cairn_status status = cairn_manifest_commit(m->folder, &m->manifest, &why);
    const double written = cairn_bench_now();
    if (status == CAIRN_OK) status = cairn_manifest_load(m->folder, &read, &why);
    m->write_s = written - begin;
    m->read_s = cairn_bench_now() - written;
    if (status != CAIRN_OK) {
        (void)cairn_ctl_fail(status, "%s", why.text);
        return 0;
    }
    cairn_manifest_release(&read);
    return m->write_s + m->read_s;
}

static double limit(void *context)
{
    (void)context;
    return LIMIT_S;
}

static void report(struct snapshot_bench *b, const struct manifest_bench *m)
{
    char path[sizeof m->folder + 32];
    struct stat st;
    snapshot_set(b, "manifest_write_s", m->write_s);
    snapshot_set(b, "manifest_read_s", m->read_s);
    snprintf(path, sizeof path, "%s/%s", m->folder, CAIRN_MANIFEST_NAME);
    if (stat(path, &st) == 0) snapshot_set(b, "manifest_bytes", (double)st.st_size);
}

int snapshot_manifest(struct snapshot_bench *b)
{
    static struct manifest_bench m;
    const struct ctl_bench *asked = &b->ctl->bench;
    m.tensors = asked->tensors > 0 ? asked->tensors : TENSORS_DEFAULT;
    m.shards = SHARDS_DEFAULT;
    if (!make(&m, b)) return 1;
    const int done = cairn_bench_alternate(b->result, 0.001, write_and_read, limit, &m);
    if (done < 0) report(b, &m);
    cairn_manifest_release(&m.manifest);
    return done;
}
