/* A snapshot begins with its folder, and is there when it has a manifest. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot/manifest_trust.h"
#include "proto/snapshot_io/snapshot_io.h"

/* ---- folders ---- */

static cairn_status make_parts(const char *root, const char *place, struct cairn_sentence *why)
{
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < CAIRN_SNAPSHOT_BLOBS && status == CAIRN_OK;
         i++) { // blobs where there are some
        char path[CAIRN_NAME_MAX + CAIRN_SNAPSHOT_ID_BYTES + 16];
        snprintf(path, sizeof path, "%s/%s", place,
                 cairn_snapshot_folder_name((enum cairn_snapshot_folder)i));
        status = cairn_storage_of(root)->make(root, path, false, why);
    }
    return status;
}

/* Makes a folder with an id that was not there, in the job's. */
static cairn_status make_id(const char *root, const char *job, uint64_t generation, uint64_t step,
                            char id[CAIRN_SNAPSHOT_ID_BYTES], struct cairn_sentence *why)
{
    cairn_status status = CAIRN_ERR_EXISTS;
    char place[CAIRN_NAME_MAX + CAIRN_SNAPSHOT_ID_BYTES + 2];
    for (uint32_t attempt = 1; attempt < 10000 && status == CAIRN_ERR_EXISTS; attempt++) {
        cairn_snapshot_id_make(generation, step, attempt, id);
        snprintf(place, sizeof place, "%s/%s", job, id);
        status = cairn_storage_of(root)->make(root, place, true, why);
    }
    if (status != CAIRN_OK) return status;
    struct cairn_snapshot_removed removed;
    status = make_parts(root, place, why);
    // Nobody knows of it yet: it would stay.
    if (status != CAIRN_OK) (void)!cairn_snapshot_remove(root, job, id, &removed, NULL);
    return status;
}

cairn_status cairn_snapshot_folder_make(const char *root, const char *job, uint64_t generation,
                                        uint64_t step, char id_out[CAIRN_SNAPSHOT_ID_BYTES],
                                        char **folder_out, struct cairn_sentence *why)
{
    char id[CAIRN_SNAPSHOT_ID_BYTES], *folder = NULL;
    if (!cairn_job_name_ok(job))
        return cairn_fail(why, CAIRN_ERR_INVALID, "the job's name cannot be a folder's");
    cairn_status status = cairn_storage_of(root)->make(root, job, false, why);
    if (status == CAIRN_OK) status = make_id(root, job, generation, step, id, why);
    if (status != CAIRN_OK) return status;
    if (asprintf(&folder, "%s/%s/%s", root, job, id) < 0) return CAIRN_ERR_NO_MEMORY;
    memcpy(id_out, id, sizeof id);
    *folder_out = folder;
    return CAIRN_OK;
}

/* ---- the manifest ---- */

static cairn_status check_files(const char *folder, const struct cairn_manifest *m,
                                struct cairn_sentence *why)
{
    for (size_t i = 0; i < m->file_count; i++) {
        uint64_t bytes = 0;
        struct cairn_sentence said = { "" };
        const cairn_status status = cairn_storage_of(folder)->stat(folder, m->files[i].path, &bytes,
                                                                   &said);
        if (status != CAIRN_OK)
            return cairn_fail(
                why, CAIRN_ERR_CORRUPT,
                "%s is not there (%.300s): the shards and the coordinator must see the "
                "same snapshot folder",
                m->files[i].path, said.text);
        if (bytes != m->files[i].bytes)
            return cairn_fail(why, CAIRN_ERR_CORRUPT,
                              "%s has %" PRIu64 " bytes, its shard wrote %" PRIu64,
                              m->files[i].path, bytes, m->files[i].bytes);
    }
    return CAIRN_OK;
}

static cairn_status commit(const char *folder, const char *name, const char *text,
                           size_t text_bytes, struct cairn_sentence *why)
{
    return cairn_storage_of(folder)->commit(folder, name, text, text_bytes, false, why);
}

/* Before the manifest: a crash between them leaves no snapshot, and never one that is not signed. */
static cairn_status commit_signature(const char *folder, const struct cairn_manifest *manifest,
                                     const struct cairn_secret_key *signer, const char *text,
                                     size_t text_bytes, struct cairn_sentence *why)
{
    uint8_t prehash[CAIRN_PREHASH_BYTES];
    char comment[CAIRN_SIGNATURE_COMMENT_BYTES], signature[CAIRN_MINISIG_BYTES];
    cairn_prehash(text, text_bytes, prehash);
    cairn_manifest_signature_comment(manifest, comment);
    cairn_minisig_sign(signer, prehash, comment, signature);
    return commit(folder, CAIRN_MANIFEST_SIGNATURE_NAME, signature, strlen(signature), why);
}

cairn_status cairn_manifest_commit(const char *folder, struct cairn_manifest *manifest,
                                   struct cairn_sentence *why)
{
    return cairn_manifest_commit_signed(folder, manifest, NULL, why);
}

cairn_status cairn_manifest_commit_signed(const char *folder, struct cairn_manifest *manifest,
                                          const struct cairn_secret_key *signer,
                                          struct cairn_sentence *why)
{
    char *text = NULL;
    size_t text_bytes = 0;
    cairn_status status = cairn_manifest_encode(manifest, &text, &text_bytes, why);
    if (status != CAIRN_OK) return status;
    status = check_files(folder, manifest, why);
    if (status == CAIRN_OK && signer != NULL)
        status = commit_signature(folder, manifest, signer, text, text_bytes, why);
    if (status == CAIRN_OK) status = commit(folder, CAIRN_MANIFEST_NAME, text, text_bytes, why);
    free(text);
    return status;
}
