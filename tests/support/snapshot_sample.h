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
/* A whole snapshot of the spec at that step beneath root, by two shards: the first has all, but of each
 * tensor of more than one row the last. Its folder, the caller's to free. */
char *cairn_sample_snapshot(const char *root, const struct job_spec_data *spec, uint64_t step);

/* One file, with a writer of its own. */
cairn_status snapshot_write_file(const char *folder, const struct snapshot_file *file,
                                 snapshot_fill_fn fill, void *context, uint8_t *sums_out,
                                 struct sentence *why) CAIRN_MUST_CHECK;

#endif
