/* cairn job top: where the last steps of a job went, and for whom the others wait. */
#include <string.h>

#include "client/ctl/ctl.h"

enum { PHASES = 4 };
static const char *const worker_phases[PHASES] = { "compute", "push", "wait", "fetch" };
static const char *const shard_phases[PHASES] = { "collect", "fold", "update", "publish" };

static double ms(uint32_t us)
{
    return us / 1e3;
}

static uint32_t phase_us(const Cairn__StepTimes *t, size_t phase)
{
    return phase < t->n_us ? t->us[phase] : 0;
}

/* The bytes that the shards counted for a worker; NULL: it is none of the first 64. */
static const Cairn__BytesTold *bytes_of(const Cairn__JobStatus *job, uint32_t rank)
{
    for (size_t i = 0; i < job->n_bytes; i++)
        if (job->bytes[i]->of_worker && job->bytes[i]->rank == rank) return job->bytes[i];
    return NULL;
}

/* False: the worker or shard does not tell. */
static bool memory_of(const Cairn__JobStatus *job, const Cairn__StepTimes *t, uint64_t *bytes_out)
{
    const Cairn__WorkerMemory *worker = t->memory;
    if (!t->of_shard && worker != NULL)
        *bytes_out = worker->shared + worker->sums + worker->units + worker->copies;
    if (!t->of_shard) return worker != NULL;
    for (size_t i = 0; i < job->n_memory; i++) {
        const Cairn__MemoryTold *m = job->memory[i];
        if (m->shard_index != t->number || m->untold) continue;
        *bytes_out = cairn_ctl_job_memory_sum(m);
        return true;
    }
    return false;
}

/* ---- JSON ---- */

static json_t *entry_json(const Cairn__JobStatus *job, const Cairn__StepTimes *t)
{
    const char *const *names = t->of_shard ? shard_phases : worker_phases;
    json_t *entry = json_pack("{s:s, s:I, s:i, s:b}", "name", t->name,
                              t->of_shard ? "index" : "rank", (json_int_t)t->number, "steps",
                              (int)t->steps, "slowest", (int)t->slowest);
    for (size_t p = 0; p < PHASES; p++) {
        char key[24];
        snprintf(key, sizeof key, "%s_ms", names[p]);
        json_object_set_new(entry, key, t->steps > 0 ? json_real(ms(phase_us(t, p))) : json_null());
    }
    json_object_set_new(entry, "step_ms", t->steps > 0 ? json_real(ms(t->step_us)) : json_null());
    uint64_t memory = 0;
    const bool is_known = memory_of(job, t, &memory);
    json_object_set_new(entry, "memory_bytes", cairn_ctl_json_known(is_known, memory));
    if (t->of_shard) return entry;
    const Cairn__BytesTold *bytes = bytes_of(job, t->number);
    json_object_set_new(entry, "pushed_per_step",
                        bytes != NULL ? json_real(bytes->pushed_a_step) : json_null());
    json_object_set_new(entry, "fetched_per_step",
                        bytes != NULL ? json_real(bytes->fetched_a_step) : json_null());
    return entry;
}

static void print_json(const Cairn__JobStatus *job)
{
    json_t *workers = json_array(), *shards = json_array();
    for (size_t i = 0; i < job->n_times; i++)
        json_array_append_new(job->times[i]->of_shard ? shards : workers,
                              entry_json(job, job->times[i]));
    json_t *object = json_pack("{s:s, s:s, s:s, s:o, s:o}", "job", job->name, "state", job->state,
                               "awaited", job->awaited, "workers", workers, "shards", shards);
    json_object_set_new(object, "step", cairn_ctl_json_known(!job->version_unknown, job->step));
    cairn_ctl_print_json(object);
}

/* ---- tables ---- */

static void add_times(struct ctl_table *table, const Cairn__StepTimes *t)
{
    for (size_t p = 0; p < PHASES; p++)
        if (t->steps > 0)
            cairn_ctl_table_cell(table, "%.1f", ms(phase_us(t, p)));
        else
            cairn_ctl_table_cell(table, "-");
    if (t->steps > 0)
        cairn_ctl_table_cell(table, "%.1f", ms(t->step_us));
    else
        cairn_ctl_table_cell(table, "-");
    cairn_ctl_table_cell(table, "%u", t->steps);
}

static void add_memory(struct ctl_table *table, const Cairn__JobStatus *job,
                       const Cairn__StepTimes *t)
{
    uint64_t bytes;
    const bool is_known = memory_of(job, t, &bytes);
    cairn_ctl_table_cell(table, "%s", is_known ? cairn_ctl_bytes(bytes) : "-");
}

static void print_workers(const struct ctl *ctl, const Cairn__JobStatus *job)
{
    static const char *const headers[] = { "RANK",    "COMPUTE", "PUSH",     "WAIT",
                                           "FETCH",   "STEP MS", "OF STEPS", "PUSHED",
                                           "FETCHED", "MEMORY",  "WORKER",   "" };
    struct ctl_table *table = cairn_ctl_table_open(headers, 12);
    for (size_t i = 0; i < job->n_times; i++) {
        const Cairn__StepTimes *t = job->times[i];
        if (t->of_shard) continue;
        const Cairn__BytesTold *bytes = bytes_of(job, t->number);
        cairn_ctl_table_cell(table, "%u", t->number);
        add_times(table, t);
        cairn_ctl_table_cell(table, "%s",
                             bytes != NULL ? cairn_ctl_bytes((uint64_t)bytes->pushed_a_step) : "-");
        cairn_ctl_table_cell(
            table, "%s", bytes != NULL ? cairn_ctl_bytes((uint64_t)bytes->fetched_a_step) : "-");
        add_memory(table, job, t);
        cairn_ctl_table_cell(table, "%s", t->name);
        cairn_ctl_table_cell(table, "%s", t->slowest ? "<- slowest" : "");
    }
    cairn_ctl_table_close(table, ctl);
}

static void print_shards(const struct ctl *ctl, const Cairn__JobStatus *job)
{
    static const char *const headers[] = { "SHARD",   "COLLECT",  "FOLD",   "UPDATE", "PUBLISH",
                                           "STEP MS", "OF STEPS", "MEMORY", "" };
    struct ctl_table *table = cairn_ctl_table_open(headers, 9);
    for (size_t i = 0; i < job->n_times; i++) {
        const Cairn__StepTimes *t = job->times[i];
        if (!t->of_shard) continue;
        cairn_ctl_table_cell(table, "%s", t->name);
        add_times(table, t);
        add_memory(table, job, t);
        cairn_ctl_table_cell(table, "%s", t->slowest ? "<- slowest" : "");
    }
    cairn_ctl_table_close(table, ctl);
}

static void print_job(const struct ctl *ctl, const Cairn__JobStatus *job)
{
    printf("job %s: %s", job->name, job->state);
    if (!job->version_unknown) printf(", step %llu", (unsigned long long)job->step);
    if (job->awaited[0] != '\0') printf(", waits for %s", job->awaited);
    printf("; medians of the last steps, in milliseconds\n\n");
    print_workers(ctl, job);
    printf("\n");
    print_shards(ctl, job);
}

static int show(struct ctl *ctl)
{
    Cairn__JobShow message = CAIRN__JOB_SHOW__INIT;
    ProtobufCMessage *reply;
    message.name = ctl->argv[0];
    message.times = true;
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_JOB_SHOW, &message.base,
                                               CAIRN_MSG_JOB_STATUS, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    if (ctl->json)
        print_json((const Cairn__JobStatus *)reply);
    else
        print_job(ctl, (const Cairn__JobStatus *)reply);
    cairn_message_free(reply);
    return 0;
}

int cairn_ctl_job_top(struct ctl *ctl)
{
    if (ctl->json || ctl->once) return show(ctl);
    if (ctl->every_s == 0) ctl->every_s = 1;
    return cairn_ctl_watch(ctl, show);
}
