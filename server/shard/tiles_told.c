/* MemberTiles: the list of tiles of a member, page by page. See tiles.c. */
#include <stdlib.h>

#include "server/shard/shard.h"

static cairn_status judge_tiling(const struct cairn_shard_job *job,
                                 const struct cairn_tiling *tiling, struct cairn_tiles *tiles_out,
                                 struct cairn_sentence *why)
{
    struct cairn_tiles tiles;
    cairn_status status = cairn_tiles_unpack(tiling->bytes.bytes, tiling->bytes.have_bytes,
                                             &job->spec, &tiles, why);
    if (status != CAIRN_OK) return status;
    if (cairn_tiles_hash(&tiles) != tiling->message->tiles_hash) {
        cairn_tiles_release(&tiles);
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "the tiles have another hash than is said");
    }
    *tiles_out = tiles;
    return CAIRN_OK;
}

/* All pages are here. */
static cairn_status take_tiling(struct cairn_shard *shard, const struct cairn_tiling *tiling,
                                struct cairn_sentence *why)
{
    const Cairn__MemberTiles *message = tiling->message;
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
        job->tiles_world = message->world;
        cairn_log_debug("%s of job %s holds tiles of %zu tensors", member->name, job->spec.name,
                        tiles.count);
    }
    cairn_tiles_release(&tiles);
    return status;
}

static void tiling_free(struct cairn_tiling *tiling)
{
    cairn_message_free(&tiling->message->base);
    cairn_paged_release(&tiling->bytes);
    free(tiling);
}

/* Answers it and takes it off the list. */
static void tiling_end(struct cairn_shard *shard, struct cairn_tiling *tiling, cairn_status status,
                       const struct cairn_sentence *why)
{
    struct cairn_tiling **link = &shard->tilings;
    while (*link != tiling) link = &(*link)->next;
    *link = tiling->next;
    if (status != CAIRN_OK) cairn_log_warn("tiles of a member refused: %s", why->text);
    struct cairn_request request = cairn_session_request(shard, tiling->request);
    cairn_session_answer(shard, &request, status, why);
    tiling_free(tiling);
}

static void tiling_advance(struct cairn_shard *shard, struct cairn_tiling *tiling)
{
    if (!cairn_paged_whole(&tiling->bytes)) return; // more pages follow
    struct cairn_sentence why = { "" };
    const cairn_status status = take_tiling(shard, tiling, &why);
    tiling_end(shard, tiling, status, &why);
}

void cairn_tiles_drop(struct cairn_shard *shard)
{
    while (shard->tilings != NULL) {
        struct cairn_tiling *tiling = shard->tilings;
        shard->tilings = tiling->next;
        tiling_free(tiling);
    }
}

void cairn_tiles_on_message(struct cairn_shard *shard, uint32_t request,
                            Cairn__MemberTiles *message)
{
    size_t count = 0;
    for (const struct cairn_tiling *t = shard->tilings; t != NULL; t = t->next) count++;
    struct cairn_tiling *tiling = NULL;
    if (count < CAIRN_SHARD_TILINGS_MAX) tiling = calloc(1, sizeof *tiling);
    if (tiling == NULL || cairn_paged_init(&tiling->bytes, message->tiles_bytes) != CAIRN_OK) {
        struct cairn_request answered = cairn_session_request(shard, request);
        struct cairn_sentence why;
        cairn_sentence_set(&why, "%zu lists of tiles are arriving, one of %llu bytes: too many",
                           count + 1, (unsigned long long)message->tiles_bytes);
        cairn_session_answer(shard, &answered, CAIRN_ERR_BUSY, &why);
        cairn_message_free(&message->base);
        free(tiling);
        return;
    }
    tiling->request = request;
    tiling->message = message;
    tiling->next = shard->tilings;
    shard->tilings = tiling;
    tiling_advance(shard, tiling);
}

void cairn_tiles_on_page(struct cairn_shard *shard, uint32_t request, const Cairn__Page *page)
{
    struct cairn_tiling *tiling = shard->tilings;
    while (tiling != NULL && tiling->request != request) tiling = tiling->next;
    if (tiling == NULL) return; // of one that was refused
    const cairn_status status = cairn_paged_add(&tiling->bytes, page);
    if (status == CAIRN_OK) {
        tiling_advance(shard, tiling);
        return;
    }
    struct cairn_sentence why;
    cairn_sentence_set(&why, "a page of tiles at %llu does not follow",
                       (unsigned long long)page->offset);
    tiling_end(shard, tiling, status, &why);
}
