#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/coordinator/cluster.h"

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
    struct cairn_snapshot snapshot;
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
