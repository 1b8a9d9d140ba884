/* Parts that are set aside. A process that dies three times within a minute of the same state may die of
 * what is in it; and state that another build keeps in another format cannot be used by this one, but by
 * that build, if it is put back. So no process is given it any more: the keeper goes on holding the
 * descriptors of the part, under names that begin with CAIRN_KEPT_ASIDE, until an operator has looked at it
 * (`cairn-shard --inspect`). STATE/NAME.aside says what is aside, and STATE/NAME.order what the next process
 * is to do with it.
 *
 * The keeper counts deaths, but does not know what a part is. So each part counts, in its ledger, the
 * processes that were given it since its last step, and a part that was trained meanwhile is left where it
 * is.
 *
 * A process may die anywhere in here. A descriptor has its new name before it loses the old one, and a part
 * of which one descriptor is aside is set aside as a whole by the next process. */
#include "server/shard/kept_aside.h"

#include <errno.h>
#include <fcntl.h>
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

#define PREFIX CAIRN_KEPT_ASIDE
#define WHY                                                                               \
    "the shard's process died with it three times within a minute, and no step was made " \
    "in between"

enum order { KEEP, DROP, RETURN };
enum { LIVES = 3 /* of processes that were given a part as it is, and died */ };

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

/* The list of what a process was handed. */
struct handed {
    struct kept_fd *fds; /* [count]; fd -1: dropped */
    size_t count;
};

static const char *name_of_part(const struct kept_fd *one)
{
    return is_aside(one) ? one->name + strlen(PREFIX) : one->name;
}

static void drop(struct kept_fd *one)
{
    kept_forget(one->name);
    close(one->fd);
    one->fd = -1;
}

/* Has the keeper hold the file under another name. The keeper takes no second name for a descriptor that it
 * has, so the file is opened again. Where that fails, or the keeper is full, the old name goes first. */
static cairn_status store_again(const struct kept_fd *one, const char *name, struct sentence *why)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", one->fd);
    const int again = open(path, O_RDWR | O_CLOEXEC);
    const cairn_status status = again >= 0 ? keeper_store(name, again, why) : CAIRN_ERR_IO;
    if (again >= 0) close(again);
    kept_forget(one->name);
    return status == CAIRN_OK ? CAIRN_OK : keeper_store(name, one->fd, why);
}

/* Drops it if it has that name already, because a process before died between the two messages. */
static void rename_held(const struct handed *all, struct kept_fd *one, const char *name)
{
    struct sentence why;
    for (size_t i = 0; i < all->count; i++) {
        if (all->fds[i].fd < 0 || strcmp(all->fds[i].name, name) != 0) continue;
        drop(one);
        return;
    }
    if (store_again(one, name, &why) != CAIRN_OK)
        log_error("%s is not kept any more: %s", one->name, why.text);
    snprintf(one->name, sizeof one->name, "%s", name);
}

static void set_aside(const struct handed *all, struct kept_fd *one)
{
    char name[CAIRN_KEEPER_NAME_MAX + 1];
    const int length = snprintf(name, sizeof name, PREFIX "%s", one->name);
    if (length < (int)sizeof name) rename_held(all, one, name);
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

static int find_fd(const struct handed *all, uint32_t part, char what, uint32_t edition)
{
    char name[CAIRN_KEEPER_NAME_MAX + 1];
    kept_name_edition(name, part, what, edition);
    for (size_t i = 0; i < all->count; i++)
        if (strcmp(name_of_part(&all->fds[i]), name) == 0) return all->fds[i].fd;
    return -1;
}

static bool is_record_aside(const struct kept_fd *one)
{
    return one->fd >= 0 && is_aside(one) && kept_name_read(name_of_part(one)).what == 'r';
}

/* Describes the part of a record, a line: nothing in it is used but its head. */
static void describe_part(FILE *to, const struct handed *all, const struct kept_fd *head)
{
    const struct kept_record *record;
    struct sentence why;
    const uint32_t part = kept_name_read(name_of_part(head)).part;
    uint64_t bytes = 0;
    size_t fd_count = 0;
    for (size_t i = 0; i < all->count; i++) {
        struct stat is;
        const struct kept_fd *one = &all->fds[i];
        if (one->fd < 0 || !is_aside(one)) continue;
        if (kept_name_read(name_of_part(one)).part != part) continue;
        fd_count++;
        if (fstat(one->fd, &is) == 0) bytes += (uint64_t)is.st_size;
    }
    if (kept_record_read(head->fd, &record, &why) != CAIRN_OK) {
        fprintf(to, "a part: %s; %zu descriptors, %" PRIu64 " bytes\n", why.text, fd_count, bytes);
        return;
    }
    const struct cairn_version version = version_of(
        find_fd(all, part, 'l', record->ledger_edition));
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
static size_t describe(const char *state, const char *shard, const struct handed *all)
{
    char path[PATH_MAX];
    size_t parts = 0;
    path_of(state, shard, "aside", path);
    for (size_t i = 0; i < all->count; i++) parts += is_record_aside(&all->fds[i]);
    FILE *file = parts > 0 ? make_file(path) : NULL;
    if (parts == 0) (void)unlink(path);
    if (parts > 0 && file == NULL) log_error("cannot write %s: %s", path, strerror(errno));
    if (file == NULL) return parts;
    for (size_t i = 0; i < all->count; i++)
        if (is_record_aside(&all->fds[i])) describe_part(file, all, &all->fds[i]);
    fclose(file);
    return parts;
}

/* ---- lives ---- */

/* Reads the head of the newest record of a part. Returns false if there is none. */
static bool read_head(const struct handed *all, uint32_t part, struct kept_record *head_out)
{
    uint32_t edition = 0;
    for (size_t i = 0; i < all->count; i++) {
        if (!kept_name_may_be(all->fds[i].name, part, 'r')) continue;
        const struct kept_name name = kept_name_read(all->fds[i].name);
        if (name.what == 'r' && name.number > edition) edition = name.number;
    }
    const int record = find_fd(all, part, 'r', edition);
    return record >= 0 && pread(record, head_out, sizeof *head_out, 0) == (ssize_t)sizeof *head_out;
}

/* True if a record is one of another build, in a format that this build does not read. */
static bool is_strange(const struct kept_record *head)
{
    const struct kept_head known = kept_head(0);
    return memcmp(head->head.magic, known.magic, sizeof known.magic) == 0 &&
           head->head.format != KEPT_VOID_FORMAT && !kept_head_is_known(&head->head);
}

/* The ledger of the newest record of a part, mapped; the caller unmaps *bytes_out. NULL: there is none that
 * can be read. */
static struct kept_ledger *map_ledger(const struct handed *all, uint32_t part, uint64_t *bytes_out)
{
    struct kept_record head;
    if (!read_head(all, part, &head)) return NULL;
    struct kept_ledger *ledger = kept_map(find_fd(all, part, 'l', head.ledger_edition),
                                          sizeof *ledger, PROT_READ | PROT_WRITE, bytes_out);
    if (ledger == NULL || kept_head_is_known(&ledger->head)) return ledger;
    munmap(ledger, (size_t)*bytes_out);
    return NULL;
}

/* True if so many processes were given the part as it is now; also if nobody can tell. */
static bool stood_still(const struct handed *all, uint32_t part)
{
    uint64_t bytes;
    struct kept_ledger *ledger = map_ledger(all, part, &bytes);
    const bool is_still = ledger == NULL || ledger->lives >= LIVES;
    if (ledger != NULL) munmap(ledger, (size_t)bytes);
    return is_still;
}

/* Notes that this process is given each of these parts, before it looks into any of them. */
static void note_lives(const struct handed *all)
{
    for (size_t i = 0; i < all->count; i++) {
        uint64_t bytes;
        const struct kept_name name = kept_name_read(all->fds[i].name);
        if (name.what != 'l') continue;
        struct kept_ledger *ledger = map_ledger(all, name.part, &bytes);
        if (ledger == NULL) continue;
        if (ledger->head.edition == name.number) ledger->lives++;
        munmap(ledger, (size_t)bytes);
    }
}

/* ---- at a start ---- */

static void obey(const struct handed *all, enum order order)
{
    char name[CAIRN_KEEPER_NAME_MAX + 1];
    for (size_t i = 0; i < all->count && order != KEEP; i++) {
        struct kept_fd *one = &all->fds[i];
        if (!is_aside(one)) continue;
        snprintf(name, sizeof name, "%s", name_of_part(one));
        if (order == RETURN)
            rename_held(all, one, name);
        else
            drop(one);
    }
    if (order != KEEP)
        log_warn("what was set aside is %s, as an operator wants",
                 order == DROP ? "dropped" : "used again");
}

/* True if some descriptor of the part is aside: a process before set out to do that with all of them. */
static bool is_begun(const struct handed *all, uint32_t part)
{
    for (size_t i = 0; i < all->count; i++)
        if (all->fds[i].fd >= 0 && is_aside(&all->fds[i]) &&
            kept_name_read(name_of_part(&all->fds[i])).part == part)
            return true;
    return false;
}

/* True if another build keeps the part. */
static bool is_of_another(const struct handed *all, uint32_t part)
{
    struct kept_record head;
    return read_head(all, part, &head) && is_strange(&head);
}

/* The same, for one record of each part: a start looks at all descriptors. */
static bool is_record_of_another(const struct handed *all, const struct kept_fd *one)
{
    const struct kept_name name = kept_name_read(one->name);
    return name.what == 'r' && is_of_another(all, name.part);
}

static void set_parts_aside(const struct handed *all, bool is_refused)
{
    for (size_t i = 0; i < all->count; i++) {
        const struct kept_name name = kept_name_read(all->fds[i].name);
        if (all->fds[i].fd < 0 || name.what == 0) continue;
        if (!is_begun(all, name.part) && !is_of_another(all, name.part) &&
            !(is_refused && stood_still(all, name.part)))
            continue;
        // From the first one on, the part has begun to be set aside.
        set_aside(all, &all->fds[i]);
    }
}

/* Leaves those out that were dropped, and those that are set aside, which only the keeper has then. Returns
 * how many are left; *parts_out is at least the highest number of a part. */
static size_t leave_out(const struct handed *all, uint32_t *parts_out)
{
    size_t left = 0;
    for (size_t i = 0; i < all->count; i++) {
        struct kept_fd *one = &all->fds[i];
        if (one->fd >= 0 && !is_aside(one)) {
            all->fds[left++] = *one;
            continue;
        }
        const struct kept_name name = kept_name_read(name_of_part(one));
        if (one->fd >= 0 && name.part > *parts_out) *parts_out = name.part;
        if (one->fd >= 0) close(one->fd);
    }
    return left;
}

/* Says for each part of another build that it is set aside, and how it may be used. Returns how many there
 * are. */
static size_t report_others(const struct handed *all)
{
    size_t parts = 0;
    for (size_t i = 0; i < all->count; i++) {
        struct kept_record head;
        const struct kept_fd *one = &all->fds[i];
        if (!is_record_aside(one) ||
            pread(one->fd, &head, sizeof head, 0) != (ssize_t)sizeof head || !is_strange(&head))
            continue;
        parts++;
        log_error(
            "a part of a job is set aside: build %.*s keeps state in format %u, and this build "
            "reads %d; to go on with it, start that build again, and give the part back by "
            "`cairn-shard --inspect`; else its job is restored from a snapshot by its "
            "on_shard_loss, or by `cairn snapshot restore`",
            KEPT_BUILD_BYTES, head.build, head.head.format, KEPT_FORMAT);
    }
    return parts;
}

size_t kept_set_aside(const char *state, const char *shard, struct kept_fd *fds, size_t count,
                      bool is_refused, uint32_t *parts_out)
{
    struct handed all = { .fds = fds, .count = count };
    size_t aside = 0;
    for (size_t i = 0; i < count; i++)
        aside += is_aside(&fds[i]) || is_record_of_another(&all, &fds[i]);
    if (aside > 0 || is_refused) {
        const enum order order = aside > 0 ? take_order(state, shard) : KEEP;
        obey(&all, order);
        set_parts_aside(&all, is_refused && order != RETURN);
        size_t parts = describe(state, shard, &all);
        parts -= report_others(&all);
        if (parts > 0)
            log_error("parts of %zu jobs are set aside, because %s: their memory is kept for a "
                      "look, and the jobs are restored from snapshots by their on_shard_loss, or "
                      "by `cairn snapshot restore`; `cairn-shard --inspect` says what they are, "
                      "drops them or gives them back",
                      parts, WHY);
        all.count = leave_out(&all, parts_out);
    }
    note_lives(&all);
    return all.count;
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
