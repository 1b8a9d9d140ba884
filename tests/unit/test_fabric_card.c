/* Memory of a card that goes to peers from where it lies: which memory goes so, and to whom; and what becomes
 * of a registration that an operation failed with, or that UCX refused. The linker gives this program
 * functions in UCX's place, which know a card: its memory is the host's, and its handles are the test's. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <uct/api/uct.h>

#include "tests/support/fabric_node.h"
#include "tests/support/suite.h"
#include "tests/unit/fabric_by_handle.h"

enum { BYTES = 1 << 20, BIG = 200000, HANDLES = 8 };

/* ---- UCX, with a card ---- */

static struct {
    bool is_open[HANDLES];
    unsigned registered; /* handles so far */
    unsigned asked;      /* registrations, refused ones too */
    bool refuses;
    bool leads_by_rdma; /* the connections that are made now */
} ucx;

static ucp_mem_h handle_of(unsigned i)
{
    return (ucp_mem_h)(void *)&ucx.is_open[i];
}

static bool find_handle(ucp_mem_h memory, unsigned *i_out)
{
    for (*i_out = 0; *i_out < ucx.registered; ++*i_out)
        if (memory == handle_of(*i_out)) return true;
    return false;
}

#define REPLACES(type, name, parameters) \
    type __real_##name parameters;       \
    type __wrap_##name parameters;       \
    type __wrap_##name parameters

REPLACES(ucs_status_t, ucp_context_query, (ucp_context_h context, ucp_context_attr_t *attr))
{
    const ucs_status_t status = __real_ucp_context_query(context, attr);
    attr->memory_types |= UCS_BIT(UCS_MEMORY_TYPE_CUDA);
    return status;
}

REPLACES(ucs_status_t, uct_md_query, (uct_md_h md, uct_md_attr_t *attr))
{
    const ucs_status_t status = __real_uct_md_query(md, attr);
    attr->cap.reg_mem_types |= UCS_BIT(UCS_MEMORY_TYPE_CUDA);
    return status;
}

#if UCP_API_VERSION >= UCP_VERSION(1, 14)
REPLACES(ucs_status_t, ucp_ep_query, (ucp_ep_h ep, ucp_ep_attr_t *attr))
{
    const ucs_status_t status = __real_ucp_ep_query(ep, attr);
    if ((attr->field_mask & UCP_EP_ATTR_FIELD_TRANSPORTS) != 0 && ucx.leads_by_rdma)
        attr->transports.entries[0].transport_name = "rc_mlx5";
    return status;
}
#else
REPLACES(void, ucp_ep_print_info, (ucp_ep_h ep, FILE *stream))
{
    __real_ucp_ep_print_info(ep, stream);
    if (ucx.leads_by_rdma)
        fputs("#  lane[9]:  4:rc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] rma#0\n", stream);
}
#endif

REPLACES(ucs_status_t, ucp_mem_map,
         (ucp_context_h context, const ucp_mem_map_params_t *params, ucp_mem_h *memory_out))
{
    if (params->memory_type != UCS_MEMORY_TYPE_CUDA)
        return __real_ucp_mem_map(context, params, memory_out);
    ucx.asked++;
    if (ucx.refuses) return UCS_ERR_IO_ERROR;
    ck_assert_uint_lt(ucx.registered, HANDLES);
    ucx.is_open[ucx.registered] = true;
    *memory_out = handle_of(ucx.registered++);
    return UCS_OK;
}

REPLACES(ucs_status_t, ucp_mem_unmap, (ucp_context_h context, ucp_mem_h memory))
{
    unsigned i;
    if (!find_handle(memory, &i)) return __real_ucp_mem_unmap(context, memory);
    ck_assert(ucx.is_open[i]);
    ucx.is_open[i] = false;
    return UCS_OK;
}

/* An operation with memory of a card, which this system's UCX carries out as with the host's. */
static ucp_request_param_t on_host(const ucp_request_param_t *param)
{
    ucp_request_param_t plain = *param;
    unsigned i;
    if (param->memory_type != UCS_MEMORY_TYPE_CUDA) return plain;
    ck_assert_msg((param->op_attr_mask & UCP_OP_ATTR_FIELD_MEMH) != 0, "it goes by its address");
    ck_assert(find_handle(param->memh, &i) && ucx.is_open[i]);
    plain.op_attr_mask &= ~(uint32_t)UCP_OP_ATTR_FIELD_MEMH;
    plain.memory_type = UCS_MEMORY_TYPE_HOST;
    return plain;
}

REPLACES(ucs_status_ptr_t, ucp_am_send_nbx,
         (ucp_ep_h ep, unsigned id, const void *header, size_t header_bytes, const void *payload,
          size_t bytes, const ucp_request_param_t *param))
{
    const ucp_request_param_t plain = on_host(param);
    return __real_ucp_am_send_nbx(ep, id, header, header_bytes, payload, bytes, &plain);
}

REPLACES(ucs_status_ptr_t, ucp_am_recv_data_nbx,
         (ucp_worker_h worker, void *descriptor, void *buffer, size_t count,
          const ucp_request_param_t *param))
{
    const ucp_request_param_t plain = on_host(param);
    return __real_ucp_am_recv_data_nbx(worker, descriptor, buffer, count, &plain);
}

/* ---- a, which has a card, and two peers ---- */

static const uint8_t uuid[CAIRN_FABRIC_UUID_BYTES] = "card 0", other_uuid[16] = "card 1";
static struct fabric_device device = { .uuid_count = 1, .is_reached = true };
static struct node a, b, c;
static struct fabric_peer *to_b;
static _Alignas(4096) uint8_t memory[BYTES], other_memory[BYTES], host[BYTES];
static struct fabric_region *region;

static struct fabric_region *add_memory(uint8_t *at, const uint8_t *of)
{
    struct fabric_region *added;
    ck_assert_int_eq(fabric_region_add_device(a.fabric, at, BYTES, 0, of, NULL, 0, &added),
                     CAIRN_OK);
    return added;
}

static void open_with(struct fabric_options options)
{
    memcpy(device.uuids[0], uuid, sizeof uuid);
    options.device = &device;
    node_open(&a, "ucx", &options);
    node_open(&b, "ucx", NULL);
    node_open(&c, "ucx", NULL);
    to_b = node_connect_to(&a, &b);
    region = add_memory(memory, uuid);
}

static void set_up(void)
{
    open_with((struct fabric_options) { .device_memory = CAIRN_DEVICE_MEMORY_DEVICE });
}

static void tear_down(void)
{
    fabric_region_drop(region);
    nodes_close();
    for (unsigned i = 0; i < HANDLES; i++) ck_assert(!ucx.is_open[i]);
}

static void expect_way(const struct fabric_peer *peer, const uint8_t *payload, bool goes)
{
    const struct note note = { .id = 9 };
    ck_assert_str_eq(fabric_payload_path(peer, payload, BIG), goes ? CAIRN_FABRIC_PATH_DIRECT : "");
    if (goes) return;
    ck_assert_int_eq(fabric_send((struct fabric_peer *)(uintptr_t)peer, &note, sizeof note, payload,
                                 BIG, (fabric_done_fn *)1, NULL),
                     CAIRN_ERR_UNSUPPORTED);
}

/* Of memory, to a node that holds what comes. */
static void begin_send(struct node *to, struct fabric_peer *peer, unsigned id)
{
    const unsigned arrived = to->arrived;
    fill(memory, BIG, id);
    node_send(&a, peer, id, memory, BIG);
    pump(&a, to, &to->arrived, arrived + 1);
}

static void end_send(struct node *to, unsigned id)
{
    const unsigned received = to->received, sent = a.sent;
    node_receive(to, to->arrived - 1);
    pump(&a, to, &to->received, received + 1);
    pump(&a, to, &a.sent, sent + 1);
    ck_assert(is_filled(to->arrivals[to->arrived - 1].buffer, BIG, id));
}

/* ---- a registration that an operation failed with ---- */

TEST(memory_that_a_send_failed_with_is_registered_anew)
{
    begin_send(&b, to_b, 1);
    end_send(&b, 1);
    begin_send(&b, to_b, 2);
    ck_assert_uint_eq(ucx.registered, 1);
    fabric_peer_close(to_b); // b may have the key
    pump(&a, &b, &a.sent, 2);
    ck_assert_uint_eq(a.send_errors, 1);
    ck_assert(!ucx.is_open[0]);
    to_b = node_connect_to(&a, &b);
    begin_send(&b, to_b, 3);
    end_send(&b, 3);
    ck_assert_uint_eq(ucx.registered, 2);
    ck_assert(ucx.is_open[1]);
}

TEST(a_registration_that_a_send_failed_with_lasts_as_long_as_another_operation_holds_it)
{
    struct fabric_peer *to_c = node_connect_to(&a, &c);
    begin_send(&c, to_c, 1);
    begin_send(&b, to_b, 1);
    ck_assert_uint_eq(ucx.registered, 1);
    fabric_peer_close(to_b);
    pump(&a, &b, &a.sent, 1);
    ck_assert_uint_eq(a.send_errors, 1);
    ck_assert(ucx.is_open[0]);
    end_send(&c, 1);
    ck_assert(!ucx.is_open[0]);
    begin_send(&c, to_c, 2);
    end_send(&c, 2);
    ck_assert_uint_eq(ucx.registered, 2);
}

static unsigned landed;
static cairn_status landed_with;

static void on_landed(void *arg, cairn_status status)
{
    (void)arg;
    landed++;
    landed_with = status;
}

/* Of what b sends: into a card's memory. */
static cairn_status begin_landing(uint8_t *at, unsigned id)
{
    struct fabric_peer *to_a = node_connect_to(&b, &a);
    const unsigned arrived = a.arrived;
    fill(host, BIG, id);
    node_pass(&b, &a, to_a, id, host, BIG);
    return fabric_receive(a.arrivals[arrived].message, at, BIG, on_landed, NULL);
}

TEST(memory_that_a_receive_failed_with_is_registered_anew)
{
    ck_assert_int_eq(begin_landing(memory, 1), CAIRN_OK);
    ck_assert_uint_eq(ucx.registered, 1);
    node_close(&b);
    pump(&a, NULL, &landed, 1);
    ck_assert_int_ne(landed_with, CAIRN_OK);
    ck_assert(!ucx.is_open[0]);
    fabric_peer_close(to_b);
    node_open(&b, "ucx", NULL);
    ck_assert_int_eq(begin_landing(memory, 2), CAIRN_OK);
    pump(&a, &b, &landed, 2);
    ck_assert_int_eq(landed_with, CAIRN_OK);
    ck_assert(is_filled(memory, BIG, 2));
    ck_assert_uint_eq(ucx.registered, 2);
    ck_assert(ucx.is_open[1]);
}

/* ---- a registration that is refused ---- */

TEST(memory_whose_registration_is_refused_is_never_sent_by_its_address)
{
    const struct note note = { .id = 1 };
    expect_way(to_b, memory, true);
    ucx.refuses = true;
    ck_assert_int_eq(fabric_send(to_b, &note, sizeof note, memory, BIG, (fabric_done_fn *)1, NULL),
                     CAIRN_ERR_BUSY);
    ucx.refuses = false; // as it was refused once, it goes by the host for good
    expect_way(to_b, memory, false);
    ck_assert_uint_eq(ucx.asked, 1);
    fabric_region_drop(region);
    region = add_memory(memory, uuid); // other memory, for all that is known
    begin_send(&b, to_b, 2);
    end_send(&b, 2);
}

TEST(nothing_lands_by_its_address_in_memory_whose_registration_is_refused)
{
    ucx.refuses = true;
    ck_assert_int_eq(begin_landing(memory, 1), CAIRN_OK);
    pump(&a, &b, &landed, 1);
    ck_assert_int_eq(landed_with, CAIRN_ERR_NO_MEMORY);
    ucx.refuses = false;
    ck_assert_int_eq(begin_landing(memory, 2), CAIRN_ERR_UNSUPPORTED);
    ck_assert_uint_eq(ucx.asked, 1);
    node_receive(&a, 1); // by the host it comes
    pump(&a, &b, &a.received, 1);
    ck_assert(is_filled(a.arrivals[1].buffer, BIG, 2));
}

/* ---- which memory, and to whom ---- */

TEST(memory_of_another_card_does_not_go_by_the_first_ones_decision)
{
    struct fabric_region *other = add_memory(other_memory, other_uuid);
    expect_way(to_b, memory, true);
    expect_way(to_b, other_memory, false);
    ck_assert_int_eq(begin_landing(other_memory, 1), CAIRN_ERR_UNSUPPORTED);
    ck_assert_uint_eq(ucx.asked, 0);
    fabric_region_drop(other);
}

SUITE(30, set_up, tear_down);

/* UCX's domain of TCP stands in for the RDMA card that the fabric asks. */
static void set_up_auto(void)
{
    open_with((struct fabric_options) { .transports = "tcp,self", .net_devices = "tcp:1,lo" });
}

TEST(memory_of_a_card_goes_only_to_peers_to_which_rdma_leads)
{
    const char *why;
    ucx.leads_by_rdma = true;
    struct fabric_peer *to_c = node_connect_to(&a, &c);
    ck_assert_msg(fabric_takes_device(a.fabric, &why), "%s", why);
    ck_assert(!fabric_peer_takes_device(to_b));
    ck_assert(fabric_peer_takes_device(to_c));
    expect_way(to_b, memory, false);
    expect_way(to_c, memory, true);
    begin_send(&c, to_c, 1);
    end_send(&c, 1);
}

SUITE(30, set_up_auto, tear_down);
