#include "server/base/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/machine.h"
#include "proto/base/text.h"

static cairn_status fail_step(struct sentence *why, const char *step, const char *path)
{
    const int error = errno;
    const bool is_full = error == ENOSPC || error == EDQUOT;
    return fail_with(why, is_full ? CAIRN_ERR_NO_SPACE : CAIRN_ERR_IO, "%s %.300s failed: %s%s",
                     step, path, strerror(error), is_full ? "; free some space" : "");
}

// The parent of "a/b" is "a", the parent of "b" is ".", and the parent of "/b" is "/".
static void parent_of(const char *path, char parent_out[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        snprintf(parent_out, PATH_MAX, ".");
    else
        snprintf(parent_out, PATH_MAX, "%.*s", slash == path ? 1 : (int)(slash - path), path);
}

/* Makes new names, renames and removals in the folder durable. */
static cairn_status sync_folder(const char *path, struct sentence *why)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return fail_step(why, "opening the folder", path);
    const int error = fsync(fd);
    // EINVAL: the file system keeps nothing, as /proc does.
    const cairn_status status = error == 0 || errno == EINVAL
                                    ? CAIRN_OK
                                    : fail_step(why, "fsync of the folder", path);
    close(fd);
    return status;
}

// Writes PATH.new, and makes it durable. If this fails, the file is removed.
static cairn_status fill_file(const char *fresh, int how, const void *bytes, size_t byte_count,
                              struct sentence *why)
{
    const int fd = open(fresh, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | how, 0600);
    if (fd < 0) return fail_step(why, "creating", fresh);
    cairn_status status = CAIRN_OK;
    if (!write_fully(fd, bytes, byte_count))
        status = fail_step(why, "writing", fresh);
    else if (fsync(fd) != 0)
        status = fail_step(why, "fsync of", fresh);
    if (close(fd) != 0 && status == CAIRN_OK) status = fail_step(why, "closing", fresh);
    if (status != CAIRN_OK) unlink(fresh);
    return status;
}

static cairn_status put_over(const char *fresh, const char *path, struct sentence *why)
{
    if (rename(fresh, path) == 0) return CAIRN_OK;
    const cairn_status status = fail_step(why, "renaming a new file to", path);
    unlink(fresh);
    return status;
}

static cairn_status put_beside(const char *fresh, const char *path, struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    if (link(fresh, path) != 0)
        status = errno == EEXIST ? fail_with(why, CAIRN_ERR_EXISTS, "%.300s is there already", path)
                                 : fail_step(why, "linking a new file to", path);
    unlink(fresh);
    return status;
}

// Opens PATH.new with `how`, and writes it completely and durably. Then calls `put` to turn it into PATH.
static cairn_status write_by(const char *path, int how, const void *bytes, size_t byte_count,
                             cairn_status (*put)(const char *fresh, const char *path,
                                                 struct sentence *why),
                             struct sentence *why)
{
    char fresh[PATH_MAX];
    char parent[PATH_MAX];
    if (strlen(path) >= sizeof fresh - strlen(".new"))
        return fail_with(why, CAIRN_ERR_INVALID, "the path %.100s... is too long", path);
    snprintf(fresh, sizeof fresh, "%s.new", path);
    parent_of(path, parent);
    cairn_status status = fill_file(fresh, how, bytes, byte_count, why);
    if (status == CAIRN_OK) status = put(fresh, path, why);
    return status == CAIRN_OK ? sync_folder(parent, why) : status;
}

cairn_status durable_write(const char *path, const void *bytes, size_t byte_count,
                           struct sentence *why)
{
    return write_by(path, O_TRUNC, bytes, byte_count, put_over, why); // nobody else writes PATH.new
}

cairn_status durable_create(const char *path, const void *bytes, size_t byte_count,
                            struct sentence *why)
{
    return write_by(path, O_EXCL, bytes, byte_count, put_beside, why);
}

/* Syncs the parent even if the folder existed already, because the process that made the folder may have
 * been killed before it synced the parent. If this daemon cannot write to the parent, it did not make the
 * folder, and syncs nothing. */
static cairn_status sync_parent(const char *path, bool made, struct sentence *why)
{
    char parent[PATH_MAX];
    parent_of(path, parent);
    if (!made && access(parent, R_OK | W_OK) != 0) return CAIRN_OK;
    return sync_folder(parent, why);
}

static cairn_status fail_to_make(const char *path, struct sentence *why)
{
    char here[PATH_MAX];
    const cairn_status status = fail_step(why, "making the folder", path);
    if (path[0] != '/' && getcwd(here, sizeof here) != NULL)
        sentence_add(why, "; that is %s/%s", here, path);
    return status;
}

static cairn_status make_one(const char *path, mode_t mode, struct sentence *why)
{
    const bool made = mkdir(path, mode) == 0;
    struct stat info;
    if (!made && errno != EEXIST) return fail_to_make(path, why);
    if (!made && (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)))
        return fail_with(why, CAIRN_ERR_IO, "%.300s is in the way: it is not a folder", path);
    const int fd = made ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    const int error = made ? file_mode_set(fd, mode) : 0;
    if (error != 0) {
        const cairn_status status = fail_step(why, "setting the mode of", path);
        if (fd >= 0) close(fd);
        return status;
    }
    if (fd >= 0) close(fd);
    return sync_parent(path, made, why);
}

cairn_status durable_folder(const char *path, mode_t mode, struct sentence *why)
{
    char part[PATH_MAX];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof part)
        return fail_with(why, CAIRN_ERR_INVALID, "\"%.100s\" is not a path", path);
    while (length > 1 && path[length - 1] == '/') length--;
    for (size_t i = 1; i <= length; i++) {
        if (i < length && (path[i] != '/' || path[i - 1] == '/')) continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        CAIRN_TRY(make_one(part, mode, why));
    }
    return CAIRN_OK;
}

static cairn_status refuse_locked(int fd, const char *folder, struct sentence *why)
{
    char pid[24] = "";
    const ssize_t n = pread(fd, pid, sizeof pid - 1, 0);
    pid[n > 0 ? n : 0] = '\0';
    pid[strcspn(pid, "\n")] = '\0';
    return fail_with(why, CAIRN_ERR_BUSY,
                     "the data folder %.300s is in use by process %s; stop it, or give this "
                     "daemon a folder of its own",
                     folder, pid[0] != '\0' ? pid : "?");
}

// The pid in the file is for people. The lock itself is the flock, which the kernel releases when the
// process ends.
static cairn_status lock_open(int fd, const char *folder, struct sentence *why)
{
    char pid[24];
    const int length = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) return refuse_locked(fd, folder, why);
        return fail_step(why, "locking the data folder", folder);
    }
    if (ftruncate(fd, 0) != 0 || !write_fully(fd, pid, (size_t)length) || fsync(fd) != 0)
        return fail_step(why, "writing the lock in the data folder", folder);
    return CAIRN_OK;
}

cairn_status durable_lock(const char *folder, int *lock_fd_out, struct sentence *why)
{
    char path[PATH_MAX];
    CAIRN_TRY(durable_folder(folder, 0700, why));
    if (snprintf(path, sizeof path, "%s/lock", folder) >= (int)sizeof path)
        return fail_with(why, CAIRN_ERR_INVALID, "the path %.100s... is too long", folder);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return fail_with(why, errno == ENOSPC ? CAIRN_ERR_NO_SPACE : CAIRN_ERR_IO,
                         "the data folder %.300s cannot be written: %s; give it to the user that "
                         "runs the daemon, or set another one",
                         folder, strerror(errno));
    cairn_status status = lock_open(fd, folder, why);
    if (status != CAIRN_OK) {
        close(fd);
        return status;
    }
    *lock_fd_out = fd;
    return CAIRN_OK;
}

void durable_unlock(int lock_fd)
{
    close(lock_fd); // the file stays, because a removal could hit the lock of the next process
}

/* ==== storage watch ==== */

#define AGAIN_MS 2000 /* the time between two checks while something is wrong */
#define HANGS_MS 3000 /* after this time the hang is reported */
#define CLOSE_MS 500  /* after this time the daemon ends without the thread */

/* One check. It is allocated apart from the watch, because the storage may hang for longer than the watch
 * exists. */
struct storage_look {
    struct task task;
    struct storage_watch *watch; /* borrowed; used by the loop only */
    cairn_status (*judge)(const char *path, uint64_t token, const struct storage_owner *owner,
                          struct sentence *why);
    struct storage_owner owner;
    char *path; /* owned */
    uint64_t token;
    cairn_status found;
    struct sentence why;
};

cairn_status storage_watch_open(struct storage_watch *watch, uv_loop_t *loop, struct sentence *why)
{
    watch->loop = loop;
    return pool_open(loop, "cairn-storage", 1, NULL, &watch->thread, why);
}

bool storage_watch_close(struct storage_watch *watch, void (*on_closed)(void *context),
                         void *context)
{
    if (watch->thread == NULL) return false;
    if (!pool_close_within(watch->thread, CLOSE_MS, on_closed, context)) watch->look = NULL;
    return true;
}

static void free_look(struct storage_look *look)
{
    if (look == NULL) return;
    free(look->path);
    free(look);
}

void storage_watch_release(struct storage_watch *watch)
{
    free(watch->path);
    free_look(watch->look);
}

static void run_look(struct task *task, uint32_t item, uint32_t thread)
{
    struct storage_look *look = (struct storage_look *)task;
    (void)item, (void)thread;
    look->found = look->judge(look->path, look->token, &look->owner, &look->why);
}

static void say(struct storage_watch *watch, const struct sentence *why)
{
    if (strcmp(watch->said.text, why->text) == 0) return;
    watch->said = *why;
    watch->on_said(watch);
}

static void look_again(struct storage_watch *watch);

static void on_looked(struct task *task)
{
    struct storage_look *look = (struct storage_look *)task;
    struct storage_watch *watch = look->watch;
    watch->is_looking = false;
    watch->since_ms = uv_now(watch->loop);
    if (watch->path == NULL) return;
    if (look->token != watch->token || look->owner.store != watch->owner.store ||
        strcmp(watch->path, look->path) != 0) {
        look_again(watch); // the folder or its owner has changed meanwhile
        return;
    }
    if (look->found == CAIRN_OK) look->why.text[0] = '\0';
    say(watch, &look->why);
}

static void look_again(struct storage_watch *watch)
{
    struct storage_look *next = calloc(1, sizeof *next);
    char *path = strdup(watch->path);
    if (next == NULL || path == NULL) {
        free(next);
        free(path);
        return; // no check now; if there is a fault, a snapshot will report it
    }
    *next = (struct storage_look) {
        .task = { .run = run_look, .done = on_looked, .item_count = 1 },
        .watch = watch,
        .judge = watch->judge,
        .owner = watch->owner,
        .path = path,
        .token = watch->token,
    };
    free_look(watch->look);
    watch->look = next;
    watch->is_looking = true;
    watch->since_ms = uv_now(watch->loop);
    pool_submit(watch->thread, &next->task);
}

void storage_watch_told(struct storage_watch *watch, const char *path, uint64_t token)
{
    free(watch->path);
    watch->path = token != 0 && path[0] == '/' ? strdup(path) : NULL;
    watch->token = token;
    // otherwise `said` is kept until the next check has ended
    if (watch->path == NULL) watch->said.text[0] = '\0';
    if (watch->path != NULL && !watch->is_looking) look_again(watch);
}

void storage_watch_doubt(struct storage_watch *watch)
{
    if (watch->path != NULL && !watch->is_looking) look_again(watch);
}

static void say_that_it_hangs(struct storage_watch *watch, uint64_t ms)
{
    struct sentence why;
    sentence_set(&why, "%s has not answered for %u s or more: its storage hangs; check the mount",
                 watch->path, (unsigned)(HANGS_MS / 1000));
    if (ms >= HANGS_MS) say(watch, &why);
}

void storage_watch_tick(struct storage_watch *watch)
{
    const uint64_t ms = uv_now(watch->loop) - watch->since_ms;
    if (watch->path == NULL) return;
    if (watch->is_looking)
        say_that_it_hangs(watch, ms);
    else if (watch->said.text[0] != '\0' && ms >= AGAIN_MS)
        look_again(watch);
}
