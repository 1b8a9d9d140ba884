/* Listing what is under a snapshot root: only folders with a manifest are snapshots. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/store/snapshot_io.h"

static int is_job(const struct dirent *entry)
{
    return cairn_job_name_ok(entry->d_name);
}

static int is_id(const struct dirent *entry)
{
    uint64_t generation, step;
    return cairn_snapshot_id_parse(entry->d_name, &generation, &step);
}

/* "step-000000000002-g1-10" comes after "...-9": numbers in names are compared as numbers. */
static int name_order(const struct dirent **a, const struct dirent **b)
{
    return strverscmp((*a)->d_name, (*b)->d_name);
}

static bool has_manifest(const char *folder)
{
    char *path = NULL;
    struct stat info;
    if (asprintf(&path, "%s/" CAIRN_MANIFEST_NAME, folder) < 0) return false;
    const bool there = lstat(path, &info) == 0 && S_ISREG(info.st_mode);
    free(path);
    return there;
}

static cairn_status scan(const char *folder, int (*filter)(const struct dirent *),
                         struct dirent ***names_out, int *count_out, struct cairn_sentence *why)
{
    const int count = scandir(folder, names_out, filter, name_order);
    *count_out = count > 0 ? count : 0;
    if (count >= 0) return CAIRN_OK;
    *names_out = NULL;
    if (errno == ENOENT || errno == ENOTDIR) return CAIRN_OK;
    return cairn_fail(why, errno == ENOMEM ? CAIRN_ERR_NO_MEMORY : CAIRN_ERR_IO,
                      "listing the snapshots in %s: %s", folder, strerror(errno));
}

static void release_names(struct dirent **names, int count)
{
    for (int i = 0; i < count; i++) free(names[i]);
    free(names);
}

static cairn_status list_job(const char *root, const char *job, cairn_snapshot_fn on_snapshot,
                             void *context, struct cairn_sentence *why)
{
    char *job_folder = NULL;
    struct dirent **names = NULL;
    int count = 0;
    if (asprintf(&job_folder, "%s/%s", root, job) < 0) return CAIRN_ERR_NO_MEMORY;
    cairn_status status = scan(job_folder, is_id, &names, &count, why);
    for (int i = 0; i < count && status == CAIRN_OK; i++) {
        char *folder = NULL;
        if (asprintf(&folder, "%s/%s", job_folder, names[i]->d_name) < 0) {
            status = CAIRN_ERR_NO_MEMORY;
            break;
        }
        if (has_manifest(folder)) on_snapshot(context, job, names[i]->d_name, folder);
        free(folder);
    }
    release_names(names, count);
    free(job_folder);
    return status;
}

cairn_status cairn_snapshot_list(const char *root, const char *job, cairn_snapshot_fn on_snapshot,
                                 void *context, struct cairn_sentence *why)
{
    if (job != NULL) {
        if (!cairn_job_name_ok(job)) return CAIRN_OK; // no job has that name
        return list_job(root, job, on_snapshot, context, why);
    }
    struct dirent **names = NULL;
    int count = 0;
    cairn_status status = scan(root, is_job, &names, &count, why);
    for (int i = 0; i < count && status == CAIRN_OK; i++) {
        status = list_job(root, names[i]->d_name, on_snapshot, context, why);
    }
    release_names(names, count);
    return status;
}
