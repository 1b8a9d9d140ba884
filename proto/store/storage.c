#include "proto/store/storage.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/machine.h"
#include "proto/base/text.h"

#define BACKENDS_MAX 4

static const struct storage *registered[BACKENDS_MAX];
static size_t registered_count;

void storage_register(const struct storage *storage)
{
    assert(registered_count < BACKENDS_MAX && storage->scheme[0] != '\0');
    registered[registered_count++] = storage;
}

const struct storage *storage_of(const char *location)
{
    for (size_t i = 0; i < registered_count; i++) {
        const size_t length = strlen(registered[i]->scheme);
        if (strncmp(location, registered[i]->scheme, length) == 0 && location[length] == ':')
            return registered[i];
    }
    return &storage_folder;
}

/* ==== storage token ==== */

enum { TOKEN_BYTES = 17, NAME_BYTES = 64, TEXT_BYTES = 512, MODE = 0640 };

/* The contents of .cairn-storage, and the user that owns the file. */
struct marker {
    uint64_t token;
    uint64_t store; /* the identity of the owner's store; 0: the folder has no owner */
    char who[CAIRN_STORAGE_WHO_BYTES];
    uid_t user; /* the user that owns the file */
};

static bool parse_number(const char *text, uint64_t *number_out)
{
    if (strspn(text, "0123456789abcdef") != 16) return false;
    *number_out = strtoull(text, NULL, 16);
    return *number_out != 0;
}

/* Reads the text of a marker. If the second line has another form, the folder has no owner. */
static bool parse_marker(const char *text, struct marker *out)
{
    out->store = 0;
    out->who[0] = '\0';
    if (!parse_number(text, &out->token) || text[16] != '\n') return false;
    const char *line = text + TOKEN_BYTES;
    if (!parse_number(line, &out->store) || line[16] != ' ') return true;
    const size_t bytes = strcspn(line + TOKEN_BYTES, "\n");
    if (bytes < sizeof out->who) {
        memcpy(out->who, line + TOKEN_BYTES, bytes);
        out->who[bytes] = '\0';
        text_mend(out->who, "");
    }
    return true;
}

/* Reads the marker. CAIRN_ERR_NOT_FOUND: there is none. CAIRN_ERR_IO: see errno; errno 0: it is not a
 * regular file. Never waits for a FIFO. */
static cairn_status read_marker(int root_fd, struct marker *out)
{
    char text[TEXT_BYTES + 1] = "";
    struct stat info;
    const int fd = openat(root_fd, CAIRN_STORAGE_FILE,
                          O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? CAIRN_ERR_NOT_FOUND : CAIRN_ERR_IO;
    cairn_status status = CAIRN_ERR_IO;
    const bool is_other = fstat(fd, &info) == 0 && !S_ISREG(info.st_mode);
    if (!is_other && read_fully(fd, text, TEXT_BYTES) >= 0) {
        out->user = info.st_uid;
        status = parse_marker(text, out) ? CAIRN_OK : CAIRN_ERR_MALFORMED;
    }
    close(fd);
    if (is_other) errno = 0;
    return status;
}

/* Tells why read_marker failed, or why a token could not be made. */
static const char *error_text(void)
{
    return errno != 0 ? strerror(errno) : "it is no regular file; remove it";
}

/* Writes the marker to a new file, with a name that no other file has. Sets marker->user to the file's
 * owner as the storage reports it: for the storage, we may be another user than for this host. After a
 * failure no file is left. */
static bool write_marker(int root_fd, struct marker *marker, char name_out[NAME_BYTES])
{
    char text[TEXT_BYTES];
    struct stat info;
    uint64_t random;
    randombytes_buf(&random, sizeof random);
    int bytes = snprintf(text, sizeof text, "%016" PRIx64 "\n", marker->token);
    if (marker->store != 0)
        bytes += snprintf(text + bytes, sizeof text - (size_t)bytes, "%016" PRIx64 " %s\n",
                          marker->store, marker->who);
    snprintf(name_out, NAME_BYTES, "%s.%016" PRIx64, CAIRN_STORAGE_FILE, random);
    const int fd = openat(root_fd, name_out, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, MODE);
    if (fd < 0) return false;
    const bool ok = file_mode_set(fd, MODE) == 0 && write_fully(fd, text, (size_t)bytes) &&
                    fsync(fd) == 0 && fstat(fd, &info) == 0;
    const int error = errno;
    close(fd);
    if (ok)
        marker->user = info.st_uid;
    else
        unlinkat(root_fd, name_out, 0);
    errno = error;
    return ok;
}

/* Makes the token's file, either complete or not at all. Never replaces a token's file that exists. */
static bool make_token(int root_fd, struct marker *marker)
{
    char name[NAME_BYTES];
    if (!write_marker(root_fd, marker, name)) return false;
    const bool ok = (linkat(root_fd, name, root_fd, CAIRN_STORAGE_FILE, 0) == 0 ||
                     errno == EEXIST) &&
                    fsync(root_fd) == 0;
    const int error = errno;
    unlinkat(root_fd, name, 0);
    errno = error;
    return ok;
}

static cairn_status open_root(const char *root, int *fd_out, struct sentence *why)
{
    *fd_out = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd_out >= 0) return CAIRN_OK;
    return fail_with(why, errno == ENOENT ? CAIRN_ERR_NOT_FOUND : CAIRN_ERR_IO,
                     "%s cannot be opened as user %u: %s", root, (unsigned)geteuid(),
                     strerror(errno));
}

static struct marker marker_of(uint64_t token, const struct storage_owner *owner)
{
    struct marker marker = { .token = token, .store = owner->store };
    memcpy(marker.who, owner->who, sizeof marker.who);
    return marker;
}

cairn_status storage_mark(const char *root, const struct storage_owner *owner, uint64_t *token_out,
                          struct sentence *why)
{
    struct marker marker = { 0 };
    int fd;
    CAIRN_TRY(open_root(root, &fd, why));
    cairn_status status = read_marker(fd, &marker);
    if (status == CAIRN_ERR_NOT_FOUND) {
        marker = marker_of(0, owner);
        while (marker.token == 0) randombytes_buf(&marker.token, sizeof marker.token);
        status = make_token(fd, &marker) ? read_marker(fd, &marker) : CAIRN_ERR_IO;
    }
    if (status == CAIRN_OK)
        *token_out = marker.token;
    else
        status = fail_with(
            why, status,
            "%s/%s cannot be read or made (%s): remove it, or make the folder writable", root,
            CAIRN_STORAGE_FILE, status == CAIRN_ERR_MALFORMED ? "it is no token" : error_text());
    close(fd);
    return status;
}

static cairn_status judge_token(const char *root, int fd, uint64_t token, struct marker *found_out,
                                struct sentence *why)
{
    const cairn_status status = read_marker(fd, found_out);
    if (status == CAIRN_ERR_IO)
        return fail_with(why, status, "%s/%s cannot be read as user %u: %s", root,
                         CAIRN_STORAGE_FILE, (unsigned)geteuid(), error_text());
    if (status == CAIRN_OK && found_out->token == token) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_NOT_FOUND, "%s is another folder here than the coordinator's",
                     root);
}

static cairn_status judge_owner(const char *root, const struct marker *found,
                                const struct storage_owner *owner, struct sentence *why)
{
    if (found->store == 0 || found->store == owner->store || found->store == owner->former)
        return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_EXISTS,
                     "the folder %s belongs to another cluster: %s, store %016" PRIx64, root,
                     found->who[0] != '\0' ? found->who : "it does not say which", found->store);
}

static cairn_status fail_to_write(const char *root, struct sentence *why)
{
    return fail_with(why, CAIRN_ERR_REFUSED, "user %u cannot write to %s: %s", (unsigned)geteuid(),
                     root, strerror(errno));
}

/* Checks that we write as the coordinator's user. The coordinator makes a folder for each snapshot, and
 * only its own user may write there. */
static cairn_status judge_user(const char *root, int fd, const struct marker *found,
                               struct sentence *why)
{
    char name[NAME_BYTES];
    struct marker own = *found;
    if (!write_marker(fd, &own, name)) return fail_to_write(root, why);
    unlinkat(fd, name, 0);
    if (own.user == 0 || own.user == found->user) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_REFUSED,
                     "%s is the coordinator's, which runs as user %u, and this shard runs as user "
                     "%u; give the account one number on all hosts",
                     root, (unsigned)found->user, (unsigned)own.user);
}

/* Opens the root if it has the token. */
static cairn_status open_own(const char *root, uint64_t token, int *fd_out,
                             struct marker *found_out, struct sentence *why)
{
    CAIRN_TRY(open_root(root, fd_out, why));
    cairn_status status = judge_token(root, *fd_out, token, found_out, why);
    if (status != CAIRN_OK) close(*fd_out);
    return status;
}

cairn_status storage_seen(const char *root, uint64_t token, const struct storage_owner *owner,
                          struct sentence *why)
{
    struct marker found;
    int fd;
    CAIRN_TRY(open_own(root, token, &fd, &found, why));
    close(fd);
    return judge_owner(root, &found, owner, why);
}

cairn_status storage_check(const char *root, uint64_t token, struct sentence *why)
{
    struct marker found;
    int fd;
    CAIRN_TRY(open_own(root, token, &fd, &found, why));
    cairn_status status = judge_user(root, fd, &found, why);
    close(fd);
    return status;
}

/* Always writes a marker, which shows that we can write. If the new marker differs from the one that was
 * found, puts the new one in its place. */
static cairn_status put_own(const char *root, int fd, const struct marker *found,
                            const struct storage_owner *owner, struct sentence *why)
{
    char name[NAME_BYTES];
    struct marker own = marker_of(found->token, owner);
    if (!write_marker(fd, &own, name)) return fail_to_write(root, why);
    if (own.user == found->user && own.store == found->store) {
        unlinkat(fd, name, 0);
        return CAIRN_OK;
    }
    if (renameat(fd, name, fd, CAIRN_STORAGE_FILE) == 0 && fsync(fd) == 0) return CAIRN_OK;
    const int error = errno;
    unlinkat(fd, name, 0);
    errno = error;
    return fail_to_write(root, why);
}

/* Makes the folder belong to `owner`. With `takes`, does this even if another cluster owns the folder. */
static cairn_status own(const char *root, uint64_t token, const struct storage_owner *owner,
                        bool takes, struct sentence *why)
{
    struct marker found;
    int fd;
    cairn_status status = open_own(root, token, &fd, &found, why);
    if (status != CAIRN_OK) return status;
    if (!takes) status = judge_owner(root, &found, owner, why);
    if (status == CAIRN_OK) status = put_own(root, fd, &found, owner, why);
    close(fd);
    return status;
}

cairn_status storage_own(const char *root, uint64_t token, const struct storage_owner *owner,
                         struct sentence *why)
{
    return own(root, token, owner, false, why);
}

cairn_status storage_take(const char *root, uint64_t token, const struct storage_owner *owner,
                          struct sentence *why)
{
    return own(root, token, owner, true, why);
}

bool storage_is_used(const char *root)
{
    DIR *dir = opendir(root);
    bool found = false;
    for (struct dirent *e; dir != NULL && !found && (e = readdir(dir)) != NULL;)
        found = e->d_name[0] != '.';
    if (dir != NULL) closedir(dir);
    return found;
}

/* ==== names ==== */

static void add_name(void *context, const char *name, bool is_folder)
{
    struct stored_names *names = context;
    (void)is_folder;
    if (names->status != CAIRN_OK) return;
    names->status = array_reserve(&names->list, names->count, 1, &names->capacity,
                                  sizeof(*names->list));
    char *copy = names->status == CAIRN_OK ? strdup(name) : NULL;
    if (copy == NULL)
        names->status = CAIRN_ERR_NO_MEMORY;
    else
        names->list[names->count++] = copy;
}

static int name_order(const void *a, const void *b)
{
    return strverscmp(*(char *const *)a, *(char *const *)b);
}

cairn_status names_list(const char *at, const char *path, struct stored_names *out,
                        struct sentence *why)
{
    *out = (struct stored_names) { .list = NULL };
    CAIRN_TRY(storage_of(at)->list(at, path, add_name, out, why));
    if (out->status != CAIRN_OK)
        return fail_with(why, out->status, "out of memory for the names in %s/%s", at, path);
    if (out->count > 0) qsort(out->list, out->count, sizeof *out->list, name_order);
    return CAIRN_OK;
}

void names_release(struct stored_names *names)
{
    for (size_t i = 0; i < names->count; i++) free(names->list[i]);
    free(names->list);
    *names = (struct stored_names) { .list = NULL };
}

/* ==== io block ==== */

void *io_block_new(size_t bytes)
{
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return block == MAP_FAILED ? NULL : block;
}

void io_block_free(void *block, size_t bytes)
{
    if (block != NULL) munmap(block, bytes);
}
