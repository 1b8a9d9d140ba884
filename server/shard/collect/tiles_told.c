/* MemberTiles: the list of tiles of a member, page by page. See tiles.c. */
#include "server/shard/base/arriving.h"
#include "server/shard/shard.h"

static cairn_status judge_tiling(const struct cairn_shard_job *job,
                                 const struct cairn_arriving *tiling, struct cairn_tiles *tiles_out,
                                 struct cairn_sentence *why)
{
    const Cairn__MemberTiles *message = (const Cairn__MemberTiles *)tiling->message;
    struct cairn_tiles tiles;
    cairn_status status = cairn_tiles_unpack(tiling->paged[0].bytes, tiling->paged[0].have_bytes,
                                             &job->spec, &tiles, why);
    if (status != CAIRN_OK) return status;
    if (cairn_tiles_hash(&tiles) != message->tiles_hash) {
        cairn_tiles_release(&tiles);
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "the tiles have another hash than is said");
    }
    *tiles_out = tiles;
    return CAIRN_OK;
}

/* All pages are here. */
static cairn_status take_tiling(struct cairn_shard *shard, const struct cairn_arriving *tiling,
                                struct cairn_sentence *why)
{
    const Cairn__MemberTiles *message = (const Cairn__MemberTiles *)tiling->message;
    struct cairn_shard_job *job = cairn_shard_job_find(shard, message->job);
    struct cairn_member *member = NULL;
    if (job != NULL && job->state != CAIRN_JOB_FAULTED)
        member = cairn_member_find(job, message->member);
    if (member == NULL)
        return cairn_fail(why, CAIRN_ERR_NOT_FOUND, "shard %s knows no such member of that job",
                          shard->name);
    struct cairn_tiles tiles;
    cairn_status status = judge_tiling(job, tiling, &tiles, why);
    if (status != CAIRN_OK) return status;
    status = cairn_tiles_set_member(member, &tiles, why);
    if (status == CAIRN_OK) {
        job->tiling.world = message->world;
        cairn_log_debug("%s of job %s holds tiles of %zu tensors", member->name, job->spec.name,
                        tiles.count);
    }
    cairn_tiles_release(&tiles);
    return status;
}

static void tiling_whole(struct cairn_shard *shard, struct cairn_arriving *tiling)
{
    struct cairn_sentence why = { "" };
    const cairn_status status = take_tiling(shard, tiling, &why);
    cairn_arriving_end(shard, tiling, status, &why);
}

void cairn_tiles_on_message(struct cairn_shard *shard, uint32_t request,
                            Cairn__MemberTiles *message)
{
    static const struct cairn_arriving_kind kind = {
        .name = "a list of a member's tiles",
        .what = { CAIRN_PAGE_TILES },
        .may_be_empty = true,
        .whole = tiling_whole,
    };
    const uint64_t bytes[CAIRN_ARRIVING_PAGED] = { message->tiles_bytes };
    cairn_arriving_begin(shard, &kind, request, &message->base, bytes);
}
