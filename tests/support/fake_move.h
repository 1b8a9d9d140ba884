/* How a fake shard (fake_cluster.h) does what it is told when a job's layout changes. */
#ifndef CAIRN_SUPPORT_FAKE_MOVE_H
#define CAIRN_SUPPORT_FAKE_MOVE_H

#include "tests/support/fake_cluster.h"

/* A layout of the shard's job. */
struct layout *fake_layout_decode(const struct fake_shard *shard, const struct paged *pages);
/* True: it was one of these messages. */
bool fake_move_handle(struct fake_shard *shard, uint16_t type, uint32_t request,
                      const ProtobufCMessage *message);
/* A Fence of that layout: the prepared one comes into force, or is forgotten if another coordinator had it
 * prepared. */
void fake_move_fence(struct fake_shard *shard, uint64_t layout);
/* PartMoved, unless the script holds it. */
void fake_move_tell(struct fake_shard *shard);
/* Says so, whatever the script holds. */
void fake_move_release(struct fake_shard *shard);
/* Says Done to the PartPrepare that it held. */
void fake_move_prepared(struct fake_shard *shard);
void fake_move_clear(struct fake_shard *shard);

#endif
