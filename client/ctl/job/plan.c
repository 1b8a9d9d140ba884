/* cairn job plan: what a job takes of its shards, by the functions by which they admit it. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/ctl/ctl.h"
#include "client/ctl/job/plan_spec.h"
#include "proto/plan/plan_job.h"
#include "proto/spec/optimizer.h"
#include "server/shard/job/need.h"

#define WORKERS_MAX 64 /* round.workers_max, where no coordinator says it and no more are planned */

struct plan {
    struct cairn_job_spec_data spec; /* owned */
    uint32_t shards, workers, workers_max;
    bool has_device; /* its state lies on GPUs */
    double heaviest_over_mean;
    Cairn__MemoryTold *told;  /* owned: [shards] */
    Cairn__MemoryTold **list; /* owned: [shards] */
};

/* A path that is there is a spec. */
static bool is_file(const char *argument)
{
    struct stat s;
    return stat(argument, &s) == 0;
}

/* Asks for the spec of a job that exists; CAIRN_OK, or the reason was said. */
static cairn_status ask_spec(struct ctl *ctl, struct plan *plan)
{
    Cairn__JobSpecGet get = CAIRN__JOB_SPEC_GET__INIT;
    ProtobufCMessage *reply;
    struct cairn_sentence why;
    struct cairn_paged pages = { 0 };
    get.name = ctl->argv[0];
    cairn_status status = cairn_ctl_call_paged(ctl, CAIRN_MSG_JOB_SPEC_GET, &get.base,
                                               CAIRN_MSG_JOB_SPEC_TOLD, &reply, &pages);
    if (status != CAIRN_OK) return status;
    const Cairn__JobSpecTold *told = (const Cairn__JobSpecTold *)reply;
    plan->workers_max = told->workers_max;
    if (plan->shards == 0) plan->shards = told->shards;
    cairn_message_free(reply);
    status = cairn_spec_unpack(pages.bytes, pages.have_bytes, cairn_optimizer_names(), &plan->spec,
                               &why);
    cairn_paged_release(&pages);
    if (status != CAIRN_OK) cairn_ctl_fail(status, "the spec of job %s: %s", get.name, why.text);
    return status;
}

static cairn_status add_shard(struct plan *plan, const struct cairn_layout *layout, uint32_t shard,
                              struct cairn_sentence *why)
{
    struct cairn_shard_map map;
    struct cairn_need need;
    Cairn__MemoryTold *told = plan->list[shard] = &plan->told[shard];
    cairn_status status = cairn_shard_map_init(&map, layout, shard, plan->spec.chunk_leaves);
    if (status != CAIRN_OK) return cairn_fail(why, status, "no memory for a map of the job");
    status = cairn_need_of(&plan->spec, &map, plan->workers_max, plan->has_device, NULL, &need,
                           why);
    cairn_shard_map_release(&map);
    if (status != CAIRN_OK) return status;
    cairn__memory_told__init(told);
    told->shard_index = shard;
    told->state = need.memory.state;
    told->published = need.memory.published;
    told->landing = plan->workers * need.landing_bytes;
    told->staging = need.memory.staging + plan->workers * need.worker_staging_bytes;
    told->tables = need.memory.tables;
    told->device = need.memory.device;
    return CAIRN_OK;
}

static cairn_status make(struct plan *plan, struct cairn_sentence *why)
{
    struct cairn_layout *layout = NULL;
    struct cairn_plan_report report;
    plan->shards = cairn_plan_job_shards(&plan->spec, plan->shards);
    plan->told = calloc(plan->shards, sizeof *plan->told);
    plan->list = calloc(plan->shards, sizeof *plan->list);
    if (plan->told == NULL || plan->list == NULL)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    cairn_status status = cairn_plan_job(&plan->spec, plan->shards, &layout, &report);
    if (status != CAIRN_OK)
        return cairn_fail(why, status, "planning: %s", cairn_status_text((int)status));
    plan->heaviest_over_mean = report.heaviest_over_mean;
    for (uint32_t s = 0; s < plan->shards && status == CAIRN_OK; s++)
        status = add_shard(plan, layout, s, why);
    cairn_layout_close(layout);
    return status;
}

/* Takes what the line says instead of what the spec does. */
static cairn_status change(const struct ctl *ctl, struct plan *plan, struct cairn_sentence *why)
{
    struct cairn_job_spec_data *spec = &plan->spec;
    plan->has_device = ctl->bench.backend != NULL && strcmp(ctl->bench.backend, "cuda") == 0;
    if (ctl->plan.has_offload && !plan->has_device)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "--offload means nothing where state lies in host memory: give --backend "
                          "cuda, too");
    if (ctl->plan.has_stage) spec->stage = ctl->plan.stage;
    if (ctl->plan.has_offload) spec->offload_fraction = ctl->plan.offload;
    for (size_t t = 0; ctl->bench.wire != NULL && t < spec->tensor_count; t++)
        if (spec->tensors[t].kind != CAIRN_BLOB)
            spec->tensors[t].wire = strcmp(ctl->bench.wire, "f32") == 0 ? CAIRN_F32 : CAIRN_BF16;
    return CAIRN_OK;
}

static const char *place_of(const struct plan *plan, char text[static 64])
{
    if (!plan->has_device) return "in host memory";
    snprintf(text, 64, "on GPUs, and %g of it in host memory", plan->spec.offload_fraction);
    return plan->spec.offload_fraction > 0 ? text : "on GPUs";
}

static void print(const struct ctl *ctl, const struct plan *plan)
{
    char place[64];
    if (ctl->json) {
        cairn_ctl_print_json(json_pack(
            "{s:s, s:I, s:i, s:i, s:i, s:i, s:s, s:f, s:f, s:o}", "job", plan->spec.name, "tensors",
            (json_int_t)plan->spec.tensor_count, "stage", (int)plan->spec.stage, "shards",
            (int)plan->shards, "workers", (int)plan->workers, "workers_max", (int)plan->workers_max,
            "backend", plan->has_device ? "cuda" : "host", "offload_fraction",
            plan->spec.offload_fraction, "heaviest_over_mean", plan->heaviest_over_mean, "memory",
            cairn_ctl_job_memory_json(plan->list, plan->shards)));
        return;
    }
    cairn_ctl_line("job", "%s, %zu tensors", plan->spec.name, plan->spec.tensor_count);
    cairn_ctl_line("shards", "%u, heaviest/mean %.3f", plan->shards, plan->heaviest_over_mean);
    cairn_ctl_line("workers", "%u, at most %u", plan->workers, plan->workers_max);
    cairn_ctl_line("state", "%s", place_of(plan, place));
    printf("\n");
    cairn_ctl_job_memory_print(ctl, plan->list, plan->shards);
}

int cairn_ctl_job_plan(struct ctl *ctl)
{
    struct plan plan = { .shards = ctl->shards, .workers_max = WORKERS_MAX };
    struct cairn_sentence why;
    cairn_spec_init(&plan.spec);
    const bool from_file = is_file(ctl->argv[0]);
    if (!from_file && strchr(ctl->argv[0], '/') != NULL) // no job has it in its name
        return cairn_ctl_fail(CAIRN_ERR_NOT_FOUND, "%s: there is no such file or folder",
                              ctl->argv[0]);
    cairn_status status = from_file ? cairn_ctl_plan_spec(ctl->argv[0], &plan.spec, &why)
                                    : ask_spec(ctl, &plan);
    bool is_said = !from_file; // what was asked for
    if (status == CAIRN_OK) {
        is_said = false;
        status = change(ctl, &plan, &why);
    }
    if (status == CAIRN_OK) {
        if (plan.shards == 0) plan.shards = 1;
        plan.workers = ctl->bench.workers != 0 ? ctl->bench.workers : plan.spec.workers_min;
        if (from_file && plan.workers > plan.workers_max) plan.workers_max = plan.workers;
        status = plan.workers <= plan.workers_max
                     ? make(&plan, &why)
                     : cairn_fail(&why, CAIRN_ERR_INVALID,
                                  "%u workers: round.workers_max is %u, so no more are taken",
                                  plan.workers, plan.workers_max);
    }
    if (status == CAIRN_OK)
        print(ctl, &plan);
    else if (!is_said)
        cairn_ctl_fail(status, "%s: %s", ctl->argv[0], why.text);
    cairn_spec_release(&plan.spec);
    free(plan.told);
    free(plan.list);
    return status == CAIRN_OK ? 0 : cairn_status_exit((int)status);
}
