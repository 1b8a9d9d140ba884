#include "server/coordinator/snapshot/scrub.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "proto/snapshot_io/word.h"
#include "server/base/log.h"
#include "server/base/pool.h"
#include "server/base/wall.h"
#include "server/base/yield.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/snapshot/find.h"
#include "server/coordinator/snapshot/keep.h"
#include "server/coordinator/store/events.h"

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

struct cairn_cluster_scrub {
    struct cairn_task task;                /* first */
    struct cairn_cluster_scrub *next_left; /* of those whose threads were not back */
    struct cairn_pool *pool_left;          /* its pool then */
    struct cairn_pool *pool;               /* owned */
    const struct cairn_cluster *cluster;
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
    struct cairn_sentence why;
};

/* ---- on its thread ---- */

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* As long as the block took. */
static bool pace(void *context, uint64_t done, uint64_t total, const char *file)
{
    struct cairn_cluster_scrub *scrub = context;
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

static bool is_put_off(const struct cairn_cluster_scrub *scrub, const char *id)
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
static cairn_status find_due(struct cairn_cluster_scrub *scrub, struct cairn_sentence *why)
{
    struct cairn_cluster_found found;
    struct cairn_snapshot_words words = { .latest = "" };
    const uint64_t now_s = cairn_wall_unix_s();
    uint64_t oldest_s = UINT64_MAX;
    cairn_status status = cairn_cluster_find_snapshots(scrub->cluster, scrub->at.job, NULL, &found,
                                                       why);
    if (status == CAIRN_OK)
        status = cairn_snapshot_words_load(scrub->cluster->storage.path, scrub->at.job, &words,
                                           why);
    for (size_t i = 0; i < found.count && status == CAIRN_OK; i++) {
        const char *id = found.list[i].place.id;
        const struct cairn_snapshot_check *check = cairn_snapshot_words_check(&words, id);
        const uint64_t at_s = check != NULL ? check->unix_s : 0;
        if (at_s >= oldest_s || (at_s <= now_s && now_s - at_s < scrub->every_s)) continue;
        if (is_put_off(scrub, id)) continue;
        oldest_s = at_s;
        snprintf(scrub->at.id, sizeof scrub->at.id, "%s", id);
    }
    cairn_snapshot_words_release(&words);
    cairn_cluster_found_release(&found);
    return status == CAIRN_OK && scrub->at.id[0] == '\0' ? CAIRN_ERR_NOT_READY : status;
}

static cairn_status verify(struct cairn_cluster_scrub *scrub, struct cairn_sentence *why)
{
    struct cairn_snapshot snapshot;
    const struct cairn_verify asked = { .ahead = 1, .progress = pace, .context = scrub };
    char *folder;
    if (asprintf(&folder, "%s/%s/%s", scrub->cluster->storage.path, scrub->at.job, scrub->at.id) <
        0)
        return CAIRN_ERR_NO_MEMORY;
    cairn_status status = cairn_snapshot_open(folder, &snapshot, why);
    free(folder);
    if (status != CAIRN_OK) return status;
    scrub->block_began_ns = now_ns();
    status = cairn_snapshot_verify(&snapshot, &asked, why);
    cairn_snapshot_close(&snapshot);
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
static void put_off(struct cairn_cluster_scrub *scrub)
{
    if (scrub->at.id[0] == '\0' || scrub->status == CAIRN_ERR_CANCELED) return;
    struct put_off *last = &scrub->put_off[scrub->put_off_count++ % WANTED_MAX];
    last->of = scrub->at;
    last->until_ns = now_ns() + PUT_OFF_S * UINT64_C(1000000000);
}

static void run(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    struct cairn_cluster_scrub *scrub = (struct cairn_cluster_scrub *)task;
    struct cairn_sentence said;
    (void)item;
    (void)thread;
    scrub->why.text[0] = '\0';
    scrub->status = cairn_cluster_storage_seen(scrub->cluster, &scrub->why);
    if (scrub->status == CAIRN_OK && scrub->at.id[0] == '\0')
        scrub->status = find_due(scrub, &scrub->why);
    if (scrub->status == CAIRN_OK) scrub->status = verify(scrub, &scrub->why);
    if (scrub->status != CAIRN_OK && !is_damage(scrub->status)) {
        put_off(scrub);
        return;
    }
    const cairn_status noted = cairn_cluster_snapshot_note_check(
        scrub->cluster, scrub->at.job, scrub->at.id, scrub->status == CAIRN_OK, &said);
    if (noted == CAIRN_ERR_NOT_FOUND) // removed while it was read
        scrub->status = noted;
    else if (noted != CAIRN_OK)
        cairn_log_warn("that snapshot %s of job %s was read could not be noted: %s", scrub->at.id,
                       scrub->at.job, said.text);
}

/* ---- on the loop ---- */

static void on_run(struct cairn_task *task)
{
    struct cairn_cluster_scrub *scrub = (struct cairn_cluster_scrub *)task;
    struct cairn_cluster *cluster = (struct cairn_cluster *)(uintptr_t)scrub->cluster;
    scrub->running = false;
    if (cluster->closing) return;
    if (is_damage(scrub->status)) {
        cairn_log_error("snapshot %s of job %s is damaged: %s", scrub->at.id, scrub->at.job,
                        scrub->why.text);
        cairn_cluster_event_note(cluster, CAIRN_EVENT_DAMAGED, scrub->at.job, NULL,
                                 "%s is damaged: %s", scrub->at.id,
                                 cairn_sentence_brief(scrub->why.text, 900).text);
    } else if (scrub->status == CAIRN_OK) {
        scrub->looked_ms = 0; // there may be more of them
        cairn_cluster_snapshot_keep(cluster, scrub->at.job);
    } else if (scrub->status != CAIRN_ERR_NOT_READY && scrub->status != CAIRN_ERR_CANCELED &&
               scrub->status != CAIRN_ERR_NOT_FOUND) {
        cairn_log_warn("snapshots of job %s were not read: %s", scrub->at.job, scrub->why.text);
    }
    cairn_cluster_scrub_tick(cluster);
}

/* The next job in turn that has its snapshots read by itself; NULL: none has. */
static const struct cairn_cluster_job *next_job(struct cairn_cluster_scrub *scrub)
{
    const struct cairn_cluster_job *chosen = NULL;
    uint64_t count = 0, at = 0;
    for (const struct cairn_cluster_job *j = scrub->cluster->jobs; j != NULL; j = j->next)
        count += j->spec.policy.snapshot_scrub_every_s > 0;
    if (count == 0) return NULL;
    for (const struct cairn_cluster_job *j = scrub->cluster->jobs; j != NULL; j = j->next)
        if (j->spec.policy.snapshot_scrub_every_s > 0 && at++ == scrub->turn % count) chosen = j;
    scrub->turn++;
    return chosen;
}

static void start(struct cairn_cluster_scrub *scrub)
{
    scrub->running = true;
    cairn_pool_submit(scrub->pool, &scrub->task);
}

void cairn_cluster_scrub_tick(struct cairn_cluster *cluster)
{
    struct cairn_cluster_scrub *scrub = cluster->scrub;
    if (scrub->running || cluster->closing) return;
    if (scrub->wanted_count > 0) {
        scrub->at = scrub->wanted[0];
        memmove(scrub->wanted, scrub->wanted + 1, --scrub->wanted_count * sizeof *scrub->wanted);
        start(scrub);
        return;
    }
    const uint64_t now_ms = cairn_cluster_now_ms(cluster);
    const uint64_t look_every_ms = LOOK_EVERY * (uint64_t)cluster->options->heartbeat_ms;
    if (scrub->looked_ms != 0 && now_ms - scrub->looked_ms < look_every_ms) return;
    const struct cairn_cluster_job *job = next_job(scrub);
    if (job == NULL) return;
    scrub->looked_ms = now_ms + 1; // not 0
    scrub->at.id[0] = '\0';
    snprintf(scrub->at.job, sizeof scrub->at.job, "%s", job->spec.name);
    scrub->every_s = job->spec.policy.snapshot_scrub_every_s;
    start(scrub);
}

void cairn_cluster_scrub_want(struct cairn_cluster *cluster, const char *job, const char *id)
{
    struct cairn_cluster_scrub *scrub = cluster->scrub;
    if (scrub->wanted_count == WANTED_MAX) return;
    struct wanted *wanted = &scrub->wanted[scrub->wanted_count++];
    snprintf(wanted->job, sizeof wanted->job, "%s", job);
    snprintf(wanted->id, sizeof wanted->id, "%s", id);
    cairn_cluster_scrub_tick(cluster);
}

cairn_status cairn_cluster_scrub_open(struct cairn_cluster *cluster, struct cairn_sentence *why)
{
    struct cairn_cluster_scrub *scrub = calloc(1, sizeof *scrub);
    if (scrub == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    scrub->cluster = cluster;
    scrub->task = (struct cairn_task) { .run = run, .done = on_run, .item_count = 1 };
    cluster->scrub = scrub;
    return cairn_pool_open(cluster->loop, "cairn-scrub", 1, cairn_thread_yield, &scrub->pool, why);
}

void cairn_cluster_scrub_close(struct cairn_cluster *cluster, void (*on_closed)(void *context),
                               void *context)
{
    struct cairn_cluster_scrub *scrub = cluster->scrub;
    if (scrub == NULL || scrub->pool == NULL) return;
    atomic_store(&scrub->stop, true);
    scrub->is_left = !cairn_pool_close_within(scrub->pool, CLOSE_MS, on_closed, context);
    if (scrub->is_left) scrub->pool_left = scrub->pool;
    scrub->pool = NULL;
}

bool cairn_cluster_scrub_free(struct cairn_cluster *cluster)
{
    static struct cairn_cluster_scrub *left; // until the process ends
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
