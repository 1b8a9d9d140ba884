/* cairn job list | show | digest; top and plan have separate files */
#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "proto/snapshot/snapshot.h"
#include "proto/spec/spec.h"

#define DIGEST_TIMEOUT_MS 600000

/* ==== job memory ==== */

/* The memory that a job uses on its shards, by kind. */

uint64_t ctl_job_memory_sum(const Cairn__MemoryTold *m)
{
    return m->state + m->published + m->landing + m->staging + m->tables;
}

static Cairn__MemoryTold all_of(Cairn__MemoryTold *const *shards, size_t count)
{
    Cairn__MemoryTold all = CAIRN__MEMORY_TOLD__INIT;
    for (size_t i = 0; i < count; i++) {
        all.state += shards[i]->state;
        all.published += shards[i]->published;
        all.landing += shards[i]->landing;
        all.staging += shards[i]->staging;
        all.tables += shards[i]->tables;
        all.device += shards[i]->device;
    }
    return all;
}

static json_t *kinds_json(const Cairn__MemoryTold *m)
{
    json_t *object = json_pack("{s:I}", "total", (json_int_t)ctl_job_memory_sum(m));
    ctl_json_add(object, m, "state published landing staging tables device");
    return object;
}

json_t *ctl_job_memory_json(Cairn__MemoryTold *const *shards, size_t count)
{
    const Cairn__MemoryTold all = all_of(shards, count);
    json_t *object = kinds_json(&all), *list = json_array();
    for (size_t i = 0; i < count; i++) {
        json_t *entry = kinds_json(shards[i]);
        json_object_set_new(entry, "index", json_integer((json_int_t)shards[i]->shard_index));
        if (shards[i]->shard[0] != '\0')
            json_object_set_new(entry, "shard", json_string(shards[i]->shard));
        json_array_append_new(list, entry);
    }
    json_object_set_new(object, "shards", list);
    return object;
}

static void add_total(struct ctl_table *table, const void *message)
{
    const Cairn__MemoryTold *m = message;
    ctl_table_cell(table, "%s", m->untold ? "-" : ctl_bytes(ctl_job_memory_sum(m)));
}

void ctl_job_memory_print(const struct ctl *ctl, Cairn__MemoryTold *const *shards, size_t count)
{
    static const struct ctl_column columns[] = {
        { "MEMORY OF", "[{shard}][{!shard}shard {shard_index}]", NULL },
        { "STATE", "state/bytes!untold", NULL },
        { "PUBLISHED", "published/bytes!untold", NULL },
        { "LANDING", "landing/bytes!untold", NULL },
        { "STAGING", "staging/bytes!untold", NULL },
        { "TABLES", "tables/bytes!untold", NULL },
        { "TOTAL", NULL, add_total },
        { "ON DEVICE", "device/bytes!untold", NULL },
    };
    Cairn__MemoryTold all = all_of(shards, count), *const last = &all;
    all.shard = wire_text("all");
    struct ctl_table *table = ctl_table_of(columns, all.device > 0 ? 8 : 7);
    ctl_table_rows(table, shards, count);
    if (count > 1) ctl_table_rows(table, &last, 1);
    ctl_table_close(table, ctl);
}

/* ==== job bytes ==== */

static json_t *entry_json(const Cairn__BytesTold *b)
{
    json_t *entry = json_pack("{s:{}, s:{}, s:{s:f, s:f}}", "pushed", "fetched", "per_step",
                              "pushed", b->pushed_a_step, "fetched", b->fetched_a_step);
    ctl_json_add(json_object_get(entry, "pushed"), b,
                 "shared=pushed_shared carried=pushed_carried one_sided=pushed_one_sided "
                 "device=pushed_device direct=pushed_direct");
    ctl_json_add(json_object_get(entry, "fetched"), b,
                 "shared=fetched_shared carried=fetched_carried one_sided=fetched_one_sided "
                 "device=fetched_device direct=fetched_direct");
    ctl_json_add(entry, b, "put steps");
    return entry;
}

/* Returns a new object with the bytes by transport, in total and for each worker. */
static json_t *job_bytes_json(const Cairn__JobStatus *job)
{
    json_t *workers = json_array();
    json_t *object = json_object();
    for (size_t i = 0; i < job->n_bytes; i++) {
        const Cairn__BytesTold *b = job->bytes[i];
        json_t *entry = entry_json(b);
        if (b->of_worker) {
            json_object_set_new(entry, "rank", json_integer((json_int_t)b->rank));
            json_array_append_new(workers, entry);
        } else {
            json_object_update(object, entry);
            json_decref(entry);
        }
    }
    json_object_set_new(object, "workers", workers);
    return object;
}

static void print_entry(const char *name, const Cairn__BytesTold *b)
{
    ctl_line_of(name, b,
                "pushed {pushed_shared/bytes} shared, {pushed_carried/bytes} carried; fetched "
                "{fetched_shared/bytes}, {fetched_carried/bytes}");
    if (b->pushed_one_sided > 0 || b->fetched_one_sided > 0)
        ctl_lines(b, "|of the carried, read one-sidedly: pushed {pushed_one_sided/bytes}, fetched "
                     "{fetched_one_sided/bytes}");
    if (b->pushed_direct > 0 || b->fetched_direct > 0)
        ctl_lines(b, "|of the carried, right from a card: pushed {pushed_direct/bytes}, fetched "
                     "{fetched_direct/bytes}");
    if (b->pushed_device > 0 || b->fetched_device > 0)
        ctl_lines(b, "|of the shared, from and to a card, past the host: pushed "
                     "{pushed_device/bytes}, fetched {fetched_device/bytes}");
    ctl_lines(b,
              "|a step, of {steps?}: pushed {pushed_a_step/bytes}, fetched {fetched_a_step/bytes}");
}

static void job_bytes_print(const Cairn__JobStatus *job)
{
    char name[32];
    for (size_t i = 0; i < job->n_bytes; i++) {
        const Cairn__BytesTold *b = job->bytes[i];
        if (b->of_worker) snprintf(name, sizeof name, "  worker %u", b->rank);
        print_entry(b->of_worker ? name : "  by way", b);
    }
}

/* ==== job groups ==== */

static bool wants_groups(const Cairn__JobStatus *j)
{
    return j->spec != NULL && j->spec->reduce_groups != CAIRN_GROUPS_NONE;
}

/* Adds "ranks 0-3 by shard s0"; "rank 4" for a rank without a group. */
static void add_group(const Cairn__ReduceGroup *group, struct sentence *out)
{
    sentence_add(out, "rank%s ", group->n_ranks == 1 ? "" : "s");
    ranks_add_text(group->ranks, group->n_ranks, out);
    if (group->host[0] == '\0') return;
    sentence_add(out, " by shard%s %s", strchr(group->host, ',') == NULL ? "" : "s", group->host);
}

/* Prints one line: "reduce groups: 2 (ranks 0-3 by shard s0; ranks 4-7 by shards s1, s2)". */
static void groups_print(const Cairn__JobStatus *j)
{
    struct sentence text = { "" };
    if (!wants_groups(j)) return;
    for (size_t i = 0; i < j->n_reduce_groups; i++) {
        sentence_add(&text, "%s", i > 0 ? "; " : "");
        add_group(j->reduce_groups[i], &text);
    }
    if (j->reduce_group_count > j->n_reduce_groups)
        sentence_add(&text, "; and %zu more", j->reduce_group_count - j->n_reduce_groups);
    if (j->reduce_group_count > 0)
        ctl_line("reduce groups", "%u (%s)", j->reduce_group_count, text.text);
    else
        ctl_line("reduce groups", "none%s%s", j->reduce_groups_off[0] != '\0' ? ": " : " yet",
                 j->reduce_groups_off);
}

/* ==== rules ==== */

/* Prints a job's snapshot rules for `cairn job show`. */

static void print_rules(const Cairn__JobSpec *s)
{
    if (s->snapshot_every > 0 || s->snapshot_every_s > 0)
        ctl_lines(s, "snapshots|every [{snapshot_every} step{snapshot_every/plural}]"
                     "[{!snapshot_every}{snapshot_every_s/span}][, the newest {snapshot_keep}]"
                     "[, the first of every {snapshot_keep_every} steps]"
                     "[, those of the last {snapshot_keep_within_s/span}]"
                     "[{!snapshot_keep}{!snapshot_keep_every}{!snapshot_keep_within_s}, all]"
                     " are kept[, at most {snapshot_max_bytes/bytes} of all]");
    ctl_line("staging", "%s", capability_name(CAIRN_CAPABILITY_STAGING, (int)s->snapshot_staging));
    ctl_lines(s, "durable within|{snapshot_durable_within_s/span?}\n"
                 "scrubbed every|{snapshot_scrub_every_s/span?}\n"
                 "fallback|{?snapshot_fallback}a damaged snapshot: the newest good one before it");
}

/* ==== job ==== */

static json_t *group_json_job(const Cairn__GroupSpec *g)
{
    struct group_spec spec;
    if (group_of_message(g, &spec) != CAIRN_OK) return json_null();
    json_t *group = json_pack("{s:s, s:s, s:b, s:f, s:o}", "name", g->name, "optimizer",
                              g->optimizer, "frozen", (int)g->frozen, "lr_now", g->lr_now,
                              "schedule", schedule_json(&spec.schedule));
    return spec_fields_json(group, &group_fields, CAIRN_SPEC_ALL, &spec);
}

/* Returns the fields of the spec that apply to the complete job. */
static json_t *spec_json(const Cairn__JobSpec *s)
{
    struct job_spec_data spec;
    spec_init(&spec); // owns nothing
    spec_fields_of_message(s, &spec);
    json_t *object = json_pack("{s:I}", "revision", (json_int_t)s->revision);
    return spec_fields_json(object, &spec_fields, CAIRN_SPEC_ALL, &spec);
}

/* True if all shards of the job have reported the bytes that they hold and that they transferred. */
static bool is_told(const Cairn__JobStatus *j)
{
    return j->shards_told >= j->shards;
}

static const char *told_bytes(const Cairn__JobStatus *j, uint64_t bytes)
{
    return is_told(j) ? ctl_bytes(bytes) : "unknown";
}

static json_t *job_json(struct ctl *ctl, const void *reply)
{
    const Cairn__JobStatus *j = reply;
    (void)ctl;
    static const char *const told[] = { "state_bytes", "pushed_bytes", "fetched_bytes", "memory" };
    json_t *groups = json_array(), *object = ctl_json(j);
    for (size_t i = 0; i < j->n_groups; i++)
        json_array_append_new(groups, group_json_job(j->groups[i]));
    json_object_set_new(object, "groups", groups);
    json_object_set_new(object, "memory", ctl_job_memory_json(j->memory, j->n_memory));
    for (size_t i = 0; i < sizeof told / sizeof *told && !is_told(j); i++)
        json_object_set_new(object, told[i], json_null());
    if (j->spec != NULL) json_object_set_new(object, "spec", spec_json(j->spec));
    if (j->n_bytes > 0)
        json_object_set_new(object, "bytes", is_told(j) ? job_bytes_json(j) : json_null());
    if (wants_groups(j))
        ctl_json_add(object, j, "reduce_groups reduce_group_count reduce_groups_off");
    return object;
}

static void add_workers(struct ctl_table *table, const void *message)
{
    const Cairn__JobStatus *j = message;
    if (j->workers_max == 0)
        ctl_table_cell(table, "%u (%u or more)", j->workers, j->workers_min);
    else if (j->workers_max > j->workers_min)
        ctl_table_cell(table, "%u (%u to %u)", j->workers, j->workers_min, j->workers_max);
    else
        ctl_table_cell(table, "%u of %u", j->workers, j->workers_min);
}

static void add_memory(struct ctl_table *table, const void *message)
{
    const Cairn__JobStatus *j = message;
    ctl_table_cell(table, "%s", told_bytes(j, j->state_bytes));
}

static json_t *jobs_json(struct ctl *ctl, const void *reply)
{
    const Cairn__JobList *list = reply;
    json_t *jobs = json_array();
    if (list->n_jobs == 0 && !ctl->quiet) ctl_say_strangers(ctl);
    for (size_t i = 0; i < list->n_jobs; i++)
        json_array_append_new(jobs, job_json(ctl, list->jobs[i]));
    return json_pack("{s:o}", "jobs", jobs);
}

static void print_jobs(struct ctl *ctl, const void *reply)
{
    static const struct ctl_column columns[] = {
        { "JOB", "name", NULL },
        { "STATE", "state", NULL },
        { "GENERATION", "generation!version_unknown", NULL },
        { "STEP", "step!version_unknown", NULL },
        { "LAST STEP", "{?stepped}{stepped_ms_ago/s} ago", NULL },
        { "WORKERS", NULL, add_workers },
        { "SHARDS", "shards", NULL },
        { "MEMORY", NULL, add_memory },
        { "SNAPSHOTS", "{?snapshot_failed}failed", NULL },
        { "WAITS FOR", "[{?path_cut}data path cut; ]{awaited}", NULL },
    };
    const Cairn__JobList *list = reply;
    if (ctl->quiet) {
        for (size_t i = 0; i < list->n_jobs; i++) printf("%s\n", list->jobs[i]->name);
        return;
    }
    ctl_table_print(ctl, CTL_COLUMNS(columns), list->jobs, list->n_jobs);
    if (list->n_jobs == 0) ctl_say_strangers(ctl);
}

static const struct ctl_question job_list_question = CTL_QUESTION(
    JOB_LIST_GET, job_list_get, "", JOB_LIST, .print = print_jobs, .is_quiet_too = true,
    .json = jobs_json);

static void print_group(const Cairn__GroupSpec *g)
{
    ctl_lines(g, "group|{name}: {optimizer} lr {lr/%g} betas {beta1/%g} {beta2/%g} eps {eps/%g} "
                 "weight_decay {weight_decay/%g} momentum {momentum/%g}[{?nesterov} nesterov]"
                 "[{?frozen}, frozen]");
    if (g->schedule == CAIRN_SCHEDULE_CONSTANT && g->warmup_steps == 0) return;
    char *steps = ctl_text_of(g, "[ warm-up {warmup_steps}][ total {total_steps}]"
                                 "[ decay {decay_steps}][ {points/2%.0f} points][ to {lr_min/%g}]");
    const bool driven = g->schedule == CAIRN_SCHEDULE_DRIVEN; // the trainer sets the next value
    ctl_line("", "  %s%s; lr of the %s round %g", schedule_name((int)g->schedule), steps,
             driven ? "last" : "next", g->lr_now);
    free(steps);
}

/* With global_batch, the number of micro-batches in a round counts those of all workers together. */
static void print_stage(const Cairn__JobSpec *s)
{
    const uint32_t micros = s->global_batch > 0 ? s->global_batch : s->micro_batches;
    ctl_line("stage", "%u: %s; %u micro-batch%s a round%s", s->stage,
             capability_name(CAIRN_CAPABILITY_STAGE, (int)s->stage), micros,
             micros == 1 ? "" : "es",
             s->global_batch > 0 ? ", dealt to the workers that there are" : "");
}

static void print_spec(const Cairn__JobSpec *s)
{
    print_stage(s);
    ctl_lines(
        s, "clip norm|{clip_norm/%g?}\n"
           "offload|{offload_fraction/%g?} of the state in host memory, where a shard has a GPU");
    ctl_line("not finite", "%s", capability_name(CAIRN_CAPABILITY_NONFINITE, (int)s->on_nonfinite));
    print_rules(s);
    const char *loss = capability_name(CAIRN_CAPABILITY_SHARD_LOSS, (int)s->on_shard_loss);
    if (s->on_shard_loss == CAIRN_SHARD_LOSS_WAIT)
        ctl_line("on shard loss", "%s", loss);
    else
        ctl_line("on shard loss", "%s, when it is away for %u s or comes back empty", loss,
                 s->shard_loss_wait_s);
    loss = capability_name(CAIRN_CAPABILITY_WORKER_LOSS, (int)s->on_worker_loss);
    if (s->on_worker_loss == CAIRN_WORKER_LOSS_WAIT)
        ctl_line("on worker loss", "%s, for %u s at most", loss,
                 s->worker_loss_wait_s > 0 ? s->worker_loss_wait_s : CAIRN_SPEC_LOSS_WAIT_S);
    else
        ctl_line("on worker loss", "%s", loss);
    ctl_lines(s, "amended|{revision?} time{revision/plural}");
}

static void print_loss_scale(const Cairn__JobStatus *j)
{
    const Cairn__JobSpec *s = j->spec;
    if (s == NULL || s->loss_scale_policy != CAIRN_LOSS_SCALE_DYNAMIC)
        ctl_lines(j, "loss scale|{loss_scale/%g}, fixed");
    else
        ctl_lines(j,
                  "loss scale|{loss_scale/%g}, dynamic from {spec.loss_scale_min/%g} to "
                  "{spec.loss_scale_max/%g}, doubled after {spec.loss_scale_growth_steps} rounds");
}

static void print_frozen(const Cairn__JobStatus *j)
{
    for (size_t i = 0; i < j->n_frozen_tensors; i++)
        ctl_line(i == 0 ? "frozen tensors" : "", "%s", j->frozen_tensors[i]);
    if (j->frozen_tensor_count > j->n_frozen_tensors)
        ctl_line("", "and %" PRIu64 " more", (j->frozen_tensor_count - j->n_frozen_tensors));
}

static void print_workers(const Cairn__JobStatus *j)
{
    const uint32_t batch = j->spec != NULL ? j->spec->global_batch : 0;
    char most[32] = "", surplus[64] = "";
    if (j->workers_max > 0) snprintf(most, sizeof most, ", at most %u", j->workers_max);
    if (batch > 0 && j->workers > batch)
        snprintf(surplus, sizeof surplus, "; %u without a micro-batch idle", j->workers - batch);
    ctl_line("workers", "%u attached, at least %u%s%s", j->workers, j->workers_min, most, surplus);
}

static void print_job(struct ctl *ctl, const void *reply)
{
    const Cairn__JobStatus *j = reply;
    ctl_lines(j, "job|{name}\n"
                 "state|{state}\n" CTL_VERSION_LINES(
                     "version") "\n"
                                "epoch, round|{epoch}, {round}\n"
                                "waits for|{awaited?}\n"
                                "data path|cut: {path_cut?}\n"
                                "held up by|{?straggler}{straggler.text}\n" CTL_DAMAGED_LINE "\n"
                                "last round|skipped: {gradient?}\n"
                                "put out|{put_out?}\n"
                                "last step|{?stepped}{stepped_ms_ago/1000%.1f} s ago\n"
                                "no snapshot|{snapshot_failed?}\n"
                                "saving|{saving?}\n"
                                "passed over|{passed_over?}\n"
                                "restored|{restores?} time{restores/plural} by itself since a step "
                                "was applied");
    print_workers(j);
    ctl_lines(j,
              "shards|{shards}[, heaviest/mean {heaviest_over_mean/%.3f}], layout {layout_hash}\n"
              "pieces|{pieces} of its tensors on shards, in {extents?} extents");
    ctl_line("tensors", "%" PRIu64 ", %" PRIu64 " elements, memory: %s", j->tensors, j->elems,
             told_bytes(j, j->state_bytes));
    ctl_lines(j, "|{blobs?} of them blobs, {blob_bytes} bytes");
    if (j->spec != NULL) print_spec(j->spec);
    for (size_t i = 0; i < j->n_groups; i++) print_group(j->groups[i]);
    print_frozen(j);
    groups_print(j);
    if (!j->version_unknown) print_loss_scale(j);
    ctl_lines(j, "client state|{!version_unknown}{?spec.client_state_max}{client_state_bytes} "
                 "bytes, at most {spec.client_state_max}");
    for (size_t i = 0; i < j->n_leases; i++)
        ctl_lines(j->leases[i], "lease|generation {generation}, step {step}: {role/role} {holder}, "
                                "{left_ms/1000%.1f} s left");
    ctl_lines(j, "gradient norm|{!version_unknown}{last_grad_norm/%g}");
    ctl_line("pushed, fetched", "%s, %s", told_bytes(j, j->pushed_bytes),
             told_bytes(j, j->fetched_bytes));
    if (is_told(j)) job_bytes_print(j);
    ctl_lines(j, "rounds|{steps_applied} applied, {rounds_skipped} skipped, {rounds_abandoned} "
                 "abandoned since the coordinator started");
    if (j->skips > 0)
        ctl_line("skipped", "%" PRIu64 " in all; the next batch is number %" PRIu64, j->skips,
                 (j->step + j->skips));
    ctl_lines(j, "|{?spec}{?skips_in_row}{skips_in_row} in a row with the loss scale at its least, "
                 "at most {spec.skips_max}");
    if (!is_told(j) || j->n_memory == 0) return;
    printf("\n");
    ctl_job_memory_print(ctl, j->memory, j->n_memory);
}

static const struct ctl_question job_show_question = CTL_QUESTION(
    JOB_SHOW, job_show, "name=@0", JOB_STATUS, .print = print_job, .json = job_json);

static const struct ctl_question job_digest_question = CTL_QUESTION(
    JOB_DIGEST_GET, job_digest_get, "name=@0", JOB_DIGEST, .timeout_ms = DIGEST_TIMEOUT_MS,
    .awaits = true, .quiet = "{root}", .lines = "{root}  {@0} generation {generation} step {step}",
    .fields = "job=@0 generation step content_root=root");

/* ==== drop ==== */

/* cairn job drop, cairn job park and unpark */

#define REMOVE_TIMEOUT_MS 600000

static void print_dropped(struct ctl *ctl, const void *reply)
{
    const Cairn__JobRemoved *removed = reply;
    (void)ctl;
    ctl_lines(removed, "dropped|{name}\n" CTL_VERSION_LINES(
                           "was at") "\n"
                                     "shards|{shards} have given its memory back");
    for (size_t i = 0; i < removed->n_away; i++)
        ctl_line("away", "%s, which drops its part when it is back", removed->away[i]);
    ctl_lines(removed, "note|{note?}");
}

static const struct ctl_question job_drop_question = CTL_QUESTION(
    JOB_REMOVE, job_remove, "name=@0 force=@force", JOB_REMOVED, .timeout_ms = REMOVE_TIMEOUT_MS,
    .confirm = "The state of the job on its shards", .print = print_dropped);

#define PARKED_LINES             \
    "parked|{?parked}{name}\n"   \
    "unparked|{!parked}{name}\n" \
    "shards|{shards}\n"          \
    "note|{note?}"
static const struct ctl_question job_park_question = CTL_QUESTION(
                                     JOB_PARK, job_park, "name=@0 parked=1", JOB_PARKED,
                                     .timeout_ms = REMOVE_TIMEOUT_MS, .lines = PARKED_LINES),
                                 job_unpark_question = CTL_QUESTION(
                                     JOB_PARK, job_park, "name=@0", JOB_PARKED,
                                     .timeout_ms = REMOVE_TIMEOUT_MS, .lines = PARKED_LINES);

/* ==== amend ==== */

/* cairn job amend: changes a job's settings while it trains. */

static cairn_status ask_job(struct ctl *ctl, ProtobufCMessage **reply_out)
{
    Cairn__JobShow message = CAIRN__JOB_SHOW__INIT;
    message.name = ctl->argv[0];
    return ctl_call(ctl, CAIRN_MSG_JOB_SHOW, &message.base, CAIRN_MSG_JOB_STATUS, reply_out);
}

/* Copies the groups and changes only their lr. -1: continue. */
static int fill_groups(const struct ctl *ctl, const Cairn__JobStatus *job, Cairn__JobAmend *amend)
{
    for (size_t i = 0; i < job->n_groups; i++) {
        Cairn__GroupSpec *group = job->groups[i];
        if (ctl->group != NULL && strcmp(group->name, ctl->group) != 0) continue;
        if (group->schedule == CAIRN_SCHEDULE_DRIVEN)
            return ctl_fail(CAIRN_ERR_UNSUPPORTED,
                            "group %s is driven: the trainer sets its lr with each commit; name "
                            "another group with --group",
                            group->name);
        group->lr = ctl->lr;
        amend->groups[amend->n_groups++] = group;
    }
    if (amend->n_groups > 0) return -1;
    return ctl_fail(CAIRN_ERR_NOT_FOUND, "job %s has no group %s; `cairn job show %s` has them",
                    job->name, ctl->group != NULL ? ctl->group : "at all", job->name);
}

/* Warns if fewer workers are attached than required: the job was amended, but the operator may not notice
 * that the job waits. */
static void say_who_lacks(struct ctl *ctl)
{
    ProtobufCMessage *reply;
    if (ask_job(ctl, &reply) != CAIRN_OK) return;
    const Cairn__JobStatus *job = (const Cairn__JobStatus *)reply;
    if (job->workers > 0 && job->workers < job->workers_min)
        ctl_line("waits", "for %u more: a round opens with %u workers, attached: %u",
                 job->workers_min - job->workers, job->workers_min, job->workers);
    message_free(reply);
}

static int print_amended(struct ctl *ctl, uint64_t revision)
{
    if (ctl->json)
        return ctl_print_json(
            json_pack("{s:s, s:I}", "job", ctl->argv[0], "revision", (json_int_t)revision));
    if (ctl->quiet) {
        printf("%" PRIu64 "\n", revision);
    } else {
        ctl_line("amended", "%s", ctl->argv[0]);
        ctl_line("revision", "%" PRIu64, revision);
        if (ctl->workers_max > 0) say_who_lacks(ctl);
    }
    return 0;
}

cairn_status ctl_amend(struct ctl *ctl, Cairn__JobAmend *amend, uint64_t *revision_out)
{
    ProtobufCMessage *reply;
    randombytes_buf(&amend->key, sizeof amend->key);
    amend->key |= 1; // never 0
    CAIRN_TRY(ctl_call(ctl, CAIRN_MSG_JOB_AMEND, &amend->base, CAIRN_MSG_JOB_AMENDED, &reply));
    *revision_out = ((const Cairn__JobAmended *)reply)->revision;
    message_free(reply);
    return CAIRN_OK;
}

static int send_amendment(struct ctl *ctl, Cairn__JobAmend *amend)
{
    uint64_t revision;
    const cairn_status called = ctl_amend(ctl, amend, &revision);
    return called == CAIRN_OK ? print_amended(ctl, revision) : status_exit((int)called);
}

/* Returns true if the last setting of the field `key` has this value. */
static bool gives(const struct ctl *ctl, const char *key, const char *value)
{
    for (size_t i = ctl->set.count; i-- > 0;)
        if (strcmp(ctl->set.list[i]->key, key) == 0)
            return strcmp(ctl->set.list[i]->value, value) == 0;
    return false;
}

/* Puts the fields' defaults before all other settings, so that the given values take precedence. */
static bool reset(struct ctl_settings *settings, const char *names)
{
    struct job_spec_data plain; // owns nothing
    char words[96], *rest = words;
    spec_init(&plain);
    snprintf(words, sizeof words, "%s", names);
    for (char *name; (name = strsep(&rest, " ")) != NULL;) {
        if (!ctl_setting_add_field(settings, name, &plain)) return false;
        Cairn__Setting *last = settings->list[settings->count - 1];
        memmove(&settings->list[1], &settings->list[0], (settings->count - 1) * sizeof last);
        settings->list[0] = last;
    }
    return true;
}

/* Resets the fields that have no effect any more if the values of the options apply. */
static bool reset_unused(struct ctl *ctl)
{
    bool ok = true;
    if (ctl_is_given(ctl, "snapshot-every") && gives(ctl, "snapshot_every", "0") &&
        gives(ctl, "snapshot_every_s", "0"))
        ok = reset(&ctl->set, "snapshot_keep snapshot_keep_every snapshot_keep_within_s "
                              "snapshot_max_bytes");
    if (ctl_is_given(ctl, "on-shard-loss") && gives(ctl, "on_shard_loss", "wait"))
        ok = ok && reset(&ctl->set, "shard_loss_wait_s");
    if (ctl_is_given(ctl, "on-worker-loss") && !gives(ctl, "on_worker_loss", "wait"))
        ok = ok && reset(&ctl->set, "worker_loss_wait_s");
    return ok;
}

/* Fills the amendment of learning rates from the job's current groups. The job's revision makes the
 * coordinator refuse the amendment if the job was amended in the meantime. */
static int amend_rates(struct ctl *ctl, Cairn__JobAmend *amend)
{
    ProtobufCMessage *reply;
    const cairn_status called = ask_job(ctl, &reply);
    if (called != CAIRN_OK) return status_exit((int)called);
    const Cairn__JobStatus *job = (const Cairn__JobStatus *)reply;
    Cairn__GroupSpec **groups = calloc(job->n_groups + 1, sizeof(Cairn__GroupSpec *));
    amend->groups = groups;
    int done = groups == NULL ? ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory")
               : job->spec == NULL
                   ? ctl_fail(CAIRN_ERR_PROTOCOL, "the coordinator does not say what job %s is",
                              job->name)
                   : fill_groups(ctl, job, amend);
    if (done < 0) amend->revision = job->spec->revision;
    if (done < 0) done = send_amendment(ctl, amend);
    free(groups);
    message_free(reply);
    return done;
}

static int run_job_amend(struct ctl *ctl)
{
    Cairn__JobAmend amend = CAIRN__JOB_AMEND__INIT;
    struct job_spec_data bounds; // owns nothing
    const bool has_lr = ctl_is_given(ctl, "lr");
    spec_init(&bounds);
    bounds.workers_min = ctl->workers_min;
    bounds.workers_max = ctl->workers_max;
    if (!has_lr && ctl->workers_max == 0 && ctl->set.count == 0)
        return ctl_usage_fail(ctl, "nothing would change: give an option to amend");
    if (ctl->group != NULL && !has_lr)
        return ctl_usage_fail(ctl, "--group goes with --lr: give that, too");
    if (!reset_unused(ctl) ||
        (ctl->workers_max > 0 && !(ctl_setting_add_field(&ctl->set, "workers_min", &bounds) &&
                                   ctl_setting_add_field(&ctl->set, "workers_max", &bounds))))
        return ctl_fail(CAIRN_ERR_INVALID, "--set may be given %d times", CTL_NAMES_MAX);
    amend.name = ctl->argv[0];
    amend.settings = ctl->set.list;
    amend.n_settings = ctl->set.count;
    return has_lr ? amend_rates(ctl, &amend) : send_amendment(ctl, &amend);
}

/* ==== commands ==== */

const struct ctl_row ctl_job_rows[] = {
    { "job", "list", "", "jobs, their versions and for whom they wait", 0, 0, CTL_LISTS,
      CTL_ASK(job_list_question) },
    { "job", "show", "JOB", "one job in full", 1, 1, CTL_ASKS, CTL_ASK(job_show_question) },
    { "job", "digest", "JOB",
      "the content root of the newest version: equal across layouts and restores (reads the whole "
      "state)",
      1, 1, CTL_ASKS "quiet ", CTL_ASK(job_digest_question) },
    { "job", "amend",
      "JOB [--workers MIN:MAX] [--lr X [--group NAME]] "
      /* The next lines are made by tests/tree/spec_fields.py. */
      "[--clip-norm X] [--snapshot-every N|TIME] [--snapshot-keep N] [--snapshot-keep-every N] "
      "[--snapshot-keep-within TIME] [--snapshot-max-bytes N] [--snapshot-staging state|small] "
      "[--snapshot-durable-within TIME] [--snapshot-fallback yes|no] [--snapshot-scrub-every "
      "TIME] [--on-shard-loss wait|restore-latest [--shard-loss-wait SECONDS]] [--on-worker-loss "
      "redo|wait|fail [--worker-loss-wait SECONDS]] "
      /* From here on by hand. */
      "[--set KEY=VALUE]...",
      "change a job while it trains, from the next round on; scripts with the old spec go on", 1, 1,
      CTL_ASKS "quiet terms set ", CTL_RUN(run_job_amend) },
    { "job", "park", "JOB",
      "take its state off GPUs to host memory: no round opens until it is taken back", 1, 1,
      CTL_ASKS "quiet ", CTL_ASK(job_park_question) },
    { "job", "unpark", "JOB", "take a parked job's state back to where it lay", 1, 1,
      CTL_ASKS "quiet ", CTL_ASK(job_unpark_question) },
    { "job", "drop", "JOB [--yes] [--force]",
      "free a job's memory on all shards, for good; its snapshots stay", 1, 1,
      CTL_ASKS "quiet yes force ", CTL_ASK(job_drop_question) },
    { .noun = NULL },
};
