/* Copies of a card's memory on their way to shards that do not take it from where it lies: pieces of memory
 * of cairn_alloc's kind, on the card or of the host (pinned for the card), used again and again. There are as
 * many as chunks were under way at a time, or copied ahead of that (push/stage.h). While a stream waits, what
 * is new is of the host, and not pinned yet. Loop thread. */
#ifndef CAIRN_CLIENT_PIECES_H
#define CAIRN_CLIENT_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"

struct card;
struct pieces_area;
struct session;

struct staged {
    struct pieces_area *area; /* borrowed */
    uint8_t *at;              /* NULL: none */
    bool on_card;
};

/* Room for `bytes`. on_card: on the card, if that has room; else of the host. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_pieces_take(struct session *s, struct card *card, bool on_card, size_t bytes,
                               struct staged *out) CAIRN_MUST_CHECK;
void cairn_pieces_give(struct staged *staged);
/* Nothing of them is read any more; their memory goes with the session's. */
void cairn_pieces_close(struct session *s);

#endif
