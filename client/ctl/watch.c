/* --watch and `job top`: a command again and again, until it is interrupted. */
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ctl.h"

#define HOME_AND_CLEAR "\033[H\033[J"

static volatile sig_atomic_t interrupted;

static void on_signal(int signal)
{
    (void)signal;
    interrupted = 1;
}

int cairn_ctl_watch(struct ctl *ctl, int (*run)(struct ctl *ctl))
{
    static char buffer[1 << 16];
    const bool is_terminal = isatty(STDOUT_FILENO) == 1;
    const struct sigaction action = { .sa_handler = on_signal }; // ends the waiting
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer); // a picture at once
    int status = 0;
    for (bool first = true; interrupted == 0; first = false) {
        if (is_terminal)
            printf(HOME_AND_CLEAR);
        else if (!first)
            printf("\n");
        status = run(ctl);
        if (fflush(stdout) != 0) return 1; // nobody reads it
        // What was there may come back, as after a restart of the coordinator.
        if (status != 0 && (first || status != cairn_status_exit(CAIRN_ERR_UNREACHABLE)))
            return status;
        if (interrupted == 0) poll(NULL, 0, (int)(ctl->every_s * 1000));
    }
    return 130;
}
