#include "tests/support/fabric_pair.h"

#include <check.h>
#include <string.h>

#include "tests/support/mem.h"

const char *const kinds[KINDS] = { "mem", "ucx", "mapped", "auto", "stream", "sealed" };
struct node a, b;
struct fabric_peer *to_b;
struct fabric_hub *hub;

void pair_open_as(const char *kind, const struct fabric_options *of_a,
                  const struct fabric_options *of_b)
{
    const struct cairn_fabric_mem_options storm = { .seed = 7,
                                                    .delay_max_ticks = 20,
                                                    .eager_bytes = 8192 };
    struct fabric_options options[2] = { { .hub = NULL }, { .hub = NULL } };
    if (strcmp(kind, "mem") == 0)
        ck_assert_int_eq(cairn_fabric_mem_hub_open(&storm, &hub), CAIRN_OK);
    if (of_a != NULL) options[0] = *of_a;
    if (of_b != NULL) options[1] = *of_b;
    options[0].hub = options[1].hub = hub;
    node_open(&a, kind, &options[0]);
    node_open(&b, kind, &options[1]);
    to_b = node_connect_to(&a, &b);
}

void pair_open(const char *kind, const struct fabric_options *options)
{
    pair_open_as(kind, options, options);
}

void pair_close(void)
{
    nodes_close();
    if (hub != NULL) cairn_fabric_mem_hub_close(hub);
    hub = NULL;
}
