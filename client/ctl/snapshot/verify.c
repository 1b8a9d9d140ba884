/* cairn snapshot verify: every block of a snapshot against its checksum, and its signature. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/progress.h"
#include "client/ctl/snapshot/place.h"
#include "proto/snapshot/manifest_trust.h"
#include "proto/snapshot_io/word.h"

struct verification {
    const struct ctl *ctl;
    struct ctl_progress progress;
    json_t *damages;
    size_t damage_count;
    struct cairn_sentence signature;
    bool is_signature_bad;
};

static bool on_progress(void *context, uint64_t done, uint64_t total, const char *file)
{
    struct verification *v = context;
    (void)total;
    (void)file;
    cairn_ctl_progress_at(&v->progress, done);
    return true;
}

static void on_damage(void *context, const char *what)
{
    struct verification *v = context;
    v->damage_count++;
    cairn_ctl_progress_end(&v->progress);
    json_array_append_new(v->damages, json_string(what));
    fprintf(stderr, "cairn: %s\n", what);
}

/* The keys to judge by: the one that is given, else those that the coordinator trusts, if it was asked.
 * -1: go on; else the exit status. */
static int find_ring(struct ctl *ctl, bool *found_out, struct cairn_key_ring *ring)
{
    *found_out = ctl->key != NULL || ctl->path == NULL;
    if (ctl->key != NULL) {
        ring->count = 1;
        return cairn_ctl_key_read(ctl->key, &ring->keys[0]);
    }
    return *found_out ? cairn_ctl_key_ring(ctl, ring) : -1;
}

static void judge_signature(struct verification *v, const struct cairn_manifest *manifest,
                            const struct cairn_key_ring *ring)
{
    const enum cairn_trust trust = cairn_manifest_trust(manifest, ring, &v->signature);
    v->is_signature_bad = trust == CAIRN_TRUST_BROKEN;
    if (trust == CAIRN_TRUST_UNSIGNED || trust == CAIRN_TRUST_STRANGE)
        fprintf(stderr, "cairn: the snapshot is %s\n", v->signature.text);
    if (v->is_signature_bad) on_damage(v, v->signature.text);
}

static int print(const struct verification *v, const char *folder, uint64_t bytes, bool is_good)
{
    const struct ctl *ctl = v->ctl;
    const char *state = is_good ? "good" : "damaged";
    const double read = ctl->quick ? 0.0 : ctl->subset > 0 ? ctl->subset : 1.0;
    if (ctl->json)
        return cairn_ctl_print_json(json_pack("{s:s, s:s, s:I, s:f, s:s, s:O}", "path", folder,
                                              "state", state, "bytes", (json_int_t)bytes, "read",
                                              read, "signature", v->signature.text, "damages",
                                              v->damages));
    if (ctl->quiet) return 0;
    cairn_ctl_line("snapshot", "%s", folder);
    cairn_ctl_line("state", "%s", state);
    cairn_ctl_line("size", "%s", cairn_ctl_bytes(bytes));
    if (ctl->quick)
        cairn_ctl_line("read", "manifest, sizes and headers");
    else
        cairn_ctl_line("read", "%g%% of the blocks", 100 * read);
    cairn_ctl_line("signature", "%s", v->signature.text);
    if (v->damage_count > 0) cairn_ctl_line("damaged", "in %zu places", v->damage_count);
    return 0;
}

/* The folder of its job, and the snapshots' root above it. False: it lies elsewhere than snapshots do, and
 * nobody looks for a word of it there. */
static bool split_place(const char *folder, const struct cairn_manifest *m, char root[PATH_MAX],
                        char id[CAIRN_SNAPSHOT_ID_BYTES])
{
    uint64_t generation, step;
    snprintf(root, PATH_MAX, "%s", folder);
    char *slash = strrchr(root, '/');
    if (slash == NULL || strlen(slash + 1) >= CAIRN_SNAPSHOT_ID_BYTES ||
        !cairn_snapshot_id_parse(slash + 1, &generation, &step))
        return false;
    snprintf(id, CAIRN_SNAPSHOT_ID_BYTES, "%s", slash + 1);
    *slash = '\0';
    slash = strrchr(root, '/');
    if (slash == NULL || strcmp(slash + 1, m->spec.name) != 0) return false;
    *slash = '\0';
    return true;
}

/* By root: the word stays the coordinator's, who replaces and removes it. */
static void give_to_owner(const char *root, const char *job, const char *id)
{
    char path[PATH_MAX + CAIRN_NAME_MAX + CAIRN_SNAPSHOT_ID_BYTES + 16];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", root, job);
    if (geteuid() != 0 || stat(path, &info) != 0) return;
    snprintf(path, sizeof path, "%s/%s/checks", root, job);
    int done = lchown(path, info.st_uid, info.st_gid);
    snprintf(path, sizeof path, "%s/%s/checks/%s", root, job, id);
    if (done == 0) done = lchown(path, info.st_uid, info.st_gid);
    if (done != 0) fprintf(stderr, "cairn: %s stays root's: %s\n", path, strerror(errno));
}

/* Beside the snapshot, where the coordinator's own reading leaves its word: list and restore go by it. */
static void note_damage(const char *folder, const struct cairn_manifest *m)
{
    struct cairn_snapshot_check check = { .is_good = false, .unix_s = (uint64_t)time(NULL) };
    struct cairn_sentence why = { "" };
    char root[PATH_MAX];
    if (!split_place(folder, m, root, check.id)) return;
    if (cairn_snapshot_check_set(root, m->spec.name, &check, &why) == CAIRN_OK)
        give_to_owner(root, m->spec.name, check.id);
    else
        fprintf(stderr,
                "cairn: that it is damaged is not noted beside it, so that `cairn snapshot list` "
                "does not say it: %s; verify it as the user that the snapshots are of\n",
                why.text);
}

static int verify(struct verification *v, const char *folder, struct cairn_snapshot *snapshot)
{
    struct cairn_sentence why = { "" };
    uint64_t bytes = 0;
    for (size_t i = 0; i < snapshot->manifest.file_count; i++)
        bytes += snapshot->manifest.files[i].bytes;
    const struct cairn_verify asked = { .quick = v->ctl->quick,
                                        .fraction = v->ctl->subset,
                                        .progress = on_progress,
                                        .damage = on_damage,
                                        .context = v };
    cairn_ctl_progress_begin(&v->progress, v->ctl, "verified", bytes);
    const cairn_status status = cairn_snapshot_verify(snapshot, &asked, &why);
    cairn_ctl_progress_end(&v->progress);
    const bool is_damage = status == CAIRN_ERR_CHECKSUM || status == CAIRN_ERR_CORRUPT;
    if (status != CAIRN_OK && !is_damage) return cairn_ctl_fail(status, "%s", why.text);
    if (v->damage_count > 0) note_damage(folder, &snapshot->manifest);
    print(v, folder, bytes, v->damage_count == 0);
    return v->damage_count == 0 ? 0 : cairn_status_exit((int)CAIRN_ERR_CHECKSUM);
}

int cairn_ctl_snapshot_verify(struct ctl *ctl)
{
    struct verification v = { .ctl = ctl };
    struct cairn_snapshot snapshot;
    struct cairn_key_ring ring = { .count = 0 };
    char folder[PATH_MAX];
    bool has_ring = false;
    if (ctl->quick && ctl->subset > 0)
        return cairn_ctl_usage_fail(ctl, "--quick reads no block: give it, or --read-data-subset");
    int done = cairn_ctl_place_find(ctl, folder);
    if (done < 0) done = find_ring(ctl, &has_ring, &ring);
    if (done < 0) done = cairn_ctl_place_open(folder, &snapshot);
    if (done >= 0) return done;
    v.damages = json_array();
    cairn_sentence_set(&v.signature, "not checked (--key FILE does)");
    if (has_ring) judge_signature(&v, &snapshot.manifest, &ring);
    done = verify(&v, folder, &snapshot);
    json_decref(v.damages);
    cairn_snapshot_close(&snapshot);
    return done;
}
