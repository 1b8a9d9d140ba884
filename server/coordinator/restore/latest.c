/* A restore of the newest snapshot of a job, which no admin asked for: a worker resumes (resume.c), or the
 * job has lost a part (recovery.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/restore/restore.h"
#include "server/coordinator/snapshot/find.h"

/* One with results that are not finite, or of nobody that is trusted, is restored by its id alone. */
static bool pass_over(struct cairn_cluster_restore *restore, const struct cairn_found_snapshot *f)
{
    const struct cairn_manifest *m = &f->manifest;
    char tensors[CAIRN_RESULTS_BYTES];
    struct cairn_sentence text, why;
    if (m->nonfinite.nonfinite != 0) {
        cairn_results_list(&m->nonfinite, &m->spec, tensors);
        cairn_sentence_set(&text, "%s, is damaged: of %llu elements a result is not finite: %s",
                           f->place.id, (unsigned long long)m->nonfinite.nonfinite, tensors);
    } else if (cairn_manifest_accept(m, &restore->ring, restore->waiver, &why) != CAIRN_OK) {
        cairn_sentence_set(&text, "%s, is not trusted: %s", f->place.id, why.text);
    } else {
        return false;
    }
    cairn_log_warn("job %s: passed over: %s", m->spec.name, text.text);
    if (restore->latest.passed.text[0] == '\0') restore->latest.passed = text;
    return true;
}

/* The job went back behind it, or it is of another job that had the name. Said of the newest. */
static void pass_left(struct cairn_cluster_restore *restore, const struct cairn_found_snapshot *f)
{
    if (restore->latest.passed.text[0] != '\0') return;
    cairn_sentence_set(&restore->latest.passed,
                       "%s, is not of the present job's past: it went back behind that, or began "
                       "anew",
                       f->place.id);
    cairn_log_info("job %s: passed over: %s", f->manifest.spec.name, restore->latest.passed.text);
}

static struct cairn_found_snapshot *choose(struct cairn_cluster_restore *restore,
                                           const struct cairn_cluster_found *found)
{
    for (size_t i = 0; i < found->count; i++) {
        struct cairn_found_snapshot *f = &found->list[i];
        if (f->is_left) pass_left(restore, f);
        if (f->is_left || cairn_version_compare(f->place.version, restore->latest.newest) > 0 ||
            !cairn_snapshot_place_behind(&f->place, &restore->latest.behind))
            continue;
        if (!pass_over(restore, f)) return f;
    }
    return NULL;
}

void cairn_cluster_restore_find_latest(struct cairn_cluster_restore *restore)
{
    struct cairn_cluster_found found;
    const char *job = restore->job_name;
    restore->status = cairn_cluster_find_snapshots(restore->cluster, job, NULL, &found,
                                                   &restore->why);
    if (restore->latest.has_origin) cairn_find_line(&found, &restore->latest.origin);
    struct cairn_found_snapshot *chosen = choose(restore, &found);
    if (restore->status == CAIRN_OK && chosen == NULL) {
        restore->latest.none_found = true;
        restore->status = cairn_fail(&restore->why, CAIRN_ERR_NOT_FOUND,
                                     "there is no whole snapshot of job %s", job);
        if (restore->latest.passed.text[0] != '\0')
            cairn_sentence_add(&restore->why,
                               " that may be taken unasked; `cairn snapshot restore %s ID` takes "
                               "one by its id; the newest, %s",
                               job, restore->latest.passed.text);
    } else if (restore->status == CAIRN_OK) {
        restore->folder = chosen->folder; // moves
        chosen->folder = NULL;
        restore->latest.behind = chosen->place;
    }
    cairn_cluster_found_release(&found);
}

/* The place of a folder, which may have no manifest any more. */
static struct cairn_snapshot_place place_of(const char *folder)
{
    const char *slash = strrchr(folder, '/');
    struct cairn_snapshot_place place = { .id = "" };
    snprintf(place.id, sizeof place.id, "%s", slash != NULL ? slash + 1 : folder);
    if (!cairn_snapshot_id_parse(place.id, &place.version.generation, &place.version.step))
        place.id[0] = '\0';
    return place;
}

bool cairn_cluster_restore_fall_back(struct cairn_cluster_restore *restore)
{
    struct cairn_sentence text = restore->why, passed = restore->latest.passed;
    const cairn_status status = restore->status;
    char *folder = restore->folder;
    uint64_t bytes;
    if (!restore->is_stored || !cairn_cluster_restore_is_damage(status) ||
        cairn_storage_of(folder)->stat(folder, "", &bytes, NULL) == CAIRN_ERR_NOT_FOUND)
        // a mistyped id is no damage
        return false;
    const struct cairn_snapshot_place place = place_of(folder);
    if (passed.text[0] == '\0')
        cairn_sentence_set(&passed, "%s, is damaged: %s", place.id,
                           cairn_sentence_brief(text.text, 600).text);
    restore->latest.behind = place;
    restore->latest.newest = place.version;
    restore->folder = NULL;
    cairn_cluster_restore_find_latest(restore);
    restore->latest.passed = passed; // the newest
    const bool found = restore->status == CAIRN_OK;
    if (found && restore->fallback) {
        cairn_log_warn("job %s: passed over: %s", restore->job_name, passed.text);
        free(folder);
        return true;
    }
    restore->status = cairn_fail(
        &restore->why, status, "%s; %s%s%s", cairn_sentence_brief(text.text, 1000).text,
        found ? "--fallback takes " : "there is no older one of the job to fall back on",
        found ? restore->latest.behind.id : "", found ? ", the newest that is older" : "");
    restore->latest.none_found = false;
    free(restore->folder);
    restore->folder = folder;
    return false;
}

void cairn_cluster_restore_say_damaged(const struct cairn_cluster_restore *restore,
                                       const char *text, struct cairn_sentence *out)
{
    cairn_sentence_set(out, "%s, is damaged: %s", restore->latest.behind.id,
                       cairn_sentence_brief(text, 600).text);
}

void cairn_cluster_restore_passed_over(const struct cairn_cluster_restore *restore,
                                       const struct cairn_sentence *damaged)
{
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(restore->cluster, restore->job_id);
    if (job == NULL || damaged->text[0] == '\0') return;
    cairn_sentence_set(&job->snapshots.passed_over, "%s was restored; the newest snapshot, %s",
                       restore->latest.behind.id, damaged->text);
}

bool cairn_cluster_restore_latest(struct cairn_cluster *cluster, const char *job, uint64_t of_job,
                                  const struct cairn_snapshot_place *behind,
                                  cairn_cluster_restored_fn ended)
{
    struct cairn_cluster_restore *restore = cairn_cluster_restore_new(cluster);
    if (restore == NULL) return false;
    const struct cairn_cluster_job *lost = of_job != 0 ? cairn_cluster_job_by_id(cluster, of_job)
                                                       : cairn_cluster_job_find(cluster, job);
    const bool known = of_job != 0 && lost != NULL && !lost->version_unknown;
    const char *trust = cluster->options->snapshots_trust;
    const bool takes_any = trust != NULL && strcmp(trust, "any") == 0;
    restore->waiver = (struct cairn_trust_waiver) { takes_any, takes_any };
    restore->latest.of_job = of_job;
    restore->latest.newest = known ? cairn_cluster_job_version(lost)
                                   : (struct cairn_version) { UINT64_MAX, UINT64_MAX };
    restore->latest.behind = *behind;
    restore->latest.has_origin = lost != NULL;
    if (lost != NULL) restore->latest.origin = lost->origin;
    restore->asked = strdup("");
    restore->job_name = strdup(job);
    if (restore->asked != NULL && restore->job_name != NULL &&
        cairn_cluster_work_start(&restore->work, cluster, NULL, 0)) {
        restore->latest.ended = ended;
        return true;
    }
    cairn_cluster_restore_free(restore);
    return false;
}

bool cairn_cluster_restore_is_damage(cairn_status status)
{
    return status == CAIRN_ERR_CHECKSUM || status == CAIRN_ERR_CORRUPT ||
           status == CAIRN_ERR_MALFORMED || status == CAIRN_ERR_VERSION ||
           status == CAIRN_ERR_NOT_FOUND;
}
