/* The cluster's jobs: cairn_job_list, cairn_job_drop, cairn_job_restore. They ask as an operator does. */
#include <stdio.h>
#include <string.h>

#include "client/api/api.h"
#include "client/base/admin.h"
#include "client/base/handle.h"
#include "client/base/struct.h"
#include "proto/base/text.h"

static bool has_ended(void *context)
{
    struct session *s = context;
    pthread_mutex_lock(&s->lock);
    const bool ended = s->ended;
    pthread_mutex_unlock(&s->lock);
    return ended;
}

/* Until the call leaves; NULL: it is not open. */
static struct session *session_of(const cairn_session *handle)
{
    struct session *s = cairn_handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) cairn_handle_fail(handle, "session");
    return s;
}

/* Sets this thread's sentence. */
static cairn_status ask(struct session *s, uint64_t deadline_ms, uint16_t type,
                        const ProtobufCMessage *message, uint16_t reply_type,
                        ProtobufCMessage **reply_out)
{
    const uint64_t now_ms = cairn_client_now_ms();
    struct cairn_sentence why;
    struct cairn_admin admin = { .endpoint = s->endpoint_text,
                                 .name = s->name,
                                 .advice = "?",
                                 .timeout_ms = deadline_ms > now_ms ? (int)(deadline_ms - now_ms)
                                                                    : 0,
                                 .ends = has_ended,
                                 .context = s };
    const cairn_status status = cairn_admin_call(&admin, type, message, reply_type, reply_out, NULL,
                                                 &why);
    if (status == CAIRN_ERR_CLOSED && has_ended(s)) // else it is the coordinator's: of a shard, say
        return cairn_client_fail(status, "the session was closed");
    return status == CAIRN_OK ? CAIRN_OK : cairn_client_fail(status, "%s", why.text);
}

/* ---- the list ---- */

static void fill_entry(const Cairn__JobStatus *job, struct cairn_job_entry *out)
{
    *out = (struct cairn_job_entry) {
        .struct_size = sizeof *out,
        .version = { job->generation, job->step },
        .version_known = !job->version_unknown,
        .workers = job->workers,
        .workers_min = job->workers_min,
        .shards = job->shards,
        .tensors = job->tensors,
        .elems = job->elems,
        .state_bytes = job->state_bytes,
    };
    snprintf(out->name, sizeof out->name, "%s", job->name);
    snprintf(out->state, sizeof out->state, "%s", job->state);
    snprintf(out->awaited, sizeof out->awaited, "%s", job->awaited);
    cairn_text_mend(out->awaited, ""); // it may have been cut in the middle of a character
}

static cairn_status list_inside(struct session *s, struct cairn_job_entry *entries, size_t *count,
                                uint64_t deadline_ms)
{
    const size_t room = entries != NULL ? *count : 0;
    const Cairn__JobListGet get = CAIRN__JOB_LIST_GET__INIT;
    ProtobufCMessage *reply;
    struct cairn_job_entry entry;
    if (room > 0 && !cairn_struct_fits(entries, sizeof entry))
        return cairn_client_fail(CAIRN_ERR_INVALID, "entries[0].struct_size must be %zu at least",
                                 sizeof entry);
    const cairn_status status = ask(s, deadline_ms, CAIRN_MSG_JOB_LIST_GET, &get.base,
                                    CAIRN_MSG_JOB_LIST, &reply);
    if (status != CAIRN_OK) return status;
    const Cairn__JobList *list = (const Cairn__JobList *)reply;
    const size_t size = room > 0 ? entries->struct_size : 0, found = list->n_jobs;
    for (size_t i = 0; i < found && found <= room; i++) {
        struct cairn_job_entry *to = (struct cairn_job_entry *)((uint8_t *)entries + i * size);
        fill_entry(list->jobs[i], &entry);
        to->struct_size = size;
        cairn_struct_give(to, &entry, sizeof entry);
    }
    *count = found;
    cairn_message_free(reply);
    return found <= room
               ? CAIRN_OK
               : cairn_client_fail(CAIRN_ERR_INVALID,
                                   "there are %zu jobs, and there is room for %zu", found, room);
}

cairn_status cairn_job_list(cairn_session *handle, struct cairn_job_entry *entries,
                            size_t *entry_count, int timeout_ms)
{
    struct session *s = session_of(handle);
    if (s == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_judge_call("entry_count", entry_count, timeout_ms);
    if (status == CAIRN_OK)
        status = list_inside(s, entries, entry_count, cairn_api_deadline(timeout_ms));
    cairn_handle_put(handle);
    return status;
}

/* ---- what it takes to change one ---- */

static cairn_status judge_change(const char *what, const char *given, uint32_t flags,
                                 uint32_t known, int timeout_ms)
{
    if (given == NULL || given[0] == '\0')
        return cairn_client_fail(CAIRN_ERR_INVALID, "%s must be given", what);
    if ((flags & ~known) != 0)
        return cairn_client_fail(CAIRN_ERR_INVALID, "flags 0x%x: only 0x%x are known",
                                 (unsigned)flags, (unsigned)known);
    return cairn_api_judge_call(NULL, NULL, timeout_ms);
}

cairn_status cairn_job_drop(cairn_session *handle, const char *name, uint32_t flags, int timeout_ms)
{
    struct session *s = session_of(handle);
    if (s == NULL) return CAIRN_ERR_HANDLE;
    Cairn__JobRemove remove = CAIRN__JOB_REMOVE__INIT;
    ProtobufCMessage *reply = NULL;
    cairn_status status = judge_change("name", name, flags, CAIRN_DROP_FORCE, timeout_ms);
    remove.name = (char *)(uintptr_t)name;
    remove.force = (flags & CAIRN_DROP_FORCE) != 0;
    if (status == CAIRN_OK)
        status = ask(s, cairn_api_deadline(timeout_ms), CAIRN_MSG_JOB_REMOVE, &remove.base,
                     CAIRN_MSG_JOB_REMOVED, &reply);
    cairn_message_free(reply);
    cairn_handle_put(handle);
    return status;
}

/* ---- restore ---- */

static cairn_status find_latest(struct session *s, const char *job, uint64_t deadline_ms,
                                char id_out[static 64])
{
    Cairn__SnapshotListGet get = CAIRN__SNAPSHOT_LIST_GET__INIT;
    ProtobufCMessage *reply;
    get.job = (char *)(uintptr_t)job;
    cairn_status status = ask(s, deadline_ms, CAIRN_MSG_SNAPSHOT_LIST_GET, &get.base,
                              CAIRN_MSG_SNAPSHOT_LIST, &reply);
    if (status != CAIRN_OK) return status;
    const Cairn__SnapshotStatus *latest = cairn_admin_latest((const Cairn__SnapshotList *)reply,
                                                             NULL);
    if (latest == NULL)
        status = cairn_client_fail(CAIRN_ERR_NOT_FOUND,
                                   "job %s has no committed snapshot that is not damaged", job);
    else
        snprintf(id_out, 64, "%s", latest->id);
    cairn_message_free(reply);
    return status;
}

static cairn_status call_restore(struct session *s, const Cairn__SnapshotRestore *restore,
                                 uint64_t deadline_ms, Cairn__SnapshotStatus **reply_out)
{
    ProtobufCMessage *reply = NULL;
    const cairn_status status = ask(s, deadline_ms, CAIRN_MSG_SNAPSHOT_RESTORE, &restore->base,
                                    CAIRN_MSG_SNAPSHOT_STATUS, &reply);
    *reply_out = (Cairn__SnapshotStatus *)reply;
    return status;
}

/* Would it take from a job what that has learned since? */
static cairn_status judge_replaced(struct session *s, const Cairn__SnapshotRestore *restore,
                                   uint64_t deadline_ms)
{
    Cairn__SnapshotRestore question = *restore;
    Cairn__SnapshotStatus *plan;
    struct cairn_sentence what;
    question.plan = true;
    cairn_status status = call_restore(s, &question, deadline_ms, &plan);
    if (status != CAIRN_OK) return status;
    if (cairn_admin_replaces(plan, &what))
        status = cairn_client_fail(CAIRN_ERR_EXISTS,
                                   "%s would be lost; give CAIRN_RESTORE_REPLACE if it may go",
                                   what.text);
    cairn_message_free(&plan->base);
    return status;
}

static cairn_status restore_inside(struct session *s, const Cairn__SnapshotRestore *asked,
                                   bool replaces, uint64_t deadline_ms, char *id_out,
                                   struct cairn_version *version_out)
{
    Cairn__SnapshotRestore restore = *asked;
    char latest[64];
    Cairn__SnapshotStatus *reply;
    cairn_status status = CAIRN_OK;
    if (strcmp(restore.id, "latest") == 0) {
        status = find_latest(s, restore.job, deadline_ms, latest);
        restore.id = latest;
    }
    if (status == CAIRN_OK && !replaces) status = judge_replaced(s, &restore, deadline_ms);
    if (status == CAIRN_OK) status = call_restore(s, &restore, deadline_ms, &reply);
    if (status != CAIRN_OK) return status;
    if (id_out != NULL) snprintf(id_out, 64, "%s", reply->id);
    if (version_out != NULL)
        *version_out = (struct cairn_version) { reply->restored_generation, reply->step };
    cairn_message_free(&reply->base);
    return CAIRN_OK;
}

cairn_status cairn_job_restore(cairn_session *handle, const char *name, const char *snapshot,
                               uint32_t flags, int timeout_ms, char id_out[64],
                               struct cairn_version *version_out)
{
    const uint32_t known = CAIRN_RESTORE_REPLACE | CAIRN_RESTORE_FALLBACK | CAIRN_RESTORE_UNSIGNED |
                           CAIRN_RESTORE_UNTRUSTED;
    struct session *s = session_of(handle);
    if (s == NULL) return CAIRN_ERR_HANDLE;
    Cairn__SnapshotRestore restore = CAIRN__SNAPSHOT_RESTORE__INIT;
    cairn_status status = judge_change("snapshot", snapshot, flags, known, timeout_ms);
    const bool by_path = status == CAIRN_OK && snapshot[0] == '/';
    if (status == CAIRN_OK && !by_path) status = judge_change("name", name, 0, 0, timeout_ms);
    if (status == CAIRN_OK) {
        if (name != NULL) restore.job = (char *)(uintptr_t)name;
        *(by_path ? &restore.path : &restore.id) = (char *)(uintptr_t)snapshot;
        restore.fallback = (flags & CAIRN_RESTORE_FALLBACK) != 0;
        restore.allow_unsigned = (flags & CAIRN_RESTORE_UNSIGNED) != 0;
        restore.allow_untrusted = (flags & CAIRN_RESTORE_UNTRUSTED) != 0;
        status = restore_inside(s, &restore, (flags & CAIRN_RESTORE_REPLACE) != 0,
                                cairn_api_deadline(timeout_ms), id_out, version_out);
    }
    cairn_handle_put(handle);
    return status;
}
