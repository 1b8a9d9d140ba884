/* Shards by name, there or away. */
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/member/seats.h"

uint32_t cairn_cluster_seats_up(const struct cairn_cluster *cluster)
{
    uint32_t count = 0;
    for (const struct cairn_cluster_seat *s = cluster->seats; s != NULL; s = s->next) {
        count += cairn_cluster_seat_obeys(s);
    }
    return count;
}

uint32_t cairn_cluster_seats_staying(const struct cairn_cluster *cluster,
                                     const struct cairn_job_spec_data *spec, bool storing)
{
    uint32_t count = 0;
    for (const struct cairn_cluster_seat *s = cluster->seats; s != NULL; s = s->next)
        count += cairn_cluster_seat_fits(s, spec) && (!storing || s->storage.text[0] == '\0');
    return count;
}

struct cairn_cluster_seat *cairn_cluster_seat_find(const struct cairn_cluster *cluster,
                                                   const char *name)
{
    struct cairn_cluster_seat *seat = cluster->seats;
    while (seat != NULL && strcmp(seat->name, name) != 0) seat = seat->next;
    return seat;
}

struct cairn_cluster_seat *cairn_cluster_seat_get(struct cairn_cluster *cluster, const char *name)
{
    size_t count = 0;
    struct cairn_cluster_seat **at = &cluster->seats;
    for (; *at != NULL && strcmp((*at)->name, name) < 0; at = &(*at)->next) count++;
    if (*at != NULL && strcmp((*at)->name, name) == 0) return *at;
    for (const struct cairn_cluster_seat *s = *at; s != NULL; s = s->next) count++;
    if (count >= CAIRN_SEATS_MAX) return NULL;
    struct cairn_cluster_seat *seat = calloc(1, sizeof *seat);
    if (seat == NULL || (seat->name = strdup(name)) == NULL) {
        free(seat);
        return NULL;
    }
    cairn__shard_stats__init(&seat->stats);
    TAILQ_INIT(&seat->calls);
    seat->since_ms = uv_now(cluster->loop);
    seat->gone_ms = cairn_cluster_now_ms(cluster);
    seat->next = *at;
    *at = seat;
    return seat;
}

void cairn_cluster_seat_free(struct cairn_cluster_seat *seat)
{
    cairn_cluster_seat_forget_parts(seat);
    cairn_cluster_waiters_release(&seat->drain.waiters);
    cairn_cluster_waiters_release(&seat->drain.begun);
    free(seat->fabric_address);
    free(seat->bytes);
    free(seat->memory);
    free(seat->held);
    free(seat->name);
    free(seat);
}

bool cairn_cluster_seat_claimed(const struct cairn_cluster *cluster,
                                const struct cairn_cluster_seat *seat)
{
    const uint64_t recent_ms = (uint64_t)cluster->options->lease_timeout_ms;
    return seat->claimed_ms != 0 && cairn_cluster_now_ms(cluster) - seat->claimed_ms < recent_ms;
}
