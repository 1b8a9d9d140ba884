/* cairn-coordinator: members, epochs, rounds and snapshots of a cluster. */
#include "server/base/daemon.h"
#include "server/base/log.h"
#include "server/coordinator/cluster.h"

static struct cairn_cluster_options options;
static struct cairn_cluster *cluster;

static void on_stop(struct cairn_daemon *daemon, void *context)
{
    (void)context;
    if (cluster != NULL) cairn_cluster_close(cluster, NULL, NULL);
    cluster = NULL;
    cairn_daemon_stop(daemon, 0);
}

static cairn_status start(struct cairn_daemon *daemon, struct cairn_sentence *why)
{
    cairn_status status = cairn_cluster_open(&options, &daemon->loop, &cluster, why);
    if (status != CAIRN_OK) return status;
    return cairn_daemon_ready(daemon, cairn_cluster_address(cluster), why);
}

static cairn_status judge(const void *values, struct cairn_sentence *why)
{
    const cairn_status status = cairn_log_judge(&options.log, why);
    return status == CAIRN_OK ? cairn_cluster_options_judge(values, why) : status;
}

int main(int argc, char **argv)
{
    struct cairn_daemon_spec spec = {
        .name = "cairn-coordinator",
        .purpose =
            "Keeps the members, epochs, rounds, layouts and snapshots of a cluster of cairn-shard.",
        .build = CAIRN_BUILD,
        .values = &options,
        .judge = judge,
        .on_stop = on_stop
    };
    struct cairn_daemon daemon;
    struct cairn_sentence why;
    int exit_code;
    spec.options = cairn_cluster_option_table(&spec.option_count);
    if (!cairn_daemon_begin(&daemon, &spec, argc, argv, &exit_code)) return exit_code;
    options.build = CAIRN_BUILD;
    cairn_daemon_log(&daemon, spec.name, &options.log);
    const cairn_status status = start(&daemon, &why);
    if (status != CAIRN_OK) {
        cairn_daemon_fail(&daemon, status, &why);
        if (cluster != NULL) cairn_cluster_close(cluster, NULL, NULL);
    }
    return cairn_daemon_run(&daemon);
}
