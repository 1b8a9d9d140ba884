/* Reads for a restore, on other threads: manifest, signature and files of the snapshot that was asked for,
 * or of the newest. Proves that files, or the state that shards have loaded, come to the content root. */
#include <inttypes.h>
#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/restore.h"

const char *coord_restore_job_name(const struct coord_restore *restore)
{
    return restore->job_name != NULL ? restore->job_name : restore->manifest.spec.name;
}

/* ==== latest ==== */

/* One with results that are not finite, or of nobody that is trusted, is restored by its id alone. */
static bool pass_over(struct coord_restore *restore, const struct found_snapshot *f)
{
    const struct manifest *m = &f->manifest;
    char tensors[CAIRN_RESULTS_BYTES];
    struct sentence text, why;
    if (m->nonfinite.nonfinite != 0) {
        results_list(&m->nonfinite, &m->spec, tensors);
        sentence_set(&text, "%s, is damaged: of %" PRIu64 " elements a result is not finite: %s",
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

/* The job went back behind it, or it is of another job that had the name. Said of the newest. */
static void pass_left(struct coord_restore *restore, const struct found_snapshot *f)
{
    if (restore->latest.passed.text[0] != '\0') return;
    sentence_set(&restore->latest.passed,
                 "%s, is not of the present job's past: it went back behind that, or began "
                 "anew",
                 f->place.id);
    log_info("job %s: passed over: %s", f->manifest.spec.name, restore->latest.passed.text);
}

static struct found_snapshot *choose_latest(struct coord_restore *restore,
                                            const struct coord_found *found)
{
    for (size_t i = 0; i < found->count; i++) {
        struct found_snapshot *f = &found->list[i];
        if (f->is_left) pass_left(restore, f);
        if (f->is_left || version_compare(f->place.version, restore->latest.newest) > 0 ||
            !snapshot_place_behind(&f->place, &restore->latest.behind))
            continue;
        if (!pass_over(restore, f)) return f;
    }
    return NULL;
}

/* On another thread, the folder of a restore that has none. */
static void restore_find_latest(struct coord_restore *restore)
{
    struct coord_found found;
    const char *job = restore->job_name;
    restore->status = coord_find_snapshots(restore->cluster, job, NULL, &found, &restore->why);
    if (restore->latest.has_origin) find_line(&found, &restore->latest.origin);
    struct found_snapshot *chosen = choose_latest(restore, &found);
    if (restore->status == CAIRN_OK && chosen == NULL) {
        restore->latest.none_found = true;
        restore->status = fail_with(&restore->why, CAIRN_ERR_NOT_FOUND,
                                    "there is no whole snapshot of job %s", job);
        if (restore->latest.passed.text[0] != '\0')
            sentence_add(&restore->why,
                         " that may be taken unasked; `cairn snapshot restore %s ID` takes "
                         "one by its id; the newest, %s",
                         job, restore->latest.passed.text);
    } else if (restore->status == CAIRN_OK) {
        restore->folder = chosen->folder; // moves
        chosen->folder = NULL;
        restore->latest.behind = chosen->place;
    }
    coord_found_release(&found);
}

/* The place of a folder, which may have no manifest any more. */
static struct snapshot_place place_of(const char *folder)
{
    const char *slash = strrchr(folder, '/');
    struct snapshot_place place = { .id = "" };
    snprintf(place.id, sizeof place.id, "%s", slash != NULL ? slash + 1 : folder);
    if (!snapshot_id_parse(place.id, &place.version.generation, &place.version.step))
        place.id[0] = '\0';
    return place;
}

/* The one that was asked for by its id is damaged, as restore->why says: with `fallback` the newest that is
 * older is to be tried in its place, which is then restore->folder (true); else `why` names it. */
static bool restore_fall_back(struct coord_restore *restore)
{
    struct sentence text = restore->why, passed = restore->latest.passed;
    const cairn_status status = restore->status;
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
    restore->latest.passed = passed; // the newest
    const bool found = restore->status == CAIRN_OK;
    if (found && restore->fallback) {
        log_warn("job %s: passed over: %s", restore->job_name, passed.text);
        free(folder);
        return true;
    }
    restore->status = fail_with(
        &restore->why, status, "%s; %s%s%s", sentence_brief(text.text, 1000).text,
        found ? "--fallback takes " : "there is no older one of the job to fall back on",
        found ? restore->latest.behind.id : "", found ? ", the newest that is older" : "");
    restore->latest.none_found = false;
    free(restore->folder);
    restore->folder = folder;
    return false;
}

void coord_restore_passed_over(const struct coord_restore *restore, const struct sentence *damaged)
{
    struct coord_job *job = coord_job_by_id(restore->cluster, restore->job_id);
    if (job == NULL || damaged->text[0] == '\0') return;
    sentence_set(&job->snapshots.passed_over, "%s was restored; the newest snapshot, %s",
                 restore->latest.behind.id, damaged->text);
}

bool coord_restore_is_damage(cairn_status status)
{
    return status == CAIRN_ERR_CHECKSUM || status == CAIRN_ERR_CORRUPT ||
           status == CAIRN_ERR_MALFORMED || status == CAIRN_ERR_VERSION ||
           status == CAIRN_ERR_NOT_FOUND;
}

/* ==== proof ==== */

static cairn_status compare_roots(struct coord_restore *restore, const char *what)
{
    const struct manifest *m = &restore->manifest;
    struct hash root;
    double loss_scale;
    char has[2 * CAIRN_HASH_BYTES + 1], says[2 * CAIRN_HASH_BYTES + 1];
    CAIRN_TRY(coord_content_root(m, &restore->digests, &root, &loss_scale, &restore->why));
    if (memcmp(root.byte, m->content_root, sizeof root.byte) == 0) return CAIRN_OK;
    sodium_bin2hex(has, sizeof has, root.byte, sizeof root.byte);
    sodium_bin2hex(says, sizeof says, m->content_root, sizeof m->content_root);
    return fail_with(&restore->why, CAIRN_ERR_CHECKSUM,
                     "%s the content root %s, the manifest says %s: files or manifest were "
                     "changed since they were saved; use another snapshot",
                     what, has, says);
}

/* The hashes of files that are being read, by several threads. */
struct proof {
    struct coord_restore *restore;
    pthread_mutex_t mutex; /* of its digests */
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

/* All that the files hold. */
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

static cairn_status hash_files(struct coord_restore *restore, const struct cairn_snapshot *snapshot)
{
    struct proof proof = { .restore = restore };
    struct sweep_ranges ranges = { 0 };
    const struct sweep sweep = { .snapshot = snapshot, .take = hash_range, .context = &proof };
    pthread_mutex_init(&proof.mutex, NULL);
    cairn_status status = add_all(&restore->manifest.spec, &ranges, &restore->why);
    if (status == CAIRN_OK) status = snapshot_sweep(&sweep, &ranges, &restore->why);
    sweep_ranges_release(&ranges);
    pthread_mutex_destroy(&proof.mutex);
    return status;
}

/* The content root is another one: which file and block are to blame, if it is they. */
static void find_damage(struct coord_restore *restore)
{
    struct cairn_snapshot snapshot;
    struct sentence why;
    cairn_status status = snapshot_open(restore->folder, &snapshot, &why);
    if (status == CAIRN_OK) {
        status = snapshot_verify(&snapshot, NULL, &why);
        snapshot_close(&snapshot);
    }
    if (!coord_restore_is_damage(status)) return;
    restore->status = status;
    restore->why = why;
}

static void judge_proof(struct coord_restore *restore, const char *what)
{
    if (restore->status != CAIRN_OK) return;
    restore->status = compare_roots(restore, what);
    if (restore->status == CAIRN_ERR_CHECKSUM) find_damage(restore);
}

/* On another thread: the content root of the files, which were verified, against the manifest's. */
static void restore_prove_files(struct coord_work *work)
{
    struct coord_restore *restore = (struct coord_restore *)work;
    struct cairn_snapshot snapshot;
    restore->status = snapshot_open(restore->folder, &snapshot, &restore->why);
    if (restore->status == CAIRN_OK) {
        restore->status = hash_files(restore, &snapshot);
        snapshot_close(&snapshot);
    }
    judge_proof(restore, "its files have");
    coord_digests_release(&restore->digests);
}

void coord_restore_prove_loaded(struct coord_work *work)
{
    struct coord_restore *restore = (struct coord_restore *)work;
    judge_proof(restore, "what the shards have loaded has");
}

/* ==== check ==== */

/* Reads a snapshot for a restore on another thread, before anything is touched: manifest,
 * signature, files. If it is damaged and may give way, the next older snapshot is read. */

/* A snapshot is read before it is loaded only if a file has one checksum over all of it, since
 * somebody has to read all of it then, or if the snapshot may give way to another. Otherwise the
 * shards hash what they load, or, where a job is given up for the snapshot, the files are proved
 * first: the content root tells of every bit. Checksums are then asked only to find whose fault
 * a damage is. */
static bool has_whole_sums(const struct manifest *m)
{
    for (size_t i = 0; i < m->file_count; i++)
        if (m->files[i].is_whole) return true;
    return false;
}

/* May it be taken, by who signed it? Any thread. CAIRN_ERR_REFUSED, CAIRN_ERR_CHECKSUM. */
static cairn_status restore_judge_signature(const struct coord_restore *restore,
                                            const struct manifest *manifest, const char *folder,
                                            struct sentence *why)
{
    struct sentence said = { "" };
    const cairn_status status = manifest_accept(manifest, &restore->ring, restore->waiver, &said);
    return status == CAIRN_OK ? CAIRN_OK : fail_with(why, status, "%s: %s", folder, said.text);
}

/* Of restore->folder; which is then without links. */
static void check_folder(struct coord_restore *restore)
{
    struct cairn_snapshot snapshot;
    char *folder;
    restore->status = storage_of(restore->folder)->resolve(restore->folder, &folder, &restore->why);
    if (restore->status != CAIRN_OK) return;
    free(restore->folder);
    restore->folder = folder;
    restore->status = snapshot_open(restore->folder, &snapshot, &restore->why);
    if (restore->status != CAIRN_OK) return;
    restore->status = restore_judge_signature(restore, &snapshot.manifest, restore->folder,
                                              &restore->why);
    const bool is_read = restore->fallback || has_whole_sums(&snapshot.manifest);
    if (restore->status == CAIRN_OK && !restore->plan && is_read)
        restore->status = snapshot_verify(&snapshot, NULL, &restore->why);
    if (restore->status == CAIRN_OK) {
        restore->manifest = snapshot.manifest; // moves
        manifest_init(&snapshot.manifest);
    }
    snapshot_close(&snapshot);
}

static void check_in_turn(struct coord_restore *restore)
{
    do check_folder(restore);
    while (restore->status != CAIRN_OK && restore_fall_back(restore));
}

void coord_restore_prove(struct coord_work *work)
{
    struct coord_restore *restore = (struct coord_restore *)work;
    while (restore->status == CAIRN_OK) {
        restore_prove_files(work);
        if (restore->status == CAIRN_OK || !restore_fall_back(restore)) return;
        manifest_release(&restore->manifest);
        check_in_turn(restore);
    }
}

/* Looks at the other snapshots in the folder of the job to be made. If they cannot be listed,
 * the new generation follows the manifest's alone. */
static void look_around(struct coord_restore *restore)
{
    const char *root = restore->cluster->storage.path;
    const char *job = coord_restore_job_name(restore);
    const char *id = strrchr(restore->folder, '/');
    struct sentence why;
    if (snapshot_last_generation(root, job, &restore->last_generation, &why) != CAIRN_OK)
        log_warn("which generations of job %s there were is not known: %s", job, why.text);
    restore->is_its_own = id != NULL && strcmp(restore->manifest.spec.name, job) == 0 &&
                          snapshot_committed(root, job, id + 1, &why) == CAIRN_OK;
}

void coord_restore_check(struct coord_work *work)
{
    struct coord_restore *restore = (struct coord_restore *)work;
    if (restore->is_stored) restore->status = coord_storage_seen(restore->cluster, &restore->why);
    if (restore->folder == NULL) restore_find_latest(restore);
    if (restore->status == CAIRN_OK) check_in_turn(restore);
    if (restore->status == CAIRN_OK) look_around(restore);
}

void coord_restore_warn(const struct coord_restore *restore)
{
    struct sentence what;
    if (manifest_trust(&restore->manifest, &restore->ring, &what) != CAIRN_TRUST_SIGNED)
        log_warn("%s is restored, and is %s", restore->folder, what.text);
    if (restore->manifest.unsealed)
        log_warn("the manifest of %s is of a former version, without a hash over itself: "
                 "whether it was changed cannot be told but by its content root",
                 restore->folder);
}
