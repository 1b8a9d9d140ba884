/* How far long work is, on stderr: a bar on a terminal, else a line every 10 seconds; nothing with -q. */
#ifndef CAIRN_CTL_PROGRESS_H
#define CAIRN_CTL_PROGRESS_H

#include "client/ctl/ctl.h"

/* Told by one thread at a time. */
struct ctl_progress {
    const char *what; /* "exported"; borrowed */
    uint64_t total;   /* bytes */
    uint64_t begun_ms, said_ms;
    bool silent, on_terminal;
    bool line_open; /* the bar is on the terminal */
};

void cairn_ctl_progress_begin(struct ctl_progress *progress, const struct ctl *ctl,
                              const char *what, uint64_t total_bytes);
/* So many bytes are done. Cheap: it looks at the clock, and says something ten times a second at most. */
void cairn_ctl_progress_at(struct ctl_progress *progress, uint64_t done_bytes);
/* Takes the bar away. */
void cairn_ctl_progress_end(struct ctl_progress *progress);

#endif
