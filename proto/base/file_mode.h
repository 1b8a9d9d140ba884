/* Permissions that do not hang on the umask of who runs us: what is made with a mode has that mode. */
#ifndef CAIRN_BASE_FILE_MODE_H
#define CAIRN_BASE_FILE_MODE_H

#include <sys/stat.h>

/* The low 9 bits of the file or folder become `mode`; a set-group-id bit that a parent gave stays. 0, or -1
 * with errno. Touches nothing that has them: systemd's RestrictSUIDSGID refuses a chmod of such a folder. */
static inline int cairn_file_mode_set(int fd, mode_t mode)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return -1;
    if ((info.st_mode & 0777) == mode) return 0;
    return fchmod(fd, (info.st_mode & 07000) | mode);
}

#endif
