/* Paths that the coordinator is to open, which works in another folder. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ctl.h"

int cairn_ctl_absolute(const char *what, const char *path, char out[static PATH_MAX])
{
    char here[PATH_MAX] = "";
    const bool relative = path[0] != '/';
    if (relative && getcwd(here, sizeof here) == NULL)
        return cairn_ctl_fail(CAIRN_ERR_IO, "the working folder: %s", strerror(errno));
    const int n = snprintf(out, PATH_MAX, "%s%s%s", here, relative ? "/" : "", path);
    if (n < PATH_MAX) return -1;
    return cairn_ctl_fail(CAIRN_ERR_INVALID, "%s %.60s...: it is too long", what, path);
}
