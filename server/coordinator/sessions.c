/* Connections: who speaks, and whether it lives. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/text.h"
#include "proto/fabric/fabric.h"
#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cuts.h"
#include "server/coordinator/handlers.h"
#include "server/coordinator/job/drain.h"
#include "server/coordinator/job/drop.h"
#include "server/coordinator/member/places.h"
#include "server/coordinator/restore/adopt.h"
#include "server/coordinator/restore/restore.h"
#include "server/coordinator/seating.h"
#include "server/coordinator/sessions.h"
#include "server/coordinator/store/backup.h"
#include "server/coordinator/trust/keys.h"

#define ADMIN_IDLE_MS (10 * 60 * 1000)

/* ---- Hello ---- */

static cairn_status judge_hello(const struct cairn_cluster *cluster, const Cairn__Hello *hello,
                                struct cairn_sentence *why)
{
    if (hello->protocol != CAIRN_CONTROL_PROTOCOL) {
        return cairn_fail(why, CAIRN_ERR_VERSION,
                          "this coordinator (%s) speaks control protocol %d, not %" PRIu32
                          "; run the same version on both sides",
                          CAIRN_VERSION, CAIRN_CONTROL_PROTOCOL, hello->protocol);
    }
    if (hello->role < CAIRN_ROLE_WIRE_WORKER || hello->role > CAIRN_ROLE_WIRE_ADMIN) {
        return cairn_fail(why, CAIRN_ERR_PROTOCOL, "there is no role %" PRIu32, hello->role);
    }
    cairn_status status = cairn_text_check("a name", hello->name, CAIRN_NAME_MAX, why);
    if (status == CAIRN_OK && hello->version[0] != '\0')
        status = cairn_text_check("a version", hello->version, CAIRN_NAME_MAX, why);
    if (status != CAIRN_OK) return status;
    if (hello->fabric_address.len > CAIRN_FABRIC_ADDRESS_MAX) {
        return cairn_fail(why, CAIRN_ERR_PROTOCOL, "the fabric address is too long");
    }
    if (hello->role == CAIRN_ROLE_WIRE_SHARD && !cairn_job_name_ok(hello->name)) {
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "a shard's name may have letters, digits, '.', '_' and '-' only");
    }
    if (hello->n_held + (uint64_t)hello->held_after > CAIRN_HELD_JOBS_MAX ||
        (hello->held_after > 0 && hello->role != CAIRN_ROLE_WIRE_SHARD)) {
        return cairn_fail(why, CAIRN_ERR_PROTOCOL, "a Hello of more than %d jobs",
                          CAIRN_HELD_JOBS_MAX);
    }
    (void)cluster;
    return CAIRN_OK;
}

static void free_session(struct cairn_cluster_session *session)
{
    if (session->hello != NULL) cairn_message_free(&session->hello->base);
    free(session->fabric_address);
    if (session->home != NULL) cairn_message_free(&session->home->base);
    free(session->name);
    free(session->version);
    free(session->unheard);
    free(session);
}

static struct cairn_cluster_session *make_session(struct cairn_cluster *cluster,
                                                  struct cairn_peer *peer, Cairn__Hello *hello)
{
    struct cairn_cluster_session *session = calloc(1, sizeof *session);
    if (session == NULL) return NULL;
    session->cluster = cluster;
    session->peer = peer;
    session->role = hello->role;
    session->incarnation = hello->incarnation;
    session->without = hello->without;
    session->name = strdup(hello->name);
    session->version = strdup(hello->version);
    session->fabric_address_bytes = hello->fabric_address.len;
    session->fabric_address = malloc(hello->fabric_address.len + 1);
    session->since_ms = session->last_frame_ms = uv_now(cluster->loop);
    if (session->name == NULL || session->version == NULL || session->fabric_address == NULL) {
        free_session(session);
        return NULL;
    }
    session->home = hello->home;
    hello->home = NULL;
    if (hello->fabric_address.len > 0) {
        memcpy(session->fabric_address, hello->fabric_address.data, hello->fabric_address.len);
    }
    return session;
}

static void welcome(struct cairn_cluster_session *session, uint32_t request)
{
    const struct cairn_cluster *cluster = session->cluster;
    Cairn__Welcome message = CAIRN__WELCOME__INIT;
    message.cluster = cluster->options->name;
    message.coordinator_incarnation = cluster->identity.id.incarnation;
    message.heartbeat_ms = (uint32_t)cluster->options->heartbeat_ms;
    message.lease_ms = (uint32_t)cluster->options->lease_timeout_ms;
    message.store = cluster->identity.id.store;
    message.process = cluster->identity.id.process;
    struct cairn_cluster_places places = { .count = 0 };
    if (session->role == CAIRN_ROLE_WIRE_WORKER || session->role == CAIRN_ROLE_WIRE_READER)
        cairn_cluster_places_find(cluster, &places);
    struct cairn_keys_message keys;
    if (session->role == CAIRN_ROLE_WIRE_SHARD) {
        cairn_cluster_keys_fill(cluster, &keys);
        message.keys = &keys.keys;
        message.storage_path = cluster->storage.path;
        message.storage_token = cluster->storage.token;
    }
    message.places = places.list;
    message.n_places = places.count;
    cairn_cluster_session_send(session, CAIRN_MSG_WELCOME, request, &message.base);
}

static void refuse_hello(struct cairn_peer *peer, uint32_t request, cairn_status status,
                         const char *why)
{
    Cairn__Error error = CAIRN__ERROR__INIT;
    error.status = (int32_t)status;
    error.text = (char *)(uintptr_t)why;
    if (cairn_peer_send(peer, CAIRN_MSG_ERROR, request, &error.base) == CAIRN_OK)
        cairn_peer_finish(peer, status, "%s", why);
}

/* The Hello is whole: the session is one of the cluster's, or refused. */
static void admit(struct cairn_cluster_session *session, Cairn__Hello *hello, uint32_t request)
{
    struct cairn_cluster *cluster = session->cluster;
    struct cairn_peer *peer = session->peer;
    struct cairn_sentence why;
    cairn_status status = CAIRN_OK;
    if (hello->role == CAIRN_ROLE_WIRE_SHARD)
        status = cairn_cluster_seat_claim(cluster, peer, hello, &why);
    if (status != CAIRN_OK) {
        cairn_peer_set_context(peer, NULL);
        free_session(session);
        refuse_hello(peer, request, status, why.text);
        return;
    }
    cairn_peer_admit(peer);
    session->next = cluster->sessions;
    cluster->sessions = session;
    welcome(session, request);
    cairn_log_debug("%s %s connected from %s", cairn_role_name(session->role), session->name,
                    cairn_peer_name(peer));
    if (session->role == CAIRN_ROLE_WIRE_SHARD && !cairn_cluster_seat_take(session, hello)) {
        session->closing = true;
        cairn_peer_finish(peer, CAIRN_ERR_NO_MEMORY, "no place for another shard");
    }
    cairn_cluster_openings_advance(cluster);
}

/* A shard's further Hello: its jobs go to the first one's. False: it does not belong there, or no memory. */
static bool join_hello(Cairn__Hello *hello, Cairn__Hello *more)
{
    const size_t count = hello->n_held + more->n_held;
    if (more->n_held == 0 || strcmp(more->name, hello->name) != 0 ||
        more->n_held + more->held_after != hello->held_after)
        return false;
    Cairn__HeldJob **held = realloc(hello->held, count * sizeof(Cairn__HeldJob *));
    if (held == NULL) return false;
    memcpy(held + hello->n_held, more->held, more->n_held * sizeof(Cairn__HeldJob *));
    hello->held = held;
    hello->n_held = count;
    hello->held_after = more->held_after;
    more->n_held = 0; // they are the first one's
    return true;
}

static void on_more_hello(struct cairn_cluster_session *session, Cairn__Hello *more,
                          uint32_t request)
{
    Cairn__Hello *hello = session->hello;
    if (!join_hello(hello, more)) {
        cairn_peer_close(session->peer, CAIRN_ERR_PROTOCOL, "a Hello that does not continue");
        return;
    }
    if (hello->held_after > 0) return;
    session->hello = NULL;
    admit(session, hello, request);
    cairn_message_free(&hello->base);
}

static void on_first_hello(struct cairn_cluster *cluster, struct cairn_peer *peer,
                           Cairn__Hello *hello, uint32_t request)
{
    struct cairn_sentence why;
    struct cairn_cluster_session *session = NULL;
    cairn_status status = judge_hello(cluster, hello, &why);
    if (status == CAIRN_OK) {
        session = make_session(cluster, peer, hello);
        if (session == NULL) status = cairn_fail(&why, CAIRN_ERR_NO_MEMORY, "no memory");
    }
    if (status != CAIRN_OK) {
        refuse_hello(peer, request, status, why.text);
        cairn_message_free(&hello->base);
        return;
    }
    cairn_peer_set_context(peer, session);
    if (hello->held_after > 0) {
        session->hello = hello;
        return;
    }
    admit(session, hello, request);
    cairn_message_free(&hello->base);
}

static void on_hello(struct cairn_cluster *cluster, struct cairn_peer *peer,
                     const struct cairn_frame *frame)
{
    struct cairn_cluster_session *session = cairn_peer_context(peer);
    Cairn__Hello *hello = (Cairn__Hello *)cairn_message_unpack(
        &cairn__hello__descriptor, frame->payload, frame->payload_bytes);
    if (hello == NULL) {
        cairn_peer_close(peer, CAIRN_ERR_PROTOCOL, "malformed Hello");
    } else if (session == NULL) {
        on_first_hello(cluster, peer, hello, frame->request);
    } else {
        on_more_hello(session, hello, frame->request);
        cairn_message_free(&hello->base);
    }
}

/* ---- frames ---- */

static void handle(struct cairn_cluster_session *session, const struct cairn_frame *frame,
                   const ProtobufCMessage *message)
{
    bool known = false;
    switch (session->role) {
    case CAIRN_ROLE_WIRE_WORKER:
    case CAIRN_ROLE_WIRE_READER:
        known = cairn_cluster_handle_worker(session, frame, message);
        break;
    case CAIRN_ROLE_WIRE_SHARD: known = cairn_cluster_handle_shard(session, frame, message); break;
    case CAIRN_ROLE_WIRE_ADMIN: known = cairn_cluster_handle_admin(session, frame, message); break;
    default: break;
    }
    if (known || session->closing) return;
    session->closing = true;
    cairn_peer_close(session->peer, CAIRN_ERR_PROTOCOL, "%s may not send %s",
                     cairn_role_name(session->role), cairn_message_name(frame->type));
}

/* A whole frame of a session that goes on. */
static void take_frame(struct cairn_cluster_session *session, const struct cairn_frame *frame)
{
    const ProtobufCMessageDescriptor *type = cairn_message_type(frame->type);
    ProtobufCMessage *message =
        type == NULL ? NULL : cairn_message_unpack(type, frame->payload, frame->payload_bytes);
    if (message == NULL) {
        session->closing = true;
        cairn_peer_close(session->peer, CAIRN_ERR_MALFORMED, "malformed %s from %s",
                         cairn_message_name(frame->type), session->name);
        return;
    }
    handle(session, frame, message);
    cairn_message_free(message);
}

void cairn_cluster_sessions_take_early(struct cairn_cluster *cluster)
{
    struct cairn_cluster_early *early;
    while (!cluster->closing && (early = cairn_cluster_early_take(cluster)) != NULL) {
        if (!early->session->closing) take_frame(early->session, &early->frame);
        free(early);
    }
}

void cairn_cluster_session_on_frame(struct cairn_peer *peer, const struct cairn_frame *frame,
                                    void *context)
{
    struct cairn_cluster *cluster = context;
    struct cairn_cluster_session *session = cairn_peer_context(peer);
    if (cluster->closing) return;
    if (session == NULL || session->hello != NULL) {
        on_hello(cluster, peer, frame);
        return;
    }
    if (session->closing) return;
    session->last_frame_ms = uv_now(cluster->loop);
    if (session->role == CAIRN_ROLE_WIRE_ADMIN && frame->type != CAIRN_MSG_HEARTBEAT)
        session->unanswered += frame->request != 0;
    if (!cairn_cluster_early_hold(session, frame)) take_frame(session, frame);
    cairn_cluster_sessions_take_early(cluster);
}

static void forget_waits(struct cairn_cluster_session *session)
{
    for (struct cairn_cluster_job *job = session->cluster->jobs; job != NULL; job = job->next) {
        cairn_cluster_cut_forget(job, session);
    }
    cairn_cluster_restores_forget(session->cluster, session);
    cairn_cluster_adopt_forget(session->cluster, session);
    cairn_cluster_backup_forget(session->cluster, session);
    cairn_cluster_keys_forget(session->cluster, session);
    cairn_cluster_drops_forget(session->cluster, session);
    cairn_cluster_drains_forget(session->cluster, session);
    cairn_cluster_reshard_forget(session->cluster, session);
    cairn_cluster_park_forget(session->cluster, session);
    cairn_cluster_amenders_forget(session->cluster, session);
    cairn_cluster_works_forget(session->cluster, session);
    cairn_cluster_early_forget(session->cluster, session);
}

void cairn_cluster_session_on_gone(struct cairn_peer *peer, cairn_status status, const char *why,
                                   void *context)
{
    struct cairn_cluster *cluster = context;
    struct cairn_cluster_session *session = cairn_peer_context(peer);
    if (session == NULL) return;
    if (session->hello != NULL) { // it was not admitted
        free_session(session);
        return;
    }
    struct cairn_cluster_session **at = &cluster->sessions;
    while (*at != session) at = &(*at)->next;
    *at = session->next;
    session->closing = true;
    forget_waits(session);
    while (session->members != NULL) cairn_cluster_member_lost(session->members, why);
    cairn_cluster_seat_leave(session, status, why);
    free_session(session);
    if (!cluster->closing) cairn_cluster_openings_advance(cluster);
}

/* An admin holds nothing, and its program waits for an answer without speaking; one that asks nothing either
 * would have a connection for nothing, for ever. */
static uint64_t silence_max_ms(const struct cairn_cluster_session *session)
{
    if (session->role != CAIRN_ROLE_WIRE_ADMIN)
        return (uint64_t)session->cluster->options->lease_timeout_ms;
    return session->unanswered > 0 ? UINT64_MAX : ADMIN_IDLE_MS;
}

void cairn_cluster_sessions_tick(struct cairn_cluster *cluster, uint64_t now_ms, uint64_t away_ms)
{
    const Cairn__Heartbeat beat = CAIRN__HEARTBEAT__INIT;
    for (struct cairn_cluster_session *s = cluster->sessions; s != NULL; s = s->next) {
        if (s->closing) continue;
        cairn_cluster_session_send(s, CAIRN_MSG_HEARTBEAT, 0, &beat.base);
        // We were stopped ourselves: what they sent meanwhile waits in the sockets.
        s->last_frame_ms += away_ms;
        if (s->last_frame_ms > now_ms) s->last_frame_ms = now_ms;
        if (now_ms - s->last_frame_ms < silence_max_ms(s)) continue;
        s->closing = true;
        cairn_peer_close(s->peer, CAIRN_ERR_TIMEOUT, "nothing heard for %" PRIu64 " ms",
                         now_ms - s->last_frame_ms);
    }
}
