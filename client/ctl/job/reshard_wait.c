/* Waiting for a re-sharding: a bar on a terminal, elsewhere a line for each tenth of the way. */
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ctl.h"

enum { ASK_EVERY_MS = 200, BAR = 30, AWAY_MAX = 300 /* tries: a minute */ };

struct progress {
    bool is_terminal, is_drawn;
    unsigned tenths; /* that were told */
};

/* All jobs together. */
struct sum {
    uint64_t moved, all, elapsed_ms;
    uint32_t moving;
    const Cairn__ReshardJob *one; /* of those that move */
};

static struct sum sum_of(const Cairn__ReshardTold *told)
{
    struct sum sum = { 0 };
    for (size_t i = 0; i < told->n_jobs; i++) {
        const Cairn__ReshardJob *job = told->jobs[i];
        sum.moved += job->moved_bytes;
        sum.all += job->all_bytes;
        if (job->elapsed_ms > sum.elapsed_ms) sum.elapsed_ms = job->elapsed_ms;
        if (strcmp(job->state, "moving") != 0) continue;
        sum.moving++;
        sum.one = job;
    }
    return sum;
}

static void draw_bar(struct progress *p, const struct sum *sum, double part)
{
    char bar[BAR + 1];
    const int full = (int)(part * BAR);
    for (int i = 0; i < BAR; i++) bar[i] = i < full ? '#' : '.';
    bar[BAR] = '\0';
    fprintf(stderr, "\r\033[K[%s] %3.0f %%  %s of %s, slice %u of %u, %.0f s", bar, part * 100,
            cairn_ctl_bytes(sum->moved), cairn_ctl_bytes(sum->all), sum->one->slice,
            sum->one->slices, (double)sum->elapsed_ms / 1e3);
    fflush(stderr);
    p->is_drawn = true;
}

static void show(struct progress *p, const struct sum *sum)
{
    const double part = sum->all > 0 && sum->moved < sum->all
                            ? (double)sum->moved / (double)sum->all
                            : 1;
    if (sum->one == NULL) return;
    if (p->is_terminal) {
        draw_bar(p, sum, part);
        return;
    }
    const unsigned tenths = (unsigned)(part * 10);
    if (tenths <= p->tenths) return;
    p->tenths = tenths;
    fprintf(stderr, "cairn: %.0f %%: %s of %s, slice %u of %u\n", part * 100,
            cairn_ctl_bytes(sum->moved), cairn_ctl_bytes(sum->all), sum->one->slice,
            sum->one->slices);
}

/* A coordinator that was there may come back, as after a restart. -1: go on. */
static int ask_again(struct ctl *ctl, const Cairn__ReshardAsk *ask, ProtobufCMessage **told_out)
{
    for (int tries = 0;; tries++) {
        ctl->tries_again = tries < AWAY_MAX;
        const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_RESHARD_ASK, &ask->base,
                                                   CAIRN_MSG_RESHARD_TOLD, told_out);
        if (called == CAIRN_OK) return -1;
        if (called != CAIRN_ERR_UNREACHABLE || !ctl->tries_again)
            return cairn_status_exit((int)called);
        poll(NULL, 0, ASK_EVERY_MS);
    }
}

int cairn_ctl_reshard_wait(struct ctl *ctl, const Cairn__ReshardAsk *ask,
                           ProtobufCMessage **told_out)
{
    struct progress progress = { .is_terminal = isatty(STDERR_FILENO) == 1 };
    for (;;) {
        const int done = ask_again(ctl, ask, told_out);
        if (done >= 0) return done;
        const struct sum sum = sum_of((const Cairn__ReshardTold *)*told_out);
        if (!ctl->quiet) show(&progress, &sum);
        if (sum.moving == 0) break;
        cairn_message_free(*told_out);
        poll(NULL, 0, ASK_EVERY_MS);
    }
    if (progress.is_drawn) fprintf(stderr, "\r\033[K");
    return -1;
}
