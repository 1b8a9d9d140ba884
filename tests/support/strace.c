#include "tests/support/strace.h"

#include <check.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cluster.h"

enum { POLL_MS = 5, TRIES = CLUSTER_WAIT_MS / POLL_MS, CALLS_MAX = 4096 };

bool strace_works(void)
{
    if (system("command -v strace >/dev/null") != 0) {
        printf("skip: strace is not installed\n");
        return false;
    }
    if (system("strace -qq -o /dev/null true 2>/dev/null") == 0) return true;
    printf("skip: strace may not trace here\n");
    return false;
}

size_t strace_words(struct strace_words *words, const char *calls, const struct strace_point *point,
                    const char *fault, const char *log, const char *argv[STRACE_WORDS])
{
    size_t n = 0;
    snprintf(words->trace, sizeof words->trace, "trace=%s", calls);
    argv[n++] = "strace";
    argv[n++] = "-fqqy";
    argv[n++] = "-o";
    argv[n++] = log;
    argv[n++] = "-e";
    argv[n++] = words->trace;
    if (fault == NULL) return n;
    snprintf(words->inject, sizeof words->inject, "inject=%s:%s:when=%u", point->call, fault,
             point->nth);
    argv[n++] = "-e";
    argv[n++] = words->inject;
    return n;
}

/* ---- a process that runs ---- */

static bool is_traced(pid_t process, const char *thread)
{
    char path[320], line[256];
    int tracer = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%s/status", (int)process, thread);
    FILE *file = fopen(path, "re");
    if (file == NULL) return true; // it has ended
    while (fgets(line, sizeof line, file) != NULL && sscanf(line, "TracerPid: %d", &tracer) != 1) {}
    fclose(file);
    return tracer != 0;
}

static bool all_traced(pid_t process)
{
    char path[64];
    bool traced = true;
    snprintf(path, sizeof path, "/proc/%d/task", (int)process);
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    for (const struct dirent *e; traced && (e = readdir(dir)) != NULL;)
        if (e->d_name[0] != '.') traced = is_traced(process, e->d_name);
    closedir(dir);
    return traced;
}

pid_t strace_attach(pid_t victim, const char *calls, const struct strace_point *point,
                    const char *fault, const char *log)
{
    struct strace_words words;
    char process[16];
    const char *argv[STRACE_WORDS + 3];
    size_t n = strace_words(&words, calls, point, fault, log, argv);
    snprintf(process, sizeof process, "%d", (int)victim);
    argv[n++] = "-p";
    argv[n++] = process;
    argv[n] = NULL;
    const pid_t strace = cluster_spawn(argv, "/dev/null");
    int tries = 0;
    while (!all_traced(victim)) {
        if (cluster_wait(strace, POLL_MS) != -1) return 0;
        ck_assert_int_lt(tries++, TRIES);
    }
    return strace;
}

void strace_end(pid_t strace)
{
    if (strace == 0) return;
    kill(strace, SIGTERM);
    ck_assert_int_ne(cluster_wait(strace, CLUSTER_WAIT_MS), -1);
}

/* ---- what it has seen ---- */

struct counted {
    int thread;
    struct strace_point at;
};

static unsigned count(struct counted *counted, size_t *used, int thread, const char *call)
{
    size_t i = 0;
    while (i < *used && (counted[i].thread != thread || strcmp(counted[i].at.call, call) != 0)) i++;
    if (i == *used) {
        ck_assert_uint_lt(*used, CALLS_MAX);
        counted[i] = (struct counted) { .thread = thread };
        snprintf(counted[i].at.call, sizeof counted[i].at.call, "%s", call);
        (*used)++;
    }
    return ++counted[i].at.nth;
}

size_t strace_points(const char *log, struct strace_point *out, size_t room)
{
    static struct counted counted[CALLS_MAX];
    struct strace_point point;
    char *line = NULL;
    size_t used = 0, found = 0, line_room = 0;
    int thread;
    FILE *file = fopen(log, "re");
    ck_assert_ptr_nonnull(file);
    while (getline(&line, &line_room, file) > 0) {
        if (sscanf(line, "%d %23[a-z0-9_](", &thread, point.call) != 2) continue; // "<... resumed>"
        point.nth = count(counted, &used, thread, point.call);
        size_t i = 0;
        while (i < found && (out[i].nth != point.nth || strcmp(out[i].call, point.call) != 0)) i++;
        if (i == found && found < room) out[found++] = point;
    }
    free(line);
    fclose(file);
    return found;
}
