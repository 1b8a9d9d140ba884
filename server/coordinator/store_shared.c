/* A store whose rows are durable at a backing: see "a shared store" in store.h. */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define SQLITE_ENABLE_SESSION
#define SQLITE_ENABLE_PREUPDATE_HOOK
#include <sqlite3.h>

#include "server/coordinator/store.h"

#define LONG_BYTES ((size_t)1 << 20) /* of changes: less is not worth a picture */

struct shared {
    struct backing *backing; /* borrowed */
    sqlite3 *db;             /* borrowed: the store's */
    sqlite3_session *watch;  /* owned: of the transaction under way; NULL: none */
    size_t picture_bytes, change_bytes;
};

static cairn_status fail_shared(const struct shared *shared, const char *doing, int code,
                                struct sentence *why)
{
    if (code == SQLITE_NOMEM)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the store");
    return fail_with(why, CAIRN_ERR_CORRUPT,
                     "%s: %s: %s; begin another prefix with a backup (store.from), or take "
                     "the jobs from the shards there (`cairn cluster adopt`)",
                     shared->backing->name, doing, sqlite3_errstr(code));
}

/* ---- loading ---- */

/* The picture's header may say that the file it came from had a write-ahead log, which a database in memory
 * cannot have. */
static void forget_log(uint8_t *picture)
{
    picture[18] = picture[19] = 1;
}

static cairn_status take_picture(struct shared *shared, const uint8_t *bytes, size_t byte_count,
                                 struct sentence *why)
{
    const size_t header_bytes = 100;
    if (byte_count < header_bytes) return fail_shared(shared, "reading", SQLITE_NOTADB, why);
    uint8_t *copy = sqlite3_malloc64(byte_count);
    if (copy == NULL) return fail_shared(shared, "reading", SQLITE_NOMEM, why);
    memcpy(copy, bytes, byte_count);
    forget_log(copy);
    const int code = sqlite3_deserialize(
        shared->db, "main", copy, (sqlite3_int64)byte_count, (sqlite3_int64)byte_count,
        SQLITE_DESERIALIZE_FREEONCLOSE | SQLITE_DESERIALIZE_RESIZEABLE);
    shared->picture_bytes = byte_count;
    return code == SQLITE_OK ? CAIRN_OK : fail_shared(shared, "reading", code, why);
}

/* The rows are as the leader left them, so no change meets anything else. */
static int refuse_conflict(void *context, int conflict, sqlite3_changeset_iter *change)
{
    (void)context;
    (void)conflict;
    (void)change;
    return SQLITE_CHANGESET_ABORT;
}

static cairn_status take(void *context, const uint8_t *bytes, size_t byte_count,
                         struct sentence *why)
{
    struct shared *shared = context;
    if (shared->picture_bytes == 0) return take_picture(shared, bytes, byte_count, why);
    if (byte_count > INT32_MAX) return fail_shared(shared, "reading", SQLITE_TOOBIG, why);
    const int code = sqlite3changeset_apply(
        shared->db, (int)byte_count, wire_text((const char *)bytes), NULL, refuse_conflict, NULL);
    shared->change_bytes += byte_count;
    return code == SQLITE_OK ? CAIRN_OK : fail_shared(shared, "repeating a change", code, why);
}

/* A change has the rows that triggers and references changed, too: while changes are repeated, these must not
 * act a second time. */
static void let_rules_act(sqlite3 *db, int on)
{
    sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, on, NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_FKEY, on, NULL);
}

cairn_status shared_open(struct backing *backing, sqlite3 **db_out, struct shared **shared_out,
                         struct sentence *why)
{
    struct shared *shared = calloc(1, sizeof *shared);
    if (shared == NULL || sqlite3_open(":memory:", db_out) != SQLITE_OK) {
        free(shared);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the store");
    }
    *shared_out = shared;
    shared->backing = backing;
    shared->db = *db_out;
    let_rules_act(shared->db, 0);
    CAIRN_TRY(backing->load(backing, take, shared, why));
    let_rules_act(shared->db, 1);
    return CAIRN_OK;
}

void shared_close(struct shared *shared)
{
    if (shared != NULL) shared_leave(shared);
    free(shared);
}

/* ---- changes ---- */

cairn_status shared_begin(struct shared *shared, struct sentence *why)
{
    int code = sqlite3session_create(shared->db, "main", &shared->watch);
    if (code == SQLITE_OK) code = sqlite3session_attach(shared->watch, NULL);
    if (code == SQLITE_OK) return CAIRN_OK;
    shared_leave(shared);
    return fail_shared(shared, "writing", code, why);
}

void shared_leave(struct shared *shared)
{
    if (shared->watch != NULL) sqlite3session_delete(shared->watch);
    shared->watch = NULL;
}

static cairn_status append(struct shared *shared, struct sentence *why)
{
    int byte_count = 0;
    void *bytes = NULL;
    const int code = sqlite3session_changeset(shared->watch, &byte_count, &bytes);
    if (code != SQLITE_OK) return fail_shared(shared, "writing", code, why);
    cairn_status status = CAIRN_OK;
    if (byte_count > 0)
        status = shared->backing->append(shared->backing, bytes, (size_t)byte_count, why);
    if (status == CAIRN_OK) shared->change_bytes += (size_t)byte_count;
    if (bytes != NULL) sodium_memzero(bytes, (size_t)byte_count); // it may have secrets
    sqlite3_free(bytes);
    return status;
}

cairn_status shared_end(struct shared *shared, cairn_status status, struct sentence *why)
{
    if (status == CAIRN_OK && shared->watch != NULL) status = append(shared, why);
    shared_leave(shared);
    return status;
}

bool shared_is_long(const struct shared *shared)
{
    return shared->change_bytes > LONG_BYTES && shared->change_bytes > shared->picture_bytes;
}

cairn_status shared_replace(struct shared *shared, const uint8_t *picture, size_t picture_bytes,
                            struct sentence *why)
{
    CAIRN_TRY(shared->backing->replace(shared->backing, picture, picture_bytes, why));
    shared->picture_bytes = picture_bytes;
    shared->change_bytes = 0;
    return CAIRN_OK;
}
