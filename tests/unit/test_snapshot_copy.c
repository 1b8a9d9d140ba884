/* A snapshot that is read in another order than its files', as an export does, and one that is copied. */
#include <inttypes.h>
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "tests/support/memory_storage.h"
#include "tests/support/snapshot_sample.h"
#include "tests/support/suite.h"

#define ELEMS      3000000 /* of a tensor, whose halves two shards have: several blocks a file */
#define STEP_ELEMS 100000

static struct snapshot snapshot;
static uint64_t all_bytes; /* of its files */

static void set_up(void)
{
    struct job_spec_data spec = cairn_sample_spec("adamw");
    struct sentence why = { "" };
    cairn_memory_storage_open();
    cairn_sample_tensor(&spec, "a", CAIRN_TRAINED, (struct shape) { 2, { 2, ELEMS / 2 } });
    cairn_sample_tensor(&spec, "b", CAIRN_TRAINED, (struct shape) { 2, { 2, ELEMS / 2 } });
    char *folder = cairn_sample_snapshot("mem:x", &spec, 1);
    ck_assert_msg(snapshot_open(folder, &snapshot, &why) == CAIRN_OK, "%s", why.text);
    all_bytes = 0;
    for (size_t i = 0; i < snapshot.manifest.file_count; i++)
        all_bytes += snapshot.manifest.files[i].bytes;
    free(folder);
    spec_release(&spec);
}

static void tear_down(void)
{
    snapshot_close(&snapshot);
    cairn_memory_storage_open();
}

/* ---- another order ---- */

/* The n-th of the steps in which all of it is read: tensor by tensor, plane by plane. */
struct step {
    uint32_t tensor, plane;
    uint64_t first_elem;
};

static bool step_at(size_t n, struct step *step_out)
{
    static const uint32_t planes[] = { CAIRN_PLANE_PARAM, CAIRN_PLANE_EXP_AVG,
                                       CAIRN_PLANE_EXP_AVG_SQ };
    const size_t steps = ELEMS / STEP_ELEMS;
    *step_out = (struct step) { (uint32_t)(n / steps / 3), planes[n / steps % 3],
                                n % steps * STEP_ELEMS };
    return step_out->tensor < 2;
}

static void read_step(const struct step *step)
{
    static uint32_t elems[STEP_ELEMS];
    struct sentence why = { "" };
    const cairn_status status = snapshot_read(&snapshot, step->tensor, step->plane,
                                              step->first_elem, STEP_ELEMS, elems, &why);
    ck_assert_msg(status == CAIRN_OK, "%s", why.text);
    uint64_t wrong = 0; // an assertion each would take a minute
    for (uint64_t i = 0; i < STEP_ELEMS; i++)
        wrong += elems[i] != cairn_sample_value(step->tensor, step->plane, step->first_elem + i);
    ck_assert_uint_eq(wrong, 0);
}

TEST(each_block_is_read_once_by_who_wants_the_files_by_turns)
{
    const uint64_t before = cairn_memory_storage_read_bytes();
    struct step step, next;
    uint64_t wanted_elems = 0;
    snapshot.ahead = 16; // no fewer than twice the places that are read from
    for (size_t n = 0, wanted = 0; step_at(n, &step); n++) {
        while (step_at(wanted, &next)) {
            wanted_elems += snapshot_want(&snapshot, next.tensor, next.plane,
                                          next.first_elem + wanted_elems,
                                          STEP_ELEMS - wanted_elems);
            if (wanted_elems < STEP_ELEMS) break;
            wanted_elems = 0;
            wanted++;
        }
        ck_assert_uint_gt(wanted, n); // what is read now was fetched before
        read_step(&step);
    }
    ck_assert_uint_eq(cairn_memory_storage_read_bytes() - before, all_bytes);
}

/* What was wanted and never read is in nobody's way, nor is what nobody has. */
TEST(what_is_wanted_in_vain_is_given_up_for_what_is_needed)
{
    struct step step;
    snapshot.ahead = 2;
    ck_assert_uint_eq(snapshot_want(&snapshot, 7, CAIRN_PLANE_PARAM, 0, 1), 0);
    ck_assert_uint_lt(snapshot_want(&snapshot, 0, CAIRN_PLANE_EXP_AVG, 0, ELEMS), ELEMS);
    for (size_t n = 0; step_at(n, &step); n += 17) read_step(&step);
}

/* ---- copies ---- */

static void is_copied(const char *folder)
{
    for (size_t i = 0; i < snapshot.manifest.file_count; i++) {
        const char *path = snapshot.manifest.files[i].path;
        size_t count, copied;
        const uint8_t *bytes = cairn_memory_storage_bytes(snapshot.folder, path, &count);
        const uint8_t *theirs = cairn_memory_storage_bytes(folder, path, &copied);
        ck_assert(theirs != NULL && copied == count && memcmp(bytes, theirs, count) == 0);
    }
}

static bool note_progress(void *context, uint64_t done)
{
    uint64_t *all = context;
    ck_assert_uint_ge(done, *all);
    *all = done;
    return true;
}

/* Of a copy to `root` whose n-th call of the storage fails (0: none). */
static cairn_status copy_failing(const char *root, uint64_t n)
{
    uint64_t done = 0;
    char *folder = NULL;
    struct sentence why = { "" };
    const struct snapshot_copy copy = { .progress = note_progress, .context = &done };
    cairn_memory_storage_fail(n, CAIRN_ERR_NO_SPACE);
    const cairn_status status = snapshot_copy(&snapshot, root, &copy, &folder, &why);
    cairn_memory_storage_fail(0, CAIRN_OK);
    ck_assert_uint_eq(cairn_sample_count(root, NULL), status == CAIRN_OK);
    if (status == CAIRN_OK) {
        ck_assert_uint_eq(done, all_bytes);
        is_copied(folder);
    }
    free(folder);
    return status;
}

TEST(a_copy_has_every_byte_or_is_none_whatever_fails)
{
    const uint64_t before = cairn_memory_storage_calls();
    ck_assert_int_eq(copy_failing("mem:whole", 0), CAIRN_OK);
    const uint64_t calls = cairn_memory_storage_calls() - before;
    for (uint64_t n = 1; n <= calls; n += n % 7 + 1) {
        char root[32];
        snprintf(root, sizeof root, "mem:%" PRIu64, n);
        const cairn_status status = copy_failing(root, n);
        ck_assert(status == CAIRN_OK || status == CAIRN_ERR_NO_SPACE);
    }
}

static bool give_up(void *context, uint64_t done)
{
    return done < *(uint64_t *)context;
}

TEST(a_copy_that_is_given_up_leaves_nothing)
{
    uint64_t half = all_bytes / 2, bytes;
    char *folder = NULL;
    struct sentence why = { "" };
    const struct storage *storage = storage_of("mem:half");
    const struct snapshot_copy copy = { .progress = give_up, .context = &half };
    ck_assert_int_eq(snapshot_copy(&snapshot, "mem:half", &copy, &folder, &why),
                     CAIRN_ERR_CANCELED);
    char path[256];
    snprintf(path, sizeof path, "job/%s", strrchr(snapshot.folder, '/') + 1);
    ck_assert_int_eq(storage->stat("mem:half", path, &bytes, &why), CAIRN_ERR_NOT_FOUND);
}

SUITE(60, set_up, tear_down);
