#include "server/coordinator/store/events.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/base/log.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/store/saves.h"
#include "server/coordinator/store/store.h"

#define PAGE_EVENTS 256 /* of an answer: with the longest texts they fit a frame */
#define BATCH       512 /* of a write */

static const char *const kind_names[CAIRN_EVENT_KINDS] = {
#define X(kind, name) [CAIRN_EVENT_##kind] = (name),
    CAIRN_EVENTS(X)
#undef X
};

static struct cairn_stored_event **place_of(const struct cairn_cluster_events *events,
                                            uint64_t number)
{
    return &events->ring[number % CAIRN_STORE_EVENTS_MAX];
}

/* In place of the oldest, when there are as many as are kept. */
static void keep(struct cairn_cluster_events *events, struct cairn_stored_event *event)
{
    struct cairn_stored_event **place = place_of(events, event->number);
    free(*place);
    *place = event;
    events->next = event->number + 1;
    if (events->next > events->first + CAIRN_STORE_EVENTS_MAX)
        events->first = events->next - CAIRN_STORE_EVENTS_MAX;
}

static uint64_t now_unix_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void cairn_cluster_event_note(struct cairn_cluster *cluster, enum cairn_event_kind kind,
                              const char *job, const char *who, const char *format, ...)
{
    struct cairn_cluster_events *events = &cluster->events;
    va_list args;
    char text[CAIRN_SENTENCE_BYTES];
    if (events->ring == NULL || cluster->closing) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const struct cairn_stored_event row = { .number = events->next,
                                            .unix_ms = now_unix_ms(),
                                            .kind = kind_names[kind],
                                            .job = job != NULL ? job : "",
                                            .who = who != NULL ? who : "",
                                            .text = text };
    struct cairn_stored_event *event = cairn_store_copy(CAIRN_STORE_EVENTS, &row, 1);
    if (event != NULL) keep(events, event); // else the log has it
}

void cairn_cluster_event_note_shard(struct cairn_cluster *cluster, enum cairn_event_kind kind,
                                    const char *job, const char *name, const char *text)
{
    char who[CAIRN_NAME_MAX + 16];
    snprintf(who, sizeof who, "shard %s", name);
    cairn_cluster_event_note(cluster, kind, job, who, "%s", text);
}

/* ---- the store ---- */

static cairn_status load(void *context, const void *row, struct cairn_sentence *why)
{
    struct cairn_cluster_events *events = context;
    struct cairn_stored_event *event = cairn_store_copy(CAIRN_STORE_EVENTS, row, 1);
    if (event == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for events");
    if (events->next == 0) events->first = event->number;
    keep(events, event);
    return CAIRN_OK;
}

cairn_status cairn_cluster_events_open(struct cairn_cluster *cluster, struct cairn_sentence *why)
{
    struct cairn_cluster_events *events = &cluster->events;
    events->ring = calloc(CAIRN_STORE_EVENTS_MAX, sizeof(struct cairn_stored_event *));
    if (events->ring == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for events");
    const cairn_status status = cairn_store_each(cluster->store, CAIRN_STORED_EVENTS, load, events,
                                                 why);
    if (events->next == 0) events->first = events->next = 1;
    events->saved = events->began = events->next;
    return status;
}

/* Lists the events that are not in the store yet, the oldest first. Returns how many. */
static size_t list_new(const struct cairn_cluster_events *events,
                       struct cairn_stored_event list_out[BATCH])
{
    size_t count = 0;
    uint64_t number = events->saved > events->first ? events->saved : events->first;
    for (; number < events->next && count < BATCH; number++) {
        const struct cairn_stored_event *event = *place_of(events, number);
        if (event != NULL) list_out[count++] = *event;
    }
    return count;
}

static void on_saved(const struct cairn_cluster_saved *saved)
{
    struct cairn_cluster_events *events = &saved->cluster->events;
    const bool failed = saved->status != CAIRN_OK;
    events->saving = false;
    if (!failed) events->saved = saved->number;
    if (failed && !events->failed) // tried again with each tick
        cairn_log_warn("events are not stored for now: %s", saved->why);
    events->failed = failed;
}

void cairn_cluster_events_tick(struct cairn_cluster *cluster)
{
    struct cairn_cluster_events *events = &cluster->events;
    struct cairn_stored_event list[BATCH];
    struct cairn_sentence why;
    if (events->saving) return;
    const size_t count = list_new(events, list);
    if (count == 0) return;
    events->saving = cairn_cluster_save(cluster, CAIRN_STORE_EVENTS, list, count,
                                        list[count - 1].number + 1, on_saved, &why) == CAIRN_OK;
}

void cairn_cluster_events_close(struct cairn_cluster *cluster)
{
    struct cairn_cluster_events *events = &cluster->events;
    struct cairn_stored_event list[BATCH];
    struct cairn_sentence why;
    if (events->ring == NULL) return;
    const size_t count = list_new(events, list);
    if (count > 0 &&
        cairn_store_write(cluster->store, CAIRN_STORE_EVENTS, list, count, &why) != CAIRN_OK)
        cairn_log_warn("the last %zu events are not stored: %s", count, why.text);
    for (size_t i = 0; i < CAIRN_STORE_EVENTS_MAX; i++) free(events->ring[i]);
    free(events->ring);
    events->ring = NULL;
}

/* ---- for those who ask ---- */

uint64_t cairn_cluster_events_last_ms(const struct cairn_cluster *cluster)
{
    const struct cairn_cluster_events *events = &cluster->events;
    const struct cairn_stored_event *last = events->next > events->first
                                                ? *place_of(events, events->next - 1)
                                                : NULL;
    return last != NULL ? last->unix_ms : 0;
}

static bool is_of(const struct cairn_stored_event *event, enum cairn_event_kind kind)
{
    return strcmp(event->kind, kind_names[kind]) == 0;
}

void cairn_cluster_events_maker(const struct cairn_cluster *cluster, const char *job,
                                struct cairn_sentence *out)
{
    const struct cairn_cluster_events *events = &cluster->events;
    out->text[0] = '\0';
    for (uint64_t n = events->next; events->ring != NULL && n-- > events->first;) {
        const struct cairn_stored_event *event = *place_of(events, n);
        if (event == NULL || !is_of(event, CAIRN_EVENT_CREATED) || strcmp(event->job, job) != 0)
            continue;
        cairn_sentence_set(out, "%s", event->who);
        return;
    }
}

void cairn_cluster_events_faults(const struct cairn_cluster *cluster, const char *job,
                                 struct cairn_event_faults *out)
{
    const struct cairn_cluster_events *events = &cluster->events;
    uint64_t until_ms = now_unix_ms();
    *out = (struct cairn_event_faults) { 0 };
    for (uint64_t n = events->next; events->ring != NULL && n-- > events->first;) {
        const struct cairn_stored_event *event = *place_of(events, n);
        if (event == NULL) continue;
        const bool is_job = strcmp(event->job, job) == 0;
        if (is_of(event, CAIRN_EVENT_CLOCK)) // what was before went by another clock
            until_ms = 0;
        else if (until_ms > event->unix_ms)
            out->observed_ms += until_ms - event->unix_ms;
        if (!is_of(event, CAIRN_EVENT_CLOCK)) until_ms = event->unix_ms;
        if (is_of(event, CAIRN_EVENT_AWAY)) out->shards++;
        if (is_job && is_of(event, CAIRN_EVENT_LOST)) out->workers++;
        if (is_job && is_of(event, CAIRN_EVENT_CREATED)) break; // what was before is another job's
    }
}

/* Fills in a message that borrows the event's texts; nobody writes to them through it. */
static void fill(Cairn__Event *out, const struct cairn_stored_event *event)
{
    cairn__event__init(out);
    out->number = event->number;
    out->unix_ms = event->unix_ms;
    out->kind = (char *)(uintptr_t)event->kind;
    out->job = (char *)(uintptr_t)event->job;
    out->who = (char *)(uintptr_t)event->who;
    out->text = (char *)(uintptr_t)event->text;
}

void cairn_cluster_events_answer(struct cairn_cluster_session *session, uint32_t request,
                                 const Cairn__EventsGet *get)
{
    const struct cairn_cluster_events *events = &session->cluster->events;
    Cairn__Event filled[PAGE_EVENTS];
    Cairn__Event *list[PAGE_EVENTS];
    Cairn__Events page = CAIRN__EVENTS__INIT;
    uint64_t number = get->after >= events->first ? get->after + 1 : events->first;
    page.events = list;
    page.process = session->cluster->identity.id.process;
    page.began = events->began;
    for (; number < events->next; number++) {
        const struct cairn_stored_event *event = *place_of(events, number);
        if (event == NULL || event->unix_ms < get->since_unix_ms) continue;
        if (page.n_events == PAGE_EVENTS) {
            page.more = true;
            break;
        }
        list[page.n_events] = &filled[page.n_events];
        fill(&filled[page.n_events++], event);
    }
    cairn_cluster_session_send(session, CAIRN_MSG_EVENTS, request, &page.base);
}
