#include "proto/snapshot_io/copy.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot/manifest_trust.h"
#include "proto/snapshot_io/block_reader.h"
#include "proto/snapshot_io/writer.h"

struct copying {
    struct cairn_snapshot *from;
    const struct cairn_snapshot_copy *copy;
    const char *root, *folder; /* of the copy */
    const char *id;
    struct cairn_block_reader *reader;    /* owned */
    struct cairn_snapshot_writer *writer; /* owned */
    size_t file;                          /* that is copied */
    uint64_t done_bytes;
    bool made; /* the folder is ours: it was not there before */
};

/* A cairn_snapshot_fill_fn: a block of the file as it is, judged. */
static cairn_status give_block(void *context, const struct cairn_safetensors_entry *entry,
                               uint64_t first_byte, uint64_t byte_count, void *to,
                               struct cairn_sentence *why)
{
    struct copying *c = context;
    const uint8_t *bytes;
    size_t count;
    (void)entry;
    if (c->copy->progress != NULL && !c->copy->progress(c->copy->context, c->done_bytes))
        return cairn_fail(why, CAIRN_ERR_CANCELED, "the copy was given up");
    const cairn_status status = cairn_block_reader_get(
        c->reader, c->file, first_byte / CAIRN_SNAPSHOT_BLOCK_BYTES, &bytes, &count, why);
    if (status != CAIRN_OK) return status;
    assert(first_byte % CAIRN_SNAPSHOT_BLOCK_BYTES == 0 && count == byte_count);
    memcpy(to, bytes, count);
    c->done_bytes += count;
    return CAIRN_OK;
}

/* As a file without a header, whose bytes are one tensor. */
static cairn_status copy_file(struct copying *c, size_t file, struct cairn_sentence *why)
{
    const struct cairn_manifest_file *listed = &c->from->manifest.files[file];
    struct cairn_safetensors_entry all = { .dtype = CAIRN_U8, .end = listed->bytes };
    struct cairn_snapshot_file as_it_is = { .entries = &all,
                                            .entry_count = 1,
                                            .file_bytes = listed->bytes };
    const struct cairn_snapshot_source source = { .fill = give_block, .context = c };
    snprintf(as_it_is.path, sizeof as_it_is.path, "%s", listed->path);
    c->file = file;
    return cairn_snapshot_writer_put_other(c->writer, c->folder, &as_it_is, &source, NULL, why);
}

/* The manifest as it stands there, which is what was signed. *text_out is malloc'd, the caller's. */
static cairn_status read_manifest(const char *folder, char **text_out, size_t *bytes_out,
                                  struct cairn_sentence *why)
{
    const struct cairn_storage *storage = cairn_storage_of(folder);
    struct cairn_storage_file *file;
    cairn_status status = storage->open(folder, CAIRN_MANIFEST_NAME, false, &file, why);
    if (status != CAIRN_OK) return status;
    const size_t bytes = (size_t)file->bytes;
    char *text = file->bytes <= CAIRN_MANIFEST_BYTES_MAX ? malloc(bytes + 1) : NULL;
    size_t got = 0;
    if (text == NULL)
        status = cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a manifest");
    else
        status = storage->read(file, 0, text, bytes, &got, why);
    storage->close(file);
    if (status == CAIRN_OK && got < bytes)
        status = cairn_fail(why, CAIRN_ERR_CORRUPT, "%s/manifest.json was cut off", folder);
    if (status != CAIRN_OK) {
        free(text);
        return status;
    }
    *text_out = text;
    *bytes_out = bytes;
    return CAIRN_OK;
}

/* It is the one that was opened: nobody has changed it since. */
static cairn_status commit(struct copying *c, struct cairn_sentence *why)
{
    const struct cairn_storage *storage = cairn_storage_of(c->folder);
    const struct cairn_manifest *m = &c->from->manifest;
    struct cairn_manifest again;
    char *text = NULL;
    size_t bytes = 0;
    cairn_status status = read_manifest(c->from->folder, &text, &bytes, why);
    if (status != CAIRN_OK) return status;
    status = cairn_manifest_decode(text, bytes, &again, why);
    if (status == CAIRN_OK) {
        if (memcmp(again.content_root, m->content_root, sizeof again.content_root) != 0 ||
            again.file_count != m->file_count)
            status = cairn_fail(why, CAIRN_ERR_CORRUPT,
                                "%s/manifest.json was changed while the snapshot was copied",
                                c->from->folder);
        cairn_manifest_release(&again);
    }
    if (status == CAIRN_OK && m->signature != NULL)
        status = storage->commit(c->folder, CAIRN_MANIFEST_SIGNATURE_NAME, m->signature,
                                 m->signature_bytes, false, why);
    if (status == CAIRN_OK)
        status = storage->commit(c->folder, CAIRN_MANIFEST_NAME, text, bytes, false, why);
    free(text);
    return status;
}

static bool has_blobs(const struct cairn_manifest *m)
{
    for (size_t i = 0; i < m->file_count; i++)
        if (cairn_snapshot_folder_of(m->files[i].path) == CAIRN_SNAPSHOT_BLOBS) return true;
    return false;
}

/* <root>/<job>/<id>, which was not there, and what is in it. */
static cairn_status make_folders(struct copying *c, struct cairn_sentence *why)
{
    const struct cairn_storage *storage = cairn_storage_of(c->root);
    const char *job = c->from->manifest.spec.name;
    const int folders = has_blobs(&c->from->manifest) ? CAIRN_SNAPSHOT_FOLDERS
                                                      : CAIRN_SNAPSHOT_BLOBS;
    char place[CAIRN_NAME_MAX + CAIRN_SNAPSHOT_ID_BYTES + 2];
    snprintf(place, sizeof place, "%s/%s", job, c->id);
    cairn_status status = storage->make(c->root, job, false, why);
    if (status == CAIRN_OK) status = storage->make(c->root, place, true, why);
    if (status == CAIRN_ERR_EXISTS)
        return cairn_fail(why, status,
                          "%s is there already; if a copy that was killed has left it, and it has "
                          "no manifest.json, remove it",
                          c->folder);
    c->made = status == CAIRN_OK;
    for (int i = 0; i < folders && status == CAIRN_OK; i++)
        status = storage->make(c->folder, cairn_snapshot_folder_name((enum cairn_snapshot_folder)i),
                               true, why);
    return status;
}

/* Files of a manifest before version 4 have one checksum over all of each. */
static cairn_status judge_whole(struct cairn_snapshot *snapshot, struct cairn_sentence *why)
{
    for (size_t i = 0; i < snapshot->manifest.file_count; i++)
        if (snapshot->manifest.files[i].is_whole) return cairn_snapshot_verify(snapshot, NULL, why);
    return CAIRN_OK;
}

static cairn_status copy_all(struct copying *c, struct cairn_sentence *why)
{
    cairn_status status = make_folders(c, why);
    if (status == CAIRN_OK)
        status = cairn_block_reader_open(c->from->folder, &c->from->manifest, c->from->ahead,
                                         &c->reader, why);
    if (status == CAIRN_OK) status = cairn_snapshot_writer_open(0, &c->writer, why);
    for (size_t i = 0; i < c->from->manifest.file_count && status == CAIRN_OK; i++)
        status = copy_file(c, i, why);
    if (status == CAIRN_OK && c->copy->progress != NULL)
        (void)c->copy->progress(c->copy->context, c->done_bytes); // too late to give it up
    if (status == CAIRN_OK) status = commit(c, why);
    if (status != CAIRN_OK && c->made) {
        struct cairn_snapshot_removed removed;
        const cairn_status gone = cairn_snapshot_remove(c->root, c->from->manifest.spec.name, c->id,
                                                        &removed, NULL);
        (void)gone; // what stays is no snapshot
    }
    return status;
}

cairn_status cairn_snapshot_copy(struct cairn_snapshot *snapshot, const char *root,
                                 const struct cairn_snapshot_copy *copy, char **folder_out,
                                 struct cairn_sentence *why)
{
    const char *slash = strrchr(snapshot->folder, '/');
    const char *id = slash != NULL ? slash + 1 : snapshot->folder;
    uint64_t generation, step;
    char *folder = NULL;
    if (!cairn_snapshot_id_parse(id, &generation, &step) ||
        !cairn_job_name_ok(snapshot->manifest.spec.name))
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "the folder %.200s has not the name of a snapshot", id);
    cairn_status status = judge_whole(snapshot, why);
    if (status != CAIRN_OK) return status;
    if (asprintf(&folder, "%s/%s/%s", root, snapshot->manifest.spec.name, id) < 0)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to copy a snapshot");
    struct copying c = { .from = snapshot, .copy = copy, .root = root, .folder = folder, .id = id };
    status = copy_all(&c, why);
    cairn_snapshot_writer_close(c.writer);
    cairn_block_reader_close(c.reader);
    if (status == CAIRN_OK)
        *folder_out = folder;
    else
        free(folder);
    return status;
}
