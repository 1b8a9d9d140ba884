/* cairn snapshot create | cancel | list */
#include <time.h>

#include "client/ctl/ctl.h"

/* Static memory, valid until the second call after it. */
static const char *time_text(uint64_t unix_ms)
{
    static char texts[2][32];
    static int turn;
    char *text = texts[turn = !turn];
    const time_t seconds = (time_t)(unix_ms / 1000);
    struct tm utc;
    if (unix_ms == 0 || gmtime_r(&seconds, &utc) == NULL) return "";
    strftime(text, sizeof texts[0], "%Y-%m-%dT%H:%M:%SZ", &utc);
    return text;
}

static const char *created(const Cairn__SnapshotStatus *s)
{
    return time_text(s->created_unix_ms);
}

/* "latest, paper"; "-": none. */
static void add_names(const Cairn__SnapshotStatus *s, struct cairn_sentence *out)
{
    out->text[0] = '\0';
    if (s->latest) cairn_sentence_set(out, "latest");
    for (size_t i = 0; i < s->n_tags; i++)
        cairn_sentence_add(out, "%s%s", out->text[0] != '\0' ? ", " : "", s->tags[i]);
    if (out->text[0] == '\0') cairn_sentence_set(out, "-");
}

/* "3 h ago", "damaged", "never". */
static void add_check(const Cairn__SnapshotStatus *s, struct cairn_sentence *out)
{
    const uint64_t now_s = (uint64_t)time(NULL), then_s = s->checked_unix_ms / 1000;
    const uint64_t age_s = now_s > then_s ? now_s - then_s : 0;
    const uint64_t unit_s = age_s < 120 ? 1 : age_s < 7200 ? 60 : age_s < 172800 ? 3600 : 86400;
    if (then_s == 0)
        cairn_sentence_set(out, "never");
    else
        cairn_sentence_set(out, "%s%llu %s ago", s->check_failed ? "damaged, " : "",
                           (unsigned long long)(age_s / unit_s),
                           unit_s == 1      ? "s"
                           : unit_s == 60   ? "min"
                           : unit_s == 3600 ? "h"
                                            : "d");
}

json_t *cairn_ctl_snapshot_json(const Cairn__SnapshotStatus *s)
{
    json_t *tags = json_array();
    for (size_t i = 0; i < s->n_tags; i++) json_array_append_new(tags, json_string(s->tags[i]));
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:i, s:i, s:s, s:s, s:b, s:I, s:s, s:s}", "id", s->id,
        "job", s->job, "state", s->state, "path", s->path, "generation", (json_int_t)s->generation,
        "step", (json_int_t)s->step, "bytes", (json_int_t)s->bytes, "files", (int)s->files,
        "shards", (int)s->shards, "content_root", cairn_ctl_hex(s->content_root), "created",
        created(s), "periodic", (int)s->periodic, "nonfinite", (json_int_t)s->nonfinite,
        "nonfinite_tensors", s->nonfinite_tensors, "signature", s->signature);
    json_object_set_new(object, "latest", json_boolean(s->latest));
    json_object_set_new(object, "tags", tags);
    json_object_set_new(object, "checked", json_string(time_text(s->checked_unix_ms)));
    json_object_set_new(object, "check_failed", json_boolean(s->check_failed));
    return object;
}

void cairn_ctl_damaged_line(uint64_t nonfinite, const char *tensors)
{
    cairn_ctl_line("damaged", "of %llu elements a result of the last update is not finite: %s",
                   (unsigned long long)nonfinite, tensors);
}

void cairn_ctl_warn_damaged(const Cairn__SnapshotStatus *s, const char *what)
{
    if (s->nonfinite == 0)
        fprintf(stderr,
                "cairn: snapshot %s of job %s %s: it is damaged, as was found when all of it was "
                "read, %s; `cairn snapshot verify %s %s` names the blocks\n",
                s->id, s->job, what, time_text(s->checked_unix_ms), s->job, s->id);
    else
        fprintf(stderr,
                "cairn: snapshot %s of job %s %s: it is damaged, of %llu elements a result is not "
                "finite: %s\n",
                s->id, s->job, what, (unsigned long long)s->nonfinite, s->nonfinite_tensors);
}

void cairn_ctl_snapshot_print(const Cairn__SnapshotStatus *s)
{
    cairn_ctl_line("snapshot", "%s", s->id);
    cairn_ctl_line("job", "%s", s->job);
    cairn_ctl_line("state", "%s", s->state);
    cairn_ctl_line("version", "generation %llu, step %llu", (unsigned long long)s->generation,
                   (unsigned long long)s->step);
    if (s->files > 0)
        cairn_ctl_line("size", "%s in %u files of %u shards", cairn_ctl_bytes(s->bytes), s->files,
                       s->shards);
    if (s->content_root.len > 0)
        cairn_ctl_line("content root", "%s", cairn_ctl_hex(s->content_root));
    if (s->created_unix_ms > 0) cairn_ctl_line("created", "%s", created(s));
    if (s->periodic) cairn_ctl_line("periodic", "yes");
    if (s->signature[0] != '\0') cairn_ctl_line("signature", "%s", s->signature);
    if (s->nonfinite > 0) cairn_ctl_damaged_line(s->nonfinite, s->nonfinite_tensors);
    if (s->path[0] != 0) cairn_ctl_line("path", "%s", s->path);
}

/* Sends the request and prints the one snapshot that comes back. */
static int call_and_print(struct ctl *ctl, uint16_t type, const ProtobufCMessage *message)
{
    ProtobufCMessage *reply;
    if (ctl->timeout_ms == 0) ctl->timeout_ms = CTL_SNAPSHOT_TIMEOUT_MS;
    cairn_status called = cairn_ctl_call(ctl, type, message, CAIRN_MSG_SNAPSHOT_STATUS, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__SnapshotStatus *snapshot = (const Cairn__SnapshotStatus *)reply;
    if (ctl->json)
        cairn_ctl_print_json(cairn_ctl_snapshot_json(snapshot));
    else if (ctl->quiet)
        printf("%s\n", snapshot->id);
    else
        cairn_ctl_snapshot_print(snapshot);
    if (type == CAIRN_MSG_SNAPSHOT_CREATE && snapshot->nonfinite > 0)
        cairn_ctl_warn_damaged(snapshot, "is no good one");
    cairn_message_free(reply);
    return 0;
}

int cairn_ctl_snapshot_create(struct ctl *ctl)
{
    Cairn__SnapshotCreate create = CAIRN__SNAPSHOT_CREATE__INIT;
    create.job = ctl->argv[0];
    create.wait = ctl->wait;
    ctl->cut_of = create.job;
    return call_and_print(ctl, CAIRN_MSG_SNAPSHOT_CREATE, &create.base);
}

int cairn_ctl_snapshot_cancel(struct ctl *ctl)
{
    Cairn__SnapshotCancel cancel = CAIRN__SNAPSHOT_CANCEL__INIT;
    ProtobufCMessage *reply;
    cancel.job = ctl->argv[0];
    if (ctl->argc == 2) cancel.id = ctl->argv[1];
    ctl->cut_of = cancel.job;
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_SNAPSHOT_CANCEL, &cancel.base,
                                               CAIRN_MSG_SNAPSHOT_CANCELED, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__SnapshotCanceled *canceled = (const Cairn__SnapshotCanceled *)reply;
    const char *what = canceled->digest ? "digest" : "snapshot";
    if (ctl->json)
        cairn_ctl_print_json(
            json_pack("{s:s, s:s, s:s}", "job", canceled->job, "what", what, "id", canceled->id));
    else if (!ctl->quiet)
        cairn_ctl_line("given up", "%s %s%sof job %s", what, canceled->id,
                       canceled->id[0] != '\0' ? " " : "", canceled->job);
    cairn_message_free(reply);
    return 0;
}

/* "running: 3.0 MB of 10.0 MB, 2.0 MB/s, 4 s left". */
static void add_state(const Cairn__SnapshotStatus *s, struct cairn_sentence *out)
{
    cairn_sentence_set(out, "%s", s->state);
    if (s->total_bytes == 0) return;
    cairn_sentence_add(out, ": %s of ", cairn_ctl_bytes(s->done_bytes));
    cairn_sentence_add(out, "%s", cairn_ctl_bytes(s->total_bytes));
    if (s->bytes_per_s > 0)
        cairn_sentence_add(out, ", %s/s, %llu s left", cairn_ctl_bytes(s->bytes_per_s),
                           (unsigned long long)s->left_s);
}

static void add_row(struct ctl_table *table, const Cairn__SnapshotStatus *s, bool running)
{
    struct cairn_sentence text;
    cairn_ctl_table_cell(table, "%s", s->job);
    cairn_ctl_table_cell(table, "%s", s->id[0] != '\0' ? s->id : "-");
    cairn_ctl_table_cell(table, "%llu", (unsigned long long)s->generation);
    cairn_ctl_table_cell(table, "%llu", (unsigned long long)s->step);
    cairn_ctl_table_cell(table, "%s", running ? "-" : cairn_ctl_bytes(s->bytes));
    cairn_ctl_table_cell(table, "%u", s->shards);
    cairn_ctl_table_cell(table, "%s", s->created_unix_ms > 0 ? created(s) : "-");
    cairn_ctl_table_cell(table, "%s", s->periodic ? "yes" : "no");
    cairn_ctl_table_cell(table, "%s", s->nonfinite > 0 || s->check_failed ? "yes" : "no");
    add_check(s, &text);
    cairn_ctl_table_cell(table, "%s", running ? "-" : text.text);
    add_names(s, &text);
    cairn_ctl_table_cell(table, "%s", text.text);
    add_state(s, &text);
    cairn_ctl_table_cell(table, "%s", text.text);
}

/* As of a committed one, and how far it is; null: nobody has told yet. */
static json_t *running_json(const Cairn__SnapshotStatus *s)
{
    json_t *object = cairn_ctl_snapshot_json(s);
    const bool told = s->total_bytes > 0, rated = s->bytes_per_s > 0;
    json_object_set_new(object, "done_bytes",
                        told ? json_integer((json_int_t)s->done_bytes) : json_null());
    json_object_set_new(object, "total_bytes",
                        told ? json_integer((json_int_t)s->total_bytes) : json_null());
    json_object_set_new(object, "bytes_per_s",
                        rated ? json_integer((json_int_t)s->bytes_per_s) : json_null());
    json_object_set_new(object, "seconds_left",
                        rated ? json_integer((json_int_t)s->left_s) : json_null());
    return object;
}

static void print_list_json(const Cairn__SnapshotList *list)
{
    json_t *snapshots = json_array(), *running = json_array();
    for (size_t i = 0; i < list->n_snapshots; i++)
        json_array_append_new(snapshots, cairn_ctl_snapshot_json(list->snapshots[i]));
    for (size_t i = 0; i < list->n_running; i++)
        json_array_append_new(running, running_json(list->running[i]));
    cairn_ctl_print_json(json_pack("{s:o, s:o}", "snapshots", snapshots, "running", running));
}

int cairn_ctl_snapshot_list(struct ctl *ctl)
{
    static const char *const headers[] = { "JOB",     "ID",      "GENERATION", "STEP",
                                           "SIZE",    "SHARDS",  "CREATED",    "PERIODIC",
                                           "DAMAGED", "CHECKED", "NAMES",      "STATE" };
    Cairn__SnapshotListGet get = CAIRN__SNAPSHOT_LIST_GET__INIT;
    if (ctl->argc == 1) get.job = ctl->argv[0];
    ProtobufCMessage *reply;
    cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_SNAPSHOT_LIST_GET, &get.base,
                                         CAIRN_MSG_SNAPSHOT_LIST, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__SnapshotList *list = (const Cairn__SnapshotList *)reply;
    if (ctl->json) {
        print_list_json(list);
    } else if (ctl->quiet) { // ids that can be restored, verified, shown
        for (size_t i = 0; i < list->n_snapshots; i++) printf("%s\n", list->snapshots[i]->id);
    } else {
        struct ctl_table *table = cairn_ctl_table_open(headers, 12);
        for (size_t i = 0; i < list->n_running; i++) add_row(table, list->running[i], true);
        for (size_t i = 0; i < list->n_snapshots; i++) add_row(table, list->snapshots[i], false);
        cairn_ctl_table_close(table, ctl);
        for (size_t i = 0; i < list->n_snapshots; i++)
            if (list->snapshots[i]->check_failed)
                cairn_ctl_warn_damaged(list->snapshots[i], "is no good one");
    }
    if (list->unread[0] != '\0') fprintf(stderr, "cairn: not all are listed: %s\n", list->unread);
    cairn_message_free(reply);
    return 0;
}
