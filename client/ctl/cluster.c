/* cairn cluster status */
#include "client/ctl/ctl.h"

static int print_json(const Cairn__ClusterStatus *status)
{
    json_t *members = json_array();
    for (size_t i = 0; i < status->n_members; i++) {
        const Cairn__MemberStatus *m = status->members[i];
        json_array_append_new(members, json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I}", "name",
                                                 m->name, "role", cairn_role_name(m->role), "state",
                                                 m->state, "address", m->address, "path", m->path,
                                                 "since_ms", (json_int_t)m->since_ms, "state_bytes",
                                                 (json_int_t)m->state_bytes));
    }
    return cairn_ctl_print_json(json_pack(
        "{s:s, s:s, s:I, s:I, s:i, s:i, s:o}", "cluster", status->cluster, "version",
        status->version, "coordinator_incarnation", (json_int_t)status->coordinator_incarnation,
        "uptime_ms", (json_int_t)status->uptime_ms, "shards_expected", (int)status->shards_expected,
        "jobs", (int)status->job_count, "members", members));
}

int cairn_ctl_cluster_status(struct ctl *ctl)
{
    static const char *const headers[] = { "NAME", "ROLE",   "STATE",  "FOR",
                                           "PATH", "MEMORY", "ADDRESS" };
    const Cairn__ClusterStatusGet get = CAIRN__CLUSTER_STATUS_GET__INIT;
    ProtobufCMessage *reply;
    cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_CLUSTER_STATUS_GET, &get.base,
                                         CAIRN_MSG_CLUSTER_STATUS, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__ClusterStatus *status = (const Cairn__ClusterStatus *)reply;
    if (ctl->json) {
        print_json(status);
    } else {
        if (!ctl->quiet)
            printf("cluster %s: coordinator %s, start %llu, up %llu s; %u shard%s expected, %u "
                   "job%s\n\n",
                   status->cluster, status->version,
                   (unsigned long long)status->coordinator_incarnation,
                   (unsigned long long)status->uptime_ms / 1000, status->shards_expected,
                   status->shards_expected == 1 ? "" : "s", status->job_count,
                   status->job_count == 1 ? "" : "s");
        struct ctl_table *table = cairn_ctl_table_open(headers, 7);
        for (size_t i = 0; i < status->n_members; i++) {
            const Cairn__MemberStatus *m = status->members[i];
            cairn_ctl_table_cell(table, "%s", m->name);
            cairn_ctl_table_cell(table, "%s", cairn_role_name(m->role));
            cairn_ctl_table_cell(table, "%s", m->state);
            cairn_ctl_table_cell(table, "%llu s", (unsigned long long)m->since_ms / 1000);
            cairn_ctl_table_cell(table, "%s", m->path);
            cairn_ctl_table_cell(table, "%s", cairn_ctl_bytes(m->state_bytes));
            cairn_ctl_table_cell(table, "%s", m->address);
        }
        cairn_ctl_table_close(table, ctl);
    }
    cairn_message_free(reply);
    return 0;
}
