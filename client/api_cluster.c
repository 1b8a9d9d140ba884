#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/admin.h"
#include "client/base.h"
#include "client/device.h"
#include "client/job.h"
#include "client/op.h"
#include "client/push.h"
#include "proto/base/text.h"
#include "proto/spec/settings.h"

/* ==== admin ==== */

/* The cluster's jobs: cairn_job_list, cairn_job_drop, cairn_job_restore. They ask as an operator does. */

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
    struct session *s = handle_get(CAIRN_HANDLE_SESSION, handle);
    if (s == NULL) handle_fail(handle, "session");
    return s;
}

/* Sets this thread's sentence. */
static cairn_status ask(struct session *s, uint64_t deadline_ms, uint16_t type,
                        const ProtobufCMessage *message, uint16_t reply_type,
                        ProtobufCMessage **reply_out)
{
    const uint64_t now_ms = client_now_ms();
    struct sentence why;
    struct admin admin = { .endpoint = s->endpoint_text,
                           .name = s->name,
                           .advice = "?",
                           .timeout_ms = deadline_ms > now_ms ? (int)(deadline_ms - now_ms) : 0,
                           .ends = has_ended,
                           .context = s };
    const cairn_status status = admin_call(&admin, type, message, reply_type, reply_out, NULL,
                                           &why);
    if (status == CAIRN_ERR_CLOSED && has_ended(s)) // else it is the coordinator's: of a shard, say
        return client_fail(status, "the session was closed");
    return status == CAIRN_OK ? CAIRN_OK : client_fail(status, "%s", why.text);
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
    text_mend(out->awaited, ""); // it may have been cut in the middle of a character
}

static cairn_status list_inside(struct session *s, struct cairn_job_entry *entries, size_t *count,
                                uint64_t deadline_ms)
{
    const size_t room = entries != NULL ? *count : 0;
    const Cairn__JobListGet get = CAIRN__JOB_LIST_GET__INIT;
    ProtobufCMessage *reply;
    struct cairn_job_entry entry;
    if (room > 0 && !struct_fits(entries, sizeof entry))
        return client_fail(CAIRN_ERR_INVALID, "entries[0].struct_size must be %zu at least",
                           sizeof entry);
    CAIRN_TRY(ask(s, deadline_ms, CAIRN_MSG_JOB_LIST_GET, &get.base, CAIRN_MSG_JOB_LIST, &reply));
    const Cairn__JobList *list = (const Cairn__JobList *)reply;
    const size_t size = room > 0 ? entries->struct_size : 0, found = list->n_jobs;
    for (size_t i = 0; i < found && found <= room; i++) {
        struct cairn_job_entry *to = (struct cairn_job_entry *)((uint8_t *)entries + i * size);
        fill_entry(list->jobs[i], &entry);
        to->struct_size = size;
        struct_copy_out(to, &entry, sizeof entry);
    }
    *count = found;
    message_free(reply);
    return found <= room
               ? CAIRN_OK
               : client_fail(CAIRN_ERR_INVALID, "there are %zu jobs, and there is room for %zu",
                             found, room);
}

cairn_status cairn_job_list(cairn_session *handle, struct cairn_job_entry *entries,
                            size_t *entry_count, int timeout_ms)
{
    struct session *s = session_of(handle);
    if (s == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = api_judge_call("entry_count", entry_count, timeout_ms);
    if (status == CAIRN_OK) status = list_inside(s, entries, entry_count, api_deadline(timeout_ms));
    handle_put(handle);
    return status;
}

/* ---- what it takes to change one ---- */

static cairn_status judge_change(const char *what, const char *given, uint32_t flags,
                                 uint32_t known, int timeout_ms)
{
    if (given == NULL || given[0] == '\0')
        return client_fail(CAIRN_ERR_INVALID, "%s must be given", what);
    if ((flags & ~known) != 0)
        return client_fail(CAIRN_ERR_INVALID, "flags 0x%x: only 0x%x are known", (unsigned)flags,
                           (unsigned)known);
    return api_judge_call(NULL, NULL, timeout_ms);
}

cairn_status cairn_job_drop(cairn_session *handle, const char *name, uint32_t flags, int timeout_ms)
{
    struct session *s = session_of(handle);
    if (s == NULL) return CAIRN_ERR_HANDLE;
    Cairn__JobRemove remove = CAIRN__JOB_REMOVE__INIT;
    ProtobufCMessage *reply = NULL;
    cairn_status status = judge_change("name", name, flags, CAIRN_DROP_FORCE, timeout_ms);
    remove.name = wire_text(name);
    remove.force = (flags & CAIRN_DROP_FORCE) != 0;
    if (status == CAIRN_OK)
        status = ask(s, api_deadline(timeout_ms), CAIRN_MSG_JOB_REMOVE, &remove.base,
                     CAIRN_MSG_JOB_REMOVED, &reply);
    message_free(reply);
    handle_put(handle);
    return status;
}

/* ---- restore ---- */

static cairn_status find_latest(struct session *s, const char *job, uint64_t deadline_ms,
                                char id_out[static 64])
{
    Cairn__SnapshotListGet get = CAIRN__SNAPSHOT_LIST_GET__INIT;
    ProtobufCMessage *reply;
    get.job = wire_text(job);
    cairn_status status = ask(s, deadline_ms, CAIRN_MSG_SNAPSHOT_LIST_GET, &get.base,
                              CAIRN_MSG_SNAPSHOT_LIST, &reply);
    if (status != CAIRN_OK) return status;
    const Cairn__SnapshotStatus *latest = admin_latest((const Cairn__SnapshotList *)reply, NULL);
    if (latest == NULL)
        status = client_fail(CAIRN_ERR_NOT_FOUND,
                             "job %s has no committed snapshot that is not damaged", job);
    else
        snprintf(id_out, 64, "%s", latest->id);
    message_free(reply);
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
    struct sentence what;
    question.plan = true;
    cairn_status status = call_restore(s, &question, deadline_ms, &plan);
    if (status != CAIRN_OK) return status;
    if (admin_replaces(plan, &what))
        status = client_fail(CAIRN_ERR_EXISTS,
                             "%s would be lost; give CAIRN_RESTORE_REPLACE if it may go",
                             what.text);
    message_free(&plan->base);
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
    message_free(&reply->base);
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
        if (name != NULL) restore.job = wire_text(name);
        *(by_path ? &restore.path : &restore.id) = wire_text(snapshot);
        restore.fallback = (flags & CAIRN_RESTORE_FALLBACK) != 0;
        restore.allow_unsigned = (flags & CAIRN_RESTORE_UNSIGNED) != 0;
        restore.allow_untrusted = (flags & CAIRN_RESTORE_UNTRUSTED) != 0;
        status = restore_inside(s, &restore, (flags & CAIRN_RESTORE_REPLACE) != 0,
                                api_deadline(timeout_ms), id_out, version_out);
    }
    handle_put(handle);
    return status;
}

/* ==== amend ==== */

/* cairn_job_amend: the caller's words become one request. */

#define AMEND_BYTES_MAX (512 << 10)                                  // of a frame
#define LEAST           offsetof(struct cairn_amend, freeze_tensors) // of the first release

/* The request and what it owns. */
struct words {
    Cairn__JobAmend message;
    struct cairn_group *groups;      /* [group_count], as large as ours */
    Cairn__GroupSpec *packed;        /* [group_count] */
    Cairn__GroupSpec **list;         /* [group_count] */
    struct job_spec_data added;      /* the tensors to add, nothing else */
    Cairn__TensorSpec *tensors;      /* [add_count] */
    Cairn__TensorSpec **tensor_list; /* [add_count] */
    Cairn__TensorTie *ties;          /* [tie_count] */
    Cairn__TensorTie **tie_list;     /* [tie_count] */
    char **thaw_groups;              /* [unfreeze_tensor_count] */
    Cairn__Setting *settings;        /* [setting_count] */
    Cairn__Setting **setting_list;   /* [setting_count] */
};

static void release_words(struct words *words)
{
    free(words->groups);
    free(words->packed);
    free(words->list);
    spec_release(&words->added);
    free(words->tensors);
    free(words->tensor_list);
    free(words->ties);
    free(words->tie_list);
    free(words->thaw_groups);
    free(words->settings);
    free(words->setting_list);
}

static cairn_status add_groups(struct words *words, const struct cairn_amend *amend)
{
    const size_t count = amend->group_count;
    if (amend->groups == NULL && count > 0)
        return client_fail(CAIRN_ERR_INVALID, "groups is NULL, but group_count is %zu", count);
    words->groups = calloc(count + 1, sizeof *words->groups);
    words->packed = calloc(count + 1, sizeof *words->packed);
    words->list = calloc(count + 1, sizeof(Cairn__GroupSpec *));
    if (words->groups == NULL || words->packed == NULL || words->list == NULL)
        return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the amendment");
    for (size_t i = 0; i < count; i++) {
        CAIRN_TRY(client_group_copy(amend->groups, i, &words->groups[i]));
        const struct group_spec group = client_group_of(&words->groups[i]);
        if (words->groups[i].pattern != NULL || group.optimizer == NULL)
            return client_fail(CAIRN_ERR_INVALID,
                               "group %.64s of an amendment: pattern must be NULL (which "
                               "tensors it has does not change) and optimizer must be given",
                               group.name);
        group_to_message(&group, &words->packed[i]);
        words->list[i] = &words->packed[i];
    }
    words->message.groups = words->list;
    words->message.n_groups = count;
    return CAIRN_OK;
}

static cairn_status add_tensors(struct words *words, const struct cairn_amend *amend)
{
    const size_t count = amend->add_count;
    if (count == 0) return CAIRN_OK;
    if (amend->add == NULL)
        return client_fail(CAIRN_ERR_INVALID, "add is NULL, but add_count is %zu", count);
    CAIRN_TRY(client_added_fill(amend->add, count, &words->added));
    words->tensors = calloc(count, sizeof *words->tensors);
    words->tensor_list = calloc(count, sizeof *words->tensor_list);
    if (words->tensors == NULL || words->tensor_list == NULL)
        return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the amendment");
    for (size_t i = 0; i < count; i++) {
        tensor_to_message(&words->added.tensors[i], &words->tensors[i]);
        words->tensor_list[i] = &words->tensors[i];
    }
    words->message.add = words->tensor_list;
    words->message.n_add = count;
    return CAIRN_OK;
}

static cairn_status add_ties(struct words *words, const struct cairn_amend *amend)
{
    const size_t count = amend->tie_count;
    if (count == 0) return CAIRN_OK;
    words->ties = calloc(count, sizeof *words->ties);
    words->tie_list = calloc(count, sizeof *words->tie_list);
    if (words->ties == NULL || words->tie_list == NULL)
        return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the amendment");
    for (size_t i = 0; i < count; i++) {
        if (amend->ties == NULL || amend->ties[i].name == NULL || amend->ties[i].alias_of == NULL)
            return client_fail(CAIRN_ERR_INVALID, "a name of a tensor to tie is NULL");
        cairn__tensor_tie__init(&words->ties[i]);
        words->ties[i].name = wire_text(amend->ties[i].name);
        words->ties[i].alias_of = wire_text(amend->ties[i].alias_of);
        words->tie_list[i] = &words->ties[i];
    }
    words->message.ties = words->tie_list;
    words->message.n_ties = count;
    return CAIRN_OK;
}

static cairn_status add_thaw_groups(struct words *words, const struct cairn_amend *amend)
{
    static char none[] = "";
    const size_t count = amend->unfreeze_tensor_count;
    if (amend->unfreeze_tensor_groups == NULL || count == 0) return CAIRN_OK;
    words->thaw_groups = calloc(count, sizeof *words->thaw_groups);
    if (words->thaw_groups == NULL)
        return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the amendment");
    for (size_t i = 0; i < count; i++) {
        const char *group = amend->unfreeze_tensor_groups[i];
        words->thaw_groups[i] = group != NULL ? wire_text(group) : none;
    }
    words->message.unfreeze_groups = words->thaw_groups;
    words->message.n_unfreeze_groups = count;
    return CAIRN_OK;
}

static cairn_status add_settings(struct words *words, const struct cairn_amend *amend)
{
    const size_t count = amend->setting_count;
    if (count == 0) return CAIRN_OK;
    words->settings = calloc(count, sizeof *words->settings);
    words->setting_list = calloc(count, sizeof *words->setting_list);
    if (words->settings == NULL || words->setting_list == NULL)
        return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the amendment");
    for (size_t i = 0; i < count; i++) {
        const struct cairn_setting *from = amend->settings != NULL ? &amend->settings[i] : NULL;
        if (from == NULL || from->key == NULL || from->value == NULL)
            return client_fail(CAIRN_ERR_INVALID, "a key or a value of a setting is NULL");
        cairn__setting__init(&words->settings[i]);
        words->settings[i].key = wire_text(from->key);
        words->settings[i].value = wire_text(from->value);
        words->setting_list[i] = &words->settings[i];
    }
    words->message.settings = words->setting_list;
    words->message.n_settings = count;
    return CAIRN_OK;
}

static cairn_status judge_names(const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (names == NULL || names[i] == NULL)
            return client_fail(CAIRN_ERR_INVALID, "a name to freeze or unfreeze is NULL");
    return CAIRN_OK;
}

static cairn_status judge_amend(const struct cairn_amend *amend)
{
    if (amend->workers_min == 0 && amend->workers_max != 0)
        return client_fail(CAIRN_ERR_INVALID, "workers_max is %u without workers_min; give both",
                           amend->workers_max);
    const size_t max = CAIRN_SPEC_GROUPS_MAX, most = CAIRN_SPEC_TENSORS_MAX;
    if (amend->group_count > max || amend->freeze_count > max || amend->unfreeze_count > max)
        return client_fail(
            CAIRN_ERR_INVALID,
            "an amendment has %zu groups, %zu to freeze, %zu to unfreeze; allowed: 0 to %zu",
            amend->group_count, amend->freeze_count, amend->unfreeze_count, max);
    if (amend->freeze_tensor_count > most || amend->unfreeze_tensor_count > most ||
        amend->add_count > most || amend->tie_count > most)
        return client_fail(CAIRN_ERR_INVALID,
                           "an amendment freezes %zu tensors, unfreezes %zu, adds %zu, ties "
                           "%zu; allowed: 0 to %zu",
                           amend->freeze_tensor_count, amend->unfreeze_tensor_count,
                           amend->add_count, amend->tie_count, most);
    if (amend->setting_count > CAIRN_SETTINGS_MAX)
        return client_fail(CAIRN_ERR_INVALID, "an amendment has %zu settings; allowed: 0 to %d",
                           amend->setting_count, CAIRN_SETTINGS_MAX);
    const struct {
        const char *const *names;
        size_t count;
    } lists[] = { { amend->freeze, amend->freeze_count },
                  { amend->unfreeze, amend->unfreeze_count },
                  { amend->freeze_tensors, amend->freeze_tensor_count },
                  { amend->unfreeze_tensors, amend->unfreeze_tensor_count } };
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0] && status == CAIRN_OK; i++)
        status = judge_names(lists[i].names, lists[i].count);
    return status;
}

static void fill_snapshot_rules(Cairn__JobAmend *m, const struct cairn_amend *amend)
{
    m->set_snapshot_rules = amend->set_snapshot_rules;
    m->snapshot_every_s = amend->snapshot_every_s;
    m->snapshot_keep_every = amend->snapshot_keep_every;
    m->snapshot_keep_within_s = amend->snapshot_keep_within_s;
    m->snapshot_max_bytes = amend->snapshot_max_bytes;
    m->snapshot_staging = (uint32_t)amend->snapshot_staging;
    m->snapshot_durable_within_s = amend->snapshot_durable_within_s;
    m->snapshot_fallback = amend->snapshot_fallback;
    m->snapshot_scrub_every_s = amend->snapshot_scrub_every_s;
}

static cairn_status fill_amend(struct words *words, const struct cairn_amend *amend)
{
    Cairn__JobAmend *m = &words->message;
    randombytes_buf(&m->key, sizeof m->key);
    m->key |= 1; // not 0
    m->revision = amend->revision;
    m->set_clip_norm = amend->set_clip_norm;
    m->clip_norm = amend->clip_norm;
    m->workers_min = amend->workers_min;
    m->workers_max = amend->workers_max;
    m->freeze = (char **)(uintptr_t)amend->freeze; // protobuf-c lacks the const
    m->n_freeze = amend->freeze_count;
    m->unfreeze = (char **)(uintptr_t)amend->unfreeze;
    m->n_unfreeze = amend->unfreeze_count;
    m->freeze_tensors = (char **)(uintptr_t)amend->freeze_tensors;
    m->n_freeze_tensors = amend->freeze_tensor_count;
    m->unfreeze_tensors = (char **)(uintptr_t)amend->unfreeze_tensors;
    m->n_unfreeze_tensors = amend->unfreeze_tensor_count;
    m->set_snapshots = amend->set_snapshots;
    m->snapshot_every = amend->snapshot_every;
    m->snapshot_keep = amend->snapshot_keep;
    fill_snapshot_rules(m, amend);
    m->set_shard_loss = amend->set_shard_loss;
    m->on_shard_loss = (uint32_t)amend->on_shard_loss;
    m->shard_loss_wait_s = amend->shard_loss_wait_s;
    m->set_worker_loss = amend->set_worker_loss;
    m->on_worker_loss = (uint32_t)amend->on_worker_loss;
    m->worker_loss_wait_s = amend->worker_loss_wait_s;
    cairn_status status = add_groups(words, amend);
    if (status == CAIRN_OK) status = add_tensors(words, amend);
    if (status == CAIRN_OK) status = add_ties(words, amend);
    if (status == CAIRN_OK) status = add_thaw_groups(words, amend);
    if (status == CAIRN_OK) status = add_settings(words, amend);
    if (status != CAIRN_OK || cairn__job_amend__get_packed_size(m) <= AMEND_BYTES_MAX)
        return status;
    return client_fail(CAIRN_ERR_INVALID, "the amendment is over %d bytes: amend less at a time",
                       AMEND_BYTES_MAX);
}

static bool reserves_nothing(const struct cairn_amend *amend)
{
    return struct_is_zero(amend->reserved, sizeof amend->reserved) &&
           struct_is_zero(amend->reserved_losses, sizeof amend->reserved_losses) &&
           struct_is_zero(amend->reserved_rules, sizeof amend->reserved_rules) &&
           struct_is_zero(amend->reserved_settings, sizeof amend->reserved_settings);
}

cairn_status cairn_job_amend(cairn_job *handle, const struct cairn_amend *amend, int timeout_ms)
{
    struct job *job = api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    struct words words = { .message = CAIRN__JOB_AMEND__INIT };
    struct cairn_amend own;
    spec_init(&words.added);
    cairn_status status = api_check(job);
    if (status == CAIRN_OK && (timeout_ms < 0 || !struct_copy_in(&own, sizeof own, LEAST, amend)))
        status = client_fail(
            CAIRN_ERR_INVALID,
            "amend must be given with its struct_size (%zu), timeout_ms be 0 or more", sizeof own);
    if (status == CAIRN_OK && !reserves_nothing(&own))
        status = client_fail(CAIRN_ERR_INVALID, "amend: what is reserved is not 0");
    if (status == CAIRN_OK && job->member.role != CAIRN_WORKER)
        status = client_fail(CAIRN_ERR_REFUSED, "a reader does not amend a job");
    if (status == CAIRN_OK) status = judge_amend(&own);
    if (status == CAIRN_OK) status = fill_amend(&words, &own);
    if (status == CAIRN_OK)
        status = ask_coordinator(job, CAIRN_MSG_JOB_AMEND, &words.message.base,
                                 CAIRN_MSG_JOB_AMENDED, api_deadline(timeout_ms), NULL);
    if (status == CAIRN_OK && own.set_clip_norm) // before the round that goes by it
        job_note_clip_norm(job, own.clip_norm);
    release_words(&words);
    return api_leave(handle, status);
}

/* ==== lease ==== */

/* Leases: a version that is kept while it is read. The library does not renew them: a reader that hangs must
 * not hold the shards' memory. */

static cairn_status ask_drop(struct job *job, Cairn__LeaseDrop *message, uint64_t deadline_ms)
{
    return ask_coordinator(job, CAIRN_MSG_LEASE_DROP, &message->base, CAIRN_MSG_DONE, deadline_ms,
                           NULL);
}

static bool withdraw_run(struct command *command)
{
    struct session *s = command->job->session;
    Cairn__LeaseDrop message = CAIRN__LEASE_DROP__INIT;
    message.job = command->job->attachment.job;
    message.key = command->round;
    control_send(s, CAIRN_MSG_LEASE_DROP, ++s->control.last_request, &message.base);
    return true;
}

/* The wish of that key is withdrawn, and what it began ends. Nobody waits for that: unheard, it ends all the
 * same, with its time or with the connection. */
static void withdraw(struct job *job, uint64_t key)
{
    struct command *command = op_command(job, withdraw_run);
    if (command == NULL) return;
    command->round = key;
    session_command(job->session, command);
}

/* The layouts by which it is read are kept as long. */
static void note_lease(struct job *job, struct cairn_version version, int ttl_ms)
{
    const uint64_t now_ms = client_now_ms(), until_ms = now_ms + (uint64_t)ttl_ms;
    struct leased *leased = &job->leased;
    pthread_mutex_lock(&job->session->lock);
    if (leased->until_ms <= now_ms || version_compare(version, leased->oldest) < 0)
        leased->oldest = version;
    if (until_ms > leased->until_ms) leased->until_ms = until_ms;
    pthread_mutex_unlock(&job->session->lock);
}

static cairn_status take_lease(struct job *job, struct cairn_version version, int ttl_ms,
                               uint64_t deadline_ms, struct cairn_version *out)
{
    Cairn__LeaseTake message = CAIRN__LEASE_TAKE__INIT;
    ProtobufCMessage *reply;
    message.generation = version.generation;
    message.step = version.step;
    message.ttl_ms = (uint32_t)ttl_ms;
    randombytes_buf(&message.key, sizeof message.key);
    message.key |= 1; // not 0
    const cairn_status status = ask_coordinator(job, CAIRN_MSG_LEASE_TAKE, &message.base,
                                                CAIRN_MSG_LEASED, deadline_ms, &reply);
    if (status == CAIRN_ERR_TIMEOUT) withdraw(job, message.key);
    if (status != CAIRN_OK) return status;
    const Cairn__Leased *leased = (const Cairn__Leased *)reply;
    *out = (struct cairn_version) { leased->generation, leased->step };
    message_free(reply);
    note_lease(job, *out, ttl_ms);
    return CAIRN_OK;
}

cairn_status cairn_lease(cairn_job *handle, struct cairn_version version, int ttl_ms,
                         int timeout_ms, struct cairn_version *out)
{
    struct job *job = api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = api_check(job);
    if (status == CAIRN_OK) status = api_judge_call("out", out, timeout_ms);
    if (status == CAIRN_OK && ttl_ms <= 0)
        status = client_fail(CAIRN_ERR_INVALID, "ttl_ms is %d; give 1 or more", ttl_ms);
    if (status == CAIRN_OK)
        status = take_lease(job, version, ttl_ms, api_deadline(timeout_ms), out);
    return api_leave(handle, status);
}

cairn_status cairn_lease_end(cairn_job *handle, struct cairn_version version, int timeout_ms)
{
    struct job *job = api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = api_check(job);
    if (status == CAIRN_OK) status = api_judge_call(NULL, NULL, timeout_ms);
    if (status == CAIRN_OK) {
        Cairn__LeaseDrop message = CAIRN__LEASE_DROP__INIT;
        message.generation = version.generation;
        message.step = version.step;
        status = ask_drop(job, &message, api_deadline(timeout_ms));
    }
    return api_leave(handle, status);
}

/* ==== list ==== */

/* Lists: tensors that go together. A list is described once, and judged then as far as that is possible;
 * what depends on the round is judged for all of its entries before anything of one is sent. A list
 * is one operation; of one with memory of cards each entry has its own. */

struct list {
    struct job *job; /* with a reference */
    int plane;       /* of fetches; 0: these are pushes */
    bool has_card;   /* some of the memory is a card's */
    size_t count;
    struct target *targets;  /* owned: [count] */
    struct cairn_mem mems[]; /* [count] of them, as judged */
};

static void free_list(struct list *list)
{
    free(list->targets);
    free(list);
}

static void on_handle_free(void *object)
{
    struct list *list = object;
    job_unref(list->job);
    free_list(list);
}

static const char *name_of(const struct list *list, size_t index)
{
    return list->job->spec.tensors[list->targets[index].tensor].name;
}

/* ---- describing ---- */

/* Says which entry is meant before what was wrong with it. */
static cairn_status refuse_entry(cairn_status status, size_t index, const char *tensor)
{
    struct sentence why;
    sentence_set(&why, "%s", cairn_error());
    return client_fail(status, "entry %zu of the list (%s): %s", index,
                       tensor != NULL ? tensor : "without a name", why.text);
}

static cairn_status judge_entry(struct list *list, const struct cairn_part *part, size_t index)
{
    struct cairn_part given;
    struct command pattern = { .plane = 0 };
    struct cairn_mem *mem = &list->mems[index];
    size_t tensor;
    cairn_status status;
    if (!struct_copy_in(&given, sizeof given, sizeof given, part))
        return client_fail(CAIRN_ERR_INVALID, "struct_size is %zu, this library's is %zu",
                           part->struct_size, sizeof given);
    if (list->plane == 0)
        status = api_judge_push(list->job, given.tensor, given.box, &given.mem, &tensor,
                                &pattern.piece, mem);
    else
        status = api_judge_fetch(list->job, given.tensor, list->plane, given.box, &given.mem,
                                 &tensor, &pattern.piece, mem);
    if (status == CAIRN_OK) status = api_card(mem, &pattern.card);
    if (status != CAIRN_OK) return status;
    pattern.tensor = (uint32_t)tensor;
    pattern.dtype = (uint8_t)mem->dtype;
    pattern.ptr = mem->ptr;
    op_describe_target(&pattern, &list->targets[index]);
    list->has_card = list->has_card || pattern.card != NULL;
    return CAIRN_OK;
}

/* Refuses a list that names a tensor twice, if it is the list of a push. */
static cairn_status note_twice(const struct list *list, uint8_t *seen, size_t index)
{
    const size_t tensor = list->targets[index].tensor;
    if (list->plane != 0) return CAIRN_OK;
    if (seen[tensor])
        return client_fail(CAIRN_ERR_EXISTS,
                           "an entry before it is this tensor, too; add gradients before "
                           "pushing, or end the micro-batch");
    seen[tensor] = 1;
    return CAIRN_OK;
}

static cairn_status judge_entries(struct list *list, const struct cairn_part *parts)
{
    cairn_status status = CAIRN_OK;
    uint8_t *seen = calloc(list->job->spec.tensor_count + 1, 1);
    if (seen == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for a list");
    for (size_t i = 0; i < list->count && status == CAIRN_OK; i++) {
        status = judge_entry(list, &parts[i], i);
        if (status == CAIRN_OK) status = note_twice(list, seen, i);
        if (status != CAIRN_OK) status = refuse_entry(status, i, parts[i].tensor);
    }
    free(seen);
    return status;
}

static cairn_status open_list(struct job *job, int plane, const struct cairn_part *parts,
                              size_t count, cairn_list **out)
{
    if (out == NULL || count == 0 || parts == NULL)
        return client_fail(CAIRN_ERR_INVALID, "out and at least one part must be given");
    if (count > job->spec.tensor_count * 64)
        return client_fail(CAIRN_ERR_INVALID, "%zu parts, and job %s has %zu tensors", count,
                           job->name, job->spec.tensor_count);
    struct list *list = calloc(1, sizeof *list + count * sizeof *list->mems);
    if (list == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for a list");
    *list = (struct list) { .job = job, .plane = plane, .count = count };
    list->targets = calloc(count, sizeof *list->targets);
    const cairn_status status = list->targets != NULL
                                    ? judge_entries(list, parts)
                                    : client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for a list");
    void *handle = NULL;
    if (status == CAIRN_OK) handle = handle_open(CAIRN_HANDLE_LIST, list, on_handle_free);
    if (handle == NULL) {
        free_list(list);
        return status != CAIRN_OK
                   ? status
                   : client_fail(CAIRN_ERR_NO_MEMORY, "out of memory, or too much is open");
    }
    job_ref(job);
    *out = handle;
    return CAIRN_OK;
}

cairn_status cairn_push_list(cairn_job *handle, const struct cairn_part *parts, size_t count,
                             cairn_list **out)
{
    struct job *job = api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = api_check(job);
    if (status == CAIRN_OK) status = open_list(job, 0, parts, count, out);
    return api_leave(handle, status);
}

cairn_status cairn_fetch_list(cairn_job *handle, const char *plane, const struct cairn_part *parts,
                              size_t count, cairn_list **out)
{
    struct job *job = api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    int number = 0;
    cairn_status status = api_check(job);
    if (status == CAIRN_OK) status = api_plane_of(plane, &number);
    if (status == CAIRN_OK) status = open_list(job, number, parts, count, out);
    return api_leave(handle, status);
}

void cairn_list_close(cairn_list *list)
{
    if (list != NULL) (void)handle_close(CAIRN_HANDLE_LIST, list);
}

/* ---- posting ---- */

static struct list *list_of(const cairn_list *handle, bool is_fetch)
{
    struct list *list = handle_get(CAIRN_HANDLE_LIST, handle);
    if (list == NULL) {
        handle_fail(handle, "list");
        return NULL;
    }
    if ((list->plane != 0) == is_fetch && !list->job->closing) return list;
    client_fail(CAIRN_ERR_HANDLE,
                list->job->closing ? "the job of this list is closed"
                                   : "it is a list of cairn_%s_list, and posted by "
                                     "cairn_%s_many",
                is_fetch ? "push" : "fetch", is_fetch ? "push" : "fetch");
    handle_put(handle);
    return NULL;
}

/* The end of an entry's, for the operation of all. */
static void on_entry_done(void *context, cairn_status status, const char *why)
{
    op_let_go(context, status, status != CAIRN_OK ? why : NULL);
}

/* Fills in the command that entry `index` is posted as. Memory on a card is posted with an event,
 * so that the work queued on its stream comes first; memory on a card that has strides is copied to
 * the host here. */
static cairn_status describe(const struct list *list, size_t index, struct command *pattern)
{
    const struct target *target = &list->targets[index];
    struct cairn_mem mem = list->mems[index];
    cairn_status status = CAIRN_OK;
    pattern->tensor = target->tensor;
    pattern->dtype = target->dtype;
    pattern->piece = target->piece;
    pattern->card = target->card;
    pattern->event = NULL;
    pattern->owned = NULL;
    if (target->card != NULL && target->piece.strides.given) {
        status = api_bring(&mem, &target->piece, &pattern->owned);
        pattern->card = NULL;
    } else if (target->card != NULL) {
        status = card_mark(target->card, mem.stream, &pattern->event);
    }
    pattern->ptr = mem.ptr;
    return status;
}

/* All of them, or none. */
static cairn_status begin_entries(const struct list *list, uint8_t kind,
                                  bool (*run)(struct command *), struct command *pattern,
                                  struct command_chain *chain)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < list->count && status == CAIRN_OK; i++) {
        status = describe(list, i, pattern);
        if (status == CAIRN_OK) status = op_chain(list->job, kind, run, pattern, chain);
        if (status == CAIRN_OK) continue;
        card_event_free(pattern->event);
        free(pattern->owned);
        status = refuse_entry(status, i, name_of(list, i));
    }
    return status;
}

/* Each entry has an operation of its own, which waits for its stream, and which nobody waits for; that of the
 * caller's, if it is wanted, ends with the last of them. */
static cairn_status post_each(const struct list *list, uint8_t kind, bool (*run)(struct command *),
                              struct command *pattern, cairn_op **op_out)
{
    struct command_chain chain = { .of = NULL };
    if (op_out != NULL) {
        chain.of = op_create(list->job, kind, true);
        if (chain.of == NULL)
            return client_fail(CAIRN_ERR_NO_MEMORY,
                               "out of memory, or too many operations are open");
        pattern->on_done = on_entry_done;
        pattern->context = chain.of;
    }
    const cairn_status status = begin_entries(list, kind, run, pattern, &chain);
    void *handle = chain.of != NULL ? chain.of->handle : NULL;
    if (status == CAIRN_OK) {
        op_chain_go(list->job->session, &chain);
        if (op_out != NULL) *op_out = handle;
        return CAIRN_OK;
    }
    op_chain_drop(&chain);
    if (handle != NULL) (void)handle_close(CAIRN_HANDLE_OP, handle);
    return status;
}

/* Hands all of the list over, as one operation if nothing of it waits for a stream. */
static cairn_status post(const struct list *list, const cairn_list *handle, uint8_t kind,
                         bool (*run)(struct command *), struct command *pattern, cairn_op **op_out)
{
    size_t wrong;
    if (list->has_card) return post_each(list, kind, run, pattern, op_out);
    const struct op_list of = { .handle = handle, .targets = list->targets, .count = list->count };
    const cairn_status status = op_begin_list(list->job, kind, run, pattern, &of, op_out, &wrong);
    return status != CAIRN_OK && wrong < list->count
               ? refuse_entry(status, wrong, name_of(list, wrong))
               : status;
}

/* ---- pushes ---- */

static cairn_status fill_list(const struct list *list, const struct cairn_round *round,
                              uint32_t micro)
{
    size_t wrong;
    const size_t count = list->count;
    size_t *tensors = malloc(count * sizeof *tensors);
    if (tensors == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for a push");
    for (size_t i = 0; i < count; i++) tensors[i] = list->targets[i].tensor;
    cairn_status status = api_fill_many(list->job, round, micro, tensors, count, &wrong);
    if (status != CAIRN_OK && wrong < count)
        status = refuse_entry(status, wrong, list->job->spec.tensors[tensors[wrong]].name);
    free(tensors);
    return status;
}

static void unfill(const struct list *list)
{
    pthread_mutex_lock(&list->job->session->lock);
    for (size_t i = 0; i < list->count; i++)
        list->job->filling.tensors[list->targets[i].tensor] = NOT_PUSHED;
    pthread_mutex_unlock(&list->job->session->lock);
}

/* Each is counted in filling.adding, and counted down by its call in any case. */
static cairn_status add_up(const struct list *list, const struct cairn_round *round, uint32_t micro)
{
    cairn_status first = CAIRN_OK;
    for (size_t i = 0; i < list->count; i++) {
        const struct target *target = &list->targets[i];
        struct cairn_mem mem = list->mems[i];
        void *copy = NULL;
        cairn_status status = api_bring(&mem, &target->piece, &copy);
        if (status == CAIRN_OK)
            status = accumulate_add(list->job, round, micro, target->tensor, &target->piece, &mem);
        else
            accumulate_skip(list->job, target->tensor);
        free(copy);
        if (status != CAIRN_OK && first == CAIRN_OK)
            first = refuse_entry(status, i, name_of(list, i));
    }
    return first;
}

static cairn_status push_many(const struct list *list, const cairn_list *handle,
                              const struct cairn_round *round, uint32_t micro, cairn_op **op_out)
{
    struct job *job = list->job;
    cairn_status status = api_batch_place(job, round, &micro);
    if (status == CAIRN_OK) status = fill_list(list, round, micro);
    if (status != CAIRN_OK) return status;
    if (accumulate_wanted(job)) {
        status = add_up(list, round, micro);
        return status == CAIRN_OK ? op_finished(job, CAIRN_CHUNK_PUSH, op_out) : status;
    }
    struct command pattern = { .micro = micro, .round = round->round };
    status = post(list, handle, CAIRN_CHUNK_PUSH, pushes_run, &pattern, op_out);
    if (status != CAIRN_OK) unfill(list); // it may be tried again
    return status;
}

cairn_status cairn_push_many(cairn_list *handle, const struct cairn_round *round, uint32_t micro,
                             cairn_op **op_out)
{
    const struct list *list = list_of(handle, false);
    if (list == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = api_check(list->job);
    if (status == CAIRN_OK) status = push_many(list, handle, round, micro, op_out);
    handle_put(handle);
    return status;
}

/* ---- fetches ---- */

cairn_status cairn_fetch_many(cairn_list *handle, struct cairn_version version, cairn_op **op_out)
{
    if (op_out == NULL)
        return client_fail(CAIRN_ERR_INVALID,
                           "op_out is NULL: nothing else says when a fetch is done");
    const struct list *list = list_of(handle, true);
    if (list == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = api_check(list->job);
    struct command pattern = { .plane = (uint8_t)list->plane, .version = version };
    if (status == CAIRN_OK)
        status = post(list, handle, CAIRN_CHUNK_FETCH, transfer_run, &pattern, op_out);
    handle_put(handle);
    return status;
}
