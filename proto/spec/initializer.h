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
#ifndef CAIRN_SPEC_INITIALIZER_H
#define CAIRN_SPEC_INITIALIZER_H

#include <stdint.h>

#include "proto/spec/initializer_math.h"
#include "proto/spec/spec.h"

/* The source from which cairn_init_elems, or a device, makes a tensor's elements. The init is
 * judged, and not NONE. */
struct cairn_init_source cairn_init_source_of(const struct cairn_init *init, const char *tensor);
/* Writes elements [first_elem, first_elem + elem_count) of the tensor. */
void cairn_init_elems(const struct cairn_init_source *source, uint64_t first_elem,
                      uint64_t elem_count, float *out);
/* Does both: makes the source and writes the elements. */
void cairn_init_fill(const struct cairn_init *init, const char *tensor, uint64_t first_elem,
                     uint64_t elem_count, float *out);

#endif
