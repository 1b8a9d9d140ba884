/* cairn job plan: the memory that a job needs on its shards, computed by the same functions by
 * which the servers admit a job. cairn job top: how the steps of a job spent their time. cairn env,
 * cairn capabilities: what this process finds in its environment, and what a job may ask for. */
#include <inttypes.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/ctl/ctl.h"
#include "shown.pb-c.h"
#include "client/env.h"
#include "proto/base/text.h"
#include "proto/plan/plan.h"
#include "proto/safetensors/safetensors.h"
#include "proto/snapshot/snapshot.h"
#include "proto/spec/spec.h"
#include "server/shard/need.h"

#define WORKERS_MAX 64 /* round.workers_max, if no coordinator reports it and no more are planned */

#define PLAN_PAGE                                                \
    "job|{job}, {tensors} tensors\n"                             \
    "shards|{shards}, heaviest/mean {heaviest_over_mean/%.3f}\n" \
    "workers|{workers}, at most {workers_max}\n"                 \
    "state|[{?backend=host}in host memory]"                      \
    "[{!backend=host}on GPUs[, and {offload_fraction/%g} of it in host memory]]\n"

struct plan {
    struct job_spec_data spec; /* owned */
    uint32_t shards, workers, workers_max;
    bool has_device; /* the job's state is on GPUs */
    double heaviest_over_mean;
    Cairn__MemoryTold *told;  /* owned: [shards] */
    Cairn__MemoryTold **list; /* owned: [shards] */
};

/* Fetches the spec of an existing job. If this fails, the error was printed. */
static cairn_status ask_spec(struct ctl *ctl, struct plan *plan)
{
    Cairn__JobSpecGet get = CAIRN__JOB_SPEC_GET__INIT;
    ProtobufCMessage *reply;
    struct sentence why;
    struct paged pages = { 0 };
    get.name = ctl->argv[0];
    CAIRN_TRY(ctl_call_paged(ctl, CAIRN_MSG_JOB_SPEC_GET, &get.base, CAIRN_MSG_JOB_SPEC_TOLD,
                             &reply, &pages));
    const Cairn__JobSpecTold *told = (const Cairn__JobSpecTold *)reply;
    plan->workers_max = told->workers_max;
    if (plan->shards == 0) plan->shards = told->shards;
    message_free(reply);
    cairn_status status = spec_unpack(pages.bytes, pages.have_bytes, optimizer_names(), &plan->spec,
                                      &why);
    paged_release(&pages, 1);
    if (status != CAIRN_OK) ctl_fail(status, "the spec of job %s: %s", get.name, why.text);
    return status;
}

static cairn_status add_shard(struct plan *plan, const struct layout *layout, uint32_t shard,
                              struct sentence *why)
{
    struct shard_map map;
    struct need need;
    Cairn__MemoryTold *told = plan->list[shard] = &plan->told[shard];
    cairn_status status = shard_map_init(&map, layout, shard, plan->spec.chunk_leaves);
    if (status != CAIRN_OK) return fail_with(why, status, "out of memory for a map of the job");
    status = need_of(&plan->spec, &map, plan->workers_max, plan->has_device, NULL, &need, why);
    shard_map_release(&map);
    if (status != CAIRN_OK) return status;
    cairn__memory_told__init(told);
    told->shard_index = shard;
    told->state = need.memory.state;
    told->published = need.memory.published;
    told->landing = plan->workers * need.landing_bytes;
    told->staging = need.memory.staging + plan->workers * need.worker_staging_bytes;
    told->tables = need.memory.tables;
    told->former = need.memory.former;
    told->device = need.memory.device;
    return CAIRN_OK;
}

static cairn_status make_plan(struct plan *plan, struct sentence *why)
{
    struct layout *layout = NULL;
    struct plan_report report;
    plan->shards = plan_job_shards(&plan->spec, plan->shards);
    plan->told = calloc(plan->shards, sizeof *plan->told);
    plan->list = calloc(plan->shards, sizeof *plan->list);
    if (plan->told == NULL || plan->list == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    cairn_status status = plan_job(&plan->spec, plan->shards, &layout, &report);
    if (status != CAIRN_OK) return fail_with(why, status, "planning: %s", status_text((int)status));
    plan->heaviest_over_mean = report.heaviest_over_mean;
    for (uint32_t s = 0; s < plan->shards && status == CAIRN_OK; s++)
        status = add_shard(plan, layout, s, why);
    layout_close(layout);
    return status;
}

/* Overrides values of the spec with those of the command line. */
static cairn_status change_spec(const struct ctl *ctl, struct plan *plan, struct sentence *why)
{
    struct job_spec_data *spec = &plan->spec;
    plan->has_device = ctl->bench.backend != NULL && strcmp(ctl->bench.backend, "cuda") == 0;
    if (ctl_is_given(ctl, "offload") && !plan->has_device)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "--offload means nothing where state lies in host memory: give --backend "
                         "cuda, too");
    if (ctl_is_given(ctl, "stage")) spec->stage = ctl->plan.stage;
    if (ctl_is_given(ctl, "offload")) spec->offload_fraction = ctl->plan.offload;
    for (size_t t = 0; ctl->bench.wire != NULL && t < spec->tensor_count; t++)
        if (spec->tensors[t].kind != CAIRN_BLOB)
            spec->tensors[t].wire = strcmp(ctl->bench.wire, "f32") == 0 ? CAIRN_F32 : CAIRN_BF16;
    return CAIRN_OK;
}

static void print_plan(const struct ctl *ctl, const struct plan *plan)
{
    Cairn__ShownPlan shown = CAIRN__SHOWN_PLAN__INIT; // borrows from the plan
    shown.job = plan->spec.name;
    shown.tensors = plan->spec.tensor_count;
    shown.stage = plan->spec.stage;
    shown.shards = plan->shards;
    shown.workers = plan->workers;
    shown.workers_max = plan->workers_max;
    shown.backend = wire_text(plan->has_device ? "cuda" : "host");
    shown.offload_fraction = plan->spec.offload_fraction;
    shown.heaviest_over_mean = plan->heaviest_over_mean;
    shown.memory = plan->list;
    shown.n_memory = plan->shards;
    ctl_show(ctl, &shown, PLAN_PAGE, PLAN_PAGE);
    if (!ctl->json) ctl_job_memory_print(ctl, plan->list, plan->shards);
}

static int run_job_plan(struct ctl *ctl)
{
    struct plan plan = { .shards = ctl->shards, .workers_max = WORKERS_MAX };
    struct sentence why;
    spec_init(&plan.spec);
    struct stat s;
    const bool from_file = stat(ctl->argv[0], &s) == 0;
    if (!from_file && strchr(ctl->argv[0], '/') != NULL) // no job name has a '/'
        return ctl_fail(CAIRN_ERR_NOT_FOUND, "%s: there is no such file or folder", ctl->argv[0]);
    cairn_status status = from_file ? ctl_plan_spec(ctl->argv[0], &plan.spec, &why)
                                    : ask_spec(ctl, &plan);
    bool is_said = !from_file; // ask_spec printed its own errors
    if (status == CAIRN_OK) {
        is_said = false;
        status = change_spec(ctl, &plan, &why);
    }
    if (status == CAIRN_OK) {
        if (plan.shards == 0) plan.shards = 1;
        plan.workers = ctl->bench.workers != 0 ? ctl->bench.workers : plan.spec.workers_min;
        if (from_file && plan.workers > plan.workers_max) plan.workers_max = plan.workers;
        status = plan.workers <= plan.workers_max
                     ? make_plan(&plan, &why)
                     : fail_with(&why, CAIRN_ERR_INVALID,
                                 "%u workers: round.workers_max is %u, so no more are taken",
                                 plan.workers, plan.workers_max);
    }
    if (status == CAIRN_OK)
        print_plan(ctl, &plan);
    else if (!is_said)
        ctl_fail(status, "%s: %s", ctl->argv[0], why.text);
    spec_release(&plan.spec);
    free(plan.told);
    free(plan.list);
    return status == CAIRN_OK ? 0 : status_exit((int)status);
}

const struct ctl_question ctl_job_plan = { .run = run_job_plan };

/* ==== plan spec ==== */

/* Reads a complete file, which the caller owns. NULL: `why` has the reason. */
static char *read_all(const char *path, size_t *bytes_out, struct sentence *why)
{
    struct stat s;
    FILE *file = fopen(path, "re");
    char *text = NULL;
    if (file != NULL && fstat(fileno(file), &s) == 0 && s.st_size >= 0 &&
        (uint64_t)s.st_size <= CAIRN_MANIFEST_BYTES_MAX)
        text = malloc((size_t)s.st_size + 1);
    const int error = errno;
    *bytes_out = text != NULL ? fread(text, 1, (size_t)s.st_size, file) : 0;
    if (file == NULL)
        sentence_set(why, "cannot be read: %s", strerror(error));
    else if (text == NULL)
        sentence_set(why, "is no file of at most %zu bytes", CAIRN_MANIFEST_BYTES_MAX);
    if (file != NULL) fclose(file);
    return text;
}

static cairn_status of_manifest(const char *path, struct job_spec_data *out, struct sentence *why)
{
    struct manifest manifest;
    size_t bytes;
    char *text = read_all(path, &bytes, why);
    if (text == NULL) return CAIRN_ERR_IO;
    cairn_status status = manifest_decode(text, bytes, &manifest, why);
    free(text);
    if (status != CAIRN_OK) return status;
    status = spec_copy(&manifest.spec, out);
    if (status != CAIRN_OK) sentence_set(why, "out of memory");
    manifest_release(&manifest);
    return status;
}

static cairn_status of_json(const char *path, struct job_spec_data *out, struct sentence *why)
{
    size_t bytes;
    char *text = read_all(path, &bytes, why);
    if (text == NULL) return CAIRN_ERR_IO;
    const cairn_status status = spec_of_json(text, bytes, out, why);
    free(text);
    return status;
}

/* Adds the weight as a tensor that AdamW trains. On the wire the tensor has its stored dtype, where that is
 * possible. */
static cairn_status add_weight(struct job_spec_data *spec, const struct weight *weight)
{
    char *name = wire_text(weight->key), *group = wire_text("default");
    const struct cairn_box *box = &weight->entry->box;
    struct tensor_spec tensor = {
        .name = name,
        .group = group,
        .kind = CAIRN_TRAINED,
        .wire = weight->entry->dtype == CAIRN_BF16 ? CAIRN_BF16 : CAIRN_F32,
        .reduce = CAIRN_F32,
        .master = CAIRN_F32,
        .shape = { .rank = box->rank },
    };
    for (uint32_t d = 0; d < box->rank; d++) tensor.shape.dim[d] = box->extent[d];
    return spec_add_tensor(spec, &tensor);
}

/* Adds all weights that a job could read. Integers, which no optimizer trains, are left out and
 * reported. */
static cairn_status add_weights(struct job_spec_data *spec, const struct weights *weights)
{
    struct sentence rest = { "" };
    size_t rest_count = 0;
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < weights->weight_count && status == CAIRN_OK; i++) {
        const struct weight *weight = &weights->weights[i];
        if (weight_readable(weight))
            status = add_weight(spec, weight);
        else if (rest_count++ < CAIRN_WEIGHTS_NAMES_MAX)
            sentence_add(&rest, "%s%s (%s)", rest_count > 1 ? ", " : "", weight->key,
                         weight->entry->dtype_name);
    }
    text_mend(rest.text, "");
    if (rest_count > 0)
        fprintf(stderr, "cairn: job plan: left out, since no job reads such numbers: %s%s\n",
                rest.text, rest_count > CAIRN_WEIGHTS_NAMES_MAX ? ", and more" : "");
    return status;
}

static cairn_status of_weights(const char *path, struct job_spec_data *out, struct sentence *why)
{
    char absolute[PATH_MAX];
    struct weights weights;
    struct job_spec_data spec;
    struct group_spec group = group_default();
    if (realpath(path, absolute) == NULL)
        return fail_with(why, CAIRN_ERR_IO, "cannot be read: %s", strerror(errno));
    CAIRN_TRY(weights_open("/", absolute, &weights, why));
    group.name = wire_text("default");
    group.optimizer = wire_text("adamw");
    spec_init(&spec);
    sentence_set(why, "more tensors than a job may have, or out of memory");
    cairn_status status = spec_set_name(&spec, "weights");
    if (status == CAIRN_OK) status = spec_add_group(&spec, &group);
    if (status == CAIRN_OK) status = add_weights(&spec, &weights);
    weights_close(&weights);
    spec_canonicalize(&spec);
    if (status == CAIRN_OK) status = spec_check(&spec, optimizer_names(), why);
    if (status == CAIRN_OK)
        *out = spec;
    else
        spec_release(&spec);
    return status;
}

cairn_status ctl_plan_spec(const char *path, struct job_spec_data *out, struct sentence *why)
{
    static const char weights[] = ".safetensors";
    char manifest[PATH_MAX];
    struct stat s;
    const size_t length = strlen(path);
    const bool is_folder = stat(path, &s) == 0 && S_ISDIR(s.st_mode);
    snprintf(manifest, sizeof manifest, "%s/%s", path, CAIRN_MANIFEST_NAME);
    if (is_folder && stat(manifest, &s) == 0) return of_manifest(manifest, out, why);
    if (is_folder ||
        (length >= sizeof weights && strcmp(path + length - (sizeof weights - 1), weights) == 0))
        return of_weights(path, out, why);
    return of_json(path, out, why);
}

/* ==== top ==== */

/* cairn job top: shows how a job's last steps spent their time, and for which worker or shard the
 * others wait. */

static uint32_t phase_us(const Cairn__StepTimes *t, size_t phase)
{
    return phase < t->n_us ? t->us[phase] : 0;
}

/* Returns the bytes that the shards counted for a worker; NULL: the shards count only the first 64
 * ranks. */
static const Cairn__BytesTold *bytes_of(const Cairn__JobStatus *job, uint32_t rank)
{
    for (size_t i = 0; i < job->n_bytes; i++)
        if (job->bytes[i]->of_worker && job->bytes[i]->rank == rank) return job->bytes[i];
    return NULL;
}

/* Returns the memory of a worker or shard. False: this worker or shard does not report its memory. */
static bool memory_of(const Cairn__JobStatus *job, const Cairn__StepTimes *t, uint64_t *bytes_out)
{
    const Cairn__WorkerMemory *worker = t->memory;
    if (!t->of_shard && worker != NULL)
        *bytes_out = worker->shared + worker->sums + worker->units + worker->copies;
    if (!t->of_shard) return worker != NULL;
    for (size_t i = 0; i < job->n_memory; i++) {
        const Cairn__MemoryTold *m = job->memory[i];
        if (m->shard_index != t->number || m->untold) continue;
        *bytes_out = ctl_number(m, CTL_MEMORY_SUM);
        return true;
    }
    return false;
}

static void add_worker(Cairn__ShownTop *top, const Cairn__JobStatus *job, const Cairn__StepTimes *t)
{
    Cairn__ShownWorker *worker = ctl_add(top, "workers");
    const Cairn__BytesTold *bytes = bytes_of(job, t->number);
    worker->rank = t->number;
    worker->name = ctl_copy(t->name);
    worker->steps = t->steps;
    worker->compute_us = phase_us(t, 0);
    worker->push_us = phase_us(t, 1);
    worker->wait_us = phase_us(t, 2);
    worker->fetch_us = phase_us(t, 3);
    worker->step_us = t->step_us;
    worker->slowest = t->slowest;
    worker->has_bytes = bytes != NULL;
    if (bytes != NULL) worker->pushed_per_step = bytes->pushed_a_step;
    if (bytes != NULL) worker->fetched_per_step = bytes->fetched_a_step;
    worker->has_memory = memory_of(job, t, &worker->memory_bytes);
}

static void add_shard_times(Cairn__ShownTop *top, const Cairn__JobStatus *job,
                            const Cairn__StepTimes *t)
{
    Cairn__ShownShard *shard = ctl_add(top, "shards");
    shard->index = t->number;
    shard->name = ctl_copy(t->name);
    shard->steps = t->steps;
    shard->collect_us = phase_us(t, 0);
    shard->fold_us = phase_us(t, 1);
    shard->update_us = phase_us(t, 2);
    shard->publish_us = phase_us(t, 3);
    shard->step_us = t->step_us;
    shard->slowest = t->slowest;
    shard->has_memory = memory_of(job, t, &shard->memory_bytes);
}

#define TOP_PAGE                                                                         \
    "job {job}: {state}[, step {step!version_unknown}][, waits for {awaited}]; medians " \
    "of the last steps, in milliseconds{;}\n"                                            \
    "#workers\n"                                                                         \
    "\n"                                                                                 \
    "#shards"

static int show_top(struct ctl *ctl, const void *reply)
{
    const Cairn__JobStatus *job = reply;
    Cairn__ShownTop *top = ctl_message(&cairn__shown_top__descriptor);
    top->job = ctl_copy(job->name);
    top->state = ctl_copy(job->state);
    top->awaited = ctl_copy(job->awaited);
    top->step = job->step;
    top->version_unknown = job->version_unknown;
    for (size_t i = 0; i < job->n_times; i++)
        (job->times[i]->of_shard ? add_shard_times : add_worker)(top, job, job->times[i]);
    ctl_show(ctl, top, TOP_PAGE, TOP_PAGE);
    message_free(&top->base);
    return 0;
}

static int ask_top(struct ctl *ctl)
{
    static const struct ctl_question question = { CTL_ASKS(JOB_SHOW, job_show, JOB_STATUS),
                                                  .fill = "name=@0 times=1", .show = show_top };
    return ctl_ask(ctl, &question);
}

static int run_job_top(struct ctl *ctl)
{
    if (ctl->json || ctl_is_given(ctl, "once")) return ask_top(ctl);
    if (ctl->times.every_s == 0) ctl->times.every_s = 1;
    return ctl_watch(ctl, ask_top);
}

const struct ctl_question ctl_job_top = { .run = run_job_top };

/* ==== env ==== */

/* cairn env */

static void add_value(Cairn__ShownEnv *env, const char *what, const char *text, const char *source)
{
    Cairn__ShownEnvValue *value = ctl_add(env, "values");
    value->what = ctl_copy(what);
    value->text = ctl_copy(text);
    value->from = ctl_copy(source != NULL ? source : "default");
}

static int run_env(struct ctl *ctl)
{
    const struct env_input input = { .get = env_get,
                                     .given[CAIRN_ENV_ENDPOINT] = { ctl->endpoint, "--endpoint" } };
    struct env_report report;
    struct sentence why;
    cairn_status status = env_find_cluster(&input, &report, &why);
    if (status == CAIRN_OK) status = env_find_process(&input, &report, &why);
    if (status != CAIRN_OK) return ctl_fail(status, "%s", why.text);
    Cairn__ShownEnv *env = ctl_message(&cairn__shown_env__descriptor);
    add_value(env, "launcher", report.launcher, report.values[CAIRN_ENV_RANK].source);
    for (enum env_key key = 0; key < CAIRN_ENV_KEYS; key++) {
        const struct env_value *value = &report.values[key];
        add_value(env, env_key_name(key), value->text, value->source);
        Cairn__ShownEnvValue *shown = env->values[env->n_values - 1];
        shown->is_number = key >= CAIRN_ENV_PROCESS && key != CAIRN_ENV_RUN_ID;
        shown->number = value->number;
    }
    ctl_show(ctl, env, "#values", NULL);
    message_free(&env->base);
    return 0;
}

const struct ctl_question ctl_env = { .run = run_env };

/* ==== capabilities ==== */

/* cairn capabilities: what this version supports, from the table that validates specs. Needs no
 * coordinator. */

static int run_capabilities(struct ctl *ctl)
{
    size_t count;
    const struct capability *rows = capability_table(&count);
    Cairn__ShownCapabilities *all = ctl_message(&cairn__shown_capabilities__descriptor);
    for (size_t i = 0; i < count; i++) {
        Cairn__ShownCapability *shown = ctl_add(all, "capabilities");
        shown->field = ctl_copy(capability_field_name(rows[i].field));
        shown->value = (uint32_t)rows[i].value;
        shown->name = ctl_copy(rows[i].value_name);
        shown->supported = rows[i].supported;
        shown->instead = ctl_copy(rows[i].instead != NULL ? rows[i].instead : "");
    }
    ctl_show(ctl, all, "#capabilities", NULL);
    message_free(&all->base);
    return 0;
}

const struct ctl_question ctl_capabilities = { .run = run_capabilities };
