/* The connection to the coordinator, which opens a session and, after a loss, the next. Loop thread. */
#ifndef CAIRN_SHARD_CONNECTION_H
#define CAIRN_SHARD_CONNECTION_H

#include "proto/loop/stream.h"

struct cairn_shard;

CAIRN_MUST_CHECK cairn_status cairn_connection_open(struct cairn_shard *shard,
                                                    const char *coordinator,
                                                    struct cairn_sentence *why);
void cairn_connection_close(struct cairn_shard *shard, uv_close_cb on_timer_closed);
/* A heartbeat now. */
void cairn_connection_beat(struct cairn_shard *shard);
/* The coordinator says, with this sentence, that this process is to end. */
void cairn_connection_fenced(struct cairn_shard *shard, const char *text);

/* handlers.c: what the coordinator says. */
void cairn_shard_on_frame(struct cairn_shard *shard, const struct cairn_frame *frame);
/* shard.c: while it closes, the stream of the session is gone. */
void cairn_shard_stream_closed(struct cairn_shard *shard);

#endif
