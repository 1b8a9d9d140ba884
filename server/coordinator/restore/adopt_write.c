/* Writes adopted jobs into the store in one transaction, on the store's thread; then the jobs
 * are loaded as after a start, and the shards keep the new identity. See adopt.c. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/plan_job.h"
#include "proto/spec/optimizer.h"
#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cuts.h"
#include "server/coordinator/job/jobs.h"
#include "server/coordinator/restore/adopt_private.h"
#include "server/coordinator/store/store.h"

static void run_write(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    struct cairn_cluster_adoption *adoption = (struct cairn_cluster_adoption *)task;
    (void)item;
    (void)thread;
    struct cairn_stored_key keys[CAIRN_KEYS_MAX];
    char lines[CAIRN_KEYS_MAX][CAIRN_KEY_LINE_BYTES];
    for (size_t i = 0; i < adoption->key_count; i++) {
        const struct cairn_trusted_key *key = &adoption->keys[i];
        cairn_public_key_line(&key->key, lines[i]);
        keys[i] = (struct cairn_stored_key) { lines[i], key->is_own, key->since_unix_s };
    }
    const struct cairn_store_adoptees adoptees = { .jobs = adoption->rows,
                                                   .job_count = adoption->row_count,
                                                   .keys = keys,
                                                   .key_count = adoption->key_count,
                                                   .incarnation = adoption->incarnation };
    adoption->status = cairn_store_adopt(adoption->cluster->store, &adoptees, &adoption->why);
}

/* Replaces what was known of the job, which was older, by its row in the store. Its members
 * connect again. */
static void reload(struct cairn_cluster *cluster, const struct cairn_stored_job *row)
{
    struct cairn_cluster_job *old = cairn_cluster_job_by_id(cluster, row->id);
    struct cairn_sentence why;
    while (old != NULL && old->members.list != NULL) {
        struct cairn_cluster_session *session = old->members.list->session;
        cairn_cluster_member_free(old->members.list);
        if (session->closing) continue;
        session->closing = true;
        cairn_peer_finish(session->peer, CAIRN_ERR_CLOSED, "job %s was adopted", row->name);
    }
    if (old != NULL) {
        cairn_cluster_cut_orphan(old, "it was adopted");
        cairn_cluster_job_unlink(old);
        cairn_cluster_job_free(old);
    }
    const cairn_status status = cairn_cluster_job_load(cluster, row, &why);
    if (status != CAIRN_OK)
        cairn_log_error("job %s is in the store, but was not loaded: %s; start again", row->name,
                        why.text);
}

/* Each shard keeps the new identity, and connects anew. A shard that was silent is not told:
 * nobody looked at what it holds, which may be newer than what was adopted. So it still belongs
 * to its former store, as a shard that is away does. */
static void tell_shards(struct cairn_cluster *cluster)
{
    Cairn__StoreAdopted adopted = CAIRN__STORE_ADOPTED__INIT;
    adopted.store = cluster->identity.id.store;
    adopted.incarnation = cluster->identity.id.incarnation;
    for (struct cairn_cluster_seat *s = cluster->seats; s != NULL; s = s->next) {
        if (s->session == NULL || s->session->closing) continue;
        if (cairn_cluster_adoption_knows(s))
            cairn_cluster_session_send(s->session, CAIRN_MSG_STORE_ADOPTED, 0, &adopted.base);
        s->session->closing = true;
        cairn_peer_finish(s->session->peer, CAIRN_ERR_CLOSED, "the store was rebuilt");
    }
}

static void on_written(struct cairn_task *task)
{
    struct cairn_cluster_adoption *adoption = (struct cairn_cluster_adoption *)task;
    struct cairn_cluster *cluster = adoption->cluster;
    if (cluster->closing) return; // freed with the cluster
    if (adoption->status != CAIRN_OK) {
        cairn_cluster_adoption_fail(adoption, adoption->status, adoption->why.text);
        return;
    }
    if (adoption->former == 0) adoption->former = cluster->identity.id.store;
    cluster->identity.id.store = cairn_store_meta(cluster->store)->identity;
    cluster->identity.id.incarnation = cairn_store_meta(cluster->store)->incarnation;
    cairn_log_warn("%zu jobs were adopted: this is store %016" PRIx64 " (start %" PRIu64
                   ") now, and no other is obeyed by these shards",
                   adoption->row_count, cluster->identity.id.store,
                   cluster->identity.id.incarnation);
    cairn_cluster_keys_adopted(cluster, adoption->keys, adoption->key_count);
    cairn_cluster_storage_adopted(cluster, adoption->former);
    for (size_t i = 0; i < adoption->row_count; i++) reload(cluster, &adoption->rows[i]);
    tell_shards(cluster);
    cairn_cluster_adoption_answer(adoption);
    cairn_cluster_openings_advance(cluster);
}

/* Its bytes are a layout of these tensors, on as many shards as hold it. */
static cairn_status judge_layout(const struct cairn_cluster_adoption *adoption,
                                 const struct cairn_cluster_adoptee *job,
                                 const struct cairn_job_spec_data *spec, struct cairn_sentence *why)
{
    struct cairn_layout *layout = NULL;
    cairn_status status = cairn_plan_job_decode(spec, job->layout.bytes, job->layout.have_bytes,
                                                &layout);
    if (status == CAIRN_OK && layout->shard_count != job->shard_count) status = CAIRN_ERR_MISMATCH;
    for (uint32_t i = 0; status == CAIRN_OK && i < job->shard_count; i++)
        if (job->shards[i].name == NULL && cairn_layout_owns(layout, i)) {
            status = CAIRN_ERR_NOT_FOUND;
            cairn_cluster_adoption_missing(adoption, job, i, why);
        }
    cairn_layout_close(layout);
    if (status == CAIRN_ERR_NOT_FOUND) return status;
    if (status == CAIRN_OK) return CAIRN_OK;
    return cairn_fail(why, status, "job %s: shard %s sent a layout that does not fit its spec: %s",
                      job->name, job->from->name, cairn_status_text((int)status));
}

/* The pages are what the shard said that it has. */
static cairn_status judge_pages(const struct cairn_cluster_adoption *adoption,
                                const struct cairn_cluster_adoptee *job, struct cairn_sentence *why)
{
    struct cairn_job_spec_data spec;
    if (job->request != 0)
        return cairn_fail(why, CAIRN_ERR_PROTOCOL, "job %s: shard %s answered without its part",
                          job->name, job->from->name);
    cairn_status status = cairn_spec_unpack(job->spec.bytes, job->spec.have_bytes,
                                            cairn_optimizer_names(), &spec, why);
    if (status != CAIRN_OK) return status;
    if (strcmp(spec.name, job->name) != 0)
        status = cairn_fail(why, CAIRN_ERR_MISMATCH, "job %s: its spec is of job %s", job->name,
                            spec.name);
    if (status == CAIRN_OK) status = judge_layout(adoption, job, &spec, why);
    cairn_spec_release(&spec);
    return status;
}

void cairn_cluster_adoption_write(struct cairn_cluster_adoption *adoption)
{
    if (cairn_cluster_keys_are_changing(adoption->cluster)) {
        cairn_cluster_adoption_fail(adoption, CAIRN_ERR_BUSY,
                                    "a key is being trusted or untrusted: adopt again");
        return;
    }
    adoption->rows = calloc(adoption->job_count + 1, sizeof *adoption->rows);
    if (adoption->rows == NULL) {
        cairn_cluster_adoption_fail(adoption, CAIRN_ERR_NO_MEMORY, "no memory");
        return;
    }
    for (size_t i = 0; i < adoption->job_count; i++) {
        struct cairn_cluster_adoptee *job = &adoption->jobs[i];
        struct cairn_sentence why = { "no memory" };
        if (job->refused.text[0] != '\0') continue;
        if (judge_pages(adoption, job, &why) != CAIRN_OK) {
            job->refused = why;
            continue;
        }
        for (uint32_t s = 0; s < job->shard_count; s++)
            if (job->shards[s].name == NULL) job->shards[s].name = ""; // a hole
        adoption->rows[adoption->row_count++] =
            (struct cairn_stored_job) { .name = job->name,
                                        .spec = job->spec.bytes,
                                        .spec_bytes = job->spec.have_bytes,
                                        .layout = job->layout.bytes,
                                        .layout_bytes = job->layout.have_bytes,
                                        .shards = job->shards,
                                        .shard_count = job->shard_count,
                                        .id = job->id,
                                        .generation = job->generation,
                                        .generation_reserved = job->marks.generation,
                                        .epoch = job->marks.epoch,
                                        .round_reserved = job->marks.round,
                                        .base_step = job->base_step,
                                        .initialized = true };
    }
    if (adoption->plan || adoption->row_count == 0) {
        cairn_cluster_adoption_answer(adoption);
        return;
    }
    adoption->task = (struct cairn_task) { .run = run_write, .done = on_written, .item_count = 1 };
    cairn_pool_submit(adoption->cluster->saves.pool, &adoption->task);
}
