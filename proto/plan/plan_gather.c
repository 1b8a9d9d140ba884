/* In how many pieces a layout lies, and a re-plan that keeps less where there are too many:
 * CAIRN_PLAN_PIECES_MOST times those of the fresh table. Nothing is kept then of the tensors that have the
 * most pieces by their bytes, so that they are placed as in a fresh table; as few as bring the whole below
 * the limit by so much that it is long until it is reached again. Where a few do not suffice more are taken,
 * and at last all: the fresh table. */
#include "proto/plan/plan_cut.h"

#include <stdlib.h>
#include <string.h>

/* The most pieces that the whole layout shall have, in quarters of the fresh table's; one try
 * each. */
static const uint64_t goals[] = { 7, 6, 4 };
#define GOAL_COUNT (sizeof goals / sizeof goals[0])

struct tensor_pieces {
    uint32_t tensor;
    uint64_t bytes;
    uint64_t pieces, more; /* more: than in the fresh table */
    uint64_t most;         /* pieces on one shard */
    const char *name;      /* borrowed */
};

/* On one shard, of the tensor that is being counted. */
struct shard_pieces {
    uint32_t tensor;      /* from 1 */
    uint64_t count, most; /* most: of one tensor */
    uint64_t all;         /* most, with all that the layout has */
    uint64_t cost;        /* bytes to be placed afresh so that there is one less */
    int is_done;
};

struct gathering {
    const struct cairn_plan_request *request; /* borrowed */
    struct cairn_plan_report fresh;

    /* owned */
    struct tensor_pieces *tensors; /* [tensor_count] */
    struct shard_pieces *shards;   /* [shard_count] */
    uint8_t *afresh;               /* [tensor_count] */
};

/* --- counting ------------------------------------------------------------------------------------ */

/* A piece begins with the extent. */
static int is_piece(const struct cairn_layout *layout, size_t e)
{
    const struct cairn_extent *x = &layout->extents[e];
    return e == layout->tensor_extents[x->tensor] || x[-1].shard != x->shard;
}

static void count_piece(const struct cairn_layout *layout, size_t e, struct shard_pieces *shard)
{
    const uint32_t tensor = layout->extents[e].tensor + 1;
    if (!is_piece(layout, e)) return;
    if (shard->tensor != tensor) shard->count = 0;
    shard->tensor = tensor;
    shard->count++;
}

/* Counts the pieces of one tensor; how many lie on which shard goes to `shards`. */
static struct tensor_pieces count_tensor(const struct cairn_layout *layout, uint32_t tensor,
                                         struct shard_pieces *shards)
{
    struct tensor_pieces out = { .tensor = tensor };
    for (size_t e = layout->tensor_extents[tensor]; e < layout->tensor_extents[tensor + 1]; e++) {
        struct shard_pieces *shard = &shards[layout->extents[e].shard];
        count_piece(layout, e, shard);
        if (is_piece(layout, e)) out.pieces++;
        if (shard->count > shard->all) shard->all = shard->count;
        if (shard->count > out.most) out.most = shard->count;
    }
    return out;
}

cairn_status cairn_plan_count(const struct cairn_layout *layout, struct cairn_plan_report *report)
{
    struct shard_pieces *shards = calloc(layout->shard_count, sizeof *shards);
    if (shards == NULL) return CAIRN_ERR_NO_MEMORY;
    report->pieces = report->files = 0;
    for (uint32_t t = 0; t < layout->tensor_count; t++)
        report->pieces += count_tensor(layout, t, shards).pieces;
    for (uint32_t s = 0; s < layout->shard_count; s++) report->files += shards[s].all;
    free(shards);
    return CAIRN_OK;
}

static int is_within(const struct gathering *g, const struct cairn_plan_report *report)
{
    return report->pieces <= CAIRN_PLAN_PIECES_MOST * g->fresh.pieces &&
           report->files <= CAIRN_PLAN_PIECES_MOST * g->fresh.files;
}

/* --- which tensors are placed afresh -------------------------------------------------------------- */

/* Orders tensors: first those with the most pieces too many for their bytes. */
static int compare_tensors(const void *a, const void *b)
{
    const struct tensor_pieces *x = a, *y = b;
    const unsigned __int128 more_x = (unsigned __int128)x->more * y->bytes,
                            more_y = (unsigned __int128)y->more * x->bytes;
    if (more_x != more_y) return more_x > more_y ? -1 : 1;
    return strcmp(x->name, y->name);
}

static void count_all(struct gathering *g, const struct cairn_layout *layout,
                      const struct cairn_layout *fresh)
{
    const struct cairn_layout_tensor *tensors = g->request->tensors;
    memset(g->shards, 0, layout->shard_count * sizeof *g->shards);
    for (uint32_t t = 0; t < layout->tensor_count; t++)
        g->tensors[t] = count_tensor(fresh, t, g->shards);
    memset(g->shards, 0, layout->shard_count * sizeof *g->shards);
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        const uint64_t usual = g->tensors[t].pieces;
        g->tensors[t] = count_tensor(layout, t, g->shards);
        g->tensors[t].more = g->tensors[t].pieces > usual ? g->tensors[t].pieces - usual : 0;
        g->tensors[t].bytes = layout->geometry[t].elems * tensors[t].elem_bytes;
        g->tensors[t].name = tensors[t].name;
    }
    if (layout->tensor_count > 0)
        qsort(g->tensors, layout->tensor_count, sizeof *g->tensors, compare_tensors);
}

/* Bytes of the tensors that would have to be placed afresh so that a shard has a file less. */
static void weigh_files(struct gathering *g, const struct cairn_layout *layout)
{
    for (uint32_t s = 0; s < layout->shard_count; s++) g->shards[s].cost = g->shards[s].tensor = 0;
    for (uint32_t n = 0; n < layout->tensor_count; n++) {
        const struct tensor_pieces *tensor = &g->tensors[n];
        const uint32_t t = tensor->tensor;
        if (g->afresh[t] || tensor->most < 2) continue;
        for (size_t e = layout->tensor_extents[t]; e < layout->tensor_extents[t + 1]; e++) {
            struct shard_pieces *shard = &g->shards[layout->extents[e].shard];
            count_piece(layout, e, shard);
        }
        for (size_t e = layout->tensor_extents[t]; e < layout->tensor_extents[t + 1]; e++) {
            struct shard_pieces *shard = &g->shards[layout->extents[e].shard];
            if (shard->tensor == t + 1 && shard->count >= shard->most) shard->cost += tensor->bytes;
            shard->tensor = 0; // its cost is added once
        }
    }
}

/* The shard that has a file less at the lowest cost; none: shard_count. */
static uint32_t cheapest(const struct gathering *g, uint32_t shard_count)
{
    uint32_t best = shard_count;
    for (uint32_t s = 0; s < shard_count; s++)
        if (g->shards[s].most > 1 && !g->shards[s].is_done &&
            (best == shard_count || g->shards[s].cost < g->shards[best].cost))
            best = s;
    return best;
}

/* Places afresh all tensors that have the most pieces on the shard. */
static void free_most(struct gathering *g, const struct cairn_layout *layout, uint32_t shard)
{
    for (uint32_t n = 0; n < layout->tensor_count; n++) {
        const uint32_t t = g->tensors[n].tensor;
        uint64_t count = 0;
        if (g->tensors[n].most < g->shards[shard].most) continue;
        for (size_t e = layout->tensor_extents[t]; e < layout->tensor_extents[t + 1]; e++)
            if (layout->extents[e].shard == shard && is_piece(layout, e)) count++;
        if (count >= g->shards[shard].most) g->afresh[t] = 1;
    }
    g->shards[shard].most--;
}

/* Until there are no more files than `goal`, if what is placed afresh has one on each shard. */
static void choose_by_files(struct gathering *g, const struct cairn_layout *layout, uint64_t goal)
{
    uint64_t files = 0;
    for (uint32_t s = 0; s < layout->shard_count; s++)
        files += g->shards[s].most = g->shards[s].all;
    while (files > goal) {
        const uint32_t at_once = layout->shard_count / 16 + 1;
        weigh_files(g, layout);
        for (uint32_t s = 0; s < layout->shard_count; s++) g->shards[s].is_done = 0;
        for (uint32_t i = 0; i < at_once && files > goal; i++) {
            const uint32_t shard = cheapest(g, layout->shard_count);
            if (shard == layout->shard_count) {
                if (i == 0) return; // one each
                break;
            }
            g->shards[shard].is_done = 1;
            free_most(g, layout, shard);
            files--;
        }
    }
}

static uint32_t choose(struct gathering *g, const struct cairn_layout *layout, uint64_t quarters)
{
    const uint64_t goal = g->fresh.pieces * quarters / 4;
    uint64_t pieces = cairn_layout_pieces(layout);
    uint32_t count = 0;
    memset(g->afresh, 0, layout->tensor_count);
    choose_by_files(g, layout, g->fresh.files * quarters / 4);
    for (uint32_t n = 0; n < layout->tensor_count; n++)
        if (g->afresh[g->tensors[n].tensor]) pieces -= g->tensors[n].more;
    for (uint32_t n = 0; n < layout->tensor_count && pieces > goal && g->tensors[n].more > 0; n++) {
        if (g->afresh[g->tensors[n].tensor]) continue;
        g->afresh[g->tensors[n].tensor] = 1;
        pieces -= g->tensors[n].more;
    }
    for (uint32_t t = 0; t < layout->tensor_count; t++) count += g->afresh[t];
    return count;
}

/* --- the course of it ----------------------------------------------------------------------------- */

static cairn_status try_goals(struct gathering *g, const struct cairn_layout *least,
                              struct cairn_layout **layout_out, struct cairn_plan_report *report)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < GOAL_COUNT && status == CAIRN_OK; i++) {
        const uint32_t count = choose(g, least, goals[i]);
        status = cairn_plan_make_once(g->request, g->afresh, layout_out, report);
        report->afresh_count = count;
        if (status != CAIRN_OK || is_within(g, report)) return status;
        cairn_layout_close(*layout_out);
        *layout_out = NULL;
    }
    return status;
}

static cairn_status gather(struct gathering *g, const struct cairn_layout *least,
                           struct cairn_layout *fresh, struct cairn_layout **layout_out,
                           struct cairn_plan_report *report)
{
    const uint32_t tensors = g->request->tensor_count;
    g->tensors = calloc((size_t)tensors + 1, sizeof *g->tensors);
    g->shards = calloc(least->shard_count, sizeof *g->shards);
    g->afresh = calloc((size_t)tensors + 1, sizeof *g->afresh);
    const int got_all = g->tensors != NULL && g->shards != NULL && g->afresh != NULL;
    cairn_status status = got_all ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
    if (got_all) {
        count_all(g, least, fresh);
        status = try_goals(g, least, layout_out, report);
    }
    free(g->tensors);
    free(g->shards);
    free(g->afresh);
    return status;
}

cairn_status cairn_plan_gather(const struct cairn_plan_request *request,
                               struct cairn_layout **layout, struct cairn_plan_report *report)
{
    struct gathering g = { .request = request };
    struct cairn_plan_request compact = *request;
    struct cairn_layout *fresh = NULL, *other = NULL;
    struct cairn_plan_report of_other;
    compact.compact = 1;
    cairn_status status = cairn_plan_make_once(&compact, NULL, &fresh, &g.fresh);
    if (status != CAIRN_OK) return status;
    if (!is_within(&g, report)) {
        status = gather(&g, *layout, fresh, &other, &of_other);
        if (status == CAIRN_OK && other == NULL) {
            other = fresh;
            fresh = NULL;
            of_other = g.fresh;
            of_other.afresh_count = request->tensor_count;
        }
    }
    cairn_layout_close(fresh);
    if (other != NULL) {
        cairn_layout_close(*layout);
        *layout = other;
        *report = of_other;
    }
    report->pieces_fresh = g.fresh.pieces;
    report->files_fresh = g.fresh.files;
    return status;
}
