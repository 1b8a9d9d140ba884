/* cairn snapshot create | cancel | list */
#include "client/ctl/snapshot.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "client/ctl/ctl.h"
#include "proto/spec/spec.h"

/* ==== place ==== */

int ctl_place_ask(struct ctl *ctl, const char *job, const char *id,
                  char folder_out[static PATH_MAX])
{
    Cairn__SnapshotShow show = CAIRN__SNAPSHOT_SHOW__INIT;
    ProtobufCMessage *reply;
    char latest[CAIRN_SNAPSHOT_ID_BYTES];
    if (strcmp(id, "latest") == 0) {
        const int done = ctl_snapshot_latest(ctl, job, latest);
        if (done >= 0) return done;
        id = latest;
    }
    show.job = wire_text(job);
    show.id = wire_text(id);
    const cairn_status called = ctl_call(ctl, CAIRN_MSG_SNAPSHOT_SHOW, &show.base,
                                         CAIRN_MSG_SNAPSHOT_STATUS, &reply);
    if (called != CAIRN_OK) return status_exit((int)called);
    const char *path = ((const Cairn__SnapshotStatus *)reply)->path;
    const int length = snprintf(folder_out, PATH_MAX, "%s", path);
    message_free(reply);
    if (length > 0 && length < PATH_MAX) return -1;
    return ctl_fail(CAIRN_ERR_NOT_FOUND, "the coordinator does not say where %s of job %s is", id,
                    job);
}

int ctl_place_find(struct ctl *ctl, char folder_out[static PATH_MAX])
{
    if (ctl->path != NULL && ctl->path_before == NULL && ctl->argc == 0)
        return ctl_absolute("--path", ctl->path, folder_out);
    if (ctl->path == NULL && ctl->argc == 2)
        return ctl_place_ask(ctl, ctl->argv[0], ctl->argv[1], folder_out);
    return ctl_usage_fail(ctl, "cairn %s needs JOB ID, or --path FOLDER", ctl->words);
}

/* Reports an error about the folder, and returns the exit status. */
int ctl_place_fail(const char *folder, cairn_status status, const struct sentence *why)
{
    if (status == CAIRN_ERR_NOT_FOUND)
        return ctl_fail(status,
                        "%s; this command reads the folder itself: check that this host sees it, "
                        "or give its path here (--path FOLDER)",
                        why->text);
    return ctl_fail(status, "%s: %s", folder,
                    why->text[0] != '\0' ? why->text : status_text((int)status));
}

int ctl_place_open(const char *folder, struct snapshot *snapshot_out)
{
    struct sentence why = { "" };
    const cairn_status status = snapshot_open(folder, snapshot_out, &why);
    return status == CAIRN_OK ? -1 : ctl_place_fail(folder, status, &why);
}

/* ==== snapshot ==== */

/* Adds the names of the snapshot: "latest, paper"; "-" for none. */
static void add_names(const Cairn__SnapshotStatus *s, struct sentence *out)
{
    out->text[0] = '\0';
    if (s->latest) sentence_set(out, "latest");
    for (size_t i = 0; i < s->n_tags; i++)
        sentence_add(out, "%s%s", out->text[0] != '\0' ? ", " : "", s->tags[i]);
    if (out->text[0] == '\0') sentence_set(out, "-");
}

/* Adds the time or result of the last check: "3 h ago", "damaged", "never". */
static void add_check(const Cairn__SnapshotStatus *s, struct sentence *out)
{
    const uint64_t now_s = (uint64_t)time(NULL), then_s = s->checked_unix_ms / 1000;
    const uint64_t age_s = now_s > then_s ? now_s - then_s : 0;
    const uint64_t unit_s = age_s < 120 ? 1 : age_s < 7200 ? 60 : age_s < 172800 ? 3600 : 86400;
    if (then_s == 0)
        sentence_set(out, "never");
    else
        sentence_set(out, "%s%" PRIu64 " %s ago", s->check_failed ? "damaged, " : "",
                     (age_s / unit_s),
                     unit_s == 1      ? "s"
                     : unit_s == 60   ? "min"
                     : unit_s == 3600 ? "h"
                                      : "d");
}

void ctl_warn_damaged(const Cairn__SnapshotStatus *s, const char *what)
{
    if (s->nonfinite == 0)
        fprintf(stderr,
                "cairn: snapshot %s of job %s %s: a full read found it damaged, %s; `cairn "
                "snapshot verify %s %s` names the blocks\n",
                s->id, s->job, what, ctl_time(s->checked_unix_ms), s->job, s->id);
    else
        fprintf(
            stderr,
            "cairn: snapshot %s of job %s %s: it is damaged, with a non-finite result in %" PRIu64
            " elements: %s\n",
            s->id, s->job, what, s->nonfinite, s->nonfinite_tensors);
}

void ctl_snapshot_print(const Cairn__SnapshotStatus *s)
{
    ctl_lines(s, "snapshot|{id}\n"
                 "job|{job}\n"
                 "state|{state}\n"
                 "version|generation {generation}, step {step}\n"
                 "size|{bytes/bytes} in {files?} files of {shards} shards\n"
                 "content root|{content_root?}\n"
                 "created|{created_unix_ms/time?}\n"
                 "periodic|{?periodic}yes\n"
                 "signature|{signature?}\n" CTL_DAMAGED_LINE "\n"
                 "path|{path?}");
}

static void print_snapshot(struct ctl *ctl, const void *reply)
{
    const Cairn__SnapshotStatus *snapshot = reply;
    if (ctl->quiet)
        printf("%s\n", snapshot->id);
    else
        ctl_snapshot_print(snapshot);
    if (snapshot->nonfinite > 0) ctl_warn_damaged(snapshot, "is no good one");
}

static json_t *created_json(struct ctl *ctl, const void *reply)
{
    const Cairn__SnapshotStatus *snapshot = reply;
    (void)ctl;
    if (snapshot->nonfinite > 0) ctl_warn_damaged(snapshot, "is no good one");
    return ctl_json(reply);
}

static const struct ctl_question snapshot_create_question = CTL_QUESTION(
    SNAPSHOT_CREATE, snapshot_create, "job=@0 wait=@wait", SNAPSHOT_STATUS,
    .timeout_ms = CTL_SNAPSHOT_TIMEOUT_MS, .awaits = true, .print = print_snapshot,
    .is_quiet_too = true, .json = created_json);

static json_t *canceled_json(struct ctl *ctl, const void *reply)
{
    const Cairn__SnapshotCanceled *canceled = reply;
    (void)ctl;
    return json_pack("{s:s, s:s, s:s}", "job", canceled->job, "what",
                     canceled->digest ? "digest" : "snapshot", "id", canceled->id);
}

static const struct ctl_question snapshot_cancel_question = CTL_QUESTION(
    SNAPSHOT_CANCEL, snapshot_cancel, "job=@0 id=@1", SNAPSHOT_CANCELED, .awaits = true,
    .lines = "given up|[{?digest}digest][{!digest}snapshot] {id}[{?id} ]of job {job}",
    .json = canceled_json);

static void add_checked(struct ctl_table *table, const void *message)
{
    const Cairn__SnapshotStatus *s = message;
    struct sentence text = { "-" };
    if (s->files > 0) add_check(s, &text);
    ctl_table_cell(table, "%s", text.text);
}

static void add_all_names(struct ctl_table *table, const void *message)
{
    struct sentence text;
    add_names(message, &text);
    ctl_table_cell(table, "%s", text.text);
}

/* Returns the JSON of a committed snapshot, with the progress added; null stands for values that are not
 * reported yet. */
static json_t *running_json(const Cairn__SnapshotStatus *s)
{
    json_t *object = ctl_json(s);
    ctl_json_add(
        object, s,
        "done_bytes?total_bytes total_bytes? bytes_per_s? seconds_left=left_s?bytes_per_s");
    return object;
}

static void say_unread(const Cairn__SnapshotList *list)
{
    if (list->unread[0] != '\0') fprintf(stderr, "cairn: not all are listed: %s\n", list->unread);
}

static json_t *list_json(struct ctl *ctl, const void *reply)
{
    const Cairn__SnapshotList *list = reply;
    json_t *running = json_array();
    (void)ctl;
    for (size_t i = 0; i < list->n_running; i++)
        json_array_append_new(running, running_json(list->running[i]));
    json_t *object = json_pack("{s:o}", "running", running);
    ctl_json_add(object, list, "snapshots");
    say_unread(list);
    return object;
}

/* A running snapshot has no files yet. */
static void print_list(struct ctl *ctl, const void *reply)
{
    static const struct ctl_column columns[] = {
        { "JOB", "job", NULL },
        { "ID", "id?", NULL },
        { "GENERATION", "generation", NULL },
        { "STEP", "step", NULL },
        { "SIZE", "bytes/bytes?files", NULL },
        { "SHARDS", "shards", NULL },
        { "CREATED", "created_unix_ms/time?", NULL },
        { "PERIODIC", "periodic/yes", NULL },
        { "DAMAGED",
          "[{?nonfinite}yes][{!nonfinite}{?check_failed}yes]"
          "[{!nonfinite}{!check_failed}no]",
          NULL },
        { "CHECKED", NULL, add_checked },
        { "NAMES", NULL, add_all_names },
        { "STATE",
          "{state}[{?total_bytes}: {done_bytes/bytes} of {total_bytes/bytes}[{?bytes_per_s}, "
          "{bytes_per_s/bytes}/s, {left_s} s left]]",
          NULL },
    };
    const Cairn__SnapshotList *list = reply;
    if (ctl->quiet) { // ids that can be restored, verified, shown
        for (size_t i = 0; i < list->n_snapshots; i++) printf("%s\n", list->snapshots[i]->id);
    } else {
        struct ctl_table *table = ctl_table_of(CTL_COLUMNS(columns));
        ctl_table_rows(table, list->running, list->n_running);
        ctl_table_rows(table, list->snapshots, list->n_snapshots);
        ctl_table_close(table, ctl);
        for (size_t i = 0; i < list->n_snapshots; i++)
            if (list->snapshots[i]->check_failed)
                ctl_warn_damaged(list->snapshots[i], "is no good one");
    }
    say_unread(list);
}

static const struct ctl_question snapshot_list_question = CTL_QUESTION(
    SNAPSHOT_LIST_GET, snapshot_list_get, "job=@0", SNAPSHOT_LIST, .print = print_list,
    .is_quiet_too = true, .json = list_json);

/* ==== rm ==== */

static const struct ctl_question snapshot_rm_question = CTL_QUESTION(
    SNAPSHOT_REMOVE, snapshot_remove, "job=@0 id=@1 force=@force", SNAPSHOT_REMOVED,
    .timeout_ms = CTL_SNAPSHOT_TIMEOUT_MS, .confirm = "The snapshot's files",
    .lines = "removed|{id} of job {job}\n"
             "size|{bytes/bytes} in {files} files");

/* ==== advise ==== */

/* cairn snapshot advise */

/* Returns the command that applies the advice. */
static const char *advised_command(const Cairn__SnapshotAdvice *a)
{
    static char line[CAIRN_NAME_MAX + 64];
    snprintf(line, sizeof line, "cairn job amend %s --snapshot-every %" PRIu64 "s", a->job,
             a->interval_s);
    return line;
}

static json_t *advice_json(struct ctl *ctl, const void *reply)
{
    const Cairn__SnapshotAdvice *a = reply;
    json_t *object = ctl_json(a);
    (void)ctl;
    json_object_set_new(object, "amend",
                        a->interval_s > 0 ? json_string(advised_command(a)) : json_null());
    return object;
}

static void print_advice(struct ctl *ctl, const void *reply)
{
    const Cairn__SnapshotAdvice *a = reply;
    (void)ctl;
    ctl_lines(a, "job|{job}\n"
                 "cost|{cost_us/us%.3f} s of training a snapshot, which takes {write_us/us%.3f} s "
                 "(median of {measured?})\n"
                 "cost|{!measured}not measured yet\n"
                 "step|{step_us/us%.6f?} s\n"
                 "faults|{shard_faults} of shards, {worker_faults} of workers, in {observed_s} s\n"
                 "between faults|{mtbf_s?} s ([{?mtbf_given}given][{!mtbf_given}seen])\n"
                 "advice|{!interval_s}none: {note}\n"
                 "advice|every {interval_s?} s[, that is {interval_steps} steps]\n"
                 "note|{?interval_s}{?note}{note}");
    if (a->interval_s > 0) ctl_line("set it by", "%s", advised_command(a));
}

static const struct ctl_question snapshot_advise_question = CTL_QUESTION(
    SNAPSHOT_ADVISE, snapshot_advise, "job=@0 mtbf_s=@mtbf", SNAPSHOT_ADVICE, .print = print_advice,
    .json = advice_json);

/* ==== prune ==== */

/* cairn snapshot prune | tag */

static void print_pruned(struct ctl *ctl, const void *reply)
{
    const Cairn__SnapshotPruned *pruned = reply;
    const struct ctl_column columns[] = {
        { "ID", "id", NULL },
        { "STEP", "step", NULL },
        { "SIZE", "bytes/bytes", NULL },
        { "FATE",
          ctl->rules.dry_run ? "[{?goes}would go][{!goes}stays]" : "[{?goes}goes][{!goes}stays]",
          NULL },
        { "REASON", "reason", NULL },
    };
    if (!ctl->quiet) ctl_table_print(ctl, CTL_COLUMNS(columns), pruned->fates, pruned->n_fates);
    for (size_t i = 0; i < pruned->n_fates && ctl->quiet; i++)
        if (pruned->fates[i]->goes) printf("%s\n", pruned->fates[i]->id);
}

static const struct ctl_question snapshot_prune_question = CTL_QUESTION(
    SNAPSHOT_PRUNE, snapshot_prune,
    "job=@0 plan=@dry-run has_rules=@keep-last,keep-every,keep-within,max-bytes "
    "keep_last=@keep-last "
    "keep_every=@keep-every keep_within_s=@keep-within max_bytes=@max-bytes",
    SNAPSHOT_PRUNED, .timeout_ms = CTL_SNAPSHOT_TIMEOUT_MS, .print = print_pruned,
    .is_quiet_too = true, .fields = "job=@0 dry_run=@dry-run snapshots=fates");

static void print_tagged(struct ctl *ctl, const void *reply)
{
    ctl_line_of(ctl->deletes ? "tag off" : "tagged", reply, "{id} of job {job}: {name}");
}

static const struct ctl_question snapshot_tag_question = CTL_QUESTION(
    SNAPSHOT_TAG, snapshot_tag, "job=@0 id=@1 name=@2 remove=@delete", SNAPSHOT_TAGGED,
    .print = print_tagged, .fields = "job id tag=name deleted=@delete");

/* ==== commands ==== */

const struct ctl_row ctl_snapshot_rows[] = {
    { "snapshot", "create", "JOB [--wait]", "take a snapshot while training goes on", 1, 1,
      CTL_ASKS "quiet wait ", CTL_ASK(snapshot_create_question) },
    { "snapshot", "cancel", "JOB [ID]",
      "give up the snapshot or digest that is being taken; what was written of it is removed", 1, 2,
      CTL_ASKS "quiet ", CTL_ASK(snapshot_cancel_question) },
    { "snapshot", "list", "[JOB]", "committed snapshots, the newest first", 0, 1, CTL_LISTS,
      CTL_ASK(snapshot_list_question) },
    { "snapshot", "rm", "JOB ID [--yes] [--force]", "remove a snapshot, for good", 2, 2,
      CTL_ASKS "quiet yes rm ", CTL_ASK(snapshot_rm_question) },
    { "snapshot", "tag", "JOB ID NAME [--delete]",
      "name a snapshot: it stays until the tag is off; a tag of another snapshot moves here", 3, 3,
      CTL_ASKS "quiet delete ", CTL_ASK(snapshot_tag_question) },
    { "snapshot", "prune",
      "JOB [--dry-run] [--keep-last N] [--keep-every N] [--keep-within TIME] [--max-bytes N]",
      "remove periodic snapshots that no rule keeps (the job's, or those given), and what a crash "
      "left; says of each why",
      1, 1, CTL_ASKS "no-headers quiet keeping ", CTL_ASK(snapshot_prune_question) },
    { "snapshot", "advise", "JOB [--mtbf TIME]",
      "how often to take snapshots, from what they cost and how often something fails (Young's "
      "rule)",
      1, 1, CTL_ASKS "mtbf ", CTL_ASK(snapshot_advise_question) },
    { .noun = NULL },
};
