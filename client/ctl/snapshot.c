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

/* "latest, paper"; "-" for none. */
static void add_names(const Cairn__SnapshotStatus *s, struct sentence *out)
{
    out->text[0] = '\0';
    if (s->latest) sentence_set(out, "latest");
    for (size_t i = 0; i < s->n_tags; i++)
        sentence_add(out, "%s%s", out->text[0] != '\0' ? ", " : "", s->tags[i]);
    if (out->text[0] == '\0') sentence_set(out, "-");
}

/* "3 h ago", "damaged", "never". */
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

void ctl_damaged_line(uint64_t nonfinite, const char *tensors)
{
    ctl_line("damaged", "the last update left a non-finite result in %" PRIu64 " elements: %s",
             nonfinite, tensors);
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
    ctl_line("snapshot", "%s", s->id);
    ctl_line("job", "%s", s->job);
    ctl_line("state", "%s", s->state);
    ctl_line("version", "generation %" PRIu64 ", step %" PRIu64, s->generation, s->step);
    if (s->files > 0)
        ctl_line("size", "%s in %u files of %u shards", ctl_bytes(s->bytes), s->files, s->shards);
    if (s->content_root.len > 0) ctl_line("content root", "%s", ctl_hex(s->content_root));
    if (s->created_unix_ms > 0) ctl_line("created", "%s", ctl_time(s->created_unix_ms));
    if (s->periodic) ctl_line("periodic", "yes");
    if (s->signature[0] != '\0') ctl_line("signature", "%s", s->signature);
    if (s->nonfinite > 0) ctl_damaged_line(s->nonfinite, s->nonfinite_tensors);
    if (s->path[0] != 0) ctl_line("path", "%s", s->path);
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

static const char *canceled_kind(const Cairn__SnapshotCanceled *canceled)
{
    return canceled->digest ? "digest" : "snapshot";
}

static json_t *canceled_json(struct ctl *ctl, const void *reply)
{
    const Cairn__SnapshotCanceled *canceled = reply;
    (void)ctl;
    return json_pack("{s:s, s:s, s:s}", "job", canceled->job, "what", canceled_kind(canceled), "id",
                     canceled->id);
}

static void print_canceled(struct ctl *ctl, const void *reply)
{
    const Cairn__SnapshotCanceled *canceled = reply;
    (void)ctl;
    ctl_line("given up", "%s %s%sof job %s", canceled_kind(canceled), canceled->id,
             canceled->id[0] != '\0' ? " " : "", canceled->job);
}

static const struct ctl_question snapshot_cancel_question = CTL_QUESTION(
    SNAPSHOT_CANCEL, snapshot_cancel, "job=@0 id=@1", SNAPSHOT_CANCELED, .awaits = true,
    .print = print_canceled, .json = canceled_json);

/* "running: 3.0 MB of 10.0 MB, 2.0 MB/s, 4 s left". */
static void add_state(const Cairn__SnapshotStatus *s, struct sentence *out)
{
    sentence_set(out, "%s", s->state);
    if (s->total_bytes == 0) return;
    sentence_add(out, ": %s of ", ctl_bytes(s->done_bytes));
    sentence_add(out, "%s", ctl_bytes(s->total_bytes));
    if (s->bytes_per_s > 0)
        sentence_add(out, ", %s/s, %" PRIu64 " s left", ctl_bytes(s->bytes_per_s), s->left_s);
}

static void add_snapshot_row(struct ctl_table *table, const Cairn__SnapshotStatus *s, bool running)
{
    struct sentence text;
    ctl_table_cell(table, "%s", s->job);
    ctl_table_cell(table, "%s", s->id[0] != '\0' ? s->id : "-");
    ctl_table_cell(table, "%" PRIu64, s->generation);
    ctl_table_cell(table, "%" PRIu64, s->step);
    ctl_table_cell(table, "%s", running ? "-" : ctl_bytes(s->bytes));
    ctl_table_cell(table, "%u", s->shards);
    ctl_table_cell(table, "%s", s->created_unix_ms > 0 ? ctl_time(s->created_unix_ms) : "-");
    ctl_table_cell(table, "%s", s->periodic ? "yes" : "no");
    ctl_table_cell(table, "%s", s->nonfinite > 0 || s->check_failed ? "yes" : "no");
    add_check(s, &text);
    ctl_table_cell(table, "%s", running ? "-" : text.text);
    add_names(s, &text);
    ctl_table_cell(table, "%s", text.text);
    add_state(s, &text);
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

static void print_list(struct ctl *ctl, const void *reply)
{
    static const char *const headers[] = { "JOB",     "ID",      "GENERATION", "STEP",
                                           "SIZE",    "SHARDS",  "CREATED",    "PERIODIC",
                                           "DAMAGED", "CHECKED", "NAMES",      "STATE" };
    const Cairn__SnapshotList *list = reply;
    if (ctl->quiet) { // ids that can be restored, verified, shown
        for (size_t i = 0; i < list->n_snapshots; i++) printf("%s\n", list->snapshots[i]->id);
    } else {
        struct ctl_table *table = ctl_table_open(headers, 12);
        for (size_t i = 0; i < list->n_running; i++)
            add_snapshot_row(table, list->running[i], true);
        for (size_t i = 0; i < list->n_snapshots; i++)
            add_snapshot_row(table, list->snapshots[i], false);
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

static void print_removed(struct ctl *ctl, const void *reply)
{
    const Cairn__SnapshotRemoved *removed = reply;
    (void)ctl;
    ctl_line("removed", "%s of job %s", removed->id, removed->job);
    ctl_line("size", "%s in %u files", ctl_bytes(removed->bytes), removed->files);
}

static const struct ctl_question snapshot_rm_question = CTL_QUESTION(
    SNAPSHOT_REMOVE, snapshot_remove, "job=@0 id=@1 force=@force", SNAPSHOT_REMOVED,
    .timeout_ms = CTL_SNAPSHOT_TIMEOUT_MS, .confirm = "The snapshot's files",
    .print = print_removed);

/* ==== advise ==== */

/* cairn snapshot advise */

/* The command that applies the advice. */
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

static void print_assumed(const Cairn__SnapshotAdvice *a)
{
    if (a->measured > 0)
        ctl_line("cost", "%.3f s of training a snapshot, which takes %.3f s (median of %u)",
                 (double)a->cost_us * 1e-6, (double)a->write_us * 1e-6, a->measured);
    else
        ctl_line("cost", "not measured yet");
    if (a->step_us > 0) ctl_line("step", "%.6f s", (double)a->step_us * 1e-6);
    ctl_line("faults", "%" PRIu64 " of shards, %" PRIu64 " of workers, in %" PRIu64 " s",
             a->shard_faults, a->worker_faults, a->observed_s);
    if (a->mtbf_s > 0)
        ctl_line("between faults", "%" PRIu64 " s (%s)", a->mtbf_s,
                 a->mtbf_given ? "given" : "seen");
}

static void print_advice(struct ctl *ctl, const void *reply)
{
    const Cairn__SnapshotAdvice *a = reply;
    (void)ctl;
    ctl_line("job", "%s", a->job);
    print_assumed(a);
    if (a->interval_s == 0) {
        ctl_line("advice", "none: %s", a->note);
        return;
    }
    if (a->interval_steps > 0)
        ctl_line("advice", "every %" PRIu64 " s, that is %" PRIu64 " steps", a->interval_s,
                 a->interval_steps);
    else
        ctl_line("advice", "every %" PRIu64 " s", a->interval_s);
    if (a->note[0] != '\0') ctl_line("note", "%s", a->note);
    ctl_line("set it by", "%s", advised_command(a));
}

static int run_snapshot_advise(struct ctl *ctl)
{
    static const struct ctl_question question = { .type = CAIRN_MSG_SNAPSHOT_ADVISE,
                                                  .reply_type = CAIRN_MSG_SNAPSHOT_ADVICE,
                                                  .print = print_advice,
                                                  .is_quiet_too = true,
                                                  .json = advice_json };
    Cairn__SnapshotAdvise ask = CAIRN__SNAPSHOT_ADVISE__INIT;
    ask.job = ctl->argv[0];
    ask.mtbf_s = ctl->mtbf_s;
    return ctl_ask_by(ctl, &question, &ask);
}

/* ==== prune ==== */

/* cairn snapshot prune | tag */

static void add_fate(struct ctl_table *table, const void *message)
{
    const Cairn__SnapshotFate *fate = message;
    ctl_table_cell(table, "%s", fate->goes ? "goes" : "stays");
}

static void add_fate_if(struct ctl_table *table, const void *message)
{
    const Cairn__SnapshotFate *fate = message;
    ctl_table_cell(table, "%s", fate->goes ? "would go" : "stays");
}

static void print_pruned(struct ctl *ctl, const void *reply)
{
    const Cairn__SnapshotPruned *pruned = reply;
    const struct ctl_column columns[] = {
        { "ID", "id", NULL },
        { "STEP", "step", NULL },
        { "SIZE", "bytes/bytes", NULL },
        { "FATE", NULL, ctl->rules.dry_run ? add_fate_if : add_fate },
        { "REASON", "reason", NULL },
    };
    if (!ctl->quiet) ctl_table_print(ctl, CTL_COLUMNS(columns), pruned->fates, pruned->n_fates);
    for (size_t i = 0; i < pruned->n_fates && ctl->quiet; i++)
        if (pruned->fates[i]->goes) printf("%s\n", pruned->fates[i]->id);
}

static int run_snapshot_prune(struct ctl *ctl)
{
    static const struct ctl_question question = { .type = CAIRN_MSG_SNAPSHOT_PRUNE,
                                                  .reply_type = CAIRN_MSG_SNAPSHOT_PRUNED,
                                                  .timeout_ms = CTL_SNAPSHOT_TIMEOUT_MS,
                                                  .print = print_pruned,
                                                  .is_quiet_too = true,
                                                  .fields =
                                                      "job=@0 dry_run=@dry-run snapshots=fates" };
    const struct ctl_rules *rules = &ctl->rules;
    Cairn__SnapshotPrune prune = CAIRN__SNAPSHOT_PRUNE__INIT;
    prune.job = ctl->argv[0];
    prune.plan = rules->dry_run;
    prune.has_rules = ctl_is_given(ctl, "keep-last keep-every keep-within max-bytes");
    prune.keep_last = rules->keep_last;
    prune.keep_every = rules->keep_every;
    prune.keep_within_s = rules->keep_within_s;
    prune.max_bytes = rules->max_bytes;
    return ctl_ask_by(ctl, &question, &prune);
}

static void print_tagged(struct ctl *ctl, const void *reply)
{
    const Cairn__SnapshotTagged *tagged = reply;
    ctl_line(ctl->deletes ? "tag off" : "tagged", "%s of job %s: %s", tagged->id, tagged->job,
             tagged->name);
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
      1, 1, CTL_ASKS "no-headers quiet keeping ", CTL_RUN(run_snapshot_prune) },
    { "snapshot", "advise", "JOB [--mtbf TIME]",
      "how often to take snapshots, from what they cost and how often something fails (Young's "
      "rule)",
      1, 1, CTL_ASKS "mtbf ", CTL_RUN(run_snapshot_advise) },
    { .noun = NULL },
};
