/* Parts that are set aside. A process that dies three times within a minute with the same parts may die of
 * what is in them. So no process is given them any more: the keeper goes on holding their descriptors, under
 * names that begin with "aside-", until an operator has looked at them (`cairn-shard --inspect`).
 * STATE/NAME.aside says what they are, and STATE/NAME.order what the next process is to do with them. */
#include "server/shard/kept_aside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/base/log.h"
#include "server/shard/join.h"
#include "server/shard/kept_file.h"

#define PREFIX "aside-"
#define WHY    "the shard's process died with it three times within a minute"

enum order { KEEP, DROP, RETURN };

static const char *const order_words[] = { [DROP] = "drop", [RETURN] = "return" };

static void path_of(const char *state, const char *shard, const char *ending, char out[PATH_MAX])
{
    char folder[PATH_MAX];
    join_state_folder(state != NULL ? state : "", folder);
    const int length = snprintf(out, PATH_MAX, "%s/%s.%s", folder, shard, ending);
    if (length >= PATH_MAX) out[0] = '\0'; // no such file can be made, either
}

/* Reads the order, and forgets it: one that is carried out twice would drop other parts. */
static enum order take_order(const char *state, const char *shard)
{
    char path[PATH_MAX], word[16] = "";
    enum order order = KEEP;
    path_of(state, shard, "order", path);
    FILE *file = fopen(path, "re");
    if (file == NULL) return KEEP;
    if (fscanf(file, "%15s", word) == 1)
        for (enum order o = DROP; o <= RETURN; o++)
            if (strcmp(word, order_words[o]) == 0) order = o;
    fclose(file);
    if (unlink(path) == 0) return order;
    log_error("%s is not obeyed: it cannot be removed: %s", path, strerror(errno));
    return KEEP;
}

/* ---- with the keeper ---- */

static bool is_aside(const struct kept_fd *one)
{
    return strncmp(one->name, PREFIX, strlen(PREFIX)) == 0;
}

/* The keeper takes a descriptor that it has under no second name. */
static void rename_held(struct kept_fd *one, const char *name)
{
    struct sentence why;
    kept_forget(one->name);
    snprintf(one->name, sizeof one->name, "%s", name);
    if (keeper_store(one->name, one->fd, &why) != CAIRN_OK)
        log_error("%s is not kept any more: %s", one->name, why.text);
}

static void set_aside(struct kept_fd *one)
{
    char name[CAIRN_KEEPER_NAME_MAX + 1];
    if (is_aside(one)) return;
    const int length = snprintf(name, sizeof name, PREFIX "%s", one->name);
    if (length < (int)sizeof name) rename_held(one, name);
}

/* ---- what they are ---- */

static struct cairn_version version_of(int fd)
{
    uint64_t bytes;
    struct cairn_version version = { 0 };
    const struct kept_ledger *ledger = kept_map(fd, sizeof *ledger, PROT_READ, &bytes);
    if (ledger == NULL) return version;
    if (kept_head_is_known(&ledger->head) && kept_ledger_is_whole(ledger, bytes))
        version = kept_last(ledger)->version;
    munmap((void *)(uintptr_t)ledger, (size_t)bytes);
    return version;
}

static int find_fd(const struct kept_fd *fds, size_t count, uint32_t part, char what,
                   uint32_t edition)
{
    char name[CAIRN_KEEPER_NAME_MAX + 1];
    kept_name_edition(name, part, what, edition);
    for (size_t i = 0; i < count; i++)
        if (is_aside(&fds[i]) && strcmp(fds[i].name + strlen(PREFIX), name) == 0) return fds[i].fd;
    return -1;
}

/* Describes the part of a record, a line: nothing in it is used but its head. */
static void describe_part(FILE *to, const struct kept_fd *fds, size_t count, size_t record_at)
{
    const struct kept_record *record;
    struct sentence why;
    const uint32_t part = kept_name_read(fds[record_at].name + strlen(PREFIX)).part;
    uint64_t bytes = 0;
    size_t fd_count = 0;
    for (size_t i = 0; i < count; i++) {
        struct stat is;
        if (!is_aside(&fds[i])) continue;
        if (kept_name_read(fds[i].name + strlen(PREFIX)).part != part) continue;
        fd_count++;
        if (fstat(fds[i].fd, &is) == 0) bytes += (uint64_t)is.st_size;
    }
    if (kept_record_read(fds[record_at].fd, &record, &why) != CAIRN_OK) {
        fprintf(to, "a part: %s; %zu descriptors, %" PRIu64 " bytes; %s\n", why.text, fd_count,
                bytes, WHY);
        return;
    }
    const struct cairn_version version = version_of(
        find_fd(fds, count, part, 'l', record->ledger_edition));
    fprintf(to,
            "job %.*s (%016" PRIx64 "), layout %" PRIu64 ", version %" PRIu64 ".%" PRIu64
            ", format %u of build %.*s; %zu descriptors, %" PRIu64 " bytes; %s\n",
            CAIRN_NAME_MAX, record->name, record->job, record->layout, version.generation,
            version.step, record->head.format, KEPT_BUILD_BYTES, record->build, fd_count, bytes,
            WHY);
    munmap((void *)(uintptr_t)record, (size_t)record->bytes);
}

/* Nobody may have needed the folder of the shard's state yet. */
static FILE *make_file(const char *path)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *end = strrchr(folder, '/');
    if (end != NULL) *end = '\0';
    (void)mkdir(folder, 0700);
    return fopen(path, "we");
}

/* Writes what is set aside, or removes the file if nothing is. Returns how many parts there are. */
static size_t describe(const char *state, const char *shard, const struct kept_fd *fds,
                       size_t count)
{
    char path[PATH_MAX];
    size_t parts = 0;
    path_of(state, shard, "aside", path);
    for (size_t i = 0; i < count; i++)
        parts += is_aside(&fds[i]) && kept_name_read(fds[i].name + strlen(PREFIX)).what == 'r';
    FILE *file = parts > 0 ? make_file(path) : NULL;
    if (parts == 0) (void)unlink(path);
    if (parts > 0 && file == NULL) log_error("cannot write %s: %s", path, strerror(errno));
    if (file == NULL) return parts;
    for (size_t i = 0; i < count; i++)
        if (is_aside(&fds[i]) && kept_name_read(fds[i].name + strlen(PREFIX)).what == 'r')
            describe_part(file, fds, count, i);
    fclose(file);
    return parts;
}

/* ---- at a start ---- */

static void obey(struct kept_fd *one, enum order order)
{
    char name[CAIRN_KEEPER_NAME_MAX + 1];
    if (!is_aside(one) || order == KEEP) return;
    if (order == RETURN) {
        snprintf(name, sizeof name, "%s", one->name + strlen(PREFIX));
        rename_held(one, name);
        return;
    }
    kept_forget(one->name);
    close(one->fd);
    one->fd = -1;
}

/* Leaves those out that were dropped, and those that are set aside, which only the keeper has then. Returns
 * how many are left; *parts_out is at least the highest number of a part. */
static size_t leave_out(struct kept_fd *fds, size_t count, uint32_t *parts_out)
{
    size_t left = 0;
    for (size_t i = 0; i < count; i++) {
        if (fds[i].fd >= 0 && !is_aside(&fds[i])) {
            fds[left++] = fds[i];
            continue;
        }
        const struct kept_name name = kept_name_read(fds[i].name + strlen(PREFIX));
        if (fds[i].fd >= 0 && name.part > *parts_out) *parts_out = name.part;
        if (fds[i].fd >= 0) close(fds[i].fd);
    }
    return left;
}

size_t kept_set_aside(const char *state, const char *shard, struct kept_fd *fds, size_t count,
                      bool is_refused, uint32_t *parts_out)
{
    size_t aside = 0, dropped = 0;
    for (size_t i = 0; i < count; i++) aside += is_aside(&fds[i]);
    if (aside == 0 && !is_refused) return count;
    const enum order order = aside > 0 ? take_order(state, shard) : KEEP;
    for (size_t i = 0; i < count; i++) obey(&fds[i], order);
    if (order != KEEP)
        log_warn("what was set aside is %s, as an operator wants",
                 order == DROP ? "dropped" : "used again");
    for (size_t i = 0; i < count && is_refused && order != RETURN; i++)
        if (fds[i].fd >= 0) set_aside(&fds[i]);
    for (size_t i = 0; i < count; i++) dropped += fds[i].fd < 0;
    const size_t parts = dropped == count ? describe(state, shard, fds, 0)
                                          : describe(state, shard, fds, count);
    if (parts > 0)
        log_error("parts of %zu jobs are set aside, because %s: their memory is kept for a look, "
                  "and the jobs are "
                  "restored from snapshots by their on_shard_loss, or by `cairn snapshot restore`; "
                  "`cairn-shard "
                  "--inspect` says what they are, drops them or gives them back",
                  parts, WHY);
    return leave_out(fds, count, parts_out);
}

/* ---- the command ---- */

static int usage(void)
{
    fprintf(stderr, "usage: cairn-shard --inspect NAME [--state FOLDER] [drop|return]\n");
    return 2;
}

static int write_order(const char *state, const char *shard, const char *word)
{
    char path[PATH_MAX];
    path_of(state, shard, "order", path);
    FILE *file = fopen(path, "we");
    const bool is_written = file != NULL && fprintf(file, "%s\n", word) > 0;
    if (file == NULL || fclose(file) != 0 || !is_written) {
        fprintf(stderr, "cairn-shard: cannot write %s: %s\n", path, strerror(errno));
        return 1;
    }
    printf("shard %s %s it when it starts next: `systemctl restart`, or SIGUSR2 to its keeper\n",
           shard, strcmp(word, "drop") == 0 ? "drops" : "uses");
    return 0;
}

int kept_inspect_main(int argc, char **argv)
{
    char path[PATH_MAX], line[1024];
    const bool has_state = argc > 4 && strcmp(argv[3], "--state") == 0;
    const char *state = has_state ? argv[4] : "";
    const int at = has_state ? 5 : 3;
    if (argc < 3 || argc > at + 1) return usage();
    const char *word = argc > at ? argv[at] : NULL;
    if (word != NULL && strcmp(word, "drop") != 0 && strcmp(word, "return") != 0) return usage();
    path_of(state, argv[2], "aside", path);
    FILE *file = fopen(path, "re");
    if (file == NULL && errno != ENOENT) {
        fprintf(stderr, "cairn-shard: cannot read %s: %s\n", path, strerror(errno));
        return 1;
    }
    if (file == NULL) {
        printf("nothing of shard %s is set aside\n", argv[2]);
        return word == NULL ? 0 : 1;
    }
    while (fgets(line, sizeof line, file) != NULL) fputs(line, stdout);
    fclose(file);
    return word == NULL ? 0 : write_order(state, argv[2], word);
}
