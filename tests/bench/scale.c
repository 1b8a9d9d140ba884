/* What a step costs on clusters that nobody here has: prints tests/bench/scale.md from the tables that the
 * real planner makes and from the assumptions below. `scale > tests/bench/scale.md` renews it.
 *
 * Counted, of the table: chunks, the heaviest shard of the job and of each unit. Everything else is
 * arithmetic; the text that is printed says which. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/plan/plan.h"
#include "tests/bench/scale_model.h"
#include "tests/bench/scale_text.h"

#define WORKERS_A_NODE  8
#define WIRE_BYTES      2.0  /* bf16 */
#define SUM_BYTES       4.0  /* what the relay forwards: sums in fp32 */
#define STATE_BYTES     20   /* an element: master, two moments, sum, two published copies */
#define CHUNK_LEAVES    64   /* the default */
#define WINDOW          8    /* the default */
#define LINK            50e9 /* bytes a second in each direction: 400 Gb/s */
#define MEMORY          200e9
#define DATA_HOP        5e-6
#define CONTROL_HOP     25e-6
#define DATA_MESSAGE    1e-6
#define CONTROL_MESSAGE 5e-6
#define DATA_HOPS       4 /* grant; push and end; fetch; data */
#define CONTROL_HOPS    6 /* begin, open, reduced, decide, published, result */

static const uint32_t node_counts[] = { 8, 64, 256, 1024 };
enum { NODE_COUNTS = sizeof node_counts / sizeof node_counts[0] };

/* Of a table; elements of a shard are those of the heaviest. */
struct table {
    double heaviest_over_mean;
    uint32_t unit_shards_max;
    uint64_t chunks, shard_chunks;
    double shard_elems;
    double units_shard_elems; /* sum over the units of the heaviest shard of each */
};

struct costs {
    struct table table; /* with the default spread */
    double workers, nodes, psi, units, wide_units_shard_elems;
    double bytes, bytes_relay, bytes_ring; /* out of a node, and as many into it */
    double worker_messages, shard_messages, relay_messages, coordinator_messages, ring_messages;
    /* seconds */
    double wire, by_unit, by_unit_wide, fold, shard_busy, coordinator_busy, hops, step;
    double wire_relay, fold_relay, relay_busy, step_relay;
    double ring_wire, ring_hops, ring_step;
};

static double max(double a, double b)
{
    return a > b ? a : b;
}

/* ---- what the table says ---- */

static double extent_elems(const struct layout *layout, const struct extent *extent)
{
    const struct geometry *g = &layout->geometry[extent->tensor];
    return (double)(quantum_first_elem(g, extent->first_quantum + extent->quantum_count) -
                    quantum_first_elem(g, extent->first_quantum));
}

/* Extents are by tensor, and tensors by unit. */
static void count_units(const struct scale_tensors *tensors, const struct layout *layout,
                        struct table *table)
{
    double *held = calloc((size_t)tensors->unit_count * layout->shard_count, sizeof *held);
    if (held == NULL) abort();
    for (size_t e = 0; e < layout->extent_count; e++) {
        const struct extent *extent = &layout->extents[e];
        held[(size_t)tensors->unit[extent->tensor] * layout->shard_count + extent->shard] +=
            extent_elems(layout, extent);
    }
    for (uint32_t u = 0; u < tensors->unit_count; u++) {
        double heaviest = 0;
        for (uint32_t s = 0; s < layout->shard_count; s++)
            heaviest = max(heaviest, held[(size_t)u * layout->shard_count + s]);
        table->units_shard_elems += heaviest;
    }
    free(held);
}

static struct table make_table(const struct scale_tensors *tensors, uint32_t nodes, uint32_t spread)
{
    const struct plan_request request = { .tensors = tensors->list,
                                          .tensor_count = tensors->count,
                                          .shard_count = nodes,
                                          .spread = spread };
    struct layout *layout;
    struct plan_report report;
    struct table table = { .chunks = 0 };
    if (plan_make(&request, &layout, &report) != CAIRN_OK) abort();
    table.heaviest_over_mean = report.heaviest_over_mean;
    table.unit_shards_max = report.unit_spread_max;
    for (uint32_t s = 0; s < nodes; s++) {
        struct shard_map map;
        if (shard_map_init(&map, layout, s, CHUNK_LEAVES) != CAIRN_OK) abort();
        table.chunks += map.chunk_count;
        if (map.chunk_count > table.shard_chunks) table.shard_chunks = map.chunk_count;
        table.shard_elems = max(table.shard_elems, (double)map.elem_count);
        shard_map_release(&map);
    }
    count_units(tensors, layout, &table);
    layout_close(layout);
    return table;
}

/* ---- what it costs: every formula is in scale_text.c in words ---- */

static void cost_bytes(struct costs *c)
{
    const double shard = c->table.shard_elems * WIRE_BYTES;
    const double gather = c->psi - shard + (c->nodes - 1) * shard; // asks for it, and answers
    c->bytes = WORKERS_A_NODE * gather;
    c->bytes_relay = max(SUM_BYTES / WIRE_BYTES * (c->psi - shard) + (c->nodes - 1) * shard,
                         SUM_BYTES / WIRE_BYTES * (c->nodes - 1) * shard + c->psi - shard);
    c->bytes_ring = 2 * c->psi * (c->workers - 1) / c->workers;
}

static void cost_messages(struct costs *c)
{
    const double chunks = (double)c->table.chunks, mine = (double)c->table.shard_chunks;
    c->worker_messages = 4 * chunks + 4 * c->nodes;
    c->shard_messages = c->workers * (4 * mine + 4);
    // its own workers' chunks, one contribution and one fetch of each for the host, and the other hosts'
    c->relay_messages = WORKERS_A_NODE * (4 * chunks + 4 * c->nodes) + 4 * chunks +
                        c->nodes * (4 * mine + 4);
    c->coordinator_messages = 4 * c->nodes + 4 * c->workers;
    c->ring_messages = 4 * c->units * (c->workers - 1);
}

static void cost_seconds(struct costs *c)
{
    const double node_in = WORKERS_A_NODE * c->psi, shard = c->table.shard_elems * WIRE_BYTES;
    c->wire = c->bytes / LINK;
    c->by_unit = 2 * max(node_in, c->workers * c->table.units_shard_elems * WIRE_BYTES) / LINK;
    c->by_unit_wide = 2 * max(node_in, c->workers * c->wide_units_shard_elems * WIRE_BYTES) / LINK;
    c->fold = 2 * c->workers * shard / MEMORY;
    c->shard_busy = c->shard_messages * DATA_MESSAGE;
    c->coordinator_busy = c->coordinator_messages * CONTROL_MESSAGE;
    c->hops = DATA_HOPS * DATA_HOP + CONTROL_HOPS * CONTROL_HOP;
    c->step = max(max(c->wire, c->fold), c->shard_busy) + c->coordinator_busy + c->hops;
    c->wire_relay = c->bytes_relay / LINK;
    c->fold_relay = (node_in + 2 * c->nodes * c->table.shard_elems * SUM_BYTES) / MEMORY;
    c->relay_busy = c->relay_messages * DATA_MESSAGE;
    c->step_relay = max(max(c->wire_relay, c->fold_relay), c->relay_busy) + c->coordinator_busy +
                    c->hops + 2 * DATA_HOP;
    c->ring_wire = c->bytes_ring / LINK;
    c->ring_hops = 2 * c->units * (c->workers - 1) * DATA_HOP;
    c->ring_step = c->ring_wire + c->ring_hops;
}

static struct costs cost_of(const struct scale_tensors *tensors, uint32_t nodes)
{
    struct costs c = {
        .table = make_table(tensors, nodes, 0),
        .nodes = nodes,
        .workers = (double)nodes * WORKERS_A_NODE,
        .psi = (double)tensors->elems * WIRE_BYTES,
        .units = tensors->unit_count,
        .wide_units_shard_elems = make_table(tensors, nodes, nodes).units_shard_elems,
    };
    cost_bytes(&c);
    cost_messages(&c);
    cost_seconds(&c);
    return c;
}

/* ---- printing ---- */

static void print_tables(const struct costs *costs)
{
    const double gib = 1024.0 * 1024 * 1024;
    fputs(scale_text_table, stdout);
    for (int i = 0; i < NODE_COUNTS; i++) {
        const struct costs *c = &costs[i];
        printf("| %.0f | %.0f | %.1f | %.3f | %u | %" PRIu64 " | %" PRIu64 " | %.1f |\n", c->nodes,
               c->workers, c->table.shard_elems * STATE_BYTES / 1e9, c->table.heaviest_over_mean,
               c->table.unit_shards_max, c->table.chunks, c->table.shard_chunks,
               c->workers * WINDOW * CHUNK_LEAVES * CAIRN_LEAF_ELEMS * sizeof(float) / gib);
    }
    fputs(scale_text_counts, stdout);
    for (int i = 0; i < NODE_COUNTS; i++) {
        const struct costs *c = &costs[i];
        printf(
            "| %.0f | %.1f | %.1f | %.1f | %.3g | %.3g | %.3g | %.3g | %.0f | %.0f | %.0f | 2 |\n",
            c->nodes, c->bytes / 1e9, c->bytes_relay / 1e9, c->bytes_ring / 1e9, c->worker_messages,
            c->shard_messages, c->coordinator_messages, c->ring_messages, c->nodes + 1,
            c->workers + 1, c->nodes + c->workers);
    }
}

static void print_times(const struct costs *costs)
{
    fputs(scale_text_times, stdout);
    for (int i = 0; i < NODE_COUNTS; i++) {
        const struct costs *c = &costs[i];
        printf("| %.0f | %.3g | %.3g | %.3g | %.3g | %.3g | %.3g | %.3g | **%.3g** |\n", c->nodes,
               c->wire, c->by_unit, c->by_unit_wide, c->fold, c->shard_busy, c->coordinator_busy,
               c->hops, c->step);
    }
    fputs(scale_text_others, stdout);
    for (int i = 0; i < NODE_COUNTS; i++) {
        const struct costs *c = &costs[i];
        printf("| %.0f | %.3g | %.3g | %.3g | **%.3g** | %.3g | %.3g | **%.3g** | %.2f | %.2f |\n",
               c->nodes, c->wire_relay, c->fold_relay, c->relay_busy, c->step_relay, c->ring_wire,
               c->ring_hops, c->ring_step, c->step / c->ring_step, c->step_relay / c->ring_step);
    }
}

int main(void)
{
    fputs(scale_text_head, stdout);
    for (int m = 0; m < SCALE_MODELS; m++) {
        struct scale_tensors tensors;
        struct costs costs[NODE_COUNTS];
        scale_tensors_make(&scale_models[m], STATE_BYTES, &tensors);
        for (int i = 0; i < NODE_COUNTS; i++) costs[i] = cost_of(&tensors, node_counts[i]);
        printf("\n## %s\n\n%s: %.2f G parameters, %u tensors in %u units, Ψ = %.1f GB.\n",
               scale_models[m].name, scale_models[m].source, (double)tensors.elems / 1e9,
               tensors.count, tensors.unit_count, costs[0].psi / 1e9);
        print_tables(costs);
        print_times(costs);
        scale_tensors_release(&tensors);
    }
    fputs(scale_text_end, stdout);
    return 0;
}
