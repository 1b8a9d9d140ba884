#include "client/pieces.h"

#include <stdlib.h>

#include "client/base/clock.h"
#include "client/device/card.h"
#include "client/session.h"

#define PIECE_LEAST ((size_t)64 << 10)
#define AREA_BYTES  ((size_t)16 << 20) /* taken at a time, or four pieces */
#define PIECES_MAX  32                 /* of an area */

#define CARDS_AGAIN_MS 60000

struct pieces_area {
    struct pieces_area *next;
    struct card *card;
    bool on_card;
    bool may_pin, is_pinned; /* may_pin: nobody has tried */
    uint8_t *base;           /* memory of the session */
    size_t piece_bytes;
    uint32_t count, taken; /* taken: bits */
};

static size_t piece_size(size_t bytes)
{
    size_t size = PIECE_LEAST;
    while (size < bytes) size *= 2;
    return size;
}

static uint32_t piece_count(size_t piece_bytes)
{
    if (piece_bytes >= AREA_BYTES / 4) return 4;
    return AREA_BYTES / piece_bytes < PIECES_MAX ? (uint32_t)(AREA_BYTES / piece_bytes)
                                                 : PIECES_MAX;
}

static bool has_free(const struct pieces_area *area)
{
    return area->taken != (uint32_t)((UINT64_C(1) << area->count) - 1);
}

static struct pieces_area *find(struct session *s, const struct card *card, bool on_card,
                                size_t piece_bytes)
{
    struct pieces_area *area = s->pieces;
    while (area != NULL && (area->card != card || area->on_card != on_card ||
                            area->piece_bytes != piece_bytes || !has_free(area)))
        area = area->next;
    return area;
}

/* Frees an area on a card that no shard can be shown: pushing from there needs shards to map it,
 * and it cannot replace host memory. The reason may be the driver, for good, or a lack of
 * descriptors, for a while: so cards are tried again later, and the reason is told only once. */
static void refuse_cards(struct session *s, const void *base)
{
    if (s->pieces_on_host_ms == 0)
        cairn_session_say(s, "memory of the GPU cannot be shown to other processes (the driver "
                             "exports none, or no descriptor is left): what is pushed from it "
                             "passes the host, until it can be");
    s->pieces_on_host_ms = cairn_client_now_ms() + CARDS_AGAIN_MS;
    if (cairn_memory_free(s, base) != CAIRN_OK) return; // then it goes with the session
}

/* Between cairn_card_change_begin and _end, or of the host. */
static struct pieces_area *open_area(struct session *s, struct card *card, bool on_card,
                                     size_t piece_bytes)
{
    struct pieces_area *area = calloc(1, sizeof *area);
    void *base;
    if (area == NULL) return NULL;
    *area = (struct pieces_area) { .card = card,
                                   .on_card = on_card,
                                   .may_pin = !on_card,
                                   .piece_bytes = piece_bytes,
                                   .count = piece_count(piece_bytes) };
    const size_t bytes = area->count * piece_bytes;
    if (cairn_memory_take(s, bytes, on_card ? card : NULL, &base) != CAIRN_OK) {
        free(area);
        return NULL;
    }
    cairn_memory_show(s); // so that it goes by reference from the first piece on
    if (on_card && !cairn_memory_is_shown(s, base)) {
        refuse_cards(s, base);
        free(area);
        return NULL;
    }
    area->base = base;
    area->next = s->pieces;
    s->pieces = area;
    return area;
}

static struct pieces_area *open_on_card(struct session *s, struct card *card, size_t piece_bytes)
{
    if (!cairn_card_change_begin()) return NULL;
    struct pieces_area *area = open_area(s, card, true, piece_bytes);
    cairn_card_change_end();
    return area;
}

/* As soon as that keeps no stream waiting and no copy is under way: copies are slower until then. */
static void pin(struct pieces_area *area)
{
    if (!area->may_pin || area->taken != 0 || !cairn_card_change_begin()) return;
    area->may_pin = false;
    area->is_pinned = cairn_card_pin(area->card, area->base, area->count * area->piece_bytes);
    cairn_card_change_end();
}

cairn_status cairn_pieces_take(struct session *s, struct card *card, bool on_card, size_t bytes,
                               struct staged *out)
{
    const size_t piece_bytes = piece_size(bytes);
    if (cairn_client_now_ms() < s->pieces_on_host_ms) on_card = false;
    struct pieces_area *area = find(s, card, on_card, piece_bytes);
    if (area == NULL)
        area = on_card ? open_on_card(s, card, piece_bytes)
                       : open_area(s, card, false, piece_bytes);
    if (area == NULL && on_card) return cairn_pieces_take(s, card, false, bytes, out);
    if (area == NULL) return CAIRN_ERR_NO_MEMORY;
    pin(area);
    uint32_t piece = 0;
    while ((area->taken >> piece & 1) != 0) piece++;
    area->taken |= UINT32_C(1) << piece;
    *out = (struct staged) { area, area->base + piece * piece_bytes, area->on_card };
    return CAIRN_OK;
}

void cairn_pieces_give(struct staged *staged)
{
    struct pieces_area *area = staged->area;
    const size_t piece = (size_t)(staged->at - area->base) / area->piece_bytes;
    area->taken &= ~(UINT32_C(1) << piece);
    *staged = (struct staged) { 0 };
}

void cairn_pieces_close(struct session *s)
{
    while (s->pieces != NULL) {
        struct pieces_area *area = s->pieces;
        s->pieces = area->next;
        if (area->is_pinned) cairn_card_unpin(area->card, area->base);
        free(area);
    }
}
