/* Memory that UCX's card does not register to be read one-sidedly: it is sent whole, and that is said once,
 * with the reason. The linker gives this program a ucp_mem_map that refuses. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "proto/fabric/ucx.h"
#include "tests/support/fabric_node.h"
#include "tests/support/suite.h"

enum { BYTES = 1 << 20, BIG = 100000 };

static struct node a, b;
static struct fabric_peer *to_b;
static char refused[CAIRN_SENTENCE_BYTES];
static unsigned refusals, calls;
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

static void on_refused(void *arg, const char *what)
{
    (void)arg;
    refusals++;
    snprintf(refused, sizeof refused, "%s", what);
}

static void send_and_expect(const uint8_t *at, unsigned id, const char *path)
{
    const unsigned sent = a.sent, received = b.received;
    fill((uint8_t *)(uintptr_t)at, BIG, id);
    node_send(&a, to_b, id, at, BIG);
    pump(&a, &b, &b.received, received + 1);
    pump(&a, &b, &a.sent, sent + 1);
    const struct arrival *arrival = &b.arrivals[received];
    ck_assert(is_filled(arrival->buffer, BIG, id));
    ck_assert_str_eq(fabric_payload_path(to_b, at, BIG), path);
}

TEST(memory_that_cannot_be_registered_is_sent_whole_and_that_is_said_once_with_the_reason)
{
    const struct fabric_options options = { .one_sided = CAIRN_ONE_SIDED_ON,
                                            .on_refused = on_refused };
    node_open(&a, "ucx", &options);
    node_open(&b, "ucx", &options);
    to_b = node_connect_to(&a, &b);
    (void)node_connect_to(&b, &a);
    struct node_memory memory[3];
    for (int i = 0; i < 3; i++) memory[i] = node_memory_make(&a, BYTES);
    node_agree(&a, &b, to_b, memory[2].at, BIG);
    b.manner = NODE_RECEIVES;
    refuses = true;
    for (unsigned i = 0; i < 6; i++) send_and_expect(memory[i % 2].at, 10 + i, "ucx");
    ck_assert_uint_eq(calls, 2); // each is tried once
    ck_assert_uint_eq(refusals, 1);
    ck_assert_msg(strstr(refused, ucs_status_string(UCS_ERR_IO_ERROR)) != NULL, "%s", refused);
    ck_assert_msg(strstr(refused, "sent whole") != NULL, "%s", refused);
    ck_assert_uint_eq(node_stats(&a).references_sent, 0);
    refuses = false; // what is told to peers later may be registered
    send_and_expect(memory[2].at, 20, "one-sided");
    ck_assert_uint_eq(node_stats(&a).references_sent, 1);
    ck_assert_uint_eq(a.send_errors + b.receive_errors, 0);
    for (int i = 0; i < 3; i++) node_memory_end(&memory[i]);
    node_close(&a);
    node_close(&b);
}

SUITE(20);
