/* The registry of optimizers: what each is called, which planes it keeps, which hyper-parameters it
 * has and how its scalars come about. The kernels stand in gpu/ under the same ids; a test walks this
 * table, so that a new optimizer without a kernel or golden values fails the build's tests.
 *
 * Ids go over the wire and into snapshots: never reused, never changed. Pure. */
#ifndef CAIRN_SPEC_OPTIMIZER_H
#define CAIRN_SPEC_OPTIMIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"
#include "proto/geometry/tensor.h"
#include "proto/spec/initializer_math.h"
#include "proto/spec/scalars.h"
#include "proto/spec/spec.h"

/* ==== initializer ==== */

/* Initial values made from a seed, where they are kept: nobody holds a whole model to begin one.
 *
 *   element i of a tensor = f(kind, a, b, seed, the tensor's name, i)
 *
 * and of nothing else: any cut into shards, chunks or threads gives the same bits, and a tensor keeps its
 * values when others are added to the model. i counts row-major in the whole tensor.
 *
 *   key    first 8 bytes, little-endian, of BLAKE2b-256("cairn initializer 1" | seed, 8 bytes LE | name)
 *   words  Philox4x32-10 (Salmon et al., SC'11) of the counter {low and high half of i / 2, 0, 0}: two
 *          elements a block, the even one has words 0 and 1, the odd one 2 and 3
 *   u      (w + 1/2) / 2^52 in double, exact and never 0 or 1: w = the first word's 32 bits over the upper
 *          20 of the second
 *   z      the inverse of the normal distribution at u: AS 241, PPND16 (Wichura 1988), with the logarithm
 *          of initializer_math.h, fdlibm's series; every operation is IEEE double and rounds once, no libm
 *   UNIFORM  (float)(a + (b - a)·u): in [a, b]        NORMAL  (float)(a + b·z): mean a, deviation b
 *
 * Pure; any thread. A change of anything here changes the models that are made: a new name in the key. */

/* The source from which init_elems, or a device, makes a tensor's elements. The init is
 * judged, and not NONE. */
struct init_source init_source_of(const struct cairn_init *init, const char *tensor);
/* Writes elements [first_elem, first_elem + elem_count) of the tensor. */
void init_elems(const struct init_source *source, uint64_t first_elem, uint64_t elem_count,
                float *out);
/* Does both: makes the source and writes the elements. */
void init_fill(const struct cairn_init *init, const char *tensor, uint64_t first_elem,
               uint64_t elem_count, float *out);

/* ==== optimizer ==== */

enum optimizer_id {
    CAIRN_OPTIMIZER_ADAMW = 1,
    CAIRN_OPTIMIZER_ADAM = 2,
    CAIRN_OPTIMIZER_SGD = 3,
    CAIRN_OPTIMIZER_COUNT = 4 /* one more than the last */
};

/* One hyper-parameter: min <= value <= max, or below max where max_open. */
struct hyper_info {
    const char *name;    /* "lr", "beta1", ... : the field of struct group_hyper */
    size_t offset_bytes; /* of the double in struct group_hyper */
    double value_default, min, max;
    bool max_open;
    bool is_switch; /* 0 or 1 */
    bool divides;   /* the rule divides by it: 0, as fp32, makes NaN of a gradient of 0 */
};

struct optimizer_kind {
    uint32_t id;
    const char *name; /* "adamw" */
    const struct hyper_info *hypers;
    size_t hyper_count;
    /* the planes beside param and wire, as bits 1u << CAIRN_PLANE_...; by the hyper-parameters,
     * because SGD without momentum keeps nothing */
    uint32_t (*planes)(const struct group_hyper *hyper);
    /* fills all but optimizer and grad_scale of *out, which is zero; step counts from 1 */
    void (*scalars)(const struct group_hyper *hyper, uint64_t step, struct group_scalars *out);
};

/* NULL if there is none of that id or name. Static memory. */
const struct optimizer_kind *optimizer_by_id(uint32_t id);
const struct optimizer_kind *optimizer_by_name(const char *name);

/* The names, ended by NULL: for spec_check. Static memory. */
const char *const *optimizer_names(void);

/* NULL: the optimizer (which may be NULL) has none of that name. Static memory. */
const struct hyper_info *optimizer_hyper(const struct optimizer_kind *optimizer, const char *name);

/* The hyper-parameters of a spec's group; those that its optimizer does not use become 0.
 * CAIRN_ERR_INVALID as group_hyper_check. */
cairn_status group_hyper_of_spec(const struct group_spec *group, struct group_hyper *out,
                                 const char **field_out) CAIRN_MUST_CHECK;
/* CAIRN_ERR_INVALID: the group sets a field that its optimizer does not use to something else than 0 or
 * the default (group_default), so it would be ignored; *field_out names it. */
cairn_status group_spec_unused(const struct group_spec *group,
                               const char **field_out) CAIRN_MUST_CHECK;
/* CAIRN_ERR_INVALID: the optimizer is unknown, or a value is out of its range or NaN, or one that the
 * optimizer does not use is not 0. *field_out (unless NULL) then names it: static memory. */
cairn_status group_hyper_check(const struct group_hyper *hyper,
                               const char **field_out) CAIRN_MUST_CHECK;
/* Bits 1u << CAIRN_PLANE_... of the planes the shards keep for a trained tensor of this group beside
 * param and wire. The hyper-parameters must pass the check. */
uint32_t optimizer_planes(const struct group_hyper *hyper);

#endif
