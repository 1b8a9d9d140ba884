/* Listing what is under a snapshot root: only folders with a manifest are snapshots. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "proto/store/names.h"

/* A folder that is not there has no names. */
static cairn_status scan(const char *root, const char *path, struct cairn_names *names,
                         struct cairn_sentence *why)
{
    struct cairn_sentence said = { "" };
    const cairn_status status = cairn_names_list(root, path, names, &said);
    if (status == CAIRN_OK || status == CAIRN_ERR_NOT_FOUND) return CAIRN_OK;
    return cairn_fail(why, status, "listing the snapshots in %s: %s", root, said.text);
}

static bool has_manifest(const char *folder)
{
    uint64_t bytes;
    return cairn_storage_of(folder)->stat(folder, CAIRN_MANIFEST_NAME, &bytes, NULL) == CAIRN_OK;
}

static cairn_status list_job(const char *root, const char *job, cairn_snapshot_fn on_snapshot,
                             void *context, struct cairn_sentence *why)
{
    struct cairn_names names;
    cairn_status status = scan(root, job, &names, why);
    for (size_t i = 0; i < names.count && status == CAIRN_OK; i++) {
        char *folder = NULL;
        uint64_t generation, step;
        if (!cairn_snapshot_id_parse(names.list[i], &generation, &step)) continue;
        if (asprintf(&folder, "%s/%s/%s", root, job, names.list[i]) < 0) {
            status = CAIRN_ERR_NO_MEMORY;
            break;
        }
        if (has_manifest(folder)) on_snapshot(context, job, names.list[i], folder);
        free(folder);
    }
    cairn_names_release(&names);
    return status;
}

cairn_status cairn_snapshot_last_generation(const char *root, const char *job, uint64_t *out,
                                            struct cairn_sentence *why)
{
    struct cairn_names names;
    *out = 0;
    const cairn_status status = scan(root, job, &names, why);
    for (size_t i = 0; i < names.count && status == CAIRN_OK; i++) {
        uint64_t generation, step;
        if (cairn_snapshot_id_parse(names.list[i], &generation, &step) && generation > *out)
            *out = generation;
    }
    cairn_names_release(&names);
    return status;
}

cairn_status cairn_snapshot_list(const char *root, const char *job, cairn_snapshot_fn on_snapshot,
                                 void *context, struct cairn_sentence *why)
{
    struct cairn_names names;
    if (job != NULL) // none has another name
        return cairn_job_name_ok(job) ? list_job(root, job, on_snapshot, context, why) : CAIRN_OK;
    cairn_status status = scan(root, "", &names, why);
    for (size_t i = 0; i < names.count && status == CAIRN_OK; i++)
        if (cairn_job_name_ok(names.list[i]))
            status = list_job(root, names.list[i], on_snapshot, context, why);
    cairn_names_release(&names);
    return status;
}
