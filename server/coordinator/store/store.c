#include "server/coordinator/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/file_mode.h"
#include "server/coordinator/store/private.h"

#define APPLICATION_ID 0x4341524e /* "CARN": marks the file as ours */
#define SCHEMA_VERSION 1

static const char schema[] =
    "CREATE TABLE meta (one INTEGER PRIMARY KEY CHECK (one = 1), incarnation INTEGER NOT NULL, "
    "identity INTEGER NOT NULL, storage INTEGER NOT NULL);"
    "INSERT INTO meta VALUES (1, 0, 0, 0);"
    "CREATE TABLE jobs (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, spec BLOB NOT NULL, "
    "layout BLOB NOT NULL, generation INTEGER NOT NULL, generation_reserved INTEGER NOT NULL, "
    "epoch INTEGER NOT NULL, round_reserved INTEGER NOT NULL, base_step INTEGER NOT NULL, "
    "initialized INTEGER NOT NULL, layout_at_generation INTEGER NOT NULL, layout_at_step INTEGER "
    "NOT NULL, layout_before BLOB, pause REAL NOT NULL, origin INTEGER NOT NULL, "
    "origin_from_generation INTEGER NOT NULL, origin_from_step INTEGER NOT NULL);"
    "CREATE TABLE job_shards (job INTEGER NOT NULL REFERENCES jobs(id) ON DELETE CASCADE, place "
    "INTEGER NOT NULL, shard TEXT NOT NULL, weight REAL, PRIMARY KEY (job, place));"
    "CREATE TABLE dropped (place INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER NOT NULL UNIQUE);"
    "CREATE TABLE events (number INTEGER PRIMARY KEY, unix_ms INTEGER NOT NULL, kind TEXT NOT "
    "NULL, job TEXT NOT NULL, who TEXT NOT NULL, text TEXT NOT NULL);"
    "CREATE TABLE leaving (shard TEXT PRIMARY KEY);"
    "CREATE TABLE keys (line TEXT PRIMARY KEY, own INTEGER NOT NULL, since INTEGER NOT NULL);"
    "PRAGMA application_id = 1128354382; PRAGMA user_version = 1";
_Static_assert(APPLICATION_ID == 1128354382 && SCHEMA_VERSION == 1, "as in the schema");

/* Fails on a file that says this version and has other tables. */
static const char columns_there[] = "SELECT m.identity, m.storage, j.origin, s.weight FROM meta m, "
                                    "jobs j, job_shards s, dropped, leaving, keys, events";

cairn_status cairn_store_fail(const struct cairn_store *store, const char *doing,
                              struct cairn_sentence *why)
{
    const int code = sqlite3_errcode(store->db) & 0xff;
    const char *text = sqlite3_errmsg(store->db);
    if (code == SQLITE_FULL) {
        return cairn_fail(why, CAIRN_ERR_NO_SPACE, "%s: %s: no space left; free some", store->path,
                          doing);
    }
    if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB) {
        return cairn_fail(why, CAIRN_ERR_CORRUPT,
                          "%s: %s: %s; restore the file, or move it away and take the jobs from "
                          "the shards (`cairn cluster adopt`)",
                          store->path, doing, text);
    }
    if (code == SQLITE_BUSY) {
        return cairn_fail(why, CAIRN_ERR_BUSY, "%s: %s: another process has it open", store->path,
                          doing);
    }
    return cairn_fail(why, CAIRN_ERR_IO, "%s: %s: %s", store->path, doing, text);
}

cairn_status cairn_store_run(const struct cairn_store *store, const char *sql,
                             struct cairn_sentence *why)
{
    if (sqlite3_exec(store->db, sql, NULL, NULL, NULL) == SQLITE_OK) return CAIRN_OK;
    return cairn_store_fail(store, "writing", why);
}

cairn_status cairn_store_prepare(const struct cairn_store *store, const char *sql,
                                 sqlite3_stmt **out, struct cairn_sentence *why)
{
    if (sqlite3_prepare_v2(store->db, sql, -1, out, NULL) == SQLITE_OK) return CAIRN_OK;
    return cairn_store_fail(store, "reading", why);
}

/* One number of a one-row question. */
static cairn_status ask(const struct cairn_store *store, const char *sql, int64_t *out,
                        struct cairn_sentence *why)
{
    sqlite3_stmt *s;
    cairn_status status = cairn_store_prepare(store, sql, &s, why);
    if (status != CAIRN_OK) return status;
    if (sqlite3_step(s) == SQLITE_ROW) {
        *out = sqlite3_column_int64(s, 0);
    } else {
        status = cairn_store_fail(store, "reading", why);
    }
    sqlite3_finalize(s);
    return status;
}

static uint64_t column_u64(sqlite3_stmt *s, int at)
{
    return (uint64_t)sqlite3_column_int64(s, at);
}

cairn_status cairn_store_finish(struct cairn_store *store, sqlite3_stmt *s,
                                struct cairn_sentence *why)
{
    cairn_status status = CAIRN_OK;
    if (sqlite3_step(s) != SQLITE_DONE) status = cairn_store_fail(store, "writing", why);
    sqlite3_finalize(s);
    return status;
}

cairn_status cairn_store_end_transaction(struct cairn_store *store, cairn_status status,
                                         struct cairn_sentence *why)
{
    if (status == CAIRN_OK) status = cairn_store_run(store, "COMMIT", why);
    if (status != CAIRN_OK && sqlite3_get_autocommit(store->db) == 0) {
        sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
    }
    return status;
}

/* ---- open ---- */

static cairn_status refuse_version(const struct cairn_store *store, int64_t version,
                                   const char *but, struct cairn_sentence *why)
{
    return cairn_fail(
        why, CAIRN_ERR_VERSION,
        "%s is a store of version %" PRId64
        "%s; this program has version %d and reads no other. Move the file away and "
        "start again, with an empty store: `cairn cluster adopt --yes` then takes its "
        "jobs from the shards",
        store->path, version, but, SCHEMA_VERSION);
}

/* A file may say that it is of this version and have the tables of another program's. */
static cairn_status judge_columns(const struct cairn_store *store, struct cairn_sentence *why)
{
    sqlite3_stmt *s;
    const cairn_status status = cairn_store_prepare(store, columns_there, &s, why);
    if (status == CAIRN_OK) sqlite3_finalize(s);
    if (status == CAIRN_OK || (sqlite3_errcode(store->db) & 0xff) != SQLITE_ERROR) return status;
    return refuse_version(store, SCHEMA_VERSION, " with other tables", why);
}

/* The file is of this program and its version, and whole. A new one is empty: application_id 0, no tables,
 * version 0. */
static cairn_status judge_file(struct cairn_store *store, bool *is_new_out,
                               struct cairn_sentence *why)
{
    int64_t id, version, table_count;
    cairn_status status = ask(store, "PRAGMA application_id", &id, why);
    if (status == CAIRN_OK) status = ask(store, "PRAGMA user_version", &version, why);
    if (status == CAIRN_OK)
        status = ask(store, "SELECT count(*) FROM sqlite_master", &table_count, why);
    if (status != CAIRN_OK) return status;
    *is_new_out = id == 0 && version == 0 && table_count == 0;
    if (*is_new_out) return CAIRN_OK;
    if (id != APPLICATION_ID) {
        return cairn_fail(why, CAIRN_ERR_CORRUPT,
                          "%s is not the database of a cairn-coordinator (application id %" PRId64
                          "); give another store.path",
                          store->path, id);
    }
    if (version != SCHEMA_VERSION) return refuse_version(store, version, "", why);
    sqlite3_stmt *s;
    status = cairn_store_prepare(store, "PRAGMA quick_check(1)", &s, why);
    if (status != CAIRN_OK) return status;
    if (sqlite3_step(s) != SQLITE_ROW) {
        status = cairn_store_fail(store, "checking", why);
    } else if (strcmp((const char *)sqlite3_column_text(s, 0), "ok") != 0) {
        status = cairn_fail(why, CAIRN_ERR_CORRUPT,
                            "%s is damaged (%s); restore the file, or move it away and take the "
                            "jobs from the shards (`cairn cluster adopt`)",
                            store->path, (const char *)sqlite3_column_text(s, 0));
    }
    sqlite3_finalize(s);
    return status == CAIRN_OK ? judge_columns(store, why) : status;
}

cairn_status cairn_store_run_with(struct cairn_store *store, const char *sql, uint64_t value,
                                  struct cairn_sentence *why)
{
    sqlite3_stmt *s;
    const cairn_status status = cairn_store_prepare(store, sql, &s, why);
    if (status != CAIRN_OK) return status;
    cairn_store_bind_u64(s, 1, value);
    return cairn_store_finish(store, s, why);
}

static uint64_t random_identity(void)
{
    uint64_t identity = 0;
    while (identity == 0) randombytes_buf(&identity, sizeof identity);
    return identity;
}

/* Reads the one row of `meta` into memory. */
static cairn_status read_meta(struct cairn_store *store, struct cairn_sentence *why)
{
    int64_t incarnation = 0, identity = 0, storage = 0;
    cairn_status status = ask(store, "SELECT incarnation FROM meta", &incarnation, why);
    if (status == CAIRN_OK) status = ask(store, "SELECT identity FROM meta", &identity, why);
    if (status == CAIRN_OK) status = ask(store, "SELECT storage FROM meta", &storage, why);
    if (status != CAIRN_OK) return status;
    store->incarnation = (uint64_t)incarnation;
    store->identity = (uint64_t)identity;
    store->storage = (uint64_t)storage;
    return CAIRN_OK;
}

static cairn_status set_up(struct cairn_store *store, struct cairn_sentence *why)
{
    bool is_new;
    cairn_status status = judge_file(store, &is_new, why);
    if (status != CAIRN_OK) return status;
    status = cairn_store_run(
        store,
        "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL;PRAGMA synchronous = "
        "FULL; PRAGMA foreign_keys = ON; BEGIN IMMEDIATE",
        why);
    if (status != CAIRN_OK) return status;
    if (is_new) status = cairn_store_run(store, schema, why);
    if (status == CAIRN_OK)
        status = cairn_store_run(store, "UPDATE meta SET incarnation = incarnation + 1", why);
    if (status == CAIRN_OK) // made once
        status = cairn_store_run_with(store, "UPDATE meta SET identity = ?1 WHERE identity = 0",
                                      random_identity(), why);
    status = cairn_store_end_transaction(store, status, why);
    if (status == CAIRN_OK) status = read_meta(store, why);
    if (status != CAIRN_OK) return status;
    store->opening_changes = (uint64_t)sqlite3_total_changes(store->db);
    return CAIRN_OK;
}

/* An empty file is a new database. SQLite gives its journal the same mode. */
static cairn_status open_private(const char *path, struct cairn_sentence *why)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const int error = fd < 0 ? -1 : cairn_file_mode_set(fd, 0600);
    const int number = errno;
    if (fd >= 0) close(fd);
    if (error == 0) return CAIRN_OK;
    return cairn_fail(why, number == ENOSPC ? CAIRN_ERR_NO_SPACE : CAIRN_ERR_IO, "opening %s: %s",
                      path, strerror(number));
}

cairn_status cairn_store_open(const char *folder, struct cairn_store **store_out,
                              struct cairn_sentence *why)
{
    struct cairn_store *store = calloc(1, sizeof *store);
    if (store == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for the store");
    cairn_status status = CAIRN_OK;
    if (asprintf(&store->path, "%s/coordinator.db", folder) < 0) {
        store->path = NULL;
        status = cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for the store");
    }
    if (status == CAIRN_OK) status = open_private(store->path, why);
    if (status == CAIRN_OK &&
        sqlite3_open_v2(store->path, &store->db, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK) {
        status = cairn_store_fail(store, "opening", why);
    }
    if (status == CAIRN_OK) status = set_up(store, why);
    if (status != CAIRN_OK) {
        cairn_store_close(store);
        return status;
    }
    *store_out = store;
    return CAIRN_OK;
}

void cairn_store_close(struct cairn_store *store)
{
    if (store == NULL) return;
    sqlite3_close(store->db);
    free(store->path);
    sodium_memzero(store->signer, sizeof store->signer);
    free(store);
}

uint64_t cairn_store_incarnation(const struct cairn_store *store)
{
    return store->incarnation;
}

uint64_t cairn_store_identity(const struct cairn_store *store)
{
    return store->identity;
}

uint64_t cairn_store_storage(const struct cairn_store *store)
{
    return store->storage;
}

cairn_status cairn_store_set_storage(struct cairn_store *store, uint64_t token,
                                     struct cairn_sentence *why)
{
    return cairn_store_run_with(store, "UPDATE meta SET storage = ?1", token, why);
}

uint64_t cairn_store_writes(const struct cairn_store *store)
{
    return (uint64_t)sqlite3_total_changes(store->db) - store->opening_changes -
           store->event_changes;
}

/* ---- jobs ---- */

static cairn_status put_row(struct cairn_store *store, const struct cairn_stored_job *job,
                            struct cairn_sentence *why)
{
    sqlite3_stmt *s;
    cairn_status status = cairn_store_prepare(
        store,
        "INSERT INTO jobs VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT (id) DO UPDATE "
        "SET "
        "name = excluded.name, spec = excluded.spec, layout = excluded.layout, generation = "
        "excluded.generation, base_step = excluded.base_step, generation_reserved = "
        "max(generation_reserved, excluded.generation_reserved), epoch = max(epoch, "
        "excluded.epoch), round_reserved = max(round_reserved, excluded.round_reserved), "
        "initialized = max(initialized, excluded.initialized), layout_at_generation = "
        "excluded.layout_at_generation, layout_at_step = excluded.layout_at_step, layout_before = "
        "excluded.layout_before, pause = excluded.pause, origin = excluded.origin, "
        "origin_from_generation = excluded.origin_from_generation, origin_from_step = "
        "excluded.origin_from_step",
        &s, why);
    if (status != CAIRN_OK) return status;
    cairn_store_bind_u64(s, 1, job->id);
    sqlite3_bind_text(s, 2, job->name, -1, SQLITE_TRANSIENT);
    sqlite3_bind_blob64(s, 3, job->spec, job->spec_bytes, SQLITE_TRANSIENT);
    sqlite3_bind_blob64(s, 4, job->layout, job->layout_bytes, SQLITE_TRANSIENT);
    cairn_store_bind_u64(s, 5, job->generation);
    cairn_store_bind_u64(s, 6, job->generation_reserved);
    cairn_store_bind_u64(s, 7, job->epoch);
    cairn_store_bind_u64(s, 8, job->round_reserved);
    cairn_store_bind_u64(s, 9, job->base_step);
    sqlite3_bind_int(s, 10, job->initialized);
    cairn_store_bind_layout(s, 11, job);
    cairn_store_bind_u64(s, 15, job->origin.generation);
    cairn_store_bind_u64(s, 16, job->origin.from.generation);
    cairn_store_bind_u64(s, 17, job->origin.from.step);
    if (sqlite3_step(s) == SQLITE_DONE) {
        sqlite3_finalize(s);
        return CAIRN_OK;
    }
    if ((sqlite3_errcode(store->db) & 0xff) == SQLITE_CONSTRAINT) {
        status = cairn_fail(why, CAIRN_ERR_EXISTS, "there is another job \"%s\"", job->name);
    } else {
        status = cairn_store_fail(store, "writing a job", why);
    }
    sqlite3_finalize(s);
    return status;
}

cairn_status cairn_store_put_job(struct cairn_store *store, const struct cairn_stored_job *job,
                                 struct cairn_sentence *why)
{
    cairn_status status = cairn_store_run(store, "BEGIN IMMEDIATE", why);
    if (status != CAIRN_OK) return status;
    status = put_row(store, job, why);
    if (status == CAIRN_OK) status = cairn_store_put_shards(store, job, why);
    return cairn_store_end_transaction(store, status, why);
}

cairn_status cairn_store_finish_job(struct cairn_store *store, sqlite3_stmt *s, uint64_t id,
                                    struct cairn_sentence *why)
{
    const cairn_status status = cairn_store_finish(store, s, why);
    if (status != CAIRN_OK || sqlite3_changes(store->db) > 0) return status;
    return cairn_fail(why, CAIRN_ERR_NOT_FOUND, "%s: no job %016" PRIx64, store->path, id);
}

/* UPDATE and DELETE with the job's id as ?1 and up to two numbers; exactly one row or NOT_FOUND. */
static cairn_status change_job(struct cairn_store *store, const char *sql, uint64_t id, uint64_t a,
                               uint64_t b, struct cairn_sentence *why)
{
    sqlite3_stmt *s;
    cairn_status status = cairn_store_prepare(store, sql, &s, why);
    if (status != CAIRN_OK) return status;
    const uint64_t values[3] = { id, a, b };
    for (int i = 0; i < sqlite3_bind_parameter_count(s); i++)
        cairn_store_bind_u64(s, i + 1, values[i]);
    return cairn_store_finish_job(store, s, id, why);
}

cairn_status cairn_store_adopt(struct cairn_store *store,
                               const struct cairn_store_adoptees *adoptees,
                               struct cairn_sentence *why)
{
    cairn_status status = cairn_store_run(store, "BEGIN IMMEDIATE", why);
    if (status != CAIRN_OK) return status;
    for (size_t i = 0; i < adoptees->job_count && status == CAIRN_OK; i++) {
        status = put_row(store, &adoptees->jobs[i], why);
        if (status == CAIRN_OK) status = cairn_store_put_shards(store, &adoptees->jobs[i], why);
    }
    for (size_t i = 0; i < adoptees->key_count && status == CAIRN_OK; i++)
        status = cairn_store_put_key(store, &adoptees->keys[i], why);
    if (status == CAIRN_OK)
        status = cairn_store_run_with(store,
                                      "UPDATE meta SET incarnation = max(incarnation, ?1) + 1",
                                      adoptees->incarnation, why);
    if (status == CAIRN_OK)
        status = cairn_store_run_with(store, "UPDATE meta SET identity = ?1", random_identity(),
                                      why);
    status = cairn_store_end_transaction(store, status, why);
    return status == CAIRN_OK ? read_meta(store, why) : status;
}

cairn_status cairn_store_drop_job(struct cairn_store *store, uint64_t id,
                                  struct cairn_sentence *why)
{
    cairn_status status = cairn_store_run(store, "BEGIN IMMEDIATE", why);
    if (status != CAIRN_OK) return status;
    status = change_job(store, "DELETE FROM jobs WHERE id = ?1", id, 0, 0, why);
    if (status == CAIRN_OK)
        status = cairn_store_run_with(store, "INSERT OR REPLACE INTO dropped (job) VALUES (?1)", id,
                                      why);
    if (status == CAIRN_OK)
        status = cairn_store_run_with(
            store, "DELETE FROM dropped WHERE place <= (SELECT max(place) FROM dropped) - ?1",
            CAIRN_STORE_DROPPED_MAX, why);
    return cairn_store_end_transaction(store, status, why);
}

size_t cairn_store_dropped(const struct cairn_store *store,
                           uint64_t ids_out[CAIRN_STORE_DROPPED_MAX])
{
    struct cairn_sentence why;
    sqlite3_stmt *s;
    size_t count = 0;
    if (cairn_store_prepare(store, "SELECT job FROM dropped ORDER BY place", &s, &why) != CAIRN_OK)
        return 0;
    while (count < CAIRN_STORE_DROPPED_MAX && sqlite3_step(s) == SQLITE_ROW)
        ids_out[count++] = column_u64(s, 0);
    sqlite3_finalize(s);
    return count;
}

cairn_status cairn_store_set_epoch(struct cairn_store *store, uint64_t id, uint64_t epoch,
                                   uint64_t round_reserved, struct cairn_sentence *why)
{
    return change_job(store,
                      "UPDATE jobs SET epoch = max(epoch, ?2), round_reserved = "
                      "max(round_reserved, ?3) WHERE id = ?1",
                      id, epoch, round_reserved, why);
}

cairn_status cairn_store_set_initialized(struct cairn_store *store, uint64_t id,
                                         struct cairn_sentence *why)
{
    return change_job(store, "UPDATE jobs SET initialized = 1 WHERE id = ?1", id, 0, 0, why);
}

cairn_status cairn_store_reserve_generation(struct cairn_store *store, uint64_t id,
                                            uint64_t generation, struct cairn_sentence *why)
{
    return change_job(
        store, "UPDATE jobs SET generation_reserved = max(generation_reserved, ?2) WHERE id = ?1",
        id, generation, 0, why);
}

/* ---- reading them back ---- */

static void free_names(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++) free(names[i]);
    free(names);
}

/* The shards of a job by their place; places must be 0, 1, 2, ... *weights_out: NULL, if they have none. */
static cairn_status read_shards(struct cairn_store *store, uint64_t id, char ***names_out,
                                double **weights_out, uint32_t *count_out,
                                struct cairn_sentence *why)
{
    sqlite3_stmt *s;
    cairn_status status = cairn_store_prepare(
        store, "SELECT place, shard, weight FROM job_shards WHERE job = ? ORDER BY place", &s, why);
    if (status != CAIRN_OK) return status;
    cairn_store_bind_u64(s, 1, id);
    char **names = NULL;
    double *weights = NULL;
    bool weighed = false;
    uint32_t count = 0;
    int code = sqlite3_step(s);
    for (; code == SQLITE_ROW && status == CAIRN_OK; code = sqlite3_step(s)) {
        char **more = realloc(names, (count + 1) * sizeof *names);
        double *wider = realloc(weights, (count + 1) * sizeof *weights);
        char *name = strdup((const char *)sqlite3_column_text(s, 1));
        if (more != NULL) names = more;
        if (wider != NULL) weights = wider;
        if (more == NULL || wider == NULL || name == NULL) {
            free(name);
            status = cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a job's shards");
        } else if (sqlite3_column_int64(s, 0) != (int64_t)count) {
            free(name);
            status = cairn_fail(why, CAIRN_ERR_CORRUPT, "%s: a job's shard %" PRIu32 " is missing",
                                store->path, count);
        } else {
            weighed |= sqlite3_column_type(s, 2) != SQLITE_NULL;
            weights[count] = sqlite3_column_double(s, 2);
            names[count++] = name;
        }
    }
    if (status == CAIRN_OK && code != SQLITE_DONE) status = cairn_store_fail(store, "reading", why);
    sqlite3_finalize(s);
    if (status != CAIRN_OK) {
        free_names(names, count);
        free(weights);
        return status;
    }
    if (!weighed) free(weights);
    *weights_out = weighed ? weights : NULL;
    *names_out = names;
    *count_out = count;
    return CAIRN_OK;
}

/* One row of the question below; the texts live until the statement's next step. */
static cairn_status give_job(struct cairn_store *store, sqlite3_stmt *s, cairn_stored_job_fn take,
                             void *context, struct cairn_sentence *why)
{
    struct cairn_stored_job job = { .id = column_u64(s, 0),
                                    .name = (const char *)sqlite3_column_text(s, 1),
                                    .spec = sqlite3_column_blob(s, 2),
                                    .spec_bytes = (size_t)sqlite3_column_bytes(s, 2),
                                    .layout = sqlite3_column_blob(s, 3),
                                    .layout_bytes = (size_t)sqlite3_column_bytes(s, 3),
                                    .generation = column_u64(s, 4),
                                    .generation_reserved = column_u64(s, 5),
                                    .epoch = column_u64(s, 6),
                                    .round_reserved = column_u64(s, 7),
                                    .base_step = column_u64(s, 8),
                                    .initialized = sqlite3_column_int(s, 9) != 0,
                                    .layout_at_generation = column_u64(s, 10),
                                    .layout_at_step = column_u64(s, 11),
                                    .layout_before = sqlite3_column_blob(s, 12),
                                    .layout_before_bytes = (size_t)sqlite3_column_bytes(s, 12),
                                    .pause = sqlite3_column_double(s, 13),
                                    .origin = { column_u64(s, 14),
                                                { column_u64(s, 15), column_u64(s, 16) } } };
    char **names;
    double *weights;
    cairn_status status = read_shards(store, job.id, &names, &weights, &job.shard_count, why);
    if (status != CAIRN_OK) return status;
    job.shards = (const char *const *)names;
    job.weights = weights;
    status = take(context, &job, why);
    free_names(names, job.shard_count);
    free(weights);
    return status;
}

cairn_status cairn_store_each_job(struct cairn_store *store, cairn_stored_job_fn take,
                                  void *context, struct cairn_sentence *why)
{
    sqlite3_stmt *s;
    cairn_status status = cairn_store_prepare(
        store,
        "SELECT id, name, spec, layout, generation, generation_reserved, epoch, round_reserved, "
        "base_step, initialized, layout_at_generation, layout_at_step, layout_before, pause, "
        "origin, origin_from_generation, origin_from_step FROM jobs ORDER BY name",
        &s, why);
    if (status != CAIRN_OK) return status;
    int code;
    while ((code = sqlite3_step(s)) == SQLITE_ROW && status == CAIRN_OK) {
        status = give_job(store, s, take, context, why);
    }
    if (status == CAIRN_OK && code != SQLITE_DONE) status = cairn_store_fail(store, "reading", why);
    sqlite3_finalize(s);
    return status;
}
