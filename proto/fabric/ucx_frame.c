#include "proto/fabric/ucx_frame.h"

#include <string.h>

static const size_t sizes[] = {
    [UCX_FRAME_HELLO] = sizeof(struct ucx_frame_hello),
    [UCX_FRAME_REGION] = sizeof(struct ucx_frame_region),
    [UCX_FRAME_REGION_GONE] = sizeof(struct ucx_frame_gone),
    [UCX_FRAME_REFERENCE] = sizeof(struct ucx_frame_reference),
    [UCX_FRAME_RELEASE] = sizeof(struct ucx_frame_release),
    [UCX_FRAME_DECLINE] = sizeof(struct ucx_frame_release),
    [UCX_FRAME_BYE] = sizeof(struct ucx_frame_hello),
    [UCX_FRAME_PORT] = sizeof(struct ucx_frame_port),
    [UCX_FRAME_PROOF] = sizeof(struct ucx_frame_head),
};

static bool judge_hello(const struct ucx_frame_hello *f)
{
    static const uint8_t zero[sizeof f->zero];
    return f->endpoint != 0 && f->oldest <= f->endpoint && f->reads <= 1 && f->asks <= 1 &&
           memcmp(f->zero, zero, sizeof zero) == 0;
}

/* An address range that ends behind the last address is none. */
static bool judge_region(const struct ucx_frame_region *f, size_t rest)
{
    return f->generation != 0 && f->slot < UCX_FRAME_SLOTS && f->bytes > 0 &&
           f->bytes <= UINT64_MAX - f->address && f->key_bytes > 0 &&
           f->key_bytes <= UCX_FRAME_KEY_MAX && f->key_bytes == rest;
}

static bool judge_reference(const struct ucx_frame_reference *f, size_t rest)
{
    return f->generation != 0 && f->slot < UCX_FRAME_SLOTS && f->serial != 0 &&
           f->payload_bytes > 0 && f->header_bytes > 0 &&
           f->header_bytes <= CAIRN_FABRIC_HEADER_MAX && f->header_bytes == rest && f->zero == 0;
}

static bool judge(const union ucx_frame *frame, size_t rest)
{
    switch ((enum ucx_frame_kind)frame->head.kind) {
    case UCX_FRAME_HELLO:
        return rest == 0 && judge_hello(&frame->hello) && frame->hello.oldest != 0;
    case UCX_FRAME_BYE:
        return rest == 0 && judge_hello(&frame->hello) && !frame->hello.reads &&
               !frame->hello.asks && frame->hello.oldest == 0;
    case UCX_FRAME_REGION: return judge_region(&frame->region, rest);
    case UCX_FRAME_REFERENCE: return judge_reference(&frame->reference, rest);
    case UCX_FRAME_REGION_GONE:
        return rest == 0 && frame->gone.slot < UCX_FRAME_SLOTS && frame->gone.zero == 0;
    case UCX_FRAME_RELEASE: return rest == 0 && frame->release.why == 0 && frame->release.zero == 0;
    case UCX_FRAME_DECLINE:
        return rest == 0 && frame->release.why <= UCX_DECLINE_CANNOT && frame->release.zero == 0;
    case UCX_FRAME_PROOF: return rest == 0;
    case UCX_FRAME_PORT:
        return rest == 0 && (frame->port.zero[0] | frame->port.zero[1] | frame->port.zero[2]) == 0;
    default: return false;
    }
}

enum ucx_frame_kind ucx_frame_judge(const void *bytes, size_t count, union ucx_frame *frame_out,
                                    size_t *size_out)
{
    struct ucx_frame_head head;
    union ucx_frame frame;
    if (count < sizeof head) return UCX_FRAME_MALFORMED;
    memcpy(&head, bytes, sizeof head);
    if (head.magic != UCX_FRAME_MAGIC || head.kind == UCX_FRAME_MALFORMED ||
        head.kind > UCX_FRAME_PROOF || count < sizes[head.kind])
        return UCX_FRAME_MALFORMED;
    memcpy(&frame, bytes, sizes[head.kind]);
    if (!judge(&frame, count - sizes[head.kind])) return UCX_FRAME_MALFORMED;
    *frame_out = frame;
    *size_out = sizes[head.kind];
    return (enum ucx_frame_kind)head.kind;
}

bool ucx_frame_next_bundled(const void *bytes, size_t count, size_t *at,
                            struct ucx_frame_bundled *lengths_out)
{
    struct ucx_frame_bundled lengths;
    if (count - *at < sizeof lengths) return false;
    memcpy(&lengths, (const uint8_t *)bytes + *at, sizeof lengths);
    if (lengths.header_bytes == 0 || lengths.header_bytes > CAIRN_FABRIC_HEADER_MAX ||
        lengths.payload_bytes > count || count - *at < ucx_frame_bundled_bytes(&lengths))
        return false;
    *at += ucx_frame_bundled_bytes(&lengths);
    *lengths_out = lengths;
    return true;
}

bool ucx_frame_is_bundle(const void *bytes, size_t count)
{
    struct ucx_frame_bundle head;
    struct ucx_frame_bundled lengths;
    uint32_t messages = 0;
    size_t at = sizeof head;
    if (count < sizeof head) return false;
    memcpy(&head, bytes, sizeof head);
    while (ucx_frame_next_bundled(bytes, count, &at, &lengths)) messages++;
    return head.magic == UCX_FRAME_MAGIC && messages > 0 && head.count == messages && at == count;
}
