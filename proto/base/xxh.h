/* xxHash, in the widest instruction set that the CPU has. On x86-64 the library itself chooses among SSE2,
 * AVX2 and AVX-512, if it was built with its dispatcher, as in Debian. The values are the same in each. If
 * the bytes come from memory (256 MiB in pieces of 512 KiB), SSE2 has half the speed of AVX-512. */
#ifndef CAIRN_BASE_XXH_H
#define CAIRN_BASE_XXH_H

#include <xxhash.h>

#ifdef CAIRN_XXH_DISPATCH
#include <xxh_x86dispatch.h> /* macros in this header replace the functions of xxhash.h */
#endif

#endif
