/* cairn snapshot copy: a snapshot into another storage. */
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/ctl/progress.h"
#include "client/ctl/snapshot/place.h"
#include "proto/snapshot_io/copy.h"
#include "proto/store/storage.h"

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

/* Whose the copy is: a coordinator of another user can neither list, restore nor remove it. */
struct owner {
    char text[200]; /* "cairn:cairn" */
    uid_t user;
    gid_t group;
};

static struct owner owner_of(const char *folder)
{
    struct owner owner = { .text = "" };
    struct stat info;
    if (stat(folder, &info) != 0) return owner;
    const struct passwd *user = getpwuid(info.st_uid);
    char name[64];
    snprintf(name, sizeof name, "%u", (unsigned)info.st_uid);
    snprintf(owner.text, sizeof owner.text, "%.64s", user != NULL ? user->pw_name : name);
    const struct group *group = getgrgid(info.st_gid);
    snprintf(name, sizeof name, "%u", (unsigned)info.st_gid);
    const size_t used = strlen(owner.text);
    snprintf(owner.text + used, sizeof owner.text - used, ":%.64s",
             group != NULL ? group->gr_name : name);
    owner.user = info.st_uid;
    owner.group = info.st_gid;
    return owner;
}

static void warn_of_owner(const struct owner *copy, const char *root, const char *folder)
{
    const struct owner there = owner_of(root);
    if (copy->text[0] == '\0' || there.text[0] == '\0' || copy->user == there.user) return;
    fprintf(stderr,
            "cairn: the copy is %s's, and %s is %s's, who can neither restore nor remove it: chown "
            "-R %s %s\n",
            copy->text, root, there.text, there.text, folder);
}

static int print(const struct ctl *ctl, const struct cairn_snapshot *snapshot, uint64_t bytes,
                 const char *root, const char *folder)
{
    const struct cairn_manifest *m = &snapshot->manifest;
    const struct owner owner = owner_of(folder);
    warn_of_owner(&owner, root, folder);
    if (ctl->json)
        return cairn_ctl_print_json(json_pack("{s:s, s:s, s:I, s:i, s:b, s:s}", "job", m->spec.name,
                                              "path", folder, "bytes", (json_int_t)bytes, "files",
                                              (int)m->file_count, "signed", m->signature != NULL,
                                              "owner", owner.text));
    if (ctl->quiet) {
        printf("%s\n", folder);
        return 0;
    }
    cairn_ctl_line("copied", "%s", folder);
    cairn_ctl_line("size", "%s in %zu files", cairn_ctl_bytes(bytes), m->file_count);
    cairn_ctl_line("owner", "%s, folders %04o, files %04o", owner.text, CAIRN_SNAPSHOT_FOLDER_MODE,
                   CAIRN_SNAPSHOT_FILE_MODE);
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
    const int done = status == CAIRN_OK ? print(ctl, snapshot, bytes, root, folder)
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
