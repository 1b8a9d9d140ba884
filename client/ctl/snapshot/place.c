#include "client/ctl/snapshot/place.h"

#include <string.h>

int cairn_ctl_place_ask(struct ctl *ctl, const char *job, const char *id,
                        char folder_out[static PATH_MAX])
{
    Cairn__SnapshotShow show = CAIRN__SNAPSHOT_SHOW__INIT;
    ProtobufCMessage *reply;
    char latest[CAIRN_SNAPSHOT_ID_BYTES];
    if (strcmp(id, "latest") == 0) {
        const int done = cairn_ctl_snapshot_latest(ctl, job, latest);
        if (done >= 0) return done;
        id = latest;
    }
    show.job = (char *)(uintptr_t)job;
    show.id = (char *)(uintptr_t)id;
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_SNAPSHOT_SHOW, &show.base,
                                               CAIRN_MSG_SNAPSHOT_STATUS, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const char *path = ((const Cairn__SnapshotStatus *)reply)->path;
    const int length = snprintf(folder_out, PATH_MAX, "%s", path);
    cairn_message_free(reply);
    if (length > 0 && length < PATH_MAX) return -1;
    return cairn_ctl_fail(CAIRN_ERR_NOT_FOUND, "the coordinator does not say where %s of job %s is",
                          id, job);
}

int cairn_ctl_place_find(struct ctl *ctl, char folder_out[static PATH_MAX])
{
    if (ctl->path != NULL && ctl->path_before == NULL && ctl->argc == 0)
        return cairn_ctl_absolute("--path", ctl->path, folder_out);
    if (ctl->path == NULL && ctl->argc == 2)
        return cairn_ctl_place_ask(ctl, ctl->argv[0], ctl->argv[1], folder_out);
    return cairn_ctl_usage_fail(ctl, "cairn %s needs JOB ID, or --path FOLDER", ctl->words);
}

int cairn_ctl_place_fail(const char *folder, cairn_status status, const struct cairn_sentence *why)
{
    if (status == CAIRN_ERR_NOT_FOUND)
        return cairn_ctl_fail(status,
                              "%s; this command reads the folder itself: is it to be seen from "
                              "this host, or under another path (--path FOLDER)?",
                              why->text);
    return cairn_ctl_fail(status, "%s: %s", folder,
                          why->text[0] != '\0' ? why->text : cairn_status_text((int)status));
}

int cairn_ctl_place_open(const char *folder, struct cairn_snapshot *snapshot_out)
{
    struct cairn_sentence why = { "" };
    const cairn_status status = cairn_snapshot_open(folder, snapshot_out, &why);
    return status == CAIRN_OK ? -1 : cairn_ctl_place_fail(folder, status, &why);
}
