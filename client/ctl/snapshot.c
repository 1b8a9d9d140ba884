/* cairn snapshot create | list | restore | verify, cairn job create, cairn key. A restore, and a job that is
 * made from a snapshot, ask for confirmation before they replace a job that is not lost. */
#include <inttypes.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"
#include "client/ctl/snapshot.h"
#include "shown.pb-c.h"
#include "proto/snapshot/snapshot.h"
#include "proto/snapshot_io/snapshot_io.h"

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

/* ==== create, list ==== */

/* Warns on stderr about a snapshot with non-finite elements; `what` says what happens to the
 * snapshot, such as "is passed over". */
static void warn_damaged(const Cairn__SnapshotStatus *s, const char *what)
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

static int warn_if_damaged(struct ctl *ctl, const void *reply)
{
    const Cairn__SnapshotStatus *snapshot = reply;
    (void)ctl;
    if (snapshot->nonfinite > 0) warn_damaged(snapshot, "is no good one");
    return 0;
}

const struct ctl_question ctl_snapshot_create = {
    CTL_ASKS(SNAPSHOT_CREATE, snapshot_create, SNAPSHOT_STATUS),
    .fill = "job=@0 wait=@wait",
    .timeout_ms = CTL_SNAPSHOT_TIMEOUT_MS,
    .awaits = true,
    .page = CTL_SNAPSHOT_LINES,
    .quiet = "{id}",
    .after = warn_if_damaged,
};

static int say_unread(struct ctl *ctl, const void *reply)
{
    const Cairn__SnapshotList *list = reply;
    for (size_t i = 0; i < list->n_snapshots && !ctl->json && !ctl->quiet; i++)
        if (list->snapshots[i]->check_failed) warn_damaged(list->snapshots[i], "is no good one");
    if (list->unread[0] != '\0') fprintf(stderr, "cairn: not all are listed: %s\n", list->unread);
    return 0;
}

/* With -q it prints the ids that can be restored, verified, shown. */
const struct ctl_question ctl_snapshot_list = {
    CTL_ASKS(SNAPSHOT_LIST_GET, snapshot_list_get, SNAPSHOT_LIST),
    .fill = "job=@0",
    .page = "#running,snapshots",
    .quiet = "*snapshots {id}",
    .after = say_unread,
};

/* ==== key ==== */

/* cairn key show | list | trust | untrust: the keys whose signatures of snapshots are trusted. */

static int print_own(const struct ctl *ctl, const Cairn__Key *key)
{
    struct public_key public_key;
    struct sentence why;
    char text[CAIRN_KEY_TEXT_BYTES];
    const cairn_status status = public_key_parse(key->line, &public_key, &why);
    if (status != CAIRN_OK) return ctl_fail(status, "the coordinator's key: %s", why.text);
    if (ctl->json) return ctl_print_json(ctl_json(key));
    public_key_text(&public_key, text);
    printf("%s%s", ctl->quiet ? key->line : text, ctl->quiet ? "\n" : "");
    return 0;
}

static int show_own_key(struct ctl *ctl, const void *reply)
{
    const Cairn__Keys *keys = reply;
    for (size_t i = 0; i < keys->n_keys; i++)
        if (keys->keys[i]->signs) return print_own(ctl, keys->keys[i]);
    return ctl_fail(CAIRN_ERR_NOT_FOUND, "the coordinator names no key of its own");
}

const struct ctl_question ctl_key_show = { CTL_ASKS(KEYS_GET, keys_get, KEYS), .fill = "",
                                           .show = show_own_key };

/* Copies the given key, or the contents of the file that `given` names, to `text`. False: the text is too
 * large for a key. */
static bool read_key(const char *given, char text[CAIRN_KEY_TEXT_BYTES])
{
    FILE *file = fopen(given, "re");
    if (file == NULL)
        return (size_t)snprintf(text, CAIRN_KEY_TEXT_BYTES, "%s", given) < CAIRN_KEY_TEXT_BYTES;
    const size_t got = fread(text, 1, CAIRN_KEY_TEXT_BYTES - 1, file);
    text[got] = '\0';
    const bool fits = fgetc(file) == EOF;
    fclose(file);
    return fits;
}

/* Parses a key, given as text or as the name of a file that contains the key. */
static int key_read(const char *given, struct public_key *out)
{
    char text[CAIRN_KEY_TEXT_BYTES];
    struct sentence why = { "it is too long for one" };
    const bool is_read = read_key(given, text);
    const cairn_status status = is_read ? public_key_parse(text, out, &why) : CAIRN_ERR_MALFORMED;
    if (status == CAIRN_OK) return -1;
    return ctl_fail(CAIRN_ERR_INVALID, "%s is neither a key nor a file of one: %s", given,
                    why.text);
}

/* Fetches the keys that the coordinator trusts. */
static int key_ring(struct ctl *ctl, struct key_ring *out)
{
    const Cairn__KeysGet get = CAIRN__KEYS_GET__INIT;
    ProtobufCMessage *reply;
    const cairn_status called = ctl_call(ctl, CAIRN_MSG_KEYS_GET, &get.base, CAIRN_MSG_KEYS,
                                         &reply);
    if (called != CAIRN_OK) return status_exit((int)called);
    const Cairn__Keys *keys = (const Cairn__Keys *)reply;
    out->count = 0;
    for (size_t i = 0; i < keys->n_keys && out->count < CAIRN_KEYS_MAX; i++)
        if (public_key_parse(keys->keys[i]->line, &out->keys[out->count], NULL) == CAIRN_OK)
            out->count++;
    message_free(reply);
    return -1;
}

static int fill_trust(struct ctl *ctl, void *request)
{
    static char line[CAIRN_KEY_LINE_BYTES];
    struct public_key key;
    const int done = key_read(ctl->argv[0], &key);
    if (done >= 0) return done;
    public_key_line(&key, line);
    ((Cairn__KeyTrust *)request)->key = line;
    return -1;
}

const struct ctl_question ctl_key_trust = { CTL_ASKS(KEY_TRUST, key_trust, KEYS), .fill = "",
                                            .fill_by = fill_trust, .page = "#keys",
                                            .quiet_hides_all = true };

/* ==== restore ==== */

/* Asks before a restore that loses steps. -1: continue; else the exit status. A lost job can lose no more
 * steps, unless its parts return. */
static int confirm_restore(struct ctl *ctl, const Cairn__SnapshotRestore *restore)
{
    Cairn__SnapshotRestore question = *restore;
    ProtobufCMessage *reply;
    struct sentence what;
    if (ctl->yes) return -1;
    question.plan = true;
    const cairn_status called = ctl_call(ctl, CAIRN_MSG_SNAPSHOT_RESTORE, &question.base,
                                         CAIRN_MSG_SNAPSHOT_STATUS, &reply);
    if (called != CAIRN_OK) return status_exit((int)called);
    const Cairn__SnapshotStatus *plan = (const Cairn__SnapshotStatus *)reply;
    int refused = -1;
    if (admin_replaces(plan, &what)) refused = ctl_confirm(ctl, what.text, plan->job);
    message_free(reply);
    return refused;
}

int ctl_snapshot_latest(struct ctl *ctl, const char *job, char id_out[CAIRN_SNAPSHOT_ID_BYTES])
{
    Cairn__SnapshotListGet get = CAIRN__SNAPSHOT_LIST_GET__INIT;
    get.job = wire_text(job);
    ProtobufCMessage *reply;
    const cairn_status called = ctl_call(ctl, CAIRN_MSG_SNAPSHOT_LIST_GET, &get.base,
                                         CAIRN_MSG_SNAPSHOT_LIST, &reply);
    if (called != CAIRN_OK) return status_exit((int)called);
    const Cairn__SnapshotList *list = (const Cairn__SnapshotList *)reply;
    const bool is_any = list->n_snapshots > 0;
    const Cairn__SnapshotStatus *latest = admin_latest(list, warn_damaged);
    const bool found = latest != NULL;
    if (found) snprintf(id_out, CAIRN_SNAPSHOT_ID_BYTES, "%s", latest->id);
    message_free(reply);
    if (found) return -1;
    return ctl_fail(
        CAIRN_ERR_NOT_FOUND,
        !is_any ? "job %s has no committed snapshot; see cairn snapshot list"
                : "job %s has only damaged snapshots; name one by its id, or make the job anew",
        job);
}

static int say_passed_over(struct ctl *ctl, const void *reply)
{
    const Cairn__SnapshotStatus *restored = reply;
    (void)ctl;
    if (restored->passed_over[0] != '\0')
        fprintf(stderr,
                "cairn: passed over: %s; %s, of step %" PRIu64 ", was restored in its place\n",
                restored->passed_over, restored->id, restored->step);
    return 0;
}

static int fill_restore(struct ctl *ctl, void *request)
{
    static char path[PATH_MAX], latest[CAIRN_SNAPSHOT_ID_BYTES];
    Cairn__SnapshotRestore *restore = request;
    const bool by_id = ctl->argc == 2 && ctl->path == NULL && ctl->restore.job == NULL;
    const bool by_path = ctl->argc == 0 && ctl->path != NULL;
    if (!by_id && !by_path)
        return ctl_fail(CAIRN_ERR_INVALID,
                        "usage: cairn snapshot restore JOB ID|latest, or cairn snapshot "
                        "restore --path FOLDER [--job NAME]");
    int refused = by_path ? ctl_absolute("--path", ctl->path, path) : -1;
    if (refused >= 0) return refused;
    if (by_id) {
        restore->job = ctl->argv[0];
        restore->id = ctl->argv[1];
    } else {
        restore->path = path;
        if (ctl->restore.job != NULL) restore->job = wire_text(ctl->restore.job);
    }
    if (by_id && strcmp(restore->id, "latest") == 0) {
        restore->id = latest;
        refused = ctl_snapshot_latest(ctl, restore->job, latest);
        if (refused >= 0) return refused;
    }
    return confirm_restore(ctl, restore);
}

#define RESTORED_PAGE                                                           \
    CTL_SNAPSHOT_LINES "\n"                                                     \
                       "restored|job {job}, generation {restored_generation}\n" \
                       "*replaced replaced|" CTL_VERSION "\n"                   \
                       "*replaced must open again|{members}"

#define RESTORES                                                                       \
    CTL_ASKS(SNAPSHOT_RESTORE, snapshot_restore, SNAPSHOT_STATUS),                     \
        .fill = "allow_unsigned=@allow-unsigned allow_untrusted=@allow-untrusted "     \
                "fallback=@fallback",                                                  \
        .timeout_ms = CTL_SNAPSHOT_TIMEOUT_MS, .page = RESTORED_PAGE, .quiet = "{id}", \
        .fields = "* restored_generation replaced passed_over", .after = say_passed_over

const struct ctl_question ctl_snapshot_restore = { RESTORES, .fill_by = fill_restore };

/* ==== create ==== */

/* "JOB/ID" names a snapshot of the coordinator; anything else is a folder. -1: continue; else the exit
 * status. */
static int find_from(struct ctl *ctl, char folder_out[static PATH_MAX])
{
    char job[CAIRN_NAME_MAX + 1];
    const char *slash = strchr(ctl->from, '/');
    const size_t length = slash != NULL ? (size_t)(slash - ctl->from) : 0;
    if (length == 0 || length >= sizeof job || strchr(slash + 1, '/') != NULL ||
        ctl->from[0] == '.')
        return ctl_absolute("--from", ctl->from, folder_out);
    snprintf(job, sizeof job, "%.*s", (int)length, ctl->from);
    return ctl_place_ask(ctl, job, slash + 1, folder_out);
}

static char created_from[PATH_MAX]; // the folder of the snapshot

static int fill_create(struct ctl *ctl, void *request)
{
    Cairn__SnapshotRestore *restore = request;
    if (ctl->from == NULL)
        return ctl_usage_fail(ctl, "job create needs --from: a snapshot, as JOB/ID or a folder; a "
                                   "job without one is made by the first worker that opens it");
    if (ctl->restore.as != NULL && ctl->argc > 0)
        return ctl_usage_fail(ctl, "the job's name is given twice: %s, and --as %s", ctl->argv[0],
                              ctl->restore.as);
    const char *name = ctl->argc > 0 ? ctl->argv[0] : ctl->restore.as;
    const int found = find_from(ctl, created_from);
    if (found >= 0) return found;
    restore->path = created_from;
    if (name != NULL) restore->job = wire_text(name);
    restore->settings = ctl->terms.set.list;
    restore->n_settings = ctl->terms.set.count;
    restore->plan = ctl_is_given(ctl, "dry-run");
    if (restore->plan) restore->fallback = false; // the memory is reckoned from this snapshot
    return restore->plan ? -1 : confirm_restore(ctl, restore);
}

/* With --dry-run: prints the snapshot, the job that would be replaced, and the memory that the job needs on
 * the shards. */
static int show_dry_run(struct ctl *ctl, const void *plan)
{
    static char *argument[] = { created_from, NULL };
    if (!ctl_is_given(ctl, "dry-run")) return -1;
    if (!ctl->json && !ctl->quiet)
        ctl_page(plan, CTL_SNAPSHOT_LINES "\n*replaced replaces|" CTL_VERSION);
    ctl->argv = argument;
    ctl->argc = 1;
    return ctl_job_plan.run(ctl);
}

const struct ctl_question ctl_job_create = { RESTORES, .fill_by = fill_create,
                                             .show = show_dry_run };

/* ==== verify ==== */

/* cairn snapshot verify: checks every block of a snapshot against the block's checksum, and checks the
 * snapshot's signature. */

struct verification {
    const struct ctl *ctl;
    struct ctl_progress progress;
    Cairn__ShownVerify *shown; /* owned */
    struct sentence signature;
    bool is_signature_bad;
};

static bool on_progress(void *context, uint64_t done, uint64_t total, const char *file)
{
    struct verification *v = context;
    (void)total;
    (void)file;
    ctl_progress_at(&v->progress, done);
    return true;
}

static void on_damage(void *context, const char *what)
{
    struct verification *v = context;
    v->shown->damage_count++;
    ctl_progress_end(&v->progress);
    ctl_append(v->shown, "damages", ctl_copy(what));
    fprintf(stderr, "cairn: %s\n", what);
}

/* Finds the keys to verify with: the given key, else the keys that the coordinator trusts, if the
 * coordinator was asked. -1: continue; else the exit status. */
static int find_ring(struct ctl *ctl, bool *found_out, struct key_ring *ring)
{
    *found_out = ctl->verify.key != NULL || ctl->path == NULL;
    if (ctl->verify.key != NULL) {
        ring->count = 1;
        return key_read(ctl->verify.key, &ring->keys[0]);
    }
    return *found_out ? key_ring(ctl, ring) : -1;
}

static void check_signature(struct verification *v, const struct manifest *manifest,
                            const struct key_ring *ring)
{
    const enum trust trust = manifest_trust(manifest, ring, &v->signature);
    v->is_signature_bad = trust == CAIRN_TRUST_BROKEN;
    if (trust == CAIRN_TRUST_UNSIGNED || trust == CAIRN_TRUST_STRANGE)
        fprintf(stderr, "cairn: the snapshot is %s\n", v->signature.text);
    if (v->is_signature_bad) on_damage(v, v->signature.text);
}

static void print_verify(const struct verification *v, const char *folder, uint64_t bytes)
{
    Cairn__ShownVerify *shown = v->shown;
    const double subset = v->ctl->verify.subset;
    shown->path = ctl_copy(folder);
    shown->state = ctl_copy(shown->damage_count == 0 ? "good" : "damaged");
    shown->bytes = bytes;
    shown->quick = ctl_is_given(v->ctl, "quick");
    shown->read = shown->quick ? 0.0 : subset > 0 ? subset : 1.0;
    shown->signature = ctl_copy(v->signature.text);
    ctl_show(v->ctl, shown,
             "snapshot|{path}\n"
             "state|{state}\n"
             "size|{bytes/bytes}\n"
             "read|[{?quick}manifest, sizes and headers]"
             "[{!quick}{read/percent%g}% of the blocks]\n"
             "signature|{signature}\n"
             "damaged|in {damage_count?} places",
             NULL);
}

/* Splits the path into the root of the snapshots and the id. False: the folder is not in such a root, so
 * nobody would look for a check result there. */
static bool split_place(const char *folder, const struct manifest *m, char root[PATH_MAX],
                        char id[CAIRN_SNAPSHOT_ID_BYTES])
{
    uint64_t generation, step;
    snprintf(root, PATH_MAX, "%s", folder);
    char *slash = strrchr(root, '/');
    if (slash == NULL || strlen(slash + 1) >= CAIRN_SNAPSHOT_ID_BYTES ||
        !snapshot_id_parse(slash + 1, &generation, &step))
        return false;
    snprintf(id, CAIRN_SNAPSHOT_ID_BYTES, "%s", slash + 1);
    *slash = '\0';
    slash = strrchr(root, '/');
    if (slash == NULL || strcmp(slash + 1, m->spec.name) != 0) return false;
    *slash = '\0';
    return true;
}

/* If this process runs as root, gives the check result to the owner of the job's folder. The owner is the
 * user of the coordinator, which later replaces and removes the check result. */
static void give_to_owner(const char *root, const char *job, const char *id)
{
    char path[PATH_MAX + CAIRN_NAME_MAX + CAIRN_SNAPSHOT_ID_BYTES + 16];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", root, job);
    if (geteuid() != 0 || stat(path, &info) != 0) return;
    snprintf(path, sizeof path, "%s/%s/checks", root, job);
    int done = lchown(path, info.st_uid, info.st_gid);
    snprintf(path, sizeof path, "%s/%s/checks/%s", root, job, id);
    if (done == 0) done = lchown(path, info.st_uid, info.st_gid);
    if (done != 0) fprintf(stderr, "cairn: %s stays root's: %s\n", path, strerror(errno));
}

/* Records the damage beside the snapshot, where the coordinator's own scrub stores its result. `snapshot
 * list` and restores use this record. */
static void note_damage(const char *folder, const struct manifest *m)
{
    struct snapshot_check check = { .is_good = false, .unix_s = (uint64_t)time(NULL) };
    struct sentence why = { "" };
    char root[PATH_MAX];
    if (!split_place(folder, m, root, check.id)) return;
    if (snapshot_check_set(root, m->spec.name, &check, &why) == CAIRN_OK)
        give_to_owner(root, m->spec.name, check.id);
    else
        fprintf(stderr,
                "cairn: the damage is not noted beside the snapshot, so `cairn snapshot list` does "
                "not show it: %s; verify it as the user who owns the snapshots\n",
                why.text);
}

static int verify(struct verification *v, const char *folder, struct snapshot *snapshot)
{
    struct sentence why = { "" };
    uint64_t bytes = 0;
    for (size_t i = 0; i < snapshot->manifest.file_count; i++)
        bytes += snapshot->manifest.files[i].bytes;
    const struct verify asked = { .quick = ctl_is_given(v->ctl, "quick"),
                                  .fraction = v->ctl->verify.subset,
                                  .progress = on_progress,
                                  .damage = on_damage,
                                  .context = v };
    ctl_progress_begin(&v->progress, v->ctl, "verified", bytes);
    const cairn_status status = snapshot_verify(snapshot, &asked, &why);
    ctl_progress_end(&v->progress);
    const bool is_damage = status == CAIRN_ERR_CHECKSUM || status == CAIRN_ERR_CORRUPT;
    if (status != CAIRN_OK && !is_damage) return ctl_fail(status, "%s", why.text);
    if (v->shown->damage_count > 0) note_damage(folder, &snapshot->manifest);
    print_verify(v, folder, bytes);
    return v->shown->damage_count == 0 ? 0 : status_exit((int)CAIRN_ERR_CHECKSUM);
}

static int run_snapshot_verify(struct ctl *ctl)
{
    struct verification v = { .ctl = ctl };
    struct snapshot snapshot;
    struct key_ring ring = { .count = 0 };
    char folder[PATH_MAX];
    bool has_ring = false;
    if (ctl_is_given(ctl, "quick") && ctl->verify.subset > 0)
        return ctl_usage_fail(ctl, "--quick reads no block: give it, or --read-data-subset");
    int done = ctl_place_find(ctl, folder);
    if (done < 0) done = find_ring(ctl, &has_ring, &ring);
    if (done < 0) done = ctl_place_open(folder, &snapshot);
    if (done >= 0) return done;
    v.shown = ctl_message(&cairn__shown_verify__descriptor);
    sentence_set(&v.signature, "not checked (give --key FILE)");
    if (has_ring) check_signature(&v, &snapshot.manifest, &ring);
    done = verify(&v, folder, &snapshot);
    message_free(&v.shown->base);
    snapshot_close(&snapshot);
    return done;
}

const struct ctl_question ctl_snapshot_verify = { .run = run_snapshot_verify };
