#include "server/coordinator/member/places.h"

#include <string.h>

#include "proto/fabric/fabric.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/member/seats.h"

static void add_place(struct cairn_cluster_places *places, const struct cairn_place *place)
{
    char *text = places->texts[places->count];
    cairn_place_print(place, text);
    for (size_t i = 0; i < places->count; i++)
        if (strcmp(places->texts[i], text) == 0) return;
    places->list[places->count++] = text;
}

/* Adds where a shard listens. If it listens on no network, loopback is added, so that workers
 * know that they need no network for it. */
static void add_places(struct cairn_cluster_places *places, const struct cairn_cluster_seat *seat)
{
    struct cairn_place place;
    int i = 0;
    for (; places->count < CAIRN_CLUSTER_PLACES_MAX &&
           cairn_fabric_address_place(seat->fabric_address, seat->fabric_address_bytes, i, &place);
         i++)
        add_place(places, &place);
    const char *kind = cairn_fabric_address_kind(seat->fabric_address, seat->fabric_address_bytes);
    if (strcmp(kind, "mapped") == 0 && places->count < CAIRN_CLUSTER_PLACES_MAX &&
        cairn_place_of("lo", CAIRN_PLACE_MAPPED, &place))
        add_place(places, &place);
}

void cairn_cluster_places_find(const struct cairn_cluster *cluster,
                               struct cairn_cluster_places *out)
{
    out->count = 0;
    const bool any = cairn_cluster_seats_up(cluster) > 0;
    for (const struct cairn_cluster_seat *seat = cluster->seats;
         seat != NULL && out->count < CAIRN_CLUSTER_PLACES_MAX; seat = seat->next)
        if (!any || seat->session != NULL) add_places(out, seat);
}
