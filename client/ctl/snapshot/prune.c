/* cairn snapshot prune | tag */
#include "client/ctl/ctl.h"

static json_t *fate_json(const Cairn__SnapshotFate *fate)
{
    return json_pack("{s:s, s:I, s:I, s:I, s:b, s:s}", "id", fate->id, "step",
                     (json_int_t)fate->step, "bytes", (json_int_t)fate->bytes, "created_unix_ms",
                     (json_int_t)fate->created_unix_ms, "goes", (int)fate->goes, "reason",
                     fate->reason);
}

static void print_json(const struct ctl *ctl, const Cairn__SnapshotPruned *pruned)
{
    json_t *fates = json_array();
    for (size_t i = 0; i < pruned->n_fates; i++)
        json_array_append_new(fates, fate_json(pruned->fates[i]));
    cairn_ctl_print_json(json_pack("{s:s, s:b, s:o}", "job", ctl->argv[0], "dry_run",
                                   (int)ctl->rules.dry_run, "snapshots", fates));
}

static void print_table(const struct ctl *ctl, const Cairn__SnapshotPruned *pruned)
{
    static const char *const headers[] = { "ID", "STEP", "SIZE", "FATE", "REASON" };
    struct ctl_table *table = cairn_ctl_table_open(headers, 5);
    for (size_t i = 0; i < pruned->n_fates; i++) {
        const Cairn__SnapshotFate *fate = pruned->fates[i];
        cairn_ctl_table_cell(table, "%s", fate->id);
        cairn_ctl_table_cell(table, "%llu", (unsigned long long)fate->step);
        cairn_ctl_table_cell(table, "%s", cairn_ctl_bytes(fate->bytes));
        cairn_ctl_table_cell(table, "%s",
                             !fate->goes          ? "stays"
                             : ctl->rules.dry_run ? "would go"
                                                  : "goes");
        cairn_ctl_table_cell(table, "%s", fate->reason);
    }
    cairn_ctl_table_close(table, ctl);
}

int cairn_ctl_snapshot_prune(struct ctl *ctl)
{
    const struct ctl_rules *rules = &ctl->rules;
    Cairn__SnapshotPrune prune = CAIRN__SNAPSHOT_PRUNE__INIT;
    ProtobufCMessage *reply;
    prune.job = ctl->argv[0];
    prune.plan = rules->dry_run;
    prune.has_rules = rules->has_keep_last || rules->has_keep_every || rules->has_keep_within ||
                      rules->has_max_bytes;
    prune.keep_last = rules->keep_last;
    prune.keep_every = rules->keep_every;
    prune.keep_within_s = rules->keep_within_s;
    prune.max_bytes = rules->max_bytes;
    if (ctl->timeout_ms == 0) ctl->timeout_ms = CTL_SNAPSHOT_TIMEOUT_MS;
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_SNAPSHOT_PRUNE, &prune.base,
                                               CAIRN_MSG_SNAPSHOT_PRUNED, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__SnapshotPruned *pruned = (const Cairn__SnapshotPruned *)reply;
    if (ctl->json) {
        print_json(ctl, pruned);
    } else if (ctl->quiet) {
        for (size_t i = 0; i < pruned->n_fates; i++)
            if (pruned->fates[i]->goes) printf("%s\n", pruned->fates[i]->id);
    } else {
        print_table(ctl, pruned);
    }
    cairn_message_free(reply);
    return 0;
}

int cairn_ctl_snapshot_tag(struct ctl *ctl)
{
    Cairn__SnapshotTag tag = CAIRN__SNAPSHOT_TAG__INIT;
    ProtobufCMessage *reply;
    tag.job = ctl->argv[0];
    tag.id = ctl->argv[1];
    tag.name = ctl->argv[2];
    tag.remove = ctl->deletes;
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_SNAPSHOT_TAG, &tag.base,
                                               CAIRN_MSG_SNAPSHOT_TAGGED, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__SnapshotTagged *tagged = (const Cairn__SnapshotTagged *)reply;
    if (ctl->json)
        cairn_ctl_print_json(json_pack("{s:s, s:s, s:s, s:b}", "job", tagged->job, "id", tagged->id,
                                       "tag", tagged->name, "deleted", (int)ctl->deletes));
    else if (!ctl->quiet)
        cairn_ctl_line(ctl->deletes ? "tag off" : "tagged", "%s of job %s: %s", tagged->id,
                       tagged->job, tagged->name);
    cairn_message_free(reply);
    return 0;
}
