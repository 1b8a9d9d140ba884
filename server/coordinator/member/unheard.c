#include "server/coordinator/member/unheard.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/member/seats.h"
#include "server/coordinator/store/events.h"

/* The place of that name in the list; its count: it is not in it. NULL is an empty list. */
static size_t find(const struct cairn_cluster_unheard *unheard, const char *name)
{
    size_t i = 0;
    while (unheard != NULL && i < unheard->count && strcmp(unheard->list[i].name, name) != 0) i++;
    return i;
}

static bool has(const struct cairn_cluster_unheard *unheard, const char *name)
{
    return unheard != NULL && find(unheard, name) < unheard->count;
}

/* NULL: the shard is away. Then it is known that nothing comes from it, and nobody need say so. */
static const struct cairn_cluster_session *session_of(const struct cairn_cluster *cluster,
                                                      const char *name)
{
    const struct cairn_cluster_seat *seat = cairn_cluster_seat_find(cluster, name);
    return seat != NULL ? seat->session : NULL;
}

/* NULL: there is none of them to be named. */
static struct cairn_cluster_unheard *make(const struct cairn_cluster_session *session,
                                          char *const *names, size_t count)
{
    const struct cairn_cluster_unheard *was = session->unheard;
    struct cairn_cluster_unheard *now = calloc(1, sizeof *now);
    size_t length = 0;
    for (size_t i = 0; now != NULL && i < count && now->count < CAIRN_CLUSTER_UNHEARD_MAX; i++) {
        if (session_of(session->cluster, names[i]) == NULL || has(now, names[i])) continue;
        snprintf(now->list[now->count].name, sizeof now->list[now->count].name, "%s", names[i]);
        now->list[now->count].since_ms = has(was, names[i])
                                             ? was->list[find(was, names[i])].since_ms
                                             : uv_now(session->cluster->loop);
        const int added = snprintf(now->text + length, sizeof now->text - length, "%s%s",
                                   now->count > 0 ? ", " : "", names[i]);
        if (added > 0 && length + (size_t)added < sizeof now->text) length += (size_t)added;
        now->text[length] = '\0';
        now->count++;
    }
    if (now == NULL || now->count > 0) return now;
    free(now);
    return NULL;
}

/* The other end says the same: it has been said. */
static bool is_said(const struct cairn_cluster_session *session, const char *name)
{
    const struct cairn_cluster_session *other = session_of(session->cluster, name);
    return session->role == CAIRN_ROLE_WIRE_SHARD && other != NULL &&
           has(other->unheard, session->name);
}

static void note(const struct cairn_cluster_session *session, enum cairn_event_kind kind,
                 const char *text)
{
    char who[CAIRN_NAME_MAX + 16];
    const char *job = session->member_count == 1 ? session->members->job_name : NULL;
    snprintf(who, sizeof who, "%s %s", cairn_role_name(session->role), session->name);
    cairn_cluster_event_note(session->cluster, kind, job, who, "%s", text);
}

/* Names the shards of `list` that `other` does not have, without those that have reported the
 * same of this session, and the earliest time since when: one sentence and one event, however
 * many shards a cut of the network is between. False: there are none. */
static bool name_changed(const struct cairn_cluster_session *session,
                         const struct cairn_cluster_unheard *list,
                         const struct cairn_cluster_unheard *other, struct cairn_sentence *out,
                         uint64_t *since_ms_out)
{
    size_t named = 0;
    out->text[0] = '\0';
    *since_ms_out = UINT64_MAX;
    for (size_t i = 0; list != NULL && i < list->count; i++) {
        const char *name = list->list[i].name;
        if (has(other, name) || is_said(session, name) ||
            session_of(session->cluster, name) == NULL)
            continue;
        cairn_sentence_add(out, "%s%s", named++ > 0 ? ", " : "", name);
        if (list->list[i].since_ms < *since_ms_out) *since_ms_out = list->list[i].since_ms;
    }
    return named > 0;
}

static void note_begun(const struct cairn_cluster_session *session,
                       const struct cairn_cluster_unheard *was)
{
    struct cairn_sentence names, text;
    uint64_t since_ms;
    if (!name_changed(session, session->unheard, was, &names, &since_ms)) return;
    cairn_sentence_set(&text,
                       "hears nothing from %s over the data path, and both reach this coordinator: "
                       "look for a firewall or a cut between them, in both directions",
                       names.text);
    cairn_log_warn("%s %s", session->name, text.text);
    note(session, CAIRN_EVENT_PATH_CUT, text.text);
}

static void note_ended(const struct cairn_cluster_session *session,
                       const struct cairn_cluster_unheard *was)
{
    struct cairn_sentence names, text;
    uint64_t since_ms;
    if (!name_changed(session, was, session->unheard, &names, &since_ms)) return;
    cairn_sentence_set(&text,
                       "hears %s over the data path again, or awaits nothing of it any more, after "
                       "%" PRIu64 " s",
                       names.text, (uv_now(session->cluster->loop) - since_ms) / 1000);
    cairn_log_info("%s %s", session->name, text.text);
    note(session, CAIRN_EVENT_PATH_WHOLE, text.text);
}

void cairn_cluster_unheard_told(struct cairn_cluster_session *session, char *const *names,
                                size_t count)
{
    struct cairn_cluster_unheard *was = session->unheard;
    if (count == 0 && was == NULL) return;
    session->unheard = make(session, names, count);
    note_begun(session, was);
    note_ended(session, was);
    free(was);
}

const char *cairn_cluster_unheard_text(const struct cairn_cluster_session *session)
{
    return session->unheard != NULL ? session->unheard->text : "";
}

static void add(const struct cairn_cluster_job *job, const struct cairn_cluster_session *session,
                struct cairn_sentence *out)
{
    const struct cairn_cluster_unheard *unheard = session != NULL ? session->unheard : NULL;
    size_t named = 0;
    for (size_t i = 0; unheard != NULL && i < unheard->count; i++) {
        const char *name = unheard->list[i].name;
        const struct cairn_cluster_seat *seat = cairn_cluster_seat_find(job->cluster, name);
        if (seat == NULL || seat->session == NULL || !cairn_cluster_job_has_seat(job, seat))
            continue;
        if (named++ > 0)
            cairn_sentence_add(out, ", %s", name);
        else
            cairn_sentence_add(out, "%s%s %s hears nothing from %s",
                               out->text[0] != '\0' ? "; " : "", cairn_role_name(session->role),
                               session->name, name);
    }
}

void cairn_cluster_unheard_of_job(const struct cairn_cluster_job *job, struct cairn_sentence *out)
{
    out->text[0] = '\0';
    for (const struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job)
        add(job, m->session, out);
    CAIRN_EACH_SHARD (job, i) add(job, job->shards[i].seat->session, out);
}
