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
    *found = (struct cairn_cluster_found) { NULL, 0 };
}

/* By when they were taken, to the second, then by version. */
static int newer_first(const void *a, const void *b)
{
    const struct cairn_snapshot_place *m = &((const struct cairn_found_snapshot *)a)->place;
    const struct cairn_snapshot_place *n = &((const struct cairn_found_snapshot *)b)->place;
    if (m->created_unix_s != n->created_unix_s)
        return m->created_unix_s > n->created_unix_s ? -1 : 1;
    const int newer = cairn_version_compare((struct cairn_version) { n->generation, n->step },
                                            (struct cairn_version) { m->generation, m->step });
    return newer != 0 ? newer : strcmp(n->id, m->id);
}

bool cairn_snapshot_place_behind(const struct cairn_snapshot_place *a,
                                 const struct cairn_snapshot_place *b)
{
    const struct cairn_found_snapshot x = { .place = *a }, y = { .place = *b };
    return b->id[0] == '\0' || newer_first(&x, &y) > 0;
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
    f->place = (struct cairn_snapshot_place) { .created_unix_s = f->manifest.created_unix_s,
                                               .generation = f->manifest.generation,
                                               .step = f->manifest.step };
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
    out->count = 0;
    out->list = calloc(CAIRN_FOUND_MAX + 1, sizeof *out->list);
    if (out->list == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    cairn_status status = cairn_cluster_storage_seen(cluster, why);
    if (status != CAIRN_OK) return status;
    status = cairn_snapshot_list(cluster->storage.path, job, on_snapshot, &finding, &list_why);
    qsort(out->list, out->count, sizeof *out->list, newer_first);
    if (status != CAIRN_OK && finding.status == CAIRN_OK) {
        finding.status = status;
        *why = list_why;
    }
    return finding.status;
}
