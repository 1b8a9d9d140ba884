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

/* Goes on without it; `why` says so in the end. */
static void note_unread(struct cairn_sentence *why, const struct cairn_sentence *said)
{
    if (why != NULL)
        cairn_sentence_add(why, "%s%s", why->text[0] != '\0' ? "; " : "",
                           cairn_sentence_brief(said->text, 300).text);
}

/* Looks the manifest up by its path beneath the root, so that no link is followed. */
static bool has_manifest(const char *root, const char *job, const char *id,
                         struct cairn_sentence *why)
{
    char path[CAIRN_NAME_MAX + CAIRN_SNAPSHOT_ID_BYTES + sizeof CAIRN_MANIFEST_NAME + 2];
    struct cairn_sentence said = { "" };
    uint64_t bytes;
    snprintf(path, sizeof path, "%s/%s/" CAIRN_MANIFEST_NAME, job, id);
    const cairn_status status = cairn_storage_of(root)->stat(root, path, &bytes, &said);
    if (status == CAIRN_ERR_IO) note_unread(why, &said);
    return status == CAIRN_OK;
}

static cairn_status list_job(const char *root, const char *job, cairn_snapshot_fn on_snapshot,
                             void *context, struct cairn_sentence *why)
{
    struct cairn_names names;
    cairn_status status = scan(root, job, &names, why);
    for (size_t i = 0; i < names.count && status == CAIRN_OK; i++) {
        char *folder = NULL;
        uint64_t generation, step;
        if (!cairn_snapshot_id_parse(names.list[i], &generation, &step) ||
            !has_manifest(root, job, names.list[i], why))
            continue;
        if (asprintf(&folder, "%s/%s/%s", root, job, names.list[i]) < 0) {
            status = CAIRN_ERR_NO_MEMORY;
            break;
        }
        on_snapshot(context, job, names.list[i], folder);
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
    if (why != NULL) why->text[0] = '\0';
    if (job != NULL) // none has another name
        return cairn_job_name_ok(job) ? list_job(root, job, on_snapshot, context, why) : CAIRN_OK;
    cairn_status status = scan(root, "", &names, why);
    for (size_t i = 0; i < names.count && status == CAIRN_OK; i++) {
        struct cairn_sentence said = { "" };
        if (!cairn_job_name_ok(names.list[i])) continue;
        status = list_job(root, names.list[i], on_snapshot, context, &said);
        if (said.text[0] != '\0') note_unread(why, &said);
        if (status == CAIRN_ERR_IO) status = CAIRN_OK; // another job's folder is no reason
    }
    cairn_names_release(&names);
    return status;
}
