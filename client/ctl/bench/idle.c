#include "client/ctl/bench/idle.h"

#include <time.h>

#include "client/ctl/bench/bench.h"

#define SETTLE_S 0.2 /* what is under way when the last round is over */

double cairn_bench_used_s(pid_t pid)
{
    clockid_t clock;
    struct timespec t;
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) != 0) return -1;
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* False, and said: a daemon ended, or a signal came. */
static bool let_go_by(struct local *local, double seconds)
{
    const double end_s = cairn_bench_now() + seconds;
    for (double left_s = seconds; left_s > 0; left_s = end_s - cairn_bench_now()) {
        const int number = cairn_local_signal(local, (int)(left_s * 1000) + 1, NULL);
        if (number != 0 && number != SIGCHLD) return false; // it is heard, so it needs no words
        if (cairn_local_daemons_reap(local) > 0) return false;
    }
    return true;
}

bool cairn_bench_idle(struct local *local, double seconds, double *percent_out)
{
    double before_s[1 + CTL_SHARDS_MAX], most_s = 0;
    if (!let_go_by(local, SETTLE_S)) return false;
    const double begin_s = cairn_bench_now();
    for (int i = 0; i < local->daemon_count; i++)
        before_s[i] = cairn_bench_used_s(local->daemons[i].pid);
    if (!let_go_by(local, seconds)) return false;
    for (int i = 0; i < local->daemon_count; i++) {
        const double s = cairn_bench_used_s(local->daemons[i].pid);
        if (before_s[i] < 0 || s < 0) {
            (void)cairn_ctl_fail(CAIRN_ERR_IO, "there is no processor time of %s to read",
                                 local->daemons[i].name);
            return false;
        }
        if (s - before_s[i] > most_s) most_s = s - before_s[i];
    }
    *percent_out = most_s / (cairn_bench_now() - begin_s) * 100;
    return true;
}
