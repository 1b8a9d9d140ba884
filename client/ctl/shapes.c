/* The appearance of messages, by type: their fields in JSON, their columns in a table, and the values that
 * are worked out from their fields. output.c has the syntax. */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"
#include "shown.pb-c.h"
#include "proto/snapshot/snapshot.h"
#include "proto/spec/spec.h"
#include "proto/spec/spec_fields.h"
#include "proto/wire/wire.h"

/* ==== jobs ==== */

/* Not all shards of the job have reported the bytes that they hold and that they transferred. */
static uint64_t job_untold(const void *message)
{
    const Cairn__JobStatus *j = message;
    return j->shards_told < j->shards;
}

/* "ranks 0-3 by shard s0; rank 4; ranks 5-7 by shards s1, s2": a rank without a group has no shard. */
static void job_groups(const void *message, FILE *to)
{
    const Cairn__JobStatus *j = message;
    for (size_t i = 0; i < j->n_reduce_groups; i++) {
        const Cairn__ReduceGroup *group = j->reduce_groups[i];
        struct sentence ranks = { "" };
        ranks_add_text(group->ranks, group->n_ranks, &ranks);
        fprintf(to, "%srank%s %s", i > 0 ? "; " : "", group->n_ranks == 1 ? "" : "s", ranks.text);
        if (group->host[0] != '\0')
            fprintf(to, " by shard%s %s", strchr(group->host, ',') == NULL ? "" : "s", group->host);
    }
    if (j->reduce_group_count > j->n_reduce_groups)
        fprintf(to, "; and %zu more", j->reduce_group_count - j->n_reduce_groups);
}

/* 0: a lost worker is not waited for. */
static uint64_t spec_worker_wait(const void *message)
{
    const Cairn__JobSpec *s = message;
    if (s->on_worker_loss != CAIRN_WORKER_LOSS_WAIT) return 0;
    return s->worker_loss_wait_s > 0 ? s->worker_loss_wait_s : CAIRN_SPEC_LOSS_WAIT_S;
}

static json_t *add_of_group(json_t *object, const void *message)
{
    struct group_spec spec;
    if (group_of_message(message, &spec) != CAIRN_OK) {
        json_decref(object);
        return json_null();
    }
    json_object_set_new(object, "schedule", schedule_json(&spec.schedule));
    return spec_fields_json(object, &group_fields, CAIRN_SPEC_ALL, &spec);
}

/* Adds the fields that apply to the complete job. */
static json_t *add_of_spec(json_t *object, const void *message)
{
    struct job_spec_data spec; // owns nothing
    spec_init(&spec);
    spec_fields_of_message(message, &spec);
    return spec_fields_json(object, &spec_fields, CAIRN_SPEC_ALL, &spec);
}

/* ---- the memory that a job uses on its shards, by kind; one entry per shard ---- */

static Cairn__MemoryTold all_of(Cairn__MemoryTold *const *shards, size_t count)
{
    Cairn__MemoryTold all = CAIRN__MEMORY_TOLD__INIT;
    for (size_t i = 0; i < count; i++) {
        all.state += shards[i]->state;
        all.published += shards[i]->published;
        all.landing += shards[i]->landing;
        all.staging += shards[i]->staging;
        all.tables += shards[i]->tables;
        all.former += shards[i]->former;
        all.device += shards[i]->device;
    }
    return all;
}

static json_t *memory_json(Cairn__MemoryTold *const *shards, size_t count)
{
    const Cairn__MemoryTold all = all_of(shards, count);
    json_t *object = ctl_json(&all), *list = json_array();
    for (size_t i = 0; i < count; i++) {
        json_t *entry = ctl_json(shards[i]);
        ctl_json_add(entry, shards[i],
                     shards[i]->shard[0] != '\0' ? "index=shard_index shard" : "index=shard_index");
        json_array_append_new(list, entry);
    }
    json_object_set_new(object, "shards", list);
    return object;
}

#define MEMORY_COLUMNS                                   \
    "MEMORY OF|[{shard}][{!shard}shard {shard_index}]\n" \
    "STATE|state/bytes!untold\n"                         \
    "PUBLISHED|published/bytes!untold\n"                 \
    "LANDING|landing/bytes!untold\n"                     \
    "STAGING|staging/bytes!untold\n"                     \
    "TABLES|tables/bytes!untold\n"                       \
    "FORMER|former/bytes!untold\n"                       \
    "TOTAL|" CTL_MEMORY_SUM "/bytes!untold"

void ctl_job_memory_print(const struct ctl *ctl, Cairn__MemoryTold *const *shards, size_t count)
{
    Cairn__MemoryTold all = all_of(shards, count), *const last = &all;
    all.shard = wire_text("all");
    struct ctl_table *table = ctl_table_open(
        all.device > 0 ? MEMORY_COLUMNS "\nON DEVICE|device/bytes!untold" : MEMORY_COLUMNS);
    ctl_table_rows(table, shards, count);
    if (count > 1) ctl_table_rows(table, &last, 1);
    ctl_table_close(table, ctl);
}

/* Returns a new object with the bytes by transport, in total and for each worker. */
static json_t *bytes_json(const Cairn__JobStatus *job)
{
    json_t *workers = json_array();
    json_t *object = json_object();
    for (size_t i = 0; i < job->n_bytes; i++) {
        const Cairn__BytesTold *b = job->bytes[i];
        json_t *entry = ctl_json(b);
        if (b->of_worker) {
            ctl_json_add(entry, b, "rank");
            json_array_append_new(workers, entry);
        } else {
            json_object_update(object, entry);
            json_decref(entry);
        }
    }
    json_object_set_new(object, "workers", workers);
    return object;
}

static json_t *add_of_job(json_t *object, const void *message)
{
    const Cairn__JobStatus *j = message;
    const bool is_told = !job_untold(j);
    json_object_set_new(object, "memory",
                        is_told ? memory_json(j->memory, j->n_memory) : json_null());
    if (j->spec != NULL) ctl_json_add(object, j, "spec");
    if (j->n_bytes > 0) json_object_set_new(object, "bytes", is_told ? bytes_json(j) : json_null());
    if (ctl_number(j, "spec.reduce_groups"))
        ctl_json_add(object, j, "reduce_groups reduce_group_count reduce_groups_off");
    return object;
}

/* ==== the cluster ==== */

/* The usage figures of a shard's device are next to the description of the device. */
static json_t *add_of_member(json_t *object, const void *message)
{
    const Cairn__MemberStatus *m = message;
    if (m->stats != NULL && m->home != NULL && strcmp(m->home->backend, "host") != 0)
        json_object_set_new(json_object_get(object, "home"), "use", ctl_json(m->stats));
    return object;
}

static uint64_t cluster_homes(const void *message)
{
    const Cairn__ClusterStatus *status = message;
    uint64_t homes = 0;
    for (size_t i = 0; i < status->n_members; i++) homes += status->members[i]->home != NULL;
    return homes;
}

static uint64_t cluster_up(const void *message)
{
    const Cairn__ClusterStatus *status = message;
    uint64_t up = 0;
    for (size_t i = 0; i < status->n_members; i++)
        up += status->members[i]->role == CAIRN_ROLE_WIRE_SHARD &&
              strcmp(status->members[i]->state, "up") == 0;
    return up;
}

/* Says which capabilities the builds or hosts of shards lack. Shards that lack the same capabilities, as
 * shards on the same kind of machine do, share one line. */
static void cluster_without(const void *message, FILE *to)
{
    const Cairn__ClusterStatus *status = message;
    const uint32_t all = (1u << CAIRN_WITHOUT_COUNT) - 1;
    const char *before = "";
    for (uint32_t without = 1; without <= all; without++) {
        struct sentence what, who = { "" };
        size_t count = 0;
        for (size_t i = 0; i < status->n_members; i++)
            if ((status->members[i]->without & all) == without)
                sentence_add(&who, "%s%s", count++ > 0 ? ", " : "", status->members[i]->name);
        without_print(without, &what);
        if (count == 0) continue;
        fprintf(to, "%s\nwithout %s: %s", before, what.text, who.text);
        before = "\n";
    }
}

/* The jobs that can be adopted. */
static uint64_t adopted_whole(const void *message)
{
    const Cairn__ClusterAdopted *adopted = message;
    uint64_t whole = 0;
    for (size_t i = 0; i < adopted->n_jobs; i++) whole += adopted->jobs[i]->refused[0] == '\0';
    return whole;
}

static void key_since(const void *message, FILE *to)
{
    const uint64_t since = ((const Cairn__Key *)message)->since_unix_ms;
    fputs(since > 0 ? ctl_time(since) : "1970-01-01T00:00:00Z", to);
}

/* ==== snapshots ==== */

/* "latest, paper"; "-" for none. */
static void snapshot_names(const void *message, FILE *to)
{
    const Cairn__SnapshotStatus *s = message;
    if (!s->latest && s->n_tags == 0) fputs("-", to);
    if (s->latest) fputs("latest", to);
    for (size_t i = 0; i < s->n_tags; i++)
        fprintf(to, "%s%s", s->latest || i > 0 ? ", " : "", s->tags[i]);
}

/* The time or result of the last check: "3 h ago", "damaged, 2 min ago", "never". */
static void snapshot_checked(const void *message, FILE *to)
{
    static const struct {
        uint64_t below_s, unit_s;
        const char *unit;
    } units[] = {
        { 120, 1, "s" }, { 7200, 60, "min" }, { 172800, 3600, "h" }, { UINT64_MAX, 86400, "d" }
    };
    const Cairn__SnapshotStatus *s = message;
    const uint64_t now_s = (uint64_t)time(NULL), then_s = s->checked_unix_ms / 1000;
    const uint64_t age_s = now_s > then_s ? now_s - then_s : 0;
    size_t i = 0;
    while (age_s >= units[i].below_s) i++;
    if (s->files == 0)
        fputs("-", to);
    else if (then_s == 0)
        fputs("never", to);
    else
        fprintf(to, "%s%" PRIu64 " %s ago", s->check_failed ? "damaged, " : "",
                age_s / units[i].unit_s, units[i].unit);
}

/* A running snapshot has its progress, too; null stands for values that are not reported yet. */
static json_t *add_of_snapshot(json_t *object, const void *message)
{
    const Cairn__SnapshotStatus *s = message;
    if (strcmp(s->state, "running") == 0)
        ctl_json_add(
            object, s,
            "done_bytes?total_bytes total_bytes? bytes_per_s? seconds_left=left_s?bytes_per_s");
    return object;
}

static void replaced_members(const void *message, FILE *to)
{
    struct sentence members;
    admin_members(message, &members);
    fputs(members.text, to);
}

static void canceled_what(const void *message, FILE *to)
{
    fputs(((const Cairn__SnapshotCanceled *)message)->digest ? "digest" : "snapshot", to);
}

/* The command that applies the advice. */
static void advice_amend(const void *message, FILE *to)
{
    const Cairn__SnapshotAdvice *a = message;
    if (a->interval_s > 0)
        fprintf(to, "cairn job amend %s --snapshot-every %" PRIu64 "s", a->job, a->interval_s);
}

/* ==== messages of shown.proto ==== */

static json_t *add_of_plan(json_t *object, const void *message)
{
    const Cairn__ShownPlan *plan = message;
    json_object_set_new(object, "memory", memory_json(plan->memory, plan->n_memory));
    return object;
}

/* {"launcher": "torchrun", "rank": {"value": 0, "from": "RANK"}, ...} */
static json_t *add_of_env(json_t *object, const void *message)
{
    const Cairn__ShownEnv *env = message;
    json_object_set_new(object, "launcher", json_string(env->values[0]->text));
    for (size_t i = 1; i < env->n_values; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s", env->values[i]->what);
        for (char *space; (space = strchr(name, ' ')) != NULL;) *space = '_';
        json_t *value = json_object();
        ctl_json_add(value, env->values[i],
                     env->values[i]->is_number ? "value=number from" : "value=text from");
        // the name of a device may have bytes that are not UTF-8
        if (json_object_get(value, "value") == NULL)
            json_object_set_new(value, "value", json_string("?"));
        json_object_set_new(object, name, value);
    }
    return object;
}

/* The statistics of a tensor stand by plane. */
static json_t *add_of_tensor(json_t *object, const void *message)
{
    const Cairn__ShownTensor *t = message;
    if (t->alias_of[0] != '\0') ctl_json_add(object, t, "alias_of");
    if (!t->has_stats) return object;
    json_t *stats = json_object();
    for (size_t i = 0; i < t->n_stats; i++)
        json_object_set_new(stats, t->stats[i]->plane, ctl_json(t->stats[i]));
    json_object_set_new(object, "stats", stats);
    return object;
}

/* ==== the tables ==== */

#define NUMBER(message, name, function)                           \
    {                                                             \
        &cairn__##message##__descriptor, name, .number = function \
    }
#define TEXT(message, name, function)                           \
    {                                                           \
        &cairn__##message##__descriptor, name, .text = function \
    }

const struct ctl_computed ctl_computed[] = {
    NUMBER(cluster_adopted, "whole", adopted_whole),
    NUMBER(cluster_status, "homes", cluster_homes),
    NUMBER(cluster_status, "up", cluster_up),
    NUMBER(job_spec, "worker_wait", spec_worker_wait),
    NUMBER(job_status, "untold", job_untold),
    TEXT(cluster_status, "without", cluster_without),
    TEXT(job_status, "groups_of_round", job_groups),
    TEXT(key, "since", key_since),
    TEXT(replaced_job, "members", replaced_members),
    TEXT(snapshot_advice, "amend", advice_amend),
    TEXT(snapshot_canceled, "what", canceled_what),
    TEXT(snapshot_status, "checked", snapshot_checked),
    TEXT(snapshot_status, "names", snapshot_names),
    { .name = NULL },
};

#define SHAPE(message, ...)                                \
    {                                                      \
        .of = &cairn__##message##__descriptor, __VA_ARGS__ \
    }

const struct ctl_shape ctl_shapes[] = {
    SHAPE(adopted_job, .json = "job=name generation step shards refused",
          .columns = "JOB|name\nGENERATION|generation\nSTEP|step\nSHARDS|shards\nREFUSED|refused"),
    SHAPE(bytes_told,
          .json = "pushed.shared=pushed_shared pushed.carried=pushed_carried "
                  "pushed.one_sided=pushed_one_sided pushed.device=pushed_device "
                  "pushed.direct=pushed_direct fetched.shared=fetched_shared "
                  "fetched.carried=fetched_carried fetched.one_sided=fetched_one_sided "
                  "fetched.device=fetched_device fetched.direct=fetched_direct "
                  "per_step.pushed=pushed_a_step per_step.fetched=fetched_a_step put steps"),
    SHAPE(cluster_backed_up, .json = "path bytes"),
    SHAPE(cluster_status,
          .json = "cluster store/hex version coordinator_incarnation uptime_ms shards_expected "
                  "jobs=job_count storage members strangers unsafe"),
    SHAPE(event, .json = "number time=unix_ms/instant event=kind job who text",
          .columns = "TIME|unix_ms/instant\nEVENT|kind\nJOB|job?\nWHO|who?\nWHAT|text"),
    SHAPE(events, .json = "events"),
    SHAPE(group_spec, .json = "name optimizer frozen lr_now", .add = add_of_group),
    SHAPE(home, .json = "backend device driver why total_bytes taken_bytes warning failed "
                        "device_memory device_memory_why"),
    SHAPE(former_told, .json = "generation step"),
    SHAPE(former_range, .json = "generation from_step to_step"),
    SHAPE(job_list, .json = "jobs"),
    SHAPE(job_parked, .json = "job=name parked shards note"),
    SHAPE(job_removed, .json = "job=name generation!version_unknown step!version_unknown shards "
                               "away note"),
    SHAPE(job_rolled_back, .json = "job=name generation step keep_versions former by_log note"),
    SHAPE(job_shared, .json = "job=name owner? shared shared_read"),
    SHAPE(job_spec, .json = "revision", .add = add_of_spec),
    SHAPE(
        job_status, .add = add_of_job,
        .json = "name state epoch round awaited workers workers_min workers_max? shards tensors "
                "elems generation!version_unknown step!version_unknown "
                "loss_scale!version_unknown last_grad_norm!version_unknown "
                "client_state_bytes!version_unknown steps_applied rounds_skipped "
                "rounds_abandoned layout_hash extents pieces skips skips_in_row nonfinite "
                "nonfinite_tensors gradient put_out snapshot_failed passed_over saving path_cut "
                "seconds_since_step=stepped_ms_ago/1000?stepped restores blobs blob_bytes "
                "state_bytes!untold pushed_bytes!untold fetched_bytes!untold "
                "heaviest_over_mean? leases held_up_by=straggler groups owner? shared shared_read "
                "parts_kept!untold audited_since? mirrors durability unsafe former by_log "
                "made.by=made_by? made.from=made_from? made.at=made_unix_ms/instant?",
        .columns =
            "JOB|name\nOWNER|[{owner}][{!owner}-]\nSTATE|state\nGENERATION|generation!"
            "version_unknown\n"
            "STEP|step!version_unknown\nLAST STEP|{?stepped}{stepped_ms_ago/s} ago\n"
            "WORKERS|[{!workers_max}{workers} ({workers_min} or more)]"
            "[{?workers_max>workers_min}{workers} ({workers_min} to {workers_max})]"
            "[{?workers_max}{!workers_max>workers_min}{workers} of {workers_min}]\nSHARDS|shards\n"
            "MEMORY|[{!untold}{state_bytes/bytes}][{?untold}unknown]\n"
            "DURABILITY|{!untold}{durability}[{?unsafe}, degraded]\n"
            "SNAPSHOTS|{?snapshot_failed}failed\n"
            "WAITS FOR|[{?path_cut}data path cut; ]{awaited}"),
    SHAPE(key, .json = "id key=line own signs since_ms=since_unix_ms",
          .columns = "ID|id\n"
                     "WHOSE|[{?signs}this cluster's][{!signs}{?own}this cluster's, "
                     "before][{!signs}{!own}another's]\n"
                     "SINCE|since\nKEY|line"),
    SHAPE(keys, .json = "keys"),
    SHAPE(cluster_inited, .json = "cluster nodes trainers address listens made"),
    SHAPE(token_row,
          .json = "id name owner roles jobs state created=created_unix_ms/time "
                  "not_after=not_after_unix_ms/time? grace_until=grace_until_unix_ms/time? "
                  "seen=seen_unix_ms/time? connected former",
          .columns = "TOKEN|name\nROLES|roles\nOWNER|owner\nJOBS|[{!jobs}its owner's]{jobs}\n"
                     "STATE|{state}[{?former}, by the former key]\n"
                     "UNTIL|[{?grace_until_unix_ms}{grace_until_unix_ms/time}]"
                     "[{!grace_until_unix_ms}{not_after_unix_ms/time}]"
                     "[{!grace_until_unix_ms,not_after_unix_ms}-]\n"
                     "SEEN|seen_unix_ms/time?\nCONNECTED|connected\nID|id"),
    SHAPE(node_row, .json = "shard key token since=since_unix_ms/time",
          .columns = "SHARD|shard\nBY TOKEN|token?\nSINCE|since_unix_ms/time\nNODE'S KEY|key"),
    SHAPE(lease_status, .json = "generation step holder role/role seconds_left=left_ms/1000"),
    SHAPE(member_status, .add = add_of_member,
          .json = "name role/role state address path place storage unheard unfit apart clear "
                  "standby_of spare since_ms "
                  "state_bytes memory_bytes version without/without home",
          .columns = "NAME|name\nROLE|role/role\nSTATE|state\nFOR|since_ms/s\nPATH|path\n"
                     "PLACE|place\nMEMORY|{state_bytes/bytes}[ of {memory_bytes/bytes}]\n"
                     "ADDRESS|address\nVERSION|version"),
    SHAPE(memory_told, .json = "total=" CTL_MEMORY_SUM
                               " state published landing staging tables former "
                               "device"),
    SHAPE(owner_use,
          .json = "owner? jobs.used=jobs jobs.most=jobs_max? sessions.used=sessions "
                  "sessions.most=sessions_max? bytes.used=bytes bytes.most=bytes_max? "
                  "in_flight.used=in_flight in_flight.most=in_flight_max?",
          .columns = "OWNER|[{owner}][{!owner}-]\nJOBS|{jobs}[ of {jobs_max}]\n"
                     "SESSIONS|{sessions}[ of {sessions_max}]\n"
                     "STATE|{bytes/bytes}[ of {bytes_max/bytes}]\n"
                     "IN FLIGHT|{in_flight/bytes}[ of {in_flight_max/bytes}]"),
    SHAPE(quotas, .json = "owners"),
    SHAPE(reduce_group, .json = "relays=host ranks"),
    SHAPE(replaced_job, .json = "state generation!version_unknown step!version_unknown workers "
                                "readers"),
    SHAPE(reshard_job,
          .json = "job=name state text layout=layout_hash/hex shards_before shards_after "
                  "moves=pairs bytes=all_bytes least_bytes moved_bytes heaviest_before "
                  "heaviest_after expected_s? expected_pause_s? slices slice "
                  "elapsed_s=elapsed_ms/1000 longest_step=worst_step? pieces_before pieces_after "
                  "pieces_fresh afresh",
          .columns = "JOB|name\nSTATE|state\nSLICE|{slice} of {slices}\nMOVED|moved_bytes/bytes\n"
                     "OF|all_bytes/bytes\nFOR|{elapsed_ms/1000%.1f} s\n"
                     "LONGEST STEP|{?worst_step}{worst_step/longer%+.1f} %\n|text"),
    SHAPE(reshard_pair, .json = "from to bytes", .columns = "FROM|from\nTO|to\nBYTES|bytes/bytes"),
    SHAPE(reshard_told, .json = "jobs"),
    SHAPE(shard_stats, .json = "launches in_bytes out_bytes pinned_bytes unpinned_bytes"),
    SHAPE(snapshot_advice,
          .json = "job measured_snapshots=measured shard_faults worker_faults observed_s "
                  "mtbf_given note snapshot_every=every snapshot_every_s=every_s "
                  "cost_s=cost_us/us?measured write_s=write_us/us?measured step_s=step_us/us? "
                  "mtbf_s? interval_s? interval_steps? amend?"),
    SHAPE(snapshot_canceled, .json = "job what id"),
    SHAPE(snapshot_fate, .json = "id step bytes created_unix_ms goes reason",
          .columns = "ID|id\nSTEP|step\nSIZE|bytes/bytes\n"
                     "FATE|[{?@dry-run}{?goes}would go][{!@dry-run}{?goes}goes][{!goes}stays]\n"
                     "REASON|reason"),
    SHAPE(snapshot_list, .json = "running snapshots"),
    SHAPE(snapshot_removed, .json = "id job files bytes"),
    SHAPE(
        snapshot_status, .add = add_of_snapshot,
        .json = "id job state path generation step bytes files shards content_root "
                "created=created_unix_ms/time periodic nonfinite nonfinite_tensors signature "
                "latest tags checked=checked_unix_ms/time check_failed",
        .columns = "JOB|job\nID|id?\nGENERATION|generation\nSTEP|step\nSIZE|bytes/bytes?files\n"
                   "SHARDS|shards\nCREATED|created_unix_ms/time?\nPERIODIC|periodic/yes\n"
                   "DAMAGED|[{?nonfinite,check_failed}yes][{!nonfinite,check_failed}no]\n"
                   "CHECKED|checked\nNAMES|names\n"
                   "STATE|{state}[{?total_bytes}: {done_bytes/bytes} of "
                   "{total_bytes/bytes}[{?bytes_per_s}, {bytes_per_s/bytes}/s, {left_s} s left]]"),
    SHAPE(straggler, .json = "name rank phase phase_ms=us/1000 others_ms=others_us/1000 "
                             "waited_seconds=waited_ms/1000 text"),
    SHAPE(
        strange_part,
        .json = "shard job=part.name number=part.job/hex generation=part.generation "
                "version_generation=part.version_generation step=part.version_step "
                "part=part.shard_index/1+ parts=part.shard_count bytes=part.bytes why",
        .columns = "JOB|part.name\nNUMBER|part.job/hex\nGENERATION|part.generation\n"
                   "STEP|part.version_step\nPART|{part.shard_index/1+%.0f} of {part.shard_count}\n"
                   "SHARD|shard\nMEMORY|part.bytes/bytes\nWHY|why"),
    SHAPE(shown_capabilities, .json = "capabilities"),
    SHAPE(shown_capability, .json = "field value name supported instead?",
          .columns = "FIELD|field\nVALUE|value\nNAME|name\n"
                     "SUPPORTED|[{?supported}yes][{!supported}no: [{instead}][{!instead}refused]]"),
    SHAPE(shown_check, .json = "well found"),
    SHAPE(shown_copy, .json = "job path bytes files signed owner"),
    SHAPE(shown_diff, .json = "same spec scalars unpaired planes"),
    SHAPE(shown_env, .add = add_of_env),
    SHAPE(shown_env_value, .columns = "WHAT|what\nVALUE|text\nFROM|from"),
    SHAPE(shown_export,
          .json = "path format dtype step tensors files bytes blobs_left_out aliases seconds"),
    SHAPE(shown_plan, .add = add_of_plan,
          .json = "job tensors stage shards workers workers_max backend offload_fraction "
                  "heaviest_over_mean"),
    SHAPE(shown_plane,
          .json = "tensor plane elements first max_abs relative_l2!is_infinite nonfinite",
          .columns = "TENSOR|tensor\nPLANE|plane\nELEMENTS|elements\nFIRST|first\n"
                     "MAX ABS|max_abs/%.6g\nRELATIVE|relative_l2/%.6g\nNONFINITE|nonfinite"),
    SHAPE(shown_shard,
          .json = "name index steps slowest collect_ms=collect_us/1000?steps "
                  "fold_ms=fold_us/1000?steps update_ms=update_us/1000?steps "
                  "publish_ms=publish_us/1000?steps step_ms=step_us/1000?steps "
                  "memory_bytes?has_memory",
          .columns = "SHARD|name\nCOLLECT|collect_us/1000%.1f?steps\nFOLD|fold_us/1000%.1f?steps\n"
                     "UPDATE|update_us/1000%.1f?steps\nPUBLISH|publish_us/1000%.1f?steps\n"
                     "STEP MS|step_us/1000%.1f?steps\nOF STEPS|steps\n"
                     "MEMORY|memory_bytes/bytes?has_memory\n|[{?slowest}<- slowest]"),
    SHAPE(shown_stats, .json = "min?has_finite max?has_finite mean?has_finite l2 nonfinite",
          .columns = "TENSOR|tensor\nPLANE|plane\nSHAPE|shape\nMIN|min/%.6g?has_finite\n"
                     "MAX|max/%.6g?has_finite\nMEAN|mean/%.6g?has_finite\nNORM|l2/%.6g?has_finite\n"
                     "NONFINITE|nonfinite"),
    SHAPE(shown_tensor, .json = "name kind dtype shape planes", .add = add_of_tensor,
          .columns = "TENSOR|name\nKIND|[{?alias_of}alias][{!alias_of}{kind}]\n"
                     "DTYPE|[{!alias_of}{dtype}]\nSHAPE|[{!alias_of}{shape_text}]\n"
                     "PLANES|[{!alias_of}{plane_list}]"
                     "[{?alias_of}[{?is_part}a part of][{!is_part}as] {alias_of}]"),
    SHAPE(shown_top, .json = "job state awaited step!version_unknown workers shards"),
    SHAPE(shown_trouble, .json = "kind what text"),
    SHAPE(shown_verify, .json = "path state bytes read signature damages"),
    SHAPE(shown_worker,
          .json = "name rank steps slowest compute_ms=compute_us/1000?steps "
                  "push_ms=push_us/1000?steps wait_ms=wait_us/1000?steps "
                  "fetch_ms=fetch_us/1000?steps step_ms=step_us/1000?steps "
                  "memory_bytes?has_memory pushed_per_step?has_bytes fetched_per_step?has_bytes",
          .columns = "RANK|rank\nCOMPUTE|compute_us/1000%.1f?steps\nPUSH|push_us/1000%.1f?steps\n"
                     "WAIT|wait_us/1000%.1f?steps\nFETCH|fetch_us/1000%.1f?steps\n"
                     "STEP MS|step_us/1000%.1f?steps\nOF STEPS|steps\n"
                     "PUSHED|pushed_per_step/bytes?has_bytes\n"
                     "FETCHED|fetched_per_step/bytes?has_bytes\n"
                     "MEMORY|memory_bytes/bytes?has_memory\nWORKER|name\n"
                     "|[{?slowest}<- slowest]"),
    { .of = NULL },
};
