#include "proto/store/storage_token.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/file_mode.h"

enum { TEXT_BYTES = 17, NAME_BYTES = 64, MODE = 0640 };

static bool parse_token(const char text[TEXT_BYTES + 1], uint64_t *token_out)
{
    if (strspn(text, "0123456789abcdef") != 16 || text[16] != '\n') return false;
    *token_out = strtoull(text, NULL, 16);
    return *token_out != 0;
}

/* CAIRN_ERR_NOT_FOUND: there is none. CAIRN_ERR_IO: see errno; 0: it is not a regular file. Never waits for a
 * FIFO. *owner_out: whose file it is. */
static cairn_status read_token(int root_fd, uint64_t *token_out, uid_t *owner_out)
{
    char text[TEXT_BYTES + 1] = "";
    struct stat info;
    const int fd = openat(root_fd, CAIRN_STORAGE_FILE,
                          O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? CAIRN_ERR_NOT_FOUND : CAIRN_ERR_IO;
    cairn_status status = CAIRN_ERR_IO;
    const bool is_other = fstat(fd, &info) == 0 && !S_ISREG(info.st_mode);
    if (!is_other && read(fd, text, TEXT_BYTES) >= 0) {
        *owner_out = info.st_uid;
        status = parse_token(text, token_out) ? CAIRN_OK : CAIRN_ERR_MALFORMED;
    }
    close(fd);
    if (is_other) errno = 0;
    return status;
}

/* Why read_token failed, or a token could not be made. */
static const char *error_text(void)
{
    return errno != 0 ? strerror(errno) : "it is no regular file; remove it";
}

/* A new file with the token, of a name of its own. *owner_out: whose it is, by the storage's word, which may
 * know us as another user than this host does. A file that cannot be made is none. */
static bool write_token(int root_fd, uint64_t token, char name_out[NAME_BYTES], uid_t *owner_out)
{
    char text[TEXT_BYTES + 1];
    struct stat info;
    uint64_t random;
    randombytes_buf(&random, sizeof random);
    snprintf(text, sizeof text, "%016" PRIx64 "\n", token);
    snprintf(name_out, NAME_BYTES, "%s.%016" PRIx64, CAIRN_STORAGE_FILE, random);
    const int fd = openat(root_fd, name_out, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, MODE);
    if (fd < 0) return false;
    const bool ok = cairn_file_mode_set(fd, MODE) == 0 &&
                    write(fd, text, TEXT_BYTES) == TEXT_BYTES && fsync(fd) == 0 &&
                    fstat(fd, &info) == 0;
    const int error = errno;
    close(fd);
    if (ok)
        *owner_out = info.st_uid;
    else
        unlinkat(root_fd, name_out, 0);
    errno = error;
    return ok;
}

/* Whole or not at all, and not over another's. */
static bool make_token(int root_fd, uint64_t token)
{
    char name[NAME_BYTES];
    uid_t owner;
    if (!write_token(root_fd, token, name, &owner)) return false;
    const bool ok = (linkat(root_fd, name, root_fd, CAIRN_STORAGE_FILE, 0) == 0 ||
                     errno == EEXIST) &&
                    fsync(root_fd) == 0;
    const int error = errno;
    unlinkat(root_fd, name, 0);
    errno = error;
    return ok;
}

static cairn_status open_root(const char *root, int *fd_out, struct cairn_sentence *why)
{
    *fd_out = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd_out >= 0) return CAIRN_OK;
    return cairn_fail(why, errno == ENOENT ? CAIRN_ERR_NOT_FOUND : CAIRN_ERR_IO,
                      "%s cannot be opened as user %u: %s", root, (unsigned)geteuid(),
                      strerror(errno));
}

cairn_status cairn_storage_mark(const char *root, uint64_t *token_out, struct cairn_sentence *why)
{
    uint64_t token = 0;
    uid_t owner;
    int fd;
    cairn_status status = open_root(root, &fd, why);
    if (status != CAIRN_OK) return status;
    status = read_token(fd, &token, &owner);
    while (token == 0) randombytes_buf(&token, sizeof token);
    if (status == CAIRN_ERR_NOT_FOUND)
        status = make_token(fd, token) ? read_token(fd, &token, &owner) : CAIRN_ERR_IO;
    if (status == CAIRN_OK)
        *token_out = token;
    else
        status = cairn_fail(
            why, status,
            "%s/%s cannot be read or made (%s): remove it, or make the folder writable", root,
            CAIRN_STORAGE_FILE, status == CAIRN_ERR_MALFORMED ? "it is no token" : error_text());
    close(fd);
    return status;
}

static cairn_status judge_token(const char *root, int fd, uint64_t token, uid_t *owner_out,
                                struct cairn_sentence *why)
{
    uint64_t found = 0;
    const cairn_status status = read_token(fd, &found, owner_out);
    if (status == CAIRN_ERR_IO)
        return cairn_fail(why, status, "%s/%s cannot be read as user %u: %s", root,
                          CAIRN_STORAGE_FILE, (unsigned)geteuid(), error_text());
    if (status == CAIRN_OK && found == token) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_NOT_FOUND, "%s is another folder here than the coordinator's",
                      root);
}

static cairn_status fail_to_write(const char *root, struct cairn_sentence *why)
{
    return cairn_fail(why, CAIRN_ERR_REFUSED, "user %u cannot write to %s: %s", (unsigned)geteuid(),
                      root, strerror(errno));
}

/* The coordinator makes a folder for each snapshot, which nobody but its user writes to. */
static cairn_status judge_user(const char *root, int fd, uint64_t token, uid_t owner,
                               struct cairn_sentence *why)
{
    char name[NAME_BYTES];
    uid_t own;
    if (!write_token(fd, token, name, &own)) return fail_to_write(root, why);
    unlinkat(fd, name, 0);
    if (own == 0 || own == owner) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_REFUSED,
                      "%s is the coordinator's, which runs as user %u, and this shard runs as user "
                      "%u; give the account one number on all hosts",
                      root, (unsigned)owner, (unsigned)own);
}

/* Opens the root, if it has the token. */
static cairn_status open_own(const char *root, uint64_t token, int *fd_out, uid_t *owner_out,
                             struct cairn_sentence *why)
{
    cairn_status status = open_root(root, fd_out, why);
    if (status != CAIRN_OK) return status;
    status = judge_token(root, *fd_out, token, owner_out, why);
    if (status != CAIRN_OK) close(*fd_out);
    return status;
}

cairn_status cairn_storage_seen(const char *root, uint64_t token, struct cairn_sentence *why)
{
    uid_t owner;
    int fd;
    const cairn_status status = open_own(root, token, &fd, &owner, why);
    if (status == CAIRN_OK) close(fd);
    return status;
}

cairn_status cairn_storage_check(const char *root, uint64_t token, struct cairn_sentence *why)
{
    uid_t owner = 0;
    int fd;
    cairn_status status = open_own(root, token, &fd, &owner, why);
    if (status != CAIRN_OK) return status;
    status = judge_user(root, fd, token, owner, why);
    close(fd);
    return status;
}

cairn_status cairn_storage_own(const char *root, uint64_t token, struct cairn_sentence *why)
{
    char name[NAME_BYTES];
    uid_t owner = 0, own;
    int fd;
    cairn_status status = open_own(root, token, &fd, &owner, why);
    if (status != CAIRN_OK) return status;
    if (!write_token(fd, token, name, &own))
        status = fail_to_write(root, why);
    else if (own == owner)
        unlinkat(fd, name, 0);
    else if (renameat(fd, name, fd, CAIRN_STORAGE_FILE) != 0 || fsync(fd) != 0)
        status = fail_to_write(root, why);
    close(fd);
    return status;
}

bool cairn_storage_is_used(const char *root)
{
    DIR *dir = opendir(root);
    bool found = false;
    for (struct dirent *e; dir != NULL && !found && (e = readdir(dir)) != NULL;)
        found = e->d_name[0] != '.';
    if (dir != NULL) closedir(dir);
    return found;
}
