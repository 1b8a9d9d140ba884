/* cairn snapshot copy: a snapshot into another storage. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/progress.h"
#include "client/ctl/snapshot/place.h"
#include "proto/snapshot_io/copy.h"

static volatile sig_atomic_t interrupted;

static void on_signal(int signal)
{
    (void)signal;
    interrupted = 1;
}

static bool on_progress(void *context, uint64_t done)
{
    cairn_ctl_progress_at(context, done);
    return !interrupted;
}

static int print(const struct ctl *ctl, const struct cairn_snapshot *snapshot, uint64_t bytes,
                 const char *folder)
{
    const struct cairn_manifest *m = &snapshot->manifest;
    if (ctl->json)
        return cairn_ctl_print_json(json_pack("{s:s, s:s, s:I, s:i, s:b}", "job", m->spec.name,
                                              "path", folder, "bytes", (json_int_t)bytes, "files",
                                              (int)m->file_count, "signed", m->signature != NULL));
    if (ctl->quiet) {
        printf("%s\n", folder);
        return 0;
    }
    cairn_ctl_line("copied", "%s", folder);
    cairn_ctl_line("size", "%s in %zu files", cairn_ctl_bytes(bytes), m->file_count);
    cairn_ctl_line("signature", "%s", m->signature != NULL ? "along" : "none");
    return 0;
}

/* Takes the snapshot. */
static int copy_to(struct ctl *ctl, struct cairn_snapshot *snapshot, const char *root)
{
    const struct sigaction action = { .sa_handler = on_signal };
    struct ctl_progress progress;
    const struct cairn_snapshot_copy copy = { .progress = on_progress, .context = &progress };
    struct cairn_sentence why = { "" };
    char *folder = NULL;
    uint64_t bytes = 0;
    for (size_t i = 0; i < snapshot->manifest.file_count; i++)
        bytes += snapshot->manifest.files[i].bytes;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    cairn_ctl_progress_begin(&progress, ctl, "copied", bytes);
    const cairn_status status = cairn_snapshot_copy(snapshot, root, &copy, &folder, &why);
    cairn_ctl_progress_end(&progress);
    const int done = status == CAIRN_OK ? print(ctl, snapshot, bytes, folder)
                                        : cairn_ctl_fail(status, "%s", why.text);
    cairn_snapshot_close(snapshot);
    free(folder);
    return done;
}

int cairn_ctl_snapshot_copy(struct ctl *ctl)
{
    struct cairn_snapshot snapshot;
    char from[PATH_MAX], root[PATH_MAX];
    if (ctl->to == NULL) return cairn_ctl_usage_fail(ctl, "cairn %s needs --to ROOT", ctl->words);
    int done = cairn_ctl_absolute("--to", ctl->to, root);
    if (done < 0) done = cairn_ctl_place_find(ctl, from);
    if (done < 0) done = cairn_ctl_place_open(from, &snapshot);
    return done >= 0 ? done : copy_to(ctl, &snapshot, root);
}
