#include "server/shard/unheard.h"

#include <string.h>

#include "proto/link/chunk_link.h"
#include "server/shard/move/take.h"
#include "server/shard/relay/relay.h"
#include "server/shard/shard.h"

/* Adds who is at the other end, if it has been silent for long. The end of one on this host is noticed: no
 * way there is cut. */
static void look(struct cairn_unheard *list, const struct cairn_shard *shard,
                 const struct cairn_chunk_link *link, char *name)
{
    size_t i = 0;
    if (cairn_chunk_link_silent_ms(link, uv_now(shard->loop)) < shard->unheard_ms ||
        cairn_chunk_link_shares(link))
        return;
    while (i < list->count && strcmp(list->names[i], name) != 0) i++;
    if (i == list->count && i < CAIRN_UNHEARD_MAX) list->names[list->count++] = name;
}

static void look_at_givers(struct cairn_unheard *list, const struct cairn_shard *shard,
                           struct cairn_take *take)
{
    const struct cairn_chunk_link *link;
    char *name;
    for (uint32_t i = 0; (link = cairn_take_link(take, i, &name)) != NULL; i++)
        look(list, shard, link, name);
}

void cairn_unheard_list(const struct cairn_shard *shard, struct cairn_unheard *list_out)
{
    list_out->count = 0;
    for (const struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next) {
        struct cairn_relay *relay = cairn_relay_of(job);
        if (job->move.now != NULL && job->move.now->take != NULL)
            look_at_givers(list_out, shard, job->move.now->take);
        for (uint32_t i = 0; relay != NULL && i < relay->owner_count; i++)
            look(list_out, shard, &relay->owners[i].link, relay->owners[i].name);
    }
}
