/* Tells a coordinator again, after an attach, what this client had told the one before: a new
 * coordinator knows nothing of it. Loop thread. */
#ifndef CAIRN_CLIENT_LOOP_AGAIN_H
#define CAIRN_CLIENT_LOOP_AGAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/status.h"

struct job;
struct session;

/* The tiles that were declared: before anything else. */
void cairn_again_tiles(struct job *job);
/* TilesSet, in reply to `request`: of those told again, or of the call of cairn_tiles that waits. */
void cairn_again_on_tiles_set(struct job *job, uint32_t request);
/* An Error: of tiles or a pause that were told again it is an error of the job. False: it is of neither. */
bool cairn_again_on_error(struct session *s, uint32_t request, cairn_status status,
                          const char *text);
/* The pause of this worker, if it is in one. */
void cairn_again_pause(struct job *job);
/* Attached in the middle of a round: it is decided or void by now, and no shard may be left to say so (one
 * that never granted it answers nothing). Only the coordinator knows. */
void cairn_again_ask_round(struct job *job);
/* A shard refused something of the round (client/push/pushes.c): it is given up, for all. */
void cairn_again_give_up(struct job *job);

#endif
