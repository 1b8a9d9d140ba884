/* Snapshots for tests: a small job, elements of known value, shards that write what they own. */
#ifndef CAIRN_SUPPORT_SNAPSHOT_SAMPLE_H
#define CAIRN_SUPPORT_SNAPSHOT_SAMPLE_H

#include "proto/snapshot_io/snapshot_io.h"

/* A job "job" without tensors, with one group "all". The caller's to release. */
struct job_spec_data cairn_sample_spec(const char *optimizer);
/* A tensor of group "all", in f32; a blob in u8. */
void cairn_sample_tensor(struct job_spec_data *spec, const char *name, cairn_kind kind,
                         struct shape shape);

/* The bits of an element of a plane, the lowest 8 of a blob's; the same in tests/golden/check_snapshot.py. */
uint32_t cairn_sample_value(uint32_t tensor, uint32_t plane, uint64_t elem);
/* One element that is something else. */
extern struct cairn_sample_poke {
    bool set;
    uint32_t tensor, plane;
    uint64_t elem;
    uint32_t bits;
} cairn_sample_poke;
/* A snapshot_fill_fn that gives these; context is not used. */
cairn_status cairn_sample_fill(void *context, const struct safetensors_entry *entry,
                               uint64_t first_elem, uint64_t elem_count, void *to,
                               struct sentence *why);

struct cairn_sample_ranges {
    struct snapshot_range at[400];
    size_t count;
};
/* Writes the files of a shard that owns these, and lists them in the manifest. */
void cairn_sample_write(const char *folder, const struct job_spec_data *spec, uint32_t shard,
                        const struct cairn_sample_ranges *owned, struct manifest *manifest);
/* A snapshot that is being made beneath `root`, of shards that own what the test says:
 *
 *   struct cairn_sample_making s;
 *   cairn_sample_begin(&s, scratch, cairn_sample_vectors("sgd", "w", 10));
 *   cairn_sample_put(&s, 0, (struct snapshot_range) { 0, 0, 10 });
 *   cairn_sample_commit(&s);
 *   cairn_sample_end(&s); */
struct cairn_sample_making {
    struct job_spec_data spec; /* owned */
    struct manifest manifest;
    char id[CAIRN_SNAPSHOT_ID_BYTES];
    char *folder; /* owned */
};
/* A trained tensor of so many elements for each letter of `names`. */
struct job_spec_data cairn_sample_vectors(const char *optimizer, const char *names, uint64_t elems);
void cairn_sample_begin(struct cairn_sample_making *s, const char *root, struct job_spec_data spec);
void cairn_sample_put(struct cairn_sample_making *s, uint32_t shard, struct snapshot_range range);
void cairn_sample_commit(struct cairn_sample_making *s);
void cairn_sample_end(struct cairn_sample_making *s);
/* "<folder>/<name>", until the next call. */
const char *cairn_sample_path(const struct cairn_sample_making *s, const char *name);
/* How many snapshots of the job (NULL: of all) are listed there. */
size_t cairn_sample_count(const char *root, const char *job);

/* A whole snapshot of the spec at that step beneath root, by two shards: the first has all, but of each
 * tensor of more than one row the last. Its folder, the caller's to free. */
char *cairn_sample_snapshot(const char *root, const struct job_spec_data *spec, uint64_t step);

/* One file, with a writer of its own. */
cairn_status snapshot_write_file(const char *folder, const struct snapshot_file *file,
                                 snapshot_fill_fn fill, void *context, uint8_t *sums_out,
                                 struct sentence *why) CAIRN_MUST_CHECK;

#endif
