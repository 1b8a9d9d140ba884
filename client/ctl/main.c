/* cairn: the command line of a cluster. */
#include "client/ctl/ctl.h"

int main(int argc, char **argv)
{
    static const struct ctl_row *const tables[] = {
        ctl_local_rows, ctl_cluster_rows,  ctl_restore_rows, ctl_reshard_rows, ctl_job_rows,
        ctl_plan_rows,  ctl_snapshot_rows, ctl_diff_rows,    ctl_export_rows,  ctl_bench_rows,
        NULL,
    };
    return ctl_main(argc, argv, &(const struct ctl_program) { CAIRN_BUILD, tables, NULL, NULL });
}
