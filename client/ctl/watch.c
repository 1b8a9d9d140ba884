/* --watch and `job top`: a command again and again, until it is interrupted. */
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "client/ctl/ctl.h"

#define HOME_AND_CLEAR "\033[H\033[J"

/* At once, also in the middle of a call whose coordinator hangs. A picture that is not whole is not shown. */
static void on_signal(int signal)
{
    (void)signal;
    _exit(130);
}

int cairn_ctl_watch(struct ctl *ctl, int (*run)(struct ctl *ctl))
{
    static char buffer[1 << 16];
    const bool is_terminal = isatty(STDOUT_FILENO) == 1;
    const struct sigaction action = { .sa_handler = on_signal };
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer); // a picture at once
    for (bool first = true;; first = false) {
        if (is_terminal)
            printf(HOME_AND_CLEAR);
        else if (!first)
            printf("\n");
        const int status = run(ctl);
        if (fflush(stdout) != 0) return 1; // nobody reads it
        // An unreachable coordinator may come back, as after a restart.
        if (status != 0 && (first || status != cairn_status_exit(CAIRN_ERR_UNREACHABLE)))
            return status;
        poll(NULL, 0, (int)(ctl->every_s * 1000));
    }
}
