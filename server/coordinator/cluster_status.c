/* Answers `cairn cluster status`: the coordinator, its shards, workers and readers. */
#include <stdlib.h>

#include "proto/fabric/fabric.h"
#include "proto/fabric/where.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/handlers.h"
#include "server/coordinator/member/unheard.h"

/* For a field of a message, which nobody writes. */
static char *path_of(const uint8_t *address, size_t bytes)
{
    return (char *)(uintptr_t)cairn_fabric_address_ways(address, bytes);
}

/* As path_of; written into `text`. */
static char *place_of(const uint8_t *address, size_t bytes, char text[CAIRN_PLACE_BYTES])
{
    cairn_fabric_address_print_places(address, bytes, text);
    return text;
}

static void fill_shard(Cairn__MemberStatus *out, struct cairn_cluster_seat *seat,
                       char place[CAIRN_PLACE_BYTES], uint64_t now_ms)
{
    cairn__member_status__init(out);
    out->name = seat->name;
    out->role = CAIRN_ROLE_WIRE_SHARD;
    out->state = (char *)(uintptr_t)(seat->session == NULL            ? "away"
                                     : cairn_cluster_seat_obeys(seat) ? "up"
                                                                      : "not ours");
    if (seat->session != NULL) {
        out->address = (char *)(uintptr_t)cairn_peer_name(seat->session->peer);
        out->path = path_of(seat->fabric_address, seat->fabric_address_bytes);
        out->place = place_of(seat->fabric_address, seat->fabric_address_bytes, place);
        out->without = seat->session->without;
        out->version = seat->session->version;
        if (cairn_cluster_seat_apart(seat)) out->apart = (char *)(uintptr_t)CAIRN_SEAT_APART_TEXT;
        out->home = seat->session->home;
        out->stats = seat->has_stats ? &seat->stats : NULL;
        out->storage = (char *)(uintptr_t)seat->storage.text;
        out->unfit = (char *)(uintptr_t)(cairn_cluster_seat_unfit(seat) ? seat->unfit.text : "");
        out->unheard = (char *)(uintptr_t)cairn_cluster_unheard_text(seat->session);
    }
    out->since_ms = now_ms - seat->since_ms;
    out->state_bytes = seat->stats.state_bytes;
    out->memory_bytes = seat->memory_bytes;
}

static void fill_session(Cairn__MemberStatus *out, const struct cairn_cluster_session *session,
                         char place[CAIRN_PLACE_BYTES], uint64_t now_ms)
{
    cairn__member_status__init(out);
    out->name = session->name;
    out->role = session->role;
    out->state = (char *)(uintptr_t) "up";
    out->version = session->version;
    out->address = (char *)(uintptr_t)cairn_peer_name(session->peer);
    out->path = path_of(session->fabric_address, session->fabric_address_bytes);
    out->place = place_of(session->fabric_address, session->fabric_address_bytes, place);
    out->since_ms = now_ms - session->since_ms;
    out->unheard = (char *)(uintptr_t)cairn_cluster_unheard_text(session);
}

#define MEMBERS_MAX 4096 /* so that a frame holds them */

static bool is_shown(const struct cairn_cluster_session *session)
{
    return session->role == CAIRN_ROLE_WIRE_WORKER || session->role == CAIRN_ROLE_WIRE_READER;
}

static size_t count_members(const struct cairn_cluster *cluster)
{
    size_t n = 0;
    for (const struct cairn_cluster_seat *s = cluster->seats; s != NULL; s = s->next) n++;
    for (const struct cairn_cluster_session *s = cluster->sessions; s != NULL; s = s->next)
        n += is_shown(s);
    return n < MEMBERS_MAX ? n : MEMBERS_MAX;
}

/* Shards first, then workers and readers; at most `max`. */
static size_t fill_members(const struct cairn_cluster *cluster, Cairn__MemberStatus *out,
                           char (*places)[CAIRN_PLACE_BYTES], size_t max)
{
    const uint64_t now_ms = uv_now(cluster->loop);
    size_t n = 0;
    for (struct cairn_cluster_seat *s = cluster->seats; s != NULL && n < max; s = s->next) {
        fill_shard(&out[n], s, places[n], now_ms);
        n++;
    }
    for (const struct cairn_cluster_session *s = cluster->sessions; s != NULL && n < max;
         s = s->next) {
        if (!is_shown(s)) continue;
        fill_session(&out[n], s, places[n], now_ms);
        n++;
    }
    return n;
}

void cairn_cluster_status_answer(struct cairn_cluster_session *session, uint32_t request)
{
    const struct cairn_cluster *cluster = session->cluster;
    struct cairn_cluster_strangers strangers;
    const size_t max = count_members(cluster);
    Cairn__MemberStatus *members = calloc(max + 1, sizeof *members);
    Cairn__MemberStatus **list = calloc(max + 1, sizeof *list);
    char(*places)[CAIRN_PLACE_BYTES] = calloc(max + 1, sizeof *places);
    if (members == NULL || list == NULL || places == NULL ||
        !cairn_cluster_strangers_init(&strangers, cluster)) {
        free(members);
        free(list);
        free(places);
        cairn_cluster_session_error(session, request, CAIRN_ERR_NO_MEMORY, "no memory");
        return;
    }
    Cairn__ClusterStatus status = CAIRN__CLUSTER_STATUS__INIT;
    status.cluster = cluster->options->name;
    status.coordinator_incarnation = cluster->identity.id.incarnation;
    const char *build = cluster->options->build;
    status.version = (char *)(uintptr_t)(build != NULL ? build : CAIRN_VERSION);
    status.uptime_ms = uv_now(cluster->loop) - cluster->clock.started_ms;
    status.shards_expected = (uint32_t)cluster->options->shards;
    status.members = list;
    status.n_members = fill_members(cluster, members, places, max);
    for (size_t i = 0; i < status.n_members; i++) list[i] = &members[i];
    for (const struct cairn_cluster_job *j = cluster->jobs; j != NULL; j = j->next)
        status.job_count++;
    status.store = cluster->identity.id.store;
    status.storage = (char *)(uintptr_t)cluster->storage.watch.said.text;
    status.strangers = strangers.list;
    status.n_strangers = strangers.count;
    cairn_cluster_session_send(session, CAIRN_MSG_CLUSTER_STATUS, request, &status.base);
    cairn_cluster_strangers_release(&strangers);
    free(members);
    free(list);
    free(places);
}
