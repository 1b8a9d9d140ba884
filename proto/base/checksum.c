#include "proto/base/checksum.h"

#include "proto/base/xxh.h"

struct cairn_checksum *cairn_checksum_new(void)
{
    return (struct cairn_checksum *)XXH3_createState();
}

void cairn_checksum_free(struct cairn_checksum *sum)
{
    XXH3_freeState((XXH3_state_t *)sum);
}

/* The calls of XXH3 fail on NULL only. */
void cairn_checksum_begin(struct cairn_checksum *sum)
{
    XXH3_64bits_reset((XXH3_state_t *)sum);
}

void cairn_checksum_add(struct cairn_checksum *sum, const void *bytes, size_t count)
{
    XXH3_64bits_update((XXH3_state_t *)sum, bytes, count);
}

uint64_t cairn_checksum_end(const struct cairn_checksum *sum)
{
    return XXH3_64bits_digest((const XXH3_state_t *)sum);
}
