/* cairn local: the way of a cluster, from its folder to its end. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/local/local.h"

#define START_MS 60000
#define TURN_MS  10

static const int taken_signals[] = { SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 };

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static int fail(const struct cairn_sentence *why)
{
    return cairn_ctl_fail(CAIRN_ERR_NOT_FOUND, "%s", why->text);
}

static void block_signals(struct local *local)
{
    if (local->is_blocked) return; // a second cluster: old_signals are those of the start
    local->is_blocked = true;
    sigemptyset(&local->signals);
    for (size_t i = 0; i < sizeof taken_signals / sizeof *taken_signals; i++)
        sigaddset(&local->signals, taken_signals[i]);
    sigset_t blocked = local->signals;
    sigaddset(&blocked, SIGPIPE); // a closed stderr is no reason to leave things behind
    sigprocmask(SIG_BLOCK, &blocked, &local->old_signals);
}

/* ---- up ---- */

/* -1: go on, here and below; else the exit status. */
static int prepare(struct local *local)
{
    const char *command = local->ctl->argc > 0 ? local->ctl->argv[0] : NULL;
    struct cairn_sentence why = { "" };
    if (command != NULL && !cairn_local_command_is_there(command)) {
        cairn_ctl_fail(CAIRN_ERR_NOT_FOUND, "there is no program %s to run", command);
        return 127; // as a shell says it
    }
    if (!cairn_local_program_find("cairn-coordinator", local->programs[LOCAL_COORDINATOR], &why) ||
        !cairn_local_program_find("cairn-shard", local->programs[LOCAL_SHARD], &why))
        return fail(&why);
    if (!cairn_local_import_find(local, &why) || !cairn_local_folder_make(local, &why))
        return cairn_ctl_fail(CAIRN_ERR_IO, "%s", why.text);
    return -1;
}

/* Until its ready file is there. */
static int await_ready(struct local *local, const char *name, char *line_out, size_t line_bytes)
{
    const uint64_t deadline_ms = now_ms() + START_MS;
    while (!cairn_local_ready_read(local, name, line_out, line_bytes)) {
        const int number = cairn_local_signal(local, TURN_MS, NULL);
        if (number != 0 && number != SIGCHLD) return 128 + number;
        if (cairn_local_daemons_reap(local) > 0) return 1;
        if (now_ms() >= deadline_ms)
            return cairn_ctl_fail(CAIRN_ERR_TIMEOUT,
                                  "%s was not ready within %d s; its log is %s/%s.log", name,
                                  START_MS / 1000, local->folder, name);
    }
    return -1;
}

static int start_one(struct local *local, int index)
{
    struct local_daemon *daemon = &local->daemons[index];
    struct cairn_sentence why;
    if (!cairn_local_config_write(local, daemon->name, &why))
        return cairn_ctl_fail(CAIRN_ERR_IO, "%s", why.text);
    return cairn_local_daemon_start(local, daemon, index == 0 ? LOCAL_COORDINATOR : LOCAL_SHARD)
               ? -1
               : 1;
}

static int start(struct local *local)
{
    char line[sizeof local->endpoint];
    snprintf(local->daemons[0].name, sizeof local->daemons[0].name, "coordinator");
    for (int i = 1; i < local->daemon_count; i++)
        snprintf(local->daemons[i].name, sizeof local->daemons[i].name, "shard-%d", i);
    int done = start_one(local, 0);
    if (done < 0) done = await_ready(local, "coordinator", line, sizeof line);
    if (done >= 0) return done;
    memcpy(local->endpoint, line, sizeof line);
    for (int i = 1; i < local->daemon_count && done < 0; i++) done = start_one(local, i);
    for (int i = 1; i < local->daemon_count && done < 0; i++)
        done = await_ready(local, local->daemons[i].name, line, sizeof line);
    return done;
}

int cairn_local_shard_add(struct local *local)
{
    char line[sizeof local->endpoint];
    if (local->daemon_count > CTL_SHARDS_MAX)
        return cairn_ctl_fail(CAIRN_ERR_INVALID, "%d shards are the most", CTL_SHARDS_MAX);
    const int index = local->daemon_count++;
    struct local_daemon *daemon = &local->daemons[index];
    *daemon = (struct local_daemon) { .pid = 0 };
    snprintf(daemon->name, sizeof daemon->name, "shard-%d", index);
    const int done = start_one(local, index);
    return done < 0 ? await_ready(local, daemon->name, line, sizeof line) : done;
}

/* ---- meanwhile ---- */

/* To what is run now. */
static void say_where(const struct local *local)
{
    setenv("CAIRN_ENDPOINT", local->endpoint, 1);
    setenv("CAIRN_FABRIC", "auto", 1);
    setenv("CAIRN_FABRIC_DEVICE", "lo", 1); // where the shards are
}

static int announce(struct local *local)
{
    struct cairn_sentence why;
    char line[sizeof local->endpoint + 1], library[PATH_MAX];
    const char *file = local->ctl->endpoint_file;
    if (cairn_local_library_find(library))
        setenv("CAIRN_LIBRARY", library, 0); // of the Python package
    snprintf(line, sizeof line, "%s\n", local->endpoint);
    if (file == NULL) return -1;
    local->is_announced = cairn_local_file_write(file, line, &why);
    return local->is_announced ? -1 : cairn_ctl_fail(CAIRN_ERR_IO, "%s", why.text);
}

static void print_screen(const struct local *local)
{
    const struct ctl *ctl = local->ctl;
    const int shards = local->daemon_count - 1;
    if (ctl->quiet) return;
    fprintf(stderr, "cairn local: a coordinator and %d shard%s are up\n", shards,
            shards == 1 ? "" : "s");
    fprintf(stderr, "  endpoint   %s  (CAIRN_ENDPOINT of the command)\n", local->endpoint);
    fprintf(stderr, "  look       cairn --endpoint %s cluster status\n", local->endpoint);
    fprintf(stderr, "  folder     %s  (%s)\n", local->folder,
            local->is_temporary ? "removed in the end; --keep FOLDER keeps one" : "kept");
    fprintf(stderr, "  logs       coordinator.log, shard-1.log%s there; snapshots in snapshots/\n",
            shards > 1 ? " ..." : "");
    if (ctl->argc == 0) {
        fprintf(stderr, "  end        Ctrl-C\n");
        return;
    }
    fprintf(stderr, "  command   ");
    for (int i = 0; i < ctl->argc; i++) fprintf(stderr, " %s", ctl->argv[i]);
    fprintf(stderr, "\n");
}

/* Without a command: Ctrl-C is how it ends, and no failure. */
static int await_end(struct local *local)
{
    for (;;) {
        const int number = cairn_local_signal(local, -1, NULL);
        if (number != 0 && number != SIGCHLD) return 0;
        if (cairn_local_daemons_reap(local) > 0) return 1;
    }
}

static int run_command(struct local *local, void *context)
{
    const struct ctl *ctl = context;
    const int done = announce(local);
    if (done >= 0) return done;
    print_screen(local);
    return ctl->argc > 0 ? cairn_local_command_run(local, ctl->argv) : await_end(local);
}

/* The cluster of another: nothing is started, stopped or made. */
static int run_there(struct local *local, int (*body)(struct local *local, void *context),
                     void *context)
{
    local->daemon_count = 0;
    snprintf(local->endpoint, sizeof local->endpoint, "%s", local->ctl->endpoint);
    setenv("CAIRN_ENDPOINT", local->endpoint, 1);
    return body(local, context);
}

int cairn_local_run(struct local *local, int (*body)(struct local *local, void *context),
                    void *context)
{
    const struct ctl *ctl = local->ctl;
    if (ctl->shards > CTL_SHARDS_MAX)
        return cairn_ctl_fail(CAIRN_ERR_INVALID, "--shards %u: 1 to %d is allowed", ctl->shards,
                              CTL_SHARDS_MAX);
    block_signals(local);
    if (ctl->endpoint != NULL) return run_there(local, body, context);
    local->daemon_count = 1 + (ctl->shards > 0 ? (int)ctl->shards : 1);
    local->endpoint[0] = 0;
    int done = prepare(local);
    if (done < 0) done = start(local);
    if (done < 0) {
        say_where(local);
        done = body(local, context);
    }
    cairn_local_daemons_stop(local);
    if (local->is_announced) unlink(ctl->endpoint_file);
    cairn_local_folder_remove(local);
    return done;
}

int cairn_ctl_local(struct ctl *ctl)
{
    static struct local local;
    local.ctl = ctl;
    return cairn_local_run(&local, run_command, ctl);
}
