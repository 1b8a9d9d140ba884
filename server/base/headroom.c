#include "server/base/headroom.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The kernel needs memory beside the pages themselves, for tables of pages, of files and of its
 * own. */
#define BESIDE_PART  128
#define BESIDE_BYTES ((uint64_t)8 << 20)

/* A version of control groups: where it says what. */
struct groups {
    const char *file_system, *controller; /* controller: NULL for the one hierarchy of v2 */
    const char *limit, *usage, *reclaimable;
};

static const struct groups v1 = { "cgroup", "memory", "memory.limit_in_bytes",
                                  "memory.usage_in_bytes", "total_inactive_file" };
static const struct groups v2 = { "cgroup2", NULL, "memory.max", "memory.current",
                                  "inactive_file" };

/* The number in a file; of the line that begins with `key`, if there is one. "max" is no limit. */
static bool read_number(const char *folder, const char *name, const char *key, uint64_t *out)
{
    char path[PATH_MAX], line[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    const size_t skip = key != NULL ? strlen(key) : 0;
    bool found = false;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        const char *at = line + skip;
        if (key != NULL && (strncmp(line, key, skip) != 0 || (*at != ' ' && *at != ':'))) continue;
        if (*at == ':') at++;
        char *end;
        const bool is_max = strncmp(at, "max", 3) == 0;
        *out = is_max ? UINT64_MAX : strtoull(at, &end, 10);
        found = is_max || end != at;
    }
    fclose(file);
    return found;
}

static void note(struct cairn_headroom *room, const char *by, uint64_t limit, uint64_t in_use)
{
    const uint64_t available = in_use < limit ? limit - in_use : 0;
    if (limit < room->most_bytes) room->most_bytes = limit;
    if (available >= room->available_bytes) return;
    room->available_bytes = available;
    room->limit_bytes = limit;
    snprintf(room->by, sizeof room->by, "%s", by);
}

static void note_group(struct cairn_headroom *room, const struct groups *groups, const char *root,
                       const char *folder)
{
    uint64_t limit, usage, reclaimable = 0;
    if (!read_number(folder, groups->limit, NULL, &limit) || limit == UINT64_MAX ||
        !read_number(folder, groups->usage, NULL, &usage))
        return; // the first of all has none
    (void)read_number(folder, "memory.stat", groups->reclaimable, &reclaimable);
    note(room, folder + strlen(root), limit, usage > reclaimable ? usage - reclaimable : 0);
}

/* Is the word in a list with commas between? */
static bool has_word(const char *list, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = list; *at != '\0'; at += strcspn(at, ",\n"), at += *at != '\0')
        if (strncmp(at, word, length) == 0 && strcspn(at, ",\n") == length) return true;
    return false;
}

/* The process's group, as /proc/self/cgroup says it: "number:controllers:path". */
static bool find_group(const char *root, const struct groups *groups, char out[PATH_MAX])
{
    char path[PATH_MAX], line[PATH_MAX + 256], controllers[256];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    bool found = false;
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        const char *first = strchr(line, ':');
        const char *second = first != NULL ? strchr(first + 1, ':') : NULL;
        if (second == NULL) continue;
        snprintf(controllers, sizeof controllers, "%.*s", (int)(second - first - 1), first + 1);
        found = groups->controller == NULL ? controllers[0] == '\0'
                                           : has_word(controllers, groups->controller);
        snprintf(out, PATH_MAX, "%.*s", (int)strcspn(second + 1, "\n"), second + 1);
    }
    if (file != NULL) fclose(file);
    return found;
}

/* Where the hierarchy is mounted, and which group that is: /proc/self/mountinfo. */
static bool find_mount(const char *root, const struct groups *groups, char top[PATH_MAX],
                       char mount[PATH_MAX])
{
    char path[PATH_MAX], line[2 * PATH_MAX], kind[64], options[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
    FILE *file = fopen(path, "re");
    bool found = false;
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        const char *rest = strstr(line, " - ");
        found = rest != NULL && sscanf(line, "%*s %*s %*s %4095s %4095s", top, mount) == 2 &&
                sscanf(rest, " - %63s %*s %4095s", kind, options) == 2 &&
                strcmp(kind, groups->file_system) == 0 &&
                (groups->controller == NULL || has_word(options, groups->controller));
    }
    if (file != NULL) fclose(file);
    return found;
}

/* The group and those above it, up to the one that is mounted. */
static void note_groups(struct cairn_headroom *room, const struct groups *groups, const char *root)
{
    char group[PATH_MAX], top[PATH_MAX], mount[PATH_MAX], folder[3 * PATH_MAX];
    if (!find_group(root, groups, group) || !find_mount(root, groups, top, mount)) return;
    const size_t above = strcmp(top, "/") == 0 ? 0 : strlen(top);
    const bool is_below = strncmp(group, top, above) == 0 &&
                          (group[above] == '/' || group[above] == '\0') &&
                          strstr(group, "/..") == NULL;
    const char *below = is_below ? group + above : "";
    snprintf(folder, sizeof folder, "%s%s%s", root, mount, strcmp(below, "/") == 0 ? "" : below);
    const size_t shortest = strlen(root) + strlen(mount);
    for (;;) {
        note_group(room, groups, root, folder);
        char *slash = strrchr(folder, '/');
        if (slash == NULL || strlen(folder) <= shortest) return;
        *slash = '\0';
        if (strlen(folder) < shortest) return;
    }
}

cairn_status cairn_headroom_read(const char *root, struct cairn_headroom *room_out,
                                 struct cairn_sentence *why)
{
    char proc[PATH_MAX];
    uint64_t total_kib, available_kib;
    snprintf(proc, sizeof proc, "%s/proc", root);
    if (!read_number(proc, "meminfo", "MemTotal", &total_kib) ||
        !read_number(proc, "meminfo", "MemAvailable", &available_kib))
        return cairn_fail(why, CAIRN_ERR_IO, "cannot read from %s/meminfo what memory there is: %s",
                          proc, strerror(errno));
    struct cairn_headroom room = { .available_bytes = UINT64_MAX, .most_bytes = UINT64_MAX };
    note(&room, "the host's RAM", total_kib * 1024,
         total_kib > available_kib ? (total_kib - available_kib) * 1024 : 0);
    note_groups(&room, &v1, root);
    note_groups(&room, &v2, root);
    *room_out = room;
    return CAIRN_OK;
}

cairn_status cairn_headroom_judge(const struct cairn_headroom *room, uint64_t bytes,
                                  const char *what, struct cairn_sentence *why)
{
    const uint64_t beside = bytes / BESIDE_PART + BESIDE_BYTES;
    const uint64_t left = room->available_bytes;
    if (bytes == 0 || (beside <= left && bytes <= left - beside)) return CAIRN_OK;
    return cairn_fail(
        why, CAIRN_ERR_NO_MEMORY,
        "%s needs %" PRIu64 " bytes and %" PRIu64 " beside them, and %" PRIu64
        " are available: of %s, which has %" PRIu64
        ", the rest is in use. Give it more, end what uses it, or add shards on other hosts",
        what, bytes, beside, left, room->by, room->limit_bytes);
}
