#include "proto/base/text.h"
#include "proto/wire/frame.h"
#include "proto/wire/messages.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct row {
    uint16_t number;
    const ProtobufCMessageDescriptor *type;
};

static const struct row rows[] = {
#define X(number, constant, type, field) { number, &cairn__##field##__descriptor },
    CAIRN_MESSAGE_TABLE(X)
#undef X
};

const ProtobufCMessageDescriptor *cairn_message_type(uint16_t number)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].number == number) return rows[i].type;
    return NULL;
}

const char *cairn_message_name(uint16_t number)
{
    const ProtobufCMessageDescriptor *type = cairn_message_type(number);
    return type != NULL ? type->short_name : "?";
}

/* Real messages take up to about ten times their length in memory; see the test of a full spec. */
#define UNPACK_FACTOR 24
#define UNPACK_BASE   ((size_t)16 << 10)

static void *budget_alloc(void *left, size_t bytes)
{
    size_t *left_bytes = left;
    if (bytes > *left_bytes) {
        errno = EMSGSIZE;
        return NULL;
    }
    *left_bytes -= bytes;
    return malloc(bytes);
}

static void budget_free(void *left, void *memory)
{
    (void)left;
    free(memory);
}

ProtobufCMessage *cairn_message_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes,
                                       size_t bytes_len)
{
    size_t left_bytes = UNPACK_BASE + bytes_len * UNPACK_FACTOR;
    ProtobufCAllocator budget = { budget_alloc, budget_free, &left_bytes };
    errno = 0;
    return protobuf_c_message_unpack(type, &budget, bytes_len, bytes);
}

void cairn_message_free(ProtobufCMessage *message)
{
    ProtobufCAllocator budget = { budget_alloc, budget_free, NULL };
    if (message != NULL) protobuf_c_message_free_unpacked(message, &budget);
}

/* A field's value, or one of a repeated field's. control.proto has no oneof, and no message
 * that is in itself. */
static void mend_value(const ProtobufCFieldDescriptor *field, void *value)
{
    if (value == NULL || value == field->default_value || value == protobuf_c_empty_string) return;
    if (field->type == PROTOBUF_C_TYPE_STRING) cairn_text_mend(value, "\n");
    if (field->type == PROTOBUF_C_TYPE_MESSAGE) cairn_message_mend(value);
}

void cairn_message_mend(ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        uint8_t *at = (uint8_t *)message + field->offset;
        const bool is_pointer = field->type == PROTOBUF_C_TYPE_STRING ||
                                field->type == PROTOBUF_C_TYPE_MESSAGE;
        const bool is_list = field->label == PROTOBUF_C_LABEL_REPEATED;
        if (!is_pointer) continue;
        const size_t count = is_list ? *(size_t *)((uint8_t *)message + field->quantifier_offset)
                                     : 1;
        void **values = is_list ? *(void ***)at : (void **)at;
        for (size_t k = 0; k < count; k++) mend_value(field, values[k]);
    }
}

const char *cairn_role_name(uint32_t role)
{
    static const char *const names[] = { "?", "worker", "reader", "shard", "admin" };
    return role < sizeof names / sizeof names[0] ? names[role] : names[0];
}

cairn_status cairn_paged_init(struct cairn_paged *paged, uint64_t total_bytes)
{
    *paged = (struct cairn_paged) { 0 };
    if (total_bytes > CAIRN_PAGED_BYTES_MAX) return CAIRN_ERR_INVALID;
    paged->total_bytes = total_bytes;
    return CAIRN_OK;
}

void cairn_paged_release(struct cairn_paged *paged)
{
    free(paged->bytes);
    *paged = (struct cairn_paged) { 0 };
}

static cairn_status paged_reserve(struct cairn_paged *paged, size_t more_bytes)
{
    const size_t need = paged->have_bytes + more_bytes;
    if (need <= paged->capacity_bytes) return CAIRN_OK;
    size_t capacity = paged->capacity_bytes * 2 > need ? paged->capacity_bytes * 2 : need;
    if (capacity > paged->total_bytes) capacity = (size_t)paged->total_bytes;
    uint8_t *bytes = realloc(paged->bytes, capacity);
    if (bytes == NULL) return CAIRN_ERR_NO_MEMORY;
    paged->bytes = bytes;
    paged->capacity_bytes = capacity;
    return CAIRN_OK;
}

cairn_status cairn_paged_add(struct cairn_paged *paged, const Cairn__Page *page)
{
    if (page->total_bytes != paged->total_bytes) return CAIRN_ERR_PROTOCOL;
    if (page->offset != paged->have_bytes) return CAIRN_ERR_PROTOCOL;
    if (page->bytes.len == 0) return CAIRN_ERR_PROTOCOL;
    if (page->bytes.len > paged->total_bytes - paged->have_bytes) return CAIRN_ERR_PROTOCOL;
    cairn_status status = paged_reserve(paged, page->bytes.len);
    if (status != CAIRN_OK) return status;
    memcpy(paged->bytes + paged->have_bytes, page->bytes.data, page->bytes.len);
    paged->have_bytes += page->bytes.len;
    return CAIRN_OK;
}

size_t cairn_page_cut(enum cairn_page_what what, const uint8_t *bytes, size_t bytes_len,
                      size_t offset, Cairn__Page *page_out)
{
    const size_t left = bytes_len - offset;
    Cairn__Page page = CAIRN__PAGE__INIT;
    page.what = what;
    page.offset = offset;
    page.total_bytes = bytes_len;
    page.bytes.data = (uint8_t *)(uintptr_t)(bytes + offset); // protobuf-c lacks the const
    page.bytes.len = left < CAIRN_PAGE_BYTES ? left : CAIRN_PAGE_BYTES;
    *page_out = page;
    return page.bytes.len;
}

#define VARINT_BYTES 5 /* of a tag, or of a length, at most */

size_t cairn_hello_fit(const Cairn__Hello *hello, Cairn__HeldJob *const *held, size_t count)
{
    Cairn__Hello bare = *hello;
    bare.n_held = 0;
    bare.held_after = UINT32_MAX;
    size_t bytes = CAIRN_FRAME_HEADER_BYTES + protobuf_c_message_get_packed_size(&bare.base);
    size_t fit = 0;
    for (; fit < count; fit++) {
        bytes += 2 * VARINT_BYTES + protobuf_c_message_get_packed_size(&held[fit]->base);
        if (bytes > CAIRN_FRAME_HELLO_BYTES) break;
    }
    return fit;
}
