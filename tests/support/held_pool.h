/* Threads of a pool (server/base/daemon.h) that do nothing until they are let go. One pool at a time. */
#ifndef CAIRN_SUPPORT_HELD_POOL_H
#define CAIRN_SUPPORT_HELD_POOL_H

#include "server/base/daemon.h"

/* So many threads take nothing any more, when they have ended what they are at. */
void held_pool_hold(struct pool *pool, uint32_t threads);
void held_pool_let_go(void);

#endif
