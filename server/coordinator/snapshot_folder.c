#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/store/confine.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/restore.h"

/* ==== find ==== */

struct finding {
    struct coord_found *found;
    const char *id;
    cairn_status status;
    struct sentence *why;
    const char *root, *job;
    cairn_status listed;
    struct sentence list_why;
};

static void release_one(struct found_snapshot *found)
{
    free(found->folder);
    manifest_release(&found->manifest);
}

void coord_found_release(struct coord_found *found)
{
    for (size_t i = 0; i < found->count; i++) release_one(&found->list[i]);
    free(found->list);
    *found = (struct coord_found) { .list = NULL };
}

static int newer_place(const struct snapshot_place *m, const struct snapshot_place *n)
{
    const int newer = version_compare(n->version, m->version);
    return newer != 0 ? newer : strcmp(n->id, m->id);
}

static int newer_first(const void *a, const void *b)
{
    const struct found_snapshot *m = a, *n = b;
    return newer_place(&m->place, &n->place);
}

/* Orders the snapshots of several jobs. The snapshots of each job are together, the newest
 * first. */
static int by_job(const void *a, const void *b)
{
    const struct found_snapshot *m = a, *n = b;
    const int name = strcmp(m->manifest.spec.name, n->manifest.spec.name);
    return name != 0 ? name : newer_first(a, b);
}

bool snapshot_place_behind(const struct snapshot_place *a, const struct snapshot_place *b)
{
    return b->id[0] == '\0' || newer_place(a, b) > 0;
}

void find_line(struct coord_found *found, const struct origin *origin, const struct turns *turns)
{
    struct line line = { .turns = { 0 } };
    if (origin != NULL) line.origin = *origin;
    if (turns != NULL) line.turns = *turns;
    for (size_t i = 0; i < found->count; i++) {
        struct found_snapshot *f = &found->list[i];
        f->is_left = !line_follow(&line, f->place.version, &f->manifest.origin);
    }
}

static void drop_oldest(struct coord_found *found)
{
    struct found_snapshot *oldest = found->list;
    for (size_t i = 1; i < found->count; i++)
        if (newer_first(&found->list[i], oldest) > 0) oldest = &found->list[i];
    release_one(oldest);
    *oldest = found->list[--found->count];
}

static void note_unread(struct coord_found *found, const char *id, const struct sentence *why)
{
    struct snapshot_place place = { .id = "" };
    if (!snapshot_id_parse(id, &place.version.generation, &place.version.step)) return;
    snprintf(place.id, sizeof place.id, "%s", id);
    if (found->damaged.id[0] != '\0' && !snapshot_place_behind(&found->damaged, &place)) return;
    found->damaged = place;
    found->damage = *why;
}

/* Adds a snapshot to those found. A snapshot whose manifest cannot be read is left out, and the
 * requests that show or restore it report what is wrong. */
static void on_snapshot(void *context, const char *job, const char *id, const char *folder)
{
    struct finding *finding = context;
    struct coord_found *found = finding->found;
    (void)job;
    if (finding->id != NULL && strcmp(finding->id, id) != 0) return;
    struct found_snapshot *f = &found->list[found->count];
    struct sentence why;
    manifest_init(&f->manifest);
    const cairn_status status = manifest_load(folder, &f->manifest, &why);
    if (status != CAIRN_OK) {
        note_unread(found, id, &why);
        if (finding->id != NULL) {
            finding->status = status;
            *finding->why = why;
        }
        return;
    }
    f->is_left = false;
    f->place = (struct snapshot_place) { { f->manifest.generation, f->manifest.step }, "" };
    snprintf(f->place.id, sizeof f->place.id, "%s", id);
    f->folder = strdup(folder);
    if (f->folder == NULL) {
        release_one(f);
        finding->status = fail_with(finding->why, CAIRN_ERR_NO_MEMORY, "out of memory");
        return;
    }
    if (++found->count > CAIRN_FOUND_MAX) drop_oldest(found);
}

static void list_snapshots(void *context)
{
    struct finding *finding = context;
    finding->listed = snapshot_list(finding->root, finding->job, on_snapshot, finding,
                                    &finding->list_why);
}

cairn_status coord_find_snapshots(const struct coord *cluster, const char *job, const char *id,
                                  struct coord_found *out, struct sentence *why)
{
    struct finding finding = { .found = out,
                               .id = id,
                               .status = CAIRN_OK,
                               .why = why,
                               .root = cluster->storage.path,
                               .job = job };
    *out = (struct coord_found) { .count = 0 };
    out->list = calloc(CAIRN_FOUND_MAX + 1, sizeof *out->list);
    if (out->list == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    CAIRN_TRY(coord_storage_seen(cluster, why));
    CAIRN_TRY(confine_run_in(finding.root, list_snapshots, &finding, why));
    const cairn_status status = finding.listed;
    qsort(out->list, out->count, sizeof *out->list, job != NULL ? newer_first : by_job);
    if (job != NULL) find_line(out, NULL, NULL);
    if (status == CAIRN_OK) out->unread = finding.list_why;
    if (status != CAIRN_OK && finding.status == CAIRN_OK) {
        finding.status = status;
        *why = finding.list_why;
    }
    return finding.status;
}

/* ==== whose ==== */

/* Reads from manifests whose the snapshots are. */

struct newest {
    const char *root, *job;
    const char *id; /* the only one that counts; NULL: the newest */
    char owner[CAIRN_OWNER_BYTES];
    cairn_status status;
    struct sentence why;
    struct snapshot_place place;
    char *folder;  /* owned; NULL: none yet */
    size_t others; /* manifests that say whose the damaged one may be */
    bool is_split; /* true: they name several owners */
};

static void note_newest(void *context, const char *job, const char *id, const char *folder)
{
    struct newest *newest = context;
    struct snapshot_place place = { .id = "" };
    (void)job;
    if (!snapshot_id_parse(id, &place.version.generation, &place.version.step)) return;
    snprintf(place.id, sizeof place.id, "%s", id);
    if (newest->id != NULL && strcmp(newest->id, id) != 0) return;
    if (newest->folder != NULL && !snapshot_place_behind(&newest->place, &place)) return;
    free(newest->folder);
    newest->place = place;
    newest->folder = strdup(folder);
    if (newest->folder == NULL)
        newest->status = fail_with(&newest->why, CAIRN_ERR_NO_MEMORY, "out of memory");
}

/* Takes the owner that a manifest says. */
static cairn_status read_owner(const char *folder, char owner_out[CAIRN_OWNER_BYTES],
                               struct sentence *why)
{
    struct manifest manifest;
    manifest_init(&manifest);
    CAIRN_TRY(manifest_load(folder, &manifest, why));
    snprintf(owner_out, CAIRN_OWNER_BYTES, "%s", manifest.owner != NULL ? manifest.owner : "");
    manifest_release(&manifest);
    return CAIRN_OK;
}

/* True if the manifest says nothing any more. One of a later format says whose it is, but not to us. */
static bool is_mute(cairn_status status)
{
    return coord_restore_is_damage(status) && status != CAIRN_ERR_VERSION;
}

static void note_other(void *context, const char *job, const char *id, const char *folder)
{
    struct newest *newest = context;
    char owner[CAIRN_OWNER_BYTES];
    struct sentence why;
    const cairn_status status = read_owner(folder, owner, &why);
    (void)job;
    (void)id;
    if (status != CAIRN_OK) { // what the storage does not give may be anybody's
        newest->is_split = newest->is_split || !is_mute(status);
        return;
    }
    if (newest->others++ == 0) snprintf(newest->owner, sizeof newest->owner, "%s", owner);
    newest->is_split = newest->is_split || strcmp(newest->owner, owner) != 0;
}

/* The manifest is damaged. The name is then the one's whom every other manifest says, because a name with
 * snapshots is nobody else's. The snapshot itself may be another's: a job is given away, and its next
 * snapshot is the first of the new owner. So nothing is taken from anybody on the word of the others. */
static void ask_others(struct newest *newest)
{
    struct sentence unread = { "" };
    if (snapshot_list(newest->root, newest->job, note_other, newest, &unread) != CAIRN_OK ||
        unread.text[0] != '\0')
        newest->status = CAIRN_ERR_IO;
    else if (newest->is_split)
        newest->status = fail_with(&newest->why, CAIRN_ERR_NOT_READY,
                                   "%s; the others of the name are of several owners",
                                   sentence_brief(newest->why.text, 200).text);
    else if (newest->others > 0 && newest->id == NULL)
        newest->status = CAIRN_OK;
}

static void read_newest(void *context)
{
    struct newest *newest = context;
    struct sentence unread = { "" };
    const cairn_status listed = snapshot_list(newest->root, newest->job, note_newest, newest,
                                              &unread);
    if (newest->status != CAIRN_OK) return;
    newest->status = listed;
    newest->why = unread;
    if (listed != CAIRN_OK) return;
    if (unread.text[0] != '\0') // a newer one than those that were listed, perhaps
        newest->status = CAIRN_ERR_IO;
    else if (newest->folder == NULL)
        newest->status = CAIRN_ERR_NOT_FOUND;
    if (newest->status != CAIRN_OK) return;
    newest->status = read_owner(newest->folder, newest->owner, &newest->why);
    // it is listed, so it is there
    if (newest->status == CAIRN_ERR_NOT_FOUND) newest->status = CAIRN_ERR_IO;
    if (is_mute(newest->status)) ask_others(newest);
}

cairn_status coord_snapshot_owner(const struct coord *cluster, const char *job, const char *id,
                                  char owner_out[CAIRN_OWNER_BYTES], struct sentence *why)
{
    struct newest newest = { .root = cluster->storage.path, .job = job, .id = id };
    owner_out[0] = '\0';
    CAIRN_TRY(coord_storage_seen(cluster, why));
    cairn_status status = confine_run_in(newest.root, read_newest, &newest, why);
    free(newest.folder);
    if (status != CAIRN_OK) return status;
    *why = newest.why;
    snprintf(owner_out, CAIRN_OWNER_BYTES, "%s", newest.owner);
    return newest.status;
}

/* ---- their words ---- */

struct words_read {
    const char *root, *job;
    struct snapshot_words *words;
    cairn_status status;
    struct sentence *why;
};

static void read_words(void *context)
{
    struct words_read *read = context;
    read->status = snapshot_words_load(read->root, read->job, read->words, read->why);
}

cairn_status coord_snapshot_words(const struct coord *cluster, const char *job,
                                  struct snapshot_words *out, struct sentence *why)
{
    struct words_read read = { cluster->storage.path, job, out, CAIRN_OK, why };
    CAIRN_TRY(confine_run_in(read.root, read_words, &read, why));
    return read.status;
}
