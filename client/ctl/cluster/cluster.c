/* cairn cluster status | adopt | backup | forget */
#include <string.h>

#include "client/ctl/ctl.h"
#include "proto/spec/without.h"

/* The coordinator gives up sooner where nobody answers it, and says who. */
#define ADOPT_TIMEOUT_MS 600000

static json_t *without_json(uint32_t without)
{
    json_t *names = json_array();
    for (uint32_t i = 0; i < CAIRN_WITHOUT_COUNT; i++)
        if ((without & 1u << i) != 0)
            json_array_append_new(names, json_string(cairn_without_name(i)));
    return names;
}

/* Prints which shards' builds or hosts lack what, in one line for all that lack the same: shards on
 * one kind of machine do. */
static void print_without(const Cairn__ClusterStatus *status)
{
    for (uint32_t without = 1; without < 1u << CAIRN_WITHOUT_COUNT; without++) {
        struct cairn_sentence what, who = { "" };
        size_t count = 0;
        for (size_t i = 0; i < status->n_members; i++) {
            if ((status->members[i]->without & ((1u << CAIRN_WITHOUT_COUNT) - 1)) != without)
                continue;
            cairn_sentence_add(&who, "%s%s", count++ > 0 ? ", " : "", status->members[i]->name);
        }
        cairn_without_print(without, &what);
        if (count > 0) printf("\nwithout %s: %s\n", what.text, who.text);
    }
}

static bool is_of_device(const Cairn__Home *home)
{
    return home != NULL && strcmp(home->backend, "host") != 0;
}

static json_t *home_json(const Cairn__MemberStatus *m)
{
    const Cairn__Home *home = m->home;
    const Cairn__ShardStats *stats = m->stats;
    if (home == NULL) return json_null();
    json_t *json = json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:s, s:s, s:s, s:s}", "backend",
                             home->backend, "device", home->device, "driver", home->driver, "why",
                             home->why, "total_bytes", (json_int_t)home->total_bytes, "taken_bytes",
                             (json_int_t)home->taken_bytes, "warning", home->warning, "failed",
                             home->failed, "device_memory", home->device_memory,
                             "device_memory_why", home->device_memory_why);
    if (stats == NULL || !is_of_device(home)) return json;
    json_object_set_new(
        json, "use",
        json_pack("{s:I, s:I, s:I, s:I, s:I}", "launches", (json_int_t)stats->launches, "in_bytes",
                  (json_int_t)stats->in_bytes, "out_bytes", (json_int_t)stats->out_bytes,
                  "pinned_bytes", (json_int_t)stats->pinned_bytes, "unpinned_bytes",
                  (json_int_t)stats->unpinned_bytes));
    return json;
}

static void print_use(const Cairn__MemberStatus *m)
{
    const Cairn__ShardStats *stats = m->stats;
    if (stats == NULL) return;
    printf("%s: %llu launches, %s copied in, %s out; %s of host memory pinned\n", m->name,
           (unsigned long long)stats->launches, cairn_ctl_bytes(stats->in_bytes),
           cairn_ctl_bytes(stats->out_bytes), cairn_ctl_bytes(stats->pinned_bytes));
    if (stats->unpinned_bytes > 0)
        printf("%s: %s of host memory could not be pinned: copies of it are slower\n", m->name,
               cairn_ctl_bytes(stats->unpinned_bytes));
}

static void print_home(const Cairn__MemberStatus *m)
{
    if (!is_of_device(m->home)) {
        printf("%s: state lies in host memory (%s): %s\n", m->name, m->home->device, m->home->why);
        return;
    }
    printf("%s: state lies on %s (%s, %s), %s, of which its context and others took %s\n", m->name,
           m->home->device, m->home->backend, m->home->driver,
           cairn_ctl_bytes(m->home->total_bytes), cairn_ctl_bytes(m->home->taken_bytes));
    if (m->home->device_memory[0] != '\0')
        printf("%s: what lies there goes to other hosts %s: %s\n", m->name,
               strcmp(m->home->device_memory, "device") == 0 ? "from there" : "through host memory",
               m->home->device_memory_why);
    if (m->home->warning[0] != '\0') printf("%s: warning: %s\n", m->name, m->home->warning);
    if (m->home->failed[0] != '\0')
        printf("%s: unfit, so that nothing more comes to that device: %s; %s\n", m->name,
               m->home->failed, m->unfit);
    print_use(m);
}

static void print_homes(const Cairn__ClusterStatus *status)
{
    bool any = false;
    for (size_t i = 0; i < status->n_members; i++) {
        if (status->members[i]->home == NULL) continue;
        if (!any) printf("\n");
        print_home(status->members[i]);
        any = true;
    }
}

static void print_storage(const Cairn__ClusterStatus *status)
{
    if (status->storage[0] != '\0') printf("\nno snapshot can be saved: %s\n", status->storage);
    for (size_t i = 0; i < status->n_members; i++) {
        const Cairn__MemberStatus *m = status->members[i];
        if (m->storage[0] != '\0')
            printf("\nno snapshot can be saved: shard %s: %s\n", m->name, m->storage);
    }
}

static void print_unheard(const Cairn__ClusterStatus *status)
{
    for (size_t i = 0; i < status->n_members; i++) {
        const Cairn__MemberStatus *m = status->members[i];
        if (m->unheard[0] != '\0')
            printf("\n%s hears nothing from %s over the data path: look for a firewall or a cut "
                   "between them, in both directions\n",
                   m->name, m->unheard);
    }
}

static void print_apart(const Cairn__ClusterStatus *status)
{
    for (size_t i = 0; i < status->n_members; i++)
        if (status->members[i]->apart[0] != '\0')
            printf("\n%s %s\n", status->members[i]->name, status->members[i]->apart);
}

static json_t *strange_json(const Cairn__StrangePart *s)
{
    char number[20];
    snprintf(number, sizeof number, "%016llx", (unsigned long long)s->part->job);
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:i, s:i, s:I, s:s}", "shard", s->shard, "job",
                     s->part->name, "number", number, "generation", (json_int_t)s->part->generation,
                     "version_generation", (json_int_t)s->part->version_generation, "step",
                     (json_int_t)s->part->version_step, "part", (int)s->part->shard_index + 1,
                     "parts", (int)s->part->shard_count, "bytes", (json_int_t)s->part->bytes, "why",
                     s->why);
}

static json_t *strangers_json(Cairn__StrangePart *const *parts, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) json_array_append_new(list, strange_json(parts[i]));
    return list;
}

static void print_strangers(const struct ctl *ctl, Cairn__StrangePart *const *parts, size_t count)
{
    static const char *const headers[] = { "JOB",  "NUMBER", "GENERATION", "STEP",
                                           "PART", "SHARD",  "MEMORY",     "WHY" };
    struct ctl_table *table = cairn_ctl_table_open(headers, 8);
    for (size_t i = 0; i < count; i++) {
        const Cairn__HeldJob *part = parts[i]->part;
        cairn_ctl_table_cell(table, "%s", part->name);
        cairn_ctl_table_cell(table, "%016llx", (unsigned long long)part->job);
        cairn_ctl_table_cell(table, "%llu", (unsigned long long)part->generation);
        cairn_ctl_table_cell(table, "%llu", (unsigned long long)part->version_step);
        cairn_ctl_table_cell(table, "%u of %u", part->shard_index + 1, part->shard_count);
        cairn_ctl_table_cell(table, "%s", parts[i]->shard);
        cairn_ctl_table_cell(table, "%s", cairn_ctl_bytes(part->bytes));
        cairn_ctl_table_cell(table, "%s", parts[i]->why);
    }
    cairn_ctl_table_close(table, ctl);
}

static int print_json(const Cairn__ClusterStatus *status)
{
    char store[20];
    snprintf(store, sizeof store, "%016llx", (unsigned long long)status->store);
    json_t *members = json_array();
    for (size_t i = 0; i < status->n_members; i++) {
        const Cairn__MemberStatus *m = status->members[i];
        json_array_append_new(
            members,
            json_pack(
                "{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:o, s:o}",
                "name", m->name, "role", cairn_role_name(m->role), "state", m->state, "address",
                m->address, "path", m->path, "place", m->place, "storage", m->storage, "unheard",
                m->unheard, "unfit", m->unfit, "apart", m->apart, "since_ms",
                (json_int_t)m->since_ms, "state_bytes", (json_int_t)m->state_bytes, "memory_bytes",
                (json_int_t)m->memory_bytes, "version", m->version, "without",
                without_json(m->without), "home", home_json(m)));
    }
    return cairn_ctl_print_json(
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:i, s:i, s:s, s:o, s:o}", "cluster", status->cluster,
                  "store", store, "version", status->version, "coordinator_incarnation",
                  (json_int_t)status->coordinator_incarnation, "uptime_ms",
                  (json_int_t)status->uptime_ms, "shards_expected", (int)status->shards_expected,
                  "jobs", (int)status->job_count, "storage", status->storage, "members", members,
                  "strangers", strangers_json(status->strangers, status->n_strangers)));
}

static cairn_status ask_status(struct ctl *ctl, ProtobufCMessage **reply_out)
{
    const Cairn__ClusterStatusGet get = CAIRN__CLUSTER_STATUS_GET__INIT;
    return cairn_ctl_call(ctl, CAIRN_MSG_CLUSTER_STATUS_GET, &get.base, CAIRN_MSG_CLUSTER_STATUS,
                          reply_out);
}

void cairn_ctl_say_strangers(struct ctl *ctl)
{
    ProtobufCMessage *reply;
    if (ask_status(ctl, &reply) != CAIRN_OK) return;
    const size_t count = ((const Cairn__ClusterStatus *)reply)->n_strangers;
    if (count > 0)
        fprintf(stderr,
                "cairn: the coordinator's store knows no job, and shards hold %zu part%s of jobs "
                "that are not acted on: `cairn cluster status` lists them, `cairn cluster adopt` "
                "takes them\n",
                count, count == 1 ? "" : "s");
    cairn_message_free(reply);
}

int cairn_ctl_cluster_status(struct ctl *ctl)
{
    static const char *const headers[] = { "NAME",  "ROLE",   "STATE",   "FOR",    "PATH",
                                           "PLACE", "MEMORY", "ADDRESS", "VERSION" };
    ProtobufCMessage *reply;
    const cairn_status called = ask_status(ctl, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__ClusterStatus *status = (const Cairn__ClusterStatus *)reply;
    if (ctl->check) {
        const int found = cairn_ctl_cluster_check(ctl, status);
        cairn_message_free(reply);
        return found;
    }
    if (ctl->json) {
        print_json(status);
    } else {
        if (!ctl->quiet)
            printf("cluster %s: coordinator %s, store %016llx, start %llu, up %llu s; %u shard%s "
                   "expected, %u job%s\n\n",
                   status->cluster, status->version, (unsigned long long)status->store,
                   (unsigned long long)status->coordinator_incarnation,
                   (unsigned long long)status->uptime_ms / 1000, status->shards_expected,
                   status->shards_expected == 1 ? "" : "s", status->job_count,
                   status->job_count == 1 ? "" : "s");
        struct ctl_table *table = cairn_ctl_table_open(headers, 9);
        for (size_t i = 0; i < status->n_members; i++) {
            const Cairn__MemberStatus *m = status->members[i];
            cairn_ctl_table_cell(table, "%s", m->name);
            cairn_ctl_table_cell(table, "%s", cairn_role_name(m->role));
            cairn_ctl_table_cell(table, "%s", m->state);
            cairn_ctl_table_cell(table, "%llu s", (unsigned long long)m->since_ms / 1000);
            cairn_ctl_table_cell(table, "%s", m->path);
            cairn_ctl_table_cell(table, "%s", m->place);
            if (m->memory_bytes > 0)
                cairn_ctl_table_cell(table, "%s of %s", cairn_ctl_bytes(m->state_bytes),
                                     cairn_ctl_bytes(m->memory_bytes));
            else
                cairn_ctl_table_cell(table, "%s", cairn_ctl_bytes(m->state_bytes));
            cairn_ctl_table_cell(table, "%s", m->address);
            cairn_ctl_table_cell(table, "%s", m->version);
        }
        cairn_ctl_table_close(table, ctl);
        if (!ctl->quiet) print_homes(status);
        if (!ctl->quiet) print_without(status);
        if (!ctl->quiet) print_storage(status);
        if (!ctl->quiet) print_unheard(status);
        if (!ctl->quiet) print_apart(status);
        if (status->n_strangers > 0) {
            if (!ctl->quiet)
                printf("\nheld by shards, but not acted on (`cairn cluster adopt` takes it, `cairn "
                       "cluster forget JOB` drops it):\n\n");
            print_strangers(ctl, status->strangers, status->n_strangers);
        }
    }
    cairn_message_free(reply);
    return 0;
}

int cairn_ctl_cluster_forget(struct ctl *ctl)
{
    Cairn__ClusterForget forget = CAIRN__CLUSTER_FORGET__INIT;
    ProtobufCMessage *reply;
    forget.job = ctl->argv[0];
    forget.plan = !ctl->yes;
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_CLUSTER_FORGET, &forget.base,
                                               CAIRN_MSG_CLUSTER_FORGOTTEN, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__ClusterForgotten *forgotten = (const Cairn__ClusterForgotten *)reply;
    if (ctl->json) {
        cairn_ctl_print_json(json_pack("{s:b, s:o}", "done", (int)ctl->yes, "parts",
                                       strangers_json(forgotten->parts, forgotten->n_parts)));
    } else {
        print_strangers(ctl, forgotten->parts, forgotten->n_parts);
        if (!ctl->yes)
            printf("\nnothing was dropped: with --yes these parts are, and nothing brings them "
                   "back\n");
    }
    cairn_message_free(reply);
    return 0;
}

int cairn_ctl_cluster_backup(struct ctl *ctl)
{
    Cairn__ClusterBackup backup = CAIRN__CLUSTER_BACKUP__INIT;
    ProtobufCMessage *reply;
    char path[PATH_MAX];
    const int refused = cairn_ctl_absolute("FILE", ctl->argv[0], path);
    if (refused >= 0) return refused;
    backup.path = path;
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_CLUSTER_BACKUP, &backup.base,
                                               CAIRN_MSG_CLUSTER_BACKED_UP, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__ClusterBackedUp *made = (const Cairn__ClusterBackedUp *)reply;
    if (ctl->json)
        cairn_ctl_print_json(
            json_pack("{s:s, s:I}", "path", made->path, "bytes", (json_int_t)made->bytes));
    else if (ctl->quiet)
        printf("%s\n", made->path);
    else
        cairn_ctl_line("copied to", "%s, %s, on the coordinator's host", made->path,
                       cairn_ctl_bytes(made->bytes));
    cairn_message_free(reply);
    return 0;
}

static json_t *adopted_json(const Cairn__ClusterAdopted *adopted)
{
    json_t *jobs = json_array();
    for (size_t i = 0; i < adopted->n_jobs; i++) {
        const Cairn__AdoptedJob *j = adopted->jobs[i];
        json_array_append_new(jobs,
                              json_pack("{s:s, s:I, s:I, s:i, s:s}", "job", j->name, "generation",
                                        (json_int_t)j->generation, "step", (json_int_t)j->step,
                                        "shards", (int)j->shards, "refused", j->refused));
    }
    return jobs;
}

static json_t *silent_json(const Cairn__ClusterAdopted *adopted)
{
    json_t *names = json_array();
    for (size_t i = 0; i < adopted->n_silent; i++)
        json_array_append_new(names, json_string(adopted->silent[i]));
    return names;
}

/* They are no reason to wait for, and may be one for what is refused. */
static void say_silent(const Cairn__ClusterAdopted *adopted)
{
    for (size_t i = 0; i < adopted->n_silent; i++)
        printf("%sshard %s did not say what it holds, and stays as it is: see whether its process "
               "is stopped, and adopt again when it answers\n",
               i == 0 ? "\n" : "", adopted->silent[i]);
}

static json_t *keys_json(const Cairn__Keys *keys)
{
    json_t *ids = json_array();
    for (size_t i = 0; keys != NULL && i < keys->n_keys; i++)
        json_array_append_new(ids, json_string(keys->keys[i]->id));
    return ids;
}

/* Without a new store's word for them no snapshot that they signed would be restored. */
static void say_keys(const Cairn__Keys *keys, bool done)
{
    for (size_t i = 0; keys != NULL && i < keys->n_keys; i++)
        printf("%skey %s, which the lost store trusted, %s trusted here\n", i == 0 ? "\n" : "",
               keys->keys[i]->id, done ? "is" : "would be");
}

int cairn_ctl_cluster_adopt(struct ctl *ctl)
{
    static const char *const headers[] = { "JOB", "GENERATION", "STEP", "SHARDS", "REFUSED" };
    Cairn__ClusterAdopt adopt = CAIRN__CLUSTER_ADOPT__INIT;
    ProtobufCMessage *reply;
    size_t whole = 0;
    adopt.plan = !ctl->yes;
    if (ctl->timeout_ms == 0) ctl->timeout_ms = ADOPT_TIMEOUT_MS;
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_CLUSTER_ADOPT, &adopt.base,
                                               CAIRN_MSG_CLUSTER_ADOPTED, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__ClusterAdopted *adopted = (const Cairn__ClusterAdopted *)reply;
    for (size_t i = 0; i < adopted->n_jobs; i++) whole += adopted->jobs[i]->refused[0] == '\0';
    if (ctl->json) {
        cairn_ctl_print_json(json_pack("{s:b, s:o, s:o, s:o}", "done", (int)(ctl->yes && whole > 0),
                                       "jobs", adopted_json(adopted), "keys",
                                       keys_json(adopted->keys), "silent", silent_json(adopted)));
    } else {
        struct ctl_table *table = cairn_ctl_table_open(headers, 5);
        for (size_t i = 0; i < adopted->n_jobs; i++) {
            const Cairn__AdoptedJob *j = adopted->jobs[i];
            cairn_ctl_table_cell(table, "%s", j->name);
            cairn_ctl_table_cell(table, "%llu", (unsigned long long)j->generation);
            cairn_ctl_table_cell(table, "%llu", (unsigned long long)j->step);
            cairn_ctl_table_cell(table, "%u", j->shards);
            cairn_ctl_table_cell(table, "%s", j->refused);
        }
        cairn_ctl_table_close(table, ctl);
        say_keys(adopted->keys, ctl->yes);
        say_silent(adopted);
        if (adopted->n_jobs == 0)
            printf("\nnothing to adopt: the shards that are here%s hold no job but those of this "
                   "coordinator\n",
                   adopted->n_silent > 0 ? " and answer" : "");
        else if (!ctl->yes && whole > 0)
            printf(
                "\nnothing was adopted: --yes takes the jobs that are not refused, and from then "
                "on the shards obey the store that these are of no more\n");
    }
    const bool none = whole == 0 && (adopted->n_jobs > 0 || adopted->n_silent > 0);
    cairn_message_free(reply);
    return none ? 1 : 0;
}
