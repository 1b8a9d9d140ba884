/* The job that is there goes, and the one of the snapshot is made on the shards, in a new generation. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cut.h"
#include "server/coordinator/cut/cuts.h"
#include "server/coordinator/job/jobs.h"
#include "server/coordinator/job/settings.h"
#include "server/coordinator/restore/restore.h"
#include "server/coordinator/round/groups.h"

uint64_t cairn_cluster_restore_next_generation(const struct cairn_cluster_restore *restore,
                                               const struct cairn_cluster_job *old)
{
    uint64_t newest = restore->manifest.generation;
    if (restore->last_generation > newest) newest = restore->last_generation;
    if (old == NULL) return newest + 1;
    const uint64_t now = cairn_cluster_job_version(old).generation;
    if (now > newest) newest = now;
    if (old->reserved.generation > newest) newest = old->reserved.generation;
    return newest + 1;
}

/* Keeps what outlives the former job: its number, its epochs and rounds, and that no generation
 * comes twice. */
static void inherit(struct cairn_cluster_job *body, const struct cairn_cluster_job *old,
                    const struct cairn_cluster_restore *restore)
{
    body->generation = restore->generation;
    body->base_step = restore->manifest.step;
    body->origin.generation = restore->generation;
    if (restore->is_its_own)
        body->origin.from = (struct cairn_version) { restore->manifest.generation,
                                                     restore->manifest.step };
    body->restoring = true;
    if (old == NULL) return;
    body->id = old->id;
    body->epoch = old->epoch;
    body->reserved.round = old->reserved.round;
    body->reserved.generation = body->generation;
    body->stored = old->stored;
    body->members.pause.ends_ms = old->members.pause.ends_ms;
    memcpy(body->members.pause.what, old->members.pause.what, sizeof body->members.pause.what);
    if (restore->latest.of_job == 0) return;
    body->loss.recovery = old->loss.recovery;
    body->loss.recovery.waited = true;
}

static void remove_old(struct cairn_cluster_job *old, const struct cairn_cluster_job *body,
                       const char *folder)
{
    struct cairn_sentence text;
    cairn_sentence_set(
        &text, "job %s was restored from %s, of step %" PRIu64 ": close it and open it again",
        old->spec.name, folder, body->base_step);
    while (old->members.list != NULL)
        cairn_cluster_member_expel(old->members.list, CAIRN_ERR_ROLLED_BACK, text.text);
    CAIRN_EACH_SHARD (old, i) {
        struct cairn_cluster_seat *seat = old->shards[i].seat;
        if (!cairn_cluster_job_has_seat(body, seat))
            cairn_cluster_job_send_drop(old->cluster, seat, old->id);
    }
    cairn_cluster_job_unlink(old);
    cairn_cluster_job_free(old);
}

cairn_status cairn_cluster_restore_judge_replace(const struct cairn_cluster_restore *restore,
                                                 const struct cairn_cluster_job *old,
                                                 struct cairn_sentence *why)
{
    const struct cairn_manifest *m = &restore->manifest;
    if (restore->latest.of_job != 0 &&
        (old == NULL || old->id != restore->latest.of_job || old->state != CAIRN_CLUSTER_JOB_LOST))
        return cairn_fail(why, CAIRN_ERR_CANCELED,
                          "job %s was lost, and is not any more: it needs no restore",
                          m->spec.name);
    if (restore->latest.ended != NULL && restore->latest.of_job == 0 && old != NULL &&
        old->state != CAIRN_CLUSTER_JOB_LOST)
        return cairn_fail(why, CAIRN_ERR_EXISTS, "job %s is there again", old->spec.name);
    if (old != NULL && old->snapshots.cut != NULL) return cairn_cluster_cut_refuse(old, why);
    if (old != NULL && (old->extension.body != NULL || old->amends.amending != NULL ||
                        old->state == CAIRN_CLUSTER_JOB_CREATING)) {
        return cairn_fail(why, CAIRN_ERR_BUSY, "job %s is being made, amended or restored",
                          m->spec.name);
    }
    if (old != NULL && old->loss.behind)
        return cairn_fail(why, CAIRN_ERR_NOT_READY, "job %s is %s", old->spec.name,
                          old->loss.why.text);
    if (cairn_cluster_job_is_strange(restore->cluster, m->spec.name, why))
        return CAIRN_ERR_NOT_READY;
    if (cairn_cluster_snapshot_removing(restore->cluster, restore->folder))
        return cairn_fail(why, CAIRN_ERR_BUSY, "%s is being removed", restore->folder);
    return cairn_cluster_judge_workers(restore->cluster, cairn_cluster_restore_spec(restore), why);
}

/* Every shard will tell of what it has loaded. */
static cairn_status await_parts(struct cairn_cluster_restore *restore,
                                const struct cairn_cluster_job *body, struct cairn_sentence *why)
{
    restore->parts = malloc(body->layout->shard_count);
    if (restore->parts == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    memset(restore->parts, CAIRN_PART_AWAITED, body->layout->shard_count);
    restore->number = cairn_cluster_cut_number();
    return CAIRN_OK;
}

cairn_status cairn_cluster_restore_replace(struct cairn_cluster_restore *restore,
                                           struct cairn_cluster_job *old,
                                           cairn_cluster_gather_fn on_made,
                                           struct cairn_sentence *why)
{
    struct cairn_manifest *m = &restore->manifest;
    const struct cairn_job_spec_data *spec = cairn_cluster_restore_spec(restore);
    struct cairn_decision last = { .kind = CAIRN_DECISION_NONE,
                                   .version_after = { restore->generation, m->step },
                                   .payload = m->payload,
                                   .payload_bytes = m->payload_bytes };
    uint8_t *payload;
    cairn_status status = cairn_cluster_settings_payload(&m->spec, spec, &last, &payload, why);
    if (status != CAIRN_OK) return status;
    struct cairn_cluster_job *body;
    status = cairn_cluster_draft_take(&restore->draft, &body, why);
    if (status != CAIRN_OK) {
        free(payload);
        return CAIRN_ERR_NOT_READY;
    }
    if (old != NULL) cairn_cluster_job_keep_pauses(old);
    inherit(body, old, restore);
    status = cairn_cluster_groups_restored(body, &m->reduce_groups);
    if (status == CAIRN_OK) status = await_parts(restore, body, why);
    if (status != CAIRN_OK) {
        free(payload);
        cairn_cluster_job_free(body);
        return status;
    }
    const struct cairn_cluster_job_load load = { .snapshot_path = restore->folder,
                                                 .digest = restore->number,
                                                 .version = { body->generation, m->step },
                                                 .last = &last };
    if (old != NULL) {
        cairn_cluster_restore_replaces(restore, old);
        remove_old(old, body, restore->folder);
    }
    cairn_cluster_halts_restored(body, &m->nonfinite);
    cairn_cluster_job_link(body);
    restore->job_id = body->id;
    struct cairn_cluster_gather *gather = cairn_cluster_gather_open(body->cluster, on_made,
                                                                    restore);
    if (gather == NULL) {
        free(payload);
        cairn_cluster_job_lose(body, false, "no memory to restore it");
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    }
    cairn_cluster_job_send_create(body, &load, gather);
    free(payload);
    cairn_cluster_gather_start(gather);
    return CAIRN_OK;
}
