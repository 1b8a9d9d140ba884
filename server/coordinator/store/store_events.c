/* Events in the store. They are no part of what a job needs: a commit of them waits for no disk, so that the
 * next epoch does not wait behind it, and those of the last moment before power is lost may be missing. */
#include <sqlite3.h>

#include "server/coordinator/store/private.h"

static cairn_status insert(struct cairn_store *store, sqlite3_stmt *s,
                           const struct cairn_stored_event *event, struct cairn_sentence *why)
{
    const char *const texts[] = { event->kind, event->job, event->who, event->text };
    sqlite3_bind_int64(s, 1, (sqlite3_int64)event->number);
    sqlite3_bind_int64(s, 2, (sqlite3_int64)event->unix_ms);
    for (int i = 0; i < 4; i++) sqlite3_bind_text(s, 3 + i, texts[i], -1, SQLITE_TRANSIENT);
    const int code = sqlite3_step(s);
    sqlite3_reset(s);
    return code == SQLITE_DONE ? CAIRN_OK : cairn_store_fail(store, "writing an event", why);
}

static cairn_status insert_all(struct cairn_store *store, const struct cairn_stored_event *events,
                               size_t count, struct cairn_sentence *why)
{
    sqlite3_stmt *s;
    cairn_status status = cairn_store_prepare(
        store, "INSERT OR REPLACE INTO events VALUES (?1,?2,?3,?4,?5,?6)", &s, why);
    if (status != CAIRN_OK) return status;
    for (size_t i = 0; i < count && status == CAIRN_OK; i++)
        status = insert(store, s, &events[i], why);
    sqlite3_finalize(s);
    return status;
}

cairn_status cairn_store_add_events(struct cairn_store *store,
                                    const struct cairn_stored_event *events, size_t count,
                                    struct cairn_sentence *why)
{
    const int before = sqlite3_total_changes(store->db);
    cairn_status status = cairn_store_run(store, "PRAGMA synchronous = NORMAL; BEGIN IMMEDIATE",
                                          why);
    if (status == CAIRN_OK) {
        status = insert_all(store, events, count, why);
        if (status == CAIRN_OK)
            status = cairn_store_run_with(
                store, "DELETE FROM events WHERE number <= (SELECT max(number) FROM events) - ?1",
                CAIRN_STORE_EVENTS_MAX, why);
        status = cairn_store_end_transaction(store, status, why);
    }
    struct cairn_sentence ignored;
    const cairn_status again = cairn_store_run(store, "PRAGMA synchronous = FULL", &ignored);
    store->event_changes += (uint64_t)(sqlite3_total_changes(store->db) - before);
    return status == CAIRN_OK ? again : status;
}

cairn_status cairn_store_each_event(struct cairn_store *store, cairn_stored_event_fn take,
                                    void *context, struct cairn_sentence *why)
{
    sqlite3_stmt *s;
    cairn_status status = cairn_store_prepare(
        store, "SELECT number, unix_ms, kind, job, who, text FROM events ORDER BY number", &s, why);
    if (status != CAIRN_OK) return status;
    int code = sqlite3_step(s);
    for (; code == SQLITE_ROW && status == CAIRN_OK; code = sqlite3_step(s)) {
        const struct cairn_stored_event event = {
            .number = (uint64_t)sqlite3_column_int64(s, 0),
            .unix_ms = (uint64_t)sqlite3_column_int64(s, 1),
            .kind = (const char *)sqlite3_column_text(s, 2),
            .job = (const char *)sqlite3_column_text(s, 3),
            .who = (const char *)sqlite3_column_text(s, 4),
            .text = (const char *)sqlite3_column_text(s, 5),
        };
        status = take(context, &event, why);
    }
    if (status == CAIRN_OK && code != SQLITE_DONE) status = cairn_store_fail(store, "reading", why);
    sqlite3_finalize(s);
    return status;
}
