/* What a cluster does to the storage of snapshots, as commands that a test can kill between any two system
 * calls.
 *
 *   storage_steps create ROOT STEP    a snapshot of two shards, of that step, with several blocks a file
 *   storage_steps remove ROOT STEP
 *   storage_steps check ROOT          every listed snapshot opens and verifies; prints their ids, a line each
 *
 * exit 0; 1: it failed, and stderr says why; the check found a snapshot that is damaged: 5 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"

#define ELEMS \
    ((uint64_t)1300000) /* of a tensor that two shards share: the optimizer's file has three blocks */

static int fail(const struct sentence *why)
{
    fprintf(stderr, "storage_steps: %s\n", why->text);
    return 1;
}

static cairn_status fill(void *context, const struct safetensors_entry *entry, uint64_t first_elem,
                         uint64_t elem_count, void *to, struct sentence *why)
{
    float *out = to;
    (void)context;
    (void)why;
    for (uint64_t i = 0; i < elem_count; i++) out[i] = (float)(first_elem + i + entry->plane);
    return CAIRN_OK;
}

static cairn_status make_spec(struct job_spec_data *spec)
{
    char name[] = "w", group[] = "all", optimizer[] = "adamw";
    struct group_spec g = group_default();
    const struct tensor_spec t = { .name = name,
                                   .group = group,
                                   .kind = CAIRN_TRAINED,
                                   .wire = CAIRN_F32,
                                   .reduce = CAIRN_F32,
                                   .master = CAIRN_F32,
                                   .shape = { 1, { ELEMS } } };
    g.name = group;
    g.optimizer = optimizer;
    spec_init(spec);
    cairn_status status = spec_set_name(spec, "job");
    if (status == CAIRN_OK) status = spec_add_group(spec, &g);
    return status == CAIRN_OK ? spec_add_tensor(spec, &t) : status;
}

static cairn_status write_file(struct snapshot_writer *writer, const char *folder,
                               const struct snapshot_file *file, struct manifest *m,
                               struct sentence *why)
{
    const struct snapshot_input source = { .fill = fill };
    const uint64_t blocks = snapshot_block_count(file->file_bytes);
    uint8_t *sums = malloc((size_t)blocks * CAIRN_SNAPSHOT_SUM_BYTES);
    if (sums == NULL) return CAIRN_ERR_NO_MEMORY;
    cairn_status status = snapshot_writer_put(writer, folder, file, &source, sums, why);
    if (status == CAIRN_OK)
        status = manifest_add_file(m, file->path, file->file_bytes, sums, false);
    free(sums);
    return status;
}

static cairn_status write_shard(const char *folder, uint32_t shard, struct manifest *m,
                                struct sentence *why)
{
    const struct snapshot_range half = { 0, shard * ELEMS / 2, ELEMS / 2 };
    struct snapshot_plan plan;
    struct snapshot_writer *writer;
    cairn_status status = snapshot_plan_make(&m->spec, shard, &half, 1, &plan);
    if (status != CAIRN_OK) return status;
    status = snapshot_writer_open(2, &writer, why);
    if (status == CAIRN_OK) {
        for (size_t i = 0; i < plan.file_count && status == CAIRN_OK; i++)
            status = write_file(writer, folder, &plan.files[i], m, why);
        snapshot_writer_close(writer);
    }
    snapshot_plan_release(&plan);
    return status;
}

static int create(const char *root, uint64_t step)
{
    struct manifest m;
    struct sentence why = { "out of memory" };
    char id[CAIRN_SNAPSHOT_ID_BYTES], *folder = NULL;
    manifest_init(&m);
    m.generation = 1;
    m.step = step;
    m.shard_count = 2;
    cairn_status status = make_spec(&m.spec);
    if (status == CAIRN_OK) status = snapshot_folder_make(root, "job", 1, step, id, &folder, &why);
    for (uint32_t shard = 0; shard < 2 && status == CAIRN_OK; shard++)
        status = write_shard(folder, shard, &m, &why);
    if (status == CAIRN_OK) status = manifest_commit(folder, &m, &why);
    manifest_release(&m);
    free(folder);
    return status == CAIRN_OK ? 0 : fail(&why);
}

static int remove_one(const char *root, uint64_t step)
{
    struct snapshot_removed removed;
    struct sentence why = { "out of memory" };
    char id[CAIRN_SNAPSHOT_ID_BYTES];
    snapshot_id_make(1, step, 1, id);
    const cairn_status status = snapshot_remove(root, "job", id, &removed, &why);
    return status == CAIRN_OK ? 0 : fail(&why);
}

static void verify(void *context, const char *job, const char *id, const char *folder)
{
    struct snapshot snapshot;
    struct sentence why = { "" };
    cairn_status status = snapshot_open(folder, &snapshot, &why);
    (void)job;
    if (status == CAIRN_OK) {
        status = snapshot_verify(&snapshot, NULL, &why);
        snapshot_close(&snapshot);
    }
    if (status != CAIRN_OK) *(int *)context = 5;
    printf("%s%s%s\n", id, status == CAIRN_OK ? "" : " ", why.text);
}

static int check(const char *root)
{
    struct sentence why = { "" };
    int found = 0;
    const cairn_status status = snapshot_list(root, NULL, verify, &found, &why);
    return status == CAIRN_OK ? found : fail(&why);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "create") == 0)
        return create(argv[2], strtoull(argv[3], NULL, 10));
    if (argc == 4 && strcmp(argv[1], "remove") == 0)
        return remove_one(argv[2], strtoull(argv[3], NULL, 10));
    if (argc == 3 && strcmp(argv[1], "check") == 0) return check(argv[2]);
    fprintf(stderr, "usage: storage_steps create|remove ROOT STEP | check ROOT\n");
    return 2;
}
