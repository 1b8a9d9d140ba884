#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "proto/spec/spec.h"
#include "server/coordinator/cluster.h"

#define WHO_BYTES  512                         /* of the text that says who it was */
#define PAGE_BYTES (CAIRN_FRAME_BYTES_MAX / 2) /* of the events in one answer, which is one frame */
#define BATCH      512                         /* events in one write */

static const char *const kind_names[CAIRN_EVENT_KINDS] = {
#define X(kind, name) [CAIRN_EVENT_##kind] = (name),
    CAIRN_EVENTS(X)
#undef X
};

static struct stored_event **place_of(const struct event_ring *ring, uint64_t place)
{
    return &ring->list[place % CAIRN_STORE_EVENTS_MAX];
}

/* Returns the event at that place. NULL: there is none, because another ring has the number, or there was no
 * memory. */
static const struct stored_event *event_at(const struct event_ring *ring, uint64_t place)
{
    const struct stored_event *event = *place_of(ring, place);
    return event != NULL && event->place == place ? event : NULL;
}

/* Keeps the event. If the ring is full, the event replaces the oldest one. */
static void keep_event(struct coord_events *events, struct event_ring *ring,
                       struct stored_event *event)
{
    struct stored_event **at = place_of(ring, event->place);
    free(*at);
    *at = event;
    ring->next = event->place + 1;
    if (ring->next > ring->first + CAIRN_STORE_EVENTS_MAX)
        ring->first = ring->next - CAIRN_STORE_EVENTS_MAX;
    if (event->number >= events->next) events->next = event->number + 1;
}

static uint64_t now_unix_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Copies an event. Its texts may come from a peer, or from another program's store, and have any length and
 * any character: the copy has what fits a sentence, in one line, and a job only if a job can have the name.
 * NULL: there is no memory. */
static struct stored_event *copy_bounded(const struct event_ring *ring,
                                         const struct stored_event *event)
{
    struct sentence kind = sentence_brief(event->kind, CAIRN_NAME_MAX),
                    who = sentence_brief(event->who, WHO_BYTES), text;
    struct stored_event row = *event;
    sentence_set(&text, "%s", event->text);
    text_mend(kind.text, "");
    text_mend(who.text, "");
    text_mend(text.text, "");
    row.kind = kind.text;
    row.job = job_name_ok(event->job) ? event->job : "";
    row.who = who.text;
    row.text = text.text;
    return store_copy(ring->change, &row, 1);
}

static void add_event(struct coord_events *events, int at, const char *kind, const char *job,
                      const char *who, const char *text)
{
    struct event_ring *ring = &events->rings[at];
    if (ring->list == NULL) return;
    const struct stored_event row = { .place = at == CAIRN_EVENTS_APART ? ring->next : events->next,
                                      .number = events->next,
                                      .unix_ms = now_unix_ms(),
                                      .kind = kind,
                                      .job = job != NULL ? job : "",
                                      .who = who != NULL ? who : "",
                                      .text = text };
    struct stored_event *event = copy_bounded(ring, &row);
    if (event != NULL) keep_event(events, ring, event); // without memory, the event is not kept
}

/* True if nobody but an admin causes such an event. */
static bool is_admins(enum coord_event_kind kind)
{
    return kind == CAIRN_EVENT_KEY || kind == CAIRN_EVENT_FORGOTTEN || kind == CAIRN_EVENT_STORAGE;
}

/* The ring for what this peer causes. */
static int ring_of(const struct peer *peer)
{
    return access_role(peer_identity(peer), CAIRN_MAY_ADMIN) ? CAIRN_EVENTS_APART
                                                             : CAIRN_EVENTS_OF_ALL;
}

void coord_event_note(struct coord *cluster, enum coord_event_kind kind, const char *job,
                      const char *who, const char *format, ...)
{
    va_list args;
    char text[CAIRN_SENTENCE_BYTES];
    if (cluster->closing) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    add_event(&cluster->events, is_admins(kind) ? CAIRN_EVENTS_APART : CAIRN_EVENTS_OF_ALL,
              kind_names[kind], job, who, text);
}

void coord_event_note_shard(struct coord *cluster, enum coord_event_kind kind, const char *job,
                            const char *name, const char *text)
{
    char who[CAIRN_NAME_MAX + 16];
    snprintf(who, sizeof who, "shard %s", name);
    coord_event_note(cluster, kind, job, who, "%s", text);
}

/* ---- the audit log ---- */

/* Notes how often it happened since it was noted, when that is due, or `now`. Its place is free when nothing
 * happened and it is long ago that it was taken: until then, whoever pauses is not noted anew. */
static void note_more(struct coord *cluster, struct coord_refusal *r, bool now)
{
    const uint64_t now_ms = uv_now(cluster->loop);
    struct sentence text;
    if (r->who[0] == '\0' || (!now && now_ms - r->since_ms < r->wait_ms)) return;
    if (r->more == 0) {
        if (now_ms - r->began_ms >= CAIRN_REFUSALS_MS_MAX) r->who[0] = '\0';
        return;
    }
    sentence_set(&text, "%s: %" PRIu64 " more", r->what, r->more);
    add_event(&cluster->audit.log, r->ring, r->kind, NULL, r->who, text.text);
    r->more = 0;
    r->since_ms = now_ms;
    r->wait_ms = 2 * r->wait_ms < CAIRN_REFUSALS_MS_MAX ? 2 * r->wait_ms : CAIRN_REFUSALS_MS_MAX;
}

static void note_refusals(struct coord *cluster, bool now)
{
    for (size_t i = 0; i <= CAIRN_REFUSALS_MAX; i++)
        note_more(cluster, &cluster->audit.refusals.list[i], now);
}

static bool is_same(const char *kept, size_t kept_bytes, const char *text)
{
    return strncmp(kept, text, kept_bytes - 1) == 0;
}

static void take_place(struct coord *cluster, struct coord_refusal *r, const char *kind,
                       const char *who, const char *what)
{
    const uint64_t now_ms = uv_now(cluster->loop);
    *r = (struct coord_refusal) {
        .kind = kind, .began_ms = now_ms, .since_ms = now_ms, .wait_ms = CAIRN_REFUSALS_MS
    };
    snprintf(r->who, sizeof r->who, "%s", who);
    snprintf(r->what, sizeof r->what, "%s", what);
}

/* Returns the place of those for whom there is none, which has the names of the first of them. */
static struct coord_refusal *place_of_others(struct coord *cluster, const char *who)
{
    static const char others[] = "others";
    struct coord_refusal *r = &cluster->audit.refusals.list[CAIRN_REFUSALS_MAX];
    if (r->who[0] == '\0') take_place(cluster, r, "refused", others, "requests");
    const size_t length = strlen(r->who);
    if (strstr(r->who, who) == NULL && length + strlen(who) + 3 < sizeof r->who)
        snprintf(r->who + length, sizeof r->who - length, "%s%s",
                 length == sizeof others - 1 ? ": " : ", ", who);
    return r;
}

/* Returns where this is counted, `who` being the peer. One who has all places of an identity is counted in
 * the last of these, and without a free place everybody is counted with the others. */
static struct coord_refusal *place_for(struct coord *cluster, const char *kind, int ring,
                                       const char *who, const char *what)
{
    struct coord_refusal *end = &cluster->audit.refusals.list[CAIRN_REFUSALS_MAX];
    struct coord_refusal *place = NULL, *last = NULL;
    size_t count = 0;
    for (struct coord_refusal *r = cluster->audit.refusals.list; r < end; r++) {
        if (r->who[0] == '\0') {
            place = place != NULL ? place : r;
        } else if (strcmp(r->kind, kind) == 0 && r->ring == ring &&
                   is_same(r->who, sizeof r->who, who)) {
            if (is_same(r->what, sizeof r->what, what)) return r;
            last = r;
            count++;
        }
    }
    if (count >= CAIRN_REFUSALS_EACH) {
        snprintf(last->what, sizeof last->what, "requests");
        return last;
    }
    if (place == NULL) return place_of_others(cluster, who);
    take_place(cluster, place, kind, who, what);
    place->ring = ring;
    return place;
}

/* Counts it. True: it is one of the first `count` and is to be noted in full. */
static bool is_of_first(struct coord *cluster, const char *kind, int ring, const char *who,
                        const char *what, uint32_t count)
{
    struct coord_refusal *r = place_for(cluster, kind, ring, who, what);
    if (r < &cluster->audit.refusals.list[CAIRN_REFUSALS_MAX] && r->noted < count) {
        r->noted++;
        return true;
    }
    r->more++;
    return false;
}

static bool note_refused(struct coord *cluster, int ring, const char *who, const char *what,
                         const char *why)
{
    struct sentence text;
    if (cluster->closing || !is_of_first(cluster, "refused", ring, who, what, 1)) return false;
    sentence_set(&text, "%s: %s", what, why);
    add_event(&cluster->audit.log, ring, "refused", NULL, who, text.text);
    return true;
}

bool coord_audit_refused(struct coord *cluster, const char *who, const char *what, const char *why)
{
    return note_refused(cluster, CAIRN_EVENTS_OF_ALL, who, what, why);
}

static void describe_peer(const struct peer *peer, struct sentence *out)
{
    const struct identity *who = peer_identity(peer);
    sentence_set(out, who->owner[0] != '\0' ? "%s of %s" : "%s", who->name, who->owner);
}

void coord_audit_refused_peer(struct coord *cluster, const struct peer *peer, const char *what,
                              const char *why)
{
    struct sentence who, text;
    describe_peer(peer, &who);
    sentence_set(&text, "%s (from %s)", why, peer_name(peer));
    if (note_refused(cluster, ring_of(peer), who.text, what, text.text))
        log_warn("refused to %s: %s: %s", who.text, what, text.text);
}

/* ---- the store ---- */

struct loading {
    struct coord_events *events;
    struct event_ring *ring;
};

static cairn_status load_event(void *context, const void *stored, struct sentence *why)
{
    const struct loading *loading = context;
    struct stored_event row = *(const struct stored_event *)stored;
    if (row.place == 0) row.place = row.number;
    struct stored_event *event = copy_bounded(loading->ring, &row);
    if (event == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for events");
    if (loading->ring->next == 0) loading->ring->first = event->place;
    keep_event(loading->events, loading->ring, event);
    return CAIRN_OK;
}

static cairn_status open_ring(struct coord *cluster, struct coord_events *events,
                              struct event_ring *ring, struct sentence *why)
{
    struct loading loading = { events, ring };
    ring->list = calloc(CAIRN_STORE_EVENTS_MAX, sizeof(struct stored_event *));
    if (ring->list == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for events");
    const cairn_status status = store_each(cluster->store, ring->kind, load_event, &loading, why);
    if (ring->next == 0) ring->first = ring->next = 1;
    ring->saved = ring->next;
    return status;
}

static cairn_status open_events(struct coord *cluster, struct coord_events *events,
                                struct sentence *why)
{
    for (int i = 0; i < CAIRN_EVENT_RINGS; i++)
        CAIRN_TRY(open_ring(cluster, events, &events->rings[i], why));
    if (events->next == 0) events->next = 1;
    events->began = events->next;
    return CAIRN_OK;
}

cairn_status coord_events_open(struct coord *cluster, struct sentence *why)
{
    struct event_ring *events = cluster->events.rings, *audit = cluster->audit.log.rings;
    events[CAIRN_EVENTS_OF_ALL].kind = CAIRN_STORED_EVENTS;
    events[CAIRN_EVENTS_OF_ALL].change = CAIRN_STORE_EVENTS;
    events[CAIRN_EVENTS_APART].kind = CAIRN_STORED_EVENTS_APART;
    events[CAIRN_EVENTS_APART].change = CAIRN_STORE_EVENTS_APART;
    audit[CAIRN_EVENTS_OF_ALL].kind = CAIRN_STORED_AUDIT;
    audit[CAIRN_EVENTS_OF_ALL].change = CAIRN_STORE_AUDIT;
    audit[CAIRN_EVENTS_APART].kind = CAIRN_STORED_AUDIT_APART;
    audit[CAIRN_EVENTS_APART].change = CAIRN_STORE_AUDIT_APART;
    CAIRN_TRY(open_events(cluster, &cluster->events, why));
    return open_events(cluster, &cluster->audit.log, why);
}

/* Lists the events that are not in the store yet, oldest first. Returns their number. */
static size_t list_new(const struct event_ring *ring, struct stored_event list_out[BATCH])
{
    size_t count = 0;
    uint64_t place = ring->saved > ring->first ? ring->saved : ring->first;
    for (; place < ring->next && count < BATCH; place++) {
        const struct stored_event *event = event_at(ring, place);
        if (event != NULL) list_out[count++] = *event;
    }
    return count;
}

static struct event_ring *ring_by(struct coord *cluster, enum store_change change, bool *audit_out)
{
    for (int i = 0; i < CAIRN_EVENT_RINGS; i++) {
        *audit_out = cluster->audit.log.rings[i].change == change;
        if (*audit_out) return &cluster->audit.log.rings[i];
        if (cluster->events.rings[i].change == change) return &cluster->events.rings[i];
    }
    return NULL;
}

static void on_saved(const struct coord_saved *saved)
{
    bool is_audit;
    struct event_ring *ring = ring_by(saved->cluster, saved->change, &is_audit);
    const bool failed = saved->status != CAIRN_OK;
    ring->saving = false;
    if (!failed) ring->saved = saved->number;
    if (failed && !ring->failed) // the next tick tries again
        log_warn("%s not stored for now: %s", is_audit ? "the audit log is" : "events are",
                 saved->why);
    ring->failed = failed;
}

static void save_new(struct coord *cluster, struct coord_events *events)
{
    for (int i = 0; i < CAIRN_EVENT_RINGS; i++) {
        struct stored_event list[BATCH];
        struct sentence why;
        struct event_ring *ring = &events->rings[i];
        const size_t count = ring->saving ? 0 : list_new(ring, list);
        if (count == 0) continue;
        ring->saving = coord_save(cluster, ring->change, list, count, list[count - 1].place + 1,
                                  on_saved, &why) == CAIRN_OK;
    }
}

void coord_events_tick(struct coord *cluster)
{
    note_refusals(cluster, false);
    save_new(cluster, &cluster->events);
    save_new(cluster, &cluster->audit.log);
}

static void close_ring(struct coord *cluster, struct event_ring *ring)
{
    struct stored_event list[BATCH];
    struct sentence why;
    if (ring->list == NULL) return;
    const size_t count = list_new(ring, list);
    if (count > 0 && store_write(cluster->store, ring->change, list, count, &why) != CAIRN_OK)
        log_warn("the last %zu events are not stored: %s", count, why.text);
    for (size_t i = 0; i < CAIRN_STORE_EVENTS_MAX; i++) free(ring->list[i]);
    free(ring->list);
    ring->list = NULL;
}

void coord_events_close(struct coord *cluster)
{
    note_refusals(cluster, true);
    for (int i = 0; i < CAIRN_EVENT_RINGS; i++) {
        close_ring(cluster, &cluster->events.rings[i]);
        close_ring(cluster, &cluster->audit.log.rings[i]);
    }
}

/* ---- for those who ask ---- */

uint64_t coord_events_last_ms(const struct coord *cluster)
{
    uint64_t last_ms = 0;
    for (int i = 0; i < CAIRN_EVENT_RINGS; i++) {
        const struct event_ring *ring = &cluster->events.rings[i];
        const struct stored_event *last = ring->next > ring->first ? event_at(ring, ring->next - 1)
                                                                   : NULL;
        if (last != NULL && last->unix_ms > last_ms) last_ms = last->unix_ms;
    }
    return last_ms;
}

static bool is_of(const struct stored_event *event, enum coord_event_kind kind)
{
    return strcmp(event->kind, kind_names[kind]) == 0;
}

void coord_events_maker(const struct coord *cluster, const char *job, struct sentence *out)
{
    const struct event_ring *ring = &cluster->events.rings[CAIRN_EVENTS_OF_ALL];
    out->text[0] = '\0';
    for (uint64_t n = ring->next; ring->list != NULL && n-- > ring->first;) {
        const struct stored_event *event = event_at(ring, n);
        if (event == NULL || !is_of(event, CAIRN_EVENT_CREATED) || strcmp(event->job, job) != 0)
            continue;
        sentence_set(out, "%s", event->who);
        return;
    }
}

void coord_events_faults(const struct coord *cluster, const char *job, struct event_faults *out)
{
    const struct event_ring *ring = &cluster->events.rings[CAIRN_EVENTS_OF_ALL];
    uint64_t until_ms = now_unix_ms();
    *out = (struct event_faults) { 0 };
    for (uint64_t n = ring->next; ring->list != NULL && n-- > ring->first;) {
        const struct stored_event *event = event_at(ring, n);
        if (event == NULL) continue;
        const bool is_job = strcmp(event->job, job) == 0;
        if (is_of(event, CAIRN_EVENT_CLOCK)) // earlier events used another clock
            until_ms = 0;
        else if (until_ms > event->unix_ms)
            out->observed_ms += until_ms - event->unix_ms;
        if (!is_of(event, CAIRN_EVENT_CLOCK)) until_ms = event->unix_ms;
        if (is_of(event, CAIRN_EVENT_AWAY)) out->shards++;
        if (is_job && is_of(event, CAIRN_EVENT_LOST)) out->workers++;
        if (is_job && is_of(event, CAIRN_EVENT_CREATED)) break; // earlier events are another job's
    }
}

/* Adds the event to a page. Nobody writes to the event's texts through the message. Returns its bytes. */
static size_t add_to_page(struct coord_answer *answer, Cairn__Events *page,
                          const struct stored_event *event)
{
    Cairn__Event *out = coord_answer_add(answer, &page->base, "events");
    if (out == NULL) return 0;
    out->number = event->number;
    out->unix_ms = event->unix_ms;
    out->kind = wire_text(event->kind);
    out->job = wire_text(event->job);
    out->who = wire_text(event->who);
    out->text = wire_text(event->text);
    return cairn__event__get_packed_size(out);
}

/* Returns the next event of the log behind that number. NULL: there is none. at[]: the places to look at. */
static const struct stored_event *next_event(const struct coord_events *events, uint64_t after,
                                             uint64_t at[CAIRN_EVENT_RINGS])
{
    const struct stored_event *found = NULL;
    for (int i = 0; i < CAIRN_EVENT_RINGS; i++) {
        const struct event_ring *ring = &events->rings[i];
        const struct stored_event *event = NULL;
        if (at[i] < ring->first) at[i] = ring->first;
        for (; event == NULL && at[i] < ring->next; at[i] += event == NULL) {
            event = event_at(ring, at[i]);
            if (event != NULL && event->number <= after) event = NULL;
        }
        if (event != NULL && (found == NULL || event->number < found->number)) found = event;
    }
    return found;
}

static void answer_events(struct coord_session *session, uint32_t request,
                          const struct coord_events *events, uint64_t since_unix_ms, uint64_t after)
{
    struct coord_answer answer = { 0 };
    Cairn__Events page = CAIRN__EVENTS__INIT;
    uint64_t at[CAIRN_EVENT_RINGS] = { 0 };
    const struct stored_event *event;
    size_t bytes = 0;
    page.process = session->cluster->identity.id.process;
    page.began = events->began;
    while (!page.more && (event = next_event(events, after, at)) != NULL) {
        after = event->number;
        if (event->unix_ms < since_unix_ms) continue;
        page.more = bytes >= PAGE_BYTES;
        if (!page.more) bytes += add_to_page(&answer, &page, event);
    }
    coord_answer_send(&answer, session, request, CAIRN_MSG_EVENTS, &page.base);
}

static void on_events_get(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__EventsGet *get = any;
    answer_events(session, request, &session->cluster->events, get->since_unix_ms, get->after);
}

static void on_audit_get(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__AuditGet *get = any;
    note_refusals(session->cluster, false);
    answer_events(session, request, &session->cluster->audit.log, get->since_unix_ms, get->after);
}

/* ==== backup ==== */

/* Copies the store while it is in use, one copy at a time. The store's thread takes a picture of
 * the store into memory, and a libuv thread writes the picture to the file. So no save to the store
 * is delayed if the disk of the file hangs. */

struct coord_backup {
    struct coord_steps steps;
    struct coord_waiters waiter;
    size_t byte_count;
    /* owned */
    uint8_t *bytes; /* [byte_count] */
    char *path;
};

static void free_backup(struct coord_backup *backup)
{
    backup->steps.cluster->under_way.backup = NULL;
    coord_waiters_release(&backup->waiter);
    free(backup->bytes);
    free(backup->path);
    free(backup);
}

static cairn_status take_picture(struct coord_steps *steps, struct sentence *why)
{
    struct coord_backup *backup = (struct coord_backup *)steps;
    return store_picture(steps->cluster->store, &backup->bytes, &backup->byte_count, why);
}

static cairn_status write_file(struct coord_steps *steps, struct sentence *why)
{
    const struct coord_backup *backup = (struct coord_backup *)steps;
    return durable_create(backup->path, backup->bytes, backup->byte_count, why);
}

static void answer_copied(struct coord_steps *steps)
{
    struct coord_backup *backup = (struct coord_backup *)steps;
    Cairn__ClusterBackedUp message = CAIRN__CLUSTER_BACKED_UP__INIT;
    message.path = backup->path;
    message.bytes = backup->byte_count;
    log_info("the store was copied to %s: %zu bytes", backup->path, backup->byte_count);
    coord_waiters_answer(&backup->waiter, CAIRN_MSG_CLUSTER_BACKED_UP, &message.base);
    free_backup(backup);
}

static void fail_backup(struct coord_steps *steps, cairn_status status, const char *why)
{
    struct coord_backup *backup = (struct coord_backup *)steps;
    log_warn("copying the store to %s failed: %s", backup->path, why);
    coord_waiters_fail(&backup->waiter, status, why);
    free_backup(backup);
}

static void release_backup(struct coord_steps *steps)
{
    free_backup((struct coord_backup *)steps);
}

static const struct coord_step backup_steps[] = {
    { CAIRN_STEP_STORE, .run = take_picture },
    { CAIRN_STEP_THREAD, .run = write_file },
    { .kind = CAIRN_STEP_LAST },
};

static const struct coord_operation_plan backup_plan = { backup_steps, .done = answer_copied,
                                                         .failed = fail_backup,
                                                         .release = release_backup };

/* ---- the request ---- */

static cairn_status on_cluster_backup(struct coord_session *session, uint32_t request,
                                      const void *any, struct sentence *why)
{
    const Cairn__ClusterBackup *message = any;
    struct coord *cluster = session->cluster;
    if (message->path[0] != '/')
        return fail_with(why, CAIRN_ERR_INVALID,
                         "\"%.100s\" is no absolute path: name a file of the coordinator's host",
                         message->path);
    if (cluster->under_way.backup != NULL)
        return fail_with(why, CAIRN_ERR_BUSY, "the store is being copied to %.300s: ask again",
                         cluster->under_way.backup->path);
    struct coord_backup *backup = calloc(1, sizeof *backup);
    if (backup == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    coord_steps_start(&backup->steps, &backup_plan, cluster, NULL);
    cluster->under_way.backup = backup;
    backup->path = strdup(message->path);
    cairn_status status = backup->path != NULL
                              ? CAIRN_OK
                              : fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    if (status == CAIRN_OK) status = coord_waiters_add(&backup->waiter, session, request, why);
    if (status != CAIRN_OK) {
        free_backup(backup);
        return status;
    }
    coord_steps_advance(&backup->steps);
    return CAIRN_OK;
}

void coord_backup_close(struct coord *cluster)
{
    if (cluster->under_way.backup != NULL) free_backup(cluster->under_way.backup);
}

/* ==== storage ==== */

/* ---- on a thread ---- */

static cairn_status fail_other(const char *path, uint64_t token, struct sentence *why)
{
    return fail_with(
        why, CAIRN_ERR_IO,
        "the folder %s is not the one that snapshots were written to; is the storage mounted? "
        "Mount it, or take this folder from now on: mkdir -p %s && echo %016" PRIx64
        " > %s/" CAIRN_STORAGE_FILE,
        path, path, token, path);
}

static cairn_status explain_storage(cairn_status status, const char *path, uint64_t token,
                                    struct sentence *why)
{
    if (status == CAIRN_ERR_NOT_FOUND) return fail_other(path, token, why);
    if (status != CAIRN_ERR_EXISTS) return status;
    sentence_add(why, "; give this one a snapshots.path of its own. If the store of that one is "
                      "lost, and this is its successor, `cairn cluster adopt` takes the folder "
                      "with the jobs; if that cluster is gone for good, start once with --set "
                      "snapshots.foreign=yes, which takes it from whoever has it");
    return CAIRN_ERR_REFUSED;
}

static cairn_status judge_storage(const char *path, uint64_t token,
                                  const struct storage_owner *owner, struct sentence *why)
{
    return explain_storage(storage_own(path, token, owner, why), path, token, why);
}

cairn_status coord_storage_seen(const struct coord *cluster, struct sentence *why)
{
    const char *path = cluster->storage.path;
    struct sentence said;
    uint64_t bytes;
    const uint64_t token = cluster->storage.token;
    if (token != 0) {
        const struct storage_owner owner = { .store = cluster->storage.store,
                                             .former = cluster->storage.former };
        return explain_storage(storage_seen(path, token, &owner, why), path, token, why);
    }
    if (storage_of(path)->stat(path, "", &bytes, &said) == CAIRN_OK) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_IO, "snapshots.path %s: %s", path, said.text);
}

/* ---- on the loop ---- */

static void on_said(struct storage_watch *watch)
{
    const struct coord *cluster = watch->context;
    if (watch->said.text[0] != '\0')
        log_warn("no snapshot can be saved: %s", watch->said.text);
    else
        log_info("snapshots go to %s", cluster->storage.path);
}

static void on_remembered(const struct coord_saved *saved)
{
    if (saved->status == CAIRN_OK) return;
    saved->cluster->storage.remembered = false; // the next snapshot tries again
    log_warn("the folder that snapshots go to could not be noted: %s", saved->why);
}

void coord_storage_used(struct coord *cluster)
{
    const struct stored_meta row = { .storage = cluster->storage.token };
    struct sentence why;
    if (cluster->storage.remembered || cluster->storage.token == 0) return;
    cluster->storage.remembered = coord_save(cluster, CAIRN_STORE_STORAGE, &row, 1, 0,
                                             on_remembered, &why) == CAIRN_OK;
}

void coord_storage_adopted(struct coord *cluster, uint64_t former)
{
    struct storage_owner *owner = &cluster->storage.watch.owner;
    cluster->storage.former = owner->former = former;
    cluster->storage.store = owner->store = cluster->identity.id.store;
    // The last complaint about the folder concerned its former owner. If the complaint stayed, the
    // first snapshot would be refused.
    cluster->storage.watch.said.text[0] = '\0';
    storage_watch_doubt(&cluster->storage.watch);
}

/* ---- at the start ---- */

/* Takes over a folder that belongs to another cluster, because the operator says so
 * (snapshots.foreign). */
static cairn_status take_over(struct coord *cluster, struct sentence *why)
{
    const struct storage_owner *owner = &cluster->storage.watch.owner;
    const char *path = cluster->storage.path;
    const cairn_status seen = storage_seen(path, cluster->storage.token, owner, why);
    // the folder is ours, or the watch will report the fault
    if (seen != CAIRN_ERR_EXISTS) return CAIRN_OK;
    log_warn("%s: this cluster takes it, as snapshots.foreign says", why->text);
    coord_event_note(cluster, CAIRN_EVENT_STORAGE, NULL, NULL,
                     "%s: this cluster has taken it, as snapshots.foreign says", why->text);
    return storage_take(path, cluster->storage.token, owner, why);
}

/* True if the location is the path of a folder. While nothing is mounted at that path, it leads to
 * another folder, so a token tells whether the folder is the right one. The name of any other
 * storage always leads to the same storage, so such a storage needs no token. */
static bool is_path(const char *location)
{
    return storage_of(location) == &storage_folder;
}

static cairn_status make_root(const char *location, struct sentence *why)
{
    return is_path(location) ? durable_folder(location, CAIRN_SNAPSHOT_FOLDER_MODE, why)
                             : storage_of(location)->make(location, "", false, why);
}

/* Gets the token of a snapshots' folder that our store does not know yet. A folder that has no
 * token gets a new one. If this fails, the token stays 0. Then the shards are not asked whether
 * they see the folder, and a fault of the folder shows only at the first snapshot. */
static cairn_status begin_with(struct coord *cluster, struct sentence *why)
{
    const char *path = cluster->storage.path;
    struct sentence no_mark;
    if (!is_path(path)) return CAIRN_OK;
    if (storage_mark(path, &cluster->storage.watch.owner, &cluster->storage.token, &no_mark) !=
        CAIRN_OK) {
        log_warn("cannot tell whether the shards see the snapshots' storage: %s", no_mark.text);
        return CAIRN_OK;
    }
    struct sentence other;
    if (cluster->options->snapshots_foreign && take_over(cluster, why) != CAIRN_OK)
        return CAIRN_ERR_IO;
    if (!storage_is_used(path) || coord_storage_seen(cluster, &other) != CAIRN_OK) return CAIRN_OK;
    cluster->storage.remembered = true;
    const struct stored_meta row = { .storage = cluster->storage.token };
    return store_write(cluster->store, CAIRN_STORE_STORAGE, &row, 1, why);
}

cairn_status coord_storage_open(struct coord *cluster, struct sentence *why)
{
    const char *path = cluster->options->snapshots_path;
    cluster->storage.watch =
        (struct storage_watch) { .judge = judge_storage, .on_said = on_said, .context = cluster };
    struct utsname host;
    cluster->storage.watch.owner =
        (struct storage_owner) { .store = store_meta(cluster->store)->identity };
    snprintf(cluster->storage.watch.owner.who, sizeof cluster->storage.watch.owner.who,
             "cluster %.100s, coordinator at %.64s", cluster->options->name,
             uname(&host) == 0 ? host.nodename : "a host without a name");
    cluster->storage.store = cluster->storage.watch.owner.store;
    cluster->storage.token = store_meta(cluster->store)->storage;
    cluster->storage.remembered = cluster->storage.token != 0;
    cairn_status status = cluster->storage.remembered ? CAIRN_OK : make_root(path, why);
    if (status == CAIRN_OK) status = storage_of(path)->resolve(path, &cluster->storage.path, why);
    if (status == CAIRN_OK && !cluster->storage.remembered)
        status = begin_with(cluster, why);
    else if (status == CAIRN_OK && cluster->options->snapshots_foreign)
        status = take_over(cluster, why);
    if (status == CAIRN_OK)
        status = storage_watch_open(&cluster->storage.watch, cluster->loop, why);
    if (status == CAIRN_OK)
        storage_watch_told(&cluster->storage.watch, cluster->storage.path, cluster->storage.token);
    return status;
}

/* ==== asked ==== */

enum { WHAT_CHARS = 1200, DEPTH_MAX = 3 };

/* ---- what it was given ---- */

/* Returns where the message's struct has the value of the field. */
static const void *member_of(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    return (const char *)message + field->offset;
}

static void add_fields(const ProtobufCMessage *message, unsigned depth, struct sentence *out);

static void add_message(const char *name, const ProtobufCMessage *message, unsigned depth,
                        struct sentence *out)
{
    const Cairn__Setting *setting = (const Cairn__Setting *)message;
    if (message->descriptor == &cairn__setting__descriptor) {
        sentence_add(out, " --set %.200s=%.200s", setting->key, setting->value);
        return;
    }
    sentence_add(out, " %s={", name);
    if (depth < DEPTH_MAX) add_fields(message, depth + 1, out);
    sentence_add(out, " }");
}

/* Adds a field whose name says that it is a time, such as " not_after=2027-01-31T00:00:00Z". False: it is
 * none, or was not given. */
static bool add_time(const char *name, uint64_t unix_ms, struct sentence *out)
{
    static const char end[] = "_unix_ms";
    const size_t length = strlen(name), end_length = sizeof end - 1;
    const time_t unix_s = (time_t)(unix_ms / 1000);
    struct tm utc;
    char text[32];
    if (unix_ms == 0 || length <= end_length || strcmp(name + length - end_length, end) != 0 ||
        gmtime_r(&unix_s, &utc) == NULL ||
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
        return false;
    sentence_add(out, " %.*s=%s", (int)(length - end_length), name, text);
    return true;
}

/* Adds the value of a field, if it was given, such as " id=step-000000000002-g1" or " force".
 * Leaves out bytes, and numbers of type fixed64. Only programs use these, so nobody typed them. */
static void add_value(const ProtobufCFieldDescriptor *field, const void *value, unsigned depth,
                      struct sentence *out)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_BOOL:
        if (*(const protobuf_c_boolean *)value) sentence_add(out, " %s", field->name);
        break;
    case PROTOBUF_C_TYPE_STRING:
        if ((*(char *const *)value)[0] != '\0')
            sentence_add(out, " %s=%.200s", field->name, *(char *const *)value);
        break;
    case PROTOBUF_C_TYPE_UINT32:
        if (*(const uint32_t *)value != 0)
            sentence_add(out, " %s=%" PRIu32, field->name, *(const uint32_t *)value);
        break;
    case PROTOBUF_C_TYPE_UINT64:
        if (add_time(field->name, *(const uint64_t *)value, out)) break;
        if (*(const uint64_t *)value != 0)
            sentence_add(out, " %s=%" PRIu64, field->name, *(const uint64_t *)value);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        if (*(const double *)value != 0)
            sentence_add(out, " %s=%g", field->name, *(const double *)value);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        if (*(ProtobufCMessage *const *)value != NULL)
            add_message(field->name, *(ProtobufCMessage *const *)value, depth, out);
        break;
    default: break;
    }
}

static size_t size_of(const ProtobufCFieldDescriptor *field)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_BOOL: return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING: return sizeof(char *);
    case PROTOBUF_C_TYPE_UINT32: return sizeof(uint32_t);
    case PROTOBUF_C_TYPE_UINT64: return sizeof(uint64_t);
    case PROTOBUF_C_TYPE_DOUBLE: return sizeof(double);
    case PROTOBUF_C_TYPE_MESSAGE: return sizeof(ProtobufCMessage *);
    default: return 0; // not shown
    }
}

static void add_each(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
                     unsigned depth, struct sentence *out)
{
    const size_t count = *(const size_t *)((const char *)message + field->quantifier_offset);
    const char *values = *(const char *const *)member_of(message, field);
    const size_t each = size_of(field);
    size_t i = 0;
    for (; each > 0 && i < count && strlen(out->text) < WHAT_CHARS; i++)
        add_value(field, values + i * each, depth, out);
    if (each > 0 && i < count) sentence_add(out, " ... and %zu more of %s", count - i, field->name);
}

static bool is_text(const ProtobufCFieldDescriptor *field)
{
    return field->type == PROTOBUF_C_TYPE_STRING && field->label != PROTOBUF_C_LABEL_REPEATED;
}

/* Adds the texts first, because texts are names, and show what the request is about. Then adds the
 * other fields. */
static void add_fields(const ProtobufCMessage *message, unsigned depth, struct sentence *out)
{
    const ProtobufCFieldDescriptor *fields = message->descriptor->fields;
    const unsigned count = message->descriptor->n_fields;
    for (unsigned i = 0; i < count; i++)
        if (is_text(&fields[i])) add_value(&fields[i], member_of(message, &fields[i]), depth, out);
    for (unsigned i = 0; i < count; i++) {
        const bool is_said = depth == 1 && strcmp(fields[i].name, "op") == 0; // the verb says this
        if (is_said || is_text(&fields[i])) continue;
        if (fields[i].label == PROTOBUF_C_LABEL_REPEATED)
            add_each(message, &fields[i], depth, out);
        else
            add_value(&fields[i], member_of(message, &fields[i]), depth, out);
    }
}

/* Returns the field of that name, if the message has such a field of that type. Otherwise returns
 * NULL. */
static const void *field_named(const ProtobufCMessage *message, const char *name,
                               ProtobufCType type)
{
    const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field_by_name(
        message->descriptor, name);
    return field != NULL && field->type == type ? member_of(message, field) : NULL;
}

const char *coord_asked_verb(const struct coord_row *row, const ProtobufCMessage *message)
{
    const protobuf_c_boolean *plan = field_named(message, "plan", PROTOBUF_C_TYPE_BOOL);
    if (plan != NULL && *plan) return NULL; // the request only asks what would happen
    const Cairn__ReshardAsk *reshard = (const Cairn__ReshardAsk *)message;
    if (row->type == CAIRN_MSG_RESHARD_ASK)
        return reshard->op == CAIRN_RESHARD_APPLY    ? "reshard apply"
               : reshard->op == CAIRN_RESHARD_CANCEL ? "reshard cancel"
                                                     : NULL;
    if (row->type == CAIRN_MSG_KEY_CHANGE) {
        static const char *const changes[] = { [CAIRN_KEY_ADD] = "key add",
                                               [CAIRN_KEY_REVOKE] = "key revoke",
                                               [CAIRN_KEY_ROTATE] = "key rotate",
                                               [CAIRN_KEY_ROTATE_CLUSTER] =
                                                   "key rotate --cluster" };
        const uint32_t op = ((const Cairn__KeyChange *)message)->op;
        return op >= CAIRN_KEY_ADD && op <= CAIRN_KEY_ROTATE_CLUSTER ? changes[op] : row->verb;
    }
    if (row->type == CAIRN_MSG_JOB_ROLLBACK && ((const Cairn__JobRollback *)message)->lists)
        return NULL;
    if (row->type == CAIRN_MSG_JOB_PARK && !((const Cairn__JobPark *)message)->parked)
        return "job unpark";
    return row->verb;
}

struct coord_asked {
    struct coord *cluster;
    const struct coord_session *session; /* of the request, while it is being handled */
    uint32_t request;
    uint32_t holders;    /* whoever handles it is one */
    bool was_held;       /* by somebody else */
    bool has_end;        /* somebody holds the end of its work, so its answer is no end */
    int ring;            /* of its entries */
    uint64_t number;     /* of the entry that says that it was begun; 0: there is none */
    cairn_status status; /* the first failure of a holder */
    struct sentence why;
    char *job, *who, *what; /* owned */
};

static void free_asked(struct coord_asked *asked)
{
    free(asked->job);
    free(asked->who);
    free(asked->what);
    free(asked);
}

static struct coord_asked *open_asked(const struct coord_session *session, const char *job,
                                      const struct sentence *what)
{
    struct coord_asked *asked = calloc(1, sizeof *asked);
    struct sentence who;
    if (asked == NULL) return NULL;
    describe_peer(session->peer, &who);
    sentence_add(&who, " at %s", peer_name(session->peer));
    asked->cluster = session->cluster;
    asked->session = session;
    asked->holders = 1;
    asked->ring = ring_of(session->peer);
    asked->job = strdup(job);
    asked->who = strdup(who.text);
    asked->what = strdup(what->text);
    if (asked->job != NULL && asked->who != NULL && asked->what != NULL) return asked;
    free_asked(asked);
    return NULL;
}

struct coord_asked *coord_asked_note(const struct coord_session *session,
                                     const struct coord_row *row, const char *verb,
                                     const ProtobufCMessage *message, uint32_t request)
{
    struct coord *cluster = session->cluster;
    struct sentence who, what;
    describe_peer(session->peer, &who);
    if (!access_role(coord_who(session), CAIRN_MAY_ADMIN) &&
        !is_of_first(cluster, "begun", CAIRN_EVENTS_OF_ALL, who.text, "requests",
                     CAIRN_ASKED_FIRST))
        return NULL;
    const char *job = coord_row_job(row, message);
    sentence_set(&what, "%s", verb);
    add_fields(message, 1, &what);
    sentence_add(&who, " as admin %s at %s", session->name, peer_name(session->peer));
    log_fields(CAIRN_LOG_INFO, CAIRN_FIELDS({ "job", job, 0 }, { "who", who.text, 0 }), "asked: %s",
               what.text);
    add_event(&cluster->events, ring_of(session->peer), kind_names[CAIRN_EVENT_ASKED], job,
              who.text, what.text);
    struct coord_asked *asked = open_asked(session, job, &what);
    if (asked != NULL) asked->request = request;
    return cluster->audit.asking = asked;
}

/* Returns the entry's number. */
static uint64_t note_asked(const struct coord_asked *asked, const char *kind, cairn_status status,
                           const char *why)
{
    struct coord_events *log = &asked->cluster->audit.log;
    struct sentence text;
    sentence_set(&text, "%s", asked->what);
    if (asked->number != 0) sentence_add(&text, " (entry %" PRIu64 ")", asked->number);
    if (status != CAIRN_OK) sentence_add(&text, ": %s: %s", status_code_name((int)status), why);
    add_event(log, asked->ring, kind, asked->job, asked->who, text.text);
    return log->next - 1;
}

/* Nobody holds it any more: notes how it ended, unless it failed as it was begun, or ended then. */
static void end_asked(struct coord_asked *asked)
{
    if (asked->number != 0 && asked->was_held && !asked->cluster->closing)
        (void)note_asked(asked, asked->status == CAIRN_OK ? "ended" : "failed", asked->status,
                         asked->why.text);
    free_asked(asked);
}

void coord_asked_done(struct coord_asked *asked, cairn_status status, const char *why)
{
    if (asked == NULL) return;
    asked->cluster->audit.asking = NULL;
    asked->session = NULL;
    const uint64_t number = note_asked(asked, status == CAIRN_OK ? "begun" : "failed", status, why);
    if (status == CAIRN_OK) asked->number = number;
    if (--asked->holders == 0) end_asked(asked);
}

struct coord_asked *coord_asked_hold(const struct coord_session *session, uint32_t request)
{
    struct coord_asked *asked = session->cluster->audit.asking;
    if (asked == NULL || asked->session != session || asked->request != request || asked->has_end)
        return NULL;
    asked->holders++;
    asked->was_held = true;
    return asked;
}

struct coord_asked *coord_asked_hold_end(const struct coord_session *session, uint32_t request)
{
    struct coord_asked *asked = session->cluster->audit.asking;
    if (asked == NULL || asked->session != session || asked->request != request) return NULL;
    asked->has_end = asked->was_held = true;
    asked->holders++;
    return asked;
}

void coord_asked_end(struct coord_asked *asked, cairn_status status, const char *why)
{
    if (asked == NULL) return;
    if (status != CAIRN_OK && asked->status == CAIRN_OK)
        asked->status = fail_with(&asked->why, status, "%s", why);
    if (--asked->holders == 0) end_asked(asked);
}

/* ==== clock ==== */

void coord_clock_look(struct coord *cluster)
{
    char jump[CAIRN_WALL_JUMP_BYTES];
    if (wall_watch(&cluster->clock.wall, jump))
        coord_event_note(cluster, CAIRN_EVENT_CLOCK, NULL, NULL, "%s", jump);
}

/* ==== messages ==== */

const struct coord_row coord_events_rows[] = {
    { CAIRN_MSG_CLUSTER_BACKUP, CAIRN_FROM_ADMIN, .asks = on_cluster_backup,
      .verb = "cluster backup" },
    { CAIRN_MSG_EVENTS_GET, CAIRN_FROM_ADMIN, .by_session = on_events_get },
    { CAIRN_MSG_AUDIT_GET, CAIRN_FROM_ADMIN, .by_session = on_audit_get, .needs = CAIRN_MAY_ADMIN },
    { 0 },
};
