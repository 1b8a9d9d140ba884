/* cairn local: programs, its folder, its files. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "client/ctl/local/local.h"
#include "proto/loop/address.h"

/* ---- programs ---- */

static bool is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* As execvp looks. */
static bool find_in_path(const char *name, char path_out[PATH_MAX])
{
    const char *from = getenv("PATH");
    while (from != NULL) {
        const size_t length = strcspn(from, ":");
        const int written = snprintf(path_out, PATH_MAX, "%.*s%s%s", (int)length, from,
                                     length > 0 ? "/" : "", name);
        if (written > 0 && written < PATH_MAX && is_program(path_out)) return true;
        from = from[length] == ':' ? from + length + 1 : NULL;
    }
    return false;
}

bool cairn_local_command_is_there(const char *command)
{
    char path[PATH_MAX];
    return strchr(command, '/') != NULL ? access(command, X_OK) == 0 : find_in_path(command, path);
}

bool cairn_local_program_find(const char *name, char path_out[PATH_MAX], struct cairn_sentence *why)
{
    char found[PATH_MAX] = "";
    const ssize_t length = readlink("/proc/self/exe", found, sizeof found - 64);
    char *slash = length > 0 ? strrchr(found, '/') : NULL;
    if (slash != NULL) snprintf(slash + 1, 64, "%s", name);
    if ((slash != NULL && is_program(found)) || find_in_path(name, found))
        if (realpath(found, path_out) != NULL) return true; // the daemons run in another folder
    cairn_sentence_set(
        why, "there is no %s beside this program and none in PATH; build or install it", name);
    return false;
}

bool cairn_local_library_find(char path_out[PATH_MAX])
{
    char found[PATH_MAX] = "";
    const ssize_t length = readlink("/proc/self/exe", found, sizeof found - 64);
    char *slash = length > 0 ? strrchr(found, '/') : NULL;
    if (slash == NULL) return false;
    snprintf(slash + 1, 64, "../lib/libcairn.so.0");
    return realpath(found, path_out) != NULL;
}

/* ---- the folder ---- */

static bool make_temporary(struct local *local, struct cairn_sentence *why)
{
    const char *parent = getenv("TMPDIR");
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s/cairn-local.XXXXXX",
             parent != NULL && parent[0] != 0 ? parent : "/tmp");
    if (mkdtemp(folder) == NULL) {
        cairn_sentence_set(why, "no temporary folder %s: %s; is TMPDIR right?", folder,
                           strerror(errno));
        return false;
    }
    local->is_temporary = realpath(folder, local->folder) != NULL;
    return local->is_temporary;
}

static bool take_kept(struct local *local, struct cairn_sentence *why)
{
    const char *keep = local->ctl->keep;
    if ((mkdir(keep, 0700) == 0 || errno == EEXIST) && realpath(keep, local->folder) != NULL &&
        access(local->folder, R_OK | W_OK | X_OK) == 0)
        return true;
    cairn_sentence_set(why, "--keep %s: %s; give a folder that can be written, or made", keep,
                       strerror(errno));
    local->folder[0] = 0;
    return false;
}

/* In the folder, if a socket's address and a line of the configuration can hold that name. */
static bool place_socket(struct local *local, struct cairn_sentence *why)
{
    snprintf(local->socket, sizeof local->socket, "%s/coordinator.sock", local->folder);
    if (strlen(local->socket) <= CAIRN_ADDRESS_PATH_BYTES &&
        local->socket[strcspn(local->socket, " \t\r\n;")] == 0)
        return true;
    snprintf(local->socket_folder, sizeof local->socket_folder, "/tmp/cairn-local.XXXXXX");
    if (mkdtemp(local->socket_folder) == NULL) {
        local->socket_folder[0] = 0;
        cairn_sentence_set(why, "no folder in /tmp for the socket: %s", strerror(errno));
        return false;
    }
    snprintf(local->socket, sizeof local->socket, "%s/coordinator.sock", local->socket_folder);
    return true;
}

bool cairn_local_folder_make(struct local *local, struct cairn_sentence *why)
{
    const bool is_there = local->ctl->keep != NULL ? take_kept(local, why)
                                                   : make_temporary(local, why);
    return is_there && place_socket(local, why);
}

bool cairn_local_import_find(struct local *local, struct cairn_sentence *why)
{
    const char *given = local->ctl->import;
    if (realpath(given != NULL ? given : ".", local->import) == NULL) {
        local->import[0] = 0;
        cairn_sentence_set(why, "--import %s: %s", given, strerror(errno));
        return given == NULL;
    }
    // ':' stands between two folders there, ';' may begin a comment.
    if (local->import[strcspn(local->import, ":;\r\n")] == 0) return true;
    cairn_sentence_set(why, "--import %s: a folder without : and ; in its name is allowed",
                       local->import);
    local->import[0] = 0;
    return given == NULL;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    (void)st;
    (void)type;
    (void)walk;
    if (remove(path) != 0) fprintf(stderr, "cairn local: %s stays: %s\n", path, strerror(errno));
    return 0;
}

void cairn_local_folder_remove(struct local *local)
{
    if (local->socket_folder[0] != 0) {
        unlink(local->socket); // of a coordinator that was killed
        rmdir(local->socket_folder);
        local->socket_folder[0] = 0;
    }
    if (!local->is_temporary) return;
    nftw(local->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    local->is_temporary = false;
}

/* ---- files ---- */

bool cairn_local_file_write(const char *path, const char *text, struct cairn_sentence *why)
{
    char part[PATH_MAX + 16];
    snprintf(part, sizeof part, "%s.part", path);
    FILE *file = fopen(part, "we");
    bool whole = file != NULL && fputs(text, file) >= 0;
    if (file != NULL && fclose(file) != 0) whole = false;
    if (whole && rename(part, path) == 0) return true;
    cairn_sentence_set(why, "%s cannot be written: %s", path, strerror(errno));
    unlink(part);
    return false;
}

/* A shard's share of four fifths of the memory, in MiB. */
static unsigned long long memory_mib(int shards)
{
    struct sysinfo info;
    if (sysinfo(&info) != 0) return 1024;
    const unsigned long long mib = (unsigned long long)info.totalram * info.mem_unit >> 20;
    const unsigned long long share = mib / 5 * 4 / (unsigned long long)shards;
    return share > 0 ? share : 1;
}

/* Behind what was written to the text. */
static void add(char *text, size_t text_bytes, const char *format, const char *value)
{
    const size_t used = strlen(text);
    snprintf(text + used, text_bytes - used, format, value);
}

static long threads(const struct local *local, int shards)
{
    if (local->threads > 0) return (long)local->threads;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN) / shards;
    return cores < 1 ? 1 : cores > 8 ? 8 : cores;
}

bool cairn_local_config_write(const struct local *local, const char *name,
                              struct cairn_sentence *why)
{
    char path[PATH_MAX + 32], text[2 * PATH_MAX + 1024], home[320] = "";
    const int shards = local->daemon_count - 1;
    snprintf(path, sizeof path, "%s/%s.conf", local->folder, name);
    if (local->backend != NULL)
        snprintf(home, sizeof home, "backend = %s\n%s%s%s", local->backend,
                 local->device != NULL ? "device = " : "",
                 local->device != NULL ? local->device : "", local->device != NULL ? "\n" : "");
    if (local->endpoint[0] == 0)
        snprintf(text, sizeof text,
                 "# Made by cairn local. Paths are of this folder.\n[cluster]\nname = local\n"
                 "shards = %d\n[store]\npath = coordinator\n[snapshots]\npath = snapshots\n"
                 "[network]\nlisten = %s\n",
                 shards, local->socket);
    else
        snprintf(text, sizeof text,
                 "# Made by cairn local.\n[shard]\nname = %s\ncoordinator = %s\n[memory]\n"
                 "limit = %lluMiB\n[compute]\nthreads = %ld\n%s[import]\nfolders = %s\n",
                 name, local->endpoint, memory_mib(shards), threads(local, shards), home,
                 local->import);
    if (local->is_debug) add(text, sizeof text, "[log]\nlevel = %s\n", "debug");
    // A bench with --path measures that fabric, so the shards have to use it.
    if (local->endpoint[0] != 0 && local->ctl->path != NULL)
        add(text, sizeof text, "[fabric]\nkind = %s\n", local->ctl->path);
    return cairn_local_file_write(path, text, why);
}

bool cairn_local_ready_read(const struct local *local, const char *name, char *line_out,
                            size_t line_bytes)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s.ready", local->folder, name);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    const bool is_there = fgets(line_out, (int)line_bytes, file) != NULL;
    fclose(file);
    if (is_there) line_out[strcspn(line_out, "\n")] = 0;
    return is_there;
}
