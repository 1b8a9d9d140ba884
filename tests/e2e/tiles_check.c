#include "tests/e2e/tiles_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/trainer.h"

void tiles_train(const struct tiles_worker *pattern)
{
    struct tiles_run run;
    tiles_run_start(&run, pattern);
    tiles_run_join(&run);
}

/* What is read: a box of a plane of a tensor. */
struct reading {
    cairn_job *job;
    struct cairn_version version;
    int tensor, plane;
    const uint8_t *expected; /* [elements of the tensor] */
};

static size_t bytes_of(const struct reading *r)
{
    return r->plane == CAIRN_PLANE_WIRE ? dtype_size((int)tiles_tensors[r->tensor].wire) : 4;
}

/* box NULL: the whole tensor. */
static void *fetch(const struct reading *r, const struct cairn_box *box, uint64_t elems)
{
    const char *name = tiles_tensors[r->tensor].name;
    void *got = malloc(elems * bytes_of(r) + 1);
    const struct cairn_mem mem = { .struct_size = sizeof mem,
                                   .ptr = got,
                                   .dtype = r->plane == CAIRN_PLANE_WIRE
                                                ? tiles_tensors[r->tensor].wire
                                                : CAIRN_F32 };
    cairn_op *op;
    good(cairn_fetch(r->job, r->version, name, plane_name(r->plane), box, &mem, &op));
    good(cairn_wait(op, TILES_WAIT_MS));
    return got;
}

static void check_whole(const struct reading *r)
{
    const uint64_t elems = tiles_elems(r->tensor);
    void *got = fetch(r, NULL, elems);
    ck_assert_msg(memcmp(got, r->expected, elems * bytes_of(r)) == 0, "%s of %s has other bits",
                  plane_name(r->plane), tiles_tensors[r->tensor].name);
    free(got);
}

static void check_box(const struct reading *r, const struct cairn_box *box)
{
    const uint64_t elems = tiles_box_elems(box);
    const size_t bytes = bytes_of(r);
    uint8_t *got = fetch(r, box, elems);
    bool same = true; // one assertion: Check's process is told of each by a system call
    for (uint64_t k = 0; k < elems && same; k++)
        same = memcmp(got + k * bytes, r->expected + tiles_index(r->tensor, box, k) * bytes,
                      bytes) == 0;
    ck_assert_msg(same, "%s of %s has other bits in a box", plane_name(r->plane),
                  tiles_tensors[r->tensor].name);
    free(got);
}

/* Dimension d in d + 2 parts that are not equal. */
static void check_grid(const struct reading *r)
{
    const struct shape *shape = &tiles_tensors[r->tensor].shape;
    uint64_t boxes = 1;
    for (uint32_t d = 0; d < shape->rank; d++) boxes *= d + 2;
    for (uint64_t i = 0; i < boxes; i++) {
        struct cairn_box box = { .rank = shape->rank };
        uint64_t rest = i;
        for (uint32_t d = 0; d < shape->rank; rest /= d + 2, d++) {
            const uint64_t at = rest % (d + 2), dim = shape->dim[d];
            box.start[d] = dim * at * at / ((d + 2) * (d + 2));
            box.extent[d] = dim * (at + 1) * (at + 1) / ((d + 2) * (d + 2)) - box.start[d];
        }
        check_box(r, &box);
    }
}

static void check_planes(const char *endpoint, struct fabric_hub *hub,
                         const struct tiles_reference *ref, bool in_boxes)
{
    struct reading r;
    cairn *session = tiles_session(endpoint, hub);
    ck_assert_msg(cairn_job_open(session, TILES_JOB, NULL, CAIRN_READER, TILES_WAIT_MS, &r.job) ==
                      CAIRN_OK,
                  "%s", cairn_error());
    ck_assert_int_eq(
        cairn_version_wait(r.job, (struct cairn_version) { 0, 0 }, TILES_WAIT_MS, &r.version),
        CAIRN_OK);
    ck_assert_uint_eq(r.version.step, ref->step);
    for (r.tensor = 0; r.tensor < TILES_TENSORS; r.tensor++)
        for (r.plane = CAIRN_PLANE_PARAM; r.plane < CAIRN_PLANE_COUNT; r.plane++) {
            r.expected = tiles_reference_plane(ref, r.tensor, r.plane);
            if (r.expected == NULL) continue;
            check_whole(&r);
            if (in_boxes && r.plane <= CAIRN_PLANE_EXP_AVG) check_grid(&r);
        }
    cairn_close(session);
}

void tiles_check_against(const char *endpoint, struct fabric_hub *hub,
                         const struct tiles_reference *ref)
{
    check_planes(endpoint, hub, ref, true);
}

static void check_state(const char *endpoint, struct fabric_hub *hub, struct tiles_mesh mesh,
                        uint64_t steps, bool in_boxes)
{
    struct tiles_reference ref;
    tiles_reference_open(&ref, mesh);
    tiles_reference_run(&ref, steps);
    check_planes(endpoint, hub, &ref, in_boxes);
    tiles_reference_close(&ref);
}

void tiles_check_state(const char *endpoint, struct fabric_hub *hub, struct tiles_mesh mesh,
                       uint64_t steps)
{
    check_state(endpoint, hub, mesh, steps, true);
}

void tiles_check_whole(const char *endpoint, struct fabric_hub *hub, struct tiles_mesh mesh,
                       uint64_t steps)
{
    check_state(endpoint, hub, mesh, steps, false);
}

void tiles_root(const char *endpoint, char hex_out[65])
{
    struct cluster at = { .folder = "" };
    snprintf(at.address, sizeof at.address, "%s", endpoint);
    trainer_digest(&at, TILES_JOB, hex_out);
}
