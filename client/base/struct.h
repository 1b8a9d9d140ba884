/* Structs that grow. A caller that was compiled with an older cairn.h, or loaded a newer one than this
 * library, differs in struct_size only at the end: what the older one lacks is 0 = the default, and
 * what this library does not know must be 0, or it would be ignored in silence. */
#ifndef CAIRN_CLIENT_BASE_STRUCT_H
#define CAIRN_CLIENT_BASE_STRUCT_H

#include <stdbool.h>
#include <stddef.h>

/* Copies a caller's struct, which begins with its struct_size, into ours of `bytes`. False: from is NULL, its
 * size is below least_bytes (the struct of the first release) or absurd, or a part that we do not
 * know is not 0. */
bool cairn_struct_take(void *to, size_t bytes, size_t least_bytes, const void *from);
/* True if *out, the caller's, says a size of at least least_bytes. */
bool cairn_struct_fits(const void *out, size_t least_bytes);
/* True if all `bytes` are 0, as fields that are reserved for a later version must be. */
bool cairn_struct_is_zero(const void *reserved, size_t bytes);
/* Gives ours to the caller: as much as its struct_size has room for, which stays; the rest of it is 0. */
void cairn_struct_give(void *out, const void *from, size_t bytes);
/* The caller's i-th struct of an array: the first one's struct_size is the distance of all. */
const void *cairn_struct_at(const void *first, size_t i);

#endif
