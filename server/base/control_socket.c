#include "server/base/control_socket.h"

#include "proto/loop/address.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define LOCK_TRIES 100
#define TRY_MS     10

static cairn_status refuse(const char *path, const char *what, int error,
                           struct cairn_sentence *why)
{
    return cairn_fail(why, CAIRN_ERR_CONFIG, "cannot listen on %s: %s: %s", path, what,
                      strerror(error));
}

static int socket_of(const char *path, struct sockaddr_un *addr_out)
{
    *addr_out = (struct sockaddr_un) { .sun_family = AF_UNIX };
    snprintf(addr_out->sun_path, sizeof addr_out->sun_path, "%s", path);
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static void folder_of(const char *path, char folder_out[CAIRN_ADDRESS_TEXT_BYTES])
{
    const int length = (int)(strrchr(path, '/') - path);
    snprintf(folder_out, CAIRN_ADDRESS_TEXT_BYTES, "%.*s", length > 0 ? length : 1, path);
}

/* A file system that knows no locks of folders is no reason not to listen there. */
static cairn_status lock_folder(const char *path, int *fd_out, struct cairn_sentence *why)
{
    char folder[CAIRN_ADDRESS_TEXT_BYTES];
    folder_of(path, folder);
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return refuse(path, "its folder cannot be opened", errno, why);
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) {
            *fd_out = fd;
            return CAIRN_OK;
        }
        poll(NULL, 0, TRY_MS);
    }
    close(fd);
    return cairn_fail(why, CAIRN_ERR_BUSY,
                      "cannot listen on %s: another program holds a lock on its folder; end it, or "
                      "listen in another folder",
                      path);
}

/* CAIRN_OK if a socket may be made at the path: there is nothing, or a socket that nobody
 * listens on. */
static cairn_status judge_place(const char *path, struct cairn_sentence *why)
{
    struct stat st;
    struct sockaddr_un addr;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? CAIRN_OK : refuse(path, "it cannot be looked at", errno, why);
    if (!S_ISSOCK(st.st_mode))
        return cairn_fail(
            why, CAIRN_ERR_CONFIG,
            "cannot listen on %s: what is there is no socket; remove it, or set another path",
            path);
    const int fd = socket_of(path, &addr);
    if (fd < 0) return refuse(path, "no socket", errno, why);
    const bool is_dead = connect(fd, (struct sockaddr *)&addr, sizeof addr) != 0 &&
                         errno == ECONNREFUSED;
    close(fd);
    if (is_dead) return CAIRN_OK;
    return cairn_fail(
        why, CAIRN_ERR_BUSY,
        "cannot listen on %s: another program listens there; stop it, or set another path", path);
}

/* Nobody can connect before it listens, and then it has its mode. */
static cairn_status make(const char *path, int backlog, struct cairn_control_socket *socket_out,
                         struct cairn_sentence *why)
{
    struct stat st;
    char beside[CAIRN_ADDRESS_PATH_BYTES + 2];
    struct sockaddr_un addr;
    snprintf(beside, sizeof beside, "%s~", path);
    unlink(beside); // of one that died here; the folder is locked
    const int fd = socket_of(beside, &addr);
    if (fd < 0) return refuse(path, "no socket", errno, why);
    if (bind(fd, (struct sockaddr *)&addr, sizeof addr) == 0 && chmod(beside, 0660) == 0 &&
        listen(fd, backlog) == 0 && lstat(beside, &st) == 0 && rename(beside, path) == 0) {
        *socket_out = (struct cairn_control_socket) { fd, st.st_dev, st.st_ino };
        return CAIRN_OK;
    }
    const cairn_status status = refuse(path, "it cannot be made", errno, why);
    unlink(beside);
    close(fd);
    return status;
}

cairn_status cairn_control_socket_open(const char *path, int backlog,
                                       struct cairn_control_socket *socket_out,
                                       struct cairn_sentence *why)
{
    int lock_fd = -1;
    cairn_status status = lock_folder(path, &lock_fd, why);
    if (status != CAIRN_OK) return status;
    status = judge_place(path, why);
    if (status == CAIRN_OK) status = make(path, backlog, socket_out, why);
    close(lock_fd);
    return status;
}

void cairn_control_socket_unlink(const char *path, const struct cairn_control_socket *socket)
{
    struct stat st;
    if (lstat(path, &st) == 0 && st.st_dev == socket->device && st.st_ino == socket->inode)
        unlink(path);
}

cairn_status cairn_control_socket_folder(const char *path, struct cairn_sentence *why)
{
    char folder[CAIRN_ADDRESS_TEXT_BYTES];
    folder_of(path, folder);
    if (mkdir(folder, 0750) == 0 || errno == EEXIST) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_CONFIG,
                      "the folder %s of the control socket cannot be made: %s; make it, set "
                      "XDG_RUNTIME_DIR to a folder of yours, or set listen in [network]",
                      folder, strerror(errno));
}
