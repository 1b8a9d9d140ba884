#include "proto/loop/outbox.h"

#include <stdlib.h>
#include <string.h>

#include "proto/wire/frame.h"

#define KEEP_BYTES (64u << 10) // frames above this are freed when empty

struct cairn_outbox_pages {
    struct cairn_outbox_pages *next;
    struct cairn_packed *packed; /* held */
    size_t offset;               /* what was taken */
    uint32_t request;
    enum cairn_page_what what;
    struct cairn_outbox_frames behind; /* until the next pages */
};

void cairn_outbox_frames_release(struct cairn_outbox_frames *frames)
{
    free(frames->bytes);
    *frames = (struct cairn_outbox_frames) { 0 };
}

void cairn_outbox_frames_empty(struct cairn_outbox_frames *frames)
{
    if (frames->capacity_bytes > KEEP_BYTES) cairn_outbox_frames_release(frames);
    frames->used_bytes = 0;
}

// Growth doubles; who sends has checked the queue's bound.
static cairn_status reserve(struct cairn_outbox_frames *frames, size_t more_bytes)
{
    if (more_bytes <= frames->capacity_bytes - frames->used_bytes) return CAIRN_OK;
    size_t capacity = frames->used_bytes + more_bytes;
    if (capacity < 2 * frames->capacity_bytes) capacity = 2 * frames->capacity_bytes;
    uint8_t *grown = realloc(frames->bytes, capacity);
    if (grown == NULL) return CAIRN_ERR_NO_MEMORY;
    frames->bytes = grown;
    frames->capacity_bytes = capacity;
    return CAIRN_OK;
}

static void append(struct cairn_outbox_frames *frames, const uint8_t *bytes, size_t byte_count)
{
    if (byte_count > 0) memcpy(frames->bytes + frames->used_bytes, bytes, byte_count);
    frames->used_bytes += byte_count;
}

cairn_status cairn_outbox_add(struct cairn_outbox *box, const uint8_t *head, size_t head_bytes,
                              const uint8_t *tail, size_t tail_bytes)
{
    struct cairn_outbox_frames *frames = box->last != NULL ? &box->last->behind : &box->frames;
    const cairn_status status = reserve(frames, head_bytes + tail_bytes);
    if (status != CAIRN_OK) return status;
    append(frames, head, head_bytes);
    append(frames, tail, tail_bytes);
    box->frame_bytes += head_bytes + tail_bytes;
    return CAIRN_OK;
}

cairn_status cairn_outbox_add_pages(struct cairn_outbox *box, uint32_t request,
                                    enum cairn_page_what what, struct cairn_packed *packed)
{
    if (packed->size == 0) return CAIRN_OK;
    struct cairn_outbox_pages *pages = calloc(1, sizeof *pages);
    if (pages == NULL) return CAIRN_ERR_NO_MEMORY;
    pages->packed = cairn_packed_hold(packed);
    pages->request = request;
    pages->what = what;
    if (box->last != NULL)
        box->last->next = pages;
    else
        box->first = pages;
    box->last = pages;
    box->paged_bytes += packed->size;
    return CAIRN_OK;
}

/* The first pages are gone: the frames behind them go first. */
static void drop_first(struct cairn_outbox *box)
{
    struct cairn_outbox_pages *pages = box->first;
    cairn_outbox_frames_release(&box->frames);
    box->frames = pages->behind;
    box->first = pages->next;
    if (box->first == NULL) box->last = NULL;
    box->paged_bytes -= pages->packed->size;
    cairn_packed_release(pages->packed);
    free(pages);
}

static cairn_status take_page(struct cairn_outbox *box, struct cairn_outbox_frames *out)
{
    struct cairn_outbox_pages *pages = box->first;
    const struct cairn_packed *packed = pages->packed;
    Cairn__Page page;
    uint8_t *frame;
    size_t frame_bytes;
    const size_t cut = cairn_page_cut(pages->what, packed->bytes, packed->size, pages->offset,
                                      &page);
    cairn_status status = cairn_frame_pack(CAIRN_MSG_PAGE, pages->request, &page.base,
                                           CAIRN_FRAME_BYTES_MAX, &frame, &frame_bytes, NULL);
    if (status != CAIRN_OK) return status;
    cairn_outbox_frames_release(out);
    *out = (struct cairn_outbox_frames) { frame, frame_bytes, frame_bytes };
    pages->offset += cut;
    if (pages->offset == packed->size) drop_first(box);
    return CAIRN_OK;
}

cairn_status cairn_outbox_take(struct cairn_outbox *box, struct cairn_outbox_frames *out)
{
    if (box->frames.used_bytes > 0) {
        const struct cairn_outbox_frames emptied = *out;
        *out = box->frames;
        box->frames = emptied;
        box->frame_bytes -= out->used_bytes;
        return CAIRN_OK;
    }
    return box->first != NULL ? take_page(box, out) : CAIRN_ERR_NOT_FOUND;
}

void cairn_outbox_release(struct cairn_outbox *box)
{
    while (box->first != NULL) drop_first(box);
    cairn_outbox_frames_release(&box->frames);
    box->frame_bytes = 0;
}
