/* Takes the tiles that workers declare, and says whom a job with tiles waits for. See tiles.c. */
#include <inttypes.h>
#include <stdlib.h>

#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"

#define NAMES_MAX 5 /* in a sentence */

static cairn_status judge(const struct cairn_cluster_member *member, uint32_t world, uint64_t bytes,
                          struct cairn_sentence *why)
{
    const struct cairn_cluster_options *options = member->session->cluster->options;
    uint32_t arriving = 0;
    for (const struct cairn_cluster_member *m = member->session->members; m != NULL;
         m = m->next_of_session)
        arriving += m != member && m->tiles.arriving;
    if (arriving >= CAIRN_SESSION_PAGED_MAX)
        return cairn_fail(why, CAIRN_ERR_BUSY, "too many lists of tiles arrive on this connection");
    if (world > (uint64_t)options->workers_max)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "tiles of %" PRIu32 " ranks; raise round.workers_max (%" PRId64 ")",
                          world, options->workers_max);
    if (world > 0 && member->rank >= world)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "tiles of %" PRIu32 " ranks, declared by rank %" PRIu32
                          ": the ranks are 0 to %" PRIu32,
                          world, member->rank, world - 1);
    if (world == 0 && bytes > 0)
        return cairn_fail(why, CAIRN_ERR_INVALID, "tiles of no ranks at all");
    return CAIRN_OK;
}

static void take(struct cairn_cluster_member *member)
{
    struct cairn_tiles tiles = { 0 };
    struct cairn_sentence why = { "" };
    struct cairn_cluster_job *job = member->job;
    member->tiles.arriving = false;
    cairn_status status = cairn_tiles_unpack(
        member->tiles.pages.bytes, member->tiles.pages.have_bytes, &job->spec, &tiles, &why);
    if (status == CAIRN_OK) status = cairn_cluster_tiles_set(member, &tiles, &why);
    cairn_tiles_release(&tiles);
    cairn_paged_release(&member->tiles.pages);
    if (status != CAIRN_OK) cairn_cluster_tiles_fail(member, status, why.text);
    cairn_cluster_tiles_advance(job);
}

void cairn_cluster_tiles_declare(struct cairn_cluster_member *member, uint32_t request,
                                 const Cairn__TilesDeclare *message)
{
    struct cairn_sentence why;
    cairn_status status = judge(member, message->world, message->tiles_bytes, &why);
    if (status != CAIRN_OK) {
        cairn_cluster_session_error(member->session, request, status, why.text);
        return;
    }
    cairn_paged_release(&member->tiles.pages);
    status = cairn_paged_init(&member->tiles.pages, message->tiles_bytes);
    member->tiles.request = request;
    member->tiles.world = message->world;
    member->tiles.arriving = true;
    if (status != CAIRN_OK) {
        member->tiles.arriving = false;
        cairn_cluster_tiles_fail(member, status,
                                 "a list of tiles is larger than a coordinator takes (64 MiB)");
    } else if (cairn_paged_whole(&member->tiles.pages)) {
        take(member);
    }
}

void cairn_cluster_tiles_page(struct cairn_cluster_session *session, uint32_t request,
                              const Cairn__Page *page)
{
    struct cairn_cluster_member *member = session->members;
    while (member != NULL && (!member->tiles.arriving || member->tiles.request != request))
        member = member->next_of_session;
    if (member == NULL) return; // of a declaration that was refused
    if (cairn_paged_add(&member->tiles.pages, page) != CAIRN_OK) {
        member->tiles.arriving = false;
        cairn_paged_release(&member->tiles.pages);
        cairn_cluster_tiles_fail(member, CAIRN_ERR_PROTOCOL,
                                 "the pages of the tiles do not follow each other");
        return;
    }
    if (cairn_paged_whole(&member->tiles.pages)) take(member);
}

void cairn_cluster_tiles_begins(struct cairn_cluster_member *member)
{
    struct cairn_cluster_job *job = member->job;
    if (job->tiles.world == 0 || member->tiles.declared) return;
    for (const struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job)
        if (m->tiles.declared || m->tiles.request != 0) return;
    // Nobody is left of those who held parts: the job goes on with whole tensors.
    member->tiles.world = 0;
    cairn_cluster_tiles_clear(job, member);
    cairn_cluster_tiles_advance(job);
}

/* ---- whom it waits for ---- */

/* A list in a sentence that ends in time. */
struct names {
    struct cairn_sentence *out;
    size_t count;
};

static void add_rank(struct names *names, const struct cairn_cluster_member *m, uint32_t rank,
                     const char *what)
{
    if (names->count++ >= NAMES_MAX) return;
    cairn_sentence_add(names->out, "%s", names->count > 1 ? ", " : "");
    if (m != NULL) cairn_sentence_add(names->out, "worker %.80s of ", m->session->name);
    cairn_sentence_add(names->out, "rank %" PRIu32 " (%s)", rank, what);
}

/* Attached workers of the ranks below the world; NULL: no memory. */
static const struct cairn_cluster_member **by_rank(const struct cairn_cluster_job *job)
{
    const struct cairn_cluster_member **list = calloc(job->tiles.world, sizeof *list);
    for (const struct cairn_cluster_member *m = job->members.list; list != NULL && m != NULL;
         m = m->next_of_job)
        if (m->phase == CAIRN_MEMBER_ATTACHED && m->role == CAIRN_ROLE_WIRE_WORKER &&
            m->rank < job->tiles.world)
            list[m->rank] = m;
    return list;
}

static void add_ranks(const struct cairn_cluster_job *job, struct names *names)
{
    const struct cairn_cluster_member **members = by_rank(job);
    for (uint32_t r = 0; members != NULL && r < job->tiles.world; r++) {
        if (members[r] == NULL)
            add_rank(names, NULL, r, "not attached");
        else if (!members[r]->tiles.declared)
            add_rank(names, members[r], r, "has not declared its tiles");
    }
    free(members);
    for (const struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job)
        if (m->phase == CAIRN_MEMBER_ATTACHED && m->role == CAIRN_ROLE_WIRE_WORKER &&
            m->rank >= job->tiles.world)
            add_rank(names, m, m->rank, "is not one of the ranks whose tiles are declared");
}

bool cairn_cluster_tiles_waiting(const struct cairn_cluster_job *job, struct cairn_sentence *out)
{
    struct names names = { out, 0 };
    out->text[0] = '\0';
    if (job->tiles.world > 0) add_ranks(job, &names);
    if (names.count > NAMES_MAX) cairn_sentence_add(out, " and %zu more", names.count - NAMES_MAX);
    if (names.count == 0 && job->tiles.gate_shut)
        cairn_sentence_set(out, "the shards to be told of the tiles");
    return out->text[0] != '\0';
}

bool cairn_cluster_tiles_all_put(const struct cairn_cluster_job *job)
{
    const struct cairn_cluster_member **members = by_rank(job);
    bool all = members != NULL;
    for (uint32_t r = 0; all && r < job->tiles.world; r++)
        all = members[r] != NULL && members[r]->init.request != 0;
    free(members);
    return all;
}
