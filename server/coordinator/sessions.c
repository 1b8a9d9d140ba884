/* Connections: which peer each connection belongs to, and whether the peer is alive. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/access.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/restore.h"
#include "server/coordinator/roster.h"

#define ADMIN_IDLE_MS (10 * 60 * 1000)

static cairn_status claim_entry(struct coord *cluster, struct peer *peer, const Cairn__Hello *hello,
                                struct sentence *why);
static bool take_entry(struct coord_session *session, const Cairn__Hello *hello);

/* ---- Hello ---- */

static cairn_status judge_hello(const Cairn__Hello *hello, struct sentence *why)
{
    if (hello->protocol != CAIRN_CONTROL_PROTOCOL)
        return fail_with(why, CAIRN_ERR_VERSION,
                         "this coordinator (%s) speaks control protocol %d, not %" PRIu32
                         "; run the same version on both sides",
                         CAIRN_VERSION, CAIRN_CONTROL_PROTOCOL, hello->protocol);
    if (hello->role < CAIRN_ROLE_WIRE_WORKER || hello->role > CAIRN_ROLE_WIRE_ADMIN)
        return fail_with(why, CAIRN_ERR_PROTOCOL, "there is no role %" PRIu32, hello->role);
    cairn_status status = text_check("a name", hello->name, CAIRN_NAME_MAX, why);
    if (status == CAIRN_OK && hello->version[0] != '\0')
        status = text_check("a version", hello->version, CAIRN_NAME_MAX, why);
    if (status != CAIRN_OK) return status;
    if (hello->standby_of[0] != '\0' &&
        (!job_name_ok(hello->standby_of) || strcmp(hello->standby_of, hello->name) == 0))
        return fail_with(why, CAIRN_ERR_INVALID,
                         "shard.standby_of is to be the name of another shard");
    if (hello->domain[0] != '\0')
        CAIRN_TRY(text_check("shard.domain", hello->domain, CAIRN_NAME_MAX, why));
    if (hello->fabric_address.len > CAIRN_FABRIC_ADDRESS_MAX)
        return fail_with(why, CAIRN_ERR_PROTOCOL, "the fabric address is too long");
    if (hello->role == CAIRN_ROLE_WIRE_SHARD && !job_name_ok(hello->name))
        return fail_with(why, CAIRN_ERR_INVALID,
                         "a shard's name may have letters, digits, '.', '_' and '-' only");
    if (hello->n_held + (uint64_t)hello->held_after > CAIRN_HELD_JOBS_MAX ||
        (hello->held_after > 0 && hello->role != CAIRN_ROLE_WIRE_SHARD))
        return fail_with(why, CAIRN_ERR_PROTOCOL, "a Hello of more than %d jobs",
                         CAIRN_HELD_JOBS_MAX);
    return CAIRN_OK;
}

/* Judges whether the identity may be what its Hello says. An admin's requests are judged one by one. */
static cairn_status judge_role(const struct identity *who, const Cairn__Hello *hello,
                               struct sentence *why)
{
    static const uint32_t needs[] = {
        // a reader's session says that it is a worker's: its JobOpen says what it is
        [CAIRN_ROLE_WIRE_WORKER] = CAIRN_MAY_WORK | CAIRN_MAY_READ,
        [CAIRN_ROLE_WIRE_READER] = CAIRN_MAY_READ | CAIRN_MAY_WORK,
        [CAIRN_ROLE_WIRE_SHARD] = CAIRN_MAY_SHARD,
        [CAIRN_ROLE_WIRE_ADMIN] = CAIRN_MAY_MONITOR | CAIRN_MAY_READ | CAIRN_MAY_WORK,
    };
    char doing[64];
    snprintf(doing, sizeof doing, "connect as %s", role_name(hello->role));
    return access_any(who, needs[hello->role], doing, why);
}

/* An admin's commands always get in, because they must be able to mend what is wrong: the listener keeps the
 * last connections for those of this host. */
static bool is_command(const struct identity *who, const Cairn__Hello *hello)
{
    return hello->role == CAIRN_ROLE_WIRE_ADMIN && access_role(who, CAIRN_MAY_ADMIN);
}

/* Judges whether the owner may have another connection. */
static cairn_status judge_sessions(struct coord *cluster, const struct identity *who,
                                   const Cairn__Hello *hello, struct sentence *why)
{
    if (is_command(who, hello) || hello->role == CAIRN_ROLE_WIRE_SHARD) return CAIRN_OK;
    return coord_quota_judge(cluster, who->owner, &(struct quota) { .sessions = 1 }, why);
}

static void free_session(struct coord_session *session)
{
    if (session->hello != NULL) message_free(&session->hello->base);
    free(session->fabric_address);
    if (session->home != NULL) message_free(&session->home->base);
    free(session->name);
    free(session->version);
    free(session->unheard);
    free(session);
}

static struct coord_session *make_session(struct coord *cluster, struct peer *peer,
                                          Cairn__Hello *hello)
{
    struct coord_session *session = calloc(1, sizeof *session);
    if (session == NULL) return NULL;
    session->cluster = cluster;
    session->peer = peer;
    session->role = hello->role;
    session->is_apart = is_command(peer_identity(peer), hello);
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
    if (hello->fabric_address.len > 0)
        memcpy(session->fabric_address, hello->fabric_address.data, hello->fabric_address.len);
    return session;
}

/* The places at which shards receive data, for workers that have to choose a network device before they
 * report their own place (Welcome.places). */

#define PLACES_MAX 64 /* enough to recognize the networks */

struct places {
    char texts[PLACES_MAX][CAIRN_PLACE_BYTES];
    char *list[PLACES_MAX]; /* the texts, as Welcome.places needs them */
    size_t count;
};

static void add_place(struct places *places, const struct fabric_place *place)
{
    char *text = places->texts[places->count];
    place_print(place, text);
    for (size_t i = 0; i < places->count; i++)
        if (strcmp(places->texts[i], text) == 0) return;
    places->list[places->count++] = text;
}

/* Adds the places at which a shard listens. If the shard listens on no network, adds loopback, so that
 * workers know that they need no network for this shard. */
static void add_places(struct places *places, const struct coord_shard_entry *entry)
{
    struct fabric_place place;
    int i = 0;
    for (; places->count < PLACES_MAX &&
           fabric_address_place(entry->fabric_address, entry->fabric_address_bytes, i, &place);
         i++)
        add_place(places, &place);
    const char *kind = fabric_address_kind(entry->fabric_address, entry->fabric_address_bytes);
    if (strcmp(kind, "mapped") == 0 && places->count < PLACES_MAX &&
        fabric_place_of("lo", CAIRN_PLACE_MAPPED, &place))
        add_place(places, &place);
}

/* Lists the places of the connected shards, each once. If no shard is connected, lists the places of the
 * shards that are away. */
static void find_places(const struct coord *cluster, struct places *out)
{
    out->count = 0;
    const bool any = coord_shards_up(cluster) > 0;
    for (const struct coord_shard_entry *entry = cluster->shards;
         entry != NULL && out->count < PLACES_MAX; entry = entry->next)
        if (!any || entry->session != NULL) add_places(out, entry);
}

static void welcome_session(struct coord_session *session, uint32_t request)
{
    const struct coord *cluster = session->cluster;
    Cairn__Welcome message = CAIRN__WELCOME__INIT;
    message.cluster = cluster->options->name;
    message.coordinator_incarnation = cluster->identity.id.incarnation;
    message.heartbeat_ms = (uint32_t)cluster->options->heartbeat_ms;
    message.lease_ms = (uint32_t)cluster->options->lease_timeout_ms;
    message.store = cluster->identity.id.store;
    message.process = cluster->identity.id.process;
    struct places places = { .count = 0 };
    if (session->role == CAIRN_ROLE_WIRE_WORKER || session->role == CAIRN_ROLE_WIRE_READER)
        find_places(cluster, &places);
    struct keys_message keys;
    if (session->role == CAIRN_ROLE_WIRE_SHARD) {
        coord_keys_fill(cluster, &keys);
        message.keys = &keys.keys;
        message.storage_path = cluster->storage.path;
        message.storage_token = cluster->storage.token;
    }
    message.places = places.list;
    message.n_places = places.count;
    coord_session_send(session, CAIRN_MSG_WELCOME, request, &message.base);
}

static void refuse_hello(struct peer *peer, uint32_t request, cairn_status status, const char *why)
{
    Cairn__Error error = CAIRN__ERROR__INIT;
    error.status = (int32_t)status;
    error.text = wire_text(why);
    if (peer_send(peer, CAIRN_MSG_ERROR, request, &error.base) == CAIRN_OK)
        peer_finish(peer, status, "%s", why);
}

/* Called when the Hello is complete: adds the session to the cluster, or refuses it. */
static void admit_session(struct coord_session *session, Cairn__Hello *hello, uint32_t request)
{
    struct coord *cluster = session->cluster;
    struct peer *peer = session->peer;
    struct sentence why;
    cairn_status status = coord_roster_judge(cluster, peer_identity(peer), &why);
    if (status == CAIRN_OK && hello->role == CAIRN_ROLE_WIRE_SHARD)
        status = coord_roster_bind(cluster, peer_identity(peer), hello->name, &why);
    if (status == CAIRN_ERR_REFUSED) coord_audit_refused_peer(cluster, peer, "connect", why.text);
    if (status == CAIRN_OK && hello->role == CAIRN_ROLE_WIRE_SHARD)
        status = claim_entry(cluster, peer, hello, &why);
    if (status != CAIRN_OK) {
        peer_set_context(peer, NULL);
        free_session(session);
        refuse_hello(peer, request, status, why.text);
        return;
    }
    peer_admit(peer);
    session->next = cluster->sessions;
    cluster->sessions = session;
    coord_owner_join(session);
    welcome_session(session, request);
    log_debug("%s %s connected from %s", role_name(session->role), session->name, peer_name(peer));
    if (session->role == CAIRN_ROLE_WIRE_SHARD && !take_entry(session, hello)) {
        session->closing = true;
        peer_finish(peer, CAIRN_ERR_NO_MEMORY, "no place for another shard");
    }
    coord_openings_advance(cluster);
}

/* Appends the jobs of a shard's further Hello to the jobs of its first Hello. Returns false if the
 * further Hello does not continue the first, or if there is no memory. */
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
    more->n_held = 0; // the first Hello owns these jobs now
    return true;
}

static void on_more_hello(struct coord_session *session, Cairn__Hello *more, uint32_t request)
{
    Cairn__Hello *hello = session->hello;
    if (!join_hello(hello, more)) {
        peer_close(session->peer, CAIRN_ERR_PROTOCOL, "a Hello that does not continue");
        return;
    }
    if (hello->held_after > 0) return;
    session->hello = NULL;
    admit_session(session, hello, request);
    message_free(&hello->base);
}

static void on_first_hello(struct coord *cluster, struct peer *peer, Cairn__Hello *hello,
                           uint32_t request)
{
    struct sentence why;
    struct coord_session *session = NULL;
    cairn_status status = judge_hello(hello, &why);
    if (status == CAIRN_OK) status = judge_role(peer_identity(peer), hello, &why);
    if (status == CAIRN_OK) status = judge_sessions(cluster, peer_identity(peer), hello, &why);
    if (status == CAIRN_ERR_REFUSED) coord_audit_refused_peer(cluster, peer, "connect", why.text);
    if (status == CAIRN_OK) {
        session = make_session(cluster, peer, hello);
        if (session == NULL) status = fail_with(&why, CAIRN_ERR_NO_MEMORY, "out of memory");
    }
    if (status != CAIRN_OK) {
        refuse_hello(peer, request, status, why.text);
        message_free(&hello->base);
        return;
    }
    peer_set_context(peer, session);
    if (hello->held_after > 0) {
        session->hello = hello;
        return;
    }
    admit_session(session, hello, request);
    message_free(&hello->base);
}

static void on_hello(struct coord *cluster, struct peer *peer, const struct wire_frame *frame)
{
    struct coord_session *session = peer_context(peer);
    Cairn__Hello *hello = (Cairn__Hello *)message_unpack(&cairn__hello__descriptor, frame->payload,
                                                         frame->payload_bytes);
    if (hello == NULL) {
        peer_close(peer, CAIRN_ERR_PROTOCOL, "malformed Hello");
    } else if (session == NULL) {
        on_first_hello(cluster, peer, hello, frame->request);
    } else {
        on_more_hello(session, hello, frame->request);
        message_free(&hello->base);
    }
}

/* ==== early ==== */

#define HELD_MAX 64 /* the cluster holds at most this many early requests */

static bool is_told(const struct coord *cluster)
{
    for (const struct coord_job *job = cluster->jobs; job != NULL; job = job->next) {
        if (job->version_unknown && job->state == CAIRN_CLUSTER_JOB_RUNNING) return false;
        // a shard has said that its part is parked, and the other shards must still be asked
        const enum operation_stage park = coord_stage(job, CAIRN_OPERATION_PARK);
        if (park == CAIRN_STAGE_PARKING || park == CAIRN_STAGE_PARK_ASKING) return false;
        CAIRN_EACH_SHARD (job, i)
            if (job->stored && job->shards[i].entry->incarnation == 0) return false;
    }
    return true;
}

/* True if as many shards are connected as the cluster expects. Shards that do not obey this coordinator
 * count, too. */
static bool are_all_here(const struct coord *cluster)
{
    uint64_t here = 0;
    for (const struct coord_shard_entry *s = cluster->shards; s != NULL; s = s->next)
        here += s->session != NULL && !coord_shard_is_standby(cluster, s);
    return here >= (uint64_t)cluster->options->shards;
}

/* True if the request is early, and has to wait. When the early phase is over, it does not come
 * back: if a shard disconnects later, the answers say that the shard is missing. */
static bool is_early(struct coord *cluster, enum coord_awaits awaits)
{
    struct coord_earlies *e = &cluster->earlies;
    const uint64_t passed_ms = uv_now(cluster->loop) - cluster->clock.started_ms;
    const bool is_lease_over = passed_ms >= (uint64_t)cluster->options->lease_timeout_ms;
    if (!e->over) e->over = is_lease_over || is_told(cluster);
    return !e->over ||
           (awaits == CAIRN_AWAITS_ALL_SHARDS && !is_lease_over && !are_all_here(cluster));
}

struct coord_early {
    struct coord_early *next;
    struct coord_session *session; /* borrowed: the request is freed with the session */
    struct wire_frame frame;       /* frame.payload points to `bytes` */
    enum coord_awaits awaits;
    uint8_t bytes[];
};

/* True if the request waits, or was refused because too many requests wait. */
static bool hold_early(struct coord_session *session, const struct wire_frame *frame)
{
    struct coord *cluster = session->cluster;
    struct coord_earlies *e = &cluster->earlies;
    const enum coord_awaits awaits = coord_message_awaits(session, frame->type);
    if (awaits == CAIRN_AWAITS_NOTHING || frame->request == 0 || !is_early(cluster, awaits))
        return false;
    struct coord_early *early = e->count < HELD_MAX ? malloc(sizeof *early + frame->payload_bytes)
                                                    : NULL;
    if (early == NULL) {
        coord_session_error(session, frame->request, CAIRN_ERR_BUSY,
                            "the coordinator has just started and waits for its shards; "
                            "ask again");
        return true;
    }
    *early = (struct coord_early) { .session = session, .frame = *frame, .awaits = awaits };
    if (frame->payload_bytes > 0) memcpy(early->bytes, frame->payload, frame->payload_bytes);
    early->frame.payload = early->bytes;
    struct coord_early **at = &e->list;
    while (*at != NULL) at = &(*at)->next;
    *at = early;
    e->count++;
    return true;
}

/* Removes and returns the oldest request that need not wait any longer. The caller frees the request.
 * Returns NULL if there is none. */
static struct coord_early *take_early(struct coord *cluster)
{
    struct coord_earlies *e = &cluster->earlies;
    struct coord_early **at = &e->list;
    while (*at != NULL && is_early(cluster, (*at)->awaits)) at = &(*at)->next;
    struct coord_early *early = *at;
    if (early == NULL) return NULL;
    *at = early->next;
    e->count--;
    return early;
}

static void forget_early(struct coord *cluster, const struct coord_session *session)
{
    struct coord_early **at = &cluster->earlies.list;
    while (*at != NULL) {
        struct coord_early *early = *at;
        if (early->session != session) {
            at = &early->next;
            continue;
        }
        *at = early->next;
        cluster->earlies.count--;
        free(early);
    }
}

/* ---- frames ---- */

static void handle_message(struct coord_session *session, const struct wire_frame *frame,
                           ProtobufCMessage *message)
{
    if (coord_handle_message(session, frame, message) || session->closing) return;
    session->closing = true;
    peer_close(session->peer, CAIRN_ERR_PROTOCOL, "%s may not send %s", role_name(session->role),
               message_name(frame->type));
}

/* Handles a complete frame of an open session. */
static void take_frame(struct coord_session *session, const struct wire_frame *frame)
{
    const ProtobufCMessageDescriptor *type = message_type(frame->type);
    ProtobufCMessage *message = type == NULL
                                    ? NULL
                                    : message_unpack(type, frame->payload, frame->payload_bytes);
    if (message == NULL) {
        session->closing = true;
        peer_close(session->peer, CAIRN_ERR_MALFORMED, "malformed %s from %s",
                   message_name(frame->type), session->name);
        return;
    }
    handle_message(session, frame, message);
    message_free(message);
}

void coord_sessions_take_early(struct coord *cluster)
{
    struct coord_early *early;
    while (!cluster->closing && (early = take_early(cluster)) != NULL) {
        if (!early->session->closing) take_frame(early->session, &early->frame);
        free(early);
    }
}

void coord_session_on_frame(struct peer *peer, const struct wire_frame *frame, void *context)
{
    struct coord *cluster = context;
    struct coord_session *session = peer_context(peer);
    if (cluster->closing) return;
    if (session == NULL || session->hello != NULL) {
        on_hello(cluster, peer, frame);
        return;
    }
    if (session->closing) return;
    session->last_frame_ms = uv_now(cluster->loop);
    if (session->role == CAIRN_ROLE_WIRE_ADMIN && frame->type != CAIRN_MSG_HEARTBEAT)
        session->unanswered += frame->request != 0;
    if (!hold_early(session, frame)) take_frame(session, frame);
    coord_sessions_take_early(cluster);
}

void coord_session_local(struct identity *identity, const gid_t *groups, size_t group_count,
                         void *context)
{
    const struct coord *cluster = context;
    identity->roles = access_local(&cluster->rules, identity->uid, groups, group_count);
}

void coord_session_put_out(struct coord_session *session, cairn_status status, const char *why)
{
    if (session->closing) return;
    log_write(status == CAIRN_ERR_BUSY ? CAIRN_LOG_WARN : CAIRN_LOG_INFO,
              "%s %s at %s is put out: %s", role_name(session->role), session->name,
              peer_name(session->peer), why);
    // an error that no request asked for ends the peer's work for good
    if (status != CAIRN_ERR_BUSY) coord_session_error(session, 0, status, why);
    session->closing = true;
    peer_finish(session->peer, status, "%s", why);
    while (session->members != NULL) coord_member_lost(session->members, why);
    coord_shard_leave(session, status, why);
}

void coord_session_on_gone(struct peer *peer, cairn_status status, const char *why, void *context)
{
    struct coord *cluster = context;
    struct coord_session *session = peer_context(peer);
    if (session == NULL) return;
    if (session->hello != NULL) { // the session was not admitted
        free_session(session);
        return;
    }
    struct coord_session **at = &cluster->sessions;
    while (*at != session) at = &(*at)->next;
    *at = session->next;
    session->closing = true;
    coord_waiters_forget(session);
    for (struct coord_work *w = session->cluster->under_way.works; w != NULL; w = w->next) {
        if (w->session == session) w->session = NULL;
    }
    forget_early(session->cluster, session);
    while (session->members != NULL) coord_member_lost(session->members, why);
    coord_shard_leave(session, status, why);
    coord_owner_leave(session);
    free_session(session);
    if (!cluster->closing) coord_openings_advance(cluster);
}

/* Returns how long a session may be silent. An admin that waits for an answer may be silent for any
 * time. An admin that waits for none is disconnected after ADMIN_IDLE_MS; a lease is not needed,
 * because an admin holds no state. */
static uint64_t silence_max_ms(const struct coord_session *session)
{
    if (session->role != CAIRN_ROLE_WIRE_ADMIN)
        return (uint64_t)session->cluster->options->lease_timeout_ms;
    return session->unanswered > 0 ? UINT64_MAX : ADMIN_IDLE_MS;
}

void coord_sessions_tick(struct coord *cluster, uint64_t now_ms, uint64_t away_ms)
{
    const Cairn__Heartbeat beat = CAIRN__HEARTBEAT__INIT;
    for (struct coord_session *s = cluster->sessions; s != NULL; s = s->next) {
        if (s->closing) continue;
        coord_session_send(s, CAIRN_MSG_HEARTBEAT, 0, &beat.base);
        // The time in which this process was stopped does not count, because the messages that the
        // peers sent meanwhile still wait in the sockets.
        s->last_frame_ms += away_ms;
        if (s->last_frame_ms > now_ms) s->last_frame_ms = now_ms;
        if (now_ms - s->last_frame_ms < silence_max_ms(s)) continue;
        s->closing = true;
        peer_close(s->peer, CAIRN_ERR_TIMEOUT, "nothing heard for %" PRIu64 " ms",
                   now_ms - s->last_frame_ms);
    }
}

/* ==== arrivals ==== */

/* This section decides which process has the entry of a shard, and who is told. It handles shards
 * that connect, two processes of one name, and shards that leave. */

static void tell_supervisor(const struct coord *cluster)
{
    char text[96];
    snprintf(text, sizeof text, "%" PRIu32 " of %" PRId64 " shards up", coord_shards_up(cluster),
             cluster->options->shards);
    notify_status(text);
}

/* Takes the entry from its session, and tells everything that depends on the shard. The entry
 * remains for the next process. */
static void vacate_entry(struct coord_shard_entry *entry)
{
    struct coord_session *session = entry->session;
    session->entry = NULL;
    entry->session = NULL;
    uv_update_time(session->cluster->loop); // the loop's time may be old by now
    entry->since_ms = uv_now(session->cluster->loop);
    entry->gone_ms = coord_now_ms(session->cluster);
    entry->claim.probe = CAIRN_SEAT_UNASKED;
    cairn__shard_stats__init(&entry->told.stats);
    entry->told.has_stats = false;
    entry->storage.text[0] = '\0';
    entry->told.bytes_count = entry->told.memory_count = entry->told.former_count = 0;
    coord_shard_forget_parts(entry);
    coord_drain_gone(session->cluster, entry);
    coord_calls_shard_gone(entry);
    if (session->cluster->closing) return;
    coord_jobs_shard_down(session->cluster, entry);
    coord_restores_shard_gone(session->cluster, entry);
}

void coord_shard_leave(struct coord_session *session, cairn_status status, const char *why)
{
    struct coord_shard_entry *entry = session->entry;
    if (entry == NULL) return;
    entry->ended = status == CAIRN_ERR_CLOSED;
    log_info("shard %s is away (%s)", entry->name, why);
    coord_event_note_shard(session->cluster, CAIRN_EVENT_AWAY, NULL, entry->name, why);
    vacate_entry(entry);
    coord_shard_drop_unused(session->cluster, entry);
    tell_supervisor(session->cluster);
}

/* ---- two processes of one name ---- */

/* True if a job may need the part. A part is not needed if a later generation is known to have replaced
 * it. */
static bool may_want(const struct coord *cluster, uint64_t job_id, uint64_t generation)
{
    const struct coord_job *job = coord_job_by_id(cluster, job_id);
    return job == NULL || generation >= job->generation;
}

static bool newcomer_holds(const struct coord *cluster, const Cairn__Hello *hello)
{
    for (size_t i = 0; i < hello->n_held; i++) {
        if (may_want(cluster, hello->held[i]->job, hello->held[i]->generation)) return true;
    }
    return false;
}

/* True if the shard on this entry holds something that may be needed: a part that its Hello reported, or
 * a part that the shard was given since. */
static bool sitter_holds(const struct coord *cluster, const struct coord_shard_entry *entry)
{
    for (size_t i = 0; i < entry->held_count; i++) {
        if (may_want(cluster, entry->held[i].job, entry->held[i].generation)) return true;
    }
    for (const struct coord_job *job = cluster->jobs; job != NULL; job = job->next) {
        CAIRN_EACH_SHARD (job, i) {
            const struct coord_job_shard *s = &job->shards[i];
            if (s->entry == entry && (s->up || job->state == CAIRN_CLUSTER_JOB_CREATING))
                return true;
        }
    }
    return false;
}

static void on_probed(void *context, cairn_status status, const char *why)
{
    struct coord_shard_entry *entry = context;
    (void)why; // an error is an answer, too
    if (status == CAIRN_ERR_CLOSED || entry->claim.probe != CAIRN_SEAT_ASKED) return;
    entry->claim.probe = CAIRN_SEAT_ANSWERED;
}

/* Asks the process that has the entry whether it is alive. Any other frame of this process would
 * not prove it, because the frame may have been on its way for long. */
static void ask_sitter(struct coord *cluster, struct coord_shard_entry *entry)
{
    struct coord_gather *gather = coord_gather_open(cluster, on_probed, entry);
    if (gather == NULL) return; // the newcomer tries again
    const uint32_t request = coord_gather_ask(gather, entry);
    const Cairn__Probe probe = CAIRN__PROBE__INIT;
    entry->claim.probe = CAIRN_SEAT_ASKED;
    entry->claim.asked_ms = coord_now_ms(cluster);
    coord_session_send(entry->session, CAIRN_MSG_PROBE, request, &probe.base);
    coord_gather_start(gather);
}

void coord_shards_tick(struct coord *cluster)
{
    const uint64_t now_ms = coord_now_ms(cluster);
    const uint64_t lease_ms = (uint64_t)cluster->options->lease_timeout_ms;
    for (struct coord_shard_entry *entry = cluster->shards; entry != NULL; entry = entry->next) {
        if (now_ms - entry->claim.asked_ms < lease_ms) continue;
        // the answer to the last probe is too old
        if (entry->claim.probe == CAIRN_SEAT_ANSWERED) entry->claim.probe = CAIRN_SEAT_UNASKED;
        if (entry->claim.probe != CAIRN_SEAT_ASKED) continue;
        entry->claim.probe = CAIRN_SEAT_SILENT;
        entry->session->closing = true;
        peer_close(entry->session->peer, CAIRN_ERR_TIMEOUT,
                   "it did not answer for %" PRIu64 " ms, and another shard of its name came",
                   now_ms - entry->claim.asked_ms);
    }
}

/* Removes the process that has the entry. If `ends` is set, tells the process to end. Otherwise the
 * process may hold something that is needed, and may reconnect. */
static void replace_sitter(struct coord_shard_entry *entry, const char *newcomer, bool ends)
{
    struct coord_session *sitter = entry->session;
    struct sentence why;
    sentence_set(&why,
                 "the shard %s at %s holds parts of jobs and this process none: this process ends, "
                 "as names must be unique",
                 entry->name, newcomer);
    if (ends) coord_session_error(sitter, 0, CAIRN_ERR_FENCED, why.text);
    sitter->closing = true;
    peer_finish(sitter->peer, ends ? CAIRN_ERR_FENCED : CAIRN_ERR_CLOSED,
                "shard %s connected from %s", entry->name, newcomer);
    sentence_set(&why, "a process of its name came from %s", newcomer);
    coord_event_note_shard(sitter->cluster, CAIRN_EVENT_AWAY, NULL, entry->name, why.text);
    vacate_entry(entry);
}

static cairn_status refuse_newcomer(struct coord_shard_entry *entry, const char *newcomer,
                                    enum seat_verdict verdict, struct sentence *why)
{
    const char *sitter = peer_name(entry->session->peer);
    if (verdict == CAIRN_SEAT_WAITS)
        return fail_with(why, CAIRN_ERR_BUSY,
                         "a shard %s is connected from %s: checking whether it is alive",
                         entry->name, sitter);
    entry->claim.probe = CAIRN_SEAT_UNASKED;
    if (verdict == CAIRN_SEAT_ENDS) {
        log_warn("refused a second shard %s from %s: the one at %s is alive", entry->name, newcomer,
                 sitter);
        return fail_with(why, CAIRN_ERR_FENCED,
                         "the shard %s at %s lives, and names must be unique: end that one first, "
                         "or give this one another name (shard.name)",
                         entry->name, sitter);
    }
    sentence_set(why, "the one at %s serves, the one at %s waits for its place", sitter, newcomer);
    // only the first claim is noted, although the newcomer connects repeatedly
    if (entry->claim.claimed_ms == 0)
        coord_event_note_shard(entry->session->cluster, CAIRN_EVENT_CLAIMED, NULL, entry->name,
                               why->text);
    snprintf(entry->claim.claimant, sizeof entry->claim.claimant, "%s", newcomer);
    entry->claim.claimed_ms = coord_now_ms(entry->session->cluster);
    log_limited(&entry->claim.limit, CAIRN_LOG_WARN,
                "two shards are named %s and both hold parts of jobs: the one at %s serves, "
                "the one at %s waits for its place",
                entry->name, sitter, newcomer);
    return fail_with(why, CAIRN_ERR_BUSY,
                     "the shard %s at %s lives and holds parts of jobs, as this process does: end "
                     "the one whose jobs you can do without",
                     entry->name, sitter);
}

/* Decides whether the process that sent this Hello may have the entry of its name. CAIRN_OK: the
 * entry is free now. CAIRN_ERR_BUSY: the process must try again. CAIRN_ERR_FENCED: the process must
 * end. */
static cairn_status claim_entry(struct coord *cluster, struct peer *peer, const Cairn__Hello *hello,
                                struct sentence *why)
{
    struct coord_shard_entry *entry = coord_shard_find(cluster, hello->name);
    if (entry == NULL || entry->session == NULL) return CAIRN_OK;
    const struct seat_claim claim = { .taken = true,
                                      .same = entry->incarnation == hello->incarnation,
                                      .newcomer_holds = newcomer_holds(cluster, hello),
                                      .sitter_holds = sitter_holds(cluster, entry),
                                      .probe = entry->claim.probe };
    enum seat_verdict verdict = seat_judge(&claim);
    if (verdict == CAIRN_SEAT_TAKES || verdict == CAIRN_SEAT_RELIEVES) {
        replace_sitter(entry, peer_name(peer), verdict == CAIRN_SEAT_RELIEVES);
        return CAIRN_OK;
    }
    if (verdict == CAIRN_SEAT_PROBES) {
        ask_sitter(cluster, entry);
        verdict = CAIRN_SEAT_WAITS;
    }
    return refuse_newcomer(entry, peer_name(peer), verdict, why);
}

/* ---- it sits down ---- */

static void note_reach(struct coord_shard_entry *entry)
{
    const char *kind = fabric_address_kind(entry->fabric_address, entry->fabric_address_bytes);
    entry->is_networked = strcmp(kind, "") != 0 && strcmp(kind, "mapped") != 0;
    entry->is_mapped = strcmp(kind, "mapped") == 0;
    entry->apart_said = false;
    if (!fabric_address_host(entry->fabric_address, entry->fabric_address_bytes, entry->host,
                             sizeof entry->host))
        entry->host[0] = '\0';
}

/* Logs the shards that have become apart. A shard that connects may be apart itself, or may make
 * other shards apart. */
static void say_apart(struct coord *cluster)
{
    for (struct coord_shard_entry *s = cluster->shards; s != NULL; s = s->next) {
        const bool is_apart = coord_shard_apart(s);
        if (is_apart && !s->apart_said) log_warn("shard %s " CAIRN_SHARD_APART_TEXT, s->name);
        s->apart_said = is_apart;
    }
}

/* Gives the entry to the session's shard, and tells the jobs. Returns false if there is no room for
 * another shard, or no memory. */
static bool take_entry(struct coord_session *session, const Cairn__Hello *hello)
{
    struct coord *cluster = session->cluster;
    struct coord_shard_entry *entry = coord_shard_get(cluster, session->name);
    uint8_t *address = malloc(session->fabric_address_bytes + 1);
    struct seat_part *held = calloc(2 * hello->n_held + 1, sizeof *held);
    if (entry == NULL || address == NULL || held == NULL) {
        free(address);
        free(held);
        return false;
    }
    for (size_t i = 0; i < hello->n_held; i++) {
        const Cairn__HeldJob *part = hello->held[i];
        held[2 * i] = (struct seat_part) { part->job, part->generation, part->layout_hash };
        held[2 * i + 1] = (struct seat_part) { part->job, part->generation,
                                               part->next_layout_hash };
    }
    memcpy(address, session->fabric_address, session->fabric_address_bytes);
    free(entry->fabric_address);
    free(entry->held);
    entry->fabric_address = address;
    entry->fabric_address_bytes = session->fabric_address_bytes;
    note_reach(entry);
    entry->held = held;
    entry->held_count = 2 * hello->n_held;
    coord_event_note_shard(
        cluster, entry->incarnation == session->incarnation ? CAIRN_EVENT_BACK : CAIRN_EVENT_UP,
        NULL, entry->name, peer_name(session->peer));
    entry->incarnation = session->incarnation;
    entry->since_ms = session->since_ms;
    entry->session = session;
    entry->memory_bytes = hello->memory_bytes;
    snprintf(entry->told.standby_of, sizeof entry->told.standby_of, "%s", hello->standby_of);
    snprintf(entry->told.domain, sizeof entry->told.domain, "%s", hello->domain);
    coord_durability_take(entry, hello->tiers);
    coord_mirrors_standby_up(cluster, entry);
    coord_drain_come(cluster, entry);
    cluster->arrivals++;
    entry->claim.claimed_ms = 0;
    session->entry = entry;
    const bool obeys = coord_shard_judge_hello(cluster, entry, hello);
    log_info("shard %s is up at %s (%" PRIu32 " of %" PRId64 ")", entry->name,
             peer_name(session->peer), coord_shards_up(cluster), cluster->options->shards);
    tell_supervisor(cluster);
    say_apart(cluster);
    if (!obeys) return true;
    coord_shard_clean(cluster, entry, hello);
    coord_jobs_shard_up(cluster, entry, hello->held, hello->n_held);
    return true;
}
