/* A chunk is one of a grid, which begins anew where an extent does: so where a layout changes, what is not
 * answered yet is cut by the one that holds now. A new chunk may have more than the old one had: what two of
 * them bring, or put, is the same in both. */
#include "client/push/recut.h"

#include "client/job.h"
#include "client/op.h"

#define WORD_MS 20000 /* that the coordinator's word about a layout may take */

struct body *cairn_recut_body(const struct job *job, uint8_t kind, uint8_t plane,
                              struct cairn_version version)
{
    const bool is_published = kind == CAIRN_CHUNK_FETCH && plane == CAIRN_PLANE_WIRE;
    return is_published ? cairn_body_of_version(job, version) : job->bodies;
}

/* Rebuilds as much of the parcel's command as is needed to cut it by `body`. */
static struct command command_of(const struct parcel *parcel, struct body *body)
{
    return (struct command) {
        .job = parcel->job,
        .op = parcel->op,
        .target = parcel->target,
        .plane = parcel->plane,
        .round = parcel->round,
        .version = parcel->version,
        .body = body,
    };
}

/* Asks for every chunk of the body that has a leaf of the old one. */
static cairn_status ask_anew(const struct command *command, const struct cairn_chunk_place *old)
{
    const struct body *body = command->body;
    struct job *job = command->job;
    const uint64_t end = old->first_leaf + old->leaf_count;
    for (uint64_t leaf = old->first_leaf; leaf < end;) {
        const uint32_t shard = cairn_layout_find(body->layout, old->tensor, leaf)->shard;
        const struct cairn_shard_map *map = &body->parts[shard].map;
        const struct cairn_local_extent *extent = cairn_shard_map_find(map, old->tensor, leaf);
        const uint64_t chunk = extent->first_chunk +
                               (leaf - extent->first_leaf) / map->chunk_leaves;
        const struct cairn_chunk_place place = cairn_shard_map_chunk(map, chunk);
        leaf = place.first_leaf + place.leaf_count;
        if (!cairn_command_touches(command, shard, chunk)) continue;
        struct parcel *parcel = cairn_parcel_new(job, command, shard, chunk);
        if (parcel == NULL) return CAIRN_ERR_NO_MEMORY;
        cairn_asker_ask(&job->shards.links[shard]->asker, &parcel->request);
    }
    return CAIRN_OK;
}

/* It is not asked for any more. */
static void withdraw(struct parcel *parcel)
{
    struct job *job = parcel->job;
    if (parcel->request.state == CAIRN_REQUEST_SENT) job->shards.links[parcel->via]->asked--;
    cairn_asker_drop(&job->shards.links[parcel->shard]->asker, &parcel->request);
}

static void recut(struct parcel *parcel, struct body *body)
{
    const struct command command = command_of(parcel, body);
    const struct cairn_chunk_place old = parcel->place;
    withdraw(parcel);
    cairn_parcel_end(parcel, ask_anew(&command, &old));
}

static struct body *body_of(const struct parcel *parcel)
{
    return cairn_recut_body(parcel->job, parcel->kind, parcel->plane, parcel->version);
}

static bool is_asked(const struct parcel *parcel)
{
    return parcel->op != NULL && parcel->kind != CAIRN_CHUNK_PUSH &&
           parcel->request.state != CAIRN_REQUEST_IDLE;
}

static void pump_all(struct job *job)
{
    for (uint32_t i = 0; i < job->shards.count; i++) cairn_asker_pump(&job->shards.links[i]->asker);
}

void cairn_recut_all(struct job *job)
{
    const uint32_t count = job->parcels.count; // those that are added behind them are of today
    for (uint32_t i = 0; i < count; i++) {
        struct parcel *parcel = job->parcels.all[i];
        struct body *body = is_asked(parcel) ? body_of(parcel) : NULL;
        if (body != NULL && parcel->layout != body->layout->version) recut(parcel, body);
    }
    pump_all(job);
}

/* True if the body may be wrong for what was published while this member was away: another layout
 * may have served then, which nobody told this member of. */
static bool is_missed(const struct job *job, const struct body *body)
{
    const struct body *next = job->bodies;
    while (next != NULL && next->older != body) next = next->older;
    return next != NULL && next->found;
}

bool cairn_recut_refused(struct parcel *parcel, uint64_t status)
{
    struct job *job = parcel->job;
    struct body *body = body_of(parcel);
    const uint64_t now_ms = cairn_client_now_ms();
    if (status != CAIRN_ERR_MALFORMED && status != CAIRN_ERR_NOT_FOUND) return false;
    if (parcel->layout != body->layout->version) {
        recut(parcel, body);
        pump_all(job);
        return true;
    }
    if (status != CAIRN_ERR_MALFORMED) return false;
    if (is_missed(job, body)) {
        cairn_parcel_end(parcel, CAIRN_ERR_VERSION_GONE);
        return true;
    }
    if (parcel->word_by_ms == 0) parcel->word_by_ms = now_ms + WORD_MS;
    return now_ms < parcel->word_by_ms &&
           cairn_asker_again(&job->shards.links[parcel->shard]->asker, &parcel->request,
                             CAIRN_ERR_BUSY);
}

void cairn_recut_gone(struct shard_link *link)
{
    struct job *job = link->job;
    for (uint32_t i = 0; i < job->parcels.count; i++) {
        struct parcel *parcel = job->parcels.all[i];
        if (!is_asked(parcel) || parcel->shard != link->index) continue;
        withdraw(parcel);
        cairn_parcel_end(parcel, CAIRN_ERR_VERSION_GONE);
    }
}
