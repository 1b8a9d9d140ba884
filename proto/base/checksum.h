/* The checksum of a chunk (cairn_chunk_checksum, XXH3-64), made as the bytes come by. Any thread, one at a
 * time. */
#ifndef CAIRN_BASE_CHECKSUM_H
#define CAIRN_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

struct cairn_checksum;

struct cairn_checksum *cairn_checksum_new(void); /* NULL: no memory */
void cairn_checksum_free(struct cairn_checksum *sum);

void cairn_checksum_begin(struct cairn_checksum *sum);
void cairn_checksum_add(struct cairn_checksum *sum, const void *bytes, size_t count);
/* The checksum of all bytes added since cairn_checksum_begin; there must be at least one. */
uint64_t cairn_checksum_end(const struct cairn_checksum *sum);

#endif
