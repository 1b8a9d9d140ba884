/* One-sided reads: whether the peers of an endpoint read each other's memory, and the frames by which
 * they agree on it (ucx_frame.h). Nothing here moves a payload.
 *
 * A peer's memory is read if the owner says so (options.one_sided is "on": over TCP UCX emulates
 * it, for tests), or if it says nothing and the endpoint has lanes whose card does it. UCX is asked
 * for the lanes of each endpoint. */
#include "proto/fabric/ucx.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/fabric/ucx_lanes.h"

enum { CONTROL_ID = 8 }; /* of active messages, beside that of ucx_message.c */
enum { SETTLE_TURNS = 200, SETTLE_TURN_US = 500 };

/* TCP has no lanes that read, so that nothing has to be asked or said. */
bool ucx_one_sided_is_possible(const struct cairn_fabric_options *options)
{
    const char *transports = options->transports;
    if (options->one_sided != CAIRN_ONE_SIDED_AUTO) return options->one_sided == CAIRN_ONE_SIDED_ON;
    return transports != NULL && transports[0] != '\0' && strcmp(transports, "tcp") != 0;
}

void ucx_refuse(struct ucx_fabric *ucx, uint64_t node, const char *format, ...)
{
    const struct cairn_fabric_options *options = &ucx->common.options;
    char text[CAIRN_SENTENCE_BYTES], what[CAIRN_SENTENCE_BYTES];
    va_list arguments;
    if (options->on_refused == NULL) return;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    snprintf(text, sizeof text, "one-sided reads, node %016llx: %.600s", (unsigned long long)node,
             what);
    options->on_refused(options->on_message_arg, text);
}

/* -- lanes -------------------------------------------------------------------------------------- */

#if UCP_API_VERSION >= UCP_VERSION(1, 14)

/* Their uses are not told; a native transport that UCX took has reads. */
static bool has_native_lanes(ucp_ep_h ep)
{
    ucp_transport_entry_t entries[16];
    ucp_ep_attr_t attr = {
        .field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS,
        .transports = { .entries = entries,
                        .num_entries = sizeof entries / sizeof *entries,
                        .entry_size = sizeof *entries },
    };
    if (ucp_ep_query(ep, &attr) != UCS_OK) return false;
    for (unsigned i = 0; i < attr.transports.num_entries; i++)
        if (ucx_transport_is_native(entries[i].transport_name)) return true;
    return false;
}

#else

static bool has_native_lanes(ucp_ep_h ep)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    if (stream == NULL) return false;
    ucp_ep_print_info(ep, stream);
    const bool is_native = fclose(stream) == 0 && ucx_lanes_are_native(text);
    free(text);
    return is_native;
}

#endif

/* -- frames out --------------------------------------------------------------------------------- */

static void control_free(struct ucx_control *control)
{
    if (control->by != NULL) control->by->controls--;
    LIST_REMOVE(control, link);
    free(control);
}

static void on_control_sent(void *request, ucs_status_t status, void *arg)
{
    (void)status; // a lost one is a lost endpoint: on_ucx_down says it
    control_free(arg);
    ucp_request_free(request);
}

static bool is_of_reads(enum ucx_frame_kind kind)
{
    return kind != UCX_FRAME_BYE && kind != UCX_FRAME_PORT && kind != UCX_FRAME_PROOF;
}

static enum ucx_frame_kind kind_of(const void *frame)
{
    return (enum ucx_frame_kind)((const struct ucx_frame_head *)frame)->kind;
}

/* UCX tells the receiver by which of its endpoints a frame comes (REPLY), and drops the frame where that
 * endpoint is closed. BYE and PORT are to come in any case. */
cairn_status ucx_control_send(struct ucx_link *link, const void *frame, size_t frame_bytes,
                              const void *rest, size_t rest_bytes)
{
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .cb.send = on_control_sent,
    };
    struct ucx_fabric *ucx = link->ucx;
    if (link->controls >= UCX_CONTROLS_MAX) { // it takes nothing, and makes us keep more and more
        ucx_link_end(link, true);
        return CAIRN_ERR_BUSY;
    }
    struct ucx_control *control = malloc(sizeof *control + frame_bytes + rest_bytes);
    if (control == NULL) return CAIRN_ERR_NO_MEMORY;
    memcpy(control->bytes, frame, frame_bytes);
    if (rest_bytes > 0) memcpy(control->bytes + frame_bytes, rest, rest_bytes);
    control->by = link;
    link->controls++;
    LIST_INSERT_HEAD(&ucx->controls, control, link);
    ucp_request_param_t own = param;
    own.user_data = control;
    if (is_of_reads(kind_of(frame)) || kind_of(frame) == UCX_FRAME_PROOF)
        own.flags |= UCP_AM_SEND_FLAG_REPLY;
    ucs_status_ptr_t request = ucp_am_send_nbx(link->ep, CONTROL_ID, control->bytes,
                                               frame_bytes + rest_bytes, NULL, 0, &own);
    if (UCS_PTR_IS_PTR(request)) return CAIRN_OK;
    control_free(control);
    return ucx_status(UCS_PTR_STATUS(request));
}

static void say_hello(struct ucx_link *link, bool asks)
{
    const struct ucx_frame_hello hello = {
        .head = ucx_frame_head(UCX_FRAME_HELLO, link->ucx->node),
        .endpoint = link->endpoint,
        .oldest = link->endpoint, // the others are closed
        .reads = link->may_read,
        .asks = asks,
    };
    const cairn_status status = ucx_control_send(link, &hello, sizeof hello, NULL, 0);
    (void)status; // without it messages come whole
}

void ucx_say_bye(struct ucx_link *link)
{
    const struct ucx_frame_hello bye = {
        .head = ucx_frame_head(UCX_FRAME_BYE, link->ucx->node),
        .endpoint = link->endpoint,
    };
    const cairn_status status = ucx_control_send(link, &bye, sizeof bye, NULL, 0);
    (void)status; // without it the next HELLO tells, or UCX's keepalive
}

void ucx_say_port(struct ucx_link *link)
{
    const struct ucx_frame_port frame = {
        .head = ucx_frame_head(UCX_FRAME_PORT, link->ucx->node),
        .port = ntohs(link->made),
    };
    link->has_said_port = true;
    const cairn_status status = ucx_control_send(link, &frame, sizeof frame, NULL, 0);
    (void)status; // without it the node asks us to end a link
    const struct ucx_frame_head proof = ucx_frame_head(UCX_FRAME_PROOF, link->ucx->node);
    if (status == CAIRN_OK) (void)!ucx_control_send(link, &proof, sizeof proof, NULL, 0);
}

/* -- frames in ---------------------------------------------------------------------------------- */

/* A HELLO of a newer endpoint: the one that ours was a pair with is gone. `link`: NULL, if the frame came by
 * no endpoint of ours. */
static void on_hello(struct ucx_fabric *ucx, struct ucx_link *link,
                     const struct ucx_frame_hello *hello)
{
    struct ucx_link *living = ucx_link_find(ucx, hello->head.from);
    if (living != NULL && living->paired != 0 && living->paired < hello->oldest)
        ucx_link_end(living, true);
    if (link == NULL || hello->endpoint < link->paired) return; // not ours yet; was overtaken
    link->paired = hello->endpoint;
    link->reads = hello->reads != 0;
    if (hello->asks != 0) say_hello(link, false);
}

static void on_bye(struct ucx_fabric *ucx, const struct ucx_frame_hello *bye)
{
    struct ucx_link *living = ucx_link_find(ucx, bye->head.from);
    if (living != NULL && (living->paired == 0 || living->paired == bye->endpoint))
        ucx_link_end(living, true);
}

static void on_port(struct ucx_fabric *ucx, const struct ucx_frame_port *port)
{
    struct ucx_link *living = ucx_link_find(ucx, port->head.from);
    ucx_hear(ucx, port->head.from)->port = htons(port->port);
    ucx_link_await_proof(ucx, port->head.from);
    if (living != NULL && port->port == 0 && living->made != 0) ucx_say_port(living);
}

static void on_proof(struct ucx_fabric *ucx, uint64_t node, ucp_ep_h ep)
{
    struct ucx_heard *heard = ucx_hear(ucx, node);
    heard->ep = ep;
    heard->proof_by_ms = 0;
}

/* A frame about reads is for the link whose endpoint it came by. */
static void take(struct ucx_fabric *ucx, ucp_ep_h ep, enum ucx_frame_kind kind,
                 const union ucx_frame *frame, const void *rest)
{
    struct ucx_link *link = ucx_link_find(ucx, frame->head.from);
    if (link != NULL && link->ep != ep) link = NULL;
    if (is_of_reads(kind) && !ucx->common.is_one_sided) return;
    if (is_of_reads(kind) && kind != UCX_FRAME_HELLO && link == NULL) return;
    switch (kind) {
    case UCX_FRAME_HELLO: on_hello(ucx, link, &frame->hello); break;
    case UCX_FRAME_BYE: on_bye(ucx, &frame->hello); break;
    case UCX_FRAME_PORT: on_port(ucx, &frame->port); break;
    case UCX_FRAME_PROOF: on_proof(ucx, frame->head.from, ep); break;
    case UCX_FRAME_REGION: ucx_on_region(link, &frame->region, rest); break;
    case UCX_FRAME_REGION_GONE: ucx_on_region_gone(link, &frame->gone); break;
    case UCX_FRAME_REFERENCE: ucx_on_reference(link, &frame->reference, rest); break;
    case UCX_FRAME_RELEASE: ucx_on_release(link, &frame->release); break;
    case UCX_FRAME_DECLINE: ucx_on_decline(link, &frame->release); break;
    case UCX_FRAME_MALFORMED: break;
    }
}

static ucs_status_t on_control(void *arg, const void *header, size_t header_bytes, void *data,
                               size_t payload_bytes, const ucp_am_recv_param_t *param)
{
    struct ucx_fabric *ucx = arg;
    union ucx_frame frame;
    size_t size;
    (void)data;
    if (ucx->common.is_closing) return UCS_OK;
    const enum ucx_frame_kind kind = ucx_frame_judge(header, header_bytes, &frame, &size);
    if (kind == UCX_FRAME_MALFORMED || payload_bytes != 0) {
        ucx->common.stats.messages_refused++;
        ucx_refuse(ucx, 0, "a frame of %zu bytes is none; is a peer of another version?",
                   header_bytes);
        return UCS_OK;
    }
    const bool has_ep = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
    take(ucx, has_ep ? param->reply_ep : NULL, kind, &frame, (const uint8_t *)header + size);
    return UCS_OK;
}

/* Always: without a handler UCX would log every frame of a peer that is set otherwise. */
ucs_status_t ucx_one_sided_listen(struct ucx_fabric *ucx)
{
    return ucx_listen_to(ucx, CONTROL_ID, UCP_AM_FLAG_WHOLE_MSG, on_control);
}

/* -- peers come and go -------------------------------------------------------------------------- */

void ucx_meet(struct ucx_link *link)
{
    struct ucx_fabric *ucx = link->ucx;
    const bool is_forced = ucx->common.options.one_sided == CAIRN_ONE_SIDED_ON;
    LIST_INIT(&link->referred);
    link->endpoint = ++ucx->endpoints;
    if (!ucx->common.is_one_sided) return;
    link->may_read = is_forced || has_native_lanes(link->ep);
    say_hello(link, true);
}

void ucx_part(struct ucx_link *link)
{
    struct ucx_fabric *ucx = link->ucx;
    ucx_forget_told(link);
    if (ucx->common.is_one_sided && !link->is_down && link->end_by_ms == 0) ucx_say_bye(link);
    ucx_forget_reader(link);
    struct ucx_control *control;
    LIST_FOREACH (control, &ucx->controls, link)
        if (control->by == link) control->by = NULL;
}

void ucx_one_sided_begin_stop(struct ucx_fabric *ucx)
{
    if (!ucx->common.is_one_sided) return;
    ucx_reads_begin_stop(ucx);
    ucx_shares_close(ucx); // what the owner did not drop; fabric.c frees the objects
}

/* UCX 1.13 aborts a process that destroys its worker before its answer is out to another's first wish
 * to be answered, which may have come just now. Takes a bounded time. */
void ucx_one_sided_settle(struct ucx_fabric *ucx)
{
    const ucp_request_param_t param = { .op_attr_mask = 0 };
    if (!ucx->common.is_one_sided) return;
    ucs_status_ptr_t request = ucp_worker_flush_nbx(ucx->worker, &param);
    if (!UCS_PTR_IS_PTR(request)) return;
    for (int turn = 0; turn < SETTLE_TURNS;) {
        if (ucp_request_check_status(request) != UCS_INPROGRESS) break;
        if (ucp_worker_progress(ucx->worker) != 0) continue;
        usleep(SETTLE_TURN_US);
        turn++;
    }
    ucp_request_free(request);
}

void ucx_one_sided_end_stop(struct ucx_fabric *ucx)
{
    while (!LIST_EMPTY(&ucx->controls)) control_free(LIST_FIRST(&ucx->controls));
    if (!ucx->common.is_one_sided) return;
    ucx_reads_end_stop(ucx);
    ucx_graves_close(ucx);
}

/* -- shown -------------------------------------------------------------------------------------- */

static const char path[] = "one-sided";

const char *ucx_message_path(const struct cairn_fabric_message *message)
{
    const bool is_read = ((const struct ucx_message *)message)->region != NULL;
    return is_read ? path : message->fabric->backend->kind;
}

const char *ucx_payload_path(const struct cairn_fabric_peer *common, const void *payload,
                             size_t bytes)
{
    const struct ucx_link *link = ((const struct ucx_peer *)common)->link;
    if (link == NULL || !ucx_may_refer(link, bytes)) return common->fabric->backend->kind;
    const struct ucx_region *region = (const struct ucx_region *)fabric_region_find(common->fabric,
                                                                                    payload, bytes);
    return region != NULL && !region->is_refused ? path : common->fabric->backend->kind;
}
