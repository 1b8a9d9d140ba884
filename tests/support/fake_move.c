#include "tests/support/fake_move.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

struct layout *fake_layout_decode(const struct fake_shard *shard, const struct paged *pages)
{
    struct layout *layout;
    struct layout_tensor *tensors = calloc(shard->spec.tensor_count, sizeof *tensors);
    for (size_t i = 0; i < shard->spec.tensor_count; i++) {
        tensors[i].name = shard->spec.tensors[i].name;
        tensors[i].unit = shard->spec.tensors[i].unit;
        tensors[i].shape = shard->spec.tensors[i].shape;
        tensors[i].elem_bytes = 4;
    }
    ck_assert_int_eq(layout_decode(pages->bytes, pages->have_bytes, tensors,
                                   (uint32_t)shard->spec.tensor_count, &layout),
                     CAIRN_OK);
    free(tensors);
    return layout;
}

static void forget_next(struct fake_shard *shard)
{
    layout_close(shard->move.next);
    paged_release(&shard->move.next_pages, 1);
    shard->move.next = NULL;
    shard->move.request = 0;
}

void fake_move_clear(struct fake_shard *shard)
{
    forget_next(shard);
    shard->move.is_told = false;
}

static void say_done(struct fake_shard *shard, uint32_t request)
{
    const Cairn__Done message = CAIRN__DONE__INIT;
    fake_send(&shard->peer, CAIRN_MSG_DONE, request, &message.base);
}

static void on_prepare(struct fake_shard *shard, uint32_t request,
                       const Cairn__PartPrepare *message)
{
    ck_assert(shard->has_job && shard->job == message->job);
    ck_assert_uint_gt(message->layout, shard->layout->version);
    ck_assert_uint_eq(message->shard_index, shard->index);
    forget_next(shard);
    shard->move.request = request;
    shard->move.movers = (uint32_t)message->n_movers;
    shard->move.coordinator = shard->welcome_process;
    ck_assert_int_eq(paged_init(&shard->move.next_pages, CAIRN_PAGE_LAYOUT, message->layout_bytes),
                     CAIRN_OK);
}

static void on_page(struct fake_shard *shard, uint32_t request, const Cairn__Page *page)
{
    ck_assert_int_eq(paged_add(&shard->move.next_pages, 1, page), CAIRN_OK);
    if (!paged_whole(&shard->move.next_pages, 1)) return;
    if (shard->move.refuse != NULL) {
        Cairn__Error error = CAIRN__ERROR__INIT;
        error.status = shard->move.refuse_status != 0 ? (int32_t)shard->move.refuse_status
                                                      : CAIRN_ERR_NO_MEMORY;
        error.text = wire_text(shard->move.refuse);
        forget_next(shard);
        fake_send(&shard->peer, CAIRN_MSG_ERROR, request, &error.base);
        return;
    }
    shard->move.next = fake_layout_decode(shard, &shard->move.next_pages);
    if (!shard->move.holds_prepare) say_done(shard, request);
}

void fake_move_prepared(struct fake_shard *shard)
{
    ck_assert_ptr_nonnull(shard->move.next);
    say_done(shard, shard->move.request);
}

void fake_move_fence(struct fake_shard *shard, uint64_t layout)
{
    if (layout == 0 || layout == shard->layout->version) {
        if (shard->move.coordinator != shard->welcome_process) forget_next(shard);
        return;
    }
    ck_assert_ptr_nonnull(shard->move.next);
    ck_assert_uint_eq(shard->move.next->version, layout);
    ck_assert_uint_eq(shard->round, 0);
    layout_close(shard->layout);
    paged_release(&shard->layout_pages, 1);
    shard->layout = shard->move.next;
    shard->layout_pages = shard->move.next_pages;
    shard->move.next = NULL;
    shard->move.next_pages = (struct paged) { .bytes = NULL };
    shard->move.is_told = false;
    forget_next(shard);
}

void fake_move_release(struct fake_shard *shard)
{
    Cairn__PartMoved moved = CAIRN__PART_MOVED__INIT;
    moved.job = shard->job;
    moved.layout = shard->layout->version;
    moved.bytes = 1 << 20;
    moved.us = 1000;
    shard->move.is_told = true;
    fake_send(&shard->peer, CAIRN_MSG_PART_MOVED, 0, &moved.base);
}

void fake_move_tell(struct fake_shard *shard)
{
    if (shard->layout->version > 1 && !shard->move.holds_moved) fake_move_release(shard);
}

bool fake_move_handle(struct fake_shard *shard, uint16_t type, uint32_t request,
                      const ProtobufCMessage *message)
{
    switch (type) {
    case CAIRN_MSG_PART_PREPARE:
        on_prepare(shard, request, (const Cairn__PartPrepare *)message);
        return true;
    case CAIRN_MSG_PAGE:
        if (request != shard->move.request) return false;
        on_page(shard, request, (const Cairn__Page *)message);
        return true;
    case CAIRN_MSG_PART_UNPREPARE: forget_next(shard); return true;
    case CAIRN_MSG_PART_SETTLED:
        ck_assert_uint_eq(((const Cairn__PartSettled *)message)->layout, shard->layout->version);
        shard->move.settled = shard->layout->version;
        return true;
    case CAIRN_MSG_PART_PUBLISH:
        ck_assert_uint_eq(((const Cairn__PartPublish *)message)->layout, shard->layout->version);
        ck_assert_uint_eq(shard->round, 0);
        shard->move.published = shard->layout->version;
        say_done(shard, request);
        return true;
    case CAIRN_MSG_MEMBER_END: shard->move.is_ended = true; return true;
    default: return false;
    }
}
