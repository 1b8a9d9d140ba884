#include "proto/snapshot_io/word.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "proto/store/names.h"

enum { LINE_BYTES = 96, PATH_BYTES = CAIRN_NAME_MAX + 2 * CAIRN_SNAPSHOT_ID_BYTES + 32 };

bool cairn_snapshot_tag_ok(const char *name)
{
    uint64_t generation, step;
    const size_t length = strnlen(name, CAIRN_SNAPSHOT_TAG_BYTES);
    return length < CAIRN_SNAPSHOT_TAG_BYTES && cairn_job_name_ok(name) &&
           strcmp(name, "latest") != 0 && !cairn_snapshot_id_parse(name, &generation, &step) &&
           (length < 4 || strcmp(name + length - 4, ".tmp") != 0);
}

/* ---- one word ---- */

/* The line, without its end. CAIRN_ERR_CORRUPT: it is not one line of text. */
static cairn_status read_line(const char *root, const char *path, char line[LINE_BYTES],
                              struct cairn_sentence *why)
{
    const struct cairn_storage *storage = cairn_storage_of(root);
    struct cairn_storage_file *file = NULL;
    size_t got = 0;
    cairn_status status = storage->open(root, path, false, &file, why);
    if (status != CAIRN_OK) return status;
    if (file->bytes >= LINE_BYTES)
        status = cairn_fail(why, CAIRN_ERR_CORRUPT, "%s is too long for a word", path);
    else
        status = storage->read(file, 0, line, (size_t)file->bytes, &got, why);
    storage->close(file);
    if (status != CAIRN_OK) return status;
    line[got] = '\0';
    if (got == 0 || line[got - 1] != '\n' || strlen(line) != got)
        return cairn_fail(why, CAIRN_ERR_CORRUPT, "%s is not a line of text", path);
    line[got - 1] = '\0';
    return CAIRN_OK;
}

/* In a folder of the job, which may not be there yet; folder "": the job's own. */
static cairn_status write_line(const char *root, const char *job, const char *folder,
                               const char *name, const char *line, struct cairn_sentence *why)
{
    char path[PATH_BYTES];
    cairn_status status = CAIRN_OK;
    snprintf(path, sizeof path, "%s/%s", job, folder);
    if (folder[0] != '\0') status = cairn_storage_of(root)->make(root, path, false, why);
    snprintf(path, sizeof path, "%s/%s%s%s", job, folder, folder[0] != '\0' ? "/" : "", name);
    if (status != CAIRN_OK) return status;
    return cairn_storage_of(root)->commit(root, path, line, strlen(line), true, why);
}

static cairn_status remove_line(const char *root, const char *job, const char *folder,
                                const char *name, struct cairn_sentence *why)
{
    char path[PATH_BYTES];
    uint64_t bytes;
    snprintf(path, sizeof path, "%s/%s/%s", job, folder, name);
    return cairn_storage_of(root)->remove(root, path, false, &bytes, why);
}

static bool is_id(const char *text)
{
    uint64_t generation, step;
    return strlen(text) < CAIRN_SNAPSHOT_ID_BYTES &&
           cairn_snapshot_id_parse(text, &generation, &step);
}

cairn_status cairn_snapshot_latest_set(const char *root, const char *job, const char *id,
                                       struct cairn_sentence *why)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "%s\n", id);
    return write_line(root, job, "", "latest", line, why);
}

cairn_status cairn_snapshot_tag_set(const char *root, const char *job, const char *name,
                                    const char *id, struct cairn_sentence *why)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "%s\n", id);
    return write_line(root, job, "tags", name, line, why);
}

cairn_status cairn_snapshot_check_set(const char *root, const char *job,
                                      const struct cairn_snapshot_check *check,
                                      struct cairn_sentence *why)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "%s %" PRIu64 "\n", check->is_good ? "good" : "damaged",
             check->unix_s);
    return write_line(root, job, "checks", check->id, line, why);
}

cairn_status cairn_snapshot_begun_set(const char *root, const char *job, const char *id,
                                      uint64_t number, struct cairn_sentence *why)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "%016" PRIx64 "\n", number);
    return write_line(root, job, "begun", id, line, why);
}

cairn_status cairn_snapshot_latest_remove(const char *root, const char *job,
                                          struct cairn_sentence *why)
{
    char path[PATH_BYTES];
    uint64_t bytes;
    snprintf(path, sizeof path, "%s/latest", job);
    const cairn_status status = cairn_storage_of(root)->remove(root, path, false, &bytes, why);
    return status == CAIRN_OK ? cairn_storage_of(root)->settle(root, job, why) : status;
}

cairn_status cairn_snapshot_tag_remove(const char *root, const char *job, const char *name,
                                       struct cairn_sentence *why)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/tags", job);
    const cairn_status status = remove_line(root, job, "tags", name, why);
    return status == CAIRN_OK ? cairn_storage_of(root)->settle(root, path, why) : status;
}

void cairn_snapshot_check_forget(const char *root, const char *job, const char *id)
{
    struct cairn_sentence why;
    (void)remove_line(root, job, "checks", id, &why);
}

void cairn_snapshot_begun_forget(const char *root, const char *job, const char *id)
{
    struct cairn_sentence why;
    (void)remove_line(root, job, "begun", id, &why);
}

/* ---- all of a job ---- */

static bool parse_check(const char *line, struct cairn_snapshot_check *out)
{
    char *end;
    out->is_good = strncmp(line, "good ", 5) == 0;
    if (!out->is_good && strncmp(line, "damaged ", 8) != 0) return false;
    const char *digits = line + (out->is_good ? 5 : 8);
    if (*digits < '0' || *digits > '9' || strlen(digits) > 18) return false;
    out->unix_s = strtoull(digits, &end, 10);
    return *end == '\0';
}

/* How the files of a folder are read; `at` has room for the results, *count_out says how many were
 * taken. */
struct kind {
    const char *folder;
    size_t bytes; /* of one */
    /* Takes one file. CAIRN_ERR_NOT_FOUND: the file is left out. */
    cairn_status (*take)(void *at, const char *name, const char *line, cairn_status read);
};

static cairn_status take_tag(void *at, const char *name, const char *line, cairn_status read)
{
    struct cairn_snapshot_tag *tag = at;
    if (!cairn_snapshot_tag_ok(name)) return CAIRN_ERR_NOT_FOUND;
    if (read != CAIRN_OK || !is_id(line)) return read == CAIRN_OK ? CAIRN_ERR_CORRUPT : read;
    snprintf(tag->name, sizeof tag->name, "%s", name);
    snprintf(tag->id, sizeof tag->id, "%s", line);
    return CAIRN_OK;
}

static cairn_status take_check(void *at, const char *name, const char *line, cairn_status read)
{
    struct cairn_snapshot_check *check = at;
    if (!is_id(name) || read != CAIRN_OK || !parse_check(line, check)) return CAIRN_ERR_NOT_FOUND;
    snprintf(check->id, sizeof check->id, "%s", name);
    return CAIRN_OK;
}

static cairn_status take_begun(void *at, const char *name, const char *line, cairn_status read)
{
    struct cairn_snapshot_begun *begun = at;
    if (!is_id(name) || read != CAIRN_OK || strlen(line) != 16 ||
        strspn(line, "0123456789abcdef") != 16)
        return CAIRN_ERR_NOT_FOUND;
    begun->job = strtoull(line, NULL, 16);
    snprintf(begun->id, sizeof begun->id, "%s", name);
    return CAIRN_OK;
}

/* A folder that is not there has none. */
static cairn_status load_kind(const char *root, const char *job, const struct kind *kind,
                              void **list_out, size_t *count_out, struct cairn_sentence *why)
{
    char path[PATH_BYTES], line[LINE_BYTES];
    struct cairn_names names;
    snprintf(path, sizeof path, "%s/%s", job, kind->folder);
    cairn_status status = cairn_names_list(root, path, &names, why);
    if (status == CAIRN_OK && names.count > CAIRN_SNAPSHOT_WORDS_MAX)
        status = cairn_fail(why, CAIRN_ERR_INVALID, "%s has more than %d words", path,
                            CAIRN_SNAPSHOT_WORDS_MAX);
    char *list = status == CAIRN_OK ? calloc(names.count + 1, kind->bytes) : NULL;
    if (status == CAIRN_OK && list == NULL)
        status = cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    *list_out = list;
    for (size_t i = 0; status == CAIRN_OK && i < names.count; i++) {
        struct cairn_sentence said = { "it is no id of a snapshot" };
        if (strlen(names.list[i]) >= CAIRN_SNAPSHOT_TAG_BYTES) continue;
        snprintf(path, sizeof path, "%s/%s/%s", job, kind->folder, names.list[i]);
        const cairn_status read = read_line(root, path, line, &said);
        const cairn_status taken = kind->take(list + *count_out * kind->bytes, names.list[i], line,
                                              read);
        *count_out += taken == CAIRN_OK;
        if (taken != CAIRN_OK && taken != CAIRN_ERR_NOT_FOUND)
            status = cairn_fail(why, taken, "%s cannot be read: %s", path, said.text);
    }
    cairn_names_release(&names);
    return status == CAIRN_ERR_NOT_FOUND ? CAIRN_OK : status;
}

cairn_status cairn_snapshot_words_load(const char *root, const char *job,
                                       struct cairn_snapshot_words *out, struct cairn_sentence *why)
{
    static const struct kind tags = { "tags", sizeof *out->tags, take_tag },
                             checks = { "checks", sizeof *out->checks, take_check },
                             begun = { "begun", sizeof *out->begun, take_begun };
    char path[PATH_BYTES], line[LINE_BYTES];
    struct cairn_sentence said;
    void *list = NULL;
    *out = (struct cairn_snapshot_words) { .latest = "" };
    snprintf(path, sizeof path, "%s/latest", job);
    if (read_line(root, path, line, &said) == CAIRN_OK && is_id(line))
        memcpy(out->latest, line, strlen(line) + 1); // an id is shorter than that
    cairn_status status = load_kind(root, job, &tags, &list, &out->tag_count, why);
    out->tags = list;
    list = NULL;
    if (status == CAIRN_OK) status = load_kind(root, job, &checks, &list, &out->check_count, why);
    out->checks = list;
    list = NULL;
    if (status == CAIRN_OK) status = load_kind(root, job, &begun, &list, &out->begun_count, why);
    out->begun = list;
    return status;
}

void cairn_snapshot_words_release(struct cairn_snapshot_words *words)
{
    free(words->tags);
    free(words->checks);
    free(words->begun);
    *words = (struct cairn_snapshot_words) { .latest = "" };
}

const struct cairn_snapshot_check *
cairn_snapshot_words_check(const struct cairn_snapshot_words *words, const char *id)
{
    for (size_t i = 0; i < words->check_count; i++)
        if (strcmp(words->checks[i].id, id) == 0) return &words->checks[i];
    return NULL;
}
