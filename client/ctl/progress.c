#include "client/ctl/progress.h"

#include <time.h>
#include <unistd.h>

enum { BAR = 24, BAR_EVERY_MS = 100, LINE_EVERY_MS = 10000 };

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void cairn_ctl_progress_begin(struct ctl_progress *p, const struct ctl *ctl, const char *what,
                              uint64_t total_bytes)
{
    const uint64_t now = now_ms();
    *p = (struct ctl_progress) { .what = what,
                                 .total = total_bytes,
                                 .begun_ms = now,
                                 .said_ms = now,
                                 .silent = ctl->quiet,
                                 .on_terminal = isatty(STDERR_FILENO) == 1 };
}

void cairn_ctl_progress_at(struct ctl_progress *p, uint64_t done)
{
    if (p->silent) return;
    const uint64_t now = now_ms();
    if (now - p->said_ms < (p->on_terminal ? BAR_EVERY_MS : LINE_EVERY_MS)) return;
    p->said_ms = now;
    if (done > p->total) done = p->total;
    const double part = p->total > 0 ? (double)done / (double)p->total : 1;
    const double seconds = (double)(now - p->begun_ms) / 1000;
    const double rate = seconds > 0 ? (double)done / seconds : 0;
    struct cairn_sentence left = { "" };
    if (rate > 0) cairn_sentence_set(&left, ", %.0f s left", (double)(p->total - done) / rate);
    if (p->on_terminal) {
        char bar[BAR + 1];
        for (int i = 0; i < BAR; i++) bar[i] = i < (int)(part * BAR) ? '#' : '.';
        bar[BAR] = '\0';
        fprintf(stderr, "\r[%s] ", bar);
    } else {
        fprintf(stderr, "cairn: ");
    }
    fprintf(stderr, "%3.0f %% %s: %s of %s, %s/s%s", part * 100, p->what, cairn_ctl_bytes(done),
            cairn_ctl_bytes(p->total), cairn_ctl_bytes((uint64_t)rate), left.text);
    fprintf(stderr, p->on_terminal ? "\033[K" : "\n");
    fflush(stderr);
    p->line_open = p->on_terminal;
}

void cairn_ctl_progress_end(struct ctl_progress *p)
{
    if (p->line_open) fprintf(stderr, "\r\033[K");
    p->line_open = false;
}
