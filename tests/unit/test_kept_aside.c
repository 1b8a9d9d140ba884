/* A shard sets parts aside by giving their descriptors other names with its keeper, and may die before any
 * of the messages that this takes. Here the process is a child, and the keeper is its messages: as many of
 * them as arrive. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/shard/kept_aside.h"
#include "server/shard/kept_file.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

enum { FILES = 6, HELD_MAX = 4 * FILES, TEXT_BYTES = 256, MOST = 1000 };

static const char *const names[FILES] = { "1.r2", "1.l2", "1.p0.0", "1.p2.0", "3.r7", "3.l7" };

/* What the keeper holds. */
static struct {
    struct kept_fd one[HELD_MAX];
    size_t count;
} held;
static ino_t inodes[FILES];
static char folder[CAIRN_SCRATCH_BYTES];
static int keeper;

static void set_up(void)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    cairn_scratch_make(folder);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/keeper", folder);
    keeper = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(keeper, (struct sockaddr *)&address, sizeof address), 0);
    setenv("NOTIFY_SOCKET", address.sun_path, 1);
    setenv("FDSTORE", "1000", 1);
    held.count = 0;
    for (int i = 0; i < FILES; i++) {
        struct stat is;
        struct kept_fd *one = &held.one[held.count++];
        one->fd = memfd_create("cairn-test", MFD_CLOEXEC);
        ck_assert_int_eq(ftruncate(one->fd, 4096), 0);
        ck_assert_int_eq(fstat(one->fd, &is), 0);
        inodes[i] = is.st_ino;
        snprintf(one->name, sizeof one->name, "%s", names[i]);
    }
}

static void tear_down(void)
{
    close(keeper);
    cairn_scratch_remove(folder);
}

/* ---- the keeper, as systemd and cairn-shard --keep are ---- */

static void forget(const char *name)
{
    for (size_t i = 0; i < held.count;) {
        if (strcmp(held.one[i].name, name) != 0) {
            i++;
            continue;
        }
        close(held.one[i].fd);
        held.one[i] = held.one[--held.count];
    }
}

/* The keeper takes no second descriptor of the same open file, whose flags the two would share. */
static bool is_held(int fd)
{
    const int flags = fcntl(fd, F_GETFL);
    bool is = false;
    fcntl(fd, F_SETFL, flags | O_APPEND);
    for (size_t i = 0; i < held.count; i++) is |= (fcntl(held.one[i].fd, F_GETFL) & O_APPEND) != 0;
    fcntl(fd, F_SETFL, flags);
    return is;
}

static void hold(const char *name, int fd)
{
    if (is_held(fd)) {
        close(fd);
        return;
    }
    ck_assert_uint_lt(held.count, HELD_MAX);
    struct kept_fd *one = &held.one[held.count++];
    one->fd = fd;
    snprintf(one->name, sizeof one->name, "%s", name);
}

/* Takes a message. Returns false if there is none. */
static bool receive(bool is_obeyed)
{
    char text[TEXT_BYTES + 1];
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec into = { text, TEXT_BYTES };
    struct msghdr message = {
        .msg_iov = &into, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control
    };
    const ssize_t bytes = recvmsg(keeper, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes < 0) return false;
    text[bytes] = '\0';
    const struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    int fd = -1;
    if (part != NULL) memcpy(&fd, CMSG_DATA(part), sizeof fd);
    const char *name = strstr(text, "FDNAME=");
    ck_assert_ptr_nonnull(name);
    name += strlen("FDNAME=");
    if (is_obeyed && fd < 0) forget(name);
    if (is_obeyed && fd >= 0) hold(name, fd);
    if (!is_obeyed && fd >= 0) close(fd);
    return true;
}

/* ---- the process ---- */

/* A process is handed what is held, sets all of it aside or what it has to, and dies before it sends
 * another message than the first `most`. Returns how many it would have sent. */
static int live(bool is_refused, int most)
{
    int status, sent = 0;
    const pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        uint32_t parts = 0;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        kept_set_aside(folder, "shard-0", held.one, held.count, is_refused, &parts);
        _exit(0);
    }
    for (bool is_over = false; !is_over;) {
        is_over = waitpid(pid, &status, WNOHANG) == pid; // its last messages count
        while (receive(sent < most)) sent++;
        (void)poll(&(struct pollfd) { .fd = keeper, .events = POLLIN }, 1, 1);
    }
    ck_assert_int_eq(status, 0);
    return sent;
}

static bool is_aside(const char *name)
{
    return strncmp(name, "aside-", 6) == 0;
}

/* Each file is held, under its name or that one aside. Where `whole`: once, and all files of a part are
 * aside or none is; returns how many are. */
static int expect_held(const char *when, int messages, bool whole)
{
    int aside[4] = { 0 }, files[4] = { 0 }, all = 0;
    for (int i = 0; i < FILES; i++) {
        int times = 0;
        const int part = names[i][0] - '0';
        for (size_t h = 0; h < held.count; h++) {
            struct stat is;
            ck_assert_int_eq(fstat(held.one[h].fd, &is), 0);
            if (is.st_ino != inodes[i]) continue;
            const char *name = held.one[h].name;
            times++;
            aside[part] += is_aside(name);
            all += is_aside(name);
            ck_assert_str_eq(is_aside(name) ? name + 6 : name, names[i]);
        }
        files[part]++;
        ck_assert_msg(times > 0, "%s, %d messages: %s is lost", when, messages, names[i]);
        ck_assert_msg(!whole || times == 1, "%s, %d messages: %s is held %d times", when, messages,
                      names[i], times);
    }
    for (int part = 0; whole && part < 4; part++)
        ck_assert_msg(aside[part] == 0 || aside[part] == files[part],
                      "%s, %d messages: %d of %d files of part %d are aside", when, messages,
                      aside[part], files[part], part);
    return all;
}

static void give_order(const char *word)
{
    char path[CAIRN_SCRATCH_BYTES + 32];
    snprintf(path, sizeof path, "%s/shard-0.order", folder);
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "%s\n", word);
    fclose(file);
}

static void start_again(void)
{
    while (held.count > 0) close(held.one[--held.count].fd);
    tear_down();
    set_up();
}

/* ---- tests ---- */

TEST(a_part_is_aside_as_a_whole_whatever_message_its_process_died_before)
{
    int all = 1;
    for (int most = 0; most <= all; most++) {
        start_again();
        all = live(true, most);
        ck_assert_int_ge(all, 2 * FILES);
        (void)expect_held("it died", most, false);
        live(false, MOST);
        ck_assert(expect_held("the next one", most, true) > 0 || most == 0);
        live(true, MOST);
        ck_assert_int_eq(expect_held("it is refused again", most, true), FILES);
    }
}

TEST(a_part_is_given_back_or_stays_aside_as_a_whole_whatever_message_its_process_died_before)
{
    int all = 1;
    for (int most = 0; most <= all; most++) {
        start_again();
        live(true, MOST);
        give_order("return");
        all = live(false, most);
        ck_assert_int_ge(all, 2 * FILES);
        (void)expect_held("it died", most, false);
        live(false, MOST);
        ck_assert(expect_held("the next one", most, true) < FILES || most < all);
        give_order("return");
        live(false, MOST);
        ck_assert_int_eq(expect_held("given back", most, true), 0);
    }
}

SUITE(60, set_up, tear_down);
