/* cairn snapshot restore, and cairn job create, which is the same with a name of its own: ask before they
 * replace a job that is not lost. */
#include <limits.h>
#include <string.h>

#include "client/base/admin.h"
#include "client/ctl/snapshot/place.h"
#include "proto/snapshot/snapshot_file.h"

static cairn_status call(struct ctl *ctl, const Cairn__SnapshotRestore *restore,
                         Cairn__SnapshotStatus **reply_out)
{
    ProtobufCMessage *reply = NULL;
    const cairn_status status = cairn_ctl_call(ctl, CAIRN_MSG_SNAPSHOT_RESTORE, &restore->base,
                                               CAIRN_MSG_SNAPSHOT_STATUS, &reply);
    *reply_out = (Cairn__SnapshotStatus *)reply;
    return status;
}

/* Asks before a restore that loses steps. -1: go on; else the exit status. A lost job has nothing
 * more to lose, unless its parts return. */
static int confirm(struct ctl *ctl, const Cairn__SnapshotRestore *restore)
{
    Cairn__SnapshotRestore question = *restore;
    Cairn__SnapshotStatus *plan;
    struct cairn_sentence what;
    if (ctl->yes) return -1;
    question.plan = true;
    const cairn_status called = call(ctl, &question, &plan);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    int refused = -1;
    if (cairn_admin_replaces(plan, &what)) refused = cairn_ctl_confirm(ctl, what.text, plan->job);
    cairn_message_free(&plan->base);
    return refused;
}

static json_t *replaced_json(const Cairn__ReplacedJob *r)
{
    const bool known = !r->version_unknown;
    return json_pack("{s:s, s:o, s:o, s:i, s:i}", "state", r->state, "generation",
                     cairn_ctl_json_known(known, r->generation), "step",
                     cairn_ctl_json_known(known, r->step), "workers", (int)r->workers, "readers",
                     (int)r->readers);
}

static int print_json(const Cairn__SnapshotStatus *s)
{
    json_t *object = cairn_ctl_snapshot_json(s);
    json_object_set_new(object, "restored_generation",
                        json_integer((json_int_t)s->restored_generation));
    json_object_set_new(object, "replaced",
                        s->replaced == NULL ? json_null() : replaced_json(s->replaced));
    json_object_set_new(object, "passed_over", json_string(s->passed_over));
    return cairn_ctl_print_json(object);
}

static void print(const Cairn__SnapshotStatus *s)
{
    struct cairn_sentence members;
    cairn_ctl_snapshot_print(s);
    cairn_ctl_line("restored", "job %s, generation %llu", s->job,
                   (unsigned long long)s->restored_generation);
    if (s->replaced == NULL) return;
    cairn_admin_members(s->replaced, &members);
    cairn_ctl_version_line("replaced", s->replaced->generation, s->replaced->step,
                           s->replaced->version_unknown);
    cairn_ctl_line("must open again", "%s", members.text);
}

int cairn_ctl_snapshot_latest(struct ctl *ctl, const char *job,
                              char id_out[CAIRN_SNAPSHOT_ID_BYTES])
{
    Cairn__SnapshotListGet get = CAIRN__SNAPSHOT_LIST_GET__INIT;
    get.job = (char *)(uintptr_t)job;
    ProtobufCMessage *reply;
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_SNAPSHOT_LIST_GET, &get.base,
                                               CAIRN_MSG_SNAPSHOT_LIST, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__SnapshotList *list = (const Cairn__SnapshotList *)reply;
    const bool is_any = list->n_snapshots > 0;
    const Cairn__SnapshotStatus *latest = cairn_admin_latest(list, cairn_ctl_warn_damaged);
    const bool found = latest != NULL;
    if (found) snprintf(id_out, CAIRN_SNAPSHOT_ID_BYTES, "%s", latest->id);
    cairn_message_free(reply);
    if (found) return -1;
    return cairn_ctl_fail(
        CAIRN_ERR_NOT_FOUND,
        !is_any ? "job %s has no committed snapshot; see cairn snapshot list"
                : "job %s has only damaged snapshots; name one by its id, or make the job anew",
        job);
}

/* Restores it, or says what that would be. */
static int restore_it(struct ctl *ctl, Cairn__SnapshotRestore *restore)
{
    Cairn__SnapshotStatus *reply;
    restore->allow_unsigned = ctl->allow_unsigned;
    restore->allow_untrusted = ctl->allow_untrusted;
    restore->fallback = ctl->fallback;
    if (ctl->timeout_ms == 0) ctl->timeout_ms = CTL_SNAPSHOT_TIMEOUT_MS;
    const int refused = confirm(ctl, restore);
    if (refused >= 0) return refused;
    const cairn_status called = call(ctl, restore, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    if (reply->passed_over[0] != '\0')
        fprintf(stderr, "cairn: passed over: %s; %s, of step %llu, was restored in its place\n",
                reply->passed_over, reply->id, (unsigned long long)reply->step);
    if (ctl->json)
        print_json(reply);
    else if (ctl->quiet)
        printf("%s\n", reply->id);
    else
        print(reply);
    cairn_message_free(&reply->base);
    return 0;
}

int cairn_ctl_snapshot_restore(struct ctl *ctl)
{
    Cairn__SnapshotRestore restore = CAIRN__SNAPSHOT_RESTORE__INIT;
    char path[PATH_MAX], latest[CAIRN_SNAPSHOT_ID_BYTES];
    const bool by_id = ctl->argc == 2 && ctl->path == NULL && ctl->job == NULL;
    const bool by_path = ctl->argc == 0 && ctl->path != NULL;
    if (!by_id && !by_path)
        return cairn_ctl_fail(CAIRN_ERR_INVALID,
                              "usage: cairn snapshot restore JOB ID|latest, or cairn snapshot "
                              "restore --path FOLDER [--job NAME]");
    int refused = by_path ? cairn_ctl_absolute("--path", ctl->path, path) : -1;
    if (refused >= 0) return refused;
    if (by_id) {
        restore.job = ctl->argv[0];
        restore.id = ctl->argv[1];
    } else {
        restore.path = path;
        if (ctl->job != NULL) restore.job = (char *)(uintptr_t)ctl->job;
    }
    if (by_id && strcmp(restore.id, "latest") == 0) {
        restore.id = latest;
        refused = cairn_ctl_snapshot_latest(ctl, restore.job, latest);
        if (refused >= 0) return refused;
    }
    return restore_it(ctl, &restore);
}

/* "JOB/ID" is one of the coordinator's; anything else a folder. -1: go on; else the exit status. */
static int find_from(struct ctl *ctl, char folder_out[static PATH_MAX])
{
    char job[CAIRN_NAME_MAX + 1];
    const char *slash = strchr(ctl->from, '/');
    const size_t length = slash != NULL ? (size_t)(slash - ctl->from) : 0;
    if (length == 0 || length >= sizeof job || strchr(slash + 1, '/') != NULL ||
        ctl->from[0] == '.')
        return cairn_ctl_absolute("--from", ctl->from, folder_out);
    snprintf(job, sizeof job, "%.*s", (int)length, ctl->from);
    return cairn_ctl_place_ask(ctl, job, slash + 1, folder_out);
}

int cairn_ctl_job_create(struct ctl *ctl)
{
    Cairn__SnapshotRestore restore = CAIRN__SNAPSHOT_RESTORE__INIT;
    Cairn__SnapshotStatus *plan;
    char folder[PATH_MAX], *const argument[] = { folder, NULL };
    if (ctl->from == NULL)
        return cairn_ctl_usage_fail(ctl,
                                    "job create needs --from: a snapshot, as JOB/ID or a folder; a "
                                    "job without one is made by the first worker that opens it");
    if (ctl->as != NULL && ctl->argc > 0)
        return cairn_ctl_usage_fail(ctl, "the job's name is given twice: %s, and --as %s",
                                    ctl->argv[0], ctl->as);
    const char *name = ctl->argc > 0 ? ctl->argv[0] : ctl->as;
    const int found = find_from(ctl, folder);
    if (found >= 0) return found;
    restore.path = folder;
    if (name != NULL) restore.job = (char *)(uintptr_t)name;
    restore.settings = ctl->set.list;
    restore.n_settings = ctl->set.count;
    if (!ctl->rules.dry_run) return restore_it(ctl, &restore);
    restore.plan = true;
    restore.allow_unsigned = ctl->allow_unsigned;
    restore.allow_untrusted = ctl->allow_untrusted;
    const cairn_status called = call(ctl, &restore, &plan);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    if (!ctl->json && !ctl->quiet) {
        cairn_ctl_snapshot_print(plan);
        if (plan->replaced != NULL)
            cairn_ctl_version_line("replaces", plan->replaced->generation, plan->replaced->step,
                                   plan->replaced->version_unknown);
    }
    cairn_message_free(&plan->base);
    ctl->argv = (char **)(uintptr_t)argument;
    ctl->argc = 1;
    return cairn_ctl_job_plan(ctl); // what it takes of the shards' memory
}
