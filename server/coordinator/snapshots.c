/* Snapshots that a job takes by itself, and the lists of all that there are. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/cluster.h"

/* ==== periodic ==== */

/* A snapshot is due by steps, or by the time since the last one was due. After a start that time
 * counts from the first step that is seen. */
static bool is_due(struct coord_job *job, uint64_t step)
{
    const struct policy *policy = &job->spec.policy;
    const uint64_t now_ms = coord_now_ms(job->cluster) + 1; // not 0
    const uint64_t since_ms = job->snapshots.due_ms;
    if (policy->snapshot_every_s == 0) {
        job->snapshots.due_ms = 0;
        return policy->snapshot_every > 0 && step % policy->snapshot_every == 0;
    }
    const bool due = since_ms != 0 &&
                     now_ms - since_ms >= 1000 * (uint64_t)policy->snapshot_every_s;
    if (since_ms == 0 || due) job->snapshots.due_ms = now_ms;
    return due;
}

/* The version that is to be saved, and not only its step, is there: of a job with buffers_every the write
 * that follows a due step makes it, or, if none has come, the next step. */
static bool is_to_be_saved(struct coord_job *job, struct cairn_version was,
                           struct cairn_version now)
{
    const bool was_due = job->snapshots.awaits_write;
    const bool is_written = now.generation == was.generation + 1 && now.step == was.step;
    const bool is_stepped = now.generation == was.generation && now.step > was.step;
    if (!is_stepped && !is_written) return false;
    job->snapshots.awaits_write = false;
    if (is_written) return was_due;
    const uint64_t every = job->spec.policy.snapshot_every;
    const bool due = is_due(job, now.step);
    if (!due && !was_due && every > 0) coord_snapshot_prepare_ahead(job, every - now.step % every);
    if (due && !was_due && job->spec.buffers_every > 0) job->snapshots.awaits_write = true;
    return was_due || (due && job->spec.buffers_every == 0);
}

/* Only a step that is applied while we look on: not one that a restore, or a start, begins with. */
void coord_periodic_advance(struct coord_job *job)
{
    const struct cairn_version was = job->snapshots.stepped, now = coord_job_version(job);
    struct sentence why;
    if (!job->rounds.heard || job->version_unknown) return;
    if (version_compare(now, was) == 0) return;
    job->snapshots.stepped = now;
    const bool is_damaged = coord_halts_damage(job).nonfinite > 0;
    if (!is_damaged) coord_periodic_undamaged(job);
    if (!is_to_be_saved(job, was, now)) return;
    if (is_damaged)
        coord_periodic_damaged(job);
    else if (coord_snapshot_begin_unasked(job, CAIRN_SNAPSHOT_PERIODIC, &why) != CAIRN_OK)
        coord_periodic_failed(job, now.step, why.text);
}

/* ==== list ==== */

/* An admin asks for the snapshots in the store folder; they are read on another thread. */

struct listing {
    struct coord_work work;
    cairn_status status;
    struct sentence why;
    /* owned */
    char *job; /* NULL = of all */
    char *id;  /* one alone; NULL = list */
    struct key_ring ring;
    struct coord_found found;
    struct said *said; /* [found.count]; NULL: nothing is */
};

/* A snapshot's entry in the words of its job: whether it is the latest, its check, and its tags. */
struct said {
    bool latest, check_failed;
    uint64_t checked_unix_s;
    size_t tag_count;
    char (*tags)[CAIRN_SNAPSHOT_TAG_BYTES]; /* owned */
    char **list;                            /* owned: [tag_count], into tags */
};

static void free_listing(struct listing *listing)
{
    for (size_t i = 0; listing->said != NULL && i < listing->found.count; i++) {
        free(listing->said[i].tags);
        free(listing->said[i].list);
    }
    free(listing->said);
    coord_found_release(&listing->found);
    free(listing->job);
    free(listing->id);
    free(listing);
}

static void take_words(const struct snapshot_words *words, const char *id, struct said *out)
{
    const struct snapshot_check *check = snapshot_words_check(words, id);
    out->latest = strcmp(words->latest, id) == 0;
    if (check != NULL) out->checked_unix_s = check->unix_s;
    out->check_failed = check != NULL && !check->is_good;
    out->tags = calloc(words->tag_count + 1, sizeof *out->tags);
    out->list = calloc(words->tag_count + 1, sizeof *out->list);
    for (size_t i = 0; out->tags != NULL && out->list != NULL && i < words->tag_count; i++) {
        if (strcmp(words->tags[i].id, id) != 0) continue;
        memcpy(out->tags[out->tag_count], words->tags[i].name, sizeof *out->tags);
        out->list[out->tag_count] = out->tags[out->tag_count];
        out->tag_count++;
    }
}

/* Reads the words of each job once. If they cannot be read, the list is sent without them:
 * better than none. */
static void read_words(struct listing *listing)
{
    const struct coord_found *found = &listing->found;
    listing->said = calloc(found->count + 1, sizeof *listing->said);
    for (size_t i = 0; listing->said != NULL && i < found->count; i++) {
        const char *job = found->list[i].manifest.spec.name;
        struct snapshot_words words;
        struct sentence why;
        if (listing->said[i].tags != NULL) continue; // with one before it
        if (snapshot_words_load(listing->work.cluster->storage.path, job, &words, &why) != CAIRN_OK)
            log_warn("the words of the snapshots of job %s: %s", job, why.text);
        for (size_t k = i; k < found->count; k++)
            if (strcmp(found->list[k].manifest.spec.name, job) == 0)
                take_words(&words, found->list[k].place.id, &listing->said[k]);
        snapshot_words_release(&words);
    }
}

static void fill_words(const struct listing *listing, size_t i, Cairn__SnapshotStatus *out)
{
    if (listing->said == NULL) return;
    const struct said *said = &listing->said[i];
    out->latest = said->latest;
    out->checked_unix_ms = said->checked_unix_s * 1000;
    out->check_failed = said->check_failed;
    out->tags = said->list;
    out->n_tags = said->tag_count;
}

static void read_store(struct coord_work *work)
{
    struct listing *listing = (struct listing *)work;
    listing->status = coord_find_snapshots(work->cluster, listing->job, listing->id,
                                           &listing->found, &listing->why);
    for (size_t i = 0; i < listing->found.count; i++) {
        struct found_snapshot *f = &listing->found.list[i];
        struct sentence what;
        manifest_trust(&f->manifest, &listing->ring, &what);
        snprintf(f->signature, sizeof f->signature, "%.*s", (int)sizeof f->signature - 1,
                 sentence_brief(what.text, sizeof f->signature - 1).text);
    }
    if (listing->status == CAIRN_OK) read_words(listing);
}

/* A job that was never here and has left no snapshots: a mistyped name, most likely. */
static bool is_unknown(const struct listing *listing)
{
    return listing->job != NULL && listing->found.count == 0 &&
           coord_job_find(listing->work.cluster, listing->job) == NULL;
}

/* Its manifest is there already: the loop has yet to hear of it. */
static bool is_found(const struct listing *listing, const Cairn__SnapshotStatus *s)
{
    for (size_t i = 0; i < listing->found.count; i++)
        if (strcmp(listing->found.list[i].place.id, s->id) == 0 &&
            strcmp(listing->found.list[i].manifest.spec.name, s->job) == 0)
            return true;
    return false;
}

/* Lists the snapshots that are being taken; borrows from their jobs. Both arrays are the
 * caller's to free. False: no memory. */
static bool list_running(const struct listing *listing, struct snapshot_view **views,
                         Cairn__SnapshotList *message)
{
    size_t count = 0;
    const struct coord_job *jobs = listing->work.cluster->jobs;
    for (const struct coord_job *j = jobs; j != NULL; j = j->next) count++;
    *views = calloc(count + 1, sizeof **views);
    message->running = calloc(count + 1, sizeof *message->running);
    if (*views == NULL || message->running == NULL) return false;
    for (const struct coord_job *j = jobs; j != NULL; j = j->next) {
        struct snapshot_view *view = *views + message->n_running;
        if (listing->job != NULL && strcmp(listing->job, j->spec.name) != 0) continue;
        if (!coord_snapshot_running(j, view) || is_found(listing, &view->status)) continue;
        message->running[message->n_running++] = &view->status;
    }
    return true;
}

static void send_list(struct listing *listing)
{
    struct sentence why;
    if (is_unknown(listing)) {
        sentence_set(&why, "there is no job %s and no snapshot of one; `cairn job list`",
                     listing->job);
        coord_session_error(listing->work.session, listing->work.request, CAIRN_ERR_NOT_FOUND,
                            why.text);
        return;
    }
    struct snapshot_view *views = calloc(listing->found.count + 1, sizeof *views);
    Cairn__SnapshotStatus **list = calloc(listing->found.count + 1, sizeof *list);
    struct snapshot_view *running;
    Cairn__SnapshotList message = CAIRN__SNAPSHOT_LIST__INIT;
    const bool whole = list_running(listing, &running, &message);
    if (whole && views != NULL && list != NULL) {
        for (size_t i = 0; i < listing->found.count; i++) {
            const struct found_snapshot *f = &listing->found.list[i];
            coord_manifest_to_view(&f->manifest, f->place.id, f->folder, &views[i]);
            views[i].status.signature = (char *)(uintptr_t)f->signature;
            fill_words(listing, i, &views[i].status);
            list[i] = &views[i].status;
        }
        message.snapshots = list;
        message.n_snapshots = listing->found.count;
        message.unread = listing->found.unread.text;
        coord_session_send(listing->work.session, CAIRN_MSG_SNAPSHOT_LIST, listing->work.request,
                           &message.base);
    } else {
        coord_session_error(listing->work.session, listing->work.request, CAIRN_ERR_NO_MEMORY,
                            "out of memory");
    }
    free(running);
    free(message.running);
    free(views);
    free(list);
}

static void send_one(struct listing *listing)
{
    struct snapshot_view view;
    struct sentence why;
    if (listing->found.count == 0) {
        sentence_set(&why, "there is no committed snapshot %s of job %s; `cairn snapshot list`",
                     listing->id, listing->job);
        coord_session_error(listing->work.session, listing->work.request, CAIRN_ERR_NOT_FOUND,
                            why.text);
        return;
    }
    const struct found_snapshot *f = listing->found.list;
    coord_manifest_to_view(&f->manifest, f->place.id, f->folder, &view);
    view.status.signature = (char *)(uintptr_t)f->signature;
    fill_words(listing, 0, &view.status);
    coord_session_send(listing->work.session, CAIRN_MSG_SNAPSHOT_STATUS, listing->work.request,
                       &view.status.base);
}

static void on_read(struct coord_work *work)
{
    struct listing *listing = (struct listing *)work;
    if (work->session != NULL) {
        if (listing->status != CAIRN_OK) {
            coord_session_error(work->session, work->request, listing->status, listing->why.text);
        } else if (listing->id != NULL) {
            send_one(listing);
        } else {
            send_list(listing);
        }
    }
    free_listing(listing);
}

static void begin_list(struct coord_session *session, uint32_t request, const char *job,
                       const char *id)
{
    struct listing *listing = calloc(1, sizeof *listing);
    bool whole = listing != NULL;
    if (whole && job != NULL) whole = (listing->job = strdup(job)) != NULL;
    if (whole && id != NULL) whole = (listing->id = strdup(id)) != NULL;
    if (whole) {
        coord_keys_ring(session->cluster, &listing->ring);
        listing->work.run = read_store;
        listing->work.done = on_read;
        whole = coord_work_start(&listing->work, session->cluster, session, request);
    }
    if (whole) return;
    if (listing != NULL) free_listing(listing);
    coord_session_error(session, request, CAIRN_ERR_BUSY,
                        "too many requests wait on this connection");
}

void coord_snapshots_list(struct coord_session *session, uint32_t request, const char *job)
{
    if (*job != '\0' && !job_name_ok(job)) {
        struct sentence why;
        sentence_set(&why, "\"%.100s\" is not a name of a job; `cairn job list`", job);
        coord_session_error(session, request, CAIRN_ERR_INVALID, why.text);
        return;
    }
    begin_list(session, request, *job == '\0' ? NULL : job, NULL);
}

void coord_snapshots_show(struct coord_session *session, uint32_t request, const char *job,
                          const char *id)
{
    uint64_t generation, step;
    const bool job_ok = job_name_ok(job);
    if (!job_ok || !snapshot_id_parse(id, &generation, &step)) {
        struct sentence why;
        sentence_set(&why, "\"%.100s\" is not %s; `cairn snapshot list` prints jobs and ids",
                     job_ok ? id : job, job_ok ? "an id of a snapshot" : "a name of a job");
        coord_session_error(session, request, CAIRN_ERR_INVALID, why.text);
        return;
    }
    begin_list(session, request, job, id);
}
