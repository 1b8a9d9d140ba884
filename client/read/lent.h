/* Tensors where the shards of this host published them, in one piece each: nothing is copied but the pages
 * in which parts of several shards meet (client/read/stitch.h). Under the session's lock, any thread. */
#ifndef CAIRN_CLIENT_READ_LENT_H
#define CAIRN_CLIENT_READ_LENT_H

#include <cairn.h>

#include "proto/geometry/published.h"

struct card;
struct job;

struct lent;

/* The wire planes of whole tensors at a version, read only, until cairn_lent_close; of the device's side at
 * addresses of the session's card. NULL: a shard of another host has a part, or the version is not there (any
 * more), or there is no address space; or on the card, several shards have parts of one tensor. */
struct lent *cairn_lent_open(struct job *job, struct cairn_version version,
                             enum cairn_published_side side, const uint32_t *tensors, size_t count);
/* Where the i-th of them begins: aligned to 64 bytes. */
const uint8_t *cairn_lent_at(const struct lent *lent, size_t i);
/* Nothing of it was overwritten by a later version until now. */
bool cairn_lent_whole(const struct lent *lent);
void cairn_lent_close(struct lent *lent); /* NULL is fine */

/* It is the session's card: what is published there may be lent, or copied. */
bool cairn_lent_has_card(const struct job *job, const struct card *card);
/* Copies the wire plane of a whole tensor, at the version, from where it is published on the card to memory
 * of it, and returns when that is done. False: not all of it is there, or any more. Not under the lock. */
bool cairn_lent_copy(struct job *job, struct cairn_version version, uint32_t tensor,
                     struct card *card, void *to);

#endif
