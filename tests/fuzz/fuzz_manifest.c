/* The manifest of a snapshot: as it is, and sealed anew, so that more than the seal judges a change. */
#include <string.h>

#include "proto/snapshot/snapshot.h"
#include "tests/fuzz/target.h"

/* What was read can be written, and is read again as the same. */
static void comes_back(struct manifest *m)
{
    char *text = NULL;
    size_t text_bytes = 0;
    struct sentence why = { 0 };
    struct manifest again;
    const cairn_status status = manifest_encode(m, &text, &text_bytes, &why);
    if (status != CAIRN_OK) { // of an older version, whose checksums are over whole files
        MUST(why.text[0] != '\0');
        return;
    }
    MUST(manifest_decode(text, text_bytes, &again, &why) == CAIRN_OK);
    MUST(again.step == m->step && again.generation == m->generation);
    MUST(again.file_count == m->file_count && again.payload_bytes == m->payload_bytes);
    MUST(memcmp(again.content_root, m->content_root, sizeof again.content_root) == 0);
    manifest_release(&again);
    free(text);
}

/* In the snapshot's folder, one folder down, and a name of ours. */
static void paths_stay(const char *path)
{
    static const char end[] = ".safetensors";
    const char *slash = strchr(path, '/');
    const size_t bytes = strlen(path);
    MUST(slash != NULL && slash != path && strchr(slash + 1, '/') == NULL);
    MUST(strstr(path, "..") == NULL && bytes > sizeof end);
    MUST(strcmp(path + bytes - (sizeof end - 1), end) == 0);
}

static void decode(const char *text, size_t text_bytes)
{
    struct manifest m;
    struct sentence why = { 0 };
    if (manifest_decode(text, text_bytes, &m, &why) != CAIRN_OK) {
        MUST(why.text[0] != '\0');
        return;
    }
    for (size_t i = 0; i < m.file_count; i++) paths_stay(m.files[i].path);
    comes_back(&m);
    manifest_release(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    decode((const char *)data, size);
    if (size < CAIRN_MANIFEST_SEAL_BYTES) return 0;
    char *sealed = malloc(size + 1);
    MUST(sealed != NULL);
    memcpy(sealed, data, size);
    const size_t before = size - CAIRN_MANIFEST_SEAL_BYTES;
    manifest_seal(sealed, before, sealed + before);
    decode(sealed, size);
    free(sealed);
    return 0;
}
