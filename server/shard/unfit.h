/* A shard whose device has failed is unfit: nothing that lies on the device can be trusted, and each restore
 * that came here would fail. The shard says so in its Hello, by which nothing that would lie there comes. It
 * ends as soon as it holds nothing else, so that whoever started it may start it with a new context, or not;
 * until then it serves the jobs of which it has nothing on the device. */
#ifndef CAIRN_SHARD_UNFIT_H
#define CAIRN_SHARD_UNFIT_H

#include <stdbool.h>
#include <stdint.h>

struct cairn_shard;

struct cairn_unfit {
    bool is_told; /* the Hello of this session said it */
    bool is_said; /* in the log, that other jobs are served on */
    uint32_t beats;
};

/* With each heartbeat, in a session that stands. The last word: the shard may be closed in it. */
void cairn_unfit_look(struct cairn_shard *shard);

#endif
