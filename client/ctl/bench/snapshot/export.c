/* cairn snapshot export of all of a snapshot, as a process of its own, against a file of as many bytes that
 * is written, and one that is read and written. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/bench/snapshot/snapshot.h"

#define LOOK_MS 2

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    (void)st;
    (void)type;
    (void)walk;
    return remove(path);
}

/* In the child: this program, once more. */
static void become(const struct snapshot_bench *b, const char *to)
{
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(nothing, STDOUT_FILENO);
    execl("/proc/self/exe", "cairn", "snapshot", "export", "--path", b->saver.path, "--to", to,
          "--format", "dcp", "--quiet", (char *)NULL);
    _exit(127);
}

/* True: it ended well. */
static bool await(const struct snapshot_bench *b, pid_t pid)
{
    int status = 0;
    bool gives_up = false;
    for (;;) {
        const pid_t ended = waitpid(pid, &status, gives_up ? 0 : WNOHANG);
        if (ended == pid || (ended < 0 && errno != EINTR)) break;
        gives_up = gives_up || cairn_bench_is_interrupted(b->local);
        if (gives_up) kill(pid, SIGINT); // it removes what it has begun
        poll(NULL, 0, LOOK_MS);
    }
    return !gives_up && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* GB/s of the snapshot's bytes, which are read from the disk and written to it. */
static double export_once(void *context)
{
    struct snapshot_bench *b = context;
    char to[PATH_MAX + 16];
    snprintf(to, sizeof to, "%s/export", b->local->folder);
    cairn_bench_save_make_cold(&b->saver);
    const double begin = cairn_bench_now();
    const pid_t pid = cairn_local_fork(b->local);
    if (pid == 0) become(b, to);
    const bool is_ok = pid > 0 && await(b, pid);
    const double seconds = cairn_bench_now() - begin;
    nftw(to, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return is_ok ? (double)b->saver.bytes * 1e-9 / seconds : 0;
}

static double copy_raw(void *context)
{
    struct snapshot_bench *b = context;
    return cairn_bench_disk_copy(&b->disk, snapshot_bytes(b));
}

/* No export is faster than the disk reads and writes as many bytes: so much it does of that. */
int snapshot_export(struct snapshot_bench *b)
{
    struct cairn_bench_result copy = { .bench = NULL };
    if (!snapshot_make(b)) return 1;
    int done = cairn_bench_alternate(b->result, 0.001, export_once, snapshot_write_raw, b);
    if (done < 0) done = cairn_bench_alternate(&copy, 0.001, export_once, copy_raw, b);
    if (done >= 0) return done;
    snapshot_set(b, "export_disk_copy_GB/s", copy.reference.median);
    snapshot_set(b, "export_over_disk_copy", copy.ratio.median);
    return -1;
}
