/* cairn job drop, cairn job park and unpark, cairn snapshot rm */
#include "client/ctl/ctl.h"

#define REMOVE_TIMEOUT_MS 600000

int cairn_ctl_job_drop(struct ctl *ctl)
{
    Cairn__JobRemove remove = CAIRN__JOB_REMOVE__INIT;
    ProtobufCMessage *reply;
    const int refused = cairn_ctl_confirm(ctl, "The state of the job on its shards", ctl->argv[0]);
    if (refused >= 0) return refused;
    remove.name = ctl->argv[0];
    remove.force = ctl->force;
    if (ctl->timeout_ms == 0) ctl->timeout_ms = REMOVE_TIMEOUT_MS;
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_JOB_REMOVE, &remove.base,
                                               CAIRN_MSG_JOB_REMOVED, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__JobRemoved *removed = (const Cairn__JobRemoved *)reply;
    json_t *away = json_array();
    for (size_t i = 0; i < removed->n_away; i++)
        json_array_append_new(away, json_string(removed->away[i]));
    if (ctl->json) {
        const bool known = !removed->version_unknown;
        cairn_ctl_print_json(json_pack("{s:s, s:o, s:o, s:i, s:O, s:s}", "job", removed->name,
                                       "generation",
                                       cairn_ctl_json_known(known, removed->generation), "step",
                                       cairn_ctl_json_known(known, removed->step), "shards",
                                       (int)removed->shards, "away", away, "note", removed->note));
    } else if (!ctl->quiet) {
        cairn_ctl_line("dropped", "%s", removed->name);
        cairn_ctl_version_line("was at", removed->generation, removed->step,
                               removed->version_unknown);
        cairn_ctl_line("shards", "%u have given its memory back", removed->shards);
        for (size_t i = 0; i < removed->n_away; i++)
            cairn_ctl_line("away", "%s, which drops its part when it is back", removed->away[i]);
        if (removed->note[0] != '\0') cairn_ctl_line("note", "%s", removed->note);
    }
    json_decref(away);
    cairn_message_free(reply);
    return 0;
}

static int move(struct ctl *ctl, bool parked)
{
    Cairn__JobPark park = CAIRN__JOB_PARK__INIT;
    ProtobufCMessage *reply;
    park.name = ctl->argv[0];
    park.parked = parked;
    if (ctl->timeout_ms == 0) ctl->timeout_ms = REMOVE_TIMEOUT_MS;
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_JOB_PARK, &park.base,
                                               CAIRN_MSG_JOB_PARKED, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__JobParked *told = (const Cairn__JobParked *)reply;
    if (ctl->json) {
        cairn_ctl_print_json(json_pack("{s:s, s:b, s:i, s:s}", "job", told->name, "parked",
                                       told->parked, "shards", (int)told->shards, "note",
                                       told->note));
    } else if (!ctl->quiet) {
        cairn_ctl_line(told->parked ? "parked" : "unparked", "%s", told->name);
        cairn_ctl_line("shards", "%u", told->shards);
        if (told->note[0] != '\0') cairn_ctl_line("note", "%s", told->note);
    }
    cairn_message_free(reply);
    return 0;
}

int cairn_ctl_job_park(struct ctl *ctl)
{
    return move(ctl, true);
}

int cairn_ctl_job_unpark(struct ctl *ctl)
{
    return move(ctl, false);
}

int cairn_ctl_snapshot_rm(struct ctl *ctl)
{
    Cairn__SnapshotRemove remove = CAIRN__SNAPSHOT_REMOVE__INIT;
    ProtobufCMessage *reply;
    const int refused = cairn_ctl_confirm(ctl, "The snapshot's files", ctl->argv[1]);
    if (refused >= 0) return refused;
    remove.job = ctl->argv[0];
    remove.id = ctl->argv[1];
    remove.force = ctl->force;
    if (ctl->timeout_ms == 0) ctl->timeout_ms = REMOVE_TIMEOUT_MS;
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_SNAPSHOT_REMOVE, &remove.base,
                                               CAIRN_MSG_SNAPSHOT_REMOVED, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__SnapshotRemoved *removed = (const Cairn__SnapshotRemoved *)reply;
    if (ctl->json) {
        cairn_ctl_print_json(json_pack("{s:s, s:s, s:i, s:I}", "id", removed->id, "job",
                                       removed->job, "files", (int)removed->files, "bytes",
                                       (json_int_t)removed->bytes));
    } else if (!ctl->quiet) {
        cairn_ctl_line("removed", "%s of job %s", removed->id, removed->job);
        cairn_ctl_line("size", "%s in %u files", cairn_ctl_bytes(removed->bytes), removed->files);
    }
    cairn_message_free(reply);
    return 0;
}
