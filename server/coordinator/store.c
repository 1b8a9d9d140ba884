#include "server/coordinator/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <sodium.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/base/log.h"
#include "server/coordinator/cluster.h"

#define APPLICATION_ID 0x4341524e /* "CARN": marks the file as ours */
#define SCHEMA_VERSION 1

/* ---- the tables ---- */

enum column_type { NUMBER, FLAG, REAL, TEXT, BYTES, COLUMN_TYPES };
static const char *const type_names[COLUMN_TYPES] = { "INTEGER", "INTEGER", "REAL", "TEXT",
                                                      "BLOB" };

struct column {
    const char *name;
    enum column_type type;
    /* offset of the field in the row's struct; the field is a uint64_t, bool, double, const char *
     * or const uint8_t * */
    size_t at;
    size_t count_at;        /* for BYTES: offset of the size_t that has the number of bytes */
    const char *constraint; /* NULL: the constraint is "NOT NULL" */
    bool grows;             /* true: no change makes the value lower */
    /* bits of the changes that set this column; a change that puts whole rows sets it, too */
    uint32_t set_by;
};

#define BY(change) (1u << CAIRN_STORE_##change)

#define COLUMN(text, kind, member) .name = (text), .type = (kind), .at = offsetof(ROW, member)
#define ROW                        struct stored_meta
static const struct column meta_columns[] = {
    { COLUMN("zero", NUMBER, zero), .constraint = "NOT NULL CHECK (zero = 0)" },
    { COLUMN("incarnation", NUMBER, incarnation), .set_by = BY(START) },
    { COLUMN("identity", NUMBER, identity), .set_by = BY(START) },
    { COLUMN("storage", NUMBER, storage), .set_by = BY(STORAGE) },
};
#undef ROW
#define ROW struct stored_job
static const struct column job_columns[] = {
    { COLUMN("id", NUMBER, id) },
    { COLUMN("name", TEXT, name), .constraint = "NOT NULL UNIQUE" },
    { COLUMN("spec", BYTES, spec), .count_at = offsetof(ROW, spec_bytes) },
    { COLUMN("layout", BYTES, layout), .count_at = offsetof(ROW, layout_bytes),
      .set_by = BY(LAYOUT) },
    { COLUMN("generation", NUMBER, generation) },
    { COLUMN("generation_reserved", NUMBER, generation_reserved), .grows = true,
      .set_by = BY(GENERATION) },
    { COLUMN("epoch", NUMBER, epoch), .grows = true, .set_by = BY(EPOCH) | BY(LAYOUT) },
    { COLUMN("round_reserved", NUMBER, round_reserved), .grows = true,
      .set_by = BY(EPOCH) | BY(LAYOUT) },
    { COLUMN("base_step", NUMBER, base_step) },
    { COLUMN("initialized", FLAG, initialized), .grows = true, .set_by = BY(INITIALIZED) },
    { COLUMN("layout_at_generation", NUMBER, layout_at_generation), .set_by = BY(LAYOUT) },
    { COLUMN("layout_at_step", NUMBER, layout_at_step), .set_by = BY(LAYOUT) },
    { COLUMN("layout_before", BYTES, layout_before), .constraint = "",
      .count_at = offsetof(ROW, layout_before_bytes), .set_by = BY(LAYOUT) },
    { COLUMN("pause", REAL, pause), .set_by = BY(LAYOUT) },
    { COLUMN("origin", NUMBER, origin.generation) },
    { COLUMN("origin_from_generation", NUMBER, origin.from.generation) },
    { COLUMN("origin_from_step", NUMBER, origin.from.step) },
};
#undef ROW
#define ROW struct stored_shard
static const struct column shard_columns[] = {
    { COLUMN("job", NUMBER, job), .constraint = "NOT NULL REFERENCES jobs(id) ON DELETE CASCADE" },
    { COLUMN("place", NUMBER, place) },
    { COLUMN("shard", TEXT, name) },
    { COLUMN("weight", REAL, weight), .constraint = "" }, // NULL: the shard has no weight (NAN)
};
#undef ROW
#define ROW struct stored_dropped
static const struct column dropped_columns[] = {
    { COLUMN("place", NUMBER, place) },
    { COLUMN("job", NUMBER, job), .constraint = "NOT NULL UNIQUE" },
};
static const struct column leaving_columns[] = { { .name = "shard", .type = TEXT } };
#undef ROW
#define ROW struct stored_key
static const struct column key_columns[] = {
    { COLUMN("line", TEXT, line) },
    { COLUMN("own", FLAG, is_own) },
    { COLUMN("since", NUMBER, since_unix_s) },
};
#undef ROW
#define ROW struct stored_event
static const struct column event_columns[] = {
    { COLUMN("number", NUMBER, number) }, { COLUMN("unix_ms", NUMBER, unix_ms) },
    { COLUMN("kind", TEXT, kind) },       { COLUMN("job", TEXT, job) },
    { COLUMN("who", TEXT, who) },         { COLUMN("text", TEXT, text) },
};
static const struct column event_apart_columns[] = {
    { COLUMN("place", NUMBER, place) },     { COLUMN("number", NUMBER, number) },
    { COLUMN("unix_ms", NUMBER, unix_ms) }, { COLUMN("kind", TEXT, kind) },
    { COLUMN("job", TEXT, job) },           { COLUMN("who", TEXT, who) },
    { COLUMN("text", TEXT, text) },
};
#undef ROW

#define ROW struct stored_token
static const struct column token_columns[] = {
    { COLUMN("id", NUMBER, id) },
    { COLUMN("name", TEXT, name) },
    { COLUMN("owner", TEXT, owner) },
    { COLUMN("jobs", TEXT, jobs) },
    { COLUMN("secret", TEXT, secret) },
    { COLUMN("pin", TEXT, pin) },
    { COLUMN("roles", NUMBER, roles) },
    { COLUMN("created", NUMBER, created_unix_s) },
    { COLUMN("not_after", NUMBER, not_after_unix_s) },
    { COLUMN("grace_until", NUMBER, grace_until_unix_s) },
    { COLUMN("revoked", NUMBER, revoked_unix_s), .grows = true },
    { COLUMN("seen", NUMBER, seen_unix_s), .grows = true, .set_by = BY(SEEN) },
};
#undef ROW
#define ROW struct stored_curve
static const struct column curve_columns[] = {
    { COLUMN("number", NUMBER, number) },
    { COLUMN("secret", TEXT, secret) },
    { COLUMN("since", NUMBER, since_unix_s) },
};
#undef ROW
#define ROW struct stored_node
static const struct column node_columns[] = {
    { COLUMN("shard", TEXT, shard) },
    { COLUMN("key", TEXT, key) },
    { COLUMN("token", NUMBER, token) },
    { COLUMN("since", NUMBER, since_unix_s) },
};
#undef ROW

#define ROW struct stored_tenant
static const struct column tenant_columns[] = {
    { COLUMN("job", NUMBER, job), .constraint = "NOT NULL REFERENCES jobs(id) ON DELETE CASCADE" },
    { COLUMN("owner", TEXT, owner) },
    { COLUMN("shared", TEXT, shared) },
    { COLUMN("shared_read", TEXT, shared_read) },
    { COLUMN("made_by", TEXT, made_by) },
    { COLUMN("made_from", TEXT, made_from) },
    { COLUMN("made", NUMBER, made_unix_s) },
};
#undef ROW

#define ROW struct stored_begun
static const struct column begun_columns[] = {
    { COLUMN("job", NUMBER, job), .constraint = "NOT NULL REFERENCES jobs(id) ON DELETE CASCADE" },
    { COLUMN("digest", TEXT, digest) },
};
#undef ROW

#define ROW struct stored_mirror
static const struct column mirror_columns[] = {
    { COLUMN("part", TEXT, part) },
    { COLUMN("job", NUMBER, job) },
    { COLUMN("generation", NUMBER, generation) },
    { COLUMN("layout", NUMBER, layout) },
    { COLUMN("place", NUMBER, place) },
    { COLUMN("shard", TEXT, shard) },
    { COLUMN("incarnation", NUMBER, incarnation) },
};
#undef ROW

#define ROW struct stored_turn
static const struct column turn_columns[] = {
    { COLUMN("job", NUMBER, job), .constraint = "NOT NULL REFERENCES jobs(id) ON DELETE CASCADE" },
    { COLUMN("place", NUMBER, place) },
    { COLUMN("origin", NUMBER, origin.generation) },
    { COLUMN("origin_from_generation", NUMBER, origin.from.generation) },
    { COLUMN("origin_from_step", NUMBER, origin.from.step) },
};
#undef ROW

/* A change finds its rows by the table's first column. So the table's key begins with this
 * column. */
#define TABLE(text, row, list, primary, by)                                         \
    {                                                                               \
        (text), (primary), (by), sizeof(row), (list), sizeof(list) / sizeof *(list) \
    }
static const struct table {
    const char *name, *key, *order;
    size_t row_bytes;
    const struct column *columns;
    int column_count;
} tables[CAIRN_STORED_KINDS] = {
    [CAIRN_STORED_META] = TABLE("meta", struct stored_meta, meta_columns, "zero", "zero"),
    [CAIRN_STORED_JOBS] = TABLE("jobs", struct stored_job, job_columns, "id", "name"),
    [CAIRN_STORED_SHARDS] = TABLE("job_shards", struct stored_shard, shard_columns, "job, place",
                                  "place"),
    [CAIRN_STORED_DROPPED] = TABLE("dropped", struct stored_dropped, dropped_columns, "place",
                                   "place"),
    [CAIRN_STORED_LEAVING] = TABLE("leaving", struct stored_leaving, leaving_columns, "shard",
                                   "rowid"),
    [CAIRN_STORED_KEYS] = TABLE("keys", struct stored_key, key_columns, "line",
                                "own DESC, since, line"),
    [CAIRN_STORED_EVENTS] = TABLE("events", struct stored_event, event_columns, "number", "number"),
    [CAIRN_STORED_TOKENS] = TABLE("tokens", struct stored_token, token_columns, "id",
                                  "name, created, id"),
    [CAIRN_STORED_CURVES] = TABLE("curves", struct stored_curve, curve_columns, "number", "number"),
    [CAIRN_STORED_NODES] = TABLE("nodes", struct stored_node, node_columns, "shard", "shard"),
    [CAIRN_STORED_AUDIT] = TABLE("audit", struct stored_event, event_columns, "number", "number"),
    [CAIRN_STORED_TENANTS] = TABLE("tenants", struct stored_tenant, tenant_columns, "job", "job"),
    [CAIRN_STORED_BEGUN] = TABLE("begun", struct stored_begun, begun_columns, "job", "job"),
    [CAIRN_STORED_EVENTS_APART] = TABLE("events_apart", struct stored_event, event_apart_columns,
                                        "place", "place"),
    [CAIRN_STORED_AUDIT_APART] = TABLE("audit_apart", struct stored_event, event_apart_columns,
                                       "place", "place"),
    [CAIRN_STORED_MIRRORS] = TABLE("mirrors", struct stored_mirror, mirror_columns, "part", "part"),
    [CAIRN_STORED_TURNS] = TABLE("turns", struct stored_turn, turn_columns, "job, place", "place"),
};

static const struct change {
    enum store_kind kind;
    /* PUT: puts whole rows. SET: sets the columns of the change. DROP: deletes rows */
    enum { PUT, SET, DROP } how;
} changes[CAIRN_STORE_CHANGES] = {
    [CAIRN_STORE_JOB] = { CAIRN_STORED_JOBS, PUT },
    [CAIRN_STORE_LAYOUT] = { CAIRN_STORED_JOBS, SET },
    [CAIRN_STORE_EPOCH] = { CAIRN_STORED_JOBS, SET },
    [CAIRN_STORE_INITIALIZED] = { CAIRN_STORED_JOBS, SET },
    [CAIRN_STORE_GENERATION] = { CAIRN_STORED_JOBS, SET },
    [CAIRN_STORE_JOB_DROP] = { CAIRN_STORED_JOBS, DROP },
    [CAIRN_STORE_STORAGE] = { CAIRN_STORED_META, SET },
    [CAIRN_STORE_LEAVE] = { CAIRN_STORED_LEAVING, PUT },
    [CAIRN_STORE_STAY] = { CAIRN_STORED_LEAVING, DROP },
    [CAIRN_STORE_KEY] = { CAIRN_STORED_KEYS, PUT },
    [CAIRN_STORE_KEY_DROP] = { CAIRN_STORED_KEYS, DROP },
    [CAIRN_STORE_EVENTS] = { CAIRN_STORED_EVENTS, PUT },
    [CAIRN_STORE_AUDIT] = { CAIRN_STORED_AUDIT, PUT },
    [CAIRN_STORE_EVENTS_APART] = { CAIRN_STORED_EVENTS_APART, PUT },
    [CAIRN_STORE_AUDIT_APART] = { CAIRN_STORED_AUDIT_APART, PUT },
    [CAIRN_STORE_TOKEN] = { CAIRN_STORED_TOKENS, PUT },
    [CAIRN_STORE_SEEN] = { CAIRN_STORED_TOKENS, SET },
    [CAIRN_STORE_CURVE] = { CAIRN_STORED_CURVES, PUT },
    [CAIRN_STORE_NODE] = { CAIRN_STORED_NODES, PUT },
    [CAIRN_STORE_NODE_DROP] = { CAIRN_STORED_NODES, DROP },
    [CAIRN_STORE_TENANT] = { CAIRN_STORED_TENANTS, PUT },
    [CAIRN_STORE_BEGUN] = { CAIRN_STORED_BEGUN, PUT },
    [CAIRN_STORE_MIRROR] = { CAIRN_STORED_MIRRORS, PUT },
    [CAIRN_STORE_MIRROR_DROP] = { CAIRN_STORED_MIRRORS, DROP },
    [CAIRN_STORE_START] = { CAIRN_STORED_META, SET },
    [CAIRN_STORE_SHARDS] = { CAIRN_STORED_SHARDS, PUT },
    [CAIRN_STORE_SHARDS_DROP] = { CAIRN_STORED_SHARDS, DROP },
    [CAIRN_STORE_TURNS] = { CAIRN_STORED_TURNS, PUT },
    [CAIRN_STORE_TURNS_DROP] = { CAIRN_STORED_TURNS, DROP },
};

/* The triggers run in the same transaction as the change. The store remembers a dropped job,
 * because parts of it on shards are leftovers of this cluster. The triggers also delete the oldest
 * dropped jobs, events and keys of the coordinator, and the tokens that lost their secret. */
static const char schema_triggers[] =
    "CREATE TRIGGER IF NOT EXISTS drops AFTER DELETE ON jobs BEGIN INSERT OR REPLACE INTO dropped "
    "(job) VALUES (old.id); DELETE FROM dropped WHERE place <= (SELECT max(place) FROM dropped) - "
    "%d; END; CREATE TRIGGER IF NOT EXISTS notes_apart AFTER INSERT ON events_apart BEGIN DELETE "
    "FROM events_apart WHERE place <= new.place - %d; END; CREATE TRIGGER IF NOT EXISTS "
    "audits_apart AFTER INSERT ON audit_apart BEGIN DELETE FROM audit_apart WHERE place <= "
    "new.place - %d; END; CREATE TRIGGER IF NOT EXISTS notes AFTER INSERT ON events BEGIN DELETE "
    "FROM events "
    "WHERE number <= new.number - %d; END; CREATE TRIGGER IF NOT EXISTS audits AFTER INSERT ON "
    "audit BEGIN DELETE FROM audit WHERE number <= new.number - %d; END; CREATE TRIGGER IF NOT "
    "EXISTS lets_go AFTER UPDATE OF secret ON tokens WHEN new.secret = '' BEGIN DELETE FROM tokens "
    "WHERE id = new.id; END; CREATE TRIGGER IF NOT EXISTS replaces AFTER INSERT ON curves BEGIN "
    "DELETE FROM curves WHERE number NOT IN (SELECT number FROM curves ORDER BY number DESC LIMIT "
    "%d); END";
static const char schema_end[] =
    "INSERT INTO meta VALUES (0, 0, 0, 0); PRAGMA application_id = %d; PRAGMA user_version = %d";

/* The first kind of row that the first stores did not have. A store without a table of this kind or of a
 * later one is older, and gets the table. */
#define FIRST_ADDED CAIRN_STORED_TOKENS

/* ---- statements ---- */

struct coord_store {
    /* owned */
    sqlite3 *db;
    char *path;                        /* of the file, or where the rows of a shared store are */
    struct shared *shared;             /* NULL: the file has the rows */
    char signer[CAIRN_KEY_TEXT_BYTES]; /* the signer that pictures get; empty: none */
    struct stored_meta meta;
    uint64_t opening_changes; /* number of rows that store_open itself wrote */
    uint64_t event_changes;   /* number of event rows that were written or deleted */
};

/* Turns the library's last error into a status, and a sentence with advice. */
static cairn_status store_fail(const struct coord_store *store, const char *doing,
                               struct sentence *why)
{
    const int code = sqlite3_errcode(store->db) & 0xff;
    const char *text = sqlite3_errmsg(store->db);
    if (code == SQLITE_FULL)
        return fail_with(why, CAIRN_ERR_NO_SPACE, "%s: %s: no space left; free some", store->path,
                         doing);
    if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB)
        return fail_with(why, CAIRN_ERR_CORRUPT,
                         "%s: %s: %s; restore the file, or move it away and take the jobs from "
                         "the shards (`cairn cluster adopt`)",
                         store->path, doing, text);
    if (code == SQLITE_BUSY)
        return fail_with(why, CAIRN_ERR_BUSY, "%s: %s: another process has it open", store->path,
                         doing);
    return fail_with(why, CAIRN_ERR_IO, "%s: %s: %s", store->path, doing, text);
}

static cairn_status run_sql(const struct coord_store *store, const char *sql, struct sentence *why)
{
    if (sqlite3_exec(store->db, sql, NULL, NULL, NULL) == SQLITE_OK) return CAIRN_OK;
    return store_fail(store, "writing", why);
}

static cairn_status prepare(const struct coord_store *store, const char *sql, sqlite3_stmt **out,
                            struct sentence *why)
{
    if (sqlite3_prepare_v2(store->db, sql, -1, out, NULL) == SQLITE_OK) return CAIRN_OK;
    return store_fail(store, "reading", why);
}

/* Reads one number with a query that returns one row. */
static cairn_status ask_number(const struct coord_store *store, const char *sql, int64_t *out,
                               struct sentence *why)
{
    sqlite3_stmt *s;
    cairn_status status = prepare(store, sql, &s, why);
    if (status != CAIRN_OK) return status;
    if (sqlite3_step(s) == SQLITE_ROW) {
        *out = sqlite3_column_int64(s, 0);
    } else {
        status = store_fail(store, "reading", why);
    }
    sqlite3_finalize(s);
    return status;
}

static cairn_status begin_transaction(struct coord_store *store, struct sentence *why)
{
    CAIRN_TRY(run_sql(store, "BEGIN IMMEDIATE", why));
    if (store->shared == NULL) return CAIRN_OK;
    const cairn_status status = shared_begin(store->shared, why);
    if (status != CAIRN_OK) sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

/* Commits the transaction if `status` is CAIRN_OK, and otherwise rolls it back. A change of a shared store is
 * durable before the transaction ends. */
static cairn_status end_transaction(struct coord_store *store, cairn_status status,
                                    struct sentence *why)
{
    if (store->shared != NULL) status = shared_end(store->shared, status, why);
    if (status == CAIRN_OK) status = run_sql(store, "COMMIT", why);
    if (status != CAIRN_OK && sqlite3_get_autocommit(store->db) == 0)
        sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

/* Makes a picture take the place of all that a shared store has kept. */
static cairn_status replace_shared(const struct coord_store *store, struct sentence *why)
{
    uint8_t *picture;
    size_t picture_bytes;
    CAIRN_TRY(store_picture(store, &picture, &picture_bytes, why));
    const cairn_status status = shared_replace(store->shared, picture, picture_bytes, why);
    sodium_memzero(picture, picture_bytes); // it has secrets
    free(picture);
    return status;
}

/* ---- rows ---- */

static const void *field_at(const void *row, size_t at)
{
    return (const char *)row + at;
}

/* The text of a field; a field that was left out is "". */
static const char *text_at(const void *value)
{
    const char *text = *(const char *const *)value;
    return text != NULL ? text : "";
}

static void bind_column(sqlite3_stmt *s, int at, const struct column *column, const void *row)
{
    const void *value = field_at(row, column->at);
    switch (column->type) {
    // SQLite's numbers are signed. Our unsigned numbers are stored with the same 64 bits.
    case NUMBER: sqlite3_bind_int64(s, at, (sqlite3_int64) * (const uint64_t *)value); break;
    case FLAG: sqlite3_bind_int(s, at, *(const bool *)value); break;
    case REAL: sqlite3_bind_double(s, at, *(const double *)value); break;
    case TEXT: sqlite3_bind_text(s, at, text_at(value), -1, SQLITE_STATIC); break;
    default:
        sqlite3_bind_blob64(s, at, *(const void *const *)value,
                            *(const size_t *)field_at(row, column->count_at), SQLITE_STATIC);
    }
}

/* Fills one field. Texts and bytes stay valid until the statement's next step. */
static void fill_column(char *row, const struct column *column, sqlite3_stmt *s, int at)
{
    void *value = row + column->at;
    switch (column->type) {
    case NUMBER: *(uint64_t *)value = (uint64_t)sqlite3_column_int64(s, at); break;
    case FLAG: *(bool *)value = sqlite3_column_int(s, at) != 0; break;
    case REAL:
        *(double *)value = sqlite3_column_type(s, at) == SQLITE_NULL ? NAN
                                                                     : sqlite3_column_double(s, at);
        break;
    case TEXT: *(const char **)value = (const char *)sqlite3_column_text(s, at); break;
    default:
        *(const void **)value = sqlite3_column_blob(s, at);
        *(size_t *)(void *)(row + column->count_at) = (size_t)sqlite3_column_bytes(s, at);
    }
}

/* Copies the texts of a row to `to`, and makes the row point to the copies. If `to` is NULL, copies
 * nothing. Returns the size of the texts in bytes. */
static size_t copy_texts(const struct table *table, char *row, char *to)
{
    size_t used = 0;
    for (const struct column *c = table->columns; c < table->columns + table->column_count; c++) {
        if (c->type != TEXT) continue;
        const char **from = (const char **)(void *)(row + c->at);
        const size_t bytes = strlen(text_at(from)) + 1;
        if (to != NULL) *from = memcpy(to + used, text_at(from), bytes);
        used += bytes;
    }
    return used;
}

void *store_copy(enum store_change change, const void *rows, size_t count)
{
    const struct table *table = &tables[changes[change].kind];
    size_t bytes = count * table->row_bytes;
    for (size_t i = 0; i < count; i++)
        bytes += copy_texts(table, wire_text(field_at(rows, i * table->row_bytes)), NULL);
    char *copies = malloc(bytes + 1);
    if (copies == NULL) return NULL;
    memcpy(copies, rows, count * table->row_bytes);
    char *at = copies + count * table->row_bytes;
    for (size_t i = 0; i < count; i++) at += copy_texts(table, copies + i * table->row_bytes, at);
    return copies;
}

/* Prepares the statement in `sql`, and frees `sql`. */
static cairn_status prepare_made(const struct coord_store *store, sqlite3_str *sql,
                                 sqlite3_stmt **out, struct sentence *why)
{
    char *text = sqlite3_str_finish(sql);
    const cairn_status status = text == NULL ? fail_with(why, CAIRN_ERR_NO_MEMORY,
                                                         "out of memory for the store")
                                             : prepare(store, text, out, why);
    sqlite3_free(text);
    return status;
}

/* Prepares the statement of a change, in which column I is parameter I + 1. */
static cairn_status prepare_change(const struct coord_store *store, enum store_change change,
                                   sqlite3_stmt **out, struct sentence *why)
{
    const struct change *how = &changes[change];
    const struct table *table = &tables[how->kind];
    sqlite3_str *sql = sqlite3_str_new(store->db);
    const char *between = "";
    if (how->how == DROP) sqlite3_str_appendf(sql, "DELETE FROM %s", table->name);
    if (how->how == SET) sqlite3_str_appendf(sql, "UPDATE %s SET ", table->name);
    if (how->how == PUT) {
        sqlite3_str_appendf(sql, "INSERT INTO %s VALUES (?1", table->name);
        for (int i = 1; i < table->column_count; i++) sqlite3_str_appendf(sql, ", ?%d", i + 1);
        sqlite3_str_appendf(sql, ") ON CONFLICT (%s) DO UPDATE SET ", table->key);
    }
    // The first column is not set, because SQLite would look up all shards of a job whose id is set.
    for (int i = table->column_count > 1; i < table->column_count && how->how != DROP; i++) {
        const struct column *c = &table->columns[i];
        if (how->how == SET && (c->set_by >> change & 1) == 0) continue;
        sqlite3_str_appendf(sql, "%s%s = ", between, c->name);
        if (c->grows)
            sqlite3_str_appendf(sql, "max(%s, ?%d)", c->name, i + 1);
        else
            sqlite3_str_appendf(sql, "?%d", i + 1);
        between = ", ";
    }
    if (how->how != PUT) sqlite3_str_appendf(sql, " WHERE %s = ?1", table->columns[0].name);
    return prepare_made(store, sql, out, why);
}

/* Runs a change for one row. CAIRN_ERR_NOT_FOUND: the job has no row. CAIRN_ERR_EXISTS: another job
 * has the name. */
static cairn_status run_change(const struct coord_store *store, enum store_change change,
                               sqlite3_stmt *s, const void *row, struct sentence *why)
{
    const bool is_job = changes[change].kind == CAIRN_STORED_JOBS;
    const struct stored_job *job = row;
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < sqlite3_bind_parameter_count(s); i++)
        bind_column(s, i + 1, &tables[changes[change].kind].columns[i], row);
    const bool is_done = sqlite3_step(s) == SQLITE_DONE;
    if (is_done && is_job && sqlite3_changes(store->db) == 0)
        status = fail_with(why, CAIRN_ERR_NOT_FOUND, "%s: no job %016" PRIx64, store->path,
                           job->id);
    else if (!is_done && is_job && (sqlite3_errcode(store->db) & 0xff) == SQLITE_CONSTRAINT)
        status = fail_with(why, CAIRN_ERR_EXISTS, "there is another job \"%s\"", job->name);
    else if (!is_done)
        status = store_fail(store, "writing", why);
    sqlite3_reset(s);
    return status;
}

static cairn_status apply_change(struct coord_store *store, enum store_change change,
                                 const void *rows, size_t count, struct sentence *why);

/* Replaces the stored shards of the job. */
static cairn_status put_shards(struct coord_store *store, const struct stored_job *job,
                               struct sentence *why)
{
    struct stored_shard row = { .job = job->id };
    sqlite3_stmt *s;
    cairn_status status = apply_change(store, CAIRN_STORE_SHARDS_DROP, &row, 1, why);
    if (status == CAIRN_OK) status = prepare_change(store, CAIRN_STORE_SHARDS, &s, why);
    if (status != CAIRN_OK) return status;
    for (; row.place < job->shard_count && status == CAIRN_OK; row.place++) {
        row.name = job->shards[row.place].name;
        row.weight = job->weighed ? job->shards[row.place].weight : NAN;
        status = run_change(store, CAIRN_STORE_SHARDS, s, &row, why);
    }
    sqlite3_finalize(s);
    return status;
}

/* Stores whose the job is, if that is known. */
static cairn_status put_tenant(struct coord_store *store, const struct stored_job *job,
                               struct sentence *why)
{
    struct stored_tenant row;
    if (job->tenant == NULL) return CAIRN_OK;
    row = *job->tenant;
    row.job = job->id;
    return apply_change(store, CAIRN_STORE_TENANT, &row, 1, why);
}

/* Stores with what initial state the job began, if that is known. */
static cairn_status put_begun(struct coord_store *store, const struct stored_job *job,
                              struct sentence *why)
{
    const struct stored_begun row = { job->id, job->begun };
    return job->begun != NULL ? apply_change(store, CAIRN_STORE_BEGUN, &row, 1, why) : CAIRN_OK;
}

/* Replaces the stored turns of the job. */
static cairn_status put_turns(struct coord_store *store, const struct stored_job *job,
                              struct sentence *why)
{
    struct stored_turn rows[CAIRN_TURNS_MAX];
    for (uint32_t i = 0; i < job->turns.count; i++)
        rows[i] = (struct stored_turn) { job->id, i, job->turns.list[i] };
    const struct stored_turn all = { .job = job->id };
    CAIRN_TRY(apply_change(store, CAIRN_STORE_TURNS_DROP, &all, 1, why));
    return apply_change(store, CAIRN_STORE_TURNS, rows, job->turns.count, why);
}

/* Applies a change to its rows. The caller has begun a transaction. */
static cairn_status apply_change(struct coord_store *store, enum store_change change,
                                 const void *rows, size_t count, struct sentence *why)
{
    const bool has_shards = change == CAIRN_STORE_JOB || change == CAIRN_STORE_LAYOUT;
    const bool has_begun = change == CAIRN_STORE_JOB || change == CAIRN_STORE_INITIALIZED;
    sqlite3_stmt *s;
    cairn_status status = prepare_change(store, change, &s, why);
    if (status != CAIRN_OK) return status;
    for (size_t i = 0; i < count && status == CAIRN_OK; i++) {
        const void *row = field_at(rows, i * tables[changes[change].kind].row_bytes);
        status = run_change(store, change, s, row, why);
        if (status == CAIRN_OK && has_shards) status = put_shards(store, row, why);
        if (status == CAIRN_OK && change == CAIRN_STORE_JOB) status = put_tenant(store, row, why);
        if (status == CAIRN_OK && change == CAIRN_STORE_JOB) status = put_turns(store, row, why);
        if (status == CAIRN_OK && has_begun) status = put_begun(store, row, why);
    }
    sqlite3_finalize(s);
    return status;
}

/* When a shared store's changes have become many, makes a picture of the store take their place. If that
 * fails, it costs nothing but their space. */
static void tidy_shared(struct coord_store *store)
{
    struct sentence why;
    if (store->shared == NULL || !shared_is_long(store->shared)) return;
    if (replace_shared(store, &why) != CAIRN_OK)
        log_warn("the changes of the store are kept one by one for now: %s", why.text);
}

cairn_status store_write(struct coord_store *store, enum store_change change, const void *rows,
                         size_t count, struct sentence *why)
{
    // The next epoch must not wait until the disk has the events, because events are no part of a
    // job's durable state.
    const bool is_lazy = change == CAIRN_STORE_EVENTS || change == CAIRN_STORE_AUDIT ||
                         change == CAIRN_STORE_EVENTS_APART || change == CAIRN_STORE_AUDIT_APART ||
                         change == CAIRN_STORE_SEEN;
    const int before = sqlite3_total_changes(store->db);
    if (is_lazy) CAIRN_TRY(run_sql(store, "PRAGMA synchronous = NORMAL", why));
    cairn_status status = begin_transaction(store, why);
    if (status == CAIRN_OK)
        status = end_transaction(store, apply_change(store, change, rows, count, why), why);
    if (status == CAIRN_OK) tidy_shared(store);
    if (!is_lazy) return status;
    struct sentence ignored;
    const cairn_status again = run_sql(store, "PRAGMA synchronous = FULL", &ignored);
    store->event_changes += (uint64_t)(sqlite3_total_changes(store->db) - before);
    return status == CAIRN_OK ? again : status;
}

/* Prepares a query for the rows whose first column is *of, or for all rows if `of` is NULL. */
static cairn_status prepare_load(const struct coord_store *store, enum store_kind kind,
                                 const uint64_t *of, sqlite3_stmt **out, struct sentence *why)
{
    const struct table *table = &tables[kind];
    sqlite3_str *sql = sqlite3_str_new(store->db);
    for (int i = 0; i < table->column_count; i++)
        sqlite3_str_appendf(sql, "%s%s", i == 0 ? "SELECT " : ", ", table->columns[i].name);
    sqlite3_str_appendf(sql, " FROM %s", table->name);
    if (of != NULL) sqlite3_str_appendf(sql, " WHERE %s = ?1", table->columns[0].name);
    sqlite3_str_appendf(sql, " ORDER BY %s", table->order);
    const cairn_status status = prepare_made(store, sql, out, why);
    if (status == CAIRN_OK && of != NULL) sqlite3_bind_int64(*out, 1, (sqlite3_int64)(*of));
    return status;
}

static cairn_status load_rows(const struct coord_store *store, enum store_kind kind,
                              const uint64_t *of, stored_fn take, void *context,
                              struct sentence *why)
{
    const struct table *table = &tables[kind];
    sqlite3_stmt *s;
    cairn_status status = prepare_load(store, kind, of, &s, why);
    if (status != CAIRN_OK) return status;
    int code = SQLITE_DONE;
    while (status == CAIRN_OK && (code = sqlite3_step(s)) == SQLITE_ROW) {
        _Alignas(max_align_t) char row[sizeof(struct stored_job)] = { 0 };
        for (int i = 0; i < table->column_count; i++) fill_column(row, &table->columns[i], s, i);
        status = take(context, row, why);
    }
    if (status == CAIRN_OK && code != SQLITE_DONE) status = store_fail(store, "reading", why);
    sqlite3_finalize(s);
    return status;
}

/* ---- open ---- */

static cairn_status refuse_version(const struct coord_store *store, int64_t version,
                                   const char *but, struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_VERSION,
                     "%s is a store of version %" PRId64
                     "%s; this program has version %d and reads no other. Move the file away and "
                     "start again, with an empty store: `cairn cluster adopt --yes` then takes its "
                     "jobs from the shards",
                     store->path, version, but, SCHEMA_VERSION);
}

/* Sets *there_out to true if there is a table of this name, else to false. */
static cairn_status find_table(const struct coord_store *store, const char *name, bool *there_out,
                               struct sentence *why)
{
    sqlite3_stmt *s;
    CAIRN_TRY(
        prepare(store, "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?1", &s, why));
    sqlite3_bind_text(s, 1, name, -1, SQLITE_STATIC);
    *there_out = sqlite3_step(s) == SQLITE_ROW;
    sqlite3_finalize(s);
    return CAIRN_OK;
}

/* Judges the columns, because a file may claim this version and yet have another program's tables. */
static cairn_status judge_columns(const struct coord_store *store, struct sentence *why)
{
    for (int kind = 0; kind < CAIRN_STORED_KINDS; kind++) {
        sqlite3_stmt *s;
        bool there;
        CAIRN_TRY(find_table(store, tables[kind].name, &there, why));
        if (kind >= FIRST_ADDED && !there) continue; // create_tables will make it
        const cairn_status status = prepare_load(store, (enum store_kind)kind, NULL, &s, why);
        if (status != CAIRN_OK && (sqlite3_errcode(store->db) & 0xff) == SQLITE_ERROR)
            return refuse_version(store, SCHEMA_VERSION, " with other tables", why);
        if (status != CAIRN_OK) return status;
        sqlite3_finalize(s);
    }
    return CAIRN_OK;
}

/* Judges whether the file is undamaged and belongs to this program and version. A new file is empty:
 * application_id 0, no tables, version 0. */
static cairn_status judge_file(struct coord_store *store, bool *is_new_out, struct sentence *why)
{
    int64_t id, version, table_count;
    cairn_status status = ask_number(store, "PRAGMA application_id", &id, why);
    if (status == CAIRN_OK) status = ask_number(store, "PRAGMA user_version", &version, why);
    if (status == CAIRN_OK)
        status = ask_number(store, "SELECT count(*) FROM sqlite_master", &table_count, why);
    if (status != CAIRN_OK) return status;
    *is_new_out = id == 0 && version == 0 && table_count == 0;
    if (*is_new_out) return CAIRN_OK;
    if (id != APPLICATION_ID)
        return fail_with(why, CAIRN_ERR_CORRUPT,
                         "%s is not the database of a cairn-coordinator (application id %" PRId64
                         "); give another store.path",
                         store->path, id);
    if (version != SCHEMA_VERSION) return refuse_version(store, version, "", why);
    sqlite3_stmt *s;
    CAIRN_TRY(prepare(store, "PRAGMA quick_check(1)", &s, why));
    if (sqlite3_step(s) != SQLITE_ROW) {
        status = store_fail(store, "checking", why);
    } else if (strcmp((const char *)sqlite3_column_text(s, 0), "ok") != 0) {
        status = fail_with(why, CAIRN_ERR_CORRUPT,
                           "%s is damaged (%s); restore the file, or move it away and take the "
                           "jobs from the shards (`cairn cluster adopt`)",
                           store->path, (const char *)sqlite3_column_text(s, 0));
    }
    sqlite3_finalize(s);
    return status == CAIRN_OK ? judge_columns(store, why) : status;
}

static uint64_t random_identity(void)
{
    uint64_t identity = 0;
    while (identity == 0) randombytes_buf(&identity, sizeof identity);
    return identity;
}

/* Creates the tables and triggers that are not there. */
static cairn_status create_tables(struct coord_store *store, struct sentence *why)
{
    struct sentence sql = { "" };
    cairn_status status = CAIRN_OK;
    for (const struct table *t = tables; t < tables + CAIRN_STORED_KINDS; t++) {
        sentence_set(&sql, "CREATE TABLE IF NOT EXISTS %s (", t->name);
        for (const struct column *c = t->columns; c < t->columns + t->column_count; c++)
            sentence_add(&sql, "%s %s %s, ", c->name, type_names[c->type],
                         c->constraint != NULL ? c->constraint : "NOT NULL");
        sentence_add(&sql, "PRIMARY KEY (%s))", t->key);
        if (status == CAIRN_OK) status = run_sql(store, sql.text, why);
    }
    sentence_set(&sql, schema_triggers, CAIRN_STORE_DROPPED_MAX, CAIRN_STORE_EVENTS_MAX,
                 CAIRN_STORE_EVENTS_MAX, CAIRN_STORE_EVENTS_MAX, CAIRN_STORE_EVENTS_MAX,
                 CAIRN_STORE_CURVES_MAX);
    return status == CAIRN_OK ? run_sql(store, sql.text, why) : status;
}

static cairn_status begin_file(struct coord_store *store, struct sentence *why)
{
    struct sentence sql;
    sentence_set(&sql, schema_end, APPLICATION_ID, SCHEMA_VERSION);
    store->meta.identity = random_identity();
    return run_sql(store, sql.text, why);
}

static cairn_status take_meta(void *context, const void *row, struct sentence *why)
{
    (void)why;
    *(struct stored_meta *)context = *(const struct stored_meta *)row;
    return CAIRN_OK;
}

/* Creates the tables that the file lacks, and increments the incarnation. */
static cairn_status begin_incarnation(struct coord_store *store, bool is_new, struct sentence *why)
{
    CAIRN_TRY(create_tables(store, why));
    const cairn_status status = is_new ? begin_file(store, why)
                                       : load_rows(store, CAIRN_STORED_META, NULL, take_meta,
                                                   &store->meta, why);
    store->meta.incarnation++;
    return status == CAIRN_OK ? apply_change(store, CAIRN_STORE_START, &store->meta, 1, why)
                              : status;
}

static cairn_status set_up(struct coord_store *store, struct sentence *why)
{
    bool is_new;
    CAIRN_TRY(judge_file(store, &is_new, why));
    CAIRN_TRY(
        run_sql(store,
                store->shared != NULL
                    ? "PRAGMA foreign_keys = ON; PRAGMA secure_delete = ON"
                    : "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA "
                      "synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA secure_delete = ON",
                why));
    CAIRN_TRY(begin_transaction(store, why));
    // The picture below has all of this, and the tables, which no change has.
    const cairn_status status = begin_incarnation(store, is_new, why);
    if (status == CAIRN_OK && store->shared != NULL) shared_leave(store->shared);
    CAIRN_TRY(end_transaction(store, status, why));
    if (store->shared != NULL) CAIRN_TRY(replace_shared(store, why));
    store->opening_changes = (uint64_t)sqlite3_total_changes(store->db);
    return CAIRN_OK;
}

/* Opens the file with mode 0600. SQLite gives the same mode to its journal. An empty file becomes a new
 * database. */
static cairn_status open_private(const char *path, struct sentence *why)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const int error = fd < 0 ? -1 : file_mode_set(fd, 0600);
    const int number = errno;
    if (fd >= 0) close(fd);
    if (error == 0) return CAIRN_OK;
    return fail_with(why, number == ENOSPC ? CAIRN_ERR_NO_SPACE : CAIRN_ERR_IO, "opening %s: %s",
                     path, strerror(number));
}

static cairn_status open_file(struct coord_store *store, struct sentence *why)
{
    CAIRN_TRY(open_private(store->path, why));
    if (sqlite3_open_v2(store->path, &store->db, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK)
        return store_fail(store, "opening", why);
    return CAIRN_OK;
}

cairn_status store_open(const char *folder, struct backing *backing, struct coord_store **store_out,
                        struct sentence *why)
{
    struct coord_store *store = calloc(1, sizeof *store);
    if (store == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the store");
    cairn_status status = CAIRN_OK;
    if (asprintf(&store->path, "%s%s", backing != NULL ? backing->name : folder,
                 backing != NULL ? "" : "/coordinator.db") < 0) {
        store->path = NULL;
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the store");
    }
    if (status == CAIRN_OK)
        status = backing != NULL ? shared_open(backing, &store->db, &store->shared, why)
                                 : open_file(store, why);
    if (status == CAIRN_OK) status = set_up(store, why);
    if (status != CAIRN_OK) {
        store_close(store);
        return status;
    }
    *store_out = store;
    return CAIRN_OK;
}

void store_close(struct coord_store *store)
{
    if (store == NULL) return;
    shared_close(store->shared);
    sqlite3_close(store->db);
    free(store->path);
    sodium_memzero(store->signer, sizeof store->signer);
    free(store);
}

const struct stored_meta *store_meta(const struct coord_store *store)
{
    return &store->meta;
}

uint64_t store_rows_written(const struct coord_store *store)
{
    return (uint64_t)sqlite3_total_changes(store->db) - store->opening_changes -
           store->event_changes;
}

/* ---- jobs with their shards ---- */

/* The shards of one job, as gathered from the store. */
struct gathered {
    const struct coord_store *store;
    struct stored_shard *list; /* owned: [count]; the names are owned, too */
    uint32_t count;
    bool weighed;
};

static cairn_status gather_shards(void *context, const void *row, struct sentence *why)
{
    struct gathered *g = context;
    const struct stored_shard *shard = row;
    if (shard->place != g->count)
        return fail_with(why, CAIRN_ERR_CORRUPT, "%s: a job's shard %" PRIu32 " is missing",
                         g->store->path, g->count);
    struct stored_shard *list = realloc(g->list, (g->count + 1) * sizeof *list);
    if (list != NULL) g->list = list;
    char *name = list != NULL ? strdup(shard->name) : NULL;
    if (name == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a job's shards");
    const bool weighed = !isnan(shard->weight);
    list[g->count++] = (struct stored_shard) { shard->job, shard->place, name,
                                               weighed ? shard->weight : 0 };
    g->weighed |= weighed;
    return CAIRN_OK;
}

struct giving {
    const struct coord_store *store;
    stored_fn take;
    void *context;
    struct stored_job *job; /* borrowed: the job with its shards, while it is given */
    bool has_tenant;
    char begun[2 * CAIRN_INIT_DIGEST_BYTES + 1];
};

static cairn_status take_begun(void *context, const void *row, struct sentence *why)
{
    struct giving *giving = context;
    (void)why;
    snprintf(giving->begun, sizeof giving->begun, "%s", ((const struct stored_begun *)row)->digest);
    giving->job->begun = giving->begun;
    return CAIRN_OK;
}

static cairn_status take_turn(void *context, const void *row, struct sentence *why)
{
    struct turns *turns = &((struct giving *)context)->job->turns;
    if (turns->count == CAIRN_TURNS_MAX)
        return fail_with(why, CAIRN_ERR_CORRUPT, "a job has more turns than %d", CAIRN_TURNS_MAX);
    turns->list[turns->count++] = ((const struct stored_turn *)row)->origin;
    return CAIRN_OK;
}

static cairn_status give_with_tenant(void *context, const void *row, struct sentence *why)
{
    struct giving *giving = context;
    giving->job->tenant = row;
    giving->has_tenant = true;
    return giving->take(giving->context, giving->job, why);
}

static cairn_status give_job(void *context, const void *row, struct sentence *why)
{
    struct giving *giving = context;
    struct gathered g = { .store = giving->store };
    struct stored_job job = *(const struct stored_job *)row;
    cairn_status status = load_rows(g.store, CAIRN_STORED_SHARDS, &job.id, gather_shards, &g, why);
    job.shards = g.list;
    job.shard_count = g.count;
    job.weighed = g.weighed;
    giving->job = &job;
    giving->has_tenant = false;
    if (status == CAIRN_OK)
        status = load_rows(g.store, CAIRN_STORED_BEGUN, &job.id, take_begun, giving, why);
    if (status == CAIRN_OK)
        status = load_rows(g.store, CAIRN_STORED_TURNS, &job.id, take_turn, giving, why);
    if (status == CAIRN_OK)
        status = load_rows(g.store, CAIRN_STORED_TENANTS, &job.id, give_with_tenant, giving, why);
    if (status == CAIRN_OK && !giving->has_tenant)
        status = giving->take(giving->context, &job, why);
    for (uint32_t i = 0; i < g.count; i++) free(wire_text(g.list[i].name));
    free(g.list);
    return status;
}

cairn_status store_each(struct coord_store *store, enum store_kind kind, stored_fn take,
                        void *context, struct sentence *why)
{
    if (kind != CAIRN_STORED_JOBS) return load_rows(store, kind, NULL, take, context, why);
    struct giving giving = { .store = store, .take = take, .context = context };
    return load_rows(store, kind, NULL, give_job, &giving, why);
}

cairn_status store_adopt(struct coord_store *store, const struct store_adoptees *adoptees,
                         struct sentence *why)
{
    struct stored_meta meta = store->meta;
    if (meta.incarnation < adoptees->incarnation) meta.incarnation = adoptees->incarnation;
    meta.incarnation++;
    meta.identity = random_identity();
    CAIRN_TRY(begin_transaction(store, why));
    cairn_status status = apply_change(store, CAIRN_STORE_JOB, adoptees->jobs, adoptees->job_count,
                                       why);
    if (status == CAIRN_OK)
        status = apply_change(store, CAIRN_STORE_KEY, adoptees->keys, adoptees->key_count, why);
    if (status == CAIRN_OK) status = apply_change(store, CAIRN_STORE_START, &meta, 1, why);
    status = end_transaction(store, status, why);
    if (status == CAIRN_OK) store->meta = meta;
    return status;
}

/* ==== picture ==== */

/* Takes a picture of the store as it is at one moment, while the store is in use. SQLite's backup
 * copies the store into memory, and the copy is returned as the bytes of a file. Another thread
 * writes that file, which may be on another disk than the store. A picture also contains the secret
 * key. A store in use has this key in a separate file, but a backup is a single file, so that
 * nothing else has to be saved. */

static cairn_status fail_copy(const struct coord_store *store, sqlite3 *copy, struct sentence *why)
{
    const cairn_status status = fail_with(why, CAIRN_ERR_IO, "%s: copying: %s", store->path,
                                          copy == NULL ? "out of memory" : sqlite3_errmsg(copy));
    sqlite3_close(copy);
    return status;
}

static bool put_signer(sqlite3 *copy, const char *signer)
{
    sqlite3_stmt *s;
    if (sqlite3_exec(copy,
                     "CREATE TABLE IF NOT EXISTS signer (one INTEGER PRIMARY KEY CHECK (one = 1), "
                     "text TEXT NOT NULL)",
                     NULL, NULL, NULL) != SQLITE_OK ||
        sqlite3_prepare_v2(copy, "INSERT OR REPLACE INTO signer VALUES (1, ?1)", -1, &s, NULL) !=
            SQLITE_OK)
        return false;
    sqlite3_bind_text(s, 1, signer, -1, SQLITE_STATIC);
    const bool is_put = sqlite3_step(s) == SQLITE_DONE;
    return sqlite3_finalize(s) == SQLITE_OK && is_put;
}

cairn_status store_signer(const struct coord_store *store, char text_out[CAIRN_KEY_TEXT_BYTES],
                          struct sentence *why)
{
    sqlite3_stmt *s;
    bool there;
    cairn_status status = find_table(store, "signer", &there, why);
    if (status == CAIRN_OK && !there) return CAIRN_ERR_NOT_FOUND;
    if (status == CAIRN_OK) status = prepare(store, "SELECT text FROM signer", &s, why);
    if (status != CAIRN_OK) return status;
    if (sqlite3_step(s) == SQLITE_ROW)
        snprintf(text_out, CAIRN_KEY_TEXT_BYTES, "%s", (const char *)sqlite3_column_text(s, 0));
    else
        status = CAIRN_ERR_NOT_FOUND;
    sqlite3_finalize(s);
    return status;
}

/* All coordinators of a shared store sign with the key that is in its picture. */
static cairn_status share_signer(const struct coord_store *store, struct sentence *why)
{
    char known[CAIRN_KEY_TEXT_BYTES];
    const bool is_known = store_signer(store, known, why) == CAIRN_OK &&
                          strcmp(known, store->signer) == 0;
    sodium_memzero(known, sizeof known);
    return is_known ? CAIRN_OK : replace_shared(store, why);
}

cairn_status store_set_signer(struct coord_store *store, const char *text, struct sentence *why)
{
    bool there;
    snprintf(store->signer, sizeof store->signer, "%s", text);
    if (store->shared != NULL) return share_signer(store, why);
    const cairn_status status = find_table(store, "signer", &there, why);
    return status == CAIRN_OK && there ? run_sql(store, "DROP TABLE signer", why) : status;
}

cairn_status store_picture(const struct coord_store *store, uint8_t **bytes_out,
                           size_t *byte_count_out, struct sentence *why)
{
    sqlite3 *copy = NULL;
    if (sqlite3_open(":memory:", &copy) != SQLITE_OK) return fail_copy(store, copy, why);
    sqlite3_backup *backup = sqlite3_backup_init(copy, "main", store->db, "main");
    if (backup == NULL) return fail_copy(store, copy, why);
    (void)sqlite3_backup_step(backup, -1); // -1: all pages, in one read
    if (sqlite3_backup_finish(backup) != SQLITE_OK)
        return fail_copy(store, copy, why); // finish reports a failed step, too
    if (store->signer[0] != '\0' && !put_signer(copy, store->signer))
        return fail_copy(store, copy, why);
    sqlite3_int64 size = 0;
    unsigned char *image = sqlite3_serialize(copy, "main", &size, 0);
    uint8_t *bytes = image == NULL ? NULL : malloc((size_t)size);
    if (bytes != NULL) memcpy(bytes, image, (size_t)size);
    sqlite3_free(image);
    sqlite3_close(copy);
    if (bytes == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a copy of %s", store->path);
    *bytes_out = bytes;
    *byte_count_out = (size_t)size;
    return CAIRN_OK;
}
