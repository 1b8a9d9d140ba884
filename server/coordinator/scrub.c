#include "server/coordinator/snapshot.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "server/base/daemon.h"
#include "server/base/log.h"
#include "server/coordinator/base.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/job.h"
#include "server/coordinator/round.h"
#include "server/coordinator/store.h"

#define WANTED_MAX 64
#define CLOSE_MS   2000 /* so long its thread may rest and read; else the storage hangs */
#define LOOK_EVERY 10   /* heartbeats: whether the time of one has come */
#define PUT_OFF_S  600  /* what could not be read */

struct wanted {
    char job[CAIRN_NAME_MAX + 1];
    char id
        [CAIRN_SNAPSHOT_ID_BYTES]; /* empty: the one of the job whose time has come, if there is one */
};

struct put_off {
    struct wanted of;
    uint64_t until_ns;
};

struct coord_scrub {
    struct task task;              /* first */
    struct coord_scrub *next_left; /* of those whose threads were not back */
    struct pool *pool_left;        /* its pool then */
    struct pool *pool;             /* owned */
    const struct coord *cluster;
    struct wanted wanted[WANTED_MAX]; /* [wanted_count], the oldest first */
    size_t wanted_count;
    bool running, is_left; /* left: it was closed, and its thread is not back */
    uint64_t looked_ms;    /* when a job was asked last, of the loop's clock */
    uint64_t turn;         /* how many jobs have been asked */
    atomic_bool stop;
    /* the thread's, while it runs */
    struct wanted at;
    uint64_t every_s;
    struct put_off put_off[WANTED_MAX]; /* the oldest gives way */
    size_t put_off_count;
    uint64_t block_began_ns;
    cairn_status status; /* CAIRN_ERR_NOT_READY: no one's time has come */
    struct sentence why;
};

/* ---- on its thread ---- */

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* As long as the block took. */
static bool pace_reading(void *context, uint64_t done, uint64_t total, const char *file)
{
    struct coord_scrub *scrub = context;
    const uint64_t took_ns = now_ns() - scrub->block_began_ns;
    const uint64_t rest_ns = took_ns < 1000000000 ? took_ns : 1000000000;
    (void)done;
    (void)total;
    (void)file;
    nanosleep(&(struct timespec) { (time_t)(rest_ns / 1000000000), (long)(rest_ns % 1000000000) },
              NULL);
    scrub->block_began_ns = now_ns();
    return !atomic_load(&scrub->stop);
}

static bool is_put_off(const struct coord_scrub *scrub, const char *id)
{
    for (size_t i = 0; i < WANTED_MAX; i++) {
        const struct put_off *p = &scrub->put_off[i];
        if (p->until_ns > now_ns() && strcmp(p->of.job, scrub->at.job) == 0 &&
            strcmp(p->of.id, id) == 0)
            return true;
    }
    return false;
}

/* The one that was read longest ago, if that is every_s ago, or never. */
static cairn_status find_due(struct coord_scrub *scrub, struct sentence *why)
{
    struct coord_found found;
    struct snapshot_words words = { .latest = "" };
    const uint64_t now_s = wall_unix_s();
    uint64_t oldest_s = UINT64_MAX;
    cairn_status status = coord_find_snapshots(scrub->cluster, scrub->at.job, NULL, &found, why);
    if (status == CAIRN_OK)
        status = snapshot_words_load(scrub->cluster->storage.path, scrub->at.job, &words, why);
    for (size_t i = 0; i < found.count && status == CAIRN_OK; i++) {
        const char *id = found.list[i].place.id;
        const struct snapshot_check *check = snapshot_words_check(&words, id);
        const uint64_t at_s = check != NULL ? check->unix_s : 0;
        if (at_s >= oldest_s || (at_s <= now_s && now_s - at_s < scrub->every_s)) continue;
        if (is_put_off(scrub, id)) continue;
        oldest_s = at_s;
        snprintf(scrub->at.id, sizeof scrub->at.id, "%s", id);
    }
    snapshot_words_release(&words);
    coord_found_release(&found);
    return status == CAIRN_OK && scrub->at.id[0] == '\0' ? CAIRN_ERR_NOT_READY : status;
}

static cairn_status verify_snapshot(struct coord_scrub *scrub, struct sentence *why)
{
    struct snapshot snapshot;
    const struct verify asked = { .ahead = 1, .progress = pace_reading, .context = scrub };
    char *folder;
    if (asprintf(&folder, "%s/%s/%s", scrub->cluster->storage.path, scrub->at.job, scrub->at.id) <
        0)
        return CAIRN_ERR_NO_MEMORY;
    cairn_status status = snapshot_open(folder, &snapshot, why);
    free(folder);
    if (status != CAIRN_OK) return status;
    scrub->block_began_ns = now_ns();
    status = snapshot_verify(&snapshot, &asked, why);
    snapshot_close(&snapshot);
    return status;
}

/* True if the snapshot is damaged. It is not if the storage cannot give it now, or somebody has
 * removed it meanwhile. */
static bool is_damage(cairn_status status)
{
    return status == CAIRN_ERR_CHECKSUM || status == CAIRN_ERR_CORRUPT ||
           status == CAIRN_ERR_MALFORMED;
}

/* Puts off a snapshot that cannot be read now: if it were the next one again, all others would
 * wait for it. */
static void put_off(struct coord_scrub *scrub)
{
    if (scrub->at.id[0] == '\0' || scrub->status == CAIRN_ERR_CANCELED) return;
    struct put_off *last = &scrub->put_off[scrub->put_off_count++ % WANTED_MAX];
    last->of = scrub->at;
    last->until_ns = now_ns() + PUT_OFF_S * UINT64_C(1000000000);
}

static void run_scrub(struct task *task, uint32_t item, uint32_t thread)
{
    struct coord_scrub *scrub = (struct coord_scrub *)task;
    struct sentence said;
    (void)item;
    (void)thread;
    scrub->why.text[0] = '\0';
    scrub->status = coord_storage_seen(scrub->cluster, &scrub->why);
    if (scrub->status == CAIRN_OK && scrub->at.id[0] == '\0')
        scrub->status = find_due(scrub, &scrub->why);
    if (scrub->status == CAIRN_OK) scrub->status = verify_snapshot(scrub, &scrub->why);
    if (scrub->status != CAIRN_OK && !is_damage(scrub->status)) {
        put_off(scrub);
        return;
    }
    const cairn_status noted = coord_snapshot_note_check(
        scrub->cluster, scrub->at.job, scrub->at.id, scrub->status == CAIRN_OK, &said);
    if (noted == CAIRN_ERR_NOT_FOUND) // removed while it was read
        scrub->status = noted;
    else if (noted != CAIRN_OK)
        log_warn("that snapshot %s of job %s was read could not be noted: %s", scrub->at.id,
                 scrub->at.job, said.text);
}

/* ---- on the loop ---- */

static void on_run(struct task *task)
{
    struct coord_scrub *scrub = (struct coord_scrub *)task;
    struct coord *cluster = (struct coord *)(uintptr_t)scrub->cluster;
    scrub->running = false;
    if (cluster->closing) return;
    if (is_damage(scrub->status)) {
        log_error("snapshot %s of job %s is damaged: %s", scrub->at.id, scrub->at.job,
                  scrub->why.text);
        coord_event_note(cluster, CAIRN_EVENT_DAMAGED, scrub->at.job, NULL, "%s is damaged: %s",
                         scrub->at.id, sentence_brief(scrub->why.text, 900).text);
    } else if (scrub->status == CAIRN_OK) {
        scrub->looked_ms = 0; // there may be more of them
        coord_snapshot_keep(cluster, scrub->at.job);
    } else if (scrub->status != CAIRN_ERR_NOT_READY && scrub->status != CAIRN_ERR_CANCELED &&
               scrub->status != CAIRN_ERR_NOT_FOUND) {
        log_warn("snapshots of job %s were not read: %s", scrub->at.job, scrub->why.text);
    }
    coord_scrub_tick(cluster);
}

/* The next job in turn that has its snapshots read by itself; NULL: none has. */
static const struct coord_job *next_job(struct coord_scrub *scrub)
{
    const struct coord_job *chosen = NULL;
    uint64_t count = 0, at = 0;
    for (const struct coord_job *j = scrub->cluster->jobs; j != NULL; j = j->next)
        count += j->spec.policy.snapshot_scrub_every_s > 0;
    if (count == 0) return NULL;
    for (const struct coord_job *j = scrub->cluster->jobs; j != NULL; j = j->next)
        if (j->spec.policy.snapshot_scrub_every_s > 0 && at++ == scrub->turn % count) chosen = j;
    scrub->turn++;
    return chosen;
}

static void start_scrub(struct coord_scrub *scrub)
{
    scrub->running = true;
    pool_submit(scrub->pool, &scrub->task);
}

void coord_scrub_tick(struct coord *cluster)
{
    struct coord_scrub *scrub = cluster->scrub;
    if (scrub->running || cluster->closing) return;
    if (scrub->wanted_count > 0) {
        scrub->at = scrub->wanted[0];
        memmove(scrub->wanted, scrub->wanted + 1, --scrub->wanted_count * sizeof *scrub->wanted);
        start_scrub(scrub);
        return;
    }
    const uint64_t now_ms = coord_now_ms(cluster);
    const uint64_t look_every_ms = LOOK_EVERY * (uint64_t)cluster->options->heartbeat_ms;
    if (scrub->looked_ms != 0 && now_ms - scrub->looked_ms < look_every_ms) return;
    const struct coord_job *job = next_job(scrub);
    if (job == NULL) return;
    scrub->looked_ms = now_ms + 1; // not 0
    scrub->at.id[0] = '\0';
    snprintf(scrub->at.job, sizeof scrub->at.job, "%s", job->spec.name);
    scrub->every_s = job->spec.policy.snapshot_scrub_every_s;
    start_scrub(scrub);
}

void coord_scrub_want(struct coord *cluster, const char *job, const char *id)
{
    struct coord_scrub *scrub = cluster->scrub;
    if (scrub->wanted_count == WANTED_MAX) return;
    struct wanted *wanted = &scrub->wanted[scrub->wanted_count++];
    snprintf(wanted->job, sizeof wanted->job, "%s", job);
    snprintf(wanted->id, sizeof wanted->id, "%s", id);
    coord_scrub_tick(cluster);
}

cairn_status coord_scrub_open(struct coord *cluster, struct sentence *why)
{
    struct coord_scrub *scrub = calloc(1, sizeof *scrub);
    if (scrub == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    scrub->cluster = cluster;
    scrub->task = (struct task) { .run = run_scrub, .done = on_run, .item_count = 1 };
    cluster->scrub = scrub;
    return pool_open(cluster->loop, "cairn-scrub", 1, thread_yield, &scrub->pool, why);
}

void coord_scrub_close(struct coord *cluster, void (*on_closed)(void *context), void *context)
{
    struct coord_scrub *scrub = cluster->scrub;
    if (scrub == NULL || scrub->pool == NULL) return;
    atomic_store(&scrub->stop, true);
    scrub->is_left = !pool_close_within(scrub->pool, CLOSE_MS, on_closed, context);
    if (scrub->is_left) scrub->pool_left = scrub->pool;
    scrub->pool = NULL;
}

bool coord_scrub_free(struct coord *cluster)
{
    static struct coord_scrub *left; // until the process ends
    const bool is_left = cluster->scrub != NULL && cluster->scrub->is_left;
    if (is_left) {
        cluster->scrub->next_left = left;
        left = cluster->scrub;
    } else {
        free(cluster->scrub);
    }
    cluster->scrub = NULL;
    return !is_left;
}

/* ==== advise ==== */

struct advise_found coord_advise(const struct advise_given *given)
{
    const double young_s = sqrt(2 * given->mtbf_s * given->cost_s);
    const bool by_write = !(young_s >= given->write_s);
    double interval_s = round(by_write ? given->write_s : young_s);
    if (!(interval_s >= 1)) interval_s = 1;
    if (interval_s > CAIRN_SPEC_SNAPSHOT_S_MAX) interval_s = CAIRN_SPEC_SNAPSHOT_S_MAX;
    struct advise_found found = { .interval_s = (uint32_t)interval_s, .by_write = by_write };
    if (given->step_s > 0) {
        const double steps = round(interval_s / given->step_s);
        found.interval_steps = steps < 1 ? 1 : (uint64_t)fmin(steps, 1e15);
    }
    return found;
}

static void fill_measured(struct coord_job *job, Cairn__SnapshotAdvice *out)
{
    const struct coord_cost *cost = &job->snapshots.cost;
    const uint32_t plain_us = coord_pace_median(&cost->plain);
    uint32_t extras_us[CAIRN_COST_SNAPSHOTS], writes_us[CAIRN_COST_SNAPSHOTS];
    out->step_us = plain_us > 0 ? plain_us : coord_pace_median(&job->pace);
    out->measured = cost->count;
    if (cost->count == 0) return;
    memcpy(extras_us, cost->extras_us, sizeof extras_us); // the median puts them in order
    memcpy(writes_us, cost->writes_us, sizeof writes_us);
    out->cost_us = times_median(extras_us, cost->count);
    out->write_us = times_median(writes_us, cost->count);
}

static void fill_faults(struct coord_job *job, uint64_t given_s, Cairn__SnapshotAdvice *out)
{
    struct event_faults faults;
    coord_events_faults(job->cluster, job->spec.name, &faults);
    const uint64_t count = faults.shards + faults.workers;
    out->shard_faults = faults.shards;
    out->worker_faults = faults.workers;
    out->observed_s = faults.observed_ms / 1000;
    out->mtbf_given = given_s > 0;
    out->mtbf_s = given_s;
    if (given_s == 0 && count > 0)
        out->mtbf_s = out->observed_s > count ? out->observed_s / count : 1;
}

static void judge_advice(Cairn__SnapshotAdvice *out, struct sentence *note)
{
    note->text[0] = '\0';
    if (out->measured == 0)
        sentence_set(note,
                     "no snapshot was measured yet since the coordinator started: one is when "
                     "at least %d steps were taken before it; take one while the job trains",
                     CAIRN_COST_STEPS);
    else if (out->mtbf_s == 0)
        sentence_set(note, "no fault was seen yet; say how often you expect one: --mtbf 7d");
    if (note->text[0] != '\0') return;
    const struct advise_given given = { .mtbf_s = (double)out->mtbf_s,
                                        .cost_s = (double)out->cost_us * 1e-6,
                                        .write_s = (double)out->write_us * 1e-6,
                                        .step_s = (double)out->step_us * 1e-6 };
    const struct advise_found found = coord_advise(&given);
    out->interval_s = found.interval_s;
    out->interval_steps = found.interval_steps;
    if (found.by_write)
        sentence_set(note, "as often as one can be written: Young's rule asks for more");
}

void coord_snapshot_advise(struct coord_session *session, uint32_t request,
                           const Cairn__SnapshotAdvise *message)
{
    struct coord_job *job = coord_job_find(session->cluster, message->job);
    Cairn__SnapshotAdvice advice = CAIRN__SNAPSHOT_ADVICE__INIT;
    struct sentence text;
    if (job == NULL) {
        sentence_set(&text, "there is no job %.100s; `cairn job list`", message->job);
        coord_session_error(session, request, CAIRN_ERR_NOT_FOUND, text.text);
        return;
    }
    advice.job = job->spec.name;
    advice.every = job->spec.policy.snapshot_every;
    advice.every_s = job->spec.policy.snapshot_every_s;
    fill_measured(job, &advice);
    fill_faults(job, message->mtbf_s, &advice);
    judge_advice(&advice, &text);
    advice.note = text.text;
    coord_session_send(session, CAIRN_MSG_SNAPSHOT_ADVICE, request, &advice.base);
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
            views[i].status.signature = wire_text(f->signature);
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
    view.status.signature = wire_text(f->signature);
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
