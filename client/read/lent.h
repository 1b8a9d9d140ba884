/* Tensors where the shards of this host published them, in one piece each: nothing is copied but the pages
 * in which parts of several shards meet (client/read/stitch.h). Under the session's lock, any thread. */
#ifndef CAIRN_CLIENT_READ_LENT_H
#define CAIRN_CLIENT_READ_LENT_H

#include <cairn.h>

struct job;

struct lent;

/* The wire planes of whole tensors at a version, read only, until cairn_lent_close. NULL: a shard of
 * another host has a part, or the version is not there (any more), or there is no address space. */
struct lent *cairn_lent_open(struct job *job, struct cairn_version version, const uint32_t *tensors,
                             size_t count);
/* Where the i-th of them begins: aligned to 64 bytes. */
const uint8_t *cairn_lent_at(const struct lent *lent, size_t i);
/* Nothing of it was overwritten by a later version until now. */
bool cairn_lent_whole(const struct lent *lent);
void cairn_lent_close(struct lent *lent); /* NULL is fine */

#endif
