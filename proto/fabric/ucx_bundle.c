/* Small messages that leave together. UCX sends each active message by a system call of its own, and wakes
 * the other end for it: of a step with thousands of small tensors that is nearly all of the time. So what is
 * sent to a peer in one turn of the loop is put into one bundle, which leaves at the turn's end, or when it
 * is full.
 *
 * A bundle is an active message: a head, then each message with its lengths in front, filled up to 8 bytes.
 * The operations of its messages are over when it is sent, so limits on what is under way hold as for others.
 * A peer that does not take what it is sent gets UCX_BUNDLES_MAX at most; then its bundle stays open, and
 * what finds no room there goes by itself.
 *
 * A receiver that holds a message holds the bundle: the head counts who does, from then on. */
#include "proto/fabric/ucx.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { BUNDLE_ID = 9 }; /* of active messages, beside those of ucx_message.c and ucx_one_sided.c */

struct ucx_bundle {
    LIST_ENTRY(ucx_bundle) entry; /* fabric->bundles_open or bundles_out */
    struct ucx_link *link;        /* of one under way, NULL: closed since */
    uint32_t count;
    size_t bytes;
    struct fabric_op *ops[UCX_BUNDLE_COUNT];
    uint8_t data[UCX_BUNDLE_BYTES];
};

/* -- sending ------------------------------------------------------------------------------------ */

static void end(struct ucx_bundle *bundle, cairn_status status)
{
    for (uint32_t i = 0; i < bundle->count; i++) fabric_op_done(bundle->ops[i], status);
    LIST_REMOVE(bundle, entry);
    free(bundle);
}

/* Ends a bundle that was under way. */
static void finish(struct ucx_bundle *bundle, cairn_status status)
{
    if (bundle->link != NULL) bundle->link->bundles_out--;
    end(bundle, status);
}

static void on_ucx_sent(void *request, ucs_status_t status, void *arg)
{
    finish(arg, ucx_status(status));
    ucp_request_free(request);
}

/* The bundle that is open leaves. */
static void post(struct ucx_link *link)
{
    struct ucx_bundle *bundle = link->bundle;
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .cb.send = on_ucx_sent,
        .user_data = bundle,
    };
    const struct ucx_frame_bundle head = { .magic = UCX_FRAME_MAGIC, .count = bundle->count };
    memcpy(bundle->data, &head, sizeof head);
    if (link->has_listener && !link->has_said_port) ucx_say_port(link);
    link->bundle = NULL;
    link->bundles_out++;
    LIST_REMOVE(bundle, entry);
    LIST_INSERT_HEAD(&link->ucx->bundles_out, bundle, entry);
    ucs_status_ptr_t request = ucp_am_send_nbx(link->ep, BUNDLE_ID, NULL, 0, bundle->data,
                                               bundle->bytes, &param);
    if (UCS_PTR_IS_PTR(request)) return;
    const cairn_status status = ucx_status(UCS_PTR_STATUS(request));
    finish(bundle, status);
    // Who sent was told that they go: what is lost is said by the loss of the peer.
    if (status != CAIRN_OK) ucx_link_lose(link, CAIRN_ERR_CLOSED);
}

/* One with room for so many bytes; NULL: there is none. */
static struct ucx_bundle *open_for(struct ucx_link *link, size_t bytes)
{
    struct ucx_bundle *bundle = link->bundle;
    const bool is_full = bundle != NULL && (bundle->count == UCX_BUNDLE_COUNT ||
                                            bundle->bytes + bytes > sizeof bundle->data);
    if (is_full && link->bundles_out >= UCX_BUNDLES_MAX) return NULL;
    if (is_full) post(link);
    if (link->bundle != NULL || link->is_lost) return link->bundle;
    bundle = malloc(sizeof *bundle);
    if (bundle == NULL) return NULL;
    bundle->link = link;
    bundle->count = 0;
    bundle->bytes = sizeof(struct ucx_frame_bundle);
    LIST_INSERT_HEAD(&link->ucx->bundles_open, bundle, entry);
    link->bundle = bundle;
    return bundle;
}

static void append(struct ucx_bundle *bundle, const void *bytes, size_t count)
{
    if (count > 0) memcpy(bundle->data + bundle->bytes, bytes, count);
    bundle->bytes += count;
}

bool ucx_bundle_add(struct ucx_link *link, struct fabric_op *op, const void *payload)
{
    static const uint8_t zero[8];
    const struct ucx_frame_bundled lengths = { .header_bytes = (uint32_t)op->header_bytes,
                                               .payload_bytes = (uint32_t)op->payload_bytes };
    if (op->payload_bytes > UCX_BUNDLED_MAX) return false;
    const size_t bytes = ucx_frame_bundled_bytes(&lengths);
    struct ucx_bundle *bundle = open_for(link, bytes);
    if (bundle == NULL) return false;
    const size_t end = bundle->bytes + bytes;
    append(bundle, &lengths, sizeof lengths);
    append(bundle, op->header, op->header_bytes);
    append(bundle, payload, op->payload_bytes);
    append(bundle, zero, end - bundle->bytes);
    bundle->ops[bundle->count++] = op;
    op->by = link->ep; // as of what goes by itself
    return true;
}

unsigned ucx_bundles_flush(struct ucx_fabric *ucx)
{
    unsigned count = 0;
    struct ucx_bundle *bundle = LIST_FIRST(&ucx->bundles_open);
    while (bundle != NULL) {
        struct ucx_bundle *next = LIST_NEXT(bundle, entry);
        struct ucx_link *link = bundle->link;
        if (link->bundles_out < UCX_BUNDLES_MAX) {
            post(link);
            count++;
        }
        bundle = next;
    }
    return count;
}

/* UCX does not survive the end of an endpoint that has much to send (ucx_link.c): what waits for a node that
 * is lost is not given to it any more. */
void ucx_bundles_part(struct ucx_link *link)
{
    struct ucx_bundle *bundle = link->bundle;
    if (bundle != NULL && link->is_lost) {
        link->bundle = NULL;
        end(bundle, CAIRN_ERR_CLOSED);
    } else if (bundle != NULL) {
        post(link);
    }
    LIST_FOREACH (bundle, &link->ucx->bundles_out, entry)
        if (bundle->link == link) bundle->link = NULL;
}

void ucx_bundles_close(struct ucx_fabric *ucx)
{
    assert(LIST_EMPTY(&ucx->bundles_open)); // its peers are closed
    while (!LIST_EMPTY(&ucx->bundles_out)) {
        struct ucx_bundle *bundle = LIST_FIRST(&ucx->bundles_out);
        LIST_REMOVE(bundle, entry);
        free(bundle);
    }
}

/* -- receiving ---------------------------------------------------------------------------------- */

/* One more, or one less, holds it; returns how many do. */
static uint32_t count_hold(void *data, bool more)
{
    struct ucx_frame_bundle head;
    memcpy(&head, data, sizeof head);
    head.count += more ? 1u : -1u;
    memcpy(data, &head, sizeof head);
    return head.count;
}

void ucx_bundle_let_go(struct ucx_fabric *ucx, void *data)
{
    if (count_hold(data, false) == 0) ucp_am_data_release(ucx->worker, data);
}

static void take(struct ucx_fabric *ucx, void *data, const struct ucx_frame_bundled *lengths,
                 uint8_t *at)
{
    struct ucx_message *message = NULL;
    if (!fabric_judge(&ucx->common, lengths->header_bytes, lengths->payload_bytes)) return;
    if (lengths->payload_bytes > 0) {
        message = (struct ucx_message *)fabric_message_new(&ucx->common, lengths->payload_bytes);
        if (message == NULL) return;
        message->data = at + lengths->header_bytes;
        message->bundle = data;
    }
    if (ucx_show(ucx, at, lengths->header_bytes, lengths->payload_bytes, message) == FATE_HELD)
        count_hold(data, true);
}

/* As on_ucx_message of ucx_message.c; of a stranger. */
static ucs_status_t on_ucx_bundle(void *arg, const void *header, size_t header_bytes, void *data,
                                  size_t bytes, const ucp_am_recv_param_t *param)
{
    (void)header, (void)header_bytes;
    struct ucx_fabric *ucx = arg;
    struct ucx_frame_bundle head = { .magic = UCX_FRAME_MAGIC, .count = 1 }; // we do, meanwhile
    struct ucx_frame_bundled lengths;
    size_t at = sizeof head;
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 || !ucx_frame_is_bundle(data, bytes)) {
        ucx->common.stats.messages_refused++;
        return UCS_OK;
    }
    memcpy(data, &head, sizeof head);
    while (ucx_frame_next_bundled(data, bytes, &at, &lengths))
        take(ucx, data, &lengths,
             (uint8_t *)data + at - ucx_frame_bundled_bytes(&lengths) + sizeof lengths);
    return count_hold(data, false) == 0 ? UCS_OK : UCS_INPROGRESS;
}

ucs_status_t ucx_bundles_listen(struct ucx_fabric *ucx)
{
    return ucx_listen_to(ucx, BUNDLE_ID, UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA,
                         on_ucx_bundle);
}
