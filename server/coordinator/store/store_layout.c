/* Stores a job's layout and its shards, which change together. See store.h. */
#include "server/coordinator/store/private.h"

void cairn_store_bind_layout(sqlite3_stmt *s, int at, const struct cairn_stored_job *job)
{
    cairn_store_bind_u64(s, at, job->layout_at_generation);
    cairn_store_bind_u64(s, at + 1, job->layout_at_step);
    if (job->layout_before_bytes > 0)
        sqlite3_bind_blob64(s, at + 2, job->layout_before, job->layout_before_bytes,
                            SQLITE_TRANSIENT);
    sqlite3_bind_double(s, at + 3, job->pause);
}

cairn_status cairn_store_put_shards(struct cairn_store *store, const struct cairn_stored_job *job,
                                    struct cairn_sentence *why)
{
    sqlite3_stmt *s;
    cairn_status status = cairn_store_prepare(store, "DELETE FROM job_shards WHERE job = ?", &s,
                                              why);
    if (status != CAIRN_OK) return status;
    cairn_store_bind_u64(s, 1, job->id);
    status = cairn_store_finish(store, s, why);
    for (uint32_t i = 0; i < job->shard_count && status == CAIRN_OK; i++) {
        status = cairn_store_prepare(store, "INSERT INTO job_shards VALUES (?,?,?,?)", &s, why);
        if (status != CAIRN_OK) break;
        cairn_store_bind_u64(s, 1, job->id);
        sqlite3_bind_int64(s, 2, i);
        sqlite3_bind_text(s, 3, job->shards[i], -1, SQLITE_TRANSIENT);
        if (job->weights != NULL) sqlite3_bind_double(s, 4, job->weights[i]);
        status = cairn_store_finish(store, s, why);
    }
    return status;
}

static cairn_status update_layout(struct cairn_store *store, const struct cairn_stored_job *job,
                                  struct cairn_sentence *why)
{
    sqlite3_stmt *s;
    cairn_status status = cairn_store_prepare(
        store,
        "UPDATE jobs SET layout = ?2, epoch = max(epoch, ?3), round_reserved = max(round_reserved, "
        "?4), layout_at_generation = ?5, layout_at_step = ?6, layout_before = ?7, pause = ?8 WHERE "
        "id = ?1",
        &s, why);
    if (status != CAIRN_OK) return status;
    cairn_store_bind_u64(s, 1, job->id);
    sqlite3_bind_blob64(s, 2, job->layout, job->layout_bytes, SQLITE_TRANSIENT);
    cairn_store_bind_u64(s, 3, job->epoch);
    cairn_store_bind_u64(s, 4, job->round_reserved);
    cairn_store_bind_layout(s, 5, job);
    return cairn_store_finish_job(store, s, job->id, why);
}

cairn_status cairn_store_set_layout(struct cairn_store *store, const struct cairn_stored_job *job,
                                    struct cairn_sentence *why)
{
    cairn_status status = cairn_store_run(store, "BEGIN IMMEDIATE", why);
    if (status != CAIRN_OK) return status;
    status = update_layout(store, job, why);
    if (status == CAIRN_OK) status = cairn_store_put_shards(store, job, why);
    return cairn_store_end_transaction(store, status, why);
}
