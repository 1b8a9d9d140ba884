/* References of the bench of the fabric: bench.h. */
#include "client/ctl/bench/bench.h"

#include <inttypes.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROGRAM     "ucx_perftest"
#define WARM_CHUNKS 16
#define TRIES       100 /* until its server listens */
#define TRY_MS      20
#define LIMIT_MS    120000
#define OUTPUT_MAX  4096

/* ---- processes ---- */

static void end_process(pid_t pid)
{
    if (pid <= 0) return;
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {}
}

/* A loopback socket that listens at a free port, if `port` is 0. */
static int listen_at(uint16_t *port)
{
    struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t bytes = sizeof here;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&here, bytes) == 0 && listen(fd, 1) == 0 &&
        getsockname(fd, (struct sockaddr *)&here, &bytes) == 0) {
        *port = ntohs(here.sin_port);
        return fd;
    }
    if (fd >= 0) close(fd);
    return -1;
}

/* ---- ucx_perftest ---- */

bool bench_perftest_is_there(void)
{
    char path[4096], *rest = NULL;
    const char *folders = getenv("PATH");
    snprintf(path, sizeof path, "%s", folders != NULL ? folders : "");
    for (char *folder = strtok_r(path, ":", &rest); folder != NULL;
         folder = strtok_r(NULL, ":", &rest)) {
        char file[4200];
        snprintf(file, sizeof file, "%s/" PROGRAM, folder);
        if (access(file, X_OK) == 0) return true;
    }
    return false;
}

/* Runs it with what the fabric sets (proto/fabric/ucx.c); `out`: where it prints to. */
static pid_t start_perftest(char *const *arguments, int out)
{
    static const char *const settings[][2] = {
        { "UCX_TLS", "tcp" },
        { "UCX_NET_DEVICES", "lo" },
        { "UCX_TCP_TX_SEG_SIZE", "256k" },
        { "UCX_TCP_RX_SEG_SIZE", "256k" },
        { "UCX_RX_MPOOL_SIZES", "64,1k,64k" },
        { "UCX_RNDV_THRESH", "32k" },
        { "UCX_PROTO_ENABLE", "n" },
        { "UCX_RCACHE_ENABLE", "n" },
        { "UCX_WARN_UNUSED_ENV_VARS", "n" },
    };
    const pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(nothing, STDIN_FILENO), dup2(nothing, STDERR_FILENO);
    dup2(out >= 0 ? out : nothing, STDOUT_FILENO);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        setenv(settings[i][0], settings[i][1], 1);
    execvp(PROGRAM, arguments);
    _exit(127);
}

/* Everything that comes until the other end closes it; false: not within the limit. */
static bool read_output(int fd, char text[OUTPUT_MAX])
{
    size_t have = 0;
    for (;;) {
        struct pollfd wait = { .fd = fd, .events = POLLIN };
        if (have == OUTPUT_MAX - 1 || poll(&wait, 1, LIMIT_MS) <= 0) return false;
        const ssize_t got = read(fd, text + have, OUTPUT_MAX - 1 - have);
        if (got < 0) return false;
        if (got == 0) break;
        have += (size_t)got;
    }
    text[have] = '\0';
    return true;
}

/* " 256,2.6,2069.0,4621.6,...": the fourth is microseconds a message, of all of them. 0: there is none. */
static double microseconds_of(const char *text)
{
    const char *line = strrchr(text, '\n');
    while (line != NULL && line > text && line[1] == '\0') // the last line that says something
        do line--;
        while (line > text && *line != '\n');
    double us = 0;
    if (line == NULL || sscanf(line, " %*[^,],%*[^,],%*[^,],%lf", &us) != 1) return 0;
    return us;
}

/* One try: 0 if its server does not listen yet. */
static double try_client(char *const *arguments)
{
    char text[OUTPUT_MAX];
    int out[2];
    if (pipe2(out, O_CLOEXEC) != 0) return 0;
    const pid_t client = start_perftest(arguments, out[1]);
    close(out[1]);
    const bool whole = read_output(out[0], text);
    close(out[0]);
    end_process(client);
    return whole ? microseconds_of(text) : 0;
}

/* Microseconds a message; 0: none of its clients has met the server. */
static double try_pair(char *const *server_line, char *const *client_line)
{
    const struct timespec pause = { .tv_nsec = TRY_MS * 1000000L };
    double us = 0;
    fflush(NULL);
    const pid_t server = start_perftest(server_line, -1);
    for (int i = 0; i < TRIES && !(us > 0) && server > 0; i++) {
        nanosleep(&pause, NULL);
        if (waitpid(server, NULL, WNOHANG) == server) return 0;
        us = try_client(client_line);
    }
    end_process(server);
    return us;
}

double bench_perftest(size_t chunk_bytes, uint64_t chunks)
{
    char port[8], size[24], count[24], warm[8], window[8];
    uint16_t number = 0;
    const int probe = listen_at(&number);
    if (probe >= 0) close(probe); // free a moment ago: nobody else gets it so soon
    snprintf(port, sizeof port, "%u", number);
    snprintf(size, sizeof size, "%zu", chunk_bytes);
    snprintf(count, sizeof count, "%" PRIu64, chunks);
    snprintf(warm, sizeof warm, "%d", WARM_CHUNKS);
    snprintf(window, sizeof window, "%d", CAIRN_BENCH_WINDOW);
    char *const server_line[] = { PROGRAM, "-p", port, "-E", "sleep", "-e", NULL };
    char *const client_line[] = { PROGRAM, "127.0.0.1", "-p",  port,    "-t", "ucp_am_bw", "-s",
                                  size,    "-n",        count, "-w",    warm, "-O",        window,
                                  "-H",    "128",       "-E",  "sleep", "-e", "-fv",       NULL };
    // Built with MPI (Debian 13) it ends at once, since no mpirun has started it, unless it is told not to
    // use it; built without, it does not know that option.
    char *const server_alone[] = { PROGRAM, "-P", "0", "-p", port, "-E", "sleep", "-e", NULL };
    char *const client_alone[] = { PROGRAM, "127.0.0.1", "-P", "0",    "-p", port,
                                   "-t",    "ucp_am_bw", "-s", size,   "-n", count,
                                   "-w",    warm,        "-O", window, "-H", "128",
                                   "-E",    "sleep",     "-e", "-fv",  NULL };
    static bool has_mpi; // as the first call found out
    double us = has_mpi ? 0 : try_pair(server_line, client_line);
    if (!(us > 0)) {
        us = try_pair(server_alone, client_alone);
        has_mpi = us > 0;
    }
    if (us > 0) return (double)chunk_bytes / us * 1e-3;
    ctl_fail(CAIRN_ERR_UNREACHABLE,
             PROGRAM " gave no figure: does `" PROGRAM " -l -t ucp_am_bw -s %s -n 10` run?", size);
    return 0;
}

/* ---- raw TCP ---- */

static uint8_t *make_bytes(size_t bytes)
{
    void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return made != MAP_FAILED ? made : NULL;
}

/* The child: reads all of it into memory of a window, and says so. */
static int swallow(int fd, size_t chunk_bytes, uint64_t chunks)
{
    const size_t room = CAIRN_BENCH_WINDOW * chunk_bytes;
    uint8_t *bytes = make_bytes(room);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (uint64_t left = chunks * chunk_bytes, at = 0; left > 0 && bytes != NULL;) {
        const ssize_t got = read(fd, bytes + at % room, room - at % room);
        if (got <= 0) return 1;
        left -= (uint64_t)got;
        at += (uint64_t)got;
    }
    return write(fd, "", 1) == 1 && bytes != NULL ? 0 : 1;
}

static bool pour(int fd, size_t chunk_bytes, uint64_t chunks)
{
    char answer;
    uint8_t *bytes = make_bytes(CAIRN_BENCH_AREA_BYTES);
    const size_t area_chunks = CAIRN_BENCH_AREA_BYTES / chunk_bytes;
    bool ok = bytes != NULL;
    for (uint64_t i = 0; i < chunks && ok; i++)
        for (size_t sent = 0; sent < chunk_bytes && ok;) {
            const uint8_t *from = bytes + i % area_chunks * chunk_bytes + sent;
            const ssize_t put = send(fd, from, chunk_bytes - sent, MSG_NOSIGNAL);
            ok = put > 0;
            if (ok) sent += (size_t)put;
        }
    ok = ok && read(fd, &answer, 1) == 1;
    if (bytes != NULL) munmap(bytes, CAIRN_BENCH_AREA_BYTES);
    return ok;
}

double bench_raw_tcp(size_t chunk_bytes, uint64_t chunks)
{
    struct sockaddr_in there = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    uint16_t port = 0;
    const int listener = listen_at(&port);
    const int ours = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    there.sin_port = htons(port);
    bool ok = listener >= 0 && ours >= 0 &&
              connect(ours, (struct sockaddr *)&there, sizeof there) == 0;
    const int theirs = ok ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
    fflush(NULL);
    const pid_t child = theirs >= 0 ? fork() : -1;
    if (child == 0) _exit((close(ours), swallow(theirs, chunk_bytes, chunks)));
    if (theirs >= 0) close(theirs);
    const double begin = bench_now();
    ok = child > 0 && pour(ours, chunk_bytes, chunks);
    const double seconds = bench_now() - begin;
    if (listener >= 0) close(listener);
    if (ours >= 0) close(ours);
    end_process(child);
    if (ok) return (double)(chunks * chunk_bytes) / seconds * 1e-9;
    ctl_fail(CAIRN_ERR_IO, "raw TCP over loopback failed: %s", strerror(errno));
    return 0;
}

/* ---- memcpy ---- */

double bench_memcpy(size_t area_bytes, size_t chunk_bytes, uint64_t chunks)
{
    static uint8_t *from, *to; // kept: what a fabric measures has been touched before, too
    if (from == NULL) from = make_bytes(area_bytes);
    if (to == NULL) to = make_bytes(area_bytes);
    if (from == NULL || to == NULL) {
        ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the copies of the reference");
        return 0;
    }
    const double begin = bench_now();
    for (uint64_t i = 0; i < chunks; i++) {
        const size_t at = i % (area_bytes / chunk_bytes) * chunk_bytes;
        memcpy(to + at, from + at, chunk_bytes);
    }
    return (double)(chunks * chunk_bytes) / (bench_now() - begin) * 1e-9;
}
