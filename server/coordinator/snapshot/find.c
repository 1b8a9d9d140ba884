#include "server/coordinator/snapshot/find.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "server/coordinator/cluster.h"

struct finding {
    struct cairn_cluster_found *found;
    const char *id;
    cairn_status status;
    struct cairn_sentence *why;
};

static void release_one(struct cairn_found_snapshot *found)
{
    free(found->folder);
    cairn_manifest_release(&found->manifest);
}

void cairn_cluster_found_release(struct cairn_cluster_found *found)
{
    for (size_t i = 0; i < found->count; i++) release_one(&found->list[i]);
    free(found->list);
    *found = (struct cairn_cluster_found) { .list = NULL };
}

static int newer_place(const struct cairn_snapshot_place *m, const struct cairn_snapshot_place *n)
{
    const int newer = cairn_version_compare(n->version, m->version);
    return newer != 0 ? newer : strcmp(n->id, m->id);
}

static int newer_first(const void *a, const void *b)
{
    const struct cairn_found_snapshot *m = a, *n = b;
    return newer_place(&m->place, &n->place);
}

/* Orders the snapshots of several jobs: each job's together, the newest first. */
static int by_job(const void *a, const void *b)
{
    const struct cairn_found_snapshot *m = a, *n = b;
    const int name = strcmp(m->manifest.spec.name, n->manifest.spec.name);
    return name != 0 ? name : newer_first(a, b);
}

bool cairn_snapshot_place_behind(const struct cairn_snapshot_place *a,
                                 const struct cairn_snapshot_place *b)
{
    return b->id[0] == '\0' || newer_place(a, b) > 0;
}

void cairn_find_line(struct cairn_cluster_found *found, const struct cairn_origin *origin)
{
    struct cairn_origin at = origin != NULL ? *origin : (struct cairn_origin) { 0 };
    for (size_t i = 0; i < found->count; i++) {
        struct cairn_found_snapshot *f = &found->list[i];
        const struct cairn_origin *its = &f->manifest.origin;
        f->is_left = !cairn_origin_follows(&at, f->place.version);
        if (!f->is_left && (at.generation == 0 || f->place.version.generation < at.generation))
            at = *its;
    }
}

static void drop_oldest(struct cairn_cluster_found *found)
{
    struct cairn_found_snapshot *oldest = found->list;
    for (size_t i = 1; i < found->count; i++)
        if (newer_first(&found->list[i], oldest) > 0) oldest = &found->list[i];
    release_one(oldest);
    *oldest = found->list[--found->count];
}

/* A manifest that cannot be read is not listed: show and restore say what is wrong with it. */
static void on_snapshot(void *context, const char *job, const char *id, const char *folder)
{
    struct finding *finding = context;
    struct cairn_cluster_found *found = finding->found;
    (void)job;
    if (finding->id != NULL && strcmp(finding->id, id) != 0) return;
    struct cairn_found_snapshot *f = &found->list[found->count];
    struct cairn_sentence why;
    cairn_manifest_init(&f->manifest);
    const cairn_status status = cairn_manifest_load(folder, &f->manifest, &why);
    if (status != CAIRN_OK) {
        if (finding->id != NULL) {
            finding->status = status;
            *finding->why = why;
        }
        return;
    }
    f->is_left = false;
    f->place = (struct cairn_snapshot_place) { { f->manifest.generation, f->manifest.step }, "" };
    snprintf(f->place.id, sizeof f->place.id, "%s", id);
    f->folder = strdup(folder);
    if (f->folder == NULL) {
        release_one(f);
        finding->status = cairn_fail(finding->why, CAIRN_ERR_NO_MEMORY, "no memory");
        return;
    }
    if (++found->count > CAIRN_FOUND_MAX) drop_oldest(found);
}

cairn_status cairn_cluster_find_snapshots(const struct cairn_cluster *cluster, const char *job,
                                          const char *id, struct cairn_cluster_found *out,
                                          struct cairn_sentence *why)
{
    struct finding finding = { out, id, CAIRN_OK, why };
    struct cairn_sentence list_why;
    *out = (struct cairn_cluster_found) { .count = 0 };
    out->list = calloc(CAIRN_FOUND_MAX + 1, sizeof *out->list);
    if (out->list == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    cairn_status status = cairn_cluster_storage_seen(cluster, why);
    if (status != CAIRN_OK) return status;
    status = cairn_snapshot_list(cluster->storage.path, job, on_snapshot, &finding, &list_why);
    qsort(out->list, out->count, sizeof *out->list, job != NULL ? newer_first : by_job);
    if (job != NULL) cairn_find_line(out, NULL);
    if (status == CAIRN_OK) out->unread = list_why;
    if (status != CAIRN_OK && finding.status == CAIRN_OK) {
        finding.status = status;
        *why = list_why;
    }
    return finding.status;
}
