#include "client/ctl/bench/reshard/move.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/bench/bench.h"

#define LOOK_EVERY_MS 10

/* Resident bytes of a process: its own and those of memory that it shares. 0: it is no more. */
static uint64_t resident_bytes(pid_t pid)
{
    char path[64];
    unsigned long long all, resident = 0;
    snprintf(path, sizeof path, "/proc/%ld/statm", (long)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    if (fscanf(file, "%llu %llu", &all, &resident) != 2) resident = 0;
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void look(const struct local *local, uint64_t *most)
{
    for (int i = 1; i < local->daemon_count; i++) {
        const uint64_t bytes = resident_bytes(local->daemons[i].pid);
        if (bytes > most[i]) most[i] = bytes;
    }
}

/* The reply to one question; NULL, and said: it failed. */
static ProtobufCMessage *ask(struct bench_mover *m, uint32_t op)
{
    char names[CTL_SHARDS_MAX][24], *list[CTL_SHARDS_MAX];
    Cairn__ReshardAsk message = CAIRN__RESHARD_ASK__INIT;
    ProtobufCMessage *reply;
    const size_t count = op == CAIRN_RESHARD_APPLY ? m->last - m->first + 1 : 0;
    for (size_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "shard-%zu", m->first + i);
        list[i] = names[i];
    }
    message.job = (char *)(uintptr_t)m->job;
    message.op = op;
    message.add = message.drain = list;
    message.n_add = m->adds ? count : 0;
    message.n_drain = m->adds ? 0 : count;
    const cairn_status called = cairn_ctl_call(&m->ctl, CAIRN_MSG_RESHARD_ASK, &message.base,
                                               CAIRN_MSG_RESHARD_TOLD, &reply);
    return called == CAIRN_OK ? reply : NULL;
}

/* 1: it goes on; 0: done; -1, and said: it failed. */
static int judge(struct bench_mover *m, const Cairn__ReshardTold *told)
{
    const Cairn__ReshardJob *job = told->n_jobs == 1 ? told->jobs[0] : NULL;
    if (job != NULL && strcmp(job->state, "moving") == 0) return 1;
    if (job == NULL || strcmp(job->state, "done") != 0) {
        (void)cairn_ctl_fail(CAIRN_ERR_REFUSED, "the move of job %s: %s", m->job,
                             job != NULL ? job->text : "it is not known");
        return -1;
    }
    m->move.moved_bytes = (double)job->moved_bytes;
    m->move.least_bytes = (double)job->least_bytes;
    m->move.slices = job->slice;
    m->move.state_bytes = (double)job->state_bytes;
    m->move.state_s = (double)job->state_us * 1e-6;
    m->move.prepare_s = (double)job->prepare_us * 1e-6;
    m->move.cut_s = (double)job->cut_us * 1e-6;
    m->move.waited_s = (double)job->move_us * 1e-6;
    return 0;
}

static int step(struct bench_mover *m, uint32_t op)
{
    ProtobufCMessage *reply = ask(m, op);
    if (reply == NULL) return -1;
    const int goes_on = judge(m, (const Cairn__ReshardTold *)reply);
    cairn_message_free(reply);
    return goes_on;
}

/* False, and said: it failed. */
static bool await_rest(struct bench_mover *m)
{
    for (bool rests = false; !rests;) {
        ProtobufCMessage *reply = ask(m, CAIRN_RESHARD_STATUS);
        if (reply == NULL) return false;
        const Cairn__ReshardTold *told = (const Cairn__ReshardTold *)reply;
        rests = told->n_jobs == 1 && told->jobs[0]->rests;
        cairn_message_free(reply);
        if (!rests) poll(NULL, 0, LOOK_EVERY_MS);
    }
    return true;
}

static double memory_of(const struct bench_mover *m, const uint64_t *before, const uint64_t *after)
{
    const double slice = m->move.slices > 0 ? m->move.moved_bytes / m->move.slices : 0;
    double worst = 0;
    for (int i = 1; i < m->local->daemon_count; i++) {
        const double owned = (double)(before[i] > after[i] ? before[i] : after[i]);
        if (owned + slice > 0 && (double)m->peaks[i] / (owned + slice) > worst)
            worst = (double)m->peaks[i] / (owned + slice);
    }
    return worst;
}

static void *run(void *context)
{
    struct bench_mover *m = context;
    uint64_t before[1 + CTL_SHARDS_MAX] = { 0 }, after[1 + CTL_SHARDS_MAX] = { 0 };
    int goes_on = m->rests && !await_rest(m) ? -1 : 1;
    look(m->local, before);
    const double begin = cairn_bench_now();
    if (goes_on > 0) goes_on = step(m, CAIRN_RESHARD_APPLY);
    while (goes_on > 0) {
        look(m->local, m->peaks);
        poll(NULL, 0, LOOK_EVERY_MS);
        goes_on = step(m, CAIRN_RESHARD_STATUS);
    }
    m->move.seconds = cairn_bench_now() - begin;
    look(m->local, after);
    m->move.memory = memory_of(m, before, after);
    m->is_ok = goes_on == 0;
    atomic_store(&m->is_over, true);
    return NULL;
}

bool cairn_bench_move_begin(struct bench_mover *m)
{
    m->ctl = *m->local->ctl;
    m->ctl.endpoint = m->local->endpoint;
    memset(m->peaks, 0, sizeof m->peaks);
    m->move = (struct bench_move) { 0 };
    atomic_store(&m->is_over, false);
    if (pthread_create(&m->thread, NULL, run, m) == 0) return true;
    (void)cairn_ctl_fail(CAIRN_ERR_NO_MEMORY, "no thread");
    return false;
}

bool cairn_bench_move_end(struct bench_mover *m, struct bench_move *move_out)
{
    pthread_join(m->thread, NULL);
    *move_out = m->move;
    return m->is_ok;
}
