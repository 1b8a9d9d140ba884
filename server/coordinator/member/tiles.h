/* Tiles: the boxes of tensors that each rank holds (tiles.c says how they are kept; TilesDeclare in
 * control.proto). */
#ifndef CAIRN_COORDINATOR_MEMBER_TILES_H
#define CAIRN_COORDINATOR_MEMBER_TILES_H

#include "server/coordinator/base/names.h"

struct cairn_cluster_tile_list;
struct cairn_box;
struct cairn_tiles;

/* A job's tiles: who holds which boxes of the tensors. */
struct cairn_cluster_tiles {
    uint32_t world;                           /* the ranks 0, ..., world - 1 declare; 0: no tiles */
    struct cairn_cluster_tile_list **of_rank; /* owned: [world]; NULL: not declared */
    struct cairn_cluster_tile_list *lists;    /* owned: the different ones */
    bool known;     /* this incarnation was told, by a worker or a shard */
    bool telling;   /* shards may know of tiles: every worker's are told, also that it has none */
    bool covered;   /* the lists of all ranks make up the tensors */
    bool changed;   /* members came or went in an event of the core */
    bool gate_shut; /* as the core knows it */
    uint32_t gate_world;
};

/* The tiles that a shard's part of a job is told. */
struct cairn_cluster_part_tiles {
    size_t told_bytes; /* of MemberTiles on their way to the shard */
    /* the shard is told of this member's tiles next, unless it knows them */
    struct cairn_cluster_member *next;
};

/* A member's tiles, and which shards know them. */
struct cairn_cluster_member_tiles {
    /* [shard_count]: which shards know its tiles; borrowed of member->known_to */
    uint8_t *known_to;
    uint32_t knowing;         /* shards that know them */
    uint32_t serial;          /* counts what is told of them */
    uint32_t request;         /* TilesDeclare: its pages arrive, or it waits for TilesSet */
    uint32_t world;           /* of that TilesDeclare */
    struct cairn_paged pages; /* owned; while arriving */
    bool arriving, declared;
};

void cairn_cluster_tiles_declare(struct cairn_cluster_member *member, uint32_t request,
                                 const Cairn__TilesDeclare *message);
void cairn_cluster_tiles_page(struct cairn_cluster_session *session, uint32_t request,
                              const Cairn__Page *page);
/* The worker asks for a round. One that declared no tiles, when nobody is left who did, ends them. */
void cairn_cluster_tiles_begins(struct cairn_cluster_member *member);
/* A shard says that it knows tiles of so many ranks; 0: of none. */
void cairn_cluster_tiles_heard(struct cairn_cluster_job *job, uint32_t world);
/* Something changed: tells shards, judges the cover, answers, sets the core's gate. During an event of the
 * core: after it. */
void cairn_cluster_tiles_advance(struct cairn_cluster_job *job);
/* A shard, or a member that leaves the job's list, is not told of any more. */
void cairn_cluster_tiles_shard_gone(struct cairn_cluster_member *m, uint32_t shard);
void cairn_cluster_tiles_member_gone(struct cairn_cluster_job *job,
                                     const struct cairn_cluster_member *m);
/* Takes the tiles that the member declares for member->tiles.world ranks into the table; advance follows.
 * CAIRN_ERR_BUSY: it contributes to an open round. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_cluster_tiles_set(struct cairn_cluster_member *member, struct cairn_tiles *tiles,
                                     struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Nothing is declared any more; who waits, but `by`, hears why. advance follows. */
void cairn_cluster_tiles_clear(struct cairn_cluster_job *job,
                               const struct cairn_cluster_member *by);
/* The member's TilesDeclare fails. */
void cairn_cluster_tiles_fail(struct cairn_cluster_member *member, cairn_status status,
                              const char *text);
/* False: a round may open, for all that tiles are concerned. Else `out` says who is missing. */
bool cairn_cluster_tiles_waiting(const struct cairn_cluster_job *job, struct cairn_sentence *out);
/* All declared ranks have said InitDone. */
bool cairn_cluster_tiles_all_put(const struct cairn_cluster_job *job);
/* The box of a tensor that a rank holds; NULL: the whole tensor. The rank must have declared. */
const struct cairn_box *cairn_cluster_tiles_box(const struct cairn_cluster_job *job, uint32_t rank,
                                                uint32_t tensor);
void cairn_cluster_tiles_release(struct cairn_cluster_job *job);

#endif
