/* A shard comes, two come with one name, one goes for good: who sits where, and who hears of it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/base/log.h"
#include "server/base/notify.h"
#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/job/drain.h"
#include "server/coordinator/job/parts.h"
#include "server/coordinator/member/seats.h"
#include "server/coordinator/restore/restore.h"
#include "server/coordinator/seating.h"
#include "server/coordinator/store/events.h"

/* A job that has a part there; NULL: none. */
static const struct cairn_cluster_job *user_of(const struct cairn_cluster *cluster,
                                               const struct cairn_cluster_seat *seat)
{
    const struct cairn_cluster_job *job = cluster->jobs;
    while (job != NULL && !cairn_cluster_job_has_seat(job, seat)) job = job->next;
    return job;
}

/* A body that is not linked yet may hold a seat; an adoption has its name. */
static bool unknown_uses(const struct cairn_cluster *cluster)
{
    return cluster->restores != NULL || cluster->adoption != NULL;
}

static void remove_seat(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat)
{
    struct cairn_cluster_seat **at = &cluster->seats;
    while (*at != seat) at = &(*at)->next;
    *at = seat->next;
    cairn_cluster_seat_free(seat);
}

/* One that went and that nobody needs is forgotten, so that passing strangers leave nothing. */
static void drop_unused_seat(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat)
{
    if (seat->session != NULL || user_of(cluster, seat) != NULL || unknown_uses(cluster)) return;
    remove_seat(cluster, seat);
}

cairn_status cairn_cluster_seat_forget(struct cairn_cluster *cluster, const char *name,
                                       struct cairn_sentence *why)
{
    struct cairn_cluster_seat *seat = cairn_cluster_seat_find(cluster, name);
    if (seat == NULL)
        return cairn_fail(why, CAIRN_ERR_NOT_FOUND,
                          "there is no shard %.128s; `cairn cluster status`", name);
    if (seat->session != NULL)
        return cairn_fail(why, CAIRN_ERR_BUSY,
                          "shard %s is connected from %s: end its process first", name,
                          cairn_peer_name(seat->session->peer));
    const struct cairn_cluster_job *job = user_of(cluster, seat);
    if (job != NULL)
        return cairn_fail(why, CAIRN_ERR_BUSY,
                          "job %s has a part on shard %s: restore it over other shards (`cairn "
                          "snapshot restore`) or drop it (`cairn job drop %s`) first",
                          job->spec.name, name, job->spec.name);
    if (unknown_uses(cluster))
        return cairn_fail(why, CAIRN_ERR_BUSY,
                          "a snapshot is being restored, or the shards' state adopted: ask again "
                          "when that has ended");
    cairn_log_info("shard %s was forgotten by an operator", name);
    cairn_cluster_event_note_shard(cluster, CAIRN_EVENT_FORGOTTEN, NULL, name, "by an operator");
    remove_seat(cluster, seat);
    return CAIRN_OK;
}

static void tell_supervisor(const struct cairn_cluster *cluster)
{
    char text[96];
    snprintf(text, sizeof text, "%" PRIu32 " of %" PRId64 " shards up",
             cairn_cluster_seats_up(cluster), cluster->options->shards);
    cairn_notify_status(text);
}

/* The seat stays, whoever sits there next. */
static void unseat(struct cairn_cluster_seat *seat)
{
    struct cairn_cluster_session *session = seat->session;
    session->seat = NULL;
    seat->session = NULL;
    uv_update_time(session->cluster->loop); // it may have been a while since that looked
    seat->since_ms = uv_now(session->cluster->loop);
    seat->gone_ms = cairn_cluster_now_ms(session->cluster);
    seat->probe = CAIRN_SEAT_UNASKED;
    cairn__shard_stats__init(&seat->stats);
    seat->has_stats = false;
    seat->storage.text[0] = '\0';
    seat->bytes_count = seat->memory_count = 0;
    cairn_cluster_seat_forget_parts(seat);
    cairn_cluster_drain_gone(session->cluster, seat);
    cairn_cluster_calls_seat_gone(seat);
    if (session->cluster->closing) return;
    cairn_cluster_jobs_seat_down(session->cluster, seat);
    cairn_cluster_restores_seat_gone(session->cluster, seat);
}

void cairn_cluster_seat_leave(struct cairn_cluster_session *session, cairn_status status,
                              const char *why)
{
    struct cairn_cluster_seat *seat = session->seat;
    if (seat == NULL) return;
    seat->ended = status == CAIRN_ERR_CLOSED;
    cairn_log_info("shard %s is away (%s)", seat->name, why);
    cairn_cluster_event_note_shard(session->cluster, CAIRN_EVENT_AWAY, NULL, seat->name, why);
    unseat(seat);
    drop_unused_seat(session->cluster, seat);
    tell_supervisor(session->cluster);
}

/* ---- two processes of one name ---- */

/* A job may want it: of what is known to be replaced by a later generation nobody wants anything. */
static bool may_want(const struct cairn_cluster *cluster, uint64_t job_id, uint64_t generation)
{
    const struct cairn_cluster_job *job = cairn_cluster_job_by_id(cluster, job_id);
    return job == NULL || generation >= job->generation;
}

static bool newcomer_holds(const struct cairn_cluster *cluster, const Cairn__Hello *hello)
{
    for (size_t i = 0; i < hello->n_held; i++) {
        if (may_want(cluster, hello->held[i]->job, hello->held[i]->generation)) return true;
    }
    return false;
}

/* True if the shard on this seat holds something that may be wanted: what it came with, or a
 * part that it was given since. */
static bool sitter_holds(const struct cairn_cluster *cluster, const struct cairn_cluster_seat *seat)
{
    for (size_t i = 0; i < seat->held_count; i++) {
        if (may_want(cluster, seat->held[i].job, seat->held[i].generation)) return true;
    }
    for (const struct cairn_cluster_job *job = cluster->jobs; job != NULL; job = job->next) {
        CAIRN_EACH_SHARD (job, i) {
            const struct cairn_cluster_job_shard *s = &job->shards[i];
            if (s->seat == seat && (s->up || job->state == CAIRN_CLUSTER_JOB_CREATING)) return true;
        }
    }
    return false;
}

static void on_probed(void *context, cairn_status status, const char *why)
{
    struct cairn_cluster_seat *seat = context;
    (void)why; // any answer is one
    if (status == CAIRN_ERR_CLOSED || seat->probe != CAIRN_SEAT_ASKED) return;
    seat->probe = CAIRN_SEAT_ANSWERED;
}

/* Does it live? Its next frame alone would not say so: that may have been on its way for long. */
static void ask_sitter(struct cairn_cluster *cluster, struct cairn_cluster_seat *seat)
{
    struct cairn_cluster_gather *gather = cairn_cluster_gather_open(cluster, on_probed, seat);
    if (gather == NULL) return; // the newcomer comes again
    const uint32_t request = cairn_cluster_gather_ask(gather, seat);
    const Cairn__Probe probe = CAIRN__PROBE__INIT;
    seat->probe = CAIRN_SEAT_ASKED;
    seat->asked_ms = cairn_cluster_now_ms(cluster);
    cairn_cluster_session_send(seat->session, CAIRN_MSG_PROBE, request, &probe.base);
    cairn_cluster_gather_start(gather);
}

void cairn_cluster_seats_tick(struct cairn_cluster *cluster)
{
    const uint64_t now_ms = cairn_cluster_now_ms(cluster);
    const uint64_t lease_ms = (uint64_t)cluster->options->lease_timeout_ms;
    for (struct cairn_cluster_seat *seat = cluster->seats; seat != NULL; seat = seat->next) {
        if (now_ms - seat->asked_ms < lease_ms) continue;
        if (seat->probe == CAIRN_SEAT_ANSWERED) seat->probe = CAIRN_SEAT_UNASKED; // that was then
        if (seat->probe != CAIRN_SEAT_ASKED) continue;
        seat->probe = CAIRN_SEAT_SILENT;
        seat->session->closing = true;
        cairn_peer_close(seat->session->peer, CAIRN_ERR_TIMEOUT,
                         "it did not answer for %" PRIu64 " ms, and another shard of its name came",
                         now_ms - seat->asked_ms);
    }
}

/* Who sits there leaves. It is told to end, or nothing: it may hold what is wanted, and come back. */
static void replace_sitter(struct cairn_cluster_seat *seat, const char *newcomer, bool ends)
{
    struct cairn_cluster_session *sitter = seat->session;
    struct cairn_sentence why;
    cairn_sentence_set(&why,
                       "the shard %s at %s holds parts of jobs and this process none: it ends, for "
                       "names must be unique",
                       seat->name, newcomer);
    if (ends) cairn_cluster_session_error(sitter, 0, CAIRN_ERR_FENCED, why.text);
    sitter->closing = true;
    cairn_peer_finish(sitter->peer, ends ? CAIRN_ERR_FENCED : CAIRN_ERR_CLOSED,
                      "shard %s connected from %s", seat->name, newcomer);
    cairn_sentence_set(&why, "a process of its name came from %s", newcomer);
    cairn_cluster_event_note_shard(sitter->cluster, CAIRN_EVENT_AWAY, NULL, seat->name, why.text);
    unseat(seat);
}

static cairn_status refuse_newcomer(struct cairn_cluster_seat *seat, const char *newcomer,
                                    enum cairn_seat_verdict verdict, struct cairn_sentence *why)
{
    const char *sitter = cairn_peer_name(seat->session->peer);
    if (verdict == CAIRN_SEAT_WAITS) {
        return cairn_fail(why, CAIRN_ERR_BUSY,
                          "a shard %s is connected from %s: it is asked whether it lives",
                          seat->name, sitter);
    }
    seat->probe = CAIRN_SEAT_UNASKED;
    if (verdict == CAIRN_SEAT_ENDS) {
        cairn_log_warn("a second shard %s came from %s, the one at %s lives: refused", seat->name,
                       newcomer, sitter);
        return cairn_fail(why, CAIRN_ERR_FENCED,
                          "the shard %s at %s lives, and names must be unique: end that one first, "
                          "or give this one another name (shard.name)",
                          seat->name, sitter);
    }
    cairn_sentence_set(why, "the one at %s serves, the one at %s waits for its place", sitter,
                       newcomer);
    if (seat->claimed_ms == 0) // it comes again and again
        cairn_cluster_event_note_shard(seat->session->cluster, CAIRN_EVENT_CLAIMED, NULL,
                                       seat->name, why->text);
    snprintf(seat->claimant, sizeof seat->claimant, "%s", newcomer);
    seat->claimed_ms = cairn_cluster_now_ms(seat->session->cluster);
    cairn_log_limited(&seat->claims, CAIRN_LOG_WARN,
                      "two shards are named %s and both hold parts of jobs: the one at %s serves, "
                      "the one at %s waits for its place",
                      seat->name, sitter, newcomer);
    return cairn_fail(why, CAIRN_ERR_BUSY,
                      "the shard %s at %s lives and holds parts of jobs, as this process does: end "
                      "the one whose jobs you can do without",
                      seat->name, sitter);
}

cairn_status cairn_cluster_seat_claim(struct cairn_cluster *cluster, struct cairn_peer *peer,
                                      const Cairn__Hello *hello, struct cairn_sentence *why)
{
    struct cairn_cluster_seat *seat = cairn_cluster_seat_find(cluster, hello->name);
    if (seat == NULL || seat->session == NULL) return CAIRN_OK;
    const struct cairn_seat_claim claim = { .taken = true,
                                            .same = seat->incarnation == hello->incarnation,
                                            .newcomer_holds = newcomer_holds(cluster, hello),
                                            .sitter_holds = sitter_holds(cluster, seat),
                                            .probe = seat->probe };
    enum cairn_seat_verdict verdict = cairn_seat_judge(&claim);
    if (verdict == CAIRN_SEAT_TAKES || verdict == CAIRN_SEAT_RELIEVES) {
        replace_sitter(seat, cairn_peer_name(peer), verdict == CAIRN_SEAT_RELIEVES);
        return CAIRN_OK;
    }
    if (verdict == CAIRN_SEAT_PROBES) {
        ask_sitter(cluster, seat);
        verdict = CAIRN_SEAT_WAITS;
    }
    return refuse_newcomer(seat, cairn_peer_name(peer), verdict, why);
}

/* ---- it sits down ---- */

static void note_reach(struct cairn_cluster_seat *seat)
{
    const char *kind = cairn_fabric_address_kind(seat->fabric_address, seat->fabric_address_bytes);
    seat->is_networked = strcmp(kind, "auto") == 0 || strcmp(kind, "ucx") == 0;
    seat->is_mapped = strcmp(kind, "mapped") == 0;
    seat->apart_said = false;
    if (!cairn_fabric_address_host(seat->fabric_address, seat->fabric_address_bytes, seat->host,
                                   sizeof seat->host))
        seat->host[0] = '\0';
}

/* One that came may be apart, or make others so. */
static void say_apart(struct cairn_cluster *cluster)
{
    for (struct cairn_cluster_seat *s = cluster->seats; s != NULL; s = s->next) {
        const bool is_apart = cairn_cluster_seat_apart(s);
        if (is_apart && !s->apart_said) cairn_log_warn("shard %s " CAIRN_SEAT_APART_TEXT, s->name);
        s->apart_said = is_apart;
    }
}

bool cairn_cluster_seat_take(struct cairn_cluster_session *session, const Cairn__Hello *hello)
{
    struct cairn_cluster *cluster = session->cluster;
    struct cairn_cluster_seat *seat = cairn_cluster_seat_get(cluster, session->name);
    uint8_t *address = malloc(session->fabric_address_bytes + 1);
    struct cairn_seat_part *held = calloc(2 * hello->n_held + 1, sizeof *held);
    if (seat == NULL || address == NULL || held == NULL) {
        free(address);
        free(held);
        return false;
    }
    for (size_t i = 0; i < hello->n_held; i++) {
        const Cairn__HeldJob *part = hello->held[i];
        held[2 * i] = (struct cairn_seat_part) { part->job, part->generation, part->layout_hash };
        held[2 * i + 1] = (struct cairn_seat_part) { part->job, part->generation,
                                                     part->next_layout_hash };
    }
    memcpy(address, session->fabric_address, session->fabric_address_bytes);
    free(seat->fabric_address);
    free(seat->held);
    seat->fabric_address = address;
    seat->fabric_address_bytes = session->fabric_address_bytes;
    note_reach(seat);
    seat->held = held;
    seat->held_count = 2 * hello->n_held;
    cairn_cluster_event_note_shard(
        cluster, seat->incarnation == session->incarnation ? CAIRN_EVENT_BACK : CAIRN_EVENT_UP,
        NULL, seat->name, cairn_peer_name(session->peer));
    seat->incarnation = session->incarnation;
    seat->since_ms = session->since_ms;
    seat->session = session;
    seat->memory_bytes = hello->memory_bytes;
    cairn_cluster_drain_come(cluster, seat);
    cluster->seats_taken++;
    seat->claimed_ms = 0;
    session->seat = seat;
    const bool obeys = cairn_cluster_seat_judge(cluster, seat, hello);
    cairn_log_info("shard %s is up at %s (%" PRIu32 " of %" PRId64 ")", seat->name,
                   cairn_peer_name(session->peer), cairn_cluster_seats_up(cluster),
                   cluster->options->shards);
    tell_supervisor(cluster);
    say_apart(cluster);
    if (!obeys) return true;
    cairn_cluster_seat_clean(cluster, seat, hello);
    cairn_cluster_jobs_seat_up(cluster, seat, hello->held, hello->n_held);
    return true;
}
