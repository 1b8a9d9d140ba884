/* Snapshots above their storage: on one in memory as on folders; blocks written and read by several
 * threads; every call of the storage failing once; every flipped bit found, by name. */
#include <inttypes.h>
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/memory_storage.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/snapshot_sample.h"
#include "tests/support/suite.h"

#define BIG 3000000 /* elements of a tensor: several blocks a file */

static void enter(void)
{
    scratch_make();
    cairn_memory_storage_open();
}

/* A job of two tensors on two shards, each with half of both. */
struct sample {
    struct cairn_sample_making made; /* its folder NULL: it was not made */
    uint64_t elems;
};

static struct sample sample_of(uint64_t elems)
{
    struct sample s = { .made.spec = cairn_sample_vectors("adamw", "ab", elems), .elems = elems };
    manifest_init(&s.made.manifest);
    ck_assert_int_eq(spec_copy(&s.made.spec, &s.made.manifest.spec), CAIRN_OK);
    return s;
}

static void release(struct sample *s)
{
    cairn_sample_end(&s->made);
}

static cairn_status write_shard(struct sample *s, uint32_t shard, struct sentence *why)
{
    const uint64_t half = s->elems / 2, first = shard * half;
    const uint64_t count = shard == 0 ? half : s->elems - half;
    const struct snapshot_range ranges[] = { { 0, first, count }, { 1, first, count } };
    struct snapshot_plan plan;
    ck_assert_int_eq(snapshot_plan_make(&s->made.spec, shard, ranges, 2, &plan), CAIRN_OK);
    struct snapshot_writer *writer;
    cairn_status status = snapshot_writer_open(3, &writer, why);
    const struct snapshot_input source = { .fill = cairn_sample_fill };
    for (size_t i = 0; i < plan.file_count && status == CAIRN_OK; i++) {
        const struct snapshot_file *file = &plan.files[i];
        const uint64_t blocks = snapshot_block_count(file->file_bytes);
        uint8_t *sums = malloc(blocks * CAIRN_SNAPSHOT_SUM_BYTES);
        status = snapshot_writer_put(writer, s->made.folder, file, &source, sums, why);
        if (status == CAIRN_OK)
            status = manifest_add_file(&s->made.manifest, file->path, file->file_bytes, sums,
                                       false);
        free(sums);
    }
    snapshot_writer_close(writer);
    snapshot_plan_release(&plan);
    return status;
}

static cairn_status write_sample(struct sample *s, const char *root, struct sentence *why)
{
    cairn_status status = snapshot_folder_make(root, "job", 1, 1, s->made.id, &s->made.folder, why);
    for (uint32_t shard = 0; shard < 2 && status == CAIRN_OK; shard++)
        status = write_shard(s, shard, why);
    return status == CAIRN_OK ? manifest_commit(s->made.folder, &s->made.manifest, why) : status;
}

static void check_elements(struct snapshot *snapshot, uint64_t first, uint64_t count)
{
    uint32_t *out = malloc(count * sizeof *out);
    struct sentence why = { "" };
    for (uint32_t tensor = 0; tensor < 2; tensor++) {
        for (uint32_t plane = CAIRN_PLANE_PARAM; plane < CAIRN_PLANE_COUNT; plane++) {
            if (plane == CAIRN_PLANE_WIRE || plane == CAIRN_PLANE_EMA) continue;
            const cairn_status status = snapshot_read(snapshot, tensor, plane, first, count, out,
                                                      &why);
            ck_assert_msg(status == CAIRN_OK, "%s", why.text);
            uint64_t wrong = 0; // an assertion each would take a minute
            for (uint64_t i = 0; i < count; i++)
                wrong += out[i] != cairn_sample_value(tensor, plane, first + i);
            ck_assert_uint_eq(wrong, 0);
        }
    }
    free(out);
}

TEST_EACH(any_range_of_files_of_many_blocks_comes_back_from_folders_and_from_memory, 0, 2)
{
    const char *root = _i == 0 ? scratch : "mem:x";
    struct sample s = sample_of(BIG);
    struct sentence why = { "" };
    ck_assert_msg(write_sample(&s, root, &why) == CAIRN_OK, "%s", why.text);
    struct snapshot snapshot;
    ck_assert_msg(snapshot_open(s.made.folder, &snapshot, &why) == CAIRN_OK, "%s", why.text);
    ck_assert_uint_gt(snapshot.manifest.files[2].block_count, 4); // optim/
    check_elements(&snapshot, 0, BIG);
    check_elements(&snapshot, BIG / 2 - 3, 7);
    check_elements(&snapshot, BIG - 1, 1);
    ck_assert_msg(snapshot_verify(&snapshot, NULL, &why) == CAIRN_OK, "%s", why.text);
    snapshot_close(&snapshot);
    ck_assert_uint_eq(cairn_sample_count(root, "job"), 1);
    struct snapshot_removed removed;
    ck_assert_msg(snapshot_remove(root, "job", s.made.id, &removed, &why) == CAIRN_OK, "%s",
                  why.text);
    ck_assert_uint_eq(removed.files, s.made.manifest.file_count + 1);
    ck_assert_uint_eq(cairn_sample_count(root, "job"), 0);
    release(&s);
}

/* Whichever call of the storage fails, of writing or committing: the snapshot is not there, or it is whole.
 * */
TEST(whatever_fails_once_a_snapshot_is_whole_or_is_none)
{
    struct sentence why = { "" };
    struct sample whole = sample_of(BIG);
    ck_assert_msg(write_sample(&whole, "mem:x", &why) == CAIRN_OK, "%s", why.text);
    const uint64_t calls = cairn_memory_storage_calls();
    release(&whole);
    for (uint64_t n = 1; n <= calls; n++) {
        struct sample s = sample_of(n % 8 == 0 ? BIG : 1000); // the small one has fewer calls
        why.text[0] = '\0';
        cairn_memory_storage_open();
        cairn_memory_storage_fail(n, n % 2 == 0 ? CAIRN_ERR_IO : CAIRN_ERR_NO_SPACE);
        const cairn_status status = write_sample(&s, "mem:x", &why);
        cairn_memory_storage_fail(0, CAIRN_OK);
        if (status != CAIRN_OK) {
            ck_assert_int_eq(status, n % 2 == 0 ? CAIRN_ERR_IO : CAIRN_ERR_NO_SPACE);
            ck_assert_msg(strstr(why.text, "a fault of the test") != NULL, "%s", why.text);
        }
        ck_assert_uint_eq(cairn_sample_count("mem:x", NULL), status == CAIRN_OK);
        if (status == CAIRN_OK) {
            struct snapshot snapshot;
            ck_assert_int_eq(snapshot_open(s.made.folder, &snapshot, &why), CAIRN_OK);
            ck_assert_int_eq(snapshot_verify(&snapshot, NULL, &why), CAIRN_OK);
            snapshot_close(&snapshot);
        }
        release(&s);
    }
}

TEST(a_read_that_fails_is_told_and_not_taken_for_damage)
{
    struct sample s = sample_of(BIG);
    struct sentence why = { "" };
    struct snapshot snapshot;
    ck_assert_int_eq(write_sample(&s, "mem:x", &why), CAIRN_OK);
    ck_assert_int_eq(snapshot_open(s.made.folder, &snapshot, &why), CAIRN_OK);
    cairn_memory_storage_fail(5, CAIRN_ERR_IO);
    ck_assert_int_eq(snapshot_verify(&snapshot, NULL, &why), CAIRN_ERR_IO);
    ck_assert_msg(strstr(why.text, "shard-0000") != NULL, "%s", why.text);
    cairn_memory_storage_fail(0, CAIRN_OK);
    ck_assert_int_eq(snapshot_verify(&snapshot, NULL, &why), CAIRN_OK);
    snapshot_close(&snapshot);
    release(&s);
}

/* ---- storage that hangs, or vanishes ---- */

struct hanging {
    struct sample sample;
    struct sentence why;
    cairn_status status;
};

static void *write_hanging(void *context)
{
    struct hanging *h = context;
    h->status = write_sample(&h->sample, "mem:x", &h->why);
    return NULL;
}

TEST(storage_that_hangs_holds_up_nothing_but_its_snapshot)
{
    struct hanging hanging = { .sample = sample_of(BIG) };
    struct sample other = sample_of(BIG);
    struct sentence why = { "" };
    struct snapshot snapshot;
    pthread_t thread;
    cairn_memory_storage_hang(true);
    ck_assert_int_eq(pthread_create(&thread, NULL, write_hanging, &hanging), 0);
    ck_assert_msg(write_sample(&other, scratch, &why) == CAIRN_OK, "%s", why.text);
    ck_assert_int_eq(snapshot_open(other.made.folder, &snapshot, &why), CAIRN_OK);
    ck_assert_int_eq(snapshot_verify(&snapshot, NULL, &why), CAIRN_OK);
    snapshot_close(&snapshot);
    ck_assert_uint_eq(cairn_sample_count("mem:x", NULL), 0); // it hangs before its manifest
    cairn_memory_storage_hang(false);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_msg(hanging.status == CAIRN_OK, "%s", hanging.why.text);
    ck_assert_uint_eq(cairn_sample_count("mem:x", NULL), 1);
    release(&hanging.sample);
    release(&other);
}

/* Gone before a file is begun, or before the manifest is. */
TEST_EACH(a_folder_that_vanishes_fails_the_snapshot_and_is_named, 0, 2)
{
    struct sample s = sample_of(1000);
    struct sentence why = { "" };
    char moved[CAIRN_SCRATCH_BYTES + 8];
    snprintf(moved, sizeof moved, "%s/moved", scratch);
    ck_assert_int_eq(snapshot_folder_make(scratch, "job", 1, 1, s.made.id, &s.made.folder, &why),
                     CAIRN_OK);
    if (_i == 1)
        for (uint32_t shard = 0; shard < 2; shard++)
            ck_assert_int_eq(write_shard(&s, shard, &why), CAIRN_OK);
    ck_assert_int_eq(rename(s.made.folder, moved), 0);
    const cairn_status status = _i == 1 ? manifest_commit(s.made.folder, &s.made.manifest, &why)
                                        : write_shard(&s, 0, &why);
    ck_assert_msg(status == (_i == 1 ? CAIRN_ERR_CORRUPT : CAIRN_ERR_IO), "%d: %s", status,
                  why.text);
    ck_assert_msg(strstr(why.text, _i == 1 ? "is not there" : "is the storage mounted") != NULL,
                  "%s", why.text);
    ck_assert_msg(strstr(why.text, _i == 1 ? "shard-0000" : s.made.folder) != NULL, "%s", why.text);
    release(&s);
}

/* ---- flips ---- */

struct damages {
    size_t count;
    char first[600];
};

static void note(void *context, const char *what)
{
    struct damages *d = context;
    if (d->count++ == 0) snprintf(d->first, sizeof d->first, "%s", what);
}

/* Every bit matters: open refuses it, or verify names file and block, and what lies there. */
static void flip_one(const struct sample *s, uint64_t random)
{
    const struct manifest_file *file =
        &s->made.manifest.files[random % s->made.manifest.file_count];
    size_t count;
    uint8_t *bytes = cairn_memory_storage_bytes(s->made.folder, file->path, &count);
    ck_assert_uint_eq(count, file->bytes);
    const uint64_t bit = random / 64 % (count * 8);
    struct snapshot snapshot;
    struct sentence why = { "" };
    struct damages damages = { 0 };
    const struct verify verify = { .damage = note, .context = &damages };
    bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    const cairn_status status = snapshot_open(s->made.folder, &snapshot, &why);
    if (status == CAIRN_OK) {
        ck_assert_int_eq(snapshot_verify(&snapshot, &verify, &why), CAIRN_ERR_CHECKSUM);
        ck_assert_uint_eq(damages.count, 1);
        ck_assert_msg(strstr(damages.first, "block 0") != NULL &&
                          strstr(damages.first, "; in it: ") != NULL,
                      "%s", damages.first);
        snapshot_close(&snapshot);
    }
    ck_assert_msg(strstr(why.text, file->path) != NULL || strstr(why.text, "plane") != NULL,
                  "bit %" PRIu64 " of %s: %s", bit, file->path, why.text);
    bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
}

TEST(every_flipped_bit_is_found_by_name)
{
    const uint64_t flips = getenv("CAIRN_TEST_LONG") != NULL ? 100000 : 1000;
    struct sample s = sample_of(300);
    struct sentence why = { "" };
    uint64_t random = 42;
    ck_assert_int_eq(write_sample(&s, "mem:x", &why), CAIRN_OK);
    for (uint64_t i = 0; i < flips; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        flip_one(&s, random >> 16);
    }
    release(&s);
}

TEST(a_flipped_bit_of_the_manifest_is_found)
{
    struct sample s = sample_of(300);
    struct sentence why = { "" };
    size_t count;
    ck_assert_int_eq(write_sample(&s, "mem:x", &why), CAIRN_OK);
    uint8_t *bytes = cairn_memory_storage_bytes(s.made.folder, CAIRN_MANIFEST_NAME, &count);
    for (size_t bit = 0; bit < 8 * count; bit += 7) {
        struct manifest m;
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert_int_ne(manifest_load(s.made.folder, &m, &why), CAIRN_OK);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    release(&s);
}

/* The block of a later one is damaged: others are read, and it names its tensor. */
TEST(damage_concerns_the_block_that_it_is_in)
{
    struct sample s = sample_of(BIG);
    struct sentence why = { "" };
    struct snapshot snapshot;
    struct damages damages = { 0 };
    const struct verify verify = { .damage = note, .context = &damages };
    float out[10];
    size_t count;
    ck_assert_int_eq(write_sample(&s, "mem:x", &why), CAIRN_OK);
    uint8_t *bytes = cairn_memory_storage_bytes(s.made.folder, s.made.manifest.files[0].path,
                                                &count);
    bytes[count - 1] ^= 1; // model, shard 1: the last of b's first half
    ck_assert_int_eq(snapshot_open(s.made.folder, &snapshot, &why), CAIRN_OK);
    ck_assert_int_eq(snapshot_read(&snapshot, 0, CAIRN_PLANE_PARAM, 0, 10, out, &why), CAIRN_OK);
    ck_assert_int_eq(snapshot_read(&snapshot, 1, CAIRN_PLANE_PARAM, BIG / 2 - 10, 10, out, &why),
                     CAIRN_ERR_CHECKSUM);
    ck_assert_msg(strstr(why.text, "tensor b, plane param") != NULL, "%s", why.text);
    ck_assert_int_eq(snapshot_verify(&snapshot, &verify, &why), CAIRN_ERR_CHECKSUM);
    ck_assert_uint_eq(damages.count, 1);
    ck_assert_msg(strstr(damages.first, "; in it: b (param)") != NULL, "%s", damages.first);
    snapshot_close(&snapshot);
    release(&s);
}

SUITE(120, enter, scratch_remove);
