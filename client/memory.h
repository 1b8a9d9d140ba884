/* Memory that cairn_alloc gave: who has it on loan, and its end. Any thread; not under the lock. */
#ifndef CAIRN_CLIENT_MEMORY_H
#define CAIRN_CLIENT_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/base/status.h"

struct card;
struct gone;
struct region;
struct session;

/* Under the lock. */
struct session_memory {
    struct region *regions; /* owned: [count] of capacity, by address */
    size_t count, capacity;
    bool changed;      /* since the fabric was told of them */
    struct gone *gone; /* owned: freed, and still known to the fabric, or mapped on a card */
    bool closed;
};

/* A new region, of host memory or of a card's. */
cairn_status cairn_memory_take(struct session *s, size_t bytes, struct card *card,
                               void **out) CAIRN_MUST_CHECK;
/* CAIRN_ERR_INVALID: ptr is none; CAIRN_ERR_BUSY: it is on loan. */
cairn_status cairn_memory_free(struct session *s, const void *ptr) CAIRN_MUST_CHECK;

/* Memory of a card that nobody is shown or lends; NULL: none is to be had. Not for the loop thread. */
struct gone *cairn_memory_apart(struct card *card, size_t bytes);
void *cairn_memory_apart_at(const struct gone *apart);
/* Under the lock: it is given back, at a turn of the loop thread when no stream waits. */
void cairn_memory_leave(struct session *s, struct gone *apart);
/* Waits until regions that were left before are given back, for at most a second. Not under the
 * lock; on a caller's thread. False if no region was left. */
bool cairn_memory_await_left(struct session *s);

/* If the `bytes` at ptr are in a region, it is on loan until cairn_memory_return(*lent_out); if they are
 * not, *lent_out is NULL. CAIRN_ERR_INVALID: they reach beyond the region's end, or the region is not of
 * that card (NULL: the host). */
cairn_status cairn_memory_lend(struct session *s, const void *ptr, size_t bytes,
                               const struct card *card, const void **lent_out) CAIRN_MUST_CHECK;
void cairn_memory_return(struct session *s, const void *lent); /* NULL is fine */
/* Loop thread: the fabric knows the region, so that what lies there goes by reference. */
bool cairn_memory_is_shown(struct session *s, const void *base);

/* Under the lock: bytes of all regions of host memory. */
size_t cairn_memory_bytes(const struct session *s);
/* Loop thread: tells the fabric of new regions, so that what is pushed from them is read where it lies,
 * and of those that are freed. */
void cairn_memory_show(struct session *s);
/* The session is closed: regions go, those on loan with their last loan. */
void cairn_memory_close(struct session *s);
/* With the session. */
void cairn_memory_release(struct session *s);

#endif
