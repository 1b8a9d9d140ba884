/* Memory that UCX's card does not register to be read one-sidedly: it is sent whole, and that is said once,
 * with the reason. The linker gives this program a ucp_mem_map that refuses. */
#include <check.h>
#include <string.h>

#include "proto/fabric/ucx.h"
#include "tests/support/fabric_pair.h"
#include "tests/support/suite.h"

enum { BYTES = 1 << 20, BIG = 100000 };

static unsigned calls;
static bool refuses;

ucs_status_t __real_ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params,
                                ucp_mem_h *memory_out);
ucs_status_t __wrap_ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params,
                                ucp_mem_h *memory_out);

/* As where the card wants to write to what is a read-only map (EFAULT), UCX says so. */
ucs_status_t __wrap_ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params,
                                ucp_mem_h *memory_out)
{
    calls++;
    return refuses ? UCS_ERR_IO_ERROR : __real_ucp_mem_map(context, params, memory_out);
}

static void carry_by(const char *path, uint8_t *at, unsigned id)
{
    node_carry(&a, &b, to_b, id, at, BIG);
    ck_assert_str_eq(fabric_payload_path(to_b, at, BIG), path);
}

TEST(memory_that_cannot_be_registered_is_sent_whole_and_that_is_said_once_with_the_reason)
{
    pair_open("ucx", &(struct fabric_options) { .one_sided = CAIRN_ONE_SIDED_ON });
    (void)node_connect_to(&b, &a);
    struct node_memory memory[3];
    for (int i = 0; i < 3; i++) memory[i] = node_memory_make(&a, BYTES);
    node_agree(&a, &b, to_b, memory[2].at, BIG);
    b.manner = NODE_RECEIVES;
    refuses = true;
    for (unsigned i = 0; i < 6; i++) carry_by("ucx", memory[i % 2].at, 10 + i);
    ck_assert_uint_eq(calls, 2); // each is tried once
    ck_assert_uint_eq(a.refusals + b.refusals, 1);
    ck_assert_msg(strstr(a.refused, ucs_status_string(UCS_ERR_IO_ERROR)) != NULL, "%s", a.refused);
    ck_assert_msg(strstr(a.refused, "sent whole") != NULL, "%s", a.refused);
    ck_assert_uint_eq(node_stats(&a).references_sent, 0);
    refuses = false; // what is told to peers later may be registered
    carry_by("one-sided", memory[2].at, 20);
    ck_assert_uint_eq(node_stats(&a).references_sent, 1);
    ck_assert_uint_eq(a.send_errors + b.receive_errors, 0);
}

SUITE(20, .tear_down = pair_close);
