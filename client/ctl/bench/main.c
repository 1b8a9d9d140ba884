/* cairn-bench: the program that `cairn bench` runs. */
#include "client/ctl/bench/bench.h"

int main(int argc, char **argv)
{
    static const struct ctl_row *const tables[] = { ctl_bench_rows, NULL };
    return ctl_main(argc, argv,
                    &(const struct ctl_program) { CAIRN_BUILD, tables, "bench", bench_run });
}
