/* The queue of a connection's writes, in order: frames, and pages, which are cut from packed bytes
 * when their turn comes, so that a peer that reads slowly costs one page and not all of them. Loop
 * thread. */
#ifndef CAIRN_LOOP_OUTBOX_H
#define CAIRN_LOOP_OUTBOX_H

#include "proto/wire/messages.h"
#include "proto/wire/packed.h"

/* Whole frames, one after the other. */
struct cairn_outbox_frames {
    uint8_t *bytes; /* owned; [capacity_bytes] */
    size_t used_bytes;
    size_t capacity_bytes;
};

struct cairn_outbox {
    struct cairn_outbox_frames frames;       /* they go first */
    struct cairn_outbox_pages *first, *last; /* owned */
    size_t frame_bytes;                      /* of all frames that wait, pages not counted */
    uint64_t paged_bytes;                    /* of all that is held to be sent in pages */
};

/* Adds a frame: its header and what follows. CAIRN_ERR_NO_MEMORY: nothing was added. */
cairn_status cairn_outbox_add(struct cairn_outbox *box, const uint8_t *head, size_t head_bytes,
                              const uint8_t *tail, size_t tail_bytes) CAIRN_MUST_CHECK;
/* Adds a Page frame for each CAIRN_PAGE_BYTES of `packed`, which it holds until they are taken. */
cairn_status cairn_outbox_add_pages(struct cairn_outbox *box, uint32_t request,
                                    enum cairn_page_what what,
                                    struct cairn_packed *packed) CAIRN_MUST_CHECK;
/* Moves what is to be written next to `out`, which is empty: all frames at the front, or one page.
 * CAIRN_ERR_NOT_FOUND: nothing waits. CAIRN_ERR_NO_MEMORY: nothing was moved. */
cairn_status cairn_outbox_take(struct cairn_outbox *box,
                               struct cairn_outbox_frames *out) CAIRN_MUST_CHECK;
void cairn_outbox_release(struct cairn_outbox *box);

/* Keeps the memory if it is little. */
void cairn_outbox_frames_empty(struct cairn_outbox_frames *frames);
void cairn_outbox_frames_release(struct cairn_outbox_frames *frames);

#endif
