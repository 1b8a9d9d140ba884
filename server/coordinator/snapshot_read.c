#include <inttypes.h>
#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu/gpu.h"
#include "proto/base/machine.h"
#include "proto/store/confine.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/restore.h"

#define WANTED_MAX 64
#define CLOSE_MS   2000 /* closing waits for the thread so long; only a hung storage takes longer */
#define LOOK_EVERY 10   /* heartbeats between two looks for a snapshot that is due */
#define PUT_OFF_S  600  /* a snapshot that could not be read is not tried again in this time */

struct wanted {
    char job[CAIRN_NAME_MAX + 1];
    char id[CAIRN_SNAPSHOT_ID_BYTES]; /* empty: the job's due snapshot, which has yet to be found */
};

struct put_off {
    struct wanted of;
    uint64_t until_ns;
};

struct coord_scrub {
    struct task task; /* the first member */
    /* if is_left: the next one in the list of scrubs that were left */
    struct coord_scrub *next_left;
    struct pool *pool_left; /* if is_left: the pool, which stays allocated */
    struct pool *pool;      /* owned */
    const struct coord *cluster;
    struct wanted wanted[WANTED_MAX]; /* [wanted_count], the oldest first */
    size_t wanted_count;
    /* running: the thread is at work. is_left: the scrub was closed before its thread had
     * returned */
    bool running, is_left;
    /* coord_now_ms + 1: when a due snapshot was last looked for; 0: look at once */
    uint64_t looked_ms;
    uint64_t turn; /* the number of looks, by which the jobs take turns */
    atomic_bool stop;
    /* the thread uses the next fields while it runs */
    struct wanted at;
    uint64_t every_s;
    struct put_off put_off[WANTED_MAX]; /* the oldest entry is overwritten */
    size_t put_off_count;
    uint64_t block_began_ns;
    char *folder;        /* owned, while it is read */
    cairn_status status; /* CAIRN_ERR_NOT_READY: no snapshot is due */
    struct sentence why;
};

/* ---- on its thread ---- */

/* Rests for the time that reading the block took, but for a second at most. */
static bool pace_reading(void *context, uint64_t done, uint64_t total, const char *file)
{
    struct coord_scrub *scrub = context;
    const uint64_t took_ns = monotonic_ns() - scrub->block_began_ns;
    const uint64_t rest_ns = took_ns < 1000000000 ? took_ns : 1000000000;
    (void)done;
    (void)total;
    (void)file;
    nanosleep(&(struct timespec) { (time_t)(rest_ns / 1000000000), (long)(rest_ns % 1000000000) },
              NULL);
    scrub->block_began_ns = monotonic_ns();
    return !atomic_load(&scrub->stop);
}

static bool is_put_off(const struct coord_scrub *scrub, const char *id)
{
    for (size_t i = 0; i < WANTED_MAX; i++) {
        const struct put_off *p = &scrub->put_off[i];
        if (p->until_ns > monotonic_ns() && strcmp(p->of.job, scrub->at.job) == 0 &&
            strcmp(p->of.id, id) == 0)
            return true;
    }
    return false;
}

/* Finds the due snapshot that was read longest ago. A snapshot is due if it was never read, or not
 * within the last every_s seconds. */
static cairn_status find_due(struct coord_scrub *scrub, struct sentence *why)
{
    struct coord_found found;
    struct snapshot_words words = { .latest = "" };
    const uint64_t now_s = wall_unix_s();
    uint64_t oldest_s = UINT64_MAX;
    cairn_status status = coord_find_snapshots(scrub->cluster, scrub->at.job, NULL, &found, why);
    if (status == CAIRN_OK)
        status = coord_snapshot_words(scrub->cluster, scrub->at.job, &words, why);
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

static void verify_folder(void *of_scrub)
{
    struct coord_scrub *scrub = of_scrub;
    struct snapshot snapshot;
    const struct verify asked = { .ahead = 1, .progress = pace_reading, .context = scrub };
    scrub->status = snapshot_open(scrub->folder, &snapshot, &scrub->why);
    if (scrub->status != CAIRN_OK) return;
    scrub->block_began_ns = monotonic_ns();
    scrub->status = snapshot_verify(&snapshot, &asked, &scrub->why);
    snapshot_close(&snapshot);
}

static void verify_snapshot(struct coord_scrub *scrub)
{
    scrub->status = CAIRN_ERR_NO_MEMORY;
    if (asprintf(&scrub->folder, "%s/%s/%s", scrub->cluster->storage.path, scrub->at.job,
                 scrub->at.id) < 0)
        return;
    const cairn_status ran = confine_run_in(scrub->folder, verify_folder, scrub, &scrub->why);
    if (ran != CAIRN_OK) scrub->status = ran;
    free(scrub->folder);
}

/* True if the snapshot is damaged. A snapshot is not damaged if the storage cannot read it now, or
 * if somebody has removed it meanwhile. */
static bool is_damage(cairn_status status)
{
    return status == CAIRN_ERR_CHECKSUM || status == CAIRN_ERR_CORRUPT ||
           status == CAIRN_ERR_MALFORMED;
}

/* Puts off a snapshot that cannot be read now. If it were chosen again at once, all other snapshots would
 * wait for it. */
static void put_off(struct coord_scrub *scrub)
{
    if (scrub->at.id[0] == '\0' || scrub->status == CAIRN_ERR_CANCELED) return;
    struct put_off *last = &scrub->put_off[scrub->put_off_count++ % WANTED_MAX];
    last->of = scrub->at;
    last->until_ns = monotonic_ns() + PUT_OFF_S * UINT64_C(1000000000);
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
    if (scrub->status == CAIRN_OK) verify_snapshot(scrub);
    if (scrub->status != CAIRN_OK && !is_damage(scrub->status)) {
        put_off(scrub);
        return;
    }
    const cairn_status noted = coord_snapshot_note_check(
        scrub->cluster, scrub->at.job, scrub->at.id, scrub->status == CAIRN_OK, &said);
    if (noted == CAIRN_ERR_NOT_FOUND) // the snapshot was removed while it was read
        scrub->status = noted;
    else if (noted != CAIRN_OK)
        log_warn("the check of snapshot %s of job %s could not be noted: %s", scrub->at.id,
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
        scrub->looked_ms = 0; // more snapshots may be due
        coord_snapshot_keep(cluster, scrub->at.job);
    } else if (scrub->status != CAIRN_ERR_NOT_READY && scrub->status != CAIRN_ERR_CANCELED &&
               scrub->status != CAIRN_ERR_NOT_FOUND) {
        log_warn("snapshots of job %s were not read: %s", scrub->at.job, scrub->why.text);
    }
    coord_scrub_tick(cluster);
}

/* Returns the next job, in turn, whose snapshots are scrubbed at intervals. Returns NULL if there is
 * none. */
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
    scrub->looked_ms = now_ms + 1; // never 0
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
    static struct coord_scrub *left; // kept until the process ends
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

/* ==== read for a restore ==== */

/* Reads, on other threads, what a restore needs: the manifest, the signature and the files of the
 * snapshot that was asked for, or of the newest snapshot. Proves that the files, or the state that
 * shards have loaded, have the manifest's content root. */

const char *coord_restore_job_name(const struct coord_restore *restore)
{
    return restore->job_name != NULL ? restore->job_name : restore->manifest.spec.name;
}

/* ==== latest ==== */

/* True if `f` is passed over. Two kinds of snapshot are restored only if they are asked for by id:
 * a snapshot with results that are not finite, and a snapshot that no trusted key has signed. */
static bool pass_over(struct coord_restore *restore, const struct found_snapshot *f)
{
    const struct manifest *m = &f->manifest;
    char tensors[CAIRN_RESULTS_BYTES];
    struct sentence text, why;
    if (m->nonfinite.nonfinite != 0) {
        results_list(&m->nonfinite, &m->spec, tensors);
        sentence_set(&text,
                     "%s, is damaged: it has a non-finite result in %" PRIu64 " elements: %s",
                     f->place.id, m->nonfinite.nonfinite, tensors);
    } else if (manifest_accept(m, &restore->ring, restore->waiver, &why) != CAIRN_OK) {
        sentence_set(&text, "%s, is not trusted: %s", f->place.id, why.text);
    } else {
        return false;
    }
    log_warn("job %s: passed over: %s", m->spec.name, text.text);
    if (restore->latest.passed.text[0] == '\0') restore->latest.passed = text;
    return true;
}

/* Notes that `f` is passed over, because the job went back to an earlier snapshot, or because another job
 * of that name saved `f`. Only the first snapshot noted, which is the newest, is reported. */
static void pass_left(struct coord_restore *restore, const struct found_snapshot *f)
{
    if (restore->latest.passed.text[0] != '\0') return;
    sentence_set(&restore->latest.passed,
                 "%s, is not of the present job's past: the job went back behind it, or began anew",
                 f->place.id);
    log_info("job %s: passed over: %s", f->manifest.spec.name, restore->latest.passed.text);
}

/* Notes that the newest snapshot whose manifest cannot be read is passed over, if the restore might have
 * taken it, and `next` is older, or NULL, because there is none. */
static void pass_unread(struct coord_restore *restore, const struct coord_found *found,
                        const struct found_snapshot *next)
{
    const struct snapshot_place *place = &found->damaged;
    if (place->id[0] == '\0' || restore->latest.passed.text[0] != '\0' ||
        version_compare(place->version, restore->latest.newest) > 0 ||
        !snapshot_place_behind(place, &restore->latest.behind) ||
        (next != NULL && !snapshot_place_behind(&next->place, place)))
        return;
    sentence_set(&restore->latest.passed, "%s, is damaged: %s", place->id,
                 sentence_brief(found->damage.text, 600).text);
    log_warn("job %s: passed over: %s", restore->job_name, restore->latest.passed.text);
}

static struct found_snapshot *choose_latest(struct coord_restore *restore,
                                            const struct coord_found *found)
{
    for (size_t i = 0; i < found->count; i++) {
        struct found_snapshot *f = &found->list[i];
        pass_unread(restore, found, f);
        if (f->is_left) pass_left(restore, f);
        if (f->is_left || version_compare(f->place.version, restore->latest.newest) > 0 ||
            !snapshot_place_behind(&f->place, &restore->latest.behind))
            continue;
        if (!pass_over(restore, f)) return f;
    }
    pass_unread(restore, found, NULL);
    return NULL;
}

/* Finds the folder of the newest snapshot, for a restore that has no folder yet. Runs on another
 * thread. */
static void restore_find_latest(struct coord_restore *restore)
{
    struct coord_found found;
    const char *job = restore->job_name;
    restore->steps.status = coord_find_snapshots(restore->steps.cluster, job, NULL, &found,
                                                 &restore->steps.why);
    if (restore->latest.has_origin)
        find_line(&found, &restore->latest.origin, &restore->latest.turns);
    struct found_snapshot *chosen = choose_latest(restore, &found);
    if (restore->steps.status == CAIRN_OK && chosen == NULL) {
        restore->latest.none_found = true;
        restore->steps.status = fail_with(&restore->steps.why, CAIRN_ERR_NOT_FOUND,
                                          "there is no whole snapshot of job %s", job);
        if (restore->latest.passed.text[0] != '\0')
            sentence_add(&restore->steps.why,
                         " that may be taken unasked; `cairn snapshot restore %s ID` takes "
                         "one by its id; the newest, %s",
                         job, restore->latest.passed.text);
    } else if (restore->steps.status == CAIRN_OK) {
        restore->folder = chosen->folder; // ownership moves
        chosen->folder = NULL;
        restore->latest.behind = chosen->place;
    }
    coord_found_release(&found);
}

/* Returns the place of a snapshot from its folder. The folder may no longer have a manifest. */
static struct snapshot_place place_of(const char *folder)
{
    const char *slash = strrchr(folder, '/');
    struct snapshot_place place = { .id = "" };
    snprintf(place.id, sizeof place.id, "%s", slash != NULL ? slash + 1 : folder);
    if (!snapshot_id_parse(place.id, &place.version.generation, &place.version.step))
        place.id[0] = '\0';
    return place;
}

/* Called when a snapshot could not be read, as restore->steps.why says. If the snapshot was asked for by
 * its id and is damaged, finds the newest snapshot that is older. With `fallback`, this snapshot
 * becomes restore->folder and is tried next, and the function returns true. Otherwise its id is
 * added to restore->steps.why. */
static bool restore_fall_back(struct coord_restore *restore)
{
    struct sentence text = restore->steps.why, passed = restore->latest.passed;
    const cairn_status status = restore->steps.status;
    char *folder = restore->folder;
    uint64_t bytes;
    if (!restore->is_stored || !coord_restore_is_damage(status) ||
        storage_of(folder)->stat(folder, "", &bytes, NULL) == CAIRN_ERR_NOT_FOUND)
        // a mistyped id is no damage
        return false;
    const struct snapshot_place place = place_of(folder);
    if (passed.text[0] == '\0')
        sentence_set(&passed, "%s, is damaged: %s", place.id, sentence_brief(text.text, 600).text);
    restore->latest.behind = place;
    restore->latest.newest = place.version;
    restore->folder = NULL;
    restore_find_latest(restore);
    restore->latest.passed = passed; // only the newest snapshot that was passed over is reported
    const bool found = restore->steps.status == CAIRN_OK;
    if (found && restore->fallback) {
        log_warn("job %s: passed over: %s", restore->job_name, passed.text);
        free(folder);
        return true;
    }
    restore->steps.status = fail_with(
        &restore->steps.why, status, "%s; %s%s%s", sentence_brief(text.text, 1000).text,
        found ? "--fallback takes " : "there is no older one of the job to fall back on",
        found ? restore->latest.behind.id : "", found ? ", the newest that is older" : "");
    restore->latest.none_found = false;
    free(restore->folder);
    restore->folder = folder;
    return false;
}

void coord_restore_passed_over(const struct coord_restore *restore, const struct sentence *damaged)
{
    struct coord_job *job = coord_job_by_id(restore->steps.cluster, restore->job_id);
    if (job == NULL || damaged->text[0] == '\0') return;
    sentence_set(&job->snapshots.passed_over, "%s was restored; the newest snapshot, %s",
                 restore->latest.behind.id, damaged->text);
}

/* ==== proof ==== */

static cairn_status compare_roots(struct coord_restore *restore, const char *what)
{
    const struct manifest *m = &restore->manifest;
    struct hash root;
    double loss_scale;
    char has[2 * CAIRN_HASH_BYTES + 1], says[2 * CAIRN_HASH_BYTES + 1];
    CAIRN_TRY(coord_content_root(m, &restore->digests, &root, &loss_scale, &restore->steps.why));
    if (memcmp(root.byte, m->content_root, sizeof root.byte) == 0) return CAIRN_OK;
    sodium_bin2hex(has, sizeof has, root.byte, sizeof root.byte);
    sodium_bin2hex(says, sizeof says, m->content_root, sizeof m->content_root);
    return fail_with(&restore->steps.why, CAIRN_ERR_CHECKSUM,
                     "%s the content root %s, the manifest says %s: files or manifest were "
                     "changed since they were saved; use another snapshot",
                     what, has, says);
}

/* The context of hash_range, which several threads call with what they have read. */
struct proof {
    struct coord_restore *restore;
    pthread_mutex_t mutex; /* guards the restore's digests */
};

static cairn_status hash_range(void *context, uint32_t thread, const struct sweep_range *range,
                               const void *elems, struct sentence *why)
{
    struct proof *proof = context;
    const struct job_spec_data *spec = &proof->restore->manifest.spec;
    const struct geometry g = geometry_of(&spec->tensors[range->tensor].shape);
    struct hash_tree tree;
    (void)thread;
    tree_init(&tree, range->first_leaf);
    backend_hash_leaves(backend_host(), elems, spec_plane_dtype(spec, range->tensor, range->plane),
                        &g, range->leaf_count, &tree);
    pthread_mutex_lock(&proof->mutex);
    const cairn_status status = coord_digests_add(&proof->restore->digests, range->tensor,
                                                  (enum plane)range->plane, &tree, why);
    pthread_mutex_unlock(&proof->mutex);
    return status;
}

/* Adds all ranges that the files hold. */
static cairn_status add_all(const struct job_spec_data *spec, struct sweep_ranges *ranges,
                            struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    for (uint32_t t = 0; t < spec->tensor_count; t++) {
        const struct geometry g = geometry_of(&spec->tensors[t].shape);
        for (uint32_t p = 1; p < CAIRN_PLANE_COUNT && status == CAIRN_OK; p++) {
            const struct sweep_range whole = { .tensor = t,
                                               .plane = p,
                                               .leaf_count = g.leaf_count };
            if (spec_planes(spec, t) & (1u << p))
                status = sweep_ranges_add(ranges, &g, dtype_size((int)spec_plane_dtype(spec, t, p)),
                                          &whole, why);
        }
    }
    return status;
}

static cairn_status hash_files(struct coord_restore *restore, const struct snapshot *snapshot)
{
    struct proof proof = { .restore = restore };
    struct sweep_ranges ranges = { 0 };
    const struct sweep sweep = { .snapshot = snapshot, .take = hash_range, .context = &proof };
    pthread_mutex_init(&proof.mutex, NULL);
    cairn_status status = add_all(&restore->manifest.spec, &ranges, &restore->steps.why);
    if (status == CAIRN_OK) status = snapshot_sweep(&sweep, &ranges, &restore->steps.why);
    sweep_ranges_release(&ranges);
    pthread_mutex_destroy(&proof.mutex);
    return status;
}

static void find_damage(void *of_restore)
{
    struct coord_restore *restore = of_restore;
    struct snapshot snapshot;
    struct sentence why;
    cairn_status status = snapshot_open(restore->folder, &snapshot, &why);
    if (status == CAIRN_OK) {
        status = snapshot_verify(&snapshot, NULL, &why);
        snapshot_close(&snapshot);
    }
    if (!coord_restore_is_damage(status)) return;
    restore->steps.status = status;
    restore->steps.why = why;
}

/* Reads the snapshot's folder, and nothing else, by `read`, which sets restore->steps. */
static void read_folder(struct coord_restore *restore, void (*read)(void *of_restore))
{
    struct sentence why;
    const cairn_status ran = confine_run_in(restore->folder, read, restore, &why);
    if (ran == CAIRN_OK) return;
    restore->steps.status = ran;
    restore->steps.why = why;
}

/* If the content root differs, finds the damaged file and block, should the files be the cause. */
static void judge_proof(struct coord_restore *restore, const char *what)
{
    if (restore->steps.status != CAIRN_OK) return;
    restore->steps.status = compare_roots(restore, what);
    if (restore->steps.status == CAIRN_ERR_CHECKSUM) read_folder(restore, find_damage);
}

static void hash_folder(void *of_restore)
{
    struct coord_restore *restore = of_restore;
    struct snapshot snapshot;
    restore->steps.status = snapshot_open(restore->folder, &snapshot, &restore->steps.why);
    if (restore->steps.status != CAIRN_OK) return;
    restore->steps.status = hash_files(restore, &snapshot);
    snapshot_close(&snapshot);
}

/* Computes the content root of the files, and compares it with the manifest's content root. Runs on
 * another thread. */
static void restore_prove_files(struct coord_restore *restore)
{
    read_folder(restore, hash_folder);
    judge_proof(restore, "its files have");
    coord_digests_release(&restore->digests);
}

cairn_status coord_restore_prove_loaded(struct coord_steps *steps, struct sentence *why)
{
    (void)why; // the same as steps->why
    judge_proof((struct coord_restore *)steps, "the state the shards loaded has");
    return steps->status;
}

/* ==== check ==== */

/* Reads a snapshot for a restore on another thread, before anything is changed: manifest, signature,
 * files. If the snapshot is damaged and a fallback is allowed, reads the next older snapshot. */

/* True if a file has one checksum for the whole file. Then the whole file has to be read in any
 * case, so the snapshot is verified before it is loaded. A snapshot is also verified if the restore
 * may fall back on another one. Otherwise the content root is enough, because it detects every
 * changed bit. The root is computed from the state that the shards have loaded, and before that
 * from the files, if a job is given up for the snapshot. The block checksums are then read only to
 * find the damaged file. */
static bool has_whole_sums(const struct manifest *m)
{
    for (size_t i = 0; i < m->file_count; i++)
        if (m->files[i].is_whole) return true;
    return false;
}

/* Judges by its signature whether the snapshot may be restored. Any thread may call this.
 * CAIRN_ERR_REFUSED, CAIRN_ERR_CHECKSUM. */
static cairn_status restore_judge_signature(const struct coord_restore *restore,
                                            const struct manifest *manifest, const char *folder,
                                            struct sentence *why)
{
    struct sentence said = { "" };
    const cairn_status status = manifest_accept(manifest, &restore->ring, restore->waiver, &said);
    return status == CAIRN_OK ? CAIRN_OK : fail_with(why, status, "%s: %s", folder, said.text);
}

static void judge_folder(void *of_restore)
{
    struct coord_restore *restore = of_restore;
    struct snapshot snapshot;
    restore->steps.status = snapshot_open(restore->folder, &snapshot, &restore->steps.why);
    if (restore->steps.status != CAIRN_OK) return;
    restore->steps.status = restore_judge_signature(restore, &snapshot.manifest, restore->folder,
                                                    &restore->steps.why);
    const bool is_read = restore->fallback || has_whole_sums(&snapshot.manifest);
    if (restore->steps.status == CAIRN_OK && !restore->plan && is_read)
        restore->steps.status = snapshot_verify(&snapshot, NULL, &restore->steps.why);
    if (restore->steps.status == CAIRN_OK) {
        restore->manifest = snapshot.manifest; // ownership moves
        manifest_init(&snapshot.manifest);
    }
    snapshot_close(&snapshot);
}

/* Checks the snapshot in restore->folder, and replaces this path by a path without links. */
static void check_folder(struct coord_restore *restore)
{
    char *folder;
    restore->steps.status =
        storage_of(restore->folder)->resolve(restore->folder, &folder, &restore->steps.why);
    if (restore->steps.status != CAIRN_OK) return;
    free(restore->folder);
    restore->folder = folder;
    read_folder(restore, judge_folder);
}

static void check_in_turn(struct coord_restore *restore)
{
    do check_folder(restore);
    while (restore->steps.status != CAIRN_OK && restore_fall_back(restore));
}

cairn_status coord_restore_prove(struct coord_steps *steps, struct sentence *why)
{
    struct coord_restore *restore = (struct coord_restore *)steps;
    (void)why; // the same as steps->why
    while (steps->status == CAIRN_OK) {
        restore_prove_files(restore);
        if (steps->status == CAIRN_OK || !restore_fall_back(restore)) break;
        manifest_release(&restore->manifest);
        check_in_turn(restore);
    }
    return steps->status;
}

/* Looks at the other snapshots in the folder of the job that will be created. If they cannot be
 * listed, the new generation need not be above their generations. */
static void look_around(struct coord_restore *restore)
{
    const char *root = restore->steps.cluster->storage.path;
    const char *job = coord_restore_job_name(restore);
    const char *id = strrchr(restore->folder, '/');
    struct sentence why;
    if (snapshot_last_generation(root, job, &restore->generation.last, &why) != CAIRN_OK)
        log_warn("the past generations of job %s are not known: %s", job, why.text);
    restore->is_its_own = id != NULL && strcmp(restore->manifest.spec.name, job) == 0 &&
                          snapshot_committed(root, job, id + 1, &why) == CAIRN_OK;
}

cairn_status coord_restore_check(struct coord_steps *steps, struct sentence *why)
{
    struct coord_restore *restore = (struct coord_restore *)steps;
    if (restore->is_stored) steps->status = coord_storage_seen(steps->cluster, why);
    if (restore->folder == NULL) restore_find_latest(restore);
    if (steps->status == CAIRN_OK) check_in_turn(restore);
    if (steps->status == CAIRN_OK) look_around(restore);
    return steps->status;
}

void coord_restore_warn(const struct coord_restore *restore)
{
    struct sentence what;
    if (manifest_trust(&restore->manifest, &restore->ring, &what) != CAIRN_TRUST_SIGNED)
        log_warn("%s is restored, and is %s", restore->folder, what.text);
    if (restore->manifest.unsealed)
        log_warn("the manifest of %s is of an earlier version, without a hash over itself: only "
                 "its content root can tell whether it was changed",
                 restore->folder);
}
