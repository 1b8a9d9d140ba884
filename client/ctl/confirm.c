/* Asks for confirmation before a step that cannot be undone: on a terminal by the name of the thing
 * that goes, else by --yes. */
#include <string.h>
#include <unistd.h>

#include "client/ctl/ctl.h"

int cairn_ctl_confirm(const struct ctl *ctl, const char *what, const char *name)
{
    char line[512];
    if (ctl->yes) return -1;
    if (!isatty(STDIN_FILENO))
        return cairn_ctl_usage_fail(ctl, "%s cannot be brought back: without a terminal say --yes",
                                    what);
    fprintf(stderr, "%s cannot be brought back. To go on, type %s: ", what, name);
    fflush(stderr);
    if (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strcmp(line, name) == 0) return -1;
    }
    return cairn_ctl_fail(CAIRN_ERR_CANCELED, "nothing was done");
}
