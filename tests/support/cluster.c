#include "tests/support/cluster.h"
#include "tests/support/now.h"
#include "tests/support/test_backend.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define HOST "here" /* of who may be reached both ways */

enum { ARGS_MAX = 64, PATH_BYTES = 256, COMMAND_BYTES = 4096, READY_POLL_MS = 5, AWAIT_MS = 20 };

/* ---- children ---- */

/* In the child; what may be called between fork and exec only. */
static void become(const char *const *argv, int out_fd, int err_fd, pid_t parent)
{
    // A keeper passes SIGTERM on, while SIGKILL would leave its shard behind.
    bool is_keeper = false;
    for (size_t i = 1; argv[i] != NULL; i++) is_keeper |= strcmp(argv[i], "--keep") == 0;
    prctl(PR_SET_PDEATHSIG, is_keeper ? SIGTERM : SIGKILL);
    if (getppid() != parent) _exit(126); // it died before we asked
    dup2(out_fd, STDOUT_FILENO);
    dup2(err_fd, STDERR_FILENO);
    union { // execvp takes them as they are and writes nothing
        const char *const *in;
        char *const *out;
    } args = { .in = argv };
    execvp(argv[0], args.out);
    _exit(127);
}

static pid_t start_child(const char *const *argv, int out_fd, int err_fd)
{
    const pid_t parent = getpid(), pid = fork();
    ck_assert_msg(pid >= 0, "fork: %s", strerror(errno));
    if (pid == 0) become(argv, out_fd, err_fd, parent);
    return pid;
}

pid_t cluster_spawn(const char *const *argv, const char *log_path)
{
    const int fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    ck_assert_msg(fd >= 0, "%s: %s", log_path, strerror(errno));
    const pid_t pid = start_child(argv, fd, fd);
    close(fd);
    return pid;
}

int cluster_wait(pid_t pid, int timeout_ms)
{
    const int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    ck_assert_msg(fd >= 0, "pidfd_open(%d): %s", (int)pid, strerror(errno));
    struct pollfd ended = { .fd = fd, .events = POLLIN };
    const int64_t deadline_ms = now_ms() + timeout_ms;
    int ready;
    do {
        const int64_t left_ms = deadline_ms - now_ms();
        ready = poll(&ended, 1, left_ms > 0 ? (int)left_ms : 0);
    } while (ready < 0 && errno == EINTR);
    close(fd);
    if (ready <= 0) return -1;
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void cluster_kill(pid_t pid)
{
    ck_assert_int_gt(pid, 0);
    kill(pid, SIGKILL);
    ck_assert_int_eq(cluster_wait(pid, CLUSTER_WAIT_MS), 128 + SIGKILL);
}

/* True if a thread of the process is neither stopped nor ended. */
static bool has_thread_that_runs(pid_t pid)
{
    char path[64];
    bool runs = false;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *folder = opendir(path);
    ck_assert_msg(folder != NULL, "%s: %s", path, strerror(errno));
    for (const struct dirent *e; !runs && (e = readdir(folder)) != NULL;) {
        char state;
        snprintf(path, sizeof path, "/proc/%d/task/%d/stat", (int)pid, atoi(e->d_name));
        FILE *file = e->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (file == NULL) continue;
        runs = fscanf(file, "%*d (%*[^)]) %c", &state) == 1 && strchr("TtZX", state) == NULL;
        fclose(file);
    }
    closedir(folder);
    return runs;
}

void cluster_freeze(pid_t pid)
{
    ck_assert_int_gt(pid, 0);
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    for (const int64_t deadline_ms = now_ms() + CLUSTER_WAIT_MS; has_thread_that_runs(pid);
         usleep(500))
        ck_assert_msg(now_ms() < deadline_ms, "process %d does not stop", (int)pid);
}

/* ---- the daemons ---- */

static void path_in(const struct cluster *cluster, char out[PATH_BYTES], const char *name,
                    const char *suffix)
{
    snprintf(out, PATH_BYTES, "%s/%s%s", cluster->folder, name, suffix);
}

/* Until the child has written its ready file, which is put into place whole. */
static void await_ready(const char *path, pid_t pid, char *line_out, size_t line_bytes)
{
    for (const int64_t deadline_ms = now_ms() + CLUSTER_WAIT_MS;;) {
        FILE *file = fopen(path, "re");
        if (file != NULL) {
            ck_assert_ptr_nonnull(fgets(line_out, (int)line_bytes, file));
            line_out[strcspn(line_out, "\n")] = 0;
            fclose(file);
            return;
        }
        const int status = cluster_wait(pid, READY_POLL_MS);
        ck_assert_msg(status == -1, "%s: the daemon ended with %d; see its log", path, status);
        ck_assert_msg(now_ms() < deadline_ms, "%s: not there in time; see the log", path);
    }
}

struct arguments {
    const char *argv[ARGS_MAX];
    int argc;
    char text[COMMAND_BYTES]; /* of the words of a command */
};

static void add(struct arguments *args, const char *flag, const char *value)
{
    ck_assert_int_lt(args->argc + 2, ARGS_MAX);
    args->argv[args->argc++] = flag;
    if (value != NULL) args->argv[args->argc++] = value;
}

static void add_settings(struct arguments *args, const char *const *settings)
{
    for (; settings != NULL && *settings != NULL; settings++) add(args, "--set", *settings);
}

/* Appends what stands for the conversion at `format`, and returns its last character. */
static const char *convert(const char *format, char *text, size_t *at, va_list *list)
{
    char *to = text + *at;
    const size_t room = COMMAND_BYTES - *at;
    int bytes = 1;
    switch (*++format) {
    case 's': bytes = snprintf(to, room, "%s", va_arg(*list, const char *)); break;
    case 'd': bytes = snprintf(to, room, "%d", va_arg(*list, int)); break;
    case '%': snprintf(to, room, "%%"); break;
    default: ck_abort_msg("cluster_cli has no %%%c", *format);
    }
    ck_assert_int_lt(bytes, (int)room);
    *at += (size_t)bytes;
    return format;
}

/* list NULL: without conversions. */
static void add_words(struct arguments *args, const char *format, va_list *list)
{
    size_t at = 0;
    while (*format != '\0') {
        const size_t begin = at;
        bool quoted = false;
        for (; *format != '\0' && (*format != ' ' || quoted); format++) {
            ck_assert_uint_lt(at + 1, COMMAND_BYTES);
            if (*format == '\'')
                quoted = !quoted;
            else if (*format == '%' && list != NULL)
                format = convert(format, args->text, &at, list);
            else
                args->text[at++] = *format;
        }
        args->text[at++] = '\0';
        add(args, args->text + begin, NULL);
        if (*format == ' ') format++;
    }
}

/* The program, in that network namespace. */
static void add_program(struct arguments *args, const char *netns, const char *path)
{
    if (netns != NULL) {
        add(args, "ip", "netns");
        add(args, "exec", netns);
    }
    add(args, path, NULL);
}

static const char *netns_of(const struct cluster *cluster, int shard)
{
    const int count = cluster->options.shard_netns_count;
    const bool has_own = cluster->options.shard_netns != NULL &&
                         shard < (count > 0 ? count : cluster->shards_expected);
    return has_own ? cluster->options.shard_netns[shard] : NULL;
}

/* Of the coordinator. */
static const char *home_netns(const struct cluster *cluster)
{
    const char *netns = cluster->options.coordinator_netns;
    return netns != NULL ? netns : netns_of(cluster, 0);
}

/* The last --set of a key wins, so the test's own come last. */
static pid_t start_daemon(const struct cluster *cluster, struct arguments *args, const char *name,
                          const char *const *settings, char *ready_out, size_t ready_bytes)
{
    char ready[PATH_BYTES], log[PATH_BYTES];
    path_in(cluster, ready, name, ".ready");
    path_in(cluster, log, name, ".log");
    unlink(ready); // of the one that was killed
    add(args, "--ready-file", ready);
    add(args, "--traceable", NULL); // by the tests that count its system calls
    add(args, "--log-level",
        cluster->options.log_level != NULL ? cluster->options.log_level : "info");
    add_settings(args, settings);
    const pid_t pid = cluster_spawn(args->argv, log);
    await_ready(ready, pid, ready_out, ready_bytes);
    return pid;
}

/* Of the build of this test, or of the folder that CAIRN_TEST_DAEMONS names. */
static const char *program_path(char out[PATH_BYTES], const char *name)
{
    const char *folder = getenv("CAIRN_TEST_DAEMONS");
    snprintf(out, PATH_BYTES, "%s/%s", folder != NULL ? folder : CAIRN_BIN_DIR, name);
    return out;
}

static void start_coordinator(struct cluster *cluster)
{
    char program[PATH_BYTES];
    char ready[2 * PATH_BYTES];
    char listen[2 * PATH_BYTES], shards[PATH_BYTES], store[PATH_BYTES], snapshots[PATH_BYTES];
    const bool is_tcp = cluster->options.coordinator_ip != NULL;
    snprintf(listen, sizeof listen, "network.listen=%s%s%s", cluster->socket, is_tcp ? " " : "",
             is_tcp ? cluster->listens : "");
    snprintf(shards, sizeof shards, "cluster.shards=%d", cluster->shards_expected);
    snprintf(store, sizeof store, "store.path=%s/coordinator", cluster->folder);
    snprintf(snapshots, sizeof snapshots, "snapshots.path=%s", cluster->snapshots_path);
    struct arguments args = { .argc = 0 };
    add_program(&args, home_netns(cluster), program_path(program, "cairn-coordinator"));
    add(&args, "--set", listen);
    add(&args, "--set", shards);
    add(&args, "--set", store);
    add(&args, "--set", snapshots);
    add(&args, "--set", "lease.heartbeat=100ms"); // many things are waited for that it brings
    if (cluster->options.snapshots_path != NULL)  // of a cluster that the test had before
        add(&args, "--set", "snapshots.foreign=yes");
    cluster->coordinator = start_daemon(cluster, &args, "coordinator",
                                        cluster->options.coordinator_set, ready, sizeof ready);
    if (is_tcp) snprintf(cluster->listens, sizeof cluster->listens, "%s", strchr(ready, ' ') + 1);
    snprintf(cluster->address, sizeof cluster->address, "%s",
             is_tcp ? cluster->listens : cluster->socket);
    if (cluster->options.other_socket != NULL)
        snprintf(cluster->address, sizeof cluster->address, "%s,%s/%s", cluster->socket,
                 cluster->folder, cluster->options.other_socket);
    if (is_tcp && cluster->options.coordinator_name != NULL)
        snprintf(cluster->address, sizeof cluster->address, "%s%s",
                 cluster->options.coordinator_name, strrchr(cluster->listens, ':'));
}

/* A token with which one may do everything, for this process and its children: what is tried here is not who
 * may what. */
static void make_token(const struct cluster *cluster)
{
    char program[PATH_BYTES], path[PATH_BYTES], log[PATH_BYTES];
    struct arguments args = { .argc = 0 };
    path_in(cluster, path, "token", "");
    path_in(cluster, log, "token.log", "");
    add_program(&args, home_netns(cluster), program_path(program, "cairn"));
    add(&args, "--endpoint", cluster->socket);
    add(&args, "key", "add");
    add(&args, "test", NULL);
    add(&args, "--role", "worker,reader,shard,admin,monitor");
    add(&args, "--to", path);
    ck_assert_msg(cluster_wait(cluster_spawn(args.argv, log), CLUSTER_WAIT_MS) == 0, "%s",
                  cluster_text(log));
    ck_assert_int_eq(setenv("CAIRN_TOKEN_FILE", path, 1), 0);
}

static void start_shard(struct cluster *cluster, int shard)
{
    const bool is_first = shard < cluster->shards_expected; // lists of options have these
    char program[PATH_BYTES];
    char name[32], set_name[PATH_BYTES], set_host[PATH_BYTES], coordinator[3 * PATH_BYTES],
        ready[64];
    char lock[PATH_BYTES], backend[64], state[PATH_BYTES];
    snprintf(name, sizeof name, "shard-%d", shard);
    snprintf(set_name, sizeof set_name, "shard.name=%s", name);
    snprintf(coordinator, sizeof coordinator, "shard.coordinator=%s", cluster->address);
    struct arguments args = { .argc = 0 };
    if (cluster->options.shard_within != NULL && is_first)
        for (const char *const *word = cluster->options.shard_within[shard]; *word != NULL; word++)
            add(&args, *word, NULL);
    add_program(&args, netns_of(cluster, shard), program_path(program, "cairn-shard"));
    if (cluster->options.shards_kept) add(&args, "--keep", NULL);
    add(&args, "--set", set_name);
    add(&args, "--set", coordinator);
    add(&args, "--set", "compute.threads=1");
    add(&args, "--set", "memory.limit=256MiB");
    snprintf(backend, sizeof backend, "compute.backend=%s", cairn_test_backend_of((unsigned)shard));
    add(&args, "--set", backend);
    snprintf(lock, sizeof lock, "memory.lock=%s", cluster->folder); // other tests have theirs
    add(&args, "--set", lock);
    if (cluster->options.shard_hosts != NULL && is_first) {
        snprintf(set_host, sizeof set_host, "fabric.host=%s", cluster->options.shard_hosts[shard]);
        add(&args, "--set", set_host);
    }
    if (cluster->options.both_ways) add(&args, "--set", "fabric.host=" HOST);
    snprintf(state, sizeof state, "shard.state=%s/state", cluster->folder);
    if (cluster->options.coordinator_ip != NULL || cluster->options.shards_kept)
        add(&args, "--set", state);
    char standby_of[64], domain[64];
    snprintf(domain, sizeof domain, "shard.domain=host-%d", shard); // as if each had one
    add(&args, "--set", domain);
    snprintf(standby_of, sizeof standby_of, "shard.standby_of=%s", cluster->standby_of[shard]);
    add(&args, "--set", standby_of);
    add_settings(&args, cluster->options.shard_set);
    const char *const *own = cluster->options.shard_each != NULL && is_first
                                 ? cluster->options.shard_each[shard]
                                 : NULL;
    cluster->shards[shard] = start_daemon(cluster, &args, name, own, ready, sizeof ready);
}

/* The list is the cluster's own from now on. */
static void keep(const char *const **list, const char *own[CLUSTER_SETTINGS_MAX + 1])
{
    if (*list == NULL) return;
    size_t count = 0;
    for (; (*list)[count] != NULL; count++) {
        ck_assert_uint_lt(count, CLUSTER_SETTINGS_MAX);
        own[count] = (*list)[count];
    }
    own[count] = NULL;
    *list = own;
}

void cluster_start(struct cluster *cluster, int shard_count, const struct cluster_options *options)
{
    ck_assert_int_ge(shard_count, 1);
    ck_assert_int_le(shard_count, CLUSTER_SHARDS_MAX);
    memset(cluster, 0, sizeof *cluster);
    if (options != NULL) cluster->options = *options;
    keep(&cluster->options.coordinator_set, cluster->settings[0]);
    keep(&cluster->options.shard_set, cluster->settings[1]);
    cluster->shards_expected = cluster->shard_count = shard_count;
    cairn_scratch_make(cluster->folder);
    if (cluster->options.snapshots_path != NULL)
        snprintf(cluster->snapshots_path, sizeof cluster->snapshots_path, "%s",
                 cluster->options.snapshots_path);
    else
        snprintf(cluster->snapshots_path, sizeof cluster->snapshots_path, "%s/snapshots",
                 cluster->folder);
    if (cluster->options.coordinator_ip != NULL)
        snprintf(cluster->listens, sizeof cluster->listens, "%s:0",
                 cluster->options.coordinator_ip);
    snprintf(cluster->socket, sizeof cluster->socket, "%s/coordinator.sock", cluster->folder);
    if (cluster->options.both_ways) setenv("CAIRN_HOST", HOST, 1);
    start_coordinator(cluster);
    if (cluster->options.coordinator_ip != NULL) make_token(cluster);
    for (int i = 0; i < shard_count; i++) start_shard(cluster, i);
}

static void stop_daemon(pid_t *pid, const char *what)
{
    if (*pid == 0) return;
    const int status = cluster_wait(*pid, CLUSTER_WAIT_MS);
    if (status == -1) cluster_kill(*pid);
    *pid = 0;
    ck_assert_msg(status == 0, "%s ended with %d after SIGTERM (-1: not at all)", what, status);
}

void cluster_stop(struct cluster *cluster)
{
    for (int i = 0; i < cluster->shard_count; i++)
        if (cluster->shards[i] != 0) kill(cluster->shards[i], SIGTERM);
    if (cluster->coordinator != 0) kill(cluster->coordinator, SIGTERM);
    for (int i = 0; i < cluster->shard_count; i++) stop_daemon(&cluster->shards[i], "a shard");
    stop_daemon(&cluster->coordinator, "the coordinator");
    if (cluster->options.both_ways) unsetenv("CAIRN_HOST");
    if (cluster->options.coordinator_ip != NULL) unsetenv("CAIRN_TOKEN_FILE");
    cairn_scratch_remove(cluster->folder);
}

/* SIGKILL to a process that is nobody's child here, and its end awaited. */
static void end_orphan(pid_t process)
{
    const int fd = (int)syscall(SYS_pidfd_open, process, 0);
    if (fd < 0) return; // it has ended by itself
    struct pollfd ended = { .fd = fd, .events = POLLIN };
    kill(process, SIGKILL);
    ck_assert_int_eq(poll(&ended, 1, CLUSTER_WAIT_MS), 1);
    close(fd);
}

void cluster_kill_coordinator(struct cluster *cluster)
{
    cluster_kill(cluster->coordinator);
    cluster->coordinator = 0;
}

void cluster_kill_shard(struct cluster *cluster, int shard)
{
    const pid_t process = cluster->options.shards_kept ? cluster_shard_process(cluster, shard) : 0;
    cluster_kill(cluster->shards[shard]);
    cluster->shards[shard] = 0;
    if (process != 0) end_orphan(process);
}

pid_t cluster_shard_child(const struct cluster *cluster, int shard)
{
    char path[64];
    int process = 0;
    const int keeper = (int)cluster->shards[shard];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", keeper, keeper);
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    if (fscanf(file, "%d", &process) != 1) process = 0;
    fclose(file);
    return process;
}

pid_t cluster_shard_process(const struct cluster *cluster, int shard)
{
    const pid_t process = cluster_shard_child(cluster, shard);
    ck_assert_msg(process != 0, "shard %d is between two processes", shard);
    return process;
}

void cluster_renew_shard(struct cluster *cluster, int shard, int signal)
{
    char name[32], ready[PATH_BYTES], line[64];
    const pid_t process = cluster_shard_process(cluster, shard);
    snprintf(name, sizeof name, "shard-%d", shard);
    path_in(cluster, ready, name, ".ready");
    unlink(ready); // the next process writes it again
    ck_assert_int_eq(kill(signal == SIGUSR2 ? cluster->shards[shard] : process, signal), 0);
    await_ready(ready, cluster->shards[shard], line, sizeof line);
    ck_assert_int_ne(cluster_shard_process(cluster, shard), process);
}

void cluster_restart_coordinator(struct cluster *cluster)
{
    ck_assert_int_eq(cluster->coordinator, 0);
    start_coordinator(cluster);
}

void cluster_restart_shard(struct cluster *cluster, int shard)
{
    ck_assert_int_eq(cluster->shards[shard], 0);
    start_shard(cluster, shard);
}

void cluster_add_shard(struct cluster *cluster, int shard)
{
    ck_assert_int_lt(shard, CLUSTER_SHARDS_MAX);
    ck_assert_int_eq(cluster->shards[shard], 0);
    start_shard(cluster, shard);
    if (shard >= cluster->shard_count) cluster->shard_count = shard + 1;
}

void cluster_add_standby(struct cluster *cluster, int shard, int of)
{
    ck_assert_int_lt(shard, CLUSTER_SHARDS_MAX);
    snprintf(cluster->standby_of[shard], sizeof cluster->standby_of[shard], "shard-%d", of);
    cluster_add_shard(cluster, shard);
}

void cluster_await_end_of_shard(struct cluster *cluster, int shard)
{
    const int status = cluster_wait(cluster->shards[shard], CLUSTER_WAIT_MS);
    ck_assert_msg(status == 0, "shard %d ended with %d (-1: not at all)", shard, status);
    cluster->shards[shard] = 0;
}

size_t cluster_resident_bytes(pid_t pid)
{
    char path[64], line[256];
    unsigned long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    ck_assert_msg(file != NULL, "%s: %s", path, strerror(errno));
    while (fgets(line, sizeof line, file) != NULL && sscanf(line, "VmRSS: %lu kB", &kib) != 1) {}
    fclose(file);
    ck_assert_uint_gt(kib, 0);
    return kib * 1024;
}

/* ---- the command line ---- */

/* What it printed into an unlinked file. */
static void read_back(int fd, char *text, size_t text_bytes)
{
    const ssize_t got = pread(fd, text, text_bytes - 1, 0);
    ck_assert_int_ge(got, 0);
    text[got] = 0;
    close(fd);
}

static int unlinked_file(void)
{
    const int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    ck_assert_msg(fd >= 0, "an unlinked file in /tmp: %s", strerror(errno));
    return fd;
}

static void begin_cli(const struct cluster *cluster, struct cluster_command *command,
                      const char *words, va_list *list)
{
    char program[PATH_BYTES];
    struct arguments args = { .argc = 0 };
    add_program(&args, home_netns(cluster), program_path(program, "cairn"));
    add(&args, "--endpoint", cluster->address);
    const int first = args.argc;
    add_words(&args, words, list);
    snprintf(command->name, sizeof command->name, "cairn %s %s", args.argv[first],
             args.argc > first + 1 ? args.argv[first + 1] : "");
    command->out_fd = unlinked_file();
    command->err_fd = unlinked_file();
    command->pid = start_child(args.argv, command->out_fd, command->err_fd);
}

pid_t cluster_run(const struct cluster *cluster, const char *netns, const char *log,
                  const char *words, ...)
{
    char path[PATH_BYTES], self[PATH_BYTES] = "";
    struct arguments args = { .argc = 0 };
    va_list list;
    if (netns != NULL) {
        add(&args, "ip", "netns");
        add(&args, "exec", netns);
    }
    const int program = args.argc;
    va_start(list, words);
    add_words(&args, words, &list);
    va_end(list);
    ck_assert_int_gt(readlink("/proc/self/exe", self, sizeof self - 1), 0);
    if (strcmp(args.argv[program], "self") == 0) args.argv[program] = self;
    path_in(cluster, path, log, "");
    return cluster_spawn(args.argv, path);
}

void cluster_cli_begin(const struct cluster *cluster, struct cluster_command *command,
                       const char *words, ...)
{
    va_list list;
    va_start(list, words);
    begin_cli(cluster, command, words, &list);
    va_end(list);
}

void cluster_cli_begin_line(const struct cluster *cluster, struct cluster_command *command,
                            const char *line)
{
    begin_cli(cluster, command, line, NULL);
}

const char *cluster_cli_printed(const struct cluster_command *command)
{
    static char text[64 * 1024];
    const ssize_t got = pread(command->out_fd, text, sizeof text - 1, 0);
    text[got > 0 ? got : 0] = '\0';
    return text;
}

void cluster_cli_end(struct cluster_command *command, int status, struct cluster_said *said)
{
    if (status == -1) cluster_kill(command->pid);
    said->status = status;
    read_back(command->out_fd, said->out, sizeof said->out);
    read_back(command->err_fd, said->err, sizeof said->err);
    ck_assert_msg(status != -1, "%s gave no answer in time", command->name);
}

static void run_cli(const struct cluster *cluster, struct cluster_said *said, const char *words,
                    va_list *list)
{
    struct cluster_command command;
    begin_cli(cluster, &command, words, list);
    cluster_cli_end(&command, cluster_wait(command.pid, CLUSTER_WAIT_MS), said);
}

void cluster_cli(const struct cluster *cluster, struct cluster_said *said, const char *command, ...)
{
    va_list list;
    va_start(list, command);
    run_cli(cluster, said, command, &list);
    va_end(list);
}

void cluster_says(const struct cluster *cluster, int status, const char *word, const char *command,
                  ...)
{
    static struct cluster_said said;
    va_list list;
    va_start(list, command);
    run_cli(cluster, &said, command, &list);
    va_end(list);
    ck_assert_msg(said.status == status, "%d instead of %d: %s%s", said.status, status, said.out,
                  said.err);
    ck_assert_msg(strstr(said.out, word) != NULL || strstr(said.err, word) != NULL,
                  "no \"%s\": %s%s", word, said.out, said.err);
}

void cluster_await(const struct cluster *cluster, bool is_said, const char *word,
                   const char *command, ...)
{
    static struct cluster_said said;
    const int64_t end_ms = now_ms() + CLUSTER_WAIT_MS;
    va_list list;
    for (;;) {
        va_start(list, command);
        run_cli(cluster, &said, command, &list);
        va_end(list);
        if (said.status == 0 && (strstr(said.out, word) != NULL) == is_said) return;
        ck_assert_msg(now_ms() < end_ms, "%s \"%s\": %s%s", is_said ? "no" : "still", word,
                      said.out, said.err);
        poll(NULL, 0, AWAIT_MS);
    }
}

void cluster_word(const struct cluster *cluster, char word_out[CLUSTER_WORD_BYTES],
                  const char *command, ...)
{
    static struct cluster_said said;
    va_list list;
    va_start(list, command);
    run_cli(cluster, &said, command, &list);
    va_end(list);
    ck_assert_msg(said.status == 0 && sscanf(said.out, "%127s", word_out) == 1, "%d: %s",
                  said.status, said.err);
}

const char *cluster_text(const char *path)
{
    static char text[64 * 1024];
    FILE *file = fopen(path, "re");
    text[file != NULL ? fread(text, 1, sizeof text - 1, file) : 0] = '\0';
    if (file != NULL) fclose(file);
    return text;
}

const char *cluster_log_text(const struct cluster *cluster, const char *log)
{
    char path[PATH_BYTES];
    path_in(cluster, path, log, "");
    return cluster_text(path);
}

int cluster_logged(const struct cluster *cluster, const char *log, const char *text)
{
    char path[CAIRN_SCRATCH_BYTES + 64], *line = NULL;
    size_t room = 0;
    int count = 0;
    snprintf(path, sizeof path, "%s/%s", cluster->folder, log);
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    while (getline(&line, &room, file) > 0) count += strstr(line, text) != NULL;
    free(line);
    fclose(file);
    return count;
}
